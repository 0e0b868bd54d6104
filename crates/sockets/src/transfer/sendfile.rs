//! `sendfile` and `splice` where one end is an accelerated socket. A pipe is read directly into
//! ring memory. Bytes from a file, and bytes to a pipe, pass through a buffer.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use libc::{iovec, off_t};
use toehold_channel::table::Mode;
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::connection::resets::fault_of_peer;
use crate::connection::unix;
use crate::direction::{doorbells, notifier};
use crate::memory::pieces::Piece;
use crate::offload::endings;
use crate::pairing::leaving;
use crate::process::kept_bytes;
use crate::system::{errno, faults, real, sys};
use crate::transfer::control_messages::Control;
use crate::transfer::host_call::Mark;
use crate::transfer::kernel_call::by_kernel;
use crate::transfer::receive::receive_message;
use crate::transfer::send::{self, Step, begin_host_send, finish_host_send, transmit_more};
use crate::waiting::sleep::{Call, sleep_in_call, sleep_until};

/// Memory that bytes pass through between a file or pipe and a connection.
struct Buffer {
    /// Used for few bytes, and when there is no memory for a larger buffer.
    few: [MaybeUninit<u8>; FEW_BYTES],
    piece: Option<Piece>,
}

const FEW_BYTES: usize = 1024;

impl Buffer {
    /// A buffer for steps of up to `len` bytes.
    fn new(len: usize) -> Buffer {
        Buffer {
            few: [const { MaybeUninit::uninit() }; FEW_BYTES],
            piece: (len > FEW_BYTES).then(Piece::take).flatten(),
        }
    }

    /// The bytes for one step.
    fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        match &mut self.piece {
            Some(piece) => piece.places(),
            None => &mut self.few,
        }
    }
}

/// `sendfile` to a tracked connection. `kernel` is the program's own call.
///
/// # Safety
/// `offset` is null or valid.
pub(crate) unsafe fn sendfile(
    connection: &Connection,
    input: i32,
    offset: *mut off_t,
    count: usize,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    let mark = Mark::default();
    if let Some(counted) = begin_host_send(connection, &mark) {
        let result = kernel(connection.fd);
        finish_host_send(connection, counted, result);
        return result;
    }
    if count > isize::MAX as usize {
        // The kernel refuses the call (fs/read_write.c, `rw_verify_area`).
        return kernel(connection.fd);
    }
    if offset.is_null() && sys::seek_from_here(input, 0) < 0 {
        // The input is a pipe or a socket: the kernel refuses the call, and moves nothing
        // (fs/splice.c, `splice_direct_to_actor`).
        return kernel(connection.fd);
    }
    let mut buffer = Buffer::new(count);
    let buffer = buffer.bytes();
    let mut done = 0usize;
    // SAFETY: `offset` is valid when it is not null.
    let mut position = unsafe { offset.as_ref() }.copied();
    while done < count {
        let want = (count - done).min(buffer.len());
        let (number, at) = match position {
            Some(at) => (libc::SYS_pread64, at as usize),
            None => (libc::SYS_read, 0),
        };
        // SAFETY: `buffer` is writable for `want` bytes.
        let got = unsafe {
            sys::raw(
                number,
                input as usize,
                buffer.as_mut_ptr() as usize,
                want,
                at,
                0,
                0,
            )
        };
        if got <= 0 {
            if got < 0 && done == 0 {
                let error = match -got as i32 {
                    // For an unreadable source `sendfile` returns EINVAL (fs/splice.c).
                    libc::EISDIR => libc::EINVAL,
                    error => error,
                };
                return errno::result(Err(error));
            }
            break;
        }
        let part = iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: got as usize,
        };
        // SAFETY: the first `got` bytes of `buffer` were just written.
        let sent = unsafe { transmit_more(connection, &[part], 0, |fd| kernel_send(fd, &part)) };
        let moved = sent.max(0);
        match &mut position {
            Some(at) => *at += moved as off_t,
            // The file's position moves back by the bytes that were read but not sent.
            None if moved < got => {
                sys::seek_from_here(input, moved - got);
            }
            None => {}
        }
        done += moved as usize;
        if moved < got {
            if done == 0 {
                return -1;
            }
            break;
        }
    }
    if let Some(at) = position {
        // SAFETY: `position` is `Some` only when `offset` can be read.
        if let Err(error) = unsafe { faults::put(at, offset) } {
            // The bytes are already sent, as with the kernel.
            return errno::result(Err(error));
        }
    }
    done as isize
}

/// `splice` from a pipe to a tracked connection. `kernel` is the program's own call.
pub(crate) fn splice_in(
    connection: &Connection,
    pipe: i32,
    len: usize,
    flags: u32,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    let mut has_begun = false;
    loop {
        let mark = Mark::default();
        if let Some(counted) = begin_host_send(connection, &mark) {
            let result = by_kernel(connection, has_begun, &kernel);
            finish_host_send(connection, counted, result);
            return endings::correct(connection, result, endings::send_error);
        }
        if !is_splice(pipe, len, flags) {
            return by_kernel(connection, has_begun, &kernel);
        }
        let result = pipe_has_bytes(pipe, flags).and_then(|has_bytes| match has_bytes {
            false => Ok(None),
            true => pipe_to_ring(connection, pipe, len, flags),
        });
        has_begun = true;
        if connection
            .entry
            .tx_mode
            .load(Ordering::Relaxed)
            .is(Mode::Carrier as u32)
        {
            errno::keep(|| leaving::finish(connection));
        }
        match result {
            // Another reader of the pipe took the bytes.
            Ok(Some(0)) | Err(errno::LEFT_CHANNEL) => {}
            Ok(moved) => return moved.unwrap_or(0) as isize,
            Err(error) => {
                return errno::result(Err(endings::send_error(connection, error)));
            }
        }
    }
}

/// False for calls that the kernel refuses or that move nothing: they go to the kernel. One end of
/// a splice must be a pipe.
fn is_splice(pipe: i32, len: usize, flags: u32) -> bool {
    const SPLICE_F_ALL: u32 =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    (1..=isize::MAX as usize).contains(&len) && flags & !SPLICE_F_ALL == 0 && is_pipe(pipe)
}

/// True for either end of a pipe.
pub(crate) fn is_pipe(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETPIPE_SZ, 0) >= 0
}

/// True when a splice waits for room or bytes in the pipe (fs/splice.c, `do_splice`).
fn waits_for_pipe(pipe: i32, flags: u32) -> bool {
    flags & libc::SPLICE_F_NONBLOCK == 0 && !sys::is_nonblocking(pipe)
}

/// Waits for bytes in a pipe, if the call may wait. False when the pipe has no writer left.
fn pipe_has_bytes(pipe: i32, flags: u32) -> Result<bool, i32> {
    let call = Call::new(libc::SO_RCVTIMEO);
    loop {
        let seen = sys::poll_now(pipe, libc::POLLIN);
        if seen & libc::POLLIN != 0 {
            return Ok(true);
        }
        if seen & libc::POLLHUP != 0 {
            return Ok(false);
        }
        if !waits_for_pipe(pipe, flags) {
            return Err(libc::EAGAIN);
        }
        sleep_in_call(pipe, libc::POLLIN, 0, call)?;
    }
}

/// Moves as many bytes from a pipe as the connection takes at once. A pipe cannot take bytes back,
/// so they are read only if there is room for them, directly into the ring.
fn pipe_to_ring(
    connection: &Connection,
    pipe: i32,
    len: usize,
    flags: u32,
) -> Result<Option<usize>, i32> {
    let step = |end: &End<'_>, done: usize| {
        send::begin_step(connection, end, done)?;
        if end.tx_mode() != Mode::Ring {
            doorbells::try_drain(connection, end);
            return pipe_to_carrier(connection, end, pipe, len - done, flags);
        }
        let sender = end.sender();
        let want = (len - done).min(send::CHUNK_BYTES);
        let credit = sender
            .credit(want as u64)
            .map_err(|fault| fault_of_peer(connection, fault))?;
        let room = want.min(credit as usize);
        if room == 0 {
            return Ok(Step::NoCredit);
        }
        let part = |(offset, len): (usize, usize)| iovec {
            iov_base: end.ring_out().wrapping_add(offset).cast(),
            iov_len: len,
        };
        // SAFETY: `room` is within the credit, so the stretches are ours to write.
        let read = unsafe { sys::read_now(pipe, &sender.reserve(room).map(part)) };
        match sys::answer(read) {
            Ok(0) | Err(libc::EAGAIN) => Ok(Step::Dry),
            Ok(bytes) => {
                sender.publish(bytes);
                notifier::notify(connection, end)?;
                Ok(Step::Sent(bytes))
            }
            Err(error) => Err(error),
        }
    };
    let waits = !connection.nonblocking();
    send::carry(connection, len, waits, step).map(Some)
}

/// The kernel's own splice to the carrier. The caller holds the send lock.
fn pipe_to_carrier(
    connection: &Connection,
    end: &End<'_>,
    pipe: i32,
    len: usize,
    flags: u32,
) -> Result<Step, i32> {
    let (mut len, mut flags) = (len, flags);
    if !connection.nonblocking() {
        // The kernel would wait in this call, while the send lock is held. If `poll` reports room
        // (sk_stream_is_writeable), the kernel does not wait for so few bytes.
        let seen = sys::poll_now(connection.number(), libc::POLLOUT);
        if seen == 0 {
            return Ok(Step::KernelFull);
        }
        (len, flags) = (len.min(libc::PIPE_BUF), flags | libc::SPLICE_F_NONBLOCK);
    }
    let spliced = unix::counted(connection, end, || {
        let spliced = sys::answer(sys::splice(pipe, connection.number(), len, flags));
        let sent = &connection.entry.tx_carrier;
        sent.fetch_add(spliced.unwrap_or(0) as u64, Ordering::Relaxed);
        spliced
    });
    match spliced {
        Ok(0) => Ok(Step::Dry),
        Ok(bytes) => Ok(Step::Sent(bytes)),
        Err(libc::EAGAIN) if sys::bytes_waiting(pipe) > 0 => Ok(Step::KernelFull),
        Err(libc::EAGAIN) => Ok(Step::Dry),
        Err(error) => Err(error),
    }
}

/// `splice` from an accelerated connection to a pipe. `kernel` is the program's own call.
pub(crate) fn splice_out(
    connection: &Connection,
    pipe: i32,
    len: usize,
    flags: u32,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    if !is_splice(pipe, len, flags) {
        return kernel(connection.fd);
    }
    // Received bytes cannot be given back, so receive only as many as the pipe certainly takes.
    let room = match pipe_has_room(pipe, flags) {
        Ok(Some(room)) => room,
        Ok(None) => return by_kernel(connection, true, kernel),
        Err(error) => return errno::result(Err(error)),
    };
    let mut buffer = Buffer::new(len.min(room));
    let buffer = buffer.bytes();
    let part = iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: len.min(buffer.len()).min(room),
    };
    // `O_NONBLOCK` of the pipe counts like the call's flag (fs/splice.c, `do_splice`).
    let waits = match waits_for_pipe(pipe, flags) {
        true => flags,
        false => flags | libc::SPLICE_F_NONBLOCK,
    };
    let waits = Carrier::of(connection).splice_waits(waits);
    let mut none = Control::none();
    // SAFETY: `part` names writable bytes of `buffer`.
    let got = unsafe {
        receive_message(connection, &[part], &mut none, waits, true, |fd| {
            kernel_recv(fd, &part)
        })
    };
    let mut done = 0isize;
    while done < got {
        let base = buffer.as_ptr() as usize + done as usize;
        let left = (got - done) as usize;
        // SAFETY: these bytes of `buffer` were just written.
        let written = unsafe { sys::raw(libc::SYS_write, pipe as usize, base, left, 0, 0, 0) };
        match sys::answer(written) {
            Ok(bytes) => done += bytes as isize,
            // Another writer has taken the room.
            Err(libc::EAGAIN | libc::EINTR) => {
                let _ = sleep_until(pipe, libc::POLLOUT, 0);
            }
            Err(error) if done == 0 => return errno::result(Err(error)),
            Err(_) => return done,
        }
    }
    got
}

/// `splice` from a descriptor with kept bytes ([`kept_bytes`]) to a pipe. `kernel` is the program's
/// own call.
#[cold]
pub(crate) fn splice_kept(
    input: i32,
    pipe: i32,
    len: usize,
    flags: u32,
    kernel: impl Fn() -> isize,
) -> isize {
    if !is_splice(pipe, len, flags) {
        return kernel();
    }
    let room = match pipe_has_room(pipe, flags) {
        Ok(Some(room)) => room,
        Ok(None) => return kernel(),
        Err(error) => return errno::result(Err(error)),
    };
    let write = |from: *const u8, len: usize| {
        // SAFETY: these bytes are kept for the program, and mapped.
        sys::answer(unsafe {
            sys::raw(libc::SYS_write, pipe as usize, from as usize, len, 0, 0, 0)
        })
    };
    kept_bytes::take_by(input, len.min(room), write).unwrap_or_else(kernel)
}

/// Waits for room in a pipe, if the call may wait. Returns how many bytes the pipe certainly takes
/// at once; `None` when the pipe has no reader left. An empty pipe takes its whole capacity. For
/// any other pipe it is only known that one page is free (pipe(7), `PIPE_BUF`).
fn pipe_has_room(pipe: i32, flags: u32) -> Result<Option<usize>, i32> {
    let call = Call::new(libc::SO_SNDTIMEO);
    loop {
        let seen = sys::poll_now(pipe, libc::POLLOUT);
        if seen & libc::POLLERR != 0 {
            return Ok(None);
        }
        if seen & libc::POLLOUT != 0 {
            let capacity = sys::fcntl(pipe, libc::F_GETPIPE_SZ, 0);
            return Ok(Some(match sys::bytes_waiting(pipe) {
                0 => capacity.max(libc::PIPE_BUF as isize) as usize,
                _ => libc::PIPE_BUF,
            }));
        }
        if !waits_for_pipe(pipe, flags) {
            return Err(libc::EAGAIN);
        }
        sleep_in_call(pipe, libc::POLLOUT, 0, call)?;
    }
}

/// A plain kernel send of one part, for helpers that need one.
fn kernel_send(fd: i32, part: &iovec) -> isize {
    // SAFETY: `part` names memory its owner vouches for.
    unsafe { real::write(fd, part.iov_base, part.iov_len) }
}

/// A plain kernel receive into one part.
fn kernel_recv(fd: i32, part: &iovec) -> isize {
    // SAFETY: as in `kernel_send`.
    unsafe { real::read(fd, part.iov_base, part.iov_len) }
}
