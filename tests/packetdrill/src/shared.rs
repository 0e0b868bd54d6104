//! The stack between two threads: the script's, which moves the clock, and the one that sleeps in
//! calls.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;

use toehold_tcp::{Duration, Instant};

use crate::socket::{Call, Outcome};
use crate::stack::{Stack, Waiting};

/// The virtual time of one look at the clock: a script that spins gets on.
const LOOK: Duration = Duration::from_micros(1);

/// Real time for the other thread; far more than it needs.
const HANDOVER: std::time::Duration = std::time::Duration::from_millis(10);

/// The stack of this process. packetdrill runs one script in a process.
static SHARED: OnceLock<Shared> = OnceLock::new();

thread_local! {
    /// When the call this thread slept in was over. packetdrill asks for the time first thing after
    /// it, and by then the script's thread may have moved the clock.
    static ENDED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

pub(crate) struct Shared {
    stack: Mutex<Stack>,
    ended: Condvar,
    /// The thread that runs the script.
    script: ThreadId,
    /// A sleeping call has ended since the script last waited.
    has_ended: AtomicBool,
}

impl Shared {
    /// The stack, made by the first who asks with these flags.
    pub(crate) fn init(flags: &str) {
        SHARED.get_or_init(|| Self {
            stack: Mutex::new(Stack::new(flags)),
            ended: Condvar::new(),
            script: std::thread::current().id(),
            has_ended: AtomicBool::new(false),
        });
    }

    /// The stack, if it was made.
    pub(crate) fn get() -> Option<&'static Self> {
        SHARED.get()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Stack> {
        // A panic in one call must not look like a deadlock in the next.
        self.stack
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs a step on the stack, and wakes whoever slept for what it brought.
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

    /// The script waits for `span`.
    pub(crate) fn usleep(&self, span: Duration) {
        self.let_the_other_finish();
        self.with(|stack| {
            let until = stack.now() + span;
            stack.advance_to(until);
        });
        self.let_the_other_finish();
    }

    /// packetdrill's other thread writes down what a call brought, a descriptor for example, and
    /// takes for that a lock that the script's thread leaves free only while it sleeps. Our sleep
    /// takes no time: so this is the moment to let it have some.
    fn let_the_other_finish(&self) {
        // Relaxed: set and read by the same thread, or else one wait later.
        if self.has_ended.swap(false, Relaxed) {
            std::thread::sleep(HANDOVER);
        }
    }

    /// The time, and one step of it.
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

    /// Makes a call, sleeping when it has to and may.
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

    /// The other thread sleeps until the script's has ended its call.
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

/// Leaves `errno` for the caller, and gives the value that says so.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library's errno of this thread, which always exists.
    unsafe { *libc::__errno_location() = errno };
    -1
}
