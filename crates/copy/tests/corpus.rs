//! Replays the programs that the fuzzer keeps (`fuzz/`), so that an ordinary test run covers them,
//! too; and plays some more.

#[path = "../../../fuzz/inputs.rs"]
mod inputs;
mod support;

use inputs::inputs;
use support::program::{HEADER_BYTES, STEP_BYTES, play};

#[test]
fn every_kept_program_leaves_what_plain_copies_leave() {
    let (mut submitted, mut refused) = (0, 0);
    for program in inputs("program") {
        let played = play(&program);
        submitted += played.submitted;
        refused += played.refused;
    }
    assert!(submitted > 0 && refused > 0);
}

#[test]
fn any_bytes_are_a_program() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    for length in 0..200 {
        let program: Vec<u8> = (0..length % 7 + HEADER_BYTES + length % 50 * STEP_BYTES)
            .map(|_| byte())
            .collect();
        play(&program);
    }
}
