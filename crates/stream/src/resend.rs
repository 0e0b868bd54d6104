//! A receiver can have the unread bytes of its ring sent again on the carrier.
//!
//! A descriptor may pass to a reader that does not know rings: a program without the library, stdio
//! inside libc, a feature of the kernel. That reader takes bytes from the kernel, so the carrier's
//! next byte must be the next byte of the stream. So the receiver stops reading the ring and asks
//! the sender. When the sender goes down, it first sends all unread bytes on the carrier:
//!
//! ```text
//!   receiver                                    sender
//!   head := read so far
//!   resend: 0 -> ASKED ───────────────────────► going down: resend: 0 -> TOO_LATE? ASKED
//!   takes nothing more from the ring            unread := head .. tail
//!   record: head := its position in the ring ◄─ record
//!   doorbells, then data ◄───────────────────── unread; resend := STEP_RELEASE; then new bytes
//! ```
//!
//! One word decides, so both ends know which of them was first. A sender that went down unasked may
//! already have bytes on the carrier that follow those in the ring: then it is too late to ask. A
//! sender that closes sets that word to "too late", or goes down because it was asked before.

use toehold_channel::layout::{RESEND_ASKED, RESEND_DONE, RESEND_TOO_LATE};
use toehold_channel::ring::{Fault, Filled, STEP_RELEASE, Stretches, stretches};
use toehold_channel::sync::Ordering;
use toehold_channel::table::Mode;
use toehold_channel::untrusted::Untrusted;

use crate::end::{End, Unread};

impl End<'_> {
    /// Asks the peer to send the unread bytes of its ring on the carrier. True when the peer will
    /// do that, at the latest before it next sends; nothing more is received from the ring then.
    /// False when the direction is not a ring or is about to change, or the peer went down first.
    /// Callers hold the receive lock.
    pub fn ask_to_resend(&self) -> bool {
        if self.rx_mode() != Mode::Ring || self.records_pending() {
            return self.rx_mode() == Mode::Resend;
        }
        // Release pairs with the Acquire in `settle_resend`: `head` is there.
        let asked = self.theirs().switch.resend.compare_exchange(
            0,
            RESEND_ASKED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if asked.is_ok() {
            let mode = &self.entry.rx_mode;
            mode.store(Mode::Resend as u32, Ordering::Relaxed);
        }
        asked.is_ok()
    }

    /// True while the peer waits for its unread bytes on the carrier.
    pub fn is_asked_to_resend(&self) -> bool {
        let resend = self.ours().switch.resend.load(Ordering::Relaxed);
        self.tx_mode() == Mode::Ring && resend.is(RESEND_ASKED)
    }

    /// Clears the word before our direction becomes a ring.
    pub(crate) fn begin_resend(&self) {
        self.ours().switch.resend.store(0, Ordering::Relaxed);
    }

    /// Makes it too late to ask, because our direction is about to end in its ring. False when the
    /// peer has already asked: then our direction has to go down first. Callers hold the send lock.
    pub fn forbid_resend(&self) -> bool {
        // Relaxed: a peer that finds this word reads nothing else because of it. If the peer was
        // faster, its other words are read when the direction goes down.
        let forbidden = self.ours().switch.resend.compare_exchange(
            0,
            RESEND_TOO_LATE,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        !forbidden.is_err_and(|before| before.is(RESEND_ASKED))
    }

    /// Called when our direction is about to leave the ring: returns the bytes that the peer has
    /// asked for. From now on it is too late to ask.
    pub(crate) fn settle_resend(&self) -> Option<Unread> {
        // Acquire pairs with the Release in `ask_to_resend`. The request stays until it is
        // fulfilled, because a process that takes over from us must see it.
        let settled = self.ours().switch.resend.compare_exchange(
            0,
            RESEND_TOO_LATE,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let is_asked = settled.is_err_and(|before| before.is(RESEND_ASKED));
        is_asked.then(|| Unread {
            head: self.theirs().consume.head.load(Ordering::Relaxed),
        })
    }

    /// Says that all unread bytes were sent on the carrier. Callers have held the send lock since
    /// our direction went down.
    pub fn unread_is_sent(&self) {
        // Relaxed: the peer loads the word only to learn whether its request was accepted. The
        // bytes are in the kernel.
        let resend = &self.ours().switch.resend;
        resend.store(RESEND_DONE, Ordering::Relaxed);
    }

    /// The stretches of the peer's unread bytes in [`End::ring_out`]. Callers have held the send
    /// lock since our direction went down.
    ///
    /// # Errors
    /// [`Fault::Head`] when the peer's word contradicts our cursor.
    pub fn unread(&self, unread: Unread) -> Result<Stretches, Fault> {
        let capacity_log2 = self.sender().capacity()?;
        let tail = self.entry.tx_ring.load(Ordering::Relaxed);
        let seen = self.entry.tx_head_seen.load(Ordering::Relaxed);
        // As in `Sender::credit_fresh`: no position goes backwards or wraps.
        if unread.head < seen || unread.head > tail {
            return Err(Fault::Head);
        }
        let len = tail.ahead_of(unread.head, 1 << capacity_log2);
        let len = len.ok_or(Fault::Head)? as usize;
        Ok(stretches(unread.head, len, capacity_log2))
    }

    /// The peer went down at position `at_ring`: the bytes before that position come on the
    /// carrier.
    pub(crate) fn skip_resent(&self, at_ring: Untrusted<u64>, filled: Filled) -> Result<(), Fault> {
        let entry = self.entry;
        let ring = entry.rx_ring.load(Ordering::Relaxed);
        at_ring.ahead_of(ring, filled.len).ok_or(Fault::Record)?;
        entry.rx_ring.store(at_ring, STEP_RELEASE);
        // Release keeps it behind the store above, as in `Receiver::consume`. It pairs with the
        // Acquire load in `Sender::credit_fresh`.
        self.ours().consume.head.store(at_ring, Ordering::Release);
        entry.rx_mode.store(Mode::Skip as u32, Ordering::Relaxed);
        Ok(())
    }
}
