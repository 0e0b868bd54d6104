//! Sockets that a program binds to one of the engine's own addresses.
//!
//! The kernel does not have that address, and a carrier could not reach a socket bound to it. So
//! the socket is bound to the address's loopback alias, with the port the program wants; the
//! program is told the address it asked for. Only programs of this host connect to the alias:
//! because they want the engine's address ([`super::active_open`]), or because they use the alias
//! itself.

use libc::{sockaddr, sockaddr_storage, socklen_t};
use toehold_channel::offload::Address;
use toehold_channel::rendezvous::mapped;

use crate::offload::names::Side;
use crate::offload::{addresses, questions, routing};
use crate::system::sys;

/// The address to which a socket must be bound instead; `None`: the program's address is right.
///
/// # Safety
/// `address` is readable for `len` bytes.
pub(crate) unsafe fn alias(
    fd: i32,
    address: *const sockaddr,
    len: socklen_t,
) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: the caller's promise.
    let wanted = unsafe { addresses::read(address, len) }?;
    let is_everywhere = match wanted.v4() {
        Some([first, ..]) => first == 0 || first == 127,
        None => wanted.ip[..15] == [0; 15],
    };
    let option = |level, name| sys::getsockopt::<i32>(fd, level, name).unwrap_or(-1);
    if is_everywhere || option(libc::SOL_SOCKET, libc::SO_PROTOCOL) != libc::IPPROTO_TCP {
        return None;
    }
    let alias = questions::routing_page()?.alias_of(wanted.ip)?;
    if !questions::is_beside(fd) {
        return None;
    }
    if option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == 1 {
        // The loopback alias is always IPv4, even for an IPv6 address. Because a single address is
        // bound, no other IPv4 traffic comes with it.
        sys::setsockopt_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0);
    }
    Some(addresses::sockaddr_for(
        fd,
        Address {
            ip: mapped(alias),
            port: wanted.port,
        },
    ))
}

/// The address that a program bound, or connected to, when the kernel says that it is a loopback
/// alias.
pub(crate) fn true_name(fd: i32, side: Side) -> Option<(sockaddr_storage, socklen_t)> {
    let routing_page = routing::known_routing_page()?;
    let end = match side {
        Side::Local => addresses::local(fd)?,
        Side::Remote => addresses::remote(fd)?,
    };
    let ip = routing_page.behind(end.v4()?)?;
    let port = end.port;
    Some(addresses::sockaddr_for(fd, Address { ip, port }))
}
