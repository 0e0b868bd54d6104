//! Waiting for credit, and for room in the kernel's buffer.

use core::sync::atomic::Ordering;

use toehold_stream::end::End;

use crate::connection::pending_errors;
use crate::connection::{Connection, HINT_LOOK};
use crate::direction::{self, Credit};
use crate::direction::{doorbells, takeover};
use crate::system::{cancellation, errno, real, sys};
use crate::transfer::spinning::{self, Looked};
use crate::waiting::arming::{arm, disarm};
use crate::waiting::sleep::{Call, Deadline, sleep_until, timeout_ns};

/// Blocks until there may be credit, or the direction went down.
pub(super) fn wait_for_credit(
    connection: &Connection,
    end: &End<'_>,
    deadline: &mut Deadline,
    call: Call,
) -> Result<(), i32> {
    let limit_ns = deadline.left_ns(connection.number(), libc::SO_SNDTIMEO)?;
    let (entry, local) = (connection.entry, connection.local);
    let looked =
        spinning::before_sleep(connection, end, call, libc::POLLRDHUP, || full_no_more(end))?;
    if let Looked::Found = looked {
        return Ok(());
    }
    if takeover::lock_sending(connection)
        .is_some_and(|_held| direction::overflow_to_carrier(connection, end))
    {
        doorbells::try_drain(connection, end);
        return Ok(());
    }
    let since = sys::now_ns();
    arm(connection, end);
    let asked = direction::want_credit(connection, end);
    let sleeps = matches!(asked, Credit::WillRing) && !full_no_more(end);
    let (mut result, mut error) = (1, 0);
    if sleeps {
        let undo = || {
            disarm_and_want_nothing(connection, end);
            // The caller's guard.
            local.attachment.leave_for_ended();
        };
        result = cancellation::sleeping(undo, || {
            sleep_for_doorbell(connection.number(), limit_ns, call)
        });
        error = if result < 0 { errno::get() } else { 0 };
        entry.wakeups.fetch_add(1, Ordering::Relaxed);
    }
    disarm_and_want_nothing(connection, end);
    if !sleeps {
        doorbells::try_drain(connection, end);
        return Ok(());
    }
    local.spin.slept(sys::now_ns() - since);
    if result == 0 {
        // The carrier has ended, so no doorbell can come. The kernel reports the rest.
        entry.rx_hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
        direction::go_down_locked(connection, end);
        return Ok(());
    }
    if result < 0 {
        if error == libc::EINTR || error == libc::EAGAIN {
            return Err(error);
        }
        if error == libc::EBADF {
            // The descriptor was closed. The next step finds another one, or that there is none.
            return Ok(());
        }
        pending_errors::keep(connection, error);
        direction::go_down_locked(connection, end);
        return Ok(());
    }
    doorbells::take_seen(connection, end, result as usize);
    Ok(())
}

/// The sleep is over.
fn disarm_and_want_nothing(connection: &Connection, end: &End<'_>) {
    disarm(connection, end);
    // Without the lock the old request stays, which costs the peer one look.
    if let Some(_held) = takeover::lock_sending(connection) {
        direction::stop_wanting(connection, end);
    }
}

/// True when the ring is not full, by our cursor and the last known `head`.
fn full_no_more(end: &End<'_>) -> bool {
    end.sender().looks_writable()
}

/// Sleeps until bytes are on the carrier (their number), it ended (0), or something went wrong (-1
/// and errno), within `SO_SNDTIMEO`.
fn sleep_for_doorbell(fd: i32, limit_ns: u64, call: Call) -> isize {
    let mut bells = [0u8; 64];
    // SAFETY: `bells` is writable. A `recv` of libc, so that signals restart it as they would
    // restart a send.
    let mut peek = |flags| unsafe {
        let flags = libc::MSG_PEEK | flags;
        real::recv(fd, bells.as_mut_ptr().cast(), bells.len(), flags)
    };
    if limit_ns == 0 && !call.has_moved && timeout_ns(fd, libc::SO_RCVTIMEO) == 0 {
        return peek(0);
    }
    match sleep_until(fd, libc::POLLIN | libc::POLLRDHUP, limit_ns) {
        Ok(Some(_)) => {}
        Ok(None) => {
            errno::set(libc::EAGAIN);
            return -1;
        }
        Err(_) => return -1,
    }
    // `poll` reports an end in the same way as doorbells, whether doorbells are before it or not.
    match peek(libc::MSG_DONTWAIT) {
        // Another thread has taken the doorbells.
        -1 if errno::get() == libc::EAGAIN => 1,
        seen => seen,
    }
}

/// Sleeps until the kernel takes more, within `SO_SNDTIMEO`. The caller is inside the region.
pub(super) fn wait_for_kernel(connection: &Connection, deadline: &mut Deadline) -> Result<(), i32> {
    let fd = connection.number();
    let limit_ns = deadline.left_ns(fd, libc::SO_SNDTIMEO)?;
    // The caller's guard.
    let undo = || connection.local.attachment.leave_for_ended();
    let seen = cancellation::sleeping(undo, || sleep_until(fd, libc::POLLOUT, limit_ns))?;
    seen.map(drop).ok_or(libc::EAGAIN)
}
