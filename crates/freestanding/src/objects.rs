//! The objects that the dynamic linker has loaded, and the functions that they define.
//!
//! The list is the one that debuggers read (`r_debug`, <link.h>). The auxiliary vector, which the
//! kernel gives to every program, has the addresses of the program and its dynamic linker; these
//! lead to the list. A program without a dynamic linker has no list, so nothing is found.
//!
//! The list is read without the dynamic linker's lock. So it is read while the process has one
//! thread: the library's constructor calls [`crate::objects::next`] for everything. Later it is
//! read only for names that were not found then.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::call;
use crate::elf::{self, Dynamic, Name, PT_DYNAMIC, PT_LOAD, ProgramHeader, Symbols};

/// An entry of the list (`struct link_map`).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// Values of the auxiliary vector (getauxval(3)); 0 if the vector lacks them.
struct Auxiliary {
    is_known: AtomicBool,
    headers: AtomicUsize,
    header_count: AtomicUsize,
    linker: AtomicUsize,
    vdso: AtomicUsize,
    is_secure: AtomicUsize,
    abilities: AtomicUsize,
}

static AUXILIARY: Auxiliary = Auxiliary {
    is_known: AtomicBool::new(false),
    headers: AtomicUsize::new(0),
    header_count: AtomicUsize::new(0),
    linker: AtomicUsize::new(0),
    vdso: AtomicUsize::new(0),
    is_secure: AtomicUsize::new(0),
    abilities: AtomicUsize::new(0),
};

const ELF_HEADER_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;

const AT_NULL: usize = 0;
const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;
const AT_BASE: usize = 7;
const AT_SECURE: usize = 23;
const AT_HWCAP2: usize = 26;
const AT_SYSINFO_EHDR: usize = 33;

/// An entry of the auxiliary vector.
type Entry = [usize; 2];

impl Auxiliary {
    // Relaxed, in all of these: the values never change, and a thread that reads none looks again.
    fn note(&self, [kind, value]: Entry) {
        let place = match kind {
            AT_PHDR => &self.headers,
            AT_PHNUM => &self.header_count,
            AT_BASE => &self.linker,
            AT_SYSINFO_EHDR => &self.vdso,
            AT_SECURE => &self.is_secure,
            AT_HWCAP2 => &self.abilities,
            _ => return,
        };
        place.store(value, Ordering::Relaxed);
    }

    fn known(&self) -> &Auxiliary {
        if !self.is_known.load(Ordering::Relaxed) {
            self.search();
        }
        self
    }

    #[cold]
    fn search(&self) {
        if self.read() {
            return;
        }
        if let Some(found) = find_on_stack() {
            // SAFETY: the kernel's vector, which ends with `AT_NULL`.
            unsafe { learn_auxiliary(found) }
        }
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Reads the vector from the kernel, with calls that the dynamic linker has made before us.
    /// False if there is no `/proc`, or no free descriptor.
    fn read(&self) -> bool {
        let path = c"/proc/self/auxv".as_ptr();
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: a NUL-terminated path; a buffer of our own.
        unsafe {
            let file = call!(SYS_openat, libc::AT_FDCWD, path, flags);
            if file < 0 {
                return false;
            }
            let mut entries = [[0usize; 2]; 64];
            let bytes = size_of_val(&entries);
            let got = call!(SYS_read, file, entries.as_mut_ptr(), bytes);
            call!(SYS_close, file);
            let entries = entries.iter().take_while(|entry| entry[0] != AT_NULL);
            entries.for_each(|&entry| self.note(entry));
            if got <= 0 {
                return false;
            }
        }
        self.is_known.store(true, Ordering::Relaxed);
        true
    }
}

/// Finds the auxiliary vector on the stack, above the frames of the first thread: for a constructor
/// that gets no arguments, in a system without `/proc`. `None` on any other stack.
fn find_on_stack() -> Option<*const Entry> {
    const AT_PHENT: usize = 4;
    const PAGES_MAX: usize = 512;
    // Three of its entries are adjacent (create_elf_tables, fs/binfmt_elf.c).
    const WORDS: usize = 6;
    let is_vector = |words: [usize; WORDS]| {
        let [kind, headers, next, bytes, last, count] = words;
        (kind, next, last) == (AT_PHDR, AT_PHENT, AT_PHNUM)
            && bytes == size_of::<ProgramHeader>()
            && headers != 0
            && (1..=256).contains(&count)
    };
    let here = 0usize;
    let mut at = core::hint::black_box(&raw const here);
    let first_page = at as usize / PAGE_BYTES;
    let mut readable = first_page;
    while at as usize / PAGE_BYTES - first_page < PAGES_MAX {
        let end = at as usize + size_of::<[usize; WORDS]>() - 1;
        if end / PAGE_BYTES > readable {
            readable = end / PAGE_BYTES;
            if !is_readable(readable * PAGE_BYTES) {
                return None;
            }
        }
        // SAFETY: all six words lie in pages that can be read: the stack's.
        let words = unsafe { at.cast::<[usize; WORDS]>().read_volatile() };
        if is_vector(words) {
            return Some(at.cast());
        }
        at = at.wrapping_add(1);
    }
    None
}

/// True when the kernel can read eight bytes at `address`. The kernel reads the bytes before it
/// rejects the call's other argument, so the call changes nothing (sigprocmask(2)).
pub(crate) fn is_readable(address: usize) -> bool {
    const NO_SUCH_CHANGE: usize = 99;
    // SAFETY: a mask is read, if it can be, and not used.
    let answer = unsafe { call!(SYS_rt_sigprocmask, NO_SUCH_CHANGE, address, 0, 8) };
    answer == -(libc::EINVAL as isize)
}

/// Takes the auxiliary vector from a constructor's arguments, if these are the program's argument
/// count, arguments and environment: glibc passes these, musl passes nothing. True if they are.
///
/// # Safety
/// If `argv` and `envp` are placed relative to each other as on a program's stack, they are the
/// program's.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn learn(argc: i32, argv: *const *const c_char, envp: *const *const c_char) -> bool {
    // Random values in three registers do not look like this.
    let is_plausible = argc > 0
        && !argv.is_null()
        && (argv as usize).is_multiple_of(size_of::<usize>())
        && envp as usize == argv as usize + (argc as usize + 1) * size_of::<usize>();
    if !is_plausible {
        return false;
    }
    // SAFETY: the caller's promise: the environment ends with a null pointer, and the auxiliary
    // vector follows it.
    unsafe {
        let mut at = envp;
        while !(*at).is_null() {
            at = at.add(1);
        }
        learn_auxiliary(at.add(1).cast());
    }
    true
}

/// Takes the auxiliary vector at `at`, which ends with `AT_NULL`.
///
/// # Safety
/// The vector exists.
pub unsafe fn learn_auxiliary(at: *const [usize; 2]) {
    let mut at = at;
    // SAFETY: the caller's promise.
    unsafe {
        while (*at)[0] != AT_NULL {
            AUXILIARY.note(*at);
            at = at.add(1);
        }
    }
    AUXILIARY.is_known.store(true, Ordering::Relaxed);
}

/// The address of the kernel's vDSO; 0 if there is none.
pub(crate) fn vdso() -> usize {
    AUXILIARY.known().vdso.load(Ordering::Relaxed)
}

/// True when the kernel gave the program rights that its user does not have (for example set-uid).
pub fn is_secure() -> bool {
    AUXILIARY.known().is_secure.load(Ordering::Relaxed) != 0
}

/// The processor features that the kernel lets programs use (`AT_HWCAP2`).
pub fn abilities() -> usize {
    AUXILIARY.known().abilities.load(Ordering::Relaxed)
}

/// The program's headers; empty if the kernel did not give their address.
#[unsafe(link_section = ".text.startup")]
pub fn program_headers() -> &'static [ProgramHeader] {
    let auxiliary = AUXILIARY.known();
    let headers = auxiliary.headers.load(Ordering::Relaxed) as *const ProgramHeader;
    let count = auxiliary.header_count.load(Ordering::Relaxed);
    if headers.is_null() {
        return &[];
    }
    // SAFETY: the program's headers, by the kernel's word.
    unsafe { core::slice::from_raw_parts(headers, count) }
}

/// The offset of the program's addresses from those in its headers.
#[unsafe(link_section = ".text.startup")]
pub fn program_base() -> usize {
    let headers = program_headers();
    distance(headers.as_ptr() as usize, headers)
}

/// The offset of addresses in memory from those in `headers`, which are at address `at`.
#[unsafe(link_section = ".text.startup")]
fn distance(at: usize, headers: &[ProgramHeader]) -> usize {
    const PT_PHDR: u32 = 6;
    let mut itself = headers.iter().filter(|header| header.kind == PT_PHDR);
    if let Some(itself) = itself.next() {
        return at.wrapping_sub(itself.address);
    }
    // A dynamic linker that was started as the program has no PT_PHDR. Its headers follow its ELF
    // header, which is at the start of its first segment.
    let mut loaded = headers.iter().filter(|header| header.kind == PT_LOAD);
    let first = loaded.find(|header| header.offset == 0);
    let base = first.map_or(0, |first| {
        at.wrapping_sub(first.address.wrapping_add(ELF_HEADER_BYTES))
    });
    if base.is_multiple_of(PAGE_BYTES) {
        base
    } else {
        0
    }
}

/// The first object of the list; null if there is no dynamic linker.
#[unsafe(link_section = ".text.startup")]
fn first_object() -> *const LinkMap {
    let linker = AUXILIARY.known().linker.load(Ordering::Relaxed);
    let headers = program_headers();
    if headers.is_empty() {
        return core::ptr::null();
    }
    // SAFETY: the objects of this process.
    let debug = unsafe { debug_of_program(headers).or_else(|| debug_of_linker(headers, linker)) };
    // `r_version`, then `r_map`.
    debug.map_or(core::ptr::null(), |debug| {
        // SAFETY: the dynamic linker's `r_debug`.
        unsafe { (debug as *const *const LinkMap).add(1).read() }
    })
}

/// # Safety
/// `headers` are those of the program.
unsafe fn debug_of_program(headers: &[ProgramHeader]) -> Option<usize> {
    let base = program_base();
    let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
    let dynamic = base.wrapping_add(dynamic.address);
    // Without PT_PHDR the base is unknown: only a program that was linked for fixed addresses has
    // its dynamic section at the header's address.
    if base == 0 && dynamic < headers.as_ptr() as usize {
        return None;
    }
    // SAFETY: the program's dynamic section.
    unsafe { elf::debug_of(dynamic as *const Dynamic) }
}

/// The dynamic linker has the list's address, too. When it was started as the program, the kernel
/// knows only the dynamic linker.
///
/// # Safety
/// The process has these objects.
unsafe fn debug_of_linker(headers: &[ProgramHeader], linker: usize) -> Option<usize> {
    // A variable of glibc, and a variable of musl that points to it.
    const DEBUG: Name = Name::new(c"_r_debug");
    const DEBUG_ADDRESS: Name = Name::new(c"_dl_debug_addr");
    let header = match linker {
        // The program headers follow the ELF header.
        0 => (headers.as_ptr() as usize).checked_sub(ELF_HEADER_BYTES)?,
        _ => linker,
    };
    // SAFETY: an ELF object.
    unsafe {
        if (header as *const [u8; 4]).read() != *b"\x7fELF" {
            return None;
        }
        let symbols = Symbols::at_header(header as *const u8)?;
        if let Some(debug) = symbols.find(&DEBUG) {
            return Some(debug as usize);
        }
        symbols
            .find(&DEBUG_ADDRESS)
            .map(|address| address.cast::<usize>().read())
            .filter(|&debug| debug != 0)
    }
}

/// The dynamic section of the object that holds this code.
fn own_dynamic() -> *const Dynamic {
    let at: *const Dynamic;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an address, which the linker defines in each object that has a dynamic section.
    unsafe {
        core::arch::asm!(
            ".weak _DYNAMIC",
            ".hidden _DYNAMIC",
            "lea {}, [rip + _DYNAMIC]",
            out(reg) at,
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            ".weak _DYNAMIC",
            ".hidden _DYNAMIC",
            "adrp {0}, _DYNAMIC",
            "add {0}, {0}, :lo12:_DYNAMIC",
            out(reg) at,
            options(nomem, nostack, preserves_flags)
        );
    }
    at
}

/// The objects from `first` on.
fn objects_from(first: *const LinkMap) -> impl Iterator<Item = &'static LinkMap> {
    /// More objects than any program has; a longer list is treated as invalid.
    const OBJECTS_MAX: usize = 4096;
    // SAFETY: the dynamic linker's list, which ends with a null pointer.
    let first = unsafe { first.as_ref() };
    // SAFETY: as above.
    core::iter::successors(first, |object| unsafe { object.next.as_ref() }).take(OBJECTS_MAX)
}

impl LinkMap {
    fn find(&self, name: &Name) -> Option<Found> {
        // SAFETY: loaded, by the dynamic linker's word.
        let symbols = unsafe { Symbols::of(self.base, self.dynamic) }?;
        symbols.find(name).map(|address| Found {
            address,
            object: self.name,
        })
    }
}

/// A symbol of a loaded object.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its address.
    pub address: *mut c_void,
    /// The object's path, or an empty string for the program itself.
    pub object: *const c_char,
}

/// The definition that the dynamic linker would find after this object's (`RTLD_NEXT`); or, if this
/// object was loaded after libc, that of any other object.
#[unsafe(link_section = ".text.startup")]
pub fn next_in(name: &Name) -> Option<Found> {
    let first = first_object();
    let own = own_dynamic();
    let mut after = objects_from(first).skip_while(|object| object.dynamic != own);
    after.next();
    let found = after.find_map(|object| object.find(name));
    found.or_else(|| others(first, own, name))
}

/// The address of [`next_in`]; null when there is none.
pub fn next(name: &Name) -> *mut c_void {
    next_in(name).map_or(core::ptr::null_mut(), |found| found.address)
}

/// The first definition in the list outside this object (`RTLD_DEFAULT`); null if there is none.
#[unsafe(link_section = ".text.startup")]
pub fn first(name: &Name) -> *mut c_void {
    let found = others(first_object(), own_dynamic(), name);
    found.map_or(core::ptr::null_mut(), |found| found.address)
}

fn others(first: *const LinkMap, own: *const Dynamic, name: &Name) -> Option<Found> {
    objects_from(first)
        .filter(|object| object.dynamic != own)
        .find_map(|object| object.find(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auxiliary_vector_is_on_the_first_thread_s_stack_and_on_no_other() {
        // Tests run in threads; a thread's stack ends before anything similar.
        assert!(find_on_stack().is_none());
    }

    #[test]
    fn memory_that_cannot_be_read_is_noticed() {
        let here = 0u64;
        assert!(is_readable(&raw const here as usize));
        assert!(!is_readable(8));
    }

    #[test]
    fn functions_of_libc_are_found_at_their_addresses() {
        // The tests' program is linked to libc.
        for (name, expected) in [
            (Name::new(c"getpid"), libc::getpid as *const () as usize),
            (Name::new(c"read"), libc::read as *const () as usize),
            (
                Name::new(c"__errno_location"),
                libc::__errno_location as *const () as usize,
            ),
        ] {
            assert_eq!(next(&name) as usize, expected, "{name:?}");
            assert_eq!(first(&name) as usize, expected, "{name:?}");
        }
        assert!(next(&Name::new(c"toehold_no_such_function")).is_null());
    }

    #[test]
    fn a_function_that_the_processor_chooses_is_the_chosen_one() {
        let found = next(&Name::new(c"strlen"));
        // SAFETY: `strlen` of libc, under the signature that it has.
        let strlen: extern "C" fn(*const c_char) -> usize = unsafe { core::mem::transmute(found) };
        assert_eq!(strlen(c"four".as_ptr()), 4);
    }

    #[test]
    fn the_default_version_of_a_name_is_taken() {
        // SAFETY: `dlsym` with names.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"memcpy".as_ptr()) };
        assert_eq!(next(&Name::new(c"memcpy")), expected);
    }
}
