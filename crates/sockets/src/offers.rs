//! Messages from the adapter: offers of regions, and the engine's routing page. An offered region
//! is mapped here and stored with its connection.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use toehold_freestanding::fd::OwnedFd;

use toehold_channel::layout::READY_BITS;
use toehold_channel::rendezvous::{Kind, Message, PAIR_ATTACHED, SAME_USER, SLAB_ATTACHED};
use toehold_channel::table::{EntryState, Reason};

use crate::connection::{self, Connection};
use crate::epoll::instance;
use crate::express::books;
use crate::offload::routing;
use crate::orderings::STATE_SEEN;
use crate::pairs::{Pair, find_pair, map_other_side, map_pair};
use crate::{adapter, slabs, table};

/// True when an offer waits for this connection.
#[inline]
pub(crate) fn offer_waits(connection: &Connection) -> bool {
    // Acquire pairs with the adapter's Release in `Tables::bump_offer`: the message is in the
    // socket.
    connection.entry.offer.load(Ordering::Acquire)
        != connection.entry.offers_taken.load(Ordering::Relaxed)
}

/// Takes the offers that have arrived, until `connection` has its own: what is behind that waits
/// for whom it is for. The caller holds the adapter's lock.
pub(crate) fn receive_offers(adapter: i32, connection: &Connection) {
    /// Messages taken in one go; more wait for the next call.
    const OFFERS_MAX: usize = 256;
    let waited = offer_waits(connection);
    for _ in 0..OFFERS_MAX {
        match adapter::try_receive(adapter) {
            Some((message, kind, descriptors)) => handle_message(&message, kind, descriptors),
            None => return,
        }
        if waited && !offer_waits(connection) {
            return;
        }
    }
}

/// Does what a message from the adapter is for. The caller holds the adapter's lock.
pub(crate) fn handle_message(message: &Message, kind: Kind, descriptors: [Option<OwnedFd>; 2]) {
    match kind {
        Kind::Offer => take_offer(message, descriptors),
        Kind::Engine => routing::learn(message, descriptors),
        _ => {}
    }
}

/// Finds or maps what was offered and leaves it with the connection for [`attach`]. Descriptors
/// close on return.
pub(crate) fn take_offer(message: &Message, descriptors: [Option<OwnedFd>; 2]) {
    let (slab_fd, pair_fd) = attached(message, descriptors);
    let slab_fd = slab_fd.as_ref().map(OwnedFd::as_fd);
    let side = (message.side & 1) as usize;
    let slot = message.slot.min(READY_BITS as u32 - 1);
    // The memory first: later offers may refer to it even if this connection is gone by now.
    let pair = find_pair(message.pair, side)
        .or_else(|| {
            pair_fd
                .as_ref()
                .and_then(|fd| map_pair(message.pair, side, fd.as_fd(), forget_pair))
        })
        .or_else(|| map_other_side(message.pair, side, forget_pair));
    let found = pair.and_then(|pair| Some((pair, slabs::find(pair, slot, slab_fd)?)));
    let (Some(table), Some(local)) = (table::table(), connection::local(message.entry)) else {
        return;
    };
    let Some(entry) = table.entry(message.entry) else {
        return;
    };
    if entry.state.load(STATE_SEEN) != EntryState::Live as u32
        || entry.channel_generation.load(Ordering::Relaxed) != message.generation
    {
        return;
    }
    let parked = NonNull::new(local.parked.load(Ordering::Relaxed));
    let is_short = found.is_none() || (parked.is_some() && slab_fd.is_none());
    if is_short && (slab_fd.is_none() || pair_fd.is_none()) {
        // Given up here for want of use; the answer is this offer once more, all of it.
        return ask_again(message);
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
    local.express.note_user(is_one_user);
    pair.channels.fetch_add(1, Ordering::Relaxed);
    pair.slots_used.fetch_max(slot + 1, Ordering::Relaxed);
    entry.side.store(side as u32, Ordering::Relaxed);
    entry.slot.store(slot, Ordering::Relaxed);
    local
        .pair
        .store(core::ptr::from_ref(pair).cast_mut(), Ordering::Relaxed);
    local.offered.store(region.as_ptr(), Ordering::Relaxed);
}

/// The slab and the pair that come with an offer.
fn attached(
    message: &Message,
    [first, second]: [Option<OwnedFd>; 2],
) -> (Option<OwnedFd>, Option<OwnedFd>) {
    match message.attached & (SLAB_ATTACHED | PAIR_ATTACHED) {
        PAIR_ATTACHED => (None, first),
        _ => (first, second),
    }
}

/// Asks for an offer once more.
fn ask_again(message: &Message) {
    let Some(adapter) = adapter::connected() else {
        return;
    };
    let mut again = Message::new(Kind::Resume);
    again.entry = message.entry;
    again.generation = message.generation;
    if !adapter::send(adapter, &again, None) {
        adapter::lose(adapter);
    }
}

/// No channel uses the pair, which is about to be unmapped.
pub(crate) fn forget_pair(pair: &Pair) {
    books::forget_pair(pair);
    instance::forget_pair(pair);
    slabs::retire_all(pair);
}
