//! Registered buffers: memory that any engine may use, whatever its way to reach memory.
//!
//! A device reaches memory by its own address translations. If a fork makes a page copy-on-write
//! while the device writes it, the process's next store moves the process to a new page. The device
//! goes on writing the old page, so bytes are lost without an error. This problem, with concurrent
//! receives, ended the kernel's `net_dma`. A buffer's pages are therefore marked to be wiped in a
//! child: they are never shared, so they are never copied. The child finds zeros.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::RwLock;

/// A page-aligned, zeroed buffer whose pages are never copied on write. After a fork the parent
/// keeps its contents; in the child it reads as zeros.
pub struct Buffer {
    base: *mut u8,
    len: usize,
    mapped: usize,
}

// SAFETY: a buffer owns its mapping, like a boxed slice.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps and registers a buffer.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when the address space or its limit is used up; `EINVAL` on a kernel before 4.14,
    /// which cannot keep pages from being copied.
    pub fn new(len: usize) -> io::Result<Buffer> {
        let mapped = len
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|&mapped| mapped <= isize::MAX as usize)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?
            .max(PAGE_BYTES);
        // SAFETY: a new private mapping, at no address in particular.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let buffer = Buffer {
            base: base.cast(),
            len,
            mapped,
        };
        // SAFETY: the mapping was made just above.
        if unsafe { libc::madvise(base, mapped, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        registry_write().insert(buffer.base as usize, len);
        Ok(buffer)
    }

    /// Keeps the buffer in memory, faulting it in now. A device then never meets a missing page.
    ///
    /// # Errors
    ///
    /// `ENOMEM` or `EPERM` when the limit of locked memory (`ulimit -l`) forbids it. The buffer
    /// stays usable.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: our own mapping.
        match unsafe { libc::mlock(self.base.cast(), self.mapped) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, initialized (zeroed), and ours alone.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        registry_write().remove(&(self.base as usize));
        // SAFETY: our own mapping; no reference into it outlives the buffer.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

/// True when a live buffer contains the whole range.
pub(crate) fn is_registered(at: *const u8, len: usize) -> bool {
    let registry = REGISTRY
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let at = at as usize;
    match registry.range(..=at).next_back() {
        Some((&base, &size)) => at - base <= size && len <= size - (at - base),
        None => false,
    }
}

fn registry_write() -> std::sync::RwLockWriteGuard<'static, BTreeMap<usize, usize>> {
    // Every update is a single call, so a panic in between cannot leave it half done.
    REGISTRY
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Live buffers: address to length. Only engines that need registration look here.
static REGISTRY: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_covers_the_buffer_and_not_a_byte_more() {
        let mut buffer = Buffer::new(5000).unwrap();
        buffer[4999] = 7;
        let base = buffer.as_ptr();
        assert!(is_registered(base, 5000));
        assert!(is_registered(base.wrapping_add(4999), 1));
        assert!(!is_registered(base, 5001));
        assert!(!is_registered(base.wrapping_add(1), 5000));
        assert!(!is_registered(base.wrapping_sub(1), 1));
        drop(buffer);
        assert!(!is_registered(base, 1));
    }

    #[test]
    fn an_absurd_length_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 62] {
            assert_eq!(
                Buffer::new(len).err().unwrap().raw_os_error(),
                Some(libc::ENOMEM)
            );
        }
    }
}
