//! Apache httpd's own tests, in Perl: the installed server with the tests of its source.
//!
//! A file of tests is one test here. The files have some 6,300 checks between them.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;
use crate::root;

/// Longer than any file of tests takes, and longer than the server with its certificates takes to
/// start.
const TIME_LIMIT: Duration = Duration::from_secs(180);
const PACKAGE: &str = "apache2";
const SCRIPT: &str = "apache_suite.sh";
/// The folder in which Debian keeps the tests in the source of its package.
const FRAMEWORK: &str = "debian/perl-framework";
/// The programs, and the folders of tests that each runs: parts of similar duration. PHP's tests
/// need a module that Debian's Apache packages do not have.
const PARTS: [(&str, &[&str]); 4] = [
    ("apache", &["t/apache", "t/apr"]),
    ("modules", &["t/modules"]),
    (
        "protocol",
        &["t/ab", "t/filter", "t/http11", "t/protocol", "t/security"],
    ),
    ("ssl", &["t/ssl"]),
];

/// A program for each part; none is in the quick selection.
pub(super) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    if is_quick {
        return Ok(Vec::new());
    }
    for needed in ["/usr/sbin/apache2", "/usr/bin/apxs"] {
        if !Path::new(needed).is_file() {
            return Err(format!("{needed} is not installed"));
        }
    }
    let framework = source::of_installed(PACKAGE)?.join(FRAMEWORK);
    let work = source::cache().join("apache-work");
    let prepare = || {
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        source::copy_tree(&framework, &work)?;
        fs::copy(root().join("tests/scripts").join(SCRIPT), work.join(SCRIPT))
    };
    prepare().map_err(|error| format!("{}: {error}", work.display()))?;
    let program = |(name, folders): (&str, &[&str])| {
        let mut command: Vec<OsString> = vec!["bash".into(), SCRIPT.into()];
        command.extend(folders.iter().map(Into::into));
        Program {
            name: name.to_owned(),
            command,
            dir: work.clone(),
            environment: Vec::new(),
            reading: Reading::Lines(read),
            time_limit: TIME_LIMIT,
        }
    };
    Ok(PARTS.into_iter().map(program).collect())
}

/// Reads lines like `t/apache/404.t ... ok`, `t/php/all.t ... skipped: no PHP`, and for a failed
/// test, in the final summary, `t/filter/case.t (Wstat: 512 (exited 2) Tests: 4 Failed: 1)`. The
/// summary also has tests with a check that passes unexpectedly.
fn read(line: &str) -> Option<(String, Outcome)> {
    let (test, said) = line.split_once(' ')?;
    if !test.starts_with("t/") || !test.ends_with(".t") {
        return None;
    }
    let said = said.trim().trim_start_matches('.').trim();
    let outcome = match said {
        "ok" => Outcome::Passed,
        _ if said.starts_with("skipped") => Outcome::Skipped,
        _ if !said.starts_with("(Wstat: ") => return None,
        _ if said.starts_with("(Wstat: 0 ") && said.ends_with(" Failed: 0)") => return None,
        _ => Outcome::Failed,
    };
    Some((test.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_failed_is_named_in_the_summary() {
        let test = |outcome| Some(("t/filter/case.t".to_owned(), outcome));
        let passed = "t/filter/case.t ............. ok";
        assert_eq!(read(passed), test(Outcome::Passed));
        let skipped = "t/filter/case.t .... skipped: cannot find module 'case'";
        assert_eq!(read(skipped), test(Outcome::Skipped));
        assert_eq!(read("t/filter/case.t ..... "), None);
        let failed = "t/filter/case.t   (Wstat: 0 Tests: 4 Failed: 1)";
        assert_eq!(read(failed), test(Outcome::Failed));
        let died = "t/filter/case.t   (Wstat: 512 (exited 2) Tests: 4 Failed: 0)";
        assert_eq!(read(died), test(Outcome::Failed));
        let unexpected = "t/filter/case.t   (Wstat: 0 Tests: 125 Failed: 0)";
        assert_eq!(read(unexpected), None);
    }
}
