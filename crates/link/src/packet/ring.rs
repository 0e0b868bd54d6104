//! The receive ring of a packet socket (`linux/if_packet.h`, TPACKET_V2). The kernel fills its
//! slots, and we give them back.
//!
//! ```text
//!  | status length .. | address | metadata, headers, payload ... |   a slot; status: its owner
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mapping::Mapping;
use crate::sys::set_option;
use crate::vnet::VnetHeader;

/// A frame in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The kernel's header of the frame.
    pub header: VnetHeader,
    /// The bytes in the slot: the complete frame, or its beginning.
    pub bytes: &'a [u8],
    /// The frame's length. It is greater than the length of [`Arrival::bytes`] if the slot has only
    /// the beginning.
    pub length: usize,
    /// The complete frame can be read from the socket. Otherwise the bytes that are not in the slot
    /// are lost.
    pub is_kept: bool,
}

#[derive(Debug)]
pub(super) struct Ring {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    /// The oldest slot that may have a frame.
    next: usize,
}

impl Ring {
    /// A ring whose slots hold frames of the MTU, up to the largest size of a slot.
    pub(super) fn new(socket: &OwnedFd, mtu: usize) -> io::Result<Ring> {
        let needed = (mtu + OVERHEAD_BYTES).next_power_of_two();
        let slot_bytes = if needed > SLOT_BYTES_MAX {
            SLOT_BYTES_MIN
        } else {
            needed
        };
        let slot_bytes = slot_bytes.max(SLOT_BYTES_MIN);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (RING_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: (RING_BYTES / slot_bytes) as u32,
        };
        set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        Ok(Ring {
            memory: Mapping::of_socket(socket, 0, RING_BYTES)?,
            slot_bytes,
            slots: RING_BYTES / slot_bytes,
            next: 0,
        })
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<Arrival<'_>> {
        self.peek_at(0)
    }

    /// The frame in the slot that is `ahead` slots after the oldest. `ahead` must be less than the
    /// number of slots.
    #[inline]
    pub(super) fn peek_at(&self, ahead: usize) -> Option<Arrival<'_>> {
        debug_assert!(ahead < self.slots, "once around is the oldest again");
        let at = self.next + ahead;
        let at = if at < self.slots { at } else { at - self.slots };
        // Acquire pairs with `tpacket_rcv`, which fills the slot and then sets its status.
        let status = self.status(at).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: a slot of the mapping, which the kernel does not write to until it is given back;
        // that takes `&mut self`.
        let slot = unsafe { std::slice::from_raw_parts(self.slot(at), self.slot_bytes) };
        let word = |at: usize| u32::from_ne_bytes(*slot[at..].first_chunk().expect("in a slot"));
        let (length, inside) = (word(LENGTH_AT), word(INSIDE_AT));
        let mac = u16::from_ne_bytes(*slot[MAC_AT..].first_chunk().expect("in a slot"));
        let frame_at = usize::from(mac);
        let metadata = slot.get(frame_at.checked_sub(VnetHeader::BYTES)?..)?;
        Some(Arrival {
            header: VnetHeader::from_bytes(*metadata.first_chunk()?),
            bytes: slot.get(frame_at..)?.get(..inside as usize)?,
            length: length as usize,
            is_kept: status & libc::TP_STATUS_COPY != 0,
        })
    }

    #[inline]
    pub(super) fn release(&mut self) {
        let status = self.status(self.next);
        assert!(
            status.load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0,
            "a slot that is the kernel's already"
        );
        // Release pairs with the kernel's load in `packet_lookup_frame`: our reads of the slot
        // happen before.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.slots {
            0
        } else {
            self.next + 1
        };
    }

    fn status(&self, at: usize) -> &AtomicU32 {
        // SAFETY: a slot begins with its status (`tpacket2_hdr`), aligned as slots are; it is only
        // used as an atomic.
        unsafe { AtomicU32::from_ptr(self.slot(at).cast()) }
    }

    fn slot(&self, at: usize) -> *mut u8 {
        self.memory.base().wrapping_add(at * self.slot_bytes)
    }
}

/// The ring holds the windows of some connections. The kernel writes all of the ring before it
/// reuses a slot, so a larger ring is less often in the cache.
const RING_BYTES: usize = 4 << 20;
const _: () = assert!(RING_BYTES / SLOT_BYTES_MAX > super::FRAMES_TOGETHER_MAX);
const BLOCK_BYTES: usize = 1 << 16;
/// For frames of the usual MTU, and for the larger MTUs in use.
const SLOT_BYTES_MIN: usize = 2_048;
const SLOT_BYTES_MAX: usize = 16_384;
/// The slot's own words, the metadata, the frame's Ethernet header, and padding.
const OVERHEAD_BYTES: usize = 128;
const LENGTH_AT: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_len);
const INSIDE_AT: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_snaplen);
const MAC_AT: usize = std::mem::offset_of!(libc::tpacket2_hdr, tp_mac);
