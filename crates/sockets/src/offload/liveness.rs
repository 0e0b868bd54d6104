//! Liveness settings: the program sets keepalive and user timeout on its socket, and the engine
//! applies them to the remote.
//!
//! The kernel's own timers watch the carrier, whose other end is the adapter and never silent. The
//! settings are read from the carrier when the connection is made (it may inherit them from a
//! listener) and after the program has set an option. Programs set several options in a row, and a
//! message costs the adapter ten microseconds. So the settings are sent at the program's next call
//! that moves bytes or waits for bytes, which is also the first call that could show a difference.

use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::liveness::{Keepalive, Liveness};
use toehold_channel::offload::true_ends;
use toehold_channel::table::{FLAG_CONNECTING, FLAG_OFFLOAD};

use crate::adapter;
use crate::connection::orderings::OFFLOAD_ACQUIRE;
use crate::connection::{self, Connection};
use crate::system::{errno, sys};

/// One more than the descriptor of the connection whose new settings the adapter does not know yet;
/// 0: none.
static PENDING_FD: AtomicU32 = AtomicU32::new(0);

/// A connection through the engine was made: sends its settings, if the program has set any.
pub(super) fn begin(connection: &Connection) {
    let liveness = liveness_of(connection.fd);
    if liveness != Liveness::default() {
        send_settings(connection, &liveness);
    }
}

/// Sends the settings of a carrier's connection, some time after its turn has begun.
#[cold]
pub(crate) fn send_of_turn(connection: &Connection) {
    if connection.entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_OFFLOAD != 0 {
        send_settings(connection, &liveness_of(connection.fd));
    }
}

/// The program has set an option. True when the settings must be sent some time after the carrier's
/// turn has begun, because most turns are over by then.
pub(crate) fn option_set(connection: &Connection, level: i32, name: i32) -> bool {
    let is_ours = matches!(
        (level, name),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE)
            | (
                libc::IPPROTO_TCP,
                libc::TCP_KEEPIDLE
                    | libc::TCP_KEEPINTVL
                    | libc::TCP_KEEPCNT
                    | libc::TCP_USER_TIMEOUT
            )
    );
    let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
    if !is_ours || flags & FLAG_OFFLOAD == 0 {
        return false;
    }
    if connection.local.express.is_carrier() {
        return true;
    }
    if flags & FLAG_CONNECTING != 0 {
        // The settings are sent when the engine's answer comes.
        return false;
    }
    if connection.local.attachment.has_region() {
        // Sent at once, because rings may serve all later calls, and those do not check
        // `PENDING_FD`.
        send_settings(connection, &liveness_of(connection.fd));
        return false;
    }
    let this = connection.fd.unsigned_abs() + 1;
    // Relaxed: a hint. The message has the kernel's values at the time of sending.
    let other = PENDING_FD.swap(this, Ordering::Relaxed);
    if other != this {
        send_of_descriptor(other);
    }
    false
}

/// Sends unsent settings. Called before a call that moves bytes, waits, or replaces the program.
#[inline]
pub fn send_liveness_settings() {
    if PENDING_FD.load(Ordering::Relaxed) != 0 {
        send_pending_now();
    }
}

#[cold]
fn send_pending_now() {
    errno::keep(|| send_of_descriptor(PENDING_FD.swap(0, Ordering::Relaxed)));
}

/// Sends the settings of the connection that has that descriptor now.
fn send_of_descriptor(unsaid: u32) {
    let Some(fd) = unsaid.checked_sub(1) else {
        return;
    };
    let is_there = |connection: &Connection| {
        let flags = connection.entry.flags.load(OFFLOAD_ACQUIRE);
        flags & (FLAG_OFFLOAD | FLAG_CONNECTING) == FLAG_OFFLOAD
    };
    if let Some(connection) = connection::at(fd.cast_signed()).filter(is_there) {
        send_settings(&connection, &liveness_of(connection.fd));
    }
}

fn liveness_of(fd: i32) -> Liveness {
    let option = |level, name| sys::getsockopt::<i32>(fd, level, name).unwrap_or(0);
    let tcp = |name| option(libc::IPPROTO_TCP, name).max(0).unsigned_abs();
    let keepalive = || Keepalive {
        idle_seconds: tcp(libc::TCP_KEEPIDLE),
        interval_seconds: tcp(libc::TCP_KEEPINTVL),
        probes_max: u8::try_from(tcp(libc::TCP_KEEPCNT)).unwrap_or(u8::MAX),
    };
    let is_kept = option(libc::SOL_SOCKET, libc::SO_KEEPALIVE) != 0;
    Liveness {
        keepalive: is_kept.then(keepalive),
        user_timeout_ms: NonZeroU32::new(tcp(libc::TCP_USER_TIMEOUT)),
    }
}

fn send_settings(connection: &Connection, liveness: &Liveness) {
    let (local, remote) = true_ends(connection.entry);
    let mut message = liveness.message();
    (message.local, message.local_port) = (local.ip, local.port);
    (message.remote, message.remote_port) = (remote.ip, remote.port);
    adapter::send_message(&message);
}
