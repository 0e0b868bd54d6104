//! Fast Open (RFC 7413): payload on a SYN.
//!
//! ```text
//!   client                                              server
//!   SYN, request, no payload       ------------------>
//!                                  <------------------  SYN-ACK, cookie
//!   ...
//!   SYN, cookie, payload           ------------------>  accepted at once: the host reads
//!                                  <------------------  SYN-ACK of SYN and payload
//!                                  <------------------  the answer, still in SYN-RECEIVED
//!   acknowledgement                ------------------>  ESTABLISHED
//! ```
//!
//! The engine makes and checks the cookies (`engine::fast_open`). A connection knows the option of
//! its first SYN or SYN-ACK, how much payload went with the SYN, and whether the SYN was accepted
//! with it. Retransmitted SYNs have neither option nor payload. Payload that a SYN-ACK does not
//! acknowledge goes with the acknowledgement of the SYN-ACK.
//!
//! If a host finishes in SYN-RECEIVED, its FIN is sent in ESTABLISHED, as RFC 9293 section 3.10.4
//! demands for a connection with data; Linux sends the FIN earlier.

use super::{Connection, Context, News};
use crate::host::{ConnectionId, Memory};
use crate::position::Position;
use crate::state::State;
use crate::wire::tcp::{FastOpenCookie, OPTIONS_BYTES_MAX};

/// RFC 7413 section 4.1.3: a SYN that is larger than usual may be dropped on the path, so a client
/// may limit its payload to these sizes.
const PAYLOAD_MAX_V4: u16 = 1_460;
const PAYLOAD_MAX_V6: u16 = 1_440;

/// The part of Fast Open in one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastOpen {
    /// The option of our first SYN or SYN-ACK.
    option: Option<FastOpenCookie>,
    /// The remote's MSS on an earlier connection; it limits the payload of the first SYN.
    known_mss: u16,
    /// Bytes of payload on our first SYN.
    sent_bytes: u32,
    /// Our SYN is held back until there is payload.
    is_held: bool,
    /// The host received the connection in SYN-RECEIVED.
    is_accepted: bool,
    /// Payload on a SYN was acknowledged, by the remote or by us.
    is_acknowledged: bool,
}

impl FastOpen {
    /// Asks the remote for a cookie.
    pub(crate) fn request() -> Self {
        Self {
            option: Some(FastOpenCookie::REQUEST),
            ..Self::default()
        }
    }

    /// Sends payload with a cookie to a remote whose MSS is known.
    pub(crate) fn with_cookie(cookie: FastOpenCookie, known_mss: u16) -> Self {
        Self {
            option: Some(cookie),
            known_mss,
            ..Self::default()
        }
    }

    /// Whether payload may be sent with the SYN.
    pub(crate) fn has_cookie(&self) -> bool {
        self.option.is_some_and(|cookie| !cookie.is_request())
    }

    /// Gives the remote a cookie.
    pub(crate) fn answer(cookie: FastOpenCookie) -> Self {
        Self {
            option: Some(cookie),
            ..Self::default()
        }
    }
}

impl Connection {
    /// Holds the SYN back until there is payload for it, if it may carry any.
    pub(crate) fn hold_syn(&mut self) {
        if let Some(fast_open) = self.fast_open.as_deref_mut() {
            fast_open.is_held = fast_open.has_cookie();
        }
    }

    /// Whether our SYN waits for payload. If the remote's SYN comes first, it is answered.
    pub(super) fn holds_syn(&self) -> bool {
        let is_empty = self.snd_end == Position::FIRST_BYTE;
        let is_held = |fast_open: &FastOpen| fast_open.is_held;
        self.state == State::SynSent && is_empty && self.fast_open.as_deref().is_some_and(is_held)
    }

    /// The option of our first SYN or SYN-ACK. A retransmission has none.
    pub(super) fn fast_open_option(&self) -> Option<FastOpenCookie> {
        //= RFC 7413#4.2.1
        //# We RECOMMEND both the client and the server to retransmit SYN and SYN-ACK packets
        //# without the cookie options on timeouts.
        let is_first = !self.has_repeated_syn();
        self.fast_open.as_deref()?.option.filter(|_| is_first)
    }

    /// Whether the SYN or SYN-ACK that is now sent is a retransmission.
    fn has_repeated_syn(&self) -> bool {
        self.retries > 0 || self.scoreboard.is_first_retransmitted()
    }

    /// Whether the host has had the connection since the remote's SYN.
    pub(crate) fn is_fast_opened(&self) -> bool {
        self.fast_open
            .as_deref()
            .is_some_and(|fast_open| fast_open.is_accepted)
    }

    /// Whether payload on a SYN was acknowledged, by the remote or by us.
    pub(crate) fn has_syn_data(&self) -> bool {
        self.fast_open
            .as_deref()
            .is_some_and(|fast_open| fast_open.is_acknowledged)
    }

    /// Gives the host a connection whose SYN came with a valid cookie, and the SYN's payload. False
    /// when the host has no room; then the handshake is an ordinary one.
    pub(crate) fn open_fast(
        &mut self,
        cx: &mut Context<'_>,
        payload: &[u8],
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) -> bool {
        let window = self.rcv_limit.min(u32::from(u16::MAX)) as usize;
        let payload = &payload[..payload.len().min(window)];
        if !payload.is_empty() {
            if memory.place(id, 0, payload).is_err() {
                cx.counters.host_had_no_room += 1;
                return false;
            }
            cx.counters.bytes_received += payload.len() as u64;
            self.news.0 |= News::PROGRESS | News::ENDING;
        }
        self.rcv_nxt = Position::FIRST_BYTE + payload.len() as u64;
        self.rcv_edge = self.rcv_nxt;
        //= RFC 7413#4.2.2
        //# If the FastOpened flag is set, the server MUST follow [RFC5681] (based on [RFC3390]) to
        //# set the initial congestion window for sending more data packets.
        // The SYN-ACK in flight uses one byte of the window.
        self.cwnd = self.initial_window() + 1;
        let fast_open = self.fast_open.get_or_insert_default();
        fast_open.is_accepted = true;
        fast_open.is_acknowledged = !payload.is_empty();
        true
    }

    /// Whether data may be sent before the handshake is complete: the cookie has proved the
    /// remote's address.
    pub(super) fn may_send_early(&self) -> bool {
        self.state == State::SynReceived && self.is_fast_opened()
    }

    /// Bytes of the host's stream that our first SYN carries.
    pub(super) fn take_syn_payload(&mut self) -> u32 {
        let published = self.snd_end.after(Position::FIRST_BYTE);
        let is_v4 = self.key.remote.is_v4();
        let path_mss = self.path_mss;
        let Some(fast_open) = self.fast_open.as_deref_mut() else {
            return 0;
        };
        //= RFC 7413#4.2.2
        //# To open a TFO connection, the client MUST have obtained a cookie from the server:
        if !fast_open.has_cookie() {
            return 0;
        }
        let typical = match is_v4 {
            true => PAYLOAD_MAX_V4,
            false => PAYLOAD_MAX_V6,
        };
        let most = fast_open.known_mss.min(path_mss).min(typical);
        let most = most.saturating_sub(OPTIONS_BYTES_MAX as u16);
        let bytes = published.min(most.into()) as u32;
        if bytes == 0 {
            // Like Linux (tcp_send_syn_data): a SYN without payload asks for a new cookie.
            fast_open.option = Some(FastOpenCookie::REQUEST);
        }
        fast_open.sent_bytes = bytes;
        bytes
    }

    //= RFC 7413#4.2.2
    //# The client SHOULD retransmit any unacknowledged data in the first ACK packet in step 2.
    /// The handshake is complete: sends payload of our SYN again that the remote did not take, or
    /// not all. This says nothing about congestion.
    pub(super) fn settle_syn_payload(&mut self) {
        let Some(fast_open) = self.fast_open.as_deref_mut().filter(|it| it.sent_bytes > 0) else {
            return;
        };
        let end = Position::FIRST_BYTE + u64::from(fast_open.sent_bytes);
        fast_open.is_acknowledged = self.snd_una > Position::FIRST_BYTE;
        if self.snd_una < end {
            self.scoreboard.mark_first_lost(u32::MAX);
        }
    }

    /// Whether the remote has not acknowledged any data except the payload of our SYN, although
    /// more was sent.
    pub(crate) fn is_stuck_behind_syn(&self) -> bool {
        let sent_bytes = self.fast_open.as_deref().map_or(0, |it| it.sent_bytes);
        let end = Position::FIRST_BYTE + u64::from(sent_bytes);
        self.state.is_synchronized() && self.snd_una <= end && self.snd_una < self.snd_nxt
    }

    /// Whether Fast Open was tried, as a client: with a request, or with payload.
    pub(crate) fn tried_fast_open(&self) -> bool {
        let is_active = !self.conditions.has(super::Conditions::PASSIVE);
        is_active
            && self
                .fast_open
                .as_deref()
                .is_some_and(|it| it.option.is_some())
    }
}
