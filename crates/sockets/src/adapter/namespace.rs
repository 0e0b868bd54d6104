//! Connections in another network namespace than the adapter.
//!
//! The adapter asks the kernel about each socket that it is shown (sock_diag(7)). The socket by
//! which it asks gets answers about its own namespace only. The adapter cannot make such a socket
//! in another namespace without privilege, but a program in that namespace can. So when a
//! connection was refused for its namespace ([`Reason::OtherNamespace`]), the library sends the
//! adapter a socket that can ask there, and requests the pairing once more.

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

/// True when the connection was refused because of its namespace, and the namespace was not shown
/// since.
#[inline]
pub(crate) fn is_wanted(connection: &Connection) -> bool {
    connection.entry.refusal.load(Ordering::Relaxed) == Reason::OtherNamespace as u32
        && connection.local.shown_epoch.load(Ordering::Relaxed) != adapter::epoch()
}

/// Shows the connection's namespace to the adapter. True when pairing may be requested again. The
/// caller holds the adapter's lock.
#[cold]
pub(crate) fn show(connection: &Connection, adapter: i32) -> bool {
    let epoch = adapter::epoch();
    // Only one try for each connection, even if it fails.
    let shown_epoch = &connection.local.shown_epoch;
    shown_epoch.store(epoch, Ordering::Relaxed);
    let Some(its) = sys::namespace_of(connection.fd) else {
        return false;
    };
    if SHOWN_EPOCH.load(Ordering::Relaxed) == epoch && SHOWN.load(Ordering::Relaxed) == its {
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
