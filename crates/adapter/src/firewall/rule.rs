//! One rule: the packets that it may match, and whether its effect matters.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::attributes::{attribute, attributes, number};

/// The parts of a rule that concern carriers.
#[derive(Debug, Default)]
pub(super) struct Rule {
    /// The rule without its place and its counts: two rules with the same text are equal.
    pub(super) text: Vec<u8>,
    /// The rule does more than looking at a packet, accepting it, leading to other rules and
    /// counting. Counting alone has no effect here, because every rule of iptables counts.
    pub(super) has_effect: bool,
    /// All have to hold.
    conditions: Vec<Condition>,
}

/// A condition on a packet of a carrier, in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// The packet is IPv4, or it is IPv6.
    Family { is_v4: bool },
    /// The packet passes the loopback device, or it does not.
    Loopback(bool),
    /// One end of the packet has this port.
    Port(u16),
    /// The address of one end begins with these bytes: an IPv4 address, or an IPv6 address.
    Address { is_v4: bool, start: Vec<u8> },
    /// Never true: the rule is for packets of another protocol.
    Never,
}

/// The content of a register, if a condition can be made of it.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// An interface's name, or its index.
    Interface {
        is_name: bool,
    },
    Family,
    Protocol,
    Port,
    Address {
        is_v4: bool,
    },
}

impl Rule {
    /// Reads the expressions of a rule of a table and a chain.
    pub(super) fn read(family: u8, place: [&[u8]; 2], expressions: &[u8]) -> Rule {
        let mut rule = Rule {
            text: [&[family], place[0], place[1]].concat(),
            ..Rule::default()
        };
        match family {
            OF_INET => {}
            OF_IPV4 => rule.conditions.push(Condition::Family { is_v4: true }),
            OF_IPV6 => rule.conditions.push(Condition::Family { is_v4: false }),
            // The families for ARP, for bridges, and for devices before packets reach IP.
            _ => rule.conditions.push(Condition::Never),
        }
        let (mut registers, mut leads, mut counts) = (BTreeMap::new(), false, false);
        // A translation sees only the first packet of a connection; its result holds for all
        // others.
        let mut is_of_first = is_iptables_nat(family, place[0]);
        for (_, expression) in attributes(expressions) {
            let name = attribute(expression, EXPRESSION_NAME).unwrap_or_default();
            let name = name.strip_suffix(&[0]).unwrap_or(name);
            let data = attribute(expression, EXPRESSION_DATA).unwrap_or_default();
            rule.text.extend_from_slice(name);
            if !COUNTING.contains(&name) {
                rule.text.extend_from_slice(data);
            }
            rule.has_effect |= has_effect(name, data);
            leads |= name == b"immediate" && is_led_on(data);
            counts |= matches!(name, b"counter" | b"last");
            is_of_first |= is_translation(name, data);
            match name {
                b"meta" | b"payload" => load(name, data, &mut registers),
                b"cmp" => rule.conditions.extend(compare(data, &registers)),
                // The expression may have changed any register, so their contents are unknown.
                _ => registers.clear(),
            }
        }
        rule.has_effect = (rule.has_effect || counts && !leads) && !is_of_first;
        rule
    }

    /// Whether the rule may match a packet between two ends, in either direction.
    /// `on_loopback` is `None` if unknown.
    pub(super) fn may_match(
        &self,
        ends: (SocketAddr, SocketAddr),
        on_loopback: Option<bool>,
    ) -> bool {
        let ends = [ends.0, ends.1];
        self.conditions.iter().all(|condition| match condition {
            Condition::Family { is_v4 } => ends[0].is_ipv4() == *is_v4,
            Condition::Loopback(wanted) => on_loopback.is_none_or(|is| is == *wanted),
            Condition::Port(port) => ends.iter().any(|end| end.port() == *port),
            Condition::Address { is_v4, start } => {
                ends[0].is_ipv4() == *is_v4
                    && ends.iter().any(|end| match end.ip() {
                        IpAddr::V4(ip) => ip.octets().starts_with(start),
                        IpAddr::V6(ip) => ip.octets().starts_with(start),
                    })
            }
            Condition::Never => false,
        })
    }
}

/// Whether this is the table in which iptables has its translations. That table has no other
/// chains.
fn is_iptables_nat(family: u8, table: &[u8]) -> bool {
    matches!(family, OF_IPV4 | OF_IPV6) && table.strip_suffix(&[0]).unwrap_or(table) == b"nat"
}

/// Whether an expression translates addresses. The kernel has such expressions only in chains that
/// see the first packet of a connection.
fn is_translation(name: &[u8], data: &[u8]) -> bool {
    match name {
        b"masq" | b"nat" | b"redir" => true,
        b"target" => {
            let target = attribute(data, TARGET_NAME).unwrap_or_default();
            TRANSLATING.contains(&target.strip_suffix(&[0]).unwrap_or(target))
        }
        _ => false,
    }
}

/// The verdict of an expression.
fn verdict(data: &[u8]) -> Option<u32> {
    let data = attribute(data, IMMEDIATE_DATA)?;
    number(attribute(data, DATA_VERDICT)?, VERDICT_CODE)
}

/// Whether a packet is accepted, or goes on to other rules.
fn is_led_on(data: &[u8]) -> bool {
    verdict(data).is_some_and(|code| LEADING.contains(&code))
}

fn has_effect(name: &[u8], data: &[u8]) -> bool {
    match name {
        b"immediate" => verdict(data) == Some(VERDICT_DROP),
        // The purpose of a counter follows from the rest of the rule.
        b"counter" | b"last" => false,
        // With a source, these expressions set a value instead of looking.
        b"meta" => attribute(data, META_SOURCE).is_some(),
        b"payload" => attribute(data, PAYLOAD_SOURCE).is_some(),
        b"ct" => attribute(data, CT_SOURCE).is_some(),
        _ => !LOOKING.contains(&name),
    }
}

/// Notes the content of the register that an expression loads.
fn load(name: &[u8], data: &[u8], registers: &mut BTreeMap<u32, Field>) {
    // Both have it as their first attribute.
    let Some(register) = number(data, LOADED_REGISTER) else {
        return;
    };
    let field = match name {
        b"meta" => match number(data, META_KEY) {
            Some(META_IN | META_OUT) => Some(Field::Interface { is_name: false }),
            Some(META_IN_NAME | META_OUT_NAME) => Some(Field::Interface { is_name: true }),
            Some(META_FAMILY) => Some(Field::Family),
            Some(META_PROTOCOL) => Some(Field::Protocol),
            _ => None,
        },
        _ => {
            let [base, offset, length] = [PAYLOAD_BASE, PAYLOAD_OFFSET, PAYLOAD_LENGTH]
                .map(|wanted| number(data, wanted).unwrap_or(u32::MAX));
            match (base, offset, length) {
                (BASE_NETWORK, 9, 1) => Some(Field::Protocol),
                (BASE_NETWORK, 12 | 16, 1..=4) => Some(Field::Address { is_v4: true }),
                (BASE_NETWORK, 8 | 24, 1..=16) => Some(Field::Address { is_v4: false }),
                (BASE_TRANSPORT, 0 | 2, 2) => Some(Field::Port),
                _ => None,
            }
        }
    };
    match field {
        Some(field) => registers.insert(register, field),
        None => registers.remove(&register),
    };
}

/// The condition of a comparison with a value, if it concerns carriers.
fn compare(data: &[u8], registers: &BTreeMap<u32, Field>) -> Option<Condition> {
    let field = registers.get(&number(data, COMPARE_REGISTER)?)?;
    let value = attribute(attribute(data, COMPARE_DATA)?, DATA_VALUE)?;
    let is_equal = match number(data, COMPARE_OPERATION)? {
        COMPARE_EQUAL => true,
        COMPARE_UNEQUAL => false,
        _ => return None,
    };
    match field {
        Field::Interface { is_name } => {
            let is_loopback = match is_name {
                true => is_loopbacks_name(value),
                false => value == LOOPBACK_INDEX.to_ne_bytes(),
            };
            match (is_loopback, is_equal) {
                (true, _) => Some(Condition::Loopback(is_equal)),
                (false, true) => Some(Condition::Loopback(false)),
                (false, false) => None,
            }
        }
        Field::Family => {
            let is_v4 = value == [OF_IPV4];
            Some(Condition::Family {
                is_v4: is_v4 == is_equal,
            })
        }
        Field::Protocol => {
            let is_tcp = value == [libc::IPPROTO_TCP as u8];
            (is_tcp != is_equal).then_some(Condition::Never)
        }
        // "Not this port" says nothing, because a packet has two ports.
        Field::Port if !is_equal => None,
        Field::Port => Some(Condition::Port(u16::from_be_bytes(value.try_into().ok()?))),
        Field::Address { .. } if !is_equal => None,
        Field::Address { is_v4 } => Some(Condition::Address {
            is_v4: *is_v4,
            start: value.to_vec(),
        }),
    }
}

/// Whether an interface's name, or the start of names, is the loopback device's.
fn is_loopbacks_name(value: &[u8]) -> bool {
    match value.iter().position(|byte| *byte == 0) {
        Some(end) => &value[..end] == LOOPBACK_NAME,
        None => LOOPBACK_NAME.starts_with(value),
    }
}

/// Expressions that look at a packet, or lead to other rules.
const LOOKING: [&[u8]; 14] = [
    b"bitwise",
    b"byteorder",
    b"cmp",
    b"ct",
    b"exthdr",
    b"fib",
    b"hash",
    b"lookup",
    b"match",
    b"numgen",
    b"range",
    b"rt",
    b"socket",
    b"tunnel",
];
/// Expressions whose contents are counts.
const COUNTING: [&[u8]; 5] = [b"connlimit", b"counter", b"last", b"limit", b"quota"];
const LOOPBACK_NAME: &[u8] = b"lo";
/// `LOOPBACK_IFINDEX`.
const LOOPBACK_INDEX: u32 = 1;
/// `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6` (include/uapi/linux/netfilter.h).
const OF_INET: u8 = 1;
const OF_IPV4: u8 = 2;
const OF_IPV6: u8 = 10;
/// The rest is from include/uapi/linux/netfilter/nf_tables.h: `NFTA_EXPR_…`.
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_META_DREG`, `NFTA_PAYLOAD_DREG`.
const LOADED_REGISTER: u16 = 1;
/// `NFTA_META_…`, and its keys `NFT_META_…`.
const META_KEY: u16 = 2;
const META_SOURCE: u16 = 3;
const META_IN: u32 = 4;
const META_OUT: u32 = 5;
const META_IN_NAME: u32 = 6;
const META_OUT_NAME: u32 = 7;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
/// `NFTA_PAYLOAD_…`, and its bases `NFT_PAYLOAD_…_HEADER`.
const PAYLOAD_BASE: u16 = 2;
const PAYLOAD_OFFSET: u16 = 3;
const PAYLOAD_LENGTH: u16 = 4;
const PAYLOAD_SOURCE: u16 = 5;
const BASE_NETWORK: u32 = 1;
const BASE_TRANSPORT: u32 = 2;
/// `NFTA_CT_SREG`.
const CT_SOURCE: u16 = 4;
/// `NFTA_CMP_…`, and its operations.
const COMPARE_REGISTER: u16 = 1;
const COMPARE_OPERATION: u16 = 2;
const COMPARE_DATA: u16 = 3;
const COMPARE_EQUAL: u32 = 0;
const COMPARE_UNEQUAL: u32 = 1;
/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_…`, `NFTA_VERDICT_CODE`, `NF_DROP`.
const IMMEDIATE_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_DROP: u32 = 0;
/// `NF_ACCEPT`, `NFT_JUMP`, `NFT_GOTO`, `NFT_RETURN`.
const LEADING: [u32; 4] = [1, -3_i32 as u32, -4_i32 as u32, -5_i32 as u32];
/// `NFTA_TARGET_NAME` (nf_tables_compat.h), and names of iptables'.
const TARGET_NAME: u16 = 1;
const TRANSLATING: [&[u8]; 5] = [b"DNAT", b"MASQUERADE", b"NETMAP", b"REDIRECT", b"SNAT"];
