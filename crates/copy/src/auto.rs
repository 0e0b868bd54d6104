//! The `auto` engine: by hand below the copybreak, by the worker above it.

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
}

impl Auto {
    /// The engine for a machine of this calibration, with a worker or without.
    pub fn new(calibration: &Calibration, worker: Option<Worker>) -> Auto {
        Auto {
            finished: Finished::default(),
            worker,
            copybreak_in: calibration.copybreak(Direction::In),
            copybreak_out: calibration.copybreak(Direction::Out),
        }
    }

    #[inline]
    fn goes_to_worker(&self, operation: &Operation) -> bool {
        let Some(worker) = &self.worker else {
            return false;
        };
        if operation.flags.contains(Flags::URGENT) {
            return false;
        }
        let inward = operation.flags.contains(Flags::CACHE);
        let at = if inward {
            self.copybreak_in
        } else {
            self.copybreak_out
        };
        operation.len >= at.awake && (operation.len >= at.asleep || worker.is_awake())
    }
}

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

    fn helper_cpu_ns(&self) -> u64 {
        self.worker
            .as_ref()
            .map_or(0, |worker| worker.helper_cpu_ns())
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
