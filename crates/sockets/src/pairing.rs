//! From a plain connection to one with a channel beside it, and back to nothing.
//!
//! ```text
//!   enough traffic ─► ask the adapter (never waiting) ─► its offer changes a word of our entry ─► map, verify our counts
//!   against the kernel's, announce `attached` ─► each sender moves its direction up when it next has something to do
//! ```
//!
//! The counts are verified with `TCP_INFO`: if a single byte went past our hooks, we would not know where in the stream we are,
//! and the connection stays on the host path ([`Reason::CountsDisagree`]).

use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use toehold_channel::channel::End;
use toehold_channel::doorbell::WakeWord;
use toehold_channel::layout::{
    BOARD_BITS, BOARDS, BOARDS_OFFSET, Board, Boards, CAPACITY_LOG2_MIN, CLOSED_ALL, CONTROL_BYTES,
    Control, PAIR_BYTES, PAIR_MAGIC, PairHeader, REGION_BYTES, REGION_MAGIC,
};
use toehold_channel::memfd;
use toehold_channel::rendezvous::{Kind, MESSAGE_BYTES, Message, SOCKET_NAME, mapped};
use toehold_channel::table::{
    COMMAND_NONE, Entry, EntryState, FLAG_ACCEPTED, FLAG_ASKED, FLAG_ATTACHED, FLAG_PINNED,
    FLAG_SHUT_RX, FLAG_SHUT_TX, LAYOUT_VERSION, Mode, Reason,
};

use crate::state::{self, Connection};
use crate::{epoll, lock, options, receive, send, sys};

/// Calls that moved bytes before a connection is worth pairing.
const CALLS_BEFORE_PAIRING: u32 = 24;
/// Bytes on the carrier that make it worth pairing whatever the calls.
const BYTES_BEFORE_PAIRING: u64 = 256 << 10;
/// How often, in calls on the host path, a connection that waits for an offer looks whether the adapter is still there.
const CALLS_BETWEEN_LOOKS: u32 = 256;
/// After a failure to reach the adapter, leave it alone for this long.
const RETRY_NS: u64 = 200_000_000;

static ADAPTER: AtomicI32 = AtomicI32::new(-1);
/// The parent's connection, inherited: good for one message, the one that gets us our own.
static INHERITED: AtomicI32 = AtomicI32::new(-1);
/// Counts the adapter connections of this process, so that requests to a dead adapter are made again.
static EPOCH: AtomicU32 = AtomicU32::new(0);
static RETRY_AT_NS: AtomicU64 = AtomicU64::new(0);
static LOCK: lock::Private = lock::Private::new();
/// Where the adapter listens, as `sockaddr_un` bytes; set once at start.
static ADDRESS: AtomicPtr<libc::sockaddr_un> = AtomicPtr::new(null_mut());

/// Two processes and the boards between them, as this process maps them. Kept for as long as a channel uses it.
pub(crate) struct Pair {
    id: u64,
    base: *mut u8,
    /// Our side.
    side: usize,
    /// Channels of ours that use it; 0 is a free place.
    pub(crate) channels: AtomicU32,
    /// Epoll object (plus one) served by each of our boards.
    pub(crate) epolls: [AtomicU32; BOARDS],
    /// One more than the highest slot in use.
    pub(crate) slots_used: AtomicU32,
    /// Registration by slot, for our boards.
    pub(crate) registrations: *mut AtomicU32,
}

impl Pair {
    fn board_at(&self, side: usize, index: u32) -> Option<&Board> {
        if index as usize >= BOARDS {
            return None;
        }
        // SAFETY: `base` maps PAIR_BYTES while the pair is in use; both sides' boards lie inside; all atomics.
        let boards = unsafe { &*self.base.add(BOARDS_OFFSET).cast::<Boards>().add(side) };
        boards.boards.get(index as usize)
    }

    /// One of our boards: we sleep on it and sweep it.
    #[inline]
    pub(crate) fn ours(&self, index: u32) -> Option<&Board> {
        self.board_at(self.side, index)
    }

    /// One of the peer's boards: we mark it.
    #[inline]
    pub(crate) fn theirs(&self, index: u32) -> Option<&Board> {
        self.board_at(1 - self.side, index)
    }

    /// The registration that a bit of our boards stands for.
    #[inline]
    pub(crate) fn registration(&self, slot: u32) -> Option<&AtomicU32> {
        if slot as usize >= BOARD_BITS {
            return None;
        }
        // SAFETY: the array has BOARD_BITS places and lives as long as the pair.
        Some(unsafe { &*self.registrations.add(slot as usize) })
    }
}

/// Pairs this process can be part of at a time.
const PAIRS_MAX: usize = 4096;
static PAIRS: AtomicPtr<Pair> = AtomicPtr::new(null_mut());

fn pairs() -> Option<&'static [Pair]> {
    let mut base = PAIRS.load(Ordering::Acquire);
    if base.is_null() {
        base = state::reserve(PAIRS_MAX * size_of::<Pair>()).cast();
        if base.is_null() {
            return None;
        }
        PAIRS.store(base, Ordering::Release);
    }
    // SAFETY: zeroes are valid `Pair`s (null pointers, zero atomics); the reservation is never released.
    Some(unsafe { core::slice::from_raw_parts(base, PAIRS_MAX) })
}

/// Tells the library where its adapter listens.
pub fn set_runtime_directory(directory: &[u8]) {
    let base = state::reserve(size_of::<libc::sockaddr_un>()).cast::<libc::sockaddr_un>();
    if base.is_null() {
        return;
    }
    // SAFETY: freshly reserved, zeroed and ours.
    let address = unsafe { &mut *base };
    let name = SOCKET_NAME.as_bytes();
    if directory.len() + 1 + name.len() >= address.sun_path.len() {
        return;
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = directory.iter().chain(b"/").chain(name);
    for (place, &byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte as libc::c_char;
    }
    ADDRESS.store(base, Ordering::Release);
}

/// After fork: the parent's adapter connection is not ours.
pub(crate) fn forked() {
    LOCK.reset();
    let adapter = ADAPTER.swap(-1, Ordering::Relaxed);
    if adapter >= 0 {
        let older = INHERITED.swap(adapter, Ordering::Relaxed);
        if older >= 0 {
            state::disown(older);
        }
    }
    EPOCH.fetch_add(1, Ordering::Relaxed);
    RETRY_AT_NS.store(0, Ordering::Relaxed);
}

/// Our adapter connection got another number.
pub(crate) fn adapter_moved(from: i32, to: i32) {
    let _ = ADAPTER.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    let _ = INHERITED.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
}

/// Makes this process known to the adapter the first time it has a connection.
pub(crate) fn say_hello_once() {
    if EPOCH.load(Ordering::Relaxed) == 0 {
        let _held = LOCK.lock();
        reach_adapter();
    }
}

/// The adapter's socket, connecting if need be; the caller holds `LOCK`.
fn reach_adapter() -> Option<i32> {
    let adapter = ADAPTER.load(Ordering::Relaxed);
    if adapter >= 0 {
        return Some(adapter);
    }
    let address = ADDRESS.load(Ordering::Acquire);
    let now = sys::now_ns();
    if address.is_null() || state::table_fd() < 0 || now < RETRY_AT_NS.load(Ordering::Relaxed) {
        return None;
    }
    RETRY_AT_NS.store(now + RETRY_NS, Ordering::Relaxed);
    EPOCH.fetch_add(1, Ordering::Relaxed);
    let fd = match connect_through_parent() {
        Some(fd) => fd,
        None => connect_by_path(address)?,
    };
    let fd = state::own(fd);
    let mut hello = Message::new(Kind::Hello);
    hello.pid = state::pid();
    if !send_message(fd, &hello, Some(state::table_fd())) {
        state::disown(fd);
        return None;
    }
    ADAPTER.store(fd, Ordering::Relaxed);
    Some(fd)
}

fn connect_by_path(address: *const libc::sockaddr_un) -> Option<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    let fd = unsafe {
        sys::raw(
            libc::SYS_socket,
            libc::AF_UNIX as usize,
            kind as usize,
            0,
            0,
            0,
            0,
        )
    };
    if fd < 0 {
        return None;
    }
    let fd = fd as i32;
    // SAFETY: `address` was reserved for a `sockaddr_un` and never released.
    let connected = unsafe {
        sys::raw(
            libc::SYS_connect,
            fd as usize,
            address as usize,
            size_of::<libc::sockaddr_un>(),
            0,
            0,
            0,
        )
    };
    if connected < 0 || !adapter_is_trusted(fd) {
        sys::close(fd);
        return None;
    }
    Some(fd)
}

/// A forked child may have another user or root directory by now; what it inherited still leads to the adapter.
fn connect_through_parent() -> Option<i32> {
    let inherited = INHERITED.swap(-1, Ordering::Relaxed);
    if inherited < 0 {
        return None;
    }
    let mut ends = [-1i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `ends` is writable for two descriptors.
    let made = unsafe {
        sys::raw(
            libc::SYS_socketpair,
            libc::AF_UNIX as usize,
            kind as usize,
            0,
            ends.as_mut_ptr() as usize,
            0,
            0,
        )
    };
    let mut adopt = Message::new(Kind::Adopt);
    adopt.pid = state::pid();
    let sent = made >= 0 && send_message(inherited, &adopt, Some(ends[1]));
    state::disown(inherited);
    if made >= 0 {
        sys::close(ends[1]);
        if sent {
            return Some(ends[0]);
        }
        sys::close(ends[0]);
    }
    None
}

/// Only our own user's adapter, or root's, is told anything.
fn adapter_is_trusted(fd: i32) -> bool {
    #[derive(Clone, Copy, Default)]
    #[repr(C)]
    struct Credentials {
        pid: i32,
        uid: u32,
        gid: u32,
    }
    // SAFETY: no arguments.
    let uid = unsafe { sys::raw(libc::SYS_geteuid, 0, 0, 0, 0, 0, 0) } as u32;
    sys::getsockopt::<Credentials>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)
        .is_ok_and(|peer| peer.uid == 0 || peer.uid == uid)
}

/// Room for two descriptors in a control message.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

fn send_message(fd: i32, message: &Message, descriptor: Option<i32>) -> bool {
    let mut iov = libc::iovec {
        iov_base: message.as_bytes().as_ptr().cast_mut().cast(),
        iov_len: MESSAGE_BYTES,
    };
    let mut control = ControlBuffer([0; 64]);
    // SAFETY: zeroes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
        // SAFETY: the buffer is larger than one header and one descriptor.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(first)
                .cast::<i32>()
                .write_unaligned(descriptor);
        }
    }
    // SAFETY: everything the header points to is alive here.
    let sent = unsafe { sys::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    sent == MESSAGE_BYTES as isize
}

/// The adapter is gone: what we have stays as it is, what we asked for must be asked again.
fn lose_adapter(fd: i32) {
    if ADAPTER
        .compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        state::disown(fd);
    }
}

/// Called after calls that moved bytes on the host path: asks for pairing, or takes an offer.
#[inline]
pub(crate) fn after_host_call(connection: &Connection, moved: u64) {
    let entry = connection.entry;
    let calls = entry.carrier_calls.load(Ordering::Relaxed).wrapping_add(1);
    // Relaxed, and lost updates do not matter: a threshold, not a count.
    entry.carrier_calls.store(calls, Ordering::Relaxed);
    let offered = entry.offer.load(Ordering::Acquire) != entry.offers_taken.load(Ordering::Relaxed);
    let flags = entry.flags.load(Ordering::Relaxed);
    let asked = flags & FLAG_ASKED != 0;
    if offered
        || (!asked && (calls >= CALLS_BEFORE_PAIRING || moved >= BYTES_BEFORE_PAIRING))
        || (asked && calls.is_multiple_of(CALLS_BETWEEN_LOOKS))
    {
        consider(connection);
    } else if !asked && calls.is_multiple_of(4) {
        let bytes =
            entry.rx_carrier.load(Ordering::Relaxed) + entry.tx_carrier.load(Ordering::Relaxed);
        if bytes >= BYTES_BEFORE_PAIRING {
            consider(connection);
        }
    }
}

/// True when an offer waits for this connection.
#[inline]
pub(crate) fn offer_waits(connection: &Connection) -> bool {
    connection.entry.offer.load(Ordering::Acquire)
        != connection.entry.offers_taken.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn consider(connection: &Connection) {
    let entry = connection.entry;
    if entry.flags.load(Ordering::Relaxed) & (FLAG_PINNED | FLAG_SHUT_TX | FLAG_SHUT_RX) != 0
        || !connection.local.region.load(Ordering::Relaxed).is_null()
    {
        return;
    }
    let Some(_held) = LOCK.try_lock() else { return };
    if !connection.local.offered.load(Ordering::Relaxed).is_null() {
        attach(connection);
        return;
    }
    let Some(adapter) = reach_adapter() else {
        entry
            .reason
            .store(Reason::NoAdapter as u32, Ordering::Relaxed);
        return;
    };
    let epoch = EPOCH.load(Ordering::Relaxed);
    entry.pid.store(state::pid(), Ordering::Relaxed);
    entry.fd.store(connection.fd as u32, Ordering::Relaxed);
    // Asked while an operator kept it detached: the adapter forgot the request with the refusal.
    let refused =
        entry.verdict.load(Ordering::Relaxed) == Reason::Detached as u32 && !commanded(entry);
    if refused || connection.local.asked_epoch.load(Ordering::Relaxed) != epoch {
        match describe(connection) {
            Ok(message) => {
                if !send_message(adapter, &message, None) {
                    lose_adapter(adapter);
                    return;
                }
                connection.local.asked_epoch.store(epoch, Ordering::Relaxed);
                entry.flags.fetch_or(FLAG_ASKED, Ordering::Relaxed);
                entry
                    .reason
                    .store(Reason::NoPartner as u32, Ordering::Relaxed);
            }
            Err(reason) => {
                connection.pin(reason);
                return;
            }
        }
    }
    receive_offers(adapter);
    if !connection.local.offered.load(Ordering::Relaxed).is_null() {
        attach(connection);
    }
}

/// The request for a connection, or why it can never be paired.
fn describe(connection: &Connection) -> Result<Message, Reason> {
    let fd = connection.fd;
    let option = |name| sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, name).unwrap_or(-1);
    let domain = option(libc::SO_DOMAIN);
    if (domain != libc::AF_INET && domain != libc::AF_INET6)
        || option(libc::SO_TYPE) != libc::SOCK_STREAM
        || option(libc::SO_PROTOCOL) != libc::IPPROTO_TCP
    {
        return Err(Reason::NotTcp);
    }
    let ulp = sys::getsockopt::<[u8; 16]>(fd, libc::IPPROTO_TCP, libc::TCP_ULP).unwrap_or_default();
    if ulp[0] != 0
        || option(libc::SO_RCVLOWAT) > 1
        || option(libc::SO_ZEROCOPY) > 0
        || option(libc::SO_OOBINLINE) > 0
    {
        return Err(Reason::Unsupported);
    }
    let mut message = Message::new(Kind::Pair);
    message.entry = connection.index;
    message.generation = connection.generation;
    message.pid = state::pid();
    message.netns = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)
        .map_err(|_| Reason::Unsupported)?;
    message.cookie = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap_or(0);
    let local = sys::socket_address(fd, false).map_err(|_| Reason::Closing)?;
    let remote = sys::socket_address(fd, true).map_err(|_| Reason::Closing)?;
    (message.local, message.local_port) = address_of(&local).ok_or(Reason::NotTcp)?;
    (message.remote, message.remote_port) = address_of(&remote).ok_or(Reason::NotTcp)?;
    Ok(message)
}

/// Since Linux 5.14, not yet in every libc crate.
const SO_NETNS_COOKIE: i32 = 71;

fn address_of(storage: &libc::sockaddr_storage) -> Option<([u8; 16], u16)> {
    let base = storage as *const libc::sockaddr_storage;
    match storage.ss_family as i32 {
        libc::AF_INET => {
            // SAFETY: the family says which structure the storage holds, and it is large enough for any.
            let v4 = unsafe { &*base.cast::<libc::sockaddr_in>() };
            Some((
                mapped(v4.sin_addr.s_addr.to_ne_bytes()),
                u16::from_be(v4.sin_port),
            ))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*base.cast::<libc::sockaddr_in6>() };
            Some((v6.sin6_addr.s6_addr, u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// Takes every offer that has arrived; the caller holds `LOCK`.
fn receive_offers(adapter: i32) {
    /// Messages taken in one go; more wait for the next call.
    const OFFERS_MAX: usize = 256;
    for _ in 0..OFFERS_MAX {
        let mut bytes = [0u8; MESSAGE_BYTES];
        let mut iov = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: MESSAGE_BYTES,
        };
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: zeroes are a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = size_of::<ControlBuffer>() as _;
        // SAFETY: everything the header points to is alive and writable.
        let got = unsafe {
            sys::recvmsg(
                adapter,
                &mut header,
                libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
            )
        };
        if got <= 0 {
            if got == 0 || (got != -(libc::EAGAIN as isize) && got != -(libc::EINTR as isize)) {
                lose_adapter(adapter);
            }
            return;
        }
        let descriptors = descriptors_in(&header);
        if let Ok((message, Kind::Offer)) = Message::parse(&bytes[..got as usize]) {
            take_offer(&message, descriptors);
        }
    }
}

fn descriptors_in(header: &libc::msghdr) -> [Option<OwnedFd>; 2] {
    let mut out = [None, None];
    // SAFETY: the kernel filled the control buffer that `header` describes; the macros stay inside it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
                for n in 0..count {
                    let fd = libc::CMSG_DATA(at).cast::<i32>().add(n).read_unaligned();
                    let fd = OwnedFd::from_raw_fd(fd);
                    if let Some(place) = out.get_mut(n) {
                        *place = Some(fd);
                    }
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    out
}

/// Maps what was offered and leaves it with the connection for [`attach`]. Descriptors close on return.
fn take_offer(message: &Message, descriptors: [Option<OwnedFd>; 2]) {
    use std::os::fd::AsFd;
    let [region_fd, pair_fd] = descriptors;
    let side = (message.side & 1) as usize;
    // The pair first: a later offer may refer to it even if this connection is gone by now.
    let pair = find_pair(message.pair, side)
        .or_else(|| {
            pair_fd
                .as_ref()
                .and_then(|fd| map_pair(message.pair, side, fd.as_fd()))
        })
        .or_else(|| map_other_side(message.pair, side));
    let (Some(table), Some(local)) = (state::table(), state::local(message.entry)) else {
        return;
    };
    let Some(entry) = table.entry(message.entry) else {
        return;
    };
    if entry.state.load(Ordering::Acquire) != EntryState::Live as u32
        || entry.generation.load(Ordering::Relaxed) != message.generation
    {
        return;
    }
    entry.offers_taken.fetch_add(1, Ordering::Relaxed);
    if local.descriptors.load(Ordering::Relaxed) == 0
        || !local.offered.load(Ordering::Relaxed).is_null()
    {
        return;
    }
    let (Some(pair), Some(region_fd)) = (pair, region_fd) else {
        entry
            .reason
            .store(Reason::NoResources as u32, Ordering::Relaxed);
        return;
    };
    let Ok(region) = map_region(region_fd.as_fd()) else {
        entry
            .reason
            .store(Reason::NoResources as u32, Ordering::Relaxed);
        return;
    };
    pair.channels.fetch_add(1, Ordering::Relaxed);
    pair.slots_used.fetch_max(
        message.slot.min(BOARD_BITS as u32 - 1) + 1,
        Ordering::Relaxed,
    );
    entry.side.store(side as u32, Ordering::Relaxed);
    entry
        .slot
        .store(message.slot.min(BOARD_BITS as u32 - 1), Ordering::Relaxed);
    local
        .pair
        .store(core::ptr::from_ref(pair).cast_mut(), Ordering::Relaxed);
    local.offered.store(region.as_ptr(), Ordering::Relaxed);
}

fn map_region(fd: BorrowedFd<'_>) -> Result<NonNull<u8>, ()> {
    let base = memfd::map(fd, REGION_BYTES).map_err(drop)?;
    // SAFETY: just mapped, page-aligned, all atomics.
    let control = unsafe { &*base.as_ptr().cast::<Control>() };
    if control.magic.load(Ordering::Relaxed) == REGION_MAGIC
        && control.version.load(Ordering::Relaxed) == LAYOUT_VERSION
    {
        return Ok(base);
    }
    // SAFETY: mapped above with this length and not shown to anybody.
    unsafe { memfd::unmap(base, REGION_BYTES) };
    Err(())
}

fn find_pair(id: u64, side: usize) -> Option<&'static Pair> {
    pairs()?
        .iter()
        .take_while(|pair| !pair.base.is_null())
        .find(|pair| pair.id == id && pair.side == side)
}

fn map_pair(id: u64, side: usize, fd: BorrowedFd<'_>) -> Option<&'static Pair> {
    adopt_pair(id, side, memfd::map(fd, PAIR_BYTES).ok()?)
}

/// A program that talks to itself is both sides of one pair, whose memfd comes once: map the same pages again.
fn map_other_side(id: u64, side: usize) -> Option<&'static Pair> {
    let known = find_pair(id, 1 - side)?;
    // SAFETY: an old size of zero duplicates a shared mapping (mremap(2)); the known one stays.
    let base = unsafe { libc::mremap(known.base.cast(), 0, PAIR_BYTES, libc::MREMAP_MAYMOVE) };
    if base == libc::MAP_FAILED {
        return None;
    }
    adopt_pair(id, side, NonNull::new(base.cast())?)
}

fn adopt_pair(id: u64, side: usize, base: NonNull<u8>) -> Option<&'static Pair> {
    // SAFETY: just mapped, page-aligned, all atomics.
    let header = unsafe { &*base.as_ptr().cast::<PairHeader>() };
    let registrations = state::reserve(BOARD_BITS * size_of::<AtomicU32>());
    // An unused place before an idle one: the adapter may still name the pair that stands there.
    let place = pairs()?.iter().position(|pair| pair.base.is_null());
    let place = place.or_else(|| {
        pairs()?
            .iter()
            .position(|pair| pair.channels.load(Ordering::Relaxed) == 0)
    });
    let Some(place) = place.filter(|_| {
        header.magic.load(Ordering::Relaxed) == PAIR_MAGIC
            && header.version.load(Ordering::Relaxed) == LAYOUT_VERSION
            && !registrations.is_null()
    }) else {
        // SAFETY: mapped by our callers with this length and not shown to anybody.
        unsafe { memfd::unmap(base, PAIR_BYTES) };
        return None;
    };
    let pair = PAIRS.load(Ordering::Relaxed).wrapping_add(place);
    // SAFETY: `place` is inside the reservation; no channel uses this place (its count is 0) and we hold `LOCK`,
    // under which places are given out.
    unsafe {
        if !(*pair).base.is_null() {
            epoll::forget_pair(pair);
            memfd::unmap(NonNull::new_unchecked((*pair).base), PAIR_BYTES);
            libc::munmap(
                (*pair).registrations.cast(),
                BOARD_BITS * size_of::<AtomicU32>(),
            );
        }
        pair.write(Pair {
            id,
            base: base.as_ptr(),
            side,
            channels: AtomicU32::new(0),
            epolls: [const { AtomicU32::new(0) }; BOARDS],
            slots_used: AtomicU32::new(0),
            registrations: registrations.cast(),
        });
        Some(&*pair)
    }
}

/// Puts the offered region to use if nothing is in flight; otherwise the next call tries again. The caller holds `LOCK`.
fn attach(connection: &Connection) {
    let (entry, local) = (connection.entry, connection.local);
    let region = local.offered.load(Ordering::Relaxed);
    if entry.holders.load(Ordering::Relaxed) > 1 && others_alive(connection) {
        entry.reason.store(Reason::Shared as u32, Ordering::Relaxed);
        return;
    }
    let (Some(rx), Some(tx)) = (
        lock::try_lock(&entry.rx_lock),
        lock::try_lock(&entry.tx_lock),
    ) else {
        return;
    };
    // From here on new calls see the region and queue at the locks; SeqCst pairs with the increments of `*_in_flight`
    // that host-path calls make before they look at `region`.
    local.region.store(region, Ordering::SeqCst);
    if entry.rx_in_flight.load(Ordering::SeqCst) != 0
        || entry.tx_in_flight.load(Ordering::SeqCst) != 0
    {
        local.region.store(null_mut(), Ordering::SeqCst);
        return;
    }
    match counts_agree(connection) {
        Some(true) => {}
        Some(false) => {
            local.region.store(null_mut(), Ordering::SeqCst);
            connection.pin(Reason::CountsDisagree);
            return;
        }
        None => {
            local.region.store(null_mut(), Ordering::SeqCst);
            return;
        }
    }
    entry
        .tx_capacity_log2
        .store(CAPACITY_LOG2_MIN, Ordering::Relaxed);
    options::prepare_carrier(connection);
    entry.flags.fetch_or(FLAG_ATTACHED, Ordering::Relaxed);
    entry
        .reason
        .store(Reason::PartnerNotAttached as u32, Ordering::Relaxed);
    if let Some(end) = connection.end() {
        // Until we know better how this program waits, ring.
        end.ours()
            .wake
            .wake
            .store(WakeWord::Bell.to_word(), Ordering::Relaxed);
        // Release pairs with the Acquire load in `End::try_up`.
        end.ours().wake.attached.store(1, Ordering::Release);
    }
    drop(rx);
    drop(tx);
    epoll::virtualise(connection);
    send::service(connection);
}

/// True when another process of the family that may hold this connection is still alive.
fn others_alive(connection: &Connection) -> bool {
    state::family_alive() && connection.entry.holders.load(Ordering::Relaxed) > 1
}

/// Compares our byte counts with the kernel's; `None` when bytes were on the move while we looked.
fn counts_agree(connection: &Connection) -> Option<bool> {
    /// The kernel's `struct tcp_info` up to `tcpi_bytes_received` (include/uapi/linux/tcp.h).
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Info {
        bytes: [u8; 136],
    }
    impl Default for Info {
        fn default() -> Info {
            Info { bytes: [0; 136] }
        }
    }
    const BYTES_ACKED: usize = 120;
    const BYTES_RECEIVED: usize = 128;
    const STATE: usize = 0;
    const TCP_ESTABLISHED: u8 = 1;
    /// Looks before giving up until the next call.
    const LOOKS_MAX: usize = 4;
    let fd = connection.fd;
    let word = |info: &Info, at: usize| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&info.bytes[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let read = || sys::getsockopt::<Info>(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok();
    let entry = connection.entry;
    for _ in 0..LOOKS_MAX {
        let before = read()?;
        let waiting = sys::bytes_waiting(fd);
        let unacknowledged = sys::bytes_unacknowledged(fd);
        let after = read()?;
        if before.bytes[STATE] != TCP_ESTABLISHED {
            return None;
        }
        let same = |at| word(&before, at) == word(&after, at);
        if !same(BYTES_ACKED) || !same(BYTES_RECEIVED) || waiting < 0 || unacknowledged < 0 {
            continue;
        }
        let received = word(&after, BYTES_RECEIVED);
        // RFC 4898 counts in `tcpi_bytes_acked` what left the send queue; the SYN of an active open is counted as one.
        let sent = word(&after, BYTES_ACKED) + unacknowledged as u64;
        let ours_rx = entry.rx_carrier.load(Ordering::Relaxed);
        let ours_tx = entry.tx_carrier.load(Ordering::Relaxed);
        let syn = u64::from(entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED == 0);
        return Some(received == ours_rx + waiting as u64 && sent == ours_tx + syn);
    }
    None
}

/// The last descriptor of this process that referred to `connection` is being closed.
pub(crate) fn release(connection: &Connection) {
    let (entry, local) = (connection.entry, connection.local);
    let last = entry.holders.fetch_sub(1, Ordering::AcqRel) <= 1 || !state::family_alive();
    let offered = local.offered.load(Ordering::Relaxed);
    if last {
        if let Some(end) = connection.end() {
            end_channel(connection, &end);
        }
        if entry.flags.load(Ordering::Relaxed) & FLAG_ASKED != 0 {
            withdraw(connection);
        }
    }
    if !offered.is_null() {
        unmap(connection, offered);
    }
    if last {
        entry
            .state
            .store(EntryState::Free as u32, Ordering::Release);
    }
}

/// This process ends and with it its hold on `connection`; nothing is unmapped, other threads may still be inside.
pub(crate) fn holder_ends(connection: &Connection) {
    let last =
        connection.entry.holders.fetch_sub(1, Ordering::AcqRel) <= 1 || !state::family_alive();
    if last {
        if let Some(end) = connection.end() {
            end_channel(connection, &end);
        }
        connection.entry.pid.store(state::pid(), Ordering::Relaxed);
        connection
            .entry
            .state
            .store(EntryState::Ended as u32, Ordering::Release);
    }
}

/// What the kernel does at the last close, for the bytes that are not in the kernel.
fn end_channel(connection: &Connection, end: &End<'_>) {
    if end.ours().wake.abandoned.load(Ordering::Relaxed) != 0 {
        // Passed on: whoever has it now holds a plain socket that lives on.
        return;
    }
    receive::set_wake(end, WakeWord::None);
    let unread = {
        let _rx = lock::lock(&connection.entry.rx_lock);
        let unread = end.rx_mode() == Mode::Ring && end.receiver().looks_filled();
        if !unread {
            // Doorbells that nobody waits for are no data: left there, they would turn this close into a reset.
            receive::discard_doorbells(connection, end);
        }
        unread
    };
    let _tx = lock::lock(&connection.entry.tx_lock);
    end.ours().wake.closed.store(CLOSED_ALL, Ordering::Release);
    if unread {
        // RFC 1122, 4.2.2.13: closing with received data pending sends a reset, "to show that data was lost".
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let value = &raw const linger;
        let len = size_of::<libc::linger>();
        // SAFETY: `linger` is readable for its length.
        unsafe {
            sys::raw(
                libc::SYS_setsockopt,
                connection.fd as usize,
                libc::SOL_SOCKET as usize,
                libc::SO_LINGER as usize,
                value as usize,
                len,
                0,
            )
        };
    }
    send::notify_of_end(connection, end);
}

fn withdraw(connection: &Connection) {
    let _held = LOCK.lock();
    let adapter = ADAPTER.load(Ordering::Relaxed);
    if adapter >= 0 {
        let mut message = Message::new(Kind::Withdraw);
        message.entry = connection.index;
        message.generation = connection.generation;
        message.pid = state::pid();
        if !send_message(adapter, &message, None) {
            lose_adapter(adapter);
        }
    }
}

/// Ends this process's mapping of a region once nobody here is inside it.
fn unmap(connection: &Connection, region: *mut u8) {
    /// Turns to wait for threads that were inside a call when the descriptor was closed.
    const TURNS_MAX: u32 = 1000;
    let (entry, local) = (connection.entry, connection.local);
    let rx = lock::lock(&entry.rx_lock);
    let tx = lock::lock(&entry.tx_lock);
    local.region.store(null_mut(), Ordering::SeqCst);
    drop(rx);
    drop(tx);
    let mut turns = 0;
    while local.sleepers.load(Ordering::SeqCst) != 0 || local.users.load(Ordering::SeqCst) != 0 {
        turns += 1;
        if turns > TURNS_MAX {
            // A thread still sleeps on the closed descriptor: leave it the mapping rather than pull it away.
            return;
        }
        sys::yield_now();
    }
    local.offered.store(null_mut(), Ordering::Relaxed);
    let pair = local.pair.swap(null_mut(), Ordering::Relaxed);
    if !pair.is_null() {
        // SAFETY: places of the pair table are never released.
        unsafe { (*pair).channels.fetch_sub(1, Ordering::AcqRel) };
    }
    if let Some(base) = NonNull::new(region) {
        // SAFETY: mapped by `map_region` with this length; nobody is inside and nobody can find it any more.
        unsafe { memfd::unmap(base, REGION_BYTES) };
    }
}

/// True when the operator or the adapter wants something of this connection.
#[inline]
pub(crate) fn commanded(entry: &Entry) -> bool {
    entry.command.load(Ordering::Relaxed) != COMMAND_NONE
}

const _: () = assert!(CONTROL_BYTES == 4096);
