//! Carriers that serve one connection after another: the engine's part of *express*.
//!
//! ```text
//!   a remote connects ─► a carrier parked for that listener ─► claimed, queued for `accept`
//!      │ none is parked                                            │ refused
//!      ▼                                                           ▼
//!   an ordinary carrier ◄──────────────────────────────────────────┘
//!      │ now and then a *seed*: paired at once, its first bytes are held back meanwhile
//!      ▼
//!   both ends close in order ─► parked ─► too old, too many, its program gone ─► retired
//! ```
//!
//! The drawing shows connections from remotes. The carriers of [`of_programs`] are for connections
//! of programs, which claim them; everything else is equal.
//!
//! The engine is the connecting end, like a connecting program (`docs/decisions/0023-express.md`):
//! it claims, and the program's library accepts. There are three differences. A remote that has
//! sent its FIN has not closed, so the program may still answer. The program's bytes stay in its
//! ring until the remote has acknowledged them, so a carrier is parked when the remote has
//! acknowledged the last one. And the engine chooses the port of a carrier itself, so both ends
//! know of each connection whether it is a seed.

mod of_programs;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use toehold_channel::offload::Direction;
use toehold_channel::preamble::PREAMBLE_BYTES;
use toehold_stream::express::{ENGINE_PORTS_LOG2, Push, Queued, Turn, is_chosen};

use of_programs::OfPrograms;

use super::carrier::Carrier;
use super::channels::{Accepting, ChannelKey, Channels};
use super::endpoint::Endpoint;
use super::listeners::Target;
use crate::diag::Diag;
use crate::registry::ClientId;

/// The longest time for which a seed's first bytes are held back. In this time the program has to
/// accept it, after all connections in its queue, and to ask for its channel.
const PAIRING_MAX: Duration = Duration::from_millis(10);
/// The most seeds of a listener that are held back at a time.
const PAIRING_AT_ONCE_MAX: u32 = 4;
/// Ordinary connections to a listener before its first seed, and the most between two seeds. A
/// program that has never had a carrier by then gets no more seeds, so its connections are no
/// longer held back.
const ORDINARY_FIRST: u32 = 2;
const ORDINARY_MAX: u32 = 4_096;
/// The most ordinary connections between two seeds for a program that has had a carrier. On a busy
/// host it may have been late for its seeds, but will not always be.
const ORDINARY_AGAIN_MAX: u32 = 256;
const NEVER: u32 = u32::MAX;
/// The most carriers that are parked for one listener, and for all.
const PARKED_OF_ONE_MAX: usize = 256;
const PARKED_MAX: usize = 1_024;
/// The most listeners that have or may get carriers.
const TARGETS_MAX: usize = 256;
/// As in the library: the longest time for which a carrier is parked, and its greatest age.
const IDLE_MAX: Duration = Duration::from_secs(2);
const AGE_MAX: Duration = Duration::from_secs(10);
/// The most parked carriers that are looked at for one connection.
const LOOKED_AT_MAX: usize = 16;
/// A program empties a queue of this length sooner than another program would wake.
const SHORT_QUEUE: u32 = 4;
/// A query costs 8 us, so answers are reused for this long. A new listener gets its first
/// connection at most this much later.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(1);
/// Time between two looks at turns whose program was not seen waiting.
pub(super) const LOOK_FIRST: Duration = Duration::from_millis(20);
pub(super) const LOOK_LAST: Duration = Duration::from_millis(80);

/// A carrier that may serve further connections, and the state of the current one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving {
    pub(super) turn: Turn,
    /// The listener to which it leads; `None` for a carrier with which a program connects.
    pub(super) target: Option<Target>,
    /// Another user's program may have stopped listening while the carrier was parked, so its
    /// listener is checked before the carrier is used.
    pub(super) accepting: Accepting,
    /// When it became a carrier.
    pub(super) made: Instant,
    /// Its port in the routing page.
    pub(super) port: u16,
    /// Bytes that its program had not taken at the last look ([`Endpoint::untaken`]), and whether
    /// the program was rung for them.
    pub(super) untaken: u64,
    pub(super) is_rung: bool,
    /// The program was rung for such bytes in this turn.
    pub(super) was_rung: bool,
}

impl Serving {
    /// A carrier's first connection.
    pub(super) fn first(target: Option<Target>, port: u16, now: Instant) -> Serving {
        Serving {
            turn: Turn::FIRST,
            target,
            accepting: Accepting::Unknown,
            made: now,
            port,
            untaken: 0,
            is_rung: false,
            was_rung: false,
        }
    }

    fn next(self, turn: Turn) -> Serving {
        Serving {
            turn,
            accepting: self.accepting,
            ..Serving::first(self.target, self.port, self.made)
        }
    }

    /// True when the carrier is not too old for another connection. Carriers are made in bursts. If
    /// all of a burst became too old at the same moment, all of them would be missing. So the limit
    /// is up to 7/16 of [`AGE_MAX`] less, by the port.
    fn is_young(&self, now: Instant) -> bool {
        let sixteenths = u32::from(self.port).wrapping_mul(0x9E37_79B1) >> 29;
        let limit = AGE_MAX - AGE_MAX / 16 * sixteenths;
        now.saturating_duration_since(self.made) < limit
    }

    /// When a seed becomes an ordinary connection.
    pub(super) fn pairing_ends(&self) -> Instant {
        self.made + PAIRING_MAX
    }
}

/// A carrier between two connections, or one that was just claimed for the next.
#[derive(Debug)]
pub(super) struct Reusable {
    /// There may be doorbells on it.
    pub(super) carrier: Carrier,
    pub(super) endpoint: Endpoint,
    pub(super) channel: ChannelKey,
    pub(super) serving: Serving,
}

#[derive(Debug)]
struct Parked {
    reusable: Reusable,
    since: Instant,
}

/// The owner of a carrier, by the number under which epoll watches it.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// The connection at that slot.
    Flow(u32),
    /// It is parked for the listener at that address.
    Listener(SocketAddr),
    /// It is parked for the program of that pair and slot.
    Program((u64, u32)),
}

/// A listener's parked carriers, and the history of its seeds.
#[derive(Debug, Default)]
struct OfListener {
    /// In the order in which they were parked.
    parked: VecDeque<Parked>,
    /// The pair of processes that the last connection went to.
    last_pair: u64,
    /// Ordinary connections since the last seed, and how many are needed before the next one.
    ordinary: u32,
    needed: u32,
    pairing: u32,
    /// The program that listens, and whether it has ever had a carrier.
    client: Option<ClientId>,
    has_had_one: bool,
    /// The inode of the listening socket, and the time of the kernel's answer.
    listening: Option<(Option<u64>, Instant)>,
}

/// All carriers of a thread that may serve further connections.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    by_target: BTreeMap<SocketAddr, OfListener>,
    of_programs: OfPrograms,
    owners: BTreeMap<u32, Owner>,
    /// Number of carriers parked for listeners.
    parked: usize,
    look_due: Option<Instant>,
    diag: Option<Diag>,
    /// Connections that used a carrier of an earlier connection.
    reused: u64,
}

impl Carriers {
    /// Whether a connection without a parked carrier becomes a seed. Otherwise it counts as an
    /// ordinary one.
    pub(super) fn begins_seed(&mut self, target: &Target) -> bool {
        // For listeners that take IPv6 only, the routing page drops an entry when its carrier ends.
        if target.address.is_ipv6() {
            return false;
        }
        let is_room = self.parked < PARKED_MAX;
        let Some(of) = self.of_listener(target.address) else {
            return false;
        };
        let client = Some(target.holder.client);
        if of.client != client {
            (of.client, of.has_had_one) = (client, false);
            (of.ordinary, of.needed) = (0, ORDINARY_FIRST);
        }
        let is_room = is_room && of.parked.len() < PARKED_OF_ONE_MAX;
        let is_full = of.pairing >= PAIRING_AT_ONCE_MAX || !is_room;
        if is_full || of.ordinary < of.needed {
            of.ordinary = of.ordinary.saturating_add(1);
            return false;
        }
        of.pairing += 1;
        of.ordinary = 0;
        true
    }

    /// A seed has become a carrier, or has failed.
    pub(super) fn seed_ends(&mut self, serving: &Serving, is_carrier: bool) {
        let target = serving.target.map(|target| target.address);
        let Some(of) = target.and_then(|target| self.of_listener(target)) else {
            return;
        };
        of.pairing = of.pairing.saturating_sub(1);
        of.has_had_one |= is_carrier;
        let most = match of.has_had_one {
            true => ORDINARY_AGAIN_MAX,
            false => ORDINARY_MAX,
        };
        of.needed = match of.needed {
            _ if is_carrier => 0,
            ORDINARY_MAX.. => NEVER,
            needed => (2 * needed).clamp(ORDINARY_FIRST, most),
        };
    }

    fn of_listener(&mut self, target: SocketAddr) -> Option<&mut OfListener> {
        if !self.by_target.contains_key(&target) {
            if self.by_target.len() >= TARGETS_MAX {
                self.by_target.retain(|_, of| !of.parked.is_empty());
            }
            if self.by_target.len() >= TARGETS_MAX {
                return None;
            }
            self.by_target.insert(target, OfListener::default());
        }
        self.by_target.get_mut(&target)
    }

    /// Whether a carrier may have that port. Seeds and ordinary connections have different ports.
    pub(super) fn is_port_for(port: u16, is_seed: bool) -> bool {
        is_chosen(port, ENGINE_PORTS_LOG2) == is_seed
    }

    /// Parks a carrier whose connection both ends have closed.
    pub(super) fn park(&mut self, reusable: Reusable, channels: &mut Channels, now: Instant) {
        let serving = reusable.serving;
        channels.hand_over(reusable.channel.place, None);
        let is_young = serving.is_young(now);
        match serving.target {
            Some(target) => {
                self.park_for_listener(reusable, target.address, channels, is_young, now);
            }
            None => self.park_for_program(reusable, channels, is_young, now),
        }
    }

    fn park_for_program(
        &mut self,
        reusable: Reusable,
        channels: &mut Channels,
        is_young: bool,
        now: Instant,
    ) {
        let (serial, place) = (reusable.carrier.serial, reusable.channel.place);
        if self.of_programs.len() >= PARKED_MAX || !is_young {
            self.owners.remove(&serial);
            return retire(reusable, channels);
        }
        self.owners.insert(serial, Owner::Program(place));
        self.look_due.get_or_insert(now + IDLE_MAX);
        let parked = Parked {
            reusable,
            since: now,
        };
        self.of_programs.park(parked, channels);
    }

    /// The next connection that a program makes on a used carrier, and its destination.
    pub(super) fn accept(
        &mut self,
        pair: u64,
        channels: &Channels,
    ) -> Option<(Reusable, [u8; PREAMBLE_BYTES])> {
        let accepted = self.of_programs.accept(pair, channels)?;
        self.owners.remove(&accepted.0.carrier.serial);
        self.reused += 1;
        Some(accepted)
    }

    fn park_for_listener(
        &mut self,
        reusable: Reusable,
        target: SocketAddr,
        channels: &mut Channels,
        is_young: bool,
        now: Instant,
    ) {
        let is_room = self.parked < PARKED_MAX && is_young;
        let of = self.of_listener(target).filter(|_| is_room);
        let Some(of) = of.filter(|of| of.parked.len() < PARKED_OF_ONE_MAX) else {
            self.owners.remove(&reusable.carrier.serial);
            return retire(reusable, channels);
        };
        let serial = reusable.carrier.serial;
        of.parked.push_back(Parked {
            reusable,
            since: now,
        });
        self.parked += 1;
        self.owners.insert(serial, Owner::Listener(target));
        self.look_due.get_or_insert(now + IDLE_MAX);
    }

    /// Takes a parked carrier for a connection to a listener, and queues the connection for the
    /// program's `accept`. Before that `announce` is called with the carrier's port, because the
    /// program may ask for the remote's address.
    pub(super) fn claim(
        &mut self,
        target: SocketAddr,
        logs: (u32, u32),
        channels: &mut Channels,
        now: Instant,
        announce: impl FnOnce(Direction, u16),
    ) -> Option<Reusable> {
        let of = self.by_target.get_mut(&target)?;
        while let Some(old) = of.take_old(now) {
            self.parked -= 1;
            self.owners.remove(&old.carrier.serial);
            retire(old, channels);
        }
        of.ask_who_listens(&mut self.diag, target, now);
        let place = of.choose(channels)?;
        let Parked { mut reusable, .. } = of.parked.remove(place)?;
        self.parked -= 1;
        self.owners.remove(&reusable.carrier.serial);
        let endpoint = &mut reusable.endpoint;
        let Ok(turn) = endpoint.turns().try_claim(reusable.serving.turn) else {
            retire(reusable, channels);
            return None;
        };
        reusable.serving = reusable.serving.next(turn);
        endpoint.begin_claimed(turn, logs);
        announce(Direction::Accepted, reusable.serving.port);
        let (pair, slot) = reusable.channel.place;
        let pushed = channels
            .queue(pair)
            .map(|queue| queue.push(Queued { slot, turn }));
        let turns = endpoint.turns();
        match pushed {
            Some(Ok(Push::Queued)) => {}
            // The connection was accepted just before, or refused: the phase tells which.
            Some(Ok(Push::ClosedMeanwhile)) if !turns.give_up(turn) => {}
            _ => {
                turns.give_up(turn);
                retire(reusable, channels);
                return None;
            }
        }
        of.last_pair = pair;
        self.reused += 1;
        Some(reusable)
    }

    /// The connection at a slot has a carrier that epoll watches under another connection's number.
    pub(super) fn serves(&mut self, serial: u32, slot: u32) {
        self.owners.insert(serial, Owner::Flow(slot));
    }

    /// The carrier with that number serves no connection any more.
    pub(super) fn forget(&mut self, serial: u32) {
        self.owners.remove(&serial);
    }

    /// Handles an event of the carrier with that number. Returns the connection that uses the
    /// carrier, if there is one.
    pub(super) fn note(&mut self, serial: u32, bits: u32, channels: &mut Channels) -> Option<u32> {
        let ends = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLPRI;
        let has_ended = bits & ends as u32 != 0;
        let target = match self.owners.get(&serial)? {
            Owner::Flow(slot) => return Some(*slot),
            Owner::Listener(target) => *target,
            Owner::Program(place) if has_ended => {
                let reusable = self.of_programs.take(*place)?;
                self.owners.remove(&serial);
                retire(reusable, channels);
                return None;
            }
            Owner::Program(place) => {
                self.of_programs.at(*place)?.carrier.note(bits);
                return None;
            }
        };
        let of = self.by_target.get_mut(&target)?;
        let is_it = |parked: &Parked| parked.reusable.carrier.serial == serial;
        let place = of.parked.iter().position(is_it)?;
        if !has_ended {
            of.parked[place].reusable.carrier.note(bits);
            return None;
        }
        if let Some(parked) = of.parked.remove(place) {
            self.parked -= 1;
            self.owners.remove(&serial);
            retire(parked.reusable, channels);
        }
        None
    }

    /// Retires carriers that have been parked for too long.
    pub(super) fn look(&mut self, channels: &mut Channels, now: Instant) {
        if self.look_due.is_none_or(|due| now < due) {
            return;
        }
        for of in self.by_target.values_mut() {
            let is_idle = |parked: &Parked| now.saturating_duration_since(parked.since) >= IDLE_MAX;
            while of.parked.front().is_some_and(is_idle) {
                let Some(parked) = of.parked.pop_front() else {
                    break;
                };
                self.parked -= 1;
                self.owners.remove(&parked.reusable.carrier.serial);
                retire(parked.reusable, channels);
            }
        }
        let owners = &mut self.owners;
        self.of_programs.look(channels, now, |serial| {
            owners.remove(&serial);
        });
        let fronts = self.by_target.values().filter_map(|of| of.parked.front());
        let fronts = fronts.map(|parked| parked.since + IDLE_MAX);
        self.look_due = fronts.chain(self.of_programs.look_due()).min();
    }

    /// When to look again.
    pub(super) fn look_due(&self) -> Option<Instant> {
        self.look_due
    }

    /// The number that are parked now.
    pub(super) fn parked(&self) -> usize {
        self.parked + self.of_programs.len()
    }

    /// Connections that used a carrier of an earlier connection.
    pub(super) fn reused(&self) -> u64 {
        self.reused
    }
}

impl OfListener {
    /// Asks the kernel which socket listens at an address, if carriers of other users' programs are
    /// parked for it.
    fn ask_who_listens(&mut self, diag: &mut Option<Diag>, target: SocketAddr, now: Instant) {
        let mut parked = self.parked.iter().take(LOOKED_AT_MAX);
        let is_wanted = parked.any(|parked| parked.is_of_another_user());
        let is_known =
            |(_, asked): (_, Instant)| now.saturating_duration_since(asked) < BETWEEN_QUESTIONS;
        if !is_wanted || self.listening.is_some_and(is_known) {
            return;
        }
        if diag.is_none() {
            *diag = Diag::open().ok();
        }
        let inode = diag.as_ref().and_then(|diag| diag.listening(target));
        self.listening = Some((inode, now));
    }

    /// Takes away a carrier that is too old, of those that are looked at for a connection: they
    /// would hide younger ones behind them.
    fn take_old(&mut self, now: Instant) -> Option<Reusable> {
        let mut looked_at = self.parked.iter().take(LOOKED_AT_MAX);
        let place = looked_at.position(|parked| !parked.reusable.serving.is_young(now))?;
        Some(self.parked.remove(place)?.reusable)
    }

    /// The index of the carrier to claim: one of the program that got the last connection, while
    /// its queue is short; otherwise one of the program with the shortest queue.
    fn choose(&self, channels: &Channels) -> Option<usize> {
        let mut best = None;
        for (place, parked) in self.parked.iter().enumerate().take(LOOKED_AT_MAX) {
            let Reusable {
                endpoint,
                channel,
                serving,
                ..
            } = &parked.reusable;
            let (pair, _) = channel.place;
            let queue = channels.queue(pair);
            let waiting = queue.and_then(|queue| {
                let has_room = queue.room().is_ok_and(|room| room > 0);
                has_room.then(|| queue.waiting().ok()).flatten()
            });
            let is_fit = endpoint.turns().is_parked(serving.turn)
                && endpoint.is_between_turns()
                && self.still_listens(serving.accepting);
            let Some(waiting) = waiting.filter(|_| is_fit) else {
                continue;
            };
            if pair == self.last_pair && waiting <= SHORT_QUEUE {
                return Some(place);
            }
            if best.is_none_or(|(_, shortest)| waiting < shortest) {
                best = Some((place, waiting));
            }
        }
        best.map(|(place, _)| place)
    }

    /// True when the kernel would connect to the program that has accepted the carrier's
    /// connections.
    fn still_listens(&self, accepting: Accepting) -> bool {
        match accepting {
            Accepting::OurUser => true,
            Accepting::Listener(inode) => {
                self.listening.and_then(|(listening, _)| listening) == Some(inode)
            }
            Accepting::Unknown => false,
        }
    }
}

impl Parked {
    fn is_of_another_user(&self) -> bool {
        self.reusable.serving.accepting != Accepting::OurUser
    }
}

/// Retires a carrier: it serves no further connection.
pub(super) fn retire(reusable: Reusable, channels: &mut Channels) {
    let Reusable {
        carrier,
        endpoint,
        channel,
        serving,
    } = reusable;
    // If it was claimed, the claiming end has given the connection up.
    let _ = endpoint.turns().retire(serving.turn);
    endpoint.close();
    endpoint.refuse();
    channels.withdraw(channel.entry, Some(channel.place));
    carrier.end_in_order();
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::engine::Holder;
    use crate::engine::channels::tests::with_queue;
    use crate::engine::endpoint::tests::parked;
    use crate::engine::endpoint::{FIRST_WINDOW_LOG2, WINDOW_LOG2};
    use crate::registry::TableId;

    fn target(client: u64, address: &str) -> Target {
        let holder = Holder {
            client: ClientId(client),
            family: TableId(client),
        };
        let address = address.parse().expect("address and port");
        Target { holder, address }
    }

    /// Number of connections until a seed begins, including the seed; `None` if there is none
    /// within `most`.
    fn until_seed(carriers: &mut Carriers, target: &Target, most: u32) -> Option<u32> {
        (1..=most).find(|_| carriers.begins_seed(target))
    }

    fn seed(target: Target) -> Serving {
        Serving::first(Some(target), 4_000, Instant::now())
    }

    #[test]
    fn seeds_in_vain_become_rarer_and_end_where_none_has_been_a_carrier() {
        let (mut carriers, target) = (Carriers::default(), target(1, "127.0.0.1:80"));
        let mut needed = ORDINARY_FIRST;
        loop {
            let until = until_seed(&mut carriers, &target, 2 * ORDINARY_MAX);
            assert_eq!(until, Some(needed + 1));
            carriers.seed_ends(&seed(target), false);
            if needed == ORDINARY_MAX {
                break;
            }
            needed *= 2;
        }
        assert_eq!(until_seed(&mut carriers, &target, 3 * ORDINARY_MAX), None);
        let next = self::target(2, "127.0.0.1:80");
        let until = until_seed(&mut carriers, &next, ORDINARY_MAX);
        assert_eq!(until, Some(ORDINARY_FIRST + 1), "another program");
    }

    #[test]
    fn a_carrier_makes_the_next_connections_seeds_a_few_at_a_time() {
        let (mut carriers, target) = (Carriers::default(), target(1, "127.0.0.1:80"));
        assert!(until_seed(&mut carriers, &target, 10).is_some());
        carriers.seed_ends(&seed(target), true);
        for _ in 0..PAIRING_AT_ONCE_MAX {
            assert!(carriers.begins_seed(&target));
        }
        assert_eq!(until_seed(&mut carriers, &target, 100), None);
        carriers.seed_ends(&seed(target), false);
        // On a busy host many seeds fail: the distance to the next seed stays moderate.
        let mut needed = ORDINARY_FIRST;
        for _ in 0..20 {
            let until = until_seed(&mut carriers, &target, 2 * ORDINARY_MAX);
            assert!(until.is_some_and(|until| until <= needed + 1));
            carriers.seed_ends(&seed(target), false);
            needed = (2 * needed).min(ORDINARY_AGAIN_MAX);
        }
        assert_eq!(needed, ORDINARY_AGAIN_MAX);
    }

    /// A carrier of that listener, at that slot of a pair, which has served a connection. Its
    /// program's socket keeps it open.
    fn reusable(place: (u64, u32), serving: Serving) -> (Reusable, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let socket = TcpStream::connect(listener.local_addr().expect("bound"));
        let (program, _) = listener.accept().expect("connected");
        let (_, slot) = place;
        let reusable = Reusable {
            carrier: Carrier::new(socket.expect("it listens"), slot, 0),
            endpoint: parked(),
            channel: ChannelKey { entry: slot, place },
            serving,
        };
        (reusable, program)
    }

    /// Those of one burst get too old together. Only those that were parked longest are looked at,
    /// so nobody found a younger one until they had been parked for two seconds.
    #[test]
    fn carriers_that_are_too_old_hide_no_younger_one() {
        const PAIR: u64 = 7;
        let (mut carriers, mut channels) = (Carriers::default(), with_queue(PAIR, 8));
        let target = target(1, "127.0.0.1:80");
        let began = Instant::now();
        let at_last = began + AGE_MAX;
        let last = 2 * LOOKED_AT_MAX as u32;
        let mut programs = Vec::new();
        for slot in 0..=last {
            let made = if slot < last { began } else { at_last };
            let serving = Serving {
                accepting: Accepting::OurUser,
                ..Serving::first(Some(target), 4_000, made)
            };
            channels.enter(PAIR, slot, slot);
            let (reusable, program) = reusable((PAIR, slot), serving);
            carriers.park(reusable, &mut channels, made);
            programs.push(program);
        }
        let logs = (FIRST_WINDOW_LOG2, WINDOW_LOG2);
        let claimed = carriers.claim(target.address, logs, &mut channels, at_last, |_, _| {});
        let claimed = claimed.map(|used| used.channel.place);
        assert_eq!(claimed, Some((PAIR, last)));
        assert_eq!(carriers.parked(), 0, "the others are retired");
    }

    #[test]
    fn carriers_of_one_burst_get_too_old_one_after_the_other() {
        let made = Instant::now();
        let seeds = (1..=u16::MAX).filter(|port| Carriers::is_port_for(*port, true));
        let seeds = seeds.map(|port| Serving::first(None, port, made));
        let seeds: Vec<Serving> = seeds.collect();
        let young = |passed| {
            let young = seeds.iter().filter(|seed| seed.is_young(made + passed));
            young.count()
        };
        assert_eq!(young(AGE_MAX / 2), seeds.len());
        assert_eq!(young(AGE_MAX), 0);
        let half = young(AGE_MAX / 4 * 3);
        assert!(
            half > seeds.len() / 4 && half < seeds.len() / 4 * 3,
            "{half}"
        );
    }

    #[test]
    fn listeners_have_their_own_seeds_and_those_for_ipv6_alone_have_none() {
        let mut carriers = Carriers::default();
        for port in 1..=2 * TARGETS_MAX {
            let target = target(1, &format!("127.0.0.1:{port}"));
            assert_eq!(until_seed(&mut carriers, &target, 10), Some(3), "{port}");
        }
        assert!(carriers.by_target.len() <= TARGETS_MAX);
        let v6 = target(1, "[::1]:80");
        assert_eq!(until_seed(&mut carriers, &v6, 10), None);
    }

    #[test]
    fn both_ends_know_by_the_port_which_connection_is_a_seed() {
        let ports = 32_768..=60_999;
        let seeds = ports
            .clone()
            .filter(|port| Carriers::is_port_for(*port, true));
        assert!(seeds.count() > 200, "they are needed one after another");
        let both = ports.filter(|port| {
            Carriers::is_port_for(*port, true) == Carriers::is_port_for(*port, false)
        });
        assert_eq!(both.count(), 0);
    }
}
