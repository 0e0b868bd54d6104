//! What the kernel says of a TCP socket that is named to it: sock_diag(7).
//!
//! A question names both addresses and the socket's cookie, so there is one answer or none. It
//! speaks of the network namespace that the adapter began in, and of no other.

use crate::listener::{check, cookie_of, owned};
use crate::registry::{Address, Tuple};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A connection to the kernel's list of sockets.
#[derive(Debug)]
pub(crate) struct Diag {
    socket: OwnedFd,
    /// The namespace that it speaks of; unknown before Linux 5.14.
    namespace: Option<u64>,
}

impl Diag {
    /// Opens one.
    ///
    /// # Errors
    /// When there is no descriptor left, or the kernel was built without `CONFIG_INET_DIAG`.
    pub(crate) fn open() -> io::Result<Diag> {
        // SAFETY: no memory is involved.
        let socket = owned(unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG)
        })?;
        // Connected to the kernel (port 0), it takes messages from nobody else
        // (netlink_getsockbyportid).
        // SAFETY: `sockaddr_nl` is plain data, for which zeroes are a value.
        let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: `kernel` is valid for `length` bytes.
        check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const kernel).cast(), length) })?;
        let namespace = namespace_of(socket.as_fd());
        Ok(Diag { socket, namespace })
    }

    /// Whether a socket is known to be of another network namespace.
    pub(crate) fn is_elsewhere(&self, socket: BorrowedFd<'_>) -> bool {
        let its = namespace_of(socket);
        its.is_some() && its != self.namespace
    }

    /// The inode of the socket with these addresses and this cookie, if it is established now.
    pub(crate) fn established(&self, tuple: &Tuple, cookie: u64) -> Option<u64> {
        let request = request(tuple, cookie);
        let fd = self.socket.as_raw_fd();
        let mut reply = [0u8; REPLY_BYTES_MAX];
        // SAFETY: both buffers are valid for their lengths.
        let got = unsafe {
            // The kernel answers before `send` returns (netlink_rcv_skb).
            let sent = libc::send(fd, request.as_ptr().cast(), request.len(), 0);
            if sent != request.len() as isize {
                return None;
            }
            libc::recv(
                fd,
                reply.as_mut_ptr().cast(),
                reply.len(),
                libc::MSG_DONTWAIT,
            )
        };
        parse(reply.get(..usize::try_from(got).ok()?)?)
    }
}

/// The cookie of a socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
fn namespace_of(socket: BorrowedFd<'_>) -> Option<u64> {
    cookie_of(socket, libc::SO_NETNS_COOKIE).ok()
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2` (include/uapi/linux/inet_diag.h).
fn request(tuple: &Tuple, cookie: u64) -> [u8; REQUEST_BYTES] {
    let (local, remote) = (plain(tuple.local), plain(tuple.remote));
    let family = match (&local, &remote) {
        (IpAddr::V4(_), IpAddr::V4(_)) => libc::AF_INET,
        _ => libc::AF_INET6,
    };
    let mut bytes = [0; REQUEST_BYTES];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&(REQUEST_BYTES as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and port.
    put(&[0; 8]);
    put(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&u32::MAX.to_ne_bytes());
    put(&tuple.local.port.to_be_bytes());
    put(&tuple.remote.port.to_be_bytes());
    put(&spelled(local));
    put(&spelled(remote));
    // No interface.
    put(&[0; 4]);
    put(&(cookie as u32).to_ne_bytes());
    put(&((cookie >> 32) as u32).to_ne_bytes());
    bytes
}

fn plain(address: Address) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(address.ip)).to_canonical()
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

/// The inode in a `struct inet_diag_msg` of an established socket.
fn parse(reply: &[u8]) -> Option<u64> {
    let kind = reply.get(4..6)?;
    let body = reply.get(HEADER_BYTES..)?;
    let inode = body.get(INODE_AT..INODE_AT + 4)?;
    let is_answer = kind == SOCK_DIAG_BY_FAMILY.to_ne_bytes();
    let is_established = body.get(1) == Some(&TCP_ESTABLISHED);
    let inode = u32::from_ne_bytes(inode.try_into().expect("four bytes"));
    (is_answer && is_established).then_some(inode.into())
}

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// With `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// `idiag_inode`, the last word of `struct inet_diag_msg`.
const INODE_AT: usize = 68;
/// An answer with the attributes that come unasked for is far shorter.
const REPLY_BYTES_MAX: usize = 4096;
/// include/uapi/linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// include/net/tcp_states.h.
const TCP_ESTABLISHED: u8 = 1;
