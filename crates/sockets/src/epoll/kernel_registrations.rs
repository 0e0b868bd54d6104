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
    epoll.end_kernel_calls();
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
    epoll.end_kernel_calls();
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
    /// Wakes a thread that sleeps in the kernel on this instance, by the carrier of registration
    /// `n`: a carrier is practically always writable. False when the kernel does not have the
    /// library's events for `n`: another thread has given the registration to the kernel, or has
    /// removed it. Then the kernel's events of it must stay as they are.
    ///
    /// Callers may hold the lock of a direction, for which a holder of [`Epoll::lock`] may wait.
    /// So that lock is not taken here.
    pub(super) fn kick(&self, n: u32) -> bool {
        let Some(one) = registration(n) else {
            return false;
        };
        let number = self.number.load(Ordering::Relaxed);
        let _held = self.kernel_calls.lock();
        if !one.is_ours_in_kernel() || one.epoll.load(Ordering::Relaxed) != number {
            return false;
        }
        let epoll_fd = self.fd.load(Ordering::Relaxed) - 1;
        let events = CARRIER_EVENTS | EPOLLOUT as u32;
        sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_MOD, one.carrier(), events, tag(n));
        true
    }

    /// Called when the library has become the owner of a member, or its interest has changed.
    /// Threads that already sleep do not know that, so one of them is woken. Not to be called with
    /// the lock held.
    pub(super) fn show_to_sleepers(&self, n: u32) {
        // After the change to our table. Pairs with the sleeper's steps in `waiting::sleep`: it
        // counts itself in, fences, and looks at them.
        fence(Ordering::SeqCst);
        if self.sleepers.any() {
            self.kick(n);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use core::sync::atomic::AtomicI32;
    use std::sync::Arc;
    use std::{fs, thread};

    use crate::epoll::instance::EPOLLS;
    use crate::epoll::lists::{push_ready, remove_ready};
    use crate::epoll::registration::allocate_registration;

    use super::*;

    /// Runs `call` in a thread of `scope`, until it is over or waits for a lock.
    pub(in crate::epoll) fn run_until_it_waits<'s>(
        scope: &'s thread::Scope<'s, '_>,
        call: impl FnOnce() + Send + 's,
    ) {
        let tid = Arc::new(AtomicI32::new(0));
        let own = tid.clone();
        let caller = scope.spawn(move || {
            // SAFETY: plain system call.
            own.store(unsafe { libc::gettid() }, Ordering::Relaxed);
            call();
        });
        let sleeps = || {
            let stat = format!("/proc/self/task/{}/stat", tid.load(Ordering::Relaxed));
            fs::read_to_string(stat).is_ok_and(|line| line.contains(") S "))
        };
        while !caller.is_finished() && !sleeps() {
            thread::yield_now();
        }
    }

    /// Instance `number`, without members.
    pub(in crate::epoll) fn prepared(number: u32) -> &'static Epoll {
        let epoll = EPOLLS.get_or_map(number as usize).expect("memory");
        epoll.number.store(number, Ordering::Relaxed);
        let at = sys::epoll_create().expect("an instance");
        epoll.fd.store(at + 1, Ordering::Relaxed);
        epoll
    }

    /// An instance with this `number`, and a member that the library answers.
    fn with_member(number: u32) -> (&'static Epoll, u32, &'static Registration) {
        let epoll = prepared(number);
        let (n, one) = member(epoll);
        (epoll, n, one)
    }

    fn member(epoll: &Epoll) -> (u32, &'static Registration) {
        let at = epoll.fd.load(Ordering::Relaxed) - 1;
        let n = allocate_registration().expect("room");
        let one = registration(n).expect("allocated");
        // SAFETY: plain system call.
        let carrier = unsafe { libc::eventfd(1, 0) };
        one.fd.store(carrier, Ordering::Relaxed);
        let number = epoll.number.load(Ordering::Relaxed);
        one.epoll.store(number, Ordering::Relaxed);
        one.set(libc::EPOLLIN as u32, PROGRAMS);
        one.become_state(State::Plain);
        one.become_state(State::InBitmap);
        sys::epoll_ctl(at, libc::EPOLL_CTL_ADD, carrier, EPOLLET as u32, tag(n));
        (n, one)
    }

    /// The data of the kernel's events.
    fn reported(epoll: &Epoll) -> Vec<u64> {
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        let at = epoll.fd.load(Ordering::Relaxed) - 1;
        let count = sys::epoll_look(at, &mut events);
        events[..count].iter().map(|event| event.u64).collect()
    }

    const PROGRAMS: u64 = 77;

    /// A thread has found the member at the head of the ready list, and is going to wake a sleeper
    /// by it. Before it does so, another thread gives the member to the kernel.
    #[test]
    fn member_that_went_to_the_kernel_keeps_the_events_of_the_program() {
        let (epoll, n, one) = with_member(12);
        assert!(epoll.kick(n));
        assert_eq!(reported(epoll), [tag(n)], "a sleeper is woken");
        assert!(one.moves(State::InBitmap, State::Plain));
        kernel_has_programs(epoll, one, n);
        assert!(!epoll.kick(n), "nobody has to be woken by it");
        assert_eq!(reported(epoll), [PROGRAMS]);
    }

    /// Another thread gives the head of the ready list to the kernel. Meanwhile a thread is going
    /// to wake a sleeper for the rest of the list.
    #[test]
    fn sleeper_is_woken_for_the_rest_of_the_list() {
        let (epoll, n, one) = with_member(11);
        let (rest, _) = member(epoll);
        let counted = epoll.sleepers.enter();
        thread::scope(|scope| {
            let held = epoll.lock.lock();
            push_ready(epoll, n);
            push_ready(epoll, rest);
            assert!(one.moves(State::InBitmap, State::Plain));
            run_until_it_waits(scope, || epoll.share());
            remove_ready(epoll, n);
            drop(held);
        });
        assert_eq!(reported(epoll), [tag(rest)]);
        epoll.sleepers.leave(counted);
    }

    /// A fork has cut off the thread that was about to take the head off the list.
    #[test]
    fn member_that_nobody_takes_off_the_list_is_passed() {
        let (epoll, n, one) = with_member(19);
        let (rest, _) = member(epoll);
        let counted = epoll.sleepers.enter();
        {
            let _held = epoll.lock.lock();
            push_ready(epoll, n);
            push_ready(epoll, rest);
            assert!(one.moves(State::InBitmap, State::Plain));
        }
        epoll.share();
        assert_eq!(reported(epoll), [tag(rest)]);
        epoll.sleepers.leave(counted);
    }

    /// A thread has found a member. Its place belongs to another instance's member by now.
    #[test]
    fn member_of_another_instance_wakes_nobody_here() {
        let (epoll, n, one) = with_member(13);
        one.epoll.store(14, Ordering::Relaxed);
        assert!(!epoll.kick(n));
        assert!(reported(epoll).is_empty());
    }
}
