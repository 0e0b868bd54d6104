//! The first wait of the program on an instance.
//!
//! A program may make an instance and register by libc, and wait on it past the library. So until
//! it has waited through us, the kernel has of the members what the program registered and nothing
//! else: no tag in the place of a one-shot's data or an instance's inside, no event of a carrier's
//! for a member that is in a ring already ([`crate::express`]), and no member withheld until the
//! engine answers. A member's connection is not taken for one whose waits are seen either, so it
//! stays on the kernel. All of this is made up for before the first wait begins.
//!
//! A program that waits in both ways on one instance is not recognised.

use core::sync::atomic::Ordering;

use libc::epoll_event;
use toehold_channel::sync::fence;

use crate::connection::Connection;
use crate::epoll::early::EARLY_LOCK;
use crate::epoll::instance::{Epoll, Instance, NOT_YET};
use crate::epoll::kernel_registrations::{kernel_has_programs, modify_kernels};
use crate::epoll::membership::{hold_members, is_anothers, take_members_from_kernel};
use crate::epoll::nested::take_nested;
use crate::epoll::registration::{ONESHOT, Registration, State, registration};
use crate::lock::mutex::Mutex;
use crate::offload::awaiting;
use crate::process;
use crate::system::errno;
use crate::waiting::seen_waits;

/// In [`Epoll::waits`], beside [`NOT_YET`]: a thread makes up for what was left out.
const BEGINS: u32 = 1;
/// In [`Epoll::waits`]: that is done.
const BEGUN: u32 = 2;

/// Held while the members of an instance are made up for. Other threads that come to wait on it
/// must not be told by what is about to be replaced.
pub(super) static LOCK: Mutex = Mutex::new();

/// The program is about to wait on the instance through us, or to look: at it, or at one around it.
#[inline]
pub(crate) fn note(instance: Instance) {
    // Acquire pairs with the last store in `begin`.
    if instance.epoll.waits.load(Ordering::Acquire) != BEGUN {
        begin_all(instance);
    }
}

/// As [`note`], of the instance at `fd`.
#[inline]
pub(crate) fn note_at(fd: i32) {
    if let Some(instance) = Instance::at(fd) {
        note(instance);
    }
}

#[cold]
fn begin_all(instance: Instance) {
    if !process::borrowed_memory() {
        errno::keep(|| {
            let _held = LOCK.lock();
            begin(instance);
        });
    }
}

/// The caller holds [`LOCK`].
fn begin(instance: Instance) {
    let epoll = instance.epoll;
    if epoll.waits.load(Ordering::Relaxed) != NOT_YET || !instance.is_open() {
        return;
    }
    epoll.waits.store(BEGINS, Ordering::Relaxed);
    // Pairs with the fence in `added`: that sees the word, or the member is in the table here.
    fence(Ordering::SeqCst);
    // Whoever adds an unconnected socket from here on knows.
    drop(EARLY_LOCK.lock());
    for (n, one) in epoll.registrations() {
        make_up_for(epoll, n, one);
    }
    take_nested(epoll);
    // The kernel refuses circles. One that is removed meanwhile gives its place to the last, which
    // comes first here.
    for inner in epoll.known_nested().iter().rev() {
        if let Some(inner) = Instance::numbered(inner.number.load(Ordering::Relaxed)) {
            begin(inner);
        }
    }
    // Release pairs with the load in `note`.
    epoll.waits.store(BEGUN, Ordering::Release);
}

/// In a child of a fork: a thread of the parent's may have been at it.
pub(super) fn forked(epoll: &Epoll) {
    if epoll.waits.load(Ordering::Relaxed) == BEGINS {
        epoll.waits.store(NOT_YET, Ordering::Relaxed);
    }
}

/// The program has registered a connection, under number `n`, with an instance on which it had not
/// waited through us. The caller holds the connection's `membership` lock.
pub(super) fn added(epoll: &Epoll, connection: &Connection, n: u32) {
    // Pairs with the fence in `begin`.
    fence(Ordering::SeqCst);
    if let Some(one) = registration(n)
        && epoll.is_waited_on()
    {
        take_member(epoll, connection, n, one);
    }
}

fn make_up_for(epoll: &Epoll, n: u32, one: &Registration) {
    if one.state() == State::Early {
        let _held = EARLY_LOCK.lock();
        if one.state() == State::Early && one.events() & ONESHOT != 0 {
            let event = epoll_event {
                events: one.events(),
                u64: one.data(),
            };
            let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
            let _ = modify_kernels(epoll, epoll_fd, n, &event);
        }
    } else if let Some(connection) = one.behind() {
        let _members = connection.local.membership.lock();
        take_member(epoll, &connection, n, one);
    }
}

/// As from now on for new members. The caller holds the connection's `membership` lock.
fn take_member(epoll: &Epoll, connection: &Connection, n: u32, one: &Registration) {
    seen_waits::seen(connection);
    if awaiting::hides_carrier(connection) {
        hold_members(connection);
    } else if connection.local.attachment.has_region() {
        take_members_from_kernel(connection);
    } else if one.is_kernels() && one.events() & ONESHOT != 0 && !is_anothers(connection, one) {
        // Nobody was told of it yet, so it may be armed anew.
        kernel_has_programs(epoll, one, n);
    }
}
