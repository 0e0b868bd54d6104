//! Memory that this process has mapped.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapping that can be read and written. A forked child does not inherit the mapping: with an
/// inherited mapping the kernel could go on writing to the other copy of a page.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Memory that is shared with the kernel: `bytes` of the socket's memory from `offset`.
    pub(crate) fn of_socket(socket: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), bytes, ACCESS, flags, socket, offset) };
        Self::of(base?.cast(), bytes)
    }

    /// Private memory, with no file behind it.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ACCESS, flags) };
        Self::of(base?.cast(), bytes)
    }

    fn of(base: *mut u8, bytes: usize) -> io::Result<Self> {
        let base = NonNull::new(base).expect("the kernel maps nothing at zero");
        let mapping = Self { base, bytes };
        // SAFETY: the mapping is ours, and a forked child has no use for it.
        unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// The first byte.
    #[inline]
    pub(crate) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[inline]
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, and no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "the range is the one that was mapped");
    }
}

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
