//! Finds `libtoehold.so`, the library that is loaded into accelerated programs.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::program;

/// Its file name.
pub(crate) const NAME: &str = "libtoehold.so";

/// The library's path: `$TOEHOLD_LIB`, otherwise beside this program or in the place of
/// installation.
///
/// # Errors
///
/// When it is in none of these places (the error names them), or when the file cannot be loaded.
pub(crate) fn find() -> Result<PathBuf, FindError> {
    let program = std::env::current_exe().ok();
    find_among(candidates(
        std::env::var_os("TOEHOLD_LIB").map(PathBuf::from),
        program.as_deref(),
    ))
}

/// The reason why no library was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FindError {
    /// It is in none of these places.
    NotFound {
        /// The places.
        tried: Vec<PathBuf>,
    },
    /// The file is empty, truncated, or for another machine.
    Broken {
        /// Where it is.
        path: PathBuf,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NotFound { tried } if tried.is_empty() => write!(
                out,
                "{NAME} was not found, because without /proc this program does not know where it \
                 is itself; set TOEHOLD_LIB to the library's path"
            ),
            FindError::NotFound { tried } => {
                let places: Vec<String> = tried
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect();
                write!(
                    out,
                    "{NAME} was not found (tried {}); set TOEHOLD_LIB to its path",
                    places.join(", ")
                )
            }
            FindError::Broken { path } => write!(
                out,
                "{} is empty, truncated, or not a library for this machine; install it again",
                path.display()
            ),
        }
    }
}

impl std::error::Error for FindError {}

fn find_among(candidates: Vec<PathBuf>) -> Result<PathBuf, FindError> {
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) if !program::is_whole_library(path) => {
            Err(FindError::Broken { path: path.clone() })
        }
        // The loader resolves a relative path again in every child, so make the path absolute.
        Some(path) => Ok(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        None => Err(FindError::NotFound { tried: candidates }),
    }
}

/// An explicit choice has no fallback, because a fallback would hide that the choice is wrong.
fn candidates(chosen: Option<PathBuf>, program: Option<&Path>) -> Vec<PathBuf> {
    // An empty variable is one that is not set, as in other programs.
    if let Some(path) = chosen.filter(|path| !path.as_os_str().is_empty()) {
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
    fn empty_choice_is_none() {
        let program = Some(Path::new("/usr/bin/toehold"));
        assert_eq!(
            candidates(Some(PathBuf::new()), program),
            candidates(None, program)
        );
    }

    #[test]
    fn a_program_that_does_not_know_its_own_place_says_so() {
        let error = find_among(candidates(None, None)).expect_err("nowhere");
        assert!(error.to_string().contains("without /proc"), "{error}");
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

    #[test]
    fn a_library_that_is_cut_short_is_said_to_be() {
        let folder = tempfile::tempdir().expect("room");
        let path = folder.path().join(NAME);
        // This test is a position-independent program, so the loader can load it like a library.
        let whole = std::fs::read("/proc/self/exe").expect("a file");
        let is_whole = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("room");
            let found = find_among(vec![path.clone()]);
            if let Err(error) = &found {
                assert!(error.to_string().contains("truncated"), "{error}");
            }
            found.is_ok()
        };
        assert!(is_whole(&whole));
        for length in [0, 4, 64, 4_000, 40_000] {
            assert!(!is_whole(&whole[..length]), "{length} bytes");
        }
    }
}
