//! Firewall rules that are added while the adapter runs: by nftables(8), and by iptables(8) if it
//! uses nftables.
//!
//! The kernel reports every change of its rules to listeners that had `CAP_NET_ADMIN` when they
//! joined the group (`NFNLGRP_NFTABLES`, net/netfilter/nf_tables_api.c). A rule that exists when a
//! connection begins sees the connection's handshake, which is enough for it. A rule that is added
//! later, to count, to log or to drop, would see no packet of a connection in shared memory.
//!
//! The adapter compares a rule's conditions about addresses with those of a carrier, and assumes
//! that all other conditions hold. These rules have no effect that an operator could miss:
//!
//! - a rule that only accepts, or leads to other rules, even if it also counts: with iptables every
//!   rule counts, and container engines add such rules for each container;
//! - a rule that translates addresses, because it sees only the first packet of a connection;
//! - a rule that replaces an equal rule in one transaction: a firewall that reloads its rules
//!   changes nothing.

mod message;
mod rule;
mod translation;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

use self::message::Change;
use self::rule::Rule;
pub(crate) use self::translation::Translation;
use crate::registry::Tuple;

/// The rules that were added.
#[derive(Debug)]
pub(crate) struct Firewall {
    socket: OwnedFd,
    rules: Rules,
}

impl Firewall {
    /// Begins to listen, in the adapter's network namespace.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; `EPROTONOSUPPORT` where the kernel has no nftables.
    pub(crate) fn open() -> io::Result<Firewall> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, kind, flags, Some(NETFILTER))?;
        // A larger buffer loses fewer changes: a long list of rules may be loaded at once.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES);
        bind(&socket, &SocketAddrNetlink::new(0, NFTABLES_GROUP))?;
        Ok(Firewall {
            socket,
            rules: Rules::default(),
        })
    }

    /// Readable when there are changes.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the changes that have come. True when a different set of carriers may be seen now.
    pub(crate) fn learn(&mut self) -> bool {
        let mut has_changed = false;
        let mut datagram = vec![0u8; DATAGRAM_BYTES_MAX];
        loop {
            match recvfrom(&self.socket, &mut datagram[..], RecvFlags::DONTWAIT) {
                Ok((length, _, sender)) => {
                    let sender = sender.and_then(|it| SocketAddrNetlink::try_from(it).ok());
                    if sender.is_some_and(|sender| sender.pid() == 0) {
                        let changes = message::changes(&datagram[..length]);
                        has_changed |= changes.fold(false, |so_far, change| {
                            let changes = self.rules.take(change);
                            so_far || changes
                        });
                    }
                }
                // Some changes were lost (netlink(7)), perhaps the removal of a rule, which would
                // then count as new for ever.
                Err(Errno::NOBUFS) => has_changed |= self.rules.forget(),
                Err(Errno::INTR) => {}
                Err(_) => return has_changed,
            }
        }
    }

    /// Number of new rules that have an effect.
    pub(crate) fn count(&self) -> usize {
        self.rules.new.len()
    }

    /// Whether a new rule would see the packets of a carrier on the loopback device.
    pub(crate) fn sees(&self, tuple: &Tuple) -> bool {
        self.rules.see(tuple, Some(true))
    }

    /// Whether a new rule may see the packets of a carrier between two namespaces, whose devices
    /// are not known.
    pub(crate) fn sees_crossing(&self, tuple: &Tuple) -> bool {
        self.rules.see(tuple, None)
    }
}

/// The place of a rule: family, table, chain and handle.
type Place = (u8, Vec<u8>, Vec<u8>, u64);

/// The rules as transactions leave them.
#[derive(Debug, Default)]
struct Rules {
    new: BTreeMap<Place, Rule>,
    /// The changes of a transaction that has not ended yet.
    pending: Vec<Change>,
}

impl Rules {
    /// Takes a change. True at the end of a transaction after which a different set of carriers may
    /// be seen.
    fn take(&mut self, change: Change) -> bool {
        if !matches!(change, Change::End) {
            if self.pending.len() < CHANGES_MAX {
                self.pending.push(change);
            }
            return false;
        }
        let mut has_changed = false;
        // Removed rules that are older than the adapter, by their texts.
        let mut old: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let pending = std::mem::take(&mut self.pending);
        for change in &pending {
            if let Change::Removed(place, rule) = change {
                match self.new.remove(place) {
                    Some(_) => has_changed = true,
                    None => *old.entry(rule.text.clone()).or_default() += 1,
                }
            }
        }
        for change in pending {
            let Change::Added(place, rule) = change else {
                continue;
            };
            if let Some(count) = old.get_mut(&rule.text).filter(|count| **count > 0) {
                *count -= 1;
            } else if rule.has_effect && self.new.len() < CHANGES_MAX {
                self.new.insert(place, rule);
                has_changed = true;
            }
        }
        has_changed
    }

    fn forget(&mut self) -> bool {
        self.pending.clear();
        !std::mem::take(&mut self.new).is_empty()
    }

    fn see(&self, tuple: &Tuple, on_loopback: Option<bool>) -> bool {
        let Some(ends) = tuple.spoken() else {
            return false;
        };
        let mut rules = self.new.values();
        rules.any(|rule| rule.may_match(ends, on_loopback))
    }
}

/// `1 << (NFNLGRP_NFTABLES - 1)` (include/uapi/linux/netfilter/nfnetlink.h).
const NFTABLES_GROUP: u32 = 1 << 6;
/// A datagram has the changes of several rules (`nft_commit_notify`: up to `NLMSG_GOODSIZE`, or one
/// rule that is larger).
const DATAGRAM_BYTES_MAX: usize = 128 << 10;
const RECEIVE_BYTES: usize = 4 << 20;
/// Changes of one transaction, and new rules, that are kept.
const CHANGES_MAX: usize = 16_384;

#[cfg(test)]
mod tests;
