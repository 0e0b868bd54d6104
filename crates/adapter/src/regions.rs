//! The memory of channels and pairs. It is made here, given to clients, and kept as descriptors
//! without mappings. A pair's channels lie in slabs, by their slots (`toehold_channel::layout`). A
//! channel in a slot that was used before needs neither a new descriptor nor a new mapping, and its
//! pages already exist.
//!
//! ```text
//!   free ─► in use ─► warm ─► in use …   we write the control words anew each time; both sides
//!                       │                have seen the bytes in the rings
//!                       └───► free       after WARM_FOR, or when WARM_MAX others are warm
//! ```

use crate::registry::{ChannelId, Ended, Match, PairId};
use crate::slots::Forks;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::memfd;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::pwrite;
use toehold_channel::layout::{
    CAPACITY_LOG2_MIN, CONTROL_BYTES, Control, PAIR_BYTES, PAIR_MAGIC, PairHeader, Publish,
    REGION_BYTES, REGION_MAGIC, RING_BYTES, SLAB_BYTES, SLAB_SLOTS, Side, place_in_slab, slab_of,
};
use toehold_channel::table::LAYOUT_VERSION;

/// A descriptor that several messages may share until each is sent.
pub(crate) type SharedFd = Rc<OwnedFd>;

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
}

#[derive(Debug)]
struct PairMemory {
    bitmaps: SharedFd,
    slabs: BTreeMap<u32, Slab>,
}

#[derive(Debug)]
struct Slab {
    file: SharedFd,
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
        }
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
    pub(crate) fn create(&mut self, matched: &Match) -> io::Result<Memory> {
        let pair = match self.pairs.entry(matched.pair) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(PairMemory {
                bitmaps: SharedFd::new(create_pair()?),
                slabs: BTreeMap::new(),
            }),
        };
        let before = pair.slabs.len();
        let slab = pair.slab(matched.slot, matched.forks);
        self.slabs += pair.slabs.len() - before;
        let slab = pair.slabs.get_mut(&slab?).expect("just made, or good");
        begin_region(&slab.file, matched.slot)?;
        slab.in_use += 1;
        let shown = std::mem::replace(&mut slab.shown, [true; 2]);
        let slab = slab.file.clone();
        let place = (matched.pair, matched.slot);
        self.warm.remove(&place);
        self.channels.insert(matched.channel, place);
        let pair = pair.bitmaps.clone();
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
                if self.warm.remove(&(pair_id, other)).is_some() {
                    slab.clear(other);
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
                    slab.give_back(0..SLAB_BYTES);
                }
            }
        }
    }

    fn end_channel(&mut self, place: (PairId, u32), now: Instant) {
        let (pair, slot) = place;
        let pair = self.pairs.get_mut(&pair);
        let Some(slab) = pair.and_then(|pair| pair.slabs.get_mut(&slab_of(slot))) else {
            return;
        };
        slab.in_use -= 1;
        if self.warm.len() < WARM_MAX && !slab.is_closed {
            slab.trim(slot);
            self.warm.insert(place, now);
            self.cool_due.get_or_insert(now + WARM_FOR);
        } else if slab.in_use > 0 {
            slab.clear(slot);
        } else {
            self.remove_slab(place);
        }
    }

    /// Gives up the slab of a slot. The slab has no channel. The next channel there gets a new
    /// slab. Warm regions in it are lost, which does no harm.
    fn remove_slab(&mut self, (pair, slot): (PairId, u32)) {
        let pair = self.pairs.get_mut(&pair);
        if let Some(slab) = pair.and_then(|pair| pair.slabs.remove(&slab_of(slot))) {
            slab.give_back(0..SLAB_BYTES);
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
                Some(slab) if slab.in_use > 0 => slab.clear(slot),
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
    /// The number of the slab for a slot. If the channel must not use the existing slab, a new slab
    /// replaces it; the registry has ensured that no channel uses the old one.
    fn slab(&mut self, slot: u32, forks: Forks) -> io::Result<u32> {
        let index = slab_of(slot);
        let is_good = |slab: &Slab| !slab.is_closed && slab.forks == forks;
        if !self.slabs.get(&index).is_some_and(is_good) {
            let slab = Slab {
                file: SharedFd::new(create_slab()?),
                forks,
                shown: [false; 2],
                is_closed: false,
                in_use: 0,
            };
            if let Some(before) = self.slabs.insert(index, slab) {
                before.give_back(0..SLAB_BYTES);
            }
        }
        Ok(index)
    }
}

impl Slab {
    /// Gives back the pages of a region, control words included.
    fn clear(&self, slot: u32) {
        let begins = place_in_slab(slot);
        self.give_back(begins..begins + REGION_BYTES);
    }

    /// Gives back the pages that grown rings have left.
    fn trim(&self, slot: u32) {
        for ring in 0..2 {
            let begins = place_in_slab(slot) + CONTROL_BYTES + ring * RING_BYTES;
            let rest = begins + WARM_RING_BYTES..begins + RING_BYTES;
            // An error (ENXIO) means that there is no more data.
            let data = seek(&self.file, SeekFrom::Data(rest.start as u64));
            if data.is_ok_and(|data| data < rest.end as u64) {
                self.give_back(rest);
            }
        }
    }

    fn give_back(&self, part: Range<usize>) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // This fails only for lack of memory, and then it is tried again later.
        let _ = fallocate(&self.file, mode, part.start as u64, part.len() as u64);
    }
}

/// A slab's memfd.
pub(crate) fn create_slab() -> io::Result<OwnedFd> {
    memfd::create(c"toehold-slab", SLAB_BYTES)
}

/// Sets the control words of the region of a slot. Nobody uses them: both sides have left the
/// channel before, if there was one.
pub(crate) fn begin_region(slab: &OwnedFd, slot: u32) -> io::Result<()> {
    let words = first_words();
    let written = pwrite(slab, &words, place_in_slab(slot) as u64)?;
    assert_eq!(written, words.len(), "memory takes all of it");
    Ok(())
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
