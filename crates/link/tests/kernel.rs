//! The engine against this machine's kernel: the kernel's TCP is the oracle. Skips, loudly, where no
//! network namespace or TAP device can be made.

mod meeting;

use meeting::{Case, Pattern, Trouble, meet};

/// The most a TAP device takes: 65535 less an Ethernet header.
const MTU_MAX: u16 = 65_521;

/// Every combination of role, family, MTU and offloads.
#[test]
fn engine_and_kernel_understand_each_other() {
    for mtu in [576, 1_280, 1_500, 9_000, MTU_MAX] {
        for (engine_connects, is_v6, offloads) in combinations() {
            if is_v6 && mtu < 1_280 {
                continue; // RFC 8200 section 5.
            }
            if mtu == MTU_MAX && !offloads {
                continue;
            }
            let trouble = Trouble::None;
            meet(Case {
                engine_connects,
                is_v6,
                mtu,
                offloads,
                trouble,
                bytes: 1_000_000,
                pattern: Pattern::Bulk,
            });
        }
    }
}

/// The same through links that lose, repeat, reorder and damage.
#[test]
fn engine_and_kernel_get_on_in_trouble() {
    let troubles = [
        Trouble::Loss { every: 100 },
        Trouble::Loss { every: 20 },
        Trouble::Duplication { every: 10 },
        Trouble::Reordering { every: 10 },
        Trouble::Corruption { every: 20 },
    ];
    for trouble in troubles {
        for (engine_connects, is_v6, offloads) in combinations() {
            if offloads && matches!(trouble, Trouble::Corruption { .. }) {
                continue; // There is no checksum that would notice.
            }
            meet(Case {
                engine_connects,
                is_v6,
                mtu: 1_500,
                offloads,
                trouble,
                bytes: 200_000,
                pattern: Pattern::Bulk,
            });
        }
    }
}

fn combinations() -> impl Iterator<Item = (bool, bool, bool)> {
    (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
}

/// Every pattern of use, in every combination, with small packets and large.
#[test]
fn engine_and_kernel_use_connections_alike() {
    let patterns = [
        (Pattern::Requests { each: 64 }, 64 * 300),
        (Pattern::Short { connections: 100 }, 700),
        (Pattern::HalfClose, 300_000),
        (Pattern::KernelRests, 3_000_000),
        (Pattern::EngineRests, 3_000_000),
    ];
    for (pattern, bytes) in patterns {
        for (engine_connects, is_v6, offloads) in combinations() {
            meet(Case {
                engine_connects,
                is_v6,
                mtu: 1_500,
                offloads,
                trouble: Trouble::None,
                bytes,
                pattern,
            });
        }
    }
}

/// Short connections through a link that loses, and thousands of them through one that does not.
#[test]
fn thousands_of_short_connections() {
    for engine_connects in [false, true] {
        for (connections, trouble) in [
            (3_000, Trouble::None),
            (40, Trouble::Loss { every: 20 }),
            (40, Trouble::Duplication { every: 3 }),
        ] {
            meet(Case {
                engine_connects,
                is_v6: false,
                mtu: 1_500,
                offloads: false,
                trouble,
                bytes: 200,
                pattern: Pattern::Short { connections },
            });
        }
    }
}
