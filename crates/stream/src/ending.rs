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

use toehold_channel::layout::{CLOSED_ALL, CLOSED_CLEAN, SIDE_SEEN, SIDE_TOLD};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::Mode;

use crate::end::End;

impl End<'_> {
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
