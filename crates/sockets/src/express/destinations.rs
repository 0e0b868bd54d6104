//! Where connections lead to: addresses, numbered.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use toehold_channel::offload::Address;

use super::LOCK;
use crate::system::sys;

/// The most destinations of one process. Connections to other destinations go to the kernel.
pub(super) const DESTINATIONS_MAX: usize = 64;

/// In the first word of a [`Destination`]: the engine connects there.
const BY_ENGINE: u64 = 1 << 63;

/// An address as it is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Destination([u64; 3]);

static KNOWN: [[AtomicU64; 3]; DESTINATIONS_MAX] =
    [const { [const { AtomicU64::new(0) }; 3] }; DESTINATIONS_MAX];
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Destination {
    /// The address of a `connect`.
    ///
    /// # Safety
    /// `address` is readable for `len`.
    pub(super) unsafe fn of(address: *const sockaddr, len: socklen_t) -> Option<Destination> {
        if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
            return None;
        }
        // SAFETY: long enough for the family, by the check above; for more, by those below.
        unsafe {
            let family = address.cast::<libc::sa_family_t>().read_unaligned();
            match i32::from(family) {
                libc::AF_INET if len as usize >= size_of::<sockaddr_in>() => {
                    let address = address.cast::<sockaddr_in>().read_unaligned();
                    let name = u64::from(address.sin_addr.s_addr);
                    Some(Destination([first(family, address.sin_port, 0), name, 0]))
                }
                libc::AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
                    let address = address.cast::<sockaddr_in6>().read_unaligned();
                    let name = u128::from_ne_bytes(address.sin6_addr.s6_addr);
                    let scope = address.sin6_scope_id;
                    (address.sin6_flowinfo == 0).then(|| {
                        let first = first(family, address.sin6_port, scope);
                        Destination([first, name as u64, (name >> 64) as u64])
                    })
                }
                _ => None,
            }
        }
    }

    /// An address to which the engine connects, on behalf of a socket of IPv6 or of IPv4. It
    /// differs from every destination of the kernel, even if the address is equal.
    pub(super) fn by_engine(remote: Address, is_v6: bool) -> Destination {
        let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        let first = first(family as libc::sa_family_t, remote.port.to_be(), 0);
        let name = u128::from_ne_bytes(remote.ip);
        Destination([first | BY_ENGINE, name as u64, (name >> 64) as u64])
    }

    /// `AF_INET` or `AF_INET6`.
    pub(super) fn family(self) -> i32 {
        ((self.0[0] & !BY_ENGINE) >> 48) as i32
    }

    /// True for an address of IPv6.
    pub(super) fn is_v6(self) -> bool {
        self.family() == libc::AF_INET6
    }

    /// The port, in host order.
    pub(super) fn port(self) -> u16 {
        u16::from_be((self.0[0] >> 32) as u16)
    }

    /// The address, of IPv4 in the first four bytes.
    pub(super) fn ip(self) -> [u8; 16] {
        (u128::from(self.0[2]) << 64 | u128::from(self.0[1])).to_ne_bytes()
    }

    /// The destination of that number.
    pub(super) fn numbered(number: u32) -> Option<Destination> {
        let known = KNOWN.get(number.checked_sub(1)? as usize)?;
        let words = [0, 1, 2].map(|n| known[n].load(Ordering::Relaxed));
        Some(Destination(words))
    }

    #[cfg(test)]
    pub(super) fn of_address(address: core::net::SocketAddr) -> Destination {
        let port = address.port().to_be();
        match address.ip() {
            core::net::IpAddr::V4(ip) => {
                let first = first(libc::AF_INET as libc::sa_family_t, port, 0);
                Destination([first, u32::from_ne_bytes(ip.octets()).into(), 0])
            }
            core::net::IpAddr::V6(ip) => {
                let ip = u128::from_ne_bytes(ip.octets());
                let first = first(libc::AF_INET6 as libc::sa_family_t, port, 0);
                Destination([first, ip as u64, (ip >> 64) as u64])
            }
        }
    }

    /// The destination of an address that the kernel has returned.
    pub(super) fn of_storage(address: &libc::sockaddr_storage) -> Option<Destination> {
        let len = size_of::<libc::sockaddr_storage>() as socklen_t;
        // SAFETY: readable for its length.
        unsafe { Destination::of(core::ptr::from_ref(address).cast(), len) }
    }

    /// True when the address belongs to this network namespace. Then the other end of a connection
    /// with that remote address and the local address `ours` is a process on this host.
    pub(super) fn is_here(self, ours: impl FnOnce() -> Option<Destination>) -> bool {
        let [first, low, high] = self.0;
        let (is_loopback, is_any) = match self.is_v6() {
            false => ((low as u32).to_ne_bytes()[0] == 127, low == 0),
            true => {
                let name = core::net::Ipv6Addr::from(self.ip());
                let is_mapped = |v4: core::net::Ipv4Addr| v4.is_loopback();
                let is_loopback = name.to_ipv4_mapped().is_some_and(is_mapped);
                (is_loopback || name.is_loopback(), name.is_unspecified())
            }
        };
        // If both ends have the same address, both are on this host.
        let is_same =
            |ours: Destination| ours.0[1..] == [low, high] && ours.0[0] >> 48 == first >> 48;
        is_loopback || is_any || ours().is_some_and(is_same)
    }

    fn is_at(self, place: usize) -> bool {
        let known = KNOWN[place].iter().map(|word| word.load(Ordering::Relaxed));
        known.eq(self.0)
    }

    /// The number of the destination, counted from 1, if it is known. A destination that is known
    /// keeps its number.
    pub(super) fn number(self) -> Option<u32> {
        // Acquire pairs with the Release store in `become_known`.
        let count = COUNT.load(Ordering::Acquire) as usize;
        let place = (0..count).find(|&place| self.is_at(place))?;
        Some(place as u32 + 1)
    }

    /// As [`Destination::number`], of one that becomes known. `None` when there is no room. Takes
    /// the lock if the destination is new.
    pub(super) fn number_or_new(self) -> Option<u32> {
        self.number().or_else(|| self.become_known())
    }

    #[cold]
    fn become_known(self) -> Option<u32> {
        let _held = LOCK.lock();
        // Another thread may have been faster.
        self.number().or_else(|| {
            let count = COUNT.load(Ordering::Relaxed);
            let place = KNOWN.get(count as usize)?;
            for (word, value) in place.iter().zip(self.0) {
                word.store(value, Ordering::Relaxed);
            }
            // Release pairs with the Acquire load in `number`.
            COUNT.store(count + 1, Ordering::Release);
            Some(count + 1)
        })
    }
}

/// Makes a non-blocking socket and lets the kernel connect it to destination `number`. `None` when
/// that takes longer than `limit_ns`, or no program listens there, or the engine serves the
/// destination, or this thread is in another network namespace than `carrier`, where the address
/// may belong to another host.
pub(super) fn connect(number: u32, carrier: i32, limit_ns: u64) -> Option<i32> {
    let destination = Destination::numbered(number)?;
    if destination.0[0] & BY_ENGINE != 0 {
        return None;
    }
    let (family, port, ip) = (destination.family(), destination.port(), destination.ip());
    // SAFETY: zeroes are valid addresses.
    let (mut v4, mut v6): (sockaddr_in, sockaddr_in6) = unsafe { core::mem::zeroed() };
    let (address, len) = match family {
        libc::AF_INET => {
            v4.sin_family = family as libc::sa_family_t;
            v4.sin_port = port.to_be();
            v4.sin_addr.s_addr = destination.0[1] as u32;
            ((&raw const v4).cast::<sockaddr>(), size_of::<sockaddr_in>())
        }
        _ => {
            v6.sin6_family = family as libc::sa_family_t;
            v6.sin6_port = port.to_be();
            v6.sin6_scope_id = destination.0[0] as u32;
            v6.sin6_addr.s6_addr = ip;
            ((&raw const v6).cast(), size_of::<sockaddr_in6>())
        }
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let fd = sys::socket(family, kind, 0)?;
    if sys::namespace_of(fd) != sys::namespace_of(carrier) {
        sys::close(fd);
        return None;
    }
    // SAFETY: `address` is one of the two above.
    let result = unsafe { sys::connect(fd, address, len) };
    let is_connected = match -result as i32 {
        0 => true,
        libc::EINPROGRESS => {
            sys::poll_for(fd, libc::POLLOUT, limit_ns) & libc::POLLOUT != 0
                && sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR) == Ok(0)
        }
        _ => false,
    };
    if !is_connected {
        sys::close(fd);
        return None;
    }
    Some(fd)
}

fn first(family: libc::sa_family_t, port: u16, scope: u32) -> u64 {
    u64::from(family) << 48 | u64::from(port) << 32 | u64::from(scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(name: [u8; 4]) -> Destination {
        Destination::of_address((name, 80).into())
    }

    fn v6(name: &str) -> Destination {
        let name: core::net::Ipv6Addr = name.parse().expect("an address");
        Destination::of_address((name, 80).into())
    }

    #[test]
    fn an_address_is_here_when_it_is_loopback_or_that_of_both_ends() {
        let nothing = || None;
        assert!(v4([127, 0, 0, 1]).is_here(nothing));
        assert!(v4([0, 0, 0, 0]).is_here(nothing));
        assert!(v6("::1").is_here(nothing));
        assert!(v6("::").is_here(nothing));
        assert!(v6("::ffff:127.0.0.2").is_here(nothing));
        assert!(!v4([192, 0, 2, 1]).is_here(nothing));
        assert!(v4([192, 0, 2, 1]).is_here(|| Some(v4([192, 0, 2, 1]))));
        assert!(!v4([192, 0, 2, 1]).is_here(|| Some(v4([192, 0, 2, 127]))));
        assert!(v6("2001:db8::1").is_here(|| Some(v6("2001:db8::1"))));
        assert!(!v6("2001:db8::1").is_here(|| Some(v6("2001:db8::2"))));
        assert!(!v6("::ffff:192.0.2.1").is_here(nothing));
    }
}
