//! Finds and patches the sites of a program that is stopped at its exec.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use toehold_sites::elf::{Image, PF_X, PT_LOAD, Segment};
use toehold_sites::plan::{Patch, plan};
use toehold_sites::stub::{Addresses, Overwrite, STUB_BYTES_MAX, TABLE_BYTES, overwrites, stub};
use toehold_sites::sweep::{Bits, Swept, words};

use super::Refusal;
use super::file::{self, FileBytes};
use super::mapping::{self, Mapped};
use super::tracee::Tracee;

/// Puts the library into the program and lets it go, patched or not.
pub(crate) fn enter(mut tracee: Tracee, library: &Path) -> Result<(), Refusal> {
    let result = prepare(&mut tracee, library);
    tracee.release().map_err(Refusal::Failed)?;
    result
}

fn prepare(tracee: &mut Tracee, library: &Path) -> Result<(), Refusal> {
    let failed = Refusal::Failed;
    let process = tracee.process();
    let file = File::open(format!("/proc/{process}/exe")).map_err(failed)?;
    let program = FileBytes::map(&file).map_err(failed)?;
    let Plan { image, base, codes } = Plan::of(&program, process)?;
    let is_private = image.is_go();
    let sites: usize = codes.iter().map(|code| code.patches.len()).sum();
    let mapped = mapping::map(tracee, library).map_err(failed)?;
    let bytes = (TABLE_BYTES + sites * STUB_BYTES_MAX).next_multiple_of(4096) as u64;
    let span = span(&image, base);
    let place = gap(process, span, bytes).map_err(failed)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let arguments = [place, bytes, protection as u64, flags as u64, u64::MAX, 0];
    tracee.call(libc::SYS_mmap, arguments).map_err(failed)?;
    let writes = write_stubs(tracee, &codes, &mapped, is_private, base, place).map_err(failed)?;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let arguments = [place, bytes, protection as u64, 0, 0, 0];
    tracee.call(libc::SYS_mprotect, arguments).map_err(failed)?;
    if is_private {
        let area = first_area(tracee, mapped.doors.area_bytes).map_err(failed)?;
        tracee.set_gs_base(area);
    }
    if !start(tracee, &mapped, is_private).map_err(failed)? {
        return Err(Refusal::NotWanted);
    }
    // From here on the program is patched. The first write tells whether this kernel allows it.
    for (address, overwrite) in writes {
        tracee.write(address, overwrite.bytes()).map_err(failed)?;
    }
    Ok(())
}

/// Why the program of a process cannot be patched, if its file or the kernel tells.
pub(crate) fn obstacle(process: libc::pid_t) -> Option<Refusal> {
    let file = File::open(format!("/proc/{process}/exe")).ok()?;
    let program = FileBytes::map(&file).ok()?;
    Plan::of(&program, process).err()
}

/// The patches of a program.
struct Plan<'a> {
    image: Image<'a>,
    /// The distance of its addresses from those in its file.
    base: u64,
    /// Its code. At least one site can be patched.
    codes: Vec<Code<'a>>,
}

impl<'a> Plan<'a> {
    fn of(program: &'a FileBytes, process: libc::pid_t) -> Result<Plan<'a>, Refusal> {
        let failed = |why| Refusal::Failed(io::Error::other(why));
        let image = Image::parse(program.bytes())
            .ok_or_else(|| failed("it is no program for this processor"))?;
        if !image.stands_alone() {
            return Err(Refusal::NotAlone);
        }
        let auxiliary = Auxiliary::of(process).map_err(Refusal::Failed)?;
        if auxiliary.value(AT_HWCAP2).unwrap_or(0) & HWCAP2_FSGSBASE == 0 {
            return Err(Refusal::NoGs);
        }
        let headers = image.headers_address().zip(auxiliary.value(libc::AT_PHDR));
        let (in_file, in_memory) =
            headers.ok_or_else(|| failed("its program headers are not in memory"))?;
        let codes: Vec<Code<'_>> = image
            .segments()
            .filter_map(|segment| Code::of(&image, segment))
            .collect();
        if codes.iter().all(|code| code.patches.is_empty()) {
            return Err(Refusal::NoSites);
        }
        Ok(Plan {
            image,
            base: in_memory.wrapping_sub(in_file),
            codes,
        })
    }
}

/// Starts the library; false when it will not serve this program.
fn start(tracee: &mut Tracee, mapped: &Mapped, is_private: bool) -> io::Result<bool> {
    let words = if is_private {
        mapped.doors.words_private
    } else {
        mapped.doors.words_own
    };
    // `toehold_preload::door::Settings`: its size, flags, the environment, words.
    let settings = [32, 0, tracee.environment()?, words];
    let bytes: Vec<u8> = settings
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let at = (tracee.stack() - 1024) & !15;
    tracee.write(at, &bytes)?;
    match tracee.call_function(mapped.doors.enter, at)? {
        1 => Ok(true),
        0 => Ok(false),
        error => Err(io::Error::from_raw_os_error(-error as i32)),
    }
}

/// A segment of code with the patches of its sites.
struct Code<'a> {
    address: u64,
    bytes: &'a [u8],
    patches: Vec<Patch>,
}

impl<'a> Code<'a> {
    fn of(image: &Image<'a>, segment: Segment) -> Option<Code<'a>> {
        if segment.kind != PT_LOAD || segment.flags & PF_X == 0 {
            return None;
        }
        let bytes = image.range(segment.offset, segment.file_bytes)?;
        file::will_read(bytes);
        let mut starts = vec![0; words(bytes.len())];
        let mut targets = vec![0; words(bytes.len())];
        let bits = Bits {
            starts: &mut starts,
            targets: &mut targets,
        };
        let mut swept = Swept::new(bytes, bits);
        let mut sites = Vec::new();
        for part in image.parts(segment) {
            swept.search(part, |site| sites.push(site));
        }
        // Sections of a strange file may overlap, or stand in any order.
        sites.sort_unstable();
        sites.dedup();
        swept.search_branches(&sites);
        let mut patches = Vec::new();
        for site in sites {
            patches.extend(plan(&swept, site, &patches));
        }
        Some(Code {
            address: segment.address,
            bytes,
            patches,
        })
    }
}

/// Writes the table and the stubs at `place`; returns what is to be written over the code, and
/// where.
fn write_stubs(
    tracee: &Tracee,
    codes: &[Code<'_>],
    mapped: &Mapped,
    is_private: bool,
    base: u64,
    place: u64,
) -> io::Result<Vec<(u64, Overwrite)>> {
    let out_of_reach = |_| io::Error::other("there is no room near its code");
    let entry = if is_private {
        mapped.doors.private
    } else {
        mapped.doors.own
    };
    let mut at = place + TABLE_BYTES as u64;
    let mut stubs = Vec::new();
    let mut writes = Vec::new();
    for code in codes {
        for patch in &code.patches {
            let addresses = Addresses {
                code: base.wrapping_add(code.address),
                stub: at,
                table: place,
                entry,
            };
            let mut bytes = [0xcc; STUB_BYTES_MAX];
            stub(patch, code.bytes, &addresses, &mut bytes).map_err(out_of_reach)?;
            stubs.extend_from_slice(&bytes);
            let overwritten = overwrites(patch, &addresses).map_err(out_of_reach)?;
            for overwrite in overwritten.into_iter().flatten() {
                writes.push((addresses.code + overwrite.at as u64, overwrite));
            }
            at += STUB_BYTES_MAX as u64;
        }
    }
    tracee.write(place + TABLE_BYTES as u64, &stubs)?;
    // Only the beginning of the table has other values than 0.
    let highest = mapped
        .wanted
        .iter()
        .max()
        .map_or(0, |number| usize::from(*number) + 1);
    let mut table = vec![0; highest];
    for number in &mapped.wanted {
        table[usize::from(*number)] = 1;
    }
    tracee.write(place, &table)?;
    Ok(writes)
}

/// The area of the first thread (`toehold_preload::patched::area::Area`).
fn first_area(tracee: &mut Tracee, bytes: u64) -> io::Result<u64> {
    const RESERVED_BYTES: u64 = 64 << 10;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let arguments = [0, bytes, protection as u64, flags as u64, u64::MAX, 0];
    let area = tracee.call(libc::SYS_mmap, arguments)?;
    let thread = tracee.process() as u64;
    // The stack's end, FS, the lowest frame, itself, the thread.
    let words = [area + bytes, 0, area + RESERVED_BYTES, area, thread];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    tracee.write(area, &bytes)?;
    Ok(area)
}

/// The addresses from the first to the last byte of the program.
fn span(image: &Image<'_>, base: u64) -> (u64, u64) {
    let loads = image.segments().filter(|segment| segment.kind == PT_LOAD);
    let ends = loads.map(|segment| {
        let from = base.wrapping_add(segment.address);
        (from, from.wrapping_add(segment.memory_bytes))
    });
    ends.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))
        .unwrap_or((0, 0))
}

/// A place for `bytes` within the reach of a jump: below the program if there is room, else as far
/// above it that its heap can grow.
fn gap(process: libc::pid_t, (from, to): (u64, u64), bytes: u64) -> io::Result<u64> {
    const LOWEST: u64 = 64 << 10;
    const DISTANCE: u64 = 64 << 10;
    const REACH: u64 = (2 << 30) - (16 << 20);
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    let used: Vec<(u64, u64)> = maps
        .lines()
        .filter_map(|line| {
            let (from, rest) = line.split_once('-')?;
            let to = rest.split_once(' ')?.0;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(from)?, number(to)?))
        })
        .collect();
    let is_free = |at: u64| {
        at >= LOWEST
            && used
                .iter()
                .all(|&(from, to)| at + bytes <= from || to <= at)
    };
    let page = |address: u64| address & !4095;
    let below = from.checked_sub(bytes + DISTANCE).map(page);
    let above = (1..=7).map(|n| page(to + (n << 28)));
    below
        .into_iter()
        .chain(above.rev())
        .filter(|at| to.abs_diff(*at) < REACH && from.abs_diff(at + bytes) < REACH)
        .find(|at| is_free(*at))
        .ok_or_else(|| io::Error::other("there is no room near its code"))
}

const AT_HWCAP2: u64 = 26;
const HWCAP2_FSGSBASE: u64 = 2;

/// The words that the kernel gives to a program at its start.
struct Auxiliary(Vec<u8>);

impl Auxiliary {
    fn of(process: libc::pid_t) -> io::Result<Auxiliary> {
        fs::read(format!("/proc/{process}/auxv")).map(Auxiliary)
    }

    fn value(&self, key: u64) -> Option<u64> {
        self.0.chunks_exact(16).find_map(|entry| {
            let word = |n: usize| u64::from_le_bytes(entry[n..n + 8].try_into().expect("eight"));
            (word(0) == key).then(|| word(8))
        })
    }
}
