//! A figure as SVG: lines with markers and quartile bars, on linear or logarithmic axes.

use std::fmt::Write as _;

use crate::plan::{Axis, Figure};
use crate::report::{Report, Row};
use crate::table::{column_name, number};

/// The figure, or nothing when none of its rows was measured.
pub(crate) fn render(report: &Report, figure: &Figure) -> Option<String> {
    let rows: Vec<&Row> = figure
        .metrics
        .iter()
        .flat_map(|metric| report.rows_of(figure.group, metric))
        .filter(|row| row.median.is_finite())
        .collect();
    let mut lines: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows.iter().copied() {
        let name = column_name(figure, row);
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(row),
            None => lines.push((name, vec![row])),
        }
    }
    let x = Scale::new(
        figure.x,
        rows.iter().map(|row| row.x),
        (LEFT, WIDTH - RIGHT),
    )?;
    let y = Scale::new(
        figure.y,
        rows.iter().map(|row| row.median),
        (HEIGHT - BOTTOM, TOP),
    )?;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(figure.title)
    );
    draw_axes(&mut svg, figure, &x, &y);
    for (at, (name, points)) in lines.iter_mut().enumerate() {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        draw_line(&mut svg, at, name, points, &x, &y);
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

fn draw_axes(svg: &mut String, figure: &Figure, x: &Scale, y: &Scale) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for tick in x.ticks() {
        let (at, label) = (x.place(tick), number(tick, figure.x.is_bytes));
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        );
    }
    for tick in y.ticks() {
        let (at, label) = (y.place(tick), number(tick, figure.y.is_bytes));
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 6.0,
        escape(figure.x.label)
    );
    let _ = writeln!(
        svg,
        "<text x=\"4\" y=\"{}\">{}</text>",
        TOP - 8.0,
        escape(figure.y.label)
    );
}

fn draw_line(svg: &mut String, at: usize, name: &str, points: &[&Row], x: &Scale, y: &Scale) {
    let color = COLORS[at % COLORS.len()];
    let mut path = String::new();
    for row in points {
        let (px, py) = (x.place(row.x), y.place(row.median));
        let _ = write!(
            path,
            "{}{px:.1} {py:.1}",
            if path.is_empty() { "M" } else { "L" }
        );
        let (low, high) = (row.samples.quantile(0.25), row.samples.quantile(0.75));
        let _ = writeln!(
            svg,
            "<path stroke=\"{color}\" d=\"M{px:.1} {:.1}V{:.1}\"/>\
             <circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"2.5\" fill=\"{color}\">\
             <title>{} at {}: {} {}, quartiles {} to {}</title></circle>",
            y.place(low),
            y.place(high),
            escape(name),
            number(row.x, x.axis.is_bytes),
            number(row.median, false),
            row.unit,
            number(low, false),
            number(high, false)
        );
    }
    let dash = if at >= COLORS.len() {
        " stroke-dasharray=\"5 3\""
    } else {
        ""
    };
    let _ = writeln!(
        svg,
        "<path class=\"line\" stroke=\"{color}\"{dash} d=\"{path}\"/>"
    );
    let (left, top) = (WIDTH - RIGHT + 12.0, TOP + 8.0 + 17.0 * at as f64);
    let _ = writeln!(
        svg,
        "<path class=\"line\" stroke=\"{color}\"{dash} d=\"M{left} {top}h18\"/>\
         <text x=\"{}\" y=\"{}\">{}</text>",
        left + 24.0,
        top + 4.0,
        escape(name)
    );
}

/// From values to places on the paper.
struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(axis: Axis, values: impl Iterator<Item = f64>, paper: (f64, f64)) -> Option<Scale> {
        let values: Vec<f64> = values
            .filter(|&v| !axis.is_logarithmic || v > 0.0)
            .collect();
        let low = values.iter().copied().min_by(f64::total_cmp)?;
        let high = values.iter().copied().max_by(f64::total_cmp)?;
        let (mut low, mut high) = if axis.is_logarithmic {
            let base = if axis.is_bytes { 2f64 } else { 10f64 };
            let decade = |v: f64| v.ln() / base.ln();
            (
                base.powf((decade(low) + 1e-9).floor()),
                base.powf((decade(high) - 1e-9).ceil()),
            )
        } else {
            (low.min(0.0), nice(high))
        };
        if low >= high {
            (low, high) = if axis.is_logarithmic {
                (low / 2.0, low * 2.0)
            } else {
                (low, low + 1.0)
            };
        }
        Some(Scale {
            axis,
            low,
            high,
            from: paper.0,
            to: paper.1,
        })
    }

    fn place(&self, value: f64) -> f64 {
        let part = if self.axis.is_logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.axis.is_logarithmic {
            return (0..=5)
                .map(|i| self.low + (self.high - self.low) * f64::from(i) / 5.0)
                .collect();
        }
        let base = if self.axis.is_bytes { 2.0 } else { 10.0 };
        let mut ticks = vec![self.low];
        while ticks[ticks.len() - 1] * base <= self.high * 1.0001 && ticks.len() < TICKS_MAX {
            ticks.push(ticks[ticks.len() - 1] * base);
        }
        ticks
    }
}

/// The next number upwards that looks well at the end of an axis.
fn nice(high: f64) -> f64 {
    if high <= 0.0 {
        return 1.0;
    }
    let unit = 10f64.powf(high.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|n| n * unit)
        .find(|&n| n >= high)
        .unwrap_or(high)
}

/// Text inside markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;

const TICKS_MAX: usize = 40;

/// Okabe and Ito's colours, which most eyes can tell apart.
const COLORS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#7a5c00",
];

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Axis = Axis {
        label: "bytes",
        is_logarithmic: true,
        is_bytes: true,
    };
    const LINEAR: Axis = Axis {
        label: "us",
        is_logarithmic: false,
        is_bytes: false,
    };

    #[test]
    fn equal_ratios_are_equal_distances_on_a_logarithmic_axis() {
        let scale = Scale::new(BYTES, [1024.0, 4096.0].into_iter(), (0.0, 100.0)).unwrap();
        assert_eq!(scale.ticks(), [1024.0, 2048.0, 4096.0]);
        assert!((scale.place(2048.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_survives_a_single_value() {
        let scale = Scale::new(LINEAR, [30.0].into_iter(), (100.0, 0.0)).unwrap();
        assert_eq!(scale.place(0.0), 100.0);
        assert_eq!(scale.ticks().len(), 6);
        assert!(Scale::new(LINEAR, std::iter::empty(), (0.0, 1.0)).is_none());
        let zero = Scale::new(LINEAR, [0.0].into_iter(), (0.0, 1.0)).unwrap();
        assert!(zero.place(0.0).is_finite());
    }
}
