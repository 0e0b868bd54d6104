//! The log of an adapter in the foreground: a line per kind of event, and not more of one kind than
//! a person reads.

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

    /// Says a line, unless one of its kind was said a moment ago; those are counted, and the next
    /// line tells.
    pub(super) fn say(&mut self, kind: &'static str, text: impl FnOnce() -> String) {
        if !self.enabled {
            return;
        }
        if let Some(line) = self.line(kind, Instant::now(), text) {
            write(&line);
        }
    }

    /// Answers the operator: nobody else can cause such a line.
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

/// Writes a line for the operator: on standard error, as a service manager expects it.
/// Where that cannot be written, the adapter goes on.
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
