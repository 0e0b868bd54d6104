//! One interface with one address, which the near kernel and the engine share.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use toehold_e2e::load::Pattern;
use toehold_e2e::network::{FAR, FAR_V6, NEAR, NEAR_V6};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, Nginx, Path, host, wait_until};

use crate::stage::{Stage, await_word, listening, ok, script};

/// A server on the near kernel, without Toehold.
pub(crate) fn kernel_server(stage: &Stage, role: &str, port: &str) -> Running {
    let mut command = stage.network.near(&stage.python);
    command.args(script()).args([role, port]);
    listening(Running::start(
        command,
        "kernel-server",
        stage.toehold.dir(),
    ))
}

fn in_use(stage: &Stage) -> Vec<u64> {
    let status = stage.toehold.status();
    let shared = status["engine"]["shared"].as_array().cloned();
    let ports = shared.unwrap_or_default().into_iter().flat_map(|shared| {
        let ports = shared["in_use"].as_array().cloned();
        ports.unwrap_or_default()
    });
    ports.filter_map(|port| port.as_u64()).collect()
}

/// Two servers at one address, one on the engine and one on the kernel, both under load.
fn engine_and_kernel_serve(link: Link) {
    let Some(stage) = Stage::set_sharing(link, &["--share", NEAR]) else {
        return;
    };
    let _kernel = kernel_server(&stage, "echo_server", "7901");
    let _everywhere = stage.near_server(&["echo_server", "7902"]);
    let _there = stage.near_server(&["echo_server", "7903", NEAR]);
    let _far = stage.far_server(&["echo_server", "7904"]);
    assert!(wait_until(TIME_LIMIT, || in_use(&stage) == [7902, 7903]));
    let clients = ["7901", "7902", "7903"]
        .map(|port| stage.far(port, &["echo_client", NEAR, port, "20000000"]));
    let short = ["7901", "7902"].map(|port| stage.far(port, &["many", NEAR, port, "300"]));
    // The kernel has all ports for outgoing connections, also for those of programs on the offload
    // path.
    let outgoing = stage.near("outgoing", &["echo_client", FAR, "7904", "20000000"]);
    // A connection within the host uses the kernel or shared memory.
    ok(stage.near_on(
        Path::Host,
        "within",
        &["echo_client", NEAR, "7902", "100000"],
    ));
    ok(stage.near("within", &["echo_client", NEAR, "7903", "100000"]));
    for client in clients.into_iter().chain(short).chain([outgoing]) {
        ok(client);
    }
    assert_eq!(stage.engine("connections_accepted"), 302);
    assert_eq!(stage.engine("connections_opened"), 0);
    assert_eq!(stage.engine("frames_malformed"), 0);
    ok(stage.far("refused", &["expect_error", NEAR, "9", "ECONNREFUSED"]));
    if host::program("ping").is_some() {
        let mut ping = stage.network.far("ping");
        let answered = ping.args(["-c", "1", "-W", "5", NEAR]).status();
        assert!(
            answered.is_ok_and(|status| status.success()),
            "the kernel answers"
        );
    }
}

#[test]
fn engine_and_kernel_serve_at_one_address_over_a_packet_link() {
    engine_and_kernel_serve(Link::Packet);
}

#[test]
fn engine_and_kernel_serve_at_one_address_over_an_xdp_link() {
    engine_and_kernel_serve(Link::Xdp);
}

/// Two servers at one IPv6 address, and a server of the engine at an IPv4 address of this host.
fn engine_and_kernel_serve_at_one_ipv6_address(link: Link) {
    let Some(stage) = Stage::set_sharing(link, &["--share", NEAR_V6, "--share", NEAR]) else {
        return;
    };
    let _near = stage.near_server(&["echo_server", "7911", NEAR_V6]);
    let _near_v4 = stage.near_server(&["echo_server", "7913", NEAR]);
    let mut kernel = stage.network.near(&stage.python);
    kernel.args(script()).args(["echo_server", "7912", NEAR_V6]);
    let _kernel = listening(Running::start(kernel, "kernel", stage.toehold.dir()));
    let clients =
        ["7911", "7912"].map(|port| stage.far(port, &["echo_client", NEAR_V6, port, "10000000"]));
    let beside = stage.far("v4", &["echo_client", NEAR, "7913", "10000000"]);
    for client in clients {
        assert!(ok(client).contains(&format!("local {FAR_V6}")));
    }
    ok(beside);
    assert_eq!(stage.engine("connections_accepted"), 2);
    assert_eq!(stage.engine("frames_malformed"), 0);
}

#[test]
fn engine_and_kernel_serve_at_one_ipv6_address_over_a_packet_link() {
    engine_and_kernel_serve_at_one_ipv6_address(Link::Packet);
}

#[test]
fn engine_and_kernel_serve_at_one_ipv6_address_over_an_xdp_link() {
    engine_and_kernel_serve_at_one_ipv6_address(Link::Xdp);
}

/// The source port of a program's connection, as a far server sees it.
fn port_seen(stage: &Stage, on: Path, port: &str) -> u16 {
    let server = stage.far_server(&["names_server", port]);
    ok(stage.near_on(on, "names", &["names_client", FAR, port]));
    let said = ok(server);
    let peer = said.split_whitespace().nth(3).map(str::parse);
    peer.expect("a port").unwrap_or_else(|_| panic!("{said}"))
}

/// The near kernel's reserved ports, which the kernel does not choose for its connections.
fn reserved(stage: &Stage) -> String {
    let read = "print(open('/proc/sys/net/ipv4/ip_local_reserved_ports').read())";
    let mut command = stage.network.near(&stage.python);
    let said = command.args(["-c", read]).output().expect("it runs").stdout;
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// The programs' connections use source ports of the range, and the kernel's connections use other
/// ports. Both the kernel and the engine also have servers.
fn programs_connect(link: Link) {
    let options = ["--share", NEAR, "--outgoing", "40000-40199"];
    let Some(stage) = Stage::set_sharing(link, &options) else {
        return;
    };
    assert_eq!(reserved(&stage), "40000-40199");
    let range = 40_000..=40_199;
    assert!(range.contains(&port_seen(&stage, Path::Offload, "7950")));
    assert!(!range.contains(&port_seen(&stage, Path::Host, "7951")));
    assert_eq!(stage.engine("connections_opened"), 1);
    let _far = stage.far_server(&["echo_server", "7952"]);
    let _near = stage.near_server(&["echo_server", "7953"]);
    let _kernel = kernel_server(&stage, "echo_server", "7954");
    let talk = ["echo_client", FAR, "7952", "20000000"];
    let clients = [
        stage.near("engine", &talk),
        stage.near_on(Path::Host, "kernel", &talk),
        stage.near("many", &["many", FAR, "7952", "150"]),
        stage.near_on(Path::Host, "many-kernel", &["many", FAR, "7952", "150"]),
        stage.far("in", &["echo_client", NEAR, "7953", "20000000"]),
        stage.far("in-kernel", &["echo_client", NEAR, "7954", "20000000"]),
        // A connection within the host uses the kernel or shared memory.
        stage.near("within", &["echo_client", NEAR, "7953", "1000000"]),
        stage.near("loopback", &["echo_client", "127.0.0.1", "7954", "1000000"]),
    ];
    for client in clients {
        ok(client);
    }
    assert_eq!(stage.engine("connections_opened"), 152);
    ok(stage.near("refused", &["expect_error", FAR, "9", "ECONNREFUSED"]));
    assert!(stage.engine("connections_opened") > 152);
    assert_eq!(stage.engine("frames_malformed"), 0);
    assert_eq!(stage.engine("ports_not_set"), 0);
}

#[test]
fn connections_go_out_from_a_range_of_the_hosts_ports_over_a_packet_link() {
    programs_connect(Link::Packet);
}

#[test]
fn connections_go_out_from_a_range_of_the_hosts_ports_over_an_xdp_link() {
    programs_connect(Link::Xdp);
}

fn programs_connect_from_an_ipv6_address(link: Link) {
    let options = ["--share", NEAR_V6, "--outgoing", "61000-61099"];
    let Some(stage) = Stage::set_sharing(link, &options) else {
        return;
    };
    // The kernel does not choose these ports anyway, so it has no reserved ports.
    assert_eq!(reserved(&stage), "");
    let _far = ["::", "0.0.0.0"].map(|at| stage.far_server(&["echo_server", "7955", at]));
    for remote in [FAR_V6, FAR] {
        ok(stage.near(remote, &["echo_client", remote, "7955", "1000000"]));
    }
    // No IPv4 address is shared, so the engine has opened only the IPv6 connection.
    assert_eq!(stage.engine("connections_opened"), 1);
}

#[test]
fn connections_go_out_from_a_range_of_ports_of_an_ipv6_address_over_a_packet_link() {
    programs_connect_from_an_ipv6_address(Link::Packet);
}

#[test]
fn connections_go_out_from_a_range_of_ports_of_an_ipv6_address_over_an_xdp_link() {
    programs_connect_from_an_ipv6_address(Link::Xdp);
}

#[test]
fn connections_that_go_out_end_with_the_adapter_and_a_new_one_makes_new_ones() {
    let options = ["--share", NEAR, "--outgoing", "40400-40419"];
    let Some(mut stage) = Stage::set_sharing(Link::Packet, &options) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7961"]);
    let held = stage.near("held", &["held", FAR, "7961", "ECONNRESET"]);
    let kernel = stage.near_on(Path::Host, "kernel", &["steady", FAR, "7961"]);
    for program in [&held, &kernel] {
        await_word(program, "holding");
    }
    stage.toehold.adapter().signal(libc::SIGKILL);
    ok(held);
    stage.toehold.start_adapter();
    // The killed adapter had reserved these ports.
    assert_eq!(reserved(&stage), "40400-40419");
    ok(stage.near("with", &["echo_client", FAR, "7961", "100000"]));
    assert_eq!(stage.engine("connections_opened"), 1);
    kernel.signal(libc::SIGUSR1);
    ok(kernel);
}

#[test]
fn connections_that_cannot_go_out_from_the_range_are_the_kernels() {
    let options = ["--share", NEAR, "--outgoing", "40200-40203"];
    let Some(stage) = Stage::set_sharing(Link::Packet, &options) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7956"]);
    // More connections than there are ports.
    ok(stage.near("many", &["many", FAR, "7956", "20"]));
    assert_eq!(stage.engine("connections_opened"), 4);
    // A port that the program chooses belongs to the kernel.
    let _other = stage.far_server(&["echo_server", "7957"]);
    let own = ["one_port", FAR, "7956", "7957", NEAR, NEAR, "7959"];
    ok(stage.near("own-port", &own));
    ok(stage.near("marked", &["marked_client", FAR, "7956"]));
    // This connection uses another interface.
    let ends = [["w0", "10.85.0.2/24"], ["w1", "10.85.0.1/24"]];
    assert!(stage.network.join_again(ends[0], ends[1]));
    let elsewhere = ["echo_client", "10.85.0.1", "7956", "100000"];
    assert!(ok(stage.near("elsewhere", &elsewhere)).contains("local 10.85.0.2"));
    assert_eq!(stage.engine("connections_opened"), 4);
}

#[test]
fn port_that_a_kernels_socket_has_is_left_to_it() {
    let Some(mut stage) = Stage::set_sharing(Link::Packet, &["--share", NEAR]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7958"]);
    let _kernel = kernel_server(&stage, "echo_server", "40301");
    let options = [
        "--link",
        "packet:v0",
        "--share",
        NEAR,
        "--outgoing",
        "40300-40301",
    ];
    stage.toehold.use_adapter_arguments(&options);
    stage.toehold.start_adapter();
    ok(stage.near("many", &["many", FAR, "7958", "10"]));
    assert_eq!(stage.engine("connections_opened"), 1);
    ok(stage.far("in", &["echo_client", NEAR, "40301", "100000"]));
    // The adapter reports a range that is fully in use.
    let options = [
        "--link",
        "packet:v0",
        "--share",
        NEAR,
        "--outgoing",
        "40301",
    ];
    stage.toehold.use_adapter_arguments(&options);
    stage.toehold.start_adapter();
    let said = stage.toehold.adapter().stderr();
    assert!(
        said.contains("all ports of outgoing 40301 are in use"),
        "{said}"
    );
    ok(stage.near("kernel", &["echo_client", FAR, "7958", "100000"]));
    assert_eq!(stage.engine("connections_opened"), 0);
}

#[test]
fn connections_stay_with_the_kernel_while_it_gives_its_ports_to_others() {
    let Some([nft]) = host::require(["nft"]) else {
        return;
    };
    let options = ["--share", NEAR, "--outgoing", "61000-61099"];
    let Some(stage) = Stage::set_sharing(Link::Packet, &options) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7959"]);
    let rule = |text: &str| {
        let done = stage.network.near(&nft).arg(text).status();
        assert!(done.is_ok_and(|status| status.success()), "{text}");
    };
    let goes_out = || stage.toehold.known()["engine"]["shared"][0]["goes_out"] == true;
    let mut held = stage.near("held", &["held", FAR, "7959", "ECONNRESET"]);
    await_word(&held, "holding");
    assert!(goes_out());
    rule("add table ip t");
    rule("add chain ip t c { type nat hook postrouting priority 100; }");
    rule("add rule ip t c ip saddr 10.99.0.0/16 masquerade");
    assert!(wait_until(TIME_LIMIT, || !goes_out()));
    ok(stage.near("kernel", &["echo_client", FAR, "7959", "100000"]));
    assert_eq!(stage.engine("connections_opened"), 1);
    let said = stage.toehold.ask(&["status"]).expect("an answer");
    assert!(said.contains("stay with the kernel"), "{said}");
    assert!(held.ended().is_none(), "{}", held.outputs());
    rule("flush chain ip t c");
    assert!(wait_until(TIME_LIMIT, goes_out));
    ok(stage.near("engine", &["echo_client", FAR, "7959", "100000"]));
    assert_eq!(stage.engine("connections_opened"), 2);
    assert!(held.ended().is_none(), "{}", held.outputs());
}

#[test]
fn nginx_serves_at_the_hosts_own_address() {
    let share = format!("{NEAR}:8091");
    let Some(stage) = Stage::set_sharing(Link::Packet, &["--share", &share]) else {
        return;
    };
    let Some([nginx, curl, wrk]) = host::require(["nginx", "curl", "wrk"]) else {
        return;
    };
    let command = stage.offloaded(&nginx.to_string_lossy(), &[]);
    let nginx = Nginx::start(
        command,
        stage.toehold.dir(),
        NEAR,
        8091,
        &[1_000, 5_000_000],
    );
    stage.await_listeners(1);
    let target = stage.toehold.dir().join("body");
    let mut get = stage.network.far(&curl);
    get.args(["-sS", "--fail", "--max-time", "60", "-o"])
        .arg(&target);
    get.arg(format!("http://{NEAR}:8091/5000000"));
    Running::start(get, "curl", stage.toehold.dir()).success(TIME_LIMIT);
    let mut expected = vec![0; 5_000_000];
    Pattern::new(5_000_000).fill(0, &mut expected);
    assert!(fs::read(&target).is_ok_and(|got| got == expected));
    let mut load = stage.network.far(&wrk);
    load.args(["-t1", "-c30", "-d2s", &format!("http://{NEAR}:8091/1000")]);
    let report = Running::start(load, "wrk", stage.toehold.dir()).success(TIME_LIMIT);
    let is_clean = report.contains("Requests/sec") && !report.contains("Socket errors");
    assert!(is_clean, "{report}");
    assert!(stage.engine("connections_accepted") >= 31);
    drop(nginx);
    // The engine still has connections in TIME-WAIT. A new connection goes to the kernel, which
    // refuses it.
    stage.await_listeners(0);
    ok(stage.far("refused", &["expect_error", NEAR, "8091", "ECONNREFUSED"]));
}

/// A remote beyond the link is reached by the kernel's route, initially and after each change of
/// routes and rules.
fn remotes_are_served_by_all_kinds_of_routes(link: Link) {
    let Some(stage) = Stage::set_sharing(link, &["--share", NEAR]) else {
        return;
    };
    const BEYOND: &str = "10.55.0.1";
    let near_ip = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        assert!(stage.network.near_ip(&words), "{words:?}");
    };
    let far_ip = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        assert!(stage.network.far_ip(&words), "{words:?}");
    };
    far_ip(&format!("addr add {BEYOND}/32 dev lo"));
    far_ip("addr add 10.84.0.3/24 dev toe0");
    far_ip("-6 addr add fe80::99/64 dev toe0 nodad");
    let _near = stage.near_server(&["echo_server", "7951"]);
    let _kernel = kernel_server(&stage, "echo_server", "7952");
    let is_served = |port: u16, patience: f32| {
        let connect = format!(
            "import socket; c = socket.create_connection(('{NEAR}', {port}), {patience}, \
            ('{BEYOND}', 0)); c.sendall(b'x'); c.recv(1)"
        );
        let mut client = stage.network.far(&stage.python);
        client.args([host::PYTHON_ALONE, "-c", &connect]);
        client.output().is_ok_and(|output| output.status.success())
    };
    let mut accepted = 0;
    for (before, after) in [
        ("route add 10.55.0.0/24 dev v0", "route del 10.55.0.0/24"),
        (
            "route add 10.55.0.0/24 nexthop via 10.84.0.1 nexthop via 10.84.0.3",
            "route del 10.55.0.0/24",
        ),
        (
            "route add 10.55.0.0/24 via inet6 fe80::99 dev v0",
            "route del 10.55.0.0/24",
        ),
        (
            "route add default via 10.84.0.1 table 7",
            "route add blackhole 10.55.0.0/24",
        ),
    ] {
        near_ip(before);
        if before.ends_with("table 7") {
            near_ip("rule add from 10.84.0.2 table 7");
        }
        for port in [7952, 7951] {
            assert!(is_served(port, 5.0), "{before}: port {port}");
        }
        accepted += 1;
        assert_eq!(stage.engine("connections_accepted"), accepted, "{before}");
        near_ip(after);
    }
    // The rule's table still comes first. Without the rule, no route leads to the remote.
    assert!(is_served(7951, 5.0));
    near_ip("rule del from 10.84.0.2 table 7");
    for port in [7952, 7951] {
        let is_silent = wait_until(TIME_LIMIT, || !is_served(port, 0.3));
        assert!(is_silent, "port {port}");
    }
}

#[test]
fn remotes_are_served_by_all_kinds_of_routes_over_a_packet_link() {
    remotes_are_served_by_all_kinds_of_routes(Link::Packet);
}

#[test]
fn remotes_are_served_by_all_kinds_of_routes_over_xdp() {
    remotes_are_served_by_all_kinds_of_routes(Link::Xdp);
}

/// A tool that configures the interface removes the address and adds it again.
fn connections_outlive_an_address_that_comes_back(link: Link) {
    let Some(stage) = Stage::set_sharing(link, &["--share", NEAR]) else {
        return;
    };
    let _near = stage.near_server(&["echo_server", "7961"]);
    let _kernel = kernel_server(&stage, "echo_server", "7962");
    let mut loads = ["7961", "7962"].map(|port| stage.far(port, &["steady", NEAR, port]));
    loads.iter().for_each(|load| await_word(load, "holding"));
    assert_eq!(stage.engine("connections_accepted"), 1);
    for how in ["del", "add"] {
        assert!(
            stage
                .network
                .near_ip(&["addr", how, "10.84.0.2/24", "dev", "v0"])
        );
        sleep(Duration::from_secs(1));
        for load in &mut loads {
            assert!(load.ended().is_none(), "{how}: {}", load.outputs());
        }
    }
    for load in loads {
        load.signal(libc::SIGUSR1);
        ok(load);
    }
    // The engine also accepts new connections at the address.
    ok(stage.far("again", &["echo_client", NEAR, "7961", "100000"]));
    assert_eq!(stage.engine("connections_accepted"), 2);
}

#[test]
fn connections_outlive_an_address_that_comes_back_over_a_packet_link() {
    connections_outlive_an_address_that_comes_back(Link::Packet);
}

#[test]
fn connections_outlive_an_address_that_comes_back_over_an_xdp_link() {
    connections_outlive_an_address_that_comes_back(Link::Xdp);
}

#[test]
fn what_cannot_be_shared_is_said_and_the_rest_goes_on() {
    let Some(mut stage) = Stage::set_sharing(Link::Packet, &["--share", NEAR]) else {
        return;
    };
    let _kernel = kernel_server(&stage, "echo_server", "7931");
    let file = stage.toehold.dir().join("engine.conf");
    let settings = format!("share 10.84.0.9\nshare {NEAR}:7931-7932\n");
    fs::write(&file, settings).expect("scratch");
    let file = file.to_string_lossy().into_owned();
    stage
        .toehold
        .use_adapter_arguments(&["--link", "packet:v0", "--config", &file]);
    stage.toehold.start_adapter();
    let said = stage.toehold.adapter().stderr();
    for part in [
        "line 1: `10.84.0.9` cannot be shared, because v0 does not have it: it has 10.84.0.2",
        "line 2: port 7931 of 10.84.0.2 is in use: the kernel serves it until",
    ] {
        assert!(said.contains(part), "{part:?} in\n{said}");
    }
    let _near = stage.near_server(&["echo_server", "7932"]);
    let _not_allowed = listening(stage.near("other", &["echo_server", "7933"]));
    for port in ["7931", "7932", "7933"] {
        ok(stage.far(port, &["echo_client", NEAR, port, "100000"]));
    }
    assert_eq!(stage.engine("connections_accepted"), 1);
    // The address is added and removed again. When it does not come back, its connections end.
    assert!(
        stage
            .network
            .near_ip(&["addr", "add", "10.84.0.9/24", "dev", "v0"])
    );
    let _both = stage.near_server(&["echo_server", "7934"]);
    let held = stage.far("held", &["held", "10.84.0.9", "7934", "ECONNRESET"]);
    await_word(&held, "holding");
    assert!(wait_until(TIME_LIMIT, || stage
        .engine("connections_accepted")
        == 2));
    assert!(
        stage
            .network
            .near_ip(&["addr", "del", "10.84.0.9/24", "dev", "v0"])
    );
    ok(held);
}

/// The kernel would also answer at its own address, and would reset the engine's connections.
#[test]
fn what_is_the_kernels_is_not_the_engines_alone() {
    let Some(mut stage) = Stage::set_sharing(Link::Packet, &["--share", NEAR]) else {
        return;
    };
    let mut arguments = vec!["--link", "packet:v0", "--address", "10.84.0.2/24"];
    arguments.extend(["--address", "10.84.0.9/24"]);
    stage.toehold.use_adapter_arguments(&arguments);
    stage.toehold.start_adapter();
    let said = stage.toehold.adapter().stderr();
    let cause =
        "`10.84.0.2` is an address of this host: share it with the kernel (share 10.84.0.2)";
    assert!(said.contains(cause), "{said}");
    let addresses = &stage.toehold.known()["engine"]["addresses"];
    assert_eq!(addresses.as_array().map(Vec::len), Some(1), "{addresses}");
    assert_eq!(addresses[0], "10.84.0.9");
    // The adapter must not blame the device's queues.
    let arguments = ["--link", "tap:v0", "--address", "10.84.0.9/24"];
    stage.toehold.use_adapter_arguments(&arguments);
    stage.toehold.start_adapter();
    let said = stage.toehold.adapter().stderr();
    let cause = "the interface v0 is no TAP device: use packet:v0 or xdp:v0";
    assert!(said.contains(cause), "{said}");
}

#[test]
fn what_cannot_be_shared_is_said_when_the_file_is_read_again() {
    let Some(mut stage) = Stage::set_sharing(Link::Packet, &["--share", NEAR]) else {
        return;
    };
    let _kernel = kernel_server(&stage, "echo_server", "7941");
    let file = stage.toehold.dir().join("engine.conf");
    let good = format!("share {NEAR}:7942\n");
    fs::write(&file, &good).expect("scratch");
    let name = file.to_string_lossy().into_owned();
    stage
        .toehold
        .use_adapter_arguments(&["--link", "packet:v0", "--config", &name]);
    stage.toehold.start_adapter();
    let complaints = |stage: &Stage| {
        let said = stage.toehold.known()["engine"]["complaints"].clone();
        said.as_array().map_or(0, Vec::len)
    };
    assert_eq!(complaints(&stage), 0);
    let _near = stage.near_server(&["echo_server", "7942"]);
    let mut held = stage.far("held", &["held", NEAR, "7942", "ECONNRESET"]);
    await_word(&held, "holding");
    let read_again = |stage: &mut Stage, settings: &str| {
        let before = stage.engine("reconfigured");
        fs::write(&file, settings).expect("scratch");
        stage.toehold.adapter().signal(libc::SIGHUP);
        let is_followed = wait_until(TIME_LIMIT, || stage.engine("reconfigured") > before);
        assert!(is_followed, "{}", stage.toehold.adapter().outputs());
    };
    read_again(
        &mut stage,
        &format!("share 10.84.0.9\nshare {NEAR}:7941-7942\n"),
    );
    let parts = [
        "line 1: `10.84.0.9` cannot be shared, because v0 does not have it: it has 10.84.0.2",
        "line 2: port 7941 of 10.84.0.2 is in use: the kernel serves it until",
    ];
    let is_said = || {
        let said = stage.toehold.adapter().stderr();
        parts.iter().all(|part| said.contains(part))
    };
    assert!(
        wait_until(TIME_LIMIT, is_said),
        "{}",
        stage.toehold.adapter().outputs()
    );
    // A program's port on the engine is a port in use, and causes no complaint.
    assert_eq!(complaints(&stage), 2);
    for port in ["7941", "7942"] {
        ok(stage.far(port, &["echo_client", NEAR, port, "100000"]));
    }
    assert_eq!(stage.engine("connections_accepted"), 2);
    read_again(&mut stage, &good);
    assert_eq!(complaints(&stage), 0);
    // The earlier connection has not been disturbed.
    assert!(wait_until(TIME_LIMIT, || stage.engine("connections") == 1));
    assert!(held.ended().is_none(), "{}", held.outputs());
}
