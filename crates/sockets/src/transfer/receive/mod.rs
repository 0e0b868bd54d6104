//! Receives from the carrier up to a switch, and from the ring, and waits in between.

mod from_offset;
mod waiting;

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use libc::iovec;
use toehold_channel::layout::{RING_BYTES, SIDE_ACQUIRE};
use toehold_channel::table::{FLAG_CONNECTING, FLAG_REFUSED, FLAG_SHUT_RX, Mode, Reason};
use toehold_stream::end::End;
use toehold_stream::next::{Carrier, Next};

use crate::adapter::offers;
use crate::connection::carrier::{Carrier as Kind, WaitsFor};
use crate::connection::{self, Connection, HINT_EOF, HINT_LOOK, Inside};
use crate::connection::{pending_errors, resets, settings, unix};
use crate::direction::{self, doorbells, switching, takeover};
use crate::epoll::news;
use crate::express::{returning, turns};
use crate::offload::liveness::send_liveness_settings;
use crate::offload::{awaiting, endings};
use crate::pairing::{self, leaving};
use crate::system::{errno, sys};
use crate::transfer::control_messages::Control;
use crate::transfer::host_call::{Counted, Mark};
use crate::transfer::kernel_call::by_kernel;
use crate::transfer::receive::waiting::{Waits, arm_for_unknown_wait, wait_for_bytes};
use crate::transfer::{buffers, peek, peek_offset};
use crate::waiting::seen_waits;
use crate::waiting::sleep::sleep_until;

/// Without other signs, a receiver that finds its ring empty looks at the carrier this often.
const CARRIER_LOOK_NS: u64 = 50_000;

/// Time between two looks of a thread that cannot sleep until there is news.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// One look at a connection.
enum Step {
    /// Bytes were moved; true when the sender may be waiting for the credit.
    Got(usize, bool),
    /// The stream ended.
    End,
    /// Nothing there.
    Empty,
}

/// Flags of the program's call that concern a receive of bytes on the carrier.
const OF_CARRIER: i32 = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;

/// Receives into `parts`; `kernel` is the program's own call, made when the connection is on the
/// host path.
///
/// # Safety
/// `parts` are writable.
#[inline]
pub(crate) unsafe fn receive(
    connection: &Connection,
    parts: &[iovec],
    flags: i32,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        receive_message(
            connection,
            parts,
            &mut Control::none(),
            (flags, WaitsFor::LowWater),
            false,
            kernel,
        )
    }
}

/// As [`receive`], with control messages; `has_begun` when the program's call has slept before, or
/// has moved bytes.
///
/// # Safety
/// `parts` and `control` are writable.
#[inline]
pub(crate) unsafe fn receive_message(
    connection: &Connection,
    parts: &[iovec],
    control: &mut Control,
    (flags, waits_for): (i32, WaitsFor),
    has_begun: bool,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    let mut now;
    let mut connection = connection;
    let mut has_begun = has_begun;
    loop {
        let flags = Kind::of(connection).receive_flags(flags);
        let mark = Mark::default();
        match begin_host_receive(connection, flags, &mut has_begun, &mark) {
            Err(error) => return errno::result(Err(error)),
            Ok(Some(counted)) => {
                let result = by_kernel(connection, has_begun, &kernel);
                finish_host_receive(connection, counted, result, flags);
                return endings::correct(connection, result, endings::receive_error);
            }
            Ok(None) if flags & libc::MSG_ERRQUEUE != 0 => {
                return by_kernel(connection, has_begun, &kernel);
            }
            Ok(None) => {}
        }
        if flags & libc::MSG_PEEK != 0 {
            // SAFETY: the caller's promise.
            if let Some(looked) = unsafe { from_offset::look(connection, parts, flags) } {
                let answer = looked.map_err(|error| endings::receive_error(connection, error));
                return errno::result(answer);
            }
        }
        let how = (flags, waits_for);
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { receive_attached(connection, parts, control, how) } {
            return result;
        }
        has_begun = true;
        if !connection.is_current() {
            // As in `send::transmit_message`.
            let another = connection::at(connection.fd);
            let Some(another) = another.filter(|another| another.continues(connection)) else {
                return errno::result(Err(libc::EBADF));
            };
            now = another;
            connection = &now;
        }
    }
}

/// Counts a kernel receive on the host path that begins. `None` when the connection has a channel,
/// which must be used instead. `has_begun` is set when the call has slept.
///
/// # Errors
/// The errno with which the program's call fails.
#[inline]
fn begin_host_receive<'a>(
    connection: &Connection,
    flags: i32,
    has_begun: &mut bool,
    mark: &'a Mark,
) -> Result<Option<Counted<'a>>, i32> {
    let (entry, local) = (connection.entry, connection.local);
    if local.attachment.has_region() {
        return Ok(None);
    }
    send_liveness_settings();
    if offers::offer_waits(connection) || !local.offered.load(Ordering::Relaxed).is_null() {
        errno::keep(|| pairing::consider(connection));
    }
    if entry.flags.load(Ordering::Relaxed) & (FLAG_CONNECTING | FLAG_REFUSED) != 0 {
        *has_begun |= awaiting::before_transfer(connection, flags)?;
    }
    Ok(Counted::begin(connection, &local.rx_in_flight, mark))
}

/// Counts out a kernel receive that [`begin_host_receive`] has counted.
#[inline]
fn finish_host_receive(connection: &Connection, counted: Counted<'_>, result: isize, flags: i32) {
    let entry = connection.entry;
    // The connection may have been closed during the call.
    let is_its = result > 0 && connection.is_current();
    if is_its && flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0 {
        entry.rx_carrier.fetch_add(result as u64, Ordering::Relaxed);
    }
    counted.end(&connection.local.rx_in_flight);
    seen_waits::after_call(connection.local, result);
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        connection.pin(Reason::Unsupported);
    } else if is_its {
        pairing::after_host_call(connection, result as u64);
    }
}

/// Receives by the channel. `None`: the connection has left it.
///
/// # Safety
/// `parts` and `control` are writable.
unsafe fn receive_attached(
    connection: &Connection,
    parts: &[iovec],
    control: &mut Control,
    how: (i32, WaitsFor),
) -> Option<isize> {
    // SAFETY: the caller's promise.
    let result = unsafe { receive_by_steps(connection, parts, control, how) };
    leaving::after_transfer(connection, result, endings::receive_error)
}

unsafe fn receive_by_steps(
    connection: &Connection,
    parts: &[iovec],
    control: &mut Control,
    (flags, waits_for): (i32, WaitsFor),
) -> Result<usize, i32> {
    if flags & libc::MSG_OOB != 0 {
        // SAFETY: the caller's promise.
        return unsafe { receive_urgent(connection, parts, flags) };
    }
    let total = buffers::total(parts)?;
    if total == 0 {
        return receive_nothing(connection, flags);
    }
    let mut call = Call::new(connection, total, flags, waits_for);
    loop {
        // SAFETY: the caller's promise.
        let (end, step) = match unsafe { call.step(connection, parts, control) } {
            Ok(locked) => locked,
            Err(error) => return errno::unless_moved(call.done, error),
        };
        let went = match step {
            Ok(Step::Got(moved, _)) => call.got(connection, &end, moved, control.ends_receive()),
            Ok(Step::Empty) if call.done >= call.least => return Ok(call.done),
            Ok(Step::Empty) => call.wait(connection, &end),
            Ok(Step::End) => return call.ended(connection, &end),
            Err(error) => return call.failed(connection, &end, error),
        };
        if let ControlFlow::Break(result) = went {
            return result;
        }
    }
}

/// Receives urgent data. It never travels in a ring: the sender went down for it.
///
/// # Safety
/// `parts` are writable.
#[cold]
unsafe fn receive_urgent(
    connection: &Connection,
    parts: &[iovec],
    flags: i32,
) -> Result<usize, i32> {
    let part = parts.first().ok_or(libc::EINVAL)?;
    let Some(_held) = takeover::lock_receiving(connection) else {
        return Err(libc::EAGAIN);
    };
    if connection.end().is_none() || !connection.is_current() {
        return Err(errno::LEFT_CHANNEL);
    }
    // SAFETY: the caller's promise.
    let result = unsafe {
        sys::recv(
            connection.number(),
            part.iov_base.cast(),
            part.iov_len,
            flags,
        )
    };
    sys::answer(result)
}

/// A receive with room for 0 bytes. The kernel waits for bytes, the end or an error, and then takes
/// nothing (tcp_recvmsg_locked).
#[cold]
fn receive_nothing(connection: &Connection, flags: i32) -> Result<usize, i32> {
    let mut byte = 0u8;
    let byte = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let how = (
        flags & libc::MSG_DONTWAIT | libc::MSG_PEEK,
        WaitsFor::AnyByte,
    );
    // SAFETY: `byte` is writable.
    unsafe { receive_by_steps(connection, &[byte], &mut Control::none(), how) }.map(|_| 0)
}

/// `Break` has the result of the program's call; on `Continue` the call looks again.
type Went = ControlFlow<Result<usize, i32>>;

const LOOKS_AGAIN: Went = ControlFlow::Continue(());

/// The state of a program's receive through the channel.
struct Call {
    flags: i32,
    /// Bytes for which the program's buffers have room.
    total: usize,
    /// The call waits until there are this many bytes.
    least: usize,
    /// The call may sleep.
    waits: bool,
    /// Bytes so far.
    done: usize,
    waits_so_far: Waits,
    /// The end was seen on the carrier: one more look finds all remaining bytes.
    has_seen_end: bool,
    /// The end was seen in the peer's words: one more look finds all remaining bytes.
    has_seen_closed: bool,
    /// From the first sleep on, and from the beginning if the call waits for several bytes, so that
    /// the connection does not leave its channel between two steps: then the call would have to
    /// return a part of its count.
    inside: Option<Inside>,
}

impl Call {
    fn new(connection: &Connection, total: usize, flags: i32, waits_for: WaitsFor) -> Call {
        // As sock_rcvlowat.
        let least = match waits_for {
            _ if flags & libc::MSG_WAITALL != 0 => total,
            WaitsFor::AnyByte => 1,
            WaitsFor::LowWater => settings::low_water(connection).min(total),
        };
        Call {
            flags,
            total,
            least,
            waits: flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking(),
            done: 0,
            waits_so_far: Waits::default(),
            has_seen_end: false,
            has_seen_closed: false,
            inside: (least > 1).then(|| connection.inside()).flatten(),
        }
    }

    /// True when the call takes what it receives off the stream.
    fn takes(&self) -> bool {
        self.flags & libc::MSG_PEEK == 0
    }

    /// Makes one look under the receive lock. Also returns our end of the channel.
    ///
    /// # Errors
    /// No look was possible: the call returns the bytes that it has moved, or fails.
    ///
    /// # Safety
    /// `parts` are writable.
    #[inline]
    unsafe fn step(
        &self,
        connection: &Connection,
        parts: &[iovec],
        control: &mut Control,
    ) -> Result<(End<'static>, Result<Step, i32>), i32> {
        let held = takeover::lock_receiving(connection).ok_or(libc::EAGAIN)?;
        if !connection.is_current() {
            return Err(libc::EBADF);
        }
        let end = connection.end().ok_or(errno::LEFT_CHANNEL)?;
        let (done, left) = (self.done, self.total - self.done);
        // SAFETY: the caller's promise.
        let step = unsafe { step(connection, &end, (parts, control), done, left, self.flags) };
        if matches!(step, Ok(Step::Got(_, true))) && end.is_asked_for_credit() {
            switching::notify_of_credit(connection, &end, held);
        }
        Ok((end, step))
    }

    /// `moved` bytes were copied to the program's buffers. Ends the call where the kernel's receive
    /// would end.
    #[inline]
    fn got(
        &mut self,
        connection: &Connection,
        end: &End<'_>,
        moved: usize,
        is_message_over: bool,
    ) -> Went {
        self.done += moved;
        self.waits_so_far.got_bytes();
        connection.entry.rx_empty.store(0, Ordering::Relaxed);
        // Read before `after_receive`, which may carry the switch out.
        let is_before_a_switch = end.records_pending();
        after_receive(connection);
        if !self.takes() && self.waits && moved < self.least.min(RING_BYTES / 2) {
            return self.wait_behind(connection, end, moved);
        }
        // A receive goes on across a switch. On a Unix socket it ends after a message with
        // descriptors.
        let goes_on =
            self.takes() && !is_message_over && (self.done < self.least || is_before_a_switch);
        match self.done == self.total || !goes_on {
            true => ControlFlow::Break(Ok(self.done)),
            false => LOOKS_AGAIN,
        }
    }

    /// A peek has seen `moved` bytes, which are too few: waits until more bytes come, and then
    /// peeks at all of them again.
    fn wait_behind(&mut self, connection: &Connection, end: &End<'_>, moved: usize) -> Went {
        let is_enough = ControlFlow::Break(Ok(moved));
        self.done = 0;
        if end.records_pending() {
            // The rest comes on the carrier, but the bytes that are already there would end each
            // sleep at once.
            if self.has_seen_end {
                return is_enough;
            }
            let fd = connection.number();
            let slept = self.waits_so_far.step_ns(fd, LOOK_AGAIN_NS);
            return match slept.and_then(|step| sleep_until(fd, libc::POLLRDHUP, step)) {
                Ok(seen) => {
                    self.has_seen_end = seen.is_some();
                    LOOKS_AGAIN
                }
                // A signal, or the time is over.
                Err(_) => is_enough,
            };
        }
        let entry = connection.entry;
        if entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX != 0 {
            // After the program's own shutdown a receive does not wait (tcp_recvmsg_locked), and
            // the kernel's sleep would return at once.
            return is_enough;
        }
        let seen = entry.rx_ring.load(Ordering::Relaxed).plus(moved as u64);
        self.inside = self.inside.take().or_else(|| connection.inside());
        let Some(inside) = &self.inside else {
            return is_enough;
        };
        let waited = wait_for_bytes(connection, inside, seen, &mut self.waits_so_far, true);
        let is_known = entry.rx_hints.load(Ordering::Relaxed) != 0 || self.has_seen_closed;
        if waited.is_err() || is_known {
            return is_enough;
        }
        self.has_seen_closed = end.theirs().wake.closed.load(SIDE_ACQUIRE) != 0;
        LOOKS_AGAIN
    }

    /// There are no bytes, or too few: waits for more, if the call may.
    fn wait(&mut self, connection: &Connection, end: &End<'_>) -> Went {
        let entry = connection.entry;
        if !self.waits {
            if self.done > 0 {
                return ControlFlow::Break(Ok(self.done));
            }
            switching::resend_if_asked(connection, end);
            if arm_for_unknown_wait(connection) {
                return LOOKS_AGAIN;
            }
            return ControlFlow::Break(Err(libc::EAGAIN));
        }
        if entry.tx_mode.load(Ordering::Relaxed) == Mode::Carrier as u32
            || connection::commanded(entry)
            || end.theirs().wake.refuse.load(Ordering::Relaxed) != 0
        {
            switching::service(connection);
        }
        self.inside = self.inside.take().or_else(|| connection.inside());
        let Some(inside) = &self.inside else {
            return LOOKS_AGAIN;
        };
        let seen = entry.rx_ring.load(Ordering::Relaxed);
        let has_moved = self.done > 0;
        match wait_for_bytes(connection, inside, seen, &mut self.waits_so_far, has_moved) {
            Ok(()) => LOOKS_AGAIN,
            Err(error) => ControlFlow::Break(errno::unless_moved(self.done, error)),
        }
    }

    /// The stream has ended.
    fn ended(&self, connection: &Connection, end: &End<'_>) -> Result<usize, i32> {
        match self.done {
            0 => unix::error_at_end(connection, end).map_or(Ok(0), Err),
            done if done < self.least => {
                // When the receive looks for more bytes, the kernel drops the error without
                // reporting it (unix_stream_read_generic).
                let _ = unix::error_at_end(connection, end);
                Ok(done)
            }
            done => Ok(done),
        }
    }

    /// A look has failed with `error`.
    #[cold]
    fn failed(&mut self, connection: &Connection, end: &End<'_>, error: i32) -> Result<usize, i32> {
        self.inside = None;
        match error {
            errno::GOES_BACK if returning::return_to_kernel(connection) => Err(errno::LEFT_CHANNEL),
            errno::GOES_BACK => {
                // The kernel reports a reset once, and then the end of the stream.
                let hints = &connection.entry.rx_hints;
                hints.fetch_or(HINT_EOF | HINT_LOOK, Ordering::Relaxed);
                Err(libc::ECONNRESET)
            }
            // A bad pointer is the call's own error.
            libc::EFAULT if self.done > 0 => Ok(self.done),
            error if self.done > 0 => {
                if Kind::of(connection) == Kind::Tcp || self.done >= self.least {
                    pending_errors::keep_for_next_call(connection, error);
                } else if error == libc::ECONNRESET {
                    // On a Unix socket the error is dropped when a receive looks for more bytes:
                    // see `ended`.
                    let _ = unix::told(connection);
                }
                Ok(self.done)
            }
            libc::ECONNRESET if resets::was_closed_cleanly(connection, end) => {
                let hints = &connection.entry.rx_hints;
                hints.fetch_or(HINT_EOF | HINT_LOOK, Ordering::Relaxed);
                Ok(0)
            }
            libc::ECONNRESET if turns::has_remote_finished(connection, end) => {
                // A receive finds the end first (tcp_recvmsg_locked: `SOCK_DONE`). The reset is
                // the error of a later call.
                pending_errors::keep(connection, error);
                let hints = &connection.entry.rx_hints;
                hints.fetch_or(HINT_EOF | HINT_LOOK, Ordering::Relaxed);
                Ok(0)
            }
            libc::ECONNRESET => Err(unix::told(connection)),
            error => Err(error),
        }
    }
}

/// Follows a receive, outside the receive lock: our own direction follows what is asked of it. A
/// receive is a use of the connection.
#[inline]
fn after_receive(connection: &Connection) {
    let entry = connection.entry;
    if entry.tx_mode.load(Ordering::Relaxed) == Mode::Carrier as u32 || connection::commanded(entry)
    {
        if connection::commanded(entry)
            && let Some(end) = connection.inside()
        {
            switching::keep_region(connection, &end);
        }
        switching::service(connection);
    }
}

/// One look, under the receive lock.
///
/// # Safety
/// `parts` are writable from byte `skip` on, for `want` bytes.
#[inline]
unsafe fn step(
    connection: &Connection,
    end: &End<'_>,
    (parts, control): (&[iovec], &mut Control),
    skip: usize,
    want: usize,
    flags: i32,
) -> Result<Step, i32> {
    let entry = connection.entry;
    if flags & libc::MSG_PEEK != 0 && end.records_pending() {
        // SAFETY: the caller's promise.
        let seen = unsafe { peek::peek(connection, end, (parts, control), 0, skip, want, flags) }?;
        if seen > 0 {
            news::note_known(connection);
            return Ok(Step::Got(seen, false));
        }
    }
    let mut seen = Carrier::Unseen;
    loop {
        let next = end.next(seen, 0);
        match next.map_err(|fault| resets::fault_of_peer(connection, fault))? {
            Next::Ring(filled) => {
                let len = want.min(filled.len as usize);
                let stretches = end.receiver().peek(0, len, filled);
                if flags & libc::MSG_TRUNC == 0 {
                    // SAFETY: `next` checked that these bytes are inside the ring; `parts` by the
                    // caller's promise.
                    unsafe { buffers::scatter(end.ring_in(), stretches, parts, skip) }
                        .map_err(|_| libc::EFAULT)?;
                }
                let mut crossed = false;
                if flags & libc::MSG_PEEK == 0 {
                    crossed = end.receiver().consume(len, filled);
                    direction::count_call(&entry.rx_calls);
                    if len < filled.len as usize {
                        news::note_left(connection);
                    }
                } else {
                    news::note_known(connection);
                }
                return Ok(Step::Got(len, crossed));
            }
            // The ring is empty. Doorbells may be for other sleepers, so `look_at_carrier` handles
            // them.
            _ if end.rx_mode() == Mode::Ring => {
                if let Some(step) = ring_is_empty(connection, end)? {
                    return Ok(step);
                }
                seen = Carrier::Unseen;
            }
            Next::Look if skip > 0 && sys::is_at_mark(connection.number()) => {
                // tcp(7): a receive that has some bytes stops at the urgent mark.
                return Ok(Step::End);
            }
            Next::Look if skip > 0 && is_error_next(connection) => return Ok(Step::End),
            Next::Look => seen = look_at_data(connection, end, want, flags)?,
            Next::Data { max } => {
                let max = usize::try_from(max).unwrap_or(usize::MAX).min(want);
                // SAFETY: the caller's promise.
                return unsafe { from_carrier(connection, parts, control, skip, max, flags) };
            }
            Next::Doorbells { max } => {
                seen = match doorbells::take(connection, max) {
                    Ok(0) => Carrier::Ended,
                    Ok(_) => Carrier::Unseen,
                    Err(libc::EAGAIN) => Carrier::Empty,
                    Err(error) => return Err(error),
                }
            }
            Next::Wait => return Ok(Step::Empty),
            Next::End | Next::Cut => return Ok(Step::End),
        }
    }
}

/// Takes at most `max` bytes of data that were seen on the carrier.
///
/// # Safety
/// `parts` are writable from byte `skip` on, for `max` bytes.
unsafe fn from_carrier(
    connection: &Connection,
    parts: &[iovec],
    control: &mut Control,
    skip: usize,
    max: usize,
    flags: i32,
) -> Result<Step, i32> {
    let (mut window, count) = buffers::window(parts, skip, max);
    let flags = flags & OF_CARRIER | libc::MSG_DONTWAIT;
    let window = &mut window[..count];
    // SAFETY: the window names parts of the program's buffers.
    let result = unsafe { control.receive(connection.number(), window, flags) };
    if result > 0 {
        if flags & libc::MSG_PEEK == 0 {
            let taken = &connection.entry.rx_carrier;
            taken.fetch_add(result as u64, Ordering::Relaxed);
            peek_offset::taken_from_carrier(connection, result as usize);
        }
        return Ok(Step::Got(result as usize, false));
    }
    if result == 0 {
        return Ok(Step::End);
    }
    match -result as i32 {
        libc::EAGAIN => Ok(Step::Empty),
        error => Err(error),
    }
}

/// True when the carrier has an error and no bytes before it. A receive that has some bytes ends
/// there, and leaves the error in the kernel for the next call (tcp_recvmsg_locked: `sk_err`). On a
/// Unix socket that receive takes the error (unix_stream_read_generic).
#[cold]
fn is_error_next(connection: &Connection) -> bool {
    let number = connection.number();
    Kind::of(connection) == Kind::Tcp
        && sys::poll_now(number, 0) & libc::POLLERR != 0
        && sys::bytes_waiting(number) <= 0
}

/// Bytes that a receive of at most `limit` would return now, counted without copying or taking them
/// (tcp(7), `MSG_TRUNC`).
fn count_peeked(fd: i32, limit: usize) -> isize {
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with `MSG_TRUNC` the kernel writes nothing to the buffer of a TCP receive.
    unsafe { sys::recv(fd, core::ptr::null_mut(), limit, flags) }
}

/// Looks for at most `want` bytes of data on the carrier.
///
/// # Errors
/// An error that the kernel reports, or reported before, when no byte comes before it.
fn look_at_data(
    connection: &Connection,
    end: &End<'_>,
    want: usize,
    flags: i32,
) -> Result<Carrier, i32> {
    let waiting = sys::bytes_waiting(connection.number());
    if waiting > 0 {
        return Ok(Carrier::Waiting(waiting as u64));
    }
    if let Some(error) = pending_errors::take_for_receive(connection) {
        return Err(error);
    }
    let mut byte = 0u8;
    // SAFETY: `byte` is writable for one byte.
    let result = unsafe {
        sys::recv(
            connection.number(),
            &mut byte,
            1,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    match result {
        // At an urgent mark the kernel counts 0 bytes although there are some.
        1.. => Ok(match count_peeked(connection.number(), want) {
            counted @ 1.. => Carrier::Waiting(counted as u64),
            _ => Carrier::Unseen,
        }),
        0 => Ok(Carrier::Ended),
        error if error == -(libc::EAGAIN as isize) => match flags & libc::MSG_PEEK {
            // A receive passes the mark, even if there are no bytes behind it. From then on the
            // kernel counts new bytes (tcp_recvmsg_locked).
            0 if sys::is_at_mark(connection.number()) => Ok(Carrier::Waiting(1)),
            _ => Ok(Carrier::Empty),
        },
        // The error is reported after all bytes that were announced before it.
        error => match end.next(Carrier::Ended, 0) {
            Ok(Next::End | Next::Cut) => Err(-error as i32),
            _ => {
                pending_errors::keep_for_next_call(connection, -error as i32);
                Ok(Carrier::Unseen)
            }
        },
    }
}

/// Called when the ring is empty: looks whether the stream has ended. Asks the kernel only if there
/// is a sign of it, or if the last question is some time ago.
#[inline]
fn ring_is_empty(connection: &Connection, end: &End<'_>) -> Result<Option<Step>, i32> {
    let entry = connection.entry;
    let hints = entry.rx_hints.load(Ordering::Relaxed);
    let is_shut = entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX != 0;
    if hints == 0 && !is_shut && end.theirs().wake.closed.load(Ordering::Relaxed) == 0 {
        let empty = entry.rx_empty.load(Ordering::Relaxed);
        if empty & 63 != 63 {
            return Ok(Some(Step::Empty));
        }
        let now = sys::now_ns();
        if now - connection.local.carrier_seen_ns.load(Ordering::Relaxed) < CARRIER_LOOK_NS {
            return Ok(Some(Step::Empty));
        }
        connection
            .local
            .carrier_seen_ns
            .store(now, Ordering::Relaxed);
    }
    look_at_carrier(connection, end)
}

/// Ring mode, ring empty: takes doorbells off the carrier and finds its end. `None` means: look
/// again.
fn look_at_carrier(connection: &Connection, end: &End<'_>) -> Result<Option<Step>, i32> {
    let entry = connection.entry;
    if entry.rx_hints.load(Ordering::Relaxed) & HINT_EOF != 0 {
        return Ok(Some(Step::End));
    }
    if turns::is_over(connection, end) {
        // Bytes published before the end are visible now that we have seen the end.
        if end.receiver().looks_filled() || end.records_pending() {
            return Ok(None);
        }
        if entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX == 0 {
            entry
                .rx_hints
                .fetch_or(HINT_EOF | HINT_LOOK, Ordering::Relaxed);
        }
        news::note_known(connection);
        return Ok(Some(Step::End));
    }
    let drained = doorbells::drain(connection, end);
    let mut byte = 0u8;
    // SAFETY: `byte` is writable for one byte.
    let result = unsafe {
        sys::recv(
            connection.number(),
            &mut byte,
            1,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    if result == 0 || result < 0 && result != -(libc::EAGAIN as isize) {
        if turns::is_unaccepted(connection, end) {
            return Err(errno::GOES_BACK);
        }
    }
    // Bytes published before the end are visible now that we have seen the end.
    let more = end.receiver().looks_filled() || end.records_pending();
    match result {
        0 if more => Ok(None),
        0 => {
            if let Some(error) = pending_errors::take_for_receive(connection) {
                return Err(error);
            }
            // After the program's own shutdown of its receiving side, the end is reported although
            // the stream goes on.
            if entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX == 0 {
                entry
                    .rx_hints
                    .fetch_or(HINT_EOF | HINT_LOOK, Ordering::Relaxed);
            }
            Ok(Some(Step::End))
        }
        1.. if more || (drained && !doorbells::are_needed(connection)) => Ok(None),
        1.. if sys::poll_now(connection.number(), libc::POLLRDHUP) != 0 => {
            // The end is behind doorbells that are kept for other sleepers. They can be discarded,
            // because the end itself wakes all sleepers.
            doorbells::discard(connection, end);
            Ok(None)
        }
        1.. => Ok(Some(Step::Empty)),
        error if error == -(libc::EAGAIN as isize) => {
            if more {
                return Ok(None);
            }
            match pending_errors::take_for_receive(connection) {
                Some(error) => Err(error),
                None => Ok(Some(Step::Empty)),
            }
        }
        error if more => {
            pending_errors::keep(connection, -error as i32);
            Ok(None)
        }
        error => Err(-error as i32),
    }
}

#[cfg(test)]
mod tests {
    use toehold_channel::layout::{CLOSED_ALL, Control as Words, SIDE_RELEASE};
    use toehold_channel::table::FLAG_UNIX;

    use super::*;

    /// An end of a Unix connection whose peer has closed, and left a byte in our ring.
    fn left_with_a_byte() -> (Connection, End<'static>) {
        let connection = Connection::of_a_test(-1);
        let entry = connection.entry;
        entry.flags.store(FLAG_UNIX, Ordering::Relaxed);
        entry.tx_ring.store(1, Ordering::Relaxed);
        let words: &Words = Box::leak(Box::default());
        let end = End::new(entry, words, core::ptr::null_mut(), 0);
        end.theirs().wake.closed.store(CLOSED_ALL, SIDE_RELEASE);
        (connection, end)
    }

    /// A receive of ten bytes that has `done` of them.
    fn receive_that_has(connection: &Connection, done: usize, flags: i32) -> Call {
        let waits_for = WaitsFor::AnyByte;
        Call {
            done,
            ..Call::new(connection, 10, flags, waits_for)
        }
    }

    #[test]
    fn reset_of_the_carrier_is_not_reported_again_for_the_ring() {
        let (connection, end) = left_with_a_byte();
        let mut waits_for_all = receive_that_has(&connection, 3, libc::MSG_WAITALL);
        let failed = waits_for_all.failed(&connection, &end, libc::ECONNRESET);
        assert_eq!(failed, Ok(3));
        let next = receive_that_has(&connection, 0, 0);
        assert_eq!(next.ended(&connection, &end), Ok(0));
    }

    #[test]
    fn reset_of_the_ring_is_reported_once() {
        let (connection, end) = left_with_a_byte();
        let call = receive_that_has(&connection, 0, 0);
        let told = [(); 2].map(|()| call.ended(&connection, &end));
        assert_eq!(told, [Err(libc::ECONNRESET), Ok(0)]);
    }

    #[test]
    fn reset_behind_enough_bytes_is_reported_next() {
        let (connection, end) = left_with_a_byte();
        let mut has_enough = receive_that_has(&connection, 3, 0);
        let failed = has_enough.failed(&connection, &end, libc::ECONNRESET);
        assert_eq!(failed, Ok(3));
        let kept = pending_errors::take(&connection);
        assert_eq!(kept, Some(libc::ECONNRESET));
        let mut next = receive_that_has(&connection, 0, 0);
        let told = next.failed(&connection, &end, libc::ECONNRESET);
        assert_eq!(told, Err(libc::ECONNRESET));
        assert_eq!(next.ended(&connection, &end), Ok(0), "it comes once");
    }

    #[test]
    fn receive_of_several_bytes_keeps_the_channel() {
        let (connection, _end) = left_with_a_byte();
        let attachment = &connection.local.attachment;
        let words: *mut Words = Box::leak(Box::default());
        attachment.put(words.cast());
        let call = Call::new(&connection, 10, libc::MSG_WAITALL, WaitsFor::AnyByte);
        // As `leaving::frees`, in another thread.
        assert!(attachment.take_unused().is_none());
        drop(call);
        assert!(attachment.take_unused().is_some());
    }
}
