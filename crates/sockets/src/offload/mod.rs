//! The offload path as the program's side sees it: connections that the adapter's TCP engine
//! carries.
//!
//! ```text
//!   connect  ─► rules ─► carrier to the relay, connect preamble ─► (Connecting)
//!            ─► one urgent byte: connected, or an errno
//!   listen   ─► the adapter is told; its engine listens as well
//!   accept   ─► a carrier from the adapter's own address: the routing page says for whom it stands
//! ```
//!
//! The carrier is a kernel connection to the adapter, established long before the remote has
//! answered: until the urgent byte is there the program must see a connection that is still being
//! made. It is urgent, so that a program that reads past our hooks never takes it for data, and it
//! is taken off in its place in the stream, so that nothing of it is left behind.
//!
//! - this module: what the adapter shows ([`RoutingPage`]), listeners, accepted carriers;
//! - [`bound`]: sockets bound to one of the engine's addresses;
//! - [`active_open`]: active opens;
//! - [`endings`]: why connections ended;
//! - [`names`]: the addresses a program is told;
//! - [`liveness`]: keepalive and user timeout, for silent remotes.

pub(crate) mod active_open;
pub(crate) mod bound;
pub(crate) mod endings;
pub(crate) mod liveness;
pub(crate) mod names;

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use toehold_channel::memfd;
use toehold_channel::offload::{
    Address, CarrierKey, Direction, ROUTING_PAGE_BYTES, RoutingPage, store_true_ends,
};
use toehold_channel::preamble::ClientToken;
use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::{FLAG_OFFLOAD, Reason};

use crate::connection::Connection;
use crate::{adapter, descriptors, epoll, family, pairing, process, sys};

/// How long each `listen` waits for the engine to do so as well; an adapter that is stopped costs
/// this.
const REPLY_NS: u64 = 250_000_000;
/// How long a program's first `connect` or `listen` waits to be shown the engine. Whether its
/// listeners are ever served hangs on the answer, and on a host with more to do than time the
/// adapter may have to wait for its turn.
const FIRST_REPLY_NS: u64 = 1_000_000_000;

/// What of the program's is the engine's: [`NOTHING`], [`BY_RULE`] or [`EVERYTHING`].
static WANTED: AtomicU32 = AtomicU32::new(NOTHING);
const NOTHING: u32 = 0;
/// Connections to destinations that a rule of the operator's names (`--path auto`).
const BY_RULE: u32 = 1;
/// All connections to what the engine reaches, and listeners (`--path offload`).
const EVERYTHING: u32 = 2;
/// Where the routing page is mapped; the mapping is replaced in place when another adapter shows
/// another.
static ROUTING_PAGE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The adapter we are connected to has an engine.
static HAS_ENGINE: AtomicBool = AtomicBool::new(false);
/// What the adapter knows our carriers by, in two halves: should they be of two adapters, neither
/// takes the carrier.
static PASS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The adapter connection over which the engine was asked for.
static ASKED_EPOCH: AtomicU32 = AtomicU32::new(0);

/// Has network connections carried by the adapter's engine, where it has one. Called once, before
/// [`crate::start`].
pub fn want_offload() {
    WANTED.store(EVERYTHING, Ordering::Relaxed);
}

/// Has connections carried by the adapter's engine where a rule of the operator's says so. As
/// [`want_offload`].
pub fn want_offload_by_rule() {
    WANTED.store(BY_RULE, Ordering::Relaxed);
}

/// True when the program asked for the engine.
#[inline]
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) == EVERYTHING
}

/// True when a connection to `remote` may be the engine's. Without the program's wish loopback is
/// not worth a question.
fn may_be_offloaded(remote: Address) -> bool {
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

/// True when connections of this program may be the engine's.
#[inline]
pub(crate) fn has_business() -> bool {
    WANTED.load(Ordering::Relaxed) != NOTHING
}

/// The address and length of the routing page, if it is mapped.
pub(crate) fn mapped() -> impl Iterator<Item = (usize, usize)> {
    let base = ROUTING_PAGE.load(Ordering::Acquire) as usize;
    (base != 0)
        .then_some((base, ROUTING_PAGE_BYTES))
        .into_iter()
}

/// What the adapter's engine serves, asking for it if need be; `None` without an adapter or an
/// engine.
fn routing_page() -> Option<RoutingPage> {
    if !family::has_table() {
        return None;
    }
    let _held = adapter::lock();
    let adapter = adapter::reach()?;
    if ASKED_EPOCH.load(Ordering::Relaxed) != adapter::epoch() {
        ASKED_EPOCH.store(adapter::epoch(), Ordering::Relaxed);
        HAS_ENGINE.store(false, Ordering::Release);
        let question = Message::new(Kind::Engine);
        say_and_wait(adapter, &question, Kind::Engine, FIRST_REPLY_NS);
    }
    known_routing_page()
}

/// As [`routing_page`], without asking.
fn known_routing_page() -> Option<RoutingPage> {
    if !HAS_ENGINE.load(Ordering::Acquire) {
        return None;
    }
    let base = ROUTING_PAGE.load(Ordering::Acquire);
    // SAFETY: mapped by `learn` for this length, and only ever replaced in place.
    (!base.is_null()).then(|| unsafe { RoutingPage::at(base) })
}

/// What our carriers show, once an engine is known.
fn client_token() -> ClientToken {
    PASS.each_ref().map(|half| half.load(Ordering::Relaxed))
}

/// Says something to the adapter and waits until a reply of this kind has been dealt with, and all
/// that came before it, for `limit_ns` at most. The caller holds the adapter's lock.
fn say_and_wait(adapter: i32, message: &Message, reply: Kind, limit_ns: u64) {
    if !adapter::send(adapter, message, None) {
        return adapter::lose(adapter);
    }
    let start = sys::now_ns();
    loop {
        while let Some((message, kind, descriptors)) = adapter::try_receive(adapter) {
            pairing::handle_message(&message, kind, descriptors);
            if kind == reply {
                return;
            }
        }
        let left = limit_ns.saturating_sub(sys::now_ns() - start);
        let is_lost = adapter::connected() != Some(adapter);
        if left == 0 || is_lost || !sys::wait_for(adapter, libc::POLLIN, left) {
            return;
        }
    }
}

/// Maps what the adapter shows. The caller holds the adapter's lock.
pub(crate) fn learn(message: &Message, descriptors: [Option<OwnedFd>; 2]) {
    HAS_ENGINE.store(false, Ordering::Release);
    for (place, half) in PASS.iter().zip([message.pair, message.cookie]) {
        place.store(half, Ordering::Relaxed);
    }
    let [Some(file), _] = descriptors else {
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
            libc::mremap(
                fresh.as_ptr().cast(),
                ROUTING_PAGE_BYTES,
                ROUTING_PAGE_BYTES,
                flags,
                known.cast::<libc::c_void>(),
            )
        };
        if moved == libc::MAP_FAILED {
            return;
        }
        known
    };
    ROUTING_PAGE.store(base, Ordering::Release);
    // SAFETY: just mapped for this length.
    let is_valid = unsafe { RoutingPage::at(base) }.is_valid();
    HAS_ENGINE.store(is_valid, Ordering::Release);
}

/// The program listens: the engine may do so, too. Whoever is told of the listener afterwards can
/// connect at once, so this waits for it.
pub(crate) fn listening(fd: i32, backlog: i32) {
    let option = |level, name| sys::getsockopt::<i32>(fd, level, name).unwrap_or(-1);
    if option(libc::SOL_SOCKET, libc::SO_PROTOCOL) != libc::IPPROTO_TCP || !is_beside(fd) {
        return;
    }
    let Some(local) = names::local(fd) else {
        return;
    };
    let mut message = Message::new(Kind::Listen);
    (message.local, message.local_port) = (local.ip, local.port);
    message.pid = process::pid();
    message.slot = backlog.max(0) as u32;
    message.side = u32::from(option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == 1);
    let _held = adapter::lock();
    if let Some(adapter) = adapter::connected() {
        say_and_wait(adapter, &message, Kind::Listening, REPLY_NS);
    }
    epoll::unconnected_closing(descriptors::note_listener(fd));
}

/// True when the program's socket and the relay are in the same network namespace.
fn is_beside(fd: i32) -> bool {
    routing_page()
        .is_some_and(|routing_page| routing_page.netns() == sys::namespace_of(fd).unwrap_or(0))
}

/// A descriptor of a listener was closed.
pub(crate) fn stopped_listening() {
    adapter::tell(&Message::new(Kind::Unlisten));
}

/// The program has accepted a connection. When it comes from the adapter, it is somebody else's in
/// truth: notes whose, and says so.
pub(crate) fn accepted(connection: &Connection) -> bool {
    let Some(routing_page) = known_routing_page() else {
        return false;
    };
    let fd = connection.fd;
    let (Some(local), Some(remote)) = (names::local(fd), names::remote(fd)) else {
        return false;
    };
    let direction = if remote.v4() == Some(routing_page.relay_source()) {
        Direction::Accepted
    } else if remote.ip == core::net::Ipv6Addr::LOCALHOST.octets() {
        Direction::AcceptedV6
    } else {
        return false;
    };
    let port = remote.port;
    let ends = routing_page.ends(direction, port, local.port);
    let Some((true_local, true_remote)) = ends else {
        return false;
    };
    let entry = connection.entry;
    store_true_ends(entry, true_local, true_remote);
    endings::note_place(connection, CarrierKey { direction, port });
    entry
        .reason
        .store(Reason::Relayed as u32, Ordering::Relaxed);
    entry.flags.fetch_or(FLAG_OFFLOAD, Ordering::Release);
    liveness::begin(connection);
    true
}
