//! Whether the flows that share a bottleneck answer losses. CUBIC, Reno and this engine's BBR do.
//! BBR's first version does not: it keeps its rate. A flow that yields to such a competitor yields
//! in vain, and leaves it everything.
//!
//! A competitor that answers losses gives way within a round, and needs more rounds to fill the
//! queue again. So much is lost in one round, and then for a while only by the flow's own probes.
//! Beside one that ignores losses, much is lost in several rounds although the flow yields.
//!
//! The flow's own probes can hide those of the competitor for some seconds, if both probe at the
//! same times. So when only the flow's own probes have lost data for a while, the flow yields
//! again, but one more round with losses of others shows that this is in vain.

/// Rounds with much loss belong together when no more rounds than these lie between them.
const ROUNDS: u64 = 32;
/// The flow yields in vain after so many rounds with much loss that belong together. With two, a
/// flow beside another of its kind took 55 % of a bottleneck in the mean.
const LOSSY_ROUNDS: u8 = 3;

/// The losses of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Losses {
    /// None, or few.
    Few,
    /// Many, but the flow has just probed for more bandwidth.
    OfOwnProbe,
    /// Many, and the flow's own probe is not the cause.
    OfOthers,
}

/// The losses of the last rounds, as far as they tell about the competitors.
#[derive(Clone, Debug)]
pub(super) struct Competition {
    /// Rounds since the last one with losses of others.
    rounds: u64,
    /// Rounds with losses of others that belong together, up to `LOSSY_ROUNDS`.
    lossy_rounds: u8,
}

impl Competition {
    pub(super) fn new() -> Self {
        Self {
            rounds: 0,
            lossy_rounds: 0,
        }
    }

    /// A round is over.
    pub(super) fn end_round(&mut self, losses: Losses) {
        self.rounds += 1;
        if losses == Losses::Few {
            return;
        }
        if self.rounds > ROUNDS {
            self.lossy_rounds = match self.ignores_losses() {
                true => LOSSY_ROUNDS - 1,
                false => 0,
            };
            self.rounds = 0;
        }
        if losses == Losses::OfOthers {
            self.lossy_rounds = LOSSY_ROUNDS.min(self.lossy_rounds + 1);
            self.rounds = 0;
        }
    }

    /// Losses continue although the flow yields.
    pub(super) fn ignores_losses(&self) -> bool {
        self.lossy_rounds == LOSSY_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The competition after rounds with losses of others, each after some rounds without any.
    fn after(gaps: &[u64]) -> Competition {
        let mut competition = Competition::new();
        for &gap in gaps {
            for _ in 0..gap {
                competition.end_round(Losses::Few);
            }
            competition.end_round(Losses::OfOthers);
        }
        competition
    }

    #[test]
    fn losses_that_continue_show_a_competitor_that_ignores_them() {
        assert!(!after(&[0, 0]).ignores_losses());
        assert!(after(&[0, 0, 0]).ignores_losses());
        assert!(after(&[100, ROUNDS - 1, ROUNDS - 1]).ignores_losses());
    }

    #[test]
    fn a_competitor_that_gives_way_after_each_loss_answers_it() {
        assert!(!after(&[ROUNDS; 20]).ignores_losses());
        assert!(!after(&[0, 0, ROUNDS, 0]).ignores_losses());
    }

    /// The flow may have been wrong, or the competitor has gone. The flow's own probes show it.
    #[test]
    fn a_competitor_answers_when_only_probes_lose_data() {
        let mut competition = after(&[0; LOSSY_ROUNDS as usize]);
        for round in 1..=ROUNDS {
            competition.end_round(Losses::OfOwnProbe);
            assert!(competition.ignores_losses(), "round {round}");
        }
        competition.end_round(Losses::Few);
        assert!(competition.ignores_losses());
        competition.end_round(Losses::OfOwnProbe);
        assert!(!competition.ignores_losses());
    }

    /// The flow's own probes may hide those of a competitor that it has noticed. A flow that forgot
    /// what it had noticed had 5 of 94 Mbit/s, for up to 18 s.
    #[test]
    fn one_more_loss_of_others_shows_that_the_competitor_has_not_changed() {
        let hidden = || {
            let mut competition = after(&[0; LOSSY_ROUNDS as usize]);
            for _ in 0..=ROUNDS {
                competition.end_round(Losses::Few);
            }
            competition.end_round(Losses::OfOwnProbe);
            assert!(!competition.ignores_losses());
            competition
        };
        let mut competition = hidden();
        competition.end_round(Losses::OfOthers);
        assert!(competition.ignores_losses());

        let mut competition = hidden();
        for _ in 0..=ROUNDS {
            competition.end_round(Losses::Few);
        }
        competition.end_round(Losses::OfOthers);
        assert!(!competition.ignores_losses(), "too late");
    }
}
