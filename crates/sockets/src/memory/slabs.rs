//! The slabs that this process maps. Each is mapped once, as a whole, and stays mapped as long as a
//! channel of ours is in it, or might soon be.
//!
//! Other connections use a region's place in its slab again. If a thread could still be inside a
//! region that is given up, the region's range is replaced by private memory, a *hole*, and the
//! slab is mapped a second time for the next connection.
//!
//! ```text
//!   mapped ──► found by its pair ──(a hole at the next region's place, or
//!                │                    another slab in its place, or the pair is gone)──► retired
//!                │ nobody uses it, and IDLE_MAX others are unused too      nobody uses it │
//!                └─────────────────────────► unmapped ◄───────────────────────────────────┘
//! ```
//!
//! The adapter sends a slab's descriptor once. If the slab is already unmapped here when the next
//! offer comes, the library asks for it again. Callers of all functions here hold the adapter's
//! lock.

use core::ptr::NonNull;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use toehold_freestanding::fd::BorrowedFd;

use toehold_channel::layout::{
    Control, REGION_BYTES, REGION_MAGIC, SLAB_BYTES, SLAB_SLOTS, place_in_slab, slab_of,
};
use toehold_channel::memfd;
use toehold_channel::table::{ENTRIES, LAYOUT_VERSION};

use crate::connection::{Connection, Local};
use crate::memory::chunks::Chunks;
use crate::memory::pairs::Pair;

/// One mapping. All zeroes is a free place.
struct Slab {
    base: AtomicPtr<u8>,
    /// Number of the slab's file.
    number: AtomicU64,
    /// The pair's word that names this slab; null once it is retired.
    found_at: AtomicPtr<AtomicU32>,
    /// Connections that have a region here, or the reserved place of a region that they have left.
    users: AtomicU32,
    /// One bit for each slot: the slot's range is a hole.
    holes: AtomicU32,
    /// When it was last used, as a sequence number.
    idle_since: AtomicU64,
}

/// The most unused slabs that are kept mapped.
const IDLE_MAX: u32 = 64;
/// Enough for one slab for each connection.
const SLABS_MAX: usize = ENTRIES;
static SLABS: Chunks<Slab, CHUNK_LOG2, { SLABS_MAX >> CHUNK_LOG2 }> = Chunks::new();
const CHUNK_LOG2: u32 = 8;
/// Places below this one have been used.
static USED: AtomicU32 = AtomicU32::new(0);
/// Number of unused slabs.
static IDLE: AtomicU32 = AtomicU32::new(0);
static TIME: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(SLAB_SLOTS <= u32::BITS);

/// The places that have been used.
fn slabs() -> impl Iterator<Item = &'static Slab> {
    (0..USED.load(Ordering::Relaxed) as usize).map_while(|place| SLABS.get(place))
}

/// The address and length of each slab that is mapped.
pub(crate) fn mapped() -> impl Iterator<Item = (usize, usize)> {
    let bases = slabs().map(|slab| slab.base.load(Ordering::Relaxed) as usize);
    bases
        .filter(|&base| base != 0)
        .map(|base| (base, SLAB_BYTES))
}

/// Slab `number`, counted from 1.
fn slab(number: u32) -> Option<&'static Slab> {
    SLABS.get(number.checked_sub(1)? as usize)
}

/// Finds a slot's region: in the known slab or, if `file` is another slab, in that one. Returns the
/// number of the slab, and the region.
pub(crate) fn find(
    pair: &Pair,
    slot: u32,
    file: Option<BorrowedFd<'_>>,
) -> Option<(u32, NonNull<u8>)> {
    let place = pair.slab(slab_of(slot))?;
    let known = slab(place.load(Ordering::Relaxed));
    let same = |known: &Slab| {
        let number = file.map(|file| memfd::number(file).unwrap_or(0));
        let is_hole = known.holes.load(Ordering::Relaxed) & bit(slot) != 0;
        !is_hole && number.is_none_or(|number| number == known.number.load(Ordering::Relaxed))
    };
    if let Some(known) = known.filter(|known| !same(known)) {
        retire(known);
    }
    let mut number = place.load(Ordering::Relaxed);
    if number == 0 {
        number = map(place, file?)?;
    }
    let base = NonNull::new(slab(number)?.base.load(Ordering::Relaxed))?;
    // SAFETY: inside the mapping.
    Some((number, unsafe { base.add(place_in_slab(slot)) }))
}

fn bit(slot: u32) -> u32 {
    1 << (slot % SLAB_SLOTS)
}

fn map(place: &AtomicU32, file: BorrowedFd<'_>) -> Option<u32> {
    let used = USED.load(Ordering::Relaxed) as usize;
    let is_free = |slab: &Slab| slab.base.load(Ordering::Relaxed).is_null();
    let free = slabs().position(is_free).unwrap_or(used);
    let slab = SLABS.get_or_map(free)?;
    let base = memfd::map(file, SLAB_BYTES).ok()?;
    slab.base.store(base.as_ptr(), Ordering::Relaxed);
    let number = memfd::number(file).unwrap_or(0);
    slab.number.store(number, Ordering::Relaxed);
    let found_at = core::ptr::from_ref(place).cast_mut();
    slab.found_at.store(found_at, Ordering::Relaxed);
    slab.users.store(0, Ordering::Relaxed);
    slab.holes.store(0, Ordering::Relaxed);
    USED.store(used.max(free + 1) as u32, Ordering::Relaxed);
    place.store(free as u32 + 1, Ordering::Relaxed);
    becomes_idle(slab);
    Some(free as u32 + 1)
}

/// Whether there is a region of our version here.
pub(crate) fn is_region(region: NonNull<u8>) -> bool {
    // SAFETY: mapped by our callers, page-aligned, all atomics.
    let control = unsafe { region.cast::<Control>().as_ref() };
    control.magic.load(Ordering::Relaxed).is(REGION_MAGIC)
        && control.version.load(Ordering::Relaxed).is(LAYOUT_VERSION)
}

/// Records that a connection has a region in a slab.
pub(crate) fn enter(local: &Local, number: u32) {
    let Some(slab) = slab(number) else { return };
    local.slab.store(number, Ordering::Relaxed);
    if slab.users.fetch_add(1, Ordering::Relaxed) == 0 {
        IDLE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Records that a connection has nothing in its slab any more.
pub(crate) fn leave(local: &Local) {
    let Some(slab) = slab(local.slab.swap(0, Ordering::Relaxed)) else {
        return;
    };
    if slab.users.fetch_sub(1, Ordering::Relaxed) > 1 {
        return;
    }
    if slab.found_at.load(Ordering::Relaxed).is_null() {
        return unmap(slab);
    }
    becomes_idle(slab);
}

fn becomes_idle(slab: &Slab) {
    let now = TIME.fetch_add(1, Ordering::Relaxed);
    slab.idle_since.store(now, Ordering::Relaxed);
    if IDLE.fetch_add(1, Ordering::Relaxed) < IDLE_MAX {
        return;
    }
    let is_idle = |slab: &&Slab| {
        !slab.base.load(Ordering::Relaxed).is_null() && slab.users.load(Ordering::Relaxed) == 0
    };
    let idle = slabs().filter(is_idle);
    if let Some(oldest) = idle.min_by_key(|slab| slab.idle_since.load(Ordering::Relaxed)) {
        retire(oldest);
    }
}

/// Retires a slab: its pair does not find it any more.
fn retire(slab: &Slab) {
    let found_at = slab.found_at.swap(null_mut(), Ordering::Relaxed);
    // SAFETY: places live as long as their pair, which retires its slabs before it goes.
    if let Some(place) = unsafe { found_at.as_ref() } {
        place.store(0, Ordering::Relaxed);
        if slab.users.load(Ordering::Relaxed) == 0 {
            IDLE.fetch_sub(1, Ordering::Relaxed);
            unmap(slab);
        }
    }
}

/// All slabs of a pair that is being forgotten.
pub(crate) fn retire_all(pair: &Pair) {
    for place in (0..).map_while(|index| pair.slab(index)) {
        if let Some(slab) = slab(place.load(Ordering::Relaxed)) {
            retire(slab);
        }
    }
}

fn unmap(slab: &Slab) {
    let base = slab.base.swap(null_mut(), Ordering::Relaxed);
    if let Some(base) = NonNull::new(base) {
        // SAFETY: mapped by `map` with this length; no connection has anything in it.
        unsafe { memfd::unmap(base, SLAB_BYTES) };
    }
}

/// Replaces a region that a thread may still read with private memory. False when that fails.
pub(crate) fn replace(connection: &Connection, region: NonNull<u8>) -> bool {
    let local = connection.local;
    // SAFETY: whole pages of a slab's mapping, or of what took their place; whoever looks there
    // finds zeroes.
    if !unsafe { memfd::replace(region, REGION_BYTES) } {
        return false;
    }
    // A parked range is already a hole.
    if local.parked.load(Ordering::Relaxed).is_null()
        && let Some(slab) = slab(local.slab.load(Ordering::Relaxed))
    {
        let slot = connection.entry.slot.load(Ordering::Relaxed);
        slab.holes
            .fetch_or(bit(slot.masked(SLAB_SLOTS - 1)), Ordering::Relaxed);
    }
    true
}

/// The region of a slot of slab `file`, in the hole that an earlier region of the same connection
/// has left.
pub(crate) fn map_over(
    parked: NonNull<u8>,
    slot: u32,
    file: BorrowedFd<'_>,
) -> Option<NonNull<u8>> {
    let begins = place_in_slab(slot);
    let part = begins..begins + REGION_BYTES;
    // SAFETY: `replace` made that hole, it is used for this connection's regions only, and a slot's
    // place is in the slab.
    unsafe { memfd::map_over(parked, file, SLAB_BYTES, part) }.ok()
}
