//! Errors that the kernel told us and that the program has not heard yet.
//!
//! The kernel reports an error once, to the first call that comes. That may be a call of the
//! library's, or a call of the program's that has moved some bytes and must report their number. In
//! both cases the error is kept here for the program's next call.

use core::sync::atomic::Ordering;

use toehold_stream::hints;

use crate::connection::{Connection, HINT_LOOK};
use crate::express::turns;
use crate::system::errno;

/// Keeps `error`, unless one is kept already: the first is the one that the kernel would have told.
pub(crate) fn keep(connection: &Connection, error: i32) {
    let error = turns::error_after_turn(connection, error);
    hints::keep_error(&connection.entry.rx_hints, HINT_LOOK, error);
}

/// As [`keep`], if it is an error of the connection and not of the call that it came to.
pub(crate) fn keep_for_next_call(connection: &Connection, error: i32) {
    let of_the_connection = matches!(
        error,
        libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ETIMEDOUT
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EACCES
    );
    if of_the_connection {
        keep(connection, error);
    }
}

/// `EFAULT` of a call that has received `done` messages before the one with the bad pointer
/// (`do_recvmmsg` in net/socket.c). `errno` is the call's.
pub(crate) fn keep_of_several(connection: &Connection, done: u32) {
    if done > 0 && errno::get() == libc::EFAULT {
        keep(connection, libc::EFAULT);
    }
}

/// True when an error waits to be told.
pub(crate) fn is_there(connection: &Connection) -> bool {
    is_in(connection.entry.rx_hints.load(Ordering::Relaxed))
}

/// As [`is_there`], of receive hints that the caller has loaded.
#[inline]
pub(crate) fn is_in(hints: u32) -> bool {
    hints::error_in(hints).is_some()
}

/// The error, which is told now.
pub(crate) fn take(connection: &Connection) -> Option<i32> {
    hints::take_error(&connection.entry.rx_hints)
}

/// As [`take`], for a receive. `EPIPE` stays: it is the answer to bytes that were sent after the
/// peer's end, and a receive finds that end first (tcp_recvmsg_locked: `SOCK_DONE`).
pub(crate) fn take_for_receive(connection: &Connection) -> Option<i32> {
    let hints = connection.entry.rx_hints.load(Ordering::Relaxed);
    match hints::error_in(hints) {
        None | Some(libc::EPIPE) => None,
        Some(_) => take(connection),
    }
}

/// As [`take`], for `SO_ERROR`: a connection without a channel has none that the kernel does not
/// have.
pub(crate) fn take_for_option(connection: &Connection) -> Option<i32> {
    connection.end()?;
    take(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_to_late_bytes_is_not_a_receives() {
        let connection = Connection::of_a_test(-1);
        keep(&connection, libc::EPIPE);
        assert_eq!(take_for_receive(&connection), None);
        assert_eq!(take(&connection), Some(libc::EPIPE), "it is a send's");
        keep(&connection, libc::ECONNRESET);
        assert_eq!(take_for_receive(&connection), Some(libc::ECONNRESET));
        assert!(!is_there(&connection));
    }
}
