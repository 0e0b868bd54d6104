//! Waiting for a completion: the action between two looks, and the deadline.

#[cfg(feature = "std")]
use std::time::{Duration, Instant};

/// The way in which a caller waits.
///
/// ```
/// # use std::time::Duration;
/// use toehold_copy::Waiting;
/// let patient = Waiting::PARK;                                      // spin briefly, then sleep
/// let eager = Waiting::SPIN.at_most(Duration::from_micros(50));     // burn, but not for long
/// # let _ = (patient, eager);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub(crate) spins: u32,
    pub(crate) then: AfterSpin,
    #[cfg(feature = "std")]
    pub(crate) deadline: Option<Instant>,
}

/// The action that follows the spinning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterSpin {
    Spin,
    Yield,
    Park,
}

impl Waiting {
    /// Never leaves the processor: the shortest reaction, but one core is fully busy.
    pub const SPIN: Waiting = Waiting::new(u32::MAX, AfterSpin::Spin);
    /// Spins briefly, then lets others run between looks.
    pub const YIELD: Waiting = Waiting::new(SPINS, AfterSpin::Yield);
    /// Spins briefly, then sleeps until the engine wakes it. If the engine cannot wake a sleeper,
    /// yields between looks instead.
    pub const PARK: Waiting = Waiting::new(SPINS, AfterSpin::Park);

    const fn new(spins: u32, then: AfterSpin) -> Waiting {
        Waiting {
            spins,
            then,
            #[cfg(feature = "std")]
            deadline: None,
        }
    }

    /// Looks this many times before it yields or sleeps.
    pub const fn with_spins(mut self, spins: u32) -> Waiting {
        self.spins = spins;
        self
    }

    /// Waits until `deadline` at most.
    #[cfg(feature = "std")]
    pub fn until(mut self, deadline: Instant) -> Waiting {
        self.deadline = Some(deadline);
        self
    }

    /// Waits for this long at most, from now.
    #[cfg(feature = "std")]
    pub fn at_most(self, timeout: Duration) -> Waiting {
        self.until(Instant::now() + timeout)
    }

    pub(crate) fn without_deadline(self) -> Waiting {
        Waiting::new(self.spins, self.then)
    }

    /// Nanoseconds left, `u64::MAX` without a deadline, or `None` when it has passed.
    pub(crate) fn timeout_ns(&self) -> Option<u64> {
        #[cfg(feature = "std")]
        if let Some(deadline) = self.deadline {
            let left = deadline.checked_duration_since(Instant::now())?;
            return Some(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        }
        Some(u64::MAX)
    }
}

/// The cost of a sleep and a wake-up, counted in looks of some tens of nanoseconds.
const SPINS: u32 = 500;
