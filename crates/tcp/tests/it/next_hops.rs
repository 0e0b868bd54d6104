//! Connections whose next hops come from the host.

use std::net::{IpAddr, SocketAddr};

use crate::support::{Rings, ethernet, on_link};
use toehold_tcp::{
    CloseReason, Config, Engine, Event, Instant, ListenerId, MacAddress, Options, Random,
    ReceiveOffload, Route, State,
};

const NEAR: &str = "10.0.0.1";
const FAR: &str = "192.0.2.1";
const ROUTER: [&str; 2] = ["10.0.0.254", "fe80::254"];
const NOW: Instant = Instant::from_micros(1_000_000);

struct Pair {
    near: Engine,
    far: Engine,
    rings: [Rings; 2],
    near_listener: ListenerId,
}

impl Pair {
    fn new() -> Pair {
        let near = Config {
            asks_next_hops: true,
            ..Config::new(ethernet(1), 1_500, on_link(NEAR))
        };
        let mut far = Config::new(ethernet(2), 1_500, on_link(FAR));
        far.routes = vec![Route {
            destination: ip("0.0.0.0"),
            prefix_bits: 0,
            gateway: ip("192.0.2.254"),
        }];
        let mut near = Engine::new(near, Random::new(1));
        let mut far = Engine::new(far, Random::new(2));
        far.set_neighbour(ip("192.0.2.254"), mac_of(1));
        let near_listener = near.listen(end(NEAR), 4, Options::default());
        far.listen(end(FAR), 4, Options::default())
            .expect("nobody listens");
        Pair {
            near,
            far,
            rings: [Rings::default(), Rings::default()],
            near_listener: near_listener.expect("nobody listens"),
        }
    }

    /// Passes frames on until the near engine asks a question; returns the number of frames.
    fn pass(&mut self) -> usize {
        let (mut frame, mut sent) = (vec![0; 4_096], 0);
        loop {
            let [near_rings, far_rings] = &mut self.rings;
            let there = self.near.poll_frame(NOW, near_rings, &mut frame);
            if let Some((length, _)) = there {
                sent += 1;
                let offload = ReceiveOffload::default();
                self.far
                    .handle_frame(NOW, &frame[..length], offload, far_rings);
            }
            let back = self.far.poll_frame(NOW, far_rings, &mut frame);
            if let Some((length, _)) = back {
                let offload = ReceiveOffload::default();
                self.near
                    .handle_frame(NOW, &frame[..length], offload, near_rings);
            }
            if there.is_none() && back.is_none() {
                return sent;
            }
        }
    }

    fn answer(&mut self, hop: Option<&str>) {
        assert_eq!(self.near.poll_next_hop(), Some((ip(NEAR), ip(FAR))));
        assert_eq!(self.near.poll_next_hop(), None, "each is asked for once");
        self.near.set_next_hop(NOW, ip(NEAR), ip(FAR), hop.map(ip));
    }

    /// The far end opens a connection, and the near end uses the next hop that the host names.
    fn accept(&mut self, hop: &str) {
        let opened = self.far.connect(NOW, None, end(NEAR), Options::default());
        let id = opened.expect("there is a route");
        assert_eq!(
            self.pass(),
            0,
            "nothing is sent before the next hop is known"
        );
        self.answer(Some(hop));
        self.pass();
        let info = self.far.info(id).expect("it is there");
        assert_eq!(info.state, State::Established);
        assert!(self.near.accept(self.near_listener).is_some());
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn end(text: &str) -> SocketAddr {
    SocketAddr::new(ip(text), 80)
}

fn mac_of(last: u8) -> MacAddress {
    let toehold_tcp::Medium::Ethernet { mac, .. } = ethernet(last) else {
        unreachable!("that is its kind");
    };
    mac
}

#[test]
fn remotes_are_answered_on_the_link_and_by_a_router_of_either_family() {
    for hop in [FAR, ROUTER[0], ROUTER[1]] {
        // Without other knowledge, the neighbour is the sender of the SYN.
        Pair::new().accept(hop);
    }
}

#[test]
fn a_remote_without_a_route_gets_no_answer_and_leaves_nothing() {
    let mut pair = Pair::new();
    let opened = pair.far.connect(NOW, None, end(NEAR), Options::default());
    opened.expect("there is a route");
    pair.pass();
    pair.answer(None);
    assert_eq!(pair.pass(), 0);
    assert_eq!(pair.near.connection_count(), 0);
}

#[test]
fn a_connection_without_a_route_is_not_opened() {
    let mut pair = Pair::new();
    let opened = pair.near.connect(NOW, None, end(FAR), Options::default());
    let id = opened.expect("the host answers later");
    pair.pass();
    pair.answer(None);
    let closed = Event::Closed {
        connection: id,
        reason: CloseReason::NoRoute,
    };
    assert_eq!(pair.near.poll_event(), Some(closed));
}

#[test]
fn next_hops_are_asked_for_again_when_routes_change() {
    let mut pair = Pair::new();
    pair.near.set_neighbour(ip(ROUTER[0]), mac_of(2));
    let opened = pair.near.connect(NOW, None, end(FAR), Options::default());
    let id = opened.expect("the host answers later");
    assert_eq!(pair.pass(), 0);
    pair.answer(Some(ROUTER[0]));
    assert!(pair.pass() > 0);
    pair.near.forget_next_hops(ip("198.51.100.0"), 24);
    pair.near.publish(id, 10).expect("it is open");
    assert!(pair.pass() > 0, "that is another network");
    pair.near.forget_next_hops(ip("192.0.2.0"), 24);
    pair.near.publish(id, 20).expect("it is open");
    assert_eq!(pair.pass(), 0);
    // An open connection survives a time without a route.
    pair.answer(None);
    assert_eq!(
        pair.near.info(id).expect("it is there").state,
        State::Established
    );
}
