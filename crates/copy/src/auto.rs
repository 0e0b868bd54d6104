//! The `auto` engine: by hand below the copybreak, by the worker above it.

use std::time::{Duration, Instant};

use crate::backend::{Backend, Outcome, Refused};
use crate::calibration::{Copybreak, Direction};
use crate::cpu::{Finished, execute};
use crate::heat::copy_by_heat;
use crate::operation::{Flags, Kind};
use crate::{Calibration, Cookie, Operation, Worker};

/// The `auto` engine.
///
/// - Below the copybreak, and when the submitter says it will wait ([`Flags::URGENT`]): by hand, with `memcpy`
///   for memory that is in the cache and non-temporal stores for memory that is not.
/// - Otherwise by the worker, if there is one.
pub struct Auto {
    finished: Finished,
    worker: Option<Worker>,
    /// For targets the submitter will read ([`Flags::CACHE`]), and for others.
    copybreak_in: Copybreak,
    copybreak_out: Copybreak,
    regret: Regret,
}

/// Bytes copied by hand that an awake worker would have been given. When they add up to what would have been worth waking it
/// for, it is woken: a stream of copies each too short for that is not kept from it for ever.
struct Regret {
    bytes: usize,
    last: Instant,
}

impl Auto {
    /// The engine for a machine of this calibration, with a worker or without.
    pub fn new(calibration: &Calibration, worker: Option<Worker>) -> Auto {
        Auto {
            finished: Finished::default(),
            worker,
            copybreak_in: calibration.copybreak(Direction::In),
            copybreak_out: calibration.copybreak(Direction::Out),
            regret: Regret {
                bytes: 0,
                last: Instant::now(),
            },
        }
    }

    #[inline]
    fn goes_to_worker(&mut self, operation: &Operation) -> bool {
        let Some(worker) = &self.worker else {
            return false;
        };
        let inward = operation.flags.contains(Flags::CACHE);
        let at = if inward {
            self.copybreak_in
        } else {
            self.copybreak_out
        };
        if operation.len < at.awake || operation.flags.contains(Flags::URGENT) {
            return false;
        }
        operation.len >= at.asleep
            || worker.is_awake()
            || self.regret.is_enough(operation.len, at.asleep)
    }
}

impl Regret {
    fn is_enough(&mut self, len: usize, enough: usize) -> bool {
        let now = Instant::now();
        if now.duration_since(self.last) > STREAM_GAP {
            // The worker would have gone to sleep in between.
            self.bytes = 0;
        }
        self.last = now;
        self.bytes = self.bytes.saturating_add(len);
        let is_enough = self.bytes >= enough;
        if is_enough {
            self.bytes = 0;
        }
        is_enough
    }
}

/// Copies that are further apart are no stream: about what a worker spins.
const STREAM_GAP: Duration = Duration::from_micros(50);

// SAFETY: what is done by hand is over when `submit` returns; the rest is the worker's promise.
unsafe impl Backend for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    #[inline]
    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        if self.goes_to_worker(operation)
            && let Some(worker) = &mut self.worker
        {
            // SAFETY: the caller's contract.
            return unsafe { worker.submit(cookie, operation) };
        }
        let by_heat = operation.kind == Kind::Copy && !operation.flags.contains(Flags::CACHE);
        let outcome = if by_heat {
            // SAFETY: valid and disjoint by the caller's contract.
            unsafe { copy_by_heat(operation.source, operation.target, operation.len) };
            Outcome::DONE
        } else {
            // SAFETY: the caller's contract is `execute`'s.
            unsafe { execute(operation) }
        };
        self.finished.push(cookie, outcome);
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.flush();
        }
    }

    #[inline]
    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        self.finished.report(report);
        if let Some(worker) = &mut self.worker {
            worker.poll(report);
        }
    }

    fn progress(&mut self, cookie: Cookie) -> usize {
        self.worker
            .as_mut()
            .map_or(0, |worker| worker.progress(cookie))
    }

    fn park(&mut self, patience_ns: u64) -> bool {
        self.worker
            .as_mut()
            .is_some_and(|worker| worker.park(patience_ns))
    }

    fn helper_cpu_ns(&self) -> Option<u64> {
        self.worker
            .as_ref()
            .map_or(Some(0), |worker| worker.helper_cpu_ns())
    }

    fn forget_after_fork(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.forget_after_fork();
        }
        // A child that wants a worker opens a channel of its own.
        self.worker = None;
        self.finished = Finished::default();
    }
}
