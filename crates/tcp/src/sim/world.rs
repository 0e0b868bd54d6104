//! The event loop: takes the next event and sets the time to its time.

mod competition;
mod hostile;
mod withdrawal;

use core::net::SocketAddr;
use std::collections::BTreeMap;

use super::agenda::Agenda;
use super::checker::{self, Checker};
use super::host::{Handshake, Host, LINK_BYTES, Program, SERVER_PORT, address_of, frame, host_of};
use super::impair::{Cut, flip_bit, fragments, mark_congestion, shrink_window, too_big};
use super::link::Fate;
use super::report::Report;
use super::rival::Rival;
use super::scenario::Scenario;
use super::spares::Spares;
use crate::{CloseReason, ConnectionId, Duration, Event, Instant, Random, ReceiveOffload, State};
use withdrawal::Withdrawal;

/// The first port of transfers that are opened from both sides: such a transfer has one port number
/// for both ends.
const SIMULTANEOUS_PORTS: u16 = 10_000;
/// No simulation takes longer, even over bad links, unless it hangs.
const VIRTUAL_TIME_MAX: Duration = Duration::from_secs(8 * 3_600);
/// A host that needs longer for its handshake may be refused: a SYN cookie is valid for at least a
/// minute.
const HANDSHAKE_MAX: Duration = Duration::from_secs(60);
/// The pause of a link that does not accept all frames at once.
const LINK_PAUSE: Duration = Duration::from_micros(100);
const FRAME_BYTES_MAX: usize = 70_000;
/// The number of scoreboard records that are checked per step on average, if there are more.
const RECORDS_A_STEP: usize = 8;

#[derive(Debug)]
enum Happening {
    Arrival {
        host: usize,
        packet: Vec<u8>,
        intact: bool,
    },
    Wake {
        host: usize,
    },
    Start {
        transfer: usize,
    },
    Reboot {
        host: usize,
    },
    /// From now on a host's link has a smaller MTU, or its original MTU again.
    Mtu {
        host: usize,
        mtu: u16,
    },
    /// From now on a host's memory is short, by one of the scenario's shortages, or no longer
    /// short.
    Memory {
        shortage: usize,
        is_short: bool,
    },
    Forgery,
    /// This many SYNs are still to come.
    Flood {
        left: u32,
    },
    /// A rival may send.
    Rival {
        rival: usize,
    },
    /// A rival learns that a packet has arrived.
    Answer {
        rival: usize,
        number: u64,
    },
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    started_at: Option<Instant>,
    client_over: bool,
    server_over: bool,
    server_seen: bool,
    finished_sides: u8,
    /// An event outside the network interferes: an abort, a reboot.
    excused: bool,
}

/// A simulation under way.
#[derive(Debug)]
pub struct World {
    scenario: Scenario,
    random: Random,
    now: Instant,
    order: u64,
    agenda: Agenda<Happening>,
    hosts: Vec<Host>,
    progress: Vec<Progress>,
    /// The transfer that a client's end belongs to.
    flows: BTreeMap<(SocketAddr, SocketAddr), usize>,
    checker: Checker,
    report: Report,
    rivals: Vec<Rival>,
    /// Packets from which forgeries are made.
    seen: Vec<Vec<u8>>,
    /// The end of the data that each side has sent, where a host acknowledges more than it
    /// received.
    sent_up_to: BTreeMap<(SocketAddr, SocketAddr), u32>,
    /// The ends that take their window back, with the addresses of their connections: their own
    /// first.
    withdrawals: BTreeMap<(SocketAddr, SocketAddr), Withdrawal>,
    trace: bool,
    /// The buffer into which engines write their frames.
    frame: Vec<u8>,
    /// The frame in which a packet arrives.
    arrived: Vec<u8>,
    spares: Spares,
}

impl World {
    /// A world in which nothing has happened yet. With `trace`, every packet is printed.
    #[must_use]
    pub fn new(scenario: Scenario, trace: bool) -> Self {
        let mut random = Random::new(scenario.seed);
        let hosts = (0..scenario.hosts)
            .map(|index| Host::new(&scenario, index, random.bits()))
            .collect();
        let mut world = Self {
            random,
            now: Instant::ZERO,
            order: 0,
            agenda: Agenda::new(),
            hosts,
            progress: vec![Progress::default(); scenario.transfers.len()],
            flows: BTreeMap::new(),
            checker: Checker::new(usize::from(scenario.mtu)),
            report: Report {
                bytes_by_flow: vec![0; scenario.transfers.len()],
                ..Report::default()
            },
            rivals: Vec::new(),
            seen: Vec::new(),
            sent_up_to: BTreeMap::new(),
            withdrawals: BTreeMap::new(),
            trace,
            frame: vec![0; FRAME_BYTES_MAX],
            arrived: Vec::new(),
            spares: Spares::default(),
            scenario,
        };
        for transfer in 0..world.scenario.transfers.len() {
            let at = Instant::ZERO + world.scenario.transfers[transfer].start;
            world.push(at, Happening::Start { transfer });
        }
        for (host, at) in world.scenario.reboots.clone() {
            world.push(Instant::ZERO + at, Happening::Reboot { host });
        }
        for (host, at, mtu) in world.scenario.mtu_changes.clone() {
            world.push(Instant::ZERO + at, Happening::Mtu { host, mtu });
        }
        for (shortage, span) in world.scenario.shortages.clone().iter().enumerate() {
            for (at, is_short) in [(span.from, true), (span.until, false)] {
                world.push(Instant::ZERO + at, Happening::Memory { shortage, is_short });
            }
        }
        if world.scenario.is_hostile() {
            world.push(Instant::ZERO, Happening::Forgery);
        }
        world.bring_rivals();
        if world.scenario.syns > 0 {
            let left = world.scenario.syns;
            world.push(Instant::ZERO, Happening::Flood { left });
        }
        world
    }

    fn push(&mut self, at: Instant, happening: Happening) {
        self.order += 1;
        self.agenda.push(at, self.order, happening);
    }

    /// Runs the simulation to its end.
    ///
    /// # Panics
    /// When an invariant or a check fails, or when the simulation makes no progress.
    #[must_use]
    pub fn run(mut self) -> Report {
        let stop_after = self.scenario.stop_after;
        self.run_until(stop_after.map_or(Instant::NEVER, |after| Instant::ZERO + after));
        assert!(
            self.is_over() || self.scenario.stop_after.is_some() || self.scenario.is_hostile(),
            "nothing happens any more: {:?}\n{:?}",
            self.progress,
            self.hosts.iter().map(Host::describe).collect::<Vec<_>>()
        );
        for program in self
            .hosts
            .iter()
            .flat_map(|host| host.rings.programs.values())
        {
            self.report.bytes += program.taken;
            self.report.bytes_by_flow[program.flow] += program.taken;
        }
        let rivals = self.rivals.iter().map(Rival::delivered_bytes);
        self.report.rival_bytes = rivals.collect();
        self.report.virtual_time = self.now.since(Instant::ZERO);
        for host in &self.hosts {
            self.report.add(&host.engine.counters());
        }
        self.report
    }

    /// Runs the simulation to its end or to `stop_at`, whatever comes first.
    fn run_until(&mut self, stop_at: Instant) {
        while !self.is_over()
            && self.agenda.next_at().is_some_and(|at| at < stop_at)
            && let Some((at, happening)) = self.agenda.pop()
        {
            self.now = at;
            assert!(
                at.since(Instant::ZERO) < VIRTUAL_TIME_MAX || self.scenario.is_hostile(),
                "stalled: {:?}\n{:?}",
                self.progress,
                self.hosts.iter().map(Host::describe).collect::<Vec<_>>()
            );
            if at.since(Instant::ZERO) >= VIRTUAL_TIME_MAX {
                break;
            }
            self.happen(happening);
        }
    }

    /// Payload that programs have taken by each of `moments`, which follow one another. The
    /// simulation goes on to the last one only.
    #[cfg(test)]
    pub(super) fn bytes_by<const N: usize>(mut self, moments: [Duration; N]) -> [u64; N] {
        moments.map(|moment| {
            self.run_until(Instant::ZERO + moment);
            let rings = self.hosts.iter().map(|host| &host.rings);
            let programs = rings.flat_map(|rings| rings.programs.values());
            let open: u64 = programs.map(|program| program.taken).sum();
            self.report.bytes_by_flow.iter().sum::<u64>() + open
        })
    }

    fn is_over(&self) -> bool {
        self.progress.iter().all(|progress| {
            let server_over = progress.server_over || !progress.server_seen;
            progress.started_at.is_some()
                && ((progress.client_over && server_over)
                    || progress.excused
                    || self.scenario.is_hostile() && progress.client_over)
        })
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival {
                host,
                packet,
                intact,
            } => {
                self.arrive(host, &packet, intact);
                self.spares.give(packet);
            }
            Happening::Wake { host } => {
                if self.hosts[host].wake_at <= self.now {
                    self.hosts[host].wake_at = Instant::NEVER;
                }
                let now = self.clock_of(host);
                self.hosts[host].engine.handle_timeout(now);
                self.serve(host);
            }
            Happening::Start { transfer } => self.start(transfer),
            Happening::Reboot { host } => self.reboot(host),
            Happening::Mtu { host, mtu } => {
                let now = self.clock_of(host);
                // The router limits the packets from the other hosts to this host, and reports the
                // limit.
                let path_mtu = if mtu < self.scenario.mtu { mtu } else { 0 };
                for other in (0..self.hosts.len()).filter(|&other| other != host) {
                    self.hosts[other].way_out.impairments.path_mtu = path_mtu;
                }
                self.hosts[host].engine.set_mtu(now, mtu);
                self.serve(host);
            }
            Happening::Memory { shortage, is_short } => {
                let shortage = self.scenario.shortages[shortage];
                let rings = &mut self.hosts[shortage.host].rings;
                rings.piece_bytes_max = is_short.then_some(shortage.piece_bytes_max);
                rings.discards_per_million = match is_short {
                    true => shortage.discards_per_million,
                    false => 0,
                };
            }
            Happening::Forgery => self.forge(),
            Happening::Flood { left } => self.flood(left),
            Happening::Rival { rival } => self.wake_rival(rival),
            Happening::Answer { rival, number } => self.answer_rival(rival, number),
        }
    }

    fn arrive(&mut self, host: usize, packet: &[u8], intact: bool) {
        if intact && !self.is_taken(packet) {
            self.report.impaired += 1;
            return;
        }
        let share = self.scenario.fragmented_per_million;
        if intact && share > 0 && self.random.chance(share) {
            self.arrive_in_pieces(host, packet);
        } else {
            if intact {
                self.checker.delivered(packet);
            }
            if self.trace {
                self.print("  ->", packet);
            }
            self.take(host, packet, intact);
        }
        self.serve(host);
    }

    fn take(&mut self, host: usize, packet: &[u8], intact: bool) {
        let now = self.clock_of(host);
        if self.scenario.traits[host].ethernet {
            let offload = ReceiveOffload {
                checksum_verified: intact,
            };
            frame(host, packet, &mut self.arrived);
            self.hosts[host].take(now, &self.arrived, offload);
        } else {
            self.hosts[host].take(now, packet, ReceiveOffload::default());
        }
    }

    /// A packet that was fragmented on its way; a fragment may be missing.
    fn arrive_in_pieces(&mut self, host: usize, packet: &[u8]) {
        self.report.impaired += 1;
        self.order += 1;
        let mut pieces = fragments(packet, self.order as u32, &mut self.random);
        if self.random.below(50) == 0 {
            pieces.pop();
        } else {
            self.checker.delivered(packet);
        }
        if self.trace {
            self.print(&format!("  -> in {} pieces", pieces.len()), packet);
        }
        for piece in pieces {
            self.take(host, &piece, true);
        }
    }

    /// A host's clock now. Clocks drift, and each begins at its own time.
    fn clock_of(&self, host: usize) -> Instant {
        // No simulation takes so long that this overflows.
        let elapsed = self.now.as_micros() as i64;
        let skewed = elapsed + elapsed * self.scenario.clock_ppm[host] / 1_000_000;
        Instant::from_micros(self.scenario.clock_offset[host].as_micros() + skewed as u64)
    }

    /// When a host's clock will show `at`.
    fn when(&self, host: usize, at: Instant) -> Instant {
        let elapsed = at
            .as_micros()
            .saturating_sub(self.scenario.clock_offset[host].as_micros());
        let rate = 1_000_000 + self.scenario.clock_ppm[host];
        // The time that remains in a simulation is small enough for the product; other times may
        // not be.
        let real = match elapsed.checked_mul(1_000_000) {
            Some(product) => product / rate as u64,
            None => (u128::from(elapsed) * 1_000_000 / rate as u128) as u64,
        };
        Instant::from_micros(real + 2).max(self.now)
    }

    fn start(&mut self, index: usize) {
        let transfer = self.scenario.transfers[index].clone();
        let [client, server] = [transfer.client, transfer.server]
            .map(|host| SocketAddr::new(address_of(host, transfer.is_v6), SERVER_PORT));
        self.progress[index].started_at = Some(self.now);
        self.report.connections += 1;
        if transfer.is_simultaneous {
            let ends = [client, server]
                .map(|end| SocketAddr::new(end.ip(), SIMULTANEOUS_PORTS + index as u16));
            self.connect(index, true, Some(ends[0]), ends[1]);
            self.connect(index, false, Some(ends[1]), ends[0]);
            self.progress[index].server_seen = true;
            self.serve(transfer.client);
            self.serve(transfer.server);
        } else {
            self.connect(index, true, None, server);
            self.serve(transfer.client);
        }
    }

    /// One side of a transfer opens its connection.
    fn connect(
        &mut self,
        index: usize,
        is_client: bool,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) {
        let transfer = &self.scenario.transfers[index];
        let (host, options, role, other) = if is_client {
            let (role, other) = (transfer.client_role, transfer.server_role);
            (transfer.client, transfer.options, role, other)
        } else {
            let (role, other) = (transfer.server_role, transfer.client_role);
            (transfer.server, self.scenario.server_options, role, other)
        };
        let now = self.clock_of(host);
        let Host { engine, rings, .. } = &mut self.hosts[host];
        let id = engine
            .connect(now, local, remote, options)
            .expect("nothing stands in the way of a connection");
        if self.scenario.fast_open_pending_max > 0 {
            engine.open_fast(now, id);
        }
        let local = engine.info(id).expect("it was just made").local;
        let ring = options.receive_bytes_max.max(options.receive_bytes);
        let mut program = Program::new(role, index, is_client, ring);
        program.expects_nothing = other.bytes == 0;
        if self.scenario.fast_open_pending_max > 0 {
            let bytes = role.bytes.min(role.write_bytes_max);
            program.published = bytes.min(role.send_buffer_bytes);
            let published = engine.publish(id, program.published);
            published.expect("it was just made");
        }
        if is_client {
            self.flows.insert((local, remote), index);
        }
        if is_client && !self.scenario.is_hostile() {
            self.checker.name(local, remote, program.sends);
            self.checker.name(remote, local, program.expects);
        }
        rings.programs.insert(id, program);
        if is_client {
            self.note_withdrawal(index, local, remote);
        }
    }

    /// Runs a host until it has nothing more to do at this moment.
    fn serve(&mut self, host: usize) {
        loop {
            let mut is_busy = false;
            while let Some(event) = self.hosts[host].engine.poll_event() {
                is_busy = true;
                self.handle_event(host, event);
            }
            is_busy |= self.run_programs(host);
            self.part(host);
            is_busy |= self.transmit(host);
            if !is_busy {
                break;
            }
        }
        self.assert_invariants(host);
        let timeout = self.hosts[host].engine.poll_timeout();
        let timeout = timeout.map_or(Instant::NEVER, |at| self.when(host, at));
        let programs = self.hosts[host].rings.programs.values();
        let wake_at = programs
            .map(Program::next_run)
            .fold(timeout, Instant::min)
            .max(self.now);
        if wake_at.is_armed() && wake_at < self.hosts[host].wake_at {
            self.hosts[host].wake_at = wake_at;
            self.push(wake_at, Happening::Wake { host });
        }
    }

    /// Checks a host's engine. Large scoreboards are checked only every few steps, because that
    /// takes long. A fault in a scoreboard persists until it is found, and a trace checks every
    /// step.
    fn assert_invariants(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        if self.trace || host.steps_in_brief >= host.records / RECORDS_A_STEP {
            host.records = host.engine.assert_invariants();
            host.steps_in_brief = 0;
        } else {
            host.engine.assert_brief_invariants();
            host.steps_in_brief += 1;
        }
    }

    fn handle_event(&mut self, host: usize, event: Event) {
        match event {
            Event::Acceptable(listener) => {
                while let Some(id) = self.hosts[host].engine.accept(listener) {
                    self.accept(host, id);
                }
            }
            // The rings of such a connection belong to programs.
            Event::Abandoned(_) => {}
            Event::Connected(id) => {
                if let Some(program) = self.hosts[host].rings.programs.get_mut(&id) {
                    program.handshake = Handshake::Over;
                }
            }
            Event::Progress {
                connection,
                received,
                acknowledged,
                remote_finished,
            } => {
                let Some(program) = self.hosts[host].rings.programs.get_mut(&connection) else {
                    return;
                };
                let is_client = program.is_client();
                program.received = received;
                program.acknowledged = acknowledged;
                if remote_finished && !program.remote_finished {
                    program.remote_finished = true;
                    let transfer = &self.scenario.transfers[program.flow];
                    let other = if is_client {
                        transfer.server_role
                    } else {
                        transfer.client_role
                    };
                    let is_excused =
                        self.progress[program.flow].excused || self.scenario.is_hostile();
                    assert!(
                        is_excused || received == other.bytes,
                        "the stream ended after {received} of {} bytes",
                        other.bytes
                    );
                }
            }
            Event::Closed { connection, reason } => self.closed(host, connection, reason),
        }
    }

    fn accept(&mut self, host: usize, id: ConnectionId) {
        let info = self.hosts[host]
            .engine
            .info(id)
            .expect("it was just accepted");
        let Some(&flow) = self.flows.get(&(info.remote, info.local)) else {
            assert!(
                self.scenario.is_hostile(),
                "a connection from nowhere: {info:?}"
            );
            let now = self.clock_of(host);
            self.hosts[host].engine.abort(now, id).expect("it exists");
            self.hosts[host].engine.release(now, id).expect("it exists");
            return;
        };
        let role = self.scenario.transfers[flow].server_role;
        let options = self.scenario.server_options;
        let ring = options.receive_bytes_max.max(options.receive_bytes);
        let progress = &mut self.progress[flow];
        // A late copy that carries a SYN cookie opens a connection again although its transfer is
        // over. The connection ends when the client refuses it.
        progress.excused |= progress.server_seen && progress.server_over;
        (progress.server_seen, progress.server_over) = (true, false);
        let mut program = Program::new(role, flow, false, ring);
        program.handshake = match info.state {
            State::SynReceived => Handshake::FastOpened,
            _ => Handshake::Over,
        };
        program.expects_nothing = self.scenario.transfers[flow].client_role.bytes == 0;
        let rings = &mut self.hosts[host].rings;
        rings.programs.insert(id, program);
        let no_room = core::mem::take(&mut rings.no_room_per_million);
        let piece_bytes_max = rings.piece_bytes_max.take();
        for (offset, bytes) in rings.early.remove(&id).unwrap_or_default() {
            crate::Memory::place(rings, id, offset, &bytes).expect("the ring is empty");
        }
        rings.no_room_per_million = no_room;
        rings.piece_bytes_max = piece_bytes_max;
    }

    fn closed(&mut self, host: usize, id: ConnectionId, reason: CloseReason) {
        let now = self.clock_of(host);
        let Some(mut program) = self.hosts[host].rings.programs.remove(&id) else {
            return;
        };
        let flow = program.flow;
        program.read(program.received, !self.scenario.is_hostile());
        self.report.bytes += program.received;
        self.report.bytes_by_flow[flow] += program.received;
        let engine = &mut self.hosts[host].engine;
        if reason != CloseReason::Finished
            && let Some(info) = engine.info(id)
        {
            self.checker.given_up(info.local, info.remote);
        }
        engine
            .release(now, id)
            .expect("a closed connection can be released");
        self.note_end(&program, reason == CloseReason::Finished);
        let progress = &mut self.progress[flow];
        let may_be_given_up = self.scenario.is_impatient(flow);
        // No answer came in time: the server has given up the handshake, or its cookie has expired.
        let is_too_late = !progress.server_seen
            && reason == CloseReason::Reset
            && progress
                .started_at
                .is_some_and(|at| self.now.since(at) > HANDSHAKE_MAX);
        let may_fail = progress.excused
            || self.scenario.is_hostile()
            || program.aborted
            || is_too_late
            || (program.handshake != Handshake::Over && reason != CloseReason::Finished)
            // The last acknowledgement was lost so often that the remote's TIME-WAIT is over: the
            // remote refuses the FIN that is sent once more (RFC 9293 section 3.6.1 accepts that).
            || (program.finished && program.remote_finished && reason == CloseReason::Reset)
            || (may_be_given_up && matches!(reason, CloseReason::TimedOut | CloseReason::Reset));
        assert!(
            may_fail || reason == CloseReason::Finished,
            "flow {flow} ended with {reason:?}: {program:?}"
        );
        if program.aborted || reason != CloseReason::Finished {
            progress.excused = true;
        }
    }

    /// The addresses of a program's own end and of the other end.
    fn ends_of(&self, program: &Program) -> (SocketAddr, SocketAddr) {
        let mut flows = self.flows.iter();
        let (&(client, server), _) = flows
            .find(|&(_, &flow)| flow == program.flow)
            .expect("each flow has its ends from its connect on");
        match program.is_client() {
            true => (client, server),
            false => (server, client),
        }
    }

    /// One side of a transfer is over.
    fn note_end(&mut self, program: &Program, is_finished: bool) {
        let is_client = program.is_client();
        let progress = &mut self.progress[program.flow];
        if is_client {
            progress.client_over = true;
        } else {
            progress.server_over = true;
        }
        if let Some(started_at) = progress.started_at.filter(|_| is_client) {
            self.report.connection_time = self.report.connection_time + self.now.since(started_at);
        }
        progress.finished_sides += u8::from(is_finished);
        if progress.finished_sides == 2 {
            self.report.finished += 1;
            let is_simultaneous = self.scenario.transfers[program.flow].is_simultaneous;
            self.report.simultaneous += u64::from(is_simultaneous);
        }
    }

    /// Programs that have written and read everything release their connections. The engine tells
    /// such a program nothing more, and reads its ring until all bytes are acknowledged.
    fn part(&mut self, host: usize) {
        let now = self.clock_of(host);
        let Host { engine, rings, .. } = &mut self.hosts[host];
        let programs = rings.programs.iter();
        let leaving: Vec<ConnectionId> = programs
            .filter(|(_, program)| program.is_leaving() && !program.aborted)
            .map(|(&id, _)| id)
            .collect();
        for id in leaving {
            let program = rings.programs.remove(&id).expect("it was there");
            engine.release(now, id).expect("it was not released before");
            rings.parting.insert(id, program);
        }
        let parting = rings.parting.keys().copied();
        let gone: Vec<ConnectionId> = parting.filter(|&id| !engine.holds_ring(id)).collect();
        for id in gone {
            let parting = &mut self.hosts[host].rings.parting;
            let program = parting.remove(&id).expect("it was there");
            self.report.bytes += program.taken;
            self.report.bytes_by_flow[program.flow] += program.taken;
            self.report.departures += 1;
            // The engine may have given up a silent remote without telling the program, and the
            // remote may wait for the end of the connection for ever.
            let has_given_up = self.hosts[host].engine.has_given_up(id);
            if has_given_up || self.scenario.is_impatient(program.flow) {
                self.progress[program.flow].excused = true;
                let (local, remote) = self.ends_of(&program);
                self.checker.given_up(local, remote);
            }
            self.note_end(&program, !self.progress[program.flow].excused);
        }
    }

    /// Lets every program read and write that is due. True if any program did.
    fn run_programs(&mut self, host: usize) -> bool {
        let now = self.clock_of(host);
        let checked = !self.scenario.is_hostile();
        let mut did = false;
        let Host { engine, rings, .. } = &mut self.hosts[host];
        for (&id, program) in &mut rings.programs {
            if program.handshake == Handshake::FastOpened {
                let info = engine.info(id).expect("it exists");
                if info.state != State::SynReceived {
                    program.handshake = Handshake::Over;
                }
            }
            if program.aborted || !program.is_connected() {
                continue;
            }
            while program.taken < program.received && program.next_read <= self.now {
                let upto = program
                    .received
                    .min(program.taken.saturating_add(program.role.read_bytes_max));
                program.read(upto, checked);
                did = true;
                program.next_read = self.now + program.role.read_pause;
                engine.take(id, upto).expect("it has arrived");
            }
            if program
                .role
                .aborts_after
                .is_some_and(|after| program.received > after)
            {
                program.aborted = true;
                self.progress[program.flow].excused = true;
                engine.abort(now, id).expect("it exists");
                did = true;
                continue;
            }
            let room = program.role.send_buffer_bytes - (program.published - program.acknowledged);
            let rest = program.role.bytes - program.published;
            if rest > 0 && room > 0 && program.next_write <= self.now {
                let bytes = rest.min(room).min(program.role.write_bytes_max);
                program.published += bytes;
                program.next_write = self.now + program.role.think;
                engine.publish(id, program.published).expect("it exists");
                did = true;
            }
            if program.published == program.role.bytes && !program.finished {
                program.finished = true;
                engine.finish(now, id).expect("it exists");
                did = true;
            }
        }
        did
    }

    /// Sends the frames that the engine has, as far as the link accepts them. True if there were
    /// any.
    fn transmit(&mut self, host: usize) -> bool {
        if self.now < self.hosts[host].link_ready_at {
            return false;
        }
        let now = self.clock_of(host);
        let mut did = false;
        let mut left = self.scenario.traits[host].frames_at_once;
        loop {
            if did && left == 0 && self.scenario.traits[host].frames_at_once > 0 {
                // The remaining frames are polled later, perhaps after other events.
                let at = self.now + LINK_PAUSE;
                self.hosts[host].link_ready_at = at;
                self.push(at, Happening::Wake { host });
                return true;
            }
            left = left.saturating_sub(1);
            let Host { engine, rings, .. } = &mut self.hosts[host];
            let Some((length, offload)) = engine.poll_frame(now, rings, &mut self.frame) else {
                return did;
            };
            did = true;
            let link_bytes = if self.scenario.traits[host].ethernet {
                LINK_BYTES
            } else {
                0
            };
            let cut = Cut::new(&self.frame[link_bytes..length], offload, link_bytes);
            for index in 0..cut.count() {
                let mut packet = self.spares.take();
                cut.write(&self.frame[link_bytes..length], index, &mut packet);
                self.send(host, packet);
            }
        }
    }

    fn send(&mut self, host: usize, packet: Vec<u8>) {
        if self.trace {
            self.print("", &packet);
        }
        if !self.scenario.is_hostile() {
            self.checker.sent(&packet);
        }
        if self.scenario.is_hostile() && self.seen.len() < 1_000 {
            self.seen.push(packet.clone());
        }
        let packet = self.acknowledge_more(host, packet);
        let packet = self.withdraw(packet);
        self.report.packets += 1;
        let Some(to) = host_of(&packet).filter(|&to| to < self.hosts.len()) else {
            return;
        };
        let link = &mut self.hosts[host].way_out;
        let middlebox = link.impairments.middlebox;
        match link.pass(self.now, packet.len(), &mut self.random) {
            Fate::Lost => {
                self.report.impaired += 1;
                self.spares.give(packet);
            }
            Fate::TooBig => {
                self.report.impaired += 1;
                let impairments = link.impairments;
                if impairments.reports_too_big {
                    let answer = too_big(&packet, impairments.path_mtu);
                    self.push(
                        self.now + impairments.delay,
                        Happening::Arrival {
                            host,
                            packet: answer,
                            intact: true,
                        },
                    );
                }
            }
            Fate::Arrives {
                at,
                again_at,
                mark,
                corrupt,
                shrink,
            } => {
                let mut packet = packet;
                self.report.impaired += u64::from(mark || corrupt || shrink || again_at.is_some());
                if mark {
                    mark_congestion(&mut packet);
                }
                if !middlebox.pass(&mut packet) {
                    self.report.impaired += 1;
                    self.spares.give(packet);
                    return;
                }
                if shrink {
                    shrink_window(&mut packet, &mut self.random);
                }
                if corrupt {
                    flip_bit(&mut packet, &mut self.random);
                }
                let copy = again_at.map(|at| (at, self.spares.copy(&packet)));
                for (at, packet) in [(at, packet)].into_iter().chain(copy) {
                    self.push(
                        at,
                        Happening::Arrival {
                            host: to,
                            packet,
                            intact: !corrupt,
                        },
                    );
                }
            }
        }
    }

    fn print(&self, mark: &str, packet: &[u8]) {
        let Some(read) = checker::parse(packet) else {
            println!("{:?} {mark} {} bytes, not TCP", self.now, packet.len());
            return;
        };
        let letters: String = "FSRP.UEW"
            .chars()
            .enumerate()
            .filter(|(bit, _)| read.flags & 1 << bit != 0)
            .map(|(_, letter)| letter)
            .collect();
        println!(
            "{:?} {mark} {} > {} {letters} {}:{}({}) ack {} win {} sack {:?} ts {:?}",
            self.now,
            read.source,
            read.destination,
            read.seq,
            read.seq.wrapping_add(read.payload.len() as u32),
            read.payload.len(),
            read.ack,
            read.window,
            read.sack,
            read.timestamps,
        );
    }
}
