//! Addresses that the host has as well: which of their ports are the engine's now, and what the
//! kernel says of its tables.
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

/// The ports that this thread has announced.
#[derive(Debug, Default)]
pub(super) struct Shared {
    ports: BTreeMap<(IpAddr, u16), PortUse>,
    /// When to look whether connections are left where nobody listens any more.
    look_due: Option<Clock>,
    /// When to say again that this thread is awake; `None`: it never has.
    awake_due: Option<Clock>,
    /// Connections of programs may go out.
    goes_out: bool,
    /// Destinations whose routes may be other ones, when to look at them, and the earliest time for
    /// it after the last time.
    changed_routes: Vec<(IpAddr, u8)>,
    look_at_routes_after: Option<Clock>,
    /// Remotes towards which no port was left, and when to look again.
    exhausted: BTreeMap<SocketAddr, Clock>,
    /// Addresses that the kernel has no more, and when their connections end.
    gone: BTreeMap<IpAddr, Clock>,
}

impl Shared {
    /// There is another table, of which nothing is known.
    pub(super) fn forget(&mut self) {
        self.ports.clear();
        self.awake_due = None;
    }

    /// When the thread has to look at its ports or routes, or to speak.
    pub(super) fn due(&self) -> Option<Clock> {
        let routes = match self.changed_routes.is_empty() {
            true => None,
            false => self.look_at_routes_after,
        };
        (self.look_due.into_iter())
            .chain(self.awake_due)
            .chain(routes)
            .chain(self.gone.values().copied().min())
            .min()
    }

    /// Adds those of our addresses that the kernel has lost a moment ago; whether one of them is
    /// back.
    fn keep_lost(&mut self, own: &[(IpAddr, IpAddr)], addresses: &mut Vec<(IpAddr, u8)>) -> bool {
        let now = Clock::now();
        let before = self.gone.len();
        let is_there = |ip: IpAddr| addresses.iter().any(|(there, _)| *there == ip);
        self.gone.retain(|ip, _| !is_there(*ip));
        let is_back = self.gone.len() < before;
        let lost = own.iter().filter(|(ip, _)| !is_there(*ip));
        let lost: Vec<IpAddr> = lost.map(|(ip, _)| *ip).collect();
        for ip in lost {
            let until = *self.gone.entry(ip).or_insert(now + GONE_TIME);
            if until > now {
                // The kernel decides what is on the link, by its routes.
                addresses.push((ip, if ip.is_ipv4() { 32 } else { 128 }));
            } else {
                self.gone.remove(&ip);
            }
        }
        is_back
    }

    /// The kernel's routes to these destinations may be other ones.
    pub(super) fn note_routes(&mut self, changed: &[(IpAddr, u8)]) {
        self.changed_routes.extend(changed);
        if self.changed_routes.len() > CHANGED_ROUTES_MAX {
            self.changed_routes = ALL_DESTINATIONS.to_vec();
        }
    }
}

impl Runner {
    /// Says which ports are the engine's: those where programs listen, and those that have
    /// connections still.
    pub(super) fn settle_shared_ports(&mut self) {
        // Before the first request for a connection may come.
        self.say_awake();
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
        // Frames of such a port go where they went before.
        self.report.ports_not_set += lost;
        let has_left = wanted.values().any(|how| *how == PortUse::Connected);
        self.shared.look_due = has_left.then(|| Clock::now() + LOOK_INTERVAL);
        self.shared.ports = wanted;
    }

    /// Says, now and then, that requests for connections will be answered.
    fn say_awake(&mut self) {
        let Some(table) = self.link.shares() else {
            return;
        };
        let now = Clock::now();
        if self.shared.awake_due.is_none_or(|due| due <= now) {
            let thread = self.engine.config().share.index();
            // Unsaid, it has the kernel answer.
            let _ = table.note_awake(thread);
            self.shared.awake_due = Some(now + AWAKE_INTERVAL);
            self.follow_rules();
        }
    }

    /// Says from which ports connections of programs go out: all that there are for it. Where the
    /// kernel gives such ports to connections of others, those of connections that are there.
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

    /// The kernel's rules may be other ones.
    pub(super) fn follow_rules(&mut self) {
        if self.link.follow_rules() {
            self.settle_outgoing_ports();
        }
    }

    /// No port is left towards a remote. A client of many short connections would have all of them
    /// looked at for each.
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

    /// The shared address that a connection to a remote is to go out from; `None` where it is the
    /// kernel's.
    pub(super) fn outgoing_source(&self, request: &Request) -> Option<IpAddr> {
        // A port of the program's choice is one of the kernel's.
        let is_free = request.local_port == 0 && request.carrier.ip() == Ipv4Addr::LOCALHOST;
        if !is_free || !self.shared.goes_out || self.is_exhausted(request.remote) {
            return None;
        }
        let source = self.link.source_for(request.remote.ip())?;
        let is_ours = self.own.iter().any(|(ip, _)| *ip == source);
        is_ours.then_some(source)
    }

    pub(super) fn look_at_shared_ports(&mut self) {
        self.say_awake();
        self.follow_routes();
        let now = Clock::now();
        if self.shared.gone.values().any(|until| *until <= now) {
            self.follow_host();
        }
        if self.shared.look_due.is_some_and(|due| due <= Clock::now()) {
            self.settle_shared_ports();
        }
    }

    /// The kernel's addresses are other ones. One that is gone stays ours for a while, with its
    /// connections: whoever configures an interface anew takes its addresses away and brings them
    /// back, and the kernel's connections outlive that.
    pub(super) fn follow_host(&mut self) {
        let settings = self.link.settings().clone();
        if settings.shares.is_empty() {
            return;
        }
        // Without an answer all stays as it is.
        if let Ok(mut resolved) = Link::resolve(&settings) {
            let addresses = &mut resolved.settings.addresses;
            if self.shared.keep_lost(&self.own, addresses) {
                // There was no way from that address.
                self.shared.note_routes(&ALL_DESTINATIONS);
            }
            self.follow_addresses(&resolved.settings);
            self.take_neighbours();
        }
    }

    /// Has connections ask anew whose routes may be other ones. It spends no more than an eighth of
    /// the time on routes, however often some change.
    fn follow_routes(&mut self) {
        let began = Clock::now();
        let is_due = (self.shared.look_at_routes_after).is_none_or(|after| after <= began);
        if self.shared.changed_routes.is_empty() || !is_due {
            return;
        }
        for (destination, prefix_bits) in std::mem::take(&mut self.shared.changed_routes) {
            self.engine.forget_ways(destination, prefix_bits);
        }
        self.put_off_routes(began);
    }

    /// So much time since then was spent on the kernel's routes.
    fn put_off_routes(&mut self, began: Clock) {
        let now = Clock::now();
        let after = self.shared.look_at_routes_after.unwrap_or(now).max(now);
        let after = after + 7 * (now - began);
        self.shared.look_at_routes_after = Some(after.min(now + ROUTES_LATE_MAX));
    }

    /// Takes over what the kernel knows of neighbours.
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

    /// Asks the kernel for those ways that the engine has no answer about; true when there were
    /// some, so that there may be something to send now.
    pub(super) fn find_ways(&mut self) -> bool {
        let mut next = self.engine.poll_way();
        if next.is_none() {
            return false;
        }
        let (began, now) = (Clock::now(), self.now());
        let mut asked = 0;
        while let Some((local, remote)) = next {
            let hop = self.link.hop_to(local, remote);
            self.engine.set_way(now, local, remote, hop);
            asked += 1;
            if asked == WAYS_PER_TURN {
                // There may be more.
                self.inbox.ring();
                break;
            }
            next = self.engine.poll_way();
        }
        self.put_off_routes(began);
        true
    }

    /// Has the kernel find those neighbours that the engine asks for; true when there were some.
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
            // One that it knew already is no news to it.
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

/// How often a thread says that it is awake: it may be late by as much again.
const AWAKE_INTERVAL: Duration = Duration::from_secs(1);
const _: () = assert!(2 * AWAKE_INTERVAL.as_secs() < SILENCE_MAX.as_secs());
/// How often to look at ports that only have connections left, or that none was free of.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Remotes that are remembered: more are looked at anew.
const EXHAUSTED_MAX: usize = 1_024;
/// The engine follows a route after this time, however busy it is with them.
const ROUTES_LATE_MAX: Duration = Duration::from_secs(1);
/// More are all destinations.
const CHANGED_ROUTES_MAX: usize = 64;
const ALL_DESTINATIONS: [(IpAddr, u8); 2] = [
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
];
/// An interface that is configured anew, or a link that was down, has its addresses again within
/// this time.
const GONE_TIME: Duration = Duration::from_secs(10);
/// Each is two system calls, or four.
const WAYS_PER_TURN: usize = 64;
/// Each is some system calls.
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
            let is_back = shared.keep_lost(&own, &mut addresses);
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
}
