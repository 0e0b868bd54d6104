//! The kernel's count of a TCP connection's bytes beside our own.
//!
//! If a single byte went past our hooks, we would not know where in the stream we are.

use core::sync::atomic::Ordering;

use toehold_channel::table::FLAG_ACCEPTED;

use crate::connection::Connection;
use crate::sys;

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
const TCP_CLOSE_WAIT: u8 = 8;

/// Looks before giving up: bytes may be on the move.
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

/// Asks the kernel. `None` when bytes were on the move meanwhile.
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
        // RFC 4898 counts in `tcpi_bytes_acked` what left the send queue; the SYN of an active open
        // is counted as one.
        let syn = u64::from(connection.entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED == 0);
        return Some(Counted {
            state: after.state(),
            taken: after.word(BYTES_RECEIVED).wrapping_sub(waiting as u64),
            sent: (after.word(BYTES_ACKED) + unacknowledged as u64).wrapping_sub(syn),
        });
    }
    None
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
