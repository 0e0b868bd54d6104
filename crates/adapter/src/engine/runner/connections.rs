//! The begin and the end of connections: passive opens, for which the engine makes a carrier, and
//! the parts common to all connections. Active opens are in [`opens`](super::opens).

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant as Clock;

use toehold_channel::offload::{Address, Direction};
use toehold_tcp::{ConnectionId, ListenerId};

use super::{Runner, make_due};
use crate::engine::advance::Next;
use crate::engine::carriers::{Carriers, Serving};
use crate::engine::flow::{ChannelState, Flow, Stage};
use crate::engine::listeners::Target;
use crate::engine::poller::{SERIAL_MASK, Source};
use crate::engine::relay::StepContext;
use crate::engine::settings::to_sixteen_bytes;
use crate::engine::tcp_config::first_and_largest_log2;
use crate::engine::{Holder, sys};
use crate::registry::ClientId;

impl Runner {
    /// Accepts connections that remotes have opened.
    pub(super) fn accept(&mut self, listener: ListenerId) {
        while let Some(id) = self.engine.accept(listener) {
            let joined = self.join(listener, id);
            self.look_at_seeds();
            if joined.is_err() {
                let now = self.now();
                let _ = self.engine.abort(now, id);
                let _ = self.engine.release(now, id);
                self.streams.forget(id);
            }
        }
    }

    /// Begins to connect a carrier to the program's listener.
    fn join(&mut self, listener: ListenerId, id: ConnectionId) -> io::Result<()> {
        let target = self.listeners.target(listener);
        let target = target.ok_or(io::ErrorKind::NotFound)?;
        if !self.admit(target.holder.client) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if self.join_used(target, id) {
            return Ok(());
        }
        let is_seed = self.carriers.begins_seed(&target);
        let begun = self.begin_carrier(target, id, is_seed);
        if begun.is_err() {
            self.common.clients.dismiss(target.holder.client);
        }
        let carrier = begun?;
        let port = carrier.local_addr().map_or(0, |local| local.port());
        self.insert(id, target.holder, Stage::Joining, carrier);
        if is_seed {
            self.begin_seed(id, Serving::first(Some(target), port, Clock::now()));
        }
        Ok(())
    }

    /// Begins a carrier that is to serve further connections. Asks for its channel at once; the
    /// program asks when it accepts the carrier.
    fn begin_seed(&mut self, id: ConnectionId, serving: Serving) {
        let flow = self.flows.get_mut(id.index()).and_then(Option::as_mut);
        let Some(flow) = flow.filter(|flow| flow.id == id) else {
            return self.carriers.seed_ends(&serving, false);
        };
        let Some(target) = serving.target else { return };
        let local = SocketAddr::new(self.common.relay_source.into(), serving.port);
        let ends = (local, target.address);
        let slot = id.index() as u32;
        flow.beside = ChannelState::asked(self.channels.ask(slot, ends, false));
        flow.serving = Some(serving);
        // Over loopback the kernel has connected it by now, and no event needs to be awaited.
        flow.carrier.look_for_room();
        self.pairing.push(slot);
    }

    /// Puts a connection on a carrier that has served other connections; false if there is no such
    /// carrier.
    fn join_used(&mut self, target: Target, id: ConnectionId) -> bool {
        let (Some(info), SocketAddr::V4(_)) = (self.engine.info(id), target.address) else {
            return false;
        };
        let logs = first_and_largest_log2(Some(info), false);
        let now = Clock::now();
        let (local, remote) = (spelled(info.local), spelled(info.remote));
        let (page, listening_at) = (&self.common.routing_page, target.address.port());
        let announce = |direction, port| {
            page.set_ends(direction, port, listening_at, Some((local, remote)));
        };
        let channels = &mut self.channels;
        let claimed = self
            .carriers
            .claim(target.address, logs, channels, now, announce);
        let Some(used) = claimed else {
            return false;
        };
        let (slot, serial, place) = (id.index(), used.carrier.serial, used.channel.place);
        let most = self.connections.of(info.local).window_bytes;
        let (flow, endpoint) = Flow::on_used(id, target.holder, used, most);
        let window = endpoint.window_bytes() as u32;
        self.streams.set_endpoint(id, Some(endpoint));
        self.channels.hand_over(place, Some(slot as u32));
        self.carriers.serves(serial, slot as u32);
        self.place(slot, flow);
        let now = self.now();
        // The call fails only for a connection that does not exist.
        let _ = self.engine.bound_window(now, id, window, window);
        // Less than a window has arrived by now, and the ring has room for it.
        let is_moved = self.streams.move_up(id);
        debug_assert!(is_moved);
        self.turns.watch(id);
        self.announce(slot);
        true
    }

    /// Wakes the program to look into its queue.
    fn announce(&mut self, slot: usize) {
        let now = self.now();
        let Some(flow) = self.flows[slot].as_mut() else {
            return;
        };
        let (engine, streams) = (&mut self.engine, &mut self.streams);
        let mut around = StepContext::new(now, engine, streams, &mut self.channels);
        // The next look detects a fault of the program.
        let _ = flow.notify(&mut around);
        make_due(&mut self.due, flow, slot as u32);
    }

    /// The program does not accept a connection on its used carrier. Begins an ordinary carrier,
    /// and sends the remote's bytes so far by it.
    pub(super) fn join_again(&mut self, slot: usize) {
        let Some(mut flow) = self.flows[slot].take() else {
            return;
        };
        self.streams.fetch_from(flow.id, 0);
        self.carriers.forget(flow.carrier.serial);
        if let Some(endpoint) = self.streams.endpoint(flow.id) {
            endpoint.close();
        }
        flow.drop_channel(&mut self.streams, &mut self.channels);
        let target = flow.serving.and_then(|serving| serving.target);
        let begun = target.map(|target| self.begin_carrier(target, flow.id, false));
        let id = flow.id;
        self.serial = (self.serial + 1) & SERIAL_MASK;
        let watched = begun.and_then(Result::ok).filter(|carrier| {
            let source = Source::Flow(slot as u32, self.serial);
            self.poller.watch_changes(carrier.as_fd(), source).is_ok()
        });
        match watched {
            Some(carrier) => {
                self.flows[slot] = Some(flow.on_another((carrier, self.serial)));
                self.bound_window(id);
            }
            None => {
                let now = self.now();
                let _ = self.engine.abort(now, id);
                self.flows[slot] = Some(flow);
                self.remove(slot);
            }
        }
    }

    fn begin_carrier(
        &mut self,
        target: Target,
        id: ConnectionId,
        is_seed: bool,
    ) -> io::Result<TcpStream> {
        let (source, direction) = match target.address {
            SocketAddr::V4(_) => (self.common.relay_source.into(), Direction::Accepted),
            SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST.into(), Direction::AcceptedV6),
        };
        let is_fit = |port| Carriers::is_port_for(port, is_seed);
        let carrier = sys::bound_socket(source, &mut self.ports, is_fit)?;
        let port = carrier.local_addr()?.port();
        // Before the program can ask.
        self.publish_ends(id, (direction, port, target.address.port()));
        sys::begin_connect(&carrier, target.address)?;
        Ok(carrier)
    }

    pub(super) fn publish_ends(
        &self,
        id: ConnectionId,
        (direction, port, other): (Direction, u16, u16),
    ) {
        let info = self.engine.info(id);
        let ends = info.map(|info| (spelled(info.local), spelled(info.remote)));
        self.common
            .routing_page
            .set_ends(direction, port, other, ends);
    }

    /// Counts another connection of a program; false if the program has reached its quota, or its
    /// share of the memory is full.
    pub(super) fn admit(&mut self, client: ClientId) -> bool {
        if !self.streams.rings().has_room_for_connection(Some(client)) {
            return false;
        }
        let is_admitted = self.common.clients.admit(client, self.quota);
        self.report.over_quota += u64::from(!is_admitted);
        is_admitted
    }

    pub(super) fn insert(
        &mut self,
        id: ConnectionId,
        holder: Holder,
        stage: Stage,
        carrier: TcpStream,
    ) {
        self.serial = (self.serial + 1) & SERIAL_MASK;
        let (slot, serial) = (id.index(), self.serial);
        let source = Source::Flow(slot as u32, serial);
        if self.poller.watch_changes(carrier.as_fd(), source).is_err() {
            let now = self.now();
            let _ = self.engine.abort(now, id);
            let _ = self.engine.release(now, id);
            self.streams.forget(id);
            return self.common.clients.dismiss(holder.client);
        }
        let window_bytes_max = self.engine.info(id).map_or(0, |info| {
            let is_ours = stage == Stage::Connecting;
            let destination = if is_ours { info.remote } else { info.local };
            self.connections.of(destination).window_bytes
        });
        let flow = Flow::on_own(id, holder, stage, (carrier, serial), window_bytes_max);
        self.place(slot, flow);
        if stage == Stage::Joining {
            self.bound_window(id);
        }
    }

    pub(super) fn place(&mut self, slot: usize, flow: Flow) {
        if self.flows.len() <= slot {
            self.flows.resize_with(slot + 1, || None);
        }
        let (id, program) = (flow.id, Some(flow.holder.client));
        self.flows[slot] = Some(flow);
        self.streams.belongs_to(id, program);
        self.streams.rings().count_connection(program, true);
    }

    /// Removes a connection that is over in order. Its carrier serves another connection, if it
    /// can.
    pub(super) fn remove_in_order(&mut self, slot: usize, next: Next) {
        let Some(flow) = self.flows[slot].as_ref() else {
            return;
        };
        let Some(endpoint) = flow.free_channel(&mut self.streams) else {
            if next == Next::Over {
                flow.carrier.end_in_order();
            }
            return self.remove(slot);
        };
        let (id, client) = (flow.id, flow.holder.client);
        let reusable = self.flows[slot]
            .take()
            .and_then(|flow| flow.into_reusable(endpoint));
        if let Some(reusable) = reusable {
            self.carriers
                .park(reusable, &mut self.channels, Clock::now());
        }
        self.dismiss(id, client);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let Some(mut flow) = self.flows[slot].take() else {
            return;
        };
        if let Some(serving) = flow.serving {
            if flow.is_seed() {
                self.carriers.seed_ends(&serving, false);
            }
            self.carriers.forget(flow.carrier.serial);
        }
        if let Some(endpoint) = self.streams.endpoint(flow.id) {
            endpoint.close();
        }
        flow.drop_channel(&mut self.streams, &mut self.channels);
        if let Ok(SocketAddr::V6(carrier)) = flow.carrier.socket.local_addr() {
            let direction = Direction::AcceptedV6;
            let routing_page = &self.common.routing_page;
            routing_page.set_ends(direction, carrier.port(), 0, None);
        }
        self.dismiss(flow.id, flow.holder.client);
    }

    fn dismiss(&mut self, id: ConnectionId, client: ClientId) {
        let now = self.now();
        let _ = self.engine.release(now, id);
        self.streams.forget(id);
        self.streams.rings().count_connection(Some(client), false);
        self.common.clients.dismiss(client);
    }
}

pub(super) fn spelled(address: SocketAddr) -> Address {
    Address {
        ip: to_sixteen_bytes(address.ip()),
        port: address.port(),
    }
}
