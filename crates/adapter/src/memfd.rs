//! Sealed memfds ([`toehold_channel::memfd`]) with the descriptors and errors of `std`. The library
//! inside programs shares that code, and has no `std`.

use rustix::fs::{SealFlags, fcntl_get_seals};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use toehold_channel::memfd;
use toehold_freestanding::fd;
use toehold_freestanding::syscall::Errno;

pub use toehold_channel::memfd::{SEALS, unmap};

/// The reason why a descriptor that came from elsewhere was not mapped.
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

/// Makes a memfd that only its maker can write. Returns the descriptor for readers, and the maker's
/// mapping.
///
/// # Errors
/// As for [`create`]. Also fails before Linux 5.1, which does not have `F_SEAL_FUTURE_WRITE`.
pub fn create_for_readers(name: &CStr, len: usize) -> io::Result<(OwnedFd, NonNull<u8>)> {
    let (file, base) = memfd::create_for_readers(name, len).map_err(error_of)?;
    Ok((owned(file), base))
}

/// Inode number of the file behind a descriptor. No other memfd has the same number while this one
/// is open or mapped in any process.
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

/// All bytes of a sealed memfd of at most `len_max` bytes. Reading never blocks.
///
/// # Errors
/// When it is not sealed, longer, or cannot be read.
pub fn contents(file: BorrowedFd<'_>, len_max: usize) -> Result<Vec<u8>, MapError> {
    let seals = fcntl_get_seals(file).map_err(|_| MapError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(MapError::NotSealed);
    }
    let os = |error: rustix::io::Errno| MapError::Os(error.into());
    let length = rustix::fs::fstat(file).map_err(os)?.st_size as u64;
    if length > len_max as u64 {
        return Err(MapError::Length(length));
    }
    let mut bytes = vec![0; length as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(file, &mut bytes[filled..], filled as u64).map_err(os)? {
            0 => return Err(MapError::Length(filled as u64)),
            count => filled += count,
        }
    }
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn only_a_sealed_memory_file_is_read_and_no_longer_one_than_wanted() {
        let file = File::from(create(c"words", 5).expect("memfd"));
        file.write_all_at(b"a=b c", 0).expect("written");
        assert_eq!(contents(file.as_fd(), 5).expect("sealed"), b"a=b c");
        let long = contents(file.as_fd(), 4);
        assert!(matches!(long, Err(MapError::Length(5))), "{long:?}");
        // There is no data, so reading the pipe would block for ever.
        let (pipe, _writer) = std::io::pipe().expect("pipe");
        let refused = contents(pipe.as_fd(), 5);
        assert!(matches!(refused, Err(MapError::NotSealed)), "{refused:?}");
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create(c"words", flags).expect("memfd");
        let refused = contents(open.as_fd(), 5);
        assert!(matches!(refused, Err(MapError::NotSealed)), "{refused:?}");
    }
}
