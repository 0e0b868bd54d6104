//! A packet capture makes connections visible: they use the kernel during the capture, lose
//! nothing, and return to shared memory after it. Firewall rules and traffic control have this
//! effect, too.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use toehold_e2e::ends::{self, Claim, Ends, Waiting};
use toehold_e2e::load::Random;
use toehold_e2e::toehold::express_count;
use toehold_e2e::{Checked, Crowd, Generator, Path, Running, Sides, Toehold, host, wait_until};
use toehold_network::Namespace;

const PROGRAM: &str = env!("CARGO_BIN_EXE_crowd");
const STREAM: &str = env!("CARGO_BIN_EXE_stream");
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The number of connections in the tests; `TOEHOLD_CAPTURED` overrides it.
const COUNT: usize = 100;
const CAPTURED: &str = "a packet capture, new firewall rule or traffic control is to see it";

/// A program and its adapter in a separate namespace, because a capture affects all connections of
/// a host.
struct Observed {
    toehold: Toehold,
    crowd: Crowd,
    namespace: Namespace,
    count: usize,
}

impl Observed {
    fn start(adapter_options: &[&str]) -> Option<Observed> {
        let namespace = namespace()?;
        let count = std::env::var("TOEHOLD_CAPTURED");
        let count = count.map_or(COUNT, |count| count.parse().expect("a number"));
        let starter = namespace.starter();
        let starter = starter.each_ref().map(String::as_str);
        let toehold = Toehold::start_in(&starter, adapter_options);
        let arguments = [&count.to_string(), "light"];
        let crowd = Crowd::start(&toehold, PROGRAM, &arguments, TIME_LIMIT);
        let mut observed = Observed {
            toehold,
            crowd,
            namespace,
            count,
        };
        assert!(observed.all_are_direct(), "{}", observed.whereabouts());
        Some(observed)
    }

    fn all_are_direct(&mut self) -> bool {
        wait_until(TIME_LIMIT, || {
            self.crowd.order("around 100");
            let connections = self.toehold.known_connections();
            connections.iter().filter(|one| one.is_direct()).count() == 2 * self.count
        })
    }

    /// Whether all used connections move to the kernel so that an observer sees them; with
    /// `is_kept` false, whether none of them is there.
    fn all_are_kept(&mut self, is_kept: bool) -> bool {
        wait_until(TIME_LIMIT, || {
            self.crowd.order("around 50");
            let connections = self.toehold.known_connections();
            let mut kept = connections
                .iter()
                .map(|one| one.value["reason"] == CAPTURED);
            kept.all(|one| one == is_kept)
        })
    }

    fn whereabouts(&self) -> String {
        let mut reasons = BTreeMap::new();
        for one in self.toehold.connections() {
            *reasons.entry(one.value["reason"].to_string()).or_insert(0) += 1;
        }
        format!("{reasons:?}")
    }
}

fn namespace() -> Option<Namespace> {
    let made = Namespace::new().map_err(|error| host::skipped(&error.to_string()));
    made.ok()
}

/// A packet socket on a namespace's loopback device, like that of a capture.
struct PacketSocket(OwnedFd);

impl PacketSocket {
    fn open(namespace: &Namespace) -> PacketSocket {
        let socket = namespace.within(|| {
            let protocol = libc::ETH_P_ALL as u16;
            // SAFETY: no memory is involved; the descriptor is ours.
            unsafe {
                let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
                let fd = libc::socket(libc::AF_PACKET, kind, protocol.to_be().into());
                assert!(fd >= 0, "{}", io::Error::last_os_error());
                OwnedFd::from_raw_fd(fd)
            }
        });
        let bytes: libc::c_int = 256 << 20;
        // SAFETY: `bytes` is valid for its length.
        unsafe {
            let length = size_of_val(&bytes) as libc::socklen_t;
            let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
            let bytes = (&raw const bytes).cast();
            libc::setsockopt(socket.as_raw_fd(), level, name, bytes, length);
        }
        PacketSocket(socket)
    }

    /// Reads until `count` ports have sent to `server`. Returns the time of the first packet of
    /// each port. A doorbell is one byte, and messages are longer.
    fn watch(&self, server: u16, count: usize) -> BTreeMap<u16, Duration> {
        let mut seen = BTreeMap::new();
        self.read(|frame, after| {
            if let Some((ports, payload)) = tcp(frame)
                && ports.contains(&server)
                && payload > 1
            {
                let other = if ports[0] == server {
                    ports[1]
                } else {
                    ports[0]
                };
                seen.entry(other).or_insert(after);
            }
            seen.len() < count
        });
        seen
    }

    /// Reads until `count` TCP frames to or from `port` have been seen. Returns their number.
    fn count(&self, port: u16, count: usize) -> usize {
        let mut seen = 0;
        self.read(|frame, _| {
            let is_one = tcp(frame).is_some_and(|(ports, _)| ports.contains(&port));
            seen += usize::from(is_one);
            seen < count
        });
        seen
    }

    /// Passes each frame to `each`, with the elapsed time, as long as `each` returns true.
    fn read(&self, mut each: impl FnMut(&[u8], Duration) -> bool) {
        let begun = Instant::now();
        let mut frame = [0u8; 256];
        while begun.elapsed() < TIME_LIMIT {
            // SAFETY: `frame` is writable for its length.
            let length = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
                let bytes = frame.as_mut_ptr().cast();
                libc::recv(self.0.as_raw_fd(), bytes, frame.len(), flags)
            };
            if length < 0 {
                std::thread::sleep(Duration::from_micros(200));
            } else if !each(&frame, begun.elapsed()) {
                break;
            }
        }
    }
}

/// The ports and the payload length of an Ethernet frame with TCP over IPv4.
fn tcp(frame: &[u8]) -> Option<([u16; 2], usize)> {
    let word =
        |bytes: &[u8], at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let ip = frame.get(14..).filter(|ip| ip[0] >> 4 == 4)?;
    let ip_header = usize::from(ip[0] & 15) * 4;
    let segment = ip.get(ip_header..)?;
    let tcp_header = usize::from(segment.get(12)? >> 4) * 4;
    let total = usize::from(word(ip, 2)?);
    let ports = [word(segment, 0)?, word(segment, 2)?];
    Some((ports, total.checked_sub(ip_header + tcp_header)?))
}

/// Raises a flag when dropped: the thread of a scope that waits for the flag goes on, even if the
/// other one panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_capture_sees_every_connection_and_afterwards_all_are_fast_again() {
    let Some(mut observed) = Observed::start(&[]) else {
        return;
    };
    let port = observed.crowd.port();
    let (namespace, count) = (&observed.namespace, observed.count);
    let (crowd, is_over) = (&mut observed.crowd, &AtomicBool::new(false));
    let (seen, opened) = std::thread::scope(|scope| {
        let watching = scope.spawn(move || {
            let _over = Over(is_over);
            // The capture begins in the middle of the traffic.
            std::thread::sleep(Duration::from_millis(100));
            let begun = Instant::now();
            let socket = PacketSocket::open(namespace);
            let opened = begun.elapsed();
            (socket.watch(port, count), opened)
        });
        while !is_over.load(Ordering::Relaxed) {
            crowd.order("around 100");
        }
        watching.join().expect("no panic")
    });
    let latest = seen.values().max().copied().unwrap_or_default() + opened;
    eprintln!(
        "{} of {count} connections seen, the last after {latest:?}",
        seen.len()
    );
    assert_eq!(seen.len(), count, "{}", observed.whereabouts());
    assert!(observed.all_are_direct(), "{}", observed.whereabouts());
    observed.crowd.end();
}

/// A program is told of a capture once for all its connections. Its idle connections move with the
/// one that it uses, without a doorbell for each.
#[test]
fn idle_connections_follow_a_capture_with_one_that_is_used() {
    let Some(mut observed) = Observed::start(&[]) else {
        return;
    };
    let pids = [&observed.crowd.client, &observed.crowd.server].map(Running::pid);
    let ends = &pids.map(Ends::of);
    let rung = || ends.iter().flat_map(Ends::doorbells).collect::<Vec<u32>>();
    for (order, are_idle) in [("alone 100", true), ("around 100", false)] {
        let before = rung();
        let is_over = AtomicBool::new(false);
        let namespace = &observed.namespace;
        let (crowd, is_over) = (&mut observed.crowd, &is_over);
        let left = std::thread::scope(|scope| {
            let watching = scope.spawn(move || {
                let _over = Over(is_over);
                // The capture begins in the middle of the traffic.
                std::thread::sleep(Duration::from_millis(300));
                let begun = Instant::now();
                let socket = PacketSocket::open(namespace);
                let left = follow(order, begun, ends, [ends::is_told, ends::sends_by_kernel]);
                drop(socket);
                left
            });
            while !is_over.load(Ordering::Relaxed) {
                crowd.order(order);
            }
            watching.join().expect("no panic")
        });
        assert_eq!(left, [0, 0], "{order}: {}", observed.whereabouts());
        let both = rung().into_iter().zip(before);
        let rung = both.filter(|(now, before)| now != before).count();
        eprintln!("{rung} ends have rung");
        // Doorbells came only to the used connection and to a few others.
        assert!(!are_idle || rung < observed.count / 2, "{rung} ends");
        assert!(observed.all_are_direct(), "{}", observed.whereabouts());
    }
    observed.crowd.end();
}

/// Two programs never sleep, because their spinning always succeeds. They must also be told of the
/// end of a capture. Both ends of their idle connections come back while the programs use another
/// connection, whichever program is told first. During the capture `status` shows no connection in
/// memory.
#[test]
fn idle_connections_come_back_to_programs_that_never_sleep() {
    let Some(mut observed) = Observed::start(&[]) else {
        return;
    };
    let pids = [&observed.crowd.client, &observed.crowd.server].map(Running::pid);
    let ends = &pids.map(Ends::of);
    let namespace = &observed.namespace;
    let toehold = &observed.toehold;
    let (left, direct, down) = observed.crowd.while_alone(|| {
        let socket = PacketSocket::open(namespace);
        let claims: [Claim; 2] = [ends::is_told, ends::sends_by_kernel];
        let left = follow("alone", Instant::now(), ends, claims);
        // An end that receives nothing has not noticed yet that its peer sends through the kernel.
        let connections = toehold.connections();
        let direct = connections
            .iter()
            .filter(|one| one.value["path"] == "direct")
            .count();
        drop(socket);
        let mut down = ends.each_ref().map(|it| it.without(ends::sends_by_ring));
        wait_until(TIME_LIMIT, || down.each_mut().map(Waiting::count) == [0, 0]);
        (left, direct, down.each_mut().map(Waiting::count))
    });
    assert_eq!(left, [0, 0], "{}", observed.whereabouts());
    assert_eq!(direct, 0, "ends that are said to be in memory");
    assert_eq!(down, [0, 0], "{}", observed.whereabouts());
    observed.crowd.end();
}

/// Watches two programs until all ends of their connections have been told and have obeyed. Prints
/// when the first end was told, when all were told, and when all had obeyed. Returns how many ends
/// were not told, and how many have not obeyed.
fn follow(what: &str, begun: Instant, ends: &[Ends; 2], claims: [Claim; 2]) -> [usize; 2] {
    let [mut told, mut done] = claims.map(|claim| ends.each_ref().map(|it| it.without(claim)));
    let all = told.each_mut().map(Waiting::count);
    let mut times = [None; 3];
    while begun.elapsed() < TIME_LIMIT && times.iter().any(Option::is_none) {
        std::thread::sleep(Duration::from_micros(200));
        let untold = told.each_mut().map(Waiting::count);
        let undone = done.each_mut().map(Waiting::count);
        let reached = [untold != all, untold == [0, 0], undone == [0, 0]];
        for (time, is_reached) in times.iter_mut().zip(reached) {
            if is_reached && time.is_none() {
                *time = Some(begun.elapsed());
            }
        }
    }
    eprintln!("{what}: {all:?} ends, the first was told, all were told, all did it: {times:?}");
    done.each_mut().map(Waiting::count)
}

/// Captures begin and end while bytes flow in both directions, with every call and every way of
/// waiting.
#[test]
fn nothing_is_lost_while_captures_begin_and_end() {
    let Some(namespace) = namespace() else { return };
    let starter = namespace.starter();
    let toehold = Toehold::start_in(&starter.each_ref().map(String::as_str), &[]);
    let run = ("captured", 7, 0, false);
    let mut checked = Checked::start(&toehold, Sides::DIRECT, STREAM, run);
    let mut random = Random::new(3);
    let mut progress = 0;
    for round in 0..host::rounds(40) {
        let socket = PacketSocket::open(&namespace);
        std::thread::sleep(Duration::from_millis(random.below(120)));
        drop(socket);
        std::thread::sleep(Duration::from_millis(random.below(120)));
        let moved = |checked: &Checked| {
            let ends = [checked.server_counters(), checked.client_counters()];
            ends[0].received.min(ends[1].received)
        };
        let goes_on = wait_until(TIME_LIMIT, || checked.over() || moved(&checked) > progress);
        assert!(
            goes_on && !checked.over(),
            "round {round}: stopped at {progress}\n{}\n{}\n{:?}",
            checked.server.outputs(),
            checked.client.outputs(),
            toehold.connections(),
        );
        progress = moved(&checked);
    }
    let connections = toehold.known_connections();
    let switches: u64 = connections.iter().map(|one| one.count("downgrades")).sum();
    assert!(switches > 0, "no capture had an effect");
    // The client ends; the server has checked all bytes that arrived.
    checked.client.signal(libc::SIGTERM);
    let said = checked.server.success(TIME_LIMIT);
    assert!(said.contains("received"), "{said}");
}

#[test]
fn tcpdump_sees_every_byte_and_status_says_why_it_is_slower() {
    if host::program("tcpdump").is_none() {
        return host::skipped("tcpdump is not installed");
    }
    for interface in ["lo", "any"] {
        let Some(mut observed) = Observed::start(&[]) else {
            return;
        };
        let file = observed.toehold.dir().join("capture.pcap");
        let mut command = observed.namespace.command("tcpdump");
        // tcpdump stays root, because other users cannot write to this directory.
        command.args(["-Z", "root", "-i", interface, "-U"]);
        // Short frames and a large buffer, because a full buffer would drop packets.
        command.args(["-s", "256", "-B", "65536", "-w"]);
        command.arg(&file);
        let mut tcpdump = Running::start(command, "tcpdump", observed.toehold.dir());
        let listens = wait_until(TIME_LIMIT, || tcpdump.stderr().contains("listening on"));
        assert!(listens, "{}", tcpdump.outputs());
        let captured = wait_until(TIME_LIMIT, || {
            observed.crowd.order("around 20");
            let connections = observed.toehold.connections();
            let mut reasons = connections.iter().map(|one| &one.value["reason"]);
            reasons.all(|reason| reason == CAPTURED)
        });
        assert!(captured, "{}", observed.whereabouts());
        observed.crowd.order("talk 7");
        // Each message travels in both directions. (The text `message 1` is also the beginning of
        // `message 11`.)
        let is_there = |message: &str| {
            let bytes = std::fs::read(&file).unwrap_or_default();
            let places = bytes.windows(message.len());
            places.filter(|it| *it == message.as_bytes()).count() >= 2
        };
        for n in 0..100 {
            let message = format!("message {n}");
            let written = wait_until(TIME_LIMIT, || is_there(&message));
            assert!(written, "{interface}: {message} was not captured");
        }
        tcpdump.stop();
        assert!(observed.all_are_direct(), "{}", observed.whereabouts());
        observed.crowd.end();
    }
}

/// The new adapter asks programs to report themselves, also those that make no requests.
#[test]
fn a_capture_sees_connections_that_an_earlier_adapter_has_introduced() {
    let Some(mut observed) = Observed::start(&[]) else {
        return;
    };
    observed.toehold.adapter().signal(libc::SIGKILL);
    observed.toehold.adapter().wait(TIME_LIMIT);
    observed.toehold.start_adapter();
    let socket = PacketSocket::open(&observed.namespace);
    let all_are = |observed: &mut Observed, is_captured: bool| {
        wait_until(TIME_LIMIT, || {
            observed.crowd.order("around 20");
            let connections = observed.toehold.known_connections();
            let are_so = connections.iter().filter(|one| match is_captured {
                true => !one.is_direct() && one.value["reason"] == CAPTURED,
                false => one.is_direct(),
            });
            are_so.count() == 2 * observed.count
        })
    };
    assert!(all_are(&mut observed, true), "{}", observed.whereabouts());
    drop(socket);
    assert!(all_are(&mut observed, false), "{}", observed.whereabouts());
    observed.crowd.end();
}

#[test]
fn connections_that_are_made_during_a_capture_are_seen_from_the_start() {
    let Some(mut observed) = Observed::start(&[]) else {
        return;
    };
    let socket = PacketSocket::open(&observed.namespace);
    // When connections move to the kernel, the adapter knows of the capture.
    let noticed = wait_until(TIME_LIMIT, || {
        observed.crowd.order("around 20");
        let connections = observed.toehold.known_connections();
        let mut reasons = connections.iter().map(|one| &one.value["reason"]);
        reasons.all(|reason| reason == CAPTURED)
    });
    assert!(noticed, "{}", observed.whereabouts());
    let arguments = ["10", "light"];
    let second = Crowd::start(&observed.toehold, PROGRAM, &arguments, TIME_LIMIT);
    let port = second.port();
    assert_eq!(socket.watch(port, 10).len(), 10);
    let theirs = |toehold: &Toehold| {
        let connections = toehold.known_connections();
        let theirs = connections.into_iter().filter(|one| one.has_port(port));
        theirs.collect::<Vec<_>>()
    };
    let connections = theirs(&observed.toehold);
    assert!(
        connections
            .iter()
            .all(|one| !one.is_direct() && one.value["reason"] == CAPTURED),
        "{connections:?}"
    );
    drop(socket);
    let mut second = second;
    let up = wait_until(TIME_LIMIT, || {
        second.order("around 50");
        theirs(&observed.toehold).iter().all(|one| one.is_direct())
    });
    assert!(up, "{:?}", theirs(&observed.toehold));
    second.end();
    assert!(observed.all_are_direct(), "{}", observed.whereabouts());
    observed.crowd.end();
}

#[test]
fn the_operators_command_outlasts_a_capture_and_an_adapter_may_ignore_captures() {
    let Some(mut observed) = Observed::start(&[]) else {
        return;
    };
    let all_are = |observed: &mut Observed, reason: &str| {
        wait_until(TIME_LIMIT, || {
            observed.crowd.order("around 20");
            let connections = observed.toehold.known_connections();
            connections.iter().all(|one| one.value["reason"] == reason)
        })
    };
    let socket = PacketSocket::open(&observed.namespace);
    assert!(
        all_are(&mut observed, CAPTURED),
        "{}",
        observed.whereabouts()
    );
    observed.toehold.detach_all();
    drop(socket);
    let detached = "detached by the operator";
    assert!(
        all_are(&mut observed, detached),
        "{}",
        observed.whereabouts()
    );
    let socket = PacketSocket::open(&observed.namespace);
    observed.toehold.attach_all();
    assert!(
        all_are(&mut observed, CAPTURED),
        "{}",
        observed.whereabouts()
    );
    drop(socket);
    assert!(observed.all_are_direct(), "{}", observed.whereabouts());
    observed.crowd.end();

    let Some(mut observed) = Observed::start(&["--observability", "ignore"]) else {
        return;
    };
    let socket = PacketSocket::open(&observed.namespace);
    observed.crowd.order("around 300");
    assert!(observed.all_are_direct(), "{}", observed.whereabouts());
    drop(socket);
    observed.crowd.end();
}

/// Loads nftables rules in a namespace.
fn nft(place: &Namespace, rules: &str) {
    let output = place.command("nft").arg(rules).output().expect("nft runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{rules}: {said}");
}

/// Makes a separate table and chain for rules.
const WATCH: &str = "add table inet watch; add chain inet watch input \
    { type filter hook input priority 0; }; ";

/// The number of packets that the rule in [`WATCH`]'s table has counted.
fn counted(place: &Namespace) -> u64 {
    let mut command = place.command("nft");
    let output = command.args(["list", "table", "inet", "watch"]).output();
    let text = String::from_utf8(output.expect("nft runs").stdout).expect("text");
    let mut words = text.split_whitespace();
    words.find(|word| *word == "packets").expect("a counter");
    let count = words.next().expect("a number");
    count.parse().expect("a number")
}

/// The kernel reports rules only to a privileged process. The adapter's user has the privilege in
/// this namespace.
#[test]
fn a_new_firewall_rule_sees_every_message_and_without_it_all_are_fast_again() {
    follow_a_new_firewall_rule(&[]);
}

/// The system adapter has dropped the privilege before it serves programs.
#[test]
fn a_new_firewall_rule_is_seen_by_the_system_adapter_too() {
    follow_a_new_firewall_rule(&["--system"]);
}

fn follow_a_new_firewall_rule(adapter_options: &[&str]) {
    if host::require(["nft"]).is_none() {
        return;
    }
    let Some(mut observed) = Observed::start(adapter_options) else {
        return;
    };
    let port = observed.crowd.port();
    // These rules do not match the packets of these connections, or nothing is lost if they do not
    // see the packets.
    for rule in [
        "udp dport 53 counter".to_owned(),
        "tcp dport 1 counter".to_owned(),
        "iifname eth0 counter".to_owned(),
        "ip saddr 10.0.0.0/8 drop".to_owned(),
        format!("tcp dport {port} accept"),
        format!("tcp dport {port} counter accept"),
    ] {
        nft(
            &observed.namespace,
            &format!("{WATCH}add rule inet watch input {rule}"),
        );
        observed.crowd.order("around 100");
        let none_is = observed.all_are_kept(false);
        assert!(none_is, "{rule}: {}", observed.whereabouts());
        nft(&observed.namespace, "delete table inet watch");
    }
    let rules = format!("{WATCH}add rule inet watch input tcp dport {port} counter");
    nft(&observed.namespace, &rules);
    assert!(observed.all_are_kept(true), "{}", observed.whereabouts());
    let before = counted(&observed.namespace);
    observed.crowd.order("talk 7");
    let counted = counted(&observed.namespace) - before;
    assert!(counted >= 100, "{counted} packets of 100 messages");
    nft(&observed.namespace, "delete table inet watch");
    assert!(observed.all_are_direct(), "{}", observed.whereabouts());
    observed.crowd.end();
}

fn tc(place: &Namespace, arguments: &[&str]) -> String {
    let output = place.command("tc").args(arguments).output();
    let output = output.expect("tc runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The number of packets that have passed the queueing discipline.
fn shaped(place: &Namespace) -> u64 {
    let text = tc(place, &["-s", "qdisc", "show", "dev", "lo", "root"]);
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "pkt");
    let count = words[at.expect("a count") - 1];
    count.parse().expect("a number")
}

/// A test that slows the network down must also slow connections within a host.
#[test]
fn traffic_control_of_loopback_shapes_every_message_and_without_it_all_are_fast_again() {
    if host::require(["tc"]).is_none() {
        return;
    }
    let Some(mut observed) = Observed::start(&[]) else {
        return;
    };
    const LOOPBACK: [&str; 4] = ["qdisc", "add", "dev", "lo"];
    const WIDE: [&str; 7] = ["root", "tbf", "rate", "8gbit", "burst", "1mb", "latency"];
    // The qdisc `clsact` only holds programs, and delays no packets.
    tc(&observed.namespace, &[&LOOPBACK[..], &["clsact"]].concat());
    observed.crowd.order("around 100");
    assert!(observed.all_are_kept(false), "{}", observed.whereabouts());
    let wide = [&LOOPBACK[..], &WIDE, &["100ms"]].concat();
    tc(&observed.namespace, &wide);
    assert!(observed.all_are_kept(true), "{}", observed.whereabouts());
    let before = shaped(&observed.namespace);
    observed.crowd.order("talk 7");
    let shaped = shaped(&observed.namespace) - before;
    assert!(shaped >= 100, "{shaped} packets of 100 messages");
    tc(&observed.namespace, &["qdisc", "del", "dev", "lo", "root"]);
    assert!(observed.all_are_direct(), "{}", observed.whereabouts());
    observed.crowd.end();
}

/// An observer cannot see connections on waiting carriers either.
#[test]
fn short_connections_are_the_kernels_while_a_capture_or_a_new_rule_sees_them() {
    if host::require(["nft"]).is_none() {
        return;
    }
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return host::skipped(&error.to_string()),
    };
    let starter = namespace.starter();
    let toehold = Toehold::start_in(&starter.each_ref().map(String::as_str), &[]);
    // `always`, because a busy host has few carriers, and late.
    let load = Generator::start(&toehold, Path::Express, &["--pattern", "connect"]);
    let connected = || express_count(&toehold.status(), "connected");
    // A kernel connection has at least seven segments. A connection on a carrier has at most a
    // doorbell.
    const SEEN: usize = 200;
    let are_express = || {
        let before = connected();
        let has_come = wait_until(TIME_LIMIT, || connected() > before);
        assert!(has_come, "{}\n{}", load.outputs(), toehold.status());
    };
    let are_the_kernels = |see: &dyn Fn() -> bool| {
        let are_seen = wait_until(TIME_LIMIT, || {
            let before = connected();
            see() && connected() == before
        });
        assert!(are_seen, "{}\n{}", load.outputs(), toehold.status());
    };
    are_express();
    let socket = PacketSocket::open(&namespace);
    are_the_kernels(&|| socket.count(load.port(), SEEN) >= SEEN);
    drop(socket);
    are_express();
    let rule = format!(
        "add rule inet watch input tcp dport {} counter",
        load.port()
    );
    nft(&namespace, &format!("{WATCH}{rule}"));
    are_the_kernels(&|| {
        let before = counted(&namespace);
        wait_until(TIME_LIMIT, || counted(&namespace) > before + SEEN as u64)
    });
    nft(&namespace, "delete table inet watch");
    are_express();
}

#[test]
fn a_rule_keeps_one_port_in_memory_while_a_capture_runs() {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("toehold.conf");
    std::fs::write(&file, "").expect("scratch");
    let rules = file.to_str().expect("text").to_owned();
    let Some(mut observed) = Observed::start(&["--rules", &rules]) else {
        return;
    };
    let mut second = Crowd::start(&observed.toehold, PROGRAM, &["10", "light"], TIME_LIMIT);
    let port = second.port();
    std::fs::write(&file, format!("port {port} observability ignore\n")).expect("scratch");
    observed.toehold.adapter().signal(libc::SIGHUP);
    let is_read = wait_until(TIME_LIMIT, || {
        observed
            .toehold
            .adapter()
            .stderr()
            .contains("reloaded: 1 rules")
    });
    assert!(is_read, "{}", observed.toehold.adapter().outputs());
    let socket = PacketSocket::open(&observed.namespace);
    // The rule also applies to connections that are made during the capture.
    let ignored = Crowd::start(&observed.toehold, PROGRAM, &["10", "light"], TIME_LIMIT);
    let mut ignored = (ignored.port(), ignored);
    let rules = format!(
        "port {port} observability ignore\nport {} observability ignore\n",
        ignored.0
    );
    std::fs::write(&file, rules).expect("scratch");
    observed.toehold.adapter().signal(libc::SIGHUP);
    let done = wait_until(TIME_LIMIT, || {
        observed.crowd.order("around 20");
        second.order("around 20");
        ignored.1.order("around 20");
        let connections = observed.toehold.known_connections();
        connections
            .iter()
            .all(|one| match one.has_port(port) || one.has_port(ignored.0) {
                true => one.is_direct(),
                false => one.value["reason"] == CAPTURED,
            })
    });
    assert!(done, "{}", observed.whereabouts());
    drop(socket);
    assert!(wait_until(TIME_LIMIT, || {
        observed.crowd.order("around 20");
        observed
            .toehold
            .known_connections()
            .iter()
            .all(|one| one.is_direct())
    }));
    second.end();
    ignored.1.end();
    observed.crowd.end();
}
