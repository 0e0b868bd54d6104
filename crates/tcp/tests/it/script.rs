//! A stage for packet scripts: one engine, and one remote that does exactly as the script says.
//!
//! Segments are written as tcpdump prints them, with sequence numbers relative to the two SYNs:
//! `"S. 0:0(0) ack 1 win 1000 <mss 1000,sackOK,ws 7>"`. [`Stage::remote`] injects a segment.
//! [`Stage::expect`] takes the engine's next segment and compares the fields that the script
//! mentions.

use std::collections::VecDeque;

use crate::support::{Rings, on_link};
use toehold_tcp::sim::checker::{self, Packet};
use toehold_tcp::{
    ChecksumSum, CloseReason, Config, ConnectionId, Duration, Engine, Event, Instant, ListenerId,
    Medium, Options, Random, ReceiveOffload,
};

const LOCAL: [u8; 4] = [10, 0, 0, 1];
const REMOTE: [u8; 4] = [10, 0, 0, 2];
const REMOTE_ISN: u32 = 0xffff_ff00;
const SERVER_PORT: u16 = 80;
const REMOTE_PORT: u16 = 4_321;

/// The stage. Time stands still unless [`Stage::wait`] moves it.
pub(crate) struct Stage {
    pub(crate) engine: Engine,
    pub(crate) rings: Rings,
    pub(crate) now: Instant,
    pub(crate) listener: ListenerId,
    remote_port: u16,
    /// The engine's ISN, once its SYN was seen, and its port.
    isn: u32,
    local_port: u16,
    sent: VecDeque<Vec<u8>>,
    /// The remote's next TSval, and the engine's latest TSval.
    pub(crate) remote_clock: u32,
    pub(crate) engine_clock: u32,
    /// The latest cookie of the engine (RFC 7413).
    pub(crate) cookie: Vec<u8>,
}

/// A stage without timestamps and scaling, so that scripts stay short; each test enables the
/// options that it tests.
pub(crate) fn plain() -> Stage {
    Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.nodelay = true;
    })
}

impl Stage {
    /// An engine that listens on port 80, without ECN, 100 ms from its remote.
    pub(crate) fn new(change: impl FnOnce(&mut Config, &mut Options)) -> Self {
        let mut config = Config::new(Medium::Ip, 1_500, on_link("10.0.0.1"));
        let mut options = Options::default();
        change(&mut config, &mut options);
        let mut engine = Engine::new(config, Random::new(42));
        let listener = engine
            .listen((LOCAL, SERVER_PORT).into(), 16, options)
            .expect("a new engine has no listener");
        Self {
            engine,
            rings: Rings::default(),
            now: Instant::from_micros(1_000_000),
            listener,
            remote_port: REMOTE_PORT,
            isn: 0,
            local_port: SERVER_PORT,
            sent: VecDeque::new(),
            remote_clock: 1_000,
            engine_clock: 0,
            cookie: Vec::new(),
        }
    }

    /// Opens a connection from the engine's side.
    pub(crate) fn connect(&mut self, options: Options) -> ConnectionId {
        let remote = (REMOTE, REMOTE_PORT).into();
        let id = self
            .engine
            .connect(self.now, None, remote, options)
            .expect("there is a route");
        self.local_port = self.engine.info(id).expect("it exists").local.port();
        id
    }

    /// A connection that a remote has opened: MSS 1000, the given other options.
    pub(crate) fn accepted(&mut self, syn_options: &str, window: u32) -> ConnectionId {
        self.remote(&format!("S 0:0(0) win 65535 <mss 1000{syn_options}>"));
        self.expect("S. 0:0(0) ack 1");
        self.wait(Duration::from_millis(100));
        self.remote(&format!(". 1:1(0) ack 1 win {window}"));
        self.expect_nothing();
        assert_eq!(
            self.engine.poll_event(),
            Some(Event::Acceptable(self.listener))
        );
        self.engine
            .accept(self.listener)
            .expect("the handshake is over")
    }

    /// Moves the clock, and lets the engine handle each timeout when it is due.
    pub(crate) fn wait(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(at) = self.engine.poll_timeout().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
        self.remote_clock += span.as_millis() as u32;
    }

    fn drain(&mut self) {
        let mut frame = vec![0; 70_000];
        while let Some((length, _)) = self
            .engine
            .poll_frame(self.now, &mut self.rings, &mut frame)
        {
            self.sent.push_back(frame[..length].to_vec());
        }
    }

    /// The remote sends a segment.
    pub(crate) fn remote(&mut self, script: &str) {
        let packet = self.packet(script, REMOTE);
        self.raw(&packet);
    }

    /// Sets the port to which the remote's segments go from now on.
    pub(crate) fn aim(&mut self, port: u16) {
        self.local_port = port;
    }

    /// Sets the port from which the remote's segments come from now on.
    pub(crate) fn come_from(&mut self, port: u16) {
        self.remote_port = port;
    }

    /// An echo request of the remote (RFC 792).
    pub(crate) fn echo_request(&self) -> Vec<u8> {
        let mut icmp = vec![8, 0, 0, 0, 0, 1, 0, 1];
        let checksum = ChecksumSum::ZERO.bytes(&icmp).checksum();
        icmp[2..4].copy_from_slice(&checksum);
        let mut packet = ip_header(REMOTE, LOCAL, 1, icmp.len());
        packet.extend_from_slice(&icmp);
        packet
    }

    /// A segment from `source`.
    pub(crate) fn packet(&self, script: &str, source: [u8; 4]) -> Vec<u8> {
        let line = Line::read(script);
        let mut tcp = Vec::new();
        tcp.extend_from_slice(&self.remote_port.to_be_bytes());
        tcp.extend_from_slice(&self.local_port.to_be_bytes());
        tcp.extend_from_slice(&REMOTE_ISN.wrapping_add(line.seq as u32).to_be_bytes());
        let ack = line.ack.map_or(0, |ack| self.isn.wrapping_add(ack as u32));
        tcp.extend_from_slice(&ack.to_be_bytes());
        let mut options = Vec::new();
        for (name, value) in &line.options {
            match name.as_str() {
                "mss" => options.extend([&[2, 4][..], &(value[0] as u16).to_be_bytes()].concat()),
                "ws" => options.extend([1, 3, 3, value[0] as u8]),
                "sackOK" => options.extend([1, 1, 4, 2]),
                "TS" => {
                    options.extend([1, 1, 8, 10]);
                    let clock = value
                        .first()
                        .map_or(self.remote_clock, |&value| value as u32);
                    let echo = value.get(1).map_or(self.engine_clock, |&echo| echo as u32);
                    options.extend(clock.to_be_bytes());
                    options.extend(echo.to_be_bytes());
                }
                "sack" => {
                    options.extend([1, 1, 5, 2 + 4 * value.len() as u8]);
                    for &edge in value {
                        options.extend(self.isn.wrapping_add(edge as u32).to_be_bytes());
                    }
                }
                // Without a value the option asks for a cookie; 0 is a wrong cookie, 1 the engine's
                // latest.
                "fo" => {
                    let cookie = match value.first() {
                        None => &[][..],
                        Some(0) => &[7; 8],
                        Some(_) => &self.cookie,
                    };
                    options.extend([34, 2 + cookie.len() as u8]);
                    options.extend(cookie);
                    options.resize(options.len().next_multiple_of(4), 1);
                }
                "ecn" => {
                    options.extend([172, 8]);
                    for &counter in value {
                        options.extend(&(counter as u32).to_be_bytes()[1..]);
                    }
                }
                other => panic!("unknown option {other}"),
            }
        }
        tcp.push((5 + options.len() as u8 / 4) << 4 | (line.flags >> 8) as u8);
        tcp.push(line.flags as u8);
        tcp.extend_from_slice(&(line.window.unwrap_or(65_535) as u16).to_be_bytes());
        tcp.extend_from_slice(&[0; 4]);
        tcp.extend_from_slice(&options);
        // Byte n of the remote's stream, which begins at position 1, is n.
        let first = line.seq + i64::from(line.flags & 2 != 0) - 1;
        tcp.extend((0..line.length).map(|index| (first + index) as u8));
        ip_packet(source, &tcp, line.ecn)
    }

    /// A packet arrives that no script can express.
    pub(crate) fn raw(&mut self, packet: &[u8]) {
        self.engine
            .handle_frame(self.now, packet, ReceiveOffload::default(), &mut self.rings);
        self.drain();
    }

    /// A router's message about the engine's segment that began at `seq`: RFC 792, with the MTU of
    /// RFC 1191.
    pub(crate) fn too_big(&self, seq: u32, mtu: u16) -> Vec<u8> {
        let mut quoted = Vec::new();
        quoted.extend_from_slice(&self.local_port.to_be_bytes());
        quoted.extend_from_slice(&REMOTE_PORT.to_be_bytes());
        quoted.extend_from_slice(&self.isn.wrapping_add(seq).to_be_bytes());
        let quoted = ip_header(LOCAL, REMOTE, 6, quoted.len())
            .into_iter()
            .chain(quoted);
        let mut icmp = vec![3, 4, 0, 0, 0, 0];
        icmp.extend_from_slice(&mtu.to_be_bytes());
        icmp.extend(quoted);
        let checksum = ChecksumSum::ZERO.bytes(&icmp).checksum();
        icmp[2..4].copy_from_slice(&checksum);
        let mut packet = ip_header(REMOTE, LOCAL, 1, icmp.len());
        packet.extend_from_slice(&icmp);
        packet
    }

    /// A router's message about the engine's segment that began at `seq`: RFC 792, destination
    /// unreachable, with the reason.
    pub(crate) fn unreachable(&self, seq: u32, code: u8) -> Vec<u8> {
        let mut packet = self.too_big(seq, 0);
        packet[21] = code;
        packet[22..24].fill(0);
        let checksum = ChecksumSum::ZERO.bytes(&packet[20..]).checksum();
        packet[22..24].copy_from_slice(&checksum);
        packet
    }

    /// Expects that the engine's next segment is this one.
    #[track_caller]
    pub(crate) fn expect(&mut self, script: &str) {
        self.drain();
        let Some(bytes) = self.sent.pop_front() else {
            panic!("expected {script}, got nothing")
        };
        let packet = checker::parse(&bytes).expect("the engine sends TCP");
        if packet.flags & 2 != 0 {
            self.isn = packet.seq;
        }
        let line = Line::read(script);
        let got = self.describe(&packet);
        let seq = packet.seq.wrapping_sub(self.isn);
        assert_eq!(
            flags_of(&packet),
            line.flags,
            "flags: expected {script}, got {got}"
        );
        // A reset that answers a segment takes its numbers from that segment.
        assert_eq!(
            seq, line.seq as u32,
            "sequence number: expected {script}, got {got}"
        );
        assert_eq!(
            packet.payload.len() as i64,
            line.length,
            "length: expected {script}, got {got}"
        );
        let first = line.seq + i64::from(line.flags & 2 != 0) - 1;
        for (index, &byte) in packet.payload.iter().enumerate() {
            assert_eq!(byte, (first + index as i64) as u8, "payload of {got}");
        }
        if let Some(ack) = line.ack {
            let got_ack = packet.ack.wrapping_sub(REMOTE_ISN);
            assert_eq!(
                got_ack, ack as u32,
                "acknowledgement: expected {script}, got {got}"
            );
        }
        if let Some(window) = line.window {
            assert_eq!(
                i64::from(packet.window),
                window,
                "window: expected {script}, got {got}"
            );
        }
        let has_cookie = line.options.iter().any(|(name, _)| name == "fo");
        assert_eq!(packet.fast_open.is_some(), has_cookie, "fast open: {got}");
        for (name, value) in &line.options {
            match name.as_str() {
                // Without a value the option asks for a cookie.
                "fo" => {
                    let cookie = packet.fast_open.unwrap_or_default();
                    assert_eq!(cookie.is_empty(), value.is_empty(), "{got}");
                    cookie.clone_into(&mut self.cookie);
                }
                "mss" => assert_eq!(packet.mss.map(i64::from), value.first().copied(), "{got}"),
                "ws" => assert_eq!(packet.scale.map(i64::from), value.first().copied(), "{got}"),
                "TS" => assert!(packet.timestamps.is_some(), "no timestamps: {got}"),
                "sack" => {
                    let edges: Vec<i64> = packet
                        .sack
                        .iter()
                        .flat_map(|&(start, end)| [start, end])
                        .map(|edge| i64::from(edge.wrapping_sub(REMOTE_ISN)))
                        .collect();
                    assert_eq!(&edges, value, "SACK: expected {script}, got {got}");
                }
                "ecn" => {
                    let counters = packet.ecn_counters.map(|(a, b)| [a, b].map(i64::from));
                    assert_eq!(counters.as_ref().map(|c| &c[..]), Some(&value[..]), "{got}");
                }
                other => panic!("unknown option {other}"),
            }
        }
        if let Some((value, _)) = packet.timestamps {
            self.engine_clock = value;
        }
    }

    /// The two bits of ECN in the engine's next packet (RFC 3168 section 5).
    #[track_caller]
    pub(crate) fn next_ecn(&mut self) -> u8 {
        self.next_sent()[1] & 3
    }

    /// The engine's next packet, unchanged.
    #[track_caller]
    pub(crate) fn next_sent(&mut self) -> Vec<u8> {
        self.drain();
        self.sent.pop_front().expect("a packet")
    }

    /// Expects that the engine has no packet to send.
    #[track_caller]
    pub(crate) fn expect_nothing(&mut self) {
        self.drain();
        let next = self.sent.front().and_then(|bytes| checker::parse(bytes));
        assert!(
            next.is_none(),
            "unexpected {}",
            next.map_or(String::new(), |p| self.describe(&p))
        );
    }

    /// Expects that the engine refuses a segment. That segment had no acknowledgement and used
    /// `length` of the remote's sequence numbers.
    #[track_caller]
    pub(crate) fn expect_refusal(&mut self, length: u32) {
        self.drain();
        let bytes = self.sent.pop_front().expect("a reset");
        let packet = checker::parse(&bytes).expect("the engine sends TCP");
        let got = (packet.flags, packet.seq, packet.ack);
        assert_eq!(got, (0b1_0100, 0, REMOTE_ISN.wrapping_add(length)));
    }

    /// Expects that the connection ends, or has ended, for this reason.
    #[track_caller]
    pub(crate) fn expect_closed(&mut self, why: CloseReason) {
        while let Some(event) = self.engine.poll_event() {
            if let Event::Closed { reason, .. } = event {
                assert_eq!(reason, why);
                return;
            }
        }
        panic!("the connection has not ended");
    }

    /// Discards all other packets that were sent.
    pub(crate) fn forget_sent(&mut self) {
        self.drain();
        self.sent.clear();
    }

    fn describe(&self, packet: &Packet<'_>) -> String {
        let letters: String = LETTERS
            .chars()
            .enumerate()
            .filter(|(bit, _)| flags_of(packet) & 1 << bit != 0)
            .map(|(_, letter)| letter)
            .collect();
        format!(
            "{letters} {}:({}) ack {} win {} sack {:?}",
            packet.seq.wrapping_sub(self.isn) as i32,
            packet.payload.len(),
            packet.ack.wrapping_sub(REMOTE_ISN) as i32,
            packet.window,
            packet.sack,
        )
    }
}

/// The letters of control bits, as tcpdump writes them.
const LETTERS: &str = "FSRP.UEWe";

fn flags_of(packet: &Packet<'_>) -> u16 {
    u16::from(packet.flags) | u16::from(packet.has_ae) << 8
}

/// One line of a script.
struct Line {
    flags: u16,
    /// The two bits of ECN in the packet (RFC 3168 section 5).
    ecn: u8,
    seq: i64,
    length: i64,
    ack: Option<i64>,
    window: Option<i64>,
    options: Vec<(String, Vec<i64>)>,
}

impl Line {
    /// `FLAGS SEQ:END(LENGTH) [ack N] [win N] [<options>] [ect0|ect1|ce]`; `-` without flags.
    fn read(script: &str) -> Self {
        let (head, options) = match script.split_once('<') {
            Some((head, options)) => (head, options.split_once('>').expect("an end of options").0),
            None => (script, ""),
        };
        let mut words = head.split_whitespace();
        let letters = words.next().expect("flags");
        let flags = letters
            .chars()
            .filter(|&letter| letter != '-')
            .map(|letter| 1 << LETTERS.find(letter).expect("a flag"))
            .fold(0, |flags, bit: u16| flags | bit);
        let numbers = words.next().expect("sequence numbers");
        let (seq, rest) = numbers.split_once(':').expect("SEQ:END(LENGTH)");
        let (_, length) = rest
            .trim_end_matches(')')
            .split_once('(')
            .expect("a length");
        let mut line = Self {
            flags,
            ecn: ecn_of(script),
            seq: seq.parse().expect("a number"),
            length: length.parse().expect("a number"),
            ack: None,
            window: None,
            options: Vec::new(),
        };
        while let Some(word) = words.next() {
            let mut number = || words.next().expect("a value").parse().expect("a number");
            match word {
                "ack" => line.ack = Some(number()),
                "win" => line.window = Some(number()),
                "ect0" | "ect1" | "ce" => {}
                other => panic!("unknown word {other}"),
            }
        }
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let mut parts = option.split([' ', ':']);
            let name = parts.next().expect("a name").to_owned();
            let values = parts
                .map(|value| value.parse().expect("a number"))
                .collect();
            line.options.push((name, values));
        }
        line
    }
}

fn ecn_of(script: &str) -> u8 {
    match script.rsplit(' ').next() {
        Some("ect1") => 1,
        Some("ect0") => 2,
        Some("ce") => 3,
        _ => 0,
    }
}

fn ip_packet(source: [u8; 4], tcp: &[u8], ecn: u8) -> Vec<u8> {
    let mut packet = ip_header(source, LOCAL, 6, tcp.len());
    packet.extend_from_slice(tcp);
    if ecn != 0 {
        packet[1] = ecn;
        packet[10..12].fill(0);
        let checksum = ChecksumSum::ZERO.bytes(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&checksum);
    }
    let pseudo = ChecksumSum::ZERO
        .bytes(&packet[12..20])
        .word(6)
        .word(tcp.len() as u16);
    let checksum = pseudo.bytes(tcp).checksum();
    packet[36..38].copy_from_slice(&checksum);
    packet
}

fn ip_header(source: [u8; 4], destination: [u8; 4], protocol: u8, payload_bytes: usize) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&(20 + payload_bytes as u16).to_be_bytes());
    header.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
    header.extend_from_slice(&source);
    header.extend_from_slice(&destination);
    let checksum = ChecksumSum::ZERO.bytes(&header).checksum();
    header[10..12].copy_from_slice(&checksum);
    header
}
