//! Checked random traffic, in both directions, while things happen to the connection.

use std::time::Duration;

use toehold_e2e::{Checked, Sides, Toehold, host};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a connection to its end and has both ends' word that every byte was right.
fn whole(toehold: &Toehold, sides: Sides, name: &str, seed: u64, bytes: u64) {
    let checked = Checked::start(toehold, sides, PROGRAM, (name, seed, bytes, false));
    for end in [checked.client, checked.server] {
        let said = end.success(PATIENCE);
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
