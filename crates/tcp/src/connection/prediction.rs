//! Header prediction: what a segment with payload says of the other direction when it says nothing
//! new of it.
//!
//! Of a remote that only sends, one segment after the other has the same acknowledgement, flags and
//! window. They stand in eight bytes of the header, which are compared as they are with those of
//! the last one that was examined in full. Like Linux (`pred_flags` of its `tcp_sock`) a connection
//! has none while anything is the matter with it: then no segment is as predicted, and the
//! comparison stands for all that was asked when the prediction was made.

use super::{Conditions, Connection};
use crate::position::Position;
use crate::state::State;
use crate::wire::tcp::Flags;

/// The acknowledgement, the offset, the flags and the window of a header, as they stand there; PSH
/// left out, which says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OtherWay(u64);

/// All but PSH.
const PUSHED_OR_NOT: u64 = u64::from_ne_bytes([
    0xff,
    0xff,
    0xff,
    0xff,
    0xff,
    !Flags::PSH.0 as u8,
    0xff,
    0xff,
]);

impl OtherWay {
    /// Of the eight bytes from the acknowledgement number on.
    #[inline(always)]
    pub(crate) const fn of(bytes: [u8; 8]) -> Self {
        Self(u64::from_ne_bytes(bytes) & PUSHED_OR_NOT)
    }

    #[inline(always)]
    pub(super) const fn ack(self) -> u32 {
        (u64::from_be(self.0) >> 32) as u32
    }

    /// Whether there is a timestamp's room in the header, and no flag says anything of interest.
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
pub(crate) struct Prediction(OtherWay);

impl Prediction {
    /// Nothing is: no header has an offset of zero.
    pub(crate) const NONE: Self = Self(OtherWay(0));

    #[inline(always)]
    pub(super) fn holds(self, said: OtherWay) -> bool {
        said == self.0
    }

    /// Whether only the acknowledgement is another one: then the window is as wide as it was.
    #[inline(always)]
    pub(super) const fn holds_but_for_the_ack(self, said: OtherWay) -> bool {
        let difference = said.0 ^ self.0.0;
        u64::from_be(difference) as u32 == 0
    }
}

impl Connection {
    /// Whether payload may be taken without a look at anything but its place and its timestamp.
    const fn is_predictable(&self) -> bool {
        matches!(self.state, State::Established)
            && self
                .conditions
                .are(Conditions::RECEPTION, Conditions::TIMESTAMPS)
    }

    /// A segment with these headers, no options but timestamps and the fast path's data offset has
    /// been taken: its acknowledgement and its window count.
    #[inline(always)]
    pub(super) fn predict_the_same(&mut self, said: OtherWay) {
        self.prediction = Prediction(said);
    }

    /// As `predict_the_same`, when the window may not have been believed: it is no news next time
    /// either, but has to be examined.
    #[inline(always)]
    pub(crate) fn predict(&mut self, said: OtherWay) {
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
