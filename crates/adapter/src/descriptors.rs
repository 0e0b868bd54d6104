//! The division of the adapter's limit of descriptors.
//!
//! A client needs two descriptors, and with the system adapter one more for its table. A pair of
//! processes needs one, and one for each eight of its channels. Each connection of an engine needs
//! one for its carrier. There may be thousands of channels, and thousands of carriers, because
//! remotes connect. Each kind has a limit of its own, so that the adapter can still serve its
//! programs.

use crate::listener::number_of;
use rustix::fs::fcntl_get_seals;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::os::fd::BorrowedFd;

/// Whether closing a descriptor from another process cannot block, or only until a signal comes,
/// because the file is a socket of TCP, a Unix socket, a netlink socket, or a file in memory. The
/// kernel waits at the end of other sockets: for a grace period (`synchronize_net` for a packet
/// socket), or for its lock of all network devices (`ip_mc_drop_socket` for a socket of UDP). The
/// check itself does not involve the file's owner.
pub(crate) fn closes_at_once(descriptor: BorrowedFd<'_>) -> bool {
    let option = |name| number_of(descriptor, name);
    match option(libc::SO_DOMAIN) {
        Ok(libc::AF_UNIX | libc::AF_NETLINK) => true,
        Ok(libc::AF_INET | libc::AF_INET6) => {
            option(libc::SO_PROTOCOL).is_ok_and(|protocol| protocol == libc::IPPROTO_TCP)
        }
        Ok(_) => false,
        Err(_) => fcntl_get_seals(descriptor).is_ok(),
    }
}

/// Raises the limit of descriptors to the hard limit.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // On an error the limit stays. The adapter then serves fewer clients, and reports that when it
    // happens.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The number of descriptors that the memory of pairs and channels may take.
pub(crate) fn memory_max(has_engine: bool) -> usize {
    let most = most();
    if has_engine {
        most / 4
    } else {
        most - most / 4
    }
}

/// The most carriers of an engine by this limit. One program may have three quarters of them:
/// 10,000 connections with 20,000 descriptors.
pub(crate) fn carriers_max() -> usize {
    most() / 10 * 7
}

fn most() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::fs::File;
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_what_the_library_sends_is_closed() {
        let closes = |file: OwnedFd| closes_at_once(file.as_fd());
        assert!(closes(
            TcpListener::bind("127.0.0.1:0").expect("bound").into()
        ));
        assert!(closes(UnixStream::pair().expect("a pair").0.into()));
        assert!(closes(crate::memfd::create(c"memory", 1).expect("a file")));
        let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, None);
        assert!(closes(netlink.expect("a socket")));
        assert!(!closes(
            UdpSocket::bind("127.0.0.1:0").expect("bound").into()
        ));
        assert!(!closes(File::open("/dev/null").expect("a file").into()));
        match socket(AddressFamily::PACKET, SocketType::RAW, None) {
            Ok(packets) => assert!(!closes(packets)),
            Err(why) => eprintln!("SKIPPED: a packet socket: {why}"),
        }
    }
}
