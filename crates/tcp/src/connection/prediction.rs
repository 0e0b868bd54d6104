//! Header prediction: the expected header words of a payload segment that brings no news about our
//! sending direction.
//!
//! A remote that only sends uses the same acknowledgement, flags and window in segment after
//! segment. They are eight bytes of the header, and are compared unparsed with those of the last
//! segment that was examined in full. As in Linux (`pred_flags` of `tcp_sock`), a connection has no
//! prediction while it is in an exceptional state: then no segment matches. So a match also proves
//! every condition that was checked when the prediction was made.

use super::{Conditions, Connection};
use crate::position::Position;
use crate::state::State;
use crate::wire::tcp::Flags;

/// The acknowledgement, the data offset, the flags and the window of a header, in wire format,
/// without PSH, which has no meaning here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AckWords(u64);

/// All bits except PSH.
const WITHOUT_PSH: u64 = u64::from_ne_bytes([
    0xff,
    0xff,
    0xff,
    0xff,
    0xff,
    !Flags::PSH.0 as u8,
    0xff,
    0xff,
]);

impl AckWords {
    /// From the eight bytes that begin with the acknowledgement number.
    #[inline(always)]
    pub(crate) const fn of(bytes: [u8; 8]) -> Self {
        Self(u64::from_ne_bytes(bytes) & WITHOUT_PSH)
    }

    #[inline(always)]
    pub(super) const fn ack(self) -> u32 {
        (u64::from_be(self.0) >> 32) as u32
    }

    /// Whether the header has the size of one with timestamps, and no flag that needs attention.
    #[inline(always)]
    pub(crate) const fn has_fast_path_flags(self) -> bool {
        self.offset_and_flags() == 0x8000 | Flags::ACK.0
    }

    const fn offset_and_flags(self) -> u16 {
        (u64::from_be(self.0) >> 16) as u16
    }

    #[inline(always)]
    pub(super) const fn window(self) -> u16 {
        u64::from_be(self.0) as u16
    }
}

/// The expected headers of the next segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction(AckWords);

impl Prediction {
    /// No prediction: no header has a data offset of zero.
    pub(crate) const NONE: Self = Self(AckWords(0));

    #[inline(always)]
    pub(super) fn holds(self, said: AckWords) -> bool {
        said == self.0
    }

    /// Whether only the acknowledgement differs: then the window has the same width as before.
    #[inline(always)]
    pub(super) const fn holds_but_for_the_ack(self, said: AckWords) -> bool {
        let difference = said.0 ^ self.0.0;
        u64::from_be(difference) as u32 == 0
    }
}

impl Connection {
    /// Whether payload may be taken after a check of only its position and its timestamp.
    const fn is_predictable(&self) -> bool {
        matches!(self.state, State::Established)
            && self
                .conditions
                .are(Conditions::RECEPTION, Conditions::TIMESTAMPS)
    }

    /// A segment with these words, with no options except timestamps and with the fast path's data
    /// offset, was taken: its acknowledgement and its window were applied.
    #[inline(always)]
    pub(super) fn predict_the_same(&mut self, said: AckWords) {
        self.prediction = Prediction(said);
    }

    /// Like `predict_the_same`, but the window may not have been applied: then the next segment has
    /// to be examined, too.
    #[inline(always)]
    pub(crate) fn predict(&mut self, said: AckWords) {
        debug_assert!(self.is_predictable());
        let edge = self.snd_una + (u64::from(said.window()) << self.snd_wscale);
        let is_believed = edge == self.snd_edge;
        self.prediction = if is_believed {
            Prediction(said)
        } else {
            Prediction::NONE
        };
    }

    pub(super) fn assert_prediction(&self) {
        let Prediction(said) = self.prediction;
        if said == Prediction::NONE.0 {
            return;
        }
        assert!(
            self.is_predictable(),
            "a prediction for a connection with more to ask"
        );
        let ack = Position::from_wire(said.ack(), self.snd_first, self.snd_una);
        let edge = ack + (u64::from(said.window()) << self.snd_wscale);
        assert_eq!(
            (ack, edge),
            (self.snd_una, self.snd_edge),
            "an old prediction"
        );
        assert!(said.has_fast_path_flags());
    }
}
