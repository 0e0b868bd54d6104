//! The socket calls, with Rust's types.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use toehold_tcp::{ConnectError, Instant, InterfaceAddress, ListenError, Options};

use crate::descriptors::{Descriptor, Epoll, Watch};
use crate::socket::{Listener, Role, Socket, Stream, Wishes};
use crate::stack::Stack;

/// The result of a call, or its errno.
pub(crate) type Done = Result<c_int, c_int>;

impl Stack {
    pub(crate) fn socket(&mut self, family: c_int, kind: c_int) -> Done {
        if family != libc::AF_INET && family != libc::AF_INET6 {
            return Err(libc::EAFNOSUPPORT);
        }
        if kind & 0xf != libc::SOCK_STREAM {
            return Err(libc::EPROTONOSUPPORT);
        }
        self.engine();
        Ok(self.descriptors.add(Descriptor::Socket(Box::new(Socket {
            family,
            is_nonblocking: kind & libc::SOCK_NONBLOCK != 0,
            local: None,
            wishes: Wishes::default(),
            role: Role::Fresh,
        }))))
    }

    pub(crate) fn bind(&mut self, fd: c_int, address: SocketAddr) -> Done {
        let address = plain(address);
        if !address.ip().is_unspecified() {
            let prefix_bits = if address.is_ipv4() { 32 } else { 128 };
            self.engine().add_address(InterfaceAddress {
                address: address.ip(),
                prefix_bits,
            });
        }
        self.descriptors.socket_mut(fd)?.local = Some(address);
        Ok(0)
    }

    pub(crate) fn listen(&mut self, fd: c_int, backlog: c_int) -> Done {
        let socket = self.descriptors.socket(fd)?;
        let local = socket.local.ok_or(libc::EINVAL)?;
        let options = self.options_for(fd, false)?;
        // The queue may hold one more than the program asked for, as on the kernel.
        let backlog = backlog.max(0) as usize + 1;
        let id = match self.engine().listen(local, backlog, options) {
            Ok(id) => id,
            Err(ListenError::AddressInUse) => return Err(libc::EADDRINUSE),
            Err(_) => return Err(libc::EADDRNOTAVAIL),
        };
        self.descriptors.socket_mut(fd)?.role = Role::Listener(Listener {
            id,
            ready: Default::default(),
            arrivals: 0,
        });
        Ok(0)
    }

    /// Begins a connection. Also an error if the caller has to wait for it (EINPROGRESS, EALREADY).
    pub(crate) fn connect(&mut self, fd: c_int, remote: Option<SocketAddr>) -> Done {
        let now = self.now();
        let Some(remote) = remote else {
            return self.disconnect(fd);
        };
        let socket = self.descriptors.socket_mut(fd)?;
        match &mut socket.role {
            Role::Listener(_) => return Err(libc::EISCONN),
            Role::Stream(stream) if stream.closed.is_some() => {
                let error = stream.error.take().unwrap_or(libc::ECONNABORTED);
                socket.role = Role::Fresh;
                return Err(error);
            }
            Role::Stream(stream) if stream.is_connected => return Err(libc::EISCONN),
            Role::Stream(_) => return Err(libc::EALREADY),
            Role::Fresh => {}
        }
        let (local, wishes) = (socket.local, socket.wishes);
        let options = self.options_for(fd, true)?;
        let id = match self.engine().connect(now, local, plain(remote), options) {
            Ok(id) => id,
            Err(ConnectError::AddressInUse) => return Err(libc::EADDRINUSE),
            Err(ConnectError::AddressNotOurs) => return Err(libc::EADDRNOTAVAIL),
            Err(ConnectError::NoPortLeft) => return Err(libc::EADDRNOTAVAIL),
            Err(ConnectError::Unreachable) => return Err(libc::ENETUNREACH),
            Err(ConnectError::NoSlotLeft) => return Err(libc::ENOMEM),
        };
        let room_bytes = self.room_for(&wishes);
        self.descriptors.socket_mut(fd)?.role =
            Role::Stream(Stream::new(id, false, room_bytes, now));
        Err(libc::EINPROGRESS)
    }

    /// connect(2) with `AF_UNSPEC`: the socket becomes like a new one.
    fn disconnect(&mut self, fd: c_int) -> Done {
        let now = self.now();
        let socket = self.descriptors.socket_mut(fd)?;
        let role = std::mem::replace(&mut socket.role, Role::Fresh);
        match role {
            Role::Stream(stream) => {
                let _ = self.engine().abort(now, stream.id);
                let _ = self.engine().release(now, stream.id);
            }
            Role::Listener(listener) => self.engine().unlisten(listener.id),
            Role::Fresh => {}
        }
        Ok(0)
    }

    /// The engine's options for a connection of this socket.
    pub(crate) fn options_for(&mut self, fd: c_int, is_active: bool) -> Result<Options, c_int> {
        let wishes = self.descriptors.socket(fd)?.wishes;
        let mut options = self.settings().options(is_active);
        options.nodelay = wishes.nodelay;
        options.user_timeout = wishes.user_timeout;
        options.keepalive = wishes.keepalive.then(|| wishes.keepalive_or_default());
        if let Some(mss_max) = wishes.mss_max {
            options.mss_max = mss_max;
        }
        if let Some(bytes) = wishes.receive_bytes {
            options.receive_bytes = bytes / 2;
            options.receive_bytes_max = bytes / 2;
        }
        Ok(options)
    }

    pub(crate) fn close(&mut self, fd: c_int) -> Done {
        let now = self.now();
        if let Descriptor::Socket(socket) = self.descriptors.remove(fd)? {
            match socket.role {
                Role::Fresh => {}
                Role::Listener(listener) => {
                    for id in listener.ready {
                        let _ = self.engine().abort(now, id);
                        let _ = self.engine().release(now, id);
                    }
                    self.engine().unlisten(listener.id);
                }
                Role::Stream(stream) => {
                    if socket.wishes.close_resets {
                        let _ = self.engine().abort(now, stream.id);
                    }
                    let _ = self.engine().release(now, stream.id);
                }
            }
        }
        Ok(0)
    }

    pub(crate) fn shutdown(&mut self, fd: c_int, how: c_int) -> Done {
        let now = self.now();
        let stream = self.stream(fd)?;
        if stream.closed.is_some() {
            return Err(libc::ENOTCONN);
        }
        if how != libc::SHUT_WR {
            stream.reads_end = true;
            stream.edges_in += 1;
        }
        let id = stream.id;
        if how != libc::SHUT_RD {
            stream.writes_end = true;
            stream.uncork_at = None;
            stream.edges_out += 1;
            let _ = self.engine().finish(now, id);
        }
        Ok(0)
    }

    pub(crate) fn fcntl(&mut self, fd: c_int, command: c_int, argument: c_int) -> Done {
        let socket = self.descriptors.socket_mut(fd)?;
        match command {
            libc::F_GETFL if socket.is_nonblocking => Ok(libc::O_RDWR | libc::O_NONBLOCK),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL => {
                socket.is_nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => Ok(0),
            _ => Err(libc::EINVAL),
        }
    }

    /// ioctl(2) on queues: the number of queued bytes.
    pub(crate) fn ioctl(&mut self, fd: c_int, request: u64) -> Result<c_int, c_int> {
        const SIOCOUTQNSD: u64 = 0x894b;
        let id = match &self.descriptors.socket(fd)?.role {
            Role::Stream(stream) => stream.id,
            Role::Listener(_) => return Err(libc::EINVAL),
            Role::Fresh => return Ok(0),
        };
        let sent = self.engine().info(id).map_or(0, |info| info.sent);
        let stream = self.stream(fd)?;
        let bytes = match request {
            libc::FIONREAD => stream.received - stream.read,
            libc::TIOCOUTQ => stream.published - stream.acknowledged,
            SIOCOUTQNSD => stream.published - sent.min(stream.published),
            _ => return Err(libc::ENOTTY),
        };
        Ok(bytes as c_int)
    }

    pub(crate) fn epoll_create(&mut self) -> Done {
        Ok(self.descriptors.add(Descriptor::Epoll(Epoll::default())))
    }

    pub(crate) fn epoll_ctl(
        &mut self,
        instance: c_int,
        operation: c_int,
        fd: c_int,
        wanted: Option<(u32, u64)>,
    ) -> Done {
        self.descriptors.get(fd)?;
        let watches = &mut self.descriptors.epoll_mut(instance)?.watches;
        let watch = |wanted: Option<(u32, u64)>| {
            let (interest, data) = wanted.ok_or(libc::EFAULT)?;
            Ok::<Watch, c_int>(Watch {
                interest,
                data,
                edges_told: None,
                is_spent: false,
            })
        };
        match (operation, watches.contains_key(&fd)) {
            (libc::EPOLL_CTL_ADD, true) => return Err(libc::EEXIST),
            (libc::EPOLL_CTL_ADD, false) | (libc::EPOLL_CTL_MOD, true) => {
                watches.insert(fd, watch(wanted)?);
            }
            (libc::EPOLL_CTL_DEL, true) => {
                watches.remove(&fd);
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => return Err(libc::ENOENT),
            _ => return Err(libc::EINVAL),
        }
        Ok(0)
    }

    /// The time at which a time-out of poll(2) expires.
    pub(crate) fn deadline(&self, timeout_ms: c_int) -> Option<Instant> {
        let micros = u64::try_from(timeout_ms).ok()? * 1_000;
        Some(Instant::from_micros(self.now().as_micros() + micros))
    }

    /// The remote address of a connection, in the format of the socket's family.
    pub(crate) fn remote_of(&mut self, fd: c_int) -> Option<SocketAddr> {
        let family = self.descriptors.socket(fd).ok()?.family;
        let id = self.stream(fd).ok()?.id;
        let remote = self.engine().info(id)?.remote;
        Some(match remote.ip() {
            IpAddr::V4(v4) if family == libc::AF_INET6 => {
                SocketAddr::new(v4.to_ipv6_mapped().into(), remote.port())
            }
            _ => remote,
        })
    }
}

/// Turns an IPv4-mapped IPv6 address into an IPv4 address.
fn plain(address: SocketAddr) -> SocketAddr {
    let mapped = |v6: Ipv6Addr| v6.to_ipv4_mapped();
    match address.ip() {
        IpAddr::V6(v6) if mapped(v6).is_some() => SocketAddr::new(
            mapped(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
            address.port(),
        ),
        _ => address,
    }
}
