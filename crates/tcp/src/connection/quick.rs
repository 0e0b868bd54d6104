//! The two short paths of a connection without trouble: what it sends next, and what an acknowledgement
//! of new data in order means. Each does exactly what the long way would have done, or nothing.

use super::congestion::Progress;
use super::sent::InOrder;
use super::{Conditions, Connection, Context, LossTimer, News, Phase, State};
use crate::config::Config;
use crate::position::Position;
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Segment};

/// A usual segment to be sent: no options but timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuickPlan {
    pub(crate) seq: Position,
    pub(crate) payload_bytes: u32,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    /// How many bytes of full segments may follow at once; zero for less than one.
    pub(crate) left_bytes: u32,
}

impl Connection {
    /// Plans the next segment and takes it to be sent, if it is a usual one: new data within all windows,
    /// or an acknowledgement and nothing else to say. Otherwise does nothing.
    #[inline]
    pub(crate) fn plan_quickly(&mut self, cx: &mut Context<'_>) -> Option<QuickPlan> {
        let is_usual = self.state == State::Established
            && self.phase == Phase::Open
            && !self.has_duplicate
            && !self.may_widen
            && !self.conditions.has(Conditions::TRANSMIT_DETOUR)
            && self.scoreboard.is_plain();
        if !is_usual {
            return None;
        }
        let unsent = self.snd_end - self.snd_nxt;
        let seq = self.snd_nxt;
        let mut flags = Flags::ACK;
        let (mut payload_bytes, mut left_bytes) = (0, 0);
        if unsent > 0 {
            let usable;
            (payload_bytes, usable) = self.quick_payload(cx, unsent)?;
            self.send_quickly(cx, payload_bytes, usable);
            let is_end = u64::from(payload_bytes) == unsent;
            let mss = u32::from(self.mss);
            if is_end || payload_bytes > mss {
                flags = flags | Flags::PSH;
            }
            let rest = usable as u32 - payload_bytes;
            if payload_bytes == mss && rest >= mss {
                left_bytes = rest;
            }
            cx.counters.bytes_sent += u64::from(payload_bytes);
            if self.rcv_nxt > Position::FIRST_BYTE {
                self.conditions.clear(Conditions::QUICK_ACK);
            }
        } else if !self.conditions.has(Conditions::ACK_NOW) {
            return None;
        }
        cx.counters.segments_sent += 1;
        self.conditions.clear(Conditions::ACK_NOW);
        self.unacked_segments = 0;
        self.ack_deadline = Instant::NEVER;
        self.last_ack_sent = self.rcv_nxt;
        Some(QuickPlan {
            seq,
            payload_bytes,
            flags,
            window: self.advertise(),
            left_bytes,
        })
    }

    /// How much of `unsent` goes in one frame, where neither a window nor Nagle has a say in it, and in all that follow at once.
    #[inline(always)]
    fn quick_payload(&mut self, cx: &Context<'_>, unsent: u64) -> Option<(u32, u64)> {
        let mss = u64::from(self.mss);
        let flight = self.snd_nxt - self.snd_una;
        if !self.scoreboard.has_room() {
            return None;
        }
        if flight == 0 && cx.now.since(self.sent_at) > cx.config.rto_min {
            // No timeout is shorter: perhaps the connection was idle for as long.
            self.restart_after_idle(cx);
        }
        let cwnd_room = u64::from(self.cwnd).saturating_sub(flight);
        let allowed = unsent.min(self.snd_edge - self.snd_nxt);
        let usable = allowed.min(cwnd_room);
        let segmentation = u64::from(cx.config.offload.segmentation_bytes_max);
        let length = if usable < mss {
            let goes = usable == unsent
                && (self.conditions.has(Conditions::NODELAY) || self.snd_small_end <= self.snd_una);
            if !goes {
                return None;
            }
            usable
        } else if segmentation < 2 * mss || usable < 2 * mss {
            mss
        } else {
            let whole = usable.min(segmentation) / mss * mss;
            // A tail that may go with its burst is for the long way to judge.
            if usable == unsent && usable <= segmentation && whole < usable {
                return None;
            }
            whole
        };
        if cwnd_room < allowed {
            self.conditions.set(Conditions::CWND_LIMITED);
            self.congestion.flight_bytes_max = self.cwnd;
        }
        Some((length as u32, usable))
    }

    /// Takes another full segment to be sent, directly after one that [`Self::plan_quickly`] has planned, and
    /// within the bytes that it said may follow. `None`: it has to be planned after all. After the
    /// last one [`Self::note_end_of_data`] is due.
    #[inline(always)]
    pub(crate) fn send_another(&mut self, mss: u32) -> Option<Position> {
        let seq = self.snd_nxt;
        debug_assert!(seq + u64::from(mss) <= self.snd_end.min(self.snd_edge));
        if !self.scoreboard.extend(mss) {
            return None;
        }
        self.snd_nxt = seq + u64::from(mss);
        Some(seq)
    }

    #[inline(always)]
    fn send_quickly(&mut self, cx: &mut Context<'_>, payload_bytes: u32, usable: u64) {
        self.scoreboard.push(self.snd_nxt, payload_bytes, cx.now);
        self.snd_nxt += u64::from(payload_bytes);
        if payload_bytes < u32::from(self.mss) {
            self.snd_small_end = self.snd_nxt;
        }
        if self.snd_nxt == self.snd_end {
            self.note_end_of_data();
        }
        self.sent_at = cx.now;
        if matches!(self.loss_timer, LossTimer::Idle | LossTimer::TailProbe) {
            let flight = self.snd_nxt.0 - self.snd_una.0;
            self.arm_quickly(
                cx.now,
                cx.config,
                flight + usable - u64::from(payload_bytes),
            );
        } else {
            self.arm_after_sending(cx, usable - u64::from(payload_bytes));
        }
    }

    /// The acknowledgement of new data, without payload, in a connection without trouble. Does nothing and returns
    /// false for everything else. `segment` has timestamps and no other options.
    #[inline(always)]
    pub(crate) fn handle_usual_acknowledgement(
        &mut self,
        now: Instant,
        config: &Config,
        segment: &Segment<'_>,
        timestamp: u32,
    ) -> bool {
        let advanced = segment.ack.wrapping_sub(self.snd_una.wire(self.iss));
        let flight = self.snd_nxt.after(self.snd_una);
        let is_usual = self.is_watched_only()
            && self
                .conditions
                .are(Conditions::ACKNOWLEDGEMENT, Conditions::AGREED_UPON)
            && self.scoreboard.is_plain()
            && segment.seq == self.rcv_nxt.wire(self.irs)
            // Between one byte and all of them.
            && u64::from(advanced.wrapping_sub(1)) < flight
            && self.take_next_timestamp(now, timestamp);
        if !is_usual {
            return false;
        }
        let ack = self.snd_una + u64::from(advanced);
        let Some(sent) = self.scoreboard.acknowledge_plainly(ack) else {
            return false;
        };
        // RFC 9293 section 3.10.7.4: SND.UNA < SEG.ACK, so it says where the window ends.
        let window = u64::from(segment.window) << self.snd_wscale;
        self.snd_edge = ack + window;
        self.snd_wl1 = self.rcv_nxt;
        self.snd_window_max = self.snd_window_max.max(window as u32);
        self.note_progress(now, config, ack, advanced, sent);
        true
    }

    /// Whether all that goes on is that a tail loss probe will come when nothing else does: established, nothing lost or
    /// suspected, no probe out, nothing to be reported.
    #[inline(always)]
    fn is_watched_only(&self) -> bool {
        let watched = [
            LossTimer::TailProbe as u8,
            State::Established as u8,
            Phase::Open as u8,
            0,
        ];
        // One word of memory.
        let word = u32::from_ne_bytes([
            self.loss_timer as u8,
            self.state as u8,
            self.phase as u8,
            u8::from(self.has_duplicate),
        ]);
        word == u32::from_ne_bytes(watched)
    }

    /// TS.Recent of a segment at RCV.NXT (RFC 7323 section 4.3). False: the timestamp is an older one.
    #[inline(always)]
    pub(super) fn take_next_timestamp(&mut self, now: Instant, value: u32) -> bool {
        let step = value.wrapping_sub(self.ts_recent) as i32;
        if step <= 0 {
            // The same again says nothing about TS.Recent's age: the remote's clock ticks every second, or faster.
            return step == 0;
        }
        // (2): SEG.SEQ <= Last.ACK.sent, which has been RCV.NXT unless an acknowledgement waits.
        if self.unacked_segments == 0 && !self.conditions.has(Conditions::ACK_NOW) {
            self.ts_recent = value;
            self.ts_recent_at = super::coarse(now);
        }
        true
    }

    /// Plain progress: nothing lost, nothing selectively acknowledged, nothing marked.
    #[inline(never)]
    pub(super) fn acknowledge_plainly(&mut self, cx: &mut Context<'_>, ack: Position) {
        let sent = if self.is_watched_only() {
            self.scoreboard.acknowledge_plainly(ack)
        } else {
            None
        };
        match sent {
            Some(sent) => {
                self.note_progress(cx.now, cx.config, ack, ack.after(self.snd_una) as u32, sent)
            }
            None => self.acknowledge_in_order(cx, ack),
        }
    }

    #[inline(always)]
    fn note_progress(
        &mut self,
        now: Instant,
        config: &Config,
        ack: Position,
        advanced_bytes: u32,
        sent: InOrder,
    ) {
        self.snd_una = ack;
        self.retries = 0;
        self.news.0 |= News::PROGRESS;
        self.rtt.sample(now, now.since(sent.oldest_sent_at));
        let newest_rtt = now.since(sent.newest_sent_at);
        // What is left was sent after the newest that arrived: RACK has nothing to suspect.
        self.rack
            .note_in_order(sent.newest_sent_at, ack, newest_rtt);
        if self.conditions.has(Conditions::CWND_LIMITED) {
            self.grow_plainly(now, advanced_bytes, newest_rtt);
        }
        if ack < self.snd_nxt {
            self.arm_tail_probe(now, config, self.snd_nxt.after(ack));
        } else if ack == self.snd_end && !self.conditions.has(Conditions::FIN_WANTED) {
            // Nothing is in flight and nothing waits for a window.
            self.loss_timer = LossTimer::Idle;
            self.loss_deadline = Instant::NEVER;
        } else {
            self.arm_loss_timer(now, config);
        }
    }

    #[inline(never)]
    fn grow_plainly(&mut self, now: Instant, acked_bytes: u32, newest_rtt: Duration) {
        let in_slow_start = self.cwnd < self.congestion.ssthresh;
        if in_slow_start && self.cwnd / 2 >= self.congestion.flight_bytes_max {
            return;
        }
        let progress = Progress {
            now,
            acked_bytes,
            mss: u32::from(self.mss),
            srtt: self.rtt.smoothed().unwrap_or_default(),
            rtt: Some(newest_rtt),
            una: self.snd_una,
            nxt: self.snd_nxt,
        };
        self.cwnd = self
            .congestion
            .grow(self.cwnd, progress)
            .min(super::recovery::WINDOW_BYTES_MAX);
    }
}
