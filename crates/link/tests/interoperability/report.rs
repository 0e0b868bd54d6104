//! The report on the meetings.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::cell::Cell;

/// The events of one meeting.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) took: Duration,
    pub(crate) connections: u64,
    /// Payload, both ways, as the programs see it.
    pub(crate) bytes: u64,
    /// Frames in both directions, and the frames that the link impaired.
    pub(crate) frames: u64,
    pub(crate) struck: u64,
    pub(crate) retransmissions: u64,
    /// Frames that the engine found damaged.
    pub(crate) malformed: u64,
    /// Frames that the attacker sent.
    pub(crate) hostile: u64,
    /// Challenge ACKs to the attacker, and cookies that came back.
    pub(crate) challenges: u64,
    pub(crate) cookies: u64,
    /// Segments with a closed window.
    pub(crate) closed_windows: u64,
    /// SYNs whose payload the other side acknowledged.
    pub(crate) fast_opens: u64,
}

#[derive(Default)]
pub(crate) struct Report {
    totals: BTreeMap<String, (u64, Tally)>,
    all: Tally,
    passed: u64,
    failed: u64,
    slowest: Option<(Duration, Cell)>,
}

impl Report {
    pub(crate) fn add(&mut self, cell: Cell, seed: u64, outcome: Result<Tally, String>) {
        match outcome {
            Ok(tally) => {
                self.passed += 1;
                let name = cell.to_string();
                let values: Vec<&str> = name.split('/').collect();
                let (count, total) = self.totals.entry(values[3].to_owned()).or_default();
                *count += 1;
                total.join(&tally);
                self.all.join(&tally);
                if self.slowest.is_none_or(|(took, _)| took < tally.took) {
                    self.slowest = Some((tally.took, cell));
                }
            }
            Err(why) => {
                self.failed += 1;
                println!(
                    "FAILED {cell} seed {seed}\n    {}",
                    why.replace('\n', "\n    ")
                );
                println!("    TOEHOLD_MATRIX_SEED={seed} cargo xtask interoperability {cell}");
            }
        }
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failed
    }
}

impl Tally {
    fn join(&mut self, other: &Self) {
        self.took += other.took;
        self.connections += other.connections;
        self.bytes += other.bytes;
        self.frames += other.frames;
        self.struck += other.struck;
        self.retransmissions += other.retransmissions;
        self.malformed += other.malformed;
        self.closed_windows += other.closed_windows;
        self.fast_opens += other.fast_opens;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:>5} {:>11} {:>8} {:>8} {:>8} {:>10} {:>8} {:>11}",
            "link",
            "cells",
            "connections",
            "MB",
            "frames",
            "struck",
            "sent again",
            "refused",
            "win 0"
        )?;
        let all = ("all".to_owned(), (self.passed, self.all));
        let totals = self
            .totals
            .iter()
            .map(|(name, total)| (name.clone(), *total));
        for (name, (cells, total)) in totals.chain([all]) {
            writeln!(
                f,
                "{name:<12} {cells:>5} {:>11} {:>8.1} {:>8} {:>8} {:>10} {:>8} {:>11}",
                total.connections,
                total.bytes as f64 / 1e6,
                total.frames,
                total.struck,
                total.retransmissions,
                total.malformed,
                total.closed_windows,
            )?;
        }
        if let Some((took, cell)) = self.slowest {
            writeln!(f, "the longest: {cell}, {:.1} s", took.as_secs_f64())?;
        }
        if self.all.fast_opens > 0 {
            let count = self.all.fast_opens;
            writeln!(f, "{count} connections opened with payload on the SYN")?;
        }
        writeln!(f, "{} cells agree, {} do not", self.passed, self.failed)
    }
}
