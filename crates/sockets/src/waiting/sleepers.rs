//! The sleepers of a family on a connection: [`toehold_stream::sleepers`], with the processes of
//! this machine.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{SLEEPS_NOT, WAKE_SEQ_CST, WakeWord};
use toehold_channel::layout::ReadyBitmap;
use toehold_channel::table::Reason;
use toehold_channel::untrusted::Untrusted;
use toehold_freestanding::errno;
use toehold_stream::end::End;
use toehold_stream::leaving::Refusal;
use toehold_stream::sleepers::{Family, FamilySleepers};

use crate::connection::Connection;
use crate::lock;
use crate::memory::pairs::Pair;
use crate::process;
use crate::system::sys;

/// The processes of this machine, as this process sees them.
struct Processes;

impl Family for Processes {
    fn me(&self) -> u32 {
        process::pid()
    }

    fn is_alive(&self, pid: u32) -> bool {
        sys::process_exists(pid)
    }
}

fn of(connection: &Connection) -> FamilySleepers<'static, Processes> {
    let threads = &connection.local.attachment.sleepers;
    FamilySleepers::new(connection.entry, threads, Processes)
}

/// Records that a thread of this process is going to sleep. Callers hold the connection's wake
/// lock.
pub(crate) fn enter(connection: &Connection) {
    of(connection).enter();
}

/// Records that a thread of this process woke. True when no thread sleeps any more. Callers hold
/// the connection's wake lock.
pub(crate) fn leave(connection: &Connection) -> bool {
    of(connection).leave()
}

/// Removes this process, which gives the connection up: none of its threads and none of its epoll
/// instances waits for the connection any more.
pub(crate) fn part(connection: &Connection) {
    of(connection).part();
}

/// True when a thread of any process sleeps and has asked for a doorbell.
pub(crate) fn are_there(connection: &Connection) -> bool {
    of(connection).are_there()
}

/// True when another process needs a doorbell to wake, on this connection or on an epoll instance
/// of its own.
pub(crate) fn need_doorbell(connection: &Connection) -> bool {
    are_there(connection) || sleeps_on_anothers_bitmap(connection)
}

/// The wake word to return to when no thread sleeps, as a number.
pub(crate) fn resting(connection: &Connection) -> Untrusted<u32> {
    of(connection).resting()
}

/// The resting wake word when it names an epoll instance of this process; otherwise the number of
/// [`WakeWord::None`].
pub(crate) fn own_resting(connection: &Connection) -> Untrusted<u32> {
    of(connection).own_resting()
}

/// True when the resting wake word names an epoll instance of another process.
pub(crate) fn is_resting_anothers(connection: &Connection) -> bool {
    of(connection).is_resting_anothers()
}

fn sleeps_on_anothers_bitmap(connection: &Connection) -> bool {
    if !is_resting_anothers(connection) {
        return false;
    }
    own_place(connection, resting(connection))
        .is_some_and(|place| !place.bitmap.sleeping.load(WAKE_SEQ_CST).is(SLEEPS_NOT))
}

/// The place of a connection in a ready bitmap of this process.
pub(crate) struct OwnPlace {
    pub(crate) pair: &'static Pair,
    pub(crate) bitmap: &'static ReadyBitmap,
    /// Number of the bitmap in the pair.
    pub(crate) number: u32,
    pub(crate) bit: u32,
}

/// The place that a wake word of `connection` names, if that is one in a ready bitmap of this
/// process.
pub(crate) fn own_place(connection: &Connection, wake: Untrusted<u32>) -> Option<OwnPlace> {
    let Ok(WakeWord::Bitmap {
        bitmap: number,
        bit,
    }) = WakeWord::from_untrusted(wake)
    else {
        return None;
    };
    // SAFETY: places of the pair table are never released.
    let pair: &'static Pair = unsafe { connection.local.pair.load(Ordering::Relaxed).as_ref() }?;
    let bitmap = pair.ours(number)?;
    Some(OwnPlace {
        pair,
        bitmap,
        number,
        bit,
    })
}

/// Asks the peer for a doorbell on the carrier, for the calling thread: it is unknown how it will
/// wait. True when the word asked for none before. Callers hold the connection's wake lock, and
/// fence afterwards.
pub(crate) fn ask_for_unknown_wait(connection: &Connection, end: &End<'_>) -> bool {
    let asked = end.ours().wake.wake.load(Ordering::Relaxed);
    let is_first = asked.is(WakeWord::None.to_word());
    let (asker, me) = (&connection.entry.asker, this_thread());
    if is_first {
        asker.store(me, Ordering::Relaxed);
    } else if asker.load(Ordering::Relaxed) != me {
        asker.store(0, Ordering::Relaxed);
    }
    set_wake(end, WakeWord::Bell);
    is_first
}

/// Takes back the request of [`ask_for_unknown_wait`], if nobody else needs it: the calling thread
/// made it, waits in the library, and has other news. It will look at the connection again before
/// it sleeps. Without this, the peer would ring the carrier for a thread that is awake.
#[inline]
pub(crate) fn take_request_back(connection: &Connection, end: &End<'_>) {
    let wake = &end.ours().wake.wake;
    if wake.load(Ordering::Relaxed).is(WakeWord::Bell.to_word())
        && connection.entry.asker.load(Ordering::Relaxed) == this_thread()
        && let Some(_held) = lock::lock(&connection.entry.wake_lock)
        && is_only_one(connection, end)
        && (end.ours().wake.want_credit.load(Ordering::Relaxed)).is(0)
    {
        let (bell, none) = (WakeWord::Bell.to_word(), WakeWord::None.to_word());
        // A peer that has rung meanwhile has set the word to none itself. Nothing is ordered: no
        // sleep follows before the next look.
        let _ = wake.compare_exchange(bell, none, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// True when the calling thread, which is about to sleep, is the only one that may wait for news of
/// the connection. Callers hold the connection's wake lock.
pub(crate) fn is_only_one(connection: &Connection, end: &End<'_>) -> bool {
    if are_there(connection) || !resting(connection).is(WakeWord::None.to_word()) {
        return false;
    }
    let asked = end.ours().wake.wake.load(Ordering::Relaxed);
    asked.is(WakeWord::None.to_word())
        || asked.is(WakeWord::Bell.to_word())
            && connection.entry.asker.load(Ordering::Relaxed) == this_thread()
}

/// A number that no other thread of this machine has at the moment: of the process, and of the
/// thread's memory, which is aligned to 64 bytes and has an address of 47 bits. Another thread may
/// have the number later.
fn this_thread() -> u64 {
    u64::from(process::pid()) << 41 | errno::thread_pointer() as u64 >> 6
}

/// Tells the peer how this side wants to hear of news.
pub(crate) fn set_wake(end: &End<'_>, word: WakeWord) {
    end.ours().wake.wake.store(word.to_word(), WAKE_SEQ_CST);
}

/// The wake lock cannot be taken, so the wake word may change while the sleeper sleeps: the stuck
/// holder of that lock may store an old value. So the connection goes to the carrier, where the
/// kernel wakes the sleeper: the peer is asked to bring its direction down before it sends again,
/// and ours follows. The callers may then store without the lock. Each word is stored as a whole.
/// The worst wake word would lose a doorbell, but the peer rings no more. The other words count
/// sleepers with single atomic operations.
#[cold]
pub(crate) fn wake_by_carrier(connection: &Connection, end: &End<'_>) {
    connection.pin(Reason::Shared);
    // As in `switching::leave_ring`.
    end.refuse(Refusal::Paused);
}
