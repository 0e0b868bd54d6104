//! The reason why the library's constructor has not patched a program. The reason is always given
//! to `toehold status`, and printed on standard error if `toehold run` itself has become the
//! program.
//!
//! `status` reads the mappings of programs. So the reason is passed as the name of a mapping, which
//! is never touched. The mapping exists exactly as long as the reason is true: as long as the
//! program runs, and in its forked children, but not in a program that is executed.

use core::ffi::CStr;

use toehold_freestanding::environment::variable;
use toehold_freestanding::{call, memory};

/// The reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The processor or the kernel does not support access to GS.
    NoGs,
    /// There is no memory.
    NoMemory,
    /// There is no site that can be patched.
    NoSites,
    /// A site that makes a call about sockets cannot be patched.
    NoRoomForOne,
    /// The stubs would be too far away.
    NoRoom,
    /// The system forbids execution of memory that was written.
    NoExecutableMemory,
    /// The program's memory cannot be opened.
    NoProc,
    /// The program's memory cannot be written.
    NotWritable,
    /// The program has a signal handler that rewinds interrupted system calls.
    Guarded,
    /// The library was not started.
    NotServed,
    /// There are more libraries of Go than can be patched.
    TooMany,
}

impl Refusal {
    fn sentence(self) -> &'static str {
        match self {
            Refusal::NoGs => "this processor or kernel does not let programs set GS (FSGSBASE)",
            Refusal::NoMemory => "there is no memory for it",
            Refusal::NoSites => "there are none, or none that can be patched safely",
            Refusal::NoRoomForOne => "one about sockets has no room for a patch",
            Refusal::NoRoom => "there is no room near its code",
            Refusal::NoExecutableMemory => {
                "it may not make memory executable; a security module may be the reason"
            }
            Refusal::NoProc => {
                "/proc/self/mem cannot be opened; /proc may be missing, or a security module may \
                 be the reason"
            }
            Refusal::NotWritable => {
                "its code cannot be written by /proc/self/mem; a security module or a filter for \
                 system calls may be the reason"
            }
            Refusal::Guarded => {
                "its signal handlers look whether they interrupt one, as those of emulators do \
                 (qemu-user)"
            }
            Refusal::NotServed => {
                "the library does not serve it; a filter for system calls may be the reason"
            }
            Refusal::TooMany => "more than 1,024 libraries of Go are in the process",
        }
    }

    /// Reports the reason for the program.
    pub(crate) fn tell(self) {
        self.tell_of([b"its", b"", b""], true);
    }

    /// Reports the reason for a library. It is printed for the user only if no code of the program
    /// has run yet, so that the line does not mix with the program's output.
    pub(super) fn tell_of_library(self, name: &[u8], is_user_told: bool) {
        let name = &name[..name.len().min(LIBRARY_BYTES_MAX)];
        self.tell_of([b"library ", name, b": its"], is_user_told);
    }

    fn tell_of(self, whose: [&[u8]; 3], is_user_told: bool) {
        self.tell_status(whose);
        if is_user_told && is_run_by_user() {
            let [a, b, c] = whose;
            let sentence = self.sentence().as_bytes();
            let line = Line::of(&[b"toehold: ", a, b, c, BEGINNING, sentence, END]);
            // SAFETY: the line is readable for its length.
            unsafe { call!(SYS_write, 2, line.bytes.as_ptr(), line.len) };
        }
    }

    /// Reports to `toehold status` by the name of a mapping.
    fn tell_status(self, [a, b, c]: [&[u8]; 3]) {
        let sentence = self.sentence().as_bytes();
        let name = Line::of(&[MAPPING, a, b, c, BEGINNING, sentence, b"\0"]);
        if let Ok(name) = CStr::from_bytes_with_nul(&name.bytes[..name.len]) {
            memory::tell_by_name(name);
        }
    }
}

/// True when `toehold run` itself has become this program. False in programs that this one has
/// started.
pub(super) fn is_run_by_user() -> bool {
    // SAFETY: no other thread runs, so nobody changes the environment; the value is not used later.
    let number = unsafe { variable(c"TOEHOLD_STARTED") };
    let number = number.and_then(|number| core::str::from_utf8(number).ok()?.parse().ok());
    // SAFETY: no memory is involved.
    number == Some(unsafe { call!(SYS_getpid) })
}

/// The beginning of the mapping's name (`toehold_adapter::unserved` reads it).
const MAPPING: &[u8] = b"toehold-unpatched:";
const BEGINNING: &[u8] = b" system calls cannot be patched: ";
const END: &[u8] = b"; the connections that it makes by them run on kernel TCP\n";
/// The most bytes of a library's name that are reported.
const LIBRARY_BYTES_MAX: usize = 64;
/// The kernel's limit for the name of such a file, in bytes.
const NAME_BYTES_MAX: usize = 249;

/// A few words in a row.
struct Line {
    bytes: [u8; LINE_BYTES_MAX],
    len: usize,
}

const LINE_BYTES_MAX: usize = 320;
const _: () = assert!(LINE_BYTES_MAX > NAME_BYTES_MAX);

impl Line {
    fn of(parts: &[&[u8]]) -> Line {
        let mut line = Line {
            bytes: [0; LINE_BYTES_MAX],
            len: 0,
        };
        let bytes = parts.iter().copied().flatten().copied();
        for (place, byte) in line.bytes.iter_mut().zip(bytes) {
            *place = byte;
            line.len += 1;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_fits_into_a_name() {
        for refusal in [
            Refusal::NoGs,
            Refusal::NoMemory,
            Refusal::NoSites,
            Refusal::NoRoomForOne,
            Refusal::NoRoom,
            Refusal::NoExecutableMemory,
            Refusal::NoProc,
            Refusal::NotWritable,
            Refusal::Guarded,
            Refusal::NotServed,
            Refusal::TooMany,
        ] {
            let sentence = refusal.sentence().as_bytes();
            let library = [&b"library "[..], &[b'x'; LIBRARY_BYTES_MAX], b": its"].concat();
            let name = [MAPPING, &library, BEGINNING, sentence].concat();
            assert!(
                name.len() <= NAME_BYTES_MAX && !name.contains(&b'\n'),
                "{}",
                refusal.sentence()
            );
            assert!(name.len() + END.len() < LINE_BYTES_MAX);
        }
    }
}
