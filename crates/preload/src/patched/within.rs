//! A program that has a dynamic linker and makes system calls itself: Go with cgo, Go that may be
//! loaded anywhere (`-buildmode=pie`), and Rust (by rustix, for example). The library's constructor
//! patches it, before any code of the program runs. libc's calls and the patched ones meet the same
//! descriptors. Libraries of Go are patched in the same way, see [`super::libraries`].
//!
//! The patches are written through `/proc/self/mem`, as a debugger does it: the program's code is
//! never made writable, and other threads that run the code are not disturbed. They are written
//! last: if an earlier step fails, the program stays unpatched.
//!
//! Only programs of these two languages are searched. To search all code of every dynamic program
//! would cost milliseconds at each start, and few other programs make system calls past libc.

use core::slice;
use core::sync::atomic::{AtomicU8, Ordering};

use toehold_freestanding::environment::{variable, variables};
use toehold_freestanding::{call, errno, memory, objects};
use toehold_sites::elf::Image;
use toehold_sites::guarded::has_guarded;
use toehold_sites::numbers::is_about_sockets;
use toehold_sites::plan::{Patch, leaves_sockets, plan};
use toehold_sites::rewrite::{Rewrite, by_page};
use toehold_sites::stub::{Addresses, Overwrite, STUB_BYTES_MAX, TABLE_BYTES, overwrites, stub};
use toehold_sites::sweep::{Bits, Swept, words};

use super::object::Object;
use super::refusal::{Refusal, is_run_by_user};
use super::{area, calls, entry};

/// Programs have a few dozen sites.
const SITES_MAX: usize = 4096;
const PAGE_BYTES: usize = 4096;
/// The largest code of a Rust program that is searched: at half a nanosecond for each byte this
/// takes some milliseconds. A Go program is always searched, because it cannot be served otherwise.
/// A program that `toehold run` itself has become is also always searched, because the user wants
/// it served and it is started only once.
const RUST_BYTES_MAX: usize = 16 << 20;

/// A language whose programs may make system calls themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// Programs of Go make all system calls themselves; the stacks of goroutines are small and
    /// move.
    Go,
    /// Programs of Rust make some system calls themselves and others through libc, on ordinary
    /// stacks.
    Rust,
}

/// The program's language, if `toehold run` wants the calls of such programs patched.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn wanted() -> Option<Language> {
    match is_wanted() {
        true if Object::program().is_go() => Some(Language::Go),
        true if is_rust() => Some(Language::Rust),
        _ => None,
    }
}

/// Whether calls must be patched: one of [`UNKNOWN`], [`NO`], [`YES`].
static WANTED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// True when `toehold run` wants calls patched. The environment is read once, at the latest by the
/// constructor.
#[unsafe(link_section = ".text.startup")]
pub(super) fn is_wanted() -> bool {
    // Relaxed, here and below: a thread that does not see the answer computes the same one.
    let answer = WANTED.load(Ordering::Relaxed);
    if answer != UNKNOWN {
        return answer == YES;
    }
    // libc has not started yet: a later call gets the answer.
    if variables().is_null() {
        return false;
    }
    // SAFETY: no code of the program has run, so nobody changes the environment; the value is not
    // used later.
    let path = unsafe { variable(c"TOEHOLD_PATCH_CALLS") };
    let is_wanted = path.is_some_and(|path| !path.is_empty()) && !objects::is_secure();
    WANTED.store(if is_wanted { YES } else { NO }, Ordering::Relaxed);
    is_wanted
}

/// True when Rust's compiler made the program or a part of it. A section of the file that is not
/// loaded tells that.
#[unsafe(link_section = ".text.startup")]
fn is_rust() -> bool {
    let (path, flags) = (c"/proc/self/exe".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: a NUL-terminated path, and a descriptor that is ours.
    let (file, bytes) = unsafe {
        let file = call!(SYS_openat, libc::AT_FDCWD, path, flags);
        (file, call!(SYS_lseek, file, 0, libc::SEEK_END))
    };
    let nowhere = core::ptr::null_mut();
    let (protection, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
    let length = bytes.max(0) as usize;
    // SAFETY: a mapping of the kernel's choice; the descriptor is ours.
    let mapped = unsafe {
        let mapped = memory::map(nowhere, length, protection, private, file as i32, 0);
        if file >= 0 {
            call!(SYS_close, file);
        }
        mapped
    };
    let Ok(at) = mapped else { return false };
    // SAFETY: mapped for so many bytes. The kernel keeps a file from being written while it is
    // executed.
    let image = Image::parse(unsafe { slice::from_raw_parts(at.cast_const(), length) });
    let is_rust = image.is_some_and(|image| image.is_rust());
    // SAFETY: mapped above, and used no more.
    unsafe { memory::unmap(at, length) };
    is_rust
}

/// True for an emulator that runs another program in this process (qemu-user). Its own instructions
/// make the calls for that program, and must not be changed ([`toehold_sites::guarded`]). The
/// library would see the emulator's other calls, and the emulated program may have the library,
/// too. The program's name is checked first, because reading all code of every program would take
/// too long.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn is_emulator() -> bool {
    let mut path = [0; libc::PATH_MAX as usize];
    let (at, room) = (path.as_mut_ptr(), path.len());
    // SAFETY: the name ends with NUL, and the buffer is writable for its length.
    let bytes = unsafe { call!(SYS_readlink, c"/proc/self/exe".as_ptr(), at, room) };
    let path = &path[..bytes.max(0) as usize];
    let name = path.rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"qemu-"))
        && Object::program().codes().any(has_guarded)
}

/// Gives the first thread of a Go program an area. Without libc the area has the thread's word.
pub(crate) fn prepare(language: Language, has_libc: bool) -> Result<(), Refusal> {
    if language == Language::Rust {
        return has_libc.then_some(()).ok_or(Refusal::NotServed);
    }
    if !tells_threads_apart() {
        return Err(Refusal::NoGs);
    }
    if !area::begin() {
        return Err(Refusal::NoMemory);
    }
    if !has_libc {
        errno::use_words(area::word);
    }
    Ok(())
}

/// Whether the processor and the kernel have the instructions with which the entries read FS and
/// GS.
fn tells_threads_apart() -> bool {
    const HWCAP2_FSGSBASE: usize = 2;
    objects::abilities() & HWCAP2_FSGSBASE != 0
}

/// Patches the program. The library has started, and the first thread of Go has an area.
pub(crate) fn patch(language: Language, has_libc: bool) -> Result<(), Refusal> {
    let entry = match (language, has_libc) {
        (Language::Rust, _) => entry::own,
        (Language::Go, true) => entry::beside_libc,
        (Language::Go, false) => entry::private,
    };
    let is_searched = |code: &[u8]| {
        language != Language::Rust || code.len() <= RUST_BYTES_MAX || is_run_by_user()
    };
    let result = patch_object(Object::program(), language, is_searched, entry);
    if result.is_ok() && language == Language::Go && has_libc {
        area::serve_threads_of_libc();
    }
    result
}

/// Patches a library of Go, none of whose system calls is under way, in a process with libc. The
/// library has started.
pub(super) fn patch_library(library: Object) -> Result<(), Refusal> {
    if !tells_threads_apart() {
        return Err(Refusal::NoGs);
    }
    patch_object(library, Language::Go, |_| true, entry::beside_libc)?;
    // As in a program of Go: libc's copy functions would change registers that a patched call must
    // keep.
    crate::routines::use_plain_ones();
    area::serve_threads_of_libc();
    Ok(())
}

/// Patches the code segments of a program or library that must be searched.
fn patch_object(
    object: Object,
    language: Language,
    is_searched: impl Fn(&[u8]) -> bool,
    entry: unsafe extern "C" fn(),
) -> Result<(), Refusal> {
    let patches = Memory::<Patch>::of(SITES_MAX).ok_or(Refusal::NoMemory)?;
    let mut result = Err(Refusal::NoSites);
    for code in object.codes().filter(|code| is_searched(code)) {
        match patch_code(object, code, language, &patches, entry) {
            Ok(()) => result = Ok(()),
            Err(Refusal::NoSites) => {}
            Err(refusal) => result = result.or(Err(refusal)),
        }
    }
    result
}

/// Patches a code segment, so that its calls come to `entry`. On failure nothing is changed.
fn patch_code(
    object: Object,
    code: &'static [u8],
    language: Language,
    room: &Memory<Patch>,
    entry: unsafe extern "C" fn(),
) -> Result<(), Refusal> {
    let count = plan_all(code, language, room)?;
    if !tells_threads_apart() {
        return Err(Refusal::NoGs);
    }
    let bytes = (TABLE_BYTES + count * STUB_BYTES_MAX).next_multiple_of(PAGE_BYTES);
    let place = Place::near(object, code, bytes).ok_or(Refusal::NoRoom)?;
    // SAFETY: fresh memory of this length, which nobody else knows.
    let (table, stubs) =
        unsafe { slice::from_raw_parts_mut(place.at as *mut u8, bytes) }.split_at_mut(TABLE_BYTES);
    for &number in &calls::WANTED {
        table[usize::from(number)] = 1;
    }
    let patches = room.first(count);
    let addresses = |n: usize| Addresses {
        code: code.as_ptr() as u64,
        stub: (place.at + TABLE_BYTES + n * STUB_BYTES_MAX) as u64,
        table: place.at as u64,
        entry: entry as *const () as u64,
    };
    let changes = Memory::<Overwrite>::of(2 * count).ok_or(Refusal::NoMemory)?;
    let mut changed = 0;
    for (n, patch) in patches.iter().enumerate() {
        let into = stubs[n * STUB_BYTES_MAX..].first_chunk_mut();
        let into = into.ok_or(Refusal::NoRoom)?;
        stub(patch, code, &addresses(n), into).map_err(|_| Refusal::NoRoom)?;
        let overwritten = overwrites(patch, &addresses(n)).map_err(|_| Refusal::NoRoom)?;
        for overwrite in overwritten.into_iter().flatten() {
            // SAFETY: a patch has two at most.
            unsafe { changes.at.add(changed).write(overwrite) };
            changed += 1;
        }
    }
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: our own pages.
    if !unsafe { memory::protect(place.at as *mut u8, bytes, protection) } {
        return Err(Refusal::NoExecutableMemory);
    }
    let own = OwnMemory::open().ok_or(Refusal::NoProc)?;
    // SAFETY: all of them were written, and nobody else uses them.
    let changes = unsafe { slice::from_raw_parts_mut(changes.at, changed) };
    for (n, overwrites) in by_page(changes, code.as_ptr() as u64).enumerate() {
        let rewrite = Rewrite::of(code, overwrites);
        let at = code.as_ptr() as usize + rewrite.place().start;
        // If the first write succeeds, the kernel allows the others, too.
        if !own.write(at, rewrite.bytes()) && n == 0 {
            return Err(Refusal::NotWritable);
        }
    }
    core::mem::forget(place);
    Ok(())
}

/// Plans the patches of all sites, in `room`. Returns how many there are: at least one.
fn plan_all(code: &[u8], language: Language, room: &Memory<Patch>) -> Result<usize, Refusal> {
    let bits = Memory::<u64>::of(2 * words(code.len())).ok_or(Refusal::NoMemory)?;
    let sites = Memory::<usize>::of(SITES_MAX).ok_or(Refusal::NoMemory)?;
    // SAFETY: the memory lives as long as the sweep, and has no other user.
    let (starts, targets) =
        unsafe { slice::from_raw_parts_mut(bits.at, bits.count) }.split_at_mut(words(code.len()));
    // SAFETY: only this advice. Where the kernel does not know it, the pages are read one by one.
    unsafe {
        let from = code.as_ptr() as usize & !(PAGE_BYTES - 1);
        let bytes = code.as_ptr() as usize + code.len() - from;
        memory::advise(from as *mut u8, bytes, libc::MADV_POPULATE_READ);
    }
    let mut swept = Swept::new(code, Bits { starts, targets });
    let mut found = 0;
    swept.search(0..code.len(), |site| {
        if found < SITES_MAX {
            // SAFETY: within the memory.
            unsafe { sites.at.add(found).write(site) };
        }
        found += 1;
    });
    // If only a part of the sites were patched, kernel and library would disagree about
    // descriptors.
    if found == 0 || found > SITES_MAX {
        return Err(Refusal::NoSites);
    }
    // A program of Rust that makes no calls about sockets past libc needs no patches. The search
    // for branches, which takes longest, is saved.
    let is_needed = |site: &usize| is_about_sockets(code, *site);
    if language == Language::Rust && !sites.first(found).iter().any(is_needed) {
        return Err(Refusal::NoSites);
    }
    swept.search_branches(sites.first(found));
    let mut planned = 0;
    for &site in sites.first(found) {
        match plan(&swept, site, room.first(planned)) {
            Ok(patch) => {
                // SAFETY: there are no more patches than sites.
                unsafe { room.at.add(planned).write(patch) };
                planned += 1;
            }
            Err(obstacle) if leaves_sockets(obstacle, code, site) => {
                return Err(Refusal::NoRoomForOne);
            }
            Err(_) => {}
        }
    }
    match planned {
        0 => Err(Refusal::NoSites),
        planned => Ok(planned),
    }
}

/// Zeroed memory, of which only touched pages are used.
struct Memory<T> {
    at: *mut T,
    count: usize,
}

impl<T: Copy> Memory<T> {
    fn of(count: usize) -> Option<Memory<T>> {
        let at: *mut T = memory::anonymous(count * size_of::<T>(), false).cast();
        (!at.is_null()).then_some(Memory { at, count })
    }

    /// The first elements, all of which were written.
    fn first(&self, count: usize) -> &[T] {
        // SAFETY: the callers' care: they write one after another, and no slice is alive then.
        unsafe { slice::from_raw_parts(self.at, count.min(self.count)) }
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and used no more.
        unsafe { memory::unmap(self.at.cast(), self.count * size_of::<T>()) };
    }
}

/// Memory within reach of a jump from the code of a program or library.
struct Place {
    at: usize,
    bytes: usize,
}

impl Place {
    /// Finds a place below the object, if there is room. Otherwise a place far enough above it, so
    /// that a program's heap can grow; or far enough below it, beyond neighbouring libraries and
    /// the memory that others reserve there (each runtime of Go reserves more than half a
    /// gigabyte).
    fn near(object: Object, code: &[u8], bytes: usize) -> Option<Place> {
        const DISTANCE: usize = 64 << 10;
        const REACH: usize = (2 << 30) - (16 << 20);
        let object = object.span()?;
        let page = |address: usize| address & !(PAGE_BYTES - 1);
        let below = object.start.checked_sub(bytes + DISTANCE).map(page);
        let above = (1..=7).rev().map(|n| page(object.end + (n << 28)));
        let far_below = (1..=127).filter_map(|n| below?.checked_sub(n << 24));
        let (start, end) = (code.as_ptr() as usize, code.as_ptr() as usize + code.len());
        below
            .into_iter()
            .chain(above)
            .chain(far_below)
            .filter(|at| end.abs_diff(*at) < REACH && start.abs_diff(at + bytes) < REACH)
            .find_map(|at| Place::exactly_at(at, bytes))
    }

    fn exactly_at(at: usize, bytes: usize) -> Option<Place> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: it replaces nothing.
        let mapped = unsafe { memory::map(at as *mut u8, bytes, protection, flags, -1, 0) }.ok()?;
        let place = Place {
            at: mapped as usize,
            bytes,
        };
        (place.at == at).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: mapped by `exactly_at`, and nothing leads there.
        unsafe { memory::unmap(self.at as *mut u8, self.bytes) };
    }
}

/// This process's memory, which can be written whatever its protection.
struct OwnMemory(i32);

impl OwnMemory {
    fn open() -> Option<OwnMemory> {
        let path = c"/proc/self/mem".as_ptr();
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: a NUL-terminated path.
        let file = unsafe { call!(SYS_openat, libc::AT_FDCWD, path, flags) };
        (file >= 0).then_some(OwnMemory(file as i32))
    }

    fn write(&self, at: usize, bytes: &[u8]) -> bool {
        // SAFETY: the bytes are readable. The caller knows what is at that address.
        let written = unsafe { call!(SYS_pwrite64, self.0, bytes.as_ptr(), bytes.len(), at) };
        written == bytes.len() as isize
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        // SAFETY: opened here.
        unsafe { call!(SYS_close, self.0) };
    }
}
