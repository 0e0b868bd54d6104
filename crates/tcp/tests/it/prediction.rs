//! The fast path and the slow path of the receiver. A segment whose checksum the link has verified
//! takes the fast path; an equal segment without that takes the slow path. No observer may see a
//! difference.

use crate::support::{Family, Segment, ethernet, on_link};
use toehold_tcp::{
    Config, ConnectionId, Engine, Event, HEADER_BUFFER_BYTES, Instant, Memory, NoRoom, Options,
    Random, ReceiveOffload,
};

const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;
const MSS: u64 = 1_448;

/// Payload with its offsets, in a step with room or without.
#[derive(Debug, Default, PartialEq, Eq)]
struct Placed {
    bytes: Vec<(u64, Vec<u8>)>,
    is_full: bool,
}

impl Memory for Placed {
    fn place(&mut self, _: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        if self.is_full {
            return Err(NoRoom);
        }
        self.bytes.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, offset: u64, target: &mut [u8]) {
        for (byte, at) in target.iter_mut().zip(offset..) {
            *byte = at as u8;
        }
    }
}

/// An engine with one connection that a remote has opened.
struct Side {
    engine: Engine,
    id: Option<ConnectionId>,
    placed: Placed,
    offload: ReceiveOffload,
}

impl Side {
    fn new(family: Family, checksum_verified: bool) -> Self {
        Self {
            engine: Engine::new(
                Config::new(ethernet(1), family.mtu(), on_link(family.ours())),
                Random::new(4),
            ),
            id: None,
            placed: Placed::default(),
            offload: ReceiveOffload { checksum_verified },
        }
    }

    fn take(&mut self, now: Instant, frame: &[u8]) {
        self.engine
            .handle_frame(now, frame, self.offload, &mut self.placed);
        self.engine.assert_invariants();
    }

    fn frames(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frame = vec![0; HEADER_BUFFER_BYTES];
        let mut frames = Vec::new();
        while let Some((length, _)) = self.engine.poll_frame(now, &mut self.placed, &mut frame) {
            frames.push(frame[..length].to_vec());
            self.engine.assert_invariants();
        }
        frames
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }
}

/// The remote's end of the connection.
#[derive(Clone, Copy, Default)]
struct Remote {
    family: Family,
    isn: u32,
    seq: u32,
    ack: u32,
    window: u16,
    clock: u32,
}

impl Remote {
    fn frame(&self, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut frame = Segment {
            family: self.family,
            port: 10_000,
            seq: self.seq,
            ack: self.isn.wrapping_add(self.ack),
            flags,
            window: self.window,
            clock: self.clock,
            options,
            payload,
        }
        .frame();
        let at = self.family.tcp_at() + 16;
        let sum = self.family.tcp_sum(&frame).checksum();
        frame[at..at + 2].copy_from_slice(&sum);
        frame
    }

    /// A segment of a remote that mostly behaves as expected: an unchanged window, an
    /// acknowledgement of some or all bytes in flight, and payload in order.
    fn segment(&mut self, random: &mut Random, in_flight: u32) -> Vec<u8> {
        self.clock += u32::from(random.below(4) == 0);
        match random.below(24) {
            0 => self.window = 1_000 + random.below(60_000) as u16,
            1 => self.clock -= 1,
            _ => {}
        }
        match random.below(4) {
            0 => self.ack += in_flight,
            1 => self.ack += random.below(u64::from(in_flight) + 1) as u32,
            _ => {}
        }
        let flags = ACK | if random.below(3) == 0 { PSH } else { 0 };
        let bytes = match random.below(8) {
            0 => 0,
            1 => random.below(MSS) as usize,
            2 => 3 * MSS as usize, // As a link puts segments together.
            _ => MSS as usize,
        };
        let mut early = *self;
        if random.below(40) == 0 {
            early.seq = early.seq.wrapping_add(random.below(9_000) as u32);
            early.seq = early.seq.wrapping_sub(random.below(9_000) as u32);
        }
        let frame = early.frame(flags, &[], &vec![random.below(256) as u8; bytes]);
        if early.seq == self.seq {
            self.seq = self.seq.wrapping_add(bytes as u32);
        }
        frame
    }
}

/// Opens the connection on both sides.
fn open(family: Family, sides: &mut [Side; 2], now: Instant) -> Remote {
    let mut remote = Remote {
        family,
        seq: 1_000,
        window: 60_000,
        clock: 77,
        ..Remote::default()
    };
    let syn = remote.frame(SYN, &[2, 4, 5, 0xb4, 3, 3, 2, 4, 2, 1, 1, 1], &[]);
    remote.seq += 1;
    for side in &mut *sides {
        let listener = side
            .engine
            .listen(family.anywhere(), 1, Options::default())
            .expect("the engine is new");
        side.take(now, &syn);
        let answer = side.frames(now).remove(0);
        let seq_at = family.tcp_at() + 4;
        let isn = u32::from_be_bytes(*answer[seq_at..].first_chunk().expect("four bytes"));
        remote.isn = isn.wrapping_add(1);
        side.take(now, &remote.frame(ACK, &[], &[]));
        side.id = side.engine.accept(listener);
        side.events();
    }
    remote
}

#[test]
fn the_fast_path_equals_the_slow_path() {
    fast_path_equals_slow_path(Family::V4);
}

#[test]
fn the_fast_path_of_ipv6_equals_the_slow_path() {
    fast_path_equals_slow_path(Family::V6);
}

fn fast_path_equals_slow_path(family: Family) {
    let mut random = Random::new(21);
    let mut fast_paths = 0;
    for _ in 0..60 {
        let mut sides = [true, false].map(|verified| Side::new(family, verified));
        let mut now = Instant::from_micros(1_000_000);
        let mut remote = open(family, &mut sides, now);
        let (mut published, mut taken, mut in_flight) = (0, 0, 0);
        for step in 0..400 {
            now += toehold_tcp::Duration::from_micros(random.below(3_000));
            published += random.below(3) * random.below(4_000);
            let before = remote.seq;
            let frame = remote.segment(&mut random, in_flight);
            let is_full = random.below(50) == 0;
            let keeps = random.below(3) == 0;
            let said = sides.each_mut().map(|side| {
                side.placed.is_full = is_full;
                let id = side.id.expect("it was accepted");
                side.engine.handle_timeout(now);
                _ = side.engine.publish(id, published);
                side.take(now, &frame);
                let info = side.engine.info(id);
                if let (Some(info), false) = (info, keeps) {
                    _ = side.engine.take(id, info.received);
                }
                let placed = core::mem::take(&mut side.placed);
                (
                    placed,
                    side.events(),
                    side.frames(now),
                    side.engine.info(id),
                )
            });
            let [short, long] = said;
            // Not `assert_eq`, which would print every byte.
            assert!(
                short == long,
                "{:?} and {:?} at step {step}",
                short.3,
                long.3
            );
            let Some(info) = short.3 else {
                break;
            };
            // Data that was not accepted is sent again; data that was sent can be acknowledged.
            let received = info.received as u32;
            if received < remote.seq.wrapping_sub(1_001) {
                remote.seq = 1_001 + received;
            }
            assert!(before.wrapping_sub(1_001) <= received.max(taken));
            taken = received;
            in_flight = (info.sent as u32).wrapping_sub(remote.ack);
        }
        let [short, long] = sides.each_ref().map(|side| side.engine.counters());
        assert_eq!(short.bytes_received, long.bytes_received);
        assert_eq!(short.host_had_no_room, long.host_had_no_room);
        assert_eq!(short.segments_received, long.segments_received);
        fast_paths += short.segments_predicted;
    }
    assert!(fast_paths > 5_000, "{fast_paths} went the fast path");
}

/// No flow has these ends. Before any segment has arrived, the engine must not take these ends for
/// those of the last segment.
#[test]
fn a_segment_without_addresses_has_no_owner() {
    for (family, ends) in [(Family::V4, 26..38), (Family::V6, 22..58)] {
        let mut side = Side::new(family, true);
        let now = Instant::from_micros(1_000_000);
        let remote = Remote {
            family,
            ..Remote::default()
        };
        for payload in [&[][..], &[1; 100]] {
            let mut frame = remote.frame(ACK, &[], payload);
            frame[ends.clone()].fill(0);
            side.take(now, &frame);
            let frames = [(&frame[..], side.offload)];
            side.engine
                .handle_frames(now, frames.into_iter(), &mut side.placed);
        }
        assert_eq!(side.frames(now).len(), 0);
        assert_eq!(side.engine.connection_count(), 0);
    }
}

/// RFC 4291 section 2.5.5.2: within a host, mapped addresses stand for IPv4 addresses. In an IPv6
/// packet they belong to no connection, even if an IPv4 connection has the mapped addresses.
#[test]
fn mapped_addresses_in_ipv6_are_no_way_into_a_connection_of_ipv4() {
    let mut sides = [true, false].map(|verified| Side::new(Family::V4, verified));
    let now = Instant::from_micros(1_000_000);
    let mut remote = open(Family::V4, &mut sides, now);
    remote.family = Family::V6;
    let mut frame = remote.frame(ACK, &[], b"from elsewhere");
    for (at, last) in [(22, 2), (38, 1)] {
        frame[at..at + 16].fill(0);
        frame[at + 10..at + 16].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
    }
    let [side, _] = &mut sides;
    side.take(now, &frame);
    assert_eq!(side.placed, Placed::default());
    let info = side.id.and_then(|id| side.engine.info(id));
    assert_eq!(info.map(|info| info.received), Some(0));
}
