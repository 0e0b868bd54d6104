//! Files in this process's memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A file's bytes, mapped: large programs are not copied.
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
