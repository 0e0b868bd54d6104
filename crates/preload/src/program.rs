//! Whether a program that is about to be executed will also have this library. For that its loader
//! must be one that preloads libraries, it must keep its user's rights, and its environment must
//! name the library.
//!
//! This code runs between fork and exec, so it uses only system calls, and only one or two KiB of
//! the stack: the caller may be a small thread or a signal handler. Paths and pieces of files are
//! in [`Scratch`].

use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};

use toehold_freestanding::{call, environment, memory};

/// The variable that asks for patches in programs that make their system calls themselves.
const PATCH_CALLS: &[u8] = b"TOEHOLD_PATCH_CALLS=";

/// The variable that valgrind gives to its tools. A tool is a static program that runs another
/// program in its own process. That program has the library, so the tool must not be patched.
const VALGRIND: &[u8] = b"VALGRIND_LAUNCHER=";

/// The program that is about to be executed.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// The file at a path.
    Path(*const c_char),
    /// A name, searched for in `PATH` unless it has a slash.
    Name(*const c_char),
    /// An open file.
    Descriptor(c_int),
    /// As `execveat(2)` has it: directory, path, flags.
    At(c_int, *const c_char, c_int),
}

/// The expected result of the `exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forecast {
    /// No such program: the call will fail.
    Fails,
    /// A program with this library.
    WithLibrary,
    /// A program without this library, or a program about which that is unknown.
    Without,
}

/// Predicts the result of executing `target` with `environment`.
///
/// # Safety
/// `target` and `environment` are valid as for `execve(2)`.
pub(crate) unsafe fn forecast(target: Target, environment: *const *const c_char) -> Forecast {
    let Some(mut scratch) = Scratch::new() else {
        return Forecast::Without;
    };
    // SAFETY: the caller's promise.
    let opened = match unsafe { open(target, &mut scratch.path) } {
        Ok(opened) => opened,
        Err(forecast) => return forecast,
    };
    // SAFETY: the caller's promise.
    let named = unsafe { names_library(environment, &mut scratch.other) };
    if named && has_own_rights() && opened.takes_library(&mut scratch) {
        Forecast::WithLibrary
    } else {
        Forecast::Without
    }
}

/// True when a program would not start with this library in `environment`: the loader of an unknown
/// C library may follow `LD_PRELOAD` and fail, and AddressSanitizer must be the first library.
///
/// # Safety
/// `target` and `environment` are valid as for `execve(2)`.
pub(crate) unsafe fn breaks_on_library(
    target: Target,
    environment: *const *const c_char,
    scratch: &mut Scratch,
) -> bool {
    // SAFETY: the caller's promise.
    if !unsafe { names_library(environment, &mut scratch.other) } {
        return false;
    }
    // SAFETY: as above.
    let opened = unsafe { open(target, &mut scratch.path) };
    opened.is_ok_and(|opened| matches!(opened.loader(scratch), Loader::Foreign | Loader::Strict))
}

/// True when an environment variable lists this library to be preloaded.
pub(crate) fn preloads_library(variable: &[u8], buffer: &mut Buffer) -> bool {
    preload_list(variable).is_some_and(|mut list| list.any(|path| is_library(path, buffer)))
}

/// The paths in the variable that lists libraries to be loaded first; `None` for other variables.
fn preload_list(variable: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let list = variable.strip_prefix(b"LD_PRELOAD=")?;
    Some(list.split(|byte| matches!(byte, b':' | b' ')))
}

/// True when `target` has no loader and `environment` asks for its system calls to be patched. Then
/// the library to be mapped is in `scratch.library`, and the program's path in `scratch.path`,
/// which is empty where `target` is an open file.
///
/// # Safety
/// `target` and `environment` are valid as for `execve(2)`.
pub(crate) unsafe fn is_to_be_patched(
    target: Target,
    environment: *const *const c_char,
    scratch: &mut Scratch,
) -> bool {
    let mut is_asked = false;
    let room = &mut **scratch;
    room.path.clear();
    // SAFETY: the caller's promise, here and below.
    for variable in unsafe { variables(environment) } {
        let bytes = variable.to_bytes();
        if let Some(value) = bytes.strip_prefix(PATCH_CALLS) {
            is_asked = !value.is_empty();
        } else if bytes.starts_with(VALGRIND) {
            return false;
        } else if let Some(mut list) = preload_list(bytes) {
            let ours = list.find(|path| is_library(path, &mut room.other));
            if !ours.is_some_and(|ours| room.library.set(&[ours])) {
                return false;
            }
        }
    }
    // SAFETY: as above.
    if !is_asked || !unsafe { names_library(environment, &mut room.other) } || !has_own_rights() {
        return false;
    }
    // SAFETY: as above.
    let Ok(opened) = (unsafe { open(target, &mut room.path) }) else {
        return false;
    };
    if let (Target::Path(name) | Target::Name(name), true) = (target, room.path.is_empty()) {
        // SAFETY: as above: it was opened.
        room.path.set(&[unsafe { CStr::from_ptr(name) }.to_bytes()]);
    }
    opened.loader(scratch) == Loader::None
}

unsafe fn open(target: Target, path: &mut Buffer) -> Result<Opened, Forecast> {
    match target {
        Target::Descriptor(fd) => Ok(Opened::Borrowed(fd)),
        Target::At(_, path, _) if path.is_null() => Err(Forecast::Fails),
        Target::At(directory, path, flags) => {
            // SAFETY: NUL-terminated by the caller's promise; a byte of it is always there.
            if flags & libc::AT_EMPTY_PATH != 0 && unsafe { *path } == 0 {
                return Ok(Opened::Borrowed(directory));
            }
            // SAFETY: as above.
            let fd = unsafe { call!(SYS_openat, directory, path, OPEN_FLAGS) };
            if fd >= 0 {
                Ok(Opened::Owned(fd as c_int))
            } else {
                Err(Forecast::Without)
            }
        }
        // SAFETY: the caller's promise.
        Target::Path(path) => unsafe { Opened::open(path) },
        Target::Name(name) => {
            if name.is_null() {
                return Err(Forecast::Fails);
            }
            // SAFETY: NUL-terminated by the caller's promise.
            let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
            if bytes.contains(&b'/') {
                // SAFETY: as above.
                return unsafe { Opened::open(name) };
            }
            search(bytes, path)
        }
    }
}

/// Finds a program as `execvp(3)` does: by this process's own `PATH`.
fn search(name: &[u8], path: &mut Buffer) -> Result<Opened, Forecast> {
    // SAFETY: the value is read before anybody can change the environment.
    let directories = unsafe { environment::variable(c"PATH") }.unwrap_or(PATH_DEFAULT);
    for directory in directories.split(|&byte| byte == b':') {
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        if !path.set(&[directory, b"/", name]) {
            continue;
        }
        // SAFETY: NUL-terminated by `set`.
        match unsafe { Opened::open(path.as_ptr()) } {
            Err(Forecast::Fails) => {}
            found => return found,
        }
    }
    Err(Forecast::Fails)
}

/// A program's file.
enum Opened {
    /// Opened here.
    Owned(c_int),
    /// The caller's.
    Borrowed(c_int),
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Opened::Owned(fd) = self {
            // SAFETY: opened by `open`. A number of ours that no hook tracks.
            unsafe { call!(SYS_close, *fd) };
        }
    }
}

impl Opened {
    unsafe fn open(path: *const c_char) -> Result<Opened, Forecast> {
        if path.is_null() {
            return Err(Forecast::Fails);
        }
        // SAFETY: NUL-terminated by the caller's promise.
        if unsafe { call!(SYS_faccessat, libc::AT_FDCWD, path, libc::X_OK) } != 0 {
            return Err(Forecast::Fails);
        }
        // SAFETY: as above.
        match unsafe { call!(SYS_openat, libc::AT_FDCWD, path, OPEN_FLAGS) } {
            // About a program that may be executed but not read nothing is known.
            ..0 => Err(Forecast::Without),
            fd => Ok(Opened::Owned(fd as c_int)),
        }
    }

    fn fd(&self) -> c_int {
        match *self {
            Opened::Owned(fd) | Opened::Borrowed(fd) => fd,
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> usize {
        // SAFETY: the buffer is writable for its length.
        let read = unsafe {
            let (at, len) = (buffer.as_mut_ptr(), buffer.len());
            call!(SYS_pread64, self.fd(), at, len, offset)
        };
        read.max(0) as usize
    }

    /// True when this program's loader preloads libraries that the environment names.
    fn takes_library(&self, scratch: &mut Scratch) -> bool {
        self.loader(scratch) == Loader::Ours
    }

    /// The loader of the program, or of a script's interpreter.
    fn loader(&self, scratch: &mut Scratch) -> Loader {
        let mut head = [0u8; HEAD_BYTES];
        let mut interpreter: Option<Opened> = None;
        for _ in 0..=SCRIPT_DEPTH_MAX {
            let file = interpreter.as_ref().unwrap_or(self);
            let len = file.read_at(&mut head, 0);
            let Some(line) = head[..len].strip_prefix(b"#!") else {
                if file.changes_rights() {
                    // Its loader ignores `LD_PRELOAD`.
                    return Loader::Unknown;
                }
                return file.loader_of_elf(&head[..len], &mut scratch.pieces);
            };
            // The kernel ignores a script's set-uid bit; only its interpreter's counts.
            let path = &mut scratch.other;
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or(&[]);
            let mut words = line.split(u8::is_ascii_whitespace);
            let word = words.find(|word| !word.is_empty()).unwrap_or(&[]);
            if word.is_empty() || !path.set(&[word]) {
                return Loader::Unknown;
            }
            // SAFETY: NUL-terminated by `set`.
            match unsafe { Opened::open(path.as_ptr()) } {
                Ok(opened) => interpreter = Some(opened),
                Err(_) => return Loader::Unknown,
            }
        }
        Loader::Unknown
    }

    /// True when executing the program would change the process's identity (set-uid, set-gid,
    /// capabilities): then the loader ignores the library.
    fn changes_rights(&self) -> bool {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: `stat` is writable for its size.
        if unsafe { call!(SYS_fstat, self.fd(), stat.as_mut_ptr()) } != 0 {
            return true;
        }
        // SAFETY: zeroes were a value already, and the kernel filled it in.
        let stat = unsafe { stat.assume_init() };
        // SAFETY: no preconditions.
        let (uid, gid) = unsafe { (call!(SYS_geteuid) as u32, call!(SYS_getegid) as u32) };
        let set_uid = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != uid;
        let set_gid = stat.st_mode & libc::S_ISGID != 0 && stat.st_gid != gid;
        // Root has every capability already, so file capabilities change nothing for it.
        let grants = || {
            let name = c"security.capability".as_ptr();
            // SAFETY: the name is NUL-terminated; a null buffer of size zero asks for the length
            // only.
            uid != 0 && unsafe { call!(SYS_fgetxattr, self.fd(), name, 0, 0) } > 0
        };
        set_uid || set_gid || grants()
    }

    /// The interpreter (PT_INTERP) of an ELF program of this machine.
    fn loader_of_elf(&self, head: &[u8], pieces: &mut Pieces) -> Loader {
        const CLASS_64: u8 = 2;
        const PT_INTERP: u32 = 3;
        const ENTRY_BYTES: usize = 56;
        /// The most program headers that are looked at; ordinary programs have a dozen.
        const ENTRIES_MAX: u64 = 64;
        let order = 1 + u8::from(cfg!(target_endian = "big"));
        if head.len() < 64
            || !head.starts_with(b"\x7fELF")
            || head[4] != CLASS_64
            || head[5] != order
            || number(head, 18, 2) != MACHINE
            || number(head, 54, 2) < ENTRY_BYTES as u64
        {
            return Loader::Unknown;
        }
        let (table, step, entries) = (
            number(head, 32, 8),
            number(head, 54, 2),
            number(head, 56, 2),
        );
        let entries = entries.min(ENTRIES_MAX);
        let [for_headers, for_entries, for_names] = pieces;
        let mut headers = Window::of(self, for_headers);
        for index in 0..entries {
            let at = table.wrapping_add(index * step);
            let Some(entry) = headers.at::<ENTRY_BYTES>(at) else {
                return Loader::Unknown;
            };
            if number(&entry, 0, 4) == u64::from(PT_INTERP) {
                let mut name = [0u8; 256];
                let len = (number(&entry, 32, 8) as usize).min(name.len());
                let len = self.read_at(&mut name[..len], number(&entry, 8, 8));
                let is_known = |loader| contains(&name[..len], loader);
                return if !KNOWN_LOADERS.into_iter().any(is_known) {
                    Loader::Foreign
                } else if must_be_first(
                    &mut headers,
                    [for_entries, for_names],
                    [table, step, entries],
                ) {
                    Loader::Strict
                } else {
                    Loader::Ours
                };
            }
        }
        Loader::None
    }
}

/// True for a program that is linked with AddressSanitizer's run-time library, which ends the
/// program unless it is the first library.
fn must_be_first(
    headers: &mut Window<'_>,
    [for_entries, for_names]: [&mut [u8; WINDOW_BYTES]; 2],
    [table, step, entries]: [u64; 3],
) -> bool {
    const PT_LOAD: u64 = 1;
    const PT_DYNAMIC: u64 = 2;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    const HEADER_BYTES: usize = 56;
    /// The most entries of the dynamic section that are looked at; ordinary programs have 40.
    const DYNAMIC_MAX: u64 = 512;
    let file = headers.file;
    // Offset, address and length in the file of the first suitable segment of a kind.
    let mut segment = |kind, will_do: &dyn Fn(u64, u64) -> bool| {
        let of_kind = (0..entries).filter_map(|index| {
            let header = headers.at::<HEADER_BYTES>(table.wrapping_add(index * step))?;
            let [offset, address, len] = [8, 16, 32].map(|at| number(&header, at, 8));
            let is_one = number(&header, 0, 4) == kind && will_do(address, len);
            is_one.then_some((offset, address, len))
        });
        { of_kind }.next()
    };
    let Some((dynamic, _, len)) = segment(PT_DYNAMIC, &|_, _| true) else {
        return false;
    };
    let mut entries = Window::of(file, for_entries);
    let mut tags = (0..(len / 16).min(DYNAMIC_MAX)).map_while(|index| {
        let entry = entries.at::<16>(dynamic.wrapping_add(index * 16))?;
        Some((number(&entry, 0, 8), number(&entry, 8, 8)))
    });
    let Some((_, strings)) = tags.find(|(tag, _)| *tag == DT_STRTAB) else {
        return false;
    };
    let holds = |address: u64, len: u64| strings.checked_sub(address).is_some_and(|at| at < len);
    let Some((offset, address, _)) = segment(PT_LOAD, &holds) else {
        return false;
    };
    let strings = (strings - address).wrapping_add(offset);
    let mut names = Window::of(file, for_names);
    (0..(len / 16).min(DYNAMIC_MAX)).any(|index| {
        let Some(entry) = entries.at::<16>(dynamic.wrapping_add(index * 16)) else {
            return false;
        };
        if number(&entry, 0, 8) != DT_NEEDED {
            return false;
        }
        let name = names.some(strings.wrapping_add(number(&entry, 8, 8)), NAME_BYTES);
        FIRST_LIBRARIES.iter().any(|first| name.starts_with(first))
    })
}

/// A file that is read one piece at a time.
struct Window<'a> {
    file: &'a Opened,
    begin: u64,
    len: usize,
    bytes: &'a mut [u8; WINDOW_BYTES],
}

impl<'a> Window<'a> {
    fn of(file: &'a Opened, bytes: &'a mut [u8; WINDOW_BYTES]) -> Window<'a> {
        let (begin, len) = (0, 0);
        Window {
            file,
            begin,
            len,
            bytes,
        }
    }

    /// `count` bytes from `offset` on, or fewer at the end of the file.
    fn some(&mut self, offset: u64, count: usize) -> &[u8] {
        let within = offset.checked_sub(self.begin);
        let within = within.and_then(|at| usize::try_from(at).ok());
        let from = match within.filter(|at| self.len.saturating_sub(*at) >= count) {
            Some(from) => from,
            None => {
                self.begin = offset;
                self.len = self.file.read_at(self.bytes, offset);
                0
            }
        };
        &self.bytes[from..self.len.min(from + count)]
    }

    /// `N` bytes from `offset` on; `None` where the file has ended.
    fn at<const N: usize>(&mut self, offset: u64) -> Option<[u8; N]> {
        self.some(offset, N).first_chunk().copied()
    }
}

/// The loader of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loader {
    /// glibc's or musl's, which loads us.
    Ours,
    /// Another C library's.
    Foreign,
    /// As `Ours`, but the program ends if any other library is loaded before one of its own.
    Strict,
    /// No loader: a static program, or a loader itself.
    None,
    /// A loader that does not load this library, or of which that is unknown.
    Unknown,
}

/// True when the loader will follow the environment. It does not for a process whose real and
/// effective identities differ.
fn has_own_rights() -> bool {
    // SAFETY: no preconditions.
    unsafe { call!(SYS_getuid) == call!(SYS_geteuid) && call!(SYS_getgid) == call!(SYS_getegid) }
}

/// True when an environment makes the loader load this library, and makes the library start.
unsafe fn names_library(environment: *const *const c_char, buffer: &mut Buffer) -> bool {
    let (mut preloaded, mut wanted) = (false, false);
    // SAFETY: the caller's promise.
    for variable in unsafe { variables(environment) } {
        let variable = variable.to_bytes();
        if variable.starts_with(b"LD_PRELOAD=") {
            preloaded = preloads_library(variable, buffer);
        } else if let Some(path) = variable.strip_prefix(b"TOEHOLD_PATH=") {
            wanted = crate::is_started_by(path);
        }
    }
    preloaded && wanted
}

/// The variables of an environment.
///
/// # Safety
/// It is as `execve(2)` wants it, for as long as the variables are used.
unsafe fn variables<'a>(mut at: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    core::iter::from_fn(move || {
        // SAFETY: an array of NUL-terminated strings that ends with a null pointer, by the caller's
        // promise.
        unsafe {
            let variable = match at.is_null() {
                true => core::ptr::null(),
                false => at.read_unaligned(),
            };
            if variable.is_null() {
                return None;
            }
            at = at.add(1);
            Some(CStr::from_ptr(variable))
        }
    })
}

/// True for a path of this library's name at which there is a file.
fn is_library(path: &[u8], buffer: &mut Buffer) -> bool {
    path.rsplit(|&byte| byte == b'/').next() == Some(LIBRARY)
        && buffer.set(&[path])
        // SAFETY: NUL-terminated by `set`.
        && unsafe { call!(SYS_faccessat, libc::AT_FDCWD, buffer.as_ptr(), libc::R_OK) } == 0
}

/// Memory for data that is too large for the caller's stack. A `vfork` child, which uses its
/// parent's memory, gives it back before its exec.
pub(crate) struct Scratch(*mut Room);

/// The contents of [`Scratch`]. All zeroes are a valid value.
pub(crate) struct Room {
    pub(crate) library: Buffer,
    /// The program's.
    pub(crate) path: Buffer,
    other: Buffer,
    pieces: Pieces,
}

/// Pieces of one file: program headers, dynamic section, names.
type Pieces = [[u8; WINDOW_BYTES]; 3];

impl Scratch {
    /// `None` when there is no memory.
    pub(crate) fn new() -> Option<Scratch> {
        let room = memory::anonymous(size_of::<Room>(), false);
        (!room.is_null()).then_some(Scratch(room.cast()))
    }
}

impl Deref for Scratch {
    type Target = Room;

    fn deref(&self) -> &Room {
        // SAFETY: its own mapping, which was zeroed.
        unsafe { &*self.0 }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut Room {
        // SAFETY: as above.
        unsafe { &mut *self.0 }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        unsafe { memory::unmap(self.0.cast(), size_of::<Room>()) };
    }
}

/// A NUL-terminated path.
pub(crate) struct Buffer([u8; libc::PATH_MAX as usize]);

impl Buffer {
    fn clear(&mut self) {
        self.0[0] = 0;
    }

    /// Puts `parts` one after another; false when they are too long.
    fn set(&mut self, parts: &[&[u8]]) -> bool {
        let mut len = 0;
        for part in parts {
            let Some(place) = self.0.get_mut(len..len + part.len() + 1) else {
                return false;
            };
            place[..part.len()].copy_from_slice(part);
            place[part.len()] = 0;
            len += part.len();
        }
        true
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0[0] == 0
    }
}

/// The unsigned number of `len` bytes at `at`, in this machine's order; `bytes` is long enough.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut word = [0u8; 8];
    let place = if cfg!(target_endian = "big") {
        8 - len
    } else {
        0
    };
    word[place..place + len].copy_from_slice(&bytes[at..at + len]);
    u64::from_ne_bytes(word)
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes
        .windows(wanted.len())
        .any(|candidate| candidate == wanted)
}

/// The beginnings of the names of the dynamic linkers that load this library: glibc's and musl's.
const KNOWN_LOADERS: [&[u8]; 2] = [b"/ld-linux", b"/ld-musl-"];
/// The beginnings of the names of libraries that must come first: AddressSanitizer of GCC and of
/// Clang.
const FIRST_LIBRARIES: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];
/// Bytes of a name that suffice to recognise it.
const NAME_BYTES: usize = 64;
/// Holds the program headers of an ordinary program, or its dynamic section.
const WINDOW_BYTES: usize = 1024;
/// The file name under which `toehold run` installs this library.
const LIBRARY: &[u8] = b"libtoehold.so";
const OPEN_FLAGS: c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
/// This machine's number in ELF files (EM_X86_64, EM_AARCH64).
const MACHINE: u64 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};
/// The most interpreters of interpreters that are followed; the kernel's own limit is similar.
const SCRIPT_DEPTH_MAX: u32 = 4;
/// Enough for an ELF header and for the first line of a script (the kernel reads 256 bytes of it).
const HEAD_BYTES: usize = 256;
/// The folders that `execvp` searches when there is no PATH (`_PATH_DEFPATH`).
const PATH_DEFAULT: &[u8] = b"/bin:/usr/bin";
