//! Waits with a precise end: epoll_wait(2) counts in milliseconds.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::event_loop::{self, EVENTS};
use super::socket::check;

/// An epoll instance whose waits are ended by a timer. A busy loop until the deadline would use a
/// processor that the measured programs need.
pub(super) struct Alarm {
    epoll: OwnedFd,
    timer: OwnedFd,
    set_to: Option<Instant>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let epoll = event_loop::epoll()?;
        // SAFETY: takes integers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        check(fd)?;
        // SAFETY: the call returned a new descriptor that nothing else owns.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        // Edge-triggered: the event is reported once, so the timer need not be read.
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: RINGS,
        };
        // SAFETY: `event` is complete; the kernel only reads it.
        check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) })?;
        Ok(Alarm {
            epoll,
            timer,
            set_to: None,
        })
    }

    pub(super) fn epoll(&self) -> libc::c_int {
        self.epoll.as_raw_fd()
    }

    /// The events of other descriptors; waits at most until `until`.
    pub(super) fn wait<'a>(
        &mut self,
        events: &'a mut [libc::epoll_event; EVENTS],
        until: Instant,
    ) -> io::Result<&'a [libc::epoll_event]> {
        let left = until.saturating_duration_since(Instant::now());
        let millis = if left.is_zero() {
            0
        } else {
            if self.set_to != Some(until) {
                self.set(left)?;
                self.set_to = Some(until);
            }
            -1
        };
        let count = event_loop::wait(self.epoll(), events, millis)?;
        let own = events[..count].iter().position(|event| event.u64 == RINGS);
        if let Some(at) = own {
            events.swap(at, count - 1);
            return Ok(&events[..count - 1]);
        }
        Ok(&events[..count])
    }

    fn set(&self, left: Duration) -> io::Result<()> {
        // SAFETY: zeroes are a valid value: it rings once.
        let mut timer: libc::itimerspec = unsafe { std::mem::zeroed() };
        timer.it_value.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
        timer.it_value.tv_nsec = left.subsec_nanos().into();
        // SAFETY: `timer` is complete; the kernel only reads it, and is not asked for the old one.
        check(unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), 0, &timer, std::ptr::null_mut())
        })
    }
}

/// The timer's own event; others carry an index.
const RINGS: u64 = u64::MAX;
