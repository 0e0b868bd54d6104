//! curl's own tests: the tool and small programs over the library, against servers of its own.

use std::path::Path;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

/// Longer than any test takes, and longer than its servers take to start.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The number of tests that one program runs. If one of them differs, only its program is run
/// again.
const TESTS_EACH: usize = 60;
/// Options of `configure`: the features that curl's tests need.
const CONFIGURE: [&str; 10] = [
    "./configure",
    "--quiet",
    "--disable-shared",
    "--disable-ldap",
    "--disable-manual",
    "--without-zstd",
    "--without-brotli",
    "--without-libpsl",
    "--without-libidn2",
    "--with-openssl",
];

/// A program for every few tests; none is in the quick selection.
pub(crate) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    if is_quick {
        return Ok(Vec::new());
    }
    let source = source::of_package("curl")?;
    let tests = source.join("tests");
    if !tests.join("server/sws").is_file() {
        source::build(&source, &CONFIGURE)?;
        source::build(&source, &["make", "--quiet", "-j2"])?;
        for part in ["tests/server", "tests/libtest"] {
            source::build(&source, &["make", "--quiet", "-j2", "-C", part])?;
        }
    }
    let numbers = numbers(&tests).map_err(|error| error.to_string())?;
    if numbers.is_empty() {
        return Err("its source has no tests".to_owned());
    }
    let chunks = numbers.chunks(TESTS_EACH);
    let programs = chunks.map(|chunk| {
        let mut command: Vec<String> = ["perl", "runtests.pl", "-n", "-a", "-am"]
            .map(str::to_owned)
            .to_vec();
        // Tests that curl itself marks as unsteady.
        command.push("!flaky".to_owned());
        command.extend(chunk.iter().map(u64::to_string));
        Program {
            name: format!("{}-{}", chunk[0], chunk[chunk.len() - 1]),
            command: command.into_iter().map(Into::into).collect(),
            dir: tests.clone(),
            // Without a user name its runner dies at the first test of SFTP.
            environment: vec![("LC_ALL", "C".into()), ("USER", "root".into())],
            reading: Reading::Lines(read),
            time_limit: TIME_LIMIT,
        }
    });
    Ok(programs.collect())
}

/// The numbers of its tests: `tests/data/test1234`.
fn numbers(tests: &Path) -> std::io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(tests.join("data"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        numbers.extend(
            name.strip_prefix("test")
                .and_then(|number| number.parse::<u64>().ok()),
        );
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads `PASS: 12 - what it is about` and `FAIL: 12 - ...`. A test that died has no line.
fn read(line: &str) -> Option<(String, Outcome)> {
    let (word, rest) = line.split_once(": ")?;
    let outcome = match word {
        "PASS" => Outcome::Passed,
        "FAIL" => Outcome::Failed,
        _ => return None,
    };
    let number = rest.split_whitespace().next()?;
    number.parse::<u64>().ok()?;
    Some((number.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_its_number() {
        assert_eq!(
            read("PASS: 1 - HTTP GET"),
            Some(("1".to_owned(), Outcome::Passed))
        );
        assert_eq!(
            read("FAIL: 20 - x - stdout"),
            Some(("20".to_owned(), Outcome::Failed))
        );
        assert_eq!(read("TESTDONE: 1 tests out of 2 reported OK: 50%"), None);
    }
}
