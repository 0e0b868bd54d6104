//! Who of a family sleeps on a connection.
//!
//! One wake word and one carrier serve all processes that hold a connection. So whoever wakes up
//! leaves both as the others need them: the word asks for a doorbell while anybody sleeps, and a
//! doorbell stays on the carrier until everybody whom it was to wake has seen it.
//!
//! A process that was killed in its sleep is known to be dead once its parent has reaped it; until
//! then its doorbells stay, and who would sleep beside it finds them each time.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{WAKING, WakeWord};
use toehold_channel::layout::SIDE_TOLD;
use toehold_channel::table::Reason;
use toehold_channel::untrusted::Untrusted;
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::{process, sys};

/// A process says in `Entry::asleep` that it is going to sleep, and then looks for news. Whoever
/// has seen news, and wonders whether to leave the doorbell on the carrier, looks at `asleep`. The
/// store in `enter` pairs with the look in `are_elsewhere`: the sleeper sees the news, or is seen.
const ASLEEP: Ordering = Ordering::SeqCst;

/// A thread of this process is going to sleep. Callers hold the connection's wake lock.
pub(crate) fn enter(connection: &Connection) {
    if !connection.local.attachment.sleepers.enter() {
        return;
    }
    let me = process::pid();
    let is_free = |pid: u32| pid == 0 || pid == me || !sys::process_exists(pid);
    let mut places = connection.entry.asleep.iter();
    if let Some(place) = places.find(|place| is_free(place.load(Ordering::Relaxed))) {
        place.store(me, ASLEEP);
    }
}

/// It woke. True when nobody sleeps any more. Callers hold the connection's wake lock.
pub(crate) fn leave(connection: &Connection) -> bool {
    if !connection.local.attachment.sleepers.leave() {
        return false;
    }
    give_place_back(connection);
    !are_elsewhere(connection)
}

/// This process gives the connection up: none of its threads sleeps on it any more, nor an epoll
/// instance.
pub(crate) fn part(connection: &Connection) {
    let entry = connection.entry;
    give_place_back(connection);
    if entry.resting_pid.load(Ordering::Relaxed) == process::pid() {
        entry
            .resting_wake
            .store(WakeWord::None.to_word(), Ordering::Relaxed);
    }
}

fn give_place_back(connection: &Connection) {
    let me = process::pid();
    let mut places = connection.entry.asleep.iter();
    if let Some(place) = places.find(|place| place.load(Ordering::Relaxed) == me) {
        place.store(0, ASLEEP);
    }
}

/// True when anybody sleeps and has asked for a doorbell.
pub(crate) fn are_there(connection: &Connection) -> bool {
    connection.local.attachment.sleepers.any() || are_elsewhere(connection)
}

/// True when another process needs a doorbell to wake, on this connection or on an epoll instance
/// of its own.
pub(crate) fn need_doorbell(connection: &Connection) -> bool {
    are_there(connection) || sleeps_on_anothers_bitmap(connection)
}

/// The wake word to return to when nobody sleeps, as a number.
pub(crate) fn resting(connection: &Connection) -> Untrusted<u32> {
    let entry = connection.entry;
    let owner = entry.resting_pid.load(Ordering::Relaxed);
    match entry.resting_wake.load(Ordering::Relaxed) {
        word if word.is(WakeWord::None.to_word()) || owner == process::pid() => word,
        word if is_shared_with(connection, owner) => word,
        _ => WakeWord::None.to_word().into(),
    }
}

/// That word when it is about an epoll instance of this process, else the number of
/// [`WakeWord::None`].
pub(crate) fn own_resting(connection: &Connection) -> Untrusted<u32> {
    let entry = connection.entry;
    if entry.resting_pid.load(Ordering::Relaxed) == process::pid() {
        entry.resting_wake.load(Ordering::Relaxed)
    } else {
        WakeWord::None.to_word().into()
    }
}

/// True when that word is about an epoll instance of another process.
pub(crate) fn is_resting_anothers(connection: &Connection) -> bool {
    !resting(connection).is(WakeWord::None.to_word())
        && connection.entry.resting_pid.load(Ordering::Relaxed) != process::pid()
}

fn is_shared_with(connection: &Connection, owner: u32) -> bool {
    connection.entry.holders.load(Ordering::Relaxed) > 1 && sys::process_exists(owner)
}

fn are_elsewhere(connection: &Connection) -> bool {
    let entry = connection.entry;
    // A process that holds it alone may have been killed beside others; those places are free.
    if entry.holders.load(Ordering::Relaxed) <= 1 {
        return false;
    }
    let me = process::pid();
    entry.asleep.iter().any(|place| {
        let pid = place.load(ASLEEP);
        if pid == 0 || pid == me {
            return false;
        }
        let is_alive = sys::process_exists(pid);
        if !is_alive {
            let _ = place.compare_exchange(pid, 0, ASLEEP, Ordering::Relaxed);
        }
        is_alive
    })
}

fn sleeps_on_anothers_bitmap(connection: &Connection) -> bool {
    if !is_resting_anothers(connection) {
        return false;
    }
    let Ok(WakeWord::Bitmap { bitmap, .. }) = WakeWord::from_untrusted(resting(connection)) else {
        return false;
    };
    // SAFETY: places of the pair table are never released.
    let pair = unsafe { connection.local.pair.load(Ordering::Relaxed).as_ref() };
    pair.and_then(|pair| pair.ours(bitmap))
        .is_some_and(|bitmap| bitmap.sleeping.load(WAKING).is(1))
}

/// Tells the peer how this side wants to hear of news.
pub(crate) fn set_wake(end: &End<'_>, word: WakeWord) {
    end.ours().wake.wake.store(word.to_word(), WAKING);
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
    // As in `service::leave_ring`.
    end.ours().wake.refuse.store(1, SIDE_TOLD);
}
