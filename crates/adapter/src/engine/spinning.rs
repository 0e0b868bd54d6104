//! The time that the engine's thread looks for more work before it sleeps.
//!
//! A sleep costs a wake-up, and the program a system call to cause it; spinning keeps a core busy.
//! [`toehold_stream::spin`] decides, as in the programs. Between looks the thread yields to the
//! programs for which it waits.

use std::time::{Duration, Instant};

use toehold_channel::table::WaitMode;
use toehold_stream::spin::{History, Processor, spin_giving_away};

#[derive(Debug, Default)]
pub(super) struct Spinning(History);

impl Spinning {
    /// Calls `look` until it finds something or the budget is used up; true when it found
    /// something.
    pub(super) fn look(&mut self, look: impl FnMut() -> bool) -> bool {
        let budget_ns = self.0.budget_ns(WaitMode::Adaptive);
        spin_giving_away(&self.0, budget_ns, &Since(Instant::now()), look)
    }

    /// A sleep is over.
    pub(super) fn slept(&mut self, length: Duration) {
        self.0.slept(length.as_nanos() as u64);
    }
}

/// This thread's processor, with a clock that began then.
struct Since(Instant);

impl Processor for Since {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn give_away(&self) {
        std::thread::yield_now();
    }
}
