//! The program on the kernel's side.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};

use crate::attack::Pace;
use crate::cell::{Cell, Pattern, REQUEST_BYTES, Role};
use crate::engine::SERVICE;
use crate::stream::Stream;

/// Longer than any wait for a timer that a connection survives on these links.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);
const PIECE_BYTES: usize = 64 * 1024;
/// For a program that rests. The kernel counts twice as much, and does not enlarge the buffer later
/// (socket(7)).
const RESTING_BUFFER_BYTES: usize = 128 * 1024;
const NAP: Duration = Duration::from_millis(5);

/// The program: one thread for each worker.
pub(crate) struct Program {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The address on which the program listens, if it listens.
    pub(crate) address: Option<SocketAddr>,
}

struct Shared {
    cell: Cell,
    listener: Option<TcpListener>,
    /// Connections begun and ended, bytes sent and received.
    begun: AtomicUsize,
    ended: AtomicUsize,
    sent: AtomicU64,
    received: AtomicU64,
    may_read: AtomicBool,
    /// The error with which a worker gave up.
    failure: Mutex<Option<io::Error>>,
    /// The pace of the attacker, if there is one.
    pace: Option<Arc<Pace>>,
    /// The client's first bytes go with the SYN.
    has_fast_open: bool,
}

impl Program {
    /// Starts the program, in the network of the calling thread.
    pub(crate) fn start(
        cell: Cell,
        pace: Option<Arc<Pace>>,
        has_fast_open: bool,
    ) -> io::Result<Self> {
        let listener = match cell.role {
            Role::Client => Some(TcpListener::bind((cell.kernel_address(), 0))?),
            Role::Server => None,
        };
        if let Some(listener) = &listener {
            limit_buffer(cell, listener)?;
        }
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let shared = Arc::new(Shared {
            cell,
            listener,
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            may_read: AtomicBool::new(cell.pattern != Pattern::KernelRests),
            failure: Mutex::new(None),
            pace,
            has_fast_open,
        });
        let worker = || {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if let Err(error) = shared.run_worker() {
                    *shared.failure.lock().expect("nobody panics with it") = Some(error);
                }
            })
        };
        let workers = (0..cell.workers()).map(|_| worker()).collect();
        Ok(Self {
            shared,
            workers,
            address,
        })
    }

    /// Lets a program that rested read.
    pub(crate) fn wake(&self) {
        self.shared.may_read.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Returns an error if something went wrong so far.
    pub(crate) fn check(&self) -> Result<(), String> {
        let failure = self.shared.failure.lock().expect("nobody panics with it");
        match &*failure {
            Some(error) => Err(format!("the kernel's program: {error}")),
            None => Ok(()),
        }
    }

    pub(crate) fn describe(&self) -> String {
        let shared = &self.shared;
        format!(
            "kernel's program: {} of {} connections over, {} begun; {} bytes sent, {} received; \
            {} of {} workers over",
            shared.ended.load(Ordering::Relaxed),
            shared.cell.connections(),
            shared
                .begun
                .load(Ordering::Relaxed)
                .min(shared.cell.connections()),
            shared.sent.load(Ordering::Relaxed),
            shared.received.load(Ordering::Relaxed),
            self.workers
                .iter()
                .filter(|worker| worker.is_finished())
                .count(),
            self.workers.len(),
        )
    }
}

impl Shared {
    fn await_salvo(&self) {
        if let Some(pace) = &self.pace {
            pace.await_salvo();
        }
    }

    fn run_worker(&self) -> io::Result<()> {
        if self.cell.pattern == Pattern::Short {
            self.await_salvo();
        }
        // Relaxed: a count that nothing else depends on.
        while self.begun.fetch_add(1, Ordering::Relaxed) < self.cell.connections() {
            let stream = match &self.listener {
                Some(listener) => listener.accept()?.0,
                None => self.connect()?,
            };
            limit_buffer(self.cell, &stream)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Exchange::new(self, &stream)?.run()?;
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Shared {
    fn connect(&self) -> io::Result<TcpStream> {
        let remote = SocketAddr::new(self.cell.engine_address(), SERVICE);
        if !self.has_fast_open {
            return TcpStream::connect(remote);
        }
        let family = match remote {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
        let on: libc::c_int = 1;
        // SAFETY: the option is an int, readable.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_FASTOPEN_CONNECT,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        rustix::net::connect(&socket, &remote)?;
        Ok(socket.into())
    }
}

/// One connection.
struct Exchange<'a> {
    shared: &'a Shared,
    stream: &'a TcpStream,
    outgoing: Stream,
    incoming: Stream,
    received: u64,
}

impl<'a> Exchange<'a> {
    fn new(shared: &'a Shared, stream: &'a TcpStream) -> io::Result<Self> {
        let is_client = shared.cell.role == Role::Server;
        let client = if is_client {
            stream.local_addr()?
        } else {
            stream.peer_addr()?
        };
        Ok(Self {
            shared,
            stream,
            outgoing: Stream::new(client.port(), is_client),
            incoming: Stream::new(client.port(), !is_client),
            received: 0,
        })
    }

    fn run(mut self) -> io::Result<()> {
        let all = self.shared.cell.bytes();
        let is_client = self.shared.cell.role == Role::Server;
        match self.shared.cell.pattern {
            Pattern::Requests => {
                for at in (0..all).step_by(REQUEST_BYTES as usize) {
                    let end = all.min(at + REQUEST_BYTES);
                    self.shared.await_salvo();
                    if is_client {
                        self.send(at, end)?;
                        self.receive(end)?;
                    } else {
                        self.receive(end)?;
                        self.send(at, end)?;
                    }
                }
                self.stream.shutdown(Shutdown::Write)?;
            }
            Pattern::HalfClose if !is_client => {
                self.receive(all)?;
                self.receive_end()?;
                self.send(0, all)?;
                return self.stream.shutdown(Shutdown::Write);
            }
            Pattern::Short | Pattern::HalfClose => {
                self.send(0, all)?;
                self.stream.shutdown(Shutdown::Write)?;
                self.receive(all)?;
            }
            Pattern::Bulk | Pattern::KernelRests | Pattern::EngineRests => self.both_ways(all)?,
        }
        self.receive_end()
    }

    fn both_ways(&mut self, all: u64) -> io::Result<()> {
        thread::scope(|scope| {
            let (shared, stream, outgoing) = (self.shared, self.stream, self.outgoing);
            let writing = scope.spawn(move || {
                send(shared, stream, outgoing, 0, all)?;
                stream.shutdown(Shutdown::Write)
            });
            while !self.shared.may_read.load(Ordering::Acquire) {
                thread::sleep(NAP);
            }
            let read = self.receive(all);
            writing.join().expect("the writer does not panic")?;
            read
        })
    }

    fn send(&self, from: u64, to: u64) -> io::Result<()> {
        send(self.shared, self.stream, self.outgoing, from, to)
    }

    fn receive(&mut self, to: u64) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_BYTES.min((to - self.received) as usize)];
        while self.received < to {
            let most = buffer.len().min((to - self.received) as usize);
            let count = uninterrupted(|| (&mut &*self.stream).read(&mut buffer[..most]))?;
            if count == 0 {
                let text = format!("the stream ends after {} of {to} bytes", self.received);
                return Err(io::Error::other(text));
            }
            if let Err(at) = self.incoming.check(self.received, &buffer[..count]) {
                return Err(io::Error::other(format!("byte {at} is not what was sent")));
            }
            self.received += count as u64;
            self.shared
                .received
                .fetch_add(count as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn receive_end(&mut self) -> io::Result<()> {
        match uninterrupted(|| (&mut &*self.stream).read(&mut [0]))? {
            0 => Ok(()),
            _ => Err(io::Error::other("more bytes than were sent")),
        }
    }
}

/// Repeats a call that was interrupted. A call with a time limit is interrupted when its process is
/// stopped and continued (signal(7)).
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Keeps the kernel from buffering all the bytes for a program that rests. Connections inherit the
/// limit from their listener.
fn limit_buffer(cell: Cell, socket: &impl AsFd) -> io::Result<()> {
    if cell.pattern != Pattern::KernelRests {
        return Ok(());
    }
    let bytes = RESTING_BUFFER_BYTES;
    Ok(rustix::net::sockopt::set_socket_recv_buffer_size(
        socket, bytes,
    )?)
}

fn send(
    shared: &Shared,
    mut stream: &TcpStream,
    bytes: Stream,
    from: u64,
    to: u64,
) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let piece = bytes.piece(at, (to - at) as usize);
        let count = uninterrupted(|| stream.write(piece))?;
        at += count as u64;
        shared.sent.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(())
}
