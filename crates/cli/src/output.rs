//! Results and warnings of this command: all printing is done here.

use std::fmt::Display;
use std::io;

use serde::Serialize;
use toehold_measure::output;

use crate::failure::Failure;

/// Writes a result to standard output. `false` when its reader has ended (`| head`), which is not a
/// failure.
///
/// # Errors
///
/// When the result cannot be written.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<bool, Failure> {
    output::print(text).map_err(cannot_write)
}

/// [`print`] for a result that `write` writes to standard output.
///
/// # Errors
///
/// When the result cannot be written.
pub(crate) fn print_by(write: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
    output::print_by(write).map(drop).map_err(cannot_write)
}

fn cannot_write(error: io::Error) -> Failure {
    Failure::new(format!("cannot write: {error}"))
}

/// Writes a result as JSON to standard output.
///
/// # Errors
///
/// When the result cannot be written.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(format!("cannot write as JSON: {error}")))?;
    print(json + "\n").map(drop)
}

/// Writes a warning to standard error, if that is possible.
pub(crate) fn warn(sentence: impl Display) {
    output::tell_line(format!("toehold: {sentence}"));
}
