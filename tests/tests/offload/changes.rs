//! Changes while an engine runs: the operator's file changes addresses and routes, and the kernel
//! changes the MTU.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, wait_until};

use crate::stage::{Stage, await_word, listening, ok};

/// A stage whose settings file can be changed.
struct Changing {
    stage: Stage,
    file: PathBuf,
    _scratch: TempDir,
}

impl Changing {
    fn set(settings: &str) -> Option<Changing> {
        let scratch = TempDir::new().expect("scratch");
        let file = scratch.path().join("engine.conf");
        fs::write(&file, settings).expect("scratch");
        Some(Changing {
            stage: Stage::set_by(&file)?,
            file,
            _scratch: scratch,
        })
    }

    /// Makes the adapter read new settings, and waits until it follows them.
    fn change(&mut self, settings: &str) {
        let before = self.stage.engine("reconfigured");
        self.signal(settings);
        let followed = wait_until(TIME_LIMIT, || self.stage.engine("reconfigured") > before);
        assert!(followed, "{}", self.stage.toehold.adapter().outputs());
    }

    fn signal(&mut self, settings: &str) {
        fs::write(&self.file, settings).expect("scratch");
        self.stage.toehold.adapter().signal(libc::SIGHUP);
    }

    fn held(&self, host: &str, port: &str) -> Running {
        let holder = self.stage.near("held", &["held", host, port, "ECONNRESET"]);
        await_word(&holder, "holding");
        holder
    }
}

#[test]
fn address_that_comes_is_served_and_one_that_goes_ends_its_connections() {
    let Some(mut all) = Changing::set("address 10.84.0.2/24\n") else {
        return;
    };
    let everywhere = all.stage.near_server(&["echo_server", "7401"]);
    let seen = listening(all.stage.far("seen", &["reset_seen", "7402"]));
    let mut held = all.held(FAR, "7402");
    all.change("address 10.84.0.2/24\naddress 10.84.0.3/24\n");
    for near in [NEAR, "10.84.0.3"] {
        ok(all
            .stage
            .far("client", &["echo_client", near, "7401", "3000000"]));
    }
    let _one = all.stage.near_server(&["echo_server", "7403", "10.84.0.3"]);
    ok(all
        .stage
        .far("client", &["echo_client", "10.84.0.3", "7403", "1000"]));
    assert!(held.ended().is_none(), "what was there goes on");
    // The first address is removed.
    all.change("address 10.84.0.3/24\n");
    ok(held);
    ok(seen);
    let said = ok(all
        .stage
        .far("client", &["echo_client", "10.84.0.3", "7401", "3000000"]));
    assert!(said.contains(FAR), "{said}");
    let _far = all.stage.far_server(&["echo_server", "7404"]);
    let said = ok(all
        .stage
        .near("client", &["echo_client", FAR, "7404", "1000"]));
    assert!(said.contains("local 10.84.0.3"), "{said}");
    drop(everywhere);
}

/// Holds a connection from one side. Returns the congestion control that the engine uses for the
/// connection.
fn held_with(all: &Changing, is_near: bool, port: &str) -> (Running, String) {
    let host = if is_near { FAR } else { NEAR };
    let roles = if is_near { Stage::near } else { Stage::far };
    let flows = || {
        let status = all.stage.toehold.status();
        let flows = status["engine"]["flows"].as_array().cloned();
        flows.unwrap_or_default()
    };
    let before = flows().len();
    let holder = roles(&all.stage, port, &["held", host, port, "ECONNRESET"]);
    await_word(&holder, "holding");
    assert!(wait_until(TIME_LIMIT, || flows().len() > before));
    // The last flow with this port is the new one.
    let end = if is_near { "remote" } else { "local" };
    let is_of_port = |flow: &serde_json::Value| {
        let address = flow[end].as_str().unwrap_or_default();
        address.ends_with(&format!(":{port}"))
    };
    let control = flows()
        .into_iter()
        .rfind(is_of_port)
        .expect("a flow of this port");
    let control = control["congestion"].as_str().unwrap_or_default();
    (holder, control.to_owned())
}

/// Holds connections to these ports, one after the other, from the near or the far side. Asserts
/// that each has its congestion control.
fn hold_all(all: &Changing, wanted: &[(bool, &str, &str)]) -> Vec<Running> {
    let hold = |&(is_near, port, control): &(bool, &str, &str)| {
        let (holder, has) = held_with(all, is_near, port);
        assert_eq!(has, control, "{port}");
        holder
    };
    wanted.iter().map(hold).collect()
}

#[test]
fn connections_behave_as_the_lines_for_their_destinations_say() {
    let Some(mut all) = Changing::set(
        "address 10.84.0.2/24\ncongestion reno\n\
        to 10.84.0.1:7422 congestion dctcp window 4\nto 10.84.0.2:7424 congestion bbr\n",
    ) else {
        return;
    };
    let _far = ["7421", "7422"].map(|port| {
        let role = format!("far-server-{port}");
        listening(all.stage.far(&role, &["echo_server", port]))
    });
    let _near = ["7423", "7424"].map(|port| all.stage.near_server(&["echo_server", port]));
    let to_all = [
        (true, "7421", "reno"),
        (true, "7422", "dctcp"),
        (false, "7423", "reno"),
        (false, "7424", "bbr"),
    ];
    drop(hold_all(&all, &to_all));
    // Existing listeners must follow the change, as new connections do.
    all.change("address 10.84.0.2/24\ncongestion cubic\nto 10.84.0.2:7424 congestion reno\n");
    let after = [
        (true, "7422", "cubic"),
        (false, "7423", "cubic"),
        (false, "7424", "reno"),
    ];
    drop(hold_all(&all, &after));
}

#[test]
fn connection_that_is_being_made_from_an_address_that_goes_is_refused() {
    let Some(mut all) = Changing::set("address 10.84.0.2/24\n") else {
        return;
    };
    // No host has this address. The engine needs seconds to detect that.
    let connecting = all.stage.near(
        "connecting",
        &["connect_error", "10.84.0.99", "9", "EADDRNOTAVAIL"],
    );
    let begun = wait_until(TIME_LIMIT, || all.stage.engine("connections") == 1);
    assert!(begun, "{}", connecting.outputs());
    all.change("address 10.84.0.3/24\n");
    ok(connecting);
}

#[test]
fn gateway_that_comes_leads_beyond_the_link() {
    let Some(mut all) = Changing::set("address 10.84.0.2/24\n") else {
        return;
    };
    assert!(
        all.stage
            .network
            .far_ip(&["addr", "add", "10.99.0.1/32", "dev", "lo"])
    );
    let _far = all.stage.far_server(&["echo_server", "7411"]);
    let beyond = ["expect_error", "10.99.0.1", "7411", "ENETUNREACH"];
    ok(all.stage.near("beyond", &beyond));
    all.change("address 10.84.0.2/24\ngateway 10.84.0.1\n");
    ok(all
        .stage
        .near("client", &["echo_client", "10.99.0.1", "7411", "3000000"]));
    // A stream that must continue while its route is missing.
    let sent = all.stage.engine("bytes_sent");
    let stream = all
        .stage
        .near("stream", &["echo_client", "10.99.0.1", "7411", "60000000"]);
    let begun = wait_until(TIME_LIMIT, || {
        all.stage.engine("bytes_sent") > sent + 100_000
    });
    assert!(begun, "{}", stream.outputs());
    all.change("address 10.84.0.2/24\n");
    std::thread::sleep(Duration::from_millis(300));
    all.change("address 10.84.0.2/24\ngateway 10.84.0.1\n");
    ok(stream);
    let on_link = all.held(FAR, "7411");
    all.change("address 10.84.0.2/24\n");
    ok(all.stage.near("beyond", &beyond));
    all.stage.toehold.adapter().signal(libc::SIGTERM);
    ok(on_link);
}

#[test]
fn settings_that_are_wrong_change_nothing() {
    let Some(mut all) = Changing::set("address 10.84.0.2/24\n") else {
        return;
    };
    let _near = all.stage.near_server(&["echo_server", "7421"]);
    // A file cannot change settings that the command line gave, which may include the threads.
    let other = match Link::of_this_run() {
        Link::Tap | Link::Xdp => "address 10.84.0.2/24\nthreads 9\n",
        Link::Packet => "share 10.84.0.2\n",
    };
    for (wrong, cause) in [
        ("address 10.84.0.300/24\n", "line 1"),
        ("", "address of its own"),
        (other, "another adapter"),
    ] {
        all.signal(wrong);
        let is_logged = wait_until(TIME_LIMIT, || {
            all.stage.toehold.adapter().stderr().contains(cause)
        });
        assert!(
            is_logged,
            "{cause}: {}",
            all.stage.toehold.adapter().outputs()
        );
    }
    assert_eq!(all.stage.engine("reconfigured"), 0);
    ok(all
        .stage
        .far("client", &["echo_client", NEAR, "7421", "1000"]));
}

#[test]
fn mtu_changes_in_the_middle_of_streams_both_ways() {
    // A packet link has the offloads of its interface.
    let without: &[&str] = match Link::of_this_run() {
        Link::Tap => &["--no-lso", "--no-lro"],
        Link::Packet | Link::Xdp => &["--no-lso"],
    };
    let largest = match Link::of_this_run() {
        Link::Tap | Link::Packet => "9000",
        // Received frames are in memory chunks of one size.
        Link::Xdp => "1700",
    };
    for options in [&[][..], without] {
        let Some(stage) = Stage::set(options) else {
            return;
        };
        let _far = stage.far_server(&["echo_server", "7431"]);
        let _near = stage.near_server(&["echo_server", "7432"]);
        let clients = [
            stage.near("near-client", &["echo_client", FAR, "7431", "150000000"]),
            stage.far("far-client", &["echo_client", NEAR, "7432", "150000000"]),
        ];
        for mtu in ["1280", largest, "1500", "600", "1500"] {
            assert!(stage.network.set_mtu(mtu), "{mtu}");
            let expected = mtu.parse::<u64>().expect("a number");
            let followed = wait_until(TIME_LIMIT, || stage.engine("mtu") == expected);
            assert!(followed, "{mtu}");
            std::thread::sleep(Duration::from_millis(100));
        }
        for client in clients {
            ok(client);
        }
    }
}

#[test]
fn device_of_the_adapter_s_own_has_room_for_a_frame_of_each_of_many_connections() {
    let Some(stage) = Stage::set_over(Link::Tap, &[]) else {
        return;
    };
    let mut show = stage.network.far("ip");
    let shown = show.args(["-o", "link", "show", "toe0"]).output();
    let shown = shown.expect("ip runs").stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("qlen 8192"), "{shown}");
}
