//! *Express*: carriers that serve one connection of the program after another.
//!
//! ```text
//!   connect ─► claiming ─► a parked carrier ─► the peer's queue ─► accepting ◄─ accept
//!      │ none is parked                                               ▲
//!      ▼                                                              │
//!   the kernel ─► seeds: paired at once ─► … ─► close ─► parking ─► carriers: parked
//!                                                          │
//!                                 too old, too many, dead, fork, exec ─► retired
//! ```
//!
//! - [`carrier_words`]: a carrier's own state; [`carriers`]: those that are parked, and their
//!   retirement;
//! - [`parking`]: the last close of a turn; [`claiming`]: `connect`; [`accepting`]: `accept`;
//!   [`spares`]: the sockets that `connect` has replaced, for `socket`;
//! - [`listener`]: the one listener whose connections may come by carriers; [`published`]: its
//!   state, readable without the lock;
//! - [`seeds`]: how a carrier begins; [`burst`]: when none begins; [`destinations`]: the addresses
//!   to which carriers lead; [`listening`]: the sockets that listen there; [`opening`] and
//!   [`withheld`]: carriers to the engine's relay;
//! - [`sudden_end`]: parked carriers of a process that is killed;
//! - [`turns`]: the questions that transfers ask; [`returning`] and [`reconnecting`]: a connection
//!   that was not accepted goes back to the kernel;
//! - [`evidence`]: whether a program waits where the library sees it; [`unseen_waits`] and
//!   [`unread_watch`]: connections of a program that does not.
//!
//! One lock guards all parked carriers. It is taken only in `connect`, `accept` and `close`, before
//! all other locks. The protocols between the processes are `toehold_stream::express`, decided in
//! `docs/decisions/0023-express.md`.

pub(crate) mod accepting;
mod burst;
pub(crate) mod carrier_words;
mod carriers;
pub(crate) mod claiming;
mod destinations;
mod evidence;
pub(crate) mod listener;
mod listening;
pub(crate) mod opening;
pub(crate) mod parking;
pub(crate) mod published;
mod reconnecting;
pub(crate) mod returning;
pub(crate) mod seeds;
pub(crate) mod spares;
mod sudden_end;
pub(crate) mod turns;
pub(crate) mod unread_watch;
pub(crate) mod unseen_waits;
pub(crate) mod withheld;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use toehold_channel::express::Rule;

use self::carriers::Role;
use crate::adapter;
use crate::connection::tracking;
use crate::lock::mutex::Mutex;
use crate::process::descriptors::{self, Unconnected};
use crate::process::{self, table};
use crate::system::sys;

/// Express is on, by the option of the process or by a rule of the operator.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Express is on by the option with which the process was started.
static TOLD: AtomicBool = AtomicBool::new(false);
/// Express is off for good, whatever a rule says.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// This process has waited once for the adapter's rules.
static HAS_AWAITED_RULE: AtomicBool = AtomicBool::new(false);
/// Connections that the program has made through the kernel.
static CONNECTS: AtomicU32 = AtomicU32::new(0);
/// Held while the parked carriers or the listener change.
static LOCK: Mutex = Mutex::new();

/// Makes short connections use parked carriers. With `always`, every connection should become a
/// carrier. Called before `main`.
pub fn want_express(always: bool) {
    if always {
        published::choose_all();
    }
    // Relaxed: set once, before `main`.
    TOLD.store(true, Ordering::Relaxed);
    WANTED.store(true, Ordering::Relaxed);
}

/// True when short connections may use parked carriers.
#[inline]
pub(crate) fn is_on() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// As [`is_on`], for calls that change something: false in a `vfork` child. Makes a system call.
pub(crate) fn may_act() -> bool {
    is_on() && process::is_started() && !process::borrowed_memory()
}

/// Retires all parked carriers before a fork or an exec.
pub(crate) fn stop() {
    if !may_act() {
        return;
    }
    let _held = LOCK.lock();
    give_all_up();
}

/// Ends express in this process, before a change of namespaces. The caller has checked that memory
/// is not borrowed.
pub(crate) fn end() {
    if IS_OVER.swap(true, Ordering::Relaxed) || !is_on() {
        return;
    }
    let _held = LOCK.lock();
    listener::forget_all();
    give_all_up();
    // Stored with the lock held: a thread that waits for the lock to park or to claim checks the
    // word again.
    WANTED.store(false, Ordering::Relaxed);
}

/// The process is about to end.
pub(crate) fn ending() {
    // Without the lock another thread may be using the lists.
    if let Some(_held) = LOCK.try_lock() {
        carriers::ending();
    }
}

/// Retires all carriers and closes all spare sockets. The caller holds the lock.
fn give_all_up() {
    listener::stop();
    carriers::retire_all();
    spares::end_epoch();
}

/// Follows the operator's rule, or without a rule the option with which the process was started.
/// False when another thread holds the lock: call again later.
pub(crate) fn follow_rule(rule: Rule) -> bool {
    let is_wanted = match rule {
        Rule::On => true,
        Rule::Off => false,
        Rule::Silent | Rule::Unknown => TOLD.load(Ordering::Relaxed),
    };
    if is_wanted == is_on() || IS_OVER.load(Ordering::Relaxed) || process::borrowed_memory() {
        return true;
    }
    let Some(_held) = LOCK.try_lock() else {
        return false;
    };
    if !is_wanted {
        // From now on nobody records that a listener is closed, so all are forgotten.
        listener::forget_all();
        give_all_up();
    }
    WANTED.store(is_wanted, Ordering::Relaxed);
    true
}

/// The program listens. A listener is served from its beginning or never, so this waits once, for a
/// moment, for the adapter's rules.
pub(crate) fn await_rule() {
    const AWAITED_NS: u64 = 20_000_000;
    const LOOK_NS: u64 = 200_000;
    if !process::is_started() || process::borrowed_memory() {
        return;
    }
    let Some(table) = table::table() else { return };
    let rule = || Rule::from_word(table.header().express_by_rule.load(Ordering::Relaxed));
    let until = sys::now_ns() + AWAITED_NS;
    let waits = !HAS_AWAITED_RULE.swap(true, Ordering::Relaxed);
    while waits && rule() == Rule::Unknown && sys::now_ns() < until {
        let hung_up = |adapter| sys::poll_for(adapter, 0, LOOK_NS) != 0;
        if adapter::connected().is_none_or(hung_up) {
            break;
        }
    }
    follow_rule(rule());
}

/// The program closes `fd`, which is not a connection. Another thread's `connect` may be about to
/// put a carrier there. Either it has already done so, and this returns `None`; or it will find
/// that the number is not known any more.
pub(crate) fn forget_unconnected(fd: i32) -> Option<Unconnected> {
    let _held = descriptors::may_be_replaced(fd).then(|| LOCK.lock());
    descriptors::forget_unconnected(fd)
}

/// Counts a connection that the kernel has made for the program. A client with many short
/// connections introduces itself to the adapter, because a rule may apply to it.
pub(crate) fn note_connect() {
    const CONNECTS_MIN: u32 = 16;
    if CONNECTS.fetch_add(1, Ordering::Relaxed) == CONNECTS_MIN {
        tracking::prepare();
    }
}

/// After fork: the parent has retired what was parked before.
pub(crate) fn forked() {
    LOCK.reset();
    listener::forked();
}

/// Releases parked descriptors, because the program has none left. True when there were any.
pub(crate) fn make_room() -> bool {
    may_act() && {
        let _held = LOCK.lock();
        carriers::retire_all() | spares::close_all()
    }
}

/// Limits a sleep to the time when a parked carrier must be retired or a turn looked at.
pub(crate) fn limit(left: Option<u64>) -> Option<u64> {
    let retirement = match carriers::are_any() {
        true => carriers::next_retirement_ns(),
        false => None,
    };
    let (spare, queues) = (spares::due_in_ns(), listener::due_in_ns());
    let limits = [left, retirement, spare, queues, unread_watch::limit_ns()];
    limits.into_iter().flatten().min()
}

/// As [`limit`], for a sleep on one connection: the time until a turn must be looked at.
pub(crate) fn look_limit_ns() -> Option<u64> {
    unread_watch::limit_ns()
}

/// A thread is about to sleep: see [`sudden_end`].
#[inline]
pub(crate) fn begin_sleep() {
    if sudden_end::is_due()
        && let Some(_held) = LOCK.try_lock()
    {
        carriers::each_from_last(Role::Accepting, sudden_end::prepare);
    }
}

/// Retires carriers that have been parked for too long, that have ended, or whose channels the
/// adapter wants back. Looks at watched turns when it is time.
pub(crate) fn look_after() {
    let is_due = unread_watch::is_due();
    let is_idle = !carriers::are_any() && !spares::are_any() && !listener::is_paused();
    if !is_due && is_idle {
        return;
    }
    if let Some(_held) = LOCK.try_lock() {
        carriers::look_after();
        spares::look_after(sys::now_ns());
        listener::withdraw();
        if is_due {
            unread_watch::look();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn who_closes_a_socket_waits_for_whoever_connects_it() {
        const FD: i32 = 5002;
        descriptors::note_fresh_in_test(FD);
        thread::scope(|scope| {
            let held = LOCK.lock();
            let closer = scope.spawn(|| forget_unconnected(FD));
            // The other thread reaches the lock meanwhile, or later, and then finds the connection.
            thread::sleep(Duration::from_millis(5));
            let before = descriptors::begin_connection(FD, 7, 3);
            assert!(matches!(before, descriptors::Recorded::Unconnected(_)));
            drop(held);
            assert_eq!(closer.join().expect("no panic"), None);
        });
        assert!(descriptors::forget_connection(FD, 7, 3));
    }
}
