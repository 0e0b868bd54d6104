//! Addresses that are shared with the host: the engine's ports, and changes of the kernel's tables.
//!
//! ```text
//!   a program listens ─► Listening ─ it stops ─► Connected ─ no connection is left ─► the kernel's
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant as Clock};

use toehold_link::{HostNeighbour, PortUse, SILENCE_MAX};
use toehold_tcp::MacAddress;

use super::Runner;
use crate::engine::Request;
use crate::engine::link::Link;
use crate::engine::ports::in_words;
use crate::engine::report::SharedReport;
use crate::engine::settings::Settings;

/// The ports that this thread has announced.
#[derive(Debug, Default)]
pub(super) struct Shared {
    ports: BTreeMap<(IpAddr, u16), PortUse>,
    /// The time of the next check whether ports without a listener still have connections.
    look_due: Option<Clock>,
    /// The time of the next report that this thread is awake; `None` before the first report.
    heartbeat_due: Option<Clock>,
    /// Programs may make outgoing connections.
    goes_out: bool,
    /// Destinations whose routes may have changed, the time of the next look at them, and the
    /// earliest time for a further look.
    changed_routes: Vec<(IpAddr, u8)>,
    look_at_routes_after: Option<Clock>,
    /// Remotes for which no port was left, with the time of the next attempt.
    exhausted: BTreeMap<SocketAddr, Clock>,
    /// Addresses that the kernel no longer has, with the time at which their connections end.
    gone: BTreeMap<IpAddr, Clock>,
}

impl Shared {
    /// Forgets everything about the table: there is a new one.
    pub(super) fn forget(&mut self) {
        self.ports.clear();
        self.heartbeat_due = None;
    }

    /// The next time at which the thread has to look at its ports or routes, or to report that it
    /// is awake.
    pub(super) fn due(&self) -> Option<Clock> {
        let routes = match self.changed_routes.is_empty() {
            true => None,
            false => self.look_at_routes_after,
        };
        (self.look_due.into_iter())
            .chain(self.heartbeat_due)
            .chain(routes)
            .chain(self.gone.values().copied().min())
            .min()
    }

    /// Adds our addresses that the kernel lost a moment ago. Returns whether one of them is back.
    fn keep_recently_lost(
        &mut self,
        own: &[(IpAddr, IpAddr)],
        addresses: &mut Vec<(IpAddr, u8)>,
    ) -> bool {
        let now = Clock::now();
        // The operator may have taken away an address that the kernel had lost before.
        let is_own = |ip: IpAddr| own.iter().any(|(own, _)| *own == ip);
        self.gone.retain(|ip, _| is_own(*ip));
        let before = self.gone.len();
        let is_there = |ip: IpAddr| addresses.iter().any(|(there, _)| *there == ip);
        self.gone.retain(|ip, _| !is_there(*ip));
        let is_back = self.gone.len() < before;
        let lost = own.iter().filter(|(ip, _)| !is_there(*ip));
        let lost: Vec<IpAddr> = lost.map(|(ip, _)| *ip).collect();
        for ip in lost {
            let until = *self.gone.entry(ip).or_insert(now + GONE_TIME);
            if until > now {
                // The full prefix length: the kernel's routes decide which destinations are on the
                // link.
                addresses.push((ip, if ip.is_ipv4() { 32 } else { 128 }));
            } else {
                self.gone.remove(&ip);
            }
        }
        is_back
    }

    /// The kernel has not told which addresses it has: asks again later.
    fn put_off_gone(&mut self) {
        let later = Clock::now() + LOOK_INTERVAL;
        for until in self.gone.values_mut() {
            *until = later.max(*until);
        }
    }

    /// Notes that the kernel's routes to these destinations may have changed.
    pub(super) fn note_routes(&mut self, changed: &[(IpAddr, u8)]) {
        self.changed_routes.extend(changed);
        if self.changed_routes.len() > CHANGED_ROUTES_MAX {
            self.changed_routes = ALL_DESTINATIONS.to_vec();
        }
    }
}

impl Runner {
    /// Announces the engine's ports: ports with listeners of programs, and ports with connections.
    pub(super) fn settle_shared_ports(&mut self) {
        // This must happen before the first request for a connection can arrive.
        self.send_heartbeat();
        let Some(table) = self.link.shares() else {
            return;
        };
        let thread = self.engine.config().share.index();
        let listening: BTreeSet<(IpAddr, u16)> = self.listeners.ends().collect();
        let mut wanted = BTreeMap::new();
        let known = self.shared.ports.keys();
        for &end in known.filter(|end| !listening.contains(end)) {
            if self.engine.is_used(SocketAddr::from(end)) {
                wanted.insert(end, PortUse::Connected);
            }
        }
        wanted.extend(listening.into_iter().map(|end| (end, PortUse::Listening)));
        let before = &self.shared.ports;
        let mut lost = 0;
        for (&end, &how) in &wanted {
            if before.get(&end) != Some(&how) {
                lost += u64::from(table.set(thread, end, Some(how)).is_err());
            }
        }
        for &end in before.keys().filter(|end| !wanted.contains_key(end)) {
            lost += u64::from(table.set(thread, end, None).is_err());
        }
        // Frames of such a port keep their old destination.
        self.report.ports_not_set += lost;
        let has_left = wanted.values().any(|how| *how == PortUse::Connected);
        self.shared.look_due = has_left.then(|| Clock::now() + LOOK_INTERVAL);
        self.shared.ports = wanted;
    }

    /// Reports at intervals that this thread answers requests for connections.
    fn send_heartbeat(&mut self) {
        let Some(table) = self.link.shares() else {
            return;
        };
        let now = Clock::now();
        if self.shared.heartbeat_due.is_none_or(|due| due <= now) {
            let thread = self.engine.config().share.index();
            // If the report fails, the kernel answers them.
            let _ = table.record_heartbeat(thread);
            self.shared.heartbeat_due = Some(now + HEARTBEAT_INTERVAL);
            self.follow_rules();
        }
    }

    /// Announces the ports for outgoing connections of programs: all ports of the setting. If the
    /// kernel gives such ports to other connections, too, it announces only the ports of existing
    /// connections.
    pub(super) fn settle_outgoing_ports(&mut self) {
        let (Some(table), Some(outgoing)) = (self.link.shares(), &self.common.outgoing) else {
            return;
        };
        let goes_out = self.link.may_go_out();
        let ends: BTreeSet<(IpAddr, u16)> = if goes_out {
            let own = self.own.iter().map(|(ip, _)| *ip);
            own.flat_map(|ip| outgoing.all().map(move |port| (ip, port)))
                .collect()
        } else {
            let flows = self.flows.iter().flatten();
            let infos = flows.filter_map(|flow| self.engine.info(flow.id));
            infos
                .map(|info| (info.local.ip(), info.local.port()))
                .filter(|(_, port)| outgoing.has(*port))
                .collect()
        };
        let thread = self.engine.config().share.index();
        let is_set = table.set_outgoing(thread, &ends).is_ok();
        self.report.ports_not_set += u64::from(!is_set);
        self.shared.goes_out = goes_out && is_set;
    }

    /// Notes that the kernel's rules may have changed.
    pub(super) fn follow_rules(&mut self) {
        if self.link.follow_rules() {
            self.settle_outgoing_ports();
        }
    }

    /// Notes that no port is left for a remote. Otherwise a client of many short connections would
    /// cause a search of all ports for each connection.
    pub(super) fn note_exhausted(&mut self, remote: SocketAddr) {
        let now = Clock::now();
        let exhausted = &mut self.shared.exhausted;
        if exhausted.len() >= EXHAUSTED_MAX {
            exhausted.retain(|_, until| *until > now);
        }
        if exhausted.len() < EXHAUSTED_MAX {
            exhausted.insert(remote, now + LOOK_INTERVAL);
        }
    }

    fn is_exhausted(&self, remote: SocketAddr) -> bool {
        let until = self.shared.exhausted.get(&remote);
        until.is_some_and(|until| *until > Clock::now())
    }

    /// The shared source address for a connection to a remote; `None` if the connection is the
    /// kernel's.
    pub(super) fn outgoing_source(&self, request: &Request) -> Option<IpAddr> {
        // A port that the program has chosen belongs to the kernel.
        let is_free = request.local_port == 0 && request.carrier.ip() == Ipv4Addr::LOCALHOST;
        if !is_free || !self.shared.goes_out || self.is_exhausted(request.remote) {
            return None;
        }
        let source = self.link.source_for(request.remote.ip())?;
        let is_ours = self.own.iter().any(|(ip, _)| *ip == source);
        is_ours.then_some(source)
    }

    pub(super) fn look_at_shared_ports(&mut self) {
        self.send_heartbeat();
        self.follow_routes();
        let now = Clock::now();
        if self.shared.gone.values().any(|until| *until <= now) {
            self.follow_host();
        }
        if self.shared.look_due.is_some_and(|due| due <= Clock::now()) {
            self.settle_shared_ports();
        }
    }

    /// Follows changes of the kernel's addresses. A removed address stays ours for a while, with
    /// its connections: tools that reconfigure an interface remove its addresses and add them
    /// again, and the kernel's own connections survive that.
    pub(super) fn follow_host(&mut self) {
        let settings = self.link.settings().clone();
        if settings.shares.is_empty() {
            return;
        }
        let Ok(mut resolved) = Link::resolve(&settings) else {
            // Without an answer nothing changes.
            return self.shared.put_off_gone();
        };
        self.keep_recently_lost(&mut resolved.settings);
        self.follow_addresses(&resolved.settings);
        self.take_neighbours();
    }

    /// Adds the shared addresses that the kernel lost a moment ago to the settings.
    pub(super) fn keep_recently_lost(&mut self, settings: &mut Settings) {
        let is_shared = |(ip, _): &&(IpAddr, IpAddr)| {
            let mut shares = settings.shares.iter();
            shares.any(|share| share.ip == *ip)
        };
        let own: Vec<_> = self.own.iter().filter(is_shared).copied().collect();
        let is_back = (self.shared).keep_recently_lost(&own, &mut settings.addresses);
        if is_back {
            // The restored address had no routes.
            self.shared.note_routes(&ALL_DESTINATIONS);
        }
    }

    /// Lets connections whose routes may have changed ask for them again. This takes at most an
    /// eighth of the time, however often routes change.
    fn follow_routes(&mut self) {
        let began = Clock::now();
        let is_due = (self.shared.look_at_routes_after).is_none_or(|after| after <= began);
        if self.shared.changed_routes.is_empty() || !is_due {
            return;
        }
        for (destination, prefix_bits) in std::mem::take(&mut self.shared.changed_routes) {
            self.engine.forget_next_hops(destination, prefix_bits);
        }
        self.put_off_routes(began);
    }

    /// Postpones the next look at routes, in proportion to the time since `began`.
    fn put_off_routes(&mut self, began: Clock) {
        let now = Clock::now();
        let after = self.shared.look_at_routes_after.unwrap_or(now).max(now);
        let after = after + 7 * (now - began);
        self.shared.look_at_routes_after = Some(after.min(now + ROUTES_LATE_MAX));
    }

    /// Takes over the kernel's neighbour table.
    pub(super) fn take_neighbours(&mut self) {
        let all = self.link.neighbours();
        self.note_neighbours(&all);
    }

    pub(super) fn note_neighbours(&mut self, all: &[HostNeighbour]) {
        if self.link.settings().shares.is_empty() {
            return;
        }
        let interface = self.link.index();
        for neighbour in all.iter().filter(|one| Some(one.interface) == interface) {
            let mac = MacAddress(neighbour.mac);
            self.engine.set_neighbour(neighbour.address, mac);
        }
    }

    /// Asks the kernel for the routes that the engine needs. True if there were any: the engine may
    /// have frames to send now.
    pub(super) fn find_next_hops(&mut self) -> bool {
        let mut next = self.engine.poll_next_hop();
        if next.is_none() {
            return false;
        }
        let (began, now) = (Clock::now(), self.now());
        let mut asked = 0;
        while let Some((local, remote)) = next {
            let hop = self.link.hop_to(local, remote);
            self.engine.set_next_hop(now, local, remote, hop);
            asked += 1;
            if asked == NEXT_HOPS_PER_TURN {
                // There may be more.
                self.inbox.ring();
                break;
            }
            next = self.engine.poll_next_hop();
        }
        self.put_off_routes(began);
        true
    }

    /// Lets the kernel find the neighbours that the engine needs. True if there were any.
    pub(super) fn find_neighbours(&mut self) -> bool {
        let mut has_asked = false;
        for _ in 0..QUESTIONS_PER_TURN {
            let Some(ip) = self.engine.poll_unresolved() else {
                break;
            };
            self.link.find_neighbour(ip);
            has_asked = true;
        }
        if has_asked {
            // The kernel sends no notification about a neighbour that it already knew.
            self.take_neighbours();
        }
        has_asked
    }

    pub(super) fn shared_reports(&self) -> Vec<SharedReport> {
        let settings = self.link.settings();
        let is_there = |ip: IpAddr| self.own.iter().any(|(own, _)| *own == ip);
        let shares = settings.shares.iter();
        let report = |share: &crate::engine::settings::Share| SharedReport {
            address: share.ip.to_string(),
            ports: share.ports_in_words(),
            in_use: (self.shared.ports.keys())
                .filter(|(ip, _)| *ip == share.ip)
                .map(|(_, port)| *port)
                .collect(),
            outgoing: settings.outgoing.as_ref().map(in_words),
            goes_out: self.shared.goes_out,
        };
        shares
            .filter(|share| is_there(share.ip))
            .map(report)
            .collect()
    }
}

/// The interval of the reports that a thread is awake. A report may be late by another interval.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
const _: () = assert!(2 * HEARTBEAT_INTERVAL.as_secs() < SILENCE_MAX.as_secs());
/// The interval of checks of ports without a listener, and of remotes without a free port.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The most remembered remotes without a free port. For further remotes each connection searches
/// again.
const EXHAUSTED_MAX: usize = 1_024;
/// The longest delay before the engine follows a changed route.
const ROUTES_LATE_MAX: Duration = Duration::from_secs(1);
/// The most changed destinations. If there are more, all destinations count as changed.
const CHANGED_ROUTES_MAX: usize = 64;
const ALL_DESTINATIONS: [(IpAddr, u8); 2] = [
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
];
/// The time in which a reconfigured interface, or a link that was down, gets its addresses back.
const GONE_TIME: Duration = Duration::from_secs(10);
/// The most routes in one turn. Each takes two or four system calls.
const NEXT_HOPS_PER_TURN: usize = 64;
/// The most neighbours in one turn. Each takes some system calls.
const QUESTIONS_PER_TURN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_that_is_gone_stays_for_a_while() {
        let (stays, goes) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let own = [stays, goes].map(|ip: IpAddr| (ip, ip));
        let mut shared = Shared::default();
        let follow = |shared: &mut Shared, kernels: &[IpAddr]| {
            let mut addresses = kernels.iter().map(|ip| (*ip, 24)).collect();
            let is_back = shared.keep_recently_lost(&own, &mut addresses);
            (addresses, is_back)
        };
        let all = vec![(stays, 24), (goes, 32)];
        assert_eq!(follow(&mut shared, &[stays]), (all.clone(), false));
        let due = shared.due().expect("it ends");
        assert_eq!(follow(&mut shared, &[stays]), (all, false));
        assert_eq!(shared.due(), Some(due), "not later");
        let both = vec![(stays, 24), (goes, 24)];
        assert_eq!(follow(&mut shared, &[stays, goes]), (both, true));
        assert_eq!(shared.due(), None);
        shared.gone.insert(goes, Clock::now());
        assert_eq!(follow(&mut shared, &[stays]), (vec![(stays, 24)], false));
        assert_eq!(shared.due(), None);
    }

    /// Otherwise the thread would look at the kernel's addresses in every turn, for ever.
    #[test]
    fn address_that_is_gone_is_forgotten_when_it_is_no_longer_ours() {
        let (stays, goes) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let own = [stays, goes].map(|ip: IpAddr| (ip, ip));
        let mut shared = Shared::default();
        shared.keep_recently_lost(&own, &mut vec![(stays, 24)]);
        assert!(shared.due().is_some());
        // `SIGHUP` comes with settings that do not have the address.
        let mut addresses = vec![(stays, 24)];
        assert!(!shared.keep_recently_lost(&own[..1], &mut addresses));
        assert_eq!((addresses, shared.due()), (vec![(stays, 24)], None));
    }

    #[test]
    fn kernel_that_does_not_answer_is_not_asked_in_every_turn() {
        let mut shared = Shared::default();
        shared.gone.insert([10, 0, 0, 2].into(), Clock::now());
        shared.put_off_gone();
        assert!(shared.due() > Some(Clock::now() + LOOK_INTERVAL / 2));
    }
}
