//! The interface that frames are steered on.

use std::io;
use std::thread;
use std::time::Duration;

use super::error::XdpError;
use crate::interface::{Interfaces, Queues};

/// An interface of the network namespace in which it was found.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    /// The interface's receive and transmit queues.
    pub(super) queues: Queues,
    /// The interface is one end of a veth.
    pub(super) is_veth: bool,
}

impl Interface {
    /// Finds an interface of this thread's network namespace.
    pub(super) fn find(name: &str) -> Result<Self, XdpError> {
        let missing = |error| XdpError::Interface(name.to_owned(), error);
        let interfaces = Interfaces::here();
        let interfaces =
            interfaces.map_err(|error| XdpError::Setup("ask about interfaces", error))?;
        let mac = interfaces.ethernet_address(name).map_err(missing)?;
        Ok(Self {
            name: name.to_owned(),
            index: interfaces.index(name).map_err(missing)?,
            mac: mac.ok_or_else(|| XdpError::Medium(name.to_owned()))?,
            mtu: interfaces.mtu(name).map_err(missing)?,
            queues: interfaces.queues(name),
            is_veth: interfaces
                .driver(name)
                .is_ok_and(|driver| driver == *b"veth"),
        })
    }
}

/// Repeats `attempt` to take an interface or one of its queues while it is busy. After a socket is
/// closed, its queue stays busy for a moment: a kernel worker releases the queue (`xp_put_pool`).
pub(super) fn take<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BUSY_ATTEMPTS {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(BUSY_PAUSE),
            result => return result,
        }
    }
    attempt()
}

/// All attempts together take half a second.
const BUSY_ATTEMPTS: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(10);
