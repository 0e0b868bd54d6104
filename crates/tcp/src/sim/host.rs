//! A simulated host: an engine, rings for its connections, and a program at each of them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::BTreeMap;

use super::link::Link;
use super::pattern;
use super::role::Role;
use super::scenario::Scenario;
use crate::{
    Config, ConnectionId, Engine, Expected, Headers, Instant, InterfaceAddress, ListenerId,
    MacAddress, Medium, Memory, NoRoom, Offload, Random, ReceiveOffload,
};

/// The port of servers.
pub(super) const SERVER_PORT: u16 = 80;

/// The initial bytes of a ring.
const POISON: u8 = 0xa5;

/// One end of a connection, from its program's point of view.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) role: Role,
    pub(crate) flow: usize,
    /// Names of the streams to be sent and expected.
    pub(crate) sends: u64,
    pub(crate) expects: u64,
    pub(crate) published: u64,
    pub(crate) acknowledged: u64,
    pub(crate) received: u64,
    pub(crate) taken: u64,
    pub(crate) remote_finished: bool,
    pub(crate) finished: bool,
    pub(crate) aborted: bool,
    pub(crate) handshake: Handshake,
    /// The other side sends nothing.
    pub(crate) expects_nothing: bool,
    pub(crate) next_write: Instant,
    pub(crate) next_read: Instant,
    ring: Ring,
}

/// The stage of a connection's handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handshake {
    /// The program cannot use the connection yet.
    Pending,
    /// Fast Open has given the connection to the program before the remote acknowledged the SYN-ACK
    /// (RFC 7413 section 4.2.2).
    FastOpened,
    Over,
}

/// A ring. Its debug output omits the bytes.
struct Ring {
    bytes: u64,
    /// The part of the ring that was ever used: most transfers are shorter than their rings.
    touched: Vec<u8>,
}

impl Ring {
    fn new(bytes: u32) -> Self {
        Self {
            bytes: u64::from(bytes),
            touched: Vec::new(),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The range of `bytes` bytes from `offset` of the stream on, in two parts: up to the ring's
    /// end, and from its beginning.
    fn parts(&mut self, offset: u64, bytes: usize) -> [&mut [u8]; 2] {
        let at = (offset % self.bytes) as usize;
        let end = (at + bytes).min(self.bytes as usize);
        if end > self.touched.len() {
            self.touched.resize(end, POISON);
        }
        let first = end - at;
        let (before, after) = self.touched.split_at_mut(at);
        [&mut after[..first], &mut before[..bytes - first]]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let [first, second] = self.parts(offset, bytes.len());
        let (here, there) = bytes.split_at(first.len());
        first.copy_from_slice(here);
        second.copy_from_slice(there);
    }
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

impl Program {
    pub(crate) fn new(role: Role, flow: usize, is_client: bool, ring_bytes: u32) -> Self {
        let name = |client: bool| (flow as u64 * 2 + u64::from(client)) << 40;
        Self {
            role,
            flow,
            sends: name(is_client),
            expects: name(!is_client),
            published: 0,
            acknowledged: 0,
            received: 0,
            taken: 0,
            remote_finished: false,
            finished: false,
            aborted: false,
            handshake: Handshake::Pending,
            expects_nothing: false,
            next_write: Instant::ZERO,
            next_read: Instant::ZERO,
            ring: Ring::new(ring_bytes),
        }
    }

    /// Reads the ring up to `upto`, and checks every byte if `checked`.
    pub(crate) fn read(&mut self, upto: u64, checked: bool) {
        let mut offset = self.taken;
        for part in self.ring.parts(self.taken, (upto - self.taken) as usize) {
            let wrong = pattern::first_difference(self.expects, offset, part);
            if let Some(at) = wrong.filter(|_| checked) {
                let offset = offset + at as u64;
                panic!(
                    "byte {offset} of flow {} arrived as {:#x}, was sent as {:#x}",
                    self.flow,
                    part[at],
                    pattern::byte(self.expects, offset)
                );
            }
            part.fill(POISON);
            offset += part.len() as u64;
        }
        self.taken = upto;
    }

    pub(crate) fn is_client(&self) -> bool {
        self.sends & 1 << 40 != 0
    }

    /// Whether the program may read and write.
    pub(crate) fn is_connected(&self) -> bool {
        self.handshake != Handshake::Pending
    }

    /// Whether the program is ready to release the connection.
    pub(crate) fn is_leaving(&self) -> bool {
        let has_read = self.remote_finished && self.taken == self.received;
        self.role.lets_go && self.finished && (has_read || self.expects_nothing)
    }

    /// When the program next runs without an event.
    pub(crate) fn next_run(&self) -> Instant {
        let may_write = self.is_connected()
            && !self.finished
            && self.published - self.acknowledged < self.role.send_buffer_bytes;
        let write = if may_write {
            self.next_write
        } else {
            Instant::NEVER
        };
        let read = if self.taken < self.received {
            self.next_read
        } else {
            Instant::NEVER
        };
        write.min(read)
    }
}

/// The rings of all connections of a host.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    pub(crate) programs: BTreeMap<ConnectionId, Program>,
    /// Programs of connections that the host has released, whose rings the engine may still read.
    pub(crate) parting: BTreeMap<ConnectionId, Program>,
    /// Placed bytes, by offset, of connections that were not accepted yet.
    pub(crate) early: BTreeMap<ConnectionId, Vec<(u64, Vec<u8>)>>,
    pub(crate) random: Option<Random>,
    pub(crate) no_room_per_million: u32,
    /// The host refuses larger pieces; `None`: the host accepts all bytes that its windows allow.
    pub(crate) piece_bytes_max: Option<usize>,
    /// Chance per million arrivals that bytes beyond gaps are discarded.
    pub(crate) discards_per_million: u32,
}

impl Rings {
    /// Writes payload to the expected place, whether the guess is right or wrong; true when there
    /// was room for all of the payload.
    pub(crate) fn write_early(&mut self, expected: Expected, bytes: &[u8]) -> bool {
        let Some(program) = self.programs.get_mut(&expected.connection) else {
            return false;
        };
        let room = (program.taken + program.ring.bytes() - expected.offset) as usize;
        let fitting = &bytes[..bytes.len().min(room)];
        program.ring.write(expected.offset, fitting);
        bytes.len() <= room
    }
}

impl Memory for Rings {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        if let Some(random) = &mut self.random
            && random.chance(self.no_room_per_million)
        {
            return Err(NoRoom);
        }
        if self.piece_bytes_max.is_some_and(|most| bytes.len() > most) {
            return Err(NoRoom);
        }
        let Some(program) = self.programs.get_mut(&id) else {
            // RFC 9293 lets a receiver keep or drop data that arrives before the program has the
            // connection.
            let early = self.early.entry(id).or_default();
            if early.len() >= 64 {
                return Err(NoRoom);
            }
            early.push((offset, bytes.to_vec()));
            return Ok(());
        };
        assert!(
            offset >= program.received,
            "placed below what was announced"
        );
        let end = offset + bytes.len() as u64;
        assert!(
            end <= program.taken + program.ring.bytes(),
            "placed beyond the window the ring allows"
        );
        program.ring.write(offset, bytes);
        Ok(())
    }

    fn gather(&mut self, id: ConnectionId, offset: u64, target: &mut [u8]) {
        let program = self.programs.get(&id).or_else(|| self.parting.get(&id));
        let program = program.expect("asked for the ring of an unknown connection");
        assert!(
            offset >= program.acknowledged,
            "asked for what is acknowledged"
        );
        assert!(
            offset + target.len() as u64 <= program.published,
            "asked for too much"
        );
        pattern::fill(program.sends, offset, target);
    }
}

/// A simulated host and its outgoing link.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) engine: Engine,
    pub(super) rings: Rings,
    pub(super) way_out: Link,
    pub(super) listener: ListenerId,
    /// The earliest wake-up in the event queue.
    pub(super) wake_at: Instant,
    /// The time at which the link of this host accepts frames again.
    pub(super) link_ready_at: Instant,
    /// The number of records in its scoreboards at the last check, and steps since then.
    pub(super) records: usize,
    pub(super) steps_in_brief: usize,
}

impl Host {
    /// Gives a frame to the engine like a link that reads payload to the expected place: the
    /// payload is written there, whether the guess is right or wrong.
    pub(super) fn take(&mut self, now: Instant, frame: &[u8], offload: ReceiveOffload) {
        self.discard_sometimes();
        let Self { engine, rings, .. } = self;
        let layout = Headers::of(frame);
        let expected = layout.and_then(|headers| engine.expected(headers));
        let split = expected.and_then(|expected| {
            let parts = frame.split_at_checked(expected.headers.bytes())?;
            Some((expected, parts))
        });
        if let Some((expected, (headers, payload))) = split {
            let is_placed = rings.write_early(expected, payload)
                && engine.handle_placed(now, headers, payload.len(), offload, expected);
            if is_placed {
                return;
            }
        }
        engine.handle_frame(now, frame, offload, rings);
    }

    /// A host that is short of memory discards bytes that it has reported by SACK (RFC 2018 section
    /// 8).
    fn discard_sometimes(&mut self) {
        let Rings {
            programs,
            random: Some(random),
            discards_per_million,
            ..
        } = &mut self.rings
        else {
            return;
        };
        if *discards_per_million > 0 && random.chance(*discards_per_million) {
            for &id in programs.keys() {
                self.engine.discard_early(id).expect("its program has it");
            }
        }
    }

    pub(super) fn new(scenario: &Scenario, index: usize, seed: u64) -> Self {
        let traits = scenario.traits[index];
        let address = |is_v6, prefix_bits| InterfaceAddress {
            address: address_of(index, is_v6),
            prefix_bits,
        };
        let medium = if traits.ethernet {
            Medium::Ethernet {
                mac: mac_of(index),
                resolve: false,
            }
        } else {
            Medium::Ip
        };
        let mut config = Config::new(medium, scenario.mtu, address(false, 24));
        config.addresses.push(address(true, 64));
        config.connections_max = 64;
        if scenario.syns > 0 {
            // Half-open connections must not use up the connections of others.
            config.connections_max += scenario.half_open_max;
        }
        config.half_open_max = scenario.half_open_max;
        config.sack = !traits.no_sack;
        config.timestamps = !traits.no_timestamps;
        config.window_scaling = !traits.no_window_scaling;
        config.tail_probes = !traits.no_tail_probes;
        config.restart_after_idle = !traits.no_restart_after_idle;
        if traits.offloads {
            config.offload = Offload {
                transmit_checksum: true,
                segmentation_bytes_max: 60_000,
            };
        }
        let mut random = Random::new(seed);
        let rings = Rings {
            random: Some(Random::new(random.bits())),
            no_room_per_million: scenario.no_room_per_million,
            ..Rings::default()
        };
        let mut engine = Engine::new(config, random);
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), SERVER_PORT);
        let listener = engine
            .listen(any, 128, scenario.server_options)
            .expect("a new engine has no other listener");
        engine.set_fast_open(listener, scenario.fast_open_pending_max);
        for other in 0..scenario.hosts {
            engine.set_neighbour(address_of(other, false), mac_of(other));
            engine.set_neighbour(address_of(other, true), mac_of(other));
        }
        let way_out = Link::new(scenario.impairments[index]);
        Self {
            engine,
            rings,
            way_out,
            listener,
            wake_at: Instant::NEVER,
            link_ready_at: Instant::ZERO,
            records: 0,
            steps_in_brief: 0,
        }
    }

    pub(super) fn describe(&self) -> String {
        let connections: Vec<_> = self
            .rings
            .programs
            .iter()
            .map(|(&id, program)| (self.engine.info(id), program.published, program.taken))
            .collect();
        format!(
            "{:?}: {connections:?}\n{:?}",
            self.listener,
            self.engine.counters()
        )
    }
}

/// Length of an Ethernet header.
pub(super) const LINK_BYTES: usize = 14;

pub(super) fn mac_of(host: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, host as u8])
}

/// Makes a frame that carries a packet to `host`.
pub(super) fn frame(host: usize, packet: &[u8], frame: &mut Vec<u8>) {
    let ether_type = if packet.first().is_some_and(|first| first >> 4 == 6) {
        0x86dd
    } else {
        0x0800
    };
    frame.clear();
    frame.extend_from_slice(&mac_of(host).0);
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 99]);
    frame.extend_from_slice(&u16::to_be_bytes(ether_type));
    frame.extend_from_slice(packet);
}

pub(super) fn address_of(host: usize, is_v6: bool) -> IpAddr {
    if is_v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1).into()
    } else {
        Ipv4Addr::new(10, 0, 0, host as u8 + 1).into()
    }
}

/// The host a packet is addressed to.
pub(super) fn host_of(packet: &[u8]) -> Option<usize> {
    let last = match packet.first()? >> 4 {
        4 => *packet.get(19)?,
        6 => *packet.get(39)?,
        _ => return None,
    };
    usize::from(last).checked_sub(1)
}
