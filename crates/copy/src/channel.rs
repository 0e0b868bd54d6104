//! A channel to a copy engine: one producer's view of its submitted and finished operations.

use alloc::boxed::Box;

use crate::backend::{Backend, Outcome, Refused};
use crate::cpu::execute;
use crate::error::{Fault, SubmitError, TimedOut};
use crate::ledger::{Ledger, Status};
use crate::operation::{Flags, Kind};
use crate::wait::{AfterSpin, Waiting};
use crate::{Cookie, Operation};

/// A channel to a copy engine, for one producer.
///
/// [`submit`](Self::submit) gives operations consecutive cookies. The engine may finish them in any
/// order. [`poll`](Self::poll) takes the engine's reports and returns the *watermark*: the
/// operations of all cookies up to it are over. [`progress`](Self::progress) returns how many bytes
/// of a running operation can be used already.
///
/// An operation is *held* while it is fenced or while the engine's queue is full; a later poll
/// hands it over. The processor does the operations that an engine cannot do or does not finish, so
/// a channel always works.
///
/// Dropping a channel waits for everything in flight. Memory in the safe interface is tied to
/// [`scope`](Self::scope) instead, which cannot be forgotten.
///
/// # Fork
///
/// In the child of a fork, all operations in flight end as [`Fault::Forked`], because the parent's
/// engine goes on in the parent's memory only. The processor does all later operations of the
/// child. Never lend an engine private memory that a fork may copy on write *and* that the child
/// relies on: the child has the bytes as they were at the fork. [`Buffer`](crate::Buffer) is never
/// copied.
pub struct Channel {
    backend: Box<dyn Backend>,
    ledger: Ledger,
    /// The last cookie that the backend, or the processor, has been given.
    ///
    /// Invariant: watermark <= handed <= issued.
    handed: Cookie,
    /// An operation was handed over since the last doorbell.
    unrung: bool,
    recovery: Recovery,
    counters: Counters,
    #[cfg(feature = "std")]
    epoch: u64,
}

/// The treatment of an operation that its engine did not finish.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recovery {
    /// The processor finishes it, and it counts as done.
    #[default]
    Processor,
    /// The operation ends as [`Status::Failed`].
    Report,
}

/// The counts of a channel's work so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Operations accepted.
    pub submitted: u64,
    /// Operations that are over, with any outcome.
    pub completed: u64,
    /// Bytes of operations that ended well.
    pub bytes: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Times the producer went to sleep.
    pub parks: u64,
    /// Operations the engine would not take, done by the processor.
    pub refused: u64,
    /// Operations the engine began and the processor finished.
    pub finished_by_processor: u64,
    /// Operations that ended as failed.
    pub failed: u64,
    /// Times an operation had to be held because the engine's queue was full.
    pub queue_full: u64,
}

impl Channel {
    /// A channel to this engine, for at most about `entries` operations in flight: a power of two,
    /// between 2 and 65,536.
    pub fn new(backend: impl Backend + 'static, entries: usize) -> Channel {
        Channel::from_boxed(Box::new(backend), entries)
    }

    pub(crate) fn from_boxed(backend: Box<dyn Backend>, entries: usize) -> Channel {
        Channel {
            backend,
            ledger: Ledger::new(entries),
            handed: Cookie::NONE,
            unrung: false,
            recovery: Recovery::default(),
            counters: Counters::default(),
            #[cfg(feature = "std")]
            epoch: crate::fork::epoch(),
        }
    }

    /// Chooses what happens to operations that the engine does not finish.
    pub fn set_recovery(&mut self, recovery: Recovery) {
        self.recovery = recovery;
    }

    /// Submits an operation. The engine decides whether it begins at once or with the batch's
    /// doorbell.
    ///
    /// # Errors
    ///
    /// Nothing has been done when it returns an error, and no cookie was used.
    ///
    /// # Safety
    ///
    /// Until the operation is over ([`Status::is_over`], or the watermark has reached its cookie,
    /// or this channel has been dropped), whatever happens to this `Channel` value:
    /// - the source is readable and nobody writes it, unless any mixture of old and new bytes is
    ///   acceptable;
    /// - the target is writable, and nobody reads or writes it, except for reading the bytes that
    ///   [`progress`](Self::progress) has reported; or the target is untrusted memory shared by
    ///   several processes ([`from_shared`](crate::from_shared)).
    ///
    /// An unmapped address ends the process with SIGSEGV, or the operation with a fault, depending
    /// on the engine.
    #[inline]
    pub unsafe fn submit(&mut self, operation: Operation) -> Result<Cookie, SubmitError> {
        operation.check()?;
        self.check_registered(&operation)?;
        self.check_fork();
        if self.ledger.vacant() == 0 {
            self.poll();
        }
        let held = self.handed != self.ledger.issued();
        let cookie = self.ledger.begin(operation).ok_or(SubmitError::Full)?;
        self.counters.submitted += 1;
        if !held {
            self.hand_over();
        }
        if operation.flags.contains(Flags::SUBMIT_NOW) {
            self.flush();
        }
        Ok(cookie)
    }

    /// Copies a list of sources to a list of targets, as if each were one piece; the cookie is the
    /// last operation's, and [`wait_through`](Self::wait_through) waits for them all. Empty parts
    /// are allowed. `None` when there was nothing to copy.
    ///
    /// # Errors
    ///
    /// All or nothing: the entries are counted before the first is used.
    ///
    /// # Safety
    ///
    /// As for [`submit`](Self::submit), for every part. Sources and targets do not overlap across
    /// parts.
    pub unsafe fn copy_vectored(
        &mut self,
        sources: &[(*const u8, usize)],
        targets: &[(*mut u8, usize)],
        flags: Flags,
    ) -> Result<Option<Cookie>, SubmitError> {
        self.check_fork();
        let mut parts = 0;
        for part in Pieces::new(sources, targets)? {
            part.check()?;
            self.check_registered(&part)?;
            parts += 1;
        }
        if parts > self.ledger.capacity() {
            return Err(SubmitError::TooManyParts);
        }
        if parts > self.ledger.vacant() {
            self.poll();
            if parts > self.ledger.vacant() {
                return Err(SubmitError::Full);
            }
        }
        let mut last = None;
        let mut part_flags = Flags::from_bits_truncate(flags.bits() & !Flags::SUBMIT_NOW.bits());
        for part in Pieces::new(sources, targets)? {
            // SAFETY: one part of what the caller vouches for.
            last = Some(unsafe { self.submit(part.with(part_flags)) }?);
            // The fence stands before the list, not between its parts.
            part_flags = Flags::from_bits_truncate(part_flags.bits() & !Flags::FENCE.bits());
        }
        if flags.contains(Flags::SUBMIT_NOW) {
            self.flush();
        }
        Ok(last)
    }

    /// Rings the engine's doorbell if anything was submitted since the last one.
    #[inline]
    pub fn flush(&mut self) {
        if self.unrung {
            self.unrung = false;
            self.counters.doorbells += 1;
            self.backend.flush();
        }
    }

    /// Takes the engine's reports, hands over held operations, and returns the watermark: every
    /// operation up to and including that cookie is over.
    #[inline]
    pub fn poll(&mut self) -> Cookie {
        self.check_fork();
        self.collect();
        while self.handed != self.ledger.issued() {
            let before = self.handed;
            self.hand_over();
            if self.handed == before {
                break;
            }
        }
        self.flush();
        self.ledger.watermark()
    }

    /// The status of an operation as of the last [`poll`](Self::poll), with the current progress of
    /// a pending operation.
    ///
    /// # Panics
    ///
    /// When this channel has not issued the cookie.
    pub fn status(&mut self, cookie: Cookie) -> Status {
        self.check_issued(cookie);
        match self.ledger.status(cookie) {
            Status::Pending { .. } => Status::Pending {
                bytes: self.pending_progress(cookie),
            },
            status => status,
        }
    }

    /// Bytes at the beginning of the operation's target that are in place and may be read, while
    /// the rest is still being written. A failed operation has none to rely on.
    ///
    /// # Panics
    ///
    /// When this channel has not issued the cookie.
    pub fn progress(&mut self, cookie: Cookie) -> usize {
        match self.status(cookie) {
            Status::Pending { bytes } => bytes,
            Status::Done { .. } => self.ledger.operation(cookie).len,
            Status::Failed(_) => 0,
            // Its length is no longer known, and all of it is in place.
            Status::Retired => usize::MAX,
        }
    }

    /// Waits until this operation is over.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] when the deadline came first: the operation goes on.
    ///
    /// # Panics
    ///
    /// When this channel has not issued the cookie.
    pub fn wait(&mut self, cookie: Cookie, waiting: Waiting) -> Result<Status, TimedOut> {
        self.check_issued(cookie);
        self.wait_for(waiting, |channel| !channel.ledger.is_pending(cookie))?;
        Ok(self.ledger.status(cookie))
    }

    /// Waits until this operation and every earlier one are over.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] when the deadline came first: the operations go on.
    ///
    /// # Panics
    ///
    /// When this channel has not issued the cookie.
    pub fn wait_through(&mut self, cookie: Cookie, waiting: Waiting) -> Result<(), TimedOut> {
        self.check_issued(cookie);
        self.wait_for(waiting, |channel| channel.ledger.watermark() >= cookie)
    }

    /// Waits until everything is over.
    pub fn drain(&mut self) {
        let all = self.ledger.issued();
        let drained = self.wait_through(all, Waiting::PARK);
        debug_assert!(drained.is_ok(), "there was no deadline");
    }

    /// The last cookie up to which everything is over, as of the last poll.
    #[inline]
    pub fn watermark(&self) -> Cookie {
        self.ledger.watermark()
    }

    /// The last cookie issued.
    #[inline]
    pub fn issued(&self) -> Cookie {
        self.ledger.issued()
    }

    /// Operations that can be submitted before the channel is full, as of the last poll.
    #[inline]
    pub fn vacant(&self) -> usize {
        self.ledger.vacant()
    }

    /// Operations that can be in flight at once.
    #[inline]
    pub fn entries(&self) -> usize {
        self.ledger.capacity()
    }

    /// The engine's name.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// The counts of this channel's work so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Processor time that the engine's helpers have spent so far, in nanoseconds: a part of the
    /// copies' cost. `None` if unknown.
    pub fn helper_cpu_ns(&self) -> Option<u64> {
        self.backend.helper_cpu_ns()
    }

    /// Takes the engine back without waiting for its operations: for an engine that is given up.
    #[cfg(feature = "std")]
    pub(crate) fn into_backend(mut self) -> Box<dyn Backend> {
        let retired = core::mem::replace(&mut self.backend, Box::new(crate::Cpu::new()));
        self.ledger = Ledger::new(0);
        self.handed = Cookie::NONE;
        retired
    }

    /// Takes outcomes from the backend into the ledger.
    #[inline]
    fn collect(&mut self) {
        let Channel {
            backend,
            ledger,
            counters,
            recovery,
            ..
        } = self;
        backend.poll(&mut |cookie, outcome| {
            settle(ledger, counters, *recovery, cookie, outcome);
        });
    }

    /// Offers the next held operation to the backend.
    #[inline]
    fn hand_over(&mut self) {
        let next = self.handed.next();
        let operation = self.ledger.operation(next);
        if operation.flags.contains(Flags::FENCE) && self.ledger.watermark() != self.handed {
            return;
        }
        if operation.is_empty() {
            self.handed = next;
            self.settle(next, Outcome::DONE);
            return;
        }
        // SAFETY: checked when it was submitted; its submitter vouches for the memory until it is
        // over.
        match unsafe { self.backend.submit(next, &operation) } {
            Ok(()) => {
                self.handed = next;
                self.unrung = true;
            }
            Err(Refused::Full) => self.counters.queue_full += 1,
            Err(Refused::Unable) => {
                self.counters.refused += 1;
                self.handed = next;
                // SAFETY: as above, and the backend has not taken it.
                let outcome = unsafe { execute(&operation) };
                self.settle(next, outcome);
            }
        }
    }

    fn settle(&mut self, cookie: Cookie, outcome: Outcome) {
        settle(
            &mut self.ledger,
            &mut self.counters,
            self.recovery,
            cookie,
            outcome,
        );
    }

    fn pending_progress(&mut self, cookie: Cookie) -> usize {
        // A CRC may have to start over on the processor, which writes the first bytes again.
        let operation = self.ledger.operation(cookie);
        if cookie > self.handed || operation.kind == Kind::CopyCrc32c {
            return 0;
        }
        self.backend.progress(cookie).min(operation.len)
    }

    fn wait_for(
        &mut self,
        waiting: Waiting,
        is_over: impl Fn(&Channel) -> bool,
    ) -> Result<(), TimedOut> {
        let (mut looks, spins) = (0u64, u64::from(waiting.spins));
        loop {
            self.poll();
            if is_over(self) {
                return Ok(());
            }
            looks += 1;
            if looks <= spins && !looks.is_multiple_of(CLOCK_LOOKS) {
                core::hint::spin_loop();
                continue;
            }
            let timeout_ns = waiting.timeout_ns().ok_or(TimedOut)?;
            if looks > spins {
                self.rest(waiting.then, timeout_ns);
            }
        }
    }

    fn rest(&mut self, then: AfterSpin, timeout_ns: u64) {
        match then {
            AfterSpin::Spin => core::hint::spin_loop(),
            AfterSpin::Park if self.backend.park(timeout_ns) => self.counters.parks += 1,
            AfterSpin::Park | AfterSpin::Yield => {
                #[cfg(feature = "std")]
                std::thread::yield_now();
                #[cfg(not(feature = "std"))]
                core::hint::spin_loop();
            }
        }
    }

    fn check_issued(&self, cookie: Cookie) {
        assert!(
            cookie <= self.ledger.issued(),
            "cookie {cookie} is not of this channel"
        );
    }

    #[inline]
    fn check_registered(&self, operation: &Operation) -> Result<(), SubmitError> {
        #[cfg(feature = "std")]
        if self.backend.needs_registration() && !operation.is_empty() {
            use crate::buffer::is_registered;
            let reads = operation.kind != Kind::Fill;
            if !is_registered(operation.target, operation.len)
                || (reads && !is_registered(operation.source, operation.len))
            {
                return Err(SubmitError::NotRegistered);
            }
        }
        let _ = operation;
        Ok(())
    }

    /// Writes off the parent's operations in flight, if this process is a child that was forked
    /// since.
    #[inline]
    fn check_fork(&mut self) {
        #[cfg(feature = "std")]
        if crate::fork::epoch() != self.epoch {
            self.become_child();
        }
    }

    #[cfg(feature = "std")]
    #[cold]
    fn become_child(&mut self) {
        self.epoch = crate::fork::epoch();
        self.backend.forget_after_fork();
        let issued = self.ledger.issued();
        let mut cookie = self.ledger.watermark();
        while cookie < issued {
            cookie = cookie.next();
            if self.ledger.is_pending(cookie) {
                self.counters.failed += 1;
                self.counters.completed += 1;
                self.ledger.end(cookie, Err(Fault::Forked));
            }
        }
        self.handed = issued;
        self.unrung = false;
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.drain();
    }
}

/// Enters the outcome of an operation, after finishing it on the processor if its engine did not.
#[inline]
fn settle(
    ledger: &mut Ledger,
    counters: &mut Counters,
    recovery: Recovery,
    cookie: Cookie,
    outcome: Outcome,
) {
    let (done, fault) = match outcome {
        Outcome::Done { crc32c } => {
            counters.completed += 1;
            counters.bytes += ledger.operation(cookie).len as u64;
            return ledger.end(cookie, Ok(crc32c));
        }
        Outcome::Partial { bytes, address } => (bytes, Fault::Address { address, bytes }),
        Outcome::Gone => (0, Fault::Gone),
    };
    if recovery == Recovery::Report {
        counters.completed += 1;
        counters.failed += 1;
        return ledger.end(cookie, Err(fault));
    }
    counters.finished_by_processor += 1;
    let operation = ledger.operation(cookie);
    // SAFETY: the operation is not over for its submitter, so its memory is valid; its engine has
    // reported its outcome and never touches it again.
    let outcome = unsafe { execute(&operation.rest(done)) };
    let Outcome::Done { crc32c } = outcome else {
        unreachable!("the processor finishes what it begins")
    };
    counters.completed += 1;
    counters.bytes += operation.len as u64;
    ledger.end(cookie, Ok(crc32c));
}

/// Walks a list of sources and a list of targets side by side. Each piece lies in one part of both
/// lists.
#[derive(Clone)]
struct Pieces<'a> {
    sources: &'a [(*const u8, usize)],
    targets: &'a [(*mut u8, usize)],
    /// Bytes used of the first source and of the first target.
    used: (usize, usize),
}

impl<'a> Pieces<'a> {
    fn new(
        sources: &'a [(*const u8, usize)],
        targets: &'a [(*mut u8, usize)],
    ) -> Result<Pieces<'a>, SubmitError> {
        let mut from = 0usize;
        for part in sources {
            from = from.checked_add(part.1).ok_or(SubmitError::TooLong)?;
        }
        let mut to = 0usize;
        for part in targets {
            to = to.checked_add(part.1).ok_or(SubmitError::TooLong)?;
        }
        if from != to {
            return Err(SubmitError::Uneven);
        }
        Ok(Pieces {
            sources,
            targets,
            used: (0, 0),
        })
    }
}

impl Iterator for Pieces<'_> {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        while self.sources.first()?.1 == self.used.0 {
            self.sources = &self.sources[1..];
            self.used.0 = 0;
        }
        while self.targets.first()?.1 == self.used.1 {
            self.targets = &self.targets[1..];
            self.used.1 = 0;
        }
        let (source, target) = (self.sources[0], self.targets[0]);
        let len = (source.1 - self.used.0).min(target.1 - self.used.1);
        let piece = Operation::copy(
            source.0.wrapping_add(self.used.0),
            target.0.wrapping_add(self.used.1),
            len,
        );
        self.used.0 += len;
        self.used.1 += len;
        Some(piece)
    }
}

/// A spinning waiter reads the clock once in this many looks: reading the clock costs as much as
/// several looks.
const CLOCK_LOOKS: u64 = 64;
