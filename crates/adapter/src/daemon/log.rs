//! The log of an adapter in the foreground: one line per event, with a limited rate for each kind.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// The log. Silent in the background.
#[derive(Debug)]
pub(super) struct Log {
    enabled: bool,
    kinds: BTreeMap<&'static str, Kind>,
}

#[derive(Debug)]
struct Kind {
    said: Instant,
    suppressed: u64,
}

impl Log {
    pub(super) fn new(enabled: bool) -> Log {
        Log {
            enabled,
            kinds: BTreeMap::new(),
        }
    }

    /// Writes a line, unless one of its kind was written a moment ago. Omitted lines are counted,
    /// and the next line reports their number.
    pub(super) fn log_limited(&mut self, kind: &'static str, text: impl FnOnce() -> String) {
        if !self.enabled {
            return;
        }
        if let Some(line) = self.line(kind, Instant::now(), text) {
            write(&line);
        }
    }

    /// Writes an answer to the operator, without a limit: only the operator can cause such a line.
    pub(super) fn answer(&self, text: &str) {
        if self.enabled {
            write(&format!("toehold adapter: {text}"));
        }
    }

    fn line(
        &mut self,
        kind: &'static str,
        now: Instant,
        text: impl FnOnce() -> String,
    ) -> Option<String> {
        let before = self.kinds.get_mut(kind);
        let suppressed = match before {
            Some(kind) if now.duration_since(kind.said) < INTERVAL_MIN => {
                kind.suppressed += 1;
                return None;
            }
            Some(kind) => kind.suppressed,
            None => 0,
        };
        let fresh = Kind {
            said: now,
            suppressed: 0,
        };
        self.kinds.insert(kind, fresh);
        let text = text();
        Some(match suppressed {
            0 => format!("toehold adapter: {text}"),
            more => format!("toehold adapter: {text} (and {more} more like it)"),
        })
    }
}

/// Writes a line to standard error, as a service manager expects it. If that fails, the adapter
/// goes on.
fn write(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Shortest time between two lines of one kind.
const INTERVAL_MIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_kind_are_spaced_and_what_was_left_out_is_counted() {
        let mut log = Log::new(true);
        let start = Instant::now();
        let mut line = |kind, after_s| {
            let now = start + Duration::from_secs(after_s);
            log.line(kind, now, || "text".into())
        };
        assert_eq!(line("a", 0).as_deref(), Some("toehold adapter: text"));
        assert_eq!(line("a", 1), None);
        assert_eq!(line("a", 4), None);
        assert!(line("b", 4).is_some(), "another kind is not held back");
        let after = line("a", 6).expect("long enough ago");
        assert!(after.ends_with("(and 2 more like it)"), "{after}");
        assert_eq!(line("a", 12).as_deref(), Some("toehold adapter: text"));
    }
}
