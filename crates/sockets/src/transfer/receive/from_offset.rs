//! Looks (`MSG_PEEK`) at what is behind an offset of ours ([`crate::transfer::peek_offset`]).

use libc::iovec;

use crate::connection::Connection;
use crate::connection::{options, settings};
use crate::direction::takeover;
use crate::system::sys;
use crate::transfer::control_messages::Control;
use crate::transfer::{buffers, peek, peek_offset};
use crate::waiting::sleep::{Deadline, sleep_until};

/// How often a waiting look looks again: the bytes before its offset keep the kernel from telling
/// of those behind it.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// A look at what is behind the offset. `None` when there is no offset of ours: the look is like
/// any other.
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
                    return Some(Ok(seen));
                }
                Ok(seen) => seen,
            }
        };
        if ended {
            // The bytes that were there are gone: another thread has taken them.
            return Some(match options::take_error(connection) {
                0 => Ok(seen),
                error => Err(error),
            });
        }
        // One more look sees what was published before the end.
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
            // A signal, or the time is over: it has what it has seen.
            Err(_) => waits = false,
        }
    }
}
