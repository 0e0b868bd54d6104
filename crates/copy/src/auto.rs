//! The `auto` engine: by hand or by the worker, as length and temperature make it pay.

use std::time::{Duration, Instant};

use crate::backend::{Backend, Outcome, Refused};
use crate::calibration::{Copybreak, Direction};
use crate::cpu::{Finished, execute};
use crate::operation::{Flags, Kind};
use crate::residency::{copy_by_residency, is_cold};
use crate::{Calibration, Cookie, Operation, Worker};

/// The `auto` engine.
///
/// - Short copies, and those whose submitter is going to wait ([`Flags::URGENT`]), are done by
///   hand: past the cache if they are long enough and their source is cold.
/// - Longer ones the worker gets, if it is awake. Where that pays for cold memory only, the source
///   is touched first, with a stopwatch.
/// - A worker that sleeps is woken for a long copy, or for many.
pub struct Auto {
    finished: Finished,
    worker: Option<Worker>,
    /// For targets the submitter will read ([`Flags::CACHE`]), and for others.
    copybreak_in: Copybreak,
    copybreak_out: Copybreak,
    regret: Regret,
}

/// Bytes copied by hand that an awake worker would have been given. When they add up to what would
/// have been worth waking it for, it is woken: a stream of copies each too short for that is not
/// kept from it for ever.
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

    /// From what length on the worker may be asked.
    #[inline]
    fn copybreak(&self, operation: &Operation) -> Copybreak {
        if self.worker.is_none() || operation.flags.contains(Flags::URGENT) {
            Copybreak::NEVER
        } else if operation.flags.contains(Flags::CACHE) {
            self.copybreak_in
        } else {
            self.copybreak_out
        }
    }

    /// Whether the worker is to have an operation of which it takes at least `at.awake`.
    fn goes_to_worker(&mut self, operation: &Operation, at: Copybreak) -> bool {
        let Some(worker) = &self.worker else {
            return false;
        };
        let len = operation.len;
        // A fill reads no source, and a CRC takes longer than any memory access.
        let pays = len >= at.hot
            || operation.kind != Kind::Copy
            // SAFETY: the submitter vouches for the source; no empty operation is handed over.
            || unsafe { is_cold(operation.source, len) };
        pays && worker.has_room()
            && (len >= at.asleep || worker.is_awake() || self.regret.is_enough(len, at.asleep))
    }
}

impl Regret {
    fn is_enough(&mut self, len: usize, enough: usize) -> bool {
        if len < REGRET_BYTES_MIN {
            return false;
        }
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

/// A shorter copy is over before the clock is read.
const REGRET_BYTES_MIN: usize = 4096;

/// Copies that are further apart are no stream: about what a worker spins.
const STREAM_GAP: Duration = Duration::from_micros(50);

// SAFETY: what is done by hand is over when `submit` returns; the rest is the worker's promise.
unsafe impl Backend for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    #[inline]
    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        let at = self.copybreak(operation);
        if operation.len >= at.awake
            && self.goes_to_worker(operation, at)
            && let Some(worker) = &mut self.worker
        {
            // SAFETY: the caller's contract.
            return unsafe { worker.submit(cookie, operation) };
        }
        let &Operation {
            source,
            target,
            len,
            flags,
            ..
        } = operation;
        // SAFETY: the caller's contract is `copy_by_residency`'s and `execute`'s.
        let outcome = unsafe {
            if operation.kind == Kind::Copy && !flags.contains(Flags::CACHE) {
                copy_by_residency(source, target, len);
                Outcome::DONE
            } else {
                execute(operation)
            }
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

    fn park(&mut self, timeout_ns: u64) -> bool {
        self.worker
            .as_mut()
            .is_some_and(|worker| worker.park(timeout_ns))
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
