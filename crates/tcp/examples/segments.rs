//! Measures the cost of a segment: the engine alone, with frames that were made in advance.
//!
//! ```text
//! segments receive|send|request|sack [--flows N] [--segments N] [--burst N]
//!     [--large] [--v6] [--checksum] [--hostile] [--driver]
//! ```
//!
//! - `receive`: full segments in order, round robin over the flows; acknowledgements are polled and
//!   the host takes the bytes that arrived.
//! - `send`: the host publishes `--burst` segments (2), all are polled, and the remote acknowledges
//!   every second one. With `--large` the link cuts segments (LSO): a burst is one frame, and has
//!   one acknowledgement.
//! - `request`: 64 bytes in, 64 bytes out; a segment is one of each.
//! - `sack`: of each `--burst` segments (4,000) the first is lost. The remote acknowledges each
//!   later segment by the range that has arrived. With `--hostile` the remote acknowledges every
//!   other segment instead, from both ends at once, each in a range of its own. A segment is an
//!   acknowledgement and the segments that it releases.
//!
//! `--v6` uses IPv6 instead of IPv4, and an MTU that is 20 bytes larger.
//!
//! `--driver` makes no call of the engine: it shows the cost of the measurement itself.
//!
//! Payload is neither copied nor made: the result is the cost of the protocol. `--checksum` adds
//! the software checksum of received segments. Under `valgrind --tool=callgrind`, the difference
//! between two runs with different `--segments` is the number of instructions per segment, without
//! the preparation.

use std::hint::black_box;
use std::time::Instant as Clock;

use toehold_tcp::{
    ChecksumSum, Config, ConnectionId, Engine, Event, HEADER_BUFFER_BYTES, Instant,
    InterfaceAddress, ListenerId, MacAddress, Medium, Memory, NoRoom, Offload, Random,
    ReceiveOffload,
};

const PAYLOAD_BYTES: usize = 1_448;
const REQUEST_BYTES: usize = 64;
/// A TCP header with timestamps.
const TCP_BYTES: usize = 32;
/// The offset of the TCP header, over IPv4 and IPv6.
const TCP_AT: [usize; 2] = [14 + 20, 14 + 40];
const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
/// Segments between two rounds of polling, as a link delivers them in batches.
const BATCH: u64 = 32;

/// Rings that store nothing.
struct Nowhere {
    placed_bytes: u64,
}

impl Memory for Nowhere {
    fn place(&mut self, _: ConnectionId, _: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        self.placed_bytes += black_box(bytes).len() as u64;
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, _: u64, target: &mut [u8]) {
        black_box(target);
    }
}

/// The remote's end of a connection.
struct Flow {
    id: ConnectionId,
    /// The headers of the flow's frames. The payload of all flows is one buffer, like a receive
    /// ring that stays in the cache.
    headers: [u8; TCP_AT[1] + TCP_BYTES],
    seq: u32,
    /// The position up to which our bytes are acknowledged.
    ack: u32,
    published: u64,
}

struct Bench {
    engine: Engine,
    memory: Nowhere,
    flows: Vec<Flow>,
    header: Vec<u8>,
    /// Frames that the link delivers together, and how many of them are filled.
    frames: Vec<Vec<u8>>,
    filled: usize,
    tcp_at: usize,
    is_driver_only: bool,
    /// Segments that the host publishes at a time.
    burst: u64,
    is_large: bool,
    offload: ReceiveOffload,
    now: u64,
}

/// The headers of Ethernet and IP from the remote of flow `index`, for `tcp_bytes` bytes of TCP.
fn headers(tcp_at: usize, index: usize, tcp_bytes: usize) -> Vec<u8> {
    let host = (index / 20_000) as u8 + 2;
    let mut frame = [&OURS.0[..], &THEIRS].concat();
    if tcp_at == TCP_AT[1] {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((tcp_bytes as u16).to_be_bytes());
        frame.extend([6, 64]);
        for last in [host, 1] {
            frame.extend(ipv6(last));
        }
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + tcp_bytes as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, host, 10, 0, 0, 1]);
        let checksum = ChecksumSum::ZERO.bytes(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum);
    }
    frame
}

/// fd00::LAST.
const fn ipv6(last: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

/// The remote's numbers of a segment, and the time at which it was made.
#[derive(Clone, Copy)]
struct Numbers {
    flags: u8,
    seq: u32,
    ack: u32,
    now: u64,
}

/// A frame from the remote of flow `index`.
fn frame(tcp_at: usize, index: usize, numbers: Numbers, payload_bytes: usize) -> Vec<u8> {
    // MSS and window scale need room: a SYN has its own, longer, options.
    let more: &[u8] = match numbers.flags & SYN {
        0 => &[],
        _ => &[2, 4, 5, 0xb4, 3, 3, 7, 4, 2, 1, 1, 1],
    };
    frame_with(tcp_at, index, numbers, more, payload_bytes)
}

/// A frame with further options.
fn frame_with(
    tcp_at: usize,
    index: usize,
    numbers: Numbers,
    more: &[u8],
    payload_bytes: usize,
) -> Vec<u8> {
    let tcp_bytes = TCP_BYTES + more.len();
    let mut frame = headers(tcp_at, index, tcp_bytes + payload_bytes);
    frame.extend((10_000 + (index % 20_000) as u16).to_be_bytes());
    frame.extend([0, 80, 0, 0, 0, 0, 0, 0, 0, 0, (tcp_bytes as u8 / 4) << 4, 0]);
    frame.extend([0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(more);
    frame.resize(frame.len() + payload_bytes, 0);
    patch(&mut frame[tcp_at..], numbers);
    frame
}

/// Changes the fields that differ between two segments of a flow.
fn patch(tcp: &mut [u8], numbers: Numbers) {
    tcp[4..8].copy_from_slice(&numbers.seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&numbers.ack.to_be_bytes());
    tcp[13] = numbers.flags;
    tcp[24..28].copy_from_slice(&((numbers.now / 1_000) as u32).to_be_bytes());
}

/// Computes the TCP checksum.
fn complete(frame: &mut [u8], tcp_at: usize) {
    let addresses = if tcp_at == TCP_AT[1] { 22..54 } else { 26..34 };
    frame[tcp_at + 16..tcp_at + 18].fill(0);
    let length = (frame.len() - tcp_at) as u16;
    let pseudo = ChecksumSum::ZERO.bytes(&frame[addresses]).word(6);
    let checksum = pseudo.word(length).bytes(&frame[tcp_at..]).checksum();
    frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&checksum);
}

/// The load.
#[derive(Clone, Copy)]
struct Options {
    flows: usize,
    payload_bytes: usize,
    burst: u64,
    is_v6: bool,
    is_large: bool,
    has_checksum: bool,
    is_driver_only: bool,
}

impl Bench {
    fn new(options: Options) -> Self {
        let Options {
            flows,
            payload_bytes,
            ..
        } = options;
        let tcp_at = TCP_AT[usize::from(options.is_v6)];
        let address = if options.is_v6 {
            InterfaceAddress {
                address: ipv6(1).into(),
                prefix_bits: 64,
            }
        } else {
            InterfaceAddress {
                address: [10, 0, 0, 1].into(),
                prefix_bits: 24,
            }
        };
        let medium = Medium::Ethernet {
            mac: OURS,
            resolve: true,
        };
        let mtu = (tcp_at - 14 + TCP_BYTES + PAYLOAD_BYTES) as u16;
        let mut config = Config::new(medium, mtu, address);
        config.connections_max = flows;
        config.half_open_max = flows + 1;
        config.offload = Offload {
            transmit_checksum: true,
            segmentation_bytes_max: if options.is_large { 64_000 } else { 0 },
        };
        let mut engine = Engine::new(config, Random::new(1));
        let listener = engine
            .listen((address.address, 80).into(), flows, Default::default())
            .expect("the engine is new");
        let mut bench = Self {
            engine,
            memory: Nowhere { placed_bytes: 0 },
            flows: Vec::with_capacity(flows),
            header: vec![0; HEADER_BUFFER_BYTES],
            frames: vec![vec![0; tcp_at + TCP_BYTES + payload_bytes]; BATCH as usize],
            filled: 0,
            tcp_at,
            is_driver_only: options.is_driver_only,
            burst: options.burst,
            is_large: options.is_large,
            offload: ReceiveOffload {
                checksum_verified: !options.has_checksum,
            },
            now: 1_000_000,
        };
        for index in 0..flows {
            bench.open(index, listener, payload_bytes);
        }
        while bench.engine.poll_event().is_some() {}
        bench
    }

    /// The remote opens flow `index`.
    fn open(&mut self, index: usize, listener: ListenerId, payload_bytes: usize) {
        let trusted = ReceiveOffload {
            checksum_verified: true,
        };
        let now = Instant::from_micros(self.now);
        let mut numbers = Numbers {
            flags: SYN,
            seq: 999,
            ack: 0,
            now: self.now,
        };
        let syn = frame(self.tcp_at, index, numbers, 0);
        self.engine
            .handle_frame(now, &syn, trusted, &mut self.memory);
        self.engine
            .poll_transmit(now, &mut self.header)
            .expect("a SYN-ACK");
        let seq = &self.header[self.tcp_at + 4..];
        let isn = u32::from_be_bytes(*seq.first_chunk().expect("four bytes"));
        numbers = Numbers {
            flags: ACK,
            seq: 1_000,
            ack: isn.wrapping_add(1),
            now: self.now,
        };
        let ack = frame(self.tcp_at, index, numbers, 0);
        self.engine
            .handle_frame(now, &ack, trusted, &mut self.memory);
        let accepted = self.engine.accept(listener);
        let next = frame(self.tcp_at, index, numbers, payload_bytes);
        let mut headers = [0; TCP_AT[1] + TCP_BYTES];
        let length = self.tcp_at + TCP_BYTES;
        headers[..length].copy_from_slice(&next[..length]);
        self.flows.push(Flow {
            id: accepted.expect("the handshake is over"),
            headers,
            seq: 1_000,
            ack: isn.wrapping_add(1),
            published: 0,
        });
    }

    /// Lets the host take the bytes that arrived.
    fn take(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            if let Event::Progress {
                connection,
                received,
                ..
            } = event
            {
                self.engine
                    .take(connection, received)
                    .expect("it has arrived");
            }
        }
    }

    /// Polls all pending frames; returns the number of frames, and of bytes of payload.
    #[inline(always)]
    fn transmit(&mut self) -> (u64, u64) {
        let now = Instant::from_micros(self.now);
        let (mut frames, mut bytes) = (0, 0);
        let header = &mut self.header[..];
        while let Some(transmit) = self.engine.poll_transmit(now, header) {
            let payload = transmit.payload;
            bytes += payload.map_or(0, |payload| u64::from(payload.bytes));
            frames += 1;
        }
        (frames, bytes)
    }

    /// Adds another frame of the remote to the link.
    fn deliver(&mut self, index: usize, advance: usize, checksum: bool) {
        let flow = &mut self.flows[index];
        let frame = &mut self.frames[self.filled];
        self.filled += 1;
        let length = self.tcp_at + TCP_BYTES;
        frame[..length].copy_from_slice(&flow.headers[..length]);
        let numbers = Numbers {
            flags: ACK,
            seq: flow.seq,
            ack: flow.ack,
            now: self.now,
        };
        patch(&mut frame[self.tcp_at..], numbers);
        if checksum {
            complete(frame, self.tcp_at);
        }
        flow.seq = flow.seq.wrapping_add(advance as u32);
    }

    /// The link hands its frames over.
    fn interrupt(&mut self) {
        let frames = self.frames[..self.filled].iter();
        let frames = frames.map(|frame| (&frame[..], self.offload));
        if self.is_driver_only {
            frames.for_each(|frame| _ = black_box(frame));
        } else {
            let now = Instant::from_micros(self.now);
            self.engine.handle_frames(now, frames, &mut self.memory);
        }
        self.filled = 0;
    }

    fn receive(&mut self, segments: u64, checksum: bool) {
        let mut index = 0;
        for segment in 0..segments {
            self.deliver(index, PAYLOAD_BYTES, checksum);
            index = if index + 1 == self.flows.len() {
                0
            } else {
                index + 1
            };
            if segment % BATCH == BATCH - 1 {
                self.now += 10;
                self.interrupt();
                if !self.is_driver_only {
                    self.take();
                    self.transmit();
                }
            }
        }
    }

    fn send(&mut self, segments: u64) {
        let burst = self.burst;
        let mut index = 0;
        let mut sent = 0;
        let mut polled = 0;
        while sent < segments {
            let flow = &mut self.flows[index];
            flow.published += burst * PAYLOAD_BYTES as u64;
            if !self.is_driver_only {
                self.engine
                    .publish(flow.id, flow.published)
                    .expect("it exists");
            }
            let left = if self.is_driver_only {
                black_box(burst)
            } else {
                self.transmit().1 / PAYLOAD_BYTES as u64
            };
            self.now += 10;
            self.acknowledge(index, left);
            if left < burst {
                self.send_rest(index, burst - left);
            }
            sent += burst;
            index = if index + 1 == self.flows.len() {
                0
            } else {
                index + 1
            };
            if sent >= polled + 2 * BATCH {
                polled = sent;
                while let Some(event) = self.engine.poll_event() {
                    if let Event::Progress { acknowledged, .. } = event {
                        black_box(acknowledged);
                    }
                }
            }
        }
    }

    /// Sends the bytes that the congestion window has held back, before the next flow has its turn:
    /// then all polled frames belong to one flow.
    #[cold]
    fn send_rest(&mut self, index: usize, mut owed: u64) {
        while owed > 0 {
            let left = self.transmit().1 / PAYLOAD_BYTES as u64;
            assert!(left > 0, "an empty network lets something leave");
            owed -= left;
            self.now += 10;
            self.acknowledge(index, left);
        }
    }

    /// The remote acknowledges segments that arrived together: every second segment, or all of them
    /// if they were one frame.
    #[inline(always)]
    fn acknowledge(&mut self, index: usize, segments: u64) {
        let step = if self.is_large { segments } else { 2 };
        let mut left = segments;
        while left > 0 {
            let acknowledged = step.min(left);
            left -= acknowledged;
            let flow = &mut self.flows[index];
            let bytes = acknowledged as u32 * PAYLOAD_BYTES as u32;
            flow.ack = flow.ack.wrapping_add(bytes);
            self.deliver(index, 0, false);
            if self.filled == self.frames.len() || left == 0 {
                self.interrupt();
            }
        }
    }

    /// The remote sends this many acknowledgements of a burst whose first segment was lost.
    fn sack(&mut self, acknowledgements: u64, is_hostile: bool) {
        let burst = self.burst;
        assert!(acknowledgements <= burst / 4, "each reports four segments");
        while !self.leaves_at_once(burst) {}
        let Flow { seq, ack, .. } = self.flows[0];
        let mut frame = self.reporting_frame();
        for number in 0..acknowledgements {
            let ranges = if is_hostile {
                let (early, late) = (2 * number + 1, burst - 1 - 2 * number);
                [late..late + 1, early..early + 1, late..late + 1]
            } else {
                [1..number + 2, 1..2, 1..2]
            };
            self.now += 10;
            let numbers = Numbers {
                flags: ACK,
                seq,
                ack,
                now: self.now,
            };
            let tcp = &mut frame[self.tcp_at..];
            patch(tcp, numbers);
            let edges = ranges.iter().flat_map(|range| [range.start, range.end]);
            for (edge, bytes) in edges.zip(tcp[TCP_BYTES + 4..].chunks_exact_mut(4)) {
                let edge = ack.wrapping_add(edge as u32 * PAYLOAD_BYTES as u32);
                bytes.copy_from_slice(&edge.to_be_bytes());
            }
            if self.is_driver_only {
                black_box(&frame);
                continue;
            }
            let now = Instant::from_micros(self.now);
            self.engine
                .handle_frame(now, &frame, self.offload, &mut self.memory);
            self.transmit();
        }
    }

    /// Publishes a burst. True when the congestion window lets the whole burst leave at once.
    /// Otherwise the burst has already arrived.
    fn leaves_at_once(&mut self, burst: u64) -> bool {
        let flow = &mut self.flows[0];
        flow.published += burst * PAYLOAD_BYTES as u64;
        let (id, end) = (flow.id, flow.published);
        self.engine.publish(id, end).expect("it exists");
        let left = self.transmit().1 / PAYLOAD_BYTES as u64;
        self.now += 10;
        if left == burst {
            return true;
        }
        self.acknowledge(0, left);
        self.send_rest(0, burst - left);
        while self.engine.poll_event().is_some() {}
        false
    }

    /// An acknowledgement with room for three ranges.
    fn reporting_frame(&self) -> Vec<u8> {
        let numbers = Numbers {
            flags: ACK,
            seq: 0,
            ack: 0,
            now: 0,
        };
        let mut options = [0; 28];
        options[..4].copy_from_slice(&[1, 1, 5, 26]);
        frame_with(self.tcp_at, 0, numbers, &options, 0)
    }

    fn request(&mut self, requests: u64) {
        // A connection has one request in flight; a link delivers the requests of several
        // connections together.
        let together = BATCH.min(self.flows.len() as u64);
        let mut index = 0;
        for _ in 0..requests / together {
            let first = index;
            for _ in 0..together {
                self.deliver(index, REQUEST_BYTES, false);
                index = (index + 1) % self.flows.len();
            }
            self.interrupt();
            if !self.is_driver_only {
                self.take();
            }
            let mut answered = first;
            for _ in 0..together {
                let flow = &mut self.flows[answered];
                flow.published += REQUEST_BYTES as u64;
                flow.ack = flow.ack.wrapping_add(REQUEST_BYTES as u32);
                if !self.is_driver_only {
                    let (id, end) = (flow.id, flow.published);
                    self.engine.publish(id, end).expect("it exists");
                }
                answered = (answered + 1) % self.flows.len();
            }
            if !self.is_driver_only {
                let (frames, _) = self.transmit();
                assert_eq!(frames, together, "responses carry acknowledgements");
            }
            self.now += 10;
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let mode = arguments.first().map_or("", String::as_str);
    let segments = value("--segments", 10_000_000);
    let payload_bytes = match mode {
        "receive" => PAYLOAD_BYTES,
        "request" => REQUEST_BYTES,
        "send" | "sack" => 0,
        _ => {
            eprintln!(
                "usage: segments receive|send|request|sack [--flows N] [--segments N] \
                [--burst N] [--large] [--v6] [--checksum] [--hostile] [--driver]"
            );
            std::process::exit(2);
        }
    };
    let options = Options {
        flows: value("--flows", 1) as usize,
        payload_bytes,
        burst: value("--burst", if mode == "sack" { 4_000 } else { 2 }),
        is_v6: has("--v6"),
        is_large: has("--large"),
        has_checksum: has("--checksum"),
        is_driver_only: has("--driver"),
    };
    let Options {
        flows,
        is_large,
        has_checksum: checksum,
        ..
    } = options;
    if is_large && flows > 1 {
        // The remote acknowledges all segments that were polled together, and could not tell flows
        // apart.
        eprintln!("--large is for one flow");
        std::process::exit(2);
    }
    let mut bench = Bench::new(options);
    let began = Clock::now();
    match mode {
        "receive" => bench.receive(segments, checksum),
        "send" => bench.send(segments),
        "sack" => bench.sack(segments, has("--hostile")),
        _ => bench.request(segments),
    }
    let seconds = began.elapsed().as_secs_f64();
    let counters = bench.engine.counters();
    let expected = match mode {
        "send" if is_large => segments / bench.burst,
        "send" => segments / 2,
        // Such acknowledgements take the slow path.
        "sack" => 0,
        _ => segments,
    };
    assert!(
        bench.is_driver_only || counters.segments_predicted * 100 >= expected * 99,
        "the fast path was not measured"
    );
    println!(
        "{mode}: {segments} segments over {flows} flows in {seconds:.2} s: {:.2} M/s, {:.0} ns \
        each; \
         {} predicted, {} retransmitted",
        segments as f64 / seconds / 1e6,
        seconds * 1e9 / segments as f64,
        counters.segments_predicted,
        counters.retransmissions,
    );
}
