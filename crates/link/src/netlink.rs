//! The network around an interface as the kernel knows it (rtnetlink(7)): addresses, routes, and
//! neighbours.
//!
//! ```text
//!   message:    | length | type | flags | sequence, port |  a fixed part  | attributes ... |
//!   attribute:  | length | type | value ...                                 padded to four bytes
//! ```

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

/// A route by an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRoute {
    /// Destinations: the address part of the prefix.
    pub destination: IpAddr,
    /// The length of the prefix.
    pub prefix_bits: u8,
    /// The gateway; `None`: the destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// The interface's number.
    pub interface: u32,
    /// Of two routes to one prefix the one with the smaller number counts.
    pub metric: u32,
}

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

/// The way of packets to a destination, as the kernel would send them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostWay {
    /// The interface's number.
    pub interface: u32,
    /// The address that they come from, where the socket has none.
    pub source: IpAddr,
    /// The destination is this host itself.
    pub is_local: bool,
}

/// The kernel's tables in the network namespace that this was made in.
#[derive(Debug)]
pub struct HostTables(OwnedFd);

impl HostTables {
    /// Those of this thread's network namespace.
    ///
    /// # Errors
    /// When there are no descriptors or memory left.
    pub fn here() -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, NETLINK_ROUTE)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(socket))
    }

    /// An interface's addresses, each with its prefix length.
    ///
    /// # Errors
    /// The kernel's; so below.
    pub fn addresses(&self, interface: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let mut all = Vec::new();
        // `struct ifaddrmsg`: family, prefix length, flags, scope, interface.
        self.dump(libc::RTM_GETADDR, &[0; 8], |message| {
            let [family, bits, _, _, at @ ..] = message.fixed::<8>()?;
            if u32::from_ne_bytes(at) == interface {
                // On a link of two the address is the other end's, and the local one ours.
                let local = message.attribute(libc::IFA_LOCAL);
                let own = local.or_else(|| message.attribute(libc::IFA_ADDRESS));
                all.push((ip_of(family, own?)?, bits));
            }
            Some(())
        })?;
        Ok(all)
    }

    /// All routes of the main table that lead out by an interface.
    ///
    /// # Errors
    /// As for [`HostTables::addresses`].
    pub fn routes(&self) -> io::Result<Vec<HostRoute>> {
        let mut all = Vec::new();
        // `struct rtmsg`: family, prefix lengths, kind of service, table, protocol, scope, type.
        self.dump(libc::RTM_GETROUTE, &[0; 12], |message| {
            let [family, prefix_bits, _, _, table, _, _, kind, ..] = message.fixed::<12>()?;
            if table != libc::RT_TABLE_MAIN || kind != libc::RTN_UNICAST {
                return None;
            }
            let ip = |kind| ip_of(family, message.attribute(kind)?);
            let destination = match message.attribute(libc::RTA_DST) {
                Some(bytes) => ip_of(family, bytes)?,
                None if family == AF_INET => IpAddr::from([0; 4]),
                None => IpAddr::from([0; 16]),
            };
            all.push(HostRoute {
                destination,
                prefix_bits,
                gateway: ip(libc::RTA_GATEWAY),
                interface: number_of(message.attribute(libc::RTA_OIF)?)?,
                metric: (message.attribute(libc::RTA_PRIORITY).and_then(number_of)).unwrap_or(0),
            });
            Some(())
        })?;
        Ok(all)
    }

    /// The way to a destination, by all of the kernel's rules for packets without a mark; `None`
    /// where there is none.
    ///
    /// # Errors
    /// As for [`HostTables::addresses`].
    pub fn way_to(&self, destination: IpAddr) -> io::Result<Option<HostWay>> {
        let (family, attribute) = address_attribute(libc::RTA_DST, destination);
        // `struct rtmsg`, as for `routes`.
        let mut body = vec![family, if destination.is_ipv4() { 32 } else { 128 }];
        body.extend([0; 10]);
        body.extend(attribute);
        let mut found = None;
        // With an acknowledgement the answer has an end.
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        self.ask(libc::RTM_GETROUTE, flags, &body)?;
        let answered = self.answers(|message| {
            let [family, _, _, _, _, _, _, kind, ..] = message.fixed::<12>()?;
            found = Some(HostWay {
                interface: number_of(message.attribute(libc::RTA_OIF)?)?,
                source: ip_of(family, message.attribute(libc::RTA_PREFSRC)?)?,
                is_local: kind == libc::RTN_LOCAL,
            });
            Some(())
        });
        match answered.map_err(|error| error.raw_os_error()) {
            Ok(()) => Ok(found),
            // No route, or one that forbids it.
            Err(Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)) => {
                Ok(None)
            }
            Err(error) => Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EIO))),
        }
    }

    /// An interface's neighbours, as far as the kernel knows where they are.
    ///
    /// # Errors
    /// As for [`HostTables::addresses`].
    pub fn neighbours(&self, interface: u32) -> io::Result<Vec<HostNeighbour>> {
        let mut all = Vec::new();
        self.dump(libc::RTM_GETNEIGH, &[0; 12], |message| {
            all.extend(message.neighbour());
            Some(())
        })?;
        all.retain(|neighbour| neighbour.interface == interface);
        Ok(all)
    }

    /// Has the kernel find a neighbour, or make sure of one that it knows. Needs CAP_NET_ADMIN.
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
        self.answers(|_| Some(()))
    }

    /// Calls `each` with the messages that answer.
    fn dump(
        &self,
        kind: u16,
        fixed: &[u8],
        each: impl FnMut(&Message<'_>) -> Option<()>,
    ) -> io::Result<()> {
        self.ask(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, fixed)?;
        self.answers(each)
    }

    fn ask(&self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend((HEADER_BYTES as u32 + body.len() as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags as u16).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        send(&self.0, &message, SendFlags::empty())?;
        Ok(())
    }

    fn answers(&self, mut each: impl FnMut(&Message<'_>) -> Option<()>) -> io::Result<()> {
        let mut buffer = vec![0u8; BUFFER_BYTES];
        loop {
            let (length, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            for message in messages(&buffer[..length]) {
                match message.kind {
                    DONE => return Ok(()),
                    ERROR => {
                        let error = i32::from_ne_bytes(message.fixed().unwrap_or_default());
                        return match error {
                            0 => Ok(()),
                            error => Err(io::Error::from_raw_os_error(-error)),
                        };
                    }
                    // Whatever has not the form that is known is not used.
                    _ => drop(each(&message)),
                }
            }
        }
    }
}

/// The changes that a [`HostChanges`] has been told of.
#[derive(Debug, Default)]
pub struct Changed {
    /// Neighbours of any interface that the kernel has found, or found elsewhere.
    pub neighbours: Vec<HostNeighbour>,
    /// Addresses or routes are other ones, or something was missed.
    pub tables: bool,
}

/// Tells what changes in the kernel's tables, and of its interfaces.
#[derive(Debug)]
pub struct HostChanges(OwnedFd);

impl HostChanges {
    /// Changes of interfaces in this thread's network namespace, and, if asked for, of addresses,
    /// routes and neighbours.
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
        } else {
            libc::RTMGRP_LINK
        };
        bind(&socket, &SocketAddrNetlink::new(0, groups.cast_unsigned()))?;
        Ok(Self(socket))
    }

    /// Takes all that was told.
    #[must_use]
    pub fn take(&self) -> Changed {
        let mut changed = Changed::default();
        let mut buffer = vec![0u8; BUFFER_BYTES];
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return changed,
                Ok((length, _)) => {
                    for message in messages(&buffer[..length]) {
                        match message.kind {
                            libc::RTM_NEWNEIGH => changed.neighbours.extend(message.neighbour()),
                            libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_DELNEIGH => {}
                            _ => changed.tables = true,
                        }
                    }
                }
                // An overrun is news, too, and the kernel reports it once.
                Err(Errno::NOBUFS) => changed.tables = true,
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

/// One message of several.
#[derive(Debug)]
struct Message<'a> {
    kind: u16,
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

    /// Where a neighbour is, if the message says so.
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

/// The messages in what was received, as far as they are whole.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let &[a, b, c, d, low, high] = bytes.first_chunk::<6>()?;
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        let kind = u16::from_ne_bytes([low, high]);
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let fixed_bytes = match kind {
            libc::RTM_NEWADDR | libc::RTM_DELADDR => 8,
            _ => 12,
        };
        Some(Message {
            kind,
            body,
            fixed_bytes,
        })
    })
}

/// An address as an attribute (`struct rtattr` and its bytes), and the family it is of.
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

/// The first protocol of netlink has the number 0, which rustix writes as `None`.
const NETLINK_ROUTE: Option<Protocol> = None;
const _: () = assert!(libc::NETLINK_ROUTE == 0);
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
/// The most that the kernel puts into one message (`NLMSG_GOODSIZE` and its doublings).
const BUFFER_BYTES: usize = 32 << 10;
/// Of an attribute's type; the rest says how it is encoded (NLA_TYPE_MASK).
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
        tables.routes().expect("an answer");
    }

    #[test]
    fn way_to_this_host_is_local() {
        let tables = HostTables::here().expect("a socket");
        let interface = crate::Interfaces::here().and_then(|all| all.index("lo"));
        for own in ["127.0.0.1", "::1"] {
            let own: IpAddr = own.parse().expect("address");
            let expected = HostWay {
                interface: interface.as_ref().copied().expect("loopback"),
                source: own,
                is_local: true,
            };
            assert_eq!(tables.way_to(own).expect("an answer"), Some(expected));
        }
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
