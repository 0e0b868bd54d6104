//! Steering: selects the engine's frames of an interface, and sends them to its sockets.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::error::{MTU_IN_PIECES_MAX, MTU_MAX, XdpError};
use super::interface::{Interface, take};
use super::program::{ADDRESS_BYTES, Maps, steering};
use crate::bpf::{Attachment, Instruction, Map, MapKind, Program, ProgramKind};
use crate::interface::Queues;
use crate::ports::PortTable;
use crate::ports::program::{Way, steering as steering_by_ports};
use crate::sys::set_option;

/// Where in the kernel the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpMode {
    /// In the interface's driver.
    Native,
    /// After the driver, on frames that the kernel has already taken in. The driver does not
    /// support XDP programs.
    Generic,
}

impl XdpMode {
    /// The mode's name in the output of `ip link`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// The BPF program on an interface, with its maps. Dropping this value detaches the program. When
/// the process ends, for whatever reason, the interface is as it was before.
///
/// Frames for the addresses of [`XdpSteering::set_addresses`] go to the sockets, or are dropped;
/// all other frames go to the kernel. If the addresses are shared with the kernel
/// ([`XdpSteering::attach_sharing`]), only segments of the engine's ports go to the sockets.
#[derive(Debug)]
pub struct XdpSteering {
    interface: Interface,
    mode: XdpMode,
    /// Frames may lie in several pieces.
    in_pieces: bool,
    targets: Targets,
    sockets: Map,
    drops: Map,
    /// The addresses in the map.
    current: Mutex<BTreeSet<IpAddr>>,
    /// A packet socket that receives nothing. It is a member of multicast groups as long as it is
    /// open.
    groups: OwnedFd,
    _attached: Attachment,
}

/// The table that steers frames.
#[derive(Debug)]
enum Targets {
    Addresses(Map),
    Ports(PortTable),
}

impl XdpSteering {
    /// Attaches the program to the interface `name` of this thread's network namespace, in the
    /// driver if the driver supports it. `queues` is the number of sockets: one for each receive
    /// queue of the interface.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn attach(name: &str, queues: u32) -> Result<Self, XdpError> {
        let map = Map::new(MapKind::Hash, ADDRESS_BYTES, 4, ADDRESSES_MAX);
        let setup = |error| XdpError::of("make a map for the steering program", name, error);
        Self::attach_with(name, queues, Targets::Addresses(map.map_err(setup)?))
    }

    /// As [`XdpSteering::attach`], for addresses that are shared with the kernel.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn attach_sharing(name: &str, queues: u32) -> Result<Self, XdpError> {
        let setup = |error| XdpError::of("make a map of ports", name, error);
        let ports = PortTable::new().map_err(setup)?;
        Self::attach_with(name, queues, Targets::Ports(ports))
    }

    fn attach_with(name: &str, queues: u32, targets: Targets) -> Result<Self, XdpError> {
        let interface = Interface::find(name)?;
        if interface.mtu > MTU_IN_PIECES_MAX {
            return Err(XdpError::Mtu(name.to_owned(), interface.mtu));
        }
        let Queues { receive, transmit } = interface.queues;
        if receive != queues {
            return Err(XdpError::Queues(name.to_owned(), receive, queues));
        }
        if transmit < receive {
            return Err(XdpError::TransmitQueues(name.to_owned(), transmit, receive));
        }
        let setup = |action| move |error| XdpError::of(action, name, error);
        let map = |kind, key_bytes, value_bytes, entries_max| {
            let map = Map::new(kind, key_bytes, value_bytes, entries_max);
            map.map_err(setup("make a map for the steering program"))
        };
        let sockets = map(MapKind::Xsk, 4, 4, queues)?;
        let drops = map(MapKind::PerCpuArray, 4, 8, 1)?;
        let (sockets_fd, drops_fd) = (sockets.as_raw_fd(), drops.as_raw_fd());
        let program = match &targets {
            Targets::Addresses(addresses) => steering(Maps {
                addresses: addresses.as_raw_fd(),
                sockets: sockets_fd,
                drops: drops_fd,
            }),
            Targets::Ports(ports) => {
                let way = Way::Xdp {
                    sockets: sockets_fd,
                    drops: drops_fd,
                };
                steering_by_ports(ports.maps(), way)
            }
        };
        let groups = group_socket().map_err(setup("open a packet socket for groups"))?;
        let attach = |in_pieces| {
            let program = load(&program, &interface, in_pieces)?;
            attach(&program, &interface)
        };
        let mut in_pieces = interface.mtu > MTU_MAX;
        let attached = match attach(in_pieces) {
            // The other end of a veth may have a larger MTU.
            Err(XdpError::DriverMtu(_)) if !in_pieces => {
                in_pieces = true;
                attach(in_pieces)
            }
            attached => attached,
        };
        let (attached, mode) = attached?;
        Ok(Self {
            interface,
            mode,
            in_pieces,
            targets,
            sockets,
            drops,
            current: Mutex::default(),
            groups,
            _attached: attached,
        })
    }

    /// The table of the engine's ports, if the addresses are shared with the kernel.
    #[must_use]
    pub const fn ports(&self) -> Option<&PortTable> {
        match &self.targets {
            Targets::Addresses(_) => None,
            Targets::Ports(ports) => Some(ports),
        }
    }

    /// Sets the addresses whose frames are steered. No effect if ports decide.
    ///
    /// # Errors
    /// The kernel's error. Some of the addresses may then be set.
    pub fn set_addresses(&self, wanted: &[IpAddr]) -> io::Result<()> {
        let Targets::Addresses(addresses) = &self.targets else {
            return Ok(());
        };
        let wanted: BTreeSet<IpAddr> = wanted.iter().copied().collect();
        let mut current = self.current.lock().expect("nobody panics with it");
        for &address in &wanted {
            if current.insert(address) {
                addresses.insert(&key_of(address), &[0; 4])?;
                self.note_group(libc::PACKET_ADD_MEMBERSHIP, address)?;
            }
        }
        for address in &*current - &wanted {
            current.remove(&address);
            addresses.remove(&key_of(address))?;
            self.note_group(libc::PACKET_DROP_MEMBERSHIP, address)?;
        }
        Ok(())
    }

    /// Frames for the engine that were dropped because their receive queue has no socket.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.sum(&[0; 4]).unwrap_or(0)
    }

    /// Where the program runs.
    #[must_use]
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    /// The interface's Ethernet address, which the engine uses, too.
    #[must_use]
    pub const fn mac(&self) -> [u8; 6] {
        self.interface.mac
    }

    /// The interface's number.
    #[must_use]
    pub const fn interface_index(&self) -> u32 {
        self.interface.index
    }

    /// Whether the program's interface still exists under its name in this thread's network
    /// namespace.
    #[must_use]
    pub fn is_current(&self) -> bool {
        Interface::find(&self.interface.name).is_ok_and(|now| now.index == self.interface.index)
    }

    /// Whether frames may lie in several pieces.
    pub(super) const fn in_pieces(&self) -> bool {
        self.in_pieces
    }

    pub(super) const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Steers frames of a receive queue to this socket.
    pub(super) fn enter(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = socket.as_raw_fd().cast_unsigned();
        self.sockets
            .insert(&queue.to_ne_bytes(), &socket.to_ne_bytes())
    }

    /// Joins or leaves the multicast group for solicitations of an IPv6 address on the interface
    /// (RFC 4291, section 2.7.1; RFC 2464, section 7).
    fn note_group(&self, option: libc::c_int, address: IpAddr) -> io::Result<()> {
        let IpAddr::V6(address) = address else {
            return Ok(());
        };
        let [.., a, b, c] = address.octets();
        let membership = libc::packet_mreq {
            mr_ifindex: self.interface.index.cast_signed(),
            mr_type: libc::PACKET_MR_MULTICAST as libc::c_ushort,
            mr_alen: 6,
            mr_address: [0x33, 0x33, 0xff, a, b, c, 0, 0],
        };
        set_option(&self.groups, libc::SOL_PACKET, option, &membership)
    }
}

fn load(
    program: &[Instruction],
    interface: &Interface,
    in_pieces: bool,
) -> Result<Program, XdpError> {
    let kind = if in_pieces {
        ProgramKind::XdpInPieces
    } else {
        ProgramKind::Xdp
    };
    let name = &interface.name;
    let loaded = Program::load(kind, "toehold_steer", program);
    loaded.map_err(|(error, said)| match said.is_empty() {
        // This kernel does not support frames in pieces.
        true if in_pieces && error.kind() == io::ErrorKind::InvalidInput => {
            XdpError::Mtu(name.clone(), interface.mtu)
        }
        true => XdpError::of("load the steering program", name, error),
        false => XdpError::Verifier(error, said),
    })
}

/// Attaches in the driver, or, if that fails, after the driver.
fn attach(program: &Program, interface: &Interface) -> Result<(Attachment, XdpMode), XdpError> {
    let name = || interface.name.clone();
    let native = take(|| program.attach(interface.index, XDP_FLAGS_DRV_MODE));
    let error = match native {
        Ok(attached) => return Ok((attached, XdpMode::Native)),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::ERANGE) => return Err(XdpError::DriverMtu(name())),
        Some(libc::ENOSPC) if interface.is_veth => return Err(XdpError::PeerQueues(name())),
        Some(libc::EPERM | libc::EBUSY) => {
            return Err(XdpError::of(
                "attach the steering program",
                &interface.name,
                error,
            ));
        }
        // The driver does not support a program, or not with its present settings.
        _ => {}
    }
    let attached = take(|| program.attach(interface.index, XDP_FLAGS_SKB_MODE));
    let attached = attached
        .map_err(|error| XdpError::of("attach the steering program", &interface.name, error))?;
    Ok((attached, XdpMode::Generic))
}

/// Protocol 0: the socket receives no frames.
fn group_socket() -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::PACKET, SocketFlags::CLOEXEC);
    Ok(socket_with(family, SocketType::RAW, flags, None)?)
}

fn key_of(address: IpAddr) -> [u8; ADDRESS_BYTES] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Far more than an engine has.
const ADDRESSES_MAX: u32 = 1024;
/// `linux/if_link.h`.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
