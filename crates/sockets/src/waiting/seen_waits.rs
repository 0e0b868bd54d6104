//! Whether the program waits for a connection in a way that the library sees.
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
//!     └──────► elsewhere registered with an unknown instance, or used by a request of
//!                        io_uring ([`crate::uring`]): pinned
//! ```
//!
//! A registration alone is no evidence: Bun makes instances and registers through libc, but waits
//! on them with its own machine instructions, which are not always patched
//! ([`crate::epoll::first_wait`]).
//!
//! A carrier of [`crate::express`] is in a ring before it is known how the program waits for its
//! connection. So each turn of a carrier begins as unseen.
//!
//! A connection that was seen goes back to the kernel when the library sees a request of io_uring
//! that uses it. Waits past libc and liburing's shared library are never seen: if a program waits
//! in both ways for one connection, it may sleep although bytes are in the ring.

use core::sync::atomic::Ordering;

use crate::connection::{Connection, Local};
use crate::express::turns;
use crate::system::{errno, sys};

/// Set in [`Local::waits`] once a wait was seen. Below it: non-blocking calls in a row that found
/// nothing.
const SEEN: u32 = 1 << 31;
/// After this many of them, the program seems to poll by itself.
const EMPTY_POLLS_MAX: u32 = 8;
/// After this many bytes, a program with blocking calls that only sends is assumed to wait for
/// nothing.
const SENT_WITHOUT_ANSWER: u64 = 64 << 10;
/// The blocking mode of an unseen connection is checked once in this many calls that moved bytes.
const CALLS_BETWEEN_QUESTIONS: u32 = 16;

/// Records that the program waits for the connection through the library.
#[inline]
pub(crate) fn seen(connection: &Connection) {
    // The load avoids most stores: waits are frequent, and threads share the line.
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

/// The program's next connection on the carrier begins: it is unknown how the program will wait for
/// it.
pub(crate) fn begin_turn(local: &Local) {
    local.waits.store(0, Ordering::Relaxed);
}

/// A call on the host path has returned `result`, and set errno.
#[inline]
pub(crate) fn after_call(local: &Local, result: isize) {
    let waits = local.waits.load(Ordering::Relaxed);
    if waits & SEEN == 0 {
        after_unseen_call(local, waits, result);
    }
}

fn after_unseen_call(local: &Local, waits: u32, result: isize) {
    if result < 0 && errno::get() == libc::EAGAIN {
        let is_polling = waits + 1 >= EMPTY_POLLS_MAX;
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

/// True when the connection's calls block, and the program has received with them or has sent much.
/// A program that has only sent a little may wait for the answer in another way.
fn is_waited_for_in_calls(connection: &Connection) -> bool {
    let entry = connection.entry;
    let is_in_calls = entry.rx_carrier.load(Ordering::Relaxed) != 0
        || entry.tx_carrier.load(Ordering::Relaxed) >= SENT_WITHOUT_ANSWER
        || !connection.local.rx_in_flight.are_none();
    is_in_calls && !sys::is_nonblocking(connection.fd)
}

/// True when the library sees how the program waits for `connection`.
pub(crate) fn are_seen(connection: &Connection) -> bool {
    let local = connection.local;
    let are_seen = is_seen(local) || is_waited_for_in_calls(connection);
    if are_seen {
        seen(connection);
    }
    are_seen
}
