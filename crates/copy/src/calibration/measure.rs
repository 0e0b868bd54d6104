//! Measures the curves: short runs, interleaved, with medians.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::choose::{self, Look};
use super::{Calibration, Copybreak, Jobs, Point};
use crate::residency::{self, touch_ticks};
use crate::{
    Buffer, Channel, Cpu, CpuNt, Flags, NT_BYTES_MIN, Operation, Waiting, Worker, WorkerOptions,
    copy_nontemporal, from_shared, nontemporal,
};

/// The measured lengths: first a coarse series, then the lengths in between, so that a lack of time
/// does the least harm. The result for the longest length also holds for longer copies.
const LENS: [usize; 10] = [
    64 << 10,
    16 << 10,
    4 << 10,
    256 << 10,
    1 << 10,
    32 << 10,
    128 << 10,
    8 << 10,
    2 << 10,
    LEN_MAX,
];

const LEN_MAX: usize = 512 << 10;

/// With fewer measured lengths the calibration does not judge the engine.
const LENS_MIN: usize = 4;

/// Measuring stops after this time, so that a busy machine does not delay the start. The results
/// until then are used, but not remembered.
const BUDGET: Duration = Duration::from_millis(32);

pub(super) fn measure(fingerprint: u64) -> Calibration {
    let begin = Instant::now();
    let mut calibration = Calibration::untaken(fingerprint);
    if let Ok(bench) = Bench::new(begin + BUDGET) {
        bench.measure(&mut calibration);
    }
    calibration.took = begin.elapsed();
    calibration
}

pub(super) fn is_whole(points: &[Point]) -> bool {
    points.len() == LENS.len()
}

fn nontemporal_from(points: &[Point]) -> usize {
    let costs: Vec<(usize, f64, f64)> = points
        .iter()
        .filter(|p| p.bytes >= NT_BYTES_MIN)
        .map(|p| (p.bytes, p.cold_ns, p.nt_cold_ns))
        .collect();
    choose::crossover(&costs)
}

fn copybreak(calibration: &Calibration, look: Look, of: impl Fn(&Point) -> Jobs) -> Copybreak {
    let points = calibration.points.iter();
    let jobs: Vec<(usize, Jobs)> = points.map(|p| (p.bytes, of(p))).collect();
    choose::copybreak(&jobs, look, calibration.wake_ns)
}

struct Bench {
    source: Buffer,
    target: Buffer,
    /// The target of the small fills that keep a helper awake.
    nudged: Buffer,
    cpu: Channel,
    cpu_nt: Channel,
    /// `None` if a helper would only take turns with its owner on one processor.
    engine: Option<Channel>,
    deadline: Instant,
    turn_ns: f64,
}

/// The engine that copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copier {
    Cpu,
    CpuNt,
    Engine,
}

/// Time is up.
struct OutOfTime;

impl Bench {
    fn new(deadline: Instant) -> std::io::Result<Bench> {
        let (mut source, mut target) = (Buffer::new(LEN_MAX)?, Buffer::new(LEN_MAX)?);
        source.fill(1);
        target.fill(2);
        let helped = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        let engine = match helped {
            true => Worker::start(WorkerOptions::default()).ok(),
            false => None,
        };
        Ok(Bench {
            source,
            target,
            nudged: Buffer::new(LINE_BYTES)?,
            cpu: Channel::new(Cpu::new(), 4),
            cpu_nt: Channel::new(CpuNt::new(), 4),
            engine: engine.map(|worker| Channel::new(worker, 16)),
            deadline,
            turn_ns: turn_ns(),
        })
    }

    fn measure(mut self, calibration: &mut Calibration) {
        let look = self.look(calibration);
        calibration.streams = self.streams();
        nontemporal::set_streams(calibration.streams);
        for bytes in LENS {
            let mut point = Point {
                bytes,
                ..Point::default()
            };
            let measured = self.curves(&mut point).and_then(|()| self.jobs(&mut point));
            if measured.is_err() {
                break;
            }
            calibration.points.push(point);
        }
        calibration.points.sort_unstable_by_key(|point| point.bytes);
        calibration.nontemporal_from = nontemporal_from(&calibration.points);
        if self.engine.is_some() && calibration.points.len() >= LENS_MIN {
            calibration.wake_ns = self.wake_ns();
            calibration.copybreak_in = copybreak(calibration, look, |p| p.inward);
            calibration.copybreak_out = copybreak(calibration, look, |p| p.outward);
        }
    }

    /// Times loads from the nearest cache, from an outer cache and from memory, and sets the limit
    /// between the last two: an ordinary copy is still better for memory in an outer cache.
    fn look(&mut self, calibration: &mut Calibration) -> Look {
        let others = others();
        let mut ticks = [Vec::new(), Vec::new(), Vec::new()];
        let mut took = [Vec::new(), Vec::new(), Vec::new()];
        for look in 0..LOOKS {
            for (at, is_hot) in [(HOT, true), (OUTER, true), (COLD, false)] {
                if at == OUTER && look >= LOOKS_AT_OUTER {
                    continue;
                }
                self.prepare(LOOK_BYTES, is_hot);
                if let (OUTER, Ok(others)) = (at, &others) {
                    read(others);
                }
                let begin = Instant::now();
                // SAFETY: the buffer is longer than that.
                ticks[at].push(unsafe { touch_ticks(self.source.as_ptr(), LOOK_BYTES) });
                took[at].push(begin.elapsed());
            }
        }
        // Other activity makes memory look slower, never faster.
        let [hot, outer, cold] = ticks.map(|mut ticks| {
            ticks.sort_unstable();
            let quarter = ticks[ticks.len() / 4];
            (ticks[0] as f64, quarter as f64)
        });
        let between = (outer.1 * cold.0).sqrt().min(COLD_PART * cold.0);
        calibration.cold_ticks = between.max(2.0 * hot.1) as u32;
        let [hot_ns, _, cold_ns] = took.map(middle);
        Look { hot_ns, cold_ns }
    }

    /// Whether cold memory is copied faster in one stream or in four.
    fn streams(&mut self) -> u32 {
        let mut took = [Vec::new(), Vec::new()];
        for _ in 0..STREAM_ROUNDS {
            for (streams, took) in [4, 1].into_iter().zip(&mut took) {
                nontemporal::set_streams(streams);
                self.prepare(STREAM_BYTES, false);
                took.push(self.bare(Copier::CpuNt, STREAM_BYTES));
            }
        }
        let [four, one] = took.map(middle);
        if one < four { 1 } else { 4 }
    }

    /// Measures the time of a copy by itself.
    fn curves(&mut self, point: &mut Point) -> Result<(), OutOfTime> {
        let bytes = point.bytes;
        let [hot, cold, nt_hot, nt_cold, engine_hot, engine_cold] = self.medians(
            bytes,
            [
                (Copier::Cpu, true),
                (Copier::Cpu, false),
                (Copier::CpuNt, true),
                (Copier::CpuNt, false),
                (Copier::Engine, true),
                (Copier::Engine, false),
            ],
            |bench, (hand, is_hot)| {
                bench.prepare(bytes, is_hot);
                match hand {
                    Copier::Engine => bench.job(hand, bytes, Flags::NONE, 0),
                    _ if is_hot => bench.bare_repeatedly(hand, bytes),
                    _ => bench.bare(hand, bytes),
                }
            },
        )?;
        *point = Point {
            hot_ns: hot,
            cold_ns: cold,
            nt_hot_ns: nt_hot,
            nt_cold_ns: nt_cold,
            engine_hot_ns: engine_hot,
            engine_cold_ns: engine_cold,
            ..*point
        };
        Ok(())
    }

    /// Measures the time of a copy together with as much other work as a cold `memcpy`.
    fn jobs(&mut self, point: &mut Point) -> Result<(), OutOfTime> {
        let bytes = point.bytes;
        let turns = (point.cold_ns / self.turn_ns) as u64;
        let cold_hand = match point.nt_cold_ns < point.cold_ns && bytes >= NT_BYTES_MIN {
            true => Copier::CpuNt,
            false => Copier::Cpu,
        };
        let mut jobs = |flags, cold_hand| {
            let [hand_hot_ns, hand_cold_ns, engine_hot_ns, engine_cold_ns] = self.medians(
                bytes,
                [
                    (Copier::Cpu, true),
                    (cold_hand, false),
                    (Copier::Engine, true),
                    (Copier::Engine, false),
                ],
                |bench, (hand, is_hot)| {
                    bench.prepare(bytes, is_hot);
                    bench.job(hand, bytes, flags, turns)
                },
            )?;
            Ok(Jobs {
                hand_hot_ns,
                hand_cold_ns,
                engine_hot_ns,
                engine_cold_ns,
            })
        };
        point.outward = jobs(Flags::NONE, cold_hand)?;
        point.inward = jobs(Flags::CACHE, Copier::Cpu)?;
        Ok(())
    }

    /// The median time of each way. Every way is sampled once a round, so that a disturbance
    /// affects all ways.
    fn medians<W: Copy, const N: usize>(
        &mut self,
        bytes: usize,
        ways: [W; N],
        mut sample: impl FnMut(&mut Bench, W) -> Duration,
    ) -> Result<[f64; N], OutOfTime> {
        let mut samples = ways.map(|_| Vec::new());
        for _ in 0..rounds(bytes) {
            for (&way, samples) in ways.iter().zip(&mut samples) {
                if Instant::now() > self.deadline {
                    return Err(OutOfTime);
                }
                samples.push(sample(self, way));
            }
        }
        Ok(samples.map(middle))
    }

    /// Brings both sides into this processor's cache, or out of every cache. Where the processor
    /// does not let a program do that, the cold columns equal the hot ones, and no choice is based
    /// on a difference.
    fn prepare(&mut self, bytes: usize, is_hot: bool) {
        let (source, target) = (self.source.as_ptr(), self.target.as_mut_ptr());
        // SAFETY: no length is more than the buffers hold.
        unsafe {
            if is_hot {
                from_shared(source, target, bytes);
            } else {
                residency::evict(source, bytes);
                residency::evict(target, bytes);
            }
        }
    }

    fn bare(&mut self, hand: Copier, bytes: usize) -> Duration {
        let begin = Instant::now();
        self.bare_untimed(hand, bytes);
        begin.elapsed()
    }

    /// Times several repetitions, for a copy that is too short for the clock.
    fn bare_repeatedly(&mut self, hand: Copier, bytes: usize) -> Duration {
        let repeats = (16384 / bytes).clamp(1, 16) as u32;
        let begin = Instant::now();
        for _ in 0..repeats {
            self.bare_untimed(hand, bytes);
        }
        begin.elapsed() / repeats
    }

    fn bare_untimed(&mut self, hand: Copier, bytes: usize) {
        let (source, target) = (self.source.as_ptr(), self.target.as_mut_ptr());
        // SAFETY: no length is more than the buffers hold.
        unsafe {
            match hand {
                Copier::CpuNt => copy_nontemporal(source, target, bytes),
                _ => from_shared(source, target, bytes),
            }
        }
    }

    /// A copy through a channel, work meanwhile, and, where the target is to be in the cache, a
    /// pass over it.
    fn job(&mut self, hand: Copier, bytes: usize, flags: Flags, turns: u64) -> Duration {
        let operation =
            Operation::copy(self.source.as_ptr(), self.target.as_mut_ptr(), bytes).with(flags);
        let nudge = Operation::fill(self.nudged.as_mut_ptr(), LINE_BYTES, 0);
        let channel = match hand {
            Copier::Cpu => &mut self.cpu,
            Copier::CpuNt => &mut self.cpu_nt,
            Copier::Engine => match &mut self.engine {
                Some(channel) => channel,
                None => return Duration::ZERO,
            },
        };
        if hand == Copier::Engine {
            finish(channel, nudge, 0);
        }
        let begin = Instant::now();
        finish(channel, operation, turns);
        if flags.contains(Flags::CACHE) {
            read(&self.target[..bytes]);
        }
        begin.elapsed()
    }

    /// The doorbell's cost for its caller when the engine has gone to sleep.
    fn wake_ns(&mut self) -> f64 {
        let operation = Operation::fill(self.nudged.as_mut_ptr(), LINE_BYTES, 0);
        let Some(channel) = &mut self.engine else {
            return 0.0;
        };
        let sample = || {
            std::thread::sleep(WORKER_SLEEPS_AFTER);
            // SAFETY: the buffer outlives the wait.
            let cookie = unsafe { channel.submit(operation) }.expect("the channel is empty");
            let begin = Instant::now();
            channel.flush();
            let woken = begin.elapsed();
            let waited = channel.wait(cookie, Waiting::PARK);
            debug_assert!(waited.is_ok(), "there was no deadline");
            woken
        };
        middle(std::iter::repeat_with(sample).take(3).collect())
    }
}

/// A buffer that is large enough to evict everything else from a processor's own caches. Its pages
/// must be present: pages that were never written all share one zero page.
fn others() -> std::io::Result<Buffer> {
    let mut others = Buffer::new(OTHERS_BYTES)?;
    // Populates all pages at once if the kernel can (Linux 5.14), which is faster; otherwise the
    // writes below do it. SAFETY: the range is the buffer's own mapping; its pages become present
    // and stay zero.
    unsafe {
        libc::madvise(
            others.as_mut_ptr().cast(),
            OTHERS_BYTES,
            libc::MADV_POPULATE_WRITE,
        )
    };
    others
        .iter_mut()
        .step_by(PAGE_BYTES)
        .for_each(|byte| *byte = 1);
    Ok(others)
}

/// Submits, works, waits.
fn finish(channel: &mut Channel, operation: Operation, turns: u64) {
    // SAFETY: within the bench's buffers, which outlive the wait below.
    let cookie = unsafe { channel.submit(operation) }.expect("the channel is empty");
    channel.flush();
    work(turns);
    let waited = channel.wait(cookie, Waiting::SPIN);
    debug_assert!(waited.is_ok(), "there was no deadline");
}

/// Work that touches no memory.
#[inline(never)]
fn work(turns: u64) {
    let mut value = black_box(1u64);
    for _ in 0..turns {
        value = value
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
    }
    black_box(value);
}

fn turn_ns() -> f64 {
    let sample = || {
        let begin = Instant::now();
        work(PROBE_TURNS);
        begin.elapsed()
    };
    let whole = middle(std::iter::repeat_with(sample).take(5).collect());
    (whole / PROBE_TURNS as f64).max(0.01)
}

/// Reads one word of every cache line.
fn read(bytes: &[u8]) {
    let sum = bytes
        .iter()
        .step_by(LINE_BYTES)
        .fold(0u64, |sum, &byte| sum + u64::from(byte));
    black_box(sum);
}

/// The number of rounds: odd, for the median, and lower for long copies.
fn rounds(bytes: usize) -> usize {
    if bytes < 32 << 10 { 9 } else { 5 }
}

fn middle(mut samples: Vec<Duration>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() / 2].as_nanos() as f64
}

const LOOKS: usize = 12;

/// The highest limit, as a part of the time that cold memory takes. It applies if an outer cache
/// looks like memory.
const COLD_PART: f64 = 0.66;

/// The number of looks at the outer cache; each look empties a cache first.
const LOOKS_AT_OUTER: usize = 5;

/// The place of the memory at a look.
const HOT: usize = 0;
const OUTER: usize = 1;
const COLD: usize = 2;

/// More than a processor's own caches hold.
const OTHERS_BYTES: usize = 4 << 20;

/// Memory for the timed loads: more than a page, so that each touch needs its own translation.
const LOOK_BYTES: usize = 128 << 10;

const STREAM_BYTES: usize = 256 << 10;

const STREAM_ROUNDS: usize = 7;

const PROBE_TURNS: u64 = 5_000;

/// Longer than a worker spins.
const WORKER_SLEEPS_AFTER: Duration = Duration::from_micros(300);

const LINE_BYTES: usize = 64;

const PAGE_BYTES: usize = 4096;
