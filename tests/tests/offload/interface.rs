//! Tests of the interface under a link.

use std::thread::sleep;
use std::time::Duration;

use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, Network, Path, Toehold, host, wait_until};

use crate::stage::{Stage, await_word, listening, ok, script};

/// A missing interface costs no processor time. The adapter opens the interface when it comes back.
pub(crate) fn comes_back(link: Link, options: &[&str]) {
    let Some(mut stage) = Stage::set_over(link, options) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7741"]);
    let holder = stage.near("holder", &["outlive", FAR, "7741"]);
    await_word(&holder, "holding");
    let (network, is_tap) = (&stage.network, link == Link::Tap);
    assert!(match is_tap {
        true => network.far_ip(&["link", "del", "toe0"]),
        false => network.near_ip(&["link", "del", "v0"]),
    });
    let is_gone = |stage: &Stage| stage.toehold.known()["engine"]["link_gone"] == true;
    assert!(wait_until(TIME_LIMIT, || is_gone(&stage)));
    // Without an interface the engine must sleep.
    let before = stage.engine("sleeps");
    sleep(Duration::from_millis(500));
    assert!(stage.engine("sleeps") < before + 500);
    // Another interface of this name serves as well, even if it has another Ethernet address.
    let tap = ["tuntap", "add", "dev", "toe0", "mode", "tap", "vnet_hdr"];
    assert!(match is_tap {
        true => network.far_ip(&tap),
        false => network.join(),
    });
    assert!(network.bring_up());
    assert!(wait_until(TIME_LIMIT, || !is_gone(&stage)));
    let _again = stage.far_server(&["echo_server", "7742"]);
    let _near = stage.near_server(&["echo_server", "7743"]);
    ok(stage.near("client", &["echo_client", FAR, "7742", "3000000"]));
    ok(stage.far("client", &["echo_client", NEAR, "7743", "3000000"]));
    stage.toehold.adapter().signal(libc::SIGTERM);
    ok(holder);
}

/// Without a usable interface all connections stay on the host path. The adapter says why it cannot
/// use this interface.
pub(crate) fn cannot_be_had(link: &str, said: &str) {
    // Skips the test where no link is possible at all.
    if Network::with(Link::Tap).is_none() {
        return;
    }
    let Some(python) = host::python() else { return };
    let options = ["--link", link, "--address", "10.84.0.2/24"];
    let mut toehold = Toehold::start_in(&[], &options);
    let mut command = toehold.command(Path::Offload, &python);
    command.args(script()).args(["echo_server", "0"]);
    let mut server = listening(Running::start(command, "server", toehold.dir()));
    assert!(toehold.known()["engine"].is_null());
    assert!(server.ended().is_none());
    let outputs = server.outputs();
    assert!(outputs.contains("has no TCP engine"), "{outputs}");
    let outputs = toehold.adapter().outputs();
    assert!(outputs.contains(said), "{outputs}");
}
