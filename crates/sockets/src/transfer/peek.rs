//! Looking at received bytes without taking them (`MSG_PEEK`, `FIONREAD`, `TCP_INQ`), past the
//! positions at which a direction changes between carrier and ring.
//!
//! A call that takes bytes reaches these positions one after the other. A call that only looks must
//! see the bytes behind them. Otherwise it would wait for bytes that have arrived.

use core::sync::atomic::Ordering;

use libc::iovec;
use toehold_channel::ring::Filled;
use toehold_channel::table::{FLAG_SHUT_RX, Mode};
use toehold_stream::end::{AHEAD_MAX, End, Incoming};

use crate::connection::resets::fault_of_peer;
use crate::connection::{Connection, HINT_URGENT};
use crate::direction::takeover;
use crate::epoll::news;
use crate::express::turns;
use crate::system::{errno, sys};
use crate::transfer::buffers;
use crate::transfer::control_messages::Control;

/// The most bytes of the carrier that a look can pass over: twice the number that two successive
/// switches leave there in practice.
const PASSED_MAX: usize = 32 << 10;
const SCRATCH_BYTES: usize = 1024;
const SCRATCHES: usize = PASSED_MAX / SCRATCH_BYTES;

/// Bytes that a receive would find now (`FIONREAD`), of an attached connection.
pub(crate) fn waiting(connection: &Connection) -> Option<i32> {
    connection.end()?;
    let _held = takeover::lock_receiving(connection)?;
    let end = connection.end()?;
    let count = count(connection, &end).ok()?;
    if count > 0 {
        news::note_known(connection);
    }
    Some(i32::try_from(count).unwrap_or(i32::MAX))
}

/// The bytes that are left to be read, of a connection with a channel, and one more if the end of
/// the stream has come, as `TCP_INQ` tells them. A program that is told 0 may wait for the next
/// event, and there is none after that of the end (`tcp_inq_hint` in net/ipv4/tcp.c).
pub(crate) fn left(connection: &Connection) -> i32 {
    /// For a program that shall look for itself.
    const SOMETHING: i32 = 1;
    let Some(_held) = takeover::lock_receiving(connection) else {
        return SOMETHING;
    };
    if !connection.is_current() {
        // Another thread has closed it meanwhile.
        return SOMETHING;
    }
    let Some(end) = connection.end() else {
        // The connection has just left its channel.
        let bytes = sys::bytes_waiting(connection.number()).max(0) as u64;
        return told(bytes, has_carrier_ended(connection));
    };
    let is_in_ring = end.rx_mode() == Mode::Ring && !end.records_pending();
    let bytes = match is_in_ring {
        true => end.receiver().available().ok().map(|filled| filled.len),
        false => count(connection, &end).ok(),
    };
    let Some(bytes) = bytes else {
        return SOMETHING;
    };
    if bytes > 0 {
        news::note_known(connection);
    }
    // Behind a ring an end without a sign has not been reported to the program either: an event
    // will come. On the carrier the kernel reports the end to the program, and no sign is set.
    let may_have_ended = !is_in_ring
        || connection.entry.rx_hints.load(Ordering::Relaxed) & !HINT_URGENT != 0
        || !end.theirs().wake.closed.load(Ordering::Relaxed).is(0);
    let has_ended =
        may_have_ended && (turns::is_over(connection, &end) || has_carrier_ended(connection));
    told(bytes, has_ended)
}

fn told(bytes: u64, has_ended: bool) -> i32 {
    i32::try_from(bytes.saturating_add(has_ended.into())).unwrap_or(i32::MAX)
}

/// True when the remote's FIN has come on the carrier.
fn has_carrier_ended(connection: &Connection) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX == 0
        && sys::poll_now(connection.number(), libc::POLLRDHUP) & libc::POLLRDHUP != 0
}

/// Contiguous bytes that have arrived, in one place.
#[derive(Clone, Copy)]
enum Part {
    Ring(Filled),
    Carrier(u64),
    /// Doorbells on the carrier.
    Skip(u64),
}

/// All places with bytes that have arrived, in the order of the stream. Callers hold the receive
/// lock.
fn parts_ahead(connection: &Connection, end: &End<'_>) -> Result<[Option<Part>; AHEAD_MAX], i32> {
    // A switch record is published before the bytes that follow it. So the bytes counted now that
    // no record covers are data.
    let mut on_carrier = sys::bytes_waiting(connection.number()).max(0) as u64;
    let ahead = end
        .ahead()
        .map_err(|fault| fault_of_peer(connection, fault))?;
    let mut parts = [None; AHEAD_MAX];
    for (place, coming) in parts.iter_mut().zip(ahead.into_iter().flatten()) {
        let (part, has_all) = match coming {
            Incoming::Ring(filled) => (Part::Ring(filled), true),
            Incoming::Carrier { limit } => {
                let here = limit.min(on_carrier);
                (Part::Carrier(here), here == limit)
            }
            Incoming::Skip { bytes } => {
                let here = bytes.min(on_carrier);
                (Part::Skip(here), here == bytes)
            }
        };
        if let Part::Carrier(here) | Part::Skip(here) = part {
            on_carrier -= here;
        }
        *place = Some(part);
        if !has_all {
            break;
        }
    }
    Ok(parts)
}

/// Bytes that could be received now. Callers hold the receive lock.
pub(crate) fn count(connection: &Connection, end: &End<'_>) -> Result<u64, i32> {
    let parts = parts_ahead(connection, end)?;
    let lengths = parts.into_iter().flatten().map(|part| match part {
        Part::Ring(filled) => filled.len,
        Part::Carrier(here) => here,
        Part::Skip(_) => 0,
    });
    Ok(lengths.sum())
}

/// Copies up to `want` bytes to `parts`, from byte `skip` on, without taking them, and returns how
/// many. Passes over the first `offset` bytes that have arrived. With `MSG_TRUNC` in `flags` the
/// bytes are only counted. Callers hold the receive lock.
///
/// # Safety
/// `parts` are writable from byte `skip` on, for `want` bytes, and `control`.
pub(crate) unsafe fn peek(
    connection: &Connection,
    end: &End<'_>,
    (parts, control): (&[iovec], &mut Control),
    offset: u64,
    skip: usize,
    want: usize,
    flags: i32,
) -> Result<usize, i32> {
    if flags & libc::MSG_TRUNC != 0 {
        let behind = count(connection, end)?.saturating_sub(offset);
        return Ok(behind.min(want as u64) as usize);
    }
    let (mut done, mut passed, mut in_ring) = (0, 0, 0);
    // Bytes of the offset that must still be passed over.
    let mut before = offset;
    for part in parts_ahead(connection, end)?.into_iter().flatten() {
        let left = want - done;
        match part {
            Part::Ring(filled) => {
                let over = before.min(filled.len);
                before -= over;
                let len = left.min((filled.len - over) as usize);
                let stretches = end.receiver().peek(in_ring + over, len, filled);
                // SAFETY: `parts_ahead` checked that these bytes are inside the ring; `parts` by
                // the caller's promise.
                let copied =
                    unsafe { buffers::scatter(end.ring_in(), stretches, parts, skip + done) };
                if copied.is_err() {
                    return errno::unless_moved(done, libc::EFAULT);
                }
                in_ring += filled.len;
                done += len;
            }
            Part::Carrier(here) => {
                let over = before.min(here) as usize;
                before -= over as u64;
                let len = left.min(here as usize - over);
                let first = passed + over;
                // SAFETY: the caller's promise.
                let seen = unsafe {
                    peek_behind(connection, first, (parts, control), skip + done, len, flags)
                };
                done += seen;
                if seen < len || control.ends_receive() {
                    break;
                }
                passed += here as usize;
            }
            Part::Skip(here) => passed += here as usize,
        }
    }
    Ok(done)
}

/// Peeks at `len` bytes of the carrier behind its first `passed` bytes. Returns how many there
/// were.
///
/// # Safety
/// `parts` are writable from byte `skip` on, for `len` bytes, and `control`.
unsafe fn peek_behind(
    connection: &Connection,
    passed: usize,
    (parts, control): (&[iovec], &mut Control),
    skip: usize,
    len: usize,
    flags: i32,
) -> usize {
    if len == 0 || passed > PASSED_MAX {
        return 0;
    }
    let mut scratch = [0u8; SCRATCH_BYTES];
    let (window, count) = buffers::window(parts, skip, len);
    let nothing = iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    };
    let mut list = [nothing; SCRATCHES + 16];
    for (index, part) in list[..SCRATCHES].iter_mut().enumerate() {
        // All these parts name one scratch buffer, because the passed bytes are never read.
        part.iov_base = scratch.as_mut_ptr().cast();
        part.iov_len = passed
            .saturating_sub(index * SCRATCH_BYTES)
            .min(SCRATCH_BYTES);
    }
    list[SCRATCHES..SCRATCHES + count].copy_from_slice(&window[..count]);
    let list = &mut list[..SCRATCHES + count];
    let flags = flags & libc::MSG_CMSG_CLOEXEC | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the list names `scratch` and parts of the program's buffers.
    let result = unsafe { control.receive(connection.number(), list, flags) };
    usize::try_from(result).map_or(0, |seen| seen.saturating_sub(passed))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use toehold_channel::layout::Control as Words;

    use super::*;

    /// A program that is told 0 may wait for an event, and the kernel has reported the end already.
    #[test]
    fn end_on_the_carrier_is_left_although_nobody_has_seen_it() {
        let (socket, mut peer) = UnixStream::pair().expect("a pair");
        let connection = Connection::of_a_test(socket.as_raw_fd());
        let words: *mut Words = Box::leak(Box::default());
        connection.local.attachment.put(words.cast());
        assert_eq!(left(&connection), 0);
        peer.write_all(b"last").expect("room");
        assert_eq!(left(&connection), 4);
        peer.shutdown(Shutdown::Write).expect("connected");
        assert_eq!(left(&connection), 5);
    }
}
