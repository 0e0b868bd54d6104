//! Words for the person: results on standard output, progress and warnings on standard error.
//!
//! `println!` and `eprintln!` end the process where they cannot write. A reader that has left or a
//! full disk must end neither a program that is about to start nor a measurement.

use std::io::{self, ErrorKind, Write};

/// Writes a result to standard output; `false` when its reader has left (`| head`), which is no
/// failure.
///
/// # Errors
///
/// When it cannot be written.
pub fn print(text: impl AsRef<[u8]>) -> io::Result<bool> {
    print_by(|| io::stdout().write_all(text.as_ref()))
}

/// As [`print`], of a result that `write` writes to standard output.
///
/// # Errors
///
/// When it cannot be written.
pub fn print_by(write: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
    match write().and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes to standard error, as far as that takes it.
pub fn tell(text: impl AsRef<[u8]>) {
    let _ = io::stderr().write_all(text.as_ref());
}

/// Writes a line to standard error, as far as that takes it.
pub fn tell_line(text: impl AsRef<str>) {
    tell(format!("{}\n", text.as_ref()));
}
