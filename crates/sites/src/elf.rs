//! Finds the code of an ELF file: 64-bit, little-endian, x86-64.
//!
//! Every number in the file is checked against the file's length. An invalid file gives fewer
//! results, but never a panic.

use core::ops::Range;

/// An ELF file.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    bytes: &'a [u8],
}

/// A segment: what the kernel maps, or an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `PT_*`.
    pub kind: u32,
    /// `PF_*`.
    pub flags: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Address in memory, relative to the file's load address.
    pub address: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
}

impl Segment {
    /// Whether it is mapped to be executed.
    #[must_use]
    pub fn is_code(&self) -> bool {
        self.kind == PT_LOAD && self.flags & PF_X != 0
    }
}

/// A section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// `SHT_*`.
    pub kind: u32,
    /// `SHF_*`.
    pub flags: u64,
    /// Address in memory, relative to the file's load address.
    pub address: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Another section that belongs to it.
    pub link: u32,
}

/// `PT_LOAD`.
pub const PT_LOAD: u32 = 1;
/// `PT_DYNAMIC`.
pub const PT_DYNAMIC: u32 = 2;
/// `PT_INTERP`.
const PT_INTERP: u32 = 3;
/// `PT_NOTE`.
pub const PT_NOTE: u32 = 4;
/// `PF_X`.
pub const PF_X: u32 = 1;
/// `PF_W`.
pub const PF_W: u32 = 2;
const SHT_PROGBITS: u32 = 1;
const SHT_DYNSYM: u32 = 11;
const SYMBOL_BYTES: usize = 24;
const SHF_EXECINSTR: u64 = 4;
/// `SHF_MERGE` and `SHF_STRINGS`: `.comment` is not loaded and has no other flag.
const OF_COMMENT: u64 = 0x30;
/// The largest `.comment` section that is read; each compiler writes one line.
const COMMENT_BYTES_MAX: u64 = 4096;

impl<'a> Image<'a> {
    /// `None` unless `bytes` begin like a 64-bit ELF file for x86-64, a program or a library.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Image<'a>> {
        let image = Image { bytes };
        let (executable, shared, x86_64) = (2, 3, 62);
        let is_known = bytes.starts_with(b"\x7fELF\x02\x01")
            && [executable, shared].contains(&image.u16(16)?)
            && image.u16(18)? == x86_64
            && image.u16(54)? == 56;
        is_known.then_some(image)
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The address of the program's first instruction, relative to the load address.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.u64(24).unwrap_or(0)
    }

    /// The address of the program headers in memory, relative to the load address.
    #[must_use]
    pub fn headers_address(&self) -> Option<u64> {
        let offset = self.u64(32)?;
        let mut loaded = self.segments().filter(|segment| segment.kind == PT_LOAD);
        loaded.find_map(|segment| {
            let within = offset.checked_sub(segment.offset)?;
            (within < segment.file_bytes).then_some(segment.address.wrapping_add(within))
        })
    }

    /// True for a program that runs without a dynamic linker, and is no dynamic linker itself.
    #[must_use]
    pub fn stands_alone(&self) -> bool {
        const SHARED: u16 = 3;
        const DT_FLAGS_1: u64 = 0x6fff_fffb;
        const DF_1_PIE: u64 = 0x0800_0000;
        let find = |kind| self.segments().find(|segment| segment.kind == kind);
        if find(PT_INTERP).is_some() {
            return false;
        }
        if self.u16(16) != Some(SHARED) {
            return true;
        }
        // Linkers mark position-independent programs. Dynamic linkers are libraries.
        let dynamic = find(PT_DYNAMIC).and_then(|one| self.range(one.offset, one.file_bytes));
        let mut entries = dynamic.unwrap_or(&[]).chunks_exact(16);
        entries.any(|entry| {
            let (tag, value) = entry.split_at(8);
            let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            number(tag) == DT_FLAGS_1 && number(value) & DF_1_PIE != 0
        })
    }

    /// Its segments.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let image = *self;
        let table = image.u64(32).unwrap_or(0);
        let count = image.u16(56).unwrap_or(0);
        (0..u64::from(count)).map_while(move |n| {
            let at = usize::try_from(table.checked_add(n * 56)?).ok()?;
            Some(Segment {
                kind: image.u32(at)?,
                flags: image.u32(at + 4)?,
                offset: image.u64(at + 8)?,
                address: image.u64(at + 16)?,
                file_bytes: image.u64(at + 32)?,
                memory_bytes: image.u64(at + 40)?,
            })
        })
    }

    /// Its sections, if the section headers were not stripped.
    pub fn sections(&self) -> impl Iterator<Item = Section> + use<'a> {
        let image = *self;
        let table = image.u64(40).unwrap_or(0);
        let size = image.u16(58).unwrap_or(0);
        let count = match (table, size) {
            (1.., 64) => image.u16(60).unwrap_or(0),
            _ => 0,
        };
        (0..u64::from(count)).map_while(move |n| {
            let at = usize::try_from(table.checked_add(n * 64)?).ok()?;
            Some(Section {
                kind: image.u32(at + 4)?,
                flags: image.u64(at + 8)?,
                address: image.u64(at + 16)?,
                offset: image.u64(at + 24)?,
                bytes: image.u64(at + 32)?,
                link: image.u32(at + 40)?,
            })
        })
    }

    /// The address of an exported symbol, relative to the load address.
    #[must_use]
    pub fn symbol(&self, name: &[u8]) -> Option<u64> {
        let symbols = self.sections().find(|section| section.kind == SHT_DYNSYM)?;
        let names = self.sections().nth(symbols.link as usize)?;
        let names = self.range(names.offset, names.bytes)?;
        let table = self.range(symbols.offset, symbols.bytes)?;
        table.chunks_exact(SYMBOL_BYTES).find_map(|symbol| {
            let (at, rest) = symbol.split_first_chunk::<4>()?;
            let its_name = names.get(u32::from_le_bytes(*at) as usize..)?;
            let its_name = its_name.split(|byte| *byte == 0).next()?;
            let value = rest[4..].first_chunk::<8>()?;
            (its_name == name).then(|| u64::from_le_bytes(*value))
        })
    }

    /// The bytes of a range of the file; `None` if the file is shorter.
    #[must_use]
    pub fn range(&self, offset: u64, bytes: u64) -> Option<&'a [u8]> {
        let from = usize::try_from(offset).ok()?;
        let to = usize::try_from(offset.checked_add(bytes)?).ok()?;
        self.bytes.get(from..to)
    }

    /// The parts of a segment that contain instructions, as offsets in the segment: its sections,
    /// or all of it if the section headers were stripped.
    pub fn parts(&self, segment: Segment) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let inside = move |section: Section| {
            let is_code = section.kind == SHT_PROGBITS && section.flags & SHF_EXECINSTR != 0;
            let from = section.address.checked_sub(segment.address)?;
            let to = from.checked_add(section.bytes)?;
            (is_code && to <= segment.file_bytes).then_some(from as usize..to as usize)
        };
        let has_sections = self.sections().filter_map(inside).next().is_some();
        let whole = (!has_sections).then_some(0..segment.file_bytes as usize);
        self.sections().filter_map(inside).chain(whole)
    }

    /// True when Go's linker made the file.
    #[must_use]
    pub fn is_go(&self) -> bool {
        self.segments().any(|segment| {
            let bytes = self.range(segment.offset, segment.file_bytes);
            bytes.is_some_and(|bytes| shows_go(segment.kind, segment.flags, bytes))
        })
    }

    /// True when Rust's compiler made a part of the file: the compiler writes its name to
    /// `.comment`, which `strip` keeps.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        const SIGNATURE: &[u8] = b"rustc version ";
        let is_comment = |section: &Section| {
            (section.kind, section.flags) == (SHT_PROGBITS, OF_COMMENT)
                && section.bytes <= COMMENT_BYTES_MAX
        };
        self.sections().filter(is_comment).any(|section| {
            let bytes = self.range(section.offset, section.bytes).unwrap_or(&[]);
            let mut texts = bytes.split(|byte| *byte == 0);
            texts.any(|text| text.starts_with(SIGNATURE))
        })
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }
}

/// True when the bytes of a segment, in a file or in memory, show that Go's linker made the
/// program. Inline, so that the code is placed in its caller's section.
#[must_use]
#[inline]
pub fn shows_go(kind: u32, flags: u32, bytes: &[u8]) -> bool {
    // `.go.buildinfo` is at the start of a writable segment (debug/buildinfo).
    const MAGIC: &[u8] = b"\xff Go buildinf:";
    const LOOKED_AT: usize = 64 << 10;
    match kind {
        // NT_GO_BUILD_ID (cmd/link/internal/ld/elf.go); external linking keeps it.
        PT_NOTE => note(bytes, b"Go\0\0", 4).is_some(),
        PT_LOAD if flags & PF_W != 0 => {
            let mut chunks = bytes[..bytes.len().min(LOOKED_AT)].chunks(16);
            chunks.any(|chunk| chunk.starts_with(MAGIC))
        }
        _ => false,
    }
}

/// The content of one note in a list of notes.
fn note<'a>(mut rest: &'a [u8], owner: &[u8], kind: u32) -> Option<&'a [u8]> {
    loop {
        let (&name_bytes, after) = rest.split_first_chunk::<4>()?;
        let (&content_bytes, after) = after.split_first_chunk::<4>()?;
        let (&its_kind, after) = after.split_first_chunk::<4>()?;
        let length = |bytes: [u8; 4]| u32::from_le_bytes(bytes) as usize;
        let padded = |bytes: [u8; 4]| length(bytes).checked_next_multiple_of(4);
        let name = after.get(..length(name_bytes))?;
        let after = after.get(padded(name_bytes)?..)?;
        let content = after.get(..length(content_bytes))?;
        if name == owner && u32::from_le_bytes(its_kind) == kind {
            return Some(content);
        }
        rest = after.get(padded(content_bytes)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_program_has_code() {
        let bytes = std::fs::read("/proc/self/exe").expect("readable");
        let image = Image::parse(&bytes).expect("an ELF file");
        let code: usize = image
            .segments()
            .filter(Segment::is_code)
            .flat_map(|segment| image.parts(segment))
            .map(|part| part.len())
            .sum();
        assert!(code > 10_000, "{code} bytes of code");
        assert!(!image.is_go() && image.is_rust());
    }

    #[test]
    fn a_program_of_c_is_none_of_rust() {
        let bytes = std::fs::read("/bin/sh").expect("readable");
        let image = Image::parse(&bytes).expect("an ELF file");
        assert!(!image.is_rust());
    }

    #[test]
    fn a_text_is_no_elf_file() {
        assert!(Image::parse(b"#!/bin/sh\n").is_none());
        assert!(Image::parse(b"\x7fELF\x02\x01").is_none());
    }

    proptest! {
        #[test]
        fn changed_headers_never_panic(
            changes in proptest::collection::vec((0_usize..1024, any::<u8>()), 1..40),
        ) {
            let mut bytes = std::fs::read("/proc/self/exe").expect("readable");
            bytes.truncate(8192);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Some(image) = Image::parse(&bytes) {
                for segment in image.segments() {
                    let _ = image.range(segment.offset, segment.file_bytes);
                    let _ = image.parts(segment).count();
                }
                let _ = image.headers_address();
                let _ = (image.is_go(), image.is_rust());
            }
        }
    }
}
