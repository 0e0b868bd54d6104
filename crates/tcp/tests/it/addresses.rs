//! Addresses and routes that change while the engine runs.

use std::net::{IpAddr, SocketAddr};

use crate::support::on_link;
use toehold_tcp::{
    CloseReason, Config, ConnectError, ConnectionId, Engine, Event, HEADER_BUFFER_BYTES, Instant,
    Medium, Options, Random, Route,
};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn connect(engine: &mut Engine, local: &str, remote: &str) -> Result<ConnectionId, ConnectError> {
    let local = Some(SocketAddr::new(ip(local), 0));
    let remote = SocketAddr::new(ip(remote), 80);
    engine.connect(Instant::ZERO, local, remote, Options::default())
}

fn closed(engine: &mut Engine) -> Vec<(ConnectionId, CloseReason)> {
    let events = std::iter::from_fn(|| engine.poll_event());
    let closed = events.filter_map(|event| match event {
        Event::Closed { connection, reason } => Some((connection, reason)),
        _ => None,
    });
    closed.collect()
}

#[test]
fn address_that_goes_takes_its_connections_and_no_others() {
    let config = Config::new(Medium::Ip, 1500, on_link("10.0.0.1"));
    let mut engine = Engine::new(config, Random::new(1));
    engine.add_address(on_link("10.0.0.2"));
    let first = connect(&mut engine, "10.0.0.1", "10.0.0.9").expect("opened");
    let second = connect(&mut engine, "10.0.0.2", "10.0.0.9").expect("opened");
    engine.remove_address(ip("10.0.0.1"));
    assert_eq!(closed(&mut engine), [(first, CloseReason::Aborted)]);
    assert!(
        engine
            .info(second)
            .is_some_and(|info| info.local.ip() == ip("10.0.0.2"))
    );
    let again = connect(&mut engine, "10.0.0.1", "10.0.0.9");
    assert_eq!(again, Err(ConnectError::AddressNotOurs));
    // The address comes back.
    engine.add_address(on_link("10.0.0.1"));
    assert!(connect(&mut engine, "10.0.0.1", "10.0.0.9").is_ok());
}

#[test]
fn routes_lead_where_they_say_now() {
    let config = Config::new(Medium::Ip, 1500, on_link("10.0.0.1"));
    let mut engine = Engine::new(config, Random::new(1));
    let beyond = |engine: &mut Engine| connect(engine, "10.0.0.1", "192.0.2.1");
    assert_eq!(beyond(&mut engine), Err(ConnectError::Unreachable));
    engine.set_routes(&[Route {
        destination: ip("0.0.0.0"),
        prefix_bits: 0,
        gateway: ip("10.0.0.254"),
    }]);
    assert!(beyond(&mut engine).is_ok());
    let mut header = [0; HEADER_BUFFER_BYTES];
    assert!(engine.poll_transmit(Instant::ZERO, &mut header).is_some());
    engine.set_routes(&[]);
    assert_eq!(beyond(&mut engine), Err(ConnectError::Unreachable));
}

#[test]
fn port_of_a_connection_that_ended_has_to_wait_for_all_others() {
    let mut config = Config::new(Medium::Ip, 1500, on_link("10.0.0.1"));
    config.ephemeral_ports = (40_000, 40_999);
    let mut engine = Engine::new(config, Random::new(1));
    for remote in ["10.0.0.9", "10.0.0.8"] {
        let mut ports = Vec::new();
        for _ in 0..1_000 {
            let id = connect(&mut engine, "10.0.0.1", remote).expect("opened");
            ports.push(engine.info(id).expect("open").local.port());
            engine.abort(Instant::ZERO, id).expect("open");
            engine.release(Instant::ZERO, id).expect("closed");
        }
        ports.sort_unstable();
        assert_eq!(ports, (40_000..=40_999).collect::<Vec<u16>>());
    }
}
