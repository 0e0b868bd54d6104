//! `epoll_ctl`.

use core::sync::atomic::Ordering;

use libc::{EPOLLEXCLUSIVE, epoll_event};
use toehold_channel::table::{Mode, Reason};

use crate::connection::closing;
use crate::connection::{self, Connection};
use crate::epoll::early::control_early;
use crate::epoll::instance::{Epoll, MEMBERS, epoll};
use crate::epoll::kernel_registrations::{kick, modify_kernels};
use crate::epoll::lists::push_ready;
use crate::epoll::membership::{answered, become_ours, leave, take_members_from_kernel};
use crate::epoll::nested::control_nested;
use crate::epoll::registration::{
    ANSWER_EVENTS, CARRIER_EVENTS, LINKED, Registration, State, TAG, WRITABLE,
    allocate_registration, armed, find, free_registration, registration, tag, untag,
};
use crate::offload::awaiting;
use crate::process::descriptors::{self, Kind};
use crate::system::sys;
use crate::waiting::seen_waits;

/// `epoll_ctl` on a known instance. `Some` is the answer; `None`: the kernel's own call does it
/// all.
pub(crate) fn control(
    number: u32,
    epoll_fd: i32,
    operation: i32,
    fd: i32,
    event: Option<epoll_event>,
) -> Option<Result<(), i32>> {
    let epoll = epoll(number)?;
    let connection = connection::at(fd);
    if let (Some(event), libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) = (event, operation) {
        if untag(event.u64).is_some() {
            // One in four thousand million: this program's data looks like our tags. Its epolls
            // stay the kernel's.
            TAG.store(0, Ordering::Relaxed);
        }
        let attachment = connection.as_ref().map(|one| &one.local.attachment);
        if !attachment.is_some_and(|attachment| attachment.has_region()) {
            epoll.note_ordinary(event.events);
        }
    }
    let Some(connection) = connection else {
        return match descriptors::kind(fd) {
            Kind::Epoll => control_nested(epoll, epoll_fd, operation, fd, event),
            Kind::Foreign => control_early(number, epoll_fd, operation, fd, event),
            Kind::Connection | Kind::Own => None,
        };
    };
    let mut known = find(&connection, number, fd);
    if known.is_none() && operation != libc::EPOLL_CTL_ADD {
        // Another thread may have put it into the kernel and not yet into our table, and we have
        // had its first event.
        let _members = connection.local.membership.lock();
        known = find(&connection, number, fd);
    }
    match operation {
        libc::EPOLL_CTL_ADD => {
            let event = event?;
            if let Some((n, one)) = known
                && one.state() == State::Parked
                && take_back(epoll, number, &connection, (n, one), &event)
            {
                show(epoll, &connection, one, n);
                return Some(Ok(()));
            }
            add(&connection, number, epoll_fd, event)
        }
        libc::EPOLL_CTL_MOD => {
            let (n, one) = known?;
            if one.state() == State::Parked {
                return Some(Err(libc::ENOENT));
            }
            let event = event?;
            if one.state() == State::Held {
                let _held = epoll.lock.lock();
                one.set(armed(event.events), event.u64);
                return Some(Ok(()));
            }
            if one.is_kernels() {
                let _members = connection.local.membership.lock();
                if one.is_kernels() {
                    return Some(modify_kernels(epoll, epoll_fd, n, &event));
                }
            }
            if !one.is_ours() {
                return None;
            }
            // epoll_ctl(2): an exclusive registration cannot be modified, nor an ordinary one made
            // exclusive.
            if (event.events | one.events()) & EPOLLEXCLUSIVE as u32 != 0 {
                return Some(Err(libc::EINVAL));
            }
            {
                let _held = epoll.lock.lock();
                one.set(armed(event.events), event.u64);
                one.rearm();
                push_ready(epoll, n);
            }
            show(epoll, &connection, one, n);
            Some(Ok(()))
        }
        libc::EPOLL_CTL_DEL => {
            let (_, one) = known?;
            if one.moves(State::InBitmap, State::Parked) {
                epoll.ours.fetch_sub(1, Ordering::Relaxed);
                return Some(Ok(()));
            }
            if one.state() == State::Parked {
                return Some(Err(libc::ENOENT));
            }
            let _members = connection.local.membership.lock();
            let (n, _) = find(&connection, number, fd)?;
            let carrier = one.carrier();
            let is_orphan = carrier != fd;
            if is_orphan {
                sys::epoll_ctl(epoll_fd, operation, carrier, 0, 0);
            }
            leave(epoll, &connection, n);
            is_orphan.then_some(Ok(()))
        }
        _ => None,
    }
}

fn add(
    connection: &Connection,
    number: u32,
    epoll_fd: i32,
    event: epoll_event,
) -> Option<Result<(), i32>> {
    let epoll = epoll(number)?;
    let members = connection.local.membership.lock();
    if let Some((_, one)) = find(connection, number, connection.fd) {
        let fd = connection.fd;
        if one.carrier() != fd {
            // The number was closed, its registration went to a duplicate in the kernel, and now
            // the number is the same file's again: the kernel would have kept the registration.
            return Some(Err(libc::EEXIST));
        }
        // The kernel knows whether it is the same file.
        let result = sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_ADD, fd, event.events, event.u64);
        if let Err(error) = sys::answer(result) {
            return Some(Err(error));
        }
        // The number was closed past us and given out again. The descriptor behind it is new.
        drop(members);
        sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        closing::closed_before(fd);
        return match control(number, epoll_fd, libc::EPOLL_CTL_ADD, fd, Some(event)) {
            Some(answer) => Some(answer),
            None => {
                let add = libc::EPOLL_CTL_ADD;
                let result = sys::epoll_ctl(epoll_fd, add, fd, event.events, event.u64);
                Some(sys::answer(result).map(drop))
            }
        };
    }
    let _members = members;
    seen_waits::seen(connection);
    let is_held = awaiting::is_connecting(connection) && TAG.load(Ordering::Relaxed) != 0;
    let n = allocate_registration();
    let is_attached = connection.local.attachment.has_region() && TAG.load(Ordering::Relaxed) != 0;
    // In our table first: what a one-shot tells is not told again.
    let armed = n.and_then(registration).zip(n).map(|(one, n)| {
        let event = epoll_event {
            events: armed(event.events),
            ..event
        };
        let (data, state) = one.arm(n, &event);
        one.become_state(if is_held { State::Held } else { state });
        data
    });
    let (events, data) = match n {
        Some(n) if is_held => (ANSWER_EVENTS, tag(n)),
        // Ours from the start: a thread that sleeps on the instance must not meet the member twice,
        // as the kernel's and as ours.
        Some(n) if is_attached => (CARRIER_EVENTS, tag(n)),
        _ => (event.events, armed.unwrap_or(event.u64)),
    };
    let result = sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_ADD, connection.fd, events, data);
    if let Err(error) = sys::answer(result) {
        if let Some(n) = n {
            free_registration(n);
        }
        return Some(Err(error));
    }
    let Some(n) = n else {
        connection.pin(Reason::NoResources);
        return Some(Ok(()));
    };
    let one = registration(n)?;
    one.generation
        .store(connection.generation, Ordering::Relaxed);
    one.fd.store(connection.fd, Ordering::Relaxed);
    one.epoll.store(number, Ordering::Relaxed);
    one.on_ready.store(0, Ordering::Relaxed);
    one.rearm();
    if is_held {
        epoll.ours.fetch_add(1, Ordering::Relaxed);
    }
    one.next.store(
        connection.local.registrations.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    one.connection.store(connection.index + 1, LINKED);
    connection.local.registrations.store(n, LINKED);
    if is_held && !awaiting::is_connecting(connection) {
        // Another thread has taken the answer meanwhile.
        answered(connection);
    }
    if connection.local.attachment.has_region() {
        take_members_from_kernel(connection);
    }
    Some(Ok(()))
}

/// A parked registration is added again. False when it is on its way out of our table.
///
/// While it was parked the connection may have been another instance's, or a fork may have come: so
/// it is decided anew how it hears of news.
fn take_back(
    epoll: &Epoll,
    number: u32,
    connection: &Connection,
    (n, one): (u32, &Registration),
    event: &epoll_event,
) -> bool {
    let members = connection.local.membership.lock();
    let _held = epoll.lock.lock_within(&members);
    if one.state() != State::Parked {
        return false;
    }
    seen_waits::seen(connection);
    one.set(armed(event.events), event.u64);
    one.rearm();
    epoll.ours.fetch_add(1, MEMBERS);
    become_ours(epoll, number, connection, one, n);
    push_ready(epoll, n);
    true
}

/// A member's interest changed, and it is on the ready list: wakes a thread that sleeps already.
/// Not to be called with the lock held.
fn show(epoll: &Epoll, connection: &Connection, one: &Registration, n: u32) {
    let wants_room = one.events() & WRITABLE != 0;
    let end = wants_room.then(|| connection.end()).flatten();
    if end.is_some_and(|end| end.tx_mode() != Mode::Ring) {
        // The room is the kernel's, and so are the news of it.
        kick(epoll.fd.load(Ordering::Relaxed) - 1, one.carrier(), n);
    } else {
        epoll.show_to_sleepers(n, one.carrier());
    }
}
