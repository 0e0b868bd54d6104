//! Calls that move messages: bytes with addresses, descriptors and credentials beside them.

use core::cell::Cell;
use core::ffi::{c_int, c_uint};

use libc::{mmsghdr, msghdr, sockaddr, timespec};
use toehold_channel::table::Reason;

use crate::api::kept::receive_kept;
use crate::api::opening::{may_look, open_by_message};
use crate::api::readiness::limit_of;
use crate::connection::carrier::{Carrier, WaitsFor};
use crate::connection::{self, Connection};
use crate::connection::{options, pending_errors, settings, unix};
use crate::process::descriptors::{self, FRESH_CUSTOMIZED};
use crate::process::{self, kept_bytes};
use crate::system::real::Door;
use crate::system::{errno, faults, sys};
use crate::transfer::buffers::{self, parts};
use crate::transfer::control_messages::{self, Control, Sent};
use crate::transfer::host_call::Mark;
use crate::transfer::kernel_call::by_kernel;
use crate::transfer::receive::receive_message;
use crate::transfer::send::transmit_message;
use crate::transfer::{host_path, passed, peek};

/// A flag that the kernel uses internally for 32-bit programs. Programs must not set it.
const MSG_CMSG_COMPAT: c_int = i32::MIN;

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
    let mark = Mark::default();
    if !has_begun && let Some(call) = host_path::begin_receive(c, flags, &mark) {
        return call.end_receive(c, unsafe { door.recvmsg(c.fd, message, flags) });
    }
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
        if settings::tells_what_is_left(c) {
            let left = errno::keep(|| peek::left(c));
            unsafe { control.add(libc::IPPROTO_TCP, settings::TCP_INQ, left) };
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
        if result >= 0 {
            if !faults::can_write(message, 1) {
                // The bytes are gone, as on the kernel.
                return errno::bad_pointer();
            }
            if !header.msg_name.is_null() {
                header.msg_namelen = 0;
            }
            (header.msg_controllen, header.msg_flags) = (0, flags & libc::MSG_CMSG_CLOEXEC);
        }
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
        || !passed::can_read_message(door, message)
    {
        return unsafe { door.sendmsg(fd, message, flags) };
    }
    unsafe { passed::note_descriptors(door, &*message) };
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
    let kernel = move |fd| unsafe { door.sendmsg(fd, message, flags) };
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
    let mark = Mark::default();
    if !has_begun && let Some(call) = host_path::begin_send(c, flags, &mark) {
        return call.end_send(c, kernel(c.fd));
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
    if !passed::can_read_message(door, message) {
        return by_kernel(c, has_begun, |fd| unsafe {
            door.sendmsg(fd, message, flags)
        });
    }
    unsafe { passed::note_descriptors(door, &*message) };
    unsafe { sendmsg_on(door, c, message, flags, has_begun) }
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
    if !passed::can_read_message(door, &first.msg_hdr) {
        return None;
    }
    unsafe { passed::note_descriptors(door, &first.msg_hdr) };
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

/// True when a call by number may read a message that is to be sent. Otherwise the call is the
/// kernel's: it will refuse a pointer, or no connection can be passed yet.
#[must_use]
pub fn may_read_message(fd: c_int, message: *const msghdr, flags: c_int) -> bool {
    may_look(fd, flags) && !message.is_null() && passed::can_read_message(Door::Number, message)
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
        if let Err(error) = unsafe { faults::put(result as c_uint, &mut one.msg_len) } {
            errno::set(error);
            break;
        }
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

/// True when the `sent` bytes of a message are not all of it.
unsafe fn is_part_of(door: Door, header: &msghdr, sent: usize) -> bool {
    let list = unsafe { parts(header.msg_iov, door.length(header.msg_iovlen)) };
    list.is_some_and(|list| buffers::total(list).is_ok_and(|total| sent < total))
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
                if passed::can_read_message(door, one) {
                    unsafe { passed::note_descriptors(door, &*one) };
                }
            }
        }
        return unsafe { door.sendmmsg(fd, messages, count, flags) };
    };
    let count = count.min(MESSAGES_MAX);
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
        let is_part = unsafe { is_part_of(door, &one.msg_hdr, result as usize) };
        if let Err(error) = unsafe { faults::put(result as c_uint, &mut one.msg_len) } {
            errno::set(error);
            break;
        }
        done += 1;
        if is_part {
            // The program goes on with the rest of this message (`__sys_sendmmsg` in net/socket.c).
            break;
        }
    }
    if done == 0 && count > 0 {
        -1
    } else {
        done as c_int
    }
}
