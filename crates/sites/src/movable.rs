//! Instructions that have the same effect at another address.
//!
//! A patch overwrites instructions, and the stub executes them at another address. That is correct
//! for an instruction that neither reads the instruction pointer nor branches. The instruction must
//! not fault either, because the program's signal handler would see an instruction pointer in the
//! stub. So only memory operands on the stack are allowed. The list contains the instructions that
//! compilers place beside a system call; all others are not moved.

use crate::instruction::{Instruction, Map, PREFIX_OPERAND};

/// True when `instruction` has the same effect at another address.
#[must_use]
pub fn is_movable(instruction: &Instruction) -> bool {
    if instruction.prefixes & !PREFIX_OPERAND != 0 {
        return false;
    }
    let operation = instruction.modrm.map_or(0, |modrm| modrm >> 3 & 7);
    let in_list = match instruction.map {
        Map::One => match instruction.opcode {
            // add, or, adc, sbb, and, sub, xor, cmp; push and pop; movsxd; push of a number.
            0x00..=0x3f | 0x50..=0x5f | 0x63 | 0x68 | 0x6a => true,
            // Arithmetic with an immediate; test; mov; lea.
            0x80 | 0x81 | 0x83..=0x85 | 0x88..=0x8b | 0x8d | 0xc6 | 0xc7 => true,
            // nop, xchg, cdqe, cqo; test; mov of an immediate.
            0x90..=0x99 | 0xa8 | 0xa9 | 0xb0..=0xbf => true,
            // Shifts.
            0xc0 | 0xc1 | 0xd0..=0xd3 => true,
            // test, not, neg; mul and div may fault or take a long time.
            0xf6 | 0xf7 => operation < 4,
            // inc and dec; calls and jumps share these opcodes.
            0xfe | 0xff => operation < 2,
            _ => false,
        },
        Map::Two => match instruction.opcode {
            // nop; cmov; setcc; movzx; movsx.
            0x1f | 0x40..=0x4f | 0x90..=0x9f | 0xb6 | 0xb7 | 0xbe | 0xbf => true,
            // movups, movaps, movdqa; pxor.
            0x10 | 0x11 | 0x28 | 0x29 | 0x57 | 0x6f | 0x7f | 0xef => true,
            _ => false,
        },
        _ => false,
    };
    if !in_list {
        return false;
    }
    let computes_an_address = match (instruction.map, instruction.opcode) {
        (Map::One, 0x8d) | (Map::Two, 0x1f) => true,
        // `xbegin` shares an opcode with mov.
        (Map::One, 0xc6 | 0xc7) if operation != 0 => return false,
        _ => false,
    };
    if computes_an_address {
        return !instruction.is_relative_to_itself();
    }
    !instruction.has_memory() || instruction.is_on_stack()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::decode;

    fn movable(code: &[u8]) -> bool {
        is_movable(&decode(code).expect("an instruction"))
    }

    #[test]
    fn what_compilers_put_beside_a_system_call_is_movable() {
        for code in [
            &[0xb8, 1, 0, 0, 0][..],
            &[0x48, 0xc7, 0xc0, 1, 0, 0, 0],
            &[0x31, 0xc0],
            &[0x4c, 0x8b, 0x44, 0x24, 8],
            &[0x4c, 0x89, 0x5c, 0x24, 8],
            &[0x48, 0x3d, 0, 0xf0, 0xff, 0xff],
            &[0x48, 0x8d, 0x7c, 0x24, 8],
            &[0x5a],
        ] {
            assert!(movable(code), "{code:02x?}");
        }
    }

    #[test]
    fn what_depends_on_its_address_or_may_fault_is_not() {
        for code in [
            // Relative to the instruction pointer.
            &[0x48, 0x8d, 0x05, 0, 0, 0, 0][..],
            &[0x8b, 0x05, 0, 0, 0, 0],
            // Memory that is not on the stack.
            &[0x8b, 0x07],
            &[0x48, 0x8b, 0x43, 8],
            // Branches.
            &[0x74, 0],
            &[0xe8, 0, 0, 0, 0],
            &[0xc3],
            &[0xff, 0xe0],
            &[0xff, 0xd0],
            // A system call, a locked operation, the marker of a function's start.
            &[0x0f, 0x05],
            &[0xf0, 0x48, 0x0f, 0xb1, 0x0f],
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0xc7, 0xf8, 0, 0, 0, 0],
        ] {
            assert!(!movable(code), "{code:02x?}");
        }
    }
}
