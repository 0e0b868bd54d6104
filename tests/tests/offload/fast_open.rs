//! Fast Open (RFC 7413): payload of a SYN, from the far kernel to a program on the engine.

use toehold_e2e::host;
use toehold_e2e::network::{NEAR, NEAR_V6};
use toehold_e2e::process::Running;

use crate::stage::{Stage, listening, ok};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/fast_open.py");

/// A far program, where the kernel may do both sides of Fast Open.
fn far(stage: &Stage, name: &str, arguments: &[&str]) -> Running {
    let mut command = stage.network.far(&stage.python);
    command.arg(SCRIPT).args(arguments);
    Running::start(command, name, stage.toehold.dir())
}

fn near(stage: &Stage, name: &str, arguments: &[&str]) -> Running {
    let command = stage.offloaded(&stage.python, &[&[SCRIPT], arguments].concat());
    Running::start(command, name, stage.toehold.dir())
}

/// The kernel gets its cookie with the first connection. Then the request goes with the SYN, also
/// to a server that sets the option when it listens already.
#[test]
fn the_kernels_syns_bring_their_payload_to_a_listener_that_asks_for_it() {
    // A cookie of one thread is good for the others.
    let Some(stage) = Stage::set(&["--fast-open", "server", "--threads", "2"]) else {
        return;
    };
    // The kernel keeps one cookie for an address.
    let cases = [("7411", "before", "0 1 1 1"), ("7412", "after", "1 1")];
    for (port, when, syn_data) in cases {
        let server = listening(near(&stage, "server", &["server", port, when]));
        ok(far(&stage, "client", &["client", NEAR, port, syn_data]));
        ok(far(&stage, "client", &["client", NEAR_V6, port, syn_data]));
        drop(server);
    }
    // A listener that does not ask for it takes no part, nor does one where the setting is off.
    let server = listening(near(&stage, "server", &["server", "7413", "never"]));
    ok(far(&stage, "client", &["client", NEAR, "7413", "0 0"]));
    drop(server);
    let mut set = stage.toehold.asking(&["adapter", "--set", "fast-open=off"]);
    assert!(set.status().is_ok_and(|status| status.success()));
    let server = listening(near(&stage, "server", &["server", "7414", "before"]));
    ok(far(&stage, "client", &["client", NEAR, "7414", "0 0"]));
    drop(server);
}

/// Every other SYN, or every other SYN-ACK, is lost. Of the latter the server has the request, and
/// has answered before the kernel knows that there is a connection.
#[test]
fn requests_arrive_once_where_syns_and_syn_acks_are_lost() {
    let Some(stage) = Stage::set(&["--fast-open", "server"]) else {
        return;
    };
    if host::require(["nft"]).is_none() {
        return;
    }
    let server = listening(near(&stage, "server", &["server", "7415", "before"]));
    ok(far(&stage, "client", &["client", NEAR, "7415", "0 1"]));
    for (hook, lost) in [("output", "syn"), ("input", "syn | ack")] {
        let rules = format!(
            "table inet loss {{\nchain {hook} {{ type filter hook {hook} priority 0; \
             tcp flags & (syn | ack) == {lost} numgen inc mod 2 0 drop; }}\n}}"
        );
        let mut command = stage.network.far("sh");
        let script = format!("nft flush ruleset; echo '{rules}' | nft -f -");
        let output = command.args(["-c", &script]).output().expect("a shell");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        ok(far(&stage, "client", &["client", NEAR, "7415", "- -"]));
    }
    drop(server);
}
