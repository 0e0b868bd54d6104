//! The engine against this machine's kernel: the kernel's TCP is the oracle, and every byte is compared.
//!
//! The product of roles, families, links, impairments and patterns of use ([`cell`]) has hundreds of cells. A test run takes a
//! selection in which every pair of values of two dimensions meets at least once; all of them are run by
//! `cargo xtask interoperability` (`make interoperability`). Each cell has a network namespace and a TAP device of its own; most of
//! what they do is to wait for timers, so many run at once.
//!
//! `TOEHOLD_MATRIX_CELLS` takes only cells whose names contain it, `TOEHOLD_MATRIX_SEED` changes what the links do, and
//! `TOEHOLD_MATRIX_JOBS` says how many cells run at once.

mod cell;
mod engine;
mod kernel;
mod link;
mod meeting;
mod record;
mod report;
mod stream;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use cell::Cell;
use meeting::{can_meet, meet};
use report::Report;

/// Cells at once: enough that a core always finds one which does not wait.
const JOBS: usize = 48;

/// Every pair of values of two dimensions, in as few cells as a greedy choice needs.
#[test]
fn every_pair_of_circumstances() {
    run(&cell::pairwise());
}

/// Every cell of the product.
#[test]
#[ignore = "takes minutes: cargo xtask interoperability"]
fn every_cell() {
    run(&cell::all());
}

fn run(cells: &[Cell]) {
    if let Err(reason) = can_meet() {
        println!("SKIPPED: interoperability with the kernel: {reason}");
        return;
    }
    let wanted = std::env::var("TOEHOLD_MATRIX_CELLS").unwrap_or_default();
    let cells: Vec<&Cell> = cells
        .iter()
        .filter(|cell| cell.to_string().contains(&wanted))
        .collect();
    let (seed, jobs) = (
        number("TOEHOLD_MATRIX_SEED", 1),
        number("TOEHOLD_MATRIX_JOBS", JOBS as u64),
    );
    let next = AtomicUsize::new(0);
    let report = Mutex::new(Report::default());
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..cells.len().min(jobs as usize) {
            scope.spawn(|| {
                // Relaxed: each index is handed out once, and nothing else depends on it.
                while let Some(&&cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = meet(cell, seed);
                    report
                        .lock()
                        .expect("no meeting panics")
                        .add(cell, seed, outcome);
                }
            });
        }
    });
    let report = report.into_inner().expect("no meeting panics");
    print!("{report}");
    println!("seed {seed}, {:.0} s", began.elapsed().as_secs_f64());
    assert!(!cells.is_empty(), "no cell is named like {wanted}");
    assert_eq!(report.failures(), 0, "of {} cells", cells.len());
}

fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}
