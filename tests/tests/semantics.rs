//! Every case of the semantics suite, played on the kernel and on every other combination of paths.

use toehold_e2e::duet::{ADAPTER, DIFFERENCES_OF_RINGS, MAY_STAY, cases};
use toehold_e2e::toehold::Path;
use toehold_e2e::{Duet, Oracle, Sides, Toehold, host};

const PROGRAM: &str = env!("CARGO_BIN_EXE_semantics");

/// Plays a group's cases and compares each with the kernel's transcript; reports all cases that
/// differ.
fn compare(group: &str, sides: &[Sides]) {
    compare_cases(&Toehold::start(), group, &cases(PROGRAM, group), sides);
}

fn compare_cases(toehold: &Toehold, group: &str, cases: &[String], sides: &[Sides]) {
    let mut complaints = Vec::new();
    let (mut asked, mut upgraded) = (0, 0);
    for case in cases {
        let on_kernel = || Duet::play(toehold, Sides::HOST, PROGRAM, case).transcript;
        let mut oracle = Oracle::of(case, &on_kernel);
        for &sides in sides {
            let duet = Duet::play(toehold, sides, PROGRAM, case);
            let differences = oracle.differences(|kernel| unexplained(&duet, kernel, case));
            if !differences.is_empty() {
                // A role's complaints follow all that it has said.
                const LINES_MAX: usize = 40;
                let shown = differences[..differences.len().min(LINES_MAX)].join("\n      ");
                let evidence = duet.evidence.unwrap_or_default();
                complaints.push(format!("{case} ({sides:?}):\n      {shown}\n{evidence}"));
            }
            asked += duet.asked;
            upgraded += duet.upgraded;
            let may_stay = MAY_STAY.iter().any(|(of, _)| of == case);
            if duet.upgraded < duet.asked && !may_stay {
                complaints.push(format!(
                    "{case}: {} of {} connections upgraded",
                    duet.upgraded, duet.asked
                ));
            }
        }
    }
    eprintln!("{group}: {upgraded} of {asked} warmed-up connections had been upgraded");
    assert!(
        complaints.is_empty(),
        "{group}: {} complaints\n  {}",
        complaints.len(),
        complaints.join("\n  ")
    );
}

/// Where a duet departs from the kernel's transcript, except for the differences of rings.
fn unexplained(duet: &Duet, kernel: &[String], case: &str) -> Vec<String> {
    let is_known = |line: &String| {
        let mut known = DIFFERENCES_OF_RINGS.iter();
        known.any(|known| known.explains(case, line))
    };
    let mut differences = duet.differences(kernel);
    differences.retain(|line| !is_known(line));
    differences
}

/// Checks of the suite itself: on the kernel each case of a group ends well and, when repeated
/// (TOEHOLD_SOAK), gives an equal transcript.
fn reproducible_on_the_kernel(group: &str) {
    let toehold = Toehold::absent();
    for case in cases(PROGRAM, group) {
        let play = || Duet::play(&toehold, Sides::HOST, PROGRAM, &case);
        let on_kernel = || play().transcript;
        let oracle = Oracle::of(&case, &on_kernel);
        let transcript = oracle.transcript();
        let ended_well = [
            "server: exit 0",
            "client: exit 0",
            "server: exit 3",
            "signal 9",
            "signal 13",
        ];
        let ends = transcript
            .iter()
            .filter(|line| ended_well.iter().any(|end| line.ends_with(end)));
        assert!(
            ends.count() >= 2,
            "{case} failed on the kernel:\n{}",
            transcript.join("\n")
        );
        for _ in 1..host::rounds(1) {
            let differences = play().differences(transcript);
            assert!(
                differences.is_empty(),
                "{case} differs from itself:\n{}",
                differences.join("\n")
            );
        }
    }
}

#[test]
fn every_group_has_cases() {
    macro_rules! names {
        ($($group:ident: $claim:ident),* $(,)?) => {
            [$(stringify!($group)),*]
        };
    }
    // With a single case (TOEHOLD_CASE) the other groups have no case.
    if std::env::var_os("TOEHOLD_CASE").is_none() {
        for group in toehold_e2e::each_semantics_group!(names) {
            assert!(!cases(PROGRAM, group).is_empty(), "{group}");
        }
    }
}

/// Both sides accelerated. With `E2E_EVERYTHING_EXPRESS`, each case's first connection uses a
/// carrier that has served others before; where it does not, the transcript says so.
fn both_accelerated() -> Sides {
    match std::env::var_os("E2E_EVERYTHING_EXPRESS") {
        Some(_) => Sides::EXPRESS,
        None => Sides::DIRECT,
    }
}

/// Makes tests of each group: one with both sides accelerated, one with either side alone, and one
/// with none.
macro_rules! groups {
    ($($group:ident: $claim:ident),* $(,)?) => {$(
        mod $group {
            #[test]
            fn $claim() {
                super::compare(stringify!($group), &[super::both_accelerated()]);
            }

            #[test]
            fn one_accelerated_side_changes_nothing() {
                super::compare(
                        stringify!($group),
                        &[super::Sides::SERVER_ONLY, super::Sides::CLIENT_ONLY],
                    );
            }

            #[test]
            fn cases_are_reproducible_on_the_kernel() {
                super::reproducible_on_the_kernel(stringify!($group));
            }
        }
    )*};
}

toehold_e2e::each_semantics_group!(groups);

/// Connections of Unix sockets; the kernel is the oracle for them as well.
mod over_unix {
    use super::{PROGRAM, unexplained};
    use toehold_e2e::duet::{MAY_STAY, ONLY_TCP, cases};
    use toehold_e2e::{Duet, Oracle, Sides, Toehold};

    fn compare(groups: &[&str], sides: Sides) {
        let toehold = Toehold::start();
        let mut complaints = Vec::new();
        let is_unix = |case: &String| !ONLY_TCP.iter().any(|(only, _)| case.contains(only));
        let all = groups.iter().flat_map(|group| cases(PROGRAM, group));
        for case in all.filter(is_unix) {
            let play = |sides| Duet::play_on_unix(&toehold, sides, PROGRAM, &case);
            let on_kernel = || play(Sides::HOST).transcript;
            let mut oracle = Oracle::of(&format!("{case}.unix"), &on_kernel);
            let mut lines = oracle.transcript().iter();
            if let Some(line) = lines.find(|line| line.contains("panicked")) {
                complaints.push(format!("{case} fails on the kernel: {line}"));
            }
            let duet = play(sides);
            let mut differences = oracle.differences(|kernel| unexplained(&duet, kernel, &case));
            if !differences.is_empty() {
                differences.truncate(12);
                complaints.push(format!("{case}:\n      {}", differences.join("\n      ")));
            }
            let may_stay = MAY_STAY.iter().any(|(of, _)| *of == case);
            if duet.upgraded < duet.asked && !may_stay {
                complaints.push(format!("{case}: not upgraded"));
            }
        }
        assert!(
            complaints.is_empty(),
            "{} complaints\n  {}",
            complaints.len(),
            complaints.join("\n  ")
        );
    }

    #[test]
    fn bytes_move_as_on_the_kernel() {
        compare(&["transfer", "flags"], Sides::DIRECT);
    }

    #[test]
    fn connections_end_as_on_the_kernel() {
        compare(&["ending"], Sides::DIRECT);
    }

    #[test]
    fn readiness_is_reported_as_on_the_kernel() {
        compare(&["readiness"], Sides::DIRECT);
    }
}

/// The adapter holds a duplicate of a socket that it is shown. This test stops the adapter, so it
/// holds the duplicate for ever.
#[test]
fn connections_end_while_the_adapter_is_shown_them() {
    let mut cases = cases(PROGRAM, "ending");
    cases.retain(|case| case.contains("_while_the_socket_is_shown_"));
    assert!(cases.len() == 4 || std::env::var_os("TOEHOLD_CASE").is_some());
    for case in cases {
        let mut toehold = Toehold::start();
        let oracle = Duet::play(&toehold, Sides::HOST, PROGRAM, &case);
        let adapter = toehold.adapter().pid().to_string();
        let mut server = toehold.command(Path::Direct, PROGRAM);
        server.env(ADAPTER, adapter);
        let client = toehold.command(Path::Host, PROGRAM);
        let duet = Duet::play_roles(&toehold, [server, client], &case, None);
        assert_eq!(duet.transcript, oracle.transcript, "{case}");
    }
}

/// Programs that never sleep (`--wait poll`).
#[test]
fn signals_interrupt_programs_that_poll() {
    let mut cases = cases(PROGRAM, "interrupts");
    // The other cases test locks, or move megabytes: polling programs then need two processors of
    // their own.
    cases.retain(|case| case.contains("interrupted") || case.contains("_lets_the_signal_in_"));
    let toehold = Toehold::start_waiting("poll");
    compare_cases(&toehold, "interrupts", &cases, &[Sides::DIRECT]);
}

/// Conversations of random calls, on one connection (`semantics server improvised:SEED`) and on
/// several connections that begin, end and take each other's numbers (`several:SEED`). There are
/// eight of each; with TOEHOLD_SOAK that many, with seeds from TOEHOLD_SEED on.
mod improvised {
    use std::panic::AssertUnwindSafe;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::{PROGRAM, Sides, both_accelerated};
    use toehold_e2e::duet::without;
    use toehold_e2e::{Duet, Oracle, Toehold, host};

    fn compare(kind: &str, all: &[Sides]) {
        compare_under(&Toehold::start(), kind, all, &[]);
    }

    fn compare_under(toehold: &Toehold, kind: &str, all: &[Sides], left_out: &[&str]) {
        compare_by(kind, "", all, left_out, |sides, case| {
            Duet::play(toehold, sides, PROGRAM, case)
        });
    }

    /// `family` distinguishes the kernel's transcripts of one case with different sockets. Lines
    /// about calls in `left_out` are not compared.
    fn compare_by(
        kind: &str,
        family: &str,
        all: &[Sides],
        left_out: &[&str],
        play: impl Fn(Sides, &str) -> Duet,
    ) {
        let mut complaints = Vec::new();
        let (mut asked, mut upgraded) = (0, 0);
        for seed in host::seed()..host::seed() + host::rounds(8) {
            let case = format!("{kind}:{seed}");
            let on_kernel = || play(Sides::HOST, &case).transcript;
            let mut oracle = Oracle::of(&format!("{case}{family}"), &on_kernel);
            let transcript = oracle.transcript();
            let well = transcript.iter().filter(|line| line.ends_with(": exit 0"));
            if well.count() != 2 {
                complaints.push(format!("{case} on the kernel: {transcript:#?}"));
            }
            for &sides in all {
                let mut duet = play(sides, &case);
                duet.transcript = without(&duet.transcript, left_out);
                let first = oracle.differences(|kernel| {
                    let kernel = without(kernel, left_out);
                    duet.first_difference(&kernel).into_iter().collect()
                });
                let of_case = first.iter().map(|it| format!("{case} ({sides:?}): {it}"));
                complaints.extend(of_case);
                asked += duet.asked;
                upgraded += duet.upgraded;
            }
        }
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
        assert_eq!(
            upgraded, asked,
            "connections that should have been upgraded"
        );
    }

    #[test]
    fn kernel_repeats_itself() {
        compare("improvised", &[Sides::HOST]);
        compare("several", &[Sides::HOST]);
    }

    #[test]
    fn random_conversations_on_several_connections_go_as_on_the_kernel() {
        compare("several", &[both_accelerated()]);
    }

    #[test]
    fn random_conversations_on_several_unix_connections_go_as_on_the_kernel() {
        let toehold = Toehold::start();
        compare_by("several", ".unix", &[Sides::DIRECT], &[], |sides, case| {
            Duet::play_on_unix(&toehold, sides, PROGRAM, case)
        });
    }

    #[test]
    fn random_conversations_on_several_connections_with_one_accelerated_side() {
        compare("several", &[Sides::SERVER_ONLY, Sides::CLIENT_ONLY]);
    }

    #[test]
    fn random_conversations_go_as_on_the_kernel() {
        compare("improvised", &[both_accelerated()]);
    }

    /// An operator sends connections back to the kernel and lets them move again, all the time.
    #[test]
    fn random_conversations_go_as_on_the_kernel_whatever_the_operator_does() {
        let toehold = Toehold::start();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let operator = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    toehold.detach_all();
                    std::thread::sleep(Duration::from_millis(1));
                    toehold.attach_all();
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
                // The owner of a registration changes, and may report an edge once more. So may an
                // instance inside another instance.
                let looks = ["edge", "from outside", "among others"];
                compare_under(&toehold, "improvised", &[Sides::DIRECT], &looks);
            }));
            done.store(true, Ordering::Relaxed);
            operator.join().expect("the operator does not panic");
            if let Err(complaints) = result {
                std::panic::resume_unwind(complaints);
            }
        });
    }

    #[test]
    fn random_conversations_with_one_accelerated_side_go_as_on_the_kernel() {
        compare("improvised", &[Sides::SERVER_ONLY, Sides::CLIENT_ONLY]);
    }
}

/// Both programs are in one network namespace; the adapter is in another.
#[test]
fn programs_in_another_namespace_are_accelerated() {
    let namespace = match toehold_network::Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return host::skipped(&error.to_string()),
    };
    let toehold = Toehold::start();
    let command = || {
        let mut command = toehold.command(toehold_e2e::Path::Direct, PROGRAM);
        namespace.hold(&mut command);
        command
    };
    for case in [
        "peek_leaves_the_bytes",
        "child_reads_on_where_the_parent_stopped",
    ] {
        let oracle = Duet::play(&toehold, Sides::HOST, PROGRAM, case);
        let is_direct = |ends: &[&toehold_e2e::toehold::Connection]| {
            ends.iter().filter(|end| end.is_direct()).count() >= 2
        };
        let duet = Duet::play_roles(&toehold, [command(), command()], case, Some(is_direct));
        assert_eq!(duet.transcript, oracle.transcript, "{case}");
        assert_eq!((duet.asked, duet.upgraded), (1, 1), "{case}");
    }
}
