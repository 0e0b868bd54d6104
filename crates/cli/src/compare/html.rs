//! The comparison as one self-contained page: a plot and a conclusion for every metric.

use std::fmt::Write;

use toehold_measure::page::{self, escape};
use toehold_measure::plot::{self, Strip};
use toehold_measure::text::prefixed;

use super::report::{Group, MetricReport, Report, Verdict};
use super::table;

/// Renders the page.
pub(crate) fn render(report: &Report) -> String {
    let mut body = String::from("<h1>Toehold: does it help this program?</h1>\n");
    for banner in report.banners() {
        let _ = write!(body, "<p class=banner>{}</p>", escape(&banner));
    }
    let plan = &report.plan;
    let code = |text: &str| format!("<code>{}</code>", escape(text));
    let mut facts = vec![
        ("Server", code(&plan.server)),
        ("Client", code(&plan.client)),
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
        ("Command", code(&report.command)),
    ];
    let environment = report.environment.facts().into_iter();
    facts.extend(environment.map(|(name, value)| (name, escape(&value))));
    body.push_str(&page::facts(&facts));
    let client = plan.client_tool.unwrap_or("the clock");
    for (group, title) in [
        (Group::Results, format!("Reported by {client}")),
        (Group::Costs, "Costs".to_owned()),
    ] {
        let _ = write!(body, "<h2>{}</h2><div class=grid>", escape(&title));
        for metric in report.metrics.iter().filter(|metric| metric.group == group) {
            body.push_str(&figure(metric));
        }
        body.push_str("</div>");
    }
    body.push_str("<h2>Notes</h2>");
    let mut notes = vec![
        "each dot is one round, the bar the median, the band what the rounds allow for it"
            .to_owned(),
    ];
    notes.extend(table::notes(report));
    body.push_str(&page::list(&notes));
    let samples = page::download("samples.csv", "text/csv", &report.csv());
    let _ = write!(body, "<p>Every sample: {samples}</p>");
    page::page("Toehold comparison", &body)
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
            .map_or("-".to_owned(), |summary| prefixed(summary.median));
        let class = match arm.verdict {
            Some(Verdict::Better) => "better",
            Some(Verdict::Worse) => "worse",
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

/// The plot of one metric.
fn plot(metric: &MetricReport) -> String {
    let strips: Vec<Strip> = metric
        .arms
        .iter()
        .map(|arm| Strip {
            label: arm.label.clone(),
            samples: arm.samples.iter().flatten().copied().collect(),
            median: arm
                .summary
                .as_ref()
                .map(|summary| (summary.median, summary.median_low, summary.median_high)),
        })
        .collect();
    plot::strips(&metric.name, &strips)
}

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
}
