//! The kernel's answers about its interfaces (netdevice(7), `linux/ethtool.h`).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys::{InterfaceRequest, Request};

/// Requests about the interfaces of one network namespace: the one in which this value was made.
#[derive(Debug)]
pub struct Interfaces(OwnedFd);

/// The queues of an interface that are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queues {
    pub(crate) receive: u32,
    pub(crate) transmit: u32,
}

impl Interfaces {
    /// Requests about the interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// When there are no descriptors or memory left.
    pub fn here() -> io::Result<Self> {
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        Ok(Self(socket_with(family, SocketType::DGRAM, flags, None)?))
    }

    /// The number of the interface that has this name now.
    ///
    /// # Errors
    /// When no interface has that name. The methods below fail in this case, too.
    pub fn index(&self, name: &str) -> io::Result<u32> {
        Ok(name_to_index(&self.0, name)?)
    }

    /// The largest packet.
    ///
    /// # Errors
    /// As for [`Interfaces::index`].
    pub fn mtu(&self, name: &str) -> io::Result<u32> {
        let answer = self.ask(name, Request::Mtu)?;
        Ok(u32::from_ne_bytes(answer.value()))
    }

    /// The Ethernet address; `None` if the interface carries no Ethernet.
    ///
    /// # Errors
    /// As for [`Interfaces::index`].
    pub fn ethernet_address(&self, name: &str) -> io::Result<Option<[u8; 6]>> {
        // A `sockaddr`: two bytes of family, then the address.
        let [family, other, mac @ ..] = self.ask(name, Request::HardwareAddress)?.value::<8>();
        let is_ethernet = u16::from_ne_bytes([family, other]) == libc::ARPHRD_ETHER;
        Ok(is_ethernet.then_some(mac))
    }

    /// Sets how many frames may wait in the interface's queue.
    ///
    /// # Errors
    /// As for [`Interfaces::index`], and without CAP_NET_ADMIN.
    pub fn set_queue_frames(&self, name: &str, frames: u32) -> io::Result<()> {
        let mut request = InterfaceRequest::new(name)?;
        request.set_value(frames.to_ne_bytes());
        request.ask(&self.0, Request::SetQueueLength)
    }

    /// The queues that are in use; 1 of each kind if the driver does not report them.
    pub(crate) fn queues(&self, name: &str) -> Queues {
        /// `struct ethtool_channels`.
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            /// Receive, transmit, other and combined queues: the maximum counts, then the current
            /// counts.
            most: [u32; 4],
            now: [u32; 4],
        }
        let mut channels = Channels {
            command: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        let answered = InterfaceRequest::new(name)
            // SAFETY: the command writes one `ethtool_channels`.
            .and_then(|request| unsafe { request.ethtool(&self.0, &mut channels) });
        let [receive, transmit, _, combined] = match answered {
            Ok(()) => channels.now,
            Err(_) => [0; 4],
        };
        Queues {
            receive: (receive + combined).max(1),
            transmit: (transmit + combined).max(1),
        }
    }

    /// The first bytes of the driver's name, up to a zero.
    pub(crate) fn driver(&self, name: &str) -> io::Result<Vec<u8>> {
        /// `struct ethtool_drvinfo`. Five more names and four numbers follow the driver's name;
        /// they are not used here.
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
        unsafe { InterfaceRequest::new(name)?.ethtool(&self.0, &mut driver) }?;
        let name = driver.name.split(|byte| *byte == 0).next();
        Ok(name.unwrap_or_default().to_vec())
    }

    fn ask(&self, name: &str, what: Request) -> io::Result<InterfaceRequest> {
        let mut request = InterfaceRequest::new(name)?;
        request.ask(&self.0, what)?;
        Ok(request)
    }
}

/// `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
