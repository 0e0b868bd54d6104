//! The routing page. An adapter with a TCP engine shows it to its clients: which destinations the
//! engine serves, where its relay listens, and the true addresses behind each carrier.
//!
//! ```text
//!   page 0        RoutingPage: identity, the relay, rules
//!   then          connected[65536]   by the program's port: carriers that lead to the relay
//!                 accepted[65536]    by the adapter's port: carriers that come from it
//!                 accepted_v6[65536] as accepted, for listeners that take IPv6 only, from ::1
//!                 cookies[4096]      by a hash: remotes that have given a Fast Open cookie
//! ```
//!
//! The host's kernel does not have the engine's own addresses. Each of them has a *loopback alias*,
//! an address on loopback. When a program binds the engine's address, its socket is bound to the
//! alias.
//!
//! One sealed memfd, written by the adapter alone ([`crate::memfd::create_for_readers`]), mapped
//! readable by the library. A carrier's [`Ends`] are written before any reader needs them: before
//! the urgent byte of an active open, before the connect of a passive open. They stay until the
//! port is used again, because a program may accept a connection that has already ended.
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `magic`, and all that is fixed before it | adapter, once | library | Release / Acquire |
//! | `rules`, `rule`, `own` | adapter, between two steps of `changes` | library, which looks again when `changes` moved | see [`RoutingPage::publish`] |
//! | `Ends::state`, and the words beside it | adapter | library | Release / Acquire |
//! | `cookies` | adapter's threads | library | Relaxed: a hint that orders nothing |

use crate::rendezvous::unmapped;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// First word of a routing page: "TOEHOLDO".
pub const ROUTING_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"TOEHOLDO");
/// Most rules a routing page can hold.
pub const RULES_MAX: usize = 64;
/// Ports of one kind of carrier.
pub const PORTS: usize = 65_536;
/// Most addresses of an engine that have a loopback alias.
pub const OWN_MAX: usize = 16;
/// Where the ends begin.
const ENDS_OFFSET: usize = 4096;
/// Where the cookies begin.
const COOKIES_OFFSET: usize = ENDS_OFFSET + 3 * PORTS * size_of::<Ends>();
/// Number of remotes whose cookies can be recorded. Two remotes with the same hash share one place.
const COOKIES_MAX: usize = 4_096;
/// Length of a routing page's memfd; untouched pages cost nothing.
pub const ROUTING_PAGE_BYTES: usize = COOKIES_OFFSET + COOKIES_MAX * size_of::<AtomicU64>();

/// The first page.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// [`ROUTING_PAGE_MAGIC`], last of all.
    pub magic: AtomicU64,
    /// [`crate::table::LAYOUT_VERSION`].
    pub version: AtomicU32,
    /// Port of the relay, on 127.0.0.1.
    pub relay_port: AtomicU32,
    /// Network namespace of the relay (`SO_NETNS_COOKIE`).
    pub netns: AtomicU64,
    /// IPv4 address (memory order) that accepted carriers come from.
    pub relay_source: AtomicU32,
    /// Rules in force.
    pub rules: AtomicU32,
    /// The first rule that matches decides; without a match: [`RuleAction::Direct`].
    pub rule: [RuleWords; RULES_MAX],
    /// The engine's own addresses.
    pub own: [OwnWords; OWN_MAX],
    /// Odd while rules and addresses are being changed.
    pub changes: AtomicU32,
    _reserved: u32,
}

/// One of the engine's addresses as it lies in memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct OwnWords {
    /// The address, memory order.
    pub ip: [AtomicU64; 2],
    /// Its loopback alias, IPv4 (memory order); 0: there is no address here.
    pub alias: AtomicU32,
    _reserved: u32,
}

/// One rule as it lies in memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RuleWords {
    /// The prefix, IPv4 as IPv4-mapped IPv6, big-endian halves.
    pub prefix: [AtomicU64; 2],
    /// Its length, of 128.
    pub prefix_bits: AtomicU32,
    /// Destination port; 0 for all.
    pub port: AtomicU32,
    /// A [`RuleAction`] as a number.
    pub action: AtomicU32,
    _reserved: u32,
}

/// The addresses of the connection that a carrier serves.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Ends {
    /// 1 when the carrier serves a connection between the addresses below; 0 otherwise.
    pub state: AtomicU32,
    /// The port of the carrier's other end: a spoofed connection comes from a different port.
    pub carrier_port: AtomicU32,
    /// The engine's address, memory order.
    pub local: [AtomicU64; 2],
    /// The remote's.
    pub remote: [AtomicU64; 2],
    /// The engine's port in the upper 16 bits, the remote's port in the lower 16 bits.
    pub ports: AtomicU32,
    /// The errno with which the connection ended, when the end of the carrier does not tell it.
    pub errno: AtomicU32,
    _reserved: [u32; 4],
}

const _: () = {
    assert!(size_of::<Header>() <= ENDS_OFFSET);
    assert!(size_of::<Ends>() == 64);
};

/// The path of connections to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RuleAction {
    /// By the kernel, always.
    Host = 1,
    /// By the kernel, or through shared memory where both ends are on this host.
    Direct = 2,
    /// By the engine.
    Offload = 3,
    /// By the engine, for programs that ask for it (`--path offload`).
    OffloadOnRequest = 4,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The prefix, IPv4 as IPv4-mapped IPv6.
    pub prefix: [u8; 16],
    /// Its length, of 128.
    pub prefix_bits: u32,
    /// Destination port; 0 for all.
    pub port: u16,
    /// The rule's decision.
    pub action: RuleAction,
}

impl Rule {
    /// Whether the rule matches this destination. `::/0` does not match IPv4.
    pub fn matches(&self, ip: [u8; 16], port: u16) -> bool {
        if unmapped(ip).is_some() && self.prefix_bits < 96 {
            return false;
        }
        let shift = 128 - self.prefix_bits.min(128);
        let differing = u128::from_be_bytes(self.prefix) ^ u128::from_be_bytes(ip);
        (self.port == 0 || self.port == port) && (shift == 128 || differing >> shift == 0)
    }
}

/// An address and a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// IPv4 as IPv4-mapped IPv6.
    pub ip: [u8; 16],
    /// In host byte order.
    pub port: u16,
}

impl Address {
    /// The address as four bytes, if it is an IPv4 address.
    pub fn v4(&self) -> Option<[u8; 4]> {
        unmapped(self.ip)
    }

    /// A hash of the address and port. It is never 0, because the lowest bit is set; its upper half
    /// is spread evenly.
    #[must_use]
    pub fn hash(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut words = [0, 0, u64::from(self.port)];
        for (word, bytes) in words.iter_mut().zip(self.ip.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            *word = u64::from_be_bytes(eight);
        }
        let mix = |hash: u64, word: u64| {
            let hash = (hash ^ word).wrapping_mul(ODD);
            hash ^ hash >> 29
        };
        words.into_iter().fold(ODD, mix) | 1
    }

    fn store(&self, words: &[AtomicU64; 2]) {
        for (word, bytes) in words.iter().zip(self.ip.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
    }

    /// The address that is stored in two words of shared memory, with the given port.
    pub fn load(words: &[AtomicU64; 2], port: u16) -> Address {
        let mut ip = [0; 16];
        for (word, bytes) in words.iter().zip(ip.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Address { ip, port }
    }
}

/// Writes a connection's true addresses into three words of its table entry.
pub fn store_true_ends(entry: &crate::table::Entry, local: Address, remote: Address) {
    local.store(&entry.true_local);
    remote.store(&entry.true_remote);
    let ports = u32::from(local.port) << 16 | u32::from(remote.port);
    entry.true_ports.store(ports, Ordering::Relaxed);
}

/// The true local and remote address in a table entry.
pub fn true_ends(entry: &crate::table::Entry) -> (Address, Address) {
    let ports = entry.true_ports.load(Ordering::Relaxed);
    (
        Address::load(&entry.true_local, (ports >> 16) as u16),
        Address::load(&entry.true_remote, ports as u16),
    )
}

/// Which way a carrier was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// By the program, from 127.0.0.1 to the relay; found by the program's port. A carrier from a
    /// loopback alias needs no entry, because the alias tells the engine's address.
    Connected,
    /// By the adapter, to the program's listener: found by the adapter's port.
    Accepted,
    /// By the adapter, over IPv6. Any program can use the source address ::1, so the port's entry
    /// is withdrawn when the carrier ends.
    AcceptedV6,
}

/// Identifies a carrier's entry in the routing page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarrierKey {
    /// Which way the carrier was made.
    pub direction: Direction,
    /// The port that identifies a carrier among those of its direction.
    pub port: u16,
}

impl CarrierKey {
    /// The key as a word of a table's entry. The word is never 0, which means "no key".
    pub fn to_word(self) -> u32 {
        let direction = match self.direction {
            Direction::Connected => 1,
            Direction::Accepted => 2,
            Direction::AcceptedV6 => 3,
        };
        direction << 16 | u32::from(self.port)
    }

    /// The key that a word encodes; `None` for a word that encodes no key.
    pub fn from_word(word: u32) -> Option<CarrierKey> {
        let direction = match word >> 16 {
            1 => Direction::Connected,
            2 => Direction::Accepted,
            3 => Direction::AcceptedV6,
            _ => return None,
        };
        let port = word as u16;
        Some(CarrierKey { direction, port })
    }
}

/// One of the engine's own addresses, and its loopback alias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// IPv4 as IPv4-mapped IPv6.
    pub ip: [u8; 16],
    /// On loopback.
    pub alias: [u8; 4],
}

/// A mapped routing page. Does not own the mapping.
#[derive(Clone, Copy, Debug)]
pub struct RoutingPage {
    base: *mut u8,
}

// SAFETY: a routing page is atomics all through; any thread may use them.
unsafe impl Send for RoutingPage {}
// SAFETY: as above.
unsafe impl Sync for RoutingPage {}

impl RoutingPage {
    /// a routing page at `base`.
    ///
    /// # Safety
    /// `base` is page-aligned, mapped for [`ROUTING_PAGE_BYTES`], readable, and stays so for as
    /// long as the routing page is used; writable, if any of [`RoutingPage::initialise`],
    /// [`RoutingPage::set_ends`] and [`RoutingPage::set_cookie`] is called.
    pub unsafe fn at(base: *mut u8) -> RoutingPage {
        RoutingPage { base }
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped and aligned by the promise of `at`; every field is an atomic.
        unsafe { &*self.base.cast::<Header>() }
    }

    fn ends_at(&self, direction: Direction, port: u16) -> &Ends {
        let place = match direction {
            Direction::Connected => usize::from(port),
            Direction::Accepted => PORTS + usize::from(port),
            Direction::AcceptedV6 => 2 * PORTS + usize::from(port),
        };
        // SAFETY: `place` is below three times `PORTS`; mapped and aligned by the promise of `at`;
        // every field is an atomic.
        unsafe { &*self.base.add(ENDS_OFFSET).cast::<Ends>().add(place) }
    }

    fn cookie_of(&self, hash: u64) -> &AtomicU64 {
        let place = (hash >> 32) as usize % COOKIES_MAX;
        // SAFETY: `place` is below `COOKIES_MAX`; mapped and aligned by the promise of `at`.
        unsafe {
            let first = self.base.add(COOKIES_OFFSET).cast::<AtomicU64>();
            &*first.add(place)
        }
    }

    /// Records whether the engine has a Fast Open cookie of this remote. When two remotes share a
    /// place, the later one replaces the earlier one.
    pub fn set_cookie(&self, remote: Address, is_known: bool) {
        let hash = remote.hash();
        let word = self.cookie_of(hash);
        // Relaxed: nothing else is read because of it.
        if is_known {
            word.store(hash, Ordering::Relaxed);
        } else if word.load(Ordering::Relaxed) == hash {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the engine probably has a Fast Open cookie of this remote. A wrong answer does no
    /// harm: bytes that the SYN cannot carry are sent later.
    pub fn has_cookie(&self, remote: Address) -> bool {
        let hash = remote.hash();
        self.cookie_of(hash).load(Ordering::Relaxed) == hash
    }

    /// Fills in the first page of a fresh routing page, except for the words that
    /// [`RoutingPage::publish`] writes.
    pub fn initialise(&self, netns: u64, relay_port: u16, relay_source: [u8; 4]) {
        let header = self.header();
        header.netns.store(netns, Ordering::Relaxed);
        header
            .relay_port
            .store(relay_port.into(), Ordering::Relaxed);
        let source = u32::from_ne_bytes(relay_source);
        header.relay_source.store(source, Ordering::Relaxed);
        let version = crate::table::LAYOUT_VERSION;
        header.version.store(version, Ordering::Relaxed);
        // Release pairs with the Acquire load in `is_valid`.
        header.magic.store(ROUTING_PAGE_MAGIC, Ordering::Release);
    }

    /// Replaces the rules and the engine's own addresses. Rules beyond [`RULES_MAX`] and addresses
    /// beyond [`OWN_MAX`] are left out. `changes` is a sequence lock: a reader that meets a change
    /// reads again.
    pub fn publish(&self, rules: &[Rule], own: &[Own]) {
        let header = self.header();
        let changes = header.changes.load(Ordering::Relaxed);
        header
            .changes
            .store(changes.wrapping_add(1), Ordering::Relaxed);
        // No reader sees the stores below before it can see the odd number. Pairs with the Acquire
        // fence in `unchanging`.
        fence(Ordering::Release);
        for (words, rule) in header.rule.iter().zip(rules) {
            let prefix = u128::from_be_bytes(rule.prefix);
            words.prefix[0].store((prefix >> 64) as u64, Ordering::Relaxed);
            words.prefix[1].store(prefix as u64, Ordering::Relaxed);
            words.prefix_bits.store(rule.prefix_bits, Ordering::Relaxed);
            words.port.store(rule.port.into(), Ordering::Relaxed);
            words.action.store(rule.action as u32, Ordering::Relaxed);
        }
        let count = rules.len().min(RULES_MAX) as u32;
        header.rules.store(count, Ordering::Relaxed);
        for (n, words) in header.own.iter().enumerate() {
            let own = own.get(n).copied().unwrap_or_default();
            let address = Address {
                ip: own.ip,
                port: 0,
            };
            address.store(&words.ip);
            let alias = u32::from_ne_bytes(own.alias);
            words.alias.store(alias, Ordering::Relaxed);
        }
        // Release pairs with the first Acquire load in `unchanging`: a reader that sees the even
        // number sees all stores above.
        header
            .changes
            .store(changes.wrapping_add(2), Ordering::Release);
    }

    /// Runs `look` until the adapter has changed no rule and no address meanwhile. `None` when the
    /// adapter does not finish its change.
    fn unchanging<T>(&self, look: impl Fn() -> T) -> Option<T> {
        /// A change takes one microsecond, unless the adapter was stopped or descheduled in the
        /// middle.
        const LOOKS_MAX: usize = 2_000;
        const LOOKS_BEFORE_YIELDING: usize = 1_000;
        let changes = &self.header().changes;
        for looks in 0..LOOKS_MAX {
            // Acquire pairs with the last store in `publish`.
            let before = changes.load(Ordering::Acquire);
            let seen = look();
            // The words read above are not newer than the second load of `changes`. Pairs with the
            // Release fence in `publish`.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && changes.load(Ordering::Relaxed) == before {
                return Some(seen);
            }
            if looks < LOOKS_BEFORE_YIELDING {
                core::hint::spin_loop();
            } else {
                // SAFETY: no arguments.
                unsafe { toehold_freestanding::call!(SYS_sched_yield) };
            }
        }
        None
    }

    /// The loopback alias of one of the engine's addresses.
    pub fn alias_of(&self, ip: [u8; 16]) -> Option<[u8; 4]> {
        let found = self.unchanging(|| self.own().find(|own| own.ip == ip));
        Some(found??.alias)
    }

    /// The engine's address behind a loopback alias.
    pub fn behind(&self, alias: [u8; 4]) -> Option<[u8; 16]> {
        let found = self.unchanging(|| self.own().find(|own| own.alias == alias));
        Some(found??.ip)
    }

    fn own(&self) -> impl Iterator<Item = Own> {
        let all = self.header().own.iter().map(|words| Own {
            ip: Address::load(&words.ip, 0).ip,
            alias: words.alias.load(Ordering::Relaxed).to_ne_bytes(),
        });
        all.take_while(|own| own.alias != [0; 4])
    }

    /// Whether this is a routing page of our version.
    pub fn is_valid(&self) -> bool {
        let header = self.header();
        // Acquire pairs with the Release store in `initialise`.
        header.magic.load(Ordering::Acquire) == ROUTING_PAGE_MAGIC
            && header.version.load(Ordering::Relaxed) == crate::table::LAYOUT_VERSION
    }

    /// Network namespace of the relay.
    pub fn netns(&self) -> u64 {
        self.header().netns.load(Ordering::Relaxed)
    }

    /// Port of the relay, on 127.0.0.1.
    pub fn relay_port(&self) -> u16 {
        self.header().relay_port.load(Ordering::Relaxed) as u16
    }

    /// IPv4 address that accepted carriers come from.
    pub fn relay_source(&self) -> [u8; 4] {
        self.header()
            .relay_source
            .load(Ordering::Relaxed)
            .to_ne_bytes()
    }

    /// The rules' decision about a destination.
    pub fn action(&self, ip: [u8; 16], port: u16) -> RuleAction {
        let header = self.header();
        let action = || {
            let count = header.rules.load(Ordering::Relaxed) as usize;
            let rules = header.rule[..count.min(RULES_MAX)].iter();
            rules
                .filter_map(RuleWords::rule)
                .find(|rule| rule.matches(ip, port))
                .map_or(RuleAction::Direct, |rule| rule.action)
        };
        self.unchanging(action).unwrap_or(RuleAction::Direct)
    }

    /// Sets the addresses that a carrier serves; `None` when it serves no connection any more.
    pub fn set_ends(
        &self,
        direction: Direction,
        port: u16,
        carrier_port: u16,
        ends: Option<(Address, Address)>,
    ) {
        let words = self.ends_at(direction, port);
        // Relaxed: a reader that loads 0 reads nothing else. The fence below keeps this store
        // before those of the addresses.
        words.state.store(0, Ordering::Relaxed);
        let Some((local, remote)) = ends else { return };
        // The last carrier's errno is cleared before its addresses change: see `errno_of`.
        words.errno.store(0, Ordering::Relaxed);
        // Pairs with the fences in `errno_of` and `ends`.
        fence(Ordering::Release);
        local.store(&words.local);
        remote.store(&words.remote);
        let ports = u32::from(local.port) << 16 | u32::from(remote.port);
        words.ports.store(ports, Ordering::Relaxed);
        words
            .carrier_port
            .store(carrier_port.into(), Ordering::Relaxed);
        // Release pairs with the Acquire load in `ends`.
        words.state.store(1, Ordering::Release);
    }

    /// Records the errno with which a carrier's connection has ended. Called before the carrier is
    /// reset.
    pub fn set_errno(&self, key: CarrierKey, errno: u32) {
        let words = self.ends_at(key.direction, key.port);
        // Release pairs with the Acquire load in `errno_of`: the addresses were there before.
        words.errno.store(errno, Ordering::Release);
    }

    /// The errno with which the connection between these ends has ended, if the carrier with this
    /// key was reset because of an error. It stays until another carrier, with other ends, has this
    /// key.
    pub fn errno_of(&self, key: CarrierKey, local: Address, remote: Address) -> Option<u32> {
        let words = self.ends_at(key.direction, key.port);
        // Acquire pairs with the Release store in `set_errno`.
        let errno = words.errno.load(Ordering::Acquire);
        let ports = words.ports.load(Ordering::Relaxed);
        let ends = (
            Address::load(&words.local, (ports >> 16) as u16),
            Address::load(&words.remote, ports as u16),
        );
        // If we had seen another carrier's addresses, the second load would find the errno cleared.
        // Pairs with the fence in `set_ends`.
        fence(Ordering::Acquire);
        let is_theirs = words.errno.load(Ordering::Relaxed) == errno && ends == (local, remote);
        (errno != 0 && is_theirs).then_some(errno)
    }

    /// The true local and remote address of a carrier; `None` when it serves no connection.
    pub fn ends(
        &self,
        direction: Direction,
        port: u16,
        carrier_port: u16,
    ) -> Option<(Address, Address)> {
        let words = self.ends_at(direction, port);
        // Acquire pairs with the last store in `set_ends`.
        let stands = words.state.load(Ordering::Acquire) == 1
            && words.carrier_port.load(Ordering::Relaxed) == u32::from(carrier_port);
        if !stands {
            return None;
        }
        let ports = words.ports.load(Ordering::Relaxed);
        Some((
            Address::load(&words.local, (ports >> 16) as u16),
            Address::load(&words.remote, ports as u16),
        ))
    }
}

impl RuleWords {
    fn rule(&self) -> Option<Rule> {
        let half = |n: usize| u128::from(self.prefix[n].load(Ordering::Relaxed));
        let action = match self.action.load(Ordering::Relaxed) {
            1 => RuleAction::Host,
            2 => RuleAction::Direct,
            3 => RuleAction::Offload,
            4 => RuleAction::OffloadOnRequest,
            _ => return None,
        };
        Some(Rule {
            prefix: (half(0) << 64 | half(1)).to_be_bytes(),
            prefix_bits: self.prefix_bits.load(Ordering::Relaxed),
            port: self.port.load(Ordering::Relaxed) as u16,
            action,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use crate::rendezvous::mapped;

    fn rule(v4: [u8; 4], bits: u32, port: u16, action: RuleAction) -> Rule {
        Rule {
            prefix: mapped(v4),
            prefix_bits: 96 + bits,
            port,
            action,
        }
    }

    #[test]
    fn first_rule_that_matches_decides() {
        let (file, ours) =
            memfd::create_for_readers(c"routing_page", ROUTING_PAGE_BYTES).expect("memfd");
        // SAFETY: mapped for that length, and not unmapped before the test ends.
        let ours = unsafe { RoutingPage::at(ours.as_ptr()) };
        let base = memfd::map_to_read(file.as_fd(), ROUTING_PAGE_BYTES).expect("mapped");
        // SAFETY: as above.
        let theirs = unsafe { RoutingPage::at(base.as_ptr()) };
        assert!(!theirs.is_valid());
        let rules = [
            rule([10, 1, 0, 9], 32, 0, RuleAction::Host),
            rule([10, 1, 0, 0], 16, 80, RuleAction::Offload),
            rule([10, 0, 0, 0], 8, 0, RuleAction::OffloadOnRequest),
        ];
        ours.publish(&rules, &[]);
        ours.initialise(7, 4000, [127, 1, 2, 3]);
        assert!(theirs.is_valid());
        let action = |v4, port| theirs.action(mapped(v4), port);
        assert_eq!(action([10, 1, 0, 9], 80), RuleAction::Host);
        assert_eq!(action([10, 1, 0, 8], 80), RuleAction::Offload);
        assert_eq!(action([10, 1, 0, 8], 81), RuleAction::OffloadOnRequest);
        assert_eq!(action([11, 0, 0, 1], 80), RuleAction::Direct);
        assert_eq!((theirs.netns(), theirs.relay_port()), (7, 4000));
        assert_eq!(theirs.relay_source(), [127, 1, 2, 3]);
    }

    #[test]
    fn own_addresses_and_their_aliases_are_found_both_ways() {
        let (_file, ours) =
            memfd::create_for_readers(c"routing_page", ROUTING_PAGE_BYTES).expect("memfd");
        // SAFETY: mapped for that length, and not unmapped before the test ends.
        let routing_page = unsafe { RoutingPage::at(ours.as_ptr()) };
        let (v4, v6) = (mapped([10, 0, 0, 2]), [0xfd; 16]);
        let own = |ip, last| Own {
            ip,
            alias: [127, 99, 0, last],
        };
        routing_page.publish(&[], &[own(v4, 1), own(v6, 2)]);
        assert_eq!(routing_page.alias_of(v6), Some([127, 99, 0, 2]));
        assert_eq!(routing_page.behind([127, 99, 0, 1]), Some(v4));
        assert_eq!(routing_page.alias_of(mapped([10, 0, 0, 3])), None);
        assert_eq!(routing_page.behind([0; 4]), None);
        routing_page.publish(&[], &[own(v6, 2)]);
        assert_eq!(routing_page.alias_of(v4), None);
        assert_eq!(routing_page.behind([127, 99, 0, 2]), Some(v6));
    }

    #[test]
    fn remotes_with_cookies_are_known_until_they_have_none() {
        let (_file, ours) =
            memfd::create_for_readers(c"routing_page", ROUTING_PAGE_BYTES).expect("memfd");
        // SAFETY: mapped for that length, and not unmapped before the test ends.
        let routing_page = unsafe { RoutingPage::at(ours.as_ptr()) };
        let remotes: Vec<Address> = [80, 443]
            .into_iter()
            .flat_map(|port| (1..=9).map(move |last| (mapped([10, 84, 0, last]), port)))
            .chain([([0xfd; 16], 80), ([0; 16], 0)])
            .map(|(ip, port)| Address { ip, port })
            .collect();
        for (n, &remote) in remotes.iter().enumerate() {
            assert!(!routing_page.has_cookie(remote), "{n}");
            routing_page.set_cookie(remote, false);
            routing_page.set_cookie(remote, true);
            assert!(routing_page.has_cookie(remote), "{n}");
        }
        let known = |page: &RoutingPage| remotes.iter().filter(|&&it| page.has_cookie(it)).count();
        assert_eq!(known(&routing_page), remotes.len(), "places of their own");
        routing_page.set_cookie(remotes[0], false);
        assert_eq!(known(&routing_page), remotes.len() - 1);
        assert!(!routing_page.has_cookie(remotes[0]));
    }

    #[test]
    fn rules_and_addresses_change_at_once() {
        let (_file, ours) =
            memfd::create_for_readers(c"routing_page", ROUTING_PAGE_BYTES).expect("memfd");
        // SAFETY: mapped for that length, and not unmapped before the test ends.
        let routing_page = unsafe { RoutingPage::at(ours.as_ptr()) };
        let ip = mapped([10, 0, 0, 1]);
        let sets = [
            [
                rule([10, 0, 0, 0], 8, 0, RuleAction::Offload),
                rule([0; 4], 0, 0, RuleAction::Host),
            ],
            [
                rule([11, 0, 0, 0], 8, 0, RuleAction::Host),
                rule([10, 0, 0, 0], 8, 0, RuleAction::Offload),
            ],
        ];
        routing_page.publish(&sets[0], &[]);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..20_000 {
                    routing_page.publish(&sets[round % 2], &[]);
                }
            });
            while !writer.is_finished() {
                // Only a mixture of the two sets of rules gives `Host`. While the writer is
                // descheduled in the middle of a change, the answer is the default.
                assert_ne!(routing_page.action(ip, 1), RuleAction::Host);
            }
        });
    }

    #[test]
    fn errno_is_that_of_the_very_connection() {
        let (_file, ours) =
            memfd::create_for_readers(c"routing_page", ROUTING_PAGE_BYTES).expect("memfd");
        // SAFETY: mapped for that length, and not unmapped before the test ends.
        let routing_page = unsafe { RoutingPage::at(ours.as_ptr()) };
        let at = |last, port| Address {
            ip: mapped([10, 0, 0, last]),
            port,
        };
        let (local, remote) = (at(2, 33_000), at(1, 80));
        for direction in [
            Direction::Connected,
            Direction::Accepted,
            Direction::AcceptedV6,
        ] {
            let key = CarrierKey {
                direction,
                port: 65_535,
            };
            assert_eq!(CarrierKey::from_word(key.to_word()), Some(key));
            routing_page.set_ends(direction, key.port, 80, Some((local, remote)));
            assert_eq!(routing_page.errno_of(key, local, remote), None);
            routing_page.set_errno(key, 110);
            assert_eq!(routing_page.errno_of(key, local, remote), Some(110));
            assert_eq!(routing_page.errno_of(key, local, at(1, 81)), None);
            // The carrier is gone, but its program may not have noticed yet.
            routing_page.set_ends(direction, key.port, 0, None);
            assert_eq!(routing_page.errno_of(key, local, remote), Some(110));
            routing_page.set_ends(direction, key.port, 80, Some((local, remote)));
            assert_eq!(routing_page.errno_of(key, local, remote), None);
        }
        assert_eq!(CarrierKey::from_word(0), None);
    }

    #[test]
    fn ends_are_those_of_the_very_carrier() {
        let (file, ours) =
            memfd::create_for_readers(c"routing_page", ROUTING_PAGE_BYTES).expect("memfd");
        // SAFETY: mapped for that length, and not unmapped before the test ends.
        let routing_page = unsafe { RoutingPage::at(ours.as_ptr()) };
        let at = |last, port| Address {
            ip: mapped([10, 0, 0, last]),
            port,
        };
        let ends = Some((at(2, 33_000), at(1, 80)));
        routing_page.set_ends(Direction::Accepted, 65_535, 80, ends);
        assert_eq!(routing_page.ends(Direction::Accepted, 65_535, 80), ends);
        assert_eq!(routing_page.ends(Direction::Accepted, 65_535, 81), None);
        assert_eq!(routing_page.ends(Direction::Connected, 65_535, 80), None);
        routing_page.set_ends(Direction::Accepted, 65_535, 80, None);
        assert_eq!(routing_page.ends(Direction::Accepted, 65_535, 80), None);
        assert!(
            memfd::map(file.as_fd(), ROUTING_PAGE_BYTES).is_err(),
            "readers cannot write"
        );
    }
}
