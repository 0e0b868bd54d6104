//! The decision which segment to send next (RFC 9293 section 3.8 and 3.10.2). One call gives one
//! plan; the engine turns the plan into bytes. In order of urgency: a reset, the handshake, news of
//! a gap, retransmissions, a tail loss probe, new data, a probe, an acknowledgement.

use super::{AccurateEcn, Conditions, Connection, Context, LossTimer, News, Prediction};
use crate::config::{EcnMode, Options};
use crate::position::Position;
use crate::state::State;
use crate::time::Duration;
use crate::wire::tcp::Flags;

/// The kind of header that a plan needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlanKind {
    //= RFC 9293#3.2
    //# This field may be sent in the initial connection request (i.e., in segments with the SYN
    //# control bit set) and MUST NOT be sent in other segments (MUST-65).
    /// With the options of a SYN.
    Syn,
    /// With timestamps, where negotiated, and SACK blocks, where needed.
    Plain,
}

/// One segment to be sent. The bytes are `payload_bytes` of the host's stream from `seq` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: PlanKind,
    pub(crate) seq: Position,
    pub(crate) payload_bytes: u32,
    pub(crate) flags: Flags,
    /// SEG.WND, scaled as it goes onto the wire.
    pub(crate) window: u16,
    /// The segment is larger than `mss`, to probe the path, and must not be divided.
    pub(crate) is_path_probe: bool,
    /// Whether the packet is marked ECN-capable: new data only (RFC 3168 section 6.1.5).
    pub(crate) ecn_capable: bool,
}

/// If the pacing timer expires later than this, there was a pause; lost time is then not made up
/// for.
const PACE_LATE_MAX: Duration = Duration::from_millis(2);

impl Connection {
    /// True when [`Self::next_segment`] may have a segment.
    #[inline]
    pub(crate) fn has_pending_output(&self) -> bool {
        if self.conditions.has(Conditions::URGENT) {
            return true;
        }
        if self.scoreboard.lost_bytes > 0 {
            return !self.conditions.has(Conditions::PACED);
        }
        match self.state {
            State::SynSent | State::SynReceived => {
                self.snd_nxt == Position::SYN && !self.holds_syn()
                    || self.snd_nxt < self.snd_end
                        && !self.conditions.has(Conditions::PACED)
                        && self.may_send_early()
            }
            _ => {
                (self.snd_nxt < self.snd_end || self.is_fin_due())
                    && !self.conditions.has(Conditions::PACED)
                    && self.state.may_send()
            }
        }
    }

    /// Plans the next segment, and changes the state as if the segment were sent.
    pub(crate) fn next_segment(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        let mut plan = match self.state {
            State::SynSent | State::SynReceived => self.plan_handshake(cx)?,
            State::Closed => self.plan_reset()?,
            _ => self.plan_synchronized(cx)?,
        };
        cx.counters.segments_sent += 1;
        cx.counters.bytes_sent += u64::from(plan.payload_bytes);
        //= RFC 9768#3.1.5
        //# MUST NOT set ECT on any packet for the rest of the connection if it has received or sent
        //# at least one valid SYN or Acceptable SYN/ACK with (AE,CWR,ECE) = (0,0,0) during the
        //# handshake.
        // RFC 3168 section 6.1.1.1 has this rule for its own feedback. Linux does without the rule
        // there (tcp_ecn_rcv_synack).
        plan.ecn_capable &= self.is_ecn_agreed;
        if plan.kind == PlanKind::Plain
            && !plan.flags.has(Flags::RST) // Whoever takes it has no use for numbers.
            && let Some(accurate) = &mut self.accurate_ecn
        {
            let has_blocks = self.conditions.has(Conditions::OUT_OF_ORDER) || self.has_duplicate;
            let is_bare = plan.payload_bytes == 0 && !has_blocks && !plan.flags.has(Flags::FIN);
            plan.flags = plan.flags.without(Flags::ACE) | accurate.ace_flags(is_bare);
            //= RFC 9768#3.2.2.4
            //# Note that a host in AccECN mode MUST continue to provide Accurate ECN feedback to
            //# its peer, even if it is no longer sending ECT itself over the other half connection.
            plan.ecn_capable &= accurate.may_be_marked();
        }
        self.is_told = false;
        self.prediction = Prediction::NONE;
        plan.window = if plan.kind == PlanKind::Syn {
            //= RFC 7323#2.2
            //# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>)
            //# MUST NOT be scaled.
            // RFC 7323 section 2.2: the window of a SYN is never scaled.
            self.advertise_unscaled()
        } else {
            self.advertise(cx.now)
        };
        if plan.flags.has(Flags::ACK) {
            self.note_acknowledged();
            if plan.payload_bytes > 0 && self.rcv_nxt > Position::FIRST_BYTE {
                // Data flows both ways: from now on acknowledgements can go with data.
                self.conditions.clear(Conditions::QUICK_ACK);
            }
        }
        Some(plan)
    }

    fn plan_handshake(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        if self.conditions.has(Conditions::RESET_DUE) {
            return self.plan_reset();
        }
        let is_first = self.snd_nxt == Position::SYN;
        if is_first && self.holds_syn() {
            return None;
        }
        let mut payload_bytes = 0;
        if is_first {
            self.scoreboard.push(Position::SYN, 1, cx.now);
            self.snd_nxt = Position::FIRST_BYTE;
            if self.state == State::SynSent {
                payload_bytes = self.take_syn_payload();
            }
            if payload_bytes > 0 {
                cx.counters.fast_opens_sent += 1;
                self.scoreboard.push(self.snd_nxt, payload_bytes, cx.now);
                self.snd_nxt += u64::from(payload_bytes);
            }
        } else if !self.scoreboard.is_first_lost() {
            return self.plan_early(cx);
        } else {
            //= RFC 7413#4.2.2
            //# To deal with network or servers dropping SYN packets with payload or unknown
            //# options, when the SYN timer fires, the client SHOULD retransmit a SYN packet without
            //# data and Fast Open options.
            //= RFC 7413#4.2.2
            //# If the SYN-ACK timer fires, the server SHOULD retransmit a SYN-ACK segment with
            //# neither data nor Fast Open options for compatibility reasons.
            //= RFC 9768#3.1.4.1
            //# Such a retransmitted SYN MUST use the same initial sequence number (ISN) as the
            //# original SYN.
            self.scoreboard.retransmit_lost(1, self.snd_edge, cx.now)?;
            cx.counters.retransmissions += 1;
        }
        self.conditions.clear(Conditions::FORCE_RETRANSMIT);
        self.arm_after_sending(cx.now, cx.config, 0);
        let (flags, ecn) = if self.state == State::SynReceived {
            (Flags::SYN | Flags::ACK, self.ecn_of_syn_ack())
        } else {
            (Flags::SYN, self.ecn_of_syn(is_first))
        };
        self.is_ecn_agreed &= ecn != Flags::default();
        let flags = flags | ecn;
        Some(self.plan(PlanKind::Syn, Position::SYN, payload_bytes, flags))
    }

    /// Plans data before the remote has acknowledged our SYN-ACK. As on Linux
    /// (tcp_retransmit_timer), only the SYN-ACK is retransmitted meanwhile.
    #[cold]
    fn plan_early(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        if !self.may_send_early() || self.snd_nxt >= self.snd_end {
            return None;
        }
        self.plan_new(cx, false)
    }

    //= RFC 9768#3.1.5
    //# MUST NOT send a 'Classic' ECN-setup SYN [RFC3168] with (AE,CWR,ECE) = (0,1,1) and a SYN with
    //# (AE,CWR,ECE) = (1,1,1) requesting AccECN feedback within the same connection;
    //= RFC 9768#3.1.5
    //# If for any reason a host is not willing to provide ECN feedback on a particular TCP
    //# connection, it SHOULD clear the AE, CWR and ECE flags in all SYN and/or SYN/ACK packets that
    //# it sends.
    /// The flags by which a SYN asks for ECN. Later attempts do not ask, in case a box on the path
    /// drops such SYNs: RFC 3168 section 6.1.1.1 after the first attempt, RFC 9768 section 3.1.4.1
    /// after two.
    fn ecn_of_syn(&self, is_first: bool) -> Flags {
        match self.options.ecn {
            EcnMode::Classic if is_first => Flags::ECE | Flags::CWR,
            EcnMode::Accurate => AccurateEcn::syn_flags(self.retries),
            _ => Flags::default(),
        }
    }

    //= RFC 9768#3.1.1
    //# The TCP Server MUST NOT set one of these 4 combination of flags on the SYN/ACK unless the
    //# preceding SYN requested support for AccECN as above.
    //= RFC 9768#3.1.5
    //# MUST NOT send a 'Classic' ECN-setup SYN/ACK [RFC3168] with (AE,CWR,ECE) = (0,0,1) and a
    //# SYN/ACK agreeing to use AccECN feedback within the same connection;
    //= RFC 9768#3.1.5
    //# SHOULD respond to any subsequent valid SYN using a SYN/ACK with (AE,CWR,ECE) = (0,0,0), even
    //# if the SYN is offering to negotiate Classic ECN or AccECN feedback mode;
    /// The flags by which a SYN-ACK agrees to ECN.
    fn ecn_of_syn_ack(&self) -> Flags {
        match &self.accurate_ecn {
            Some(accurate) => accurate.syn_ack_flags(self.retries),
            // RFC 3168 section 6.1.1: ECE alone.
            None if self.conditions.has(Conditions::ECN) => Flags::ECE,
            _ => Flags::default(),
        }
    }

    fn plan_reset(&mut self) -> Option<Plan> {
        if !self.conditions.has(Conditions::RESET_DUE) {
            return None;
        }
        self.conditions.clear(Conditions::RESET_DUE);
        let seq = self.acceptable_seq();
        Some(self.plan(PlanKind::Plain, seq, 0, Flags::RST | Flags::ACK))
    }

    fn plan_synchronized(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        if self.needs_pure_acknowledgement() {
            return Some(self.plan(PlanKind::Plain, self.acceptable_seq(), 0, self.echo_flags()));
        }
        if self.scoreboard.lost_bytes > 0
            && !self.is_trying_new_data()
            && let Some(plan) = self.plan_retransmission(cx)
        {
            return Some(plan);
        }
        if self.conditions.has(Conditions::TAIL_PROBE_DUE) {
            self.conditions.clear(Conditions::TAIL_PROBE_DUE);
            if let Some(plan) = self.plan_tail_probe(cx) {
                return Some(plan);
            }
        }
        if (self.snd_nxt < self.snd_end || self.is_fin_due())
            && self.state.may_send()
            && let Some(plan) = self.plan_new(cx, false)
        {
            return Some(plan);
        }
        if self.conditions.has(Conditions::PROBE_DUE) {
            self.conditions.clear(Conditions::PROBE_DUE);
            cx.counters.probes += 1;
            //= RFC 9293#3.8.4
            //# An implementation SHOULD send a keep-alive segment with no data (SHLD-12); however,
            //# it MAY be configurable to send a keep-alive segment containing one garbage octet
            //# (MAY-6), for compatibility with erroneous TCP implementations.
            // One before the last acknowledged number: it is outside the remote's window, so the
            // remote must answer (section 3.10.7.4, first step). RFC 9293 section 3.8.6.1 asks for
            // one byte of new data instead. A deviation, and Linux's: a byte that the remote
            // refuses would stay in doubt for ever.
            let seq = Position(self.snd_una.0 - 1);
            return Some(self.plan(PlanKind::Plain, seq, 0, self.echo_flags()));
        }
        if self.conditions.has(Conditions::ACK_NOW) {
            return Some(self.plan(PlanKind::Plain, self.acceptable_seq(), 0, self.echo_flags()));
        }
        None
    }

    //= RFC 9768#3.2.2.1
    //# If an AccECN TCP Client intends to acknowledge the SYN/ACK with a packet that does not
    //# satisfy these conditions (e.g., it has data to include on the ACK), it SHOULD first send a
    //# pure ACK that does satisfy these conditions (see Section 5.2), so that it can feed back
    //# which of the four values of the IP-ECN field arrived on the SYN/ACK.
    /// True when an acknowledgement is due that data cannot replace. RFC 5681 section 2: a
    /// duplicate acknowledgement "carries no data". Only a segment without payload has room for
    /// SACK blocks (RFC 2018 section 4, RFC 2883) and for the feedback about the SYN-ACK (RFC 9768
    /// section 3.2.2.1).
    fn needs_pure_acknowledgement(&self) -> bool {
        let accurate = self.accurate_ecn.as_deref();
        self.conditions.has(Conditions::ACK_NOW)
            && (self.conditions.has(Conditions::OUT_OF_ORDER)
                || self.has_duplicate
                || accurate.is_some_and(AccurateEcn::owes_reflection))
    }

    fn plan(&self, kind: PlanKind, seq: Position, payload_bytes: u32, flags: Flags) -> Plan {
        Plan {
            kind,
            seq,
            payload_bytes,
            flags,
            window: 0,
            is_path_probe: false,
            ecn_capable: false,
        }
    }

    /// Retransmits the first lost record, if the congestion window allows it.
    fn plan_retransmission(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        let is_forced = self.conditions.has(Conditions::FORCE_RETRANSMIT);
        if !is_forced && self.is_paced(cx) {
            return None;
        }
        let mss = u32::from(self.mss);
        //= RFC 8985#9.3
        //# A segment marked as lost by RACK-TLP MUST NOT be retransmitted until congestion control
        //# deems this appropriate.
        // RFC 6675 section 5 (C): "If cwnd - pipe >= 1 SMSS the sender SHOULD transmit".
        let needed = self.in_flight() + mss.min(self.scoreboard.lost_bytes);
        if !is_forced && (self.cwnd < needed || self.is_black_hole_test_in_flight()) {
            self.conditions.set(Conditions::CWND_LIMITED);
            return None;
        }
        if self.in_flight() == 0 {
            // All data in flight was lost. Until now the flow waited for the retransmission timer
            // or for its pacing.
            self.congestion.note_restart(cx.now);
        }
        let bytes_max = self.retransmission_bytes_max();
        let span = self
            .scoreboard
            .retransmit_lost(bytes_max, self.snd_edge, cx.now)?;
        self.note_repair_of_path_probe(span);
        self.conditions.clear(Conditions::FORCE_RETRANSMIT);
        Some(self.plan_again(cx, span))
    }

    /// Plans a record that is already on the scoreboard.
    fn plan_again(&mut self, cx: &mut Context<'_>, span: crate::position::Span) -> Plan {
        cx.counters.retransmissions += 1;
        if self.recovery.first_retransmission.is_none() {
            self.recovery.first_retransmission = Some(self.timestamp(cx.now));
        }
        let has_fin = span.end > self.snd_end;
        let payload_bytes = (span.end - span.start) as u32 - u32::from(has_fin);
        let mss = u32::from(self.mss);
        self.recovery.prr_out += u64::from(payload_bytes);
        self.recovery.resent_end = span.end;
        self.sent_at = cx.now;
        if self.conditions.has(Conditions::PACING) {
            self.pace(cx, payload_bytes.into());
        }
        self.arm_after_sending(cx.now, cx.config, 0);
        let mut flags = self.echo_flags();
        if has_fin {
            flags = flags | Flags::FIN;
        }
        if payload_bytes > 0 && (span.end >= self.snd_end || payload_bytes > mss) {
            flags = flags | Flags::PSH;
        }
        self.plan(PlanKind::Plain, span.start, payload_bytes, flags)
    }

    //= RFC 8985#7.3
    //# If both conditions are met, then the sender SHOULD transmit a previously unsent data
    //# segment, if one exists and the receive window allows, and increment the FlightSize
    //# accordingly.
    //= RFC 8985#7.3
    //# If such an unsent segment is not available, then the sender SHOULD retransmit the
    //# highest-sequence segment sent so far and set TLP.is_retrans to true.
    /// RFC 8985 section 7.3: new data if there is any, otherwise the last segment again.
    fn plan_tail_probe(&mut self, cx: &mut Context<'_>) -> Option<Plan> {
        if self.snd_una == self.snd_nxt {
            return None;
        }
        cx.counters.tail_probes += 1;
        let new = if self.state.may_send() {
            self.plan_new(cx, true)
        } else {
            None
        };
        //= RFC 8985#7.3
        //# The sender MUST follow the RACK transmission procedures in the "Upon Transmitting a Data
        //# Segment" section upon sending either a retransmission or a new data loss probe.
        self.rack.probe_is_retransmission = new.is_none();
        let plan = match new {
            Some(plan) => plan,
            None => {
                let span =
                    self.scoreboard
                        .retransmit_last(u32::from(self.mss), self.snd_edge, cx.now)?;
                self.plan_again(cx, span)
            }
        };
        self.rack.probe_end = Some(self.snd_nxt);
        self.rtt.note_probe();
        if self.loss_timer == LossTimer::TailProbe {
            // An acknowledgement arrived in between. RFC 8985 section 7.3: "the sender MUST re-arm
            // the RTO timer, not the PTO timer".
            self.arm_retransmission_timer(cx);
        }
        Some(plan)
    }

    /// Plans data that was never sent, or the FIN, within all limits. A tail loss probe
    /// (`is_probe`) is exempt from congestion control and pacing (RFC 8985 section 7.3).
    #[inline]
    fn plan_new(&mut self, cx: &mut Context<'_>, is_probe: bool) -> Option<Plan> {
        let unsent = self.snd_end - self.snd_nxt;
        let mss = u64::from(self.mss);
        //= RFC 9293#3.8.6
        //# However, a sending TCP peer MUST be robust against window shrinking, which may cause the
        //# "usable window" (see Section 3.8.6.2.1) to become negative (MUST-34).
        //= RFC 9293#3.8.6
        //# If this happens, the sender SHOULD NOT send new data (SHLD-15)
        let window = self.snd_edge - self.snd_nxt;
        if !self.scoreboard.has_room() || (!is_probe && self.is_paced(cx)) {
            return None;
        }
        if self.snd_una == self.snd_nxt && unsent > 0 {
            self.restart_after_idle(cx.now, cx.config);
        }
        let cwnd_room = if is_probe {
            mss
        } else {
            u64::from(self.cwnd.saturating_sub(self.in_flight()))
        };
        //= RFC 7323#2.4
        //# 3) The initial transmission MUST be within the window announced by the most recent
        //# <ACK>.
        let usable = unsent.min(window).min(cwnd_room);
        if cwnd_room < unsent.min(window) {
            self.conditions.set(Conditions::CWND_LIMITED);
            self.congestion.flight_bytes_max = self.cwnd;
        }
        let may_probe_path = !is_probe && self.state.is_synchronized();
        if let Some(length) = self.path_probe_bytes(cx, usable).filter(|_| may_probe_path) {
            return Some(self.send_path_probe(cx, length));
        }
        let is_tail = usable == unsent;
        // When a link divides a segment, only the first part keeps CWR. With RFC 9768 the flag is a
        // bit of a counter and must stand on all parts, so the segment is not divided.
        let accurate = self.accurate_ecn.as_deref();
        let has_cwr = accurate.is_some_and(|accurate| accurate.flags().has(Flags::CWR));
        let segment_max = if is_probe || has_cwr {
            mss
        } else {
            u64::from(cx.config.offload.segmentation_bytes_max).max(mss) / mss * mss
        };
        let segment_max = match self.pacing_rate() {
            Some(rate) => segment_max.min(self.burst_bytes_max(rate)),
            None => segment_max,
        };
        let mut length = usable.min(segment_max);
        //= RFC 9293#3.9.1.2
        //# However, a TCP implementation SHOULD send a maximum-sized segment whenever possible
        //# (SHLD-28) to improve performance (see Section 3.8.6.2.1).
        if !(length == unsent && self.may_send_tail(length % mss)) {
            // Full segments only.
            length -= length % mss;
        }
        if length == 0 && usable > 0 && !is_tail && self.may_send_fragment(usable, window) {
            length = usable;
        }
        let with_fin = length == unsent
            && self.is_fin_due()
            && self.state.is_synchronized()
            && (window > length || self.snd_una == self.snd_nxt && window > 0);
        if length == 0 && !with_fin {
            self.wait_for_window(cx);
            return None;
        }
        self.conditions.clear(Conditions::FORCE_SMALL);
        Some(self.send_new(cx, length, with_fin))
    }

    /// Sends `length` bytes as one segment, although they are more than `mss`.
    #[cold]
    fn send_path_probe(&mut self, cx: &mut Context<'_>, length: u64) -> Plan {
        let span = crate::position::Span {
            start: self.snd_nxt,
            end: self.snd_nxt + length,
        };
        self.note_path_probe(cx, span);
        self.scoreboard
            .push_alone(span.start, length as u32, cx.now);
        self.snd_nxt = span.end;
        self.sent_at = cx.now;
        self.arm_after_sending(cx.now, cx.config, 0);
        let mut plan = self.plan(
            PlanKind::Plain,
            span.start,
            length as u32,
            self.echo_flags(),
        );
        plan.is_path_probe = true;
        plan.ecn_capable = self.conditions.has(Conditions::ECN);
        plan
    }

    /// Moves SND.NXT by `length` bytes, and by one for a FIN.
    #[inline]
    fn send_new(&mut self, cx: &mut Context<'_>, length: u64, with_fin: bool) -> Plan {
        let seq = self.snd_nxt;
        let taken = length + u64::from(with_fin);
        self.scoreboard.push(seq, taken as u32, cx.now);
        self.snd_nxt += taken;
        self.sent_at = cx.now;
        self.recovery.prr_out += length;
        let mut flags = self.echo_flags();
        if length > 0 && !length.is_multiple_of(u64::from(self.mss)) {
            self.snd_small_end = self.snd_nxt;
        }
        let is_end = length > 0 && seq + length == self.snd_end;
        if is_end {
            self.note_end_of_data();
        }
        //= RFC 9293#3.9.1.2
        //# If PUSH flags are not implemented, then the sending TCP peer: (1) MUST NOT buffer data
        //# indefinitely (MUST-60)
        //= RFC 9293#3.9.1.2
        //# and (2) MUST set the PSH bit in the last buffered segment (i.e., when there is no more
        //# queued data to be sent) (MUST-61).
        // RFC 9293 section 3.9.1.2: PSH where the host's data ends for now. Also where the link
        // divides a burst: a receiver that coalesces segments then delivers the burst at its end.
        if is_end || length > u64::from(self.mss) {
            flags = flags | Flags::PSH;
        }
        if with_fin {
            flags = flags | Flags::FIN;
            self.conditions.set(Conditions::FIN_SENT);
            self.news.0 |= News::ENDING;
            self.state = match self.state {
                State::CloseWait => State::LastAck,
                _ => State::FinWait1,
            };
        }
        let mut plan = self.plan(PlanKind::Plain, seq, length as u32, flags);
        //= RFC 9768#3.1.5
        //# MUST NOT set ECT if it is in Not ECN feedback mode.
        //= RFC 9768#3.1.5
        //# SHOULD set an ECT codepoint in the IP header of packets to indicate to the network that
        //# the transport is capable and willing to participate in ECN for this packet;
        if self.conditions.has(Conditions::ECN) && length > 0 {
            plan.ecn_capable = true;
            if self.conditions.has(Conditions::SEND_CWR) {
                self.conditions.clear(Conditions::SEND_CWR);
                plan.flags = plan.flags | Flags::CWR;
            }
        }
        if self.conditions.has(Conditions::PACING) {
            self.pace(cx, length);
        }
        self.arm_after_sending(cx.now, cx.config, 0);
        plan
    }

    /// The application is the limit, not the window, when more than half of the window is unused.
    /// Then acknowledgements must not make the window grow (RFC 7661's concern).
    fn note_end_of_data(&mut self) {
        self.note_end_of_flight(self.in_flight());
    }

    #[inline(always)]
    pub(super) fn note_end_of_flight(&mut self, in_flight: u32) {
        let is_in_slow_start = self.cwnd < self.congestion.ssthresh;
        let used_enough = if is_in_slow_start {
            self.cwnd / 2
        } else {
            self.cwnd - u32::from(self.mss)
        };
        self.congestion.flight_bytes_max = in_flight;
        self.conditions
            .put(Conditions::CWND_LIMITED, in_flight > used_enough);
    }

    /// True when the last `rest` bytes of the host's data may be sent although they fill no
    /// segment.
    #[inline]
    fn may_send_tail(&self, rest: u64) -> bool {
        if rest == 0
            || self
                .conditions
                .has(Conditions::FORCE_SMALL | Conditions::FIN_WANTED)
        {
            return true;
        }
        if self.conditions.has(Conditions::CORKED) {
            return false;
        }
        //= RFC 9293#3.7.4
        //# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments
        //# (SHLD-7).
        //= RFC 9293#3.7.4
        //# However, there MUST be a way for an application to disable the Nagle algorithm on an
        //# individual connection (MUST-17).
        // RFC 9293 section 3.7.4 (Nagle), in Minshall's variant: one small segment may be in
        // flight, instead of none while any data is in flight.
        self.conditions.has(Conditions::NODELAY) || self.snd_small_end <= self.snd_una
    }

    //= RFC 9293#3.8.6.2.1
    //# A TCP implementation MUST include a SWS avoidance algorithm in the sender (MUST-38).
    /// RFC 9293 section 3.8.6.2.1 (2) and (4): a partial segment is sent when it fills half of the
    /// largest window seen, or when the override timer has expired.
    fn may_send_fragment(&self, usable: u64, window: u64) -> bool {
        usable == window
            && (usable >= u64::from(self.snd_window_max / 2)
                || self.conditions.has(Conditions::FORCE_SMALL))
    }

    /// True when a FIN is due that was not sent before.
    #[inline]
    pub(super) fn is_fin_due(&self) -> bool {
        self.conditions.has(Conditions::FIN_WANTED) && !self.conditions.has(Conditions::FIN_SENT)
    }

    /// The sequence number of a segment without data: SND.NXT; or the window's edge, if the remote
    /// has moved the edge left of data in flight. A remote whose window has closed accepts nothing
    /// beyond the edge, not even an acknowledgement (RFC 9293 section 3.10.7.4, first step). With
    /// full windows in both directions neither end would hear of the other again. As on Linux
    /// (tcp_acceptable_seq), an edge that only the scale has rounded down does not count. Unlike
    /// Linux, a window of zero does count: rounding lost nothing of it, and a FIN in flight lies
    /// just one beyond it. Until our SYN is acknowledged no window is known.
    #[inline]
    pub(crate) fn acceptable_seq(&self) -> Position {
        let beyond = self.snd_nxt - self.snd_edge;
        let edge = self.snd_edge.max(self.snd_una);
        let is_rounding = beyond < 1 << self.snd_wscale && self.snd_edge > self.snd_una;
        if beyond == 0 || is_rounding || edge < Position::FIRST_BYTE {
            return self.snd_nxt;
        }
        edge
    }

    /// True when there is data or a FIN to send, and only the remote's window delays it.
    pub(super) fn is_waiting_for_window(&self) -> bool {
        let wanted = (self.snd_end - self.snd_nxt) + u64::from(self.is_fin_due());
        let window = self.snd_edge - self.snd_nxt;
        self.state.may_send() && wanted > 0 && window < wanted.min(u64::from(self.mss))
    }

    fn wait_for_window(&mut self, cx: &Context<'_>) {
        if self.snd_una == self.snd_nxt && self.is_waiting_for_window() {
            self.arm_loss_timer(cx.now, cx.config);
        }
    }

    /// True while pacing delays the next segment.
    fn is_paced(&mut self, cx: &Context<'_>) -> bool {
        let is_paced = self.conditions.has(Conditions::PACING) && cx.now < self.pace_at;
        self.conditions.put(Conditions::PACED, is_paced);
        is_paced
    }

    /// Reserves the time in which `length` bytes leave at the pacing rate.
    #[cold]
    fn pace(&mut self, cx: &Context<'_>, length: u64) {
        // A timer that expires late must not reduce the rate: a short delay is made up for.
        let is_behind = self.pace_at <= cx.now && cx.now.since(self.pace_at) < PACE_LATE_MAX;
        let from = if is_behind {
            self.pace_at
        } else {
            self.pace_at.max(cx.now)
        };
        if self.is_too_short_for_pacing() {
            // Only the handshake took long, because a host was busy or a neighbour had to be
            // resolved.
            self.conditions.clear(Conditions::PACING);
            return;
        }
        if let Some(rate) = self.pacing_rate() {
            self.pace_at = from + Duration::from_micros(length * 1_000_000 / rate);
        }
    }

    /// The round trip is too short for pacing, and no model of the path needs it.
    fn is_too_short_for_pacing(&self) -> bool {
        let srtt = self.rtt.smoothed();
        srtt.is_some_and(|srtt| srtt < Options::PACED_ROUND_TRIP_MIN)
            && !self.conditions.has(Conditions::MODELLED)
    }

    /// Bytes per second; `None` without pacing, or before the round trip was measured.
    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        if !self.conditions.has(Conditions::PACING) {
            return None;
        }
        self.rate_of_window()
    }

    /// The rate of the model of the path. A model that has no rate yet, and a connection without a
    /// model, spread the window over the round trip. That rate is doubled in slow start and raised
    /// by a fifth later, so that pacing is never the limit.
    #[cold]
    fn rate_of_window(&self) -> Option<u64> {
        if let Some(rate) = self.congestion.pacing_rate() {
            return Some(rate);
        }
        let percent = if self.cwnd < self.congestion.ssthresh {
            200
        } else {
            120
        };
        let micros = self.rtt.smoothed()?.as_micros().max(1);
        Some((u64::from(self.cwnd.max(1)) * percent * 10_000 / micros).max(1))
    }

    /// The largest burst at this rate: a millisecond's, and two segments in any case. A longer
    /// burst fills the queue of a bottleneck for a moment, and loses more there than its share.
    /// As on Linux (tcp_tso_autosize); draft-ietf-ccwg-bbr section 5.6.3 (BBRSetSendQuantum).
    fn burst_bytes_max(&self, rate: u64) -> u64 {
        let mss = u64::from(self.mss);
        (rate / 1_000 / mss).max(2) * mss
    }

    /// RFC 6928 section 2: ten segments, bounded by 14600 bytes or two segments.
    pub(super) fn initial_window(&self) -> u32 {
        let mss = u32::from(self.mss);
        let segments = u32::from(self.options.initial_window_segments.max(1));
        (segments * mss).min((segments * 1_460).max(2 * mss))
    }
}
