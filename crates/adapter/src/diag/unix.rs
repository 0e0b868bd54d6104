//! Requests about one Unix socket and its peer (unix_diag.h).
//!
//! A request names the socket's inode and its cookie. The answer contains the inode of its peer.
//! Two sockets that exist at the same moment and name each other are the two ends of one
//! connection.

use super::{Diag, HEADER_BYTES, Listed, SOCK_DIAG_BY_FAMILY, question};
use crate::attributes::attribute;
use crate::entropy;
use std::collections::HashMap;

/// A socket, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    /// The inode of its peer; 0 when the peer is closed.
    pub(crate) peer: u32,
    /// The name that it is bound to, or its listener: a path or, with `@` before it, an abstract
    /// name. Empty for a socket that has none.
    pub(crate) name: String,
}

impl Diag {
    /// The connected stream socket with this inode and cookie.
    pub(crate) fn unix_socket(&self, inode: u32, cookie: u64) -> Option<UnixSocket> {
        let number = entropy::bits().ok()?[0] as u32;
        let request = request(inode, cookie, number, libc::NLM_F_REQUEST);
        self.answer(&request, number, |reply| parse(reply, inode, cookie))
    }

    /// The Unix sockets of this socket's namespace that a process has open, with their names.
    /// `None` when the kernel gives no answer.
    pub(crate) fn unix_names(&self) -> Option<HashMap<u32, String>> {
        let number = entropy::bits().ok()?[0] as u32;
        let request = request(0, 0, number, libc::NLM_F_REQUEST | libc::NLM_F_DUMP);
        let mut found = HashMap::new();
        let listed = self.list(&request, number, usize::MAX, |body| {
            let inode = body.get(4..8).and_then(|word| word.try_into().ok());
            let inode = inode.map_or(0, u32::from_ne_bytes);
            let rest = body.get(MESSAGE_BYTES..).unwrap_or_default();
            let name = attribute(rest, UNIX_DIAG_NAME).map(spoken);
            if inode != 0 {
                found.insert(inode, name.unwrap_or_default());
            }
        });
        matches!(listed, Listed::All).then_some(found)
    }
}

/// `struct nlmsghdr` and `struct unix_diag_req`.
fn request(inode: u32, cookie: u64, number: u32, flags: i32) -> [u8; REQUEST_BYTES] {
    let fields: [&[u8]; 6] = [
        &[libc::AF_UNIX as u8, 0, 0, 0],
        &u32::MAX.to_ne_bytes(),
        &inode.to_ne_bytes(),
        &(UDIAG_SHOW_NAME | UDIAG_SHOW_PEER).to_ne_bytes(),
        &(cookie as u32).to_ne_bytes(),
        &((cookie >> 32) as u32).to_ne_bytes(),
    ];
    question(number, flags, &fields)
}

/// A `struct unix_diag_msg` of that socket, with its attributes.
fn parse(reply: &[u8], inode: u32, cookie: u64) -> Option<UnixSocket> {
    let body = reply.get(HEADER_BYTES..)?;
    let head = [
        libc::AF_UNIX as u8,
        libc::SOCK_STREAM as u8,
        TCP_ESTABLISHED,
    ];
    let is_answer = reply.get(4..6)? == SOCK_DIAG_BY_FAMILY.to_ne_bytes()
        && body.get(..3)? == head
        && body.get(4..8)? == inode.to_ne_bytes()
        && body.get(8..16)? == cookie.to_ne_bytes();
    if !is_answer {
        return None;
    }
    let mut found = UnixSocket {
        peer: 0,
        name: String::new(),
    };
    let mut rest = body.get(MESSAGE_BYTES..)?;
    while let Some(header) = rest.get(..4) {
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let length = usize::from(word(0));
        let Some(value) = rest.get(4..length) else {
            break;
        };
        match word(2) {
            UNIX_DIAG_PEER => found.peer = u32::from_ne_bytes(value.try_into().ok()?),
            UNIX_DIAG_NAME => found.name = spoken(value),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(found)
}

/// A name as `ss` and `/proc/net/unix` show it.
fn spoken(name: &[u8]) -> String {
    match name.split_first() {
        Some((0, rest)) => format!("@{}", String::from_utf8_lossy(rest)),
        _ => {
            let path = name.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(path).into_owned()
        }
    }
}

/// With `struct unix_diag_req`.
const REQUEST_BYTES: usize = HEADER_BYTES + 24;
/// `struct unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;
/// A connected socket of any kind.
const TCP_ESTABLISHED: u8 = 1;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_PEER: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::cookie_of;
    use crate::memfd;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    fn identity(socket: &impl AsFd) -> (u32, u64) {
        let inode = memfd::number(socket.as_fd()).expect("a socket");
        let cookie = cookie_of(socket.as_fd(), libc::SO_COOKIE).expect("a cookie");
        (inode as u32, cookie)
    }

    #[test]
    fn connected_sockets_name_each_other() {
        let diag = Diag::open().expect("sock_diag");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let client = UnixStream::connect(&path).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        let [(a, ca), (b, cb)] = [identity(&client), identity(&server)];
        let client_is = diag.unix_socket(a, ca).expect("connected");
        let server_is = diag.unix_socket(b, cb).expect("connected");
        assert_eq!((client_is.peer, client_is.name.as_str()), (b, ""));
        let path = path.to_str().expect("plain");
        assert_eq!((server_is.peer, server_is.name.as_str()), (a, path));
        drop(server);
        let alone = diag.unix_socket(a, ca).expect("still open");
        assert_eq!(alone.peer, 0);
    }

    #[test]
    fn what_is_no_connected_stream_is_unknown() {
        let diag = Diag::open().expect("sock_diag");
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("socket")).expect("bound");
        let (datagrams, _other) = UnixDatagram::pair().expect("a pair");
        let (stream, _peer) = UnixStream::pair().expect("a pair");
        for (inode, cookie) in [identity(&listener), identity(&datagrams)] {
            assert_eq!(diag.unix_socket(inode, cookie), None);
        }
        let (inode, cookie) = identity(&stream);
        assert!(diag.unix_socket(inode, cookie).is_some());
        assert_eq!(diag.unix_socket(inode, cookie + 1), None);
        assert_eq!(diag.unix_socket(0, cookie), None);
    }

    #[test]
    fn answers_that_are_cut_are_read_to_their_end_and_no_further() {
        let mut message = vec![0u8; 16];
        message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        message.extend([1, 1, 1, 0]);
        message.extend(7u32.to_ne_bytes());
        message.extend(9u64.to_ne_bytes());
        message.extend([8, 0, 2, 0, 5, 0, 0, 0]);
        message.extend([7, 0, 0, 0, 0, b'a', b'b', 0]);
        let whole = parse(&message, 7, 9).expect("an answer");
        assert_eq!((whole.peer, whole.name.as_str()), (5, "@ab"));
        for cut in 0..message.len() {
            parse(&message[..cut], 7, 9);
        }
        assert_eq!(parse(&message, 7, 8), None);
        assert_eq!(parse(&message, 6, 9), None);
    }
}
