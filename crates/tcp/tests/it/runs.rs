//! Full segments that are sent as a run, over Ethernet. Each segment must equal the segment that
//! would be sent alone. A change between two polls must not leave a wrong segment.

use crate::support::{Family, Segment, ethernet, on_link};
use toehold_tcp::sim::checker;
use toehold_tcp::{
    ChecksumSum, Config, ConnectionId, Duration, Engine, Event, Instant, Memory, NoRoom, Options,
    Random, ReceiveOffload,
};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const MSS: u64 = 1_448;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// Byte n of the sent stream is n; no bytes are received.
struct Counting;

impl Memory for Counting {
    fn place(&mut self, _: ConnectionId, _: u64, _: &[u8]) -> Result<(), NoRoom> {
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, offset: u64, target: &mut [u8]) {
        for (byte, at) in target.iter_mut().zip(offset..) {
            *byte = at as u8;
        }
    }
}

/// The fields of a frame that these tests compare.
#[derive(Debug, PartialEq, Eq)]
struct Sent {
    from: u64,
    bytes: u64,
    flags: u8,
}

fn full(index: u64) -> Sent {
    Sent {
        from: index * MSS,
        bytes: MSS,
        flags: ACK,
    }
}

/// An engine with one connection that a remote has opened.
struct Stage {
    engine: Engine,
    id: Option<ConnectionId>,
    now: Instant,
    isn: u32,
    family: Family,
}

impl Stage {
    fn new(family: Family) -> Self {
        let mut engine = Engine::new(
            Config::new(ethernet(1), family.mtu(), on_link(family.ours())),
            Random::new(9),
        );
        let listener = engine
            .listen(family.anywhere(), 1, Options::default())
            .expect("the engine is new");
        let now = Instant::from_micros(1_000_000);
        let mut stage = Self {
            engine,
            id: None,
            now,
            isn: 0,
            family,
        };
        stage.remote(SYN, 0, 65_535, &[2, 4, 5, 0xb4, 3, 3, 0, 4, 2, 1, 1, 1]);
        let mut frame = [0; 2_048];
        stage.poll_raw(&mut frame).expect("a SYN-ACK");
        let seq_at = family.tcp_at() + 4;
        stage.isn = u32::from_be_bytes(*frame[seq_at..].first_chunk().expect("four bytes"));
        stage.now += Duration::from_millis(100);
        stage.acknowledge(0, 65_535);
        assert_eq!(stage.engine.poll_event(), Some(Event::Acceptable(listener)));
        stage.id = stage.engine.accept(listener);
        stage
    }

    /// A segment without payload from the remote, which has received `taken` of our bytes.
    fn remote(&mut self, flags: u8, taken: u64, window: u16, options: &[u8]) {
        let frame = Segment {
            family: self.family,
            port: 4_321,
            seq: 1_000 + u32::from(flags & SYN == 0),
            ack: self.isn.wrapping_add(1 + taken as u32),
            flags,
            window,
            clock: self.now.as_micros() as u32 / 1_000,
            options,
            payload: &[],
        }
        .frame();
        let verified = ReceiveOffload {
            checksum_verified: true,
        };
        self.engine
            .handle_frame(self.now, &frame, verified, &mut Counting);
    }

    fn acknowledge(&mut self, taken: u64, window: u16) {
        self.remote(ACK, taken, window, &[]);
    }

    fn poll_raw(&mut self, frame: &mut [u8]) -> Option<usize> {
        let (length, _) = self.engine.poll_frame(self.now, &mut Counting, frame)?;
        self.engine.assert_invariants();
        Some(length)
    }

    /// The next frame. Checks everything in the frame that does not depend on the test.
    fn poll(&mut self) -> Option<Sent> {
        let mut frame = [0; 2_048];
        let length = self.poll_raw(&mut frame)?;
        let packet = &frame[14..length];
        assert!(self.family != Family::V4 || ChecksumSum::ZERO.bytes(&packet[..20]).is_intact());
        assert!(
            self.family.tcp_sum(&frame[..length]).is_intact(),
            "the TCP checksum"
        );
        let read = checker::parse(packet).expect("the engine sends TCP");
        let from = u64::from(read.seq.wrapping_sub(self.isn).wrapping_sub(1));
        for (&byte, at) in read.payload.iter().zip(from..) {
            assert_eq!(byte, at as u8, "the payload's byte {at}");
        }
        let clock = (self.now.as_micros() / 1_000) as u32;
        assert_eq!(read.ack, 1_001);
        assert_eq!(read.timestamps.map(|(_, echo)| echo), Some(clock));
        Some(Sent {
            from,
            bytes: read.payload.len() as u64,
            flags: read.flags,
        })
    }

    fn id(&self) -> ConnectionId {
        self.id.expect("the handshake is over")
    }

    fn publish(&mut self, end: u64) {
        self.engine.publish(self.id(), end).expect("it exists");
    }

    fn sent(&self) -> u64 {
        self.engine.info(self.id()).expect("it exists").sent
    }
}

/// Only the last published segment has PSH, and the rest that does not fill a segment is not
/// delayed.
#[test]
fn a_run_is_a_row_of_full_segments_and_its_tail() {
    for family in FAMILIES {
        let mut stage = Stage::new(family);
        stage.publish(5 * MSS + 10);
        for index in 0..5 {
            assert_eq!(stage.poll(), Some(full(index)));
            assert_eq!(stage.sent(), (index + 1) * MSS, "only what was polled");
        }
        let tail = Sent {
            from: 5 * MSS,
            bytes: 10,
            flags: ACK | PSH,
        };
        assert_eq!(stage.poll(), Some(tail));
        assert_eq!(stage.poll(), None);
        stage.publish(8 * MSS + 10);
        stage.now += Duration::from_millis(1);
        stage.acknowledge(5 * MSS + 10, 65_535);
        let flags: Vec<u8> = (0..3)
            .map_while(|_| stage.poll())
            .map(|s| s.flags)
            .collect();
        assert_eq!(flags, [ACK, ACK, ACK | PSH]);
        assert_eq!(stage.engine.counters().segments_sent, 1 + 6 + 3);
        assert_eq!(stage.engine.counters().bytes_sent, 8 * MSS + 10);
    }
}

/// RFC 9293 section 3.8.6: a remote that takes its window back gets no more than it offers now.
#[test]
fn a_window_that_shrinks_ends_the_run() {
    for family in FAMILIES {
        let mut stage = Stage::new(family);
        stage.publish(9 * MSS);
        assert_eq!(stage.poll(), Some(full(0)));
        assert_eq!(stage.poll(), Some(full(1)));
        stage.acknowledge(MSS, 2 * MSS as u16);
        assert_eq!(stage.poll(), Some(full(2)));
        assert_eq!(stage.poll(), None);
        stage.acknowledge(3 * MSS, 65_535);
        assert_eq!(stage.poll(), Some(full(3)));
    }
}

#[test]
fn a_reset_ends_the_run() {
    for family in FAMILIES {
        let mut stage = Stage::new(family);
        stage.publish(9 * MSS);
        assert_eq!(stage.poll(), Some(full(0)));
        stage.remote(RST | ACK, 0, 0, &[]);
        assert_eq!(stage.poll(), None);
    }
}

/// A call of the host within a run takes effect in the next segment, or at the end.
#[test]
fn calls_end_the_run() {
    for family in FAMILIES {
        let mut stage = Stage::new(family);
        stage.publish(3 * MSS);
        assert_eq!(stage.poll(), Some(full(0)));
        stage.publish(4 * MSS);
        assert_eq!(stage.poll(), Some(full(1)));
        stage
            .engine
            .finish(stage.now, stage.id())
            .expect("it exists");
        assert_eq!(stage.poll(), Some(full(2)));
        let last = stage.poll().expect("the last segment");
        assert_eq!((last.from, last.flags & PSH), (3 * MSS, PSH));
        assert_eq!(stage.poll(), None);

        let mut stage = Stage::new(family);
        stage.publish(9 * MSS);
        assert_eq!(stage.poll(), Some(full(0)));
        stage
            .engine
            .abort(stage.now, stage.id())
            .expect("it exists");
        let reset = stage.poll().expect("a reset");
        assert_eq!((reset.bytes, reset.flags), (0, RST | ACK));
        assert_eq!(stage.poll(), None);
    }
}

/// A segment that is polled later was sent later: its round trip counts from then.
#[test]
fn time_that_passes_ends_the_run() {
    for family in FAMILIES {
        let mut stage = Stage::new(family);
        stage.publish(4 * MSS);
        assert_eq!(stage.poll(), Some(full(0)));
        let began = stage.now;
        stage.now += Duration::from_millis(30);
        let later = stage
            .engine
            .poll_frame(stage.now, &mut Counting, &mut [0; 2_048]);
        assert!(later.is_some());
        stage.now = began + Duration::from_millis(40);
        stage.acknowledge(MSS, 65_535);
        stage.acknowledge(2 * MSS, 65_535);
        let info = stage.engine.info(stage.id()).expect("it exists");
        assert_eq!(info.round_trip_minimum, Duration::from_millis(10));
    }
}

#[test]
fn a_path_that_narrows_ends_the_run() {
    for family in FAMILIES {
        let mut stage = Stage::new(family);
        stage.publish(9 * MSS);
        assert_eq!(stage.poll(), Some(full(0)));
        stage.engine.set_mtu(stage.now, family.mtu() - 200);
        let rest: Vec<u64> = core::iter::from_fn(|| stage.poll())
            .map(|sent| sent.bytes)
            .collect();
        assert!(!rest.is_empty() && rest.iter().all(|&bytes| bytes <= MSS - 200));
    }
}
