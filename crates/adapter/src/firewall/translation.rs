//! Detects whether the kernel translates sources of forwarded connections to an address of this
//! host (masquerade, SNAT).
//!
//! The kernel chooses their ports from all ports, including those in `ip_local_reserved_ports`
//! (`nf_nat_l4proto_unique_tuple`). No socket has such a port, so a search of sockets does not find
//! these connections.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::message::{FAMILY_BYTES, NFTABLES, RULE_EXPRESSIONS};
use super::{DATAGRAM_BYTES_MAX, NFTABLES_GROUP, RECEIVE_BYTES};
use crate::attributes::{MESSAGE_HEADER_BYTES, attribute, attributes, messages, number};

/// The rules of a network namespace that give connections another source.
#[derive(Debug)]
pub(crate) struct Translation {
    /// The socket that reports changes; `None` if the kernel has no nftables.
    changes: Option<OwnedFd>,
    /// A rule of nftables.
    has_rule: bool,
    /// There is a translation table of iptables. The kernel sends no notifications about its rules.
    has_table: bool,
}

impl Translation {
    /// The rules of this thread's network namespace. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// The kernel's, if it does not list its rules.
    pub(crate) fn here() -> io::Result<Translation> {
        let changes = match socket() {
            Ok(socket) => Some(socket),
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => None,
            Err(error) => return Err(error),
        };
        if let Some(socket) = &changes {
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BYTES);
            bind(socket, &SocketAddrNetlink::new(0, NFTABLES_GROUP))?;
        }
        let (has_rule, has_table) = (has_rule()?, has_table());
        Ok(Translation {
            changes,
            has_rule,
            has_table,
        })
    }

    /// Whether there is such a rule.
    pub(crate) fn is_there(&self) -> bool {
        self.has_rule || self.has_table
    }

    /// Readable when rules have changed.
    pub(crate) fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(OwnedFd::as_fd)
    }

    /// Looks again, in this thread's network namespace. If the kernel does not list its rules, a
    /// translation is assumed.
    pub(crate) fn follow(&mut self) {
        let mut has_changed = false;
        if let Some(socket) = &self.changes {
            let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
            loop {
                match recv(socket, &mut datagram[..], RecvFlags::DONTWAIT) {
                    Ok(_) | Err(Errno::NOBUFS) => has_changed = true,
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
        self.has_table = has_table();
        if has_changed {
            self.has_rule = has_rule().unwrap_or(true);
        }
    }
}

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    Ok(socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC,
        Some(NETFILTER),
    )?)
}

/// Whether some rule of nftables gives connections another source.
fn has_rule() -> io::Result<bool> {
    let socket = match socket() {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(false),
        Err(error) => return Err(error),
    };
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let mut question = Vec::new();
    question.extend((QUESTION_BYTES as u32).to_ne_bytes());
    question.extend([GET_RULE, NFTABLES]);
    question.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    question.extend([0; 8]);
    // `struct nfgenmsg`: all families.
    question.extend([0; 4]);
    send(&socket, &question, SendFlags::empty())?;
    let mut is_there = false;
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let (length, _) = recv(&socket, &mut datagram[..], RecvFlags::empty())?;
        for message in messages(&datagram[..length]) {
            let kind = u16::from_ne_bytes([message[4], message[5]]);
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(is_there),
                libc::NLMSG_ERROR => {
                    let error = message.get(MESSAGE_HEADER_BYTES..MESSAGE_HEADER_BYTES + 4);
                    let error = error.and_then(|bytes| bytes.try_into().ok());
                    let error = i32::from_ne_bytes(error.unwrap_or_default());
                    return Err(io::Error::from_raw_os_error(-error));
                }
                _ => {
                    let body = message.get(QUESTION_BYTES..).unwrap_or_default();
                    is_there |= gives_source(body);
                }
            }
        }
    }
}

/// Whether a rule gives connections another source.
fn gives_source(rule: &[u8]) -> bool {
    let expressions = attribute(rule, RULE_EXPRESSIONS).unwrap_or_default();
    attributes(expressions).any(|(_, expression)| {
        let text = |bytes: Option<&[u8]>| {
            let bytes = bytes.unwrap_or_default();
            bytes.split(|byte| *byte == 0).next().map(<[u8]>::to_vec)
        };
        let data = attribute(expression, EXPRESSION_DATA).unwrap_or_default();
        match text(attribute(expression, EXPRESSION_NAME)).as_deref() {
            Some(b"masq") => true,
            Some(b"nat") => number(data, NAT_TYPE) == Some(NAT_SOURCE),
            // A target of iptables, by its name.
            Some(b"target") => {
                let target = text(attribute(data, TARGET_NAME)).unwrap_or_default();
                TARGETS.contains(&&target[..])
            }
            _ => false,
        }
    })
}

/// Whether the legacy iptables (not the variant for nftables) has a table of translations.
fn has_table() -> bool {
    ["ip", "ip6"].iter().any(|family| {
        let tables = fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names"));
        tables.is_ok_and(|tables| tables.lines().any(|table| table == "nat"))
    })
}

const TARGETS: [&[u8]; 3] = [b"MASQUERADE", b"SNAT", b"NETMAP"];

const QUESTION_BYTES: usize = MESSAGE_HEADER_BYTES + FAMILY_BYTES;
/// `NFT_MSG_GETRULE`.
const GET_RULE: u8 = 7;
/// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`.
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_NAT_TYPE`, `NFT_NAT_SNAT`, `NFTA_TARGET_NAME`.
const NAT_TYPE: u16 = 1;
const NAT_SOURCE: u32 = 0;
const TARGET_NAME: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + content.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn rule(expressions: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let one = |(name, data): &(&str, Vec<u8>)| {
            let name = attribute(EXPRESSION_NAME, format!("{name}\0").as_bytes());
            attribute(1, &[name, attribute(EXPRESSION_DATA, data)].concat())
        };
        let all: Vec<u8> = expressions.iter().flat_map(one).collect();
        attribute(RULE_EXPRESSIONS, &all)
    }

    #[test]
    fn rules_that_give_another_source_are_known() {
        let nat = |kind: u32| attribute(NAT_TYPE, &kind.to_be_bytes());
        let target = |name: &str| attribute(TARGET_NAME, format!("{name}\0\0").as_bytes());
        for (is_one, rule) in [
            (true, rule(&[("meta", Vec::new()), ("masq", Vec::new())])),
            (true, rule(&[("nat", nat(NAT_SOURCE))])),
            (false, rule(&[("nat", nat(1))])),
            (true, rule(&[("target", target("MASQUERADE"))])),
            (false, rule(&[("target", target("DNAT"))])),
            (false, rule(&[("counter", Vec::new())])),
            (false, Vec::new()),
        ] {
            assert_eq!(gives_source(&rule), is_one, "{rule:?}");
            for length in 0..rule.len() {
                gives_source(&rule[..length]);
            }
        }
    }
}
