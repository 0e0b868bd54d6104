//! Shared layouts of *express*: carriers that serve one connection of the program after another.
//!
//! ```text
//!   region, page 0   Control … │ Turns     which connection the carrier serves, one per region
//!   pair, page 0     PairHeader … │ AcceptQueue × 2     connections that wait for `accept`,
//!                                                       by accepting side
//! ```
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `phase` | both sides, by compare-exchange | both | `AcqRel` / `Acquire` |
//! | `request` | connecting side | accepting side, the engine | `Relaxed`, carried by `tail` |
//! | `ended` | its side | the other | `Release` / `Acquire` |
//! | `freed` | its side, the engine | the other | `Release` / `Acquire` |
//! | `seen` | its side | the other | `Relaxed`: it orders nothing |
//! | `tail` | connecting side | accepting side | `Release` / `Acquire`, then a fence |
//! | `entries` | connecting side | accepting side | `Relaxed`, carried by `tail` |
//! | `head` | accepting side | connecting side | `Release` / `Acquire` |
//! | `places` | accepting side | connecting side | `SeqCst` fences |
//!
//! A hostile peer can write all of these words, as in [`layout`](crate::layout).

mod counts;

pub use counts::{Counts, Event};

use crate::untrusted::{Word32, Word64};

/// The operator's rules about a family's short connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// The adapter has not looked yet.
    Unknown = 0,
    /// No rule matches the family: the option of each program decides.
    Silent = 1,
    /// Short connections may reuse carriers.
    On = 2,
    /// Short connections stay on the kernel.
    Off = 3,
}

impl Rule {
    /// The rule for an operator's setting of express; [`Rule::Silent`] for `None`.
    pub fn of(setting: Option<bool>) -> Rule {
        match setting {
            None => Rule::Silent,
            Some(true) => Rule::On,
            Some(false) => Rule::Off,
        }
    }

    /// Decodes a word of the table's header.
    pub fn from_word(word: u32) -> Rule {
        let known = [Rule::Silent, Rule::On, Rule::Off];
        let is_it = |rule: &Rule| *rule as u32 == word;
        known.into_iter().find(is_it).unwrap_or(Rule::Unknown)
    }
}

/// The most connections of one process that can wait for another process to accept them.
pub const ENTRIES_MAX: usize = if cfg!(loom) { 2 } else { 128 };

/// Which connection of the program a carrier serves, and which sides have finished with it.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Turns {
    /// The turn and its `toehold_stream::express::Phase`.
    pub phase: Word32,
    _pad: u32,
    /// A connect preamble with the destination of the connection for which the carrier was last
    /// claimed. Used only if the other end is the engine. The connecting end stores it after the
    /// claim and before it queues the connection.
    pub request: [Word64; REQUEST_WORDS],
    _pad_too: [u64; 8],
    /// Indexed by side.
    pub sides: [Ended; 2],
}

/// Length of a request: a connect preamble.
pub const REQUEST_BYTES: usize = 56;
const REQUEST_WORDS: usize = REQUEST_BYTES / size_of::<u64>();
/// loom's words are larger.
#[cfg(not(loom))]
const _: () = assert!(core::mem::offset_of!(Turns, sides) == 128);

/// The turns that one side has closed, and in which its program was seen waiting.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Ended {
    /// One more than the last turn that this side has closed in order; 0 for none.
    pub ended: Word32,
    /// One more than the last turn in which this side's program was seen waiting; 0 for none.
    pub seen: Word32,
    /// Written by an engine: one more than the last turn whose bytes it has all forwarded.
    pub freed: Word32,
}

/// Connections that wait to be accepted by one side of a pair, in the order in which they were
/// made.
#[repr(C, align(128))]
pub struct AcceptQueue {
    /// Connections queued, ever.
    pub tail: Word32,
    _pad: [u32; 31],
    /// Connections accepted or refused, ever.
    pub head: Word32,
    /// The number of connections that may wait; 0 while the accepting side does not listen.
    pub places: Word32,
    _pad_too: [u32; 30],
    /// Connection `n` is at index `n % ENTRIES_MAX`: the channel's slot in the upper half, the turn
    /// in the lower half.
    pub entries: [Word64; ENTRIES_MAX],
}

impl Default for AcceptQueue {
    fn default() -> AcceptQueue {
        AcceptQueue {
            tail: Word32::default(),
            _pad: [0; 31],
            head: Word32::default(),
            places: Word32::default(),
            _pad_too: [0; 30],
            entries: core::array::from_fn(|_| Word64::default()),
        }
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Turns>() == 384);
    assert!(size_of::<AcceptQueue>() == 256 + 8 * ENTRIES_MAX);
    assert!(ENTRIES_MAX.is_power_of_two());
};
