//! A conversation on several connections at once. The connections begin, end, and take over each
//! other's descriptor numbers.
//!
//! Both roles keep the same table of places. A place is empty, or has a connection with both ends,
//! or has a connection whose one end is closed. Each turn belongs to one place.

use toehold_e2e::load::Random;

use super::draw::{Draw, Mix, Move};
use super::player::{Did, Player};
use super::together::{self, Over};
use crate::role::Role;
use crate::sys::{self, Fd};

/// The number of turns of one conversation.
const TURNS: usize = 240;
/// The largest number of connections at one time.
const PLACES: usize = 4;
/// The number of calls at one end after the other end has been closed.
const TURNS_ALONE: usize = 6;
const ADD: i32 = libc::EPOLL_CTL_ADD;

/// Plays the conversation that follows from `seed`.
pub(crate) fn play(role: Role, seed: u64) {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut script = Random::new(seed);
    let mut table = Table::new(role, seed, super::mix(role, &mut script));
    for turn in 0..TURNS {
        let place = script.below(PLACES as u64) as usize;
        table.turn(turn, place, &Draw::new(&mut script));
    }
    role.step();
}

/// A place of the table. Both roles keep the table.
enum Place {
    Empty,
    Both(Player),
    /// One end is left for this many turns: our end, or the other role's end.
    Alone(Option<Player>, usize),
}

/// The listener, or its port.
enum Meeting {
    Server { listener: Fd, waits: Fd },
    Client { port: u16 },
}

/// One role, with all its connections.
struct Table {
    role: Role,
    seed: u64,
    mix: Mix,
    meeting: Meeting,
    places: [Place; PLACES],
    /// An epoll instance with all connections. Each connection is registered under its first
    /// number.
    all: Fd,
    opened: u64,
}

impl Table {
    fn new(role: Role, seed: u64, mix: Mix) -> Table {
        let meeting = if role.server() {
            // The listener works like that of a server for short connections, so carriers may serve
            // several of them.
            let listener = role.listen(libc::SOCK_NONBLOCK);
            let waits = sys::epoll_create();
            sys::epoll_ctl(waits, ADD, listener, libc::EPOLLIN, 1).value();
            Meeting::Server { listener, waits }
        } else {
            let port = role.hear_port();
            Meeting::Client { port }
        };
        Table {
            role,
            seed,
            mix,
            meeting,
            places: [const { Place::Empty }; PLACES],
            all: sys::epoll_create(),
            opened: 0,
        }
    }

    fn turn(&mut self, turn: usize, index: usize, draw: &Draw) {
        match std::mem::replace(&mut self.places[index], Place::Empty) {
            Place::Empty => self.open(turn, index, draw),
            Place::Both(player) => self.together(turn, index, player, draw),
            Place::Alone(player, left) => self.alone(turn, index, (player, left), draw),
        }
        // One role has acted, and the other role has seen the result.
        self.role.step();
    }

    /// Opens a connection. Every second connection is accelerated before it is used.
    fn open(&mut self, turn: usize, index: usize, draw: &Draw) {
        let fd = match self.meeting {
            Meeting::Server { listener, waits } => {
                sys::epoll_wait(waits, 1, 20_000).0.value();
                sys::accept(listener).fd()
            }
            Meeting::Client { port } => self.role.connect(port),
        };
        let is_warm = draw.which.is_multiple_of(2);
        if is_warm {
            self.role.warm(fd);
        }
        self.opened += 1;
        let data = index as u64 | self.opened << 8;
        let added = sys::epoll_ctl(self.all, ADD, fd, libc::EPOLLIN | libc::EPOLLRDHUP, data);
        let what = format!("{turn} place {index} opens");
        self.role
            .say(&what, format!("descriptor {fd}, registered {added}"));
        let number = self.seed << 8 | self.opened;
        let mut player = Player::new(self.role, format!("place {index}, "), fd, number);
        // A connection that becomes accelerated may report one edge more.
        player.exact_edges = is_warm;
        self.places[index] = Place::Both(player);
    }

    /// A turn on a connection with both ends.
    fn together(&mut self, turn: usize, index: usize, mut player: Player, draw: &Draw) {
        let acts = (draw.actor == 0) == self.role.server();
        let what = self.mix.pick(draw.call);
        let did = match what {
            Move::TakeNumber if acts => Some(self.take_number(turn, index, &mut player, draw)),
            Move::LookAtAll if acts => Some(self.look_at_all(turn)),
            Move::GoOnInChild if acts => Some(self.go_on_in_child(turn, &mut player)),
            _ => None,
        };
        let over = match did {
            Some(did) => {
                did.tell(&self.role);
                together::ours(&mut player, &did)
            }
            None => together::turn(&mut player, turn, what, draw),
        };
        if what == Move::Operate {
            for place in &mut self.places {
                if let Place::Both(player) | Place::Alone(Some(player), _) = place {
                    player.exact_edges = false;
                }
            }
        }
        self.places[index] = match over {
            Over::Neither => Place::Both(player),
            Over::Ours => {
                player.leave();
                Place::Alone(None, TURNS_ALONE)
            }
            Over::Theirs => Place::Alone(Some(player), TURNS_ALONE),
        };
    }

    /// A turn on a connection that has only one end left.
    fn alone(
        &mut self,
        turn: usize,
        index: usize,
        (player, left): (Option<Player>, usize),
        draw: &Draw,
    ) {
        let Some(mut player) = player else {
            let is_over = self.role.hear() == 1;
            self.places[index] = match is_over {
                true => Place::Empty,
                false => Place::Alone(None, left - 1),
            };
            return;
        };
        let mut did = match self.mix.pick(draw.call) {
            Move::TakeNumber => self.take_number(turn, index, &mut player, draw),
            what => player.act(turn, what, draw),
        };
        if left == 1 && !did.closed {
            player.close();
            did.closed = true;
        }
        player.await_answer(&did);
        self.role.tell(u32::from(did.closed));
        if did.closed {
            player.leave();
        } else {
            player.note(&did);
            self.places[index] = Place::Alone(Some(player), left - 1);
        }
    }

    /// dup2(2) gives one of this connection's numbers to another connection.
    fn take_number(&mut self, turn: usize, index: usize, player: &mut Player, draw: &Draw) -> Did {
        let mut did = Did::default();
        let others = (1..PLACES).map(|step| (index + step) % PLACES);
        for other in others {
            let (Place::Both(taker) | Place::Alone(Some(taker), _)) = &mut self.places[other]
            else {
                continue;
            };
            let number = player.give_up(draw.which as usize % player.fds.len());
            let result = sys::dup2(taker.fds[0], number);
            taker.fds.push(number);
            did.closed = player.fds.is_empty();
            did.resets = did.closed && player.unread > 0;
            let what = format!("{turn} place {other} takes {number} of place {index}");
            self.role.say(&what, result);
            break;
        }
        did
    }

    /// A child takes over this role, with all connections and instances. The parent first closes
    /// its own descriptors. Then it waits for the child, and exits with the child's code.
    fn go_on_in_child(&mut self, turn: usize, player: &mut Player) -> Did {
        let (from, to) = sys::pipe();
        let child = sys::fork();
        if child != 0 {
            player.hand_over();
            for place in &mut self.places {
                if let Place::Both(player) | Place::Alone(Some(player), _) = place {
                    player.hand_over();
                }
            }
            if let Meeting::Server { listener, waits } = self.meeting {
                sys::close(listener).value();
                sys::close(waits).value();
            }
            sys::close(self.all).value();
            sys::write(to, b"!").value();
            let ended = sys::wait_for(child);
            let code = ended
                .strip_prefix("exit ")
                .and_then(|code| code.parse().ok());
            sys::exit_now(code.unwrap_or(1));
        }
        sys::read(from, &mut [0]).value();
        for end in [from, to] {
            sys::close(end).value();
        }
        self.role.say(&format!("{turn} goes on"), "in a child");
        Did::default()
    }

    /// Calls epoll_wait on the instance with all connections. The order of events is not specified,
    /// so they are sorted.
    fn look_at_all(&self, turn: usize) -> Did {
        let (result, mut events) = sys::epoll_wait(self.all, 16, 0);
        events.sort_unstable();
        self.role
            .say(&format!("{turn} all"), format!("{result} {events:?}"));
        Did::default()
    }
}
