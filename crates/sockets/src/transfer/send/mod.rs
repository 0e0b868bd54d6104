//! Sending: to the carrier until the direction moves up, then to the ring.

pub(crate) mod opening;
mod waiting;

use core::ffi::c_void;
use core::ops::ControlFlow;
use core::sync::atomic::{Ordering, fence};

use libc::iovec;
use toehold_channel::table::{
    FLAG_CONNECTING, FLAG_DEFERRED, FLAG_OFFLOAD, FLAG_REFUSED, Mode, Reason,
};
use toehold_stream::end::End;

use crate::adapter::offers;
use crate::connection::carrier::Carrier;
use crate::connection::resets::fault_of_peer;
use crate::connection::{self, Connection, Inside};
use crate::connection::{pending_errors, resets, unix};
use crate::direction::{self, Credit};
use crate::direction::{doorbells, notifier, overflow, switching, takeover};
use crate::epoll::news;
use crate::express::{returning, turns, unseen_waits};
use crate::offload::liveness::send_liveness_settings;
use crate::offload::{awaiting, endings};
use crate::pairing::{self, leaving};
use crate::system::deferral::{self, Handlers};
use crate::system::{errno, sys};
use crate::transfer::buffers;
use crate::transfer::host_call::{Counted, Mark};
use crate::transfer::kernel_call::by_kernel;
use crate::waiting::seen_waits;
use crate::waiting::sleep::{self, Deadline};

/// If a message of at most this size does not fit into a small ring, its rest goes on the carrier
/// at once, so that no message of another thread comes between its parts. The kernel, too, would
/// have sent it as a whole.
const WHOLE_BYTES: usize = 4096;
/// Bytes that are copied before they are published: the reader works on one chunk while the next is
/// copied.
pub(crate) const CHUNK_BYTES: usize = 32 << 10;

/// Sends `parts`; `kernel` is the program's own call, made when the connection is on the host path.
///
/// # Safety
/// `parts` are readable.
#[inline]
pub(crate) unsafe fn transmit(
    connection: &Connection,
    parts: &[iovec],
    flags: i32,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe { transmit_message(connection, parts, NO_CONTROL, flags, false, kernel) }
}

/// As [`transmit`], for a later part of a program's call that has already slept or moved bytes.
///
/// # Safety
/// `parts` are readable.
pub(crate) unsafe fn transmit_more(
    connection: &Connection,
    parts: &[iovec],
    flags: i32,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe { transmit_message(connection, parts, NO_CONTROL, flags, true, kernel) }
}

/// Control messages of a program's message: their address and length.
pub(crate) type Control = (*mut c_void, usize);
const NO_CONTROL: Control = (core::ptr::null_mut(), 0);

/// As [`transmit`], with control messages, which go to the kernel with the first byte. The
/// connection is pinned to its carrier. `has_begun` is as in [`transmit_more`].
///
/// # Safety
/// `parts` and `control` are readable.
#[inline]
pub(crate) unsafe fn transmit_message(
    connection: &Connection,
    parts: &[iovec],
    control: Control,
    flags: i32,
    has_begun: bool,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    let mut now;
    let mut connection = connection;
    let mut has_begun = has_begun;
    loop {
        let state = connection.entry.flags.load(Ordering::Relaxed);
        if state & (FLAG_CONNECTING | FLAG_REFUSED | FLAG_OFFLOAD) != 0 {
            if state & FLAG_DEFERRED != 0
                // SAFETY: the caller's promise.
                && let Some(sent) = unsafe { opening::send_first(connection, (parts, flags)) }
            {
                return sent;
            }
            match look_at_engine(connection, state, flags) {
                Ok(has_slept) => has_begun |= has_slept,
                Err(error) => return errno::result(Err(error)),
            }
        }
        let mark = Mark::default();
        if let Some(counted) = begin_host_send(connection, &mark) {
            let result = by_kernel(connection, has_begun, &kernel);
            seen_waits::after_call(connection.local, result);
            finish_host_send(connection, counted, result);
            if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
                stay_on_carrier(connection, flags);
            }
            return endings::correct(connection, result, endings::send_error);
        }
        if flags & libc::MSG_FASTOPEN != 0 && Carrier::of(connection) == Carrier::Tcp {
            // The kernel refuses this on a connected socket (`tcp_sendmsg_fastopen` in
            // net/ipv4/tcp.c).
            return by_kernel(connection, has_begun, &kernel);
        }
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { transmit_attached(connection, parts, control, flags) } {
            return result;
        }
        has_begun = true;
        if !connection.is_current() {
            // The table may have another connection at this number now. This is a loop, because a
            // recursive function is not inlined, which would make every call on the host path
            // slower.
            let another = connection::at(connection.fd);
            let Some(another) = another.filter(|another| another.continues(connection)) else {
                return errno::result(Err(libc::EBADF));
            };
            now = another;
            connection = &now;
        }
    }
}

/// Called before a send on a connection that the engine carries or may come to carry. True when it
/// has slept.
///
/// # Errors
/// The program's call fails with it.
fn look_at_engine(connection: &Connection, state: u32, flags: i32) -> Result<bool, i32> {
    let mut has_slept = false;
    if state & (FLAG_CONNECTING | FLAG_REFUSED) != 0 {
        has_slept = awaiting::before_transfer(connection, flags)?;
    }
    if state & FLAG_OFFLOAD != 0
        && connection.entry.tx_mode.load(Ordering::Relaxed) == Mode::Carrier as u32
    {
        if let Some(error) = errno::keep(|| endings::silence(connection)) {
            return Err(error);
        }
    }
    Ok(has_slept)
}

/// Rings cannot express `flags`. The engine cannot mark urgent data either, which the status
/// reports.
#[cold]
fn stay_on_carrier(connection: &Connection, flags: i32) {
    let state = connection.entry.flags.load(Ordering::Relaxed);
    let is_unmarked = flags & libc::MSG_OOB != 0 && state & FLAG_OFFLOAD != 0;
    connection.pin(match is_unmarked {
        true => Reason::Unmarked,
        false => Reason::Unsupported,
    });
}

/// Counts a kernel send on the host path that begins. `None` when the connection has a channel,
/// which must be used instead.
#[inline]
pub(crate) fn begin_host_send<'a>(connection: &Connection, mark: &'a Mark) -> Option<Counted<'a>> {
    let local = connection.local;
    if local.attachment.has_region() {
        return None;
    }
    send_liveness_settings();
    if offers::offer_waits(connection) || !local.offered.load(Ordering::Relaxed).is_null() {
        errno::keep(|| pairing::consider(connection));
    }
    Counted::begin(connection, &local.tx_in_flight, mark)
}

/// Counts out a kernel send that [`begin_host_send`] has counted.
#[inline]
pub(crate) fn finish_host_send(connection: &Connection, counted: Counted<'_>, result: isize) {
    let entry = connection.entry;
    // The connection may have been closed under the call.
    let is_its = result > 0 && connection.is_current();
    if is_its {
        entry.tx_carrier.fetch_add(result as u64, Ordering::Relaxed);
    }
    counted.end(&connection.local.tx_in_flight);
    if is_its {
        pairing::after_host_call(connection, result as u64);
    }
}

/// The result of one step under the send lock.
pub(crate) enum Step {
    /// Bytes moved.
    Sent(usize),
    /// Bytes moved, and the next buffer is bad.
    Faulted(usize),
    /// The ring is full.
    NoCredit,
    /// The kernel's buffer is full.
    KernelFull,
    /// There are no more bytes to send.
    Dry,
}

/// Sends by the channel. `None`: the connection has left it.
///
/// # Safety
/// `parts` and `control` are readable.
unsafe fn transmit_attached(
    connection: &Connection,
    parts: &[iovec],
    control: Control,
    flags: i32,
) -> Option<isize> {
    // SAFETY: the caller's promise.
    let result = unsafe { transmit_by_steps(connection, parts, control, flags) };
    leaving::after_transfer(connection, result, endings::send_error)
}

unsafe fn transmit_by_steps(
    connection: &Connection,
    parts: &[iovec],
    control: Control,
    flags: i32,
) -> Result<usize, i32> {
    let total = buffers::total(parts)?;
    let waits = flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking();
    carry(connection, total, waits, |end, done| {
        let control = if done == 0 { control } else { NO_CONTROL };
        // SAFETY: the caller's promise.
        unsafe { step(connection, end, (parts, control), done, total - done, flags) }
    })
}

/// Sends `total` bytes by calls of `step`, which gets the number of bytes sent so far and runs
/// under the send lock. If `waits` is true, the call sleeps between two steps, without the lock;
/// otherwise it returns.
///
/// # Errors
/// An errno, or [`errno::LEFT_CHANNEL`]. After the first byte an error is kept for the next call.
#[inline]
pub(crate) fn carry(
    connection: &Connection,
    total: usize,
    waits: bool,
    mut step: impl FnMut(&End<'_>, usize) -> Result<Step, i32>,
) -> Result<usize, i32> {
    let mut call = Call {
        connection,
        total,
        waits,
        done: 0,
        deadline: Deadline::default(),
        handlers: None,
        inside: None,
    };
    loop {
        let (end, step) = match call.locked(&mut step) {
            Ok(locked) => locked,
            Err(error) => return errno::unless_moved(call.done, error),
        };
        let went = match step {
            Ok(Step::Sent(moved)) => call.sent(&end, moved),
            Ok(Step::Faulted(moved)) => return Ok(call.done + moved),
            Ok(Step::Dry) => return Ok(call.done),
            Ok(Step::NoCredit) => call.wait_for_credit(&end),
            Ok(Step::KernelFull) => call.wait_for_kernel(&end),
            Err(error) => return call.failed(error),
        };
        if let ControlFlow::Break(result) = went {
            return result;
        }
    }
}

/// `Break` has the result of the program's call; on `Continue` the call takes another step.
type Went = ControlFlow<Result<usize, i32>>;

const GOES_ON: Went = ControlFlow::Continue(());

/// The state of a program's send through the channel.
struct Call<'c> {
    connection: &'c Connection,
    total: usize,
    /// The call may sleep.
    waits: bool,
    /// Bytes so far.
    done: usize,
    deadline: Deadline,
    /// Signal handlers that ran before the first wait, or that did not end the waits before the
    /// call had sent bytes.
    handlers: Option<Handlers>,
    /// From the first sleep on, so that the connection does not leave its channel before the call
    /// has sent everything: then the call would have to return a part of its count.
    inside: Option<Inside>,
}

impl Call<'_> {
    /// Takes one step under the send lock. Also returns our end of the channel.
    ///
    /// # Errors
    /// No step was possible: the call returns the bytes that it has moved, or fails.
    #[inline]
    fn locked(
        &self,
        step: &mut impl FnMut(&End<'_>, usize) -> Result<Step, i32>,
    ) -> Result<(End<'static>, Result<Step, i32>), i32> {
        let connection = self.connection;
        let _held = takeover::lock_sending(connection).ok_or(libc::EAGAIN)?;
        if !connection.is_current() {
            return Err(libc::EBADF);
        }
        let end = connection.end().ok_or(errno::LEFT_CHANNEL)?;
        let step = step(&end, self.done);
        Ok((end, step))
    }

    /// `moved` bytes were sent.
    #[inline]
    fn sent(&mut self, end: &End<'_>, moved: usize) -> Went {
        if turns::is_unseen(self.connection) {
            unseen_waits::sent(self.connection, end);
        }
        self.done += moved;
        match self.done >= self.total {
            true => ControlFlow::Break(Ok(self.done)),
            false => GOES_ON,
        }
    }

    /// A step has failed with `error`.
    fn failed(&mut self, error: i32) -> Result<usize, i32> {
        self.inside = None;
        match error {
            // A bad pointer is the call's own error.
            libc::EFAULT if self.done > 0 => Ok(self.done),
            error if self.done > 0 => {
                pending_errors::keep_for_next_call(self.connection, error);
                Ok(self.done)
            }
            errno::GOES_BACK => return_to_kernel(self.connection),
            error => Err(error),
        }
    }

    /// The ring is full: waits for credit, if the call may.
    fn wait_for_credit(&mut self, end: &End<'_>) -> Went {
        let connection = self.connection;
        if turns::is_unaccepted(connection, end) && overflow::is_due(connection, end) {
            // These are more bytes than may wait for `accept` in the ring. The kernel has more
            // room.
            self.inside = None;
            if return_to_kernel(connection) == Err(errno::LEFT_CHANNEL) {
                return self.ends_with(errno::LEFT_CHANNEL);
            }
        }
        self.inside = self.inside.take().or_else(|| connection.inside());
        let Some(inside) = &self.inside else {
            return GOES_ON;
        };
        if !self.waits {
            // Called before the request: news of credit that comes in between must count as an
            // edge.
            news::writing_blocked(connection);
            match direction::want_credit(connection, inside) {
                Credit::Here | Credit::WentDown => return GOES_ON,
                Credit::WillRing => return self.ends_with(libc::EAGAIN),
            }
        }
        let call = self.as_seen_by_signals();
        let inside = self.inside.as_ref().expect("it is inside by now");
        let waited = waiting::wait_for_credit(connection, inside, &mut self.deadline, call);
        self.after_wait(waited, call)
    }

    /// The kernel's buffer is full: waits for room, if the call may.
    fn wait_for_kernel(&mut self, end: &End<'_>) -> Went {
        let connection = self.connection;
        doorbells::try_drain(connection, end);
        if !self.waits {
            news::writing_blocked(connection);
            news::watch_kernel_writable(connection);
            return self.ends_with(libc::EAGAIN);
        }
        self.inside = self.inside.take().or_else(|| connection.inside());
        if self.inside.is_none() {
            return GOES_ON;
        }
        let call = self.as_seen_by_signals();
        let waited = waiting::wait_for_kernel(connection, &mut self.deadline);
        self.after_wait(waited, call)
    }

    fn as_seen_by_signals(&mut self) -> sleep::Call {
        sleep::Call {
            handlers: *self.handlers.get_or_insert_with(deferral::handlers),
            option: libc::SO_SNDTIMEO,
            has_moved: self.done > 0,
        }
    }

    fn after_wait(&mut self, waited: Result<(), i32>, call: sleep::Call) -> Went {
        let fd = self.connection.number();
        match waited {
            Err(libc::EINTR) if call.goes_on_after_signal(fd) => {}
            Err(error) => return self.ends_with(error),
            Ok(()) => {}
        }
        self.handlers = Some(call.after_wait(fd));
        GOES_ON
    }

    /// The call ends with `error`, or with the count of bytes that it has moved.
    fn ends_with(&self, error: i32) -> Went {
        ControlFlow::Break(errno::unless_moved(self.done, error))
    }
}

/// Brings a connection that will not be accepted back to the kernel. No lock is held.
#[cold]
fn return_to_kernel(connection: &Connection) -> Result<usize, i32> {
    Err(match returning::return_to_kernel(connection) {
        true => errno::LEFT_CHANNEL,
        false => libc::ECONNRESET,
    })
}

/// Sends as many bytes as possible without waiting. The caller holds the send lock.
unsafe fn step(
    connection: &Connection,
    end: &End<'_>,
    (parts, control): (&[iovec], Control),
    skip: usize,
    want: usize,
    flags: i32,
) -> Result<Step, i32> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        stay_on_carrier(connection, flags);
    }
    begin_step(connection, end, skip)?;
    if end.tx_mode() != Mode::Ring {
        // SAFETY: the caller's promise.
        return unsafe { to_carrier(connection, end, (parts, control), skip, want, flags) };
    }
    let sender = end.sender();
    if want <= direction::SHORT_BYTES {
        let (offset, _) = sender.reserve(1)[0];
        direction::fetch_lines(connection, end, offset);
    }
    let mut sent = 0;
    while sent < want {
        let left = (want - sent).min(CHUNK_BYTES);
        let credit = sender
            .credit(left as u64)
            .map_err(|fault| fault_of_peer(connection, fault))?;
        let len = left.min(credit as usize);
        if len == 0 {
            break;
        }
        let stretches = sender.reserve(len);
        // SAFETY: `len` is within the credit, so the stretches are ours to write; `parts` by the
        // caller's promise.
        let copied = unsafe { buffers::gather(end.ring_out(), stretches, parts, skip + sent) };
        if copied.is_err() {
            if sent == 0 {
                return Err(libc::EFAULT);
            }
            // Of the earlier chunks only the first was notified, so a full barrier is needed here.
            sender.publish(0);
            notifier::notify(connection, end)?;
            return Ok(Step::Faulted(sent));
        }
        sent += len;
        if sent < want && credit as usize > len {
            sender.publish_part(len);
            // A sleeping reader should be woken now, not after the last chunk.
            if sent == len {
                // Pairs with the fence in `arming::arm`.
                fence(Ordering::SeqCst);
                notifier::notify(connection, end)?;
                if end.tx_mode() != Mode::Ring {
                    break;
                }
            }
        } else {
            sender.publish(len);
            notifier::notify(connection, end)?;
        }
    }
    if sent == 0 && want > 0 {
        return Ok(Step::NoCredit);
    }
    if sent < want && want <= WHOLE_BYTES && direction::overflow_to_carrier(connection, end) {
        let rest = (parts, NO_CONTROL);
        // SAFETY: the caller's promise.
        match unsafe { to_carrier(connection, end, rest, skip + sent, want - sent, flags) } {
            Ok(Step::Sent(more)) => sent += more,
            Ok(_) => {}
            Err(libc::EFAULT) => return Ok(Step::Faulted(sent)),
            Err(error) => pending_errors::keep_for_next_call(connection, error),
        }
    }
    direction::count_call(&connection.entry.tx_calls);
    Ok(Step::Sent(sent))
}

/// Begins every step: the direction follows the commands and requests that wait for it, and a
/// waiting error is reported. `done` is the number of bytes that the call has sent. The caller
/// holds the send lock.
#[inline]
pub(crate) fn begin_step(connection: &Connection, end: &End<'_>, done: usize) -> Result<(), i32> {
    switching::follow_requests_in_use(connection, end)?;
    if !pending_errors::is_there(connection) {
        return Ok(());
    }
    if unix::is_closed_by_peer(connection) {
        // The error belongs to receives; a send fails only because the peer has closed
        // (unix_stream_sendmsg).
        return Ok(());
    }
    // The kernel reports an error once, to the first call. A call that has already sent bytes
    // returns their count instead.
    let error = if done == 0 {
        pending_errors::take(connection)
    } else {
        None
    };
    match error.unwrap_or(libc::ECONNRESET) {
        // The send on the carrier will fail with this error, too, and the kernel sends the signal.
        libc::EPIPE if end.tx_mode() == Mode::Carrier => Ok(()),
        error => Err(error),
    }
}

/// Sends on the carrier, without waiting.
unsafe fn to_carrier(
    connection: &Connection,
    end: &End<'_>,
    (parts, (control, control_len)): (&[iovec], Control),
    skip: usize,
    want: usize,
    flags: i32,
) -> Result<Step, i32> {
    doorbells::try_drain(connection, end);
    let (mut window, count) = buffers::window(parts, skip, want);
    // SAFETY: zeroes are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = window.as_mut_ptr();
    message.msg_iovlen = count as _;
    message.msg_control = control;
    message.msg_controllen = control_len as _;
    // The kernel gives one notice for each of its calls, and the program expects one for each of
    // its own. So only the first bytes of a call go without a copy.
    let flags = match skip {
        0 => flags | libc::MSG_DONTWAIT,
        _ => flags & !libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT,
    };
    let send = || {
        unix::counted(connection, end, || {
            // SAFETY: the window names parts of the program's buffers, and so does `control`.
            // SIGPIPE comes from the kernel, unless the flags forbid it.
            let result = unsafe { sys::sendmsg(connection.number(), &message, flags) };
            let sent = sys::answer(result);
            let count = &connection.entry.tx_carrier;
            count.fetch_add(sent.unwrap_or(0) as u64, Ordering::Relaxed);
            sent
        })
    };
    let is_over = || turns::is_over(connection, end);
    // An engine ends the turn when its remote has only sent a FIN.
    let is_engine = connection.entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    let sent = match send() {
        // A reset after a FIN is EPIPE (tcp_reset, `TCP_CLOSE_WAIT`), which the kernel reports now.
        Err(libc::ECONNRESET) if turns::has_remote_finished(connection, end) => send(),
        sent => sent,
    };
    match sent {
        Ok(sent) => {
            // (Without a byte there is no segment that could be answered.)
            if sent > 0 && !is_engine && is_over() {
                resets::answer_of_ended_turn(connection);
            }
            Ok(Step::Sent(sent))
        }
        // The peer's process is gone, too, and its kernel has answered our doorbells with a reset.
        Err(libc::ECONNRESET) if !is_engine && is_over() => {
            if want > 0 {
                resets::answer_of_ended_turn(connection);
            }
            Ok(Step::Sent(want))
        }
        Err(libc::EAGAIN) => Ok(Step::KernelFull),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use toehold_channel::layout::Control as Words;

    use super::*;

    #[test]
    fn send_that_has_slept_keeps_the_channel_to_its_end() {
        let (socket, _peer) = UnixStream::pair().expect("a pair");
        let connection = Connection::of_a_test(socket.as_raw_fd());
        let words: *mut Words = Box::leak(Box::default());
        let attachment = &connection.local.attachment;
        attachment.put(words.cast());
        let mut has_slept = false;
        let step = |_: &End<'_>, done| {
            // As `leaving::frees`, in another thread.
            let Some(region) = attachment.take_unused() else {
                return Ok(Step::Sent(1));
            };
            attachment.put(region);
            Ok(match done {
                0 => Step::Sent(1),
                _ if has_slept => Step::Dry,
                _ => {
                    has_slept = true;
                    Step::KernelFull
                }
            })
        };
        assert_eq!(carry(&connection, 3, true, step), Ok(3));
        assert!(!attachment.is_used());
    }
}
