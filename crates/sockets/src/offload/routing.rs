//! Whether a destination goes through the engine: the adapter's rules ([`RoutingPage`]) and the
//! program's own choice.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use toehold_freestanding::fd::OwnedFd;
use toehold_freestanding::memory;

use toehold_channel::memfd;
use toehold_channel::offload::{Address, ROUTING_PAGE_BYTES, RoutingPage};
use toehold_channel::preamble::ClientToken;
use toehold_channel::rendezvous::{DESCRIPTORS_MAX, Message};

/// Which connections of the program use the engine: [`NOTHING`], [`BY_RULE`] or [`EVERYTHING`].
static WANTED: AtomicU32 = AtomicU32::new(NOTHING);
const NOTHING: u32 = 0;
/// Connections to destinations for which an operator's rule says so (`--path auto`).
const BY_RULE: u32 = 1;
/// All connections to destinations that the engine reaches, and listeners (`--path offload`).
const EVERYTHING: u32 = 2;
/// The address of the mapped routing page. The mapping is replaced in place when a new adapter
/// shows its page.
static ROUTING_PAGE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The adapter we are connected to has an engine.
static HAS_ENGINE: AtomicBool = AtomicBool::new(false);
/// The client token, in two halves. If the halves came from two adapters, neither adapter would
/// accept the carrier.
static CLIENT_TOKEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Makes network connections use the adapter's engine, if there is one. Called once, before
/// [`crate::start`].
pub fn want_offload() {
    WANTED.store(EVERYTHING, Ordering::Relaxed);
}

/// Makes connections use the adapter's engine if an operator's rule says so. Called as
/// [`want_offload`].
pub fn want_offload_by_rule() {
    WANTED.store(BY_RULE, Ordering::Relaxed);
}

/// True when the program asked for the engine.
#[inline]
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) == EVERYTHING
}

/// True when the engine may serve a connection to `remote`. For a loopback address the adapter is
/// asked only if the program wants the engine.
pub(super) fn may_be_offloaded(remote: Address) -> bool {
    match WANTED.load(Ordering::Relaxed) {
        NOTHING => false,
        BY_RULE => {
            let is_loopback = match remote.v4() {
                Some([first, ..]) => first == 127,
                None => remote.ip == core::net::Ipv6Addr::LOCALHOST.octets(),
            };
            !is_loopback
        }
        _ => true,
    }
}

/// From now on the program does not use the engine.
pub(crate) fn stop() {
    WANTED.store(NOTHING, Ordering::Relaxed);
}

/// True when the engine may serve connections of this program.
#[inline]
pub(crate) fn has_business() -> bool {
    WANTED.load(Ordering::Relaxed) != NOTHING
}

/// As [`routing_page`], without asking.
pub(super) fn known_routing_page() -> Option<RoutingPage> {
    // Acquire pairs with the last store in `learn`: page and token are there.
    if !HAS_ENGINE.load(Ordering::Acquire) {
        return None;
    }
    // Relaxed: stored before `HAS_ENGINE`.
    let base = ROUTING_PAGE.load(Ordering::Relaxed);
    // SAFETY: mapped by `learn` for this length, and only ever replaced in place.
    (!base.is_null()).then(|| unsafe { RoutingPage::at(base) })
}

/// The token that our carriers show, once an engine is known.
pub(super) fn client_token() -> ClientToken {
    CLIENT_TOKEN
        .each_ref()
        .map(|half| half.load(Ordering::Relaxed))
}

/// Forgets the known engine, which belonged to another adapter.
pub(super) fn forget() {
    // Relaxed: the page and the token stay as they are.
    HAS_ENGINE.store(false, Ordering::Relaxed);
}

/// Maps the adapter's routing page. The caller holds the adapter's lock.
pub(crate) fn learn(message: &Message, descriptors: [Option<OwnedFd>; DESCRIPTORS_MAX]) {
    HAS_ENGINE.store(false, Ordering::Relaxed);
    for (place, half) in CLIENT_TOKEN.iter().zip([message.pair, message.cookie]) {
        place.store(half, Ordering::Relaxed);
    }
    let [Some(file), ..] = descriptors else {
        return;
    };
    let Ok(fresh) = memfd::map_to_read(file.as_fd(), ROUTING_PAGE_BYTES) else {
        return;
    };
    let known = ROUTING_PAGE.load(Ordering::Relaxed);
    let base = if known.is_null() {
        fresh.as_ptr()
    } else {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are mappings of ours of this length. Whoever reads the old one sees the new
        // one from some word on, and checks nothing across words but addresses, which are for
        // telling only.
        let moved = unsafe {
            let len = ROUTING_PAGE_BYTES;
            memory::remap(fresh.as_ptr(), len, len, flags, known)
        };
        if moved.is_err() {
            return;
        }
        known
    };
    // Relaxed: `HAS_ENGINE` is stored after it.
    ROUTING_PAGE.store(base, Ordering::Relaxed);
    // SAFETY: just mapped for this length.
    let is_valid = unsafe { RoutingPage::at(base) }.is_valid();
    // Release pairs with the Acquire load in `known_routing_page`.
    HAS_ENGINE.store(is_valid, Ordering::Release);
}

/// The address and length of the routing page, if it is mapped.
pub(crate) fn mapped() -> impl Iterator<Item = (usize, usize)> {
    let base = ROUTING_PAGE.load(Ordering::Relaxed) as usize;
    (base != 0)
        .then_some((base, ROUTING_PAGE_BYTES))
        .into_iter()
}
