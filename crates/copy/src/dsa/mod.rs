//! The `dsa` engine: Intel's Data Streaming Accelerator, from user space.
//!
//! A work queue of the device is handed to user space by its driver (`idxd`). A descriptor of 64
//! bytes names source, target and length by this process's own addresses; the device translates
//! them itself, writes the target, and then a completion record that we poll.
//!
//! - *Submission* goes to the queue's [`Portal`]: mapped into this process, or, where the kernel
//!   does not allow that, by `write(2)`.
//! - *Long operations* are divided into pieces of at most the queue's maximum, which go one after
//!   another. Finished pieces also show the progress.
//! - *A page that is not present* stops the device: we do not let it wait for the page, because
//!   that would delay the work of all users. The device reports its progress, and the processor
//!   does the rest, touching the page like any program.
//! - *CRC* is left to the processor: the device can compute it, but without a device we could not
//!   check how it continues a seed.
//!
//! If a device disappears, we close its queue, and the driver waits until the device has finished
//! or dropped our operations. Then all of them are reported as gone. A child never uses its
//! parent's queue, which is bound to the parent's memory.

pub mod descriptor;
mod emulated;
mod portal;
mod probe;

use std::sync::atomic::{AtomicU8, Ordering::Acquire};

pub use self::emulated::{DeviceFaults, Emulated};
pub use self::portal::{Portal, PortalError};
pub use self::probe::{Found, probe};

use self::descriptor::{Descriptor, Record, flag, opcode, status};
use crate::backend::{Backend, Outcome, Refused};
use crate::operation::{Flags, Kind};
use crate::{Buffer, Cookie, Operation};

/// The `dsa` engine.
pub struct Dsa {
    /// `None` once the device is gone.
    portal: Option<Box<dyn Portal>>,
    /// Completion records, one for each slot. Pages that are never copied on write.
    records: Buffer,
    slots: Vec<Slot>,
    /// Indices of slots without an operation.
    free: Vec<usize>,
    /// Bytes a descriptor may move.
    piece_max: usize,
    /// Polls since the device last completed a descriptor.
    quiet_polls: u32,
}

/// An operation in the device's hands.
#[derive(Clone, Copy)]
struct Slot {
    cookie: Option<Cookie>,
    operation: Operation,
    /// Bytes in place, of pieces that are complete.
    done: usize,
    /// Length of the piece at hand.
    piece: usize,
    /// The portal took the piece at hand.
    is_submitted: bool,
}

impl Dsa {
    /// An engine over a work queue, with the queue's number of descriptors and its maximum of bytes
    /// per descriptor.
    ///
    /// # Errors
    ///
    /// When there is no memory for the completion records.
    pub fn new(
        portal: impl Portal + 'static,
        entries: usize,
        piece_max: usize,
    ) -> std::io::Result<Dsa> {
        let entries = entries.clamp(1, ENTRIES_MAX);
        let nothing = Operation::fill(std::ptr::null_mut(), 0, 0);
        let slot = Slot {
            cookie: None,
            operation: nothing,
            done: 0,
            piece: 0,
            is_submitted: false,
        };
        Ok(Dsa {
            portal: Some(Box::new(portal)),
            records: Buffer::new(entries * size_of::<Record>())?,
            slots: vec![slot; entries],
            free: (0..entries).rev().collect(),
            piece_max: piece_max.clamp(1, PIECE_BYTES_MAX),
            quiet_polls: 0,
        })
    }

    /// Opens a work queue of this machine and tries it. The returned sentence names the queue and
    /// the way to reach it.
    ///
    /// # Errors
    ///
    /// A sentence for each unusable queue, or one sentence if there is no queue.
    pub fn open(entries: usize) -> Result<(Dsa, String), String> {
        probe::open(entries)
    }

    fn record(&self, at: usize) -> *mut Record {
        // The buffer is aligned to a page, and holds a record for each slot.
        self.records
            .as_ptr()
            .cast_mut()
            .cast::<Record>()
            .wrapping_add(at)
    }

    /// Offers the next piece of a slot's operation to the device.
    fn submit_piece(&mut self, at: usize) -> Result<(), PortalError> {
        let record = self.record(at);
        let slot = &mut self.slots[at];
        slot.piece = self.piece_max.min(slot.operation.len - slot.done);
        slot.is_submitted = false;
        // SAFETY: our own buffer; the device has no descriptor with this record.
        unsafe { record.write_volatile(Record::EMPTY) };
        // SAFETY: within the operation's ranges, which its submitter vouches for.
        let rest = unsafe { slot.operation.rest(slot.done) };
        let descriptor = describe(&rest, slot.piece, record);
        let portal = self.portal.as_mut().ok_or(PortalError::Gone)?;
        // SAFETY: the descriptor names the operation's memory and our record, which both stay until
        // the record says that the device is done, or until it is gone.
        unsafe { portal.submit(&descriptor) }?;
        slot.is_submitted = true;
        Ok(())
    }

    /// The completion record of a submitted piece, once the device has written it.
    fn completion(&self, at: usize) -> Option<Record> {
        let record = self.record(at);
        // SAFETY: a byte of our buffer that the device writes, so it is read as an atomic.
        let status = unsafe { AtomicU8::from_ptr(record.cast()) };
        // Acquire pairs with the device's ordering (data first, then the rest of the record, then
        // the status), or with the Release store in `emulated::perform`.
        if status.load(Acquire) & status::MASK == status::NONE {
            return None;
        }
        // SAFETY: the device is done with this record.
        Some(unsafe { record.read_volatile() })
    }

    /// Counts a finished piece. Returns the operation's outcome if this was its last piece.
    fn advance(&mut self, at: usize, record: Record) -> Option<Outcome> {
        let slot = &mut self.slots[at];
        if record.status & status::MASK == status::SUCCESS {
            slot.done += slot.piece;
            if slot.done == slot.operation.len {
                return Some(Outcome::DONE);
            }
            // If the queue is full just now, the next poll tries again.
            return match self.submit_piece(at) {
                Err(PortalError::Gone) => Some(Outcome::Gone),
                _ => None,
            };
        }
        // A faulty device may report too much: it cannot have done more than the piece.
        let faulted = record.status & status::MASK == status::PAGE_FAULT_NOBOF;
        let bytes = if faulted {
            (record.bytes_completed as usize).min(slot.piece)
        } else {
            0
        };
        let address = if faulted {
            record.fault_addr as usize
        } else {
            0
        };
        Some(Outcome::Partial {
            bytes: slot.done + bytes,
            address,
        })
    }

    fn release(&mut self, at: usize) -> Cookie {
        self.free.push(at);
        self.slots[at]
            .cookie
            .take()
            .expect("only a slot in use ends")
    }

    /// Checks at intervals whether a silent device still exists.
    fn is_gone(&mut self) -> bool {
        self.quiet_polls = self.quiet_polls.wrapping_add(1);
        if self.quiet_polls.is_multiple_of(QUIET_POLLS) {
            let is_alive = self.portal.as_ref().is_some_and(|portal| portal.is_alive());
            if !is_alive {
                // Closing makes the driver end all our operations that the device still has.
                self.portal = None;
            }
        }
        self.portal.is_none()
    }
}

// SAFETY: a slot's outcome is reported when its record says that the device is done with it, or
// after the queue was closed, which the driver does not survive with work of ours in the device.
unsafe impl Backend for Dsa {
    fn name(&self) -> &'static str {
        "dsa"
    }

    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        if self.portal.is_none() || operation.kind == Kind::CopyCrc32c {
            return Err(Refused::Unable);
        }
        let at = self.free.pop().ok_or(Refused::Full)?;
        let operation = *operation;
        self.slots[at] = Slot {
            cookie: Some(cookie),
            operation,
            done: 0,
            piece: 0,
            is_submitted: false,
        };
        self.submit_piece(at).map_err(|error| {
            self.release(at);
            match error {
                PortalError::Busy => Refused::Full,
                PortalError::Gone => {
                    // The next poll reports the operations in flight.
                    self.portal = None;
                    Refused::Unable
                }
            }
        })
    }

    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        if self.free.len() == self.slots.len() {
            return;
        }
        let mut is_quiet = true;
        for at in 0..self.slots.len() {
            if self.slots[at].cookie.is_none() {
                continue;
            }
            if !self.slots[at].is_submitted {
                // The piece was held back by a full queue. If the device is gone, the end of this
                // function detects it.
                if self.submit_piece(at) == Err(PortalError::Gone) {
                    self.portal = None;
                }
                continue;
            }
            if let Some(record) = self.completion(at) {
                is_quiet = false;
                if let Some(outcome) = self.advance(at, record) {
                    report(self.release(at), outcome);
                }
            }
        }
        if !is_quiet {
            self.quiet_polls = 0;
        }
        if self.portal.is_none() || (is_quiet && self.is_gone()) {
            for at in 0..self.slots.len() {
                if self.slots[at].cookie.is_some() {
                    report(self.release(at), Outcome::Gone);
                }
            }
        }
    }

    fn progress(&mut self, cookie: Cookie) -> usize {
        self.slots
            .iter()
            .find(|slot| slot.cookie == Some(cookie))
            .map_or(0, |slot| slot.done)
    }

    fn forget_after_fork(&mut self) {
        // The child does not have the mapping, and its address range may be in use for something
        // else. So it must not be unmapped.
        std::mem::forget(self.portal.take());
        for at in 0..self.slots.len() {
            if self.slots[at].cookie.is_some() {
                self.release(at);
            }
        }
    }
}

/// The descriptor for the first `piece` bytes of an operation.
fn describe(operation: &Operation, piece: usize, record: *mut Record) -> Descriptor {
    let mut flags = flag::COMPLETION_ADDRESS_VALID | flag::REQUEST_COMPLETION;
    if operation.flags.contains(Flags::CACHE) {
        flags |= flag::CACHE_CONTROL;
    }
    let (opcode, source) = match operation.kind {
        Kind::Fill => (opcode::MEMFILL, operation.value),
        _ => (opcode::MEMMOVE, operation.source.expose_provenance() as u64),
    };
    Descriptor {
        pasid_and_privilege: 0,
        flags_and_opcode: flags | u32::from(opcode) << 24,
        completion_addr: record.expose_provenance() as u64,
        source_or_pattern: source,
        target: operation.target.expose_provenance() as u64,
        len: piece as u32,
        interrupt_handle: 0,
        reserved: 0,
        specific: [0; 24],
    }
}

/// Bounds the records' memory; real queues have up to 128 entries.
const ENTRIES_MAX: usize = 1024;

/// The longest piece. A descriptor could be longer, but progress is known only for whole pieces.
const PIECE_BYTES_MAX: usize = 1 << 21;

/// A silent device is checked once in this many polls; a check is a system call.
const QUIET_POLLS: u32 = 1 << 16;
