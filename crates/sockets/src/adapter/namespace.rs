//! Connections in another network namespace than the adapter.
//!
//! The adapter asks the kernel about each socket that it is shown (sock_diag(7)). The socket by
//! which it asks gets answers about its own namespace only. The adapter cannot make such a socket
//! in another namespace without privilege, but a program in that namespace can. So when a
//! connection was refused for its namespace ([`Reason::OtherNamespace`]), the library sends the
//! adapter a socket that can ask there, and requests the pairing once more.
//!
//! The adapter uses that socket only when no process has it but the adapter. A child that another
//! thread forks before the library closes the socket has it, too. Then the adapter refuses the
//! connection again, and the library sends another socket ([`SHOWS_MAX`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::Reason;

use crate::adapter;
use crate::connection::Connection;
use crate::system::sys;

/// The namespace that was shown last, and the adapter connection over which it was shown. Relaxed:
/// changed under the adapter's lock.
static SHOWN: AtomicU64 = AtomicU64::new(0);
static SHOWN_EPOCH: AtomicU32 = AtomicU32::new(0);

/// The most times that a connection's namespace is shown over one adapter connection.
const SHOWS_MAX: u32 = 4;

/// True when the connection was refused because of its namespace, and the namespace may be shown
/// (once more).
#[inline]
pub(crate) fn is_wanted(connection: &Connection) -> bool {
    connection.entry.refusal.load(Ordering::Relaxed) == Reason::OtherNamespace as u32
        && shows(connection, adapter::epoch()) < SHOWS_MAX
}

/// The number of times that the connection's namespace was shown in this epoch of the adapter.
fn shows(connection: &Connection, epoch: u32) -> u32 {
    let local = connection.local;
    match local.shown_epoch.load(Ordering::Relaxed) == epoch {
        true => local.shows.load(Ordering::Relaxed),
        false => 0,
    }
}

/// Shows the connection's namespace to the adapter. True when pairing may be requested again. The
/// caller holds the adapter's lock.
#[cold]
pub(crate) fn show(connection: &Connection, adapter: i32) -> bool {
    let epoch = adapter::epoch();
    let before = shows(connection, epoch);
    // Counted even if it fails.
    let local = connection.local;
    local.shows.store(before + 1, Ordering::Relaxed);
    local.shown_epoch.store(epoch, Ordering::Relaxed);
    let Some(its) = sys::namespace_of(connection.fd) else {
        return false;
    };
    let is_known =
        SHOWN_EPOCH.load(Ordering::Relaxed) == epoch && SHOWN.load(Ordering::Relaxed) == its;
    // A connection that is refused again needs another socket: the adapter cannot use the last one.
    if is_known && before == 0 {
        return true;
    }
    let Some(diag) = sys::open_diag() else {
        return false;
    };
    // The program may have gone to another namespace since it made its socket.
    let shown = sys::namespace_of(diag) == Some(its)
        && adapter::send(adapter, &Message::new(Kind::Namespace), Some(diag));
    sys::close(diag);
    if shown {
        SHOWN.store(its, Ordering::Relaxed);
        SHOWN_EPOCH.store(epoch, Ordering::Relaxed);
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// The adapter cannot use a socket that a forked child has, too: it refuses the connection
    /// again.
    #[test]
    fn connection_that_is_refused_again_shows_its_namespace_again() {
        let (adapter, ours) = UnixDatagram::pair().expect("a pair");
        adapter.set_nonblocking(true).expect("an option");
        let has_got_one = || adapter.recv(&mut [0; 1 << 10]).is_ok();
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let connections = [(); 2].map(|()| Connection::of_a_test(socket.as_raw_fd()));
        let refuse = |connection: &Connection| {
            let refusal = &connection.entry.refusal;
            refusal.store(Reason::OtherNamespace as u32, Ordering::Relaxed);
        };
        let [first, second] = &connections;
        for _ in 0..SHOWS_MAX {
            refuse(first);
            assert!(is_wanted(first));
            assert!(show(first, ours.as_raw_fd()) && has_got_one());
        }
        refuse(first);
        assert!(!is_wanted(first), "a bound");
        refuse(second);
        assert!(is_wanted(second));
        assert!(show(second, ours.as_raw_fd()) && !has_got_one(), "shown");
        refuse(second);
        assert!(show(second, ours.as_raw_fd()) && has_got_one());
    }
}
