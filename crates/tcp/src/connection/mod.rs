//! One connection: the state machine of RFC 9293, without addresses on frames and without payload.
//!
//! A connection is told which segment arrived ([`input`]), which timer is due ([`timer`]) and which
//! calls its host makes ([`host`]). The engine asks it for the next segment ([`output`]). It
//! answers with flags, deadlines and plans, never with bytes: the bytes stay in the host's rings
//! and are named by their stream offset.
//! ```text
//!   send ring      | acknowledged |   in flight   |  not sent  |  free
//!                              snd_una         snd_nxt      snd_end
//!   receive ring   |   taken      |   readable    |  out of order, gaps  |
//!                             rcv_taken       rcv_nxt                 rcv_edge
//! ```
//!
//! The first 128 bytes of [`Connection`] serve segments that arrive in order. The rest serves
//! opening, closing and loss.

mod accurate_ecn;
mod acknowledge;
mod assembler;
mod bbr;
mod congestion;
mod fast_open;
mod fast_path;
mod frto;
mod handshake;
mod host;
mod hystart;
mod input;
mod output;
mod path;
mod prediction;
mod receive;
mod recovery;
mod rtt;
mod sent;
mod template;
mod timer;

use core::ops::{BitAnd, BitOr, Not};

pub(crate) use accurate_ecn::AccurateEcn;
pub(crate) use fast_open::FastOpen;
pub(crate) use fast_path::Progressed;
pub(crate) use handshake::{Offer, OpenContext, window_scale};
pub(crate) use input::Response;
pub(crate) use output::{Plan, PlanKind};
pub(crate) use prediction::{AckWords, Prediction};
pub(crate) use receive::Acknowledge;
pub(crate) use template::{Layout, TCP_AT_V4, TCP_AT_V6, Template};
pub(crate) use timer::LossTimer;

use crate::config::{Config, Options};
use crate::counters::Counters;
use crate::flow::FlowKey;
use crate::host::ConnectionId;
use crate::position::{Position, Span};
use crate::state::{CloseReason, Departure, Phase, State};
use crate::time::Instant;
use crate::wire::tcp::Flags;
use assembler::Assembler;
use congestion::Congestion;
use recovery::{Rack, Recovery};
pub(crate) use rtt::GRANULARITY;
use rtt::RttEstimator;
use sent::Scoreboard;

/// A set of conditions of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Conditions(u32);

impl Conditions {
    /// An acknowledgement is due now.
    pub(crate) const ACK_NOW: Self = Self(1);
    /// Timestamps were negotiated.
    pub(crate) const TIMESTAMPS: Self = Self(1 << 1);
    /// Selective acknowledgements were negotiated.
    pub(crate) const SACK: Self = Self(1 << 2);
    /// ECN was negotiated.
    pub(crate) const ECN: Self = Self(1 << 3);
    /// Segments carry ECE until the remote answers with CWR.
    pub(crate) const ECHO_MARKS: Self = Self(1 << 4);
    /// The next data segment carries CWR.
    pub(crate) const SEND_CWR: Self = Self(1 << 5);
    /// The host has finished: a FIN follows its last byte.
    pub(crate) const FIN_WANTED: Self = Self(1 << 6);
    /// The FIN has a place in sequence space and has been sent.
    pub(crate) const FIN_SENT: Self = Self(1 << 7);
    /// The stream has arrived up to the remote's FIN.
    pub(crate) const FIN_RECEIVED: Self = Self(1 << 8);
    /// Segments are missing before some that arrived, or a FIN arrived before the data that
    /// precedes it.
    pub(crate) const OUT_OF_ORDER: Self = Self(1 << 9);
    /// Recently the congestion window was the limit, not the application.
    pub(crate) const CWND_LIMITED: Self = Self(1 << 10);
    /// A probe without data is due: a window probe or a keepalive.
    pub(crate) const PROBE_DUE: Self = Self(1 << 11);
    /// A tail loss probe is due.
    pub(crate) const TAIL_PROBE_DUE: Self = Self(1 << 12);
    /// The first retransmission of a recovery is sent even if the window does not allow it.
    pub(crate) const FORCE_RETRANSMIT: Self = Self(1 << 13);
    /// A segment smaller than usual is sent, because waiting for a larger window has not helped.
    pub(crate) const FORCE_SMALL: Self = Self(1 << 14);
    /// A reset is due; the connection is over when it has been sent.
    pub(crate) const RESET_DUE: Self = Self(1 << 15);
    /// The Nagle algorithm is off.
    pub(crate) const NODELAY: Self = Self(1 << 16);
    /// The host holds back a partial segment (MSG_MORE).
    pub(crate) const CORKED: Self = Self(1 << 17);
    /// Keepalive or another timer needs the time when the remote was last heard.
    pub(crate) const KEEPALIVE: Self = Self(1 << 18);
    /// Departures are spread over the round trip.
    pub(crate) const PACING: Self = Self(1 << 19);
    /// The connection came in through a listener.
    pub(crate) const PASSIVE: Self = Self(1 << 20);
    /// The host has let go of the connection.
    pub(crate) const RELEASED: Self = Self(1 << 21);
    /// The congestion window has grown or shrunk since the start. Invariant: while this is off, the
    /// window is not larger than an initial one, and no stage of its growth has begun.
    pub(crate) const WINDOW_MOVED: Self = Self(1 << 22);
    /// The remote marked congestion on the last segment (DCTCP's receiver state).
    pub(crate) const MARKED_LAST: Self = Self(1 << 23);
    /// Acknowledge at once while the remote is likely to be in slow start.
    pub(crate) const QUICK_ACK: Self = Self(1 << 24);
    /// The connection is in the run queue for sending.
    pub(crate) const QUEUED: Self = Self(1 << 25);
    /// A model of the path sets the congestion window, and needs each acknowledgement.
    pub(crate) const MODELLED: Self = Self(1 << 26);
    /// The slot holds no connection.
    pub(crate) const FREE: Self = Self(1 << 27);
    /// Windows are scaled, both ways (RFC 7323 section 2.2).
    pub(crate) const SCALES: Self = Self(1 << 29);
    /// The connection is in the flow table.
    pub(crate) const IN_TABLE: Self = Self(1 << 30);
    /// The connection is counted among the half-open connections of its listener.
    pub(crate) const HALF_OPEN: Self = Self(1 << 31);
    /// Pacing holds data back until `pace_at`.
    pub(crate) const PACED: Self = Self(1 << 28);

    /// Conditions for which `output` looks at more than new data.
    pub(crate) const URGENT: Self = Self(
        Self::ACK_NOW.0
            | Self::PROBE_DUE.0
            | Self::TAIL_PROBE_DUE.0
            | Self::FORCE_RETRANSMIT.0
            | Self::FORCE_SMALL.0
            | Self::RESET_DUE.0,
    );
    /// Conditions that keep a segment from the sender's fast path.
    pub(crate) const TRANSMIT_SLOW_PATH: Self = Self(
        Self::URGENT.0 & !Self::ACK_NOW.0
            | Self::ECN.0
            | Self::FIN_WANTED.0
            | Self::OUT_OF_ORDER.0
            | Self::CORKED.0
            | Self::PACING.0
            | Self::MODELLED.0,
    );
    /// Conditions that keep a segment from the receiver's fast path.
    pub(crate) const RECEIVE_SLOW_PATH: Self = Self(
        Self::ECN.0
            | Self::OUT_OF_ORDER.0
            | Self::KEEPALIVE.0
            | Self::RELEASED.0
            | Self::MODELLED.0,
    );

    /// Conditions that the fast path of payload depends on.
    pub(crate) const RECEPTION: Self = Self(Self::RECEIVE_SLOW_PATH.0 | Self::TIMESTAMPS.0);
    /// Conditions that the fast path of acknowledgements depends on, and conditions that it
    /// requires.
    pub(crate) const ACKNOWLEDGEMENT: Self = Self(Self::RECEIVE_SLOW_PATH.0 | Self::AGREED_UPON.0);
    /// Options that nearly every remote agrees to.
    pub(crate) const AGREED_UPON: Self = Self(Self::TIMESTAMPS.0 | Self::SACK.0);

    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// True when the conditions `these` are on, and no others of `among`.
    #[inline]
    pub(crate) const fn are(self, among: Self, these: Self) -> bool {
        self.0 & among.0 == these.0
    }

    #[inline]
    pub(crate) fn set(&mut self, other: Self) {
        self.0 |= other.0;
    }

    #[inline]
    pub(crate) fn clear(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    #[inline]
    pub(crate) fn put(&mut self, other: Self, on: bool) {
        if on {
            self.set(other)
        } else {
            self.clear(other)
        }
    }
}

impl BitOr for Conditions {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Conditions {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Conditions {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// News that the host has not been told yet, and conditions that delay news.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct News(pub(crate) u8);

impl News {
    pub(crate) const CONNECTED: u8 = 1;
    pub(crate) const PROGRESS: u8 = 2;
    pub(crate) const CLOSED: u8 = 4;
    /// All news that the host can be told.
    pub(crate) const ANY: u8 = Self::CONNECTED | Self::PROGRESS | Self::CLOSED;
    /// The connection is in the engine's event queue.
    pub(crate) const ANNOUNCED: u8 = 8;
    /// The connection came in through a listener, and the host has not received it from `accept`
    /// yet: the host gets no events about it.
    pub(crate) const UNSEEN: u8 = 16;
    /// One side has finished, the remote or we: events report that, or must not count its FIN. Also
    /// set before our SYN is acknowledged when the host has the connection by Fast Open.
    pub(crate) const ENDING: u8 = 32;
    /// The host has released the connection and gets no more events.
    pub(crate) const RELEASED: u8 = 64;

    /// The most frequent combination of news.
    pub(crate) const PLAIN_PROGRESS: Self = Self(Self::PROGRESS | Self::ANNOUNCED);

    #[inline(always)]
    pub(crate) fn has(self, these: u8) -> bool {
        self.0 & these != 0
    }
}

/// Values from outside that every step needs.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
}

/// See the module's description. Fields have the names of RFC 9293 section 3.3.1 where it has one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Connection {
    // The first cache line: the positions of both directions.
    /// The next byte expected.
    pub(crate) rcv_nxt: Position,
    /// The right edge of the window as the remote knows it. Never moves left (RFC 9293 section
    /// 3.8.6: "a TCP receiver SHOULD NOT shrink the window"). Invariant: `rcv_nxt <= rcv_edge`.
    pub(crate) rcv_edge: Position,
    /// The host has taken all bytes before this position. Invariant: `rcv_taken <= rcv_nxt`.
    pub(crate) rcv_taken: Position,
    /// The oldest unacknowledged byte. Invariant: `snd_una <= snd_nxt`.
    pub(crate) snd_una: Position,
    /// The next byte to send.
    pub(crate) snd_nxt: Position,
    /// The host has published all bytes before this position. The FIN has the position `snd_end`.
    pub(crate) snd_end: Position,
    /// SND.UNA + SND.WND: the remote accepts no byte from this position on. May move left.
    pub(crate) snd_edge: Position,
    /// The engine's table of deadlines looks at this connection no later than this. A new deadline
    /// that is not earlier costs only this comparison.
    pub(crate) asked_by: Instant,
    // The second cache line: words that segments in order read and change.
    pub(crate) conditions: Conditions,
    /// The sequence number of our first byte: ISS + 1.
    pub(crate) snd_first: u32,
    /// The sequence number of the remote's first byte: IRS + 1.
    pub(crate) rcv_first: u32,
    /// TS.Recent (RFC 7323 section 4.3).
    pub(crate) ts_recent: u32,
    /// The expected words about our sending direction in a payload segment that brings no news
    /// about it.
    pub(crate) prediction: Prediction,
    /// The receive window's size when the host has taken everything. Invariant: the header's window
    /// field can express it.
    pub(crate) rcv_limit: u32,
    /// Payload of a full segment, options already taken off.
    pub(crate) mss: u16,
    pub(crate) snd_wscale: u8,
    // The next five are compared as one word: see `is_watched_only` and `is_untroubled`.
    pub(crate) loss_timer: LossTimer,
    pub(crate) state: State,
    pub(crate) phase: Phase,
    /// `duplicate` is waiting to be reported.
    pub(crate) has_duplicate: bool,
    /// The path may take larger segments than we send: see [`path`].
    pub(crate) may_widen: bool,
    pub(crate) rcv_wscale: u8,
    pub(crate) news: News,
    /// Retransmissions or probes since the remote last acknowledged something.
    pub(crate) retries: u8,
    /// The remote knows the current acknowledgement and window, and the template's headers contain
    /// them: neither has changed since they were sent.
    pub(crate) is_told: bool,
    /// Distinguishes the successive connections of one slot.
    pub(crate) generation: u32,
    /// When ts_recent was set, in units of [`TIMESTAMP_AGE_SHIFT`]: it expires after 24 days (RFC
    /// 7323 section 5.5).
    pub(crate) ts_recent_at: u32,
    /// When a delayed acknowledgement is due. Armed while one segment waits for a second one and no
    /// acknowledgement is due.
    pub(crate) ack_deadline: Instant,
    /// When `loss_timer` expires.
    pub(crate) loss_deadline: Instant,

    // The third cache line: words that acknowledgements and the host's reads also need.
    /// Added to the clock to give TSval; different for every pair of endpoints.
    pub(crate) ts_offset: u32,
    /// The congestion window, in bytes.
    pub(crate) cwnd: u32,
    pub(crate) scoreboard: Scoreboard,
    /// SND.WL1: the sequence number of the segment that last moved the window.
    pub(crate) snd_wl1: Position,
    /// Receive window auto-tuning: the end of the measured round, and the position that the host
    /// had taken when the round began.
    pub(crate) tune_until: Instant,
    pub(crate) tune_taken: Position,
    /// The link, IP and TCP header with which every segment of this connection begins.
    pub(crate) template: Template,
    pub(crate) rtt: RttEstimator,
    /// When data was last sent, to notice idleness (RFC 5681 section 4.1).
    pub(crate) sent_at: Instant,
    /// The end of the last partial segment that was sent (Minshall's variant of Nagle).
    pub(crate) snd_small_end: Position,
    /// Last.ACK.sent of RFC 7323 section 4.3.
    pub(crate) last_ack_sent: Position,
    /// The largest window the remote ever offered (RFC 9293 section 3.8.6.2.1, RFC 5961 section 5).
    pub(crate) snd_window_max: u32,
    /// The listener through which it came, when PASSIVE.
    pub(crate) listener: u32,

    pub(crate) rack: Rack,
    pub(crate) congestion: Congestion,

    // From here on: fields that are seldom used.
    pub(crate) assembler: Assembler,
    pub(crate) recovery: Recovery,
    //= RFC 9293#3.9.1.1
    //# At all other times, a previous segment has either been sent or received on this
    //# connection, and TCP implementations MUST use the same local address that was used in those
    //# previous segments (MUST-45).
    pub(crate) key: FlowKey,
    /// A segment that arrived twice, to be reported (RFC 2883). Valid while `has_duplicate`.
    pub(crate) duplicate: Span,
    /// The position of the remote's FIN, if the FIN came early: see [`Self::early_fin`].
    pub(crate) fin_at: Position,
    pub(crate) path: path::PathSearch,
    /// The remote's MSS option, or its default.
    pub(crate) remote_mss: u16,
    /// Payload bytes, options not deducted, that the path takes: from the MTU of the route or the
    /// path.
    pub(crate) path_mss: u16,
    /// The number of acknowledgements that are still sent at once.
    pub(crate) quick_acks: u8,
    /// The reason why the connection ended or is in TIME-WAIT. Before that: the error that came
    /// with `no_route_at`.
    pub(crate) close_reason: CloseReason,
    /// The half second in which an old segment was last answered with an acknowledgement.
    pub(crate) answered_at: u16,
    pub(crate) options: Options,
    /// Whether the host still gets events, but no program waits for the remote.
    pub(crate) departure: Option<Departure>,
    /// Each SYN and SYN-ACK so far had flags of ECN, our own and the remote's. Otherwise no data is
    /// ECN-capable, whatever was negotiated.
    pub(crate) is_ecn_agreed: bool,
    /// Receive window auto-tuning: whether a gap was open at the end of the last round, and the
    /// most bytes that the host has taken in a round.
    pub(crate) tune_had_gap: bool,
    pub(crate) tune_most: u32,
    /// State of accurate ECN feedback (RFC 9768), where it was negotiated.
    pub(crate) accurate_ecn: Option<Box<AccurateEcn>>,
    /// Present when the handshake carries payload, or prepares for payload (RFC 7413).
    pub(crate) fast_open: Option<Box<FastOpen>>,
    /// Since when the connection makes no progress. Valid while `stalled_at` is current. The user
    /// timeout counts from here.
    pub(crate) stalled_since: Instant,
    /// The low bits of SND.UNA at that time.
    pub(crate) stalled_at: u32,
    /// The low bits of SND.UNA when a message said that there is no route to the remote: a soft
    /// error (RFC 5461 section 2). A later segment of the remote refutes it.
    pub(crate) no_route_at: u32,
    /// When the remote was last heard; maintained only where a timer needs it.
    pub(crate) heard_at: Instant,
    /// Keepalive, FIN-WAIT-2 and TIME-WAIT share a timer.
    pub(crate) idle_deadline: Instant,
    /// When pacing lets the next segment go.
    pub(crate) pace_at: Instant,
}

const _: () = assert!(
    core::mem::offset_of!(Connection, ts_offset) == 128,
    "what segments in order need fits two cache lines"
);
// Unit tests count steps in a further word.
const _: () = assert!(
    size_of::<Connection>() <= if cfg!(test) { 1_024 } else { 960 },
    "an idle connection stays under 1 KiB"
);

impl Connection {
    /// The host's name for the connection in slot `slot`.
    #[inline]
    pub(crate) fn id(&self, slot: u32) -> ConnectionId {
        ConnectionId {
            index: slot,
            generation: self.generation,
        }
    }

    //= RFC 7323#4.1
    //# Values of this clock MUST be at least approximately proportional to real time, in order to
    //# measure actual RTT.
    //= RFC 7323#5.4
    //# It MUST tick at least once for each 2^31 bytes sent.
    //= RFC 7323#5.4
    //# The recycling time of the timestamp clock MUST be greater than MSL seconds.
    /// TSval for now.
    #[inline]
    pub(crate) fn timestamp(&self, now: Instant) -> u32 {
        now.timestamp_ticks().wrapping_add(self.ts_offset)
    }

    /// The position of the remote's FIN, if the FIN came before its turn.
    #[inline]
    pub(crate) fn early_fin(&self) -> Option<Position> {
        (self.fin_at > Position::SYN).then_some(self.fin_at)
    }

    /// Reads a word of each cache line that a segment in order needs. To read the lines that only
    /// the answer needs would cost more here than it saves later.
    #[inline]
    pub(crate) fn touch(&self) -> u32 {
        self.rcv_nxt.0 as u32 ^ self.snd_first
    }

    /// Bytes believed to be in the network (RFC 6675's pipe).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        let gone = self.scoreboard.sacked_bytes + self.scoreboard.lost_bytes;
        ((self.snd_nxt - self.snd_una) as u32)
            .saturating_sub(gone)
            .saturating_sub(self.recovery.duplicate_bytes)
    }

    //= RFC 9293#3.7.1
    //# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS",
    //# MUST be the smaller (MUST-16) of the send MSS (that reflects the available reassembly
    //# buffer size at the remote host, the EMTU_R [19]) and the largest transmission size
    //# permitted by the IP layer (EMTU_S [19]):
    /// Updates the largest segment, options included, that the remote and the path both accept.
    pub(crate) fn update_mss(&mut self) {
        let options = if self.conditions.has(Conditions::TIMESTAMPS) {
            12
        } else {
            0
        };
        self.mss = self
            .remote_mss
            .min(self.path_mss)
            .saturating_sub(options)
            .max(MSS_MIN);
        // The window is offered in steps of a segment. A smaller segment may make an update due
        // now.
        self.is_told = false;
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        if self.state != State::TimeWait {
            // In TIME-WAIT the host has been told already.
            self.close_reason = reason;
            self.news.0 |= News::CLOSED;
        }
        self.state = State::Closed;
        self.ack_deadline = Instant::NEVER;
        self.idle_deadline = Instant::NEVER;
        self.loss_timer = LossTimer::Idle;
        self.loss_deadline = Instant::NEVER;
        self.conditions
            .clear(Conditions::URGENT & !Conditions::RESET_DUE);
    }

    /// The flags that every segment after the handshake has.
    fn echo_flags(&self) -> Flags {
        if self.conditions.has(Conditions::ECHO_MARKS) {
            Flags::ACK | Flags::ECE
        } else {
            Flags::ACK
        }
    }

    /// Checks all invariants that hold between two steps, except those of the scoreboard. The
    /// simulator calls this after each step.
    pub(crate) fn assert_invariants(&self) {
        assert!(self.snd_una <= self.snd_nxt, "snd_una beyond snd_nxt");
        assert!(
            self.snd_nxt <= self.snd_end + u64::from(self.conditions.has(Conditions::FIN_SENT)),
            "sent what the host has not published"
        );
        assert!(self.rcv_taken <= self.rcv_nxt, "took what has not arrived");
        assert!(self.rcv_nxt <= self.rcv_edge, "got what was not asked for");
        assert!(
            self.rcv_limit <= self.window_max(),
            "a window that cannot be told"
        );
        if self.state != State::Closed {
            assert!(
                self.conditions.has(Conditions::OUT_OF_ORDER)
                    == (!self.assembler.is_empty() || self.early_fin().is_some()),
                "OUT_OF_ORDER disagrees with the assembler"
            );
            let is_opening = matches!(self.state, State::SynSent | State::SynReceived);
            assert!(
                is_opening
                    || self.conditions.has(Conditions::WINDOW_MOVED)
                    || self.cwnd <= self.initial_window(),
                "idleness would not be noticed: a window of {} in {:?}",
                self.cwnd,
                self.phase
            );
            let is_waiting = self.snd_una < self.snd_nxt && self.state != State::Closed;
            assert!(
                !is_waiting
                    || self.loss_deadline.is_armed()
                    || self.conditions.has(Conditions::URGENT),
                "data in flight and no timer: {:?} {:?}",
                self.state,
                self.phase
            );
            assert!(
                self.loss_timer != LossTimer::TailProbe || self.rack.probe_end.is_none(),
                "a probe would follow another"
            );
            assert!(
                !self.is_told || self.are_headers_current(),
                "the headers at hand are old ones"
            );
            self.assert_prediction();
            assert!(
                self.phase == Phase::Open || self.snd_una < self.recovery.point,
                "recovery did not end at its point"
            );
            assert!(
                self.cwnd >= u32::from(self.mss.min(MSS_MIN)),
                "no congestion window"
            );
        }
    }

    /// Checks the scoreboard, and returns how many records it has.
    pub(crate) fn assert_scoreboard(&self) -> usize {
        if self.state == State::Closed {
            return 0;
        }
        self.scoreboard
            .assert_invariants(self.snd_una, self.snd_nxt)
    }

    /// Bytes of memory this connection holds.
    pub(crate) fn memory_bytes(&self) -> usize {
        let prior = self.recovery.prior.as_deref().map_or(0, size_of_val);
        let accurate_ecn = self.accurate_ecn.as_deref().map_or(0, size_of_val);
        let fast_open = self.fast_open.as_deref().map_or(0, size_of_val);
        let heap = self.scoreboard.heap_bytes() + self.assembler.heap_bytes();
        size_of::<Self>() + heap + prior + accurate_ecn + fast_open
    }
}

/// Timestamp ages are kept in units of 2^20 microseconds (about one second).
const TIMESTAMP_AGE_SHIFT: u32 = 20;

#[inline]
pub(crate) const fn coarse(at: Instant) -> u32 {
    (at.as_micros() >> TIMESTAMP_AGE_SHIFT) as u32
}

/// The time in units of 2^19 microseconds (about half a second).
pub(crate) const fn half_seconds(at: Instant) -> u16 {
    (at.as_micros() >> 19) as u16
}

/// The smallest MSS assumed for a path: RFC 879's default less the space that its options may need.
/// With a smaller one, per-segment costs would let a remote cause much work with small
/// acknowledgements (CVE-2019-11479).
pub(crate) const MSS_MIN: u16 = 48;
