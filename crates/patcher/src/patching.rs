//! Finds and patches the sites of a program that is stopped at its exec.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;

use toehold_sites::elf::{Image, PT_LOAD, Segment};
use toehold_sites::guarded::is_guarded;
use toehold_sites::plan::{Patch, leaves_sockets, plan};
use toehold_sites::rewrite::{self, by_page};
use toehold_sites::stub::{Addresses, Overwrite, STUB_BYTES_MAX, TABLE_BYTES, overwrites, stub};
use toehold_sites::sweep::{Bits, Swept, words};

use super::file::{self, FileBytes, Version};
use super::mapping::Library;
use super::parting;
use super::plans::Plans;
use super::room;
use super::system::{self, Error, File, Result};
use super::tracee::{CALL_BYTES, Call, RESERVED_BYTES, Tracee, calls_code_bytes};
use super::{Refusal, Task};

/// The part of the work that needs no stopped program. It is done while the kernel executes the
/// program, on another processor if there is one.
#[derive(Debug)]
pub(crate) struct Ahead {
    library: Option<Library>,
    program: Option<Program>,
}

impl Ahead {
    /// Prepares the library, and the program that is most likely to be executed.
    pub(crate) fn of(task: &Task<'_>) -> Ahead {
        let open = |path| File::open(path, libc::O_RDONLY | libc::O_NOCTTY | libc::O_NONBLOCK).ok();
        let program = task.program.and_then(open);
        Ahead {
            library: Library::read(task.library).ok(),
            program: program.and_then(|file| Program::of(&file, plans(task)).ok()),
        }
    }
}

/// The stored plans of this user.
fn plans(task: &Task<'_>) -> Option<Plans> {
    Plans::of_user(task.runtime_directory, task.library).ok()
}

/// Puts the library into the program, and lets the program run, patched or not.
pub(crate) fn enter(mut tracee: Tracee, task: &Task<'_>, ahead: Ahead) -> Result<(), Refusal> {
    let result = prepare(&mut tracee, task, ahead);
    if tracee.has_ended() {
        return Err(Refusal::Ended);
    }
    tracee.release().map_err(Refusal::Lost)?;
    result?.keep_plan();
    Ok(())
}

/// Puts the library into the program and patches it.
fn prepare(tracee: &mut Tracee, task: &Task<'_>, ahead: Ahead) -> Result<Program, Refusal> {
    let failed = Refusal::Failed;
    let process = tracee.process();
    let file = File::of_process(process, c"exe", libc::O_RDONLY).map_err(failed)?;
    let version = Version::of(&file.status().map_err(failed)?);
    let program = match ahead.program {
        Some(program) if program.version == version => program,
        _ => Program::of(&file, plans(task))?,
    };
    let library = match ahead.library {
        Some(library) if library.is_current() => library,
        _ => Library::read(task.library).map_err(failed)?,
    };
    let auxiliary = Auxiliary::of(process).map_err(failed)?;
    let base = program.base(&auxiliary)?;
    let behind_code = program.room.map(|at| base.wrapping_add(at));
    let read = |at, bytes: &mut [u8]| tracee.read(at, bytes);
    let room = room::find(behind_code, auxiliary.vdso(), calls_code_bytes(), read);
    if let Some(room) = room {
        tracee.set_room(room);
    }
    let stubs_bytes = TABLE_BYTES + program.sites() * STUB_BYTES_MAX;
    let bytes = (stubs_bytes + parting::code().len()).next_multiple_of(4096) as u64;
    let (from, to) = program.span;
    let span = (base.wrapping_add(from), base.wrapping_add(to));
    let place = gap(process, span, bytes).map_err(failed)?;
    let doors = map(tracee, &library, program.is_go, (place, bytes))?;
    let stubs = Stubs {
        base,
        place,
        entry: doors.entry,
        wanted: &library.wanted,
    };
    let writes = start(tracee, &doors, |tracee| stubs.write(tracee, &program))?;
    tracee.end_calls().map_err(failed)?;
    write_all_or_none(&writes, |address, bytes| tracee.write(address, bytes))?;
    if let Some(helper) = parting::child_of(process) {
        tracee.begin_with(place + stubs_bytes as u64, helper);
    }
    Ok(program)
}

/// The addresses at which a program enters the library.
struct Entry {
    /// The entry for stubs.
    entry: u64,
    /// The entry at the program's start, and its settings.
    enter: u64,
    settings: u64,
}

/// Maps the library, memory of a given length and place for stubs, and for a Go program the area of
/// its first thread. The memory below the stack pointer is free, because the program has not run
/// yet.
fn map(
    tracee: &mut Tracee,
    library: &Library,
    is_go: bool,
    (place, bytes): (u64, u64),
) -> Result<Entry, Refusal> {
    let failed = Refusal::Failed;
    let at = (tracee.stack() - CALLS_BELOW) & !15;
    let path_at = (tracee.stack() - PATH_BELOW) & !15;
    // Before the library: the kernel might put the library at the stubs' place.
    let mut calls = stub_calls(place, bytes).to_vec();
    calls.extend(library.calls(tracee, path_at).map_err(failed)?);
    if is_go {
        calls.push(area_call(library.area_bytes()));
    }
    if calls.len() > CALLS_MAX {
        return Err(failed(Error::Failed("the library has too many segments")));
    }
    let answers = tracee.call_all(&calls, at).map_err(failed)?;
    if let Err(error) = answers.outcome {
        // Gives the program's memory and descriptors back, as far as the kernel allows that.
        let mut undo = Vec::new();
        if answers.made > 0 {
            undo.push(Call::new(libc::SYS_munmap, [place, bytes, 0, 0, 0, 0]));
        }
        undo.extend(library.undo(answers.address, answers.file));
        tracee.call_all(&undo, at).map_err(failed)?;
        return Err(failed(error));
    }
    library
        .clear_ends(tracee, answers.address)
        .map_err(failed)?;
    let doors = library.doors(answers.address);
    let (entry, words) = if is_go {
        let area = answers.area;
        write_area(tracee, area, library.area_bytes()).map_err(failed)?;
        tracee.set_gs_base(area);
        (doors.private, doors.words_private)
    } else {
        (doors.own, doors.words_own)
    };
    write_settings(tracee, at, words).map_err(failed)?;
    Ok(Entry {
        entry,
        enter: doors.enter,
        settings: at,
    })
}

/// Starts the library in the program. Returns the answer of `meanwhile`.
fn start<T>(
    tracee: &mut Tracee,
    entry: &Entry,
    meanwhile: impl FnOnce(&Tracee) -> Result<T>,
) -> Result<T, Refusal> {
    let called = tracee.call_function(entry.enter, entry.settings, meanwhile);
    let (started, other) = called.map_err(Refusal::Failed)?;
    match started {
        1 => other.map_err(Refusal::Failed),
        0 => Err(Refusal::NotWanted),
        error => Err(Refusal::Failed(Error::Kernel(-error as i32))),
    }
}

/// Bytes of the program's code, or of the table.
#[derive(Debug)]
struct Rewrite {
    /// Their address in the program.
    address: u64,
    /// The original bytes.
    code: Vec<u8>,
    /// The bytes with the patches.
    patched: Vec<u8>,
}

/// Writes the patches, and then the table. If only some sites of a program were patched, the
/// library would see only some of its calls. So all patches are undone when one cannot be written.
/// The first write shows whether this kernel allows writing. If this process is killed before the
/// last write, the patched sites pass all calls on.
fn write_all_or_none(
    all: &[Rewrite],
    mut write: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<(), Refusal> {
    for (n, one) in all.iter().enumerate() {
        if let Err(error) = write(one.address, &one.patched) {
            // Nothing may have been written here, or nothing can be written.
            let _ = write(one.address, &one.code);
            for before in all[..n].iter().rev() {
                write(before.address, &before.code).map_err(Refusal::Failed)?;
            }
            return Err(Refusal::Failed(error));
        }
    }
    Ok(())
}

/// The distance below the stack pointer at which lists are placed.
const CALLS_BELOW: u64 = 2048;
/// The most calls for which there is room, with the mark of the list's end.
const CALLS_MAX: usize = CALLS_BELOW as usize / CALL_BYTES - 1;
const _: () = assert!((CALLS_MAX * CALL_BYTES) as u64 + 8 + RESERVED_BYTES <= CALLS_BELOW);
/// The distance below the stack pointer at which the library's path is placed.
const PATH_BELOW: u64 = CALLS_BELOW + libc::PATH_MAX as u64;

/// The reason why the program of a process cannot be patched, as far as its file or the kernel
/// tells.
#[must_use]
pub fn obstacle(process: libc::pid_t) -> Option<Refusal> {
    let file = File::of_process(process, c"exe", libc::O_RDONLY).ok()?;
    let program = Program::of(&file, None);
    let auxiliary = Auxiliary::of(process).map_err(Refusal::Failed);
    program.and_then(|program| program.base(&auxiliary?)).err()
}

/// A program's file, and its patches.
#[derive(Debug)]
struct Program {
    version: Version,
    bytes: FileBytes,
    is_go: bool,
    /// The address of its program headers in the file.
    headers_address: u64,
    /// The first and the last address in the file.
    span: (u64, u64),
    /// An address in the file with room for the code of calls.
    room: Option<u64>,
    /// Its code segments. At least one site can be patched.
    codes: Vec<Code>,
    /// Where to store the patches for the next start, unless they came from there.
    plans: Option<Plans>,
}

impl Program {
    /// Uses the stored patches of `plans`, or searches for patches.
    fn of(file: &File, mut plans: Option<Plans>) -> Result<Program, Refusal> {
        let failed = |why: &'static str| Refusal::Failed(Error::Failed(why));
        let version = Version::of(&file.status().map_err(Refusal::Failed)?);
        let bytes = FileBytes::map(file, version.bytes()).map_err(Refusal::Failed)?;
        let image = Image::parse(bytes.bytes())
            .ok_or_else(|| failed("it is a program for another processor"))?;
        if !image.stands_alone() {
            return Err(Refusal::NotAlone);
        }
        let headers_address = image
            .headers_address()
            .ok_or_else(|| failed("its program headers are not in memory"))?;
        let known = plans
            .as_ref()
            .and_then(|plans| Code::known(&image, plans, version));
        let codes = match known {
            Some(codes) => {
                plans = None;
                codes
            }
            None => code_segments(&image)
                .map(|(segment, bytes)| Code::of(&image, segment, bytes))
                .collect::<Result<_, _>>()?,
        };
        if codes.iter().all(|code| code.patches.is_empty()) {
            return Err(Refusal::NoSites);
        }
        let (is_go, span) = (image.is_go(), span(&image));
        let room = room::behind_code(&image, calls_code_bytes());
        Ok(Program {
            version,
            bytes,
            is_go,
            headers_address,
            span,
            room,
            codes,
            plans,
        })
    }

    /// Stores the plan for the next start, if it is new. The program runs meanwhile and does not
    /// depend on this.
    fn keep_plan(&self) {
        let Some(plans) = &self.plans else { return };
        // Under a file size limit (RLIMIT_FSIZE), a signal must not end the helper.
        system::set_action(libc::SIGXFSZ, libc::SIG_IGN);
        let patches: Vec<&[Patch]> = self.codes.iter().map(|code| &code.patches[..]).collect();
        let _ = plans.keep(system::seconds(), self.version, &patches);
    }

    /// The offset of the program's addresses in a process from those in its file.
    fn base(&self, auxiliary: &Auxiliary) -> Result<u64, Refusal> {
        if auxiliary.value(AT_HWCAP2).unwrap_or(0) & HWCAP2_FSGSBASE == 0 {
            return Err(Refusal::NoGs);
        }
        let in_memory = auxiliary
            .value(libc::AT_PHDR)
            .ok_or(Refusal::Failed(Error::Failed(
                "its program headers are not in memory",
            )))?;
        Ok(in_memory.wrapping_sub(self.headers_address))
    }

    fn sites(&self) -> usize {
        self.codes.iter().map(|code| code.patches.len()).sum()
    }
}

/// A segment of code with the patches of its sites.
#[derive(Debug)]
struct Code {
    segment: Segment,
    patches: Vec<Patch>,
}

/// The segments of a file that hold code, with their bytes.
fn code_segments<'a>(image: &Image<'a>) -> impl Iterator<Item = (Segment, &'a [u8])> {
    let segments = image.segments().filter(Segment::is_code);
    let image = *image;
    segments.filter_map(move |segment| {
        let bytes = image.range(segment.offset, segment.file_bytes)?;
        Some((segment, bytes))
    })
}

impl Code {
    /// The whole program with the stored patches of an earlier start.
    fn known(image: &Image<'_>, plans: &Plans, version: Version) -> Option<Vec<Code>> {
        let (segments, bytes): (Vec<_>, Vec<_>) = code_segments(image).unzip();
        let all = plans.find(version, &bytes).ok()?;
        let codes = segments.into_iter().zip(all);
        let code = |(segment, patches)| Code { segment, patches };
        Some(codes.map(code).collect())
    }

    /// A segment, with the patches that a search finds.
    fn of(image: &Image<'_>, segment: Segment, bytes: &[u8]) -> Result<Code, Refusal> {
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
        // Sections of an unusual file may overlap, or be in any order.
        sites.sort_unstable();
        sites.dedup();
        if sites.iter().any(|site| is_guarded(bytes, *site)) {
            return Err(Refusal::Guarded);
        }
        swept.search_branches(&sites);
        let mut patches = Vec::new();
        for site in sites {
            match plan(&swept, site, &patches) {
                Ok(patch) => patches.push(patch),
                Err(obstacle) if leaves_sockets(obstacle, bytes, site) => {
                    return Err(Refusal::NoRoom);
                }
                Err(_) => {}
            }
        }
        Ok(Code { segment, patches })
    }

    /// The segment's bytes in the program's file.
    fn bytes<'a>(&self, file: &'a FileBytes) -> &'a [u8] {
        &file.bytes()[self.segment.offset as usize..][..self.segment.file_bytes as usize]
    }
}

/// The place of stubs and their targets.
struct Stubs<'a> {
    /// The offset of the program's addresses from those in its file.
    base: u64,
    /// The table's address. The stubs follow it.
    place: u64,
    /// The address at which stubs enter the library.
    entry: u64,
    /// The numbers of the calls that the library handles.
    wanted: &'a [u16],
}

impl Stubs<'_> {
    /// Writes the stubs; returns the bytes to write over the code, and then over the table.
    fn write(&self, tracee: &Tracee, program: &Program) -> Result<Vec<Rewrite>> {
        let out_of_reach = |_| Error::Failed("there is no room near its code");
        let mut at = self.place + TABLE_BYTES as u64;
        let mut stubs = Vec::new();
        let mut writes = Vec::new();
        for code in &program.codes {
            let code_bytes = code.bytes(&program.bytes);
            let address = self.base.wrapping_add(code.segment.address);
            let (mut overwritten, mut before) = (Vec::new(), Vec::new());
            for patch in &code.patches {
                let addresses = Addresses {
                    code: address,
                    stub: at,
                    table: self.place,
                    entry: self.entry,
                };
                let mut bytes = [0xcc; STUB_BYTES_MAX];
                stub(patch, code_bytes, &addresses, &mut bytes).map_err(out_of_reach)?;
                stubs.extend_from_slice(&bytes);
                let both = overwrites(patch, &addresses).map_err(out_of_reach)?;
                before.extend(both[0].filter(|_| is_hop_to_another_page(&both, address)));
                overwritten.extend(both.into_iter().flatten());
                at += STUB_BYTES_MAX as u64;
            }
            let rewrite = |overwrites: &[Overwrite]| {
                let rewrite = rewrite::Rewrite::of(code_bytes, overwrites);
                Rewrite {
                    address: address + rewrite.place().start as u64,
                    code: code_bytes[rewrite.place()].to_vec(),
                    patched: rewrite.bytes().to_vec(),
                }
            };
            writes.extend(
                before
                    .iter()
                    .map(|padding| rewrite(core::slice::from_ref(padding))),
            );
            writes.extend(by_page(&mut overwritten, address).map(rewrite));
        }
        stubs.extend_from_slice(parting::code());
        tracee.write(self.place + TABLE_BYTES as u64, &stubs)?;
        writes.push(self.table());
        Ok(writes)
    }

    /// The table of handled calls. It is empty at first: then the stubs pass all calls on.
    fn table(&self) -> Rewrite {
        // Only the beginning has values other than 0.
        let highest = self.wanted.iter().max();
        let mut table = vec![0; highest.map_or(0, |number| usize::from(*number) + 1)];
        let empty = table.clone();
        for number in self.wanted {
            table[usize::from(*number)] = 1;
        }
        Rewrite {
            address: self.place,
            code: empty,
            patched: table,
        }
    }
}

/// True when a jump in padding and the hop to it are in two pages. Between the writes, no hop may
/// lead to padding that has no jump yet.
fn is_hop_to_another_page(both: &[Option<Overwrite>; 2], address: u64) -> bool {
    let page = |overwrite: &Overwrite| (address + overwrite.at as u64) / 4096;
    let [padding, hop] = both.each_ref().map(|one| one.as_ref().map(page));
    hop.is_some() && hop != padding
}

/// The calls that make room for stubs and their table at `place`.
fn stub_calls(place: u64, bytes: u64) -> [Call; 2] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let (writable, executable) = (libc::PROT_WRITE, libc::PROT_EXEC);
    let protection = |other| (libc::PROT_READ | other) as u64;
    let map = [
        place,
        bytes,
        protection(writable),
        flags as u64,
        u64::MAX,
        0,
    ];
    let protect = [place, bytes, protection(executable), 0, 0, 0];
    [
        Call::new(libc::SYS_mmap, map),
        Call::new(libc::SYS_mprotect, protect),
    ]
}

/// The call that makes the area of the first thread.
fn area_call(bytes: u64) -> Call {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let arguments = [0, bytes, protection as u64, flags as u64, u64::MAX, 0];
    Call::new(libc::SYS_mmap, arguments).with(Call::AREA)
}

/// The area of the first thread (`toehold_preload::patched::area::Area`).
fn write_area(tracee: &Tracee, area: u64, bytes: u64) -> Result<()> {
    const RESERVED_BYTES: u64 = 64 << 10;
    let thread = tracee.process() as u64;
    // The end of the stack, FS, the lowest frame, the area itself, the thread.
    write_words(
        tracee,
        area,
        &[area + bytes, 0, area + RESERVED_BYTES, area, thread],
    )
}

/// `toehold_preload::door::Settings`, with words for the program's threads.
fn write_settings(tracee: &Tracee, at: u64, words: u64) -> Result<()> {
    // Its size, flags, the environment, words.
    write_words(tracee, at, &[32, 0, tracee.environment()?, words])
}

fn write_words(tracee: &Tracee, at: u64, words: &[u64]) -> Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    tracee.write(at, &bytes)
}

/// The range of addresses of the program.
fn span(image: &Image<'_>) -> (u64, u64) {
    let loads = image.segments().filter(|segment| segment.kind == PT_LOAD);
    let ends = loads.map(|segment| {
        let from = segment.address;
        (from, from.wrapping_add(segment.memory_bytes))
    });
    ends.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))
        .unwrap_or((0, 0))
}

/// A place of `bytes` bytes within the reach of a jump: below the program if there is room,
/// otherwise above it, far enough that the heap can grow.
fn gap(process: libc::pid_t, (from, to): (u64, u64), bytes: u64) -> Result<u64> {
    const LOWEST: u64 = 64 << 10;
    const DISTANCE: u64 = 64 << 10;
    const REACH: u64 = (2 << 30) - (16 << 20);
    let maps = read(process, c"maps")?;
    let used: Vec<(u64, u64)> = maps.split(|byte| *byte == b'\n').filter_map(ends).collect();
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
        .ok_or(Error::Failed("there is no room near its code"))
}

/// The first and last address of a mapping in a line of `maps`.
fn ends(line: &[u8]) -> Option<(u64, u64)> {
    let mut words = line.split(|byte| matches!(byte, b'-' | b' '));
    let mut number = || {
        let digits = core::str::from_utf8(words.next()?).ok()?;
        u64::from_str_radix(digits, 16).ok()
    };
    Some((number()?, number()?))
}

/// Reads a file that the kernel generates on reading: it has no length.
fn read(process: libc::pid_t, name: &CStr) -> Result<Vec<u8>> {
    File::of_process(process, name, libc::O_RDONLY)?.read_to_end(usize::MAX)
}

const AT_HWCAP2: u64 = 26;
const HWCAP2_FSGSBASE: u64 = 2;

/// The auxiliary vector that the kernel gives to a program at its start.
struct Auxiliary(Vec<u8>);

impl Auxiliary {
    fn of(process: libc::pid_t) -> Result<Auxiliary> {
        read(process, c"auxv").map(Auxiliary)
    }

    fn value(&self, key: u64) -> Option<u64> {
        self.0.chunks_exact(16).find_map(|entry| {
            let word = |n: usize| u64::from_le_bytes(entry[n..n + 8].try_into().expect("eight"));
            (word(0) == key).then(|| word(8))
        })
    }

    /// The vDSO's address; 0 when there is none.
    fn vdso(&self) -> u64 {
        self.value(libc::AT_SYSINFO_EHDR).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_patched_as_a_whole_or_not_at_all() {
        let rewrite = |address| Rewrite {
            address,
            code: vec![1],
            patched: vec![2],
        };
        let all = [0, 1, 2].map(rewrite);
        for refused in 0..=3 {
            let mut memory = [1; 3];
            let result = write_all_or_none(&all, |address, bytes| {
                if address == refused {
                    return Err(Error::Failed("no memory"));
                }
                memory[address as usize] = bytes[0];
                Ok(())
            });
            assert_eq!(result.is_ok(), refused == 3);
            assert_eq!(memory, [if refused == 3 { 2 } else { 1 }; 3]);
        }
    }
}
