//! `poll`, `select` and their kin.

use core::ffi::c_int;

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::express::{listener, published};
use crate::offload::liveness::send_liveness_settings;
use crate::process::{self, descriptors, fd_table_room, kept_bytes};
use crate::system::{errno, faults, real, sys};
use crate::transfer::host_call::Mark;
use crate::waiting::kernel_waits::KernelWait;
use crate::waiting::poll;
use crate::waiting::poll::Survey;

/// A time in nanoseconds, at most `u64::MAX`. `None`: the kernel refuses it (`timespec64_valid` in
/// include/linux/time64.h).
pub(super) fn nanoseconds(time: &timespec) -> Option<u64> {
    let is_valid = time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec);
    is_valid.then(|| {
        let whole = (time.tv_sec as u64).saturating_mul(1_000_000_000);
        whole.saturating_add(time.tv_nsec as u64)
    })
}

/// The limit of a wait from a program's `timespec`; no limit for a null pointer. `Err`: the kernel
/// refuses it, so the call must be made to get the error.
///
/// # Safety
/// Nobody writes `time` meanwhile.
pub(super) unsafe fn limit_of(time: *const timespec) -> Result<Option<u64>, ()> {
    if time.is_null() {
        return Ok(None);
    }
    if !faults::can_read(time, 1) {
        return Err(());
    }
    // SAFETY: it was looked at.
    nanoseconds(unsafe { &*time }).map(Some).ok_or(())
}

/// As [`limit_of`], of `select`: more than a million microseconds are whole seconds
/// (`kern_select` in fs/select.c).
unsafe fn limit_of_select(time: *const timeval) -> Result<Option<u64>, ()> {
    if time.is_null() {
        return Ok(None);
    }
    if !faults::can_read(time, 1) {
        return Err(());
    }
    // SAFETY: it was looked at.
    let time = unsafe { &*time };
    let more = time.tv_usec / 1_000_000;
    let time = timespec {
        tv_sec: time.tv_sec.checked_add(more).ok_or(())?,
        tv_nsec: time.tv_usec % 1_000_000 * 1_000,
    };
    nanoseconds(&time).map(Some).ok_or(())
}

/// True for a time-out of `select(2)` that the kernel refuses, but that libc's function may change
/// into a valid one.
///
/// # Safety
/// It can be read, or is null, and nobody writes it meanwhile.
#[must_use]
pub unsafe fn is_refused(time: *const timeval) -> bool {
    // SAFETY: the caller's promise.
    unsafe { limit_of_select(time) }.is_err()
}

/// A time-out in milliseconds as the C functions give it: negative is none.
pub(super) fn limit_of_ms(timeout_ms: c_int) -> Option<u64> {
    (timeout_ms >= 0).then(|| timeout_ms as u64 * 1_000_000)
}

unsafe fn pollfds<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    send_liveness_settings();
    // If the list is longer than the limit of descriptors, the kernel refuses the call and reads
    // nothing (fs/select.c, `do_sys_poll`). The limit is asked for only if the list is long. A
    // negative count is a very long list.
    let is_long = count > nfds_t::from(libc::FD_SETSIZE as u32);
    let is_too_long = is_long && count > descriptors::descriptor_limit() as nfds_t;
    // Before there are connections, the kernel answers the call. The kernel always answers a bad
    // pointer.
    let is_kernels = !faults::are_armed() || fds.is_null() || is_too_long;
    if is_kernels || !can_answer(fds, count as usize) {
        return &mut [];
    }
    // SAFETY: the caller of the C function promises `count` elements.
    unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }
}

/// True when the elements can be read and written. The kernel always writes all answers.
#[inline]
fn can_answer(fds: *mut pollfd, count: usize) -> bool {
    const IN_PAGE: usize = 4096 / size_of::<pollfd>();
    let can_write = |n: usize| {
        // SAFETY: an address only.
        faults::can_write(unsafe { &raw mut (*fds.wrapping_add(n)).revents }, 1)
    };
    faults::can_read(fds, count)
        && (0..count).step_by(IN_PAGE).all(can_write)
        && count.checked_sub(1).is_none_or(can_write)
}

/// True when the kernel would refuse a time-out, which libc may read before the kernel does.
fn is_bad_time<T>(time: *const T) -> bool {
    !time.is_null() && !faults::can_read(time, 1)
}

/// True when the kernel would refuse a mask of signals. Its masks have eight bytes.
#[inline]
pub(super) fn is_bad_mask(mask: *const sigset_t) -> bool {
    !mask.is_null() && !faults::can_read(mask.cast::<u64>(), 1)
}

#[inline]
fn survey_of(fds: impl Iterator<Item = c_int>) -> Survey {
    if process::is_started() {
        return poll::survey(fds.inspect(|&fd| {
            if published::is_served(fd) {
                errno::keep(|| listener::used_otherwise(fd));
            }
        }));
    }
    Survey {
        concerns: false,
        has_connection: false,
    }
}

/// `poll(2)`.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let list = unsafe { pollfds(fds, count) };
    if kept_bytes::has_any() && kept_bytes::are_ready(list) {
        let found = unsafe { real::poll(fds, count, 0) };
        return kept_bytes::add_ready(list, found);
    }
    let survey = survey_of(list.iter().map(|one| one.fd));
    if !survey.concerns {
        let mark = Mark::default();
        let _waits = KernelWait::begin(survey.has_connection, &mark);
        return unsafe { real::poll(fds, count, timeout_ms) };
    }
    poll::poll(
        list,
        limit_of_ms(timeout_ms),
        poll::kernel_poll(core::ptr::null()),
    )
}

/// `ppoll(2)`.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if is_bad_time(timeout) {
        return errno::bad_pointer() as c_int;
    }
    let list = unsafe { pollfds(fds, count) };
    if kept_bytes::has_any() && kept_bytes::are_ready(list) {
        let found = unsafe { real::ppoll(fds, count, &AT_ONCE, core::ptr::null()) };
        return kept_bytes::add_ready(list, found);
    }
    let survey = survey_of(list.iter().map(|one| one.fd));
    if !survey.concerns {
        let mark = Mark::default();
        let _waits = KernelWait::begin(survey.has_connection, &mark);
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    }
    let Ok(limit) = (unsafe { limit_of(timeout) }) else {
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    };
    if is_bad_mask(mask) {
        return errno::bad_pointer() as c_int;
    }
    poll::poll(list, limit, poll::kernel_poll(mask))
}

const AT_ONCE: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// `select` as the kernel answers it, or, when a descriptor in `read` has kept bytes, with those
/// and what the kernel finds at once.
fn kept_or(
    count: c_int,
    read: &poll::Set,
    waits: impl FnOnce() -> c_int,
    looks: impl FnOnce() -> c_int,
) -> c_int {
    let count = count.min(libc::FD_SETSIZE as c_int);
    if !kept_bytes::has_any() || !kept_bytes::is_any_readable(count, |fd| read.has(fd)) {
        return waits();
    }
    let wanted: [bool; libc::FD_SETSIZE] =
        core::array::from_fn(|fd| read.has(fd as c_int) && kept_bytes::is_readable(fd as c_int));
    let found = looks();
    let kept = (0..count).filter(|&fd| wanted[fd as usize]);
    let added = kept.filter(|&fd| found < 0 || !read.has(fd)).count();
    for fd in (0..count).filter(|&fd| wanted[fd as usize]) {
        read.put(fd);
    }
    found.max(0) + added as c_int
}

/// The number of `count` descriptors that the kernel looks at: at most the size of the process's
/// descriptor table (`core_sys_select` in fs/select.c). Programs may give a count that is larger
/// than their sets.
#[inline]
fn looked_at(count: c_int) -> c_int {
    match count <= fd_table_room::LEAST || !faults::are_armed() {
        true => count,
        false => errno::keep(|| fd_table_room::of(count)),
    }
}

/// True when the kernel would refuse one of the sets. It reads and writes whole words.
fn is_one_bad(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let words = (count.max(0) as usize).div_ceil(64);
    let is_bad = |set: &*mut fd_set| !set.is_null() && !faults::can_write(set.cast::<u64>(), words);
    sets.iter().any(is_bad)
}

fn survey_of_sets(count: c_int, sets: &[poll::Set; 3]) -> Survey {
    send_liveness_settings();
    if !faults::are_armed() {
        return Survey {
            concerns: false,
            has_connection: false,
        };
    }
    survey_of(members(count, sets))
}

/// The descriptors in one of the sets.
fn members(count: c_int, sets: &[poll::Set; 3]) -> impl Iterator<Item = c_int> {
    (0..count).filter(|&fd| sets.iter().any(|set| set.has(fd)))
}

/// Calls libc's function with a copy of the time-out, and writes the result back itself: for the
/// kernel a time-out that cannot be written is no error (`poll_select_finish` in fs/select.c).
unsafe fn select_of_libc(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    if timeout.is_null() || !faults::are_armed() {
        return unsafe { real::select(count, read, write, except, timeout) };
    }
    let mut time = unsafe { timeout.read_unaligned() };
    let result = unsafe { real::select(count, read, write, except, &mut time) };
    let _ = unsafe { faults::put(time, timeout) };
    result
}

/// `select(2)`; like Linux it leaves the time not slept in `timeout`.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = unsafe { [read, write, except].map(|set| poll::Set::new(set)) };
    let looked = looked_at(count);
    if is_bad_time(timeout) || is_one_bad(looked, [read, write, except]) {
        return errno::bad_pointer() as c_int;
    }
    let survey = survey_of_sets(looked, &sets);
    if !survey.concerns {
        let kernel =
            |time: *mut timeval| unsafe { select_of_libc(count, read, write, except, time) };
        let mut now = timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let mark = Mark::default();
        let _waits = KernelWait::begin(survey.has_connection, &mark);
        return kept_or(looked, &sets[0], || kernel(timeout), || kernel(&mut now));
    }
    let Ok(limit) = (unsafe { limit_of_select(timeout) }) else {
        return unsafe { real::select(count, read, write, except, timeout) };
    };
    let start = sys::now_ns();
    let result = poll::select(looked, &sets, limit, poll::kernel_poll(core::ptr::null()));
    // A time that does not fit into 64 bits of nanoseconds is left unchanged.
    if let Some(limit) = limit.filter(|&limit| limit < u64::MAX) {
        let left = limit.saturating_sub(sys::now_ns() - start) / 1_000;
        let left = timeval {
            tv_sec: (left / 1_000_000) as libc::time_t,
            tv_usec: (left % 1_000_000) as libc::suseconds_t,
        };
        // A time-out that cannot be written does not change the answer (`poll_select_finish` in
        // fs/select.c).
        let _ = unsafe { faults::put(left, timeout) };
    }
    result
}

/// `pselect(2)`.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = unsafe { [read, write, except].map(|set| poll::Set::new(set)) };
    let looked = looked_at(count);
    if is_bad_time(timeout) || is_one_bad(looked, [read, write, except]) {
        return errno::bad_pointer() as c_int;
    }
    let survey = survey_of_sets(looked, &sets);
    if !survey.concerns {
        let kernel = |time: *const timespec| unsafe {
            real::pselect(count, read, write, except, time, mask)
        };
        let mark = Mark::default();
        let _waits = KernelWait::begin(survey.has_connection, &mark);
        return kept_or(looked, &sets[0], || kernel(timeout), || kernel(&AT_ONCE));
    }
    let Ok(limit) = (unsafe { limit_of(timeout) }) else {
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    };
    if is_bad_mask(mask) {
        return errno::bad_pointer() as c_int;
    }
    poll::select(looked, &sets, limit, poll::kernel_poll(mask))
}
