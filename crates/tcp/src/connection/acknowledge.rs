//! The sending half's work on an arriving segment: RFC 9293 section 3.10.7.4, fifth step, and the
//! use of SACK (RFC 2018, RFC 6675, RFC 2883), ECN (RFC 3168) and the timers.

use super::accurate_ecn::Feedback;
use super::congestion::Cause;
use super::sent::Delivered;
use super::{Conditions, Connection, Context, LossTimer, News};
use crate::position::{Position, Span};
use crate::state::{Departure, Phase};
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Segment};

/// The effects of one acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Acknowledgement {
    /// The bytes by which SND.UNA moved.
    pub(super) advanced_bytes: u64,
    pub(super) delivered: Delivered,
    /// The remote reported a segment that arrived twice (RFC 2883).
    pub(super) has_duplicate_report: bool,
    /// A duplicate acknowledgement as RFC 5681 section 2 defines it.
    pub(super) is_duplicate: bool,
    /// Would be a duplicate acknowledgement if anything were in flight.
    pub(super) is_repeated: bool,
    /// The segment has SACK blocks.
    pub(super) has_blocks: bool,
}

impl Connection {
    /// Handles an acceptable acknowledgement number: `snd_una - window <= ack <= snd_nxt`.
    pub(super) fn handle_acknowledgement(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        seq: Position,
        ack: Position,
    ) {
        let edge_before = self.snd_edge;
        self.update_send_window(seq, ack, segment.window);
        let mut report = Acknowledgement::default();
        self.recovery.lost_more = false;
        let had_flight = self.snd_una < self.snd_nxt;
        if ack > self.snd_una {
            report.advanced_bytes = ack - self.snd_una;
            let answered = self.answered_by(cx, segment);
            let is_full = self.is_full_segment_acknowledged(ack);
            self.scoreboard
                .acknowledge(ack, answered, &mut report.delivered);
            self.snd_una = ack;
            self.retries = 0;
            self.news.0 |= News::PROGRESS;
            self.settle_path_probe(cx, ack, is_full);
        } else {
            self.forget_no_route();
            report.is_repeated =
                ack == self.snd_una && segment.payload.is_empty() && edge_before == self.snd_edge;
            report.is_duplicate = had_flight && report.is_repeated;
            if self.snd_edge == self.snd_una {
                //= RFC 9293#3.8.6
                //# The sender MAY also retransmit old data beyond SND.UNA+SND.WND (MAY-7), but
                //# SHOULD NOT time out the connection if data beyond the right window edge is not
                //# acknowledged (SHLD-17).
                //= RFC 9293#3.8.6
                //# If the window shrinks to zero, the TCP implementation MUST probe it in the
                //# standard way (described below) (MUST-35).
                //= RFC 7323#2.4
                //# Implementations MUST ensure that they handle a shrinking window, as specified in
                //# Section 4.2.2.16 of [RFC1122].
                // RFC 9293 section 3.8.6: the remote has shrunk its window, which "SHOULD NOT time
                // out the connection" as long as the remote answers: a retransmission counts as a
                // probe.
                self.note_answer();
            } else if edge_before == self.snd_una {
                self.end_stall();
            }
        }
        if self.conditions.has(Conditions::SACK) && !segment.options.is_empty() {
            self.take_sack_blocks(segment, ack, &mut report);
        }
        let marked_bytes = self.hear_marks(segment, &report);
        if !had_flight {
            self.note_answer();
            self.settle_tail_probe(cx, &report);
            self.arm_loss_timer(cx.now, cx.config);
            return;
        }
        self.sample_round_trip(cx, segment, &report);
        if self.conditions.has(Conditions::ECN) {
            self.answer_marks(cx, marked_bytes, &report);
        }
        if self.phase != Phase::Open
            && report.advanced_bytes > 0
            && let Some(timestamps) = self.timestamps_of(segment)
        {
            self.undo_if_spurious(cx, timestamps.echo);
        }
        if self.phase == Phase::Loss {
            self.examine_timeout(cx, &report);
        }
        self.settle_tail_probe(cx, &report);
        self.deduce_losses(cx, &report);
        self.recover_if_needed(cx);
        self.adjust_window(cx, &report);
        // A reordering timer that has expired must be replaced by the timer that it displaced.
        let is_unwatched = self.loss_timer == LossTimer::Idle;
        if report.delivered.bytes > 0 || report.advanced_bytes > 0 || is_unwatched {
            self.arm_loss_timer(cx.now, cx.config);
        }
    }

    //= RFC 9293#3.8.6.1
    //# As long as the receiving TCP peer continues to send acknowledgments in response to the
    //# probe segments, the sending TCP peer MUST allow the connection to stay open (MUST-37).
    /// True when we probe a closed window: then any segment of the remote counts as an answer.
    #[inline]
    pub(super) fn is_probing(&self) -> bool {
        self.retries > 0 && self.snd_edge == self.snd_una
    }

    /// An answer to a probe shows that the remote is alive. If perhaps no program waits for the
    /// remote any more, the remote must also accept data (RFC 6429 section 3; Linux,
    /// tcp_probe_timer). Otherwise a remote that keeps its window closed would hold our memory for
    /// ever.
    fn note_answer(&mut self) {
        let has_more = self.snd_una < self.snd_nxt || self.is_waiting_for_window();
        let takes_nothing = has_more && self.snd_edge == self.snd_una;
        if !(takes_nothing && self.departure() == Some(Departure::Possible)) {
            self.retries = 0;
        }
    }

    /// An acknowledgement that was overtaken by another: its number is old, but its SACK blocks may
    /// be new.
    pub(super) fn handle_late_blocks(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Segment<'_>,
        ack: Position,
    ) {
        let mut report = Acknowledgement::default();
        self.recovery.lost_more = false;
        self.take_sack_blocks(segment, ack, &mut report);
        if report.delivered.bytes > 0 {
            self.deduce_losses(cx, &report);
            self.adjust_window(cx, &report);
            self.arm_loss_timer(cx.now, cx.config);
        }
    }

    /// Handles plain progress of a connection whose loss timer is active.
    pub(super) fn acknowledge_in_order(&mut self, cx: &mut Context<'_>, ack: Position) {
        let mut report = Acknowledgement {
            advanced_bytes: ack - self.snd_una,
            ..Default::default()
        };
        let is_full = self.is_full_segment_acknowledged(ack);
        self.scoreboard
            .acknowledge(ack, Instant::NEVER, &mut report.delivered);
        self.snd_una = ack;
        self.retries = 0;
        self.news.0 |= News::PROGRESS;
        self.settle_path_probe(cx, ack, is_full);
        if let Some(sent_at) = report.delivered.oldest_sent_at {
            self.rtt.sample(cx.now, cx.now.since(sent_at));
        }
        if self.rack.probe_end.is_some() {
            self.settle_tail_probe(cx, &report);
        }
        self.deduce_losses(cx, &report);
        self.adjust_window(cx, &report);
        self.arm_loss_timer(cx.now, cx.config);
    }

    /// RFC 9293 section 3.10.7.4: SND.WND, SND.WL1; an old segment must not move the window. Of two
    /// segments that differ only in the window, the larger window counts, because one may have
    /// overtaken the other. But like Linux (tcp_may_update_window), a closed window always counts.
    #[inline(always)]
    pub(super) fn update_send_window(&mut self, seq: Position, ack: Position, window: u16) {
        //= RFC 7323#2.3
        //# The window field (SEG.WND) in the header of every incoming segment, with the exception
        //# of <SYN> segments, MUST be left-shifted by Snd.Wind.Shift bits before updating SND.WND:
        let window = u64::from(window) << self.snd_wscale;
        let edge = ack + window;
        let is_newer = ack > self.snd_una
            || seq > self.snd_wl1
            || (ack == self.snd_una
                && seq == self.snd_wl1
                && (edge > self.snd_edge || window == 0));
        if is_newer && ack >= self.snd_una {
            self.snd_edge = edge;
            self.snd_wl1 = seq;
            self.snd_window_max = self.snd_window_max.max(window as u32);
        }
    }

    fn take_sack_blocks(
        &mut self,
        segment: &Segment<'_>,
        ack: Position,
        report: &mut Acknowledgement,
    ) {
        let mut first: Option<Span> = None;
        for (index, (start, end)) in segment.sack_blocks().enumerate() {
            report.has_blocks = true;
            let block = Span {
                start: Position::from_wire(start, self.snd_first, self.snd_una),
                end: Position::from_wire(end, self.snd_first, self.snd_una),
            };
            if block.start >= block.end || block.end > self.snd_nxt {
                continue;
            }
            // RFC 2883 section 4: the first block reports a duplicate when it lies below the
            // acknowledgement number or inside the second block.
            let is_inside = |outer: Span| outer.start <= block.start && block.end <= outer.end;
            if index == 0 && block.end <= ack {
                report.has_duplicate_report = true;
                continue;
            }
            if index == 0 {
                first = Some(block);
            } else if index == 1
                && let Some(first) = first
                && block.start <= first.start
                && first.end <= block.end
                && !is_inside(first)
            {
                report.has_duplicate_report = true;
            }
            if block.start >= self.snd_una {
                self.scoreboard.sack(block, &mut report.delivered);
            }
        }
    }

    fn sample_round_trip(
        &mut self,
        cx: &Context<'_>,
        segment: &Segment<'_>,
        report: &Acknowledgement,
    ) {
        if let Some(sent_at) = report.delivered.oldest_sent_at {
            self.rtt.sample(cx.now, cx.now.since(sent_at));
        } else if report.advanced_bytes > 0
            && let Some(timestamps) = self.timestamps_of(segment)
            && let Some(first) = self.recovery.first_retransmission
            && timestamps.echo.wrapping_sub(first) as i32 >= 0
        {
            // RFC 7323 section 4: with timestamps even a retransmission gives a sample. An echo
            // from before the retransmission gives none: it belongs to the original, or to a
            // segment before a lost acknowledgement, and may be minutes old.
            let elapsed = self.timestamp(cx.now).wrapping_sub(timestamps.echo);
            if elapsed < 1 << 20 {
                self.rtt
                    .sample(cx.now, Duration::from_timestamp_ticks(elapsed));
            }
        }
    }

    /// The latest time at which the segment that the remote answers was sent, by the echoed
    /// timestamp (RFC 7323 section 3): the end of its clock tick.
    fn answered_by(&self, cx: &Context<'_>, segment: &Segment<'_>) -> Instant {
        let Some(timestamps) = self.timestamps_of(segment) else {
            return Instant::NEVER;
        };
        let age = self.timestamp(cx.now).wrapping_sub(timestamps.echo);
        // A time in the future, or before the engine started, is not ours.
        cx.now.end_of_timestamp(age).unwrap_or(Instant::NEVER)
    }

    /// Bytes of ours that arrived ECN-marked, as the remote reports. The feedback of RFC 3168
    /// has no numbers: it counts for all bytes that it acknowledges.
    fn hear_marks(&mut self, segment: &Segment<'_>, report: &Acknowledgement) -> u64 {
        //= RFC 9768#3.2.2
        //# A host MUST NOT interpret the 3 flags as a 3-bit ACE field on any segment with SYN=1
        //# (whether ACK is 0 or 1), or if AccECN negotiation is incomplete or has not succeeded.
        //= RFC 9768#3.1.5
        //# SHOULD ignore the TCP-ECN flags in SYNs or SYN/ACKs that are received after the
        //# implementation reaches the Established state, in line with the general TCP approach
        //# [RFC9293];
        //= RFC 9768#3.2.3.2.1
        //# If there is somehow an AccECN Option on a SYN, it MUST be ignored when forwarded or
        //# received.
        if !self.conditions.has(Conditions::ECN) || segment.flags.has(Flags::SYN) {
            return 0;
        }
        let Some(accurate) = &mut self.accurate_ecn else {
            let is_marked = segment.flags.has(Flags::ECE);
            return if is_marked {
                report.advanced_bytes.max(1)
            } else {
                0
            };
        };
        let mss = u32::from(self.mss);
        let marked_bytes = accurate.hear(Feedback {
            ace: segment.flags.ace(),
            counters: segment.ecn_counters(),
            delivered: report.delivered.bytes.div_ceil(mss.into()) as u32,
            is_newest: report.advanced_bytes > 0 || report.delivered.bytes > 0,
            is_bare: segment.payload.is_empty() && !report.has_blocks,
            mss,
        });
        marked_bytes.into()
    }

    /// RFC 3168 section 6.1.2: "TCP should not react to congestion indications more than once every
    /// window of data".
    fn answer_marks(&mut self, cx: &mut Context<'_>, marked_bytes: u64, report: &Acknowledgement) {
        let (una, nxt) = (self.snd_una, self.snd_nxt);
        self.congestion
            .count_marks(report.advanced_bytes, marked_bytes, una, nxt);
        if marked_bytes > 0 && una >= self.recovery.marked_until && self.phase == Phase::Open {
            self.enter_recovery(cx, Cause::Mark);
        }
    }
}
