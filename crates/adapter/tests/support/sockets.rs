//! Connections for tests: real sockets, named by ports that a test chooses.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use super::wait_until;

/// Sockets that were made for a test, by the ports that the test gave them.
static MADE: Mutex<BTreeMap<(u16, u16), i32>> = Mutex::new(BTreeMap::new());

/// The socket that a test names by these ports. If this process has a socket with exactly these
/// ports, that socket; otherwise one end of a new connection, whose other end has the ports in
/// reverse order.
pub(crate) fn of(local_port: u16, remote_port: u16) -> BorrowedFd<'static> {
    let fd = open_with(local_port, remote_port).unwrap_or_else(|| {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if !made.contains_key(&(local_port, remote_port)) {
            let (one, other) = connection();
            made.insert((remote_port, local_port), raw(other));
            made.insert((local_port, remote_port), raw(one));
        }
        made[&(local_port, remote_port)]
    });
    // SAFETY: open: those made are never closed, and the test that names another's ports has it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Closes both ends of a connection that was made for a test; no other test may use these ports.
pub(crate) fn close(local_port: u16, remote_port: u16) {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    for ports in [(local_port, remote_port), (remote_port, local_port)] {
        if let Some(fd) = made.remove(&ports) {
            // SAFETY: made by `of`, and nobody else closes it.
            drop(unsafe { TcpStream::from_raw_fd(fd) });
        }
    }
}

/// The addresses of the socket that a test names by these ports.
pub(crate) fn addresses(local_port: u16, remote_port: u16) -> (SocketAddr, SocketAddr) {
    let fd = of(local_port, remote_port).as_raw_fd();
    // SAFETY: only asked for its addresses, and not closed.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    let local = stream.local_addr().expect("connected");
    (local, stream.peer_addr().expect("connected"))
}

/// Accepts a connection of another process.
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    listener.set_nonblocking(true).expect("a socket");
    let mut accepted = None;
    let has_come = wait_until(|| {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    assert!(has_come, "nobody connects");
    accepted.expect("just accepted")
}

/// The two ends of a connection.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let here = listener.local_addr().expect("bound");
    let one = TcpStream::connect(here).expect("connected");
    (one, listener.accept().expect("accepted").0)
}

fn raw(stream: TcpStream) -> i32 {
    ManuallyDrop::new(stream).as_fd().as_raw_fd()
}

/// A descriptor of this process that is connected with exactly these ports.
fn open_with(local_port: u16, remote_port: u16) -> Option<i32> {
    /// More than the descriptors of the tests that run at one time.
    const LOOKED_AT: i32 = 2048;
    /// Ports that tests make up are lower, at least at one end.
    const REAL_MIN: u16 = 10_000;
    if local_port.min(remote_port) < REAL_MIN {
        return None;
    }
    (3..LOOKED_AT).find(|&fd| {
        // SAFETY: only asked for its addresses, and not closed.
        let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
        let ports = [stream.local_addr(), stream.peer_addr()];
        let ports = ports.map(|address| address.map_or(0, |address| address.port()));
        ports == [local_port, remote_port]
    })
}

/// A socket that asks about sockets of this thread's namespace.
pub(crate) fn diag() -> OwnedFd {
    // SAFETY: a new descriptor, or -1, which is refused.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let socket = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG);
        assert!(socket >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(socket)
    }
}
