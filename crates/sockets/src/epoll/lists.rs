//! The ready list and the list of members without a ready bitmap, both threaded through the
//! registrations.

use core::sync::atomic::Ordering;

use crate::epoll::instance::Epoll;
use crate::epoll::registration::registration;

/// As [`push_ready`], of one that has news.
pub(super) fn push_news(epoll: &Epoll, number: u32) {
    let news = epoll.news.load(Ordering::Relaxed);
    epoll.news.store(news.wrapping_add(1), Ordering::Relaxed);
    push_ready(epoll, number);
}

/// Puts a registration on the ready list; the caller holds the instance's lock.
pub(super) fn push_ready(epoll: &Epoll, number: u32) {
    let Some(one) = registration(number) else {
        return;
    };
    // A mark or a kernel event may be late. Then its number belongs to no registration, or to a
    // member of another instance.
    if !one.is_ours() || one.epoll.load(Ordering::Relaxed) != epoll.number.load(Ordering::Relaxed) {
        return;
    }
    // Written only under the lock, or before other threads know the registration.
    if one.on_ready.load(Ordering::Relaxed) != 0 {
        return;
    }
    one.on_ready.store(1, Ordering::Relaxed);
    one.ready_next.store(0, Ordering::Relaxed);
    match registration(epoll.ready_tail.load(Ordering::Relaxed)) {
        Some(tail) => tail.ready_next.store(number, Ordering::Relaxed),
        None => epoll.ready_head.store(number, Ordering::Relaxed),
    }
    epoll.ready_tail.store(number, Ordering::Relaxed);
}

pub(super) fn pop_ready(epoll: &Epoll) -> Option<u32> {
    let number = epoll.ready_head.load(Ordering::Relaxed);
    let one = registration(number)?;
    let next = one.ready_next.load(Ordering::Relaxed);
    epoll.ready_head.store(next, Ordering::Relaxed);
    if next == 0 {
        epoll.ready_tail.store(0, Ordering::Relaxed);
    }
    one.on_ready.store(0, Ordering::Relaxed);
    Some(number)
}

pub(super) fn remove_ready(epoll: &Epoll, number: u32) {
    let Some(gone) = registration(number) else {
        return;
    };
    if gone.on_ready.load(Ordering::Relaxed) == 0 {
        return;
    }
    gone.on_ready.store(0, Ordering::Relaxed);
    let mut before = 0u32;
    let mut at = epoll.ready_head.load(Ordering::Relaxed);
    while let Some(one) = registration(at) {
        let next = one.ready_next.load(Ordering::Relaxed);
        if at == number {
            match registration(before) {
                Some(previous) => previous.ready_next.store(next, Ordering::Relaxed),
                None => epoll.ready_head.store(next, Ordering::Relaxed),
            }
            if next == 0 {
                epoll.ready_tail.store(before, Ordering::Relaxed);
            }
            return;
        }
        before = at;
        at = next;
    }
}

pub(super) fn remove_polled(epoll: &Epoll, number: u32) {
    let mut place = &epoll.polled;
    while let Some(one) = registration(place.load(Ordering::Relaxed)) {
        if place.load(Ordering::Relaxed) == number {
            place.store(one.polled_next.load(Ordering::Relaxed), Ordering::Relaxed);
            return;
        }
        place = &one.polled_next;
    }
}
