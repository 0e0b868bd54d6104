//! Sending: to the carrier until the direction moves up, then to the ring; doorbells; and the way
//! back down.

use core::sync::atomic::{Ordering, fence};

use libc::iovec;
use toehold_channel::doorbell::{self, WakeWord};
use toehold_channel::layout::{EVICT, LEFT, REFUSE};
use toehold_channel::ring::Fault;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_EVICT, COMMAND_PEER_GONE, FLAG_CONNECTING, FLAG_OFFLOAD, FLAG_PINNED,
    FLAG_REFUSED, FLAG_SHUT_RX, FLAG_SHUT_TX, Mode, Reason,
};
use toehold_copy::prefetch;
use toehold_stream::credit;
use toehold_stream::end::{End, Incoming};

use crate::arming::{arm, disarm};
use crate::connection::{self, Connection, HINT_EOF, HINT_LOOK};
use crate::epoll::{membership, news};
use crate::offload::liveness::say_what_is_set;
use crate::offload::{awaiting, endings};
use crate::resets::fault_of_peer;
use crate::sleep::{Patience, sleep_for_news, sleep_until, timed_out, timeout_ns};
use crate::{
    buffers, deferral, doorbells, errno, leaving, lock, offers, options, overflow, pairing,
    pending, real, sleepers, sys, wait, waits,
};

/// A message of this size that meets the end of a small ring goes on at once on the carrier, so
/// that another thread's does not come between its parts: to the kernel it would have been one.
const WHOLE_BYTES: usize = 4096;
/// Bytes copied before the reader is shown them: it starts on the first while we copy the next.
pub(crate) const CHUNK_BYTES: usize = 32 << 10;

/// Sends `parts`; `kernel` is the program's own call, made when the connection is on the host path.
///
/// # Safety
/// `parts` are readable.
#[inline]
pub(crate) unsafe fn transmit(
    connection: &Connection,
    parts: &[iovec],
    flags: i32,
    kernel: impl FnOnce() -> isize,
) -> isize {
    let state = connection.entry.flags.load(Ordering::Relaxed);
    if state & (FLAG_CONNECTING | FLAG_REFUSED) != 0 {
        if let Err(error) = awaiting::before_transfer(connection, flags) {
            return errno::result(Err(error));
        }
    }
    if state & FLAG_OFFLOAD != 0
        && connection.entry.tx_mode.load(Ordering::Relaxed) == Mode::Carrier as u32
    {
        if let Some(error) = errno::keep(|| endings::silence(connection)) {
            return errno::result(Err(error));
        }
    }
    match begin_host_send(connection) {
        Some(()) => {
            let result = kernel();
            waits::after_call(connection.local, result);
            finish_host_send(connection, result);
            if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
                stay_on_carrier(connection, flags);
            }
            endings::correct(connection, result, endings::send_error)
        }
        None => {
            // SAFETY: the caller's promise.
            let result = unsafe { transmit_attached(connection, parts, flags) };
            if connection.entry.tx_mode.load(Ordering::Relaxed) == Mode::Carrier as u32 {
                errno::keep(|| leaving::finish(connection));
            }
            if result == Err(errno::LEFT_CHANNEL) {
                // SAFETY: the caller's promise.
                return unsafe { transmit(connection, parts, flags, kernel) };
            }
            errno::result(result.map_err(|error| endings::send_error(connection, error)))
        }
    }
}

/// Rings cannot express what `flags` ask for; nor can the engine mark urgent data, which is told.
#[cold]
fn stay_on_carrier(connection: &Connection, flags: i32) {
    let state = connection.entry.flags.load(Ordering::Relaxed);
    let is_unmarked = flags & libc::MSG_OOB != 0 && state & FLAG_OFFLOAD != 0;
    connection.pin(match is_unmarked {
        true => Reason::Unmarked,
        false => Reason::Unsupported,
    });
}

/// Enters a kernel send on the host path; `None` when the connection has a channel and must be used
/// through it.
#[inline]
pub(crate) fn begin_host_send(connection: &Connection) -> Option<()> {
    let (entry, local) = (connection.entry, connection.local);
    if !local.region.load(Ordering::Relaxed).is_null() {
        return None;
    }
    say_what_is_set();
    if offers::offer_waits(connection) || !local.offered.load(Ordering::Relaxed).is_null() {
        errno::keep(|| pairing::consider(connection));
    }
    // SeqCst pairs with the store of `region` in `pairing::attach`.
    entry.tx_in_flight.fetch_add(1, Ordering::SeqCst);
    if local.region.load(Ordering::SeqCst).is_null() {
        return Some(());
    }
    entry.tx_in_flight.fetch_sub(1, Ordering::SeqCst);
    None
}

/// Leaves a kernel send that [`begin_host_send`] entered.
#[inline]
pub(crate) fn finish_host_send(connection: &Connection, result: isize) {
    let entry = connection.entry;
    if result > 0 {
        entry.tx_carrier.fetch_add(result as u64, Ordering::Relaxed);
    }
    entry.tx_in_flight.fetch_sub(1, Ordering::SeqCst);
    if result > 0 {
        errno::keep(|| pairing::after_host_call(connection, result as u64));
    }
}

/// What one turn under the send lock came to.
pub(crate) enum Turn {
    /// Bytes moved.
    Sent(usize),
    /// The ring is full.
    NoCredit,
    /// The kernel's buffer is full.
    KernelFull,
    /// There are no more bytes to send.
    Dry,
}

unsafe fn transmit_attached(
    connection: &Connection,
    parts: &[iovec],
    flags: i32,
) -> Result<usize, i32> {
    let total = buffers::total(parts).ok_or(libc::EINVAL)?;
    let waits = flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking();
    carry(connection, total, waits, |end, done| {
        // SAFETY: the caller's promise.
        unsafe { turn(connection, end, parts, done, total - done, flags) }
    })
}

/// Sends `total` bytes by `turn`, which gets the number of bytes sent so far and is called under
/// the send lock. A call that `waits` sleeps between two turns, without the lock; any other
/// returns.
///
/// # Errors
/// An errno, or [`errno::LEFT_CHANNEL`]. After the first byte an error is kept for the next call.
#[inline]
pub(crate) fn carry(
    connection: &Connection,
    total: usize,
    waits: bool,
    mut turn: impl FnMut(&End<'_>, usize) -> Result<Turn, i32>,
) -> Result<usize, i32> {
    let entry = connection.entry;
    let mut patience = Patience::default();
    let mut done = 0;
    loop {
        let end;
        let turn = {
            let Some(_held) = lock::lock(&entry.tx_lock) else {
                return errno::unless_moved(done, libc::EAGAIN);
            };
            if !connection.is_current() {
                return errno::unless_moved(done, libc::EBADF);
            }
            let Some(attached) = connection.end() else {
                return errno::unless_moved(done, errno::LEFT_CHANNEL);
            };
            end = attached;
            turn(&end, done)
        };
        match turn {
            Ok(Turn::Dry) => return Ok(done),
            Ok(Turn::Sent(moved)) => {
                done += moved;
                if done >= total {
                    return Ok(done);
                }
                continue;
            }
            Err(error) if done > 0 => {
                pending::keep_for_next_call(connection, error);
                return Ok(done);
            }
            Err(error) => return Err(error),
            Ok(Turn::NoCredit) => {
                let Some(inside) = connection.inside() else {
                    continue;
                };
                if !waits {
                    // Before the request, not after: news of credit that arrives in between must
                    // count as an edge.
                    news::writing_blocked(connection);
                    match want_credit(connection, &inside) {
                        Credit::Here | Credit::WentDown => continue,
                        Credit::WillRing => {
                            return if done > 0 {
                                Ok(done)
                            } else {
                                Err(libc::EAGAIN)
                            };
                        }
                    }
                }
                match wait_for_credit(connection, &inside, &mut patience) {
                    Ok(()) => {}
                    Err(_) if done > 0 => return Ok(done),
                    Err(error) => return Err(error),
                }
            }
            Ok(Turn::KernelFull) => {
                doorbells::tidy(connection, &end);
                if !waits {
                    news::writing_blocked(connection);
                    news::watch_kernel_writable(connection);
                    return if done > 0 {
                        Ok(done)
                    } else {
                        Err(libc::EAGAIN)
                    };
                }
                match wait_for_kernel(connection.fd, &mut patience) {
                    Ok(()) => {}
                    Err(_) if done > 0 => return Ok(done),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Sends what can be sent now. The caller holds the send lock.
unsafe fn turn(
    connection: &Connection,
    end: &End<'_>,
    parts: &[iovec],
    skip: usize,
    want: usize,
    flags: i32,
) -> Result<Turn, i32> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        stay_on_carrier(connection, flags);
    }
    begin_turn(connection, end, skip)?;
    if end.tx_mode() != Mode::Ring {
        // SAFETY: the caller's promise.
        return unsafe { to_carrier(connection, end, parts, skip, want, flags) };
    }
    let sender = end.sender();
    fetch_lines(connection, end, want);
    let mut sent = 0;
    while sent < want {
        let left = (want - sent).min(CHUNK_BYTES);
        let credit = sender
            .credit(left as u64)
            .map_err(|fault| fault_of_peer(connection, fault))?;
        let len = left.min(credit as usize);
        if len == 0 {
            break;
        }
        let stretches = sender.reserve(len);
        // SAFETY: `len` is within the credit, so the stretches are ours to write; `parts` by the
        // caller's promise.
        unsafe { buffers::gather(end.ring_out(), stretches, parts, skip + sent) };
        sent += len;
        if sent < want && credit as usize > len {
            sender.publish_part(len);
            // A reader that sleeps should start now, not after the last chunk.
            if sent == len {
                fence(Ordering::SeqCst);
                notify(connection, end)?;
            }
        } else {
            sender.publish(len);
            notify(connection, end)?;
        }
    }
    if sent == 0 && want > 0 {
        return Ok(Turn::NoCredit);
    }
    if sent < want && want <= WHOLE_BYTES && overflow::overflow(connection, end) {
        // SAFETY: the caller's promise.
        match unsafe { to_carrier(connection, end, parts, skip + sent, want - sent, flags) } {
            Ok(Turn::Sent(more)) => sent += more,
            Ok(_) => {}
            Err(error) => pending::keep_for_next_call(connection, error),
        }
    }
    let entry = connection.entry;
    entry.tx_calls.store(
        entry.tx_calls.load(Ordering::Relaxed) + 1,
        Ordering::Relaxed,
    );
    Ok(Turn::Sent(sent))
}

/// What every turn begins with: the direction follows what is wanted of it, and an error that waits
/// is told. `done` is the number of bytes that the call has sent. The caller holds the send lock.
#[inline]
pub(crate) fn begin_turn(connection: &Connection, end: &End<'_>, done: usize) -> Result<(), i32> {
    attend(connection, end)?;
    if !pending::is_there(connection) {
        return Ok(());
    }
    // The kernel reports an error once, to whichever call comes first; one that already sent
    // something returns that instead.
    let error = if done == 0 {
        pending::take(connection)
    } else {
        None
    };
    Err(error.unwrap_or(libc::ECONNRESET))
}

/// The lines that a short message will write are in the reader's cache: asks for all of them at
/// once, before the first is needed.
#[inline]
fn fetch_lines(connection: &Connection, end: &End<'_>, want: usize) {
    /// Longer messages hide the transfers behind their copy.
    const SHORT_BYTES: usize = 512;
    if want > SHORT_BYTES {
        return;
    }
    prefetch::for_write(&raw const end.ours().publish.tail);
    let (offset, _) = end.sender().reserve(1)[0];
    prefetch::for_write(end.ring_out().wrapping_add(offset).cast_const());
    if let Ok(WakeWord::Bitmap { bitmap, bit }) =
        WakeWord::from_untrusted(end.theirs().wake.wake.load(Ordering::Relaxed))
    {
        let pair = connection.local.pair.load(Ordering::Relaxed);
        // SAFETY: as in `notify`.
        if let Some(bitmap) = unsafe { pair.as_ref() }.and_then(|pair| pair.theirs(bitmap)) {
            prefetch::for_write(&raw const bitmap.bits[bit as usize / 64]);
        }
    }
}

/// Sends on the carrier, without waiting.
unsafe fn to_carrier(
    connection: &Connection,
    end: &End<'_>,
    parts: &[iovec],
    skip: usize,
    want: usize,
    flags: i32,
) -> Result<Turn, i32> {
    doorbells::tidy(connection, end);
    let (mut window, count) = buffers::window(parts, skip, want);
    // SAFETY: zeroes are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = window.as_mut_ptr();
    message.msg_iovlen = count as _;
    // SAFETY: the window names parts of the program's buffers. SIGPIPE comes from the kernel,
    // unless the flags forbid it.
    let result = unsafe {
        sys::sendmsg(
            connection.fd,
            &message,
            flags & !libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT,
        )
    };
    if result >= 0 {
        connection
            .entry
            .tx_carrier
            .fetch_add(result as u64, Ordering::Relaxed);
        return Ok(Turn::Sent(result as usize));
    }
    match -result as i32 {
        libc::EAGAIN => Ok(Turn::KernelFull),
        error => Err(error),
    }
}

/// Does what the operator, the adapter, the peer or the state of the connection ask of our
/// direction: up, down, or nothing. The caller holds the send lock.
#[inline]
fn attend(connection: &Connection, end: &End<'_>) -> Result<(), i32> {
    let entry = connection.entry;
    let wake = &end.theirs().wake;
    if end.tx_mode() == Mode::Ring
        && !connection::commanded(entry)
        && wake.refuse.load(Ordering::Relaxed) == 0
        && wake.closed.load(Ordering::Relaxed) == 0
        && entry.flags.load(Ordering::Relaxed) & (FLAG_PINNED | FLAG_SHUT_TX) == 0
        && entry.rx_hints.load(Ordering::Relaxed) & HINT_EOF == 0
    {
        return Ok(());
    }
    attend_slowly(connection, end)
}

#[cold]
fn attend_slowly(connection: &Connection, end: &End<'_>) -> Result<(), i32> {
    let entry = connection.entry;
    let flags = entry.flags.load(Ordering::Relaxed);
    let command = entry.command.load(Ordering::Acquire);
    let pinned = flags & FLAG_PINNED != 0;
    match command {
        COMMAND_DETACH => entry
            .reason
            .store(Reason::Detached as u32, Ordering::Relaxed),
        COMMAND_EVICT => entry
            .reason
            .store(Reason::NoResources as u32, Ordering::Relaxed),
        COMMAND_PEER_GONE => entry
            .reason
            .store(Reason::PeerGone as u32, Ordering::Relaxed),
        _ => {}
    }
    // Its registrations can only be answered by the kernel.
    let held_down = end.tx_mode() != Mode::Ring && membership::holds_down(connection);
    // Whoever wants its own direction down wants the other down, too.
    let left = end.ours().wake.attached.load(Ordering::Relaxed) == LEFT;
    let refuse = if left || command == COMMAND_EVICT {
        EVICT
    } else if pinned || command == COMMAND_DETACH || held_down {
        REFUSE
    } else {
        0
    };
    if end.ours().wake.refuse.load(Ordering::Relaxed) != refuse {
        end.ours().wake.refuse.store(refuse, Ordering::Release);
    }
    let stay_down = pinned
        || command != 0
        || held_down
        || flags & (FLAG_SHUT_TX | FLAG_SHUT_RX) != 0
        || entry.rx_hints.load(Ordering::Relaxed) & HINT_EOF != 0
        || end.theirs().wake.closed.load(Ordering::Acquire) != 0
        || end.theirs().wake.refuse.load(Ordering::Acquire) != 0
        || left;
    if end.tx_mode() == Mode::Ring {
        if stay_down {
            let lost = end.theirs().wake.abandoned.load(Ordering::Acquire) != 0
                && end.theirs().consume.head.load(Ordering::Acquire)
                    != entry.tx_ring.load(Ordering::Relaxed);
            if lost {
                return Err(fault_of_peer(connection, Fault::Record));
            }
            let told = matches!(command, COMMAND_DETACH | COMMAND_EVICT);
            if told && end.theirs().wake.abandoned.load(Ordering::Acquire) == 0 {
                // Both directions are to come down: a peer that sleeps should hear of it.
                ring_if_open(connection, end);
            }
            go_down(connection, end);
        }
        return Ok(());
    }
    if stay_down {
        if end.records_pending() || end.rx_mode() != Mode::Carrier {
            // The peer went up before it saw that we refuse: the kernel knows nothing of what it
            // sends.
            membership::virtualise(connection);
        }
        return Ok(());
    }
    membership::virtualise(connection);
    if end
        .try_up()
        .map_err(|fault| fault_of_peer(connection, fault))?
    {
        entry.reason.store(Reason::None as u32, Ordering::Relaxed);
    }
    Ok(())
}

/// Moves our direction back to the carrier. The caller holds the send lock.
pub(crate) fn go_down(connection: &Connection, end: &End<'_>) {
    if end.tx_mode() != Mode::Ring {
        return;
    }
    // A dead peer sleeps no more, and its kernel would answer a doorbell with a reset that drops
    // what it has not delivered yet.
    let peer_is_gone = connection.entry.command.load(Ordering::Relaxed) == COMMAND_PEER_GONE;
    end.go_down(|peer_sleeps| {
        if peer_sleeps && !peer_is_gone {
            ring_if_open(connection, end);
        }
    });
    stop_wanting(connection, end);
    if connection.local.registrations.load(Ordering::Relaxed) != 0 {
        // Whoever waits for room in an epoll instance hears of it from the kernel now.
        news::watch_kernel_writable(connection);
    }
}

/// The program wants something of its socket that rings cannot express: both directions are brought
/// down, now or at the peer's next send, and stay there. What is unread in the ring stays readable.
pub(crate) fn retire(connection: &Connection, reason: Reason) {
    connection.pin(reason);
    service(connection);
}

/// The descriptor is about to serve somebody who knows nothing of rings (another program, a kernel
/// feature): brings both directions to where the kernel alone is right, and keeps them there. Our
/// own goes down at once. The peer is asked to bring its down before it sends again; what it
/// published before that is waited for, and must be read by us: if the program leaves bytes unread,
/// they cannot follow the descriptor, and the connection is reset rather than continued with a gap.
pub(crate) fn quiesce(connection: &Connection, reason: Reason) {
    /// A peer that was in the middle of a send when it was asked finishes it within this time,
    /// unless it is kept from running.
    const SETTLE_NS: u64 = 2_000_000;
    let Some(end) = connection.inside() else {
        return connection.pin(reason);
    };
    if !leave_ring(connection, reason) {
        return;
    }
    membership::materialise(connection);
    options::restore_low_water(connection);
    connection.entry.home_wake.store(0, Ordering::Relaxed);
    sleepers::set_wake(&end, WakeWord::None);
    let start = sys::now_ns();
    let mut unread = true;
    while sys::now_ns() - start < SETTLE_NS || unread {
        {
            let Some(_held) = lock::lock(&connection.entry.rx_lock) else {
                // Nobody can tell what is unread: as if something were.
                unread = true;
                break;
            };
            doorbells::discard(connection, &end);
            unread = match end.incoming() {
                Ok(Incoming::Ring(filled)) => filled.len > 0,
                Ok(Incoming::Carrier { .. }) => return,
                Ok(Incoming::Skip { bytes }) => {
                    doorbells::skip(connection, bytes);
                    false
                }
                Err(_) => false,
            };
        }
        if sys::now_ns() - start >= 2 * SETTLE_NS {
            break;
        }
        sys::yield_now();
    }
    end.ours().wake.abandoned.store(1, Ordering::SeqCst);
    if unread {
        // With what has come on the carrier since: it is behind what is lost.
        sys::disconnect(connection.fd);
    }
}

/// Another program gets the descriptor, too, and this one goes on with it: both directions become
/// the kernel's for good, so that what either writes is in the stream. What lies unread in the ring
/// stays for this program.
pub(crate) fn lend(connection: &Connection) {
    if leave_ring(connection, Reason::Passed) {
        if let Some(end) = connection.inside() {
            doorbells::tidy(connection, &end);
        }
    }
}

/// Brings our direction down for good, and asks the peer to bring its own down before it sends
/// again. False when there is no channel, or when the send lock cannot be had. The caller goes on
/// to use the carrier in any case. With our direction still in the ring, the peer would take those
/// bytes for doorbells; so the connection is reset then.
pub(crate) fn leave_ring(connection: &Connection, reason: Reason) -> bool {
    connection.pin(reason);
    let Some(_held) = lock::lock(&connection.entry.tx_lock) else {
        if connection
            .inside()
            .is_some_and(|end| end.tx_mode() != Mode::Carrier)
        {
            sys::disconnect(connection.fd);
        }
        return false;
    };
    let Some(end) = connection.end() else {
        return false;
    };
    end.ours().wake.refuse.store(1, Ordering::SeqCst);
    go_down(connection, &end);
    true
}

/// Lets our direction follow commands and the peer when the program itself is not sending.
pub(crate) fn service(connection: &Connection) {
    let Some(end) = connection.inside() else {
        return;
    };
    {
        let Some(_held) = lock::try_lock(&connection.entry.tx_lock) else {
            return;
        };
        let _ = attend(connection, &end);
    }
    leaving::declare(connection, &end);
    if end.tx_mode() == Mode::Carrier
        && end.rx_mode() == Mode::Carrier
        && !end.records_pending()
        && options::low_water(connection) == 1
        && end.ours().wake.refuse.load(Ordering::Relaxed) != 0
    {
        membership::hand_back(connection, &end);
    }
}

/// Makes the peer notice what was just published. The caller holds the send lock and has passed a
/// full barrier.
#[inline]
pub(crate) fn notify(connection: &Connection, end: &End<'_>) -> Result<(), i32> {
    let entry = connection.entry;
    let pair = connection.local.pair.load(Ordering::Relaxed);
    // SAFETY: a connection's pair stays mapped until its release, which takes the send lock first.
    let pair = unsafe { pair.as_ref() };
    let rung = doorbell::must_ring(&end.theirs().wake, |bitmap| {
        pair.and_then(|pair| pair.theirs(bitmap))
    })
    .map_err(|fault| fault_of_peer(connection, fault))?;
    if rung {
        ring(connection);
    } else {
        let suppressed = entry.doorbells_suppressed.load(Ordering::Relaxed);
        entry
            .doorbells_suppressed
            .store(suppressed.wrapping_add(1), Ordering::Relaxed);
    }
    Ok(())
}

/// As [`ring`], unless the peer's direction has ended, or the carrier has. Such a peer waits for no
/// credit and has nothing to bring down, and if it has closed, the doorbell would provoke the
/// reset, or be told the error, that is for what the program sends next.
#[cold]
fn ring_if_open(connection: &Connection, end: &End<'_>) {
    let ended = libc::POLLRDHUP | libc::POLLERR | libc::POLLHUP;
    let closed = end.theirs().wake.closed.load(Ordering::Acquire) != 0;
    if !closed && sys::poll_now(connection.fd, libc::POLLRDHUP) & ended == 0 {
        ring(connection);
    }
}

/// One byte on the carrier. The caller holds the send lock, the direction is in ring mode.
#[cold]
fn ring(connection: &Connection) {
    let entry = connection.entry;
    let result = sys::send_now(connection.fd, &[0]);
    if result == 1 {
        entry.tx_carrier.fetch_add(1, Ordering::Relaxed);
        entry.doorbells.fetch_add(1, Ordering::Relaxed);
    } else if result == -(libc::EPIPE as isize) {
        // The connection is broken, and its error was reported: what is left to read, and its end,
        // is up to the next receive.
        entry.rx_hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
    } else if result != -(libc::EAGAIN as isize) {
        pending::keep(connection, -result as i32);
    }
    // EAGAIN: the carrier is full, so the peer has something to read already.
}

/// The receive path gave credit to a sender that may sleep.
#[cold]
pub(crate) fn notify_of_credit(connection: &Connection, end: &End<'_>) {
    let Some(_held) = lock::lock(&connection.entry.tx_lock) else {
        // A doorbell outside the lock could come between another's data. The peer's request stays,
        // and the next receive that crosses its mark looks again.
        return;
    };
    if end.tx_mode() != Mode::Ring {
        let _ = attend(connection, end);
    }
    if end.tx_mode() == Mode::Ring {
        let _ = notify(connection, end);
    }
}

/// The connection is being closed: a peer that is awake should look. The caller holds the send
/// lock.
pub(crate) fn notify_of_end(connection: &Connection, end: &End<'_>) {
    fence(Ordering::SeqCst);
    if end.tx_mode() == Mode::Ring {
        let pair = connection.local.pair.load(Ordering::Relaxed);
        // A sleeping peer is woken by the carrier's own end; one that is awake by its ready bitmap.
        // SAFETY: as in `notify`.
        let pair = unsafe { pair.as_ref() };
        let _ = doorbell::must_ring(&end.theirs().wake, |bitmap| {
            pair.and_then(|pair| pair.theirs(bitmap))
        });
    }
}

/// How a sender without credit may go on.
pub(crate) enum Credit {
    /// There is credit after all.
    Here,
    /// None, and the peer will ring when there is.
    WillRing,
    /// The peer could not have rung: the direction is back on the carrier.
    WentDown,
}

/// Asks the peer to ring for credit, if it can.
pub(crate) fn want_credit(connection: &Connection, end: &End<'_>) -> Credit {
    advance_incoming(connection, end);
    let Some(_held) = lock::lock(&connection.entry.tx_lock) else {
        // Nobody was asked to ring, so nobody may sleep for it. The next send says EAGAIN.
        return Credit::WentDown;
    };
    if end.tx_mode() != Mode::Ring || overflow::overflow(connection, end) {
        return Credit::WentDown;
    }
    let asked = end.ask_for_credit(|| Ok(end.sender().credit_fresh()? == 0));
    let ended = connection.entry.rx_hints.load(Ordering::Relaxed) & (HINT_EOF | HINT_LOOK) != 0;
    match asked {
        Ok(credit::Credit::Here) => {
            stop_wanting(connection, end);
            Credit::Here
        }
        Ok(credit::Credit::WillRing) if !ended && !end.both_wait() => {
            ask_for_doorbell(connection, end)
        }
        Ok(_) => {
            go_down(connection, end);
            Credit::WentDown
        }
        Err(fault) => {
            fault_of_peer(connection, fault);
            Credit::WentDown
        }
    }
}

/// How the program will wait for the credit is unknown when it neither sleeps nor has the
/// connection on a ready bitmap: ask for a doorbell.
fn ask_for_doorbell(connection: &Connection, end: &End<'_>) -> Credit {
    let entry = connection.entry;
    {
        let held = lock::lock(&entry.wake_lock);
        if held.is_none() {
            sleepers::wake_by_carrier(connection, end);
        }
        if connection.local.sleepers.load(Ordering::SeqCst) != 0
            || sleepers::home(connection) != WakeWord::None.to_word()
        {
            return Credit::WillRing;
        }
        sleepers::set_wake(end, WakeWord::Bell);
    }
    fence(Ordering::SeqCst);
    if end.sender().credit_fresh() == Ok(0) {
        Credit::WillRing
    } else {
        Credit::Here
    }
}

/// Takes the request for credit back, unless somebody else may still rely on it. A stale one costs
/// the peer one look for each half ring, and its doorbells meet a sender that is back on the
/// carrier: should that be killed, they would make its kernel send a reset and drop what it has not
/// delivered yet, where without us it would have delivered all and ended in order. The caller holds
/// the send lock, under which requests are made.
fn stop_wanting(connection: &Connection, end: &End<'_>) {
    let local = connection.local;
    // A thread that has just armed and is not counted as a reader yet makes us leave the request as
    // it is, which is always right.
    let readers = local.readers.load(Ordering::SeqCst);
    if local.sleepers.load(Ordering::SeqCst) <= readers
        && (local.registrations.load(Ordering::Relaxed) == 0 || end.tx_mode() != Mode::Ring)
        && !connection.is_shared()
    {
        end.stop_asking();
    }
}

/// Carries out switches of the peer that need nothing more to be read.
pub(crate) fn advance_incoming(connection: &Connection, end: &End<'_>) {
    if end.records_pending() {
        // Without the lock they wait for the next receive.
        if let Some(_held) = lock::lock(&connection.entry.rx_lock) {
            if let Ok(Incoming::Ring(_)) = end.incoming() {}
        }
    }
}

/// Blocks until there may be credit, or the direction went down.
fn wait_for_credit(
    connection: &Connection,
    end: &End<'_>,
    patience: &mut Patience,
) -> Result<(), i32> {
    let limit_ns = patience.left_ns(connection.fd, libc::SO_SNDTIMEO)?;
    let (entry, local) = (connection.entry, connection.local);
    let handlers = deferral::handlers();
    let budget = wait::budget_ns(&local.spin);
    let processor = end.theirs().wake.processor.load(Ordering::Relaxed);
    end.ours()
        .wake
        .processor
        .store(sys::processor() + 1, Ordering::Relaxed);
    let since = sys::now_ns();
    loop {
        let slice = if budget == u64::MAX {
            wait::KERNEL_LOOK_NS
        } else {
            budget
        };
        if wait::spin(&local.spin, slice, processor, || full_no_more(end)) {
            local.spin.paid();
            entry.spins_paid.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if handlers.end_a_transfer() {
            return Err(libc::EINTR);
        }
        if budget != u64::MAX || sys::poll_now(connection.fd, libc::POLLRDHUP) != 0 {
            break;
        }
        if timed_out(connection.fd, libc::SO_SNDTIMEO, since) {
            return Err(libc::EAGAIN);
        }
    }
    if lock::lock(&entry.tx_lock).is_some_and(|_held| overflow::overflow(connection, end)) {
        doorbells::tidy(connection, end);
        return Ok(());
    }
    arm(connection, end);
    let asked = want_credit(connection, end);
    let sleeps = matches!(asked, Credit::WillRing) && !full_no_more(end);
    let (mut result, mut error) = (1, 0);
    if sleeps {
        result = sleep_for_doorbell(connection.fd, limit_ns);
        error = if result < 0 { errno::get() } else { 0 };
        entry.wakeups.fetch_add(1, Ordering::Relaxed);
    }
    disarm(connection, end);
    // Without the lock a stale request stays, which costs the peer a look.
    if let Some(_held) = lock::lock(&entry.tx_lock) {
        stop_wanting(connection, end);
    }
    if !sleeps {
        doorbells::tidy(connection, end);
        return Ok(());
    }
    local.spin.slept(sys::now_ns() - since);
    if result == 0 {
        // The carrier ended: nobody can ring us, the kernel takes over.
        entry.rx_hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
        go_down_locked(connection, end);
        return Ok(());
    }
    if result < 0 {
        if error == libc::EINTR || error == libc::EAGAIN {
            return Err(error);
        }
        pending::keep(connection, error);
        go_down_locked(connection, end);
        return Ok(());
    }
    doorbells::take_seen(connection, end, result as usize);
    Ok(())
}

/// As [`go_down`], for callers without the send lock. Where the lock cannot be had the direction
/// stays as it is: the next send meets the same lock, and says so.
fn go_down_locked(connection: &Connection, end: &End<'_>) {
    if let Some(_held) = lock::lock(&connection.entry.tx_lock) {
        go_down(connection, end);
    }
}

/// True when the ring is known not to be full by our own cursors' account of the peer's word.
fn full_no_more(end: &End<'_>) -> bool {
    end.sender().looks_writable()
}

/// Sleeps until bytes are on the carrier (their number), it ended (0), or something went wrong (-1
/// and errno), within `SO_SNDTIMEO`.
fn sleep_for_doorbell(fd: i32, limit_ns: u64) -> isize {
    if limit_ns == 0 && timeout_ns(fd, libc::SO_RCVTIMEO) == 0 {
        let mut bells = [0u8; 64];
        // SAFETY: `bells` is writable. A real `recv`, so that signals restart it exactly when they
        // would restart a send.
        return unsafe { real::recv(fd, bells.as_mut_ptr().cast(), bells.len(), libc::MSG_PEEK) };
    }
    sleep_for_news(fd, limit_ns)
}

/// Sleeps until the kernel takes more, within `SO_SNDTIMEO`.
fn wait_for_kernel(fd: i32, patience: &mut Patience) -> Result<(), i32> {
    let limit_ns = patience.left_ns(fd, libc::SO_SNDTIMEO)?;
    let seen = sleep_until(fd, libc::POLLOUT, limit_ns)?;
    seen.map(drop).ok_or(libc::EAGAIN)
}

/// The program shuts its sending side: everything published stays readable, the carrier carries the
/// end.
pub(crate) fn shutting(connection: &Connection, how: i32) {
    let entry = connection.entry;
    let mut flags = 0;
    if how != libc::SHUT_RD {
        flags |= FLAG_SHUT_TX;
    }
    if how != libc::SHUT_WR {
        flags |= FLAG_SHUT_RX;
    }
    if let Some(end) = connection.inside() {
        let held = lock::lock(&entry.tx_lock);
        entry.flags.fetch_or(flags, Ordering::Relaxed);
        if flags & FLAG_SHUT_TX != 0 {
            // Back to the carrier first, so that a second send meets the kernel's EPIPE. Without
            // the lock that send brings the direction down itself, by the flag. Both words only
            // gain bits, so they may be written without it.
            if held.is_some() {
                go_down(connection, &end);
            }
            end.ours()
                .wake
                .closed
                .fetch_or(toehold_channel::layout::CLOSED_TX, Ordering::Release);
        }
    } else {
        entry.flags.fetch_or(flags, Ordering::Relaxed);
    }
    if how == libc::SHUT_RD {
        // What comes after all is the kernel's to show.
        retire(connection, Reason::Closing);
    }
    options::before_shutdown(connection);
}
