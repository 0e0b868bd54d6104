//! One role in a conversation: its descriptors of one connection, and what it knows of it.

use toehold_e2e::load::{Pattern, Random};

use super::SETTLED;
use crate::role::{Checksum, Role, Side};
use crate::sys::{self, Fd, Ret};
use crate::transfer::{RECEIVERS, SENDERS};

/// Bytes that may wait for a reader: below anything that a buffer could refuse.
const UNREAD_MAX: usize = 32 << 10;
const LENGTHS: &[usize] = &[0, 1, 2, 7, 64, 100, 1000, 4096, 5000, 16_384];
const RECEIVE_FLAGS: &[i32] = &[
    0,
    libc::MSG_PEEK,
    libc::MSG_TRUNC,
    libc::MSG_PEEK | libc::MSG_TRUNC,
    libc::MSG_WAITALL,
    libc::MSG_PEEK | libc::MSG_WAITALL,
];

/// The numbers of one turn. Always as many, whatever is made of them.
pub(super) struct Draw {
    pub(super) actor: u64,
    pub(super) call: u64,
    pub(super) which: u64,
    how: u64,
    len: usize,
    fd: usize,
}

impl Draw {
    pub(super) fn new(script: &mut Random) -> Draw {
        Draw {
            actor: script.below(2),
            call: script.below(100),
            which: script.below(1 << 16),
            how: script.below(1 << 16),
            len: pick(LENGTHS, script.below(1 << 16)),
            fd: script.below(1 << 16) as usize,
        }
    }
}

fn pick<T: Copy>(list: &[T], number: u64) -> T {
    list[number as usize % list.len()]
}

/// The acts of a turn that the other role has to know.
#[derive(Default)]
pub(super) struct Did {
    sent: usize,
    received: usize,
    shut: bool,
    pub(super) closed: bool,
}

impl Did {
    pub(super) fn tell(&self, role: &Role) {
        role.tell(u32::try_from(self.sent).expect("few"));
        role.tell(u32::try_from(self.received).expect("few"));
        role.tell(u32::from(self.shut) | u32::from(self.closed) << 1);
    }

    pub(super) fn hear(role: &Role) -> Did {
        let (sent, received, ends) = (role.hear() as usize, role.hear() as usize, role.hear());
        Did {
            sent,
            received,
            shut: ends & 1 != 0,
            closed: ends & 2 != 0,
        }
    }
}

/// One role on one connection.
pub(super) struct Player {
    role: Role,
    /// Stands behind a turn's number, before what the role says.
    label: String,
    /// The connection's descriptors; not empty before its end.
    pub(super) fds: Vec<Fd>,
    /// The number that the instances know.
    registered: Fd,
    level: Fd,
    edge: Fd,
    outgoing: Pattern,
    sent: usize,
    /// Bytes that wait for us, and for the other role.
    unread: usize,
    theirs_unread: usize,
    /// Nothing more comes: a call that receives cannot wait.
    ended: bool,
    /// `SO_RCVLOWAT`: fewer bytes than these are waited for.
    low_water: usize,
    /// Edges come only with bytes and ends. A shutdown of our own, and options that the kernel
    /// alone serves, may be told as one more.
    pub(super) exact_edges: bool,
}

impl Player {
    /// `number` tells the bytes of a connection from those of all others.
    pub(super) fn new(role: Role, label: String, fd: Fd, number: u64) -> Player {
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
            // Room may be news more often than POSIX demands; bytes may not.
            edge: epoll(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET),
            outgoing: Pattern::new(number << 1 | u64::from(role.side == Side::Server)),
            sent: 0,
            unread: 0,
            theirs_unread: 0,
            ended: false,
            low_water: 1,
            exact_edges: true,
        }
    }

    /// Our own turn is over.
    pub(super) fn note(&mut self, did: &Did) {
        self.theirs_unread += did.sent;
        self.unread -= did.received;
    }

    /// The other's turn is over: returns when all of it can be seen here.
    pub(super) fn hear(&mut self, did: &Did) {
        self.unread += did.sent;
        self.theirs_unread -= did.received;
        if !self.ended && !did.closed {
            // After a reset the kernel counts one byte too few (tcp_inq takes it for a FIN).
            self.role.arrived(self.fds[0], self.unread);
        }
        if did.shut || did.closed {
            self.ended = true;
            let (result, _) = sys::poll(&[(self.fds[0], libc::POLLRDHUP)], 20_000);
            assert_eq!(result.value(), 1, "the end never arrived");
            std::thread::sleep(SETTLED);
        }
    }

    /// One turn.
    pub(super) fn act(&mut self, turn: usize, draw: &Draw) -> Did {
        let fd = self.fds[draw.fd % self.fds.len()];
        let mut did = Did::default();
        let (call, seen) = match draw.call {
            0..28 => self.send(fd, draw, &mut did),
            28..60 => self.receive(fd, draw, &mut did),
            60..80 => self.look(fd, draw),
            80..85 => self.in_child(turn, fd, draw, &mut did),
            85..91 => self.duplicate_or_close(draw),
            91..96 => self.set(fd, draw),
            96 => {
                did.shut = true;
                self.exact_edges = false;
                let result = sys::shutdown(fd, libc::SHUT_WR);
                ("shutdown for writing".to_owned(), result.to_string())
            }
            97 | 98 if draw.how.is_multiple_of(2) => {
                did.closed = true;
                if draw.call == 97 {
                    sys::shutdown(fd, libc::SHUT_RDWR);
                }
                ("close".to_owned(), self.close())
            }
            _ => self.register(draw),
        };
        self.say(turn, &call, seen);
        did
    }

    fn say(&self, turn: usize, what: &str, seen: impl std::fmt::Display) {
        self.role.say(&format!("{turn} {}{what}", self.label), seen);
    }

    /// One of the connection's numbers, which stands for it no more in a moment.
    pub(super) fn give_up(&mut self, index: usize) -> Fd {
        let number = self.fds.swap_remove(index);
        if number == self.registered {
            // The registration is put under another number, and may tell an edge once more.
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

    /// Closes the instances. The connection's end is over here.
    pub(super) fn leave(self) {
        for epoll in [self.level, self.edge] {
            sys::close(epoll).value();
        }
    }

    fn send(&mut self, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
        let len = draw.len.min(UNREAD_MAX.saturating_sub(self.theirs_unread));
        let mut bytes = vec![0; len];
        self.outgoing.fill(self.sent as u64, &mut bytes);
        // The call that sends two messages wants two halves.
        let senders = if len.is_multiple_of(2) && len > 0 {
            8
        } else {
            5
        };
        let (name, sender) = SENDERS[draw.which as usize % senders];
        let (name, result) = match draw.how % 3 {
            0 => ("send DONTWAIT", sys::send(fd, &bytes, libc::MSG_DONTWAIT)),
            _ => (name, sender(fd, &bytes)),
        };
        did.sent = result.len();
        self.sent += did.sent;
        (format!("{name} {len}"), result.to_string())
    }

    fn receive(&mut self, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
        let mut bytes = vec![0; draw.len];
        let mut flags = pick(RECEIVE_FLAGS, draw.which);
        let wanted = match flags & libc::MSG_WAITALL {
            0 => self.low_water.min(draw.len).max(1),
            _ => draw.len.max(1),
        };
        let waits = self.unread < wanted;
        let nonblocking = draw.how.is_multiple_of(4) || (waits && !self.ended);
        let (name, result) = if nonblocking {
            flags |= libc::MSG_DONTWAIT;
            (format!("recv {flags:#x}"), sys::recv(fd, &mut bytes, flags))
        } else if draw.how % 4 == 1 {
            (format!("recv {flags:#x}"), sys::recv(fd, &mut bytes, flags))
        } else {
            flags = 0;
            if bytes.is_empty() {
                bytes.push(0);
            }
            let (name, receiver) = RECEIVERS[(draw.how / 4) as usize % RECEIVERS.len()];
            if waits && !self.ended {
                (
                    name.to_owned(),
                    sys::recv(fd, &mut bytes, libc::MSG_DONTWAIT),
                )
            } else {
                (name.to_owned(), receiver(fd, &mut bytes))
            }
        };
        let taken = result.len().min(self.unread);
        if flags & libc::MSG_PEEK == 0 {
            did.received = taken;
        }
        let seen = if flags & libc::MSG_TRUNC != 0 {
            String::new()
        } else {
            Checksum::of(&bytes[..result.len().min(bytes.len())]).to_string()
        };
        (
            format!("{name} {}", bytes.len()),
            format!("{result} {seen}"),
        )
    }

    fn look(&self, fd: Fd, draw: &Draw) -> (String, String) {
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
        let (name, seen) = match draw.which % 9 {
            0 => ("poll", format!("{:?}", sys::poll(&[(fd, all)], 0))),
            1 => ("ppoll", format!("{:?}", sys::ppoll(&[(fd, all)], 0))),
            2 => (
                "select",
                sys::select(&[fd], &[fd], Some(0), false).to_string(),
            ),
            3 => (
                "pselect",
                sys::select(&[fd], &[fd], Some(0), true).to_string(),
            ),
            4 => ("level", format!("{:?}", sys::epoll_wait(self.level, 4, 0))),
            5 | 6 if self.exact_edges => {
                ("edge", format!("{:?}", sys::epoll_wait(self.edge, 4, 0)))
            }
            7 => ("FIONREAD", sys::readable_bytes(fd).to_string()),
            _ => ("SO_ERROR", sys::socket_error(fd)),
        };
        (name.to_owned(), seen)
    }

    /// A child of ours sends or receives.
    fn in_child(&mut self, turn: usize, fd: Fd, draw: &Draw, did: &mut Did) -> (String, String) {
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

    fn duplicate_or_close(&mut self, draw: &Draw) -> (String, String) {
        let index = draw.fd % self.fds.len();
        if self.fds.len() < 4 && draw.which.is_multiple_of(2) {
            self.fds.push(sys::dup(self.fds[index]).fd());
            ("dup".to_owned(), format!("{} of them", self.fds.len()))
        } else if self.fds.len() > 1 {
            // Be it the one that the instances know: they go on telling of it.
            let number = self.give_up(index);
            ("close one".to_owned(), sys::close(number).to_string())
        } else {
            ("nothing".to_owned(), String::new())
        }
    }

    /// Another set of events for one of the instances, under whichever descriptor it knows.
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

    /// Options that change how calls behave, but nothing's time.
    fn set(&mut self, fd: Fd, draw: &Draw) -> (String, String) {
        let on = i32::from(draw.how.is_multiple_of(2));
        let set = |level, option, value: i32| sys::set_option(fd, level, option, value);
        let (name, result): (&str, Ret) = match draw.which % 5 {
            0 => ("TCP_NODELAY", set(libc::IPPROTO_TCP, libc::TCP_NODELAY, on)),
            1 => (
                "SO_KEEPALIVE",
                set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, on),
            ),
            2 => {
                self.exact_edges = false;
                self.low_water = if on == 1 { 100 } else { 1 };
                let result = set(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1 + on * 99);
                ("SO_RCVLOWAT", result)
            }
            3 => {
                self.exact_edges = false;
                let result = set(libc::SOL_SOCKET, libc::SO_OOBINLINE, on);
                ("SO_OOBINLINE", result)
            }
            _ => {
                sys::set_nonblocking(fd, on == 1);
                ("O_NONBLOCK", Ret(Ok(0)))
            }
        };
        (format!("{name} {on}"), result.to_string())
    }
}
