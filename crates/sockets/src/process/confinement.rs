//! Leaves a program that restricts its own system calls (seccomp(2)).
//!
//! The library makes system calls that the program does not make, and a filter may kill the process
//! for one of them. So the library leaves before a filter is set. Every connection goes to the
//! kernel for good, and from then on each call is passed on unchanged. Unread bytes in a ring
//! cannot go back to the kernel, so they are kept in memory ([`crate::process::kept_bytes`]).
//!
//! It leaves in the same way before a program gets children in another pid namespace, and when it
//! cannot see the program's requests to the kernel ([`crate::uring`]).

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::iovec;
use toehold_channel::table::{EntryState, Mode, Reason};
use toehold_freestanding::memory;

use crate::connection::orderings::STATE_RELEASE;
use crate::connection::{self, Connection};
use crate::direction::switching;
use crate::epoll::membership;
use crate::offload::liveness::send_liveness_settings;
use crate::offload::routing;
use crate::process::descriptors::{self, Kind};
use crate::process::kept_bytes::{self, BYTES_MAX, BYTES_OFFSET, Kept};
use crate::process::{self, holders, table};
use crate::system::{errno, real, sys};
use crate::transfer::receive::receive;
use crate::{adapter, express};

/// Time within which a peer finishes a send that was in progress when we refused the channel.
const SETTLE_NS: u64 = 4_000_000;

static CONFINED: AtomicBool = AtomicBool::new(false);

/// This process is a forked child of the one that the library has left.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// True when the library has left because of a filter: it makes no system calls of its own.
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// True when this process has no more filters than `known`, the number under which `toehold run`
/// was started. Those filters are harmless: the adapter, which that command starts, makes the same
/// system calls.
#[unsafe(link_section = ".text.startup")]
pub fn is_allowed(known: u32) -> bool {
    filters() <= known
}

/// The number of filters that this process has; if the kernel does not count them, 1 for any
/// number.
fn filters() -> u32 {
    let (mut mode, mut count) = (0, None);
    each_line_of_status(|text, number| {
        if text.starts_with(b"Seccomp:") {
            mode = number;
        } else if text.starts_with(b"Seccomp_filters:") {
            count = Some(number);
        }
    });
    count.unwrap_or(u32::from(mode != 0))
}

/// Whether this process has other threads; true when that is not known.
fn has_other_threads() -> bool {
    let mut threads = u32::MAX;
    each_line_of_status(|text, number| {
        if text.starts_with(b"Threads:") {
            threads = number;
        }
    });
    threads > 1
}

/// True when another process traces this one: a debugger, strace or proot.
#[must_use]
pub fn is_traced() -> bool {
    let mut tracer = 0;
    each_line_of_status(|text, number| {
        if text.starts_with(b"TracerPid:") {
            tracer = number;
        }
    });
    tracer != 0
}

/// Calls `each` with the beginning of each line of `/proc/self/status` (proc(5)), and its digits as
/// a number.
fn each_line_of_status(mut each: impl FnMut(&[u8], u32)) {
    let (mut line, mut len) = ([0u8; 32], 0);
    sys::each_byte(c"/proc/self/status", |byte| {
        if byte != b'\n' {
            if let Some(place) = line.get_mut(len) {
                *place = byte;
                len += 1;
            }
            return;
        }
        let text = &line[..len];
        let digits = text.iter().filter(|byte| byte.is_ascii_digit());
        let number = digits.fold(0u32, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add(u32::from(digit - b'0'))
        });
        each(text, number);
        len = 0;
    });
}

/// True when this thread already has filters. (In strict mode this question itself would kill the
/// process.)
#[must_use]
pub fn has_filters() -> bool {
    // SAFETY: no memory is involved.
    let mode = unsafe {
        sys::raw(
            libc::SYS_prctl,
            libc::PR_GET_SECCOMP as usize,
            0,
            0,
            0,
            0,
            0,
        )
    };
    mode == libc::SECCOMP_MODE_FILTER as isize
}

/// True when the kernel lets this thread set a filter: it has set `no_new_privs`, or has
/// `CAP_SYS_ADMIN` (`seccomp_prepare_filter` in kernel/seccomp.c).
#[must_use]
pub fn may_confine() -> bool {
    let asks = libc::PR_GET_NO_NEW_PRIVS as usize;
    // SAFETY: no memory is involved.
    let gets_none = unsafe { sys::raw(libc::SYS_prctl, asks, 0, 0, 0, 0, 0) };
    gets_none != 0 || sys::has_right(sys::Right::Administer)
}

/// The program is about to set a filter: this is the last moment for system calls of the library.
pub fn confine() {
    if leave_process(Reason::Confined) {
        CONFINED.store(true, Ordering::Relaxed);
    }
}

/// The children of this process are going to be in another pid namespace. The family's locks name
/// their owners by process number, and there the number means another process, or none.
pub fn leave_to_namespaces() {
    leave_process(Reason::Shared);
}

/// A thread of this process is about to have another network namespace, or fewer rights to connect
/// (landlock(7)). Carriers and kept sockets belong to the namespace in which they were made, and
/// the kernel checks rights when a socket connects. Each thread has its own namespace and rights,
/// so this process can use neither of them any more.
pub fn leave_connecting_to_kernel() {
    if process::is_started() && !process::borrowed_memory() {
        errno::keep(express::end);
    }
}

/// A thread of this process is about to get its own table of descriptors (`CLONE_FILES`): from then
/// on a number may mean two files, and a number that one thread has closed may still be open in
/// another.
pub fn leave_to_own_descriptors() {
    if process::is_started() && !process::borrowed_memory() && has_other_threads() {
        leave_process(Reason::Unsupported);
    }
}

/// The program is about to limit the numbers of its descriptors to those below `limit`
/// (`RLIMIT_NOFILE`). The kernel then refuses each `poll` of more places, also one of the library.
pub fn leave_without_descriptors(limit: u64) {
    /// More than the places in a `poll` of the library's own.
    const LIMIT_MIN: u64 = 4;
    if limit < LIMIT_MIN {
        leave_process(Reason::NoResources);
    }
}

/// Moves every connection of this process to the kernel for good, and stops serving the process.
/// False when the library did not serve it.
pub(crate) fn leave_process(reason: Reason) -> bool {
    if !process::is_started() || process::borrowed_memory() {
        return false;
    }
    errno::keep(|| {
        express::end();
        send_liveness_settings();
        descriptors::for_each(0, u32::MAX, |fd, kind| {
            if kind == Kind::Connection
                && let Some(connection) = connection::at(fd)
            {
                leave(&connection, reason);
            }
        });
        membership::leave_to_kernel();
        routing::stop();
        forget_all();
    });
    true
}

/// The most threads whose `vfork` is noted at a time.
const IN_VFORK_MAX: usize = 16;

/// Threads that wait in `vfork` for a child, by their numbers ([`errno::thread`]); 0: free. The
/// child has its parent's number and memory until it executes a program or ends. Relaxed
/// everywhere: a thread and its child look for their own number only, and never at the same time.
static IN_VFORK: [AtomicUsize; IN_VFORK_MAX] = [const { AtomicUsize::new(0) }; IN_VFORK_MAX];

/// This thread is about to call `vfork`. True when that is noted, because a filter may forbid the
/// child to ask for its process number. Then [`end_vfork`] follows in the parent.
#[must_use]
pub fn begin_vfork() -> bool {
    let me = errno::thread();
    let note = |place: &AtomicUsize| {
        (place.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed)).is_ok()
    };
    is_confined() && kept_bytes::has_any() && IN_VFORK.iter().any(note)
}

/// The `vfork` of this thread has returned in the parent, or has failed. (A child may have called
/// `vfork`, too: so one note is taken back.)
pub fn end_vfork() {
    let me = errno::thread();
    let mut noted = IN_VFORK.iter();
    if let Some(place) = noted.find(|place| place.load(Ordering::Relaxed) == me) {
        place.store(0, Ordering::Relaxed);
    }
}

/// This process, which the library has left, is a forked child: threads that wait in `vfork` exist
/// only in the parent.
pub(crate) fn forked() {
    IS_CHILD.store(true, Ordering::Relaxed);
    for place in &IN_VFORK {
        place.store(0, Ordering::Relaxed);
    }
}

/// True in a `vfork` child of a process that the library has left: kept bytes belong to the parent
/// ([`process::borrowed_memory`]).
pub(crate) fn is_guest() -> bool {
    if is_confined() {
        let me = errno::thread();
        let is_noted = |place: &AtomicUsize| place.load(Ordering::Relaxed) == me;
        return IN_VFORK.iter().any(is_noted);
    }
    !process::is_started() && sys::getpid() != process::pid()
}

/// The program is about to execute another one, which will not find the kept bytes of descriptors
/// that stay open. Connections of a forked child that are not standard streams are probably leaked
/// ([`crate::process::handover`]). Makes system calls for such a connection only: it cannot go on
/// without them, whatever a filter does to the program for them.
pub fn before_exec_with_kept_bytes() {
    if !kept_bytes::has_any() {
        return;
    }
    let is_child = IS_CHILD.load(Ordering::Relaxed) || is_guest();
    kept_bytes::each(|fd, closes_on_exec| {
        if !closes_on_exec && (fd < 3 || !is_child) {
            give_up_kept_bytes(fd);
        }
    });
}

/// Somebody who does not know of kept bytes is going to read from `fd`. As where bytes are left in
/// a ring ([`switching::quiesce`]), the connection is reset rather than continued with a gap.
pub(crate) fn give_up_kept_bytes(fd: i32) {
    if kept_bytes::has_any() && kept_bytes::drop_unread(fd) {
        errno::keep(|| sys::disconnect(fd));
    }
}

/// Moves both directions to the kernel, and keeps unread bytes.
fn leave(connection: &Connection, reason: Reason) {
    if !connection.local.attachment.has_region() {
        // An earlier channel may have left an offer: `forget_all` forgets it.
        connection.pin(reason);
        membership::give_to_kernel(connection);
        return;
    }
    if reason == Reason::UnseenWaits {
        // Calls that the library does not see would read past kept bytes, so unread bytes come
        // again on the carrier.
        switching::quiesce(connection, reason);
        return;
    }
    switching::leave_ring(connection, reason);
    let bytes = read_all(connection);
    switching::quiesce(connection, reason);
    // SAFETY: mapped by `read_all`, and never unmapped.
    let Some(all) = (unsafe { bytes.as_ref() }) else {
        return;
    };
    if all.len.load(Ordering::Relaxed) == 0 && all.error.load(Ordering::Relaxed) == 0 {
        // SAFETY: mapped by `read_all` with this length, and shown to nobody.
        unsafe { memory::unmap(bytes.cast(), BYTES_OFFSET + BYTES_MAX) };
        return;
    }
    descriptors::for_each(0, u32::MAX, |fd, _| {
        let same = connection::at(fd).is_some_and(|c| c.index == connection.index);
        if !same {
            return;
        }
        let flags = sys::fcntl(fd, libc::F_GETFD, 0);
        let closes_on_exec = flags & libc::FD_CLOEXEC as isize != 0;
        match kept_bytes::enter(fd, bytes, closes_on_exec) {
            Some(descriptor) => {
                membership::each_instance(connection, fd, |instance, events, data| {
                    descriptor.register(instance, events, data);
                })
            }
            None => sys::disconnect(fd),
        }
    });
}

/// Reads until the peer has moved to the carrier, or had enough time for it. Null when there is no
/// memory: then unread bytes cause a reset ([`switching::quiesce`]).
fn read_all(connection: &Connection) -> *mut Kept {
    let base = sys::map_shared_memory(BYTES_OFFSET + BYTES_MAX);
    let kept = base.cast::<Kept>();
    // SAFETY: zeroes are a valid `Kept`; mapped above.
    let Some(all) = (unsafe { kept.as_ref() }) else {
        return kept;
    };
    let (mut len, start) = (0, sys::now_ns());
    loop {
        let (at, room) = (base.wrapping_add(BYTES_OFFSET + len), BYTES_MAX - len);
        let part = [iovec {
            iov_base: at.cast(),
            iov_len: room,
        }];
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the part is inside the mapping, here and in the kernel's own call.
        let got = unsafe {
            receive(connection, &part, flags, |fd| {
                real::recv(fd, at.cast(), room, flags)
            })
        };
        if got > 0 {
            len += got as usize;
        }
        if got == 0 || len == BYTES_MAX {
            break;
        }
        if got < 0 && errno::get() != libc::EAGAIN {
            all.error.store(errno::get(), Ordering::Relaxed);
            break;
        }
        let is_down = (connection.end())
            .is_none_or(|end| end.rx_mode() == Mode::Carrier && !end.records_pending());
        if is_down || got < 0 && sys::now_ns() - start >= SETTLE_NS {
            break;
        }
        if got < 0 {
            sys::yield_now();
        }
    }
    all.len.store(len as u64, Ordering::Relaxed);
    kept
}

/// Forgets all descriptors, and makes no system calls from now on. The connections are on their
/// carriers.
fn forget_all() {
    connection::each_held(|_, entry, local| {
        local.descriptors.store(0, Ordering::Relaxed);
        if holders::leave(entry) {
            // The entry is free only once this process is gone, because threads may still be
            // inside.
            let ended = EntryState::Ended as u32;
            entry.state.store(ended, STATE_RELEASE);
        }
    });
    holders::leave_family(process::pid());
    // Done before the descriptors are forgotten, so that new descriptors are not recorded.
    process::disable();
    descriptors::forget_all();
    adapter::leave();
    let table = table::fd();
    if table >= 0 {
        table::moved(table, -1);
        sys::close(table);
    }
}
