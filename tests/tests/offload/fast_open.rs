//! Fast Open (RFC 7413): payload of a SYN, from the far kernel to a program on the engine.

use toehold_e2e::network::NEAR;
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
    let Some(stage) = Stage::set(&["--fast-open", "server"]) else {
        return;
    };
    // The kernel keeps one cookie for an address.
    let cases = [("7411", "before", "0 1 1 1"), ("7412", "after", "1 1")];
    for (port, when, syn_data) in cases {
        let server = listening(near(&stage, "server", &["server", port, when]));
        ok(far(&stage, "client", &["client", NEAR, port, syn_data]));
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
