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
//! - [`listener`]: the one listener whose connections may come by carriers; [`published`]: what
//!   others ask of it;
//! - [`seeds`]: how a carrier begins; [`burst`]: when none is to begin; [`destinations`]: where it
//!   leads to; [`listening`]: who listens there; [`opening`] and [`withheld`]: carriers by which
//!   the engine connects;
//! - [`turns`]: the questions that transfers ask; [`returning`] and [`reconnecting`]: a connection
//!   that nobody accepted goes back to the kernel;
//! - [`evidence`]: whether a program waits where the library sees it; [`unseen_waits`] and
//!   [`unread_watch`]: a connection of a program that does not, after all.
//!
//! One lock guards all that is parked. It is taken in `connect`, `accept` and `close` only, outside
//! of all other locks. The protocols between the processes are `toehold_stream::express`, decided
//! in `docs/decisions/0023-express.md`.

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
pub(crate) mod turns;
pub(crate) mod unread_watch;
pub(crate) mod unseen_waits;
pub(crate) mod withheld;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use toehold_channel::express::Rule;

use crate::adapter;
use crate::connection::tracking;
use crate::lock::mutex::Mutex;
use crate::process::descriptors::{self, Unconnected};
use crate::process::{self, table};
use crate::system::sys;

/// Express is on: as the process was told, or as a rule of the operator's says.
static WANTED: AtomicBool = AtomicBool::new(false);
/// The process was told that express is on when it started.
static TOLD: AtomicBool = AtomicBool::new(false);
/// Express is off, whatever a rule says.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// This process has waited for the adapter to say what the rules say.
static HAS_AWAITED_RULE: AtomicBool = AtomicBool::new(false);
/// Connections that the program has made, by the kernel.
static CONNECTS: AtomicU32 = AtomicU32::new(0);
/// Held while anything that is parked, or the listener, changes.
static LOCK: Mutex = Mutex::new();

/// Has short connections go by carriers that were used before; with `always`, every connection is
/// to become a carrier. Before `main`.
pub fn want_express(always: bool) {
    if always {
        published::choose_all();
    }
    // Relaxed: set once, before `main`.
    TOLD.store(true, Ordering::Relaxed);
    WANTED.store(true, Ordering::Relaxed);
}

/// True when short connections may go by parked carriers.
#[inline]
pub(crate) fn is_on() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// As [`is_on`], for calls that change something: not in a `vfork` child. It asks the kernel.
pub(crate) fn may_act() -> bool {
    is_on() && process::is_started() && !process::borrowed_memory()
}

/// The process is about to do something that parked carriers must not see: a fork, an exec. Nothing
/// is parked afterwards.
pub(crate) fn stop() {
    if !may_act() {
        return;
    }
    let _held = LOCK.lock();
    give_all_up();
}

/// Express is over in this process: before a change of namespaces. The caller has asked whether
/// memory is borrowed.
pub(crate) fn end() {
    if IS_OVER.swap(true, Ordering::Relaxed) || !is_on() {
        return;
    }
    let _held = LOCK.lock();
    listener::forget_all();
    give_all_up();
    // With the lock held: whoever waits for it to park or to claim asks again.
    WANTED.store(false, Ordering::Relaxed);
}

/// Nothing is parked or kept any more. The caller holds the lock.
fn give_all_up() {
    listener::stop();
    carriers::retire_all();
    spares::end_epoch();
}

/// Does as a rule of the operator's says, or without one as the process was told when it started.
/// False when another thread is at work: to be called again.
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
        // Nobody tells of listeners that are closed from here on.
        listener::forget_all();
        give_all_up();
    }
    WANTED.store(is_wanted, Ordering::Relaxed);
    true
}

/// The program listens: its listener is served from the beginning or never, so the adapter's word
/// is awaited here, for a moment and once.
pub(crate) fn learn_rule() {
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

/// The program closes `fd`, which is no connection. A `connect` of another thread may be about to
/// put a carrier there: it has done so, or finds nothing known of the number. `None` when it has.
pub(crate) fn forget_unconnected(fd: i32) -> Option<Unconnected> {
    let _held = descriptors::may_be_replaced(fd).then(|| LOCK.lock());
    descriptors::forget_unconnected(fd)
}

/// The kernel has connected the program once more. A client of many short connections becomes known
/// to the adapter, whose rules may speak of it.
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

/// Gives up descriptors of which the program has none left: true when there were any.
pub(crate) fn make_room() -> bool {
    may_act() && {
        let _held = LOCK.lock();
        carriers::retire_all() | spares::close_all()
    }
}

/// How long a sleep may last: until a parked carrier is to be retired, or a turn looked at.
pub(crate) fn limit(left: Option<u64>) -> Option<u64> {
    let retirement = match carriers::are_any() {
        true => carriers::next_retirement_ns(),
        false => None,
    };
    let (spare, queues) = (spares::due_in_ns(), listener::due_in_ns());
    let limits = [left, retirement, spare, queues, unread_watch::limit_ns()];
    limits.into_iter().flatten().min()
}

/// As [`limit`], of a sleep on one connection: until a turn is to be looked at.
pub(crate) fn look_limit_ns() -> Option<u64> {
    unread_watch::limit_ns()
}

/// Retires what has been parked for too long, what has ended, and what the adapter wants back;
/// looks at turns when it is time to.
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
            // It comes to the lock meanwhile, or does so later and finds the connection.
            thread::sleep(Duration::from_millis(5));
            let before = descriptors::begin_connection(FD, 7, 3);
            assert!(matches!(before, descriptors::Noted::Unconnected(_)));
            drop(held);
            assert_eq!(closer.join().expect("no panic"), None);
        });
        assert!(descriptors::forget_connection(FD, 7, 3));
    }
}
