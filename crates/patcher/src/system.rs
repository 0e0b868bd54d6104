//! Files and errors without a C library.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;

use toehold_freestanding::fd::OwnedFd;
use toehold_freestanding::{call, syscall};

/// An error in this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// An error number of the kernel (errno(3)).
    Kernel(i32),
    /// Another failure, described by this text.
    Failed(&'static str),
    /// The library failed in the program with this signal.
    Signal(c_int),
}

impl Error {
    /// The errno(3) value to report to another process: `EPERM` for errors without one.
    #[must_use]
    pub fn number(&self) -> c_int {
        match self {
            Error::Kernel(number) => *number,
            Error::Failed(_) | Error::Signal(_) => libc::EPERM,
        }
    }
}

/// A value or an error.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The kernel's answer to a system call.
pub(crate) fn checked(answer: isize) -> Result<usize> {
    syscall::answer(answer).map_err(Error::Kernel)
}

/// An open file or socket.
#[derive(Debug)]
pub struct File(OwnedFd);

impl File {
    /// Takes the ownership of a descriptor.
    ///
    /// # Safety
    /// It is open, and nobody else closes it.
    #[must_use]
    pub unsafe fn from_raw_fd(descriptor: c_int) -> File {
        // SAFETY: the caller's promise.
        File(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Its number.
    pub(crate) fn as_raw_fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    /// `open(2)` for an existing file.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<File> {
        File::open_at(libc::AT_FDCWD, path, flags, 0)
    }

    /// A file of a process in `/proc`.
    pub(crate) fn of_process(process: libc::pid_t, name: &CStr, flags: c_int) -> Result<File> {
        let mut path = b"/proc/".to_vec();
        push_decimal(&mut path, process as u32);
        path.push(b'/');
        path.extend_from_slice(name.to_bytes_with_nul());
        let path = CStr::from_bytes_with_nul(&path);
        File::open(
            path.map_err(|_| Error::Failed("a path has a null byte"))?,
            flags,
        )
    }

    /// `openat(2)`. The descriptor is closed by an exec.
    pub(crate) fn open_at(directory: c_int, path: &CStr, flags: c_int, mode: u32) -> Result<File> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: a path that ends with a null byte; the descriptor is ours.
        unsafe {
            let opened = checked(call!(SYS_openat, directory, path.as_ptr(), flags, mode))?;
            Ok(File::from_raw_fd(opened as c_int))
        }
    }

    /// `fstat(2)`.
    pub(crate) fn status(&self) -> Result<libc::stat> {
        status(self.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
    }

    /// Fills `bytes`, from `offset` on.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let (at, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: writable for this length.
        let got = unsafe { call!(SYS_pread64, self.as_raw_fd(), at, length, offset) };
        match checked(got)? {
            got if got == length => Ok(()),
            _ => Err(Error::Kernel(libc::EIO)),
        }
    }

    /// Writes all of `bytes`, from `offset` on.
    pub(crate) fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            let rest = &bytes[written..];
            let (at, length, offset) = (rest.as_ptr(), rest.len(), offset + written as u64);
            // SAFETY: readable for this length.
            let now = unsafe { call!(SYS_pwrite64, self.as_raw_fd(), at, length, offset) };
            match checked(now)? {
                0 => return Err(Error::Kernel(libc::EIO)),
                now => written += now,
            }
        }
        Ok(())
    }

    /// Reads from here to the end of the file, at most `bytes_max` bytes.
    pub(crate) fn read_to_end(&self, bytes_max: usize) -> Result<Vec<u8>> {
        const PIECE: usize = 8192;
        let mut bytes = Vec::with_capacity(PIECE);
        while bytes.len() < bytes_max {
            bytes.reserve(1);
            let room = bytes.spare_capacity_mut();
            let (at, length) = (room.as_mut_ptr(), room.len());
            // SAFETY: writable for this length.
            let got = unsafe { call!(SYS_read, self.as_raw_fd(), at, length) };
            match checked(got)? {
                0 => break,
                // SAFETY: the kernel has written so many.
                got => unsafe { bytes.set_len(bytes.len() + got) },
            }
        }
        Ok(bytes)
    }

    /// `read(2)`: the number of bytes read.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<usize> {
        let (at, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: writable for this length.
        checked(unsafe { call!(SYS_read, self.as_raw_fd(), at, length) })
    }

    /// Fills `bytes` with a message from a socket, which arrives as a whole.
    ///
    /// # Errors
    ///
    /// The kernel's error, or an error when the peer has closed.
    pub fn receive(&self, bytes: &mut [u8]) -> Result<()> {
        let (at, length, flags) = (bytes.as_mut_ptr(), bytes.len(), libc::MSG_WAITALL);
        // SAFETY: writable for this length.
        let got = unsafe { call!(SYS_recvfrom, self.as_raw_fd(), at, length, flags, 0, 0) };
        match checked(got)? {
            got if got == length => Ok(()),
            _ => Err(Error::Kernel(libc::EPIPE)),
        }
    }

    /// Sends `bytes` to a socket's peer.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        let (at, length, flags) = (bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL);
        // SAFETY: readable for this length. A message this short is never sent partially.
        checked(unsafe { call!(SYS_sendto, self.as_raw_fd(), at, length, flags, 0, 0) }).map(drop)
    }

    /// Writes all of `bytes` from here on.
    pub(crate) fn write_all(&self, bytes: &[u8]) -> Result<()> {
        // SAFETY: readable for this length.
        let written = unsafe { call!(SYS_write, self.as_raw_fd(), bytes.as_ptr(), bytes.len()) };
        match checked(written)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(Error::Kernel(libc::EIO)),
        }
    }
}

/// `fstatat(2)`.
pub(crate) fn status(directory: c_int, path: &CStr, flags: c_int) -> Result<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    let (path, into) = (path.as_ptr(), status.as_mut_ptr());
    // SAFETY: a path that ends with a null byte, and a structure that is writable. Zeros are a
    // value of it, too.
    unsafe {
        checked(call!(SYS_newfstatat, directory, path, into, flags))?;
        Ok(status.assume_init())
    }
}

/// The effective user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { call!(SYS_geteuid) as u32 }
}

/// The time since 1970, in seconds.
pub(crate) fn seconds() -> u64 {
    let mut now = [0_i64; 2];
    // SAFETY: a `timespec`.
    unsafe { call!(SYS_clock_gettime, libc::CLOCK_REALTIME, now.as_mut_ptr()) };
    u64::try_from(now[0]).unwrap_or(0)
}

/// Appends a number.
pub(crate) fn push_decimal(text: &mut Vec<u8>, number: u32) {
    if number >= 10 {
        push_decimal(text, number / 10);
    }
    text.push(b'0' + (number % 10) as u8);
}

/// Sets a signal to be ignored, or sets a handler that never returns.
pub(crate) fn set_action(signal: c_int, handler: usize) {
    // In the kernel's format: the handler, flags, the code that returns from the handler, and the
    // mask. Without that code the kernel would not call a handler.
    const SA_RESTORER: usize = 0x0400_0000;
    let action = [handler, SA_RESTORER, 0, 0];
    // SAFETY: the actions of this process, and a structure of this size.
    unsafe { call!(SYS_rt_sigaction, signal, action.as_ptr(), 0, 8) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for number in [0, 9, 10, 4_194_304, u32::MAX] {
            let mut text = Vec::new();
            push_decimal(&mut text, number);
            assert_eq!(text, number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_file_of_this_process_is_read_to_its_end() {
        let this = std::process::id() as libc::pid_t;
        let file = File::of_process(this, c"maps", libc::O_RDONLY).expect("there");
        let read = file.read_to_end(usize::MAX).expect("readable");
        // In most processes longer than one piece; the kernel returns at most a page at a time.
        assert!(read.ends_with(b"\n") && read.windows(7).any(|word| word == b"[stack]"));
        let missing = File::of_process(this, c"no such file", libc::O_RDONLY);
        assert_eq!(missing.err(), Some(Error::Kernel(libc::ENOENT)));
    }
}
