//! How a connection begins to be known.

use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use toehold_channel::table::{Entry, EntryState, FLAG_ACCEPTED, Reason};

use crate::connection::{self, Local};
use crate::descriptors::{self, GENERATION_MASK, Noted};
use crate::epoll::early;
use crate::orderings::STATE_TOLD;
use crate::{adapter, family, faults, holders, process, sys};

/// Begins to track the new connection at `fd`. On any shortage it simply stays unknown to us.
pub(crate) fn track(fd: i32, accepted: bool) {
    if !descriptors::has_place(fd) {
        return;
    }
    faults::arm();
    let Some(table) = family::table_or_new() else {
        return;
    };
    let Some(index) = table.allocate(fd as u32, |pid| !sys::process_exists(pid)) else {
        return;
    };
    let Some((entry, local)) = connection::meet(index) else {
        // No memory: nobody's again.
        if let Some(entry) = table.entry(index) {
            let free = EntryState::Free as u32;
            entry.state.store(free, STATE_TOLD);
        }
        return;
    };
    let generation =
        entry.generation.load(Ordering::Relaxed).wrapping_add(1) & GENERATION_MASK as u32;
    reset(entry, local);
    let flags = if accepted { FLAG_ACCEPTED } else { 0 };
    entry.flags.store(flags, Ordering::Relaxed);
    entry
        .reason
        .store(Reason::FewBytes as u32, Ordering::Relaxed);
    holders::begin(entry);
    entry.pid.store(process::pid(), Ordering::Relaxed);
    entry.fd.store(fd as u32, Ordering::Relaxed);
    entry
        .channel_generation
        .store(generation, Ordering::Relaxed);
    // Release pairs with the Acquire load in `Connection::is_current`.
    entry.generation.store(generation, Ordering::Release);
    entry.state.store(EntryState::Live as u32, STATE_TOLD);
    local.descriptors.store(1, Ordering::Relaxed);
    if let Noted::Unconnected(before) = descriptors::begin_connection(fd, index, generation) {
        if let Some(connection) = connection::numbered(fd, index, generation) {
            if before.is_unseen {
                connection.pin(Reason::UnseenWaits);
            } else if before.is_duplicated {
                connection.pin(Reason::Duplicated);
            }
            early::adopt(&connection, before.registration);
        }
    }
    adapter::say_hello_once();
}

fn reset(entry: &Entry, local: &Local) {
    for word in [
        &entry.command,
        &entry.offer,
        &entry.refusal,
        &entry.carrier_calls,
        &entry.offers_taken,
        &entry.rx_lock,
        &entry.rx_low_water,
        &entry.rx_hints,
        &entry.rx_empty,
        &entry.tx_lock,
        &entry.tx_was_full,
        &entry.tx_options,
        &entry.upgrades,
        &entry.downgrades,
        &entry.doorbells,
        &entry.doorbells_suppressed,
        &entry.wakeups,
        &entry.spins_paid,
        &entry.spins_failed,
        &entry.faults,
        &entry.true_ports,
        &entry.carrier_key,
        &entry.wake_lock,
        &entry.resting_pid,
    ]
    .into_iter()
    .chain(&entry.asleep)
    {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        &entry.rx_carrier,
        &entry.rx_ring_before,
        &entry.tx_ring_before,
        &entry.rx_calls,
        &entry.tx_carrier,
        &entry.tx_calls,
        &entry.rx_peek,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        &entry.side,
        &entry.slot,
        &entry.rx_mode,
        &entry.rx_records,
        &entry.tx_mode,
        &entry.tx_records,
        &entry.tx_capacity_log2,
        &entry.resting_wake,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&entry.rx_ring, &entry.tx_ring, &entry.tx_head_seen] {
        word.store(0, Ordering::Relaxed);
    }
    // Threads stay counted: one may count itself in and out through a descriptor that named this
    // entry before, whoever has it by then.
    local.attachment.reset();
    local.pair.store(null_mut(), Ordering::Relaxed);
    local.offered.store(null_mut(), Ordering::Relaxed);
    for word in [
        &local.registrations,
        &local.asked_epoch,
        &local.shown_at,
        &local.shown_epoch,
        &local.waits,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    local.express.reset();
    local.spin.reset();
    local.carrier_seen_ns.store(0, Ordering::Relaxed);
    local.over_since_ns.store(0, Ordering::Relaxed);
}

/// The program listens: it will have connections, perhaps in children that can no longer reach the
/// adapter by themselves.
pub(crate) fn prepare() {
    if process::is_started() && !process::borrowed_memory() && family::table_or_new().is_some() {
        adapter::say_hello_once();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread found the connection, counted itself in, and is about to count itself out again.
    #[test]
    fn entry_that_is_used_again_keeps_the_count_of_threads_inside() {
        let (entry, local) = (Entry::default(), Local::default());
        local
            .attachment
            .put(core::ptr::from_ref(&entry).cast_mut().cast());
        let (_, inside) = local.attachment.enter().expect("a region");
        local.attachment.sleepers.enter();
        reset(&entry, &local);
        assert!(!local.attachment.has_region() && local.attachment.is_used());
        assert!(local.attachment.sleepers.leave(), "it was the only one");
        assert!(local.attachment.is_used());
        drop(inside);
        assert!(!local.attachment.is_used());
    }
}
