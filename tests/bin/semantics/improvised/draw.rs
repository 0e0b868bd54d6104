//! The random numbers of a turn, and the moves of a conversation. Both roles draw equal numbers.

use toehold_e2e::load::Random;

/// A move that a role can make in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Send,
    Receive,
    /// Moves bytes to or from a file or a pipe, inside the kernel.
    Splice,
    Look,
    /// A child sends or receives.
    InChild,
    DuplicateOrClose,
    Set,
    Register,
    EndWriting,
    EndReading,
    Close,
    /// Threads of the role sleep on the connection until the other role acts.
    Sleep,
    /// The other role sends more bytes than any buffer holds.
    Bulk,
    /// The other role sends an urgent byte or a descriptor.
    Extra,
    /// One connection gets a descriptor number of another connection.
    TakeNumber,
    LookAtAll,
    /// A child takes over the role.
    GoOnInChild,
    /// A child executes a program that uses the connection.
    Give,
    /// An operator sends all connections back to the kernel, or lets them move again.
    Operate,
}

/// The weight of each move; the sum is about one hundred.
const MOVES: &[(Move, u64)] = &[
    (Move::Send, 26),
    (Move::Receive, 26),
    (Move::Splice, 4),
    (Move::Look, 16),
    (Move::InChild, 3),
    (Move::DuplicateOrClose, 6),
    (Move::Set, 5),
    (Move::Register, 2),
    (Move::EndWriting, 1),
    (Move::EndReading, 1),
    (Move::Close, 1),
    (Move::Sleep, 6),
    (Move::Bulk, 1),
    (Move::Extra, 1),
    (Move::TakeNumber, 6),
    (Move::LookAtAll, 6),
    (Move::GoOnInChild, 1),
    (Move::Give, 1),
    (Move::Operate, 1),
];

/// The moves of one conversation, with the weight of each move.
///
/// Conversations differ: a move is left out of some conversations, and is four times as frequent in
/// others. So a conversation may make one move three times within ten turns. An even mixture of all
/// moves would seldom do so, and would hide faults that need such a series ("swarm testing").
pub(super) struct Mix {
    weights: Vec<(Move, u64)>,
    total: u64,
}

impl Mix {
    /// Draws the weights of a conversation from `script`. Without `extras` the conversation has no
    /// data beside its byte streams.
    pub(super) fn new(script: &mut Random, extras: bool) -> Mix {
        let weights = MOVES.iter().map(|&(one, weight)| {
            let often = pick(&[0, 1, 1, 4], script.below(4));
            // Sends and receives are always included, because a conversation without bytes tests
            // nothing.
            let always = matches!(one, Move::Send | Move::Receive);
            let often = if always { often.max(1) } else { often };
            let is_played = extras || one != Move::Extra;
            (one, if is_played { weight * often } else { 0 })
        });
        let weights: Vec<(Move, u64)> = weights.collect();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        Mix { weights, total }
    }

    /// The move for a turn's random number.
    pub(super) fn pick(&self, number: u64) -> Move {
        let mut rest = number % self.total;
        for &(one, weight) in &self.weights {
            if rest < weight {
                return one;
            }
            rest -= weight;
        }
        unreachable!("the rest is below the sum of all weights")
    }
}

/// The random numbers of one turn. Each turn draws all of them, even if it does not use them.
pub(super) struct Draw {
    pub(super) actor: u64,
    pub(super) call: u64,
    pub(super) which: u64,
    pub(super) how: u64,
    pub(super) len: usize,
    pub(super) fd: usize,
}

/// The lengths that a call may ask for.
const LENGTHS: &[usize] = &[0, 1, 2, 7, 64, 100, 1000, 4096, 5000, 16_384];

impl Draw {
    pub(super) fn new(script: &mut Random) -> Draw {
        Draw {
            actor: script.below(2),
            call: script.below(1 << 16),
            which: script.below(1 << 16),
            how: script.below(1 << 16),
            len: pick(LENGTHS, script.below(1 << 16)),
            fd: script.below(1 << 16) as usize,
        }
    }
}

pub(super) fn pick<T: Copy>(list: &[T], number: u64) -> T {
    list[number as usize % list.len()]
}
