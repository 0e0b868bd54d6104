//! Which path runs when.

use super::rng::Rng;
use crate::options::PathChoice;

/// One of the things compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arm {
    /// Its name in the report: the path's, made unique.
    pub(crate) label: String,
    /// The path it runs on.
    pub(crate) path: PathChoice,
}

/// One run of the server and the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Index of the arm.
    pub(crate) arm: usize,
    /// The round it belongs to; `None` for a warm-up, which is thrown away.
    pub(crate) round: Option<usize>,
}

/// The arms of a comparison; the first is the base of all ratios. `host` is the base when it takes
/// part; with `control`, the base runs a second time as an arm of its own, whose ratio to itself is
/// the noise floor.
pub(crate) fn arms(paths: &[PathChoice], control: bool) -> Vec<Arm> {
    let mut paths = paths.to_vec();
    if let Some(host) = paths.iter().position(|path| *path == PathChoice::Host) {
        paths[..=host].rotate_right(1);
    }
    let mut arms: Vec<Arm> = Vec::new();
    for path in &paths {
        let same = arms.iter().filter(|arm| arm.path == *path).count();
        let label = match same {
            0 => path.word().to_owned(),
            _ => format!("{} #{}", path.word(), same + 1),
        };
        arms.push(Arm { label, path: *path });
    }
    if control && let Some(base) = paths.first() {
        arms.push(Arm {
            label: format!("{} again", base.word()),
            path: *base,
        });
    }
    arms
}

/// Warm-ups first, then rounds; each round runs every arm once, in an order of its own, so that
/// neither a drift of the machine nor the order itself favours an arm.
pub(crate) fn turns(arms: usize, warmups: usize, rounds: usize, seed: u64) -> Vec<Turn> {
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
            // Every second round mirrors the one before: each arm stands as often early as late.
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
    fn host_is_the_base_wherever_it_is_named() {
        let arms = arms(&[PathChoice::Direct, PathChoice::Host], false);
        let labels: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["host", "direct"]);
    }

    #[test]
    fn arms_of_one_path_have_names_of_their_own() {
        let arms = arms(&[PathChoice::Host, PathChoice::Host], true);
        let labels: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["host", "host #2", "host again"]);
    }

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
