//! The library in a process: its start, forks, and the end.

use core::sync::atomic::Ordering;

use toehold_channel::table::WaitMode;

use crate::epoll::lifetime;
use crate::{adapter, connection, family, holders, locking, process, release, table};

/// Starts the library in this process. Called once, from the constructor, with one thread.
pub fn start(wait: WaitMode) {
    lifetime::start();
    process::begin(wait);
    // SAFETY: the handlers are functions without captured state that live as long as the library.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork_in_child)) };
    process::enable();
}

/// The process is about to end: the kernel will close what it holds. Descriptors stay known, for
/// threads that still run.
pub fn ending() {
    if !process::is_started() || process::borrowed_memory() {
        return;
    }
    connection::each_held(|index, entry, local| {
        release::holder_ends(&connection::held(index, entry, local));
    });
    holders::leave_family(process::pid());
}

/// Fork, parent's side, before the child exists: the child will hold every connection that we hold.
/// No allocation, no lock.
pub extern "C" fn before_fork() {
    if !process::is_started() {
        return;
    }
    process::before_fork();
    if let Some(table) = table::table() {
        // Relaxed: the increments below come after it.
        table.header().births.fetch_add(1, Ordering::Relaxed);
    }
    connection::each_held(|_, entry, _| {
        // Release pairs with the Acquire load in `holders::are_others`: whoever sees the holder
        // sees the birth.
        entry.holders.fetch_add(1, Ordering::Release);
    });
}

/// A fork made by number failed after [`before_fork`].
pub fn fork_failed() {
    if !process::is_started() {
        return;
    }
    if let Some(table) = table::table() {
        // Relaxed: no child has entered itself.
        table.header().births.fetch_sub(1, Ordering::Relaxed);
    }
    connection::each_held(|_, entry, _| {
        entry.holders.fetch_sub(1, Ordering::Relaxed);
    });
}

/// Fork, child's side: another process number, an adapter connection and epoll ready bitmaps that
/// are the parent's.
pub extern "C" fn after_fork_in_child() {
    if !process::is_started() {
        return;
    }
    process::forked();
    family::forked();
    // The threads that slept or worked on a connection stayed with the parent, on connections that
    // have ended, too.
    connection::each_held(|_, _, local| local.membership.reset());
    connection::each_used(|_, _, local| local.attachment.forget_threads());
    if let Some(table) = table::table() {
        holders::join_self(&table);
        connection::each_held(|_, entry, _| holders::mark(entry, holders::place()));
        // Release pairs with the Acquire load in `holders::family_alive`: it finds us in the list.
        table.header().births.fetch_sub(1, Ordering::Release);
    }
    adapter::forked();
    lifetime::forked();
    locking::forked();
}
