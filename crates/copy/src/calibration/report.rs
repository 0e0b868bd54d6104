//! The calibration as text for people: the curves, and the choice.

use std::fmt::{self, Write as _};

use super::{Calibration, Copybreak, Direction};

/// The copy engine's part of `toehold doctor`: what copying costs on this machine, from where on the engine is used,
/// and which engines there are.
pub fn calibration_report() -> String {
    let (calibration, notes) = Calibration::of_this_machine();
    let mut text = render(&calibration);
    text.push_str("engines\n");
    for engine in crate::open::survey() {
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
    let columns = [
        "hot",
        "cold",
        "nt hot",
        "nt cold",
        "engine",
        "its caller",
        "read",
        "read after",
    ];
    let _ = write!(text, "  {:>7}", "");
    for column in columns {
        let _ = write!(text, " {column:>10}");
    }
    text.push('\n');
    for p in &calibration.points {
        let _ = write!(text, "  {:>7}", Size(p.bytes).to_string());
        let by_hand = [p.hot_ns, p.cold_ns, p.nt_hot_ns, p.nt_cold_ns].map(Some);
        let has_engine = p.engine_ns > 0.0;
        let by_engine = [p.engine_ns, p.engine_caller_ns].map(|ns| has_engine.then_some(ns));
        let reads = [Some(p.read_ns), has_engine.then_some(p.engine_read_ns)];
        for ns in by_hand.into_iter().chain(by_engine).chain(reads) {
            let cell = ns.map_or("-".to_owned(), |ns| format!("{:.2}", ns / 1000.0));
            let _ = write!(text, " {cell:>10}");
        }
        text.push('\n');
    }
    for (name, direction) in [("in", Direction::In), ("out", Direction::Out)] {
        let Copybreak { awake, asleep } = calibration.copybreak(direction);
        let _ = match (awake, asleep) {
            (usize::MAX, _) => writeln!(text, "copybreak {name:<3} never: copies are made by hand"),
            (awake, usize::MAX) => {
                writeln!(
                    text,
                    "copybreak {name:<3} {}, and never to wake the engine",
                    Size(awake)
                )
            }
            (awake, asleep) => {
                writeln!(
                    text,
                    "copybreak {name:<3} {}, {} to wake it",
                    Size(awake),
                    Size(asleep)
                )
            }
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
        "memory counts as cold when its first page takes more than {ticks} ticks"
    );
    if let Some(why) = &calibration.overridden {
        let _ = writeln!(text, "chosen by {why}");
    }
    let _ = match calibration.took.as_millis() {
        0 => writeln!(text, "remembered from an earlier start"),
        ms => writeln!(text, "measured in {ms} ms"),
    };
    text
}

/// A length as people write it.
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
