//! The next step of a sender without credit: ask the peer to ring, or go back to the carrier.
//!
//! ```text
//!   sender                                      receiver
//!   want_credit := 1                            head := new       (or: going_down := 1)
//!   fence SeqCst                                fence SeqCst
//!   look: can the peer ring? is there credit?   load want_credit
//!   no credit, peer can ring: wait              1? ring
//! ```
//!
//! Either the receiver's load sees the request, or the sender's look sees the credit or sees that
//! the receiver is going down.

use toehold_channel::ring::Fault;
use toehold_channel::sync::Ordering;
use toehold_channel::untrusted::Word32;

use crate::end::End;

/// The next step of a sender without credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// There is credit after all.
    Here,
    /// There is no credit; the peer rings when it gives some.
    WillRing,
    /// There is no credit, and the peer is not able to ring: go down to the carrier, where the
    /// kernel blocks us.
    Unreachable,
}

impl End<'_> {
    /// Asks the peer to ring when it gives credit. `is_short` is called after the request and tells
    /// whether there is still too little credit. Callers hold the send lock.
    ///
    /// # Errors
    /// The [`Fault`] of `is_short`.
    pub fn ask_for_credit(
        &self,
        is_short: impl FnOnce() -> Result<bool, Fault>,
    ) -> Result<Credit, Fault> {
        // SeqCst, with the fence in `peer_can_ring`, pairs with the fence in `Receiver::consume`
        // and with the one in `go_down`.
        set(&self.ours().wake.want_credit, 1);
        let can_ring = self.peer_can_ring();
        Ok(match is_short()? {
            false => Credit::Here,
            true if can_ring => Credit::WillRing,
            true => Credit::Unreachable,
        })
    }

    /// Takes the request back.
    pub fn stop_asking(&self) {
        set(&self.ours().wake.want_credit, 0);
    }

    /// True while we ask the peer to ring when it gives credit, because a thread may sleep until
    /// then.
    pub fn asks_for_credit(&self) -> bool {
        !self.ours().wake.want_credit.load(Ordering::Relaxed).is(0)
    }

    /// True when the peer has asked us to ring when we give credit. Called after a full barrier.
    #[inline]
    pub fn is_asked_for_credit(&self) -> bool {
        // SeqCst pairs with the store in `ask_for_credit`.
        !self.theirs().wake.want_credit.load(Ordering::SeqCst).is(0)
    }

    /// True when the peer waits for credit as well, and the ring that it sends into is full:
    /// neither side reads. Each side asks for credit before it calls this.
    pub fn both_wait(&self) -> bool {
        let filled = self.receiver().available();
        self.is_asked_for_credit()
            && filled.is_ok_and(|filled| filled.len >= 1 << filled.capacity_log2)
    }
}

/// Stores a word of ours only if its value changes, because the peer reads it often: a store would
/// take the cache line away from the peer.
fn set(word: &Word32, to: u32) {
    if !word.load(Ordering::Relaxed).is(to) {
        // SeqCst pairs with the load in `is_asked_for_credit`: `ask_for_credit` fences before it
        // looks.
        word.store(to, Ordering::SeqCst);
    }
}
