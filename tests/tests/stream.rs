//! Checked random traffic, in both directions, during events that affect the connection.

use std::time::Duration;

use toehold_e2e::load::Random;
use toehold_e2e::{Checked, Sides, Toehold, host, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs a connection to its end and checks that both ends report every byte as right.
fn whole(toehold: &Toehold, sides: Sides, name: &str, seed: u64, bytes: u64) {
    let checked = Checked::start(toehold, sides, PROGRAM, (name, seed, bytes, false));
    for end in [checked.client, checked.server] {
        let said = end.success(TIME_LIMIT);
        assert!(
            said.contains(&format!("received {bytes}, then EOF")),
            "{name}, seed {seed}: {said}"
        );
        assert!(
            said.contains(&format!("sent {bytes}, all")),
            "{name}, seed {seed}: {said}"
        );
    }
}

#[test]
fn checked_traffic_is_right_on_the_kernel() {
    let toehold = Toehold::absent();
    for seed in 0..host::rounds(3) {
        whole(
            &toehold,
            Sides::HOST,
            &format!("host{seed}"),
            seed,
            60_000_000,
        );
    }
}

#[test]
fn checked_traffic_is_right_on_rings() {
    let toehold = Toehold::start();
    for seed in 0..host::rounds(6) {
        whole(
            &toehold,
            Sides::DIRECT,
            &format!("direct{seed}"),
            seed,
            200_000_000,
        );
    }
}

#[test]
fn checked_traffic_is_right_with_one_accelerated_side() {
    let toehold = Toehold::start();
    for seed in 0..host::rounds(2) {
        whole(
            &toehold,
            Sides::SERVER_ONLY,
            &format!("server{seed}"),
            seed,
            30_000_000,
        );
        whole(
            &toehold,
            Sides::CLIENT_ONLY,
            &format!("client{seed}"),
            seed,
            30_000_000,
        );
    }
}

#[test]
fn nothing_is_lost_while_an_operator_detaches_and_attaches_thousands_of_times() {
    let toehold = Toehold::start();
    let rounds = host::rounds(2000);
    let run = ("switched", 42, 0, false);
    let mut checked = Checked::start(&toehold, Sides::DIRECT, PROGRAM, run);
    let mut random = Random::new(1);
    let (mut commands, mut progress) = (0, 0);
    for round in 0..rounds {
        commands += u64::from(toehold.detach_all());
        std::thread::sleep(Duration::from_micros(random.below(800)));
        commands += u64::from(toehold.attach_all());
        std::thread::sleep(Duration::from_micros(random.below(1500)));
        if round % 200 == 199 {
            // Bytes must have moved in both directions meanwhile; otherwise the switches have
            // stopped the traffic.
            let moved = |checked: &Checked| {
                checked
                    .server_counters()
                    .received
                    .min(checked.client_counters().received)
            };
            let goes_on = wait_until(TIME_LIMIT, || checked.over() || moved(&checked) > progress);
            assert!(
                goes_on && !checked.over(),
                "round {round}: stopped at {progress}\n{}\n{}\n{:?}",
                checked.server.outputs(),
                checked.client.outputs(),
                toehold.connections(),
            );
            progress = moved(&checked);
        }
    }
    let connections = toehold.connections();
    let switches: u64 = connections
        .iter()
        .map(|connection| connection.count("upgrades") + connection.count("downgrades"))
        .sum();
    eprintln!("{commands} commands, {switches} switches, {progress} bytes each way");
    assert!(
        switches > rounds / 64,
        "the commands hardly ever had an effect: {switches} switches"
    );
    // The client ends; the server has checked all bytes that came.
    checked.client.signal(libc::SIGTERM);
    let said = checked.server.success(TIME_LIMIT);
    assert!(said.contains("received"), "{said}");
}
