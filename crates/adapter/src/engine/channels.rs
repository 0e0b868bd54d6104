//! The engine as a client of its own adapter: it asks for channels to the programs whose carriers
//! it has, as those programs do, over its own socket and with its own table. For the daemon it is a
//! process like any other.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::memfd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use toehold_channel::doorbell::WAKE_SEQ_CST;
use toehold_channel::express::ENTRIES_MAX;
use toehold_channel::layout::{
    Control, PAIR_BYTES, PAIR_MAGIC, PairHeader, READY_BITMAPS, READY_BITMAPS_OFFSET, READY_BITS,
    READY_WORDS, REGION_MAGIC, ReadyBitmap, ReadyBitmaps, SLAB_BYTES, place_in_slab, slab_of,
};
use toehold_channel::rendezvous::{
    GOES_ON, Kind, Message, PAIR_ATTACHED, SAME_USER, SLAB_ATTACHED,
};
use toehold_channel::table::{
    ENTRIES, Entry, EntryState, FLAG_ACCEPTED, LAYOUT_VERSION, TABLE_BYTES, Table, WaitMode,
};
use toehold_stream::express::{Popper, Pusher, Queued};

use super::endpoint::Endpoint;
use super::settings::to_sixteen_bytes;
use crate::registry::ClientId;
use crate::wire::{self, Received};
use toehold_channel::untrusted::{Word32, Word64};

/// The most pairs that are kept without a channel.
const IDLE_PAIRS_MAX: usize = 64;
/// In [`Pair::flows`]: the bits of a parked carrier, which its program may claim.
const CLAIMABLE: u32 = u32::MAX;
/// Offers that are taken before others have their turn.
const OFFERS_PER_TURN: usize = 64;

/// A channel that was offered.
#[derive(Debug)]
pub(super) struct Offer {
    /// The entry and the engine's connection for which it was requested.
    pub(super) entry: u32,
    pub(super) flow: u32,
    pub(super) endpoint: Endpoint,
    pub(super) pair: u64,
    pub(super) slot: u32,
    /// The program that accepts connections on the carrier.
    pub(super) accepting: Accepting,
}

/// Identifies a channel: its entry in the engine's table, and its pair and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelKey {
    pub(super) entry: u32,
    pub(super) place: (u64, u32),
}

/// The program that has accepted a connection, as the daemon found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepting {
    /// A program of our user, which is trusted when it says that it listens.
    OurUser,
    /// Another user's program, whose listener has this inode.
    Listener(u64),
    /// Another user's program, whose listener is not known.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Channels {
    socket: OwnedFd,
    table: &'static Mapped,
    /// Entries that are free, and one more than the highest that was ever used.
    free: Vec<u32>,
    used: u32,
    /// The engine's slot for which each entry was last used.
    flows: Vec<u32>,
    pairs: BTreeMap<u64, Pair>,
}

/// The engine's table. Mapped once, for as long as the process lives.
#[derive(Debug)]
struct Mapped(NonNull<u8>);

// SAFETY: a table is atomics all through.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn table(&self) -> Table {
        // SAFETY: mapped for its length by `Channels::new`, and never unmapped.
        unsafe { Table::at(self.0.as_ptr()) }
    }

    fn entry(&'static self, index: u32) -> &'static Entry {
        let table = self.table();
        let entry: *const Entry = table.entry(index).expect("entries are counted");
        // SAFETY: the mapping is never unmapped; an entry is atomics all through.
        unsafe { &*entry }
    }
}

/// This process and another one, and the ready bitmaps between them.
#[derive(Debug)]
struct Pair {
    base: NonNull<u8>,
    side: usize,
    /// One more than the engine's slot, indexed by the channel's slot.
    flows: Vec<u32>,
    count: usize,
    /// Connections that were put into the program's queue in all, and taken from ours.
    queued: AtomicU32,
    popped: AtomicU32,
    /// Address and file number of each slab.
    slabs: Vec<Option<(NonNull<u8>, u64)>>,
}

// SAFETY: ready bitmaps are atomics all through, and only the engine's thread has this mapping of
// them.
unsafe impl Send for Pair {}

impl Channels {
    /// Makes a client, and the socket over which the daemon serves it.
    ///
    /// # Errors
    /// When the kernel has no descriptors or memory left.
    pub(super) fn new() -> io::Result<(Channels, OwnedFd)> {
        let (ours, theirs) = socket_pair()?;
        let file = memfd::create(c"toehold-engine", TABLE_BYTES)?;
        let base = memfd::map(file.as_fd(), TABLE_BYTES)
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
        let table: &'static Mapped = Box::leak(Box::new(Mapped(base)));
        let pid = std::process::id();
        table.table().initialise(pid, WaitMode::Adaptive, b"engine");
        let hello = Message {
            pid,
            ..Message::new(Kind::Hello)
        };
        wire::try_send(ours.as_fd(), &hello, &[file.as_fd()])?;
        let channels = Channels {
            socket: ours,
            table,
            free: Vec::new(),
            used: 0,
            flows: Vec::new(),
            pairs: BTreeMap::new(),
        };
        Ok((channels, theirs))
    }

    /// Readable when there are offers.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks for a channel beside the carrier of the engine's connection at slot `flow`. Returns the
    /// entry of the request.
    pub(super) fn ask(
        &mut self,
        flow: u32,
        (local, remote): (SocketAddr, SocketAddr),
        accepted: bool,
    ) -> Option<u32> {
        let index = self.free.pop().or_else(|| {
            let fresh = self.used;
            (fresh < ENTRIES as u32).then(|| {
                self.used += 1;
                self.flows.push(0);
                fresh
            })
        })?;
        self.flows[index as usize] = flow;
        let entry = self.table.entry(index);
        reset(entry);
        let generation = entry.generation.load(Ordering::Relaxed).wrapping_add(1);
        entry.generation.store(generation, Ordering::Relaxed);
        // Release pairs with the Acquire load in `Table::current`.
        entry
            .channel_generation
            .store(generation, Ordering::Release);
        let flags = if accepted { FLAG_ACCEPTED } else { 0 };
        entry.flags.store(flags, Ordering::Relaxed);
        entry.holders.store(1, Ordering::Relaxed);
        entry.pid.store(std::process::id(), Ordering::Relaxed);
        // Release pairs with the Acquire load in `Table::current`: the entry is filled in.
        entry
            .state
            .store(EntryState::Live as u32, Ordering::Release);
        let table = self.table.table();
        table
            .header()
            .entries_used
            .fetch_max(index + 1, Ordering::Relaxed);
        let message = Message {
            entry: index,
            generation,
            pid: std::process::id(),
            local: to_sixteen_bytes(local.ip()),
            local_port: local.port(),
            remote: to_sixteen_bytes(remote.ip()),
            remote_port: remote.port(),
            ..Message::new(Kind::Pair)
        };
        if wire::try_send(self.socket.as_fd(), &message, &[]).is_err() {
            // The daemon is busy: the connection stays relayed.
            self.discard(index);
            return None;
        }
        Some(index)
    }

    /// The connection of an entry is over.
    pub(super) fn withdraw(&mut self, index: u32, place: Option<(u64, u32)>) {
        self.give_up(index, place, 0);
    }

    /// The connection of an entry goes on without its channel.
    pub(super) fn leave(&mut self, index: u32, place: Option<(u64, u32)>) {
        self.give_up(index, place, GOES_ON);
    }

    fn give_up(&mut self, index: u32, place: Option<(u64, u32)>, goes_on: u32) {
        let message = Message {
            entry: index,
            generation: self.table.entry(index).generation.load(Ordering::Relaxed),
            pid: std::process::id(),
            side: goes_on,
            ..Message::new(Kind::Withdraw)
        };
        // If the message is lost, the daemon notices the change of the entry later.
        let _ = wire::try_send(self.socket.as_fd(), &message, &[]);
        self.discard(index);
        if let Some((pair, slot)) = place
            && let Some(pair) = self.pairs.get_mut(&pair)
        {
            pair.flows[slot as usize] = 0;
            pair.count -= 1;
        }
    }

    /// Tells the daemon that all threads listen for a client, or have decided not to.
    pub(super) fn report_listening(&self, client: ClientId) {
        let message = Message {
            pair: client.0,
            ..Message::new(Kind::Listening)
        };
        // If the message cannot be sent, the client's wait ends by its own limit.
        let _ = wire::try_send(self.socket.as_fd(), &message, &[]);
    }

    fn discard(&mut self, index: u32) {
        let state = &self.table.entry(index).state;
        // Release pairs with the Acquire load in `Table::current`: we do not use the entry any
        // more.
        state.store(EntryState::Free as u32, Ordering::Release);
        self.free.push(index);
    }

    /// Handles the channels that were offered.
    pub(super) fn offers(&mut self, mut each: impl FnMut(&mut Channels, Offer)) {
        for _ in 0..OFFERS_PER_TURN {
            match wire::try_receive(self.socket.as_fd()) {
                Ok(Received::Message(message, Kind::Offer, descriptors)) => {
                    if let Some(offer) = self.take(&message, &descriptors) {
                        each(self, offer);
                    }
                }
                Ok(Received::Message(..) | Received::Stripped(..) | Received::Nonsense(_)) => {}
                // This does not happen: the daemon outlives the engine.
                Ok(Received::Closed) | Err(_) => return,
            }
        }
    }

    fn take(&mut self, message: &Message, descriptors: &[OwnedFd]) -> Option<Offer> {
        let entry = (message.entry < self.used).then(|| self.table.entry(message.entry))?;
        let is_current = entry.state.load(Ordering::Relaxed) == EntryState::Live as u32
            && entry.generation.load(Ordering::Relaxed) == message.generation;
        let slot = message.slot;
        let has = |bit| message.attached & bit != 0;
        let mut descriptors = descriptors.iter().map(OwnedFd::as_fd);
        let slab = has(SLAB_ATTACHED).then(|| descriptors.next()).flatten();
        let file = has(PAIR_ATTACHED).then(|| descriptors.next()).flatten();
        if let (Some(file), false) = (file, self.pairs.contains_key(&message.pair)) {
            let pair = Pair::map(file, message.side as usize)?;
            self.make_room();
            self.pairs.insert(message.pair, pair);
        }
        if slot as usize >= READY_BITS {
            return None;
        }
        let pair = self.pairs.get_mut(&message.pair);
        let region = pair.and_then(|pair| pair.region(slot, slab));
        if !is_current {
            return None;
        }
        let Some(region) = region else {
            if slab.is_none() || file.is_none() {
                // We have forgotten the pair because it was unused, but the daemon still has it:
                // ask for the whole offer again.
                let again = Message {
                    entry: message.entry,
                    generation: message.generation,
                    pid: std::process::id(),
                    ..Message::new(Kind::Resume)
                };
                let _ = wire::try_send(self.socket.as_fd(), &again, &[]);
            }
            return None;
        };
        // SAFETY: a region of one of the pair's slabs, which are mapped for as long as the pair has
        // a channel.
        let endpoint = unsafe { Endpoint::new(region, entry, message.side as usize) };
        // SAFETY: mapped, page-aligned, all atomics.
        let control = unsafe { region.cast::<Control>().as_ref() };
        let is_region = control.magic.load(Ordering::Relaxed).is(REGION_MAGIC)
            && control.version.load(Ordering::Relaxed).is(LAYOUT_VERSION);
        is_region.then_some(Offer {
            entry: message.entry,
            flow: self.flows[message.entry as usize],
            endpoint,
            pair: message.pair,
            slot,
            accepting: match message.listener {
                _ if has(SAME_USER) => Accepting::OurUser,
                0 => Accepting::Unknown,
                inode => Accepting::Listener(inode),
            },
        })
    }

    fn make_room(&mut self) {
        if self.pairs.values().filter(|pair| pair.count == 0).count() >= IDLE_PAIRS_MAX {
            self.pairs.retain(|_, pair| pair.count > 0);
        }
    }

    /// Maps the bit of a channel to the engine's connection.
    pub(super) fn enter(&mut self, pair: u64, slot: u32, flow: u32) {
        let Some(pair) = self.pairs.get_mut(&pair) else {
            return;
        };
        if pair.flows.len() <= slot as usize {
            pair.flows.resize(slot as usize + 1, 0);
        }
        pair.flows[slot as usize] = flow + 1;
        pair.count += 1;
    }

    /// Maps the bit of a channel to another connection of the engine, or to none for now.
    pub(super) fn hand_over(&mut self, (pair, slot): (u64, u32), flow: Option<u32>) {
        let place = self.pairs.get_mut(&pair);
        let place = place.and_then(|pair| pair.flows.get_mut(slot as usize));
        if let Some(place) = place {
            *place = flow.map_or(0, |flow| flow + 1);
        }
    }

    /// Marks a channel whose program may claim the carrier for its next connection: its bit means
    /// that.
    pub(super) fn await_claim(&mut self, (pair, slot): (u64, u32)) {
        let Some(pair) = self.pairs.get_mut(&pair) else {
            return;
        };
        pair.acceptable().open(ENTRIES_MAX as u32);
        if let Some(place) = pair.flows.get_mut(slot as usize) {
            *place = CLAIMABLE;
        }
    }

    /// The connection of a program that has waited longest for the engine.
    pub(super) fn next_claim(&self, pair: u64) -> Option<Queued> {
        let pair = self.pairs.get(&pair)?;
        // A program that writes invalid words there gets no further connections on used carriers.
        pair.acceptable().pop().ok().flatten()
    }

    /// The queue of connections that wait for the program's `accept`.
    pub(super) fn queue(&self, pair: u64) -> Option<Pusher<'_>> {
        let pair = self.pairs.get(&pair)?;
        Some(Pusher {
            words: &pair.header().queues[1 - pair.side],
            pushed: &pair.queued,
        })
    }

    /// One of the program's ready bitmaps.
    pub(super) fn their_bitmap(&self, pair: u64, index: u32) -> Option<&ReadyBitmap> {
        let pair = self.pairs.get(&pair)?;
        pair.bitmap(1 - pair.side, index)
    }

    /// Takes all bits that programs have set since the last call. Calls `each` with the slots of
    /// connections, and `claim` with pairs whose programs may have claimed carriers. True when any
    /// bit was set.
    pub(super) fn sweep(&self, mut each: impl FnMut(u32), mut claim: impl FnMut(u64)) -> bool {
        let mut any = false;
        for (number, pair) in self.pairs.iter().filter(|(_, pair)| pair.count > 0) {
            for (index, word) in pair.words().iter().enumerate() {
                if word.load(Ordering::Relaxed).is(0) {
                    continue;
                }
                // A full barrier: what the marker published before it set the bit is seen when the
                // connection is looked at.
                // Any bits will do: each stands for a slot that is looked up.
                let mut bits = word.swap(0, WAKE_SEQ_CST).capped(u64::MAX);
                while bits != 0 {
                    let slot = index * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    match pair.flows.get(slot) {
                        None | Some(0) => continue,
                        Some(&CLAIMABLE) => claim(*number),
                        Some(flow) => each(flow - 1),
                    }
                    any = true;
                }
            }
        }
        any
    }

    /// Sets on every ready bitmap whether programs have to ring. The caller looks at the bits again
    /// afterwards.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        for pair in self.pairs.values().filter(|pair| pair.count > 0) {
            if let Some(bitmap) = pair.bitmap(pair.side, 0) {
                bitmap.sleeping.store(u32::from(sleeping), WAKE_SEQ_CST);
            }
        }
        // Pairs with the exchange in `doorbell::mark`: the notifier sees that we sleep, or we see
        // its bit when we look again.
        fence(Ordering::SeqCst);
    }
}

impl Pair {
    fn map(file: BorrowedFd<'_>, side: usize) -> Option<Pair> {
        let base = memfd::map(file, PAIR_BYTES).ok()?;
        let pair = Pair {
            base,
            side: side & 1,
            flows: Vec::new(),
            count: 0,
            queued: AtomicU32::new(0),
            popped: AtomicU32::new(0),
            slabs: Vec::new(),
        };
        // SAFETY: mapped, page-aligned, all atomics.
        let header = unsafe { base.cast::<PairHeader>().as_ref() };
        let is_pair = header.magic.load(Ordering::Relaxed).is(PAIR_MAGIC)
            && header.version.load(Ordering::Relaxed).is(LAYOUT_VERSION);
        // A pair that was forgotten and comes back continues with its former counts.
        let goes_on = |count: &AtomicU32, word: &Word32| {
            count.store(
                word.load(Ordering::Relaxed).capped(u32::MAX),
                Ordering::Relaxed,
            );
        };
        goes_on(&pair.queued, &header.queues[1 - pair.side].tail);
        goes_on(&pair.popped, &header.queues[pair.side].head);
        is_pair.then_some(pair)
    }

    fn header(&self) -> &PairHeader {
        // SAFETY: the mapping lives as long as `self`; page-aligned, all atomics.
        unsafe { self.base.cast::<PairHeader>().as_ref() }
    }

    /// The queue of connections that wait for the engine.
    fn acceptable(&self) -> Popper<'_> {
        Popper {
            words: &self.header().queues[self.side],
            popped: &self.popped,
        }
    }

    fn bitmap(&self, side: usize, index: u32) -> Option<&ReadyBitmap> {
        if index as usize >= READY_BITMAPS {
            return None;
        }
        // SAFETY: both sides' ready bitmaps lie inside the mapping, which lives as long as `self`;
        // all atomics.
        let bitmaps = unsafe {
            &*self
                .base
                .as_ptr()
                .add(READY_BITMAPS_OFFSET)
                .cast::<ReadyBitmaps>()
                .add(side)
        };
        bitmaps.bitmaps.get(index as usize)
    }

    /// The region of a slot; `file` is its slab if that is new to us. A former slab in its place
    /// has no channels any more; otherwise the daemon would not have given it up.
    fn region(&mut self, slot: u32, file: Option<BorrowedFd<'_>>) -> Option<NonNull<u8>> {
        let index = slab_of(slot) as usize;
        if self.slabs.len() <= index {
            self.slabs.resize(index + 1, None);
        }
        let place = &mut self.slabs[index];
        let number = |file: &BorrowedFd<'_>| memfd::number(*file).ok();
        let is_known = |file: &BorrowedFd<'_>| place.map(|known| known.1) == number(file);
        if let Some(file) = file.filter(|file| !is_known(file)) {
            let fresh = (memfd::map(file, SLAB_BYTES).ok()?, number(&file)?);
            if let Some((before, _)) = place.replace(fresh) {
                // SAFETY: mapped here with this length, and nothing uses it any more.
                unsafe { memfd::unmap(before, SLAB_BYTES) };
            }
        }
        // SAFETY: inside the mapping.
        place.map(|(base, _)| unsafe { base.add(place_in_slab(slot)) })
    }

    /// The words of our ready bitmap that can have bits.
    fn words(&self) -> &[Word64] {
        let count = self.flows.len().div_ceil(64).min(READY_WORDS);
        self.bitmap(self.side, 0)
            .map_or(&[], |bitmap| &bitmap.bits[..count])
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; every reference into it borrows from `self`.
        unsafe { memfd::unmap(self.base, PAIR_BYTES) };
        for &(slab, _) in self.slabs.iter().flatten() {
            // SAFETY: mapped by `region` with this length; a pair that is dropped has no channel.
            unsafe { memfd::unmap(slab, SLAB_BYTES) };
        }
    }
}

/// Resets an entry.
fn reset(entry: &Entry) {
    for word in [
        &entry.command,
        &entry.offer,
        &entry.refusal,
        &entry.reason,
        &entry.tx_was_full,
        &entry.upgrades,
        &entry.downgrades,
        &entry.doorbells,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        &entry.rx_mode,
        &entry.rx_records,
        &entry.tx_mode,
        &entry.tx_records,
        &entry.tx_capacity_log2,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&entry.rx_ring, &entry.tx_ring, &entry.tx_head_seen] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&entry.rx_carrier, &entry.tx_carrier] {
        word.store(0, Ordering::Relaxed);
    }
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The daemon accepts only messages with a sender, and an engine's thread may send before the
    // daemon has set this option.
    wire::ask_for_senders(ends.0.as_fd())?;
    wire::ask_for_senders(ends.1.as_fd())?;
    Ok(ends)
}

#[cfg(test)]
pub(super) mod tests;
