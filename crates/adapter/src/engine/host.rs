//! The kernel's own tables, in the network namespace of the link. The engine follows them where the
//! kernel has its addresses as well.

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

/// Settings, and what could not be followed of them.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) settings: Settings,
    /// Sentences about addresses that cannot be had.
    pub(super) complaints: Vec<String>,
}

/// Adds the lengths of the prefixes of shared addresses. An address that is none of the interface's
/// is left out, and said. So is one for the engine alone that the host has.
pub(super) fn resolve(settings: &Settings) -> Result<Resolved, Error> {
    let mut settings = settings.clone();
    let mut complaints = Vec::new();
    if settings.shares.is_empty() {
        // Where the kernel does not answer, no address is known to be the host's.
        let tables = HostTables::here().ok();
        let is_hosts = |ip: IpAddr| {
            let way = tables.as_ref()?.way_to(ip, None, None).ok()??;
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
        // Whoever opens it says so.
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

/// Sentences about ports that were named, and where somebody listens whom the engine does not
/// serve: `is_ours` says of an address and a port that it does.
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

/// Has the kernel find a neighbour on the link.
pub(super) fn find(device: &Device, ip: IpAddr) -> Result<(), Error> {
    let asked = interface(&device.name).and_then(|index| HostTables::here()?.find(index, ip));
    asked.map_err(|error| Error::Os("have the kernel find a neighbour", error))
}

fn interface(name: &str) -> io::Result<u32> {
    Interfaces::here()?.index(name)
}

/// Calls `make` in the device's network namespace: sockets belong to where they were made.
pub(super) fn there<T: Send>(
    device: &Device,
    make: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let Some(namespace) = &device.namespace else {
        return make();
    };
    // Only a thread that ends afterwards may go elsewhere.
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
