//! The next step of a receiver: which bytes are the program's, which are doorbells, when the stream
//! has ended.
//!
//! The three rules depend on the order of the looks. A sender publishes a switch record before it
//! sends the first byte after the switch, and it publishes its bytes before the carrier ends. So a
//! receiver looks at the carrier first and at the shared words afterwards:
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
//! afterwards. So no caller can get the order wrong.

use toehold_channel::ring::{Fault, Filled};
use toehold_channel::table::Mode;

use crate::end::{End, Incoming};

/// The result of a look at the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The carrier was not looked at since the last bytes were taken.
    Unseen,
    /// This many bytes wait, at least one.
    Waiting(u64),
    /// No byte waits, and the end was not reached.
    Empty,
    /// No byte waits, and none will come.
    Ended,
}

/// The receiver's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take bytes from the ring, which has more than the receiver already knew.
    Ring(Filled),
    /// Take data from the carrier.
    Data {
        /// At most this many bytes: those that were seen, up to the next switch.
        max: u64,
    },
    /// Take doorbells from the carrier and discard them. A receiver may also leave them there, to
    /// wake other threads; then it has nothing else to do.
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
    /// The number of the carrier's next bytes that are certainly doorbells: all bytes that
    /// `waiting` counts, while the direction is a ring. The bytes must be counted under the receive
    /// lock: otherwise another thread may have taken those doorbells, and data may have come since.
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

    /// The next step after `seen` was found on the carrier. `known` is the number of bytes at the
    /// beginning of the ring that the receiver has seen and not yet given back.
    ///
    /// Carries out the switch records that are due. Callers hold the receive lock.
    ///
    /// # Errors
    /// A [`Fault`] when the peer's words contradict what was counted.
    #[inline]
    pub fn next(&self, seen: Carrier, known: u64) -> Result<Next, Fault> {
        match self.incoming()? {
            Incoming::Ring(filled) if filled.len > known => Ok(Next::Ring(filled)),
            // A record is pending behind bytes that were not given back, so bytes on the carrier
            // may be data.
            Incoming::Ring(_) if known > 0 && self.records_pending() => Ok(Next::Wait),
            Incoming::Ring(_) => Ok(match seen {
                Carrier::Unseen => Next::Look,
                Carrier::Waiting(bytes) => Next::Doorbells { max: bytes },
                Carrier::Empty => Next::Wait,
                Carrier::Ended => Next::End,
            }),
            Incoming::Skip { bytes } => Ok(match seen {
                // The record gives the number of doorbells, so no look at the carrier is needed
                // first.
                Carrier::Unseen | Carrier::Waiting(_) => Next::Doorbells { max: bytes },
                Carrier::Empty => Next::Wait,
                // The missing doorbells are not part of the stream, so no data is lost.
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
