//! Tests of connections while there is no route to the remote: the error is soft, so no established
//! connection ends at once (RFC 1122 section 4.2.3.9).

use std::net::{IpAddr, SocketAddr};

use crate::support::{Rings, ethernet, on_link};
use toehold_tcp::{
    CloseReason, Config, ConnectionId, Duration, Engine, Event, Instant, ListenerId, MacAddress,
    Options, Random, ReceiveOffload, Route,
};

const GATEWAY: &str = "10.0.0.254";
const BEYOND: &str = "192.0.2.1";

struct Host {
    engine: Engine,
    rings: Rings,
    events: Vec<Event>,
}

impl Host {
    fn new(seed: u64, address: &str) -> Host {
        let config = Config::new(ethernet(seed as u8), 1_500, on_link(address));
        Host {
            engine: Engine::new(config, Random::new(seed)),
            rings: Rings::default(),
            events: Vec::new(),
        }
    }

    /// All frames that the host has to send now.
    fn sent(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        let mut all = Vec::new();
        while let Some((length, _)) = self.engine.poll_frame(now, &mut self.rings, &mut frame) {
            all.push(frame[..length].to_vec());
        }
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
        }
        all
    }

    fn is_closed(&self) -> Option<CloseReason> {
        self.events.iter().find_map(|event| match event {
            Event::Closed { reason, .. } => Some(*reason),
            _ => None,
        })
    }
}

/// A host and its gateway. The gateway is the remote itself, under another address.
struct Pair {
    near: Host,
    far: Host,
    listener: ListenerId,
    now: Instant,
    /// True while no frame passes between the two.
    is_cut: bool,
}

impl Pair {
    fn new() -> Pair {
        let (mut near, mut far) = (Host::new(1, "10.0.0.1"), Host::new(2, GATEWAY));
        near.engine.set_routes(&by_gateway());
        far.engine.add_address(on_link(BEYOND));
        let listener = far.engine.listen(remote(), 4, Options::default());
        Pair {
            near,
            far,
            listener: listener.expect("nobody listens"),
            now: Instant::from_micros(1_000_000),
            is_cut: false,
        }
    }

    fn connect(&mut self) -> ConnectionId {
        let opened = self
            .near
            .engine
            .connect(self.now, None, remote(), Options::default());
        opened.expect("there is a route")
    }

    /// An established connection's near end.
    fn established(&mut self) -> ConnectionId {
        let id = self.connect();
        self.pass(Duration::from_millis(100));
        assert!(self.near.events.contains(&Event::Connected(id)));
        assert!(self.far.engine.accept(self.listener).is_some());
        id
    }

    /// Lets time pass; every frame arrives at once.
    fn pass(&mut self, span: Duration) {
        let until = self.now + span;
        loop {
            self.exchange();
            let due = [&self.near, &self.far].map(|host| host.engine.poll_timeout());
            let Some(due) = due.into_iter().flatten().min().filter(|due| *due <= until) else {
                break;
            };
            self.now = self.now.max(due);
            self.near.engine.handle_timeout(self.now);
            self.far.engine.handle_timeout(self.now);
        }
        self.now = until;
    }

    fn exchange(&mut self) {
        loop {
            let there = self.near.sent(self.now);
            let back = self.far.sent(self.now);
            if there.is_empty() && back.is_empty() {
                return;
            }
            if self.is_cut {
                continue;
            }
            for (to, frames) in [(&mut self.far, there), (&mut self.near, back)] {
                for frame in frames {
                    let Host { engine, rings, .. } = to;
                    engine.handle_frame(self.now, &frame, ReceiveOffload::default(), rings);
                }
            }
        }
    }

    fn assert_all_arrived(&self) {
        let arrived = &self.far.rings.received;
        assert!(*arrived == pattern(), "{} bytes", arrived.len());
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn remote() -> SocketAddr {
    SocketAddr::new(ip(BEYOND), 80)
}

fn by_gateway() -> [Route; 1] {
    [Route {
        destination: ip("0.0.0.0"),
        prefix_bits: 0,
        gateway: ip(GATEWAY),
    }]
}

const SOME: u64 = 5_000;

fn pattern() -> Vec<u8> {
    (0..SOME as usize).map(|at| at as u8).collect()
}

#[test]
fn connection_outlives_its_route_and_loses_nothing() {
    let mut pair = Pair::new();
    let id = pair.established();
    pair.near.engine.set_routes(&[]);
    pair.near.engine.publish(id, SOME).expect("open");
    pair.pass(Duration::from_secs(20));
    assert!(pair.far.rings.received.is_empty());
    assert_eq!(pair.near.is_closed(), None);
    pair.near.engine.set_routes(&by_gateway());
    // The route is back: the data arrives with its next retransmission.
    pair.pass(Duration::from_secs(20));
    pair.assert_all_arrived();
    assert_eq!(pair.near.is_closed(), None);
}

#[test]
fn connection_whose_route_goes_in_the_middle_goes_on_when_it_is_back() {
    let mut pair = Pair::new();
    let id = pair.established();
    pair.near.engine.publish(id, SOME / 2).expect("open");
    pair.is_cut = true;
    pair.exchange();
    pair.is_cut = false;
    pair.near.engine.set_routes(&[]);
    pair.near.engine.publish(id, SOME).expect("open");
    pair.pass(Duration::from_secs(5));
    pair.near.engine.set_routes(&by_gateway());
    pair.pass(Duration::from_secs(20));
    pair.assert_all_arrived();
}

#[test]
fn connection_that_never_gets_a_route_again_ends_in_time() {
    let mut pair = Pair::new();
    let id = pair.established();
    pair.near.engine.set_routes(&[]);
    pair.near.engine.publish(id, 1).expect("open");
    // RFC 1122 section 4.2.3.5: R2 is at least 100 seconds.
    pair.pass(Duration::from_secs(100));
    assert_eq!(pair.near.is_closed(), None);
    pair.pass(Duration::from_secs(3_600));
    assert_eq!(pair.near.is_closed(), Some(CloseReason::NoRoute));
}

#[test]
fn connection_that_is_not_established_ends_with_its_route() {
    // RFC 5461 section 4.1.
    let mut pair = Pair::new();
    pair.is_cut = true;
    pair.connect();
    pair.pass(Duration::from_millis(10));
    pair.near.engine.set_routes(&[]);
    pair.pass(Duration::from_secs(10));
    assert_eq!(pair.near.is_closed(), Some(CloseReason::Unreachable));
}

#[test]
fn finished_connection_without_a_route_is_over_in_time() {
    let mut pair = Pair::new();
    let id = pair.established();
    pair.near.engine.set_routes(&[]);
    pair.near.engine.abort(pair.now, id).expect("open");
    pair.pass(Duration::from_secs(1));
    assert!(pair.near.engine.release(pair.now, id).is_ok());
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.near.engine.info(id).map(|info| info.local), None);
}

#[test]
fn silent_neighbour_that_comes_back_gets_what_waited() {
    let mut pair = Pair::new();
    let id = pair.established();
    // Long enough for the engine to forget the neighbour.
    pair.is_cut = true;
    pair.pass(Duration::from_secs(300));
    pair.near.engine.publish(id, SOME).expect("open");
    pair.pass(Duration::from_secs(30));
    assert_eq!(pair.near.is_closed(), None);
    pair.is_cut = false;
    pair.pass(Duration::from_secs(60));
    pair.assert_all_arrived();
}

#[test]
fn other_interfaces_with_other_addresses_are_found_at_once() {
    let mut pair = Pair::new();
    let id = pair.established();
    pair.near
        .engine
        .change_interface(MacAddress([2, 0, 0, 0, 1, 1]));
    pair.far
        .engine
        .change_interface(MacAddress([2, 0, 0, 0, 1, 2]));
    pair.near.engine.publish(id, SOME).expect("open");
    pair.pass(Duration::from_millis(100));
    pair.assert_all_arrived();
    let retransmissions = pair.near.engine.counters().retransmissions;
    assert_eq!(retransmissions, 0);
}
