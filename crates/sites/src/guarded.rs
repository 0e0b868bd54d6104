//! System calls that a signal handler of the program cancels.
//!
//! An emulator that runs another program (qemu-user) must not begin a system call that may wait
//! while a signal for that program is pending. So it checks a word in memory right before
//! `syscall`. Its signal handlers examine the interrupted instruction: if the call has not been
//! made yet, they set the thread back to the check of the word.
//!
//! ```text
//!             cmp dword ptr [rbp], 0     the word is set by a signal
//!             jnz instead                the call is not made
//!             syscall                    a thread that waits is known by this address
//! ```
//!
//! A thread that waits in *our* handler is at an address that the program does not know. So the
//! program's signal would be handled only when the wait ends, which may be never. Therefore a
//! program with such a call is not patched.

use crate::instruction::{Flow, Instruction, Map, decode};

/// True when the code contains a guarded system call.
#[must_use]
pub fn has_guarded(code: &[u8]) -> bool {
    let mut pairs = code.windows(SYSCALL.len()).enumerate();
    pairs.any(|(at, pair)| pair == SYSCALL && is_guarded(code, at))
}

/// True when the system call at `site` is guarded.
#[must_use]
pub fn is_guarded(code: &[u8], site: usize) -> bool {
    let ends_at = |end: usize, wanted: fn(&Instruction, &[u8]) -> bool| {
        (1..=LOOK_BYTES_MAX).find_map(|bytes| {
            let start = end.checked_sub(bytes)?;
            let instruction = decode(code.get(start..end)?)?;
            let is_it = instruction.bytes() == bytes && wanted(&instruction, &code[start..end]);
            is_it.then_some(start)
        })
    };
    let branch = ends_at(site, |instruction, _| is_branch_unless_zero(instruction));
    branch.is_some_and(|branch| ends_at(branch, compares_with_zero).is_some())
}

/// `jnz`, short or near.
fn is_branch_unless_zero(instruction: &Instruction) -> bool {
    let is_short = instruction.map == Map::One && instruction.opcode == 0x75;
    let is_near = instruction.map == Map::Two && instruction.opcode == 0x85;
    (is_short || is_near) && matches!(instruction.flow, Flow::Branch(_))
}

/// `cmp dword ptr [register + number], 0`.
fn compares_with_zero(instruction: &Instruction, bytes: &[u8]) -> bool {
    const CMP: u8 = 7;
    let operation = instruction.modrm.map(|modrm| modrm >> 3 & 7);
    instruction.map == Map::One
        && instruction.opcode == 0x83
        && operation == Some(CMP)
        && instruction.has_memory()
        && bytes.last() == Some(&0)
}

/// `syscall`.
const SYSCALL: &[u8] = &[0x0f, 0x05];
/// The longest of the two instructions: a prefix, two bytes, a SIB byte, a 4-byte displacement, an
/// immediate.
const LOOK_BYTES_MAX: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of qemu 7.2: mov r9, [rsp + 24]; cmp dword ptr [rbp], 0; jnz; syscall; cmp.
    const OF_QEMU: &[u8] = &[
        0x4c, 0x8b, 0x4c, 0x24, 0x18, 0x83, 0x7d, 0x00, 0x00, 0x75, 0x10, 0x0f, 0x05, 0x48, 0x3d,
    ];

    #[test]
    fn a_call_behind_a_look_at_memory_is_guarded() {
        assert!(is_guarded(OF_QEMU, 11));
        assert!(has_guarded(OF_QEMU));
        // cmp dword ptr [r8], 0; jnz (near); syscall
        let near = [0x41, 0x83, 0x38, 0, 0x0f, 0x85, 0x10, 0, 0, 0, 0x0f, 0x05];
        assert!(is_guarded(&near, 10));
    }

    #[test]
    fn calls_behind_other_instructions_are_not() {
        let other = |at: usize, byte: u8| {
            let mut code = OF_QEMU.to_vec();
            code[at] = byte;
            !has_guarded(&code)
        };
        // Another number; add; a register; jz.
        assert!(other(8, 1) && other(6, 0x45) && other(6, 0xfd) && other(9, 0x74));
        // musl: mov eax, [rdi]; test eax, eax; jnz; …; syscall
        let musl = [
            0x8b, 0x07, 0x85, 0xc0, 0x75, 0x20, 0x49, 0x89, 0xfb, 0x48, 0x89, 0xf0, 0x0f, 0x05,
        ];
        assert!(!has_guarded(&musl));
        // No instruction before it; only a branch before it.
        assert!(!has_guarded(&[0x0f, 0x05]) && !has_guarded(&[0x75, 0x10, 0x0f, 0x05]));
    }
}
