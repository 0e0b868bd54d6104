//! Many connections, one link: the engine.
//!
//! ```text
//!   handle_frame ──> [ethernet, ip] ──> flow table ──> connection ──┐
//!   handle_timeout ─> deadlines ──────────────────────> connection ──┤ settle
//!   publish, take ─────────────────────────────────────> connection ─┘
//!                                                                     │
//!   poll_transmit <── turns <───────────────────────────── has output ┤
//!   poll_event    <── event queue    <──────────────────── has news ──┤
//!   poll_timeout  <── deadlines      <──────────────────── a deadline ┘
//! ```
//!
//! Every step ends in [`Engine::settle`], which looks at the connection once and puts it into the
//! queues it belongs to. Queues hold slots, each at most once, so they are bounded by the number of
//! connections.

mod calls;
mod control;
mod cookie;
mod deadlines;
mod fast_open;
mod fast_receive;
mod fast_transmit;
mod fragments;
mod frames;
mod interface;
mod limiter;
mod line;
mod listeners;
mod neighbours;
mod next_hops;
mod shared;
mod table;
mod transmit;
mod turns;

pub use fast_receive::{Expected, Headers, ReceiveOffload};
pub use shared::FrameOwner;
pub use transmit::{ChecksumWork, HEADER_BUFFER_BYTES, Payload, Transmit, TransmitOffload};

use std::collections::VecDeque;

use crate::config::{Config, Medium};
use crate::connection::{
    Conditions, Connection, Context, GRANULARITY, News, OpenContext, Prediction,
};
use crate::counters::Counters;
use crate::flow::FlowKey;
use crate::host::{ConnectionId, Event, ListenerId};
use crate::position::Position;
use crate::random::{Random, SipKey};
use crate::state::{CloseReason, State};
use crate::time::{Duration, Instant};
use crate::wire::ip::Address;
use control::ControlFrame;
use cookie::Cookies;
use deadlines::Deadlines;
use fast_open::FastOpens;
use fast_transmit::Run;
use fragments::Fragments;
use interface::Interface;
use limiter::Limiter;
use line::Line;
use listeners::Listeners;
use neighbours::Neighbours;
use table::{Ends, EndsV6, FlowTable};
use turns::Turns;

/// The flow of the last frame that took the fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LastFlow<E> {
    ends: E,
    slot: u32,
}

/// No slot has this number, so a look-up finds no connection.
const NO_SLOT: u32 = u32::MAX;
const NO_FLOW: LastFlow<Ends> = LastFlow {
    ends: Ends::NOBODY,
    slot: NO_SLOT,
};
const NO_FLOW_V6: LastFlow<EndsV6> = LastFlow {
    ends: EndsV6::NOBODY,
    slot: NO_SLOT,
};
/// Stands for the listeners in queues of slots; no slot has this number.
const LISTENERS: u32 = u32::MAX;
/// Differs from every hardware address stored in the upper 48 bits, because its lower bits are not
/// zero.
const NO_MAC: u64 = 1;
/// The number of connections that are searched for one in TIME-WAIT when there is no room for a new
/// one: bounds the cost of a SYN.
const TIME_WAIT_LOOKS: usize = 64;
/// The most frames without a connection that may wait for the link.
const CONTROL_FRAMES_MAX: usize = 1_024;
/// The longest delay of an acknowledgement, whatever the configuration says.
const DELAYED_ACK_MAX: Duration = Duration::from_millis(499);

/// Entries of the port counter table. RFC 6056, section 3.3.4, wants at least 10. Destinations that
/// share an entry still begin at different ports.
const PORT_PLACES: usize = 256;

/// A TCP/IP without I/O: the host calls it and hands in frames, and polls frames and events.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    random: Random,
    secrets: Secrets,
    fast_opens: FastOpens,
    /// The number of ports that were tried towards a destination, by the destination's hash.
    ports_tried: Box<[u16; PORT_PLACES]>,
    interface: Interface,
    neighbours: Neighbours,
    fragments: Fragments,
    /// One limiter for each kind of answer that any host can provoke: a flood of one kind does not
    /// suppress the others.
    challenges: Limiter,
    refusals: Limiter,
    echo_replies: Limiter,
    arp_replies: Limiter,
    advertisements: Limiter,
    cookies: Limiter,
    /// Does not include [`Self::fast_paths`].
    counters: Counters,
    fast_paths: FastPaths,

    /// Our hardware address in the upper 48 bits, or [`NO_MAC`].
    own_mac: u64,
    /// Invariant: a slot is in use, or its state is CLOSED and it is in `free_slots`.
    slots: Vec<Connection>,
    free_slots: Vec<u32>,
    /// The slot where the last search for a connection in TIME-WAIT ended.
    hand: usize,
    flows: FlowTable,
    /// The flow of the last frame on the fast path: successive frames often belong to one flow.
    last_flow: LastFlow<Ends>,
    last_flow_v6: LastFlow<EndsV6>,
    listeners: Listeners,
    deadlines: Deadlines,
    turns: Turns,
    run: Run,
    /// Slots with news for the host, each at most once; [`LISTENERS`] while listeners have news.
    event_queue: Line,
    control_queue: VecDeque<ControlFrame>,
    /// Neighbours that the engine's owner is to resolve.
    unresolved: VecDeque<Address>,
    /// When a SYN was last answered with a cookie.
    cookie_sent_at: Option<Instant>,
}

/// Frames that took the fast paths. Each is one segment with payload or one acknowledgement, so one
/// number here stands for several of [`Counters`].
#[derive(Debug, Default)]
struct FastPaths {
    received: u64,
    sent: u64,
}

/// Secret keys: others must not be able to guess them.
struct Secrets {
    isn: SipKey,
    timestamps: SipKey,
    ports: SipKey,
    cookies: Cookies,
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Engine {
    /// An engine without connections. An attacker who can predict `random` can predict sequence
    /// numbers, so outside of tests seed it with 256 bits of entropy.
    #[must_use]
    pub fn new(mut config: Config, mut random: Random) -> Self {
        config.rto_min = config.rto_min.max(GRANULARITY);
        //= RFC 9293#3.8.6.3
        //# but an ACK should not be excessively delayed; in particular, the delay MUST be less than
        //# 0.5 seconds (MUST-40).
        config.delayed_ack = config.delayed_ack.min(DELAYED_ACK_MAX);
        let secrets = Secrets {
            isn: SipKey::draw(&mut random),
            timestamps: SipKey::draw(&mut random),
            ports: SipKey::draw(&mut random),
            cookies: Cookies::new(&mut random),
        };
        let fast_opens = FastOpens::new(config.fast_open_key, &mut random);
        Self {
            secrets,
            fast_opens,
            ports_tried: Box::new([0; PORT_PLACES]),
            interface: Interface::new(&config),
            neighbours: Neighbours::new(matches!(
                config.medium,
                Medium::Ethernet { resolve: true, .. }
            )),
            fragments: Fragments::default(),
            challenges: Limiter::default(),
            refusals: Limiter::default(),
            echo_replies: Limiter::default(),
            arp_replies: Limiter::default(),
            advertisements: Limiter::default(),
            cookies: Limiter::default(),
            counters: Counters::default(),
            fast_paths: FastPaths::default(),
            own_mac: match config.medium {
                Medium::Ethernet { mac, .. } => mac.to_word() << 16,
                _ => NO_MAC,
            },
            slots: Vec::with_capacity(config.connections_max),
            free_slots: Vec::new(),
            hand: 0,
            flows: FlowTable::new(&mut random),
            last_flow: NO_FLOW,
            last_flow_v6: NO_FLOW_V6,
            listeners: Listeners::default(),
            deadlines: Deadlines::default(),
            turns: Turns::new(),
            run: Run::none(),
            event_queue: Line::new(),
            control_queue: VecDeque::new(),
            unresolved: VecDeque::new(),
            cookie_sent_at: None,
            random,
            config,
        }
    }

    /// The counters since the engine was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let FastPaths { received, sent } = self.fast_paths;
        let mut counters = self.counters.clone();
        counters.frames_received += received;
        counters.segments_received += received;
        counters.segments_predicted += received;
        counters.frames_sent += sent;
        counters.segments_sent += sent;
        counters
    }

    /// The configuration with which the engine was made.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Connections in the flow table: all that are not closed.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.flows.len()
    }

    /// The latest time for the next call of [`Self::handle_timeout`]; `None` while no timer runs.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let neighbours = self.neighbours.next_deadline();
        let connections = self.deadlines.earliest().unwrap_or(Instant::NEVER);
        Some(connections.min(neighbours)).filter(|at| at.is_armed())
    }

    /// Handles all timers that have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(slot) = self.deadlines.pop_due(now) {
            let connection = &mut self.slots[slot as usize];
            connection.asked_by = Instant::NEVER;
            // The deadline may have moved while the heap kept the earlier one.
            if connection.next_deadline() <= now {
                let retries = connection.retries;
                connection.handle_timeout(&mut Context {
                    now,
                    config: &self.config,
                    counters: &mut self.counters,
                });
                let has_retried = connection.retries > retries;
                if has_retried && connection.fast_open.is_some() {
                    self.suspect_fast_open(now, slot);
                }
                if has_retried && self.slots[slot as usize].retries.is_multiple_of(4) {
                    self.suspect_neighbour(slot);
                }
            }
            self.settle(slot);
        }
        self.retry_neighbours(now);
    }

    /// The next event for the host.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        let slot = self.event_queue.first()?;
        match self.slots.get_mut(slot as usize) {
            // Plain progress is the only news: the connection needs no second visit.
            Some(connection) if connection.news == News::PLAIN_PROGRESS => {
                debug_assert!(connection.state != State::Closed, "that were other news");
                self.event_queue.pop();
                connection.news = News::default();
                Some(Event::Progress {
                    connection: connection.id(slot),
                    received: connection.rcv_nxt.after(Position::FIRST_BYTE),
                    acknowledged: connection.snd_una.after(Position::FIRST_BYTE),
                    remote_finished: false,
                })
            }
            _ => {
                let event = self.poll_any_event()?;
                Some(event)
            }
        }
    }

    #[inline(never)]
    fn poll_any_event(&mut self) -> Option<Event> {
        while let Some(slot) = self.event_queue.first() {
            if slot == LISTENERS {
                let event = self.listeners.pop_news();
                if !self.listeners.has_news() {
                    self.event_queue.pop();
                }
                match event {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            if let Some(event) = self.next_event_of(slot) {
                return Some(event);
            }
            self.event_queue.pop();
            self.slots[slot as usize].news.0 &= !News::ANNOUNCED;
            self.free_if_over(slot);
        }
        None
    }

    fn next_event_of(&mut self, slot: u32) -> Option<Event> {
        let connection = &mut self.slots[slot as usize];
        let id = connection.id(slot);
        if connection.news.has(News::RELEASED) {
            connection.news.0 &= !News::ANY;
        }
        let news = connection.news;
        if news.has(News::CONNECTED) {
            connection.news.0 &= !News::CONNECTED;
            if !connection.conditions.has(Conditions::PASSIVE) {
                return Some(Event::Connected(id));
            }
            return self.next_event_of(slot);
        }
        if news.has(News::PROGRESS) {
            connection.news.0 &= !News::PROGRESS;
            return Some(progress_of(slot, connection));
        }
        if news.has(News::CLOSED) {
            connection.news.0 &= !News::CLOSED;
            return Some(Event::Closed {
                connection: id,
                reason: connection.close_reason,
            });
        }
        None
    }

    /// Looks at a connection after a step, and puts it into the queues to which it belongs.
    #[inline]
    fn settle(&mut self, slot: u32) {
        self.run.end();
        let connection = &mut self.slots[slot as usize];
        connection.prediction = Prediction::NONE;
        if connection.has_pending_output() && !connection.conditions.has(Conditions::QUEUED) {
            connection.conditions.set(Conditions::QUEUED);
            self.turns.push(slot);
        }
        if connection.news.has(News::ANY) {
            announce(connection, slot, &mut self.event_queue);
        }
        let deadline = connection.next_deadline();
        let has_changed =
            connection.conditions.has(Conditions::HALF_OPEN) || connection.state == State::Closed;
        self.ask_by(slot, deadline);
        if has_changed {
            self.settle_change(slot);
        }
    }

    /// [`Self::settle`] after a call of the host that can only cause output.
    #[inline(never)]
    fn settle_output(&mut self, slot: u32) {
        self.run.end();
        let connection = &mut self.slots[slot as usize];
        if !connection.conditions.has(Conditions::QUEUED) && connection.has_pending_output() {
            connection.conditions.set(Conditions::QUEUED);
            self.turns.push(slot);
        }
    }

    /// Makes sure that a connection is looked at by its earliest deadline.
    #[inline]
    fn ask_by(&mut self, slot: u32, deadline: Instant) {
        let connection = &mut self.slots[slot as usize];
        if deadline < connection.asked_by {
            connection.asked_by = deadline;
            self.deadlines.ask_by(slot, deadline);
        }
    }

    /// Queues a connection for `accept`, and tells the host. False when the listener is gone or its
    /// queue is full.
    fn offer(&mut self, listener: ListenerId, id: ConnectionId) -> bool {
        let had_news = self.listeners.has_news();
        let is_offered = self.listeners.push_ready(listener, id);
        if !had_news && self.listeners.has_news() {
            self.event_queue.push(LISTENERS);
        }
        is_offered
    }

    /// The rare part of [`Self::settle`]: a handshake or a connection may have ended.
    #[cold]
    fn settle_change(&mut self, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        let id = connection.id(slot);
        let listener = ListenerId(connection.listener);
        if connection.conditions.has(Conditions::HALF_OPEN)
            && connection.state != State::SynReceived
        {
            connection.conditions.clear(Conditions::HALF_OPEN);
            let is_established = connection.state != State::Closed;
            let is_fast_opened = connection.is_fast_opened();
            self.listeners.end_half_open(listener, is_fast_opened);
            // If Fast Open opened the connection, the host has it already.
            let is_new = is_established && !is_fast_opened;
            if is_new && !self.offer(listener, id) {
                // The listener is gone.
                self.slots[slot as usize].abort(CloseReason::Aborted);
                return self.settle(slot);
            }
        }
        let connection = &mut self.slots[slot as usize];
        if connection.state == State::Closed {
            if connection.conditions.has(Conditions::IN_TABLE) {
                connection.conditions.clear(Conditions::IN_TABLE);
                let tag = self.flows.tag(&connection.key);
                self.flows.remove(tag, slot);
                self.last_flow = NO_FLOW;
                self.last_flow_v6 = NO_FLOW_V6;
            }
            self.free_if_over(slot);
        }
    }

    /// Frees a slot when its connection is closed, the host was told, and the host has released it.
    fn free_if_over(&mut self, slot: u32) {
        let connection = &mut self.slots[slot as usize];
        let has = |condition| connection.conditions.has(condition);
        let is_over = connection.state == State::Closed
            && !has(Conditions::RESET_DUE | Conditions::QUEUED)
            && !has(Conditions::IN_TABLE | Conditions::FREE)
            && !connection.news.has(News::ANNOUNCED)
            && connection.news.has(News::RELEASED | News::UNSEEN);
        if is_over {
            let has_bytes =
                connection.rcv_nxt > Position::FIRST_BYTE || !connection.assembler.is_empty();
            if connection.news.has(News::UNSEEN) && has_bytes {
                let had_news = self.listeners.has_news();
                self.listeners.abandon(connection.id(slot));
                if !had_news {
                    self.event_queue.push(LISTENERS);
                }
            }
            let connection = &mut self.slots[slot as usize];
            connection.conditions = Conditions::FREE;
            connection.news = News::default();
            connection.generation = connection.generation.wrapping_add(1);
            connection.scoreboard = Default::default();
            connection.assembler = Default::default();
            connection.asked_by = Instant::NEVER;
            self.deadlines.remove(slot);
            self.neighbours.forget_waiting(slot);
            self.free_slots.push(slot);
        }
    }

    /// Whether another connection can be created.
    fn has_free_slot(&self) -> bool {
        !self.free_slots.is_empty() || self.slots.len() < self.config.connections_max
    }

    /// Makes room for a connection, if necessary by closing one in TIME-WAIT. Like Linux
    /// (`tcp_max_tw_buckets`), we prefer a new connection to waiting for old segments of a
    /// connection that has ended.
    fn make_room(&mut self) -> bool {
        if self.has_free_slot() {
            return true;
        }
        for _ in 0..self.slots.len().min(TIME_WAIT_LOOKS) {
            self.hand = (self.hand + 1) % self.slots.len();
            let connection = &mut self.slots[self.hand];
            let has = |condition| connection.conditions.has(condition);
            if connection.state == State::TimeWait
                && has(Conditions::RELEASED)
                && !has(Conditions::QUEUED)
                && !connection.news.has(News::ANNOUNCED)
            {
                connection.close(CloseReason::Finished);
                self.counters.time_wait_cut += 1;
                self.settle(self.hand as u32);
                return self.has_free_slot();
            }
        }
        false
    }

    /// Puts a new connection into a slot and into the flow table. The caller has checked that
    /// there is a slot; it settles the slot afterwards.
    fn insert(&mut self, make: impl FnOnce(&mut Self, u32) -> Connection) -> u32 {
        let reused = self.free_slots.pop();
        let slot = reused.unwrap_or(self.slots.len() as u32);
        let generation = reused.map_or(0, |slot| self.slots[slot as usize].generation);
        let mut connection = make(self, generation);
        connection.conditions.set(Conditions::IN_TABLE);
        let tag = self.flows.tag(&connection.key);
        self.flows.insert(tag, slot);
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = connection,
            None => self.slots.push(connection),
        }
        slot
    }

    /// The initial values of a connection between these two endpoints.
    fn open_context(
        &self,
        now: Instant,
        key: FlowKey,
        options: crate::config::Options,
        generation: u32,
    ) -> OpenContext<'_> {
        OpenContext {
            now,
            config: &self.config,
            key,
            options,
            iss: self.initial_sequence_number(now, &key),
            ts_offset: self.timestamp_offset(&key),
            path_mss: self.interface.path_mss(now, key.remote),
            route_mss: self.interface.route_mss(key.remote),
            generation,
        }
    }

    //= RFC 9293#3.4.1
    //# A TCP implementation MUST use the above type of "clock" for clock-driven selection of
    //# initial sequence numbers (MUST-8), and SHOULD generate its initial sequence numbers with
    //# the expression:
    //= RFC 9293#3.4.1
    //# F() MUST NOT be computable from the outside (MUST-9), or an attacker could still guess at
    //# sequence numbers from the ISN used for some other connection.
    /// RFC 6528 section 3: M + F(localip, localport, remoteip, remoteport, secretkey), where M is a
    /// 4 microsecond timer.
    fn initial_sequence_number(&self, now: Instant, key: &FlowKey) -> u32 {
        let m = (now.as_micros() / 4) as u32;
        m.wrapping_add(hash_ends(self.secrets.isn, key) as u32)
    }

    /// RFC 7323 section 7.1: a random offset for each pair of endpoints. Successive connections
    /// between them get the same offset, so that TIME-WAIT can be reused safely (RFC 6191).
    fn timestamp_offset(&self, key: &FlowKey) -> u32 {
        hash_ends(self.secrets.timestamps, key) as u32
    }

    /// The slot of the connection `id`, if the connection still exists.
    fn slot_of(&self, id: ConnectionId) -> Option<u32> {
        self.slots
            .get(id.index as usize)
            .is_some_and(|connection| {
                connection.generation == id.generation
                    && !connection
                        .conditions
                        .has(Conditions::FREE | Conditions::RELEASED)
            })
            .then_some(id.index)
    }

    /// Checks the invariants that hold between two steps, for every connection. Returns how many
    /// records the scoreboards have, because most of the time is spent on them.
    ///
    /// # Panics
    /// When an invariant does not hold: that is a fault of the engine, never of a remote.
    pub fn assert_invariants(&self) -> usize {
        self.assert_brief_invariants();
        let in_use = |connection: &&Connection| !connection.conditions.has(Conditions::FREE);
        let connections = self.slots.iter().filter(in_use);
        connections.map(Connection::assert_scoreboard).sum()
    }

    /// Checks the same as [`Engine::assert_invariants`], except for the scoreboards.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn assert_brief_invariants(&self) {
        let in_table = self
            .slots
            .iter()
            .filter(|slot| slot.conditions.has(Conditions::IN_TABLE))
            .count();
        assert_eq!(
            in_table,
            self.flows.len(),
            "the flow table disagrees with the slots"
        );
        for connection in &self.slots {
            if !connection.conditions.has(Conditions::FREE) {
                connection.assert_invariants();
            }
        }
        self.assert_run();
    }
}

/// Notes that the host has news of a connection.
#[inline(always)]
fn announce(connection: &mut Connection, slot: u32, event_queue: &mut Line) {
    if !connection.news.has(News::ANNOUNCED | News::UNSEEN) {
        connection.news.0 |= News::ANNOUNCED;
        event_queue.push(slot);
    }
}

/// Notes progress of a connection as news for the host. The progress was not noted before.
#[inline(always)]
fn announce_progress(connection: &mut Connection, slot: u32, event_queue: &mut Line) {
    if connection.news.has(News::ANNOUNCED | News::UNSEEN) {
        connection.news.0 |= News::PROGRESS;
    } else {
        connection.news.0 |= News::PROGRESS | News::ANNOUNCED;
        event_queue.push(slot);
    }
}

/// The progress event of a connection.
#[inline]
fn progress_of(slot: u32, connection: &Connection) -> Event {
    Event::Progress {
        connection: connection.id(slot),
        received: connection.received_bytes(),
        acknowledged: connection.acknowledged_bytes(),
        remote_finished: connection.conditions.has(Conditions::FIN_RECEIVED),
    }
}

fn hash_ends(secret: SipKey, key: &FlowKey) -> u64 {
    secret.hash(&[
        key.local.0[0],
        key.local.0[1],
        key.remote.0[0],
        key.remote.0[1],
        u64::from(key.local_port) << 16 | u64::from(key.remote_port),
    ])
}
