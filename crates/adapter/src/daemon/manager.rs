//! Messages to a service manager, by the protocol of sd_notify(3): when the adapter serves, which
//! features it lacks, when it leaves.
//!
//! Only an adapter in the foreground speaks: one that `toehold run` has started inside a service
//! inherits that service's socket and has nothing to say there.

use sd_notify::NotifyState;

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
