//! Replays the inputs that the fuzzers keep (`fuzz/`), so that an ordinary test run has them, too.

#![cfg(not(loom))]

#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::inputs;
use toehold_channel::rendezvous::Message;

#[test]
fn every_kept_message_parses_or_is_refused() {
    let answers: Vec<_> = inputs("message")
        .iter()
        .map(|bytes| Message::parse(bytes).is_ok())
        .collect();
    assert!(answers.contains(&true) && answers.contains(&false));
}
