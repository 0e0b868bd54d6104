//! A small device for tests: reads descriptors, moves bytes, writes completion records, on a thread
//! of its own.
//!
//! The device is as asynchronous as the real one, and can simulate its faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::descriptor::{Descriptor, Record, opcode, status};
use super::portal::{Portal, PortalError};

/// The faults of the emulated device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceFaults {
    /// Descriptors its queue holds; zero for 32.
    pub queue: usize,
    /// Every `fault_every`-th descriptor meets a missing page, part of the way; zero for never.
    pub fault_every: usize,
    /// Every `error_every`-th descriptor is reported as malformed; zero for never.
    pub error_every: usize,
    /// With a fault, reports more bytes than the descriptor has.
    pub exaggerates: bool,
    /// After this many descriptors the device falls silent, and then it is gone; zero for never.
    pub dies_after: usize,
}

/// The device, seen from its portal.
pub struct Emulated {
    faults: DeviceFaults,
    queue: Option<Sender<Descriptor>>,
    in_queue: Arc<AtomicUsize>,
    is_dead: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Emulated {
    /// A device with these faults.
    pub fn new(faults: DeviceFaults) -> Emulated {
        let (sender, receiver) = channel::<Descriptor>();
        let in_queue = Arc::new(AtomicUsize::new(0));
        let is_dead = Arc::new(AtomicBool::new(false));
        // Relaxed throughout: a count and a mark that order nothing. Channel and record do.
        let (left, dead) = (Arc::clone(&in_queue), Arc::clone(&is_dead));
        let thread = std::thread::spawn(move || {
            for (number, descriptor) in (1..).zip(receiver) {
                if faults.dies_after != 0 && number > faults.dies_after {
                    dead.store(true, Ordering::Relaxed);
                    return;
                }
                // SAFETY: the submitter vouches for the descriptor's memory until the record is
                // written.
                unsafe { perform(&descriptor, number, faults) };
                left.fetch_sub(1, Ordering::Relaxed);
            }
        });
        Emulated {
            faults,
            queue: Some(sender),
            in_queue,
            is_dead,
            thread: Some(thread),
        }
    }
}

impl Portal for Emulated {
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Result<(), PortalError> {
        let room = if self.faults.queue == 0 {
            32
        } else {
            self.faults.queue
        };
        if self.in_queue.load(Ordering::Relaxed) >= room {
            return Err(PortalError::Busy);
        }
        self.in_queue.fetch_add(1, Ordering::Relaxed);
        let queue = self.queue.as_ref().ok_or(PortalError::Gone)?;
        queue.send(*descriptor).map_err(|_| PortalError::Gone)
    }

    fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // Like the driver: closing the queue waits for the device.
            let _ = thread.join();
        }
    }
}

/// # Safety
///
/// The descriptor's memory and record are valid and nobody else's.
unsafe fn perform(descriptor: &Descriptor, number: usize, faults: DeviceFaults) {
    let is_every = |every: usize| every != 0 && number.is_multiple_of(every);
    let len = descriptor.len as usize;
    let (mut code, mut bytes, mut address) = (status::SUCCESS, len, 0);
    if is_every(faults.error_every) {
        (code, bytes) = (status::BAD_OPCODE, 0);
    } else if is_every(faults.fault_every) {
        (code, bytes) = (status::PAGE_FAULT_NOBOF, len / 2);
        address = descriptor.target + bytes as u64;
    }
    let target: *mut u8 = std::ptr::with_exposed_provenance_mut(descriptor.target as usize);
    match descriptor.opcode() {
        opcode::MEMMOVE => {
            let source = std::ptr::with_exposed_provenance(descriptor.source_or_pattern as usize);
            // SAFETY: `bytes <= len`, and the ranges are the submitter's.
            unsafe { crate::from_shared(source, target, bytes) };
        }
        opcode::MEMFILL => {
            let pattern = descriptor.source_or_pattern.to_le_bytes();
            for at in 0..bytes {
                // SAFETY: `at < len`.
                unsafe { target.add(at).write(pattern[at % 8]) };
            }
        }
        _ => code = status::BAD_OPCODE,
    }
    let bytes_reported = if faults.exaggerates {
        u32::MAX
    } else {
        bytes as u32
    };
    let record: *mut Record =
        std::ptr::with_exposed_provenance_mut(descriptor.completion_addr as usize);
    // SAFETY: the record is the submitter's, and ours until its status is written.
    unsafe {
        (&raw mut (*record).bytes_completed).write_volatile(bytes_reported);
        (&raw mut (*record).fault_addr).write_volatile(address);
        // Release pairs with the Acquire load in `Dsa::completion`.
        AtomicU8::from_ptr(record.cast()).store(code, Ordering::Release);
    }
}
