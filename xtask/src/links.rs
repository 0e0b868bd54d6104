//! Every relative link in a document leads to a file that exists, and so does every file that a
//! document names as code.

use std::path::{Path, PathBuf};

/// Directories at the top of the tree: a name that begins with one is meant in full.
const TOP: [&str; 8] = [
    "contrib/", "crates/", "docs/", "fuzz/", "lab/", "scripts/", "tests/", "xtask/",
];

/// Looks at all Markdown below `root`, prints dead links and names; true when there are none.
pub(crate) fn check(root: &Path) -> bool {
    let (mut links, mut dead) = (0, 0);
    let sources = files(root, &["rs"]);
    for document in files(root, &["md"]) {
        let text = std::fs::read_to_string(&document).unwrap_or_default();
        for link in relative_links(&text) {
            links += 1;
            let place = document.parent().unwrap_or(root).join(link);
            if !place.exists() {
                dead += 1;
                println!("{}: no such file: {link}", document.display());
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
    }
    println!("{links} links, {dead} dead");
    dead == 0
}

/// Files with one of these extensions, without built and hidden ones.
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

/// Targets of `[text](target)` that are neither addresses nor places in the same document.
fn relative_links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter_map(|link| link.split('#').next())
        .filter(|link| !link.is_empty() && !link.contains("://") && !link.contains(' '))
}

/// Sources, and files named from the top of the tree, among the `code` of a document. Blocks of
/// code are left out.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let plain = |line: &&str| !line.starts_with("    ") && !line.contains("```");
    let code = text
        .lines()
        .filter(plain)
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    code.filter(|name| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let is_full = TOP.iter().any(|top| name.starts_with(top));
        name.chars().all(is_path) && (name.ends_with(".rs") || is_full)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(relative_links(text).collect::<Vec<_>>(), ["b.md", "../i"]);
    }

    #[test]
    fn dead_links_are_found() {
        let dir = tempfile::tempdir().expect("room for a directory");
        let document = dir.path().join("a.md");
        std::fs::write(&document, "[self](a.md)").expect("writable");
        assert!(check(dir.path()));
        std::fs::write(&document, "[gone](b.md)").expect("writable");
        assert!(!check(dir.path()));
    }
}
