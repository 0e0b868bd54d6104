//! Messages of the kernel about changes of its rules (include/uapi/linux/netfilter/nf_tables.h).

use super::Place;
use super::rule::Rule;
use crate::attributes::{MESSAGE_HEADER_BYTES, attribute, messages};

/// A change of the kernel's rules.
#[derive(Debug)]
pub(super) enum Change {
    Added(Place, Rule),
    Removed(Place, Rule),
    /// The end of a transaction, which all changes before it belong to.
    End,
}

/// The changes in a datagram.
pub(super) fn changes(datagram: &[u8]) -> impl Iterator<Item = Change> + '_ {
    messages(datagram).filter_map(change)
}

fn change(message: &[u8]) -> Option<Change> {
    let [kind, subsystem] = message.get(4..6)?.try_into().ok()?;
    if subsystem != NFTABLES {
        return None;
    }
    let family = *message.get(MESSAGE_HEADER_BYTES)?;
    let body = message.get(MESSAGE_HEADER_BYTES + FAMILY_BYTES..)?;
    match kind {
        NEW_RULE => rule(family, body).map(|(place, rule)| Change::Added(place, rule)),
        REMOVED_RULE => rule(family, body).map(|(place, rule)| Change::Removed(place, rule)),
        NEW_GENERATION => Some(Change::End),
        _ => None,
    }
}

fn rule(family: u8, body: &[u8]) -> Option<(Place, Rule)> {
    let table = attribute(body, RULE_TABLE)?.to_vec();
    let chain = attribute(body, RULE_CHAIN)?.to_vec();
    let handle = attribute(body, RULE_HANDLE)?.try_into().ok()?;
    let expressions = attribute(body, RULE_EXPRESSIONS).unwrap_or_default();
    let rule = Rule::read(family, [&table, &chain], expressions);
    Some(((family, table, chain, u64::from_be_bytes(handle)), rule))
}

/// `struct nfgenmsg`, whose first byte is the family.
pub(super) const FAMILY_BYTES: usize = 4;
/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const NFTABLES: u8 = 10;
/// `NFT_MSG_NEWRULE`, `NFT_MSG_DELRULE`, `NFT_MSG_NEWGEN`.
const NEW_RULE: u8 = 6;
const REMOVED_RULE: u8 = 8;
const NEW_GENERATION: u8 = 15;
/// `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_RULE_HANDLE`, `NFTA_RULE_EXPRESSIONS`.
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
