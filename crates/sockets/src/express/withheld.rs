//! Withheld channels. A connection on a used carrier to the engine's relay has a channel, but until
//! the engine has answered it must behave like a connection on a new carrier. So its channel is
//! withheld until then.

use core::sync::atomic::Ordering;

use toehold_channel::table::{FLAG_ATTACHED, FLAG_CONNECTING, FLAG_PINNED, FLAG_REFUSED, Reason};

use super::{turns, unread_watch};
use crate::connection::Connection;
use crate::epoll::membership;
use crate::lock;
use crate::process::descriptors;
use crate::waiting::seen_waits;

/// Gives a connection on a used carrier its channel back.
pub(super) fn begin_again(connection: &Connection) {
    membership::take_from_kernel(connection);
    // A program with blocking calls is noted when it waits in one: it may still choose to wait past
    // the library, and the engine looks at a turn no more once its program was seen.
    if seen_waits::is_seen(connection.local) {
        turns::note_seen(connection);
    }
    unread_watch::begin(connection.index, connection.local);
}

/// Gives a withheld channel back, if another process that shares the connection has taken the
/// engine's answer. True when the channel was withheld, or may be: where another thread has the
/// receive lock, the next call looks again. A channel that the adapter offers after the connection
/// has left its first one is not withheld: it is attached like any other.
#[cold]
pub(crate) fn gives_back(connection: &Connection) -> bool {
    if !is_withheld(connection) {
        return false;
    }
    {
        // A connection that leaves its channel looks like this for a moment, while the region
        // becomes empty memory. `leaving::frees` has this lock then.
        let Some(_held) = lock::try_lock(&connection.entry.rx_lock) else {
            return true;
        };
        if !is_withheld(connection) {
            return false;
        }
        let (named, local) = ((connection.index, connection.generation), connection.local);
        if descriptors::connection_at(connection.fd) != Some(named) {
            // Another thread closes the number.
            return true;
        }
        let region = local.offered.load(Ordering::Relaxed);
        local.attachment.put(region);
    }
    begin_again(connection);
    true
}

/// The connection is about to begin again on a new carrier, before the engine has answered: gives
/// its channel up for good. The caller holds the receive lock.
pub(crate) fn give_up(connection: &Connection) {
    let (entry, local) = (connection.entry, connection.local);
    let region = local.offered.load(Ordering::Relaxed);
    if let Some(turn) = turns::turn_of(entry)
        && !region.is_null()
    {
        // The engine opens no connection for a turn that it has not accepted by now.
        connection.end_in(region).turns().give_up(turn);
    }
    connection.pin(Reason::Relayed);
    // Processes that share the connection have the region withheld, too.
    entry.flags.fetch_and(!FLAG_ATTACHED, Ordering::Relaxed);
    local.express.end_carrier();
}

fn is_withheld(connection: &Connection) -> bool {
    const NOT_NOW: u32 = FLAG_CONNECTING | FLAG_REFUSED | FLAG_PINNED;
    let local = connection.local;
    let flags = connection.entry.flags.load(Ordering::Relaxed);
    local.express.is_carrier()
        && !local.offered.load(Ordering::Relaxed).is_null()
        && !local.attachment.has_region()
        && flags & (NOT_NOW | FLAG_ATTACHED) == FLAG_ATTACHED
}

#[cfg(test)]
mod tests {
    use toehold_channel::layout::REGION_BYTES;
    use toehold_channel::memfd;

    use super::*;

    #[test]
    fn channel_that_another_thread_frees_is_not_given_back() {
        let connection = Connection::of_a_test(-1);
        let (entry, local) = (connection.entry, connection.local);
        local.express.made_ns.store(1, Ordering::Relaxed);
        entry.flags.store(FLAG_ATTACHED, Ordering::Relaxed);
        let region = memfd::map_private(REGION_BYTES).expect("memory");
        local.offered.store(region.as_ptr(), Ordering::Relaxed);
        // As `leaving::frees`, which then forgets the offer.
        let held = lock::try_lock(&entry.rx_lock);
        assert!(gives_back(&connection));
        assert!(!local.attachment.has_region());
        local
            .offered
            .store(core::ptr::null_mut(), Ordering::Relaxed);
        drop(held);
        assert!(!gives_back(&connection));
        assert!(!local.attachment.has_region());
    }

    #[test]
    fn channel_that_is_given_up_is_not_given_back() {
        let connection = Connection::of_a_test(-1);
        let (entry, local) = (connection.entry, connection.local);
        local.express.made_ns.store(1, Ordering::Relaxed);
        entry.flags.store(FLAG_ATTACHED, Ordering::Relaxed);
        let region = memfd::map_private(REGION_BYTES).expect("memory");
        local.offered.store(region.as_ptr(), Ordering::Relaxed);
        assert!(is_withheld(&connection));
        give_up(&connection);
        assert!(!gives_back(&connection));
        assert!(!local.attachment.has_region() && !local.express.is_carrier());
    }

    #[test]
    fn second_channel_of_a_carrier_is_not_withheld() {
        let connection = Connection::of_a_test(-1);
        let local = connection.local;
        local.express.made_ns.store(1, Ordering::Relaxed);
        // As `leaving::forget_positions` and then the adapter's offer leave it.
        let region = memfd::map_private(REGION_BYTES).expect("memory");
        local.offered.store(region.as_ptr(), Ordering::Relaxed);
        assert!(!gives_back(&connection));
        assert!(!local.attachment.has_region(), "it must be attached first");
    }
}
