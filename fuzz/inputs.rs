//! The inputs that the fuzzers keep. Each test that replays them includes this file as a module.

use std::fs;
use std::path::Path;

/// Every input in a folder of the crate's `tests/corpus`, in the order of their names.
pub(crate) fn inputs(folder: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let entries = fs::read_dir(corpus.join(folder)).expect("the corpus is part of the crate");
    let files = entries.map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} has inputs");
    let bytes = files.iter().map(|file| fs::read(file).expect("readable"));
    bytes.collect()
}
