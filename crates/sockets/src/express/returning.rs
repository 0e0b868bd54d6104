//! A connection that was not accepted goes back to the kernel.
//!
//! The peer process has closed its listener, has replaced its program, or is dead. The kernel's
//! queue belongs to all processes that share a listener, so the kernel would have given the
//! connection to another of them. All bytes that our program has sent are still in the ring,
//! because no program has read them. So the library connects again through the kernel, sends the
//! bytes again, and puts the new socket in the place of the carrier. If no program listens any
//! more, our program sees a reset, as without the library.

use core::sync::atomic::Ordering;

use libc::epoll_event;
use toehold_channel::table::{FLAG_NONBLOCK, FLAG_SHUT_TX};

use super::{LOCK, reconnecting};
use crate::connection::{self, Connection};
use crate::connection::{closing, release, settings, tracking};
use crate::epoll::{control, instance, orphans, parked};
use crate::process::descriptors;
use crate::system::sys;

/// The most registrations that move to the new socket.
const REGISTRATIONS_MAX: usize = 8;
/// The most descriptors that move to the new socket.
const NUMBERS_MAX: usize = 8;

/// Options that are copied to the new socket, because the program may have set them: ints, and
/// times. (`SO_RCVLOWAT` and those of Nagle's algorithm are kept beside the carrier.)
const INTS: [(i32, i32); 12] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
];
const TIMES: [i32; 2] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];

/// Brings the connection back to the kernel. False when that fails: then the connection is reset.
/// No lock of the connection is held.
#[cold]
pub(crate) fn return_to_kernel(connection: &Connection) -> bool {
    let _held = LOCK.lock();
    if !connection.is_current() {
        // Another thread has already brought it back.
        return connection::at(connection.fd).is_some_and(|now| now.continues(connection));
    }
    let Some(end) = connection.end() else {
        return true;
    };
    let Some(socket) = reconnecting::connect(connection, &end) else {
        return false;
    };
    let sent = reconnecting::sent(connection, &end);
    let mut numbers = [-1; NUMBERS_MAX];
    let count = numbers_of(connection, &mut numbers);
    let mut registrations = [(0, -1, epoll_event { events: 0, u64: 0 }); REGISTRATIONS_MAX];
    let registered = parked::registered(connection, &mut registrations);
    let flags = connection.entry.flags.load(Ordering::Relaxed);
    take_along(connection, socket);
    if !hold(connection, &numbers[..count]) {
        // The bytes still arrive, as after any close.
        sys::close(socket);
        return false;
    }
    connection.local.closing(|| {
        orphans::descriptor_closing(connection, true);
        connection.local.descriptors.store(0, Ordering::Relaxed);
        release::release(connection);
    });
    for (n, &fd) in numbers[..count].iter().enumerate() {
        let is_kept = sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize == 0;
        let cloexec = if is_kept { 0 } else { libc::O_CLOEXEC };
        sys::dup3(socket, fd, cloexec);
        match n {
            0 => tracking::track(fd, false),
            _ => closing::duplicate(numbers[0], fd),
        }
    }
    sys::close(socket);
    if let Some(now) = connection::at(numbers[0]) {
        now.continue_from(connection);
        now.entry.tx_carrier.store(sent, Ordering::Relaxed);
        let shut = flags & FLAG_SHUT_TX;
        now.entry.flags.fetch_or(shut, Ordering::Relaxed);
        for (number, fd, event) in &registrations[..registered] {
            register(*number, *fd, event);
        }
    }
    true
}

/// Makes a thread that closes one of these descriptors wait for the lock of express, because
/// another socket is going to have the numbers. False when another thread is already closing one of
/// them; its number may belong to another file.
fn hold(connection: &Connection, numbers: &[i32]) -> bool {
    let (index, generation) = (connection.index, connection.generation);
    let is_held = |fd: &&i32| descriptors::hold_for_replacement(**fd, index, generation);
    let held = numbers.iter().take_while(is_held).count();
    let is_all = held == numbers.len();
    if !is_all {
        for &fd in &numbers[..held] {
            descriptors::note_connection(fd, index, generation);
        }
    }
    is_all
}

/// Writes the program's descriptors of a connection to `out`. Returns how many there are.
fn numbers_of(connection: &Connection, out: &mut [i32]) -> usize {
    out[0] = connection.fd;
    if connection.local.descriptors.load(Ordering::Relaxed) <= 1 {
        return 1;
    }
    let mut count = 0;
    descriptors::each_of_connection(connection.index, connection.generation, |fd| {
        if let Some(place) = out.get_mut(count) {
            *place = fd;
            count += 1;
        }
    });
    count
}

/// The new socket gets the mode and the options of the old one.
fn take_along(connection: &Connection, socket: i32) {
    let entry = connection.entry;
    if entry.flags.load(Ordering::Relaxed) & FLAG_NONBLOCK == 0 {
        sys::fcntl(socket, libc::F_SETFL, libc::O_RDWR as usize);
    }
    settings::copy_kept(connection, socket);
    if !connection.local.express.has_options() {
        return;
    }
    for (level, name) in INTS {
        let value = |fd| sys::getsockopt::<i32>(fd, level, name).ok();
        if let Some(value) = value(connection.fd).filter(|_| value(connection.fd) != value(socket))
        {
            sys::setsockopt_int(socket, level, name, value);
        }
    }
    for name in TIMES {
        let time = sys::getsockopt::<[i64; 2]>(connection.fd, libc::SOL_SOCKET, name);
        if let Ok(time) = time
            && time != [0; 2]
        {
            sys::setsockopt_time(socket, name, time);
        }
    }
    let linger = sys::getsockopt::<[i32; 2]>(connection.fd, libc::SOL_SOCKET, libc::SO_LINGER);
    if let Ok(linger) = linger
        && linger[0] != 0
    {
        sys::set_linger(socket, linger);
    }
}

/// Registers the new connection as the program had registered it.
pub(super) fn register(number: u32, fd: i32, event: &epoll_event) {
    let Some(epoll_fd) = instance::descriptor(number) else {
        return;
    };
    let add = libc::EPOLL_CTL_ADD;
    if control::control(number, epoll_fd, add, fd, Some(*event)).is_none() {
        sys::epoll_ctl(epoll_fd, add, fd, event.events, event.u64);
    }
}
