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
//! | `capacity_log2` | sender, ring empty only | receiver | `Relaxed`, carried by `tail` |
//! `publish` |
//! | `records`, `record[]` | sender | receiver | `Release` / `Acquire` | `switch` |
//! | `going_down` | sender | receiver's sender half | `SeqCst` fences | `switch` |
//! | `resend` | both | both | compare-exchange, `AcqRel` | `switch` |
//! | `head` | receiver | sender | `Release` / `Acquire` | `consume` |
//! | `acknowledged` | receiver | sender | `Release` / `Acquire` | `consume` |
//! | `attached`, `closed` | either side | the other | `Release` / `Acquire` | `state` |
//! | `counted` | sender | receiver | `SeqCst` fences / `Acquire` | `wake` |
//! | `wake`, `want_credit` | the side that sleeps | the side that rings | `SeqCst` fences | `wake`
//! |
//!
//! A hostile peer can write every word here: load a word once, check it, use the copy.

use crate::express::{AcceptQueue, Turns};
use crate::sync::Ordering;
use crate::untrusted::{Word32, Word64};

/// The ordering with which a side stores its state: the words `attached`, `closed`, `refuse` and
/// `abandoned` of its [`Wake`]. Pairs with the other side's loads by [`SIDE_ACQUIRE`]: everything
/// published before the store is visible.
pub const SIDE_RELEASE: Ordering = Ordering::Release;
/// The ordering with which the other side loads those words. Pairs with the stores by
/// [`SIDE_RELEASE`].
pub const SIDE_ACQUIRE: Ordering = Ordering::Acquire;

/// First word of a region: "TOEHOLDR".
pub const REGION_MAGIC: u64 = u64::from_le_bytes(*b"TOEHOLDR");
/// First word of a pair: "TOEHOLDP".
pub const PAIR_MAGIC: u64 = u64::from_le_bytes(*b"TOEHOLDP");
/// Bytes before the first ring.
pub const CONTROL_BYTES: usize = 4096;
/// Smallest ring in force, as a power of two: four pages. Two bytes under the model checker, which
/// tries every schedule.
pub const CAPACITY_LOG2_MIN: u32 = if cfg!(loom) { 1 } else { 14 };
/// Capacity, as a power of two, from which a ring to an engine stays in use when it is full. The
/// engine reads at the pace of its remote.
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
/// Slots for records: twice the most outstanding records, so that no slot is rewritten while the
/// receiver can read it.
pub const RECORD_SLOTS: usize = 4;

/// The number of the slab, within its pair, that contains a slot.
pub const fn slab_of(slot: u32) -> u32 {
    slot / SLAB_SLOTS
}

/// Offset of a slot's region within its slab, in bytes.
pub const fn place_in_slab(slot: u32) -> usize {
    (slot % SLAB_SLOTS) as usize * REGION_BYTES
}

/// The control words of both sides: at most one page.
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
    /// Words that this side writes as sender.
    pub publish: Publish,
    /// Words that this side writes as receiver.
    pub consume: Consume,
    /// Mode switches that this side writes as sender.
    pub switch: Switch,
    /// The wake-up that this side wants.
    pub wake: Wake,
}

/// Sender's line.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Publish {
    /// Ring bytes published since the region was made.
    pub tail: Word64,
    /// Ring capacity in force, as a power of two. Changes only while the ring is empty.
    pub capacity_log2: Word32,
}

/// Receiver's line.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Consume {
    /// Ring bytes consumed since the region was made.
    pub head: Word64,
    /// Switch records carried out.
    pub acknowledged: Word32,
}

/// Sender's mode switches: record `n` is an upgrade when `n` is even, a downgrade when it is odd.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Switch {
    /// Records published since the region was made.
    pub records: Word32,
    /// Set while the sender is about to publish a downgrade.
    pub going_down: Word32,
    /// Decides what happens to the bytes that are unread when the sender goes down to the carrier.
    /// [`RESEND_ASKED`]: the receiver wants them on the carrier. [`RESEND_TOO_LATE`]: the sender
    /// went down before it was asked, and the bytes stay in the ring. 0 until one of the two sides
    /// has written; the first write counts. [`RESEND_DONE`]: the sender was asked and has sent all
    /// of them.
    pub resend: Word32,
    /// The records; record `n` is at index `n % RECORD_SLOTS`.
    pub record: [Record; RECORD_SLOTS],
}

/// The position at which a direction changes its path.
#[derive(Default)]
#[repr(C)]
pub struct Record {
    /// Carrier bytes sent before the change, doorbells included.
    pub carrier: Word64,
    /// Ring bytes published before the change.
    pub ring: Word64,
}

/// The wake-up that this side wants, and whether it still uses the channel.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Wake {
    /// A [`crate::doorbell::WakeWord`]: how this side wants to hear of new bytes or credit.
    pub wake: Word32,
    /// This side waits for credit in its sending direction.
    pub want_credit: Word32,
    /// 1 once this side has mapped the region and reads by its records; [`LEFT`] once it has left
    /// the channel.
    pub attached: Word32,
    /// `CLOSED_*`: which directions this side has ended. A hint to look at the carrier.
    pub closed: Word32,
    /// [`REFUSE`]: this side asks the other to move its sending direction back to the carrier and
    /// to leave it there. [`EVICT`]: the other side is also to give the channel up at once.
    pub refuse: Word32,
    /// This side has stopped reading its ring for good, because its descriptor went to a program
    /// without the library. Bytes that are still in the ring are lost, unless [`Switch::resend`]
    /// asks for them. The sender sees that and must end the connection.
    pub abandoned: Word32,
    /// 1 while this side is going to end the connection with a reset (`SO_LINGER` with a time of
    /// 0).
    pub resets: Word32,
    /// Processor this side last waited on, plus one: spinning for a peer on one's own core is
    /// pointless.
    pub processor: Word32,
    /// For a Unix carrier: one more than the number of bytes that this side has sent on it,
    /// doorbells included; 0 while a send may be under way.
    pub counted: Word64,
    /// 1 once a program without the library may read this side's carrier: the other side sends no
    /// more doorbells on it.
    pub silent: Word32,
    pub(crate) _pad: Word32,
    /// Bytes that this side had sent on its carrier when its last doorbell was out, that doorbell
    /// included; [`RINGING`] while it may be sending one.
    pub rung: Word64,
}

/// In `rung`: a doorbell may be under way.
pub const RINGING: u64 = u64::MAX;

/// In [`Switch::resend`]: the bytes that are unread when the sender goes down are to be sent on the
/// carrier.
pub const RESEND_ASKED: u32 = 1;
/// In [`Switch::resend`]: the sender is down, and the unread bytes stay in the ring.
pub const RESEND_TOO_LATE: u32 = 2;
/// In [`Switch::resend`]: all unread bytes were sent on the carrier.
pub const RESEND_DONE: u32 = 3;
/// In `attached`: the side's directions are on the carrier, it has carried out every record and
/// will publish none again.
pub const LEFT: u32 = 2;
/// In `refuse`: stay on the carrier as long as the word has this value.
pub const REFUSE: u32 = 1;
/// In `refuse`: this channel is over.
pub const EVICT: u32 = 2;
/// The side has shut its sending direction.
pub const CLOSED_TX: u32 = 1;
/// The side has closed the connection altogether.
pub const CLOSED_ALL: u32 = 2;
/// With [`CLOSED_ALL`]: this side has read everything. A reset that follows is the answer to a
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
    /// Whether a thread sleeps on this ready bitmap's epoll instance, and for which doorbell
    /// ([`crate::doorbell::SLEEPS_ON_CARRIER`], [`crate::doorbell::SLEEPS_ON_PAIR`]): the notifier
    /// sets it to 0 and rings.
    pub sleeping: Word32,
    _pad: [u32; 15],
    /// One more than the number of the processor on which a waiting thread of that epoll instance
    /// last yielded; 0 for none. A hint.
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
