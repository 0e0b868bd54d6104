//! `ioat-copy`: Figure 6 of the I/OAT paper on this machine, and side effects of copies.
//!
//! | group | question |
//! |---|---|
//! | `copy` | memcpy in and out of cache against each engine: total, start-up, overlap, helper's time |
//! | `waiting` | a copy whose submitter waits for it, through a channel: which engine ends it first |
//! | `job` | the same with other work to be done meanwhile |
//! | `alignment` | what an odd target costs |
//! | `page-fault` | what a target costs that has never been touched |
//! | `batch` | what one doorbell for many copies saves |
//! | `asleep` | what it costs to wake a helper that had nothing to do |
//! | `pollution` | what a copy does to the working set of whoever asked for it |

mod bench;
mod beside;
mod claims;
mod engines;

use toehold_measure::plot::Axis;

use self::bench::{Bench, Contest};
use self::engines::Engine;
use crate::plan::{Case, Figure, Plan, Reading};
use crate::published::Published;
use crate::report::Claim;
use crate::report::Report;

/// The parties of a contest, by the names of their metrics.
const CONTENDERS: [&str; 4] = ["cpu", "cpu-nt", "worker", "auto"];

/// The plan.
pub(crate) struct IoatCopy {
    /// Created with the first sample: listing plans starts no threads.
    bench: Option<Bench>,
}

impl IoatCopy {
    pub(crate) fn new() -> IoatCopy {
        IoatCopy { bench: None }
    }
}

impl Plan for IoatCopy {
    fn name(&self) -> &'static str {
        "ioat-copy"
    }

    fn about(&self) -> &'static str {
        "When does an asynchronous copy pay? Figure 6 of the I/OAT paper, 1 KB to 4 MB."
    }

    fn published_as(&self) -> Option<&'static str> {
        Some("IOAT-COPY")
    }

    fn cases(&self, quick: bool) -> Vec<Case> {
        let step = if quick { 2 } else { 1 };
        let lens: Vec<f64> = (10..=22)
            .step_by(step)
            .map(|bits| (1u64 << bits) as f64)
            .collect();
        let mut cases = Vec::new();
        for &len in &lens {
            for residency in ["hot", "cold"] {
                for engine in Engine::SYNCHRONOUS {
                    cases.push(Case::new(
                        "copy",
                        format!("{} {residency}", engine.name()),
                        len,
                    ));
                }
                for engine in Engine::available() {
                    cases.push(Case::new(
                        "copy",
                        format!("{} {residency}", engine.name()),
                        len,
                    ));
                }
            }
        }
        for &len in &lens {
            for residency in ["hot", "cold"] {
                cases.push(Case::new("waiting", residency, len));
                cases.push(Case::new("job", residency, len));
            }
        }
        for engine in [Engine::Cpu, Engine::CpuNt, Engine::Worker] {
            for offset in [0, 1, 4, 8, 16, 32, 63] {
                cases.push(Case::new("alignment", engine.name(), f64::from(offset)));
            }
            for len in lens.iter().copied().filter(|&len| len >= 4096.0) {
                cases.push(Case::new(
                    "page-fault",
                    format!("{} fresh", engine.name()),
                    len,
                ));
                cases.push(Case::new(
                    "page-fault",
                    format!("{} touched", engine.name()),
                    len,
                ));
            }
        }
        for batch in [1, 2, 4, 8, 16, 32, 64] {
            cases.push(Case::new("batch", Engine::Worker.name(), f64::from(batch)));
        }
        for len in [4096.0, 65536.0] {
            cases.push(Case::new("asleep", Engine::Worker.name(), len));
        }
        for series in ["none", "cpu", "cpu-nt", "worker"] {
            for len in [256u32 << 10, 1 << 20, 4 << 20] {
                cases.push(Case::new("pollution", series, f64::from(len)));
            }
        }
        cases
    }

    fn sample(&mut self, case: &Case) -> Result<Vec<Reading>, String> {
        let bench = match &mut self.bench {
            Some(bench) => bench,
            none => none.insert(Bench::new()?),
        };
        let (name, variant) = case.series.split_once(' ').unwrap_or((&case.series, ""));
        let x = case.x as usize;
        match case.group {
            "copy" => bench.copy(Engine::named(name)?, variant == "hot", x),
            "waiting" => bench.contest(Contest::Waiting, name == "hot", x),
            "job" => bench.contest(Contest::Job, name == "hot", x),
            "alignment" => bench.alignment(Engine::named(name)?, x),
            "page-fault" => bench.page_fault(Engine::named(name)?, variant == "fresh", x),
            "batch" => bench.batch(x),
            "asleep" => bench.asleep(x),
            "pollution" => match name {
                "none" => bench.pollution(None, x),
                name => bench.pollution(Some(Engine::named(name)?), x),
            },
            group => unreachable!("no case has the group {group}"),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let bytes = Axis {
            label: "bytes",
            is_logarithmic: true,
            is_bytes: true,
        };
        let us = Axis {
            label: "microseconds",
            is_logarithmic: true,
            is_bytes: false,
        };
        let linear = |label| Axis {
            label,
            is_logarithmic: false,
            is_bytes: false,
        };
        let copy = |title, metrics, y| Figure {
            title,
            group: "copy",
            metrics,
            x: bytes,
            y,
        };
        vec![
            copy("Time of a copy, submission to completion", &["total"], us),
            copy(
                "Start-up: what asking the engine costs its caller",
                &["start-up"],
                linear("ns"),
            ),
            copy(
                "Overlap: part of the copy's time left for other work",
                &["overlap"],
                linear("%"),
            ),
            copy("Processor time of helpers, for each copy", &["helper"], us),
            Figure {
                title: "A copy whose submitter waits, through a channel",
                group: "waiting",
                metrics: &CONTENDERS,
                x: bytes,
                y: us,
            },
            Figure {
                title: "A copy and as much other work as a cold memcpy takes, through a channel",
                group: "job",
                metrics: &CONTENDERS,
                x: bytes,
                y: us,
            },
            Figure {
                title: "Alignment of the target, 64 KB in the cache",
                group: "alignment",
                metrics: &["total"],
                x: linear("offset, bytes"),
                y: linear("microseconds"),
            },
            Figure {
                title: "A target that was never touched, and one that was",
                group: "page-fault",
                metrics: &["total"],
                x: bytes,
                y: us,
            },
            Figure {
                title: "Copies of 4 KB submitted with one doorbell",
                group: "batch",
                metrics: &["caller per copy", "total per copy"],
                x: Axis {
                    label: "copies",
                    is_logarithmic: true,
                    is_bytes: true,
                },
                y: linear("ns"),
            },
            Figure {
                title: "A copy that has to wake its helper",
                group: "asleep",
                metrics: &["start-up", "total"],
                x: bytes,
                y: linear("microseconds"),
            },
            Figure {
                title: "A pass over a working set of 1 MB after a copy of so many bytes",
                group: "pollution",
                metrics: &["pass"],
                x: bytes,
                y: linear("microseconds"),
            },
        ]
    }

    fn beside(&self, published: &Published, report: &Report) -> Option<String> {
        beside::of(published, report)
    }

    fn claims(&self, report: &Report) -> Vec<Claim> {
        claims::of(report)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = engines::missing();
        notes.push(
            "overlap is (copy + work - both) / copy, with work as long as the copy, measured \
            alone and together"
                .to_owned(),
        );
        notes.push(
            "cold means evicted from every cache; an engine's memory is in its owner's cache when \
            hot"
            .to_owned(),
        );
        notes.push(
            "a helper's time includes its spinning: it is what the copy cost, not what it needed"
                .to_owned(),
        );
        notes
    }
}
