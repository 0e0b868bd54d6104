//! Plain calls on the host path, in the usual state: the kernel makes the call, and the library
//! counts the bytes.
//!
//! The calls here do what [`crate::transfer::send`] and [`crate::transfer::receive`] would do. In
//! any other case they do not begin, and the general code starts from the beginning: there is a
//! region or an offer, the call has flags with an effect on the library's counts, or the connection
//! goes through the engine.
//!
//! A connection that is pinned to its carrier gets no region any more. So a call on it is not named
//! ([`crate::transfer::host_call`]) and asks for no pairing.

use core::sync::atomic::{AtomicU64, Ordering};

use toehold_channel::table::{FLAG_CONNECTING, FLAG_OFFLOAD, FLAG_PINNED, FLAG_REFUSED};
use toehold_stream::calls::Calls;

use crate::adapter::{offers, requests};
use crate::connection::Connection;
use crate::connection::orderings::PIN_SEQ_CST;
use crate::offload::liveness::send_liveness_settings;
use crate::pairing;
use crate::transfer::fast_path::{RECEIVE_FLAGS, SEND_FLAGS};
use crate::transfer::host_call::{Counted, Mark};
use crate::waiting::seen_waits;

/// A plain call on the host path that has begun.
pub(crate) struct HostCall<'a>(Option<Counted<'a>>);

/// A send with `flags` begins: the caller makes the program's own call, and then calls
/// [`HostCall::end_send`].
#[inline(always)]
pub(crate) fn begin_send<'a>(
    connection: &Connection,
    flags: i32,
    mark: &'a Mark,
) -> Option<HostCall<'a>> {
    let calls = &connection.local.tx_in_flight;
    (flags & !SEND_FLAGS == 0).then(|| begin(connection, calls, mark))?
}

/// As [`begin_send`], of a receive, which ends by [`HostCall::end_receive`].
#[inline(always)]
pub(crate) fn begin_receive<'a>(
    connection: &Connection,
    flags: i32,
    mark: &'a Mark,
) -> Option<HostCall<'a>> {
    let calls = &connection.local.rx_in_flight;
    (flags & !RECEIVE_FLAGS == 0).then(|| begin(connection, calls, mark))?
}

#[inline(always)]
fn begin<'a>(
    connection: &Connection,
    calls: &'static Calls,
    mark: &'a Mark,
) -> Option<HostCall<'a>> {
    const BY_ENGINE: u32 = FLAG_CONNECTING | FLAG_REFUSED | FLAG_OFFLOAD;
    let (entry, local) = (connection.entry, connection.local);
    // Loaded before the region: see `begin_pinned_call`.
    let flags = entry.flags.load(PIN_SEQ_CST);
    if flags & BY_ENGINE != 0 {
        return None;
    }
    send_liveness_settings();
    if flags & FLAG_PINNED != 0 {
        let is_on_carrier = local.attachment.begin_pinned_call();
        return is_on_carrier.then_some(HostCall(None));
    }
    if offers::offer_waits(connection) || !local.offered.load(Ordering::Relaxed).is_null() {
        return None;
    }
    Some(HostCall(Some(Counted::begin(connection, calls, mark)?)))
}

impl HostCall<'_> {
    /// The program's own call has returned `result`. Returns it.
    #[inline(never)]
    pub(crate) fn end_send(self, connection: &Connection, result: isize) -> isize {
        let (entry, local) = (connection.entry, connection.local);
        self.end(connection, &local.tx_in_flight, &entry.tx_carrier, result)
    }

    /// As [`HostCall::end_send`], of a receive.
    #[inline(never)]
    pub(crate) fn end_receive(self, connection: &Connection, result: isize) -> isize {
        let (entry, local) = (connection.entry, connection.local);
        self.end(connection, &local.rx_in_flight, &entry.rx_carrier, result)
    }

    #[inline(always)]
    fn end(
        self,
        connection: &Connection,
        calls: &Calls,
        carried: &AtomicU64,
        result: isize,
    ) -> isize {
        // The connection may have been closed under the call.
        let is_its = result > 0 && connection.is_current();
        if is_its {
            carried.fetch_add(result as u64, Ordering::Relaxed);
        }
        let Some(counted) = self.0 else {
            if is_its {
                requests::follow();
            }
            return result;
        };
        counted.end(calls);
        seen_waits::after_call(connection.local, result);
        if is_its {
            pairing::after_plain_call(connection, result as u64);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use toehold_channel::table::Reason;

    use super::*;

    fn sends(connection: &Connection, flags: i32) -> Option<isize> {
        let mark = Mark::default();
        let call = begin_send(connection, flags, &mark)?;
        Some(call.end_send(connection, 5))
    }

    fn receives(connection: &Connection, flags: i32, result: isize) -> Option<isize> {
        let mark = Mark::default();
        let call = begin_receive(connection, flags, &mark)?;
        Some(call.end_receive(connection, result))
    }

    #[test]
    fn bytes_of_plain_calls_are_counted() {
        let connection = Connection::of_a_test(-1);
        for sent in [5, 10] {
            assert_eq!(sends(&connection, libc::MSG_NOSIGNAL), Some(5));
            assert_eq!(receives(&connection, 0, 7), Some(7));
            assert_eq!(receives(&connection, 0, -1), Some(-1));
            let entry = connection.entry;
            assert_eq!(entry.tx_carrier.load(Ordering::Relaxed), sent);
            assert_eq!(receives(&connection, libc::MSG_PEEK, 7), None);
            assert_eq!(sends(&connection, libc::MSG_OOB), None);
            connection.pin(Reason::Unsupported);
        }
        assert_eq!(connection.entry.rx_carrier.load(Ordering::Relaxed), 14);
    }

    #[test]
    fn call_is_named_unless_the_connection_is_pinned() {
        let connection = Connection::of_a_test(-1);
        let calls = &connection.local.tx_in_flight;
        let mark = Mark::default();
        let call = begin_send(&connection, 0, &mark).expect("there is no region");
        assert!(!calls.are_none());
        call.end_send(&connection, -1);
        assert!(calls.are_none(), "it is over");
        connection.pin(Reason::Unsupported);
        let call = begin_send(&connection, 0, &mark).expect("there is no region");
        assert!(calls.are_none());
        call.end_send(&connection, -1);
    }

    /// Another thread gives the region, and has not looked yet whether the connection is pinned.
    #[test]
    fn region_is_used_as_long_as_it_is_there() {
        let connection = Connection::of_a_test(-1);
        let mut memory = 0u8;
        for _ in 0..2 {
            connection.local.attachment.put(&raw mut memory);
            assert_eq!(sends(&connection, 0), None);
            connection.local.attachment.take();
            assert_eq!(sends(&connection, 0), Some(5));
            connection.pin(Reason::Unsupported);
        }
    }

    #[test]
    fn connection_through_the_engine_takes_the_general_way() {
        let connection = Connection::of_a_test(-1);
        (connection.entry.flags).fetch_or(FLAG_OFFLOAD, Ordering::Relaxed);
        assert_eq!(sends(&connection, 0), None);
    }
}
