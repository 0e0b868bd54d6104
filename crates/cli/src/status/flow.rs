//! The state of a connection of the adapter's engine, in two lines.

use super::answer::{Connection, Flow};
use super::count::count;

/// The engine's own report of an offloaded connection. The engine reports some of its connections:
/// 256 for each thread.
pub(super) fn of<'a>(one: &Connection, flows: &'a [Flow]) -> Option<&'a Flow> {
    if one.path != "offload" {
        return None;
    }
    let mut flows = flows.iter();
    flows.find(|flow| flow.local == one.local && flow.remote == one.remote)
}

/// Congestion control and round trip; the windows.
pub(super) fn lines(flow: &Flow) -> [String; 2] {
    let marks = match (flow.ecn, flow.accurate_ecn) {
        (_, true) => "accurate ECN",
        (true, false) => "ECN",
        (false, false) => "no ECN",
    };
    let pace = if flow.pacing { "paced" } else { "not paced" };
    let round_trip = match flow.round_trip_us {
        Some(micros) => format!("round trip {}", time(micros)),
        None => "round trip not measured".to_owned(),
    };
    [
        format!("{}, {marks}, {pace}; {round_trip}", flow.congestion),
        format!(
            "windows: congestion {}B ({}B in flight), receive {}B",
            count(flow.congestion_window),
            count(flow.in_flight),
            count(flow.receive_window)
        ),
    ]
}

/// `118us`, `12.3ms`, `1.20s`.
fn time(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{:.1}ms", micros as f64 / 1e3),
        _ => format!("{:.2}s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::answer::parse;

    #[test]
    fn settings_and_windows_take_a_line_each() {
        let flow = r#"{"local":"10.84.0.2:7","remote":"10.84.0.1:8","congestion":"bbr","ecn":true,
            "accurate_ecn":true,"pacing":true,"round_trip_us":12345,"congestion_window":146000,
            "receive_window":16777216,"in_flight":1448}"#;
        let flow: Flow = parse(flow).expect("a flow");
        assert_eq!(
            lines(&flow),
            [
                "bbr, accurate ECN, paced; round trip 12.3ms",
                "windows: congestion 146kB (1.45kB in flight), receive 16.8MB"
            ]
        );
        let settings = |flow: &Flow| lines(flow)[0].clone();
        let flow = Flow {
            congestion: "cubic".to_owned(),
            ecn: true,
            ..Flow::default()
        };
        assert_eq!(
            settings(&flow),
            "cubic, ECN, not paced; round trip not measured"
        );
        let flow = Flow {
            ecn: false,
            round_trip_us: Some(118),
            ..flow
        };
        assert_eq!(
            settings(&flow),
            "cubic, no ECN, not paced; round trip 118us"
        );
    }

    #[test]
    fn times_are_short() {
        assert_eq!(
            [0, 999, 1_000, 250_000, 2_500_000].map(time),
            ["0us", "999us", "1.0ms", "250.0ms", "2.50s"]
        );
    }
}
