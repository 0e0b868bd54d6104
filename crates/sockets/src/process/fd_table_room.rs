//! The size of the kernel's descriptor table of this process.
//!
//! `select` looks at no more descriptors than that, whatever number the program gives it. The
//! kernel shows the size only indirectly: `select` refuses the bit of a closed descriptor with
//! `EBADF` if the table has a place for it, and ignores the bit if it has none (`max_select_fd` in
//! fs/select.c). The room is a power of two, at least 64, and never shrinks (`alloc_fdtable` in
//! fs/file.c). Only a child may begin with less.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{fd_set, timeval};
use toehold_freestanding::memory;

use crate::process;
use crate::system::{real, sys};

/// The smallest size of a table.
pub(crate) const LEAST: c_int = 64;

/// The size that was found, in the lower half; the process for which it was found, in the upper
/// half.
static FOUND: AtomicU64 = AtomicU64::new(0);

/// The smaller of `count` and the table's size.
pub(crate) fn of(count: c_int) -> c_int {
    let pid = process::pid();
    // Relaxed: no other memory depends on it.
    let found = FOUND.load(Ordering::Relaxed);
    let known = match (found >> 32) as u32 == pid {
        true => found as u32 as c_int,
        false => LEAST,
    };
    let mut room = known;
    while room < count && has_place(room) {
        room = room.saturating_mul(2);
    }
    if room != known {
        FOUND.store(u64::from(pid) << 32 | room as u64, Ordering::Relaxed);
    }
    room.min(count)
}

/// True when the table has a place for the descriptor `fd`, open or not.
fn has_place(fd: c_int) -> bool {
    const INLINE_WORDS: usize = 1024 / 64;
    let is_open = || sys::fcntl(fd, libc::F_GETFD, 0) >= 0;
    let words = fd as usize / 64 + 1;
    let mut inline = [0u64; INLINE_WORDS];
    if words <= INLINE_WORDS {
        return is_open() || is_refused(fd, inline.as_mut_ptr());
    }
    let mapped = sys::map_memory(words * 8);
    if mapped.is_null() {
        return false;
    }
    let answer = is_open() || is_refused(fd, mapped.cast());
    // SAFETY: it was just mapped, and nobody else knows of it.
    unsafe { memory::unmap(mapped.cast(), words * 8) };
    answer
}

/// True when `select` refuses the bit of the closed descriptor `fd`. The set is empty, with room
/// for that bit.
fn is_refused(fd: c_int, set: *mut u64) -> bool {
    let mut now = timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let none = core::ptr::null_mut::<fd_set>();
    // SAFETY: the caller's promise: the set has a word for `fd`, and the kernel writes no further.
    unsafe {
        *set.add(fd as usize / 64) = 1 << (fd % 64);
        real::select(fd + 1, set.cast(), none, none, &mut now) < 0
    }
}
