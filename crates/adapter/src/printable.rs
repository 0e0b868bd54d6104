//! Text of other users, for terminals.

/// The text without what a terminal might obey.
pub fn printable(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).collect()
}
