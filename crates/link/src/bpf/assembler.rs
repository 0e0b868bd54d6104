//! A minimal assembler for eBPF (RFC 9669). An instruction has eight bytes; jumps go to labels.
//!
//! ```text
//!   0        1           2        4            8
//!   | opcode | src | dst | offset | immediate  |      in native byte order
//! ```

/// One instruction (RFC 9669, section 3.1; `struct bpf_insn` of `linux/bpf.h`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    code: u8,
    /// The destination in the low four bits, the source in the high ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. R0 has results. R1 to R5 are arguments, which calls overwrite. Calls preserve R6 to
/// R9. R10 is the end of the stack. Only the registers in use are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Register {
    /// A result.
    R0,
    /// The first argument.
    R1,
    /// The second argument.
    R2,
    /// The third argument.
    R3,
    /// The fourth argument.
    R4,
    /// The fifth argument.
    R5,
    /// Preserved by calls, as are the next three.
    R6,
    /// See [`Register::R6`].
    R7,
    /// See [`Register::R6`].
    R8,
    /// See [`Register::R6`].
    R9,
    /// The end of the stack.
    R10 = 10,
}

/// The number of bytes that a load or store moves (section 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Four.
    Word = 0x00,
    /// Two.
    Half = 0x08,
    /// One.
    Byte = 0x10,
    /// Eight.
    Double = 0x18,
}

/// The comparison of unsigned numbers that a jump depends on (section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum If {
    /// Both are one number.
    Equal = 0x10,
    /// The left one is greater.
    Greater = 0x20,
    /// They differ.
    NotEqual = 0x50,
    /// The left one is less.
    Less = 0xa0,
}

/// The target of a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    program: Vec<Instruction>,
    /// The place of each label; `None` until it is placed.
    places: Vec<Option<usize>>,
    /// Jumps and their targets.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// A label to be placed once.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places the label here.
    ///
    /// # Panics
    /// When the label has a place already.
    pub fn place(&mut self, label: Label) {
        let before = self.places[label.0].replace(self.program.len());
        assert!(before.is_none(), "a label stands in one place");
    }

    /// `to = from`
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(ALU64 | MOV | BY_REGISTER, to, from, 0, 0);
    }

    /// `to = number`
    pub fn set(&mut self, to: Register, number: i32) {
        self.push(ALU64 | MOV, to, Register::R0, 0, number);
    }

    /// `to += number`
    pub fn add(&mut self, to: Register, number: i32) {
        self.push(ALU64 | ADD, to, Register::R0, 0, number);
    }

    /// Converts the low four bytes between network byte order and the machine's. The high four
    /// bytes become zero (section 4.2).
    pub fn swap_word(&mut self, to: Register) {
        self.push(ALU | END | TO_BIG_ENDIAN, to, Register::R0, 0, 32);
    }

    /// `to += from`
    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(ALU64 | ADD | BY_REGISTER, to, from, 0, 0);
    }

    /// `to &= number`
    pub fn and(&mut self, to: Register, number: i32) {
        self.push(ALU64 | AND, to, Register::R0, 0, number);
    }

    /// `to <<= bits`
    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(ALU64 | LSH, to, Register::R0, 0, bits);
    }

    /// `to >>= bits`, filling with zeroes
    pub fn shift_right(&mut self, to: Register, bits: i32) {
        self.push(ALU64 | RSH, to, Register::R0, 0, bits);
    }

    /// `to = *(from + offset)`
    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.push(LDX | MEM | size as u8, to, from, offset, 0);
    }

    /// `*(to + offset) = from`
    pub fn store(&mut self, size: Size, to: Register, offset: i16, from: Register) {
        self.push(STX | MEM | size as u8, to, from, offset, 0);
    }

    /// `*(to + offset) = number`
    pub fn store_number(&mut self, size: Size, to: Register, offset: i16, number: i32) {
        self.push(ST | MEM | size as u8, to, Register::R0, offset, number);
    }

    /// `to` = the map behind a descriptor (section 5.4: two instructions long, BPF_PSEUDO_MAP_FD).
    pub fn load_map(&mut self, to: Register, map: i32) {
        self.push(LD | IMM | Size::Double as u8, to, Register::R1, 0, map);
        self.push(0, Register::R0, Register::R0, 0, 0);
    }

    /// Calls a helper (`enum bpf_func_id`).
    pub fn call(&mut self, helper: i32) {
        self.push(JMP | CALL, Register::R0, Register::R0, 0, helper);
    }

    /// Ends with R0.
    pub fn exit(&mut self) {
        self.push(JMP | EXIT, Register::R0, Register::R0, 0, 0);
    }

    /// Jumps.
    pub fn jump(&mut self, to: Label) {
        self.push_jump(JMP, Register::R0, Register::R0, 0, to);
    }

    /// Jumps if the comparison of 64 bits holds.
    pub fn jump_if(&mut self, left: Register, is: If, right: Register, to: Label) {
        self.push_jump(JMP | is as u8 | BY_REGISTER, left, right, 0, to);
    }

    /// Jumps if the comparison of the low 32 bits holds.
    pub fn jump_if_word(&mut self, left: Register, is: If, right: u32, to: Label) {
        let right = right.cast_signed();
        self.push_jump(JMP32 | is as u8, left, Register::R0, right, to);
    }

    /// Jumps if a lookup has found nothing. The comparison has 64 bits: the verifier does not
    /// accept half of a pointer.
    pub fn jump_if_null(&mut self, pointer: Register, to: Label) {
        self.push_jump(JMP | If::Equal as u8, pointer, Register::R0, 0, to);
    }

    /// The program, its jumps resolved.
    ///
    /// # Panics
    /// When a jump's label has no place.
    pub fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let place = self.places[label.0].expect("every label that is jumped to is placed");
            let distance = place as isize - at as isize - 1;
            self.program[at].offset = i16::try_from(distance).expect("the program is short");
        }
        self.program
    }

    fn push_jump(&mut self, code: u8, left: Register, right: Register, number: i32, to: Label) {
        self.jumps.push((self.program.len(), to));
        self.push(code, left, right, 0, number);
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.program.push(Instruction {
            code,
            registers: to as u8 | (from as u8) << 4,
            offset,
            immediate,
        });
    }
}

// Instruction classes and modes (RFC 9669, sections 3 to 5).
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU: u8 = 0x04;
const ALU64: u8 = 0x07;
const BY_REGISTER: u8 = 0x08;
const IMM: u8 = 0x00;
const MEM: u8 = 0x60;
const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const LSH: u8 = 0x60;
const RSH: u8 = 0x70;
const MOV: u8 = 0xb0;
const END: u8 = 0xd0;
const TO_BIG_ENDIAN: u8 = 0x08;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;

const _: () = assert!(size_of::<Instruction>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(program: &[Instruction]) -> Vec<(u8, u8, i16, i32)> {
        let fields = |one: &Instruction| (one.code, one.registers, one.offset, one.immediate);
        program.iter().map(fields).collect()
    }

    /// The codes are those that `llvm-objdump` and the kernel's own documentation print.
    #[test]
    fn instructions_have_their_documented_codes() {
        let mut a = Assembler::new();
        a.copy(Register::R6, Register::R1);
        a.set(Register::R0, 2);
        a.add(Register::R1, 14);
        a.add_register(Register::R7, Register::R4);
        a.and(Register::R4, 15);
        a.shift_left(Register::R4, 2);
        a.shift_right(Register::R4, 3);
        a.swap_word(Register::R2);
        a.load(Size::Half, Register::R4, Register::R2, 12);
        a.store(Size::Word, Register::R10, -4, Register::R4);
        a.store_number(Size::Double, Register::R10, -16, 0);
        a.load_map(Register::R1, 7);
        a.call(51);
        a.exit();
        let expected = [
            (0xbf, 0x16, 0, 0),
            (0xb7, 0x00, 0, 2),
            (0x07, 0x01, 0, 14),
            (0x0f, 0x47, 0, 0),
            (0x57, 0x04, 0, 15),
            (0x67, 0x04, 0, 2),
            (0x77, 0x04, 0, 3),
            (0xdc, 0x02, 0, 32),
            (0x69, 0x24, 12, 0),
            (0x63, 0x4a, -4, 0),
            (0x7a, 0x0a, -16, 0),
            (0x18, 0x11, 0, 7),
            (0x00, 0x00, 0, 0),
            (0x85, 0x00, 0, 51),
            (0x95, 0x00, 0, 0),
        ];
        assert_eq!(bytes(&a.finish()), expected);
    }

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let mut a = Assembler::new();
        let (back, on) = (a.label(), a.label());
        a.place(back);
        a.jump_if(Register::R1, If::Greater, Register::R3, on);
        a.jump_if_word(Register::R4, If::Equal, 0x0608, back);
        a.jump_if_word(Register::R4, If::NotEqual, u32::MAX, on);
        a.jump_if_null(Register::R0, on);
        a.jump(back);
        a.place(on);
        let expected = [
            (0x2d, 0x31, 4, 0),
            (0x16, 0x04, -2, 0x0608),
            (0x56, 0x04, 2, -1),
            (0x15, 0x00, 1, 0),
            (0x05, 0x00, -5, 0),
        ];
        assert_eq!(bytes(&a.finish()), expected);
    }
}
