//! Rings for bytes that the peer's program does not seem to notice.
//!
//! A program that waits for a carrier's connection past the library does not notice bytes in the
//! ring. The sending end can find that out: each end stores in the region the last turn in which
//! its program was seen waiting. An end watches the turns in which the peer was not seen. When two
//! successive looks find the same bytes unread, it rings the carrier. Then the kernel wakes the
//! peer's program, which calls libc to read, and the library gives it the bytes of the ring.
//!
//! The looks come before and after sleeps of this process; while a turn is watched, a sleep ends at
//! the latest at the next look. A process that neither calls the library nor sleeps in it makes no
//! looks. No adapter is needed.
//!
//! A process that does nothing should not be woken for ever. So a direction in which nothing was
//! sent for [`IDLE_LOOKS`] looks goes back to the carrier, where the kernel wakes the peer, and the
//! watch ends. With the next bytes the direction goes up again, and the watch begins again.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use toehold_channel::express::Event;
use toehold_channel::table::{ENTRIES, Entry, EntryState, FLAG_PARKED, Mode};
use toehold_stream::end::End;
use toehold_stream::express::Turn;

use super::{carriers, published, turns};
use crate::connection::{self, Connection, Local};
use crate::direction::{self, notifier, takeover};
use crate::offload::liveness;
use crate::process;
use crate::system::sys;

/// Time between two looks, at first and at most.
const LOOK_FIRST_NS: u64 = 20_000_000;
const LOOK_LAST_NS: u64 = 80_000_000;

/// The looks after which a direction in which nothing was sent goes back to the carrier: a little
/// more than a second.
const IDLE_LOOKS: u32 = 16;

/// One bit for each entry: its carrier's turn is watched.
static WATCHED: [AtomicU64; ENTRIES / 64] = [const { AtomicU64::new(0) }; ENTRIES / 64];
static ARE_ANY: AtomicBool = AtomicBool::new(false);
/// Stores a bit of [`WATCHED`] and then [`ARE_ANY`], in `begin`. Pairs with itself in `look`, which
/// clears [`ARE_ANY`] and then loads the bits: it sees the bit, or does not undo the store.
const WATCH_SEQ_CST: Ordering = Ordering::SeqCst;
/// When to look again; 0 when that is not set yet.
static DUE_NS: AtomicU64 = AtomicU64::new(0);
static BETWEEN_NS: AtomicU64 = AtomicU64::new(LOOK_FIRST_NS);

/// In [`super::carrier_words::Words::unread`], in the bit below the position up to which bytes were
/// sent: our turn has ended.
const HAS_ENDED: u64 = 1;
const WAS_RUNG: u64 = 2;
const POSITION_SHIFT: u32 = 2;

/// In [`super::carrier_words::Words::liveness_state`]: the adapter knows the program's settings.
pub(super) const SENT: u32 = 0;
/// The program has set something since the last look.
const SET: u32 = 1;
/// The adapter already had to be told at the last look.
const LOOKED_AT: u32 = 2;

fn place(index: u32) -> Option<(&'static AtomicU64, u64)> {
    let word = WATCHED.get(index as usize / 64)?;
    Some((word, 1 << (index % 64)))
}

/// A turn begins on the carrier of entry `index`.
pub(super) fn begin(index: u32, local: &Local) {
    local.express.unread.store(0, Ordering::Relaxed);
    local.express.idle_looks.store(0, Ordering::Relaxed);
    if let Some((word, bit)) = place(index)
        && word.load(Ordering::Relaxed) & bit == 0
    {
        BETWEEN_NS.store(LOOK_FIRST_NS, Ordering::Relaxed);
        word.fetch_or(bit, WATCH_SEQ_CST);
        ARE_ANY.store(true, WATCH_SEQ_CST);
    }
}

/// A carrier's sending direction has gone up to its ring again.
pub(crate) fn went_up(connection: &Connection) {
    if connection.local.express.is_carrier() {
        begin(connection.index, connection.local);
    }
}

/// The time that a sleep may last until the next look; `None` while nothing is watched.
pub(super) fn limit_ns() -> Option<u64> {
    if !ARE_ANY.load(Ordering::Relaxed) {
        return None;
    }
    let now = sys::now_ns();
    let mut due = DUE_NS.load(Ordering::Relaxed);
    if due == 0 {
        due = now + BETWEEN_NS.load(Ordering::Relaxed);
        DUE_NS.store(due, Ordering::Relaxed);
    }
    // Some callers take 0 for "no limit".
    Some(due.saturating_sub(now).max(1))
}

/// True when it is time for a look.
pub(super) fn is_due() -> bool {
    let due = DUE_NS.load(Ordering::Relaxed);
    ARE_ANY.load(Ordering::Relaxed) && due != 0 && sys::now_ns() >= due
}

/// Looks at each turn that is watched. The caller holds the lock of express.
pub(super) fn look() {
    let mut are_left = false;
    for (n, word) in WATCHED.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let bit = bits & bits.wrapping_neg();
            bits &= !bit;
            let index = n as u32 * 64 + bit.trailing_zeros();
            // Cleared before the look: another thread may begin a watch meanwhile.
            word.fetch_and(!bit, WATCH_SEQ_CST);
            if is_to_be_watched(index) {
                word.fetch_or(bit, Ordering::Relaxed);
                are_left = true;
            }
        }
    }
    if !are_left {
        ARE_ANY.swap(false, WATCH_SEQ_CST);
        if WATCHED.iter().any(|word| word.load(WATCH_SEQ_CST) != 0) {
            // Another thread has begun a watch meanwhile.
            ARE_ANY.store(true, Ordering::Relaxed);
        }
    }
    DUE_NS.store(0, Ordering::Relaxed);
    let between = BETWEEN_NS.load(Ordering::Relaxed);
    BETWEEN_NS.store((2 * between).min(LOOK_LAST_NS), Ordering::Relaxed);
}

/// Sends the liveness settings of a turn's connection to the adapter, at the second look. Most
/// turns are over by then; at the first look all current turns would send, and each message costs
/// both processes some microseconds.
pub(crate) fn watch_liveness(connection: &Connection) {
    let words = &connection.local.express;
    words.liveness_state.store(SET, Ordering::Relaxed);
    begin(connection.index, connection.local);
}

/// Looks at one turn. False when the turn needs no further look.
fn is_to_be_watched(index: u32) -> bool {
    let Some((connection, local)) = carrier_of(index) else {
        return false;
    };
    let (Some(end), Some(turn)) = (connection.inside(), turns::turn_of(connection.entry)) else {
        return false;
    };
    let is_parked = connection.entry.flags.load(Ordering::Relaxed) & FLAG_PARKED != 0;
    let is_liveness_unsent = !is_parked && is_liveness_unsent(&connection);
    let turns = end.turns();
    if end.tx_mode() != Mode::Ring || turns.is_peer_seen(turn) || turns.is_ended_by_peer(turn) {
        return is_liveness_unsent;
    }
    let is_waiting = turns.is_waiting(turn);
    let unread = match is_waiting {
        // No program has accepted it yet.
        true => 0,
        false => unread(connection.entry, &end, is_parked),
    };
    let before = local.express.unread.load(Ordering::Relaxed);
    let is_the_same = unread != 0 && before & !WAS_RUNG == unread;
    let was_rung = is_the_same && before & WAS_RUNG != 0;
    let is_settled = (unread == 0 || was_rung) && !is_parked && !is_waiting;
    if is_idle(&connection) && is_settled && leave_ring(&connection, &end, turn) {
        return is_liveness_unsent;
    }
    if was_rung {
        return true;
    }
    let is_rung = is_the_same && ring(&connection, &end);
    let word = unread | if is_rung { WAS_RUNG } else { 0 };
    local.express.unread.store(word, Ordering::Relaxed);
    true
}

/// True when nothing was sent for [`IDLE_LOOKS`] looks.
fn is_idle(connection: &Connection) -> bool {
    let words = &connection.local.express;
    let sent = connection.entry.tx_ring.load(Ordering::Relaxed).shown();
    let looks = match words.sent_at_look.swap(sent, Ordering::Relaxed) == sent {
        true => words.idle_looks.load(Ordering::Relaxed).saturating_add(1),
        false => 0,
    };
    words.idle_looks.store(looks, Ordering::Relaxed);
    looks >= IDLE_LOOKS
}

/// Moves our direction of a turn to the carrier. False when it stays in its ring.
fn leave_ring(connection: &Connection, end: &End<'_>, turn: Turn) -> bool {
    let Some(_held) = takeover::try_lock_sending(connection) else {
        return false;
    };
    let entry = connection.entry;
    let sent_at_look = &connection.local.express.sent_at_look;
    let is_unchanged = connection.is_current()
        && turns::turn_of(entry) == Some(turn)
        && entry.flags.load(Ordering::Relaxed) & FLAG_PARKED == 0
        && entry.tx_ring.load(Ordering::Relaxed).shown() == sent_at_look.load(Ordering::Relaxed);
    if is_unchanged {
        direction::go_down(connection, end);
    }
    is_unchanged
}

/// Sends a turn's liveness settings, at the second look since the program set something. False when
/// no later look has to send them. A turn that is over sends nothing, because the carrier's next
/// turn sets its own options.
fn is_liveness_unsent(connection: &Connection) -> bool {
    let saying = &connection.local.express.liveness_state;
    let before = saying.load(Ordering::Relaxed);
    let after = after_look(before);
    if after != before {
        saying.store(after, Ordering::Relaxed);
        if after == SENT {
            liveness::send_of_turn(connection);
        }
    }
    after != SENT
}

fn after_look(saying: u32) -> u32 {
    match saying {
        SET => LOOKED_AT,
        _ => SENT,
    }
}

fn carrier_of(index: u32) -> Option<(Connection, &'static Local)> {
    let (entry, local) = connection::words(index)?;
    let is_ours = local.express.is_carrier()
        && entry.state.load(Ordering::Relaxed) == EntryState::Live as u32
        && entry.pid.load(Ordering::Relaxed) == process::pid();
    if !is_ours {
        return None;
    }
    let is_parked = entry.flags.load(Ordering::Relaxed) & FLAG_PARKED != 0;
    let connection = match is_parked {
        true => carriers::carrier(index)?,
        false => connection::held(index, entry, local),
    };
    Some((connection, local))
}

/// Encodes bytes, or the end of our turn, that the peer has not taken; 0 for none.
fn unread(entry: &Entry, end: &End<'_>, has_ended: bool) -> u64 {
    let sent = entry.tx_ring.load(Ordering::Relaxed);
    let is_read = end.theirs().consume.head.load(Ordering::Relaxed) == sent;
    match (is_read, has_ended) {
        (true, false) => 0,
        (_, has_ended) => sent.shown() << POSITION_SHIFT | if has_ended { HAS_ENDED } else { 0 },
    }
}

fn ring(connection: &Connection, end: &End<'_>) -> bool {
    let Some(_held) = takeover::try_lock_sending(connection) else {
        return false;
    };
    if end.tx_mode() != Mode::Ring {
        return false;
    }
    notifier::ring_if_open(connection, end);
    published::count(Event::Rescued);
    true
}

#[cfg(test)]
mod tests {
    use toehold_channel::layout::REGION_BYTES;
    use toehold_channel::memfd;

    use crate::process::family;

    use super::*;

    fn is_watched(index: u32) -> bool {
        place(index).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Its program only sends, or has not used the connection yet. A process that watched it for
    /// ever would be woken every 80 ms.
    #[test]
    fn turn_of_an_unseen_peer_is_not_watched_while_nothing_is_sent() {
        const INDEX: u32 = 302;
        family::table_or_new().expect("memory");
        let (entry, local) = connection::hold_entry(INDEX).expect("memory");
        let region = memfd::map_private(REGION_BYTES).expect("memory").as_ptr();
        local.attachment.put(region);
        local.express.made_ns.store(1, Ordering::Relaxed);
        entry.pid.store(process::pid(), Ordering::Relaxed);
        entry.tx_mode.store(Mode::Ring as u32, Ordering::Relaxed);
        let state = EntryState::Live as u32;
        entry.state.store(state, Ordering::Relaxed);
        begin(INDEX, local);
        let looks = || (1..100).find(|_| !is_to_be_watched(INDEX));
        assert!(is_watched(INDEX) && (1..IDLE_LOOKS).all(|_| is_to_be_watched(INDEX)));
        entry.tx_ring.store(7, Ordering::Relaxed);
        assert_eq!(looks(), Some(IDLE_LOOKS + 1), "bytes were sent meanwhile");
        assert!(
            entry
                .tx_mode
                .load(Ordering::Relaxed)
                .is(Mode::Carrier as u32)
        );
        let (word, bit) = place(INDEX).expect("a small number");
        word.fetch_and(!bit, Ordering::Relaxed);
        went_up(&connection::held(INDEX, entry, local));
        assert!(is_watched(INDEX));
        word.fetch_and(!bit, Ordering::Relaxed);
        let free = EntryState::Free as u32;
        entry.state.store(free, Ordering::Relaxed);
    }

    /// After a turn that is over by the second look, the next turn begins at [`SENT`].
    #[test]
    fn what_was_set_is_said_at_the_second_look_and_once() {
        let mut saying = SET;
        let mut looks = 0;
        while saying != SENT {
            saying = after_look(saying);
            looks += 1;
        }
        assert_eq!(looks, 2);
        assert_eq!(after_look(SENT), SENT);
    }
}
