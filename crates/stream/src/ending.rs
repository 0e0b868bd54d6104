//! Resets that only answer a doorbell are told apart from real resets.
//!
//! When a doorbell reaches a closed socket, the peer's kernel answers with a reset, as it does for
//! any byte. Without the library there would be no doorbell, and the connection would have ended in
//! order. So an end that sees a reset asks whether the peer had read everything, and how the peer
//! announced its end:
//!
//! ```text
//!   peer                                      we
//!   head := all that it has read              see the reset
//!   closed := CLOSED_ALL, CLOSED_CLEAN        load closed (SIDE_ACQUIRE), then head
//!   close(2)
//! ```

use toehold_channel::doorbell::{WAKE_SEQ_CST, WakeWord};
use toehold_channel::layout::{CLOSED_ALL, CLOSED_CLEAN, CLOSED_TURN, SIDE_ACQUIRE, SIDE_RELEASE};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::Mode;

use crate::end::End;
use crate::express::Turn;

impl End<'_> {
    /// Ends a turn in order on this side; the carrier goes on. The caller then wakes the peer.
    pub fn end_turn(&self, turn: Turn) {
        let closed = CLOSED_ALL | CLOSED_CLEAN | CLOSED_TURN;
        self.ours().wake.closed.store(closed, SIDE_RELEASE);
        self.turns().end(turn);
    }

    /// True when no extra doorbell is needed to tell the peer that we have ended the turn: the
    /// peer's program was seen waiting, or its wake word asks for a doorbell anyway.
    pub fn is_end_heard(&self, turn: Turn) -> bool {
        let word = self.theirs().wake.wake.load(WAKE_SEQ_CST);
        let asks = [WakeWord::Bell, WakeWord::PairBell];
        self.turns().is_peer_seen(turn) || asks.iter().any(|bell| word.is(bell.to_word()))
    }

    /// True when the peer has ended a direction or the connection, and the carrier with it. False
    /// when the peer has ended only a turn, because `CLOSED_TURN` in `closed` is stored first.
    pub fn has_closed_carrier(&self) -> bool {
        let closed = self.theirs().wake.closed.load(SIDE_ACQUIRE);
        !closed.is(0) && !closed.has(CLOSED_TURN)
    }

    /// Begins a turn on a carrier that this side has claimed: clears the marks of both ends. Until
    /// the peer accepts, only this side writes these words.
    pub fn reopen(&self) {
        for side in [self.ours(), self.theirs()] {
            side.wake.closed.store(0, Ordering::Relaxed);
            side.wake.rung.store(0, Ordering::Relaxed);
        }
    }

    /// True when both rings are empty by our own cursors, and no switch record is pending.
    pub fn are_rings_empty(&self) -> bool {
        let head = self.theirs().consume.head.load(Ordering::Relaxed);
        let is_read = head == self.entry.tx_ring.load(Ordering::Relaxed);
        let has_none = self
            .receiver()
            .available()
            .is_ok_and(|filled| filled.len == 0);
        is_read && has_none && !self.records_pending()
    }

    /// Announces that this side closes the connection; `is_clean` when it has read everything that
    /// the peer sent. The caller then wakes the peer.
    pub fn close(&self, is_clean: bool) {
        let closed = CLOSED_ALL | if is_clean { CLOSED_CLEAN } else { 0 };
        self.ours().wake.closed.store(closed, SIDE_RELEASE);
        // Pairs with the sleeper's fence, after it has stored its wake word
        // (`toehold_channel::doorbell`): a sleeper that does not see `closed` is seen.
        fence(Ordering::SeqCst);
    }

    /// True when the carrier's reset only answers a doorbell: the peer had read everything that we
    /// sent when it closed. `tx_carrier` is exact.
    ///
    /// A peer that has not announced its end was killed. With `may_be_killed` that counts as an end
    /// in order, too, unless the peer had asked for a reset. For an engine `may_be_killed` is
    /// false: an engine resets only because its remote does.
    #[cold]
    pub fn is_reset_by_doorbell(&self, may_be_killed: bool) -> bool {
        let wake = &self.theirs().wake;
        // The peer stores `head` before `closed`.
        let closed = wake.closed.load(SIDE_ACQUIRE);
        let head = self.theirs().consume.head.load(Ordering::Relaxed);
        if head != self.entry.tx_ring.load(Ordering::Relaxed) {
            return false;
        }
        if closed.has(CLOSED_CLEAN) {
            // `CLOSED_CLEAN` includes the carrier's bytes before the ring, even if the record of
            // the ring is not acknowledged yet.
            return self.tx_mode() == Mode::Ring || self.carrier_is_unused();
        }
        let asks_for_reset = [&wake.resets, &wake.abandoned, &wake.refuse]
            .iter()
            .any(|word| !word.load(Ordering::Relaxed).is(0));
        may_be_killed && !closed.has(CLOSED_ALL) && !asks_for_reset && self.carrier_is_unused()
    }
}
