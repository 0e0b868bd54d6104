//! The lines about short connections: how many came by used carriers, and why others did not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::count::count;

/// The counts of a family, by name: `toehold_channel::express::Event`.
pub(super) type Counts = BTreeMap<String, u64>;

/// Reasons why `connect` went to the kernel, and what is said of each.
const BY_KERNEL: [(&str, &str); 3] = [
    ("none_parked", "no carrier was parked"),
    ("peer_busy", "the peer had not closed any"),
    ("queue_full", "the peer's queue was full"),
];

/// Reasons why a carrier serves no further connection.
const NOT_KEPT: [(&str, &str); 11] = [
    ("not_paired", "not paired"),
    ("odd_option", "a socket option"),
    ("no_listener", "no listener in epoll"),
    ("no_room", "enough parked"),
    ("too_old", "too old"),
    ("in_use", "in use elsewhere"),
    ("unread", "bytes unread"),
    ("on_kernel", "back on the kernel"),
    ("peer_ended", "ended by the peer"),
    ("idle", "unused for too long"),
    ("retired", "fork, exec or closed listener"),
];

/// The lines for a program's counts; with `reasons`, why connections ended with their carriers.
pub(super) fn lines(counts: &Counts, reasons: bool) -> String {
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    let mut out = String::new();
    if counts.is_empty() {
        return out;
    }
    let (connected, accepted) = (of("connected"), of("accepted"));
    let by_kernel: u64 = BY_KERNEL.iter().map(|(name, _)| of(name)).sum();
    if !reasons && connected + accepted == 0 {
        // Nothing to see in a program of long connections.
        return out;
    }
    let _ = writeln!(
        out,
        "  express: used carriers: {} connected, {} accepted; by the kernel: {}",
        count(connected),
        count(accepted),
        count(by_kernel),
    );
    if !reasons {
        return out;
    }
    let _ = writeln!(
        out,
        "    carriers made {} of {} tried, {} ms waited",
        count(of("seeds_made")),
        count(of("seeds_tried")),
        count(of("seed_microseconds") / 1000),
    );
    for (title, names) in [("by the kernel", &BY_KERNEL[..]), ("not kept", &NOT_KEPT)] {
        for (name, text) in names.iter().filter(|(name, _)| of(name) > 0) {
            let _ = writeln!(out, "    {title}: {} {text}", count(of(name)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let counts = [
            ("connected", 12_345),
            ("none_parked", 17),
            ("seeds_made", 3),
            ("seeds_tried", 5),
            ("unread", 2),
        ];
        counts.map(|(name, n)| (name.to_owned(), n)).into()
    }

    #[test]
    fn a_program_without_counts_has_no_line() {
        assert_eq!(lines(&Counts::new(), true), "");
    }

    #[test]
    fn reasons_stand_below_the_totals() {
        let text = lines(&counts(), true);
        let expected = [
            "  express: used carriers: 12.3k connected, 0 accepted; by the kernel: 17",
            "    carriers made 3 of 5 tried, 0 ms waited",
            "    by the kernel: 17 no carrier was parked",
            "    not kept: 2 bytes unread",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert!(text.starts_with(&lines(&counts(), false)));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn a_program_without_used_carriers_has_a_line_on_demand() {
        let counts = [("not_paired".to_owned(), 1)].into();
        assert_eq!(lines(&counts, false), "");
        assert!(lines(&counts, true).contains("not kept: 1 not paired"));
    }
}
