//! Programs that connect to the relay, and their requests.
//!
//! ```text
//!   connect ──► relay ──► preamble there? ──► its token known? ──► Wanted
//!                             │ not yet           │ no
//!                             ▼                   ▼
//!                           Silent ──(2 s)──►  reset
//! ```
//!
//! The relay's socket makes the kernel hold back connections without data (`TCP_DEFER_ACCEPT`). So
//! accepted connections have usually sent their preamble.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toehold_channel::offload::Address;
use toehold_channel::preamble::{ConnectPreamble, PREAMBLE_BYTES};
use toehold_channel::rendezvous::unmapped;

use super::poller::{Event, Poller, Source};
use super::silent::{Silent, TIMEOUT};
use super::tokens::Tokens;
use super::{ConnectTimeouts, Request, sys};

/// Programs that are accepted before others have their turn.
const PROGRAMS_PER_TURN: usize = 256;

/// A carrier and its request.
pub(super) type Wanted = (Request, TcpStream);

#[derive(Debug)]
pub(super) struct Arrivals {
    relay: TcpListener,
    tokens: Arc<Tokens>,
    silent: Silent<Carrier>,
    /// Of silent carriers, by their numbers.
    poller: Poller,
    events: Vec<Event>,
    accepted: u64,
    refused: u64,
}

/// A carrier, and the bytes of its preamble so far.
#[derive(Debug)]
struct Carrier {
    socket: TcpStream,
    program: SocketAddr,
    said: [u8; PREAMBLE_BYTES],
    len: usize,
}

impl Arrivals {
    /// Listens at a port of the kernel's choice.
    ///
    /// # Errors
    /// When the kernel has no descriptors left.
    pub(super) fn new(tokens: Arc<Tokens>) -> io::Result<Arrivals> {
        Ok(Arrivals {
            relay: sys::relay_listener()?,
            tokens,
            silent: Silent::default(),
            poller: Poller::new()?,
            events: Vec::new(),
            accepted: 0,
            refused: 0,
        })
    }

    /// Accepts programs, and returns those with a complete preamble.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Wanted> {
        let mut all = Vec::new();
        for _ in 0..PROGRAMS_PER_TURN {
            // Without free descriptors the others wait in the backlog.
            let Ok(Some((socket, program))) = sys::accept(&self.relay) else {
                break;
            };
            self.accepted += 1;
            let mut carrier = Carrier::new(socket, program);
            match carrier.hear() {
                Ok(true) => all.extend(self.judge(carrier)),
                Ok(false) => self.wait_for(carrier, now),
                Err(_) => self.refused += 1,
            }
        }
        all
    }

    /// Accepts all programs that wait now. Returns those with a complete preamble.
    pub(super) fn take_waiting(&mut self) -> Vec<Wanted> {
        const TURNS_MAX: usize = sys::RELAY_BACKLOG as usize / PROGRAMS_PER_TURN + 1;
        let mut all = Vec::new();
        for _ in 0..TURNS_MAX {
            let before = self.accepted;
            all.extend(self.take(Instant::now()));
            if self.accepted - before < PROGRAMS_PER_TURN as u64 {
                break;
            }
        }
        all
    }

    /// Returns carriers that were silent before and have a complete preamble now.
    pub(super) fn take_late(&mut self) -> Vec<Wanted> {
        let mut events = std::mem::take(&mut self.events);
        let mut all = Vec::new();
        // Events that do not fit now come again.
        let _ = self.poller.wait(&mut events, Some(Duration::ZERO));
        for event in events.drain(..) {
            let number = number_of(event.source);
            let Some(carrier) = self.silent.get_mut(number) else {
                continue;
            };
            let heard = carrier.hear();
            if let Ok(false) = heard {
                continue;
            }
            let carrier = self.silent.remove(number).expect("just seen");
            self.poller.unwatch(carrier.socket.as_fd());
            match heard {
                Ok(_) => all.extend(self.judge(carrier)),
                Err(_) => self.refused += 1,
            }
        }
        self.events = events;
        all
    }

    /// Resets carriers that have been silent for too long.
    pub(super) fn forget_old(&mut self, now: Instant) {
        if !self.silent.is_empty() {
            self.refused += self.silent.forget_old(now) as u64;
        }
    }

    fn wait_for(&mut self, carrier: Carrier, now: Instant) {
        let source = source_of(self.silent.next_number());
        match self.poller.watch_changes(carrier.socket.as_fd(), source) {
            Ok(()) => self.refused += self.silent.insert(carrier, now) as u64,
            Err(_) => self.refused += 1,
        }
    }

    /// The request of a carrier with a complete preamble; `None` without a valid token.
    fn judge(&mut self, carrier: Carrier) -> Option<Wanted> {
        let preamble = ConnectPreamble::parse(&carrier.said);
        let holder = preamble.and_then(|preamble| self.tokens.holder(preamble.token));
        let Some((preamble, holder)) = preamble.zip(holder) else {
            self.refused += 1;
            return None;
        };
        let request = Request {
            holder,
            carrier: carrier.program,
            remote: spoken(preamble.remote),
            local_port: preamble.local_port,
            is_seed: preamble.is_seed,
            is_fast_open: preamble.is_fast_open,
            is_deferred: preamble.is_deferred,
            connect_timeouts: ConnectTimeouts::of(&preamble),
        };
        Some((request, carrier.socket))
    }

    /// Readable when programs wait.
    pub(super) fn relay(&self) -> BorrowedFd<'_> {
        self.relay.as_fd()
    }

    /// Readable when bytes come on silent carriers.
    pub(super) fn late(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// The address to which programs connect.
    ///
    /// # Errors
    /// The errors of `getsockname`.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.relay.local_addr()
    }

    /// The relay's network namespace.
    pub(super) fn namespace(&self) -> u64 {
        sys::namespace_of(&self.relay)
    }

    /// Time until the next look for carriers that have been silent for too long.
    pub(super) fn timeout(&self) -> Option<Duration> {
        (!self.silent.is_empty()).then_some(TIMEOUT / 2)
    }

    /// Carriers that were reset because of a wrong or late preamble.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}

impl Carrier {
    fn new(socket: TcpStream, program: SocketAddr) -> Carrier {
        Carrier {
            socket,
            program,
            said: [0; PREAMBLE_BYTES],
            len: 0,
        }
    }

    /// Reads more of the preamble; true when it is complete. No further byte is read, because the
    /// next bytes are the program's.
    fn hear(&mut self) -> io::Result<bool> {
        while self.len < PREAMBLE_BYTES {
            match self.socket.read(&mut self.said[self.len..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.len += count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(false),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(true)
    }
}

pub(super) fn spoken(address: Address) -> SocketAddr {
    let ip = unmapped(address.ip).map_or(IpAddr::from(address.ip), IpAddr::from);
    SocketAddr::new(ip, address.port)
}

/// A number as the poller carries it: 63 bits of it.
fn source_of(number: u64) -> Source {
    Source::Flow(number as u32, (number >> 32) as u32)
}

fn number_of(source: Source) -> u64 {
    match source {
        Source::Flow(low, high) => u64::from(high) << 32 | u64::from(low),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Holder;
    use crate::registry::{ClientId, TableId};
    use std::io::Write;
    use std::net::Shutdown;
    use toehold_channel::rendezvous::mapped;

    const CLIENT: ClientId = ClientId(7);
    const HOLDER: Holder = Holder {
        client: CLIENT,
        family: TableId(5),
    };

    fn relay() -> (Arrivals, ConnectPreamble) {
        let tokens = Arc::new(Tokens::default());
        let token = tokens.give(HOLDER).expect("random numbers");
        let arrivals = Arrivals::new(tokens).expect("a relay");
        let remote = Address {
            ip: mapped([10, 0, 0, 1]),
            port: 80,
        };
        let preamble = ConnectPreamble {
            token,
            remote,
            local_port: 0,
            is_seed: false,
            is_fast_open: false,
            is_deferred: false,
            syn_retries_max: None,
            user_timeout_ms: None,
        };
        (arrivals, preamble)
    }

    /// A program that sends `words`, and its address.
    fn program(arrivals: &Arrivals, words: &[u8]) -> (TcpStream, SocketAddr) {
        let address = arrivals.address().expect("bound");
        let mut program = TcpStream::connect(address).expect("connected");
        program.write_all(words).expect("room");
        let own = program.local_addr().expect("connected");
        (program, own)
    }

    /// Waits until one of the relay's descriptors is readable.
    fn await_readable(fd: BorrowedFd<'_>) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let mut entry = [PollFd::new(&fd, PollFlags::IN)];
        assert_eq!(poll(&mut entry, Some(&limit)), Ok(1), "readable");
    }

    /// Takes what has arrived at the relay, once something has.
    fn arrived(arrivals: &mut Arrivals) -> Vec<Wanted> {
        await_readable(arrivals.relay());
        arrivals.take(Instant::now())
    }

    /// Takes what silent ones have said, once one has spoken.
    fn spoke(arrivals: &mut Arrivals) -> Vec<Wanted> {
        await_readable(arrivals.late());
        arrivals.take_late()
    }

    fn is_reset(mut program: TcpStream) -> bool {
        let read = program.read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    }

    #[test]
    fn program_that_says_what_it_wants_is_handed_over() {
        let (mut arrivals, preamble) = relay();
        let mut words = preamble.to_bytes().to_vec();
        words.extend(b"data");
        let (_program, own) = program(&arrivals, &words);
        let (request, carrier) = arrived(&mut arrivals).pop().expect("one");
        assert_eq!((request.holder, request.carrier), (HOLDER, own));
        assert_eq!(request.remote, "10.0.0.1:80".parse().expect("address"));
        let mut rest = [0; 9];
        let len = (&carrier).read(&mut rest).expect("what follows");
        assert_eq!(&rest[..len], b"data");
        assert_eq!(arrivals.refused(), 0);
    }

    #[test]
    fn words_in_pieces_are_put_together() {
        let (mut arrivals, preamble) = relay();
        let words = preamble.to_bytes();
        let (mut program, _) = program(&arrivals, &words[..1]);
        assert!(arrived(&mut arrivals).is_empty());
        assert!(arrivals.timeout().is_some());
        program.write_all(&words[1..20]).expect("room");
        assert!(spoke(&mut arrivals).is_empty());
        program.write_all(&words[20..]).expect("room");
        let wanted = spoke(&mut arrivals);
        assert_eq!(wanted.len(), 1);
        assert!(arrivals.timeout().is_none());
        // These bytes belong to the connection.
        program.write_all(b"data").expect("room");
        let mut data = [0; 4];
        let (_, carrier) = &wanted[0];
        carrier.set_nonblocking(false).expect("a socket");
        { carrier }.read_exact(&mut data).expect("data");
        assert!(arrivals.take_late().is_empty());
        let mut events = Vec::new();
        let polled = arrivals.poller.wait(&mut events, Some(Duration::ZERO));
        polled.expect("an epoll instance");
        assert!(events.is_empty());
    }

    #[test]
    fn nothing_is_done_without_a_token() {
        let (mut arrivals, preamble) = relay();
        let [first, second] = preamble.token;
        let guesses = [
            [0, 0],
            [second, first],
            [first ^ 1, second],
            [first, second ^ 1 << 63],
        ];
        for token in guesses {
            let (program, _) =
                program(&arrivals, &ConnectPreamble { token, ..preamble }.to_bytes());
            assert!(arrived(&mut arrivals).is_empty());
            assert!(is_reset(program), "{token:?}");
        }
        arrivals.tokens.take_back(preamble.token);
        let (program, _) = program(&arrivals, &preamble.to_bytes());
        assert!(arrived(&mut arrivals).is_empty());
        assert!(is_reset(program), "a token that was taken back");
        assert_eq!(arrivals.refused(), 1 + guesses.len() as u64);
    }

    /// More than a turn's.
    #[test]
    fn programs_that_waited_when_their_client_ended_are_handed_over() {
        let (mut arrivals, preamble) = relay();
        let count = PROGRAMS_PER_TURN + 1;
        let words = preamble.to_bytes();
        let programs: Vec<_> = (0..count).map(|_| program(&arrivals, &words)).collect();
        assert_eq!(arrivals.tokens.leave(CLIENT), Some(preamble.token));
        let wanted = arrivals.take_waiting();
        assert_eq!((wanted.len(), arrivals.refused()), (count, 0));
        assert!(wanted.iter().all(|(request, _)| request.holder == HOLDER));
        drop(programs);
    }

    #[test]
    fn end_in_the_middle_and_nonsense_are_refused() {
        let (mut arrivals, preamble) = relay();
        let words = preamble.to_bytes();
        let (short, _) = program(&arrivals, &words[..PREAMBLE_BYTES - 1]);
        short.shutdown(Shutdown::Write).expect("connected");
        assert!(arrived(&mut arrivals).is_empty());
        while arrivals.refused() == 0 {
            assert!(spoke(&mut arrivals).is_empty());
        }
        let (program, _) = program(&arrivals, &[b'x'; 100]);
        assert!(arrived(&mut arrivals).is_empty());
        assert!(is_reset(program));
        assert_eq!(arrivals.refused(), 2);
    }

    #[test]
    fn silent_carriers_are_reset_in_time() {
        let (mut arrivals, preamble) = relay();
        let (program, _) = program(&arrivals, &preamble.to_bytes()[..8]);
        assert!(arrived(&mut arrivals).is_empty());
        let now = Instant::now();
        arrivals.forget_old(now);
        assert_eq!(arrivals.refused(), 0);
        arrivals.forget_old(now + TIMEOUT);
        assert!(is_reset(program));
        assert_eq!((arrivals.refused(), arrivals.timeout()), (1, None));
    }

    #[test]
    fn numbers_survive_the_poller() {
        for number in [0, 1, u64::from(u32::MAX) + 5, u64::MAX >> 1] {
            assert_eq!(number_of(source_of(number)), number);
        }
    }
}
