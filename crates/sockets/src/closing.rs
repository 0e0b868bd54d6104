//! How descriptors are duplicated and closed, and what that means for what they stood for.

use core::sync::atomic::Ordering;

use crate::descriptors::{self, KIND_SHIFT, Kind};
use crate::offload::active_open;
use crate::{adapter, connection, epoll, release, table};

/// `fd` is about to be closed, or another file is about to take its number.
pub(crate) fn closing(fd: i32) {
    let Some(slot) = descriptors::slot(fd) else {
        return;
    };
    let word = slot.load(Ordering::Acquire);
    match word >> KIND_SHIFT {
        1 => {
            if let Some(connection) = connection::connection_of_word(fd, word) {
                slot.store(0, Ordering::Release);
                let last = connection.local.descriptors.load(Ordering::Relaxed) <= 1;
                epoll::descriptor_closing(&connection, last);
                if connection.local.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
                    active_open::closing(&connection);
                    release::release(&connection);
                }
            }
        }
        2 => {
            slot.store(0, Ordering::Release);
            epoll::closing(word as u32, fd);
        }
        0 if word != 0 => {
            slot.store(0, Ordering::Release);
            epoll::unconnected_closing(word as u32);
        }
        _ => {}
    }
}

/// `to` now refers to what `from` does (`dup`, `F_DUPFD`).
pub(crate) fn duplicate(from: i32, to: i32) {
    let word = descriptors::slot(from).map_or(0, |slot| slot.load(Ordering::Acquire));
    match word >> KIND_SHIFT {
        1 => {
            if let Some(connection) = connection::connection_of_word(from, word) {
                connection.local.descriptors.fetch_add(1, Ordering::Relaxed);
                descriptors::note(to, word);
            }
        }
        2 => {
            epoll::duplicated(word as u32);
            descriptors::note(to, word);
        }
        _ => descriptors::forget(to),
    }
}

/// The program is about to place another file at `fd`: if we live there, move. Where there is no
/// other number we go without: what has this one may be the program's from now on.
pub(crate) fn make_way(fd: i32) {
    if descriptors::kind(fd) != Kind::Own {
        return;
    }
    let moved = descriptors::out_of_the_way(fd);
    descriptors::forget(fd);
    let moved = match moved {
        Some(moved) => {
            descriptors::note(moved, 3 << KIND_SHIFT);
            moved
        }
        None => -1,
    };
    table::moved(fd, moved);
    adapter::moved(fd, moved);
    epoll::moved(fd, moved);
}
