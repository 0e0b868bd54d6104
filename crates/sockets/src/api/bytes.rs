//! Calls that move bytes.

use core::cell::Cell;
use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, off_t, sockaddr, socklen_t};

use crate::api::kept::kept_or;
use crate::api::opening::open_by_message;
use crate::connection::carrier::Carrier;
use crate::connection::unix;
use crate::connection::{self, Connection};
use crate::offload::{addresses, endings};
use crate::process::kept_bytes;
use crate::system::real::Door;
use crate::system::{errno, faults, real};
use crate::transfer::buffers::{self, part, parts};
use crate::transfer::host_call::Mark;
use crate::transfer::receive::receive;
use crate::transfer::send::transmit;
use crate::transfer::{fast_path, host_path, sendfile};

/// `read(2)`. Unlike `recv(2)` it never waits for, nor reports, anything when asked for no bytes.
#[inline]
#[unsafe(link_section = ".text.startup")]
pub unsafe fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
    match connection::at(fd) {
        Some(c) if len > 0 => {
            if c.local.attachment.has_region() {
                let done = unsafe { fast_path::receive(&c, buffer.cast(), len, 0) };
                return done.unwrap_or_else(|| unsafe { read_slowly(&c, buffer, len) });
            }
            let mark = Mark::default();
            match host_path::begin_receive(&c, 0, &mark) {
                Some(call) => call.end_receive(&c, unsafe { real::read(fd, buffer, len) }),
                None => unsafe { read_slowly(&c, buffer, len) },
            }
        }
        _ => unsafe { kept_or(fd, &[part(buffer, len)], 0, || real::read(fd, buffer, len)) },
    }
}

// Separate functions, so that the fast path does not save registers that only these functions use.
#[inline(never)]
unsafe fn read_slowly(c: &Connection, buffer: *mut c_void, len: usize) -> isize {
    let kernel = move |fd| unsafe { real::read(fd, buffer, len) };
    match buffers::is_possible(buffer, len) {
        true => unsafe { receive(c, &[part(buffer, len)], 0, kernel) },
        false => errno::bad_pointer(),
    }
}

#[inline(never)]
unsafe fn write_slowly(c: &Connection, buffer: *const c_void, len: usize) -> isize {
    let kernel = move |fd| unsafe { real::write(fd, buffer, len) };
    match buffers::is_possible(buffer, len) {
        true => unsafe { transmit(c, &[part(buffer, len)], 0, kernel) },
        false => errno::bad_pointer(),
    }
}

#[inline(never)]
unsafe fn recv_slowly(c: &Connection, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    let kernel = move |fd| unsafe { real::recv(fd, buffer, len, flags) };
    unsafe { receive(c, &[cut(buffer, len)], flags, kernel) }
}

#[inline(never)]
unsafe fn send_slowly(c: &Connection, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    let kernel = move |fd| unsafe { real::send(fd, buffer, len, flags) };
    unsafe { transmit(c, &[cut(buffer, len)], flags, kernel) }
}

/// The buffer of `send` and `recv`. The kernel limits its length before it checks it
/// (lib/iov_iter.c, `import_ubuf`).
fn cut(buffer: *const c_void, len: usize) -> iovec {
    part(buffer, len.min(buffers::CALL_BYTES_MAX))
}

/// `write(2)`.
#[inline]
#[unsafe(link_section = ".text.startup")]
pub unsafe fn write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    match connection::at(fd) {
        None => unsafe { real::write(fd, buffer, len) },
        Some(c) => {
            if c.local.attachment.has_region() {
                let done = unsafe { fast_path::send(&c, buffer.cast(), len, 0) };
                return done.unwrap_or_else(|| unsafe { write_slowly(&c, buffer, len) });
            }
            let mark = Mark::default();
            match host_path::begin_send(&c, 0, &mark) {
                Some(call) => call.end_send(&c, unsafe { real::write(fd, buffer, len) }),
                None => unsafe { write_slowly(&c, buffer, len) },
            }
        }
    }
}

/// `recv(2)`.
#[inline]
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    match connection::at(fd) {
        None => unsafe {
            kept_or(fd, &[part(buffer, len)], flags, || {
                real::recv(fd, buffer, len, flags)
            })
        },
        Some(c) => {
            if c.local.attachment.has_region() {
                let done = unsafe { fast_path::receive(&c, buffer.cast(), len, flags) };
                return done.unwrap_or_else(|| unsafe { recv_slowly(&c, buffer, len, flags) });
            }
            let mark = Mark::default();
            match host_path::begin_receive(&c, flags, &mark) {
                Some(call) => call.end_receive(&c, unsafe { real::recv(fd, buffer, len, flags) }),
                None => unsafe { recv_slowly(&c, buffer, len, flags) },
            }
        }
    }
}

/// `send(2)`.
#[inline]
pub unsafe fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    match connection::at(fd) {
        None => unsafe { real::send(fd, buffer, len, flags) },
        Some(c) => {
            if c.local.attachment.has_region() {
                let done = unsafe { fast_path::send(&c, buffer.cast(), len, flags) };
                return done.unwrap_or_else(|| unsafe { send_slowly(&c, buffer, len, flags) });
            }
            let mark = Mark::default();
            match host_path::begin_send(&c, flags, &mark) {
                Some(call) => call.end_send(&c, unsafe { real::send(fd, buffer, len, flags) }),
                None => unsafe { send_slowly(&c, buffer, len, flags) },
            }
        }
    }
}

/// `recvfrom(2)`. A connected TCP socket reports no source address: the length becomes 0, as the
/// kernel does it. A Unix socket reports its peer's, if that has one.
#[inline]
pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> isize {
    match connection::at(fd) {
        None => unsafe {
            kept_or(fd, &[part(buffer, len)], flags, || {
                real::recvfrom(fd, buffer, len, flags, address, address_len)
            })
        },
        Some(c) => {
            let kernel =
                |fd| unsafe { real::recvfrom(fd, buffer, len, flags, address, address_len) };
            let mark = Mark::default();
            if let Some(call) = host_path::begin_receive(&c, flags, &mark) {
                return call.end_receive(&c, kernel(fd));
            }
            // Without an address the kernel does not read the length.
            let has_source = !address.is_null();
            let room = match has_source && faults::can_read(address_len, 1) {
                true => Some(unsafe { address_len.read_unaligned() }),
                false => None,
            };
            let by_kernel = Cell::new(false);
            let quick = match c.local.attachment.has_region() {
                true => unsafe { fast_path::receive(&c, buffer.cast(), len, flags) },
                false => None,
            };
            let result = match quick {
                Some(done) => done,
                None => unsafe {
                    receive(&c, &[cut(buffer, len)], flags, |fd| {
                        by_kernel.set(true);
                        kernel(fd)
                    })
                },
            };
            if result >= 0 && has_source && !by_kernel.get() {
                let Some(room) = room else {
                    // The bytes are gone, as on the kernel.
                    return errno::bad_pointer();
                };
                let end = result == 0 && len > 0;
                let told = errno::keep(|| unsafe {
                    unix::write_source(&c, end, address, room, address_len)
                });
                return errno::result(told.map(|()| result as usize));
            }
            result
        }
    }
}

/// `sendto(2)`. On a connected TCP stream the address is ignored; with `MSG_FASTOPEN` it connects.
/// A Unix socket refuses it.
#[inline]
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> isize {
    match connection::at(fd) {
        None => {
            if flags & libc::MSG_FASTOPEN != 0
                && let Some(done) = unsafe {
                    open_by_message(
                        Door::Name,
                        fd,
                        (&[cut(buffer, len)], flags),
                        address,
                        address_len,
                    )
                }
            {
                return done;
            }
            unsafe { real::sendto(fd, buffer, len, flags, address, address_len) }
        }
        Some(c)
            if !address.is_null()
                && (Carrier::of(&c) == Carrier::Unix && address_len != 0
                    || !addresses::is_readable(address, address_len)) =>
        unsafe { real::sendto(fd, buffer, len, flags, address, address_len) },
        Some(c) => {
            let kernel =
                move |fd| unsafe { real::sendto(fd, buffer, len, flags, address, address_len) };
            let mark = Mark::default();
            if let Some(call) = host_path::begin_send(&c, flags, &mark) {
                return call.end_send(&c, kernel(fd));
            }
            let quick = match c.local.attachment.has_region() {
                true => unsafe { fast_path::send(&c, buffer.cast(), len, flags) },
                false => None,
            };
            match quick {
                Some(done) => done,
                None => unsafe {
                    let list = [cut(buffer, len)];
                    if flags & libc::MSG_FASTOPEN != 0
                        && let Some(done) =
                            open_by_message(Door::Name, fd, (&list, flags), address, address_len)
                    {
                        return done;
                    }
                    transmit(&c, &list, flags, kernel)
                },
            }
        }
    }
}

/// `readv(2)`.
#[inline]
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    let c = connection::at(fd);
    let kernel = move |fd| unsafe { real::readv(fd, iov, count) };
    match &c {
        None if !kept_bytes::has_any() => return kernel(fd),
        None => {}
        Some(c) => {
            let mark = Mark::default();
            if let Some(call) = host_path::begin_receive(c, 0, &mark) {
                return call.end_receive(c, kernel(fd));
            }
        }
    }
    match (c, unsafe { parts(iov, count.max(0) as usize) }) {
        (Some(c), Some(list)) if count >= 0 && buffers::total(list) != Ok(0) => unsafe {
            receive(&c, list, 0, kernel)
        },
        (None, Some(list)) if count >= 0 => unsafe { kept_or(fd, list, 0, || kernel(fd)) },
        _ => kernel(fd),
    }
}

/// `writev(2)`. Unlike `write(2)` it reports no error when it has nothing to write.
#[inline]
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    let kernel = move |fd| unsafe { real::writev(fd, iov, count) };
    let Some(c) = connection::at(fd) else {
        return kernel(fd);
    };
    let mark = Mark::default();
    if let Some(call) = host_path::begin_send(&c, 0, &mark) {
        return call.end_send(&c, kernel(fd));
    }
    match unsafe { parts(iov, count.max(0) as usize) } {
        Some(list) if count >= 0 && buffers::total(list) != Ok(0) => unsafe {
            transmit(&c, list, 0, kernel)
        },
        _ => kernel(fd),
    }
}

/// `preadv2(2)`. At offset -1 it is `readv(2)`, for sockets, too; at any other the kernel says
/// `ESPIPE`.
pub unsafe fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> isize {
    let kernel = |fd| unsafe { real::preadv2(fd, iov, count, offset, flags) };
    if kept_bytes::has_any()
        && offset == -1
        && count >= 0
        && let Some(list) = unsafe { parts(iov, count as usize) }
        && let Ok(flags) = message_flags(flags)
        && connection::at(fd).is_none()
    {
        return unsafe { kept_or(fd, list, flags, || kernel(fd)) };
    }
    unsafe {
        vectored(
            (fd, iov, count),
            (offset, flags),
            kernel,
            |c, list, flags| receive(c, list, flags, kernel),
        )
    }
}

/// `pwritev2(2)`. At offset -1 it is `writev(2)`.
pub unsafe fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> isize {
    let kernel = |fd| unsafe { real::pwritev2(fd, iov, count, offset, flags) };
    unsafe {
        vectored(
            (fd, iov, count),
            (offset, flags),
            kernel,
            |c, list, flags| transmit(c, list, flags, kernel),
        )
    }
}

/// `preadv2` or `pwritev2`: `transfer` at offset -1 on a connection, the `kernel`'s call elsewhere.
unsafe fn vectored<'a>(
    (fd, iov, count): (c_int, *const iovec, c_int),
    (offset, flags): (off_t, c_int),
    kernel: impl FnOnce(i32) -> isize,
    transfer: impl FnOnce(&Connection, &'a [iovec], c_int) -> isize,
) -> isize {
    match unsafe { at_no_offset(fd, iov, count, offset, flags) } {
        None => kernel(fd),
        Some(Ok((c, list, flags))) => transfer(&c, list, flags),
        Some(Err(error)) => errno::result(Err(error)),
    }
}

/// A transfer on a connection: its parts, and a message's flags.
type Transfer<'a> = (Connection, &'a [iovec], c_int);

/// The meaning of `preadv2` and `pwritev2` at offset -1 on a connection, or an error. `None`: the
/// kernel's business.
unsafe fn at_no_offset<'a>(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Option<Result<Transfer<'a>, i32>> {
    let c = connection::at(fd).filter(|_| offset == -1 && count >= 0)?;
    let list = unsafe { parts(iov, count as usize) }?;
    let is_there = buffers::total(list) != Ok(0);
    is_there.then(|| Ok((c, list, message_flags(flags)?)))
}

/// The socket flags for those of `preadv2` and `pwritev2` (`kiocb_set_rw_flags` in
/// include/linux/fs.h, `sock_read_iter` in net/socket.c). Most are about files and change nothing.
///
/// # Errors
/// The kernel's, where it refuses them.
fn message_flags(flags: c_int) -> Result<c_int, i32> {
    const RWF_APPEND: c_int = 0x10;
    const RWF_NOAPPEND: c_int = 0x20;
    /// Flags that concern files only, among them `RWF_HIPRI`, `RWF_DSYNC` and `RWF_SYNC`.
    const WITHOUT_EFFECT: c_int = 0x1 | 0x2 | 0x4 | RWF_APPEND | RWF_NOAPPEND;
    /// Sockets know it since Linux 6.4.
    const RWF_NOWAIT: c_int = 0x8;
    /// Since Linux 6.18.
    const RWF_NOSIGNAL: c_int = 0x100;
    let with = |flag, message_flag| if flags & flag != 0 { message_flag } else { 0 };
    if flags & !(WITHOUT_EFFECT | RWF_NOWAIT | RWF_NOSIGNAL) != 0 {
        Err(libc::EOPNOTSUPP)
    } else if flags & RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        Err(libc::EINVAL)
    } else {
        Ok(with(RWF_NOWAIT, libc::MSG_DONTWAIT) | with(RWF_NOSIGNAL, libc::MSG_NOSIGNAL))
    }
}

/// `eventfd_read(3)`, which reads eight bytes from a descriptor of any kind.
pub unsafe fn eventfd_read(fd: c_int, value: *mut u64) -> c_int {
    let whole = size_of::<u64>();
    match unsafe { read(fd, value.cast(), whole) } {
        got if got == whole as isize => 0,
        _ => -1,
    }
}

/// `eventfd_write(3)`.
pub unsafe fn eventfd_write(fd: c_int, value: u64) -> c_int {
    let whole = size_of::<u64>();
    match unsafe { write(fd, (&raw const value).cast(), whole) } {
        put if put == whole as isize => 0,
        _ => -1,
    }
}

/// `sendfile(2)`.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: usize) -> isize {
    match connection::at(out) {
        None => match connection::at(input) {
            // `sendfile` to a pipe is a splice (fs/read_write.c, `do_sendfile`).
            Some(c) if offset.is_null() && count > 0 && sendfile::is_pipe(out) => {
                let kernel = |fd| unsafe { real::sendfile(out, fd, offset, count) };
                unsafe { receive_to_pipe(&c, out, count, 0, kernel) }
            }
            None if offset.is_null() && kept_bytes::has_any() && kept_bytes::has(input) => {
                let kernel = || unsafe { real::sendfile(out, input, offset, count) };
                sendfile::splice_kept(input, out, count, 0, kernel)
            }
            _ => unsafe { real::sendfile(out, input, offset, count) },
        },
        Some(_) if !offset.is_null() && !faults::can_read(offset, 1) => unsafe {
            real::sendfile(out, input, offset, count)
        },
        Some(c) => {
            if let Some(error) = errno::keep(|| endings::silence(&c)) {
                return errno::result(Err(error));
            }
            let kernel = |out| unsafe { real::sendfile(out, input, offset, count) };
            let result = unsafe { sendfile::sendfile(&c, input, offset, count, kernel) };
            endings::correct(&c, result, endings::send_error)
        }
    }
}

/// `splice(2)`.
pub unsafe fn splice(
    input: c_int,
    input_offset: *mut off_t,
    out: c_int,
    out_offset: *mut off_t,
    len: usize,
    flags: c_uint,
) -> isize {
    let kernel =
        |input, out| unsafe { real::splice(input, input_offset, out, out_offset, len, flags) };
    let has_offsets = !input_offset.is_null() || !out_offset.is_null();
    if has_offsets {
        // Neither a socket nor a pipe has an offset: the kernel refuses the call.
        return kernel(input, out);
    }
    if let Some(c) = connection::at(out) {
        if let Some(error) = errno::keep(|| endings::silence(&c)) {
            return errno::result(Err(error));
        }
        return sendfile::splice_in(&c, input, len, flags, |out| kernel(input, out));
    }
    match connection::at(input) {
        Some(c) => unsafe { receive_to_pipe(&c, out, len, flags, |input| kernel(input, out)) },
        None if kept_bytes::has_any() && kept_bytes::has(input) => {
            sendfile::splice_kept(input, out, len, flags, || kernel(input, out))
        }
        None => kernel(input, out),
    }
}

/// A `splice` from a connection.
unsafe fn receive_to_pipe(
    c: &Connection,
    out: c_int,
    len: usize,
    flags: c_uint,
    kernel: impl Fn(i32) -> isize,
) -> isize {
    let is_attached = || c.local.attachment.has_region();
    if is_attached() {
        return sendfile::splice_out(c, out, len, flags, kernel);
    }
    let whole = part(core::ptr::null(), 0);
    // SAFETY: the part is empty; the host path only calls `kernel`.
    let result = unsafe { receive(c, &[whole], 0, &kernel) };
    match result {
        0 if is_attached() => sendfile::splice_out(c, out, len, flags, kernel),
        _ => result,
    }
}
