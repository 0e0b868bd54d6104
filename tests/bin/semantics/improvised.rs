//! Random conversations. A seed decides each call of both roles, so both roles follow one script.
//!
//! One role acts at a time. Then it tells the other role how much it has sent, received and closed.
//! The other role waits until all of that has arrived. So on the kernel a seed always gives one
//! transcript. Every result of a call is a line of the transcript.

mod draw;
mod player;
pub(crate) mod several;
pub(crate) mod together;

use toehold_e2e::load::Random;

use crate::role::{Pair, Role};
use draw::{Draw, Mix};
use player::Player;
use together::Over;

/// The number of calls in one conversation, unless the conversation ends earlier.
const TURNS: usize = 120;
/// The number of calls after the other role has left.
const TURNS_ALONE: usize = 10;
/// A time that is long enough for arrivals that no call can observe.
const SETTLED: std::time::Duration = std::time::Duration::from_millis(5);

/// Plays the conversation that follows from `seed`.
pub(crate) fn play(pair: &Pair, seed: u64) {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut player = Player::new(pair.role, String::new(), pair.fd, seed);
    let mut script = Random::new(seed);
    let mix = mix(pair.role, &mut script);
    for turn in 0..TURNS {
        let draw = Draw::new(&mut script);
        match together::turn(&mut player, turn, mix.pick(draw.call), &draw) {
            // The other role has seen the result of this turn.
            Over::Neither => pair.step(),
            Over::Ours => return,
            Over::Theirs => return alone(&mut player, turn, &mix, &mut script),
        }
    }
}

/// The moves of a conversation. An engine does not mark urgent bytes, so over a network none are
/// sent.
fn mix(role: Role, script: &mut Random) -> Mix {
    Mix::new(script, !role.is_over_network())
}

/// Plays the turns after the other role has left.
fn alone(player: &mut Player, turn: usize, mix: &Mix, script: &mut Random) {
    for turn in turn + 1..=turn + TURNS_ALONE {
        let draw = Draw::new(script);
        let did = player.act(turn, mix.pick(draw.call), &draw);
        player.note(&did);
        if did.closed {
            return;
        }
        player.await_answer(&did);
    }
}
