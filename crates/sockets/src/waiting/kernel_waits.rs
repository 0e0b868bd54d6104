//! Threads that wait for a connection inside the kernel.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::system::cancellation;

/// Number of threads inside the kernel's `poll` or `select` for a connection that the kernel
/// answers.
static KERNEL_WAITS: AtomicU32 = AtomicU32::new(0);

/// Waits in the kernel, by `wait`. The thread is counted meanwhile if one of its descriptors is a
/// connection, which `has_connection` tells.
#[inline]
pub(crate) fn counted<T>(has_connection: bool, wait: impl FnOnce() -> T) -> T {
    if !has_connection {
        return wait();
    }
    // Relaxed, here and below: a thread that closes such a descriptor may come before or after
    // this.
    KERNEL_WAITS.fetch_add(1, Ordering::Relaxed);
    // A child that was forked in a signal handler returns from a wait that its parent began. The
    // child's count is 0 then, and stays 0.
    let less = |count: u32| count.checked_sub(1);
    let end = || {
        let _ = KERNEL_WAITS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    };
    let result = cancellation::sleeping(end, wait);
    end();
    result
}

/// True while a thread of this process is inside the kernel's `poll` or `select` for a connection.
pub(crate) fn is_any() -> bool {
    KERNEL_WAITS.load(Ordering::Relaxed) != 0
}

/// After fork: the threads that waited are the parent's.
pub(crate) fn forked() {
    KERNEL_WAITS.store(0, Ordering::Relaxed);
}
