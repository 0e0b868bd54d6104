//! Withheld channels. A connection on a used carrier to the engine's relay has a channel, but until
//! the engine has answered it must behave like a connection on a new carrier. So its channel is
//! withheld until then.

use core::sync::atomic::Ordering;

use toehold_channel::table::{FLAG_CONNECTING, FLAG_PINNED, FLAG_REFUSED};

use super::{turns, unread_watch};
use crate::connection::Connection;
use crate::epoll::membership;

/// Gives a connection on a used carrier its channel back.
pub(super) fn begin_again(connection: &Connection) {
    membership::take_from_kernel(connection);
    if !turns::is_unseen(connection) {
        turns::note_seen(connection);
    }
    unread_watch::begin(connection.index, connection.local);
}

/// Gives a withheld channel back, if another process that shares the connection has taken the
/// engine's answer. True when it was given back.
#[cold]
pub(crate) fn gives_back(connection: &Connection) -> bool {
    const NOT_NOW: u32 = FLAG_CONNECTING | FLAG_REFUSED | FLAG_PINNED;
    let local = connection.local;
    let region = local.offered.load(Ordering::Relaxed);
    let is_withheld = local.express.is_carrier()
        && !region.is_null()
        && !local.attachment.has_region()
        && connection.entry.flags.load(Ordering::Relaxed) & NOT_NOW == 0;
    if is_withheld {
        local.attachment.put(region);
        begin_again(connection);
    }
    is_withheld
}
