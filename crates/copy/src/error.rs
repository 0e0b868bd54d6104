//! The errors, in three places: submitting, running, waiting.

use core::fmt;

/// The reason why an operation was not accepted. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// Every entry of the channel holds an operation that has not completed: poll, then try again.
    Full,
    /// Source and target overlap: a copy of overlapping bytes in parallel parts has no defined
    /// result.
    Overlap,
    /// A null pointer with a length.
    Null,
    /// The range would wrap around the end of the address space.
    TooLong,
    /// Scatter and gather lists describe different numbers of bytes.
    Uneven,
    /// The list has more parts than the channel has entries.
    TooManyParts,
    /// This engine moves only registered memory ([`Buffer`](crate::Buffer)), and this is not.
    NotRegistered,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "every entry of the channel is in use: poll, then submit again",
            SubmitError::Overlap => "source and target overlap",
            SubmitError::Null => "a null pointer with a length",
            SubmitError::TooLong => "the range wraps around the end of the address space",
            SubmitError::Uneven => "sources and targets have different total lengths",
            SubmitError::TooManyParts => "more parts than the channel has entries",
            SubmitError::NotRegistered => "this engine moves only registered memory",
        })
    }
}

impl core::error::Error for SubmitError {}

/// The reason why an accepted operation did not finish. Its target holds an unknown mixture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The engine met an address it could not use, after this many bytes.
    Address {
        /// The address.
        address: usize,
        /// Bytes of the target that were written before it.
        bytes: usize,
    },
    /// The engine went away with the operation in flight.
    Gone,
    /// This process is a fork: the operation belonged to the parent's engine.
    Forked,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Address { address, bytes } => {
                write!(
                    f,
                    "the engine could not use address {address:#x} after {bytes} bytes"
                )
            }
            Fault::Gone => f.write_str("the engine went away"),
            Fault::Forked => f.write_str("the operation was the parent process's"),
        }
    }
}

impl core::error::Error for Fault {}

/// The deadline passed first. The operation goes on, and its memory is still in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operation had not completed by the deadline")
    }
}

impl core::error::Error for TimedOut {}
