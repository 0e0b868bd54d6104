//! Tests of the engine's duties on its link: answers to ARP, neighbour discovery and echo requests
//! (RFC 826, RFC 4861, RFC 792, RFC 4443), and service to neighbours during a flood.

use std::collections::BTreeSet;

use toehold_tcp::{
    ChecksumSum, CloseReason, Config, ConnectionId, Duration, Engine, Event, Instant,
    InterfaceAddress, ListenerId, MacAddress, Medium, Memory, NoRoom, Options, Random,
    ReceiveOffload,
};

const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THEIRS: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const BROADCAST: MacAddress = MacAddress([0xff; 6]);
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

struct Rings;

impl Memory for Rings {
    fn place(&mut self, _: ConnectionId, _: u64, _: &[u8]) -> Result<(), NoRoom> {
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, _: u64, target: &mut [u8]) {
        target.fill(b'x');
    }
}

/// 10.0.0.1/16 and fd00::1/64, on Ethernet of its own.
fn engine() -> Engine {
    let on_link = |address: &str, prefix_bits| InterfaceAddress {
        address: address.parse().expect("an address"),
        prefix_bits,
    };
    let medium = Medium::Ethernet {
        mac: OURS,
        resolve: true,
    };
    let mut config = Config::new(medium, 1_500, on_link("10.0.0.1", 16));
    config.addresses.push(on_link("fd00::1", 64));
    Engine::new(config, Random::new(9))
}

fn v6(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    (address[0], address[15]) = (0xfd, last);
    address
}

fn frame(to: MacAddress, from: MacAddress, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &ether_type.to_be_bytes(), payload].concat()
}

fn v4_packet(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend([source, destination].concat());
    let checksum = ChecksumSum::ZERO.bytes(&packet).checksum();
    packet[10..12].copy_from_slice(&checksum);
    packet.extend(payload);
    packet
}

fn v6_packet(
    source: [u8; 16],
    destination: [u8; 16],
    hop_limit: u8,
    mut payload: Vec<u8>,
) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    let pseudo = ChecksumSum::ZERO.bytes(&source).bytes(&destination);
    let sum = pseudo.word(payload.len() as u16).word(58).bytes(&payload);
    payload[2..4].copy_from_slice(&sum.checksum());
    let mut packet = vec![0x60, 0, 0, 0, length[0], length[1], 58, hop_limit];
    packet.extend([source, destination].concat());
    packet.extend(payload);
    packet
}

/// Hands a frame to the engine; returns the frames that the engine sends at once.
fn answers(engine: &mut Engine, frame: &[u8]) -> Vec<Vec<u8>> {
    let now = Instant::from_micros(1_000_000);
    engine.handle_frame(now, frame, ReceiveOffload::default(), &mut Rings);
    sent(engine, now)
}

fn sent(engine: &mut Engine, now: Instant) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 4_096];
    let mut sent = Vec::new();
    while let Some((length, _)) = engine.poll_frame(now, &mut Rings, &mut buffer) {
        sent.push(buffer[..length].to_vec());
    }
    sent
}

fn arp(
    operation: u8,
    sender: MacAddress,
    from: [u8; 4],
    target: MacAddress,
    to: [u8; 4],
) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &sender.0, &from, &target.0, &to].concat()
}

#[test]
fn arp_requests_for_our_addresses_are_answered_and_no_others() {
    let nobody = MacAddress([0; 6]);
    let (us, them) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let request = |to| frame(BROADCAST, THEIRS, ARP, &arp(1, THEIRS, them, nobody, to));
    let reply = frame(THEIRS, OURS, ARP, &arp(2, OURS, us, THEIRS, them));
    let mut engine = engine();
    assert_eq!(answers(&mut engine, &request(us)), [reply]);
    assert!(answers(&mut engine, &request([10, 0, 0, 3])).is_empty());
}

#[test]
fn solicitations_are_answered_also_from_the_unspecified_address() {
    let solicitation = |source: [u8; 16], hop_limit| {
        let option: &[u8] = if source == [0; 16] {
            &[]
        } else {
            &[1, 1, 2, 0, 0, 0, 0, 2]
        };
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0], &v6(1)[..], option].concat();
        let packet = v6_packet(source, v6(1), hop_limit, message);
        frame(OURS, THEIRS, IPV6, &packet)
    };
    let advertisement = |to: MacAddress, destination: [u8; 16]| {
        let head = [136, 0, 0, 0, 0x60, 0, 0, 0];
        let message = [&head[..], &v6(1), &[2, 1], &OURS.0].concat();
        frame(to, OURS, IPV6, &v6_packet(v6(1), destination, 255, message))
    };
    let mut engine = engine();
    let answer = answers(&mut engine, &solicitation(v6(2), 255));
    assert_eq!(answer, [advertisement(THEIRS, v6(2))]);
    // RFC 4861 section 7.1.1: a message that has passed a router is not from a neighbour.
    assert!(answers(&mut engine, &solicitation(v6(2), 254)).is_empty());
    // RFC 4862 section 5.4: the sender asks whether the address is free.
    let mut all_nodes = [0; 16];
    (all_nodes[0], all_nodes[1], all_nodes[15]) = (0xff, 2, 1);
    let answer = answers(&mut engine, &solicitation([0; 16], 255));
    let to_all = MacAddress([0x33, 0x33, 0, 0, 0, 1]);
    let mut expected = advertisement(to_all, all_nodes);
    // RFC 4861 section 7.2.4: "the Solicited flag MUST be zero" when the answer goes to all nodes.
    expected[58] = 0x20;
    let checksum = {
        expected[56..58].fill(0);
        let message = expected[54..].to_vec();
        v6_packet(v6(1), all_nodes, 255, message)[42..44].to_vec()
    };
    expected[56..58].copy_from_slice(&checksum);
    assert_eq!(answer, [expected]);
}

#[test]
fn echo_requests_come_back_whole() {
    let mut engine = engine();
    let (us, them) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let echo = |kind: u8| {
        let mut message = vec![kind, 0, 0, 0, 0x12, 0x34, 0, 7];
        message.extend(0..101);
        let checksum = ChecksumSum::ZERO.bytes(&message).checksum();
        message[2..4].copy_from_slice(&checksum);
        message
    };
    let request = frame(OURS, THEIRS, IPV4, &v4_packet(them, us, 1, &echo(8)));
    let reply = frame(THEIRS, OURS, IPV4, &v4_packet(us, them, 1, &echo(0)));
    assert_eq!(answers(&mut engine, &request), [reply]);
    let packet = |source, destination, kind| {
        v6_packet(source, destination, 64, {
            let mut message = echo(kind);
            message[2..4].fill(0);
            message
        })
    };
    let request = frame(OURS, THEIRS, IPV6, &packet(v6(2), v6(1), 128));
    let reply = frame(THEIRS, OURS, IPV6, &packet(v6(1), v6(2), 129));
    assert_eq!(answers(&mut engine, &request), [reply]);
    // RFC 1122 section 3.2.2.6 leaves the answer to a broadcast request to us, and we do not
    // answer.
    let to_all = v4_packet(them, [10, 0, 255, 255], 1, &echo(8));
    assert!(answers(&mut engine, &frame(BROADCAST, THEIRS, IPV4, &to_all)).is_empty());
}

/// A segment from a neighbour whose hardware address is made of its IP address.
fn segment(source: [u8; 4], flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(4_321_u16.to_be_bytes());
    tcp.extend(80_u16.to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let us = [10, 0, 0, 1];
    let pseudo = ChecksumSum::ZERO.bytes(&source).bytes(&us).word(6);
    let checksum = pseudo.word(tcp.len() as u16).bytes(&tcp).checksum();
    tcp[16..18].copy_from_slice(&checksum);
    let [a, b, c, d] = source;
    let packet = v4_packet(source, us, 6, &tcp);
    frame(OURS, MacAddress([2, 1, a, b, c, d]), IPV4, &packet)
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Strangers ask for connections and are never heard again. There are more of them than the engine
/// remembers neighbours.
#[test]
fn neighbours_are_served_while_the_link_is_full_of_strangers() {
    let mut engine = engine();
    let any = "10.0.0.1:80".parse().expect("an address");
    let listener = engine
        .listen(any, 16, Options::default())
        .expect("it is free");
    for stranger in 0..6_000_u16 {
        let [c, d] = (256 + stranger).to_be_bytes();
        let answer = answers(&mut engine, &segment([10, 0, c, d], SYN, 7, 0));
        assert_eq!(answer.len(), 1, "stranger {stranger}");
        assert_eq!(answer[0][..6], [2, 1, 10, 0, c, d], "to where it came from");
    }
    serves(&mut engine, listener, Instant::from_micros(1_000_000), 77);
    // The answers are repeated in vain, and the engine sends no questions about hosts that do not
    // exist.
    let later = Instant::from_micros(31_000_000);
    while let Some(at) = engine.poll_timeout().filter(|&at| at <= later) {
        engine.handle_timeout(at);
        for frame in sent(&mut engine, at) {
            let is_segment = frame[12..14] == IPV4.to_be_bytes();
            assert!(is_segment || frame[38..42] == [10, 0, 0, 77], "{frame:?}");
        }
    }
    serves(&mut engine, listener, later, 78);
}

/// Strangers announce themselves by ARP and by neighbour discovery. There are more of them than the
/// engine remembers neighbours. Programs still reach their neighbours.
#[test]
fn neighbours_are_reached_while_strangers_ask_for_us() {
    let mut engine = engine();
    let nobody = MacAddress([0; 6]);
    for stranger in 0..5_000_u16 {
        let [c, d] = (256 + stranger).to_be_bytes();
        let mac = MacAddress([2, 1, 10, 0, c, d]);
        let request = arp(1, mac, [10, 0, c, d], nobody, [10, 0, 0, 1]);
        let answer = answers(&mut engine, &frame(BROADCAST, mac, ARP, &request));
        assert_eq!(answer.len(), 1, "stranger {stranger}");
    }
    let now = Instant::from_micros(1_000_000);
    let remote = "10.0.0.77:80".parse().expect("an address");
    let id = engine.connect(now, None, remote, Options::default());
    let id = id.expect("there is a route");
    let question = arp(1, OURS, [10, 0, 0, 1], nobody, [10, 0, 0, 77]);
    let asked = sent(&mut engine, now);
    assert_eq!(asked, [frame(BROADCAST, OURS, ARP, &question)]);
    let reply = arp(2, THEIRS, [10, 0, 0, 77], OURS, [10, 0, 0, 1]);
    let syn = answers(&mut engine, &frame(OURS, THEIRS, ARP, &reply));
    assert_eq!(syn.len(), 1);
    assert_eq!((&syn[0][..6], syn[0][47]), (&THEIRS.0[..], SYN));
    assert!(engine.info(id).is_some());
}

/// A program connects to more neighbours at once than the engine can ask for. A neighbour that the
/// engine has not asked for yet does not count as unreachable.
#[test]
fn only_a_requested_neighbour_can_be_unreachable() {
    let mut engine = engine();
    let now = Instant::from_micros(1_000_000);
    let mut ids = Vec::new();
    for neighbour in 0..4_200_u16 {
        let [c, d] = (256 + neighbour).to_be_bytes();
        let id = engine.connect(now, None, ([10, 0, c, d], 80).into(), Options::default());
        ids.push(id.expect("there is a route"));
    }
    // The queue of questions is short, so the test takes them from it in between.
    let mut asked = BTreeSet::new();
    let mut take_questions = |engine: &mut Engine, now| {
        for frame in sent(engine, now) {
            assert_eq!(frame[12..14], ARP.to_be_bytes());
            asked.insert(frame[38..42].to_vec());
        }
        let closed = std::iter::from_fn(|| engine.poll_event());
        let closed = closed.map(|event| match event {
            Event::Closed { connection, reason } => {
                assert_eq!(reason, CloseReason::Unreachable);
                connection
            }
            other => panic!("{other:?}"),
        });
        (closed.collect::<Vec<_>>(), asked.len())
    };
    let (closed, asked_first) = take_questions(&mut engine, now);
    assert_eq!((closed.len(), asked_first), (0, 4_096));
    let mut closed = 0;
    let until = Instant::from_micros(20_000_000);
    while let Some(at) = engine.poll_timeout().filter(|&at| at <= until) {
        engine.handle_timeout(at);
        let (unreachable, asked) = take_questions(&mut engine, at);
        closed += unreachable.len();
        assert!(
            closed <= asked,
            "{closed} are unreachable of {asked} asked for"
        );
    }
    assert_eq!(closed, ids.len());
}

/// A neighbour opens a connection and receives some bytes.
fn serves(engine: &mut Engine, listener: ListenerId, now: Instant, host: u8) {
    let client = [10, 0, 0, host];
    let mut hand = |frame: Vec<u8>| {
        engine.handle_frame(now, &frame, ReceiveOffload::default(), &mut Rings);
        sent(engine, now)
    };
    let answer = hand(segment(client, SYN, 100, 0));
    let isn = u32::from_be_bytes(answer[0][38..42].try_into().expect("four bytes"));
    assert!(hand(segment(client, ACK, 101, isn.wrapping_add(1))).is_empty());
    let id = engine.accept(listener).expect("it is established");
    engine.publish(id, 10).expect("it is there");
    let data = sent(engine, now + Duration::from_millis(1));
    assert_eq!(data.len(), 1, "one segment, and no question where it goes");
    assert_eq!(data[0][..6], [2, 1, 10, 0, 0, host]);
    assert_eq!(data[0][54..], [b'x'; 10]);
}

/// Each kind of answer has a limit of its own: a flood of ARP requests does not silence neighbour
/// advertisements.
#[test]
fn floods_of_questions_are_answered_within_bounds() {
    let mut engine = engine();
    let nobody = MacAddress([0; 6]);
    let question = arp(1, THEIRS, [10, 0, 0, 2], nobody, [10, 0, 0, 1]);
    let question = frame(BROADCAST, THEIRS, ARP, &question);
    let option = [1, 1, 2, 0, 0, 0, 0, 2];
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0], &v6(1)[..], &option].concat();
    let solicitation = frame(OURS, THEIRS, IPV6, &v6_packet(v6(2), v6(1), 255, message));
    let count = |engine: &mut Engine, frame: &[u8], times: usize| -> usize {
        (0..times).map(|_| answers(engine, frame).len()).sum()
    };
    let limit = 5_000..15_000;
    let replies = count(&mut engine, &question, 30_000);
    assert!(limit.contains(&replies), "{replies} ARP replies");
    let advertisements = count(&mut engine, &solicitation, 30_000);
    assert!(
        limit.contains(&advertisements),
        "{advertisements} advertisements"
    );
    let suppressed = engine.counters().neighbour_answers_suppressed as usize;
    assert_eq!(suppressed, 60_000 - replies - advertisements);
}
