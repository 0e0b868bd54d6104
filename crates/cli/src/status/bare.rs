//! Programs that were started to have the library and run without it, or whose system calls should
//! have been patched: which, and why.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use toehold_adapter::unserved::{Left, Search};
use toehold_adapter::{printable, unserved};

use super::answer::Bare;
#[cfg(target_arch = "x86_64")]
use crate::patched;
use crate::preload;
use crate::program::{self, Obstacle};
use crate::users;

/// Programs without the library, each with its reason.
pub(super) fn explained(found: Vec<unserved::Bare>, search: &Search) -> Vec<Bare> {
    let explained = |one: unserved::Bare| {
        let one = Arc::new(one);
        let asked = Arc::clone(&one);
        let reason = search.ask(one.pid, move || reason(&asked));
        Bare {
            pid: one.pid,
            uid: one.uid,
            reason: reason.unwrap_or_else(|| NOT_SHOWN.to_owned()),
            has_library: one.unpatched.is_some() || one.left.is_some(),
            is_left: one.left.is_some(),
            program: one.program.clone(),
        }
    };
    let mut found: Vec<Bare> = found.into_iter().map(explained).collect();
    found.sort_by_key(|one| one.pid);
    found
}

/// The reason of a program whose file does not come.
const NOT_SHOWN: &str = "its program could not be read in time";

fn reason(one: &unserved::Bare) -> String {
    if let Some(sentence) = &one.unpatched {
        return sentence.clone();
    }
    match one.left {
        Some(Left::Confined) => {
            return "it is confined to some system calls (seccomp), and the library makes others"
                .into();
        }
        Some(Left::Polled) => {
            return "a thread of the kernel takes its requests of io_uring (SQPOLL), which the \
                    library does not see"
                .into();
        }
        None => {}
    }
    if let Some(sentence) = said(one) {
        return format!("it reported at its start: {sentence}");
    }
    let executable = Path::new("/proc").join(one.pid.to_string()).join("exe");
    match program::obstacle(&executable) {
        Some(Obstacle::Static(_)) if one.is_to_be_patched => unpatched(one.pid),
        Some(obstacle @ Obstacle::Static(_)) if cfg!(target_arch = "x86_64") => format!(
            "it {}; toehold run patches the system calls of such programs, unless --patch-calls \
            off is given",
            obstacle.predicate()
        ),
        Some(obstacle) => format!("it {}", obstacle.predicate()),
        None if !preload::has_library(one.preload.as_deref()) => {
            "LD_PRELOAD does not name the library in its environment".into()
        }
        None => "LD_PRELOAD names the library, and its loader did not load it".into(),
    }
}

/// The reason why a program without a loader is not patched, though it was to be.
#[cfg(target_arch = "x86_64")]
fn unpatched(pid: u32) -> String {
    match (patched::obstacle(pid as libc::pid_t), unserved::tracer(pid)) {
        (Some(refusal), _) => refusal.to_string(),
        (None, Some((tracer, name))) => format!(
            "its system calls are not patched, because a program has one tracer at most: {name} \
             (pid {tracer}) traces it now"
        ),
        (None, None) => {
            "its system calls are not patched: at its start it could not be traced, or the \
            library did not touch it; a debugger, a limit, or a filter for system calls may \
                 be the reason"
                .into()
        }
    }
}

/// Other processors have no patches.
#[cfg(not(target_arch = "x86_64"))]
fn unpatched(_: u32) -> String {
    "system calls are not patched on this processor".into()
}

/// The sentence of the `toehold run`, or of the program, that has become this program.
fn said(one: &unserved::Bare) -> Option<&str> {
    let (pid, sentence) = one.refused.as_deref()?.split_once(':')?;
    (pid.parse() == Ok(one.own_pid)).then_some(sentence)
}

/// Two lines for each.
pub(super) fn lines<'a>(programs: impl Iterator<Item = &'a Bare>) -> String {
    programs.fold(String::new(), |mut out, one| {
        let state = match (one.has_library, one.is_left) {
            (_, true) => "on kernel TCP, left by the library",
            (true, _) => "system calls of its own on kernel TCP",
            (false, _) => "on kernel TCP, without the library",
        };
        let _ = writeln!(
            out,
            "{}, pid {}, user {}: {state}\n  {}",
            printable(&one.program),
            one.pid,
            users::name(one.uid),
            printable(&one.reason)
        );
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_words_do_not_command_the_terminal() {
        let one = Bare {
            pid: 7,
            program: "\x1b[2Jx".into(),
            uid: 0,
            reason: "because\nof\x07".into(),
            has_library: false,
            is_left: false,
        };
        let text = lines([one].iter());
        assert!(
            text.lines().count() == 2 && !text.contains(['\x1b', '\x07']),
            "{text:?}"
        );
    }

    #[test]
    fn a_sentence_is_about_the_process_that_it_names() {
        let of = |refused: &str| unserved::Bare {
            pid: 70,
            own_pid: 7,
            uid: 0,
            program: "x".into(),
            refused: Some(refused.into()),
            is_to_be_patched: false,
            preload: None,
            unpatched: None,
            left: None,
        };
        assert_eq!(said(&of("7:because: so")), Some("because: so"));
        assert_eq!(said(&of("70:because")), None);
        assert_eq!(said(&of("because")), None);
    }
}
