//! Finds `libtoehold.so`, the library that accelerated programs are started with.

use std::fmt;
use std::path::{Path, PathBuf};

/// Its file name.
pub(crate) const NAME: &str = "libtoehold.so";

/// Where the library is: `$TOEHOLD_LIB`, else beside this program or where it was installed.
///
/// # Errors
///
/// When it is in none of these places; the error names them.
pub(crate) fn find() -> Result<PathBuf, NotFound> {
    let program = std::env::current_exe().ok();
    find_among(candidates(
        std::env::var_os("TOEHOLD_LIB").map(PathBuf::from),
        program.as_deref(),
    ))
}

/// No library in any of these places.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotFound {
    tried: Vec<PathBuf>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self
            .tried
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        write!(
            out,
            "{NAME} was not found (tried {}); set TOEHOLD_LIB to its path",
            places.join(", ")
        )
    }
}

impl std::error::Error for NotFound {}

fn find_among(candidates: Vec<PathBuf>) -> Result<PathBuf, NotFound> {
    match candidates.iter().find(|path| path.is_file()) {
        // The loader resolves a relative path anew in every child, so make it absolute.
        Some(path) => Ok(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        None => Err(NotFound { tried: candidates }),
    }
}

/// An explicit choice stands alone: falling back from it would hide that it is wrong.
fn candidates(chosen: Option<PathBuf>, program: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = chosen {
        return vec![path];
    }
    let Some(directory) = program.and_then(Path::parent) else {
        return Vec::new();
    };
    let installed = |place: &str| {
        directory
            .parent()
            .map(|prefix| prefix.join(place).join(NAME))
    };
    [
        Some(directory.join(NAME)),
        installed("lib/toehold"),
        installed("lib"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_tried_in_order() {
        let places = candidates(None, Some(Path::new("/usr/bin/toehold")));
        let expected = [
            "/usr/bin/libtoehold.so",
            "/usr/lib/toehold/libtoehold.so",
            "/usr/lib/libtoehold.so",
        ];
        assert_eq!(places, expected.map(PathBuf::from));
    }

    #[test]
    fn an_explicit_choice_stands_alone_and_its_absence_is_said() {
        let places = candidates(
            Some("/nowhere/x.so".into()),
            Some(Path::new("/usr/bin/toehold")),
        );
        let error = find_among(places).expect_err("not there");
        assert!(error.to_string().contains("/nowhere/x.so"));
        assert!(!error.to_string().contains("/usr/lib"));
    }
}
