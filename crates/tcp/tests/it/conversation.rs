//! Hostile input for an engine from any host on the link: bytes as frames, and bytes as a
//! conversation.
//!
//! The fuzz targets (`fuzz/`) and the tests that replay their inputs share this file. A
//! conversation is a program of single bytes with arguments. The remote sends segments whose
//! numbers are near the expected ones, so that mutation reaches the state machine and not only the
//! parser. The host makes its calls, and time passes. After every step all invariants hold, pending
//! frames are sent, and the engine has sent nothing that a receiver would reject as nonsense.

use toehold_tcp::{
    ChecksumSum, Config, CongestionControl, ConnectionId, Counters, Duration, EcnMode, Engine,
    Event, Instant, InterfaceAddress, Keepalive, ListenerId, MacAddress, Medium, Memory, NoRoom,
    Offload, Options, Random, ReceiveOffload,
};

const OURS: [u8; 4] = [10, 0, 0, 1];
const THEIRS: [u8; 4] = [10, 0, 0, 2];
const PORT: u16 = 80;
const REMOTE_PORTS: u16 = 4;
/// A program with more steps tests nothing new.
const STEPS_MAX: usize = 2_000;
/// The most frames that the engine may send at once; more would be a storm.
const FRAMES_MAX: usize = 20_000;

/// Rings that store nothing, and have no room when the program says so.
#[derive(Debug, Default)]
struct Rings {
    is_full: bool,
}

impl Memory for Rings {
    fn place(&mut self, _: ConnectionId, _: u64, _: &[u8]) -> Result<(), NoRoom> {
        if self.is_full { Err(NoRoom) } else { Ok(()) }
    }

    fn gather(&mut self, _: ConnectionId, offset: u64, target: &mut [u8]) {
        target.fill(offset as u8);
    }
}

fn config(medium: Medium) -> Config {
    let v4 = InterfaceAddress {
        address: OURS.into(),
        prefix_bits: 24,
    };
    let mut config = Config::new(medium, 1_500, v4);
    config.addresses.push(InterfaceAddress {
        address: [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(),
        prefix_bits: 64,
    });
    config.connections_max = 8;
    config.half_open_max = 4;
    config
}

/// Bytes as frames, each with its length before it, on both kinds of link.
pub(crate) fn frames(bytes: &[u8]) {
    let ethernet = Medium::Ethernet {
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        resolve: true,
    };
    for medium in [ethernet, Medium::Ip] {
        let mut engine = Engine::new(config(medium), Random::new(1));
        let listening = engine.listen(([0, 0, 0, 0], PORT).into(), 4, Options::default());
        listening.expect("the engine is new");
        let mut rings = Rings::default();
        let mut now = Instant::ZERO;
        let mut rest = bytes;
        while let Some((&[high, low], after)) = rest.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes([high & 0x07, low])).min(after.len());
            let (frame, after) = after.split_at(length);
            rest = after;
            // A link that verifies checksums itself passes on every frame that parses.
            let offload = ReceiveOffload {
                checksum_verified: high & 0x80 != 0,
            };
            // As if several engines shared the link, and this engine received every frame.
            let _ = engine.frame_owner(frame);
            engine.overhear(frame);
            if let Some(whole) = engine.put_together(now, frame) {
                engine.handle_frame(now, &whole, ReceiveOffload::default(), &mut rings);
            }
            engine.handle_frame(now, frame, offload, &mut rings);
            now += Duration::from_millis(u64::from(high & 0x78));
            engine.handle_timeout(now);
            drain(&mut engine, now, &mut rings);
            engine.assert_invariants();
        }
    }
}

/// Sends all pending frames; returns them.
fn drain(engine: &mut Engine, now: Instant, rings: &mut Rings) -> Vec<Vec<u8>> {
    let mut frame = vec![0; 70_000];
    let mut sent = Vec::new();
    while let Some((length, _)) = engine.poll_frame(now, rings, &mut frame) {
        assert!(length <= 66_000, "a frame of {length} bytes");
        sent.push(frame[..length].to_vec());
        assert!(
            sent.len() < FRAMES_MAX,
            "the engine does not come to an end"
        );
    }
    sent
}

/// The remote's knowledge of one of its connections.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    seq: u32,
    ack: u32,
    clock: u32,
    echo: u32,
    has_timestamps: bool,
}

struct Conversation<'a> {
    program: &'a [u8],
    engine: Engine,
    listener: ListenerId,
    rings: Rings,
    now: Instant,
    sides: [Side; REMOTE_PORTS as usize],
    held: Vec<Held>,
    /// The last cookie of the engine (RFC 7413).
    cookie: Vec<u8>,
}

/// A connection the host has.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: ConnectionId,
    published: u64,
    received: u64,
    taken: u64,
}

/// Bytes as a conversation; returns the engine's counters.
pub(crate) fn converse(program: &[u8]) -> Counters {
    let mut config = config(Medium::Ip);
    let mut program = program;
    let choices = take(&mut program);
    config.timestamps = choices & 1 == 0;
    config.sack = choices & 2 == 0;
    config.window_scaling = choices & 4 == 0;
    config.offload = Offload {
        transmit_checksum: choices & 8 != 0,
        segmentation_bytes_max: if choices & 16 != 0 { 65_000 } else { 0 },
    };
    let more = take(&mut program);
    let options = Options {
        congestion: [
            CongestionControl::Cubic,
            CongestionControl::NewReno,
            CongestionControl::Dctcp,
        ][usize::from(more % 3)],
        ecn: match more & 4 {
            0 => EcnMode::Off,
            _ if more & 8 != 0 => EcnMode::Accurate,
            _ => EcnMode::Classic,
        },
        pacing: more & 8 != 0,
        nodelay: more & 16 != 0,
        keepalive: (more & 32 != 0).then_some(Keepalive {
            idle: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            probes_max: 3.try_into().expect("not zero"),
        }),
        user_timeout: (more & 64 != 0).then_some(Duration::from_secs(5)),
        receive_bytes: 8_192,
        receive_bytes_max: 65_536,
        mss_max: if more & 128 != 0 { 100 } else { u16::MAX },
        ..Options::default()
    };
    let mut engine = Engine::new(config, Random::new(1));
    let listener = engine
        .listen(([0, 0, 0, 0], PORT).into(), 2, options)
        .expect("the engine is new");
    engine.set_fast_open(listener, 2);
    let mut conversation = Conversation {
        program,
        engine,
        listener,
        rings: Rings::default(),
        now: Instant::from_micros(1_000_000),
        sides: Default::default(),
        held: Vec::new(),
        cookie: Vec::new(),
    };
    for _ in 0..STEPS_MAX {
        if conversation.program.is_empty() {
            break;
        }
        conversation.step(options);
        conversation.settle();
    }
    conversation.wind_up();
    conversation.engine.counters().clone()
}

fn take(program: &mut &[u8]) -> u8 {
    let Some((&first, rest)) = program.split_first() else {
        return 0;
    };
    *program = rest;
    first
}

impl Conversation<'_> {
    fn step(&mut self, options: Options) {
        let what = take(&mut self.program);
        let value = take(&mut self.program);
        match what % 12 {
            0..=4 => self.segment(value),
            5 => {
                // Up to a quarter of a second, or up to four minutes.
                let micros = u64::from(value & 0x7f) * 2_000;
                let factor = if value & 0x80 != 0 { 1_000 } else { 1 };
                self.pass(Duration::from_micros(micros * factor));
            }
            6 => {
                let id = self.engine.accept(self.listener);
                self.held.extend(id.map(|id| Held {
                    id,
                    published: 0,
                    received: 0,
                    taken: 0,
                }));
            }
            7 => {
                if let Some(held) = self.pick(value) {
                    held.published += u64::from(value) * 97;
                    let (id, end) = (held.id, held.published);
                    if self.engine.publish(id, end).is_err() {
                        self.forget_published(id);
                    }
                }
            }
            8 => {
                if let Some(held) = self.pick(value) {
                    let unread = held.received - held.taken;
                    held.taken += unread * u64::from(value) / 255;
                    let (id, taken) = (held.id, held.taken);
                    let _ = self.engine.take(id, taken);
                }
            }
            9 => {
                if let Some(&mut Held { id, .. }) = self.pick(value) {
                    match value % 5 {
                        0 => _ = self.engine.finish(self.now, id),
                        1 => _ = self.engine.abort(self.now, id),
                        2 => {
                            let _ = self.engine.release(self.now, id);
                            self.held.retain(|held| held.id != id);
                        }
                        3 => {
                            let (nodelay, corked) = (value & 8 != 0, value & 16 != 0);
                            let now = self.now;
                            let _ = self.engine.set_coalescing(now, id, nodelay, corked);
                        }
                        _ => self.engine.set_mtu(self.now, 576 + u16::from(value) * 4),
                    }
                }
            }
            10 => self.rings.is_full = value & 1 != 0,
            _ => {
                let port = 1_000 + u16::from(value) % REMOTE_PORTS;
                let remote = (THEIRS, port).into();
                let local = Some((OURS, PORT).into());
                if let Ok(id) = self.engine.connect(self.now, local, remote, options) {
                    let mut published = 0;
                    if value & 64 != 0 {
                        self.engine.open_fast(self.now, id);
                        published = 200;
                        let done = self.engine.publish(id, published);
                        done.expect("it has just begun");
                    }
                    self.held.push(Held {
                        id,
                        published,
                        received: 0,
                        taken: 0,
                    });
                }
            }
        }
    }

    fn pick(&mut self, value: u8) -> Option<&mut Held> {
        let count = self.held.len();
        self.held.get_mut(usize::from(value) % count.max(1))
    }

    /// A refused publication has no effect.
    fn forget_published(&mut self, id: ConnectionId) {
        self.held.retain(|held| held.id != id);
        let _ = self.engine.release(self.now, id);
    }

    /// The remote sends a segment whose numbers are near the expected ones.
    fn segment(&mut self, value: u8) {
        let flags = take(&mut self.program);
        let near = take(&mut self.program);
        let length = usize::from(take(&mut self.program)) * 6;
        let port = 1_000 + u16::from(value) % REMOTE_PORTS;
        let side = &mut self.sides[usize::from(value % REMOTE_PORTS as u8)];
        let off =
            |bits: u8| [0i32, 1, -1, 1_000, -1_000, 1 << 20, i32::MIN, 100][usize::from(bits & 7)];
        let seq = side.seq.wrapping_add_signed(off(near));
        let ack = side.ack.wrapping_add_signed(off(near >> 3));
        let window = [u16::MAX, 0, 1, 3_000][usize::from(near >> 6)];
        side.clock = side.clock.wrapping_add(u32::from(value >> 2));
        let mut options = Vec::new();
        if side.has_timestamps || value & 4 != 0 {
            options.extend([1, 1, 8, 10]);
            options.extend(side.clock.to_be_bytes());
            options.extend(side.echo.to_be_bytes());
        }
        if flags & 2 != 0 {
            options.extend([2, 4, 2, 24, 3, 3, value % 16, 1, 4, 2, 1, 1]);
            side.has_timestamps = value & 4 != 0;
            if value & 64 != 0 {
                // A request without a cookie, the engine's cookie as an honest remote returns it,
                // or any cookie.
                let cookie = match value & 128 {
                    0 => &self.cookie[..],
                    _ => &[0x5a; 6],
                };
                options.extend([34, 2 + cookie.len() as u8]);
                options.extend(cookie);
                options.resize(options.len().next_multiple_of(4), 1);
            }
        } else if value & 8 != 0 {
            // A block at any place, which may be false.
            options.extend([1, 1, 5, 10]);
            let start = ack.wrapping_add(u32::from(take(&mut self.program)) * 50);
            options.extend(start.to_be_bytes());
            let end = start.wrapping_add(u32::from(take(&mut self.program)) * 50);
            options.extend(end.to_be_bytes());
        } else if value & 16 != 0 {
            // Options of arbitrary bytes.
            options.extend((0..4).map(|_| take(&mut self.program)));
        }
        let side = &mut self.sides[usize::from(value % REMOTE_PORTS as u8)];
        let taken = length as u32 + u32::from(flags & 2 != 0) + u32::from(flags & 1 != 0);
        if near & 7 == 0 {
            side.seq = side.seq.wrapping_add(taken);
        }
        let packet = packet(
            port,
            seq,
            ack,
            flags,
            window,
            &options,
            length,
            value & 32 != 0,
        );
        let offload = ReceiveOffload::default();
        self.engine
            .handle_frame(self.now, &packet, offload, &mut self.rings);
    }

    fn pass(&mut self, span: Duration) {
        let until = self.now + span;
        // Each wake-up does some work: fewer than this many are due in the time that passes.
        for _ in 0..FRAMES_MAX {
            let Some(at) = self.engine.poll_timeout().filter(|&at| at <= until) else {
                break;
            };
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
            self.settle();
        }
        self.now = until;
    }

    /// Drains frames and events, and checks the invariants.
    fn settle(&mut self) {
        for frame in drain(&mut self.engine, self.now, &mut self.rings) {
            self.listen_to(&frame);
        }
        while let Some(event) = self.engine.poll_event() {
            if let Event::Progress {
                connection,
                received,
                acknowledged,
                ..
            } = event
                && let Some(held) = self.held.iter_mut().find(|held| held.id == connection)
            {
                assert!(received >= held.received, "what was received is taken back");
                assert!(
                    acknowledged <= held.published,
                    "acknowledged, and never published"
                );
                held.received = received;
            }
        }
        self.engine.assert_invariants();
    }

    /// The remote learns the engine's sequence numbers.
    fn listen_to(&mut self, packet: &[u8]) {
        assert!(packet.len() >= 40, "a packet of {} bytes", packet.len());
        if packet[0] >> 4 != 4 || packet[9] != 6 {
            return;
        }
        let word =
            |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"));
        let port = u16::from_be_bytes([packet[22], packet[23]]);
        let header_bytes = usize::from(packet[32] >> 4) * 4;
        assert!((20..=60).contains(&header_bytes) && 20 + header_bytes <= packet.len());
        let Some(side) = self.sides.get_mut(usize::from(port.wrapping_sub(1_000))) else {
            return;
        };
        let payload = (packet.len() - 20 - header_bytes) as u32;
        let flags = packet[33];
        side.ack = word(24)
            .wrapping_add(payload)
            .wrapping_add(u32::from(flags & 2 != 0) + u32::from(flags & 1 != 0));
        if header_bytes >= 32 && packet[40..44] == [1, 1, 8, 10] {
            side.echo = word(44);
        }
        let options = &packet[40..20 + header_bytes];
        // The engine writes this option last.
        let mut ends = options.windows(2).zip(0..);
        let has_cookie = |&(pair, _): &(&[u8], usize)| *pair == [34, 10];
        if let Some((_, at)) = ends.find(has_cookie).filter(|_| flags & 2 != 0) {
            self.cookie = options.get(at + 2..at + 10).unwrap_or_default().to_vec();
        }
    }

    /// Everything ends: the host releases its connections, and after the longest timer nothing is
    /// left.
    fn wind_up(&mut self) {
        for held in std::mem::take(&mut self.held) {
            let _ = self.engine.abort(self.now, held.id);
            let _ = self.engine.release(self.now, held.id);
        }
        self.engine.unlisten(self.listener);
        self.settle();
        for _ in 0..10 {
            self.pass(Duration::from_secs(600));
        }
        assert_eq!(
            self.engine.connection_count(),
            0,
            "a connection outlives everything"
        );
        assert_eq!(
            self.engine.poll_timeout(),
            None,
            "a timer outlives everything"
        );
    }
}

#[allow(clippy::too_many_arguments)]
fn packet(
    port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: &[u8],
    length: usize,
    is_marked: bool,
) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(port.to_be_bytes());
    tcp.extend(PORT.to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([(5 + options.len() as u8 / 4) << 4, flags]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(options);
    tcp.resize(tcp.len() + length, 0x5a);
    let total = 20 + tcp.len();
    let mut packet = vec![0x45, if is_marked { 3 } else { 2 }];
    packet.extend((total as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(THEIRS);
    packet.extend(OURS);
    let checksum = ChecksumSum::ZERO.bytes(&packet).checksum();
    packet[10..12].copy_from_slice(&checksum);
    let pseudo = ChecksumSum::ZERO.bytes(&packet[12..20]).word(6);
    let checksum = pseudo.word(tcp.len() as u16).bytes(&tcp).checksum();
    tcp[16..18].copy_from_slice(&checksum);
    packet.extend(tcp);
    packet
}
