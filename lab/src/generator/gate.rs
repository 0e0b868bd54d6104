//! A gate at which a client waits for the process that started it. It waits before its warm-up, so
//! that several clients begin at the same time. It waits again before it closes its connections, so
//! that their memory can be measured.
//!
//! The gate is a Unix socket of the starter. A client connects to it, and continues when the
//! starter closes the connection.

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
