//! Taking one sample of each kind.

use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use toehold_copy::{
    Buffer, Channel, Flags, NT_BYTES_MIN, Operation, Waiting, copy_nontemporal, evict, from_shared,
};
use toehold_measure::stats::median;

use super::engines::Engine;
use crate::plan::Reading;

/// Memory and engines, opened on first use and kept: cold starts are not measured.
pub(super) struct Bench {
    source: Buffer,
    target: Buffer,
    /// The memory that the caller wants to keep in its cache.
    working_set: Buffer,
    channels: Vec<(Engine, Channel)>,
    /// The target of the small fill that wakes a helper.
    nudged: Buffer,
    /// For each length, the amount of work that takes as long as a copy.
    turns: Vec<(usize, u64)>,
    /// Number of contests so far.
    contests: usize,
}

/// The submitter's behaviour until its copy is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contest {
    /// The caller waits, and announces that.
    Waiting,
    /// The caller works for as long as a cold `memcpy` of the length takes.
    Job,
}

impl Bench {
    pub(super) fn new() -> Result<Bench, String> {
        // The direct calls, too, copy as this machine likes it.
        let _ = toehold_copy::Calibration::of_this_machine();
        let buffer = |len| {
            let mut buffer = Buffer::new(len)
                .map_err(|error| format!("no memory for the experiment: {error}"))?;
            buffer.fill(1);
            Ok::<Buffer, String>(buffer)
        };
        Ok(Bench {
            source: buffer(LEN_MAX + 64)?,
            target: buffer(LEN_MAX + 64)?,
            working_set: buffer(WORKING_SET_BYTES)?,
            channels: Vec::new(),
            nudged: buffer(NUDGE_BYTES)?,
            turns: Vec::new(),
            contests: 0,
        })
    }

    /// Figure 6: one length, one engine, one temperature.
    pub(super) fn copy(
        &mut self,
        engine: Engine,
        is_hot: bool,
        len: usize,
    ) -> Result<Vec<Reading>, String> {
        let operation = self.operation(len, 0);
        let repeats = repeats(len);
        if Engine::SYNCHRONOUS.contains(&engine) {
            let total = sample(repeats, || {
                prepare(&operation, is_hot);
                time(inner_repeats(len, is_hot), || by_hand(engine, &operation))
            });
            return Ok(vec![Reading::new("total", "us", total * 1e6)]);
        }
        let nudged = self.nudged.as_mut_ptr();
        let channel = self.channel(engine)?;
        awaken(channel, &operation);
        let mut startups = Vec::<f64>::new();
        let total = sample(repeats, || {
            prepare(&operation, is_hot);
            nudge(channel, nudged);
            let begin = Instant::now();
            let submitted = submit(channel, &operation);
            startups.push(begin.elapsed().as_secs_f64());
            finish(channel, submitted);
            begin.elapsed().as_secs_f64()
        });
        let overlap = overlap(channel, &operation, is_hot, nudged, total, repeats);
        let clock = clock_seconds();
        let mut readings = vec![
            Reading::new("total", "us", total * 1e6),
            Reading::new("start-up", "ns", (median(&startups) - clock).max(0.0) * 1e9),
            Reading::new("overlap", "%", overlap * 100.0),
        ];
        let before = channel.helper_cpu_ns();
        for _ in 0..repeats {
            prepare(&operation, is_hot);
            nudge(channel, nudged);
            let submitted = submit(channel, &operation);
            finish(channel, submitted);
        }
        if let (Some(before), Some(after)) = (before, channel.helper_cpu_ns()) {
            let each_us = after.saturating_sub(before) as f64 / 1e3 / repeats as f64;
            readings.push(Reading::new("helper", "us", each_us));
        }
        Ok(readings)
    }

    /// One copy by every contender, through a channel, on one piece of memory, within a short time:
    /// each contender in turn, twice. The first contender changes from sample to sample.
    pub(super) fn contest(
        &mut self,
        contest: Contest,
        is_hot: bool,
        len: usize,
    ) -> Result<Vec<Reading>, String> {
        let operation = self.operation(len, 0);
        let (operation, turns) = match contest {
            Contest::Waiting => (operation.with(Flags::URGENT), 0),
            Contest::Job => (operation, self.turns_of(&operation)),
        };
        let nudged = self.nudged.as_mut_ptr();
        let (set, set_len) = (self.working_set.as_ptr(), STIRRED_BYTES);
        let repeats = repeats(len).min(32) / 2;
        let calls = inner_repeats(len, is_hot);
        let clock = clock_seconds();
        let mut samples = Engine::IN_CONTESTS.map(|_| Vec::<f64>::new());
        self.contests += 1;
        for turn in 0..2 * samples.len() {
            let at = (turn + self.contests) % samples.len();
            let engine = Engine::IN_CONTESTS[at];
            // A caller that waits for every copy finds the helper asleep, unless it wakes the
            // helper.
            let is_nudged = contest == Contest::Job || engine == Engine::Worker;
            // A helper that still spins would occupy the processor of the next contender's helper.
            std::thread::sleep(ASLEEP_AFTER);
            let channel = self.channel(engine)?;
            awaken(channel, &operation);
            for _ in 0..repeats {
                prepare(&operation, is_hot);
                if !is_hot {
                    stir(set, set_len);
                }
                if is_nudged {
                    nudge(channel, nudged);
                }
                let mut seconds = 0.0;
                for _ in 0..calls {
                    // Again: little is pushed out by little, and who had the memory last has it in
                    // its own cache.
                    if is_hot && len <= NEAR_BYTES {
                        prepare(&operation, true);
                    }
                    seconds += time(1, || {
                        let submitted = submit(channel, &operation);
                        work(turns);
                        finish(channel, submitted);
                    });
                }
                samples[at].push((seconds / f64::from(calls) - clock).max(0.0));
            }
        }
        let readings = Engine::IN_CONTESTS.iter().zip(samples);
        Ok(readings
            .map(|(engine, samples)| Reading::new(engine.name(), "us", median(&samples) * 1e6))
            .collect())
    }

    /// Turns of work that take as long as a cold `memcpy` of this length. They are measured once,
    /// so that every engine gets an equal amount.
    fn turns_of(&mut self, operation: &Operation) -> u64 {
        let len = operation.len();
        if let Some(&(_, turns)) = self.turns.iter().find(|(known, _)| *known == len) {
            return turns;
        }
        let seconds = sample(15, || {
            prepare(operation, false);
            time(1, || by_hand(Engine::Cpu, operation))
        });
        let turns = turns_that_take(seconds);
        self.turns.push((len, turns));
        turns
    }

    /// 64 KB in the cache, to an unaligned address.
    pub(super) fn alignment(
        &mut self,
        engine: Engine,
        offset: usize,
    ) -> Result<Vec<Reading>, String> {
        let operation = self.operation(ALIGNMENT_BYTES, offset);
        let total = self.total(engine, 32, || {
            prepare(&operation, true);
            operation
        })?;
        Ok(vec![Reading::new("total", "us", total * 1e6)])
    }

    /// To memory that was never touched, or to memory that was touched before.
    pub(super) fn page_fault(
        &mut self,
        engine: Engine,
        is_fresh: bool,
        len: usize,
    ) -> Result<Vec<Reading>, String> {
        let source = self.source.as_ptr();
        let mut fresh: Option<Buffer> = None;
        let total = self.total(engine, repeats(len).min(8), || {
            if is_fresh || fresh.is_none() {
                let mut target = Buffer::new(len).expect("memory for the experiment");
                if !is_fresh {
                    target.fill(1);
                }
                fresh = Some(target);
            }
            let target = fresh.as_mut().expect("made above").as_mut_ptr();
            Operation::copy(source, target, len)
        })?;
        Ok(vec![Reading::new("total", "us", total * 1e6)])
    }

    /// Many copies, one doorbell.
    pub(super) fn batch(&mut self, copies: usize) -> Result<Vec<Reading>, String> {
        let (source, target) = (self.source.as_ptr(), self.target.as_mut_ptr());
        let whole = self.operation(4096, 0);
        let channel = self.channel(Engine::Worker)?;
        awaken(channel, &whole);
        let mut callers = Vec::<f64>::new();
        let total = sample(16, || {
            let begin = Instant::now();
            let mut last = None;
            for at in 0..copies {
                let (from, to) = (
                    source.wrapping_add(at * 4096),
                    target.wrapping_add(at * 4096),
                );
                // SAFETY: 64 copies of 4 KB are within the buffers, which outlive the wait below.
                last = unsafe { channel.submit(Operation::copy(from, to, 4096)) }.ok();
            }
            channel.flush();
            callers.push(begin.elapsed().as_secs_f64());
            let waited = channel.wait_through(last.expect("the channel was empty"), Waiting::SPIN);
            waited.expect("there was no deadline");
            begin.elapsed().as_secs_f64()
        });
        Ok(vec![
            Reading::new(
                "caller per copy",
                "ns",
                median(&callers) * 1e9 / copies as f64,
            ),
            Reading::new("total per copy", "ns", total * 1e9 / copies as f64),
        ])
    }

    /// A doorbell that has to wake the helper.
    pub(super) fn asleep(&mut self, len: usize) -> Result<Vec<Reading>, String> {
        let operation = self.operation(len, 0);
        let channel = self.channel(Engine::Worker)?;
        let mut startups = Vec::<f64>::new();
        let total = sample(5, || {
            std::thread::sleep(ASLEEP_AFTER);
            let begin = Instant::now();
            let submitted = submit(channel, &operation);
            startups.push(begin.elapsed().as_secs_f64());
            finish(channel, submitted);
            begin.elapsed().as_secs_f64()
        });
        Ok(vec![
            Reading::new("start-up", "us", median(&startups) * 1e6),
            Reading::new("total", "us", total * 1e6),
        ])
    }

    /// The time of a pass over the working set after a copy of cold memory.
    pub(super) fn pollution(
        &mut self,
        engine: Option<Engine>,
        len: usize,
    ) -> Result<Vec<Reading>, String> {
        let operation = self.operation(len, 0);
        let (set, set_len) = (self.working_set.as_ptr(), self.working_set.len());
        if let Some(engine) = engine.filter(|engine| !Engine::SYNCHRONOUS.contains(engine)) {
            self.channel(engine)?;
        }
        let nudged = self.nudged.as_mut_ptr();
        let mut passes = Vec::<f64>::new();
        for _ in 0..5 {
            prepare(&operation, false);
            read(set, set_len);
            read(set, set_len);
            match engine {
                None => {}
                Some(engine) if Engine::SYNCHRONOUS.contains(&engine) => {
                    by_hand(engine, &operation)
                }
                Some(engine) => {
                    let channel = self.channel(engine)?;
                    nudge(channel, nudged);
                    let submitted = submit(channel, &operation);
                    finish(channel, submitted);
                }
            }
            passes.push(time(1, || read(set, set_len)));
        }
        Ok(vec![Reading::new("pass", "us", median(&passes) * 1e6)])
    }

    /// The median time of a copy that `make` prepares, untimed.
    fn total(
        &mut self,
        engine: Engine,
        repeats: usize,
        mut make: impl FnMut() -> Operation,
    ) -> Result<f64, String> {
        if Engine::SYNCHRONOUS.contains(&engine) {
            return Ok(sample(repeats, || {
                let operation = make();
                time(1, || by_hand(engine, &operation))
            }));
        }
        let channel = self.channel(engine)?;
        awaken(channel, &make());
        Ok(sample(repeats, || {
            let operation = make();
            time(1, || {
                let submitted = submit(channel, &operation);
                finish(channel, submitted);
            })
        }))
    }

    fn operation(&mut self, len: usize, offset: usize) -> Operation {
        assert!(len <= LEN_MAX && offset <= 64);
        Operation::copy(
            self.source.as_ptr(),
            self.target.as_mut_ptr().wrapping_add(offset),
            len,
        )
    }

    fn channel(&mut self, engine: Engine) -> Result<&mut Channel, String> {
        let at = match self.channels.iter().position(|(known, _)| *known == engine) {
            Some(at) => at,
            None => {
                self.channels.push((engine, engine.open()?));
                self.channels.len() - 1
            }
        };
        Ok(&mut self.channels[at].1)
    }
}

/// The part of the copy's time that is left for other work: the time saved by doing both together
/// instead of one after the other.
fn overlap(
    channel: &mut Channel,
    operation: &Operation,
    is_hot: bool,
    nudged: *mut u8,
    total: f64,
    repeats: usize,
) -> f64 {
    let turns = turns_that_take(total);
    let alone = sample(repeats, || time(1, || work(turns)));
    let both = sample(repeats, || {
        prepare(operation, is_hot);
        nudge(channel, nudged);
        time(1, || {
            let submitted = submit(channel, operation);
            work(turns);
            finish(channel, submitted);
        })
    });
    ((total + alone - both) / total).clamp(0.0, 1.0)
}

fn by_hand(engine: Engine, operation: &Operation) {
    let (source, target, len) = (operation.source(), operation.target(), operation.len());
    // SAFETY: within the bench's buffers, which do not overlap and which nobody else uses now.
    unsafe {
        match engine {
            Engine::Cpu => from_shared(source, target, len),
            Engine::CpuNt if len >= NT_BYTES_MIN => copy_nontemporal(source, target, len),
            Engine::CpuNt => from_shared(source, target, len),
            _ => unreachable!("{} is asked through its channel", engine.name()),
        }
    }
}

fn submit(channel: &mut Channel, operation: &Operation) -> toehold_copy::Cookie {
    // SAFETY: within the bench's buffers; every caller waits with `finish` before it uses them
    // again.
    let cookie = unsafe { channel.submit(*operation) };
    channel.flush();
    cookie.expect("the channel is empty")
}

fn finish(channel: &mut Channel, cookie: toehold_copy::Cookie) {
    let waited = channel.wait(cookie, Waiting::SPIN);
    assert!(
        waited.is_ok_and(|status| status.is_over()),
        "there was no deadline"
    );
}

/// Starts engine and caller.
fn awaken(channel: &mut Channel, operation: &Operation) {
    let begin = Instant::now();
    for _ in 0..AWAKEN_COPIES {
        let submitted = submit(channel, operation);
        finish(channel, submitted);
        if begin.elapsed() > AWAKEN_MAX {
            break;
        }
    }
}

/// Wakes a helper that went to sleep while the memory was prepared, with work that does not touch
/// this processor's cache and is long enough to wake the helper. The group `asleep` shows the cost
/// of waking. Without a helper the work would be done here, and would evict the prepared memory.
fn nudge(channel: &mut Channel, nudged: *mut u8) {
    if channel.helper_cpu_ns() == Some(0) {
        return;
    }
    let submitted = submit(channel, &Operation::fill(nudged, NUDGE_BYTES, 0));
    finish(channel, submitted);
}

/// Brings both ranges into the cache, or out of it.
fn prepare(operation: &Operation, is_hot: bool) {
    let (source, target, len) = (operation.source(), operation.target(), operation.len());
    if is_hot {
        // SAFETY: within the bench's buffers; nobody else uses them now.
        unsafe { from_shared(source, target, len) };
        // Stores that still wait for their lines would delay the stores that are timed next.
        fence(Ordering::SeqCst);
        return;
    }
    // SAFETY: within the bench's buffers.
    unsafe {
        evict(source, len);
        evict(target, len);
    }
}

/// Reads other cold memory, so that the memory system is equally busy for every contender: work has
/// just woken the helper of some. A memory system that was idle for some microseconds answers the
/// next few kilobytes a third slower.
fn stir(at: *const u8, len: usize) {
    // SAFETY: within the bench's working set.
    unsafe { evict(at, len) };
    read(at, len);
}

/// The time that two readings of the clock add to a measurement: the mean of the middle half,
/// because the clock's steps are not much shorter, and a single interrupt is many times as long.
fn clock_seconds() -> f64 {
    let mut readings: Vec<f64> = (0..256)
        .map(|_| Instant::now().elapsed().as_secs_f64())
        .collect();
    readings.sort_by(f64::total_cmp);
    readings[64..192].iter().sum::<f64>() / 128.0
}

/// Work that touches no memory, so that it competes with the copy for nothing but the processor.
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

fn turns_that_take(seconds: f64) -> u64 {
    const PROBE_TURNS: u64 = 20_000;
    let probe = sample(5, || time(1, || work(PROBE_TURNS)));
    (seconds / probe * PROBE_TURNS as f64).max(1.0) as u64
}

fn read(at: *const u8, len: usize) {
    let mut sum = 0u64;
    for line in (0..len).step_by(64) {
        // SAFETY: `line < len`, within the buffer.
        sum = sum.wrapping_add(u64::from(unsafe { at.add(line).read() }));
    }
    black_box(sum);
}

/// Seconds per call, for `calls` calls.
fn time(calls: u32, mut call: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..calls {
        call();
    }
    (begin.elapsed() / calls).as_secs_f64()
}

fn sample(repeats: usize, mut once: impl FnMut() -> f64) -> f64 {
    median(&(0..repeats).map(|_| once()).collect::<Vec<f64>>())
}

/// The number of repetitions: enough for a median, and fewer for long copies.
fn repeats(len: usize) -> usize {
    (8 * 1024 * 1024 / len).clamp(5, 64)
}

/// A hot copy of a few hundred bytes is faster than the clock can be read.
fn inner_repeats(len: usize, is_hot: bool) -> u32 {
    if is_hot {
        (32 * 1024 / len).clamp(1, 32) as u32
    } else {
        1
    }
}

const LEN_MAX: usize = 4 << 20;

/// Half of a second-level cache, or all of a smaller one.
const WORKING_SET_BYTES: usize = 1 << 20;

/// At least the length from which any calibration wakes a helper.
const NUDGE_BYTES: usize = 1 << 20;

/// A helper copies this many bytes in less time than it takes to fall asleep.
const NEAR_BYTES: usize = 128 << 10;

/// Part of the working set.
const STIRRED_BYTES: usize = 256 << 10;

const ALIGNMENT_BYTES: usize = 64 << 10;

/// Longer than a worker spins.
const ASLEEP_AFTER: Duration = Duration::from_millis(1);

const AWAKEN_COPIES: usize = 20;

const AWAKEN_MAX: Duration = Duration::from_millis(2);
