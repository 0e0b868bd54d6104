//! Evidence of how a program waits for the connections of one listener, or to one destination: its
//! earlier connections show it.
//!
//! A seed, and every later connection on its carrier, is in a ring before the library has seen its
//! program wait for it. A program that waits past the library would miss the bytes. But usually one
//! part of a program handles all connections of a listener, or to a destination. So an end asks for
//! a seed only after several ordinary connections there have ended for which the program was seen
//! waiting, and for which the library and the kernel counted equally many bytes.
//!
//! ```text
//!   ordinary connections that were seen, in a row ─► suffices ─► seeds, carriers
//!        ▲ twice as many as the last time               │ a turn ended unseen
//!        └──────────────────────────────────────────────┘
//!   bytes went past the library, the program waited past it, or many were not seen ─► never
//! ```
//!
//! A connection on which nothing came is no evidence, because there was nothing to wait for. Seeds
//! that wait in vain again and again say something about the other end only. So they delay the next
//! seed, but parked carriers stay in use.

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::table::FLAG_ACCEPTED;

use super::carriers::{self, Role};
use super::destinations::DESTINATIONS_MAX;
use crate::connection::Connection;
use crate::connection::counts;
use crate::waiting::seen_waits;

/// The number of ordinary connections in a row that must have been seen, the first time.
const NEEDED_FIRST: u32 = 2;
/// The most times that this number is doubled.
const DOUBLINGS_MAX: u32 = 12;
/// How often a pause after seeds in vain is doubled at most: to 512 connections. An end meets the
/// other end in a seed only while neither pauses, so a long pause of both outlasts its cause. (With
/// 8,192 connections, a client and a server that had met 60 failures on a busy host made 9,200
/// connections before the next carrier, by a simulation; with 512 they make 1,400.)
const PAUSE_DOUBLINGS_MAX: u32 = 8;
/// After this many connections that were not seen, no seed is asked for any more.
const UNSEEN_MAX: u32 = 64;
/// In [`Evidence`]: never ask for seeds.
const NEVER: u32 = u32::MAX;
const DOUBLINGS_SHIFT: u32 = 16;
const SEEN_MASK: u32 = (1 << DOUBLINGS_SHIFT) - 1;

const _: () = assert!(NEEDED_FIRST << DOUBLINGS_MAX <= SEEN_MASK);

/// Counts of connections that have ended. Updates may be lost, because the counts are hints; each
/// lost update affects one connection.
pub(super) struct Evidence {
    /// The number of times that the needed number was doubled, in the upper bits; how many
    /// connections in a row were seen, in the lower bits.
    word: AtomicU32,
    /// Connections that were not seen.
    unseen: AtomicU32,
    /// The number of times that repeated seeds have failed, in the upper bits; how many connections
    /// must pass before the next seed, in the lower bits.
    pause: AtomicU32,
}

impl Evidence {
    /// No evidence yet.
    pub(super) const fn none() -> Evidence {
        Evidence {
            word: AtomicU32::new(0),
            unseen: AtomicU32::new(0),
            pause: AtomicU32::new(0),
        }
    }

    /// True when the program will probably wait for the next connection in a way that the library
    /// sees.
    pub(super) fn suffices(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word != NEVER && word & SEEN_MASK >= needed(word)
    }

    /// An ordinary connection has begun: true when it may be a seed.
    fn may_ask(&self) -> bool {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause & SEEN_MASK != 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
            return false;
        }
        self.suffices()
    }

    /// Seeds have waited in vain, so fewer are asked for. The evidence about the program's waits
    /// stays valid.
    fn pause(&self) {
        let doublings = (self.pause.load(Ordering::Relaxed) >> DOUBLINGS_SHIFT) + 1;
        let next = doublings.min(PAUSE_DOUBLINGS_MAX) << DOUBLINGS_SHIFT;
        self.pause.store(next | needed(next), Ordering::Relaxed);
    }

    fn is_open(&self) -> bool {
        self.word.load(Ordering::Relaxed) != NEVER && !self.suffices()
    }

    /// An ordinary connection has ended.
    fn add(&self, is_seen: bool) {
        if !self.is_open() {
            return;
        }
        let word = self.word.load(Ordering::Relaxed);
        let next = match is_seen {
            true => word + 1,
            false if self.unseen.fetch_add(1, Ordering::Relaxed) >= UNSEEN_MAX => NEVER,
            false => word & !SEEN_MASK,
        };
        self.word.store(next, Ordering::Relaxed);
    }

    /// Twice as many are needed from now on.
    fn fail(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word != NEVER {
            let doublings = (word >> DOUBLINGS_SHIFT) + 1;
            let next = doublings.min(DOUBLINGS_MAX) << DOUBLINGS_SHIFT;
            self.word.store(next, Ordering::Relaxed);
        }
    }

    fn rule_out(&self) {
        self.word.store(NEVER, Ordering::Relaxed);
    }
}

fn needed(word: u32) -> u32 {
    NEEDED_FIRST << (word >> DOUBLINGS_SHIFT)
}

/// The evidence for the listener that carriers serve, and the number of that listener.
static LISTENER: (Evidence, AtomicU32) = (Evidence::none(), AtomicU32::new(0));

/// The evidence for each destination, by its number minus one.
static DESTINATIONS: [Evidence; DESTINATIONS_MAX] = [const { Evidence::none() }; DESTINATIONS_MAX];

fn of_destination(number: u32) -> Option<&'static Evidence> {
    DESTINATIONS.get(number.checked_sub(1)? as usize)
}

/// Another listener is served from now on.
pub(super) fn begin_listener() {
    LISTENER.0.word.store(0, Ordering::Relaxed);
    LISTENER.0.unseen.store(0, Ordering::Relaxed);
    LISTENER.0.pause.store(0, Ordering::Relaxed);
    LISTENER.1.fetch_add(1, Ordering::Relaxed);
}

/// A connection came by the listener that is served: seeds may follow.
pub(super) fn is_listener_known(accepted: &Connection) -> bool {
    let number = LISTENER.1.load(Ordering::Relaxed);
    let words = &accepted.local.express;
    words.destination.store(number, Ordering::Relaxed);
    LISTENER.0.may_ask()
}

/// A connection leads to destination `number`: seeds may follow.
pub(super) fn is_destination_known(connected: &Connection, number: u32) -> bool {
    let words = &connected.local.express;
    words.destination.store(number, Ordering::Relaxed);
    may_ask_of_destination(number)
}

/// A connection is to lead to destination `number`: true when seeds may follow.
pub(super) fn may_ask_of_destination(number: u32) -> bool {
    of_destination(number).is_some_and(Evidence::may_ask)
}

fn of(connection: &Connection) -> Option<&'static Evidence> {
    let number = connection.local.express.destination.load(Ordering::Relaxed);
    match is_accepted(connection) {
        true => {
            (number != 0 && number == LISTENER.1.load(Ordering::Relaxed)).then_some(&LISTENER.0)
        }
        false => of_destination(number),
    }
}

/// The program closes a connection that is no carrier.
pub(super) fn ordinary_ends(connection: &Connection) {
    let Some(evidence) = of(connection).filter(|evidence| evidence.is_open()) else {
        return;
    };
    if !seen_waits::are_seen(connection) {
        // No bytes came, so the program could not wait for any, not even past the library.
        let is_empty = connection.entry.rx_carrier.load(Ordering::Relaxed) == 0;
        if !is_empty || counts::agree_at_end(connection) != Some(true) {
            evidence.add(false);
        }
        return;
    }
    // With a channel the counts were compared when it was attached; since then doorbells came.
    let agree = match connection.local.attachment.has_region() {
        true => Some(true),
        false => counts::agree_at_end(connection),
    };
    match agree {
        Some(true) => evidence.add(true),
        Some(false) => evidence.rule_out(),
        None => {}
    }
}

/// True when the evidence allows carriers to serve further connections.
pub(super) fn suffices(connection: &Connection) -> bool {
    of(connection).is_some_and(Evidence::suffices)
}

/// An end has waited in vain for the other end repeatedly: it will not ask again soon.
pub(super) fn seed_failed(connection: &Connection) {
    if let Some(evidence) = of(connection) {
        evidence.pause();
    }
}

/// A turn of a carrier has ended in which the program was not seen waiting. The caller holds the
/// lock of express.
pub(super) fn turn_unseen(connection: &Connection, role: Role) {
    if let Some(evidence) = of(connection) {
        evidence.fail();
    }
    carriers::retire_unclaimed(role);
}

/// The program has waited for a carrier's connection past the library. The caller holds the lock of
/// express.
pub(super) fn waited_elsewhere(connection: &Connection) {
    if let Some(evidence) = of(connection) {
        evidence.rule_out();
    }
    carriers::retire_unclaimed(match is_accepted(connection) {
        true => Role::Accepting,
        false => Role::Connecting,
    });
}

fn is_accepted(connection: &Connection) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED != 0
}

#[cfg(test)]
mod tests {
    use toehold_stream::express::is_chosen;

    use super::*;

    fn after(evidence: &Evidence, seen: u32) -> bool {
        (0..seen).for_each(|_| evidence.add(true));
        evidence.suffices()
    }

    #[test]
    fn connections_that_were_seen_in_a_row_suffice() {
        let evidence = Evidence::none();
        assert!(!after(&evidence, NEEDED_FIRST - 1));
        evidence.add(false);
        assert!(!after(&evidence, NEEDED_FIRST - 1));
        assert!(after(&evidence, 1));
        evidence.add(false);
        assert!(
            evidence.suffices(),
            "ordinary connections speak before it does only"
        );
    }

    #[test]
    fn each_unseen_turn_asks_for_twice_as_many() {
        let evidence = Evidence::none();
        for doublings in 0..2 * DOUBLINGS_MAX {
            let needed = NEEDED_FIRST << doublings.min(DOUBLINGS_MAX);
            assert!(!after(&evidence, needed - 1), "{doublings}");
            assert!(after(&evidence, 1), "{doublings}");
            evidence.fail();
        }
    }

    #[test]
    fn connections_that_are_never_seen_are_asked_about_no_more() {
        let evidence = Evidence::none();
        (0..=UNSEEN_MAX).for_each(|_| evidence.add(false));
        assert!(!after(&evidence, SEEN_MASK));
    }

    #[test]
    fn seeds_in_vain_delay_the_next_one_and_leave_carriers_alone() {
        let evidence = Evidence::none();
        assert!(after(&evidence, NEEDED_FIRST) && evidence.may_ask());
        for doublings in 1..2 * DOUBLINGS_MAX {
            evidence.pause();
            assert!(evidence.suffices(), "carriers may be parked");
            for _ in 0..NEEDED_FIRST << doublings.min(PAUSE_DOUBLINGS_MAX) {
                assert!(!evidence.may_ask());
            }
            assert!(evidence.may_ask());
        }
    }

    /// The host was busy for long, and each end has waited in vain for the other.
    #[test]
    fn ends_that_waited_in_vain_for_long_meet_soon_after() {
        const LEVEL: u32 = 10;
        const CONNECTIONS_MAX: usize = 5_000;
        let ends = [(); 2].map(|()| {
            let end = Evidence::none();
            assert!(after(&end, NEEDED_FIRST));
            (0..2 * DOUBLINGS_MAX).for_each(|_| end.pause());
            end
        });
        let is_carrier = |port| {
            let asks = ends
                .each_ref()
                .map(|end| end.may_ask() && is_chosen(port, LEVEL));
            for (end, asks_alone) in ends.iter().zip([asks[0] && !asks[1], asks[1] && !asks[0]]) {
                if asks_alone {
                    end.pause();
                }
            }
            asks == [true; 2]
        };
        // As the kernel chooses a client's ports (net/ipv4/inet_hashtables.c).
        let ports = (32_768..61_000).step_by(2).cycle();
        assert!(ports.take(CONNECTIONS_MAX).any(is_carrier));
    }

    #[test]
    fn a_wait_past_the_library_is_for_good() {
        let evidence = Evidence::none();
        evidence.rule_out();
        assert!(!after(&evidence, SEEN_MASK));
        evidence.fail();
        assert!(!after(&evidence, SEEN_MASK));
    }
}
