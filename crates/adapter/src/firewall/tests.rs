use std::net::{IpAddr, SocketAddr};

use toehold_channel::rendezvous::mapped;

use super::message::changes;
use super::{Change, Rules};
use crate::registry::{Address, Tuple};

/// An attribute.
fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = (4 + content.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    let name = attribute(1, format!("{name}\0").as_bytes());
    attribute(1, &[name, attribute(2, &data.concat())].concat())
}

fn meta(key: u32) -> Vec<u8> {
    expression("meta", &[number(1, 1), number(2, key)])
}

fn payload(base: u32, offset: u32, length: u32) -> Vec<u8> {
    let place = [number(2, base), number(3, offset), number(4, length)];
    expression("payload", &[vec![number(1, 1)], place.to_vec()].concat())
}

fn compare(operation: u32, value: &[u8]) -> Vec<u8> {
    let data = attribute(3, &attribute(1, value));
    expression("cmp", &[number(1, 1), number(2, operation), data])
}

fn counter(packets: u64) -> Vec<u8> {
    expression("counter", &[attribute(2, &packets.to_be_bytes())])
}

fn verdict(code: u32) -> Vec<u8> {
    let code = attribute(2, &number(1, code));
    expression("immediate", &[number(1, 0), attribute(2, &code)])
}

fn to_port(port: u16) -> Vec<u8> {
    let protocol = [meta(16), compare(0, &[6])].concat();
    let port = [payload(2, 2, 2), compare(0, &port.to_be_bytes())].concat();
    [protocol, port].concat()
}

fn message(kind: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = (20 + body.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[kind, 10, 0, 0]);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[family, 0, 0, 0]);
    bytes.extend_from_slice(body);
    bytes
}

fn rule(kind: u8, family: u8, handle: u64, expressions: &[u8]) -> Vec<u8> {
    rule_of(b"filter\0", kind, family, handle, expressions)
}

fn rule_of(table: &[u8], kind: u8, family: u8, handle: u64, expressions: &[u8]) -> Vec<u8> {
    let place = [
        attribute(1, table),
        attribute(2, b"input\0"),
        attribute(3, &handle.to_be_bytes()),
    ];
    let body = [place.concat(), attribute(4, expressions)].concat();
    message(kind, family, &body)
}

fn added(family: u8, handle: u64, expressions: &[Vec<u8>]) -> Vec<u8> {
    rule(6, family, handle, &expressions.concat())
}

fn removed(family: u8, handle: u64, expressions: &[Vec<u8>]) -> Vec<u8> {
    rule(8, family, handle, &expressions.concat())
}

fn end() -> Vec<u8> {
    message(15, 0, &[])
}

/// Whether other carriers may be seen after a datagram.
fn take(rules: &mut Rules, messages: &[Vec<u8>]) -> bool {
    let datagram = messages.concat();
    let taken: Vec<bool> = changes(&datagram)
        .map(|change| rules.take(change))
        .collect();
    taken.contains(&true)
}

fn tuple(local: &str, remote: &str) -> Tuple {
    let address = |text: &str| {
        let socket: SocketAddr = text.parse().expect("an address");
        let ip = match socket.ip() {
            IpAddr::V4(v4) => mapped(v4.octets()),
            IpAddr::V6(v6) => v6.octets(),
        };
        let port = socket.port();
        Address::Internet { ip, port }
    };
    Tuple {
        netns: 1,
        local: address(local),
        remote: address(remote),
    }
}

/// Whether one rule of a family would see a carrier on the loopback device.
fn sees(family: u8, expressions: &[Vec<u8>], local: &str, remote: &str) -> bool {
    let mut rules = Rules::default();
    take(&mut rules, &[added(family, 1, expressions), end()]);
    let there = rules.see(&tuple(local, remote), Some(true));
    assert_eq!(there, rules.see(&tuple(remote, local), Some(true)));
    there
}

const INET: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const V4: (&str, &str) = ("127.0.0.1:6379", "127.0.0.1:50000");
const V6: (&str, &str) = ("[::1]:6379", "[::1]:50000");

#[test]
fn a_port_that_a_rule_names_is_one_of_the_carriers() {
    let rule = |port| [to_port(port), counter(0)];
    assert!(sees(INET, &rule(6379), V4.0, V4.1));
    assert!(sees(INET, &rule(50_000), V6.0, V6.1));
    assert!(!sees(INET, &rule(80), V4.0, V4.1));
}

#[test]
fn a_rule_for_another_family_or_protocol_sees_nothing() {
    assert!(sees(IPV4, &[counter(0)], V4.0, V4.1));
    assert!(!sees(IPV4, &[counter(0)], V6.0, V6.1));
    assert!(sees(IPV6, &[counter(0)], V6.0, V6.1));
    let arp = 3;
    assert!(!sees(arp, &[counter(0)], V4.0, V4.1));
    let udp = [meta(16), compare(0, &[17]), counter(0)];
    assert!(!sees(INET, &udp, V4.0, V4.1));
    let not_udp = [meta(16), compare(1, &[17]), counter(0)];
    assert!(sees(INET, &not_udp, V4.0, V4.1));
}

#[test]
fn a_rule_for_other_devices_sees_nothing_on_the_loopback_device() {
    let named = |operation, name: &[u8]| [meta(6), compare(operation, name), counter(0)];
    let full = |name: &str| {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(16, 0);
        bytes
    };
    let on_loopback = |rule: &[Vec<u8>]| sees(INET, rule, V4.0, V4.1);
    assert!(on_loopback(&named(0, &full("lo"))));
    assert!(!on_loopback(&named(1, &full("lo"))));
    assert!(!on_loopback(&named(0, &full("eth0"))));
    assert!(on_loopback(&named(1, &full("eth0"))));
    // All names that begin so.
    assert!(on_loopback(&named(0, b"l")));
    assert!(!on_loopback(&named(0, b"eth")));
    let by_index = |index: u32| [meta(4), compare(0, &index.to_ne_bytes()), counter(0)];
    assert!(on_loopback(&by_index(1)));
    assert!(!on_loopback(&by_index(2)));
    // Between two namespaces it may be any device.
    let mut rules = Rules::default();
    take(
        &mut rules,
        &[added(INET, 1, &named(0, &full("veth7"))), end()],
    );
    assert!(rules.see(&tuple(V4.0, V4.1), None));
}

#[test]
fn a_rule_for_other_addresses_sees_nothing() {
    let from = |start: &[u8]| {
        let length = start.len() as u32;
        [payload(1, 12, length), compare(0, start), counter(0)]
    };
    assert!(sees(IPV4, &from(&[127, 0, 0, 1]), V4.0, V4.1));
    assert!(sees(IPV4, &from(&[127]), V4.0, V4.1));
    assert!(!sees(IPV4, &from(&[10, 0]), V4.0, V4.1));
    let masked = expression("bitwise", &[number(1, 1), number(2, 1)]);
    let unknown = [
        payload(1, 12, 4),
        masked,
        compare(0, &[10, 0, 0, 0]),
        counter(0),
    ];
    assert!(sees(IPV4, &unknown, V4.0, V4.1), "not known is a match");
}

#[test]
fn a_rule_that_only_accepts_is_missed_by_nobody() {
    let (accept, drop) = (1, 0);
    assert!(!sees(INET, &[verdict(accept)], V4.0, V4.1));
    assert!(sees(INET, &[verdict(drop)], V4.0, V4.1));
    assert!(!sees(INET, &[to_port(6379), verdict(accept)], V4.0, V4.1));
    assert!(sees(INET, &[expression("log", &[])], V4.0, V4.1));
    let mark = expression("meta", &[number(2, 3), number(3, 1)]);
    assert!(sees(INET, &[mark], V4.0, V4.1));
}

/// As podman and docker add them for each container, by iptables.
#[test]
fn rules_of_containers_are_missed_by_nobody() {
    let (accept, jump) = (1, -3_i32 as u32);
    let from = [payload(1, 12, 4), compare(0, &[127, 0, 0, 1])].concat();
    let state = expression("ct", &[number(1, 1), number(2, 0)]);
    let in_filter: [&[Vec<u8>]; 3] = [
        &[from.clone(), counter(0), verdict(accept)],
        &[from.clone(), state, counter(0), verdict(accept)],
        &[from.clone(), counter(0), verdict(jump)],
    ];
    for rule in in_filter {
        assert!(!sees(IPV4, rule, V4.0, V4.1));
    }
    let xt = |name: &[u8]| expression("target", &[attribute(1, name)]);
    for translation in [expression("masq", &[]), xt(b"MASQUERADE\0"), xt(b"DNAT\0")] {
        assert!(!sees(INET, &[counter(0), translation], V4.0, V4.1));
    }
    assert!(sees(IPV4, &[counter(0), xt(b"LOG\0")], V4.0, V4.1));
    // A mark is set before a translation.
    let mark = expression("meta", &[number(2, 3), number(3, 1)]);
    for (table, family, is_seen) in [
        (b"nat\0", IPV4, false),
        (b"nat\0", IPV6, false),
        (b"nat\0", INET, true),
        (b"raw\0", IPV4, true),
    ] {
        let mut rules = Rules::default();
        let rule = rule_of(table, 6, family, 1, &[mark.clone(), counter(0)].concat());
        take(&mut rules, &[rule, end()]);
        assert_eq!(rules.new.len(), usize::from(is_seen));
    }
}

/// `-i podman0 ! -o podman0 -j ACCEPT` and the like; docker and netavark drop between networks.
#[test]
fn rules_of_containers_that_only_name_devices_are_missed_by_nobody_unless_they_drop() {
    let (drop, accept, jump, back) = (0, 1, -3_i32 as u32, -5_i32 as u32);
    let name = |key, operation| [meta(key), compare(operation, b"podman0\0")].concat();
    let (from, not_to, to) = (name(6, 0), name(7, 1), name(7, 0));
    // Between two namespaces: devices are not known.
    let crosses = |rule: &[Vec<u8>]| {
        let mut rules = Rules::default();
        take(&mut rules, &[added(IPV4, 1, rule), end()]);
        rules.see(&tuple(V4.0, V4.1), None)
    };
    for on in [accept, jump, back] {
        let rule = [from.clone(), not_to.clone(), counter(0), verdict(on)];
        assert!(!crosses(&rule) && !sees(IPV4, &rule, V4.0, V4.1));
    }
    let rule = [to, counter(0), verdict(drop)];
    assert!(crosses(&rule), "it may be in its way");
    assert!(!sees(IPV4, &rule, V4.0, V4.1), "not on the loopback device");
}

#[test]
fn a_rule_counts_from_the_end_of_its_transaction_until_it_is_removed() {
    let mut rules = Rules::default();
    let it = [to_port(6379), counter(0)];
    let carrier = tuple(V4.0, V4.1);
    assert!(!take(&mut rules, &[added(INET, 7, &it)]));
    assert!(!rules.see(&carrier, Some(true)));
    assert!(take(&mut rules, &[end()]));
    assert!(rules.see(&carrier, Some(true)));
    assert!(take(&mut rules, &[removed(INET, 7, &it), end()]));
    assert!(!rules.see(&carrier, Some(true)));
}

#[test]
fn rules_that_are_loaded_again_are_not_new() {
    let mut rules = Rules::default();
    let old = |packets| [to_port(6379), counter(packets)];
    let new = [to_port(6379), expression("log", &[])];
    let messages = [
        removed(INET, 7, &old(99)),
        added(INET, 12, &old(0)),
        added(INET, 13, &new),
        end(),
    ];
    assert!(take(&mut rules, &messages));
    assert_eq!(rules.new.len(), 1);
    // And again: the one that is new stays so, and the other stays old.
    let messages = [
        removed(INET, 12, &old(5)),
        removed(INET, 13, &new),
        added(INET, 20, &old(0)),
        added(INET, 21, &new),
        end(),
    ];
    assert!(take(&mut rules, &messages));
    assert_eq!(
        rules.new.keys().map(|place| place.3).collect::<Vec<_>>(),
        [21]
    );
}

#[test]
fn messages_that_are_cut_or_of_others_do_no_harm() {
    let whole = [added(INET, 7, &[to_port(6379), counter(0)]), end()].concat();
    for cut in 0..whole.len() {
        for change in changes(&whole[..cut]) {
            assert!(!matches!(change, Change::End));
        }
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let mut rules = Rules::default();
            for change in changes(&bytes) {
                rules.take(change);
            }
        }
    }
}
