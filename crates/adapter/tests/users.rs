//! The system adapter's clients are different users: what each user may have, and which harm to
//! another user is refused. Every test needs root, to become these users.

mod support;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use support::children::Child;
use support::page::StuckPage;
use support::sockets::{connection, diag};
use support::{
    Adapter, Done, FakeLibrary, FakeTable, LONG, Scratch, as_user, become_user, socket_pair,
    try_connect, wait_until,
};
use toehold_adapter::client;
use toehold_adapter::daemon::Options;
use toehold_adapter::wire;
use toehold_channel::layout::SLAB_BYTES;
use toehold_channel::rendezvous::{Kind, Message, mapped};
use toehold_channel::table::{Reason, TABLE_BYTES};

const SERVER: u32 = 60_001;
const CLIENT: u32 = 60_002;
const STRANGER: u32 = 60_003;

/// A system adapter; `None`, with a message, without root.
fn start() -> Option<(Scratch, Adapter)> {
    start_after(|_| ())
}

/// A system adapter that reads nothing before `act` is done.
fn start_after(act: impl FnOnce(&Scratch)) -> Option<(Scratch, Adapter)> {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        let _ = writeln!(std::io::stderr(), "SKIPPED: the system adapter needs root");
        return None;
    }
    let scratch = Scratch::new();
    let parent = scratch.path().parent().expect("in a directory").to_owned();
    std::fs::set_permissions(parent, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let options = Options {
        foreground: false,
        ..Options::system(scratch.path())
    };
    let adapter = Adapter::start_after(options, || act(&scratch));
    Some((scratch, adapter))
}

/// A library of a user.
fn library(scratch: &Scratch, uid: u32) -> FakeLibrary {
    as_user(uid, || FakeLibrary::new(&scratch.path()))
}

/// Libraries of two users, with a connection between them from port `from` to port `to`.
fn two_users(scratch: &Scratch, [to, from]: [u16; 2]) -> [FakeLibrary; 2] {
    let [server, client] = [SERVER, CLIENT].map(|uid| library(scratch, uid));
    as_user(SERVER, || server.pair(true, to, from));
    as_user(CLIENT, || client.pair(false, from, to));
    [server, client]
}

#[test]
fn two_users_are_introduced_to_each_other() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let [server, client] = two_users(&scratch, [80, 5000]);
    let (one, other) = (server.offer(), client.offer());
    assert_eq!(one.message.pair, other.message.pair);
    assert_ne!(one.message.side, other.message.side);
}

/// `O_NONBLOCK` and the count belong to the file of an `eventfd`. A process with the file that its
/// peer rings could make the peer's `write` wait.
#[test]
fn a_process_cannot_reach_what_its_peer_rings() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let [server, client] = two_users(&scratch, [85, 5005]);
    let [own, _] = server.offer().doorbells.expect("a new pair");
    let [_, rung_by_client] = client.offer().doorbells.expect("a new pair");
    let flags = |file: &File, command, flags: libc::c_int| {
        // SAFETY: plain system call on a descriptor of ours.
        unsafe { libc::fcntl(file.as_raw_fd(), command, flags) }
    };
    assert_eq!(flags(&own, libc::F_SETFL, 0), 0);
    let written = (&mut &own).write(&(u64::MAX - 1).to_ne_bytes());
    assert!(written.is_err(), "it is no eventfd");
    assert_ne!(
        flags(&rung_by_client, libc::F_GETFL, 0) & libc::O_NONBLOCK,
        0
    );
    for _ in 0..2 {
        (&mut &rung_by_client)
            .write_all(&1u64.to_ne_bytes())
            .expect("room");
    }
}

#[test]
fn memory_between_two_users_cannot_be_cut() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let [server, client] = two_users(&scratch, [80, 5000]);
    let offers = [server.offer(), client.offer()];
    let files = offers.iter().flat_map(|offer| [&offer.slab, &offer.pair]);
    for file in files.map(|file| file.as_ref().expect("the first channel of its pair")) {
        let length = file.metadata().expect("metadata").len();
        for wanted in [0, length - 4096, length + 4096] {
            let error = file.set_len(wanted).expect_err("sealed");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{wanted}");
        }
        // A seal against writing would make the other end's next write a fatal signal.
        for seal in [libc::F_SEAL_WRITE, libc::F_SEAL_FUTURE_WRITE] {
            // SAFETY: plain system call on a descriptor of ours.
            let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seal) };
            assert_eq!(sealed, -1, "seal {seal}");
        }
    }
}

#[test]
fn a_third_user_with_a_claim_on_a_tuple_gets_nothing() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let (one, other) = connection();
    let server = library(&scratch, SERVER);
    let served = as_user(SERVER, || server.pair_showing(true, other.as_fd()));
    server.settle();
    // The stranger names the client's addresses, and shows a connection of its own.
    let stranger = library(&scratch, STRANGER);
    let (own, _its_other_end) = connection();
    let (entry, generation) = stranger.table.open(0, false);
    let (local, remote) = (one.local_addr().expect("v4"), one.peer_addr().expect("v4"));
    let ip = |address: std::net::SocketAddr| match address.ip() {
        std::net::IpAddr::V4(v4) => mapped(v4.octets()),
        std::net::IpAddr::V6(v6) => v6.octets(),
    };
    let claim = Message {
        entry,
        generation,
        local: ip(local),
        remote: ip(remote),
        local_port: local.port(),
        remote_port: remote.port(),
        ..Message::new(Kind::Pair)
    };
    as_user(STRANGER, || {
        wire::send(stranger.socket.as_fd(), &claim, &[own.as_fd()]).expect("sent");
        assert!(stranger.settle().is_empty(), "an offer for a claim");
    });
    assert_eq!(server.offers(served), 0);
    assert_eq!(server.refusal(served), Reason::NoPartner as u32);
    // After a claim without a socket the adapter soon drops the client.
    as_user(STRANGER, || {
        let _ = wire::send(stranger.socket.as_fd(), &claim, &[]);
        assert!(stranger.is_dropped());
    });
    // The true other end is served.
    let client = library(&scratch, CLIENT);
    as_user(CLIENT, || client.pair_showing(false, one.as_fd()));
    assert_eq!(server.offer().message.pair, client.offer().message.pair);
}

/// Sockets to the adapter, of a process that is not this one.
struct Crowd {
    _child: Child,
    _done: UnixStream,
}

impl Crowd {
    /// Connects so many sockets as a user, in a forked child, and returns when they are connected.
    fn of(scratch: &Scratch, uid: u32, count: usize) -> Crowd {
        let path = scratch.path();
        let (mut done, theirs) = UnixStream::pair().expect("pair");
        let child = Child::fork(&[theirs.as_fd()], || {
            become_user(uid);
            let sockets: Vec<_> = (0..count).map(|_| try_connect(&path)).collect();
            let _ = (&theirs).write_all(&[1]);
            // Until the test is done with us.
            let _ = (&theirs).read(&mut [0]);
            drop(sockets);
            true
        });
        drop(theirs);
        done.set_read_timeout(Some(LONG)).expect("a socket");
        done.read_exact(&mut [0]).expect("the child connects");
        Crowd {
            _child: child,
            _done: done,
        }
    }
}

#[test]
fn one_user_cannot_take_all_clients() {
    /// The adapter's own limits, for one user and for one process.
    const PER_USER: usize = 1024;
    const PER_PROCESS: usize = 32;
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let processes = 0..PER_USER / PER_PROCESS;
    let crowds: Vec<Crowd> = processes
        .map(|_| Crowd::of(&scratch, STRANGER, PER_PROCESS))
        .collect();
    // One more client of this user is turned away, from any process.
    let late = as_user(STRANGER, || {
        let socket = try_connect(&scratch.path()).expect("connected");
        FakeLibrary::at(socket, FakeTable::new())
    });
    assert!(late.is_dropped());
    // Others are served.
    let [server, client] = two_users(&scratch, [81, 5001]);
    assert_eq!(server.offer().message.pair, client.offer().message.pair);
    // When the crowd is gone, its user has room again.
    drop(crowds);
    let has_room = wait_until(|| is_served(&scratch, STRANGER));
    assert!(has_room, "turned away for ever");
}

/// Whether the adapter answers a user on a fresh socket.
fn is_served(scratch: &Scratch, uid: u32) -> bool {
    as_user(uid, || is_answered(scratch))
}

fn is_answered(scratch: &Scratch) -> bool {
    let socket = try_connect(&scratch.path()).expect("connected");
    let sent = wire::send(socket.as_fd(), &Message::new(Kind::Ping), &[]);
    let answer = || wire::receive(socket.as_fd());
    sent.is_ok() && matches!(answer(), Ok(wire::Received::Message(_, Kind::Answer, _)))
}

/// A socket of the adapter's kind that listens at a path.
fn listen_at(path: &std::path::Path) -> OwnedFd {
    let socket = packets();
    let address = rustix::net::SocketAddrUnix::new(path).expect("short");
    rustix::net::bind(&socket, &address).expect("bound");
    rustix::net::listen(&socket, 64).expect("it listens");
    socket
}

fn connect_to(path: &std::path::Path) -> OwnedFd {
    let socket = packets();
    let address = rustix::net::SocketAddrUnix::new(path).expect("short");
    rustix::net::connect(&socket, &address).expect("connected");
    socket
}

fn packets() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// Endless requests by one user delay another user's request by a turn, not for ever.
#[test]
fn a_flood_of_one_user_does_not_keep_others_waiting() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let flood = library(&scratch, STRANGER);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(STRANGER);
            let request = Message::new(Kind::Withdraw);
            while !stop.load(Ordering::Relaxed) {
                let _ = wire::try_send(flood.socket.as_fd(), &request, &[]);
            }
        });
        let _stop = Done(&stop);
        let [server, client] = two_users(&scratch, [82, 5002]);
        assert_eq!(server.offer().message.pair, client.offer().message.pair);
    });
}

#[test]
fn only_root_is_told_the_status() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let server = library(&scratch, SERVER);
    as_user(SERVER, || server.pair(true, 83, 5003));
    let asked = |uid| {
        as_user(uid, || {
            let socket = try_connect(&scratch.path()).expect("connected");
            let asker = FakeLibrary::at(socket, FakeTable::new());
            let status = Message::new(Kind::Status);
            wire::send(asker.socket.as_fd(), &status, &[]).expect("sent");
            match wire::receive(asker.socket.as_fd()).expect("received") {
                wire::Received::Message(_, Kind::Answer, descriptors) => descriptors.len(),
                other => panic!("unexpected: {other:?}"),
            }
        })
    };
    assert_eq!(asked(STRANGER), 0);
    assert_eq!(
        asked(SERVER),
        0,
        "not even its own: it can read its table itself"
    );
    assert_eq!(asked(0), 1);
}

/// The adapter answers within the two seconds that a command waits.
fn assert_answers(scratch: &Scratch) {
    client::ping(&scratch.path()).expect("it answers");
}

#[test]
fn a_setting_that_never_comes_keeps_nobody_waiting() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let (empty, _writer) = std::io::pipe().expect("pipe");
    let _stranger = as_user(STRANGER, || {
        let socket = try_connect(&scratch.path()).expect("connected");
        wire::send(socket.as_fd(), &Message::new(Kind::Set), &[empty.as_fd()]).expect("sent");
        socket
    });
    assert_answers(&scratch);
}

/// A socket whose last `close` waits for an hour, because its peer does not read. Also returns the
/// peer's end; the caller keeps it for as long.
fn lingering() -> (TcpStream, TcpStream) {
    let (one, other) = connection();
    one.set_nonblocking(true).expect("a socket");
    while (&one).write(&[0; 65_536]).is_ok() {}
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 3600,
    };
    // SAFETY: `linger` is valid for its length.
    let set = unsafe {
        libc::setsockopt(
            one.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    (one, other)
}

#[test]
fn a_socket_that_lingers_keeps_nobody_waiting() {
    let mut peers = Vec::new();
    // The adapter closes the last descriptor of each socket in three ways: the socket was shown, it
    // came beside too many others, or it was on its way when its client was dropped.
    let started = start_after(|scratch| {
        for way in 0..3 {
            let (one, other) = lingering();
            peers.push(other);
            let stranger = library(scratch, STRANGER);
            let pair = |shown: &[BorrowedFd<'_>]| {
                let (entry, generation) = stranger.table.open(0, false);
                let message = Message {
                    entry,
                    generation,
                    ..Message::new(Kind::Pair)
                };
                as_user(STRANGER, || {
                    support::send_many(&stranger.socket, &message, shown)
                });
            };
            match way {
                0 => pair(&[one.as_fd()]),
                1 => pair(&[other_file().as_fd(), other_file().as_fd(), one.as_fd()]),
                _ => {
                    as_user(STRANGER, || {
                        let hello = Message::new(Kind::Hello);
                        wire::send(stranger.socket.as_fd(), &hello, &[]).expect("sent");
                    });
                    pair(&[one.as_fd()]);
                }
            }
        }
    });
    let Some((scratch, _adapter)) = started else {
        return;
    };
    let _peers = peers;
    assert_answers(&scratch);
    // The adapter reads each message in a turn of its own.
    assert_answers(&scratch);
    let [server, client] = two_users(&scratch, [84, 5004]);
    assert_eq!(server.offer().message.pair, client.offer().message.pair);
}

/// Calls `act` while `sleep`, which gets the address of a page, waits for this page on a thread.
fn while_asleep(page: StuckPage, sleep: impl FnOnce(usize) + Send, act: impl FnOnce()) {
    std::thread::scope(|scope| {
        // It comes when `act` has returned or panicked, before the scope waits for the thread.
        let page = page;
        let at = page.at();
        scope.spawn(move || sleep(at));
        page.wait_for_sleeper();
        act();
    });
}

/// Calls `act` while a `send` on a socket holds the socket's lock, because the program's page does
/// not come.
fn with_lock_held(socket: &TcpStream, page: StuckPage, act: impl FnOnce()) {
    let sleep = |at| {
        // SAFETY: a mapped page.
        let sent = unsafe { libc::send(socket.as_raw_fd(), at as *const _, 1, 0) };
        assert_eq!(sent, 1);
    };
    while_asleep(page, sleep, act);
}

/// Whether the adapter reads facts inside the kernel; otherwise prints a message.
fn has_witness(scratch: &Scratch) -> bool {
    let json = client::status(&scratch.path()).expect("root may ask");
    let status: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let words = &status["across_namespaces"];
    let is_there = words.as_str() == Some("yes");
    if !is_there {
        let _ = writeln!(std::io::stderr(), "SKIPPED: facts of sockets: {words}");
    }
    is_there
}

/// A shown socket whose lock is held is looked at like any other.
#[test]
fn a_socket_whose_lock_its_program_holds_keeps_nobody_waiting() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let Some(page) = StuckPage::new().filter(|_| has_witness(&scratch)) else {
        return;
    };
    let (one, other) = connection();
    let [server, client] = [SERVER, CLIENT].map(|uid| library(&scratch, uid));
    let request = client.request(false, one.as_fd());
    with_lock_held(&one, page, || {
        as_user(CLIENT, || {
            wire::send(client.socket.as_fd(), &request, &[one.as_fd()]).expect("sent");
        });
        assert_answers(&scratch);
        as_user(SERVER, || server.pair_showing(true, other.as_fd()));
        assert_answers(&scratch);
        assert_eq!(server.offer().message.pair, client.offer().message.pair);
    });
}

/// As above, of an adapter that reads no facts inside the kernel.
#[test]
fn a_socket_whose_lock_its_program_holds_keeps_a_user_s_adapter_from_nothing() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let Some(page) = StuckPage::new() else {
        return;
    };
    let (one, other) = connection();
    let [server, client] = [(); 2].map(|()| FakeLibrary::new(&scratch.path()));
    let request = client.request(false, one.as_fd());
    with_lock_held(&one, page, || {
        wire::send(client.socket.as_fd(), &request, &[one.as_fd()]).expect("sent");
        assert_answers(&scratch);
        server.pair_showing(true, other.as_fd());
        assert_answers(&scratch);
        assert_eq!(server.offer().message.pair, client.offer().message.pair);
    });
}

/// The kernel tells the bytes of a connection only with the socket's lock.
#[test]
fn a_status_does_not_wait_for_a_socket_whose_lock_its_program_holds() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let Some(page) = StuckPage::new() else {
        return;
    };
    let (one, _other) = connection();
    let stranger = library(&scratch, STRANGER);
    // A connection that has not asked for a partner yet.
    let (entry, _) = stranger.table.open(one.as_raw_fd() as u32, false);
    let flags = &stranger.table.entry(entry).flags;
    flags.store(0, Ordering::Relaxed);
    as_user(STRANGER, || stranger.settle());
    let root = try_connect(&scratch.path()).expect("connected");
    with_lock_held(&one, page, || {
        wire::send(root.as_fd(), &Message::new(Kind::Status), &[]).expect("sent");
        assert_answers(&scratch);
    });
}

/// Calls `act` while a `write` holds a file's lock: the program's page does not come.
fn with_file_held(file: &impl AsFd, place: usize, page: StuckPage, act: impl FnOnce()) {
    let file = file.as_fd();
    let sleep = move |at| {
        let place = place as libc::off_t;
        // SAFETY: a mapped page.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), at as *const _, 1, place) };
        assert_eq!(written, 1);
    };
    while_asleep(page, sleep, act);
}

#[test]
fn a_table_that_its_program_writes_keeps_nobody_waiting() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let Some(page) = StuckPage::new() else {
        return;
    };
    let table = FakeTable::new();
    table.open(0, false);
    let file = table.file.try_clone().expect("a descriptor");
    with_file_held(&file, TABLE_BYTES - 1, page, || {
        let _stranger = as_user(STRANGER, || FakeLibrary::with_table(&scratch.path(), table));
        assert_answers(&scratch);
    });
}

/// A channel ends and the next one begins while a process that has the slab holds the lock of its
/// file.
#[test]
fn a_slab_that_a_program_writes_keeps_nobody_waiting() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let Some(page) = StuckPage::new() else {
        return;
    };
    let [server, client] = two_users(&scratch, [86, 5006]);
    let slab = server.offer().slab.expect("the first of its pair");
    client.offer();
    let pair = |from| {
        let accepted = as_user(SERVER, || server.pair(true, 86, from));
        let connected = as_user(CLIENT, || client.pair(false, from, 86));
        (accepted, connected)
    };
    with_file_held(&slab, SLAB_BYTES - 1, page, || {
        // Another region of the slab is begun.
        let (accepted, connected) = pair(5007);
        assert_answers(&scratch);
        assert_eq!(server.offer().message.slot, 1);
        let offer = client.offer();
        let capacity_log2 = &offer.control().sides[0].publish.capacity_log2;
        capacity_log2.store(20, Ordering::Relaxed);
        server.withdraw(accepted);
        client.withdraw(connected);
        assert_answers(&scratch);
    });
    // The region is used again when its pages are given back.
    pair(5008);
    assert_eq!(server.offer().message.slot, 1);
    assert_eq!(client.offer().message.slot, 1);
}

/// A program lists sockets by the socket that it has shown, and the list waits for the lock of one
/// of them. Meanwhile nobody else gets an answer on that socket.
#[test]
fn a_shown_namespace_that_its_program_still_uses_keeps_nobody_waiting() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let Some(page) = StuckPage::new().filter(|_| has_witness(&scratch)) else {
        return;
    };
    let Ok(place) = toehold_network::Namespace::new() else {
        return;
    };
    let stranger = library(&scratch, STRANGER);
    let (held, _other) = place.within(connection);
    let (shown, _its_other_end) = place.within(connection);
    let diag = place.within(diag);
    let again = diag.try_clone().expect("a descriptor");
    with_lock_held(&held, page, || {
        let (told, is_told) = std::sync::mpsc::channel();
        // It ends after this, when the page comes.
        std::thread::spawn(move || {
            // SAFETY: no arguments.
            told.send(unsafe { libc::gettid() })
                .expect("the test waits");
            list_with_counts(&again);
        });
        wait_until_asleep(is_told.recv_timeout(LONG).expect("its number"));
        as_user(STRANGER, || {
            let message = Message::new(Kind::Namespace);
            wire::send(stranger.socket.as_fd(), &message, &[diag.as_fd()]).expect("sent");
            stranger.pair_showing(false, shown.as_fd());
        });
        assert_answers(&scratch);
    });
}

/// Asks for all TCP connections of IPv4, with the kernel's counts of each.
fn list_with_counts(diag: &OwnedFd) {
    const HEADER_BYTES: usize = 16;
    const REQUEST_BYTES: usize = HEADER_BYTES + 56;
    /// `SOCK_DIAG_BY_FAMILY`.
    const KIND: u16 = 20;
    /// `1 << (INET_DIAG_INFO - 1)`.
    const COUNTS: u8 = 2;
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&KIND.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    let [family, protocol] = [libc::AF_INET, libc::IPPROTO_TCP].map(|number| number as u8);
    request[HEADER_BYTES..][..3].copy_from_slice(&[family, protocol, COUNTS]);
    // Every state.
    request[HEADER_BYTES + 4..][..4].copy_from_slice(&u32::MAX.to_ne_bytes());
    // SAFETY: the request is valid for its length.
    let sent = unsafe { libc::send(diag.as_raw_fd(), request.as_ptr().cast(), REQUEST_BYTES, 0) };
    assert_eq!(sent, REQUEST_BYTES as isize);
}

/// Waits until a thread of this process sleeps in a way that no signal ends.
fn wait_until_asleep(thread: libc::pid_t) {
    let sleeps = wait_until(|| {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        stat.expect("it runs").contains(") D ")
    });
    assert!(sleeps, "it does not sleep");
}

/// A program receives on the socket that it has sent to be adopted, and its page does not come.
#[test]
fn an_adopted_socket_that_its_program_still_uses_keeps_nobody_waiting() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let Some(page) = StuckPage::new().filter(|_| has_witness(&scratch)) else {
        return;
    };
    let parent = library(&scratch, STRANGER);
    let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
    for _ in 0..2 {
        // One for the program, and one for the adapter.
        wire::send(socket.as_fd(), &Message::new(Kind::Ping), &[]).expect("sent");
    }
    let sleep = |at| {
        // SAFETY: a mapped page.
        let taken = unsafe { libc::recv(theirs.as_raw_fd(), at as *mut _, 1, 0) };
        assert_eq!(taken, 1);
    };
    while_asleep(page, sleep, || {
        as_user(STRANGER, || parent.adopt(&[theirs.as_fd()]));
        assert_answers(&scratch);
    });
}

/// A child may send its socket first, and close its own descriptor afterwards.
#[test]
fn a_socket_is_adopted_when_its_sender_has_closed_it() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let parent = library(&scratch, STRANGER);
    let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
    as_user(STRANGER, || {
        parent.adopt(&[theirs.as_fd()]);
        parent.settle();
    });
    drop(theirs);
    let child = FakeLibrary::at(socket, parent.table.again());
    as_user(STRANGER, || {
        child.hello(child.table.file.as_fd());
        child.settle();
    });
}

/// The adapter counts clients by process. A socket that leads to another program's listener would
/// count for that program.
#[test]
fn a_socket_to_another_program_is_not_adopted_in_that_program_s_name() {
    /// The most clients of one process.
    const CLIENTS_MAX: usize = 32;
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let place = scratch.path().with_file_name("victim");
    let (mut orders, theirs) = UnixStream::pair().expect("pair");
    let victim = Child::fork(&[theirs.as_fd()], || {
        let _listener = listen_at(&place);
        become_user(SERVER);
        let told = (&theirs).write_all(b"r").is_ok();
        let go_on = (&theirs).read_exact(&mut [0]).is_ok();
        told && go_on && is_answered(&scratch)
    });
    drop(theirs);
    orders.set_read_timeout(Some(LONG)).expect("a socket");
    orders.read_exact(&mut [0]).expect("the victim listens");
    let attacker = library(&scratch, STRANGER);
    let sockets: Vec<OwnedFd> = (0..CLIENTS_MAX).map(|_| connect_to(&place)).collect();
    as_user(STRANGER, || {
        for socket in sockets {
            let adopt = Message::new(Kind::Adopt);
            // The adapter may have closed the connection by now.
            let _ = wire::send(attacker.socket.as_fd(), &adopt, &[socket.as_fd()]);
        }
    });
    assert_answers(&scratch);
    orders.write_all(b"g").expect("the victim waits");
    assert!(victim.ends_well(), "the victim is refused");
}

/// A socket that closes at once.
fn other_file() -> UnixStream {
    UnixStream::pair().expect("pair").0
}

/// The file's owner may be a program that answers no `close` (FUSE). A process that waits in such a
/// `close` cannot be killed.
#[test]
fn a_file_that_is_neither_socket_nor_memory_is_not_closed_by_the_system_adapter() {
    /// The number of such files that the adapter keeps for a user.
    const KEPT: usize = 4;
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    for _ in 0..KEPT {
        let (mut reader, writer) = std::io::pipe().expect("pipe");
        let stranger = library(&scratch, STRANGER);
        as_user(STRANGER, || {
            stranger.pair_showing(false, writer.as_fd());
        });
        assert!(stranger.is_dropped());
        drop(writer);
        rustix::io::ioctl_fionbio(&reader, true).expect("a pipe");
        let error = reader.read(&mut [0]).expect_err("open in the adapter");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    assert!(!is_served(&scratch, STRANGER), "it has sent too many");
    assert!(is_served(&scratch, SERVER));
    assert_answers(&scratch);
}

/// A worker that gave up root has a socket that it made before.
#[test]
fn a_file_of_a_process_that_was_root_is_not_closed_either() {
    let Some((scratch, _adapter)) = start() else {
        return;
    };
    let parent = FakeLibrary::new(&scratch.path());
    let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
    parent.adopt(&[theirs.as_fd()]);
    drop(theirs);
    let worker = FakeLibrary::at(socket, parent.table.again());
    let (mut reader, writer) = std::io::pipe().expect("pipe");
    as_user(STRANGER, || {
        worker.pair_showing(false, writer.as_fd());
    });
    assert!(worker.is_dropped());
    drop(writer);
    rustix::io::ioctl_fionbio(&reader, true).expect("a pipe");
    let error = reader.read(&mut [0]).expect_err("open in the adapter");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_answers(&scratch);
}
