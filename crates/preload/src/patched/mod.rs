//! Patched programs: the doors through which a program enters the library that makes its system
//! calls itself.
//!
//! `toehold run` maps the library into a static program when it starts, and leads the program's
//! `syscall` instructions here (`toehold-sites` plans that). A program of Go or Rust that has a
//! dynamic linker is patched by the library's constructor. Code in this module uses no libc and no
//! thread-local storage. The door (`crate::door`) answers the calls.
//!
//! - [`within`]: the constructor's part.
//! - [`libraries`]: libraries of Go, which are patched before their first thread begins.
//! - [`object`]: the program and its libraries in memory.
//! - [`entry`]: from a stub to [`calls::handle`] and back, on a stack of the library's own.
//! - [`frame`]: what the entry saves there.
//! - [`area`]: each thread's memory for that.
//! - [`calls`]: which calls come here, and what follows a new thread or process.
//! - [`counts`]: how often each call came, for tests.
//! - [`cancellation`]: threads that musl ends in the midst of a call.
//! - [`words`]: each thread's word, where threads have no area.
//! - [`refusal`]: why the constructor has left a program as it is.
//! - [`raw`]: system calls past everybody.

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
    /// Where stubs of a program enter whose stacks are small and move: Go.
    private: unsafe extern "C" fn(),
    /// Where stubs of other programs enter.
    own: unsafe extern "C" fn(),
    /// The numbers of the calls that are wanted here.
    wanted: *const u16,
    /// How many these are.
    wanted_count: u64,
    /// How large a thread's area is.
    area_bytes: u64,
    /// How often each call came here, by its number: [`counts::COUNTS_LEN`] words.
    counts: *const counts::Counts,
    /// The words of threads that enter by `private`.
    words_private: Words,
    /// The words of threads that enter by `own`.
    words_own: Words,
}

// SAFETY: the pointers are to statics of the library.
unsafe impl Sync for Doors {}

/// Found by its name in the library's dynamic symbols.
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
