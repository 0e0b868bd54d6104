//! BBR: the congestion window and the pacing rate follow a model of the path, its bandwidth and its
//! round trip, and not each loss (draft-ietf-ccwg-bbr, version 3).
//!
//! ```text
//!   Startup ──► Drain ──► Down ──► Cruise ──► Refill ──► Up
//!                          ▲                             │
//!                          └────── loss, or a queue ─────┘
//! ```
//!
//! Startup ends when the bandwidth stops growing, Drain when the queue is empty. After 5 s without
//! a shorter round trip comes ProbeRtt for 200 ms and at least a round, then Cruise.
//!
//! There are five deviations. First, a round with much loss lowers the bound on bytes in flight in
//! every state, not only while the flow probes. Otherwise a flow left a quarter to CUBIC, because
//! CUBIC's queue makes the round trip look longer. Second, if losses continue although the flow
//! yields, the competitor ignores loss ([`super::competition`]). To yield would leave it
//! everything, so no loss bounds the flow any more, and it probes as often as BBR's first version.
//! Third, once much was lost, the window between two probes is 1.6 products of bandwidth and round
//! trip instead of 2: with 2, the flow would keep a full product in the queue, which is all of a
//! buffer of that size. Fourth, bytes whose acknowledgements are gathered (section 5.5.9) count
//! only within a millisecond, and replace the part of the window that exceeds one product instead
//! of being added. In the draft's way of counting, the varying shares of a bottleneck look like
//! gathered acknowledgements: over a path with jitter the flow took 8 % more of the path beside
//! CUBIC. Fifth, losses end Startup, but set no bound on bytes in flight, and the first cycle is
//! short. A competitor that began at that time has gone on to double its window for a while: with
//! the draft's bound (BBRHandleQueueTooHighInStartup) and a full cycle, the flow got a third of the
//! path beside CUBIC and beside BBR's first version in the first 15 seconds.
//!
//! A probe ends with the first acknowledgement that shows much loss, and not at the end of its
//! round: in the rest of the round, the flow would go on to fill the competitor's buffer, and take
//! 70 to 80 % beside CUBIC.

use super::competition::{Competition, Losses};
use super::delivery_rate::{Arrival, DeliveryRate};
use crate::position::Position;
use crate::time::{Duration, Instant};

/// Pacing and window gains, in hundredths (sections 5.3.1 to 5.3.4).
const STARTUP_PACING: u64 = 277;
const DRAIN_PACING: u64 = 35;
const DOWN_PACING: u64 = 90;
const UP_PACING: u64 = 125;
const WINDOW: u64 = 200;
const UP_WINDOW: u64 = 225;
/// The window between two probes of a flow that has lost much. Not in the draft.
const LOSSY_WINDOW: u64 = 160;
const PROBE_RTT_WINDOW: u64 = 50;
/// Section 5.5.5: a little below the estimate, so that queues drain.
const PACING_MARGIN: u64 = 99;
/// Section 5.5.10.2: a round was too fast when more than one byte in `LOSS_PARTS` was lost.
const LOSS_PARTS: u64 = 50;
/// The losses of a probe are noticed up to this many rounds after it.
const PROBE_LOSS_ROUNDS: u64 = 2;
/// From this round on, a flow that yields in vain probes again. With Refill and Up, a cycle has
/// about eight rounds, like that of BBR's first version.
const VAIN_PROBE_ROUNDS: u64 = 6;
/// Section 2.7, BBRBeta and BBRHeadroom, in hundredths.
const BETA: u64 = 70;
/// The factor of the bound on bytes in flight after a round with much loss in which the flow does
/// not probe. Not in the draft.
const YIELD: u64 = 75;
const KEPT_OF_HEADROOM: u64 = 85;
/// Section 5.3.1.2: rounds without growth by a quarter that end Startup, or a probe.
const FULL_ROUNDS: u8 = 3;
/// Section 5.3.3.8: the most rounds between two probes, to coexist with Reno.
const RENO_ROUNDS_MAX: u64 = 63;
/// The first cycle lasts this part of a later one. Not in the draft.
const FIRST_CYCLE_PARTS: u64 = 3;
const PROBE_RTT_AFTER: Duration = Duration::from_secs(5);
const MIN_RTT_LASTS: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
const WINDOW_SEGMENTS_MIN: u64 = 4;
/// Section 5.5.9: the most time for which acknowledgements are believed to be gathered (Linux,
/// bbr_extra_acked_max_us), and half of the rounds that BBRExtraAckedFilterLen counts.
const GATHERED_MAX: Duration = Duration::from_millis(100);
const GATHERED_ROUNDS: u8 = 5;
/// The part of the window for bytes whose acknowledgements are gathered, in hundredths. With 100,
/// the flow could not find a larger bandwidth.
const GATHERED_WINDOW: u64 = 125;
/// Acknowledgements that arrive within this time count as one burst.
const BURST: Duration = Duration::from_millis(1);
/// Knuth's multiplier.
const SEED_STEP: u64 = 6_364_136_223_846_793_005;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// The model. Rates are in bytes per second.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    state: State,
    delivery: DeliveryRate,
    /// The round in progress: what was delivered before it, the largest rate in it, when it began,
    /// and the end of the data that was sent before.
    round_delivered: u64,
    round_rate: u64,
    round_began: Instant,
    round_end: Position,
    round_lost: u64,
    /// Nothing was in flight when the newest data in flight was sent.
    began_idle: bool,
    /// The program had nothing to send for a while: the round's rate does not show the path's
    /// limit.
    is_limited_by_program: bool,
    /// As before, of the previous round.
    was_limited_by_program: bool,
    /// Rounds since the last probe.
    rounds: u64,
    competition: Competition,
    /// The largest rates of the previous cycle and of this one.
    rates: [u64; 2],
    /// Short-term bounds after loss.
    rate_low: Option<u64>,
    in_flight_low: Option<u64>,
    /// The most bytes that could be in flight without much loss.
    in_flight_high: Option<u64>,
    /// Segments by which `in_flight_high` grows in the next round of Up.
    raise: u64,
    /// The initial window in a round trip (BBRInitPacingRate).
    first_rate: u64,
    full_rate: u64,
    full_rounds: u8,
    /// The flow has reached the path's bandwidth once.
    is_full: bool,
    /// The end of the data that was sent in Startup.
    startup_end: Position,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    /// When the round trip was last probed, or last found shorter without a probe.
    probed_rtt_at: Instant,
    /// When ProbeRtt ends, and the position whose acknowledgement it needs. Set once few enough
    /// bytes are in flight.
    ends_at: Option<(Instant, Position)>,
    cycle_began: Instant,
    cycle_lasts: Duration,
    gathered: Gathered,
    seed: u64,
}

/// Acknowledgements that arrive at once, as over a radio link that gathers frames: the bytes that
/// they acknowledge beyond the bandwidth (section 5.5.9, BBRUpdateACKAggregation).
#[derive(Clone, Copy, Debug)]
struct Gathered {
    /// Since then acknowledgements have arrived faster than the bandwidth, for this many bytes.
    began: Instant,
    delivered: u64,
    /// The most bytes beyond the bandwidth, in the previous rounds and in the latest ones.
    most: [u64; 2],
    /// How many the latest rounds are.
    rounds: u8,
}

impl Gathered {
    /// Takes an acknowledgement of a flow with this bandwidth.
    fn note(&mut self, step: &Step, rate: u64) {
        let expected = |began| bytes_in(rate, step.now.since(began));
        let is_over = step.now.since(self.began) > BURST;
        if is_over || self.delivered <= expected(self.began) {
            self.began = step.now;
            self.delivered = 0;
        }
        self.delivered += step.delivered_bytes;
        let extra = self.delivered.saturating_sub(expected(self.began));
        self.most[1] = self.most[1].max(extra.min(step.cwnd));
    }

    /// A round is over. The maximum of the last five to ten rounds counts, and in Startup that of
    /// one or two.
    fn end_round(&mut self, is_full: bool) {
        self.rounds += 1;
        if self.rounds >= if is_full { GATHERED_ROUNDS } else { 1 } {
            self.most = [self.most[1], 0];
            self.rounds = 0;
        }
    }

    fn bytes(&self) -> u64 {
        self.most[0].max(self.most[1])
    }
}

/// Bounds of the model before a loss that may prove a mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    rate_low: Option<u64>,
    in_flight_low: Option<u64>,
    in_flight_high: Option<u64>,
}

/// The input of one step of the model, from an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) now: Instant,
    pub(crate) una: Position,
    pub(crate) nxt: Position,
    pub(crate) delivered_bytes: u64,
    /// Bytes in flight after the acknowledgement.
    pub(crate) in_flight: u64,
    pub(crate) rtt: Option<Duration>,
    /// When the newest data that was newly acknowledged was last sent.
    pub(crate) newest_sent_at: Option<Instant>,
    pub(crate) mss: u64,
    pub(crate) cwnd: u64,
    /// All data that the program has published is in flight.
    pub(crate) has_sent_all: bool,
}

impl Bbr {
    /// `seed` makes connections that share a path probe at different times.
    pub(crate) fn new(now: Instant, seed: u64) -> Bbr {
        Bbr {
            state: State::Startup,
            delivery: DeliveryRate::new(now),
            round_delivered: 0,
            round_rate: 0,
            round_began: now,
            round_end: Position::FIRST_BYTE,
            round_lost: 0,
            began_idle: false,
            is_limited_by_program: false,
            was_limited_by_program: false,
            rounds: 0,
            competition: Competition::new(),
            rates: [0; 2],
            rate_low: None,
            in_flight_low: None,
            in_flight_high: None,
            raise: 1,
            first_rate: 0,
            full_rate: 0,
            full_rounds: 0,
            is_full: false,
            startup_end: Position::FIRST_BYTE,
            min_rtt: None,
            min_rtt_at: now,
            probed_rtt_at: now,
            ends_at: None,
            cycle_began: now,
            cycle_lasts: Duration::ZERO,
            gathered: Gathered {
                began: now,
                delivered: 0,
                most: [0; 2],
                rounds: 0,
            },
            seed,
        }
    }

    /// Bytes were deduced to be lost.
    pub(crate) fn note_lost(&mut self, bytes: u64) {
        self.round_lost += bytes;
    }

    /// The bounds that losses may lower.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            rate_low: self.rate_low,
            in_flight_low: self.in_flight_low,
            in_flight_high: self.in_flight_high,
        }
    }

    /// The losses since `bounds` were a mistake (BBRHandleSpuriousLossDetection).
    pub(crate) fn forget_losses(&mut self, bounds: Bounds) {
        let looser =
            |now: Option<u64>, before| now.zip(before).map(|(now, before)| now.max(before));
        self.rate_low = looser(self.rate_low, bounds.rate_low);
        self.in_flight_low = looser(self.in_flight_low, bounds.in_flight_low);
        self.in_flight_high = looser(self.in_flight_high, bounds.in_flight_high);
        self.round_lost = 0;
    }

    /// Data is sent while nothing is in flight. Until now the flow waited for its pacing, for the
    /// program or for the receiver. If that time were part of a sample, a flow whose window leaves
    /// in one burst would measure a little less than its pacing rate, lower its pacing rate to
    /// that, and so on without end.
    pub(crate) fn note_restart(&mut self, now: Instant) {
        if self.round_end > Position::FIRST_BYTE {
            self.round_began = now;
            self.began_idle = true;
            self.delivery.restart(now);
        }
    }

    /// The pacing rate in bytes per second; `None` before anything was measured.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        let rate = if self.is_full {
            self.rate()
        } else {
            // BBRSetPacingRate: in Startup no sample lowers the rate.
            self.rate().max(self.first_rate)
        };
        (rate > 0).then(|| (rate * self.pacing_gain() / 100 * PACING_MARGIN / 100).max(1))
    }

    /// The window after an acknowledgement.
    pub(crate) fn follow(&mut self, step: Step) -> u64 {
        self.is_limited_by_program |= step.has_sent_all;
        self.note_round_trip(&step);
        if self.first_rate == 0
            && let Some(rtt) = self.min_rtt
        {
            self.first_rate = step.cwnd * 1_000_000 / rtt.as_micros().max(1);
        }
        self.note_rate(&step);
        self.gathered.note(&step, self.rate());
        self.answer_losses_of_probe(&step);
        let is_round_over = self.is_round_over(&step);
        if is_round_over {
            self.end_round(&step);
        }
        if core::mem::take(&mut self.began_idle) && step.rtt.is_some() {
            self.note_probe_by_idling(step.now);
        }
        self.change_state(&step, is_round_over);
        self.window(&step)
    }

    fn note_rate(&mut self, step: &Step) {
        let rate = self.delivery.take(Arrival {
            now: step.now,
            bytes: step.delivered_bytes,
            sent_at: step.newest_sent_at,
            min_rtt: self.min_rtt.unwrap_or_default(),
        });
        let is_measured = self.round_end > Position::FIRST_BYTE;
        let Some(rate) = rate.filter(|_| is_measured) else {
            return;
        };
        self.round_rate = self.round_rate.max(rate);
        // BBRUpdateMaxBw: a rate that the program has limited counts only if no rate of the
        // previous cycle was larger, either.
        if !self.is_limited() || rate >= self.rate_max() {
            self.rates[1] = self.rates[1].max(rate);
        }
    }

    /// The program may have limited the data that arrives now, which was sent about a round ago.
    fn is_limited(&self) -> bool {
        self.is_limited_by_program || self.was_limited_by_program
    }

    /// Data that was sent since the round began has arrived. If it arrived too soon, the
    /// acknowledgement is for the first copy of a segment that was sent twice.
    fn is_round_over(&self, step: &Step) -> bool {
        let min_rtt = self.min_rtt.unwrap_or_default();
        step.newest_sent_at.is_some_and(|sent_at| {
            sent_at >= self.round_began && step.now.since(sent_at) >= min_rtt
        })
    }

    fn note_round_trip(&mut self, step: &Step) {
        let Some(rtt) = step.rtt else { return };
        let is_over = step.now.since(self.min_rtt_at) > MIN_RTT_LASTS;
        if is_over || self.min_rtt.is_none_or(|least| rtt <= least) {
            self.min_rtt = Some(rtt);
            self.min_rtt_at = step.now;
            self.probed_rtt_at = step.now;
        }
    }

    /// BBR.idle_restart: a flow that had nothing in flight has measured the path without a queue of
    /// its own, so it needs no ProbeRtt for that.
    fn note_probe_by_idling(&mut self, now: Instant) {
        if now.since(self.probed_rtt_at) > PROBE_RTT_AFTER {
            self.probed_rtt_at = now;
        }
    }

    fn end_round(&mut self, step: &Step) {
        if self.round_end > Position::FIRST_BYTE {
            self.look_for_full_path();
            self.answer_losses(step);
        }
        self.rounds += 1;
        self.gathered.end_round(self.is_full);
        self.measure_from_here(step);
        self.was_limited_by_program = self.is_limited_by_program;
        self.is_limited_by_program = step.has_sent_all;
    }

    /// Section 5.3.1.2.
    fn look_for_full_path(&mut self) {
        if self.is_full || self.is_limited() {
            return;
        }
        let rate = self.rate_max();
        if rate >= self.full_rate / 4 * 5 {
            self.full_rate = rate;
            self.full_rounds = 0;
        } else {
            self.full_rounds += 1;
            self.is_full = self.full_rounds >= FULL_ROUNDS;
        }
    }

    /// Section 5.5.10.2: the probe ends as soon as much is lost of the data in flight
    /// (BBRHandleLostPacket, BBRHandleInflightTooHigh).
    fn answer_losses_of_probe(&mut self, step: &Step) {
        let is_probing = matches!(self.state, State::Refill | State::Up);
        if !is_probing || !self.is_full || self.competition.ignores_losses() {
            return;
        }
        let sent = step.in_flight + self.round_lost;
        if self.round_lost * LOSS_PARTS <= sent {
            return;
        }
        self.in_flight_high = Some(sent.max(self.product(100) * BETA / 100));
        self.begin_down(step);
        // The losses are answered. A round begins here, but it is not counted.
        self.measure_from_here(step);
    }

    /// Sections 5.5.10.2 and 5.5.10.3.
    fn answer_losses(&mut self, step: &Step) {
        let rate = self.round_rate;
        let delivered_bytes = self.delivery.delivered() - self.round_delivered;
        // Data of Startup in flight at its end was sent too fast, which has been answered.
        let is_late = self.round_end <= self.startup_end;
        let is_much = self.round_lost * LOSS_PARTS > delivered_bytes + self.round_lost && !is_late;
        self.competition.end_round(match is_much {
            false => Losses::Few,
            true if self.has_just_probed() => Losses::OfOwnProbe,
            true => Losses::OfOthers,
        });
        if self.round_lost == 0 {
            return;
        }
        if self.competition.ignores_losses() {
            self.lift_bounds();
            if is_much && self.state == State::Up {
                self.begin_down(step);
            }
            return;
        }
        match self.state {
            // Section 5.3.1.3 waits for losses in six acknowledgements (BBRStartupFullLossCnt).
            // With that, an earlier version took 64 % of a bottleneck beside CUBIC instead of 57 %.
            State::Startup if is_much => self.is_full = true,
            State::Refill | State::Up if is_much => {
                let most = delivered_bytes + self.round_lost;
                self.in_flight_high = Some(most.max(self.product(100) * BETA / 100));
                self.begin_down(step);
            }
            State::Startup | State::Refill | State::Up => {}
            _ => {
                if is_much {
                    let most = (delivered_bytes + self.round_lost) * YIELD / 100;
                    let most = most.max(self.product(100) * BETA / 100);
                    let high = self.in_flight_high.unwrap_or(u64::MAX);
                    self.in_flight_high = Some(high.min(most));
                }
                let before = self.rate_low.unwrap_or_else(|| self.rate_max());
                self.rate_low = Some(rate.max(before * BETA / 100));
                let before = self.in_flight_low.unwrap_or(step.cwnd);
                self.in_flight_low = Some(delivered_bytes.max(before * BETA / 100));
            }
        }
    }

    /// Beside a competitor that ignores losses, none bounds the flow, and the bounds of earlier
    /// losses end, too: a bound that stayed would hold the flow below its bandwidth for ever,
    /// because losses end each probe that could raise it.
    fn lift_bounds(&mut self) {
        self.rate_low = None;
        self.in_flight_low = None;
        self.in_flight_high = None;
    }

    /// A probe of the flow's own is the cause of losses now.
    fn has_just_probed(&self) -> bool {
        let is_probing = matches!(self.state, State::Startup | State::Refill | State::Up);
        is_probing || self.rounds <= PROBE_LOSS_ROUNDS
    }

    /// The flow yields in vain, and the next probe is due. A flow that probes less often than its
    /// competitor loses a part of its share with each of the competitor's probes.
    fn competes_for_bandwidth(&self) -> bool {
        self.competition.ignores_losses() && self.rounds >= VAIN_PROBE_ROUNDS
    }

    fn change_state(&mut self, step: &Step, is_round_over: bool) {
        let elapsed = step.now.since(self.cycle_began);
        match self.state {
            State::Startup if self.is_full => {
                self.state = State::Drain;
                self.startup_end = step.nxt;
            }
            State::Drain if step.in_flight <= self.product(100) => {
                self.begin_down(step);
                let lasts = self.cycle_lasts.as_micros() / FIRST_CYCLE_PARTS;
                self.cycle_lasts = Duration::from_micros(lasts);
            }
            // Section 5.3.3.5.5: until there is headroom for others.
            State::Down => {
                let most = self
                    .in_flight_high
                    .map(|high| high * KEPT_OF_HEADROOM / 100);
                let most = most.unwrap_or(u64::MAX).min(self.product(100));
                if elapsed >= self.cycle_lasts || self.competes_for_bandwidth() {
                    self.begin_refill(step);
                } else if step.in_flight <= most {
                    self.state = State::Cruise;
                }
            }
            State::Cruise => {
                let segments = self.product(100) / step.mss;
                let is_due = self.rounds >= segments.min(RENO_ROUNDS_MAX);
                if elapsed >= self.cycle_lasts || is_due || self.competes_for_bandwidth() {
                    self.begin_refill(step);
                }
            }
            State::Refill if self.rounds > 0 => {
                self.state = State::Up;
                self.cycle_began = step.now;
                self.rounds = 0;
                self.raise = 1;
                self.full_rate = self.rates[1];
                self.full_rounds = 0;
            }
            State::Up => {
                let is_bounded = self.is_bounded(step);
                if is_bounded {
                    self.raise_bound(step, is_round_over);
                }
                if is_round_over && self.has_found_limit(is_bounded) {
                    self.begin_down(step);
                }
            }
            State::ProbeRtt => self.probe_round_trip(step),
            _ => {}
        }
        let is_due = step.now.since(self.probed_rtt_at) > PROBE_RTT_AFTER;
        if is_due && self.is_full && self.state != State::ProbeRtt {
            self.state = State::ProbeRtt;
            self.ends_at = None;
        }
    }

    /// At the end of a round of Up: the rate has stopped growing, though the bound on bytes in
    /// flight did not limit it (section 5.3.3.6, BBRIsTimeToGoDown).
    fn has_found_limit(&mut self, is_bounded: bool) -> bool {
        let rate = self.rates[1];
        if is_bounded || rate >= self.full_rate / 4 * 5 {
            self.full_rate = rate;
            self.full_rounds = 0;
        } else {
            self.full_rounds += 1;
        }
        self.full_rounds >= FULL_ROUNDS
    }

    /// Whether the bound on bytes in flight limits the flow.
    fn is_bounded(&self, step: &Step) -> bool {
        self.in_flight_high.is_some_and(|high| step.cwnd >= high)
    }

    /// Section 5.3.3.5.4: while the bound limits the flow, the bound grows, faster in each round.
    fn raise_bound(&mut self, step: &Step, is_round_over: bool) {
        let Some(high) = self.in_flight_high else {
            return;
        };
        let part = step.delivered_bytes * self.raise * step.mss / high.max(1);
        self.in_flight_high = Some(high + part);
        if is_round_over {
            self.raise = (self.raise * 2).min(1 << 20);
        }
    }

    /// Section 5.3.4: with few bytes in flight for a while, the flow measures the path without a
    /// queue of its own.
    fn probe_round_trip(&mut self, step: &Step) {
        match self.ends_at {
            None if step.in_flight <= self.probe_rtt_window(step.mss) => {
                // The data in flight has met a queue. Only the next round shows the path without
                // that queue.
                self.ends_at = Some((step.now + PROBE_RTT_TIME, step.nxt));
            }
            Some((at, end)) if step.now >= at && step.una >= end => {
                self.probed_rtt_at = step.now;
                self.begin_down(step);
                self.state = State::Cruise;
            }
            _ => {}
        }
    }

    /// Section 5.3.3.5: begins a cycle. The rates of the last two cycles are kept.
    fn begin_down(&mut self, step: &Step) {
        self.state = State::Down;
        self.cycle_began = step.now;
        self.rounds = 0;
        self.rate_low = None;
        self.in_flight_low = None;
        if self.rates[1] > 0 {
            self.rates = [self.rates[1], 0];
        }
        // Section 5.3.3.8: 2 to 3 seconds.
        self.seed = self.seed.wrapping_mul(SEED_STEP).wrapping_add(1);
        self.cycle_lasts = Duration::from_micros(2_000_000 + (self.seed >> 32) % 1_000_000);
    }

    fn begin_refill(&mut self, step: &Step) {
        self.state = State::Refill;
        self.rounds = 0;
        self.rate_low = None;
        self.in_flight_low = None;
        self.measure_from_here(step);
    }

    fn measure_from_here(&mut self, step: &Step) {
        self.round_end = step.nxt;
        self.round_delivered = self.delivery.delivered();
        self.round_rate = 0;
        self.round_began = step.now;
        self.round_lost = 0;
    }

    /// Section 5.6.4.6.
    fn window(&self, step: &Step) -> u64 {
        let least = WINDOW_SEGMENTS_MIN * step.mss;
        let gain = match self.state {
            State::Up => UP_WINDOW,
            _ if self.in_flight_high.is_some() => LOSSY_WINDOW,
            _ => WINDOW,
        };
        let target = match self.min_rtt {
            Some(_) if self.rate_max() > 0 => {
                let gathered = self.gathered.bytes();
                let gathered = gathered.min(bytes_in(self.rate(), GATHERED_MAX));
                let needed = self.product(100) + gathered * GATHERED_WINDOW / 100;
                self.product(gain).max(needed) + 3 * step.mss
            }
            _ => u64::MAX,
        };
        let grown = step.cwnd + step.delivered_bytes;
        let mut cwnd = if self.is_full {
            grown.min(target)
        } else {
            grown
        };
        if !self.is_full && step.cwnd >= target {
            cwnd = step.cwnd;
        }
        let bound = match self.state {
            State::Cruise | State::Down => self
                .in_flight_high
                .map(|high| high * KEPT_OF_HEADROOM / 100),
            _ => self.in_flight_high,
        };
        let bounds = bound.into_iter().chain(self.in_flight_low);
        cwnd = bounds.fold(cwnd, u64::min);
        if self.state == State::ProbeRtt {
            cwnd = cwnd.min(self.probe_rtt_window(step.mss));
        }
        cwnd.max(least)
    }

    fn probe_rtt_window(&self, mss: u64) -> u64 {
        self.product(PROBE_RTT_WINDOW)
            .max(WINDOW_SEGMENTS_MIN * mss)
    }

    /// Bandwidth times round trip, times a gain in hundredths.
    fn product(&self, gain: u64) -> u64 {
        let round_trip = self.min_rtt.unwrap_or_default();
        bytes_in(self.rate(), round_trip).saturating_mul(gain) / 100
    }

    fn rate_max(&self) -> u64 {
        self.rates[0].max(self.rates[1])
    }

    fn rate(&self) -> u64 {
        self.rate_low
            .map_or(self.rate_max(), |low| low.min(self.rate_max()))
    }

    fn pacing_gain(&self) -> u64 {
        match self.state {
            State::Startup => STARTUP_PACING,
            State::Drain => DRAIN_PACING,
            State::Down => DOWN_PACING,
            State::Up => UP_PACING,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
        }
    }
}

/// Bytes that pass in a time at a rate in bytes per second.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    (u128::from(rate) * u128::from(time.as_micros()) / 1_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1_000;
    const ROUND_TRIP: Duration = Duration::from_millis(10);

    /// A flow that sends its window at once, waits as long as pacing requires, and sends again.
    struct Flow {
        model: Bbr,
        now: Instant,
        at: Position,
        cwnd: u64,
    }

    impl Flow {
        /// When the data was sent whose acknowledgement arrives now.
        fn sent_at(&self) -> Instant {
            Instant::from_micros(self.now.as_micros() - ROUND_TRIP.as_micros())
        }

        fn step(&self, delivered: u64, in_flight: u64) -> Step {
            let una = self.at + delivered;
            Step {
                now: self.now,
                una,
                nxt: una + in_flight,
                delivered_bytes: delivered,
                in_flight,
                rtt: Some(ROUND_TRIP),
                newest_sent_at: Some(self.sent_at()),
                mss: MSS,
                cwnd: self.cwnd,
                has_sent_all: false,
            }
        }

        fn acknowledge(&mut self, delivered: u64, in_flight: u64) {
            let step = self.step(delivered, in_flight);
            self.cwnd = self.model.follow(step);
            self.at = step.una;
        }

        /// True when four segments per round trip are measured as 400,000 bytes per second, in each
        /// cycle.
        fn is_measured_as_it_is(&self) -> bool {
            let mut rates = self.model.rates.iter();
            rates.all(|rate| (200_000..=400_000).contains(rate))
        }

        /// Sends a burst of four segments that is answered by one acknowledgement.
        fn burst(&mut self) {
            self.model.note_restart(self.now);
            self.now += ROUND_TRIP;
            self.acknowledge(4 * MSS, 0);
        }
    }

    fn flow() -> Flow {
        let now = Instant::from_micros(1_000_000);
        let mut flow = Flow {
            model: Bbr::new(now, 1),
            now,
            at: Position::FIRST_BYTE,
            cwnd: 10 * MSS,
        };
        flow.now += ROUND_TRIP;
        flow.acknowledge(MSS, 4 * MSS);
        flow
    }

    #[test]
    fn waiting_for_the_pace_is_no_part_of_a_round() {
        let mut flow = flow();
        for _ in 0..1_000 {
            flow.burst();
            let rate = flow.model.pacing_rate().expect("it was measured");
            flow.now += Duration::from_micros(4 * MSS * 1_000_000 / rate);
        }
        assert!(flow.is_measured_as_it_is(), "{:?}", flow.model.rates);
    }

    #[test]
    fn a_burst_is_measured_though_its_acknowledgements_arrive_at_one_time() {
        let mut flow = flow();
        // An outage, in which each timeout was twice the previous one.
        flow.now += Duration::from_secs(120);
        flow.acknowledge(4 * MSS, 0);
        for _ in 0..10 {
            flow.model.note_restart(flow.now);
            flow.now += ROUND_TRIP;
            for left in [3, 2, 1, 0] {
                flow.acknowledge(MSS, left * MSS);
            }
            flow.now += Duration::from_secs(10);
        }
        assert!(flow.is_measured_as_it_is(), "{:?}", flow.model.rates);
    }

    #[test]
    fn waiting_for_the_program_is_no_part_of_a_round() {
        let mut flow = flow();
        for _ in 0..100 {
            flow.burst();
            flow.now += Duration::from_secs(1);
        }
        assert!(flow.is_measured_as_it_is(), "{:?}", flow.model.rates);
    }

    impl Flow {
        /// A round in which the program has more to send than the window.
        fn round(&mut self, in_flight: u64) {
            self.now += ROUND_TRIP;
            self.acknowledge(in_flight, in_flight);
        }

        /// A program that sends one segment, and the next one after the answer.
        fn request(&mut self, rtt: Duration) {
            self.model.note_restart(self.now);
            self.now += ROUND_TRIP;
            let (una, cwnd) = (self.at + MSS, self.cwnd);
            let step = Step {
                now: self.now,
                una,
                nxt: una,
                delivered_bytes: MSS,
                in_flight: 0,
                rtt: Some(rtt),
                newest_sent_at: Some(self.sent_at()),
                mss: MSS,
                cwnd,
                has_sent_all: true,
            };
            self.cwnd = self.model.follow(step);
            self.at = una;
        }
    }

    /// A flow that has measured 4 MB/s, and probes for more.
    fn cruising() -> Flow {
        let mut flow = flow();
        for _ in 0..40 {
            flow.round(40 * MSS);
        }
        assert!(flow.model.is_full, "{:?}", flow.model);
        assert!(flow.model.pacing_rate() > Some(3_000_000));
        flow
    }

    /// BBRUpdateMaxBw: the rate of a flow that its program limits counts only if it exceeds the
    /// maximum.
    #[test]
    fn a_program_that_sends_little_does_not_lower_the_rate() {
        let mut flow = cruising();
        for number in 0..3_000 {
            flow.request(ROUND_TRIP + Duration::from_micros(number));
        }
        let rate = flow.model.pacing_rate();
        assert!(rate > Some(2_000_000), "{rate:?}, {:?}", flow.model);
    }

    /// Section 5.3.3.5.4: in each round of Up the bound grows by twice as much.
    #[test]
    fn the_bound_grows_faster_in_each_round_of_a_probe() {
        let mut flow = cruising();
        flow.model.state = State::Up;
        flow.model.in_flight_high = Some(40 * MSS);
        for _ in 0..6 {
            flow.cwnd = 4_000 * MSS;
            flow.round(40 * MSS);
        }
        let high = flow.model.in_flight_high.expect("it stays");
        assert!(high > 60 * MSS, "{high}");
    }

    /// BBRHandleLostPacket: the rest of the round would only fill the queue.
    #[test]
    fn a_probe_ends_with_the_acknowledgement_that_shows_much_loss() {
        let mut flow = cruising();
        flow.model.state = State::Up;
        flow.acknowledge(MSS, 39 * MSS);
        assert_eq!(flow.model.state, State::Up);
        flow.model.note_lost(2 * MSS);
        flow.acknowledge(MSS, 36 * MSS);
        assert_eq!(flow.model.state, State::Down);
        assert_eq!(flow.model.in_flight_high, Some(38 * MSS));
        // Between two probes the window leaves a part of the buffer to others.
        flow.model.state = State::Cruise;
        flow.model.in_flight_high = Some(1_000 * MSS);
        flow.cwnd = 200 * MSS;
        // Until now each round was acknowledged at once.
        (flow.model.gathered.most, flow.model.gathered.delivered) = ([0; 2], 0);
        flow.acknowledge(MSS, 35 * MSS);
        let product = flow.model.product(100);
        assert_eq!(flow.cwnd, product * LOSSY_WINDOW / 100 + 3 * MSS);
    }

    /// Losses end Startup and set no bound, and the first probe comes soon.
    #[test]
    fn startup_that_loses_much_ends_without_a_bound() {
        let mut flow = flow();
        for window in [8, 16, 32] {
            flow.round(window * MSS);
        }
        assert_eq!(flow.model.state, State::Startup);
        flow.model.note_lost(8 * MSS);
        flow.round(32 * MSS);
        assert!(flow.model.is_full, "{:?}", flow.model);
        assert_eq!(flow.model.bounds().in_flight_high, None);
        while flow.model.state != State::Cruise {
            flow.round(4 * MSS);
        }
        assert!(flow.model.cycle_lasts <= Duration::from_millis(3_000 / FIRST_CYCLE_PARTS));
        flow.model.begin_down(&flow.step(MSS, 0));
        assert!(flow.model.cycle_lasts >= Duration::from_secs(2));
    }

    /// A probe's losses are noticed a little later, and say nothing about others.
    #[test]
    fn losses_of_a_probe_are_the_flows_own_for_two_rounds() {
        let mut flow = cruising();
        flow.model.begin_down(&flow.step(MSS, 0));
        flow.model.state = State::Cruise;
        for _ in 0..PROBE_LOSS_ROUNDS {
            assert!(flow.model.has_just_probed());
            flow.round(20 * MSS);
        }
        flow.round(20 * MSS);
        assert!(!flow.model.has_just_probed());
    }

    /// Much is lost in every fifth round, though the flow yields: the competitor ignores loss.
    #[test]
    fn losses_bound_no_flow_that_yields_in_vain() {
        let mut flow = cruising();
        for round in 0..40 {
            if round % 5 == 0 {
                flow.model.note_lost(4 * MSS);
            }
            flow.round(20 * MSS);
        }
        assert!(flow.model.competition.ignores_losses());
        let bounds = flow.model.bounds();
        assert_eq!((bounds.rate_low, bounds.in_flight_low), (None, None));
        assert_eq!(bounds.in_flight_high, None);
        assert!(flow.cwnd >= flow.model.product(WINDOW), "{}", flow.cwnd);
    }

    /// Section 5.3.3.6: nothing is lost, but the rate does not grow.
    #[test]
    fn a_probe_ends_when_the_rate_stays_the_same() {
        let mut flow = cruising();
        flow.model.state = State::Up;
        flow.model.full_rate = flow.model.rates[1].max(flow.model.rates[0]);
        flow.model.full_rounds = 0;
        for round in 1..=FULL_ROUNDS {
            assert_eq!(flow.model.state, State::Up, "round {round}");
            flow.round(40 * MSS);
        }
        assert_eq!(flow.model.state, State::Down);
    }

    /// BBRIsTimeToGoDown: the rate of a flow that its bound limits does not show the path's limit.
    #[test]
    fn a_probe_goes_on_while_the_bound_limits_the_flow() {
        let mut flow = cruising();
        flow.model.state = State::Up;
        flow.model.in_flight_high = Some(20 * MSS);
        flow.model.full_rate = flow.model.rate_max();
        for round in 1..=FULL_ROUNDS + 1 {
            flow.cwnd = flow.model.in_flight_high.expect("it stays");
            flow.round(20 * MSS);
            assert_eq!(flow.model.state, State::Up, "round {round}");
        }
    }

    /// BBR.idle_restart: after an idle time the path was measured without a queue already.
    #[test]
    fn a_flow_that_was_idle_does_not_probe_the_round_trip() {
        let mut flow = cruising();
        for _ in 0..10 {
            flow.now += Duration::from_secs(6);
            flow.request(ROUND_TRIP + Duration::from_micros(1));
            assert_ne!(flow.model.state, State::ProbeRtt);
            flow.request(ROUND_TRIP + Duration::from_micros(1));
            assert_ne!(flow.model.state, State::ProbeRtt);
        }
    }

    /// BBRHandleProbeRTT (BBR.probe_rtt_round_done): ProbeRtt lasts at least a round, in which the
    /// queue is empty.
    #[test]
    fn round_trip_is_probed_for_a_round_on_a_long_path() {
        let mut flow = cruising();
        flow.model.state = State::ProbeRtt;
        // Few bytes are in flight, and they are acknowledged after 400 ms.
        flow.acknowledge(36 * MSS, 4 * MSS);
        flow.now += Duration::from_millis(400);
        flow.acknowledge(2 * MSS, 4 * MSS);
        assert_eq!(flow.model.state, State::ProbeRtt);
        flow.acknowledge(2 * MSS, 4 * MSS);
        assert_eq!(flow.model.state, State::Cruise);
    }

    /// BBRHandleSpuriousLossDetection: after a mistake the flow is as fast as before.
    #[test]
    fn losses_that_were_a_mistake_lower_no_bound() {
        let mut flow = cruising();
        flow.model.in_flight_high = Some(80 * MSS);
        let before = flow.model.bounds();
        flow.model.note_lost(30 * MSS);
        flow.round(40 * MSS);
        assert!(flow.model.in_flight_high < Some(80 * MSS));
        flow.model.forget_losses(before);
        let bounds = flow.model.bounds();
        assert_eq!(bounds.in_flight_high, Some(80 * MSS));
        assert_eq!((bounds.rate_low, bounds.in_flight_low), (None, None));
    }
}
