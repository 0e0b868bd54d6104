//! Replays the inputs that the fuzzers keep (`fuzz/`), so that an ordinary test run covers them,
//! too.

#![cfg(not(loom))]

#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::inputs;
use toehold_channel::rendezvous::Message;
use toehold_channel::table::LAYOUT_VERSION;

/// The bytes as a fuzzer of this version would keep them.
fn of_this_version(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = std::mem::offset_of!(Message, version);
    let version = LAYOUT_VERSION.to_ne_bytes();
    if let Some(place) = bytes.get_mut(at..at + version.len()) {
        place.copy_from_slice(&version);
    }
    bytes
}

#[test]
fn every_kept_message_parses_or_is_refused() {
    let kept = inputs("message");
    let answers: Vec<_> = kept
        .into_iter()
        .flat_map(|bytes| [bytes.clone(), of_this_version(bytes)])
        .map(|bytes| Message::parse(&bytes).is_ok())
        .collect();
    assert!(answers.contains(&true) && answers.contains(&false));
}
