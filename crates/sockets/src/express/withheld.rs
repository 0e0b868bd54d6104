//! The channel of a connection on a used carrier to the engine's relay, while the engine has not
//! answered: withheld, so that until then the connection is as one on a carrier that was just made.

use core::sync::atomic::Ordering;

use toehold_channel::table::{FLAG_CONNECTING, FLAG_PINNED, FLAG_REFUSED};

use super::{turns, unread_watch};
use crate::connection::Connection;
use crate::epoll::membership;

/// A connection on a used carrier has its channel again.
pub(super) fn begin_again(connection: &Connection) {
    membership::take_from_kernel(connection);
    if !turns::is_unseen(connection) {
        turns::note_seen(connection);
    }
    unread_watch::begin(connection.index, connection.local);
}

/// A channel that is withheld while the engine has not answered, of a connection that was answered
/// in another process that has it, too: true when it is given back.
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
