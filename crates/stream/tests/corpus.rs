//! Replays the inputs that the fuzzers keep (`fuzz/`), so that an ordinary test run covers them,
//! too.

#![cfg(not(loom))]

#[path = "../../../fuzz/inputs.rs"]
mod inputs;
mod support;

use inputs::inputs;
use support::walk::walk;

#[test]
fn every_kept_walk_ends() {
    for script in inputs("walk") {
        walk(&script);
    }
}
