//! Crossings of an operation: from a program into the kernel, from one end to the other by a
//! doorbell, from one host to the other in a frame; and its misses in a simulated cache.
//!
//! Counting costs time, so it is done in separate samples whose times are not used.

use toehold_measure::page;
use toehold_measure::text::short;

use super::record::Record;

/// The table of all arms; nothing where nothing was counted.
pub(super) fn table(record: &Record) -> String {
    if record.crossings.is_empty() {
        return String::new();
    }
    let remarks = [
        "System calls are those of the programs, from their start on.".to_owned(),
        "A doorbell wakes the other end of the direct path, or the engine.".to_owned(),
        "A frame is what the link carries: with LSO, up to 64 KB.".to_owned(),
        "Cache misses are those of the client in valgrind's simulation (cachegrind) of this \
         machine's caches; what the kernel or another process misses is not in it."
            .to_owned(),
    ];
    format!(
        "<h2>Crossings, for each operation</h2>\n{}{}",
        page::table(&HEAD, &rows(record)),
        page::list(&remarks)
    )
}

/// The crossings as lines of text.
pub(super) fn text(record: &Record) -> String {
    if record.crossings.is_empty() {
        return String::new();
    }
    let mut out = String::from("\ncrossings, for each operation:\n");
    for row in rows(record) {
        let cells: Vec<String> = HEAD.iter().zip(&row).skip(2).map(cell).collect();
        out.push_str(&format!("  {}, {}: {}\n", row[0], row[1], cells.join(", ")));
    }
    out
}

fn cell((name, value): (&&str, &String)) -> String {
    format!("{} {value}", name.trim_start_matches('#'))
}

fn rows(record: &Record) -> Vec<Vec<String>> {
    let all = record.crossings.iter();
    all.map(|crossing| {
        let each =
            |count: Option<u64>| count.map(|count| count as f64 / crossing.operations as f64);
        let shown =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| short(rounded(value)));
        vec![
            record.plan.blocks[crossing.block].title.clone(),
            crossing.arm.clone(),
            shown(each(crossing.calls_client)),
            shown(each(crossing.calls_server)),
            shown(crossing.doorbells),
            shown(each(crossing.frames)),
            shown(crossing.misses.map(|(first, _)| first)),
            shown(crossing.misses.map(|(_, last)| last)),
        ]
    })
    .collect()
}

/// Rounds to two decimals: smaller amounts come from the programs' start and end.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The misses of a first-level data cache and of the last level, from cachegrind's summary.
pub(super) fn misses(log: &str) -> Option<(f64, f64)> {
    let number = |name: &str| {
        let line = log
            .lines()
            .find_map(|line| Some(line.split_once(name)?.1))?;
        let digits = line.split_whitespace().next()?.replace(',', "");
        digits.parse::<f64>().ok()
    };
    Some((number("D1  misses:")?, number("LLd misses:")?))
}

const HEAD: [&str; 8] = [
    "load",
    "arm",
    "#system calls, client",
    "#system calls, server",
    "#doorbells",
    "#frames",
    "#D1 misses, client",
    "#LL misses, client",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cachegrind_s_summary_is_read() {
        let log = "==7== D   refs:      53,000  (40,000 rd   + 13,000 wr)\n\
            ==7== D1  misses:     1,234  ( 1,000 rd   +    234 wr)\n\
            ==7== LLd misses:       567  (   500 rd   +     67 wr)\n";
        assert_eq!(misses(log), Some((1234.0, 567.0)));
        assert_eq!(misses("==7== Terminating"), None);
    }
}
