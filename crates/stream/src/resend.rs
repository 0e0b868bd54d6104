//! Bytes that a receiver leaves in its ring, and that come to it once more by the carrier.
//!
//! A descriptor may pass to somebody who knows nothing of rings: a program without the library,
//! stdio inside libc, a feature of the kernel. The next byte that this reader takes from the kernel
//! must then be the next of the stream. So the receiver stops reading the ring and asks the sender,
//! which sends all that is unread on the carrier when it comes down, ahead of everything else:
//!
//! ```text
//!   receiver                                    sender
//!   head := read so far
//!   resend: 0 -> ASKED ───────────────────────► going down: resend: 0 -> TOO_LATE? ASKED
//!   takes nothing more from the ring            unread := head .. tail
//!   record: head := its position in the ring ◄─ record
//!   doorbells, then data ◄───────────────────── unread; resend := DONE; then new bytes
//! ```
//!
//! One word decides, so both ends know which of them was first. A sender that came down unasked may
//! have bytes on the carrier already, behind those in the ring: then it is too late. So it is for
//! one that has closed: it forbids to ask, by the same word, or goes down because it was asked.

use toehold_channel::layout::{RESEND_ASKED, RESEND_DONE, RESEND_TOO_LATE};
use toehold_channel::ring::{DONE, Fault, Filled, Stretches, stretches};
use toehold_channel::sync::Ordering;
use toehold_channel::table::Mode;
use toehold_channel::untrusted::Untrusted;

use crate::end::{End, Unread};

impl End<'_> {
    /// Asks the peer to send by the carrier what is unread in its ring. True when it will, at the
    /// latest before it next sends: nothing is received from the ring any more. False when the
    /// direction is no ring, is about to change, or the peer was faster. Callers hold the receive
    /// lock.
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

    /// True while the peer waits for what it has not read.
    pub fn is_asked_to_resend(&self) -> bool {
        let resend = self.ours().switch.resend.load(Ordering::Relaxed);
        self.tx_mode() == Mode::Ring && resend.is(RESEND_ASKED)
    }

    /// Our direction is about to be a ring, whose bytes nobody wants elsewhere yet.
    pub(crate) fn begin_resend(&self) {
        self.ours().switch.resend.store(0, Ordering::Relaxed);
    }

    /// Our direction is about to end in its ring: from now on it is too late to ask. False when the
    /// peer has asked already: then it has to go down first. Callers hold the send lock.
    pub fn forbid_resend(&self) -> bool {
        // Relaxed: a peer that finds this word learns nothing else by it, and what a peer published
        // that was faster is read when the direction goes down.
        let forbidden = self.ours().switch.resend.compare_exchange(
            0,
            RESEND_TOO_LATE,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        !forbidden.is_err_and(|before| before.is(RESEND_ASKED))
    }

    /// Our direction is about to leave the ring: what the peer has asked for. From now on it is too
    /// late to ask.
    pub(crate) fn settle_resend(&self) -> Option<Unread> {
        // Acquire pairs with the Release in `ask_to_resend`. The request stays until it is
        // fulfilled: whoever takes over from us must know of it.
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

    /// All that was unread has gone by the carrier. Callers hold the send lock since our direction
    /// went down.
    pub fn unread_is_sent(&self) {
        // Relaxed: the peer looks at it only to learn whether its request was accepted, and the
        // kernel has the bytes.
        let resend = &self.ours().switch.resend;
        resend.store(RESEND_DONE, Ordering::Relaxed);
    }

    /// Where the peer's unread bytes are in [`End::ring_out`]. Callers hold the send lock since our
    /// direction went down.
    ///
    /// # Errors
    /// [`Fault::Head`] when the peer's word contradicts our cursor.
    pub fn unread(&self, unread: Unread) -> Result<Stretches, Fault> {
        let capacity_log2 = self.sender().capacity()?;
        let tail = self.entry.tx_ring.load(Ordering::Relaxed);
        let seen = self.entry.tx_head_seen.load(Ordering::Relaxed);
        // As in `Sender::credit_fresh`: no position goes back, or wraps.
        if unread.head < seen || unread.head > tail {
            return Err(Fault::Head);
        }
        let len = tail.ahead_of(unread.head, 1 << capacity_log2);
        let len = len.ok_or(Fault::Head)? as usize;
        Ok(stretches(unread.head, len, capacity_log2))
    }

    /// The peer has come down at position `at_ring`: the bytes before it come by the carrier.
    pub(crate) fn skip_resent(&self, at_ring: Untrusted<u64>, filled: Filled) -> Result<(), Fault> {
        let entry = self.entry;
        let ring = entry.rx_ring.load(Ordering::Relaxed);
        at_ring.ahead_of(ring, filled.len).ok_or(Fault::Record)?;
        entry.rx_ring.store(at_ring, DONE);
        // Release keeps it behind the store above, as in `Receiver::consume`. It pairs with the
        // Acquire load in `Sender::credit_fresh`.
        self.ours().consume.head.store(at_ring, Ordering::Release);
        entry.rx_mode.store(Mode::Skip as u32, Ordering::Relaxed);
        Ok(())
    }
}
