//! Every relative link in a document leads to a file that exists, and to a heading of that file if
//! the link names one. Every file that a document names as code exists. A test that a document
//! names by the beginning of its name, as in `an_adapter_that_reads_nothing_…`, stands in a source.

use std::path::{Path, PathBuf};

/// Directories at the top of the tree: a name that begins with one is meant in full.
const TOP: [&str; 8] = [
    "contrib/", "crates/", "docs/", "fuzz/", "lab/", "scripts/", "tests/", "xtask/",
];

/// Checks all Markdown below `root`, prints dead links and names; true when there are none.
pub(crate) fn check(root: &Path) -> bool {
    let (mut links, mut dead) = (0, 0);
    let sources = files(root, &["rs"]);
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let texts: Vec<String> = sources.iter().map(read).collect();
    for document in files(root, &["md"]) {
        let text = std::fs::read_to_string(&document).unwrap_or_default();
        for link in relative_links(&text) {
            links += 1;
            let place = match link.file {
                "" => document.clone(),
                file => document.parent().unwrap_or(root).join(file),
            };
            if !place.exists() {
                dead += 1;
                println!("{}: no such file: {}", document.display(), link.file);
            } else if link
                .heading
                .is_some_and(|heading| !has_heading(&read(&place), heading))
            {
                dead += 1;
                println!("{}: no such heading: {link:?}", document.display());
            }
        }
        let beside = document.parent().unwrap_or(root);
        for name in named_files(&text) {
            links += 1;
            let is_there = [root, beside].iter().any(|dir| dir.join(name).exists())
                || sources.iter().any(|source| source.ends_with(name));
            if !is_there {
                dead += 1;
                println!("{}: no such file: {name}", document.display());
            }
        }
        for test in named_tests(&text) {
            links += 1;
            let is_there = sources.iter().zip(&texts).any(|(source, text)| {
                test.file.is_none_or(|file| source.ends_with(file))
                    && has_word(text, test.beginning)
            });
            if !is_there {
                dead += 1;
                let place = test.file.unwrap_or("the sources");
                let name = test.beginning;
                println!("{}: no such test in {place}: {name}…", document.display());
            }
        }
    }
    println!("{links} links, {dead} dead");
    dead == 0
}

/// Files with one of these extensions, except build results and hidden files.
pub(crate) fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let path = entry.path();
        if name.to_string_lossy().starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path, extensions));
        } else if extensions.iter().any(|&wanted| {
            path.extension()
                .is_some_and(|extension| extension == wanted)
        }) {
            found.push(path);
        }
    }
    found
}

/// The target of a link: `file#heading`.
#[derive(Debug, PartialEq, Eq)]
struct Link<'a> {
    /// Empty for the document itself.
    file: &'a str,
    heading: Option<&'a str>,
}

/// Targets of `[text](target)` that are not addresses.
fn relative_links(text: &str) -> impl Iterator<Item = Link<'_>> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.is_empty() && !link.contains("://") && !link.contains(' '))
        .map(|link| match link.split_once('#') {
            Some((file, heading)) => Link {
                file,
                heading: (file.is_empty() || file.ends_with(".md")).then_some(heading),
            },
            None => Link {
                file: link,
                heading: None,
            },
        })
}

/// True when a link of this name leads to a heading of the document. The name is the heading in
/// lower case, without punctuation and with `-` instead of spaces.
fn has_heading(document: &str, name: &str) -> bool {
    let headings = plain_lines(document).filter(|line| line.starts_with('#'));
    let mut names = headings.map(|heading| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|&c| c.is_alphanumeric() || "-_ ".contains(c));
        kept.collect::<String>().replace(' ', "-")
    });
    names.any(|known| known == name)
}

/// The lines of a document without its blocks of code.
fn plain_lines(text: &str) -> impl Iterator<Item = &str> {
    let is_plain = |line: &&str| !line.starts_with("    ") && !line.contains("```");
    text.lines().filter(is_plain)
}

/// Sources, and files named from the top of the tree, among the `code` of a document. Blocks of
/// code are left out.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let code = plain_lines(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    code.filter(|name| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let is_full = TOP.iter().any(|top| name.starts_with(top));
        name.chars().all(is_path) && (name.ends_with(".rs") || is_full)
    })
}

/// A test that a document names.
#[derive(Debug, PartialEq, Eq)]
struct NamedTest<'a> {
    /// The source that the document names before it: `file.rs`: `test_…`.
    file: Option<&'a str>,
    /// The beginning of its name.
    beginning: &'a str,
}

/// Whether a word of `text` begins with this name.
fn has_word(text: &str, beginning: &str) -> bool {
    let mut places = text.match_indices(beginning);
    places.any(|(at, _)| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
    })
}

/// Tests among the `code` of a document, as far as they are named by their beginning: `test_…`,
/// `program::test_…`.
fn named_tests(text: &str) -> impl Iterator<Item = NamedTest<'_>> {
    plain_lines(text).flat_map(|line| {
        let pieces: Vec<&str> = line.split('`').collect();
        let code = (1..pieces.len()).step_by(2);
        let tests = code.filter_map(|at| {
            let name = pieces[at].strip_suffix('…')?;
            let beginning = name.rsplit("::").next().unwrap_or(name);
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_test = beginning.ends_with('_') && beginning.chars().all(is_name);
            let is_of_file = at >= 2 && pieces[at - 1] == ": " && pieces[at - 2].ends_with(".rs");
            is_test.then_some(NamedTest {
                file: is_of_file.then(|| pieces[at - 2]),
                beginning,
            })
        });
        tests.collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_be_named_by_its_beginning_and_its_file() {
        let text = "`a.rs`: `one_two_…`, `users::three_…`, `TCP_…x` and `four`";
        let found: Vec<_> = named_tests(text).collect();
        let named = |file, beginning| NamedTest { file, beginning };
        assert_eq!(
            found,
            [named(Some("a.rs"), "one_two_"), named(None, "three_")]
        );
    }

    #[test]
    fn a_test_that_a_document_names_stands_in_its_file() {
        let dir = tempfile::tempdir().expect("room for a directory");
        std::fs::write(dir.path().join("a.rs"), "fn one_two_three() {}").expect("writable");
        std::fs::write(dir.path().join("b.rs"), "").expect("writable");
        let document = dir.path().join("a.md");
        for (words, is_right) in [
            ("`a.rs`: `one_two_…`", true),
            ("`one_…`", true),
            ("`b.rs`: `one_two_…`", false),
            ("`two_…`", false),
        ] {
            std::fs::write(&document, words).expect("writable");
            assert_eq!(check(dir.path()), is_right, "{words}");
        }
    }

    #[test]
    fn sources_and_full_paths_are_files_that_a_document_names() {
        let text = "`a.rs` and `b/c.rs`, not `d.toml`\n| `docs/e.md` | `f::g` `crates/*/h.rs` |";
        let found: Vec<_> = named_files(text).collect();
        assert_eq!(found, ["a.rs", "b/c.rs", "docs/e.md"]);
    }

    #[test]
    fn a_named_file_may_be_named_by_the_end_of_its_path() {
        let dir = tempfile::tempdir().expect("room for a directory");
        std::fs::create_dir_all(dir.path().join("one/src")).expect("writable");
        std::fs::write(dir.path().join("one/src/a.rs"), "").expect("writable");
        let document = dir.path().join("a.md");
        std::fs::write(&document, "`a.rs`, `src/a.rs`").expect("writable");
        assert!(check(dir.path()));
        std::fs::write(&document, "`two/a.rs`").expect("writable");
        assert!(!check(dir.path()));
    }

    #[test]
    fn only_relative_links_are_followed() {
        let text = "[a](b.md#c) [d](https://e) [f](#g) [h](../i)";
        let targets = relative_links(text).map(|link| (link.file, link.heading));
        let expected = [("b.md", Some("c")), ("", Some("g")), ("../i", None)];
        assert_eq!(targets.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn headings_are_named_as_links_name_them() {
        let document = "# One\n## `--two`: a Line, of 3\n    # no heading\n";
        assert!(has_heading(document, "one"));
        assert!(has_heading(document, "--two-a-line-of-3"));
        assert!(!has_heading(document, "no-heading"));
    }

    #[test]
    fn dead_links_are_found() {
        let dir = tempfile::tempdir().expect("room for a directory");
        let document = dir.path().join("a.md");
        std::fs::write(&document, "[self](a.md)").expect("writable");
        assert!(check(dir.path()));
        for gone in ["[file](b.md)", "[heading](a.md#b)", "[heading](#b)"] {
            std::fs::write(&document, gone).expect("writable");
            assert!(!check(dir.path()), "{gone}");
        }
    }
}
