//! The kernel's count of a TCP connection's bytes beside our own.
//!
//! If a single byte went past our hooks, our position in the stream would be wrong. A process that
//! is killed as a system call returns does not count the call's bytes, so its heir asks the kernel.

use core::sync::atomic::Ordering;

use toehold_channel::table::FLAG_ACCEPTED;
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::connection::unix;
use crate::system::sys;

/// The kernel's `struct tcp_info` up to `tcpi_bytes_received` (include/uapi/linux/tcp.h).
#[derive(Clone, Copy)]
#[repr(C)]
struct Info {
    bytes: [u8; 136],
}

impl Default for Info {
    fn default() -> Info {
        Info { bytes: [0; 136] }
    }
}

const STATE: usize = 0;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_TIME_WAIT: u8 = 6;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;
const TCP_LAST_ACK: u8 = 9;
const TCP_CLOSING: u8 = 11;
/// States after our own FIN, which is counted as a byte.
const FIN_SENT: [u8; 5] = [
    TCP_FIN_WAIT1,
    TCP_FIN_WAIT2,
    TCP_TIME_WAIT,
    TCP_LAST_ACK,
    TCP_CLOSING,
];
/// States after the peer's FIN, which is counted as a byte, too (`tcp_rcv_nxt_update`).
const FIN_RECEIVED: [u8; 4] = [TCP_TIME_WAIT, TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING];

/// The number of times that we compare before we give up, because bytes may be moving.
const LOOKS_MAX: usize = 4;

impl Info {
    fn of(fd: i32) -> Option<Info> {
        sys::getsockopt::<Info>(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()
    }

    fn state(&self) -> u8 {
        self.bytes[STATE]
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }
}

/// Bytes of a connection as the kernel counts them.
struct Counted {
    state: u8,
    /// Received, and taken by the program.
    taken: u64,
    /// Given to the kernel to be sent.
    sent: u64,
}

/// Asks the kernel. `None` when bytes moved meanwhile.
fn count(connection: &Connection) -> Option<Counted> {
    let fd = connection.fd;
    for _ in 0..LOOKS_MAX {
        let before = Info::of(fd)?;
        let waiting = sys::bytes_waiting(fd);
        let unacknowledged = sys::bytes_unacknowledged(fd);
        let after = Info::of(fd)?;
        let same = |at| before.word(at) == after.word(at);
        let is_quiet = before.state() == after.state() && same(BYTES_ACKED) && same(BYTES_RECEIVED);
        if !is_quiet || waiting < 0 || unacknowledged < 0 {
            continue;
        }
        return Some(Counted {
            state: after.state(),
            taken: after.word(BYTES_RECEIVED).wrapping_sub(waiting as u64),
            sent: (after.word(BYTES_ACKED) + unacknowledged as u64).wrapping_sub(syn(connection)),
        });
    }
    None
}

/// The number of times that the kernel is asked, and at which interval, while bytes are moving. No
/// member of the family sends (or receives) meanwhile, so the bytes soon come to rest.
const ASKS_MAX: usize = 4_000;
const ASK_AGAIN_NS: u64 = 50_000;

/// Most bytes that one system call moves (`MAX_RW_COUNT`).
const CALL_BYTES_MAX: u64 = 1 << 31;

/// The count that `look` finds: `ours`, or `ours` plus the bytes of one more call.
fn settle(ours: u64, look: impl Fn() -> Option<u64>) -> Option<u64> {
    let found = (0..ASKS_MAX).find_map(|_| {
        let found = look();
        if found.is_none() {
            sys::sleep(ASK_AGAIN_NS);
        }
        found
    })?;
    let moved = found.checked_sub(ours)?;
    (moved <= CALL_BYTES_MAX).then_some(found)
}

/// `None` while bytes are on the move.
fn given_by_kernel(fd: i32, ours: u64, syn: u64) -> Option<u64> {
    let before = Info::of(fd)?;
    let unacknowledged = u64::try_from(sys::bytes_unacknowledged(fd)).ok()?;
    let after = Info::of(fd)?;
    let fin = u64::from(FIN_SENT.contains(&after.state()));
    let is_quiet =
        before.state() == after.state() && before.word(BYTES_ACKED) == after.word(BYTES_ACKED);
    let given = (after.word(BYTES_ACKED) + unacknowledged).wrapping_sub(syn + fin);
    // A closed socket takes no more bytes, and it is unknown whether a FIN was sent.
    is_quiet.then_some(if after.state() == TCP_CLOSE {
        ours
    } else {
        given
    })
}

/// `None` while bytes are on the move.
fn taken_by_kernel(fd: i32, ours: u64) -> Option<u64> {
    let before = Info::of(fd)?;
    let waiting = u64::try_from(sys::bytes_waiting(fd)).ok()?;
    let after = Info::of(fd)?;
    let fin = u64::from(FIN_RECEIVED.contains(&after.state()));
    let is_quiet = before.state() == after.state()
        && before.word(BYTES_RECEIVED) == after.word(BYTES_RECEIVED);
    let taken = (after.word(BYTES_RECEIVED)).wrapping_sub(waiting + fin);
    // For a closed socket it is unknown whether a FIN was received; most likely it was not reset.
    let is_fin = after.state() == TCP_CLOSE && taken == ours.wrapping_add(1);
    is_quiet.then_some(if is_fin { ours } else { taken })
}

/// RFC 4898 counts in `tcpi_bytes_acked` what left the send queue; the SYN of an active open is
/// counted as one.
fn syn(connection: &Connection) -> u64 {
    u64::from(connection.entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED == 0)
}

/// Bytes that were sent on the carrier, by the kernel's count: the former owner of the send lock
/// may have been killed before it counted. `None` when the kernel does not know. The caller holds
/// the lock now.
pub(crate) fn given(connection: &Connection, end: &End<'_>) -> Option<u64> {
    let ours = connection.entry.tx_carrier.load(Ordering::Relaxed);
    let fd = connection.number();
    match Carrier::of(connection) {
        Carrier::Unix => unix::given(connection, end),
        Carrier::Tcp => settle(ours, || given_by_kernel(fd, ours, syn(connection))),
    }
}

/// Bytes that were taken from the carrier, as [`given`]. The caller has the receive lock now.
pub(crate) fn taken(connection: &Connection, end: &End<'_>) -> Option<u64> {
    let ours = connection.entry.rx_carrier.load(Ordering::Relaxed);
    let fd = connection.number();
    match Carrier::of(connection) {
        Carrier::Unix => settle(ours, || unix::taken(connection, end)),
        Carrier::Tcp => settle(ours, || taken_by_kernel(fd, ours)),
    }
}

/// Compares our byte counts with the kernel's; `None` when bytes were on the move while we looked,
/// or the connection is not established.
pub(crate) fn agree(connection: &Connection) -> Option<bool> {
    let counted = count(connection)?;
    let entry = connection.entry;
    (counted.state == TCP_ESTABLISHED).then(|| {
        counted.taken == entry.rx_carrier.load(Ordering::Relaxed)
            && counted.sent == entry.tx_carrier.load(Ordering::Relaxed)
    })
}

/// As [`agree`], of a connection that the program is about to close.
pub(crate) fn agree_at_end(connection: &Connection) -> Option<bool> {
    let counted = count(connection)?;
    let entry = connection.entry;
    // The peer's FIN is counted as a byte (`tcp_rcv_nxt_update`).
    let fin = match counted.state {
        TCP_ESTABLISHED => 0,
        TCP_CLOSE_WAIT => 1,
        _ => return None,
    };
    let ours = entry.rx_carrier.load(Ordering::Relaxed);
    Some((ours..=ours + fin).contains(&counted.taken))
        .map(|is_read| is_read && counted.sent == entry.tx_carrier.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// A connection's opening and accepting end.
    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("its address");
        let client = TcpStream::connect(address).expect("a connection");
        [client, listener.accept().expect("its other end").0]
    }

    fn given(stream: &TcpStream, syn: u64) -> Option<u64> {
        settle(0, || given_by_kernel(stream.as_raw_fd(), 0, syn))
    }

    fn taken(stream: &TcpStream, ours: u64) -> Option<u64> {
        settle(ours, || taken_by_kernel(stream.as_raw_fd(), ours))
    }

    #[test]
    fn kernel_knows_what_a_killed_process_was_about_to_count() {
        let [mut client, mut server] = pair();
        client.write_all(&[1; 1000]).expect("room");
        server.write_all(&[2; 50]).expect("room");
        server.read_exact(&mut [0; 300]).expect("bytes");
        assert_eq!(
            (given(&client, 1), given(&server, 0)),
            (Some(1000), Some(50))
        );
        assert_eq!((taken(&server, 0), taken(&client, 0)), (Some(300), Some(0)));
        // A count below our own is not accepted.
        assert_eq!(taken(&server, 301), None);
    }

    #[test]
    fn end_of_a_direction_is_no_byte_of_it() {
        let [mut client, mut server] = pair();
        client.write_all(&[1; 10]).expect("room");
        client.shutdown(Shutdown::Write).expect("a half close");
        server.read_exact(&mut [0; 9]).expect("bytes");
        assert_eq!((given(&client, 1), taken(&server, 0)), (Some(10), Some(9)));
        assert_eq!(server.read(&mut [0; 10]).expect("the last byte"), 1);
        assert_eq!(server.read(&mut [0; 10]).expect("the end"), 0);
        assert_eq!((given(&client, 1), taken(&server, 0)), (Some(10), Some(10)));
        server.shutdown(Shutdown::Write).expect("the other half");
        assert_eq!((given(&server, 0), taken(&server, 10)), (Some(0), Some(10)));
    }
}
