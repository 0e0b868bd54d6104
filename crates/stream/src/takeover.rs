//! A member of a fork family was killed while it held the lock of a direction. Whoever takes the
//! lock over repairs the direction.
//!
//! One rule makes that possible. *Each step of a direction is done when one word of the entry is
//! stored. Whatever else belongs to the step is prepared before that store, or follows from the
//! word. The lock is opened when nothing is owed any more.*
//!
//! ```text
//!   step           prepared              done when      follows
//!   publish        bytes in the ring     tx_ring        tail, capacity
//!   up, down       the record            tx_records     records, tx_mode, going_down
//!   consume        bytes copied out      rx_ring        head
//!   carry out      (nothing)             rx_records     acknowledged, rx_mode
//!   a kernel call                        it returns     tx_carrier, rx_carrier
//! ```
//!
//! So the survivor keeps what is done, takes back what is not, and stores all that follows once
//! more. Each repair can be repeated, because the survivor may be killed, too. The carrier's counts
//! follow from a step inside the kernel: the kernel is asked for them, and a connection about which
//! it cannot say is ended ([`Lost`]).
//!
//! *Owed* are a doorbell after a publication, notice of credit after a consumption, and unread
//! bytes that go once more ([`crate::resend`]). The survivor pays: it rings in any case and looks
//! whether the peer asks for credit. A doorbell too many costs the peer one look. Whether unread
//! bytes were sent once more, `resend` says; a part of them cannot be made up for.
//!
//! Bytes of a call that was cut short are sent, or received, or not at all, as the kernel has it.

use toehold_channel::layout::{RESEND_ASKED, RESEND_DONE, SIDE_TOLD};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::Mode;

use crate::end::End;

/// The direction cannot go on: nobody knows what the dead owner has done. The connection has to
/// end, because it would go on with bytes missing, or with some twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl End<'_> {
    /// The send lock was taken over from a dead owner. `given` are the bytes that the carrier was
    /// given, if that is known. On success a barrier has passed, and a peer whose direction is
    /// still a ring has to be rung, whatever its wake word says.
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
        // Relaxed: our own word, or the request of the peer, who waits.
        let resend = ours.switch.resend.load(Ordering::Relaxed);
        if mode == Mode::Carrier && resend.is(RESEND_ASKED) {
            return Err(Lost);
        }
        let given = given.ok_or(Lost)?;
        entry.tx_carrier.store(given, Ordering::Relaxed);
        // Whether or not the dead owner gave its doorbell. Pairs as in `End::ring`.
        ours.wake.rung.store(given, SIDE_TOLD);
        Ok(())
    }

    /// The receive lock was taken over from a dead owner. `taken` are the bytes that were taken
    /// from the carrier, if that is known. On success a barrier has passed: a peer that asks for
    /// credit has to be notified.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn take_over_receiving(&self, taken: Option<u64>) -> Result<(), Lost> {
        let (entry, ours) = (self.entry, self.ours());
        let records = entry.rx_records.load(Ordering::Relaxed);
        // Relaxed: the dead owner asked, whose stores are here, and the answer leads to the same.
        let resend = self.theirs().switch.resend.load(Ordering::Relaxed);
        let mode = match (records.has(1), self.rx_mode()) {
            (false, _) => Mode::Carrier,
            // Nothing was acknowledged: the doorbells are skipped, or are to be.
            (true, Mode::Carrier) => Mode::Skip,
            // Asked, and not noted yet. An earlier request is not meant: the peer clears the word
            // before it goes up.
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
