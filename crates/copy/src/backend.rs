//! The interface of an engine. Everything else is [`Channel`](crate::Channel)'s.

use core::any::Any;

use crate::{Cookie, Operation};

/// The hands of a copy engine: accepts operations, carries them out, says which are done.
///
/// A backend keeps no history and makes no promises about order. The channel above it keeps the
/// ledger, holds back fenced operations, finishes on the processor what the engine could not, and
/// refuses bad ranges before they get here.
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

    /// Rings the doorbell: what was submitted since the last one begins now, if it had not.
    fn flush(&mut self) {}

    /// Reports each outcome that is known and has not been reported.
    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome));

    /// How many of this operation's first bytes are in place. A lower bound.
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

    /// Processor time that helpers have spent for this engine, in nanoseconds; `None` where that is
    /// not known.
    fn helper_cpu_ns(&self) -> Option<u64> {
        Some(0)
    }

    /// True when the engine can use only registered memory.
    fn needs_registration(&self) -> bool {
        false
    }

    /// Called in the child after a fork, before anything else: the helpers stayed in the parent.
    /// Everything that was not reported has been written off and must not be reported any more, and
    /// nothing that belongs to the parent may be touched.
    fn forget_after_fork(&mut self);
}

/// Why a backend did not take an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No queue entry is free just now.
    Full,
    /// Not something this engine does.
    Unable,
}

/// How an operation ended, as its engine tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it is in place.
    Done {
        /// The CRC-32C, for an operation that asked for it.
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
    /// Done, and no CRC was asked for.
    pub const DONE: Outcome = Outcome::Done { crc32c: 0 };
}
