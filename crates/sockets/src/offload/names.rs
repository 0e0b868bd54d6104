//! The addresses that a program sees. For an offloaded connection they are those of the engine's
//! TCP connection, not those of the carrier.

use libc::{sockaddr_storage, socklen_t};
use toehold_channel::offload::{Address, true_ends};
use toehold_channel::table::{FLAG_CONNECTING, FLAG_OFFLOAD};

use crate::connection::Connection;
use crate::connection::orderings::OFFLOAD_ACQUIRE;
use crate::offload::{addresses, awaiting};
use crate::system::sys;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// `getsockname(2)`.
    Local,
    /// `getpeername(2)`, `accept(2)`.
    Remote,
}

/// The remote's address of a connection through the engine, also after its end; `None` for another
/// connection.
pub(crate) fn remote_by_engine(connection: &Connection) -> Option<Address> {
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    (flags & FLAG_OFFLOAD != 0).then(|| true_ends(connection.entry).1)
}

/// The answer to a program that asks for the address of an end of an offloaded connection; `None`
/// when the kernel must answer.
pub(crate) fn answer(
    connection: &Connection,
    side: Side,
) -> Option<Result<(sockaddr_storage, socklen_t), i32>> {
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    if flags & FLAG_OFFLOAD == 0 {
        return None;
    }
    if flags & FLAG_CONNECTING != 0 {
        awaiting::look(connection);
    }
    let is_connecting = connection.entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_CONNECTING != 0;
    let (local, remote) = true_ends(connection.entry);
    match side {
        Side::Remote if is_connecting => Some(Err(libc::ENOTCONN)),
        // After a reset, or when both ends have closed, the kernel has no address for that end
        // either.
        Side::Remote if sys::socket_address(connection.fd, true).is_err() => None,
        Side::Remote => Some(Ok(addresses::sockaddr_for(connection.fd, remote))),
        Side::Local => Some(Ok(addresses::sockaddr_for(connection.fd, local))),
    }
}
