//! The CPU time of each tier of an application, and of its client.

use toehold_measure::page;
use toehold_measure::stats::Samples;
use toehold_measure::text::{number, prefixed};

use super::headline::Headline;
use super::record::Record;

/// The table of all arms; nothing where no block has an application.
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
    let remarks = [
        "Cores kept busy, from the client's start to its end, and CPU time for each operation: \
         medians. The kernel's time in soft interrupts is nobody's, and not in it."
            .to_owned(),
    ];
    format!(
        "<h2>CPU of each tier</h2>\n{tables}{}",
        page::list(&remarks)
    )
}

/// As lines of text.
pub(super) fn text(record: &Record) -> String {
    let mut out = String::new();
    for (at, block) in record.plan.blocks.iter().enumerate() {
        let Some((head, rows)) = rows(record, at) else {
            continue;
        };
        out.push_str(&format!("\nCPU of each tier, {}:\n", block.title));
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

type Table = (Vec<String>, Vec<Vec<String>>);

fn rows(record: &Record, at: usize) -> Option<Table> {
    let block = &record.plan.blocks[at];
    let outcomes = record.samples.iter().filter(|sample| sample.block == at);
    let outcomes = outcomes.filter_map(|sample| sample.outcome.as_ref());
    let first = outcomes
        .map(|outcome| &outcome.tiers)
        .find(|tiers| !tiers.is_empty())?;
    let names: Vec<&str> = first.iter().map(|tier| tier.name.as_str()).collect();
    let mut head = vec!["#at".to_owned(), "arm".to_owned()];
    head.extend(names.iter().map(|name| format!("#{name}")));
    let is_bytes = block
        .sweep
        .as_ref()
        .is_none_or(|sweep| sweep.factor.is_bytes());
    let mut rows = Vec::new();
    for x in block.points() {
        for arm in record.plan.arms.iter().map(|arm| &arm.name) {
            let rate = record.samples(at, x, arm, Headline::Rate).median();
            let cores = names.iter().map(|name| cores(record, at, x, arm, name));
            let cells = cores.map(|cores| match cores.median() {
                median if median.is_finite() => {
                    let each = prefixed(median * 1e6 / rate);
                    format!("{} cores, {each} us", number(median, false))
                }
                _ => "-".to_owned(),
            });
            let cells: Vec<String> = cells.collect();
            if cells.iter().any(|cell| cell != "-") {
                rows.push([vec![number(x, is_bytes), arm.clone()], cells].concat());
            }
        }
    }
    Some((head, rows))
}

fn cores(record: &Record, at: usize, x: f64, arm: &str, tier: &str) -> Samples {
    let mut samples = Samples::default();
    for sample in &record.samples {
        if sample.block == at && sample.x == x && sample.arm == arm {
            let tiers = sample.outcome.iter().flat_map(|outcome| &outcome.tiers);
            let mut own = tiers.filter(|cost| cost.name == tier);
            samples.set(sample.round, own.next().map(|cost| cost.cores));
        }
    }
    samples
}
