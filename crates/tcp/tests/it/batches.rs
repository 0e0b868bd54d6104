//! Frames that arrive together are handled as if each had come alone. That also holds with so many
//! connections that the engine looks them up in advance, and when connections begin and end between
//! two frames of a batch.

use crate::support::{Family, Segment, ethernet, on_link};
use toehold_tcp::{
    Config, ConnectionId, Engine, Event, HEADER_BUFFER_BYTES, Headers, Instant, Memory, NoRoom,
    Options, Random, ReceiveOffload,
};

const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
/// More than 4,096 flows; some are closed at any time.
const FLOWS: usize = 4_800;
/// The frames that a link delivers together: more than the engine looks up together.
const BATCH: u64 = 80;
const VERIFIED: ReceiveOffload = ReceiveOffload {
    checksum_verified: true,
};

/// Payload, with the connection and the offset of each piece.
#[derive(Debug, Default, PartialEq, Eq)]
struct Placed(Vec<(ConnectionId, u64, Vec<u8>)>);

impl Memory for Placed {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        self.0.push((id, offset, bytes.to_vec()));
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, _: u64, target: &mut [u8]) {
        target.fill(7);
    }
}

/// An engine and its memory.
struct Side {
    engine: Engine,
    placed: Placed,
}

/// The output of a side after a step.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    events: Vec<Event>,
    frames: Vec<Vec<u8>>,
    placed: Placed,
}

impl Side {
    fn new() -> Self {
        let mut config = Config::new(ethernet(1), 1_500, on_link("10.0.0.1"));
        config.addresses.push(on_link(Family::V6.ours()));
        config.connections_max = FLOWS + 8;
        config.half_open_max = FLOWS;
        let mut engine = Engine::new(config, Random::new(3));
        engine
            .listen(Family::V6.anywhere(), FLOWS, Options::default())
            .expect("the engine is new");
        Self {
            engine,
            placed: Placed::default(),
        }
    }

    /// The host takes the bytes that have arrived, and releases connections that are over.
    fn say(&mut self, now: Instant) -> Said {
        let mut said = Said {
            events: Vec::new(),
            frames: Vec::new(),
            placed: core::mem::take(&mut self.placed),
        };
        while let Some(event) = self.engine.poll_event() {
            said.events.push(event);
            match event {
                Event::Acceptable(listener) => while self.engine.accept(listener).is_some() {},
                Event::Progress {
                    connection,
                    received,
                    ..
                } => self.engine.take(connection, received).expect("received"),
                Event::Closed { connection, .. } => {
                    self.engine.release(now, connection).expect("not let go of");
                }
                _ => unreachable!("nothing is opened from here"),
            }
        }
        let mut frame = vec![0; HEADER_BUFFER_BYTES];
        while let Some((length, _)) = self.engine.poll_frame(now, &mut self.placed, &mut frame) {
            said.frames.push(frame[..length].to_vec());
        }
        said
    }
}

/// Every fourth remote uses IPv6.
fn family_of(port: u16) -> Family {
    if port.is_multiple_of(4) {
        Family::V6
    } else {
        Family::V4
    }
}

/// The remote's end of a connection.
#[derive(Clone, Copy, Default)]
struct Flow {
    is_open: bool,
    isn: u32,
    seq: u32,
}

impl Flow {
    fn frame(&self, port: u16, flags: u8, payload: &[u8], now: Instant) -> Vec<u8> {
        let options: &[u8] = match flags & SYN {
            0 => &[],
            _ => &[2, 4, 5, 0xb4, 3, 3, 0, 4, 2, 1, 1, 1],
        };
        Segment {
            family: family_of(port),
            port,
            seq: self.seq,
            ack: self.isn.wrapping_add(1),
            flags,
            window: u16::MAX,
            clock: now.as_micros() as u32 / 1_000,
            options,
            payload,
        }
        .frame()
    }
}

/// The remotes' next segment: mostly payload in order.
fn remote(flow: &mut Flow, port: u16, random: &mut Random, now: Instant) -> Vec<u8> {
    if !flow.is_open {
        // Another connection between these ends, with numbers above those used before.
        *flow = Flow {
            is_open: true,
            isn: 0,
            seq: flow.seq.wrapping_add(100_000),
        };
        let frame = flow.frame(port, SYN, &[], now);
        flow.seq = flow.seq.wrapping_add(1);
        return frame;
    }
    match random.below(16) {
        0 => {
            flow.is_open = false;
            flow.frame(port, RST, &[], now)
        }
        1 => flow.frame(port, ACK, &[], now),
        2 => flow.frame(port, ACK, &[], now)[..30].to_vec(),
        _ => {
            let payload = vec![random.below(256) as u8; 1 + random.below(100) as usize];
            let mut frame = flow.frame(port, ACK | PSH, &payload, now);
            flow.seq = flow.seq.wrapping_add(payload.len() as u32);
            // A link pads short frames.
            frame.resize(frame.len() + random.below(3) as usize, 0);
            frame
        }
    }
}

//= RFC 9293#3.10.7.4
//= type=test
//# In general, the processing of received segments MUST be implemented to aggregate ACK
//# segments whenever possible (MUST-58).
//= RFC 9293#3.10.7.4
//= type=test
//# For example, if the TCP endpoint is processing a series of queued segments, it MUST
//# process them all before sending any ACK segments (MUST-59).
#[test]
fn together_is_as_one_after_the_other() {
    let mut random = Random::new(11);
    let (mut together, mut alone) = (Side::new(), Side::new());
    let mut flows = vec![Flow::default(); FLOWS];
    let (mut payloads, mut ends) = (0, 0);
    for step in 0..2_000u64 {
        let now = Instant::from_micros(1_000_000 + step * 1_000);
        // First all remotes connect. Then a few flows at a time send, each more than once in a
        // batch.
        let begin = step * BATCH;
        let batch: Vec<Vec<u8>> = (begin..begin + BATCH)
            .map(|turn| {
                let index = match turn < FLOWS as u64 {
                    true => turn,
                    false => (turn / 400 * 37 + random.below(60)) % FLOWS as u64,
                } as usize;
                let port = 10_000 + index as u16;
                remote(&mut flows[index], port, &mut random, now)
            })
            .collect();
        let frames = batch.iter().map(|frame| (&frame[..], VERIFIED));
        together
            .engine
            .handle_frames(now, frames.clone(), &mut together.placed);
        for (frame, offload) in frames {
            alone
                .engine
                .handle_frame(now, frame, offload, &mut alone.placed);
        }
        let said = together.say(now);
        assert_eq!(said, alone.say(now), "step {step}");
        payloads += said.placed.0.len();
        let is_end = |event: &&Event| matches!(event, Event::Closed { .. });
        ends += said.events.iter().filter(is_end).count();
        for frame in &said.frames {
            learn(&mut flows, frame);
        }
    }
    together.engine.assert_invariants();
    assert_eq!(together.engine.counters(), alone.engine.counters());
    assert!(together.engine.connection_count() > 4_096, "too few");
    assert!(payloads > 50_000 && ends > 5_000, "{payloads}, {ends}");
    let predicted = together.engine.counters().segments_predicted;
    assert!(predicted > 50_000, "{predicted}");
}

/// A duplicate acknowledgement has a meaning, although its sequence number is the expected one.
#[test]
fn an_acknowledgement_alone_is_not_payload_in_its_place() {
    for (port, headers) in [(10_000, Headers::V6), (10_001, Headers::V4)] {
        let mut side = Side::new();
        let now = Instant::from_micros(1_000_000);
        let mut flows = [Flow {
            is_open: true,
            ..Flow::default()
        }; 2];
        let index = usize::from(port - 10_000);
        let step = |side: &mut Side, flows: &mut [Flow], flags, payload: &[u8]| {
            let frame = flows[index].frame(port, flags, payload, now);
            side.engine
                .handle_frame(now, &frame, VERIFIED, &mut side.placed);
            flows[index].seq += payload.len() as u32 + u32::from(flags & SYN != 0);
            for frame in side.say(now).frames {
                learn(flows, &frame);
            }
        };
        step(&mut side, &mut flows, SYN, &[]);
        step(&mut side, &mut flows, ACK, &[]);
        step(&mut side, &mut flows, ACK, &[1; 100]);
        let expected = side.engine.expected(headers);
        let expected = expected.expect("the last one's next byte");
        let frame = |payload: &[u8]| flows[index].frame(port, ACK, payload, now);
        let mut place = |payload: &[u8]| {
            let frame = frame(payload);
            assert_eq!(Headers::of(&frame), Some(headers));
            let there = side.engine.place_of(&frame, frame.len(), VERIFIED);
            assert_eq!(there, Some(expected));
            let headers = &frame[..headers.bytes()];
            side.engine
                .handle_placed(now, headers, payload.len(), VERIFIED, expected)
        };
        assert!(!place(&[]));
        assert!(place(&[2; 100]));
    }
}

/// A SYN-ACK tells a remote the engine's initial sequence number.
fn learn(flows: &mut [Flow], frame: &[u8]) {
    let family = if frame[12] == 8 {
        Family::V4
    } else {
        Family::V6
    };
    let tcp = &frame[family.tcp_at()..];
    if tcp[13] & SYN != 0 {
        let port = u16::from_be_bytes([tcp[2], tcp[3]]);
        let isn = *tcp[4..].first_chunk().expect("four bytes");
        flows[usize::from(port) - 10_000].isn = u32::from_be_bytes(isn);
    }
}
