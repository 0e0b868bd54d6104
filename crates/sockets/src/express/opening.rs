//! Carriers for connections through the engine: they lead to its relay.
//!
//! ```text
//!   connect ─► a parked carrier ─► claimed, with a connect preamble beside it ─► the relay's queue
//!      │ none is parked                                                               │
//!      ▼                                                                              ▼
//!   a carrier to the relay, with a preamble ─► the remote ─► the answer ─► the channel, if there
//!                                                                          is one
//! ```
//!
//! A seed asks for its channel together with its preamble. So the connection to the remote and the
//! channel are made at the same time, and no thread waits here. The engine answers when it has its
//! end of the channel.

use core::sync::atomic::{AtomicU64, Ordering};

use toehold_channel::express::Event;
use toehold_channel::offload::Address;
use toehold_channel::table::{FLAG_ASKED, FLAG_PINNED};

use super::carriers::{self, Role};
use super::destinations::Destination;
use super::{evidence, is_on, may_act, published, seeds, spares, withheld};
use crate::connection::Connection;
use crate::pairing;
use crate::process::descriptors::{self, FRESH_V6};
use crate::system::sys;

/// Time between two seeds of a process: an introduction takes the adapter some 50 us.
const BETWEEN_SEEDS_NS: u64 = 1_000_000;
static NEXT_SEED_NS: AtomicU64 = AtomicU64::new(0);

/// The state of the program's socket, if the socket is unused and a carrier may take its place.
pub(crate) fn fresh(fd: i32) -> Option<u64> {
    if !is_on() {
        return None;
    }
    descriptors::fresh(fd).filter(|_| may_act())
}

/// A connection through the engine that gets a new carrier.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    /// Number of its destination in [`super::destinations`].
    number: u32,
    /// The user that made the socket.
    user: u32,
    /// The carrier should serve further connections.
    pub(crate) is_seed: bool,
}

impl Opening {
    /// Describes a connection to `remote` with a socket whose state is `fresh`, and decides whether
    /// it is a seed.
    pub(crate) fn to(remote: Address, fresh: u64) -> Option<Opening> {
        let destination = Destination::by_engine(remote, fresh & FRESH_V6 != 0);
        let number = destination.number_or_new()?;
        let user = spares::user();
        let is_known = evidence::may_ask_of_destination(number);
        let is_seed = seeds::may_ask(Role::Connecting, is_known)
            && carriers::is_room(Role::Connecting)
            && spares::is_of_epoch(descriptors::epoch_of(fresh))
            && begins_seed(sys::now_ns());
        Some(Opening {
            number,
            user,
            is_seed,
        })
    }

    /// Called when the connection begins to wait for the engine's answer.
    pub(crate) fn begun(self, connection: &Connection) {
        let words = &connection.local.express;
        words.destination.store(self.number, Ordering::Relaxed);
        words.user.store(self.user, Ordering::Relaxed);
        if self.is_seed {
            pairing::ask_before_answer(connection);
        }
    }
}

/// True when it is time for another seed.
fn begins_seed(now: u64) -> bool {
    let due = NEXT_SEED_NS.load(Ordering::Relaxed);
    // Relaxed: nothing else is guarded by it. Two threads that come at once may both begin one.
    let is_due = now >= due;
    if is_due {
        NEXT_SEED_NS.store(now + BETWEEN_SEEDS_NS, Ordering::Relaxed);
    }
    is_due || published::are_all_chosen()
}

/// The engine has connected, on a used carrier if `is_on_used`. No lock is held.
pub(crate) fn answered(connection: &Connection, is_on_used: bool) {
    if is_on_used {
        return withheld::begin_again(connection);
    }
    let flags = connection.entry.flags.load(Ordering::Relaxed);
    if flags & (FLAG_ASKED | FLAG_PINNED) != FLAG_ASKED {
        return;
    }
    pairing::consider(connection);
    let has_channel = connection.local.attachment.has_region();
    let is_carrier = has_channel && seeds::becomes_carrier(connection);
    published::count(Event::SeedsTried);
    published::count_more(Event::SeedsMade, is_carrier.into());
    if !is_carrier {
        evidence::seed_failed(connection);
    }
}
