//! A client proves that it has an end of a connection by sending the socket's descriptor.
//!
//! The adapter does not trust a client's statements about its connection. It asks the kernel for
//! the addresses, the cookie, the inode and the network namespace of the shown socket, and then
//! whether exactly that socket is established there. No question waits for the socket's owner: a
//! witness ([`crate::facts`]) reads the addresses, or, without a witness, the client names them. If
//! the client names other addresses, the kernel does not find the shown socket's cookie there. (The
//! calls that tell a socket's addresses wait for the socket's lock, which a `send` of its owner may
//! hold for ever.) In a namespace a connection has one
//! socket for each end. So two sockets of one namespace with mirrored addresses that are
//! established at the same moment are the two ends of one connection. For its own namespace the
//! adapter uses its own socket for these requests. For another namespace it uses a socket that the
//! client has sent ([`Diag::shown`]).
//!
//! A socket that is bound to a device is not found, because its addresses may belong to another
//! network.
//!
//! Between namespaces, and across address translation, addresses prove nothing. There the kernel's
//! facts decide ([`crate::facts`]), if the adapter can read them.
//!
//! The descriptor is closed before the answer: if the adapter kept it, the connection would stay
//! open after the program closes it. The adapter keeps the cookie, which identifies the socket in
//! the kernel as long as it exists, and is never used again.

use crate::diag::Diag;
use crate::facts::{Facts, Witness};
use crate::listener::{cookie_of, peer_of};
use crate::memfd;
use crate::registry::{Address, Tuple};
use rustix::net::getpeername;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toehold_channel::table::Reason;

/// A socket that was proved to be one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proved {
    /// Its addresses.
    pub(crate) tuple: Tuple,
    /// Its `SO_COOKIE`: no other socket ever has the same (sock_gen_cookie).
    pub(crate) cookie: u64,
    /// Its facts, if there is a witness; the witness remembers the socket.
    pub(crate) facts: Option<Facts>,
    /// Of a Unix socket: the user of its peer (`SO_PEERCRED`).
    pub(crate) peer_uid: Option<u32>,
}

/// Examines a shown descriptor, and returns what it proves. `said` are the addresses that the
/// client names: its own and the remote one. `own` answers for our namespace, `shown_diag` for the
/// namespace that the client has shown. `shown` is closed before those requests, because it would
/// keep the connection of a killed program open.
///
/// # Errors
/// The reason why the socket proves nothing: the reason that the library reports.
pub(crate) fn examine(
    (shown, said): (OwnedFd, [Address; 2]),
    own: &Diag,
    shown_diag: Option<&Diag>,
    witness: Option<&Witness>,
) -> Result<Proved, Reason> {
    let socket = shown.as_fd();
    let option = |name| crate::listener::number_of(socket, name);
    let is = |name, wanted| option(name).is_ok_and(|is| is == wanted);
    if is(libc::SO_DOMAIN, libc::AF_UNIX) && is(libc::SO_TYPE, libc::SOCK_STREAM) {
        return examine_unix(socket, own, shown_diag);
    }
    let is_tcp = option(libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_STREAM)
        && option(libc::SO_PROTOCOL).is_ok_and(|protocol| protocol == libc::IPPROTO_TCP);
    if !is_tcp {
        return Err(Reason::NotTcp);
    }
    let diag = speaking_of(socket, own, shown_diag)?;
    let cookie = cookie_of(socket, libc::SO_COOKIE).map_err(|_| Reason::Unsupported)?;
    let inode = memfd::number(socket).map_err(|_| Reason::Closing)?;
    let (ends, facts) = match witness {
        Some(witness) => {
            let seen = witness.remember(socket, cookie).ok_or(Reason::NoProof)?;
            (seen.ends.ok_or(Reason::Closing)?, seen.facts)
        }
        None => (said, None),
    };
    drop(shown);
    let [local, remote] = ends;
    let tuple = Tuple {
        netns: diag.namespace(),
        local,
        remote,
    };
    match diag.established(&tuple, cookie) {
        Some(known) if known == inode && cookie != 0 => Ok(Proved {
            tuple,
            cookie,
            facts,
            peer_uid: None,
        }),
        // The socket is not established (any more).
        _ => {
            if let Some(witness) = witness {
                witness.forget(cookie);
            }
            Err(Reason::Closing)
        }
    }
}

/// Examines a Unix stream socket. Its peer is read while the socket is open, because there is no
/// other way to find it.
fn examine_unix(
    socket: BorrowedFd<'_>,
    own: &Diag,
    shown_diag: Option<&Diag>,
) -> Result<Proved, Reason> {
    if getpeername(socket).is_err() {
        return Err(Reason::Closing);
    }
    let diag = speaking_of(socket, own, shown_diag)?;
    let cookie = cookie_of(socket, libc::SO_COOKIE).map_err(|_| Reason::Unsupported)?;
    let inode = memfd::number(socket).map_err(|_| Reason::Closing)?;
    let inode = u32::try_from(inode).map_err(|_| Reason::Unsupported)?;
    let credentials = peer_of(socket).map_err(|_| Reason::Closing)?;
    let known = diag.unix_socket(inode, cookie).ok_or(Reason::NoProof)?;
    if known.peer == 0 || cookie == 0 {
        return Err(Reason::Closing);
    }
    let tuple = Tuple {
        netns: diag.namespace(),
        local: Address::Unix { inode },
        remote: Address::Unix { inode: known.peer },
    };
    Ok(Proved {
        tuple,
        cookie,
        facts: None,
        peer_uid: Some(credentials.uid),
    })
}

/// Chooses the one of the two that answers for a socket's namespace.
fn speaking_of<'a>(
    socket: BorrowedFd<'_>,
    own: &'a Diag,
    shown: Option<&'a Diag>,
) -> Result<&'a Diag, Reason> {
    match own.is_elsewhere(socket) {
        false => Ok(own),
        true => shown
            .filter(|diag| !diag.is_elsewhere(socket))
            .ok_or(Reason::OtherNamespace),
    }
}

#[cfg(test)]
mod tests {
    use super::{examine as examine_owned, *};
    use rustix::net::{SocketAddrAny, getsockname};
    use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

    fn examine(shown: BorrowedFd<'_>, own: &Diag, other: Option<&Diag>) -> Result<Proved, Reason> {
        examine_saying(shown, ends_of(shown), own, other)
    }

    fn examine_saying(
        shown: BorrowedFd<'_>,
        said: [Address; 2],
        own: &Diag,
        other: Option<&Diag>,
    ) -> Result<Proved, Reason> {
        let copy = shown.try_clone_to_owned().expect("a descriptor");
        examine_owned((copy, said), own, other, None)
    }

    /// The addresses of a socket, as its program names them: zeros where there are none.
    fn ends_of(socket: BorrowedFd<'_>) -> [Address; 2] {
        let address = |any: Option<SocketAddrAny>| {
            let any = any.and_then(|any| SocketAddr::try_from(any).ok());
            any.map_or(
                Address::Internet {
                    ip: [0; 16],
                    port: 0,
                },
                Address::from,
            )
        };
        let local = getsockname(socket).ok();
        let remote = getpeername(socket).ok().flatten();
        [address(local), address(remote)]
    }

    fn connection(address: &str) -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).expect("bound");
        let here = listener.local_addr().expect("bound");
        let one = TcpStream::connect(here).expect("connected");
        let (other, _) = listener.accept().expect("accepted");
        (listener, one, other)
    }

    #[test]
    fn the_two_ends_of_a_connection_prove_mirrored_tuples() {
        let diag = Diag::open().expect("sock_diag");
        let mut all = vec!["127.0.0.1:0"];
        if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            all.push("[::1]:0");
        }
        for address in all {
            let (_listener, one, other) = connection(address);
            let one = examine(one.as_fd(), &diag, None).expect("established");
            let other = examine(other.as_fd(), &diag, None).expect("established");
            assert_eq!(one.tuple, other.tuple.mirrored());
            assert_ne!(one.cookie, other.cookie);
        }
    }

    #[test]
    fn what_is_no_established_connection_of_ours_proves_nothing() {
        let diag = Diag::open().expect("sock_diag");
        let (listener, one, other) = connection("127.0.0.1:0");
        let refused = |fd: BorrowedFd<'_>| examine(fd, &diag, None).expect_err("no proof");
        assert_eq!(refused(listener.as_fd()), Reason::Closing);
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
        udp.connect("127.0.0.1:9").expect("connected");
        assert_eq!(refused(udp.as_fd()), Reason::NotTcp);
        let (unix, gone) = std::os::unix::net::UnixStream::pair().expect("pair");
        drop(gone);
        assert_eq!(refused(unix.as_fd()), Reason::Closing);
        let (unix, _other) = std::os::unix::net::UnixDatagram::pair().expect("pair");
        assert_eq!(refused(unix.as_fd()), Reason::NotTcp);
        let file = tempfile::tempfile().expect("file");
        assert_eq!(refused(file.as_fd()), Reason::NotTcp);
        other.shutdown(std::net::Shutdown::Write).expect("shut");
        assert_eq!(refused(other.as_fd()), Reason::Closing);
        drop(other);
        assert_eq!(refused(one.as_fd()), Reason::Closing);
    }

    /// A device may lead to another network with the same addresses.
    #[test]
    fn a_socket_bound_to_a_device_proves_nothing() {
        use std::os::fd::FromRawFd;
        let diag = Diag::open().expect("sock_diag");
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let here = listener.local_addr().expect("bound");
        // SAFETY: the name and the address are valid for their lengths.
        let one = unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            let one = OwnedFd::from_raw_fd(fd);
            let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
            assert_eq!(
                libc::setsockopt(fd, level, option, c"lo".as_ptr().cast(), 3),
                0
            );
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            address.sin_family = libc::AF_INET as libc::sa_family_t;
            address.sin_port = here.port().to_be();
            address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
            let length = size_of_val(&address) as libc::socklen_t;
            assert_eq!(libc::connect(fd, (&raw const address).cast(), length), 0);
            one
        };
        let (other, _) = listener.accept().expect("accepted");
        assert_eq!(examine(one.as_fd(), &diag, None), Err(Reason::Closing));
        assert!(examine(other.as_fd(), &diag, None).is_ok());
    }

    #[test]
    fn other_addresses_than_the_socket_s_prove_nothing() {
        let diag = Diag::open().expect("sock_diag");
        let (_listener, one, other) = connection("127.0.0.1:0");
        let (_listener, unrelated, _its_other_end) = connection("127.0.0.1:0");
        let [local, remote] = ends_of(one.as_fd());
        let unknown = Address::Internet {
            ip: [0; 16],
            port: 0,
        };
        for said in [
            [remote, local],
            ends_of(unrelated.as_fd()),
            [local, unknown],
            [unknown, remote],
            [unknown; 2],
        ] {
            let proved = examine_saying(one.as_fd(), said, &diag, None);
            assert_eq!(proved, Err(Reason::Closing), "{said:?}");
        }
        assert!(examine_saying(other.as_fd(), [remote, local], &diag, None).is_ok());
    }

    #[test]
    fn a_cookie_names_no_other_socket_of_the_same_addresses() {
        let diag = Diag::open().expect("sock_diag");
        let (_listener, one, _other) = connection("127.0.0.1:0");
        let proved = examine(one.as_fd(), &diag, None).expect("established");
        assert!(diag.established(&proved.tuple, proved.cookie).is_some());
        assert!(diag.established(&proved.tuple, proved.cookie + 1).is_none());
        let elsewhere = proved.tuple.mirrored();
        assert!(diag.established(&elsewhere, proved.cookie).is_none());
    }
}
