//! The list of modules at the head of a crate, and the table in its README, name every module.
//!
//! - The text at the head of a `lib.rs` or `main.rs` that has modules names each of them, in
//!   backquotes or in a drawing.
//! - So does that of any other file that lists some of its modules.
//! - A README with a table under the heading `module` names each module of its crate in the first
//!   column, and nothing else.
//!
//! Modules of tests are left out.

use std::collections::BTreeSet;
use std::path::Path;

use crate::links::files;

/// Checks all sources below `root`, and the README of each crate. Prints missing modules; true when
/// there are none.
pub(crate) fn check(root: &Path) -> bool {
    let (mut lists, mut faults) = (0, 0);
    for path in files(root, &["rs"]) {
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let modules = modules(&text);
        let is_root = path.parent().is_some_and(|dir| dir.ends_with("src"))
            && ["lib.rs", "main.rs"]
                .iter()
                .any(|root| path.ends_with(root));
        let head = head(&text);
        if modules.is_empty() || !is_root && !lists_any(&head, &modules) {
            continue;
        }
        lists += 1;
        for module in modules.difference(&named(&head)) {
            faults += 1;
            println!("{name}: the text at its head does not name `{module}`");
        }
        let readme = path.with_file_name("../README.md");
        let readme = std::fs::read_to_string(readme).unwrap_or_default();
        if let Some(rows) = table(&readme).filter(|_| is_root) {
            lists += 1;
            for module in modules.symmetric_difference(&rows) {
                faults += 1;
                println!("{name}: `{module}` is only here, or only in the table of the README");
            }
        }
    }
    println!("{lists} lists of modules, {faults} faults");
    faults == 0
}

/// The modules that a file declares in files of their own.
fn modules(text: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines() {
        if line.starts_with("#[") {
            is_test |= line == "#[cfg(test)]";
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        if let [.., "mod", name] = words[..]
            && !line.starts_with([' ', '/'])
            && let Some(name) = name.strip_suffix(';')
            && !is_test
        {
            modules.insert(name.to_owned());
        }
        is_test &= line.starts_with(' ');
    }
    modules
}

/// The text at the head of a file.
fn head(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// True when a list in this text has an item that begins with one of the modules.
fn lists_any(head: &str, modules: &BTreeSet<String>) -> bool {
    let items = head.lines().filter_map(|line| line.strip_prefix(" - "));
    let names = items.map(|item| named(item.split(':').next().unwrap_or_default()));
    names.flatten().any(|name| modules.contains(&name))
}

/// The words in backquotes, and the words in drawings.
fn named(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_drawing = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_drawing = !is_drawing;
        } else if is_drawing {
            names.extend(words(line));
        } else {
            prose += line;
            prose.push('\n');
        }
    }
    names.extend(prose.split('`').skip(1).step_by(2).flat_map(words));
    names
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).map(str::to_owned)
}

/// The names in the first column of the table of modules, if the document has one.
fn table(readme: &str) -> Option<BTreeSet<String>> {
    let lines = readme.lines();
    let mut rows = lines.skip_while(|line| !line.starts_with("| module |"));
    rows.next()?;
    let rows = rows.skip(1).map_while(|line| line.strip_prefix("| "));
    let cells = rows.map(|row| row.split(" | ").next().unwrap_or_default());
    Some(cells.flat_map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn modules_are_those_with_files_of_their_own() {
        let text = "mod a;\npub(crate) mod b;\n#[cfg(test)]\n#[path = \"x\"]\nmod c;\nmod d {\n    \
                    mod e;\n}\n// mod f;\n#[cfg(target_arch = \"x86_64\")]\npub mod g;";
        assert_eq!(modules(text), set(&["a", "b", "g"]));
    }

    #[test]
    fn names_stand_in_backquotes_or_in_a_drawing() {
        let text = " - [`a`], `b::c`: d\n ```text\n e ─► [f]\n ```\n `g`";
        assert_eq!(named(text), set(&["a", "b", "c", "e", "f", "g"]));
    }

    #[test]
    fn a_text_lists_modules_when_an_item_begins_with_one() {
        let lists = |text| lists_any(text, &set(&["a", "b"]));
        assert!(lists(" Text.\n\n - [`x`], [`a`]: something;"));
        assert!(!lists(" Text with `a`.\n - [`x`]: something of `a`;"));
    }

    #[test]
    fn a_table_of_modules_has_their_names_in_the_first_column() {
        let text = "# x\n\n| module | what |\n|---|---|\n| `a`, `b` | of `c` |\n\n| `d` | |";
        assert_eq!(table(text), Some(set(&["a", "b"])));
        assert_eq!(table("| | |\n|---|---|\n| `a` | |"), None);
    }
}
