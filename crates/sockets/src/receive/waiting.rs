//! Waiting for bytes: how a receive says that it sleeps, and sleeps.

use core::sync::atomic::Ordering;

use toehold_channel::channel::{End, Incoming};
use toehold_channel::doorbell::WakeWord;
use toehold_channel::sync::fence;
use toehold_channel::table::Mode;

use crate::state::Connection;
use crate::{doorbells, epoll, errno, leaving, lock, pending, real, sleepers, sys, wait};

use super::HINT_LOOK;

/// After this many fruitless non-blocking calls in a row the program is polling us: it needs no doorbell.
const EMPTY_CALLS_POLLING: u32 = 8;
/// Doorbells a sleeper looks at, and takes off, in one go.
const BELLS_PEEKED: usize = 64;

/// A non-blocking call found nothing, and how the program will wait is unknown: ask for a doorbell. True when something arrived meanwhile.
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
    {
        let _held = lock::lock(&entry.wake_lock);
        set_wake(&end, WakeWord::Bell);
    }
    fence(Ordering::SeqCst);
    if !end.records_pending() {
        return end.rx_mode() == Mode::Ring && end.receiver().looks_filled();
    }
    // The peer may have moved to the ring between our look at the carrier and the doorbell. Bytes still on their way on the carrier
    // wake by themselves.
    let Some(_held) = lock::lock(&entry.rx_lock) else {
        return false;
    };
    matches!(end.incoming(), Ok(Incoming::Ring(filled)) if filled.len > 0)
}

/// Tells the peer how this side wants to hear of news.
pub(crate) fn set_wake(end: &End<'_>, word: WakeWord) {
    end.ours().wake.wake.store(word.to_word(), Ordering::SeqCst);
}

/// Registers a sleeper and asks the peer to ring. Every call is followed by [`disarm`].
pub(crate) fn arm(connection: &Connection, end: &End<'_>) {
    {
        let _held = lock::lock(&connection.entry.wake_lock);
        sleepers::enter(connection);
        set_wake(end, WakeWord::Bell);
    }
    // Pairs with the barrier in `Sender::publish` and `Receiver::consume`, see `toehold_channel::doorbell`.
    fence(Ordering::SeqCst);
}

/// Takes back what [`arm`] did.
pub(crate) fn disarm(connection: &Connection, end: &End<'_>) {
    let entry = connection.entry;
    let rung = {
        let _held = lock::lock(&entry.wake_lock);
        // While others still sleep they keep the doorbell.
        let word = match sleepers::leave(connection) {
            true => sleepers::home(connection),
            false => WakeWord::Bell.to_word(),
        };
        end.ours().wake.wake.swap(word, Ordering::SeqCst) == WakeWord::None.to_word()
    };
    if rung {
        // The doorbell stood for news that an epoll instance would have found on its board, and we may have taken it off the carrier
        // before the kernel showed it to that instance.
        epoll::nudge(connection);
    }
}

/// Blocks until there may be something to receive beyond ring position `seen`.
pub(super) fn wait_for_bytes(connection: &Connection, end: &End<'_>, seen: u64) -> Result<(), i32> {
    let (entry, local) = (connection.entry, connection.local);
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
        let budget = local.spin.budget_ns();
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
    } else {
        let mut bells = [0u8; BELLS_PEEKED];
        // SAFETY: `bells` is writable for its length. A real `recv`, so that time-outs, signals and cancellation are the kernel's. A stale
        // doorbell makes it return at once; then it is taken off like any other.
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

/// True when the only news is that the peer has closed: then the carrier's end is on its way and sleeping on it is right.
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

/// Sleeps in libc's own `ppoll`, which a signal ends as it would end the program's call, until one of `events` holds or something is wrong:
/// what does. `None` when `limit_ns` pass before; 0 is no limit.
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
