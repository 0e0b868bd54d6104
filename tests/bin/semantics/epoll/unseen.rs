//! Waits by direct system calls, which a library in front of libc does not see.

use super::{ADD, IN, OUT, now, seen};
use crate::role::{Checksum, Role, await_events, receive_all, sample, send_all};
use crate::sys::{self, Fd};

/// Long enough on any machine. Short enough that a lost wake-up becomes a line of the transcript.
const TIME_LIMIT_MS: i64 = 5_000;
const LEN: usize = 96 << 20;
/// After this many useless wake-ups in a row, the program is in a busy loop.
const CIRCLES_MAX: usize = 1_000;

/// Runs an event loop past libc with heavy traffic in both directions. The loop asks the kernel for
/// each readiness event.
pub(super) fn heavy(role: &Role) {
    let fd = role.meet();
    sys::set_nonblocking(fd, true);
    let outcome = if role.server() {
        echo(fd)
    } else {
        exchange(fd)
    };
    role.say("outcome", outcome);
    role.step();
}

/// The events of `fd` that the kernel reports.
fn wait(fd: Fd, events: i16) -> Option<i16> {
    Some(sys::poll_past_libc(fd, events, TIME_LIMIT_MS)).filter(|found| *found != 0)
}

/// The largest number of calls for one readiness event. The loop calls until a call moves fewer
/// bytes than it asked for, as libuv does.
const CALLS_MAX: usize = 32;
/// The number of bytes that one call asks for.
const CHUNK: usize = 1 << 16;

/// Receives until a call gets fewer bytes than it asked for, and passes the bytes to `take`.
/// Returns the number of bytes, and whether the stream ended.
fn receive_some(fd: Fd, mut take: impl FnMut(&[u8])) -> (usize, bool) {
    let mut room = vec![0; CHUNK];
    let mut total = 0;
    for _ in 0..CALLS_MAX {
        let result = sys::recv(fd, &mut room, 0);
        if result.is(libc::EAGAIN) {
            break;
        }
        let len = result.len();
        take(&room[..len]);
        total += len;
        if len < CHUNK {
            return (total, len == 0);
        }
    }
    (total, false)
}

/// Sends as many of `bytes` as the connection takes without waiting. Returns their number.
fn send_some(fd: Fd, bytes: &[u8]) -> usize {
    let mut sent = 0;
    for _ in 0..CALLS_MAX {
        let chunk = &bytes[sent..bytes.len().min(sent + CHUNK)];
        let result = sys::send(fd, chunk, libc::MSG_NOSIGNAL);
        if chunk.is_empty() || result.is(libc::EAGAIN) {
            break;
        }
        sent += result.len();
    }
    sent
}

/// Reads the bytes that are there and queues them. Writes the queue while there is space.
fn echo(fd: Fd) -> String {
    let (mut queue, mut sent, mut circles) = (Vec::new(), 0, 0);
    let mut ended = false;
    while !ended || sent < queue.len() {
        let out = if sent < queue.len() { libc::POLLOUT } else { 0 };
        let input = if ended { 0 } else { libc::POLLIN };
        let Some(found) = wait(fd, input | out) else {
            return format!("waited in vain, {} received, {sent} sent", queue.len());
        };
        let mut moved = 0;
        if found & libc::POLLIN != 0 {
            let (received, is_end) = receive_some(fd, |bytes| queue.extend_from_slice(bytes));
            ended = is_end;
            moved += received + usize::from(is_end);
        }
        if sent < queue.len() {
            let taken = send_some(fd, &queue[sent..]);
            sent += taken;
            moved += taken;
        }
        circles = if moved == 0 { circles + 1 } else { 0 };
        if circles == CIRCLES_MAX {
            return "turned in circles".to_owned();
        }
    }
    sys::shutdown(fd, libc::SHUT_WR).value();
    "all echoed".to_owned()
}

fn exchange(fd: Fd) -> String {
    let bytes = sample(LEN);
    let (mut sent, mut received, mut circles) = (0, 0, 0);
    let mut sum = Checksum::default();
    loop {
        let out = if sent < LEN { libc::POLLOUT } else { 0 };
        let Some(found) = wait(fd, libc::POLLIN | out) else {
            return format!("waited in vain, {sent} sent, {received} received");
        };
        let mut moved = 0;
        if found & libc::POLLOUT != 0 {
            let taken = send_some(fd, &bytes[sent..]);
            sent += taken;
            moved += taken;
            if sent == LEN {
                sys::shutdown(fd, libc::SHUT_WR).value();
            }
        }
        if found & libc::POLLIN != 0 {
            let (taken, is_end) = receive_some(fd, |bytes| sum.add(bytes));
            received += taken;
            moved += taken;
            if is_end {
                let right = sum.to_string() == Checksum::of(&bytes).to_string();
                return format!("{received} bytes came back, all of them right: {right}");
            }
        }
        circles = if moved == 0 { circles + 1 } else { 0 };
        if circles == CIRCLES_MAX {
            return "turned in circles".to_owned();
        }
    }
}

/// An epoll instance that libc created; all waits on it are direct system calls. The loop receives
/// once for each event and relies on another event for the bytes that are left.
pub(super) fn instance(role: &Role) {
    talk_by_instance(role, 0);
}

/// Like [`instance`], with an edge-triggered registration.
pub(super) fn instance_edge(role: &Role) {
    talk_by_instance(role, libc::EPOLLET);
}

/// Like [`instance`], with a one-shot registration that is armed again after each event.
pub(super) fn instance_oneshot(role: &Role) {
    talk_by_instance(role, libc::EPOLLONESHOT);
}

/// The client waits past libc for its connection to be established. libc created the epoll
/// instance.
pub(super) fn connecting(role: &Role) {
    const DATA: u64 = 0x1234_5678_9abc_def0;
    if role.server() {
        let listener = role.listen(0);
        let fd = sys::accept(listener).fd();
        let mut question = [0; 4];
        receive_all(fd, &mut question);
        role.say("question", question == *b"ping");
        send_all(fd, b"pong");
        role.step();
        return;
    }
    let port = role.hear_port();
    let epoll = sys::epoll_create();
    let fd = sys::socket(role.family, libc::SOCK_NONBLOCK);
    sys::epoll_ctl(epoll, ADD, fd, OUT, DATA).value();
    // The connection may be established now or later.
    let _ = sys::connect(fd, role.family, port);
    let has_room = || {
        let found = sys::epoll_wait_past_libc(epoll, TIME_LIMIT_MS);
        found == [(DATA, OUT.cast_unsigned())]
    };
    let mut sent = 0;
    while sent < 4 && has_room() {
        let result = sys::send(fd, &b"ping"[sent..], libc::MSG_NOSIGNAL);
        if !result.is(libc::EAGAIN) {
            sent += result.len();
        }
    }
    role.say("sent", sent);
    sys::epoll_ctl(epoll, super::MOD, fd, IN, DATA).value();
    let found = sys::epoll_wait_past_libc(epoll, TIME_LIMIT_MS);
    role.say("answer", format!("{found:x?}"));
    role.step();
}

/// Like [`instance`], but the instance is a member of another instance.
pub(super) fn instance_inside(role: &Role) {
    let outer = sys::epoll_create();
    talk(role, 0, Some(outer));
}

fn talk_by_instance(role: &Role, mode: i32) {
    talk(role, mode, None);
}

fn talk(role: &Role, mode: i32, outer: Option<Fd>) {
    const ROUNDS: usize = 60;
    const DATA: u64 = 0x1234_5678_9abc_def0;
    let fd = role.meet();
    sys::set_nonblocking(fd, true);
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, fd, IN | mode, DATA).value();
    if let Some(outer) = outer {
        sys::epoll_ctl(outer, ADD, epoll, IN, DATA).value();
    }
    // The bytes may be gone before the receive, as always with non-blocking sockets.
    let hears = || loop {
        let mut found = sys::epoll_wait_past_libc(outer.unwrap_or(epoll), TIME_LIMIT_MS);
        if outer.is_some() && !found.is_empty() {
            found.extend(sys::epoll_wait_past_libc(epoll, TIME_LIMIT_MS));
            found.dedup();
        }
        if found != [(DATA, IN.cast_unsigned())] {
            role.say("the kernel told", format!("{found:x?}"));
            return false;
        }
        let received = sys::recv(fd, &mut [0; 16], 0);
        if mode == libc::EPOLLONESHOT {
            sys::epoll_ctl(epoll, super::MOD, fd, IN | mode, DATA).value();
        }
        if !received.is(libc::EAGAIN) {
            return received.value() == 4;
        }
    };
    let mut rounds = 0;
    for _ in 0..ROUNDS {
        if !role.server() {
            send_all(fd, b"ping");
        }
        if !hears() {
            break;
        }
        if role.server() {
            send_all(fd, b"pong");
        }
        rounds += 1;
    }
    role.say("rounds", rounds);
    role.step();
}

/// More instances than the library keeps records of. The connection is a member of the last
/// instance only.
pub(super) fn many_instances(role: &Role) {
    const INSTANCES: usize = 600;
    let epolls: Vec<Fd> = (0..INSTANCES).map(|_| sys::epoll_create()).collect();
    let last = epolls[INSTANCES - 1];
    // Once before there is a connection, and once after that.
    let listener = role.server().then(|| role.listen(0));
    let port = if role.server() { 0 } else { role.hear_port() };
    for turn in ["early", "late"] {
        let is_early = turn == "early";
        let fd = match listener {
            Some(listener) => sys::accept(listener).fd(),
            None => {
                let fd = sys::socket(role.family, 0);
                if is_early {
                    sys::epoll_ctl(last, ADD, fd, IN, 1).value();
                }
                sys::connect(fd, role.family, port).value();
                fd
            }
        };
        if !is_early || role.server() {
            sys::epoll_ctl(last, ADD, fd, IN, 1).value();
        }
        role.warm(fd);
        role.step();
        for _ in 0..3 {
            if role.server() {
                std::thread::sleep(std::time::Duration::from_millis(5));
                send_all(fd, b"data");
            } else {
                let found = sys::epoll_wait(last, 4, TIME_LIMIT_MS as i32);
                role.say(turn, seen(&found));
                receive_all(fd, &mut [0; 2]);
                role.say("half read", now(last));
                receive_all(fd, &mut [0; 2]);
            }
            role.step();
        }
        sys::epoll_ctl(last, super::MOD, fd, IN | OUT, 2).value();
        role.say("room", now(last));
        role.step();
        sys::close(fd).value();
        // The next connection gets this number.
        role.step();
    }
    for epoll in epolls {
        sys::close(epoll).value();
    }
}

/// Short connections, one after another, on non-blocking sockets. For the first connections both
/// ends wait through libc. For some of the others, one end or both wait past libc, as `is_past`
/// says for a role and a connection's number.
fn short(role: &Role, is_past: fn(bool, usize) -> bool) {
    const SEEN_FIRST: usize = 30;
    const CONNECTIONS: usize = 100;
    let listener = role.server().then(|| role.listen(libc::SOCK_NONBLOCK));
    let epoll = sys::epoll_create();
    if let Some(listener) = listener {
        sys::epoll_ctl(epoll, ADD, listener, IN, 1).value();
    }
    let port = if role.server() { 0 } else { role.hear_port() };
    let mut answered = 0;
    for number in 0..CONNECTIONS {
        let waits = Waits {
            is_past: number >= SEEN_FIRST && is_past(role.server(), number),
        };
        let fd = match listener {
            Some(listener) => {
                sys::epoll_wait(epoll, 1, TIME_LIMIT_MS as i32).0.value();
                sys::accept4(listener, libc::SOCK_NONBLOCK).fd()
            }
            None => {
                let fd = sys::socket(role.family, 0);
                sys::connect(fd, role.family, port).value();
                sys::set_nonblocking(fd, true);
                fd
            }
        };
        let is_well = match role.server() {
            true => serve(fd, waits),
            false => ask(fd, waits),
        };
        answered += usize::from(is_well);
        sys::close(fd).value();
    }
    role.say("answered", answered);
    role.step();
}

#[derive(Clone, Copy)]
struct Waits {
    is_past: bool,
}

impl Waits {
    /// Receives the next bytes after they have arrived; `None` if no bytes arrive in time.
    fn receive(self, fd: Fd) -> Option<Vec<u8>> {
        let mut bytes = [0; 16];
        loop {
            match self.is_past {
                true => drop(wait(fd, libc::POLLIN)?),
                false => await_events(fd, libc::POLLIN),
            }
            let result = sys::recv(fd, &mut bytes, 0);
            if !result.is(libc::EAGAIN) {
                return Some(bytes[..result.len()].to_vec());
            }
        }
    }

    fn hears(self, fd: Fd, wanted: &[u8]) -> bool {
        self.receive(fd).is_some_and(|bytes| bytes == wanted)
    }
}

fn serve(fd: Fd, waits: Waits) -> bool {
    (0..2).all(|_| {
        let is_well = waits.hears(fd, b"ping");
        send_all(fd, b"pong");
        is_well
    }) && waits.hears(fd, b"")
}

fn ask(fd: Fd, waits: Waits) -> bool {
    (0..2).all(|_| {
        send_all(fd, b"ping");
        waits.hears(fd, b"pong")
    })
}

/// The server waits past libc for some connections.
pub(super) fn short_at_server(role: &Role) {
    short(role, |is_server, number| is_server && number % 3 == 1);
}

/// The client waits past libc for some connections.
pub(super) fn short_at_client(role: &Role) {
    short(role, |is_server, number| !is_server && number % 3 == 1);
}

/// Both ends wait past libc for some connections.
pub(super) fn short_at_both(role: &Role) {
    short(role, |_, number| number % 3 == 1);
}

/// The client closes a connection before the server accepts it, and makes no more calls that the
/// library sees. The server waits past libc for the end.
pub(super) fn ended_before_accept(role: &Role) {
    const SEEN_FIRST: usize = 300;
    let listener = role.server().then(|| role.listen(libc::SOCK_NONBLOCK));
    let epoll = sys::epoll_create();
    if let Some(listener) = listener {
        sys::epoll_ctl(epoll, ADD, listener, IN, 1).value();
    }
    let accept = |listener| {
        sys::epoll_wait(epoll, 1, TIME_LIMIT_MS as i32).0.value();
        sys::accept4(listener, libc::SOCK_NONBLOCK).fd()
    };
    let port = if role.server() { 0 } else { role.hear_port() };
    let connect = || {
        let fd = sys::socket(role.family, 0);
        sys::connect(fd, role.family, port).value();
        sys::set_nonblocking(fd, true);
        fd
    };
    let seen = Waits { is_past: false };
    let mut answered = 0;
    for _ in 0..SEEN_FIRST {
        let (fd, is_well) = match listener.map(accept) {
            Some(fd) => (fd, serve(fd, seen)),
            None => {
                let fd = connect();
                (fd, ask(fd, seen))
            }
        };
        answered += usize::from(is_well);
        sys::close(fd).value();
    }
    role.say("answered", answered);
    match listener {
        Some(listener) => {
            role.hear();
            let fd = accept(listener);
            role.say("end", Waits { is_past: true }.hears(fd, b""));
            sys::close(fd).value();
            role.tell(0);
        }
        None => {
            sys::close(connect()).value();
            role.tell(0);
            role.hear_past_libc();
        }
    }
}
