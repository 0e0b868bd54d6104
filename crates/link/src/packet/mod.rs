//! A packet socket on an Ethernet interface (packet(7)): frames to and from whoever is at its other
//! end, each with a [`VnetHeader`], so that the interface, or the kernel on its behalf, cuts large
//! segments and completes checksums.
//!
//! ```text
//!   small frames    interface ──► a slot of the ring, mapped here                   no system call
//!   large frames    interface ──► their headers in a slot, themselves behind a read     one
//!   sent            ──► one write each ──► interface, whatever its size
//! ```
//!
//! The engine has an Ethernet address of its own on the interface: the kernel takes what goes there
//! for somebody else's, and answers nothing. A filter in the socket lets through what is for that
//! address, and what asks everybody (ARP, neighbour discovery), unless it is of a virtual LAN: that
//! is another interface.
//!
//! Where the engine and the kernel have the same addresses (`crate::ports`), the engine has the
//! interface's Ethernet address.

mod ring;
mod spread;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use toehold_tcp::Spread;

use crate::interface::Interfaces;
use crate::sys::{bind_packet_socket, packet_statistics, read_frame, set_option, write_frame};
use crate::tap::{frame_length, unless_blocked};
use crate::vnet::VnetHeader;
use ring::Ring;

pub use ring::Arrival;

/// How a packet socket is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// The Ethernet address whose frames are taken. `None`: the kernel has the same addresses, and
    /// a [`PortSteering`](crate::PortSteering) on the interface says which segments are taken. They
    /// are IPv4.
    pub mac: Option<[u8; 6]>,
    /// The interface's frames are spread over all sockets of the same group, connection by
    /// connection (PACKET_FANOUT).
    pub group: Option<Group>,
}

/// Sockets that share an interface's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its number: one for each process.
    pub number: u16,
    /// Which socket is given which connections: the first that joins is engine 0.
    pub spread: Spread,
}

/// Why a packet socket cannot be had.
#[derive(Debug)]
pub enum PacketError {
    /// CAP_NET_RAW is missing.
    Privilege,
    /// There is no interface of this name.
    Interface(String, io::Error),
    /// The interface carries no Ethernet.
    Medium(String),
    /// The kernel refuses what the text names.
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

/// A packet socket with its receive ring, non-blocking.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    ring: Ring,
    interface: u32,
    mac: [u8; 6],
}

impl PacketSocket {
    /// Opens a socket on the interface `name` of this thread's network namespace.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn open(name: &str, options: PacketOptions) -> Result<PacketSocket, PacketError> {
        // Protocol 0: nothing comes before all is set.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let socket = socket.map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => PacketError::Privilege,
            _ => PacketError::Setup("to be opened", error.into()),
        })?;
        let interface = Interface::find(name)?;
        let refused = |what| move |error| PacketError::Setup(what, error);
        let set =
            |option, value: libc::c_int| set_option(&socket, libc::SOL_PACKET, option, &value);
        set(
            libc::PACKET_VERSION,
            libc::tpacket_versions::TPACKET_V2 as _,
        )
        .map_err(refused("version 2 of its ring"))?;
        set(libc::PACKET_VNET_HDR, 1).map_err(refused("segmentation and checksum offload"))?;
        set(libc::PACKET_IGNORE_OUTGOING, 1).map_err(refused("to leave out what is sent"))?;
        // A frame that does not fit into a slot is kept, and read whole.
        set(libc::PACKET_COPY_THRESH, 1).map_err(refused("to keep large frames"))?;
        let filter = match options.mac {
            Some(mac) => filter(mac).to_vec(),
            None => shared_filter(interface.mac).to_vec(),
        };
        set_filter(&socket, filter).map_err(refused("a filter"))?;
        enlarge_buffers(&socket);
        let ring = Ring::new(&socket, interface.mtu).map_err(refused("a receive ring"))?;
        for membership in options
            .mac
            .into_iter()
            .flat_map(|mac| interface.memberships(mac))
        {
            set_option(
                &socket,
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                &membership,
            )
            .map_err(refused("an Ethernet address of its own"))?;
        }
        // Sockets of one protocol have their turn after the program on the interface, and see what
        // it has made of a frame; those of all protocols come before.
        let protocol = match options.mac {
            Some(_) => libc::ETH_P_ALL,
            None => libc::ETH_P_IP,
        };
        bind_packet_socket(&socket, interface.index, protocol).map_err(refused("the interface"))?;
        if let Some(group) = options.group {
            // Groups are of a namespace and not of an interface; one that has gone leaves its group
            // for as long as a socket is left in it.
            let step = (interface.index as u16).wrapping_mul(GROUP_STEP);
            let number = group.number.wrapping_add(step);
            let way = libc::c_uint::from(number) | libc::PACKET_FANOUT_CBPF << 16;
            set(libc::PACKET_FANOUT, way.cast_signed()).map_err(refused("to share its frames"))?;
            let program = spread::program(&group.spread);
            set_program(&socket, libc::SOL_PACKET, PACKET_FANOUT_DATA, program)
                .map_err(refused("to give each its connections"))?;
        }
        Ok(PacketSocket {
            socket,
            ring,
            interface: interface.index.cast_unsigned(),
            mac: options.mac.unwrap_or(interface.mac),
        })
    }

    /// The oldest frame, which stays until [`PacketSocket::release`]. `None` when there is none. No
    /// system call.
    #[inline]
    pub fn peek(&self) -> Option<Arrival<'_>> {
        self.ring.peek()
    }

    /// How many frames have come that are whole in their slots, one after the other: the oldest and
    /// those behind it, up to `most` and [`FRAMES_TOGETHER_MAX`]. No system call.
    #[inline]
    #[must_use]
    pub fn waiting_whole(&self, most: usize) -> usize {
        let is_whole = |ahead: &usize| {
            let arrival = self.ring.peek_at(*ahead);
            arrival.is_some_and(|arrival| arrival.length <= arrival.bytes.len())
        };
        let all = 0..most.min(FRAMES_TOGETHER_MAX);
        all.take_while(is_whole).count()
    }

    /// The oldest frames, so many as [`PacketSocket::waiting_whole`] has said. Each stays until it
    /// is released.
    #[inline]
    pub fn oldest(&self, count: usize) -> impl Iterator<Item = Arrival<'_>> + Clone {
        let all = 0..count.min(FRAMES_TOGETHER_MAX);
        all.filter_map(|ahead| self.ring.peek_at(ahead))
    }

    /// Gives the oldest frame's slot back.
    ///
    /// # Panics
    /// When no frame is there.
    #[inline]
    pub fn release(&mut self) {
        self.ring.release();
    }

    /// Takes the oldest frame, which [`PacketSocket::peek`] says is not all in its slot, into
    /// several pieces one after the other (at most [`PARTS_MAX`]), which somebody else may be
    /// reading; its slot is given back. The frame's length, or `None` when the kernel has lost it.
    ///
    /// # Panics
    /// When there are more parts, or no frame.
    ///
    /// # Safety
    /// Each part names writable memory of its length that no reference covers.
    pub unsafe fn receive_raw(&mut self, parts: &[(*mut u8, usize)]) -> Option<usize> {
        self.ring.release();
        // A read reports an interface's error once, instead of its frame. A caller that stopped at
        // that would be one frame behind from here on.
        for _ in 0..READS_MAX {
            // SAFETY: the caller's promise.
            let read = unsafe { read_frame(&self.socket, parts) };
            match unless_blocked(read.and_then(|(count, _)| frame_length(count))) {
                Ok(length) => return length,
                // The frame is gone with it.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// Gives the interface a frame that is the concatenation of `parts` (at most [`PARTS_MAX`]),
    /// which somebody else may be writing to: the kernel reads whatever stands there. False when it
    /// takes none at the moment.
    ///
    /// # Errors
    /// Whatever `writev` says.
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
        let written = unless_blocked(unsafe { write_frame(&self.socket, header, parts) })?;
        Ok(written.is_some())
    }

    /// As [`PacketSocket::send_raw`], of a frame that stands in `buffer` behind
    /// [`VnetHeader::BYTES`] of room for `header`.
    ///
    /// # Errors
    /// As for [`PacketSocket::send_raw`].
    ///
    /// # Panics
    /// When there is no such room.
    pub fn send_behind_header(&self, header: VnetHeader, buffer: &mut [u8]) -> io::Result<bool> {
        buffer[..VnetHeader::BYTES].copy_from_slice(&header.to_bytes());
        Ok(unless_blocked(rustix::io::write(&self.socket, buffer))?.is_some())
    }

    /// Takes note of what has happened to the interface: one that went down leaves an error, which
    /// would have the socket look readable until somebody asks.
    pub fn clear_error(&self) {
        let _ = sockopt::socket_error(&self.socket);
    }

    /// The Ethernet address whose frames are taken.
    #[must_use]
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Which interface it is on (`ifindex`), for as long as there is one of that number.
    #[must_use]
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// Frames lost since the last time, because the ring was full.
    #[must_use]
    pub fn take_lost(&self) -> u64 {
        packet_statistics(&self.socket).map_or(0, |statistics| u64::from(statistics.tp_drops))
    }
}

impl AsFd for PacketSocket {
    /// For `poll`: readable when a frame waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An interface as a packet socket knows it.
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

    /// The addresses that the interface must let in: our own, and those of groups.
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

fn set_filter(socket: &OwnedFd, program: Vec<libc::sock_filter>) -> io::Result<()> {
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
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

/// Most frames looked at before the first is released.
pub const FRAMES_TOGETHER_MAX: usize = 64;
/// `linux/if_packet.h`; libc has no name for it.
const PACKET_FANOUT_DATA: libc::c_int = 22;
const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const EQUALS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

const fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Jumps are counted from the next instruction.
const fn to(target: u8, here: u8) -> u8 {
    target - here - 1
}

/// The upper four bytes of an address, and the lower two.
const fn halves([a, b, c, d, e, f]: [u8; 6]) -> (u32, u32) {
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([0, 0, e, f]),
    )
}

/// Lets through what is for `mac`, and what ARP and IPv6 say to everybody, without a virtual LAN's
/// tag (`linux/filter.h`).
fn filter(mac: [u8; 6]) -> [libc::sock_filter; 16] {
    let (mac_high, mac_low) = halves(mac);
    const ADDRESS: u8 = 4;
    const GROUP: u8 = 9;
    const ACCEPT: u8 = 14;
    const REJECT: u8 = 15;
    [
        // A frame of a virtual LAN is another interface's, though its tag is not among its bytes
        // any more. Number 0 is none (IEEE 802.1Q).
        step(WORD, TAG_IS_THERE, 0, 0),
        step(EQUALS, 0, to(ADDRESS, 1), 0),
        step(WORD, TAG, 0, 0),
        step(HAS, VIRTUAL_LAN, to(REJECT, 3), 0),
        step(WORD, 0, 0, 0),
        step(EQUALS, mac_high, 0, to(GROUP, 5)),
        step(HALF, 4, 0, 0),
        step(EQUALS, mac_low, to(ACCEPT, 7), to(REJECT, 7)),
        step(RETURN, 0, 0, 0),
        step(BYTE, 0, 0, 0),
        step(HAS, 1, 0, to(REJECT, 10)),
        step(HALF, 12, 0, 0),
        step(EQUALS, libc::ETH_P_ARP as u32, to(ACCEPT, 12), 0),
        step(
            EQUALS,
            libc::ETH_P_IPV6 as u32,
            to(ACCEPT, 13),
            to(REJECT, 13),
        ),
        step(RETURN, u32::MAX, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

/// For addresses that the kernel has as well, where `mac` is the interface's own: lets through what
/// the program on the interface has taken for the engine (it is somebody else's by then, with our
/// address), and what the kernel gets as well: fragments of segments that have no ports, and ICMP
/// errors, of which the engine knows which are about connections of its own.
fn shared_filter(mac: [u8; 6]) -> [libc::sock_filter; 21] {
    let (mac_high, mac_low) = halves(mac);
    const UNTAGGED: u8 = 4;
    const ICMP: u8 = 14;
    const ACCEPT: u8 = 19;
    const REJECT: u8 = 20;
    [
        step(WORD, TAG_IS_THERE, 0, 0),
        step(EQUALS, 0, to(UNTAGGED, 1), 0),
        step(WORD, TAG, 0, 0),
        step(HAS, VIRTUAL_LAN, to(REJECT, 3), 0),
        step(WORD, 0, 0, 0),
        step(EQUALS, mac_high, 0, to(REJECT, 5)),
        step(HALF, 4, 0, 0),
        step(EQUALS, mac_low, 0, to(REJECT, 7)),
        step(WORD, PACKET_TYPE, 0, 0),
        step(EQUALS, PACKET_OTHERHOST, to(ACCEPT, 9), 0),
        step(BYTE, 23, 0, 0),
        step(EQUALS, libc::IPPROTO_TCP as u32, 0, to(ICMP, 11)),
        step(HALF, 20, 0, 0),
        step(HAS, 0x1fff, to(ACCEPT, 13), to(REJECT, 13)),
        step(EQUALS, libc::IPPROTO_ICMP as u32, 0, to(REJECT, 14)),
        step(BYTE, 34, 0, 0),
        // RFC 792: unreachable, time exceeded, parameter problem.
        step(EQUALS, 3, to(ACCEPT, 16), 0),
        step(EQUALS, 11, to(ACCEPT, 17), 0),
        step(EQUALS, 12, to(ACCEPT, 18), to(REJECT, 18)),
        step(RETURN, u32::MAX, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

/// Room for bursts; without CAP_NET_ADMIN as much as the host allows.
fn enlarge_buffers(socket: &OwnedFd) {
    use sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
    use sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
    // Less room is slower, and nothing worse.
    let _ = set_socket_recv_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| set_socket_recv_buffer_size(socket, BUFFER_BYTES));
    let _ = set_socket_send_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| set_socket_send_buffer_size(socket, BUFFER_BYTES));
}

/// Ancillary data of the kernel beside the frame's bytes (`SKF_AD_OFF`): whether the frame had a
/// tag, and the tag's number.
const TAG_IS_THERE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT).cast_unsigned();
const TAG: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG).cast_unsigned();
/// To whom it goes (`linux/if_packet.h`).
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
const PACKET_OTHERHOST: u32 = libc::PACKET_OTHERHOST as u32;
const VIRTUAL_LAN: u32 = 0x0fff;
/// Odd, so that no two interfaces have the same group.
const GROUP_STEP: u16 = 0x9e37;
const BUFFER_BYTES: usize = 16 << 20;
/// An interface does not go down more often than that between two reads.
const READS_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter's verdict, by the rules of bpf(4).
    fn verdict(program: &[libc::sock_filter], frame: &[u8], tag: Option<u32>, kind: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program[at];
            let (code, k) = (u32::from(step.code), step.k as usize);
            at += 1;
            match code & 0x07 {
                libc::BPF_LD if step.k == TAG_IS_THERE => accumulator = u32::from(tag.is_some()),
                libc::BPF_LD if step.k == TAG => accumulator = tag.unwrap_or(5),
                libc::BPF_LD if step.k == PACKET_TYPE => accumulator = kind,
                libc::BPF_LD => {
                    let bytes = match code & 0x18 {
                        libc::BPF_W => &frame[k..k + 4],
                        libc::BPF_H => &frame[k..k + 2],
                        _ => &frame[k..=k],
                    };
                    accumulator = bytes
                        .iter()
                        .fold(0, |sum, &byte| sum << 8 | u32::from(byte));
                }
                libc::BPF_JMP => {
                    let holds = match code & 0xf0 {
                        libc::BPF_JEQ => accumulator == step.k,
                        _ => accumulator & step.k != 0,
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
                _ => return step.k,
            }
        }
    }

    #[test]
    fn filter_lets_through_what_is_for_us_and_what_asks_everybody() {
        let program = filter([2, 0x54, 0x0a, 0x54, 0, 2]);
        let frame = |mac: [u8; 6], kind: u16| {
            let mut frame = [0u8; 64];
            frame[..6].copy_from_slice(&mac);
            frame[12..14].copy_from_slice(&kind.to_be_bytes());
            frame
        };
        let is_taken = |mac, kind| verdict(&program, &frame(mac, kind), None, 0) != 0;
        let ours = [2, 0x54, 0x0a, 0x54, 0, 2];
        assert!(is_taken(ours, 0x0800) && is_taken(ours, 0x86dd) && is_taken(ours, 0x0806));
        assert!(is_taken([0xff; 6], 0x0806) && is_taken([0x33, 0x33, 0, 0, 0, 1], 0x86dd));
        assert!(!is_taken([0xff; 6], 0x0800), "a broadcast is no segment");
        assert!(!is_taken([2, 0x54, 0x0a, 0x54, 0, 3], 0x0800));
        assert!(!is_taken([4, 0x54, 0x0a, 0x54, 0, 2], 0x0806));
        let is_taken_of = |tag| verdict(&program, &frame(ours, 0x0800), Some(tag), 0) != 0;
        assert!(!is_taken_of(5) && !is_taken_of(0xe005) && is_taken_of(0xe000));
    }

    #[test]
    fn shared_filter_lets_through_what_was_taken_and_what_has_no_ports() {
        let ours = [2, 0x54, 0x0a, 0x54, 0, 2];
        let program = shared_filter(ours);
        let is_taken = |mac: [u8; 6], kind, bytes: &[(usize, u8)]| {
            let mut frame = [0u8; 64];
            frame[..6].copy_from_slice(&mac);
            for &(at, byte) in bytes {
                frame[at] = byte;
            }
            verdict(&program, &frame, None, kind) != 0
        };
        assert!(is_taken(ours, PACKET_OTHERHOST, &[(23, 6)]));
        assert!(!is_taken(ours, 0, &[(23, 6)]), "the kernel's");
        let others = [2, 0x54, 0x0a, 0x54, 0, 3];
        assert!(!is_taken(others, PACKET_OTHERHOST, &[(23, 6)]));
        assert!(is_taken(ours, 0, &[(23, 6), (21, 1)]));
        assert!(!is_taken(ours, 0, &[(23, 6), (20, 0x40)]), "never cut");
        for (kind, is_error) in [(3, true), (8, false), (0, false), (11, true), (12, true)] {
            assert_eq!(is_taken(ours, 0, &[(23, 1), (34, kind)]), is_error);
        }
        assert!(!is_taken(ours, 0, &[(23, 17), (34, 3)]));
    }
}
