//! The order of the arms.

use crate::rng::Rng;

/// One run of the server and the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Index of the arm.
    pub arm: usize,
    /// The round; `None` for a warm-up, whose results are discarded.
    pub round: Option<usize>,
}

/// Warm-ups first, then rounds. Each round runs every arm once in a new order, so that neither a
/// drift of the machine nor the order favours an arm.
pub fn turns(arms: usize, warmups: usize, rounds: usize, seed: u64) -> Vec<Turn> {
    let mut rng = Rng::new(seed);
    let mut turns = Vec::new();
    for _ in 0..warmups {
        turns.extend((0..arms).map(|arm| Turn { arm, round: None }));
    }
    let mut order: Vec<usize> = (0..arms).collect();
    for round in 0..rounds {
        if round % 2 == 0 {
            rng.shuffle(&mut order);
        } else {
            // Every second round reverses the order of the previous one: each arm is early as often
            // as late.
            order.reverse();
        }
        turns.extend(order.iter().map(|arm| Turn {
            arm: *arm,
            round: Some(round),
        }));
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_each_arm_once() {
        let turns = turns(3, 1, 8, 1);
        assert_eq!(turns.len(), 3 * 9);
        assert!(turns[..3].iter().all(|turn| turn.round.is_none()));
        for round in 0..8 {
            let mut arms: Vec<usize> = turns
                .iter()
                .filter(|turn| turn.round == Some(round))
                .map(|turn| turn.arm)
                .collect();
            arms.sort_unstable();
            assert_eq!(arms, [0, 1, 2]);
        }
    }

    #[test]
    fn both_orders_of_two_arms_occur_equally_often() {
        let turns = turns(2, 0, 10, 9);
        let first = turns.chunks(2).filter(|round| round[0].arm == 0).count();
        assert_eq!(first, 5);
    }
}
