//! The library in a process: its start, forks, and the end.

use toehold_channel::table::WaitMode;

use crate::connection::{self, release};
use crate::epoll::lifetime;
use crate::memory::{mlockall, pairs};
use crate::process::descriptors::{self, Recipient};
use crate::process::pair_doorbells;
use crate::process::{self, confinement, family, holders, kept_bytes, table};
use crate::system::{errno, faults, real, threads};
use crate::waiting::kernel_waits;
use crate::{adapter, express, uring};

/// Starts the library in this process. Called once, from the constructor, with one thread.
#[unsafe(link_section = ".text.startup")]
pub fn start(wait: WaitMode) {
    lifetime::start();
    process::begin(wait);
    threads::find();
    follow_forks();
    process::enable();
}

/// Registers fork handlers with libc.
fn follow_forks() {
    let (before, child) = (
        Some(before_fork as extern "C" fn()),
        Some(after_fork_in_child as extern "C" fn()),
    );
    // SAFETY: the handlers are functions without captured state that live as long as the library,
    // which is never unloaded: so it names no object.
    unsafe {
        if real::__register_atfork(before, None, child, core::ptr::null_mut()) < 0 {
            real::pthread_atfork(before, None, child);
        }
    }
}

/// The process is about to end, and the kernel will close its descriptors. They stay recorded,
/// because other threads still run.
#[unsafe(link_section = ".text.startup")]
pub fn ending() {
    if !process::is_started() || process::borrowed_memory() {
        return;
    }
    express::ending();
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
    express::stop();
    descriptors::share_fresh(Recipient::Child);
    process::before_fork();
    let place = table::table().and_then(|table| holders::expect_child(&table));
    connection::each_held(|_, entry, _| {
        holders::enter(entry, place);
    });
}

/// Fork, parent's side, after it: `result` is what it returned.
pub fn after_fork_in_parent(result: i64) {
    let Some(table) = table::table().filter(|_| process::is_started()) else {
        return;
    };
    errno::keep(|| match u32::try_from(result) {
        Ok(child) => holders::child_forked(&table, child),
        Err(_) if holders::fork_failed(&table) => {}
        // The child was counted without a place.
        Err(_) => connection::each_held(|_, entry, _| holders::count_out(entry, None)),
    });
}

/// Fork, child's side: the process number has changed, and the adapter connection and the ready
/// bitmaps belong to the parent.
pub extern "C" fn after_fork_in_child() {
    if !process::is_started() {
        if kept_bytes::has_any() {
            confinement::forked();
            if !confinement::is_confined() {
                process::forked();
            }
        }
        return;
    }
    process::forked();
    threads::forked();
    faults::forked();
    family::forked();
    // Threads that slept or worked on a connection exist only in the parent. This also concerns
    // connections that have ended.
    connection::each_held(|_, _, local| local.membership.reset());
    connection::each_used(|_, _, local| local.forget_threads());
    if let Some(table) = table::table() {
        if holders::begin_as_child(&table) {
            connection::each_used(|_, entry, local| {
                holders::settle_as_child(entry, connection::is_held(entry, local));
            });
        } else {
            connection::each_held(|_, entry, _| holders::name(entry, holders::place()));
        }
    }
    express::forked();
    adapter::requests::forked();
    adapter::forked();
    pair_doorbells::forked();
    pairs::forked();
    kernel_waits::forked();
    uring::forked();
    lifetime::forked();
    mlockall::forked();
}
