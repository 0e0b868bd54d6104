//! Makes text of other users safe for terminals.

/// The text without control characters, which a terminal might obey, and without invisible
/// characters that change how the rest is shown. For example, U+202E makes the following text run
/// from right to left.
pub fn printable(text: &str) -> String {
    let is_shown = |one: &char| !one.is_control() && !is_format(*one);
    text.chars().filter(is_shown).collect()
}

/// Unicode's categories Cf, Zl and Zp, as of version 16.
fn is_format(one: char) -> bool {
    matches!(
        one,
        '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let evil = "a\u{1b}]0;b\u{7}\u{9b}1m\n\u{202e}c\u{2066}\u{200b}\u{e0041}é ☃";
        assert_eq!(printable(evil), "a]0;b1mcé ☃");
    }
}
