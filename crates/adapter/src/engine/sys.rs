//! The few socket calls that the standard library does not have.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use super::ports::Ports;
use crate::listener::{check, owned};

/// The relay: what programs connect to instead of a remote. What it accepts is reset when we die,
/// never delayed, and has urgent bytes in their place (RFC 6093): read past them and one of the
/// program's would be lost.
pub(super) fn relay_listener() -> io::Result<TcpListener> {
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let listener = socket_for(&local)?;
    bind(&listener, local)?;
    reset_when_closed(&listener, true)?;
    prepare_carrier(&listener)?;
    set(
        &listener,
        libc::IPPROTO_TCP,
        libc::TCP_DEFER_ACCEPT,
        &SILENCE_SECONDS,
    )?;
    // SAFETY: plain system call.
    check(unsafe { libc::listen(listener.as_raw_fd(), RELAY_BACKLOG) })?;
    Ok(listener.into())
}

/// A socket bound to an address and one of `ports`, that will connect to a program's listener.
pub(super) fn bound_socket(source: IpAddr, ports: &mut Ports) -> io::Result<TcpStream> {
    let socket = socket_for(&SocketAddr::new(source, 0))?;
    let is_bound = bind_to_free(&socket, source, ports)?;
    // Only now: with it, a port of our choice would be ours although another carrier has it.
    // Programs that listen may have it with us.
    set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    if !is_bound {
        bind(&socket, SocketAddr::new(source, 0))?;
    }
    reset_when_closed(&socket, true)?;
    prepare_carrier(&socket)?;
    Ok(socket.into())
}

/// What carriers have in common; a listener's are those of what it accepts. The kernel keeps little
/// for a program that does not read: it has what its own receive buffer takes, and the rest is in
/// our ring, which the remote's window is about.
pub(super) fn prepare_carrier(socket: &impl AsRawFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1i32)?;
    set(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32)?;
    set(
        socket,
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        &UNSENT_BYTES_MAX,
    )
}

/// False when none of the next few ports is free.
fn bind_to_free(socket: &OwnedFd, source: IpAddr, ports: &mut Ports) -> io::Result<bool> {
    for port in (0..PORTS_TRIED_MAX).map_while(|_| ports.give()) {
        match bind(socket, SocketAddr::new(source, port)) {
            Ok(()) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Begins to connect; completion shows as room to write.
pub(super) fn begin_connect(socket: &TcpStream, to: SocketAddr) -> io::Result<()> {
    let (address, length) = address_of(to);
    // SAFETY: `address` is valid for `length` bytes.
    let result =
        check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) });
    match result {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
}

/// Whether closing a socket resets its connection, as it would if we died, or ends it in order.
pub(super) fn reset_when_closed(socket: &impl AsRawFd, reset: bool) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: reset.into(),
        l_linger: 0,
    };
    set(socket, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Has a socket fail once the other end is closed and the kernel waits for our end of the stream no
/// longer (`tcp_fin_timeout`, tcp(7)).
pub(super) fn tell_when_gone(socket: &impl AsRawFd) -> io::Result<()> {
    set(
        socket,
        libc::IPPROTO_TCP,
        libc::TCP_KEEPIDLE,
        &(fin_timeout_seconds() + 1),
    )?;
    set(
        socket,
        libc::IPPROTO_TCP,
        libc::TCP_KEEPINTVL,
        &GONE_PROBE_SECONDS,
    )?;
    set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32)
}

/// How long the kernel keeps a closed socket whose other end is not: asked once.
fn fin_timeout_seconds() -> libc::c_int {
    static SECONDS: OnceLock<libc::c_int> = OnceLock::new();
    *SECONDS.get_or_init(|| {
        let setting = fs::read_to_string("/proc/sys/net/ipv4/tcp_fin_timeout");
        let seconds = setting.ok().and_then(|text| text.trim().parse().ok());
        // What it is where nobody has changed it.
        seconds.unwrap_or(60).clamp(1, 3600)
    })
}

/// Sends one urgent byte. A read that knows nothing of it never sees it.
pub(super) fn send_urgent(socket: &TcpStream, byte: u8) -> io::Result<()> {
    let flags = libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one readable byte.
    let sent = unsafe { libc::send(socket.as_raw_fd(), (&raw const byte).cast(), 1, flags) };
    if sent == 1 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// True when the other end of a socket is gone.
pub(super) fn has_hung_up(socket: &impl AsRawFd) -> bool {
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: `poll` is one `pollfd`.
    let found = unsafe { libc::poll(&mut poll, 1, 0) };
    found > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

/// The network namespace of a socket; 0 where the kernel does not tell (before Linux 5.14).
pub(super) fn namespace_of(socket: &impl AsRawFd) -> u64 {
    /// Since Linux 5.14, not yet in every libc crate.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is writable for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    };
    if result == 0 { cookie } else { 0 }
}

fn socket_for(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is involved.
    owned(unsafe { libc::socket(family, kind, 0) })
}

fn bind(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    let (address, length) = address_of(to);
    // SAFETY: `address` is valid for `length` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// An address as the kernel has it, and its length.
fn address_of(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: zeroes are a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let base = &raw mut storage;
    let length = match address {
        SocketAddr::V4(v4) => {
            let out = base.cast::<libc::sockaddr_in>();
            // SAFETY: a `sockaddr_storage` holds any socket address, aligned.
            unsafe {
                (*out).sin_family = libc::AF_INET as libc::sa_family_t;
                (*out).sin_port = v4.port().to_be();
                (*out).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let out = base.cast::<libc::sockaddr_in6>();
            // SAFETY: as above.
            unsafe {
                (*out).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                (*out).sin6_port = v6.port().to_be();
                (*out).sin6_addr.s6_addr = v6.ip().octets();
            }
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn set<T>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is readable for `length` bytes.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (value as *const T).cast(),
            length,
        )
    })
}

/// Takes a connection from a listener of IPv4, non-blocking, and says whose it is; `None` when
/// nobody waits.
pub(super) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    let mut from = MaybeUninit::<libc::sockaddr_in>::zeroed();
    let mut len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: `from` is writable for `len` bytes.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            from.as_mut_ptr().cast(),
            &mut len,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    };
    if fd >= 0 {
        // SAFETY: zeroes are a `sockaddr_in`, and so is what the kernel wrote over them.
        let from = unsafe { from.assume_init() };
        let ip = Ipv4Addr::from_bits(u32::from_be(from.sin_addr.s_addr));
        let from = SocketAddr::new(ip.into(), u16::from_be(from.sin_port));
        // SAFETY: the kernel has just made it for us.
        return Ok(Some((unsafe { TcpStream::from_raw_fd(fd) }, from)));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => Ok(None),
        _ => Err(error),
    }
}

/// Bytes that the kernel keeps of what a program's receive buffer does not take.
const UNSENT_BYTES_MAX: libc::c_int = 64 << 10;
/// Programs that may wait to be taken in.
const RELAY_BACKLOG: libc::c_int = 4096;
/// Ports tried before the kernel is to choose.
const PORTS_TRIED_MAX: usize = 16;
/// How often to look whether a socket is gone, once it could be.
const GONE_PROBE_SECONDS: libc::c_int = 10;
/// How long the kernel keeps back who connects and says nothing.
const SILENCE_SECONDS: libc::c_int = 1;
