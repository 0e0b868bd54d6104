//! What the kernel says of its interfaces (netdevice(7), `linux/ethtool.h`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::{check, owned};

/// Asks about the interfaces of the network namespace that it was made in.
#[derive(Debug)]
pub struct Interfaces(OwnedFd);

impl Interfaces {
    /// Those of this thread's network namespace.
    ///
    /// # Errors
    /// When there are no descriptors or memory left.
    pub fn here() -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved.
        owned(unsafe { libc::socket(libc::AF_INET, kind, 0) }).map(Self)
    }

    /// The number of the interface that has this name now.
    ///
    /// # Errors
    /// When there is none of that name; so below.
    pub fn index(&self, name: &str) -> io::Result<u32> {
        let told = self.ask(name, libc::SIOCGIFINDEX as _)?;
        // SAFETY: filled in by the call, which succeeded; so below.
        Ok(unsafe { told.ifru_ifindex }.cast_unsigned())
    }

    /// The largest packet.
    ///
    /// # Errors
    /// As for [`Interfaces::index`].
    pub fn mtu(&self, name: &str) -> io::Result<u32> {
        let told = self.ask(name, libc::SIOCGIFMTU as _)?;
        // SAFETY: as above.
        Ok(unsafe { told.ifru_mtu }.cast_unsigned())
    }

    /// The Ethernet address; `None` where the interface carries no Ethernet.
    ///
    /// # Errors
    /// As for [`Interfaces::index`].
    pub fn ethernet_address(&self, name: &str) -> io::Result<Option<[u8; 6]>> {
        let told = self.ask(name, libc::SIOCGIFHWADDR as _)?;
        // SAFETY: as above.
        let hardware = unsafe { told.ifru_hwaddr };
        if hardware.sa_family != libc::ARPHRD_ETHER {
            return Ok(None);
        }
        let mut mac = [0; 6];
        for (target, byte) in mac.iter_mut().zip(hardware.sa_data) {
            *target = byte.cast_unsigned();
        }
        Ok(Some(mac))
    }

    /// Sets how many frames may wait in the interface's queue.
    ///
    /// # Errors
    /// As for [`Interfaces::index`], and without CAP_NET_ADMIN.
    pub fn set_queue_frames(&self, name: &str, frames: u32) -> io::Result<()> {
        let mut request = request(name)?;
        // `ifr_qlen` is an int in the same union; the libc crate has no name for it.
        request.ifr_ifru.ifru_mtu = frames.cast_signed();
        // SAFETY: SIOCSIFTXQLEN reads one `ifreq`.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCSIFTXQLEN, &request) })
    }

    /// How many receive queues are in use; 1 where the driver does not tell.
    pub(crate) fn receive_queues(&self, name: &str) -> u32 {
        /// `struct ethtool_channels`.
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            /// Receive, transmit, other and combined: at most, and now.
            most: [u32; 4],
            now: [u32; 4],
        }
        let mut channels = Channels {
            command: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        // SAFETY: the command writes one `ethtool_channels`.
        let told = unsafe { self.ethtool(name, (&raw mut channels).cast()) };
        let [receive, _, _, combined] = channels.now;
        match told {
            Ok(()) => (receive + combined).max(1),
            Err(_) => 1,
        }
    }

    /// The first bytes of the driver's name, up to a zero.
    pub(crate) fn driver(&self, name: &str) -> io::Result<Vec<u8>> {
        /// `struct ethtool_drvinfo`: after the driver's name come five more and four numbers, which
        /// nobody asks for here.
        #[repr(C)]
        struct Driver {
            command: u32,
            name: [u8; 32],
            rest: [u8; 160],
        }
        let mut driver = Driver {
            command: ETHTOOL_GDRVINFO,
            name: [0; 32],
            rest: [0; 160],
        };
        // SAFETY: the command writes one `ethtool_drvinfo`, of 196 bytes.
        unsafe { self.ethtool(name, (&raw mut driver).cast()) }?;
        let name = driver.name.split(|byte| *byte == 0).next();
        Ok(name.unwrap_or_default().to_vec())
    }

    /// A question that an `ifreq` answers.
    fn ask(&self, name: &str, what: libc::c_ulong) -> io::Result<libc::__c_anonymous_ifr_ifru> {
        let mut request = request(name)?;
        // SAFETY: all that is asked here reads and writes one `ifreq`.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), what as _, &mut request) })?;
        Ok(request.ifr_ifru)
    }

    /// # Safety
    /// `command` is writable for all that its first word asks for.
    unsafe fn ethtool(&self, name: &str, command: *mut libc::c_char) -> io::Result<()> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = command;
        // SAFETY: the caller's promise.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL, &mut request) })
    }
}

/// A question about an interface of this name, which must be one that an interface can have.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `ifreq` is a C structure of integers and unions of them: zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (target, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *target = byte.cast_signed();
    }
    Ok(request)
}

/// `linux/sockios.h`, `linux/ethtool.h`; the libc crate does not have them everywhere.
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
