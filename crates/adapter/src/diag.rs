//! Questions to the kernel about TCP, Unix and packet sockets: sock_diag(7).
//!
//! A request names the socket's addresses and its cookie, so there is one answer or none. Each
//! [`Diag`] answers for one network namespace: the one in which its socket was made. The adapter
//! has one for its own namespace. A client with connections in another namespace sends a socket of
//! that namespace. The system adapter uses it when the client has closed it, if there is a witness
//! to see that ([`Witness::is_ours_alone`]). Otherwise the client may still hold that socket, and
//! may send requests on it, take answers away, or connect it elsewhere. So each request is
//! addressed to the kernel and has an unpredictable number. An answer counts only if it comes from
//! the kernel, with that number and that cookie.

mod packets;
mod tcp;
mod unix;

pub(crate) use packets::Observers;
pub(crate) use tcp::Moved;

use crate::entropy;
use crate::facts::Witness;
use crate::listener::{cookie_of, number_of};
use crate::registry::{Address, Tuple};
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recvfrom, sendto,
    socket_with,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toehold_freestanding::diag::{
    HEADER_BYTES, SOCK_DIAG_BY_FAMILY, TcpQuestion, inode_in, question,
};

/// A connection to the kernel's list of sockets.
#[derive(Debug)]
pub(crate) struct Diag {
    socket: OwnedFd,
    /// The namespace for which it answers; unknown before Linux 5.14.
    namespace: Option<u64>,
}

impl Diag {
    /// Opens one.
    ///
    /// # Errors
    /// When there is no descriptor left, or the kernel was built without `CONFIG_INET_DIAG`.
    pub(crate) fn open() -> io::Result<Diag> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
        // A socket that is connected to the kernel takes messages only from the kernel
        // (netlink_getsockbyportid).
        connect(&socket, &kernel())?;
        let namespace = namespace_of(socket.as_fd());
        Ok(Diag { socket, namespace })
    }

    /// A socket that a client has sent; `None` when it is not a sock_diag socket.
    pub(crate) fn shown(socket: OwnedFd) -> Option<Diag> {
        let is = |option, wanted| number_of(socket.as_fd(), option).is_ok_and(|is| is == wanted);
        let is_diag =
            is(libc::SO_DOMAIN, libc::AF_NETLINK) && is(libc::SO_PROTOCOL, libc::NETLINK_SOCK_DIAG);
        let namespace = namespace_of(socket.as_fd()).filter(|_| is_diag)?;
        Some(Diag {
            socket,
            namespace: Some(namespace),
        })
    }

    /// Whether no other process has its socket.
    pub(crate) fn is_ours_alone(&self, witness: &Witness) -> bool {
        witness.is_ours_alone(self.socket.as_fd())
    }

    /// The number of its namespace.
    pub(crate) fn namespace(&self) -> u64 {
        self.namespace.unwrap_or(UNKNOWN_NAMESPACE)
    }

    /// Whether a socket is known to be of another network namespace.
    pub(crate) fn is_elsewhere(&self, socket: BorrowedFd<'_>) -> bool {
        let its = namespace_of(socket);
        its.is_some() && its != self.namespace
    }

    /// The inode of the socket with these addresses and this cookie, if it is established now.
    pub(crate) fn established(&self, tuple: &Tuple, cookie: u64) -> Option<u64> {
        if let (Address::Unix { inode }, Address::Unix { inode: peer }) =
            (tuple.local, tuple.remote)
        {
            let known = self.unix_socket(inode, cookie)?;
            return (known.peer == peer && peer != 0).then_some(inode.into());
        }
        let (local, remote) = tuple.spoken()?;
        let number = entropy::bits().ok()?[0] as u32;
        let request = question_about(local, remote, cookie).bytes(number, libc::NLM_F_REQUEST);
        self.answer(&request, number, |reply| {
            parse(reply, cookie, (local, remote))
        })
    }

    /// Asks for one socket, and reads the answer.
    fn answer<T>(
        &self,
        request: &[u8],
        number: u32,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        // The kernel answers before this returns (netlink_rcv_skb).
        self.ask(request)?;
        // If the client also sends requests on this socket, its answers are mixed with ours.
        for _ in 0..ANSWERS_MAX {
            let mut reply = [0u8; REPLY_BYTES_MAX];
            let (reply, is_kernel) = self.hear(&mut reply)?;
            if is_kernel && reply.get(8..12) == Some(&number.to_ne_bytes()) {
                return read(reply);
            }
        }
        None
    }

    /// Asks for many sockets, in at most `datagrams_max` datagrams, and calls `each` with each
    /// answer.
    fn list(
        &self,
        request: &[u8],
        number: u32,
        datagrams_max: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Listed {
        if self.ask(request).is_none() {
            return Listed::Nothing;
        }
        let mut buffer = vec![0; DUMP_BYTES_MAX];
        for _ in 0..datagrams_max {
            // The kernel continues its answer while we read it (netlink_recvmsg).
            let Some((reply, is_kernel)) = self.hear(&mut buffer) else {
                return Listed::Nothing;
            };
            if !is_kernel {
                continue;
            }
            match read(reply, number, &mut each) {
                Answer::More => {}
                Answer::End => return Listed::All,
                Answer::Refused => return Listed::Nothing,
            }
        }
        Listed::Part
    }

    /// Sends a request to the kernel.
    fn ask(&self, request: &[u8]) -> Option<()> {
        let sent = sendto(&self.socket, request, SendFlags::DONTWAIT, &kernel());
        (sent.ok()? == request.len()).then_some(())
    }

    /// The next datagram that waits, and whether the kernel sent it.
    fn hear<'a>(&self, buffer: &'a mut [u8]) -> Option<(&'a [u8], bool)> {
        let flags = RecvFlags::DONTWAIT;
        let (count, _, sender) = recvfrom(&self.socket, &mut *buffer, flags).ok()?;
        let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        let is_kernel = sender.is_some_and(|sender| sender.pid() == KERNEL_PORT);
        Some((buffer.get(..count)?, is_kernel))
    }
}

/// The position that the list of many sockets has reached.
enum Listed {
    All,
    /// There are more.
    Part,
    /// The kernel refuses, or the client that owns the socket disturbs the exchange.
    Nothing,
}

enum Answer {
    More,
    End,
    Refused,
}

/// Reads the messages of one datagram that answer request `number`.
fn read(mut reply: &[u8], number: u32, each: &mut impl FnMut(&[u8])) -> Answer {
    while let Some(header) = reply.get(..HEADER_BYTES) {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four"));
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let length = word(0) as usize;
        let Some(body) = reply.get(HEADER_BYTES..length) else {
            return Answer::More;
        };
        if word(8) == number {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Answer::End,
                libc::NLMSG_ERROR => return Answer::Refused,
                _ if [SOCK_DIAG_BY_FAMILY, tcp::TCPDIAG_GETSOCK].contains(&kind) => each(body),
                _ => {}
            }
        }
        reply = reply.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Answer::More
}

/// The kernel's address.
fn kernel() -> SocketAddrNetlink {
    SocketAddrNetlink::new(KERNEL_PORT, 0)
}

/// The kernel's port.
const KERNEL_PORT: u32 = 0;

/// The cookie of a socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
pub(crate) fn namespace_of(socket: BorrowedFd<'_>) -> Option<u64> {
    cookie_of(socket, libc::SO_NETNS_COOKIE).ok()
}

/// A request for the socket with these addresses and this cookie.
fn question_about(local: SocketAddr, remote: SocketAddr, cookie: u64) -> TcpQuestion {
    let family = match (local.ip(), remote.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => libc::AF_INET,
        _ => libc::AF_INET6,
    };
    let end = |name: SocketAddr| (spelled(name.ip()), name.port());
    TcpQuestion {
        family,
        attributes: 0,
        // Every state.
        states: u32::MAX,
        local: end(local),
        remote: end(remote),
        interface: 0,
        cookie,
    }
}

/// An address in sixteen bytes, an IPv4 address in the first four.
fn spelled(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    bytes
}

/// The inode in a `struct inet_diag_msg` of the established socket with that cookie between `ends`.
/// A client that uses the socket of a [`Diag`], too, may ask about others of its sockets by the
/// number of our request.
fn parse(reply: &[u8], cookie: u64, ends: (SocketAddr, SocketAddr)) -> Option<u64> {
    let inode = inode_in(reply, TCP_ESTABLISHED)?;
    let its_cookie = reply.get(HEADER_BYTES + COOKIE_AT..)?.get(..8)?;
    let its = tcp::parse(reply.get(HEADER_BYTES..)?)?;
    let is_it = its_cookie == cookie.to_ne_bytes() && (its.local, its.remote) == ends;
    is_it.then_some(inode)
}

/// `idiag_cookie`, the last word of the `struct inet_diag_sockid` in it.
const COOKIE_AT: usize = 44;
/// The most answers to other requests that are skipped.
const ANSWERS_MAX: usize = 64;
/// Without numbers for namespaces, all sockets are assumed to be in our namespace.
const UNKNOWN_NAMESPACE: u64 = 0;
/// An answer is far shorter, even with attributes that were not requested.
const REPLY_BYTES_MAX: usize = 4096;
/// The kernel fills datagrams of a list up to this length (netlink_dump).
const DUMP_BYTES_MAX: usize = 32_768;
/// include/net/tcp_states.h.
const TCP_ESTABLISHED: u8 = 1;
