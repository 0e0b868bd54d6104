//! The calls under test, as libc has them: each wrapper returns the result or the errno.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;

use toehold_e2e::duet::{MEET_V4, MEET_V6};

#[path = "sys/waits.rs"]
mod waits;

pub(crate) use waits::*;

pub(crate) type Fd = c_int;

/// The result of a call: its value, or its errno when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ret(pub(crate) Result<i64, i32>);

impl Ret {
    /// The value as a descriptor. Panics if the call failed.
    pub(crate) fn fd(self) -> Fd {
        Fd::try_from(self.value()).expect("descriptors are small")
    }

    /// The value. Panics if the call failed.
    pub(crate) fn value(self) -> i64 {
        self.0
            .unwrap_or_else(|errno| panic!("unexpected {}", errno_name(errno)))
    }

    /// The value as a length; zero when the call failed.
    pub(crate) fn len(self) -> usize {
        self.0.map_or(0, |value| {
            usize::try_from(value).expect("lengths are not negative")
        })
    }

    /// Whether the call failed with `errno`.
    pub(crate) fn is(self, errno: i32) -> bool {
        self.0 == Err(errno)
    }
}

impl fmt::Display for Ret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(value) => write!(formatter, "{value}"),
            Err(errno) => formatter.write_str(&errno_name(errno)),
        }
    }
}

/// A return value of libc, or errno if the value says that the call failed.
pub(crate) fn ret(value: impl Into<i64>) -> Ret {
    let value = value.into();
    Ret(if value >= 0 { Ok(value) } else { Err(errno()) })
}

fn size(value: isize) -> Ret {
    ret(i64::try_from(value).expect("64-bit platforms only"))
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub(crate) fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EAGAIN => "EAGAIN",
        libc::EBADF => "EBADF",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ECONNRESET => "ECONNRESET",
        libc::EDESTADDRREQ => "EDESTADDRREQ",
        libc::EEXIST => "EEXIST",
        libc::EFAULT => "EFAULT",
        libc::EINPROGRESS => "EINPROGRESS",
        libc::EINTR => "EINTR",
        libc::EINVAL => "EINVAL",
        libc::EISCONN => "EISCONN",
        libc::ENOENT => "ENOENT",
        libc::ENOTCONN => "ENOTCONN",
        libc::ENOTSOCK => "ENOTSOCK",
        libc::EPERM => "EPERM",
        libc::EPIPE => "EPIPE",
        libc::ESPIPE => "ESPIPE",
        libc::EALREADY => "EALREADY",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}

pub(crate) fn read(fd: Fd, bytes: &mut [u8]) -> Ret {
    // SAFETY: the pointer and length are those of one live, exclusive slice.
    size(unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) })
}

pub(crate) fn write(fd: Fd, bytes: &[u8]) -> Ret {
    // SAFETY: the pointer and length are those of one live slice.
    size(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

pub(crate) fn recv(fd: Fd, bytes: &mut [u8], flags: c_int) -> Ret {
    // SAFETY: the pointer and length are those of one live, exclusive slice.
    size(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) })
}

pub(crate) fn send(fd: Fd, bytes: &[u8], flags: c_int) -> Ret {
    // SAFETY: the pointer and length are those of one live slice.
    size(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

pub(crate) fn recvfrom(fd: Fd, bytes: &mut [u8], flags: c_int) -> Ret {
    // SAFETY: as for `recv`; no address is asked for.
    size(unsafe {
        libc::recvfrom(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            flags,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    })
}

pub(crate) fn sendto(fd: Fd, bytes: &[u8], flags: c_int) -> Ret {
    // SAFETY: as for `send`; no address is given.
    size(unsafe {
        libc::sendto(
            fd,
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
            ptr::null(),
            0,
        )
    })
}

/// sendto, to an address.
pub(crate) fn sendto_place(fd: Fd, bytes: &[u8], flags: c_int, to: SocketAddr) -> Ret {
    let (address, len) = spelled(to);
    sendto_address(fd, bytes, flags, &address, len)
}

/// Like [`sendto_place`], with the first `len` bytes of an address of any type.
pub(crate) fn sendto_address(
    fd: Fd,
    bytes: &[u8],
    flags: c_int,
    address: &libc::sockaddr_storage,
    len: libc::socklen_t,
) -> Ret {
    let (base, address) = (bytes.as_ptr().cast(), ptr::from_ref(address).cast());
    // SAFETY: as for `send`; `address` is live and no shorter than `len`.
    size(unsafe { libc::sendto(fd, base, bytes.len(), flags, address, len) })
}

/// Like [`sendto_place`], with bytes at an address that is not mapped.
pub(crate) fn sendto_place_from_nowhere(fd: Fd, len: usize, flags: c_int, to: SocketAddr) -> Ret {
    const NOWHERE: usize = 16;
    let (address, address_len) = spelled(to);
    let address = ptr::from_ref(&address).cast();
    let base = ptr::without_provenance(NOWHERE);
    // SAFETY: the kernel refuses bytes that it cannot read; `address` is live and no shorter than
    // its length.
    size(unsafe { libc::sendto(fd, base, len, flags, address, address_len) })
}

/// `bytes`, cut into `count` parts, as a scatter-gather list with an empty part in front.
fn parts(bytes: *mut u8, len: usize, count: usize) -> Vec<libc::iovec> {
    let mut list = vec![libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }];
    let step = len.div_ceil(count).max(1);
    let mut offset = 0;
    while offset < len {
        let part = step.min(len - offset);
        list.push(libc::iovec {
            iov_base: bytes.wrapping_add(offset).cast(),
            iov_len: part,
        });
        offset += part;
    }
    list
}

fn list_len(list: &[libc::iovec]) -> c_int {
    c_int::try_from(list.len()).expect("short lists")
}

pub(crate) fn readv(fd: Fd, bytes: &mut [u8]) -> Ret {
    let list = parts(bytes.as_mut_ptr(), bytes.len(), 3);
    // SAFETY: the list's parts are disjoint parts of one live, exclusive slice.
    size(unsafe { libc::readv(fd, list.as_ptr(), list_len(&list)) })
}

pub(crate) fn writev(fd: Fd, bytes: &[u8]) -> Ret {
    let list = parts(bytes.as_ptr().cast_mut(), bytes.len(), 3);
    // SAFETY: the list's parts are parts of one live slice, which writev only reads.
    size(unsafe { libc::writev(fd, list.as_ptr(), list_len(&list)) })
}

fn message(list: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr of zeroes is valid: no name, no data, no control.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = list.len();
    header
}

/// recvmsg into `bytes`, whose header cannot be written.
pub(crate) fn recvmsg_without_a_place(fd: Fd, bytes: &mut [u8]) -> Ret {
    let mut list = parts(bytes.as_mut_ptr(), bytes.len(), 1);
    let header = unwritable(message(&mut list));
    // SAFETY: the kernel looks at what it can write.
    size(unsafe { libc::recvmsg(fd, header, 0) })
}

/// As [`recvmsg_without_a_place`], by recvmmsg.
pub(crate) fn recvmmsg_without_a_place(fd: Fd, bytes: &mut [u8]) -> Ret {
    let mut list = parts(bytes.as_mut_ptr(), bytes.len(), 1);
    let header = unwritable(libc::mmsghdr {
        msg_hdr: message(&mut list),
        msg_len: 0,
    });
    // SAFETY: as above.
    ret(unsafe { libc::recvmmsg(fd, header, 1, 0, ptr::null_mut()) })
}

/// `value` in a page that can only be read.
fn unwritable<T>(value: T) -> *mut T {
    const PAGE_BYTES: usize = 4096;
    assert!(size_of::<T>() <= PAGE_BYTES);
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh page, long enough.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), PAGE_BYTES, writable, private, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<T>().write(value);
        assert_eq!(libc::mprotect(page, PAGE_BYTES, libc::PROT_READ), 0);
        page.cast()
    }
}

/// recvmsg, with the message flags it returned.
pub(crate) fn recvmsg(fd: Fd, bytes: &mut [u8], flags: c_int) -> (Ret, c_int) {
    let mut list = parts(bytes.as_mut_ptr(), bytes.len(), 2);
    let mut header = message(&mut list);
    // SAFETY: the header's list and its parts outlive the call.
    let result = size(unsafe { libc::recvmsg(fd, &mut header, flags) });
    (result, header.msg_flags)
}

pub(crate) fn sendmsg(fd: Fd, bytes: &[u8], flags: c_int) -> Ret {
    let mut list = parts(bytes.as_ptr().cast_mut(), bytes.len(), 2);
    let header = message(&mut list);
    // SAFETY: the header's list and its parts outlive the call, which only reads them.
    size(unsafe { libc::sendmsg(fd, &header, flags) })
}

/// Like [`sendmsg`], to an address.
pub(crate) fn sendmsg_place(fd: Fd, bytes: &[u8], flags: c_int, to: SocketAddr) -> Ret {
    let mut list = parts(bytes.as_ptr().cast_mut(), bytes.len(), 3);
    let mut header = message(&mut list);
    let (mut address, len) = spelled(to);
    header.msg_name = ptr::from_mut(&mut address).cast();
    header.msg_namelen = len;
    // SAFETY: the header's name, its list and its parts outlive the call, which only reads them.
    size(unsafe { libc::sendmsg(fd, &header, flags) })
}

/// recvmmsg into `count` messages of equal size. Returns the number of messages received, and the
/// length of each.
pub(crate) fn recvmmsg(fd: Fd, bytes: &mut [u8], count: usize, flags: c_int) -> (Ret, Vec<u32>) {
    recvmmsg_in(fd, bytes, count, flags, ptr::null_mut())
}

/// Like [`recvmmsg`], with the time-out `time`, which may be null.
pub(crate) fn recvmmsg_in(
    fd: Fd,
    bytes: &mut [u8],
    count: usize,
    flags: c_int,
    time: *mut libc::timespec,
) -> (Ret, Vec<u32>) {
    let part = bytes.len() / count;
    let mut lists: Vec<Vec<libc::iovec>> = bytes
        .chunks_mut(part)
        .take(count)
        .map(|part| parts(part.as_mut_ptr(), part.len(), 1))
        .collect();
    let mut headers: Vec<libc::mmsghdr> = lists
        .iter_mut()
        .map(|list| libc::mmsghdr {
            msg_hdr: message(list),
            msg_len: 0,
        })
        .collect();
    let wanted = u32::try_from(headers.len()).expect("few");
    #[allow(
        clippy::useless_conversion,
        reason = "the flags' type differs between libc versions"
    )]
    let flags = flags.try_into().expect("flags fit");
    // SAFETY: `wanted` headers, whose lists and parts outlive the call; so does the time.
    let result = ret(unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), wanted, flags, time) });
    let lengths = headers
        .iter()
        .take(result.len())
        .map(|header| header.msg_len)
        .collect();
    (result, lengths)
}

/// sendmmsg of `count` equal parts of `bytes`. Returns the number of messages sent, and the length
/// of each.
pub(crate) fn sendmmsg(fd: Fd, bytes: &[u8], count: usize, flags: c_int) -> (Ret, Vec<u32>) {
    let part = bytes.len() / count;
    let mut lists: Vec<Vec<libc::iovec>> = bytes
        .chunks(part)
        .take(count)
        .map(|part| parts(part.as_ptr().cast_mut(), part.len(), 1))
        .collect();
    let mut headers: Vec<libc::mmsghdr> = lists
        .iter_mut()
        .map(|list| libc::mmsghdr {
            msg_hdr: message(list),
            msg_len: 0,
        })
        .collect();
    let wanted = u32::try_from(headers.len()).expect("few");
    #[allow(
        clippy::useless_conversion,
        reason = "the flags' type differs between libc versions"
    )]
    let flags = flags.try_into().expect("flags fit");
    // SAFETY: `wanted` headers, whose lists and parts outlive the call and are only read.
    let result = ret(unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), wanted, flags) });
    let lengths = headers
        .iter()
        .take(result.len())
        .map(|header| header.msg_len)
        .collect();
    (result, lengths)
}

pub(crate) fn socket(family: c_int, flags: c_int) -> Fd {
    // SAFETY: takes no pointers.
    ret(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) }).fd()
}

/// The address where the roles meet: loopback, unless the harness names another address.
pub(crate) fn meeting_place(family: c_int, port: u16) -> SocketAddr {
    let variable = if family == libc::AF_INET {
        MEET_V4
    } else {
        MEET_V6
    };
    match std::env::var(variable) {
        Ok(said) => SocketAddr::new(said.parse().expect("an address"), port),
        Err(_) => loopback(family, port),
    }
}

/// The loopback address of a family with a port.
pub(crate) fn loopback(family: c_int, port: u16) -> SocketAddr {
    let ip = if family == libc::AF_INET {
        IpAddr::from(Ipv4Addr::LOCALHOST)
    } else {
        IpAddr::from(Ipv6Addr::LOCALHOST)
    };
    SocketAddr::new(ip, port)
}

/// An address in the kernel's format, and its length.
pub(crate) fn spelled(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: an address of zeroes is valid: the unspecified one.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let at = ptr::from_mut(&mut storage);
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: sockaddr_storage is large and aligned enough for every address.
            let out = unsafe { &mut *at.cast::<libc::sockaddr_in>() };
            out.sin_family = libc::AF_INET as libc::sa_family_t;
            out.sin_port = v4.port().to_be();
            out.sin_addr.s_addr = v4.ip().to_bits().to_be();
            mem::size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: sockaddr_storage is large and aligned enough for every address.
            let out = unsafe { &mut *at.cast::<libc::sockaddr_in6>() };
            out.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            out.sin6_port = v6.port().to_be();
            out.sin6_addr.s6_addr = v6.ip().octets();
            mem::size_of::<libc::sockaddr_in6>()
        }
    };
    (
        storage,
        libc::socklen_t::try_from(len).expect("addresses are short"),
    )
}

/// Binds `fd` to a free port of the address where the roles can meet.
pub(crate) fn bind_anywhere(fd: Fd, family: c_int) -> Ret {
    if family != libc::AF_UNIX {
        return bind(fd, meeting_place(family, 0));
    }
    let first = std::process::id() as u16;
    let ports = (0..u16::MAX).map(|n| first.wrapping_add(n).max(1));
    let mut results = ports.map(|port| {
        let (address, len) = unix_name(port);
        // SAFETY: `address` is live and `len` bytes of it are initialised.
        ret(unsafe { libc::bind(fd, ptr::from_ref(&address).cast(), len) })
    });
    results
        .find(|result| !result.is(libc::EADDRINUSE))
        .expect("some name is free")
}

/// Binds `fd` to `port` of the address where the roles can meet.
pub(crate) fn bind_port(fd: Fd, family: c_int, port: u16) -> Ret {
    if family != libc::AF_UNIX {
        return bind(fd, meeting_place(family, port));
    }
    let (address, len) = unix_name(port);
    // SAFETY: `address` is live and `len` bytes of it are initialised.
    ret(unsafe { libc::bind(fd, ptr::from_ref(&address).cast(), len) })
}

/// The abstract name of a Unix socket, and its length. The name contains a number that stands for
/// the port.
pub(crate) fn unix_name(port: u16) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: an address of zeroes is valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = format!("\0{UNIX_NAME}{port}");
    for (place, byte) in address.sun_path.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    let len = mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
    (address, len as libc::socklen_t)
}

/// The text before the port in the names of Unix sockets.
const UNIX_NAME: &str = "toehold-e2e:";

pub(crate) fn bind(fd: Fd, to: SocketAddr) -> Ret {
    let (address, len) = spelled(to);
    // SAFETY: `address` is live and `len` bytes of it are initialised.
    ret(unsafe { libc::bind(fd, ptr::from_ref(&address).cast(), len) })
}

pub(crate) fn connect(fd: Fd, family: c_int, port: u16) -> Ret {
    if family == libc::AF_UNIX {
        let (address, len) = unix_name(port);
        // SAFETY: `address` is live and `len` bytes of it are initialised.
        return ret(unsafe { libc::connect(fd, ptr::from_ref(&address).cast(), len) });
    }
    let (address, len) = spelled(meeting_place(family, port));
    // SAFETY: `address` is live and `len` bytes of it are initialised.
    ret(unsafe { libc::connect(fd, ptr::from_ref(&address).cast(), len) })
}

/// connect(2) with `AF_UNSPEC`.
pub(crate) fn disconnect(fd: Fd) -> Ret {
    // SAFETY: an address of zeroes is valid: its family is `AF_UNSPEC`.
    let nobody: libc::sockaddr = unsafe { mem::zeroed() };
    let len = mem::size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: `nobody` is live and `len` bytes long.
    ret(unsafe { libc::connect(fd, &nobody, len) })
}

pub(crate) fn listen(fd: Fd, backlog: c_int) -> Ret {
    // SAFETY: takes no pointers.
    ret(unsafe { libc::listen(fd, backlog) })
}

pub(crate) fn accept(fd: Fd) -> Ret {
    // SAFETY: no address is asked for.
    ret(unsafe { libc::accept(fd, ptr::null_mut(), ptr::null_mut()) })
}

pub(crate) fn accept4(fd: Fd, flags: c_int) -> Ret {
    // SAFETY: no address is asked for.
    ret(unsafe { libc::accept4(fd, ptr::null_mut(), ptr::null_mut(), flags) })
}

/// The address at one end: its family, the address as text, and its port.
pub(crate) fn name(fd: Fd, of_peer: bool) -> Result<(c_int, String, u16), Ret> {
    // SAFETY: an address of zeroes is valid.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let address = ptr::from_mut(&mut storage).cast::<libc::sockaddr>();
    let call = if of_peer {
        libc::getpeername
    } else {
        libc::getsockname
    };
    // SAFETY: `address` has room for `len` bytes, and both outlive the call.
    let result = ret(unsafe { call(fd, address, &mut len) });
    if result.0.is_err() {
        return Err(result);
    }
    if c_int::from(storage.ss_family) == libc::AF_UNIX {
        // SAFETY: the family says which address the storage holds.
        let path = unsafe { (*address.cast::<libc::sockaddr_un>()).sun_path };
        let name = path[1..].iter().map(|byte| char::from(*byte as u8));
        let name: String = name.take_while(|letter| *letter != '\0').collect();
        let port = name.strip_prefix(UNIX_NAME);
        let port = port.map_or(0, |port| port.parse().expect("a port"));
        return Ok((libc::AF_UNIX, String::new(), port));
    }
    if c_int::from(storage.ss_family) == libc::AF_INET {
        // SAFETY: the family says which address the storage holds.
        let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
        let words = std::net::Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).to_string();
        Ok((libc::AF_INET, words, u16::from_be(address.sin_port)))
    } else {
        // SAFETY: the family says which address the storage holds.
        let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
        let words = std::net::Ipv6Addr::from(address.sin6_addr.s6_addr).to_string();
        Ok((
            c_int::from(storage.ss_family),
            words,
            u16::from_be(address.sin6_port),
        ))
    }
}

pub(crate) fn close(fd: Fd) -> Ret {
    // SAFETY: takes no pointers; the cases own the descriptors they close.
    ret(unsafe { libc::close(fd) })
}

pub(crate) fn shutdown(fd: Fd, how: c_int) -> Ret {
    // SAFETY: takes no pointers.
    ret(unsafe { libc::shutdown(fd, how) })
}

/// An integer socket option.
pub(crate) fn option(fd: Fd, level: c_int, name: c_int) -> Ret {
    let mut value: c_int = 0;
    let mut len = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` has room for `len` bytes, and both outlive the call.
    let result = ret(unsafe {
        libc::getsockopt(fd, level, name, ptr::from_mut(&mut value).cast(), &mut len)
    });
    Ret(result.0.map(|_| i64::from(value)))
}

/// Sets a socket option whose value is of any plain type.
pub(crate) fn set_option<T: Copy>(fd: Fd, level: c_int, name: c_int, value: T) -> Ret {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is live and `len` bytes long.
    ret(unsafe { libc::setsockopt(fd, level, name, ptr::from_ref(&value).cast(), len) })
}

/// The name of the error in SO_ERROR. Reading it clears it.
pub(crate) fn socket_error(fd: Fd) -> String {
    match option(fd, libc::SOL_SOCKET, libc::SO_ERROR).0 {
        Ok(0) => "none".into(),
        Ok(errno) => errno_name(i32::try_from(errno).expect("errno is an int")),
        Err(errno) => format!("not told: {}", errno_name(errno)),
    }
}

pub(crate) fn fcntl(fd: Fd, command: c_int, argument: c_int) -> Ret {
    // SAFETY: only commands with an integer argument are used.
    ret(unsafe { libc::fcntl(fd, command, argument) })
}

pub(crate) fn set_nonblocking(fd: Fd, on: bool) {
    let flags = fcntl(fd, libc::F_GETFL, 0).value() as c_int;
    let flags = if on {
        flags | libc::O_NONBLOCK
    } else {
        flags & !libc::O_NONBLOCK
    };
    fcntl(fd, libc::F_SETFL, flags).value();
}

/// An ioctl that reads or writes one int.
pub(crate) fn ioctl(fd: Fd, request: libc::Ioctl, value: &mut c_int) -> Ret {
    // SAFETY: only requests that take a pointer to one int are used.
    ret(unsafe { libc::ioctl(fd, request, ptr::from_mut(value)) })
}

/// FIONREAD: the number of bytes that a read would find.
pub(crate) fn readable_bytes(fd: Fd) -> Ret {
    let mut count = 0;
    let result = ioctl(fd, libc::FIONREAD, &mut count);
    Ret(result.0.map(|_| i64::from(count)))
}

pub(crate) fn pipe() -> (Fd, Fd) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    ret(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }).value();
    (ends[0], ends[1])
}

pub(crate) fn eventfd() -> Fd {
    // SAFETY: takes no pointers.
    ret(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).fd()
}

pub(crate) fn dup(fd: Fd) -> Ret {
    // SAFETY: takes no pointers.
    ret(unsafe { libc::dup(fd) })
}

pub(crate) fn dup2(fd: Fd, target: Fd) -> Ret {
    // SAFETY: takes no pointers; the cases own the targets they name.
    ret(unsafe { libc::dup2(fd, target) })
}

pub(crate) fn dup3(fd: Fd, target: Fd, flags: c_int) -> Ret {
    // SAFETY: takes no pointers; the cases own the targets they name.
    ret(unsafe { libc::dup3(fd, target, flags) })
}

pub(crate) fn fork() -> libc::pid_t {
    // SAFETY: the roles fork while they have one thread.
    ret(unsafe { libc::fork() }).value() as libc::pid_t
}

/// Waits for a child and returns how it ended, as text.
pub(crate) fn wait_for(pid: libc::pid_t) -> String {
    let mut status = 0;
    loop {
        // SAFETY: `status` has room for the status.
        match ret(unsafe { libc::waitpid(pid, &mut status, 0) }) {
            Ret(Ok(_)) => break,
            Ret(Err(libc::EINTR)) => {}
            failed => return failed.to_string(),
        }
    }
    if libc::WIFEXITED(status) {
        format!("exit {}", libc::WEXITSTATUS(status))
    } else {
        format!("signal {}", libc::WTERMSIG(status))
    }
}

/// Ends a forked child at once, without the exit handlers of the parent's program.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: takes no pointers, does not return.
    unsafe { libc::_exit(code) }
}

unsafe extern "C" {
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> isize;
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize, flags: c_int) -> isize;
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: usize,
        room: usize,
        flags: c_int,
        address: *mut libc::sockaddr,
        address_len: *mut libc::socklen_t,
    ) -> isize;
}

/// read, as a program built with _FORTIFY_SOURCE calls it.
pub(crate) fn read_chk(fd: Fd, bytes: &mut [u8]) -> Ret {
    // SAFETY: the pointer, length and room are those of one live, exclusive slice.
    size(unsafe { __read_chk(fd, bytes.as_mut_ptr().cast(), bytes.len(), bytes.len()) })
}

/// recv, as a program built with _FORTIFY_SOURCE calls it.
pub(crate) fn recv_chk(fd: Fd, bytes: &mut [u8]) -> Ret {
    // SAFETY: the pointer, length and room are those of one live, exclusive slice.
    size(unsafe { __recv_chk(fd, bytes.as_mut_ptr().cast(), bytes.len(), bytes.len(), 0) })
}

/// recvfrom, as a program built with _FORTIFY_SOURCE calls it.
pub(crate) fn recvfrom_chk(fd: Fd, bytes: &mut [u8]) -> Ret {
    let (bytes, len) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: the pointer, length and room are those of one live, exclusive slice; no address.
    size(unsafe { __recvfrom_chk(fd, bytes, len, len, 0, ptr::null_mut(), ptr::null_mut()) })
}

/// A system call by its number, through libc's `syscall()`, with a buffer.
pub(crate) fn raw(number: libc::c_long, fd: Fd, bytes: *mut u8, len: usize) -> Ret {
    // SAFETY: only calls that take a descriptor, a buffer and its length, and ignore the rest or
    // take zeroes (flags, no address), are made; the callers pass live buffers.
    ret(unsafe { libc::syscall(number, fd, bytes, len, 0, 0, 0) })
}

/// The pointer to a C string literal, for calls that take a string.
pub(crate) fn text(bytes: &CStr) -> *const libc::c_char {
    bytes.as_ptr()
}

/// A system call that no library can intercept.
///
/// # Safety
/// The requirements of the system call.
pub(crate) unsafe fn past_libc(number: libc::c_long, arguments: [usize; 6]) -> Ret {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; the kernel changes rcx and r11 beside the result (syscall(2)).
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise (syscall(2)).
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number as isize,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    Ret(match result {
        0.. => Ok(result as i64),
        _ => Err(-result as i32),
    })
}
