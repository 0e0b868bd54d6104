//! The kernel's part of a registration: the program's events and data, or the library's.

use core::sync::atomic::Ordering;

use libc::{EPOLLET, EPOLLOUT, epoll_event};
use toehold_channel::sync::fence;
use toehold_channel::table::Reason;

use crate::connection::Connection;
use crate::epoll::instance::{Epoll, ONCE_KNOWN};
use crate::epoll::registration::{
    CARRIER_EVENTS, Registration, State, TAG, armed, registration, tag,
};
use crate::system::sys;

/// Wakes a thread that sleeps in the kernel on this instance: a carrier is practically always
/// writable.
pub(super) fn kick(epoll_fd: i32, fd: i32, number: u32) {
    sys::epoll_ctl(
        epoll_fd,
        libc::EPOLL_CTL_MOD,
        fd,
        CARRIER_EVENTS | EPOLLOUT as u32,
        tag(number),
    );
}

/// Replaces the events and data of a registration in the kernel. False when that fails.
pub(super) fn replace(epoll_fd: i32, fd: i32, events: u32, data: u64) -> bool {
    if sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_MOD, fd, events, data) >= 0 {
        return true;
    }
    // A registration with EPOLLEXCLUSIVE cannot be modified (fs/eventpoll.c, `do_epoll_ctl`), so
    // the old one is removed and a new one added. If there is no old one, the number may belong to
    // another file.
    sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, fd, 0, 0) >= 0
        && sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_ADD, fd, events, data) >= 0
}

/// Replaces the program's events and data in the kernel with our events and tag. False when that
/// fails; then the connection stays on its carrier.
pub(super) fn kernel_has_ours(
    connection: &Connection,
    epoll: &Epoll,
    one: &Registration,
    n: u32,
) -> bool {
    if TAG.load(Ordering::Relaxed) == 0 {
        connection.pin(Reason::Unsupported);
        return false;
    }
    let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
    let (fd, events) = (one.carrier(), one.carrier_events());
    if replace(epoll_fd, fd, events, tag(n))
        || sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_ADD, fd, events, tag(n)) >= 0
    {
        return true;
    }
    connection.pin(Reason::NoResources);
    false
}

/// Tells the kernel to watch nothing for registration `n`, except the carrier's end, which the
/// kernel always reports.
pub(super) fn kernel_has_none(epoll: &Epoll, one: &Registration, n: u32) {
    let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
    replace(epoll_fd, one.carrier(), EPOLLET as u32, tag(n));
}

/// Puts the program's events back in the kernel, for a registration that is [`State::Plain`].
pub(super) fn kernel_has_programs(epoll: &Epoll, one: &Registration, n: u32) {
    let wanted = epoll_event {
        events: one.events(),
        u64: one.data(),
    };
    let data = {
        let _held = epoll.lock.lock();
        let (data, state) = one.arm(n, &wanted, epoll.is_waited_on());
        one.moves(State::Plain, state);
        data
    };
    epoll.note_ordinary(wanted.events, ONCE_KNOWN, || true);
    // A one-shot that was reported will report errors and hang-ups again; `Registration::tell_once`
    // drops them.
    let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
    replace(epoll_fd, one.carrier(), wanted.events, data);
}

/// The program changes a registration that the kernel answers. The caller holds the lock under
/// which the kernel's registrations change.
pub(super) fn modify_kernels(
    epoll: &Epoll,
    epoll_fd: i32,
    n: u32,
    event: &epoll_event,
) -> Result<(), i32> {
    let one = registration(n).ok_or(libc::ENOENT)?;
    let wanted = epoll_event {
        events: armed(event.events),
        ..*event
    };
    let fd = one.carrier();
    epoll.note_ordinary(event.events, ONCE_KNOWN, || true);
    // Our table is changed first, so that the kernel's events of the new arming are recognised.
    let held = epoll.lock.lock();
    let before = (one.events(), one.data(), one.armings(), one.state());
    let (data, state) = one.arm(n, &wanted, epoll.is_waited_on());
    if state == State::Once {
        one.moves(State::Plain, State::Once);
    }
    drop(held);
    let result = sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_MOD, fd, event.events, data);
    if let Err(error) = sys::answer(result) {
        let _held = epoll.lock.lock();
        one.set(before.0, before.1);
        one.set_armings(before.2);
        one.become_state(before.3);
        return Err(error);
    }
    if state == State::Plain {
        one.moves(State::Once, State::Plain);
    }
    Ok(())
}

impl Epoll {
    /// Called when the library has become the owner of a member, or its interest has changed.
    /// Threads that already sleep do not know that, so one of them is woken. Not to be called with
    /// the lock held.
    pub(super) fn show_to_sleepers(&self, n: u32, fd: i32) {
        // After the change to our table. Pairs with the sleeper's steps in `waiting::sleep`: it
        // counts itself in, fences, and looks at them.
        fence(Ordering::SeqCst);
        if self.sleepers.any() {
            kick(self.fd.load(Ordering::Relaxed) - 1, fd, n);
        }
    }
}
