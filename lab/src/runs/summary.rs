//! The summary of a run: one sentence for each figure, and tables.

use std::fmt::Write as _;

use toehold_measure::metric::Better;
use toehold_measure::stats::Ratio;
use toehold_measure::text::{change, change_between, number, prefixed, than};
use toehold_measure::verdict::Verdict;

use super::arm::{Arm, ArmPath};
use super::crossings;
use super::headline::Headline;
use super::plan_file::Block;
use super::record::{Record, again};
use super::tiers;

/// One arm at one point, compared with the base.
struct Cell {
    median: f64,
    ratio: Option<Ratio>,
    verdict: Verdict,
    /// The difference of the base from itself.
    floor: Option<f64>,
    /// The median relative to the limit's: 1 is the limit, both for metrics where more is better
    /// and for those where less is better.
    of_limit: Option<f64>,
}

fn cell(record: &Record, block: usize, x: f64, arm: &str, metric: Headline) -> Option<Cell> {
    let plan = &record.plan;
    let of = |arm: &str| record.samples(block, x, arm, metric);
    let (base, own) = (of(plan.base_of(arm)), of(arm));
    if own.is_empty() {
        return None;
    }
    let floor = of(&again(plan))
        .ratio_to(&of(&plan.arms[0].name))
        .map(|ratio| ratio.reach_from_one());
    // The base's second arm gives the noise floor.
    let floor = floor.filter(|_| arm != again(plan));
    let ratio = own.ratio_to(&base);
    let verdict = Verdict::of(&base.pairs(&own), ratio.as_ref(), metric.better(), floor);
    let limit = plan.arms.iter().find(|arm| arm.path == ArmPath::Limit);
    let of_limit = limit.filter(|limit| limit.name != arm).and_then(|limit| {
        let limit = of(&limit.name).median();
        let part = match metric.better() {
            Better::Lower => limit / own.median(),
            _ => own.median() / limit,
        };
        part.is_finite().then_some(part)
    });
    Some(Cell {
        median: own.median(),
        ratio,
        verdict,
        floor,
        of_limit,
    })
}

/// One sentence for each block: the best arm, the size of the effect, and its certainty.
pub(crate) fn conclusions(record: &Record) -> Vec<String> {
    let blocks = record.plan.blocks.iter().enumerate();
    blocks
        .map(|(at, block)| {
            let sentence = conclusion(record, at, block, block.metric);
            format!("{}: {sentence}", block.title)
        })
        .collect()
}

/// An arm compared with its base over all points of a block.
struct Standing<'a> {
    arm: &'a str,
    base: &'a str,
    better: usize,
    worse: usize,
    points: usize,
    /// The point that the sentence quotes: the middle one. If the arm is better only elsewhere, the
    /// point where it is best.
    x: f64,
    ratio: Ratio,
    verdict: Verdict,
    /// The factor by which it is better at that point.
    gain: f64,
}

impl Standing<'_> {
    fn of<'a>(
        record: &'a Record,
        at: usize,
        block: &Block,
        metric: Headline,
        arm: &'a str,
    ) -> Option<Standing<'a>> {
        let points = block.points().into_iter();
        let cells: Vec<(f64, Ratio, Verdict)> = points
            .filter_map(|x| {
                let cell = cell(record, at, x, arm, metric)?;
                Some((x, cell.ratio?, cell.verdict))
            })
            .collect();
        let gain = |ratio: &Ratio| match metric.better() {
            Better::Lower => 1.0 / ratio.value,
            _ => ratio.value,
        };
        let count = |wanted| {
            cells
                .iter()
                .filter(|(.., verdict)| *verdict == wanted)
                .count()
        };
        let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
        let middle = cells.get(cells.len() / 2)?;
        let best = cells
            .iter()
            .filter(|(.., verdict)| *verdict == Verdict::Better)
            .max_by(|one, other| gain(&one.1).total_cmp(&gain(&other.1)));
        let (x, ratio, verdict) = match best {
            Some(best) if middle.2 != Verdict::Better => *best,
            _ => *middle,
        };
        Some(Standing {
            arm,
            base: record.plan.base_of(arm),
            better,
            worse,
            points: cells.len(),
            x,
            ratio,
            verdict,
            gain: gain(&ratio),
        })
    }
}

/// One sentence for the figure of a metric.
pub(super) fn conclusion(record: &Record, at: usize, block: &Block, metric: Headline) -> String {
    let plan = &record.plan;
    let contenders = plan.arms.iter().skip(1).filter(|arm| {
        let is_bare = matches!(arm.path, ArmPath::Limit | ArmPath::OneCopy);
        !arm.control && (!is_bare || arm.against.is_some()) && !stayed(record, block, &arm.name)
    });
    let mut standings: Vec<Standing<'_>> = contenders
        .filter_map(|arm| Standing::of(record, at, block, metric, &arm.name))
        .collect();
    standings.sort_by(|one, other| other.gain.total_cmp(&one.gain));
    let is_better = |standing: &&Standing<'_>| standing.better > standing.worse;
    let is_worse = |standing: &&Standing<'_>| standing.worse > standing.better;
    let helped: Vec<&str> = standings
        .iter()
        .filter(is_better)
        .map(|one| one.arm)
        .collect();
    let harmed: Vec<&str> = standings
        .iter()
        .filter(is_worse)
        .map(|one| one.arm)
        .collect();
    let Some(first) = standings.iter().find(is_better).or(standings.first()) else {
        let stays = |arm: &Arm| stayed(record, block, &arm.name);
        if plan.arms.iter().any(stays) {
            return "every connection stayed on the kernel, so there is nothing to compare."
                .to_owned();
        }
        return format!("no other arm than \"{}\" was measured.", plan.arms[0].name);
    };
    let name = metric.label().split(',').next().unwrap_or("");
    let is_swept = first.points > 1;
    let place = if is_swept {
        format!(" at {}", point(block, first.x))
    } else {
        String::new()
    };
    let fact = format!("{name}{place} is {}", than(&first.ratio, first.base));
    let mut sentence = if is_better(&first) {
        let often = format!(", better at {} of {} points", first.better, first.points);
        let often = if is_swept { often } else { String::new() };
        format!("\"{}\" helped most: {fact}{often}", first.arm)
    } else if first.verdict == Verdict::TooFewRounds {
        let words = first.verdict.words();
        format!("{words}; first is \"{}\": {fact}", first.arm)
    } else {
        let verdict = first.verdict.words();
        format!(
            "nothing helped; closest is \"{}\": {fact}, {verdict}",
            first.arm
        )
    };
    let others = [
        ("also better", helped.get(1..).unwrap_or(&[])),
        ("worse", &harmed[..]),
    ];
    for (what, arms) in others {
        sentence.push_str(&match arms.len() {
            0 => String::new(),
            1..=NAMES_MAX => format!("; {what}: \"{}\"", arms.join("\", \"")),
            many => format!("; {what}: {many} arms"),
        });
    }
    sentence + "."
}

/// Whether an arm was seen to stay on the kernel although it should not.
fn stayed(record: &Record, block: &Block, arm: &str) -> bool {
    let own = format!("{arm} ({})", block.title);
    record.stayed.contains(&own)
}

/// Notes that a reader needs before believing the numbers.
pub(crate) fn notes(record: &Record) -> Vec<String> {
    let plan = &record.plan;
    let mut notes = Vec::new();
    if !record.is_finished() {
        notes.push(format!(
            "{} of {} rounds are done: toehold lab resume finishes the run",
            record.rounds_done, plan.rounds
        ));
    }
    for missing in &record.missing {
        notes.push(format!("\"{}\" was left out: {}", missing.arm, missing.why));
    }
    notes.extend(clients(record));
    notes.extend(thin_tails(record));
    notes.extend(controls(record));
    let tested: usize = plan
        .blocks
        .iter()
        .map(|block| block.points().len())
        .sum::<usize>()
        * plan.arms.len().saturating_sub(1);
    notes.push(format!(
        "{tested} comparisons are made, each at 5 %: about {} would show a difference between \
         equal arms",
        (tested as f64 * 0.05).ceil()
    ));
    let mut listed: Vec<String> = Vec::new();
    for sample in &record.samples {
        if let Some(why) = &sample.failure {
            let place = format!("{}, {}", plan.blocks[sample.block].title, sample.arm);
            if !listed.contains(&place) {
                notes.push(format!(
                    "{place}: a sample failed in round {}: {why}",
                    sample.round + 1
                ));
                listed.push(place);
            }
        }
    }
    let steal = record.steal.iter().copied().fold(0.0, f64::max);
    if steal > STEAL_QUIET {
        notes.push(format!(
            "the hypervisor took up to {:.0} % of a round",
            steal * 100.0
        ));
    }
    notes.extend(record.environment.warnings());
    notes.extend(record.environment.pacing());
    notes.extend(plan.notes.iter().cloned());
    notes.push(
        "ping-pong and requests without a rate are closed loops: what waits while the client waits \
         is not measured"
            .to_owned(),
    );
    notes
}

/// The points whose connections are shared by several clients.
fn clients(record: &Record) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for sample in &record.samples {
        let standing = sample.outcome.as_ref();
        let standing = standing.and_then(|outcome| outcome.standing.as_ref());
        let Some(standing) = standing.filter(|standing| standing.clients > 1) else {
            continue;
        };
        let block = &record.plan.blocks[sample.block];
        let note = format!(
            "{} at {}: {} clients with a server each, because a process may not have more \
             descriptors (ulimit -Hn)",
            block.title,
            point(block, sample.x),
            standing.clients
        );
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// The points at which a percentile that a block is about rests on few operations of a sample.
fn thin_tails(record: &Record) -> Vec<String> {
    let mut notes = Vec::new();
    for (at, block) in record.plan.blocks.iter().enumerate() {
        let Some(tail) = block.metric.tail() else {
            continue;
        };
        for x in block.points() {
            let samples = record.samples.iter();
            let here = samples.filter(|sample| sample.block == at && sample.x == x);
            let fewest = here.filter_map(|sample| Some(sample.outcome.as_ref()?.operations));
            let Some(fewest) = fewest.min() else {
                continue;
            };
            let beyond = fewest as f64 * tail;
            if beyond < TAIL_OPERATIONS {
                notes.push(format!(
                    "{} at {}: in a sample of {fewest} operations no more than {} are slower than \
                     its {}, so one stall of the host decides it: sample longer",
                    block.title,
                    point(block, x),
                    beyond.ceil(),
                    block.metric.label()
                ));
            }
        }
    }
    notes
}

/// Negative controls, including the base against itself: arms that must not differ.
fn controls(record: &Record) -> Vec<String> {
    let plan = &record.plan;
    let declared = plan
        .arms
        .iter()
        .filter(|arm| arm.control)
        .map(|arm| arm.name.clone());
    let arms = declared.chain([again(plan)]);
    arms.map(|arm| {
        let (mut all, mut judged, mut differs) = (0, 0, Vec::new());
        for (at, block) in plan.blocks.iter().enumerate() {
            for x in block.points() {
                let Some(cell) = cell(record, at, x, &arm, block.metric) else {
                    continue;
                };
                all += 1;
                judged += usize::from(cell.verdict != Verdict::TooFewRounds);
                if matches!(cell.verdict, Verdict::Better | Verdict::Worse) {
                    let by = cell
                        .ratio
                        .map_or(String::new(), |ratio| change(ratio.value));
                    differs.push(format!("{} at {} ({by})", block.title, point(block, x)));
                }
            }
        }
        if judged == 0 {
            format!("negative control \"{arm}\": too few rounds to tell")
        } else if differs.is_empty() {
            format!(
                "negative control \"{arm}\": no difference at any of {all} points, as it must be"
            )
        } else {
            format!(
                "negative control \"{arm}\" DIFFERS at {} of {all} points: {}",
                differs.len(),
                differs.join(", ")
            )
        }
    })
    .collect()
}

pub(super) fn point(block: &Block, x: f64) -> String {
    let is_bytes = block
        .sweep
        .as_ref()
        .is_none_or(|sweep| sweep.factor.is_bytes());
    number(x, is_bytes)
}

/// Rows of a block's table: every metric that was measured, point by point and arm by arm.
pub(super) fn rows(record: &Record, at: usize, metrics: &[Headline]) -> Vec<Vec<String>> {
    let block = &record.plan.blocks[at];
    let mut rows = Vec::new();
    for metric in metrics {
        for x in block.points() {
            for arm in record.arms() {
                let Some(cell) = cell(record, at, x, &arm, *metric) else {
                    continue;
                };
                let is_base = arm == record.plan.arms[0].name;
                let against = match &cell.ratio {
                    Some(ratio) if !is_base => {
                        let own = record.plan.base_of(&arm);
                        let of = if own == record.plan.arms[0].name {
                            String::new()
                        } else {
                            format!(" (against {own})")
                        };
                        change_between(ratio) + &of
                    }
                    _ => String::new(),
                };
                let is_limit = record
                    .plan
                    .arms
                    .iter()
                    .any(|other| other.name == arm && other.path == ArmPath::Limit);
                let verdict = match (cell.verdict, cell.floor) {
                    _ if is_base || is_limit => String::new(),
                    _ if stayed(record, block, &arm) => "stayed on the kernel".to_owned(),
                    (Verdict::WithinNoise, Some(floor)) => {
                        format!("within the noise floor ({:.0} %)", floor * 100.0)
                    }
                    (verdict, _) => verdict.words().to_owned(),
                };
                rows.push(vec![
                    metric.label().to_owned(),
                    point(block, x),
                    arm,
                    prefixed(cell.median),
                    against,
                    verdict,
                    cell.of_limit.map_or(String::new(), prefixed),
                ]);
            }
        }
    }
    rows
}

/// The run as text.
pub(crate) fn text(record: &Record) -> String {
    let plan = &record.plan;
    let mut out = format!(
        "{}: {}\n{}\n",
        plan.name,
        plan.about,
        record.environment.sentence()
    );
    let _ = writeln!(
        out,
        "{}, {} rounds\n",
        record.environment.date, record.rounds_done
    );
    for banner in banners(record) {
        let _ = writeln!(out, "*** {banner} ***");
    }
    for sentence in conclusions(record) {
        let _ = writeln!(out, "{sentence}");
    }
    for (at, block) in plan.blocks.iter().enumerate() {
        let _ = writeln!(out, "\n{}: {}", block.title, block.metric.label());
        let base = format!("against {}", plan.arms[0].name);
        let head = ["", "at", "arm", "median", &base, "", "of limit"]
            .map(str::to_owned)
            .to_vec();
        let mut table = vec![head];
        table.extend(rows(record, at, &[block.metric]));
        let width = |column: usize| {
            let cells = table.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..7).map(width).collect();
        for row in &table {
            let mut line = String::from(" ");
            for column in 1..7 {
                let (cell, width) = (&row[column], widths[column]);
                let _ = if matches!(column, 1 | 3 | 6) {
                    write!(line, " {cell:>width$} ")
                } else {
                    write!(line, " {cell:<width$} ")
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    out.push_str(&tiers::text(record));
    out.push_str(&crossings::text(record));
    out.push('\n');
    for note in notes(record) {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

pub(super) fn banners(record: &Record) -> Vec<String> {
    let stayed = record.stayed.iter().map(|arm| {
        format!(
            "{arm}: no connection was seen to leave kernel TCP: it compares the kernel with itself"
        )
    });
    let failures = record.samples.iter().filter_map(|sample| {
        let why = sample.failure.as_ref()?;
        let is_other = why.starts_with(OTHER_BYTES);
        let title = &record.plan.blocks[sample.block].title;
        is_other.then(|| format!("{title}, \"{}\": {why}", sample.arm))
    });
    // The first failure is enough: the others are equal.
    stayed.chain(failures.take(1)).collect()
}

/// The beginning of the failure of a sample whose responses differ from the kernel's.
pub(super) const OTHER_BYTES: &str = "the client received other bytes than on the kernel";

/// More names than these are printed as a list, and not in a sentence.
const NAMES_MAX: usize = 3;

/// A percentile of a sample is credible when this many operations are beyond it. A stall of two
/// milliseconds delays one of 500 requests per second, or ten of 5,000.
const TAIL_OPERATIONS: f64 = 20.0;

/// A part of the time beyond which stolen time is worth a sentence.
const STEAL_QUIET: f64 = 0.02;
