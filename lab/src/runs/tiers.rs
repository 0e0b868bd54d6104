//! The costs of each process: the CPU time of the tiers of an application and of its client, and
//! the CPU time and the memory of client, server and adapter.

use toehold_measure::page;
use toehold_measure::procfs::ProcessMemory;
use toehold_measure::stats::Samples;
use toehold_measure::text::{number, prefixed};

use super::headline::Headline;
use super::record::Record;
use crate::generator::{Outcome, TierCost};

/// The table of all arms; nothing where no block has costs of processes.
pub(super) fn table(record: &Record) -> String {
    let blocks = record.plan.blocks.iter().enumerate();
    let tables = blocks.filter_map(|(at, block)| {
        let (head, rows) = rows(record, at)?;
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let title = page::escape(&block.title);
        Some(format!("<h3>{title}</h3>\n{}", page::table(&head, &rows)))
    });
    let tables: String = tables.collect();
    if tables.is_empty() {
        return tables;
    }
    let remarks = if record.plan.processes {
        &OF_PROCESSES[..]
    } else {
        &OF_TIERS
    };
    let remarks: Vec<String> = remarks.iter().map(|&remark| remark.to_owned()).collect();
    format!(
        "<h2>{}</h2>\n{tables}{}",
        title(record),
        page::list(&remarks)
    )
}

/// The tiers as lines of text.
pub(super) fn text(record: &Record) -> String {
    let mut out = String::new();
    for (at, block) in record.plan.blocks.iter().enumerate() {
        let Some((head, rows)) = rows(record, at) else {
            continue;
        };
        out.push_str(&format!("\n{}, {}:\n", title(record), block.title));
        for row in rows {
            let names = head.iter().map(|name| name.trim_start_matches('#'));
            let cells = names.zip(&row).skip(2);
            let cells: Vec<String> = cells.map(|(name, cell)| format!("{name} {cell}")).collect();
            out.push_str(&format!(
                "  at {}, {}: {}\n",
                row[0],
                row[1],
                cells.join("; ")
            ));
        }
    }
    out
}

fn title(record: &Record) -> &'static str {
    if record.plan.processes {
        "CPU and memory of each process"
    } else {
        "CPU of each tier"
    }
}

type Table = (Vec<String>, Vec<Vec<String>>);

fn rows(record: &Record, at: usize) -> Option<Table> {
    let block = &record.plan.blocks[at];
    let outcomes = record.samples.iter().filter(|sample| sample.block == at);
    let outcomes = outcomes.filter_map(|sample| sample.outcome.as_ref());
    let mut names: Vec<&str> = Vec::new();
    for tier in outcomes.flat_map(|outcome| &outcome.tiers) {
        if !names.contains(&tier.name.as_str()) {
            names.push(&tier.name);
        }
    }
    if names.is_empty() {
        return None;
    }
    let mut head = vec!["#at".to_owned(), "arm".to_owned()];
    head.extend(names.iter().map(|name| format!("#{name}")));
    if record.plan.processes {
        head.extend(["#in shared memory", "#socket buffers"].map(str::to_owned));
    }
    let is_bytes = block
        .sweep
        .as_ref()
        .is_none_or(|sweep| sweep.factor.is_bytes());
    let mut rows = Vec::new();
    for x in block.points() {
        for arm in record.plan.arms.iter().map(|arm| &arm.name) {
            let rate = record.samples(at, x, arm, Headline::Rate).median();
            let of = |value: &dyn Fn(&Outcome) -> Option<f64>| values(record, at, x, arm, value);
            let cells = names.iter().map(|name| {
                let tier = |outcome: &Outcome, value: &dyn Fn(&TierCost) -> Option<f64>| {
                    value(outcome.tiers.iter().find(|tier| tier.name == *name)?)
                };
                let cores = of(&|outcome| tier(outcome, &|tier| Some(tier.cores))).median();
                if !cores.is_finite() {
                    return "-".to_owned();
                }
                let each = prefixed(cores * 1e6 / rate);
                let mut cell = format!("{} cores, {each} us", number(cores, false));
                let memory = |bytes: fn(&ProcessMemory) -> u64| {
                    let megabytes = |tier: &TierCost| Some(megabytes(bytes(&tier.memory?)));
                    of(&|outcome| tier(outcome, &megabytes)).median()
                };
                let resident = memory(|memory| memory.proportional);
                let tables = memory(|memory| memory.page_tables);
                if resident.is_finite() {
                    cell += &format!(", {} + {} MB", prefixed(resident), prefixed(tables));
                }
                cell
            });
            let mut cells: Vec<String> = cells.collect();
            if cells.iter().all(|cell| cell == "-") {
                continue;
            }
            if record.plan.processes {
                let direct = of(&|outcome| Some(outcome.standing.as_ref()?.direct as f64));
                let buffers =
                    of(&|outcome| outcome.standing.as_ref()?.socket_buffers.map(megabytes));
                cells.push(number(direct.median(), false));
                cells.push(format!("{} MB", prefixed(buffers.median())));
            }
            rows.push([vec![number(x, is_bytes), arm.clone()], cells].concat());
        }
    }
    Some((head, rows))
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn values(
    record: &Record,
    at: usize,
    x: f64,
    arm: &str,
    value: &dyn Fn(&Outcome) -> Option<f64>,
) -> Samples {
    let mut samples = Samples::default();
    for sample in &record.samples {
        if sample.block == at && sample.x == x && sample.arm == arm {
            samples.set(sample.round, sample.outcome.as_ref().and_then(value));
        }
    }
    samples
}

const OF_TIERS: [&str; 1] = [
    "Cores kept busy, from the client's start to its end, and CPU time for each operation: \
     medians. The kernel's time in soft interrupts is nobody's, and not in it.",
];

const OF_PROCESSES: [&str; 4] = [
    "Cores kept busy while it was measured, and CPU time for each operation: medians. The kernel's \
     time in soft interrupts is nobody's, and not in it.",
    "Memory is counted when the load is over and all connections are open: resident pages, of \
     shared ones each process's part, and page tables.",
    "In shared memory are connections both of whose ends are.",
    "Socket buffers are the kernel's, of all TCP sockets.",
];
