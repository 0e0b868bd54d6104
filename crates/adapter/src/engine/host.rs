//! The kernel's own tables, in the network namespace of the link. The engine uses them if it shares
//! addresses with the kernel.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use toehold_link::{HostNeighbour, HostTables, Interfaces};

use super::Error;
use super::settings::{Device, Settings, Share};
use crate::proc;

/// Settings, and the parts of them that could not be applied.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) settings: Settings,
    /// Sentences about addresses that the engine cannot have.
    pub(super) complaints: Vec<String>,
}

/// Adds the lengths of the prefixes of shared addresses. An address that the interface does not
/// have is left out with a complaint. So is an address for the engine alone that the host has.
pub(super) fn resolve(settings: &Settings) -> Result<Resolved, Error> {
    let mut settings = settings.clone();
    let mut complaints = Vec::new();
    if settings.shares.is_empty() {
        // If the kernel does not answer, no address counts as the host's.
        let tables = HostTables::here().ok();
        let is_hosts = |ip: IpAddr| {
            let way = tables.as_ref()?.route_to(ip, None, None).ok()??;
            Some(way.is_local)
        };
        settings.addresses.retain(|&(ip, _)| {
            let is_hosts = is_hosts(ip).unwrap_or(false);
            if is_hosts {
                complaints.push(format!(
                    "`{ip}` is an address of this host: share it with the kernel (share {ip}), or \
                    take one that is free"
                ));
            }
            !is_hosts
        });
        return Ok(Resolved {
            settings,
            complaints,
        });
    }
    let os = |error| Error::Os("read the kernel's addresses", error);
    let name = &settings.device.name;
    let Ok(index) = interface(name) else {
        // The function that opens the device reports that.
        return Ok(Resolved {
            settings,
            complaints,
        });
    };
    let tables = HostTables::here().map_err(os)?;
    let addresses = tables.addresses(index).map_err(os)?;
    let found = |share: &Share| addresses.iter().find(|(ip, _)| *ip == share.ip).copied();
    for share in &settings.shares {
        if found(share).is_none() {
            complaints.push(not_of_the_host(share, name, &addresses));
        }
    }
    settings.addresses = settings.shares.iter().filter_map(found).collect();
    Ok(Resolved {
        settings,
        complaints,
    })
}

fn not_of_the_host(share: &Share, name: &str, addresses: &[(IpAddr, u8)]) -> String {
    let origin = share.origin.as_ref();
    let origin = origin.map_or(String::new(), |origin| format!("{origin}: "));
    let all: Vec<String> = addresses.iter().map(|(ip, _)| ip.to_string()).collect();
    let has = match &all[..] {
        [] => "no address".to_owned(),
        all => all.join(", "),
    };
    format!(
        "{origin}`{}` cannot be shared, because {name} does not have it: it has {has}",
        share.ip
    )
}

/// Sentences about named ports at which a program listens that the engine does not serve. `is_ours`
/// tells whether the engine serves the listener at an address and port.
pub(super) fn ports_in_use(
    settings: &Settings,
    is_ours: impl Fn(IpAddr, u16) -> bool,
) -> Vec<String> {
    let listening = proc::listening();
    let mut said = Vec::new();
    let is_there = |share: &&Share| {
        !share.ports.is_empty() && settings.addresses.iter().any(|(ip, _)| *ip == share.ip)
    };
    for share in settings.shares.iter().filter(is_there) {
        let in_use = |at: &&SocketAddr| {
            let is_there = at.ip() == share.ip
                || at.ip().is_unspecified() && (at.is_ipv6() || share.ip.is_ipv4());
            is_there && share.has(at.port()) && !is_ours(share.ip, at.port())
        };
        let mut ports: Vec<u16> = listening
            .iter()
            .filter(in_use)
            .map(|at| at.port())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports {
            let origin = share.origin.as_ref();
            let origin = origin.map_or(String::new(), |origin| format!("{origin}: "));
            said.push(format!(
                "{origin}port {port} of {} is in use: the kernel serves it until the program that \
                listens there is started again under --path offload",
                share.ip
            ));
        }
    }
    said
}

/// The neighbours that the kernel knows on the link.
pub(super) fn neighbours(device: &Device) -> Result<Vec<HostNeighbour>, Error> {
    let asked = interface(&device.name).and_then(|index| HostTables::here()?.neighbours(index));
    asked.map_err(|error| Error::Os("read the kernel's neighbours", error))
}

/// Asks the kernel to find a neighbour on the link.
pub(super) fn find(device: &Device, ip: IpAddr) -> Result<(), Error> {
    let asked = interface(&device.name).and_then(|index| HostTables::here()?.find(index, ip));
    asked.map_err(|error| Error::Os("have the kernel find a neighbour", error))
}

fn interface(name: &str) -> io::Result<u32> {
    Interfaces::here()?.index(name)
}

/// Calls `make` in the device's network namespace, because a socket belongs to the namespace in
/// which it was made.
pub(super) fn there<T: Send>(
    device: &Device,
    make: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let Some(namespace) = &device.namespace else {
        return make();
    };
    // A separate thread enters the namespace, and ends afterwards.
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            enter(namespace).map_err(|error| Error::Namespace(namespace.clone(), error))?;
            make()
        });
        there.join().expect("asking the kernel does not panic")
    })
}

/// Moves this thread into a namespace: one that `ip netns` made, by its name, or one by its path.
fn enter(namespace: &str) -> io::Result<()> {
    // `join` with an absolute path is that path.
    let file = File::open(Path::new("/run/netns").join(namespace))?;
    let kind = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(file.as_fd(), kind)?)
}
