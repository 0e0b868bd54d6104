//! The engine's device: opened where it lives, and watched for changes there.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use toehold_link::{
    Interfaces, PacketOptions, PacketSocket, Tap, TapOptions, XdpOptions, XdpSocket, XdpSteering,
};

use super::Error;
use super::device::Device;
use super::settings::{DeviceKind, Settings};
use super::tcp_config;

/// A frame of each of some thousand connections may come at once; the kernel's own 1,000 would lose
/// some.
const QUEUE_FRAMES: u32 = 8_192;

/// What a link is opened by, now and again.
#[derive(Clone, Debug)]
struct Opening {
    settings: Settings,
    /// Which of the threads it is for: of AF_XDP, its receive queue.
    thread: usize,
    /// All threads' program on the interface.
    steering: Arc<Mutex<Option<Arc<XdpSteering>>>>,
}

/// A device and the ways to ask about it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) device: Device,
    opening: Opening,
    /// The interface that the device is on does not exist at the moment.
    is_gone: bool,
    /// Those of the device's network namespace.
    interfaces: Interfaces,
    /// Readable when some link of that namespace has changed (rtnetlink(7)).
    changes: OwnedFd,
}

impl Link {
    /// Attaches to the device, making it if need be, once for each thread.
    pub(super) fn open_all(settings: &Settings) -> Result<Vec<Link>, Error> {
        let steering = Arc::default();
        let open = |thread| {
            let opening = Opening {
                settings: settings.clone(),
                thread,
                steering: Arc::clone(&steering),
            };
            opening.there(Link::open_here)
        };
        (0..settings.threads).map(open).collect()
    }

    fn open_here(opening: &Opening) -> Result<Link, Error> {
        let device = opening.device()?;
        let os = |error| Error::Os("watch the link", error);
        let link = Link {
            device,
            opening: opening.clone(),
            is_gone: false,
            interfaces: Interfaces::here().map_err(os)?,
            changes: changes().map_err(os)?,
        };
        if let Device::Tap(tap) = &link.device
            && !tap.is_persistent().map_err(os)?
        {
            // Where the kernel refuses it stays as it was.
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
        &self.opening.settings.device.name
    }

    /// The engine's Ethernet address.
    pub(super) fn mac(&self) -> [u8; 6] {
        match &self.device {
            Device::Xdp(socket) => socket.steering().mac(),
            _ => tcp_config::mac(&self.opening.settings),
        }
    }

    /// Follows other settings, as far as they are the link's.
    pub(super) fn reconfigure(&mut self, settings: &Settings) -> io::Result<()> {
        self.opening.settings = settings.clone();
        match &self.device {
            Device::Xdp(socket) => socket.steering().set_addresses(&addresses(settings)),
            _ => Ok(()),
        }
    }

    /// Looks whether the interface is still there. One that has come in its place under its name is
    /// opened: true when there is another device to watch.
    pub(super) fn follow(&mut self) -> bool {
        let interface = match &self.device {
            Device::Tap(_) => return false,
            Device::Packet(socket) => socket.interface(),
            Device::Xdp(socket) => socket.steering().interface_index(),
        };
        let index = self.interfaces.index(self.name()).ok();
        if index == Some(interface) {
            return false;
        }
        let other = index.and_then(|_| self.opening.there(Opening::device).ok());
        self.is_gone = other.is_none();
        let Some(device) = other else {
            return false;
        };
        self.device = device;
        true
    }

    /// True while the interface that the device is on does not exist.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Readable when something has changed.
    pub(super) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Forgets what has been told; the caller looks for itself.
    pub(super) fn clear_changes(&self) {
        let mut buffer = [0u8; 8192];
        loop {
            match recv(&self.changes, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return,
                // An overrun is news, too, and the kernel reports it once.
                Ok(_) | Err(Errno::NOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

impl Opening {
    fn device(&self) -> Result<Device, Error> {
        let settings = &self.settings;
        let name = &settings.device.name;
        let has_several = settings.threads > 1;
        match settings.device.kind {
            DeviceKind::Tap => {
                let options = TapOptions {
                    multi_queue: has_several,
                    receive_checksum: settings.checksum,
                    receive_large: settings.lro,
                };
                let tap = Tap::open(name, options).map_err(Error::Tap)?;
                Ok(Device::Tap(tap))
            }
            DeviceKind::Packet => {
                let options = PacketOptions {
                    mac: tcp_config::mac(settings),
                    // Another adapter's is another process.
                    group: has_several.then_some(std::process::id() as u16),
                };
                let socket = PacketSocket::open(name, options).map_err(Error::Packet)?;
                Ok(Device::Packet(socket))
            }
            DeviceKind::Xdp => {
                let (steering, queue) = (self.steering()?, self.thread as u32);
                let socket = XdpSocket::open(steering, queue, XdpOptions::default());
                Ok(Device::Xdp(Box::new(socket.map_err(Error::Xdp)?)))
            }
        }
    }

    /// The program on the interface: the first thread that needs one attaches it.
    fn steering(&self) -> Result<Arc<XdpSteering>, Error> {
        let mut shared = self.steering.lock().expect("nobody panics with it");
        let attached = shared.as_ref().filter(|steering| steering.is_current());
        if let Some(attached) = attached {
            return Ok(attached.clone());
        }
        let queues = self.settings.threads as u32;
        let attached = XdpSteering::attach(&self.settings.device.name, queues);
        let attached = Arc::new(attached.map_err(Error::Xdp)?);
        let steered = attached.set_addresses(&addresses(&self.settings));
        steered.map_err(|error| Error::Os("steer frames for the addresses", error))?;
        *shared = Some(attached.clone());
        Ok(attached)
    }

    /// Calls `make` in the device's network namespace: sockets belong to where they were made.
    fn there<T: Send>(
        &self,
        make: impl FnOnce(&Opening) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let Some(namespace) = &self.settings.device.namespace else {
            return make(self);
        };
        // Only a thread that ends afterwards may go elsewhere.
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                enter(namespace).map_err(|error| Error::Namespace(namespace.clone(), error))?;
                make(self)
            });
            there.join().expect("opening a device does not panic")
        })
    }
}

/// Whose frames are ours.
fn addresses(settings: &Settings) -> Vec<IpAddr> {
    settings.addresses.iter().map(|&(ip, _)| ip).collect()
}

/// A socket that is told of every link that changes.
fn changes() -> io::Result<OwnedFd> {
    let (family, flags) = (
        AddressFamily::NETLINK,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    );
    let socket = socket_with(family, SocketType::RAW, flags, NETLINK_ROUTE)?;
    let groups = libc::RTMGRP_LINK.cast_unsigned();
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Moves this thread into a namespace: one that `ip netns` made, by its name, or one by its path.
fn enter(namespace: &str) -> io::Result<()> {
    // `join` with an absolute path is that path.
    let file = File::open(Path::new("/run/netns").join(namespace))?;
    let kind = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(file.as_fd(), kind)?)
}

/// The first protocol of netlink has the number 0, which rustix writes as `None`.
const NETLINK_ROUTE: Option<Protocol> = None;
const _: () = assert!(libc::NETLINK_ROUTE == 0);
