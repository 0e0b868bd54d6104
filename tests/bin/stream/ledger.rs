//! Two counters in a file that survive their writer.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one end's bytes sent and received. The test compares them with the peer's.
pub(crate) struct Ledger(NonNull<[AtomicU64; 2]>);

// SAFETY: the mapping is never unmapped, and atomics may be used from any thread.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// Maps the two counters of a file; creates the file when it does not exist.
    pub(crate) fn open(path: &str) -> Ledger {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let file = file.expect("the ledger can be opened");
        file.set_len(16)
            .expect("the ledger has room for two counters");
        // SAFETY: a new shared mapping of a file of 16 bytes; page-aligned, so aligned for the
        // counters.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                16,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(mapping, libc::MAP_FAILED, "the ledger can be mapped");
        Ledger(NonNull::new(mapping.cast()).expect("mappings are not at zero"))
    }

    pub(crate) fn set_sent(&self, bytes: u64) {
        self.set(0, bytes);
    }

    pub(crate) fn set_received(&self, bytes: u64) {
        self.set(1, bytes);
    }

    fn set(&self, index: usize, bytes: u64) {
        // SAFETY: the mapping holds two counters and lives as long as the process.
        let counters = unsafe { self.0.as_ref() };
        // Relaxed: one counter implies nothing about the other, and the test reads after this
        // process has ended.
        counters[index].store(bytes, Ordering::Relaxed);
    }
}
