//! The shared-memory protocols under every schedule that loom finds within a bound of preemptions,
//! and under the C11 memory model:
//! `RUSTFLAGS="--cfg loom" cargo test -p toehold-stream --release --test loom`.
//!
//! A lost wake-up shows as a deadlock. A byte that is read before it was published shows as an
//! unsynchronised access to its cell.

#![cfg(loom)]

mod attachment;
mod doorbell;
mod express;
mod hints;
mod holders;
mod interest;
mod leaving;
mod mutex;
mod ring;
mod silence;
mod sleepers;
#[path = "../support/mod.rs"]
mod support;
mod switch;
mod takeover;

/// Explores `model` with at most `preemptions` involuntary switches in a schedule.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}
