//! The registry's types: its inputs, its answers, and its records.

use super::{
    CHANNELS_PER_PAIR_MAX, ENDS_PER_PROCESS_MAX, ENDS_PER_USER_MAX, PENDING_PER_PROCESS_MAX,
};
use crate::slots::{Forks, Slots};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use toehold_channel::rendezvous::mapped;
use toehold_channel::table::Reason;

/// One client: one socket over which one process said hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// One connection table: one fork family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableId(pub u64);

/// One channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

/// One pair of processes, in the order of their sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairId(pub u64);

/// One end of a connection: one use of one table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The family's table.
    pub table: TableId,
    /// The entry in it.
    pub entry: u32,
    /// Which use of that entry.
    pub generation: u32,
}

impl End {
    pub(super) fn key(self) -> EntryKey {
        EntryKey {
            table: self.table,
            entry: self.entry,
        }
    }
}

/// The address of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// Of TCP: an address and a port; IPv4 as IPv4-mapped IPv6.
    Internet {
        /// The address's bytes in network order.
        ip: [u8; 16],
        /// The port in host order.
        port: u16,
    },
    /// Of a Unix socket: its inode, because many sockets may share one name.
    Unix {
        /// The inode.
        inode: u32,
    },
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        let ip = match address.ip() {
            IpAddr::V4(v4) => mapped(v4.octets()),
            IpAddr::V6(v6) => v6.octets(),
        };
        let port = address.port();
        Address::Internet { ip, port }
    }
}

/// The name of a connection, seen from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    /// The network namespace: the same addresses elsewhere are other hosts.
    pub netns: u64,
    /// This end.
    pub local: Address,
    /// The other end.
    pub remote: Address,
}

impl Tuple {
    /// Local and remote address of a TCP connection as a person writes them: IPv4 as IPv4.
    pub fn spoken(self) -> Option<(SocketAddr, SocketAddr)> {
        let spoken = |address: Address| match address {
            Address::Internet { ip, port } => {
                let ip = IpAddr::V6(Ipv6Addr::from(ip)).to_canonical();
                Some(SocketAddr::new(ip, port))
            }
            Address::Unix { .. } => None,
        };
        Some((spoken(self.local)?, spoken(self.remote)?))
    }

    /// This connection seen from its other end.
    pub fn mirrored(self) -> Tuple {
        Tuple {
            netns: self.netns,
            local: self.remote,
            remote: self.local,
        }
    }
}

/// The first sequence numbers of a connection, as one of its ends has them. The kernel knows them,
/// and they never change. The end that opened the connection counts its SYN as a byte sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Numbers {
    /// The first that it sent.
    pub sent: u32,
    /// The first that it received.
    pub received: u32,
}

impl Numbers {
    /// Whether these numbers and `other` can belong to the two ends of one connection.
    pub fn fit(&self, other: &Numbers) -> bool {
        self.of_partner().contains(other)
    }

    /// The numbers of the other end: if it accepted, if it opened, if both opened at a time.
    pub fn of_partner(&self) -> [Numbers; 3] {
        let numbers = |sent, received| Numbers { sent, received };
        let before = self.received.wrapping_sub(1);
        let after = self.sent.wrapping_add(1);
        [
            numbers(self.received, after),
            numbers(before, self.sent),
            numbers(before, after),
        ]
    }
}

/// A process that said hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// The user it counts as: its own or, where users are kept apart and it came through its
    /// family, that family's.
    pub uid: u32,
    /// Its family's table.
    pub table: TableId,
}

/// A request for a partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The client that asks.
    pub client: ClientId,
    /// The entry in its table.
    pub entry: u32,
    /// Which use of the entry.
    pub generation: u32,
    /// The connection.
    pub tuple: Tuple,
    /// The socket's cookie, or 0.
    pub cookie: u64,
    /// Its sequence numbers, where the caller can read them.
    pub numbers: Option<Numbers>,
    /// A waiting end that the caller has proved to be the other end, with any tuple.
    pub partner: Option<End>,
    /// Of a Unix socket: the user at the other end, at the time when that end connected or
    /// listened.
    pub peer_uid: Option<u32>,
    /// Whether this end accepted the connection; it connected otherwise.
    pub accepted: bool,
    /// The inode of the listening socket that accepted the connection, if its process has that
    /// socket; otherwise 0.
    pub listener: u64,
    /// The number of times that the process has forked.
    pub forks: u32,
    /// Whether it needs the slab's descriptor even if it was given that before.
    pub wants_slab: bool,
}

/// The result of an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request is remembered; the reason says why there is no channel yet.
    Waiting(Reason),
    /// The request is not remembered.
    Refused(Reason),
    /// There is a channel.
    Matched(Match),
}

/// Two ends that are to be offered a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The new channel.
    pub channel: ChannelId,
    /// The pair it belongs to.
    pub pair: PairId,
    /// Its number in that pair.
    pub slot: u32,
    /// The number of times that the process of each side has forked. A slab with other counts must
    /// not be used.
    pub forks: Forks,
    /// The ends that are offered side 0 and side 1.
    pub sides: [Introduction; 2],
}

impl Match {
    /// Whether this is the first channel of its pair.
    pub fn is_first_of_pair(&self) -> bool {
        self.sides[0].pair_attached
    }
}

/// One side of a [`Match`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The client that gets the offer.
    pub client: ClientId,
    /// For which end.
    pub end: End,
    /// Whether the offer includes the pair's memory: it is this process's first offer of the pair.
    pub pair_attached: bool,
    /// Whether the offer includes the slab even if this process got it before.
    pub wants_slab: bool,
}

/// An end or a channel that the registry no longer knows; its memory need not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A channel whose last end is gone.
    Channel(ChannelId),
    /// A pair that will have no further channel.
    Pair(PairId),
}

/// The channel that an end of a client has, from [`super::Registry::resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The channel.
    pub channel: ChannelId,
    /// The pair it belongs to.
    pub pair: PairId,
    /// Its number in that pair.
    pub slot: u32,
    /// Which side the end is.
    pub side: u32,
    /// The client that owned the end until now.
    pub before: ClientId,
    /// Whether the asking process differs from the process that got the offer. The channel's slab
    /// is then closed.
    pub is_by_another: bool,
}

/// The processes that may be introduced to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Processes of one user.
    #[default]
    SameUser,
    /// All processes that can connect to the adapter's socket.
    AnyUser,
}

/// The amount that the adapter keeps for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Channels in all: each has a region.
    pub regions_max: usize,
    /// Ends one process can have registered.
    pub ends_per_process_max: usize,
    /// Ends one process can have waiting.
    pub pending_per_process_max: usize,
    /// Channels in one pair.
    pub channels_per_pair_max: u32,
    /// The limits of one user, over all its processes.
    pub user: UserLimits,
}

/// The limits of the processes of one user together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Ends registered.
    pub ends_max: usize,
    /// Ends waiting.
    pub pending_max: usize,
    /// Ends in channels. A channel between two processes of one user has two of its ends.
    pub in_channels_max: usize,
}

impl UserLimits {
    /// No limits besides those of each process: for an adapter that serves one user.
    pub const NONE: UserLimits = UserLimits {
        ends_max: usize::MAX,
        pending_max: usize::MAX,
        in_channels_max: usize::MAX,
    };

    /// The system adapter's: a quarter of the channels, each with both its ends.
    pub fn of_system(regions_max: usize) -> UserLimits {
        UserLimits {
            ends_max: ENDS_PER_USER_MAX,
            pending_max: PENDING_PER_PROCESS_MAX,
            in_channels_max: (regions_max / 2).max(2),
        }
    }
}

impl Limits {
    /// The shipped limits, with `regions_max` channels in all.
    pub fn with_regions(regions_max: usize) -> Limits {
        Limits {
            regions_max,
            ends_per_process_max: ENDS_PER_PROCESS_MAX,
            pending_per_process_max: PENDING_PER_PROCESS_MAX,
            channels_per_pair_max: CHANNELS_PER_PAIR_MAX,
            user: UserLimits::NONE,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryKey {
    pub(super) table: TableId,
    pub(super) entry: u32,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) process: Process,
    pub(super) connected: bool,
    /// Entries of its table whose end it owns.
    pub(super) entries: BTreeSet<u32>,
    /// Invariant: how many of `entries` are pending.
    pub(super) pending: usize,
}

/// The use of the processes of one user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UserUse {
    /// Invariant: how many entries its clients own.
    pub(super) ends: usize,
    /// Invariant: how many of them are pending. The others are in channels.
    pub(super) pending: usize,
}

impl UserUse {
    pub(super) fn in_channels(self) -> usize {
        self.ends - self.pending
    }
}

impl Client {
    /// Its ends, collected because handling one changes the set.
    pub(super) fn keys(&self) -> Vec<EntryKey> {
        let table = self.process.table;
        let entries = self.entries.iter();
        entries.map(|&entry| EntryKey { table, entry }).collect()
    }
}

#[derive(Debug)]
pub(super) struct Registered {
    pub(super) end: End,
    pub(super) client: ClientId,
    pub(super) tuple: Tuple,
    pub(super) cookie: u64,
    pub(super) numbers: Option<Numbers>,
    /// The other end, while both wait to be introduced. Invariant: the other end's `met` names this
    /// end.
    pub(super) met: Option<EntryKey>,
    pub(super) peer_uid: Option<u32>,
    pub(super) accepted: bool,
    pub(super) listener: u64,
    pub(super) forks: u32,
    pub(super) wants_slab: bool,
    pub(super) state: RequestState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    Pending(Tuple),
    /// The channel and the side in it.
    Channel(ChannelId, usize),
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) pair: PairId,
    pub(super) slot: u32,
    /// Invariant: not both gone.
    pub(super) sides: [Option<EntryKey>; 2],
}

#[derive(Debug)]
pub(super) struct Pair {
    /// The client of side 0, the client of side 1.
    pub(super) clients: [ClientId; 2],
    pub(super) slots: Slots,
}
