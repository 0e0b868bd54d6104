//! The owner of a connection's registrations: the kernel, or the library.
//!
//! After a fork two processes have a registration, but the kernel has only one. While both hold the
//! connection, neither changes the kernel's registration: otherwise an event would be answered
//! twice or not at all ([`is_anothers`]). If the library answers, that stays so. If the kernel
//! answers, the connection stays on its carrier ([`holds_down`]). The two processes do not replace
//! each other's wake word either.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{WAKE_SEQ_CST, WakeWord};
use toehold_channel::layout::READY_BITS;
use toehold_channel::sync::fence;
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::epoll::instance::{EPOLLS_MAX, Epoll, MEMBERS_SEQ_CST, PAIRS_MAX, epoll};
use crate::epoll::kernel_registrations::{
    kernel_has_none, kernel_has_ours, kernel_has_programs, replace,
};
use crate::epoll::lists::{push_news, push_ready, remove_polled, remove_ready};
use crate::epoll::nested::give_nested;
use crate::epoll::registration::{
    self, ANSWER_EVENTS, ONESHOT, Registration, State, TAG, each_registration, free_registration,
    is_only_member, registration, tag, unlink,
};
use crate::system::sys;
use crate::waiting::seen_waits;
use crate::waiting::sleepers::{self, set_wake, wake_by_carrier};
use crate::{lock, process};

/// Removes a registration from our table altogether. The caller holds the connection's `membership`
/// lock.
pub(super) fn leave(epoll: &Epoll, connection: &Connection, number: u32) {
    let Some(one) = registration(number) else {
        return;
    };
    let stays = is_anothers(connection, one);
    let was = {
        let _held = epoll.lock.lock();
        // From now on no thread puts it on a list again. A thread that parks it at this moment
        // counts it out itself.
        let was = one.end();
        if was.is_ours() || was == State::Held {
            epoll.ours.fetch_sub(1, Ordering::Relaxed);
        }
        remove_ready(epoll, number);
        remove_polled(epoll, number);
        was
    };
    if was.is_ours() || was == State::Parked {
        // After this the descriptor's number may be another file's.
        epoll.end_kernel_calls();
    }
    unlink(connection, number);
    free_registration(number);
    if connection.local.registrations.load(Ordering::Relaxed) == 0 && !stays {
        set_resting_wake(connection, WakeWord::None);
    }
}

/// True when another process has the registration, too, so that we must not change it in the
/// kernel.
pub(super) fn is_anothers(connection: &Connection, one: &Registration) -> bool {
    one.is_inherited() && connection.is_shared()
}

/// True when the kernel answers a registration that another process has, too.
pub(crate) fn holds_down(connection: &Connection) -> bool {
    let mut any = false;
    each_registration(connection, |_, one| {
        any |= one.is_kernels() && is_anothers(connection, one);
    });
    any
}

/// The kernel reported `n` with our tag, although it should have the program's data: another
/// process has changed it.
#[cold]
pub(super) fn believe_kernel(n: u32) {
    let Some(one) = registration(n).filter(|one| one.is_inherited()) else {
        return;
    };
    if let Some(connection) = one.behind() {
        if connection.end().is_some() {
            take_from_kernel(&connection);
        }
    }
}

/// True when an instance with which the connection is registered stays open over an exec. The new
/// program will see that instance's events from the kernel, so they must be right.
pub(crate) fn outlives_exec(connection: &Connection) -> bool {
    let mut any = false;
    each_registration(connection, |_, one| {
        let epoll_fd = epoll(one.epoll.load(Ordering::Relaxed))
            .map_or(-1, |epoll| epoll.fd.load(Ordering::Relaxed) - 1);
        let flags = sys::fcntl(epoll_fd, libc::F_GETFD, 0);
        any |= flags >= 0 && flags as i32 & libc::FD_CLOEXEC == 0;
    });
    any
}

/// The connection has a channel: the library becomes the owner of its registrations, if the program
/// was seen waiting for it.
pub(crate) fn take_from_kernel(connection: &Connection) {
    let _members = connection.local.membership.lock();
    if are_its(connection) {
        take_members_from_kernel(connection);
    }
}

/// True when the registrations in its list are this connection's. Another thread may have closed
/// the connection, and the entry may be the next one's. The caller holds the `membership` lock,
/// under which registrations of the next connection are added: so the answer stays right.
fn are_its(connection: &Connection) -> bool {
    connection.is_current()
}

/// As [`take_from_kernel`]; the caller holds the connection's `membership` lock.
pub(super) fn take_members_from_kernel(connection: &Connection) {
    let several = !is_only_member(connection);
    let is_seen = seen_waits::is_seen(connection.local);
    each_registration(connection, |n, one| {
        let number = one.epoll.load(Ordering::Relaxed);
        let Some(epoll) = epoll(number) else { return };
        let plain = one.is_kernels();
        if plain && !(is_seen && kernel_has_ours(connection, epoll, one, n)) {
            return;
        }
        let held = epoll.lock.lock();
        if plain {
            epoll.ours.fetch_add(1, MEMBERS_SEQ_CST);
            become_ours(epoll, number, connection, one, n);
        } else if several && one.moves(State::InBitmap, State::Polled) {
            epoll.link_polled(one, n);
            set_resting_wake(connection, WakeWord::None);
        } else {
            return;
        }
        push_ready(epoll, n);
        drop(held);
        epoll.show_to_sleepers(n);
    });
}

/// The library answers registration `n` from now on. A ready bitmap reports its news if possible;
/// otherwise the registration is polled. The caller holds the connection's `membership` lock and
/// the instance's.
pub(super) fn become_ours(
    epoll: &Epoll,
    number: u32,
    connection: &Connection,
    one: &Registration,
    n: u32,
) {
    epoll.note_move();
    // Only one process can use a side's ready bitmaps of a pair.
    let has_bitmap = is_only_member(connection) && !connection.is_shared();
    let bitmap = has_bitmap.then(|| give_bitmap(epoll, number, connection, n));
    match bitmap.flatten() {
        Some(word) => {
            one.become_state(State::InBitmap);
            if !sleepers::own_resting(connection).is(word.to_word()) {
                set_resting_wake(connection, word);
            }
        }
        None => {
            epoll.link_polled(one, n);
            set_resting_wake(connection, WakeWord::None);
        }
    }
}

/// The kernel reported `n`, a one-shot that the program was told of before: the doorbell was for
/// another instance that has the connection, too. From now on these doorbells do not wake threads
/// of this instance.
#[cold]
pub(super) fn become_quiet(n: u32) {
    let Some(one) = registration(n) else { return };
    let Some(connection) = one.behind() else {
        return;
    };
    become_quiet_of(&connection, one.epoll.load(Ordering::Relaxed), one, n);
}

/// As [`become_quiet`], if registration `n` is still that of `connection` with instance `number`.
fn become_quiet_of(connection: &Connection, number: u32, one: &Registration, n: u32) {
    let Some(epoll) = epoll(number) else { return };
    let _members = connection.local.membership.lock();
    if !one.is_of(connection, number) || is_anothers(connection, one) {
        return;
    }
    {
        let _held = epoll.lock.lock();
        if !one.is_spent() || !one.moves(State::Polled, State::Quiet) {
            return;
        }
        remove_polled(epoll, n);
    }
    kernel_has_none(epoll, one, n);
}

/// The program has armed registration `n` again, which may have become quiet before.
pub(super) fn end_quiet(epoll: &Epoll, connection: &Connection, one: &Registration, n: u32) {
    if one.state() != State::Quiet {
        return;
    }
    // Another thread that makes it quiet holds this lock until the kernel knows.
    let members = connection.local.membership.lock();
    if !one.is_of(connection, epoll.number.load(Ordering::Relaxed)) {
        return;
    }
    let _has = kernel_has_ours(connection, epoll, one, n);
    let _held = epoll.lock.lock_within(&members);
    if one.state() == State::Quiet {
        epoll.link_polled(one, n);
        push_news(epoll, n);
    }
}

/// Called before an exec. The new program will see the kernel's events of instances that stay open,
/// so one-shots must have the program's own data.
pub(crate) fn leaving_program() {
    let stays_open = |epoll_fd| {
        let flags = sys::fcntl(epoll_fd, libc::F_GETFD, 0);
        flags >= 0 && flags as i32 & libc::FD_CLOEXEC == 0
    };
    give_one_shots(stays_open);
}

/// The library is about to leave: the program gets the kernel's events of all instances.
pub(crate) fn leave_to_kernel() {
    give_one_shots(|_| true);
}

/// Calls `each` with the instances with which `fd` of a connection is registered: a descriptor of
/// the instance, events and data.
pub(crate) fn each_instance(connection: &Connection, fd: i32, mut each: impl FnMut(i32, u32, u64)) {
    each_registration(connection, |_, one| {
        let number = one.epoll.load(Ordering::Relaxed);
        let events = one.events();
        if one.fd.load(Ordering::Relaxed) == fd
            && let Some(epoll) = epoll(number)
        {
            let instance = epoll.fd.load(Ordering::Relaxed) - 1;
            each(instance, events, one.data());
        }
    });
}

/// Gives the kernel the program's own data for one-shots and nested instances, in the instances for
/// which `concerns` is true.
fn give_one_shots(concerns: impl Fn(i32) -> bool) {
    for (_, one) in registration::all().filter(|(_, one)| !one.is_inherited()) {
        let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) else {
            return;
        };
        let is_once = match one.state() {
            State::Once => true,
            State::Early => one.events() & ONESHOT != 0 && epoll.is_waited_on(),
            _ => false,
        };
        let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
        if is_once && concerns(epoll_fd) {
            sys::epoll_ctl(
                epoll_fd,
                libc::EPOLL_CTL_MOD,
                one.carrier(),
                one.events(),
                one.data(),
            );
            one.moves(State::Once, State::Plain);
        }
    }
    for epoll in (0..EPOLLS_MAX as u32).map_while(epoll) {
        if concerns(epoll.fd.load(Ordering::Relaxed) - 1) {
            give_nested(epoll);
        }
    }
}

/// The connection waits for the engine's answer, but its carrier is already connected. Until the
/// answer comes, the library withholds the registrations that were made before.
pub(crate) fn hold(connection: &Connection) {
    let _members = connection.local.membership.lock();
    hold_members(connection);
}

/// As [`hold`]; the caller holds the connection's `membership` lock.
pub(super) fn hold_members(connection: &Connection) {
    each_registration(connection, |n, one| {
        let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) else {
            return;
        };
        let moves = || one.moves(State::Plain, State::Held) || one.moves(State::Once, State::Held);
        if TAG.load(Ordering::Relaxed) != 0 && epoll.is_waited_on() && moves() {
            epoll.ours.fetch_add(1, Ordering::Relaxed);
            let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
            replace(epoll_fd, one.carrier(), ANSWER_EVENTS, tag(n));
        }
    });
}

/// The engine has answered: the kernel gets the program's registrations, and reports the events
/// that hold now.
pub(crate) fn answered(connection: &Connection) {
    each_registration(connection, |n, one| {
        let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) else {
            return;
        };
        if one.moves(State::Held, State::Plain) {
            epoll.ours.fetch_sub(1, Ordering::Relaxed);
            kernel_has_programs(epoll, one, n);
        }
    });
}

/// Both directions are on the carrier and refused: as [`give_to_kernel`], unless the peer went up
/// before.
pub(crate) fn hand_back(connection: &Connection, end: &End<'_>) {
    give_to_kernel(connection);
    // The peer may have gone up before it saw that we refuse, and marked the ready bitmap at which
    // we no longer look. Either the peer sees the wake word that was stored last, or we see its
    // record. Pairs with the barrier in `Sender::publish`.
    fence(Ordering::SeqCst);
    if end.records_pending() {
        take_from_kernel(connection);
    }
}

/// The connection is back on the carrier for good: the kernel answers the program's registrations
/// again.
pub(crate) fn give_to_kernel(connection: &Connection) {
    let _members = connection.local.membership.lock();
    if !are_its(connection) {
        return;
    }
    let mut all = true;
    each_registration(connection, |n, one| {
        if !one.is_kernels() && is_anothers(connection, one) {
            all = false;
            return;
        }
        let number = one.epoll.load(Ordering::Relaxed);
        let Some(epoll) = epoll(number) else { return };
        let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
        let fd = one.carrier();
        let was = {
            let _held = epoll.lock.lock();
            let was = one.state();
            match was {
                // Another thread may park the registration at this moment. Then it is removed, as
                // if it had been parked before.
                State::InBitmap | State::Polled | State::Quiet | State::Parked => {
                    let is_kernels = was != State::Parked && one.moves(was, State::Plain);
                    if is_kernels {
                        epoll.ours.fetch_sub(1, Ordering::Relaxed);
                        epoll.note_move();
                    } else {
                        one.become_state(State::Gone);
                    }
                    remove_ready(epoll, n);
                    remove_polled(epoll, n);
                    if is_kernels { was } else { State::Parked }
                }
                _ => was,
            }
        };
        match was {
            State::InBitmap | State::Polled | State::Quiet => kernel_has_programs(epoll, one, n),
            State::Parked => {
                sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
                leave(epoll, connection, n);
            }
            _ => {}
        }
    });
    if all {
        // If the peer moves up again before we notice, its first byte must ring.
        set_resting_wake(connection, WakeWord::Bell);
    }
}

/// The wake word to which the connection returns when nobody sleeps.
pub(crate) fn set_resting_wake(connection: &Connection, word: WakeWord) {
    let entry = connection.entry;
    let is_none = word == WakeWord::None
        && entry
            .resting_wake
            .load(Ordering::Relaxed)
            .is(WakeWord::None.to_word());
    if is_none && !connection.local.attachment.has_region() {
        // Most short connections end here. A connection that gets a region at this moment begins
        // with the entry's wake word.
        return;
    }
    let held = lock::lock(&entry.wake_lock);
    if held.is_none()
        && let Some(end) = connection.inside()
    {
        wake_by_carrier(connection, &end);
    }
    if sleepers::is_resting_anothers(connection) {
        return;
    }
    entry.resting_wake.store(word.to_word(), Ordering::Relaxed);
    entry.resting_pid.store(process::pid(), Ordering::Relaxed);
    if let Some(end) = connection.inside() {
        match sleepers::are_there(connection) {
            false => set_wake(&end, word),
            // From now on a doorbell has to wake them and the instance.
            true => set_wake(&end, WakeWord::Bell),
        }
    }
}

/// Finds a ready bitmap for registration `n`: the one that this instance already has in the
/// connection's pair, or a new one. The caller holds the instance's lock.
pub(super) fn give_bitmap(
    epoll: &Epoll,
    number: u32,
    connection: &Connection,
    n: u32,
) -> Option<WakeWord> {
    let pointer = connection.local.pair.load(Ordering::Relaxed);
    // SAFETY: places of the pair table are never released.
    let pair = unsafe { pointer.as_ref() }?;
    let slot = connection.entry.slot.load(Ordering::Relaxed);
    let slot = slot.at_most(READY_BITS as u32 - 1)?;
    let mut bitmap = None;
    for (index, user) in pair.epolls.iter().enumerate() {
        if user.load(Ordering::Relaxed) == number + 1 {
            bitmap = Some(index);
            break;
        }
    }
    if bitmap.is_none() {
        let count = epoll.pair_count.load(Ordering::Relaxed) as usize;
        if count == PAIRS_MAX {
            return None;
        }
        let index = pair.epolls.iter().position(|user| {
            // Acquire pairs with the Release store in `lifetime::closing`.
            user.compare_exchange(0, number + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        })?;
        epoll.pairs[count].store(pointer, Ordering::Relaxed);
        epoll.bitmaps[count].store(index as u32, Ordering::Relaxed);
        epoll.pair_count.store(count as u32 + 1, MEMBERS_SEQ_CST);
        // Threads may sleep already.
        let sleeps = epoll.sleepers.any();
        pair.ours(index as u32)?
            .sleeping
            .store(u32::from(sleeps), WAKE_SEQ_CST);
        bitmap = Some(index);
    }
    pair.registration(slot)?.store(n, Ordering::Relaxed);
    Some(WakeWord::Bitmap {
        bitmap: bitmap? as u32,
        bit: slot,
    })
}

#[cfg(test)]
mod tests {
    use crate::epoll::instance::EPOLLS;
    use crate::epoll::registration::allocate_registration;

    use super::*;

    /// A polled registration of a connection with instance `number`, for `events`.
    fn polled(connection: &Connection, number: u32, events: u32) -> (u32, &'static Registration) {
        let epoll = EPOLLS.get_or_map(number as usize).expect("memory");
        epoll.number.store(number, Ordering::Relaxed);
        let n = allocate_registration().expect("room");
        let one = registration(n).expect("allocated");
        let generation = &one.generation;
        generation.store(connection.generation, Ordering::Relaxed);
        one.epoll.store(number, Ordering::Relaxed);
        one.set(events, 1);
        let index = connection.index + 1;
        one.connection.store(index, registration::LINK_RELEASE);
        one.become_state(State::Plain);
        epoll.link_polled(one, n);
        let list = &connection.local.registrations;
        list.store(n, registration::LINK_RELEASE);
        (n, one)
    }

    /// Another thread has closed the connection after the kernel reported its registration.
    #[test]
    fn only_the_connection_that_was_reported_becomes_quiet() {
        const NUMBER: u32 = 8;
        let [reported, next] = [0, 5].map(|index| Connection {
            index,
            ..Connection::of_a_test(-1)
        });
        let (n, one) = polled(&next, NUMBER, ONESHOT);
        become_quiet_of(&reported, NUMBER, one, n);
        assert_eq!(one.state(), State::Polled);
        become_quiet_of(&next, NUMBER + 1, one, n);
        assert_eq!(one.state(), State::Polled, "of another instance");
        become_quiet_of(&next, NUMBER, one, n);
        assert_eq!(one.state(), State::Quiet, "it is the reason");
    }

    /// A thread gives a connection a channel, or takes it back, and loses its processor. Meanwhile
    /// the entry becomes the next connection's.
    #[test]
    fn registrations_of_the_next_connection_in_an_entry_keep_their_owner() {
        const NUMBER: u32 = 10;
        let next = Connection {
            generation: 1,
            ..Connection::of_a_test(-1)
        };
        next.entry.generation.store(1, Ordering::Relaxed);
        let before = Connection {
            generation: 0,
            ..next
        };
        let (_, one) = polled(&next, NUMBER, ONESHOT);
        give_to_kernel(&before);
        assert_eq!(one.state(), State::Polled);
        give_to_kernel(&next);
        assert!(one.is_kernels(), "it is the reason");
    }
}
