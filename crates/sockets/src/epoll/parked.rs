//! Registrations of parked carriers, and of the listener that they serve ([`crate::express`]).
//!
//! A carrier that is parked keeps one registration, under its own number: doorbells and the
//! carrier's end wake the instance. When the program adds its next connection on the carrier, that
//! registration is used again ([`State::Parked`]), without a system call.
//!
//! The program's registration of the listener stays in the kernel. The library has a registration
//! of its own beside it ([`State::Listener`]): the bits of parked carriers lead to it, and it is
//! readable while a connection waits, like a level-triggered listener in the kernel.

use core::sync::atomic::Ordering;

use libc::epoll_event;
use toehold_channel::doorbell::WakeWord;
use toehold_channel::sync::fence;
use toehold_channel::table::FLAG_PARKED;

use crate::connection::Connection;
use crate::epoll::instance::{Epoll, epoll};
use crate::epoll::lists::{push_news, remove_ready};
use crate::epoll::membership::{give_bitmap, leave, set_resting_wake};
use crate::epoll::orphans::put_under;
use crate::epoll::registration::{
    CARRIER_EVENTS, LINK_RELEASE, READABLE, Registration, State, TAG, allocate_registration, armed,
    each_registration, free_registration, registration, tag,
};
use crate::express::published;
use crate::system::sys;

/// The registration that a parked carrier keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptRegistration {
    /// The registration with that instance; it is made if there is none.
    Of(u32),
    /// Any, if there is one.
    Any,
    None,
}

/// The program closes its last descriptor of `connection`, and the carrier is parked under the
/// descriptor `high`. Keeps one registration for the carrier, and ends the others. False when there
/// is no registration.
pub(crate) fn park_registrations(
    connection: &Connection,
    high: i32,
    keeps: KeptRegistration,
) -> bool {
    let _members = connection.local.membership.lock();
    let mut has_one = false;
    each_registration(connection, |n, one| {
        let number = one.epoll.load(Ordering::Relaxed);
        let Some(epoll) = epoll(number) else { return };
        let is_fit = !has_one
            && (keeps == KeptRegistration::Any || keeps == KeptRegistration::Of(number))
            && [connection.fd, high].contains(&one.carrier());
        if is_fit && becomes_parked(epoll, one, n) {
            has_one = true;
            if one.carrier() != high {
                one.set_duplicate(high + 1, true);
                put_under(epoll, one, n, connection.fd);
            }
            return;
        }
        let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
        sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, one.carrier(), 0, 0);
        leave(epoll, connection, n);
    });
    let is_made = || match keeps {
        KeptRegistration::Of(instance) => register(connection, high, instance).is_some(),
        KeptRegistration::Any | KeptRegistration::None => false,
    };
    has_one || is_made()
}

fn becomes_parked(epoll: &Epoll, one: &Registration, n: u32) -> bool {
    let _held = epoll.lock.lock();
    if one.moves(State::InBitmap, State::Parked) {
        epoll.ours.fetch_sub(1, Ordering::Relaxed);
        remove_ready(epoll, n);
    }
    one.state() == State::Parked
}

/// Registers a parked carrier. The caller holds the connection's `membership` lock.
fn register(connection: &Connection, high: i32, number: u32) -> Option<()> {
    let epoll = epoll(number)?;
    if TAG.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let n = allocate_registration()?;
    let one = registration(n)?;
    one.generation
        .store(connection.generation, Ordering::Relaxed);
    one.fd.store(-1, Ordering::Relaxed);
    one.epoll.store(number, Ordering::Relaxed);
    one.on_ready.store(0, Ordering::Relaxed);
    one.set(0, 0);
    one.set_duplicate(high + 1, true);
    // As if the program had registered it, and removed it again.
    for state in [State::Plain, State::InBitmap, State::Parked] {
        one.become_state(state);
    }
    let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
    let add = libc::EPOLL_CTL_ADD;
    if sys::epoll_ctl(epoll_fd, add, high, CARRIER_EVENTS, tag(n)) < 0 {
        free_registration(n);
        return None;
    }
    one.next.store(
        connection.local.registrations.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    one.connection.store(connection.index + 1, LINK_RELEASE);
    connection.local.registrations.store(n, LINK_RELEASE);
    Some(())
}

/// The entry of `connection` has a new generation.
pub(crate) fn live_on(connection: &Connection) {
    each_registration(connection, |_, one| {
        one.generation
            .store(connection.generation, Ordering::Relaxed);
    });
}

/// The carrier serves the program's connection at `fd`: its parked registration is found by that
/// number from now on.
pub(crate) fn serve(connection: &Connection, fd: i32) {
    each_registration(connection, |_, one| {
        if one.state() == State::Parked {
            one.fd.store(fd, Ordering::Relaxed);
        }
    });
}

/// The bits of a parked carrier lead to the listener's registration `n` from now on.
pub(crate) fn lead_to_listener(connection: &Connection, n: u32) -> bool {
    let Some(one) = registration(n) else {
        return false;
    };
    let number = one.epoll.load(Ordering::Relaxed);
    let Some(epoll) = epoll(number) else {
        return false;
    };
    let word = {
        let _held = epoll.lock.lock();
        give_bitmap(epoll, number, connection, n)
    };
    let Some(word @ WakeWord::Bitmap { .. }) = word else {
        return false;
    };
    set_resting_wake(connection, word);
    true
}

/// The program has registered the listener at `fd`.
pub(crate) fn listen(number: u32, fd: i32, event: &epoll_event) -> Option<u32> {
    let epoll = epoll(number)?;
    let n = allocate_registration()?;
    let one = registration(n)?;
    one.fd.store(fd, Ordering::Relaxed);
    one.epoll.store(number, Ordering::Relaxed);
    one.on_ready.store(0, Ordering::Relaxed);
    one.set(armed(event.events), event.u64);
    let _held = epoll.lock.lock();
    one.become_state(State::Listener);
    epoll.listener.store(n, Ordering::Relaxed);
    Some(n)
}

/// The program has changed that registration.
pub(crate) fn change(n: u32, event: &epoll_event) {
    let Some((one, epoll)) = listener_at(n) else {
        return;
    };
    {
        let _held = epoll.lock.lock();
        one.set(armed(event.events), event.u64);
    }
    show(n);
}

/// Puts the listener on the ready list, because connections may wait for which no bit was marked.
pub(crate) fn show(n: u32) {
    let Some((_, epoll)) = listener_at(n) else {
        return;
    };
    {
        let _held = epoll.lock.lock();
        push_news(epoll, n);
    }
    // After the change to our table, as in `Epoll::show_to_sleepers`. Pairs with the sleeper's
    // steps in `waiting::sleep`.
    fence(Ordering::SeqCst);
    if epoll.sleepers.any() {
        wake_one(epoll);
    }
}

/// The listener's registration ends.
pub(crate) fn unlisten(n: u32) {
    let Some((one, epoll)) = listener_at(n) else {
        return;
    };
    {
        let _held = epoll.lock.lock();
        one.become_state(State::Gone);
        remove_ready(epoll, n);
        epoll.listener.store(0, Ordering::Relaxed);
    }
    free_registration(n);
}

fn listener_at(n: u32) -> Option<(&'static Registration, &'static Epoll)> {
    let one = registration(n).filter(|one| one.state() == State::Listener)?;
    Some((one, epoll(one.epoll.load(Ordering::Relaxed))?))
}

/// The events that the listener is ready for, if this is its registration.
#[cold]
pub(super) fn listener_events(one: &Registration) -> Option<u32> {
    (one.state() == State::Listener).then(|| match published::has_any() {
        true => READABLE,
        false => 0,
    })
}

/// Wakes a thread that sleeps on an instance because of the listener. As in [`Epoll::kick`] a
/// carrier is used, because a listener is never writable.
#[cold]
pub(super) fn wake_one(epoll: &Epoll) {
    let number = epoll.number.load(Ordering::Relaxed);
    let is_here = |one: &&Registration| {
        one.epoll.load(Ordering::Relaxed) == number
            && one.is_borrowed.load(Ordering::Relaxed) != 0
            && matches!(one.state(), State::Parked | State::InBitmap)
    };
    let n = published::last_parked();
    if registration(n).filter(is_here).is_some() {
        epoll.kick(n);
    }
}

/// Writes the registrations of a connection to `out`, as many as fit: instance, number, and the
/// program's event. Returns how many were written.
pub(crate) fn registered(connection: &Connection, out: &mut [(u32, i32, epoll_event)]) -> usize {
    let mut count = 0;
    each_registration(connection, |_, one| {
        let Some(place) = out.get_mut(count).filter(|_| one.state() != State::Parked) else {
            return;
        };
        let event = epoll_event {
            events: one.events(),
            u64: one.data(),
        };
        let (number, fd) = (
            one.epoll.load(Ordering::Relaxed),
            one.fd.load(Ordering::Relaxed),
        );
        *place = (number, fd, event);
        count += 1;
    });
    count
}

/// The registration of a parked carrier.
pub(crate) fn of_carrier(connection: &Connection) -> u32 {
    connection.local.registrations.load(Ordering::Relaxed)
}

/// The kernel has reported the end of a carrier. If the carrier is parked, it is retired soon.
pub(super) fn note_end(connection: &Connection) {
    if connection.entry.flags.load(Ordering::Relaxed) & FLAG_PARKED != 0 {
        published::note_end();
    }
}

impl Epoll {
    /// Removes a second event for the listener, because the kernel and the library may both report
    /// it. `found` events were written; returns how many are left.
    #[cold]
    pub(super) fn without_second_listener(
        &self,
        events: &mut [epoll_event],
        found: usize,
    ) -> usize {
        let Some(one) = registration(self.listener.load(Ordering::Relaxed)) else {
            return found;
        };
        let data = one.data();
        let is_it = |event: &epoll_event| { event.u64 } == data;
        let Some(first) = events[..found].iter().position(is_it) else {
            return found;
        };
        let mut left = first + 1;
        for at in first + 1..found {
            let event = events[at];
            if is_it(&event) && event.events & !READABLE == 0 {
                continue;
            }
            events[left] = event;
            left += 1;
        }
        left
    }
}
