//! The engine's device: opened where it lives, and watched for changes there.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;

use toehold_link::{PacketOptions, PacketSocket, Tap, TapOptions, VnetHeader};

use super::Error;
use super::lane::Part;
use super::settings::{DeviceKind, Settings};
use super::told;
use crate::listener::{check, owned};

/// `linux/sockios.h`; the libc crate does not have it.
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;
/// A frame of each of some thousand connections may come at once; the kernel's own 1,000 would lose some.
const QUEUE_FRAMES: libc::c_int = 8_192;

/// Where frames come from and go to.
#[derive(Debug)]
pub(super) enum Device {
    Tap(Tap),
    Packet(PacketSocket),
}

/// A device and the ways to ask about it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) device: Device,
    settings: Settings,
    /// The interface that the device is on does not exist at the moment.
    is_gone: bool,
    name: CString,
    /// A socket of the device's network namespace.
    control: OwnedFd,
    /// Readable when some link of that namespace has changed (rtnetlink(7)).
    changes: OwnedFd,
}

impl Link {
    /// Attaches to the device, making it if need be.
    pub(super) fn open(settings: &Settings) -> Result<Link, Error> {
        there(settings, Link::open_here)
    }

    fn open_here(settings: &Settings) -> Result<Link, Error> {
        let name = &settings.device.name;
        let device = Device::open(settings)?;
        let os = |error| Error::Os("watch the link", error);
        // SAFETY: no memory is involved.
        let control =
            owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) });
        let link = Link {
            device,
            settings: settings.clone(),
            is_gone: false,
            name: CString::new(name.as_str()).expect("checked by the settings"),
            control: control.map_err(os)?,
            changes: changes().map_err(os)?,
        };
        if let Device::Tap(tap) = &link.device
            && !tap.is_persistent().map_err(os)?
        {
            link.set_queue_frames(QUEUE_FRAMES);
        }
        Ok(link)
    }

    /// How many frames may wait for us in the device. Where the kernel refuses it stays as it was.
    fn set_queue_frames(&self, frames: libc::c_int) {
        let mut request = self.request();
        // `ifr_qlen` is an int in the same union (netdevice(7)); the libc crate has no name for it.
        request.ifr_ifru.ifru_mtu = frames;
        let control = self.control.as_raw_fd();
        // SAFETY: SIOCSIFTXQLEN reads one `ifreq`.
        unsafe { libc::ioctl(control, SIOCSIFTXQLEN, &request) };
    }

    /// A question about the device.
    fn request(&self) -> libc::ifreq {
        // SAFETY: `ifreq` is a C structure of integers and unions of them: zeroes are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (target, &byte) in request.ifr_name.iter_mut().zip(self.name.as_bytes()) {
            *target = byte.cast_signed();
        }
        request
    }

    /// The device's MTU now.
    pub(super) fn mtu(&self) -> Option<u16> {
        let mut request = self.request();
        // SAFETY: SIOCGIFMTU reads and writes one `ifreq`.
        let result = unsafe {
            libc::ioctl(
                self.control.as_raw_fd(),
                libc::SIOCGIFMTU as _,
                &mut request,
            )
        };
        check(result).ok()?;
        // SAFETY: filled in by the call, which succeeded.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        u16::try_from(mtu).ok().or(Some(u16::MAX))
    }

    /// Looks whether the interface is still there. One that has come in its place under its name is opened: true when there is another
    /// device to watch.
    pub(super) fn follow(&mut self) -> bool {
        let Device::Packet(socket) = &self.device else {
            return false;
        };
        let index = self.index();
        if index == Some(socket.interface()) {
            return false;
        }
        let other = index.and_then(|_| there(&self.settings, Device::open).ok());
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

    /// The number of the interface that has the name now.
    fn index(&self) -> Option<libc::c_int> {
        let mut request = self.request();
        let control = self.control.as_raw_fd();
        // SAFETY: SIOCGIFINDEX reads and writes one `ifreq`.
        check(unsafe { libc::ioctl(control, libc::SIOCGIFINDEX as _, &mut request) }).ok()?;
        // SAFETY: filled in by the call, which succeeded.
        Some(unsafe { request.ifr_ifru.ifru_ifindex })
    }

    /// Readable when something has changed.
    pub(super) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Forgets what has been told; the caller looks for itself.
    pub(super) fn clear_changes(&self) {
        let mut buffer = [0u8; 8192];
        loop {
            // SAFETY: `buffer` is writable for its length.
            let got = unsafe {
                libc::recv(
                    self.changes.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            // An overrun is news as well, and said once.
            let overrun =
                got < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
            if got <= 0 && !overrun {
                return;
            }
        }
    }
}

impl Device {
    fn open(settings: &Settings) -> Result<Device, Error> {
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
                    mac: told::mac(settings),
                    // Another adapter's is another process.
                    group: has_several.then_some(std::process::id() as u16),
                };
                let socket = PacketSocket::open(name, options).map_err(Error::Packet)?;
                Ok(Device::Packet(socket))
            }
        }
    }

    /// True when a frame has to be read before anything is known of it.
    pub(super) fn has_to_guess(&self) -> bool {
        matches!(self, Device::Tap(_))
    }

    /// Gives the device a frame in one piece, behind room for its metadata; whether it was taken.
    pub(super) fn send_behind_header(&self, header: VnetHeader, buffer: &mut [u8]) -> bool {
        let sent = match self {
            Device::Tap(tap) => tap.send_behind_header(header, buffer),
            Device::Packet(socket) => socket.send_behind_header(header, buffer),
        };
        sent.unwrap_or(false)
    }

    /// Gives the device a frame in several pieces; whether it was taken.
    ///
    /// # Safety
    /// Each part names readable memory of its length.
    pub(super) unsafe fn send_raw(&self, header: VnetHeader, parts: &[Part]) -> bool {
        // SAFETY: the caller's promise.
        let sent = unsafe {
            match self {
                Device::Tap(tap) => tap.send_raw(header, parts),
                Device::Packet(socket) => socket.send_raw(header, parts),
            }
        };
        sent.unwrap_or(false)
    }

    /// What an interface that went down has left to be said.
    pub(super) fn clear_error(&self) {
        if let Device::Packet(socket) = self {
            socket.clear_error();
        }
    }

    /// Frames lost since the last time, where the device tells.
    pub(super) fn take_lost(&self) -> u64 {
        match self {
            Device::Tap(_) => 0,
            Device::Packet(socket) => socket.take_lost(),
        }
    }
}

impl AsFd for Device {
    /// Readable when a frame waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Device::Tap(tap) => tap.as_fd(),
            Device::Packet(socket) => socket.as_fd(),
        }
    }
}

/// Calls `make` in the device's network namespace: sockets belong to where they were made.
fn there<T: Send>(
    settings: &Settings,
    make: impl FnOnce(&Settings) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let Some(namespace) = &settings.device.namespace else {
        return make(settings);
    };
    // Only a thread that ends afterwards may go elsewhere.
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            enter(namespace).map_err(|error| Error::Namespace(namespace.clone(), error))?;
            make(settings)
        });
        there.join().expect("opening a device does not panic")
    })
}

/// A socket that is told of every link that changes.
fn changes() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is involved.
    let socket = owned(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: `sockaddr_nl` is plain data, for which zeroes are a value.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = libc::RTMGRP_LINK as u32;
    let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: `address` is valid for `length` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

/// Moves this thread into a namespace that `ip netns` made.
fn enter(namespace: &str) -> io::Result<()> {
    let file = File::open(format!("/run/netns/{namespace}"))?;
    // SAFETY: plain system call.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) })
}
