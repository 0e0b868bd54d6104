//! Registrations whose descriptor was closed while another of the same connection stays open.
//!
//! The kernel identifies a registration by file and descriptor number, and reports its events as
//! long as the file is open (epoll(7), questions 6 and 7). But once the number is closed, no call
//! can change the registration, unless the file gets that number again. The library has to change
//! it when the connection moves. So before the number is closed, the registration is moved to a
//! duplicate descriptor of the library, which lives as long as the registration. The program still
//! uses the old number.

use core::sync::atomic::Ordering;

use toehold_channel::table::{FLAG_ASKED, Reason};

use crate::connection::Connection;
use crate::epoll::instance::{Epoll, epoll};
use crate::epoll::kernel_registrations::kernel_has_programs;
use crate::epoll::membership::{is_anothers, leave};
use crate::epoll::registration::{
    self, ANSWER_EVENTS, Registration, State, each_registration, tag,
};
use crate::process::descriptors;
use crate::system::sys;

/// The descriptor of registration `one` is being closed. True when the registration stays. The
/// caller holds the connection's `membership` lock.
pub(super) fn outlives_descriptor(
    connection: &Connection,
    epoll: &Epoll,
    one: &Registration,
    n: u32,
) -> bool {
    let is_on_carrier = one.is_kernels() && connection.end().is_none();
    if is_on_carrier {
        // If the connection stays on its carrier, the registration need not be changed, except at
        // its end.
        connection.pin(Reason::Unsupported);
        if !was_shown(connection) {
            return true;
        }
    }
    if !one.state().outlives_descriptor(false) || is_anothers(connection, one) {
        return false;
    }
    let Some(duplicate) = descriptors::duplicate_for_us(connection.fd) else {
        return is_on_carrier;
    };
    one.set_duplicate(duplicate + 1, false);
    put_under(epoll, one, n, connection.fd);
    true
}

/// A descriptor of the library has got another number.
pub(crate) fn moved(fd: i32, to: i32) {
    for (n, one) in registration::all() {
        let is_it = one
            .duplicate
            .compare_exchange(fd + 1, to + 1, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if let (true, Some(epoll)) = (is_it, epoll(one.epoll.load(Ordering::Relaxed))) {
            put_under(epoll, one, n, fd);
        }
    }
}

/// Registers its duplicate with the kernel instead of `fd`.
pub(super) fn put_under(epoll: &Epoll, one: &Registration, n: u32, fd: i32) {
    epoll.end_kernel_calls();
    let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
    sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
    let events = match one.state() {
        State::Held => ANSWER_EVENTS,
        _ => one.carrier_events(),
    };
    let (add, carrier) = (libc::EPOLL_CTL_ADD, one.carrier());
    sys::epoll_ctl(epoll_fd, add, carrier, events, tag(n));
    if one.is_kernels() {
        kernel_has_programs(epoll, one, n);
    }
}

/// A descriptor of a tracked connection is being closed, the `last` one in this process or not.
pub(crate) fn descriptor_closing(connection: &Connection, last: bool) {
    if connection.local.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    let was_shown = last && was_shown(connection);
    let _members = connection.local.membership.lock();
    each_registration(connection, |n, one| {
        let is_named = one.carrier() == connection.fd;
        let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) else {
            return;
        };
        if !last && (!is_named || outlives_descriptor(connection, epoll, one, n)) {
            return;
        }
        // With a number that is already closed, the kernel would find the registration of another
        // file.
        let is_reached = is_named || one.duplicate.load(Ordering::Relaxed) != 0;
        if is_reached && (!one.is_kernels() || was_shown) && !is_anothers(connection, one) {
            let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
            sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, one.carrier(), 0, 0);
        }
        leave(epoll, connection, n);
    });
}

/// True when the adapter may still hold the socket that it was shown. Then, after the program's
/// last close, the kernel would keep the registrations and report events of a closed descriptor.
fn was_shown(connection: &Connection) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_ASKED != 0 && !connection.is_shared()
}
