//! The `fault` engine: shows every fault that an engine may have.
//!
//! For tests of everything built on a channel. One seed decides all faults, so a run can be
//! repeated.

use alloc::collections::VecDeque;

use crate::backend::{Backend, Outcome, Refused};
use crate::cpu::execute;
use crate::operation::Kind;
use crate::{Cookie, Operation};

/// The faults that the engine is to make, and how often. Each `*_in_256` is a chance: 0 is never,
/// 256 always.
#[derive(Clone, Copy, Debug, Default)]
pub struct InjectedFaults {
    /// Decides everything below.
    pub seed: u64,
    /// Completes an operation this many polls late, at most.
    pub delay_polls_max: u32,
    /// Lets operations overtake one another.
    pub reorder: bool,
    /// Chance to stop part of the way, at an address.
    pub partial_in_256: u32,
    /// Chance to refuse an operation because the queue is full.
    pub full_in_256: u32,
    /// Chance to refuse an operation altogether.
    pub unable_in_256: u32,
    /// Operations in flight before the queue really is full; zero for no such bound.
    pub queue_entries: usize,
    /// Operations after which the engine goes away; zero for never.
    pub gone_after: u64,
}

/// The engine. Each poll writes some of an operation's bytes. So a user that reads bytes before
/// they are reported finds them missing.
pub struct Faulty {
    faults: InjectedFaults,
    random: SplitMix64,
    queue: VecDeque<Pending>,
    accepted: u64,
}

struct Pending {
    cookie: Cookie,
    operation: Operation,
    polls_left: u32,
    /// Bytes in place.
    done: usize,
    /// Stops here with a fault.
    stop_at: Option<usize>,
}

// SAFETY: operations hold pointers that their submitter lets any thread use; see `Operation`.
unsafe impl Send for Pending {}

impl Faulty {
    /// An engine that misbehaves like this.
    pub fn new(faults: InjectedFaults) -> Faulty {
        let random = SplitMix64(faults.seed);
        Faulty {
            faults,
            random,
            queue: VecDeque::new(),
            accepted: 0,
        }
    }

    fn chance(&mut self, in_256: u32) -> bool {
        in_256 > 0 && self.random.below(256) < u64::from(in_256)
    }

    fn is_gone(&self) -> bool {
        self.faults.gone_after != 0 && self.accepted >= self.faults.gone_after
    }
}

// SAFETY: works only within `submit` and `poll`, on operations it has not reported, within their
// ranges.
unsafe impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "fault"
    }

    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        let bound = self.faults.queue_entries;
        if self.is_gone() || self.chance(self.faults.unable_in_256) {
            return Err(Refused::Unable);
        }
        if (bound != 0 && self.queue.len() >= bound) || self.chance(self.faults.full_in_256) {
            return Err(Refused::Full);
        }
        self.accepted += 1;
        let polls_left = self
            .random
            .below(u64::from(self.faults.delay_polls_max) + 1) as u32;
        let stops = operation.kind == Kind::Copy && self.chance(self.faults.partial_in_256);
        let stop_at = stops.then(|| self.random.below(operation.len as u64) as usize);
        let operation = *operation;
        self.queue.push_back(Pending {
            cookie,
            operation,
            polls_left,
            done: 0,
            stop_at,
        });
        Ok(())
    }

    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        if self.is_gone() {
            for pending in self.queue.drain(..) {
                report(pending.cookie, Outcome::Gone);
            }
            return;
        }
        let mut at = 0;
        while at < self.queue.len() {
            let pending = &mut self.queue[at];
            if pending.polls_left > 0 {
                pending.advance();
                if !self.faults.reorder {
                    return;
                }
                at += 1;
                continue;
            }
            let pending = self.queue.remove(at).expect("`at` is within the queue");
            report(pending.cookie, pending.finish());
        }
    }

    fn progress(&mut self, cookie: Cookie) -> usize {
        self.queue
            .iter()
            .find(|pending| pending.cookie == cookie)
            .map_or(0, |found| found.done)
    }

    fn forget_after_fork(&mut self) {
        self.queue.clear();
    }
}

impl Pending {
    /// Counts a poll and writes some more bytes, but never the last.
    fn advance(&mut self) {
        self.polls_left -= 1;
        let limit = self.stop_at.unwrap_or(self.operation.len);
        let next = (self.done + 1 + (limit - self.done) / 3).min(limit.saturating_sub(1));
        if self.operation.kind == Kind::Copy && next > self.done {
            self.copy_to(next);
        }
    }

    fn finish(mut self) -> Outcome {
        if let Some(bytes) = self.stop_at {
            self.copy_to(bytes.max(self.done));
            let address = self.operation.target as usize + self.done;
            return Outcome::Partial {
                bytes: self.done,
                address,
            };
        }
        // SAFETY: not reported yet, so its submitter still vouches for its memory.
        unsafe { execute(&self.operation.rest(self.done)) }
    }

    fn copy_to(&mut self, end: usize) {
        // SAFETY: as above; `done <= end <= len`.
        unsafe {
            let rest = self.operation.rest(self.done);
            execute(&Operation::copy(rest.source, rest.target, end - self.done));
        }
        self.done = end;
    }
}

/// A small generator that needs no crate: Steele, Lea and Flood, 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, or zero. Slightly uneven, which no test minds.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}
