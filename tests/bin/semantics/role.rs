//! One of the two roles of a case: the steps that keep the roles in order, the transcript, and the
//! warm-up of a connection.

use std::fmt::Display;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use toehold_e2e::duet::{MEET_V4, ORACLE_FD, STEPS_FD};

use crate::sleeper::await_sleep;
use crate::sys::{self, Fd};

/// The role that this program plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Server,
    Client,
}

/// A role, as every case has it, with or without a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    pub(crate) side: Side,
    pub(crate) family: i32,
}

/// A role with a connected, warmed-up socket.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) role: Role,
    pub(crate) fd: Fd,
}

impl Role {
    /// Whether this is the listening program.
    pub(crate) fn server(&self) -> bool {
        self.side == Side::Server
    }

    /// Whether a network is between the roles: segments and their answers take some time.
    pub(crate) fn is_over_network(&self) -> bool {
        std::env::var_os(MEET_V4).is_some()
    }

    /// Returns once `count` bytes can be read from `fd`.
    ///
    /// Bytes may arrive a moment after the send that carried them has returned, even on loopback.
    /// So call this function before a call that looks at the bytes without waiting.
    pub(crate) fn arrived(&self, fd: Fd, count: usize) {
        let start = std::time::Instant::now();
        while sys::readable_bytes(fd).len() < count {
            assert!(start.elapsed() < ARRIVAL_MAX, "{count} bytes never arrived");
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    /// Adds a line to the transcript.
    pub(crate) fn say(&self, what: &str, seen: impl Display) {
        println!("{what} -> {seen}");
    }

    /// Returns once the other role has reached this step.
    pub(crate) fn step(&self) {
        self.tell(0);
        self.hear();
    }

    /// Like [`step`](Self::step), before a call of this thread that sleeps until the other role
    /// acts. The other role calls [`step_to_sleeper`](Self::step_to_sleeper).
    pub(crate) fn step_to_sleep(&self) {
        self.hear();
        self.tell(std::process::id());
        // SAFETY: takes no pointers.
        self.tell(unsafe { libc::gettid() }.cast_unsigned());
    }

    /// Returns when the other role's thread sleeps: the thread that called
    /// [`step_to_sleep`](Self::step_to_sleep).
    pub(crate) fn step_to_sleeper(&self) {
        self.tell(0);
        let (process, thread) = (self.hear(), self.hear());
        await_sleep(&format!("{process}/task/{thread}"), || false);
    }

    /// Sends a number to the other role, outside the connection.
    pub(crate) fn tell(&self, number: u32) {
        assert_eq!(
            sys::write(STEPS_FD, &number.to_ne_bytes()).len(),
            4,
            "the other role is gone"
        );
    }

    /// Returns once the other role's process has ended.
    pub(crate) fn until_the_other_is_gone(&self) {
        while sys::read(STEPS_FD, &mut [0; 4]).is(libc::EINTR) {}
    }

    /// Waits for any number from the other role, by a system call that the library does not
    /// intercept.
    pub(crate) fn hear_past_libc(&self) {
        let mut bytes = [0u8; 4];
        let arguments = [STEPS_FD as usize, bytes.as_mut_ptr() as usize, 4, 0, 0, 0];
        // SAFETY: `bytes` is writable for its length.
        while unsafe { sys::past_libc(libc::SYS_read, arguments) }.is(libc::EINTR) {}
    }

    /// Waits for a number from the other role.
    pub(crate) fn hear(&self) -> u32 {
        let mut bytes = [0; 4];
        let mut have = 0;
        while have < 4 {
            let got = sys::read(STEPS_FD, &mut bytes[have..]);
            if !got.is(libc::EINTR) {
                assert!(got.len() > 0, "the other role is gone");
                have += got.len();
            }
        }
        u32::from_ne_bytes(bytes)
    }

    /// Creates a listener on a free loopback port, and sends the port to the client.
    pub(crate) fn listen(&self, flags: i32) -> Fd {
        let listener = sys::socket(self.family, flags);
        sys::bind_anywhere(listener, self.family).value();
        sys::listen(listener, BACKLOG).value();
        self.tell(u32::from(
            sys::name(listener, false)
                .expect("a bound socket has a name")
                .2,
        ));
        listener
    }

    /// The port of the server's listener.
    pub(crate) fn hear_port(&self) -> u16 {
        u16::try_from(self.hear()).expect("a port")
    }

    /// Makes a blocking connection to `port`.
    pub(crate) fn connect(&self, port: u16) -> Fd {
        let fd = sys::socket(self.family, 0);
        sys::connect(fd, self.family, port).value();
        fd
    }

    /// Makes one connection in the usual way and warms it up.
    pub(crate) fn pair(self) -> Pair {
        let fd = self.meet();
        self.warm(fd);
        Pair { role: self, fd }
    }

    /// Makes one connection in the usual way: returns this role's end.
    pub(crate) fn meet(&self) -> Fd {
        if std::env::var_os("E2E_EXPRESS").is_some() {
            return self.meet_by_carrier();
        }
        self.meet_by_kernel()
    }

    /// Makes several connections through one listener. Each connection is warmed up before the next
    /// begins. Returns this role's ends.
    pub(crate) fn meet_several<const N: usize>(&self) -> [Fd; N] {
        let listener = self.server().then(|| self.listen(0));
        let port = if self.server() { 0 } else { self.hear_port() };
        [(); N].map(|()| self.meet_by(listener, port))
    }

    /// Makes one more connection through the server's listener at `port`, and warms it up: returns
    /// this role's end.
    pub(crate) fn meet_by(&self, listener: Option<Fd>, port: u16) -> Fd {
        let fd = match listener {
            Some(listener) => sys::accept(listener).fd(),
            None => self.connect(port),
        };
        self.warm(fd);
        fd
    }

    /// Makes one connection with a TCP connection of its own: returns this role's end.
    pub(crate) fn meet_by_kernel(&self) -> Fd {
        if self.server() {
            let listener = self.listen(0);
            let fd = sys::accept(listener).fd();
            sys::close(listener).value();
            fd
        } else {
            self.connect(self.hear_port())
        }
    }

    /// Makes one connection by a carrier that has already served another connection: returns this
    /// role's end. Connections are made until one uses such a carrier: on a busy host an end may be
    /// too late to pair the first one. The listener stays open, so the server may keep the carrier
    /// when it closes its end.
    fn meet_by_carrier(&self) -> Fd {
        /// The server's listener with its epoll instance. All connections of a case come by one
        /// listener: carriers serve the one with which they began.
        static LISTENER: OnceLock<[Fd; 2]> = OnceLock::new();
        static PORT: OnceLock<u16> = OnceLock::new();
        if self.server() {
            let [listener, epoll] = *LISTENER.get_or_init(|| {
                at_high_numbers(|| {
                    let listener = self.listen(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
                    let epoll = sys::epoll_create();
                    let (add, readable) = (libc::EPOLL_CTL_ADD, libc::EPOLLIN);
                    sys::epoll_ctl(epoll, add, listener, readable, 1).value();
                    [listener, epoll]
                })
            });
            // On the kernel the listener has a number below that of the connection.
            let as_listener = sys::eventfd();
            loop {
                sys::epoll_wait(epoll, 1, 20_000).0.value();
                let fd = sys::accept(listener).fd();
                if self.hear() == IS_IT {
                    sys::close(as_listener).value();
                    return fd;
                }
                send_all(fd, b"next");
                sys::read(fd, &mut [0; 8]);
                sys::close(fd).value();
                self.tell(0);
            }
        } else {
            let port = *PORT.get_or_init(|| self.hear_port());
            // Over the engine each connection has a port of its own.
            let before = std::env::var("E2E_CONNECTIONS_BEFORE");
            let before = before.map_or(usize::MAX, |number| number.parse().expect("a number"));
            let mut names = Vec::new();
            loop {
                let fd = self.connect(port);
                let name = sys::name(fd, false).expect("connected");
                let is_used = names.contains(&name) || names.len() >= before;
                if is_used || names.len() == CARRIERS_MAX {
                    if !is_used {
                        println!("no carrier was used again");
                    }
                    self.tell(IS_IT);
                    return fd;
                }
                names.push(name);
                self.tell(0);
                receive_all(fd, &mut [0; 4]);
                sys::close(fd).value();
                self.hear();
            }
        }
    }

    /// Moves enough bytes both ways for any upgrade policy. If the harness expects an upgrade,
    /// waits until it has happened. Both roles call this function; the client leads.
    pub(crate) fn warm(&self, fd: Fd) {
        if self.server() {
            loop {
                let mut request = [0; 8];
                receive_all(fd, &mut request);
                if request[0] == b'b' {
                    receive_all(fd, &mut vec![0; BULK_BYTES]);
                    send_all(fd, &vec![1; BULK_BYTES]);
                }
                send_all(fd, &request);
                if request[0] == b'e' {
                    break;
                }
            }
        } else {
            let ask = |kind: u8| {
                send_all(fd, &[kind; 8]);
                if kind == b'b' {
                    send_all(fd, &vec![0; BULK_BYTES]);
                    receive_all(fd, &mut vec![0; BULK_BYTES]);
                }
                receive_all(fd, &mut [0; 8]);
            };
            (0..200).for_each(|_| ask(b'p'));
            ask(b'b');
            for _ in 0..oracle_questions_max() {
                if oracle_says_upgraded(own_port(fd)) {
                    break;
                }
                (0..50).for_each(|_| ask(b'p'));
            }
            ask(b'e');
        }
    }
}

impl std::ops::Deref for Pair {
    type Target = Role;

    fn deref(&self) -> &Role {
        &self.role
    }
}

/// The largest number of connections before one uses a carrier again.
const CARRIERS_MAX: usize = 64;
/// Cases use descriptor numbers below this one.
const HIGH_NUMBER: Fd = 600;

/// The client's message that this connection is the wanted one.
const IS_IT: u32 = 1;

/// The number of bytes that the warm-up sends in each direction: above any threshold for a bulk
/// transfer.
const BULK_BYTES: usize = 1 << 20;

/// The longest time that sent bytes may take to arrive before the case gives up.
const ARRIVAL_MAX: std::time::Duration = std::time::Duration::from_secs(20);

/// Enough for a client that connects ten thousand times in a row.
const BACKLOG: i32 = 4096;

/// The number of questions that the client asks before it continues without an upgrade. The harness
/// reports the missing upgrade. Zero without a harness that can tell.
fn oracle_questions_max() -> usize {
    let number = std::env::var("E2E_ORACLE").ok();
    number.map_or(0, |number| {
        number.parse().expect("the harness sets a number")
    })
}

/// Whether the harness sees this role's connection as upgraded now; true if the harness cannot
/// tell.
pub(crate) fn is_upgraded_where_expected(fd: Fd) -> bool {
    let port = own_port(fd);
    std::env::var_os("E2E_ORACLE").is_none() || oracle_says_upgraded(port)
}

/// A port that identifies this connection for the harness. The client of a Unix socket has no name.
fn own_port(fd: Fd) -> u16 {
    let own = sys::name(fd, false).expect("connected").2;
    match own {
        0 => sys::name(fd, true).expect("connected").2,
        own => own,
    }
}

fn oracle_says_upgraded(port: u16) -> bool {
    ask_harness(&format!("upgraded {port}"))
}

/// Sends a question or a command to the harness, from the client: returns the answer.
pub(crate) fn ask_harness(what: &str) -> bool {
    use std::io::{Read, Write};
    // SAFETY: the harness gave us this descriptor; the stream is forgotten below, so it stays open.
    let mut oracle = unsafe { UnixStream::from_raw_fd(ORACLE_FD) };
    let mut answer = [0];
    let asked = oracle.write_all(format!("{what}\n").as_bytes());
    let answered = asked.and_then(|()| oracle.read_exact(&mut answer));
    std::mem::forget(oracle);
    answered.is_ok() && answer[0] == b'y'
}

/// Sends all of `bytes`, in as many calls as the socket needs.
pub(crate) fn send_all(fd: Fd, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        let result = sys::send(fd, &bytes[sent..], libc::MSG_NOSIGNAL);
        if result.is(libc::EAGAIN) {
            await_events(fd, libc::POLLOUT);
        } else if !result.is(libc::EINTR) {
            sent += result.value() as usize;
        }
    }
}

/// Sends `bytes`, of which the first call takes only a part. Then sends again until a call takes
/// nothing. Returns the number of bytes sent, and the last result.
pub(crate) fn send_until_refused(pair: &Pair, bytes: &[u8]) -> (usize, sys::Ret) {
    let first = sys::send(pair.fd, bytes, 0);
    let takes_a_part = first.len() > 0 && first.len() < bytes.len();
    pair.say("send takes a part", takes_a_part);
    // The buffers may grow in the meantime, up to a limit.
    let mut sent = first.len();
    loop {
        let result = sys::send(pair.fd, bytes, 0);
        if result.0.is_err() {
            return (sent, result);
        }
        sent += result.len();
    }
}

/// Fills `bytes`; the connection must not end before they are full.
pub(crate) fn receive_all(fd: Fd, bytes: &mut [u8]) {
    let mut received = 0;
    while received < bytes.len() {
        let result = sys::recv(fd, &mut bytes[received..], 0);
        if result.is(libc::EAGAIN) {
            await_events(fd, libc::POLLIN);
        } else if !result.is(libc::EINTR) {
            assert!(
                result.value() > 0,
                "the connection ended {received} of {} bytes in",
                bytes.len()
            );
            received += result.len();
        }
    }
}

/// Receives everything until the end of the stream. Returns the number of bytes, their checksum and
/// the last result.
pub(crate) fn drain(fd: Fd) -> String {
    let (mut total, mut sum) = (0, Checksum::default());
    let mut bytes = vec![0; 65_536];
    loop {
        let result = sys::recv(fd, &mut bytes, 0);
        match result.0 {
            Ok(0) => return format!("{total} bytes, checksum {sum}, then EOF"),
            Ok(_) => {
                total += result.len();
                sum.add(&bytes[..result.len()]);
            }
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) => await_events(fd, libc::POLLIN),
            Err(errno) => {
                return format!(
                    "{total} bytes, checksum {sum}, then {}",
                    sys::errno_name(errno)
                );
            }
        }
    }
}

/// Opens descriptors whose numbers are not those that the case's descriptors have on the kernel.
fn at_high_numbers<T>(open: impl FnOnce() -> T) -> T {
    let (reader, writer) = sys::pipe();
    let mut taken = vec![reader, writer];
    while taken.last() < Some(&HIGH_NUMBER) {
        taken.push(sys::dup(reader).fd());
    }
    let opened = open();
    for fd in taken {
        sys::close(fd).value();
    }
    opened
}

/// Waits, by a poll of the socket, until one of `events` is there.
pub(crate) fn await_events(fd: Fd, events: i16) {
    const FOREVER_MS: i32 = 20_000;
    loop {
        let (result, _) = sys::poll(&[(fd, events)], FOREVER_MS);
        if !result.is(libc::EINTR) {
            assert_eq!(result.value(), 1, "nothing happened on descriptor {fd}");
            return;
        }
    }
}

/// Received bytes as text; bytes that are not UTF-8 are replaced.
pub(crate) fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A position-dependent checksum (FNV-1a): it changes if bytes swap places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum(u64);

impl Checksum {
    /// Continues over `bytes`.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // The compiler inlines little in a test program: an iterator would be a call for each byte.
        let mut next = 0;
        while next < bytes.len() {
            self.0 = (self.0 ^ u64::from(bytes[next])).wrapping_mul(0x0100_0000_01b3);
            next += 1;
        }
    }

    /// The checksum of `bytes` alone.
    pub(crate) fn of(bytes: &[u8]) -> Checksum {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum
    }
}

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }
}

impl Display for Checksum {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// Bytes whose values differ from position to position.
pub(crate) fn sample(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    toehold_e2e::load::Pattern::new(len as u64).fill(0, &mut bytes);
    bytes
}

/// Sends until the connection takes no more, even after all bytes in transit have arrived. Returns
/// the number of bytes.
pub(crate) fn fill(fd: Fd) -> usize {
    const ARRIVED: std::time::Duration = std::time::Duration::from_millis(50);
    let chunk = vec![1; 1 << 16];
    let (mut sent, mut before) = (0, 0);
    loop {
        let result = sys::send(fd, &chunk, libc::MSG_DONTWAIT);
        if !result.is(libc::EAGAIN) {
            sent += usize::try_from(result.value()).expect("not negative");
            continue;
        }
        if sent == before {
            return sent;
        }
        before = sent;
        std::thread::sleep(ARRIVED);
    }
}
