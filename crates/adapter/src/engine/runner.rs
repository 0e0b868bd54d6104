//! The engine's thread: takes frames, bytes and commands from the link, the programs and the
//! daemon, passes them to the engine, and carries out the engine's answers.

mod connections;
mod half_closed;
mod opens;
mod orders;
mod pruning;
mod shared;
mod turns;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use half_closed::HalfClosed;
use pruning::Pruning;
use shared::Shared;
use toehold_tcp::{CloseReason, Config, ConnectionId, Engine, Event, Instant, Random, Share};
use turns::Turns;

use super::Error;
use super::advance::Next;
use super::arrivals::Arrivals;
use super::carriers::Carriers;
use super::channels::{Accepting, ChannelKey, Channels};
use super::clients::Unchanging;
use super::common::Common;
use super::device::Unsent;
use super::flow::{ChannelState, Flow, Opener, Stage, errno_of, is_silence};
use super::inbox::Inbox;
use super::link::Link;
use super::listeners::Listeners;
use super::loopback_aliases::LoopbackAliases;
use super::memory::Streams;
use super::passing::{PassedOn, Takers};
use super::poller::{self, Poller, Source};
use super::ports::Ports;
use super::receiver::{AllowedPlacement, FrameReceiver};
use super::relay::StepContext;
use super::report::Report;
use super::settings::{ByDestination, Settings};
use super::spinning::Spinning;
use super::tcp_config::{LARGE_SEGMENT_BYTES, RECEIVE_BYTES, config};
use super::transmitter::FrameTransmitter;
use crate::entropy;
use crate::epoll::EVENTS_PER_TURN;

/// The private parts of a thread, made at the start.
pub(super) struct Own {
    pub(super) share: Share,
    pub(super) link: Link,
    pub(super) inbox: Inbox,
    pub(super) channels: Channels,
    /// Only in the first thread: programs connect there.
    pub(super) arrivals: Option<Arrivals>,
}

/// Carriers and commands may wait for this many looks at the link.
const LOOKS_BETWEEN_POLLS: u32 = 8;

pub(super) struct Runner {
    common: Arc<Common>,
    inbox: Inbox,
    link: Link,
    unsent: Unsent,
    /// The first thread's.
    arrivals: Option<Arrivals>,
    poller: Poller,
    engine: Engine,
    streams: Streams,
    channels: Channels,
    /// Our addresses, each with its loopback alias.
    own: Vec<(IpAddr, IpAddr)>,
    loopback_aliases: LoopbackAliases,
    /// Ports for carriers to listening programs.
    ports: Ports,
    mtu: u16,
    mtu_is_fixed: bool,
    /// The time to wait for more work after a wake-up, and how many frames to take in a row.
    coalesce: Duration,
    batch: usize,
    /// Payload of large frames is received where the program reads it.
    splits_headers: bool,
    /// The most connections of one program, including those to its listeners.
    quota: usize,
    /// Most memory of all threads together.
    memory_bytes: usize,
    /// The settings of connections that begin from now on.
    connections: ByDestination,
    listeners: Listeners,
    /// When to look whether all listeners are there, and the earliest time for it after the last
    /// time.
    look_at_listeners_due: Option<Clock>,
    look_at_listeners_after: Clock,
    /// By the engine's slot.
    flows: Vec<Option<Flow>>,
    serial: u32,
    /// Slots to be looked at, now and in the next turn.
    due: Vec<u32>,
    later: Vec<u32>,
    /// The thread that was given the last connection to open.
    last_given: usize,
    began: Clock,
    report: Report,
    spinning: Spinning,
    receiver: FrameReceiver,
    transmitter: FrameTransmitter,
    /// Number of looks until the next one that also asks the poller.
    looks_before_polling: u32,
    passed_on: PassedOn,
    pruning: Pruning,
    shared: Shared,
    carriers: Carriers,
    /// Slots of connections that wait for a channel before their first byte.
    pairing: Vec<u32>,
    /// Pairs whose programs may have claimed carriers.
    claims: Vec<u64>,
    turns: Turns,
    half_closed: HalfClosed,
}

impl Runner {
    pub(super) fn new(
        settings: &Settings,
        common: Arc<Common>,
        own: Own,
        mtu: u16,
    ) -> Result<Runner, Error> {
        let os = |action| move |error| Error::Os(action, error);
        let Own {
            share,
            link,
            inbox,
            channels,
            arrivals,
        } = own;
        let entropy = || entropy::bits().map_err(os("get random numbers"));
        let [first_port, ..] = entropy()?;
        let entropy = entropy()?;
        let config = Config {
            fast_open_key: Some(common.fast_open_key),
            ..config(settings, link.mac(), mtu, share)
        };
        let mut loopback_aliases = LoopbackAliases::next_to(common.relay_source);
        let poller = Poller::new().map_err(os("make an epoll instance"))?;
        watch_all(&poller, &link, &inbox, &channels, arrivals.as_ref())
            .map_err(os("watch the link"))?;
        let mut runner = Runner {
            engine: Engine::new(config, Random::from_entropy(entropy)),
            own: loopback_aliases.for_all(settings),
            loopback_aliases,
            ports: Ports::beginning_at(first_port),
            mtu_is_fixed: settings.mtu.is_some(),
            coalesce: settings.coalesce,
            batch: settings.batch,
            splits_headers: settings.split_headers,
            quota: settings.quota,
            memory_bytes: settings.memory_bytes,
            connections: settings.connections.clone(),
            listeners: Listeners::new(common.clients.clone(), common.tokens.clone()),
            common,
            passed_on: PassedOn::new(inbox.door()),
            inbox,
            link,
            unsent: Unsent::default(),
            arrivals,
            poller,
            streams: streams_for(settings, share.count()),
            channels,
            mtu,
            look_at_listeners_due: None,
            look_at_listeners_after: Clock::now(),
            flows: Vec::new(),
            serial: 0,
            due: Vec::new(),
            later: Vec::new(),
            last_given: 0,
            began: Clock::now(),
            report: Report::default(),
            spinning: Spinning::default(),
            receiver: FrameReceiver::default(),
            pruning: Pruning::default(),
            looks_before_polling: 0,
            transmitter: FrameTransmitter::new(LARGE_SEGMENT_BYTES as usize),
            shared: Shared::default(),
            carriers: Carriers::default(),
            pairing: Vec::new(),
            claims: Vec::new(),
            turns: Turns::default(),
            half_closed: HalfClosed::default(),
        };
        runner.listeners.set_shares(&settings.shares);
        runner.receiver.set_checksum(settings.checksum);
        runner.take_neighbours();
        runner.settle_outgoing_ports();
        Ok(runner)
    }

    /// Serves until told to stop; then every connection is reset, on both sides.
    pub(super) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        loop {
            if self.wait(&mut events).is_err() {
                return;
            }
            for event in events.drain(..) {
                match event.source {
                    Source::Link => {
                        if event.bits & libc::EPOLLERR as u32 != 0 {
                            self.link.device.clear_error();
                        }
                        self.take_frames();
                    }
                    Source::LinkChange => self.look_at_link(),
                    Source::Relay => self.give_all(|arrivals| arrivals.take(Clock::now())),
                    Source::Late => self.give_all(Arrivals::take_late),
                    Source::Command => {
                        self.inbox.silence();
                        if !self.take_commands() {
                            return self.stop();
                        }
                        self.take_passed();
                    }
                    Source::Offers => self.take_offers(),
                    Source::Flow(slot, serial) => self.note_carrier(slot, serial, event.bits),
                }
            }
            self.sweep();
            self.open_claimed();
            for slot in std::mem::take(&mut self.later) {
                if let Some(flow) = self.flows.get_mut(slot as usize).and_then(Option::as_mut) {
                    make_due(&mut self.due, flow, slot);
                }
            }
            self.look_at_seeds();
            if self.is_timer_due() {
                let now = self.now();
                self.engine.handle_timeout(now);
            }
            self.settle();
            self.prune();
            self.transmit();
            // The next hop may be a neighbour that has to be found.
            if self.find_next_hops() {
                self.transmit();
            }
            if self.find_neighbours() {
                self.transmit();
            }
            let is_all_sent = self.link.device.flush();
            self.unsent.note(is_all_sent, Clock::now);
            self.common.captures.flush();
            if let Some(arrivals) = &mut self.arrivals {
                arrivals.forget_old(Clock::now());
            }
            self.look_at_carriers();
            self.look_at_half_closed();
            self.look_at_listeners();
            self.look_at_shared_ports();
        }
    }

    /// Waits for work: spins while that pays, then sleeps. Channels with a bit in the ready bitmaps
    /// are due afterwards.
    fn wait(&mut self, events: &mut Vec<poller::Event>) -> io::Result<()> {
        let mut spinning = std::mem::take(&mut self.spinning);
        let mut result = self.look(events);
        let found = !matches!(result, Ok(false))
            || !self.later.is_empty()
            || self.pause_for_seeds()
            || spinning.look(|| {
                result = self.look(events);
                !matches!(result, Ok(false))
            });
        let mut result = result.map(drop);
        if !found && self.streams.copying.is_busy() {
            self.streams.copying.wait();
            self.settle_copies();
        } else if !found && !self.begin_sleep() {
            let asleep = Clock::now();
            result = self.poller.wait(events, self.timeout());
            self.channels.set_sleeping(false);
            self.report.sleeps += 1;
            spinning.slept(asleep.elapsed());
            if !self.coalesce.is_zero() && result.is_ok() && !events.is_empty() {
                // Like interrupt coalescing of a network card: work that comes meanwhile needs no
                // wake-up of its own.
                std::thread::sleep(self.coalesce);
            }
        }
        self.spinning = spinning;
        result
    }

    /// Looks for work without sleeping; true when there is some. The link and the ready bitmaps are
    /// checked each time. The poller costs as much as both together, so it is checked only from
    /// time to time, unless it had events the last time.
    fn look(&mut self, events: &mut Vec<poller::Event>) -> io::Result<bool> {
        let mut found = self.sweep();
        found |= self.settle_copies();
        found |= self.take_frames();
        found |= self.take_passed();
        if self.looks_before_polling == 0 {
            self.poller.wait(events, Some(Duration::ZERO))?;
            let has_others = events.iter().any(|event| event.source != Source::Link);
            self.looks_before_polling = if has_others { 0 } else { LOOKS_BETWEEN_POLLS };
            found |= !events.is_empty();
        } else {
            self.looks_before_polling -= 1;
        }
        Ok(found || self.is_timer_due())
    }

    fn is_timer_due(&self) -> bool {
        self.engine
            .poll_timeout()
            .is_some_and(|due| due <= self.now())
    }

    /// Makes programs ring from now on. True when a program has left news before it could see that.
    fn begin_sleep(&mut self) -> bool {
        self.channels.set_sleeping(true);
        let has_news = self.sweep();
        if has_news {
            self.channels.set_sleeping(false);
        }
        has_news
    }

    /// Looks at the ready bitmaps; true when there was news.
    fn sweep(&mut self) -> bool {
        let (flows, due, claims) = (&mut self.flows, &mut self.due, &mut self.claims);
        let each = |slot| {
            let flow = flows.get_mut(slot as usize).and_then(Option::as_mut);
            if let Some(flow) = flow {
                make_due(due, flow, slot);
            }
        };
        let has_claimed = |pair| {
            if claims.last() != Some(&pair) {
                claims.push(pair);
            }
        };
        self.channels.sweep(each, has_claimed)
    }

    /// Publishes the bytes of completed copies; true when there were any.
    #[inline]
    fn settle_copies(&mut self) -> bool {
        if !self.streams.copying.is_busy() {
            return false;
        }
        let (flows, due) = (&mut self.flows, &mut self.due);
        self.streams.copying.settle(|id| {
            let flow = flows.get_mut(id.index()).and_then(Option::as_mut);
            if let Some(flow) = flow.filter(|flow| flow.id == id) {
                make_due(due, flow, id.index() as u32);
            }
        })
    }

    fn take_offers(&mut self) {
        let now = self.now();
        let (flows, streams, due) = (&mut self.flows, &mut self.streams, &mut self.due);
        let (engine, carriers) = (&mut self.engine, &mut self.carriers);
        self.channels.offers(|channels, mut offer| {
            let slot = offer.flow;
            let flow = flows.get_mut(slot as usize).and_then(Option::as_mut);
            let entry = offer.entry;
            let asked = |flow: &&mut Flow| flow.beside == ChannelState::Asked { entry };
            let Some(flow) = flow.filter(asked) else {
                return;
            };
            channels.enter(offer.pair, offer.slot, slot);
            let place = (offer.pair, offer.slot);
            flow.take_channel(
                ChannelKey { entry, place },
                &mut offer.endpoint,
                engine,
                now,
            );
            if let Some(serving) = &mut flow.serving {
                serving.accepting = offer.accepting;
            }
            let is_unknown = offer.accepting == Accepting::Unknown && flow.opener == Opener::Remote;
            if let Some(serving) = flow.serving.take_if(|_| is_unknown) {
                carriers.seed_ends(&serving, false);
            }
            streams.set_endpoint(flow.id, Some(offer.endpoint));
            make_due(due, flow, slot);
        });
    }

    fn stop(&mut self) {
        let now = self.now();
        for flow in self.flows.iter().flatten() {
            let _ = self.engine.abort(now, flow.id);
        }
        self.transmit();
        self.link.device.flush();
        // `SO_LINGER` resets the carriers that are dropped now.
        self.flows.clear();
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.began.elapsed().as_micros() as u64 + 1)
    }

    fn timeout(&self) -> Option<Duration> {
        let now = self.now();
        let engine = self.engine.poll_timeout();
        let engine = engine.map(|due| Duration::from_micros(due.since(now).as_micros()));
        let silent = self.arrivals.as_ref().and_then(Arrivals::timeout);
        let look = self.look_at_listeners_due;
        let look = look.map(|due| due.saturating_duration_since(Clock::now()));
        let ports = self.shared.due();
        let ports = ports.map(|due| due.saturating_duration_since(Clock::now()));
        let carriers = [
            self.carriers.look_due(),
            self.turns.due(),
            self.half_closed.due(),
            self.unsent.due(),
        ];
        let carriers = carriers.into_iter().flatten().min();
        let carriers = carriers.map(|due| due.saturating_duration_since(Clock::now()));
        let others = silent.into_iter().chain(look).chain(ports).chain(carriers);
        engine.into_iter().chain(others).min()
    }

    /// Passes frames of the link to the engine, until there are none or others have their turn.
    /// True when there were any.
    fn take_frames(&mut self) -> bool {
        if self.passed_on.is_stalled() && !self.resume() {
            return false;
        }
        // No other program is added while frames are taken, because a wrong guess puts bytes where
        // another program could see them.
        let is_guessing =
            self.splits_headers && self.receiver.is_run() && self.link.device.has_to_guess();
        let clients = is_guessing.then(|| self.common.clients.unchanging());
        let is_one = clients.as_ref().is_some_and(Unchanging::is_one);
        let mut taken = 0;
        while taken < self.batch {
            let now = self.now();
            let may = AllowedPlacement {
                place: self.splits_headers && !self.common.captures.is_watched(),
                guess: is_one,
            };
            let takers = Takers {
                engine: &mut self.engine,
                streams: &mut self.streams,
                common: &self.common,
                passed_on: &mut self.passed_on,
            };
            let may = (may, self.batch - taken);
            let count = (self.receiver).take(&mut self.link.device, now, takers, may);
            if count == 0 {
                return taken > 0;
            }
            taken += count;
            if self.passed_on.is_stalled() {
                // Meanwhile frames on the link must not wake this thread.
                self.unwatch_link();
                return true;
            }
        }
        true
    }

    /// Receives again, if the other thread has room for the kept frame now.
    #[cold]
    fn resume(&mut self) -> bool {
        let is_over = self.passed_on.resume(&self.common.doors);
        if is_over {
            self.watch_link();
        }
        is_over
    }

    fn watch_link(&mut self) {
        if self.link.device.is_over() {
            // A later change may bring a new interface.
            return;
        }
        // Without epoll, frames would be found only by spinning, so they count as lost, and that is
        // reported.
        for queue in self.link.device.queues() {
            let watched = self.poller.watch(queue, Source::Link);
            self.report.frames_lost += u64::from(watched.is_err());
        }
    }

    fn unwatch_link(&self) {
        for queue in self.link.device.queues() {
            self.poller.unwatch(queue);
        }
    }

    /// Takes frames that other threads' queues were given; true when there were some.
    fn take_passed(&mut self) -> bool {
        if !self.inbox.has_frames() {
            return false;
        }
        for passed in self.inbox.frames() {
            let now = self.now();
            let mut takers = Takers {
                engine: &mut self.engine,
                streams: &mut self.streams,
                common: &self.common,
                passed_on: &mut self.passed_on,
            };
            takers.take_passed(now, &passed);
        }
        true
    }

    fn note_carrier(&mut self, slot: u32, serial: u32, bits: u32) {
        let flow = self.flows.get(slot as usize).and_then(Option::as_ref);
        let slot = match flow {
            Some(flow) if flow.carrier.serial == serial => Some(slot),
            // The carrier serves another connection by now, or none.
            _ => self.carriers.note(serial, bits, &mut self.channels),
        };
        let flow = slot.and_then(|slot| Some((slot, self.flows.get_mut(slot as usize)?.as_mut()?)));
        if let Some((slot, flow)) = flow.filter(|(_, flow)| flow.carrier.serial == serial) {
            flow.carrier.note(bits);
            make_due(&mut self.due, flow, slot);
        }
    }

    /// Works until neither the engine nor the programs' sockets have anything to do.
    fn settle(&mut self) {
        loop {
            while let Some(event) = self.engine.poll_event() {
                self.handle_event(event);
            }
            if self.due.is_empty() {
                return;
            }
            for slot in std::mem::take(&mut self.due) {
                self.advance(slot);
                self.look_at_seeds();
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Acceptable(listener) => self.accept(listener),
            Event::Abandoned(id) => self.streams.forget(id),
            Event::Connected(id) => self.answer(id),
            Event::Progress {
                connection,
                received,
                acknowledged,
                remote_finished,
            } => {
                if let Some(flow) = self.flow(connection) {
                    flow.note_progress(received, acknowledged, remote_finished);
                }
            }
            Event::Closed { connection, reason } => self.handle_closed(connection, reason),
            _ => {}
        }
    }

    /// The window of a new connection stays small until its program has shown that it reads.
    fn bound_window(&mut self, id: ConnectionId) {
        let now = self.now();
        // It fails only for a connection that is not there.
        let _ = self.engine.bound_window(now, id, 0, RECEIVE_BYTES);
    }

    fn handle_closed(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(flow) = self.flow(id) else { return };
        flow.note_closed(reason);
        let is_connecting = flow.stage == Stage::Connecting;
        if is_silence(reason)
            && let Some(place) = flow.place_of_carrier().filter(|_| !is_connecting)
        {
            let errno = errno_of(reason).into();
            self.common.routing_page.set_errno(place, errno);
        }
        let Some(flow) = self.flow(id) else { return };
        if is_connecting {
            if flow.opens_by_message {
                self.show_cookie(id);
            }
            let Some(flow) = self.flow(id) else { return };
            let _ = flow.carrier.send_result(errno_of(reason));
            self.remove(id.index());
        }
    }

    /// A connection's flow, which is also marked as due.
    fn flow(&mut self, id: ConnectionId) -> Option<&mut Flow> {
        let flow = self.flows.get_mut(id.index())?.as_mut()?;
        if flow.id != id {
            return None;
        }
        make_due(&mut self.due, flow, id.index() as u32);
        Some(flow)
    }

    fn advance(&mut self, slot: u32) {
        let now = self.now();
        let Some(flow) = self.flows.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        flow.is_due = false;
        let (engine, streams) = (&mut self.engine, &mut self.streams);
        let mut around = StepContext::new(now, engine, streams, &mut self.channels);
        let seed = flow.serving.filter(|_| flow.is_seed());
        let was_held = flow.held_at.is_some();
        let next = flow.advance(&mut around);
        let is_unfinished = around.is_unfinished;
        if flow.held_at.is_some() && !was_held && next == Next::Wait {
            self.half_closed.watch(flow);
        }
        if let Some(seed) = seed.filter(|_| !flow.is_seed()) {
            let is_carrier = flow.serving.is_some();
            self.carriers.seed_ends(&seed, is_carrier);
            if is_carrier {
                self.turns.watch(flow.id);
            }
        }
        match next {
            Next::Wait => {
                if is_unfinished {
                    self.later.push(slot);
                }
                return;
            }
            next @ (Next::Over | Next::Departed) => {
                return self.remove_in_order(slot as usize, next);
            }
            Next::Refused => return self.join_again(slot as usize),
            Next::RemoteGone => {}
            Next::ProgramGone => {
                let (id, has_joined) = (flow.id, flow.stage != Stage::Joining);
                // Its last bytes are sent before the reset.
                self.transmit();
                let _ = self.engine.abort(now, id);
                self.report.programs_gone += 1;
                if !has_joined {
                    // No program accepted it: perhaps the listener is gone.
                    self.doubt_listeners();
                }
            }
        }
        self.remove(slot as usize);
    }

    fn transmit(&mut self) {
        let now = self.now();
        loop {
            let watched = self.common.captures.before_transmit(&self.engine);
            let header = self.transmitter.header();
            let Some(mut transmit) = self.engine.poll_transmit(now, header) else {
                return;
            };
            let (device, streams) = (&mut self.link.device, &mut self.streams);
            let (pieces, is_taken) = self.transmitter.send(device, streams, &mut transmit);
            self.report.frames_refused += u64::from(!is_taken);
            if let Some(before) = watched {
                let frame = (&pieces[..], is_taken);
                let captures = &self.common.captures;
                captures.note_sent(&self.engine, &before, &transmit, frame);
            }
        }
    }
}

/// Registers all initial descriptors with the poller.
fn watch_all(
    poller: &Poller,
    link: &Link,
    inbox: &Inbox,
    channels: &Channels,
    arrivals: Option<&Arrivals>,
) -> io::Result<()> {
    for queue in link.device.queues() {
        poller.watch(queue, Source::Link)?;
    }
    poller.watch(link.changes(), Source::LinkChange)?;
    poller.watch(inbox.bell(), Source::Command)?;
    poller.watch(channels.socket(), Source::Offers)?;
    if let Some(arrivals) = arrivals {
        poller.watch(arrivals.relay(), Source::Relay)?;
        poller.watch(arrivals.late(), Source::Late)?;
    }
    if let Some(rules) = link.rule_changes() {
        poller.watch(rules, Source::LinkChange)?;
    }
    Ok(())
}

/// The memory of one of `threads` threads.
fn streams_for(settings: &Settings, threads: usize) -> Streams {
    let mut streams = Streams::new(settings.memory_bytes / threads);
    let (engine, copybreak) = (settings.copy_engine, settings.copybreak);
    streams.copying.set(engine, copybreak.unwrap_or(usize::MAX));
    streams
}

fn make_due(due: &mut Vec<u32>, flow: &mut Flow, slot: u32) {
    if !flow.is_due {
        flow.is_due = true;
        due.push(slot);
    }
}
