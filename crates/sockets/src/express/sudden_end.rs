//! A process that is killed leaves no parked carriers at its listener's port.
//!
//! The kernel closes the carriers of a process that ends. If it closes them in order, the
//! listener's port is in use until the client's library closes its end, and then for a minute
//! (TIME_WAIT): a new server without `SO_REUSEADDR` could not have the port. On the kernel nothing
//! is left there of a connection that the client has closed first. So the carrier of such a
//! connection is parked with `SO_LINGER` of no time: then the kernel resets it, which no program
//! sees.
//!
//! The option costs two calls for each connection. So a carrier gets it only when a thread of the
//! program is about to sleep in `epoll_wait`, and loses it when it serves the next connection. The
//! carriers of a busy server, which does not sleep between its connections, do without.
//!
//! All functions need the lock of express, except [`is_due`].

use core::sync::atomic::{AtomicU32, Ordering};

use super::carrier_words::Words;
use super::turns;
use crate::connection::Connection;
use crate::system::sys;

/// Parked carriers that are [`DUE`].
static DUE_COUNT: AtomicU32 = AtomicU32::new(0);

/// States of a carrier ([`Words::sudden_end`]): it ends in the same way as its program's socket.
const AS_SOCKET: u32 = 0;
/// As above, until a thread is about to sleep.
const DUE: u32 = 1;
/// Its end is a reset.
const RESETS: u32 = 2;

/// The accepting end of a carrier was parked.
pub(super) fn parked(carrier: &Connection) {
    let end = carrier.end();
    if end.is_some_and(|end| turns::is_over(carrier, &end)) {
        let state = &carrier.local.express.sudden_end;
        state.store(DUE, Ordering::Relaxed);
        DUE_COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether there are carriers for [`prepare`].
#[inline]
pub(super) fn is_due() -> bool {
    DUE_COUNT.load(Ordering::Relaxed) != 0
}

/// From now on the sudden end of this parked carrier is a reset, if it is [`DUE`]. True when there
/// are more such carriers.
pub(super) fn prepare(words: &Words) -> bool {
    if words.sudden_end.load(Ordering::Relaxed) == DUE {
        let resets = words.high().is_some_and(set);
        let state = if resets { RESETS } else { AS_SOCKET };
        words.sudden_end.store(state, Ordering::Relaxed);
        DUE_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    is_due()
}

/// Sets the option. False when that of the listener, which the program has set, decides.
fn set(fd: i32) -> bool {
    let linger = sys::getsockopt::<[i32; 2]>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    linger.is_ok_and(|[is_on, _]| is_on == 0) && sys::set_linger(fd, [1, 0]) == 0
}

/// The carrier is not parked any more, or is about to serve a connection.
pub(super) fn undo(words: &Words) {
    match words.sudden_end.swap(AS_SOCKET, Ordering::Relaxed) {
        DUE => {
            DUE_COUNT.fetch_sub(1, Ordering::Relaxed);
        }
        RESETS => {
            if let Some(fd) = words.high() {
                sys::set_linger(fd, [0, 0]);
            }
        }
        _ => {}
    }
}
