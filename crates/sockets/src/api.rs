//! The socket layer's calls, each with the signature and the contract of the libc function of the same name. Descriptors that are
//! not ours cost one branch, then the real call.

// Every function here forwards its arguments, with its caller's promises, to the libc function of the same name or to the layer
// below; one argument covers all of these blocks, so it is not repeated at each.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

use core::ffi::{c_int, c_uint, c_ulong, c_void};
use core::sync::atomic::Ordering;

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, sockaddr,
    socklen_t, timespec, timeval,
};
use toehold_channel::table::{FLAG_INHERITED, FLAG_NONBLOCK, Reason};

use crate::offload::names::{self, Side};
use crate::offload::opening::{self, Opened};
use crate::receive::receive;
use crate::send::{shutting, transmit};
use crate::state::{self, Connection, Kind};
use crate::{buffers, epoll, errno, offload, options, pairing, poll, real, sys, transfer};

fn part(base: *const c_void, len: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut(),
        iov_len: len,
    }
}

/// The parts an array names, or nothing when the kernel would refuse them.
unsafe fn parts<'a>(iov: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count == 0 {
        return Some(&[]);
    }
    if iov.is_null() || count > buffers::PARTS_MAX {
        return None;
    }
    // SAFETY: the caller of the C function promises `count` readable elements.
    Some(unsafe { core::slice::from_raw_parts(iov, count) })
}

/// A plain kernel send of one part, for helpers that need one.
pub(crate) fn kernel_send(fd: i32, part: &iovec) -> isize {
    // SAFETY: `part` names memory its owner vouches for.
    unsafe { real::write(fd, part.iov_base, part.iov_len) }
}

/// A plain kernel receive into one part.
pub(crate) fn kernel_recv(fd: i32, part: &iovec) -> isize {
    // SAFETY: as in `kernel_send`.
    unsafe { real::read(fd, part.iov_base, part.iov_len) }
}

/// Waits until `fd` can take more.
pub(crate) fn wait_writable(fd: i32) {
    let mut one = pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one `pollfd`.
    unsafe { poll(&mut one, 1, 100) };
}

/// `read(2)`.
#[inline]
pub unsafe fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
    match state::connection(fd) {
        None => unsafe { real::read(fd, buffer, len) },
        Some(c) => unsafe { receive(&c, &[part(buffer, len)], 0, || real::read(fd, buffer, len)) },
    }
}

/// `write(2)`.
#[inline]
pub unsafe fn write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    match state::connection(fd) {
        None => unsafe { real::write(fd, buffer, len) },
        Some(c) => unsafe {
            transmit(&c, &[part(buffer, len)], 0, || real::write(fd, buffer, len))
        },
    }
}

/// `recv(2)`.
#[inline]
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    match state::connection(fd) {
        None => unsafe { real::recv(fd, buffer, len, flags) },
        Some(c) => unsafe {
            receive(&c, &[part(buffer, len)], flags, || {
                real::recv(fd, buffer, len, flags)
            })
        },
    }
}

/// `send(2)`.
#[inline]
pub unsafe fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    match state::connection(fd) {
        None => unsafe { real::send(fd, buffer, len, flags) },
        Some(c) => unsafe {
            transmit(&c, &[part(buffer, len)], flags, || {
                real::send(fd, buffer, len, flags)
            })
        },
    }
}

/// `recvfrom(2)`. A connected TCP socket reports no source address: the length becomes 0, as the kernel does it.
#[inline]
pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> isize {
    match state::connection(fd) {
        None => unsafe { real::recvfrom(fd, buffer, len, flags, address, address_len) },
        Some(c) => {
            let result = unsafe {
                receive(&c, &[part(buffer, len)], flags, || {
                    real::recvfrom(fd, buffer, len, flags, address, address_len)
                })
            };
            if result >= 0 && !address.is_null() && !address_len.is_null() {
                unsafe { *address_len = 0 };
            }
            result
        }
    }
}

/// `sendto(2)`. On a connected stream the address is ignored; with `MSG_FASTOPEN` it connects, which is the kernel's business.
#[inline]
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> isize {
    match state::connection(fd) {
        None => unsafe { real::sendto(fd, buffer, len, flags, address, address_len) },
        Some(c) => unsafe {
            transmit(&c, &[part(buffer, len)], flags, || {
                real::sendto(fd, buffer, len, flags, address, address_len)
            })
        },
    }
}

/// `readv(2)`.
#[inline]
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    match (state::connection(fd), unsafe {
        parts(iov, count.max(0) as usize)
    }) {
        (Some(c), Some(list)) if count >= 0 => unsafe {
            receive(&c, list, 0, || real::readv(fd, iov, count))
        },
        _ => unsafe { real::readv(fd, iov, count) },
    }
}

/// `writev(2)`.
#[inline]
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    match (state::connection(fd), unsafe {
        parts(iov, count.max(0) as usize)
    }) {
        (Some(c), Some(list)) if count >= 0 => unsafe {
            transmit(&c, list, 0, || real::writev(fd, iov, count))
        },
        _ => unsafe { real::writev(fd, iov, count) },
    }
}

/// `recvmsg(2)`.
#[inline]
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    let Some(c) = state::connection(fd).filter(|_| !message.is_null()) else {
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    let header = unsafe { &mut *message };
    let Some(list) = (unsafe { parts(header.msg_iov, header.msg_iovlen) }) else {
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    let attached = !c.local.region.load(Ordering::Relaxed).is_null();
    let result = unsafe { receive(&c, list, flags, || real::recvmsg(fd, message, flags)) };
    if attached && result >= 0 && flags & libc::MSG_ERRQUEUE == 0 {
        header.msg_namelen = 0;
        header.msg_controllen = 0;
        header.msg_flags = 0;
    }
    result
}

/// `sendmsg(2)`. Control messages other than none are the kernel's: the connection stays on, or returns to, the host path.
#[inline]
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    if !message.is_null() {
        unsafe { note_passed_descriptors(&*message) };
    }
    let Some(c) = state::connection(fd).filter(|_| !message.is_null()) else {
        return unsafe { real::sendmsg(fd, message, flags) };
    };
    let header = unsafe { &*message };
    match unsafe { parts(header.msg_iov, header.msg_iovlen) } {
        Some(list) => unsafe { transmit(&c, list, flags, || real::sendmsg(fd, message, flags)) },
        None => unsafe { real::sendmsg(fd, message, flags) },
    }
}

/// A tracked descriptor that is passed to another program leaves our hands: its connection goes to the host path.
unsafe fn note_passed_descriptors(header: &msghdr) {
    if header.msg_control.is_null() || header.msg_controllen == 0 {
        return;
    }
    // SAFETY: the caller of `sendmsg` promises a valid control buffer; the macros stay inside it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let count =
                    ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize) / 4;
                for n in 0..count {
                    let fd = libc::CMSG_DATA(at).cast::<i32>().add(n).read_unaligned();
                    if let Some(passed) = state::connection(fd) {
                        errno::keep(|| crate::send::quiesce(&passed, Reason::Passed));
                    }
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
}

/// `recvmmsg(2)`.
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if state::connection(fd).is_none() || messages.is_null() {
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    let limit = (!timeout.is_null()).then(|| unsafe { nanoseconds(&*timeout) });
    let start = sys::now_ns();
    let mut flags = flags;
    let mut done = 0;
    while done < count {
        let one = unsafe { &mut *messages.add(done as usize) };
        let result = unsafe { recvmsg(fd, &mut one.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if result < 0 {
            break;
        }
        one.msg_len = result as c_uint;
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if limit.is_some_and(|limit| sys::now_ns() - start >= limit) {
            break;
        }
    }
    if done == 0 { -1 } else { done as c_int }
}

/// `sendmmsg(2)`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if state::connection(fd).is_none() || messages.is_null() {
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    let mut done = 0;
    while done < count {
        let one = unsafe { &mut *messages.add(done as usize) };
        let result = unsafe { sendmsg(fd, &one.msg_hdr, flags) };
        if result < 0 {
            break;
        }
        one.msg_len = result as c_uint;
        done += 1;
    }
    if done == 0 && count > 0 {
        -1
    } else {
        done as c_int
    }
}

/// `connect(2)`.
pub unsafe fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let mut why = None;
    if offload::has_business() {
        match unsafe { opening::connect(fd, address, len) } {
            Opened::Done(result) => return result,
            Opened::Kernel(reason) => why = reason,
        }
    }
    let result = unsafe { real::connect(fd, address, len) };
    let error = if result == 0 { 0 } else { errno::get() };
    if matches!(error, 0 | libc::EINPROGRESS | libc::EINTR) {
        errno::keep(|| unsafe { note_connect(fd, address, len, error) });
        if let (Some(c), Some(reason)) = (state::connection(fd), why) {
            if reason == Reason::Policy {
                c.pin(reason);
            } else {
                c.entry.reason.store(reason as u32, Ordering::Relaxed);
            }
        }
    }
    result
}

/// `connect` on `fd` was answered with `error`, or 0.
unsafe fn note_connect(fd: c_int, address: *const sockaddr, len: socklen_t, error: i32) {
    if address.is_null()
        || (len as usize) < size_of::<libc::sa_family_t>()
        || state::kind(fd) != Kind::Foreign
    {
        return;
    }
    let family = unsafe { (*address).sa_family } as i32;
    if !state::is_started()
        || (family != libc::AF_INET && family != libc::AF_INET6)
        || state::borrowed_memory()
    {
        return;
    }
    // Only what makes a connection can still be at it: that saves asking.
    let is_under_way = error == libc::EINPROGRESS;
    let is_stream =
        || sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
    if is_under_way || is_stream() {
        state::track(fd, false);
    }
}

/// `accept(2)`.
pub unsafe fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let room = unsafe { room_in(address, len) };
    let result = unsafe { real::accept(fd, address, len) };
    unsafe { note_accept(result, address) };
    unsafe { name_accepted(result, address, room, len) };
    result
}

/// `accept4(2)`.
pub unsafe fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let room = unsafe { room_in(address, len) };
    let result = unsafe { real::accept4(fd, address, len, flags) };
    unsafe { note_accept(result, address) };
    unsafe { name_accepted(result, address, room, len) };
    result
}

unsafe fn note_accept(fd: c_int, address: *mut sockaddr) {
    if fd < 0 || !state::is_started() {
        return;
    }
    // Other families are found out, at no cost here, when pairing is considered.
    if !address.is_null() {
        let family = unsafe { (*address).sa_family } as i32;
        if family != libc::AF_INET && family != libc::AF_INET6 {
            return;
        }
    }
    if state::kind(fd) == Kind::Connection {
        // Closed behind our back, and the number given out again.
        state::closing(fd);
    }
    errno::keep(|| state::track(fd, true));
}

/// How much of an address a program wants, before the kernel overwrites it.
unsafe fn room_in(address: *const sockaddr, len: *const socklen_t) -> socklen_t {
    if address.is_null() || len.is_null() {
        return 0;
    }
    unsafe { len.read_unaligned() }
}

/// A connection that comes from the engine has another address than its carrier.
unsafe fn name_accepted(fd: c_int, address: *mut sockaddr, room: socklen_t, len: *mut socklen_t) {
    if !offload::is_wanted() || fd < 0 {
        return;
    }
    let Some(c) = state::connection(fd) else {
        return;
    };
    if errno::keep(|| offload::accepted(&c)) && !address.is_null() && !len.is_null() {
        if let Some(Ok(true_name)) = names::answer(&c, Side::Remote) {
            unsafe { names::write(true_name, address, room, len) };
        }
    }
}

/// `getsockname(2)`.
pub unsafe fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match unsafe { true_name(fd, Side::Local, address, len) } {
        Some(result) => result,
        None => {
            let room = unsafe { room_in(address, len) };
            let result = unsafe { real::getsockname(fd, address, len) };
            if result == 0 && offload::is_wanted() {
                if let Some(name) = errno::keep(|| offload::bound::true_name(fd)) {
                    unsafe { names::write(name, address, room, len) };
                }
            }
            result
        }
    }
}

/// `getpeername(2)`.
pub unsafe fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match unsafe { true_name(fd, Side::Remote, address, len) } {
        Some(result) => result,
        None => unsafe { real::getpeername(fd, address, len) },
    }
}

unsafe fn true_name(
    fd: c_int,
    side: Side,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> Option<c_int> {
    let c = state::connection(fd).filter(|_| !address.is_null() && !len.is_null())?;
    match names::answer(&c, side)? {
        Ok(name) => {
            unsafe { names::write(name, address, len.read_unaligned(), len) };
            Some(0)
        }
        Err(error) => {
            errno::set(error);
            Some(-1)
        }
    }
}

/// `bind(2)`.
pub unsafe fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if offload::is_wanted() && state::is_started() && !state::borrowed_memory() {
        errno::keep(state::prepare);
        let stand_in = errno::keep(|| unsafe { offload::bound::stand_in(fd, address, len) });
        if let Some((storage, len)) = stand_in {
            return unsafe { real::bind(fd, (&raw const storage).cast(), len) };
        }
    }
    unsafe { real::bind(fd, address, len) }
}

/// `listen(2)`.
pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    let result = unsafe { real::listen(fd, backlog) };
    if result == 0 {
        errno::keep(state::prepare);
        if offload::is_wanted() && state::is_started() && !state::borrowed_memory() {
            errno::keep(|| offload::listening(fd, backlog));
        }
    }
    result
}

/// `shutdown(2)`.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(c) = state::connection(fd) {
        if (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            errno::keep(|| shutting(&c, how));
        }
    }
    let result = unsafe { real::shutdown(fd, how) };
    if let Some(c) = state::connection(fd) {
        epoll::nudge(&c);
    }
    result
}

/// `close(2)`.
#[inline]
pub unsafe fn close(fd: c_int) -> c_int {
    match state::kind(fd) {
        Kind::Foreign => {
            if offload::is_wanted() && state::is_listener(fd) && !state::borrowed_memory() {
                return unsafe { close_listener(fd) };
            }
        }
        Kind::Own => {
            // Programs that close every number they can think of do not mean ours.
            if !state::borrowed_memory() {
                errno::set(libc::EBADF);
                return -1;
            }
        }
        Kind::Connection | Kind::Epoll => {
            if !state::borrowed_memory() {
                errno::keep(|| state::closing(fd));
            }
        }
    }
    unsafe { real::close(fd) }
}

#[cold]
unsafe fn close_listener(fd: c_int) -> c_int {
    state::forget(fd);
    let result = unsafe { real::close(fd) };
    errno::keep(offload::stopped_listening);
    result
}

/// `close_range(2)`: everything but what is ours.
pub unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if flags & CLOSE_RANGE_CLOEXEC != 0
        || first > last
        || !state::is_started()
        || state::borrowed_memory()
    {
        return unsafe { real::close_range(first, last, flags) };
    }
    let mut from = first;
    let mut result = 0;
    state::for_each(first, last, |fd, kind| match kind {
        Kind::Own => {
            if fd as c_uint > from {
                result |= unsafe { real::close_range(from, fd as c_uint - 1, flags) };
            }
            from = fd as c_uint + 1;
        }
        _ => errno::keep(|| state::closing(fd)),
    });
    if from <= last {
        result |= unsafe { real::close_range(from, last, flags) };
    }
    result
}

/// `closefrom(3)`.
pub unsafe fn closefrom(first: c_int) {
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// `dup(2)`.
pub unsafe fn dup(fd: c_int) -> c_int {
    let result = unsafe { real::dup(fd) };
    note_duplicate(fd, result);
    result
}

/// `dup2(2)`.
pub unsafe fn dup2(from: c_int, to: c_int) -> c_int {
    before_replacing(from, to);
    let result = unsafe { real::dup2(from, to) };
    if from != to {
        note_duplicate(from, result);
    }
    result
}

/// `dup3(2)`.
pub unsafe fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    before_replacing(from, to);
    let result = unsafe { real::dup3(from, to, flags) };
    note_duplicate(from, result);
    result
}

fn note_duplicate(from: c_int, to: c_int) {
    if to >= 0
        && state::is_started()
        && (state::kind(from) != Kind::Foreign || state::kind(to) != Kind::Foreign)
        && !state::borrowed_memory()
    {
        errno::keep(|| state::duplicate(from, to));
    }
}

/// A tracked connection is about to become somebody else's descriptor, by a child that shares our memory or by a list of file actions.
pub fn passing_on(fd: c_int) {
    if let Some(c) = state::connection(fd) {
        errno::keep(|| crate::send::quiesce(&c, Reason::Passed));
    }
}

fn before_replacing(from: c_int, to: c_int) {
    if to < 3 && state::kind(from) == Kind::Connection && state::borrowed_memory() {
        passing_on(from);
    }
    if from == to || state::kind(to) == Kind::Foreign || state::borrowed_memory() {
        return;
    }
    if sys::fcntl(from, libc::F_GETFD, 0) < 0 {
        return;
    }
    errno::keep(|| {
        state::make_way(to);
        state::closing(to);
    });
}

/// `fcntl(2)`.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result >= 0 {
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => note_duplicate(fd, result),
            libc::F_SETFD if argument as c_int & libc::FD_CLOEXEC == 0 => {
                if let Some(c) = state::connection(fd) {
                    c.entry.flags.fetch_or(FLAG_INHERITED, Ordering::Relaxed);
                }
            }
            libc::F_SETFL => {
                if let Some(c) = state::connection(fd) {
                    set_nonblocking(&c, argument as c_int & libc::O_NONBLOCK != 0);
                }
            }
            _ => {}
        }
    }
    result
}

fn set_nonblocking(connection: &Connection, on: bool) {
    if on {
        connection
            .entry
            .flags
            .fetch_or(FLAG_NONBLOCK, Ordering::Relaxed);
    } else {
        connection
            .entry
            .flags
            .fetch_and(!FLAG_NONBLOCK, Ordering::Relaxed);
    }
}

/// `ioctl(2)`: `FIONBIO` is noted, the lengths of queues are answered from ring and carrier together.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let Some(c) = state::connection(fd) else {
        return unsafe { real::ioctl(fd, request, argument) };
    };
    if argument != 0 {
        if let Some(count) = options::queue_length(&c, request) {
            unsafe { *(argument as *mut c_int) = count };
            return 0;
        }
    }
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result == 0 && request == libc::FIONBIO as c_ulong && argument != 0 {
        set_nonblocking(&c, unsafe { *(argument as *const c_int) } != 0);
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
    if let Some(c) = state::connection(fd) {
        if !value.is_null() && !len.is_null() && unsafe { *len } >= 4 {
            if let Some(answer) = options::get(&c, level, name) {
                unsafe {
                    value.cast::<c_int>().write_unaligned(answer);
                    *len = 4;
                }
                return 0;
            }
        }
    }
    unsafe { real::getsockopt(fd, level, name, value, len) }
}

/// `setsockopt(2)`.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(c) = state::connection(fd) {
        let number = if !value.is_null() && len >= 4 {
            Some(unsafe { value.cast::<c_int>().read_unaligned() })
        } else {
            None
        };
        if options::set(&c, level, name, number) {
            return 0;
        }
    }
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

fn nanoseconds(time: &timespec) -> u64 {
    time.tv_sec.max(0) as u64 * 1_000_000_000 + time.tv_nsec.max(0) as u64
}

/// A time-out in milliseconds as the C functions give it: negative is none.
fn limit_of_ms(timeout_ms: c_int) -> Option<u64> {
    (timeout_ms >= 0).then(|| timeout_ms as u64 * 1_000_000)
}

fn kernel_poll(mask: *const sigset_t) -> impl FnMut(&mut [pollfd], Option<u64>) -> i32 {
    move |fds, limit| {
        let time = limit.map(sys::timespec);
        let time = time
            .as_ref()
            .map_or(core::ptr::null(), |time| time as *const timespec);
        // SAFETY: the slice is valid; the mask is the program's own.
        unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, mask) }
    }
}

unsafe fn pollfds<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() {
        return &mut [];
    }
    // SAFETY: the caller of the C function promises `count` elements.
    unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }
}

/// `poll(2)`.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let list = unsafe { pollfds(fds, count) };
    if !state::is_started() || !poll::concerns(list) {
        return unsafe { real::poll(fds, count, timeout_ms) };
    }
    poll::poll(
        list,
        limit_of_ms(timeout_ms),
        kernel_poll(core::ptr::null()),
    )
}

/// `ppoll(2)`.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let list = unsafe { pollfds(fds, count) };
    if !state::is_started() || !poll::concerns(list) {
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    }
    let limit = (!timeout.is_null()).then(|| nanoseconds(unsafe { &*timeout }));
    poll::poll(list, limit, kernel_poll(mask))
}

unsafe fn select_concerns(count: c_int, sets: &[&poll::Set; 3]) -> bool {
    state::is_started()
        && (0..count).any(|fd| sets.iter().any(|set| set.has(fd)) && poll::concerned(fd))
}

/// `select(2)`; like Linux it leaves the time not slept in `timeout`.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = unsafe {
        [
            poll::Set::new(read),
            poll::Set::new(write),
            poll::Set::new(except),
        ]
    };
    if !unsafe { select_concerns(count, &[&sets[0], &sets[1], &sets[2]]) } {
        return unsafe { real::select(count, read, write, except, timeout) };
    }
    let limit = (!timeout.is_null()).then(|| {
        let time = unsafe { &*timeout };
        time.tv_sec.max(0) as u64 * 1_000_000_000 + time.tv_usec.max(0) as u64 * 1_000
    });
    let start = sys::now_ns();
    let result = poll::select(
        count,
        &sets[0],
        &sets[1],
        &sets[2],
        limit,
        kernel_poll(core::ptr::null()),
    );
    if let Some(limit) = limit {
        let left = limit.saturating_sub(sys::now_ns() - start) / 1_000;
        unsafe {
            (*timeout).tv_sec = (left / 1_000_000) as libc::time_t;
            (*timeout).tv_usec = (left % 1_000_000) as libc::suseconds_t;
        }
    }
    result
}

/// `pselect(2)`.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = unsafe {
        [
            poll::Set::new(read),
            poll::Set::new(write),
            poll::Set::new(except),
        ]
    };
    if !unsafe { select_concerns(count, &[&sets[0], &sets[1], &sets[2]]) } {
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    }
    let limit = (!timeout.is_null()).then(|| nanoseconds(unsafe { &*timeout }));
    poll::select(
        count,
        &sets[0],
        &sets[1],
        &sets[2],
        limit,
        kernel_poll(mask),
    )
}

/// `epoll_create(2)`.
pub unsafe fn epoll_create(size: c_int) -> c_int {
    let fd = unsafe { real::epoll_create(size) };
    note_epoll(fd);
    fd
}

/// `epoll_create1(2)`.
pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    let fd = unsafe { real::epoll_create1(flags) };
    note_epoll(fd);
    fd
}

fn note_epoll(fd: c_int) {
    if fd >= 0 && state::is_started() && !state::borrowed_memory() {
        epoll::created(fd);
    }
}

/// `epoll_ctl(2)`.
#[inline]
pub unsafe fn epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if let Some(number) = state::epoll_number(epfd) {
        let given = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        if let Some(answer) = errno::keep(|| epoll::control(number, epfd, operation, fd, given)) {
            return errno::result(answer.map(|()| 0)) as c_int;
        }
    }
    unsafe { real::epoll_ctl(epfd, operation, fd, event) }
}

unsafe fn wait_on(
    number: u32,
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    limit: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller of the C function promises `count` writable elements.
    let list = unsafe { core::slice::from_raw_parts_mut(events, count as usize) };
    epoll::wait(number, list, limit, |buffer, limit| {
        let len = buffer.len() as c_int;
        // Rounded up, so that we never come back early and spin on what is left of a millisecond.
        let ms = limit.map_or(-1, |ns| {
            ns.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int
        });
        // SAFETY: the buffer is valid; the mask is the program's own.
        unsafe {
            if mask.is_null() {
                real::epoll_wait(epfd, buffer.as_mut_ptr(), len, ms)
            } else {
                real::epoll_pwait(epfd, buffer.as_mut_ptr(), len, ms, mask)
            }
        }
    })
}

/// What the kernel's own wait returned, less what another thread has made ours while it slept; `None`: nothing is left, wait again.
unsafe fn after_kernel_wait(
    known: Option<u32>,
    events: *mut epoll_event,
    count: c_int,
    result: c_int,
) -> Option<c_int> {
    match known {
        Some(number) if result > 0 => {
            let list = unsafe { core::slice::from_raw_parts_mut(events, count as usize) };
            epoll::after_kernel_wait(number, list, result as usize)
        }
        _ => Some(result),
    }
}

/// `epoll_wait(2)`.
#[inline]
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    match state::epoll_number(epfd) {
        Some(number) if epoll::is_virtual(number) && count > 0 && !events.is_null() => unsafe {
            wait_on(
                number,
                epfd,
                events,
                count,
                limit_of_ms(timeout_ms),
                core::ptr::null(),
            )
        },
        known => {
            let result = unsafe { real::epoll_wait(epfd, events, count, timeout_ms) };
            match unsafe { after_kernel_wait(known, events, count, result) } {
                Some(result) => result,
                None => unsafe { epoll_wait(epfd, events, count, timeout_ms) },
            }
        }
    }
}

/// `epoll_pwait(2)`.
#[inline]
pub unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    match state::epoll_number(epfd) {
        Some(number) if epoll::is_virtual(number) && count > 0 && !events.is_null() => unsafe {
            wait_on(number, epfd, events, count, limit_of_ms(timeout_ms), mask)
        },
        known => {
            let result = unsafe { real::epoll_pwait(epfd, events, count, timeout_ms, mask) };
            match unsafe { after_kernel_wait(known, events, count, result) } {
                Some(result) => result,
                None => unsafe { epoll_pwait(epfd, events, count, timeout_ms, mask) },
            }
        }
    }
}

/// `epoll_pwait2(2)`.
pub unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    match state::epoll_number(epfd) {
        Some(number) if epoll::is_virtual(number) && count > 0 && !events.is_null() => {
            let limit = (!timeout.is_null()).then(|| nanoseconds(unsafe { &*timeout }));
            unsafe { wait_on(number, epfd, events, count, limit, mask) }
        }
        known => {
            let result = unsafe { real::epoll_pwait2(epfd, events, count, timeout, mask) };
            match unsafe { after_kernel_wait(known, events, count, result) } {
                Some(result) => result,
                None => unsafe { epoll_pwait2(epfd, events, count, timeout, mask) },
            }
        }
    }
}

/// `sendfile(2)`.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: usize) -> isize {
    match state::connection(out) {
        None => unsafe { real::sendfile(out, input, offset, count) },
        Some(c) => unsafe {
            transfer::sendfile(&c, input, offset, count, || {
                real::sendfile(out, input, offset, count)
            })
        },
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
    let kernel = || unsafe { real::splice(input, input_offset, out, out_offset, len, flags) };
    let attached = |c: &Connection| !c.local.region.load(Ordering::Relaxed).is_null();
    if let Some(c) = state::connection(out) {
        if attached(&c) {
            return transfer::splice_in(&c, input, len, flags);
        }
        // Counted like any other send on the host path.
        return match crate::send::begin_host_send(&c) {
            Some(()) => {
                let result = kernel();
                crate::send::finish_host_send(&c, result);
                result
            }
            None => transfer::splice_in(&c, input, len, flags),
        };
    }
    if let Some(c) = state::connection(input) {
        if attached(&c) {
            return transfer::splice_out(&c, out, len, flags);
        }
        let whole = part(core::ptr::null(), 0);
        // SAFETY: the part is empty; the host path only calls `kernel`.
        let result = unsafe { receive(&c, &[whole], 0, kernel) };
        return if result == 0 && attached(&c) {
            transfer::splice_out(&c, out, len, flags)
        } else {
            result
        };
    }
    kernel()
}

/// A descriptor is about to be used by stdio, whose own reads and writes do not pass through us: true when the stream must be served
/// by our calls (the connection has a channel already), false when the kernel's will do and the connection stays on the host path.
pub fn stdio_needs_us(fd: c_int) -> bool {
    let Some(c) = state::connection(fd) else {
        return false;
    };
    if !c.local.region.load(Ordering::Relaxed).is_null() {
        return true;
    }
    c.pin(Reason::Stdio);
    false
}

/// True when `fd` is tracked: calls that libc makes on its behalf inside itself must be made through us.
pub fn is_tracked(fd: c_int) -> bool {
    state::kind(fd) == Kind::Connection
}

/// Lets the adapter's wishes reach a connection the program is not using; exported for tests.
pub fn service(fd: c_int) {
    if let Some(c) = state::connection(fd) {
        if c.local.region.load(Ordering::Relaxed).is_null() {
            pairing::consider(&c);
        } else {
            crate::send::service(&c);
        }
    }
}
