//! Tests of a client's claims about a connection: only the socket itself proves a claim. The
//! attacker has everything that a worker of another user has: its parent's socket to the adapter,
//! the family's table, any message, and any descriptor except that of the attacked connection.

mod support;

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use support::children::Child;
use support::sockets::{connection, diag};
use support::{Adapter, FakeLibrary, LONG, Scratch, naming};
use toehold_adapter::wire;
use toehold_channel::rendezvous::{Kind, Message, mapped};
use toehold_channel::table::Reason;

/// A socket that is still connecting, to an address from which no host answers.
fn syn_sent() -> OwnedFd {
    // SAFETY: plain system calls; the address is valid for its size.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0));
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_port = 9u16.to_be();
        // TEST-NET-1 (RFC 5737).
        address.sin_addr.s_addr = u32::from(Ipv4Addr::new(192, 0, 2, 1)).to_be();
        let length = size_of_val(&address) as libc::socklen_t;
        libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length);
        socket
    }
}

/// A socket bound to an address that another socket may have had a moment ago.
fn connect_from(local: SocketAddr, remote: SocketAddr) -> TcpStream {
    let address = |of: SocketAddr| {
        let SocketAddr::V4(of) = of else {
            panic!("IPv4 only")
        };
        // SAFETY: `sockaddr_in` is plain data, for which zeroes are a value.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_port = of.port().to_be();
        address.sin_addr.s_addr = u32::from(*of.ip()).to_be();
        address
    };
    let (local, remote) = (address(local), address(remote));
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: plain system calls; the addresses are valid for their size.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let stream = TcpStream::from_raw_fd(socket);
        let on = 1;
        let size = size_of_val(&on) as libc::socklen_t;
        let (level, reuse) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        libc::setsockopt(socket, level, reuse, (&raw const on).cast(), size);
        // A child that another test forked just now may still hold the socket that had the address.
        // Then the address, or the pair of addresses, is not free yet.
        let succeeds = |attempt: &dyn Fn() -> i32| {
            let wait = || std::thread::sleep(Duration::from_millis(1));
            (0..10_000).any(|_| attempt() == 0 || (wait(), false).1)
        };
        assert!(succeeds(&|| libc::bind(
            socket,
            (&raw const local).cast(),
            length
        )));
        assert!(succeeds(&|| libc::connect(
            socket,
            (&raw const remote).cast(),
            length
        )));
        stream
    }
}

/// Makes a close send a reset, so that the addresses are free at once.
fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: `linger` is valid for its size.
    unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
        let size = size_of_val(&linger) as libc::socklen_t;
        let fd = stream.as_raw_fd();
        libc::setsockopt(fd, level, option, (&raw const linger).cast(), size);
    }
}

/// Equal addresses, connected to each other in a network namespace of their own.
fn same_addresses_elsewhere(local: SocketAddr, remote: SocketAddr) -> Option<TcpStream> {
    let elsewhere = Elsewhere::new(local, remote)?;
    std::mem::forget(elsewhere.server);
    Some(elsewhere.client)
}

/// A connection in a network namespace of its own.
struct Elsewhere {
    client: TcpStream,
    server: TcpStream,
    /// Asks about sockets of that namespace.
    diag: OwnedFd,
}

impl Elsewhere {
    /// `None` where no namespace can be made.
    fn new(local: SocketAddr, remote: SocketAddr) -> Option<Elsewhere> {
        let namespace = toehold_network::Namespace::new().ok()?;
        Some(namespace.within(|| {
            let listener = TcpListener::bind(remote).expect("nobody else is here");
            let client = connect_from(local, remote);
            let (server, _) = listener.accept().expect("accepted");
            Elsewhere {
                client,
                server,
                diag: diag(),
            }
        }))
    }
}

/// Shows the adapter a namespace.
fn show_namespace(library: &FakeLibrary, diag: &OwnedFd) {
    let shown = Message::new(Kind::Namespace);
    wire::send(library.socket.as_fd(), &shown, &[diag.as_fd()]).expect("sent");
}

/// Runs `part` in a forked child that is another user, and returns whether `part` returned true.
/// `None`, with a message, where we may not change the user.
fn as_another_user(part: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root can become another user");
        return None;
    }
    let child = Child::fork_with_all(|| {
        // SAFETY: no memory is involved.
        let is_other = unsafe { libc::setgid(65_534) == 0 && libc::setuid(65_534) == 0 };
        is_other && part()
    });
    Some(child.ends_well())
}

#[test]
fn addresses_that_are_only_said_claim_nothing() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let honest = FakeLibrary::new(&scratch.path());
    let attacker = FakeLibrary::new(&scratch.path());
    let (client, server) = connection();
    let held = honest.pair_showing(true, server.as_fd());
    honest.settle();

    let (local, remote) = (client.local_addr().expect("ours"), client.peer_addr());
    let remote = remote.expect("connected");
    let port_of = |address: SocketAddr| address.port();
    let (unrelated, _other) = connection();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let (unix, _peer) = UnixStream::pair().expect("pair");
    let (dead, gone) = connection();
    drop(gone);
    let mut shown: Vec<(OwnedFd, Reason)> = vec![
        (unrelated.into(), Reason::Closing),
        (listener.into(), Reason::Closing),
        (unix.into(), Reason::NoPartner),
        (syn_sent(), Reason::Closing),
        (dead.into(), Reason::Closing),
        (tempfile::tempfile().expect("file").into(), Reason::NotTcp),
    ];
    match same_addresses_elsewhere(local, remote) {
        Some(twin) => shown.push((twin.into(), Reason::OtherNamespace)),
        None => eprintln!("SKIPPED: a twin in another network namespace needs privilege"),
    }
    for (number, (shown, reason)) in shown.into_iter().enumerate() {
        let (entry, generation) = attacker.table.open(0, false);
        let forged = Message {
            entry,
            generation,
            listener: 4,
            local: mapped([127, 0, 0, 1]),
            remote: mapped([127, 0, 0, 1]),
            local_port: port_of(local),
            remote_port: port_of(remote),
            ..Message::new(Kind::Pair)
        };
        wire::send(attacker.socket.as_fd(), &forged, &[shown.as_fd()]).expect("sent");
        assert!(attacker.settle().is_empty(), "descriptor {number}");
        let refusal = attacker
            .table
            .entry(entry)
            .refusal
            .load(std::sync::atomic::Ordering::Acquire);
        assert_eq!(refusal, reason as u32, "descriptor {number}");
    }
    assert!(honest.settle().is_empty());
    assert_eq!(honest.offers(held), 0);

    // A process that has the socket has the connection.
    attacker.pair_showing(false, client.as_fd());
    attacker.offer();
    honest.offer();
}

#[test]
fn a_process_learns_the_inode_of_its_own_listener_only() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server_s = FakeLibrary::new(&scratch.path());
    let client_s = FakeLibrary::new(&scratch.path());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let file = tempfile::tempfile().expect("file");
    let inode = std::fs::File::from(listener.try_clone().map(OwnedFd::from).expect("ours"));
    let inode = inode.metadata().expect("ours").ino();
    let spelled = |fd: i32| fd as u64 + 1;
    for (named, told) in [
        (spelled(listener.as_raw_fd()), inode),
        (0, 0),
        (spelled(file.as_raw_fd()), 0),
        (spelled(i32::MAX), 0),
        (u64::MAX, 0),
    ] {
        let (client, server) = connection();
        let (entry, generation) = server_s.table.open(0, true);
        let ask = Message {
            entry,
            generation,
            listener: named,
            ..Message::new(Kind::Pair)
        };
        let ask = naming(server.as_fd(), ask);
        wire::send(server_s.socket.as_fd(), &ask, &[server.as_fd()]).expect("sent");
        client_s.pair_showing(false, client.as_fd());
        for library in [&client_s, &server_s] {
            assert_eq!(library.offer().message.listener, told, "{named}");
        }
    }
}

#[test]
fn a_claim_ends_with_its_socket_even_when_the_addresses_come_again() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let honest = FakeLibrary::new(&scratch.path());
    let attacker = FakeLibrary::new(&scratch.path());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let here = listener.local_addr().expect("bound");
    // Not from 127.0.0.1: a connection of another test could get the port as soon as it is free.
    let own = SocketAddr::from((Ipv4Addr::new(127, 77, 0, 2), 0));
    let bait = connect_from(own, here);
    let (accepted, from) = listener.accept().expect("accepted");
    let stale = attacker.pair_showing(false, bait.as_fd());
    attacker.settle();
    reset_on_close(&bait);
    drop((bait, accepted));

    // A connection of another program has the addresses now.
    let victim = connect_from(from, here);
    let (server, _) = listener.accept().expect("accepted");
    let held = honest.pair_showing(true, server.as_fd());
    assert!(honest.settle().is_empty());
    assert!(attacker.settle().is_empty());
    assert_eq!((honest.offers(held), attacker.offers(stale)), (0, 0));

    let other = FakeLibrary::new(&scratch.path());
    other.pair_showing(false, victim.as_fd());
    other.offer();
    honest.offer();
    assert!(attacker.settle().is_empty());
}

#[test]
fn one_socket_is_claimed_once() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let [first, second, partner] = [0; 3].map(|_| FakeLibrary::new(&scratch.path()));
    let (client, server) = connection();
    first.pair_showing(true, server.as_fd());
    first.settle();
    let again = second.pair_showing(true, server.as_fd());
    assert!(second.settle().is_empty());
    assert_eq!(second.refusal(again), Reason::Shared as u32);
    partner.pair_showing(false, client.as_fd());
    partner.offer();
    first.offer();
    // The claim fails after the channel exists, too.
    let late = second.pair_showing(true, server.as_fd());
    assert!(second.settle().is_empty());
    assert_eq!(second.refusal(late), Reason::Shared as u32);
}

#[test]
fn a_shown_socket_is_not_kept_open() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let (client, mut server) = connection();
    library.pair_showing(false, client.as_fd());
    library.settle();
    drop(client);
    // The read would wait in vain if the adapter kept the socket.
    server.set_read_timeout(Some(LONG)).expect("a socket");
    assert_eq!(server.read(&mut [0]).expect("ended in order"), 0);
}

/// A message of a version that no library has.
fn other_version() -> Message {
    Message {
        version: u32::MAX,
        ..Message::new(Kind::Ping)
    }
}

#[test]
fn what_another_user_says_over_its_parents_socket_is_passed_over() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let partner = FakeLibrary::new(&scratch.path());
    let (client, server) = connection();
    let held = parent.pair_showing(true, server.as_fd());
    parent.settle();
    let (mine, _other) = connection();
    let said = as_another_user(|| {
        parent.withdraw(held);
        parent.pair_showing(false, mine.as_fd());
        let kinds = [
            Kind::Detach,
            Kind::Attach,
            Kind::Status,
            Kind::Capture,
            Kind::Engine,
        ];
        let asked = kinds.map(Message::new);
        let socket = parent.socket.as_fd();
        let is_said = |message: &Message, shown: &[_]| wire::send(socket, message, shown).is_ok();
        // For these a client would be dropped: a second hello, wrong descriptors, another version.
        let hello = is_said(&Message::new(Kind::Hello), &[]);
        let adopt = is_said(&Message::new(Kind::Adopt), &[mine.as_fd()]);
        let version = is_said(&other_version(), &[]);
        hello && adopt && version && asked.iter().all(|asked| is_said(asked, &[]))
    });
    let Some(said) = said else { return };
    assert!(said);
    assert!(parent.settle().is_empty(), "nothing of it was answered");
    partner.pair_showing(false, client.as_fd());
    partner.offer();
    parent.offer();
}

#[test]
fn a_worker_of_another_user_is_served_for_what_it_shows_and_commands_nobody() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let partner = FakeLibrary::new(&scratch.path());
    parent.settle();
    let (client, server) = connection();
    let (parents_client, parents_server) = connection();
    let parents = parent.pair_showing(true, parents_server.as_fd());
    partner.pair_showing(false, parents_client.as_fd());
    partner.offer();
    parent.offer();
    partner.pair_showing(false, client.as_fd());
    partner.settle();
    drop(parents_server);
    let served = as_another_user(|| {
        let worker = parent.adopted();
        // The parent's end stays the parent's.
        worker.withdraw(parents);
        let taken = worker.resume(parents).is_ok();
        for kind in [Kind::Status, Kind::Detach] {
            wire::send(worker.socket.as_fd(), &Message::new(kind), &[]).expect("sent");
            match wire::receive(worker.socket.as_fd()).expect("received") {
                wire::Received::Message(answer, Kind::Answer, files) => {
                    assert_eq!((answer.side, files.len()), (0, 0), "{kind:?}");
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
        // The worker's own connection is accelerated.
        worker.pair_showing(true, server.as_fd());
        worker.offer();
        !taken
    });
    let Some(served) = served else { return };
    assert!(served);
    partner.offer();
    assert_eq!(parent.command(parents), 0, "not detached");
    // The connection is still the parent's: the parent gets its channel again.
    assert!(parent.resume(parents).is_ok());
}

/// Addresses have a meaning in one namespace only. Three namespaces have connections with these
/// addresses.
#[test]
fn ends_are_paired_in_their_own_namespace_and_never_across() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let local = SocketAddr::from((Ipv4Addr::new(127, 88, 0, 1), 21_001));
    let remote = SocketAddr::from((Ipv4Addr::new(127, 88, 0, 2), 21_002));
    let (Some(one), Some(two)) = (Elsewhere::new(local, remote), Elsewhere::new(local, remote))
    else {
        return eprintln!("SKIPPED: other network namespaces need privilege");
    };
    let listener = TcpListener::bind(remote).expect("bound");
    let own_client = connect_from(local, remote);
    let (own_server, _) = listener.accept().expect("accepted");

    let [of_one, of_two, of_ours, late] = [0; 4].map(|_| FakeLibrary::new(&scratch.path()));
    let refused = |library: &FakeLibrary, end, reason| {
        assert!(library.settle().is_empty());
        assert_eq!(library.refusal(end), reason as u32);
    };
    // No claim is proved in a namespace that was not shown, or by showing another namespace.
    let early = of_one.pair_showing(false, one.client.as_fd());
    refused(&of_one, early, Reason::OtherNamespace);
    show_namespace(&of_one, &two.diag);
    of_one.ask_showing(early, one.client.as_fd());
    refused(&of_one, early, Reason::OtherNamespace);
    show_namespace(&of_one, &diag());
    of_one.ask_showing(early, one.client.as_fd());
    refused(&of_one, early, Reason::OtherNamespace);

    // Each namespace has one end of a connection: the ends belong to three connections.
    show_namespace(&of_one, &one.diag);
    of_one.ask_showing(early, one.client.as_fd());
    refused(&of_one, early, Reason::NoPartner);
    show_namespace(&of_two, &two.diag);
    let server = of_two.pair_showing(true, two.server.as_fd());
    refused(&of_two, server, Reason::NoPartner);
    let server = of_ours.pair_showing(true, own_server.as_fd());
    refused(&of_ours, server, Reason::NoPartner);
    assert!(of_one.settle().is_empty());

    // The other ends come.
    show_namespace(&late, &one.diag);
    late.pair_showing(true, one.server.as_fd());
    late.offer();
    of_one.offer();
    assert!(of_two.settle().is_empty() && of_ours.settle().is_empty());
    show_namespace(&late, &two.diag);
    late.pair_showing(false, two.client.as_fd());
    late.offer();
    of_two.offer();
    late.pair_showing(false, own_client.as_fd());
    late.offer();
    of_ours.offer();
}

/// A client shares the socket that it has shown. The client puts answers into the socket, takes
/// answers away, and connects the socket to others than the kernel.
#[test]
fn a_shown_namespace_is_used_only_for_questions_to_the_kernel() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let local = SocketAddr::from((Ipv4Addr::new(127, 88, 0, 3), 21_003));
    let remote = SocketAddr::from((Ipv4Addr::new(127, 88, 0, 4), 21_004));
    let Some(one) = Elsewhere::new(local, remote) else {
        return eprintln!("SKIPPED: another network namespace needs privilege");
    };
    let [library, partner] = [0; 2].map(|_| FakeLibrary::new(&scratch.path()));
    show_namespace(&library, &one.diag);
    show_namespace(&partner, &one.diag);
    let held = library.pair_showing(false, one.client.as_fd());
    library.settle();
    let fd = one.diag.as_raw_fd();
    let speak_to = |port| {
        // SAFETY: `sockaddr_nl` is plain data; the address is valid for its length.
        unsafe {
            let mut address: libc::sockaddr_nl = std::mem::zeroed();
            address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            address.nl_pid = port;
            let length = size_of_val(&address) as libc::socklen_t;
            assert_eq!(libc::connect(fd, (&raw const address).cast(), length), 0);
        }
    };
    // Answers to nonsense requests, for another reader to find.
    let nonsense = [20u32, 0x0005_0014, 7, 0, 0];
    for _ in 0..8 {
        // SAFETY: the request is valid for its length.
        unsafe { libc::send(fd, nonsense.as_ptr().cast(), 20, libc::MSG_DONTWAIT) };
    }
    // The kernel does not answer a socket that is connected to another address.
    speak_to(4_000_000);
    let unheard = partner.pair_showing(true, one.server.as_fd());
    assert!(partner.settle().is_empty() && library.settle().is_empty());
    assert_eq!(partner.refusal(unheard), Reason::Closing as u32);
    speak_to(0);
    partner.ask_showing(unheard, one.server.as_fd());
    partner.offer();
    library.offer();
    assert_eq!(library.offers(held), 1);
    // A socket of another kind shows no namespace.
    let (unix, _peer) = UnixStream::pair().expect("pair");
    show_namespace(&library, &unix.into());
    let closed = wire::receive(library.socket.as_fd());
    assert!(matches!(closed, Ok(wire::Received::Closed) | Err(_)));
}
