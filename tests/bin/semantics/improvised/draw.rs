//! The numbers of a turn, which both roles draw alike, and the moves that a conversation has.

use toehold_e2e::load::Random;

/// An act that a role may do in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Send,
    Receive,
    /// To or from a file or a pipe, inside the kernel.
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
    /// More than any buffer holds comes from the other role.
    Bulk,
    /// An urgent byte comes from the other role, or a descriptor.
    Extra,
    /// Of several connections: one gets another one's number.
    TakeNumber,
    LookAtAll,
    /// A child goes on in the role's place.
    GoOnInChild,
    /// A child executes a program that uses the connection.
    Give,
    /// An operator sends all connections back to the kernel, or lets them move again.
    Operate,
}

/// How often each move is drawn, in a hundred or so.
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

/// The moves of one conversation, and how often each comes.
///
/// Conversations differ: most moves are left out of some, and come four times as often in others. A
/// fault that takes the same move three times within ten turns is found this way, and would hide in
/// an even mixture of all moves ("swarm testing").
pub(super) struct Mix {
    weights: Vec<(Move, u64)>,
    total: u64,
}

impl Mix {
    /// The mix of the conversation whose numbers are drawn from `script`.
    pub(super) fn new(script: &mut Random) -> Mix {
        let weights = MOVES.iter().map(|&(one, weight)| {
            let often = pick(&[0, 1, 1, 4], script.below(4));
            // Without bytes nothing happens.
            let always = matches!(one, Move::Send | Move::Receive);
            (one, weight * if always { often.max(1) } else { often })
        });
        let weights: Vec<(Move, u64)> = weights.collect();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        Mix { weights, total }
    }

    /// The move that a turn's number stands for.
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

/// The numbers of one turn. Always as many, whatever is made of them.
pub(super) struct Draw {
    pub(super) actor: u64,
    pub(super) call: u64,
    pub(super) which: u64,
    pub(super) how: u64,
    pub(super) len: usize,
    pub(super) fd: usize,
}

/// Lengths of calls.
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
