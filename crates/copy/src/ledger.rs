//! The record of a channel's operations and their outcomes. Operations complete in any order; one
//! watermark summarises them.
//!
//! ```text
//!   cookie     5     6     7     8     9    10
//!            done  done   run  done   run  held
//!                   ^                   ^     ^
//!               watermark             handed  issued       7 finishes: the watermark jumps to 8
//! ```
//!
//! Invariant: watermark <= handed <= issued <= watermark + capacity.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::error::Fault;
use crate::{Cookie, Operation};

/// The status of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Not finished; the memory is in use.
    Pending {
        /// This many of the target's first bytes are in place and may be read.
        bytes: usize,
    },
    /// Finished.
    Done {
        /// The CRC-32C, or zero when none was asked for.
        crc32c: u32,
    },
    /// Ended without finishing.
    Failed(Fault),
    /// The operation ended so long ago that its entry has been used again.
    Retired,
}

impl Status {
    /// True unless the operation's memory is still in use.
    #[inline]
    pub fn is_over(self) -> bool {
        !matches!(self, Status::Pending { .. })
    }
}

pub(crate) struct Ledger {
    entries: Box<[Entry]>,
    /// Everything up to here is over.
    watermark: Cookie,
    /// The last cookie given out.
    issued: Cookie,
}

#[derive(Clone, Copy)]
struct Entry {
    operation: Operation,
    /// `None` while pending.
    ended: Option<Result<u32, Fault>>,
}

impl Ledger {
    /// `entries` is rounded up to a power of two within [`ENTRIES_MIN`], [`ENTRIES_MAX`].
    pub(crate) fn new(entries: usize) -> Ledger {
        let entries = entries_rounded(entries);
        let nothing = Operation::fill(core::ptr::null_mut(), 0, 0);
        let entry = Entry {
            operation: nothing,
            ended: Some(Ok(0)),
        };
        let entries = Vec::from_iter(core::iter::repeat_n(entry, entries)).into_boxed_slice();
        Ledger {
            entries,
            watermark: Cookie::NONE,
            issued: Cookie::NONE,
        }
    }

    /// Enters an operation; an error if every entry is in use.
    #[inline]
    pub(crate) fn begin(&mut self, operation: Operation) -> Option<Cookie> {
        if self.vacant() == 0 {
            return None;
        }
        self.issued = self.issued.next();
        let at = self.at(self.issued);
        self.entries[at] = Entry {
            operation,
            ended: None,
        };
        Some(self.issued)
    }

    /// Notes the outcome of a pending operation, and advances the watermark over all operations
    /// that are over.
    #[inline]
    pub(crate) fn end(&mut self, cookie: Cookie, how: Result<u32, Fault>) {
        assert!(
            self.is_pending(cookie),
            "operation {cookie} ended but is not in flight"
        );
        let at = self.at(cookie);
        self.entries[at].ended = Some(how);
        while self.watermark < self.issued {
            let next = self.watermark.next();
            if self.entries[self.at(next)].ended.is_none() {
                break;
            }
            self.watermark = next;
        }
    }

    #[inline]
    pub(crate) fn operation(&self, cookie: Cookie) -> Operation {
        self.entries[self.at(cookie)].operation
    }

    #[inline]
    pub(crate) fn is_pending(&self, cookie: Cookie) -> bool {
        cookie > self.watermark
            && cookie <= self.issued
            && self.entries[self.at(cookie)].ended.is_none()
    }

    /// The status of an operation, without the progress of a pending one.
    pub(crate) fn status(&self, cookie: Cookie) -> Status {
        if cookie.get() + self.entries.len() as u64 <= self.issued.get() {
            return Status::Retired;
        }
        match self.entries[self.at(cookie)].ended {
            None => Status::Pending { bytes: 0 },
            Some(Ok(crc32c)) => Status::Done { crc32c },
            Some(Err(fault)) => Status::Failed(fault),
        }
    }

    #[inline]
    pub(crate) fn watermark(&self) -> Cookie {
        self.watermark
    }

    #[inline]
    pub(crate) fn issued(&self) -> Cookie {
        self.issued
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn vacant(&self) -> usize {
        self.entries.len() - (self.issued.get() - self.watermark.get()) as usize
    }

    #[inline]
    fn at(&self, cookie: Cookie) -> usize {
        (cookie.get() as usize) & (self.entries.len() - 1)
    }
}

/// The number of entries a channel asked for `entries` has.
pub(crate) fn entries_rounded(entries: usize) -> usize {
    entries.clamp(ENTRIES_MIN, ENTRIES_MAX).next_power_of_two()
}

/// One entry would make a pipeline impossible.
pub(crate) const ENTRIES_MIN: usize = 2;

/// Bounds a channel's memory; more in flight than this keeps no engine busier.
pub(crate) const ENTRIES_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Operation {
        Operation::fill(core::ptr::null_mut(), 0, 0)
    }

    #[test]
    fn the_watermark_waits_for_the_oldest() {
        let mut ledger = Ledger::new(4);
        let cookies: Vec<Cookie> = (0..4).map(|_| ledger.begin(nothing()).unwrap()).collect();
        assert_eq!(ledger.begin(nothing()), None);
        ledger.end(cookies[1], Ok(0));
        ledger.end(cookies[2], Err(Fault::Gone));
        assert_eq!(ledger.watermark(), Cookie::NONE);
        assert_eq!(ledger.status(cookies[2]), Status::Failed(Fault::Gone));
        ledger.end(cookies[0], Ok(7));
        assert_eq!(ledger.watermark(), cookies[2]);
        assert_eq!(ledger.status(cookies[0]), Status::Done { crc32c: 7 });
        assert_eq!(ledger.status(cookies[3]), Status::Pending { bytes: 0 });
        assert_eq!(ledger.vacant(), 3);
    }

    #[test]
    fn an_entry_used_again_retires_its_cookie() {
        let mut ledger = Ledger::new(2);
        let first = ledger.begin(nothing()).unwrap();
        ledger.end(first, Ok(0));
        ledger.begin(nothing()).unwrap();
        assert_eq!(ledger.status(first), Status::Done { crc32c: 0 });
        ledger.begin(nothing()).unwrap();
        assert_eq!(ledger.status(first), Status::Retired);
    }

    #[test]
    #[should_panic(expected = "is not in flight")]
    fn an_operation_ends_once() {
        let mut ledger = Ledger::new(2);
        let first = ledger.begin(nothing()).unwrap();
        ledger.end(first, Ok(0));
        ledger.end(first, Ok(0));
    }

    #[test]
    fn entries_are_a_power_of_two_within_bounds() {
        assert_eq!(entries_rounded(0), ENTRIES_MIN);
        assert_eq!(entries_rounded(3), 4);
        assert_eq!(entries_rounded(usize::MAX), ENTRIES_MAX);
    }
}
