//! Commands of the daemon (requests, new settings), a new MTU of the link, and the report to the
//! daemon.

use std::time::Instant as Clock;

use toehold_tcp::{EcnMode, InterfaceAddress, MacAddress};

use super::Runner;
use crate::engine::arrivals::Arrivals;
use crate::engine::flow::{Flow, Opener};
use crate::engine::listeners::{LISTENERS_MAX, LISTENERS_OF_ONE_MAX};
use crate::engine::loopback_aliases::shown;
use crate::engine::report::{
    FLOWS_REPORTED_MAX, FlowReport, Report, Switches, malformed_by_reason,
};
use crate::engine::settings::{self, Settings};
use crate::engine::tcp_config::{offload, routes};
use crate::engine::{Command, ForAll, Listening, LivenessChange};
use crate::proc;

/// The most commands of the daemon in one turn, taken before everything else.
const COMMANDS_PER_TURN: usize = 256;

impl Runner {
    pub(super) fn look_at_link(&mut self) {
        let changed = self.link.take_changes();
        if self.link.follow() {
            let mac = MacAddress(self.link.mac());
            self.engine.change_interface(mac);
            self.shared.forget();
            self.settle_outgoing_ports();
            self.follow_host();
            if !self.passed_on.is_stalled() {
                self.watch_link();
            }
        } else if self.link.device.is_over() {
            self.unwatch_link();
        }
        if changed.addresses {
            self.follow_host();
        }
        self.shared.note_routes(&changed.routes);
        self.follow_rules();
        self.note_neighbours(&changed.neighbours);
        let Some(mtu) = self
            .link
            .mtu()
            .filter(|mtu| *mtu != self.mtu && !self.mtu_is_fixed)
        else {
            return;
        };
        self.mtu = mtu;
        let now = self.now();
        self.engine.set_mtu(now, mtu);
    }

    pub(super) fn take_commands(&mut self) -> bool {
        for _ in 0..COMMANDS_PER_TURN {
            let Some(command) = self.inbox.next() else {
                return true;
            };
            match command {
                Command::Listen(wanted) => self.listen(&wanted),
                Command::LookAtListeners => self.doubt_listeners(),
                Command::SetLiveness(change) => self.set_liveness(&change),
                Command::Report(answer) => drop(answer.try_send(self.report())),
                Command::Open(given) => self.open(given),
                Command::TakeBackToken(token) => {
                    self.give_all(Arrivals::take_waiting);
                    self.common.tokens.take_back(token);
                }
                Command::Reconfigure(change) => self.reconfigure(&change),
                Command::Stop => return false,
            }
        }
        // There may be more.
        self.inbox.ring();
        true
    }

    fn listen(&mut self, wanted: &ForAll<Listening>) {
        let (engine, ours) = (&mut self.engine, &self.own);
        let connections = &self.connections;
        if self.listeners.add(engine, ours, wanted.order, connections) {
            self.settle_shared_ports();
        }
        if wanted.is_followed_by_all() {
            self.channels.report_listening(wanted.order.holder.client);
        }
    }

    /// A program's liveness settings apply to its own connections only. If the connection is not
    /// here, another thread has it. A remote's connection may be that of any program in the group
    /// (`SO_REUSEPORT`) that listens at its end, because the kernel has selected the program.
    fn set_liveness(&mut self, change: &LivenessChange) {
        let id = self.engine.connection_between(change.local, change.remote);
        let flow = id.and_then(|id| self.flows.get(id.index())?.as_ref());
        let is_its = |flow: &&Flow| {
            let (end, family) = (change.local, change.family);
            flow.holder.family == family
                || flow.opener == Opener::Remote
                    && self.listeners.is_of_family(&self.own, end, family)
        };
        let Some(flow) = flow.filter(is_its) else {
            return;
        };
        let (id, now) = (flow.id, self.now());
        let (keepalive, user_timeout) = (change.keepalive, change.user_timeout);
        // The call fails only for a connection that is over.
        let _ = self.engine.set_liveness(now, id, keepalive, user_timeout);
    }

    /// Applies changed addresses, routes, rules or MTU. Connections of a removed address end on
    /// both sides; all others go on.
    fn reconfigure(&mut self, change: &ForAll<Settings>) {
        let mut settings = change.order.clone();
        self.keep_recently_lost(&mut settings);
        let settings = &settings;
        let now = self.now();
        if self.link.reconfigure(settings).is_err() {
            // Frames that cannot be steered here go to the kernel, which drops them.
            self.report.frames_lost += 1;
        }
        self.connections = settings.connections.clone();
        self.follow_addresses(settings);
        if change.is_followed_by_all() {
            let (rules, own) = (settings.all_rules(), shown(&self.own));
            self.common.routing_page.publish(&rules, &own);
        }
        self.report.reconfigured += 1;
        (self.coalesce, self.batch) = (settings.coalesce, settings.batch);
        self.splits_headers = settings.split_headers;
        self.receiver.set_checksum(settings.checksum);
        let copybreak = settings.copybreak.unwrap_or(usize::MAX);
        self.streams.copying.set(settings.copy_engine, copybreak);
        self.engine.set_offload(offload(settings));
        self.quota = settings.quota;
        self.memory_bytes = settings.memory_bytes;
        let budget_bytes = self.memory_bytes / self.engine.config().share.count();
        self.streams.rings().set_budget(budget_bytes);
        self.mtu_is_fixed = settings.mtu.is_some();
        if let Some(mtu) = settings
            .mtu
            .or_else(|| self.link.mtu())
            .filter(|mtu| *mtu != self.mtu)
        {
            self.mtu = mtu;
            self.engine.set_mtu(now, mtu);
        }
    }

    /// Replaces the addresses and routes by those of the settings, and updates the listeners.
    pub(super) fn follow_addresses(&mut self, settings: &Settings) {
        for &(address, prefix_bits) in &settings.addresses {
            let address = InterfaceAddress {
                address,
                prefix_bits,
            };
            self.engine.add_address(address);
        }
        self.engine.set_routes(&routes(settings));
        let before = std::mem::replace(&mut self.own, self.loopback_aliases.for_all(settings));
        self.listeners.set_shares(&settings.shares);
        self.listeners
            .follow(&mut self.engine, &self.own, &self.connections);
        for (ip, _) in before {
            if !self.own.iter().any(|(own, _)| *own == ip) {
                self.engine.remove_address(ip);
            }
        }
        self.settle_shared_ports();
        self.settle_outgoing_ports();
    }

    /// Notes that a listener may be gone. The check follows soon, but all checks take at most an
    /// eighth of the time, however often this is called.
    pub(super) fn doubt_listeners(&mut self) {
        let due = &mut self.look_at_listeners_due;
        *due = due.or(Some(self.look_at_listeners_after));
    }

    pub(super) fn look_at_listeners(&mut self) {
        let began = Clock::now();
        if self.look_at_listeners_due.is_none_or(|due| due > began) {
            return;
        }
        self.look_at_listeners_due = None;
        if self.listeners.is_empty() {
            return;
        }
        let living = proc::listening();
        let is_there = |address| living.contains(&address);
        let has_passed = self.listeners.retain_living(&mut self.engine, is_there);
        if has_passed {
            let (ours, connections) = (&self.own, &self.connections);
            self.listeners.follow(&mut self.engine, ours, connections);
        }
        self.settle_shared_ports();
        self.look_at_listeners_after = Clock::now() + 7 * began.elapsed();
    }

    fn flow_reports(&self) -> Vec<FlowReport> {
        let flows = self.flows.iter().flatten().take(FLOWS_REPORTED_MAX);
        let report = |flow: &Flow| {
            let info = self.engine.info(flow.id)?;
            Some(FlowReport {
                local: info.local.to_string(),
                remote: info.remote.to_string(),
                congestion: settings::name_of(info.congestion),
                ecn: info.ecn != EcnMode::Off,
                accurate_ecn: info.ecn == EcnMode::Accurate,
                pacing: info.pacing,
                round_trip_us: info.round_trip.map(|time| time.as_micros()),
                congestion_window: info.congestion_window,
                receive_window: info.receive_limit,
                in_flight: info.in_flight,
            })
        };
        flows.filter_map(report).collect()
    }

    fn switches(&self) -> Switches {
        let (copy_engine, copybreak) = self.streams.copying.engine();
        let offload = self.engine.config().offload;
        Switches {
            lso: offload.segmentation_bytes_max > 0,
            lro: self.link.joins(),
            checksum: self.receiver.checksum().name(),
            split_headers: self.splits_headers,
            copy_engine,
            copybreak,
            coalesce_us: self.coalesce.as_micros() as u64,
            threads: self.engine.config().share.count(),
            batch: self.batch,
            quota: self.quota,
            memory_mb: self.memory_bytes >> 20,
        }
    }

    fn report(&mut self) -> Report {
        self.report.frames_lost += self.link.device.take_lost();
        let counters = self.engine.counters();
        Report {
            link: self.common.link.clone(),
            addresses: self.own.iter().map(|(ip, _)| ip.to_string()).collect(),
            shared: self.shared_reports(),
            mtu: self.mtu,
            link_mode: self.link.device.mode(),
            link_gone: self.link.is_gone(),
            connections: self.flows.iter().flatten().count(),
            channels: (self.flows.iter().flatten())
                .filter(|flow| flow.beside.channel().is_some())
                .count(),
            flows: self.flow_reports(),
            listeners: self.listeners.len(),
            listeners_refused: self.listeners.refused(),
            listeners_of_one_max: LISTENERS_OF_ONE_MAX,
            listeners_max: LISTENERS_MAX,
            captures: self.common.captures.len(),
            frames_received: counters.frames_received,
            frames_sent: counters.frames_sent,
            frames_malformed: counters.malformed_total(),
            frames_malformed_by_reason: malformed_by_reason(&counters),
            segments_received: counters.segments_received,
            segments_sent: counters.segments_sent,
            bytes_received: counters.bytes_received,
            bytes_sent: counters.bytes_sent,
            retransmissions: counters.retransmissions,
            timeouts: counters.timeouts,
            resets_sent: counters.resets_sent,
            resets_received: counters.resets_received,
            connections_opened: counters.connections_opened,
            connections_accepted: counters.connections_accepted,
            connections_on_used_carriers: self.carriers.reused(),
            carriers_parked: self.carriers.parked(),
            fast_opens_sent: counters.fast_opens_sent,
            fast_opens_acknowledged: counters.fast_opens_acknowledged,
            fast_opens_accepted: counters.fast_opens_accepted,
            fast_opens_declined: counters.fast_opens_declined,
            memory_bytes: self.streams.rings().used_bytes(),
            memory_of_carriers_bytes: self.streams.rings().carrier_bytes(),
            memory_refused: self.streams.rings().refused(),
            memory_pruned: self.pruning.pruned,
            carriers_refused: self.arrivals.as_ref().map_or(0, Arrivals::refused),
            payloads_in_place: self.receiver.placed(),
            switches: self.switches(),
            new_connections: self.connections.reported(),
            payloads_by_engine: self.streams.copying.submitted().0,
            bytes_by_engine: self.streams.copying.submitted().1,
            frames_passed_on: self.passed_on.taken,
            frames_not_passed_on: self.passed_on.refused,
            stalls: self.passed_on.stalls,
            ..self.report.clone()
        }
    }
}
