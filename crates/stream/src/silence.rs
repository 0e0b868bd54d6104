//! A carrier that gets no doorbells any more, because a program that knows nothing of rings may
//! read it, and would take a doorbell for data.
//!
//! ```text
//!   lender                                     notifier, under its send lock
//!   silent := 1                                rung := RINGING
//!   fence SeqCst                               fence SeqCst
//!   rung: RINGING? looks again later           silent? gives none, and goes down at once
//!   takes all that were given off the carrier  doorbell; rung := bytes given so far
//! ```
//!
//! Either the notifier sees `silent`, or the lender sees a doorbell under way. So none comes
//! after its last look. The kernel may keep one back for a while; `rung` says that it will come.
//!
//! A thread of the lender's that waits for bytes is not rung, so it must not need that. The lender
//! asks for what it has not read by the carrier ([`crate::resend`]) while the ring is empty: then a
//! notifier that goes down wakes that thread by the bytes themselves. A thread that waits for
//! credit is woken by a doorbell alone: no end with such a thread can be silent.

use toehold_channel::layout::{RINGING, SIDE_SEEN, SIDE_TOLD};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::untrusted::Untrusted;

use crate::end::End;

/// Doorbells of the peer that have not been taken off the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// None, nor will one come if this end is silent.
    Taken,
    /// They have been given, behind or among so many bytes.
    Given(u64),
    /// The peer may be giving one.
    UnderWay,
}

impl End<'_> {
    /// Gives the carrier a doorbell by `give`, which returns how many bytes it has been given in
    /// all. False when the peer is silent: it was given none. Callers hold the send lock, and the
    /// direction is a ring.
    pub fn ring(&self, give: impl FnOnce() -> u64) -> bool {
        let rung = &self.ours().wake.rung;
        let before = rung.load(Ordering::Relaxed);
        rung.store(RINGING, Ordering::Relaxed);
        // Pairs with the fence in `silence`: we see the word there, or the peer sees ours.
        fence(Ordering::SeqCst);
        let may_ring = self.theirs().wake.silent.load(Ordering::Relaxed).is(0);
        let given = match may_ring {
            true => Untrusted::from(give()),
            false => before,
        };
        // Pairs with the load in `doorbells_to_take`: the doorbell is with the kernel.
        rung.store(given, SIDE_TOLD);
        may_ring
    }

    /// From now on the peer rings no more, unless [`End::doorbells_to_take`] says that a doorbell
    /// is under way.
    pub fn silence(&self) {
        self.ours().wake.silent.store(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// True once nobody rings us any more.
    #[inline]
    pub fn is_silent(&self) -> bool {
        !self.ours().wake.silent.load(Ordering::Relaxed).is(0)
    }

    /// On a silent end, asks for what comes next by the carrier, if the ring is empty. Before each
    /// sleep, and when the end becomes silent. Callers hold the receive lock.
    pub fn ask_if_silent(&self) {
        if self.is_silent() && !self.receiver().looks_filled() {
            self.ask_to_resend();
        }
    }

    /// Doorbells that have to be taken off the carrier still. Callers hold the receive lock.
    pub fn doorbells_to_take(&self) -> Doorbells {
        let rung = self.theirs().wake.rung.load(SIDE_SEEN);
        let taken = Untrusted::from(self.entry.rx_carrier.load(Ordering::Relaxed));
        match (rung.is(RINGING), rung.beyond(taken)) {
            (true, _) => Doorbells::UnderWay,
            (false, Some(bytes)) => Doorbells::Given(bytes),
            (false, None) => Doorbells::Taken,
        }
    }
}
