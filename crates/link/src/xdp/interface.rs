//! The interface that frames are steered on.

use std::io;
use std::thread;
use std::time::Duration;

use super::error::XdpError;
use crate::interface::{Interfaces, Queues};

/// An interface of the network namespace it was found in.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    /// Queues that it receives and sends by.
    pub(super) queues: Queues,
    /// It is one end of a veth.
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

/// Takes an interface or one of its queues. Whoever had it, and is gone, has it for a moment
/// longer: the kernel lets go of a queue by a worker of its own (`xp_put_pool`).
pub(super) fn take<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BUSY_ATTEMPTS {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(BUSY_PAUSE),
            result => return result,
        }
    }
    attempt()
}

/// Together half a second.
const BUSY_ATTEMPTS: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(10);
