//! Files in this process's memory.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// A file's bytes, mapped: large programs are not copied.
#[derive(Debug)]
pub(crate) struct FileBytes {
    at: *mut libc::c_void,
    len: usize,
}

impl FileBytes {
    pub(crate) fn map(file: &File) -> io::Result<FileBytes> {
        let len = file.metadata()?.len() as usize;
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a fresh mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                read,
                private,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(FileBytes { at, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped with this length. A program that is executed cannot be written (ETXTBSY);
        // the library can, but an installation puts another file in its place.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.len) }
    }
}

impl Drop for FileBytes {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// A file as it was at some time. A file with another content differs from it, unless it was
/// changed within some milliseconds after that on a kernel that counts coarsely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Of its content, in seconds and nanoseconds.
    modified: (i64, i64),
    /// Of its content or of what the kernel knows of it, in the same units.
    changed: (i64, i64),
}

impl Version {
    pub(crate) fn of(metadata: &Metadata) -> Version {
        Version {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// True when the file was changed long enough before `now`, the time since 1970, that another
    /// change makes another version. File systems count by up to two seconds.
    pub(crate) fn is_settled(self, now: Duration) -> bool {
        let (seconds, _) = self.changed;
        u64::try_from(seconds).is_ok_and(|at| at + SETTLING_SECONDS < now.as_secs())
    }

    /// All of it, to be compared with another.
    pub(crate) fn words(self) -> [u64; 7] {
        let (modified, changed) = (self.modified, self.changed);
        let times = [modified.0, modified.1, changed.0, changed.1].map(i64::cast_unsigned);
        let [a, b, c, d] = times;
        [self.device, self.inode, self.bytes, a, b, c, d]
    }

    /// All of it that tells the file from another one that is installed in its place. The rest
    /// changes when the file gets a name more (link(2)).
    pub(crate) fn installed(self) -> [u64; 5] {
        let [device, inode, bytes, seconds, nanoseconds, ..] = self.words();
        [device, inode, bytes, seconds, nanoseconds]
    }

    /// A number that all versions of a file have in common, and few other files.
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

/// Bytes of a mapped file will be read from the first to the last. Their pages are mapped at once,
/// which costs less than a fault for every few of them. Where the kernel is too old for that the
/// faults happen.
pub(crate) fn will_read(bytes: &[u8]) {
    const PAGE: usize = 4096;
    let from = bytes.as_ptr() as usize & !(PAGE - 1);
    let length = bytes.as_ptr() as usize + bytes.len() - from;
    // SAFETY: changes no content of mapped memory; what is not mapped is refused.
    unsafe { libc::madvise(from as *mut libc::c_void, length, libc::MADV_POPULATE_READ) };
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_file_that_was_changed_is_another_version() {
        let directory = tempfile::tempdir().expect("room");
        let path = directory.path().join("program");
        let version = || Version::of(&std::fs::metadata(&path).expect("a file"));
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
