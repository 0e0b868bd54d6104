//! The tests that may be skipped where everything must be tested (`CI=true`), each with its reason.
//!
//! Any other skip is a failure there: it means that the host lacks a tool that `scripts/deps.sh`
//! should install, or a privilege that the tests need.

/// A skipped test, from its line: `SKIPPED: WHAT: REASON`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    /// A test, or a step.
    pub(crate) what: String,
    /// The reason why it did not run here.
    pub(crate) reason: String,
}

/// A skip that is not a failure.
struct Expected {
    /// The beginning of [`Skip::what`].
    what: &'static str,
    /// The reason why the tests go on without it.
    reason: &'static str,
}

const EXPECTED: &[Expected] = &[
    Expected {
        what: "packetdrill",
        reason: "Debian has no package of it, and its licence (GPL) keeps it out of this tree",
    },
    Expected {
        what: "copy: dmadev",
        reason: "libdpdk-dev brings 220 packages for one test of a device without hardware",
    },
    Expected {
        what: "programs_of_other_versions_of_go",
        reason: "these versions come from the Go module proxy, which a host need not reach",
    },
    Expected {
        what: "tour, its Debian",
        reason: "its packages come from Debian's mirror, which a host need not reach",
    },
    Expected {
        what: "tour, booting",
        reason: "systemd needs namespaces, cgroup2 and overlayfs, which a container may refuse",
    },
];

impl Skip {
    /// The skip that a line of output reports, at any position in the line.
    ///
    /// `test` is the test whose captured output contains the line, if there is one.
    pub(crate) fn parse(line: &str, test: Option<&str>) -> Option<Skip> {
        let (_, said) = line.split_once("SKIPPED: ")?;
        let (what, reason) = match (test, said.split_once(": ")) {
            (Some(test), Some((what, reason))) if what == test => (what, reason),
            (Some(test), _) => (test, said),
            (None, Some((what, reason))) => (what, reason),
            (None, None) => (said, "no reason was given"),
        };
        Some(Skip {
            what: what.to_owned(),
            reason: reason.to_owned(),
        })
    }

    /// A test that the runner ignores; `None` if the reason says that another command runs it: "run
    /// by …".
    pub(crate) fn ignored(line: &str) -> Option<Skip> {
        let (test, said) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
        let reason = said.strip_prefix(", ").unwrap_or("ignored");
        (!reason.starts_with("run by ")).then(|| Skip {
            what: test.to_owned(),
            reason: reason.to_owned(),
        })
    }

    /// The reason why the test may be skipped everywhere; `None` if it may not.
    pub(crate) fn expected(&self) -> Option<&'static str> {
        let mut all = EXPECTED.iter();
        let found = all.find(|expected| self.what.starts_with(expected.what))?;
        Some(found.reason)
    }
}

/// Whether this is a run that must test everything.
pub(crate) fn are_failures() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(what: &str, reason: &str) -> Option<Skip> {
        Some(Skip {
            what: what.to_owned(),
            reason: reason.to_owned(),
        })
    }

    #[test]
    fn skips_are_found_wherever_they_stand_in_a_line() {
        assert_eq!(Skip::parse("SKIPPED: x: y: z", None), skip("x", "y: z"));
        let same_line = Skip::parse("test a::b ... SKIPPED: a::b: no tool", None);
        assert_eq!(same_line, skip("a::b", "no tool"));
        assert_eq!(Skip::parse("SKIPPED 3 lines", None), None);
    }

    #[test]
    fn captured_skips_are_those_of_the_test_that_wrote_them() {
        let at = Some("a::b");
        assert_eq!(Skip::parse("SKIPPED: no root", at), skip("a::b", "no root"));
        assert_eq!(Skip::parse("SKIPPED: a::b: c", at), skip("a::b", "c"));
    }

    #[test]
    fn only_what_is_in_the_list_is_expected() {
        let expected = |what| skip(what, "").expect("some").expected().is_some();
        assert!(expected("packetdrill"));
        assert!(expected("tour, booting"));
        // Such a skip means that root is missing, or a program that scripts/deps.sh installs.
        assert!(!expected("tour"));
        assert!(!expected("semantics"));
    }
}
