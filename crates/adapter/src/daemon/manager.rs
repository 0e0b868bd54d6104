//! A service manager. It may pass a listening socket to the adapter (sd_listen_fds(3)). The adapter
//! tells it when it serves, which features it lacks, and when it ends (sd_notify(3)).
//!
//! Only an adapter in the foreground uses a service manager. An adapter that `toehold run` has
//! started inside a service inherits that service's variables, but must not use them.

use sd_notify::NotifyState;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The connection to a service manager, if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manager {
    listens: bool,
}

impl Manager {
    /// The service manager of an adapter in the foreground; none for others.
    pub(super) fn of(foreground: bool) -> Manager {
        Manager {
            listens: foreground,
        }
    }

    /// The listening socket that the manager has passed. It is returned only at the first call.
    pub(super) fn listener(self) -> io::Result<Option<OwnedFd>> {
        static IS_TAKEN: AtomicBool = AtomicBool::new(false);
        // Relaxed: nothing else is guarded by it.
        if !self.listens || IS_TAKEN.swap(true, Ordering::Relaxed) {
            return Ok(None);
        }
        let mut passed = sd_notify::listen_fds()?;
        if passed.len() > 1 {
            let why = "more than one socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // SAFETY: the manager opened it for this process alone, by LISTEN_PID, and nobody else
        // takes it.
        Ok(passed.next().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The adapter serves programs; `lacks` is why it has no TCP engine although it was given one.
    pub(super) fn ready(self, lacks: Option<&str>) {
        let status = match lacks {
            Some(why) => format!("serving this host's connections; no TCP engine: {why}"),
            None => "serving".to_owned(),
        };
        self.notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    }

    /// The adapter is about to end.
    pub(super) fn stopping(self) {
        self.notify(&[NotifyState::Stopping]);
    }

    fn notify(self, states: &[NotifyState<'_>]) {
        if self.listens {
            // Errors are ignored: there may be no manager, and a manager that does not answer is
            // not our fault.
            let _ = sd_notify::notify(states);
        }
    }
}
