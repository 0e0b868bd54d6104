//! All instructions of a piece of code, in one pass from its start.
//!
//! The pass decodes one instruction after the other. It notes the start of each, and the addresses
//! inside the code to which branches lead. Both are bitmaps with one bit for each byte of code.
//! Undecodable bytes are skipped one by one. Compiled code has none; after data in the code, the
//! pass finds the boundaries again within a few instructions.

use core::ops::Range;

use crate::instruction::{Flow, INSTRUCTION_BYTES_MAX, Instruction, decode};

/// Memory for a sweep: two bits for each byte of code.
#[derive(Debug)]
pub struct Bits<'a> {
    /// A set bit: an instruction begins here. At least [`words`] long, initially zero.
    pub starts: &'a mut [u64],
    /// A set bit: a branch leads here. As long as `starts`, initially zero.
    pub targets: &'a mut [u64],
}

/// The number of words in each field of [`Bits`] for `bytes` bytes of code.
#[must_use]
pub const fn words(bytes: usize) -> usize {
    bytes.div_ceil(64)
}

/// A piece of code that was swept. Positions are offsets from its start.
#[derive(Debug)]
pub struct Swept<'a> {
    code: &'a [u8],
    bits: Bits<'a>,
}

impl<'a> Swept<'a> {
    /// Prepares a sweep; no code is swept yet.
    ///
    /// # Panics
    ///
    /// When `bits` is too short for `code`.
    #[must_use]
    pub fn new(code: &'a [u8], bits: Bits<'a>) -> Swept<'a> {
        assert!(bits.starts.len() >= words(code.len()), "bits are too short");
        assert!(
            bits.targets.len() >= words(code.len()),
            "bits are too short"
        );
        Swept { code, bits }
    }

    /// Sweeps a part of the code (a section). Calls `found` with the position of each system call.
    pub fn sweep(&mut self, part: Range<usize>, found: impl FnMut(usize)) {
        let end = part.end.min(self.code.len());
        self.advance(part.start, end, end, found);
    }

    /// Sweeps from `at`, where an instruction begins, until one begins at or after `to`. Returns
    /// the start of that one. The part that is swept ends at `end`.
    pub(crate) fn advance(
        &mut self,
        mut at: usize,
        to: usize,
        end: usize,
        mut found: impl FnMut(usize),
    ) -> usize {
        while at < to.min(end) {
            let Some(instruction) = decode(&self.code[at..end]) else {
                at += 1;
                continue;
            };
            set(self.bits.starts, at);
            let next = at + instruction.bytes();
            match instruction.flow {
                Flow::Branch(offset) | Flow::Jump(offset) => self.note_branch(next, offset),
                Flow::SystemCall => found(at),
                _ => {}
            }
            at = next;
        }
        at
    }

    /// Notes that a branch leads to `offset` bytes after `next`.
    pub(crate) fn note_branch(&mut self, next: usize, offset: i32) {
        let target = next.wrapping_add_signed(offset as isize);
        if target < self.code.len() {
            set(self.bits.targets, target);
        }
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> &'a [u8] {
        self.code
    }

    /// The instruction that begins at `at`, if the sweep found one there.
    #[must_use]
    pub fn at(&self, at: usize) -> Option<Instruction> {
        if at >= self.code.len() || !is_set(self.bits.starts, at) {
            return None;
        }
        decode(&self.code[at..])
    }

    /// The start of the instruction that ends at `end`.
    #[must_use]
    pub fn before(&self, end: usize) -> Option<usize> {
        let earliest = end.saturating_sub(INSTRUCTION_BYTES_MAX);
        let start = (earliest..end)
            .rev()
            .find(|&at| is_set(self.bits.starts, at))?;
        let instruction = self.at(start)?;
        (start + instruction.bytes() == end).then_some(start)
    }

    /// True when a branch of the code leads to `at`.
    #[must_use]
    pub fn is_target(&self, at: usize) -> bool {
        at < self.code.len() && is_set(self.bits.targets, at)
    }

    /// True when a branch of the code leads into `range`.
    #[must_use]
    pub fn has_target(&self, mut range: Range<usize>) -> bool {
        range.any(|at| self.is_target(at))
    }
}

fn set(bits: &mut [u64], at: usize) {
    bits[at / 64] |= 1 << (at % 64);
}

fn is_set(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_finds_starts_targets_and_system_calls() {
        // mov eax, 1; jz +2; syscall; ret
        let code = [0xb8, 1, 0, 0, 0, 0x74, 2, 0x0f, 0x05, 0xc3];
        let (mut starts, mut targets) = ([0], [0]);
        let bits = Bits {
            starts: &mut starts,
            targets: &mut targets,
        };
        let mut swept = Swept::new(&code, bits);
        let mut found = Vec::new();
        swept.sweep(0..code.len(), |at| found.push(at));
        assert_eq!(found, [7]);
        assert_eq!(swept.before(7), Some(5));
        assert_eq!(swept.before(5), Some(0));
        assert_eq!(swept.before(6), None);
        assert!(swept.is_target(9));
        assert!(!swept.has_target(0..9));
    }

    #[test]
    fn an_immediate_that_looks_like_a_system_call_is_none() {
        // mov eax, 0x050f; ret
        let code = [0xb8, 0x0f, 0x05, 0, 0, 0xc3];
        let (mut starts, mut targets) = ([0], [0]);
        let bits = Bits {
            starts: &mut starts,
            targets: &mut targets,
        };
        let mut swept = Swept::new(&code, bits);
        swept.sweep(0..code.len(), |at| panic!("found one at {at}"));
    }
}
