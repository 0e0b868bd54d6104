//! The host's calls on a connection (RFC 9293 section 3.10.1 to 3.10.6).

use super::{Conditions, Connection, Context, News};
use crate::config::Keepalive;
use crate::position::Position;
use crate::state::{CloseReason, Departure, State};
use crate::time::{Duration, Instant};

impl Connection {
    /// The host has published everything before `end` in its send ring. Returns false and changes
    /// nothing if `end` moves back or lies beyond the host's own FIN.
    pub(crate) fn publish(&mut self, end: Position) -> bool {
        let is_valid = end >= self.snd_end
            && (end == self.snd_end || !self.conditions.has(Conditions::FIN_WANTED));
        if is_valid {
            self.snd_end = end;
        }
        is_valid
    }

    /// Whether the host may publish everything before `end`, with at least one new byte, and only a
    /// window can delay it.
    #[inline(always)]
    pub(crate) fn may_send_up_to(&self, end: Position) -> bool {
        let is_over = Conditions::FREE | Conditions::RELEASED | Conditions::FIN_WANTED;
        !self.conditions.has(is_over | Conditions::PACED)
            && self.state == State::Established
            && self.snd_end < end
    }

    /// Whether the host can take everything before `taken`, with at least one new byte, and more
    /// data is expected.
    #[inline(always)]
    pub(crate) fn has_more_for(&self, taken: Position) -> bool {
        let is_over = Conditions::FREE | Conditions::RELEASED | Conditions::FIN_RECEIVED;
        !self.conditions.has(is_over) && self.rcv_taken < taken && taken <= self.rcv_nxt
    }

    /// The host has taken everything before `taken` out of its receive ring. True when the remote
    /// is to be told at once; `None` for bytes that have not arrived or were taken before.
    pub(crate) fn take(&mut self, taken: Position) -> Option<bool> {
        if taken <= self.rcv_taken {
            return (taken == self.rcv_taken).then_some(false);
        }
        let fin = u64::from(self.conditions.has(Conditions::FIN_RECEIVED));
        (taken + fin <= self.rcv_nxt).then(|| self.open_window(taken))
    }

    /// RFC 9293 section 3.10.4, CLOSE: published data is still sent, then a FIN.
    pub(crate) fn finish(&mut self) {
        match self.state {
            State::Closed => {}
            // "Delete the TCB": the remote has not answered yet.
            State::SynSent => self.close(CloseReason::Aborted),
            _ => self.conditions.set(Conditions::FIN_WANTED),
        }
    }

    /// RFC 9293 section 3.10.5, ABORT.
    pub(crate) fn abort(&mut self, reason: CloseReason) {
        let sends_reset = match self.state {
            State::Closed | State::SynSent | State::TimeWait => false,
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait => true,
            // "Respond to queued requests ... and delete the TCB": no reset is needed.
            State::Closing | State::LastAck => false,
        };
        self.close(reason);
        self.conditions.put(Conditions::RESET_DUE, sends_reset);
    }

    /// The host releases the connection: it reads no more, and gets no more events.
    pub(crate) fn release(&mut self, cx: &mut Context<'_>) {
        self.conditions.set(Conditions::RELEASED);
        self.news.0 |= News::RELEASED;
        let has_unread = self.rcv_taken.byte() < self.received_bytes()
            || self.conditions.has(Conditions::OUT_OF_ORDER);
        match self.state {
            State::Closed | State::TimeWait => {}
            //= RFC 9293#3.6.1
            //# If such a host issues a CLOSE call while received data is still pending in the TCP
            //# connection, or if new data is received after CLOSE is called, its TCP implementation
            //# SHOULD send a RST to show that data was lost (SHLD-3).
            // RFC 2525 section 2.17: data that will never be read is answered with a reset.
            _ if has_unread => self.abort(CloseReason::Aborted),
            State::FinWait2 => self.idle_deadline = cx.now + cx.config.time_wait,
            _ => self.finish(),
        }
    }

    /// The program is gone, or may be. Published data is still sent; but a remote that keeps its
    /// window closed is given up.
    pub(crate) fn note_departure(&mut self, departure: Departure) {
        self.departure = Some(departure);
    }

    /// Whether no program waits for the remote.
    pub(super) fn departure(&self) -> Option<Departure> {
        match self.conditions.has(Conditions::RELEASED) {
            true => Some(Departure::Certain),
            false => self.departure,
        }
    }

    /// Sets when a silent remote is probed, and when the connection is given up.
    pub(crate) fn set_liveness(
        &mut self,
        cx: &Context<'_>,
        keepalive: Option<Keepalive>,
        user_timeout: Option<Duration>,
    ) {
        self.options.user_timeout = user_timeout;
        if self.options.keepalive == keepalive {
            return;
        }
        self.options.keepalive = keepalive;
        let is_open = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        );
        if is_open {
            self.idle_deadline = Instant::NEVER;
            self.arm_keepalive(cx.now);
        }
    }

    /// Bytes of the remote's stream that are in the host's ring without a gap.
    #[inline]
    pub(crate) fn received_bytes(&self) -> u64 {
        let fin = u64::from(self.conditions.has(Conditions::FIN_RECEIVED));
        self.rcv_nxt.after(Position::FIRST_BYTE) - fin
    }

    /// Bytes of the host's stream that the remote has acknowledged.
    #[inline]
    pub(crate) fn acknowledged_bytes(&self) -> u64 {
        self.snd_una.min(self.snd_end).byte()
    }
}
