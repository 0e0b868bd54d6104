//! The readiness of a connection, for `poll`, `select` and `epoll`.

use core::sync::atomic::Ordering;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP};
use toehold_channel::table::{FLAG_SHUT_RX, FLAG_SHUT_TX, Mode};
use toehold_stream::end::{End, Incoming};

use crate::connection::carrier::Carrier;
use crate::connection::resets::was_closed_cleanly;
use crate::connection::{Connection, HINT_LOOK, HINT_URGENT};
use crate::connection::{pending_errors, settings, unix};
use crate::direction::{Credit, want_credit};
use crate::direction::{doorbells, switching, takeover};
use crate::express::turns;
use crate::system::sys;
use crate::transfer::peek;

/// The `POLL*` bits that hold now, of those in `interest` (errors and hang-up always). If `POLLOUT`
/// is asked for and there is no credit, the peer is asked to ring for credit.
#[inline(always)]
pub(crate) fn events(connection: &Connection, end: &End<'_>, interest: i16) -> i16 {
    let entry = connection.entry;
    let mut ready = 0;
    let plain = end.rx_mode() == Mode::Ring
        && !end.records_pending()
        && entry.rx_hints.load(Ordering::Relaxed) == 0
        && entry.rx_low_water.load(Ordering::Relaxed) <= 1
        && entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX == 0
        && end.is_welcome();
    if plain {
        if end.receiver().looks_filled() {
            ready |= POLLIN;
        }
    } else {
        ready |= slow_incoming(connection, end);
    }
    if interest & POLLOUT != 0 {
        ready |= outgoing(connection, end);
    }
    let hints = entry.rx_hints.load(Ordering::Relaxed);
    if interest & POLLPRI != 0 && hints & (HINT_LOOK | HINT_URGENT) != 0 {
        ready |= sys::poll_now(connection.number(), POLLPRI) & POLLPRI;
    }
    ready & (interest | POLLERR | POLLHUP)
}

/// Other names of `POLLIN` and `POLLOUT` (include/uapi/asm-generic/poll.h, `tcp_poll`). The last is
/// reported for Unix sockets only (`unix_poll`).
pub(crate) const POLLRDNORM: i16 = 0x040;
const POLLWRNORM: i16 = 0x100;
const POLLWRBAND: i16 = 0x200;
const OTHER_NAMES: i16 = POLLRDNORM | POLLWRNORM | POLLWRBAND;

/// `interest` with alternative names replaced by `POLLIN` and `POLLOUT`.
pub(crate) fn alias(interest: i16) -> i16 {
    let mut more = 0;
    if interest & POLLRDNORM != 0 {
        more |= POLLIN;
    }
    if interest & (POLLWRNORM | POLLWRBAND) != 0 {
        more |= POLLOUT;
    }
    more
}

/// As [`events`], but reports the names that `interest` uses.
#[inline(always)]
pub(crate) fn named_events(connection: &Connection, end: &End<'_>, interest: i16) -> i16 {
    match interest & OTHER_NAMES {
        0 => events(connection, end, interest),
        _ => other_names(connection, end, interest),
    }
}

#[cold]
fn other_names(connection: &Connection, end: &End<'_>, interest: i16) -> i16 {
    let mut ready = events(connection, end, interest | alias(interest));
    if ready & POLLIN != 0 {
        ready |= POLLRDNORM;
    }
    if ready & POLLOUT != 0 {
        ready |= POLLWRNORM;
        if Carrier::of(connection) == Carrier::Unix {
            ready |= POLLWRBAND;
        }
    }
    ready & (interest | POLLERR | POLLHUP)
}

fn outgoing(connection: &Connection, end: &End<'_>) -> i16 {
    if end.tx_mode() == Mode::Ring {
        if end.sender().looks_writable() {
            return POLLOUT;
        }
        match want_credit(connection, end) {
            Credit::Here => return POLLOUT,
            Credit::WillRing => return 0,
            Credit::WentDown => {}
        }
    }
    sys::poll_now(connection.number(), POLLOUT) & POLLOUT
}

/// The receiving half of the answer, if the carrier's state matters for it.
#[cold]
fn slow_incoming(connection: &Connection, end: &End<'_>) -> i16 {
    let entry = connection.entry;
    let mut ready = 0;
    switching::resend_if_asked(connection, end);
    let Some(_held) = takeover::lock_receiving(connection) else {
        // Without the lock the answer is "ready": false readiness costs the program one call, but
        // missing readiness may cost it its wake-up.
        return POLLIN;
    };
    let hinted = entry.rx_hints.load(Ordering::Relaxed) & !HINT_URGENT != 0
        || entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX != 0
        || !end.theirs().wake.closed.load(Ordering::Relaxed).is(0);
    let (mut on_carrier, mut has_bytes) = (false, false);
    match doorbells::incoming_behind(connection, end) {
        Ok(Incoming::Ring(filled)) => has_bytes = filled.len > 0,
        Ok(Incoming::Carrier { .. }) => on_carrier = true,
        // The remaining doorbells are still under way.
        Ok(Incoming::Skip { .. }) => {}
        Err(_) => return POLLIN | POLLERR | POLLHUP,
    }
    let is_over = hinted && !on_carrier && turns::is_over(connection, end);
    // If the peer has ended the turn, the carrier reports nothing, unless the peer has closed the
    // carrier since.
    let is_told_by_turn = is_over && !end.has_closed_carrier();
    if on_carrier || hinted && !is_told_by_turn {
        let mut kernel = sys::poll_now(connection.number(), POLLIN | POLLRDHUP);
        if kernel & POLLERR != 0 && was_closed_cleanly(connection, end) {
            // After an end in order, a TCP socket is half open, unless the program has shut the
            // other half. A Unix socket is closed.
            kernel = match Carrier::of(connection) {
                Carrier::Tcp => POLLIN | POLLRDHUP | hang_up(connection),
                Carrier::Unix => kernel & !POLLERR,
            };
        }
        if on_carrier {
            has_bytes = kernel & POLLIN != 0;
        } else if kernel & POLLIN != 0 {
            doorbells::drain(connection, end);
        }
        if kernel & POLLRDHUP != 0 {
            ready |= POLLIN | POLLRDHUP;
        }
        ready |= kernel & (POLLHUP | POLLERR);
        if kernel & POLLRDHUP != 0 && unix::is_reset(connection, end) {
            ready |= POLLERR;
        }
        if kernel & (POLLHUP | POLLERR) != 0 {
            ready |= POLLIN;
        }
    }
    if ready & (POLLRDHUP | POLLHUP | POLLERR) != 0 && turns::is_unaccepted(connection, end) {
        // This is not the connection's end: the next receive brings the connection back to the
        // kernel.
        ready = POLLIN;
    }
    if is_over {
        ready |= POLLIN | POLLRDHUP | hang_up(connection);
        if is_told_by_turn && end.tx_mode() == Mode::Carrier {
            // If the program has sent since then, the answer was a reset.
            ready |= sys::poll_now(connection.number(), 0) & POLLHUP;
        }
    }
    // tcp_epollin_ready: as many as a receive would wait for.
    let wanted = match Carrier::of(connection).polls_low_water() {
        true => settings::low_water(connection),
        false => 1,
    };
    if has_bytes
        && (wanted == 1 || peek::count(connection, end).unwrap_or(u64::MAX) >= wanted as u64)
    {
        ready |= POLLIN;
    }
    if pending_errors::is_there(connection) {
        ready |= POLLIN | POLLERR;
    }
    ready
}

/// `POLLHUP` if the end of the receiving half is the end of both (tcp_poll: `SHUTDOWN_MASK`).
fn hang_up(connection: &Connection) -> i16 {
    match connection.entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_TX {
        0 => 0,
        _ => POLLHUP,
    }
}

/// The events that the kernel must watch on the carrier while the program sleeps for `interest`.
pub(crate) fn kernel_interest(connection: &Connection, end: &End<'_>, interest: i16) -> i16 {
    let mut kernel = interest & POLLPRI;
    let ended = connection.entry.rx_hints.load(Ordering::Relaxed) & HINT_LOOK != 0;
    if !ended {
        kernel |= POLLIN | POLLRDHUP;
    } else if end.rx_mode() == Mode::Carrier {
        kernel |= interest & (POLLIN | POLLRDHUP);
    }
    if end.tx_mode() != Mode::Ring {
        kernel |= interest & POLLOUT;
    }
    kernel
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use toehold_channel::layout::{CAPACITY_LOG2_MIN, Control as Words};
    use toehold_channel::table::Entry;
    use toehold_stream::express::Turn;

    use super::*;

    /// The events of an end, whose peer has ended the turn, and then the carrier.
    #[test]
    fn end_of_a_turn_is_reported_until_the_carrier_ends_and_after_that() {
        let (socket, peer) = UnixStream::pair().expect("a pair");
        let connection = Connection::of_a_test(socket.as_raw_fd());
        let words: &Words = Box::leak(Box::default());
        let mode = &connection.entry.rx_mode;
        mode.store(Mode::Ring as u32, Ordering::Relaxed);
        let end = End::new(connection.entry, words, core::ptr::null_mut(), 0);
        let entry_of_peer = Entry::default();
        let end_of_peer = End::new(&entry_of_peer, words, core::ptr::null_mut(), 1);
        end_of_peer.sender().set_capacity(CAPACITY_LOG2_MIN);
        let look = || events(&connection, &end, POLLIN | POLLRDHUP);
        assert_eq!(look(), 0);
        end_of_peer.end_turn(Turn::FIRST);
        assert_eq!(look(), POLLIN | POLLRDHUP);
        // The kernel does not know yet.
        end_of_peer.close(false);
        assert_eq!(look(), POLLIN | POLLRDHUP);
        drop(peer);
        assert_eq!(look(), POLLIN | POLLRDHUP | POLLHUP);
    }
}
