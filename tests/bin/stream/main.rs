//! Random, checked traffic in both directions of one connection.
//!
//! `stream listen SEED BYTES LEDGER [one-way]` prints its port and serves one connection;
//! `stream connect PORT SEED BYTES LEDGER [one-way]` is the other end. Each end sends `BYTES` bytes
//! of its own stream (0: without end) and checks those of the other's; with `one-way` the listening
//! end only receives, and the connecting end receives nothing until it has sent all. The calls,
//! their sizes, their waiting and their pauses follow from the seed. `serve ADDRESS` and `reach
//! ADDRESS` do so elsewhere than on the loopback device.
//!
//! The ledger is a file of two counters, kept up to date in shared memory: the bytes that this end
//! has sent, and the bytes that it has received and checked. The file outlives a killed process and
//! so shows how many bytes its peer must have received.

mod ledger;
mod ops;
#[path = "../semantics/sys.rs"]
#[allow(dead_code, reason = "the semantics suite uses the rest")]
mod sys;

use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd as _;
use std::thread;
use std::time::Duration;

use ledger::Ledger;
use toehold_e2e::load::{Pattern, Random};

/// Largest single transfer.
const SIZE_MAX: usize = 300_000;

/// One end of a checked connection.
struct End {
    fd: sys::Fd,
    seed: u64,
    /// 0: send until it fails.
    bytes: u64,
    sends: bool,
    receives: bool,
    ledger: Ledger,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| -> u64 { text.parse().unwrap_or_else(|_| usage()) };
    let (fd, rest, listening) = match arguments[..] {
        ["listen", ref rest @ ..] => {
            let listener = sys::socket(libc::AF_INET, 0);
            sys::bind(listener, sys::loopback(libc::AF_INET, 0)).value();
            sys::listen(listener, 1).value();
            println!("port {}", sys::name(listener, false).expect("bound").2);
            (sys::accept(listener).fd(), rest, true)
        }
        ["serve", address, ref rest @ ..] => {
            let listener = TcpListener::bind(address).expect("a free address");
            println!("port {}", listener.local_addr().expect("bound").port());
            let (stream, _) = listener.accept().expect("a connection");
            (stream.into_raw_fd(), rest, true)
        }
        ["reach", address, ref rest @ ..] => {
            let stream = TcpStream::connect(address).expect("somebody listens");
            (stream.into_raw_fd(), rest, false)
        }
        ["connect", port, ref rest @ ..] => {
            let fd = sys::socket(libc::AF_INET, 0);
            let port = u16::try_from(number(port)).unwrap_or_else(|_| usage());
            sys::connect(fd, libc::AF_INET, port).value();
            (fd, rest, false)
        }
        _ => usage(),
    };
    let (seed, bytes, ledger, one_way) = match *rest {
        [seed, bytes, ledger] => (seed, bytes, ledger, false),
        [seed, bytes, ledger, "one-way"] => (seed, bytes, ledger, true),
        _ => usage(),
    };
    let end = End {
        fd,
        // Each end has its own seed for decisions and stream; the peer's seed has the other parity.
        seed: 2 * number(seed) + u64::from(listening),
        bytes: number(bytes),
        sends: !one_way || !listening,
        receives: !one_way || listening,
        ledger: Ledger::open(ledger),
    };
    if end.seed.is_multiple_of(3) {
        sys::set_nonblocking(fd, true);
    }
    let right = thread::scope(|scope| {
        if !end.receives {
            // Not in two threads: a connection moves to shared memory only while no thread is in a
            // kernel call on it, and the receiving thread would stay in such a call.
            println!("{}", end.send());
            let (verdict, right) = end.receive();
            println!("{verdict}");
            return right;
        }
        scope.spawn(|| println!("{}", end.send()));
        let (verdict, right) = end.receive();
        println!("{verdict}");
        right
    });
    std::process::exit(i32::from(!right));
}

impl End {
    /// Sends this end's stream to its end, then shuts the direction down; returns a report.
    fn send(&self) -> String {
        if !self.sends {
            return "sent nothing".into();
        }
        let pattern = Pattern::new(self.seed);
        let mut random = Random::new(self.seed ^ 0x5eed);
        let mut sender = ops::Sender::new(self.fd);
        let mut buffer = vec![0; SIZE_MAX];
        let mut sent = 0;
        while self.bytes == 0 || sent < self.bytes {
            let mut size = random.size(SIZE_MAX);
            if self.bytes != 0 {
                size = size.min(usize::try_from(self.bytes - sent).unwrap_or(SIZE_MAX));
            }
            pattern.fill(sent, &mut buffer[..size]);
            match sender.send(&mut random, &buffer[..size]) {
                Ok(count) => sent += count as u64,
                Err(errno) => return format!("sent {sent}, then {}", sys::errno_name(errno)),
            }
            self.ledger.set_sent(sent);
            pause(&mut random);
        }
        sys::shutdown(self.fd, libc::SHUT_WR);
        format!("sent {sent}, all")
    }

    /// Receives and checks the peer's stream to its end; returns a report, and whether the stream
    /// was right.
    fn receive(&self) -> (String, bool) {
        let pattern = Pattern::new(self.seed ^ 1);
        let mut random = Random::new(self.seed ^ 0xfeed);
        let mut receiver = ops::Receiver::new(self.fd);
        let mut buffer = vec![0; SIZE_MAX];
        let mut received = 0;
        loop {
            let size = random.size(SIZE_MAX);
            let count = match receiver.receive(&mut random, &mut buffer[..size]) {
                Ok(0) => return self.ended(received, "EOF"),
                Ok(count) => count,
                Err(errno) => return self.ended(received, &sys::errno_name(errno)),
            };
            if let Some(position) = pattern.first_wrong(received, &buffer[..count]) {
                let offset = usize::try_from(position - received).expect("within the buffer");
                let found = pattern.locate(position, &buffer[offset..count], 4 << 20);
                let verdict = format!(
                    "WRONG byte at {position} ({offset} into a read of {count}, seed {}): the \
                    bytes there belong at {found:?}",
                    self.seed
                );
                return (verdict, false);
            }
            received += count as u64;
            self.ledger.set_received(received);
            pause(&mut random);
        }
    }

    fn ended(&self, received: u64, how: &str) -> (String, bool) {
        let whole = !self.receives || self.bytes == 0 || received == self.bytes;
        let missing = if whole { "" } else { ", TOO FEW" };
        (format!("received {received}, then {how}{missing}"), whole)
    }
}

/// Pauses at times, so that the other end can go to sleep.
fn pause(random: &mut Random) {
    match random.below(200) {
        0 => thread::sleep(Duration::from_micros(random.below(2000))),
        1..5 => thread::yield_now(),
        _ => {}
    }
}

fn usage() -> ! {
    eprintln!(
        "usage: stream listen SEED BYTES LEDGER [one-way] | connect PORT SEED BYTES LEDGER \
        [one-way]"
    );
    std::process::exit(2);
}
