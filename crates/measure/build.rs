//! Tells the program the commit from which it was built, if that is known.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(commit) = commit() {
        println!("cargo::rustc-env=TOEHOLD_COMMIT={}", &commit[..12]);
    }
}

/// The commit that is checked out, from the repository's own files.
fn commit() -> Option<String> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")?;
    let mut folders = Path::new(&here).ancestors();
    let dot_git =
        folders.find_map(|folder| Some(folder.join(".git")).filter(|git| git.exists()))?;
    // In a worktree this is a file that names the folder.
    let folder = match fs::read_to_string(&dot_git) {
        Ok(text) => PathBuf::from(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => dot_git,
    };
    let common = match fs::read_to_string(folder.join("commondir")) {
        Ok(path) => folder.join(path.trim()),
        Err(_) => folder.clone(),
    };
    let head = fs::read_to_string(folder.join("HEAD")).ok()?;
    println!(
        "cargo::rerun-if-changed={}",
        folder.join("logs/HEAD").display()
    );
    let Some(name) = head.trim().strip_prefix("ref: ") else {
        return valid(&head);
    };
    if let Ok(commit) = fs::read_to_string(common.join(name)) {
        return valid(&commit);
    }
    let packed = fs::read_to_string(common.join("packed-refs")).ok()?;
    let line = packed
        .lines()
        .find(|line| line.ends_with(&format!(" {name}")))?;
    valid(line.split(' ').next()?)
}

fn valid(commit: &str) -> Option<String> {
    let commit = commit.trim();
    (commit.len() >= 40 && commit.chars().all(|c| c.is_ascii_hexdigit())).then(|| commit.to_owned())
}
