//! Several engines on one link with equal addresses: a frame may reach any of them, and the
//! connections do not notice.

use std::net::{IpAddr, SocketAddr};

use crate::support::{ethernet, on_link};
use toehold_tcp::{
    CloseReason, Config, ConnectError, ConnectionId, Engine, Event, FrameOwner, Instant, Memory,
    NoRoom, Options, Random, ReceiveOffload, Share,
};

const ENGINES: u32 = 3;
const OURS: [&str; 2] = ["10.0.0.1", "fd00::1"];
const THEIRS: [&str; 2] = ["10.0.0.9", "fd00::9"];
const PORT: u16 = 80;
const TYPE_ARP: [u8; 2] = [0x08, 0x06];

/// Streams in which every byte depends on its offset.
#[derive(Default)]
struct Pattern;

impl Memory for Pattern {
    fn place(&mut self, _: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        for (at, byte) in (offset..).zip(bytes) {
            assert_eq!(*byte, value(at), "byte {at}");
        }
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, offset: u64, target: &mut [u8]) {
        for (at, byte) in (offset..).zip(target) {
            *byte = value(at);
        }
    }
}

fn value(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn config(addresses: [&str; 2], last: u8) -> Config {
    let mut config = Config::new(ethernet(last), 1_500, on_link(addresses[0]));
    config.addresses.push(on_link(addresses[1]));
    config
}

fn end(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().expect("address"), port)
}

/// The frames that an engine has to send now.
fn frames_of(engine: &mut Engine, now: Instant) -> Vec<Vec<u8>> {
    let mut frame = vec![0; 4_096];
    let mut frames = Vec::new();
    while let Some((length, _)) = engine.poll_frame(now, &mut Pattern, &mut frame) {
        frames.push(frame[..length].to_vec());
    }
    frames
}

struct Link {
    ours: Vec<Engine>,
    remote: Engine,
    random: Random,
    now: Instant,
    /// The impairment of the remote's frames on their way.
    impair: fn(Vec<u8>, &mut Random) -> Vec<Vec<u8>>,
    arp: [u32; 2],
    strays: u32,
}

impl Link {
    fn new(configure: impl Fn(&mut Config)) -> Link {
        let mut random = Random::new(7);
        let shares = Share::among(ENGINES, &mut random);
        let ours = shares.iter().map(|&share| {
            let mut config = Config {
                share,
                ..config(OURS, 1)
            };
            configure(&mut config);
            Engine::new(config, Random::new(share.index() as u64))
        });
        let mut link = Link {
            ours: ours.collect(),
            remote: Engine::new(config(THEIRS, 9), Random::new(99)),
            random,
            now: Instant::from_micros(1_000_000),
            impair: |frame, _| vec![frame],
            arp: [0; 2],
            strays: 0,
        };
        for engine in link.ours.iter_mut().chain([&mut link.remote]) {
            let any = end("0.0.0.0", PORT);
            engine
                .listen(any, 1_000, Options::default())
                .expect("a fresh engine");
        }
        link
    }

    /// Delivers a frame to any one of the engines.
    fn deliver(&mut self, frame: &[u8]) {
        let here = self.random.below(u64::from(ENGINES)) as usize;
        let whose = self.ours[here].frame_owner(frame);
        self.hand(here, whose, frame);
    }

    fn hand(&mut self, here: usize, whose: FrameOwner, frame: &[u8]) {
        let there = match whose {
            FrameOwner::Engine(there) => {
                self.strays += u32::from(there != here);
                there
            }
            FrameOwner::Assembler(there) => {
                if let Some(whole) = self.ours[there].put_together(self.now, frame) {
                    let whose = self.ours[there].frame_owner(&whole);
                    assert!(!matches!(whose, FrameOwner::Assembler(_)));
                    self.hand(there, whose, &whole);
                }
                return;
            }
            FrameOwner::Everybody => {
                let others = (0..ENGINES as usize).filter(|other| *other != here);
                others.for_each(|other| self.ours[other].overhear(frame));
                here
            }
            FrameOwner::Anybody => here,
        };
        let offload = ReceiveOffload::default();
        self.ours[there].handle_frame(self.now, frame, offload, &mut Pattern);
    }

    /// Passes frames on until no end has any to send.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            let outgoing: Vec<Vec<u8>> = (self.ours.iter_mut())
                .flat_map(|engine| frames_of(engine, self.now))
                .collect();
            let incoming = frames_of(&mut self.remote, self.now);
            if outgoing.is_empty() && incoming.is_empty() {
                return;
            }
            let is_arp = |frame: &&Vec<u8>, operation| {
                frame[12..14] == TYPE_ARP && frame[20..22] == [0, operation]
            };
            self.arp[0] += incoming.iter().filter(|frame| is_arp(frame, 1)).count() as u32;
            self.arp[1] += outgoing.iter().filter(|frame| is_arp(frame, 2)).count() as u32;
            for frame in outgoing {
                let offload = ReceiveOffload::default();
                self.remote
                    .handle_frame(self.now, &frame, offload, &mut Pattern);
            }
            for frame in incoming {
                for frame in (self.impair)(frame, &mut self.random) {
                    self.deliver(&frame);
                }
            }
            self.now += toehold_tcp::Duration::from_millis(50);
            for engine in self.ours.iter_mut().chain([&mut self.remote]) {
                engine.handle_timeout(self.now);
            }
        }
        panic!("the engines do not come to an end");
    }

    fn total(&self, count: fn(&Engine) -> u64) -> u64 {
        self.ours.iter().map(count).sum()
    }
}

/// The connections that an engine has accepted and opened, and the reasons of those that ended.
fn events(engine: &mut Engine) -> (Vec<ConnectionId>, Vec<CloseReason>) {
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    while let Some(event) = engine.poll_event() {
        match event {
            Event::Acceptable(listener) => {
                open.extend(std::iter::from_fn(|| engine.accept(listener)))
            }
            Event::Connected(id) => open.push(id),
            Event::Closed { reason, .. } => closed.push(reason),
            _ => {}
        }
    }
    (open, closed)
}

#[test]
fn connections_are_where_they_belong_wherever_their_frames_arrive() {
    let mut link = Link::new(|_| {});
    let options = Options::default();
    for n in 0..60 {
        let family = n % 2;
        let theirs = end(THEIRS[family], PORT);
        link.remote
            .connect(link.now, None, end(OURS[family], PORT), options)
            .expect("opened");
        let active = link.ours[n % 3].connect(link.now, None, theirs, options);
        let id = active.expect("opened");
        let info = link.ours[n % 3].info(id).expect("just opened");
        let share = link.ours[n % 3].config().share;
        assert_eq!(share.owner(info.local, info.remote), n % 3);
    }
    link.settle();
    let mut owned = [0; ENGINES as usize];
    for (engine, owned) in link.ours.iter_mut().zip(&mut owned) {
        let (open, closed) = events(engine);
        assert_eq!(closed, []);
        *owned = open.len();
        for id in open {
            engine.publish(id, 20_000).expect("open");
            engine.finish(link.now, id).expect("open");
        }
    }
    assert_eq!(owned.iter().sum::<usize>(), 120);
    assert!(owned.iter().all(|count| *count > 20), "{owned:?}");
    link.settle();
    let (open, _) = events(&mut link.remote);
    assert_eq!(open.len(), 120);
    for id in open {
        let info = link.remote.info(id).expect("open");
        assert_eq!((info.received, info.remote_finished), (20_000, true));
        link.remote.publish(id, 50_000).expect("open");
        link.remote.finish(link.now, id).expect("open");
    }
    link.settle();
    assert!(link.strays > 100, "{} strays", link.strays);
    assert_eq!(link.arp[0], link.arp[1], "one answer to each question");
    assert_eq!(
        link.total(|engine| engine.counters().bytes_received),
        120 * 50_000
    );
    assert_eq!(link.total(|engine| engine.counters().resets_sent), 0);
    assert_eq!(link.total(|engine| engine.counters().no_connection), 0);
    assert_eq!(link.total(|engine| engine.counters().malformed_total()), 0);
}

/// A packet in fragments of at most 256 bytes, in any order.
fn shatter(frame: Vec<u8>, random: &mut Random) -> Vec<Vec<u8>> {
    let is_v4 = frame[12..14] == [0x08, 0x00];
    let is_v6 = frame[12..14] == [0x86, 0xdd] && frame[20] == 6;
    if !is_v4 && !is_v6 {
        return vec![frame];
    }
    let at = if is_v4 { 34 } else { 54 };
    let identification = (random.bits() as u32).to_be_bytes();
    let count = frame[at..].len().div_ceil(256);
    let piece = |n: usize| {
        let payload = frame[at..].chunks(256).nth(n).expect("counted");
        let more = n + 1 < count;
        let mut piece = frame[..at].to_vec();
        if is_v4 {
            piece[16..18].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
            piece[18..20].copy_from_slice(&identification[..2]);
            let word = (n as u16 * 32) | (u16::from(more) << 13);
            piece[20..22].copy_from_slice(&word.to_be_bytes());
            piece[24..26].fill(0);
            let sum: u32 = (piece[14..34].chunks(2))
                .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
                .sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            piece[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        } else {
            piece[18..20].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
            piece[20] = 44;
            let word = ((n as u16 * 256) | u16::from(more)).to_be_bytes();
            piece.extend([6, 0, word[0], word[1]]);
            piece.extend(identification);
        }
        piece.extend(payload);
        piece
    };
    let mut pieces: Vec<Vec<u8>> = (0..count).map(piece).collect();
    for n in (1..count).rev() {
        pieces.swap(n, random.below(n as u64 + 1) as usize);
    }
    pieces
}

#[test]
fn fragments_are_put_together_by_one_and_handled_by_the_owner() {
    let mut link = Link::new(|_| {});
    for n in 0..12 {
        let to = end(OURS[n % 2], PORT);
        link.remote
            .connect(link.now, None, to, Options::default())
            .expect("opened");
    }
    link.settle();
    link.impair = shatter;
    for id in events(&mut link.remote).0 {
        link.remote.publish(id, 30_000).expect("open");
        link.remote.finish(link.now, id).expect("open");
    }
    link.settle();
    let received = link.total(|engine| engine.counters().bytes_received);
    assert_eq!(received, 12 * 30_000);
    assert!(link.strays > 20, "{} strays", link.strays);
    assert_eq!(link.total(|engine| engine.counters().malformed_total()), 0);
    assert_eq!(link.remote.counters().retransmissions, 0);
}

#[test]
fn ports_are_used_up_together() {
    let mut link = Link::new(|config| config.ephemeral_ports = (40_000, 40_063));
    let mut opened = Vec::new();
    for engine in &mut link.ours {
        loop {
            let to = end(THEIRS[0], PORT);
            match engine.connect(link.now, None, to, Options::default()) {
                Ok(id) => opened.push(engine.info(id).expect("open").local.port()),
                Err(error) => break assert_eq!(error, ConnectError::NoPortLeft),
            }
        }
    }
    opened.sort_unstable();
    assert_eq!(opened, (40_000..=40_063).collect::<Vec<u16>>());
}

//= RFC 9293#3.9.2.2
//= type=test
//# TCP implementations MUST act on an ICMP error message passed up from the IP layer,
//# directing it to the connection that created the error (MUST-54).
#[test]
fn messages_of_routers_reach_the_connection_that_they_quote() {
    let mut link = Link::new(|_| {});
    // No program listens at these ports, and a router reports that instead of the remote.
    for n in 0..12 {
        let to = end(THEIRS[0], 81 + n as u16);
        link.ours[n % 3]
            .connect(link.now, None, to, Options::default())
            .expect("opened");
    }
    for here in 0..3 {
        for frame in frames_of(&mut link.ours[here], link.now) {
            let offload = ReceiveOffload::default();
            link.remote
                .handle_frame(link.now, &frame, offload, &mut Pattern);
        }
    }
    for answer in frames_of(&mut link.remote, link.now) {
        link.deliver(&answer);
    }
    let syns: Vec<Vec<u8>> = (link.ours.iter_mut())
        .flat_map(|engine| frames_of(engine, link.now))
        .collect();
    assert_eq!(syns.len(), 12);
    for syn in syns {
        link.deliver(&unreachable_port(&syn));
    }
    for engine in &mut link.ours {
        assert_eq!(events(engine).1, [CloseReason::Refused; 4]);
    }
}

/// RFC 792: destination unreachable, port unreachable, about an IPv4 segment of ours.
fn unreachable_port(segment: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2);
        let words = words.map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let sum: u32 = words.sum();
        (!((sum & 0xffff) as u16).wrapping_add((sum >> 16) as u16)).to_be_bytes()
    };
    let quoted = &segment[14..14 + 28];
    let mut icmp = vec![3, 3, 0, 0, 0, 0, 0, 0];
    icmp.extend(quoted);
    let checksum = sum(&icmp);
    icmp[2..4].copy_from_slice(&checksum);
    let mut ip = vec![
        0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1,
    ];
    let checksum = sum(&ip);
    ip[10..12].copy_from_slice(&checksum);
    let link = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]].concat();
    [&link[..], &[0x08, 0x00], &ip, &icmp].concat()
}
