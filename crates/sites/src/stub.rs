//! The bytes of patches and stubs.
//!
//! A stub is near the program's code, within the reach of a five-byte jump. It begins with four
//! words for the handler, and executes the instructions that its patch has moved:
//!
//! ```text
//!  0  entry          where the handler begins
//!  8  pass           where to go on when the program's own system call shall happen
//! 16  done           where to go on when the handler has answered
//! 24  site           where `syscall` is, for reports
//! 32  moved instructions, of a patch before `syscall`
//!     movzx r11d, ax
//!     lea rcx, [table]            all stubs share a table: one byte for each number
//!     movzx ecx, byte [rcx + r11]
//!     jrcxz pass                  a number that no handler wants
//!     lea rcx, [stub]
//!     jmp [stub]
//! pass:
//!     jmp site                    of a patch before `syscall`; otherwise:
//!     syscall
//! done:
//!     moved instructions
//!     jmp after them, or where a jump at their end leads
//! ```
//!
//! `syscall` destroys rcx and r11, so the stub may use them. The stub changes neither flags nor
//! memory, and calls that the library does not handle do not touch the stack.

use crate::instruction::Flow;
use crate::plan::{JUMP_BYTES, Kind, PATCH_BYTES_MAX, Patch, SYSCALL_BYTES, last_of};

/// The offset of a stub's code.
pub const STUB_CODE: usize = 32;
/// The length of the longest stub.
pub const STUB_BYTES_MAX: usize = 128;
/// The table of wanted numbers has a byte for each value of the number's low 16 bits.
pub const TABLE_BYTES: usize = 1 << 16;

/// The addresses that a stub needs.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The address of the code that was swept.
    pub code: u64,
    /// The address of the stub, a multiple of 8.
    pub stub: u64,
    /// The address of the table of handled numbers.
    pub table: u64,
    /// The address of the handler's entry.
    pub entry: u64,
}

/// Bytes to write over the program's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// Offset in the code.
    pub at: usize,
    bytes: [u8; PATCH_BYTES_MAX],
    length: usize,
}

impl Overwrite {
    fn new(at: usize, length: usize) -> Overwrite {
        // Filled with `nop` after the jump.
        Overwrite {
            at,
            bytes: [0x90; PATCH_BYTES_MAX],
            length,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The stub or the jump to it is out of reach: more than 2 GiB away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfReach;

/// Writes the stub of `patch`, and returns its length. `code` is the code that was swept.
///
/// # Errors
///
/// When the stub is too far from the code or the table.
pub fn stub(
    patch: &Patch,
    code: &[u8],
    addresses: &Addresses,
    into: &mut [u8; STUB_BYTES_MAX],
) -> Result<usize, OutOfReach> {
    let moved = &code[patch.moved()];
    let site = addresses.code + patch.site as u64;
    let mut writer = Writer {
        into,
        at: STUB_CODE,
        address: addresses.stub,
    };
    let is_before = matches!(patch.kind, Kind::Before { .. });
    if is_before {
        writer.put(moved);
    }
    writer.put(&[0x44, 0x0f, 0xb7, 0xd8]);
    writer.put_relative(&[0x48, 0x8d, 0x0d], addresses.table)?;
    writer.put(&[0x42, 0x0f, 0xb6, 0x0c, 0x19]);
    // Jumps over the next two instructions, of seven and six bytes.
    writer.put(&[0xe3, 13]);
    writer.put_relative(&[0x48, 0x8d, 0x0d], addresses.stub)?;
    writer.put_relative(&[0xff, 0x25], addresses.stub)?;
    let (pass, done) = if is_before {
        writer.put_relative(&[0xe9], site)?;
        (site, site + SYSCALL_BYTES as u64)
    } else {
        let pass = writer.here();
        writer.put(&[0x0f, 0x05]);
        let done = writer.here();
        let after = site + (SYSCALL_BYTES + moved.len()) as u64;
        let (at, last) = last_of(moved).unzip();
        match last.map(|last| last.flow) {
            Some(Flow::End) => writer.put(moved),
            Some(Flow::Jump(offset)) => {
                writer.put(&moved[..at.unwrap_or(0)]);
                let target = after.wrapping_add_signed(offset.into());
                writer.put_relative(&[0xe9], target)?;
            }
            _ => {
                writer.put(moved);
                writer.put_relative(&[0xe9], after)?;
            }
        }
        (pass, done)
    };
    let length = writer.at;
    for (word, value) in [addresses.entry, pass, done, site].into_iter().enumerate() {
        into[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }
    Ok(length)
}

/// The bytes to write over the code, so that it jumps to the stub.
///
/// # Errors
///
/// When the stub is too far from the code.
pub fn overwrites(
    patch: &Patch,
    addresses: &Addresses,
) -> Result<[Option<Overwrite>; 2], OutOfReach> {
    let target = addresses.stub + STUB_CODE as u64;
    let jump = |at: usize, length: usize| {
        let next = addresses.code + (at + JUMP_BYTES) as u64;
        let mut overwrite = Overwrite::new(at, length);
        overwrite.bytes[0] = 0xe9;
        overwrite.bytes[1..JUMP_BYTES].copy_from_slice(&distance(next, target)?.to_le_bytes());
        Ok(Some(overwrite))
    };
    let site = patch.site;
    Ok(match patch.kind {
        Kind::Before { start } => [jump(start, site - start)?, None],
        Kind::After { end, .. } => [jump(site, end - site)?, None],
        Kind::Hop { padding } => {
            let mut hop = Overwrite::new(site, SYSCALL_BYTES);
            let offset = padding as i64 - (site + SYSCALL_BYTES) as i64;
            let offset = i8::try_from(offset).map_err(|_| OutOfReach)?;
            hop.bytes[..SYSCALL_BYTES].copy_from_slice(&[0xeb, offset as u8]);
            // The padding first: the hop must never lead to padding without a jump.
            [jump(padding, JUMP_BYTES)?, Some(hop)]
        }
    })
}

fn distance(from: u64, to: u64) -> Result<i32, OutOfReach> {
    i32::try_from(to.wrapping_sub(from) as i64).map_err(|_| OutOfReach)
}

struct Writer<'a> {
    into: &'a mut [u8; STUB_BYTES_MAX],
    at: usize,
    address: u64,
}

impl Writer<'_> {
    fn here(&self) -> u64 {
        self.address + self.at as u64
    }

    fn put(&mut self, bytes: &[u8]) {
        self.into[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Writes an instruction that ends with the distance from its end to `target`.
    fn put_relative(&mut self, opcode: &[u8], target: u64) -> Result<(), OutOfReach> {
        self.put(opcode);
        let next = self.here() + 4;
        self.put(&distance(next, target)?.to_le_bytes());
        Ok(())
    }
}

// The longest stub fits: 32 bytes of words, the moved instructions, 33 bytes of the stub's own
// code, and a jump.
const _: () = assert!(STUB_CODE + PATCH_BYTES_MAX + 33 + JUMP_BYTES + 2 <= STUB_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::decode;

    const ADDRESSES: Addresses = Addresses {
        code: 0x40_1000,
        stub: 0x50_0000,
        table: 0x60_0000,
        entry: 0x7f00_1234_5678,
    };

    fn instructions(bytes: &[u8]) -> Vec<crate::instruction::Instruction> {
        let mut at = 0;
        let mut found = Vec::new();
        while at < bytes.len() {
            let instruction = decode(&bytes[at..]).expect("a stub has instructions only");
            at += instruction.bytes();
            found.push(instruction);
        }
        found
    }

    #[test]
    fn a_stub_of_a_patch_before_it_ends_at_the_programs_own_system_call() {
        let code = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let patch = Patch {
            site: 5,
            kind: Kind::Before { start: 0 },
        };
        let mut bytes = [0; STUB_BYTES_MAX];
        let length = stub(&patch, &code, &ADDRESSES, &mut bytes).expect("near");
        let word = |n: usize| u64::from_le_bytes(bytes[n * 8..][..8].try_into().expect("eight"));
        assert_eq!(word(0), ADDRESSES.entry);
        assert_eq!(
            (word(1), word(2), word(3)),
            (0x40_1005, 0x40_1007, 0x40_1005)
        );
        assert_eq!(&bytes[STUB_CODE..][..5], &code[..5]);
        let found = instructions(&bytes[STUB_CODE..length]);
        let last = found.last().expect("some");
        let end = ADDRESSES.stub + length as u64;
        let Flow::Jump(offset) = last.flow else {
            panic!("{last:?} is no jump")
        };
        assert_eq!(end.wrapping_add_signed(i64::from(offset)), 0x40_1005);
    }

    #[test]
    fn a_stub_of_a_patch_after_it_makes_the_call_itself() {
        // syscall; cmp rax, -4096; ret
        let code = [0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0xc3];
        let patch = Patch {
            site: 0,
            kind: Kind::After {
                moved_end: 8,
                end: 8,
            },
        };
        let mut bytes = [0; STUB_BYTES_MAX];
        let length = stub(&patch, &code, &ADDRESSES, &mut bytes).expect("near");
        let pass = u64::from_le_bytes(bytes[8..16].try_into().expect("eight"));
        let offset = (pass - ADDRESSES.stub) as usize;
        assert_eq!(&bytes[offset..][..8], &code[..8]);
        assert_eq!(instructions(&bytes[offset..length]).len(), 3);
        let [Some(overwrite), None] = overwrites(&patch, &ADDRESSES).expect("near") else {
            panic!("one place")
        };
        assert_eq!((overwrite.at, overwrite.bytes().len()), (0, 8));
        assert_eq!(overwrite.bytes()[5..], [0x90; 3]);
    }

    /// Where the stub of a patch over all of `code`, which begins with `syscall`, continues.
    fn target_after(code: &[u8]) -> Option<u64> {
        let (moved_end, end) = (code.len(), code.len());
        let patch = Patch {
            site: 0,
            kind: Kind::After { moved_end, end },
        };
        let mut bytes = [0; STUB_BYTES_MAX];
        let length = stub(&patch, code, &ADDRESSES, &mut bytes).expect("near");
        match instructions(&bytes[STUB_CODE..length]).last()?.flow {
            Flow::Jump(offset) => {
                let end = ADDRESSES.stub + length as u64;
                Some(end.wrapping_add_signed(offset.into()))
            }
            _ => None,
        }
    }

    #[test]
    fn a_stub_goes_on_where_the_moved_instructions_do() {
        // syscall; mov rbx, rax: its last byte is that of a `ret`.
        assert_eq!(
            target_after(&[0x0f, 0x05, 0x48, 0x89, 0xc3]),
            Some(0x40_1005)
        );
        // syscall; mov edi, eax; ret
        assert_eq!(target_after(&[0x0f, 0x05, 0x89, 0xc7, 0xc3]), None);
        // syscall; jmp to 0x10 behind it
        assert_eq!(
            target_after(&[0x0f, 0x05, 0xe9, 0x10, 0, 0, 0]),
            Some(0x40_1017)
        );
        // syscall; xor edx, edx; jmp back to the system call
        assert_eq!(
            target_after(&[0x0f, 0x05, 0x31, 0xd2, 0xeb, 0xfa]),
            Some(0x40_1000)
        );
    }

    #[test]
    fn calls_that_no_handler_wants_skip_the_entry() {
        let code = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let patch = Patch {
            site: 5,
            kind: Kind::Before { start: 0 },
        };
        let mut bytes = [0; STUB_BYTES_MAX];
        let length = stub(&patch, &code, &ADDRESSES, &mut bytes).expect("near");
        let skip = bytes[..length]
            .windows(2)
            .position(|two| two == [0xe3, 13])
            .expect("jrcxz");
        assert_eq!(bytes[skip + 2 + 13], 0xe9);
    }

    #[test]
    fn a_stub_that_is_too_far_is_refused() {
        let code = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let patch = Patch {
            site: 5,
            kind: Kind::Before { start: 0 },
        };
        let far = Addresses {
            stub: 0x7f00_0000_0000,
            ..ADDRESSES
        };
        let mut bytes = [0; STUB_BYTES_MAX];
        assert_eq!(stub(&patch, &code, &far, &mut bytes), Err(OutOfReach));
        assert_eq!(overwrites(&patch, &far), Err(OutOfReach));
    }
}
