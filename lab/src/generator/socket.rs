//! Stream sockets of both families behind one type.
//!
//! Calls go through libc, as in ordinary programs: the library hooks them there.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The address of a server: `HOST:PORT`, several of them with commas between, or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// TCP.
    Tcp(String),
    /// Several ports: connections take them in turns, and a server listens on all.
    Ports(Vec<String>),
    /// AF_UNIX.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Unix(path.into()));
        }
        if text.contains(',') {
            let all = text.split(',').map(|one| match one.parse()? {
                Address::Tcp(one) => Ok(one),
                _ => Err(format!("\"{text}\": only HOST:PORT can be one of several")),
            });
            return Ok(Address::Ports(all.collect::<Result<_, String>>()?));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(text.to_owned()))
            }
            _ => Err(format!(
                "\"{text}\" is not an address; use HOST:PORT or unix:PATH"
            )),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(text) => out.write_str(text),
            Address::Ports(all) => out.write_str(&all.join(",")),
            Address::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// A listening socket.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(super) fn bind(address: &Address) -> io::Result<Listener> {
        let listener = match address {
            Address::Tcp(text) => Listener::Tcp(TcpListener::bind(text)?),
            Address::Ports(_) => return Err(io::Error::other("a listener has one address")),
            Address::Unix(path) => Listener::Unix(UnixListener::bind(path)?, path.clone()),
        };
        // std's backlog is 128. A client that opens thousands of connections fills it, and waits a
        // second for each SYN that the kernel then drops.
        // SAFETY: listen takes integers.
        check(unsafe { libc::listen(listener.fd(), BACKLOG) })?;
        Ok(listener)
    }

    pub(super) fn fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener, _) => listener.as_raw_fd(),
        }
    }

    pub(super) fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Listener::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener, _) => listener.set_nonblocking(true),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => Stream::of_tcp(listener.accept()?.0),
            Listener::Unix(listener, _) => Ok(Stream(listener.accept()?.0.into())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A connected stream.
pub(super) struct Stream(OwnedFd);

impl Stream {
    pub(super) fn connect(address: &Address) -> io::Result<Stream> {
        match address {
            Address::Tcp(text) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in text.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => return Stream::of_tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Address::Ports(all) => {
                // Relaxed: the counter publishes no other data.
                let turn = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
                Stream::connect(&Address::Tcp(all[turn % all.len()].clone()))
            }
            Address::Unix(path) => Ok(Stream(UnixStream::connect(path)?.into())),
        }
    }

    fn of_tcp(stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        Ok(Stream(stream.into()))
    }

    /// The time for which a blocking read may wait; `None` means without limit.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.unwrap_or(Duration::ZERO);
        let value = libc::timeval {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(timeout.subsec_micros()),
        };
        // SAFETY: `value` is a complete timeval and its size is given.
        check(unsafe {
            libc::setsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const value).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        })
    }

    pub(super) fn set_buffers(&self, bytes: usize) -> io::Result<()> {
        let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            // SAFETY: `value` is a complete int and its size is given.
            check(unsafe {
                libc::setsockopt(
                    self.fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const value).cast(),
                    size_of::<libc::c_int>() as libc::socklen_t,
                )
            })?;
        }
        Ok(())
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        // SAFETY: fcntl with these commands takes integers.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        check(flags)?;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(self.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })
    }

    /// Some bytes; 0 at the end.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, 0)
    }

    /// Some of the available bytes; never waits.
    pub(super) fn read_now(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, libc::MSG_DONTWAIT)
    }

    fn receive(&self, into: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        // SAFETY: `into` is writable for its length.
        let count = unsafe { libc::recv(self.fd(), into.as_mut_ptr().cast(), into.len(), flags) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Waits until `until` for bytes or the stream's end.
    pub(super) fn wait_for_bytes(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let mut wanted = libc::pollfd {
            fd: self.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `wanted` is one complete element.
        match unsafe { libc::poll(&mut wanted, 1, left.as_millis() as libc::c_int) } {
            0 => Err(io::ErrorKind::TimedOut.into()),
            -1 => again(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Sends some of the bytes.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: `bytes` is readable for its length.
        let count = unsafe {
            libc::send(
                self.fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Fills `into`; false when the stream ended before its first byte.
    pub(super) fn read_all(&self, into: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < into.len() {
            match self.read(&mut into[done..]) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) => again(error)?,
            }
        }
        Ok(true)
    }

    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.write(&bytes[done..]) {
                Ok(count) => done += count,
                Err(error) => again(error)?,
            }
        }
        Ok(())
    }

    /// Sends the first bytes of a file.
    pub(super) fn send_file(&self, file: RawFd, len: usize) -> io::Result<()> {
        let mut offset: libc::off_t = 0;
        while (offset as usize) < len {
            let left = len - offset as usize;
            // SAFETY: `offset` is valid for the call; the descriptors are ours.
            let count = unsafe { libc::sendfile(self.fd(), file, &mut offset, left) };
            if count < 0 {
                again(io::Error::last_os_error())?;
            } else if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Ends the sending direction.
    pub(super) fn finish(&self) -> io::Result<()> {
        // SAFETY: shutdown takes integers.
        check(unsafe { libc::shutdown(self.fd(), libc::SHUT_WR) })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A polling stream gets the error "not yet" and tries again at once.
fn again(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => {
            std::hint::spin_loop();
            Ok(())
        }
        _ => Err(error),
    }
}

pub(super) fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The number of connections so far that had to choose among several ports.
static NEXT_PORT: AtomicUsize = AtomicUsize::new(0);

/// Connections that may wait for `accept`; the kernel's own limit is `net.core.somaxconn`.
const BACKLOG: libc::c_int = 65_535;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
