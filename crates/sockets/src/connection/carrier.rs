//! The two kinds of carriers, and how the kernel treats each of them.
//!
//! Everything else in this crate holds for both. A difference that takes more than a line is in
//! [`crate::connection::unix`].

use core::sync::atomic::Ordering;

use toehold_channel::table::{Entry, FLAG_UNIX};

use crate::connection::{self, Connection};
use crate::system::sys;

/// The number of bytes that a receive without `MSG_WAITALL` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// The value of `SO_RCVLOWAT`.
    LowWater,
    /// One byte, whatever `SO_RCVLOWAT` is.
    AnyByte,
}

/// The kind of socket that carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// TCP, over IPv4 or IPv6.
    Tcp,
    /// A Unix stream socket.
    Unix,
}

impl Carrier {
    /// The kind of a connection's carrier, as far as it is known. A Unix socket that was accepted
    /// without asking for its address is taken for TCP until it is described to the adapter.
    #[inline]
    pub(crate) fn of(connection: &Connection) -> Carrier {
        Carrier::in_entry(connection.entry)
    }

    /// As [`Carrier::of`].
    #[inline]
    pub(crate) fn in_entry(entry: &Entry) -> Carrier {
        match entry.flags.load(Ordering::Relaxed) & FLAG_UNIX {
            0 => Carrier::Tcp,
            _ => Carrier::Unix,
        }
    }

    /// Asks the kernel for the kind of the socket at `fd`; `None` when it cannot be a carrier.
    pub(crate) fn at(fd: i32) -> Option<Carrier> {
        let option = |name| sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, name).unwrap_or(-1);
        // `IPPROTO_TCP` means TCP only: neither another family nor MPTCP reports it.
        if option(libc::SO_PROTOCOL) == libc::IPPROTO_TCP {
            return Some(Carrier::Tcp);
        }
        let is_unix = option(libc::SO_DOMAIN) == libc::AF_UNIX;
        (is_unix && option(libc::SO_TYPE) == libc::SOCK_STREAM).then_some(Carrier::Unix)
    }

    /// The kind of carrier for an address family.
    pub(crate) fn of_family(family: i32) -> Option<Carrier> {
        match family {
            libc::AF_INET | libc::AF_INET6 => Some(Carrier::Tcp),
            libc::AF_UNIX => Some(Carrier::Unix),
            _ => None,
        }
    }

    /// Notes the kind of the connection at `fd`.
    pub(crate) fn note(self, fd: i32) {
        if let (Carrier::Unix, Some(connection)) = (self, connection::at(fd)) {
            let flags = &connection.entry.flags;
            flags.fetch_or(FLAG_UNIX, Ordering::Relaxed);
        }
    }

    /// True when a close can be made a reset, by `SO_LINGER`.
    pub(crate) fn has_linger(self) -> bool {
        self == Carrier::Tcp
    }

    /// The flags of a receive that have a meaning. A Unix socket ignores `MSG_TRUNC` and has no
    /// error queue. With `MSG_PEEK` it does not wait for more bytes than are there
    /// (unix_stream_read_generic).
    pub(crate) fn receive_flags(self, flags: i32) -> i32 {
        const NONE: i32 = libc::MSG_TRUNC | libc::MSG_ERRQUEUE;
        match self {
            Carrier::Tcp => flags,
            Carrier::Unix if flags & libc::MSG_PEEK != 0 => flags & !(NONE | libc::MSG_WAITALL),
            Carrier::Unix => flags & !NONE,
        }
    }

    /// The flags of the receive that a `splice` with `flags` makes, and how many bytes it waits
    /// for. On a TCP socket only the socket's own mode decides whether the call waits, and it waits
    /// for any byte (tcp_splice_read). On a Unix socket the call's flags decide, too, and it waits
    /// as a receive does (unix_stream_splice_read).
    pub(crate) fn splice_waits(self, flags: u32) -> (i32, WaitsFor) {
        match self {
            Carrier::Tcp => (0, WaitsFor::AnyByte),
            Carrier::Unix if flags & libc::SPLICE_F_NONBLOCK != 0 => {
                (libc::MSG_DONTWAIT, WaitsFor::LowWater)
            }
            Carrier::Unix => (0, WaitsFor::LowWater),
        }
    }

    /// True when `poll` reports a connection as readable only if at least `SO_RCVLOWAT` bytes wait.
    pub(crate) fn polls_low_water(self) -> bool {
        self == Carrier::Tcp
    }
}
