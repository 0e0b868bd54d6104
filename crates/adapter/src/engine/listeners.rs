//! Programs that listen, and the engine's listeners on their behalf.
//!
//! A program's listener is known by its address and port, not by a descriptor: descriptors are inherited, passed on and closed in
//! ways that we hear of late or never. Whether it is still there the kernel knows, and is asked whenever there is a sign.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use toehold_tcp::{Engine, ListenerId, Options};

use super::sys;
use crate::registry::ClientId;

/// A request to listen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listening {
    pub(super) client: ClientId,
    /// Where the program listens.
    pub(super) local: SocketAddr,
    pub(super) backlog: usize,
}

/// What stands behind an engine's listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) client: ClientId,
    /// Where to connect to.
    pub(super) address: SocketAddrV4,
}

#[derive(Debug)]
struct Known {
    target: Target,
    listeners: Vec<ListenerId>,
}

#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_address: BTreeMap<SocketAddr, Known>,
    by_id: BTreeMap<ListenerId, SocketAddr>,
}

impl Listeners {
    /// Listens on those of the engine's addresses that the program's listener stands for. Listeners on loopback stand for none: they were
    /// not meant for a network.
    pub(super) fn add(
        &mut self,
        engine: &mut Engine,
        ours: &[IpAddr],
        wanted: Listening,
        options: Options,
    ) {
        if self.by_address.contains_key(&wanted.local) || self.by_address.len() >= LISTENERS_MAX {
            return;
        }
        let Some(address) = carrier_target(wanted.local, ours) else {
            return;
        };
        let port = wanted.local.port();
        let serves = |ip: &&IpAddr| match wanted.local.ip() {
            IpAddr::V4(local) if local.is_unspecified() => ip.is_ipv4(),
            IpAddr::V6(local) if local.is_unspecified() => true,
            local => local == **ip,
        };
        let backlog = wanted.backlog.clamp(1, BACKLOG_MAX);
        let addresses = ours.iter().filter(serves);
        let listen = |&ip: &IpAddr| {
            engine
                .listen(SocketAddr::new(ip, port), backlog, options)
                .ok()
        };
        let listeners: Vec<ListenerId> = addresses.filter_map(listen).collect();
        if listeners.is_empty() {
            return;
        }
        for &id in &listeners {
            self.by_id.insert(id, wanted.local);
        }
        let target = Target {
            client: wanted.client,
            address,
        };
        let known = Known { target, listeners };
        self.by_address.insert(wanted.local, known);
    }

    /// Where connections of an engine's listener go.
    pub(super) fn target(&self, id: ListenerId) -> Option<Target> {
        let address = self.by_id.get(&id)?;
        Some(self.by_address.get(address)?.target)
    }

    /// Stops listening for programs that no longer do.
    pub(super) fn retain_living(
        &mut self,
        engine: &mut Engine,
        is_there: impl Fn(SocketAddr) -> bool,
    ) {
        let by_id = &mut self.by_id;
        self.by_address.retain(|&address, known| {
            let lives = is_there(address);
            if !lives {
                for id in &known.listeners {
                    engine.unlisten(*id);
                    by_id.remove(id);
                }
            }
            lives
        });
    }

    /// Whether nobody but this client listens.
    pub(super) fn are_all_of(&self, client: ClientId) -> bool {
        let mut all = self.by_address.values();
        all.all(|known| known.target.client == client)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }
}

/// Where carriers for a listener are to be connected, if it takes part at all.
fn carrier_target(local: SocketAddr, ours: &[IpAddr]) -> Option<SocketAddrV4> {
    if local.ip().is_unspecified() {
        return Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, local.port()));
    }
    sys::v4_of(local).filter(|_| ours.contains(&local.ip()))
}

/// Listeners of all programs.
const LISTENERS_MAX: usize = 1024;
/// Connections that may wait for one program; listen(2) bounds its own by `net.core.somaxconn`.
const BACKLOG_MAX: usize = 4096;
