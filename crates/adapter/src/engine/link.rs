//! The engine's device: opened where it lives, and watched for changes there.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use toehold_link::{
    Changed, Group, HostChanges, HostNeighbour, HostTables, Interfaces, PacketOptions,
    PacketSocket, PortSteering, PortTable, Tap, TapOptions, XdpOptions, XdpSocket, XdpSteering,
};

use toehold_tcp::Spread;

use super::Error;
use super::device::Device;
use super::host::{self, Resolved};
use super::outgoing::OutgoingPorts;
use super::settings::{DeviceKind, Settings};
use super::tcp_config;
use super::together::Together;
use crate::firewall::Translation;

/// Frames of some thousand connections may come at once; the kernel's default of 1,000 would lose
/// some.
const QUEUE_FRAMES: u32 = 8_192;
/// The number of times that opening is tried again because another interface has taken the name.
const OTHERS_MAX: u32 = 8;

/// The settings by which a link is opened, now and again.
#[derive(Clone, Debug)]
struct Opener {
    settings: Settings,
    /// The distribution of connections over the threads.
    spread: Spread,
    /// The thread for which it is; for AF_XDP also the receive queue.
    thread: usize,
    /// The BPF program on the interface, shared by all threads.
    steering: Arc<Mutex<Option<Arc<XdpSteering>>>>,
    /// The port steering of a packet link that shares addresses with the kernel.
    ports: Arc<Mutex<Option<Arc<PortSteering>>>>,
    /// The sockets of a packet link whose interface was replaced.
    together: Arc<Mutex<Together<Opened>>>,
}

/// A device, and the program that keeps the engine's segments from the kernel.
type Opened = (Device, Option<Arc<PortSteering>>);

/// A device and the sockets for queries about it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) device: Device,
    opener: Opener,
    /// The interface that the device is on does not exist at the moment.
    is_gone: bool,
    /// The interfaces of the device's network namespace.
    interfaces: Interfaces,
    /// Keeps the engine's segments from the kernel, on a packet link that shares addresses.
    ports: Option<Arc<PortSteering>>,
    /// Readable when some link of that namespace has changed (rtnetlink(7)).
    changes: HostChanges,
    /// The kernel's routes, if addresses are shared with the kernel.
    tables: Option<HostTables>,
    /// The kernel's address translation rules, if connections of programs go out from a shared
    /// address.
    translation: Option<Translation>,
}

impl Link {
    /// Attaches to the device, making it if need be, once for each thread.
    pub(super) fn open_all(settings: &Settings, spread: Spread) -> Result<Vec<Link>, Error> {
        let (steering, ports, together) = Default::default();
        let open = |thread| {
            let opener = Opener {
                settings: settings.clone(),
                spread,
                thread,
                steering: Arc::clone(&steering),
                ports: Arc::clone(&ports),
                together: Arc::clone(&together),
            };
            opener.there(Link::open_here)
        };
        (0..settings.threads).map(open).collect()
    }

    fn open_here(opener: &Opener) -> Result<Link, Error> {
        let (device, ports) = opener.device_now()?;
        let os = |error| Error::Os("watch the link", error);
        let routes = |error| Error::Os("ask the kernel for routes", error);
        let rules = |error| Error::Os("read the kernel's firewall rules", error);
        let shares = !opener.settings.shares.is_empty();
        let link = Link {
            device,
            opener: opener.clone(),
            is_gone: false,
            interfaces: Interfaces::here().map_err(os)?,
            ports,
            changes: HostChanges::here(shares).map_err(os)?,
            tables: shares.then(HostTables::here).transpose().map_err(routes)?,
            translation: (opener.settings.outgoing.is_some())
                .then(Translation::here)
                .transpose()
                .map_err(rules)?,
        };
        if let Device::Tap(tap) = &link.device
            && !tap.is_persistent().map_err(os)?
        {
            // If the kernel refuses, the length stays unchanged.
            let _ = link.interfaces.set_queue_frames(link.name(), QUEUE_FRAMES);
        }
        Ok(link)
    }

    /// The device's MTU now.
    pub(super) fn mtu(&self) -> Option<u16> {
        let mtu = self.interfaces.mtu(self.name()).ok()?;
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        Some(self.device.mtu_max().map_or(mtu, |most| mtu.min(most)))
    }

    fn name(&self) -> &str {
        &self.opener.settings.device.name
    }

    /// The engine's Ethernet address.
    pub(super) fn mac(&self) -> [u8; 6] {
        match &self.device {
            Device::Xdp(socket) => socket.steering().mac(),
            Device::Packet(socket) => socket.mac(),
            Device::Tap(_) => tcp_config::mac(&self.opener.settings),
        }
    }

    /// Applies those of the new settings that concern the link.
    pub(super) fn reconfigure(&mut self, settings: &Settings) -> io::Result<()> {
        self.opener.settings = settings.clone();
        match &self.device {
            Device::Xdp(socket) => socket.steering().set_addresses(&addresses(settings)),
            Device::Tap(tap) => tap.set_offload(settings.checksum.is_by_link(), settings.lro),
            Device::Packet(_) => Ok(()),
        }
    }

    /// Checks whether the interface still exists. A new interface with its name is opened; then
    /// this returns true, because a different device must be watched.
    ///
    /// A deleted TAP device is not made again by the adapter: the operator who configures the
    /// kernel's side again makes it, and would find its name taken.
    pub(super) fn follow(&mut self) -> bool {
        let index = || self.interfaces.index(self.name()).ok();
        let is_current = match &self.device {
            // The device may have been renamed.
            Device::Tap(tap) => tap.is_attached(),
            Device::Packet(_) | Device::Xdp(_) => {
                let index = index();
                index.is_some() && index == self.interface()
            }
        };
        if is_current {
            self.is_gone = false;
            return false;
        }
        // Looked up after that check: a device that is being deleted loses its name before we are
        // detached. In the other order, such a device would be made again.
        let other = index().and_then(|index| {
            let opened = self.opener.there(|opener| opener.device_again(index));
            opened.ok().flatten()
        });
        self.is_gone = other.is_none();
        let Some((device, ports)) = other else {
            return false;
        };
        (self.device, self.ports) = (device, ports);
        true
    }

    /// The number of the interface that the device is on; a TAP device is one.
    fn interface(&self) -> Option<u32> {
        match &self.device {
            Device::Tap(_) => None,
            Device::Packet(socket) => Some(socket.interface()),
            Device::Xdp(socket) => Some(socket.steering().interface_index()),
        }
    }

    /// Whether the link joins small segments, as far as that was asked for here.
    pub(super) fn joins(&self) -> bool {
        self.opener.settings.lro
    }

    /// True while the interface that the device is on does not exist.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Readable when something has changed.
    pub(super) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Takes the kernel's notices of changes. The caller looks at the link itself.
    pub(super) fn take_changes(&self) -> Changed {
        self.changes.take(self.interface())
    }

    /// The settings that it was opened by.
    pub(super) fn settings(&self) -> &Settings {
        &self.opener.settings
    }

    /// The number of the interface that has the device's name now.
    pub(super) fn index(&self) -> Option<u32> {
        self.interfaces.index(self.name()).ok()
    }

    /// The engine's ports, if addresses are shared with the kernel.
    pub(super) fn shares(&self) -> Option<&PortTable> {
        match &self.device {
            Device::Xdp(socket) => socket.steering().ports(),
            _ => self.ports.as_ref().map(|steering| steering.ports()),
        }
    }

    /// The settings, completed with the kernel's data about shared addresses.
    pub(super) fn resolve(settings: &Settings) -> Result<Resolved, Error> {
        host::there(&settings.device, || host::resolve(settings))
    }

    /// The kernel's neighbours on the link, if the engine uses them.
    pub(super) fn neighbours(&self) -> Vec<HostNeighbour> {
        let device = &self.opener.settings.device;
        if self.opener.settings.shares.is_empty() {
            return Vec::new();
        }
        // Without an answer the engine goes on with the neighbours that it knows.
        host::there(device, || host::neighbours(device)).unwrap_or_default()
    }

    /// Takes the ports for outgoing connections of programs from the kernel, if such ports are set.
    ///
    /// # Errors
    /// A sentence for the operator; then these connections stay with the kernel.
    pub(super) fn take_outgoing(settings: &Settings) -> Result<Option<OutgoingPorts>, String> {
        let Some(range) = &settings.outgoing else {
            return Ok(None);
        };
        let taken = host::there(&settings.device, || Ok(OutgoingPorts::take(range)));
        let taken = taken.map_err(|error| error.to_string())?;
        taken.map(Some)
    }

    /// Whether connections of programs may go out from ports of a shared address. False while the
    /// kernel uses such ports for translated connections.
    pub(super) fn may_go_out(&self) -> bool {
        let translation = self.translation.as_ref();
        translation.is_some_and(|translation| !translation.is_there())
    }

    /// Readable when [`Link::may_go_out`] may have changed.
    pub(super) fn rule_changes(&self) -> Option<BorrowedFd<'_>> {
        self.translation.as_ref()?.changes()
    }

    /// Looks at the kernel's rules again; true when [`Link::may_go_out`] has changed.
    pub(super) fn follow_rules(&mut self) -> bool {
        let before = self.may_go_out();
        if let Some(translation) = &mut self.translation {
            let device = &self.opener.settings.device;
            let follow = || {
                translation.follow();
                Ok(())
            };
            // If the namespace cannot be entered, the old answer stays valid.
            let _ = host::there(device, follow);
        }
        before != self.may_go_out()
    }

    /// The address from which the kernel would send to a remote by this interface; `None` where it
    /// would send by another one, or to itself.
    pub(super) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let way = self.tables.as_ref()?.route_to(remote, None, None).ok()??;
        let is_by_it = !way.is_local && Some(way.interface) == self.interface();
        is_by_it.then_some(way.source)
    }

    /// The next hop that the kernel would use from this local address to a remote; `None` if it
    /// would send nothing. If it would use another interface, the next best hop on this one.
    pub(super) fn hop_to(&self, local: IpAddr, remote: IpAddr) -> Option<IpAddr> {
        let (tables, interface) = (self.tables.as_ref()?, self.interface()?);
        let ask = |by| tables.route_to(remote, Some(local), by).ok().flatten();
        // A link-local address is meaningful only with an interface.
        let is_link_local = matches!(remote, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let way = ask(is_link_local.then_some(interface))?;
        if way.is_local {
            return None;
        }
        let way = match way.interface == interface {
            true => way,
            false => ask(Some(interface))?,
        };
        Some(way.gateway.unwrap_or(remote))
    }

    /// Has the kernel find a neighbour.
    pub(super) fn find_neighbour(&self, ip: IpAddr) {
        let device = &self.opener.settings.device;
        // On an error the engine asks again later.
        let _ = host::there(device, || host::find(device, ip));
    }
}

impl Opener {
    /// Opens the device by its name, which may make the device.
    fn device_now(&self) -> Result<Opened, Error> {
        let os = |error| Error::Os("watch the link", error);
        for _ in 0..OTHERS_MAX {
            let index = Interfaces::here().map_err(os)?.index(self.name()).ok();
            let Some(index) = index else { break };
            if let Some(opened) = self.device_at(index)? {
                return Ok(opened);
            }
        }
        self.device()
    }

    /// Opens the device on an interface that has replaced the former one. A packet link's sockets
    /// must join their group in the order of the threads.
    fn device_again(&self, index: u32) -> Result<Option<Opened>, Error> {
        let (thread, threads) = (self.thread, self.settings.threads);
        if threads == 1 || self.settings.device.kind != DeviceKind::Packet {
            return self.device_at(index);
        }
        let mut together = self.together.lock().expect("nobody panics with it");
        together.take(index, (thread, threads), || self.device_at(index))
    }

    /// Opens the device, if the interface with this number has the name both before and afterwards.
    /// Only then do all queries by name concern one interface. If a TAP device is deleted in
    /// between, opening makes it again with another number; that one is closed here.
    fn device_at(&self, index: u32) -> Result<Option<Opened>, Error> {
        let opened = self.device();
        let now = Interfaces::here().and_then(|all| all.index(self.name()));
        match now.is_ok_and(|now| now == index) {
            true => opened.map(Some),
            false => Ok(None),
        }
    }

    fn name(&self) -> &str {
        &self.settings.device.name
    }

    fn device(&self) -> Result<Opened, Error> {
        let settings = &self.settings;
        let name = &settings.device.name;
        let has_several = settings.threads > 1;
        match settings.device.kind {
            DeviceKind::Tap => {
                let options = TapOptions {
                    multi_queue: has_several,
                    receive_checksum: settings.checksum.is_by_link(),
                    receive_large: settings.lro,
                };
                let tap = Tap::open(name, options).map_err(Error::Tap)?;
                Ok((Device::Tap(tap), None))
            }
            DeviceKind::Packet => {
                let ports = match settings.shares.is_empty() {
                    true => None,
                    false => Some(self.port_steering()?),
                };
                let options = PacketOptions {
                    mac: ports.is_none().then(|| tcp_config::mac(settings)),
                    // Another adapter is another process, so this number is unique.
                    group: has_several.then_some(Group {
                        number: std::process::id() as u16,
                        spread: self.spread,
                    }),
                };
                let socket = PacketSocket::open(name, options).map_err(Error::Packet)?;
                Ok((Device::Packet(socket), ports))
            }
            DeviceKind::Xdp => {
                let (steering, queue) = (self.steering()?, self.thread as u32);
                let socket = XdpSocket::open(steering, queue, XdpOptions::default());
                let device = Device::Xdp(Box::new(socket.map_err(Error::Xdp)?));
                Ok((device, None))
            }
        }
    }

    /// The BPF program on the interface. The first thread that needs it attaches it.
    fn steering(&self) -> Result<Arc<XdpSteering>, Error> {
        let mut shared = self.steering.lock().expect("nobody panics with it");
        let attached = shared.as_ref().filter(|steering| steering.is_current());
        if let Some(attached) = attached {
            return Ok(attached.clone());
        }
        let queues = self.settings.threads as u32;
        let name = &self.settings.device.name;
        let attached = match self.settings.shares.is_empty() {
            true => XdpSteering::attach(name, queues),
            false => XdpSteering::attach_sharing(name, queues),
        };
        let attached = Arc::new(attached.map_err(Error::Xdp)?);
        let steered = attached.set_addresses(&addresses(&self.settings));
        steered.map_err(|error| Error::Os("steer frames for the addresses", error))?;
        *shared = Some(attached.clone());
        Ok(attached)
    }

    /// The BPF program beside a packet link. The first thread that needs it attaches it.
    fn port_steering(&self) -> Result<Arc<PortSteering>, Error> {
        let mut shared = self.ports.lock().expect("nobody panics with it");
        let name = &self.settings.device.name;
        let index = Interfaces::here().and_then(|all| all.index(name)).ok();
        let attached = shared.as_ref();
        if let Some(attached) = attached.filter(|steering| Some(steering.interface()) == index) {
            return Ok(attached.clone());
        }
        let attached = Arc::new(PortSteering::attach(name).map_err(Error::Ports)?);
        *shared = Some(attached.clone());
        Ok(attached)
    }

    /// Calls `make` in the device's network namespace: sockets belong to where they were made.
    fn there<T: Send>(
        &self,
        make: impl FnOnce(&Opener) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        host::there(&self.settings.device, || make(self))
    }
}

/// The addresses whose frames the engine receives.
fn addresses(settings: &Settings) -> Vec<IpAddr> {
    settings.addresses.iter().map(|&(ip, _)| ip).collect()
}

#[cfg(test)]
mod tests {
    use toehold_network::Namespace;
    use toehold_tcp::{Random, Share};

    use super::super::settings::Draft;
    use super::*;

    fn opener(link: &str) -> Opener {
        let mut draft = Draft::default();
        for (word, value) in [("link", link), ("address", "10.0.0.2/24")] {
            draft.set(word, value).expect("a setting");
        }
        Opener {
            settings: draft.finish().expect("whole").expect("there"),
            spread: Share::among(1, &mut Random::new(5))[0].spread(),
            thread: 0,
            steering: Arc::default(),
            ports: Arc::default(),
            together: Arc::default(),
        }
    }

    #[test]
    fn interface_that_has_come_in_between_is_not_opened_for_another() {
        let namespace = match Namespace::new() {
            Ok(namespace) => namespace,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let joined = namespace.add_veth("v0", &namespace, "v1", "");
        joined.expect("a veth can be made in a namespace of ours");
        namespace.within(|| {
            let index = |name| Interfaces::here().expect("a socket").index(name).ok();
            let other = index("v1").expect("it was made");
            let packet = opener("packet:v0");
            assert!(matches!(packet.device_at(other), Ok(None)));
            let own = index("v0").expect("it was made");
            assert!(matches!(packet.device_at(own), Ok(Some(_))));
            assert!(packet.device_now().is_ok());
            // A missing TAP device would be made.
            let tap = opener("tap:t0");
            assert!(matches!(tap.device_at(other), Ok(None)));
            assert_eq!(index("t0"), None, "it went with what was opened");
            let made = tap.device_now();
            assert!(made.is_ok() && index("t0").is_some());
        });
    }
}
