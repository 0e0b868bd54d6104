//! Adversaries try to pass for the other end of a connection that is not theirs, at the system
//! adapter. They have equal addresses, or equal sequence numbers, or connections that are opened at
//! one moment. No attempt succeeds, and the true ends are paired all the while. The tests run on
//! plain wires, and again with address translation at each place: then the two ends of a connection
//! name no address in common.
//!
//! `TOEHOLD_SOAK=1000000 cargo test --release -p toehold-adapter --test attempts` makes a million
//! of each kind. The last such run: 1,000,296 attempts, 30,312 of them with equal sequence numbers,
//! and 8,000 times two connections opened at one moment; all of this twice, on plain wires and
//! through address translation, in 36 s on two busy cores. None succeeded.

mod support;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;

use support::sockets::{connection, diag};
use support::{Adapter, FakeEnd, FakeLibrary, Scratch, as_user, wait_until};
use toehold_adapter::daemon::Options;
use toehold_adapter::wire;
use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::Reason;
use toehold_network::Namespace;

/// Attempts of a usual run.
const ATTEMPTS: u64 = 20_000;
/// Users who attempt, twice, and the connections of each. One process may have 32 clients.
const USERS: u32 = 12;
const CONNECTIONS_OF_USER: u16 = 32;
/// Connections whose other end the adversaries want.
const VICTIMS: u16 = 64;
const USER_FIRST: u32 = 61_000;
const SERVER: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(
    Ipv4Addr::new(10, 9, 0, 1),
    7000,
));
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT_FIRST: u16 = 20_000;

/// Two namespaces with a wire between them, and a server in one.
///
/// With translation, a client is masqueraded, and the client connects to an address that is not the
/// server's:
///
/// ```text
/// client's end   10.9.0.2:P -> 10.9.1.1:7000
/// on the wire    10.9.0.3:P -> 10.9.1.1:7000
/// server's end   10.9.0.1:7001 -> 10.9.0.3:P
/// ```
struct Wired {
    clients: Namespace,
    servers: Namespace,
    listener: TcpListener,
    way: Way,
}

/// Whether addresses are translated between the two ends.
#[derive(Clone, Copy)]
enum Way {
    Plain,
    Translated,
}

impl Way {
    /// The address that a client names.
    fn named(self) -> SocketAddr {
        match self {
            Way::Plain => SERVER,
            Way::Translated => SocketAddr::from(([10, 9, 1, 1], 7000)),
        }
    }

    /// The address that a server has.
    fn served(self) -> SocketAddr {
        match self {
            Way::Plain => SERVER,
            Way::Translated => SocketAddr::new(SERVER.ip(), SERVER.port() + 1),
        }
    }

    /// The address of a client that a server sees.
    fn seen(self) -> Ipv4Addr {
        match self {
            Way::Plain => CLIENT,
            Way::Translated => Ipv4Addr::new(10, 9, 0, 3),
        }
    }
}

/// Loads rules of nftables in a namespace.
fn nft(place: &Namespace, rules: &str) {
    let output = place.command("nft").arg(rules).output().expect("nft runs");
    assert!(output.status.success(), "{output:?}");
}

impl Wired {
    fn new(way: Way) -> Wired {
        let place = || Namespace::new().expect("root makes namespaces");
        let (clients, servers) = (place(), place());
        clients.add_veth("v", &servers, "v", "").expect("a veth");
        for (place, address) in [(&clients, "10.9.0.2/24"), (&servers, "10.9.0.1/24")] {
            place.ip(&format!("addr add {address} dev v")).expect("ip");
            place.ip("link set v up").expect("ip");
        }
        if let Way::Translated = way {
            clients.ip("addr add 10.9.0.3/24 dev v").expect("ip");
            clients
                .ip("route add 10.9.1.0/24 via 10.9.0.1")
                .expect("ip");
            nft(
                &clients,
                "add table ip n; add chain ip n post { type nat hook postrouting priority 100; };
                 add rule ip n post ip saddr 10.9.0.2 snat to 10.9.0.3",
            );
            nft(
                &servers,
                "add table ip n; add chain ip n pre { type nat hook prerouting priority -100; };
                 add rule ip n pre ip daddr 10.9.1.1 tcp dport 7000 dnat to 10.9.0.1:7001",
            );
        }
        let listener = servers.within(|| TcpListener::bind(way.served()).expect("free"));
        Wired {
            way,
            listener,
            clients,
            servers,
        }
    }

    /// The two ends of a connection with exactly these addresses.
    fn connect(&self, port: u16) -> [OwnedFd; 2] {
        let named = self.way.named();
        let client = self.clients.within(|| connect_from(port, named));
        self.accept(client)
    }

    fn accept(&self, client: OwnedFd) -> [OwnedFd; 2] {
        let (server, _) = self.listener.accept().expect("accepted");
        [client, server.into()]
    }
}

fn set(socket: &OwnedFd, level: i32, option: i32, value: i32) {
    let at = (&raw const value).cast();
    // SAFETY: `value` is readable for four bytes.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, 4) };
    let error = std::io::Error::last_os_error();
    assert_eq!(done, 0, "option {option}: {error}");
}

fn address(of: SocketAddr) -> libc::sockaddr_in {
    let SocketAddr::V4(of) = of else {
        panic!("IPv4")
    };
    // SAFETY: an address of zeroes is valid.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = of.port().to_be();
    address.sin_addr.s_addr = u32::from(*of.ip()).to_be();
    address
}

fn socket_from(local: SocketAddr) -> OwnedFd {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointers; the kernel made the descriptor for us.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0)) };
    set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    let local = address(local);
    // SAFETY: `local` is valid for its length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const local).cast(), 16) };
    assert_eq!(bound, 0, "bind: {}", std::io::Error::last_os_error());
    socket
}

fn connect(socket: &OwnedFd, remote: SocketAddr) {
    let remote = address(remote);
    // SAFETY: `remote` is valid for its length.
    let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const remote).cast(), 16) };
    assert_eq!(done, 0, "connect: {}", std::io::Error::last_os_error());
}

fn connect_from(port: u16, named: SocketAddr) -> OwnedFd {
    let socket = socket_from(SocketAddr::from((CLIENT, port)));
    connect(&socket, named);
    socket
}

/// `TCP_REPAIR` (include/uapi/linux/tcp.h): on, and off without a window probe.
const REPAIR_ON: i32 = 1;
const REPAIR_OFF: i32 = -1;
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;

fn option<T: Default>(socket: &OwnedFd, option: i32) -> T {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    let at = (&raw mut value).cast();
    // SAFETY: `value` is writable for its length, and all bytes are values of plain numbers.
    let done = unsafe {
        let fd = socket.as_raw_fd();
        libc::getsockopt(fd, libc::IPPROTO_TCP, option, at, &mut length)
    };
    let error = std::io::Error::last_os_error();
    assert_eq!(done, 0, "option {option}: {error}");
    value
}

/// The first sequence numbers that a quiet socket has sent and received; only root can read them.
fn numbers(socket: &OwnedFd) -> [u32; 2] {
    // `tcpi_bytes_acked` and `tcpi_bytes_received`.
    let info: [u64; 17] = option(socket, libc::TCP_INFO);
    set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON);
    let sequence = |queue| {
        set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue);
        option::<u32>(socket, libc::TCP_QUEUE_SEQ)
    };
    let now = [sequence(SEND_QUEUE), sequence(RECEIVE_QUEUE)];
    set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF);
    let counted = [info[15] as u32, info[16] as u32];
    [0, 1].map(|n| now[n].wrapping_sub(counted[n]))
}

/// A socket that is established without a handshake, with the server's addresses and numbers.
fn forged(place: &Namespace, way: Way, client_port: u16, [sent, received]: [u32; 2]) -> OwnedFd {
    place.within(|| {
        let socket = socket_from(way.served());
        set(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON);
        for (queue, number) in [(SEND_QUEUE, sent), (RECEIVE_QUEUE, received)] {
            set(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue);
            let number = number.cast_signed();
            set(&socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, number);
        }
        connect(&socket, SocketAddr::from((way.seen(), client_port)));
        set(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF);
        // Leaving the repair mode has cleared the option.
        set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        socket
    })
}

/// A library of a user. Its sockets are in the namespace `place`.
fn library(scratch: &Scratch, uid: u32, place: &Namespace) -> FakeLibrary {
    let diag = place.within(diag);
    let (socket, _other) = place.within(connection);
    as_user(uid, || {
        let library = FakeLibrary::new(&scratch.path());
        let shown = Message::new(Kind::Namespace);
        wire::send(library.socket.as_fd(), &shown, &[diag.as_fd()]).expect("sent");
        drop(diag);
        // A process that another test starts at this moment has a copy of the socket until its
        // exec. The adapter does not use the socket before that.
        let is_used = wait_until(|| {
            let probe = library.pair_showing(false, socket.as_fd());
            library.settle();
            let reason = library.refusal(probe);
            library.withdraw(probe);
            library.settle();
            library.table.close(probe.entry);
            reason == Reason::NoPartner as u32
        });
        assert!(is_used, "the adapter does not use the socket");
        library
    })
}

/// An adversary: its sockets, and the ends that it claims with them.
struct Adversary {
    uid: u32,
    library: FakeLibrary,
    claims: Vec<(FakeEnd, OwnedFd)>,
}

impl Adversary {
    /// Claims every end once more. Returns the number of claims that the adapter examined: it does
    /// not examine claims beyond the user's quota.
    fn attempt(&self) -> u64 {
        as_user(self.uid, || {
            for (end, socket) in &self.claims {
                self.library.ask_showing(*end, socket.as_fd());
            }
        });
        let offers = as_user(self.uid, || self.library.settle());
        assert!(offers.is_empty(), "user {} got {}", self.uid, offers.len());
        let mut looked_at = 0;
        for (end, _) in &self.claims {
            let reason = self.library.refusal(*end);
            let is_looked_at = reason == Reason::NoPartner as u32;
            assert!(
                is_looked_at || reason == Reason::OverQuota as u32,
                "reason {reason}"
            );
            looked_at += u64::from(is_looked_at);
        }
        looked_at
    }
}

/// A system adapter that can prove claims; `None`, with a message, where there is none.
fn start(way: Way) -> Option<(Scratch, Adapter)> {
    let skipped = |why: &str| drop(writeln!(std::io::stderr(), "SKIPPED: attempts: {why}"));
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skipped("the system adapter needs root");
        return None;
    }
    let has_nft = || std::process::Command::new("nft").arg("-v").output().is_ok();
    if matches!(way, Way::Translated) && !has_nft() {
        skipped("address translation needs nft");
        return None;
    }
    let scratch = Scratch::new();
    let parent = scratch.path().parent().expect("in a directory").to_owned();
    std::fs::set_permissions(parent, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let options = Options {
        foreground: false,
        ..Options::system(scratch.path())
    };
    let adapter = Adapter::start_with(options);
    let json = toehold_adapter::client::status(&scratch.path()).expect("root may ask");
    let status: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    if status["across_namespaces"].as_str() != Some("yes") {
        skipped(&format!("{}", status["across_namespaces"]));
        return None;
    }
    Some((scratch, adapter))
}

fn attempts_wanted() -> u64 {
    let soak = std::env::var("TOEHOLD_SOAK").ok();
    soak.and_then(|text| text.parse().ok()).unwrap_or(ATTEMPTS)
}

#[test]
fn no_process_is_mistaken_for_the_end_of_another_connection() {
    attempt_all(Way::Plain);
}

#[test]
fn no_process_is_mistaken_for_the_end_of_another_connection_through_address_translation() {
    attempt_all(Way::Translated);
}

fn attempt_all(way: Way) {
    let Some((scratch, _adapter)) = start(way) else {
        return;
    };
    let (victims, twin) = (Wired::new(way), Wired::new(way));
    // In a place without the server, any user may have the server's port.
    let Wired {
        clients: _clients_of_forgers,
        servers: forgery,
        ..
    } = Wired::new(way);
    let clients = library(&scratch, USER_FIRST - 2, &victims.clients);
    let servers = library(&scratch, USER_FIRST - 1, &victims.servers);
    let ports = PORT_FIRST..PORT_FIRST + VICTIMS;
    let pairs: Vec<[OwnedFd; 2]> = ports.map(|port| victims.connect(port)).collect();
    let waiting: Vec<FakeEnd> = as_user(USER_FIRST - 2, || {
        let ends = pairs.iter();
        let ends = ends.map(|[client, _]| clients.pair_showing(false, client.as_fd()));
        ends.collect()
    });
    assert!(as_user(USER_FIRST - 2, || clients.settle()).is_empty());

    // Adversaries with equal addresses. The other ends of their sockets ask for nothing.
    let mut others = Vec::new();
    let adversaries = (0..USERS).map(|n| {
        let uid = USER_FIRST + n;
        let first = PORT_FIRST + n as u16 * CONNECTIONS_OF_USER;
        let library = library(&scratch, uid, &twin.servers);
        let sockets = (first..first + CONNECTIONS_OF_USER).map(|port| twin.connect(port));
        let mut claims = Vec::new();
        for [client, server] in sockets {
            claims.push((library.table.open(0, true), server));
            others.push(client);
        }
        (uid, library, claims)
    });
    // Adversaries with equal addresses and equal sequence numbers.
    let forgers: Vec<_> = adversaries.collect();
    let forgers = forgers.into_iter().chain((0..USERS).map(|n| {
        let uid = USER_FIRST + USERS + n;
        let library = library(&scratch, uid, &forgery);
        let port = PORT_FIRST + n as u16;
        let [sent, received] = numbers(&pairs[usize::from(n as u16)][0]);
        let like_server = [received, sent.wrapping_add(1)];
        let claims = vec![(
            library.table.open(0, true),
            forged(&forgery, way, port, like_server),
        )];
        (uid, library, claims)
    }));
    let adversaries: Vec<Adversary> = forgers
        .map(|(uid, library, claims)| Adversary {
            uid,
            library,
            claims: claims
                .into_iter()
                .map(|((entry, generation), socket)| {
                    let end = FakeEnd {
                        entry,
                        generation,
                        local_port: 0,
                        remote_port: 0,
                    };
                    (end, socket)
                })
                .collect(),
        })
        .collect();
    let wanted = attempts_wanted();
    let (mut attempts, mut forgeries_tried) = (0, 0);
    while attempts < wanted {
        for (n, adversary) in adversaries.iter().enumerate() {
            let tried = adversary.attempt();
            attempts += tried;
            forgeries_tried += if n >= USERS as usize { tried } else { 0 };
        }
    }
    assert!(as_user(USER_FIRST - 2, || clients.settle()).is_empty());
    println!("{attempts} attempts, {forgeries_tried} of them with equal sequence numbers");

    // The true ends come, and each is paired with its own other end.
    for ([_, server], waiting) in pairs.iter().zip(&waiting) {
        as_user(USER_FIRST - 1, || {
            servers.pair_showing(true, server.as_fd())
        });
        let (one, other) = (servers.offer(), clients.offer());
        let slots = [one.message.slot, other.message.slot];
        assert_eq!(slots[0], slots[1]);
        assert_eq!(one.message.pair, other.message.pair);
        assert_eq!(other.message.entry, waiting.entry);
    }
    for adversary in &adversaries {
        let offers = as_user(adversary.uid, || adversary.library.settle());
        assert!(offers.is_empty());
    }
}

/// Two connections with equal addresses are opened at one moment in two places. Sometimes both fall
/// into one tick of the clock from which sequence numbers are computed.
#[test]
fn connections_opened_at_one_moment_are_distinguished() {
    tell_all_apart(Way::Plain);
}

#[test]
fn connections_opened_at_one_moment_are_distinguished_through_address_translation() {
    tell_all_apart(Way::Translated);
}

fn tell_all_apart(way: Way) {
    let Some((scratch, _adapter)) = start(way) else {
        return;
    };
    let wired = [Wired::new(way), Wired::new(way)];
    let rounds = (attempts_wanted() / 50).clamp(100, 8_000);
    let together = Barrier::new(2);
    let libraries = wired.each_ref().map(|wired| {
        let uid = USER_FIRST;
        [
            library(&scratch, uid, &wired.clients),
            library(&scratch, uid, &wired.servers),
        ]
    });
    let mut equal = 0;
    for round in 0..rounds {
        let port = PORT_FIRST + (round % 20_000) as u16;
        let ends = std::thread::scope(|scope| {
            let threads = wired.each_ref().map(|wired| {
                let together = &together;
                scope.spawn(move || {
                    let client = wired.clients.within(|| {
                        let socket = socket_from(SocketAddr::from((CLIENT, port)));
                        together.wait();
                        connect(&socket, wired.way.named());
                        socket
                    });
                    wired.accept(client)
                })
            });
            threads.map(|thread| thread.join().expect("connected"))
        });
        let both = ends.each_ref().map(|[client, _]| numbers(client));
        equal += u64::from(both[0][0] == both[1][0]);
        // Each client asks and waits, and then each server asks. The servers take turns at being
        // first.
        let clients = [0, 1].map(|n| libraries[n][0].pair_showing(false, ends[n][0].as_fd()));
        for n in [round as usize % 2, (round as usize + 1) % 2] {
            let server = libraries[n][1].pair_showing(true, ends[n][1].as_fd());
            let (one, other) = (libraries[n][1].offer(), libraries[n][0].offer());
            assert_eq!(one.message.entry, server.entry);
            assert_eq!(other.message.entry, clients[n].entry);
            assert_eq!(one.message.slot, other.message.slot);
            libraries[n][1].withdraw(server);
            libraries[n][0].withdraw(clients[n]);
            for (side, end) in [(1, server), (0, clients[n])] {
                libraries[n][side].settle();
                libraries[n][side].table.close(end.entry);
            }
        }
        // Reset the connections: their ports are free for the next ones.
        for socket in ends.iter().flatten() {
            let stream = TcpStream::from(socket.try_clone().expect("a descriptor"));
            linger_not(&stream);
        }
    }
    println!("{rounds} rounds, {equal} with equal numbers of the clients");
}

fn linger_not(stream: &TcpStream) {
    let value = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let length = size_of_val(&value) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: `value` is readable for its length.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
}
