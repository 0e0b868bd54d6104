//! The operations of an engine: one flat, copyable description per piece of work.

use core::ops::BitOr;

use crate::error::SubmitError;

/// The effect of an operation on its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Copies the source to the target.
    Copy,
    /// Repeats an eight-byte pattern over the target.
    Fill,
    /// Copies, and computes the CRC-32C of the copied bytes in the same pass.
    CopyCrc32c,
}

/// Wishes that go with an operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(u8);

impl Flags {
    /// No wishes.
    pub const NONE: Flags = Flags(0);
    /// Begins only when every earlier operation of the channel has completed. Without it operations
    /// may run and complete in any order, even when one reads what another writes.
    pub const FENCE: Flags = Flags(1);
    /// The submitting processor will read the target soon: leave the target in the cache if
    /// possible.
    pub const CACHE: Flags = Flags(2);
    /// Rings the engine's doorbell with this operation. Without it submissions gather until
    /// [`Channel::flush`](crate::Channel::flush), a poll or a wait: one doorbell for the batch.
    pub const SUBMIT_NOW: Flags = Flags(4);

    /// The submitter is going to wait for the operation at once, and has no other work meanwhile.
    pub const URGENT: Flags = Flags(8);

    /// True when every flag of `other` is set.
    #[inline]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags as bits: the C interface's form.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The flags of these bits; others are ignored.
    #[inline]
    pub const fn from_bits_truncate(bits: u8) -> Flags {
        Flags(bits & 15)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// One piece of work for an engine. Making an operation is safe, because it only names memory.
/// Submitting it is unsafe.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
    pub(crate) len: usize,
    /// The pattern of a fill; the seed of a CRC.
    pub(crate) value: u64,
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
}

// SAFETY: an operation is a description. The submitter promises that its memory may be used from
// the engine's thread (`Channel::submit`).
unsafe impl Send for Operation {}

impl Operation {
    /// Copies `len` bytes.
    #[inline]
    pub const fn copy(source: *const u8, target: *mut u8, len: usize) -> Operation {
        Operation {
            source,
            target,
            len,
            value: 0,
            kind: Kind::Copy,
            flags: Flags::NONE,
        }
    }

    /// Fills `len` bytes with the eight bytes of `pattern`, lowest first, over and over from
    /// `target` on.
    #[inline]
    pub const fn fill(target: *mut u8, len: usize, pattern: u64) -> Operation {
        let source = core::ptr::null();
        Operation {
            source,
            target,
            len,
            value: pattern,
            kind: Kind::Fill,
            flags: Flags::NONE,
        }
    }

    /// Copies `len` bytes and continues the CRC-32C `seed` (zero to begin) over them.
    #[inline]
    pub const fn copy_crc32c(
        source: *const u8,
        target: *mut u8,
        len: usize,
        seed: u32,
    ) -> Operation {
        let value = seed as u64;
        Operation {
            source,
            target,
            len,
            value,
            kind: Kind::CopyCrc32c,
            flags: Flags::NONE,
        }
    }

    /// This operation with these flags instead of its own.
    #[inline]
    pub const fn with(mut self, flags: Flags) -> Operation {
        self.flags = flags;
        self
    }

    /// The operation's kind.
    #[inline]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of the target.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True when there is nothing to do.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The wishes that go with it.
    #[inline]
    pub const fn flags(&self) -> Flags {
        self.flags
    }

    /// Where the bytes come from; null for a fill.
    #[inline]
    pub const fn source(&self) -> *const u8 {
        self.source
    }

    /// Where the bytes go.
    #[inline]
    pub const fn target(&self) -> *mut u8 {
        self.target
    }

    /// The pattern of a fill, the seed of a CRC, otherwise zero.
    #[inline]
    pub const fn value(&self) -> u64 {
        self.value
    }

    /// Refuses ranges that no engine could copy correctly: null, wrapping and overlapping ranges.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), SubmitError> {
        if self.len == 0 {
            return Ok(());
        }
        let reads = self.kind != Kind::Fill;
        let (source, target) = (self.source as usize, self.target as usize);
        if target == 0 || (reads && source == 0) {
            return Err(SubmitError::Null);
        }
        if self.len > isize::MAX as usize || target.checked_add(self.len).is_none() {
            return Err(SubmitError::TooLong);
        }
        if reads {
            if source.checked_add(self.len).is_none() {
                return Err(SubmitError::TooLong);
            }
            if source.abs_diff(target) < self.len {
                return Err(SubmitError::Overlap);
            }
        }
        Ok(())
    }

    /// The rest of this operation after its first `done` bytes. A CRC cannot continue without its
    /// value so far, so a CRC operation starts over.
    ///
    /// # Safety
    ///
    /// The operation's memory is still valid.
    pub(crate) unsafe fn rest(&self, done: usize) -> Operation {
        let done = done.min(self.len);
        match self.kind {
            Kind::CopyCrc32c => *self,
            Kind::Copy => {
                // SAFETY: `done <= len`, and both ranges are valid for `len` bytes.
                let (source, target) = unsafe { (self.source.add(done), self.target.add(done)) };
                Operation {
                    source,
                    target,
                    len: self.len - done,
                    ..*self
                }
            }
            Kind::Fill => {
                // SAFETY: as above.
                let target = unsafe { self.target.add(done) };
                let value = self.value.rotate_right(8 * (done % 8) as u32);
                Operation {
                    target,
                    value,
                    len: self.len - done,
                    ..*self
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_refused_and_touching_is_not() {
        let mut bytes = [0u8; 64];
        let base = bytes.as_mut_ptr();
        let at = |offset: usize| base.wrapping_add(offset);
        let check = |from: usize, to: usize, len| Operation::copy(at(from), at(to), len).check();
        assert_eq!(check(0, 31, 32), Err(SubmitError::Overlap));
        assert_eq!(check(31, 0, 32), Err(SubmitError::Overlap));
        assert_eq!(check(5, 5, 1), Err(SubmitError::Overlap));
        assert_eq!(check(0, 32, 32), Ok(()));
        assert_eq!(check(32, 0, 32), Ok(()));
        assert_eq!(check(5, 5, 0), Ok(()));
    }

    #[test]
    fn null_and_wrapping_ranges_are_refused() {
        let mut byte = 0u8;
        let valid: *mut u8 = &mut byte;
        let null = core::ptr::null_mut();
        assert_eq!(
            Operation::copy(null, valid, 1).check(),
            Err(SubmitError::Null)
        );
        assert_eq!(
            Operation::copy(valid, null, 1).check(),
            Err(SubmitError::Null)
        );
        assert_eq!(Operation::fill(valid, 1, 0).check(), Ok(()));
        let high = usize::MAX as *mut u8;
        assert_eq!(
            Operation::fill(high, 2, 0).check(),
            Err(SubmitError::TooLong)
        );
        assert_eq!(
            Operation::copy(high, valid, 2).check(),
            Err(SubmitError::TooLong)
        );
    }
}
