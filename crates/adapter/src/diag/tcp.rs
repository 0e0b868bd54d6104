//! The TCP sockets of a namespace, except those in TIME-WAIT.
//!
//! `/proc/net/tcp` has a line for each socket in TIME-WAIT, too. A client of short connections
//! leaves 28,000 of them, for which the kernel formats 4 MB each time it is asked.

use super::{Diag, Listed, question_about, spelled};
use crate::attributes::attribute;
use crate::entropy;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use toehold_freestanding::diag::{
    ANY_COOKIE, HEADER_BYTES, INFO, INODE_AT, SOCK_DIAG_BY_FAMILY, TCP_LISTEN, TcpQuestion,
    inode_in,
};

/// A TCP socket, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) uid: u32,
    /// 0: no process has it open.
    pub(crate) inode: u32,
}

/// The bytes of a connection by the kernel's counts. They may include the SYN and the FIN of each
/// direction (RFC 4898 counts each as one byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes that the program has sent.
    pub(crate) sent: u64,
    /// Bytes that the program has received.
    pub(crate) taken: u64,
}

impl Diag {
    /// The bytes that programs have moved by the socket with these addresses. `None` when bytes are
    /// moving, or there is no such socket.
    pub(crate) fn moved(&self, local: SocketAddr, remote: SocketAddr) -> Option<Moved> {
        let question = TcpQuestion {
            attributes: 1 << (INFO - 1),
            ..question_about(local, remote, ANY_COOKIE)
        };
        let ask = || self.ask_once(&question, |reply| moved(reply.get(HEADER_BYTES..)?));
        // The kernel reads the lengths of the queues before its counts.
        let first = ask()?;
        (ask()? == first).then_some(first)
    }

    /// Whether a process has the connection with these addresses open. A socket that was closed may
    /// still exist for a while. `None` when the kernel gives no answer.
    pub(crate) fn is_held(&self, local: SocketAddr, remote: SocketAddr) -> Option<bool> {
        self.ask_once(&question_about(local, remote, ANY_COOKIE), is_held)
    }

    /// Asks a question that has one answer, and reads it.
    fn ask_once<T>(
        &self,
        question: &TcpQuestion,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let number = entropy::bits().ok()?[0] as u32;
        let request = question.bytes(number, libc::NLM_F_REQUEST);
        self.answer(&request, number, read)
    }

    /// All TCP sockets of this socket's namespace except those in TIME-WAIT. `None` when the kernel
    /// gives no answer.
    pub(crate) fn tcp_sockets(&self) -> Option<Vec<TcpSocket>> {
        let mut found = Vec::new();
        self.each_tcp_socket(!(1 << TCP_TIME_WAIT), |socket| found.push(socket))?;
        Some(found)
    }

    /// The local ports of all TCP sockets of this socket's namespace, in any state. `None` when the
    /// kernel gives no answer.
    pub(crate) fn tcp_ports(&self) -> Option<BTreeSet<u16>> {
        let mut found = BTreeSet::new();
        self.each_tcp_socket(u32::MAX, |socket| {
            found.insert(socket.local.port());
        })?;
        Some(found)
    }

    /// The inode of the socket that would get connections from this host's loopback to an address;
    /// `None` when no socket listens there.
    pub(crate) fn listening(&self, at: SocketAddr) -> Option<u64> {
        let (family, from) = match at {
            SocketAddr::V4(_) => (libc::AF_INET, Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) => (libc::AF_INET6, Ipv6Addr::LOCALHOST.into()),
        };
        let to = (spelled(at.ip()), at.port());
        let question = TcpQuestion::of_listener(family, to, spelled(from));
        self.ask_once(&question, |reply| inode_in(reply, TCP_LISTEN))
    }

    /// Calls `each` with the TCP sockets in some states, a bit for each.
    fn each_tcp_socket(&self, states: u32, mut each: impl FnMut(TcpSocket)) -> Option<()> {
        let number = entropy::bits().ok()?[0] as u32;
        let listed = self.list(&request(states, number), number, usize::MAX, |body| {
            if let Some(socket) = parse(body) {
                each(socket);
            }
        });
        matches!(listed, Listed::All).then_some(())
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req` (include/uapi/linux/inet_diag.h).
const REQUEST_BYTES: usize = HEADER_BYTES + 60;

/// A request for the sockets in some states, of both families (`inet_diag_dump_compat` in
/// net/ipv4/inet_diag.c). The newer request names one family, and for each request the kernel walks
/// through its whole table of connections, which has 262,144 places on a host with much memory.
fn request(states: u32, number: u32) -> [u8; REQUEST_BYTES] {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let fields: [(usize, &[u8]); 5] = [
        (0, &(REQUEST_BYTES as u32).to_ne_bytes()),
        (4, &TCPDIAG_GETSOCK.to_ne_bytes()),
        (6, &flags.to_ne_bytes()),
        (8, &number.to_ne_bytes()),
        (STATES_AT, &states.to_ne_bytes()),
    ];
    let mut bytes = [0; REQUEST_BYTES];
    for (at, field) in fields {
        bytes[at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

/// The kind of such a request, and of the answers (include/uapi/linux/inet_diag.h).
pub(super) const TCPDIAG_GETSOCK: u16 = 18;
/// `idiag_states`, behind four bytes and `struct inet_diag_sockid`.
const STATES_AT: usize = HEADER_BYTES + 4 + 48;

/// `struct inet_diag_msg`.
pub(super) fn parse(body: &[u8]) -> Option<TcpSocket> {
    let is_v4 = *body.first()? == libc::AF_INET as u8;
    let word = |at: usize| -> Option<[u8; 4]> { body.get(at..at + 4)?.try_into().ok() };
    let address = |port_at: usize, ip_at: usize| -> Option<SocketAddr> {
        let port = u16::from_be_bytes(body.get(port_at..port_at + 2)?.try_into().ok()?);
        let ip = if is_v4 {
            Ipv4Addr::from(word(ip_at)?).into()
        } else {
            let bytes: [u8; 16] = body.get(ip_at..ip_at + 16)?.try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        };
        Some(SocketAddr::new(ip, port))
    };
    Some(TcpSocket {
        local: address(LOCAL_PORT_AT, LOCAL_IP_AT)?,
        remote: address(REMOTE_PORT_AT, REMOTE_IP_AT)?,
        uid: u32::from_ne_bytes(word(UID_AT)?),
        inode: u32::from_ne_bytes(word(INODE_AT)?),
    })
}

/// An answer to a question about one connection.
fn is_held(reply: &[u8]) -> Option<bool> {
    let body = reply.get(HEADER_BYTES..)?;
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    if i32::from(kind) == libc::NLMSG_ERROR {
        let error = i32::from_ne_bytes(*body.first_chunk()?);
        return (error == -libc::ENOENT).then_some(false);
    }
    // If there is no connection, the kernel answers with the socket that would get one.
    let is_connection = *body.get(STATE_AT)? != TCP_LISTEN;
    let is_open = body.get(INODE_AT..INODE_AT + 4)? != [0; 4];
    (kind == SOCK_DIAG_BY_FAMILY).then_some(is_connection && is_open)
}

/// `struct inet_diag_msg`, and behind it its attributes, each with its length and kind.
fn moved(body: &[u8]) -> Option<Moved> {
    let word = |at: usize| {
        Some(u64::from(u32::from_ne_bytes(
            *body.get(at..)?.first_chunk()?,
        )))
    };
    let info = attribute(body.get(INODE_AT + 4..)?, INFO)?;
    let count = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    Some(Moved {
        sent: count(BYTES_ACKED_AT)?.wrapping_add(word(UNACKNOWLEDGED_AT)?),
        taken: count(BYTES_RECEIVED_AT)?.saturating_sub(word(UNREAD_AT)?),
    })
}

/// `idiag_rqueue`.
const UNREAD_AT: usize = 56;
/// `idiag_wqueue`.
const UNACKNOWLEDGED_AT: usize = 60;
/// In `struct tcp_info` (include/uapi/linux/tcp.h).
const BYTES_ACKED_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;
/// The fields of `struct inet_diag_sockid`, which begins at 4.
const LOCAL_PORT_AT: usize = 4;
const REMOTE_PORT_AT: usize = 6;
const LOCAL_IP_AT: usize = 8;
const REMOTE_IP_AT: usize = 24;
/// `idiag_state`.
const STATE_AT: usize = 1;
/// `idiag_uid`.
const UID_AT: usize = 64;
/// include/net/tcp_states.h.
const TCP_TIME_WAIT: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::MetadataExt;

    fn inode_of(socket: &impl AsRawFd) -> u64 {
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        std::fs::metadata(path).expect("open").ino()
    }

    /// A listener at a free port, and both ends of a connection to it.
    fn connection(address: &str) -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).expect("bound");
        let target = listener.local_addr().expect("an address");
        let client = TcpStream::connect(target).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        (listener, client, server)
    }

    fn address_of(socket: &TcpStream) -> SocketAddr {
        socket.local_addr().expect("an address")
    }

    /// A client that has the socket, too, may have made the kernel send it.
    #[test]
    fn an_answer_about_other_addresses_is_none() {
        let diag = Diag::open().expect("sock_diag");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (_listener, client, server) = connection(address);
            let ends = [&client, &server].map(address_of);
            let cookie = crate::listener::cookie_of(client.as_fd(), libc::SO_COOKIE);
            let cookie = cookie.expect("a cookie");
            let question = question_about(ends[0], ends[1], cookie);
            let answer = diag.ask_once(&question, |answer| Some(answer.to_vec()));
            let answer = answer.expect("the kernel answers");
            let inode_between =
                |local, remote| super::super::parse(&answer, cookie, (local, remote));
            assert_eq!(inode_between(ends[0], ends[1]), Some(inode_of(&client)));
            assert_eq!(inode_between(ends[1], ends[0]), None);
            assert_eq!(inode_between(ends[0], ends[0]), None);
        }
    }

    #[test]
    fn only_the_listening_socket_is_found() {
        let diag = Diag::open().expect("a question");
        for any in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let listener = TcpListener::bind(any).expect("bound");
            let port = listener.local_addr().expect("an address").port();
            let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            let inode = Some(inode_of(&listener));
            assert_eq!(diag.listening(at), inode, "{any}");
            let _client = TcpStream::connect(at).expect("connected");
            let (server, _) = listener.accept().expect("accepted");
            drop(listener);
            // Another socket may have the port by now.
            let other = diag.listening(at);
            assert_ne!(other, inode, "{any}");
            assert_ne!(other, Some(inode_of(&server)), "{any}: a connection only");
        }
    }

    /// A closed socket whose other end is open remains for a while, in FIN-WAIT-2.
    #[test]
    fn connection_is_held_until_its_program_closes() {
        let diag = Diag::open().expect("a question");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (_listener, client, server) = connection(address);
            let [local, target] = [&client, &server].map(address_of);
            for end in [(local, target), (target, local)] {
                assert_eq!(diag.is_held(end.0, end.1), Some(true));
            }
            let finished = server.shutdown(std::net::Shutdown::Write);
            finished.expect("connected");
            let second = server.try_clone().expect("a descriptor");
            drop(server);
            assert_eq!(diag.is_held(target, local), Some(true));
            drop(second);
            assert_eq!(diag.is_held(target, local), Some(false));
            assert_eq!(diag.is_held(local, target), Some(true));
            drop(client);
            // Now the kernel answers with the listener.
            assert_eq!(diag.is_held(target, local), Some(false));
        }
        let nowhere = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1);
        assert_eq!(diag.is_held(nowhere, nowhere), Some(false));
    }

    #[test]
    fn bytes_count_when_programs_have_moved_them() {
        let diag = Diag::open().expect("a question");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (_listener, mut client, mut server) = connection(address);
            let [local, target] = [&client, &server].map(address_of);
            client.write_all(&[7; 1000]).expect("room");
            let mut bytes = [0; 600];
            server.read_exact(&mut bytes).expect("all there");
            let settled = |local, remote| (0..100).find_map(|_| diag.moved(local, remote));
            // The SYN of the connecting end is counted.
            let (sent, taken) = (1001, 0);
            assert_eq!(settled(local, target), Some(Moved { sent, taken }));
            let (sent, taken) = (0, 600);
            assert_eq!(settled(target, local), Some(Moved { sent, taken }));
        }
        let nowhere = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1);
        assert_eq!(diag.moved(nowhere, nowhere), None);
    }

    #[test]
    fn sockets_are_listed_but_for_those_that_wait_for_their_time() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("bound");
            let target = listener.local_addr().expect("an address");
            let client = TcpStream::connect(target).expect("connected");
            let local = client.local_addr().expect("an address");
            let (server, _) = listener.accept().expect("accepted");
            let diag = Diag::open().expect("a question");
            let ends = || -> Vec<_> {
                let all = diag.tcp_sockets().expect("the kernel says");
                let of_this = all
                    .into_iter()
                    .filter(|one| one.local.port() == target.port());
                let mut ends: Vec<_> = of_this.map(|one| (one.local, one.remote)).collect();
                ends.sort_unstable();
                ends
            };
            let anybody: SocketAddr = match target {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let mut both = [(target, local), (target, anybody)];
            both.sort_unstable();
            assert_eq!(ends(), both);
            // The end that closes first keeps its socket in TIME-WAIT.
            drop(server);
            drop(client);
            assert_eq!(ends(), [(target, anybody)]);
            let held = diag.tcp_ports().expect("the kernel says");
            assert!(held.contains(&target.port()) && !held.contains(&0));
        }
    }
}
