//! Makes the same calls on one connection over and over, for callgrind to count their instructions.
//!
//! `calls ROUNDS upgraded|kernel [again]`: a connection to itself; each round sends 64 bytes into
//! one end, waits for the other end with `epoll_wait`, receives, and waits once more without any
//! news. With `again` it then removes the end from the epoll instance and adds it again. With
//! `upgraded` the rounds begin when the connection has left the kernel, and there is an error when
//! it does not. With `kernel` it asks for time stamps, with which no connection leaves the kernel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const BYTES: usize = 64;
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Rounds after the memory of a channel was seen: both directions have left the kernel by then.
const ROUNDS_TO_SETTLE: u32 = 1000;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let rounds = words.next().and_then(|word| word.parse::<u32>().ok());
    let (Some(rounds), Some(path)) = (rounds, words.next()) else {
        eprintln!("usage: calls ROUNDS upgraded|kernel [again]");
        return ExitCode::from(2);
    };
    let mut ends = Ends::connect().expect("a connection over loopback");
    ends.adds_again = words.next().is_some_and(|word| word == "again");
    let started = Instant::now();
    if path == "kernel" {
        ends.stay_on_kernel();
    } else {
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

/// Both ends of a connection, and an epoll instance that has the receiving one.
struct Ends {
    sending: TcpStream,
    receiving: TcpStream,
    epoll: i32,
    adds_again: bool,
}

impl Ends {
    fn connect() -> std::io::Result<Ends> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sending = TcpStream::connect(listener.local_addr()?)?;
        let (receiving, _) = listener.accept()?;
        sending.set_nodelay(true)?;
        // SAFETY: no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let ends = Ends {
            sending,
            receiving,
            epoll,
            adds_again: false,
        };
        ends.control(libc::EPOLL_CTL_ADD);
        Ok(ends)
    }

    fn control(&self, operation: i32) {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: `event` is valid.
        let done = unsafe {
            let fd = self.receiving.as_raw_fd();
            libc::epoll_ctl(self.epoll, operation, fd, &mut event)
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    fn stay_on_kernel(&self) {
        let on: i32 = 1;
        for end in [&self.sending, &self.receiving] {
            // SAFETY: `on` is valid for its size.
            let set = unsafe {
                let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMP);
                let size = size_of_val(&on) as libc::socklen_t;
                libc::setsockopt(end.as_raw_fd(), level, name, (&raw const on).cast(), size)
            };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        }
    }

    fn round(&mut self) {
        let mut bytes = [7; BYTES];
        self.sending.write_all(&bytes).expect("sent");
        assert_eq!(self.wait(1000), 1);
        self.receiving.read_exact(&mut bytes).expect("received");
        assert_eq!(self.wait(0), 0);
        if self.adds_again {
            self.control(libc::EPOLL_CTL_DEL);
            self.control(libc::EPOLL_CTL_ADD);
        }
    }

    fn wait(&self, milliseconds: i32) -> i32 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let room = events.len() as i32;
        // SAFETY: `events` has `room` places.
        unsafe { libc::epoll_wait(self.epoll, events.as_mut_ptr(), room, milliseconds) }
    }
}

/// Whether memory of a channel is mapped here.
fn has_channel() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.contains("memfd:toehold-slab")
}
