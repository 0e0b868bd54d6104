//! Requests of the adapter: about connections that no call uses at the moment, about how the
//! process waits, and about express. A new adapter also asks the process to introduce itself.
//!
//! The table's `attention` says that there is a request. The process serves the request when it
//! uses another connection, before it sleeps, and from time to time when it does not need to sleep
//! ([`follow`]). It looks at one connection after the other ([`Rounds`]), for a slice of time. The
//! thread's other calls come between two slices. A thread that is about to sleep looks for its own
//! events there.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use toehold_channel::express::Rule;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_SPARE, COMMAND_YIELD, Header, Mode, WaitMode, is_eviction,
};
use toehold_stream::leaving::Refusal;

use crate::adapter::rounds::Rounds;
use crate::connection::Connection;
use crate::direction::{self, switching};
use crate::pairing::leaving;
use crate::process;
use crate::process::table::{self, Table};
use crate::system::{errno, sys};
use crate::{adapter, connection, express};

/// The value of `attention` that was last followed.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);
static ROUNDS: Rounds = Rounds::new();
/// When the next slice may begin. In a round that is not urgent, time that has passed since then is
/// credit for further slices.
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
/// A slice takes no longer, but for the connection that is looked at when it is over.
const SLICE_NS: u64 = 200_000;
/// The number of entries without a request that a slice passes between two looks at the clock.
const PASSED_MAX: u32 = 64;
/// Rounds that are not urgent begin at most this often.
const ROUND_INTERVAL_NS: u64 = 20_000_000;
/// Rounds that are not urgent take at most `1 / PATIENT_SHARE` of a thread's time: a peer that
/// sleeps may leave thousands of connections unfinished for hours.
const PATIENT_SHARE: u64 = 32;
/// The longest time that gives credit: a thread that slept for longer works on unfinished
/// connections for at most `CREDIT_NS / PATIENT_SHARE` before it sleeps again.
const CREDIT_NS: u64 = 1_000_000_000;
/// A slice that seems to have lasted longer was interrupted: the process was stopped, for example.
const LASTED_NS_MAX: u64 = 50 * SLICE_NS;
/// Urgent rounds take at most `1 / URGENT_SHARE` of the time of a thread that has other work.
const URGENT_SHARE: u64 = 2;

/// Serves the adapter's requests about connections that no call is using. Called before a thread
/// sleeps for events, from time to time when it finds events without sleeping, and after calls on
/// the host path.
#[inline]
pub(crate) fn follow() {
    let Some(table) = table::table() else { return };
    if is_asked(table.header()) || !ROUNDS.are_over() {
        follow_for_a_slice(&table, sys::now_ns());
    }
}

/// As [`follow`], for a thread that is about to sleep. True while there is more to do first: the
/// thread may look for its own events, and comes back.
#[inline]
pub(crate) fn follow_before_sleep() -> bool {
    let Some(table) = table::table() else {
        return false;
    };
    if !is_asked(table.header()) && ROUNDS.are_over() {
        return false;
    }
    // A thread without other work keeps no pause.
    let paused_until_ns = match ROUNDS.are_urgent() {
        true => NEXT_NS.load(Ordering::Relaxed),
        false => 0,
    };
    follow_for_a_slice(&table, sys::now_ns().max(paused_until_ns));
    let has_credit = || sys::now_ns() >= NEXT_NS.load(Ordering::Relaxed);
    ROUNDS.are_urgent() || (!ROUNDS.are_over() && has_credit())
}

/// Whether there is a request that was not followed yet.
#[inline]
fn is_asked(header: &Header) -> bool {
    // Acquire pairs with the adapter's Release in `Tables::call_attention`.
    header.attention.load(Ordering::Acquire) != FOLLOWED.load(Ordering::Relaxed)
}

/// Takes up a new request, and looks at connections for a slice of time, unless it is too early at
/// `now` for the next one.
#[cold]
fn follow_for_a_slice(table: &Table, now: u64) {
    let header = table.header();
    // Acquire pairs with the adapter's Release in `Tables::call_attention`.
    let attention = header.attention.load(Ordering::Acquire);
    if attention != FOLLOWED.swap(attention, Ordering::Relaxed) {
        if !ROUNDS.are_urgent() {
            NEXT_NS.store(now, Ordering::Relaxed);
        }
        ROUNDS.ask();
        follow_for_process(header);
    }
    let due_ns = NEXT_NS.load(Ordering::Relaxed);
    if now < due_ns {
        return;
    }
    let begun_ns = sys::now_ns();
    let is_round_over = errno::keep(|| look_for_a_slice(table, begun_ns));
    let slice = Slice {
        due_ns,
        begun_ns,
        ended_ns: sys::now_ns(),
    };
    let next = slice.next_ns(ROUNDS.are_urgent(), is_round_over);
    NEXT_NS.store(next, Ordering::Relaxed);
}

/// The times of a slice.
#[derive(Clone, Copy, Debug)]
struct Slice {
    /// From then on it might have begun.
    due_ns: u64,
    begun_ns: u64,
    ended_ns: u64,
}

impl Slice {
    /// When the next slice may begin.
    fn next_ns(self, is_urgent: bool, is_round_over: bool) -> u64 {
        let lasted_ns = self.ended_ns.saturating_sub(self.begun_ns);
        let lasted_ns = lasted_ns.min(LASTED_NS_MAX);
        let patient_pause_ns = lasted_ns * (PATIENT_SHARE - 1);
        match (is_urgent, is_round_over) {
            (true, _) => self.ended_ns + lasted_ns * (URGENT_SHARE - 1),
            (false, true) => self.ended_ns + ROUND_INTERVAL_NS.max(patient_pause_ns),
            (false, false) => {
                let waited_ns = self.begun_ns.saturating_sub(self.due_ns);
                let credit_ns = waited_ns.min(CREDIT_NS);
                (self.ended_ns + patient_pause_ns).saturating_sub(credit_ns)
            }
        }
    }
}

/// Follows what the adapter wants of the process as a whole. Where another thread holds a lock for
/// that, the process follows it at entry 0.
fn follow_for_process(header: &Header) {
    let rule = header.wait_by_rule.load(Ordering::Relaxed);
    process::follow_wait_rule(WaitMode::from_ruled(rule));
    let has_looked = errno::keep(adapter::follow_successor);
    let rule = Rule::from_word(header.express_by_rule.load(Ordering::Relaxed));
    let has_followed = errno::keep(|| express::follow_rule(rule));
    if !(has_looked && has_followed) {
        ROUNDS.again(0);
    }
    errno::keep(express::look_after);
}

/// Looks at connections that this process holds, from a slice's beginning on: true when the slice
/// has ended with a round.
fn look_for_a_slice(table: &Table, begun_ns: u64) -> bool {
    let mut passed = 0;
    // The process has its turn at entry 0, even where there is none.
    while let Some((index, is_last)) = ROUNDS.take(table.entries_used().max(1)) {
        let was_looked_at = look_at_entry(index);
        if index == 0 {
            follow_for_process(table.header());
        }
        if is_last {
            return true;
        }
        passed += 1;
        if was_looked_at || passed >= PASSED_MAX {
            passed = 0;
            if sys::now_ns().saturating_sub(begun_ns) >= SLICE_NS {
                return false;
            }
        }
    }
    true
}

/// Looks at a connection if something is asked of it: whether that is so.
fn look_at_entry(index: u32) -> bool {
    let (Some(entry), Some(local)) = (table::entry(index), connection::local(index)) else {
        // Those that this process has not come across are others' of its family.
        return false;
    };
    if !connection::is_held(entry, local) || !local.attachment.has_region() {
        return false;
    }
    let connection = connection::held(index, entry, local);
    let command = entry.command.load(Ordering::Relaxed);
    if command == COMMAND_SPARE && keeps_unread(&connection) {
        return false;
    }
    let commanded = matches!(command, COMMAND_DETACH | COMMAND_YIELD) || is_eviction(command);
    let is_asked = commanded || is_refused(&connection) || switching::is_released(entry);
    if is_asked {
        look_at(&connection, command);
    }
    is_asked
}

/// Serves one connection that no call is using: carries out a command, the end of a command, or a
/// wish of the peer.
fn look_at(connection: &Connection, command: u32) {
    let entry = connection.entry;
    if let Some(end) = connection.inside() {
        // If the peer came down first, it may go up again only after we have carried out its
        // record.
        direction::settle_incoming(connection, &end);
    }
    switching::service(connection);
    let waits_for_peer = is_refused(connection);
    if !waits_for_peer && switching::is_released(entry) {
        // The peer has taken its refusal back while we looked at ours.
        switching::service(connection);
    }
    leaving::finish(connection);
    let is_unfinished = match command {
        // The channel stays, so nothing more is to do once our direction is down.
        COMMAND_YIELD => !entry
            .tx_mode
            .load(Ordering::Relaxed)
            .is(Mode::Carrier as u32),
        COMMAND_DETACH => true,
        command if is_eviction(command) => true,
        // The command has ended. The end that notices this first goes up only when its peer has
        // noticed, too.
        _ => waits_for_peer,
    };
    if is_unfinished && connection.local.attachment.has_region() {
        ROUNDS.again(connection.index);
    }
}

/// Keeps the region of a connection that is wanted back if it is idle, where the program has bytes
/// to read there. Whether that is so.
fn keeps_unread(connection: &Connection) -> bool {
    let Some(end) = connection.inside() else {
        return false;
    };
    end.reads_ring() && end.receiver().looks_filled() && switching::keep_region(connection, &end)
}

/// Whether one of the two ends wants the connection on its carrier.
fn is_refused(connection: &Connection) -> bool {
    let end = connection.end();
    end.is_some_and(|end| end.refusal() != Refusal::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_other_work_gets_its_share_of_the_time() {
        let next = |lasted, is_urgent, is_round_over| {
            let slice = Slice {
                due_ns: 7,
                begun_ns: 7,
                ended_ns: 7 + lasted,
            };
            slice.next_ns(is_urgent, is_round_over) - 7
        };
        assert_eq!(next(SLICE_NS, true, false), URGENT_SHARE * SLICE_NS);
        assert_eq!(next(SLICE_NS, true, true), URGENT_SHARE * SLICE_NS);
        assert_eq!(next(SLICE_NS, false, false), PATIENT_SHARE * SLICE_NS);
        let long = 10 * SLICE_NS;
        assert_eq!(next(0, false, true), ROUND_INTERVAL_NS);
        assert_eq!(next(long, false, true), PATIENT_SHARE * long);
        // The process was stopped meanwhile.
        let stopped = 10_000_000_000;
        let pause = (PATIENT_SHARE - 1) * LASTED_NS_MAX;
        assert_eq!(next(stopped, false, false), stopped + pause);
        // The clock went backwards.
        let slice = Slice {
            due_ns: 0,
            begun_ns: 7,
            ended_ns: 3,
        };
        assert_eq!(slice.next_ns(false, true), 3 + ROUND_INTERVAL_NS);
    }

    #[test]
    fn a_thread_that_has_slept_has_credit_for_many_slices() {
        let (mut now, mut due_ns, mut slices) = (5_000_000_000, 0, 0);
        while due_ns <= now {
            let (begun_ns, ended_ns) = (now, now + SLICE_NS);
            let slice = Slice {
                due_ns,
                begun_ns,
                ended_ns,
            };
            due_ns = slice.next_ns(false, false);
            (now, slices) = (ended_ns, slices + 1);
        }
        let expected = CREDIT_NS / (PATIENT_SHARE * SLICE_NS);
        assert!((expected..expected + 9).contains(&slices), "{slices}");
    }
}
