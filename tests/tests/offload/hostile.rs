//! Hostile programs beside a good one: the hostile programs lose their own connections, and no
//! other connection suffers.

use std::process::Command;

use toehold_e2e::network::FAR;
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Path, host, wait_until};

use crate::stage::{Stage, ok};

const SCRIPT: &str = "hostile.py";

fn hostile(stage: &Stage, path: Path, arguments: &[&str]) -> Running {
    let mut command: Command = stage.toehold.command(path, &stage.python);
    command.args(host::script(SCRIPT)).args(arguments);
    Running::start(command, "hostile", stage.toehold.dir())
}

/// Another program's streams and short connections must work while `hostile` runs, and after it.
fn others_go_on(stage: &mut Stage, mut hostile: Running, until: &str) {
    let begun = wait_until(TIME_LIMIT, || {
        hostile.ended().is_some() || hostile.stdout().contains(until)
    });
    // A program that ended before it did any harm has tested nothing.
    let has_harmed = hostile.stdout().contains(until);
    assert!(begun && has_harmed, "{}", hostile.outputs());
    let stream = stage.near("stream", &["echo_client", FAR, "7501", "40000000"]);
    ok(stage.near("many", &["many", FAR, "7501", "200"]));
    ok(stream);
    hostile.signal(libc::SIGKILL);
    hostile.wait(TIME_LIMIT);
    ok(stage.near("after", &["echo_client", FAR, "7501", "3000000"]));
    let over = wait_until(TIME_LIMIT, || stage.engine("connections") == 0);
    assert!(over, "{} connections are left", stage.engine("connections"));
    assert!(
        stage.toehold.adapter().ended().is_none(),
        "the adapter lives"
    );
}

#[test]
fn shared_words_that_are_rewritten_end_their_own_connections() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7501"]);
    let program = hostile(&stage, Path::Offload, &["scribble", FAR, "7501", "6"]);
    others_go_on(&mut stage, program, "spoiling");
    assert!(stage.engine("programs_gone") > 0, "and that is counted");
}

#[test]
fn invalid_requests_harm_no_connection() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7501"]);
    let program = hostile(&stage, Path::Offload, &["garbage", FAR, "7501", "20000"]);
    others_go_on(&mut stage, program, "sending");
}

#[test]
fn carriers_without_their_program_s_token_are_refused() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7501"]);
    let program = hostile(&stage, Path::Offload, &["preambles", FAR, "7501", "20000"]);
    let begun = wait_until(TIME_LIMIT, || program.stdout().contains("speaking"));
    assert!(begun, "{}", program.outputs());
    let refused = wait_until(TIME_LIMIT, || stage.engine("carriers_refused") > 1000);
    assert!(refused, "{}", program.outputs());
    // The only connection is the program's own. The adapter knows the program by it.
    assert_eq!(stage.engine("connections_opened"), 1);
    others_go_on(&mut stage, program, "speaking");
}

#[test]
fn flooded_relay_serves_those_who_say_what_they_want() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7501"]);
    let program = hostile(&stage, Path::Host, &["flood", "60"]);
    others_go_on(&mut stage, program, "flooding");
}

#[test]
fn program_that_never_reads_and_one_that_stops_hold_up_nobody() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7501"]);
    let stopped = hostile(&stage, Path::Offload, &["greedy", FAR, "7501", "20"]);
    let begun = wait_until(TIME_LIMIT, || stopped.stdout().contains("greedy"));
    assert!(begun, "{}", stopped.outputs());
    stopped.signal(libc::SIGSTOP);
    let program = hostile(&stage, Path::Offload, &["greedy", FAR, "7501", "20"]);
    let stream = stage.near("stream", &["echo_client", FAR, "7501", "40000000"]);
    ok(stream);
    drop(stopped);
    others_go_on(&mut stage, program, "greedy");
    assert!(stage.engine("programs_gone") > 0, "and that is counted");
}
