//! The values of socket options that the program has set, while the carrier has other values.

use core::sync::atomic::Ordering;

use toehold_channel::table::FLAG_ATTACHED;

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::system::sys;
use crate::transfer::peek_offset;

/// The program set `TCP_NODELAY`.
pub(crate) const USER_NODELAY: u32 = 1;
/// The program set `TCP_CORK`.
const USER_CORK: u32 = 2;
/// The program set `TCP_INQ`.
const USER_INQ: u32 = 4;

/// `TCP_INQ`: a control message with what is left to be read (include/uapi/linux/tcp.h).
pub(crate) const TCP_INQ: i32 = 36;

/// TCP's options that the library keeps for the program: the name, the bit in `tx_options`, and the
/// value that the carrier has meanwhile.
const KEPT: [(i32, u32, i32); 3] = [
    (libc::TCP_CORK, USER_CORK, 0),
    (libc::TCP_NODELAY, USER_NODELAY, 1),
    (TCP_INQ, USER_INQ, 0),
];

/// Before a carrier serves as doorbell: nothing may hold a single byte back. RFC 896's delay and
/// corking go, the program's view is kept. The kernel does not know what is left in a ring, so it
/// sends no control messages about that any more.
pub(crate) fn prepare_carrier(connection: &Connection) {
    if Carrier::of(connection) == Carrier::Unix {
        return;
    }
    let mut options = 0;
    for (name, bit, meanwhile) in KEPT {
        let value = sys::getsockopt::<i32>(connection.fd, libc::IPPROTO_TCP, name);
        if value == Ok(1) {
            options |= bit;
        }
        if value.is_ok_and(|value| value != meanwhile) {
            sys::setsockopt_int(connection.fd, libc::IPPROTO_TCP, name, meanwhile);
        }
    }
    connection
        .entry
        .tx_options
        .store(options, Ordering::Relaxed);
}

/// The carrier is no doorbell any more: it gets what the program has set meanwhile.
pub(crate) fn restore_carrier(connection: &Connection) {
    restore_low_water(connection);
    peek_offset::restore(connection);
    if Carrier::of(connection) == Carrier::Unix {
        return;
    }
    let options = connection.entry.tx_options.load(Ordering::Relaxed);
    let number = connection.number();
    for (name, bit, _) in KEPT {
        let value = i32::from(options & bit != 0);
        if sys::getsockopt::<i32>(number, libc::IPPROTO_TCP, name) != Ok(value) {
            sys::setsockopt_int(number, libc::IPPROTO_TCP, name, value);
        }
    }
}

/// Another socket takes the carrier's place: it gets what the program has set meanwhile.
pub(crate) fn copy_kept(connection: &Connection, socket: i32) {
    let options = connection.entry.tx_options.load(Ordering::Relaxed);
    for (name, bit, _) in KEPT {
        if options & bit != 0 {
            sys::setsockopt_int(socket, libc::IPPROTO_TCP, name, 1);
        }
    }
    let bytes = connection.entry.rx_low_water.load(Ordering::Relaxed);
    if bytes > 1 {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
        sys::setsockopt_int(socket, level, name, bytes as i32);
    }
}

/// Options with which the kernel does to bytes, or tells of them, what rings do not: all of them
/// are ints, and inherited by what a listener accepts. The last three are the `_NEW` ones of
/// include/uapi/asm-generic/socket.h.
const OF_THE_KERNEL: [(i32, i32); 10] = [
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, 63),
    (libc::SOL_SOCKET, 64),
    (libc::SOL_SOCKET, 65),
];

/// As [`OF_THE_KERNEL`], of Unix sockets: control messages that tell of a sender with its bytes
/// (`SO_PASSCRED`, `SO_PASSSEC`, `SO_PASSPIDFD`), or of what is left to be read (`SO_INQ`). The
/// last two numbers are those of include/uapi/asm-generic/socket.h.
const OF_THE_KERNEL_UNIX: [i32; 4] = [libc::SO_PASSCRED, libc::SO_PASSSEC, 76, 84];

pub(crate) fn is_kernels(connection: &Connection, level: i32, name: i32) -> bool {
    OF_THE_KERNEL.contains(&(level, name))
        || level == libc::SOL_SOCKET
            && Carrier::of(connection) == Carrier::Unix
            && OF_THE_KERNEL_UNIX.contains(&name)
}

/// True for an option that attaches a filter: the program's own, which is to see each segment.
pub(crate) fn attaches_filter(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && matches!(name, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF)
}

/// `SO_PEEK_OFF` is off when it is negative, `SO_MAX_PACING_RATE` when it is the largest unsigned
/// int or long (sock_init_data in net/core/sock.c), any other option when it is 0.
pub(crate) fn is_on(name: i32, value: i32) -> bool {
    match name {
        libc::SO_PEEK_OFF => value >= 0,
        libc::SO_MAX_PACING_RATE => value != -1,
        _ => value != 0,
    }
}

/// True when the program, or the listener that accepted the connection, has asked the kernel for
/// what rings cannot express: one of those options, a filter, or signals (`O_ASYNC`).
pub(crate) fn needs_kernel(connection: &Connection) -> bool {
    let fd = connection.fd;
    let is_set = |&(level, name): &(i32, i32)| {
        sys::getsockopt::<i32>(fd, level, name).is_ok_and(|value| is_on(name, value))
    };
    let of_unix = || OF_THE_KERNEL_UNIX.map(|name| (libc::SOL_SOCKET, name));
    sys::is_signalling(fd)
        || sys::has_filter(fd)
        || OF_THE_KERNEL.iter().any(is_set)
        || Carrier::of(connection) == Carrier::Unix && of_unix().iter().any(is_set)
}

/// The bytes that a receive waits for, and that make a connection readable (`SO_RCVLOWAT`).
#[inline]
pub(crate) fn low_water(connection: &Connection) -> usize {
    connection.entry.rx_low_water.load(Ordering::Relaxed).max(1) as usize
}

/// Keeps the program's `SO_RCVLOWAT`, within the kernel's bounds, and the carrier's at 1: no
/// doorbell would reach more (tcp_data_ready). False when the kernel refuses it.
pub(crate) fn set_low_water(connection: &Connection, bytes: i32) -> bool {
    let (fd, level, name) = (connection.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    if sys::setsockopt_int(fd, level, name, bytes) < 0 {
        return false;
    }
    let bounded = sys::getsockopt::<i32>(fd, level, name).unwrap_or(1);
    sys::setsockopt_int(fd, level, name, 1);
    connection
        .entry
        .rx_low_water
        .store(bounded as u32, Ordering::Relaxed);
    true
}

/// The kernel alone decides from here on when the connection is readable.
pub(crate) fn restore_low_water(connection: &Connection) {
    let bytes = connection.entry.rx_low_water.swap(0, Ordering::Relaxed);
    if bytes > 1 {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
        sys::setsockopt_int(connection.number(), level, name, bytes as i32);
    }
}

/// The bit of an option that the library keeps for the program while the connection has a channel.
pub(crate) fn bit_of(connection: &Connection, level: i32, name: i32) -> Option<u32> {
    if level != libc::IPPROTO_TCP
        || Carrier::of(connection) == Carrier::Unix
        || connection.entry.flags.load(Ordering::Relaxed) & FLAG_ATTACHED == 0
    {
        return None;
    }
    let kept = KEPT.into_iter().find(|&(kept, ..)| kept == name);
    kept.map(|(_, bit, _)| bit)
}

/// True when the kernel takes `value` for an option that the library keeps: only `TCP_INQ` is
/// checked (do_tcp_setsockopt in net/ipv4/tcp.c).
pub(crate) fn is_valid(name: i32, value: i32) -> bool {
    name != TCP_INQ || matches!(value, 0 | 1)
}

/// True when each received message tells what is left to be read (`TCP_INQ`). Only for a connection
/// with a channel.
#[inline]
pub(crate) fn tells_what_is_left(connection: &Connection) -> bool {
    connection.entry.tx_options.load(Ordering::Relaxed) & USER_INQ != 0
}

/// A shutdown flushes what a cork holds; on the carrier nothing is held, so there is nothing to do
/// but forget the cork.
pub(crate) fn before_shutdown(connection: &Connection) {
    connection
        .entry
        .tx_options
        .fetch_and(!USER_CORK, Ordering::Relaxed);
}
