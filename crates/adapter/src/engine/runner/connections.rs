//! Connections coming and going: active opens, which programs ask for at the relay, and passive ones, for which a carrier is made.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use toehold_channel::offload::{Address, Direction};
use toehold_tcp::{ConnectError, ConnectionId, ListenerId};

use super::Runner;
use crate::engine::arrivals::Wanted;
use crate::engine::flow::{Flow, Stage};
use crate::engine::listeners::Own;
use crate::engine::poller::{SERIAL_MASK, Source};
use crate::engine::settings::spell;
use crate::engine::told::options;
use crate::engine::{Request, sys};
use crate::registry::ClientId;

impl Runner {
    /// Begins what programs at the relay want.
    pub(super) fn open_all(&mut self, wanted: Vec<Wanted>) {
        for (request, carrier) in wanted {
            self.open(request, carrier);
        }
    }

    /// Begins an active open.
    fn open(&mut self, request: Request, carrier: TcpStream) {
        let refuse = |errno: libc::c_int| drop(sys::send_urgent(&carrier, errno as u8));
        if self.is_over_quota(request.client) {
            return refuse(OUT_OF_CONNECTIONS);
        }
        let Ok(local) = local_end(&self.own, &request) else {
            return refuse(libc::EADDRNOTAVAIL);
        };
        let now = self.now();
        let opened = self.engine.connect(now, local, request.remote, options());
        let id = match opened {
            Ok(id) => id,
            Err(error) => return refuse(errno_of_call(error)),
        };
        if request.carrier.ip() == Ipv4Addr::LOCALHOST {
            let port = request.carrier.port();
            self.publish_ends(id, (Direction::Connected, port, self.relay_port));
        }
        self.insert(id, request.client, Stage::Opening, carrier);
    }

    /// Takes in connections that remotes have opened.
    pub(super) fn accept(&mut self, listener: ListenerId) {
        while let Some(id) = self.engine.accept(listener) {
            let joined = self.join(listener, id);
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
        if self.is_over_quota(target.client) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (source, direction) = match target.address {
            SocketAddr::V4(_) => (self.relay_source.into(), Direction::Accepted),
            SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST.into(), Direction::AcceptedV6),
        };
        let carrier = sys::bound_socket(source)?;
        let port = carrier.local_addr()?.port();
        // Before the program can ask.
        self.publish_ends(id, (direction, port, target.address.port()));
        sys::begin_connect(&carrier, target.address)?;
        self.insert(id, target.client, Stage::Joining, carrier);
        Ok(())
    }

    fn publish_ends(&self, id: ConnectionId, (direction, port, other): (Direction, u16, u16)) {
        let spelled = |address: SocketAddr| Address {
            ip: spell(address.ip()),
            port: address.port(),
        };
        let info = self.engine.info(id);
        let ends = info.map(|info| (spelled(info.local), spelled(info.remote)));
        self.outlook.set_ends(direction, port, other, ends);
    }

    fn is_over_quota(&mut self, client: ClientId) -> bool {
        let count = self.flows_by_client.get(&client).copied().unwrap_or(0);
        let is_over = count >= self.quota;
        self.report.over_quota += u64::from(is_over);
        is_over
    }

    fn insert(&mut self, id: ConnectionId, client: ClientId, stage: Stage, carrier: TcpStream) {
        self.serial = (self.serial + 1) & SERIAL_MASK;
        let (slot, serial) = (id.index(), self.serial);
        let source = Source::Flow(slot as u32, serial);
        if self.poller.watch_changes(carrier.as_fd(), source).is_err() {
            let now = self.now();
            let _ = self.engine.abort(now, id);
            let _ = self.engine.release(now, id);
            return self.streams.forget(id);
        }
        if self.flows.len() <= slot {
            self.flows.resize_with(slot + 1, || None);
        }
        *self.flows_by_client.entry(client).or_default() += 1;
        self.flows[slot] = Some(Flow::new(id, client, serial, stage, carrier));
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let Some(mut flow) = self.flows[slot].take() else {
            return;
        };
        if let Some(lane) = self.streams.lane(flow.id) {
            lane.close();
        }
        flow.drop_channel(&mut self.streams, &mut self.channels);
        if let Ok(SocketAddr::V6(carrier)) = flow.carrier.local_addr() {
            let direction = Direction::AcceptedV6;
            self.outlook.set_ends(direction, carrier.port(), 0, None);
        }
        let now = self.now();
        let _ = self.engine.release(now, flow.id);
        self.streams.forget(flow.id);
        if let Some(count) = self.flows_by_client.get_mut(&flow.client) {
            *count -= 1;
            if *count == 0 {
                self.flows_by_client.remove(&flow.client);
            }
        }
    }
}

/// What connect(2) says when all ports are in use: connections that have ended make room. (`EAGAIN` it says of Unix sockets; programs take it
/// for "not yet", and Python for a success.)
const OUT_OF_CONNECTIONS: libc::c_int = libc::EADDRNOTAVAIL;

/// A carrier comes from what stood in for an address that is gone.
#[derive(Debug, PartialEq, Eq)]
struct AddressGone;

/// The local address and port a program has asked for, if it has. From a stand-in's port it connects from the same port of the address.
fn local_end(own: &Own, request: &Request) -> Result<Option<SocketAddr>, AddressGone> {
    let Request {
        carrier,
        local_port: port,
        ..
    } = *request;
    if carrier.ip() != Ipv4Addr::LOCALHOST {
        let bound = own.iter().find(|(_, stand_in)| carrier.ip() == *stand_in);
        let &(ip, _) = bound.ok_or(AddressGone)?;
        return Ok(Some(SocketAddr::new(ip, carrier.port())));
    }
    let of_family = |(ip, _): &&(IpAddr, Ipv4Addr)| ip.is_ipv4() == request.remote.is_ipv4();
    let first = own.iter().find(of_family).filter(|_| port != 0);
    Ok(first.map(|&(ip, _)| SocketAddr::new(ip, port)))
}

/// What connect(2) would have said.
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

    fn request(carrier: &str, remote: &str, local_port: u16) -> Request {
        Request {
            client: ClientId(1),
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
                Ipv4Addr::new(127, 99, 0, last),
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
