//! The policy for connections through the engine: the program's choice by `--path offload`, and the
//! operator's rules with `--path auto`.

use toehold_e2e::network::FAR;
use toehold_e2e::process::TIME_LIMIT;
use toehold_e2e::{Path, wait_until};

use crate::stage::{Stage, await_word, listening, ok};

#[test]
fn rules_choose_by_destination_for_programs_that_did_not_ask() {
    let rule = format!("{FAR}:7201");
    let Some(stage) = Stage::set(&["--offload", &rule]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7201"]);
    let _other = stage.far_server(&["echo_server", "7202"]);
    let auto = |name: &str, arguments: &[&str]| stage.near_on(Path::Auto, name, arguments);
    // The engine serves a destination that a rule names.
    ok(auto("ruled", &["echo_client", FAR, "7201", "3000000"]));
    assert_eq!(stage.engine("connections_opened"), 1);
    // If no rule names a destination, it belongs to the kernel, even if the engine could reach it.
    // The kernel has no route to it here.
    ok(auto(
        "unruled",
        &["expect_error", FAR, "7202", "ENETUNREACH"],
    ));
    ok(stage.near("asked", &["echo_client", FAR, "7202", "1000"]));
    // Two programs of this host use shared memory.
    let _near = listening(auto("near-server", &["echo_server", "7203"]));
    let client = auto("near-client", &["outlive", "127.0.0.1", "7203"]);
    await_word(&client, "holding");
    let local = auto("local", &["echo_client", "127.0.0.1", "7203", "300000000"]);
    let is_direct = || {
        let connections = stage.toehold.connections();
        connections.iter().any(|connection| connection.is_direct())
    };
    assert!(
        wait_until(TIME_LIMIT, is_direct),
        "{:?}",
        stage.toehold.connections()
    );
    ok(local);
    assert_eq!(stage.engine("connections_opened"), 2);
    assert_eq!(
        stage.engine("listeners"),
        0,
        "listeners are for those that ask"
    );
}

#[test]
fn a_rule_can_forbid_shared_memory_and_the_engine() {
    let scratch = tempfile::NamedTempFile::new().expect("scratch");
    let rules = format!("host 127.0.0.1:7204\nhost {FAR}:7205\n");
    std::fs::write(scratch.path(), rules).expect("scratch");
    let Some(stage) = Stage::set(&["--config", &scratch.path().to_string_lossy()]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7205"]);
    ok(stage.near("forbidden", &["expect_error", FAR, "7205", "ENETUNREACH"]));
    let _near = listening(stage.near_on(Path::Auto, "server", &["echo_server", "7204"]));
    let client = stage.near("client", &["echo_client", "127.0.0.1", "7204", "100000000"]);
    let reasons = || {
        let connections = stage.toehold.connections();
        let reasons = connections
            .iter()
            .map(|one| one.value["reason"].to_string());
        reasons.collect::<Vec<_>>()
    };
    let seen = wait_until(TIME_LIMIT, || {
        reasons()
            .iter()
            .any(|reason| reason.contains("a rule keeps it on the kernel"))
    });
    assert!(seen, "{:?}", reasons());
    ok(client);
    assert_eq!(stage.engine("connections_opened"), 0);
}
