//! Finds code that makes socket calls past libc and is not patched, in programs with the library.
//! All code of Go makes its system calls in this way.
//!
//! The library patches programs of Go and Rust, and libraries of Go, and reports failures. It does
//! not search other code, because that would slow down the start of every program. So other code is
//! searched here, on request: in the files that a process executes, and in the memory of a program
//! that has unpacked its code there.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use toehold_sites::elf::{Image, Segment};
use toehold_sites::numbers::{is_on_socket, is_shown};
use toehold_sites::stub::TABLE_BYTES;
use toehold_sites::sweep::{Bits, Swept, words};

use crate::proc::mappings::{self, Mappings};
use crate::tables::FileKey;

/// The files of all processes that were searched.
#[derive(Debug)]
pub(crate) struct Searched {
    files: BTreeMap<FileKey, Option<Code>>,
    /// Limits how many bytes are read in all, because other users may have many processes and
    /// files.
    bytes_left: u64,
}

impl Default for Searched {
    fn default() -> Searched {
        Searched {
            files: BTreeMap::new(),
            bytes_left: BYTES_MAX,
        }
    }
}

/// Whether the calls of a process are to be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patching {
    /// Calls are not patched.
    Off,
    /// Calls are patched in the program that `toehold run` has become.
    Run,
    /// Calls are patched in programs that another program has executed.
    Executed,
}

/// Code that makes socket calls with its own instructions, or, for Go, may make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Code {
    language: Language,
    is_large: bool,
    /// The file needs no loader: as a program it gets the library and its patches from a helper.
    stands_alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Go,
    Rust,
    Other,
}

/// Larger files are not read.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// The most bytes that are read of all files.
const BYTES_MAX: u64 = 1 << 30;
/// The library searches at most this much code of a Rust program that another program has executed
/// (`toehold_preload::patched::within`). For other programs this is the limit here.
const CODE_BYTES_MAX: u64 = 16 << 20;
/// A process that has no mapped file with such a name has no loader.
const LOADERS: [&str; 3] = ["ld-", "libc.", "libc-"];
/// Files of libc. The library replaces their calls by name.
const OF_LIBC: [&str; 5] = ["ld-", "libc.", "libc-", "libpthread", "libtoehold."];

impl Searched {
    /// The reason why a process makes calls that the library does not see; `None` when it seems to
    /// make no such calls.
    pub(crate) fn reason(
        &mut self,
        pid: u32,
        mappings: &Mappings,
        patching: Patching,
    ) -> Option<String> {
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let mut has_libc = false;
        let mut executed = mappings.executed();
        let found = executed.find_map(|(file, path)| {
            let name = path.rsplit('/').next().unwrap_or(path);
            has_libc |= LOADERS.iter().any(|begin| name.starts_with(begin));
            if OF_LIBC.iter().any(|begin| name.starts_with(begin)) {
                return None;
            }
            let bytes_left = &mut self.bytes_left;
            let code = self.files.entry(file);
            let code = code.or_insert_with(|| search(pid, path, bytes_left));
            let is_program = program.as_os_str() == path;
            let code = (*code)?;
            let why = code.why(is_program, patching);
            let why = why.or_else(|| {
                let is_unchanged =
                    code.is_patched_late(is_program) && !mappings::has_written(pid, file);
                is_unchanged.then_some(OUT_OF_REACH)
            })?;
            let what = if is_program { "program" } else { "library" };
            let calls = code.calls();
            let name: String = name.chars().take(NAME_CHARS_MAX).collect();
            Some(format!(
                "{what} {name} makes {calls} past libc, which are not patched: {why}; the \
                 connections that it makes by them run on kernel TCP"
            ))
        });
        // Only a program without a loader makes all its calls itself, wherever its code comes from.
        let is_packed = found.is_none() && !has_libc && self.has_unpacked(pid, mappings);
        let name = program.file_name().filter(|_| is_packed);
        let name = name.map(|name| {
            name.to_string_lossy()
                .chars()
                .take(NAME_CHARS_MAX)
                .collect()
        });
        found.or(name.map(|name: String| {
            format!(
                "program {name} makes system calls by code that is in no file, which are not \
                 patched: it is packed, or makes its code itself; the connections that it makes \
                 by them run on kernel TCP"
            )
        }))
    }

    /// Whether code that is in no file makes system calls, if we may read the memory.
    fn has_unpacked(&mut self, pid: u32, mappings: &Mappings) -> bool {
        let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
            return false;
        };
        let (mut bytes, mut bytes_left) = (Vec::new(), CODE_BYTES_MAX.min(self.bytes_left));
        // Stubs of patches belong to the library: each begins with an address in the library.
        let are_stubs = |from: u64| {
            let mut word = [0; 8];
            let at = from.saturating_add(TABLE_BYTES as u64);
            memory.read_exact_at(&mut word, at).is_ok()
                && mappings.is_in_library(u64::from_le_bytes(word))
        };
        let mut codes = mappings.unnamed_code();
        let is_found = codes.any(|(from, to)| {
            let mut at = if are_stubs(from) { to } else { from };
            while at < to && bytes_left > 0 {
                let part = (to - at).min(PART_BYTES).min(bytes_left);
                bytes.resize(part as usize, 0);
                bytes_left -= part;
                let is_read = memory.read_exact_at(&mut bytes, at).is_ok();
                if is_read && makes_calls(&bytes, is_shown) {
                    return true;
                }
                at += part;
            }
            false
        });
        self.bytes_left -= CODE_BYTES_MAX.min(self.bytes_left) - bytes_left;
        is_found
    }
}

/// Bytes of a process's memory that are read at once.
const PART_BYTES: u64 = 1 << 20;

/// The library does not see the start of its first thread (`pthread_create`).
const OUT_OF_REACH: &str = "the program has opened it with RTLD_DEEPBIND or by dlmopen";
/// The most characters of a file's name that are reported.
const NAME_CHARS_MAX: usize = 64;

impl Code {
    /// The reason why such a program or library is not patched, if it is not.
    fn why(self, is_program: bool, patching: Patching) -> Option<&'static str> {
        match (self.language, is_program, patching) {
            (_, true, _) if self.stands_alone => None,
            (Language::Other, true, _) => Some("only programs of Go and Rust are searched"),
            (_, _, Patching::Off) => Some("--patch-calls is off"),
            (Language::Go, _, _) | (Language::Rust, true, Patching::Run) => None,
            (Language::Rust, true, _) => self.is_large.then_some(
                "more than 16 MB of Rust's code are searched only in the program that toehold run \
                 becomes",
            ),
            (_, false, _) => Some("only libraries of Go are searched"),
        }
    }

    /// Words for the calls that it makes with its own instructions.
    fn calls(self) -> &'static str {
        match self.language {
            Language::Go => "system calls",
            Language::Rust | Language::Other => "socket calls",
        }
    }

    /// Whether it is patched when its first thread begins, if the library sees that.
    fn is_patched_late(self, is_program: bool) -> bool {
        self.language == Language::Go && !is_program
    }
}

/// Looks for socket calls in a file that a process executes.
fn search(pid: u32, path: &str, bytes_left: &mut u64) -> Option<Code> {
    // Another file may be there by now, so opening must not block.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(format!("/proc/{pid}/root{path}")).ok()?;
    let status = file.metadata().ok()?;
    if !status.is_file() || status.len() > FILE_BYTES_MAX {
        return None;
    }
    let mut file = Parts {
        file,
        bytes: vec![0; status.len() as usize],
        bytes_left,
    };
    file.read(0, HEAD_BYTES);
    let word = |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk().copied();
    let sections = u64::from_le_bytes(word(&file.bytes, SECTIONS_AT)?);
    file.read(sections, SECTION_BYTES_ALL);
    let image = Image::parse(&file.bytes)?;
    let small = image.sections().filter(|one| one.bytes <= HEAD_BYTES);
    let small: Vec<_> = small.map(|one| (one.offset, one.bytes)).collect();
    let segments: Vec<Segment> = image.segments().collect();
    // Small sections contain the compilers' signatures; data segments of Go begin with Go's
    // signature.
    for (offset, bytes) in small {
        file.read(offset, bytes);
    }
    for segment in segments.iter().filter(|one| !one.is_code()) {
        file.read(segment.offset, segment.file_bytes.min(HEAD_BYTES));
    }
    let image = Image::parse(&file.bytes)?;
    let stands_alone = image.stands_alone();
    let language = match (image.is_go(), image.is_rust()) {
        (true, _) => Language::Go,
        (_, true) => Language::Rust,
        _ => Language::Other,
    };
    if language == Language::Go {
        // Go makes most of its calls at one place, with the number in a variable.
        let is_large = false;
        return Some(Code {
            language,
            is_large,
            stands_alone,
        });
    }
    let codes = segments.iter().filter(|one| one.is_code());
    let codes: Vec<&Segment> = codes.collect();
    let is_large = codes.iter().any(|code| code.file_bytes > CODE_BYTES_MAX);
    if is_large && language == Language::Other {
        return None;
    }
    let makes_calls = codes.into_iter().any(|code| {
        file.read(code.offset, code.file_bytes);
        let image = Image::parse(&file.bytes);
        let code = image.and_then(|image| image.range(code.offset, code.file_bytes));
        code.is_some_and(|code| makes_calls(code, is_on_socket))
    });
    makes_calls.then_some(Code {
        language,
        is_large,
        stands_alone,
    })
}

/// Bytes that are read at the beginning of a file or segment: they contain the signs of the
/// language, and the headers of segments.
const HEAD_BYTES: u64 = 64 << 10;
/// Offset of the field `e_shoff`, which holds the place of the section headers.
const SECTIONS_AT: usize = 40;
/// The headers of as many sections as a file has at most, but for those of single functions.
const SECTION_BYTES_ALL: u64 = 64 << 10;

/// A file of which parts have been read; the other parts are zeros without memory. The file is not
/// mapped, because its owner may truncate it meanwhile.
struct Parts<'a> {
    file: File,
    bytes: Vec<u8>,
    bytes_left: &'a mut u64,
}

impl Parts<'_> {
    /// Reads as much of a part as there is.
    fn read(&mut self, from: u64, bytes: u64) {
        let all = self.bytes.len() as u64;
        let to = from.saturating_add(bytes).min(all);
        let needed = to.saturating_sub(from);
        if needed > 0 && needed <= *self.bytes_left {
            *self.bytes_left -= needed;
            let part = &mut self.bytes[from as usize..to as usize];
            // Zeros are no signature and no system call.
            let _ = self.file.read_exact_at(part, from);
        }
    }
}

/// Whether `is_one_of` is true for one of the system calls in the code.
fn makes_calls(code: &[u8], is_one_of: impl Fn(&[u8], usize) -> bool) -> bool {
    let mut bits = vec![0; 2 * words(code.len())];
    let (starts, targets) = bits.split_at_mut(words(code.len()));
    let mut swept = Swept::new(code, Bits { starts, targets });
    let mut is_one = false;
    swept.search(0..code.len(), |site| is_one |= is_one_of(code, site));
    is_one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_patched_needs_no_reason() {
        let code = |language, is_large| Code {
            language,
            is_large,
            stands_alone: false,
        };
        let why = |code: Code, is_program, patching| code.why(is_program, patching).is_some();
        for (language, is_large, is_program, patching, expected) in [
            (Language::Go, true, true, Patching::Executed, false),
            (Language::Go, true, false, Patching::Run, false),
            (Language::Go, false, false, Patching::Off, true),
            (Language::Rust, true, true, Patching::Run, false),
            (Language::Rust, false, true, Patching::Executed, false),
            (Language::Rust, true, true, Patching::Executed, true),
            (Language::Rust, false, false, Patching::Run, true),
            (Language::Other, false, true, Patching::Run, true),
        ] {
            let why = why(code(language, is_large), is_program, patching);
            assert_eq!(
                why, expected,
                "{language:?} {is_large} {is_program} {patching:?}"
            );
        }
        for language in [Language::Rust, Language::Other] {
            let code = Code {
                stands_alone: true,
                ..code(language, true)
            };
            assert_eq!(code.why(true, Patching::Executed), None, "{language:?}");
        }
    }

    #[test]
    fn socket_calls_are_found_in_libc() {
        let maps = fs::read_to_string("/proc/self/maps").expect("ours");
        let libc = maps.lines().find(|line| line.contains("/libc.so"));
        let libc = libc.and_then(|line| line.find('/').map(|at| &line[at..]));
        let mut bytes_left = BYTES_MAX;
        let mut search = |path| search(std::process::id(), path, &mut bytes_left);
        let found = libc.and_then(&mut search);
        assert_eq!(
            found.map(|code| code.language),
            libc.map(|_| Language::Other)
        );
        assert!(search("/nowhere").is_none());
        assert!((1..BYTES_MAX).contains(&bytes_left));
        let mut search = |path| super::search(std::process::id(), path, &mut 0);
        assert!(libc.and_then(&mut search).is_none());
    }
}
