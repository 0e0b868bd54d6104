//! How connections begin and end: active opens, which programs request at the relay, and passive
//! opens, for which the engine makes a carrier.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant as Clock;

use toehold_channel::offload::{Address, Direction};
use toehold_tcp::{ConnectError, ConnectionId, ListenerId};

use super::{Runner, make_due};
use crate::engine::advance::Next;
use crate::engine::arrivals::{Arrivals, Wanted};
use crate::engine::carriers::{Carriers, Serving};
use crate::engine::flow::{Flow, Stage};
use crate::engine::listeners::{Own, Target};
use crate::engine::poller::{SERIAL_MASK, Source};
use crate::engine::relay::Around;
use crate::engine::settings::spell;
use crate::engine::tcp_config::{first_and_largest_log2, options};
use crate::engine::{Command, Given, Holder, Request, sys};
use crate::registry::ClientId;

impl Runner {
    /// Gives what programs at the relay want to the threads that are to do it.
    pub(super) fn give_all(&mut self, take: impl FnOnce(&mut Arrivals) -> Vec<Wanted>) {
        let wanted = self.arrivals.as_mut().map(take);
        for (request, carrier) in wanted.unwrap_or_default() {
            self.give(request, carrier);
        }
    }

    /// With a port of the program's choice, to its owner; else to each in turn.
    fn give(&mut self, request: Request, carrier: TcpStream) {
        let local = local_end(&self.own, &request).ok().flatten();
        let share = self.engine.config().share;
        let there = match local {
            Some(local) => share.owner(local, request.remote),
            None => (self.last_given + 1) % share.count(),
        };
        self.last_given = there;
        let refusals = 0;
        let given = Given {
            request,
            carrier,
            refusals,
        };
        self.give_to(there, given);
    }

    fn give_to(&mut self, there: usize, given: Given) {
        if there == self.engine.config().share.index() {
            self.open(given);
        } else {
            self.common.doors[there].tell(Command::Open(given));
        }
    }

    /// Begins an active open.
    pub(super) fn open(&mut self, given: Given) {
        if self.link.shares().is_some() {
            return self.open_from_shared(given);
        }
        let (request, carrier) = (given.request, &given.carrier);
        let refuse = |errno: libc::c_int| drop(sys::send_urgent(carrier, errno as u8));
        if !self.admit(request.holder.client) {
            return refuse(OUT_OF_CONNECTIONS);
        }
        let Ok(local) = local_end(&self.own, &request) else {
            self.common.clients.dismiss(request.holder.client);
            return refuse(libc::EADDRNOTAVAIL);
        };
        let now = self.now();
        let options = options(&self.connections.of(request.remote));
        let opened = self.engine.connect(now, local, request.remote, options);
        let id = match opened {
            Ok(id) => id,
            Err(error) => {
                self.common.clients.dismiss(request.holder.client);
                return match self.next_to_try(&given, local, error) {
                    Some((next, refusals)) => self.give_to(next, Given { refusals, ..given }),
                    None => refuse(errno_of_call(error)),
                };
            }
        };
        self.begin(id, given);
    }

    /// Begins an active open from an address that is the host's, too. The kernel can do as well:
    /// a carrier that ends without an answer has its program connect there.
    fn open_from_shared(&mut self, given: Given) {
        let request = given.request;
        let Some(source) = self.outgoing_source(&request) else {
            return;
        };
        if !self.admit(request.holder.client) {
            return;
        }
        match self.connect_from(source, request.remote) {
            Ok(id) => self.begin(id, given),
            Err(error) => {
                self.common.clients.dismiss(request.holder.client);
                if let Some((next, refusals)) = self.next_to_try(&given, None, error) {
                    self.give_to(next, Given { refusals, ..given });
                }
            }
        }
    }

    /// Connects from one of the ports that connections go out from.
    fn connect_from(
        &mut self,
        source: IpAddr,
        remote: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        let common = self.common.clone();
        let outgoing = common.outgoing.as_ref().ok_or(ConnectError::NoPortLeft)?;
        let options = options(&self.connections.of(remote));
        let share = self.engine.config().share;
        let now = self.now();
        for port in outgoing.for_one(source, remote, self.serial) {
            let local = SocketAddr::new(source, port);
            if share.owner(local, remote) != share.index() {
                continue;
            }
            match self.engine.connect(now, Some(local), remote, options) {
                Err(ConnectError::AddressInUse) => {}
                opened => return opened,
            }
        }
        self.note_exhausted(remote);
        Err(ConnectError::NoPortLeft)
    }

    /// Has the program know the ends of its connection, before the remote has answered.
    fn begin(&mut self, id: ConnectionId, given: Given) {
        let Given {
            request, carrier, ..
        } = given;
        if request.carrier.ip() == Ipv4Addr::LOCALHOST {
            let (port, relay) = (request.carrier.port(), self.common.relay_port);
            self.publish_ends(id, (Direction::Connected, port, relay));
        }
        self.insert(id, request.holder, Stage::Connecting, carrier);
    }

    /// The next thread, if it may have ports or room left where we have none.
    fn next_to_try(
        &self,
        given: &Given,
        local: Option<SocketAddr>,
        error: ConnectError,
    ) -> Option<(usize, usize)> {
        let share = self.engine.config().share;
        let is_used_up = matches!(error, ConnectError::NoPortLeft | ConnectError::NoSlotLeft);
        let refusals = given.refusals + 1;
        let may_try = is_used_up && local.is_none() && refusals < share.count();
        may_try.then(|| ((share.index() + 1) % share.count(), refusals))
    }

    /// Takes in connections that remotes have opened.
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
            self.begin_seed(id, Serving::first(target, port, Clock::now()));
        }
        Ok(())
    }

    /// Begins a carrier that is to serve further connections: asks for its channel at once, as the
    /// program does when it accepts it.
    fn begin_seed(&mut self, id: ConnectionId, serving: Serving) {
        let flow = self.flows.get_mut(id.index()).and_then(Option::as_mut);
        let Some(flow) = flow.filter(|flow| flow.id == id) else {
            return self.carriers.seed_ends(&serving, false);
        };
        let local = SocketAddr::new(self.common.relay_source.into(), serving.port);
        let ends = (local, serving.target.address);
        let slot = id.index() as u32;
        flow.entry = self.channels.ask(slot, ends, false);
        flow.serving = Some(serving);
        // Over loopback the kernel has connected it by now, and no event needs to be awaited.
        flow.writable |= sys::is_writable(&flow.carrier);
        self.pairing.push(slot);
    }

    /// Puts a connection on a carrier that has served others; false without one.
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
        let Some(carrier) = claimed else {
            return false;
        };
        let (slot, serial, place) = (id.index(), carrier.serial, carrier.place);
        let most = self.connections.of(info.local).window_bytes;
        let (flow, endpoint) = Flow::on_used(id, target.holder, carrier, most);
        let window = endpoint.window_bytes() as u32;
        self.streams.set_endpoint(id, Some(endpoint));
        self.channels.hand_over(place, Some(slot as u32));
        self.carriers.serves(serial, slot as u32);
        self.place(slot, flow);
        let now = self.now();
        // It fails only for a connection that is not there.
        let _ = self.engine.bound_window(now, id, window, window);
        // Less than a window has come by now, and the ring has room for all of it.
        let is_moved = self.streams.move_up(id);
        debug_assert!(is_moved);
        self.turns.watch(id);
        self.announce(slot);
        true
    }

    /// Has the program look into its queue.
    fn announce(&mut self, slot: usize) {
        let now = self.now();
        let Some(flow) = self.flows[slot].as_mut() else {
            return;
        };
        let mut around = Around {
            now,
            engine: &mut self.engine,
            streams: &mut self.streams,
            channels: &mut self.channels,
        };
        // A fault of the program's is found at the next look.
        let _ = flow.notify(&mut around);
        make_due(&mut self.due, flow, slot as u32);
    }

    /// Nobody accepts a connection on the carrier that it is on: begins an ordinary one, and sends
    /// there what the remote has sent so far.
    pub(super) fn join_again(&mut self, slot: usize) {
        let Some(mut flow) = self.flows[slot].take() else {
            return;
        };
        self.streams.fetch_from(flow.id, 0);
        self.carriers.forget(flow.serial);
        if let Some(endpoint) = self.streams.endpoint(flow.id) {
            endpoint.close();
        }
        flow.drop_channel(&mut self.streams, &mut self.channels);
        let target = flow.serving.map(|serving| serving.target);
        let begun = target.map(|target| self.begin_carrier(target, flow.id, false));
        let id = flow.id;
        self.serial = (self.serial + 1) & SERIAL_MASK;
        let watched = begun.and_then(Result::ok).filter(|carrier| {
            let source = Source::Flow(slot as u32, self.serial);
            self.poller.watch_changes(carrier.as_fd(), source).is_ok()
        });
        match watched {
            Some(carrier) => {
                self.flows[slot] = Some(flow.on_another(self.serial, carrier));
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

    fn publish_ends(&self, id: ConnectionId, (direction, port, other): (Direction, u16, u16)) {
        let info = self.engine.info(id);
        let ends = info.map(|info| (spelled(info.local), spelled(info.remote)));
        self.common
            .routing_page
            .set_ends(direction, port, other, ends);
    }

    /// Counts another connection of a program's; false when it is at its quota, or its share of the
    /// memory has no room.
    fn admit(&mut self, client: ClientId) -> bool {
        if !self.streams.rings().has_room_for_connection(Some(client)) {
            return false;
        }
        let is_admitted = self.common.clients.admit(client, self.quota);
        self.report.over_quota += u64::from(!is_admitted);
        is_admitted
    }

    fn insert(&mut self, id: ConnectionId, holder: Holder, stage: Stage, carrier: TcpStream) {
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
        let flow = Flow::new(id, holder, serial, stage, carrier, window_bytes_max);
        self.place(slot, flow);
        if stage == Stage::Joining {
            self.bound_window(id);
        }
    }

    fn place(&mut self, slot: usize, flow: Flow) {
        if self.flows.len() <= slot {
            self.flows.resize_with(slot + 1, || None);
        }
        let (id, program) = (flow.id, Some(flow.holder.client));
        self.flows[slot] = Some(flow);
        self.streams.belongs_to(id, program);
        self.streams.rings().count_connection(program, true);
    }

    /// A connection is over in order: its carrier serves another one, if it can.
    pub(super) fn remove_in_order(&mut self, slot: usize, next: Next) {
        let Some(flow) = self.flows[slot].as_ref() else {
            return;
        };
        let Some(endpoint) = flow.free_channel(&mut self.streams) else {
            if next == Next::Over {
                flow.end_in_order();
            }
            return self.remove(slot);
        };
        let (id, client) = (flow.id, flow.holder.client);
        let carrier = self.flows[slot]
            .take()
            .and_then(|flow| flow.into_carrier(endpoint));
        if let Some(carrier) = carrier {
            self.carriers
                .park(carrier, &mut self.channels, Clock::now());
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
            self.carriers.forget(flow.serial);
        }
        if let Some(endpoint) = self.streams.endpoint(flow.id) {
            endpoint.close();
        }
        flow.drop_channel(&mut self.streams, &mut self.channels);
        if let Ok(SocketAddr::V6(carrier)) = flow.carrier.local_addr() {
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

fn spelled(address: SocketAddr) -> Address {
    Address {
        ip: spell(address.ip()),
        port: address.port(),
    }
}

/// The errno of connect(2) when all ports are in use: connections that have ended make room.
/// (`EAGAIN` it says of Unix sockets; programs take it for "not yet", and Python for a success.)
const OUT_OF_CONNECTIONS: libc::c_int = libc::EADDRNOTAVAIL;

/// A carrier comes from what stood in for an address that is gone.
#[derive(Debug, PartialEq, Eq)]
struct AddressGone;

/// The local address and port a program has asked for, if it has. From a loopback alias's port it
/// connects from the same port of the address.
fn local_end(own: &Own, request: &Request) -> Result<Option<SocketAddr>, AddressGone> {
    let Request {
        carrier,
        local_port: port,
        ..
    } = *request;
    if carrier.ip() != Ipv4Addr::LOCALHOST {
        let bound = own.iter().find(|(_, alias)| carrier.ip() == *alias);
        let &(ip, _) = bound.ok_or(AddressGone)?;
        return Ok(Some(SocketAddr::new(ip, carrier.port())));
    }
    let of_family = |(ip, _): &&(IpAddr, IpAddr)| ip.is_ipv4() == request.remote.is_ipv4();
    let first = own.iter().find(of_family).filter(|_| port != 0);
    Ok(first.map(|&(ip, _)| SocketAddr::new(ip, port)))
}

/// The errno that connect(2) would have returned.
fn errno_of_call(error: ConnectError) -> libc::c_int {
    match error {
        ConnectError::AddressInUse | ConnectError::NoPortLeft => libc::EADDRNOTAVAIL,
        ConnectError::AddressNotOurs | ConnectError::Unreachable => libc::ENETUNREACH,
        ConnectError::NoSlotLeft => OUT_OF_CONNECTIONS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::TableId;

    fn request(carrier: &str, remote: &str, local_port: u16) -> Request {
        Request {
            holder: Holder {
                client: ClientId(1),
                family: TableId(1),
            },
            carrier: carrier.parse().expect("address"),
            remote: remote.parse().expect("address"),
            local_port,
        }
    }

    #[test]
    fn program_connects_from_where_it_asked_to() {
        let own = [("10.84.0.2", 1), ("fd84::2", 2), ("10.84.0.3", 3)].map(|(ip, last)| {
            (
                ip.parse().expect("address"),
                IpAddr::from(Ipv4Addr::new(127, 99, 0, last)),
            )
        });
        let end = |carrier, remote, port| {
            let end = local_end(&own, &request(carrier, remote, port));
            end.map(|end| end.map_or(String::new(), |end| end.to_string()))
        };
        let is = |text: &str| Ok(text.to_owned());
        let (v4, v6) = ("10.84.0.1:80", "[fd84::1]:80");
        assert_eq!(end("127.0.0.1:4000", v4, 0), is(""), "as the engine likes");
        assert_eq!(end("127.0.0.1:4000", v4, 4000), is("10.84.0.2:4000"));
        assert_eq!(end("127.0.0.1:4000", v6, 4000), is("[fd84::2]:4000"));
        assert_eq!(end("127.99.0.3:4000", v4, 4000), is("10.84.0.3:4000"));
        // Bound without a port, which the kernel chose when it connected.
        assert_eq!(end("127.99.0.3:4000", v4, 0), is("10.84.0.3:4000"));
        assert_eq!(end("127.99.0.2:4000", v6, 0), is("[fd84::2]:4000"));
        assert_eq!(end("127.99.0.4:4000", v4, 0), Err(AddressGone));
    }
}
