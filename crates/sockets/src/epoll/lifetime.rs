//! Instances: creating, duplicating and closing them, and their inheritance by a fork.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WakeWord;
use toehold_channel::layout::READY_BITMAPS;

use crate::connection::orderings::LAST_USER_ACQ_REL;
use crate::epoll::early::{EARLY_LOCK, forget_early};
use crate::epoll::first_wait;
use crate::epoll::instance::{EPOLLS, EPOLLS_MAX, epoll};
use crate::epoll::membership::{is_anothers, set_resting_wake};
use crate::epoll::nested::forget_nested;
use crate::epoll::registration::{FREE_LOCK, Registration, State, TAG, free_registration, unlink};
use crate::process::pair_doorbells;
use crate::process::{self, descriptors};
use crate::system::{faults, sys};

/// Once, at start.
pub(crate) fn start() {
    TAG.store(sys::random_u32() | 0x8000_0001, Ordering::Relaxed);
}

/// A new epoll instance at `fd`.
pub(crate) fn created(fd: i32) {
    if !process::is_started() {
        return;
    }
    faults::arm();
    for number in 0..EPOLLS_MAX {
        // Numbers are given out from the lowest: those below one that is mapped are mapped.
        let Some(epoll) = EPOLLS.get_or_map(number) else {
            return;
        };
        let number = number as u32;
        // Acquire pairs with the last store in `closing`: its former user has finished with it.
        if epoll
            .fd
            .compare_exchange(0, fd + 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            epoll.descriptors.store(1, Ordering::Relaxed);
            for word in [
                &epoll.ours,
                &epoll.ready_head,
                &epoll.ready_tail,
                &epoll.polled,
                &epoll.pair_count,
                &epoll.nested_count,
                &epoll.reported_once,
                &epoll.has_exclusive,
                &epoll.listener,
                &epoll.waits,
            ] {
                word.store(0, Ordering::Relaxed);
            }
            epoll.number.store(number, Ordering::Relaxed);
            epoll.sleepers.forget();
            epoll.spin.reset();
            epoll.kernel_seen_ns.store(0, Ordering::Relaxed);
            epoll.kernel_news_ns.store(0, Ordering::Relaxed);
            epoll.passed_over_ns.store(0, Ordering::Relaxed);
            epoll.wake_balance.reset();
            descriptors::note_epoll(fd, number);
            return;
        }
    }
}

/// True when instance `number` has one descriptor left.
pub(crate) fn is_last_descriptor(number: u32) -> bool {
    epoll(number).is_some_and(|epoll| epoll.descriptors.load(Ordering::Relaxed) == 1)
}

/// One more descriptor refers to instance `number`.
pub(crate) fn duplicated(number: u32) {
    if let Some(epoll) = epoll(number) {
        epoll.descriptors.fetch_add(1, Ordering::Relaxed);
    }
}

/// Descriptor `fd` of instance `number` is being closed, and was removed from our table.
pub(crate) fn closing(number: u32, fd: i32) {
    let Some(epoll) = epoll(number) else { return };
    pair_doorbells::closing(number, fd);
    if epoll.descriptors.fetch_sub(1, LAST_USER_ACQ_REL) != 1 {
        if epoll.fd.load(Ordering::Relaxed) == fd + 1 {
            // Our system calls must not go to the next file with this number.
            if let Some(other) = descriptors::descriptor_of_epoll(number) {
                epoll.fd.store(other + 1, Ordering::Relaxed);
                epoll.end_kernel_calls();
            }
        }
        return;
    }
    {
        // From now on threads that slept on the instance take no events: neither of its members,
        // whose numbers may be used again at once, nor of the next instance.
        let _held = epoll.lock.lock();
        let next = epoll.generation().wrapping_add(1);
        epoll.generation.store(next, Ordering::Relaxed);
        for word in [&epoll.ready_head, &epoll.ready_tail, &epoll.polled] {
            word.store(0, Ordering::Relaxed);
        }
    }
    for (n, one) in epoll.registrations() {
        if one.state() == State::Early {
            let _held = EARLY_LOCK.lock();
            if one.state() == State::Early {
                forget_early(n);
                continue;
            }
        }
        forget_member(number, n, one);
    }
    let held = epoll.lock.lock();
    for place in 0..epoll.pair_count.load(Ordering::Relaxed) as usize {
        let pair = epoll.pairs[place].load(Ordering::Relaxed);
        // SAFETY: places of the pair table are never released.
        if let Some(pair) = unsafe { pair.as_ref() } {
            let bitmap = epoll.bitmaps[place].load(Ordering::Relaxed) as usize;
            // Release pairs with the compare-exchange in `membership::give_bitmap`.
            pair.epolls[bitmap.min(READY_BITMAPS - 1)].store(0, Ordering::Release);
        }
    }
    epoll.pair_count.store(0, Ordering::Relaxed);
    drop(held);
    forget_nested(number);
    epoll.end_kernel_calls();
    // Release pairs with the compare-exchange in `created`.
    epoll.fd.store(0, Ordering::Release);
}

/// Frees registration `n` with instance `number`, which is closing, unless another thread closes
/// the connection and has freed it. Then `n` may be another registration's by now.
fn forget_member(number: u32, n: u32, one: &Registration) {
    let link = one.connection.load(Ordering::Relaxed);
    let Some(connection) = one.behind() else {
        // Relaxed: the connection is gone, so this thread alone frees what it has left.
        let is_left = link != 0
            && one
                .connection
                .compare_exchange(link, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_left {
            free_registration(n);
        }
        return;
    };
    let _members = connection.local.membership.lock();
    // Under this lock registrations of the connection are linked and freed.
    if one.epoll.load(Ordering::Relaxed) != number || !unlink(&connection, n) {
        return;
    }
    if !is_anothers(&connection, one) {
        set_resting_wake(&connection, WakeWord::None);
    }
    free_registration(n);
}

/// After fork the ready bitmaps are the parent's: the child looks at its members one by one.
pub(crate) fn forked() {
    FREE_LOCK.reset();
    EARLY_LOCK.reset();
    first_wait::LOCK.reset();
    for number in 0..EPOLLS_MAX as u32 {
        let Some(epoll) = epoll(number) else { return };
        if epoll.fd.load(Ordering::Relaxed) == 0 {
            continue;
        }
        epoll.lock.reset();
        epoll.kernel_calls.reset();
        epoll.sleepers.forget();
        first_wait::forked(epoll);
        if epoll.ours.load(Ordering::Relaxed) == 0 {
            continue;
        }
        epoll.pair_count.store(0, Ordering::Relaxed);
        epoll.polled.store(0, Ordering::Relaxed);
        let ours = epoll.registrations().filter(|(_, one)| one.is_ours());
        for (n, one) in ours.filter(|(_, one)| one.state() != State::Quiet) {
            epoll.link_polled(one, n);
        }
    }
}
