//! Output for the user: results on standard output, progress and warnings on standard error.
//!
//! `println!` and `eprintln!` end the process if they cannot write. A reader that has ended or a
//! full disk must not stop a program that is about to start, nor a measurement.

use std::io::{self, ErrorKind, Write};

/// Writes a result to standard output. `false` when its reader has ended (`| head`), which is not a
/// failure.
///
/// # Errors
///
/// When the result cannot be written.
pub fn print(text: impl AsRef<[u8]>) -> io::Result<bool> {
    print_by(|| io::stdout().write_all(text.as_ref()))
}

/// [`print`] for a result that `write` writes to standard output.
///
/// # Errors
///
/// When the result cannot be written.
pub fn print_by(write: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
    match write().and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes to standard error, as far as that is possible.
pub fn tell(text: impl AsRef<[u8]>) {
    let _ = io::stderr().write_all(text.as_ref());
}

/// Writes a line to standard error, as far as that is possible.
pub fn tell_line(text: impl AsRef<str>) {
    tell(format!("{}\n", text.as_ref()));
}
