//! The `worker` engine: a thread that copies while its owner does something else.
//!
//! The thread spins for a while after each piece of work and then sleeps, so that a parked worker
//! costs nothing. One doorbell covers all operations submitted since the last. The thread's
//! processor time is a part of the copies' cost;
//! [`Channel::helper_cpu_ns`](crate::Channel::helper_cpu_ns) returns it.

mod affinity;
#[cfg(all(test, loom))]
mod model;
mod queue;

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use self::affinity::Affinity;
use self::queue::{Queue, Spins};
use crate::backend::{Backend, Outcome, Refused};
use crate::cpu::execute;
use crate::ledger::entries_rounded;
use crate::operation::{Flags, Kind};
use crate::residency::{is_cold, nontemporal_from};
use crate::{Cookie, Operation, copy_nontemporal, from_shared};

/// The `worker` engine.
pub struct Worker {
    queue: Arc<Queue<Operation>>,
    /// `None` after a fork: the thread is the parent's.
    thread: Option<JoinHandle<()>>,
    /// By queue index: the cookie, and the operation's begin in the stream of all bytes.
    journal: Box<[Record]>,
    /// By cookie: its queue index.
    index_of: Box<[u64]>,
    /// Entries written, published, and reported.
    ///
    /// Invariant: reported <= published <= written <= reported + capacity.
    written: u64,
    published: u64,
    reported: u64,
    /// Bytes of all operations ever written.
    position: u64,
}

#[derive(Clone, Copy)]
struct Record {
    cookie: Cookie,
    begin: u64,
}

/// The options of a [`Worker`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Operations in its queue; at least the channel's entries to make use of them.
    pub entries: usize,
    /// The processor to which the worker is pinned, if any.
    pub pin: Option<usize>,
    /// The longest time that the worker spins before it sleeps.
    pub spin_max: Duration,
}

impl Default for WorkerOptions {
    /// 256 entries, not pinned. Spins for some tens of microseconds, about the cost of a wake-up,
    /// unless this is the only processor, where spinning keeps its owner from giving it work.
    fn default() -> WorkerOptions {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let spin_max = if processors > 1 {
            SPIN_MAX
        } else {
            Duration::ZERO
        };
        WorkerOptions {
            entries: 256,
            pin: None,
            spin_max,
        }
    }
}

impl Worker {
    /// Starts the thread. It takes no signals.
    ///
    /// # Errors
    ///
    /// When the system will not start a thread, or will not pin it.
    pub fn start(options: WorkerOptions) -> io::Result<Worker> {
        #[cfg(not(loom))]
        crate::sync::membarrier::prepare();
        let entries = entries_rounded(options.entries);
        let nothing = Operation::fill(std::ptr::null_mut(), 0, 0);
        let queue = Arc::new(Queue::new(entries, nothing));
        let thread = {
            let queue = Arc::clone(&queue);
            let _deaf = SignalsBlocked::new();
            std::thread::Builder::new()
                .name("toehold-copy".into())
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    let allowed = Affinity::of_this_thread();
                    let pinned = options.pin.is_some();
                    let woken = |waker| pinned || allowed.leave(waker);
                    queue.run(Spins::up_to(options.spin_max), woken, perform)
                })?
        };
        let record = Record {
            cookie: Cookie::NONE,
            begin: 0,
        };
        let worker = Worker {
            queue,
            thread: Some(thread),
            journal: vec![record; entries].into(),
            index_of: vec![0; entries].into(),
            written: 0,
            published: 0,
            reported: 0,
            position: 0,
        };
        if let Some(processor) = options.pin {
            worker.pin(processor)?;
        }
        Ok(worker)
    }

    fn pin(&self, processor: usize) -> io::Result<()> {
        let Some(thread) = &self.thread else {
            return Ok(());
        };
        let only = Affinity::only(processor)?;
        let size = std::mem::size_of_val(&only.0);
        // SAFETY: the thread has not been joined; the set outlives the call.
        match unsafe { libc::pthread_setaffinity_np(thread.as_pthread_t(), size, &only.0) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// False while the thread sleeps and the next doorbell may have to wake it.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.queue.is_awake()
    }

    /// Whether a submission would be taken.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.thread.is_some() && self.written - self.reported < self.journal.len() as u64
    }

    fn slot(&self, number: u64) -> usize {
        number as usize & (self.journal.len() - 1)
    }
}

// SAFETY: the thread touches an operation's ranges only before it counts it as finished, `poll`
// reports only finished ones, and `drop` joins the thread.
unsafe impl Backend for Worker {
    fn name(&self) -> &'static str {
        "worker"
    }

    #[inline]
    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        if !self.has_room() {
            return Err(if self.thread.is_none() {
                Refused::Unable
            } else {
                Refused::Full
            });
        }
        let (index, slot) = (self.written, self.slot(self.written));
        self.journal[slot] = Record {
            cookie,
            begin: self.position,
        };
        let at = self.slot(cookie.get());
        self.index_of[at] = index;
        // SAFETY: we are the producer, the entry was reported finished (or never used), and is
        // unpublished.
        unsafe { self.queue.write(index, *operation) };
        self.position += operation.len as u64;
        self.written += 1;
        Ok(())
    }

    #[inline]
    fn flush(&mut self) {
        if self.published != self.written {
            self.published = self.written;
            self.queue.publish(self.published);
        }
    }

    #[inline]
    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        if self.reported == self.published {
            return;
        }
        let finished = self.queue.finished();
        while self.reported != finished {
            let crc32c = self.queue.result(self.reported);
            report(
                self.journal[self.slot(self.reported)].cookie,
                Outcome::Done { crc32c },
            );
            self.reported += 1;
        }
    }

    fn progress(&mut self, cookie: Cookie) -> usize {
        let index = self.index_of[self.slot(cookie.get())];
        let record = self.journal[self.slot(index)];
        if record.cookie != cookie || index < self.reported {
            return 0;
        }
        // The channel cuts it off at the operation's length.
        self.queue.position().saturating_sub(record.begin) as usize
    }

    fn park(&mut self, timeout_ns: u64) -> bool {
        if self.reported == self.published {
            return false;
        }
        self.queue.sleep_until_finished(self.reported, timeout_ns);
        true
    }

    fn helper_cpu_ns(&self) -> Option<u64> {
        let thread = self.thread.as_ref()?;
        let mut clock = 0;
        // SAFETY: the thread has not been joined.
        if unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut clock) } != 0 {
            return None;
        }
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes to our stack.
        unsafe { libc::clock_gettime(clock, &mut time) };
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn forget_after_fork(&mut self) {
        // There is no thread to join. The queue is a private copy now, shared with nobody.
        std::mem::forget(self.thread.take());
        self.published = self.written;
        self.reported = self.written;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.flush();
            self.queue.stop();
            let joined = thread.join();
            debug_assert!(joined.is_ok(), "the worker does not panic");
        }
    }
}

/// Performs one operation on the worker's thread. Copies go in steps, so that their beginning can
/// be used early. The steps are small at first and then larger: only the beginning is urgent.
fn perform(operation: &Operation, tell: &mut dyn FnMut(usize)) -> (usize, u32) {
    if operation.kind != Kind::Copy {
        // SAFETY: the channel's submitter vouches for the memory until the operation is finished.
        return match unsafe { execute(operation) } {
            Outcome::Done { crc32c } => (operation.len, crc32c),
            _ => unreachable!("the processor finishes what it begins"),
        };
    }
    let mut done = 0;
    let mut step = STEP_BYTES_MIN;
    // SAFETY: as above, and the length is not zero.
    let past_the_cache = operation.len >= nontemporal_from()
        && !operation.flags.contains(Flags::CACHE)
        && unsafe { is_cold(operation.source, operation.len) };
    while done < operation.len {
        let part = step.min(operation.len - done);
        // SAFETY: as above; `done + part <= len`.
        unsafe {
            let (source, target) = (operation.source.add(done), operation.target.add(done));
            if past_the_cache {
                copy_nontemporal(source, target, part);
            } else {
                from_shared(source, target, part);
            }
        }
        done += part;
        tell(done);
        step = (step * 2).min(STEP_BYTES_MAX);
    }
    (operation.len, 0)
}

/// Blocks all signals: only the program's own threads handle its signals.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> SignalsBlocked {
        // SAFETY: both sets are on our stack; `sigfillset` initializes the first, the call the
        // second.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            SignalsBlocked(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: restores what `new` found.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// A page and its prefetch: what a consumer of the beginning waits for.
const STEP_BYTES_MIN: usize = 4096;

/// Reporting progress moves a cache line between processors; once in this many bytes the cost is
/// negligible.
const STEP_BYTES_MAX: usize = 64 * 1024;

/// About the cost of falling asleep and being woken. So spinning costs at most twice the better
/// choice.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// The thread calls `memcpy` and little else.
const STACK_BYTES: usize = 128 * 1024;
