//! One thread at a time looks at the requests of a ring and submits them.
//!
//! The kernel takes as many requests as a call says, from where it stopped. So the call of a second
//! thread could make the kernel take requests that the first thread has not looked at yet, or is
//! carrying out. A request that is being carried out reads `NOP` for a moment, so the kernel would
//! report success even if it fails. A thread's turn ends when the kernel has taken the requests,
//! not when its call returns: the call may wait for completions of another thread's requests.
//!
//! ```text
//!   first                           second
//!   begins: its number              begins: waits while the number is another's, and
//!   looks, carries out                      - the end is not known, or
//!   tells the end                           - the kernel has not come to the end
//!   calls the kernel                looks, …
//!   is over: no number
//! ```

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The turn of the thread that submits requests.
pub(super) struct Turn {
    /// The thread, as identified by `errno::thread`; 0 for none.
    thread: AtomicUsize,
    /// The value of the queue's head at which its requests are taken, or [`LOOKING`].
    end: AtomicU64,
}

/// The thread still looks at requests.
const LOOKING: u64 = u64::MAX;

impl Turn {
    pub(super) const fn none() -> Turn {
        Turn {
            thread: AtomicUsize::new(0),
            end: AtomicU64::new(LOOKING),
        }
    }

    /// Begins the turn of thread `me` when the kernel has come to `head`; false while it is
    /// another's. Called under the rings' lock.
    pub(super) fn begin(&self, me: usize, head: u32) -> bool {
        // We see the requests as that thread has left them. Acquire pairs with Release in `over`.
        let thread = self.thread.load(Ordering::Acquire);
        // Acquire pairs with Release in `tell_end`.
        let end = self.end.load(Ordering::Acquire);
        let is_past = end != LOOKING && head.wrapping_sub(end as u32) as i32 >= 0;
        if thread != 0 && thread != me && !is_past {
            return false;
        }
        self.claim(me);
        true
    }

    /// Takes the turn, even from another thread.
    pub(super) fn claim(&self, me: usize) {
        // Relaxed: others look under the rings' lock, which the caller holds.
        self.end.store(LOOKING, Ordering::Relaxed);
        self.thread.store(me, Ordering::Relaxed);
    }

    /// Says that all requests before `end` have been looked at.
    pub(super) fn tell_end(&self, me: usize, end: u32) {
        if self.thread.load(Ordering::Relaxed) == me {
            // Release pairs with Acquire in `begin`.
            self.end.store(end.into(), Ordering::Release);
        }
    }

    /// Ends the turn after the call, if it is still this thread's turn.
    pub(super) fn over(&self, me: usize) {
        // Release pairs with Acquire in `begin`.
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.thread.compare_exchange(me, 0, release, relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_lasts_until_the_kernel_has_taken_the_requests() {
        let turn = Turn::none();
        assert!(turn.begin(1, u32::MAX) && !turn.begin(2, u32::MAX));
        assert!(turn.begin(1, u32::MAX), "a handler of this thread");
        // Two requests: the head wraps around.
        turn.tell_end(1, 1);
        assert!(!turn.begin(2, 0) && turn.begin(2, 1));
        turn.over(1);
        assert!(!turn.begin(3, 5), "it is another's");
        turn.tell_end(1, 5);
        assert!(!turn.begin(3, 5), "it is another's");
        turn.over(2);
        assert!(turn.begin(3, 1));
    }
}
