//! The operator's settings of the engine: its link, its addresses, its routes, and the destinations
//! that it serves.
//!
//! These words serve as command line options and, one to a line, as a file:
//!
//! ```text
//!   # the link, and who we are on it
//!   link     tap:toe0            a TAP device of this network namespace
//!   link     tap:toe0@peer       one of the namespace `peer`, as `ip netns` names it
//!   link     packet:eth0         an existing interface: a network card, a veth; also with @peer
//!   link     xdp:eth0            by AF_XDP; frames for other addresses stay with the kernel
//!   address  10.84.0.2/24
//!   share    192.0.2.7:80,443     instead of `address`: these ports of the host's own address
//!   outgoing 61000-65535          connections of programs go out from these ports of it
//!   gateway  10.84.0.1
//!   mtu      9000
//!   without  lso                 also: lro, checksum
//!   lro      off                 the same, spelled as a switch; also lso
//!   checksum verify              of those that arrive, here; or trust, off
//!   split-headers off            payload of large frames goes by a buffer of the adapter's
//!   copy-engine worker           payload is copied by a thread of its own, or by a device
//!   copybreak 16384              from so many bytes on
//!   coalesce 50                  after each wake-up, wait so many microseconds for more work
//!   batch    256                 most frames taken before everybody else's turn
//!   quota    32768               most connections of one program at a time
//!   memory   1024                megabytes for bytes in flight, of all connections
//!   window   16                  most megabytes of one connection in flight, each way
//!   congestion cubic             or reno, dctcp, bbr, of new connections
//!   ecn      on                  explicit congestion notification, of new connections
//!   pacing   off                 data in bursts over long paths, too
//!   initial-window 10            segments of the first burst
//!   keepalive 60                 probe remotes that are silent for so many seconds
//!   fast-open on                 payload of SYNs, for programs that ask for it
//!   to 10.85.0.0/16 congestion bbr window 64    for connections there, the last seven otherwise
//!   threads  2                   engine threads, each with a queue of the device
//!   offload  10.84.0.0/24:6379   connections there are the engine's, whoever makes them
//!   host     10.84.0.9           connections there are the kernel's, always
//!   direct   10.84.0.8           connections there use the kernel or shared memory
//! ```

mod checksum;
mod connection;
mod copy_engine;
mod device;
mod draft;
mod error;
mod rule;
mod share;
mod value;
pub mod words;

use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use toehold_channel::offload::{Rule, RuleAction};

pub use self::checksum::Checksum;
pub use self::connection::{ByDestination, ConnectionSettings, FastOpen};
pub use self::copy_engine::CopyEngine;
pub use self::device::{Device, DeviceKind};
pub use self::draft::Draft;
pub use self::error::SettingsError;
pub(crate) use self::rule::{prefix, rule_of, to_sixteen_bytes};
pub use self::share::Share;
pub(super) use self::value::name_of;

/// All settings of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The link's device.
    pub device: Device,
    /// The engine's addresses, each with its prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The host's addresses that the engine shares with the kernel. If there are any, the engine
    /// has no others: `addresses` are these, with the kernel's prefix lengths.
    pub shares: Vec<Share>,
    /// Ports of shared addresses from which connections of programs go out. `None`: such
    /// connections go through the kernel.
    pub outgoing: Option<RangeInclusive<u16>>,
    /// Where everything beyond the link goes; at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// The largest IP packet; the device's own when `None`.
    pub mtu: Option<u16>,
    /// The kernel cuts our segments.
    pub lso: bool,
    /// The kernel passes us unsplit segments.
    pub lro: bool,
    /// The work with checksums. An xdp link does none of it, whatever the setting is.
    pub checksum: Checksum,
    /// Payload of large frames is received straight into the program's ring, and headers apart.
    pub split_headers: bool,
    /// The copy engine for payload that does not arrive where it belongs.
    pub copy_engine: CopyEngine,
    /// Shorter payload is copied at once. `None`: as the copy engine is calibrated.
    pub copybreak: Option<usize>,
    /// The time that the engine waits after a wake-up for more to be done at once.
    pub coalesce: Duration,
    /// Most frames taken off the link before everybody else's turn.
    pub batch: usize,
    /// Most connections of one program at a time: those it made, and those that others made to what
    /// it listens on.
    pub quota: usize,
    /// Most memory of the engine's own for bytes in flight, of all connections together.
    pub memory_bytes: usize,
    /// The settings of new connections.
    pub connections: ByDestination,
    /// Threads of the engine, each with its share of the device's frames.
    pub threads: usize,
    /// Rules before those that follow from the addresses and gateways.
    pub rules: Vec<Rule>,
}

impl Settings {
    /// The rules, and those that follow from the addresses: for programs that ask for the engine,
    /// it serves all destinations that it can reach. This includes its own addresses; such programs
    /// know them and their aliases from the routing page.
    pub fn all_rules(&self) -> Vec<Rule> {
        let on_link =
            |&(ip, bits): &(IpAddr, u8)| rule_of(ip, bits, 0, RuleAction::OffloadOnRequest);
        let beyond = |ip: &IpAddr| rule_of(*ip, 0, 0, RuleAction::OffloadOnRequest);
        let mut rules = self.rules.clone();
        if !self.gateways.is_empty() || self.outgoing.is_some() {
            // "Everything" does not include this host's own addresses.
            let own: [(IpAddr, u8); 4] = [
                ([127, 0, 0, 0].into(), 8),
                (Ipv6Addr::LOCALHOST.into(), 128),
                ([0, 0, 0, 0].into(), 32),
                (Ipv6Addr::UNSPECIFIED.into(), 128),
            ];
            rules.extend(own.map(|(ip, bits)| rule_of(ip, bits, 0, RuleAction::Direct)));
        }
        if self.shares.is_empty() {
            rules.extend(self.addresses.iter().map(on_link));
        } else if self.outgoing.is_some() {
            // The engine would not receive its own frames.
            let own = |share: &Share| rule_of(share.ip, share.alone().1, 0, RuleAction::Direct);
            rules.extend(self.shares.iter().map(own));
            // The kernel knows which of these destinations use the link; it is asked for each
            // connection.
            for everywhere in [IpAddr::from([0; 4]), IpAddr::from([0; 16])] {
                let is_of_family = |share: &Share| share.ip.is_ipv4() == everywhere.is_ipv4();
                if self.shares.iter().any(is_of_family) {
                    rules.push(beyond(&everywhere));
                }
            }
        }
        rules.extend(self.gateways.iter().map(beyond));
        rules
    }
}
