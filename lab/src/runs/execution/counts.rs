//! Crossings and cache misses of an operation, counted in samples of their own.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use toehold_measure::syscalls::Tracepoint;

use super::sample::Job;
use super::{LOOK_INTERVAL, Scene, interrupted};
use crate::error::LabError;
use crate::runs::arm::{Arm, ArmPath};
use crate::runs::record::{Crossing, Record};
use crate::runs::{crossings, network};

/// The duration of a sample that counts crossings.
const COUNTED_SECONDS: f64 = 0.5;

/// Counts that a sample takes besides its work.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Counting {
    pub(super) tracepoint: Option<Tracepoint>,
    /// The client runs in valgrind's cache simulation, which writes its summary to this file.
    pub(super) simulation: Option<PathBuf>,
}

impl Scene {
    /// Crossings of an operation of each arm, at the first point of each block.
    pub(super) fn crossings(&mut self, record: &Record) -> Result<Vec<Crossing>, LabError> {
        let plan = &record.plan;
        let mut all = Vec::new();
        for (at, block) in plan.blocks.iter().enumerate() {
            let x = block.points()[0];
            for arm in &plan.arms {
                let mut job = Job::of(plan, block, x, arm);
                job.load = block.load(x, arm, COUNTED_SECONDS);
                // Nothing is thrown away, so that every call belongs to an operation.
                job.load.warmup = 0.0;
                if self.is_possible(&job) && job.application.is_none() {
                    let counted = self.crossing(&job);
                    interrupted(record)?;
                    all.extend(counted.map(|crossing| Crossing {
                        block: at,
                        ..crossing
                    }));
                }
            }
        }
        Ok(all)
    }

    fn crossing(&mut self, job: &Job<'_>) -> Option<Crossing> {
        let arm = job.arm;
        self.counting.tracepoint = Tracepoint::find().ok();
        let frames = || {
            let network = self.network.as_ref()?;
            network.frames(network.wire_of(arm)?)
        };
        let before = frames();
        let done = AtomicBool::new(false);
        let (outcome, doorbells) = thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = None;
                // Relaxed: the flag publishes no other data.
                while !done.load(Ordering::Relaxed) {
                    seen = self.doorbells(arm).or(seen);
                    thread::sleep(LOOK_INTERVAL);
                }
                seen
            });
            let outcome = self.sample(job);
            done.store(true, Ordering::Relaxed);
            (outcome, watcher.join().unwrap_or(None))
        });
        let frames = frames().zip(before).map(|(after, before)| after - before);
        self.counting = Counting::default();
        let outcome = outcome.ok().filter(|outcome| outcome.operations > 0)?;
        let calls = *self.calls.lock().ok()?;
        let bytes = outcome.bytes as f64 / outcome.operations as f64;
        Some(Crossing {
            arm: arm.name.clone(),
            operations: outcome.operations,
            calls_client: calls.0,
            calls_server: calls.1,
            doorbells: doorbells.map(|(rung, moved)| rung as f64 / (moved as f64 / bytes)),
            frames,
            misses: self.misses(job),
            ..Crossing::default()
        })
    }

    /// The client's cache misses per operation: the difference between a longer and a shorter run.
    fn misses(&mut self, job: &Job<'_>) -> Option<(f64, f64)> {
        if !network::is_installed("valgrind") {
            return None;
        }
        let log = self.scratch.path().join("simulation");
        self.counting.simulation = Some(log.clone());
        let mut counted = [1.0, 3.0].into_iter().map(|times| {
            let mut job = job.clone();
            job.load.seconds *= times;
            let outcome = self.sample(&job).ok()?;
            let text = fs::read_to_string(&log).ok()?;
            Some((outcome.operations as f64, crossings::misses(&text)?))
        });
        let (short, long) = (counted.next().flatten(), counted.next().flatten());
        self.counting = Counting::default();
        let ((few, less), (many, more)) = short.zip(long)?;
        let operations = many - few;
        let each = |more: f64, less: f64| ((more - less) / operations).max(0.0);
        (operations > 0.0).then(|| (each(more.0, less.0), each(more.1, less.1)))
    }

    /// The doorbells that an arm's connections have rung so far, and the bytes that moved through
    /// rings meanwhile.
    fn doorbells(&self, arm: &Arm) -> Option<(u64, u64)> {
        let connections = self.connections(arm);
        let sum = |name: &str| -> u64 {
            let all = connections.iter();
            all.filter_map(|connection| connection[name].as_u64()).sum()
        };
        // A channel to the engine has one end in a program, that between two programs has two.
        let moved = match arm.path {
            ArmPath::Offload => sum("bytes_ring_tx") + sum("bytes_ring_rx"),
            _ => sum("bytes_ring_tx"),
        };
        (arm.is_accelerated() && moved > 0).then(|| (sum("doorbells_rung"), moved))
    }
}
