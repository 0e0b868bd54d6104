//! What an interface is, by netdevice(7) and `linux/ethtool.h`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use super::error::XdpError;

/// An interface of the network namespace it was found in.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    pub(super) receive_queues: u32,
    /// It is one end of a veth.
    pub(super) is_veth: bool,
}

impl Interface {
    /// Finds an interface of this thread's network namespace.
    pub(super) fn find(name: &str) -> Result<Self, XdpError> {
        let missing = |error| XdpError::Interface(name.to_owned(), error);
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(missing(io::ErrorKind::InvalidInput.into()));
        }
        // SAFETY: no memory is involved.
        let socket =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        let socket =
            owned(socket).map_err(|error| XdpError::Setup("ask about interfaces", error))?;
        let ask = |what: libc::c_ulong| ask(&socket, name, what).map_err(missing);
        let index = ask(libc::SIOCGIFINDEX as _)?;
        let hardware = ask(libc::SIOCGIFHWADDR as _)?;
        let mtu = ask(libc::SIOCGIFMTU as _)?;
        // SAFETY: each call, which succeeded, filled in its member of the union.
        let (index, hardware, mtu) =
            unsafe { (index.ifru_ifindex, hardware.ifru_hwaddr, mtu.ifru_mtu) };
        if hardware.sa_family != libc::ARPHRD_ETHER {
            return Err(XdpError::Medium(name.to_owned()));
        }
        let mut mac = [0; 6];
        for (target, byte) in mac.iter_mut().zip(hardware.sa_data) {
            *target = byte.cast_unsigned();
        }
        Ok(Self {
            name: name.to_owned(),
            index: index.cast_unsigned(),
            mac,
            mtu: mtu.cast_unsigned(),
            receive_queues: receive_queues(&socket, name),
            is_veth: driver(&socket, name).is_ok_and(|driver| driver == *b"veth"),
        })
    }
}

/// A question that an `ifreq` answers.
fn ask(
    socket: &OwnedFd,
    name: &str,
    what: libc::c_ulong,
) -> io::Result<libc::__c_anonymous_ifr_ifru> {
    let mut request = request(name);
    // SAFETY: all that is asked here reads and writes one `ifreq`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &mut request) })?;
    Ok(request.ifr_ifru)
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is a C structure of integers and unions of them: zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (target, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *target = byte.cast_signed();
    }
    request
}

/// How many receive queues are in use; 1 where the driver does not tell.
fn receive_queues(socket: &OwnedFd, name: &str) -> u32 {
    /// `struct ethtool_channels`.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        /// Receive, transmit, other and combined: at most, and now.
        most: [u32; 4],
        now: [u32; 4],
    }
    let mut channels = Channels {
        command: ETHTOOL_GCHANNELS,
        ..Channels::default()
    };
    // SAFETY: the command writes one `ethtool_channels`.
    let told = unsafe { ethtool(socket, name, (&raw mut channels).cast()) };
    let [receive, _, _, combined] = channels.now;
    match told {
        Ok(()) => (receive + combined).max(1),
        Err(_) => 1,
    }
}

/// The first bytes of the driver's name, up to a zero.
fn driver(socket: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    /// `struct ethtool_drvinfo`: after the driver's name come five more and four numbers, which nobody asks for here.
    #[repr(C)]
    struct Driver {
        command: u32,
        name: [u8; 32],
        rest: [u8; 160],
    }
    let mut driver = Driver {
        command: ETHTOOL_GDRVINFO,
        name: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: the command writes one `ethtool_drvinfo`, of 196 bytes.
    unsafe { ethtool(socket, name, (&raw mut driver).cast()) }?;
    let name = driver.name.split(|byte| *byte == 0).next();
    Ok(name.unwrap_or_default().to_vec())
}

/// # Safety
/// `command` is writable for all that its first word asks for.
unsafe fn ethtool(socket: &OwnedFd, name: &str, command: *mut libc::c_char) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_data = command;
    // SAFETY: the caller's promise.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) })
}

pub(super) fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The error of a system call that failed.
pub(super) fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes an interface or one of its queues. Whoever had it, and is gone, has it for a moment longer: the kernel lets go of a queue by a
/// worker of its own (`xp_put_pool`).
pub(super) fn take<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BUSY_ATTEMPTS {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(BUSY_PAUSE),
            result => return result,
        }
    }
    attempt()
}

/// Together half a second.
const BUSY_ATTEMPTS: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// `linux/sockios.h`, `linux/ethtool.h`; the libc crate does not have them everywhere.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
