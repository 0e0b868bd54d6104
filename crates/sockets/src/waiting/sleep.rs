//! Sleeping in the kernel on one socket, within its time-outs.

use toehold_freestanding::waits;

use crate::system::deferral::{self, Handlers};
use crate::system::{errno, real, sys};

/// The time that one call has waited: `SO_RCVTIMEO` and `SO_SNDTIMEO` limit all its waits together
/// (net/ipv4/tcp.c, `timeo`).
#[derive(Default)]
pub(crate) struct Deadline {
    since_ns: u64,
}

impl Deadline {
    /// The rest of the socket's time-out `option` in nanoseconds, 0 for none.
    ///
    /// # Errors
    /// `EAGAIN` when it has passed.
    pub(crate) fn left_ns(&mut self, fd: i32, option: i32) -> Result<u64, i32> {
        let limit = timeout_ns(fd, option);
        if limit == 0 {
            return Ok(0);
        }
        let now = sys::now_ns();
        if self.since_ns == 0 {
            self.since_ns = now;
        }
        match limit.saturating_sub(now - self.since_ns) {
            0 => Err(libc::EAGAIN),
            left => Ok(left),
        }
    }

    /// As [`Deadline::left_ns`], but only from the second wait on: the kernel's own call limits the
    /// first wait.
    pub(crate) fn left_after_first(&mut self, fd: i32, option: i32) -> Result<u64, i32> {
        if self.since_ns == 0 {
            self.since_ns = sys::now_ns();
            return Ok(0);
        }
        self.left_ns(fd, option)
    }
}

/// True when the socket's time-out `option` has passed since `since_ns`.
pub(crate) fn timed_out(fd: i32, option: i32, since_ns: u64) -> bool {
    let limit = timeout_ns(fd, option);
    limit != 0 && sys::now_ns() - since_ns >= limit
}

/// A socket's `SO_RCVTIMEO` or `SO_SNDTIMEO` in nanoseconds, 0 for none.
pub(crate) fn timeout_ns(fd: i32, option: i32) -> u64 {
    let time = sys::getsockopt::<[i64; 2]>(fd, libc::SOL_SOCKET, option).unwrap_or_default();
    time[0].max(0) as u64 * 1_000_000_000 + time[1].max(0) as u64 * 1_000
}

/// Sleeps in libc's `ppoll`, which a signal ends as it would end the program's call, until one of
/// `events` or an error holds. Returns the events that hold; `None` when `limit_ns` pass before; 0
/// means no limit.
pub(crate) fn sleep_until(fd: i32, events: i16, limit_ns: u64) -> Result<Option<i16>, i32> {
    let mut places = [place(fd, events)];
    match sleep_on(&mut places, (limit_ns != 0).then_some(limit_ns))? {
        0 => Ok(None),
        _ => Ok(Some(places[0].revents)),
    }
}

/// As [`sleep_until`], in a call that transfers bytes or connects. `None` also after a signal that
/// does not end the call: the caller looks again, and at its [`Deadline`].
pub(crate) fn sleep_in_call(
    fd: i32,
    events: i16,
    limit_ns: u64,
    call: Call,
) -> Result<Option<i16>, i32> {
    match sleep_until(fd, events, limit_ns) {
        Err(libc::EINTR) if call.goes_on_after_signal(fd) => Ok(None),
        slept => slept,
    }
}

/// A call that transfers bytes or connects, seen by the signals that may end it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Handlers that ran before the first wait.
    pub(crate) handlers: Handlers,
    /// The socket's time-out of such calls.
    pub(crate) option: i32,
    /// The call has moved bytes, and waits for more.
    pub(crate) has_moved: bool,
}

impl Call {
    /// A call that has not moved bytes. It has not waited yet.
    pub(crate) fn new(option: i32) -> Call {
        Call {
            handlers: deferral::handlers(),
            option,
            has_moved: false,
        }
    }

    /// True when a signal handler that has run since ends the call: one without `SA_RESTART`, or
    /// any when the socket has the time-out (signal(7)), or when the call has moved bytes, because
    /// a restart would move them again (`tcp_recvmsg_locked`, `sk_stream_wait_memory`). Also when
    /// the thread was cancelled ([`crate::system::cancellation`]).
    pub(crate) fn is_interrupted(self, fd: i32) -> bool {
        self.handlers.end_a_transfer()
            || waits::end_here()
            || self.handlers.end_a_wait() && (self.has_moved || timeout_ns(fd, self.option) != 0)
    }

    /// True when the call goes on after a sleep that a signal handler has ended.
    pub(crate) fn goes_on_after_signal(self, fd: i32) -> bool {
        !self.has_moved && !self.is_interrupted(fd)
    }

    /// A wait is over, and the call goes on. Until it has moved bytes, handlers that restart it are
    /// forgotten: they may run several times.
    pub(crate) fn after_wait(self, fd: i32) -> Handlers {
        match self.has_moved || self.is_interrupted(fd) {
            true => self.handlers,
            false => deferral::handlers(),
        }
    }
}

/// A place of `ppoll`.
pub(crate) fn place(fd: i32, events: i16) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// As [`sleep_until`], on several descriptors. Returns the number of those with events.
pub(crate) fn sleep_on(places: &mut [libc::pollfd], limit_ns: Option<u64>) -> Result<usize, i32> {
    let time = limit_ns.map(sys::timespec);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let count = places.len() as libc::nfds_t;
    // SAFETY: as many places, one time; no mask.
    let result = unsafe { real::ppoll(places.as_mut_ptr(), count, time, core::ptr::null()) };
    usize::try_from(result).map_err(|_| errno::get())
}
