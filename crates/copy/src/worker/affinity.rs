//! Which processors a thread may run on.

use std::io;
use std::mem;

/// A set of processors.
#[derive(Clone, Copy)]
pub(super) struct Affinity(pub(super) libc::cpu_set_t);

impl Affinity {
    fn none() -> Affinity {
        // SAFETY: a set is an array of bits, and no bits is the empty set.
        Affinity(unsafe { mem::zeroed() })
    }

    /// Just this processor.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a number beyond what a set can hold.
    pub(super) fn only(processor: usize) -> io::Result<Affinity> {
        if processor >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut set = Affinity::none();
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_SET(processor, &mut set.0) };
        Ok(set)
    }

    /// The cores that this thread may use; empty if the system does not report them.
    pub(super) fn of_this_thread() -> Affinity {
        let mut set = Affinity::none();
        // SAFETY: the set is on our stack; zero is this thread.
        unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set.0), &mut set.0) };
        set
    }

    /// Moves this thread away from a processor, if it may run elsewhere. A helper on its owner's
    /// processor only takes turns with the owner, and a spinning helper takes the owner's time.
    /// False if the thread has to stay.
    pub(super) fn leave(&self, processor: u32) -> bool {
        if crate::sync::processor() != processor {
            return true;
        }
        if processor >= libc::CPU_SETSIZE as u32 {
            return false;
        }
        let mut others = *self;
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_CLR(processor as usize, &mut others.0) };
        // SAFETY: the set is on our stack; zero is this thread. An empty set is refused.
        unsafe { libc::sched_setaffinity(0, mem::size_of_val(&others.0), &others.0) == 0 }
    }
}
