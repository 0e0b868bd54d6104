//! A packet socket on an interface that the kernel uses, too.

use std::thread::sleep;
use std::time::Duration;

use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, host, wait_until};

use crate::interface;
use crate::stage::{Stage, ok, script};

/// The near kernel's own address on this interface, and the far kernel's address.
const NEAR_KERNEL: &str = "10.86.0.2/24";
const FAR_KERNEL: &str = "10.86.0.1";

#[test]
fn engine_and_kernel_share_an_interface() {
    let Some(stage) = Stage::set_over(Link::Packet, &[]) else {
        return;
    };
    let far = format!("{FAR_KERNEL}/24");
    let network = &stage.network;
    assert!(network.near_ip(&["addr", "add", NEAR_KERNEL, "dev", "v0"]));
    assert!(network.far_ip(&["addr", "add", &far, "dev", "toe0"]));
    let _far = stage.far_server(&["echo_server", "7701"]);
    let _near = stage.near_server(&["echo_server", "7702"]);
    let on_engine = [
        stage.near("near-client", &["echo_client", FAR, "7701", "30000000"]),
        stage.far("far-client", &["echo_client", NEAR, "7702", "30000000"]),
    ];
    let mut command = network.near(&stage.python);
    command
        .args(script())
        .args(["echo_client", FAR_KERNEL, "7701", "30000000"]);
    let on_kernel = Running::start(command, "kernel-client", stage.toehold.dir());
    ok(on_kernel);
    on_engine.into_iter().for_each(|client| drop(ok(client)));
    // The engine must not have seen the kernel's connections.
    assert_eq!(stage.engine("connections_opened"), 1);
    assert_eq!(stage.engine("resets_sent"), 0);
    assert_eq!(stage.engine("frames_malformed"), 0);
}

#[test]
fn payload_of_several_programs_is_read_to_where_it_belongs() {
    // Frames that are passed on between threads are copied, so one thread is used.
    let Some(stage) = Stage::set_over(Link::Packet, &["--threads", "1"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7711"]);
    let clients =
        ["one", "other"].map(|name| stage.near(name, &["echo_client", FAR, "7711", "60000000"]));
    clients.into_iter().for_each(|client| drop(ok(client)));
    assert!(stage.engine("payloads_in_place") > 0);
}

#[test]
fn interface_without_offloads_is_enough() {
    let Some(stage) = Stage::set_over(Link::Packet, &["--no-checksum", "--no-lso"]) else {
        return;
    };
    if host::program("ethtool").is_none() {
        return host::skipped("ethtool is not installed");
    }
    let off = ["tso", "off", "gso", "off", "gro", "off", "tx", "off"];
    for (mut ethtool, device) in [
        (stage.network.near("ethtool"), "v0"),
        (stage.network.far("ethtool"), "toe0"),
    ] {
        let done = ethtool.args(["-K", device]).args(off).output();
        assert!(done.is_ok_and(|done| done.status.success()), "{device}");
    }
    let _far = stage.far_server(&["echo_server", "7721"]);
    let _near = stage.near_server(&["echo_server", "7722"]);
    ok(stage.near("client", &["echo_client", FAR, "7721", "20000000"]));
    ok(stage.far("client", &["echo_client", NEAR, "7722", "20000000"]));
    assert_eq!(stage.engine("frames_malformed"), 0);
}

#[test]
fn interface_that_goes_down_and_comes_back_loses_nothing() {
    let Some(stage) = Stage::set_over(Link::Packet, &[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7731"]);
    let client = stage.near("client", &["echo_client", FAR, "7731", "100000000"]);
    assert!(wait_until(TIME_LIMIT, || stage.engine("bytes_sent") > 1_000_000));
    let network = &stage.network;
    assert!(network.near_ip(&["link", "set", "v0", "down"]));
    sleep(Duration::from_millis(300));
    assert!(network.near_ip(&["link", "set", "v0", "up"]));
    ok(client);
}

#[test]
fn interface_that_is_gone_costs_nothing_and_is_opened_when_it_comes_back() {
    interface::comes_back(Link::Packet, &[]);
}

#[test]
fn without_such_an_interface_everything_stays_on_the_host_path() {
    interface::cannot_be_had("packet:nosuch0", "no interface nosuch0");
    interface::cannot_be_had("packet:lo", "no Ethernet");
}
