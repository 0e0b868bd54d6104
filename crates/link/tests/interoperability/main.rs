//! The engine against this machine's kernel: the kernel's TCP is the oracle, and every byte is
//! compared.
//!
//! The product of roles, families, links, impairments and patterns of use ([`cell`]) has hundreds
//! of cells. A test run takes a selection that covers every pair of values of two dimensions at
//! least once; `cargo xtask interoperability` (`make interoperability`) runs all cells. Each cell
//! has a network namespace and a TAP device of its own. Cells mostly wait for timers, so many of
//! them run at once.
//!
//! `TOEHOLD_MATRIX_CELLS` selects the cells whose names contain its value, `TOEHOLD_MATRIX_SEED`
//! changes the behaviour of the links, and `TOEHOLD_MATRIX_JOBS` sets how many cells run at once.

mod attack;
mod cell;
mod engine;
mod kernel;
mod link;
mod manners;
mod meeting;
mod record;
mod report;
mod stream;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use attack::Attack;
use cell::Cell;
use manners::Manners;
use meeting::{can_meet, meet};
use report::{Report, Tally};

/// Cells at once: enough that there is always a cell that does not wait.
const JOBS: usize = 48;
/// Meetings that fail beside others take place once more, alone, unless more have failed. A host
/// that gives a meeting no time for seconds lets the kernel's timers run out.
const UNSTEADY_MAX: usize = 3;

/// Every pair of values of two dimensions, in as few cells as a greedy choice needs.
#[test]
fn every_pair_of_circumstances() {
    run(&cell::pairwise(), |_, _| Manners::USUAL);
}

/// Every cell of the product.
#[test]
#[ignore = "run by `cargo xtask interoperability`: it takes minutes"]
fn every_cell() {
    run(&cell::all(), |_, _| Manners::USUAL);
}

/// Kernel and engine with settings that most hosts do not have, drawn for each cell.
#[test]
fn every_pair_of_circumstances_under_drawn_settings() {
    run(&cell::pairwise(), Manners::drawn);
}

/// Every cell under drawn settings.
#[test]
#[ignore = "run by `cargo xtask interoperability`: it takes minutes"]
fn every_cell_under_drawn_settings() {
    run(&cell::all(), Manners::drawn);
}

/// The attacker sends segments in the name of the kernel's program before each of its requests: the
/// attacks of RFC 5961, port scanners' probes, and invalid headers. The conversation goes on, byte
/// by byte.
#[test]
fn forged_and_odd_segments_disturb_nobody() {
    attack(Attack::Salvos, "mtu1500/intact/requests");
}

/// The engine has no room for another half-open connection, and more SYNs come all the time. Still
/// thousands of connections are opened and closed.
#[test]
fn a_flood_of_syns_keeps_nobody_out() {
    attack(Attack::Flood, "server/ipv4/mtu1500/intact/short");
    attack(Attack::Flood, "server/ipv6/mtu1500/intact/short");
}

fn attack(attack: Attack, cells: &str) {
    if let Err(reason) = can_meet() {
        println!("SKIPPED: {attack:?}: {reason}");
        return;
    }
    let seed = number("TOEHOLD_MATRIX_SEED", 1);
    let cells = cell::all()
        .into_iter()
        .filter(|cell| cell.to_string().ends_with(cells));
    for cell in cells {
        match meet(cell, seed, (Some(attack), Manners::USUAL)) {
            Ok(Tally {
                hostile,
                challenges,
                malformed,
                cookies,
                connections,
                ..
            }) => println!(
                "{attack:?}: {cell}: {hostile} hostile frames, {challenges} challenged, \
                {malformed} malformed; \
                 {cookies} of {connections} connections by cookies"
            ),
            Err(why) => panic!("{attack:?}: {cell} seed {seed}\n{why}"),
        }
    }
}

fn run(cells: &[Cell], manners: fn(&Cell, u64) -> Manners) {
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
    let failed = Mutex::new(Vec::new());
    let began = Instant::now();
    let play = |cell: Cell| meet(cell, seed, (None, manners(&cell, seed)));
    thread::scope(|scope| {
        for _ in 0..cells.len().min(jobs as usize) {
            scope.spawn(|| {
                // Relaxed: each index is handed out once, and nothing else depends on it.
                while let Some(&&cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match play(cell) {
                        Err(why) => {
                            println!("{cell} seed {seed} beside others: {why}");
                            failed.lock().expect("no meeting panics").push((cell, why));
                        }
                        met => report
                            .lock()
                            .expect("no meeting panics")
                            .add(cell, seed, met),
                    }
                }
            });
        }
    });
    let mut report = report.into_inner().expect("no meeting panics");
    let failed = failed.into_inner().expect("no meeting panics");
    let may_be_unsteady = failed.len() <= UNSTEADY_MAX;
    for (cell, why) in failed {
        let outcome = match may_be_unsteady {
            true => play(cell).inspect(|_| println!("UNSTEADY {cell} seed {seed}")),
            false => Err(why),
        };
        report.add(cell, seed, outcome);
    }
    print!("{report}");
    println!("seed {seed}, {:.0} s", began.elapsed().as_secs_f64());
    assert!(!cells.is_empty(), "no cell is named like {wanted}");
    assert_eq!(report.failures(), 0, "of {} cells", cells.len());
}

fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}
