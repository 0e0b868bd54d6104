//! A path of any delay, rate and queue, in user space, because some kernels lack netem.
//!
//! ```text
//!   near ── v0 ══ TAP ──► queue ── rate ── delay ──► TAP ══ v1 ── far    and one for the way back
//! ```
//!
//! A frame keeps its metadata: a large segment passes as one frame, and no checksum is computed.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use toehold_link::{Tap, TapOptions, VnetHeader};
use toehold_network::Namespace;

/// The properties of a path, the same in both directions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The propagation time of a frame.
    pub(super) delay: Duration,
    /// Rate of the bottleneck in bytes a second, and the bytes that may wait before it.
    pub(super) bottleneck: Option<(f64, f64)>,
    /// Frames may be large segments of up to 64 KB; otherwise none is larger than the MTU.
    pub(super) large: bool,
}

/// A path between `v0` of one namespace and `v1` of another; gone when dropped.
pub(super) struct Path {
    is_over: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    directions: Vec<JoinHandle<()>>,
}

/// The most frames that are read before due frames are sent.
const FRAMES_PER_TURN: usize = 64;
const FRAME_BYTES_MAX: usize = VnetHeader::BYTES + 70_000;
/// The devices' own queues: long enough that the path's queue is the one that counts.
const DEVICE_QUEUE_FRAMES: u32 = 20_000;
/// The longest sleep while no frame is in flight.
const IDLE: Duration = Duration::from_millis(20);

impl Path {
    /// Creates a path. Both devices are up when it returns; the caller sets their addresses.
    pub(super) fn lay(near: &Namespace, far: &Namespace, shape: Shape) -> Result<Path, String> {
        let ends = [(near, "v0"), (far, "v1")];
        let mut taps = Vec::new();
        for (namespace, name) in ends {
            let options = TapOptions {
                multi_queue: false,
                receive_checksum: true,
                receive_large: shape.large,
            };
            let opened = namespace.within(|| Tap::open(name, options));
            taps.push(Arc::new(opened.map_err(|error| error.to_string())?));
            namespace.ip(&format!(
                "link set {name} txqueuelen {DEVICE_QUEUE_FRAMES} up"
            ))?;
        }
        let mut path = Path {
            is_over: Arc::default(),
            dropped: Arc::default(),
            directions: Vec::new(),
        };
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (taps[from].clone(), taps[to].clone());
            let (is_over, dropped) = (path.is_over.clone(), path.dropped.clone());
            path.directions.push(thread::spawn(move || {
                let mut way = Way::new(shape);
                // Relaxed: the flag publishes no other data.
                while !is_over.load(Ordering::Relaxed) {
                    way.turn(&from, &to);
                }
                dropped.fetch_add(way.dropped, Ordering::Relaxed);
            }));
        }
        Ok(path)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // Relaxed: the flag publishes no other data.
        self.is_over.store(true, Ordering::Relaxed);
        for direction in self.directions.drain(..) {
            let _ = direction.join();
        }
    }
}

/// One direction of the path.
struct Way {
    shape: Shape,
    travelling: VecDeque<Frame>,
    /// The time at which the bottleneck has sent all frames that it has taken.
    clear_at: Instant,
    buffer: Vec<u8>,
    dropped: u64,
}

struct Frame {
    due: Instant,
    header: VnetHeader,
    /// The frame, after room for the metadata.
    bytes: Vec<u8>,
}

impl Way {
    fn new(shape: Shape) -> Way {
        Way {
            shape,
            travelling: VecDeque::new(),
            clear_at: Instant::now(),
            buffer: vec![0; FRAME_BYTES_MAX],
            dropped: 0,
        }
    }

    fn turn(&mut self, from: &Tap, to: &Tap) {
        for _ in 0..FRAMES_PER_TURN {
            // A device that is down has no frame.
            let Ok(Some((length, header))) = from.receive_behind_header(&mut self.buffer) else {
                break;
            };
            self.take(Instant::now(), header, length);
        }
        let now = Instant::now();
        while self
            .travelling
            .front()
            .is_some_and(|frame| frame.due <= now)
        {
            let mut frame = self.travelling.pop_front().expect("there is one");
            // If the device refuses the frame, the frame is lost, as on any link.
            let _ = to.send_behind_header(frame.header, &mut frame.bytes);
        }
        let next = self.travelling.front();
        let wait = next.map_or(IDLE, |frame| frame.due.saturating_duration_since(now));
        await_readable(from, wait.min(IDLE));
    }

    /// A frame at the entrance of the path.
    fn take(&mut self, now: Instant, header: VnetHeader, length: usize) {
        let mut leaves = now;
        if let Some((bytes_per_second, queue_bytes)) = self.shape.bottleneck {
            let begins = self.clear_at.max(now);
            let waiting = begins.duration_since(now).as_secs_f64() * bytes_per_second;
            if waiting + length as f64 > queue_bytes {
                self.dropped += 1;
                return;
            }
            let takes = Duration::from_secs_f64(length as f64 / bytes_per_second);
            self.clear_at = begins + takes;
            leaves = self.clear_at;
        }
        self.travelling.push_back(Frame {
            due: leaves + self.shape.delay,
            header,
            bytes: self.buffer[..VnetHeader::BYTES + length].to_vec(),
        });
    }
}

/// Waits until a frame can be read, at most for `most`.
fn await_readable(tap: &Tap, most: Duration) {
    let mut entry = libc::pollfd {
        fd: tap.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: most.as_nanos() as libc::c_long,
    };
    // SAFETY: one entry and one time, both of this function. A signal only ends it early.
    unsafe { libc::ppoll(&mut entry, 1, &limit, std::ptr::null()) };
}

const _: () = assert!(IDLE.as_secs() == 0, "a whole time is in its nanoseconds");

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 1_000;

    #[test]
    fn a_bottleneck_sends_one_frame_after_the_other_and_drops_what_its_queue_cannot_hold() {
        let delay = Duration::from_millis(10);
        let mut way = Way::new(Shape {
            delay,
            bottleneck: Some((1_000_000.0, 2_500.0)),
            large: false,
        });
        let now = way.clear_at;
        for _ in 0..4 {
            way.take(now, VnetHeader::default(), LENGTH);
        }
        let due: Vec<Duration> = way.travelling.iter().map(|frame| frame.due - now).collect();
        let one = Duration::from_millis(1);
        assert_eq!(due, [delay + one, delay + 2 * one]);
        assert_eq!(way.dropped, 2);
        way.take(now + 2 * one, VnetHeader::default(), LENGTH / 2);
        let last = way.travelling.back().expect("it was taken").due - now;
        assert_eq!(last, delay + 2 * one + one / 2);
    }
}
