//! `srv-memaccess`: the memory hierarchy of this machine, measured like LMBench's `lat_mem_rd`
//! (McVoy and Staelin, 1996): each load returns the address of the next one, so loads cannot
//! overlap. Table 2 of the paper on servers and protocol offload.
//!
//! The chain visits every cache line of a buffer once, in a random order that defeats prefetching.
//! As in LMBench, TLB misses are part of the result.

use std::hint::black_box;
use std::time::Instant;

use toehold_measure::plot::Axis;
use toehold_measure::rng::Rng;
use toehold_measure::text::number;

use crate::plan::{Case, Figure, Plan, Reading};
use crate::published::Published;
use crate::report::Report;

/// The plan.
pub(crate) struct SrvMemaccess;

impl Plan for SrvMemaccess {
    fn name(&self) -> &'static str {
        "srv-memaccess"
    }

    fn about(&self) -> &'static str {
        "What does a load cost, by the size of the memory it comes from? LMBench's way."
    }

    fn published_as(&self) -> Option<&'static str> {
        Some("SRV-MEMACCESS")
    }

    fn cases(&self, quick: bool) -> Vec<Case> {
        let step = if quick { 3 } else { 1 };
        let sizes = (BITS_MIN..=BITS_MAX).step_by(step);
        sizes
            .map(|bits| Case::new(GROUP, SERIES, (1u64 << bits) as f64))
            .collect()
    }

    fn sample(&mut self, case: &Case) -> Result<Vec<Reading>, String> {
        let chain = chain(case.x as usize / LINE_BYTES);
        let loads = LOADS.max(chain.len());
        // One pass over the buffer first, so that the caches hold it as they will.
        black_box(walk(&chain, chain.len()));
        let start = Instant::now();
        black_box(walk(&chain, loads));
        let nanos = start.elapsed().as_secs_f64() * 1e9;
        Ok(vec![Reading::new(METRIC, "ns", nanos / loads as f64)])
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure {
            title: "a load, by the size of the buffer",
            group: GROUP,
            metrics: &[METRIC],
            x: Axis {
                label: "buffer, bytes",
                is_logarithmic: true,
                is_bytes: true,
            },
            y: Axis {
                label: "a load, ns",
                is_logarithmic: true,
                is_bytes: false,
            },
        }]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "registers of a network card cannot be reached here: their rows are published only"
                .to_owned(),
            "the largest buffer stands for main memory; a cache of the host beyond it would hide \
             some of it"
                .to_owned(),
        ]
    }

    fn beside(&self, published: &Published, report: &Report) -> Option<String> {
        let size = match published.metric.as_str() {
            "L1 hit time" => cache_bytes(report, "L1")? / 2.0,
            "L2 hit time" => cache_bytes(report, "L2")? / 2.0,
            "main memory time" => (1u64 << BITS_MAX) as f64,
            _ => return None,
        };
        // The largest buffer that certainly fits.
        let rows = report.rows_of(GROUP, METRIC).filter(|row| row.x <= size);
        let row = rows.max_by(|a, b| a.x.total_cmp(&b.x))?;
        let (time, buffer) = (number(row.median, false), number(row.x, true));
        Some(format!("{time} ns ({buffer})"))
    }
}

/// A line of cache that holds the number of the next one.
#[repr(align(64))]
struct Link(usize);

/// One cycle through `lines` lines (Sattolo 1986), in which each line points to the next.
fn chain(lines: usize) -> Vec<Link> {
    let mut next: Vec<usize> = (0..lines).collect();
    let mut random = Rng::new(1);
    for last in (1..lines).rev() {
        next.swap(last, random.below(last));
    }
    next.into_iter().map(Link).collect()
}

fn walk(chain: &[Link], loads: usize) -> usize {
    let mut at = 0;
    for _ in 0..loads {
        at = chain[at].0;
    }
    at
}

/// A cache of the environment's list, where an entry reads `L1 32K`.
fn cache_bytes(report: &Report, level: &str) -> Option<f64> {
    let mut caches = report.environment.caches.iter();
    let size = caches.find_map(|cache| cache.strip_prefix(level)?.strip_prefix(' '))?;
    Some(crate::bytes(size)? as f64)
}

const GROUP: &str = "memory";
const SERIES: &str = "random loads";
const METRIC: &str = "load";
const LINE_BYTES: usize = size_of::<Link>();
/// From 4 KB to 128 MB.
const BITS_MIN: u32 = 12;
const BITS_MAX: u32 = 27;
/// The least number of loads in a sample: they take some milliseconds.
const LOADS: usize = 1 << 20;

const _: () = assert!(LINE_BYTES == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_visits_every_line_once_and_returns() {
        for lines in [1, 2, 64, 1000] {
            let chain = chain(lines);
            let mut seen = vec![false; lines];
            let mut at = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[at], true), "{lines}");
                at = chain[at].0;
            }
            assert_eq!((at, walk(&chain, lines)), (0, 0));
        }
    }

    #[test]
    fn this_machine_s_row_stands_beside_the_published_ones() {
        let options = crate::Options {
            rounds: 1,
            ..crate::Options::quick()
        };
        let report = crate::runner::run(&mut SrvMemaccess, options, None, |_, _| ())
            .expect("nothing is kept");
        let memory = report.published.iter();
        let memory = memory.filter(|result| result.metric == "main memory time");
        let here: Vec<_> = memory.map(|result| result.here.clone()).collect();
        assert_eq!(here.len(), 6);
        assert!(
            here.iter().flatten().all(|text| text.ends_with("(128M)")),
            "{here:?}"
        );
    }
}
