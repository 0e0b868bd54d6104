//! Replays the inputs that the fuzzers keep (`fuzz/`), so that an ordinary test run has them, too.

#![cfg(not(loom))]

mod support;

use std::path::Path;

use support::walk::walk;
use toehold_channel::rendezvous::Message;

fn inputs(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

#[test]
fn every_kept_message_parses_or_is_refused() {
    let answers: Vec<_> = inputs("message")
        .iter()
        .map(|bytes| Message::parse(bytes).is_ok())
        .collect();
    assert!(answers.contains(&true) && answers.contains(&false));
}

#[test]
fn every_kept_walk_ends() {
    for script in inputs("walk") {
        walk(&script);
    }
}
