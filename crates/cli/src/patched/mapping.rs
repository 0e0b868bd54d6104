//! The library in the memory of a program that has no dynamic linker.
//!
//! The kernel maps the library's file for the program. The library relocates itself when it is
//! entered (`toehold_enter`).

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use toehold_sites::elf::{Image, PF_W, PF_X, PT_DYNAMIC, PT_LOAD, Segment};

use super::file::FileBytes;
use super::tracee::Tracee;

/// The library, mapped.
pub(crate) struct Mapped {
    /// The words that the library has for the launcher.
    pub(crate) doors: Doors,
    /// The numbers of the calls that it wants.
    pub(crate) wanted: Vec<u16>,
}

/// `toehold_preload::patched::Doors`, with addresses in the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doors {
    pub(crate) private: u64,
    pub(crate) own: u64,
    pub(crate) area_bytes: u64,
    pub(crate) words_private: u64,
    pub(crate) words_own: u64,
    /// `toehold_enter`.
    pub(crate) enter: u64,
}

const DOORS: &[u8] = b"TOEHOLD_DOORS";
const DOORS_WORDS: usize = 9;
const VERSION: u64 = 1;
const PAGE: u64 = 4096;

/// Maps the library at `path` into the program.
pub(crate) fn map(tracee: &mut Tracee, path: &Path) -> io::Result<Mapped> {
    let bytes = FileBytes::map(&File::open(path)?)?;
    let image =
        Image::parse(bytes.bytes()).ok_or_else(|| bad("it is no library for this processor"))?;
    let loads: Vec<Segment> = image
        .segments()
        .filter(|segment| segment.kind == PT_LOAD)
        .collect();
    let end = loads
        .iter()
        .map(|segment| segment.address + segment.memory_bytes)
        .max();
    let span = end
        .ok_or_else(|| bad("it has no segments"))?
        .next_multiple_of(PAGE);

    // Below the stack pointer there is room for the path; nobody runs yet.
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.push(0);
    let at = (tracee.stack() - 512 - name.len() as u64) & !15;
    tracee.write(at, &name)?;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let open = [libc::AT_FDCWD as i64 as u64, at, flags, 0, 0, 0];
    let file = tracee.call(libc::SYS_openat, open)?;
    let reserve = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let nothing = libc::PROT_NONE as u64;
    let base = tracee.call(libc::SYS_mmap, [0, span, nothing, reserve, u64::MAX, 0])?;
    for segment in &loads {
        map_segment(tracee, file, base, segment)?;
    }
    tracee.call(libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
    let words = doors(&image, &loads)?;
    let wanted = in_memory(&image, &loads, words[3], words[4] * 2)
        .ok_or_else(|| bad("its list of calls is not in it"))?
        .chunks_exact(2)
        .map(|two| u16::from_le_bytes([two[0], two[1]]))
        .collect();
    Ok(Mapped {
        doors: Doors {
            private: base + words[1],
            own: base + words[2],
            area_bytes: words[5],
            words_private: base + words[7],
            words_own: base + words[8],
            enter: base + image.entry(),
        },
        wanted,
    })
}

fn map_segment(tracee: &mut Tracee, file: u64, base: u64, segment: &Segment) -> io::Result<()> {
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
    let arguments = [
        base + start,
        from_file,
        protection,
        fixed as u64,
        file,
        offset,
    ];
    tracee.call(libc::SYS_mmap, arguments)?;
    let in_memory = (segment.memory_bytes + shift).next_multiple_of(PAGE);
    if in_memory > from_file {
        let flags = (fixed | libc::MAP_ANONYMOUS) as u64;
        let rest = [
            base + start + from_file,
            in_memory - from_file,
            protection,
            flags,
            u64::MAX,
            0,
        ];
        tracee.call(libc::SYS_mmap, rest)?;
    }
    if segment.flags & PF_W != 0 {
        // The last page of the file's bytes goes on with bytes of the next segment.
        let tail = from_file - shift - segment.file_bytes;
        if segment.memory_bytes > segment.file_bytes && tail > 0 {
            let zeros = vec![0; tail as usize];
            tracee.write(base + segment.address + segment.file_bytes, &zeros)?;
        }
    }
    Ok(())
}

/// The words of [`DOORS`]. Addresses among them are relative to where the library is mapped: a
/// relocation that needs no symbol has each of them.
fn doors(image: &Image<'_>, loads: &[Segment]) -> io::Result<[u64; DOORS_WORDS]> {
    const DT_RELA: u64 = 7;
    const DT_RELASZ: u64 = 8;
    const DT_RELRSZ: u64 = 35;
    const R_X86_64_RELATIVE: u64 = 8;
    let missing = || bad("it has no doors for patched programs");
    let address = image.symbol(DOORS).ok_or_else(missing)?;
    let bytes = in_memory(image, loads, address, DOORS_WORDS as u64 * 8).ok_or_else(missing)?;
    let mut words: [u64; DOORS_WORDS] = std::array::from_fn(|n| word(bytes, n));
    if words[0] != VERSION {
        return Err(bad("it is of another version than this program"));
    }
    let dynamic = image.segments().find(|segment| segment.kind == PT_DYNAMIC);
    let dynamic = dynamic.and_then(|segment| image.range(segment.offset, segment.file_bytes));
    let dynamic = dynamic.ok_or_else(|| bad("it has no dynamic section"))?;
    let value = |tag: u64| {
        let mut entries = dynamic.chunks_exact(16);
        entries.find_map(|entry| (word(entry, 0) == tag).then(|| word(entry, 1)))
    };
    if value(DT_RELRSZ).is_some_and(|bytes| bytes != 0) {
        return Err(bad("its relocations are packed"));
    }
    let (at, bytes) = (value(DT_RELA).unwrap_or(0), value(DT_RELASZ).unwrap_or(0));
    let table =
        in_memory(image, loads, at, bytes).ok_or_else(|| bad("its relocations are not in it"))?;
    for entry in table.chunks_exact(24) {
        let within = word(entry, 0).wrapping_sub(address);
        if within < DOORS_WORDS as u64 * 8 && word(entry, 1) == R_X86_64_RELATIVE {
            words[within as usize / 8] = word(entry, 2);
        }
    }
    Ok(words)
}

/// The bytes of the file that are at an address when it is mapped.
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

fn bad(why: &str) -> io::Error {
    io::Error::other(format!("the library cannot be used: {why}"))
}
