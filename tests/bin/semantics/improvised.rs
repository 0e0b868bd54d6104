//! Random conversations: a seed decides the calls of both roles one by one, and both roles follow
//! one script.
//!
//! One role acts at a time. It then tells the other how much it sent, received and closed, and the
//! other waits until that has arrived. So on the kernel a seed always gives one transcript. Every
//! result of a call is a line of the transcript.

mod draw;
mod player;
pub(crate) mod several;
pub(crate) mod together;

use toehold_e2e::load::Random;

use crate::role::Pair;
use draw::{Draw, Mix};
use player::Player;
use together::Over;

/// Calls in one conversation, unless it ends before.
const TURNS: usize = 120;
/// Calls of whoever is left alone.
const TURNS_ALONE: usize = 10;
/// Longer than anything takes to arrive whose arrival cannot be seen.
const SETTLED: std::time::Duration = std::time::Duration::from_millis(5);

/// Plays the conversation that follows from `seed`.
pub(crate) fn play(pair: &Pair, seed: u64) {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut player = Player::new(pair.role, String::new(), pair.fd, seed);
    let mut script = Random::new(seed);
    let mix = Mix::new(&mut script);
    for turn in 0..TURNS {
        let draw = Draw::new(&mut script);
        match together::turn(&mut player, turn, mix.pick(draw.call), &draw) {
            // The other role has seen it.
            Over::Neither => pair.step(),
            Over::Ours => return,
            Over::Theirs => return alone(&mut player, turn, &mix, &mut script),
        }
    }
}

/// The other role is gone.
fn alone(player: &mut Player, turn: usize, mix: &Mix, script: &mut Random) {
    for turn in turn + 1..=turn + TURNS_ALONE {
        let draw = Draw::new(script);
        let did = player.act(turn, mix.pick(draw.call), &draw);
        player.note(&did);
        if did.closed {
            return;
        }
        // A reset answers what was sent to nobody.
        std::thread::sleep(SETTLED);
    }
}
