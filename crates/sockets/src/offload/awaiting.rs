//! Connections that wait for the engine's answer.
//!
//! ```text
//!   Connecting ──(urgent byte 0)──► connected                 ordinary from here on
//!              ──(urgent byte e)──► refused, error e           reported once by a call or SO_ERROR
//!              ──(carrier ends) ──► the kernel connects        no result was reported yet; but
//!                                    refused, if the remote may have payload (`fast_open`)
//! ```

use core::sync::atomic::{AtomicU32, Ordering};

use libc::iovec;
use toehold_channel::offload::{Address, CarrierKey, Direction, store_true_ends, true_ends};
use toehold_channel::preamble::PREAMBLE_BYTES;
use toehold_channel::table::{
    FLAG_ATTACHED, FLAG_CONNECTING, FLAG_DEFERRED, FLAG_OFFLOAD, FLAG_PINNED, FLAG_REFUSED,
    FLAG_RESULT_UNREPORTED, Reason,
};

use crate::connection::orderings::{OFFLOAD_ACQUIRE, OFFLOAD_RELEASE};
use crate::connection::pending_errors;
use crate::connection::{self, Connection};
use crate::direction::{doorbells, takeover};
use crate::epoll::membership;
use crate::express::opening;
use crate::offload::{addresses, endings, liveness, questions, routing};
use crate::system::{cancellation, errno, real, sys};
use crate::transfer::buffers;
use crate::waiting::sleep;

/// Number of this process's connections that wait for the engine's answer. While it is 0, each
/// check here costs one load.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// The error of a connection with payload whose adapter is gone before it has answered.
const SILENCE: i32 = libc::ECONNRESET;
/// The most bytes of a message that a SYN carries: one segment (`tcp_send_syn_data` in
/// net/ipv4/tcp_output.c).
pub(super) const PAYLOAD_MAX: usize = 1_460;
const FAULT: isize = -(libc::EFAULT as isize);

/// The engine's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing yet.
    Pending,
    /// The connection does not wait for an answer (any more).
    Settled,
    /// The engine could not connect.
    Refused,
}

/// The connection begins to wait. If it `is_deferred`, the program may send.
pub(super) fn begin(connection: &Connection, is_deferred: bool) {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let deferred = if is_deferred { FLAG_DEFERRED } else { 0 };
    let flags = FLAG_OFFLOAD | FLAG_CONNECTING | deferred;
    connection.entry.flags.fetch_or(flags, OFFLOAD_RELEASE);
}

/// Sends the beginning of the message that opens a deferred connection. Returns how many bytes were
/// sent; `None` when another thread has opened the connection, or its end is known.
pub(crate) fn open_deferred(
    connection: &Connection,
    message: &[iovec],
) -> Result<Option<usize>, i32> {
    if look(connection) != Answer::Pending {
        return Ok(None);
    }
    let sent = {
        // A thread that looks for the answer meanwhile waits for this lock, and sees afterwards
        // that there is payload.
        let Some(_held) = takeover::lock_receiving(connection) else {
            return Err(libc::EAGAIN);
        };
        let flags = &connection.entry.flags;
        if !is_deferred(connection) {
            return Ok(None);
        }
        let (mut window, count) = buffers::window(message, 0, PAYLOAD_MAX);
        // SAFETY: zeroes are a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = window.as_mut_ptr();
        header.msg_iovlen = count as _;
        let how = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the window names parts of the program's, and the kernel refuses what it cannot
        // read.
        let sent = unsafe { sys::sendmsg(connection.number(), &header, how) };
        if sent > 0 {
            let carrier = &connection.entry.tx_carrier;
            carrier.fetch_add(sent as u64, Ordering::Relaxed);
            flags.fetch_and(!FLAG_DEFERRED, OFFLOAD_RELEASE);
        }
        sent
    };
    match sent {
        1.. => {
            membership::hold(connection);
            if !is_connecting(connection) {
                // Another thread has taken the answer meanwhile.
                membership::answered(connection);
            }
            Ok(Some(sent as usize))
        }
        FAULT => Err(libc::EFAULT),
        // The adapter is gone; the look for the answer will report that.
        _ => Ok(None),
    }
}

/// As [`begin`], for a connection on a carrier that has served others. Its channel is withheld
/// until the answer comes, so that the connection behaves like one on a new carrier.
pub(crate) fn begin_on_used(connection: &Connection, remote: Address) {
    let entry = connection.entry;
    store_true_ends(entry, Address::default(), remote);
    entry
        .flags
        .fetch_and(!FLAG_RESULT_UNREPORTED, Ordering::Relaxed);
    begin(connection, false);
    connection.local.attachment.take();
}

/// True for a connection on a carrier that has served others, with a channel that is withheld until
/// the answer comes.
pub(super) fn is_on_used(connection: &Connection) -> bool {
    connection.local.express.is_carrier()
        && connection.entry.flags.load(Ordering::Relaxed) & FLAG_ATTACHED != 0
}

/// Takes over a connection that this process's former program had begun.
pub(crate) fn take_over(connection: &Connection) {
    if is_connecting(connection) {
        WAITING.fetch_add(1, Ordering::Relaxed);
    }
}

/// True while some connection of this process waits for an answer.
#[inline]
pub(crate) fn any_waiting() -> bool {
    WAITING.load(Ordering::Relaxed) != 0
}

/// True when `fd` waits for the engine's answer, so that its readiness differs from the carrier's.
#[inline]
pub(crate) fn is_waiting(fd: i32) -> bool {
    any_waiting() && fd >= 0 && connection::at(fd).is_some_and(|c| hides_carrier(&c))
}

/// True when the connection waits for the engine's answer, so that its readiness differs from the
/// carrier's. False for a deferred connection, which may be written to.
#[inline]
pub(crate) fn hides_carrier(connection: &Connection) -> bool {
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    flags & (FLAG_CONNECTING | FLAG_DEFERRED) == FLAG_CONNECTING
}

/// True when the connection waits for the program's first bytes.
pub(super) fn is_deferred(connection: &Connection) -> bool {
    connection.entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_DEFERRED != 0
}

/// True when the connection waits for the engine's answer.
#[inline]
pub(crate) fn is_connecting(connection: &Connection) -> bool {
    connection.entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_CONNECTING != 0
}

/// Takes the answer, if it is there.
pub(crate) fn look(connection: &Connection) -> Answer {
    let entry = connection.entry;
    if routing::known_routing_page().is_none() {
        // Another program has begun the connection. The engine's addresses come with the answer.
        questions::routing_page();
    }
    let Some(held) = takeover::lock_receiving(connection) else {
        // The holder of the lock takes the answer; we look again later.
        return Answer::Pending;
    };
    let flags = entry.flags.load(OFFLOAD_ACQUIRE);
    if flags & FLAG_CONNECTING == 0 {
        return if flags & FLAG_REFUSED != 0 {
            Answer::Refused
        } else {
            Answer::Settled
        };
    }
    let is_on_used = is_on_used(connection);
    let seen = sys::poll_now(connection.number(), libc::POLLPRI | libc::POLLRDHUP);
    let answer = if seen & libc::POLLPRI != 0 {
        if is_on_used {
            take_doorbells_before_mark(connection);
        }
        take(connection)
    } else if seen & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP) != 0 {
        None
    } else {
        return Answer::Pending;
    };
    // The program was already told that a deferred connection is connected.
    let is_told = is_deferred(connection) || has_payload(connection);
    let answer = answer.or_else(|| is_told.then_some(SILENCE as u8));
    match answer {
        Some(0) => {
            if is_on_used {
                // Done before any thread may send.
                let local = connection.local;
                (local.attachment).put(local.offered.load(Ordering::Relaxed));
            }
            settle(connection, 0);
        }
        Some(error) => {
            pending_errors::keep(connection, i32::from(error));
            settle(connection, FLAG_REFUSED);
        }
        None => {
            // The adapter is gone, and the remote has got nothing, so the kernel may connect
            // instead.
            let (_, remote) = true_ends(entry);
            if is_on_used {
                // Its channel has no other end, and is given up with the connection.
                connection.pin(Reason::NoRelay);
            }
            connect_by_kernel(connection, remote);
        }
    }
    drop(held);
    if answer == Some(0) && !is_on_used {
        liveness::begin(connection);
    }
    membership::answered(connection);
    if answer == Some(0) {
        opening::answered(connection, is_on_used);
    }
    match answer {
        Some(1..) => Answer::Refused,
        _ => Answer::Settled,
    }
}

/// The kernel makes the connection instead of the engine, which has made none. The caller holds the
/// receive lock.
pub(super) fn connect_by_kernel(connection: &Connection, remote: Address) {
    let (entry, fd) = (connection.entry, connection.number());
    sys::disconnect_unreported(fd);
    if sys::is_nonblocking(fd) {
        kernel_connect(fd, remote);
    }
    entry.rx_carrier.store(0, Ordering::Relaxed);
    entry.tx_carrier.store(0, Ordering::Relaxed);
    entry.flags.fetch_and(!FLAG_OFFLOAD, OFFLOAD_RELEASE);
    entry
        .reason
        .store(Reason::NoRelay as u32, Ordering::Relaxed);
    settle(connection, 0);
}

/// True when no channel is to be handed on with the connection, because the program was told of
/// none: the engine has refused it, or it begins on a new carrier.
pub(crate) fn is_without_channel(connection: &Connection) -> bool {
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    flags & FLAG_REFUSED != 0
        || flags & (FLAG_CONNECTING | FLAG_PINNED) == FLAG_CONNECTING | FLAG_PINNED
}

/// True when the remote may have got bytes of the program before its answer.
fn has_payload(connection: &Connection) -> bool {
    let sent = connection.entry.tx_carrier.load(Ordering::Relaxed);
    !is_on_used(connection) && sent > PREAMBLE_BYTES as u64
}

/// Takes doorbells that came before the urgent byte. The caller holds the receive lock.
fn take_doorbells_before_mark(connection: &Connection) {
    const TAKES_MAX: usize = 64;
    let is_at_mark = || sys::is_at_mark(connection.number());
    let mut takes = 0;
    while !is_at_mark() && takes < TAKES_MAX && doorbells::take(connection, u64::MAX).is_ok() {
        takes += 1;
    }
}

/// Takes the urgent byte off the stream in order, so that the urgent mark is gone, too. The caller
/// holds the receive lock.
fn take(connection: &Connection) -> Option<u8> {
    let fd = connection.number();
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
    if let (Some(routing_page), true) = (routing::known_routing_page(), is_offloaded && !is_known) {
        let direction = Direction::Connected;
        let port = match CarrierKey::from_word(entry.carrier_key.load(Ordering::Relaxed)) {
            // A used carrier's port is known.
            Some(known) => known.port,
            None => addresses::local(connection.number()).map_or(0, |own| own.port),
        };
        if let Some((local, remote)) = routing_page.ends(direction, port, routing_page.relay_port())
        {
            store_true_ends(entry, local, remote);
            endings::note_carrier_key(connection, CarrierKey { direction, port });
        }
    }
    let over = FLAG_CONNECTING | FLAG_DEFERRED | if outcome != 0 { FLAG_OFFLOAD } else { 0 };
    entry.flags.fetch_or(outcome, Ordering::Relaxed);
    entry.flags.fetch_and(!over, OFFLOAD_RELEASE);
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// A connection that waits for an answer is being closed.
pub(crate) fn closing(connection: &Connection) {
    if is_connecting(connection) && has_payload(connection) {
        // An unread answer would make the kernel reset the carrier, and payload that the remote has
        // not got yet would be lost.
        look(connection);
    }
    if is_connecting(connection) {
        // Waits for a thread in `look`, which uses the descriptor that is closed next.
        drop(takeover::lock_receiving(connection));
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Called before bytes move on a connection that waits for an answer or was refused. Waits if the
/// call may block, and returns the error with which the call must fail. True when it has slept.
#[cold]
pub(crate) fn before_transfer(connection: &Connection, flags: i32) -> Result<bool, i32> {
    let waits = flags & libc::MSG_DONTWAIT == 0 && !sys::is_nonblocking(connection.number());
    let mut has_slept = false;
    loop {
        match look(connection) {
            Answer::Settled => return Ok(has_slept),
            Answer::Refused => {
                let error = pending_errors::take(connection);
                return error.map_or(Ok(has_slept), Err);
            }
            Answer::Pending if !waits => return Err(libc::EAGAIN),
            Answer::Pending => sleep(connection.number())?,
        }
        has_slept = true;
    }
}

/// `SO_ERROR` of a connection that waits for an answer or was refused; `None` when the kernel must
/// answer.
pub(crate) fn error_option(connection: &Connection) -> Option<i32> {
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    if flags & (FLAG_CONNECTING | FLAG_REFUSED) == 0 {
        return None;
    }
    match look(connection) {
        Answer::Pending => Some(0),
        Answer::Settled => None,
        Answer::Refused => {
            let error = pending_errors::take(connection);
            // Clears the kernel's own error, which is that the carrier was reset.
            let _ = sys::getsockopt::<i32>(connection.number(), libc::SOL_SOCKET, libc::SO_ERROR);
            Some(error.unwrap_or(0))
        }
    }
}

/// Sleeps until something comes on the carrier.
pub(super) fn sleep(fd: i32) -> Result<(), i32> {
    let limit = sleep::timeout_ns(fd, libc::SO_SNDTIMEO);
    if limit == 0 && sleep::timeout_ns(fd, libc::SO_RCVTIMEO) == 0 {
        // A `recv` of libc, so that signals restart it exactly as they would restart a `connect`.
        set_inline(fd, true);
        let mut byte = 0u8;
        let result = cancellation::sleeping(
            || set_inline(fd, false),
            // SAFETY: one writable byte.
            || unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) },
        );
        let error = errno::get();
        set_inline(fd, false);
        return match error {
            // Another thread has closed the number.
            libc::EINTR | libc::EBADF if result < 0 => Err(error),
            _ => Ok(()),
        };
    }
    let call = sleep::Call::new(libc::SO_SNDTIMEO);
    match sleep::sleep_in_call(fd, libc::POLLPRI, limit, call)? {
        Some(seen) if seen & libc::POLLNVAL != 0 => Err(libc::EBADF),
        Some(_) => Ok(()),
        // A signal that restarts the call.
        None if limit == 0 => Ok(()),
        None => Err(libc::EINPROGRESS),
    }
}

fn set_inline(fd: i32, on: bool) {
    sys::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, on.into());
}

/// The kernel's own `connect`; 0 or a negated errno.
pub(super) fn kernel_connect(fd: i32, to: Address) -> isize {
    let (storage, len) = addresses::sockaddr_for(fd, to);
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
