//! The places of fields in the kernel's structures, by the kernel's own description of its types:
//! BTF.
//!
//! The kernel shows it as a file, `/sys/kernel/btf/vmlinux` (`CONFIG_DEBUG_INFO_BTF`). The format
//! is documented in `Documentation/bpf/btf.rst`:
//!
//! ```text
//!   header | types, one after another, numbered from 1 | names, each ended by a zero byte
//!
//!   a type:  name, what it is and how many members, size or another type | members
//! ```

use std::fmt;
use std::fs;
use std::io;

/// A description of types.
pub struct Btf {
    bytes: Vec<u8>,
    /// The place of each type in the file; type 0 is `void`, which has no entry.
    types: Vec<usize>,
    names: usize,
}

/// The place of a field in its structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The field's first byte, or the byte with its first bit.
    pub offset: u32,
    /// The field's length in bytes; for a bit field, the length of its declared type.
    pub bytes: u32,
    /// Of a bit field: the number of its first bit in that byte, and its width in bits.
    pub bits: Option<(u32, u32)>,
}

/// The reason why a field was not found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BtfError {
    /// The file cannot be read: the kernel was built without BTF, or permission is missing.
    Unreadable(String),
    /// The file has not the documented format.
    Malformed,
    /// There is no such structure, or no such field in it.
    Missing(String),
}

impl fmt::Display for BtfError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BtfError::Unreadable(why) => write!(
                out,
                "the kernel does not describe its types ({PLACE}, CONFIG_DEBUG_INFO_BTF): {why}"
            ),
            BtfError::Malformed => write!(out, "{PLACE} is not in the format that is known"),
            BtfError::Missing(field) => write!(out, "this kernel has no {field}"),
        }
    }
}

impl std::error::Error for BtfError {}

impl fmt::Debug for Btf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Btf({} types)", self.types.len())
    }
}

impl Btf {
    /// The description of the running kernel's types.
    ///
    /// # Errors
    /// When the kernel has no description, or not in the known format.
    pub fn of_kernel() -> Result<Btf, BtfError> {
        let bytes = fs::read(PLACE);
        Btf::parse(bytes.map_err(|error: io::Error| BtfError::Unreadable(error.to_string()))?)
    }

    /// The description in `bytes`.
    ///
    /// # Errors
    /// When it is not in the known format.
    pub fn parse(bytes: Vec<u8>) -> Result<Btf, BtfError> {
        Btf::try_parse(bytes).ok_or(BtfError::Malformed)
    }

    fn try_parse(bytes: Vec<u8>) -> Option<Btf> {
        let word = |at| word_in(&bytes, at);
        if bytes.get(..3)? != [MAGIC[0], MAGIC[1], VERSION] {
            return None;
        }
        let header_bytes = word(4)? as usize;
        let section = |at: usize| {
            let begin = header_bytes.checked_add(word(at)? as usize)?;
            let end = begin.checked_add(word(at + 4)? as usize)?;
            (end <= bytes.len()).then_some((begin, end))
        };
        let (mut at, end) = section(8)?;
        let (names, _) = section(16)?;
        let mut types = vec![0];
        while at < end {
            types.push(at);
            let info = word(at + 4)?;
            at = at.checked_add(TYPE_BYTES + extra_bytes(info)?)?;
        }
        (at == end).then_some(Btf {
            bytes,
            types,
            names,
        })
    }

    /// The field of a structure, by its path: `__sk_common.skc_cookie`. As in C, members of an
    /// unnamed structure or union count as members of the structure around it.
    ///
    /// # Errors
    /// When there is no such field.
    pub fn field(&self, structure: &str, path: &str) -> Result<Field, BtfError> {
        let found = self.structure(structure).and_then(|structure| {
            let mut inside = structure;
            let mut bits = 0u32;
            let mut last = None;
            for name in path.split('.') {
                let member = self.member(inside, name, 0)?;
                bits = bits.checked_add(member.bit)?;
                inside = self.plain(member.kind)?;
                last = Some(member);
            }
            let member = last?;
            let bit_field = (member.width > 0).then_some((bits % 8, member.width));
            Some(Field {
                offset: bits / 8,
                bytes: self.size(member.kind, 0)?,
                bits: bit_field,
            })
        });
        found.ok_or_else(|| BtfError::Missing(format!("{path} in struct {structure}")))
    }

    /// The number of the first structure of that name.
    fn structure(&self, name: &str) -> Option<u32> {
        let numbers = 1..self.types.len() as u32;
        let mut numbers = numbers.filter(|&number| {
            let at = self.types[number as usize];
            let is_structure = word_in(&self.bytes, at + 4).map(kind) == Some(STRUCT);
            is_structure && self.name(at) == Some(name.as_bytes())
        });
        numbers.next()
    }

    /// The member of that name. Its place is counted from the beginning of `structure`.
    fn member(&self, structure: u32, name: &str, depth: usize) -> Option<Member> {
        if depth > DEPTH_MAX {
            return None;
        }
        let at = *self.types.get(structure as usize)?;
        let info = word_in(&self.bytes, at + 4)?;
        if !matches!(kind(info), STRUCT | UNION) {
            return None;
        }
        for number in 0..members(info) {
            let at = at + TYPE_BYTES + number * MEMBER_BYTES;
            let kind = word_in(&self.bytes, at + 4)?;
            let place = word_in(&self.bytes, at + 8)?;
            // In a structure with bit fields the highest byte is the width.
            let (bit, width) = match info & HAS_BIT_FIELDS {
                0 => (place, 0),
                _ => (place & 0xff_ffff, place >> 24),
            };
            let own = self.name(at)?;
            if own == name.as_bytes() {
                return Some(Member { bit, width, kind });
            }
            if own.is_empty() {
                let inside = self.plain(kind)?;
                if let Some(member) = self.member(inside, name, depth + 1) {
                    let bit = bit.checked_add(member.bit)?;
                    return Some(Member { bit, ..member });
                }
            }
        }
        None
    }

    /// The type behind type names (`typedef`) and qualifiers.
    fn plain(&self, mut number: u32) -> Option<u32> {
        for _ in 0..DEPTH_MAX {
            let at = *self.types.get(number as usize)?;
            if number == 0 || !is_qualifier(kind(word_in(&self.bytes, at + 4)?)) {
                return Some(number);
            }
            number = word_in(&self.bytes, at + 8)?;
        }
        None
    }

    fn size(&self, number: u32, depth: usize) -> Option<u32> {
        let number = self.plain(number).filter(|_| depth <= DEPTH_MAX)?;
        let at = *self.types.get(number as usize)?;
        match kind(word_in(&self.bytes, at + 4)?) {
            POINTER => Some(size_of::<usize>() as u32),
            INT | STRUCT | UNION | ENUM | FLOAT | ENUM64 => word_in(&self.bytes, at + 8),
            ARRAY => {
                let element = word_in(&self.bytes, at + TYPE_BYTES)?;
                let count = word_in(&self.bytes, at + TYPE_BYTES + 8)?;
                self.size(element, depth + 1)?.checked_mul(count)
            }
            _ => None,
        }
    }

    /// The name at an offset of the names.
    fn name(&self, at: usize) -> Option<&[u8]> {
        let place = self.names.checked_add(word_in(&self.bytes, at)? as usize)?;
        let name = self.bytes.get(place..)?;
        let end = name.iter().position(|&byte| byte == 0)?;
        name.get(..end)
    }
}

/// A member of a structure: its first bit, its width if it is a bit field, and its type.
#[derive(Clone, Copy)]
struct Member {
    bit: u32,
    width: u32,
    kind: u32,
}

fn word_in(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().expect("four bytes")))
}

fn kind(info: u32) -> u32 {
    info >> 24 & 0x1f
}

fn members(info: u32) -> usize {
    (info & 0xffff) as usize
}

fn is_qualifier(kind: u32) -> bool {
    matches!(
        kind,
        TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG | DECL_TAG
    )
}

/// The number of bytes behind the three words of a type; `None` for an unknown kind.
fn extra_bytes(info: u32) -> Option<usize> {
    let each = |bytes| Some(members(info) * bytes);
    match kind(info) {
        POINTER | FORWARD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNCTION | FLOAT | TYPE_TAG => {
            Some(0)
        }
        INT | VARIABLE | DECL_TAG => Some(4),
        ARRAY => Some(12),
        STRUCT | UNION | SECTION | ENUM64 => each(12),
        ENUM | PROTOTYPE => each(8),
        _ => None,
    }
}

/// The file with the kernel's description.
const PLACE: &str = "/sys/kernel/btf/vmlinux";
/// 0xeb9f, in the machine's byte order.
const MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();
const VERSION: u8 = 1;
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
const HAS_BIT_FIELDS: u32 = 1 << 31;
/// The deepest nesting of structures, or of type names; the kernel's types nest less.
const DEPTH_MAX: usize = 32;

// BTF_KIND_… of include/uapi/linux/btf.h.
const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a description together.
    #[derive(Default)]
    struct Writer {
        types: Vec<u8>,
        names: Vec<u8>,
    }

    impl Writer {
        fn new() -> Writer {
            Writer {
                types: Vec::new(),
                names: vec![0],
            }
        }

        fn word(&mut self, word: u32) {
            self.types.extend(word.to_ne_bytes());
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let place = self.names.len() as u32;
            self.names.extend(name.bytes().chain([0]));
            place
        }

        fn kind(&mut self, name: &str, kind: u32, members: u32, last: u32) {
            let name = self.name(name);
            for word in [name, kind << 24 | members, last] {
                self.word(word);
            }
        }

        fn member(&mut self, name: &str, kind: u32, place: u32) {
            let name = self.name(name);
            for word in [name, kind, place] {
                self.word(word);
            }
        }

        fn finish(self) -> Vec<u8> {
            let mut bytes = [MAGIC[0], MAGIC[1], VERSION, 0].to_vec();
            let (types, names) = (self.types.len() as u32, self.names.len() as u32);
            for word in [24, 0, types, types, names] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(self.types.into_iter().chain(self.names));
            bytes
        }
    }

    /// `struct s { int a; union { struct { int b; int c : 3; }; long d; }; }`, as bytes.
    fn example() -> Vec<u8> {
        let mut w = Writer::new();
        w.kind("int", INT, 0, 4);
        w.word(32);
        w.kind("word", TYPEDEF, 0, 1);
        w.kind("", STRUCT | 0x80, 2, 8);
        w.member("b", 2, 0);
        w.member("c", 1, 3 << 24 | 34);
        w.kind("", UNION, 1, 8);
        w.member("", 3, 0);
        w.kind("s", STRUCT, 3, 32);
        w.member("a", 1, 0);
        w.member("", 4, 64);
        w.member("e", 6, 128);
        w.kind("", ARRAY, 0, 0);
        for word in [7, 1, 2] {
            w.word(word);
        }
        w.kind("", POINTER, 0, 5);
        w.finish()
    }

    #[test]
    fn members_of_what_has_no_name_are_found_where_they_are() {
        let btf = Btf::parse(example()).expect("well formed");
        let field = |path| btf.field("s", path).expect("there");
        let at = |offset, bytes, bits| Field {
            offset,
            bytes,
            bits,
        };
        assert_eq!(field("a"), at(0, 4, None));
        assert_eq!(field("b"), at(8, 4, None));
        assert_eq!(field("c"), at(12, 4, Some((2, 3))));
        assert_eq!(field("e"), at(16, 16, None));
        let missing = btf.field("s", "f").expect_err("not there");
        assert_eq!(missing, BtfError::Missing("f in struct s".into()));
        assert!(btf.field("t", "a").is_err());
        assert!(btf.field("s", "a.b").is_err());
    }

    #[test]
    fn what_is_cut_short_or_changed_is_refused_and_nothing_panics() {
        let whole = example();
        for end in 0..whole.len() {
            if let Ok(btf) = Btf::parse(whole[..end].to_vec()) {
                let _ = btf.field("s", "e");
            }
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                if let Ok(btf) = Btf::parse(changed) {
                    for path in ["a", "b", "c", "e", "b.a"] {
                        let _ = btf.field("s", path);
                    }
                }
            }
        }
    }

    /// The running kernel's description, if it has one. The kernel's interface fixes the places of
    /// these two fields.
    #[test]
    fn the_kernel_s_description_is_read() {
        let btf = match Btf::of_kernel() {
            Err(BtfError::Unreadable(why)) => return println!("SKIPPED: no BTF: {why}"),
            other => other.expect("in the known format"),
        };
        let port = btf.field("sockaddr_in", "sin_port").expect("there");
        assert_eq!((port.offset, port.bytes), (2, 2));
        let header = btf.field("ethhdr", "h_proto").expect("there");
        assert_eq!((header.offset, header.bytes), (12, 2));
        let repair = btf.field("tcp_sock", "repair").expect("there");
        assert_eq!(repair.bits.map(|(_, width)| width), Some(1));
    }
}
