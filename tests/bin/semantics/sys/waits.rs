//! select, poll and epoll.

use std::ffi::c_int;
use std::{fmt, mem, ptr};

use super::{Fd, Ret, past_libc, ret};

/// A file descriptor set with `fds` in it.
fn set_of(fds: &[Fd]) -> libc::fd_set {
    // SAFETY: a set of zeroes is the empty set.
    let mut set: libc::fd_set = unsafe { mem::zeroed() };
    for &fd in fds {
        // SAFETY: the cases' descriptors are below FD_SETSIZE.
        unsafe { libc::FD_SET(fd, &mut set) };
    }
    set
}

/// The indices of those `fds` that are in `set`.
fn members(set: &libc::fd_set, fds: &[Fd]) -> Vec<usize> {
    // SAFETY: the cases' descriptors are below FD_SETSIZE.
    (0..fds.len())
        .filter(|&index| unsafe { libc::FD_ISSET(fds[index], set) })
        .collect()
}

/// The result of a select, and the indices of the readable and the writable descriptors.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(crate) result: Ret,
    pub(crate) readable: Vec<usize>,
    pub(crate) writable: Vec<usize>,
}

impl fmt::Display for Selected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} read {:?} write {:?}",
            self.result, self.readable, self.writable
        )
    }
}

/// select or pselect, with the given descriptors for reading and writing.
pub(crate) fn select(
    read: &[Fd],
    write: &[Fd],
    timeout_ms: Option<i64>,
    pselect: bool,
) -> Selected {
    let (mut reads, mut writes) = (set_of(read), set_of(write));
    let limit = read.iter().chain(write).max().map_or(0, |fd| fd + 1);
    let result = if pselect {
        let time = timeout_ms.map(timespec);
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the sets and the time outlive the call; no exceptional set, no mask.
        ret(unsafe {
            libc::pselect(
                limit,
                &mut reads,
                &mut writes,
                ptr::null_mut(),
                time,
                ptr::null(),
            )
        })
    } else {
        let mut time = timeout_ms.map(|ms| libc::timeval {
            tv_sec: ms / 1000,
            tv_usec: ms % 1000 * 1000,
        });
        let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the sets and the time outlive the call; no exceptional set.
        ret(unsafe { libc::select(limit, &mut reads, &mut writes, ptr::null_mut(), time) })
    };
    let found = result.0.is_ok();
    Selected {
        result,
        readable: if found {
            members(&reads, read)
        } else {
            Vec::new()
        },
        writable: if found {
            members(&writes, write)
        } else {
            Vec::new()
        },
    }
}

pub(crate) fn timespec(ms: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    }
}

/// poll of (descriptor, wanted events): the result, and the events found.
pub(crate) fn poll(wanted: &[(Fd, i16)], timeout_ms: c_int) -> (Ret, Vec<i16>) {
    let mut list = poll_list(wanted);
    // SAFETY: the list outlives the call.
    let result =
        ret(unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, timeout_ms) });
    (result, list.iter().map(|entry| entry.revents).collect())
}

/// Like [`poll`], by ppoll.
pub(crate) fn ppoll(wanted: &[(Fd, i16)], timeout_ms: i64) -> (Ret, Vec<i16>) {
    let mut list = poll_list(wanted);
    let time = timespec(timeout_ms);
    // SAFETY: the list and the time outlive the call; no mask.
    let result = ret(unsafe {
        libc::ppoll(
            list.as_mut_ptr(),
            list.len() as libc::nfds_t,
            &time,
            ptr::null(),
        )
    });
    (result, list.iter().map(|entry| entry.revents).collect())
}

fn poll_list(wanted: &[(Fd, i16)]) -> Vec<libc::pollfd> {
    wanted
        .iter()
        .map(|&(fd, events)| libc::pollfd {
            fd,
            events,
            revents: 0,
        })
        .collect()
}

pub(crate) fn epoll_create() -> Fd {
    // SAFETY: takes no pointers.
    ret(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).fd()
}

pub(crate) fn epoll_ctl(epoll: Fd, operation: c_int, fd: Fd, events: c_int, data: u64) -> Ret {
    let mut event = libc::epoll_event {
        events: events.cast_unsigned(),
        u64: data,
    };
    // SAFETY: `event` outlives the call.
    ret(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) })
}

/// The result of an epoll_wait: (data, events) in ascending order of data.
pub(crate) fn epoll_wait(epoll: Fd, max: usize, timeout_ms: c_int) -> (Ret, Vec<(u64, u32)>) {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
    epoll_wait_in(epoll, &mut events, timeout_ms)
}

/// Like [`epoll_wait`], with the caller's array.
pub(crate) fn epoll_wait_in(
    epoll: Fd,
    events: &mut [libc::epoll_event],
    timeout_ms: c_int,
) -> (Ret, Vec<(u64, u32)>) {
    let max = c_int::try_from(events.len()).expect("few");
    // SAFETY: `events` has room for `max` events.
    let result = ret(unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), max, timeout_ms) });
    (result, sorted(events, result))
}

/// epoll_pwait with a signal mask, or epoll_pwait2 with its finer time-out if `ns` is given.
pub(crate) fn epoll_pwait(
    epoll: Fd,
    timeout_ms: c_int,
    mask: Option<&libc::sigset_t>,
    ns: Option<i64>,
) -> (Ret, Vec<(u64, u32)>) {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 16];
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    let result = match ns {
        // SAFETY: `events` has room for 16 events; the mask outlives the call.
        None => ret(unsafe { libc::epoll_pwait(epoll, events.as_mut_ptr(), 16, timeout_ms, mask) }),
        Some(ns) => {
            let time = libc::timespec {
                tv_sec: ns / 1_000_000_000,
                tv_nsec: ns % 1_000_000_000,
            };
            // SAFETY: `events` has room for 16 events; the time and the mask outlive the call.
            ret(unsafe { epoll_pwait2(epoll, events.as_mut_ptr(), 16, &time, mask) })
        }
    };
    (result, sorted(&events, result))
}

fn sorted(events: &[libc::epoll_event], result: Ret) -> Vec<(u64, u32)> {
    let mut found: Vec<(u64, u32)> = events[..result.len()]
        .iter()
        .map(|event| (event.u64, event.events))
        .collect();
    found.sort_unstable();
    found
}

unsafe extern "C" {
    fn epoll_pwait2(
        epoll: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn __poll_chk(
        list: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: c_int,
        room: usize,
    ) -> c_int;
}

/// poll, as a program built with _FORTIFY_SOURCE calls it.
pub(crate) fn poll_chk(wanted: &[(Fd, i16)], timeout_ms: c_int) -> (Ret, Vec<i16>) {
    let mut list = poll_list(wanted);
    let room = mem::size_of_val(list.as_slice());
    // SAFETY: the list outlives the call and is `room` bytes long.
    let result = ret(unsafe {
        __poll_chk(
            list.as_mut_ptr(),
            list.len() as libc::nfds_t,
            timeout_ms,
            room,
        )
    });
    (result, list.iter().map(|entry| entry.revents).collect())
}

/// The events of one descriptor, by a `ppoll` that no library can intercept.
pub(crate) fn poll_past_libc(fd: Fd, events: i16, timeout_ms: i64) -> i16 {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut time = timespec(timeout_ms);
    let (one_at, time_at) = (&raw mut one as usize, &raw mut time as usize);
    // SAFETY: one live `pollfd` and one live time, which the kernel may write; no mask.
    unsafe { past_libc(libc::SYS_ppoll, [one_at, 1, time_at, 0, 0, 0]) }.value();
    one.revents
}

/// The result of an `epoll_pwait` that no library can intercept: (data, events).
pub(crate) fn epoll_wait_past_libc(epoll: Fd, timeout_ms: i64) -> Vec<(u64, u32)> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let (at, count) = (events.as_mut_ptr() as usize, events.len());
    let (epoll, timeout) = (epoll as usize, timeout_ms as usize);
    // SAFETY: the kernel may write the events, and there is no mask.
    let result = unsafe { past_libc(libc::SYS_epoll_pwait, [epoll, at, count, timeout, 0, 0]) };
    sorted(&events, result)
}
