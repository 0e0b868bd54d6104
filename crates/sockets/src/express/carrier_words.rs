//! A carrier's own state, beside its connection's words.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::memory::clear;
use crate::process::descriptors;
use crate::system::sys;

/// Options that programs set on each connection, and that the library resets for the next turn.
const KEEPALIVE: [(i32, i32); 4] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
];

/// A carrier's state for express. All zeroes: it was never parked, and never will be.
#[derive(Default)]
pub(crate) struct Words {
    /// 1 when it may be parked: both ends chose it as a seed.
    pub(super) may_park: AtomicU32,
    /// 1 when both ends are of one user, in one network namespace, with no translation of addresses
    /// between them.
    is_one_user: AtomicU32,
    /// The inode of another user's listener that has accepted the connection, in our network
    /// namespace; or 0.
    listener: AtomicU64,
    /// The carrier's own descriptor, in a range above the program's, plus one; 0 before it was
    /// first parked.
    high: AtomicI32,
    /// At the connecting end: the number of its destination ([`super::destinations`]). At the
    /// accepting end: the number of its listener ([`super::evidence`]). Or 0.
    pub(super) destination: AtomicU32,
    /// At the connecting end: the user that made its socket.
    pub(super) user: AtomicU32,
    /// 1 when the program has set an option in this turn that the library does not reset.
    pub(super) is_odd: AtomicU32,
    /// Options of [`KEEPALIVE`] that the program has set in this turn, as bits; and the values with
    /// which a turn begins.
    keepalive_set: AtomicU32,
    keepalive_first: [AtomicI32; KEEPALIVE.len()],
    /// 1 when a turn begins with keepalive options, inherited from the listener.
    begins_with_keepalive: AtomicU32,
    /// Whether the adapter must be told the liveness settings of this turn's connection, and
    /// whether that was already so at the last look (`unread_watch`); 0 when not.
    pub(super) liveness_state: AtomicU32,
    /// The listener's options when the connection was accepted: a number of [`super::listener`].
    pub(super) listener_options: AtomicU32,
    /// Options with which a turn begins, at the accepting end: those of the listener.
    pub(super) first_options: AtomicU32,
    /// Position in our ring at which the turn began.
    pub(super) began_at: AtomicU64,
    /// The program's bytes on the carrier when the turn began.
    pub(super) carrier_began_at: AtomicU64,
    /// Position in the peer's ring at which the turn began.
    pub(super) rx_began_at: AtomicU64,
    /// Set when a receive finds nothing in this turn and the program was not seen waiting: one more
    /// than the number of calls that had received bytes by then; 0 before.
    pub(super) fruitless_at: AtomicU64,
    /// Bytes that the peer's program had not read when [`super::unread_watch`] last looked, in
    /// encoded form.
    pub(super) unread: AtomicU64,
    /// Position up to which this end had sent at that look.
    pub(super) sent_at_look: AtomicU64,
    /// Looks in a row that found that position unchanged.
    pub(super) idle_looks: AtomicU32,
    /// When it became a carrier.
    pub(super) made_ns: AtomicU64,
    pub(super) parked_ns: AtomicU64,
    /// The kernel's way to end it if the process is killed: a state of [`super::sudden_end`].
    pub(super) sudden_end: AtomicU32,
    /// The remote address, at the accepting end: a `sockaddr_in` or `sockaddr_in6`.
    pub(super) remote: [AtomicU64; 4],
    /// Our port, at the accepting end.
    pub(super) local_port: AtomicU32,
    /// The next carrier in its list, plus one.
    pub(super) next: AtomicU32,
    pub(super) previous: AtomicU32,
}

/// True for an option that the library resets for the next turn.
pub(crate) fn is_of_keepalive(level: i32, name: i32) -> bool {
    KEEPALIVE.contains(&(level, name))
}

/// Values of the options of keepalive.
pub(super) type Keepalive = [i32; KEEPALIVE.len()];

/// The options of keepalive of a socket.
pub(super) fn keepalive_of(fd: i32) -> Keepalive {
    KEEPALIVE.map(|(level, name)| sys::getsockopt::<i32>(fd, level, name).unwrap_or(0))
}

impl Words {
    /// Clears the words, because another connection begins in this place.
    pub(crate) fn reset(&self) {
        clear!(self: may_park, destination, user, is_one_user, is_odd, keepalive_set);
        clear!(self: liveness_state, first_options, listener_options, next, previous);
        clear!(self: sudden_end, idle_looks, high, listener, began_at, carrier_began_at);
        clear!(self: rx_began_at, fruitless_at, unread, sent_at_look, made_ns, parked_ns);
    }

    /// The carrier's own number.
    #[inline]
    pub(crate) fn high(&self) -> Option<i32> {
        let high = self.high.load(Ordering::Relaxed);
        (high != 0).then_some(high - 1)
    }

    /// True when the connection went to its rings because of express, before its program was seen
    /// waiting.
    #[inline]
    pub(crate) fn is_carrier(&self) -> bool {
        self.made_ns.load(Ordering::Relaxed) != 0
    }

    /// The connection goes on without the carrier: it is an ordinary one from here on.
    pub(super) fn end_carrier(&self) {
        clear!(self: may_park, made_ns);
    }

    /// Our port, of a carrier that we have accepted.
    pub(crate) fn local_port(&self) -> u16 {
        self.local_port.load(Ordering::Relaxed) as u16
    }

    /// Stores the adapter's information: whether both ends belong to one user, and the listener of
    /// the other user.
    pub(crate) fn note_peer(&self, is_one_user: bool, listener: u64) {
        self.is_one_user
            .store(is_one_user.into(), Ordering::Relaxed);
        self.listener.store(listener, Ordering::Relaxed);
    }

    /// True when both ends belong to one user and one network namespace, without translation of
    /// addresses.
    pub(super) fn is_of_one_user(&self) -> bool {
        self.is_one_user.load(Ordering::Relaxed) != 0
    }

    /// The inode of the socket that listens for another user's program, if the adapter has found
    /// it there.
    pub(super) fn listener(&self) -> Option<u64> {
        let inode = self.listener.load(Ordering::Relaxed);
        (inode != 0).then_some(inode)
    }

    /// Records that the program has set an option. If the library does not reset that option, this
    /// turn is the carrier's last.
    pub(crate) fn note_option(&self, level: i32, name: i32) {
        match KEEPALIVE.iter().position(|known| *known == (level, name)) {
            Some(place) if self.is_carrier() => {
                self.keepalive_set.fetch_or(1 << place, Ordering::Relaxed);
            }
            _ => self.note_lasting_option(),
        }
    }

    /// The connection at `fd` becomes a carrier: the program has set nothing on it yet.
    pub(super) fn note_first_keepalive(&self, fd: i32) {
        for (value, first) in keepalive_of(fd).into_iter().zip(&self.keepalive_first) {
            first.store(value, Ordering::Relaxed);
        }
        let user_timeout = libc::TCP_USER_TIMEOUT;
        let is_kept = self.keepalive_first[0].load(Ordering::Relaxed) != 0
            || sys::getsockopt::<i32>(fd, libc::IPPROTO_TCP, user_timeout) != Ok(0);
        self.begins_with_keepalive
            .store(is_kept.into(), Ordering::Relaxed);
    }

    /// True when a turn begins with options that keep a connection alive.
    pub(crate) fn begins_with_keepalive(&self) -> bool {
        self.begins_with_keepalive.load(Ordering::Relaxed) != 0
    }

    /// A turn begins on the carrier at `fd`: resets the options that the last turn has set.
    pub(super) fn set_keepalive_back(&self, fd: i32) {
        let set = match self.keepalive_set.load(Ordering::Relaxed) {
            0 => return,
            set => set,
        };
        self.keepalive_set.store(0, Ordering::Relaxed);
        let all = KEEPALIVE.into_iter().zip(&self.keepalive_first).enumerate();
        for (place, ((level, name), first)) in all {
            if set & 1 << place != 0 {
                sys::setsockopt_int(fd, level, name, first.load(Ordering::Relaxed));
            }
        }
    }

    /// A turn begins on the carrier at `fd`, in place of a socket that had these options. True when
    /// they keep the connection alive.
    pub(super) fn take_keepalive(&self, fd: i32, options: &Keepalive) -> bool {
        for (place, ((level, name), value)) in KEEPALIVE.into_iter().zip(options).enumerate() {
            if *value != self.keepalive_first[place].load(Ordering::Relaxed) {
                sys::setsockopt_int(fd, level, name, *value);
                self.keepalive_set.fetch_or(1 << place, Ordering::Relaxed);
            }
        }
        options[0] != 0
    }

    /// True when the program has set an option in this turn, or its socket began with one.
    pub(super) fn has_options(&self) -> bool {
        self.has_lasting_option()
            || self.begins_with_keepalive()
            || self.keepalive_set.load(Ordering::Relaxed) != 0
    }

    /// Records an option that the library does not reset: this turn is the carrier's last.
    pub(crate) fn note_lasting_option(&self) {
        if self.is_carrier() {
            self.is_odd.store(1, Ordering::Relaxed);
        }
    }

    /// True when the program has set an option in this turn that the library does not reset.
    pub(crate) fn has_lasting_option(&self) -> bool {
        self.is_odd.load(Ordering::Relaxed) != 0
    }

    /// Records a number of its own, in a test.
    #[cfg(test)]
    pub(super) fn number_in_test(&self, high: i32) {
        self.high.store(high + 1, Ordering::Relaxed);
    }

    /// The carrier gets a number of its own, a duplicate of `fd`, unless it has one.
    pub(super) fn give_number(&self, fd: i32) -> Option<i32> {
        if let Some(high) = self.high() {
            return Some(high);
        }
        let high = descriptors::duplicate_for_us(fd)?;
        self.high.store(high + 1, Ordering::Relaxed);
        Some(high)
    }

    /// Closes the carrier's own descriptor, because the connection ends. Called before the
    /// program's descriptor is closed: otherwise that close would not end the connection.
    pub(crate) fn close_number(&self) {
        let high = self.high.swap(0, Ordering::Relaxed);
        if high != 0 {
            descriptors::close_own(high - 1);
        }
    }
}
