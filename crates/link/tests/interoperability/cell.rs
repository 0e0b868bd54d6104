//! The cells of the matrix: their names, their values, and the amount of work of each.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

/// The engine's role on each connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A link's MTU, and whether segmentation and checksums are offloaded to the other side of the
/// link, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub(crate) mtu: u16,
    pub(crate) offloads: bool,
}

/// The impairment of some frames, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Impairment {
    None,
    Loss { every: u64 },
    Reordering { every: u64 },
    Duplication { every: u64 },
    Corruption { every: u64 },
}

/// The way in which the two programs use their connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pattern {
    /// All bytes, in both directions at once.
    Bulk,
    /// The client sends [`REQUEST_BYTES`] and receives an equal number, again and again.
    Requests,
    /// Connection after connection, [`WORKERS`] at a time.
    Short,
    /// The client sends everything and ends its direction; only then the server begins.
    HalfClose,
    /// As `Bulk`, but the kernel's program does not read until its window has been closed for a
    /// while.
    KernelRests,
    /// As `Bulk`, but the engine's program does not read until its window has been closed for a
    /// while.
    EngineRests,
}

pub(crate) const REQUEST_BYTES: u64 = 64;
/// Short connections at one time.
pub(crate) const WORKERS: usize = 8;

const ROLES: [Role; 2] = [Role::Client, Role::Server];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// 65521 is the most a TAP device takes: 65535 less an Ethernet header.
const LINKS: [Link; 6] = [
    Link {
        mtu: 576,
        offloads: false,
    },
    Link {
        mtu: 1_280,
        offloads: false,
    },
    Link {
        mtu: 1_500,
        offloads: false,
    },
    Link {
        mtu: 9_000,
        offloads: false,
    },
    Link {
        mtu: 1_500,
        offloads: true,
    },
    Link {
        mtu: 65_521,
        offloads: true,
    },
];
const IMPAIRMENTS: [Impairment; 6] = [
    Impairment::None,
    Impairment::Loss { every: 100 },
    Impairment::Loss { every: 20 },
    Impairment::Reordering { every: 10 },
    Impairment::Duplication { every: 10 },
    Impairment::Corruption { every: 20 },
];
const PATTERNS: [Pattern; 6] = [
    Pattern::Bulk,
    Pattern::Requests,
    Pattern::Short,
    Pattern::HalfClose,
    Pattern::KernelRests,
    Pattern::EngineRests,
];

/// One meeting of the engine and the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    pub(crate) role: Role,
    pub(crate) family: Family,
    pub(crate) link: Link,
    pub(crate) impairment: Impairment,
    pub(crate) pattern: Pattern,
}

impl Cell {
    /// The bytes that each side sends on a connection. Links with large frames carry more bytes, so
    /// that there are enough frames to impair.
    pub(crate) fn bytes(&self) -> u64 {
        let frame = if self.link.offloads {
            60_000
        } else {
            u64::from(self.link.mtu)
        };
        match self.pattern {
            Pattern::Bulk => (200 * frame).max(400_000),
            Pattern::Requests => 300 * REQUEST_BYTES,
            Pattern::Short => 700,
            Pattern::HalfClose => (100 * frame).max(300_000),
            // More than the buffers of both sides hold.
            Pattern::KernelRests | Pattern::EngineRests => (20 * frame).max(1_000_000),
        }
    }

    /// The number of connections. A lost SYN costs a wait of one second (RFC 6298): where frames
    /// are lost, fewer connections take equally long.
    pub(crate) fn connections(&self) -> usize {
        match (self.pattern, self.impairment) {
            (Pattern::Short, Impairment::Loss { .. } | Impairment::Corruption { .. }) => 100,
            (Pattern::Short, Impairment::None) => 3_000,
            (Pattern::Short, _) => 1_000,
            _ => 1,
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.connections().min(WORKERS)
    }

    pub(crate) fn engine_address(&self) -> IpAddr {
        self.address(2)
    }

    pub(crate) fn kernel_address(&self) -> IpAddr {
        self.address(1)
    }

    /// An address of the link's network.
    pub(crate) fn address(&self, host: u8) -> IpAddr {
        match self.family {
            Family::V4 => [10, 9, 0, host].into(),
            Family::V6 => [0xfd09, 0, 0, 0, 0, 0, 0, u16::from(host)].into(),
        }
    }

    /// The index of each value in its dimension.
    fn places(&self) -> [usize; 5] {
        fn place<T: PartialEq>(values: &[T], value: &T) -> usize {
            let place = values.iter().position(|one| one == value);
            place.expect("cells are made of these values")
        }
        [
            place(&ROLES, &self.role),
            place(&FAMILIES, &self.family),
            place(&LINKS, &self.link),
            place(&IMPAIRMENTS, &self.impairment),
            place(&PATTERNS, &self.pattern),
        ]
    }

    /// The pairs of values of two dimensions that this cell covers.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let places = self.places();
        (0..places.len()).flat_map(move |a| (0..a).map(move |b| (a, places[a], b, places[b])))
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Client => "client",
            Role::Server => "server",
        };
        let family = match self.family {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        };
        let offloads = if self.link.offloads { "+offloads" } else { "" };
        let impairment = match self.impairment {
            Impairment::None => "intact".to_owned(),
            Impairment::Loss { every } => format!("loss{}", 100 / every),
            Impairment::Reordering { .. } => "reordering".to_owned(),
            Impairment::Duplication { .. } => "duplication".to_owned(),
            Impairment::Corruption { .. } => "corruption".to_owned(),
        };
        let pattern = match self.pattern {
            Pattern::Bulk => "bulk",
            Pattern::Requests => "requests",
            Pattern::Short => "short",
            Pattern::HalfClose => "half-close",
            Pattern::KernelRests => "kernel-rests",
            Pattern::EngineRests => "engine-rests",
        };
        let mtu = self.link.mtu;
        write!(
            f,
            "{role}/{family}/mtu{mtu}{offloads}/{impairment}/{pattern}"
        )
    }
}

/// The whole product. IPv6 has no links below 1280 bytes (RFC 8200 section 5).
pub(crate) fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for role in ROLES {
        for family in FAMILIES {
            for link in LINKS
                .into_iter()
                .filter(|link| family == Family::V4 || link.mtu >= 1_280)
            {
                for impairment in IMPAIRMENTS {
                    for pattern in PATTERNS {
                        cells.push(Cell {
                            role,
                            family,
                            link,
                            impairment,
                            pattern,
                        });
                    }
                }
            }
        }
    }
    cells
}

/// Cells that cover every possible pair of values: each step takes the cell with the most missing
/// pairs.
pub(crate) fn pairwise() -> Vec<Cell> {
    let all = all();
    let mut missing: BTreeSet<_> = all.iter().flat_map(Cell::pairs).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let gain = |cell: &&Cell| cell.pairs().filter(|pair| missing.contains(pair)).count();
        let best = all
            .iter()
            .max_by_key(gain)
            .expect("the product is not empty");
        for pair in best.pairs() {
            missing.remove(&pair);
        }
        chosen.push(*best);
    }
    chosen
}

#[test]
fn the_selection_is_small_and_every_name_is_its_own() {
    let names: BTreeSet<String> = all().iter().map(Cell::to_string).collect();
    assert_eq!(names.len(), 792);
    assert_eq!(all().len(), 792);
    // Two dimensions have six values, so at least 36 cells are needed.
    assert!(
        (36..=48).contains(&pairwise().len()),
        "{}",
        pairwise().len()
    );
}
