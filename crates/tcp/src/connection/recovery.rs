//! Loss: how it is detected (RACK-TLP, RFC 8985; RFC 6582 for remotes without SACK), how sending
//! continues during recovery (PRR, RFC 6937), and how a mistake is undone (RFC 3522, RFC 4015).
//!
//! ```text
//!            loss deduced, or ECE                 all acknowledged that was sent at entry
//!    Open ------------------------> Recovery ----------------------------------------> Open
//!      \                               |
//!       \  retransmission timeout      |  retransmission timeout        likewise
//!        +---------------------------> Loss ------------------------------------------> Open
//! ```

use super::acknowledge::Acknowledgement;
use super::bbr::Step;
use super::congestion::{Cause, Prior, Progress};
use super::frto::Suspicion;
use super::sent::{Delivered, Sent};
use super::{Conditions, Connection, Context};
use crate::config::Config;
use crate::position::Position;
use crate::state::Phase;
use crate::time::{Duration, Instant};

/// RFC 5681 section 3.2: three duplicates.
const DUPLICATE_THRESHOLD: u32 = 3;
/// RFC 8985 section 6.2 step 4: for how many recoveries a widened reordering window is kept.
const REORDER_PERSIST_RECOVERIES: u8 = 16;

/// The state of a recovery.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    /// RecoveryPoint (RFC 6675): the recovery ends when this position is acknowledged. Afterwards
    /// "recover" (RFC 6582): duplicates below it are answers to retransmissions.
    pub(crate) point: Position,
    /// Until this position is acknowledged, further ECN marks belong to the same window (RFC 3168
    /// section 6.1.2).
    pub(crate) marked_until: Position,
    /// Bytes for which duplicate acknowledgements stand, from remotes without SACK.
    pub(crate) duplicate_bytes: u32,
    /// Duplicate acknowledgements in a row.
    pub(crate) duplicates: u32,
    /// PRR (RFC 6937 section 3.1).
    prr_delivered: u64,
    pub(crate) prr_out: u64,
    flight_at_entry: u32,
    /// The recovery answers an ECN mark, and no loss is known.
    is_for_mark: bool,
    /// The current acknowledgement has shown another loss.
    pub(super) lost_more: bool,
    /// Congestion control before the loss, restored if the retransmissions prove spurious.
    pub(super) prior: Option<Box<Prior>>,
    /// TSval of the first retransmission (RFC 3522).
    pub(crate) first_retransmission: Option<u32>,
    /// The end of the last retransmission.
    pub(crate) resent_end: Position,
    /// Whether the timeout may have been a mistake (RFC 5682).
    pub(super) suspicion: Suspicion,
}

/// RFC 8985 section 5.2 and 7.1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq: of the delivered record that was sent last.
    newest_sent_at: Instant,
    newest_end: Position,
    /// RACK.rtt.
    rtt: Duration,
    /// RACK.fack: the highest position that was delivered.
    furthest: Position,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult less one.
    window_extra: u8,
    window_persist: u8,
    /// RACK.dsack_round.
    duplicate_round: Option<Position>,
    /// TLP.end_seq and TLP.is_retrans, while a probe is out.
    pub(crate) probe_end: Option<Position>,
    pub(crate) probe_is_retransmission: bool,
}

impl Rack {
    /// [`Self::update`] when all data was sent once and arrived in order up to `una`. Later
    /// deliveries lie beyond `una`, so `furthest` need not be updated.
    #[inline(always)]
    pub(super) fn note_in_order(&mut self, sent_at: Instant, una: Position, rtt: Duration) {
        self.rtt = rtt;
        let is_later = sent_at > self.newest_sent_at;
        if is_later || sent_at == self.newest_sent_at && una > self.newest_end {
            self.newest_sent_at = sent_at;
            self.newest_end = una;
        }
    }

    /// RFC 8985 section 6.2 step 4: a recovery ends, from a deduced loss or from a timeout.
    fn note_recovery(&mut self) {
        self.window_persist = self.window_persist.saturating_sub(1);
        if self.window_persist == 0 {
            self.window_extra = 0;
        }
    }

    /// RFC 8985 section 6.2, steps 2 and 3.
    fn update(&mut self, now: Instant, newest: &Sent, delivered: &Delivered, minimum: Duration) {
        let rtt = now.since(newest.sent_at);
        // "If the segment was retransmitted and arrives in less than the minimum RTT, it is likely
        // the original that arrived."
        if !(newest.is_retransmitted() && rtt < minimum) {
            self.rtt = rtt;
            if (newest.sent_at, newest.end()) > (self.newest_sent_at, self.newest_end) {
                self.newest_sent_at = newest.sent_at;
                self.newest_end = newest.end();
            }
        }
        // Step 3: a record below the highest delivered position was delivered, and was never
        // retransmitted.
        if delivered
            .lowest_original
            .is_some_and(|lowest| lowest < self.furthest)
        {
            self.reordering_seen = true;
        }
        self.furthest = self.furthest.max(delivered.furthest);
    }
}

impl Connection {
    /// Updates RACK and deduces losses. Called for every acknowledgement on the slow path.
    pub(super) fn deduce_losses(&mut self, cx: &mut Context<'_>, ack: &Acknowledgement) {
        if let Some(newest) = &ack.delivered.newest {
            self.rack
                .update(cx.now, newest, &ack.delivered, self.rtt.minimum());
        }
        if !self.conditions.has(Conditions::SACK) {
            self.deduce_from_duplicates(ack);
            return;
        }
        if ack.has_duplicate_report {
            // Step 4: a spurious retransmission was reported; wait longer from now on.
            if self
                .rack
                .duplicate_round
                .is_none_or(|round| self.snd_una >= round)
            {
                self.rack.duplicate_round = Some(self.snd_nxt);
                self.rack.window_extra = self.rack.window_extra.saturating_add(1);
                self.rack.window_persist = REORDER_PERSIST_RECOVERIES;
            }
        }
        self.detect_losses(cx);
    }

    //= RFC 8985#9.2
    //# Therefore, the algorithm [RFC6675] MUST NOT be used with RACK-TLP; instead, a modified
    //# recovery algorithm that carefully addresses such a case is needed.
    /// RFC 8985 section 6.2, step 5; also called whenever the reordering timer expires.
    pub(super) fn detect_losses(&mut self, cx: &mut Context<'_>) {
        if self.snd_una == self.snd_nxt {
            return;
        }
        let delay = self.rack.rtt + self.reordering_window();
        let (newly_lost, look_again_at) = self.scoreboard.detect_losses(
            self.rack.newest_sent_at,
            self.rack.newest_end,
            delay,
            cx.now,
        );
        self.recovery.lost_more |= newly_lost > 0;
        let is_open = self.phase == Phase::Open;
        if newly_lost > 0 && !(is_open && self.lost_only_the_probe(cx.now)) {
            self.congestion.note_lost(newly_lost);
        }
        self.arm_reorder_timer(look_again_at);
        self.recover_if_needed(cx);
    }

    /// Enters recovery when something is lost, unless it is a probe that was too large.
    pub(super) fn recover_if_needed(&mut self, cx: &mut Context<'_>) {
        if self.scoreboard.lost_bytes > 0
            && self.phase == Phase::Open
            && !self.lost_only_the_probe(cx.now)
        {
            self.enter_recovery(cx, Cause::Loss);
        }
    }

    /// RFC 8985 section 6.2 step 4, RACK_update_reo_wnd.
    fn reordering_window(&self) -> Duration {
        if !self.rack.reordering_seen {
            let is_certain = self.phase != Phase::Open
                || self.scoreboard.sacked_bytes >= DUPLICATE_THRESHOLD * u32::from(self.mss);
            if is_certain {
                return Duration::ZERO;
            }
        }
        let quarter = Duration::from_micros(self.rtt.minimum().as_micros() / 4);
        //= RFC 8985#3.3.2
        //# The RACK reordering window MUST be bounded, and this bound SHOULD be SRTT.
        let widened = quarter * (u64::from(self.rack.window_extra) + 1);
        widened.min(self.rtt.smoothed().unwrap_or(widened))
    }

    /// RFC 6582 and RFC 5681 section 3.2, for a remote that does not report the data it has.
    fn deduce_from_duplicates(&mut self, ack: &Acknowledgement) {
        let mss = u32::from(self.mss);
        if ack.advanced_bytes > 0 {
            let is_partial = self.phase == Phase::Recovery && self.snd_una < self.recovery.point;
            if is_partial && !self.recovery.is_for_mark {
                // RFC 6582 section 3.2 step 3: a partial acknowledgement asks for the next one.
                let lost = self.scoreboard.mark_first_lost(mss);
                self.congestion.note_lost(lost);
                self.recovery.duplicate_bytes = self
                    .recovery
                    .duplicate_bytes
                    .saturating_sub(ack.advanced_bytes as u32);
            } else {
                self.recovery.duplicate_bytes = 0;
            }
            self.recovery.duplicates = 0;
        } else if ack.is_duplicate {
            self.recovery.duplicates += 1;
            let outstanding = (self.snd_nxt - self.snd_una) as u32;
            let left = outstanding.saturating_sub(self.recovery.duplicate_bytes + mss);
            // Each duplicate stands for a segment that has left the network.
            self.recovery.duplicate_bytes += mss.min(left);
            // RFC 6582 section 3.2 step 1: duplicates from the last recovery do not count.
            let is_news = match self.phase {
                Phase::Open => self.snd_una > self.recovery.point,
                Phase::Recovery => self.recovery.is_for_mark,
                Phase::Loss => false,
            };
            if self.recovery.duplicates == DUPLICATE_THRESHOLD && is_news {
                let lost = self.scoreboard.mark_first_lost(mss);
                self.congestion.note_lost(lost);
                if self.phase == Phase::Recovery {
                    self.repair_after_mark();
                }
            }
        }
    }

    /// A loss is noticed while a mark is answered. The window was reduced for this window of data
    /// already (RFC 3168 section 6.1.2), so only the repair is due.
    fn repair_after_mark(&mut self) {
        self.recovery.is_for_mark = false;
        self.recovery.point = self.snd_nxt;
        self.conditions.set(Conditions::FORCE_RETRANSMIT);
    }

    /// No loss is known of the data that follows the handshake: RFC 6582 section 3.2 step 1,
    /// "recover is set to the initial send sequence number".
    pub(super) fn forget_losses_of_handshake(&mut self) {
        self.recovery.prior = None;
        self.recovery.point = Position::SYN;
    }

    /// Begins to repair losses, or to respond to other congestion.
    pub(super) fn enter_recovery(&mut self, cx: &mut Context<'_>, cause: Cause) {
        let is_mark = cause == Cause::Mark;
        cx.counters.recoveries += 1;
        let in_flight = (self.snd_nxt - self.snd_una) as u32;
        self.recovery.prior = Some(Box::new(self.congestion.prior(self.cwnd)));
        self.recovery.first_retransmission = None;
        self.congestion
            .reduce(self.cwnd, in_flight, u32::from(self.mss), is_mark);
        self.phase = Phase::Recovery;
        self.conditions.set(Conditions::WINDOW_MOVED);
        self.recovery.point = self.snd_nxt;
        self.recovery.prr_delivered = 0;
        self.recovery.prr_out = 0;
        self.recovery.flight_at_entry = in_flight.max(1);
        self.announce_reduction();
        self.recovery.is_for_mark = is_mark;
        if cause == Cause::Loss {
            self.conditions.set(Conditions::FORCE_RETRANSMIT);
        } else {
            self.recovery.prior = None; // A mark is no mistake, and nothing is sent again.
        }
    }

    //= RFC 9768#3.1.5
    //# MUST NOT set CWR to indicate that it has received and responded to indications of
    //# congestion.
    /// RFC 3168 section 6.1.2: CWR on the first new data after a reduction, whatever the reason;
    /// once per window.
    fn announce_reduction(&mut self) {
        if self.conditions.has(Conditions::ECN) {
            let is_classic = self.accurate_ecn.is_none();
            self.conditions.put(Conditions::SEND_CWR, is_classic);
            self.recovery.marked_until = self.snd_nxt;
        }
    }

    /// RFC 6298 section 5.4 to 5.6, RFC 8985 section 6.3: the timeout itself.
    pub(super) fn handle_retransmission_timeout(&mut self, cx: &mut Context<'_>) {
        cx.counters.timeouts += 1;
        self.forget_path_probe(cx.now);
        self.suspect_timeout();
        let mss = u32::from(self.mss);
        if self.phase != Phase::Loss || self.snd_una >= self.recovery.point {
            // RFC 3522 section 3.2, step 2: the time of the first retransmission stays as loss
            // recovery progresses. An answer to it shows that a later timeout was too early, and
            // not that nothing was lost.
            if self.phase == Phase::Open {
                self.recovery.prior = Some(Box::new(self.congestion.prior(self.cwnd)));
                self.recovery.first_retransmission = None;
            }
            // In a recovery, proportional rate reduction holds the window below its target.
            let window = match self.phase {
                Phase::Recovery => self.cwnd.max(self.congestion.ssthresh),
                _ => self.cwnd,
            };
            // RFC 5681 section 3.1: ssthresh is reduced once for a loss, not again for each
            // timeout.
            let in_flight = (self.snd_nxt - self.snd_una) as u32;
            self.congestion.reduce(window, in_flight, mss, false);
            self.announce_reduction();
        }
        self.congestion.note_timeout();
        let horizon = self.rack.rtt + self.reordering_window();
        let old = Instant::from_micros(cx.now.as_micros().saturating_sub(horizon.as_micros()));
        let lost_before = self.scoreboard.lost_bytes;
        self.scoreboard.handle_timeout(old);
        let lost = self.scoreboard.lost_bytes.saturating_sub(lost_before);
        self.congestion.note_lost(lost);
        self.phase = Phase::Loss;
        self.conditions.set(Conditions::WINDOW_MOVED);
        self.recovery.point = self.snd_nxt;
        self.recovery.is_for_mark = false;
        self.recovery.duplicates = 0;
        self.recovery.duplicate_bytes = 0;
        self.rack.probe_end = None;
        // RFC 5681 section 3.1: one segment, in addition to the data that RACK believes in the
        // network.
        self.cwnd = self.in_flight() + mss;
        self.conditions.set(Conditions::FORCE_RETRANSMIT);
        self.rtt.back_off();
    }

    /// Adjusts the window after an acknowledgement, according to the phase.
    pub(super) fn adjust_window(&mut self, cx: &mut Context<'_>, ack: &Acknowledgement) {
        let is_over = self.phase != Phase::Open && self.snd_una >= self.recovery.point;
        if self.conditions.has(Conditions::MODELLED) {
            return self.follow_model(cx, ack, is_over);
        }
        if self.phase == Phase::Loss && ack.advanced_bytes > 0 {
            // Slow start continues with the acknowledgement that ends the recovery.
            if self.is_trying_new_data() {
                self.try_new_data();
            } else {
                self.grow_window(cx, ack);
            }
            if is_over {
                self.leave_recovery();
            }
            return;
        }
        if is_over {
            self.leave_recovery();
        }
        match self.phase {
            Phase::Recovery => self.reduce_proportionally(ack),
            Phase::Open
                //= RFC 9438#4.6
                //# Implementations that use _cwnd_ MUST use other measures to prevent _cwnd_ from
                //# growing when the volume of bytes in flight is smaller than _cwnd_.
                if ack.advanced_bytes > 0 && self.conditions.has(Conditions::CWND_LIMITED) =>
            {
                let in_slow_start = self.cwnd < self.congestion.ssthresh;
                if !in_slow_start || self.cwnd / 2 < self.congestion.flight_bytes_max {
                    self.grow_window(cx, ack);
                }
            }
            _ => {}
        }
    }

    /// The model of the path limits the bytes in flight in every phase. Only a timeout restarts
    /// with one segment.
    #[cold]
    fn follow_model(&mut self, cx: &Context<'_>, ack: &Acknowledgement, is_over: bool) {
        if self.phase == Phase::Loss && ack.advanced_bytes > 0 && self.is_trying_new_data() {
            self.try_new_data();
        }
        if is_over {
            self.leave_recovery();
        }
        let newest = ack
            .delivered
            .newest
            .filter(|newest| !newest.is_retransmitted());
        // Without SACK, data beyond a hole may have arrived long before its acknowledgement.
        let late_bytes = match self.conditions.has(Conditions::SACK) {
            true => 0,
            false => ack.delivered.mistaken_bytes,
        };
        let step = Step {
            now: cx.now,
            una: self.snd_una,
            nxt: self.snd_nxt,
            delivered_bytes: ack.delivered.bytes,
            late_bytes,
            in_flight: self.in_flight().into(),
            rtt: newest.map(|newest| cx.now.since(newest.sent_at)),
            newest_sent_at: ack.delivered.newest.map(|newest| newest.sent_at),
            mss: self.mss.into(),
            cwnd: self.cwnd.into(),
            has_sent_all: self.snd_nxt >= self.snd_end,
        };
        if let Some(cwnd) = self.congestion.follow(step) {
            self.conditions.set(Conditions::WINDOW_MOVED);
            self.cwnd = cwnd.min(WINDOW_BYTES_MAX);
        }
    }

    fn grow_window(&mut self, cx: &Context<'_>, ack: &Acknowledgement) {
        let srtt = self.rtt.smoothed().unwrap_or_default();
        let progress = Progress {
            now: cx.now,
            // SACKed bytes took effect when the SACK block arrived: they allowed new data to be
            // sent.
            acked_bytes: ack.delivered.bytes.min(ack.advanced_bytes) as u32,
            mss: u32::from(self.mss),
            srtt,
            rtt: ack
                .delivered
                .newest
                .map(|newest| cx.now.since(newest.sent_at)),
            una: self.snd_una,
            nxt: self.snd_nxt,
        };
        self.grow(progress);
    }

    /// Acknowledged data makes the congestion window grow.
    pub(super) fn grow(&mut self, progress: Progress) {
        self.conditions.set(Conditions::WINDOW_MOVED);
        let grown = self.congestion.grow(self.cwnd, progress);
        self.cwnd = grown.min(WINDOW_BYTES_MAX);
    }

    fn leave_recovery(&mut self) {
        let is_modelled = self.conditions.has(Conditions::MODELLED);
        if self.phase == Phase::Recovery && !is_modelled {
            // RFC 6937 section 3.1: "At the end of recovery, cwnd = ssthresh".
            self.cwnd = self.congestion.ssthresh;
        }
        if self.phase != Phase::Open && !self.recovery.is_for_mark {
            self.rack.note_recovery();
        }
        self.phase = Phase::Open;
        if self.recovery.is_for_mark {
            // Nothing was sent again, so duplicates that come now show a loss.
            self.recovery.is_for_mark = false;
            self.recovery.point = Position::SYN;
        }
        self.recovery.duplicate_bytes = 0;
        self.recovery.duplicates = 0;
        self.recovery.prior = None;
        self.recovery.first_retransmission = None;
        self.recovery.suspicion = Suspicion::Off;
        self.conditions.clear(Conditions::FORCE_RETRANSMIT);
    }

    //= RFC 8985#9.3
    //# The Proportional Rate Reduction (PRR) algorithm [RFC6937] is RECOMMENDED for the specific
    //# congestion control actions taken upon the losses detected by RACK-TLP.
    /// PRR (RFC 6937 section 3.1). It uses the slow-start reduction bound when an acknowledgement
    /// shows no further loss, and the conservative bound otherwise. This is the rule of its
    /// successor, RFC 9937, which calls it SafeACK.
    fn reduce_proportionally(&mut self, ack: &Acknowledgement) {
        // Without SACK a duplicate stands for one segment; with SACK the blocks have reported it
        // already.
        let is_unreported = ack.is_duplicate && !self.conditions.has(Conditions::SACK);
        let delivered = ack.delivered.bytes + u64::from(is_unreported) * u64::from(self.mss);
        if delivered == 0 {
            return;
        }
        let recovery = &mut self.recovery;
        recovery.prr_delivered += delivered;
        let ssthresh = u64::from(self.congestion.ssthresh);
        let pipe = u64::from(self.in_flight());
        let recovery = &self.recovery;
        let may_send = if pipe > ssthresh {
            (recovery.prr_delivered * ssthresh)
                .div_ceil(u64::from(recovery.flight_at_entry))
                .saturating_sub(recovery.prr_out)
        } else {
            let is_safe = ack.advanced_bytes > 0 && !self.recovery.lost_more;
            let limit = recovery
                .prr_delivered
                .saturating_sub(recovery.prr_out)
                .max(delivered)
                + u64::from(self.mss) * u64::from(is_safe);
            (ssthresh - pipe).min(limit)
        };
        self.cwnd = ((pipe + may_send) as u32).max(u32::from(self.mss));
    }

    /// RFC 3522 (Eifel): an acknowledgement that echoes a time before the first retransmission
    /// answers the original. RFC 4015 section 3.2: restore the former values. An echo of zero is no
    /// echo (Linux, tcp_tsopt_ecr_before): a host or a middlebox that always writes zero would make
    /// us undo the answer to each loss.
    pub(super) fn undo_if_spurious(&mut self, cx: &mut Context<'_>, echo: u32) {
        let Some(first) = self.recovery.first_retransmission else {
            return;
        };
        if echo != 0
            && (echo.wrapping_sub(first) as i32) < 0
            && let Some(prior) = self.recovery.prior.take()
        {
            self.undo_recovery(cx, &prior);
        }
    }

    /// RFC 4015 section 3.2 and RFC 9438 section 4.9: nothing was lost, so congestion control gets
    /// its former values.
    pub(super) fn undo_recovery(&mut self, cx: &mut Context<'_>, prior: &Prior) {
        cx.counters.recoveries_undone += 1;
        self.scoreboard.forgive();
        self.leave_recovery();
        self.cwnd = self.congestion.restore(prior, self.cwnd);
        self.conditions.set(Conditions::WINDOW_MOVED);
        self.rack.reordering_seen = true;
        self.rtt.forget_backoff();
    }

    /// RFC 8985 section 7.4.2: what an acknowledgement tells about a tail loss probe.
    pub(super) fn settle_tail_probe(&mut self, cx: &mut Context<'_>, ack: &Acknowledgement) {
        let Some(probe_end) = self.rack.probe_end else {
            return;
        };
        if self.snd_una < probe_end {
            return;
        }
        let is_beyond = self.snd_una > probe_end;
        let was_not_needed = !self.rack.probe_is_retransmission
            || ack.has_duplicate_report
            || ack.is_repeated && !ack.has_blocks;
        if !was_not_needed && !is_beyond {
            return; // Perhaps the originals were late: what is to come tells.
        }
        self.rack.probe_end = None;
        if !was_not_needed && self.phase == Phase::Open {
            //= RFC 8985#7.4.2
            //# If the TLP sender does not receive such an indication, then it MUST assume that the
            //# original data segment, the TLP retransmission, or a corresponding ACK was lost for
            //# congestion control purposes.
            //= RFC 8985#7.4.2
            //# The sender then SHOULD invoke a congestion control response equivalent to a fast
            //# recovery.
            // The original was lost and the probe repaired the loss: one reduction is still due.
            self.enter_recovery(cx, Cause::RepairedLoss);
            self.congestion.note_lost(self.mss.into());
            self.cwnd = self.cwnd.min(self.congestion.ssthresh);
            self.phase = Phase::Open;
        }
    }

    /// RFC 5681 section 4.1: a connection that was idle for an RTO starts slowly again. If the
    /// window was never the limit, it is small already. A model of the path is told that nothing
    /// was in flight.
    #[inline(always)]
    pub(super) fn restart_after_idle(&mut self, now: Instant, config: &Config) {
        if self.conditions.has(Conditions::MODELLED) {
            self.congestion.note_restart(now);
            return;
        }
        // `rto_min` is the shortest timeout possible.
        let has_moved = self.conditions.has(Conditions::WINDOW_MOVED);
        if has_moved && now.after(self.sent_at) > config.rto_min {
            self.restart_if_idle(now, config);
        }
    }

    #[inline(never)]
    fn restart_if_idle(&mut self, now: Instant, config: &Config) {
        let idle = now.since(self.sent_at);
        if config.restart_after_idle && idle > self.rtt.timeout(config) {
            self.cwnd = self.cwnd.min(self.initial_window());
            self.congestion.end_epoch();
            self.conditions.clear(Conditions::WINDOW_MOVED);
        }
    }
}

/// The congestion window stays below what 32 bits and a scaled window can express.
pub(super) const WINDOW_BYTES_MAX: u32 = 1 << 30;
