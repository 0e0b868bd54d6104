//! Whether the program waits for a connection in a way that we see.
//!
//! The kernel does not know whether a ring has bytes or room. A program that waits by `epoll_wait`,
//! `poll`, `select` or in a blocking call asks the library. A program may also ask the kernel
//! directly: by io_uring, by system calls that it makes without libc, or in an epoll instance that
//! the library does not know. Such a program would sleep although bytes are in the ring, or it
//! would spin on a carrier that is always writable.
//!
//! So a connection whose program has not been seen waiting stays on the kernel:
//!
//! ```text
//!   unseen ──► seen      polled, selected, registered with an instance on which the program waits
//!     │                  through us, a blocking socket that has received, or sent much, or many
//!     │                  non-blocking calls in a row that found nothing: it does not wait
//!     └──────► elsewhere registered with an instance that we do not know, or used by a request of
//!                        io_uring ([`crate::uring`]): pinned
//! ```
//!
//! Registered alone is no evidence: Bun makes instances and registers by libc, and waits on them by
//! instructions of its own, which are not always patched ([`crate::epoll::first_wait`]).
//!
//! A carrier of [`crate::express`] is in a ring before anything is known of how the program waits
//! for its connection. So each turn of a carrier begins as unseen.
//!
//! A connection that was seen goes back to the kernel when a request of io_uring uses it that we
//! see. Waits that are made past libc and liburing's shared library are never seen: a program that
//! waits in both ways for one connection sleeps beside its bytes.

use core::sync::atomic::Ordering;

use crate::connection::{Connection, Local};
use crate::express::turns;
use crate::system::{errno, sys};

/// Set in [`Local::waits`] once a wait was seen. Below it: non-blocking calls in a row that found
/// nothing.
const SEEN: u32 = 1 << 31;
/// So many of them are a program that looks by itself.
const FRUITLESS_POLLING: u32 = 8;
/// Bytes after which a program that blocks and only sends is taken for one that waits for nothing.
const SENT_WITHOUT_ANSWER: u64 = 64 << 10;
/// How often, in calls that moved bytes, an unseen connection is asked for its mode.
const CALLS_BETWEEN_QUESTIONS: u32 = 16;

/// The program waits for it through us.
#[inline]
pub(crate) fn seen(connection: &Connection) {
    // Looked at first: waits are many, and the line is shared by threads.
    if !is_seen(connection.local) {
        connection.local.waits.fetch_or(SEEN, Ordering::Relaxed);
        turns::note_seen(connection);
    }
}

/// True when [`seen`] was called.
#[inline]
pub(crate) fn is_seen(local: &Local) -> bool {
    local.waits.load(Ordering::Relaxed) & SEEN != 0
}

/// The next connection of the program on the same carrier begins: of how the program waits for
/// that one, nothing is known.
pub(crate) fn begin_turn(local: &Local) {
    local.waits.store(0, Ordering::Relaxed);
}

/// A call on the host path came to `result`, with errno.
#[inline]
pub(crate) fn after_call(local: &Local, result: isize) {
    let waits = local.waits.load(Ordering::Relaxed);
    if waits & SEEN != 0 {
        return;
    }
    if result < 0 && errno::get() == libc::EAGAIN {
        let is_polling = waits + 1 >= FRUITLESS_POLLING;
        let waits = if is_polling { SEEN } else { waits + 1 };
        local.waits.store(waits, Ordering::Relaxed);
    } else if waits != 0 {
        local.waits.store(0, Ordering::Relaxed);
    }
}

/// True when it is worth asking [`are_seen`] after `calls` calls that moved bytes.
#[inline]
pub(crate) fn may_be_seen(local: &Local, calls: u32) -> bool {
    is_seen(local) || calls.is_multiple_of(CALLS_BETWEEN_QUESTIONS)
}

/// True when its calls block, and it receives by them, or has sent much. A program that has only
/// sent a little may wait for the answer elsewhere.
fn is_waited_for_in_calls(connection: &Connection) -> bool {
    let entry = connection.entry;
    let is_in_calls = entry.rx_carrier.load(Ordering::Relaxed) != 0
        || entry.tx_carrier.load(Ordering::Relaxed) >= SENT_WITHOUT_ANSWER
        || connection.local.rx_in_flight.load(Ordering::Relaxed) != 0;
    is_in_calls && !sys::is_nonblocking(connection.fd)
}

/// True when we see how the program waits for `connection`.
pub(crate) fn are_seen(connection: &Connection) -> bool {
    let local = connection.local;
    let are_seen = is_seen(local) || is_waited_for_in_calls(connection);
    if are_seen {
        seen(connection);
    }
    are_seen
}
