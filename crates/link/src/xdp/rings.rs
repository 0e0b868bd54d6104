//! The rings between this process and the kernel (`net/xdp/xsk_queue.h`): one side produces, the
//! other consumes.
//!
//! ```text
//!   fill        free chunks        ──► kernel        receive      frames that came  ◄── kernel
//!   transmit    frames to be sent  ──► kernel        completion   chunks, sent      ◄── kernel
//! ```
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `producer` of fill, transmit | we | kernel | Release, pairs with its acquire: entries are there before the count |
//! | `consumer` of fill, transmit | kernel | we | Acquire: it has read an entry before we write over it |
//! | `producer` of receive, completion | kernel | we | Acquire: entries, and the frames they are about, are there |
//! | `consumer` of receive, completion | we | kernel | Release: we have read an entry before it is written over |
//! | `flags` | kernel | we | Relaxed, after a full fence behind our `producer`: one of both sees the other's |

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::sys::{check, set_option};

/// Which ring, and of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The option that makes it, and its place in the socket's mappings.
    option: libc::c_int,
    page_offset: libc::off_t,
    offsets: fn(&libc::xdp_mmap_offsets) -> &libc::xdp_ring_offset,
}

pub(super) const RECEIVE: Kind = Kind {
    option: libc::XDP_RX_RING,
    page_offset: libc::XDP_PGOFF_RX_RING,
    offsets: |all| &all.rx,
};
pub(super) const TRANSMIT: Kind = Kind {
    option: libc::XDP_TX_RING,
    page_offset: libc::XDP_PGOFF_TX_RING,
    offsets: |all| &all.tx,
};
pub(super) const FILL: Kind = Kind {
    option: libc::XDP_UMEM_FILL_RING,
    page_offset: libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t,
    offsets: |all| &all.fr,
};
pub(super) const COMPLETION: Kind = Kind {
    option: libc::XDP_UMEM_COMPLETION_RING,
    page_offset: libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t,
    offsets: |all| &all.cr,
};

/// A ring's mapping. `T` is what stands in its entries.
#[derive(Debug)]
struct Ring<T> {
    base: *mut u8,
    bytes: usize,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    /// A power of two.
    size: u32,
    of: PhantomData<T>,
}

// SAFETY: the mapping belongs to no thread, and what stands in it is plain numbers.
unsafe impl<T: Copy + Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Makes a ring of a socket and maps it.
    fn new(socket: &OwnedFd, kind: Kind, size: u32) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "the kernel wants it");
        let fd = socket.as_raw_fd();
        set_option(socket, libc::SOL_XDP, kind.option, &size)?;
        let all = offsets(socket)?;
        let at = (kind.offsets)(&all);
        let bytes = at.desc as usize + size as usize * size_of::<T>();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping, where the kernel likes.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                how,
                fd,
                kind.page_offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTFORK) };
        let base = base.cast::<u8>();
        // SAFETY: the kernel has told where in the mapping each is.
        let word = |offset: u64| unsafe { base.add(offset as usize) }.cast_const().cast();
        Ok(Self {
            base,
            bytes,
            producer: word(at.producer),
            consumer: word(at.consumer),
            flags: word(at.flags),
            // SAFETY: as above.
            entries: unsafe { base.add(at.desc as usize) }.cast(),
            size,
            of: PhantomData,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: mapped and aligned as long as `self`; the kernel uses it atomically, too.
        unsafe { &*self.producer }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.consumer }
    }

    fn needs_wake_up(&self) -> bool {
        fence(Ordering::SeqCst);
        // SAFETY: as above.
        let flags = unsafe { &*self.flags }.load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, position: u32) -> *mut T {
        // SAFETY: the mapping has `size` entries.
        unsafe { self.entries.add((position & (self.size - 1)) as usize) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and borrowed by nobody.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// A ring that we write.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Where the next entry goes; published up to `ring.producer`.
    next: u32,
    /// How far the kernel was when last looked at. Invariant: `next - consumed <= size`.
    consumed: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn new(socket: &OwnedFd, kind: Kind, size: u32) -> io::Result<Self> {
        Ok(Self {
            ring: Ring::new(socket, kind, size)?,
            next: 0,
            consumed: 0,
        })
    }

    /// Puts an entry down, which the kernel sees after [`Producer::publish`]; false when there is
    /// no room.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) == self.ring.size {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) == self.ring.size {
                return false;
            }
        }
        // SAFETY: the kernel has consumed what stood there, and sees nothing of it before it is
        // published.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Entries that the kernel has not taken.
    pub(super) fn waiting(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumed)
    }

    /// Whether the kernel looks only after it is called.
    pub(super) fn needs_wake_up(&self) -> bool {
        self.ring.needs_wake_up()
    }
}

/// A ring that the kernel writes.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// The next entry; given back up to `ring.consumer`.
    next: u32,
    /// How far the kernel was when last looked at.
    produced: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(socket: &OwnedFd, kind: Kind, size: u32) -> io::Result<Self> {
        Ok(Self {
            ring: Ring::new(socket, kind, size)?,
            next: 0,
            produced: 0,
        })
    }

    /// The next entry, which stays. When those are used up that were there the last time, the
    /// kernel gets their places back.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<T> {
        if self.next == self.produced {
            let ring = &self.ring;
            ring.consumer().store(self.next, Ordering::Release);
            self.produced = ring.producer().load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        // SAFETY: the kernel has written this entry, and not got its place back.
        Some(unsafe { self.ring.entry(self.next).read() })
    }

    /// Takes the entry that was peeked at.
    #[inline]
    pub(super) fn advance(&mut self) {
        debug_assert_ne!(self.next, self.produced, "there is an entry");
        self.next = self.next.wrapping_add(1);
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let entry = self.peek()?;
        self.advance();
        Some(entry)
    }
}

/// Where in each ring's mapping its words are.
fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: plain numbers, for which zeros are a value.
    let mut all: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&all) as libc::socklen_t;
    let (fd, value) = (socket.as_raw_fd(), (&raw mut all).cast());
    // SAFETY: the value is writable for its length.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            value,
            &mut length,
        )
    })?;
    // Linux before 5.4 tells less: it has no flags.
    if (length as usize) < size_of_val(&all) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(all)
}
