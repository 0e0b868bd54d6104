//! Error messages.

use std::sync::Arc;

use toehold_link::{XdpError, XdpSocket, XdpSteering};

use crate::network::Network;
use crate::{SMALL, attach};

fn refusal(network: &Network, interface: &str, queues: u32) -> XdpError {
    network.near(|| XdpSteering::attach(interface, queues).expect_err("it is refused"))
}

#[test]
fn interfaces_that_do_not_do_are_named_with_the_cause() {
    let Some(network) = Network::new() else {
        return;
    };
    for name in ["nothere", "", "a-name-that-is-too-long"] {
        assert!(
            matches!(refusal(&network, name, 1), XdpError::Interface(..)),
            "{name}"
        );
    }
    assert!(matches!(refusal(&network, "lo", 1), XdpError::Medium(..)));
    let error = refusal(&network, "near0", 2);
    assert!(
        error.to_string().contains("near0 has 1 receive queue"),
        "{error}"
    );
    network.near_ip("link set near0 mtu 65535");
    let error = refusal(&network, "near0", 1);
    assert!(
        error.to_string().contains("MTU of near0 is 65535"),
        "{error}"
    );
}

#[test]
fn an_interface_has_one_program() {
    let Some(network) = Network::new() else {
        return;
    };
    let first = attach(&network, "near0");
    let error = refusal(&network, "near0", 1);
    assert!(matches!(error, XdpError::Busy(_)), "{error}");
    let steering = Arc::clone(first.steering());
    let second = network.near(|| XdpSocket::open(steering, 0, SMALL).expect_err("it is taken"));
    assert!(matches!(second, XdpError::Busy(_)), "{second}");
    drop(first);
    drop(attach(&network, "near0"));
}

#[test]
fn a_veth_whose_other_end_has_more_queues_is_refused() {
    let Some(network) = Network::with_queues(2) else {
        return;
    };
    let mut ethtool = network.near.command("ethtool");
    ethtool.args(["-L", "near0", "rx", "1"]);
    match ethtool.output() {
        Ok(output) if output.status.success() => {}
        _ => return println!("SKIPPED: ethtool is not installed"),
    }
    let error = refusal(&network, "near0", 1);
    assert!(matches!(error, XdpError::PeerQueues(_)), "{error}");
}

#[test]
fn an_interface_with_fewer_queues_to_send_by_is_refused() {
    let Some(network) = Network::new() else {
        return;
    };
    network.near_ip("link add few0 numrxqueues 2 numtxqueues 1 type veth");
    let error = refusal(&network, "few0", 2);
    let (said, advice) = (error.to_string(), "ethtool -L few0 tx 2, or rx 1");
    assert!(
        matches!(error, XdpError::TransmitQueues(_, 1, 2)) && said.contains(advice),
        "{said}"
    );
}

#[test]
fn missing_capabilities_are_named() {
    let Some(network) = Network::new() else {
        return;
    };
    let error = network.near(|| {
        toehold_network::keep_net_raw_alone();
        XdpSteering::attach("near0", 1).expect_err("it is refused")
    });
    let said = error.to_string();
    assert!(said.contains("has not CAP_NET_ADMIN, CAP_BPF:"), "{said}");
}
