//! Examines a program before it is run: its path, and whether the library can be loaded into it.
//!
//! A program into which the library cannot be loaded still runs, on the host path; the user is told
//! why.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, getxattr};
use rustix::process::{getegid, geteuid};

/// Finds `name` as `execvp` does.
///
/// # Errors
///
/// When there is no such program, or it may not be executed.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, FindError> {
    find_in(name, std::env::var_os("PATH").as_deref())
}

/// The reason why a program cannot be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FindError {
    /// There is no such file.
    NotFound {
        /// The name as typed.
        name: OsString,
    },
    /// The file exists, but may not be executed.
    CannotExecute {
        /// Where it is.
        path: PathBuf,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NotFound { name } => {
                let place = if name.as_bytes().contains(&b'/') {
                    ""
                } else {
                    " in PATH"
                };
                match name.to_string_lossy() {
                    name if name.is_empty() => out.write_str("the program's name is empty"),
                    name => write!(out, "there is no program {name}{place}"),
                }
            }
            FindError::CannotExecute { path } => {
                write!(
                    out,
                    "{} is not an executable file you may run",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for FindError {}

/// The reason why the library cannot be loaded into a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Statically linked: no loader can load the library.
    Static(PathBuf),
    /// Runs as another user, so the loader ignores `LD_PRELOAD`.
    Privileged(PathBuf),
    /// Built for another processor or word size.
    ForeignMachine(PathBuf),
    /// Linked against another C library.
    ForeignLoader(PathBuf, String),
    /// Linked with a library that ends the program unless it comes first (AddressSanitizer).
    Sanitized(PathBuf, String),
}

impl Obstacle {
    fn path(&self) -> &Path {
        match self {
            Obstacle::Static(path)
            | Obstacle::Privileged(path)
            | Obstacle::ForeignMachine(path)
            | Obstacle::ForeignLoader(path, _)
            | Obstacle::Sanitized(path, _) => path,
        }
    }

    /// A sentence whose subject, the program, is left out.
    pub(crate) fn predicate(&self) -> String {
        match self {
            Obstacle::Static(_) => "is statically linked, so no library can be preloaded".into(),
            Obstacle::Privileged(_) => {
                "runs with another user's rights (set-uid, set-gid or capabilities), so the loader \
                 ignores preloaded libraries"
                    .into()
            }
            Obstacle::ForeignMachine(_) => "is a program for another processor or word size".into(),
            Obstacle::ForeignLoader(_, loader) => {
                format!("uses the loader {loader}; the library is for those of glibc and musl")
            }
            Obstacle::Sanitized(_, library) => {
                format!("is linked with {library}, which must come before any preloaded library")
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.path().display(), self.predicate())
    }
}

/// The obstacle to accelerating the program at `path`, if any. If a file cannot be read, `exec`
/// decides.
pub(crate) fn obstacle(path: &Path) -> Option<Obstacle> {
    inspect(path, SCRIPT_DEPTH_MAX)
}

/// The dynamic linker that the program at `path` asks for.
pub(crate) fn loader(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let mut head = vec![0; HEAD_BYTES];
    let length = file.read_at(&mut head, 0).ok()?;
    ElfHeader::parse(&head[..length])?.loader(&file)
}

/// Whether a file is a complete shared library for this machine. A copy that a full disk has
/// truncated is not complete.
pub(crate) fn is_whole_library(path: &Path) -> bool {
    let whole = || {
        let file = File::open(path).ok()?;
        let mut head = vec![0; HEAD_BYTES];
        let length = file.read_at(&mut head, 0).ok()?;
        let header = ElfHeader::parse(&head[..length])?;
        let bytes = file.metadata().ok()?.len();
        let mut ends = header
            .segments(&file, PT_LOAD)
            .filter_map(|segment| u64_at(&segment, 8)?.checked_add(u64_at(&segment, 32)?))
            .peekable();
        ends.peek()?;
        Some(head.starts_with(b"\x7fELF") && ends.all(|end| end <= bytes))
    };
    whole() == Some(true)
}

fn inspect(path: &Path, depth: u32) -> Option<Obstacle> {
    let file = File::open(path).ok()?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&file)
        .take(HEAD_BYTES as u64)
        .read_to_end(&mut head)
        .ok()?;
    if let Some(line) = head.strip_prefix(b"#!") {
        // The kernel ignores a script's set-uid bit; only its interpreter's counts.
        let interpreter = interpreter(line)?;
        return if depth == 0 {
            None
        } else {
            inspect(&interpreter, depth - 1)
        };
    }
    if !head.starts_with(b"\x7fELF") {
        // `execvp` runs a file of unknown format with /bin/sh.
        return None;
    }
    if is_privileged(path, &file) {
        return Some(Obstacle::Privileged(path.into()));
    }
    let Some(header) = ElfHeader::parse(&head) else {
        return Some(Obstacle::ForeignMachine(path.into()));
    };
    match header.loader(&file) {
        // A dynamic linker that is started as a program loads the library, too.
        None if header.is_library(&head, &file) => None,
        None => Some(Obstacle::Static(path.into())),
        Some(loader) if KNOWN_LOADERS.iter().any(|known| loader.contains(known)) => header
            .library_that_must_be_first(&file)
            .map(|library| Obstacle::Sanitized(path.into(), library)),
        Some(loader) => Some(Obstacle::ForeignLoader(path.into(), loader)),
    }
}

/// The interpreter in the first line of a script, also after `env`.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let interpreter = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    if interpreter.file_name() == Some(OsStr::new("env")) {
        let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
        return find(OsStr::from_bytes(program)).ok();
    }
    Some(interpreter)
}

/// Whether executing this file changes the user of the process, so that the loader ignores its
/// environment.
fn is_privileged(path: &Path, file: &File) -> bool {
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let set_uid = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != uid;
    let set_gid = metadata.mode() & libc::S_ISGID != 0 && metadata.gid() != gid;
    // Root has every capability already, so file capabilities change nothing for it.
    set_uid || set_gid || (uid != 0 && has_capabilities(path))
}

fn has_capabilities(path: &Path) -> bool {
    // An empty buffer asks for the length only.
    getxattr(path, c"security.capability", &mut [0u8; 0]).is_ok_and(|length| length > 0)
}

fn find_in(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, FindError> {
    let not_found = || FindError::NotFound {
        name: name.to_owned(),
    };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match judge(&path) {
            Found::Runs => Ok(path),
            Found::Refused => Err(FindError::CannotExecute { path }),
            Found::Nothing => Err(not_found()),
        };
    }
    let mut refused = None;
    for directory in std::env::split_paths(search.unwrap_or(OsStr::new(PATH_DEFAULT))) {
        let directory = if directory.as_os_str().is_empty() {
            ".".into()
        } else {
            directory
        };
        let path = directory.join(name);
        match judge(&path) {
            Found::Runs => return Ok(path),
            Found::Refused => refused = refused.or(Some(path)),
            Found::Nothing => {}
        }
    }
    Err(refused.map_or_else(not_found, |path| FindError::CannotExecute { path }))
}

enum Found {
    Runs,
    Refused,
    Nothing,
}

fn judge(path: &Path) -> Found {
    let Ok(metadata) = fs::metadata(path) else {
        return Found::Nothing;
    };
    let is_executable = access(path, Access::EXEC_OK).is_ok();
    if metadata.is_file() && is_executable {
        Found::Runs
    } else {
        Found::Refused
    }
}

/// The parts of an ELF header for this machine that are needed to find the loader's name.
struct ElfHeader {
    table_offset: u64,
    entry_bytes: u64,
    entries: u64,
}

impl ElfHeader {
    /// `None` for a program of another machine, word size or byte order.
    fn parse(head: &[u8]) -> Option<ElfHeader> {
        const CLASS_64: u8 = 2;
        let little = 1 + u8::from(cfg!(target_endian = "big"));
        if *head.get(4)? != CLASS_64 || *head.get(5)? != little {
            return None;
        }
        if u16_at(head, 18)? != MACHINE {
            return None;
        }
        Some(ElfHeader {
            table_offset: u64_at(head, 32)?,
            entry_bytes: u16_at(head, 54)?.into(),
            entries: u16_at(head, 56)?.into(),
        })
    }

    /// The program headers of one kind.
    fn segments<'a>(
        &'a self,
        file: &'a File,
        kind: u32,
    ) -> impl Iterator<Item = [u8; HEADER_BYTES]> + 'a {
        let usable = self.entry_bytes >= HEADER_BYTES as u64;
        let indices = 0..if usable { self.entries } else { 0 };
        let headers = indices.filter_map(|index| {
            let mut header = [0u8; HEADER_BYTES];
            let offset = self.table_offset.checked_add(index * self.entry_bytes)?;
            file.read_exact_at(&mut header, offset).ok()?;
            Some(header)
        });
        headers.filter(move |header| u32_at(header, 0) == Some(kind))
    }

    /// True for a library, false for a position-independent program.
    fn is_library(&self, head: &[u8], file: &File) -> bool {
        const ET_DYN: u16 = 3;
        const DT_FLAGS_1: u64 = 0x6fff_fffb;
        const DF_1_PIE: u64 = 0x0800_0000;
        let is_pie = |entry: &[u8]| {
            u64_at(entry, 0) == Some(DT_FLAGS_1)
                && u64_at(entry, 8).is_some_and(|flags| flags & DF_1_PIE != 0)
        };
        let table = self.dynamic(file);
        let is_program = table.is_none_or(|table| table.chunks_exact(16).any(is_pie));
        u16_at(head, 16) == Some(ET_DYN) && !is_program
    }

    /// The dynamic section.
    fn dynamic(&self, file: &File) -> Option<Vec<u8>> {
        const PT_DYNAMIC: u32 = 2;
        let dynamic = self.segments(file, PT_DYNAMIC).next()?;
        let length = u64_at(&dynamic, 32)?.min(DYNAMIC_BYTES_MAX) as usize;
        let mut table = vec![0; length];
        file.read_exact_at(&mut table, u64_at(&dynamic, 8)?).ok()?;
        Some(table)
    }

    /// The AddressSanitizer run-time library, if the program is linked with it: it ends the program
    /// if another library comes first.
    fn library_that_must_be_first(&self, file: &File) -> Option<String> {
        const DT_NEEDED: u64 = 1;
        const DT_STRTAB: u64 = 5;
        let table = self.dynamic(file)?;
        let tags = |wanted| {
            let entries = table.chunks_exact(16);
            let values = entries.filter(move |entry| u64_at(entry, 0) == Some(wanted));
            values.filter_map(|entry| u64_at(entry, 8))
        };
        // The address of the strings in memory, and from that their offset in the file.
        let address = tags(DT_STRTAB).next()?;
        let strings = self.segments(file, PT_LOAD).find_map(|segment| {
            let at = address.checked_sub(u64_at(&segment, 16)?)?;
            (at < u64_at(&segment, 32)?).then_some(at.checked_add(u64_at(&segment, 8)?)?)
        })?;
        let mut needed = tags(DT_NEEDED).filter_map(|name| {
            let mut text = [0u8; 64];
            let length = file.read_at(&mut text, strings.checked_add(name)?).ok()?;
            let name = text[..length].split(|byte| *byte == 0).next()?;
            Some(String::from_utf8_lossy(name).into_owned())
        });
        needed.find(|name| FIRST_LIBRARIES.iter().any(|first| name.starts_with(first)))
    }

    /// The loader (PT_INTERP) that the program asks for, if any.
    fn loader(&self, file: &File) -> Option<String> {
        const PT_INTERP: u32 = 3;
        let mut entry = [0u8; 56];
        if self.entry_bytes < entry.len() as u64 {
            return None;
        }
        for index in 0..self.entries {
            let offset = self.table_offset.checked_add(index * self.entry_bytes)?;
            file.read_exact_at(&mut entry, offset).ok()?;
            if u32_at(&entry, 0)? == PT_INTERP {
                let length = u64_at(&entry, 32)?.min(LOADER_BYTES_MAX) as usize;
                let mut name = vec![0; length];
                file.read_exact_at(&mut name, u64_at(&entry, 8)?).ok()?;
                let name = name.split(|byte| *byte == 0).next()?;
                return Some(String::from_utf8_lossy(name).into_owned());
            }
        }
        None
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The kind of program headers whose content is mapped (elf(5)).
const PT_LOAD: u32 = 1;

/// This machine's number in ELF files (EM_X86_64, EM_AARCH64).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

/// The longest chain of interpreters that is followed; the kernel's own limit is similar.
const SCRIPT_DEPTH_MAX: u32 = 4;

/// Enough for an ELF header and for the first line of a script (the kernel reads 256 bytes of it).
const HEAD_BYTES: usize = 256;

const LOADER_BYTES_MAX: u64 = 4096;

/// Bytes of a program header of a 64-bit program.
const HEADER_BYTES: usize = 56;

/// The largest dynamic section that is read; ordinary programs have 640 bytes.
const DYNAMIC_BYTES_MAX: u64 = 8192;

/// Prefixes of the names of dynamic linkers that can load the library: glibc's and musl's.
const KNOWN_LOADERS: [&str; 2] = ["ld-linux", "ld-musl-"];

/// Prefixes of the names of AddressSanitizer's run-time libraries: GCC's and Clang's.
const FIRST_LIBRARIES: [&str; 2] = ["libasan.so", "libclang_rt.asan"];

/// The folders that `execvp` searches when there is no PATH.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    struct Scratch(TempDir);

    impl Scratch {
        fn new() -> Scratch {
            Scratch(tempfile::tempdir().expect("scratch directory"))
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, content).expect("file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            path
        }
    }

    /// An ELF file for this machine with one program header of this type, naming this loader.
    fn elf(kind: u32, loader: &str) -> Vec<u8> {
        let mut bytes = vec![0u8; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&MACHINE.to_ne_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
        bytes[64..68].copy_from_slice(&kind.to_ne_bytes());
        bytes[72..80].copy_from_slice(&120u64.to_ne_bytes());
        bytes[96..104].copy_from_slice(&(loader.len() as u64 + 1).to_ne_bytes());
        bytes.extend_from_slice(loader.as_bytes());
        bytes.push(0);
        bytes
    }

    #[test]
    fn a_dynamic_program_has_no_obstacle() {
        let this = std::env::current_exe().expect("this test");
        assert_eq!(obstacle(&this), None);
        let scratch = Scratch::new();
        let path = scratch.file("a", &elf(3, "/lib64/ld-linux-x86-64.so.2"), 0o755);
        assert_eq!(obstacle(&path), None);
    }

    #[test]
    fn a_static_program_is_reported() {
        let scratch = Scratch::new();
        let path = scratch.file("a", &elf(1, ""), 0o755);
        assert_eq!(obstacle(&path), Some(Obstacle::Static(path.clone())));
    }

    #[test]
    fn a_loader_is_not_taken_for_a_static_program() {
        let this = std::env::current_exe().expect("this test");
        let loader = PathBuf::from(loader(&this).expect("the test is dynamic"));
        assert_eq!(obstacle(&loader), None);
    }

    #[test]
    fn another_c_library_is_reported() {
        let scratch = Scratch::new();
        let path = scratch.file("a", &elf(3, "/lib/ld-musl-x86_64.so.1"), 0o755);
        assert_eq!(obstacle(&path), None);
        let path = scratch.file("a", &elf(3, "/system/bin/linker64"), 0o755);
        assert!(matches!(obstacle(&path), Some(Obstacle::ForeignLoader(..))));
    }

    #[test]
    fn another_word_size_is_reported() {
        let scratch = Scratch::new();
        let mut bytes = elf(3, "/lib/ld-linux.so.2");
        bytes[4] = 1;
        let path = scratch.file("a", &bytes, 0o755);
        assert_eq!(
            obstacle(&path),
            Some(Obstacle::ForeignMachine(path.clone()))
        );
    }

    #[test]
    fn a_cut_off_program_is_no_panic() {
        let scratch = Scratch::new();
        let whole = elf(3, "/lib64/ld-linux-x86-64.so.2");
        for length in 0..whole.len() {
            let path = scratch.file("a", &whole[..length], 0o755);
            obstacle(&path);
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let scratch = Scratch::new();
        let fixed = scratch.file("static", &elf(1, ""), 0o755);
        let script = scratch.file(
            "s",
            format!("#! {} -x\n", fixed.display()).as_bytes(),
            0o755,
        );
        let outer = scratch.file("t", format!("#!{}\n", script.display()).as_bytes(), 0o755);
        assert_eq!(obstacle(&outer), Some(Obstacle::Static(fixed)));
        let plain = scratch.file("u", b"#!/usr/bin/env -S sh -e\n", 0o755);
        assert_eq!(obstacle(&plain), None);
        let itself = scratch.file("v", b"", 0o755);
        fs::write(&itself, format!("#!{}\n", itself.display())).expect("file");
        assert_eq!(obstacle(&itself), None);
    }

    #[test]
    fn a_program_with_another_owner_s_rights_is_reported() {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root can make a set-uid file of another user");
            return;
        }
        let scratch = Scratch::new();
        let path = scratch.file("a", &elf(3, "/lib64/ld-linux-x86-64.so.2"), 0o755);
        std::os::unix::fs::chown(&path, Some(65_534), None).expect("chown");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("mode");
        assert_eq!(obstacle(&path), Some(Obstacle::Privileged(path.clone())));
    }

    #[test]
    fn programs_are_found_as_execvp_finds_them() {
        let scratch = Scratch::new();
        let search = Some(scratch.0.path().as_os_str());
        let good = scratch.file("good", b"", 0o755);
        let refused = scratch.file("refused", b"", 0o644);
        assert_eq!(find_in(OsStr::new("good"), search), Ok(good.clone()));
        assert_eq!(find_in(good.as_os_str(), None), Ok(good));
        let error = find_in(OsStr::new("refused"), search).expect_err("not executable");
        assert_eq!(error, FindError::CannotExecute { path: refused });
        let error = find_in(OsStr::new("none"), search).expect_err("missing");
        assert!(error.to_string().contains("in PATH"));
        assert!(find_in(OsStr::new(""), search).is_err());
        assert!(matches!(
            find_in(scratch.0.path().as_os_str(), None),
            Err(FindError::CannotExecute { .. })
        ));
    }
}
