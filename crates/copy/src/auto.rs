//! The `auto` engine: by hand or by the worker, as length and temperature make it pay.

use std::time::{Duration, Instant};

use crate::backend::{Backend, Outcome, Refused};
use crate::calibration::{Copybreak, Direction};
use crate::cpu::{Finished, execute};
use crate::heat::{PROBE_BYTES, copy_by_heat, copy_page};
use crate::operation::{Flags, Kind};
use crate::{Calibration, Cookie, NT_BYTES_MIN, Operation, Worker, copy_nontemporal, from_shared};

/// The `auto` engine.
///
/// - Short copies, and those whose submitter is going to wait ([`Flags::URGENT`]), are done by hand.
/// - Of a longer one the first page is done by hand, with a stopwatch. If it was in the cache, so is the rest, and
///   by hand is fastest: a worker would first have to fetch it from there. If it was not, the worker gets the rest.
/// - A worker that sleeps is woken for a long copy, or for many; otherwise cold memory goes past the cache, by hand.
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

    /// From what length on the worker may be asked.
    #[inline]
    fn copybreak(&self, operation: &Operation) -> Copybreak {
        if self.worker.is_none() || operation.flags.contains(Flags::URGENT) {
            return Copybreak::NEVER;
        }
        let inward = operation.flags.contains(Flags::CACHE);
        if inward {
            self.copybreak_in
        } else {
            self.copybreak_out
        }
    }

    /// Whether the worker is to have an operation that is long enough for it.
    fn goes_to_worker(&mut self, len: usize, at: Copybreak) -> bool {
        let Some(worker) = &self.worker else {
            return false;
        };
        worker.has_room()
            && (len >= at.asleep || worker.is_awake() || self.regret.is_enough(len, at.asleep))
    }

    /// Copies, or begins to and leaves the rest to the worker: then `false`.
    ///
    /// # Safety
    ///
    /// As for [`Backend::submit`].
    unsafe fn copy(&mut self, cookie: Cookie, operation: &Operation) -> bool {
        let &Operation {
            source,
            target,
            len,
            flags,
            ..
        } = operation;
        let at = self.copybreak(operation);
        if len < at.awake.max(2 * PROBE_BYTES) {
            // SAFETY: the caller's contract.
            unsafe {
                match flags.contains(Flags::CACHE) {
                    true => from_shared(source, target, len),
                    false => copy_by_heat(source, target, len),
                }
            }
            return true;
        }
        // SAFETY: the caller's contract; `len` is more than a page.
        let (is_cold, rest) = unsafe { (copy_page(source, target), operation.rest(PROBE_BYTES)) };
        if is_cold
            && self.goes_to_worker(len, at)
            && let Some(worker) = &mut self.worker
        {
            // SAFETY: the caller's contract, for the rest.
            let taken = unsafe { worker.submit_rest(cookie, &rest, PROBE_BYTES) };
            if taken.is_ok() {
                return false;
            }
        }
        // SAFETY: the caller's contract, for the rest.
        unsafe {
            match is_cold && len >= NT_BYTES_MIN && !flags.contains(Flags::CACHE) {
                true => copy_nontemporal(rest.source, rest.target, rest.len),
                false => from_shared(rest.source, rest.target, rest.len),
            }
        }
        true
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
        if operation.kind == Kind::Copy {
            // SAFETY: the caller's contract.
            if unsafe { self.copy(cookie, operation) } {
                self.finished.push(cookie, Outcome::DONE);
            }
            return Ok(());
        }
        let at = self.copybreak(operation);
        if operation.len >= at.awake
            && self.goes_to_worker(operation.len, at)
            && let Some(worker) = &mut self.worker
        {
            // SAFETY: the caller's contract.
            return unsafe { worker.submit(cookie, operation) };
        }
        // SAFETY: the caller's contract is `execute`'s.
        self.finished.push(cookie, unsafe { execute(operation) });
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
