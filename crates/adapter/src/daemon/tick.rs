//! A signal that ends waits which a client causes.
//!
//! Closing the last descriptor of a socket may block: with `SO_LINGER` for as long as a program
//! wants. The adapter has the last descriptor if a program closes a socket that it has just sent.
//! The adapter may close that descriptor itself; or the kernel closes it, because it could not be
//! delivered, or because it was unread in a socket that the adapter closes. A signal ends such a
//! wait (`sk_stream_wait_close` in the kernel), and the connection then ends as after a signal in
//! the program.
//!
//! ```text
//!   begin ─► the timer runs ─┬─► end: it comes once more, unless another turn begins before
//!                            ├─► stop: it does not
//!                            └─► TICK later: counted, and the timer runs again
//! ```

use crate::listener::check;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// A timer whose signal comes to the thread that has made it.
#[derive(Debug)]
pub(super) struct Tick(&'static Shared);

/// Words that the signal's handler shares with the thread that it interrupts. All accesses are
/// `Relaxed`, because no other thread is involved.
#[derive(Debug)]
struct Shared {
    /// The kernel's timer, by its id (timer_create(2)).
    timer: AtomicPtr<libc::c_void>,
    is_armed: AtomicBool,
    is_in_turn: AtomicBool,
    count: AtomicU32,
}

impl Tick {
    /// Makes the timer and installs the signal's handler, for the rest of the process's life.
    ///
    /// # Errors
    /// The errors of timer_create(2).
    pub(super) fn new() -> io::Result<Tick> {
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            timer: AtomicPtr::new(null_mut()),
            is_armed: AtomicBool::new(false),
            is_in_turn: AtomicBool::new(false),
            count: AtomicU32::new(0),
        }));
        // SAFETY: zeroes are values of both structures; the handler makes one system call, and
        // touches nothing but `Shared`, which lives for ever.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                handle;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            check(libc::sigaction(SIGNAL, &action, null_mut()))?;
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            event.sigev_value.sival_ptr = (&raw const *shared).cast_mut().cast();
            let mut timer: libc::timer_t = null_mut();
            check(libc::timer_create(
                libc::CLOCK_MONOTONIC,
                &mut event,
                &mut timer,
            ))?;
            shared.timer.store(timer.cast(), Ordering::Relaxed);
        }
        Ok(Tick(shared))
    }

    /// A turn begins: from now on the signal cuts waits short.
    pub(super) fn begin(&self) {
        self.0.is_in_turn.store(true, Ordering::Relaxed);
        if !self.0.is_armed.swap(true, Ordering::Relaxed) {
            self.0.arm(TICK);
        }
    }

    /// The turn has ended, and the next one probably begins soon: the timer keeps running.
    pub(super) fn end(&self) {
        self.0.is_in_turn.store(false, Ordering::Relaxed);
    }

    /// The turn has ended without work: the signal itself may have caused it, by ending the wait
    /// for events. So the timer is stopped.
    pub(super) fn stop(&self) {
        self.end();
        self.0.arm(Duration::ZERO);
        self.0.is_armed.store(false, Ordering::Relaxed);
    }

    /// Number of signals that have come in turns. If it has changed during some work, the work took
    /// long.
    pub(super) fn count(&self) -> u32 {
        self.0.count.load(Ordering::Relaxed)
    }
}

impl Drop for Tick {
    fn drop(&mut self) {
        self.end();
        // SAFETY: ours. A signal that is on its way finds `Shared`, which stays.
        unsafe { libc::timer_delete(self.0.timer.load(Ordering::Relaxed).cast()) };
    }
}

impl Shared {
    /// Starts the timer; a wait of zero stops it.
    fn arm(&self, wait: Duration) {
        let once = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: wait.as_nanos() as libc::c_long,
            },
        };
        // SAFETY: `once` is valid. For a timer that is gone it fails.
        unsafe {
            libc::timer_settime(
                self.timer.load(Ordering::Relaxed).cast(),
                0,
                &once,
                null_mut(),
            )
        };
    }
}

extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel has filled `info` in. A timer's brings the pointer of `Tick::new`.
    let shared = unsafe {
        if (*info).si_code != libc::SI_TIMER {
            return;
        }
        (*info).si_value().sival_ptr.cast::<Shared>()
    };
    // SAFETY: never freed.
    let shared = unsafe { &*shared };
    if shared.is_in_turn.load(Ordering::Relaxed) {
        shared.count.fetch_add(1, Ordering::Relaxed);
        shared.arm(TICK);
    } else {
        shared.is_armed.store(false, Ordering::Relaxed);
    }
}

/// The longest wait that a client can cause. During turns without a break, one signal comes in this
/// time.
const TICK: Duration = Duration::from_millis(2);
/// Nothing else in this process uses it.
const SIGNAL: libc::c_int = libc::SIGALRM;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;
    use std::io::pipe;

    impl Shared {
        fn left(&self) -> libc::itimerspec {
            // SAFETY: zeroes are a value; the timer is there.
            unsafe {
                let mut left: libc::itimerspec = std::mem::zeroed();
                let timer = self.timer.load(Ordering::Relaxed);
                assert_eq!(libc::timer_gettime(timer.cast(), &mut left), 0);
                left
            }
        }
    }

    #[test]
    fn a_wait_in_a_turn_ends_and_a_turn_that_has_ended_is_left_alone() {
        let tick = Tick::new().expect("a timer");
        // The pipe stays empty.
        let (reader, _writer) = pipe().expect("a pipe");
        let mut entry = [PollFd::new(&reader, PollFlags::IN)];
        tick.begin();
        for _ in 0..3 {
            let waited = poll(&mut entry, None);
            assert_eq!(waited, Err(Errno::INTR));
        }
        tick.end();
        assert!(tick.count() >= 3);
        let count = tick.count();
        // Only the signal that was under way comes.
        assert_eq!(poll(&mut entry, None), Err(Errno::INTR));
        assert_eq!(tick.count(), count);
        assert!(!tick.0.is_armed.load(Ordering::Relaxed));
        tick.begin();
        tick.stop();
        let left = tick.0.left();
        assert_eq!((left.it_value.tv_sec, left.it_value.tv_nsec), (0, 0));
    }
}
