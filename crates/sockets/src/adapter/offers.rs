//! Messages from the adapter: offers of regions, and the engine's routing page. An offered region
//! is mapped here and stored with its connection.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use toehold_freestanding::fd::OwnedFd;

use toehold_channel::layout::READY_BITS;
use toehold_channel::rendezvous::{
    DESCRIPTORS_MAX, DOORBELLS_ATTACHED, Kind, Message, PAIR_ATTACHED, SAME_USER, SLAB_ATTACHED,
};
use toehold_channel::table::{Entry, EntryState, Reason};

use crate::adapter;
use crate::adapter::Attached;
use crate::connection::orderings::STATE_ACQUIRE;
use crate::connection::{self, Connection};
use crate::epoll::instance;
use crate::express::published;
use crate::memory::pairs::{Pair, find_pair, map_other_side, map_pair};
use crate::memory::slabs;
use crate::offload::routing;
use crate::process::table;

/// True when an offer waits for this connection.
#[inline]
pub(crate) fn offer_waits(connection: &Connection) -> bool {
    // Acquire pairs with the adapter's Release in `Tables::bump_offer`: the message is in the
    // socket.
    connection.entry.offer.load(Ordering::Acquire)
        != connection.entry.offers_taken.load(Ordering::Relaxed)
}

/// Takes the offers that have arrived, up to the one for `connection`. Later offers stay in the
/// socket until their own connections ask. The caller holds the adapter's lock.
pub(crate) fn receive_offers(adapter: i32, connection: &Connection) {
    /// Messages taken in one go; more wait for the next call.
    const OFFERS_MAX: usize = 256;
    let waited = offer_waits(connection);
    for _ in 0..OFFERS_MAX {
        match adapter::try_receive(adapter) {
            Some((message, kind, attached)) => handle_message(&message, kind, attached),
            None => return,
        }
        if waited && !offer_waits(connection) {
            return;
        }
    }
}

/// Handles a message from the adapter. The caller holds the adapter's lock.
pub(crate) fn handle_message(message: &Message, kind: Kind, attached: Attached) {
    match kind {
        Kind::Offer => take_offer(message, attached),
        Kind::Answer => give_up(message),
        Kind::Engine => routing::learn(message, attached.files),
        _ => {}
    }
}

/// Finds or maps the offered region and stores it in the connection for [`attach`]. Descriptors
/// close on return.
fn take_offer(message: &Message, attached: Attached) {
    let is_cut = attached.is_cut;
    let Files {
        slab: slab_fd,
        pair: pair_fd,
        doorbells,
    } = files_of(message, attached.files);
    let slab_fd = slab_fd.as_ref().map(OwnedFd::as_fd);
    let side = (message.side & 1) as usize;
    let slot = message.slot.min(READY_BITS as u32 - 1);
    // The memory first: later offers may refer to it even if this connection is gone by now.
    let pair = find_pair(message.pair, side)
        .or_else(|| {
            let file = pair_fd.as_ref()?.as_fd();
            let pair = map_pair(message.pair, side, file, forget_pair)?;
            if let Some([own, peers]) = doorbells {
                pair.take_doorbells(own, peers);
            }
            Some(pair)
        })
        .or_else(|| map_other_side(message.pair, side, forget_pair));
    let found = pair.and_then(|pair| Some((pair, slabs::find(pair, slot, slab_fd)?)));
    let (Some(table), Some(local)) = (table::table(), connection::local(message.entry)) else {
        return;
    };
    let Some(entry) = table.entry(message.entry) else {
        return;
    };
    if entry.state.load(STATE_ACQUIRE) != EntryState::Live as u32
        || entry.channel_generation.load(Ordering::Relaxed) != message.generation
    {
        return;
    }
    let parked = NonNull::new(local.parked.load(Ordering::Relaxed));
    let is_short = found.is_none() || (parked.is_some() && slab_fd.is_none());
    if is_short && (slab_fd.is_none() || pair_fd.is_none()) {
        if is_cut {
            return put_off(entry);
        }
        // This process has unmapped the pair because no channel used it. The adapter answers with
        // the whole offer again.
        return ask_again(message.entry, message.generation);
    }
    entry.offers_taken.fetch_add(1, Ordering::Relaxed);
    if local.descriptors.load(Ordering::Relaxed) == 0
        || !local.offered.load(Ordering::Relaxed).is_null()
    {
        return;
    }
    let region = found.and_then(|(_, (_, region))| match (parked, slab_fd) {
        (Some(parked), Some(file)) => slabs::map_over(parked, slot, file),
        _ => Some(region),
    });
    let region = region.filter(|region| slabs::is_region(*region));
    let (Some((pair, (slab, _))), Some(region)) = (found, region) else {
        entry
            .reason
            .store(Reason::NoResources as u32, Ordering::Relaxed);
        return;
    };
    if parked.is_none() {
        slabs::enter(local, slab);
    }
    let is_one_user = message.attached & SAME_USER != 0;
    local.express.note_peer(is_one_user, message.listener);
    pair.channels.fetch_add(1, Ordering::Relaxed);
    pair.slots_used.fetch_max(slot + 1, Ordering::Relaxed);
    entry.side.store(side as u32, Ordering::Relaxed);
    entry.slot.store(slot, Ordering::Relaxed);
    local
        .pair
        .store(core::ptr::from_ref(pair).cast_mut(), Ordering::Relaxed);
    local.offered.store(region.as_ptr(), Ordering::Relaxed);
}

/// The descriptors that come with an offer.
struct Files {
    slab: Option<OwnedFd>,
    pair: Option<OwnedFd>,
    /// This process's, and its peer's.
    doorbells: Option<[OwnedFd; 2]>,
}

fn files_of(message: &Message, files: [Option<OwnedFd>; DESCRIPTORS_MAX]) -> Files {
    let mut files = files.into_iter();
    let mut next = |flag| match message.attached & flag {
        0 => None,
        _ => files.next().flatten(),
    };
    let (slab, pair, own) = (
        next(SLAB_ATTACHED),
        next(PAIR_ATTACHED),
        next(DOORBELLS_ATTACHED),
    );
    Files {
        slab,
        pair,
        doorbells: own.zip(next(DOORBELLS_ATTACHED)).map(<[OwnedFd; 2]>::from),
    }
}

/// Postpones an offer, because this process has no free descriptor numbers. The connection goes on
/// with its carrier; [`retry`] asks for the offer again.
fn put_off(entry: &Entry) {
    entry.offers_taken.fetch_add(1, Ordering::Relaxed);
    let why = Reason::NoResources as u32;
    entry.refusal.store(why, Ordering::Relaxed);
    entry.reason.store(why, Ordering::Relaxed);
}

/// Asks again for an offer that was postponed. The caller holds the adapter's lock.
pub(crate) fn retry(connection: &Connection) {
    let entry = connection.entry;
    (entry.refusal).store(Reason::None as u32, Ordering::Relaxed);
    entry.offers_taken.fetch_sub(1, Ordering::Relaxed);
    ask_again(connection.index, connection.channel_generation());
}

/// Whether the connection has an offer that was postponed.
#[inline]
pub(crate) fn is_put_off(entry: &Entry) -> bool {
    // The adapter refuses with this reason, too, but never after an offer.
    entry.refusal.load(Ordering::Relaxed) == Reason::NoResources as u32
        && entry.offers_taken.load(Ordering::Relaxed) != 0
}

/// The adapter has no channel for a connection that has asked for its offer again: the connection
/// stops waiting.
fn give_up(message: &Message) {
    let Some(entry) = table::table().and_then(|table| table.entry(message.entry)) else {
        return;
    };
    if entry.state.load(STATE_ACQUIRE) == EntryState::Live as u32
        && entry.channel_generation.load(Ordering::Relaxed) == message.generation
    {
        let offers = entry.offer.load(Ordering::Relaxed);
        entry.offers_taken.store(offers, Ordering::Relaxed);
    }
}

/// Asks the adapter to send an offer again.
fn ask_again(entry: u32, generation: u32) {
    let Some(adapter) = adapter::connected() else {
        return;
    };
    let mut again = Message::new(Kind::Resume);
    again.entry = entry;
    again.generation = generation;
    if !adapter::send(adapter, &again, None) {
        adapter::forget_socket(adapter);
    }
}

/// Called before a pair is unmapped that no channel uses any more.
pub(crate) fn forget_pair(pair: &Pair) {
    published::forget_pair(pair);
    instance::forget_pair(pair);
    slabs::retire_all(pair);
}
