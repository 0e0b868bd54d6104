//! Registrations of sockets that are not connected yet: they are recorded by descriptor until there
//! is a connection.

use core::sync::atomic::Ordering;

use libc::epoll_event;

use crate::connection::Connection;
use crate::epoll::instance::{Epoll, epoll};
use crate::epoll::kernel_registrations::modify_kernels;
use crate::epoll::news;
use crate::epoll::registration::{
    LINK_RELEASE, ONESHOT, State, allocate_registration, armed, free_registration, registration,
};
use crate::lock;
use crate::process::descriptors;
use crate::system::sys;
use crate::waiting::seen_waits;

/// Held while the list of an unconnected socket's registrations changes.
pub(super) static EARLY_LOCK: lock::Private = lock::Private::new();

/// `epoll_ctl` on a descriptor that is not a connection. A stream socket may become one, because
/// many programs register first and connect later.
pub(super) fn control_early(
    number: u32,
    epoll_fd: i32,
    operation: i32,
    fd: i32,
    event: Option<epoll_event>,
) -> Option<Result<(), i32>> {
    let epoll = epoll(number)?;
    // If the lock is held, another thread may have put the registration into the kernel and not yet
    // into our table.
    let has_any = || descriptors::early_registrations(fd) != 0 || EARLY_LOCK.is_held();
    match operation {
        libc::EPOLL_CTL_ADD => {
            let event = event?;
            if !sys::may_connect(fd) {
                return None;
            }
            let _held = EARLY_LOCK.lock();
            let first = descriptors::early_registrations(fd);
            let entered = allocate_registration().and_then(|n| Some((n, registration(n)?)));
            let mut data = event.u64;
            if let Some((n, one)) = entered {
                one.fd.store(fd, Ordering::Relaxed);
                one.epoll.store(number, Ordering::Relaxed);
                one.on_ready.store(0, Ordering::Relaxed);
                one.rearm();
                one.next.store(first, Ordering::Relaxed);
                let event = epoll_event {
                    events: armed(event.events),
                    ..event
                };
                data = one.arm(n, &event, epoll.is_waited_on()).0;
                one.become_state(State::Early);
            }
            let result = sys::epoll_ctl(epoll_fd, operation, fd, event.events, data);
            let Some((n, _)) = entered else {
                return Some(sys::answer(result).map(drop));
            };
            if result < 0 {
                free_registration(n);
            } else if !descriptors::set_early_registrations(fd, first, n) {
                // The number belongs to another file by now, which only the kernel knows.
                free_registration(n);
                sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_MOD, fd, event.events, event.u64);
            }
            Some(sys::answer(result).map(drop))
        }
        libc::EPOLL_CTL_MOD if has_any() => {
            let _held = EARLY_LOCK.lock();
            let event = event?;
            Some(modify_kernels(
                epoll,
                epoll_fd,
                find_early(number, fd)?,
                &event,
            ))
        }
        libc::EPOLL_CTL_DEL if has_any() => {
            let _held = EARLY_LOCK.lock();
            forget_early(find_early(number, fd)?);
            None
        }
        _ => None,
    }
}

fn find_early(number: u32, fd: i32) -> Option<u32> {
    let mut n = descriptors::early_registrations(fd);
    while let Some(one) = registration(n) {
        if one.epoll.load(Ordering::Relaxed) == number {
            return Some(n);
        }
        n = one.next.load(Ordering::Relaxed);
    }
    None
}

/// Takes registration `gone` off its socket's list. The caller holds [`EARLY_LOCK`].
pub(super) fn forget_early(gone: u32) {
    let Some(leaver) = registration(gone) else {
        return;
    };
    let fd = leaver.fd.load(Ordering::Relaxed);
    let after = leaver.next.load(Ordering::Relaxed);
    if !descriptors::set_early_registrations(fd, gone, after) {
        let mut n = descriptors::early_registrations(fd);
        while let Some(one) = registration(n) {
            n = one.next.load(Ordering::Relaxed);
            if n == gone {
                one.next.store(after, Ordering::Relaxed);
            }
        }
    }
    free_registration(gone);
}

/// A socket that was registered before it was connected is a connection now; `first` is its first
/// registration.
pub(crate) fn adopt(connection: &Connection, first: u32) {
    let _members = connection.local.membership.lock();
    let _held = EARLY_LOCK.lock();
    let mut n = first;
    while let Some(one) = registration(n) {
        let number = one.epoll.load(Ordering::Relaxed);
        let is_waited_on = epoll(number).is_some_and(Epoll::is_waited_on);
        if is_waited_on {
            seen_waits::seen(connection);
        }
        one.generation
            .store(connection.generation, Ordering::Relaxed);
        let once = one.events() & ONESHOT != 0 && is_waited_on;
        one.become_state(if once { State::Once } else { State::Plain });
        news::note_interest(connection, one.events());
        one.connection.store(connection.index + 1, LINK_RELEASE);
        n = one.next.load(Ordering::Relaxed);
    }
    connection.local.registrations.store(first, LINK_RELEASE);
}

/// Writes the registrations of an unconnected socket to `out`, with their instances, as many as
/// fit. Forgets all of them. Returns how many were written.
pub(crate) fn take_all(fd: i32, out: &mut [(u32, epoll_event)]) -> usize {
    let first = descriptors::early_registrations(fd);
    if first == 0 {
        return 0;
    }
    let mut count = 0;
    let _held = EARLY_LOCK.lock();
    let mut n = first;
    while let Some(one) = registration(n) {
        let next = one.next.load(Ordering::Relaxed);
        if let Some(place) = out.get_mut(count) {
            let event = epoll_event {
                events: one.events(),
                u64: one.data(),
            };
            *place = (one.epoll.load(Ordering::Relaxed), event);
            count += 1;
        }
        free_registration(n);
        n = next;
    }
    count
}

/// A socket that never became a connection is being closed.
pub(crate) fn unconnected_closing(first: u32) {
    let _held = EARLY_LOCK.lock();
    let mut n = first;
    while let Some(one) = registration(n) {
        let next = one.next.load(Ordering::Relaxed);
        free_registration(n);
        n = next;
    }
}
