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
            late_bytes: 0,
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
            late_bytes: 0,
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
    flow.model.gathered = Gathered::new(flow.now);
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

/// Beside a competitor that ignores losses, soon after Startup and later.
fn beside_one_that_ignores_losses() -> [(Flow, Conduct); 2] {
    [(0, Conduct::CatchUp), (10, Conduct::Hold)].map(|(seconds, conduct)| {
        let mut flow = cruising();
        while !flow.model.competition.ignores_losses() {
            flow.model.note_lost(4 * MSS);
            flow.round(40 * MSS);
        }
        flow.now += Duration::from_secs(seconds);
        // No ProbeRtt comes between, and the acknowledgements were not gathered.
        flow.model.min_rtt_at = flow.now;
        flow.model.probed_rtt_at = flow.now;
        flow.model.gathered = Gathered::new(flow.now);
        (flow, conduct)
    })
}

/// The competitor has more than its share at first, and would take the headroom.
#[test]
fn a_flow_that_catches_up_yields_for_one_round() {
    for (mut flow, conduct) in beside_one_that_ignores_losses() {
        flow.model.begin_down(&flow.step(MSS, 0));
        flow.acknowledge(MSS, 80 * MSS);
        assert_eq!(flow.model.conduct, conduct);
        assert_eq!(flow.model.state, State::Down, "{conduct:?}");
        flow.now += ROUND_TRIP;
        flow.acknowledge(20 * MSS, 80 * MSS);
        let is_over = flow.model.state == State::Cruise;
        assert_eq!(is_over, conduct == Conduct::CatchUp, "{conduct:?}");
    }
}

/// With the gains of other probes, a flow had 36 % beside BBR's first version in 15 seconds. If the
/// window of later probes were larger than two products, it would get up to 73 % in a minute.
#[test]
fn a_flow_that_catches_up_probes_for_more_than_one_that_holds_its_share() {
    for (mut flow, conduct) in beside_one_that_ignores_losses() {
        flow.model.begin_refill(&flow.step(MSS, 0));
        flow.model.state = State::Up;
        flow.cwnd = 200 * MSS;
        flow.acknowledge(MSS, 40 * MSS);
        assert_eq!(flow.model.state, State::Up);
        let (pacing, window) = match conduct {
            Conduct::CatchUp => (200, 250),
            _ => (125, 200),
        };
        assert_eq!(
            flow.cwnd,
            flow.model.product(window) + 3 * MSS,
            "{conduct:?}"
        );
        let rate = flow.model.rate() * pacing / 100 * PACING_MARGIN / 100;
        assert_eq!(flow.model.pacing_rate(), Some(rate), "{conduct:?}");
    }
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
