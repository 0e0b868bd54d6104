//! The memory of channels and pairs: made here, written once, handed out, and kept as a descriptor, not mapped, for
//! programs that replace themselves and have to map it again.

use crate::registry::{ChannelId, Ended, Match, PairId};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use toehold_channel::layout::{
    CAPACITY_LOG2_MIN, Control, PAIR_BYTES, PAIR_MAGIC, PairHeader, Publish, REGION_BYTES,
    REGION_MAGIC, Side,
};
use toehold_channel::memfd;
use toehold_channel::table::LAYOUT_VERSION;

/// A descriptor that several messages may share until each is sent.
pub(crate) type SharedFd = Rc<OwnedFd>;

/// The memory of every channel and every pair that the registry knows.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    channels: BTreeMap<ChannelId, SharedFd>,
    pairs: BTreeMap<PairId, SharedFd>,
}

/// What one channel needs.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The channel's own.
    pub(crate) region: SharedFd,
    /// Its pair's.
    pub(crate) pair: SharedFd,
}

impl Regions {
    /// Makes what a new channel needs: a region, and the pair's memory unless its pair has some.
    pub(crate) fn create(&mut self, matched: &Match) -> io::Result<Memory> {
        let pair = match self.pairs.get(&matched.pair) {
            Some(pair) => pair.clone(),
            None => SharedFd::new(create_pair()?),
        };
        let region = SharedFd::new(create_region()?);
        self.pairs.insert(matched.pair, pair.clone());
        self.channels.insert(matched.channel, region.clone());
        Ok(Memory { region, pair })
    }

    /// What a channel was made with.
    pub(crate) fn get(&self, channel: ChannelId, pair: PairId) -> Option<Memory> {
        Some(Memory {
            region: self.channels.get(&channel)?.clone(),
            pair: self.pairs.get(&pair)?.clone(),
        })
    }

    /// Keeps something no longer. What never came to have memory can end as well.
    pub(crate) fn close(&mut self, ended: Ended) {
        match ended {
            Ended::Channel(id) => drop(self.channels.remove(&id)),
            Ended::Pair(id) => drop(self.pairs.remove(&id)),
        }
    }
}

/// A region's memfd, its control words set.
pub(crate) fn create_region() -> io::Result<OwnedFd> {
    let file = File::from(memfd::create(c"toehold-region", REGION_BYTES)?);
    // Written before anybody else has the descriptor, so plain writes are ordered before every reader.
    file.write_all_at(&first_words(), 0)?;
    Ok(file.into())
}

/// The control words of a region up to the last one that is not zero.
fn first_words() -> [u8; CAPACITIES[1] + 4] {
    let mut words = [0; CAPACITIES[1] + 4];
    let mut set = |at: usize, bytes: &[u8]| words[at..at + bytes.len()].copy_from_slice(bytes);
    set(offset_of!(Control, magic), &REGION_MAGIC.to_ne_bytes());
    set(offset_of!(Control, version), &LAYOUT_VERSION.to_ne_bytes());
    for at in CAPACITIES {
        set(at, &CAPACITY_LOG2_MIN.to_ne_bytes());
    }
    words
}

/// Where each side says how large its ring is.
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
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_region_says_what_it_is_and_how_large_its_rings_are() {
        let file = create_region().expect("memfd");
        let base = memfd::map(file.as_fd(), REGION_BYTES).expect("sealed, of the right length");
        // SAFETY: mapped just now, of the right length and aligned to a page.
        let control: &Control = unsafe { base.cast().as_ref() };
        assert_eq!(control.magic.load(Ordering::Relaxed), REGION_MAGIC);
        assert_eq!(control.version.load(Ordering::Relaxed), LAYOUT_VERSION);
        for side in &control.sides {
            let capacity_log2 = side.publish.capacity_log2.load(Ordering::Relaxed);
            assert_eq!(capacity_log2, CAPACITY_LOG2_MIN);
            assert_eq!(side.publish.tail.load(Ordering::Relaxed), 0);
            assert_eq!(side.wake.attached.load(Ordering::Relaxed), 0);
        }
        // SAFETY: `control` is not used any more.
        unsafe { memfd::unmap(base, REGION_BYTES) };
    }

    #[test]
    fn a_pair_says_what_it_is() {
        let file = create_pair().expect("memfd");
        let base = memfd::map(file.as_fd(), PAIR_BYTES).expect("sealed, of the right length");
        // SAFETY: mapped just now, of the right length and aligned to a page.
        let header: &PairHeader = unsafe { base.cast().as_ref() };
        assert_eq!(header.magic.load(Ordering::Relaxed), PAIR_MAGIC);
        assert_eq!(header.version.load(Ordering::Relaxed), LAYOUT_VERSION);
        // SAFETY: `header` is not used any more.
        unsafe { memfd::unmap(base, PAIR_BYTES) };
    }
}
