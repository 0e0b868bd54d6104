//! The packet sockets (packet(7)) of a network namespace that see packets of carriers.
//!
//! tcpdump and Wireshark read from such sockets. If both ends of an accelerated connection are in
//! one namespace, its carrier's packets pass the loopback device, whatever their addresses are. A
//! packet socket sees them if it is bound to that device or to none, and to their protocol or to
//! all. A carrier between two namespaces passes other devices, about which the adapter only knows
//! that they are virtual.

use super::{ANSWERS_MAX, Diag, HEADER_BYTES, Listed, question};
use crate::attributes::attribute;
use crate::entropy;
use crate::registry::Tuple;

/// The observers of carriers' packets in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observers {
    v4: bool,
    v6: bool,
    /// Whether IPv4 carriers to another namespace are seen.
    crossing_v4: bool,
    crossing_v6: bool,
    /// The sockets, by inode, the first [`NAMED_MAX`].
    pub(crate) inodes: Vec<u64>,
}

impl Observers {
    /// Whether one of the sockets sees the packets of a carrier.
    pub(crate) fn see(&self, tuple: &Tuple) -> bool {
        match tuple.spoken() {
            Some((_, remote)) if remote.is_ipv4() => self.v4,
            Some(_) => self.v6,
            // No packet carries the bytes of a Unix socket.
            None => false,
        }
    }

    /// Whether one of the sockets sees the packets of a carrier to or from another namespace.
    pub(crate) fn see_crossing(&self, tuple: &Tuple) -> bool {
        match tuple.spoken() {
            Some((_, remote)) if remote.is_ipv4() => self.crossing_v4,
            Some(_) => self.crossing_v6,
            None => false,
        }
    }

    /// Whether one of the sockets sees carriers inside this namespace.
    pub(crate) fn see_any(&self) -> bool {
        self.v4 || self.v6
    }

    /// Whether there are no observers.
    pub(crate) fn are_none(&self) -> bool {
        !(self.see_any() || self.crossing_v4 || self.crossing_v6)
    }

    /// Whether both see the same carriers.
    pub(crate) fn see_as(&self, other: &Observers) -> bool {
        let seen = |it: &Observers| [it.v4, it.v6, it.crossing_v4, it.crossing_v6];
        seen(self) == seen(other)
    }

    /// `is_virtual` says whether a carrier may pass an interface.
    fn add(&mut self, socket: Socket, is_virtual: &dyn Fn(u32) -> bool) {
        let is_of_all = socket.interface == 0;
        let is_on_loopback = matches!(socket.interface, 0 | LOOPBACK);
        let is_on_crossing =
            is_of_all || socket.interface != LOOPBACK && is_virtual(socket.interface);
        // A socket with protocol 0 only sends; a socket that libpcap has just made has protocol 0,
        // too.
        let (v4, v6) = match socket.protocol {
            ALL => (true, true),
            IPV4 => (true, false),
            IPV6 => (false, true),
            _ => (false, false),
        };
        if !(is_on_loopback || is_on_crossing) || !(v4 || v6) {
            return;
        }
        self.v4 |= v4 && is_on_loopback;
        self.v6 |= v6 && is_on_loopback;
        self.crossing_v4 |= v4 && is_on_crossing;
        self.crossing_v6 |= v6 && is_on_crossing;
        if self.inodes.len() < NAMED_MAX {
            self.inodes.push(socket.inode.into());
        }
    }
}

/// A packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    protocol: u16,
    /// 0: all of them.
    interface: u32,
    inode: u32,
}

impl Diag {
    /// The observers of carriers' packets in this socket's namespace. `None` when there is no
    /// answer: the kernel was built without `CONFIG_PACKET_DIAG`, or the client that owns the
    /// socket disturbs the exchange. `is_virtual` tells whether an interface of this namespace is
    /// not a hardware device.
    pub(crate) fn observers(&self, is_virtual: &dyn Fn(u32) -> bool) -> Option<Observers> {
        let number = entropy::bits().ok()?[0] as u32;
        let mut observers = Observers::default();
        let listed = self.list(&request(number), number, ANSWERS_MAX, |body| {
            if let Some(socket) = parse(body) {
                observers.add(socket, is_virtual);
            }
        });
        match listed {
            Listed::All => Some(observers),
            Listed::Nothing => None,
            // There are too many sockets to read: assume that some of them are captures.
            Listed::Part => Some(Observers {
                v4: true,
                v6: true,
                crossing_v4: true,
                crossing_v6: true,
                ..observers
            }),
        }
    }
}

/// `struct packet_diag_msg` (include/uapi/linux/packet_diag.h) and its attributes.
fn parse(body: &[u8]) -> Option<Socket> {
    let protocol = u16::from_ne_bytes(body.get(2..4)?.try_into().expect("two bytes"));
    let inode = u32::from_ne_bytes(body.get(4..8)?.try_into().expect("four bytes"));
    let info = attribute(body.get(MESSAGE_BYTES..)?, PACKET_DIAG_INFO)?;
    // `pdi_index` is the first word of `struct packet_diag_info`.
    let interface = info.get(..4)?.try_into().expect("four bytes");
    Some(Socket {
        protocol,
        interface: u32::from_ne_bytes(interface),
        inode,
    })
}

/// `struct nlmsghdr` and `struct packet_diag_req`.
fn request(number: u32) -> [u8; REQUEST_BYTES] {
    let fields: [&[u8]; 4] = [
        &[libc::AF_PACKET as u8, 0, 0, 0],
        // No inode.
        &[0; 4],
        // `pdiag_show`: which attributes the answers have.
        &PACKET_SHOW_INFO.to_ne_bytes(),
        // No cookie.
        &[0; 8],
    ];
    question(number, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &fields)
}

/// The loopback device has this index in every namespace (`LOOPBACK_IFINDEX`,
/// include/net/flow.h).
const LOOPBACK: u32 = 1;
const ALL: u16 = libc::ETH_P_ALL as u16;
const IPV4: u16 = libc::ETH_P_IP as u16;
const IPV6: u16 = libc::ETH_P_IPV6 as u16;
/// The most sockets that `toehold status` names.
const NAMED_MAX: usize = 8;
/// With `struct packet_diag_req`.
const REQUEST_BYTES: usize = HEADER_BYTES + 20;
/// `struct packet_diag_msg`.
const MESSAGE_BYTES: usize = 16;
const PACKET_DIAG_INFO: u16 = 0;
const PACKET_SHOW_INFO: u32 = 1;

#[cfg(test)]
mod tests {
    use super::super::{Answer, SOCK_DIAG_BY_FAMILY, read};
    use super::*;
    use crate::registry::Address;
    use std::net::IpAddr;
    use toehold_channel::rendezvous::mapped;

    fn tuple(ip: &str) -> Tuple {
        let ip = match ip.parse().expect("an address") {
            IpAddr::V4(v4) => mapped(v4.octets()),
            IpAddr::V6(v6) => v6.octets(),
        };
        let address = Address::Internet { ip, port: 7 };
        Tuple {
            netns: 1,
            local: address,
            remote: address,
        }
    }

    /// The hardware device in these tests.
    const ETHERNET: u32 = 2;

    fn observers(protocol: u16, interface: u32) -> Observers {
        let mut observers = Observers::default();
        let socket = Socket {
            protocol,
            interface,
            inode: 9,
        };
        observers.add(socket, &|interface| interface != ETHERNET);
        observers
    }

    fn seen(protocol: u16, interface: u32) -> [bool; 2] {
        let observers = observers(protocol, interface);
        ["127.0.0.1", "::1"].map(|ip| observers.see(&tuple(ip)))
    }

    #[test]
    fn what_crosses_is_seen_on_virtual_devices() {
        let seen = |protocol, interface| {
            let observers = observers(protocol, interface);
            ["10.0.0.1", "fd00::1"].map(|ip| observers.see_crossing(&tuple(ip)))
        };
        let bridge = 7;
        assert_eq!(seen(ALL, 0), [true, true]);
        assert_eq!(seen(IPV4, bridge), [true, false]);
        assert_eq!(seen(ALL, LOOPBACK), [false, false]);
        assert_eq!(seen(ALL, ETHERNET), [false, false], "a DHCP client");
        assert!(observers(ALL, ETHERNET).are_none());
    }

    #[test]
    fn a_capture_sees_the_loopback_device_by_its_name_or_by_any() {
        assert_eq!(seen(ALL, 0), [true, true]);
        assert_eq!(seen(ALL, LOOPBACK), [true, true]);
        assert_eq!(seen(IPV4, LOOPBACK), [true, false]);
        assert_eq!(seen(IPV6, 0), [false, true]);
    }

    #[test]
    fn other_packet_sockets_see_no_carrier() {
        let (link, lldp) = (2, 0x88cc);
        assert_eq!(
            seen(ALL, link),
            [false, false],
            "a packet link, a DHCP client"
        );
        assert_eq!(seen(lldp, 0), [false, false]);
        assert_eq!(seen(0, LOOPBACK), [false, false], "it only sends");
    }

    #[test]
    fn an_answer_is_read_only_when_it_has_the_number_of_the_question() {
        // As Linux 6.18 answers: a socket of all protocols on the loopback device.
        let mut message = [0u8; 68];
        message[..4].copy_from_slice(&68u32.to_ne_bytes());
        message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        message[8..12].copy_from_slice(&77u32.to_ne_bytes());
        message[16..24].copy_from_slice(&[17, 3, 3, 0, 0xb6, 0x51, 1, 0]);
        message[32..34].copy_from_slice(&28u16.to_ne_bytes());
        message[36] = 1;
        let mut observers = Observers::default();
        let more = |number, observers: &mut Observers| {
            let mut add = |body: &[u8]| {
                if let Some(socket) = parse(body) {
                    observers.add(socket, &|_| true);
                }
            };
            matches!(read(&message, number, &mut add), Answer::More)
        };
        assert!(more(76, &mut observers));
        assert_eq!(observers, Observers::default());
        assert!(more(77, &mut observers));
        assert_eq!(observers.inodes, [0x151b6]);
        assert!(observers.see(&tuple("127.0.0.1")));
        for cut in 0..message.len() {
            read(&message[..cut], 77, &mut |body| _ = parse(body));
        }
    }
}
