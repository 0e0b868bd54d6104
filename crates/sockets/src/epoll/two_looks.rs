//! One answer of `epoll_wait` from two looks: at the kernel and at the rings.

use core::sync::atomic::Ordering;

use libc::epoll_event;

use crate::epoll::instance::{BATCH, Epoll, Instance};

/// Events of the kernel and of the library in one call: the first part has `first` events, the
/// second part the rest.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) first: usize,
    pub(super) total: usize,
    /// A member may be among both.
    pub(super) has_moved: bool,
}

impl Parts {
    /// `moves` are from before the first part; `None` where that has no members.
    pub(super) fn between(epoll: &Epoll, first: usize, total: usize, moves: Option<u32>) -> Parts {
        Parts {
            first: first.min(total),
            total,
            has_moved: moves.is_some_and(|before| before != epoll.moves()),
        }
    }
}

/// The result of a wait to which the kernel and the library have both contributed.
pub(super) fn once_each(epoll: &Epoll, events: &mut [epoll_event], parts: Parts) -> i32 {
    let found = match parts.has_moved {
        true => without_second_of_moved(events, parts),
        false => parts.total,
    };
    match epoll.listener.load(Ordering::Relaxed) {
        0 => found as i32,
        _ => epoll.without_second_listener(events, found) as i32,
    }
}

/// Another thread has moved a member between the two looks, so both may have found it. It must be
/// reported once, as the kernel does, because a program may free the object that its data names at
/// the first event. Members with equal data also look equal to the program.
#[cold]
fn without_second_of_moved(events: &mut [epoll_event], parts: Parts) -> usize {
    let (first, second) = events[..parts.total].split_at_mut(parts.first);
    let mut left = 0;
    for at in 0..second.len() {
        let event = second[at];
        match first.iter_mut().find(|one| { one.u64 } == { event.u64 }) {
            Some(told) => told.events |= event.events,
            None => {
                second[left] = event;
                left += 1;
            }
        }
    }
    parts.first + left
}

/// Ends a call in which the kernel had events of carriers, beside the `told` events: adds the
/// events of their members. No bit was marked for these members, so the look at the rings may not
/// have found them. The kernel would report all of them to a call with a time-out of 0, and the
/// program may rely on that. `has_rings`: the look at the rings has found some. Members that it has
/// found are found again: those that are level-triggered, and those whose bytes are on the carrier,
/// because the kernel's event may be that of bytes that came after the look. The program is told
/// once of both; otherwise the next call would report an edge that this call has reported.
#[cold]
pub(super) fn with_members_of_carriers(
    Instance {
        epoll, generation, ..
    }: Instance,
    events: &mut [epoll_event],
    told: i32,
    has_rings: bool,
) -> i32 {
    // Not in the program's array, which must not change beyond the events that are reported.
    let mut more = [epoll_event { events: 0, u64: 0 }; BATCH];
    let first = told as usize;
    let room = BATCH.min(events.len() - first);
    let found = epoll.sweep_and_harvest(generation, &mut more[..room]);
    let mut total = first;
    for event in &more[..found] {
        let is_it = |one: &&mut epoll_event| has_rings && { one.u64 } == { event.u64 };
        match events[..first].iter_mut().find(is_it) {
            Some(told) => told.events |= event.events,
            None => {
                events[total] = *event;
                total += 1;
            }
        }
    }
    match epoll.listener.load(Ordering::Relaxed) {
        0 => total as i32,
        _ => epoll.without_second_listener(events, total) as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_that_moved_is_reported_once_with_the_events_of_both_looks() {
        let event = |events, u64| epoll_event { events, u64 };
        let told = |has_moved| {
            let mut events = [
                event(1, 7),
                event(1, 8),
                event(4, 9),
                event(4, 8),
                event(4, 9),
            ];
            let parts = Parts {
                first: 2,
                total: events.len(),
                has_moved,
            };
            let count = match has_moved {
                true => without_second_of_moved(&mut events, parts),
                false => parts.total,
            };
            events.map(|one| (one.events, one.u64))[..count].to_vec()
        };
        // Members of one look are distinct, even if their data is equal.
        assert_eq!(told(true), [(1, 7), (5, 8), (4, 9), (4, 9)]);
        assert_eq!(told(false).len(), 5);
    }
}
