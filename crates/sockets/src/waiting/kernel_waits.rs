//! Threads that wait for a connection inside the kernel.

use core::sync::atomic::{AtomicU32, Ordering};

/// Number of threads inside the kernel's `poll` or `select` for a connection that the kernel
/// answers.
static KERNEL_WAITS: AtomicU32 = AtomicU32::new(0);

/// Counts a thread that waits for a connection inside the kernel, until it is dropped.
pub(crate) struct KernelWait(bool);

impl KernelWait {
    /// Counts a thread that is about to wait in the kernel, if one of its descriptors is a
    /// connection.
    #[inline]
    pub(crate) fn begin(counts: bool) -> KernelWait {
        if counts {
            // Relaxed: a thread that closes such a descriptor may come before or after this.
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
