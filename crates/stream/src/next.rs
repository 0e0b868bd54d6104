//! The next step of a receiver: which bytes are the program's, which are doorbells, when the stream
//! has ended.
//!
//! Three rules, all about order. A sender publishes a switch record before it sends the first byte
//! that follows the switch, and it publishes bytes before the carrier ends. So a receiver looks at
//! the carrier first and at the shared words afterwards:
//!
//! 1. Bytes that were counted on the carrier while the direction is on the carrier, up to the next
//!    record, are data.
//! 2. Bytes that were counted there while the direction is a ring without a pending record are
//!    doorbells.
//! 3. An end that was seen on the carrier is the end of the stream only when the shared words,
//!    loaded after it, show nothing more.
//!
//! [`End::next`] loads the shared words when it is called, and takes as an argument what was seen
//! on the carrier before. [`End::doorbells`] counts the carrier's bytes itself, and loads the words
//! afterwards. So the order cannot be had the wrong way round.

use toehold_channel::ring::{Fault, Filled};
use toehold_channel::table::Mode;

use crate::end::{End, Incoming};

/// The result of a look at the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Nobody looked since the last bytes were taken.
    Unseen,
    /// So many bytes wait: at least one.
    Waiting(u64),
    /// No byte waits, and the end was not reached.
    Empty,
    /// No byte waits, and none will come.
    Ended,
}

/// The receiver's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take bytes from the ring; there are more than the receiver knew of.
    Ring(Filled),
    /// Take data from the carrier.
    Data {
        /// At most this many bytes: those that were seen, up to the next switch.
        max: u64,
    },
    /// Take doorbells from the carrier and discard them. A receiver that leaves them there for
    /// others whom they are to wake has nothing else to do.
    Doorbells {
        /// At most this many bytes.
        max: u64,
    },
    /// Look at the carrier and ask again.
    Look,
    /// Wait for news.
    Wait,
    /// The stream has ended: nothing more will come.
    End,
    /// The carrier ended before a position at which the peer announced a switch: bytes are missing.
    Cut,
}

impl End<'_> {
    /// How many of the carrier's next bytes are doorbells for certain: all that `waiting` counts,
    /// as long as the direction is a ring. A count from before the receive lock was taken is no
    /// such number: somebody else may have taken those doorbells, and data may have come since.
    ///
    /// Callers hold the receive lock until they have taken them.
    #[inline]
    pub fn doorbells(&self, waiting: impl FnOnce() -> u64) -> u64 {
        let waiting = waiting();
        // A downgrade is published before the data that follows it.
        let is_ringing =
            matches!(self.rx_mode(), Mode::Ring | Mode::Resend) && !self.records_pending();
        if is_ringing { waiting } else { 0 }
    }

    /// The next step after `seen` was found on the carrier. `known` are the bytes at the beginning
    /// of the ring that the receiver has seen and not yet given back.
    ///
    /// Carries out the switch records that are due. Callers hold the receive lock.
    ///
    /// # Errors
    /// A [`Fault`] when the peer's words contradict what was counted.
    #[inline]
    pub fn next(&self, seen: Carrier, known: u64) -> Result<Next, Fault> {
        match self.incoming()? {
            Incoming::Ring(filled) if filled.len > known => Ok(Next::Ring(filled)),
            // A record behind bytes that were not given back: bytes on the carrier may be data.
            Incoming::Ring(_) if known > 0 && self.records_pending() => Ok(Next::Wait),
            Incoming::Ring(_) => Ok(match seen {
                Carrier::Unseen => Next::Look,
                Carrier::Waiting(bytes) => Next::Doorbells { max: bytes },
                Carrier::Empty => Next::Wait,
                Carrier::Ended => Next::End,
            }),
            Incoming::Skip { bytes } => Ok(match seen {
                // Counted by the record: no need to look first.
                Carrier::Unseen | Carrier::Waiting(_) => Next::Doorbells { max: bytes },
                Carrier::Empty => Next::Wait,
                // Doorbells that never came are no bytes of the stream.
                Carrier::Ended => Next::End,
            }),
            Incoming::Carrier { limit } => Ok(match seen {
                Carrier::Unseen => Next::Look,
                Carrier::Waiting(bytes) => Next::Data {
                    max: bytes.min(limit),
                },
                Carrier::Empty => Next::Wait,
                Carrier::Ended if limit == u64::MAX => Next::End,
                Carrier::Ended => Next::Cut,
            }),
        }
    }
}
