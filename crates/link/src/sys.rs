//! The system calls of links that rustix does not offer: options and addresses of packet sockets,
//! and requests about interfaces and TAP devices. Also reads and writes of memory that another
//! process may use at the same time: rustix takes references, which forbid that.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use crate::vnet::VnetHeader;

/// The most pieces of one frame besides its metadata: the headers, and a payload that begins in one
/// ring, ends in another, and wraps around the ends of both.
pub const PARTS_MAX: usize = 5;

/// The error of a system call that failed.
fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets a socket's option, whose value is a `T`.
pub(crate) fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (at, length) = (
        (&raw const *value).cast(),
        size_of::<T>() as libc::socklen_t,
    );
    // SAFETY: `value` is readable for its length.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, length) })
}

/// The counts of frames that a packet socket has received and lost since the last call
/// (PACKET_STATISTICS).
pub(crate) fn packet_statistics(socket: BorrowedFd<'_>) -> io::Result<libc::tpacket_stats> {
    let mut statistics = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let mut length = size_of_val(&statistics) as libc::socklen_t;
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    let at = (&raw mut statistics).cast();
    // SAFETY: `statistics` is writable for `length` bytes.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, at, &mut length) })?;
    Ok(statistics)
}

/// Binds a packet socket to the frames of a protocol on an interface.
pub(crate) fn bind_packet_socket(
    socket: &OwnedFd,
    interface: libc::c_int,
    protocol: libc::c_int,
) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: (protocol as u16).to_be(),
        sll_ifindex: interface,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is readable for `length` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// `struct ifreq`, as bytes: the argument of requests about an interface (netdevice(7)).
#[repr(C, align(8))]
pub(crate) struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    /// A union in C. The request decides its meaning.
    value: [u8; size_of::<libc::ifreq>() - libc::IFNAMSIZ],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());
const _: () = assert!(align_of::<InterfaceRequest>() >= align_of::<libc::ifreq>());

/// The requests that read and write one `ifreq` and no other memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// SIOCGIFMTU.
    Mtu,
    /// SIOCGIFHWADDR.
    HardwareAddress,
    /// SIOCSIFTXQLEN.
    SetQueueLength,
    /// TUNSETIFF.
    TunAttach,
    /// TUNGETIFF.
    TunFlags,
}

impl InterfaceRequest {
    /// A request about the interface `name`.
    ///
    /// # Errors
    /// When no interface can have that name.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut request = Self::unnamed();
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    /// A request about the descriptor's interface.
    pub(crate) const fn unnamed() -> Self {
        Self {
            name: [0; libc::IFNAMSIZ],
            value: [0; size_of::<libc::ifreq>() - libc::IFNAMSIZ],
        }
    }

    /// The first `N` bytes of the value.
    pub(crate) fn value<const N: usize>(&self) -> [u8; N] {
        *self.value.first_chunk().expect("an ifreq has as many")
    }

    pub(crate) fn set_value<const N: usize>(&mut self, value: [u8; N]) {
        self.value[..N].copy_from_slice(&value);
    }

    /// Sends the request to the kernel, which writes its answer into the value.
    pub(crate) fn ask(&mut self, descriptor: &OwnedFd, request: Request) -> io::Result<()> {
        let number = match request {
            Request::Mtu => libc::SIOCGIFMTU as libc::Ioctl,
            Request::HardwareAddress => libc::SIOCGIFHWADDR as libc::Ioctl,
            Request::SetQueueLength => SIOCSIFTXQLEN,
            Request::TunAttach => libc::TUNSETIFF as libc::Ioctl,
            Request::TunFlags => libc::TUNGETIFF as libc::Ioctl,
        };
        // SAFETY: each of these requests reads and writes one `ifreq`, which `self` is.
        check(unsafe { libc::ioctl(descriptor.as_raw_fd(), number, ptr::from_mut(self)) })
    }

    /// Runs the ethtool command that `command` describes. The kernel writes its answer into
    /// `command`.
    ///
    /// # Safety
    /// `T` is the whole structure that belongs to the command's number, its first word.
    pub(crate) unsafe fn ethtool<T>(mut self, socket: &OwnedFd, command: &mut T) -> io::Result<()> {
        let address = ptr::from_mut(command).expose_provenance();
        self.set_value(address.to_ne_bytes());
        // SAFETY: SIOCETHTOOL reads one `ifreq`; the caller promises that the address in it is
        // one of memory that the command may write.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut self) })
    }
}

/// Sets which work a TAP device may leave undone on the frames that it hands over (TUNSETOFFLOAD).
pub(crate) fn set_tap_offload(tap: &OwnedFd, offload: libc::c_uint) -> io::Result<()> {
    let argument = libc::c_ulong::from(offload);
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD as _, argument) })
}

/// Reads one frame: its metadata, and its bytes into `parts`, one after the other. Returns the
/// count of readv(2): the bytes of metadata and frame.
///
/// # Panics
/// When there are more than [`PARTS_MAX`] parts.
///
/// # Safety
/// Each part names writable memory of its length that no reference covers.
pub(crate) unsafe fn read_frame(
    device: &OwnedFd,
    parts: &[(*mut u8, usize)],
) -> io::Result<(usize, VnetHeader)> {
    let mut header = [0u8; VnetHeader::BYTES];
    let (vectors, count) = vectors((header.as_mut_ptr(), header.len()), parts);
    // SAFETY: `header` is writable for its length; the caller promises it of the parts.
    let count = unsafe { libc::readv(device.as_raw_fd(), vectors.as_ptr(), count) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok((count, VnetHeader::from_bytes(header)))
}

/// Writes one frame: its metadata, and the concatenation of `parts`.
///
/// # Panics
/// When there are more than [`PARTS_MAX`] parts.
///
/// # Safety
/// Each part names readable memory of its length.
pub(crate) unsafe fn write_frame(
    device: &OwnedFd,
    header: VnetHeader,
    parts: &[(*const u8, usize)],
) -> io::Result<usize> {
    assert!(parts.len() <= PARTS_MAX, "a frame of {} parts", parts.len());
    let mut header = header.to_bytes();
    let mut writable = [(ptr::null_mut(), 0); PARTS_MAX];
    for (target, (base, len)) in writable.iter_mut().zip(parts) {
        *target = (base.cast_mut(), *len);
    }
    let (vectors, count) = vectors(
        (header.as_mut_ptr(), header.len()),
        &writable[..parts.len()],
    );
    // SAFETY: writev(2) only reads, and the caller promises that it can.
    let count = unsafe { libc::writev(device.as_raw_fd(), vectors.as_ptr(), count) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

fn vectors(
    header: (*mut u8, usize),
    parts: &[(*mut u8, usize)],
) -> ([libc::iovec; PARTS_MAX + 1], libc::c_int) {
    assert!(parts.len() <= PARTS_MAX, "a frame of {} parts", parts.len());
    let vector = |(base, len): (*mut u8, usize)| libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    };
    let mut vectors = [vector(header); PARTS_MAX + 1];
    for (target, part) in vectors[1..].iter_mut().zip(parts) {
        *target = vector(*part);
    }
    (vectors, parts.len() as libc::c_int + 1)
}

/// `linux/sockios.h`; the libc crate lacks these numbers on some platforms.
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
