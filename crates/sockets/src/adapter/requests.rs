//! Requests of the adapter: about connections that no call uses at the moment, about how the
//! process waits, and about express. A new adapter also asks the process to introduce itself.
//!
//! The table's `attention` says that there is a request. The process serves the request when it
//! uses another connection, before it sleeps, and from time to time when it does not need to sleep
//! ([`follow`]).

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use toehold_channel::express::Rule;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_EVICT, COMMAND_YIELD, Header, Mode, WaitMode,
};
use toehold_stream::leaving::Refusal;

use crate::connection::Connection;
use crate::direction::{self, switching};
use crate::pairing::leaving;
use crate::process::{self, table};
use crate::system::{errno, sys};
use crate::{adapter, connection, express};

/// The value of `attention` that was last followed.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);
/// A channel is being left, and its peer had not finished its part when we last looked.
static UNFINISHED: AtomicBool = AtomicBool::new(false);
static LOOK_AT_NS: AtomicU64 = AtomicU64::new(0);
/// Shortest time between two looks at unfinished channels: each look visits all connections of this
/// process.
const LOOK_INTERVAL_NS: u64 = 20_000_000;
/// These looks take at most one part in `LOOK_SHARE` of a thread's time, because a sleeping peer
/// may leave thousands of connections unfinished for hours.
const LOOK_SHARE: u64 = 32;

/// Serves the adapter's requests about connections that no call is using. Called before a thread
/// sleeps for events, from time to time when it finds events without sleeping, and after calls on
/// the host path.
#[inline]
pub(crate) fn follow() {
    let Some(table) = table::table() else { return };
    // Acquire pairs with the adapter's Release in `Tables::call_attention`.
    let attention = table.header().attention.load(Ordering::Acquire);
    if attention != FOLLOWED.load(Ordering::Relaxed) || UNFINISHED.load(Ordering::Relaxed) {
        walk(table.header(), attention);
    }
}

#[cold]
fn walk(header: &Header, attention: u32) {
    let now = sys::now_ns();
    if attention == FOLLOWED.swap(attention, Ordering::Relaxed)
        && now < LOOK_AT_NS.load(Ordering::Relaxed)
    {
        return;
    }
    let rule = header.wait_by_rule.load(Ordering::Relaxed);
    process::follow_wait_rule(WaitMode::from_ruled(rule));
    LOOK_AT_NS.store(now + LOOK_INTERVAL_NS, Ordering::Relaxed);
    let has_looked = errno::keep(adapter::follow_successor);
    let rule = Rule::from_word(header.express_by_rule.load(Ordering::Relaxed));
    let has_followed = errno::keep(|| express::follow_rule(rule));
    UNFINISHED.store(!(has_looked && has_followed), Ordering::Relaxed);
    errno::keep(look_at_all);
    LOOK_AT_NS.store(next_look_ns(now, sys::now_ns()), Ordering::Relaxed);
}

/// When to look again, after a walk that lasted from `begun_ns` to `ended_ns`.
fn next_look_ns(begun_ns: u64, ended_ns: u64) -> u64 {
    let share_ns = ended_ns.saturating_sub(begun_ns) * LOOK_SHARE;
    ended_ns + share_ns.max(LOOK_INTERVAL_NS)
}

fn look_at_all() {
    express::look_after();
    connection::each_held(|index, entry, local| {
        if !local.attachment.has_region() {
            return;
        }
        let connection = connection::held(index, entry, local);
        let command = entry.command.load(Ordering::Relaxed);
        let commanded = matches!(command, COMMAND_DETACH | COMMAND_EVICT | COMMAND_YIELD);
        if commanded || is_refused(&connection) || switching::is_released(entry) {
            look_at(&connection, command);
        }
    });
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
        COMMAND_DETACH | COMMAND_EVICT => true,
        // The command has ended. The end that notices this first goes up only when its peer has
        // noticed, too.
        _ => waits_for_peer,
    };
    if is_unfinished && connection.local.attachment.has_region() {
        UNFINISHED.store(true, Ordering::Relaxed);
    }
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
    fn walks_over_many_connections_are_rare() {
        let short = LOOK_INTERVAL_NS / LOOK_SHARE;
        for (lasted, pause) in [
            (0, LOOK_INTERVAL_NS),
            (short, LOOK_INTERVAL_NS),
            (10 * short, 10 * LOOK_INTERVAL_NS),
        ] {
            assert_eq!(next_look_ns(7, 7 + lasted), 7 + lasted + pause);
        }
        // The clock went backwards.
        assert_eq!(next_look_ns(7, 3), 3 + LOOK_INTERVAL_NS);
    }
}
