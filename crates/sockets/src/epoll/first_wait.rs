//! The first wait of the program on an instance.
//!
//! A program may make an instance and register members through libc, and then wait on it past the
//! library. So until the program has waited through the library, the kernel has exactly what the
//! program registered: no tag instead of the data of a one-shot or of a nested instance, no carrier
//! events for a member that is already in a ring ([`crate::express`]), and no member that is
//! withheld until the engine answers. The waits of such a member's connection do not count as seen,
//! so the connection stays on the kernel. Before the first wait begins, all of this is changed to
//! the library's way.
//!
//! A program that waits both through and past the library on one instance is not supported.

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

/// In [`Epoll::waits`], beside [`NOT_YET`]: a thread is changing the members for the first wait.
const BEGINS: u32 = 1;
/// In [`Epoll::waits`]: the members are changed.
const BEGUN: u32 = 2;

/// Held while the members of an instance are changed for the first wait. Other threads must not get
/// events of kernel registrations that are about to be replaced.
pub(super) static LOCK: Mutex = Mutex::new();

/// The program is about to wait on the instance through the library, or to look at it, or at an
/// instance around it.
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
    // A thread that adds an unconnected socket from now on sees the word.
    drop(EARLY_LOCK.lock());
    for (n, one) in epoll.registrations() {
        make_up_for(instance, n, one);
    }
    take_nested(epoll);
    // The kernel refuses circles. When one is removed meanwhile, the last one moves to its place.
    // The last one is visited first here, so it is not missed.
    for inner in epoll.known_nested().rev() {
        if let Some(inner) = Instance::numbered(inner.number.load(Ordering::Relaxed)) {
            begin(inner);
        }
    }
    // Release pairs with the load in `note`.
    epoll.waits.store(BEGUN, Ordering::Release);
}

/// In a forked child: a thread of the parent may have been changing the members.
pub(super) fn forked(epoll: &Epoll) {
    if epoll.waits.load(Ordering::Relaxed) == BEGINS {
        epoll.waits.store(NOT_YET, Ordering::Relaxed);
    }
}

/// The program has registered a connection, with number `n`, with an instance on which it had not
/// waited through the library. The caller holds the connection's `membership` lock.
pub(super) fn added(epoll: &Epoll, connection: &Connection, n: u32) {
    // Pairs with the fence in `begin`.
    fence(Ordering::SeqCst);
    if let Some(one) = registration(n)
        && epoll.is_waited_on()
    {
        take_member(epoll, connection, n, one);
    }
}

fn make_up_for(instance: Instance, n: u32, one: &Registration) {
    let epoll = instance.epoll;
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
        if one.is_of(&connection, instance.number) {
            take_member(epoll, &connection, n, one);
        }
    }
}

/// Changes a member to the form that new members have from now on. The caller holds the
/// connection's `membership` lock.
fn take_member(epoll: &Epoll, connection: &Connection, n: u32, one: &Registration) {
    seen_waits::seen(connection);
    if awaiting::hides_carrier(connection) {
        hold_members(connection);
    } else if connection.local.attachment.has_region() {
        take_members_from_kernel(connection);
    } else if one.is_kernels() && one.events() & ONESHOT != 0 && !is_anothers(connection, one) {
        // It was not reported yet, so it may be armed again.
        kernel_has_programs(epoll, one, n);
    }
}
