//! Detects that this process is a fork, without a system call each time.
//!
//! An engine's helper thread stays in the parent, so a channel in the child must not wait for it.
//! The kernel wipes one page in the child (`MADV_WIPEONFORK`): a zero there means that this process
//! was forked. The epoch grows from parent to child.

use crate::sync::os::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

/// The epoch of this process. A channel with another epoch came from the parent by fork.
#[inline]
pub(crate) fn epoch() -> u64 {
    // Relaxed everywhere: a fork leaves one thread, which sees all of its own memory.
    match PAGE.get() {
        Some(page) => match page.0.load(Relaxed) {
            0 => renew(page),
            epoch => epoch,
        },
        None => renew(PAGE.get_or_init(Page::new)),
    }
}

#[cold]
fn renew(page: &Page) -> u64 {
    // Two threads may come here at once, in a new process: the first to store wins.
    let epoch = EPOCHS.fetch_add(1, Relaxed) + 1;
    match page.0.compare_exchange(0, epoch, Relaxed, Relaxed) {
        Ok(_) => epoch,
        Err(epoch) => epoch,
    }
}

static PAGE: OnceLock<Page> = OnceLock::new();

/// In ordinary memory, so that a child continues its parent's count.
static EPOCHS: AtomicU64 = AtomicU64::new(0);

struct Page(&'static AtomicU64);

impl Page {
    fn new() -> Page {
        // SAFETY: a new private mapping of one page, at no address in particular.
        let page = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED, "no memory for one page");
        // SAFETY: the page was mapped just above. A kernel before 4.14 refuses, and then forks go
        // unnoticed: the documentation names the kernel that is needed.
        unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) };
        // SAFETY: zeroed, aligned, and never unmapped.
        Page(unsafe { &*page.cast::<AtomicU64>() })
    }
}

/// Enough on every architecture: `mmap` rounds up.
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_another_epoch_and_the_parent_keeps_its_own() {
        let mine = epoch();
        assert_eq!(mine, epoch());
        // SAFETY: the child calls only async-signal-safe functions and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let theirs = epoch();
            let changed = theirs != mine && theirs == epoch();
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(if changed { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(mine, epoch());
    }
}
