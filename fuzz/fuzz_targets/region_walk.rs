//! A script rewrites a region between the calls of the region's other end: see `walk.rs`, which the
//! crate's own tests share.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/stream/tests/support/mod.rs"]
mod support;

fuzz_target!(|script: &[u8]| {
    support::walk::walk(script);
});
