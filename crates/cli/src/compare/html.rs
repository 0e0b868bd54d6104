//! The comparison as one self-contained page: no script, no font, no image from elsewhere.
//!
//! Each metric is a small drawing: every sample a dot, the median a bar, its 95 % interval a band,
//! one line for each path, all on one axis that begins at zero, so that lengths can be compared.

use std::fmt::Write;

use super::report::{ArmMetric, Conclusion, Group, MetricReport, Report};
use super::table::{self, number};

/// Renders the page.
pub(crate) fn render(report: &Report) -> String {
    let mut page = String::new();
    let _ = write!(page, "{HEAD}<style>{STYLE}</style></head><body><main>");
    page.push_str("<h1>Toehold: does it help this program?</h1><dl>");
    let plan = &report.plan;
    let facts = [
        ("Server", format!("<code>{}</code>", escape(&plan.server))),
        ("Client", format!("<code>{}</code>", escape(&plan.client))),
        ("Host", escape(&report.environment.sentence())),
        (
            "Rounds",
            format!(
                "{} of each path, interleaved (seed {}), after {} warm-up",
                plan.rounds, plan.seed, plan.warmups
            ),
        ),
        (
            "Placement",
            format!(
                "{}; wait {}",
                escape(&table::placement(report)),
                plan.wait.word()
            ),
        ),
    ];
    for (name, value) in facts {
        let _ = write!(page, "<dt>{name}</dt><dd>{value}</dd>");
    }
    page.push_str("</dl>");
    let client = plan.client_tool.unwrap_or("the clock");
    for (group, title) in [
        (Group::Results, format!("What {client} says")),
        (Group::Costs, "What it cost".to_owned()),
    ] {
        let _ = write!(page, "<h2>{}</h2><div class=grid>", escape(&title));
        for metric in report.metrics.iter().filter(|metric| metric.group == group) {
            page.push_str(&figure(metric));
        }
        page.push_str("</div>");
    }
    page.push_str("<h2>Notes</h2><ul>");
    page.push_str("<li>each dot is one round, the bar the median, the band its 95 % interval</li>");
    for note in table::notes(report) {
        let _ = write!(page, "<li>{}</li>", escape(&note));
    }
    page.push_str("</ul></main></body></html>\n");
    page
}

fn figure(metric: &MetricReport) -> String {
    let mut out = String::from("<figure>");
    let _ = write!(
        out,
        "<figcaption><b>{}</b>, {} <span class=quiet>({})</span></figcaption>",
        escape(&metric.name),
        escape(&metric.unit),
        metric.better.words()
    );
    out.push_str(&plot(metric));
    out.push_str("<table>");
    for arm in &metric.arms {
        let median = arm
            .summary
            .as_ref()
            .map_or("-".to_owned(), |summary| number(summary.median));
        let class = match arm.verdict {
            Some(Conclusion::Better) => "better",
            Some(Conclusion::Worse) => "worse",
            _ => "quiet",
        };
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=number>{median}</td><td class={class}>{}</td></tr>",
            escape(&arm.label),
            escape(&table::conclusion(&metric.arms[0], arm))
        );
    }
    out.push_str("</table></figure>");
    out
}

/// The drawing of one metric.
fn plot(metric: &MetricReport) -> String {
    let largest = metric
        .arms
        .iter()
        .flat_map(|arm| arm.samples.iter().flatten())
        .fold(0.0, |a: f64, b| a.max(*b));
    if largest <= 0.0 {
        return "<p class=quiet>zero in every round</p>".to_owned();
    }
    let end = axis_end(largest);
    let x = |value: f64| LABEL_WIDTH + (value / end) * PLOT_WIDTH;
    let height = metric.arms.len() as f64 * ROW_HEIGHT + AXIS_HEIGHT;
    let width = LABEL_WIDTH + PLOT_WIDTH + MARGIN;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=img aria-label=\"{}\">",
        escape(&metric.name)
    );
    let bottom = height - AXIS_HEIGHT;
    for tick in 0..=TICKS {
        let value = end * f64::from(tick) / f64::from(TICKS);
        let at = x(value);
        let _ = write!(
            svg,
            "<line class=rule x1={at:.1} y1=0 x2={at:.1} y2={bottom} /><text x={at:.1} y={:.1} \
            text-anchor=middle>{}</text>",
            height - 4.0,
            short(value)
        );
    }
    for (row, arm) in metric.arms.iter().enumerate() {
        draw_arm(&mut svg, arm, row, &x);
    }
    svg.push_str("</svg>");
    svg
}

fn draw_arm(svg: &mut String, arm: &ArmMetric, row: usize, x: &dyn Fn(f64) -> f64) {
    let middle = (row as f64 + 0.5) * ROW_HEIGHT;
    // Colours repeat beyond the fourth arm; the label tells them apart.
    let colour = row % 4;
    let _ = write!(
        svg,
        "<text x={:.1} y={:.1} text-anchor=end>{}</text>",
        LABEL_WIDTH - 8.0,
        middle + 4.0,
        escape(&arm.label)
    );
    let samples: Vec<f64> = arm.samples.iter().flatten().copied().collect();
    if let Some(summary) = &arm.summary {
        let (low, high) = (x(summary.median_low), x(summary.median_high));
        let _ = write!(
            svg,
            "<rect class=\"band c{colour}\" x={low:.1} y={:.1} width={:.1} height={:.1} />",
            middle - ROW_HEIGHT * 0.38,
            (high - low).max(1.0),
            ROW_HEIGHT * 0.76
        );
    }
    for (at, sample) in samples.iter().enumerate() {
        // Rounds descend through the row, so that equal samples do not hide each other and a drift
        // shows.
        let step = if samples.len() > 1 {
            at as f64 / (samples.len() - 1) as f64 - 0.5
        } else {
            0.0
        };
        let _ = write!(
            svg,
            "<circle class=c{colour} cx={:.1} cy={:.1} r=2.6 />",
            x(*sample),
            middle + step * ROW_HEIGHT * 0.6
        );
    }
    if let Some(summary) = &arm.summary {
        let _ = write!(
            svg,
            "<line class=\"median c{colour}\" x1={0:.1} y1={1:.1} x2={0:.1} y2={2:.1} />",
            x(summary.median),
            middle - ROW_HEIGHT * 0.38,
            middle + ROW_HEIGHT * 0.38
        );
    }
}

/// A tick's number, with no digits that say nothing: `100 k`, not `100.0 k`.
fn short(value: f64) -> String {
    let text = number(value);
    let (digits, prefix) = text.split_once(' ').unwrap_or((&text, ""));
    let digits = if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    };
    if prefix.is_empty() {
        digits.to_owned()
    } else {
        format!("{digits} {prefix}")
    }
}

/// The first end beyond `largest` whose quarters are short numbers.
fn axis_end(largest: f64) -> f64 {
    let power = 10f64.powf(largest.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];
    steps
        .iter()
        .map(|step| step * power)
        .find(|end| *end >= largest * 1.02)
        .unwrap_or(12.0 * power)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const LABEL_WIDTH: f64 = 84.0;
const PLOT_WIDTH: f64 = 390.0;
const MARGIN: f64 = 26.0;
const ROW_HEIGHT: f64 = 34.0;
const AXIS_HEIGHT: f64 = 20.0;
const TICKS: u32 = 4;

const HEAD: &str = "<!doctype html><html lang=en><head><meta charset=utf-8>\
<meta name=viewport content=\"width=device-width, initial-scale=1\">\
<title>Toehold comparison</title>";

/// Colours are told apart in both themes and by readers who do not see red and green.
const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1e23;--quiet:#5d6673;--rule:#dfe3e8;\
--c0:#5d6673;--c1:#0b6bcb;--c2:#b3570a;--c3:#7a3fb5;--good:#0b6b3a;--bad:#a8321e}\
@media(prefers-color-scheme:dark){\
:root{--paper:#14171b;--ink:#e6e9ed;--quiet:#98a2b0;--rule:#2c323a;\
--c0:#98a2b0;--c1:#5fa8f5;--c2:#f0a35e;--c3:#bd93f0;--good:#5cc98a;--bad:#f08a74}}\
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\
main{max-width:1120px;margin:0 auto;padding:24px 20px 48px}h1{font-size:1.5rem;margin:.2em 0 .6em}\
h2{font-size:1.1rem;margin:2em 0 .6em}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0}\
dt{color:var(--quiet)}dd{margin:0;overflow-wrap:anywhere}code{font-size:.92em}\
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,500px),1fr));\
gap:18px 28px}\
figure{margin:0;border-top:1px solid var(--rule);padding-top:8px}\
svg{width:100%;height:auto;display:block}\
svg text{fill:var(--quiet);font-size:11px}.rule{stroke:var(--rule)}circle{opacity:.75}\
.band{opacity:.18}.median{stroke-width:2.5}\
.c0{fill:var(--c0);stroke:var(--c0)}.c1{fill:var(--c1);stroke:var(--c1)}\
.c2{fill:var(--c2);stroke:var(--c2)}.c3{fill:var(--c3);stroke:var(--c3)}\
circle,.band{stroke-width:0}\
table{border-collapse:collapse;font-size:.9em}td{padding:1px 14px 1px 0}.number{text-align:right;\
font-variant-numeric:tabular-nums}.quiet{color:var(--quiet)}\
.better{color:var(--good)}.worse{color:var(--bad)}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::tests::sample;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = render(&sample(&[100.0, 101.0, 99.0], &[200.0, 210.0, 205.0]));
        for forbidden in [
            "http:", "https:", "<script", "src=", "url(", "@import", "<link",
        ] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn every_sample_is_a_dot() {
        let report = sample(&[100.0, 101.0, 99.0], &[200.0, 210.0, 205.0]);
        let page = plot(&report.metrics[0]);
        assert_eq!(page.matches("<circle").count(), 6);
        assert_eq!(page.matches("class=\"median").count(), 2);
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn commands_are_escaped() {
        let page = render(&sample(&[1.0; 3], &[1.0; 3]));
        assert!(page.contains("serve &lt;it&gt;") && !page.contains("serve <it>"));
    }

    #[test]
    fn a_metric_of_zeros_has_no_axis() {
        let report = sample(&[1.0; 3], &[1.0; 3]);
        let zero = report
            .metrics
            .iter()
            .find(|metric| metric.name == "CPU, server")
            .expect("a cost");
        assert!(plot(zero).contains("zero in every round"));
    }

    #[test]
    fn the_axis_ends_at_a_round_number_beyond_the_samples() {
        for largest in [0.0003, 0.99, 1.0, 7.0, 101.0, 99_999.0, 3.3e9] {
            let end = axis_end(largest);
            assert!(end >= largest && end <= largest * 2.1, "{largest} {end}");
        }
        assert_eq!(
            (short(100_000.0), short(2.5)),
            ("100 k".to_owned(), "2.5".to_owned())
        );
    }
}
