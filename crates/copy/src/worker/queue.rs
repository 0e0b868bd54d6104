//! The worker's queue: one producer, one consumer, each with its own cache lines, and two gates to
//! sleep at.
//!
//! | word | writer | reader | ordering | line |
//! |---|---|---|---|---|
//! | `tail`: entries published | producer | worker | Release / Acquire: the entry before the count | producer's |
//! | `head`: entries finished | worker | producer | Release / Acquire: the copied bytes and the result before the count | worker's |
//! | `position`: bytes finished, of all entries | worker | producer | Release / Acquire: the copied bytes before the position | worker's |
//! | `idle`: the worker sleeps or is about to | both | both | see below | own |
//! | `anxious`: the producer sleeps or is about to | both | both | see below | own |
//! | entry | producer, then worker's result | worker, then producer | by `tail` and `head` | own |
//!
//! Sleeping. A side that goes to sleep sets its flag, fences, and looks again. A side that has news
//! publishes it, fences, and reads the other side's flag. At least one of the two loads sees the
//! other side's store: either the sleeper sees the news and stays awake, or the other side sees the
//! flag and wakes the sleeper.
//!
//! ```text
//!   worker, going to sleep          producer, flushing
//!   idle := 1                       tail := n
//!   heavy fence                     light fence
//!   tail == consumed ?              idle == 1 ?
//!     yes: sleep while idle == 1      yes: idle := 0, wake
//! ```
//!
//! The producer flushes often and the worker falls asleep rarely, so the worker pays for both
//! fences. The other way round (`anxious`, `head`) both are ordinary fences.

use std::time::Duration;

use crate::sync::{
    AtomicU32, AtomicU64, Gate, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
    Ordering::SeqCst, UnsafeCell, fence, fence_heavy, fence_light, spin_loop,
};

/// One queue. `T` is the work; each entry has room for one word of result.
pub(crate) struct Queue<T> {
    tail: Line<AtomicU64>,
    done: Line<Done>,
    idle: Line<Gate>,
    anxious: Line<Gate>,
    stopped: AtomicU32,
    /// The processor that last woke the worker: a hint.
    waker: AtomicU32,
    entries: Box<[Line<Entry<T>>]>,
}

struct Done {
    /// Entries finished.
    head: AtomicU64,
    /// Bytes finished, over all entries ever.
    position: AtomicU64,
}

struct Entry<T> {
    work: UnsafeCell<T>,
    result: AtomicU32,
}

/// Alone on its cache line, and on its neighbour's, which some processors fetch along with it.
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: entries are handed from the producer to the worker by `tail`, and back by `head`; the
// rest is atomic.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T: Copy> Queue<T> {
    /// `entries` is a power of two; `nothing` fills them until they are used.
    pub(crate) fn new(entries: usize, nothing: T) -> Queue<T> {
        assert!(entries.is_power_of_two());
        let entry = || {
            Line(Entry {
                work: UnsafeCell::new(nothing),
                result: AtomicU32::new(0),
            })
        };
        Queue {
            tail: Line(AtomicU64::new(0)),
            done: Line(Done {
                head: AtomicU64::new(0),
                position: AtomicU64::new(0),
            }),
            idle: Line(Gate::new()),
            anxious: Line(Gate::new()),
            stopped: AtomicU32::new(0),
            waker: AtomicU32::new(0),
            entries: (0..entries).map(|_| entry()).collect(),
        }
    }

    fn entry(&self, index: u64) -> &Entry<T> {
        &self.entries[index as usize & (self.entries.len() - 1)].0
    }
}

/// The producer's end.
impl<T: Copy> Queue<T> {
    /// Writes entry `index`, unseen by the worker until it is published.
    ///
    /// # Safety
    ///
    /// Only the one producer calls this, with `head <= index < head + entries` for a `head` that it
    /// has [read](Self::finished), and `index` not yet published.
    #[inline]
    pub(crate) unsafe fn write(&self, index: u64, work: T) {
        // SAFETY: unpublished and finished, so the worker is nowhere near it (`finished` was an
        // Acquire load).
        self.entry(index)
            .work
            .with_mut(|at| unsafe { at.write(work) });
    }

    /// Publishes all entries before `tail`, and wakes the worker if it sleeps. True if it slept.
    #[inline]
    pub(crate) fn publish(&self, tail: u64) -> bool {
        // Release pairs with the Acquire load in `run`: entries before the count.
        self.tail.0.store(tail, Release);
        fence_light();
        // Relaxed: the fences order it, see the table above.
        if self.idle.0.word.load(Relaxed) == 0 {
            return false;
        }
        self.wake_worker();
        true
    }

    #[cold]
    fn wake_worker(&self) {
        // Relaxed: the gate's own lock, in the kernel, orders the words for the sleeper.
        self.waker.store(crate::sync::processor(), Relaxed);
        self.idle.0.word.store(0, Relaxed);
        self.idle.0.wake();
    }

    /// Entries finished so far, and their results and bytes with them.
    #[inline]
    pub(crate) fn finished(&self) -> u64 {
        // Acquire pairs with the Release store of `head` in `run`.
        self.done.0.head.load(Acquire)
    }

    /// The result of a finished entry.
    #[inline]
    pub(crate) fn result(&self, index: u64) -> u32 {
        // Relaxed: `finished` was an Acquire load.
        self.entry(index).result.load(Relaxed)
    }

    /// Bytes finished, of all entries ever.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        // Acquire pairs with the Release stores of `position` in `run`.
        self.done.0.position.load(Acquire)
    }

    /// False while the worker sleeps, or is about to: the next doorbell may cost a system call.
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        // Relaxed: a guess.
        self.idle.0.word.load(Relaxed) == 0
    }

    /// Sleeps until more than `seen` entries are finished, or the timeout is over, or for no
    /// reason.
    pub(crate) fn sleep_until_finished(&self, seen: u64, timeout_ns: u64) {
        let gate = &self.anxious.0;
        // Relaxed: ordered by the fence; the column on the left, with `head` for `tail`.
        gate.word.store(1, Relaxed);
        // Pairs with the fence in `wake_producer`.
        fence(SeqCst);
        if self.done.0.head.load(Relaxed) == seen {
            gate.sleep(1, timeout_ns);
        }
        gate.word.store(0, Relaxed);
    }

    /// Tells the worker to leave when it has finished what was published.
    pub(crate) fn stop(&self) {
        // Release pairs with the Acquire load in `run`.
        self.stopped.store(1, Release);
        fence_light();
        self.wake_worker();
    }
}

/// The worker's end.
impl<T: Copy> Queue<T> {
    /// Works until it is stopped. `work` does one entry and returns bytes and result; it may report
    /// the number of bytes in place to its second argument at any time. After each sleep `woken`
    /// gets the processor that ended the sleep, and returns whether spinning here may help.
    pub(crate) fn run(
        &self,
        mut spins: Spins,
        mut woken: impl FnMut(u32) -> bool,
        mut work: impl FnMut(&T, &mut dyn FnMut(usize)) -> (usize, u32),
    ) {
        let mut head = 0;
        let mut position = 0u64;
        loop {
            // Acquire pairs with the Release store in `publish`.
            let tail = self.tail.0.load(Acquire);
            if head == tail {
                // Acquire pairs with the Release stores in `stop` and `publish`.
                if self.stopped.load(Acquire) == 1 && self.tail.0.load(Acquire) == head {
                    return;
                }
                self.await_work(head, &mut spins, &mut woken);
                continue;
            }
            while head != tail {
                let entry = self.entry(head);
                // SAFETY: published (the Acquire load above) and not finished, so the producer
                // leaves it alone.
                let item = entry.work.with(|at| unsafe { at.read() });
                let (bytes, result) = work(&item, &mut |bytes| {
                    // Release pairs with the Acquire load in `position`.
                    self.done.0.position.store(position + bytes as u64, Release);
                });
                position += bytes as u64;
                head += 1;
                entry.result.store(result, Relaxed);
                // Release pairs with the Acquire load in `position`.
                self.done.0.position.store(position, Release);
                // Release pairs with the Acquire load in `finished`: bytes and result before the
                // count.
                self.done.0.head.store(head, Release);
                self.wake_producer();
            }
        }
    }

    #[inline]
    fn wake_producer(&self) {
        let gate = &self.anxious.0;
        // Pairs with the fence in `sleep_until_finished`.
        fence(SeqCst);
        // Relaxed: the fences order it; the column on the right, with `head` for `tail`.
        if gate.word.load(Relaxed) == 1 {
            gate.word.store(0, Relaxed);
            gate.wake();
        }
    }

    /// Returns when there may be something after `head`, or a stop.
    fn await_work(&self, head: u64, spins: &mut Spins, woken: &mut impl FnMut(u32) -> bool) {
        let has_news = || self.tail.0.load(Relaxed) != head || self.stopped.load(Relaxed) == 1;
        let idle = Idle::begin();
        if spins.until(&idle, has_news) {
            return;
        }
        let gate = &self.idle.0;
        gate.word.store(1, Relaxed);
        let is_ordered = fence_heavy();
        if has_news() {
            gate.word.store(0, Relaxed);
            return;
        }
        // Without a fence the gate can miss a wake-up, so the sleep has a limit.
        let timeout_ns = if is_ordered {
            u64::MAX
        } else {
            WAKE_DELAY_NS_MAX
        };
        while gate.word.load(Relaxed) == 1 {
            gate.sleep(1, timeout_ns);
            if !is_ordered {
                gate.word.store(0, Relaxed);
            }
        }
        let may_help = woken(self.waker.load(Relaxed));
        spins.learn(&idle, may_help);
    }
}

/// The time that the worker spins before it sleeps. After a short sleep the next spin is longer,
/// because spinning would have been better. After a long sleep it is very short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spins {
    now: Duration,
    max: Duration,
}

impl Spins {
    pub(crate) fn up_to(max: Duration) -> Spins {
        Spins { now: max, max }
    }

    /// Spins until there is news. False when there was none.
    fn until(&mut self, idle: &Idle, has_news: impl Fn() -> bool) -> bool {
        while !self.now.is_zero() && idle.elapsed() < self.now {
            for _ in 0..CLOCK_LOOKS {
                if has_news() {
                    return true;
                }
                spin_loop();
            }
        }
        false
    }

    /// Adapts the spin time after a sleep. The idle time includes the wake-up, which can be most of
    /// it.
    fn learn(&mut self, idle: &Idle, may_help: bool) {
        self.now = match idle.elapsed() < 4 * self.max {
            _ if !may_help => Duration::ZERO,
            true => self.max,
            false => self.max / 16,
        };
    }
}

/// A time without work.
struct Idle(#[cfg(not(loom))] std::time::Instant);

impl Idle {
    fn begin() -> Idle {
        Idle(
            #[cfg(not(loom))]
            std::time::Instant::now(),
        )
    }

    fn elapsed(&self) -> Duration {
        #[cfg(not(loom))]
        return self.0.elapsed();
        #[cfg(loom)]
        Duration::ZERO
    }
}

/// A spinning worker reads the clock once in this many looks: reading the clock costs as much as
/// several looks.
const CLOCK_LOOKS: u32 = 16;

/// The longest delay of a wake-up if the kernel does not provide the fence.
const WAKE_DELAY_NS_MAX: u64 = 1_000_000;
