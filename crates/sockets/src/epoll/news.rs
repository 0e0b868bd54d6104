//! News of a connection that no peer marks in a ready bitmap, shown to the instances that have it.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{SLEEPS_NOT, WAKE_SEQ_CST, mark};

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::epoll::instance::epoll;
use crate::epoll::registration::{
    EDGE, WRITABLE, each_registration, first, peer_tail, registration,
};
use crate::waiting::sleepers;

/// The program met a full kernel buffer on a connection whose direction is on the carrier: let the
/// kernel tell when there is room.
pub(crate) fn watch_kernel_writable(connection: &Connection) {
    each_registration(connection, |n, one| {
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)).filter(|_| one.is_ours()) {
            epoll.kick(n);
        }
    });
}

/// The connection's direction has left its ring, under the send lock. From now on the kernel
/// reports room. A thread that meets a full ring records that ([`writing_blocked`]) before it takes
/// the send lock to ask for credit, and then finds the direction on the carrier.
pub(crate) fn room_is_kernels(connection: &Connection) {
    each_registration(connection, |n, one| {
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)).filter(|_| one.is_ours())
            && one.awaits_room()
        {
            epoll.kick(n);
        }
    });
}

/// The program met a full ring: the next room in it is an edge.
pub(crate) fn writing_blocked(connection: &Connection) {
    each_registration(connection, |_, one| {
        one.forget_room();
    });
}

fn are_edges_of_room(events: u32) -> bool {
    events & EDGE != 0 && events & WRITABLE != 0
}

/// The program has registered `connection` for `events`.
pub(super) fn note_interest(connection: &Connection, events: u32) {
    if are_edges_of_room(events) {
        connection.local.expects_room.store(1, Ordering::Relaxed);
    }
}

/// The program has sent bytes by a ring, and the connection has an edge-triggered registration for
/// room. On a Unix socket, the kernel reports an edge whenever the peer reads, even if the buffer
/// was never full (`unix_write_space` in net/unix/af_unix.c). Some programs send a few messages and
/// wait for that edge. The peer's library does not tell when it reads, so the edge comes already
/// now.
#[cold]
pub(crate) fn sent_on_unix(connection: &Connection) {
    if Carrier::of(connection) == Carrier::Tcp {
        connection.local.expects_room.store(0, Ordering::Relaxed);
        return;
    }
    each_registration(connection, |n, one| {
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed))
            && one.is_ours()
            && are_edges_of_room(one.events())
        {
            one.forget_room();
            epoll.show_to_sleepers(n);
        }
    });
    mark_own(connection);
}

/// The program has learned of bytes, room or the end of `connection` by another call than a wait on
/// its instance (`FIONREAD`, `MSG_PEEK`, `poll`). From now on a wait with a time-out of 0 must
/// report them, as the kernel's would. But a peer publishes first and marks the ready bitmap
/// afterwards, and a wait looks at marked members only. So this process marks its own bitmap. A
/// thread that sleeps on the instance is woken by the peer, as always.
#[inline]
pub(crate) fn note_known(connection: &Connection) {
    if first(connection).is_some() {
        mark_own(connection);
    }
}

/// As [`note_known`], after a receive that has left bytes. Such receives are frequent, so the mark
/// is omitted if the member is on the ready list, or if all bytes were reported as an edge.
#[inline]
pub(crate) fn note_left(connection: &Connection) {
    if let Some(one) = first(connection) {
        // Relaxed: a thread that takes the member off the list at this moment waits beside this
        // one, and looks at the connection itself.
        let is_listed = one.on_ready.load(Ordering::Relaxed) != 0;
        let is_edge = one.events() & EDGE != 0;
        let is_told = || is_edge && !one.is_new_edge(0, peer_tail(connection), false);
        if !is_listed && !is_told() {
            mark_own(connection);
        }
    }
}

/// Marks `connection` in the ready bitmap of this process's instance, if that has one.
#[cold]
fn mark_own(connection: &Connection) {
    if let Some(place) = sleepers::own_place(connection, sleepers::own_resting(connection)) {
        mark(place.bitmap, place.bit);
    }
}

/// Puts `connection` on the ready list of its epoll instance, and wakes a thread that sleeps there.
/// For news that no peer marks, or whose doorbell another thread has taken.
pub(crate) fn push_ready_and_wake(connection: &Connection) {
    let Some(place) = sleepers::own_place(connection, sleepers::resting(connection)) else {
        return;
    };
    mark(place.bitmap, place.bit);
    // An instance of another process is woken by the doorbell, which stays on the carrier for it.
    let is_asleep = !place.bitmap.sleeping.load(WAKE_SEQ_CST).is(SLEEPS_NOT);
    if is_asleep && !sleepers::is_resting_anothers(connection) {
        let number = place
            .pair
            .registration(place.bit)
            .map_or(0, |number| number.load(Ordering::Relaxed));
        let Some(one) = registration(number) else {
            return;
        };
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) {
            epoll.kick(number);
        }
    }
}

/// True when a thread of this process sleeps on the instance that has `connection` on a ready
/// bitmap, and a notifier has taken the bitmap's sleep word: a doorbell on the carrier may be the
/// one that still has to wake that thread. If it were taken, the thread would sleep on, and no peer
/// would ring again.
pub(crate) fn awaits_doorbell(connection: &Connection) -> bool {
    let Some(place) = sleepers::own_place(connection, sleepers::own_resting(connection)) else {
        return false;
    };
    let user = place.pair.epolls.get(place.number as usize);
    let number = user.map_or(0, |user| user.load(Ordering::Relaxed));
    place.bitmap.sleeping.load(WAKE_SEQ_CST).is(0)
        && number
            .checked_sub(1)
            .and_then(epoll)
            .is_some_and(|epoll| epoll.sleepers.any())
}
