//! Active opens through the engine, up to the carrier and its preamble. [`super::awaiting`] does
//! the rest.

use core::ffi::c_int;
use core::num::{NonZeroU8, NonZeroU32};
use core::sync::atomic::Ordering;

use libc::{iovec, sockaddr, socklen_t};
use toehold_channel::offload::{Address, RoutingPage, RuleAction, store_true_ends, true_ends};
use toehold_channel::preamble::{ConnectPreamble, PREAMBLE_BYTES};
use toehold_channel::rendezvous::mapped;
use toehold_channel::table::{
    FLAG_CONNECTING, FLAG_OFFLOAD, FLAG_REFUSED, FLAG_RESULT_UNREPORTED, Mode, Reason,
};

use crate::connection::orderings::OFFLOAD_ACQUIRE;
use crate::connection::{self, Connection};
use crate::connection::{closing, pending_errors, tracking};
use crate::direction::takeover;
use crate::epoll::membership;
use crate::express::opening::{self, Opening};
use crate::express::{claiming, withheld};
use crate::offload::awaiting::{self, Answer, PAYLOAD_MAX, sleep};
use crate::offload::{addresses, questions, routing};
use crate::process::descriptors::{self, Kind};
use crate::system::{errno, sys};
use crate::transfer::buffers::{self, part};
use crate::{adapter, process};

/// The time that the carrier's handshake may take. The kernel makes it on loopback without the
/// relay.
const RELAY_NS: u64 = 200_000_000;

const PREAMBLE_SENT: isize = PREAMBLE_BYTES as isize;
const IN_PROGRESS: i32 = -libc::EINPROGRESS;

/// The result of a `connect`.
#[derive(Debug)]
pub(crate) enum Opened {
    /// The call is done, with this result; errno is set.
    Done(c_int),
    /// The kernel must make the call; perhaps with a reason for the status.
    Kernel(Option<Reason>),
    /// The call fails with this errno.
    Failed(i32),
    /// The kernel must make the call, to this address: the program wants one of the engine's own
    /// addresses, at which a program of this host listens.
    Beside(Address),
}

/// A program's call that opens a connection.
pub(super) enum OpeningCall<'m> {
    Connect,
    /// A send with `MSG_FASTOPEN`.
    Message(&'m [iovec]),
}

/// A connection that waits for the engine's answer.
pub(super) struct PendingOpen {
    pub(super) connection: Connection,
    /// Bytes of a message that the engine has, or will have.
    pub(super) payload: usize,
}

/// `connect(2)`, if the engine serves the destination.
///
/// # Safety
/// As for `connect`.
pub(crate) unsafe fn connect(fd: i32, address: *const sockaddr, len: socklen_t) -> Opened {
    // SAFETY: the caller's promise.
    let remote = unsafe { addresses::read(address, len) };
    let remote = remote.filter(|&remote| routing::may_be_offloaded(remote));
    // Checked before whether memory is borrowed, which costs a system call.
    let is_new_to_us = connection::at(fd).is_none();
    if is_new_to_us && remote.is_none() || !process::is_started() || process::borrowed_memory() {
        return Opened::Kernel(None);
    }
    if let Some(done) = again(fd, || !sys::is_nonblocking(fd)) {
        return done;
    }
    let Some(remote) = remote else {
        return Opened::Kernel(None);
    };
    errno::keep(tracking::prepare);
    match errno::keep(|| begin(fd, remote, &OpeningCall::Connect)) {
        Ok(begun) if awaiting::is_deferred(&begun.connection) => Opened::Done(0),
        Ok(begun) => finish(&begun.connection),
        Err(instead) => instead,
    }
}

/// A repeated connecting call on a socket that the engine connects. It sleeps if `waits` is true.
pub(super) fn again(fd: i32, waits: impl FnOnce() -> bool) -> Option<Opened> {
    let connection = connection::at(fd)?;
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    if flags & FLAG_CONNECTING != 0 && awaiting::look(&connection) == Answer::Pending {
        return Some(if awaiting::is_deferred(&connection) {
            errno::set(libc::EISCONN);
            Opened::Done(-1)
        } else if waits() {
            finish(&connection)
        } else {
            errno::set(libc::EALREADY);
            Opened::Done(-1)
        });
    }
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    if flags & FLAG_REFUSED != 0 {
        if let Some(error) = pending_errors::take(&connection) {
            return Some(fail(&connection, error));
        }
        // The error was reported, so the socket may connect again from the start.
        sys::disconnect_unreported(fd);
        closing::closing(fd);
        return None;
    }
    if flags & FLAG_OFFLOAD == 0 {
        return None;
    }
    // As in `inet_stream_connect` after SS_CONNECTING: the first call after the connection was made
    // returns success.
    let before = connection
        .entry
        .flags
        .fetch_and(!FLAG_RESULT_UNREPORTED, Ordering::Relaxed);
    if before & FLAG_RESULT_UNREPORTED != 0 {
        return Some(Opened::Done(0));
    }
    errno::set(libc::EISCONN);
    Some(Opened::Done(-1))
}

/// The program's `connect` fails: its socket returns to the initial state.
fn fail(connection: &Connection, error: i32) -> Opened {
    errno::keep(|| sys::disconnect_unreported(connection.fd));
    errno::set(error);
    Opened::Done(-1)
}

/// Hands the connection to the engine, or returns the reason why not.
pub(super) fn begin(fd: i32, remote: Address, by: &OpeningCall<'_>) -> Result<PendingOpen, Opened> {
    let routing_page = page_for(remote)?;
    let fresh = opening::fresh(fd);
    let origin = Origin::of(fd, fresh.is_some(), &routing_page)?;
    if let Some(alias) = routing_page.alias_of(remote.ip) {
        // The engine does not receive its own frames, so it cannot connect to its own address.
        return Err(Opened::Beside(Address {
            ip: mapped(alias),
            port: remote.port,
        }));
    }
    let mut preamble = preamble_of(fd, origin.port, remote);
    let mut opening = None;
    let mut payload = None;
    match by {
        OpeningCall::Connect => {
            if let Some(fresh) = fresh
                && let Some(connection) = claiming::connect_by_engine(fd, fresh, &preamble)
            {
                let payload = 0;
                return Ok(PendingOpen {
                    connection,
                    payload,
                });
            }
            opening = fresh.and_then(|fresh| Opening::to(remote, fresh));
            preamble.is_seed = opening.is_some_and(|opening| opening.is_seed);
            // A fresh socket has not set this option.
            if fresh.is_none() && tcp_option(fd, libc::TCP_FASTOPEN_CONNECT) > 0 {
                preamble.is_fast_open = true;
                preamble.is_deferred = routing_page.has_cookie(remote);
            }
        }
        // A message always gets a new carrier, because the program's bytes are on the carrier
        // before the answer.
        OpeningCall::Message(parts) => {
            preamble.is_fast_open = true;
            payload = routing_page.has_cookie(remote).then_some(*parts);
        }
    }
    let relay_port = routing_page.relay_port();
    let carrier = connect_carrier_or_forget(fd, relay_port, &preamble, payload);
    let Some(payload) = carrier else {
        sys::disconnect_unreported(fd);
        return Err(Opened::Kernel(Some(Reason::NoRelay)));
    };
    // If the program has bound one of the engine's addresses, the connection comes from that
    // address and from the carrier's port.
    let local = origin.own_ip.and_then(|ip| {
        let port = addresses::local(fd)?.port;
        Some(Address { ip, port })
    });
    match track(fd, (local, remote), payload, preamble.is_deferred) {
        Some(connection) => {
            if let Some(opening) = opening {
                opening.begun(&connection);
            }
            Ok(PendingOpen {
                connection,
                payload,
            })
        }
        None => {
            sys::disconnect_unreported(fd);
            Err(match payload {
                0 => Opened::Kernel(Some(Reason::NoResources)),
                // The remote may already have the message.
                _ => Opened::Failed(libc::ENOBUFS),
            })
        }
    }
}

/// The routing page, if the engine serves a connection to `remote`.
fn page_for(remote: Address) -> Result<RoutingPage, Opened> {
    let no_engine = routing::is_wanted().then_some(Reason::NoEngine);
    let routing_page = questions::routing_page().ok_or(Opened::Kernel(no_engine))?;
    match routing_page.action(remote.ip, remote.port) {
        RuleAction::Offload => Ok(routing_page),
        RuleAction::OffloadOnRequest if routing::is_wanted() => Ok(routing_page),
        RuleAction::OffloadOnRequest | RuleAction::Direct => Err(Opened::Kernel(None)),
        RuleAction::Host => Err(Opened::Kernel(Some(Reason::Policy))),
    }
}

/// The local end of a future connection.
struct Origin {
    /// The engine's address to which the program has bound its socket.
    own_ip: Option<[u8; 16]>,
    /// The port to which it has bound its socket; 0 for none.
    port: u16,
}

impl Origin {
    /// The origin of a socket that the engine can serve. A socket that is `as_new` has no name, no
    /// mark and no other type.
    fn of(fd: i32, as_new: bool, routing_page: &RoutingPage) -> Result<Origin, Opened> {
        let option = |name| sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, name).unwrap_or(-1);
        let is_tcp = option(libc::SO_PROTOCOL) == libc::IPPROTO_TCP
            && (as_new || option(libc::SO_TYPE) == libc::SOCK_STREAM);
        if !is_tcp {
            return Err(Opened::Kernel(None));
        }
        let bound = match as_new {
            true => Address::default(),
            false => addresses::bound(fd).ok_or(Opened::Kernel(None))?,
        };
        let own_ip = bound.v4().and_then(|v4| routing_page.behind(v4));
        let is_any = bound.ip == [0; 16] || bound.v4() == Some([0; 4]) || own_ip.is_some();
        let is_beside = sys::namespace_of(fd).unwrap_or(0) == routing_page.netns();
        // A mark concerns the kernel's routes and firewall, so the kernel must make the connection.
        let has_mark = !as_new && option(libc::SO_MARK) != 0;
        if !is_any || !is_beside || has_mark {
            return Err(Opened::Kernel(Some(Reason::NoRelay)));
        }
        Ok(Origin {
            own_ip,
            port: bound.port,
        })
    }
}

/// The connect preamble of a connection from `local_port` to `remote`.
fn preamble_of(fd: i32, local_port: u16, remote: Address) -> ConnectPreamble {
    let mut preamble = ConnectPreamble {
        token: routing::client_token(),
        remote,
        local_port,
        is_seed: false,
        is_fast_open: false,
        is_deferred: false,
        syn_retries_max: None,
        user_timeout_ms: None,
    };
    // A socket that is as new has none of these.
    if descriptors::fresh(fd).is_none() {
        let user_timeout = tcp_option(fd, libc::TCP_USER_TIMEOUT).max(0).unsigned_abs();
        preamble.user_timeout_ms = NonZeroU32::new(user_timeout);
        // If the program has set none, the kernel reports its default (`tcp_syn_retries`).
        let retries = u8::try_from(tcp_option(fd, libc::TCP_SYNCNT)).ok();
        preamble.syn_retries_max = retries.and_then(NonZeroU8::new);
    }
    preamble
}

/// An option of TCP's; 0 without it.
fn tcp_option(fd: i32, name: i32) -> i32 {
    sys::getsockopt::<i32>(fd, libc::IPPROTO_TCP, name).unwrap_or(0)
}

/// Begins to track a connection with `payload` bytes on the carrier, and stores its local end, if
/// that is already known.
fn track(
    fd: i32,
    (local, remote): (Option<Address>, Address),
    payload: usize,
    is_deferred: bool,
) -> Option<Connection> {
    if descriptors::kind(fd) == Kind::Connection {
        // The former connection with this number was closed without our knowledge.
        closing::closed_before(fd);
    }
    tracking::track(fd, false);
    let connection = connection::at(fd)?;
    let entry = connection.entry;
    store_true_ends(entry, local.unwrap_or_default(), remote);
    let said = PREAMBLE_BYTES + payload;
    entry.tx_carrier.store(said as u64, Ordering::Relaxed);
    entry
        .reason
        .store(Reason::Relayed as u32, Ordering::Relaxed);
    awaiting::begin(&connection, is_deferred);
    if !is_deferred {
        membership::hold(&connection);
    }
    Some(connection)
}

/// Waits for the engine's answer before another program gets the connection, because that program
/// would not know of a withheld channel. If the answer does not come soon, the connection begins
/// again on a new carrier: the other program goes on to wait for its answer.
pub(crate) fn settle_before_exec(connection: &Connection) {
    const ANSWER_NS: u64 = 1_000_000_000;
    if !awaiting::is_connecting(connection) || !awaiting::is_on_used(connection) {
        return;
    }
    let news = libc::POLLPRI | libc::POLLRDHUP;
    sys::wait_for(connection.number(), news, ANSWER_NS);
    if awaiting::look(connection) != Answer::Pending {
        return;
    }
    let Some(held) = takeover::lock_receiving(connection) else {
        return;
    };
    if !awaiting::is_connecting(connection)
        || !awaiting::is_on_used(connection)
        || sys::poll_now(connection.number(), news) != 0
    {
        return;
    }
    withheld::give_up(connection);
    let (_, remote) = true_ends(connection.entry);
    if !begin_again(connection, remote) {
        awaiting::connect_by_kernel(connection, remote);
        drop(held);
        membership::answered(connection);
    }
}

/// Begins a connection to `remote` again on a new carrier: its used carrier has no answer. Its
/// socket stays, so other descriptors and registrations lead to the new carrier. False when the
/// relay has got nothing. The caller holds the receive lock.
fn begin_again(connection: &Connection, remote: Address) -> bool {
    let (entry, fd) = (connection.entry, connection.number());
    // The engine ends a connection that it is making on the used carrier.
    sys::disconnect_unreported(fd);
    let Some(routing_page) = routing::known_routing_page() else {
        return false;
    };
    let preamble = preamble_of(fd, 0, remote);
    if connect_carrier(fd, routing_page.relay_port(), &preamble, None).is_err() {
        return false;
    }
    entry.rx_carrier.store(0, Ordering::Relaxed);
    let said = PREAMBLE_BYTES as u64;
    entry.tx_carrier.store(said, Ordering::Relaxed);
    for mode in [&entry.rx_mode, &entry.tx_mode] {
        mode.store(Mode::Carrier as u32, Ordering::Relaxed);
    }
    // The port is another one.
    entry.carrier_key.store(0, Ordering::Relaxed);
    true
}

/// As [`connect_carrier`]; `None` instead of an error.
fn connect_carrier_or_forget(
    fd: i32,
    relay_port: u16,
    preamble: &ConnectPreamble,
    payload: Option<&[iovec]>,
) -> Option<usize> {
    let result = connect_carrier(fd, relay_port, preamble, payload);
    if result == Err(libc::ECONNREFUSED) {
        forget_adapter();
    }
    result.ok()
}

/// Connects the program's socket to the relay, and sends the preamble and as much of `payload` as
/// fits. Returns how many bytes of the payload were sent; an errno when the relay has got nothing.
fn connect_carrier(
    fd: i32,
    relay_port: u16,
    preamble: &ConnectPreamble,
    payload: Option<&[iovec]>,
) -> Result<usize, i32> {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0);
    if flags < 0 {
        return Err(-flags as i32);
    }
    let flags = flags as usize;
    // Non-blocking, so that a stopped adapter cannot delay the call beyond its limit.
    sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize);
    let relay = Address {
        ip: mapped([127, 0, 0, 1]),
        port: relay_port,
    };
    let result = match awaiting::kernel_connect(fd, relay) as i32 {
        0 | IN_PROGRESS => say(fd, preamble, payload),
        error => Err(-error),
    };
    sys::fcntl(fd, libc::F_SETFL, flags);
    result
}

/// Sends the preamble once the carrier is connected, which on loopback is immediate. Returns how
/// many bytes of the payload were sent with it, or an errno.
fn say(fd: i32, preamble: &ConnectPreamble, payload: Option<&[iovec]>) -> Result<usize, i32> {
    let bytes = preamble.to_bytes();
    let send = || match payload {
        None => sys::send_now(fd, &bytes),
        Some(parts) => send_with(fd, &bytes, parts),
    };
    let mut sent = send();
    if sent == -(libc::EAGAIN as isize) && sys::wait_for(fd, libc::POLLOUT, RELAY_NS) {
        sent = send();
    }
    match sent {
        PREAMBLE_SENT.. => Ok((sent - PREAMBLE_SENT) as usize),
        // A fresh socket has room for all of it.
        0.. => Err(libc::EAGAIN),
        error => Err(-error as i32),
    }
}

/// Sends `preamble` and the beginning of a message in one call, because the engine makes the SYN
/// when the preamble comes. If a part has a bad pointer, the parts before it are sent.
fn send_with(fd: i32, preamble: &[u8], message: &[iovec]) -> isize {
    let first = part(preamble.as_ptr().cast(), preamble.len());
    let (window, count) = buffers::window(message, 0, PAYLOAD_MAX);
    let mut parts = [first; 1 + buffers::WINDOW_MAX];
    parts[1..=count].copy_from_slice(&window[..count]);
    // SAFETY: zeroes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = parts.as_mut_ptr();
    header.msg_iovlen = (1 + count) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first part is readable, and the kernel refuses what it cannot read of the others.
    unsafe { sys::sendmsg(fd, &header, flags) }
}

/// The relay's port has no listener: the adapter was replaced or is gone.
fn forget_adapter() {
    let _held = adapter::lock();
    if let Some(adapter) = adapter::connected() {
        adapter::forget_socket(adapter);
    }
}

/// Finishes a request: a blocking program waits for the answer.
pub(super) fn finish(connection: &Connection) -> Opened {
    if awaiting::is_on_used(connection) && connection.nonblocking() {
        // The remote has not answered yet.
        return in_progress(connection);
    }
    if sys::is_nonblocking(connection.fd) {
        return match awaiting::look(connection) {
            Answer::Pending => in_progress(connection),
            answer => done(connection, answer),
        };
    }
    let flags = &connection.entry.flags;
    flags.fetch_and(!FLAG_RESULT_UNREPORTED, Ordering::Relaxed);
    loop {
        match awaiting::look(connection) {
            Answer::Pending => {}
            answer => return done(connection, answer),
        }
        if let Err(error) = sleep(connection.number()) {
            errno::set(error);
            return Opened::Done(-1);
        }
    }
}

pub(super) fn in_progress(connection: &Connection) -> Opened {
    let flags = &connection.entry.flags;
    flags.fetch_or(FLAG_RESULT_UNREPORTED, Ordering::Relaxed);
    errno::set(libc::EINPROGRESS);
    Opened::Done(-1)
}

fn done(connection: &Connection, answer: Answer) -> Opened {
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    match answer {
        Answer::Refused => {
            let error = pending_errors::take(connection);
            fail(connection, error.unwrap_or(libc::ECONNREFUSED))
        }
        _ if flags & FLAG_OFFLOAD != 0 => Opened::Done(0),
        // The kernel connects in the program's own call.
        _ if sys::is_nonblocking(connection.fd) => {
            errno::set(libc::EINPROGRESS);
            Opened::Done(-1)
        }
        _ => Opened::Kernel(Some(Reason::NoRelay)),
    }
}
