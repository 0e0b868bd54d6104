//! F-RTO (RFC 5682): detects whether a retransmission timeout was a mistake, for remotes without
//! timestamps. With timestamps the answer comes at once (RFC 3522, in `recovery.rs`).
//!
//! ```text
//!   timeout: the first segment again        partial acknowledgement: two new segments
//!     Off ------------------> Retransmitted ------------------------------------> Tried
//!                              |   all, or not even the segment: Off                |
//!                              |                                                    |
//!                         a delayed flight would have been acknowledged in parts    |
//!                                               originals arrived: undone ----------+
//!                                               only new data: the loss was real ---+
//! ```
//!
//! Data in flight at the timeout is assumed lost, but it is not retransmitted before the new
//! segments are answered. If the answer acknowledges any of that data, the network had it all the
//! time.

use super::acknowledge::Acknowledgement;
use super::{Conditions, Connection, Context};
use crate::position::Position;
use crate::state::Phase;

/// Section 2.1 step 2b: "transmit up to two new (previously unsent) segments".
const NEW_SEGMENTS: u32 = 2;
/// Section 2.1 step 3a: "set the congestion window to no more than 3 * MSS".
const WINDOW_SEGMENTS_AFTER_LOSS: u32 = 3;

/// The step that the examination of a timeout has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Suspicion {
    /// No timeout is examined.
    #[default]
    Off,
    /// Step 2: the first segment was retransmitted and is in flight.
    Retransmitted,
    /// Step 3: new data is in flight, and nothing else was retransmitted.
    Tried,
}

impl Connection {
    /// Step 1, when the retransmission timer expires. Only the first timeout of a recovery is
    /// examined: "if the TCP sender is already in RTO recovery ... do not enter step 2".
    pub(super) fn suspect_timeout(&mut self) {
        let is_told_otherwise = self.conditions.has(Conditions::TIMESTAMPS);
        self.recovery.suspicion = if self.phase == Phase::Open && !is_told_otherwise {
            Suspicion::Retransmitted
        } else {
            Suspicion::Off
        };
    }

    /// Steps 2 and 3, for an acknowledgement after the timeout, before the window is adjusted.
    pub(super) fn examine_timeout(&mut self, cx: &mut Context<'_>, ack: &Acknowledgement) {
        match self.recovery.suspicion {
            Suspicion::Off => {}
            Suspicion::Retransmitted => self.examine_first(ack),
            Suspicion::Tried => self.examine_second(cx, ack),
        }
    }

    fn examine_first(&mut self, ack: &Acknowledgement) {
        if ack.advanced_bytes == 0 {
            // Section 3.1 step 2: with SACK, "stay in step 2 and wait for the next new
            // acknowledgment". Section 2.1 step 2a: without, "if the acknowledgment is a duplicate
            // ACK ... revert to the conventional RTO recovery".
            if ack.is_duplicate && !self.conditions.has(Conditions::SACK) {
                self.recovery.suspicion = Suspicion::Off;
            }
            return;
        }
        // Step 2a: "covers recover", "OR the acknowledgment does not acknowledge all of the data
        // that was retransmitted".
        let is_partial =
            self.snd_una >= self.recovery.resent_end && self.snd_una < self.recovery.point;
        self.recovery.suspicion = if is_partial && self.has_new_segment() {
            Suspicion::Tried
        } else {
            Suspicion::Off
        };
    }

    /// Step 2b: without new data, or with a closed window, "the recommended action is to revert to
    /// conventional recovery".
    fn has_new_segment(&self) -> bool {
        let unsent = self.snd_end - self.snd_nxt;
        let window = self.snd_edge - self.snd_nxt;
        unsent.min(window) >= u64::from(self.mss)
    }

    fn examine_second(&mut self, cx: &mut Context<'_>, ack: &Acknowledgement) {
        // Step 3b: "the acknowledgment ... acknowledges data that was not retransmitted after the
        // timeout", cumulatively or, in section 3.1, selectively.
        let is_original = |end: Position| end <= self.recovery.point;
        if ack.delivered.lowest_original.is_some_and(is_original) {
            if let Some(prior) = self.recovery.prior.take() {
                self.undo_recovery(cx, &prior);
            }
            return;
        }
        // Step 3a: the new data arrived, and the data before it did not.
        if ack.is_duplicate || ack.delivered.bytes > 0 {
            self.recovery.suspicion = Suspicion::Off;
            self.cwnd = self
                .cwnd
                .min(WINDOW_SEGMENTS_AFTER_LOSS * u32::from(self.mss));
        }
    }

    /// Step 2b's window: room for the new segments, whatever the acknowledgement would have added.
    pub(super) fn try_new_data(&mut self) {
        self.cwnd = self.in_flight() + NEW_SEGMENTS * u32::from(self.mss);
    }

    /// Whether lost data has to wait for the answer to new data.
    #[inline]
    pub(super) fn is_trying_new_data(&self) -> bool {
        self.recovery.suspicion == Suspicion::Tried
    }
}
