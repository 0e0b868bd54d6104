//! Socket options that the library changes on the carrier. The program still reads the values that
//! it has set.

use core::ffi::c_ulong;
use core::sync::atomic::Ordering;

use toehold_channel::layout::RING_BYTES;
use toehold_channel::table::{FLAG_OFFLOAD, Mode, Reason};

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::connection::{pending_errors, resets, settings, unix};
use crate::direction::switching;
use crate::epoll::{membership, news};
use crate::express::turns;
use crate::offload::{awaiting, endings};
use crate::system::{errno, sys};
use crate::transfer::{peek, peek_offset};

/// The program sets an option (`value` is there if it is an int). True when the kernel must not see
/// the call. An option that rings cannot express first brings the connection back to its carrier.
pub(crate) fn set(connection: &Connection, level: i32, name: i32, value: Option<i32>) -> bool {
    if let (Some(value), Some(bit)) = (value, settings::bit_of(connection, level, name))
        && settings::is_valid(name, value)
    {
        let options = &connection.entry.tx_options;
        if value != 0 {
            options.fetch_or(bit, Ordering::Relaxed);
        } else {
            options.fetch_and(!bit, Ordering::Relaxed);
        }
        return true;
    }
    match (level, name) {
        // The kernel takes the stream over.
        (libc::IPPROTO_TCP, libc::TCP_ULP) => {
            errno::keep(|| switching::quiesce(connection, Reason::Unsupported));
        }
        (level, name)
            if settings::is_kernels(connection, level, name)
                && value.is_some_and(|value| settings::is_on(name, value)) =>
        {
            errno::keep(|| switching::retire(connection, Reason::Unsupported));
            if name == libc::SO_PEEK_OFF {
                return errno::keep(|| peek_offset::set(connection, value.unwrap_or(-1)));
            }
        }
        (level, name) if settings::attaches_filter(level, name) => {
            errno::keep(|| switching::retire(connection, Reason::Unsupported));
        }
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) if peek_offset::get(connection).is_some() => {
            // The kernel refuses the option without a value.
            return value.is_some_and(|value| errno::keep(|| peek_offset::set(connection, value)));
        }
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if connection.end().is_some() => {
            let is_set = value.is_some_and(|bytes| settings::set_low_water(connection, bytes));
            if is_set {
                errno::keep(|| {
                    if settings::low_water(connection) > 1 {
                        // When the connection went back to the carrier, its registrations may have
                        // been given to the kernel. Until both ends have left the channel the
                        // carrier's own `SO_RCVLOWAT` is 1, so the kernel would report every single
                        // byte. So the library takes the registrations back.
                        membership::take_from_kernel(connection);
                    }
                    // The bytes that wait may be enough now (`tcp_set_rcvlowat` in
                    // net/ipv4/tcp.c).
                    news::push_ready_and_wake(connection);
                });
            }
            return is_set;
        }
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if value.is_some_and(|bytes| bytes > 1) => {
            errno::keep(|| switching::retire(connection, Reason::Unsupported));
        }
        _ => {}
    }
    false
}

/// The program reads an int option: the library's answer, if it has one.
pub(crate) fn get(connection: &Connection, level: i32, name: i32) -> Option<i32> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        return errno::keep(|| awaiting::error_option(connection))
            .or_else(|| {
                let kept = pending_errors::take_for_option(connection)?;
                Some(endings::receive_error(
                    connection,
                    true_error(connection, kept),
                ))
            })
            .or_else(|| errno::keep(|| endings::error_option(connection)))
            .or_else(|| {
                let end = connection.end()?;
                let error = sys::getsockopt(connection.fd, level, name).ok()?;
                let error = match error {
                    // A reset that answers a doorbell after the peer's FIN gives this error
                    // (tcp_reset, `TCP_CLOSE_WAIT`).
                    libc::EPIPE if resets::was_closed_cleanly(connection, &end) => 0,
                    error => true_error(connection, error),
                };
                let unix = || unix::error_at_end(connection, &end);
                Some(if error != 0 {
                    error
                } else {
                    unix().unwrap_or(0)
                })
            });
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        let bytes = connection.entry.rx_low_water.load(Ordering::Relaxed);
        return (bytes != 0).then_some(bytes as i32);
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_PEEK_OFF) {
        let offset = peek_offset::get(connection)?;
        return Some(i32::try_from(offset).unwrap_or(i32::MAX));
    }
    let bit = settings::bit_of(connection, level, name)?;
    let options = connection.entry.tx_options.load(Ordering::Relaxed);
    Some(i32::from(options & bit != 0))
}

/// The error that the program would see without doorbells.
fn true_error(connection: &Connection, error: i32) -> i32 {
    let is_doorbells = error == libc::ECONNRESET
        && (connection.inside()).is_some_and(|end| {
            resets::was_closed_cleanly(connection, &end) || turns::is_unaccepted(connection, &end)
        });
    match turns::error_after_turn(connection, error) {
        _ if is_doorbells => 0,
        libc::ECONNRESET => unix::told(connection),
        error => error,
    }
}

/// Takes the connection's error, as `SO_ERROR` does; 0 when there is none.
pub(crate) fn take_error(connection: &Connection) -> i32 {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ERROR);
    get(connection, level, name)
        .unwrap_or_else(|| sys::getsockopt(connection.fd, level, name).unwrap_or(0))
}

/// The program asks by `ioctl` for the length of a queue: the library's answer, if it has one.
pub(crate) fn queue_length(connection: &Connection, request: c_ulong) -> Option<i32> {
    if request == libc::FIONREAD as c_ulong {
        return peek::waiting(connection);
    }
    let in_ring = connection.entry.tx_mode.load(Ordering::Relaxed) == Mode::Ring as u32;
    let is_asked = request == libc::TIOCOUTQ as c_ulong && in_ring;
    is_asked.then(|| {
        let length = in_flight(connection);
        news::note_known(connection);
        length
    })
}

/// The ring's bytes that the kernel's send queue would hold (`SIOCOUTQ`). Bytes that the kernel
/// itself counts are doorbells. The send queue of TCP holds bytes that are not acknowledged
/// (tcp(7)). With the engine, the remote's acknowledgements come back as credit, so unread bytes of
/// the ring count. Between two programs the ring counts as the receiver's buffer, whose bytes are
/// acknowledged, so the answer is 0. The send queue of a Unix socket holds the bytes that the peer
/// has not read.
fn in_flight(connection: &Connection) -> i32 {
    let entry = connection.entry;
    let is_offloaded = entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    if !is_offloaded && Carrier::of(connection) == Carrier::Tcp {
        return 0;
    }
    // Relaxed: only a number for the program. The next send reports an invalid `head`.
    let waiting = connection.end().and_then(|end| {
        let head = end.theirs().consume.head.load(Ordering::Relaxed);
        let sent = entry.tx_ring.load(Ordering::Relaxed);
        sent.ahead_of(head, RING_BYTES as u64)
    });
    waiting.unwrap_or(0) as i32
}
