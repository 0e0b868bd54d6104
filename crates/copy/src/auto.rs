//! The `auto` engine: copies on the submitting thread ("by hand") or by the worker, whichever is
//! cheaper for the length and for the memory's temperature (in a cache or not).

use std::time::{Duration, Instant};

use crate::backend::{Backend, Outcome, Refused};
use crate::calibration::{Copybreak, Direction};
use crate::cpu::{Finished, execute};
use crate::operation::{Flags, Kind};
use crate::residency::{copy_by_residency, is_cold};
use crate::{Calibration, Cookie, Operation, Worker};

/// The `auto` engine.
///
/// - Short copies, and copies whose submitter is going to wait ([`Flags::URGENT`]), are made by
///   hand. They go past the cache if they are long enough and their source is cold.
/// - The worker gets longer copies, if it is awake. For lengths at which the worker pays only for
///   cold memory, the engine first times some loads from the source.
/// - A sleeping worker is woken for a long copy, or for many copies.
pub struct Auto {
    finished: Finished,
    worker: Option<Worker>,
    /// The lengths for targets that the submitter will read ([`Flags::CACHE`]), and for other
    /// targets.
    copybreak_in: Copybreak,
    copybreak_out: Copybreak,
    missed_bytes: MissedBytes,
}

/// Bytes copied by hand that an awake worker would have got. When they add up to a length that is
/// worth a wake-up, the worker is woken. So a stream of copies that are each too short for a
/// wake-up still reaches the worker.
struct MissedBytes {
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
            missed_bytes: MissedBytes {
                bytes: 0,
                last: Instant::now(),
            },
        }
    }

    /// The length from which on the worker may be used.
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

    /// Whether the worker gets an operation that is at least `at.awake` bytes long.
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
            && (len >= at.asleep
                || worker.is_awake()
                || self.missed_bytes.is_enough(len, at.asleep))
    }
}

impl MissedBytes {
    fn is_enough(&mut self, len: usize, enough: usize) -> bool {
        if len < MISSED_BYTES_MIN {
            return false;
        }
        let now = Instant::now();
        if now.duration_since(self.last) > STREAM_GAP {
            // An awake worker would have fallen asleep in between.
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

/// Shorter copies do not count: reading the clock takes longer than such a copy.
const MISSED_BYTES_MIN: usize = 4096;

/// Copies with longer gaps are not a stream. A worker spins for about this time.
const STREAM_GAP: Duration = Duration::from_micros(50);

// SAFETY: a copy by hand is over when `submit` returns; the worker promises the rest.
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
