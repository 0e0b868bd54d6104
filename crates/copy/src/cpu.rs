//! The `cpu` engine: the processor does the work at submission. Every other engine is compared with
//! it, and it finishes the operations that another engine could not.

use alloc::vec::Vec;

use crate::backend::{Backend, Outcome, Refused};
use crate::crc32c::copy_crc32c;
use crate::operation::Kind;
use crate::{Cookie, Operation, from_shared, to_shared};

/// The `cpu` engine: the platform's `memcpy`, done when submitted.
#[derive(Default)]
pub struct Cpu {
    finished: Finished,
}

impl Cpu {
    /// The engine; it has no parameters.
    pub fn new() -> Cpu {
        Cpu::default()
    }
}

// SAFETY: an operation is over when `submit` returns, before its outcome is reported, and `execute`
// touches only the operation's ranges.
unsafe impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        // SAFETY: the caller's contract is `execute`'s.
        self.finished.push(cookie, unsafe { execute(operation) });
        Ok(())
    }

    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        self.finished.report(report);
    }

    fn forget_after_fork(&mut self) {
        self.finished = Finished::default();
    }
}

/// Outcomes of an engine that works at submission, until the next poll.
#[derive(Default)]
pub(crate) struct Finished(Vec<(Cookie, Outcome)>);

impl Finished {
    #[inline]
    pub(crate) fn push(&mut self, cookie: Cookie, outcome: Outcome) {
        self.0.push((cookie, outcome));
    }

    #[inline]
    pub(crate) fn report(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        for (cookie, outcome) in self.0.drain(..) {
            report(cookie, outcome);
        }
    }
}

/// Carries out an operation here and now.
///
/// # Safety
///
/// The operation's memory is valid, its ranges do not overlap, and nobody else touches its target.
pub(crate) unsafe fn execute(operation: &Operation) -> Outcome {
    let &Operation {
        source,
        target,
        len,
        value,
        kind,
        ..
    } = operation;
    match kind {
        Kind::Copy => {
            // SAFETY: valid and disjoint by the caller's contract.
            unsafe { from_shared(source, target, len) };
            Outcome::DONE
        }
        Kind::Fill => {
            // SAFETY: as above.
            unsafe { fill(target, len, value) };
            Outcome::DONE
        }
        Kind::CopyCrc32c => {
            // SAFETY: as above.
            let crc32c = unsafe { copy_crc32c(value as u32, source, target, len) };
            Outcome::Done { crc32c }
        }
    }
}

/// # Safety
///
/// `target` is writable for `len` bytes.
unsafe fn fill(target: *mut u8, len: usize, pattern: u64) {
    let bytes = pattern.to_le_bytes();
    if bytes.iter().all(|&byte| byte == bytes[0]) {
        // SAFETY: the range is the caller's.
        return unsafe { target.write_bytes(bytes[0], len) };
    }
    let mut block = [0u8; FILL_BLOCK_BYTES];
    for (i, byte) in block.iter_mut().enumerate() {
        *byte = bytes[i % 8];
    }
    let mut at = 0;
    while at < len {
        let part = FILL_BLOCK_BYTES.min(len - at);
        // SAFETY: `at + part <= len`; `part` is at most the block's length.
        unsafe { to_shared(block.as_ptr(), target.add(at), part) };
        at += part;
    }
}

/// A multiple of the pattern's eight bytes, so that every block begins the pattern anew.
const FILL_BLOCK_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn fill_repeats_the_pattern_from_the_target_on() {
        for len in [0usize, 1, 7, 8, 9, 511, 512, 513, 2000] {
            for pattern in [0u64, 0x0101_0101_0101_0101, 0x0807_0605_0403_0201] {
                let mut target = vec![0xee; len + 1];
                // SAFETY: the vector holds `len` bytes and one more.
                unsafe { fill(target.as_mut_ptr(), len, pattern) };
                let expected: Vec<u8> = (0..len).map(|i| pattern.to_le_bytes()[i % 8]).collect();
                assert_eq!(target[..len], expected);
                assert_eq!(target[len], 0xee);
            }
        }
    }

    #[test]
    fn the_rest_of_an_operation_continues_it() {
        let source: Vec<u8> = (0..100).collect();
        for done in [0, 1, 5, 8, 13, 99, 100] {
            let mut target = vec![0u8; 100];
            let whole = Operation::fill(target.as_mut_ptr(), 100, 0x8877_6655_4433_2211);
            // SAFETY: both describe the vector's 100 bytes.
            unsafe {
                fill(whole.target, done, whole.value);
                execute(&whole.rest(done));
            }
            let bytes = whole.value.to_le_bytes();
            assert!(
                target.iter().enumerate().all(|(i, &b)| b == bytes[i % 8]),
                "after {done}"
            );

            let whole = Operation::copy(source.as_ptr(), target.as_mut_ptr(), 100);
            // SAFETY: as above.
            unsafe { execute(&whole.rest(done)) };
            assert_eq!(target[done..], source[done..]);
        }
    }
}
