//! The stack, shared by two threads: the script's thread, which moves the clock, and the thread
//! that sleeps in calls.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;

use toehold_tcp::{Duration, Instant};

use crate::socket::{Call, Outcome};
use crate::stack::{Stack, Waiting};

/// The virtual time that one reading of the clock takes, so that a script that spins makes
/// progress.
const LOOK: Duration = Duration::from_micros(1);

/// The real time that the other thread gets: far more than it needs.
const HANDOVER: std::time::Duration = std::time::Duration::from_millis(10);

/// The stack of this process. packetdrill runs one script in a process.
static SHARED: OnceLock<Shared> = OnceLock::new();

thread_local! {
    /// The end of the call in which this thread slept. packetdrill reads the clock directly after
    /// the call, and by then the script's thread may have moved the clock.
    static ENDED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

pub(crate) struct Shared {
    stack: Mutex<Stack>,
    ended: Condvar,
    /// The thread that runs the script.
    script: ThreadId,
    /// A sleeping call has ended since the script's last wait.
    has_ended: AtomicBool,
}

impl Shared {
    /// Makes the stack with these flags; a later call has no effect.
    pub(crate) fn init(flags: &str) {
        SHARED.get_or_init(|| Self {
            stack: Mutex::new(Stack::new(flags)),
            ended: Condvar::new(),
            script: std::thread::current().id(),
            has_ended: AtomicBool::new(false),
        });
    }

    /// The stack, if it exists.
    pub(crate) fn get() -> Option<&'static Self> {
        SHARED.get()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Stack> {
        // After a panic in one call, the next call must not fail because of the poisoned lock.
        self.stack
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs a step on the stack, and wakes the sleeping call if the step has completed it.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Stack) -> T) -> T {
        let mut stack = self.lock();
        let result = act(&mut stack);
        stack.settle();
        if stack
            .waiting
            .as_ref()
            .is_some_and(|waiting| waiting.ended.is_some())
        {
            self.has_ended.store(true, Relaxed);
            self.ended.notify_all();
        }
        result
    }

    /// The script waits for the time `span`.
    pub(crate) fn usleep(&self, span: Duration) {
        self.let_the_other_finish();
        self.with(|stack| {
            let until = stack.now() + span;
            stack.advance_to(until);
        });
        self.let_the_other_finish();
    }

    /// packetdrill's other thread records the result of a call, for example a descriptor. It needs
    /// a lock for this that the script's thread releases only while it sleeps. Our sleep takes no
    /// real time, so this function gives the other thread some.
    fn let_the_other_finish(&self) {
        // Relaxed: one thread sets and reads the flag, or the thread reads it one wait later.
        if self.has_ended.swap(false, Relaxed) {
            std::thread::sleep(HANDOVER);
        }
    }

    /// The current time. Reading it advances the clock by one step.
    pub(crate) fn look_at_clock(&self) -> Instant {
        if let Some(ended_at) = ENDED_AT.take() {
            return ended_at;
        }
        self.with(|stack| {
            let next = stack.now() + LOOK;
            stack.advance_to(next);
            next
        })
    }

    /// Makes a call, and sleeps if the call has to wait and `may_sleep` is set.
    pub(crate) fn call(&self, mut call: Call, may_sleep: bool) -> Outcome {
        let at_once = self.with(|stack| stack.attempt(&mut call));
        if let Some(outcome) = at_once {
            return outcome;
        }
        if !may_sleep {
            return match call {
                Call::Write { written, .. } if written > 0 => {
                    Ok(crate::socket::Answer::Number(written))
                }
                _ => Err(libc::EAGAIN),
            };
        }
        if std::thread::current().id() == self.script {
            return self.wait_as_script(call);
        }
        self.sleep(call)
    }

    /// The script's own thread waits by moving the clock.
    fn wait_as_script(&self, mut call: Call) -> Outcome {
        self.with(|stack| {
            loop {
                let own = call.deadline();
                let next = [stack.next_timer(), own].into_iter().flatten().min();
                let Some(next) = next else {
                    return Err(libc::EDEADLK);
                };
                stack.advance_to(next);
                if let Some(outcome) = stack.attempt(&mut call) {
                    return outcome;
                }
            }
        })
    }

    /// The other thread sleeps until the script's thread has completed its call.
    fn sleep(&self, call: Call) -> Outcome {
        let mut stack = self.lock();
        stack.waiting = Some(Waiting { call, ended: None });
        stack.settle();
        loop {
            let ended = stack.waiting.take_if(|waiting| waiting.ended.is_some());
            if let Some((at, outcome)) = ended.and_then(|waiting| waiting.ended) {
                ENDED_AT.set(Some(at));
                return outcome;
            }
            stack = self
                .ended
                .wait(stack)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

/// Sets the caller's `errno`, and returns -1.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library's errno of this thread, which always exists.
    unsafe { *libc::__errno_location() = errno };
    -1
}
