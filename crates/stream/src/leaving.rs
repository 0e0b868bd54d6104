//! The wish of one side to leave a channel, and how both ends leave it for good.
//!
//! A side that refuses wants both directions on the carrier, for some time ([`Refusal::Paused`]) or
//! for ever ([`Refusal::Over`]). Each side keeps its own direction down while the other side
//! refuses or has closed. A channel that is over is left:
//!
//! ```text
//!   either side refuses ─► both directions down, all records carried out ─► we: LEFT ──┐
//!                                                                         peer: LEFT ──┤
//!                                                    nobody uses the region any more ◄─┘
//! ```
//!
//! An end that has left publishes nothing in the region, and there are no records that it could
//! carry out. So an end that sees that both have left may free the rings of both.

use toehold_channel::doorbell::WakeWord;
use toehold_channel::layout::{EVICT, LEFT, REFUSE, SIDE_ACQUIRE, SIDE_RELEASE, Wake};
use toehold_channel::ring::Fault;
use toehold_channel::sync::Ordering;
use toehold_channel::table::Mode;

use crate::end::End;

/// A side's wish about the channel. A variant that is listed later overrules an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// To use the channel.
    None,
    /// Not to use the channel for the time being.
    Paused,
    /// To leave the channel.
    Over,
}

impl Refusal {
    #[inline]
    fn of(wake: &Wake, ordering: Ordering) -> Refusal {
        let refuse = wake.refuse.load(ordering);
        if refuse.is(EVICT) || wake.attached.load(ordering).is(LEFT) {
            Refusal::Over
        } else if refuse.is(0) {
            Refusal::None
        } else {
            // This includes invalid numbers from a hostile side.
            Refusal::Paused
        }
    }

    fn to_word(self) -> u32 {
        match self {
            Refusal::None => 0,
            Refusal::Paused => REFUSE,
            Refusal::Over => EVICT,
        }
    }
}

impl End<'_> {
    /// Announces that we have mapped the region and follow the peer's records, and how we want to
    /// be woken. The peer may go up from now on.
    pub fn attach(&self, word: WakeWord) {
        self.attach_unwelcoming(word);
        self.welcome();
    }

    /// As [`End::attach`], but the peer may not go up yet.
    pub fn attach_unwelcoming(&self, word: WakeWord) {
        // Relaxed: a peer that sees `attached` sees this word.
        self.ours()
            .wake
            .wake
            .store(word.to_word(), Ordering::Relaxed);
    }

    /// The peer may go up from now on.
    pub fn welcome(&self) {
        self.ours().wake.attached.store(1, SIDE_RELEASE);
    }

    /// The stronger wish of the two ends about the channel. A hint: it may lag behind.
    #[inline]
    pub fn refusal(&self) -> Refusal {
        let [ours, theirs] = [self.ours(), self.theirs()];
        let ours = Refusal::of(&ours.wake, Ordering::Relaxed);
        ours.max(Refusal::of(&theirs.wake, Ordering::Relaxed))
    }

    /// Tells the peer what we want of the channel.
    pub fn refuse(&self, refusal: Refusal) {
        let (word, to) = (&self.ours().wake.refuse, refusal.to_word());
        if !word.load(Ordering::Relaxed).is(to) {
            word.store(to, SIDE_RELEASE);
        }
    }

    /// True while the peer neither refuses nor has ended a direction: our direction may stay in the
    /// ring. A cheap hint for each send; [`End::is_wanted_down`] gives the exact answer.
    #[inline(always)]
    pub fn is_welcome(&self) -> bool {
        let wake = &self.theirs().wake;
        wake.refuse.load(Ordering::Relaxed).is(0) && wake.closed.load(Ordering::Relaxed).is(0)
    }

    /// True when one of the two ends wants our direction on the carrier: the peer refuses, or has
    /// ended a direction, or we have left.
    pub fn is_wanted_down(&self) -> bool {
        let wake = &self.theirs().wake;
        !wake.closed.load(SIDE_ACQUIRE).is(0)
            || !wake.refuse.load(SIDE_ACQUIRE).is(0)
            || self.has_left()
    }

    /// True when both directions are on the carrier, and both ends have carried out all records. An
    /// end that has carried out the last record has read the whole ring. Callers hold the locks of
    /// both directions.
    ///
    /// # Errors
    /// [`Fault::Record`] when the peer acknowledged more records than there were.
    pub fn is_drained(&self) -> Result<bool, Fault> {
        Ok(self.tx_mode() == Mode::Carrier
            && self.rx_mode() == Mode::Carrier
            && !self.records_pending()
            && self.all_acknowledged()?)
    }

    /// Leaves the channel if it is drained; false when it is not. Callers hold the locks of both
    /// directions.
    ///
    /// # Errors
    /// As for [`End::is_drained`].
    pub fn try_leave(&self) -> Result<bool, Fault> {
        let is_drained = self.is_drained()?;
        if is_drained {
            self.ours().wake.attached.store(LEFT, SIDE_RELEASE);
        }
        Ok(is_drained)
    }

    /// True when we have left.
    #[inline]
    pub fn has_left(&self) -> bool {
        self.ours().wake.attached.load(Ordering::Relaxed).is(LEFT)
    }

    /// True when the peer has left. We see everything that it did in the region before.
    pub fn has_peer_left(&self) -> bool {
        self.theirs().wake.attached.load(SIDE_ACQUIRE).is(LEFT)
    }
}
