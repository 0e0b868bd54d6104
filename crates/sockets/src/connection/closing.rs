//! Duplicating and closing descriptors, and the effect on their connections.
//!
//! A call that sleeps on a connection may find its number closed when it wakes, and given to
//! another connection. To the kernel a call belongs to the file with which it began. Here it
//! belongs to the connection:
//!
//! ```text
//!   a call that goes on                   close, dup2
//!   lock                                  forget the number
//!   the number, if it still names         lock, unlock
//!     the connection, or none             the kernel closes the number
//!   a call of the kernel's by it
//!   unlock
//! ```
//!
//! So no byte of another connection is taken, and none is sent on it. A call whose number is gone
//! ends with `EBADF`, or with the count of bytes that it has moved. The first system call of a
//! program's call needs no lock, because the call might as well have begun later.

use core::sync::atomic::Ordering;

use crate::adapter;
use crate::connection::orderings::LAST_USER_ACQ_REL;
use crate::connection::release;
use crate::connection::{self, Connection};
use crate::direction::takeover;
use crate::epoll::{early, lifetime, orphans};
use crate::express::{self, listener, parking};
use crate::memory::pairs;
use crate::offload::awaiting;
use crate::process;
use crate::process::descriptors::{self, Kind, Recorded};
use crate::process::pair_doorbells;
use crate::process::table;

/// `fd` is about to be closed, or another file is about to take its number.
pub(crate) fn closing(fd: i32) {
    end(fd, |connection| {
        connection.local.closing(|| end_number(connection));
    });
}

/// As [`closing`], when the program closes a single descriptor: the carrier may be parked.
pub(crate) fn closing_by_program(fd: i32) {
    end(fd, |connection| {
        connection.local.closing(|| {
            let last = connection.local.descriptors.load(Ordering::Relaxed) <= 1;
            if !(last && parking::park(connection)) {
                end_number(connection);
            }
        });
    });
}

/// The connection at `fd` was closed past the library, and the number belongs to another file now.
pub(crate) fn closed_before(fd: i32) {
    end(fd, end_number);
}

fn end(fd: i32, end_connection: impl FnOnce(&Connection)) {
    match descriptors::noted(fd) {
        Recorded::Connection(index, generation) => {
            if let Some(connection) = connection::numbered(fd, index, generation) {
                end_connection(&connection);
            }
        }
        Recorded::Epoll(number) => {
            if lifetime::is_last_descriptor(number) {
                listener::instance_closing(number);
            }
            descriptors::forget(fd);
            lifetime::closing(number, fd);
        }
        Recorded::Unconnected(_) => match express::forget_unconnected(fd) {
            Some(socket) => early::unconnected_closing(socket.registration),
            // Another thread has connected it meanwhile.
            None => closing(fd),
        },
        Recorded::Nothing => {}
    }
}

/// A number of a connection is being closed.
fn end_number(connection: &Connection) {
    let last = connection.local.descriptors.load(Ordering::Relaxed) <= 1;
    if !descriptors::forget_connection(connection.fd, connection.index, connection.generation) {
        // Another socket has taken its place meanwhile (`express::returning`).
        return closing(connection.fd);
    }
    orphans::descriptor_closing(connection, last);
    if connection.local.descriptors.fetch_sub(1, LAST_USER_ACQ_REL) == 1 {
        awaiting::closing(connection);
        release::release(connection);
    } else {
        show_another_number(connection);
        // A thread that takes the region away uses the carrier until it has stored null here.
        // Acquire pairs with the Release store in `leaving::frees`.
        if !connection.local.offered.load(Ordering::Acquire).is_null() {
            pass_through_locks(connection);
        }
    }
}

/// For `toehold status`: a descriptor of this process that is still open. Another process that
/// stores its own at this moment may win one of the two words; its next call shows both again.
fn show_another_number(connection: &Connection) {
    let entry = connection.entry;
    if entry.fd.load(Ordering::Relaxed) != connection.fd as u32 {
        return;
    }
    let (index, generation) = (connection.index, connection.generation);
    if let Some(fd) = descriptors::descriptor_of_connection(index, generation) {
        entry.fd.store(fd as u32, Ordering::Relaxed);
        entry.pid.store(process::pid(), Ordering::Relaxed);
    }
}

/// Waits until no thread uses the carrier by a number that was forgotten. At the last close
/// `release` does this.
fn pass_through_locks(connection: &Connection) {
    drop(takeover::lock_receiving(connection));
    drop(takeover::lock_sending(connection));
}

/// `to` now refers to what `from` does (`dup`, `F_DUPFD`).
pub(crate) fn duplicate(from: i32, to: i32) {
    match descriptors::noted(from) {
        Recorded::Connection(index, generation) => {
            if let Some(connection) = connection::numbered(from, index, generation) {
                connection.local.descriptors.fetch_add(1, Ordering::Relaxed);
                descriptors::note_connection(to, index, generation);
            }
        }
        Recorded::Epoll(number) => {
            lifetime::duplicated(number);
            descriptors::note_epoll(to, number);
        }
        Recorded::Unconnected(_) | Recorded::Nothing => descriptors::forget(to),
    }
}

/// The program is about to place another file at `fd`. If the library has a descriptor there, it is
/// moved. If there is no other free number, the library does without that descriptor.
pub(crate) fn vacate(fd: i32) {
    if descriptors::kind(fd) != Kind::Own {
        return;
    }
    let moved = descriptors::move_away(fd).unwrap_or(-1);
    table::moved(fd, moved);
    adapter::moved(fd, moved);
    orphans::moved(fd, moved);
    pair_doorbells::moved(fd, moved);
    pairs::doorbell_moved(fd, moved);
}
