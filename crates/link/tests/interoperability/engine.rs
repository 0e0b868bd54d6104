//! The engine, and the program on its side.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use toehold_tcp::{
    CloseReason, Config, ConnectionId, Engine, Event, Instant, InterfaceAddress, ListenerId,
    MacAddress, Medium, Memory, NoRoom, Offload, Options, Random,
};

use crate::attack::{Attack, HALF_OPEN_MAX};
use crate::cell::{Cell, Pattern, REQUEST_BYTES, Role};
use crate::manners::Manners;
use crate::stream::Stream;

/// The engine's hardware address.
pub(crate) const HARDWARE: [u8; 6] = [2, 0, 0, 0, 9, 2];
/// The port on which the engine's program listens.
pub(crate) const SERVICE: u16 = 7;
/// More bytes than the engine allows a remote to send ahead.
const RING_BYTES: u64 = 16 << 20;
/// Connections that are described when a meeting fails.
const DESCRIBED_MAX: usize = 4;

/// The program's memory: bytes that arrived and are not checked yet, and bytes to send.
#[derive(Default)]
struct Rings(BTreeMap<ConnectionId, Ring>);

#[derive(Default)]
struct Ring {
    /// The position up to which the arrived bytes are checked.
    checked: u64,
    arrived: Vec<u8>,
    outgoing: Option<Stream>,
}

impl Memory for Rings {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let ring = self.0.entry(id).or_default();
        let start = offset.checked_sub(ring.checked).ok_or(NoRoom)? as usize;
        let end = start + bytes.len();
        if end as u64 > RING_BYTES {
            return Err(NoRoom);
        }
        ring.arrived.resize(ring.arrived.len().max(end), 0);
        ring.arrived[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn gather(&mut self, id: ConnectionId, offset: u64, target: &mut [u8]) {
        let outgoing = self.0.get(&id).and_then(|ring| ring.outgoing);
        outgoing
            .expect("only what was published is asked for")
            .fill(offset, target);
    }
}

impl Ring {
    /// Checks the bytes that arrived up to `received`.
    fn check(&mut self, received: u64, incoming: Stream) -> Result<(), String> {
        let count = (received - self.checked) as usize;
        let fresh = self
            .arrived
            .get(..count)
            .ok_or("the engine announces what it has not placed")?;
        incoming
            .check(self.checked, fresh)
            .map_err(|at| format!("byte {at} at the engine is not what the kernel was given"))?;
        self.arrived.drain(..count);
        self.checked = received;
        Ok(())
    }
}

/// The engine at its address, and its program.
pub(crate) struct Program {
    cell: Cell,
    pub(crate) engine: Engine,
    rings: Rings,
    listener: ListenerId,
    /// The address to connect to, if this program connects.
    remote: Option<SocketAddr>,
    to_open: usize,
    ended: usize,
    /// True while the program takes nothing; `untaken` holds the positions up to which it could
    /// take.
    is_resting: bool,
    untaken: BTreeMap<ConnectionId, u64>,
    options: Options,
    has_fast_open: bool,
}

impl Program {
    pub(crate) fn new(
        cell: Cell,
        seed: u64,
        remote: Option<SocketAddr>,
        (attack, manners): (Option<Attack>, Manners),
    ) -> Self {
        let mac = MacAddress(HARDWARE);
        let address = InterfaceAddress {
            address: cell.engine_address(),
            prefix_bits: if cell.engine_address().is_ipv4() {
                24
            } else {
                64
            },
        };
        let medium = Medium::Ethernet { mac, resolve: true };
        let mut config = Config::new(medium, cell.link.mtu, address);
        if cell.link.offloads {
            config.offload = Offload {
                transmit_checksum: true,
                segmentation_bytes_max: 60_000,
            };
        }
        if attack == Some(Attack::Flood) {
            config.half_open_max = HALF_OPEN_MAX;
        }
        manners.set_engine(&mut config);
        let options = manners.options();
        let mut engine = Engine::new(config, Random::new(seed));
        let local = SocketAddr::new(cell.engine_address(), SERVICE);
        let listener = engine.listen(local, 64, options);
        let listener = listener.expect("a new engine has no listener");
        if manners.has_fast_open() {
            engine.set_fast_open(listener, 64);
        }
        Self {
            cell,
            engine,
            rings: Rings::default(),
            listener,
            remote,
            to_open: cell.connections(),
            ended: 0,
            is_resting: cell.pattern == Pattern::EngineRests,
            untaken: BTreeMap::new(),
            options,
            has_fast_open: manners.has_fast_open(),
        }
    }

    /// Opens the first connections.
    pub(crate) fn start(&mut self, now: Instant) -> Result<(), String> {
        (0..self.cell.workers()).try_for_each(|_| self.open(now))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended == self.cell.connections()
    }

    /// A program that rested takes all bytes at once.
    pub(crate) fn wake(&mut self) {
        self.is_resting = false;
        for (id, received) in std::mem::take(&mut self.untaken) {
            // A connection that has ended since has no bytes to take.
            let _ = self.engine.take(id, received);
        }
    }

    fn open(&mut self, now: Instant) -> Result<(), String> {
        if let Some(remote) = self.remote
            && self.to_open > 0
        {
            self.to_open -= 1;
            let opened = self.engine.connect(now, None, remote, self.options);
            let id = opened.map_err(|error| format!("the engine does not connect: {error:?}"))?;
            if self.has_fast_open {
                self.engine.open_fast(now, id);
                let (outgoing, _) = self.streams(id)?;
                self.rings.0.entry(id).or_default().outgoing = Some(outgoing);
                let first = REQUEST_BYTES.min(self.cell.bytes());
                let published = self.engine.publish(id, first);
                published.map_err(|error| format!("publish: {error:?}"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: toehold_tcp::ReceiveOffload,
    ) {
        self.engine
            .handle_frame(now, frame, offload, &mut self.rings);
    }

    pub(crate) fn poll_frame(
        &mut self,
        now: Instant,
        frame: &mut [u8],
    ) -> Option<(usize, toehold_tcp::TransmitOffload)> {
        self.engine.poll_frame(now, &mut self.rings, frame)
    }

    /// Handles the engine's events, as the program does.
    pub(crate) fn handle_events(&mut self, now: Instant) -> Result<(), String> {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Acceptable(_) => while self.engine.accept(self.listener).is_some() {},
                Event::Connected(id) => self.progress(now, id, 0, false)?,
                Event::Progress {
                    connection,
                    received,
                    remote_finished,
                    ..
                } => self.progress(now, connection, received, remote_finished)?,
                Event::Closed { connection, reason } => self.closed(now, connection, reason)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The streams of a connection: outgoing and incoming.
    fn streams(&self, id: ConnectionId) -> Result<(Stream, Stream), String> {
        let info = self
            .engine
            .info(id)
            .ok_or("news of a connection that is none")?;
        let is_client = self.cell.role == Role::Client;
        let client = if is_client { info.local } else { info.remote };
        let stream = |by_client| Stream::new(client.port(), by_client);
        Ok((stream(is_client), stream(!is_client)))
    }

    /// The program's next step on a connection that made progress. A program that connected sends
    /// first.
    fn progress(
        &mut self,
        now: Instant,
        id: ConnectionId,
        received: u64,
        remote_finished: bool,
    ) -> Result<(), String> {
        let (outgoing, incoming) = self.streams(id)?;
        let ring = self.rings.0.entry(id).or_default();
        ring.outgoing = Some(outgoing);
        ring.check(received, incoming)?;
        if self.is_resting {
            self.untaken.insert(id, received);
        } else {
            self.engine
                .take(id, received)
                .map_err(|error| format!("take: {error:?}"))?;
        }
        let all = self.cell.bytes();
        let is_client = self.cell.role == Role::Client;
        let end = match self.cell.pattern {
            Pattern::Requests if is_client => (received + REQUEST_BYTES).min(all),
            Pattern::HalfClose if !is_client => u64::from(remote_finished) * all,
            _ if is_client => all,
            // As many bytes as arrived.
            _ => received,
        };
        self.engine
            .publish(id, end)
            .map_err(|error| format!("publish: {error:?}"))?;
        if end == all && (is_client || remote_finished) {
            self.engine
                .finish(now, id)
                .map_err(|error| format!("finish: {error:?}"))?;
        }
        Ok(())
    }

    fn closed(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: CloseReason,
    ) -> Result<(), String> {
        if reason != CloseReason::Finished {
            let info = self.engine.info(id);
            return Err(format!("a connection ends: {reason:?}; {info:?}"));
        }
        let (_, incoming) = self.streams(id)?;
        let info = self
            .engine
            .info(id)
            .ok_or("a closed connection stays until it is released")?;
        let all = self.cell.bytes();
        if (info.received, info.acknowledged) != (all, all) {
            return Err(format!("a connection ends before its streams: {info:?}"));
        }
        self.rings
            .0
            .entry(id)
            .or_default()
            .check(info.received, incoming)?;
        self.rings.0.remove(&id);
        self.untaken.remove(&id);
        self.engine
            .release(now, id)
            .map_err(|error| format!("release: {error:?}"))?;
        self.ended += 1;
        self.open(now)
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!(
            "engine's program: {} of {} connections over; {} bytes of ended ones aside, rings \
            hold {}",
            self.ended,
            self.cell.connections(),
            self.ended as u64 * self.cell.bytes(),
            self.rings
                .0
                .values()
                .map(|ring| ring.arrived.len())
                .sum::<usize>(),
        );
        for &id in self.rings.0.keys().take(DESCRIBED_MAX) {
            let _ = write!(text, "\n{:?}", self.engine.info(id));
        }
        let counters = format!("{:?}", self.engine.counters());
        let counted: Vec<&str> = counters
            .split(", ")
            .filter(|one| !one.ends_with(": 0"))
            .collect();
        let _ = write!(text, "\n{}", counted.join(", "));
        text
    }
}
