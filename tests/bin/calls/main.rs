//! Repeats equal calls, so that callgrind can count their instructions.
//!
//! `calls ROUNDS upgraded|pinned|alone [again]`: a connection; each round sends 64 bytes into one
//! end, waits for the other end with `epoll_wait`, receives, and waits once more without any news.
//! With `again` it then removes the end from the epoll instance and adds it again. With `upgraded`
//! the rounds begin when the connection has left the kernel, and there is an error when it does
//! not. With `pinned` it asks for time stamps, with which no connection leaves the kernel. With
//! `alone` the other end is in a program without the library, which sends the bytes back.
//!
//! `calls ROUNDS short`: connections of one request each, which end before they could leave it.
//!
//! `calls ROUNDS foreign`: 64 bytes through a pipe, and in a datagram of UDP, in a program that has
//! a connection, too.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::{Duration, Instant};

const BYTES: usize = 64;
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The number of rounds after the memory of a channel was seen: both directions have left the
/// kernel by then.
const ROUNDS_TO_SETTLE: u32 = 1000;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let rounds = words.next().and_then(|word| word.parse::<u32>().ok());
    let (Some(rounds), Some(path)) = (rounds, words.next()) else {
        eprintln!("usage: calls ROUNDS upgraded|pinned|alone [again] | calls ROUNDS short|foreign");
        return ExitCode::from(2);
    };
    match path.as_str() {
        "short" => {
            let epoll = Epoll::new();
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener on loopback");
            for _ in 0..rounds {
                short_connection(&epoll, &listener);
            }
            return ExitCode::SUCCESS;
        }
        "foreign" => {
            let _connection = Ends::connect().expect("a connection over loopback");
            let mut files = Foreign::open().expect("a pipe and two sockets");
            (0..rounds).for_each(|_| files.round());
            return ExitCode::SUCCESS;
        }
        // In the child: the number is the port, and not of rounds.
        "echo" => {
            echo(rounds).expect("the other end closes first");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let ends = match path.as_str() {
        "alone" => Ends::connect_to_another_program(),
        _ => Ends::connect(),
    };
    let mut ends = ends.expect("a connection over loopback");
    ends.adds_again = words.next().is_some_and(|word| word == "again");
    let started = Instant::now();
    if path == "pinned" {
        ends.pin();
    } else if path == "upgraded" {
        while !has_channel() {
            if started.elapsed() > TIME_LIMIT {
                eprintln!("calls: the connection is still on the kernel");
                return ExitCode::FAILURE;
            }
            ends.round();
        }
    }
    for _ in 0..ROUNDS_TO_SETTLE + rounds {
        ends.round();
    }
    ExitCode::SUCCESS
}

/// The ends at which the program sends and receives, and an epoll instance that contains the
/// latter.
struct Ends {
    sending: Rc<TcpStream>,
    receiving: Rc<TcpStream>,
    epoll: Epoll,
    adds_again: bool,
}

impl Ends {
    fn connect() -> std::io::Result<Ends> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sending = TcpStream::connect(listener.local_addr()?)?;
        let (receiving, _) = listener.accept()?;
        Ends::of(Rc::new(sending), Rc::new(receiving))
    }

    /// The other end is in a child without the library, and sends all bytes back.
    fn connect_to_another_program() -> std::io::Result<Ends> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let mut child = Command::new(std::env::current_exe()?);
        child.args([&port.to_string(), "echo"]);
        child.env_remove("LD_PRELOAD").spawn()?;
        let (end, _) = listener.accept()?;
        let end = Rc::new(end);
        Ends::of(end.clone(), end)
    }

    fn of(sending: Rc<TcpStream>, receiving: Rc<TcpStream>) -> std::io::Result<Ends> {
        sending.set_nodelay(true)?;
        let ends = Ends {
            sending,
            receiving,
            epoll: Epoll::new(),
            adds_again: false,
        };
        ends.control(libc::EPOLL_CTL_ADD);
        Ok(ends)
    }

    fn control(&self, operation: i32) {
        self.epoll
            .control(operation, &*self.receiving, libc::EPOLLIN);
    }

    fn pin(&self) {
        let on: i32 = 1;
        for end in [&self.sending, &self.receiving] {
            // SAFETY: `on` is valid for its size.
            let set = unsafe {
                let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMP);
                let size = size_of_val(&on) as libc::socklen_t;
                libc::setsockopt(end.as_raw_fd(), level, name, (&raw const on).cast(), size)
            };
            check(set);
        }
    }

    fn round(&mut self) {
        let mut bytes = [7; BYTES];
        (&*self.sending).write_all(&bytes).expect("sent");
        assert_eq!(self.epoll.wait(1000), 1);
        (&*self.receiving).read_exact(&mut bytes).expect("received");
        assert_eq!(self.epoll.wait(0), 0);
        if self.adds_again {
            self.control(libc::EPOLL_CTL_DEL);
            self.control(libc::EPOLL_CTL_ADD);
        }
    }
}

/// Sends back what comes from that port, until the end.
fn echo(port: u32) -> std::io::Result<()> {
    let port = u16::try_from(port).map_err(std::io::Error::other)?;
    let mut end = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    end.set_nodelay(true)?;
    let mut bytes = [0; BYTES];
    loop {
        let got = end.read(&mut bytes)?;
        if got == 0 {
            return Ok(());
        }
        end.write_all(&bytes[..got])?;
    }
}

/// Files that are no stream sockets.
struct Foreign {
    pipe: (PipeReader, PipeWriter),
    /// Two sockets of UDP, connected to each other.
    datagrams: [UdpSocket; 2],
}

impl Foreign {
    fn open() -> std::io::Result<Foreign> {
        let new = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let datagrams = [new()?, new()?];
        for (n, one) in datagrams.iter().enumerate() {
            one.connect(datagrams[1 - n].local_addr()?)?;
        }
        Ok(Foreign {
            pipe: std::io::pipe()?,
            datagrams,
        })
    }

    fn round(&mut self) {
        let mut bytes = [7u8; BYTES];
        let (reader, writer) = (self.pipe.0.as_raw_fd(), self.pipe.1.as_raw_fd());
        let [one, other] = self.datagrams.each_ref().map(AsRawFd::as_raw_fd);
        let at = bytes.as_mut_ptr().cast::<libc::c_void>();
        let mut parts = [0, BYTES / 2].map(|begins| libc::iovec {
            iov_base: at.wrapping_byte_add(begins),
            iov_len: BYTES / 2,
        });
        // SAFETY: zeroes are a valid message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: `bytes` has `BYTES` of them, and the parts and the message name them.
        let moved = unsafe {
            [
                libc::write(writer, at, BYTES),
                libc::read(reader, at, BYTES),
                libc::writev(writer, parts.as_ptr(), 2),
                libc::readv(reader, parts.as_ptr(), 2),
                libc::send(one, at, BYTES, 0),
                libc::recv(other, at, BYTES, 0),
                libc::sendmsg(one, &message, 0),
                libc::recvmsg(other, &mut message, 0),
            ]
        };
        assert_eq!(moved, [BYTES as isize; 8]);
    }
}

struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> Epoll {
        // SAFETY: no pointers, and the descriptor is new.
        Epoll(unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) })
    }

    fn control(&self, operation: i32, socket: &impl AsRawFd, events: i32) {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: 0,
        };
        let (epoll, socket) = (self.0.as_raw_fd(), socket.as_raw_fd());
        // SAFETY: `event` is valid.
        check(unsafe { libc::epoll_ctl(epoll, operation, socket, &mut event) });
    }

    fn wait(&self, milliseconds: i32) -> i32 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let room = events.len() as i32;
        let epoll = self.0.as_raw_fd();
        // SAFETY: `events` has `room` places.
        unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, milliseconds) }
    }
}

/// A connection of one request, with the calls of wrk and of nginx: both ends are non-blocking, and
/// are registered with epoll.
///
/// Callgrind finds the function by its name.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn short_connection(epoll: &Epoll, listener: &TcpListener) {
    let mut bytes = [7; BYTES];
    let client = connecting(listener.local_addr().expect("it is bound").port());
    epoll.control(libc::EPOLL_CTL_ADD, &client, libc::EPOLLIN | libc::EPOLLOUT);
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let (any, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the address is not asked for, and the descriptor is new.
    let server = unsafe { owned(libc::accept4(listener.as_raw_fd(), any, none, flags)) };
    let (mut client, mut server) = (TcpStream::from(client), TcpStream::from(server));
    let edges = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
    epoll.control(libc::EPOLL_CTL_ADD, &server, edges);
    assert!(epoll.wait(0) > 0);
    client.write_all(&bytes).expect("sent");
    epoll.control(libc::EPOLL_CTL_MOD, &client, libc::EPOLLIN);
    assert!(epoll.wait(0) > 0);
    server.read_exact(&mut bytes).expect("received");
    server.write_all(&bytes).expect("answered");
    drop(server);
    assert!(epoll.wait(0) > 0);
    client.read_exact(&mut bytes).expect("answered");
    assert_eq!(client.read(&mut bytes).expect("ended"), 0);
}

/// A non-blocking socket, connected over loopback.
fn connecting(port: u16) -> OwnedFd {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the descriptor is new.
    let socket = unsafe { owned(libc::socket(libc::AF_INET, kind, 0)) };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the address is valid for its size.
    let connected = unsafe {
        let size = size_of_val(&address) as libc::socklen_t;
        libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size)
    };
    let error = std::io::Error::last_os_error();
    assert!(connected == 0 || error.raw_os_error() == Some(libc::EINPROGRESS));
    socket
}

/// # Safety
///
/// `fd` is an error, or a new descriptor that no other code has.
unsafe fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: as the caller says.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn check(result: i32) {
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Whether memory of a channel is mapped here.
fn has_channel() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.contains("memfd:toehold-slab")
}
