//! Listeners at one of the engine's addresses, and listeners that accept IPv6 only.

use toehold_e2e::network::{FAR, NEAR, NEAR_V6};

use crate::stage::{Stage, ok};

/// Both ends must report matching addresses, and a stream must return unchanged.
fn is_served(stage: &Stage, port: u16, bound: &str, reached: &str) {
    // The listeners of the previous test are closed.
    stage.await_listeners(0);
    let port = port.to_string();
    let server = stage.near_server(&["names_server", &port, bound]);
    let client = ok(stage.far("client", &["names_client", reached, &port]));
    let client = client.split_whitespace().collect::<Vec<_>>();
    let server = ok(server);
    let server = server.split_whitespace().collect::<Vec<_>>();
    // The server prints: listening, peer A P local A P, ok. The client prints: peer A P local A P,
    // ok.
    assert_eq!(server[2..4], client[4..6], "the client's end");
    assert_eq!(server[5..7], client[1..3], "the server's end");
    assert_eq!(client[1], reached);
    stage.await_listeners(0);
    let _server = stage.near_server(&["echo_server", &port, bound]);
    // Enough bytes for a connection to get a channel.
    ok(stage.far("client", &["echo_client", reached, &port, "30000000"]));
    ok(stage.far("many", &["many", reached, &port, "100"]));
}

fn is_refused(stage: &Stage, port: u16, bound: &str, tried: &str) {
    // The listeners of the previous test are closed.
    stage.await_listeners(0);
    let port = port.to_string();
    let _server = stage.near_server(&["echo_server", &port, bound]);
    ok(stage.far("refused", &["expect_error", tried, &port, "ECONNREFUSED"]));
}

#[test]
fn listener_at_one_address_is_there_and_nowhere_else() {
    let Some(stage) = Stage::set(&[]) else { return };
    is_served(&stage, 7301, NEAR, NEAR);
    is_served(&stage, 7302, NEAR_V6, NEAR_V6);
    is_refused(&stage, 7303, NEAR, NEAR_V6);
    is_refused(&stage, 7304, NEAR_V6, NEAR);
    stage.await_listeners(0);
    let _server = stage.near_server(&["echo_server", "7305", NEAR]);
    ok(stage.near("taken", &["taken", "7305", NEAR]));
}

#[test]
fn listener_for_ipv6_only_leaves_ipv4_to_another() {
    let Some(stage) = Stage::set(&[]) else { return };
    is_served(&stage, 7311, "::", NEAR_V6);
    is_refused(&stage, 7312, "::", NEAR);
    stage.await_listeners(0);
    // Two listeners share one port.
    let v6 = stage.near_server(&["names_server", "7313", "::"]);
    let v4 = stage.near_server(&["names_server", "7313", "0.0.0.0"]);
    ok(stage.far("v4", &["names_client", NEAR, "7313"]));
    assert!(ok(v4).contains(&format!("peer {FAR}")));
    ok(stage.far("v6", &["names_client", NEAR_V6, "7313"]));
    assert!(ok(v6).contains(&format!("local {NEAR_V6}")));
}

#[test]
fn connections_of_one_port_get_their_own_ends() {
    let Some(stage) = Stage::set(&["--address", "10.84.0.3/24"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7331"]);
    let _other = stage.far_server(&["echo_server", "7332"]);
    let ends = ["7331", "7332", NEAR, "10.84.0.3", "7333"];
    let arguments = [&["one_port", FAR][..], &ends].concat();
    ok(stage.near("one-port", &arguments));
    ok(stage.near("no-port", &["no_port", "10.84.0.3", FAR, "7331"]));
    assert_eq!(stage.engine("connections_opened"), 3);
}

#[test]
fn programs_of_the_host_reach_what_listens_at_the_engine_s_address() {
    let Some(stage) = Stage::set(&[]) else { return };
    ok(stage.near("nobody", &["expect_error", NEAR, "7341", "ECONNREFUSED"]));
    for (port, bound, reached) in [
        ("7342", "0.0.0.0", NEAR),
        ("7343", NEAR, NEAR),
        ("7344", NEAR_V6, NEAR_V6),
    ] {
        let server = stage.near_server(&["names_server", port, bound]);
        let client = ok(stage.near("client", &["names_client", reached, port]));
        let client = client.split_whitespace().collect::<Vec<_>>();
        let server = ok(server);
        let server = server.split_whitespace().collect::<Vec<_>>();
        // The server prints: listening, peer A P local A P, ok. The client prints: peer A P local A
        // P, ok.
        assert_eq!(client[1..3], [reached, port]);
        assert_eq!(server[5..7], client[1..3], "the server's end");
        stage.await_listeners(0);
    }
    let _server = stage.near_server(&["echo_server", "7345", NEAR]);
    ok(stage.near("client", &["echo_client", NEAR, "7345", "30000000"]));
    ok(stage.near("from", &["from_address", NEAR, "0", NEAR, "7345"]));
    assert_eq!(stage.engine("connections_opened"), 0);
}

#[test]
fn programs_connect_from_the_address_and_port_they_bind() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7321"]);
    ok(stage.near("port", &["from_address", NEAR, "7322", FAR, "7321"]));
    ok(stage.near("any", &["from_address", NEAR, "0", FAR, "7321"]));
    assert_eq!(stage.engine("connections_opened"), 2);
}
