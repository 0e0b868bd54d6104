//! Measuring the curves: short, interleaved, medians.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{Calibration, Copybreak, Point};
use crate::heat::{self, PROBE_BYTES, ticks};
use crate::{Buffer, Channel, Operation, Waiting, Worker, WorkerOptions, copy_nontemporal};

/// The lengths that are measured. Doubling twice finds a crossover well enough for a choice that costs little
/// near it.
const LENS: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Repetitions of each measurement; odd, for the median.
const ROUNDS: usize = 7;

/// Repetitions where each takes long.
const ROUNDS_OF_LONG: usize = 3;

/// Measuring stops adding lengths when this much time has passed: a machine that is busy with other things
/// starts no later. It then has no processor to spare for a helper either, and nothing can be said of longer copies.
const BUDGET: Duration = Duration::from_millis(30);

pub(super) fn measure(fingerprint: u64) -> Calibration {
    let begin = Instant::now();
    let mut calibration = Calibration {
        fingerprint,
        points: Vec::new(),
        wake_ns: 0.0,
        cold_ticks: u32::MAX,
        copybreak_in: Copybreak::NEVER,
        copybreak_out: Copybreak::NEVER,
        took: Duration::ZERO,
        overridden: None,
    };
    let largest = LENS[LENS.len() - 1];
    let (Ok(mut source), Ok(mut target)) = (Buffer::new(largest), Buffer::new(largest)) else {
        return calibration;
    };
    source.fill(1);
    target.fill(2);
    let mut bench = Bench {
        source: source.as_ptr(),
        target: target.as_mut_ptr(),
    };
    calibration.cold_ticks = bench.cold_ticks();

    // With one processor a helper only takes turns with its owner.
    let helped = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    let mut channel = if helped {
        Worker::start(WorkerOptions::default()).ok()
    } else {
        None
    }
    .map(|worker| Channel::new(worker, 16));
    for bytes in LENS {
        if begin.elapsed() > BUDGET {
            break;
        }
        let mut point = bench.by_hand(bytes);
        if let Some(channel) = &mut channel {
            bench.by_engine(channel, &mut point);
        }
        calibration.points.push(point);
    }
    if let Some(channel) = &mut channel
        && is_whole(&calibration.points)
    {
        calibration.wake_ns = bench.wake_ns(channel);
        // Memory that is in our cache is never given to the engine (see `Auto`), so cold curves compete, and the
        // engine is asked only after a first page by hand.
        let page_ns = calibration
            .points
            .iter()
            .find(|p| p.bytes == PROBE_BYTES)
            .map_or(0.0, |p| p.cold_ns);
        calibration.copybreak_in = choose(&calibration, |p| {
            (
                p.cold_ns + p.read_ns,
                page_ns + p.engine_caller_ns + p.engine_read_ns,
            )
        });
        calibration.copybreak_out = choose(&calibration, |p| {
            (p.cold_ns.min(p.nt_cold_ns), page_ns + p.engine_caller_ns)
        });
    }
    drop(channel);
    calibration.took = begin.elapsed();
    calibration
}

pub(super) fn is_whole(points: &[Point]) -> bool {
    points.len() == LENS.len()
}

/// The smallest measured length from which on the engine always wins by a margin, asleep and awake.
fn choose(calibration: &Calibration, costs: impl Fn(&Point) -> (f64, f64)) -> Copybreak {
    let from = |extra_ns: f64| {
        let losses = calibration.points.iter().rev().take_while(|point| {
            let (by_hand, by_engine) = costs(point);
            by_engine + extra_ns < by_hand * MARGIN
        });
        losses.last().map_or(usize::MAX, |point| point.bytes)
    };
    Copybreak {
        awake: from(0.0),
        asleep: from(calibration.wake_ns).max(from(0.0)),
    }
}

/// An engine has to win clearly: near the crossover nothing is gained, and a helper's time is not free.
const MARGIN: f64 = 0.9;

struct Bench {
    source: *const u8,
    target: *mut u8,
}

impl Bench {
    fn by_hand(&mut self, bytes: usize) -> Point {
        let Bench { source, target } = *self;
        // SAFETY: both buffers hold the largest length, and are ours.
        let memcpy = || unsafe { crate::from_shared(source, target, bytes) };
        // SAFETY: as above.
        let nontemporal = || unsafe { copy_nontemporal(source, target, bytes) };
        let rounds = if bytes > 64 << 10 {
            ROUNDS_OF_LONG
        } else {
            ROUNDS
        };
        let hot = |copy: &dyn Fn()| {
            let repeats = (16384 / bytes).clamp(1, 16) as u32;
            median(rounds, || {
                copy();
                let begin = Instant::now();
                for _ in 0..repeats {
                    copy();
                }
                begin.elapsed() / repeats
            })
        };
        let cold = |copy: &dyn Fn()| {
            median(rounds, || {
                evict(source, bytes);
                evict(target, bytes);
                let begin = Instant::now();
                copy();
                begin.elapsed()
            })
        };
        Point {
            bytes,
            hot_ns: hot(&memcpy),
            nt_hot_ns: hot(&nontemporal),
            cold_ns: cold(&memcpy),
            nt_cold_ns: cold(&nontemporal),
            read_ns: median(rounds, || {
                memcpy();
                let begin = Instant::now();
                read(target, bytes);
                begin.elapsed()
            }),
            ..Point::default()
        }
    }

    fn by_engine(&mut self, channel: &mut Channel, point: &mut Point) {
        let operation = Operation::copy(self.source, self.target, point.bytes);
        let mut totals = Vec::new();
        let mut callers = Vec::new();
        let mut reads = Vec::new();
        for round in 0..=ROUNDS {
            let begin = Instant::now();
            // SAFETY: the buffers outlive the channel's use of them, which ends before this round does.
            let cookie = unsafe { channel.submit(operation) }.expect("the channel is empty");
            channel.flush();
            let submitted = begin.elapsed();
            let waited = channel.wait(cookie, Waiting::SPIN);
            debug_assert!(waited.is_ok(), "there was no deadline");
            let total = begin.elapsed();
            let looked = Instant::now();
            channel.poll();
            let looking = looked.elapsed();
            let reading = Instant::now();
            read(self.target, point.bytes);
            // The first round wakes the worker.
            if round > 0 {
                totals.push(total);
                callers.push(submitted + looking);
                reads.push(reading.elapsed());
            }
        }
        point.engine_ns = middle(totals);
        point.engine_caller_ns = middle(callers);
        point.engine_read_ns = middle(reads);
    }

    /// What the doorbell costs when the worker has gone to sleep.
    fn wake_ns(&mut self, channel: &mut Channel) -> f64 {
        let operation = Operation::copy(self.source, self.target, 64);
        let mut samples = Vec::new();
        for _ in 0..3 {
            std::thread::sleep(ASLEEP_AFTER);
            // SAFETY: as above.
            let cookie = unsafe { channel.submit(operation) }.expect("the channel is empty");
            let begin = Instant::now();
            channel.flush();
            samples.push(begin.elapsed());
            let waited = channel.wait(cookie, Waiting::PARK);
            debug_assert!(waited.is_ok(), "there was no deadline");
        }
        middle(samples)
    }

    /// Between a page in any cache and one in none: some way below what three quarters of cold pages take, but not half
    /// of it, because an outer cache is not much faster and still better copied the ordinary way.
    fn cold_ticks(&mut self) -> u32 {
        let Bench { source, target } = *self;
        let page = |is_cold: bool| {
            let mut samples: Vec<u64> = (0..2 * ROUNDS)
                .map(|_| {
                    if is_cold {
                        // More than the page, so that it is long gone when the last line goes.
                        evict(source, EVICTED_BYTES);
                        evict(target, EVICTED_BYTES);
                    }
                    let begin = ticks();
                    // SAFETY: both buffers hold a page.
                    unsafe { crate::from_shared(source, target, PROBE_BYTES) };
                    let took = ticks().wrapping_sub(begin);
                    // As in a long copy, whose first page it is meant to be.
                    // SAFETY: both buffers hold more than that.
                    unsafe { crate::from_shared(source, target, EVICTED_BYTES) };
                    took
                })
                .collect();
            samples.sort_unstable();
            samples[samples.len() / 4] as f64
        };
        (0.72 * page(true)).max(2.0 * page(false)) as u32
    }
}

const EVICTED_BYTES: usize = 128 << 10;

/// Longer than a worker spins.
const ASLEEP_AFTER: Duration = Duration::from_millis(1);

fn median(rounds: usize, mut sample: impl FnMut() -> Duration) -> f64 {
    middle((0..rounds).map(|_| sample()).collect())
}

fn middle(mut samples: Vec<Duration>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() / 2].as_nanos() as f64
}

/// Reads one word of every cache line.
fn read(at: *const u8, bytes: usize) {
    let mut sum = 0u64;
    for line in (0..bytes.saturating_sub(7)).step_by(LINE_BYTES) {
        // SAFETY: `line + 8 <= bytes`, within the buffer.
        sum = sum.wrapping_add(unsafe { at.add(line).cast::<u64>().read_unaligned() });
    }
    black_box(sum);
}

/// Where the processor does not let a program empty its cache the cold columns equal the hot ones, and no
/// choice is based on a difference.
fn evict(at: *const u8, bytes: usize) {
    // SAFETY: within the buffers.
    unsafe { heat::evict(at, bytes) };
}

const LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn with(points: &[(usize, f64, f64)], wake_ns: f64) -> Calibration {
        let point = |&(bytes, hot_ns, engine_caller_ns): &(usize, f64, f64)| Point {
            bytes,
            hot_ns,
            engine_caller_ns,
            ..Point::default()
        };
        Calibration {
            fingerprint: 0,
            points: points.iter().map(point).collect(),
            wake_ns,
            cold_ticks: 0,
            copybreak_in: Copybreak::NEVER,
            copybreak_out: Copybreak::NEVER,
            took: Duration::ZERO,
            overridden: None,
        }
    }

    #[test]
    fn the_copybreak_is_where_the_engine_begins_to_win_for_good() {
        let costs = |p: &Point| (p.hot_ns, p.engine_caller_ns);
        let points = [
            (1, 10.0, 5.0),
            (2, 20.0, 50.0),
            (3, 100.0, 50.0),
            (4, 1000.0, 50.0),
        ];
        let measured = with(&points, 200.0);
        assert_eq!(
            choose(&measured, costs),
            Copybreak {
                awake: 3,
                asleep: 4
            }
        );
        assert_eq!(choose(&with(&points, 1e6), costs).asleep, usize::MAX);
        assert_eq!(choose(&with(&points[..2], 0.0), costs), Copybreak::NEVER);
        assert_eq!(choose(&with(&[], 0.0), costs), Copybreak::NEVER);
    }
}
