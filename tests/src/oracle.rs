//! The kernel's transcripts of cases: each is played once, and many tests compare with it.
//!
//! The tests of a process share transcripts. If [`FOLDER`] names a folder, the tests of several
//! processes share them, too: `cargo xtask test` names one for each run. A test that finds a
//! difference plays the case on the kernel again, in its own place, and compares with that. So it
//! reports exactly the differences from what the kernel does at that moment.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

/// The variable with the folder of transcripts.
pub const FOLDER: &str = "E2E_TRANSCRIPTS";

/// The lines of a transcript.
type Transcript = Arc<Vec<String>>;

/// Transcripts by the names of their cases. A case that is being played has an empty place, for
/// which others wait.
static KNOWN: Mutex<BTreeMap<String, Arc<OnceLock<Transcript>>>> = Mutex::new(BTreeMap::new());

/// The kernel's transcript of a case, and how to play the case again.
pub struct Oracle<'a> {
    transcript: Transcript,
    /// Whether the case was played for this oracle.
    is_new: bool,
    play: &'a dyn Fn() -> Vec<String>,
}

impl<'a> Oracle<'a> {
    /// The oracle of the case that `play` plays on the kernel. `name` identifies the case and the
    /// kind of its connections.
    ///
    /// # Panics
    /// When `play` does.
    pub fn of(name: &str, play: &'a dyn Fn() -> Vec<String>) -> Oracle<'a> {
        let mut known = KNOWN.lock().expect("nobody panics with it");
        let place = known.entry(name.to_owned()).or_default().clone();
        drop(known);
        let mut is_new = false;
        let transcript = place.get_or_init(|| {
            let kept = kept(name).or_else(|| {
                is_new = true;
                let transcript = play();
                keep(name, &transcript);
                Some(transcript)
            });
            Arc::new(kept.unwrap_or_default())
        });
        Oracle {
            transcript: transcript.clone(),
            is_new,
            play,
        }
    }

    /// The kernel's transcript.
    pub fn transcript(&self) -> &[String] {
        &self.transcript
    }

    /// Where `differences` finds some between a play and the kernel's transcript, the kernel plays
    /// again. Returns the differences from the last transcript.
    pub fn differences<T>(&mut self, differences: impl Fn(&[String]) -> Vec<T>) -> Vec<T> {
        let found = differences(&self.transcript);
        if found.is_empty() || self.is_new {
            return found;
        }
        self.transcript = Arc::new((self.play)());
        self.is_new = true;
        differences(&self.transcript)
    }
}

/// The file of a case's transcript, if transcripts are kept.
fn file(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER)?;
    Some(PathBuf::from(folder).join(name))
}

fn kept(name: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(file(name)?).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

/// Keeps a transcript for other processes. Without it they play the case themselves, as they do if
/// a role failed or had no time here.
fn keep(name: &str, transcript: &[String]) {
    let Some(file) = file(name) else {
        return;
    };
    const FAILURES: [&str; 2] = ["STUCK in ", "panicked at "];
    let has_failed = |line: &String| FAILURES.iter().any(|failure| line.contains(failure));
    if transcript.iter().any(has_failed) {
        return;
    }
    let part = file.with_file_name(format!("{name}.{}", std::process::id()));
    let text: String = transcript.iter().map(|line| format!("{line}\n")).collect();
    // Readers find a whole file or none.
    let _ = fs::write(&part, text).and_then(|()| fs::rename(&part, &file));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_case_is_played_once_and_again_where_a_test_finds_a_difference() {
        let plays = Cell::new(0);
        let play = || {
            plays.set(plays.get() + 1);
            vec![format!("play {}", plays.get())]
        };
        let is_as = |oracle: &mut Oracle, seen: &str| {
            let other = |line: &&String| *line != seen;
            let differences =
                oracle.differences(|kernel| kernel.iter().filter(other).cloned().collect());
            differences.is_empty()
        };
        let mut first = Oracle::of("a_case", &play);
        assert!(is_as(&mut first, "play 1"));
        // The case was played for this oracle, and is not played again.
        assert!(!is_as(&mut first, "play 2"));
        let mut second = Oracle::of("a_case", &play);
        assert!(is_as(&mut second, "play 1"));
        assert_eq!(plays.get(), 1);
        assert!(is_as(&mut second, "play 2"));
        assert!(!is_as(&mut second, "play 3"));
        assert_eq!(plays.get(), 2);
    }
}
