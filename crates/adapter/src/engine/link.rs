//! The engine's TAP device: opened where it lives, and watched for changes there.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;

use toehold_link::{Tap, TapOptions};

use super::Error;
use super::settings::{Device, Settings};
use crate::listener::{check, owned};

/// `linux/sockios.h`; the libc crate does not have it.
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;
/// A frame of each of some thousand connections may come at once; the kernel's own 1,000 would lose some.
const QUEUE_FRAMES: libc::c_int = 8_192;

/// A TAP device and the ways to ask about it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) tap: Tap,
    name: CString,
    /// A socket of the device's network namespace.
    control: OwnedFd,
    /// Readable when some link of that namespace has changed (rtnetlink(7)).
    changes: OwnedFd,
}

impl Link {
    /// Attaches to the device, making it if need be.
    pub(super) fn open(settings: &Settings) -> Result<Link, Error> {
        match &settings.device.namespace {
            None => Link::open_here(settings),
            // Only a thread that ends afterwards may go elsewhere: sockets belong to where they were made.
            Some(namespace) => thread::scope(|scope| {
                let there = scope.spawn(|| {
                    enter(namespace).map_err(|error| Error::Namespace(namespace.clone(), error))?;
                    Link::open_here(settings)
                });
                there.join().expect("opening a device does not panic")
            }),
        }
    }

    fn open_here(settings: &Settings) -> Result<Link, Error> {
        let Device { name, .. } = &settings.device;
        let options = TapOptions {
            multi_queue: settings.threads > 1,
            receive_checksum: settings.checksum,
            receive_large: settings.lro,
        };
        let tap = Tap::open(name, options).map_err(Error::Tap)?;
        let os = |error| Error::Os("watch the link", error);
        // SAFETY: no memory is involved.
        let control =
            owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) });
        let link = Link {
            tap,
            name: CString::new(name.as_str()).expect("checked by the settings"),
            control: control.map_err(os)?,
            changes: changes().map_err(os)?,
        };
        if !link.tap.is_persistent().map_err(os)? {
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
