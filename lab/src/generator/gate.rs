//! Where a client waits for whoever started it: before its warm-up, so that several clients begin
//! at once, and before it closes its connections, so that their memory can be counted meanwhile.
//!
//! The gate is a Unix socket of the starter's. A client that has come so far connects there; its
//! connection ends when it may go on.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The socket's path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gate(pub PathBuf);

impl Gate {
    /// Waits until the client may go on.
    pub(super) fn pass(&self) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.0)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

/// Other clients may still open their connections.
const TIMEOUT: Duration = Duration::from_secs(300);
