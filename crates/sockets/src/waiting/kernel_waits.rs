//! Threads that wait for a connection inside the kernel.

use toehold_stream::calls::Calls;

use crate::system::errno;
use crate::transfer::host_call::{self, Counted, Mark};

/// Threads inside the kernel's `poll` or `select` for a connection that the kernel answers. Several
/// words, because each names only a few calls.
static KERNEL_WAITS: [Calls; WORDS] = [const { Calls::new() }; WORDS];
const WORDS: usize = 8;

/// Counts a thread that waits for a connection inside the kernel, until it is dropped.
pub(crate) struct KernelWait<'a>(Option<(&'static Calls, Counted<'a>)>);

impl<'a> KernelWait<'a> {
    /// Counts a thread that is about to wait in the kernel, if one of its descriptors is a
    /// connection. A thread that closes such a descriptor may come before or after this.
    #[inline]
    pub(crate) fn begin(counts: bool, mark: &'a Mark) -> KernelWait<'a> {
        // The memory of threads lies whole pages apart.
        let calls = &KERNEL_WAITS[(errno::thread() >> 12) % WORDS];
        KernelWait(counts.then(|| (calls, Counted::begin_general(calls, mark))))
    }
}

impl Drop for KernelWait<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((calls, counted)) = self.0.take() {
            counted.end(calls);
        }
    }
}

/// True while a thread of this process may be inside the kernel's `poll` or `select` for a
/// connection.
pub(crate) fn is_any() -> bool {
    !KERNEL_WAITS.iter().all(host_call::are_general_over)
}

/// After fork: the threads that waited are the parent's.
pub(crate) fn forked() {
    KERNEL_WAITS.iter().for_each(Calls::forget_threads);
}
