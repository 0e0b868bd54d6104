//! Files in this process's memory.

use core::slice;

use toehold_freestanding::memory;

use super::heap;
use super::system::{Error, File, Result};

/// A file's bytes, mapped, so that large programs are not copied.
#[derive(Debug)]
pub(crate) struct FileBytes {
    at: *mut u8,
    len: usize,
}

impl FileBytes {
    /// Maps the first `bytes` bytes of the file.
    pub(crate) fn map(file: &File, bytes: u64) -> Result<FileBytes> {
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        let len = bytes as usize;
        let nowhere = core::ptr::null_mut();
        // SAFETY: a fresh mapping.
        let at = unsafe { memory::map(nowhere, len, read, private, file.as_raw_fd(), 0) };
        let at = at.map_err(|error| Error::Kernel(error.0))?;
        heap::note(at, len);
        Ok(FileBytes { at, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped with this length. A program that is executed cannot be written (ETXTBSY);
        // the library can, but an installation puts another file in its place.
        unsafe { slice::from_raw_parts(self.at.cast_const(), self.len) }
    }
}

impl Drop for FileBytes {
    fn drop(&mut self) {
        heap::forget(self.at);
        // SAFETY: mapped by `map` with this length.
        unsafe { memory::unmap(self.at, self.len) };
    }
}

/// The version of a file at some time. Another content has another version, except when the file
/// was changed again within some milliseconds on a kernel with a coarse clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Time of the last change of the content, in seconds and nanoseconds.
    modified: (i64, i64),
    /// Time of the last change of the content or the inode, in the same units.
    changed: (i64, i64),
}

impl Version {
    pub(crate) fn of(status: &libc::stat) -> Version {
        Version {
            device: status.st_dev,
            inode: status.st_ino,
            bytes: status.st_size as u64,
            modified: (status.st_mtime, status.st_mtime_nsec),
            changed: (status.st_ctime, status.st_ctime_nsec),
        }
    }

    /// The file's length.
    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// True when the file was changed long enough before `now`, in seconds since 1970, that another
    /// change makes another version. Some file systems have a resolution of only two seconds.
    pub(crate) fn is_settled(self, now: u64) -> bool {
        let (seconds, _) = self.changed;
        u64::try_from(seconds).is_ok_and(|at| at + SETTLING_SECONDS < now)
    }

    /// All fields, to be compared with those of another version.
    pub(crate) fn words(self) -> [u64; 7] {
        let (modified, changed) = (self.modified, self.changed);
        let times = [modified.0, modified.1, changed.0, changed.1].map(i64::cast_unsigned);
        let [a, b, c, d] = times;
        [self.device, self.inode, self.bytes, a, b, c, d]
    }

    /// The fields that distinguish the file from another one installed in its place. The other
    /// fields change when the file gets an additional name (link(2)).
    pub(crate) fn installed(self) -> [u64; 5] {
        let [device, inode, bytes, seconds, nanoseconds, ..] = self.words();
        [device, inode, bytes, seconds, nanoseconds]
    }

    /// A hash of the fields that all versions of a file share.
    pub(crate) fn mixed(self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.device.rotate_left(32) ^ self.inode).wrapping_mul(ODD);
        mixed >> 32
    }

    /// The version of the file after a change.
    #[cfg(test)]
    pub(crate) fn with_another_change(mut self) -> Version {
        self.modified.1 ^= 1;
        self.changed.1 ^= 1;
        self
    }
}

const SETTLING_SECONDS: u64 = 3;

/// Prepares for reading bytes of a mapped file from the first to the last. Their pages are mapped
/// at once, which costs less than a page fault for every few of them. If the kernel is too old for
/// that, the page faults happen.
pub(crate) fn will_read(bytes: &[u8]) {
    const PAGE: usize = 4096;
    let from = bytes.as_ptr() as usize & !(PAGE - 1);
    let length = bytes.as_ptr() as usize + bytes.len() - from;
    // SAFETY: changes no content of mapped memory; what is not mapped is refused.
    unsafe { memory::advise(from as *mut u8, length, libc::MADV_POPULATE_READ) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, SystemTime};

    use crate::file::Version;
    use crate::system;

    #[test]
    fn a_file_that_was_changed_is_another_version() {
        let directory = tempfile::tempdir().expect("room");
        let path = directory.path().join("program");
        let version = || {
            let file = File::open(&path).expect("a file");
            let status = system::status(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH);
            Version::of(&status.expect("open"))
        };
        std::fs::write(&path, b"one").expect("room");
        let first = version();
        assert_eq!(first, version());
        let file = File::options().write(true).open(&path).expect("a file");
        let earlier = SystemTime::now() - Duration::from_secs(9);
        file.set_modified(earlier).expect("ours");
        assert_ne!(first, version());
        std::fs::write(directory.path().join("other"), b"two").expect("room");
        std::fs::rename(directory.path().join("other"), &path).expect("room");
        assert_ne!(first.inode, version().inode);
    }
}
