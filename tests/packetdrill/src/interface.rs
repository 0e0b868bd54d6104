//! The C side: `struct packetdrill_interface`, filled with the functions below.
//!
//! Each function unpacks its arguments, makes the call on [`Shared`] and sets errno. packetdrill
//! passes buffers that it owns during the call. If a script passes a null pointer on purpose, the
//! result is `EFAULT`. The triaged list names the scripts that pass worse pointers.

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_ulong, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use toehold_tcp::Duration;

use crate::calls::Done;
use crate::descriptors::FIRST;
use crate::shared::{Shared, fail};
use crate::socket::{Answer, Call};

type UserData = *mut c_void;

/// The table of functions that packetdrill calls, in its order.
#[repr(C)]
#[derive(Debug)]
pub struct Interface {
    userdata: UserData,
    free: extern "C" fn(UserData),
    socket: extern "C" fn(UserData, c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(UserData, c_int, *const libc::sockaddr, libc::socklen_t) -> c_int,
    listen: extern "C" fn(UserData, c_int, c_int) -> c_int,
    accept:
        unsafe extern "C" fn(UserData, c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int,
    connect: unsafe extern "C" fn(UserData, c_int, *const libc::sockaddr, libc::socklen_t) -> c_int,
    read: unsafe extern "C" fn(UserData, c_int, *mut c_void, usize) -> isize,
    readv: unsafe extern "C" fn(UserData, c_int, *const libc::iovec, c_int) -> isize,
    recv: unsafe extern "C" fn(UserData, c_int, *mut c_void, usize, c_int) -> isize,
    recvfrom: unsafe extern "C" fn(
        UserData,
        c_int,
        *mut c_void,
        usize,
        c_int,
        *mut libc::sockaddr,
        *mut libc::socklen_t,
    ) -> isize,
    recvmsg: unsafe extern "C" fn(UserData, c_int, *mut libc::msghdr, c_int) -> isize,
    write: unsafe extern "C" fn(UserData, c_int, *const c_void, usize) -> isize,
    writev: unsafe extern "C" fn(UserData, c_int, *const libc::iovec, c_int) -> isize,
    send: unsafe extern "C" fn(UserData, c_int, *const c_void, usize, c_int) -> isize,
    sendto: unsafe extern "C" fn(
        UserData,
        c_int,
        *const c_void,
        usize,
        c_int,
        *const libc::sockaddr,
        libc::socklen_t,
    ) -> isize,
    sendmsg: unsafe extern "C" fn(UserData, c_int, *const libc::msghdr, c_int) -> isize,
    // packetdrill declares these with `...`. On the ABIs of Linux a variadic call passes a first
    // integer or pointer argument like any other call.
    fcntl: extern "C" fn(UserData, c_int, c_int, c_long) -> c_int,
    ioctl: unsafe extern "C" fn(UserData, c_int, c_ulong, *mut c_int) -> c_int,
    close: extern "C" fn(UserData, c_int) -> c_int,
    shutdown: extern "C" fn(UserData, c_int, c_int) -> c_int,
    getsockopt: unsafe extern "C" fn(
        UserData,
        c_int,
        c_int,
        c_int,
        *mut c_void,
        *mut libc::socklen_t,
    ) -> c_int,
    setsockopt: unsafe extern "C" fn(
        UserData,
        c_int,
        c_int,
        c_int,
        *const c_void,
        libc::socklen_t,
    ) -> c_int,
    poll: unsafe extern "C" fn(UserData, *mut libc::pollfd, libc::nfds_t, c_int) -> c_int,
    netdev_send: unsafe extern "C" fn(UserData, *const c_void, usize) -> c_int,
    netdev_receive:
        unsafe extern "C" fn(UserData, *mut c_void, *mut usize, *mut c_longlong) -> c_int,
    usleep: extern "C" fn(UserData, libc::useconds_t) -> c_int,
    gettimeofday: unsafe extern "C" fn(UserData, *mut libc::timeval, *mut c_void) -> c_int,
    epoll_create: extern "C" fn(UserData, c_int) -> c_int,
    epoll_ctl: unsafe extern "C" fn(UserData, c_int, c_int, c_int, *mut libc::epoll_event) -> c_int,
    epoll_wait:
        unsafe extern "C" fn(UserData, c_int, *mut libc::epoll_event, c_int, c_int) -> c_int,
    pipe: extern "C" fn(UserData, *mut c_int) -> c_int,
    splice: extern "C" fn(UserData, c_int, *mut i64, c_int, *mut i64, usize, u32) -> c_int,
}

/// Fills the table.
///
/// # Safety
/// `flags` is null or a C string; `interface` points to room for the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    let flags = if flags.is_null() {
        c""
    } else {
        // SAFETY: not null, so a C string, as this function requires of its caller.
        unsafe { CStr::from_ptr(flags) }
    };
    Shared::init(&flags.to_string_lossy());
    let table = Interface {
        userdata: std::ptr::null_mut(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close: close_ours,
        shutdown,
        getsockopt: getsockopt_of_ours,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: room for the table, as this function requires of its caller.
    unsafe { interface.write(table) };
}

fn shared() -> &'static Shared {
    Shared::get().expect("packetdrill calls the table after it was filled")
}

fn number(done: Done) -> c_int {
    done.unwrap_or_else(fail)
}

extern "C" fn free(_: UserData) {}

extern "C" fn socket(_: UserData, family: c_int, kind: c_int, _: c_int) -> c_int {
    number(shared().with(|stack| stack.socket(family, kind)))
}

unsafe extern "C" fn bind(
    _: UserData,
    fd: c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes an address of this length.
    let address = unsafe { read_address(address, length) };
    number(match address {
        Some(address) => shared().with(|stack| stack.bind(fd, address)),
        None => Err(libc::EINVAL),
    })
}

extern "C" fn listen(_: UserData, fd: c_int, backlog: c_int) -> c_int {
    number(shared().with(|stack| stack.listen(fd, backlog)))
}

unsafe extern "C" fn accept(
    _: UserData,
    fd: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    let accepted = match shared().call(Call::Accept { fd }, may_sleep(fd, 0)) {
        Ok(Answer::Accepted(accepted)) => accepted,
        Ok(_) => return fail(libc::EINVAL),
        Err(errno) => return fail(errno),
    };
    let remote = shared().with(|stack| stack.remote_of(accepted));
    if let Some(remote) = remote
        && !address.is_null()
    {
        // SAFETY: packetdrill passes a `sockaddr_storage` and its length.
        unsafe { write_address(remote, address, length) };
    }
    accepted
}

unsafe extern "C" fn connect(
    _: UserData,
    fd: c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes an address of this length.
    let remote = unsafe { read_address(address, length) };
    let begun = shared().with(|stack| stack.connect(fd, remote));
    if begun != Err(libc::EINPROGRESS) || !may_sleep(fd, 0) {
        return number(begun);
    }
    match shared().call(Call::Connect { fd }, true) {
        Ok(_) => 0,
        Err(errno) => fail(errno),
    }
}

/// Whether a call on this socket blocks when it cannot complete.
fn may_sleep(fd: c_int, flags: c_int) -> bool {
    let is_nonblocking = shared().with(|stack| {
        let socket = stack.descriptors.socket(fd);
        socket.is_ok_and(|socket| socket.is_nonblocking)
    });
    !is_nonblocking && flags & libc::MSG_DONTWAIT == 0
}

unsafe extern "C" fn read(_: UserData, fd: c_int, buffer: *mut c_void, bytes: usize) -> isize {
    let part = libc::iovec {
        iov_base: buffer,
        iov_len: bytes,
    };
    // SAFETY: one part, the caller's buffer.
    unsafe { receive(fd, &part, 1, 0) }
}

unsafe extern "C" fn readv(
    _: UserData,
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> isize {
    // SAFETY: the caller's array of buffers.
    unsafe { receive(fd, parts, count.max(0) as usize, 0) }
}

unsafe extern "C" fn recv(
    _: UserData,
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    let part = libc::iovec {
        iov_base: buffer,
        iov_len: bytes,
    };
    // SAFETY: one part, the caller's buffer.
    unsafe { receive(fd, &part, 1, flags) }
}

unsafe extern "C" fn recvfrom(
    userdata: UserData,
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    flags: c_int,
    _: *mut libc::sockaddr,
    _: *mut libc::socklen_t,
) -> isize {
    // SAFETY: an equal contract; a stream socket reports no address.
    unsafe { recv(userdata, fd, buffer, bytes, flags) }
}

unsafe extern "C" fn recvmsg(
    _: UserData,
    fd: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return fail(libc::EAGAIN) as isize; // There is no error queue.
    }
    // SAFETY: the caller's message header.
    let message = unsafe { &mut *message };
    message.msg_controllen = 0;
    message.msg_flags = 0;
    // SAFETY: the caller's array of buffers.
    unsafe { receive(fd, message.msg_iov, message.msg_iovlen, flags) }
}

/// Receives into buffers.
///
/// # Safety
/// `parts` points to `count` buffers, each writable.
unsafe fn receive(fd: c_int, parts: *const libc::iovec, count: usize, flags: c_int) -> isize {
    let parts = if count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise; zero parts form no slice here.
        unsafe { std::slice::from_raw_parts(parts, count) }
    };
    let bytes: usize = parts.iter().map(|part| part.iov_len).sum();
    let is_nowhere = |part: &libc::iovec| part.iov_base.is_null() && part.iov_len > 0;
    let is_bad = flags & libc::MSG_TRUNC == 0 && parts.iter().any(is_nowhere);
    // Bytes that cannot be delivered stay in the stream, so such a call only peeks.
    let looks = if is_bad { libc::MSG_PEEK } else { 0 };
    let call = Call::Read {
        fd,
        bytes,
        flags: flags | looks,
    };
    let received = match shared().call(call, may_sleep(fd, flags)) {
        Ok(Answer::Bytes(received)) if is_bad && !received.is_empty() => {
            return fail(libc::EFAULT) as isize;
        }
        Ok(Answer::Bytes(received)) => received,
        Ok(_) => return fail(libc::EINVAL) as isize,
        Err(errno) => return fail(errno) as isize,
    };
    let mut rest = &received[..];
    for part in parts {
        let (now, later) = rest.split_at(rest.len().min(part.iov_len));
        if flags & libc::MSG_TRUNC == 0 && !part.iov_base.is_null() {
            // SAFETY: `now` is no longer than the part, which is writable.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast(), now.len()) };
        }
        rest = later;
    }
    received.len() as isize
}

unsafe extern "C" fn write(_: UserData, fd: c_int, buffer: *const c_void, bytes: usize) -> isize {
    let part = libc::iovec {
        iov_base: buffer.cast_mut(),
        iov_len: bytes,
    };
    // SAFETY: one part, the caller's buffer.
    unsafe { transmit(fd, &part, 1, 0) }
}

unsafe extern "C" fn writev(
    _: UserData,
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> isize {
    // SAFETY: the caller's array of buffers.
    unsafe { transmit(fd, parts, count.max(0) as usize, 0) }
}

unsafe extern "C" fn send(
    _: UserData,
    fd: c_int,
    buffer: *const c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    let part = libc::iovec {
        iov_base: buffer.cast_mut(),
        iov_len: bytes,
    };
    // SAFETY: one part, the caller's buffer.
    unsafe { transmit(fd, &part, 1, flags) }
}

unsafe extern "C" fn sendto(
    userdata: UserData,
    fd: c_int,
    buffer: *const c_void,
    bytes: usize,
    flags: c_int,
    _: *const libc::sockaddr,
    _: libc::socklen_t,
) -> isize {
    // SAFETY: an equal contract; a stream socket ignores the address, except for Fast Open.
    unsafe { send(userdata, fd, buffer, bytes, flags) }
}

unsafe extern "C" fn sendmsg(
    _: UserData,
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's message header and array of buffers.
    unsafe { transmit(fd, (*message).msg_iov, (*message).msg_iovlen, flags) }
}

/// Sends from buffers.
///
/// # Safety
/// `parts` points to `count` buffers, each readable.
unsafe fn transmit(fd: c_int, parts: *const libc::iovec, count: usize, flags: c_int) -> isize {
    if flags & libc::MSG_FASTOPEN != 0 {
        return fail(libc::EOPNOTSUPP) as isize;
    }
    let parts = if count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise; zero parts form no slice here.
        unsafe { std::slice::from_raw_parts(parts, count) }
    };
    let mut bytes = Vec::new();
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        if part.iov_base.is_null() {
            return fail(libc::EFAULT) as isize;
        }
        // SAFETY: the caller's buffer, not null, readable for its length.
        let part = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        bytes.extend_from_slice(part);
    }
    let call = Call::Write {
        fd,
        bytes,
        written: 0,
        flags,
    };
    match shared().call(call, may_sleep(fd, flags)) {
        Ok(Answer::Number(written)) => written as isize,
        Ok(_) => fail(libc::EINVAL) as isize,
        Err(errno) => fail(errno) as isize,
    }
}

extern "C" fn fcntl(_: UserData, fd: c_int, command: c_int, argument: c_long) -> c_int {
    number(shared().with(|stack| stack.fcntl(fd, command, argument as c_int)))
}

unsafe extern "C" fn ioctl(_: UserData, fd: c_int, request: c_ulong, out: *mut c_int) -> c_int {
    match shared().with(|stack| stack.ioctl(fd, request)) {
        Ok(bytes) => {
            // SAFETY: all supported requests fill an int of the caller's.
            unsafe { out.write(bytes) };
            0
        }
        Err(errno) => fail(errno),
    }
}

extern "C" fn close_ours(_: UserData, fd: c_int) -> c_int {
    number(shared().with(|stack| stack.close(fd)))
}

extern "C" fn shutdown(_: UserData, fd: c_int, how: c_int) -> c_int {
    number(shared().with(|stack| stack.shutdown(fd, how)))
}

unsafe extern "C" fn getsockopt_of_ours(
    _: UserData,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut libc::socklen_t,
) -> c_int {
    match shared().with(|stack| stack.getsockopt(fd, level, name)) {
        Ok(bytes) => {
            // SAFETY: `length` is the caller's, and holds the size of `value`.
            unsafe {
                let room = (*length as usize).min(bytes.len());
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), room);
                *length = room as libc::socklen_t;
            }
            0
        }
        Err(errno) => fail(errno),
    }
}

/// Answers for our descriptors when packetdrill calls the C library directly. Passes all other
/// descriptors on.
///
/// # Safety
/// The requirements of getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut libc::socklen_t,
) -> c_int {
    if fd >= FIRST && Shared::get().is_some() {
        // SAFETY: an equal contract.
        return unsafe { getsockopt_of_ours(std::ptr::null_mut(), fd, level, name, value, length) };
    }
    // SAFETY: an equal contract; this is the system call that the C library would make.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, length) as c_int }
}

/// Closes our descriptors, because packetdrill itself closes those that a script left open. Passes
/// all other descriptors on.
#[unsafe(no_mangle)]
pub extern "C" fn close(fd: c_int) -> c_int {
    if fd >= FIRST && Shared::get().is_some() {
        return close_ours(std::ptr::null_mut(), fd);
    }
    // SAFETY: this is the system call that the C library would make.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

unsafe extern "C" fn setsockopt(
    _: UserData,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    if (length as usize) < size_of::<c_int>() || value.is_null() {
        return fail(libc::EINVAL);
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER)
        && length as usize >= size_of::<libc::linger>()
    {
        // SAFETY: the caller's value is a `linger`, and long enough.
        let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
        let resets = linger.l_onoff != 0 && linger.l_linger == 0;
        return number(shared().with(|stack| {
            stack.descriptors.socket_mut(fd)?.wishes.close_resets = resets;
            Ok(0)
        }));
    }
    // SAFETY: at least an int long, as checked.
    let value = unsafe { value.cast::<c_int>().read_unaligned() };
    number(shared().with(|stack| stack.setsockopt(fd, level, name, value)))
}

unsafe extern "C" fn poll(
    _: UserData,
    watched: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's array.
    let watched = unsafe { std::slice::from_raw_parts_mut(watched, count as usize) };
    let call = Call::Poll {
        watched: watched
            .iter()
            .map(|one| (one.fd, u32::from(one.events as u16)))
            .collect(),
        deadline: shared().with(|stack| stack.deadline(timeout_ms)),
    };
    match shared().call(call, true) {
        Ok(Answer::Ready(ready)) => {
            for (one, bits) in watched.iter_mut().zip(&ready) {
                one.revents = *bits as i16;
            }
            ready.iter().filter(|&&bits| bits != 0).count() as c_int
        }
        Ok(_) => fail(libc::EINVAL),
        Err(errno) => fail(errno),
    }
}

unsafe extern "C" fn netdev_send(_: UserData, packet: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's packet.
    let packet = unsafe { std::slice::from_raw_parts(packet.cast::<u8>(), bytes) };
    shared().with(|stack| stack.deliver(packet));
    0
}

unsafe extern "C" fn netdev_receive(
    _: UserData,
    buffer: *mut c_void,
    bytes: *mut usize,
    time_usecs: *mut c_longlong,
) -> c_int {
    let next = shared().with(crate::stack::Stack::next_packet);
    // SAFETY: the caller's buffer, its length and its time.
    unsafe {
        let Some((at, packet)) = next else {
            *bytes = 0;
            *time_usecs = 0;
            return 0;
        };
        let room = (*bytes).min(packet.len());
        std::ptr::copy_nonoverlapping(packet.as_ptr(), buffer.cast(), room);
        *bytes = room;
        *time_usecs = at.as_micros() as c_longlong;
    }
    0
}

extern "C" fn usleep(_: UserData, micros: libc::useconds_t) -> c_int {
    shared().usleep(Duration::from_micros(micros.into()));
    0
}

unsafe extern "C" fn gettimeofday(_: UserData, out: *mut libc::timeval, _: *mut c_void) -> c_int {
    let now = shared().look_at_clock().as_micros();
    let time = libc::timeval {
        tv_sec: (now / 1_000_000) as libc::time_t,
        tv_usec: (now % 1_000_000) as libc::suseconds_t,
    };
    // SAFETY: the caller's time.
    unsafe { out.write(time) };
    0
}

extern "C" fn epoll_create(_: UserData, _: c_int) -> c_int {
    number(shared().with(crate::stack::Stack::epoll_create))
}

unsafe extern "C" fn epoll_ctl(
    _: UserData,
    instance: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: null, or the caller's event.
    let wanted = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    number(shared().with(|stack| stack.epoll_ctl(instance, operation, fd, wanted)))
}

unsafe extern "C" fn epoll_wait(
    _: UserData,
    fd: c_int,
    events: *mut libc::epoll_event,
    events_max: c_int,
    timeout_ms: c_int,
) -> c_int {
    let call = Call::EpollWait {
        fd,
        events_max: events_max.max(0) as usize,
        deadline: shared().with(|stack| stack.deadline(timeout_ms)),
    };
    match shared().call(call, true) {
        Ok(Answer::Events(ready)) => {
            for (at, &(bits, data)) in ready.iter().enumerate() {
                let event = libc::epoll_event {
                    events: bits,
                    u64: data,
                };
                // SAFETY: no more events than the caller's array has room for.
                unsafe { events.add(at).write(event) };
            }
            ready.len() as c_int
        }
        Ok(_) => fail(libc::EINVAL),
        Err(errno) => fail(errno),
    }
}

extern "C" fn pipe(_: UserData, _: *mut c_int) -> c_int {
    fail(libc::ENOSYS)
}

extern "C" fn splice(
    _: UserData,
    _: c_int,
    _: *mut i64,
    _: c_int,
    _: *mut i64,
    _: usize,
    _: u32,
) -> c_int {
    fail(libc::ENOSYS)
}

/// The address behind a pointer; `None` for `AF_UNSPEC` and for an address that is too short.
///
/// # Safety
/// `address` points to `length` readable bytes.
unsafe fn read_address(
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> Option<SocketAddr> {
    let length = length as usize;
    if address.is_null() || length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: long enough for the family.
    match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: long enough, and `read_unaligned` accepts any alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: long enough, and `read_unaligned` accepts any alignment.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// Writes an address to the caller's buffer.
///
/// # Safety
/// `out` has room for a `sockaddr_in6`, `length` is writable.
unsafe fn write_address(
    address: SocketAddr,
    out: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) {
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: room, as this function requires of its caller.
            unsafe {
                out.cast::<libc::sockaddr_in>().write_unaligned(raw);
                *length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: 0,
            };
            // SAFETY: room, as this function requires of its caller.
            unsafe {
                out.cast::<libc::sockaddr_in6>().write_unaligned(raw);
                *length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
    }
}
