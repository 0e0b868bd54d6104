//! The first time that a connection is known.

use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use toehold_channel::table::{Entry, EntryState, FLAG_ACCEPTED, Reason};

use crate::adapter;
use crate::connection::orderings::STATE_RELEASE;
use crate::connection::{self, Local};
use crate::epoll::early;
use crate::memory::clear;
use crate::process::descriptors::{self, GENERATION_MASK, Recorded};
use crate::process::{self, family, holders};
use crate::system::{faults, sys};

/// Begins to track the new connection at `fd`. On any shortage it simply stays unknown to us.
pub(crate) fn track(fd: i32, accepted: bool) {
    if !descriptors::has_place(fd) {
        return;
    }
    faults::arm();
    let Some(table) = family::table_or_new() else {
        return;
    };
    // Entries of parked carriers are on the way, each of which would take two system calls.
    let is_gone = |pid| pid != process::pid() && !sys::process_exists(pid);
    let ends = |entry: &Entry| holders::end_unheld(&table, entry);
    let Some(index) = table.allocate(fd as u32, is_gone, ends) else {
        return;
    };
    let Some((entry, local)) = connection::hold_entry(index) else {
        // Nobody's again.
        if let Some(entry) = table.entry(index) {
            let free = EntryState::Free as u32;
            entry.state.store(free, STATE_RELEASE);
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
    entry.state.store(EntryState::Live as u32, STATE_RELEASE);
    local.descriptors.store(1, Ordering::Relaxed);
    if let Recorded::Unconnected(before) = descriptors::begin_connection(fd, index, generation) {
        if let Some(connection) = connection::numbered(fd, index, generation) {
            if before.is_unseen {
                connection.pin(Reason::UnseenWaits);
            } else if before.is_duplicated {
                connection.pin(Reason::Duplicated);
            }
            early::adopt(&connection, before.registration);
        }
    }
    adapter::send_hello_once();
}

fn reset(entry: &Entry, local: &Local) {
    clear!(entry: command, offer, refusal, offers_taken, side, slot);
    clear!(entry: carrier_calls, carrier_key, true_ports, faults, upgrades, downgrades);
    clear!(entry: doorbells, pair_doorbells, doorbells_suppressed, wakeups);
    clear!(entry: spins_paid, spins_failed);
    clear!(entry: rx_mode, rx_lock, rx_low_water, rx_hints, rx_empty, rx_records, rx_calls);
    clear!(entry: rx_carrier, rx_ring, rx_ring_before, rx_peek);
    clear!(entry: tx_mode, tx_lock, tx_was_full, tx_options, tx_records, tx_capacity_log2);
    clear!(entry: tx_calls, tx_carrier, tx_ring, tx_ring_before, tx_head_seen);
    clear!(entry: wake_lock, resting_pid, resting_wake, asker);
    for word in &entry.asleep {
        word.store(0, Ordering::Relaxed);
    }
    // Threads stay counted: a thread may count itself in and out through a descriptor that named
    // this entry before, even if the entry has another connection by then.
    local.attachment.reset();
    local.pair.store(null_mut(), Ordering::Relaxed);
    local.offered.store(null_mut(), Ordering::Relaxed);
    clear!(local: registrations, expects_room, asked_epoch, shown_at, shown_epoch, waits);
    clear!(local: carrier_seen_ns, over_since_ns, shows);
    local.continue_nothing();
    local.express.reset();
    local.spin.reset();
}

/// The program listens: it will have connections, perhaps in children that can no longer reach the
/// adapter by themselves.
pub(crate) fn prepare() {
    if process::is_started() && !process::borrowed_memory() && family::table_or_new().is_some() {
        adapter::send_hello_once();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another member of the family has ended the connection and freed its entry.
    #[test]
    fn no_connection_begins_in_words_that_a_thread_is_still_leaving() {
        const INDEX: u32 = 301;
        family::table_or_new().expect("memory");
        let (_, local) = connection::hold_entry(INDEX).expect("memory");
        local.leavers.fetch_add(1, Ordering::Relaxed);
        assert!(connection::hold_entry(INDEX).is_none());
        local.leavers.fetch_sub(1, Ordering::Relaxed);
        assert!(connection::hold_entry(INDEX).is_some());
    }

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
