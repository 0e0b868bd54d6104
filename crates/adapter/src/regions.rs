//! The memory of channels and pairs. It is made here, given to clients, and kept as descriptors. A
//! pair's channels lie in slabs, by their slots (`toehold_channel::layout`). A
//! channel in a slot that was used before needs neither a new descriptor nor a new mapping, and its
//! pages already exist.
//!
//! ```text
//!   free ─► in use ─► warm ─► in use …   we write the control words anew each time; both sides
//!                       │                have seen the bytes in the rings
//!                       └───► free       after WARM_FOR, or when WARM_MAX others are warm
//! ```
//!
//! A client may hold the kernel's lock of a slab's file (`inode_lock`) for ever: by a `write` from
//! memory whose page does not come. So the adapter's thread makes no call that takes this lock. It
//! sets control words through a mapping. Pages are given back by `fallocate`, which takes the lock:
//! in the system adapter on other threads. Until that is done, the region is not used.

use crate::registry::{ChannelId, Ended, Match, PairId};
use crate::slots::Forks;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::memfd::{self, MapError};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::pread;
use toehold_channel::layout::{
    CAPACITY_LOG2_MIN, CONTROL_BYTES, Control, PAIR_BYTES, PAIR_MAGIC, PairHeader, Publish,
    REGION_BYTES, REGION_MAGIC, RING_BYTES, SLAB_BYTES, SLAB_SLOTS, Side, place_in_slab, slab_of,
};
use toehold_channel::table::LAYOUT_VERSION;

/// A descriptor that several messages may share until each is sent.
pub(crate) type SharedFd = Arc<OwnedFd>;

/// The most regions without a channel whose pages are kept.
pub(crate) const WARM_MAX: usize = 1024;
/// The time that the pages of such a region are kept.
pub(crate) const WARM_FOR: Duration = Duration::from_secs(1);
/// The most bytes of each ring that are kept in a warm region.
const WARM_RING_BYTES: usize = 1 << CAPACITY_LOG2_MIN;

/// The memory of every pair that the registry knows.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Most descriptors that all of it may take: one for each pair, and one for each slab.
    descriptors_max: usize,
    /// Of all pairs.
    slabs: usize,
    pairs: BTreeMap<PairId, PairMemory>,
    channels: BTreeMap<ChannelId, (PairId, u32)>,
    /// Since when.
    warm: BTreeMap<(PairId, u32), Instant>,
    /// When to look at them; nothing when there are none.
    cool_due: Option<Instant>,
    slab_next: u64,
    /// Where pages wait to be given back by [`Regions::poll_give_back`]. `None`: this is done at
    /// once.
    later: Option<Vec<GiveBack>>,
    /// The number of such parts of each region, until [`Regions::gave_back`].
    given_back: BTreeMap<RegionKey, usize>,
    /// Those of these regions for which a channel waits.
    awaited: BTreeSet<RegionKey>,
}

/// A region of a slab: the slab's number, which is never used again, and the slot.
pub(crate) type RegionKey = (u64, u32);

/// Pages that are given back to the system.
#[derive(Debug)]
pub(crate) struct GiveBack {
    pub(crate) pair: PairId,
    /// The region in a slab that stays.
    region: Option<RegionKey>,
    slab: SharedFd,
    part: Range<usize>,
}

impl GiveBack {
    /// Gives them back. May wait for a process that has the slab.
    pub(crate) fn run(self) -> Option<RegionKey> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let Range { start, end } = self.part;
        // This fails only for lack of memory, and then it is tried again later.
        let _ = fallocate(&self.slab, mode, start as u64, (end - start) as u64);
        self.region
    }
}

#[derive(Debug)]
struct PairMemory {
    bitmaps: SharedFd,
    slabs: BTreeMap<u32, Slab>,
}

#[derive(Debug)]
struct Slab {
    number: u64,
    file: SharedFd,
    /// The mapping of all of it.
    base: NonNull<u8>,
    forks: Forks,
    /// The sides that have got the descriptor.
    shown: [bool; 2],
    /// Another process has the slab as well, so it gets no new channels.
    is_closed: bool,
    in_use: u32,
}

/// The memory of one channel.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The slab it lies in.
    pub(crate) slab: SharedFd,
    /// The sides that already have the slab.
    pub(crate) shown: [bool; 2],
    /// Its pair's.
    pub(crate) pair: SharedFd,
}

impl Regions {
    /// No memory yet, and at most `descriptors_max` descriptors.
    pub(crate) fn new(descriptors_max: usize) -> Regions {
        Regions {
            descriptors_max,
            slabs: 0,
            pairs: BTreeMap::new(),
            channels: BTreeMap::new(),
            warm: BTreeMap::new(),
            cool_due: None,
            slab_next: 0,
            later: None,
            given_back: BTreeMap::new(),
            awaited: BTreeSet::new(),
        }
    }

    /// From now on pages wait in [`Regions::poll_give_back`].
    pub(crate) fn give_back_later(&mut self) {
        self.later.get_or_insert_default();
    }

    /// The next pages to give back. The caller reports the end by [`Regions::gave_back`].
    pub(crate) fn poll_give_back(&mut self) -> Option<GiveBack> {
        self.later.as_mut()?.pop()
    }

    /// Pages of a region were given back. True when a channel has waited for the region, which may
    /// be used again.
    pub(crate) fn gave_back(&mut self, region: RegionKey) -> bool {
        let Entry::Occupied(mut parts) = self.given_back.entry(region) else {
            return false;
        };
        *parts.get_mut() -= 1;
        let is_all = *parts.get() == 0;
        if is_all {
            parts.remove();
        }
        is_all && self.awaited.remove(&region)
    }

    fn give_back(&mut self, part: GiveBack) {
        let Some(later) = &mut self.later else {
            part.run();
            return;
        };
        if let Some(region) = part.region {
            *self.given_back.entry(region).or_default() += 1;
        }
        later.push(part);
    }

    /// Whether there are descriptors for any new channel. A channel of a new pair takes two.
    pub(crate) fn has_room_for_any(&self) -> bool {
        self.pairs.len() + self.slabs + 2 <= self.descriptors_max
    }

    /// Whether there are descriptors for a new channel. One in a slab that is there takes none.
    pub(crate) fn has_room(&self, matched: &Match) -> bool {
        let pair = self.pairs.get(&matched.pair);
        let has_slab = |pair: &PairMemory| pair.slabs.contains_key(&slab_of(matched.slot));
        let wanted = usize::from(pair.is_none()) + usize::from(!pair.is_some_and(has_slab));
        wanted == 0 || self.pairs.len() + self.slabs + wanted <= self.descriptors_max
    }

    /// The number of slabs, and the number that there may be beside the pairs.
    pub(crate) fn slabs(&self) -> [usize; 2] {
        let most = self.descriptors_max.saturating_sub(self.pairs.len());
        [self.slabs, most]
    }

    /// Makes the memory for a new channel that its pair does not have yet.
    ///
    /// # Errors
    /// `WouldBlock` while pages of its region are given back; otherwise the system's.
    pub(crate) fn create(&mut self, matched: &Match) -> io::Result<Memory> {
        let pair = match self.pairs.entry(matched.pair) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(PairMemory {
                bitmaps: SharedFd::new(create_pair()?),
                slabs: BTreeMap::new(),
            }),
        };
        let before = pair.slabs.len();
        let replaced = pair.slab(self.slab_next, matched.slot, matched.forks);
        self.slab_next += 1;
        self.slabs += pair.slabs.len() - before;
        let replaced = replaced?.map(|slab| slab.part(matched.pair, None, 0..SLAB_BYTES));
        let slab = pair.slabs.get_mut(&slab_of(matched.slot));
        let slab = slab.expect("just made, or good");
        let region = (slab.number, matched.slot);
        if self.given_back.contains_key(&region) {
            self.awaited.insert(region);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        slab.begin_region(matched.slot);
        slab.in_use += 1;
        let shown = std::mem::replace(&mut slab.shown, [true; 2]);
        let slab = slab.file.clone();
        let place = (matched.pair, matched.slot);
        self.warm.remove(&place);
        self.channels.insert(matched.channel, place);
        let pair = pair.bitmaps.clone();
        if let Some(part) = replaced {
            self.give_back(part);
        }
        Ok(Memory { slab, shown, pair })
    }

    /// The memory of an existing channel. `for_another` is set for another process of the family,
    /// which must not see other channels.
    pub(crate) fn get(&mut self, channel: ChannelId, for_another: bool) -> Option<Memory> {
        let &(pair_id, slot) = self.channels.get(&channel)?;
        let pair = self.pairs.get_mut(&pair_id)?;
        let slab = pair.slabs.get_mut(&slab_of(slot))?;
        if for_another {
            slab.is_closed = true;
            let first = slab_of(slot) * SLAB_SLOTS;
            for other in first..first + SLAB_SLOTS {
                let is_warm = self.warm.remove(&(pair_id, other)).is_some();
                let is_left = is_warm || self.given_back.contains_key(&(slab.number, other));
                match &self.later {
                    _ if !is_left => {}
                    None => drop(slab.region(pair_id, other).run()),
                    Some(_) => slab.wipe(other),
                }
            }
        }
        Some(Memory {
            slab: slab.file.clone(),
            shown: [false; 2],
            pair: pair.bitmaps.clone(),
        })
    }

    /// Releases memory at once or after a while. A channel that never got memory may end as well.
    pub(crate) fn close(&mut self, ended: Ended, now: Instant) {
        match ended {
            Ended::Channel(id) => {
                if let Some(place) = self.channels.remove(&id) {
                    self.end_channel(place, now);
                }
            }
            Ended::Pair(id) => {
                let Some(pair) = self.pairs.remove(&id) else {
                    return;
                };
                self.warm.retain(|&(pair, _), _| pair != id);
                self.slabs -= pair.slabs.len();
                for slab in pair.slabs.values() {
                    // A living process still has the slab mapped.
                    self.give_back(slab.part(id, None, 0..SLAB_BYTES));
                }
            }
        }
    }

    fn end_channel(&mut self, place: (PairId, u32), now: Instant) {
        let (pair_id, slot) = place;
        let pair = self.pairs.get_mut(&pair_id);
        let Some(slab) = pair.and_then(|pair| pair.slabs.get_mut(&slab_of(slot))) else {
            return;
        };
        slab.in_use -= 1;
        if self.warm.len() < WARM_MAX && !slab.is_closed {
            for part in slab.grown(pair_id, slot) {
                self.give_back(part);
            }
            self.warm.insert(place, now);
            self.cool_due.get_or_insert(now + WARM_FOR);
        } else if slab.in_use > 0 {
            let part = slab.region(pair_id, slot);
            self.give_back(part);
        } else {
            self.remove_slab(place);
        }
    }

    /// Gives up the slab of a slot. The slab has no channel. The next channel there gets a new
    /// slab. Warm regions in it are lost, which does no harm.
    fn remove_slab(&mut self, (pair_id, slot): (PairId, u32)) {
        let pair = self.pairs.get_mut(&pair_id);
        if let Some(slab) = pair.and_then(|pair| pair.slabs.remove(&slab_of(slot))) {
            self.give_back(slab.part(pair_id, None, 0..SLAB_BYTES));
            self.slabs -= 1;
        }
    }

    /// Gives back the pages of regions that have been warm for long enough, and slabs that are
    /// empty.
    pub(crate) fn cool(&mut self, now: Instant) {
        if self.cool_due.is_none_or(|due| now < due) {
            return;
        }
        let mut cold = Vec::new();
        self.warm.retain(|&place, since| {
            let is_cold = now.saturating_duration_since(*since) >= WARM_FOR;
            if is_cold {
                cold.push(place);
            }
            !is_cold
        });
        self.cool_due = (!self.warm.is_empty()).then_some(now + WARM_FOR);
        for (id, slot) in cold {
            let pair = self.pairs.get(&id);
            match pair.and_then(|pair| pair.slabs.get(&slab_of(slot))) {
                Some(slab) if slab.in_use > 0 => {
                    let part = slab.region(id, slot);
                    self.give_back(part);
                }
                Some(_) => self.remove_slab((id, slot)),
                None => {}
            }
        }
    }

    /// When there may be something to [`Regions::cool`].
    pub(crate) fn cool_due(&self) -> Option<Instant> {
        self.cool_due
    }
}

impl PairMemory {
    /// Makes sure that there is a slab for a slot. If the channel must not use the existing slab, a
    /// new slab replaces it, and the old one is returned; the registry has ensured that no channel
    /// uses it.
    fn slab(&mut self, number: u64, slot: u32, forks: Forks) -> io::Result<Option<Slab>> {
        let index = slab_of(slot);
        let is_good = |slab: &Slab| !slab.is_closed && slab.forks == forks;
        if self.slabs.get(&index).is_some_and(is_good) {
            return Ok(None);
        }
        Ok(self.slabs.insert(index, Slab::new(number, forks)?))
    }
}

impl Slab {
    fn new(number: u64, forks: Forks) -> io::Result<Slab> {
        let file = create_slab()?;
        let base = map_slab(&file)?;
        Ok(Slab {
            number,
            file: SharedFd::new(file),
            base,
            forks,
            shown: [false; 2],
            is_closed: false,
            in_use: 0,
        })
    }

    fn part(&self, pair: PairId, region: Option<RegionKey>, part: Range<usize>) -> GiveBack {
        GiveBack {
            pair,
            region,
            slab: self.file.clone(),
            part,
        }
    }

    /// The pages of a region, control words included.
    fn region(&self, pair: PairId, slot: u32) -> GiveBack {
        let begins = place_in_slab(slot);
        let part = begins..begins + REGION_BYTES;
        self.part(pair, Some((self.number, slot)), part)
    }

    /// The pages that grown rings have left. The two processes say whether the rings have grown: if
    /// they do not tell the truth, the region's pages are given back when it is cold.
    fn grown(&self, pair: PairId, slot: u32) -> Vec<GiveBack> {
        let has_grown = CAPACITIES.iter().any(|at| {
            // SAFETY: inside the mapping, and aligned. Another process may be writing to it.
            let word = unsafe { self.base.add(place_in_slab(slot) + at).cast::<u32>() };
            // SAFETY: as above; any value is one of a number.
            unsafe { word.read_volatile() != CAPACITY_LOG2_MIN }
        });
        let rings = if has_grown { 0..2 } else { 0..0 };
        let rest = rings.map(|ring| {
            let begins = place_in_slab(slot) + CONTROL_BYTES + ring * RING_BYTES;
            let part = begins + WARM_RING_BYTES..begins + RING_BYTES;
            self.part(pair, Some((self.number, slot)), part)
        });
        rest.collect()
    }

    /// Sets the control words of the region of a slot. Nobody uses them: both sides have left the
    /// channel before, if there was one.
    fn begin_region(&self, slot: u32) {
        // SAFETY: the mapping lives as long as `self`.
        unsafe { set_first_words(self.base, slot) };
    }

    /// Overwrites a region with zeroes. A part without pages gets none: it is read by `pread`, and
    /// not through the mapping.
    fn wipe(&self, slot: u32) {
        let (begins, mut bytes) = (place_in_slab(slot), [0; 4096]);
        for page in (begins..begins + REGION_BYTES).step_by(bytes.len()) {
            let read = pread(&self.file, &mut bytes, page as u64);
            if read.is_ok() && bytes.iter().all(|&byte| byte == 0) {
                continue;
            }
            for at in (page..page + bytes.len()).step_by(size_of::<u64>()) {
                // SAFETY: inside the mapping, and aligned. Another process may be writing to it.
                unsafe { self.base.add(at).cast::<u64>().write_volatile(0) };
            }
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing refers to it any more.
        unsafe { memfd::unmap(self.base, SLAB_BYTES) };
    }
}

fn map_slab(file: &OwnedFd) -> io::Result<NonNull<u8>> {
    memfd::map(file.as_fd(), SLAB_BYTES).map_err(|error| match error {
        MapError::Os(error) => error,
        other => io::Error::other(format!("{other:?}")),
    })
}

/// A slab's memfd.
pub(crate) fn create_slab() -> io::Result<OwnedFd> {
    memfd::create(c"toehold-slab", SLAB_BYTES)
}

/// Sets the control words of the region of a slot in a slab that is not mapped here.
#[cfg(test)]
pub(crate) fn begin_region(slab: &OwnedFd, slot: u32) -> io::Result<()> {
    let base = map_slab(slab)?;
    // SAFETY: mapped just now with this length, and used by nobody afterwards.
    unsafe {
        set_first_words(base, slot);
        memfd::unmap(base, SLAB_BYTES);
    }
    Ok(())
}

/// # Safety
/// A slab is mapped at `base`.
unsafe fn set_first_words(base: NonNull<u8>, slot: u32) {
    let words = first_words();
    let (words, rest) = words.as_chunks();
    assert!(rest.is_empty(), "whole words");
    for (index, word) in words.iter().enumerate() {
        let at = place_in_slab(slot) + index * size_of::<u64>();
        // SAFETY: inside the mapping, and aligned. The two processes learn of the region by a
        // message that is sent afterwards.
        unsafe {
            let place = base.add(at).cast::<u64>();
            place.write_volatile(u64::from_ne_bytes(*word));
        }
    }
}

/// The control words of a region.
fn first_words() -> [u8; size_of::<Control>()] {
    let mut words = [0; size_of::<Control>()];
    let mut set = |at: usize, bytes: &[u8]| words[at..at + bytes.len()].copy_from_slice(bytes);
    set(offset_of!(Control, magic), &REGION_MAGIC.to_ne_bytes());
    set(offset_of!(Control, version), &LAYOUT_VERSION.to_ne_bytes());
    for at in CAPACITIES {
        set(at, &CAPACITY_LOG2_MIN.to_ne_bytes());
    }
    words
}

/// Offsets of the words in which each side stores its ring's capacity.
const CAPACITIES: [usize; 2] = {
    let of_side = offset_of!(Side, publish) + offset_of!(Publish, capacity_log2);
    let first = offset_of!(Control, sides) + of_side;
    [first, first + size_of::<Side>()]
};

/// A pair's memfd, its header set.
pub(crate) fn create_pair() -> io::Result<OwnedFd> {
    let file = File::from(memfd::create(c"toehold-pair", PAIR_BYTES)?);
    file.write_all_at(
        &PAIR_MAGIC.to_ne_bytes(),
        offset_of!(PairHeader, magic) as u64,
    )?;
    file.write_all_at(
        &LAYOUT_VERSION.to_ne_bytes(),
        offset_of!(PairHeader, version) as u64,
    )?;
    Ok(file.into())
}

#[cfg(test)]
mod tests;
