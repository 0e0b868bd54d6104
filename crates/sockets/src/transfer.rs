//! `sendfile` and `splice` where one end is an accelerated socket: the file or pipe is read straight into ring memory, or written straight from it.

use libc::{iovec, off_t};

use crate::receive::receive;
use crate::send::{begin_host_send, finish_host_send, transmit};
use crate::state::Connection;
use crate::{errno, sys};

/// Bytes moved per turn, through a buffer on the stack.
const TURN_BYTES: usize = 64 << 10;

/// `sendfile` to a tracked connection. `kernel` is the program's own call.
///
/// # Safety
/// `offset` is null or valid.
pub(crate) unsafe fn sendfile(
    connection: &Connection,
    input: i32,
    offset: *mut off_t,
    count: usize,
    kernel: impl FnOnce() -> isize,
) -> isize {
    if begin_host_send(connection).is_some() {
        let result = kernel();
        finish_host_send(connection, result);
        return result;
    }
    let mut buffer = [core::mem::MaybeUninit::<u8>::uninit(); TURN_BYTES];
    let mut done = 0usize;
    // SAFETY: `offset` is valid when it is not null.
    let mut position = unsafe { offset.as_ref() }.copied();
    while done < count {
        let want = (count - done).min(TURN_BYTES);
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
                errno::set(-got as i32);
                return -1;
            }
            break;
        }
        let part = iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: got as usize,
        };
        // SAFETY: the first `got` bytes of `buffer` were just written.
        let sent = unsafe {
            transmit(connection, &[part], 0, || {
                crate::api::kernel_send(connection.fd, &part)
            })
        };
        let moved = sent.max(0);
        match &mut position {
            Some(at) => *at += moved as off_t,
            // What was read and could not be sent is still the file's.
            None if moved < got => {
                // SAFETY: moves a file position, no memory.
                unsafe {
                    sys::raw(
                        libc::SYS_lseek,
                        input as usize,
                        (moved - got) as usize,
                        libc::SEEK_CUR as usize,
                        0,
                        0,
                        0,
                    )
                };
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
        // SAFETY: `position` is `Some` only when `offset` is valid.
        unsafe { *offset = at };
    }
    done as isize
}

/// `splice` from a pipe to an accelerated connection: as much as the pipe has and the connection takes at once.
pub(crate) fn splice_in(connection: &Connection, pipe: i32, len: usize, flags: u32) -> isize {
    let mut buffer = [core::mem::MaybeUninit::<u8>::uninit(); TURN_BYTES];
    let waiting = sys::bytes_waiting(pipe);
    let want = len
        .min(TURN_BYTES)
        .min(if waiting > 0 { waiting as usize } else { len });
    if waiting == 0 && flags & libc::SPLICE_F_NONBLOCK != 0 {
        errno::set(libc::EAGAIN);
        return -1;
    }
    // A pipe cannot take bytes back: only as many are read as are sure to be sent, waiting for room if need be.
    // SAFETY: `buffer` is writable for `want` bytes.
    let got = unsafe {
        sys::raw(
            libc::SYS_read,
            pipe as usize,
            buffer.as_mut_ptr() as usize,
            want,
            0,
            0,
            0,
        )
    };
    if got <= 0 {
        return if got == 0 {
            0
        } else {
            errno::set(-got as i32);
            -1
        };
    }
    let mut done = 0usize;
    while done < got as usize {
        let part = iovec {
            iov_base: buffer.as_mut_ptr().cast::<u8>().wrapping_add(done).cast(),
            iov_len: got as usize - done,
        };
        // SAFETY: these bytes of `buffer` were just written.
        let sent = unsafe {
            transmit(connection, &[part], 0, || {
                crate::api::kernel_send(connection.fd, &part)
            })
        };
        if sent < 0 {
            if errno::get() == libc::EAGAIN || errno::get() == libc::EINTR {
                crate::api::wait_writable(connection.fd);
                continue;
            }
            return if done > 0 { done as isize } else { -1 };
        }
        done += sent as usize;
    }
    done as isize
}

/// `splice` from an accelerated connection to a pipe.
pub(crate) fn splice_out(connection: &Connection, pipe: i32, len: usize, flags: u32) -> isize {
    let mut buffer = [core::mem::MaybeUninit::<u8>::uninit(); TURN_BYTES];
    // Only what the pipe has room for: what was received cannot be given back.
    // SAFETY: no memory involved.
    let capacity = sys::fcntl(pipe, libc::F_GETPIPE_SZ, 0).max(4096);
    let room = (capacity - sys::bytes_waiting(pipe).max(0)).max(0) as usize;
    let pages_free = room / 4096 * 4096;
    if pages_free == 0 && flags & libc::SPLICE_F_NONBLOCK != 0 {
        errno::set(libc::EAGAIN);
        return -1;
    }
    let want = len.min(TURN_BYTES).min(pages_free.max(4096));
    let part = iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: want,
    };
    let receive_flags = if flags & libc::SPLICE_F_NONBLOCK != 0 {
        libc::MSG_DONTWAIT
    } else {
        0
    };
    // SAFETY: `part` names `want` writable bytes.
    let got = unsafe {
        receive(connection, &[part], receive_flags, || {
            crate::api::kernel_recv(connection.fd, &part)
        })
    };
    if got <= 0 {
        return got;
    }
    let mut done = 0usize;
    while done < got as usize {
        let base = buffer.as_ptr() as usize + done;
        // SAFETY: these bytes of `buffer` were just written.
        let written = unsafe {
            sys::raw(
                libc::SYS_write,
                pipe as usize,
                base,
                got as usize - done,
                0,
                0,
                0,
            )
        };
        match written {
            1.. => done += written as usize,
            error if error == -(libc::EAGAIN as isize) => {
                sys::poll_now(pipe, libc::POLLOUT);
                sys::yield_now();
            }
            error if error == -(libc::EINTR as isize) => {}
            error => {
                errno::set(-error as i32);
                return if done > 0 { done as isize } else { -1 };
            }
        }
    }
    done as isize
}
