//! Memory in chunks of one size, each for one frame (AF_XDP: "UMEM"). This process and the kernel
//! pass the chunks to each other.
//!
//! A chunk is the kernel's from the time its address is written to the fill or transmit ring until
//! the address comes back by the receive or completion ring.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_xdp_umem_reg;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

use crate::mapping::Mapping;

/// Chunks of memory.
#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
    chunk_bytes: usize,
    chunks: usize,
}

impl Umem {
    /// Maps the memory.
    pub(super) fn new(chunk_bytes: usize, chunks: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Mapping::anonymous(chunk_bytes * chunks)?,
            chunk_bytes,
            chunks,
        })
    }

    /// Makes this the memory of a socket's frames. It must stay mapped as long as the socket is
    /// open, so the socket's owner drops the socket first.
    pub(super) fn register(&self, socket: &OwnedFd) -> io::Result<()> {
        let registration = XdpUmemReg {
            addr: self.memory.base().expose_provenance() as u64,
            len: self.bytes() as u64,
            chunk_size: self.chunk_bytes as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        Ok(set_xdp_umem_reg(socket, registration)?)
    }

    pub(super) const fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(super) const fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// The chunks' addresses, which the rings' entries use.
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

    /// The place of an address that the kernel may have written. Panics if the address is outside
    /// our memory.
    fn at(&self, address: u64, length: usize) -> *mut u8 {
        let offset = address as usize;
        let is_inside =
            offset < self.bytes() && length <= self.chunk_bytes - offset % self.chunk_bytes;
        assert!(
            is_inside,
            "an address from a ring is in the memory it is about"
        );
        // SAFETY: checked above.
        unsafe { self.memory.base().add(offset) }
    }
}
