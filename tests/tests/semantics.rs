//! Every case of the semantics suite, played on the kernel: the oracle.

use toehold_e2e::{Duet, Sides, Toehold, host};

const PROGRAM: &str = env!("CARGO_BIN_EXE_semantics");

/// The names of one group's cases.
fn cases(group: &str) -> Vec<String> {
    let list = std::process::Command::new(PROGRAM)
        .arg("list")
        .output()
        .expect("the suite runs");
    let list = String::from_utf8(list.stdout).expect("names are text");
    let lines = list.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter(|(of, _)| *of == group)
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// What the suite itself promises: on the kernel each case ends well and, asked again (TOEHOLD_SOAK), says
/// the same thing.
fn reproducible_on_the_kernel(groups: &[&str]) {
    let toehold = Toehold::absent();
    for group in groups {
        let cases = cases(group);
        assert!(!cases.is_empty(), "no group is called {group}");
        for case in cases {
            let duet = Duet::play(&toehold, Sides::HOST, PROGRAM, &case);
            let transcript = duet.transcript.join("\n");
            let ended_well = [
                "server: exit 0",
                "client: exit 0",
                "server: exit 3",
                "signal 9",
                "signal 13",
            ];
            let ends = duet
                .transcript
                .iter()
                .filter(|line| ended_well.iter().any(|end| line.ends_with(end)));
            assert!(
                ends.count() >= 2,
                "{case} failed on the kernel:\n{transcript}"
            );
            for _ in 1..host::rounds(1) {
                let again = Duet::play(&toehold, Sides::HOST, PROGRAM, &case);
                let differences = again.differences(&duet);
                assert!(
                    differences.is_empty(),
                    "{case} differs from itself:\n{}",
                    differences.join("\n")
                );
            }
        }
    }
}

#[test]
fn suite_is_reproducible_on_the_kernel() {
    let groups = [
        "connecting",
        "transfer",
        "flags",
        "blocking",
        "interrupts",
        "ending",
        "readiness",
        "epoll",
        "descriptors",
        "processes",
        "threads",
        "files",
        "stdio",
        "many",
    ];
    reproducible_on_the_kernel(&groups);
}
