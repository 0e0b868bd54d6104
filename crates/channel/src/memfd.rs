//! Sealed memfds: made by the adapter (or a family's first process), verified before they are
//! mapped.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use toehold_freestanding::call;
use toehold_freestanding::fd::{BorrowedFd, OwnedFd};
use toehold_freestanding::memory;
use toehold_freestanding::syscall::{Errno, checked};

/// The seals of every shared memfd: its length is fixed for ever, and no process can add or remove
/// a seal.
pub const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A new memfd of `len` zero bytes, sealed with [`SEALS`].
///
/// # Errors
/// When the kernel refuses: no descriptors, no memory, no memfd at all.
pub fn create(name: &core::ffi::CStr, len: usize) -> Result<OwnedFd, Errno> {
    create_with(name, len, SEALS)
}

/// Makes a memfd that only its maker can write. Returns the descriptor for readers, and the maker's
/// mapping.
///
/// # Errors
/// As for [`create`]. Also fails before Linux 5.1, which does not have `F_SEAL_FUTURE_WRITE`.
pub fn create_for_readers(
    name: &core::ffi::CStr,
    len: usize,
) -> Result<(OwnedFd, NonNull<u8>), Errno> {
    let fd = create_with(name, len, SEALS & !libc::F_SEAL_SEAL)?;
    let base = map_whole(fd.as_raw_fd(), len, libc::PROT_READ | libc::PROT_WRITE)?;
    let last = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    if let Err(error) = add_seals(&fd, last) {
        // SAFETY: mapped above with this length and shown to nobody.
        unsafe { unmap(base, len) };
        return Err(error);
    }
    Ok((fd, base))
}

fn create_with(name: &core::ffi::CStr, len: usize, seals: i32) -> Result<OwnedFd, Errno> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is NUL-terminated; no other memory is involved.
    let fd = checked(unsafe { call!(SYS_memfd_create, name.as_ptr(), flags) })?;
    // SAFETY: the descriptor was just made and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // SAFETY: plain system call on a descriptor that we own.
    checked(unsafe { call!(SYS_ftruncate, fd.as_raw_fd(), len) })?;
    add_seals(&fd, seals)?;
    Ok(fd)
}

fn add_seals(fd: &OwnedFd, seals: i32) -> Result<(), Errno> {
    // SAFETY: plain system call on a descriptor that we own.
    let result = unsafe { call!(SYS_fcntl, fd.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    checked(result).map(drop)
}

/// Inode number of the file behind a descriptor. No other memfd has the same number while this one
/// is open or mapped in any process.
///
/// # Errors
/// When it is no descriptor.
pub fn number(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    status(fd).map(|status| status.st_ino)
}

/// `fstat(2)`.
///
/// # Errors
/// When it is no descriptor.
pub fn status(fd: BorrowedFd<'_>) -> Result<libc::stat, Errno> {
    // SAFETY: `stat` is plain data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is writable: on 64-bit machines libc's structure is the kernel's.
    checked(unsafe { call!(SYS_fstat, fd.as_raw_fd(), &raw mut stat) })?;
    Ok(stat)
}

/// The reason why a descriptor that came from elsewhere was not mapped.
#[derive(Debug)]
pub enum MapError {
    /// Not a memfd sealed with [`SEALS`]: its owner could pull the pages from under us.
    NotSealed,
    /// Sealed, but not of the expected length.
    Length(u64),
    /// The kernel refused.
    Os(Errno),
}

/// Maps all of a sealed memfd of exactly `len` bytes, readable and writable. The mapping lives
/// until [`unmap`].
///
/// # Errors
/// When it is not sealed, not of that length, or cannot be mapped.
pub fn map(fd: BorrowedFd<'_>, len: usize) -> Result<NonNull<u8>, MapError> {
    map_with(fd, len, libc::PROT_READ | libc::PROT_WRITE)
}

/// As [`map`] of a file of exactly `len` bytes, but only `part` of it, whole pages.
///
/// # Errors
/// As for [`map`].
pub fn map_part(
    fd: BorrowedFd<'_>,
    len: usize,
    part: Range<usize>,
) -> Result<NonNull<u8>, MapError> {
    debug_assert!(part.start <= part.end && part.end <= len);
    verify(fd, len)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping of our own.
    unsafe { map_at(core::ptr::null_mut(), fd.as_raw_fd(), part, protection) }.map_err(MapError::Os)
}

fn map_with(fd: BorrowedFd<'_>, len: usize, protection: i32) -> Result<NonNull<u8>, MapError> {
    verify(fd, len)?;
    map_whole(fd.as_raw_fd(), len, protection).map_err(MapError::Os)
}

fn verify(fd: BorrowedFd<'_>, len: usize) -> Result<(), MapError> {
    // SAFETY: plain system call.
    let seals = unsafe { call!(SYS_fcntl, fd.as_raw_fd(), libc::F_GET_SEALS) } as i32;
    if seals < 0 || seals & SEALS != SEALS || seals & libc::F_SEAL_WRITE != 0 {
        return Err(MapError::NotSealed);
    }
    let bytes = status(fd).map_err(MapError::Os)?.st_size as u64;
    if bytes != len as u64 {
        return Err(MapError::Length(bytes));
    }
    Ok(())
}

/// Maps a file whose length is sealed.
fn map_whole(fd: i32, len: usize, protection: i32) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a fresh mapping of our own.
    unsafe { map_at(core::ptr::null_mut(), fd, 0..len, protection) }
}

/// Maps a part of a file whose length is sealed, at `place` unless that is null.
///
/// # Safety
/// Nothing but what may be replaced is at `place`.
unsafe fn map_at(
    place: *mut u8,
    fd: i32,
    part: Range<usize>,
    protection: i32,
) -> Result<NonNull<u8>, Errno> {
    let from = (fd, part.start as libc::off_t);
    // SAFETY: the caller's promise; the file's length is fixed by its seals, so no page of it can
    // vanish.
    unsafe { place_mapping(place, part.len(), protection, libc::MAP_SHARED, from) }
}

/// Set when the process locks its future mappings in memory (`mlockall(2)` with `MCL_FUTURE`).
static LOCKS_ON_FAULT: AtomicBool = AtomicBool::new(false);

/// Sets whether pages of later mappings are locked in memory only when they are first touched.
/// Otherwise a process that locks its mappings would get all their pages at once. Returns the
/// former setting.
pub fn lock_on_fault(on: bool) -> bool {
    // Relaxed: a mapping that is made meanwhile may have its pages at once or as they are touched.
    LOCKS_ON_FAULT.swap(on, Ordering::Relaxed)
}

/// A mapping of `len` bytes, at `place` unless that is null.
///
/// # Safety
/// Nothing but what may be replaced is at `place`.
unsafe fn place_mapping(
    place: *mut u8,
    len: usize,
    protection: i32,
    flags: i32,
    (fd, offset): (i32, libc::off_t),
) -> Result<NonNull<u8>, Errno> {
    let lazily = LOCKS_ON_FAULT.load(Ordering::Relaxed);
    let (at, first, fixed) = match (lazily, place.is_null()) {
        // The kernel does not allocate inaccessible pages (mm/gup.c), even in a locked mapping.
        (true, _) => (core::ptr::null_mut(), libc::PROT_NONE, 0),
        (false, true) => (place, protection, 0),
        (false, false) => (place, protection, libc::MAP_FIXED),
    };
    let flags = flags | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fresh mapping, or by the caller's promise one over what may be replaced.
    let mut base = unsafe { memory::map(at, len, first, flags, fd, offset) }?;
    if lazily {
        // SAFETY: the mapping was just made and no other code knows it. `mremap` then replaces, in
        // one step, a range that may be replaced by the caller's promise.
        unsafe {
            call!(SYS_mlock2, base, len, libc::MLOCK_ONFAULT);
            let mut placed = checked(call!(SYS_mprotect, base, len, protection)).map(drop);
            if placed.is_ok() && !place.is_null() {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                let moved = memory::remap(base, len, len, flags, place);
                placed = moved.map(|moved| base = moved);
            }
            if let Err(error) = placed {
                memory::unmap(base, len);
                return Err(error);
            }
        }
    }
    NonNull::new(base).ok_or(Errno(libc::ENOMEM))
}

/// As [`map`] of a file of exactly `len` bytes, but only `part` of it, in place of what [`replace`]
/// left at `base`.
///
/// # Errors
/// As for [`map`]; then `base` is as it was.
///
/// # Safety
/// `base` was given to [`replace`] with the length of `part`, nothing else is there, and `part`
/// lies in the file.
pub unsafe fn map_over(
    base: NonNull<u8>,
    fd: BorrowedFd<'_>,
    len: usize,
    part: Range<usize>,
) -> Result<NonNull<u8>, MapError> {
    verify(fd, len)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's promise.
    unsafe { map_at(base.as_ptr(), fd.as_raw_fd(), part, protection) }.map_err(MapError::Os)
}

/// Ends a mapping made by [`map`], or a part of one, and puts empty private memory in its place, so
/// that its addresses stay ours. False, and nothing changed, when the kernel refuses.
///
/// # Safety
/// `len` bytes from `base` on are a mapping from [`map`], or whole pages of one. Code that still
/// uses the range must work with memory that reads as zero.
#[must_use]
pub unsafe fn replace(base: NonNull<u8>, len: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: over a mapping of ours, by the caller's promise.
    unsafe { place_mapping(base.as_ptr(), len, protection, kind, (-1, 0)) }.is_ok()
}

/// `len` zero bytes of private memory, whose pages come as they are touched, whatever the process
/// locks ([`lock_on_fault`]). Ended by [`unmap`].
///
/// # Errors
/// When there is no room.
pub fn map_private(len: usize) -> Result<NonNull<u8>, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping of our own.
    unsafe { place_mapping(core::ptr::null_mut(), len, protection, kind, (-1, 0)) }
}

/// As [`map`], readable only.
///
/// # Errors
/// As for [`map`].
pub fn map_to_read(fd: BorrowedFd<'_>, len: usize) -> Result<NonNull<u8>, MapError> {
    map_with(fd, len, libc::PROT_READ)
}

/// Ends a mapping made by [`map`] or [`map_to_read`].
///
/// # Safety
/// `base` came from one of the functions here with the same `len`, and nothing uses the mapping any
/// more.
pub unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { memory::unmap(base.as_ptr(), len) };
}
