//! Maps the library into the memory of a program that has no dynamic linker.
//!
//! The kernel maps the library's file for the program. The library relocates itself when it is
//! entered (`toehold_enter`).

use alloc::ffi::CString;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;

use toehold_sites::elf::{Image, PF_W, PF_X, PT_DYNAMIC, PT_LOAD, Segment};

use super::file::{FileBytes, Version};
use super::system::{self, Error, File, Result};
use super::tracee::{Answers, Call, Tracee};

/// The library's file: everything needed before it is mapped.
#[derive(Debug)]
pub(crate) struct Library {
    path: CString,
    version: Version,
    loads: Vec<Segment>,
    /// The words that the library provides for the launcher: `toehold_preload::patched::Doors`.
    words: [u64; DOORS_WORDS],
    /// The numbers of the system calls that the library handles.
    pub(crate) wanted: Vec<u16>,
    entry: u64,
}

/// `toehold_preload::patched::Doors`, with addresses in the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doors {
    pub(crate) private: u64,
    pub(crate) own: u64,
    pub(crate) words_private: u64,
    pub(crate) words_own: u64,
    /// `toehold_enter`.
    pub(crate) enter: u64,
}

const DOORS: &[u8] = b"TOEHOLD_DOORS";
const DOORS_WORDS: usize = 9;
const VERSION: u64 = 1;
const PAGE: u64 = 4096;

impl Library {
    /// Reads the library at `path`.
    pub(crate) fn read(path: &CStr) -> Result<Library> {
        let file = File::open(path, libc::O_RDONLY)?;
        let version = Version::of(&file.status()?);
        let bytes = FileBytes::map(&file, version.bytes())?;
        let image = Image::parse(bytes.bytes())
            .ok_or_else(|| bad("the library cannot be used: it is for another processor"))?;
        let loads: Vec<Segment> = image
            .segments()
            .filter(|segment| segment.kind == PT_LOAD)
            .collect();
        if loads.is_empty() {
            return Err(bad("the library cannot be used: it has no segments"));
        }
        let words = doors(&image, &loads)?;
        let wanted = in_memory(&image, &loads, words[3], words[4] * 2)
            .ok_or_else(|| bad("the library cannot be used: its list of calls is not in it"))?
            .chunks_exact(2)
            .map(|two| u16::from_le_bytes([two[0], two[1]]))
            .collect();
        Ok(Library {
            path: path.into(),
            version,
            loads,
            words,
            wanted,
            entry: image.entry(),
        })
    }

    /// True while the file has not changed.
    pub(crate) fn is_current(&self) -> bool {
        let now = system::status(libc::AT_FDCWD, &self.path, 0);
        now.is_ok_and(|now| Version::of(&now) == self.version)
    }

    /// The calls that map the library. Its path is written to the program's memory at `at`.
    pub(crate) fn calls(&self, tracee: &Tracee, at: u64) -> Result<Vec<Call>> {
        tracee.write(at, self.path.as_bytes_with_nul())?;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let open = [libc::AT_FDCWD as i64 as u64, at, flags, 0, 0, 0];
        let reserve = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let nothing = [0, self.span(), libc::PROT_NONE as u64, reserve, u64::MAX, 0];
        let mut calls = vec![
            Call::new(libc::SYS_openat, open).with(Call::FILE),
            Call::new(libc::SYS_mmap, nothing).with(Call::ADDRESS),
        ];
        for segment in &self.loads {
            calls.extend(segment_calls(segment));
        }
        calls.push(Call::new(libc::SYS_close, [0; 6]).with(Call::ON_FILE));
        Ok(calls)
    }

    /// The calls that undo the effects of [`Library::calls`]: memory at `address`, and an open
    /// `file`. Each may be [`Answers::NONE`].
    pub(crate) fn undo(&self, address: u64, file: u64) -> Vec<Call> {
        let is_made = |answer: &u64| *answer != Answers::NONE;
        let unmap = |at| Call::new(libc::SYS_munmap, [at, self.span(), 0, 0, 0, 0]);
        let close = |file| Call::new(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        let memory = Some(address).filter(is_made).map(unmap);
        // Closed last: this fails if the file was closed already.
        let file = Some(file).filter(is_made).map(close);
        memory.into_iter().chain(file).collect()
    }

    /// The size of its address range.
    fn span(&self) -> u64 {
        let ends = self
            .loads
            .iter()
            .map(|segment| segment.address + segment.memory_bytes);
        ends.max().unwrap_or(0).next_multiple_of(PAGE)
    }

    /// The library is mapped at `base`: clears the rest of the last page of each segment, where the
    /// mapped file has bytes of the next segment instead of zeros.
    pub(crate) fn clear_ends(&self, tracee: &Tracee, base: u64) -> Result<()> {
        for segment in &self.loads {
            let end = segment.address + segment.file_bytes;
            let tail = end.next_multiple_of(PAGE) - end;
            let has_zeros = segment.memory_bytes > segment.file_bytes;
            if segment.flags & PF_W != 0 && has_zeros && tail > 0 {
                tracee.write(base + end, &vec![0; tail as usize])?;
            }
        }
        Ok(())
    }

    /// The size of a thread's area.
    pub(crate) fn area_bytes(&self) -> u64 {
        self.words[5]
    }

    /// The library's words, if it is mapped at `base`.
    pub(crate) fn doors(&self, base: u64) -> Doors {
        Doors {
            private: base + self.words[1],
            own: base + self.words[2],
            words_private: base + self.words[7],
            words_own: base + self.words[8],
            enter: base + self.entry,
        }
    }
}

/// The calls that map a segment.
fn segment_calls(segment: &Segment) -> impl Iterator<Item = Call> {
    let start = segment.address & !(PAGE - 1);
    let shift = segment.address - start;
    let mut protection = libc::PROT_READ;
    if segment.flags & PF_W != 0 {
        protection |= libc::PROT_WRITE;
    }
    if segment.flags & PF_X != 0 {
        protection |= libc::PROT_EXEC;
    }
    let (protection, fixed) = (protection as u64, libc::MAP_PRIVATE | libc::MAP_FIXED);
    let from_file = (segment.file_bytes + shift).next_multiple_of(PAGE);
    let offset = segment.offset - shift;
    let arguments = [start, from_file, protection, fixed as u64, 0, offset];
    let file = Call::new(libc::SYS_mmap, arguments).with(Call::WITHIN | Call::OF_FILE);
    let in_memory = (segment.memory_bytes + shift).next_multiple_of(PAGE);
    let rest = (in_memory > from_file).then(|| {
        let flags = (fixed | libc::MAP_ANONYMOUS) as u64;
        let (start, bytes) = (start + from_file, in_memory - from_file);
        let arguments = [start, bytes, protection, flags, u64::MAX, 0];
        Call::new(libc::SYS_mmap, arguments).with(Call::WITHIN)
    });
    [file].into_iter().chain(rest)
}

/// The words of [`DOORS`]. Addresses among them are relative to the base of the library: each has a
/// relocation without a symbol.
fn doors(image: &Image<'_>, loads: &[Segment]) -> Result<[u64; DOORS_WORDS]> {
    const DT_RELA: u64 = 7;
    const DT_RELASZ: u64 = 8;
    const DT_RELRSZ: u64 = 35;
    const R_X86_64_RELATIVE: u64 = 8;
    let missing = || bad("the library cannot be used: it has no entry points for patched programs");
    let address = image.symbol(DOORS).ok_or_else(missing)?;
    let bytes = in_memory(image, loads, address, DOORS_WORDS as u64 * 8).ok_or_else(missing)?;
    let mut words: [u64; DOORS_WORDS] = core::array::from_fn(|n| word(bytes, n));
    if words[0] != VERSION {
        return Err(bad(
            "the library cannot be used: it is of another version than this program",
        ));
    }
    let dynamic = image.segments().find(|segment| segment.kind == PT_DYNAMIC);
    let dynamic = dynamic.and_then(|segment| image.range(segment.offset, segment.file_bytes));
    let dynamic =
        dynamic.ok_or_else(|| bad("the library cannot be used: it has no dynamic section"))?;
    let value = |tag: u64| {
        let mut entries = dynamic.chunks_exact(16);
        entries.find_map(|entry| (word(entry, 0) == tag).then(|| word(entry, 1)))
    };
    if value(DT_RELRSZ).is_some_and(|bytes| bytes != 0) {
        return Err(bad(
            "the library cannot be used: its relocations are packed",
        ));
    }
    let (at, bytes) = (value(DT_RELA).unwrap_or(0), value(DT_RELASZ).unwrap_or(0));
    let table = in_memory(image, loads, at, bytes)
        .ok_or_else(|| bad("the library cannot be used: its relocations are not in it"))?;
    for entry in table.chunks_exact(24) {
        let within = word(entry, 0).wrapping_sub(address);
        if within < DOORS_WORDS as u64 * 8 && word(entry, 1) == R_X86_64_RELATIVE {
            words[within as usize / 8] = word(entry, 2);
        }
    }
    Ok(words)
}

/// The bytes of the file that are at an address once the file is mapped.
fn in_memory<'a>(
    image: &Image<'a>,
    loads: &[Segment],
    address: u64,
    bytes: u64,
) -> Option<&'a [u8]> {
    loads.iter().find_map(|segment| {
        let at = address.checked_sub(segment.address)?;
        let is_inside = at.checked_add(bytes)? <= segment.file_bytes;
        is_inside.then(|| image.range(segment.offset + at, bytes))?
    })
}

fn word(bytes: &[u8], n: usize) -> u64 {
    u64::from_le_bytes(bytes[n * 8..][..8].try_into().expect("eight bytes"))
}

fn bad(why: &'static str) -> Error {
    Error::Failed(why)
}
