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
//! yields, the competitor ignores loss ([`competition`]). To yield would leave it everything, so no
//! loss bounds the flow any more, and it probes as often as BBR's first version ([`Conduct`]).
//! Until that version gives way for the first time, the flow has less than its share. So its Down
//! ends after a round, and its Up doubles the rate, with a window of 2.5 products of bandwidth and
//! round trip. Later its Up has 2 products instead of 2.25, or it would get more than its share.
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

mod competition;
mod delivery_rate;
mod gathered;

use competition::{Competition, Losses};
use delivery_rate::{Arrival, DeliveryRate};
use gathered::{Acknowledged, Gathered};

use crate::position::Position;
use crate::time::{Duration, Instant};

/// Pacing and window gains, in hundredths (sections 5.3.1 to 5.3.4).
const STARTUP_PACING: u64 = 277;
const DRAIN_PACING: u64 = 35;
const DOWN_PACING: u64 = 90;
const UP_PACING: u64 = 125;
const WINDOW: u64 = 200;
const UP_WINDOW: u64 = 225;
/// The probes of a flow that catches up. A probe ends with the first round with much loss, and with
/// the gains of other probes its window would hardly have grown by then. Not in the draft.
const CATCH_UP_PACING: u64 = 200;
const CATCH_UP_WINDOW: u64 = 250;
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
/// BBR's first version gives way so long after its Startup: it probes its round trip every ten
/// seconds. Not in the draft.
const CATCH_UP_TIME: Duration = Duration::from_secs(10);
const PROBE_RTT_AFTER: Duration = Duration::from_secs(5);
const MIN_RTT_LASTS: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
const WINDOW_SEGMENTS_MIN: u64 = 4;
/// The part of the window for bytes whose acknowledgements are gathered, in hundredths. With 100,
/// the flow could not find a larger bandwidth.
const GATHERED_WINDOW: u64 = 125;
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

/// The flow's conduct towards its competitors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Conduct {
    /// The competitors answer losses, and so does the flow.
    Yield,
    /// A competitor ignores losses, and Startup ended less than `CATCH_UP_TIME` ago. The flow
    /// noticed the competitor late, and has less than its share.
    CatchUp,
    /// A competitor ignores losses, and has given way since Startup.
    Hold,
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
    conduct: Conduct,
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
    /// `CATCH_UP_TIME` after Startup.
    catch_up_ends_at: Instant,
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
    /// Those of `delivered_bytes` that may have arrived long ago.
    pub(crate) late_bytes: u64,
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
            conduct: Conduct::Yield,
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
            catch_up_ends_at: now,
            min_rtt: None,
            min_rtt_at: now,
            probed_rtt_at: now,
            ends_at: None,
            cycle_began: now,
            cycle_lasts: Duration::ZERO,
            gathered: Gathered::new(now),
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
    /// program, for the receiver or for the retransmission timer. If that time were part of a
    /// sample, a flow whose window leaves in one burst would measure a little less than its pacing
    /// rate, lower its pacing rate to that, and so on without end.
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
        self.gathered.note(Acknowledged {
            now: step.now,
            bytes: step.delivered_bytes,
            rate: self.rate(),
            window: step.cwnd,
        });
        self.answer_losses_of_probe(&step);
        let is_round_over = self.is_round_over(&step);
        if is_round_over {
            self.end_round(&step);
        }
        if core::mem::take(&mut self.began_idle) && step.rtt.is_some() {
            self.note_probe_by_idling(step.now);
        }
        self.conduct = self.conduct_at(step.now);
        self.change_state(&step, is_round_over);
        self.window(&step)
    }

    fn note_rate(&mut self, step: &Step) {
        let rate = self.delivery.take(Arrival {
            now: step.now,
            bytes: step.delivered_bytes,
            late_bytes: step.late_bytes,
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

    fn conduct_at(&self, now: Instant) -> Conduct {
        match self.competition.ignores_losses() {
            false => Conduct::Yield,
            true if now < self.catch_up_ends_at => Conduct::CatchUp,
            true => Conduct::Hold,
        }
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
                self.catch_up_ends_at = step.now + CATCH_UP_TIME;
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
                // The competitor would take the headroom, so a flow that catches up yields for one
                // round only.
                let has_yielded = self.conduct == Conduct::CatchUp && self.rounds > 0;
                if elapsed >= self.cycle_lasts || self.competes_for_bandwidth() {
                    self.begin_refill(step);
                } else if step.in_flight <= most || has_yielded {
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
            State::Up => match self.conduct {
                Conduct::Yield => UP_WINDOW,
                Conduct::CatchUp => CATCH_UP_WINDOW,
                Conduct::Hold => WINDOW,
            },
            _ if self.in_flight_high.is_some() => LOSSY_WINDOW,
            _ => WINDOW,
        };
        let target = match self.min_rtt {
            Some(_) if self.rate_max() > 0 => {
                let gathered = self.gathered.bytes(self.rate());
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
        round_trip.bytes_at(self.rate()).saturating_mul(gain) / 100
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
            State::Up if self.conduct == Conduct::CatchUp => CATCH_UP_PACING,
            State::Up => UP_PACING,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
        }
    }
}

#[cfg(test)]
mod tests;
