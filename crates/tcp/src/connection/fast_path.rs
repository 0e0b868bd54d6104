//! The two fast paths of a connection without loss or other exceptions: sending new data, and
//! handling an in-order acknowledgement of new data. Each does exactly what the slow path would do,
//! or nothing.

use super::congestion::Progress;
use super::sent::InOrder;
use super::{AckWords, Conditions, Connection, Context, Layout, LossTimer, News};
use crate::config::Config;
use crate::position::Position;
use crate::state::{Phase, State};
use crate::time::{Duration, Instant};

/// A segment of the fast path with payload: no options except timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastPlan {
    pub(crate) seq: Position,
    pub(crate) payload_bytes: u32,
    /// The number of bytes that may follow directly in segments of this size.
    pub(crate) left_bytes: u32,
    /// All data is sent, for now.
    pub(crate) is_end: bool,
    /// Larger than one segment: the link divides it.
    pub(crate) is_large: bool,
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progressed {
    /// The acknowledgement needs the slow path.
    No,
    /// Some data is still in flight, or unsent.
    Partly,
    /// Nothing is in flight and nothing waits for a window.
    ToTheEnd,
}

impl Connection {
    /// Whether the next segment may take the fast path, with a template of this layout.
    #[inline(always)]
    pub(crate) fn may_send_fast(&self, layout: Layout) -> bool {
        self.template.layout == layout
            && self.is_untroubled()
            && !self.conditions.has(Conditions::TRANSMIT_SLOW_PATH)
            && self.scoreboard.is_plain()
    }

    /// Plans new data within all windows, if there is any and [`Self::may_send_fast`] is true, and
    /// changes the state as if it were sent. Otherwise changes nothing.
    #[inline(always)]
    pub(crate) fn plan_fast(&mut self, now: Instant, config: &Config) -> Option<FastPlan> {
        if !self.scoreboard.has_room() {
            return None;
        }
        let seq = self.snd_nxt;
        let unsent = self.snd_end.after(seq);
        let mss = u64::from(self.mss);
        let flight = seq.after(self.snd_una);
        if flight == 0 {
            self.restart_after_idle(now, config);
        }
        let cwnd_room = u64::from(self.cwnd).saturating_sub(flight);
        let allowed = unsent.min(self.snd_edge - seq);
        let usable = allowed.min(cwnd_room);
        let segmentation = u64::from(config.offload.segmentation_bytes_max);
        let (length, left_bytes);
        if usable >= mss && (segmentation < 2 * mss || usable < 2 * mss) {
            length = mss;
            left_bytes = usable - mss;
        } else {
            length = self.other_length(usable, unsent, segmentation)?;
            left_bytes = 0;
            if length < mss {
                self.snd_small_end = seq + length;
            }
        }
        if cwnd_room < allowed {
            self.conditions.set(Conditions::CWND_LIMITED);
            self.congestion.flight_bytes_max = self.cwnd;
        }
        self.scoreboard.push(seq, length as u32, now);
        self.snd_nxt = seq + length;
        self.sent_at = now;
        if self.conditions.has(Conditions::QUICK_ACK) && self.rcv_nxt > Position::FIRST_BYTE {
            self.conditions.clear(Conditions::QUICK_ACK);
        }
        if self.loss_timer == LossTimer::TailProbe && !self.rtt.has_backed_off() {
            self.arm_tail_probe(now, config, flight + usable, mss);
        } else {
            self.arm_after_sending(now, config, usable - length);
        }
        Some(FastPlan {
            seq,
            payload_bytes: length as u32,
            left_bytes: left_bytes as u32,
            is_end: length == unsent,
            is_large: length > mss,
        })
    }

    /// [`Self::note_end_of_data`] when no data in flight is known to be lost or sacked.
    #[inline(always)]
    pub(crate) fn note_end_of_plain_data(&mut self) {
        self.note_end_of_flight(self.snd_nxt.after(self.snd_una) as u32);
    }

    /// True when the fast path can express everything to be sent: established, nothing lost, no
    /// duplicate to be reported and no path probe to be sent.
    #[inline(always)]
    fn is_untroubled(&self) -> bool {
        // The four fields are read as one word.
        let word = u32::from_ne_bytes([
            self.state as u8,
            self.phase as u8,
            u8::from(self.has_duplicate),
            u8::from(self.may_widen),
        ]);
        word == u32::from_ne_bytes([State::Established as u8, Phase::Open as u8, 0, 0])
    }

    /// The number of the `unsent` bytes that go into one frame that is not exactly a full segment,
    /// if neither a window nor Nagle limits them.
    #[inline(never)]
    fn other_length(&self, usable: u64, unsent: u64, segmentation: u64) -> Option<u64> {
        let mss = u64::from(self.mss);
        if usable < mss {
            let goes = usable == unsent
                && (self.conditions.has(Conditions::NODELAY) || self.snd_small_end <= self.snd_una);
            return goes.then_some(usable);
        }
        let whole = usable.min(segmentation) / mss * mss;
        // Whether a tail may go with its burst is decided on the slow path.
        let has_tail = usable == unsent && usable <= segmentation && whole < usable;
        (!has_tail).then_some(whole)
    }

    /// Sends another full segment, directly after one that [`Self::plan_fast`] has planned and
    /// within its `left_bytes`. `None`: the segment must be planned. After the last segment
    /// [`Self::note_end_of_data`] is due.
    #[inline(always)]
    pub(crate) fn send_another(&mut self, mss: u32) -> Option<Position> {
        let seq = self.snd_nxt;
        debug_assert!(seq + u64::from(mss) <= self.snd_end.min(self.snd_edge));
        self.scoreboard.extend(mss).then(|| {
            self.snd_nxt = seq + u64::from(mss);
            seq
        })
    }

    /// True when a segment has payload that continues the stream and brings no other news: no new
    /// acknowledgement and no other window. Then its timestamp is taken; otherwise nothing changes.
    /// The segment has timestamps and no other options.
    #[inline(always)]
    pub(crate) fn continues_plainly(
        &mut self,
        now: Instant,
        said: AckWords,
        seq: u32,
        timestamp: u32,
        payload_bytes: usize,
    ) -> bool {
        payload_bytes > 0
            && self.prediction.holds(said)
            && seq == self.rcv_nxt.wire(self.rcv_first)
            && self.rcv_nxt + payload_bytes as u64 <= self.rcv_edge
            && self.take_next_timestamp(now, timestamp)
    }

    /// Notes that `bytes` bytes of payload of such a segment were placed.
    #[inline(always)]
    pub(crate) fn note_payload(&mut self, bytes: usize) {
        self.rcv_nxt += bytes as u64;
        self.is_told = false;
    }

    /// Handles the acknowledgement of new data, without payload, in a connection without
    /// exceptions. Changes nothing for any other segment. The segment has timestamps and no other
    /// options.
    #[inline(always)]
    pub(crate) fn handle_fast_acknowledgement(
        &mut self,
        now: Instant,
        config: &Config,
        said: AckWords,
        seq: u32,
        timestamp: u32,
    ) -> Progressed {
        if self.prediction.holds_but_for_the_ack(said) {
            self.take_acknowledgement::<true>(now, config, said, seq, timestamp)
        } else {
            self.examine_acknowledgement(now, config, said, seq, timestamp)
        }
    }

    /// An acknowledgement that was not predicted, or that has another window.
    #[inline(never)]
    fn examine_acknowledgement(
        &mut self,
        now: Instant,
        config: &Config,
        said: AckWords,
        seq: u32,
        timestamp: u32,
    ) -> Progressed {
        let may_take_fast_path = said.has_fast_path_flags()
            && self
                .conditions
                .are(Conditions::ACKNOWLEDGEMENT, Conditions::AGREED_UPON);
        if may_take_fast_path {
            self.take_acknowledgement::<false>(now, config, said, seq, timestamp)
        } else {
            Progressed::No
        }
    }

    #[inline(always)]
    fn take_acknowledgement<const HAS_EXPECTED_WINDOW: bool>(
        &mut self,
        now: Instant,
        config: &Config,
        said: AckWords,
        seq: u32,
        timestamp: u32,
    ) -> Progressed {
        let advanced = said.ack().wrapping_sub(self.snd_una.wire(self.snd_first));
        let flight = self.snd_nxt.after(self.snd_una);
        let is_fast_path = self.is_watched_only()
            && seq == self.rcv_nxt.wire(self.rcv_first)
            // At least one byte is acknowledged, but not all.
            && u64::from(advanced.wrapping_sub(1)) < flight
            && self.take_next_timestamp(now, timestamp);
        if !is_fast_path {
            return Progressed::No;
        }
        let ack = self.snd_una + u64::from(advanced);
        let Some(sent) = self.scoreboard.acknowledge_only(ack) else {
            return self
                .take_another_acknowledgement::<HAS_EXPECTED_WINDOW>(now, config, said, advanced);
        };
        self.take_window::<HAS_EXPECTED_WINDOW>(said, ack, advanced);
        self.note_progress(now, config, ack, advanced, sent)
    }

    /// An acknowledgement while several records describe the data in flight.
    #[inline(never)]
    fn take_another_acknowledgement<const HAS_EXPECTED_WINDOW: bool>(
        &mut self,
        now: Instant,
        config: &Config,
        said: AckWords,
        advanced: u32,
    ) -> Progressed {
        let ack = self.snd_una + u64::from(advanced);
        if !self.scoreboard.is_plain() {
            return Progressed::No;
        }
        let Some(sent) = self.scoreboard.acknowledge_earlier(ack) else {
            return Progressed::No;
        };
        self.take_window::<HAS_EXPECTED_WINDOW>(said, ack, advanced);
        self.note_progress(now, config, ack, advanced, sent)
    }

    /// Takes the window of an acknowledgement up to `ack`, and updates the prediction.
    #[inline(always)]
    fn take_window<const HAS_EXPECTED_WINDOW: bool>(
        &mut self,
        said: AckWords,
        ack: Position,
        advanced: u32,
    ) {
        // RFC 9293 section 3.10.7.4: SND.UNA < SEG.ACK, so the segment updates the window's edge.
        if HAS_EXPECTED_WINDOW {
            self.snd_edge += u64::from(advanced);
        } else {
            let window = u64::from(said.window()) << self.snd_wscale;
            self.snd_edge = ack + window;
            self.snd_window_max = self.snd_window_max.max(window as u32);
        }
        self.snd_wl1 = self.rcv_nxt;
        self.predict_the_same(said);
    }

    /// True when only a tail loss probe is armed or possible: established, nothing lost or
    /// suspected, no probe in flight, nothing to be reported.
    #[inline(always)]
    fn is_watched_only(&self) -> bool {
        let watched = [
            LossTimer::TailProbe as u8,
            State::Established as u8,
            Phase::Open as u8,
            0,
        ];
        // The four fields are read as one word.
        let word = u32::from_ne_bytes([
            self.loss_timer as u8,
            self.state as u8,
            self.phase as u8,
            u8::from(self.has_duplicate),
        ]);
        word == u32::from_ne_bytes(watched)
    }

    /// Updates TS.Recent from a segment at RCV.NXT (RFC 7323 section 4.3). False when the timestamp
    /// is older than TS.Recent.
    #[inline(always)]
    pub(super) fn take_next_timestamp(&mut self, now: Instant, value: u32) -> bool {
        // An equal timestamp need not update TS.Recent's age: the remote's clock ticks at least
        // once per second.
        value == self.ts_recent || self.take_newer_timestamp(now, value)
    }

    #[inline(always)]
    fn take_newer_timestamp(&mut self, now: Instant, value: u32) -> bool {
        if (value.wrapping_sub(self.ts_recent) as i32) < 0 {
            return false;
        }
        // (2): SEG.SEQ <= Last.ACK.sent, which has been RCV.NXT unless an acknowledgement waits.
        if !self.ack_deadline.is_armed() && !self.conditions.has(Conditions::ACK_NOW) {
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
                let advanced = ack.after(self.snd_una) as u32;
                self.news.0 |= News::PROGRESS;
                _ = self.note_progress(cx.now, cx.config, ack, advanced, sent);
            }
            None => self.acknowledge_in_order(cx, ack),
        }
    }

    /// Notes progress of sent data. The caller tells the host.
    #[inline(always)]
    fn note_progress(
        &mut self,
        now: Instant,
        config: &Config,
        ack: Position,
        advanced_bytes: u32,
        sent: InOrder,
    ) -> Progressed {
        self.snd_una = ack;
        self.retries = 0;
        let newest_rtt = now.since(sent.newest_sent_at);
        let oldest_rtt = newest_rtt.as_micros().wrapping_add(sent.spread.as_micros());
        self.rtt
            .sample_again(now, Duration::from_micros(oldest_rtt));
        // The remaining data was sent after the newest acknowledged data: RACK suspects nothing.
        self.rack
            .note_in_order(sent.newest_sent_at, ack, newest_rtt);
        if self.conditions.has(Conditions::CWND_LIMITED) {
            self.grow_plainly(now, advanced_bytes, newest_rtt);
        }
        if ack < self.snd_nxt {
            let mss = u64::from(self.mss);
            self.arm_tail_probe(now, config, self.snd_nxt.after(ack), mss);
        } else if ack == self.snd_end && !self.conditions.has(Conditions::FIN_WANTED) {
            // The kind of timer stays, because the next timer will be of this kind.
            self.loss_deadline = Instant::NEVER;
            return Progressed::ToTheEnd;
        } else {
            self.arm_loss_timer(now, config);
        }
        Progressed::Partly
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
        self.grow(progress);
    }
}
