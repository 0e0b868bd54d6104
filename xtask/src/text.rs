//! The form of the text: lines end at 100 columns, and sentences open with their subject.
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
        "crates/sockets/src/system/real.rs",
        "a table of libc's prototypes, one to a line",
    ),
    (
        "crates/preload/src/calls.rs",
        "a table of libc's prototypes, one to a line",
    ),
];

/// Openings of a sentence that name no subject: the reader has to guess it.
const RIDDLES: [&str; 10] = [
    "The same ",
    "The same,",
    "The same.",
    "Likewise",
    "Nor ",
    "What ",
    "Who ",
    "Whose ",
    "Whom ",
    "That which ",
];

/// Checks all sources and documents below `root`, prints the lines that break a rule; true when
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
            let (before, words) = match is_source {
                true => (comment(previous), comment(line)),
                false => (Some(previous), (!line.starts_with("    ")).then_some(line)),
            };
            if words.is_some_and(|words| has_riddle(before.unwrap_or_default(), words)) {
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

/// Whether a sentence in the line of text `words` begins with one of the openings. `before` is the
/// line before it. Questions may begin with them.
fn has_riddle(before: &str, words: &str) -> bool {
    let opens = |text: &str| RIDDLES.iter().any(|riddle| text.starts_with(riddle));
    let before = before.trim_end();
    let begins = before.is_empty() || before.ends_with(['.', ':', '|']);
    let words = words
        .trim_start()
        .trim_start_matches(['-', '*'])
        .trim_start();
    let mut sentences = words.split_inclusive(". ").enumerate();
    sentences.any(|(at, text)| (at > 0 || begins) && opens(text) && !text.contains('?'))
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
        assert!(has_riddle("", " The same for IPv6."));
        assert!(has_riddle("", " What was read is gone."));
        assert!(has_riddle(" It is read.", " What was read is gone."));
        assert!(has_riddle("", "- It is read. Who reads it is told."));
        assert!(has_riddle("", "- Whose it is."));
        assert!(!has_riddle(" Two ends have", " The same port"));
        assert!(!has_riddle("", " Whatever the kernel says."));
        assert!(!has_riddle("", "What is it?"));
        assert_eq!(comment("let same = \"The same \";"), None);
    }
}
