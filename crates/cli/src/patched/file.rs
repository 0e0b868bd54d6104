//! Files in this process's memory.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

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
}

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
    use std::time::{Duration, SystemTime};

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
