//! The few socket calls that the standard library does not have.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, acceptfrom_with, bind, connect, listen,
    send, socket_with, sockopt,
};

use super::ports::Ports;
use crate::listener::check;

/// The relay's listener: programs connect to it instead of a remote. A carrier that it accepts is
/// reset when we die, is never delayed, and keeps urgent bytes inline (RFC 6093): otherwise an
/// urgent byte of the program would be lost.
pub(super) fn relay_listener() -> io::Result<TcpListener> {
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let listener = socket_for(&local)?;
    bind(&listener, &local)?;
    reset_when_closed(&listener, true)?;
    prepare_carrier(&listener)?;
    set_tcp(&listener, libc::TCP_DEFER_ACCEPT, SILENCE_SECONDS)?;
    listen(&listener, RELAY_BACKLOG)?;
    Ok(listener.into())
}

/// A socket bound to an address and one of `ports` that is `fit`, if one is free. It will connect
/// to a program's listener.
pub(super) fn bound_socket(
    source: IpAddr,
    ports: &mut Ports,
    fit: impl Fn(u16) -> bool,
) -> io::Result<TcpStream> {
    let socket = socket_for(&SocketAddr::new(source, 0))?;
    let is_bound = bind_to_free(&socket, source, ports, fit)?;
    // Set only after the bind: before, it would allow us a port that another carrier has. It lets
    // listening programs use the port as well.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if !is_bound {
        bind(&socket, &SocketAddr::new(source, 0))?;
    }
    reset_when_closed(&socket, true)?;
    prepare_carrier(&socket)?;
    Ok(socket.into())
}

/// Sets the options that all carriers have in common; a listener's carriers take over those of the
/// listener. The kernel's send buffer is small: for a program that does not read, its own receive
/// buffer takes some bytes, and the rest stays in our ring, to which the remote's window refers.
pub(super) fn prepare_carrier(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_socket_oobinline(socket, true)?;
    sockopt::set_tcp_nodelay(socket, true)?;
    set_tcp(socket, libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
}

/// False when none of the next few ports is free.
fn bind_to_free(
    socket: &OwnedFd,
    source: IpAddr,
    ports: &mut Ports,
    fit: impl Fn(u16) -> bool,
) -> io::Result<bool> {
    for port in (0..PORTS_TRIED_MAX).map_while(|_| ports.give(&fit)) {
        match bind(socket, &SocketAddr::new(source, port)) {
            Ok(()) => return Ok(true),
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Begins to connect. The socket becomes writable when it is connected.
pub(super) fn begin_connect(socket: &TcpStream, to: SocketAddr) -> io::Result<()> {
    match connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sets whether closing a socket resets its connection, as our death would, or ends it in order.
pub(super) fn reset_when_closed(socket: &impl AsFd, reset: bool) -> io::Result<()> {
    let linger = reset.then_some(Duration::ZERO);
    Ok(sockopt::set_socket_linger(socket, linger)?)
}

/// Makes a socket report an error once the other end is closed and the kernel no longer waits for
/// our end of the stream (`tcp_fin_timeout`, tcp(7)).
pub(super) fn report_peer_close(socket: &impl AsFd) -> io::Result<()> {
    let idle = Duration::from_secs(fin_timeout_seconds() + 1);
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, GONE_PROBE_INTERVAL)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// The time that the kernel keeps a closed socket whose other end is open. Read once.
pub(super) fn fin_timeout_seconds() -> u64 {
    static SECONDS: OnceLock<u64> = OnceLock::new();
    *SECONDS.get_or_init(|| {
        let setting = fs::read_to_string("/proc/sys/net/ipv4/tcp_fin_timeout");
        let seconds = setting.ok().and_then(|text| text.trim().parse().ok());
        // The default value.
        seconds.unwrap_or(60).clamp(1, 3600)
    })
}

/// Sends one urgent byte. An ordinary read never returns it.
pub(super) fn send_urgent(socket: &TcpStream, byte: u8) -> io::Result<()> {
    let flags = SendFlags::OOB | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(socket, &[byte], flags)?;
    Ok(())
}

/// True when the other end of a socket is gone.
pub(super) fn has_hung_up(socket: &impl AsFd) -> bool {
    polled(socket, PollFlags::empty()).intersects(PollFlags::HUP | PollFlags::ERR)
}

/// True when a socket has room to write: it is connected.
pub(super) fn is_writable(socket: &impl AsFd) -> bool {
    polled(socket, PollFlags::OUT).contains(PollFlags::OUT)
}

fn polled(socket: &impl AsFd, wanted: PollFlags) -> PollFlags {
    let mut entry = [PollFd::new(socket, wanted)];
    let at_once = Timespec::default();
    let found = poll(&mut entry, Some(&at_once)).unwrap_or(0);
    if found > 0 {
        entry[0].revents()
    } else {
        PollFlags::empty()
    }
}

/// The network namespace of a socket; 0 where the kernel does not tell (before Linux 5.14).
pub(super) fn namespace_of(socket: &impl AsFd) -> u64 {
    crate::diag::namespace_of(socket.as_fd()).unwrap_or(0)
}

fn socket_for(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Sets an option of TCP that rustix does not know.
fn set_tcp(socket: &impl AsFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    let at = (&raw const value).cast();
    // SAFETY: `value` is readable for `length` bytes.
    check(unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, name, at, length) })
}

/// Accepts a connection from an IPv4 listener, non-blocking, with its remote address; `None` when
/// none waits.
pub(super) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match acceptfrom_with(listener, flags) {
        Ok((socket, from)) => {
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            let from = from.expect("a listener of IPv4 accepts from an address");
            Ok(Some((socket.into(), from)))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The most bytes in the kernel's send buffer that a program's receive buffer does not take.
const UNSENT_BYTES_MAX: libc::c_int = 32 << 10;
/// The most programs that may wait to be accepted.
pub(super) const RELAY_BACKLOG: i32 = 4096;
/// Ports that are tried before the kernel chooses.
const PORTS_TRIED_MAX: usize = 16;
/// The interval at which to look whether a socket is gone, once it could be.
const GONE_PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The time that the kernel holds back connections without data.
const SILENCE_SECONDS: libc::c_int = 1;
