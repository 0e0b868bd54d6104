//! Every relative link in a document leads to a file that exists.

use std::path::{Path, PathBuf};

/// Looks at all Markdown below `root`, prints dead links; true when there are none.
pub(crate) fn check(root: &Path) -> bool {
    let (mut links, mut dead) = (0, 0);
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

#[cfg(test)]
mod tests {
    use super::*;

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
