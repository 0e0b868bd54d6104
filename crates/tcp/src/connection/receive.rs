//! The receiving half: it places payload, acknowledges in time and offers a window that the remote
//! can use (RFC 9293 sections 3.8.6 and 3.10.7.4 from the seventh step on, RFC 5681 section 4.2,
//! RFC 2018).

use super::{Conditions, Connection, Context, News};
use crate::config::Config;
use crate::host::{ConnectionId, Memory};
use crate::position::{Position, Span};
use crate::state::{CloseReason, State};
use crate::time::{Duration, Instant};
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, Segment};

/// The number of acknowledgements that are sent at once at the start, while the remote is in slow
/// start.
pub(super) const QUICK_ACKS: u8 = 16;
/// Length of a round for window tuning while no round trip was measured.
const TUNE_ROUND: Duration = Duration::from_millis(100);
/// The shortest round: on a fast link, hosts that work in batches need more time than the network.
const TUNE_ROUND_MIN: Duration = Duration::from_millis(2);

/// When received data is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acknowledge {
    /// Now: the caller sets `ACK_NOW`, if it is not set.
    Now,
    /// At `ack_deadline`, or earlier with another segment.
    Later,
}

impl Connection {
    /// Takes payload and FIN of an acceptable segment.
    pub(super) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        seq: Position,
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) {
        let has_fin = segment.flags.has(Flags::FIN);
        if segment.payload.is_empty() && !has_fin {
            return;
        }
        if !self.state.may_receive() {
            // RFC 9293 section 3.10.7.4, seventh and eighth step: no data can follow.
            if self.state == State::TimeWait && has_fin {
                self.enter_time_wait(cx);
            }
            self.conditions.set(Conditions::ACK_NOW);
            return;
        }
        let end = seq + segment.payload.len() as u64;
        self.receive_payload(cx, segment.payload, seq, id, memory);
        if has_fin && self.state.may_receive() {
            self.receive_fin(cx, end);
        }
    }

    /// True for payload that the host will never read. False for a FIN that repeats payload which
    /// was read already.
    pub(super) fn is_abandoned_by_host(&self, segment: &Segment<'_>, seq: Position) -> bool {
        self.conditions.has(Conditions::RELEASED)
            && seq + segment.payload.len() as u64 > self.rcv_nxt
            && !segment.payload.is_empty()
            && self.state.may_receive()
    }

    fn receive_payload(
        &mut self,
        cx: &mut Context<'_>,
        payload: &[u8],
        seq: Position,
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) {
        if payload.is_empty() {
            return;
        }
        let end = seq + payload.len() as u64;
        // "Segments with higher beginning sequence numbers ... trim off any portions that lie
        // outside the window."
        let mut kept = Span {
            start: seq.max(self.rcv_nxt),
            end: end.min(self.rcv_edge),
        };
        if seq < self.rcv_nxt {
            self.report_duplicate(
                cx,
                Span {
                    start: seq,
                    end: end.min(self.rcv_nxt),
                },
            );
        }
        if end > self.rcv_edge {
            cx.counters.beyond_window += 1;
            self.conditions.set(Conditions::ACK_NOW);
        }
        if kept.start >= kept.end {
            self.conditions.set(Conditions::ACK_NOW);
            return;
        }
        let bytes = &payload[(kept.start - seq) as usize..(kept.end - seq) as usize];
        if kept.start == self.rcv_nxt {
            if memory.place(id, kept.start.byte(), bytes).is_err() {
                kept.end = kept.start + self.place_beginning(cx, bytes, kept.start, id, memory);
                if kept.start == kept.end {
                    return;
                }
            }
            let kept_bytes = kept.end.after(kept.start);
            cx.counters.bytes_received += kept_bytes;
            // Of a segment that repeats several parts, the first part is reported (RFC 2883 section
            // 4.2).
            let is_reported = seq < self.rcv_nxt;
            self.rcv_nxt = kept.end;
            self.news.0 |= News::PROGRESS;
            if self.conditions.has(Conditions::OUT_OF_ORDER) {
                if let Some(known) = self.assembler.overlap(kept).filter(|_| !is_reported) {
                    self.report_duplicate(cx, known);
                }
                self.fill_gap(cx);
            } else {
                self.acknowledge(cx, kept_bytes as usize);
            }
        } else {
            self.receive_early(cx, bytes, kept, id, memory);
        }
    }

    /// The host has no room for the whole segment. A link may have coalesced it from many, so its
    /// beginning is taken as far as there is room. Returns the number of bytes taken. The remote is
    /// told at once how much of its data was taken: without an answer it would wait for its
    /// retransmission timeout and then send only a few segments, each time (Linux acknowledges as
    /// well, `tcp_data_queue`).
    #[cold]
    fn place_beginning(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        start: Position,
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) -> u64 {
        cx.counters.host_had_no_room += 1;
        self.conditions.set(Conditions::ACK_NOW);
        let segment_bytes = usize::from(self.mss);
        if bytes.len() <= segment_bytes {
            return 0;
        }
        let mut placed = 0;
        for segment in bytes.chunks(segment_bytes) {
            if memory.place(id, (start + placed).byte(), segment).is_err() {
                break;
            }
            placed += segment.len() as u64;
        }
        placed
    }

    //= RFC 9293#3.10.7.4
    //# Segments with higher beginning sequence numbers SHOULD be held for later processing
    //# (SHLD-31).
    /// A segment beyond a gap: RFC 5681 section 4.2, "SHOULD send an immediate duplicate ACK".
    fn receive_early(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        span: Span,
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) {
        cx.counters.out_of_order_received += 1;
        self.conditions.set(Conditions::ACK_NOW);
        if self.assembler.containing(span).is_some() {
            self.report_duplicate(cx, span);
            return;
        }
        if !self.assembler.has_room_for(span, self.rcv_limit) {
            cx.counters.too_many_gaps += 1;
            return;
        }
        if memory.place(id, span.start.byte(), bytes).is_err() {
            cx.counters.host_had_no_room += 1;
            return;
        }
        cx.counters.bytes_received += bytes.len() as u64;
        if let Some(known) = self.assembler.overlap(span) {
            self.report_duplicate(cx, known);
        }
        //= RFC 2018#8
        //# The first SACK block MUST reflect the newest segment.
        self.assembler.insert(span).expect("has_room_for said so");
        self.conditions.set(Conditions::OUT_OF_ORDER);
    }

    /// Discards data that has arrived beyond a gap, because the host needs its memory. RFC 2018
    /// section 8: "a data receiver may discard data which it has previously SACKed"; the remote
    /// sends the data again. A FIN uses no memory and stays. Returns the number of discarded bytes.
    pub(crate) fn discard_early(&mut self) -> u64 {
        //= RFC 2018#8
        //# Except for the newest segment, all SACK blocks MUST NOT report any old data which is no
        //# longer actually held by the receiver.
        let bytes = self.assembler.bytes();
        self.assembler = Default::default();
        if self.early_fin().is_none() {
            self.conditions.clear(Conditions::OUT_OF_ORDER);
        }
        bytes
    }

    /// RFC 5681 section 4.2: "an immediate ACK when it receives a data segment that fills in all or
    /// part of a gap".
    fn fill_gap(&mut self, cx: &mut Context<'_>) {
        self.rcv_nxt = self.assembler.advance(self.rcv_nxt);
        self.conditions.set(Conditions::ACK_NOW);
        if let Some(fin_at) = self.early_fin()
            && fin_at <= self.rcv_nxt
        {
            // If bytes arrived beyond a FIN, the remote contradicts itself; the FIN came first.
            self.rcv_nxt = fin_at;
            self.take_fin(cx);
        } else if self.assembler.is_empty() && self.early_fin().is_none() {
            self.conditions.clear(Conditions::OUT_OF_ORDER);
        }
    }

    /// RFC 2883 section 4: the next acknowledgement reports the duplicate.
    fn report_duplicate(&mut self, cx: &mut Context<'_>, span: Span) {
        cx.counters.duplicates_received += 1;
        self.conditions.set(Conditions::ACK_NOW);
        if self.conditions.has(Conditions::SACK) && span.start < span.end {
            self.duplicate = span;
            self.has_duplicate = true;
        }
    }

    /// Notes a segment that lies entirely before the window.
    pub(super) fn note_old_segment(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        seq: Position,
    ) {
        let end = seq + segment.payload.len() as u64;
        if !segment.payload.is_empty() && end <= self.rcv_nxt {
            self.report_duplicate(cx, Span { start: seq, end });
        }
    }

    //= RFC 9293#3.8.6.3
    //# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18)
    //= RFC 9293#3.8.6.3
    //# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of
    //# new data (where RMSS is the MSS specified by the TCP endpoint receiving the segments to be
    //# acknowledged, or the default value if not specified) (SHLD-19).
    /// RFC 9293 section 3.8.6.3 and RFC 5681 section 4.2, for data in order: "an ACK SHOULD be
    /// generated for at least every second full-sized segment".
    #[inline(always)]
    pub(crate) fn schedule_ack(
        &mut self,
        now: Instant,
        config: &Config,
        bytes: usize,
    ) -> Acknowledge {
        if self
            .conditions
            .has(Conditions::ACK_NOW | Conditions::QUICK_ACK)
        {
            return if self.conditions.has(Conditions::ACK_NOW) {
                Acknowledge::Now
            } else {
                self.acknowledge_at_once(bytes)
            };
        }
        if self.is_second_segment(bytes) {
            return Acknowledge::Now;
        }
        self.ack_deadline = now.later(config.delayed_ack);
        Acknowledge::Later
    }

    //= RFC 9293#3.10.7.4
    //# In general, the processing of received segments MUST be implemented to aggregate ACK
    //# segments whenever possible (MUST-58).
    /// Schedules an acknowledgement, and notes one that is due now.
    pub(super) fn acknowledge(&mut self, cx: &mut Context<'_>, bytes: usize) {
        if self.schedule_ack(cx.now, cx.config, bytes) == Acknowledge::Now {
            self.conditions.set(Conditions::ACK_NOW);
        }
    }

    /// True when an acknowledgement waits for a second segment and this is one. A frame that the
    /// link coalesced counts as several segments.
    #[inline(always)]
    fn is_second_segment(&self, bytes: usize) -> bool {
        self.ack_deadline.is_armed() || bytes > usize::from(self.mss)
    }

    #[inline(never)]
    fn acknowledge_at_once(&mut self, bytes: usize) -> Acknowledge {
        if !self.is_second_segment(bytes) {
            self.quick_acks = self.quick_acks.saturating_sub(1);
            if self.quick_acks == 0 {
                self.conditions.clear(Conditions::QUICK_ACK);
            }
        }
        Acknowledge::Now
    }

    fn receive_fin(&mut self, cx: &mut Context<'_>, at: Position) {
        self.conditions.set(Conditions::ACK_NOW);
        if at == self.rcv_nxt {
            self.take_fin(cx);
        } else if at > self.rcv_nxt && at <= self.rcv_edge && self.early_fin().is_none() {
            self.fin_at = at;
            self.conditions.set(Conditions::OUT_OF_ORDER);
        }
    }

    /// RFC 9293 section 3.10.7.4, eighth step.
    fn take_fin(&mut self, cx: &mut Context<'_>) {
        self.rcv_nxt += 1;
        self.rcv_edge = self.rcv_edge.max(self.rcv_nxt);
        // Data beyond the end of the stream cannot exist: discard such claims.
        self.assembler = Default::default();
        self.fin_at = Position::SYN;
        self.conditions.clear(Conditions::OUT_OF_ORDER);
        self.conditions
            .set(Conditions::FIN_RECEIVED | Conditions::ACK_NOW);
        self.news.0 |= News::PROGRESS | News::ENDING;
        match self.state {
            State::Established => self.state = State::CloseWait,
            // "If our FIN has been ACKed (perhaps in this segment), then enter TIME-WAIT".
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(cx),
            _ => {}
        }
    }

    //= RFC 9293#3.6.1
    //# When a connection is closed actively, it MUST linger in the TIME-WAIT state for a time
    //# 2xMSL (Maximum Segment Lifetime) (MUST-13).
    /// "Start the time-wait timer, turn off the other timers."
    pub(super) fn enter_time_wait(&mut self, cx: &Context<'_>) {
        if self.state != State::TimeWait {
            self.state = State::TimeWait;
            self.close_reason = CloseReason::Finished;
            self.news.0 |= News::CLOSED;
        }
        self.loss_timer = super::LossTimer::Idle;
        self.loss_deadline = Instant::NEVER;
        self.idle_deadline = cx.now + cx.config.time_wait;
    }

    //= RFC 9293#3.8.2
    //# A TCP endpoint SHOULD implement ECN as described in RFC 3168 (SHLD-8).
    /// Takes the ECN mark by RFC 9768, RFC 3168 section 6.1.3, or RFC 8257 section 3.2 for DCTCP.
    /// True when the bytes before this segment are to be acknowledged now, up to `last_ack_sent`.
    pub(super) fn take_marks(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        ecn: Ecn,
    ) -> bool {
        let is_marked = ecn == Ecn::CongestionExperienced;
        cx.counters.marks_received += u64::from(is_marked);
        let mss = usize::from(self.advertised_mss()).max(1);
        // Data beyond a gap counts as not acknowledged. So an answer to segments without payload
        // has no SACK blocks.
        let is_acknowledged =
            self.last_ack_sent == self.rcv_nxt && !self.conditions.has(Conditions::OUT_OF_ORDER);
        //= RFC 9768#3.1.5
        //# MUST feed back the information in the IP-ECN field of incoming packets using Accurate
        //# ECN feedback, as specified in Section 3.2.
        //= RFC 9768#3.2.2.5.1
        //# All that is necessary here is to require that these ACKs of ACKs MUST NOT contain any
        //# SACK blocks (which would normally not happen anyway).
        if let Some(accurate) = &mut self.accurate_ecn {
            let bytes = segment.payload.len();
            let packets = bytes.div_ceil(mss).max(1);
            if accurate.note_arrival(ecn, bytes, packets, is_acknowledged) {
                self.conditions.set(Conditions::ACK_NOW);
            }
            return false;
        }
        if self.congestion.echoes_each_mark() {
            let is_turn = is_marked != self.conditions.has(Conditions::MARKED_LAST);
            return is_turn && !segment.payload.is_empty() && self.turn_marks();
        }
        if segment.flags.has(Flags::CWR) {
            self.conditions.clear(Conditions::ECHO_MARKS);
        }
        if is_marked {
            self.conditions
                .set(Conditions::ECHO_MARKS | Conditions::ACK_NOW);
        }
        false
    }

    /// Ends a run of marked, or of unmarked, segments. The next segment is acknowledged at once,
    /// with its own mark. Earlier segments that wait for an acknowledgement are acknowledged
    /// before, with theirs: true when there are any (RFC 8257 section 3.2, figure 1; Linux,
    /// dctcp_ece_ack_update).
    fn turn_marks(&mut self) -> bool {
        let was_marked = self.conditions.has(Conditions::MARKED_LAST);
        let is_run_pending = self.last_ack_sent < self.rcv_nxt;
        if is_run_pending {
            self.note_acknowledged();
        }
        self.conditions.put(Conditions::MARKED_LAST, !was_marked);
        self.conditions.put(Conditions::ECHO_MARKS, !was_marked);
        self.conditions.set(Conditions::ACK_NOW);
        is_run_pending
    }

    /// Notes that an acknowledgement is being sent.
    #[inline(always)]
    pub(super) fn note_acknowledged(&mut self) {
        self.conditions.clear(Conditions::ACK_NOW);
        self.note_acknowledgement_sent();
    }

    /// Notes that an acknowledgement that was not due was sent with other data.
    #[inline(always)]
    pub(super) fn note_acknowledgement_sent(&mut self) {
        self.ack_deadline = Instant::NEVER;
        self.last_ack_sent = self.rcv_nxt;
    }

    /// The window field of the next segment. Moves the right edge if the move is large enough to
    /// report. The window's size is computed only here.
    #[inline(always)]
    pub(super) fn advertise(&mut self, now: Instant) -> u16 {
        if now >= self.tune_until {
            self.tune_window(now);
        }
        //= RFC 9293#3.8.6
        //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the
        //# left (SHLD-14).
        let mut edge = self.rcv_edge;
        let window = self.window_from(&mut edge);
        self.rcv_edge = edge;
        window
    }

    #[inline(always)]
    pub(super) fn window_from(&self, edge: &mut Position) -> u16 {
        let wanted = self.rcv_taken + u64::from(self.rcv_limit);
        //= RFC 9293#3.8.6.2.2
        //# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
        // RFC 9293 section 3.8.6.2.2: the edge moves by at least a segment or half the buffer.
        let step = u64::from(self.rcv_limit / 2).min(u64::from(self.mss));
        if wanted >= *edge + step {
            *edge = wanted;
        }
        //= RFC 7323#2.3
        //# The window field (SEG.WND) of every outgoing segment, with the exception of <SYN>
        //# segments, MUST be right-shifted by Rcv.Wind.Shift bits:
        let window = edge.after(self.rcv_nxt) >> self.rcv_wscale;
        debug_assert!(window <= u64::from(u16::MAX), "rcv_limit has a bound");
        //= RFC 7323#2.4
        //# 1) The receiver MUST honor, as in window, any segment that would have been in window for
        //# any <ACK> sent by the receiver.
        //= RFC 7323#2.4
        //# 2) When window scaling is in effect, the receiver SHOULD track the actual maximum window
        //# sequence number (which is likely to be greater than the window announced by the most
        //# recent <ACK>, if more than one segment has arrived since the application consumed any
        //# data in the receive buffer).
        // Rounding down may seem to move the edge left by less than one unit of the scale (RFC 7323
        // section 2.4). Data that arrives between the two edges is accepted.
        window as u16
    }

    /// The largest window that the header's field can express.
    #[inline]
    pub(super) fn window_max(&self) -> u32 {
        u32::from(u16::MAX) << self.rcv_wscale
    }

    /// The window field of a SYN.
    pub(super) fn advertise_unscaled(&mut self) -> u16 {
        // Payload of the remote's SYN uses a part of the window.
        let untaken = self.rcv_nxt.after(self.rcv_taken) as u32;
        let window = self.rcv_limit.saturating_sub(untaken).min(u16::MAX.into());
        if self.state == State::SynReceived {
            self.rcv_edge = self.rcv_edge.max(self.rcv_nxt + u64::from(window));
        }
        window as u16
    }

    /// The host has taken all bytes before `taken`: opens the window. True when a separate window
    /// update is due.
    #[inline(always)]
    pub(crate) fn open_window(&mut self, taken: Position) -> bool {
        self.rcv_taken = taken;
        self.is_told = false;
        let half = u64::from(self.rcv_limit / 2);
        // An update is due when the remote may be running out of window.
        self.rcv_edge < self.rcv_nxt + half && self.announce_window(taken, half)
    }

    #[inline(never)]
    fn announce_window(&mut self, taken: Position, half: u64) -> bool {
        let wanted = taken + u64::from(self.rcv_limit);
        let step = half.min(2 * u64::from(self.mss));
        let is_due = wanted >= self.rcv_edge + step && self.state.may_receive();
        if is_due {
            self.conditions.set(Conditions::ACK_NOW);
        }
        is_due
    }

    /// Sets other bounds for the window. A larger window is announced if the difference is large
    /// enough.
    pub(crate) fn bound_window(&mut self, least: u32, most: u32) {
        self.options.receive_bytes_max = most;
        let most = most.min(self.window_max());
        self.rcv_limit = self.rcv_limit.max(least).min(most);
        self.open_window(self.rcv_taken);
    }

    /// A round has ended: the window grows if the host empties it as fast as it fills (dynamic
    /// right-sizing). Twice the bytes of a round leave room for a round of recovery.
    ///
    /// In slow start a round has twice the bytes of the one before, and the data that this window
    /// lets in arrives two rounds later. So the window is four times as large then, as on Linux
    /// (tcp_rcvbuf_grow), or else the window and not the congestion control would limit the remote:
    /// to a growth by 2^0.5 in each round trip. When a gap was open, the bytes behind the gap count
    /// at once in the round that closes it, and do not show a growth.
    #[inline(always)]
    fn tune_window(&mut self, now: Instant) {
        let took = self.rcv_taken.after(self.tune_taken);
        let growth = took.saturating_sub(self.tune_most.into());
        let has_gap = self.conditions.has(Conditions::OUT_OF_ORDER);
        let had_gap = core::mem::replace(&mut self.tune_had_gap, has_gap);
        let extra = match has_gap || had_gap {
            true => 0,
            false => (4 * growth).min(2 * took),
        };
        let wanted = 2 * took + extra;
        if wanted > u64::from(self.rcv_limit) {
            self.widen_window(wanted);
        }
        self.tune_most = self.tune_most.max(took.min(u32::MAX.into()) as u32);
        let round = self.rtt.smoothed().unwrap_or(TUNE_ROUND);
        self.tune_until = now.later(round.max(TUNE_ROUND_MIN));
        self.tune_taken = self.rcv_taken;
    }

    #[inline(always)]
    fn widen_window(&mut self, wanted: u64) {
        let bound = self.options.receive_bytes_max.min(self.window_max());
        if self.rcv_limit < bound {
            self.rcv_limit = wanted.min(bound.into()) as u32;
        }
    }
}
