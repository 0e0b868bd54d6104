//! Plots as SVG: lines over an axis, and rows of samples.

use std::fmt::Write as _;

use crate::page::escape;
use crate::text::{number, short};

/// An axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Axis<'a> {
    /// Its name, with the unit.
    pub label: &'a str,
    /// Equal distances mean equal ratios.
    pub is_logarithmic: bool,
    /// The numbers are lengths in bytes, to be written as 4K, 1M.
    pub is_bytes: bool,
}

/// One line of a plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points from left to right.
    pub points: Vec<Point>,
    /// Published numbers of others, drawn differently from ours.
    pub is_published: bool,
}

/// A point with its bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// The horizontal value.
    pub x: f64,
    /// The vertical value.
    pub y: f64,
    /// Bounds of `y`.
    pub bounds: (f64, f64),
}

/// A plot of lines with markers, bars and a key; `None` when there is no point.
pub fn lines(title: &str, x: Axis<'_>, y: Axis<'_>, lines: &[Line]) -> Option<String> {
    let is_drawn = |point: &&Point| {
        point.x.is_finite()
            && point.y.is_finite()
            && !(x.is_logarithmic && point.x <= 0.0)
            && !(y.is_logarithmic && point.y <= 0.0)
    };
    let points = || {
        lines
            .iter()
            .flat_map(|line| line.points.iter().filter(is_drawn))
    };
    let across = Scale::new(x, points().map(|point| point.x), (LEFT, WIDTH - RIGHT))?;
    let up = Scale::new(y, points().map(|point| point.y), (HEIGHT - BOTTOM, TOP))?;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img aria-label=\"{}\">\n",
        escape(title)
    );
    draw_axes(&mut svg, &across, &up);
    let mut keys = String::new();
    for (at, line) in lines.iter().enumerate() {
        let points: Vec<Point> = line.points.iter().filter(is_drawn).copied().collect();
        draw_line(&mut svg, at, line, &points, &across, &up);
        if !points.is_empty() {
            let _ = write!(
                keys,
                "<span class=key><svg viewBox=\"0 0 26 10\"><path class=\"line c{0}{1}\" \
                 d=\"M0 5H24\"/>{2}</svg> {3}</span>",
                at % COLOURS,
                manner(at, line),
                marker(at, line, 12.0, 5.0, ""),
                escape(&line.name)
            );
        }
    }
    let _ = write!(svg, "</svg>\n<div>{keys}</div>\n");
    Some(svg)
}

/// The samples of one arm.
#[derive(Clone, PartialEq, Debug)]
pub struct Strip {
    /// The arm's name.
    pub label: String,
    /// Its samples in the order of the rounds.
    pub samples: Vec<f64>,
    /// The median and its bounds, if known.
    pub median: Option<(f64, f64, f64)>,
}

/// A plot with one row for each arm: every sample is a dot, the median a bar, its bounds a band.
/// All rows share one axis that begins at zero, so that lengths can be compared.
pub fn strips(title: &str, strips: &[Strip]) -> String {
    let samples = strips.iter().flat_map(|strip| strip.samples.iter());
    let largest = samples.fold(0.0, |a: f64, b| a.max(*b));
    if largest <= 0.0 {
        return "<p class=quiet>zero in every round</p>".to_owned();
    }
    let end = axis_end(largest);
    let x = |value: f64| STRIP_LEFT + (value / end) * (WIDTH - STRIP_LEFT - STRIP_RIGHT);
    let height = strips.len() as f64 * ROW_HEIGHT + AXIS_HEIGHT;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{}\">",
        escape(title)
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
    for (row, strip) in strips.iter().enumerate() {
        draw_strip(&mut svg, strip, row, &x);
    }
    svg.push_str("</svg>");
    svg
}

fn draw_strip(svg: &mut String, strip: &Strip, row: usize, x: &dyn Fn(f64) -> f64) {
    let top = row as f64 * ROW_HEIGHT;
    let half = (ROW_HEIGHT - LABEL_HEIGHT) * 0.44;
    let middle = top + LABEL_HEIGHT + half;
    // The colours repeat after the last one; the labels distinguish the rows.
    let colour = row % COLOURS;
    // The label is above its row: beside the row, a long label would leave little width for the
    // plot.
    let _ = write!(
        svg,
        "<text class=ink x={STRIP_LEFT} y={:.1}>{}</text>",
        top + LABEL_HEIGHT - 3.0,
        escape(&strip.label)
    );
    if let Some((_, low, high)) = strip.median {
        let _ = write!(
            svg,
            "<rect class=\"band c{colour}\" x={:.1} y={:.1} width={:.1} height={:.1} />",
            x(low),
            middle - half,
            (x(high) - x(low)).max(1.0),
            half * 2.0
        );
    }
    for (at, sample) in strip.samples.iter().enumerate() {
        // The samples of later rounds are lower in the row, so that equal samples do not hide each
        // other and a drift is visible.
        let step = match strip.samples.len() {
            0 | 1 => 0.0,
            many => at as f64 / (many - 1) as f64 - 0.5,
        };
        let _ = write!(
            svg,
            "<circle class=c{colour} cx={:.1} cy={:.1} r=2.6 />",
            x(*sample),
            middle + step * half * 1.6
        );
    }
    if let Some((median, _, _)) = strip.median {
        let _ = write!(
            svg,
            "<line class=\"median c{colour}\" x1={0:.1} y1={1:.1} x2={0:.1} y2={2:.1} />",
            x(median),
            middle - half,
            middle + half
        );
    }
}

fn draw_axes(svg: &mut String, x: &Scale<'_>, y: &Scale<'_>) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for tick in x.ticks() {
        let (at, label) = (x.place(tick), number(tick, x.axis.is_bytes));
        let _ = writeln!(
            svg,
            "<path class=rule d=\"M{at:.1} {TOP}V{bottom}\"/>\
             <text x={at:.1} y={} text-anchor=middle>{label}</text>",
            bottom + 16.0
        );
    }
    for tick in y.ticks() {
        let (at, label) = (y.place(tick), number(tick, y.axis.is_bytes));
        let _ = writeln!(
            svg,
            "<path class=rule d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text x={} y={:.1} text-anchor=end>{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x={} y={} text-anchor=middle>{}</text><text x=4 y={}>{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 6.0,
        escape(x.axis.label),
        TOP - 10.0,
        escape(y.axis.label)
    );
}

fn draw_line(
    svg: &mut String,
    at: usize,
    line: &Line,
    points: &[Point],
    x: &Scale<'_>,
    y: &Scale<'_>,
) {
    let colour = at % COLOURS;
    let mut path = String::new();
    for point in points {
        let (px, py) = (x.place(point.x), y.place(point.y));
        let step = if path.is_empty() { "M" } else { "L" };
        let _ = write!(path, "{step}{px:.1} {py:.1}");
        let (low, high) = point.bounds;
        let title = format!(
            "<title>{} at {}: {} [{}, {}]</title>",
            escape(&line.name),
            number(point.x, x.axis.is_bytes),
            number(point.y, false),
            number(low, false),
            number(high, false)
        );
        let _ = writeln!(
            svg,
            "<path class=c{colour} d=\"M{px:.1} {:.1}V{:.1}\"/>\
             {}",
            y.place(low),
            y.place(high),
            marker(at, line, px, py, &title)
        );
    }
    let _ = writeln!(
        svg,
        "<path class=\"line c{colour}{}\" d=\"{path}\"/>",
        manner(at, line)
    );
}

/// The line style, because colours repeat.
fn manner(at: usize, line: &Line) -> &'static str {
    match at / COLOURS {
        _ if line.is_published => " published",
        0 => "",
        1 => " dashed",
        _ => " dotted",
    }
}

/// The marker of a point: one shape for each repetition of the colours, and another for published
/// numbers.
fn marker(at: usize, line: &Line, x: f64, y: f64, title: &str) -> String {
    let path = match at / COLOURS {
        _ if line.is_published => format!("M{x:.1} {:.1}l4 4l-4 4l-4 -4z", y - 4.0),
        0 => format!("M{:.1} {y:.1}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", x - 3.0),
        1 => format!("M{:.1} {:.1}h6v6h-6z", x - 3.0, y - 3.0),
        _ => format!("M{x:.1} {:.1}l4 7h-8z", y - 4.0),
    };
    format!(
        "<path class=\"mark c{}\" d=\"{path}\">{title}</path>",
        at % COLOURS
    )
}

/// Converts values to coordinates.
struct Scale<'a> {
    axis: Axis<'a>,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale<'_> {
    fn new<'a>(
        axis: Axis<'a>,
        values: impl Iterator<Item = f64>,
        paper: (f64, f64),
    ) -> Option<Scale<'a>> {
        let values: Vec<f64> = values.collect();
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
            (low.min(0.0), axis_end(high))
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
            let step = (self.high - self.low) / f64::from(TICKS);
            return (0..=TICKS)
                .map(|i| self.low + step * f64::from(i))
                .collect();
        }
        let base = if self.axis.is_bytes { 2.0 } else { 10.0 };
        let mut all = vec![self.low];
        while all[all.len() - 1] * base <= self.high * 1.0001 && all.len() < TICKS_MAX {
            all.push(all[all.len() - 1] * base);
        }
        // As many labels as there is room for.
        let every = all.len().div_ceil(LABELS_MAX);
        all.into_iter().step_by(every).collect()
    }
}

/// The first axis end above `largest` whose quarters are short numbers.
fn axis_end(largest: f64) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(largest.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];
    steps
        .iter()
        .map(|step| step * power)
        .find(|end| *end >= largest * 1.02)
        .unwrap_or(12.0 * power)
}

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;

const STRIP_LEFT: f64 = 10.0;
/// Room for half of the last number on the axis.
const STRIP_RIGHT: f64 = 26.0;
/// Height of a row: its label, and its samples below.
const ROW_HEIGHT: f64 = 46.0;
const LABEL_HEIGHT: f64 = 17.0;
const AXIS_HEIGHT: f64 = 20.0;

const TICKS: u32 = 4;
const TICKS_MAX: usize = 40;
const LABELS_MAX: usize = 9;

/// The number of colours in the page's style.
const COLOURS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Axis<'_> = Axis {
        label: "bytes",
        is_logarithmic: true,
        is_bytes: true,
    };
    const LINEAR: Axis<'_> = Axis {
        label: "us",
        is_logarithmic: false,
        is_bytes: false,
    };

    #[test]
    fn equal_ratios_are_equal_distances_on_a_logarithmic_axis() {
        let scale = Scale::new(BYTES, [1024.0, 4096.0].into_iter(), (0.0, 100.0)).unwrap();
        assert_eq!(scale.ticks(), [1024.0, 2048.0, 4096.0]);
        assert!((scale.place(2048.0) - 50.0).abs() < 1e-9);
        let wide = Scale::new(BYTES, [1.0, 1048576.0].into_iter(), (0.0, 100.0)).unwrap();
        assert!(wide.ticks().len() <= LABELS_MAX);
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_survives_a_single_value() {
        let scale = Scale::new(LINEAR, [30.0].into_iter(), (100.0, 0.0)).unwrap();
        assert_eq!(scale.place(0.0), 100.0);
        assert!(Scale::new(LINEAR, std::iter::empty(), (0.0, 1.0)).is_none());
        let zero = Scale::new(LINEAR, [0.0].into_iter(), (0.0, 1.0)).unwrap();
        assert!(zero.place(0.0).is_finite());
    }

    #[test]
    fn points_that_cannot_be_drawn_are_left_out() {
        let point = |x, y| Point {
            x,
            y,
            bounds: (y, y),
        };
        let line = |points| Line {
            name: "a <line>".to_owned(),
            points,
            is_published: true,
        };
        let drawn = lines(
            "t",
            BYTES,
            LINEAR,
            &[line(vec![
                point(1.0, 2.0),
                point(0.0, 1.0),
                point(2.0, f64::NAN),
            ])],
        );
        let svg = drawn.expect("one point");
        assert_eq!(svg.matches("<title>").count(), 1);
        assert!(
            svg.contains("a &lt;line&gt;") && svg.contains("published") && !svg.contains("NaN")
        );
        assert!(lines("t", BYTES, LINEAR, &[line(vec![point(0.0, 1.0)])]).is_none());
    }

    #[test]
    fn lines_of_one_colour_differ_in_dashes_and_in_shapes() {
        let all: Vec<Line> = (0..2 * COLOURS + 2)
            .map(|at| Line {
                name: format!("line {at}"),
                points: vec![Point {
                    x: 1.0 + at as f64,
                    y: 1.0,
                    bounds: (1.0, 1.0),
                }],
                is_published: at == 1,
            })
            .collect();
        // Lines 0, 8 and 16 share a colour; line 1 has published numbers.
        let drawn: Vec<(&str, String)> = [0, COLOURS, 2 * COLOURS, 1]
            .map(|at| (manner(at, &all[at]), marker(at, &all[at], 9.0, 9.0, "")))
            .to_vec();
        for (at, one) in drawn.iter().enumerate() {
            for other in &drawn[at + 1..] {
                assert!(one.0 != other.0 && one.1 != other.1, "{one:?} {other:?}");
            }
        }
        let svg = lines("t", BYTES, LINEAR, &all).expect("points");
        assert!(svg.contains(" dashed\"") && svg.contains(" dotted\""));
    }

    #[test]
    fn every_sample_of_a_strip_is_a_dot() {
        let strip = Strip {
            label: "a".to_owned(),
            samples: vec![1.0, 2.0, 3.0],
            median: Some((2.0, 1.0, 3.0)),
        };
        let svg = strips("t", std::slice::from_ref(&strip));
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("class=\"median").count(), 1);
        assert!(strips("t", &[]).contains("zero in every round"));
        // A long name is above its row, and takes no width from the plot.
        let mut long = strip.clone();
        long.label = "kernel, veth, no offloads".to_owned();
        let circles = |svg: &str| svg[svg.find("<circle").expect("samples")..].to_owned();
        assert_eq!(circles(&strips("t", &[long])), circles(&svg));
    }

    #[test]
    fn the_axis_ends_at_a_round_number_beyond_the_samples() {
        for largest in [0.0003, 0.99, 1.0, 7.0, 101.0, 99_999.0, 3.3e9] {
            let end = axis_end(largest);
            assert!(end >= largest && end <= largest * 2.1, "{largest} {end}");
        }
    }
}
