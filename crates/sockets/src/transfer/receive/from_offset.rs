//! Looks (`MSG_PEEK`) behind an offset that the library keeps ([`crate::transfer::peek_offset`]).

use libc::iovec;

use crate::connection::Connection;
use crate::connection::{options, settings};
use crate::direction::takeover;
use crate::epoll::news;
use crate::system::sys;
use crate::transfer::control_messages::Control;
use crate::transfer::{buffers, peek, peek_offset};
use crate::waiting::sleep::{Deadline, sleep_until};

/// Time between two tries of a waiting look. It cannot sleep in the kernel, because the bytes
/// before its offset would end each sleep.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// Looks at the bytes behind the offset. `None` when the library keeps no offset: then the look is
/// an ordinary one.
///
/// # Safety
/// `parts` are writable.
#[cold]
pub(super) unsafe fn look(
    connection: &Connection,
    parts: &[iovec],
    flags: i32,
) -> Option<Result<usize, i32>> {
    let total = buffers::total(parts).ok().filter(|&total| total > 0)?;
    peek_offset::get(connection).filter(|_| flags & libc::MSG_OOB == 0)?;
    let mut waits = flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking();
    let least = match flags & libc::MSG_WAITALL {
        0 => settings::low_water(connection).min(total),
        _ => total,
    };
    let mut deadline = Deadline::default();
    let mut ended = false;
    loop {
        let seen = {
            let _held = takeover::lock_receiving(connection)?;
            let end = connection.end().filter(|_| connection.is_current())?;
            let offset = peek_offset::get(connection)?;
            let to = (parts, &mut Control::none());
            // SAFETY: the caller's promise.
            let seen = unsafe { peek::peek(connection, &end, to, offset, 0, total, flags) };
            match seen {
                Err(error) => return Some(Err(error)),
                Ok(seen) if seen >= least || seen > 0 && (ended || !waits) => {
                    peek_offset::store(connection, offset + seen as u64);
                    news::note_known(connection);
                    return Some(Ok(seen));
                }
                Ok(seen) => seen,
            }
        };
        if ended {
            // Another thread has taken the bytes.
            return Some(match options::take_error(connection) {
                0 => Ok(seen),
                error => Err(error),
            });
        }
        // One more look sees all bytes that were published before the end.
        ended = sys::poll_now(connection.number(), libc::POLLRDHUP) != 0;
        if ended {
            continue;
        }
        if !waits {
            return Some(Err(libc::EAGAIN));
        }
        let slept = deadline
            .left_ns(connection.number(), libc::SO_RCVTIMEO)
            .and_then(|_| sleep_until(connection.number(), libc::POLLRDHUP, LOOK_AGAIN_NS));
        match slept {
            Ok(_) => {}
            Err(error) if seen == 0 => return Some(Err(error)),
            // A signal, or the time is over: the look returns the bytes that it has.
            Err(_) => waits = false,
        }
    }
}
