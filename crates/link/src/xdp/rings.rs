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
//! | `producer` of fill, transmit | we | kernel | Release, pairs with its acquire: entries are
//! there before the count | | `consumer` of fill, transmit | kernel | we | Acquire: it has read an
//! entry before we write over it | | `producer` of receive, completion | kernel | we | Acquire:
//! entries, and the frames they are about, are there | | `consumer` of receive, completion | we |
//! kernel | Release: we have read an entry before it is written over | | `flags` | kernel | we |
//! Relaxed, after a full fence behind our `producer`: one of both sees the other's |

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::io::Result as CallResult;
use rustix::net::sockopt;
use rustix::net::xdp::{self, XdpMmapOffsets, XdpRingFlags, XdpRingOffset};

use crate::mapping::Mapping;

/// Stores a count of ours. Pairs with the kernel's load in `__xskq_cons_peek` (of what we produce)
/// or `xskq_prod_nb_free` (of what we consume).
const RELEASE: Ordering = Ordering::Release;
/// Loads a count of the kernel's. Pairs with its store in `__xskq_prod_submit` (of what it
/// produces) or `__xskq_cons_release` (of what it consumes).
const ACQUIRE: Ordering = Ordering::Acquire;

/// The kind of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The socket option that makes the ring, and the ring's offset for mmap(2).
    make: fn(&OwnedFd, u32) -> CallResult<()>,
    page_offset: u64,
    offsets: fn(&XdpMmapOffsets) -> &XdpRingOffset,
}

pub(super) const RECEIVE: Kind = Kind {
    make: |socket, size| sockopt::set_xdp_rx_ring_size(socket, size),
    page_offset: xdp::XDP_PGOFF_RX_RING,
    offsets: |all| &all.rx,
};
pub(super) const TRANSMIT: Kind = Kind {
    make: |socket, size| sockopt::set_xdp_tx_ring_size(socket, size),
    page_offset: xdp::XDP_PGOFF_TX_RING,
    offsets: |all| &all.tx,
};
pub(super) const FILL: Kind = Kind {
    make: |socket, size| sockopt::set_xdp_umem_fill_ring_size(socket, size),
    page_offset: xdp::XDP_UMEM_PGOFF_FILL_RING,
    offsets: |all| &all.fr,
};
pub(super) const COMPLETION: Kind = Kind {
    make: |socket, size| sockopt::set_xdp_umem_completion_ring_size(socket, size),
    page_offset: xdp::XDP_UMEM_PGOFF_COMPLETION_RING,
    offsets: |all| &all.cr,
};

/// A ring's mapping. `T` is the type of its entries.
#[derive(Debug)]
struct Ring<T> {
    memory: Mapping,
    /// Offsets of the ring's words and of its entries in the mapping, in bytes.
    producer_at: usize,
    consumer_at: usize,
    flags_at: usize,
    entries_at: usize,
    /// A power of two.
    size: u32,
    of: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Makes a ring of a socket and maps it.
    fn new(socket: &OwnedFd, kind: Kind, size: u32) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "the kernel wants it");
        (kind.make)(socket, size)?;
        let all = sockopt::xdp_mmap_offsets(socket)?;
        let at = (kind.offsets)(&all);
        let entries_at = at.desc as usize;
        let bytes = entries_at + size as usize * size_of::<T>();
        let ring = Self {
            memory: Mapping::of_socket(socket, kind.page_offset, bytes)?,
            producer_at: at.producer as usize,
            consumer_at: at.consumer as usize,
            // Linux before 5.4 has no flags.
            flags_at: at.flags.ok_or(io::ErrorKind::Unsupported)? as usize,
            entries_at,
            size,
            of: PhantomData,
        };
        for at in [ring.producer_at, ring.consumer_at, ring.flags_at] {
            assert!(
                at + size_of::<AtomicU32>() <= entries_at,
                "words before entries"
            );
            assert!(at.is_multiple_of(align_of::<AtomicU32>()), "aligned words");
        }
        Ok(ring)
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.producer_at)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.consumer_at)
    }

    fn needs_wake_up(&self) -> bool {
        // Pairs with the kernel's load of `producer` after it has set the flag
        // (`xsk_set_tx_need_wakeup`).
        fence(Ordering::SeqCst);
        let flags = self.word(self.flags_at).load(Ordering::Relaxed);
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked that the three offsets are aligned and inside the mapping; the
        // kernel uses these words atomically, too.
        unsafe { AtomicU32::from_ptr(self.memory.base().add(at).cast()) }
    }

    #[inline]
    fn entry(&self, position: u32) -> *mut T {
        let index = (position & (self.size - 1)) as usize;
        // SAFETY: the mapping has `size` entries from `entries_at`.
        unsafe {
            let at = self.entries_at + index * size_of::<T>();
            self.memory.base().add(at).cast()
        }
    }
}

/// A ring that we write.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Where the next entry goes; published up to `ring.producer`.
    next: u32,
    /// The kernel's position at our last look. Invariant: `next - consumed <= size`.
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

    /// Writes an entry, which the kernel sees after [`Producer::publish`]. False when the ring is
    /// full.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) == self.ring.size {
            self.consumed = self.ring.consumer().load(ACQUIRE);
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
        self.ring.producer().store(self.next, RELEASE);
    }

    /// Entries that the kernel has not taken.
    pub(super) fn waiting(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(ACQUIRE);
        self.next.wrapping_sub(self.consumed)
    }

    /// Whether the kernel looks at the ring only after a system call.
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
    /// The kernel's position at our last look.
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

    /// The next entry, which stays in the ring. When all known entries are taken, the kernel gets
    /// their places back.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<T> {
        if self.next == self.produced {
            let ring = &self.ring;
            ring.consumer().store(self.next, RELEASE);
            self.produced = ring.producer().load(ACQUIRE);
            if self.next == self.produced {
                return None;
            }
        }
        // SAFETY: the kernel has written this entry, and not got its place back.
        Some(unsafe { self.ring.entry(self.next).read() })
    }

    /// The number of entries at our last look, less the taken ones.
    #[inline]
    pub(super) fn known(&self) -> u32 {
        self.produced.wrapping_sub(self.next)
    }

    /// Looks for more entries than [`Consumer::known`] counts. Gives the places of the taken
    /// entries back to the kernel.
    pub(super) fn look(&mut self) {
        self.ring.consumer().store(self.next, RELEASE);
        self.produced = self.ring.producer().load(ACQUIRE);
    }

    /// The entry that is `ahead` entries after the next; `None` if `ahead` is not less than
    /// [`Consumer::known`].
    #[inline]
    pub(super) fn peek_at(&self, ahead: u32) -> Option<T> {
        // SAFETY: the kernel has written this entry, and not got its place back.
        (ahead < self.known())
            .then(|| unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() })
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
