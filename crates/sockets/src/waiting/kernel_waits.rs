//! Threads that the kernel lets wait for a connection.

use core::sync::atomic::{AtomicU32, Ordering};

/// Threads inside `poll` or `select` of the kernel's, for a connection that the kernel answers for.
static KERNEL_WAITS: AtomicU32 = AtomicU32::new(0);

/// A thread that the kernel lets wait for a connection, until it is dropped.
pub(crate) struct KernelWait(bool);

impl KernelWait {
    /// Counts a thread in that is about to wait in the kernel, if a connection is among the
    /// descriptors for which it waits.
    #[inline]
    pub(crate) fn begin(counts: bool) -> KernelWait {
        if counts {
            // Relaxed: whoever closes what another thread waits for may come before or after.
            KERNEL_WAITS.fetch_add(1, Ordering::Relaxed);
        }
        KernelWait(counts)
    }
}

impl Drop for KernelWait {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            KERNEL_WAITS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// True while a thread of this process is inside the kernel's `poll` or `select` for a connection.
pub(crate) fn is_any() -> bool {
    KERNEL_WAITS.load(Ordering::Relaxed) != 0
}

/// After fork: the threads that waited are the parent's.
pub(crate) fn forked() {
    KERNEL_WAITS.store(0, Ordering::Relaxed);
}
