//! Differences between the kernel and Toehold that a user would accept, each with the reason.

/// A test that comes out otherwise under Toehold.
struct Accepted {
    suite: &'static str,
    /// As the table names it.
    test: &'static str,
    reason: &'static str,
}

const ACCEPTED: &[Accepted] = &[];

/// Why a difference is accepted, if it is.
pub(crate) fn reason(suite: &str, test: &str) -> Option<&'static str> {
    let mut all = ACCEPTED.iter();
    let found = all.find(|one| one.suite == suite && one.test == test)?;
    Some(found.reason)
}
