//! Each atomic ordering stronger than `Relaxed` names the access that it pairs with.
//!
//! The crates that share memory with other processes are checked ([`CRATES`]). A statement with
//! `Acquire`, `Release`, `AcqRel` or `SeqCst` needs a comment directly above it, or inside, with
//! the words "pairs with" and a name in backquotes. If many accesses follow one protocol, the
//! protocol has constants (`const SLOT_RELEASE: Ordering = Ordering::Release;`). Then the comment
//! is at the constant, and the accesses use the constant. Tests are ignored. The code is expected
//! in rustfmt's format.

use std::path::Path;

use crate::links::files;

/// Crates whose atomics other threads, processes, peers or the kernel share.
const CRATES: [&str; 7] = [
    "channel", "stream", "sockets", "preload", "copy", "adapter", "link",
];
/// Orderings that are stronger than `Relaxed`.
const STRONG: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// Checks the sources of [`CRATES`] below `root`, prints each ordering without a partner; true when
/// there are none.
pub(crate) fn check(root: &Path) -> bool {
    let mut found = 0;
    let mut silent = 0;
    for name in CRATES {
        let sources = root.join("crates").join(name).join("src");
        for path in files(&sources, &["rs"]) {
            if is_file_of_tests(&path) {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let place = path.strip_prefix(root).unwrap_or(&path).display();
            for ordering in orderings(&text) {
                found += 1;
                if !ordering.names_partner {
                    silent += 1;
                    println!("{place}:{}: name the access it pairs with", ordering.line);
                }
            }
        }
    }
    println!("{found} lines with orderings, {silent} do not name their partner");
    silent == 0
}

/// True for a file of tests beside the file that it tests.
fn is_file_of_tests(path: &Path) -> bool {
    let mut names = path.iter();
    names.any(|name| name == "tests.rs" || name == "tests")
}

/// A line of code with an ordering stronger than `Relaxed`.
#[derive(Debug, PartialEq, Eq)]
struct Strong {
    /// Counted from 1.
    line: usize,
    names_partner: bool,
}

/// The strong orderings of a file, test modules excepted.
fn orderings(text: &str) -> Vec<Strong> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let (mut is_import, mut is_test) = (false, false);
    for (at, line) in lines.iter().enumerate() {
        is_test |= *line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test");
        if is_test {
            // The item that the attribute belongs to ends at the first column.
            is_test = !(line.starts_with('}') || line.starts_with("mod ") && line.ends_with(';'));
            continue;
        }
        let code = line.trim_start();
        is_import |= code.starts_with("use ") || code.starts_with("pub use ");
        if !is_import && comment(line).is_none() && is_strong(line) {
            let names_partner = names_partner(&lines[..at]);
            let line = at + 1;
            found.push(Strong {
                line,
                names_partner,
            });
        }
        is_import &= !code.ends_with(';');
    }
    found
}

/// True for code that contains one of [`STRONG`] as a separate word.
fn is_strong(line: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.split(|letter| !is_name(letter))
        .any(|word| STRONG.contains(&word))
}

/// True when the statement that the line after `above` belongs to has a comment with its partner.
fn names_partner(above: &[&str]) -> bool {
    let mut text = String::new();
    for (at, line) in above.iter().enumerate().rev() {
        // The model checker's form of a statement follows the machine's, and shares its comment.
        let goes_on = above
            .get(at + 1)
            .is_some_and(|next| next.trim() == "#[cfg(loom)]");
        if let Some(words) = comment(line) {
            // Comments are read upwards here.
            text = format!("{} {text}", words.trim());
        } else if partner(&text) || (ends_statement(line) && !goes_on) {
            break;
        }
    }
    partner(&text)
}

/// True for the text of a comment that names a partner.
fn partner(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut pairs = text.match_indices("pairs with");
    pairs.any(|(at, _)| text[at..].contains('`'))
}

/// True for a line after which another statement begins.
fn ends_statement(line: &str) -> bool {
    let line = line.trim_end();
    line.is_empty() || line.ends_with([';', '{', '}'])
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

    fn silent(text: &str) -> Vec<usize> {
        let all = orderings(text).into_iter();
        all.filter(|one| !one.names_partner)
            .map(|one| one.line)
            .collect()
    }

    #[test]
    fn ordering_without_a_comment_is_found() {
        assert_eq!(silent("a.store(1, Ordering::Release);"), [1]);
        assert_eq!(silent("// It is late.\nfence(SeqCst);"), [2]);
        assert_eq!(silent("// pairs with the other side\nfence(SeqCst);"), [2]);
        assert!(silent("a.store(1, Ordering::Relaxed);").is_empty());
    }

    #[test]
    fn comment_above_or_inside_the_statement_names_the_partner() {
        let above = "// Pairs with the load\n// in `look`.\na\n    .b\n    .store(1, Release);";
        assert!(silent(above).is_empty());
        let inside = "a.compare_exchange(\n    // Pairs with `b`.\n    0, 1, AcqRel, Relaxed);";
        assert!(silent(inside).is_empty());
    }

    #[test]
    fn files_of_tests_count_nowhere() {
        assert!(is_file_of_tests(Path::new("crates/a/src/b/tests.rs")));
        assert!(is_file_of_tests(Path::new("crates/a/src/b/tests/ends.rs")));
        assert!(!is_file_of_tests(Path::new("crates/a/src/attests.rs")));
    }

    #[test]
    fn comment_of_another_statement_counts_nowhere() {
        let before = "// Pairs with `look`.\na.store(1, Release);\nb.store(1, Release);";
        assert_eq!(silent(before), [3]);
        let outside = "// Pairs with `look`.\nif a {\n    b.store(1, Release);\n}";
        assert_eq!(silent(outside), [3]);
    }

    #[test]
    fn constants_stand_for_the_comment() {
        let text = "/// Pairs with [`SLOT_ACQUIRE`], `a.load`.\n\
                    const SLOT_RELEASE: Ordering = Ordering::Release;\n\
                    \nfn f() {\n    a.store(1, SLOT_RELEASE);\n}";
        assert!(silent(text).is_empty());
        assert_eq!(orderings(text).len(), 1);
    }

    #[test]
    fn form_for_the_model_checker_shares_the_comment() {
        let text = "// Pairs with `b`.\n#[cfg(not(loom))]\na.swap(1, SeqCst);\n#[cfg(loom)]\n\
                    a.store(1, Release);\n#[cfg(loom)]\nfence(SeqCst);";
        assert!(silent(text).is_empty());
    }

    #[test]
    fn imports_documents_and_tests_are_left_out() {
        let text = "use a::Ordering::{\n    Acquire, Release,\n};\n//! Release\n\
                    #[cfg(test)]\nmod tests {\n    a.store(1, Release);\n}\nfence(SeqCst);";
        assert_eq!(silent(text), [9]);
    }
}
