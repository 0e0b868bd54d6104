//! The environment variable that names the libraries to load first, with and without ours.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

pub(crate) use toehold_adapter::unserved::FILTERS;
use toehold_adapter::unserved::{PATCH_CALLS, REFUSED, STARTED};

use crate::library;

/// The loader's list of libraries to load first.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
/// The variable from which the library reads `--pair-after`.
pub(crate) const PAIR_AFTER: &str = "TOEHOLD_PAIR_AFTER";
/// The variable from which the library reads `--express`.
pub(crate) const EXPRESS: &str = "TOEHOLD_EXPRESS";

/// Whether the loader will load our library.
pub(crate) fn has_library(preload: Option<&OsStr>) -> bool {
    preload.is_some_and(|preload| entries(preload).any(is_ours))
}

/// The variable that asks for patches in programs that make system calls themselves, on machines
/// that support patches.
pub(crate) fn patches() -> Option<(&'static str, &'static str)> {
    cfg!(target_arch = "x86_64").then_some((PATCH_CALLS, "on"))
}

/// Removes the variables that an outer `toehold run` has put into the environment.
pub(crate) fn remove_acceleration(command: &mut Command) {
    match without_library(env::var_os(PRELOAD).as_deref()) {
        Some(others) => command.env(PRELOAD, others),
        None => command.env_remove(PRELOAD),
    };
    command
        .env_remove("TOEHOLD_PATH")
        .env_remove("TOEHOLD_WAIT")
        .env_remove(EXPRESS)
        .env_remove(FILTERS)
        .env_remove(PATCH_CALLS)
        .env_remove(STARTED)
        .env_remove(PAIR_AFTER)
        .env_remove(REFUSED);
}

/// Whether a path can be an entry of the list. Spaces and colons separate entries, `$` begins a
/// token (ld.so(8)), and there is no escape.
pub(crate) fn can_stand_in_list(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes().iter();
    !bytes
        .into_iter()
        .any(|byte| matches!(byte, b' ' | b':' | b'$'))
}

/// The preloaded libraries that are not ours; `None` when there are none.
pub(crate) fn without_library(preload: Option<&OsStr>) -> Option<OsString> {
    let others: Vec<&[u8]> = entries(preload?).filter(|path| !is_ours(path)).collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

/// The entries of the list.
fn entries(preload: &OsStr) -> impl Iterator<Item = &[u8]> {
    let entries = preload.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    entries.filter(|path| !path.is_empty())
}

fn is_ours(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next() == Some(library::NAME.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_library_is_taken_out() {
        let out = |list: &str| without_library(Some(OsStr::new(list)));
        assert_eq!(out("/a/libtoehold.so"), None);
        assert_eq!(
            out("/a/libtoehold.so:/b/other.so c.so"),
            Some("/b/other.so:c.so".into())
        );
        assert_eq!(
            out("/a/libtoehold.so.bak"),
            Some("/a/libtoehold.so.bak".into())
        );
        assert_eq!(without_library(None), None);
        assert!(has_library(Some(OsStr::new("c.so /a/libtoehold.so"))));
        assert!(!has_library(Some(OsStr::new("c.so:"))) && !has_library(None));
    }
}
