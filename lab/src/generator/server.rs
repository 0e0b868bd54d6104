//! The server: serves each connection as its header requests.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::client::raise_descriptor_limit;
use super::event_loop::{self, EventLoop};
use super::socket::{Address, Listener, Stream};
use super::streams;
use super::wire::{self, HEADER_BYTES, Header, Job};

/// A listening server.
pub struct Server {
    /// One listener for each of its addresses.
    listeners: Vec<Listener>,
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    ///
    /// A sentence, when the address is not available.
    pub fn bind(address: &Address) -> Result<Server, String> {
        raise_descriptor_limit();
        let each = match address {
            Address::Ports(all) => all.iter().cloned().map(Address::Tcp).collect(),
            one => vec![one.clone()],
        };
        let listeners = each.iter().map(|one| {
            Listener::bind(one).map_err(|error| format!("cannot listen on {one}: {error}"))
        });
        Ok(Server {
            listeners: listeners.collect::<Result<_, _>>()?,
        })
    }

    /// The address on which the server listens; the first one if there are several.
    ///
    /// # Errors
    ///
    /// When the kernel does not report it.
    pub fn address(&self) -> io::Result<Address> {
        self.listeners[0].address()
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    ///
    /// A sentence, when the listener fails.
    pub fn serve(self) -> Result<(), String> {
        let event_loop = EventLoop::start().map_err(|error| format!("no event loop: {error}"))?;
        let waiting = self
            .watch()
            .map_err(|error| format!("cannot wait for connections: {error}"))?;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1];
        let mut at = 0;
        loop {
            match self.listeners[at].accept() {
                Ok(stream) => begin(stream, &event_loop),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let count = event_loop::wait(waiting.as_raw_fd(), &mut events, -1)
                        .map_err(|error| format!("cannot wait for connections: {error}"))?;
                    if count > 0 {
                        at = events[0].u64 as usize;
                    }
                }
                Err(error) if is_passing(&error) => thread::sleep(PAUSE),
                Err(error) => return Err(format!("cannot accept connections: {error}")),
            }
        }
    }

    /// Waits for connections like most servers, with a non-blocking listener in an epoll instance.
    fn watch(&self) -> io::Result<OwnedFd> {
        let epoll = event_loop::epoll()?;
        for (at, listener) in self.listeners.iter().enumerate() {
            listener.set_nonblocking()?;
            event_loop::add(epoll.as_raw_fd(), listener.fd(), at as u64)?;
        }
        Ok(epoll)
    }
}

/// Whether the next call may succeed: the client left, or descriptors ran out.
fn is_passing(error: &io::Error) -> bool {
    let numbers = [
        libc::EINTR,
        libc::ECONNABORTED,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| numbers.contains(&number))
}

/// Reads the header and passes the connection to the code that serves it. A connection that ends at
/// once is served here, without another thread.
fn begin(stream: Stream, event_loop: &Arc<EventLoop>) {
    let Some(header) = header_of(&stream) else {
        return;
    };
    if header.job == Job::Connect {
        // The client measures; a failure here shows as the client's error.
        let _ = stream.write_all(&[1]);
        return;
    }
    if header.shared && header.job == Job::Echo {
        let _ = event_loop.add(stream, header);
        return;
    }
    let builder = thread::Builder::new().stack_size(STACK_BYTES);
    // Without a thread the connection ends, and its client sees the end.
    let _ = builder.spawn(move || serve(&stream, &header));
}

fn header_of(stream: &Stream) -> Option<Header> {
    let give_up = Instant::now() + HEADER_TIMEOUT;
    let mut bytes = [0; HEADER_BYTES];
    let mut done = 0;
    while done < bytes.len() {
        match stream.read_now(&mut bytes[done..]) {
            Ok(0) => return None,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.wait_for_bytes(give_up).ok()?;
            }
            Err(_) => return None,
        }
    }
    let header = Header::decode(&bytes)?;
    if header.socket_buffer > 0 {
        stream.set_buffers(header.socket_buffer).ok()?;
    }
    Some(header)
}

/// Serves one connection to its end. An error ends the connection; its client reports the reason.
fn serve(stream: &Stream, header: &Header) -> io::Result<()> {
    if header.polling {
        stream.set_nonblocking()?;
    }
    match header.job {
        Job::Echo => echo(stream, header),
        Job::Sink => streams::sink(stream, header),
        Job::Source => {
            let end = Instant::now() + Duration::from_millis(u64::from(header.millis));
            streams::source(stream, header, |_| Instant::now() < end)?;
            stream.finish()?;
            // The client closes first, so that no data in flight is lost by a reset.
            while stream.read_all(&mut [0; 1])? {}
            Ok(())
        }
        Job::Connect => Ok(()),
    }
}

fn echo(stream: &Stream, header: &Header) -> io::Result<()> {
    let mut message = vec![0; header.message];
    let mut response = vec![0; header.response];
    wire::fill(&mut response);
    while stream.read_all(&mut message)? {
        if header.touch {
            std::hint::black_box(wire::sum(&message));
            wire::fill(&mut response);
        }
        stream.write_all(&response)?;
    }
    Ok(())
}

const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// Enough for the thread of a connection, and little enough for thousands of threads.
const STACK_BYTES: usize = 128 << 10;
