//! An instance seen from outside: inside another one, or among the descriptors of a `poll`.
//!
//! The kernel calls an instance readable when it has an event for it, be that only one of ours. So
//! where that may be, its events are taken and sorted: ours go to the ready list, and those of
//! ordinary members, which the kernel repeats, are asked for again by the program. A member that
//! the kernel tells once ([`Epoll::tells_once`]) must not be taken from the program: such an
//! instance may be called readable without cause, once.

use core::sync::atomic::Ordering;

use libc::epoll_event;

use crate::epoll::instance::{BATCH, EPOLLS_MAX, Epoll, NESTED_MAX, Nested, epoll, needs_library};
use crate::epoll::registration::READABLE;
use crate::process::descriptors;
use crate::system::sys;

/// `epoll_ctl` on `epoll`, which is at `epoll_fd`, for the instance at `fd`.
pub(super) fn control_nested(
    epoll: &Epoll,
    epoll_fd: i32,
    operation: i32,
    fd: i32,
    event: Option<epoll_event>,
) -> Option<Result<(), i32>> {
    let child = descriptors::epoll_number(fd)?;
    let given = match operation {
        libc::EPOLL_CTL_DEL => epoll_event { events: 0, u64: 0 },
        _ => event?,
    };
    if operation != libc::EPOLL_CTL_DEL {
        // An old event of ours would make the kernel call the instance readable.
        settle(child);
    }
    let _held = epoll.lock.lock();
    // The kernel first: it refuses circles, and we follow what is booked here without looking for
    // them.
    let result = sys::epoll_ctl(epoll_fd, operation, fd, given.events, given.u64);
    if let Err(error) = sys::answer(result) {
        return Some(Err(error));
    }
    let known = epoll.known_nested();
    let place = known.iter().position(|one| {
        one.number.load(Ordering::Relaxed) == child && one.fd.load(Ordering::Relaxed) == fd
    });
    match (operation, place) {
        (libc::EPOLL_CTL_ADD, None) if known.len() < NESTED_MAX => {
            epoll.nested[known.len()].set(child, fd, given);
            epoll
                .nested_count
                .store(known.len() as u32 + 1, Ordering::Relaxed);
        }
        (libc::EPOLL_CTL_MOD, Some(place)) => known[place].set(child, fd, given),
        (libc::EPOLL_CTL_DEL, Some(place)) => remove(epoll, place),
        _ => {}
    }
    Some(Ok(()))
}

/// Takes a place off the list; the caller holds the instance's lock.
fn remove(epoll: &Epoll, place: usize) {
    let known = epoll.known_nested();
    let last = &known[known.len() - 1];
    let event = epoll_event {
        events: last.events.load(Ordering::Relaxed),
        u64: last.data.load(Ordering::Relaxed),
    };
    known[place].set(
        last.number.load(Ordering::Relaxed),
        last.fd.load(Ordering::Relaxed),
        event,
    );
    epoll
        .nested_count
        .store(known.len() as u32 - 1, Ordering::Relaxed);
}

/// Instance `number` is gone, and the kernel has taken it out of all others.
pub(super) fn forget_nested(number: u32) {
    for outer in (0..EPOLLS_MAX as u32).map_while(epoll) {
        if outer.nested_count.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let _held = outer.lock.lock();
        let is_gone = |one: &Nested| one.number.load(Ordering::Relaxed) == number;
        while let Some(place) = outer.known_nested().iter().position(is_gone) {
            remove(outer, place);
        }
    }
}

/// True when a wait on instance `number` would return at once because of accelerated members, here
/// or further inside; changes nothing.
pub(crate) fn has_ready(number: u32) -> bool {
    let Some(epoll) = epoll(number) else {
        return false;
    };
    let mut one = [epoll_event { events: 0, u64: 0 }; 1];
    for _ in 0..BATCH {
        if !epoll.sweep() {
            break;
        }
        if epoll.harvest(epoll.generation(), &mut one, false) > 0 {
            return true;
        }
    }
    epoll.has_nested_ready()
}

/// True when a wait on instance `number` would return at once.
pub(crate) fn has_news(number: u32) -> bool {
    if has_ready(number) {
        return true;
    }
    let Some(epoll) = epoll(number) else {
        return false;
    };
    let kernels = epoll.kernel_news(needs_library(number));
    if kernels.took_ours {
        // A thread that sleeps on the instance may have been woken by what was taken, and not have
        // looked yet.
        epoll.sleep_on();
    }
    // Sorting may have made a member ready. Members that are not are off the list now.
    let is_ready = has_ready(number);
    if is_ready && kernels.took_ours {
        epoll.share();
    }
    kernels.has_programs || is_ready
}

/// Takes events of ours from the kernel's part of instance `number`, as far as they may be taken.
/// No lock is held.
fn settle(number: u32) {
    let _ = has_news(number);
}

/// The events that the kernel has for an instance.
struct KernelNews {
    /// Events of the program's, which stay there.
    has_programs: bool,
    /// Events of ours, which were taken.
    took_ours: bool,
}

impl Epoll {
    fn kernel_news(&self, has_ours: bool) -> KernelNews {
        let fd = self.fd.load(Ordering::Relaxed) - 1;
        let mut news = KernelNews {
            has_programs: false,
            took_ours: false,
        };
        if !has_ours || self.tells_once.load(Ordering::Relaxed) != 0 {
            news.has_programs = sys::poll_now(fd, libc::POLLIN) != 0;
            return news;
        }
        loop {
            let mut events = [epoll_event { events: 0, u64: 0 }; BATCH];
            let count = sys::epoll_look(fd, &mut events);
            let programs = self.sort_kernel_events(&mut events[..count]);
            news.took_ours |= count > programs;
            news.has_programs |= programs > 0;
            // Ours are edge-triggered: each look finds fewer.
            if news.has_programs || count < BATCH {
                return news;
            }
        }
    }

    /// The kernel has said this of members. An instance among them may be readable to it for an old
    /// event of ours only: that is taken, so that it is told once and not again and again.
    pub(super) fn settle_nested(&self, said: &[epoll_event]) {
        for inner in self.known_nested() {
            let data = inner.data.load(Ordering::Relaxed);
            if said.iter().any(|event| { event.u64 } == data) {
                settle(inner.number.load(Ordering::Relaxed));
            }
        }
    }

    pub(super) fn has_nested_ready(&self) -> bool {
        let mut one = [epoll_event { events: 0, u64: 0 }; 1];
        self.nested_events(&mut one) > 0
    }

    pub(super) fn nested_events(&self, out: &mut [epoll_event]) -> usize {
        let mut written = 0;
        for inner in self.known_nested() {
            if written < out.len()
                && inner.events.load(Ordering::Relaxed) & READABLE != 0
                && has_ready(inner.number.load(Ordering::Relaxed))
            {
                out[written] = epoll_event {
                    events: inner.events.load(Ordering::Relaxed) & READABLE,
                    u64: inner.data.load(Ordering::Relaxed),
                };
                written += 1;
            }
        }
        written
    }
}

/// An instance inside this one that we found ready is ready to the kernel, too: once is enough.
pub(super) fn without_repeats(events: &mut [epoll_event], found: usize, kept: usize) -> usize {
    let mut unique = 0;
    for at in found..found + kept {
        let event = events[at];
        if events[..found]
            .iter()
            .all(|known| { known.u64 } != { event.u64 })
        {
            events[found + unique] = event;
            unique += 1;
        }
    }
    unique
}
