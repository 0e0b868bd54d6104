//! Mappings, by direct system calls (mmap(2) and related calls).

use crate::call;
use crate::syscall::{Errno, checked};

/// `mmap(2)`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As for `mmap(2)`: with `MAP_FIXED` it replaces what is at `at`.
pub unsafe fn map(
    at: *mut u8,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<*mut u8, Errno> {
    // SAFETY: the caller's promise.
    let base = unsafe { call!(SYS_mmap, at, len, protection, flags, fd, offset) };
    // Addresses of user space are positive.
    checked(base).map(|base| base as *mut u8)
}

/// `munmap(2)`.
///
/// # Safety
/// Nothing uses these pages any more.
pub unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_munmap, base, len) };
}

/// `mremap(2)`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As for `mremap(2)`.
pub unsafe fn remap(
    base: *mut u8,
    len: usize,
    new_len: usize,
    flags: i32,
    new_base: *mut u8,
) -> Result<*mut u8, Errno> {
    // SAFETY: the caller's promise.
    let moved = unsafe { call!(SYS_mremap, base, len, new_len, flags, new_base) };
    checked(moved).map(|base| base as *mut u8)
}

/// `madvise(2)`; false when the kernel refuses.
///
/// # Safety
/// As for `madvise(2)`: some advice drops the contents.
pub unsafe fn advise(base: *mut u8, len: usize, advice: i32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_madvise, base, len, advice) == 0 }
}

/// `mprotect(2)`; false when the kernel refuses.
///
/// # Safety
/// As for `mprotect(2)`.
pub unsafe fn protect(base: *mut u8, len: usize, protection: i32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_mprotect, base, len, protection) == 0 }
}

/// Maps a page of an empty file with this name. The page is never accessed: it only makes the name
/// visible in `/proc/PID/maps` as long as the process has its memory.
pub fn tell_by_name(name: &core::ffi::CStr) {
    // SAFETY: the name ends with NUL. A fresh mapping touches no memory of anybody.
    unsafe {
        let file = call!(SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC);
        if file >= 0 {
            let (nobody, nothing) = (core::ptr::null_mut(), libc::PROT_NONE);
            let _ = map(nobody, 1, nothing, libc::MAP_PRIVATE, file as i32, 0);
            call!(SYS_close, file);
        }
    }
}

/// `len` zero bytes, allocated on demand; null on failure. With `shared`, children share them.
#[unsafe(link_section = ".text.startup")]
pub fn anonymous(len: usize, shared: bool) -> *mut u8 {
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping.
    unsafe { map(core::ptr::null_mut(), len, protection, flags, -1, 0) }
        .unwrap_or(core::ptr::null_mut())
}
