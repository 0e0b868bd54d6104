//! Whole conversations: a remote that sends nearly valid segments, a host, and time. See
//! `conversation`, which the crate's own tests share.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tcp/tests/it/conversation.rs"]
#[allow(dead_code)] // The other half is for the other target.
mod conversation;

fuzz_target!(|program: &[u8]| {
    let _ = conversation::converse(program);
});
