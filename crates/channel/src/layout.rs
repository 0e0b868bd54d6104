//! Shared layouts a peer can write: the channel's *region* and the pair's *ready bitmaps*.
//!
//! ```text
//!   region, one per connection                       pair, one per two processes
//!   page 0   Control                                 page 0   PairHeader │ AcceptQueue × 2
//!              side 0: Line set │ side 1: Line set   bitmaps  side 0: ReadyBitmap × 8
//!   page 1   ring 0 (side 0 writes)                           side 1: ReadyBitmap × 8
//!    …       ring 1 (side 1 writes)                  each: sleep word, then one bit per channel
//!
//!   slab, SLAB_SLOTS regions of one pair             slot s of a pair: slab s / SLAB_SLOTS,
//!                                                    region s % SLAB_SLOTS in it
//! ```
//!
//! A slab is one memfd, shown to each of the two processes once. Slots are used again, and with
//! them regions, mappings and pages: most channels begin and end without any of these being made
//! (`docs/decisions/0014-slabs.md`).
//!
//! Words, who writes them, and how they are ordered:
//!
//! | word | writer | reader | ordering | line |
//! |---|---|---|---|---|
//! | `tail` | sender | receiver | swap `SeqCst` / `Acquire` | `publish` |
//! | `capacity_log2` | sender, ring empty only | receiver | `Relaxed`, carried by `tail` | `publish` |
//! | `records`, `record[]` | sender | receiver | `Release` / `Acquire` | `switch` |
//! | `going_down` | sender | receiver's sender half | `SeqCst` fences | `switch` |
//! | `resend` | both | both | compare-exchange, `AcqRel` | `switch` |
//! | `head` | receiver | sender | `Release` / `Acquire` | `consume` |
//! | `acknowledged` | receiver | sender | `Release` / `Acquire` | `consume` |
//! | `attached`, `closed` | either side | the other | `Release` / `Acquire` | `state` |
//! | `counted` | sender | receiver | `SeqCst` fences / `Acquire` | `wake` |
//! | `wake`, `want_credit` | the side that sleeps | the side that rings | `SeqCst` fences | `wake` |
//!
//! Everything here is written by a hostile peer for all we know: load a word once, check it, use
//! the copy.

use crate::express::{AcceptQueue, Turns};
use crate::sync::Ordering;
use crate::untrusted::{Word32, Word64};

/// How a side tells its state: the words `attached`, `closed`, `refuse` and `abandoned` of its
/// [`Wake`]. Pairs with the other side's loads by [`SIDE_SEEN`]: what was published before is
/// there.
pub const SIDE_TOLD: Ordering = Ordering::Release;
/// How the other side looks at those words. Pairs with the stores by [`SIDE_TOLD`].
pub const SIDE_SEEN: Ordering = Ordering::Acquire;

/// First word of a region: "TOEHOLDR".
pub const REGION_MAGIC: u64 = u64::from_le_bytes(*b"TOEHOLDR");
/// First word of a pair: "TOEHOLDP".
pub const PAIR_MAGIC: u64 = u64::from_le_bytes(*b"TOEHOLDP");
/// Bytes before the first ring.
pub const CONTROL_BYTES: usize = 4096;
/// Smallest ring in force, as a power of two: four pages. Two bytes under the model checker, which
/// tries every schedule.
pub const CAPACITY_LOG2_MIN: u32 = if cfg!(loom) { 1 } else { 14 };
/// A ring to an engine, which reads it at its remote's pace, is large enough from here on.
pub const CAPACITY_LOG2_ENGINE: u32 = if cfg!(loom) { 3 } else { 20 };
/// Largest ring in force, as a power of two: more than a processor's own cache holds
/// (`docs/decisions/0009-large-rings.md`). Address space for it is reserved, pages come as they are
/// touched.
pub const CAPACITY_LOG2_MAX: u32 = if cfg!(loom) { 3 } else { 22 };
/// Address space of one ring.
pub const RING_BYTES: usize = 1 << CAPACITY_LOG2_MAX;
/// Length of a region.
pub const REGION_BYTES: usize = CONTROL_BYTES + 2 * RING_BYTES;
/// Regions of one slab.
pub const SLAB_SLOTS: u32 = 8;
/// Length of a slab's memfd; untouched pages cost nothing.
pub const SLAB_BYTES: usize = SLAB_SLOTS as usize * REGION_BYTES;
/// Switch records a direction can have unacknowledged: one up, and the down that may always follow
/// it.
pub const RECORDS_OUTSTANDING_MAX: u32 = 2;
/// Room for records: twice that, so that a slot is never rewritten while it can be read.
pub const RECORD_SLOTS: usize = 4;

/// Which of a pair's slabs a slot is in.
pub const fn slab_of(slot: u32) -> u32 {
    slot / SLAB_SLOTS
}

/// Where in its slab the region of a slot begins.
pub const fn place_in_slab(slot: u32) -> usize {
    (slot % SLAB_SLOTS) as usize * REGION_BYTES
}

/// A page's worth of control words, both sides.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Control {
    /// [`REGION_MAGIC`], by the adapter.
    pub magic: Word64,
    /// [`crate::table::LAYOUT_VERSION`], by the adapter.
    pub version: Word32,
    _pad: u32,
    /// Each side's words.
    pub sides: [Side; 2],
    /// Which connection of the program the carrier serves.
    pub turns: Turns,
}

/// Words that one side writes and the other reads.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Side {
    /// As sender.
    pub publish: Publish,
    /// As receiver.
    pub consume: Consume,
    /// As sender: mode switches.
    pub switch: Switch,
    /// How to wake this side.
    pub wake: Wake,
}

/// Sender's line.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Publish {
    /// Ring bytes published, ever.
    pub tail: Word64,
    /// Ring capacity in force, as a power of two. Changes only while the ring is empty.
    pub capacity_log2: Word32,
}

/// Receiver's line.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Consume {
    /// Ring bytes consumed, ever.
    pub head: Word64,
    /// Switch records carried out.
    pub acknowledged: Word32,
}

/// Sender's mode switches: record `n` is an upgrade when `n` is even, a downgrade when it is odd.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Switch {
    /// Records published, ever.
    pub records: Word32,
    /// Set while the sender is about to publish a downgrade.
    pub going_down: Word32,
    /// Decides about bytes that are unread when the sender comes down. The receiver wants them by
    /// the carrier ([`RESEND_ASKED`]), or the sender came down before it was asked and leaves them
    /// in the ring ([`RESEND_TOO_LATE`]). 0 until one of the two has written; the first counts. A
    /// sender that was asked says when it has sent them all ([`RESEND_DONE`]).
    pub resend: Word32,
    /// The records; `n` stands at `n % RECORD_SLOTS`.
    pub record: [Record; RECORD_SLOTS],
}

/// Where a direction changes its path.
#[derive(Default)]
#[repr(C)]
pub struct Record {
    /// Carrier bytes sent before the change, doorbells included.
    pub carrier: Word64,
    /// Ring bytes published before the change.
    pub ring: Word64,
}

/// This side's sleep and life.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Wake {
    /// A [`crate::doorbell::WakeWord`]: how this side wants to hear of new bytes or credit.
    pub wake: Word32,
    /// This side waits for credit in its sending direction.
    pub want_credit: Word32,
    /// 1 once this side has mapped the region and reads by its records; [`LEFT`] once it has done
    /// with it.
    pub attached: Word32,
    /// `CLOSED_*`: what this side has ended, a hint to look at the carrier.
    pub closed: Word32,
    /// This side asks the other to bring its sending direction back to the carrier and leave it
    /// there ([`REFUSE`]), and to give the channel up at once ([`EVICT`]).
    pub refuse: Word32,
    /// This side has stopped reading its ring for good: its descriptor went to a program that knows
    /// nothing of rings. Bytes that are in the ring all the same, and are not asked for again by
    /// [`Switch::resend`], are lost. The sender, who can see that, must end the connection.
    pub abandoned: Word32,
    /// 1 while this side's end is to be a reset (`SO_LINGER` of no time).
    pub resets: Word32,
    /// Processor this side last waited on, plus one: spinning for a peer on one's own core is
    /// pointless.
    pub processor: Word32,
    /// Of a Unix carrier: one more than the bytes that this side has given it, doorbells included;
    /// 0 while a send may be under way.
    pub counted: Word64,
    /// 1 once a program that knows nothing of rings may read this side's carrier: the other side
    /// gives it no doorbell any more.
    pub silent: Word32,
    pub(crate) _pad: Word32,
    /// Bytes that this side had given to its carrier after its last doorbell; [`RINGING`] while it
    /// may be giving one.
    pub rung: Word64,
}

/// In `rung`: a doorbell may be under way.
pub const RINGING: u64 = u64::MAX;

/// In [`Switch::resend`]: what is unread when the sender comes down is to go by the carrier.
pub const RESEND_ASKED: u32 = 1;
/// In [`Switch::resend`]: the sender is down, and what is unread stays in the ring.
pub const RESEND_TOO_LATE: u32 = 2;
/// In [`Switch::resend`]: all that was unread has gone by the carrier.
pub const RESEND_DONE: u32 = 3;
/// In `attached`: the side's directions are on the carrier, it has carried out every record and
/// will publish none again.
pub const LEFT: u32 = 2;
/// In `refuse`: stay on the carrier for as long as this stands here.
pub const REFUSE: u32 = 1;
/// In `refuse`: this channel is over.
pub const EVICT: u32 = 2;
/// The side has shut its sending direction.
pub const CLOSED_TX: u32 = 1;
/// The side has closed the connection altogether.
pub const CLOSED_ALL: u32 = 2;
/// With [`CLOSED_ALL`]: nothing was left unread. A reset that follows all the same answers a
/// doorbell that crossed with the close.
pub const CLOSED_CLEAN: u32 = 4;
/// With [`CLOSED_ALL`] and [`CLOSED_CLEAN`]: the side has ended a turn ([`crate::express`]), and
/// the carrier goes on.
pub const CLOSED_TURN: u32 = 8;

/// Ready bitmaps on each side of a pair: epoll instances that can be served by bits.
pub const READY_BITMAPS: usize = 8;
/// Channels a pair can number.
pub const READY_BITS: usize = if cfg!(loom) { 64 } else { 65_536 };
/// Words of a ready bitmap.
pub const READY_WORDS: usize = READY_BITS / 64;

/// A ready bitmap: which channels of a pair have news for one epoll instance.
#[repr(C, align(128))]
pub struct ReadyBitmap {
    /// 1 while somebody sleeps on this ready bitmap's epoll instance: the notifier takes it to 0
    /// and rings.
    pub sleeping: Word32,
    _pad: [u32; 15],
    /// One more than the processor on which a thread that waits on that instance was when it last
    /// let others run; 0 for none. A hint.
    pub waits_on: Word32,
    _pad_waits: [u32; 15],
    /// One bit per channel.
    pub bits: [Word64; READY_WORDS],
}

impl Default for ReadyBitmap {
    fn default() -> ReadyBitmap {
        ReadyBitmap {
            sleeping: Word32::default(),
            _pad: [0; 15],
            waits_on: Word32::default(),
            _pad_waits: [0; 15],
            bits: core::array::from_fn(|_| Word64::default()),
        }
    }
}

/// First page of a pair.
#[repr(C, align(4096))]
pub struct PairHeader {
    /// [`PAIR_MAGIC`], by the adapter.
    pub magic: Word64,
    /// [`crate::table::LAYOUT_VERSION`], by the adapter.
    pub version: Word32,
    /// Connections that wait for `accept`, by accepting side.
    pub queues: [AcceptQueue; 2],
}

/// The ready bitmaps of one side.
#[repr(C)]
pub struct ReadyBitmaps {
    /// By epoll instance, in the order the side uses them.
    pub bitmaps: [ReadyBitmap; READY_BITMAPS],
}

/// Where side 0's ready bitmaps begin in a pair.
pub const READY_BITMAPS_OFFSET: usize = 4096;
/// Length of a pair's memfd.
pub const PAIR_BYTES: usize =
    (READY_BITMAPS_OFFSET + 2 * size_of::<ReadyBitmaps>()).next_multiple_of(4096);

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Control>() <= CONTROL_BYTES);
    assert!(size_of::<Side>() == 512);
    assert!(size_of::<PairHeader>() == READY_BITMAPS_OFFSET);
    assert!(size_of::<ReadyBitmap>() == 128 + READY_BITS / 8);
    assert!(CAPACITY_LOG2_MIN <= CAPACITY_LOG2_MAX && CAPACITY_LOG2_MIN >= 12);
    assert!(READY_BITS.is_multiple_of(SLAB_SLOTS as usize));
    assert!(REGION_BYTES.is_multiple_of(4096));
    assert!(RECORD_SLOTS >= 2 * RECORDS_OUTSTANDING_MAX as usize);
};
