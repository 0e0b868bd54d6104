//! Repairs a direction after a member of a fork family was killed while it held the direction's
//! lock. The member that takes the lock over makes the repair.
//!
//! One rule makes that possible. *Each step of a direction is completed by the store of one word of
//! the entry. Everything else of the step is prepared before that store, or follows from the word.
//! The lock is opened only when no notice is owed any more.*
//!
//! ```text
//!   step           prepared              completed by   follows
//!   publish        bytes in the ring     tx_ring        tail, capacity
//!   up, down       the record            tx_records     records, tx_mode, going_down
//!   consume        bytes copied out      rx_ring        head
//!   carry out      (nothing)             rx_records     acknowledged, rx_mode
//!   a kernel call                        it returns     tx_carrier, rx_carrier
//! ```
//!
//! So the survivor keeps completed steps, discards incomplete ones, and stores everything that
//! follows again. Each repair can be repeated, because the survivor may be killed, too. The
//! carrier's counts change inside the kernel, so the kernel is asked for them. If the kernel cannot
//! tell them, the connection is ended ([`Lost`]).
//!
//! Three things can be *owed*: a doorbell after a publication, notice of credit after a
//! consumption, and unread bytes that are sent again ([`crate::resend`]). The survivor makes up for
//! them: it always rings, and looks whether the peer asks for credit. An unnecessary doorbell costs
//! the peer one look. `resend` says whether the unread bytes were all sent again; if only a part
//! was sent, the connection is ended.
//!
//! Bytes of a kernel call that was cut short count as sent or received exactly as far as the kernel
//! counts them.

use toehold_channel::layout::{RESEND_ASKED, RESEND_DONE, SIDE_RELEASE};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::Mode;

use crate::end::End;

/// The direction cannot go on, because it is not known what the dead owner has done. The connection
/// has to end: otherwise bytes would be missing, or would come twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl End<'_> {
    /// Repairs the sending direction after its lock was taken over from a dead owner. `given` is
    /// the number of bytes sent on the carrier, if it is known. On success a barrier has passed. If
    /// our direction is still a ring, the caller then rings the peer, whatever the peer's wake word
    /// is.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn take_over_sending(&self, given: Option<u64>) -> Result<(), Lost> {
        let (entry, ours) = (self.entry, self.ours());
        let records = entry.tx_records.load(Ordering::Relaxed);
        let mode = match records.has(1) {
            true => Mode::Ring,
            false => Mode::Carrier,
        };
        entry.tx_mode.store(mode as u32, Ordering::Relaxed);
        let capacity_log2 = entry.tx_capacity_log2.load(Ordering::Relaxed);
        let publish = &ours.publish;
        // Relaxed: carried by `tail`, as in `Sender::set_capacity`.
        publish
            .capacity_log2
            .store(capacity_log2, Ordering::Relaxed);
        let tail = entry.tx_ring.load(Ordering::Relaxed);
        // Release pairs with the Acquire load in `Receiver::available`.
        publish.tail.store(tail, Ordering::Release);
        // Release pairs with the Acquire load in `incoming_switching`.
        ours.switch.records.store(records, Ordering::Release);
        // Release pairs with the Acquire load in `peer_can_ring`, as in `go_down`.
        ours.switch.going_down.store(0, Ordering::Release);
        // Pairs with the sleeper's fence, as the barrier in `Sender::publish`.
        fence(Ordering::SeqCst);
        // Relaxed: the word is our own, or a request of the peer, which waits for the answer.
        let resend = ours.switch.resend.load(Ordering::Relaxed);
        if mode == Mode::Carrier && resend.is(RESEND_ASKED) {
            return Err(Lost);
        }
        let given = given.ok_or(Lost)?;
        entry.tx_carrier.store(given, Ordering::Relaxed);
        // Also right when the dead owner did not send its doorbell. Pairs as in `End::ring`.
        ours.wake.rung.store(given, SIDE_RELEASE);
        Ok(())
    }

    /// Repairs the receiving direction after its lock was taken over from a dead owner. `taken` is
    /// the number of bytes taken from the carrier, if it is known. On success a barrier has passed;
    /// the caller then notifies a peer that asks for credit.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn take_over_receiving(&self, taken: Option<u64>) -> Result<(), Lost> {
        let (entry, ours) = (self.entry, self.ours());
        let records = entry.rx_records.load(Ordering::Relaxed);
        // Relaxed: the dead owner made the request, and its stores are visible here. The peer's
        // answer leads to the same result.
        let resend = self.theirs().switch.resend.load(Ordering::Relaxed);
        let mode = match (records.has(1), self.rx_mode()) {
            (false, _) => Mode::Carrier,
            // The downgrade was not acknowledged: its doorbells are still being skipped.
            (true, Mode::Carrier) => Mode::Skip,
            // The request was made, but the mode was not stored yet. The word cannot be an earlier
            // request, because the peer clears it before it goes up.
            (true, Mode::Ring) if resend.is(RESEND_ASKED) || resend.is(RESEND_DONE) => Mode::Resend,
            (true, mode) => mode,
        };
        entry.rx_mode.store(mode as u32, Ordering::Relaxed);
        let consume = &ours.consume;
        let head = entry.rx_ring.load(Ordering::Relaxed);
        // Release pairs with the Acquire load in `Sender::credit_fresh`.
        consume.head.store(head, Ordering::Release);
        // Release pairs with the Acquire load in `all_acknowledged`.
        consume.acknowledged.store(records, Ordering::Release);
        // Pairs with the fence in `peer_can_ring`, as the one in `Receiver::consume`.
        fence(Ordering::SeqCst);
        let taken = taken.ok_or(Lost)?;
        entry.rx_carrier.store(taken, Ordering::Relaxed);
        Ok(())
    }
}
