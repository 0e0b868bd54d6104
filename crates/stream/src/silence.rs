//! A silent end gets no more doorbells on its carrier, because a program without the library may
//! read the carrier and would take a doorbell for data. The *lender* is the end that passes its
//! descriptor to that program.
//!
//! ```text
//!   lender                                     notifier, under its send lock
//!   silent := 1                                rung := RINGING
//!   fence SeqCst                               fence SeqCst
//!   rung: RINGING? looks again later           silent? rings not, and goes down at once
//!   takes all doorbells off the carrier        doorbell; rung := bytes sent so far
//! ```
//!
//! Either the notifier sees `silent`, or the lender sees that a doorbell is under way. So no
//! doorbell comes after the lender's last look. The kernel may delay a doorbell for a while; `rung`
//! says that it will come.
//!
//! A lender's thread that waits for bytes gets no doorbell, so the bytes themselves must wake it.
//! So while the ring is empty the lender asks for unread bytes on the carrier ([`crate::resend`]):
//! the notifier goes down, and its bytes wake that thread. A thread that waits for credit can be
//! woken only by a doorbell, so an end with such a thread cannot be silent.

use toehold_channel::layout::{RINGING, SIDE_ACQUIRE, SIDE_RELEASE};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::untrusted::Untrusted;

use crate::end::End;

/// Doorbells of the peer that have not been taken off the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// There are none, and none will come if this end is silent.
    Taken,
    /// The last doorbell is within this number of next bytes of the carrier.
    Given(u64),
    /// The peer may be sending a doorbell.
    UnderWay,
}

impl End<'_> {
    /// Sends a doorbell by calling `give`, which returns how many bytes were sent on the carrier in
    /// all. False when the peer is silent: no doorbell was sent. Callers hold the send lock, and
    /// the direction is a ring.
    pub fn ring(&self, give: impl FnOnce() -> u64) -> bool {
        let rung = &self.ours().wake.rung;
        let before = rung.load(Ordering::Relaxed);
        rung.store(RINGING, Ordering::Relaxed);
        // Pairs with the fence in `silence`: either we see the peer's `silent`, or the peer sees
        // our `RINGING`.
        fence(Ordering::SeqCst);
        let may_ring = self.theirs().wake.silent.load(Ordering::Relaxed).is(0);
        let given = match may_ring {
            true => Untrusted::from(give()),
            false => before,
        };
        // Pairs with the load in `doorbells_to_take`: the doorbell is with the kernel.
        rung.store(given, SIDE_RELEASE);
        may_ring
    }

    /// From now on the peer rings no more, unless [`End::doorbells_to_take`] says that a doorbell
    /// is under way.
    pub fn silence(&self) {
        self.ours().wake.silent.store(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// True once the peer sends us no more doorbells.
    #[inline]
    pub fn is_silent(&self) -> bool {
        !self.ours().wake.silent.load(Ordering::Relaxed).is(0)
    }

    /// On a silent end with an empty ring, asks for the next bytes on the carrier. Called before
    /// each sleep, and when the end becomes silent. Callers hold the receive lock.
    pub fn ask_if_silent(&self) {
        if self.is_silent() && !self.receiver().looks_filled() {
            self.ask_to_resend();
        }
    }

    /// Doorbells that still have to be taken off the carrier. Callers hold the receive lock.
    pub fn doorbells_to_take(&self) -> Doorbells {
        let rung = self.theirs().wake.rung.load(SIDE_ACQUIRE);
        let taken = Untrusted::from(self.entry.rx_carrier.load(Ordering::Relaxed));
        match (rung.is(RINGING), rung.beyond(taken)) {
            (true, _) => Doorbells::UnderWay,
            (false, Some(bytes)) => Doorbells::Given(bytes),
            (false, None) => Doorbells::Taken,
        }
    }
}
