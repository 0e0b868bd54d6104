//! Requests of the adapter: about connections that no call uses at the moment, about how the
//! process waits, and about express. A new adapter also asks the process to introduce itself.
//!
//! The table's `attention` says that there is a request. The process serves the request when it
//! uses another connection, before it sleeps, and from time to time when it does not need to sleep
//! ([`follow`]). It looks at one connection after the other ([`Rounds`]), for a slice of time
//! ([`Pace`]). The thread's other calls come between two slices. A thread that is about to sleep
//! looks for its own events there.

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::express::Rule;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_SPARE, COMMAND_YIELD, Header, Mode, WaitMode, is_eviction,
};
use toehold_stream::leaving::Refusal;

use crate::adapter::pace::{Pace, Slice, Turn};
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
static PACE: Pace = Pace::new();
/// The number of entries without a request that a slice passes between two looks at the clock.
const PASSED_MAX: u32 = 64;

/// Serves the adapter's requests about connections that no call is using. Called before a thread
/// sleeps for events, from time to time when it finds events without sleeping, and after calls on
/// the host path. While another thread serves them, there is nothing to do here.
#[inline]
pub(crate) fn follow() {
    let Some(table) = table::table() else { return };
    if is_asked(table.header()) || !ROUNDS.are_over() {
        follow_if_due(&table);
    }
}

#[cold]
fn follow_if_due(table: &Table) {
    let now_ns = sys::now_ns();
    if (is_asked(table.header()) || PACE.is_due(now_ns))
        && let Some(turn) = PACE.try_take()
    {
        errno::keep(|| follow_for_a_slice(table, &turn, now_ns, false));
    }
}

/// As [`follow`], for a thread that is about to sleep. True while there is more to do first: the
/// thread may look for its own events, and comes back.
#[inline]
pub(crate) fn follow_before_sleep() -> bool {
    let Some(table) = table::table() else {
        return false;
    };
    (is_asked(table.header()) || !ROUNDS.are_over()) && follow_without_other_work(&table)
}

/// A thread that sleeps while another thread has its turn would not notice that the other thread,
/// which has other work, leaves a part undone. So it waits for the other's slice.
#[cold]
fn follow_without_other_work(table: &Table) -> bool {
    let is_due = || PACE.is_due(sys::now_ns());
    if is_asked(table.header()) || ROUNDS.are_urgent() || is_due() {
        let turn = PACE.take();
        let has_no_other_work = ROUNDS.are_urgent();
        errno::keep(|| follow_for_a_slice(table, &turn, sys::now_ns(), has_no_other_work));
    }
    ROUNDS.are_urgent() || (!ROUNDS.are_over() && is_due())
}

/// After fork: another thread of the parent may have had its turn.
pub(crate) fn forked() {
    PACE.forked();
}

/// Whether there is a request that was not followed yet.
#[inline]
fn is_asked(header: &Header) -> bool {
    // Acquire pairs with the adapter's Release in `Tables::call_attention`.
    header.attention.load(Ordering::Acquire) != FOLLOWED.load(Ordering::Relaxed)
}

/// Takes up a new request, and looks at connections for a slice of time, unless it is too early at
/// `now_ns` for the next one. In an urgent round it is never too early for a thread without other
/// work.
fn follow_for_a_slice(table: &Table, turn: &Turn<'_>, now_ns: u64, has_no_other_work: bool) {
    let header = table.header();
    // Acquire pairs with the adapter's Release in `Tables::call_attention`.
    let attention = header.attention.load(Ordering::Acquire);
    if attention != FOLLOWED.swap(attention, Ordering::Relaxed) {
        if !ROUNDS.are_urgent() {
            turn.is_due_at(now_ns);
        }
        ROUNDS.ask();
        follow_for_process(header);
    }
    if ROUNDS.are_over() {
        // Another thread has finished the round.
        return;
    }
    let Some(slice) = turn.begin(now_ns, has_no_other_work) else {
        return;
    };
    let is_round_over = look_for_a_slice(table, slice);
    turn.end(slice, sys::now_ns(), ROUNDS.are_urgent(), is_round_over);
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

/// Looks at connections that this process holds: true when the slice has ended with a round.
fn look_for_a_slice(table: &Table, slice: Slice) -> bool {
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
            if slice.is_over(sys::now_ns()) {
                return false;
            }
        }
    }
    true
}

/// Looks at a connection if something is asked of it: whether that is so.
fn look_at_entry(index: u32) -> bool {
    let Some((entry, local)) = connection::words(index) else {
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
    let is_in_vain = !leaving::finish_soon(connection);
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
    match connection.local.attachment.has_region() {
        true if is_in_vain => ROUNDS.again_at_once(connection.index),
        true if is_unfinished => ROUNDS.again(connection.index),
        _ => {}
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
