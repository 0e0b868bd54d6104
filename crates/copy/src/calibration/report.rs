//! The calibration as text for people: the curves, and the choice.

use std::fmt::{self, Write as _};

use super::{Calibration, Copybreak, Direction, Jobs, Point};

/// The copy engine's part of `toehold doctor`: the cost of copying on this machine, the lengths
/// from which on the engine is used, and the available engines.
pub fn calibration_report() -> String {
    let (calibration, notes) = Calibration::of_this_machine();
    let mut text = render(&calibration);
    text.push_str("engines\n");
    for engine in crate::open::list_engines() {
        let missing = engine
            .missing
            .map_or(String::new(), |why| format!(": not here, {why}"));
        let _ = writeln!(text, "  {:<8} {}{missing}", engine.name, engine.about);
    }
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn render(calibration: &Calibration) -> String {
    let mut text = String::from("copy engine, microseconds by length\n");
    let alone = ["hot", "cold", "nt hot", "nt cold", "engine hot", "cold"];
    table(&mut text, calibration, &alone, |p| {
        let by_hand = [p.hot_ns, p.cold_ns, p.nt_hot_ns, p.nt_cold_ns];
        by_hand
            .into_iter()
            .chain([p.engine_hot_ns, p.engine_cold_ns])
            .collect()
    });
    if calibration.points.iter().any(|p| p.engine_hot_ns > 0.0) {
        text.push_str(
            "with as much other work as a cold copy: by hand, and by the engine; \
             then with the target read afterwards\n",
        );
        let jobs = [
            "hot",
            "engine",
            "cold",
            "engine",
            "read, hot",
            "engine",
            "cold",
            "engine",
        ];
        table(&mut text, calibration, &jobs, |p| {
            let one = |j: &Jobs| {
                [
                    j.hand_hot_ns,
                    j.engine_hot_ns,
                    j.hand_cold_ns,
                    j.engine_cold_ns,
                ]
            };
            [one(&p.outward), one(&p.inward)].concat()
        });
    }
    for (name, direction) in [("in", Direction::In), ("out", Direction::Out)] {
        let Copybreak { awake, hot, asleep } = calibration.copybreak(direction);
        if awake == usize::MAX {
            let _ = writeln!(text, "copybreak {name:<3} never: copies are made by hand");
            continue;
        }
        let _ = write!(text, "copybreak {name:<3} {}", Size(awake));
        let _ = match hot {
            usize::MAX => write!(text, " for cold memory only"),
            hot if hot == awake => Ok(()),
            hot => write!(text, " for cold memory, {} for all", Size(hot)),
        };
        let _ = match asleep {
            usize::MAX => writeln!(text, ", and never to wake the engine"),
            asleep => writeln!(text, ", {} to wake it", Size(asleep)),
        };
    }
    let wake_us = calibration.wake_ns / 1000.0;
    if wake_us > 0.0 {
        let _ = writeln!(
            text,
            "waking the engine takes {wake_us:.1} us of its caller's time"
        );
    }
    let ticks = calibration.cold_ticks;
    let _ = writeln!(
        text,
        "memory counts as cold when four loads of it take more than {ticks} ticks"
    );
    let _ = match calibration.nontemporal_from {
        usize::MAX => writeln!(text, "no copy by hand goes past the cache"),
        bytes => writeln!(
            text,
            "cold copies by hand go past the cache from {} on, in {}",
            Size(bytes),
            match calibration.streams {
                1 => "one stream",
                _ => "four streams",
            }
        ),
    };
    if let Some(why) = &calibration.overridden {
        let _ = writeln!(text, "chosen by {why}");
    }
    let _ = match calibration.took.as_millis() {
        0 => writeln!(text, "remembered from an earlier start"),
        ms => writeln!(text, "measured in {ms} ms"),
    };
    text
}

fn table(
    text: &mut String,
    calibration: &Calibration,
    columns: &[&str],
    cells: impl Fn(&Point) -> Vec<f64>,
) {
    let _ = write!(text, "  {:>7}", "");
    for column in columns {
        let _ = write!(text, " {column:>10}");
    }
    text.push('\n');
    for point in &calibration.points {
        let _ = write!(text, "  {:>7}", Size(point.bytes).to_string());
        for ns in cells(point) {
            let cell = match ns > 0.0 {
                true => format!("{:.2}", ns / 1000.0),
                false => "-".to_owned(),
            };
            let _ = write!(text, " {cell:>10}");
        }
        text.push('\n');
    }
}

/// A length in bytes, written as `100`, `64K`, `2M` or `off`.
pub(super) struct Size(pub(super) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            usize::MAX => f.write_str("off"),
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => write!(f, "{}K", bytes >> 10),
            bytes => write!(f, "{bytes}"),
        }
    }
}
