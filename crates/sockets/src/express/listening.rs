//! Asks the kernel which socket listens at a destination (sock_diag(7)).

use core::net::{Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU64, Ordering};

use toehold_freestanding::diag::{TCP_LISTEN, TCP_QUESTION_BYTES, TcpQuestion, inode_in};

use super::destinations::{DESTINATIONS_MAX, Destination};
use crate::system::sys;

/// For each destination: the inode of its listening socket, or 0, and the time of that answer.
static ANSWERS: [(AtomicU64, AtomicU64); DESTINATIONS_MAX] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; DESTINATIONS_MAX];
/// A query costs 8 us, so answers are reused for this long. A new listener gets its first
/// connection at most this much later.
const BETWEEN_QUESTIONS_NS: u64 = 1_000_000;

/// Room for `struct nlmsghdr`, `struct inet_diag_msg` and what the kernel adds.
const ANSWER_BYTES_MAX: usize = 512;

/// The inode of the socket that listens at destination `number`, from a recent answer of the
/// kernel. The caller holds the lock.
pub(super) fn inode_at(number: u32, now: u64) -> Option<u64> {
    let destination = Destination::numbered(number)?;
    let (inode, asked_ns) = ANSWERS.get(number.checked_sub(1)? as usize)?;
    if now.saturating_sub(asked_ns.load(Ordering::Relaxed)) >= BETWEEN_QUESTIONS_NS {
        inode.store(ask(destination).unwrap_or(0), Ordering::Relaxed);
        asked_ns.store(now, Ordering::Relaxed);
    }
    let inode = inode.load(Ordering::Relaxed);
    (inode != 0).then_some(inode)
}

fn ask(destination: Destination) -> Option<u64> {
    let mut answer = [0; ANSWER_BYTES_MAX];
    let len = sys::ask_diag(&question(destination), &mut answer)?;
    inode_in(answer.get(..len)?, TCP_LISTEN)
}

/// The query: which socket would get a SYN from this host to the destination?
fn question(destination: Destination) -> [u8; TCP_QUESTION_BYTES] {
    let (to, from) = addresses(destination);
    let to = (to, destination.port());
    let question = TcpQuestion::of_listener(destination.family(), to, from);
    question.bytes(0, libc::NLM_F_REQUEST)
}

/// The address to which a SYN goes, and an address of the same family from which it may come; IPv4
/// in the first four bytes.
fn addresses(destination: Destination) -> ([u8; 16], [u8; 16]) {
    let to = destination.ip();
    let mut from = [0; 16];
    match (destination.is_v6(), Ipv6Addr::from(to).to_ipv4_mapped()) {
        (false, _) => from[..4].copy_from_slice(&Ipv4Addr::LOCALHOST.octets()),
        (true, Some(_)) => from = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
        (true, None) => from = Ipv6Addr::LOCALHOST.octets(),
    }
    // The kernel connects to the loopback address instead (connect(2)).
    let is_any = to == [0; 16];
    (if is_any { from } else { to }, from)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn destination(address: &str, port: u16) -> Destination {
        let ip = address.parse().expect("an address");
        Destination::of_address(SocketAddr::new(ip, port))
    }

    fn inode_of(socket: &impl AsRawFd) -> u64 {
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        std::fs::metadata(path).expect("open").ino()
    }

    #[test]
    fn the_socket_is_that_which_a_connection_would_meet() {
        for (listens, connects) in [
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.1"),
            ("0.0.0.0", "127.0.0.9"),
            ("0.0.0.0", "0.0.0.0"),
            ("::", "::1"),
            ("::", "::"),
            ("::", "127.0.0.1"),
            ("::", "::ffff:127.0.0.1"),
            ("127.0.0.1", "::ffff:127.0.0.1"),
        ] {
            let context = format!("{listens} {connects}");
            let ip: std::net::IpAddr = listens.parse().expect("an address");
            let Ok(listener) = TcpListener::bind(SocketAddr::new(ip, 0)) else {
                continue; // A host without IPv6.
            };
            let port = listener.local_addr().expect("bound").port();
            // A connection with that address must not be the answer.
            let name = SocketAddr::new(connects.parse().expect("an address"), port);
            let _connection = TcpStream::connect(name).expect(&context);
            let there = destination(connects, port);
            let inode = Some(inode_of(&listener));
            assert_eq!(ask(there), inode, "{context}");
            drop(listener);
            // Another socket may have the port by now.
            assert_ne!(ask(there), inode, "{context}");
        }
    }

    #[test]
    fn a_listener_of_another_address_is_not_meant() {
        let elsewhere = TcpListener::bind("127.0.0.2:0").expect("a port");
        let port = elsewhere.local_addr().expect("bound").port();
        assert_eq!(ask(destination("127.0.0.1", port)), None);
        let here = TcpListener::bind(("127.0.0.1", port)).expect("free");
        assert_eq!(ask(destination("127.0.0.1", port)), Some(inode_of(&here)));
    }
}
