//! Decodes the length of an x86-64 instruction, and the target of its branch.
//!
//! Only 64-bit mode is supported. An instruction is
//!
//! ```text
//! prefixes  REX | VEX | EVEX  opcode  ModRM  SIB  displacement  immediate
//! ```
//!
//! and at most 15 bytes long. The tables below tell for each opcode whether a ModRM byte follows,
//! and which immediate. Opcodes that are invalid in 64-bit mode, and the extension APX, are not
//! decoded: [`decode`] returns `None`.

/// The longest instruction that a processor accepts.
pub const INSTRUCTION_BYTES_MAX: usize = 15;

/// One decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Invariant: `1 <= length <= INSTRUCTION_BYTES_MAX`.
    pub length: u8,
    /// The opcode's table.
    pub map: Map,
    /// The opcode's last byte.
    pub opcode: u8,
    /// The ModRM byte, if there is one.
    pub modrm: Option<u8>,
    /// The SIB byte, if there is one.
    pub sib: Option<u8>,
    /// REX prefix, or 0.
    pub rex: u8,
    /// `PREFIX_*` bits of the legacy prefixes.
    pub prefixes: u8,
    /// Where execution continues.
    pub flow: Flow,
}

/// The operand-size prefix.
pub const PREFIX_OPERAND: u8 = 1;
/// The address-size prefix.
pub const PREFIX_ADDRESS: u8 = 2;
/// `lock`.
pub const PREFIX_LOCK: u8 = 4;
/// `rep` and `repne`.
pub const PREFIX_REPEAT: u8 = 8;
/// A segment override.
pub const PREFIX_SEGMENT: u8 = 16;

/// The tables of opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// One byte.
    One,
    /// After `0f`.
    Two,
    /// After `0f 38`.
    Three38,
    /// After `0f 3a`.
    Three3A,
    /// Encoded by VEX, EVEX or XOP.
    Vector,
}

/// Where execution continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// At the next instruction.
    Next,
    /// At the instruction's end plus this offset, or at the next instruction. Calls are included.
    Branch(i32),
    /// At the instruction's end plus this offset.
    Jump(i32),
    /// At an address in a register or in memory.
    Computed,
    /// Never at the next instruction: `ret`, `ud2`, `hlt`, `int3`.
    End,
    /// A system call.
    SystemCall,
}

impl Flow {
    /// True when execution never continues at the next instruction in memory.
    #[must_use]
    pub fn ends(self) -> bool {
        matches!(self, Flow::Jump(_) | Flow::Computed | Flow::End)
    }
}

impl Instruction {
    /// The instruction's length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::from(self.length)
    }

    /// True when its memory operand is relative to the instruction pointer.
    #[must_use]
    pub fn is_relative_to_itself(&self) -> bool {
        self.modrm.is_some_and(|modrm| modrm & 0xc7 == 0x05)
    }

    /// True when it has a memory operand.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.modrm.is_some_and(|modrm| modrm < 0xc0)
    }

    /// True when its memory operand is relative to the stack pointer or the frame pointer, without
    /// an index.
    #[must_use]
    pub fn is_on_stack(&self) -> bool {
        let Some(modrm) = self.modrm else {
            return false;
        };
        let base_is_extended = self.rex & 1 != 0;
        match (modrm >> 6, modrm & 7, self.sib) {
            // The base is rsp and there is no index.
            (0..=2, 4, Some(sib)) => sib & 0x3f == 0x24 && !base_is_extended && self.rex & 2 == 0,
            (1 | 2, 5, _) => !base_is_extended,
            _ => false,
        }
    }
}

/// Decodes the instruction that `code` starts with.
#[must_use]
pub fn decode(code: &[u8]) -> Option<Instruction> {
    let mut reader = Reader { code, at: 0 };
    let (prefixes, rex, opcode) = reader.prefixes()?;
    let mut instruction = Instruction {
        length: 0,
        map: Map::One,
        opcode,
        modrm: None,
        sib: None,
        rex,
        prefixes,
        flow: Flow::Next,
    };
    let wide = rex & 8 != 0;
    let operand = if prefixes & PREFIX_OPERAND != 0 && !wide {
        2
    } else {
        4
    };
    let kind = match opcode {
        0x0f => two_bytes(&mut reader, &mut instruction)?,
        0xc4 | 0xc5 | 0x62 => vector(&mut reader, &mut instruction)?,
        0x8f if reader.peek()? & 0x38 != 0 => xop(&mut reader, &mut instruction)?,
        _ => ONE[usize::from(opcode)],
    };
    if kind == XX {
        return None;
    }
    if kind & MODRM != 0 {
        reader.modrm(&mut instruction)?;
    }
    let group_3 = instruction.map == Map::One && instruction.opcode & 0xfe == 0xf6;
    let immediate = match kind & IMMEDIATE {
        // `test` has an immediate; `not`, `neg`, `mul`, `div` have none.
        _ if group_3 && instruction.modrm? & 0x38 > 8 => 0,
        NONE => 0,
        BYTE => 1,
        WORD => 2,
        OPERAND => operand,
        DOUBLE => 4,
        FULL if wide => 8,
        FULL => operand,
        ENTER => 3,
        TWO_BYTES => 2,
        // MOFFS: an address.
        _ if prefixes & PREFIX_ADDRESS != 0 => 4,
        _ => 8,
    };
    let value = reader.immediate(immediate)?;
    // `code` may be longer than an instruction can be.
    if reader.at > INSTRUCTION_BYTES_MAX {
        return None;
    }
    instruction.length = reader.at as u8;
    instruction.flow = flow(&instruction, value);
    Some(instruction)
}

fn flow(instruction: &Instruction, value: i64) -> Flow {
    // Jumps have immediates of at most four bytes.
    let offset = value as i32;
    let operation = instruction.modrm.map_or(0, |modrm| modrm >> 3 & 7);
    match (instruction.map, instruction.opcode) {
        (Map::One, 0x70..=0x7f | 0xe0..=0xe3 | 0xe8) | (Map::Two, 0x80..=0x8f) => {
            Flow::Branch(offset)
        }
        (Map::One, 0xe9 | 0xeb) => Flow::Jump(offset),
        (Map::One, 0xff) if operation == 4 || operation == 5 => Flow::Computed,
        (Map::One, 0xc2 | 0xc3 | 0xca | 0xcb | 0xcc | 0xcf | 0xf4) | (Map::Two, 0x0b) => Flow::End,
        // `xbegin` branches when its transaction fails.
        (Map::One, 0xc7) if instruction.modrm == Some(0xf8) => Flow::Branch(offset),
        (Map::Two, 0x05) => Flow::SystemCall,
        _ => Flow::Next,
    }
}

struct Reader<'a> {
    code: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.code.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Reads legacy prefixes, REX, and the byte after them. A REX prefix counts only directly
    /// before the opcode.
    fn prefixes(&mut self) -> Option<(u8, u8, u8)> {
        let (mut prefixes, mut rex) = (0, 0);
        loop {
            let byte = self.next()?;
            let prefix = match byte {
                0x40..=0x4f => {
                    rex = byte;
                    continue;
                }
                0x66 => PREFIX_OPERAND,
                0x67 => PREFIX_ADDRESS,
                0xf0 => PREFIX_LOCK,
                0xf2 | 0xf3 => PREFIX_REPEAT,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => PREFIX_SEGMENT,
                opcode => return Some((prefixes, rex, opcode)),
            };
            rex = 0;
            prefixes |= prefix;
            if self.at >= INSTRUCTION_BYTES_MAX {
                return None;
            }
        }
    }

    fn modrm(&mut self, instruction: &mut Instruction) -> Option<()> {
        let modrm = self.next()?;
        instruction.modrm = Some(modrm);
        let (mode, rm) = (modrm >> 6, modrm & 7);
        if mode == 3 {
            return Some(());
        }
        let mut displacement = match mode {
            1 => 1,
            2 => 4,
            _ if rm == 5 => 4,
            _ => 0,
        };
        if rm == 4 {
            let sib = self.next()?;
            instruction.sib = Some(sib);
            if mode == 0 && sib & 7 == 5 {
                displacement = 4;
            }
        }
        self.skip(displacement)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.at += count;
        (self.at <= self.code.len()).then_some(())
    }

    /// Reads a signed number of `count` bytes.
    fn immediate(&mut self, count: usize) -> Option<i64> {
        let from = self.at;
        self.skip(count)?;
        let bytes = &self.code[from..self.at];
        Some(match *bytes {
            [a] => i64::from(a as i8),
            [a, b] => i64::from(i16::from_le_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => 0,
        })
    }
}

fn two_bytes(reader: &mut Reader<'_>, instruction: &mut Instruction) -> Option<u8> {
    let opcode = reader.next()?;
    instruction.opcode = opcode;
    instruction.map = Map::Two;
    match opcode {
        0x38 => {
            instruction.map = Map::Three38;
            instruction.opcode = reader.next()?;
            Some(MODRM)
        }
        0x3a => {
            instruction.map = Map::Three3A;
            instruction.opcode = reader.next()?;
            Some(MODRM | BYTE)
        }
        // `extrq` and `insertq` of SSE4a; without a prefix it is `vmread`.
        0x78 if instruction.prefixes & (PREFIX_OPERAND | PREFIX_REPEAT) != 0 => {
            Some(MODRM | TWO_BYTES)
        }
        _ => Some(TWO[usize::from(opcode)]),
    }
}

/// Reads VEX and EVEX prefixes, which select the opcode's table.
fn vector(reader: &mut Reader<'_>, instruction: &mut Instruction) -> Option<u8> {
    // Before them a REX prefix, `lock`, `rep` or the operand-size prefix is invalid.
    let forbidden = PREFIX_OPERAND | PREFIX_LOCK | PREFIX_REPEAT;
    if instruction.rex != 0 || instruction.prefixes & forbidden != 0 {
        return None;
    }
    let is_evex = instruction.opcode == 0x62;
    let table = match instruction.opcode {
        0xc5 => {
            reader.skip(1)?;
            1
        }
        0xc4 => {
            let table = reader.next()? & 0x1f;
            reader.skip(1)?;
            table
        }
        _ => {
            let first = reader.next()?;
            reader.skip(2)?;
            if first & 0x08 != 0 { 0 } else { first & 7 }
        }
    };
    instruction.opcode = reader.next()?;
    instruction.map = Map::Vector;
    match (table, instruction.opcode) {
        // `vzeroupper` and `vzeroall`.
        (1, 0x77) if !is_evex => Some(NONE),
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) => Some(MODRM | BYTE),
        (1 | 2, _) => Some(MODRM),
        (3, _) => Some(MODRM | BYTE),
        (5 | 6, _) if is_evex => Some(MODRM),
        _ => None,
    }
}

/// AMD's prefix XOP.
fn xop(reader: &mut Reader<'_>, instruction: &mut Instruction) -> Option<u8> {
    let table = reader.next()? & 0x1f;
    reader.skip(1)?;
    instruction.opcode = reader.next()?;
    instruction.map = Map::Vector;
    match table {
        8 => Some(MODRM | BYTE),
        9 => Some(MODRM),
        10 => Some(MODRM | DOUBLE),
        _ => None,
    }
}

// The parts that follow an opcode.
const NONE: u8 = 0;
/// One byte.
const BYTE: u8 = 1;
/// Two bytes.
const WORD: u8 = 2;
/// Four bytes, or two with the operand-size prefix.
const OPERAND: u8 = 3;
/// Four bytes.
const DOUBLE: u8 = 4;
/// As many bytes as the operand's register.
const FULL: u8 = 5;
/// An address of eight bytes, or four with the address-size prefix.
const MOFFS: u8 = 6;
/// Two bytes and one byte.
const ENTER: u8 = 7;
/// One byte and one byte.
const TWO_BYTES: u8 = 8;
const IMMEDIATE: u8 = 0x0f;
const MODRM: u8 = 0x10;
/// Not valid in 64-bit mode.
const XX: u8 = 0xff;

/// The one-byte opcodes (Intel SDM, volume 2, table A-2). Prefixes have no entry of their own.
const ONE: [u8; 256] = {
    let mut table = [NONE; 256];
    let mut op = 0;
    while op < 256 {
        table[op] = match op as u8 {
            // Arithmetic: two operands, or the accumulator and an immediate.
            0x00..=0x3f => match op & 7 {
                0..=3 => MODRM,
                4 => BYTE,
                5 => OPERAND,
                _ => XX,
            },
            0x63 => MODRM,
            0x60..=0x62 => XX,
            0x68 => OPERAND,
            0x69 => MODRM | OPERAND,
            0x6a => BYTE,
            0x6b => MODRM | BYTE,
            0x70..=0x7f => BYTE,
            0x80 | 0x83 => MODRM | BYTE,
            0x81 => MODRM | OPERAND,
            0x82 | 0x9a => XX,
            0x84..=0x8f => MODRM,
            0xa0..=0xa3 => MOFFS,
            0xa8 => BYTE,
            0xa9 => OPERAND,
            0xb0..=0xb7 => BYTE,
            0xb8..=0xbf => FULL,
            0xc0 | 0xc1 | 0xc6 => MODRM | BYTE,
            0xc2 | 0xca => WORD,
            0xc7 => MODRM | OPERAND,
            0xc8 => ENTER,
            0xcd => BYTE,
            0xce | 0xd4..=0xd6 | 0xea => XX,
            0xd0..=0xd3 | 0xd8..=0xdf => MODRM,
            0xe0..=0xe7 | 0xeb => BYTE,
            0xe8 | 0xe9 => DOUBLE,
            0xf6 => MODRM | BYTE,
            0xf7 => MODRM | OPERAND,
            0xfe | 0xff => MODRM,
            _ => NONE,
        };
        op += 1;
    }
    table
};

/// The opcodes after `0f` (Intel SDM, volume 2, table A-3).
const TWO: [u8; 256] = {
    let mut table = [MODRM; 256];
    let mut op = 0;
    while op < 256 {
        table[op] = match op as u8 {
            0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x35 | 0x37 | 0x77 => NONE,
            0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => NONE,
            0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f => XX,
            0x80..=0x8f => DOUBLE,
            0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => MODRM | BYTE,
            _ => MODRM,
        };
        op += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn length(code: &[u8]) -> Option<usize> {
        decode(code).map(|instruction| instruction.bytes())
    }

    #[test]
    fn lengths_follow_prefixes_operands_and_immediates() {
        for (code, bytes) in [
            (&[0x90][..], 1),
            (&[0x0f, 0x05], 2),
            (&[0x48, 0x89, 0xc7], 3),
            (&[0xb8, 1, 0, 0, 0], 5),
            (&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], 10),
            (&[0x66, 0xb8, 1, 2], 4),
            (&[0x48, 0xc7, 0xc0, 1, 0, 0, 0], 7),
            (&[0x66, 0x48, 0xc7, 0xc0, 1, 0, 0, 0], 8),
            (&[0x8b, 0x44, 0x24, 8], 4),
            (&[0x8b, 0x84, 0x24, 8, 0, 0, 0], 7),
            (&[0x8b, 0x05, 0, 0, 0, 0], 6),
            (&[0x8b, 0x04, 0x25, 0, 0, 0, 0], 7),
            (&[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff], 6),
            (&[0xf6, 0xc3, 1], 3),
            (&[0xf7, 0xd8], 2),
            (&[0xf7, 0xc0, 1, 0, 0, 0], 6),
            (&[0xc8, 1, 2, 3], 4),
            (&[0xa1, 1, 2, 3, 4, 5, 6, 7, 8], 9),
            (&[0x67, 0xa1, 1, 2, 3, 4], 6),
            (&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], 10),
            (&[0xc5, 0xf8, 0x77], 3),
            (&[0xc5, 0xfd, 0x70, 0xc0, 1], 5),
            (&[0xc4, 0xe3, 0x7d, 0x39, 0xc1, 1], 6),
            (&[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1], 6),
            (&[0x62, 0xf3, 0x75, 0x48, 0x25, 0xc2, 0xff], 7),
            (&[0xf3, 0x0f, 0x1e, 0xfa], 4),
            (&[0x66, 0x0f, 0x3a, 0x0f, 0xc1, 8], 6),
        ] {
            assert_eq!(length(code), Some(bytes), "{code:02x?}");
        }
    }

    #[test]
    fn a_truncated_instruction_is_none() {
        for code in [
            &[][..],
            &[0x48],
            &[0x0f],
            &[0xb8, 1, 2, 3],
            &[0x8b, 0x44, 0x24],
        ] {
            assert_eq!(decode(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn what_64_bit_mode_does_not_have_is_none() {
        for opcode in [0x06, 0x0e, 0x27, 0x60, 0x82, 0x9a, 0xce, 0xd4, 0xea] {
            let code = [opcode, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(decode(&code), None, "{opcode:02x}");
        }
    }

    #[test]
    fn branches_say_where_they_lead() {
        let flow = |code: &[u8]| decode(code).expect("valid").flow;
        assert_eq!(flow(&[0x74, 0xfe]), Flow::Branch(-2));
        assert_eq!(flow(&[0xe8, 1, 0, 0, 0]), Flow::Branch(1));
        assert_eq!(
            flow(&[0x0f, 0x85, 0xff, 0xff, 0xff, 0xff]),
            Flow::Branch(-1)
        );
        assert_eq!(flow(&[0xe9, 0, 1, 0, 0]), Flow::Jump(256));
        assert_eq!(flow(&[0xff, 0xe0]), Flow::Computed);
        assert_eq!(flow(&[0xc3]), Flow::End);
        assert_eq!(flow(&[0x0f, 0x05]), Flow::SystemCall);
    }

    #[test]
    fn operands_on_the_stack_are_known() {
        let on_stack = |code: &[u8]| decode(code).expect("valid").is_on_stack();
        assert!(on_stack(&[0x48, 0x8b, 0x44, 0x24, 8]));
        assert!(on_stack(&[0x48, 0x8b, 0x45, 0xf8]));
        // mov rax, [r12 + 8]; mov rax, [r13 + 8]; mov rax, [rip]; mov rax, [rbx].
        assert!(!on_stack(&[0x49, 0x8b, 0x44, 0x24, 8]));
        assert!(!on_stack(&[0x49, 0x8b, 0x45, 8]));
        assert!(!on_stack(&[0x48, 0x8b, 0x05, 0, 0, 0, 0]));
        assert!(!on_stack(&[0x48, 0x8b, 0x03]));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_within_their_bounds(
            code in proptest::collection::vec(any::<u8>(), 0..24),
        ) {
            if let Some(instruction) = decode(&code) {
                prop_assert!((1..=INSTRUCTION_BYTES_MAX).contains(&instruction.bytes()));
                prop_assert!(instruction.bytes() <= code.len());
                // Bytes after an instruction do not change it.
                let alone = &code[..instruction.bytes()];
                prop_assert_eq!(decode(alone), Some(instruction));
                // A truncated instruction is invalid.
                prop_assert_eq!(decode(&alone[..alone.len() - 1]), None);
            }
        }
    }
}
