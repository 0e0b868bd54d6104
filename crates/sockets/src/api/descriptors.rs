//! Calls about descriptors: closing, duplicating, modes and options.

use core::ffi::{c_int, c_uint, c_ulong, c_void};
use core::sync::atomic::Ordering;

use libc::socklen_t;
use toehold_channel::table::{FLAG_INHERITED, FLAG_NONBLOCK, Reason};
use toehold_freestanding::guarded;

use crate::api::zerocopy_receive;
use crate::connection::{self, Connection};
use crate::connection::{closing, options, resets};
use crate::direction::switching;
use crate::express::{carrier_words, listener, published, unread_watch, unseen_waits};
use crate::offload::{liveness, passive_open};
use crate::process::descriptors::{
    self, FRESH_CLOEXEC, FRESH_CUSTOMIZED, FRESH_KEEPALIVE, FRESH_NODELAY, FRESH_NONBLOCK, Kind,
};
use crate::process::{self, confinement, kept_bytes};
use crate::system::{errno, faults, real, sys};
use crate::uring;

/// `close(2)`.
#[inline]
#[unsafe(link_section = ".text.startup")]
pub unsafe fn close(fd: c_int) -> c_int {
    match descriptors::kind(fd) {
        Kind::Foreign => {
            if kept_bytes::has_any() && !confinement::is_guest() {
                kept_bytes::closing(fd);
            }
            uring::closing(fd);
            if listener::are_any() {
                errno::keep(|| listener::closing(fd));
            }
            if descriptors::is_noted(fd) && !process::borrowed_memory() {
                errno::keep(|| closing::closing(fd));
                return passive_open::ended_by(fd, || unsafe { real::close(fd) });
            }
        }
        Kind::Own => {
            // A program that closes all numbers does not mean the library's descriptors.
            if !process::borrowed_memory() {
                errno::set(libc::EBADF);
                return -1;
            }
        }
        Kind::Connection | Kind::Epoll => {
            if !process::borrowed_memory() {
                errno::keep(|| closing::closing_by_program(fd));
            }
        }
    }
    unsafe { real::close(fd) }
}

/// `close_range(2)`, which spares the library's descriptors.
pub unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_UNSHARE: c_int = 2;
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if first > last || flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 {
        // The kernel refuses the call.
        return unsafe { real::close_range(first, last, flags) };
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        confinement::leave_to_own_descriptors();
    }
    let closes = flags & CLOSE_RANGE_CLOEXEC == 0;
    if kept_bytes::has_any() && closes && !confinement::is_guest() {
        kept_bytes::closing_range(first, last);
    }
    if flags & CLOSE_RANGE_CLOEXEC != 0 || !process::is_started() || process::borrowed_memory() {
        let result = unsafe { real::close_range(first, last, flags) };
        if result == 0 && flags & CLOSE_RANGE_CLOEXEC != 0 {
            descriptors::close_fresh_on_exec(first, last);
            if kept_bytes::has_any() && !confinement::is_guest() {
                kept_bytes::close_range_on_exec(first, last);
            }
        }
        return result;
    }
    uring::closing_range(first, last);
    if listener::are_any() {
        errno::keep(|| listener::closing_range(first, last));
    }
    let mut from = first;
    let mut result = 0;
    let mut has_listener = false;
    descriptors::for_each_noted(first, last, |fd, kind| match kind {
        _ if passive_open::is_ending(fd) => has_listener = true,
        Kind::Own => {
            if fd as c_uint > from {
                result |= unsafe { real::close_range(from, fd as c_uint - 1, flags) };
            }
            from = fd as c_uint + 1;
        }
        _ => errno::keep(|| closing::closing(fd)),
    });
    passive_open::told_after(has_listener, || {
        if from <= last {
            result |= unsafe { real::close_range(from, last, flags) };
        }
        result
    })
}

/// `closefrom(3)`.
pub unsafe fn closefrom(first: c_int) {
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// `dup(2)`.
pub unsafe fn dup(fd: c_int) -> c_int {
    let result = unsafe { real::dup(fd) };
    note_duplicate(fd, result, false)
}

/// `dup2(2)`.
pub unsafe fn dup2(from: c_int, to: c_int) -> c_int {
    let is_listener_over = before_replacing(from, to, 0);
    let result = passive_open::told_after(is_listener_over, || unsafe { real::dup2(from, to) });
    match from == to {
        true => result,
        false => note_duplicate(from, result, false),
    }
}

/// `dup3(2)`.
pub unsafe fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    let is_listener_over = before_replacing(from, to, flags);
    let call = || unsafe { real::dup3(from, to, flags) };
    let result = passive_open::told_after(is_listener_over, call);
    note_duplicate(from, result, flags & libc::O_CLOEXEC != 0)
}

/// `to` is a duplicate of `from`, which an exec closes or not, or no descriptor. Returns the result
/// of the call.
fn note_duplicate(from: c_int, to: c_int, closes_on_exec: bool) -> c_int {
    if to >= 0 && listener::are_any() {
        errno::keep(|| listener::duplicated(from));
    }
    if kept_bytes::has_any() && to >= 0 && from != to {
        if confinement::is_guest() {
            if to < 3 {
                // It is for the program that the `vfork` child is going to execute.
                confinement::give_up_kept_bytes(from);
            }
            return to;
        }
        kept_bytes::closing(to);
        if !kept_bytes::duplicated(from, to, closes_on_exec) {
            // The duplicate would read past the kept bytes.
            unsafe { real::close(to) };
            errno::set(libc::EMFILE);
            return -1;
        }
    }
    if to >= 0 && process::is_started() {
        track_duplicate(from, to);
    }
    to
}

fn track_duplicate(from: c_int, to: c_int) {
    if descriptors::kind(from) == Kind::Foreign && descriptors::kind(to) == Kind::Foreign {
        match process::borrowed_memory() {
            false => errno::keep(|| descriptors::note_duplicated(from, to)),
            // The number belongs to a `vfork` child only.
            true => descriptors::share_one(from),
        }
        return;
    }
    errno::keep(|| {
        if !process::borrowed_memory() {
            closing::duplicate(from, to);
            if to < 3 && real::has_stdio() {
                becomes_standard(to);
            }
            if let (Some(c), Kind::Foreign) = (connection::at(from), descriptors::kind(to)) {
                // There is no memory to record the duplicate, so calls by that number go to the
                // kernel.
                switching::keep_on_carrier(&c);
            }
        } else if let Some(c) = connection::at(from) {
            // The number belongs to a `vfork` child only, and cannot be recorded.
            switching::keep_on_carrier(&c);
        }
    });
}

/// `to`, a standard stream's descriptor, is a duplicate now. `printf` and `fgets` read and write it
/// inside libc, past the library. So both directions have to go to the carrier for good. For
/// standard input, unread bytes in the ring cannot follow; for standard output, the program can
/// still read the ring.
///
/// In a static program this is not needed: its stdio makes its system calls at patched sites.
fn becomes_standard(to: c_int) {
    let Some(c) = connection::at(to) else {
        return;
    };
    if !c.local.attachment.has_region() {
        c.pin(Reason::Stdio);
    } else if to == 0 {
        switching::quiesce(&c, Reason::Stdio);
    } else {
        switching::leave_ring(&c, Reason::Stdio);
    }
}

/// Another process is about to get a descriptor, too: a child that shares our memory, or a child
/// that is spawned with file actions.
pub fn passing_on(fd: c_int) {
    match connection::at(fd) {
        Some(c) => errno::keep(|| switching::quiesce(&c, Reason::Passed)),
        None => {
            confinement::give_up_kept_bytes(fd);
            descriptors::share_one(fd);
        }
    }
}

/// The kernel is about to use the stream of a descriptor itself, for a device or for a BPF program.
pub fn giving_to_kernel(fd: c_int) {
    match connection::at(fd) {
        Some(c) => errno::keep(|| switching::quiesce(&c, Reason::Unsupported)),
        None => {
            confinement::give_up_kept_bytes(fd);
            descriptors::share_one(fd);
        }
    }
}

/// True for an `ioctl` with which a device takes over the socket in its argument.
pub fn takes_socket(request: c_ulong) -> bool {
    /// include/uapi/linux/nbd.h.
    const NBD_SET_SOCK: c_ulong = 0xab00;
    request == NBD_SET_SOCK
}

/// libc has replaced the files at descriptors 0, 1 and 2 without a call of ours.
pub fn standard_descriptors_replaced() {
    if !process::borrowed_memory() {
        errno::keep(|| (0..3).for_each(closing::closing));
    }
}

/// Another file is about to take the place of `to`. True when it ends a listener of which the
/// adapter knows.
fn before_replacing(from: c_int, to: c_int, flags: c_int) -> bool {
    if to < 3 && descriptors::kind(from) == Kind::Connection && process::borrowed_memory() {
        passing_on(from);
    }
    let is_known = descriptors::kind(to) != Kind::Foreign || descriptors::may_be_replaced(to);
    let is_listener = passive_open::is_announced(to);
    let has_uses = is_known || is_listener || uring::are_any() || listener::are_any();
    if !has_uses || process::borrowed_memory() || !is_going_to_be_replaced(from, to, flags) {
        return false;
    }
    uring::closing(to);
    errno::keep(|| {
        if listener::are_any() {
            listener::closing(to);
        }
        if is_known {
            closing::vacate(to);
            closing::closing_by_program(to);
        }
    });
    is_listener && passive_open::is_ending(to)
}

/// True when the kernel will put another file at `to`. It refuses other flags, numbers from the
/// limit on, and a number without a file; then `to` stays as it is (`ksys_dup3` in fs/file.c).
fn is_going_to_be_replaced(from: c_int, to: c_int, flags: c_int) -> bool {
    let is_below = |limit: usize| usize::try_from(to).is_ok_and(|to| to < limit);
    from != to
        && flags & !libc::O_CLOEXEC == 0
        && is_below(descriptors::descriptor_limit())
        && sys::fcntl(from, libc::F_GETFD, 0) >= 0
}

/// `fcntl(2)`.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result >= 0 {
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                return note_duplicate(fd, result, command == libc::F_DUPFD_CLOEXEC);
            }
            libc::F_SETFD if kept_bytes::has_any() && connection::at(fd).is_none() => {
                note_close_on_exec(fd, argument as c_int & libc::FD_CLOEXEC != 0);
            }
            libc::F_SETFD if descriptors::is_noted(fd) => {
                let is_set = argument as c_int & libc::FD_CLOEXEC != 0;
                descriptors::change_fresh(fd, FRESH_CLOEXEC, is_set);
            }
            libc::F_SETFD if argument as c_int & libc::FD_CLOEXEC == 0 => {
                if let Some(c) = connection::at(fd) {
                    c.entry.flags.fetch_or(FLAG_INHERITED, Ordering::Relaxed);
                }
            }
            libc::F_SETFL => {
                if let Some(c) = connection::at(fd) {
                    set_nonblocking(&c, argument as c_int & libc::O_NONBLOCK != 0);
                    if argument as c_int & !(libc::O_NONBLOCK | libc::O_RDWR) != 0 {
                        c.local.express.note_lasting_option();
                    }
                    if argument as c_int & libc::O_ASYNC != 0 {
                        // No signal is sent when bytes come to a ring.
                        errno::keep(|| switching::retire(&c, Reason::Unsupported));
                    }
                } else {
                    note_mode(fd, argument as c_int);
                }
            }
            libc::F_GETFD | libc::F_GETFL | F_GETOWN => {}
            // The owner for signals, among others.
            _ => descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true),
        }
    }
    result
}

/// The program has set whether an exec closes a descriptor, which may have kept bytes. A `vfork`
/// child sets that of its own descriptors.
#[cold]
fn note_close_on_exec(fd: c_int, closes: bool) {
    if !confinement::is_guest() {
        kept_bytes::set_close_on_exec(fd, closes);
    }
}

/// `fcntl(2)` (include/uapi/asm-generic/fcntl.h).
const F_GETOWN: c_int = 9;
/// Requests of ioctl(2) that set the receiver of the kernel's signals
/// (include/uapi/asm-generic/sockios.h).
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;

/// Requests of ioctl(2) that set and clear close-on-exec.
const FIOCLEX: c_ulong = libc::FIOCLEX as c_ulong;
const FIONCLEX: c_ulong = libc::FIONCLEX as c_ulong;

/// The program has set the blocking mode of a descriptor that is not a connection.
fn note_mode(fd: c_int, mode: c_int) {
    let is_nonblocking = mode & libc::O_NONBLOCK != 0;
    descriptors::change_fresh(fd, FRESH_NONBLOCK, is_nonblocking);
    if mode & !(libc::O_NONBLOCK | libc::O_RDWR) != 0 {
        descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
    }
    if !is_nonblocking && published::is_served(fd) {
        errno::keep(|| listener::used_otherwise(fd));
    }
}

fn set_nonblocking(connection: &Connection, on: bool) {
    let flags = &connection.entry.flags;
    match on {
        true => flags.fetch_or(FLAG_NONBLOCK, Ordering::Relaxed),
        false => flags.fetch_and(!FLAG_NONBLOCK, Ordering::Relaxed),
    };
    unseen_waits::mode_was_set(connection);
}

/// `ioctl(2)`. The library records `FIONBIO`, and answers queue lengths with the sum of ring and
/// carrier.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let Some(c) = connection::at(fd) else {
        if takes_socket(request) {
            giving_to_kernel(argument as c_int);
        }
        let result = unsafe { real::ioctl(fd, request, argument) };
        if result == 0 && request == libc::FIONREAD as c_ulong && kept_bytes::has_any() {
            // The kernel has just written it.
            let count = unsafe { &mut *(argument as *mut c_int) };
            let kept = c_int::try_from(kept_bytes::unread(fd)).unwrap_or(c_int::MAX);
            *count = count.saturating_add(kept);
        }
        if result == 0 && [FIOCLEX, FIONCLEX].contains(&request) {
            if kept_bytes::has_any() {
                note_close_on_exec(fd, request == FIOCLEX);
            }
            if descriptors::is_noted(fd) {
                descriptors::change_fresh(fd, FRESH_CLOEXEC, request == FIOCLEX);
            }
        }
        if result == 0 && descriptors::is_noted(fd) && argument != 0 {
            if request == libc::FIONBIO as c_ulong {
                let is_on = unsafe { *(argument as *const c_int) } != 0;
                note_mode(fd, if is_on { libc::O_NONBLOCK } else { 0 });
            } else if [libc::FIOASYNC as c_ulong, FIOSETOWN, SIOCSPGRP].contains(&request) {
                descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
            }
        }
        return result;
    };
    if argument != 0 {
        if let Some(count) = options::queue_length(&c, request) {
            let whole = size_of::<c_int>();
            // SAFETY: `count` is readable, and the target is this call's.
            let written = unsafe {
                guarded::try_from_shared((&raw const count).cast(), argument as *mut u8, whole)
            };
            return errno::result(written.map(|()| 0).map_err(|_| libc::EFAULT)) as c_int;
        }
    }
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result == 0 && request == FIONCLEX {
        c.entry.flags.fetch_or(FLAG_INHERITED, Ordering::Relaxed);
    }
    if result == 0 && request == libc::FIONBIO as c_ulong && argument != 0 {
        set_nonblocking(&c, unsafe { *(argument as *const c_int) } != 0);
    }
    let is_async = request == libc::FIOASYNC as c_ulong && argument != 0;
    if result == 0 && is_async && unsafe { *(argument as *const c_int) } != 0 {
        errno::keep(|| switching::retire(&c, Reason::Unsupported));
    }
    result
}

/// `getsockopt(2)`.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some(c) = connection::at(fd) {
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE)
            && let Some(result) = unsafe { zerocopy_receive::receive(&c, fd, value, len) }
        {
            return result;
        }
        let has_len = !len.is_null() && faults::can_read(len, 1);
        let room = if has_len {
            unsafe { *len }.cast_signed()
        } else {
            0
        };
        // The kernel cuts an answer that does not fit, and refuses a negative length.
        let whole = room.clamp(0, size_of::<c_int>() as c_int) as usize;
        if whole > 0
            && !value.is_null()
            && faults::can_read(value.cast::<u8>(), whole)
            && let Some(answer) = options::get(&c, level, name)
        {
            let told_len = whole as socklen_t;
            // SAFETY: both are readable; the targets are this call's.
            let told = unsafe {
                faults::give((&raw const answer).cast(), value.cast(), whole).and_then(|()| {
                    let size = size_of_val(&told_len);
                    faults::give((&raw const told_len).cast(), len.cast(), size)
                })
            };
            return errno::result(told.map(|()| 0)) as c_int;
        }
    }
    unsafe { real::getsockopt(fd, level, name, value, len) }
}

/// True for a length with room for an int. A negative one is refused.
fn is_of_int(len: socklen_t) -> bool {
    len.cast_signed() >= size_of::<c_int>() as c_int
}

/// `setsockopt(2)`.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(c) = connection::at(fd) {
        let is_there = !value.is_null() && faults::can_read(value.cast::<c_int>(), 1);
        let number = if is_there && is_of_int(len) {
            Some(unsafe { value.cast::<c_int>().read_unaligned() })
        } else {
            None
        };
        if options::set(&c, level, name, number) {
            return 0;
        }
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        if result == 0 {
            c.local.express.note_option(level, name);
            errno::keep(|| {
                if liveness::option_set(&c, level, name) {
                    unread_watch::watch_liveness(&c);
                }
                if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
                    resets::publish(&c);
                }
            });
        }
        return result;
    }
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) {
        errno::keep(|| passive_open::fast_open_set(fd));
    }
    if result == 0 && published::is_served(fd) {
        errno::keep(|| listener::option_set(fd));
    }
    if result == 0 && descriptors::is_noted(fd) {
        let is_delay = (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) && len >= 4;
        let is_set = !is_delay || unsafe { value.cast::<c_int>().read_unaligned() } != 0;
        let bit = match is_delay {
            true => FRESH_NODELAY,
            false if carrier_words::is_of_keepalive(level, name) => FRESH_KEEPALIVE,
            false => FRESH_CUSTOMIZED,
        };
        descriptors::change_fresh(fd, bit, is_set);
    }
    result
}
