//! How descriptors are duplicated and closed, and what that means for what they stood for.

use core::sync::atomic::Ordering;

use crate::descriptors::{self, Kind, Noted};
use crate::epoll::{early, lifetime, orphans};
use crate::express::{self, listener, parking};
use crate::offload::awaiting;
use crate::orderings::LAST_OUT;
use crate::{adapter, connection, release, table};

/// `fd` is about to be closed, or another file is about to take its number.
pub(crate) fn closing(fd: i32) {
    end(fd, false);
}

/// As [`closing`], of a number that the program closes, alone: a carrier may be parked.
pub(crate) fn closing_by_program(fd: i32) {
    end(fd, true);
}

fn end(fd: i32, may_park: bool) {
    match descriptors::noted(fd) {
        Noted::Connection(index, generation) => {
            if let Some(connection) = connection::numbered(fd, index, generation) {
                let last = connection.local.descriptors.load(Ordering::Relaxed) <= 1;
                if may_park && last && parking::park(&connection) {
                    return;
                }
                if !descriptors::forget_connection(fd, index, generation) {
                    // Another socket has taken its place meanwhile (`express::returning`).
                    return end(fd, false);
                }
                orphans::descriptor_closing(&connection, last);
                if connection.local.descriptors.fetch_sub(1, LAST_OUT) == 1 {
                    awaiting::closing(&connection);
                    release::release(&connection);
                    connection.local.express.close_number();
                }
            }
        }
        Noted::Epoll(number) => {
            if lifetime::is_last_descriptor(number) {
                listener::instance_closing(number);
            }
            descriptors::forget(fd);
            lifetime::closing(number, fd);
        }
        Noted::Unconnected(_) => match express::forget_unconnected(fd) {
            Some(socket) => early::unconnected_closing(socket.registration),
            // Another thread has connected it meanwhile.
            None => end(fd, false),
        },
        Noted::Nothing => {}
    }
}

/// `to` now refers to what `from` does (`dup`, `F_DUPFD`).
pub(crate) fn duplicate(from: i32, to: i32) {
    match descriptors::noted(from) {
        Noted::Connection(index, generation) => {
            if let Some(connection) = connection::numbered(from, index, generation) {
                connection.local.descriptors.fetch_add(1, Ordering::Relaxed);
                descriptors::note_connection(to, index, generation);
            }
        }
        Noted::Epoll(number) => {
            lifetime::duplicated(number);
            descriptors::note_epoll(to, number);
        }
        Noted::Unconnected(_) | Noted::Nothing => descriptors::forget(to),
    }
}

/// The program is about to place another file at `fd`: if we live there, move. Where there is no
/// other number we go without: what has this one may be the program's from now on.
pub(crate) fn make_way(fd: i32) {
    if descriptors::kind(fd) != Kind::Own {
        return;
    }
    let moved = descriptors::move_away(fd).unwrap_or(-1);
    table::moved(fd, moved);
    adapter::moved(fd, moved);
    orphans::moved(fd, moved);
}
