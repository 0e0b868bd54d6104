//! epoll's calls.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t, timespec};
use toehold_channel::table::{Reason, WaitMode};
use toehold_freestanding::guarded;

use crate::api::readiness::is_bad_mask;
use crate::api::readiness::{limit_of, limit_of_ms};
use crate::connection;
use crate::direction::switching;
use crate::epoll::instance::Instance;
use crate::epoll::kernel_wait::{self, Before};
use crate::epoll::waiting;
use crate::epoll::{control, first_wait, lifetime};
use crate::express::listener;
use crate::offload::liveness::send_liveness_settings;
use crate::process::descriptors::{self, Kind};
use crate::process::pair_doorbells::Claim;
use crate::process::{self, kept_bytes};
use crate::system::{cancellation, errno, faults, real, sys};
use crate::waiting::sleep;

/// The program's event, if it can be read.
///
/// # Safety
/// Nobody writes it meanwhile.
#[inline]
unsafe fn event_at(event: *const epoll_event) -> Option<epoll_event> {
    let is_there = !event.is_null() && faults::is_there(event);
    // SAFETY: it was looked at; the caller's promise.
    is_there.then(|| unsafe { event.read_unaligned() })
}

/// `epoll_create(2)`.
pub unsafe fn epoll_create(size: c_int) -> c_int {
    let fd = unsafe { real::epoll_create(size) };
    note_epoll(fd);
    fd
}

/// `epoll_create1(2)`.
pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    let fd = unsafe { real::epoll_create1(flags) };
    note_epoll(fd);
    fd
}

fn note_epoll(fd: c_int) {
    if fd >= 0 && process::is_started() && !process::borrowed_memory() {
        lifetime::created(fd);
    }
}

/// `epoll_ctl(2)`.
#[inline]
pub unsafe fn epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if let Some(number) = descriptors::epoll_number(epfd) {
        let given = unsafe { event_at(event) };
        if let Some(answer) = errno::keep(|| control::control(number, epfd, operation, fd, given)) {
            return errno::result(answer.map(|()| 0)) as c_int;
        }
    }
    let result = unsafe { real::epoll_ctl(epfd, operation, fd, event) };
    if result == 0 && listener::are_any() {
        let number = descriptors::epoll_number(epfd).unwrap_or(u32::MAX);
        let given = unsafe { event_at(event) };
        errno::keep(|| listener::controlled(number, operation, fd, given.as_ref()));
    }
    if result == 0 && kept_bytes::has_any() {
        let given = unsafe { event_at(event) };
        kept_bytes::control(epfd, operation, fd, given);
    }
    if result == 0
        && operation == libc::EPOLL_CTL_ADD
        && process::is_started()
        && descriptors::epoll_number(epfd).is_none()
        && !process::borrowed_memory()
    {
        errno::keep(|| waits_elsewhere(fd));
    }
    result
}

unsafe fn wait_on(
    instance: Instance,
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    limit: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    // There is an instance, so bad pointers are answered.
    let Some(count) = places(events, count as usize) else {
        return errno::bad_pointer() as c_int;
    };
    if is_bad_mask(mask) {
        return errno::bad_pointer() as c_int;
    }
    // SAFETY: the caller of the C function promises that the elements are its own.
    let list = unsafe { core::slice::from_raw_parts_mut(events, count) };
    waiting::wait(instance, list, limit, |buffer, sleep| {
        let mut at = instance.descriptor(epfd);
        let len = buffer.len() as c_int;
        let answer = buffer.as_mut_ptr().cast();
        let (mut limit, mut mask) = (sleep.limit_ns, mask);
        if let Some(doorbells) = sleep.doorbells.filter(|_| limit != Some(0)) {
            // SAFETY: the mask is the program's own.
            let result = unsafe { sleep_on_doorbells(at, doorbells, limit, mask) };
            if result < 0 {
                return result;
            }
            (limit, mask) = (Some(0), core::ptr::null());
            if !instance.is_open() {
                let Some(left) = doorbells.left_behind() else {
                    return waiting::closed();
                };
                // SAFETY: the buffer is valid.
                return unsafe { real::epoll_wait(left.descriptor(), answer, len, 0) };
            }
            if result == 0 {
                return 0;
            }
            at = instance.descriptor(epfd);
        }
        // Rounded up, so that we never return early and spin for the rest of a millisecond.
        let ms = limit.map_or(-1, |ns| {
            ns.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int
        });
        // SAFETY: the buffer is valid; the mask is the program's own.
        unsafe {
            if ms == 0 && !mask.is_null() && process::wait_mode() == WaitMode::Poll {
                // `epoll_pwait` with a time-out of 0 handles no signals (fs/eventpoll.c,
                // `ep_poll`). This call does (fs/select.c), and no other call will before there is
                // an event.
                let now = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                if real::ppoll(core::ptr::null_mut(), 0, &now, mask) < 0 {
                    return -1;
                }
            }
            if mask.is_null() {
                real::epoll_wait(at, answer, len, ms)
            } else {
                real::epoll_pwait(at, answer, len, ms, mask)
            }
        }
    })
}

/// Sleeps until the instance at `epfd` has an event, or a pair's doorbell rings. Returns 1 when the
/// instance has to be asked for its events, 0 when it has none, and -1 for an error.
///
/// # Safety
/// `mask` is null, or is as `ppoll` wants it.
unsafe fn sleep_on_doorbells(
    epfd: c_int,
    doorbells: &Claim,
    limit: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    let mut both = [sleep::place(epfd, libc::POLLIN), doorbells.place()];
    let time = limit.map(sys::timespec);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: two elements, and a time that is null or alive; the mask is the caller's promise.
    let result = unsafe { real::ppoll(both.as_mut_ptr(), 2, time, mask) };
    if result > 0 {
        if !doorbells.take_from(both[1]) && both[1].revents == 0 {
            doorbells.note_instance();
        }
        return c_int::from(both[0].revents != 0);
    }
    result
}

/// The number of the `count` places for events that can be written. The kernel notices a bad page
/// only when it has an event for it. `None` when no place can be written.
#[inline]
fn places(events: *mut epoll_event, count: usize) -> Option<usize> {
    const PAGE_BYTES: usize = 4096;
    let first = events as usize;
    guarded::touch(first).ok()?;
    let bytes = count * size_of::<epoll_event>();
    let mut there = PAGE_BYTES - first % PAGE_BYTES;
    while there < bytes {
        if guarded::touch(first + there).is_err() {
            let whole = there / size_of::<epoll_event>();
            return (whole > 0).then_some(whole);
        }
        there += PAGE_BYTES;
    }
    Some(count)
}

/// The instance of a wait, if the library knows it and the arguments are valid.
#[inline(always)]
fn instance_at(epfd: c_int, count: c_int) -> Option<Instance> {
    send_liveness_settings();
    // The kernel refuses more events (`EP_MAX_EVENTS` in fs/eventpoll.c).
    const EVENTS_MAX: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;
    Instance::at(epfd)
        .filter(|_| (1..=EVENTS_MAX).contains(&count))
        .inspect(|instance| first_wait::note(*instance))
}

/// The events that are ready at once, when a member has kept bytes. `look` makes the program's call
/// with a time-out of 0.
#[inline]
unsafe fn kept_members(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    look: impl FnOnce() -> c_int,
) -> Option<c_int> {
    if !kept_bytes::has_any() || count <= 0 || !kept_bytes::has_ready_members(epfd) {
        return None;
    }
    let Some(count) = places(events, count as usize) else {
        return Some(errno::bad_pointer() as c_int);
    };
    let found = look();
    // SAFETY: the caller of the C function promises that the elements are its own.
    let list = unsafe { core::slice::from_raw_parts_mut(events, count) };
    Some(kept_bytes::add_events(epfd, list, found))
}

/// Waits in the kernel by calling `kernel`, and drops events of registrations that another thread
/// has moved to the library meanwhile. `None`: no event is left, so wait again.
unsafe fn wait_in_kernel(
    known: Option<Instance>,
    events: *mut epoll_event,
    count: c_int,
    is_look: bool,
    kernel: impl FnOnce() -> c_int,
) -> Option<c_int> {
    let Some(instance) = known else {
        return Some(kernel());
    };
    let mut before = Before::none();
    let result = if is_look {
        kernel()
    } else {
        before = Before::of(events, count as usize);
        let wait = kernel_wait::begin_kernel_wait(instance)?;
        cancellation::sleeping(|| wait.end(), kernel)
    };
    if result <= 0 {
        return Some(result);
    }
    // SAFETY: the caller of the C function promises `count` writable elements.
    let list = unsafe { core::slice::from_raw_parts_mut(events, count as usize) };
    kernel_wait::after_kernel_wait(instance, list, result as usize, &before)
}

/// `epoll_wait(2)`.
#[inline]
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    match instance_at(epfd, count) {
        Some(instance) if instance.needs_library() => unsafe {
            wait_on(
                instance,
                epfd,
                events,
                count,
                limit_of_ms(timeout_ms),
                core::ptr::null(),
            )
        },
        known => {
            if let Some(found) = unsafe {
                kept_members(epfd, events, count, || {
                    real::epoll_wait(epfd, events, count, 0)
                })
            } {
                return found;
            }
            let kernel = || unsafe { real::epoll_wait(epfd, events, count, timeout_ms) };
            match unsafe { wait_in_kernel(known, events, count, timeout_ms == 0, kernel) } {
                Some(result) => result,
                None => unsafe { epoll_wait(epfd, events, count, timeout_ms) },
            }
        }
    }
}

/// `epoll_pwait(2)`.
#[inline]
pub unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    match instance_at(epfd, count) {
        Some(instance) if instance.needs_library() => unsafe {
            wait_on(instance, epfd, events, count, limit_of_ms(timeout_ms), mask)
        },
        known => {
            if let Some(found) = unsafe {
                kept_members(epfd, events, count, || {
                    real::epoll_pwait(epfd, events, count, 0, mask)
                })
            } {
                return found;
            }
            let kernel = || unsafe { real::epoll_pwait(epfd, events, count, timeout_ms, mask) };
            match unsafe { wait_in_kernel(known, events, count, timeout_ms == 0, kernel) } {
                Some(result) => result,
                None => unsafe { epoll_pwait(epfd, events, count, timeout_ms, mask) },
            }
        }
    }
}

/// `epoll_pwait2(2)`.
pub unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let Ok(limit) = (unsafe { limit_of(timeout) }) else {
        return unsafe { real::epoll_pwait2(epfd, events, count, timeout, mask) };
    };
    match instance_at(epfd, count) {
        Some(instance) if instance.needs_library() => unsafe {
            wait_on(instance, epfd, events, count, limit, mask)
        },
        known => {
            let is_look = limit == Some(0);
            let now = timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if let Some(found) = unsafe {
                kept_members(epfd, events, count, || {
                    real::epoll_pwait2(epfd, events, count, &now, mask)
                })
            } {
                return found;
            }
            let kernel = || unsafe { real::epoll_pwait2(epfd, events, count, timeout, mask) };
            match unsafe { wait_in_kernel(known, events, count, is_look, kernel) } {
                Some(result) => result,
                None => unsafe { epoll_pwait2(epfd, events, count, timeout, mask) },
            }
        }
    }
}

/// The program has registered `fd` with an epoll instance that the library does not know. Only the
/// kernel can answer that registration.
#[cold]
fn waits_elsewhere(fd: i32) {
    match descriptors::kind(fd) {
        Kind::Connection => {
            if let Some(connection) = connection::at(fd) {
                switching::retire(&connection, Reason::UnseenWaits);
            }
        }
        Kind::Foreign => descriptors::note_unseen(fd),
        Kind::Epoll | Kind::Own => {}
    }
}
