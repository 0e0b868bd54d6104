//! Clients that come by way of their family: forked children that cannot find us by themselves.
//!
//! A forked child may have changed its user or its root directory before it has a connection to ask for. What it
//! inherited of its parent still leads to us: over that it sends one end of a fresh socket pair, and is served there. It
//! is believed what its parent was believed, for the one table that they share.

use super::Daemon;
use super::connection::Voucher;
use super::connections::Fault;
use crate::listener::{check, number_of};
use crate::registry::ClientId;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

impl Daemon {
    /// Serves a socket as if it had been accepted, on its sender's word.
    pub(super) fn handle_adopt(&mut self, id: ClientId, socket: OwnedFd) -> Result<(), Fault> {
        let parent = &self.clients[&id];
        let table = parent.table.ok_or(Fault::OutOfTurn)?;
        let uid = parent.policy_uid();
        prepare(socket.as_fd()).map_err(|_| Fault::Descriptors)?;
        self.admit(socket, Some(Voucher { uid, table }));
        Ok(())
    }
}

/// Makes a socket from elsewhere like one that the listener accepted.
///
/// # Errors
/// When it is no such socket, or not connected: then it would never end.
fn prepare(socket: BorrowedFd<'_>) -> io::Result<()> {
    let domain = number_of(socket, libc::SO_DOMAIN)?;
    let kind = number_of(socket, libc::SO_TYPE)?;
    if (domain, kind) != (libc::AF_UNIX, libc::SOCK_SEQPACKET) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut length = 0;
    // SAFETY: no room for an address is promised, so none is written.
    check(unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        libc::getpeername(socket.as_raw_fd(), (&raw mut address).cast(), &mut length)
    })?;
    // SAFETY: plain system calls.
    check(unsafe {
        let flags = libc::fcntl(socket.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    })
}
