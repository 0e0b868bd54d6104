//! A service manager. It may have a listening socket for the adapter (sd_listen_fds(3)), and is
//! told when the adapter serves, which features it lacks, when it leaves (sd_notify(3)).
//!
//! Only an adapter in the foreground deals with one: one that `toehold run` has started inside a
//! service inherits that service's socket and has nothing to say there.

use sd_notify::NotifyState;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The socket of a service manager, if there is one to be told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manager {
    listens: bool,
}

impl Manager {
    /// That of an adapter in the foreground, or of none.
    pub(super) fn of(foreground: bool) -> Manager {
        Manager {
            listens: foreground,
        }
    }

    /// The listening socket that it has for us, the first time that it is asked for.
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
        self.tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
    }

    /// It leaves.
    pub(super) fn stopping(self) {
        self.tell(&[NotifyState::Stopping]);
    }

    fn tell(self, states: &[NotifyState<'_>]) {
        if self.listens {
            // Without a manager there is nobody to tell, and one that does not answer is not our
            // failure.
            let _ = sd_notify::notify(states);
        }
    }
}
