//! Connections between network namespaces, and through address translation, under the system
//! adapter. The adapter pairs two ends only if the kernel's data prove that they belong together.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toehold_e2e::process::TIME_LIMIT;
use toehold_e2e::system::{CLIENT, SERVER, System};
use toehold_e2e::{Running, host, toehold, wait_until};
use toehold_network::Namespace;

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
/// Debian's interpreter: another one earlier in `PATH` may be accessible to root only.
const PYTHON: &str = "/usr/bin/python3";

/// A system adapter that can prove connections. `None`, with a message, if no such adapter can run.
fn start() -> Option<System> {
    host::require(["nft", "ip"])?;
    let system = System::start(Path::new(PROGRAM))?;
    let words = system.status()["across_namespaces"].clone();
    let words = words.as_str().unwrap_or("no");
    if words != "yes" {
        host::skipped(&format!("the kernel's facts are not to be had: {words}"));
        return None;
    }
    Some(system)
}

fn namespace() -> Namespace {
    Namespace::new().expect("root makes namespaces")
}

/// Adds a veth between two namespaces. Its ends are up and have these addresses.
fn wire(one: (&Namespace, &str, &str), other: (&Namespace, &str, &str)) {
    one.0.add_veth(one.1, other.0, other.1, "").expect("a veth");
    for (place, device, address) in [one, other] {
        place
            .ip(&format!("addr add {address}/24 dev {device}"))
            .expect("an address");
        place.ip(&format!("link set {device} up")).expect("up");
    }
}

/// Loads nftables rules in a namespace.
fn nft(place: &Namespace, rules: &str) {
    let output = place.command("nft").arg(rules).output().expect("nft runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{rules}: {said}");
}

/// Sets a kernel parameter in a namespace.
fn set(place: &Namespace, name: &str, value: &str) {
    let path = format!("/proc/sys/net/{name}");
    let done = place.within(|| std::fs::write(&path, value));
    done.unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Starts a server in one namespace and a client in another. The client reaches the server by the
/// address `to`. Each sends `bytes`.
fn pair(
    system: &System,
    name: &str,
    server: (&Namespace, &str),
    client: (&Namespace, &str),
    seed_bytes: (&str, &str),
) -> [Running; 2] {
    let start = |user: u32, place: &Namespace, role: &[&str]| {
        let ledger = system.home(user).join(format!("{name}.ledger"));
        let ledger = ledger.to_string_lossy();
        let rest = [seed_bytes.0, seed_bytes.1, &*ledger];
        let role: Vec<&str> = role.iter().copied().chain(rest).collect();
        system.end(name, user, Some(place), &role)
    };
    let mut listening = start(SERVER, server.0, &["serve", server.1]);
    System::port_of(&mut listening);
    let reaching = start(CLIENT, client.0, &["reach", client.1]);
    [listening, reaching]
}

/// The addresses that one end of a pair knows: its own and its remote's.
fn addresses(system: &System, end: &Running) -> [SocketAddr; 2] {
    let all = system.connections(end.pid());
    ["local", "remote"].map(|key| {
        let text = all[0][key].as_str().expect("an address");
        text.parse().expect("an address")
    })
}

/// Waits until both ends have ended. Each end checks every byte that it receives.
fn finish(pair: &mut [Running; 2]) {
    for end in pair {
        let status = end.wait(TIME_LIMIT * 4);
        assert!(status.is_some_and(|it| it.success()), "{}", end.outputs());
    }
}

/// A client, a router that translates both addresses of a connection, and a server.
struct Behind {
    client: Namespace,
    _router: Namespace,
    server: Namespace,
}

impl Behind {
    fn new() -> Behind {
        let (client, router, server) = (namespace(), namespace(), namespace());
        wire((&client, "v0", "10.1.0.2"), (&router, "r0", "10.1.0.1"));
        wire((&router, "r1", "10.2.0.1"), (&server, "v0", "10.2.0.2"));
        set(&router, "ipv4/ip_forward", "1");
        nft(
            &router,
            "add table ip n
             add chain ip n pre { type nat hook prerouting priority -100; }
             add chain ip n post { type nat hook postrouting priority 100; }
             add rule ip n pre ip daddr 10.1.0.1 tcp dport 8000 dnat to 10.2.0.2:9000
             add rule ip n post oifname r1 masquerade",
        );
        // With this range the kernel chooses an equal port for every client.
        set(&client, "ipv4/ip_local_port_range", "40000 40001");
        Behind {
            client,
            _router: router,
            server,
        }
    }
}

/// The two connections have equal addresses and ports.
#[test]
fn twins_behind_address_translation_are_paired_each_with_its_own() {
    let Some(system) = start() else { return };
    let twins = [Behind::new(), Behind::new()];
    let mut pairs: Vec<_> = twins
        .iter()
        .enumerate()
        .map(|(n, twin)| {
            let seed = (n + 1).to_string();
            let server = (&twin.server, "10.2.0.2:9000");
            let client = (&twin.client, "10.1.0.1:8000");
            pair(&system, &format!("twin{n}"), server, client, (&seed, "0"))
        })
        .collect();
    for pair in &pairs {
        system.assert_in_memory(pair, "behind translation");
        let [client_local, client_remote] = addresses(&system, &pair[1]);
        let [server_local, server_remote] = addresses(&system, &pair[0]);
        assert_eq!(client_remote.to_string(), "10.1.0.1:8000");
        assert_eq!(server_local.to_string(), "10.2.0.2:9000");
        assert_ne!(server_remote, client_local, "masqueraded");
    }
    let [one, other] = [0, 1].map(|n| [0, 1].map(|end| addresses(&system, &pairs[n][end])));
    assert_eq!(one, other, "the twins have the same addresses");
    for pair in &mut pairs {
        for end in pair {
            assert!(end.ended().is_none(), "{}", end.outputs());
        }
    }
}

#[test]
fn every_byte_between_two_namespaces_is_right_and_the_end_comes_in_its_place() {
    let Some(system) = start() else { return };
    let (one, other, switch) = (namespace(), namespace(), namespace());
    // The two namespaces are connected by a bridge.
    switch.ip("link add br0 type bridge").expect("a bridge");
    switch.ip("link set br0 up").expect("up");
    for (place, port, address) in [(&one, "p0", "10.3.0.1"), (&other, "p1", "10.3.0.2")] {
        place.add_veth("v0", &switch, port, "").expect("a veth");
        place
            .ip(&format!("addr add {address}/24 dev v0"))
            .expect("an address");
        place.ip("link set v0 up").expect("up");
        switch
            .ip(&format!("link set {port} master br0 up"))
            .expect("a port");
    }
    let mut checked = pair(
        &system,
        "bridge",
        (&one, "10.3.0.1:7000"),
        (&other, "10.3.0.1:7000"),
        ("7", "200000000"),
    );
    finish(&mut checked);
    assert_eq!(system.status()["channels_made"].as_u64(), Some(1));
}

/// REDIRECT and DNAT in one namespace: the two ends know different addresses.
#[test]
fn a_redirected_connection_of_one_namespace_is_paired() {
    let Some(system) = start() else { return };
    let place = namespace();
    place.ip("addr add 10.4.0.1/32 dev lo").expect("an address");
    nft(
        &place,
        "add table ip n
         add chain ip n out { type nat hook output priority -100; }
         add rule ip n out tcp dport 8000 redirect to :7001
         add rule ip n out tcp dport 8001 dnat to 10.4.0.1:7002",
    );
    let ways = [
        ("redirect", "127.0.0.1:7001", "127.0.0.1:8000"),
        ("dnat", "10.4.0.1:7002", "127.0.0.1:8001"),
    ];
    for (n, (name, server, client)) in ways.into_iter().enumerate() {
        let (server, client) = ((&place, server), (&place, client));
        finish(&mut pair(&system, name, server, client, ("7", "50000000")));
        let made = system.status()["channels_made"].as_u64();
        assert_eq!(made, Some(n as u64 + 1), "{name}");
    }
}

/// Starts a proxy at `address` behind a redirection, and its client. With the path `host` both use
/// only the kernel. The client continues until the given files exist.
fn redirected(
    system: &System,
    place: &Namespace,
    path: &str,
    address: &str,
    files: &[PathBuf; 2],
) -> [Running; 2] {
    let script = system.scratch().join("redirected.py");
    std::fs::write(&script, include_str!("../scripts/redirected.py")).expect("scratch");
    let script = script.to_string_lossy();
    let start = |user: u32, words: &[&str]| {
        // `always`, because on a busy host few short connections make a carrier, and late.
        let options = ["run", "--path", path, "--express", "always", "--"];
        let all = [&options[..], &[PYTHON, &*script], words].concat();
        let mut command = system.toehold_as(user, &all);
        place.hold(&mut command);
        let name = format!("{}-{path}", words[0]);
        Running::start(command, &name, system.scratch())
    };
    let mut proxy = start(SERVER, &["proxy", address]);
    let listens = || proxy.stdout().contains("listens") || proxy.ended().is_some();
    let up = wait_until(TIME_LIMIT, listens);
    assert!(up && proxy.ended().is_none(), "{}", proxy.outputs());
    let [long, short] = files.each_ref().map(|file| file.to_string_lossy());
    let client = start(CLIENT, &["client", address, &long, &short]);
    [proxy, client]
}

/// A transparent proxy asks `SO_ORIGINAL_DST` for the address to which its client connected. The
/// answer must be the kernel's: right after `accept`, in shared memory, and on used carriers.
#[test]
fn a_proxy_is_told_where_a_redirected_connection_was_meant_to_go() {
    let Some(system) = start() else { return };
    for (family, address) in [("ip", "127.0.0.1"), ("ip6", "::1")] {
        let place = namespace();
        nft(
            &place,
            &format!(
                "add table {family} n
                 add chain {family} n out {{ type nat hook output priority -100; }}
                 add rule {family} n out tcp dport {{ 8000, 8001 }} redirect to :7001"
            ),
        );
        let files = ["long", "short"].map(|name| system.scratch().join(format!("{name}-{family}")));
        let end = |n: usize| std::fs::write(&files[n], "").expect("scratch");
        let accelerated = {
            let [proxy, client] = redirected(&system, &place, "auto", address, &files);
            let ends = [&proxy, &client];
            let outputs = || ends.map(Running::outputs).concat() + &system.status().to_string();
            let moved = wait_until(TIME_LIMIT, || {
                ends.iter().all(|end| system.in_memory(end.pid()) == 3)
            });
            assert!(moved, "{}", outputs());
            end(0);
            let are_used = wait_until(TIME_LIMIT, || {
                // Ask seldom, as `express_count` in `users` does.
                std::thread::sleep(Duration::from_millis(500));
                let status = system.status();
                let of = |name| toehold::express_count(&status, name);
                of("connected") > 20 && of("accepted") > 20
            });
            assert!(are_used, "{}", outputs());
            end(1);
            client.success(TIME_LIMIT)
        };
        let [_proxy, client] = redirected(&system, &place, "host", address, &files);
        let on_the_kernel = client.success(TIME_LIMIT);
        let meant = format!("short {address} 8001 is told {address} 8001");
        assert!(on_the_kernel.contains(&meant), "{on_the_kernel}");
        assert_eq!(accelerated, on_the_kernel);
    }
}

/// A proxy has two connections of its own. The adapter must not pair the two outer ends with each
/// other.
#[test]
fn a_proxy_in_between_keeps_the_ends_apart() {
    let Some(system) = start() else { return };
    let Some([socat]) = host::require(["socat"]) else {
        return;
    };
    let (one, other) = (namespace(), namespace());
    wire((&one, "v0", "10.5.0.1"), (&other, "v1", "10.5.0.2"));
    let mut command = other.command(&socat);
    command.args([
        "TCP-LISTEN:8000,fork,reuseaddr,bind=10.5.0.2",
        "TCP:10.5.0.1:7000",
    ]);
    let _proxy = Running::start(command, "socat", system.scratch());
    let listens = || {
        let list = other.command("ss").arg("-Hltn").output();
        list.is_ok_and(|list| String::from_utf8_lossy(&list.stdout).contains("10.5.0.2:8000"))
    };
    assert!(wait_until(TIME_LIMIT, listens), "socat does not listen");
    let mut checked = pair(
        &system,
        "proxied",
        (&one, "10.5.0.1:7000"),
        (&other, "10.5.0.2:8000"),
        ("7", "30000000"),
    );
    finish(&mut checked);
    assert_eq!(system.status()["channels_made"].as_u64(), Some(0));
}

/// A capture in the adapter's namespace, where containers have their bridges and veths, sees the
/// bytes, and so does a capture in the namespace of either end.
#[test]
fn a_capture_sees_what_crosses_namespaces() {
    let Some(system) = start() else { return };
    let Some([tcpdump]) = host::require(["tcpdump"]) else {
        return;
    };
    let (one, other) = (namespace(), namespace());
    wire((&one, "v0", "10.6.0.1"), (&other, "v1", "10.6.0.2"));
    let endless = pair(
        &system,
        "seen",
        (&one, "10.6.0.1:7000"),
        (&other, "10.6.0.1:7000"),
        ("7", "0"),
    );
    system.assert_in_memory(&endless, "before the capture");
    let moved = || {
        let all = system.connections(endless[0].pid());
        all[0]["bytes_ring_tx"].as_u64().unwrap_or(0)
    };
    for place in [&one, &other] {
        let device = if std::ptr::eq(place, &one) {
            "v0"
        } else {
            "v1"
        };
        let mut command = place.command(&tcpdump);
        // Another user than root would be made the owner of this device.
        command.args(["-i", device, "-Z", "root", "-w", "/dev/null"]);
        let capture = Running::start(command, "tcpdump", system.scratch());
        let yields = |end: &Running| {
            let all = system.connections(end.pid());
            let words = "a packet capture, new firewall rule or traffic control is to see it";
            all.iter().any(|one| one["reason"].as_str() == Some(words))
        };
        let follows = wait_until(TIME_LIMIT, || endless.iter().all(yields));
        assert!(follows, "{}", system.status());
        let before = moved();
        drop(capture);
        let returns = wait_until(TIME_LIMIT, || moved() > before + 1_000_000);
        assert!(returns, "{}", system.status());
    }
}

/// The operator can forbid pairs across namespaces.
#[test]
fn namespaces_stay_apart_where_the_operator_says_so() {
    let Some(mut system) = start() else { return };
    system.kill_adapter();
    system.start_adapter_with(&["--namespaces", "own"]);
    let (one, other) = (namespace(), namespace());
    wire((&one, "v0", "10.7.0.1"), (&other, "v1", "10.7.0.2"));
    let mut checked = pair(
        &system,
        "apart",
        (&one, "10.7.0.1:7000"),
        (&other, "10.7.0.1:7000"),
        ("7", "30000000"),
    );
    finish(&mut checked);
    assert_eq!(system.status()["channels_made"].as_u64(), Some(0));
}

/// Two pods, each a namespace with a proxy that runs as its own user, as in a service mesh.
///
/// ```text
///   pod 1: app ─► REDIRECT ─► proxy ───── veth ───── proxy ─► app :pod 2
/// ```
#[test]
fn a_chain_of_sidecars_is_paired_hop_by_hop() {
    let Some(system) = start() else { return };
    let Some([haproxy]) = host::require(["haproxy"]) else {
        return;
    };
    let (one, other) = (namespace(), namespace());
    wire((&one, "v0", "10.9.0.1"), (&other, "v1", "10.9.0.2"));
    nft(
        &one,
        &format!(
            "add table ip n
             add chain ip n out {{ type nat hook output priority -100; }}
             add rule ip n out meta skuid != {PROXY} tcp dport 8080 redirect to :15001"
        ),
    );
    let proxy = |place: &Namespace, name: &str, listens: &str, to: &str| {
        let file = system.home(PROXY).join(name);
        let text = format!(
            "defaults\n mode tcp\n timeout connect 30s\n timeout client 1h\n \
             timeout server 1h\nlisten l\n bind {listens}\n server s {to}\n"
        );
        std::fs::write(&file, text).expect("scratch");
        let haproxy = haproxy.to_string_lossy();
        let file = file.to_string_lossy();
        let words = ["run", "--", &*haproxy, "-db", "-f", &*file];
        let mut command = system.toehold_as(PROXY, &words);
        place.hold(&mut command);
        let mut proxy = Running::start(command, name, system.scratch());
        let is_up = || {
            let list = place.command("ss").arg("-Hltn").output();
            let list = list.map(|list| String::from_utf8_lossy(&list.stdout).into_owned());
            list.is_ok_and(|list| list.contains(listens))
        };
        let up = wait_until(TIME_LIMIT, || is_up() || proxy.ended().is_some());
        assert!(up && proxy.ended().is_none(), "{}", proxy.outputs());
        proxy
    };
    let near = proxy(&one, "near", "127.0.0.1:15001", "10.9.0.2:15006");
    let far = proxy(&other, "far", "10.9.0.2:15006", "127.0.0.1:8080");
    let chain = |name: &str| {
        let start = |place: &Namespace, role: &str, address: &str| {
            let ledger = system.home(APP).join(format!("{name}.{role}"));
            let words = [role, address, "7", "0", &*ledger.to_string_lossy()];
            system.end(&format!("{name}-{role}"), APP, Some(place), &words)
        };
        let mut server = start(&other, "serve", "127.0.0.1:8080");
        System::port_of(&mut server);
        [server, start(&one, "reach", "10.9.0.2:8080")]
    };
    let mut endless = chain("endless");
    system.assert_in_memory(&endless, "the two applications");
    let proxies = wait_until(TIME_LIMIT, || {
        let mut both = [&near, &far].into_iter();
        both.all(|proxy| system.in_memory(proxy.pid()) == 2)
    });
    assert!(proxies, "{}", system.status());
    assert_eq!(system.status()["channels_made"].as_u64(), Some(3));
    for end in &mut endless {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
    // Each end has checked all bytes so far. The test does not check the end of the connections:
    // haproxy resets some of them after both sides have ended, also without Toehold.
}

/// The user IDs of applications and of proxies, as in Istio.
const APP: u32 = 1000;
const PROXY: u32 = 1337;
