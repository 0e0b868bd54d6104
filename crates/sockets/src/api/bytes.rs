//! Calls that move bytes.

use core::cell::Cell;
use core::ffi::{c_int, c_uint, c_void};

use libc::{cmsghdr, iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, timespec};
use toehold_channel::table::Reason;

use crate::api::readiness::limit_of;
use crate::connection::carrier::{Carrier, WaitsFor};
use crate::connection::{self, Connection};
use crate::connection::{options, pending_errors, unix};
use crate::direction::switching;
use crate::offload::{addresses, endings, fast_open, routing};
use crate::process::descriptors::{self, FRESH_CUSTOMIZED};
use crate::process::{self, confinement, kept_bytes};
use crate::system::real::Door;
use crate::system::{errno, faults, real, sys};
use crate::transfer::buffers::{self, part, parts};
use crate::transfer::control_messages::{self, Control, Sent};
use crate::transfer::kernel_call::by_kernel;
use crate::transfer::receive::{receive, receive_message};
use crate::transfer::send::{transmit, transmit_message};
use crate::transfer::{fast_path, sendfile};

/// A flag that the kernel uses internally for 32-bit programs. Programs must not set it.
const MSG_CMSG_COMPAT: c_int = i32::MIN;

/// `read(2)`. Unlike `recv(2)` it never waits for, nor reports, anything when asked for no bytes.
#[inline]
#[unsafe(link_section = ".text.startup")]
pub unsafe fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
    match connection::at(fd) {
        Some(c) if len > 0 => match unsafe { fast_path::receive(&c, buffer.cast(), len, 0) } {
            Some(done) => done,
            None => unsafe { read_slowly(&c, buffer, len) },
        },
        _ => unsafe { kept_or(fd, &[part(buffer, len)], 0, || real::read(fd, buffer, len)) },
    }
}

// Separate functions, so that the fast path does not save registers that only these functions use.
#[inline(never)]
unsafe fn read_slowly(c: &Connection, buffer: *mut c_void, len: usize) -> isize {
    let kernel = |fd| unsafe { real::read(fd, buffer, len) };
    match buffers::is_possible(buffer, len) {
        true => unsafe { receive(c, &[part(buffer, len)], 0, kernel) },
        false => errno::bad_pointer(),
    }
}

#[inline(never)]
unsafe fn write_slowly(c: &Connection, buffer: *const c_void, len: usize) -> isize {
    let kernel = |fd| unsafe { real::write(fd, buffer, len) };
    match buffers::is_possible(buffer, len) {
        true => unsafe { transmit(c, &[part(buffer, len)], 0, kernel) },
        false => errno::bad_pointer(),
    }
}

#[inline(never)]
unsafe fn recv_slowly(c: &Connection, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    let kernel = |fd| unsafe { real::recv(fd, buffer, len, flags) };
    unsafe { receive(c, &[cut(buffer, len)], flags, kernel) }
}

#[inline(never)]
unsafe fn send_slowly(c: &Connection, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    let kernel = |fd| unsafe { real::send(fd, buffer, len, flags) };
    unsafe { transmit(c, &[cut(buffer, len)], flags, kernel) }
}

/// The buffer of `send` and `recv`. The kernel limits its length before it checks it
/// (lib/iov_iter.c, `import_ubuf`).
fn cut(buffer: *const c_void, len: usize) -> iovec {
    part(buffer, len.min(buffers::CALL_BYTES_MAX))
}

/// Makes a call on the kernel, unless bytes were kept for the descriptor ([`kept_bytes`]).
///
/// # Safety
/// `parts` are writable.
#[inline]
unsafe fn kept_or(
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    kernel: impl FnOnce() -> isize,
) -> isize {
    if kept_bytes::has_any() && buffers::total(parts) != Ok(0) {
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { receive_kept(fd, parts, flags) } {
            return result;
        }
    }
    kernel()
}

/// Receives kept bytes. A receive that looks, or that waits for all bytes, then goes on in the
/// kernel. `None`: there are no kept bytes.
///
/// # Safety
/// As for [`kept_or`].
#[cold]
unsafe fn receive_kept(fd: c_int, parts: &[iovec], flags: c_int) -> Option<isize> {
    // SAFETY: the caller's promise, here and below.
    let kept = unsafe { kept_bytes::receive(fd, parts, flags) }?;
    let looks = flags & libc::MSG_PEEK != 0;
    let wanted = buffers::total(parts).unwrap_or(0);
    let (Ok(done), true) = (
        usize::try_from(kept),
        looks || flags & libc::MSG_WAITALL != 0,
    ) else {
        return Some(kept);
    };
    if done >= wanted {
        return Some(kept);
    }
    let flags = match flags & libc::MSG_WAITALL {
        0 => flags | libc::MSG_DONTWAIT,
        _ => flags,
    };
    let (mut window, count) = buffers::window(parts, done, wanted - done);
    let more = errno::keep(|| unsafe {
        // SAFETY: zeroes are a valid message.
        let mut message: msghdr = core::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (window.as_mut_ptr(), count as _);
        let more = match window[..count] {
            [one] => real::recv(fd, one.iov_base, one.iov_len, flags),
            _ => Door::Name.recvmsg(fd, &mut message, flags),
        };
        let error = errno::get();
        if more < 0 && !looks && ![libc::EAGAIN, libc::EINTR].contains(&error) {
            kept_bytes::keep_error(fd, error);
        }
        more
    });
    Some(kept + more.max(0))
}

/// `write(2)`.
#[inline]
#[unsafe(link_section = ".text.startup")]
pub unsafe fn write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    match connection::at(fd) {
        None => unsafe { real::write(fd, buffer, len) },
        Some(c) => match unsafe { fast_path::send(&c, buffer.cast(), len, 0) } {
            Some(done) => done,
            None => unsafe { write_slowly(&c, buffer, len) },
        },
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
        Some(c) => match unsafe { fast_path::receive(&c, buffer.cast(), len, flags) } {
            Some(done) => done,
            None => unsafe { recv_slowly(&c, buffer, len, flags) },
        },
    }
}

/// `send(2)`.
#[inline]
pub unsafe fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    match connection::at(fd) {
        None => unsafe { real::send(fd, buffer, len, flags) },
        Some(c) => match unsafe { fast_path::send(&c, buffer.cast(), len, flags) } {
            Some(done) => done,
            None => unsafe { send_slowly(&c, buffer, len, flags) },
        },
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
            // Without an address the kernel does not read the length.
            let has_source = !address.is_null();
            let room = match has_source && faults::can_read(address_len, 1) {
                true => Some(unsafe { address_len.read_unaligned() }),
                false => None,
            };
            let by_kernel = Cell::new(false);
            let result = match unsafe { fast_path::receive(&c, buffer.cast(), len, flags) } {
                Some(done) => done,
                None => unsafe {
                    receive(&c, &[cut(buffer, len)], flags, |fd| {
                        by_kernel.set(true);
                        real::recvfrom(fd, buffer, len, flags, address, address_len)
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
        Some(c) => match unsafe { fast_path::send(&c, buffer.cast(), len, flags) } {
            Some(done) => done,
            None => unsafe {
                let list = [cut(buffer, len)];
                if flags & libc::MSG_FASTOPEN != 0
                    && let Some(done) =
                        open_by_message(Door::Name, fd, (&list, flags), address, address_len)
                {
                    return done;
                }
                transmit(&c, &list, flags, |fd| {
                    real::sendto(fd, buffer, len, flags, address, address_len)
                })
            },
        },
    }
}

/// A send with `MSG_FASTOPEN`, if the library serves it.
#[cold]
unsafe fn open_by_message(
    door: Door,
    fd: c_int,
    message: (&[iovec], c_int),
    address: *const sockaddr,
    len: socklen_t,
) -> Option<isize> {
    let is_readable = address.is_null() || addresses::is_readable(address, len);
    let done = match routing::has_business() && is_readable {
        true => unsafe { fast_open::send(door, fd, message, address, len) },
        false => None,
    };
    // The kernel connects the socket, and the library does not see the result.
    descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
    done
}

/// `readv(2)`.
#[inline]
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    match (connection::at(fd), unsafe {
        parts(iov, count.max(0) as usize)
    }) {
        (Some(c), Some(list)) if count >= 0 && buffers::total(list) != Ok(0) => unsafe {
            receive(&c, list, 0, |fd| real::readv(fd, iov, count))
        },
        (None, Some(list)) if count >= 0 => unsafe {
            kept_or(fd, list, 0, || real::readv(fd, iov, count))
        },
        _ => unsafe { real::readv(fd, iov, count) },
    }
}

/// `writev(2)`. Unlike `write(2)` it reports no error when it has nothing to write.
#[inline]
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    match (connection::at(fd), unsafe {
        parts(iov, count.max(0) as usize)
    }) {
        (Some(c), Some(list)) if count >= 0 && buffers::total(list) != Ok(0) => unsafe {
            transmit(&c, list, 0, |fd| real::writev(fd, iov, count))
        },
        _ => unsafe { real::writev(fd, iov, count) },
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

/// `recvmsg(2)`, by libc's function.
#[inline]
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    unsafe { recvmsg_by(Door::Name, fd, message, flags) }
}

/// `recvmsg(2)`.
#[inline]
pub unsafe fn recvmsg_by(door: Door, fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // The kernel refuses its internal flag (net/socket.c, `__sys_recvmsg`).
    let is_refused = message.is_null() || flags & MSG_CMSG_COMPAT != 0;
    let c = connection::at(fd).filter(|_| !is_refused);
    match c.filter(|_| faults::can_read(message, 1)) {
        Some(c) => unsafe { recvmsg_on(door, &c, message, flags, false) },
        None => unsafe { recvmsg_of_kernel(door, fd, message, flags) },
    }
}

/// `recvmsg(2)` on a connection; `has_begun` as in [`receive_message`]. The message is readable.
#[inline]
unsafe fn recvmsg_on(
    door: Door,
    c: &Connection,
    message: *mut msghdr,
    flags: c_int,
    has_begun: bool,
) -> isize {
    let header = unsafe { &mut *message };
    let list = unsafe { parts(header.msg_iov, door.length(header.msg_iovlen)) };
    let has_bad_name = !header.msg_name.is_null() && header.msg_namelen.cast_signed() < 0;
    let Some(list) = list.filter(|_| !has_bad_name) else {
        return by_kernel(c, has_begun, |fd| unsafe {
            door.recvmsg(fd, message, flags)
        });
    };
    let mut control = Control {
        buffer: header.msg_control,
        len: door.length(header.msg_controllen),
        ..Control::none()
    };
    // The connection may get its channel, or leave it, inside the call.
    let kernels = Cell::new(false);
    let kernel = |fd| {
        kernels.set(true);
        unsafe { door.recvmsg(fd, message, flags) }
    };
    let how = (flags, WaitsFor::LowWater);
    let result = unsafe { receive_message(c, list, &mut control, how, has_begun, kernel) };
    if !kernels.get() && result >= 0 {
        let (name, room) = (header.msg_name.cast::<sockaddr>(), header.msg_namelen);
        if !faults::can_write(message, 1) {
            // The bytes are gone, as on the kernel.
            return errno::bad_pointer();
        }
        if !name.is_null() {
            let end = result == 0 && buffers::total(list) != Ok(0);
            let len = &mut header.msg_namelen;
            let told = errno::keep(|| unsafe { unix::write_source(c, end, name, room, len) });
            if let Err(error) = told {
                return errno::result(Err(error));
            }
        }
        header.msg_controllen = control.filled;
        header.msg_flags = control.flags | flags & libc::MSG_CMSG_CLOEXEC;
    }
    result
}

unsafe fn recvmsg_of_kernel(door: Door, fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    if kept_bytes::has_any()
        && faults::can_read(message, 1)
        && let Some(header) = unsafe { message.as_mut() }
        && let Some(list) = unsafe { parts(header.msg_iov, door.length(header.msg_iovlen)) }
        && let Some(result) = unsafe { receive_kept(fd, list, flags) }
    {
        if !header.msg_name.is_null() {
            header.msg_namelen = 0;
        }
        (header.msg_controllen, header.msg_flags) = (0, flags & libc::MSG_CMSG_CLOEXEC);
        return result;
    }
    unsafe { door.recvmsg(fd, message, flags) }
}

/// `sendmsg(2)`, by libc's function.
#[inline]
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    unsafe { sendmsg_by(Door::Name, fd, message, flags) }
}

/// `sendmsg(2)`. A message with control messages is sent by the kernel: the connection stays on, or
/// returns to, the host path. So descriptors and credentials keep their position in the stream.
#[inline]
pub unsafe fn sendmsg_by(door: Door, fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // Before there are connections, no descriptor of a connection can be passed.
    if !may_look(fd, flags)
        || message.is_null()
        || flags & MSG_CMSG_COMPAT != 0
        || !can_read_message(door, message)
    {
        return unsafe { door.sendmsg(fd, message, flags) };
    }
    unsafe { note_passed_descriptors(door, &*message) };
    match connection::at(fd) {
        Some(c) => unsafe { sendmsg_on(door, &c, message, flags, false) },
        None => {
            if flags & libc::MSG_FASTOPEN != 0
                && let Some(done) = unsafe { sendmsg_opening(door, fd, message, flags) }
            {
                return done;
            }
            unsafe { door.sendmsg(fd, message, flags) }
        }
    }
}

/// True when a message with these flags may be read: a bad pointer then gives `EFAULT` instead of a
/// crash.
#[inline]
fn may_look(fd: c_int, flags: c_int) -> bool {
    faults::are_armed() || flags & libc::MSG_FASTOPEN != 0 && is_armed_to_open(fd)
}

/// The process's first connection may be opened by this message. True when the message may be read.
#[cold]
fn is_armed_to_open(fd: c_int) -> bool {
    // As in `open_by_message`.
    descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
    if routing::has_business() && process::is_started() {
        errno::keep(faults::arm);
    }
    faults::are_armed()
}

/// As [`open_by_message`], for a readable message. A message with control messages that have an
/// effect is left to the kernel.
#[cold]
unsafe fn sendmsg_opening(
    door: Door,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Option<isize> {
    let header = unsafe { &*message };
    let list = unsafe { parts(header.msg_iov, door.length(header.msg_iovlen)) };
    // Descriptors and credentials have no effect on TCP.
    let sent = unsafe { control_messages::sent(door, header) };
    let has_control = !matches!(sent, Sent::Nothing | Sent::Rights);
    let list = list.filter(|list| !has_control && buffers::total(list).is_ok());
    let Some(list) = list else {
        descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
        return None;
    };
    let (name, len) = (header.msg_name.cast(), header.msg_namelen);
    unsafe { open_by_message(door, fd, (list, flags), name, len) }
}

/// As [`sendmsg_opening`], for the first message of `sendmmsg`: true when it was sent. `None`: the
/// kernel must make the call.
#[cold]
unsafe fn sendmmsg_opening(
    door: Door,
    fd: c_int,
    messages: *mut mmsghdr,
    flags: c_int,
) -> Option<bool> {
    if !may_look(fd, flags) || !faults::can_read(messages, 1) {
        return None;
    }
    let first = unsafe { &mut *messages };
    if !can_read_message(door, &first.msg_hdr) {
        return None;
    }
    unsafe { note_passed_descriptors(door, &first.msg_hdr) };
    let result = unsafe { sendmsg_opening(door, fd, &first.msg_hdr, flags) }?;
    if result < 0 {
        return Some(false);
    }
    let put = unsafe { faults::put(result as c_uint, &mut first.msg_len) };
    if let Err(error) = put {
        errno::set(error);
    }
    Some(put.is_ok())
}

/// `sendmsg(2)` on a connection; `has_begun` as in [`transmit_message`]. The message is readable.
#[inline]
unsafe fn sendmsg_on(
    door: Door,
    c: &Connection,
    message: *const msghdr,
    flags: c_int,
    has_begun: bool,
) -> isize {
    let header = unsafe { &*message };
    let kernel = |fd| unsafe { door.sendmsg(fd, message, flags) };
    let has_name = !header.msg_name.is_null() && header.msg_namelen > 0;
    if has_name && Carrier::of(c) == Carrier::Unix {
        // Refused, as by `sendto`.
        return by_kernel(c, has_begun, kernel);
    }
    let list = unsafe { parts(header.msg_iov, door.length(header.msg_iovlen)) };
    let sent = unsafe { control_messages::sent(door, header) };
    let mut control = (core::ptr::null_mut(), 0);
    match sent {
        Sent::Nothing => {}
        Sent::Rights | Sent::Other => {
            c.pin(match sent {
                Sent::Rights => Reason::Descriptors,
                _ => Reason::Unsupported,
            });
            control = (header.msg_control, door.length(header.msg_controllen));
        }
        Sent::IllFormed => return by_kernel(c, has_begun, kernel),
    }
    if flags & libc::MSG_FASTOPEN != 0
        && !has_begun
        && let Some(done) = unsafe { sendmsg_opening(door, c.fd, message, flags) }
    {
        return done;
    }
    match list {
        Some(list) => unsafe { transmit_message(c, list, control, flags, has_begun, kernel) },
        None => by_kernel(c, has_begun, kernel),
    }
}

/// One of several messages of a call.
unsafe fn sendmsg_in_turn(
    door: Door,
    c: &Connection,
    message: *const msghdr,
    flags: c_int,
    has_begun: bool,
) -> isize {
    if !can_read_message(door, message) {
        return by_kernel(c, has_begun, |fd| unsafe {
            door.sendmsg(fd, message, flags)
        });
    }
    unsafe { note_passed_descriptors(door, &*message) };
    unsafe { sendmsg_on(door, c, message, flags, has_begun) }
}

/// True when a call by number may read a message that is to be sent. Otherwise the call is the
/// kernel's: it will refuse a pointer, or no connection can be passed yet.
#[must_use]
pub fn may_read_message(fd: c_int, message: *const msghdr, flags: c_int) -> bool {
    may_look(fd, flags) && !message.is_null() && can_read_message(Door::Number, message)
}

/// True when a message has no bad pointers; its parts are not checked.
fn can_read_message(door: Door, message: *const msghdr) -> bool {
    if !faults::can_read(message, 1) {
        return false;
    }
    // SAFETY: it was just looked at.
    let header = unsafe { &*message };
    // A longer name is cut (`__copy_msghdr` in net/socket.c), and a negative length refused.
    let name_len = header
        .msg_namelen
        .min(size_of::<libc::sockaddr_storage>() as u32);
    let has_name = !header.msg_name.is_null();
    if has_name
        && (header.msg_namelen.cast_signed() < 0
            || !addresses::is_readable(header.msg_name.cast(), name_len))
    {
        return false;
    }
    let control = header.msg_control.cast::<u8>();
    faults::can_read(control, door.length(header.msg_controllen))
}

/// A tracked descriptor is passed to another program: its connection goes to the host path.
unsafe fn note_passed_descriptors(door: Door, header: &msghdr) {
    let note = |fd: i32| {
        if let Some(passed) = connection::at(fd) {
            errno::keep(|| switching::quiesce(&passed, Reason::Passed));
        } else {
            confinement::give_up_kept_bytes(fd);
            // Another process has it, too.
            descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
        }
    };
    let each = |one: &cmsghdr, data: *const u8, len: usize| {
        if (one.cmsg_level, one.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for n in 0..len / size_of::<i32>() {
                // SAFETY: within the message's data.
                note(unsafe { data.cast::<i32>().wrapping_add(n).read_unaligned() });
            }
        }
    };
    // The kernel passes no descriptor of an ill-formed list. SAFETY: the caller of `sendmsg`
    // promises a valid control buffer.
    let _ = unsafe {
        control_messages::each_sent(door, header, |_, _, _| ())
            .and_then(|()| control_messages::each_sent(door, header, each))
    };
}

/// `recvmmsg(2)`, by libc's function.
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    unsafe { recvmmsg_by(Door::Name, fd, messages, count, flags, timeout) }
}

/// `recvmmsg(2)`.
pub unsafe fn recvmmsg_by(
    door: Door,
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let is_refused = messages.is_null() || flags & MSG_CMSG_COMPAT != 0;
    let connection = connection::at(fd).filter(|_| !is_refused);
    let Some(connection) = connection else {
        return match kept_bytes::has_any() && !is_refused && count > 0 && kept_bytes::has(fd) {
            true => unsafe { recvmmsg_of_kept(door, fd, messages, count, flags, timeout) },
            false => unsafe { door.recvmmsg(fd, messages, count, flags, timeout) },
        };
    };
    if !timeout.is_null() && !faults::can_read(timeout, 1) {
        return errno::bad_pointer() as c_int;
    }
    let Ok(limit) = (unsafe { limit_of(timeout) }) else {
        return errno::result(Err(libc::EINVAL)) as c_int;
    };
    // Other calls report an error after the bytes that came before it. This call reports it first
    // (net/socket.c, do_recvmmsg).
    if flags & libc::MSG_ERRQUEUE == 0 {
        let error = errno::keep(|| options::take_error(&connection));
        if error != 0 {
            return errno::result(Err(error)) as c_int;
        }
    }
    let start = sys::now_ns();
    let mut flags = flags;
    let mut done = 0;
    while done < count {
        let one = messages.wrapping_add(done as usize);
        if !faults::can_read(one, 1) {
            errno::set(libc::EFAULT);
            pending_errors::keep_of_several(&connection, done);
            break;
        }
        let one = unsafe { &mut *one };
        let flags_now = flags & !libc::MSG_WAITFORONE;
        let result =
            unsafe { recvmsg_on(door, &connection, &mut one.msg_hdr, flags_now, done > 0) };
        if result < 0 && done > 0 && connection.end().is_some() {
            pending_errors::keep_for_next_call(&connection, errno::get());
        }
        if result < 0 {
            pending_errors::keep_of_several(&connection, done);
            break;
        }
        if let Err(error) = unsafe { faults::put(result as c_uint, &mut one.msg_len) } {
            errno::set(error);
            pending_errors::keep_of_several(&connection, done);
            break;
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if limit.is_some_and(|limit| sys::now_ns() - start >= limit) {
            break;
        }
    }
    if done == 0 && count > 0 {
        return -1;
    }
    if let Some(limit) = limit.filter(|_| done > 0) {
        // The rest of the time-out, as the kernel leaves it.
        let left = sys::timespec(limit.saturating_sub(sys::now_ns() - start));
        if let Err(error) = unsafe { faults::put(left, timeout) } {
            return errno::result(Err(error)) as c_int;
        }
    }
    done as c_int
}

/// `recvmmsg(2)` on a descriptor with kept bytes: these fill the first messages, and the kernel
/// fills the others.
#[cold]
unsafe fn recvmmsg_of_kept(
    door: Door,
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let waits_for_one = flags & libc::MSG_WAITFORONE != 0;
    let mut done = 0;
    while done < count && (done == 0 || kept_bytes::has(fd)) {
        let one = messages.wrapping_add(done as usize);
        if !faults::can_read(one, 1) {
            errno::set(libc::EFAULT);
            break;
        }
        let one = unsafe { &mut *one };
        let flags = flags & !libc::MSG_WAITFORONE;
        let result = unsafe { recvmsg_of_kernel(door, fd, &mut one.msg_hdr, flags) };
        if result < 0 {
            break;
        }
        one.msg_len = result as c_uint;
        done += 1;
    }
    if done == 0 {
        return -1;
    }
    if done == count || kept_bytes::has(fd) {
        return done as c_int;
    }
    let flags = match waits_for_one {
        true => flags | libc::MSG_DONTWAIT,
        false => flags,
    };
    let more = errno::keep(|| unsafe {
        let rest = messages.wrapping_add(done as usize);
        let more = door.recvmmsg(fd, rest, count - done, flags, timeout);
        let error = errno::get();
        if more < 0 && ![libc::EAGAIN, libc::EINTR].contains(&error) {
            kept_bytes::keep_error(fd, error);
        }
        more
    });
    done as c_int + more.max(0)
}

/// The kernel sends no more at a time (`UIO_MAXIOV`, `__sys_sendmmsg` in net/socket.c).
const MESSAGES_MAX: c_uint = 1024;

/// `sendmmsg(2)`, by libc's function.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    unsafe { sendmmsg_by(Door::Name, fd, messages, count, flags) }
}

/// `sendmmsg(2)`.
pub unsafe fn sendmmsg_by(
    door: Door,
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let is_refused = messages.is_null() || flags & MSG_CMSG_COMPAT != 0;
    let connection = connection::at(fd).filter(|_| !is_refused);
    if flags & libc::MSG_FASTOPEN != 0 && connection.is_none() && count > 0 && !is_refused {
        match unsafe { sendmmsg_opening(door, fd, messages, flags) } {
            Some(false) => return -1,
            // On Linux the next message fails, because the socket is connected or connecting.
            Some(true) => return 1,
            None => {}
        }
    }
    let Some(connection) = connection else {
        if flags & libc::MSG_FASTOPEN != 0 {
            // As in `open_by_message`.
            descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
        }
        if process::is_started() && faults::are_armed() && !messages.is_null() {
            for n in 0..count.min(MESSAGES_MAX) {
                let one = unsafe { &raw const (*messages.wrapping_add(n as usize)).msg_hdr };
                if can_read_message(door, one) {
                    unsafe { note_passed_descriptors(door, &*one) };
                }
            }
        }
        return unsafe { door.sendmmsg(fd, messages, count, flags) };
    };
    let mut done = 0;
    while done < count {
        let one = messages.wrapping_add(done as usize);
        if !faults::can_read(one, 1) {
            errno::set(libc::EFAULT);
            break;
        }
        let one = unsafe { &mut *one };
        let result = unsafe { sendmsg_in_turn(door, &connection, &one.msg_hdr, flags, done > 0) };
        if result < 0 {
            break;
        }
        if let Err(error) = unsafe { faults::put(result as c_uint, &mut one.msg_len) } {
            errno::set(error);
            break;
        }
        done += 1;
    }
    if done == 0 && count > 0 {
        -1
    } else {
        done as c_int
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
