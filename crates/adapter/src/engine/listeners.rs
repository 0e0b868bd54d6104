//! Programs that listen, and the engine's listeners on their behalf.
//!
//! A program's listener is identified by its address and port, not by a descriptor, because
//! descriptors are inherited, passed on and closed in ways that we notice late or never. The kernel
//! is asked whether the listener still exists whenever there is a sign of a change.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use toehold_tcp::{Engine, ListenerId};

use super::Holder;
use super::clients::Clients;
use super::settings::{ByDestination, Share};
use super::tcp_config;
use super::tokens::Tokens;
use crate::registry::{ClientId, TableId};

/// A request to listen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listening {
    pub(crate) holder: Holder,
    /// Where the program listens.
    pub(crate) local: SocketAddr,
    pub(crate) backlog: usize,
    /// `TCP_FASTOPEN`: connections that may wait before their handshake is over.
    pub(crate) fast_open_pending_max: usize,
    /// The listener takes IPv6 only.
    pub(crate) is_v6_only: bool,
}

/// The engine's addresses, each with its loopback alias. A shared address is its own alias.
pub(super) type Own = [(IpAddr, IpAddr)];

/// The program's listener behind an engine's listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) holder: Holder,
    /// The address to which carriers connect.
    pub(super) address: SocketAddr,
}

#[derive(Debug)]
struct Known {
    wanted: Listening,
    /// Other programs that listen at this address, too (`SO_REUSEPORT`), the latest last. They have
    /// the rights of the first, and the latest that lives takes the place of the first when that is
    /// gone. At most [`HEIRS_MAX`]; `clients` counts a listener for each of them.
    heirs: Vec<Listening>,
    /// By the engine's address.
    listeners: BTreeMap<IpAddr, ListenerId>,
}

impl Known {
    /// Another program listens at the address.
    fn add_heir(&mut self, heir: Listening, (tokens, clients): (&Tokens, &Clients)) {
        self.forget_heirs_but(clients, |other| {
            other.holder.client != heir.holder.client && tokens.has(other.holder.client)
        });
        if self.heirs.len() == HEIRS_MAX {
            clients.stops_listening(self.heirs.remove(0).holder.client);
        }
        clients.listens(heir.holder.client);
        self.heirs.push(heir);
    }

    fn forget_heirs_but(&mut self, clients: &Clients, stays: impl Fn(&Listening) -> bool) {
        self.heirs.retain(|heir| {
            let stays = stays(heir);
            if !stays {
                clients.stops_listening(heir.holder.client);
            }
            stays
        });
    }

    /// If the program is gone and another one listens at the address, the listener is that
    /// program's from now on. True when it has changed hands.
    fn pass_to_heir(
        &mut self,
        (tokens, clients): (&Tokens, &Clients),
        of_each: &mut BTreeMap<ClientId, usize>,
    ) -> bool {
        self.forget_heirs_but(clients, |heir| tokens.has(heir.holder.client));
        let before = self.wanted.holder.client;
        if tokens.has(before) {
            return false;
        }
        let has_room = |heir: &Listening| {
            let of_this = of_each.get(&heir.holder.client);
            of_this.is_none_or(|&of_this| of_this < LISTENERS_OF_ONE_MAX)
        };
        let Some(place) = self.heirs.iter().rposition(has_room) else {
            return false;
        };
        // `clients` counts it already.
        let heir = self.heirs.remove(place);
        *of_each.entry(heir.holder.client).or_default() += 1;
        clients.stops_listening(before);
        count_off(of_each, before);
        self.wanted = heir;
        true
    }

    fn follow(
        &mut self,
        by_id: &mut BTreeMap<ListenerId, SocketAddr>,
        engine: &mut Engine,
        ours: &Own,
        shares: &[Share],
        connections: &ByDestination,
    ) {
        let wanted = self.wanted;
        let serves = |own: &(IpAddr, IpAddr)| {
            let share = shares.iter().find(|share| share.ip == own.0);
            wanted.serves(own) && share.is_none_or(|share| share.has(wanted.local.port()))
        };
        self.listeners.retain(|&ip, &mut id| {
            let mut ours = ours.iter();
            let stays = ours.any(|own| own.0 == ip && serves(own));
            if !stays {
                engine.unlisten(id);
                by_id.remove(&id);
            }
            stays
        });
        let backlog = wanted.backlog.clamp(1, BACKLOG_MAX);
        let port = wanted.local.port();
        for &(ip, _) in ours.iter().filter(|own| serves(own)) {
            let local = SocketAddr::new(ip, port);
            let settings = connections.of(local);
            let options = tcp_config::options(&settings);
            let id = match self.listeners.entry(ip) {
                Entry::Occupied(listener) => {
                    engine.set_listener_options(*listener.get(), options);
                    engine.set_backlog(*listener.get(), backlog);
                    *listener.get()
                }
                Entry::Vacant(place) => {
                    let Ok(id) = engine.listen(local, backlog, options) else {
                        continue;
                    };
                    by_id.insert(id, wanted.local);
                    *place.insert(id)
                }
            };
            let pending_max = wanted.fast_open_pending_max.min(BACKLOG_MAX);
            engine.set_fast_open(id, settings.fast_open.pending_max(pending_max));
        }
    }
}

#[derive(Debug)]
pub(super) struct Listeners {
    /// The counts of listeners, which other threads read.
    clients: Arc<Clients>,
    /// Says which programs are gone.
    tokens: Arc<Tokens>,
    /// The ports on which the engine may listen, if addresses are shared with the host.
    shares: Vec<Share>,
    by_address: BTreeMap<SocketAddr, Known>,
    by_id: BTreeMap<ListenerId, SocketAddr>,
    /// The number that each program has.
    of_each: BTreeMap<ClientId, usize>,
    refused: u64,
}

impl Listeners {
    pub(super) fn new(clients: Arc<Clients>, tokens: Arc<Tokens>) -> Listeners {
        Listeners {
            clients,
            tokens,
            shares: Vec::new(),
            by_address: BTreeMap::new(),
            by_id: BTreeMap::new(),
            of_each: BTreeMap::new(),
            refused: 0,
        }
    }

    /// Sets the ports on which the engine may listen from the next [`Listeners::follow`] on.
    pub(super) fn set_shares(&mut self, shares: &[Share]) {
        self.shares = shares.to_vec();
    }

    /// Listens on the engine's addresses that correspond to the program's listener. A listener on
    /// loopback corresponds to none, because it is not meant for a network. False when the engine
    /// listens where it listened before.
    pub(super) fn add(
        &mut self,
        engine: &mut Engine,
        ours: &Own,
        wanted: Listening,
        connections: &ByDestination,
    ) -> bool {
        if let Some(known) = self.by_address.get_mut(&wanted.local) {
            let before = known.listeners.len();
            let is_its = known.wanted.holder.client == wanted.holder.client;
            let has_followed = !is_its && {
                known.add_heir(wanted, (&self.tokens, &self.clients));
                known.pass_to_heir((&self.tokens, &self.clients), &mut self.of_each)
            };
            if is_its || has_followed {
                // The program has set the option since, or has called `listen` again.
                known.wanted.fast_open_pending_max = wanted.fast_open_pending_max;
                known.wanted.backlog = wanted.backlog;
                known.follow(&mut self.by_id, engine, ours, &self.shares, connections);
            }
            return known.listeners.len() != before;
        }
        if !takes_part(&wanted, ours) {
            return false;
        }
        let client = wanted.holder.client;
        let of_this = self.of_each.get(&client).copied().unwrap_or_default();
        if of_this >= LISTENERS_OF_ONE_MAX || self.by_address.len() >= LISTENERS_MAX {
            self.refused += 1;
            return false;
        }
        self.of_each.insert(client, of_this + 1);
        let mut known = Known {
            wanted,
            heirs: Vec::new(),
            listeners: BTreeMap::new(),
        };
        self.clients.listens(client);
        known.follow(&mut self.by_id, engine, ours, &self.shares, connections);
        let is_new = !known.listeners.is_empty();
        self.by_address.insert(wanted.local, known);
        is_new
    }

    /// Listens exactly on the addresses that correspond to the programs' listeners now.
    pub(super) fn follow(&mut self, engine: &mut Engine, ours: &Own, connections: &ByDestination) {
        for known in self.by_address.values_mut() {
            known.follow(&mut self.by_id, engine, ours, &self.shares, connections);
        }
    }

    /// Where connections of an engine's listener go.
    pub(super) fn target(&self, id: ListenerId) -> Option<Target> {
        let wanted = &self.by_address.get(self.by_id.get(&id)?)?.wanted;
        Some(Target {
            holder: wanted.holder,
            address: wanted.carrier_target(),
        })
    }

    /// Stops listening for programs that no longer listen. True when a listener of a program that
    /// is gone is another program's now.
    pub(super) fn retain_living(
        &mut self,
        engine: &mut Engine,
        is_there: impl Fn(SocketAddr) -> bool,
    ) -> bool {
        let mut has_passed = false;
        let tokens = &self.tokens;
        let (by_id, of_each, clients) = (&mut self.by_id, &mut self.of_each, &self.clients);
        self.by_address.retain(|&address, known| {
            let lives = is_there(address);
            if !lives {
                for id in known.listeners.values() {
                    engine.unlisten(*id);
                    by_id.remove(id);
                }
                let client = known.wanted.holder.client;
                clients.stops_listening(client);
                count_off(of_each, client);
                known.forget_heirs_but(clients, |_| false);
            } else {
                has_passed |= known.pass_to_heir((tokens, clients), of_each);
            }
            lives
        });
        has_passed
    }

    /// Whether a program of that family listens at one of the engine's ends. Its connections may be
    /// those of another member of a group (`SO_REUSEPORT`), as far as the engine knows.
    pub(super) fn is_of_family(&self, ours: &Own, end: SocketAddr, family: TableId) -> bool {
        let alias = ours.iter().find(|own| own.0 == end.ip());
        let all = [
            alias.map(|own| own.1),
            Some(Ipv4Addr::UNSPECIFIED.into()),
            Some(Ipv6Addr::UNSPECIFIED.into()),
        ];
        let all = all.into_iter().flatten();
        let mut known = all.filter_map(|ip| self.by_address.get(&(ip, end.port()).into()));
        known.any(|known| {
            let mut members = known.heirs.iter().chain([&known.wanted]);
            known.listeners.contains_key(&end.ip())
                && members.any(|member| member.holder.family == family)
        })
    }

    /// Where the engine listens.
    pub(super) fn ends(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        self.by_address.values().flat_map(|known| {
            let port = known.wanted.local.port();
            known.listeners.keys().map(move |&ip| (ip, port))
        })
    }

    /// Number of listeners that were refused by the limit of one program or of all.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }
}

impl Listening {
    /// Whether the listener corresponds to one of the engine's addresses.
    fn serves(&self, &(ip, alias): &(IpAddr, IpAddr)) -> bool {
        match self.local.ip() {
            IpAddr::V4(local) if local.is_unspecified() => ip.is_ipv4(),
            IpAddr::V6(local) if local.is_unspecified() => ip.is_ipv6() || !self.is_v6_only,
            local => local == alias,
        }
    }

    /// The address to which carriers for it connect.
    fn carrier_target(&self) -> SocketAddr {
        let target: IpAddr = match self.local.ip() {
            ip if ip.is_unspecified() && self.is_v6_only => Ipv6Addr::LOCALHOST.into(),
            ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(target, self.local.port())
    }
}

fn count_off(of_each: &mut BTreeMap<ClientId, usize>, client: ClientId) {
    if let Entry::Occupied(mut count) = of_each.entry(client) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// Whether a listener is meant for the network at all.
fn takes_part(wanted: &Listening, ours: &Own) -> bool {
    let ip = wanted.local.ip();
    ip.is_unspecified() || ours.iter().any(|(_, alias)| ip == *alias)
}

/// The most listeners of one program, so that it cannot use up those of others.
pub(super) const LISTENERS_OF_ONE_MAX: usize = 1024;
/// Listeners of all programs: a bound on memory, a few hundred bytes each.
pub(super) const LISTENERS_MAX: usize = 16 * LISTENERS_OF_ONE_MAX;
/// The most other programs that are remembered for one listener.
const HEIRS_MAX: usize = 16;
/// Connections that may wait for one program; listen(2) bounds its own by `net.core.somaxconn`.
const BACKLOG_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use toehold_tcp::{Config, InterfaceAddress, Medium, Random};

    const V4: &str = "10.84.0.2";
    const V6: &str = "fd84::2";

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("address")
    }

    fn own() -> Vec<(IpAddr, IpAddr)> {
        let alias = |last| Ipv4Addr::new(127, 99, 0, last).into();
        vec![(ip(V4), alias(1)), (ip(V6), alias(2))]
    }

    fn engine() -> Engine {
        let address = |address, prefix_bits| InterfaceAddress {
            address: ip(address),
            prefix_bits,
        };
        let mut config = Config::new(Medium::Ip, 1500, address(V4, 24));
        config.addresses.push(address(V6, 64));
        Engine::new(config, Random::new(1))
    }

    fn wanted(local: &str, is_v6_only: bool) -> Listening {
        Listening {
            holder: Holder {
                client: ClientId(1),
                family: TableId(1),
            },
            local: local.parse().expect("address and port"),
            backlog: 5,
            fast_open_pending_max: 0,
            is_v6_only,
        }
    }

    /// Where carriers go, and which of the engine's addresses are listened on, as taken ones cannot
    /// be had twice.
    fn served(local: &str, is_v6_only: bool) -> Option<(String, [bool; 2])> {
        let (mut engine, mut listeners) = (
            engine(),
            Listeners::new(Arc::new(Clients::new(1)), Arc::default()),
        );
        let wanted = wanted(local, is_v6_only);
        let port = wanted.local.port();
        listeners.add(&mut engine, &own(), wanted, &ByDestination::default());
        let id = listeners.by_id.keys().next()?;
        let target = listeners.target(*id).expect("it has one").address;
        let taken = [V4, V6].map(|own| {
            let again = engine.listen(
                SocketAddr::new(ip(own), port),
                1,
                toehold_tcp::Options::default(),
            );
            again.is_err()
        });
        Some((target.to_string(), taken))
    }

    #[test]
    fn listeners_stand_for_what_the_program_bound() {
        let to = |target: &str, taken| Some((target.to_owned(), taken));
        assert_eq!(
            served("0.0.0.0:80", false),
            to("127.0.0.1:80", [true, false])
        );
        assert_eq!(served("[::]:80", false), to("127.0.0.1:80", [true, true]));
        assert_eq!(served("[::]:80", true), to("[::1]:80", [false, true]));
        assert_eq!(
            served("127.99.0.1:80", false),
            to("127.99.0.1:80", [true, false])
        );
        assert_eq!(
            served("127.99.0.2:80", false),
            to("127.99.0.2:80", [false, true])
        );
        for not_for_the_network in ["127.0.0.1:80", "[::1]:80", "127.99.0.3:80", "192.0.2.1:80"] {
            assert_eq!(served(not_for_the_network, false), None);
        }
    }

    #[test]
    fn listeners_go_with_their_programs() {
        let (mut engine, mut listeners) = (
            engine(),
            Listeners::new(Arc::new(Clients::new(1)), Arc::default()),
        );
        for local in ["0.0.0.0:80", "0.0.0.0:81", "0.0.0.0:80"] {
            listeners.add(
                &mut engine,
                &own(),
                wanted(local, false),
                &ByDestination::default(),
            );
        }
        assert_eq!(listeners.len(), 2, "one at a place");
        let left: SocketAddr = "0.0.0.0:81".parse().expect("address");
        listeners.retain_living(&mut engine, |address| address == left);
        assert_eq!((listeners.len(), listeners.by_id.len()), (1, 1));
        let free = engine.listen(
            SocketAddr::new(ip(V4), 80),
            1,
            toehold_tcp::Options::default(),
        );
        assert!(free.is_ok(), "the engine stopped listening, too");
    }

    /// A server that is upgraded listens beside its predecessor before that ends.
    #[test]
    fn listener_of_a_program_that_is_gone_is_its_heirs() {
        let (clients, tokens) = (Arc::new(Clients::new(1)), Arc::new(Tokens::default()));
        let (mut engine, mut listeners) = (engine(), Listeners::new(clients, tokens.clone()));
        let mut add = |listeners: &mut Listeners, client| {
            let mut wanted = wanted("0.0.0.0:80", false);
            wanted.holder.client = ClientId(client);
            tokens.give(wanted.holder).expect("random numbers");
            listeners.add(&mut engine, &own(), wanted, &ByDestination::default());
        };
        let holder = |listeners: &Listeners| {
            let id = listeners.by_id.keys().next().expect("one");
            let holder = listeners.target(*id).expect("it has one").holder;
            assert_eq!(listeners.of_each, BTreeMap::from([(holder.client, 1)]));
            holder.client.0
        };
        for client in [1, 2, 3] {
            add(&mut listeners, client);
        }
        assert!(!listeners.retain_living(&mut self::engine(), |_| true));
        assert_eq!(holder(&listeners), 1);
        tokens.leave(ClientId(1));
        assert!(listeners.retain_living(&mut self::engine(), |_| true));
        assert_eq!(holder(&listeners), 3);
        // Its predecessors may have ended before it listens.
        for client in [2, 3] {
            tokens.leave(ClientId(client));
        }
        assert!(!listeners.retain_living(&mut self::engine(), |_| true));
        add(&mut listeners, 4);
        assert_eq!(holder(&listeners), 4);
        // Nobody is left.
        tokens.leave(ClientId(4));
        listeners.retain_living(&mut self::engine(), |_| false);
        assert!(listeners.of_each.is_empty() && listeners.is_empty());
    }

    /// Of a group the last one to listen need not be the last one to live.
    #[test]
    fn each_member_of_a_group_may_be_the_heir() {
        let (clients, tokens) = (Arc::new(Clients::new(1)), Arc::new(Tokens::default()));
        let mut engine = engine();
        let mut listeners = Listeners::new(clients.clone(), tokens.clone());
        let member = |client| {
            let mut wanted = wanted("0.0.0.0:80", false);
            wanted.holder = Holder {
                client: ClientId(client),
                family: TableId(client),
            };
            wanted
        };
        for client in [1, 2, 3, 2, 3] {
            let wanted = member(client);
            tokens.give(wanted.holder).expect("random numbers");
            listeners.add(&mut engine, &own(), wanted, &ByDestination::default());
        }
        let ours = own();
        let end = SocketAddr::new(ip(V4), 80);
        let has =
            |listeners: &Listeners, family| listeners.is_of_family(&ours, end, TableId(family));
        assert!((1..=3).all(|family| has(&listeners, family)) && !has(&listeners, 4));
        let other = SocketAddr::new(ip(V6), 80);
        assert!(!listeners.is_of_family(&ours, other, TableId(1)));
        for (gone, heir) in [(3, 1), (1, 2)] {
            tokens.leave(ClientId(gone));
            let has_passed = listeners.retain_living(&mut engine, |_| true);
            assert_eq!(has_passed, heir == 2);
            let holder = listeners.by_address.values().next().expect("one");
            assert_eq!(holder.wanted.holder.client, ClientId(heir));
            assert!(!has(&listeners, gone));
        }
        assert!(clients.unchanging().is_one(), "only the heir listens");
        // However many there are, few are remembered.
        for client in 10..=10 + 2 * HEIRS_MAX as u64 {
            let wanted = member(client);
            tokens.give(wanted.holder).expect("random numbers");
            listeners.add(&mut engine, &own(), wanted, &ByDestination::default());
        }
        let heirs = &listeners.by_address.values().next().expect("one").heirs;
        assert_eq!(heirs.len(), HEIRS_MAX);
        listeners.retain_living(&mut engine, |_| false);
        assert!(clients.admit(ClientId(5), 1));
        assert!(clients.unchanging().is_one(), "nobody listens");
    }

    #[test]
    fn listen_again_changes_the_backlog() {
        let (mut engine, mut listeners) = (
            engine(),
            Listeners::new(Arc::new(Clients::new(1)), Arc::default()),
        );
        for backlog in [5, 50] {
            let wanted = Listening {
                backlog,
                ..wanted("0.0.0.0:80", false)
            };
            listeners.add(&mut engine, &own(), wanted, &ByDestination::default());
            let id = listeners.by_id.keys().next().expect("one");
            assert_eq!(engine.backlog(*id), Some(backlog));
        }
    }

    /// A program may send the same request again and again. Only a change is worth a look at all
    /// ports.
    #[test]
    fn listener_that_is_known_changes_nothing() {
        let (mut engine, mut listeners) = (
            engine(),
            Listeners::new(Arc::new(Clients::new(1)), Arc::default()),
        );
        let mut changes = |local: &str, client| {
            let mut wanted = wanted(local, false);
            wanted.holder.client = ClientId(client);
            listeners.add(&mut engine, &own(), wanted, &ByDestination::default())
        };
        assert!(changes("0.0.0.0:80", 1));
        assert!(!changes("0.0.0.0:80", 1) && !changes("0.0.0.0:80", 2));
        assert!(!changes("127.0.0.1:81", 1), "not for the network");
        assert!(changes("0.0.0.0:81", 1));
    }

    #[test]
    fn listeners_of_one_program_are_bounded_and_leave_room_for_others() {
        let (mut engine, mut listeners) = (
            engine(),
            Listeners::new(Arc::new(Clients::new(1)), Arc::default()),
        );
        let mut add = |listeners: &mut Listeners, client, port: usize| {
            let mut wanted = wanted(&format!("0.0.0.0:{port}"), false);
            wanted.holder.client = ClientId(client);
            listeners.add(&mut engine, &own(), wanted, &ByDestination::default());
        };
        for port in 1..=LISTENERS_OF_ONE_MAX + 10 {
            add(&mut listeners, 1, port);
        }
        let one = LISTENERS_OF_ONE_MAX;
        assert_eq!((listeners.len(), listeners.refused()), (one, 10));
        for port in one + 1..=LISTENERS_MAX + 10 {
            add(&mut listeners, (port / one) as u64 + 10, port);
        }
        assert_eq!((listeners.len(), listeners.refused()), (LISTENERS_MAX, 20));
        let programs = listeners.of_each.len();
        add(&mut listeners, 1_000, LISTENERS_MAX + 11);
        assert_eq!(listeners.refused(), 21);
        assert_eq!(listeners.of_each.len(), programs, "nothing is kept of it");
        // Known already: nothing to refuse.
        add(&mut listeners, 1, 1);
        assert_eq!(listeners.refused(), 21);
        listeners.retain_living(&mut self::engine(), |address| address.port() > 1);
        add(&mut listeners, 1, 1);
        assert_eq!((listeners.len(), listeners.refused()), (LISTENERS_MAX, 21));
    }
}
