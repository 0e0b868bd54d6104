//! One role in a conversation: the descriptors of one connection, and the state of the connection.

mod bytes;
mod looks;
mod options;

use toehold_e2e::load::Pattern;

use super::SETTLED;
use super::draw::{Draw, Move, pick};
use crate::role::{Role, Side};
use crate::sys::{self, Fd};

/// The largest number of unread bytes: small enough that every buffer accepts them.
const UNREAD_MAX: usize = 32 << 10;

/// A Unix socket is writable while the memory of its unread messages is at most a quarter of its
/// buffer (`unix_writable` in `net/unix/af_unix.c`; 52 KiB by default). A ring has room for longer.
/// So messages on Unix sockets have at most this memory.
const UNIX_MEMORY_MAX: usize = 48 << 10;

/// The most memory of a call that sends `len` bytes, in two messages at most.
fn memory_of(len: usize) -> usize {
    2 * len + (2 << 10)
}

/// The results of a turn that the other role must know.
#[derive(Default)]
pub(super) struct Did {
    pub(super) sent: usize,
    pub(super) received: usize,
    pub(super) shut: bool,
    pub(super) shut_reading: bool,
    pub(super) closed: bool,
    /// The end is a reset, or a reset follows it.
    pub(super) resets: bool,
}

impl Did {
    pub(super) fn tell(&self, role: &Role) {
        role.tell(u32::try_from(self.sent).expect("few"));
        role.tell(u32::try_from(self.received).expect("few"));
        let ends = [self.shut, self.closed, self.shut_reading, self.resets];
        let bit = |(n, end)| u32::from(end) << n;
        role.tell(ends.into_iter().enumerate().map(bit).sum());
    }

    pub(super) fn hear(role: &Role) -> Did {
        let (sent, received, ends) = (role.hear() as usize, role.hear() as usize, role.hear());
        Did {
            sent,
            received,
            shut: ends & 1 != 0,
            closed: ends & 2 != 0,
            shut_reading: ends & 4 != 0,
            resets: ends & 8 != 0,
        }
    }
}

/// One role on one connection.
pub(super) struct Player {
    pub(super) role: Role,
    /// The text between the turn's number and the line's text.
    label: String,
    /// The descriptors of the connection. Not empty while this end is open.
    pub(super) fds: Vec<Fd>,
    /// The number under which the instances have the connection.
    registered: Fd,
    level: Fd,
    edge: Fd,
    outgoing: Pattern,
    pub(super) sent: usize,
    /// Bytes that are unread at this end. `theirs_unread` counts those at the other end.
    pub(super) unread: usize,
    pub(super) theirs_unread: usize,
    /// The memory of the messages that were sent since the other end had nothing unread.
    theirs_memory: usize,
    /// No more bytes arrive.
    pub(super) ended: bool,
    /// This role has shut the connection down for reading. `shut_writing`: for writing.
    pub(super) shut_reading: bool,
    shut_writing: bool,
    /// `SO_RCVLOWAT`: a receive waits for this many bytes.
    pub(super) low_water: usize,
    /// True while edges come only with bytes and with the end. A shutdown by this role, or an
    /// option that only the kernel serves, may cause one edge more.
    pub(super) exact_edges: bool,
}

impl Player {
    /// `number` makes the connection's bytes different from those of all other connections.
    pub(super) fn new(role: Role, label: String, fd: Fd, number: u64) -> Player {
        if role.is_over_network() {
            // Otherwise most turns would wait for an acknowledgement that comes 40 ms late.
            sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).value();
        }
        let epoll = |events| {
            let epoll = sys::epoll_create();
            sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, events, 7).value();
            epoll
        };
        Player {
            role,
            label,
            fds: vec![fd],
            registered: fd,
            level: epoll(libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP),
            // Not `EPOLLOUT`: an edge for buffer space may come more often than POSIX demands. An
            // edge for bytes may not.
            edge: epoll(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET),
            outgoing: Pattern::new(number << 1 | u64::from(role.side == Side::Server)),
            sent: 0,
            unread: 0,
            theirs_unread: 0,
            theirs_memory: 0,
            ended: false,
            shut_reading: false,
            shut_writing: false,
            low_water: 1,
            exact_edges: true,
        }
    }

    /// Updates the state after this role's turn.
    pub(super) fn note(&mut self, did: &Did) {
        self.note_sent(did.sent);
        self.unread -= did.received;
    }

    /// Notes that this role has sent `count` bytes.
    pub(super) fn note_sent(&mut self, count: usize) {
        if count > 0 {
            self.theirs_memory = self.memory_there() + memory_of(count);
            self.theirs_unread += count;
        }
    }

    fn memory_there(&self) -> usize {
        match self.theirs_unread {
            0 => 0,
            _ => self.theirs_memory,
        }
    }

    /// The number of bytes that a send may have now, so that the socket stays writable.
    fn room(&self) -> usize {
        let room = UNREAD_MAX.saturating_sub(self.theirs_unread);
        if self.role.family != libc::AF_UNIX {
            return room;
        }
        let taken = self.memory_there() + memory_of(0);
        room.min(UNIX_MEMORY_MAX.saturating_sub(taken) / 2)
    }

    /// Updates the state after the other role's turn. Returns when its results are visible here.
    pub(super) fn hear(&mut self, did: &Did) {
        self.unread += did.sent;
        self.theirs_unread -= did.received;
        // On a Unix socket the kernel reports each shutdown by the other end as an edge, although
        // no bytes arrive and the end is known.
        let shuts_again = did.shut && self.ended && self.role.family == libc::AF_UNIX;
        self.exact_edges &= !did.shut_reading && !shuts_again;
        if !self.ended && !did.closed {
            // After a reset the kernel counts one byte too few (tcp_inq treats the reset as a FIN).
            self.role.arrived(self.fds[0], self.unread);
        }
        if did.shut || did.closed {
            self.ended = true;
            self.await_end(libc::POLLRDHUP);
            if did.resets && self.role.is_over_network() {
                self.await_end(0);
            }
            std::thread::sleep(SETTLED);
        }
    }

    /// Returns when `event`, or the end of both directions, is visible here.
    fn await_end(&self, event: i16) {
        let (result, _) = sys::poll(&[(self.fds[0], event)], 20_000);
        assert_eq!(result.value(), 1, "the end never arrived");
    }

    /// Returns when the other end, which is gone, has answered the bytes that this role has sent: a
    /// reset may answer them.
    pub(super) fn await_answer(&self, did: &Did) {
        if did.sent > 0 && !did.closed && self.role.is_over_network() {
            self.await_end(0);
        }
        std::thread::sleep(SETTLED);
    }

    /// A turn in which this role acts alone.
    pub(super) fn act(&mut self, turn: usize, what: Move, draw: &Draw) -> Did {
        let fd = self.fds[draw.fd % self.fds.len()];
        let mut did = Did::default();
        let (call, seen) = match what {
            Move::Send => self.send(fd, draw, &mut did),
            Move::Receive => self.receive(fd, draw, &mut did),
            Move::Splice => self.splice(fd, draw, &mut did),
            Move::InChild => self.in_child(turn, fd, draw, &mut did),
            Move::DuplicateOrClose => self.duplicate_or_close(draw, 0),
            Move::Set => self.set(fd, draw),
            Move::Register => self.register(draw),
            // If an end has shut both directions down, TCP answers bytes with a reset, at once or a
            // moment later.
            Move::EndWriting if !self.shut_reading && !self.may_be_closed() => {
                self.end_writing(fd, &mut did)
            }
            Move::EndReading if !self.shut_writing => self.end_reading(fd, &mut did),
            Move::Close => self.end(draw, &mut did),
            _ => self.look(fd, draw),
        };
        self.say(turn, &call, seen);
        did
    }

    pub(super) fn say(&self, turn: usize, what: &str, seen: impl std::fmt::Display) {
        self.role.say(&format!("{turn} {}{what}", self.label), seen);
    }

    /// Whether a call that receives `count` bytes could wait for them.
    pub(super) fn waits_for(&self, count: usize) -> bool {
        self.unread < count && !self.ended && !self.shut_reading
    }

    /// Whether both directions have ended, over a network: then it depends on the time of the last
    /// acknowledgement whether the socket is closed, and a further shutdown shows that.
    fn may_be_closed(&self) -> bool {
        self.ended && self.shut_writing && self.role.is_over_network()
    }

    /// Removes one of the connection's numbers from the list. The caller then closes or replaces
    /// it.
    pub(super) fn give_up(&mut self, index: usize) -> Fd {
        let number = self.fds.swap_remove(index);
        if number == self.registered {
            // The registration moves to another number, and may report one edge more.
            self.exact_edges = false;
        }
        number
    }

    /// Closes all descriptors of the connection.
    pub(super) fn close(&mut self) -> String {
        for fd in &self.fds {
            sys::close(*fd).value();
        }
        format!("{} descriptors", self.fds.drain(..).len())
    }

    /// Closes all descriptors of this process. Another process continues with its duplicates.
    pub(super) fn hand_over(&mut self) {
        self.close();
        self.close_instances();
    }

    /// Closes the instances after the end of the connection.
    pub(super) fn leave(self) {
        self.close_instances();
    }

    fn close_instances(&self) {
        for epoll in [self.level, self.edge] {
            sys::close(epoll).value();
        }
    }

    /// A child sends or receives.
    pub(super) fn in_child(
        &mut self,
        turn: usize,
        fd: Fd,
        draw: &Draw,
        did: &mut Did,
    ) -> (String, String) {
        let (from, to) = sys::pipe();
        let child = sys::fork();
        if child == 0 {
            let (call, seen) = if draw.fd.is_multiple_of(2) {
                self.send(fd, draw, did)
            } else {
                self.receive(fd, draw, did)
            };
            self.say(turn, &format!("child: {call}"), seen);
            let counts = [did.sent as u32, did.received as u32];
            sys::write(to, counts.map(u32::to_ne_bytes).as_flattened());
            sys::exit_now(0);
        }
        let mut counts = [[0; 4]; 2];
        sys::read(from, counts.as_flattened_mut());
        let [sent, received] = counts.map(|count| u32::from_ne_bytes(count) as usize);
        (did.sent, did.received) = (sent, received);
        self.sent += sent;
        let ended = sys::wait_for(child);
        for end in [from, to] {
            sys::close(end).value();
        }
        ("child".to_owned(), ended)
    }

    /// Opens a duplicate or closes a descriptor. The number of a duplicate is at least `least`.
    pub(super) fn duplicate_or_close(&mut self, draw: &Draw, least: Fd) -> (String, String) {
        let index = draw.fd % self.fds.len();
        if self.fds.len() < 4 && draw.which.is_multiple_of(2) {
            let old = self.fds[index];
            let new = match least {
                0 => sys::dup(old),
                _ => sys::fcntl(old, libc::F_DUPFD_CLOEXEC, least),
            };
            let new = new.fd();
            self.fds.push(new);
            (format!("dup {old}"), new.to_string())
        } else if self.fds.len() > 1 {
            // This may be the number that the instances have: they continue to report its events.
            let number = self.give_up(index);
            (format!("close {number}"), sys::close(number).to_string())
        } else {
            ("nothing".to_owned(), String::new())
        }
    }

    /// Changes the events of one instance's registration, under any number of the connection.
    fn register(&self, draw: &Draw) -> (String, String) {
        let (name, epoll, always) = if draw.which.is_multiple_of(2) {
            ("level", self.level, 0)
        } else {
            ("edge", self.edge, libc::EPOLLET)
        };
        let some = [
            0,
            libc::EPOLLIN,
            libc::EPOLLIN | libc::EPOLLRDHUP,
            libc::EPOLLRDHUP,
        ];
        let events = pick(&some, draw.how) | always;
        let once = if draw.how & 64 != 0 {
            libc::EPOLLONESHOT
        } else {
            0
        };
        let result = sys::epoll_ctl(
            epoll,
            libc::EPOLL_CTL_MOD,
            self.registered,
            events | once,
            7,
        );
        (
            format!("register {name} {:#x}", events | once),
            result.to_string(),
        )
    }

    pub(super) fn end_writing(&mut self, fd: Fd, did: &mut Did) -> (String, String) {
        did.shut = true;
        self.shut_writing = true;
        self.exact_edges = false;
        let result = sys::shutdown(fd, libc::SHUT_WR);
        ("shutdown for writing".to_owned(), result.to_string())
    }

    fn end_reading(&mut self, fd: Fd, did: &mut Did) -> (String, String) {
        did.shut_reading = true;
        self.shut_reading = true;
        self.exact_edges = false;
        let result = sys::shutdown(fd, libc::SHUT_RD);
        ("shutdown for reading".to_owned(), result.to_string())
    }

    /// Ends the connection at this end: by a close, by a reset, or by a close after a shutdown, as
    /// the draw says.
    pub(super) fn end(&mut self, draw: &Draw, did: &mut Did) -> (String, String) {
        self.end_by(draw, true, did)
    }

    /// Like `end`; `in_two_steps` allows a shutdown before the close.
    pub(super) fn end_by(
        &mut self,
        draw: &Draw,
        in_two_steps: bool,
        did: &mut Did,
    ) -> (String, String) {
        did.closed = true;
        let way = draw.how / 16 % 4;
        did.resets = way == 1 || self.unread > 0;
        let linger = |seconds| {
            let linger = libc::linger {
                l_onoff: 1,
                l_linger: seconds,
            };
            sys::set_option(self.fds[0], libc::SOL_SOCKET, libc::SO_LINGER, linger);
        };
        let name = match way {
            0 if in_two_steps => {
                sys::shutdown(self.fds[0], libc::SHUT_RDWR);
                "shutdown and close"
            }
            1 => {
                linger(0);
                "reset"
            }
            2 => {
                // The end arrives whether or not the other role reads, so the close does not wait.
                linger(20);
                "lingering close"
            }
            _ => "close",
        };
        (name.to_owned(), self.close())
    }
}
