//! A segment arrives at a connection: RFC 9293 section 3.10.7, with the defences of RFC 5961 and
//! RFC 7323 (PAWS). Segments in order take the fast path at the top.

use super::{Conditions, Connection, Context, News};
use crate::config::EcnMode;
use crate::host::{ConnectionId, Memory, NoRoom};
use crate::position::Position;
use crate::state::{CloseReason, Phase, State};
use crate::time::Instant;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, Segment, Timestamps};

/// RFC 7323 section 5.5: a timestamp older than 24 days is not compared.
const TIMESTAMP_LIFETIME: u32 = super::coarse(Instant::from_micros(24 * 24 * 3_600 * 1_000_000));

/// The engine's task after a segment, in addition to looking at the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Response {
    /// Nothing.
    Done,
    /// Answer with a reset that carries the segment's own numbers.
    Refuse,
    /// Answer with an acknowledgement, within the limit for challenges (RFC 5961 section 7).
    Challenge,
    /// The segment is a SYN that may replace this connection in TIME-WAIT.
    Reopen,
    /// Acknowledge the segments before this one, up to `last_ack_sent`. They were ECN-marked and
    /// this one is not, or the reverse.
    AcknowledgeRun,
}

impl Connection {
    /// Handles a segment whose checksum and addresses were verified.
    #[inline]
    pub(crate) fn handle_segment(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        ecn: Ecn,
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) -> Response {
        if self.handle_if_in_order(cx, segment, id, memory) {
            return Response::Done;
        }
        match self.state {
            State::Closed => Response::Refuse,
            State::SynSent => self.handle_in_syn_sent(cx, segment, ecn),
            _ => self.handle_synchronized(cx, segment, ecn, id, memory),
        }
    }

    fn handle_if_in_order(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) -> bool {
        let place = |offset| memory.place(id, offset, segment.payload);
        let is_done = self.handle_in_order(cx, segment, segment.payload.len(), place);
        cx.counters.segments_predicted += u64::from(is_done);
        is_done
    }

    /// Header prediction: handles payload in order, or an acknowledgement of new data, in a
    /// connection without loss or other exceptions. Returns false and changes nothing for every
    /// other segment.
    // Always inlined: the arguments are fields of a header just read, and then stay in registers.
    #[inline(always)]
    pub(crate) fn handle_in_order(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        payload_bytes: usize,
        place: impl FnOnce(u64) -> Result<(), NoRoom>,
    ) -> bool {
        let is_expected = self.state == State::Established
            && segment.flags.0 & !Flags::PSH.0 == Flags::ACK.0
            && !self.conditions.has(Conditions::RECEIVE_SLOW_PATH)
            && segment.seq == self.rcv_nxt.wire(self.rcv_first)
            && segment.options.is_empty();
        if !is_expected {
            return false;
        }
        let ack = Position::from_wire(segment.ack, self.snd_first, self.snd_una);
        let advances = ack > self.snd_una;
        if advances {
            let is_plain = self.phase == Phase::Open && self.scoreboard.is_plain();
            if ack > self.snd_nxt || !is_plain {
                return false;
            }
        } else if payload_bytes == 0 || ack < self.snd_una || self.is_probing() {
            return false;
        }
        let end = self.rcv_nxt + payload_bytes as u64;
        if end > self.rcv_edge {
            return false;
        }
        match segment.timestamps {
            Some(timestamps) if self.conditions.has(Conditions::TIMESTAMPS) => {
                if !self.take_next_timestamp(cx.now, timestamps.value) {
                    return false;
                }
            }
            None if !self.conditions.has(Conditions::TIMESTAMPS) => {}
            _ => return false,
        }
        let seq = self.rcv_nxt;
        if payload_bytes > 0 {
            if place(seq.byte()).is_err() {
                return false;
            }
            cx.counters.bytes_received += payload_bytes as u64;
            self.rcv_nxt = end;
            self.is_told = false;
            self.news.0 |= News::PROGRESS;
            self.acknowledge(cx, payload_bytes);
        }
        let edge = ack + (u64::from(segment.window) << self.snd_wscale);
        if edge != self.snd_edge {
            // An edge that stays needs no `snd_wl1`: segments older than this one are not
            // acceptable any more.
            self.update_send_window(seq, ack, segment.window);
        }
        if advances {
            self.acknowledge_plainly(cx, ack);
        }
        true
    }

    /// RFC 9293 section 3.10.7.4, in its order of steps.
    fn handle_synchronized(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        ecn: Ecn,
        id: ConnectionId,
        memory: &mut dyn Memory,
    ) -> Response {
        self.is_told = false;
        let seq = Position::from_wire(segment.seq, self.rcv_first, self.rcv_nxt);
        if self.state == State::TimeWait && self.may_reopen(segment, seq) {
            return Response::Reopen;
        }
        let crosses = self.crosses_our_syn(segment, seq);
        if !crosses && let Some(response) = self.screen(cx, segment, ecn, seq) {
            return response;
        }
        //= RFC 7323#3.2
        //# The exact rules on which TSval MUST be echoed are given in Section 4.3. When the ACK bit
        //# is not set, the receiver MUST ignore the value of the TSecr field.
        // Fifth, check the ACK field: "if the ACK bit is off, drop the segment and return".
        if !segment.flags.has(Flags::ACK) {
            return Response::Done;
        }
        let ack = Position::from_wire(segment.ack, self.snd_first, self.snd_una);
        if let Some(response) = self.check_acknowledgement(ack) {
            return response;
        }
        let was_opening = self.state == State::SynReceived;
        if was_opening {
            self.finish_handshake(cx, segment, ack);
        }
        // Only after the acknowledgement number was found acceptable: a forged segment must not
        // make all later segments look old.
        self.take_timestamp(cx, segment, seq);
        if self.conditions.has(Conditions::KEEPALIVE) {
            self.heard_at = cx.now;
        }
        let ends_run = self.conditions.has(Conditions::ECN) && self.take_marks(cx, segment, ecn);
        if ack >= self.snd_una {
            self.handle_acknowledgement(cx, segment, seq, ack);
            if was_opening {
                self.settle_syn_payload();
                self.decide_pacing();
            }
            if crosses {
                self.take_window_of_syn(ack, segment.window);
                self.answer_crossing_syn_ack(segment.flags, ecn);
            }
            self.handle_own_fin(cx);
        } else if self.conditions.has(Conditions::SACK) && !segment.options.is_empty() {
            self.handle_late_blocks(cx, segment, ack);
        }
        if self.state != State::Closed {
            // Sixth, the URG bit: RFC 6093 permits in-line delivery of urgent data, and we deliver
            // it in line.
            if self.is_abandoned_by_host(segment, seq) {
                // RFC 9293 section 3.6.1: data for a host that has closed; "it SHOULD send a RST".
                // Like Linux, send a reset with the segment's numbers: the remote may not have our
                // FIN yet, and accepts no reset beyond that.
                self.close(CloseReason::Aborted);
                return Response::Refuse;
            }
            self.receive(cx, segment, seq, id, memory);
            self.handle_own_fin(cx);
        }
        match ends_run {
            true => Response::AcknowledgeRun,
            false => Response::Done,
        }
    }

    /// The steps of section 3.10.7.4 before the ACK field. Returns a response when the segment
    /// needs no further processing.
    fn screen(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        came: Ecn,
        seq: Position,
    ) -> Option<Response> {
        // First, check sequence number.
        if let Some(response) = self.check_sequence(cx, segment, came, seq) {
            return Some(response);
        }
        // Second, check the RST bit.
        if segment.flags.has(Flags::RST) {
            return Some(self.handle_reset(cx, seq));
        }
        //= RFC 9293#3.10.7.4
        //# RFC 5961 recommends that in these synchronized states, if the SYN bit is set,
        //# irrespective of the sequence number, TCP endpoints MUST send a "challenge ACK" to
        //# the remote peer:
        //= RFC 9293#3.10.7.4
        //# After sending the acknowledgment, TCP implementations MUST drop the unacceptable
        //# segment and stop processing further.
        //= RFC 5961#4.2
        //# 1) If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK
        //# (also referred to as challenge ACK) to the remote peer:
        //= RFC 5961#4.2
        //# After sending the acknowledgment, TCP MUST drop the unacceptable segment and stop
        //# processing further.
        // Fourth, check the SYN bit: RFC 5961 section 4.2, "irrespective of the sequence
        // number, TCP MUST send an ACK (... challenge ACK) to the remote peer".
        segment.flags.has(Flags::SYN).then(|| {
            // If it has payload beyond what was taken, it is still a repeated SYN.
            if self.state == State::SynReceived && seq == Position::SYN {
                return self.answer_repeated_syn(segment.flags, came);
            }
            Response::Challenge
        })
    }

    /// Checks whether the remote can have seen this acknowledgement number. Returns a response when
    /// it cannot.
    fn check_acknowledgement(&self, ack: Position) -> Option<Response> {
        if self.state == State::SynReceived {
            let is_acceptable = ack > self.snd_una && ack <= self.snd_nxt;
            return (!is_acceptable).then_some(Response::Refuse);
        }
        //= RFC 9293#3.10.7.4
        //# TCP stacks that implement RFC 5961 MUST add an input check that the ACK value is
        //# acceptable only if it is in the range of ((SND.UNA - MAX.SND.WND) =< SEG.ACK =<
        //# SND.NXT).
        //= RFC 9293#3.10.7.4
        //# All incoming segments whose ACK value doesn't satisfy the above condition MUST be
        //# discarded and an ACK sent back.
        //= RFC 5961#5.2
        //# TCP stacks that implement this mitigation MUST add an additional input check to any
        //# incoming segment.
        //= RFC 5961#5.2
        //# All incoming segments whose ACK value doesn't satisfy the above condition MUST be
        //# discarded and an ACK sent back.
        // RFC 5961 section 5.2: SND.UNA - MAX.SND.WND <= SEG.ACK <= SND.NXT.
        let is_acceptable =
            ack <= self.snd_nxt && ack + u64::from(self.snd_window_max) >= self.snd_una;
        (!is_acceptable).then_some(Response::Challenge)
    }

    /// PAWS, then the first check of section 3.10.7.4. Returns a response when the segment needs no
    /// further processing.
    fn check_sequence(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        came: Ecn,
        seq: Position,
    ) -> Option<Response> {
        //= RFC 7323#5.2
        //# When an <RST> segment is received, it MUST NOT be subjected to the PAWS check by
        //# verifying an acceptable value in SEG.TSval, and information from the Timestamps option
        //# MUST NOT be used to update connection state information.
        //= RFC 7323#5.3
        //# If the PAWS algorithm is used, the following processing MUST be performed on all
        //# incoming segments for a synchronized connection.
        //= RFC 7323#5.3
        //# Also, PAWS processing MUST take precedence over the regular TCP acceptability check
        //# (Section 3.3 in [RFC0793]), which is performed after verification of the received
        //# Timestamps option:
        //= RFC 7323#5.3
        //# It is important to note that the timestamp MUST be checked only when a segment first
        //# arrives at the receiver, regardless of whether it is in sequence or it must be queued
        //# for later delivery.
        if !segment.flags.has(Flags::RST) && self.is_stale(cx, segment) {
            cx.counters.paws_refused += 1;
            self.note_old_segment(cx, segment, seq);
            return Some(Response::Challenge);
        }
        //= RFC 7323#3.2
        //# A TCP MUST NOT abort a TCP connection because any segment lacks an expected TSopt.
        // RFC 7323 section 3.2: "If a non-<RST> segment is received without a TSopt, a TCP SHOULD
        // silently drop the segment." A deviation, and Linux's (tcp_validate_incoming): the segment
        // is judged by its numbers, as on a connection without timestamps. A remote that has
        // forgotten the connection may send a SYN without the option, and must have the challenge
        // of RFC 5961 section 4.2; and a middlebox that removes the option must not stop the data.
        match self.is_in_window(segment, seq) {
            true => None,
            false => Some(self.answer_outside_window(cx, segment, came, seq)),
        }
    }

    /// The table of section 3.4. At the left edge a segment is also accepted without a window,
    /// because "special allowance should be made to accept valid ACKs, URGs, and RSTs". Beyond the
    /// table, and like Linux (tcp_sequence), an acknowledgement at the right edge is accepted: a
    /// remote that has filled the window sends its acknowledgements from there, even while an
    /// earlier segment is lost.
    fn is_in_window(&self, segment: &Segment<'_>, seq: Position) -> bool {
        let length = judged_bytes(segment);
        let is_bare = length == 0 && !segment.flags.has(Flags::RST);
        //= RFC 9293#3.4
        //# A TCP receiver MUST process the RST and URG fields of all incoming segments, even when
        //# the receive window is zero (MUST-66).
        seq == self.rcv_nxt
            || (is_bare && seq == self.rcv_edge)
            || (seq < self.rcv_edge
                && if length == 0 {
                    seq > self.rcv_nxt
                } else {
                    seq + length > self.rcv_nxt
                })
    }

    /// The response to a segment whose numbers are outside the window.
    fn answer_outside_window(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        came: Ecn,
        seq: Position,
    ) -> Response {
        let flags = segment.flags;
        //= RFC 5961#3.2
        //# In all other cases, where the SEQ-field does not match and is
        //# outside the window, the receiver MUST silently discard the
        //# segment.
        if flags.has(Flags::RST) {
            return Response::Done;
        }
        if self.state == State::SynReceived && flags.has(Flags::SYN) && seq == Position::SYN {
            return self.answer_repeated_syn(flags, came);
        }
        if flags.has(Flags::SYN) {
            if self.is_repeated_syn_ack(segment, seq) {
                return self.answer_repeated_syn_ack(cx, came);
            }
            return Response::Challenge;
        }
        // "If an incoming segment is not acceptable, an acknowledgment should be sent in reply."
        self.note_old_segment(cx, segment, seq);
        if self.state == State::TimeWait && flags.has(Flags::FIN) {
            self.enter_time_wait(cx);
        }
        let is_empty = judged_bytes(segment) == 0;
        if is_empty && seq < self.rcv_nxt {
            self.answer_the_past(cx);
            return Response::Done;
        }
        if is_empty {
            return Response::Challenge;
        }
        self.conditions.set(Conditions::ACK_NOW);
        Response::Done
    }

    /// Answers a segment that lies before the window. It may be a keepalive or window probe, which
    /// must be answered (RFC 9293 section 3.8.4), or an acknowledgement that was overtaken. Or the
    /// remote has lost count; then both sides would acknowledge each other for ever. So, like Linux
    /// (tcp_oow_rate_limited), we answer only once each half second.
    fn answer_the_past(&mut self, cx: &mut Context<'_>) {
        if self.may_answer_again(cx.now) {
            self.conditions.set(Conditions::ACK_NOW);
        } else {
            cx.counters.challenges_suppressed += 1;
        }
    }

    /// True when this is the first answer of its half second to a segment that is not acceptable
    /// (Linux: `tcp_invalid_ratelimit`, 500 ms).
    pub(crate) fn may_answer_again(&mut self, now: Instant) -> bool {
        let now = super::half_seconds(now);
        let is_first = self.answered_at != now;
        self.answered_at = now;
        is_first
    }

    /// The timestamps of a segment, if both sides negotiated timestamps.
    pub(super) fn timestamps_of(&self, segment: &Segment<'_>) -> Option<Timestamps> {
        //= RFC 7323#3.2
        //# If a TSopt is received on a connection where TSopt was not
        //# negotiated in the initial three-way handshake, the TSopt MUST be
        //# ignored and the packet processed normally.
        let are_agreed = self.conditions.has(Conditions::TIMESTAMPS);
        segment.timestamps.filter(|_| are_agreed)
    }

    /// RFC 7323 section 5.3, R1: true when the timestamp is older than one already seen.
    fn is_stale(&self, cx: &Context<'_>, segment: &Segment<'_>) -> bool {
        let Some(timestamps) = self.timestamps_of(segment) else {
            return false;
        };
        (timestamps.value.wrapping_sub(self.ts_recent) as i32) < 0
            && super::coarse(cx.now).wrapping_sub(self.ts_recent_at) < TIMESTAMP_LIFETIME
    }

    //= RFC 7323#4.3
    //# Thus, the timestamp from the latest segment (which filled the hole) MUST be echoed.
    //= RFC 7323#5.2
    //# The choice of incoming timestamps to be saved for this comparison MUST guarantee a value
    //# that is monotonically non-decreasing.
    /// RFC 7323 section 5.3, R3: updates TS.Recent.
    fn take_timestamp(&mut self, cx: &Context<'_>, segment: &Segment<'_>, seq: Position) {
        if let Some(timestamps) = self.timestamps_of(segment)
            && seq <= self.last_ack_sent
        {
            self.ts_recent = timestamps.value;
            self.ts_recent_at = super::coarse(cx.now);
        }
    }

    /// RFC 5961 section 3.2.
    fn handle_reset(&mut self, cx: &mut Context<'_>, seq: Position) -> Response {
        //= RFC 9293#3.10.7.4
        //# 3) If the RST bit is set and the sequence number does not exactly match the next
        //# expected sequence value, yet is within the current receive window, TCP endpoints MUST
        //# send an acknowledgment (challenge ACK):
        //= RFC 9293#3.10.7.4
        //# After sending the challenge ACK, TCP endpoints MUST drop the unacceptable segment and
        //# stop processing the incoming packet further.
        //= RFC 5961#3.2
        //# 3) If the RST bit is set and the sequence number does not exactly match the next
        //# expected sequence value, yet is within the current receive window (RCV.NXT < SEG.SEQ <
        //# RCV.NXT+RCV.WND), TCP MUST send an acknowledgment (challenge ACK):
        //= RFC 5961#3.2
        //# After sending the challenge ACK, TCP MUST drop the unacceptable segment and stop
        //# processing the incoming packet further.
        if seq != self.rcv_nxt {
            return Response::Challenge;
        }
        if self.state == State::TimeWait {
            // RFC 1337 section 3: a reset must not cut TIME-WAIT short.
            return Response::Done;
        }
        //= RFC 9293#3.10.7.4
        //# 2) If the RST bit is set and the sequence number exactly matches the next expected
        //# sequence number (RCV.NXT), then TCP endpoints MUST reset the connection in the manner
        //# prescribed below according to the connection state.
        //= RFC 5961#3.2
        //# 2) If the RST bit is set and the sequence number exactly matches the next expected
        //# sequence number (RCV.NXT), then TCP MUST reset the connection.
        //= RFC 5961#4.2
        //# Upon receipt of a valid RST, the local TCP endpoint MUST terminate its connection.
        cx.counters.resets_received += 1;
        let reason = match self.state {
            State::SynReceived if !self.is_fast_opened() => CloseReason::Refused,
            // Both sides have sent everything; only the last acknowledgement is missing.
            State::Closing | State::LastAck if self.snd_una == self.snd_nxt => {
                CloseReason::Finished
            }
            _ => CloseReason::Reset,
        };
        self.close(reason);
        Response::Done
    }

    /// RFC 9293 section 3.5, figure 8: in a simultaneous open the remote's SYN-ACK arrives after
    /// its SYN. Only its acknowledgement is news.
    fn crosses_our_syn(&self, segment: &Segment<'_>, seq: Position) -> bool {
        self.state == State::SynReceived
            && segment.flags.has(Flags::SYN)
            && segment.flags.has(Flags::ACK)
            && !segment.flags.has(Flags::RST)
            && seq == Position::SYN
            && segment.payload.is_empty()
            && self.acknowledges_syn(segment)
    }

    /// Whether a segment acknowledges our SYN, with or without the payload that the SYN carried.
    fn acknowledges_syn(&self, segment: &Segment<'_>) -> bool {
        let ack = Position::from_wire(segment.ack, self.snd_first, self.snd_una);
        Position::SYN < ack && ack <= self.snd_nxt
    }

    /// In a simultaneous open, the SYN-ACK has a sequence number before the window, because the SYN
    /// was known. And "if an incoming segment is not acceptable, an acknowledgment should be sent
    /// in reply" (RFC 9293 section 3.10.7.4). Figure 8 shows no such acknowledgement. But if the
    /// remote's copy of our SYN-ACK was lost, the acknowledgement tells it without a timeout that
    /// its SYN has arrived.
    fn answer_crossing_syn_ack(&mut self, flags: Flags, came: Ecn) {
        self.conditions.set(Conditions::ACK_NOW);
        self.is_ecn_agreed &= flags.ace() != 0b000;
        if let Some(accurate) = &mut self.accurate_ecn {
            accurate.note_syn_ack(came);
        }
    }

    //= RFC 9768#3.1.5
    //# MUST NOT switch into a different feedback mode from the one it first entered according to
    //# Table 2, no matter whether it subsequently receives valid SYNs or Acceptable SYN/ACKs of
    //# different types.
    /// The remote repeats its SYN: our answer was lost.
    #[cold]
    fn answer_repeated_syn(&mut self, flags: Flags, came: Ecn) -> Response {
        if !flags.has(Flags::ACK) {
            if self.asks_for_another_feedback(flags) {
                self.close(CloseReason::Refused);
                return Response::Refuse;
            }
            self.is_ecn_agreed &= self.options.ecn.by_syn(flags) != EcnMode::Off;
            if let Some(accurate) = &mut self.accurate_ecn {
                accurate.note_repeated_syn(came);
            }
        }
        self.scoreboard.mark_first_lost(1);
        Response::Done
    }

    //= RFC 9768#3.1.5
    //# MUST reset the connection with a RST packet, if it receives a 'Classic' ECN-setup SYN with
    //# (AE,CWR,ECE) = (0,1,1) and a SYN requesting AccECN feedback during the same handshake;
    /// True when one SYN asks for the feedback of RFC 3168 and the other for that of RFC 9768.
    fn asks_for_another_feedback(&self, flags: Flags) -> bool {
        let is_accurate = self.accurate_ecn.is_some();
        match self.options.ecn.by_syn(flags) {
            EcnMode::Classic => is_accurate,
            EcnMode::Accurate => !is_accurate && self.conditions.has(Conditions::ECN),
            EcnMode::Off => false,
        }
    }

    /// True for a repetition of the SYN-ACK that opened this connection, from a remote that counts
    /// marks. The remote's copy of our acknowledgement was lost.
    fn is_repeated_syn_ack(&self, segment: &Segment<'_>, seq: Position) -> bool {
        self.accurate_ecn.is_some()
            && !self.conditions.has(Conditions::PASSIVE)
            && segment.flags.has(Flags::ACK)
            && seq == Position::SYN
            && segment.ack == self.snd_first
            && self.options.ecn.by_syn_ack(segment.flags) == EcnMode::Accurate
    }

    //= RFC 9768#3.2.2.1
    //# The TCP Client MUST also use the handshake encoding for the pure ACK of any retransmitted
    //# SYN/ACK that confirms that the TCP Server supports AccECN.
    /// Answers with the challenge of RFC 5961, which also reports the ECN codepoint of this
    /// SYN-ACK.
    #[cold]
    fn answer_repeated_syn_ack(&mut self, cx: &mut Context<'_>, came: Ecn) -> Response {
        if !self.may_answer_again(cx.now) {
            cx.counters.challenges_suppressed += 1;
            return Response::Done;
        }
        cx.counters.challenges_sent += 1;
        self.conditions.set(Conditions::ACK_NOW);
        if let Some(accurate) = &mut self.accurate_ecn {
            accurate.note_repeated_syn_ack(came);
        }
        Response::Done
    }

    //= RFC 9293#3.6.1
    //# This algorithm for reducing TIME-WAIT is a Best Current Practice that SHOULD be
    //# implemented since Timestamp Options are commonly used, and using them to reduce TIME-WAIT
    //# provides benefits for busy Internet servers (SHLD-4).
    /// RFC 9293 section 3.10.7.4, SYN in TIME-WAIT, and RFC 6191 section 2: a new incarnation must
    /// be recognisable as newer, by its timestamp or by its sequence number.
    fn may_reopen(&self, segment: &Segment<'_>, seq: Position) -> bool {
        let flags = segment.flags;
        if !flags.has(Flags::SYN) || flags.has(Flags::ACK) || flags.has(Flags::RST) {
            return false;
        }
        match self.timestamps_of(segment) {
            Some(timestamps) => {
                let newer = timestamps.value.wrapping_sub(self.ts_recent) as i32;
                newer > 0 || (newer == 0 && seq > self.rcv_nxt)
            }
            _ => seq > self.rcv_nxt,
        }
    }

    /// State changes once our FIN is acknowledged (section 3.10.7.4, fifth step).
    fn handle_own_fin(&mut self, cx: &mut Context<'_>) {
        if !self.conditions.has(Conditions::FIN_SENT) || self.snd_una < self.snd_nxt {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.conditions.has(Conditions::RELEASED) {
                    self.idle_deadline = cx.now + cx.config.time_wait;
                }
            }
            State::Closing => self.enter_time_wait(cx),
            State::LastAck => self.close(CloseReason::Finished),
            _ => {}
        }
    }
}

/// The sequence numbers by which a segment's place in the window is judged. A reset is judged by
/// its first number only, whatever it carries.
fn judged_bytes(segment: &Segment<'_>) -> u64 {
    match segment.flags.has(Flags::RST) {
        true => 0,
        false => segment.sequence_bytes(),
    }
}
