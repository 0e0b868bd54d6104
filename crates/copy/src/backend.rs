//! The interface of an engine. [`Channel`](crate::Channel) does everything else.

use core::any::Any;

use crate::{Cookie, Operation};

/// A copy engine: accepts operations, carries them out, and reports their outcomes.
///
/// A backend keeps no history and makes no promises about order. The channel above it keeps the
/// ledger, holds back fenced operations, finishes the engine's incomplete operations on the
/// processor, and refuses bad ranges before they get here.
///
/// # Safety
///
/// An implementation, once it has reported an operation's outcome, must never again touch the
/// memory that the operation names. When it is dropped, or has reported [`Outcome::Gone`], the same
/// holds for all. It touches nothing but the target's `len` bytes and reads nothing but the
/// source's.
pub unsafe trait Backend: Send + Any {
    /// A short, fixed name: what the user writes to select it.
    fn name(&self) -> &'static str;

    /// Takes an operation, or refuses it.
    ///
    /// # Errors
    ///
    /// [`Refused::Full`] asks to be offered the same operation again after a [`poll`](Self::poll);
    /// [`Refused::Unable`] leaves it to the processor.
    ///
    /// # Safety
    ///
    /// The operation has been checked, and its memory stays valid, its source unwritten and its
    /// target untouched by others, until its outcome is reported.
    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused>;

    /// Rings the doorbell: operations that were submitted since the last doorbell begin now, if
    /// they have not begun.
    fn flush(&mut self) {}

    /// Reports each known outcome once.
    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome));

    /// The number of this operation's first bytes that are in place, as a lower bound.
    fn progress(&mut self, cookie: Cookie) -> usize {
        let _ = cookie;
        0
    }

    /// Sleeps until there may be an outcome to report, or until `timeout_ns` have passed, or for
    /// no reason at all. An engine that cannot wake a sleeper returns at once and answers `false`.
    fn park(&mut self, timeout_ns: u64) -> bool {
        let _ = timeout_ns;
        false
    }

    /// Processor time that helpers have spent for this engine, in nanoseconds; `None` if unknown.
    fn helper_cpu_ns(&self) -> Option<u64> {
        Some(0)
    }

    /// True when the engine can use only registered memory.
    fn needs_registration(&self) -> bool {
        false
    }

    /// Called in the child after a fork, before any other method: the helpers stayed in the parent.
    /// The channel has written off all unreported operations, so the backend must not report them
    /// any more, and it must not touch anything that belongs to the parent.
    fn forget_after_fork(&mut self);
}

/// The reason why a backend did not take an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No queue entry is free just now.
    Full,
    /// This engine does not support the operation.
    Unable,
}

/// The end of an operation, as its engine reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it is in place.
    Done {
        /// The CRC-32C, for an operation that computes it.
        crc32c: u32,
    },
    /// The first `bytes` are in place, then the engine met an address it could not use.
    Partial {
        /// Bytes in place.
        bytes: usize,
        /// The address.
        address: usize,
    },
    /// The engine went away. It will never touch the operation's memory again.
    Gone,
}

impl Outcome {
    /// Done, without a CRC.
    pub const DONE: Outcome = Outcome::Done { crc32c: 0 };
}
