//! This process and its fork family. This file holds the state of the process: whether the library
//! serves it, its number, and how it waits.
//!
//! - [`lifecycle`]: start, fork, and the end;
//! - [`descriptors`]: the record of each descriptor number;
//! - [`table`], [`family`], [`holders`]: the family's table, how a process gets it, and which
//!   members hold a connection;
//! - [`handover`]: exec: connections continue in another program;
//! - [`confinement`], [`kept_bytes`]: leaving a program that sets a filter for system calls, or has
//!   children in another pid namespace; unread bytes kept for it;
//! - [`pair_doorbells`]: doorbells that are no bytes on a carrier;
//! - [`fd_table_room`]: how many descriptors `select` looks at.

pub(crate) mod confinement;
pub(crate) mod descriptors;
pub(crate) mod family;
pub(crate) mod fd_table_room;
pub(crate) mod handover;
pub(crate) mod holders;
pub(crate) mod kept_bytes;
pub(crate) mod lifecycle;
pub(crate) mod pair_doorbells;
pub(crate) mod table;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use toehold_channel::table::WaitMode;

use crate::system::sys;

/// Set once, when the library is started for this process.
static ENABLED: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);
/// The wait mode with which the process was started.
static WAIT_TOLD: AtomicU32 = AtomicU32::new(0);
/// The current wait mode: from the start, or from a rule of the operator.
static WAIT: AtomicU32 = AtomicU32::new(0);
/// The number of times that this process, and those that it descends from, have forked.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Records the process number and the wait mode.
pub(crate) fn begin(wait: WaitMode) {
    WAIT_TOLD.store(wait as u32, Ordering::Relaxed);
    WAIT.store(wait as u32, Ordering::Relaxed);
    PID.store(sys::getpid(), Ordering::Relaxed);
}

/// Sets the wait mode to that of the operator's rule; without a rule, to the mode with which the
/// process was started.
pub(crate) fn follow_wait_rule(rule: Option<WaitMode>) {
    let told = WAIT_TOLD.load(Ordering::Relaxed);
    // Relaxed: each wait reads it once, and nothing else depends on it.
    WAIT.store(rule.map_or(told, |mode| mode as u32), Ordering::Relaxed);
}

/// From now on the library serves this process.
pub(crate) fn enable() {
    // Relaxed: there is one thread.
    ENABLED.store(true, Ordering::Relaxed);
}

/// From now on the library does not serve this process.
pub(crate) fn disable() {
    // Relaxed: a call that has begun goes on in any case.
    ENABLED.store(false, Ordering::Relaxed);
}

/// This process is about to fork.
pub(crate) fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// This process is the child.
pub(crate) fn forked() {
    PID.store(sys::getpid(), Ordering::Relaxed);
}

/// True once the library serves this process.
#[inline]
pub fn is_started() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// The process number, taken at start or fork. In a `vfork` child it is the parent's number.
#[inline]
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Changes with each forked child, which inherits our mappings.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The wait mode.
#[inline]
pub(crate) fn wait_mode() -> WaitMode {
    WaitMode::from_word(WAIT.load(Ordering::Relaxed)).unwrap_or(WaitMode::Adaptive)
}

/// True in a `vfork` child (or after a raw `clone` that shares memory): the child closes its own
/// descriptors, but the library's state in memory belongs to the parent.
#[inline]
pub(crate) fn borrowed_memory() -> bool {
    is_started() && sys::getpid() != pid()
}
