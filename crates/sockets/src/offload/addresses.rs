//! Socket addresses: in the kernel, and in the program's arguments.

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use toehold_channel::offload::Address;
use toehold_channel::rendezvous::mapped;

use crate::system::{faults, sys};

/// A socket's own address, from the kernel.
pub(crate) fn local(fd: i32) -> Option<Address> {
    of_storage(&sys::socket_address(fd, false).ok()?)
}

/// The address to which a socket that is not connected is bound; its port is 0 where it may be any.
///
/// A socket whose connection was refused or dissolved reports the port that it had, but does not
/// have it any more: `__inet_put_port` in net/ipv4/inet_hashtables.c leaves `inet_sport`.
pub(super) fn bound(fd: i32) -> Option<Address> {
    let told = local(fd)?;
    let port = match told.port {
        0 => 0,
        _ if takes_a_port(fd, told) => 0,
        port => port,
    };
    Some(Address { port, ..told })
}

/// True when the socket has no port. To find out, the socket is bound to its own address without a
/// port: this changes nothing, and it fails if the socket has a port (`__inet_bind` in
/// net/ipv4/af_inet.c).
fn takes_a_port(fd: i32, told: Address) -> bool {
    const LATE: i32 = libc::IP_BIND_ADDRESS_NO_PORT;
    let Ok(before) = sys::getsockopt::<i32>(fd, libc::IPPROTO_IP, LATE) else {
        return false;
    };
    let (name, len) = sockaddr_for(fd, Address { port: 0, ..told });
    sys::setsockopt_int(fd, libc::IPPROTO_IP, LATE, 1);
    let result = sys::bind(fd, &name, len);
    sys::setsockopt_int(fd, libc::IPPROTO_IP, LATE, before);
    result == 0
}

/// The address of a socket's other end, from the kernel.
pub(crate) fn remote(fd: i32) -> Option<Address> {
    of_storage(&sys::socket_address(fd, true).ok()?)
}

pub(super) fn of_storage(storage: &sockaddr_storage) -> Option<Address> {
    let len = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: a whole `sockaddr_storage` is readable.
    unsafe { read(core::ptr::from_ref(storage).cast(), len) }
}

/// The address in a program's `sockaddr`, if it is one of TCP's.
///
/// # Safety
/// `address` is readable for `len` bytes.
pub(crate) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Option<Address> {
    if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: long enough for the family by the check above.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: long enough by the guard.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            Some(Address {
                ip: mapped(v4.sin_addr.s_addr.to_ne_bytes()),
                port: u16::from_be(v4.sin_port),
            })
        }
        libc::AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
            // SAFETY: long enough by the guard.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            Some(Address {
                ip: v6.sin6_addr.s6_addr,
                port: u16::from_be(v6.sin6_port),
            })
        }
        _ => None,
    }
}

/// True when the kernel would read an argument of `len` bytes (`move_addr_to_kernel` in
/// net/socket.c). Otherwise the call must go to the kernel to get the error.
pub(crate) fn is_readable(address: *const sockaddr, len: socklen_t) -> bool {
    let len = len as usize;
    len <= size_of::<sockaddr_storage>() && faults::is_readable(address.cast(), len)
}

/// An address in the form of `fd`'s family, and its length.
pub(crate) fn sockaddr_for(fd: i32, address: Address) -> (sockaddr_storage, socklen_t) {
    let domain = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    sockaddr_of_family(domain.unwrap_or(libc::AF_UNSPEC), address)
}

/// An address in the form of a family, and its length. Addresses of IPv6 have no other form than
/// that of `AF_INET6`.
pub(crate) fn sockaddr_of_family(family: i32, address: Address) -> (sockaddr_storage, socklen_t) {
    // SAFETY: zeroes are a valid `sockaddr_storage`.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let base = &raw mut storage;
    if let (libc::AF_INET, Some(v4)) = (family, address.v4()) {
        let out = base.cast::<sockaddr_in>();
        // SAFETY: a `sockaddr_storage` holds any socket address, aligned.
        unsafe {
            (*out).sin_family = libc::AF_INET as libc::sa_family_t;
            (*out).sin_port = address.port.to_be();
            (*out).sin_addr.s_addr = u32::from_ne_bytes(v4);
        }
        return (storage, size_of::<sockaddr_in>() as socklen_t);
    }
    let out = base.cast::<sockaddr_in6>();
    // SAFETY: as above.
    unsafe {
        (*out).sin6_family = libc::AF_INET6 as libc::sa_family_t;
        (*out).sin6_port = address.port.to_be();
        (*out).sin6_addr.s6_addr = address.ip;
    }
    (storage, size_of::<sockaddr_in6>() as socklen_t)
}

/// Writes an address for a program as the kernel does: cut to the room, with its full length in
/// `len`.
///
/// # Errors
/// `EFAULT`, and `EINVAL` where the room is negative.
///
/// # Safety
/// `address`, for `room` bytes, and `len` are the call's, if they are there.
pub(crate) unsafe fn write(
    (storage, whole): (sockaddr_storage, socklen_t),
    address: *mut sockaddr,
    room: socklen_t,
    len: *mut socklen_t,
) -> Result<(), i32> {
    if room.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    let count = room.min(whole) as usize;
    // SAFETY: `count` is within the name; the caller's promise.
    unsafe {
        faults::give((&raw const storage).cast(), address.cast(), count)?;
        faults::give((&raw const whole).cast(), len.cast(), size_of_val(&whole))
    }
}
