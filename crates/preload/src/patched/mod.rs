//! Patched programs: how a program that makes its system calls itself enters the library.
//!
//! `toehold run` maps the library into a static program when it starts, and redirects the program's
//! `syscall` instructions to it (`toehold-sites` plans that). A program of Go or Rust that has a
//! dynamic linker is patched by the library's constructor. Code in this module uses no libc and no
//! thread-local storage. The door (`crate::door`) answers the calls.
//!
//! - [`within`]: the constructor's part.
//! - [`libraries`]: libraries of Go, which are patched before their first thread begins.
//! - [`object`]: the program and its libraries in memory.
//! - [`entry`]: from a stub to [`calls::handle`] and back, on the library's stack.
//! - [`frame`]: the state that the entry saves there.
//! - [`area`]: each thread's memory for that.
//! - [`calls`]: the calls that come here, and the handling of new threads and processes.
//! - [`counts`]: how often each call came, for tests.
//! - [`cancellation`]: threads that are cancelled during a call.
//! - [`words`]: each thread's word, for threads without an area.
//! - [`refusal`]: why the constructor has not patched a program.
//! - [`raw`]: system calls without libc and errno.

pub(crate) mod area;
pub(crate) mod calls;
mod cancellation;
pub(crate) mod counts;
pub(crate) mod entry;
pub(crate) mod frame;
pub(crate) mod libraries;
mod object;
pub(crate) mod raw;
pub(crate) mod refusal;
pub(crate) mod within;
pub(crate) mod words;

use toehold_freestanding::errno::Words;

/// The words that the launcher reads in the library's file.
#[repr(C)]
pub(crate) struct Doors {
    /// The layout of this and of [`area::Area`]: the launcher checks it.
    version: u64,
    /// The entry for stubs of a program whose stacks are small and move: Go.
    private: unsafe extern "C" fn(),
    /// The entry for stubs of other programs.
    own: unsafe extern "C" fn(),
    /// The numbers of the calls that are wanted here.
    wanted: *const u16,
    /// Number of these calls.
    wanted_count: u64,
    /// Size of a thread's area in bytes.
    area_bytes: u64,
    /// The number of times that each call came here, by its number: [`counts::COUNTS_LEN`] words.
    counts: *const counts::Counts,
    /// The words of threads that enter by `private`.
    words_private: Words,
    /// The words of threads that enter by `own`.
    words_own: Words,
}

// SAFETY: the pointers are to statics of the library.
unsafe impl Sync for Doors {}

/// The launcher finds this by name in the library's dynamic symbols.
#[unsafe(no_mangle)]
pub(crate) static TOEHOLD_DOORS: Doors = Doors {
    version: 1,
    private: entry::private,
    own: entry::own,
    wanted: calls::WANTED.as_ptr(),
    wanted_count: calls::WANTED.len() as u64,
    area_bytes: area::AREA_BYTES as u64,
    counts: &raw const counts::COUNTS,
    words_private: area::word,
    words_own: words::word,
};
