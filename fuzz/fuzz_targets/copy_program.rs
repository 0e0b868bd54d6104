//! Programs for a copy channel whose engine misbehaves: see `program.rs`, which the crate's own
//! tests share.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/copy/tests/support/mod.rs"]
mod support;

fuzz_target!(|program: &[u8]| {
    support::program::play(program);
});
