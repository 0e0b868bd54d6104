//! A report as one HTML file that needs nothing else.

use std::fmt::Write as _;

use crate::plan::Figure;
use crate::plot::{self, escape};
use crate::report::Report;
use crate::table::number;

/// Plots, then every number, then what was published.
pub(crate) fn render(report: &Report, figures: &[Figure]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{name}</title>\n<style>{STYLE}</style>\n\
         <h1>{name}</h1>\n<p>{}</p>\n<p>{}. Medians of {} interleaved rounds; bars reach from the \
         first \
         quartile to the third.</p>\n",
        escape(report.about),
        escape(&report.environment.summary()),
        report.rounds,
        name = escape(report.plan),
    );
    write_claims(&mut html, report);
    for figure in figures {
        if let Some(svg) = plot::render(report, figure) {
            let _ = write!(html, "<h2>{}</h2>\n{svg}", escape(figure.title));
        }
    }
    write_notes(&mut html, report);
    write_published(&mut html, report);
    write_rows(&mut html, report, figures);
    html
}

fn write_claims(html: &mut String, report: &Report) {
    if report.claims.is_empty() {
        return;
    }
    html.push_str("<table><tr><th>wanted<th>found<th>\n");
    for claim in &report.claims {
        let verdict = if claim.holds {
            "holds"
        } else {
            "does not hold"
        };
        let (wanted, found) = (escape(&claim.wanted), escape(&claim.found));
        let _ = writeln!(html, "<tr><td>{wanted}<td>{found}<td>{verdict}");
    }
    html.push_str("</table>\n");
}

fn write_notes(html: &mut String, report: &Report) {
    if report.notes.is_empty() {
        return;
    }
    html.push_str("<h2>Notes</h2>\n<ul>\n");
    for note in &report.notes {
        let _ = writeln!(html, "<li>{}", escape(note));
    }
    html.push_str("</ul>\n");
}

fn write_published(html: &mut String, report: &Report) {
    if report.published.is_empty() {
        return;
    }
    html.push_str(
        "<h2>Published</h2>\n<p>On the machines of the time, and beside it what was found \
        here.</p>\n\
         <table><tr><th>where<th>what<th>published<th>here<th>conditions<th>systems<th>kind\n",
    );
    for p in &report.published {
        let _ = writeln!(
            html,
            "<tr><td>{}<td>{}<td>{} {}<td>{}<td>{}<td>{}<td>{}",
            escape(&p.figure),
            escape(&p.metric),
            escape(&p.value.to_string()),
            escape(&p.unit),
            escape(p.here.as_deref().unwrap_or("-")),
            escape(&p.conditions),
            escape(&p.system),
            escape(&p.kind)
        );
    }
    html.push_str("</table>\n");
}

fn write_rows(html: &mut String, report: &Report, figures: &[Figure]) {
    html.push_str(
        "<h2>Measured</h2>\n<table><tr><th>group<th>series<th>at<th>metric<th>median<th>unit\
         <th>spread<th>samples\n",
    );
    for row in &report.rows {
        let is_bytes = figures.iter().any(|f| f.group == row.group && f.x.is_bytes);
        let _ = writeln!(
            html,
            "<tr><td>{}<td>{}<td class=n>{}<td>{}<td class=n>{}<td>{}<td class=n>{:.1} %<td \
            class=n>{}",
            escape(row.group),
            escape(&row.series),
            number(row.x, is_bytes),
            escape(row.metric),
            number(row.median, false),
            escape(row.unit),
            row.spread * 100.0,
            row.samples.len()
        );
    }
    html.push_str("</table>\n");
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem;\
color:#222;background:#fff}svg{width:100%;height:auto}svg text{font-size:11px;fill:#444}\
.grid{stroke:#e4e4e4}.line{fill:none;stroke-width:1.8}\
table{border-collapse:collapse;font-size:13px}\
td,th{padding:2px 8px;border-bottom:1px solid #e4e4e4;text-align:left;vertical-align:top}\
.n{text-align:right;font-variant-numeric:tabular-nums}";
