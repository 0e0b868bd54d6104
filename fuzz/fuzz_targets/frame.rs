//! Bytes from the link: frames of every kind on Ethernet and on bare IP, accepted or refused. See
//! `conversation`, which the crate's own tests share.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tcp/tests/it/conversation.rs"]
#[allow(dead_code)] // The other half is for the other target.
mod conversation;

fuzz_target!(|bytes: &[u8]| {
    conversation::frames(bytes);
});
