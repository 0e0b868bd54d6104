//! Memory in chunks of one size, each for a frame, that this process and the kernel hand each other
//! (AF_XDP: "UMEM").
//!
//! A chunk is the kernel's from when its address is given away (fill or transmit ring) until it
//! comes back (receive or completion ring).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::check;

/// Chunks of memory.
#[derive(Debug)]
pub(super) struct Umem {
    base: *mut u8,
    chunk_bytes: usize,
    chunks: usize,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Umem {}

impl Umem {
    /// Gets the memory.
    pub(super) fn new(chunk_bytes: usize, chunks: usize) -> io::Result<Self> {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
        );
        let bytes = chunk_bytes * chunks;
        // SAFETY: a new mapping, where the kernel likes.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child that is forked would have the kernel write to pages that are no longer ours.
        // SAFETY: the mapping is ours.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTFORK) };
        Ok(Self {
            base: base.cast(),
            chunk_bytes,
            chunks,
        })
    }

    /// Has a socket's frames stand here.
    pub(super) fn register(&self, socket: &OwnedFd) -> io::Result<()> {
        let registration = libc::xdp_umem_reg {
            addr: self.base as u64,
            len: self.bytes() as u64,
            chunk_size: self.chunk_bytes as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        let length = size_of_val(&registration) as libc::socklen_t;
        let (socket, value) = (socket.as_raw_fd(), &raw const registration);
        // SAFETY: the value is readable for its length; the memory it names stays mapped as long as
        // this, which outlives the socket.
        check(unsafe {
            libc::setsockopt(
                socket,
                libc::SOL_XDP,
                libc::XDP_UMEM_REG,
                value.cast(),
                length,
            )
        })
    }

    pub(super) const fn bytes(&self) -> usize {
        self.chunk_bytes * self.chunks
    }

    pub(super) const fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// The chunks' addresses: what rings have of them.
    pub(super) fn addresses(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let chunk_bytes = self.chunk_bytes as u64;
        (0..self.chunks as u64).map(move |at| at * chunk_bytes)
    }

    /// Bytes within a chunk.
    ///
    /// # Safety
    /// The chunk is not the kernel's, and no unique reference to these bytes lives.
    pub(super) unsafe fn slice(&self, address: u64, length: usize) -> &[u8] {
        let at = self.at(address, length);
        // SAFETY: inside the mapping; nobody writes there, by the caller's promise.
        unsafe { std::slice::from_raw_parts(at, length) }
    }

    /// Bytes within a chunk.
    ///
    /// # Safety
    /// The chunk is not the kernel's, and no other reference to these bytes lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the chunks are as many memories, and the caller says whose each is"
    )]
    pub(super) unsafe fn slice_mut(&self, address: u64, length: usize) -> &mut [u8] {
        let at = self.at(address, length);
        // SAFETY: inside the mapping; nobody else is there, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(at, length) }
    }

    /// Where an address is that the kernel may have written: one that is none of ours ends the
    /// program.
    fn at(&self, address: u64, length: usize) -> *mut u8 {
        let offset = address as usize;
        let is_inside =
            offset < self.bytes() && length <= self.chunk_bytes - offset % self.chunk_bytes;
        assert!(
            is_inside,
            "an address from a ring is in the memory it is about"
        );
        // SAFETY: checked above.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and borrowed by nobody.
        unsafe { libc::munmap(self.base.cast(), self.bytes()) };
    }
}
