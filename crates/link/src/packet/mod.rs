//! A packet socket on an Ethernet interface (packet(7)). Each frame has a [`VnetHeader`], so that
//! the interface, or the kernel on its behalf, cuts large segments and completes checksums.
//!
//! ```text
//!   small frames    interface ──► a slot of the ring, mapped here                   no system call
//!   large frames    interface ──► their headers in a slot, themselves behind a read     one
//!   sent            ──► one write each ──► interface, whatever its size
//! ```
//!
//! The engine has its own Ethernet address on the interface. The kernel takes frames to that
//! address for frames of another host and does not answer them. A filter in the socket accepts
//! frames for that address, and requests to all hosts (ARP, neighbour discovery). It rejects frames
//! of a virtual LAN: these belong to another interface.
//!
//! If the engine shares its IP addresses with the kernel (`crate::ports`), it also has the
//! interface's Ethernet address. Then there are three sockets: one for each version of IP, each
//! with its own ring, and one that sends.

mod filter;
mod ring;
mod spread;

use std::fmt;
use std::io;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use toehold_tcp::Spread;

use crate::interface::Interfaces;
use crate::sys::{bind_packet_socket, packet_statistics, read_frame, set_option, write_frame};
use crate::tap::{frame_length, unless_blocked};
use crate::vnet::VnetHeader;
use filter::{filter, shared_filter_v4, shared_filter_v6};
use ring::Ring;

pub use ring::Arrival;

/// The options of a packet socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// The Ethernet address whose frames are taken. `None`: the IP addresses are shared with the
    /// kernel, and a [`PortSteering`](crate::PortSteering) on the interface selects the engine's
    /// segments. Each version of IP then has its own queue ([`PacketSocket::take_turns`]).
    pub mac: Option<[u8; 6]>,
    /// The interface's frames are spread over all sockets of the same group, connection by
    /// connection (PACKET_FANOUT).
    pub group: Option<Group>,
}

/// Sockets that share an interface's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// The group's number: one for each process.
    pub number: u16,
    /// Distributes the connections over the sockets. The first socket that joins belongs to engine
    /// 0.
    pub spread: Spread,
}

/// The reason why a packet socket cannot be opened.
#[derive(Debug)]
pub enum PacketError {
    /// CAP_NET_RAW is missing.
    Privilege,
    /// There is no interface of this name.
    Interface(String, io::Error),
    /// The interface carries no Ethernet.
    Medium(String),
    /// The kernel refuses the step that the text names.
    Setup(&'static str, io::Error),
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Privilege => f.write_str(
                "cannot open a packet socket; this needs CAP_NET_RAW in the interface's network \
                namespace \
                 (setcap cap_net_raw+ep, or root)",
            ),
            Self::Interface(name, error) => {
                write!(
                    f,
                    "there is no interface {name} ({error}); `ip link` lists them"
                )
            }
            Self::Medium(name) => write!(
                f,
                "the interface {name} carries no Ethernet; a packet link needs a network card, a \
                veth or the like"
            ),
            Self::Setup(action, error) => write!(f, "the packet socket refuses {action} ({error})"),
        }
    }
}

impl std::error::Error for PacketError {}

/// Packet sockets on an interface with their receive rings, non-blocking.
#[derive(Debug)]
pub struct PacketSocket {
    /// The queue that the methods about frames use.
    queue: Queue,
    /// The queue of the other version of IP, if the addresses are shared with the kernel.
    other: Option<Queue>,
    /// The socket that sends, if each queue's socket belongs to one version of IP. Such a socket
    /// would send frames of the other version with the wrong protocol.
    sender: Option<OwnedFd>,
    interface: u32,
    mac: [u8; 6],
    /// Frames since the last report whose beginning was in a slot, and whose rest was lost or had
    /// no place.
    cut: u64,
}

impl PacketSocket {
    /// Opens a socket on the interface `name` of this thread's network namespace.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn open(name: &str, options: PacketOptions) -> Result<PacketSocket, PacketError> {
        let interface = Interface::find(name)?;
        let queue = |protocol, filter, memberships: &[_]| {
            Queue::open(&interface, protocol, filter, memberships, options.group)
        };
        let (queue, other, sender) = match options.mac {
            Some(mac) => {
                let memberships = interface.memberships(mac);
                let filter = filter(mac);
                (queue(libc::ETH_P_ALL, filter, &memberships)?, None, None)
            }
            // A socket of one protocol gets frames after the program on the interface, and sees the
            // program's packet type. A socket of all protocols gets frames before the program.
            None => (
                queue(libc::ETH_P_IP, shared_filter_v4(interface.mac), &[])?,
                Some(queue(
                    libc::ETH_P_IPV6,
                    shared_filter_v6(interface.mac),
                    &[],
                )?),
                Some(open_sender(&interface)?),
            ),
        };
        Ok(PacketSocket {
            queue,
            other,
            sender,
            interface: interface.index.cast_unsigned(),
            mac: options.mac.unwrap_or(interface.mac),
            cut: 0,
        })
    }

    /// Switches to the other version of IP, if frames of that version wait. Until the next call,
    /// all other methods about frames use this version only. No system call.
    #[inline]
    pub fn take_turns(&mut self) {
        if let Some(other) = &mut self.other
            && other.ring.peek().is_some()
        {
            std::mem::swap(&mut self.queue, other);
        }
    }

    /// The oldest frame. It stays until [`PacketSocket::release`]. `None` when no frame waits. No
    /// system call.
    #[inline]
    pub fn peek(&self) -> Option<Arrival<'_>> {
        self.queue.ring.peek()
    }

    /// The number of consecutive frames, from the oldest on, that are complete in their slots; at
    /// most `most` and [`FRAMES_TOGETHER_MAX`]. No system call.
    #[inline]
    #[must_use]
    pub fn waiting_whole(&self, most: usize) -> usize {
        let is_whole = |ahead: &usize| {
            let arrival = self.queue.ring.peek_at(*ahead);
            arrival.is_some_and(|arrival| arrival.length <= arrival.bytes.len())
        };
        let all = 0..most.min(FRAMES_TOGETHER_MAX);
        all.take_while(is_whole).count()
    }

    /// The oldest frames, as many as [`PacketSocket::waiting_whole`] has returned. Each frame stays
    /// until it is released.
    #[inline]
    pub fn oldest(&self, count: usize) -> impl Iterator<Item = Arrival<'_>> + Clone {
        let all = 0..count.min(FRAMES_TOGETHER_MAX);
        all.filter_map(|ahead| self.queue.ring.peek_at(ahead))
    }

    /// Gives the oldest frame's slot back.
    ///
    /// # Panics
    /// When no frame waits.
    #[inline]
    pub fn release(&mut self) {
        self.queue.ring.release();
    }

    /// Gives the oldest frame's slot back. The frame was not complete there, and the kernel has not
    /// kept it ([`Arrival::is_kept`]): it counts as lost.
    ///
    /// # Panics
    /// When no frame waits.
    pub fn release_lost(&mut self) {
        self.cut += 1;
        self.release();
    }

    /// Takes the oldest frame, which is not complete in its slot (see [`PacketSocket::peek`]), into
    /// several pieces one after the other (at most [`PARTS_MAX`]), and gives its slot back. Another
    /// process may be reading this memory. Returns the frame's length, or `None` when the frame is
    /// lost: the kernel has lost it, or it is longer than all pieces together (a segment of BIG
    /// TCP).
    ///
    /// # Panics
    /// When there are more parts, or no frame waits.
    ///
    /// # Safety
    /// Each part names writable memory of its length that no reference covers.
    pub unsafe fn receive_raw(&mut self, parts: &[(*mut u8, usize)]) -> Option<usize> {
        let announced = self.queue.ring.peek().map(|arrival| arrival.length);
        self.queue.ring.release();
        // SAFETY: the caller's promise.
        let length = unsafe { self.queue.read(parts) };
        let length = length.filter(|_| length == announced);
        self.cut += u64::from(length.is_none());
        length
    }

    /// Gives the interface a frame: the concatenation of `parts` (at most [`PARTS_MAX`]). Another
    /// process may be writing to this memory at the same time. False when the interface takes no
    /// frame at the moment.
    ///
    /// # Errors
    /// The error of writev(2).
    ///
    /// # Panics
    /// When there are more parts.
    ///
    /// # Safety
    /// Each part names readable memory of its length.
    pub unsafe fn send_raw(
        &self,
        header: VnetHeader,
        parts: &[(*const u8, usize)],
    ) -> io::Result<bool> {
        // SAFETY: the caller's promise.
        let written = unless_blocked(unsafe { write_frame(self.sender(), header, parts) })?;
        Ok(written.is_some())
    }

    /// As [`PacketSocket::send_raw`]. The frame is in `buffer`, behind [`VnetHeader::BYTES`] of
    /// room for `header`.
    ///
    /// # Errors
    /// As for [`PacketSocket::send_raw`].
    ///
    /// # Panics
    /// When there is no such room.
    pub fn send_behind_header(&self, header: VnetHeader, buffer: &mut [u8]) -> io::Result<bool> {
        buffer[..VnetHeader::BYTES].copy_from_slice(&header.to_bytes());
        Ok(unless_blocked(rustix::io::write(self.sender(), buffer))?.is_some())
    }

    /// Reads and clears the sockets' errors. An interface that went down leaves an error, and until
    /// this error is read the queue is reported as readable.
    pub fn clear_error(&self) {
        for queue in self.queues() {
            let _ = sockopt::socket_error(queue);
        }
    }

    /// The Ethernet address whose frames are taken.
    #[must_use]
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The number of the interface (`ifindex`). The interface may have been deleted since.
    #[must_use]
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// Frames lost since the last call, because a ring was full, the kernel had no memory for a
    /// frame that is larger than a slot, or the frame was larger than the memory that it was read
    /// into.
    #[must_use]
    pub fn take_lost(&mut self) -> u64 {
        let lost = self.queues().map(|queue| {
            packet_statistics(queue).map_or(0, |statistics| u64::from(statistics.tp_drops))
        });
        lost.sum::<u64>() + std::mem::take(&mut self.cut)
    }

    /// The sockets for `poll`: each is readable when a frame waits in its ring.
    pub fn queues(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = iter::once(&self.queue).chain(&self.other);
        all.map(|queue| queue.socket.as_fd())
    }

    #[inline]
    fn sender(&self) -> &OwnedFd {
        self.sender.as_ref().unwrap_or(&self.queue.socket)
    }
}

/// A receiving socket with its ring.
#[derive(Debug)]
struct Queue {
    socket: OwnedFd,
    ring: Ring,
}

impl Queue {
    fn open(
        interface: &Interface,
        protocol: libc::c_int,
        filter: Vec<libc::sock_filter>,
        memberships: &[libc::packet_mreq],
        group: Option<Group>,
    ) -> Result<Queue, PacketError> {
        let socket = open_socket()?;
        let set =
            |option, value: libc::c_int| set_option(&socket, libc::SOL_PACKET, option, &value);
        set(
            libc::PACKET_VERSION,
            libc::tpacket_versions::TPACKET_V2 as _,
        )
        .map_err(refused("version 2 of its ring"))?;
        set(libc::PACKET_IGNORE_OUTGOING, 1).map_err(refused("to leave out what is sent"))?;
        // The kernel keeps a frame that does not fit into a slot; a read returns the complete
        // frame.
        set(libc::PACKET_COPY_THRESH, 1).map_err(refused("to keep large frames"))?;
        set_program(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)
            .map_err(refused("a filter"))?;
        let ring = Ring::new(&socket, interface.mtu).map_err(refused("a receive ring"))?;
        for membership in memberships {
            set_option(
                &socket,
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                membership,
            )
            .map_err(refused("an Ethernet address of its own"))?;
        }
        bind_packet_socket(&socket, interface.index, protocol).map_err(refused("the interface"))?;
        if let Some(group) = group {
            let number = group.number_of(interface, protocol);
            let way = libc::c_uint::from(number) | libc::PACKET_FANOUT_CBPF << 16;
            set(libc::PACKET_FANOUT, way.cast_signed()).map_err(refused("to share its frames"))?;
            let program = spread::program(&group.spread);
            set_program(&socket, libc::SOL_PACKET, PACKET_FANOUT_DATA, program)
                .map_err(refused("to give each its connections"))?;
        }
        Ok(Queue { socket, ring })
    }

    /// Reads the next frame that is not complete in its slot. `None` when it is lost.
    ///
    /// # Safety
    /// As for [`PacketSocket::receive_raw`].
    unsafe fn read(&self, parts: &[(*mut u8, usize)]) -> Option<usize> {
        // A read reports an interface's error once, and then takes no frame. Without another read,
        // all later reads would return the frame before the one that the slot announces.
        for _ in 0..READS_MAX {
            // SAFETY: the caller's promise.
            let read = unsafe { read_frame(&self.socket, parts) };
            match unless_blocked(read.and_then(|(count, _)| frame_length(count))) {
                Ok(length) => return length,
                // The kernel drops the frame with this error.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return None,
                Err(_) => {}
            }
        }
        None
    }
}

impl Group {
    /// The number of the kernel's group for an interface and a protocol. The kernel has one set of
    /// group numbers for the whole network namespace, and a group exists until its last socket is
    /// closed, even if the interface is gone.
    const fn number_of(self, interface: &Interface, protocol: libc::c_int) -> u16 {
        let step = (interface.index as u16).wrapping_mul(GROUP_STEP);
        let number = self.number.wrapping_add(step);
        match protocol {
            libc::ETH_P_IPV6 => number.wrapping_add(GROUP_STEP_V6),
            _ => number,
        }
    }
}

/// A socket that is bound to no protocol receives nothing, and sends frames of any protocol.
fn open_sender(interface: &Interface) -> Result<OwnedFd, PacketError> {
    let socket = open_socket()?;
    bind_packet_socket(&socket, interface.index, 0).map_err(refused("the interface"))?;
    Ok(socket)
}

/// A socket of protocol 0: no frame arrives before all options are set.
fn open_socket() -> Result<OwnedFd, PacketError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
    let socket = socket.map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => PacketError::Privilege,
        _ => PacketError::Setup("to be opened", error.into()),
    })?;
    let on: libc::c_int = 1;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)
        .map_err(refused("segmentation and checksum offload"))?;
    enlarge_buffers(&socket);
    Ok(socket)
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> PacketError {
    move |error| PacketError::Setup(what, error)
}

/// The properties of an interface that a packet socket needs.
struct Interface {
    index: libc::c_int,
    mtu: usize,
    mac: [u8; 6],
}

impl Interface {
    fn find(name: &str) -> Result<Interface, PacketError> {
        let missing = |error| PacketError::Interface(name.to_owned(), error);
        let interfaces = Interfaces::here();
        let interfaces = interfaces
            .map_err(|error| PacketError::Setup("to say what interfaces there are", error))?;
        let address = interfaces.ethernet_address(name).map_err(missing)?;
        let mac = address.ok_or_else(|| PacketError::Medium(name.to_owned()))?;
        Ok(Interface {
            mac,
            index: interfaces.index(name).map_err(missing)?.cast_signed(),
            mtu: interfaces.mtu(name).map_err(missing)? as usize,
        })
    }

    /// The Ethernet addresses that the interface must accept: our own, and all multicast addresses.
    fn memberships(&self, mac: [u8; 6]) -> [libc::packet_mreq; 2] {
        let mut address = [0; 8];
        address[..6].copy_from_slice(&mac);
        let one = |kind: libc::c_int, bytes| libc::packet_mreq {
            mr_ifindex: self.index,
            mr_type: kind as libc::c_ushort,
            mr_alen: bytes,
            mr_address: address,
        };
        [
            one(libc::PACKET_MR_UNICAST, 6),
            one(libc::PACKET_MR_ALLMULTI, 0),
        ]
    }
}

fn set_program(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    mut program: Vec<libc::sock_filter>,
) -> io::Result<()> {
    let whole = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_mut_ptr(),
    };
    set_option(socket, level, option, &whole)
}

/// Makes room for bursts; without CAP_NET_ADMIN, as much as the host allows.
fn enlarge_buffers(socket: &OwnedFd) {
    use sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
    use sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
    // Less room only makes the socket slower.
    let _ = set_socket_recv_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| set_socket_recv_buffer_size(socket, BUFFER_BYTES));
    let _ = set_socket_send_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| set_socket_send_buffer_size(socket, BUFFER_BYTES));
}

/// The most frames that are looked at before the first is released.
pub const FRAMES_TOGETHER_MAX: usize = 64;
/// `linux/if_packet.h`; libc has no name for it.
const PACKET_FANOUT_DATA: libc::c_int = 22;
/// The distance between two interfaces' groups. It is odd, so that no two interfaces have the same
/// group.
const GROUP_STEP: u16 = 0x9e37;
/// The distance between the groups of IPv4 and IPv6. No interface with a number below 0x8000 has
/// this step.
const GROUP_STEP_V6: u16 = 0x8000;
const BUFFER_BYTES: usize = 16 << 20;
/// The most reads for one frame. An interface does not go down more often between two reads.
const READS_MAX: u32 = 8;
