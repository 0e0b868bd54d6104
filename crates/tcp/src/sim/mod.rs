//! A network in one thread, determined by one seed.
//!
//! Hosts with complete engines exchange checked random streams over links that lose, delay,
//! reorder, duplicate, corrupt, mark, fragment and rewrite packets and that fail. Time is a number
//! that jumps from event to event, so a simulated hour costs only the work for its segments. After
//! every step the engine's own invariants are asserted, and every frame passes a [`checker`] that
//! knows TCP independently of the engine.
//!
//! A failure is a panic that names the seed. The seed gives the same run again, frame by frame.

mod agenda;
pub mod checker;
mod host;
mod impair;
mod link;
mod middlebox;
mod pattern;
mod report;
mod rival;
mod role;
mod scenario;
mod spares;
mod world;

pub use link::Impairments;
pub use middlebox::Middlebox;
pub use report::Report;
pub use rival::Kind as RivalKind;
pub use role::Role;
pub use scenario::Scenario;
pub use world::World;

/// Runs the scenario of `seed` to its end.
///
/// # Panics
/// When an invariant or a check fails.
#[must_use]
pub fn run(seed: u64, trace: bool) -> Report {
    World::new(Scenario::from_seed(seed), trace).run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CongestionControl, Duration};

    #[test]
    fn a_seed_replays_exactly() {
        assert_eq!(run(11, false), run(11, false));
    }

    #[test]
    fn the_first_seeds_pass() {
        let (mut departures, mut simultaneous) = (0, 0);
        for seed in 0..40 {
            let report = run(seed, false);
            assert!(report.connections > 0, "seed {seed} simulated nothing");
            departures += report.departures;
            simultaneous += report.simultaneous;
        }
        assert!(departures > 20, "{departures} programs let go");
        assert!(simultaneous > 5, "{simultaneous} opened from both sides");
    }

    /// The first seeds have every congestion control with every ECN mode, paced and not, and with
    /// small windows and large ones.
    #[test]
    fn seeds_draw_every_combination() {
        use CongestionControl::{Bbr, Cubic, Dctcp, NewReno};
        let mut drawn = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let scenario = Scenario::from_seed(seed);
            let ends = scenario.transfers.iter().map(|transfer| transfer.options);
            for options in ends.chain([scenario.server_options]) {
                let congestion = [NewReno, Cubic, Dctcp, Bbr]
                    .iter()
                    .position(|&control| control == options.congestion);
                let is_large = options.receive_bytes > 32_768;
                drawn.insert((congestion, options.ecn as u8, options.pacing, is_large));
            }
        }
        assert_eq!(drawn.len(), 4 * 3 * 2 * 2, "{drawn:?}");
    }

    /// Some of the first seeds are flooded with SYNs. Cookies go out to hosts that do not exist,
    /// and real hosts return theirs.
    #[test]
    fn floods_are_withstood() {
        let reports: Vec<_> = (0..40).map(|seed| run(seed, false)).collect();
        let is_flooded = |report: &&Report| report.cookies.0 > 20;
        let flooded: Vec<_> = reports.iter().filter(is_flooded).collect();
        assert!(!flooded.is_empty(), "no seed is flooded");
        assert!(flooded.iter().any(|report| report.cookies.1 > 0));
    }

    /// Some of the first seeds have clients that send payload with their SYN.
    #[test]
    fn payload_goes_with_syns() {
        let reports = (0..40).map(|seed| run(seed, false).fast_opens);
        let sums = reports.fold([0; 3], |sums, of| {
            core::array::from_fn(|at| sums[at] + of[at])
        });
        assert!(sums.iter().all(|&sum| sum > 5), "{sums:?}");
    }

    /// All SYN-ACKs and data of a server are lost after Fast Open has given it the connection: the
    /// handshake fails, although the program has written.
    #[test]
    fn a_handshake_that_fails_may_end_what_fast_open_gave() {
        assert!(run(20_787_016_272, false).fast_opens[1] > 0);
    }

    /// A connection from a SYN cookie is reset, given up, ended in order by the client first, or
    /// (in the last seed) given up after its program has released it. Then a late copy of the
    /// segment that returned the cookie begins it again.
    #[test]
    fn a_cookie_restores_a_connection_that_was_not_stored() {
        for seed in [782_516, 909_030, 81_151_257, 20_787_211_160] {
            assert!(run(seed, false).cookies.1 > 0, "seed {seed}");
        }
    }

    /// The path becomes narrower while the template's headers are those of the last segment.
    #[test]
    fn a_narrower_path_is_no_reason_to_offer_an_old_window() {
        assert!(run(60_056_723, false).bytes > 0);
    }

    /// A BBR flow whose window was sent in one burst measured its own pacing rate, and slowed down
    /// to a byte per second.
    #[test]
    fn a_flow_does_not_take_its_pace_for_the_paths() {
        assert!(run(50_044_414, false).bytes > 0);
    }

    /// An outage interrupts a BBR flow before anything was measured. Neither the outage nor
    /// acknowledgements that arrive together may keep the flow at ten bytes per second.
    #[test]
    fn a_flow_does_not_take_an_outage_for_the_path() {
        assert!(run(88_820_926, false).virtual_time < Duration::from_secs(3_600));
    }

    /// All data in flight of a BBR flow is lost several times, and there is neither SACK nor a
    /// timestamp. Neither the wait for the retransmission timer nor the wait for the pacing may
    /// keep the flow at a few bytes per second.
    #[test]
    fn a_flow_does_not_take_its_timeouts_for_the_path() {
        assert!(run(20_787_862_193, false).virtual_time < Duration::from_secs(3_600));
    }

    /// An end must not shrink its window while the other end's window is closed. The segment that
    /// reopens the other end's window would look like an old segment, so this end could never send
    /// the data whose acknowledgement it waits for.
    #[test]
    fn a_window_is_not_taken_back_from_an_end_that_has_closed_its_own() {
        assert!(run(88_712_114, false).bytes > 0);
    }

    /// A path that drops full segments, a window of one segment, and neither SACK nor timestamps:
    /// the black hole is found, and is not met again with each segment for eight hours.
    #[test]
    fn a_black_hole_is_found_with_one_segment_at_a_time() {
        // In the last two seeds a smaller segment follows each full one, and arrives.
        for seed in [1_008_407, 80_024_645, 80_095_296] {
            let report = run(seed, false);
            assert!(report.virtual_time < Duration::from_secs(3_600), "{seed}");
        }
    }

    /// A narrow and lossy path, and neither SACK nor timestamps: data that waited at the receiver
    /// for a retransmission must not count as a round-trip sample, or the timeout stays at two
    /// minutes.
    #[test]
    fn what_waited_for_a_retransmission_measures_no_round_trip() {
        assert!(run(80_373_309, false).virtual_time < Duration::from_secs(7_200));
    }

    /// Keepalive probes give up a remote whose answers were lost, after the program has released
    /// the connection. The remote may then wait for ever.
    #[test]
    fn whoever_was_let_go_may_be_given_up_by_keepalive() {
        assert!(run(80_483_148, false).bytes > 0);
    }

    /// An outage and losses take all answers to eight retransmissions of a released connection, so
    /// the engine gives up the remote. The remote may then wait for ever.
    #[test]
    fn whoever_was_let_go_may_be_given_up_for_silence() {
        assert!(run(20_787_764_525, false).bytes > 0);
    }

    /// A SYN that was answered with a cookie came again when there was room for a half-open
    /// connection. That connection refused the end of the handshake.
    #[test]
    fn a_cookie_is_good_although_its_syn_came_again() {
        assert!(run(80_078_462, false).bytes > 0);
    }

    /// A remote shrinks its window below the data in flight, until its own bytes are acknowledged.
    /// When the acknowledgements had numbers beyond the window's edge, both ends gave up.
    #[test]
    fn a_remote_that_takes_its_window_back_is_acknowledged() {
        // In the second seed, the FIN is outside the window.
        for seed in [20_029, 84_334_543] {
            assert!(run(seed, false).bytes > 0, "{seed}");
        }
    }

    /// A black hole lies on the path of a remote that shrinks its window. The remote's segments
    /// show that it is alive. The engine retransmits nothing beyond the window: the acknowledgement
    /// in such a segment would be lost, too.
    #[test]
    fn a_remote_that_has_taken_its_window_back_lives() {
        for seed in [86_211_604, 86_608_308] {
            assert!(run(seed, false).bytes > 0, "{seed}");
        }
    }

    /// A host was restarted and connects from the same port; a segment of the old connection comes
    /// late.
    #[test]
    fn a_late_segment_of_an_earlier_connection_is_reported() {
        assert!(run(87_144_775, false).bytes > 0);
    }

    /// All of a client's segments were lost until the cookie of its handshake had expired.
    #[test]
    fn a_handshake_may_come_too_late() {
        assert!(run(86_159_478, false).bytes > 0);
    }

    /// Two long transfers over one bottleneck end up with similar shares (Jain's index).
    #[test]
    fn competing_flows_share_a_bottleneck() {
        for congestion in [CongestionControl::NewReno, CongestionControl::Cubic] {
            let scenario = Scenario::bottleneck(7, congestion, 4, Duration::from_secs(60));
            let report = World::new(scenario, false).run();
            let shares: Vec<f64> = report
                .bytes_by_flow
                .iter()
                .map(|&bytes| bytes as f64)
                .collect();
            let sum: f64 = shares.iter().sum();
            let squares: f64 = shares.iter().map(|share| share * share).sum();
            let fairness = sum * sum / (shares.len() as f64 * squares);
            assert!(
                fairness > 0.8,
                "{congestion:?}: {fairness:.3} of {shares:?}"
            );
            // 20 Mbit/s for a minute is 150 MB; headers and recovery use a part of it.
            assert!(sum > 120e6, "{congestion:?}: {sum} bytes");
        }
    }

    /// The number of runs whose mean is judged: `few`, or six with the environment variable
    /// `TOEHOLD_ALL_SEEDS`, as in `make nightly`. A run of a minute takes most of a second.
    fn seeds(few: u64) -> u64 {
        match std::env::var_os("TOEHOLD_ALL_SEEDS") {
            Some(_) => 6,
            None => few,
        }
    }

    /// The shares of two transfers over a bottleneck with a buffer of one bandwidth-delay product.
    fn shares(seed: u64, first: CongestionControl, second: CongestionControl) -> [f64; 2] {
        let mut scenario = Scenario::bottleneck(seed, first, 2, Duration::from_secs(60));
        scenario.transfers[1].options.congestion = second;
        let bytes = World::new(scenario, false).run().bytes_by_flow;
        let sum = (bytes[0] + bytes[1]) as f64;
        // 20 Mbit/s for a minute is 150 MB.
        assert!(sum > 110e6, "{sum} bytes");
        [bytes[0] as f64 / sum, bytes[1] as f64 / sum]
    }

    /// BBR gets about half beside BBR, whichever transfer begins first, and beside a loss-based
    /// competitor. The share of a single transfer depends on the times of BBR's probes, most beside
    /// NewReno.
    #[test]
    fn bbr_shares_a_bottleneck_with_itself_and_with_others() {
        use CongestionControl::{Bbr, Cubic, NewReno};
        let cases = [
            (Bbr, 0.45..0.55, 0.4),
            (Cubic, 0.45..0.55, 0.4),
            (NewReno, 0.45..0.65, 0.2),
        ];
        for (other, mean, least) in cases {
            let all: Vec<_> = (0..seeds(3)).map(|seed| shares(seed, Bbr, other)).collect();
            let bbr = all.iter().map(|[bbr, _]| bbr).sum::<f64>() / all.len() as f64;
            let is_fair = all.iter().flatten().all(|&share| share >= least);
            assert!(mean.contains(&bbr), "{bbr:.2} against {other:?}, {all:.2?}");
            assert!(is_fair, "against {other:?}: {all:.2?}");
        }
    }

    /// Where jitter brings acknowledgements closer together, BBR does not take the rate of a moment
    /// for the path's, and leaves CUBIC its share.
    #[test]
    fn bbr_shares_a_bottleneck_with_cubic_over_a_path_with_jitter() {
        let share = |seed| {
            let time = Duration::from_secs(60);
            let mut scenario = Scenario::bottleneck(seed, CongestionControl::Bbr, 2, time);
            scenario.transfers[1].options.congestion = CongestionControl::Cubic;
            let bytes = World::new(scenario.with_jitter(JITTER), false)
                .run()
                .bytes_by_flow;
            bytes[0] as f64 / (bytes[0] + bytes[1]) as f64
        };
        let all: Vec<_> = (0..4).map(share).collect();
        let mean = all.iter().sum::<f64>() / 4.0;
        let is_fair = all.iter().all(|share| (0.4..0.6).contains(share));
        assert!((0.45..0.55).contains(&mean) && is_fair, "{all:.2?}");
    }

    /// The time of two packets at the bottleneck.
    const JITTER: Duration = Duration::from_micros(1_200);
    const JITTER_AT_100_MBIT: Duration = Duration::from_micros(240);

    /// The bytes of the transfer, and those of the sender of another implementation.
    fn bytes_beside_rival(scenario: Scenario) -> [f64; 2] {
        let report = World::new(scenario, false).run();
        [report.bytes_by_flow[0], report.rival_bytes[0]].map(|bytes| bytes as f64)
    }

    /// The share of a bottleneck that a transfer gets beside a sender of another implementation.
    /// The buffer holds one bandwidth-delay product.
    fn share_beside(seed: u64, congestion: CongestionControl, rival: RivalKind) -> f64 {
        let scenario = Scenario::bottleneck(seed, congestion, 1, Duration::from_secs(60));
        let [bytes, others] = bytes_beside_rival(scenario.with_jitter(JITTER).beside(rival));
        // 20 Mbit/s for a minute is 150 MB.
        assert!(bytes + others > 110e6, "{bytes} and {others} bytes");
        bytes / (bytes + others)
    }

    fn mean_share_beside(seeds: u64, congestion: CongestionControl, rival: RivalKind) -> f64 {
        let shares = (0..seeds).map(|seed| share_beside(seed, congestion, rival));
        shares.sum::<f64>() / seeds as f64
    }

    /// BBR keeps its share beside a sender that ignores loss, and leaves a share to senders that
    /// react to loss.
    #[test]
    fn bbr_shares_a_bottleneck_with_the_senders_of_others() {
        for (most, rival) in [
            (0.65, RivalKind::BbrOne),
            (0.55, RivalKind::Cubic),
            (0.6, RivalKind::Reno),
        ] {
            let share = mean_share_beside(seeds(3), CongestionControl::Bbr, rival);
            assert!((0.4..most).contains(&share), "{share:.2} beside {rival:?}");
        }
    }

    /// Both begin at one moment, at 100 Mbit/s. BBR soon has about its share.
    #[test]
    fn bbr_gets_a_share_in_the_first_seconds() {
        for rival in [RivalKind::BbrOne, RivalKind::Cubic] {
            let share = |seed| {
                let time = Duration::from_secs(15);
                let mut scenario = Scenario::bottleneck(seed, CongestionControl::Bbr, 1, time);
                let link = &mut scenario.impairments[0];
                (link.bytes_per_ms, link.queue_bytes_max) = (12_500, 500_000);
                let scenario = scenario.with_jitter(JITTER_AT_100_MBIT).beside(rival);
                let [bytes, others] = bytes_beside_rival(scenario);
                bytes / (bytes + others)
            };
            let all: Vec<_> = (0..6).map(share).collect();
            let mean = all.iter().sum::<f64>() / 6.0;
            assert!((0.38..0.55).contains(&mean), "{all:.2?} beside {rival:?}");
        }
    }

    #[test]
    fn cubic_shares_a_bottleneck_with_the_senders_of_others() {
        for (seeds, rival) in [(3, RivalKind::Cubic), (2, RivalKind::Reno)] {
            let share = mean_share_beside(seeds, CongestionControl::Cubic, rival);
            assert!((0.45..0.55).contains(&share), "{share:.2} beside {rival:?}");
        }
    }

    /// A radio link gathers frames: many acknowledgements arrive at once, at intervals longer than
    /// the shortest round trip.
    #[test]
    fn bbr_keeps_its_rate_where_acknowledgements_are_gathered() {
        for (round_trip_ms, gathers_ms) in [(2, 10), (4, 20)] {
            let path = (Duration::from_millis(round_trip_ms), 2_500);
            let [from, to] = [4, 8].map(Duration::from_secs);
            let mut scenario = Scenario::long_path(7, path, 1 << 20, to)
                .with_gathered_answers(Duration::from_millis(gathers_ms));
            scenario.transfers[0].options.congestion = CongestionControl::Bbr;
            scenario.impairments[0].queue_bytes_max = 100_000;
            let bytes = World::new(scenario, false).bytes_by([from, to]);
            let rate = (bytes[1] - bytes[0]) as f64 / (to - from).as_secs_f64() / 2.5e6;
            println!("{round_trip_ms} {gathers_ms}: {rate:.3}");
            assert!(rate >= 0.8, "{rate:.2} of the path, {gathers_ms} ms");
        }
    }

    /// Startup overflows the buffer, and some of its losses are noticed a round later. They must
    /// not lower the bound on bytes in flight again, which takes several probes to grow back.
    #[test]
    fn bbr_fills_a_path_with_jitter_after_startup() {
        for (jitter_ms, buffer_bytes) in [(10, 50_000), (20, 100_000)] {
            let used = |seed| {
                let time = Duration::from_secs(10);
                let mut scenario = Scenario::bottleneck(seed, CongestionControl::Bbr, 1, time)
                    .with_jitter(Duration::from_millis(jitter_ms));
                scenario.impairments[0].queue_bytes_max = buffer_bytes;
                World::new(scenario, false).run().bytes_by_flow[0] as f64 / 25e6
            };
            let all: Vec<_> = (0..8).map(used).collect();
            println!("{jitter_ms} ms: {all:.3?}");
            assert!(all.iter().all(|&used| used >= 0.75), "{all:.3?}");
        }
    }

    /// A burst of a whole window is more than the buffer holds, where acknowledgements are gathered
    /// for half of the round trip: without pacing, CUBIC uses 42 % of this path.
    #[test]
    fn cubic_fills_a_path_that_gathers_acknowledgements_if_it_is_paced() {
        let path = (Duration::from_millis(20), 2_500);
        let [from, to] = [2, 8].map(Duration::from_secs);
        let mut scenario = Scenario::long_path(7, path, 1 << 20, to)
            .with_gathered_answers(Duration::from_millis(20));
        scenario.transfers[0].options.pacing = true;
        let bytes = World::new(scenario, false).bytes_by([from, to]);
        let rate = (bytes[1] - bytes[0]) as f64 / (to - from).as_secs_f64() / 2.5e6;
        assert!(rate >= 0.9, "{rate:.3} of the path");
    }

    /// Jitter looks like a queue, and HyStart++ ends slow start early. With a window that hardly
    /// grew at first, two of these seeds used 27 % of the path.
    #[test]
    fn cubic_fills_a_path_whose_jitter_ends_slow_start_early() {
        let used = |seed| {
            let path = (Duration::from_millis(40), 12_500);
            let end = Duration::from_secs(4);
            let mut scenario = Scenario::long_path(seed, path, 16 << 20, end);
            scenario.impairments[0].jitter = Duration::from_millis(20);
            scenario.transfers[0].options.pacing = true;
            World::new(scenario, false).run().bytes_by_flow[0] as f64 / (4e3 * 12_500.0)
        };
        let all: Vec<_> = (0..8).map(used).collect();
        assert!(all.iter().all(|&used| used >= 0.6), "{all:.2?}");
    }

    /// Two transfers by the engine's CUBIC get similar shares. The first one begins 100 ms earlier,
    /// and has 53 % in the mean of 40 seeds, with a standard deviation of 3.5.
    #[test]
    fn cubic_shares_a_bottleneck_with_itself() {
        use CongestionControl::Cubic;
        const SEEDS: u64 = 12;
        let share_of_first = |seed| {
            let scenario = Scenario::bottleneck(seed, Cubic, 2, Duration::from_secs(60));
            let bytes = World::new(scenario.with_jitter(JITTER), false)
                .run()
                .bytes_by_flow;
            bytes[0] as f64 / (bytes[0] + bytes[1]) as f64
        };
        let shares: Vec<_> = (0..SEEDS).map(share_of_first).collect();
        let mean = shares.iter().sum::<f64>() / SEEDS as f64;
        assert!((0.45..0.55).contains(&mean), "{mean:.3}: {shares:.2?}");
        assert!(
            shares.iter().all(|share| (0.35..0.65).contains(share)),
            "{shares:.2?}"
        );
    }

    /// Three timeouts in a row are no sign of a smaller path MTU: a second after an outage the rate
    /// is as before.
    #[test]
    fn the_rate_is_back_a_second_after_an_outage() {
        use CongestionControl::{Bbr, Cubic, NewReno};
        for congestion in [Cubic, NewReno, Bbr] {
            let mut shares = [0.0; 4];
            for (seed, share) in (0..).zip(&mut shares) {
                let second = Duration::from_secs(1);
                let begins = Duration::from_millis(6_000 + 37 * seed);
                let ends = begins + Duration::from_millis(2_500);
                let stop = ends + second + second;
                let early = Duration::from_secs(4);
                let moments = [early, early + second, ends + second, stop];
                let scenario = Scenario::outage(seed, congestion, (begins, ends), stop);
                let bytes = World::new(scenario, false).bytes_by(moments);
                let before = (bytes[1] - bytes[0]) as f64;
                // BBR drains the path from time to time, to measure it.
                let least_before = if congestion == Bbr { 10.5e6 } else { 11e6 };
                assert!(before > least_before, "{congestion:?}: {before}");
                *share = (bytes[3] - bytes[2]) as f64 / before;
            }
            let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
            println!("{congestion:?}: at least {least:.3} of the rate before");
            assert!(least >= 0.95, "{congestion:?}: {shares:.3?}");
        }
    }

    /// The receive window is no limit while the remote is in slow start. When the window was at
    /// most twice the bytes of a round, it grew by 2^0.5 in each round trip, and these numbers were
    /// 3.5, 4.5 and 4.5.
    #[test]
    fn slow_start_is_not_limited_by_the_receive_window() {
        let round_trip = Duration::from_millis(100);
        let end = round_trip * 15;
        for (queue_percent, least) in [(50, 5.0), (200, 7.0), (400, 7.0)] {
            let mut scenario = Scenario::long_path(7, (round_trip, 12_500), 32 << 20, end);
            scenario.impairments[0].queue_bytes_max = 12_500 * queue_percent;
            let [bytes] = World::new(scenario, false).bytes_by([end]);
            let products = bytes as f64 / 1.25e6;
            println!("{queue_percent} %: {products:.2}");
            assert!(products >= least, "{products:.2}, {queue_percent} %");
        }
    }

    /// A server's window is tuned by the round trip from the beginning. When its first round took
    /// 100 ms, the client was limited to 64 KB until then, and BBR took that limit for the path's:
    /// these numbers were 0.4 MB for both, and then 10.5 MB for CUBIC and 1.8 MB for BBR.
    #[test]
    fn a_window_is_tuned_in_the_first_round_trips() {
        let path = (Duration::from_millis(10), 64_000);
        for congestion in [CongestionControl::Cubic, CongestionControl::Bbr] {
            let moments = [90, 300].map(Duration::from_millis);
            let mut scenario = Scenario::long_path(7, path, 32 << 20, moments[1]);
            scenario.transfers[0].options.congestion = congestion;
            let bytes = World::new(scenario, false).bytes_by(moments);
            // 300 ms are 19.2 MB.
            let is_fast = bytes[0] >= 1_000_000 && bytes[1] >= 12_000_000;
            assert!(is_fast, "{congestion:?}: {bytes:?}");
        }
    }

    /// Slow start overflows the queue of a long fast path, and every second segment of a flight is
    /// lost. The receiver keeps the others. With room for 128 gaps, it dropped most of them, and
    /// these numbers were 15.5 and 16.1.
    #[test]
    fn a_slow_start_that_loses_every_second_segment_is_repaired() {
        const BYTES_PER_MS: u64 = 64_000;
        let round_trip = Duration::from_millis(40);
        let end = round_trip * 30;
        for (seed, queue_percent) in [(0, 50), (1, 50), (2, 200), (3, 200)] {
            let path = (round_trip, BYTES_PER_MS);
            let mut scenario = Scenario::long_path(seed, path, 32 << 20, end);
            // The time of two packets.
            scenario.impairments[0].jitter = Duration::from_micros(46);
            scenario.impairments[0].queue_bytes_max = BYTES_PER_MS * 40 * queue_percent / 100;
            // The window is no limit.
            scenario.server_options.receive_bytes = 32 << 20;
            let [bytes] = World::new(scenario, false).bytes_by([end]);
            let products = bytes as f64 / (40 * BYTES_PER_MS) as f64;
            println!("{queue_percent} %: {products:.1}");
            assert!(products >= 18.0, "{products:.1} of 30 products");
        }
    }

    /// A window of a megabyte is a tenth of the bytes in flight on a long fast path: windows must
    /// grow to the bandwidth-delay product.
    #[test]
    fn windows_reach_bandwidth_times_delay() {
        // 512 Mbit/s: 6.4 MB are in flight when the round trip takes 100 ms.
        const BYTES_PER_MS: u64 = 64_000;
        for (round_trip_ms, from, to) in [(10, 500, 700), (40, 1_000, 1_300), (100, 3_000, 3_400)] {
            let path = (Duration::from_millis(round_trip_ms), BYTES_PER_MS);
            let [from, to] = [from, to].map(Duration::from_millis);
            let scenario = Scenario::long_path(7, path, 32 << 20, to);
            let bytes = World::new(scenario, false).bytes_by([from, to]);
            let rate = (bytes[1] - bytes[0]) as f64 / (to - from).as_secs_f64();
            // Headers take 52 of 1500 bytes.
            let most = 1e3 * BYTES_PER_MS as f64 * 1_448.0 / 1_500.0;
            assert!(rate >= 0.95 * most, "{round_trip_ms} ms: {rate} of {most}");
        }
    }
}
