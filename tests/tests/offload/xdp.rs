//! AF_XDP on an interface that the kernel uses, too.

use toehold_e2e::network::{FAR, FAR_V6, NEAR, NEAR_V6};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, host, wait_until};

use crate::interface;
use crate::stage::{Stage, listening, ok, script};
use crate::threads::assert_none_is_lost_between_threads;

/// The near kernel's own address on this interface, and the far kernel's address.
const NEAR_KERNEL: &str = "10.86.0.2";
const FAR_KERNEL: &str = "10.86.0.1";

fn has_program(stage: &Stage) -> bool {
    let mut show = stage.network.near("ip");
    let shown = show
        .args(["link", "show", "v0"])
        .output()
        .expect("ip was there before");
    String::from_utf8_lossy(&shown.stdout).contains("prog/xdp")
}

/// A jumbo frame occupies several chunks of the link's memory.
#[test]
fn frames_of_a_jumbo_mtu_pass_both_ways() {
    let Some(stage) = Stage::set_with_mtu(Link::Xdp, "9000", &[]) else {
        return;
    };
    assert_eq!(stage.engine("mtu"), 9_000);
    let _far = stage.far_server(&["echo_server", "7821"]);
    let _near = stage.near_server(&["echo_server", "7822"]);
    let clients = [
        stage.near("near", &["echo_client", FAR, "7821", "30000000"]),
        stage.far("far", &["echo_client", NEAR, "7822", "30000000"]),
    ];
    clients.into_iter().for_each(|client| drop(ok(client)));
    assert_eq!(stage.engine("frames_malformed"), 0);
    assert_eq!(stage.engine("frames_lost"), 0);
}

#[test]
fn engine_and_kernel_share_an_interface_and_its_ethernet_address() {
    let Some(stage) = Stage::set_over(Link::Xdp, &[]) else {
        return;
    };
    let network = &stage.network;
    assert!(network.near_ip(&["addr", "add", &format!("{NEAR_KERNEL}/24"), "dev", "v0"]));
    assert!(network.far_ip(&["addr", "add", &format!("{FAR_KERNEL}/24"), "dev", "toe0"]));
    let _far = stage.far_server(&["echo_server", "7801"]);
    let _near = stage.near_server(&["echo_server", "7802"]);
    let _far_v6 = stage.far_server(&["echo_server", "7804", FAR_V6]);
    let _near_v6 = stage.near_server(&["echo_server", "7805", NEAR_V6]);
    let mut server = network.near(&stage.python);
    server.args(script()).args(["echo_server", "7803"]);
    let _kernel = listening(Running::start(server, "kernel-server", stage.toehold.dir()));
    let on_engine = [
        stage.near("near-v4", &["echo_client", FAR, "7801", "30000000"]),
        stage.far("far-v4", &["echo_client", NEAR, "7802", "30000000"]),
        stage.near("near-v6", &["echo_client", FAR_V6, "7804", "3000000"]),
        stage.far("far-v6", &["echo_client", NEAR_V6, "7805", "3000000"]),
    ];
    let mut client = network.near(&stage.python);
    client
        .args(script())
        .args(["echo_client", FAR_KERNEL, "7801", "30000000"]);
    let on_kernel = Running::start(client, "kernel-client", stage.toehold.dir());
    let to_kernel = stage.far(
        "to-kernel",
        &["echo_client", NEAR_KERNEL, "7803", "3000000"],
    );
    ok(on_kernel);
    ok(to_kernel);
    on_engine.into_iter().for_each(|client| drop(ok(client)));
    // The engine must not have seen the kernel's connections: it counts only its own. A reset of a
    // kernel connection would have failed a client above. (The number of resets proves nothing: the
    // engine answers a late second acknowledgement of a FIN with a reset, as the kernel does.)
    assert_eq!(stage.engine("connections_opened"), 2);
    assert_eq!(stage.engine("connections_accepted"), 2);
    assert_eq!(stage.engine("frames_malformed"), 0);
    let status = stage.toehold.status();
    assert_eq!(status["engine"]["link_mode"], "in the driver, copied once");
}

/// The far kernel is told to compute checksums and to segment its data.
#[test]
fn finished_checksums_are_as_good_as_none() {
    let Some(stage) = Stage::set_over(Link::Xdp, &[]) else {
        return;
    };
    if !stage.far_computes_checksums() {
        return;
    }
    let _far = stage.far_server(&["echo_server", "7811"]);
    let _near = stage.near_server(&["echo_server", "7812", NEAR_V6]);
    ok(stage.near("near-client", &["echo_client", FAR, "7811", "20000000"]));
    ok(stage.far("far-client", &["echo_client", NEAR_V6, "7812", "3000000"]));
    assert_eq!(stage.engine("frames_malformed"), 0);
}

#[test]
fn each_thread_has_a_receive_queue() {
    let Some(stage) = Stage::set_over(Link::Xdp, &["--threads", "2"]) else {
        return;
    };
    if host::program("ethtool").is_none() {
        return host::skipped("ethtool is not installed");
    }
    let _far = stage.far_server(&["echo_server", "7821"]);
    let _near = stage.near_server(&["echo_server", "7822"]);
    ok(stage.near("many", &["many", FAR, "7821", "200"]));
    ok(stage.far("many", &["many", NEAR, "7822", "200"]));
    let status = stage.toehold.status();
    let threads = status["engine"]["threads"].as_array().expect("two of them");
    let frames = threads
        .iter()
        .map(|thread| thread["frames_received"].as_u64());
    let frames: Vec<u64> = frames.flatten().collect();
    assert!(
        frames.len() == 2 && frames.iter().all(|count| *count > 0),
        "{frames:?}"
    );
    assert_eq!(stage.engine("frames_lost"), 0);
    // The interface's hash differs from the engine's hash, so half of the connections have all
    // frames passed on to another thread.
    let streams: Vec<Running> = (0..32)
        .map(|number| {
            let bytes = (5_000_000 + number).to_string();
            // Each stream has an output of its own.
            let name = format!("stream-{number}");
            match number % 2 {
                0 => stage.near(&name, &["echo_client", FAR, "7821", &bytes]),
                _ => stage.far(&name, &["echo_client", NEAR, "7822", &bytes]),
            }
        })
        .collect();
    streams.into_iter().for_each(|stream| drop(ok(stream)));
    assert!(stage.engine("frames_passed_on") > 0);
    assert_none_is_lost_between_threads(&stage);
}

#[test]
fn killed_adapter_leaves_the_interface_as_it_was_and_another_takes_it() {
    let Some(mut stage) = Stage::set_over(Link::Xdp, &[]) else {
        return;
    };
    assert!(wait_until(TIME_LIMIT, || has_program(&stage)));
    stage.toehold.adapter().signal(libc::SIGKILL);
    assert!(wait_until(TIME_LIMIT, || !has_program(&stage)));
    stage.toehold.start_adapter();
    let _far = stage.far_server(&["echo_server", "7831"]);
    ok(stage.near("client", &["echo_client", FAR, "7831", "3000000"]));
    assert!(has_program(&stage));
}

#[test]
fn interface_that_is_gone_costs_nothing_and_is_opened_when_it_comes_back() {
    // The interface that comes back has one queue in use.
    interface::comes_back(Link::Xdp, &["--threads", "1"]);
}

#[test]
fn without_such_an_interface_everything_stays_on_the_host_path() {
    interface::cannot_be_had("xdp:nosuch0", "no interface nosuch0");
    interface::cannot_be_had("xdp:lo", "no Ethernet");
}
