//! The network around an interface as the kernel knows it (rtnetlink(7)): addresses, routes, and
//! neighbours.
//!
//! ```text
//!   message:    | length | type | flags | sequence, port |  a fixed part  | attributes ... |
//!   attribute:  | length | type | value ...                                 padded to four bytes
//! ```

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

/// A neighbour of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostNeighbour {
    /// The neighbour's address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// The interface's number.
    pub interface: u32,
}

/// The route of packets to a destination, as the kernel would send them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRoute {
    /// The interface's number.
    pub interface: u32,
    /// The packets' source address, if the socket has no address.
    pub source: IpAddr,
    /// The destination is this host itself.
    pub is_local: bool,
    /// The neighbour that forwards the packets; its address may be of the other family. `None`: the
    /// destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// The kernel's tables in the network namespace in which this value was made.
#[derive(Debug)]
pub struct HostTables {
    socket: OwnedFd,
    /// The sequence number of the last question. The answers carry the same number.
    number: Cell<u32>,
}

impl HostTables {
    /// The tables of this thread's network namespace.
    ///
    /// # Errors
    /// When there are no descriptors or memory left.
    pub fn here() -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, NETLINK_ROUTE)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self::by(socket))
    }

    fn by(socket: OwnedFd) -> Self {
        Self {
            socket,
            number: Cell::new(0),
        }
    }

    /// An interface's addresses, each with its prefix length.
    ///
    /// # Errors
    /// The kernel's errors. The methods below return these, too.
    pub fn addresses(&self, interface: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        // `struct ifaddrmsg`: family, prefix length, flags, scope, interface.
        self.dump(libc::RTM_GETADDR, &[0; 8], |message| {
            let [family, bits, _, _, at @ ..] = message.fixed::<8>()?;
            if u32::from_ne_bytes(at) != interface {
                return None;
            }
            // On a point-to-point link IFA_ADDRESS is the other end's address, and IFA_LOCAL is
            // ours.
            let local = message.attribute(libc::IFA_LOCAL);
            let own = local.or_else(|| message.attribute(libc::IFA_ADDRESS));
            Some((ip_of(family, own?)?, bits))
        })
    }

    /// The route to a destination, by all of the kernel's rules for packets without a mark; `None`
    /// if there is no route. `source`, if given, is the packets' source address, an address of this
    /// host. `interface`, if given, is the number of the interface by which the packets must leave.
    ///
    /// # Errors
    /// As for [`HostTables::addresses`].
    pub fn route_to(
        &self,
        destination: IpAddr,
        source: Option<IpAddr>,
        interface: Option<u32>,
    ) -> io::Result<Option<HostRoute>> {
        let bits = |ip: &IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        let (family, attribute) = address_attribute(libc::RTA_DST, destination);
        // `struct rtmsg`: family, prefix lengths, kind of service, table, protocol, scope, type.
        let mut body = vec![family, bits(&destination), source.as_ref().map_or(0, bits)];
        body.extend([0; 9]);
        body.extend(attribute);
        if let Some(source) = source {
            body.extend(address_attribute(libc::RTA_SRC, source).1);
        }
        if let Some(interface) = interface {
            body.extend(8u16.to_ne_bytes());
            body.extend(libc::RTA_OIF.to_ne_bytes());
            body.extend(interface.to_ne_bytes());
        }
        let mut found = None;
        // The acknowledgement marks the end of the answer.
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        self.ask(libc::RTM_GETROUTE, flags, &body)?;
        let answered = self.answers(|message| {
            found = message.host_route(source);
        });
        match answered.map_err(|error| error.raw_os_error()) {
            Ok(_) => Ok(found),
            // No route, or a route that forbids the packets.
            Err(Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)) => {
                Ok(None)
            }
            Err(error) => Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EIO))),
        }
    }

    /// An interface's neighbours whose Ethernet addresses the kernel knows.
    ///
    /// # Errors
    /// As for [`HostTables::addresses`].
    pub fn neighbours(&self, interface: u32) -> io::Result<Vec<HostNeighbour>> {
        self.dump(libc::RTM_GETNEIGH, &[0; 12], |message| {
            let neighbour = message.neighbour();
            neighbour.filter(|neighbour| neighbour.interface == interface)
        })
    }

    /// Lets the kernel search for a neighbour, or verify a neighbour that it knows. Needs
    /// CAP_NET_ADMIN.
    ///
    /// # Errors
    /// As for [`HostTables::addresses`].
    pub fn find(&self, interface: u32, neighbour: IpAddr) -> io::Result<()> {
        let (family, attribute) = address_attribute(libc::NDA_DST, neighbour);
        // `struct ndmsg`: family, padding, interface, state, flags, type.
        let mut body = vec![family, 0, 0, 0];
        body.extend(interface.to_ne_bytes());
        body.extend([0, 0, NTF_USE, 0]);
        body.extend(attribute);
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_CREATE | libc::NLM_F_ACK;
        self.ask(libc::RTM_NEWNEIGH, flags, &body)?;
        self.answers(|_| ()).map(drop)
    }

    /// The results of `read` for all messages of the answer. A list that changed during the answer
    /// may lack entries, so the question is repeated, at most [`DUMPS_MAX`] times. After that the
    /// caller waits for the next reported change.
    fn dump<T>(
        &self,
        kind: u16,
        fixed: &[u8],
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMPS_MAX {
            let mut all = Vec::new();
            self.ask(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, fixed)?;
            if self.answers(|message| all.extend(read(message)))? == Answered::Whole {
                return Ok(all);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    fn ask(&self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        self.number.set(self.number.get().wrapping_add(1));
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend((HEADER_BYTES as u32 + body.len() as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags as u16).to_ne_bytes());
        message.extend(self.number.get().to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        send(&self.socket, &message, SendFlags::empty())?;
        Ok(())
    }

    /// Passes the answers to the last question to `each`. Nothing waits here: the kernel puts the
    /// beginning of the answer into the socket's queue before `send` returns, and it continues the
    /// answer while we receive (netlink_recvmsg).
    fn answers(&self, mut each: impl FnMut(&Message<'_>)) -> io::Result<Answered> {
        let mut buffer = vec![0u8; BUFFER_BYTES];
        let mut answered = Answered::Whole;
        loop {
            let (length, _) = recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            let all = messages(&buffer[..length]);
            // After an error the queue may still hold answers to an earlier question.
            for message in all.filter(|message| message.number == self.number.get()) {
                if message.flags & libc::NLM_F_DUMP_INTR as u16 != 0 {
                    answered = Answered::Interrupted;
                }
                match message.kind {
                    // The end of a list may carry an error.
                    DONE | ERROR => {
                        let error = i32::from_ne_bytes(message.fixed().unwrap_or_default());
                        return match error {
                            0.. => Ok(answered),
                            error => Err(io::Error::from_raw_os_error(-error)),
                        };
                    }
                    // `each` ignores a message of an unknown form.
                    _ => each(&message),
                }
            }
        }
    }
}

/// Whether the kernel's answer is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answered {
    Whole,
    /// The list changed while the kernel sent it.
    Interrupted,
}

/// The changes that a [`HostChanges`] has received.
#[derive(Debug, Default)]
pub struct Changed {
    /// Neighbours of any interface whose Ethernet addresses the kernel has found, or that now have
    /// other Ethernet addresses.
    pub neighbours: Vec<HostNeighbour>,
    /// Addresses of the interface have changed, or a notification was lost.
    pub addresses: bool,
    /// Destinations, as prefixes, whose routes may have changed.
    pub routes: Vec<(IpAddr, u8)>,
}

impl Changed {
    fn note_route(&mut self, destinations: Option<(IpAddr, u8)>) {
        match destinations {
            Some(destinations) if self.routes.len() < ROUTES_MAX => self.routes.push(destinations),
            _ => self.note_all_routes(),
        }
    }

    fn note_all_routes(&mut self) {
        self.routes = vec![ALL_V4, ALL_V6];
    }
}

/// Receives notifications of changes in the kernel's tables, and of its interfaces.
#[derive(Debug)]
pub struct HostChanges(OwnedFd);

impl HostChanges {
    /// Subscribes to changes of interfaces in this thread's network namespace, and, with
    /// `with_tables`, to changes of addresses, routes, rules and neighbours.
    ///
    /// # Errors
    /// When there are no descriptors or memory left.
    pub fn here(with_tables: bool) -> io::Result<Self> {
        let (family, flags) = (
            AddressFamily::NETLINK,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        );
        let socket = socket_with(family, SocketType::RAW, flags, NETLINK_ROUTE)?;
        let groups = if with_tables {
            libc::RTMGRP_LINK
                | libc::RTMGRP_NEIGH
                | libc::RTMGRP_IPV4_IFADDR
                | libc::RTMGRP_IPV4_ROUTE
                | libc::RTMGRP_IPV6_IFADDR
                | libc::RTMGRP_IPV6_ROUTE
                | group(RTNLGRP_IPV4_RULE)
                | group(RTNLGRP_IPV6_RULE)
                | group(RTNLGRP_NEXTHOP)
        } else {
            libc::RTMGRP_LINK
        };
        bind(&socket, &SocketAddrNetlink::new(0, groups.cast_unsigned()))?;
        Ok(Self(socket))
    }

    /// Takes all changes since the last call. Changes of addresses count only for `interface`.
    #[must_use]
    pub fn take(&self, interface: Option<u32>) -> Changed {
        let mut changed = Changed::default();
        let mut buffer = vec![0u8; BUFFER_BYTES];
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return changed,
                Ok((length, _)) => {
                    for message in messages(&buffer[..length]) {
                        match message.kind {
                            libc::RTM_NEWNEIGH => changed.neighbours.extend(message.neighbour()),
                            libc::RTM_DELNEIGH => {}
                            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                                changed.addresses |= message.is_about(interface);
                            }
                            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
                                changed.note_route(message.destinations());
                            }
                            // Rules, next hops, and interfaces. An interface that goes down loses
                            // its routes, and the kernel sends no message about these.
                            _ => changed.note_all_routes(),
                        }
                    }
                }
                // The kernel reports an overrun of the queue once. Any change may have been lost.
                Err(Errno::NOBUFS) => {
                    changed.addresses = true;
                    changed.note_all_routes();
                }
                Err(_) => return changed,
            }
        }
    }
}

impl AsFd for HostChanges {
    /// Readable when something has changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One message of a datagram.
#[derive(Debug)]
struct Message<'a> {
    kind: u16,
    flags: u16,
    /// The sequence number of the question that this message answers.
    number: u32,
    body: &'a [u8],
    /// Where the attributes begin.
    fixed_bytes: usize,
}

impl<'a> Message<'a> {
    fn fixed<const N: usize>(&self) -> Option<[u8; N]> {
        self.body.first_chunk::<N>().copied()
    }

    fn attribute(&self, kind: u16) -> Option<&'a [u8]> {
        let mut rest = self.body.get(self.fixed_bytes..)?;
        while let Some(&[a, b, c, d]) = rest.first_chunk::<4>() {
            let length = usize::from(u16::from_ne_bytes([a, b]));
            let value = rest.get(4..length)?;
            if u16::from_ne_bytes([c, d]) & TYPE_MASK == kind {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
        None
    }

    /// Whether a message about an address concerns this interface.
    fn is_about(&self, interface: Option<u32>) -> bool {
        // `struct ifaddrmsg`: family, prefix length, flags, scope, interface.
        let number = self
            .fixed::<8>()
            .map(|[_, _, _, _, at @ ..]| u32::from_ne_bytes(at));
        interface.is_none() || number == interface
    }

    /// The route in the message, for packets from `source`, or else from the source address in the
    /// message.
    fn host_route(&self, source: Option<IpAddr>) -> Option<HostRoute> {
        let [family, _, _, _, _, _, _, kind, ..] = self.fixed::<12>()?;
        if kind != libc::RTN_UNICAST && kind != libc::RTN_LOCAL {
            return None;
        }
        let preferred = || ip_of(family, self.attribute(libc::RTA_PREFSRC)?);
        let by_other_family = || {
            // `struct rtvia`: a family, and an address of it.
            let &[low, high, ref address @ ..] = self.attribute(libc::RTA_VIA)? else {
                return None;
            };
            ip_of(u16::from_ne_bytes([low, high]) as u8, address)
        };
        let gateway = self.attribute(libc::RTA_GATEWAY);
        Some(HostRoute {
            interface: number_of(self.attribute(libc::RTA_OIF)?)?,
            source: preferred().or(source)?,
            is_local: kind == libc::RTN_LOCAL,
            gateway: match gateway {
                Some(bytes) => Some(ip_of(family, bytes)?),
                None => by_other_family(),
            },
        })
    }

    /// The destinations of the message's route; `None` for an unknown form.
    fn destinations(&self) -> Option<(IpAddr, u8)> {
        let [family, prefix_bits, ..] = self.fixed::<12>()?;
        match self.attribute(libc::RTA_DST) {
            Some(bytes) => Some((ip_of(family, bytes)?, prefix_bits)),
            None if family == AF_INET => Some(ALL_V4),
            None if family == AF_INET6 => Some(ALL_V6),
            None => None,
        }
    }

    /// The neighbour with its Ethernet address, if the message has one.
    fn neighbour(&self) -> Option<HostNeighbour> {
        let [family, _, _, _, a, b, c, d, low, high, ..] = self.fixed::<12>()?;
        if u16::from_ne_bytes([low, high]) & KNOWN == 0 {
            return None;
        }
        Some(HostNeighbour {
            address: ip_of(family, self.attribute(libc::NDA_DST)?)?,
            mac: self.attribute(libc::NDA_LLADDR)?.try_into().ok()?,
            interface: u32::from_ne_bytes([a, b, c, d]),
        })
    }
}

/// The complete messages of a datagram.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header = *bytes.first_chunk::<HEADER_BYTES>()?;
        let two = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let four =
            |at: usize| u32::from_ne_bytes([at, at + 1, at + 2, at + 3].map(|at| header[at]));
        let length = four(0) as usize;
        let kind = two(4);
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let fixed_bytes = match kind {
            libc::RTM_NEWADDR | libc::RTM_DELADDR => 8,
            _ => 12,
        };
        Some(Message {
            kind,
            flags: two(6),
            number: four(8),
            body,
            fixed_bytes,
        })
    })
}

/// An address's family, and the address as an attribute (`struct rtattr` and the bytes).
fn address_attribute(kind: u16, ip: IpAddr) -> (u8, Vec<u8>) {
    let (family, bytes) = match ip {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
    };
    let mut attribute = (4 + bytes.len() as u16).to_ne_bytes().to_vec();
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(bytes);
    (family, attribute)
}

fn ip_of(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        AF_INET6 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

fn number_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

const fn group(number: u32) -> libc::c_int {
    (1u32 << (number - 1)).cast_signed()
}

/// `linux/rtnetlink.h`.
const RTNLGRP_IPV4_RULE: u32 = 8;
const RTNLGRP_IPV6_RULE: u32 = 19;
const RTNLGRP_NEXTHOP: u32 = 32;
/// All destinations of a family.
const ALL_V4: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
const ALL_V6: (IpAddr, u8) = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// The most changed routes that are listed one by one. If more have changed, all routes count as
/// changed.
const ROUTES_MAX: usize = 64;
/// The first protocol of netlink has the number 0, which rustix writes as `None`.
const NETLINK_ROUTE: Option<Protocol> = None;
const _: () = assert!(libc::NETLINK_ROUTE == 0);
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
/// The most bytes that the kernel puts into one datagram (`NLMSG_GOODSIZE` and its doublings).
const BUFFER_BYTES: usize = 32 << 10;
/// The most attempts to get a list without a change in between.
const DUMPS_MAX: usize = 8;
/// The bits of an attribute's type (NLA_TYPE_MASK). The other bits say how the attribute is
/// encoded.
const TYPE_MASK: u16 = 0x3fff;
/// `linux/neighbour.h`: NUD_REACHABLE, NUD_STALE, NUD_DELAY, NUD_PROBE, NUD_NOARP, NUD_PERMANENT.
const KNOWN: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const NTF_USE: u8 = 0x01;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address() {
        let tables = HostTables::here().expect("a socket");
        let interface = crate::Interfaces::here().and_then(|all| all.index("lo"));
        let interface = interface.expect("loopback");
        let addresses = tables.addresses(interface).expect("an answer");
        assert!(addresses.contains(&("127.0.0.1".parse().expect("address"), 8)));
        tables.neighbours(interface).expect("an answer");
    }

    #[test]
    fn way_to_this_host_is_local() {
        let tables = HostTables::here().expect("a socket");
        let interface = crate::Interfaces::here().and_then(|all| all.index("lo"));
        for own in ["127.0.0.1", "::1"] {
            let own: IpAddr = own.parse().expect("address");
            let expected = HostRoute {
                interface: interface.as_ref().copied().expect("loopback"),
                source: own,
                is_local: true,
                gateway: None,
            };
            assert_eq!(
                tables.route_to(own, None, None).expect("an answer"),
                Some(expected)
            );
        }
    }

    #[test]
    fn ways_are_on_the_link_or_by_a_gateway_of_either_family() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes
        };
        let source = IpAddr::from([10, 0, 0, 1]);
        let host_route = |kind: u8, attributes: &[Vec<u8>]| {
            let mut body = vec![
                AF_INET,
                32,
                32,
                0,
                libc::RT_TABLE_MAIN,
                0,
                0,
                kind,
                0,
                0,
                0,
                0,
            ];
            body.extend(attribute(libc::RTA_OIF, &7u32.to_ne_bytes()));
            body.extend(attributes.concat());
            let message = Message {
                kind: libc::RTM_NEWROUTE,
                flags: 0,
                number: 0,
                body: &body,
                fixed_bytes: 12,
            };
            message.host_route(Some(source))
        };
        let by = |gateway| {
            Some(HostRoute {
                interface: 7,
                source,
                is_local: false,
                gateway,
            })
        };
        let gateway = attribute(libc::RTA_GATEWAY, &[10, 0, 0, 9]);
        let mut via = u16::from(AF_INET6).to_ne_bytes().to_vec();
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
        via.extend(router.octets());
        let via = attribute(libc::RTA_VIA, &via);
        assert_eq!(host_route(libc::RTN_UNICAST, &[]), by(None));
        assert_eq!(
            host_route(libc::RTN_UNICAST, &[gateway]),
            by(Some([10, 0, 0, 9].into()))
        );
        assert_eq!(
            host_route(libc::RTN_UNICAST, &[via]),
            by(Some(router.into()))
        );
        assert_eq!(host_route(libc::RTN_BLACKHOLE, &[]), None);
    }

    #[test]
    fn changed_routes_are_reported_one_by_one_up_to_a_bound() {
        let mut changed = Changed::default();
        let some = (IpAddr::from([192, 0, 2, 0]), 24);
        changed.note_route(Some(some));
        assert_eq!(changed.routes, [some]);
        for _ in 0..2 * ROUTES_MAX {
            changed.note_route(Some(some));
            assert!(changed.routes.len() <= ROUTES_MAX);
        }
        assert!(changed.routes.contains(&ALL_V4) && changed.routes.contains(&ALL_V6));
    }

    /// A message that says which interface has 10.0.0.`last`, as an answer to the question of this
    /// number.
    fn address(interface: u32, last: u8, (number, flags): (u32, libc::c_int)) -> Vec<u8> {
        let mut body = vec![AF_INET, 24, 0, 0];
        body.extend(interface.to_ne_bytes());
        body.extend([8, 0, libc::IFA_LOCAL as u8, 0, 10, 0, 0, last]);
        message(libc::RTM_NEWADDR, (number, flags), &body)
    }

    fn message(kind: u16, (number, flags): (u32, libc::c_int), body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((flags as u16).to_ne_bytes());
        message.extend(number.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        message
    }

    /// Tables whose kernel has sent these datagrams.
    fn tables(datagrams: &[Vec<u8>]) -> (HostTables, OwnedFd) {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None);
        let (ours, kernel) = pair.expect("sockets");
        for datagram in datagrams {
            send(&kernel, datagram, SendFlags::empty()).expect("room");
        }
        (HostTables::by(ours), kernel)
    }

    #[test]
    fn list_that_changed_during_its_dump_is_requested_again() {
        let done = |number, error: i32| message(DONE, (number, 0), &error.to_ne_bytes());
        let whole = (libc::NLM_F_MULTI, libc::NLM_F_MULTI | libc::NLM_F_DUMP_INTR);
        let (tables, kernel) = tables(&[
            address(7, 1, (1, whole.0)),
            // The list lacks an entry.
            address(7, 3, (1, whole.1)),
            done(1, 0),
            [address(7, 1, (2, whole.0)), address(8, 9, (2, whole.0))].concat(),
            [address(7, 2, (2, whole.0)), done(2, 0)].concat(),
            done(3, -libc::ENOBUFS),
        ]);
        let own = |last: u8| (IpAddr::from([10, 0, 0, last]), 24);
        assert_eq!(tables.addresses(7).expect("a list"), [own(1), own(2)]);
        let refused = tables.addresses(7).map_err(|error| error.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENOBUFS)));
        // The call does not wait for a missing answer.
        let missing = tables.addresses(7).map_err(|error| error.kind());
        assert_eq!(missing, Err(io::ErrorKind::WouldBlock));
        drop(kernel);
    }

    #[test]
    fn list_that_never_stays_is_an_error() {
        let parts = (1..=DUMPS_MAX as u32).map(|number| {
            let first = address(7, 1, (number, libc::NLM_F_DUMP_INTR));
            [first, message(DONE, (number, 0), &[0; 4])].concat()
        });
        let (tables, _kernel) = tables(&parts.collect::<Vec<_>>());
        let never = tables.addresses(7).map_err(|error| error.raw_os_error());
        assert_eq!(never, Err(Some(libc::EAGAIN)));
    }

    #[test]
    fn answers_to_an_earlier_question_are_passed_over() {
        let done = |number| message(DONE, (number, 0), &[0; 4]);
        let (tables, _kernel) = tables(&[
            [address(7, 1, (9, 0)), done(9)].concat(),
            [address(7, 2, (1, 0)), done(1)].concat(),
        ]);
        let own = (IpAddr::from([10, 0, 0, 2]), 24);
        assert_eq!(tables.addresses(7).expect("a list"), [own]);
    }

    #[test]
    fn messages_that_are_cut_short_are_not_used() {
        let mut bytes = Vec::new();
        bytes.extend(44u32.to_ne_bytes());
        bytes.extend(libc::RTM_NEWNEIGH.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([AF_INET, 0, 0, 0, 7, 0, 0, 0, 0x02, 0, 0, 0]);
        bytes.extend([8, 0, 1, 0, 10, 0, 0, 1]);
        bytes.extend([8, 0, 2, 0, 1, 2, 3, 4]);
        let found = |bytes: &[u8]| {
            let found = messages(bytes).filter_map(|message| message.neighbour());
            found.count()
        };
        // A hardware address of four bytes is not Ethernet's.
        assert_eq!(found(&bytes), 0);
        bytes[0] = 48;
        bytes[36] = 10;
        bytes.extend([5, 6, 0, 0]);
        assert_eq!(found(&bytes), 1);
        for length in 0..bytes.len() {
            assert_eq!(found(&bytes[..length]), 0, "{length}");
        }
    }
}
