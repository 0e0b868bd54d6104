//! Active opens through the engine.
//!
//! ```text
//!   Connecting ──(urgent byte 0)──► connected                 ordinary from here on
//!              ──(urgent byte e)──► refused, error e           reported once by a call or SO_ERROR
//!              ──(carrier ends) ──► the kernel connects        no result was reported yet
//! ```

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{sockaddr, socklen_t};
use toehold_channel::offload::{
    Address, CarrierKey, Direction, RuleAction, store_true_ends, true_ends,
};
use toehold_channel::preamble::{ConnectPreamble, PREAMBLE_BYTES};
use toehold_channel::rendezvous::mapped;
use toehold_channel::table::{FLAG_CONNECTING, FLAG_OFFLOAD, FLAG_REFUSED, FLAG_UNTOLD, Reason};

use crate::connection::{self, Connection};
use crate::descriptors::{self, Kind};
use crate::offload::{endings, liveness, names};
use crate::{
    adapter, closing, epoll, errno, lock, offload, pending, process, real, sleep, sys, tracking,
};

/// How long the relay may take for the carrier's handshake, which the kernel makes on loopback all
/// by itself.
const RELAY_NS: u64 = 200_000_000;

const PREAMBLE_SENT: isize = PREAMBLE_BYTES as isize;
const IN_PROGRESS: i32 = -libc::EINPROGRESS;

/// Connections of this process that wait for the engine's answer: while there are none, nothing
/// here costs more than a look at this.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// What became of a `connect`.
#[derive(Debug)]
pub(crate) enum Opened {
    /// It was dealt with: the call's result, errno set.
    Done(c_int),
    /// It is the kernel's, perhaps for a reason worth telling.
    Kernel(Option<Reason>),
    /// It is the kernel's, to this address: the program wants one of the engine's own, where a
    /// program of this host listens.
    Beside(Address),
}

/// What the engine has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing yet.
    Pending,
    /// The connection is no longer, or never was, one that waits for an answer.
    Settled,
    /// It could not connect.
    Refused,
}

/// `connect(2)`, as far as it is the engine's.
///
/// # Safety
/// As for `connect`.
pub(crate) unsafe fn connect(fd: i32, address: *const sockaddr, len: socklen_t) -> Opened {
    if !process::is_started() || process::borrowed_memory() {
        return Opened::Kernel(None);
    }
    if let Some(done) = again(fd) {
        return done;
    }
    // SAFETY: the caller's promise.
    let Some(remote) = (unsafe { names::read(address, len) }) else {
        return Opened::Kernel(None);
    };
    if !offload::may_be_offloaded(remote) {
        return Opened::Kernel(None);
    }
    errno::keep(tracking::prepare);
    match errno::keep(|| begin(fd, remote)) {
        Ok(connection) => finish(&connection),
        Err(instead) => instead,
    }
}

/// A further `connect` on a socket that has been through here.
fn again(fd: i32) -> Option<Opened> {
    let connection = connection::at(fd)?;
    let flags = connection.entry.flags.load(Ordering::Acquire);
    if flags & FLAG_CONNECTING != 0 && look(&connection) == Answer::Pending {
        return Some(if sys::is_nonblocking(fd) {
            errno::set(libc::EALREADY);
            Opened::Done(-1)
        } else {
            finish(&connection)
        });
    }
    let flags = connection.entry.flags.load(Ordering::Acquire);
    if flags & FLAG_REFUSED != 0 {
        if let Some(error) = pending::take(&connection) {
            return Some(fail(&connection, error));
        }
        // The error was reported: the socket may try again, from nothing.
        disconnect(fd);
        closing::closing(fd);
        return None;
    }
    if flags & FLAG_OFFLOAD == 0 {
        return None;
    }
    // As `inet_stream_connect` leaves SS_CONNECTING: the first call after it is the one that
    // succeeds.
    let before = connection
        .entry
        .flags
        .fetch_and(!FLAG_UNTOLD, Ordering::Relaxed);
    if before & FLAG_UNTOLD != 0 {
        return Some(Opened::Done(0));
    }
    errno::set(libc::EISCONN);
    Some(Opened::Done(-1))
}

/// The program's `connect` fails: from here on its socket is as new.
fn fail(connection: &Connection, error: i32) -> Opened {
    errno::keep(|| disconnect(connection.fd));
    errno::set(error);
    Opened::Done(-1)
}

/// Hands the connection to the engine; or says what becomes of it instead.
fn begin(fd: i32, remote: Address) -> Result<Connection, Opened> {
    let kernel = |reason| Opened::Kernel(Some(reason));
    let no_engine = offload::is_wanted().then_some(Reason::NoEngine);
    let routing_page = offload::routing_page().ok_or(Opened::Kernel(no_engine))?;
    match routing_page.action(remote.ip, remote.port) {
        RuleAction::Offload => {}
        RuleAction::OffloadOnRequest if offload::is_wanted() => {}
        RuleAction::OffloadOnRequest | RuleAction::Direct => return Err(Opened::Kernel(None)),
        RuleAction::Host => return Err(kernel(Reason::Policy)),
    }
    let option = |name| sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, name).unwrap_or(-1);
    let is_tcp = option(libc::SO_TYPE) == libc::SOCK_STREAM
        && option(libc::SO_PROTOCOL) == libc::IPPROTO_TCP;
    if !is_tcp {
        return Err(Opened::Kernel(None));
    }
    let bound = names::local(fd).ok_or(Opened::Kernel(None))?;
    let own_ip = bound.v4().and_then(|v4| routing_page.behind(v4));
    let is_any = bound.ip == [0; 16] || bound.v4() == Some([0; 4]) || own_ip.is_some();
    let is_beside = sys::namespace_of(fd).unwrap_or(0) == routing_page.netns();
    if !is_any || !is_beside {
        return Err(kernel(Reason::NoRelay));
    }
    if let Some(alias) = routing_page.alias_of(remote.ip) {
        // No frame of the engine's comes back to it.
        return Err(Opened::Beside(Address {
            ip: mapped(alias),
            port: remote.port,
        }));
    }
    let preamble = ConnectPreamble {
        token: offload::client_token(),
        remote,
        local_port: bound.port,
    };
    if !connect_carrier(fd, routing_page.relay_port(), &preamble) {
        disconnect(fd);
        return Err(kernel(Reason::NoRelay));
    }
    // From one of the engine's addresses it goes from there, and from the carrier's own port.
    let local = own_ip.and_then(|ip| {
        let port = names::local(fd)?.port;
        Some(Address { ip, port })
    });
    match track(fd, local, remote) {
        Some(connection) => Ok(connection),
        None => {
            disconnect(fd);
            Err(kernel(Reason::NoResources))
        }
    }
}

/// Begins to track a connection; what it is told about its own end stands, if that is known
/// already.
fn track(fd: i32, local: Option<Address>, remote: Address) -> Option<Connection> {
    if descriptors::kind(fd) == Kind::Connection {
        // Closed behind our back, and the number given out again.
        closing::closing(fd);
    }
    tracking::track(fd, false);
    let connection = connection::at(fd)?;
    let entry = connection.entry;
    store_true_ends(entry, local.unwrap_or_default(), remote);
    let said = PREAMBLE_BYTES as u64;
    entry.tx_carrier.store(said, Ordering::Relaxed);
    entry
        .reason
        .store(Reason::Relayed as u32, Ordering::Relaxed);
    WAITING.fetch_add(1, Ordering::Relaxed);
    let flags = FLAG_OFFLOAD | FLAG_CONNECTING;
    entry.flags.fetch_or(flags, Ordering::Release);
    epoll::hold(&connection);
    Some(connection)
}

/// Connects the program's socket to the relay, and says there what it is for; true when that is
/// done.
fn connect_carrier(fd: i32, relay_port: u16, preamble: &ConnectPreamble) -> bool {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0);
    if flags < 0 {
        return false;
    }
    let flags = flags as usize;
    // Whatever state the adapter is in, we do not wait for it longer than we mean to.
    sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize);
    let relay = Address {
        ip: mapped([127, 0, 0, 1]),
        port: relay_port,
    };
    let result = match kernel_connect(fd, relay) as i32 {
        0 | IN_PROGRESS => say(fd, preamble),
        error => error,
    };
    sys::fcntl(fd, libc::F_SETFL, flags);
    if result == -libc::ECONNREFUSED {
        lose_adapter();
    }
    result == 0
}

/// Says what a carrier is for, once it is connected: on loopback, at once. 0 or a negated errno.
fn say(fd: i32, preamble: &ConnectPreamble) -> i32 {
    let bytes = preamble.to_bytes();
    let mut sent = sys::send_now(fd, &bytes);
    if sent == -(libc::EAGAIN as isize) && sys::wait_for(fd, libc::POLLOUT, RELAY_NS) {
        sent = sys::send_now(fd, &bytes);
    }
    match sent {
        PREAMBLE_SENT => 0,
        // A fresh socket has room for all of it.
        0.. => -libc::EAGAIN,
        error => error as i32,
    }
}

/// Nobody listens where the adapter said: it is another one by now, or none.
fn lose_adapter() {
    let _held = adapter::lock();
    if let Some(adapter) = adapter::connected() {
        adapter::lose(adapter);
    }
}

/// The kernel's own `connect`; 0 or a negated errno.
fn kernel_connect(fd: i32, to: Address) -> isize {
    let (storage, len) = names::spelled(fd, to);
    // SAFETY: `storage` is readable for `len` bytes.
    unsafe {
        sys::raw(
            libc::SYS_connect,
            fd as usize,
            &raw const storage as usize,
            len as usize,
            0,
            0,
            0,
        )
    }
}

/// Makes a socket what it was before it connected.
fn disconnect(fd: i32) {
    sys::disconnect(fd);
    // The reset of the carrier is no news for the program.
    let _ = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
}

/// What follows a request: a blocking program waits for the answer.
fn finish(connection: &Connection) -> Opened {
    if sys::is_nonblocking(connection.fd) {
        return match look(connection) {
            Answer::Pending => {
                let flags = &connection.entry.flags;
                flags.fetch_or(FLAG_UNTOLD, Ordering::Relaxed);
                errno::set(libc::EINPROGRESS);
                Opened::Done(-1)
            }
            answer => done(connection, answer),
        };
    }
    let flags = &connection.entry.flags;
    flags.fetch_and(!FLAG_UNTOLD, Ordering::Relaxed);
    loop {
        match look(connection) {
            Answer::Pending => {}
            answer => return done(connection, answer),
        }
        if let Err(error) = sleep(connection.fd) {
            errno::set(error);
            return Opened::Done(-1);
        }
    }
}

fn done(connection: &Connection, answer: Answer) -> Opened {
    let flags = connection.entry.flags.load(Ordering::Acquire);
    match answer {
        Answer::Refused => {
            let error = pending::take(connection);
            fail(connection, error.unwrap_or(libc::ECONNREFUSED))
        }
        _ if flags & FLAG_OFFLOAD != 0 => Opened::Done(0),
        // The kernel has begun to connect, or is about to, by the program's own call.
        _ if sys::is_nonblocking(connection.fd) => {
            errno::set(libc::EINPROGRESS);
            Opened::Done(-1)
        }
        _ => Opened::Kernel(Some(Reason::NoRelay)),
    }
}

/// Sleeps until the carrier has something to say.
fn sleep(fd: i32) -> Result<(), i32> {
    let limit = sleep::timeout_ns(fd, libc::SO_SNDTIMEO);
    if limit == 0 && sleep::timeout_ns(fd, libc::SO_RCVTIMEO) == 0 {
        // A real `recv`, so that signals restart it exactly when they would restart a connect.
        set_inline(fd, true);
        let mut byte = 0u8;
        // SAFETY: one writable byte.
        let result = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
        let error = errno::get();
        set_inline(fd, false);
        return if result < 0 && error == libc::EINTR {
            Err(error)
        } else {
            Ok(())
        };
    }
    let seen = sleep::sleep_until(fd, libc::POLLPRI, limit)?;
    seen.map(drop).ok_or(libc::EINPROGRESS)
}

fn set_inline(fd: i32, on: bool) {
    sys::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, on.into());
}

/// True while some connection of this process waits for an answer.
#[inline]
pub(crate) fn any_waiting() -> bool {
    WAITING.load(Ordering::Relaxed) != 0
}

/// True when `fd` waits for the engine's answer.
#[inline]
pub(crate) fn is_waiting(fd: i32) -> bool {
    any_waiting() && fd >= 0 && connection::at(fd).is_some_and(|c| is_connecting(&c))
}

/// True when the connection waits for the engine's answer.
#[inline]
pub(crate) fn is_connecting(connection: &Connection) -> bool {
    connection.entry.flags.load(Ordering::Acquire) & FLAG_CONNECTING != 0
}

/// Takes the answer, if it is there.
pub(crate) fn look(connection: &Connection) -> Answer {
    let entry = connection.entry;
    let Some(held) = lock::lock(&entry.rx_lock) else {
        // Whoever has the lock takes the answer; we look again.
        return Answer::Pending;
    };
    let flags = entry.flags.load(Ordering::Acquire);
    if flags & FLAG_CONNECTING == 0 {
        return if flags & FLAG_REFUSED != 0 {
            Answer::Refused
        } else {
            Answer::Settled
        };
    }
    let fd = connection.fd;
    let seen = sys::poll_now(fd, libc::POLLPRI | libc::POLLRDHUP);
    let answer = if seen & libc::POLLPRI != 0 {
        take(connection)
    } else if seen & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP) != 0 {
        None
    } else {
        return Answer::Pending;
    };
    match answer {
        Some(0) => settle(connection, 0),
        Some(error) => {
            pending::keep(connection, i32::from(error));
            settle(connection, FLAG_REFUSED);
        }
        None => {
            // The adapter is gone, and nothing was said or sent: the kernel may begin afresh.
            let (_, remote) = true_ends(entry);
            disconnect(fd);
            if sys::is_nonblocking(fd) {
                kernel_connect(fd, remote);
            }
            entry.rx_carrier.store(0, Ordering::Relaxed);
            entry.tx_carrier.store(0, Ordering::Relaxed);
            entry.flags.fetch_and(!FLAG_OFFLOAD, Ordering::Release);
            entry
                .reason
                .store(Reason::NoRelay as u32, Ordering::Relaxed);
            settle(connection, 0);
        }
    }
    drop(held);
    if answer == Some(0) {
        liveness::begin(connection);
    }
    epoll::answered(connection);
    match answer {
        Some(1..) => Answer::Refused,
        _ => Answer::Settled,
    }
}

/// Takes the urgent byte off the stream, in its place: nothing of the mark remains. The caller
/// holds the receive lock.
fn take(connection: &Connection) -> Option<u8> {
    let fd = connection.fd;
    let mut byte = 0u8;
    set_inline(fd, true);
    // SAFETY: one writable byte. It is the first of the stream, and the mark is before it: nothing
    // else can be returned.
    let got = unsafe { sys::recv(fd, &mut byte, 1, libc::MSG_DONTWAIT) };
    set_inline(fd, false);
    if got != 1 {
        return None;
    }
    connection.entry.rx_carrier.fetch_add(1, Ordering::Relaxed);
    Some(byte)
}

/// The answer is known. The caller holds the receive lock.
fn settle(connection: &Connection, outcome: u32) {
    let entry = connection.entry;
    let is_offloaded = entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    let is_known = true_ends(entry).0.port != 0;
    if let (Some(routing_page), true) = (offload::known_routing_page(), is_offloaded && !is_known) {
        let direction = Direction::Connected;
        let port = names::local(connection.fd).map_or(0, |own| own.port);
        if let Some((local, remote)) = routing_page.ends(direction, port, routing_page.relay_port())
        {
            store_true_ends(entry, local, remote);
            endings::note_place(connection, CarrierKey { direction, port });
        }
    }
    let over = FLAG_CONNECTING | if outcome != 0 { FLAG_OFFLOAD } else { 0 };
    entry.flags.fetch_or(outcome, Ordering::Relaxed);
    entry.flags.fetch_and(!over, Ordering::Release);
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// A connection that waits for an answer is being closed.
pub(crate) fn closing(connection: &Connection) {
    if is_connecting(connection) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Before bytes may move on a connection that waits for an answer, or got a bad one: waits if the
/// call may, and says what it has to fail with.
#[cold]
pub(crate) fn before_transfer(connection: &Connection, flags: i32) -> Result<(), i32> {
    let waits = flags & libc::MSG_DONTWAIT == 0 && !sys::is_nonblocking(connection.fd);
    loop {
        match look(connection) {
            Answer::Settled => return Ok(()),
            Answer::Refused => {
                let error = pending::take(connection);
                return error.map_or(Ok(()), Err);
            }
            Answer::Pending if !waits => return Err(libc::EAGAIN),
            Answer::Pending => sleep(connection.fd)?,
        }
    }
}

/// `SO_ERROR` of a connection that waits for an answer or got a bad one; `None` for the kernel to
/// answer.
pub(crate) fn error_option(connection: &Connection) -> Option<i32> {
    let flags = connection.entry.flags.load(Ordering::Acquire);
    if flags & (FLAG_CONNECTING | FLAG_REFUSED) == 0 {
        return None;
    }
    match look(connection) {
        Answer::Pending => Some(0),
        Answer::Settled => None,
        Answer::Refused => {
            let error = pending::take(connection);
            // What the kernel has to say is that the carrier was reset.
            let _ = sys::getsockopt::<i32>(connection.fd, libc::SOL_SOCKET, libc::SO_ERROR);
            Some(error.unwrap_or(0))
        }
    }
}
