//! A packet capture must see all that it would see without Toehold. So connections whose packets it
//! would receive use their carriers during the capture. They also do so for a firewall rule that
//! was added while the adapter runs ([`Firewall`]), and for traffic control of the loopback device
//! ([`Shaping`]).
//!
//! There is no event for the opening of a packet socket. So while there are channels, or
//! connections that yield, the kernel is asked every [`LOOK_INTERVAL`] for the packet sockets in
//! our own network namespace and in those that clients have shown. Before a channel is made, the
//! last look must not be older than that. When the answer changes, the commands in all tables are
//! updated ([`tables::yield_to_capture`]).
//!
//! For rules and traffic control there are events, in our own network namespace only; for rules
//! only with the right to listen.
//!
//! A client still holds the socket that it has shown, and can disturb our requests on it. Then the
//! socket of another client in that namespace is used; if none works, the last answer stays valid.

use super::Daemon;
use super::poller::Source;
use crate::diag::{Diag, Observers};
use crate::firewall::Firewall;
use crate::proc;
use crate::registry::{End, TableId, Tuple};
use crate::rules::Observability;
use crate::shaping::Shaping;
use crate::tables::{self, MappedTable};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use toehold_channel::table::{Entry, FLAG_OFFLOAD, Mode};
use toehold_channel::untrusted::Word32;

/// The daemon's knowledge of packet captures.
#[derive(Debug, Default)]
pub(super) struct Observation {
    /// The observers, by network namespace; namespaces without one are left out.
    observers: BTreeMap<u64, Observers>,
    /// The new rules of our own namespace. Without `CAP_NET_ADMIN` there are no events for them.
    firewall: Option<Firewall>,
    /// The traffic control of our own namespace.
    shaping: Option<Shaping>,
    /// Our own namespace.
    own: Option<u64>,
    looked: Option<Instant>,
    /// When to look again.
    due: Option<Instant>,
    /// The client namespace that was asked last. If there are many namespaces, they are asked in
    /// turns.
    asked_last: u64,
    /// Tables that may have connections in rings which a former adapter has introduced.
    of_before: BTreeSet<TableId>,
}

impl Observation {
    /// Gets events of rules from `firewall`, and of traffic control, both for the namespace with
    /// number `own`.
    pub(super) fn new(own: Option<u64>, firewall: Option<Firewall>) -> Observation {
        Observation {
            firewall,
            shaping: Shaping::open().ok(),
            own,
            ..Observation::default()
        }
    }

    /// The descriptors that become readable with events, and the kind of each.
    pub(super) fn sources(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Source)> {
        let rules = self.firewall.as_ref().map(Firewall::as_fd);
        let shaping = self.shaping.as_ref().map(Shaping::as_fd);
        let sources = [(rules, Source::Firewall), (shaping, Source::Shaping)];
        sources
            .into_iter()
            .filter_map(|(fd, source)| Some((fd?, source)))
    }

    /// When to look again without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The captures, the rules and the traffic control that must see connections, in words; `None`
    /// without any.
    fn spectators(&self) -> Option<String> {
        let captures = self.observers.values().any(|it| !it.inodes.is_empty());
        let count = self.firewall.as_ref().map_or(0, Firewall::count);
        let rules = match count {
            0 => None,
            1 => Some("a new firewall rule".to_owned()),
            _ => Some(format!("{count} new firewall rules")),
        };
        let capture = captures.then(|| "a packet capture".to_owned());
        let looking = match (capture, rules) {
            (None, None) => None,
            (Some(one), None) => Some(format!("{one} observes connections")),
            (None, Some(one)) if count == 1 => Some(format!("{one} observes connections")),
            (None, Some(many)) => Some(format!("{many} observe connections")),
            (Some(capture), Some(rules)) => {
                Some(format!("{capture} and {rules} observe connections"))
            }
        };
        let shaped = || "the loopback device has traffic control".to_owned();
        let shaped = self.is_shaped().then(shaped);
        match (looking, shaped) {
            (Some(looking), Some(shaped)) => Some(format!("{looking}, and {shaped}")),
            (looking, shaped) => looking.or(shaped),
        }
    }

    fn sees(&self, tuple: &Tuple) -> bool {
        let observers = self.observers.get(&tuple.netns);
        observers.is_some_and(|observers| observers.see(tuple))
            || self
                .rules_at(tuple.netns)
                .is_some_and(|rules| rules.sees(tuple))
            // No packet carries the bytes of a Unix socket.
            || self.is_shaped() && self.own == Some(tuple.netns) && tuple.spoken().is_some()
    }

    /// Whether the packets of a carrier between two namespaces are seen: in this end's namespace,
    /// or in our own, through which they may go.
    fn sees_crossing(&self, tuple: &Tuple) -> bool {
        let places = [Some(tuple.netns), self.own];
        places.into_iter().flatten().any(|place| {
            let there = self.observers.get(&place);
            let rules = self.rules_at(place);
            there.is_some_and(|observers| observers.see_crossing(tuple))
                || rules.is_some_and(|rules| rules.sees_crossing(tuple))
        })
    }

    /// Whether any connection within a namespace is seen.
    fn sees_any(&self) -> bool {
        let rules = self.firewall.as_ref().map_or(0, Firewall::count);
        rules > 0 || self.is_shaped() || self.observers.values().any(Observers::see_any)
    }

    fn is_shaped(&self) -> bool {
        self.shaping.as_ref().is_some_and(Shaping::is_shaped)
    }

    fn rules_at(&self, namespace: u64) -> Option<&Firewall> {
        let is_own = self.own == Some(namespace);
        self.firewall.as_ref().filter(|_| is_own)
    }

    /// Stores an answer. True when a different set of connections must yield now.
    fn learn(&mut self, namespace: u64, observers: Observers) -> bool {
        let before = match observers.are_none() {
            false => self.observers.insert(namespace, observers.clone()),
            true => self.observers.remove(&namespace),
        };
        !before.unwrap_or_default().see_as(&observers)
    }
}

impl Daemon {
    /// Looks for captures, when it is time, and updates the commands of connections.
    pub(super) fn observe(&mut self) {
        let has_own = self.registry.channel_count() > 0 || !self.observation.observers.is_empty();
        let is_wanted = has_own || self.has_strangers();
        if !self.is_interested_in_captures() || !is_wanted {
            self.observation.due = None;
            return;
        }
        self.look();
        self.observation.due = self.observation.looked.map(|looked| looked + LOOK_INTERVAL);
    }

    /// Reads the kernel's events of firewall rules, and updates the commands of connections.
    pub(super) fn handle_firewall(&mut self) {
        let firewall = self.observation.firewall.as_mut();
        let has_changed = firewall.is_some_and(Firewall::learn);
        self.follow(has_changed);
    }

    /// Reads the kernel's events of traffic control, and updates the commands of connections.
    pub(super) fn handle_shaping(&mut self) {
        let shaping = self.observation.shaping.as_mut();
        let has_changed = shaping.is_some_and(Shaping::learn);
        self.follow(has_changed);
    }

    fn follow(&mut self, has_changed: bool) {
        if has_changed && self.is_interested_in_captures() {
            self.show_all_to_captures();
        }
    }

    /// Whether a capture would see the carrier of an end that asks for a channel. Also sets the
    /// end's command.
    pub(super) fn is_captured(&mut self, end: End, tuple: &Tuple) -> bool {
        if self.options.observability == Observability::Ignore {
            return false;
        }
        self.look();
        let is_captured = self.observation.sees(tuple);
        if let Some(entry) = self.tables.current(end) {
            tables::yield_to_capture(entry, is_captured);
        }
        is_captured
    }

    /// Asks the kernel about packet sockets, unless it was asked a moment ago.
    fn look(&mut self) {
        let now = Instant::now();
        let is_recent = |looked| now < looked + LOOK_INTERVAL;
        if self.observation.looked.is_some_and(is_recent) {
            return;
        }
        self.observation.looked = Some(now);
        let mut has_changed = false;
        let answers = self.ask_all();
        for (namespace, observers) in answers {
            has_changed |= self.observation.learn(namespace, observers);
        }
        if has_changed {
            self.show_all_to_captures();
        }
    }

    /// The answers for our own namespace and for those of clients.
    fn ask_all(&mut self) -> Vec<(u64, Observers)> {
        let own = self.diag.as_ref();
        let own_namespace = own.map(Diag::namespace);
        let mut shown: BTreeMap<u64, Vec<&Diag>> = BTreeMap::new();
        for diag in self.clients.values().filter_map(|it| it.diag.as_ref()) {
            shown.entry(diag.namespace()).or_default().push(diag);
        }
        shown.retain(|&namespace, _| Some(namespace) != own_namespace);
        let observation = &mut self.observation;
        // A namespace without clients has no connections that could yield.
        observation.observers.retain(|namespace, _| {
            Some(*namespace) == own_namespace || shown.contains_key(namespace)
        });
        let later = shown.range(observation.asked_last.saturating_add(1)..);
        let earlier = shown.range(..=observation.asked_last);
        let turn: Vec<_> = later.chain(earlier).take(NAMESPACES_PER_LOOK).collect();
        if let Some(&(&last, _)) = turn.last() {
            observation.asked_last = last;
        }
        let is_virtual = |interface| !proc::is_of_hardware(interface);
        let own = own.and_then(|own| Some((own.namespace(), own.observers(&is_virtual)?)));
        let others = turn.into_iter().filter_map(|(&namespace, diags)| {
            let mut diags = diags.iter().take(CLIENTS_PER_NAMESPACE);
            // The devices of other namespaces are not known.
            let observers = diags.find_map(|diag| diag.observers(&|_| true));
            Some((namespace, observers?))
        });
        own.into_iter().chain(others).collect()
    }

    /// Updates the commands of all connections by the captures.
    pub(super) fn show_all_to_captures(&mut self) {
        let own = self.engine_tables();
        let tables = self.tables.iter().map(|(id, _)| id);
        let tables: Vec<TableId> = tables.filter(|id| !own.contains(id)).collect();
        let changed: usize = tables.iter().map(|&id| self.yield_table(id)).sum();
        for id in tables {
            self.tables.call_attention(id);
        }
        let spectators = self.observation.spectators();
        let kind = match spectators {
            None => "uncaptured",
            Some(_) => "captured",
        };
        self.log.log_limited(kind, || match spectators {
            None => format!(
                "nothing observes connections any more: {changed} connections return \
            to shared memory"
            ),
            Some(who) => format!("{who}: {changed} connections move to the kernel"),
        });
    }

    /// Whether there is a connection in a ring that another adapter has introduced. Tables without
    /// such connections are not looked at again.
    fn has_strangers(&mut self) -> bool {
        while let Some(&table) = self.observation.of_before.first() {
            if self.has_strangers_in(table) {
                return true;
            }
            self.observation.of_before.remove(&table);
        }
        false
    }

    fn has_strangers_in(&self, id: TableId) -> bool {
        let table = self.tables.get(id);
        let mut live = table.into_iter().flat_map(MappedTable::live);
        live.any(|(index, entry)| {
            let is_offloaded = entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
            let modes = [&entry.tx_mode, &entry.rx_mode];
            let is_up = |mode: &Word32| mode.load(Ordering::Relaxed).is(Mode::Ring as u32);
            !is_offloaded && modes.into_iter().any(is_up) && self.known(id, index, entry).is_none()
        })
    }

    /// The registered end of a table's entry.
    fn known(&self, id: TableId, index: u32, entry: &Entry) -> Option<(End, Tuple)> {
        let generation = entry.channel_generation.load(Ordering::Relaxed);
        let known = self.registry.end(id, index);
        known.filter(|(end, _)| end.generation == generation)
    }

    /// Updates the commands of one client's connections: a former adapter may have left
    /// connections, and commands.
    pub(super) fn show_to_captures(&mut self, table: TableId) {
        if !self.engine_tables().contains(&table) {
            self.observation.of_before.insert(table);
        }
        self.yield_table(table);
        self.tables.call_attention(table);
    }

    /// Updates the commands of the two ends of a new channel, if both ends matter: because a rule
    /// sets `observability`, or the carrier crosses between namespaces.
    pub(super) fn show_to_captures_by_both(&mut self, ends: [End; 2]) {
        let by_rule = self.options.rules.has_capture_rule();
        let crosses =
            self.registry.translated(ends[0]).is_some() && self.is_interested_in_captures();
        if !(by_rule || crosses) || self.is_engines(ends) {
            return;
        }
        self.look();
        for end in ends {
            let known = self.registry.claim(end);
            let is_seen = known.is_some_and(|(tuple, _)| self.is_to_yield(end, &tuple));
            if let Some(entry) = self.tables.current(end) {
                tables::yield_to_capture(entry, is_seen);
            }
        }
    }

    /// Whether a known end must use its carrier, because of a rule or a capture.
    fn is_to_yield(&self, end: End, tuple: &Tuple) -> bool {
        let is_seen = match self.registry.translated(end) {
            None => self.observation.sees(tuple),
            // Both ends yield together: it is enough that the packets of one are seen.
            Some(other) => {
                let sees = |tuple: &Tuple| {
                    self.observation.sees(tuple) || self.observation.sees_crossing(tuple)
                };
                sees(tuple) || sees(&other)
            }
        };
        let rules = &self.options.rules;
        if rules.is_empty() {
            return is_seen;
        }
        let ends = self.ends_of_connection(end);
        rules.against(&ends).is_some()
            || is_seen
                && rules
                    .observability(&ends)
                    .unwrap_or(self.options.observability)
                    == Observability::Yield
    }

    fn is_interested_in_captures(&self) -> bool {
        let by_rule = self.options.rules.has_capture_rule();
        by_rule || self.options.observability == Observability::Yield
    }

    pub(super) fn yield_table(&self, id: TableId) -> usize {
        let Some(table) = self.tables.get(id) else {
            return 0;
        };
        let changed = table.live().filter(|(index, entry)| {
            let known = self.known(id, *index, entry);
            // Bytes that the engine carries can be seen on its link. An unknown connection may have
            // a channel of a former adapter.
            let is_offloaded = entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
            let is_seen = match known {
                _ if is_offloaded => false,
                Some((end, tuple)) => self.is_to_yield(end, &tuple),
                None => self.observation.sees_any(),
            };
            tables::yield_to_capture(entry, is_seen)
        });
        changed.count()
    }
}

/// Time between two looks. With it, a new capture sees all connections within a tenth of a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(30);
/// The most client namespaces that are asked in one look.
const NAMESPACES_PER_LOOK: usize = 64;
/// The most clients of one namespace whose sockets are tried.
const CLIENTS_PER_NAMESPACE: usize = 4;
