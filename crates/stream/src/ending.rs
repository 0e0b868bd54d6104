//! How a connection has ended whose carrier reports a reset.
//!
//! A doorbell that meets a closed socket is answered with a reset by the peer's kernel, as any byte
//! would be. Without us there would have been no doorbell, and the connection would have ended in
//! order. So whoever meets a reset asks what the peer had read, and what it said of its end:
//!
//! ```text
//!   peer                                      we
//!   head := all that it has read              see the reset
//!   closed := CLOSED_ALL, CLOSED_CLEAN        load closed (SIDE_SEEN), then head
//!   close(2)
//! ```

use toehold_channel::doorbell::{WAKING, WakeWord};
use toehold_channel::layout::{CLOSED_ALL, CLOSED_CLEAN, CLOSED_TURN, SIDE_SEEN, SIDE_TOLD};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::Mode;

use crate::end::End;
use crate::express::Turn;

impl End<'_> {
    /// This side ends a turn in order, and the carrier goes on. The caller then makes the peer
    /// notice.
    pub fn end_turn(&self, turn: Turn) {
        let closed = CLOSED_ALL | CLOSED_CLEAN | CLOSED_TURN;
        self.ours().wake.closed.store(closed, SIDE_TOLD);
        self.turns().end(turn);
    }

    /// True when the peer hears of our end of a turn without a doorbell for that alone: its program
    /// was seen waiting, or asks for a doorbell whatever the news is.
    pub fn is_end_heard(&self, turn: Turn) -> bool {
        let wake = &self.theirs().wake.wake;
        self.turns().is_peer_seen(turn) || wake.load(WAKING).is(WakeWord::Bell.to_word())
    }

    /// True when the peer has ended a direction or the connection, and its carrier with it. A turn
    /// that it ends is not that, nor one that it is about to end: `closed` says so first.
    pub fn has_closed_carrier(&self) -> bool {
        let closed = self.theirs().wake.closed.load(SIDE_SEEN);
        !closed.is(0) && !closed.has(CLOSED_TURN)
    }

    /// A turn begins on a carrier that this side has claimed: neither side has ended anything.
    /// Until the peer accepts, nobody but us writes these words.
    pub fn reopen(&self) {
        for side in [self.ours(), self.theirs()] {
            side.wake.closed.store(0, Ordering::Relaxed);
            side.wake.rung.store(0, Ordering::Relaxed);
        }
    }

    /// True when neither ring has a byte, by our own cursors, and none is announced elsewhere.
    pub fn are_rings_empty(&self) -> bool {
        let head = self.theirs().consume.head.load(Ordering::Relaxed);
        let is_read = head == self.entry.tx_ring.load(Ordering::Relaxed);
        let has_none = self
            .receiver()
            .available()
            .is_ok_and(|filled| filled.len == 0);
        is_read && has_none && !self.records_pending()
    }

    /// This side closes the connection; `is_clean` when nothing that the peer sent is left unread.
    /// The caller then makes the peer notice.
    pub fn close(&self, is_clean: bool) {
        let closed = CLOSED_ALL | if is_clean { CLOSED_CLEAN } else { 0 };
        self.ours().wake.closed.store(closed, SIDE_TOLD);
        // Pairs with the sleeper's fence, after it has stored its wake word
        // (`toehold_channel::doorbell`): a sleeper that does not see `closed` is seen.
        fence(Ordering::SeqCst);
    }

    /// True when the reset that the carrier reports answers nothing but a doorbell: the peer had
    /// read all that we sent when it closed. `tx_carrier` is exact.
    ///
    /// A peer that said nothing of its end was killed. With `may_be_killed` that is an end in order
    /// as well, if the peer had not asked for a reset. An engine is never killed idle: it resets as
    /// its remote does.
    #[cold]
    pub fn is_reset_by_doorbell(&self, may_be_killed: bool) -> bool {
        let wake = &self.theirs().wake;
        // The peer stores `head` before `closed`.
        let closed = wake.closed.load(SIDE_SEEN);
        let head = self.theirs().consume.head.load(Ordering::Relaxed);
        if head != self.entry.tx_ring.load(Ordering::Relaxed) {
            return false;
        }
        if closed.has(CLOSED_CLEAN) {
            // Of a ring that has just begun, the peer knows by itself that the carrier before it
            // was read.
            return self.tx_mode() == Mode::Ring || self.carrier_is_unused();
        }
        let asks_for_reset = [&wake.resets, &wake.abandoned, &wake.refuse]
            .iter()
            .any(|word| !word.load(Ordering::Relaxed).is(0));
        may_be_killed && !closed.has(CLOSED_ALL) && !asks_for_reset && self.carrier_is_unused()
    }
}
