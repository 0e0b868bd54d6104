//! The safe interface: memory is lent for a scope, and the scope does not end before the copies do.
//!
//! A handle that waits in its destructor is not enough: a handle can be forgotten, and the memory
//! would be freed while the engine uses it. So the loan belongs to the scope, as with
//! [`std::thread::scope`]. Leaving the scope, by return or by panic, waits for all operations that
//! were submitted in it, even if their tickets were forgotten.

use core::cell::RefCell;
use core::marker::PhantomData;
use core::slice;

use alloc::collections::BTreeMap;

use crate::error::Fault;
use crate::ledger::Status;
use crate::operation::Flags;
use crate::wait::Waiting;
use crate::{Channel, Cookie, Operation};

impl Channel {
    /// Runs `body`, in which memory can be lent to the engine, and waits for all operations on lent
    /// memory.
    ///
    /// ```
    /// use toehold_copy::{Channel, Cpu, Waiting};
    ///
    /// let mut channel = Channel::new(Cpu::new(), 64);
    /// let source = vec![7u8; 100_000];
    /// let mut target = vec![0u8; 100_000];
    /// let sum: u64 = channel.scope(|scope| {
    ///     let ticket = scope.copy(&source, &mut target);
    ///     let sum = (0..1000).sum();              // something useful meanwhile
    ///     assert_eq!(ticket.wait(Waiting::PARK).unwrap()[99_999], 7);
    ///     sum
    /// });
    /// assert_eq!(sum, 499_500);
    /// assert_eq!(target, source);
    /// ```
    ///
    /// Memory that ends before the scope does cannot be lent:
    ///
    /// ```compile_fail
    /// # let mut channel = toehold_copy::Channel::new(toehold_copy::Cpu::new(), 64);
    /// channel.scope(|scope| {
    ///     let mut target = vec![0u8; 10];
    ///     scope.copy(&[1; 10], &mut target);
    /// });
    /// ```
    ///
    /// Memory cannot be used while it is lent:
    ///
    /// ```compile_fail
    /// # let mut channel = toehold_copy::Channel::new(toehold_copy::Cpu::new(), 64);
    /// let mut target = vec![0u8; 10];
    /// channel.scope(|scope| {
    ///     scope.copy(&[1; 10], &mut target);
    ///     target[0] = 1;
    /// });
    /// ```
    pub fn scope<'env, F, T>(&'env mut self, body: F) -> T
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
    {
        let scope = Scope {
            channel: RefCell::new(DrainOnDrop(self)),
            kept: RefCell::new(BTreeMap::new()),
            scope: PhantomData,
        };
        body(&scope)
    }
}

/// A scope in which memory can be lent to an engine: see [`Channel::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    channel: RefCell<DrainOnDrop<'env>>,
    /// The statuses of operations whose entries were used again, unless they are plain success.
    kept: RefCell<BTreeMap<Cookie, Status>>,
    /// Invariant in `'scope`, so that it cannot be shortened to a loan that ends earlier.
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// Waits for everything when it is dropped, which the scope's owner cannot prevent: it is a local
/// of [`Channel::scope`].
struct DrainOnDrop<'env>(&'env mut Channel);

impl Drop for DrainOnDrop<'_> {
    fn drop(&mut self) {
        self.0.drain();
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Copies `source` to the beginning of `target`.
    ///
    /// # Panics
    ///
    /// When the target is shorter, or the engine needs [registered](crate::Buffer) memory and this
    /// is not.
    pub fn copy<'a>(
        &'a self,
        source: &'scope [u8],
        target: &'scope mut [u8],
    ) -> Ticket<'a, 'scope> {
        assert!(
            source.len() <= target.len(),
            "the target is shorter than the source"
        );
        self.lend(Operation::copy(
            source.as_ptr(),
            target.as_mut_ptr(),
            source.len(),
        ))
    }

    /// Copies, and continues the CRC-32C `seed` (zero to begin) over the bytes:
    /// [`Ticket::wait_crc32c`].
    ///
    /// # Panics
    ///
    /// As [`copy`](Self::copy).
    pub fn copy_crc32c<'a>(
        &'a self,
        source: &'scope [u8],
        target: &'scope mut [u8],
        seed: u32,
    ) -> Ticket<'a, 'scope> {
        assert!(
            source.len() <= target.len(),
            "the target is shorter than the source"
        );
        let (from, to) = (source.as_ptr(), target.as_mut_ptr());
        self.lend(Operation::copy_crc32c(from, to, source.len(), seed))
    }

    /// Repeats the eight bytes of `pattern`, lowest first, over the target.
    ///
    /// # Panics
    ///
    /// When the engine needs [registered](crate::Buffer) memory and this is not.
    pub fn fill<'a>(&'a self, target: &'scope mut [u8], pattern: u64) -> Ticket<'a, 'scope> {
        self.lend(Operation::fill(target.as_mut_ptr(), target.len(), pattern))
    }

    /// Rings the engine's doorbell: operations submitted so far begin, if they have not begun.
    pub fn flush(&self) {
        self.channel.borrow_mut().0.flush();
    }

    fn lend<'a>(&'a self, operation: Operation) -> Ticket<'a, 'scope> {
        let channel = &mut *self.channel.borrow_mut().0;
        if channel.vacant() == 0 {
            let oldest = Cookie::new(channel.issued().get() + 1 - channel.entries() as u64);
            let waited = channel.wait(oldest, Waiting::PARK);
            debug_assert!(waited.is_ok(), "there was no deadline");
        }
        self.keep_evicted(channel);
        let (target, len) = (operation.target, operation.len);
        // SAFETY: both ranges are borrowed for 'scope. `Channel::scope` drains the channel before
        // 'scope ends, whatever becomes of the ticket, and the ticket lends out only bytes in
        // place.
        let cookie = unsafe { channel.submit(operation.with(Flags::NONE)) }
            .unwrap_or_else(|error| panic!("{error}"));
        Ticket {
            scope: self,
            cookie,
            target,
            len,
            lent: PhantomData,
        }
    }

    /// Remembers the status of the operation whose entry the next operation takes, unless it is
    /// plain success.
    fn keep_evicted(&self, channel: &mut Channel) {
        let next = channel.issued().get() + 1;
        if let Some(old) = next
            .checked_sub(channel.entries() as u64)
            .filter(|&old| old > 0)
        {
            let status = channel.status(Cookie::new(old));
            if !matches!(status, Status::Done { crc32c: 0 } | Status::Retired) {
                self.kept.borrow_mut().insert(Cookie::new(old), status);
            }
        }
    }
}

/// A loan to the engine, and the way to its result. It may be dropped or forgotten: the scope waits
/// anyway.
#[must_use = "the scope waits for the copy anyway, but only the ticket gives the bytes back early"]
pub struct Ticket<'a, 'scope> {
    scope: &'a dyn Lender,
    cookie: Cookie,
    target: *mut u8,
    len: usize,
    lent: PhantomData<&'scope mut [u8]>,
}

impl<'scope> Ticket<'_, 'scope> {
    /// The operation's cookie.
    pub fn cookie(&self) -> Cookie {
        self.cookie
    }

    /// The bytes at the target's beginning that are in place already.
    pub fn ready(&self) -> &[u8] {
        let bytes = match self.scope.look(self.cookie) {
            Status::Pending { bytes } => bytes,
            Status::Done { .. } | Status::Retired => self.len,
            Status::Failed(_) => 0,
        };
        // SAFETY: the target is lent for 'scope, which outlives this borrow; its first `bytes` are
        // in place, the engine does not touch them again, and they were initialized before.
        unsafe { slice::from_raw_parts(self.target, bytes.min(self.len)) }
    }

    /// True when the copy is over and [`wait`](Self::wait) would return at once.
    pub fn is_over(&self) -> bool {
        self.scope.look(self.cookie).is_over()
    }

    /// Waits for the copy and gives the written part of the target back. A deadline in `waiting` is
    /// ignored: the loan cannot end early.
    ///
    /// # Errors
    ///
    /// The copy's failure. The target holds an unknown mixture.
    pub fn wait(self, waiting: Waiting) -> Result<&'scope mut [u8], Fault> {
        self.wait_crc32c(waiting).map(|(bytes, _)| bytes)
    }

    /// As [`wait`](Self::wait), with the CRC-32C, or zero if none was asked for.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_crc32c(self, waiting: Waiting) -> Result<(&'scope mut [u8], u32), Fault> {
        let crc32c = match self.scope.wait(self.cookie, waiting) {
            Status::Done { crc32c } => crc32c,
            Status::Retired => 0,
            Status::Failed(fault) => return Err(fault),
            Status::Pending { .. } => unreachable!("waiting without a deadline ends with the copy"),
        };
        // SAFETY: lent for 'scope, over, and this ticket, which is consumed, was the only way to
        // it.
        Ok((
            unsafe { slice::from_raw_parts_mut(self.target, self.len) },
            crc32c,
        ))
    }
}

/// The part of a scope that a ticket needs, without the scope's other lifetime.
trait Lender {
    fn look(&self, cookie: Cookie) -> Status;
    fn wait(&self, cookie: Cookie, waiting: Waiting) -> Status;
}

impl Lender for Scope<'_, '_> {
    fn look(&self, cookie: Cookie) -> Status {
        let channel = &mut *self.channel.borrow_mut().0;
        channel.poll();
        self.recall(cookie, channel.status(cookie))
    }

    fn wait(&self, cookie: Cookie, waiting: Waiting) -> Status {
        let waiting = waiting.without_deadline();
        let channel = &mut *self.channel.borrow_mut().0;
        let waited = channel.wait(cookie, waiting);
        self.recall(
            cookie,
            waited.unwrap_or_else(|_| unreachable!("there was no deadline")),
        )
    }
}

impl Scope<'_, '_> {
    fn recall(&self, cookie: Cookie, status: Status) -> Status {
        match status {
            Status::Retired => self.kept.borrow().get(&cookie).copied().unwrap_or(status),
            status => status,
        }
    }
}
