//! Captures of the link: its frames, each with the engine's action.
//!
//! ```text
//!   engine's thread: frame ── describe ── Capture (pcapng) ── bounded queue
//!                              ── thread of its own ── socket ── toehold capture
//! ```
//!
//! Without a capture all this is one branch a frame. With a capture, the engine's thread copies and
//! queues frames, and never waits for a reader: frames without room are left out, and the capture
//! itself contains their count. If a reader is gone, only its capture ends. All threads write to
//! the captures. A lock covers each frame and its time, so that a capture is in order.

mod describe;
mod outbox;

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use toehold_link::{Capture, Direction, Frame, PacketSummary};
use toehold_tcp::{ConnectionId, ConnectionInfo, Counters, Engine, Transmit};

use super::endpoint::Part;
use describe::{Reception, Sending};
use outbox::Outbox;

/// Captures at a time.
const CAPTURES_MAX: usize = 8;

/// A request for a capture.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Where it goes.
    pub(super) stream: UnixStream,
    /// Most bytes of a frame that are kept.
    pub(super) kept_max: usize,
    pub(super) filter: Filter,
}

/// Which frames are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filter {
    /// Those of TCP from or to this port; 0 for all.
    pub(crate) port: u16,
    /// Those of IP from or to this address.
    pub(crate) host: Option<IpAddr>,
}

impl Filter {
    fn takes(&self, summary: &PacketSummary) -> bool {
        let (ips, ports) = match summary {
            PacketSummary::Tcp(tcp) => {
                let (from, to) = (tcp.source, tcp.destination);
                (Some([from.ip(), to.ip()]), Some([from.port(), to.port()]))
            }
            PacketSummary::Ip(from, to, _) => (Some([*from, *to]), None),
            PacketSummary::Arp | PacketSummary::Other => (None, None),
        };
        let has_port = self.port == 0 || ports.is_some_and(|ports| ports.contains(&self.port));
        let has_host = self
            .host
            .is_none_or(|host| ips.is_some_and(|ips| ips.contains(&host)));
        has_port && has_host
    }
}

/// All captures of one link.
#[derive(Debug, Default)]
pub(super) struct Captures {
    sinks: Mutex<Vec<Sink>>,
    /// Number of captures, checked for each frame. Relaxed: it does not matter with which frame a
    /// capture begins.
    count: AtomicUsize,
}

/// The state before a frame was handled or made.
#[derive(Debug)]
pub(super) struct FrameContext {
    counters: Counters,
    summary: PacketSummary,
    connection: Option<(ConnectionId, ConnectionInfo)>,
}

impl Captures {
    /// Begins a capture. It ends at once if there are too many.
    pub(super) fn begin(&self, link: &str, wanted: Wanted) {
        let mut sinks = self.lock();
        sinks.retain(|sink| !sink.outbox.is_abandoned());
        if sinks.len() < CAPTURES_MAX
            && let Some(mut sink) = Sink::new(link, wanted)
        {
            // So the reader sees the capture's header at once.
            sink.flush();
            sinks.push(sink);
        }
        self.count.store(sinks.len(), Ordering::Relaxed);
    }

    /// The engine's state before it handles a received frame, for its description; `None` without
    /// captures.
    #[inline]
    pub(super) fn before_frame(&self, engine: &Engine, frame: &[u8]) -> Option<FrameContext> {
        self.is_watched().then(|| FrameContext::of(engine, frame))
    }

    /// The engine's state before a frame is made, for its description.
    #[inline]
    pub(super) fn before_transmit(&self, engine: &Engine) -> Option<Counters> {
        self.is_watched().then(|| engine.counters())
    }

    /// A frame was taken in.
    pub(super) fn note_received(&self, engine: &Engine, before: &FrameContext, frame: &[u8]) {
        let (summary, comment) = (before.summary, before.comment(engine));
        self.put(&summary, Direction::In, frame, frame.len(), &comment);
    }

    /// A frame was given to the link, or refused by it.
    pub(super) fn note_sent(
        &self,
        engine: &Engine,
        before: &Counters,
        transmit: &Transmit,
        (parts, is_taken): (&[Part], bool),
    ) {
        let length = parts.iter().map(|(_, len)| len).sum();
        let kept_max = self.lock().iter().map(|sink| sink.kept_max).max();
        let bytes = copy_of(parts, kept_max.unwrap_or(0).max(SUMMARY_BYTES));
        let summary = PacketSummary::of(&bytes);
        let comment = comment_on(engine, before, transmit, (summary, is_taken));
        self.put(&summary, Direction::Out, &bytes, length, &comment);
    }

    fn put(
        &self,
        summary: &PacketSummary,
        direction: Direction,
        bytes: &[u8],
        length: usize,
        comment: &str,
    ) {
        for sink in self.lock().iter_mut() {
            if sink.filter.takes(summary) {
                sink.put(direction, bytes, length, comment);
            }
        }
    }

    /// Passes collected blocks to the outboxes; ends captures whose readers are gone.
    #[inline]
    pub(super) fn flush(&self) {
        if self.is_watched() {
            let mut sinks = self.lock();
            sinks.retain_mut(Sink::flush);
            self.count.store(sinks.len(), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.len() > 0
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// If a thread panicked while it wrote, a frame is missing or incomplete; that is no reason to
    /// panic here.
    fn lock(&self) -> MutexGuard<'_, Vec<Sink>> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrameContext {
    fn of(engine: &Engine, frame: &[u8]) -> FrameContext {
        let summary = PacketSummary::of(frame);
        FrameContext {
            connection: connection_of(engine, &summary, Direction::In),
            counters: engine.counters(),
            summary,
        }
    }

    /// The engine's actions since then.
    fn comment(&self, engine: &Engine) -> String {
        let after = match self.connection {
            Some((id, _)) => engine.info(id).map(|info| (id, info)),
            None => connection_of(engine, &self.summary, Direction::In),
        };
        describe::received(&Reception {
            summary: self.summary,
            counters: [&self.counters, &engine.counters()],
            before: self.connection.map(|(_, info)| info),
            after,
        })
    }
}

/// The reason why the engine has made a frame.
fn comment_on(
    engine: &Engine,
    before: &Counters,
    transmit: &Transmit,
    (summary, is_taken): (PacketSummary, bool),
) -> String {
    describe::sent(&Sending {
        summary,
        counters: [before, &engine.counters()],
        after: connection_of(engine, &summary, Direction::Out),
        stream: transmit.payload.map(|payload| payload.offset),
        segment_bytes: transmit.offload.segment_bytes,
        is_taken,
    })
}

/// One capture.
#[derive(Debug)]
struct Sink {
    kept_max: usize,
    filter: Filter,
    /// Blocks that were not handed over yet.
    capture: Capture<Vec<u8>>,
    outbox: Outbox,
    /// Frames left out: since the last written frame, and in all.
    lost: u64,
    lost_in_all: u64,
}

impl Sink {
    fn new(link: &str, wanted: Wanted) -> Option<Sink> {
        Some(Sink {
            kept_max: wanted.kept_max,
            filter: wanted.filter,
            capture: Capture::new(Vec::new(), link).ok()?,
            outbox: Outbox::new(wanted.stream).ok()?,
            lost: 0,
            lost_in_all: 0,
        })
    }

    fn put(&mut self, direction: Direction, bytes: &[u8], length: usize, comment: &str) {
        let kept = &bytes[..bytes.len().min(self.kept_max)];
        let waiting = self.capture.get_mut().len();
        if !self.outbox.has_room(waiting + kept.len() + comment.len()) {
            self.lost += 1;
            self.lost_in_all += 1;
            return;
        }
        let frame = Frame {
            micros: micros(),
            direction,
            parts: &[kept],
            length,
            lost: std::mem::take(&mut self.lost),
            comment,
        };
        // A vector takes everything.
        let _ = self.capture.frame(&frame);
    }

    /// False when the reader is gone.
    fn flush(&mut self) -> bool {
        let blocks = std::mem::take(self.capture.get_mut());
        self.outbox.send(blocks)
    }
}

impl Drop for Sink {
    /// The engine ends: writes the collected blocks, which complete the capture.
    fn drop(&mut self) {
        let _ = self.capture.statistics(micros(), self.lost_in_all);
        self.flush();
    }
}

fn connection_of(
    engine: &Engine,
    summary: &PacketSummary,
    direction: Direction,
) -> Option<(ConnectionId, ConnectionInfo)> {
    let PacketSummary::Tcp(tcp) = summary else {
        return None;
    };
    let (local, remote) = match direction {
        Direction::In => (tcp.destination, tcp.source),
        Direction::Out => (tcp.source, tcp.destination),
    };
    let id = engine.connection_between(local, remote)?;
    Some((id, engine.info(id)?))
}

/// Copies the first `max` bytes of `parts`, some of which a program may be writing to.
fn copy_of(parts: &[Part], max: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for &(base, len) in parts {
        let at = out.len();
        let len = len.min(max - at);
        out.resize(at + len, 0);
        // SAFETY: the parts name readable memory of their length, and `out` was made long enough.
        unsafe { toehold_copy::from_shared(base, out.as_mut_ptr().add(at), len) };
    }
    out
}

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

/// Link, IPv6 and TCP headers, with all options.
const SUMMARY_BYTES: usize = 14 + 40 + 60;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod reader_tests {
    use super::*;
    use std::io::Read;
    use std::time::Duration;
    use toehold_link::CaptureReader;

    fn begun(kept_max: usize, filter: Filter) -> (Captures, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        theirs
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        let captures = Captures::default();
        let wanted = Wanted {
            stream: ours,
            kept_max,
            filter,
        };
        captures.begin("tap:test", wanted);
        (captures, theirs)
    }

    #[test]
    fn reader_that_does_not_read_costs_frames_and_learns_how_many() {
        let (captures, theirs) = begun(usize::MAX, Filter::default());
        let frame = vec![0x5a; 60_000];
        let count = 2 * outbox::QUEUE_BYTES_MAX / frame.len();
        for _ in 0..count {
            captures.put(
                &PacketSummary::Other,
                Direction::In,
                &frame,
                frame.len(),
                "x",
            );
            captures.flush();
        }
        assert_eq!(captures.len(), 1, "the reader is slow, not gone");
        let reading = std::thread::spawn(move || {
            let mut reader = CaptureReader::new(theirs);
            let (mut frames, mut lost_in_all) = (0u64, None);
            while let Some(block) = reader.next_block().expect("a capture") {
                frames += u64::from(block.packet().is_some());
                lost_in_all = lost_in_all.or(block.lost_in_all());
            }
            (frames, lost_in_all)
        });
        while !captures.lock()[0].outbox.has_room(outbox::QUEUE_BYTES_MAX) {
            std::thread::yield_now();
        }
        drop(captures);
        let (frames, lost) = reading.join().expect("read");
        let lost = lost.expect("told at the end");
        assert!(lost > 0, "twice what the queue holds");
        assert_eq!(frames + lost, count as u64);
    }

    #[test]
    fn frames_that_follow_a_loss_tell_of_it() {
        let (captures, theirs) = begun(16, Filter::default());
        captures.lock()[0].lost = 5;
        captures.put(
            &PacketSummary::Arp,
            Direction::Out,
            &[1; 40],
            40,
            "after a gap",
        );
        captures.flush();
        let mut reader = CaptureReader::new(theirs);
        let packet = loop {
            let block = reader.next_block().expect("a capture").expect("more");
            if let Some(packet) = block.packet() {
                break (packet.lost, packet.bytes.len(), packet.length);
            }
        };
        assert_eq!(packet, (5, 16, 40));
    }

    #[test]
    fn reader_that_is_gone_ends_its_capture_alone() {
        let (captures, gone) = begun(64, Filter::default());
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let wanted = Wanted {
            stream: ours,
            kept_max: 64,
            filter: Filter::default(),
        };
        captures.begin("tap:test", wanted);
        drop(gone);
        while captures.len() > 1 {
            captures.put(&PacketSummary::Arp, Direction::In, &[0; 60], 60, "");
            captures.flush();
            std::thread::yield_now();
        }
        drop(captures);
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).expect("the other goes on");
        assert!(!rest.is_empty());
    }

    #[test]
    fn filters_look_at_ends() {
        let ends = |from: &str, to: &str| {
            let mut frame = [[0; 6], [0; 6]].concat();
            frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
            for end in [from, to] {
                let IpAddr::V4(ip) = end.parse().expect("address") else {
                    panic!("IPv4")
                };
                frame.extend(ip.octets());
            }
            frame.extend([0, 80, 0x1f, 0x90, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0]);
            PacketSummary::of(&frame)
        };
        let summary = ends("10.0.0.1", "10.0.0.2");
        let filter = |port, host: Option<&str>| Filter {
            port,
            host: host.map(|host| host.parse().expect("address")),
        };
        assert!(filter(0, None).takes(&PacketSummary::Arp));
        assert!(filter(8080, None).takes(&summary) && filter(80, None).takes(&summary));
        assert!(!filter(81, None).takes(&summary) && !filter(80, None).takes(&PacketSummary::Arp));
        assert!(filter(80, Some("10.0.0.2")).takes(&summary));
        assert!(!filter(0, Some("10.0.0.3")).takes(&summary));
    }
}
