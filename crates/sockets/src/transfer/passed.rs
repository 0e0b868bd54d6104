//! Descriptors that a message passes to another program (`SCM_RIGHTS`).

use core::mem::size_of;

use libc::{cmsghdr, msghdr};
use toehold_channel::table::Reason;

use crate::connection;
use crate::direction::switching;
use crate::offload::addresses;
use crate::process::confinement;
use crate::process::descriptors::{self, FRESH_CUSTOMIZED};
use crate::system::real::Door;
use crate::system::{errno, faults};
use crate::transfer::control_messages;

/// True when a message has no bad pointers; its parts are not checked.
#[must_use]
pub(crate) fn can_read_message(door: Door, message: *const msghdr) -> bool {
    if !faults::can_read(message, 1) {
        return false;
    }
    // SAFETY: it was just looked at.
    let header = unsafe { &*message };
    // A longer name is cut (`__copy_msghdr` in net/socket.c), and a negative length refused.
    let name_len = header
        .msg_namelen
        .min(size_of::<libc::sockaddr_storage>() as u32);
    let has_name = !header.msg_name.is_null();
    if has_name
        && (header.msg_namelen.cast_signed() < 0
            || !addresses::is_readable(header.msg_name.cast(), name_len))
    {
        return false;
    }
    let control = header.msg_control.cast::<u8>();
    faults::can_read(control, door.length(header.msg_controllen))
}

/// A message is about to be sent: the connections of the descriptors in it go to the host path.
///
/// # Safety
/// The caller promises to the kernel that the message's control buffer is valid.
#[inline]
pub(crate) unsafe fn note_descriptors(door: Door, header: &msghdr) {
    if header.msg_controllen != 0 {
        // SAFETY: the caller promises the same.
        unsafe { note_descriptors_of(door, header) };
    }
}

/// As [`note_descriptors`], for a message that has a list of control messages.
#[inline(never)]
unsafe fn note_descriptors_of(door: Door, header: &msghdr) {
    let note = |fd: i32| {
        if let Some(passed) = connection::at(fd) {
            errno::keep(|| switching::quiesce(&passed, Reason::Passed));
        } else {
            confinement::give_up_kept_bytes(fd);
            // Another process has it, too.
            descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
        }
    };
    let each = |one: &cmsghdr, data: *const u8, len: usize| {
        if (one.cmsg_level, one.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for n in 0..len / size_of::<i32>() {
                // SAFETY: within the message's data.
                note(unsafe { data.cast::<i32>().wrapping_add(n).read_unaligned() });
            }
        }
    };
    // The kernel passes no descriptor of an ill-formed list. SAFETY: the caller of `sendmsg`
    // promises a valid control buffer.
    let _ = unsafe {
        control_messages::each_sent(door, header, |_, _, _| ())
            .and_then(|()| control_messages::each_sent(door, header, each))
    };
}

/// As [`note_descriptors`], for a message in the kernel's form that the kernel will send by itself.
/// It refuses a message with bad pointers.
///
/// # Safety
/// As for [`note_descriptors`].
pub(crate) unsafe fn note_descriptors_of_request(message: *const msghdr) {
    if !message.is_null() && can_read_message(Door::Number, message) {
        // SAFETY: it was just looked at; the rest is the caller's promise.
        unsafe { note_descriptors(Door::Number, &*message) };
    }
}
