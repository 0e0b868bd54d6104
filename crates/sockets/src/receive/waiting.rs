//! Waiting for bytes: how a receive says that it sleeps, and sleeps.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WakeWord;
use toehold_channel::sync::fence;
use toehold_channel::table::{Mode, Reason};
use toehold_stream::end::{End, Incoming};

use crate::connection::Connection;
use crate::receive::HINT_LOOK;
use crate::{deferral, doorbells, epoll, errno, leaving, lock, pending, real, sleepers, sys, wait};

/// After this many fruitless non-blocking calls in a row the program is polling us: it needs no
/// doorbell.
const EMPTY_CALLS_POLLING: u32 = 8;
/// Doorbells a sleeper looks at, and takes off, in one go.
const BELLS_PEEKED: usize = 64;

/// A non-blocking call found nothing, and how the program will wait is unknown: ask for a doorbell.
/// True when something arrived meanwhile.
pub(super) fn arm_for_unknown_wait(connection: &Connection) -> bool {
    let entry = connection.entry;
    let empty = entry.rx_empty.load(Ordering::Relaxed).wrapping_add(1);
    entry.rx_empty.store(empty, Ordering::Relaxed);
    if sleepers::home(connection) != WakeWord::None.to_word() || empty > EMPTY_CALLS_POLLING {
        return false;
    }
    let Some(end) = connection.inside() else {
        // The next look says what became of it.
        return true;
    };
    let rung;
    {
        let held = lock::lock(&entry.wake_lock);
        if held.is_none() {
            wake_by_carrier(connection, &end);
        }
        rung = end.ours().wake.wake.load(Ordering::Relaxed) == WakeWord::None.to_word();
        set_wake(&end, WakeWord::Bell);
    }
    fence(Ordering::SeqCst);
    if rung {
        // The doorbell that was asked for before has come, for what this program has read by now.
        doorbells::tidy(connection, &end);
    }
    if !end.records_pending() {
        return end.rx_mode() == Mode::Ring && end.receiver().looks_filled();
    }
    // The peer may have moved to the ring between our look at the carrier and the doorbell. Bytes
    // still on their way on the carrier wake by themselves.
    let Some(_held) = lock::lock(&entry.rx_lock) else {
        // Nobody knows: the caller looks again, a bounded number of times.
        return true;
    };
    matches!(end.incoming(), Ok(Incoming::Ring(filled)) if filled.len > 0)
}

/// Tells the peer how this side wants to hear of news.
pub(crate) fn set_wake(end: &End<'_>, word: WakeWord) {
    end.ours().wake.wake.store(word.to_word(), Ordering::SeqCst);
}

/// The wake lock cannot be had, so the wake word may change behind the sleeper's back: whoever is
/// stuck with that lock may store what it has read long ago. From now on the kernel wakes. The peer
/// is asked to bring its direction to the carrier before it sends again, and ours follows. What the
/// callers store beside this is then of no consequence: every word is whole, the worst value of the
/// wake word is a doorbell too few from a peer that rings no more, and the other words count
/// sleepers by single atomic steps.
#[cold]
pub(crate) fn wake_by_carrier(connection: &Connection, end: &End<'_>) {
    connection.pin(Reason::Shared);
    // As in `send::leave_ring`.
    end.ours().wake.refuse.store(1, Ordering::SeqCst);
}

/// Registers a sleeper and asks the peer to ring. Every call is followed by [`disarm`].
pub(crate) fn arm(connection: &Connection, end: &End<'_>) {
    {
        let held = lock::lock(&connection.entry.wake_lock);
        if held.is_none() {
            wake_by_carrier(connection, end);
        }
        sleepers::enter(connection);
        set_wake(end, WakeWord::Bell);
    }
    // Pairs with the barrier in `Sender::publish` and `Receiver::consume`, see
    // `toehold_channel::doorbell`.
    fence(Ordering::SeqCst);
}

/// Takes back what [`arm`] did.
pub(crate) fn disarm(connection: &Connection, end: &End<'_>) {
    let entry = connection.entry;
    let rung = {
        let held = lock::lock(&entry.wake_lock);
        if held.is_none() {
            wake_by_carrier(connection, end);
        }
        // While others still sleep they keep the doorbell.
        let word = match sleepers::leave(connection) {
            true => sleepers::home(connection),
            false => WakeWord::Bell.to_word(),
        };
        end.ours().wake.wake.swap(word, Ordering::SeqCst) == WakeWord::None.to_word()
    };
    if rung {
        // The doorbell stood for news that an epoll instance would have found on its ready bitmap,
        // and we may have taken it off the carrier before the kernel showed it to that instance.
        epoll::nudge(connection);
    }
}

/// How long one call has waited: `SO_RCVTIMEO` and `SO_SNDTIMEO` are for all its waits together
/// (net/ipv4/tcp.c, `timeo`).
#[derive(Default)]
pub(crate) struct Patience {
    since_ns: u64,
}

impl Patience {
    /// The rest of the socket's time-out `option` in nanoseconds, 0 for none.
    ///
    /// # Errors
    /// `EAGAIN` when it has passed.
    pub(crate) fn left_ns(&mut self, fd: i32, option: i32) -> Result<u64, i32> {
        let limit = timeout_ns(fd, option);
        if limit == 0 {
            return Ok(0);
        }
        let now = sys::now_ns();
        if self.since_ns == 0 {
            self.since_ns = now;
        }
        match limit.saturating_sub(now - self.since_ns) {
            0 => Err(libc::EAGAIN),
            left => Ok(left),
        }
    }

    /// As [`Patience::left_ns`] from the second wait on; the kernel's own call keeps to the first.
    fn left_after_first(&mut self, fd: i32, option: i32) -> Result<u64, i32> {
        if self.since_ns == 0 {
            self.since_ns = sys::now_ns();
            return Ok(0);
        }
        self.left_ns(fd, option)
    }
}

/// Blocks until there may be something to receive beyond ring position `seen`.
pub(super) fn wait_for_bytes(
    connection: &Connection,
    end: &End<'_>,
    seen: u64,
    patience: &mut Patience,
) -> Result<(), i32> {
    let left_ns = patience.left_after_first(connection.fd, libc::SO_RCVTIMEO)?;
    let (entry, local) = (connection.entry, connection.local);
    let handlers = deferral::handlers();
    let news = || {
        (end.rx_mode() != Mode::Carrier
            && end.theirs().publish.tail.load(Ordering::Acquire) != seen)
            || end.records_pending()
            || end.theirs().wake.closed.load(Ordering::Relaxed) != 0
    };
    let mut peeked = false;
    if end.rx_mode() == Mode::Ring {
        let processor = end.theirs().wake.processor.load(Ordering::Relaxed);
        end.ours()
            .wake
            .processor
            .store(sys::processor() + 1, Ordering::Relaxed);
        let budget = wait::budget_ns(&local.spin);
        let mut polling_since = 0u64;
        loop {
            let slice = if budget == u64::MAX {
                wait::KERNEL_LOOK_NS
            } else {
                budget
            };
            if wait::spin(&local.spin, slice, processor, news) {
                local.spin.paid();
                entry.spins_paid.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            if handlers.end_a_transfer() {
                return Err(libc::EINTR);
            }
            if budget != u64::MAX {
                break;
            }
            // Poll mode: never sleep, but see the carrier's end, signals and time-outs.
            polling_since = if polling_since == 0 {
                sys::now_ns()
            } else {
                polling_since
            };
            let seen = sys::poll_now(connection.fd, libc::POLLIN | libc::POLLRDHUP);
            if seen != 0 {
                peeked = seen & !libc::POLLIN != 0;
                break;
            }
            if timed_out(connection.fd, libc::SO_RCVTIMEO, polling_since) {
                return Err(libc::EAGAIN);
            }
        }
        if budget != 0 {
            entry.spins_failed.fetch_add(1, Ordering::Relaxed);
        }
    }
    if peeked {
        entry.rx_hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
    }
    leaving::follow();
    let start = sys::now_ns();
    arm(connection, end);
    local.readers.fetch_add(1, Ordering::SeqCst);
    let slept = !news() || only_closed_news(end);
    let result = if !slept {
        1
    } else if handlers.end_a_transfer() {
        errno::set(libc::EINTR);
        -1
    } else if left_ns != 0 {
        entry.wakeups.fetch_add(1, Ordering::Relaxed);
        sleep_for_news(connection.fd, left_ns)
    } else {
        let mut bells = [0u8; BELLS_PEEKED];
        // SAFETY: `bells` is writable for its length. A real `recv`, so that time-outs, signals and
        // cancellation are the kernel's. A stale doorbell makes it return at once; then it is taken
        // off like any other.
        let result = unsafe {
            real::recv(
                connection.fd,
                bells.as_mut_ptr().cast(),
                bells.len(),
                libc::MSG_PEEK,
            )
        };
        entry.wakeups.fetch_add(1, Ordering::Relaxed);
        result
    };
    let error = if result < 0 { errno::get() } else { 0 };
    local.readers.fetch_sub(1, Ordering::SeqCst);
    disarm(connection, end);
    local.spin.slept(sys::now_ns() - start);
    match (result, error) {
        (1.., _) => {
            if slept {
                doorbells::take_seen(connection, end, result as usize);
            }
            Ok(())
        }
        (0, _) => {
            entry.rx_hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
            Ok(())
        }
        (_, error @ (libc::EINTR | libc::EAGAIN)) => Err(error),
        (_, error) => {
            pending::keep(connection, error);
            Ok(())
        }
    }
}

/// Sleeps for at most `limit_ns` until bytes are on the carrier (1), it ended (0), or something
/// went wrong (-1 and errno).
pub(crate) fn sleep_for_news(fd: i32, limit_ns: u64) -> isize {
    match sleep_until(fd, libc::POLLIN | libc::POLLRDHUP, limit_ns) {
        Ok(None) => {
            errno::set(libc::EAGAIN);
            -1
        }
        Ok(Some(seen)) if seen & libc::POLLIN != 0 => 1,
        Ok(Some(_)) => 0,
        Err(_) => -1,
    }
}

/// True when the only news is that the peer has closed: then the carrier's end is on its way and
/// sleeping on it is right.
fn only_closed_news(end: &End<'_>) -> bool {
    !(end.records_pending() || end.rx_mode() != Mode::Carrier && end.receiver().looks_filled())
}

/// True when the socket's time-out `option` has passed since `since_ns`.
pub(crate) fn timed_out(fd: i32, option: i32, since_ns: u64) -> bool {
    let limit = timeout_ns(fd, option);
    limit != 0 && sys::now_ns() - since_ns >= limit
}

/// A socket's `SO_RCVTIMEO` or `SO_SNDTIMEO` in nanoseconds, 0 for none.
pub(crate) fn timeout_ns(fd: i32, option: i32) -> u64 {
    let time = sys::getsockopt::<[i64; 2]>(fd, libc::SOL_SOCKET, option).unwrap_or_default();
    time[0].max(0) as u64 * 1_000_000_000 + time[1].max(0) as u64 * 1_000
}

/// Sleeps in libc's own `ppoll`, which a signal ends as it would end the program's call, until one
/// of `events` holds or something is wrong: what does. `None` when `limit_ns` pass before; 0 is no
/// limit.
pub(crate) fn sleep_until(fd: i32, events: i16, limit_ns: u64) -> Result<Option<i16>, i32> {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let time = sys::timespec(limit_ns);
    let time = if limit_ns == 0 {
        core::ptr::null()
    } else {
        &raw const time
    };
    // SAFETY: one `pollfd`, one time; no mask.
    match unsafe { real::ppoll(&mut one, 1, time, core::ptr::null()) } {
        0 => Ok(None),
        1.. => Ok(Some(one.revents)),
        _ => Err(errno::get()),
    }
}
