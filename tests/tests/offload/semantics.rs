//! The semantics suite over the engine: a program at either end of a connection to another network
//! must see the kernel's results.
//!
//! The suite runs over one type of link, with an engine of one thread, because the results do not
//! depend on the link or on the number of threads.

use std::thread;

use toehold_e2e::duet::{DIFFERENCES_OF_RINGS, Difference, MAY_STAY, MEET_V4, MEET_V6, cases};
use toehold_e2e::network::{FAR, FAR_V6, NEAR, NEAR_V6};
use toehold_e2e::toehold::Connection;
use toehold_e2e::{Duet, Link, Oracle, Path, Sides};

use crate::stage::Stage;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_semantics");

/// Cases about features that the engine does not have.
const NOT_PLAYED: &[(&str, &str)] = &[
    (
        "urgent_byte_travels_out_of_band",
        "urgent bytes are carried in their place in the stream, and not marked",
    ),
    ("urgent_byte_inline_keeps_its_place", "likewise"),
    ("receive_that_finds_nothing_passes_the_mark", "likewise"),
    ("poll_is_interrupted_behind_an_urgent_byte", "likewise"),
    (
        "urgent_byte_behind_unread_bytes_of_a_confined_program",
        "likewise",
    ),
    (
        "program_that_locked_its_memory_connects",
        "its limit of locked memory has no room for the routing page, so it has no engine",
    ),
    (
        "listener_that_listens_again_has_its_new_backlog",
        "the engine's listener keeps its first backlog",
    ),
    ("what_cannot_be_read_is_not_sent_locally", LOCAL),
    ("what_has_no_place_is_not_received_locally", LOCAL),
    ("bad_addresses_of_local_connections_are_refused", LOCAL),
    ("readiness_is_told_by_all_its_names_locally", LOCAL),
];
const LOCAL: &str = "a Unix socket leads to no other host";

/// Differences that a network between the ends causes, or that an engine causes.
const DIFFERENCES: &[Difference] = &[
    Difference {
        case: "unsent_bytes_are_none_when_all_is_read",
        line: "unsent",
        reason: "the acknowledgement of what was read is still on its way",
    },
    Difference {
        case: "shutdown_of_a_dead_connection_is_refused",
        line: "shutdown RD",
        reason: "the acknowledgement of its last FIN is still on its way",
    },
    Difference {
        case: "half_close_by_both_ends_is_an_end",
        line: "shutdown again",
        reason: "likewise",
    },
    Difference {
        case: "news_comes_in_the_order_it_was_sent",
        line: "in order",
        reason: "connections of several threads of the engine have no order",
    },
    Difference {
        case: "refused_nonblocking_connect_leaves_the_error",
        line: "",
        reason: "the engine may have the remote's answer before the call returns",
    },
];

/// The number of short connections before that of a case, when carriers are to be used ones. Each
/// has a port of its own, so neither role can tell which of them came by a used carrier.
const CONNECTIONS_BEFORE: &str = "4";

/// True if one of the ends uses rings in both directions.
fn is_by_rings(ends: &[&Connection]) -> bool {
    let has_moved = |end: &Connection, key| end.count(key) > 0;
    let mut ends = ends.iter();
    ends.any(|end| has_moved(end, "bytes_ring_tx") && has_moved(end, "bytes_ring_rx"))
}

/// The carriers of a case's connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Carriers {
    New,
    /// Those that have served short connections before.
    Used,
}

impl Carriers {
    /// With `E2E_EVERYTHING_EXPRESS`, all cases have used carriers.
    fn of_this_run() -> Carriers {
        match std::env::var_os("E2E_EVERYTHING_EXPRESS") {
            Some(_) => Carriers::Used,
            None => Carriers::New,
        }
    }
}

/// Plays a case with the program under test as the server or as the client.
pub(crate) fn play(stage: &Stage, case: &str, is_server: bool, carriers: Carriers) -> Duet {
    let mut options = toehold_e2e::duet::options_of(case).to_vec();
    if carriers == Carriers::Used {
        options.extend(["--express", "always"]);
    }
    let near = (stage.toehold).command_with(Path::Offload, &options, PROGRAM);
    let far = stage.network.far(PROGRAM);
    let (mut roles, [v4, v6]) = if is_server {
        ([near, far], [NEAR, NEAR_V6])
    } else {
        ([far, near], [FAR, FAR_V6])
    };
    for role in &mut roles {
        role.env(MEET_V4, v4).env(MEET_V6, v6);
        if carriers == Carriers::Used {
            role.env("E2E_EXPRESS", "yes");
            role.env("E2E_CONNECTIONS_BEFORE", CONNECTIONS_BEFORE);
        }
    }
    let mut duet = Duet::play_roles(&stage.toehold, roles, case, Some(is_by_rings));
    for line in &mut duet.transcript {
        for (ours, loopback) in [
            (NEAR, "127.0.0.1"),
            (FAR, "127.0.0.1"),
            (NEAR_V6, "::1"),
            (FAR_V6, "::1"),
        ] {
            *line = line.replace(ours, loopback);
        }
    }
    duet
}

/// Plays the cases of a group on both sides, compares each with the kernel's transcript, and
/// reports all differences. The cases of a large group run on several stages in parallel, because
/// such a group would otherwise end long after all others.
fn compare(group: &str) {
    compare_some(group, |_| true, Carriers::of_this_run());
}

/// As [`compare`], for those cases of the group that are wanted.
fn compare_some(group: &str, is_wanted: impl Fn(&str) -> bool, carriers: Carriers) {
    if Link::of_this_run() != Link::Tap {
        eprintln!("played over a TAP link");
        return;
    }
    if group == "unix" {
        eprintln!("not played: {LOCAL}");
        return;
    }
    let is_played = |case: &String| NOT_PLAYED.iter().all(|(name, _)| name != case);
    let all: Vec<String> = (cases(PROGRAM, group).into_iter())
        .filter(|case| is_wanted(case) && is_played(case))
        .collect();
    let stages = all.len().div_ceil(CASES_OF_ONE_STAGE_MAX);
    let complaints: Vec<String> = thread::scope(|scope| {
        let of_stage = |first| all.iter().skip(first).step_by(stages);
        let playing: Vec<_> = (0..stages)
            .map(|first| scope.spawn(move || complaints(of_stage(first), carriers)))
            .collect();
        let said = playing
            .into_iter()
            .map(|one| one.join().expect("its complaints"));
        said.flatten().collect()
    });
    assert!(
        complaints.is_empty(),
        "{group}: {} complaints\n  {}",
        complaints.len(),
        complaints.join("\n  ")
    );
}

const CASES_OF_ONE_STAGE_MAX: usize = 30;

/// Plays cases on a separate stage.
fn complaints<'a>(all: impl Iterator<Item = &'a String>, carriers: Carriers) -> Vec<String> {
    let mut complaints = Vec::new();
    let Some(stage) = Stage::set(&["--threads", "1", "--fast-open", "on"]) else {
        return complaints;
    };
    for case in all {
        let on_kernel = || Duet::play(&stage.toehold, Sides::HOST, PROGRAM, case).transcript;
        let mut oracle = Oracle::of(case, &on_kernel);
        for is_server in [true, false] {
            let duet = play(&stage, case, is_server, carriers);
            let known = DIFFERENCES_OF_RINGS.iter().chain(DIFFERENCES);
            let differences = oracle.differences(|kernel| {
                let mut all = duet.differences(kernel);
                all.retain(|line| !known.clone().any(|known| known.explains(case, line)));
                all
            });
            let may_stay = MAY_STAY.iter().any(|(name, _)| name == case);
            let is_whole = may_stay || duet.upgraded >= duet.asked;
            if !differences.is_empty() || !is_whole {
                const LINES_MAX: usize = 12;
                let shown = differences[..differences.len().min(LINES_MAX)].join("\n      ");
                let (upgraded, asked) = (duet.upgraded, duet.asked);
                complaints.push(format!(
                    "{case} (server: {is_server}, {upgraded} of {asked} by rings):\n      {shown}"
                ));
            }
        }
    }
    complaints
}

macro_rules! groups {
    ($($group:ident: $claim:ident),* $(,)?) => {$(
        #[test]
        fn $claim() {
            compare(stringify!($group));
        }
    )*};
}

toehold_e2e::each_semantics_group!(groups);

/// The relay's carriers go on after a connection, so its end comes in another way.
mod on_used_carriers {
    use super::{Carriers, compare_some};

    #[test]
    fn connections_end_as_on_the_kernel() {
        compare_some("ending", |_| true, Carriers::Used);
    }

    #[test]
    fn programs_without_the_library_find_the_end() {
        compare_some(
            "exec",
            |case| case.starts_with("spawned_reader_"),
            Carriers::Used,
        );
    }

    #[test]
    fn programs_that_wait_past_libc_are_woken() {
        let is_it = |case: &str| case == "instance_that_is_waited_on_past_libc_for_edges";
        compare_some("epoll", is_it, Carriers::Used);
    }
}
