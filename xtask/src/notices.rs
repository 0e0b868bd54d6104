//! Makes the file `THIRD-PARTY`: other projects' code in the program and the library, with its
//! licences. It is installed beside them, because these licences require that.
//!
//! A crate under a licence that is not in [`LICENCES`] fails the check: a maintainer has to read
//! the licence first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// Licences that were read: each of them, or one offered alternative, only requires that its text
/// is passed on.
const LICENCES: [&str; 7] = [
    "MIT",
    "MIT OR Apache-2.0",
    "MIT/Apache-2.0",
    "Apache-2.0 OR MIT",
    "Apache-2.0 OR BSL-1.0",
    "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
    "Unlicense OR MIT",
];

/// Files with the text of the licence that we choose; the first existing one is used.
const TEXTS: [&str; 3] = ["LICENSE-MIT", "LICENSE", "LICENSE-BOOST"];

/// The packages that are built and installed.
const BUILT: [&str; 2] = ["toehold", "toehold-preload"];

const FILE: &str = "THIRD-PARTY";

const HEAD: &str = "\
Other projects' code in Toehold's program and library. `cargo xtask notices` writes this file.

Rust's standard library, MIT OR Apache-2.0: Copyright (c) The Rust Project Contributors. The text of
the MIT licence is below.
";

/// Writes the file; true when that could be done.
pub(crate) fn write(root: &Path) -> bool {
    let written = text(root).and_then(|text| {
        fs::write(root.join(FILE), text).map_err(|error| format!("cannot write {FILE}: {error}"))
    });
    written.map_err(|error| println!("{error}")).is_ok()
}

/// Whether the existing file equals the file that would be written.
pub(crate) fn check(root: &Path) -> bool {
    let kept = fs::read_to_string(root.join(FILE)).unwrap_or_default();
    match text(root) {
        Ok(text) if text == kept => true,
        Ok(_) => {
            println!("{FILE} is of other crates than those that are built: cargo xtask notices");
            false
        }
        Err(error) => {
            println!("{error}");
            false
        }
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for crates of this tree.
    source: Option<String>,
    manifest_path: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `None` for a linked crate; otherwise `build` or `dev`.
    kind: Option<String>,
}

fn text(root: &Path) -> Result<String, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline"]);
    cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = cargo.current_dir(root).output();
    let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
    // Crates with equal texts share one text: their names are listed above it.
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata.linked() {
        let licence = package.license.as_deref().unwrap_or("no licence");
        let name = format!("{} {}, {licence}", package.name, package.version);
        if !LICENCES.contains(&licence) {
            return Err(format!(
                "{name}: read it, and add it to xtask/src/notices.rs"
            ));
        }
        let folder = Path::new(&package.manifest_path).parent().unwrap_or(root);
        let text = TEXTS
            .iter()
            .find_map(|it| fs::read_to_string(folder.join(it)).ok());
        let text = text.ok_or_else(|| format!("{name}: none of {TEXTS:?} is there"))?;
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let text = lines.join("\n").trim_matches('\n').to_owned();
        by_text.entry(text).or_default().push(name);
    }
    let mut groups: Vec<(Vec<String>, String)> = by_text
        .into_iter()
        .map(|(text, mut names)| {
            names.sort_unstable();
            (names, text)
        })
        .collect();
    groups.sort_unstable();
    let mut all = HEAD.to_owned();
    for (names, text) in groups {
        let rule = "-".repeat(80);
        all.push_str(&format!("\n{rule}\n{}\n\n{text}\n", names.join("\n")));
    }
    Ok(all)
}

impl Metadata {
    /// The packages of other projects that are linked into the products, sorted by name. Macros run
    /// only during the build.
    fn linked(&self) -> Vec<&Package> {
        let packages: BTreeMap<&str, &Package> = self
            .packages
            .iter()
            .map(|it| (it.id.as_str(), it))
            .collect();
        let nodes: BTreeMap<&str, &Node> = self
            .resolve
            .nodes
            .iter()
            .map(|it| (it.id.as_str(), it))
            .collect();
        let built = self
            .packages
            .iter()
            .filter(|it| BUILT.contains(&it.name.as_str()));
        let mut left: Vec<&str> = built.map(|it| it.id.as_str()).collect();
        let mut seen: BTreeSet<&str> = left.iter().copied().collect();
        while let Some(id) = left.pop() {
            let dependencies = nodes.get(id).map_or(&[][..], |node| &node.deps);
            for dependency in dependencies {
                let is_linked = dependency.dep_kinds.iter().any(|it| it.kind.is_none());
                let id = dependency.pkg.as_str();
                if is_linked && !packages[id].is_macro() && seen.insert(id) {
                    left.push(id);
                }
            }
        }
        let mut linked: Vec<&Package> = seen.into_iter().map(|id| packages[id]).collect();
        linked.retain(|package| package.source.is_some());
        linked.sort_unstable_by_key(|package| (&package.name, &package.version));
        linked
    }
}

impl Package {
    fn is_macro(&self) -> bool {
        let mut kinds = self.targets.iter().flat_map(|target| &target.kind);
        kinds.any(|kind| kind == "proc-macro")
    }
}
