//! Sealed memfds ([`toehold_channel::memfd`]) with the descriptors and errors of `std`. The library
//! inside programs shares that code, and has no `std`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use toehold_channel::memfd;
use toehold_freestanding::fd;
use toehold_freestanding::syscall::Errno;

pub use toehold_channel::memfd::{SEALS, unmap};

/// Why a descriptor that came from elsewhere was not mapped.
#[derive(Debug)]
pub enum MapError {
    /// Not a memfd sealed with [`SEALS`]: its owner could pull the pages from under us.
    NotSealed,
    /// Sealed, but not of the expected length.
    Length(u64),
    /// The kernel refused.
    Os(io::Error),
}

impl From<memfd::MapError> for MapError {
    fn from(error: memfd::MapError) -> MapError {
        match error {
            memfd::MapError::NotSealed => MapError::NotSealed,
            memfd::MapError::Length(length) => MapError::Length(length),
            memfd::MapError::Os(error) => MapError::Os(error_of(error)),
        }
    }
}

/// A new memfd of `len` zero bytes, sealed with [`SEALS`].
///
/// # Errors
/// When the kernel refuses: no descriptors, no memory, no memfd at all.
pub fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    memfd::create(name, len).map(owned).map_err(error_of)
}

/// A new memfd that nobody but its maker can ever write: the descriptor, for readers, and the
/// maker's mapping.
///
/// # Errors
/// As for [`create`]; and before Linux 5.1, which has no such seal.
pub fn create_for_readers(name: &CStr, len: usize) -> io::Result<(OwnedFd, NonNull<u8>)> {
    let (file, base) = memfd::create_for_readers(name, len).map_err(error_of)?;
    Ok((owned(file), base))
}

/// Number of the file behind a descriptor: no other memfd has it while this one is open or mapped
/// somewhere.
///
/// # Errors
/// When it is no descriptor.
pub fn number(file: BorrowedFd<'_>) -> io::Result<u64> {
    memfd::number(borrowed(file)).map_err(error_of)
}

/// Maps all of a sealed memfd of exactly `len` bytes, readable and writable. The mapping lives
/// until [`unmap`].
///
/// # Errors
/// When it is not sealed, not of that length, or cannot be mapped.
pub fn map(file: BorrowedFd<'_>, len: usize) -> Result<NonNull<u8>, MapError> {
    memfd::map(borrowed(file), len).map_err(MapError::from)
}

fn owned(file: fd::OwnedFd) -> OwnedFd {
    // SAFETY: open, and nobody else's from here on.
    unsafe { OwnedFd::from_raw_fd(file.into_raw_fd()) }
}

fn borrowed(file: BorrowedFd<'_>) -> fd::BorrowedFd<'_> {
    // SAFETY: open for as long as the caller has it borrowed.
    unsafe { fd::BorrowedFd::borrow_raw(file.as_raw_fd()) }
}

fn error_of(Errno(error): Errno) -> io::Error {
    io::Error::from_raw_os_error(error)
}
