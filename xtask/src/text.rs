//! The form of the text: lines end at 100 columns, and comments open with their subject.
//!
//! rustfmt breaks code, but neither comments nor string literals. Tables in Markdown and in module
//! documentation cannot be broken and are left out.

use std::path::Path;

use crate::links::files;

/// Columns of the longest line, in characters.
const COLUMNS: usize = 100;

/// Files with longer lines, each with its reason.
const LONG_LINES: [(&str, &str); 3] = [
    (
        "crates/measure/src/parse/memtier.rs",
        "output of a program, word for word",
    ),
    (
        "crates/sockets/src/real.rs",
        "a table of libc's prototypes, one to a line",
    ),
    (
        "crates/preload/src/calls.rs",
        "a table of libc's prototypes, one to a line",
    ),
];

/// Openings of a comment that name no subject: the reader has to guess it.
const RIDDLES: [&str; 10] = [
    "The same ",
    "The same,",
    "The same.",
    "Likewise",
    "Nor ",
    "What is ",
    "What was ",
    "What has ",
    "Who has ",
    "Who is ",
];

/// Looks at all sources and documents below `root`, prints the lines that break a rule; true when
/// there are none.
pub(crate) fn check(root: &Path) -> bool {
    let mut found = 0;
    for path in files(root, &["rs", "md"]) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let name = path.strip_prefix(root).unwrap_or(&path);
        let name = name.to_string_lossy();
        let may_be_long = LONG_LINES.iter().any(|(file, _)| *file == name);
        let is_source = name.ends_with(".rs");
        let mut previous = "";
        for (number, line) in text.lines().enumerate() {
            let at = format!("{name}:{}", number + 1);
            if !may_be_long && is_too_long(line) {
                found += 1;
                println!("{at}: longer than {COLUMNS} columns");
            }
            if is_source && is_riddle(previous, line) {
                found += 1;
                println!("{at}: name the subject: {}", line.trim());
            }
            previous = line;
        }
    }
    println!("{found} lines break a rule");
    found == 0
}

/// A line beyond the last column, tables and lines without a place to break excepted.
fn is_too_long(line: &str) -> bool {
    let words = comment(line).unwrap_or(line).trim_start();
    line.chars().count() > COLUMNS && !words.starts_with('|') && words.contains(' ')
}

/// A comment that begins at `line` with one of the openings.
fn is_riddle(previous: &str, line: &str) -> bool {
    let begins = comment(previous).is_none_or(|text| text.trim().is_empty());
    let opens = |text: &str| RIDDLES.iter().any(|riddle| text.trim().starts_with(riddle));
    begins && comment(line).is_some_and(opens)
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let marks = ["///", "//!", "//"];
    marks.iter().find_map(|mark| line.strip_prefix(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_found_and_tables_are_not() {
        let long = "word ".repeat(21);
        assert!(is_too_long(&long));
        assert!(is_too_long(&format!("    // {long}")));
        assert!(!is_too_long(&long[..100]));
        assert!(!is_too_long(&format!("| {long} |")));
        assert!(!is_too_long(&format!("//! | {long} |")));
        assert!(!is_too_long(&format!("https://{}", "a".repeat(100))));
    }

    #[test]
    fn openings_without_a_subject_are_found() {
        assert!(is_riddle("", "    /// The same for IPv6."));
        assert!(is_riddle("let a = 1;", "// What was read is gone."));
        assert!(!is_riddle("// Two ends have", "// The same port"));
        assert!(!is_riddle("", "/// Whatever the kernel says."));
        assert!(!is_riddle("", "let same = \"The same \";"));
    }
}
