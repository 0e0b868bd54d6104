//! Programs on the adapter's TCP engine, with programs on kernel TCP in another network namespace
//! at the other end.

mod addresses;
mod capture;
mod changes;
mod conversations;
mod fast_open;
mod hostile;
mod interface;
mod kills;
mod packet;
mod policy;
mod programs;
mod quota;
mod remotes;
mod semantics;
mod servers;
mod shared;
mod short;
mod short_opens;
mod stage;
mod threads;
mod unread;
mod xdp;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use toehold_e2e::network::{FAR, FAR_V6, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, Network, Path, Toehold, host, wait_until};

use stage::{Stage, await_word, listening, ok, script};

#[test]
fn streams_are_echoed_whole_as_client_and_as_server() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7001"]);
    let _near = stage.near_server(&["echo_server", "7002"]);
    let said = ok(stage.near("client", &["echo_client", FAR, "7001", "20000000"]));
    assert!(said.contains(&format!("local {NEAR}")), "{said}");
    let said = ok(stage.far("client", &["echo_client", NEAR, "7002", "20000000"]));
    assert!(said.contains(&format!("local {FAR}")), "{said}");
    assert!(stage.engine("bytes_sent") >= 40_000_000);
    assert_eq!(stage.engine("frames_malformed"), 0);
}

#[test]
fn streams_are_echoed_whole_without_the_link_s_help() {
    let options = ["--no-checksum", "--mtu", "1500"];
    let Some(stage) = Stage::set(&options) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7001"]);
    let _near = stage.near_server(&["echo_server", "7002"]);
    ok(stage.near("client", &["echo_client", FAR, "7001", "3000001"]));
    ok(stage.far("client", &["echo_client", NEAR, "7002", "3000001"]));
}

#[test]
fn payload_of_a_lone_stream_is_read_to_where_it_belongs() {
    let Some(stage) = Stage::set_over(Link::Tap, &[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7001"]);
    ok(stage.near("client", &["echo_client", FAR, "7001", "100000000"]));
    let in_place = stage.engine("payloads_in_place");
    assert!(in_place > 0);
    // With two programs, payload in place could let one program see the other program's bytes.
    let _near = stage.near_server(&["echo_server", "7002"]);
    ok(stage.near("client", &["echo_client", FAR, "7001", "20000000"]));
    assert_eq!(stage.engine("payloads_in_place"), in_place);
}

#[test]
fn payload_over_ipv6_is_read_to_where_it_belongs() {
    for link in [Link::Tap, Link::Packet] {
        let Some(stage) = Stage::set_over(link, &["--threads", "1"]) else {
            return;
        };
        let _far = stage.far_server(&["echo_server", "7003", FAR_V6]);
        ok(stage.near("client", &["echo_client", FAR_V6, "7003", "100000000"]));
        assert!(stage.engine("payloads_in_place") > 0, "{link:?}");
    }
}

/// Changes one setting of the running adapter; returns its error message, if any.
fn set(stage: &Stage, setting: &str) -> Option<String> {
    let mut set = stage.toehold.asking(&["adapter", "--set", setting]);
    let output = set.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(said)
}

#[test]
fn payload_is_copied_by_a_copy_engine_and_every_byte_arrives() {
    for (link, port) in [(Link::Tap, "7041"), (Link::Packet, "7042")] {
        // Frames that are passed on between threads are copied at once.
        let options = [
            "--threads",
            "1",
            "--split-headers",
            "off",
            "--copy-engine",
            "worker",
            "--copybreak",
            "2048",
        ];
        let Some(stage) = Stage::set_over(link, &options) else {
            return;
        };
        let _far = stage.far_server(&["echo_server", port]);
        let clients =
            ["one", "other"].map(|name| stage.near(name, &["echo_client", FAR, port, "60000000"]));
        clients.into_iter().for_each(|client| drop(ok(client)));
        assert!(stage.engine("payloads_by_engine") > 100, "{link:?}");
        assert_eq!(stage.engine("payloads_in_place"), 0, "{link:?}");
        assert_eq!(stage.engine("frames_malformed"), 0);
    }
}

#[test]
fn switches_are_thrown_under_a_stream() {
    let Some(stage) = Stage::set_over(Link::Tap, &["--threads", "1"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7043"]);
    let mut client = stage.near("client", &["echo_client", FAR, "7043", "300000000"]);
    let switches = [
        "split-headers=off",
        "copybreak=4096",
        "copy-engine=worker",
        "lro=off",
        "lro=on",
        "lso=off",
        "copy-engine=off",
        "checksum=off",
        "checksum=verify",
        "coalesce=100",
        "checksum=trust",
        "checksum=on",
        "lso=on",
        "coalesce=0",
        "lro=on",
        "split-headers=on",
    ];
    for switch in switches.iter().cycle().take(3 * switches.len()) {
        assert_eq!(set(&stage, switch), None, "{switch}");
        if client.ended().is_some() {
            break;
        }
    }
    ok(client);
    let switches = &stage.toehold.known()["engine"]["switches"];
    assert!(switches["copy_engine"].is_string(), "{switches}");
    assert_eq!(stage.engine("resets_received"), 0);
    for way in ["verify", "trust", "on"] {
        assert_eq!(set(&stage, &format!("checksum={way}")), None);
        let shown = stage.toehold.status();
        assert_eq!(shown["engine"]["switches"]["checksum"], way);
    }
    assert_eq!(set(&stage, "copy-engine=worker"), None);
    let shown = stage.toehold.status();
    assert_eq!(shown["engine"]["switches"]["copy_engine"], "worker");
    let wrong = set(&stage, "copy-engine=gpu").expect("no such engine");
    assert!(wrong.contains("`gpu` is not a copy engine: off, worker, dsa, dmadev"));
    let wrong = set(&stage, "threads=2").expect("not while it runs");
    assert!(
        wrong.contains("cannot be changed while the adapter runs"),
        "{wrong}"
    );
    let wrong = set(&stage, "lro").expect("no value");
    assert!(wrong.contains("is not NAME=VALUE"), "{wrong}");
}

/// The far kernel computes checksums in this test, because its device does not.
#[test]
fn checksums_are_verified_here_or_by_nobody() {
    for (link, way) in [
        (Link::Packet, "verify"),
        (Link::Packet, "trust"),
        (Link::Xdp, "trust"),
        (Link::Tap, "verify"),
    ] {
        let Some(stage) = Stage::set_over(link, &["--checksum", way]) else {
            return;
        };
        if !stage.far_computes_checksums() {
            return;
        }
        let _far = stage.far_server(&["echo_server", "7044"]);
        ok(stage.near("client", &["echo_client", FAR, "7044", "5000000"]));
        assert_eq!(stage.engine("frames_malformed"), 0);
        let switches = &stage.toehold.known()["engine"]["switches"];
        assert_eq!(switches["checksum"], way);
    }
}

#[test]
fn urgent_bytes_keep_their_place() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7031"]);
    let client = stage.near("client", &["urgent_client", FAR, "7031"]);
    let is_told = wait_until(TIME_LIMIT, || {
        format!("{:?}", stage.toehold.connections()).contains("unmarked")
    });
    assert!(is_told, "{}", client.outputs());
    client.signal(libc::SIGUSR1);
    ok(client);
}

#[test]
fn gathering_and_small_batches_lose_nothing() {
    let Some(stage) = Stage::set(&["--coalesce", "1000", "--batch", "1"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7021"]);
    let _near = stage.near_server(&["echo_server", "7022"]);
    ok(stage.near("client", &["echo_client", FAR, "7021", "20000000"]));
    ok(stage.far("client", &["echo_client", NEAR, "7022", "20000000"]));
    ok(stage.far("many", &["many", NEAR, "7022", "100"]));
}

#[test]
fn both_sides_are_told_the_true_addresses() {
    let Some(stage) = Stage::set(&[]) else { return };
    let server = stage.near_server(&["names_server", "7003"]);
    let client = ok(stage.far("client", &["names_client", NEAR, "7003"]));
    let client = client.split_whitespace().collect::<Vec<_>>();
    let server = ok(server);
    let server = server.split_whitespace().collect::<Vec<_>>();
    // The server prints: listening, peer A P local A P, ok. The client prints: peer A P local A P,
    // ok.
    assert_eq!(server[2..4], client[4..6], "the client's end");
    assert_eq!(server[5..7], client[1..3], "the server's end");
    let server = stage.far_server(&["names_server", "7004"]);
    let client = ok(stage.near("client", &["names_client", FAR, "7004"]));
    let client = client.split_whitespace().collect::<Vec<_>>();
    let server = ok(server);
    let server = server.split_whitespace().collect::<Vec<_>>();
    assert_eq!(server[2..4], client[4..6], "the client's end");
    assert_eq!(client[1..3], [FAR, "7004"]);
}

#[test]
fn connects_that_fail_fail_as_on_the_kernel() {
    let Some(stage) = Stage::set(&[]) else { return };
    ok(stage.near("refused", &["expect_error", FAR, "9", "ECONNREFUSED"]));
    ok(stage.near(
        "unreachable",
        &["expect_error", "10.84.0.77", "9", "EHOSTUNREACH"],
    ));
    // This address is not the engine's, and the near kernel has no route to it either.
    ok(stage.near(
        "elsewhere",
        &["expect_error", "10.99.0.1", "9", "ENETUNREACH"],
    ));
}

#[test]
fn connects_that_a_router_refuses_fail_as_on_the_kernel() {
    let Some(stage) = Stage::set(&["--gateway", FAR]) else {
        return;
    };
    let far = |arguments: &[&str]| {
        let mut command = stage.network.far(arguments[0]);
        let output = command.args(&arguments[1..]).output().expect("iproute2");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    // A kernel reports unreachable destinations only when forwarding is on.
    far(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
    far(&["ip", "route", "add", "unreachable", "10.97.0.0/16"]);
    far(&["ip", "route", "add", "prohibit", "10.98.0.0/16"]);
    for (host, errno) in [
        ("10.96.0.1", "ENETUNREACH"),
        ("10.97.0.1", "EHOSTUNREACH"),
        ("10.98.0.1", "EHOSTUNREACH"),
    ] {
        ok(stage.near("refused", &["expect_error", host, "9", errno]));
    }
}

#[test]
fn connection_is_not_there_before_the_remote_has_answered() {
    let Some(stage) = Stage::set(&[]) else { return };
    ok(stage.near("slow", &["slow_connect", "10.84.0.78", "9"]));
    let _far = stage.far_server(&["echo_server", "7005"]);
    ok(stage.near("nonblocking", &["nonblocking", FAR, "7005"]));
}

#[test]
fn thread_that_is_cancelled_in_a_connect_leaves_its_socket_as_it_was() {
    let Some(stage) = Stage::set(&[]) else { return };
    ok(stage.near("cancelled", &["cancelled_connect", "10.84.0.79", "9"]));
}

#[test]
fn busy_connections_get_channels_and_give_them_back() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7017"]);
    let _near = stage.near_server(&["echo_server", "7018"]);
    let clients = [
        stage.near("near-client", &["echo_client", FAR, "7017", "300000000"]),
        stage.far("far-client", &["echo_client", NEAR, "7018", "300000000"]),
    ];
    let by_rings = || {
        let connections = stage.toehold.connections();
        let rings = connections.iter().filter(|connection| {
            connection.count("bytes_ring_tx") > 0 && connection.count("bytes_ring_rx") > 0
        });
        rings.count()
    };
    let seen = wait_until(TIME_LIMIT, || {
        by_rings() >= 1 && stage.engine("channels") >= 1
    });
    assert!(seen, "{:?}", stage.toehold.connections());
    // Connections move back to the carrier and up again, in the middle of their streams. After the
    // longer pauses they have another channel.
    for pause_ms in [50, 300, 50, 300] {
        stage.toehold.detach_all();
        std::thread::sleep(Duration::from_millis(pause_ms));
        stage.toehold.attach_all();
        std::thread::sleep(Duration::from_millis(50));
    }
    for client in clients {
        ok(client);
    }
}

#[test]
fn channel_that_was_taken_back_is_asked_for_again() {
    // The client first uses eight connections, and seven are already too many for eight places.
    // Later it uses only four.
    let Some(stage) = Stage::set(&["--max-connections", "8"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7020"]);
    let client = stage.near("client", &["by_turns", FAR, "7020", "8"]);
    let came_back = || {
        let connections = stage.toehold.connections();
        connections.iter().any(|connection| {
            connection.count("downgrades") >= 1 && connection.count("upgrades") >= 2
        })
    };
    let seen = wait_until(TIME_LIMIT, came_back);
    assert!(
        seen,
        "{}\n{:?}",
        client.outputs(),
        stage.toehold.connections()
    );
}

#[test]
fn resets_travel_both_ways() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["reset_server", "7006"]);
    ok(stage.near("client", &["reset_client", FAR, "7006"]));
    let seen = listening(stage.far("seen", &["reset_seen", "7007"]));
    ok(stage.near("resetting", &["resetting_client", FAR, "7007"]));
    ok(seen);
    let _near = stage.near_server(&["reset_server", "7008"]);
    ok(stage.far("client", &["reset_client", NEAR, "7008"]));
}

#[test]
fn reader_that_does_not_read_slows_the_writer_down() {
    let Some(stage) = Stage::set(&[]) else { return };
    let digest = |said: String| {
        said.lines()
            .find(|line| line.starts_with("digest"))
            .map(str::to_owned)
    };
    let server = stage.far_server(&["backpressure_server", "7009"]);
    let sent = ok(stage.near("client", &["backpressure_client", FAR, "7009", "60000000"]));
    assert_eq!(digest(ok(server)), digest(sent));
    let server = stage.near_server(&["backpressure_server", "7010"]);
    let sent = ok(stage.far("client", &["backpressure_client", NEAR, "7010", "60000000"]));
    assert_eq!(digest(ok(server)), digest(sent));
}

#[test]
fn silent_remote_is_given_up_as_the_program_has_set() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7051"]);
    let server = listening(stage.near("server", &["impatient_server", "7052"]));
    let far = stage.far("far", &["held", NEAR, "7052", "ECONNRESET"]);
    let patient = stage.near("patient", &["held", FAR, "7051", "ECONNRESET"]);
    let clients = ["before", "after", "rings", "asked", "data"];
    let mut impatient: Vec<Running> = clients
        .map(|when| stage.near(when, &["impatient_client", FAR, "7051", when]))
        .into();
    impatient.push(server);
    for program in impatient.iter().chain([&patient, &far]) {
        await_word(program, "holding");
    }
    // The remote answers probes, so no connection may be given up.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(stage.engine("connections"), 7);
    assert!(stage.network.far_ip(&["link", "set", "toe0", "down"]));
    for program in impatient {
        ok(program);
    }
    assert_eq!(stage.engine("connections"), 1, "the patient one is left");
}

#[test]
fn send_to_a_silent_remote_that_has_finished_is_no_broken_pipe() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["finished_server", "7054"]);
    let senders = ["send", "splice", "sendfile"];
    let senders = senders.map(|by| stage.near(by, &["impatient_sender", FAR, "7054", by]));
    for program in &senders {
        await_word(program, "holding");
    }
    assert!(stage.network.far_ip(&["link", "set", "toe0", "down"]));
    for program in senders {
        ok(program);
    }
}

#[test]
fn what_the_remote_has_not_acknowledged_is_counted() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7053"]);
    let program = stage.near("program", &["unacknowledged", FAR, "7053"]);
    await_word(&program, "holding");
    assert!(stage.network.far_ip(&["link", "set", "toe0", "down"]));
    program.signal(libc::SIGUSR1);
    await_word(&program, "sent");
    assert!(stage.network.far_ip(&["link", "set", "toe0", "up"]));
    ok(program);
}

#[test]
fn remote_that_never_finishes_keeps_no_connection_of_a_program_that_has_closed() {
    let Some(stage) = Stage::set(&[]) else { return };
    // The engine waits as long as the kernel would: the kernel's default is one minute.
    let mut wait = stage.network.near("sh");
    wait.args(["-c", "echo 1 > /proc/sys/net/ipv4/tcp_fin_timeout"]);
    assert!(wait.status().expect("sh runs").success());
    let _far = stage.far_server(&["hold_open", "7041"]);
    ok(stage.near("closing", &["closing_client", FAR, "7041"]));
    let over = wait_until(TIME_LIMIT, || stage.engine("connections") == 0);
    assert!(over, "{} connections are left", stage.engine("connections"));
    // A program that has only shut down sending continues to receive.
    let far = stage.far_server(&["late_server", "7042", "4"]);
    ok(stage.near("half-closed", &["half_closed", FAR, "7042", "4"]));
    ok(far);
}

#[test]
fn a_thousand_short_connections_each_way() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7011"]);
    let _near = stage.near_server(&["echo_server", "7012"]);
    ok(stage.near("client", &["many", FAR, "7011", "1000"]));
    ok(stage.far("client", &["many", NEAR, "7012", "1000"]));
    assert!(stage.engine("connections_opened") >= 1000);
    assert!(stage.engine("connections_accepted") >= 1000);
    let over = wait_until(TIME_LIMIT, || stage.engine("connections") == 0);
    assert!(over, "{} connections are left", stage.engine("connections"));
}

#[test]
fn children_serve_what_their_parent_accepts() {
    let Some(stage) = Stage::set(&[]) else { return };
    let server = stage.near_server(&["forking_server", "7013", "5"]);
    for _ in 0..5 {
        ok(stage.far("client", &["echo_client", NEAR, "7013", "100000"]));
    }
    ok(server);
    // The listener is closed with its last process.
    stage.await_listeners(0);
    ok(stage.far("refused", &["expect_error", NEAR, "7013", "ECONNREFUSED"]));
}

#[test]
fn killed_adapter_looks_like_a_failed_interface() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7014"]);
    let holder = stage.near("holder", &["outlive", FAR, "7014"]);
    await_word(&holder, "holding");
    stage.toehold.adapter().signal(libc::SIGKILL);
    let killed = SystemTime::now().duration_since(UNIX_EPOCH).expect("later");
    let said = ok(holder);
    let reset = said.lines().find_map(|line| line.strip_prefix("reset "));
    let reset: f64 = reset.and_then(|time| time.parse().ok()).expect("a time");
    assert!(
        reset - killed.as_secs_f64() < 1.0,
        "the reset took its time"
    );
    // A new adapter serves new programs.
    stage.toehold.start_adapter();
    assert!(stage.network.bring_up(), "the new link");
    ok(stage.near("client", &["echo_client", FAR, "7014", "100000"]));
}

#[test]
fn adapter_that_is_told_to_stop_resets_both_sides() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let seen = listening(stage.far("seen", &["reset_seen", "7019"]));
    let holder = stage.near("holder", &["held", FAR, "7019", "ECONNRESET"]);
    await_word(&holder, "holding");
    stage.toehold.adapter().signal(libc::SIGTERM);
    ok(holder);
    // The reset tells the remote at once, before the remote's own timers expire.
    ok(seen);
}

/// A service manager binds its socket where programs look for an adapter that has an engine. The
/// adapter with the engine stays, because its connections would end with it.
#[test]
fn adapter_with_an_engine_stays_where_a_service_manager_takes_its_place() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7018"]);
    let holder = stage.near("holder", &["held_until_told", FAR, "7018"]);
    await_word(&holder, "holding");
    let manager = stage.toehold.activate();
    let adapter = stage.toehold.adapter();
    let noticed = wait_until(TIME_LIMIT, || {
        adapter.ended().is_some()
            || adapter
                .stderr()
                .contains("another adapter has replaced our socket")
    });
    let said = adapter.outputs();
    assert!(
        noticed && said.contains("serves the connections of its TCP engine"),
        "{said}"
    );
    holder.signal(libc::SIGUSR1);
    ok(holder);
    assert!(adapter.ended().is_none(), "{}", adapter.outputs());
    // When this adapter has ended, the manager's adapter serves new programs.
    adapter.stop();
    assert!(stage.toehold.status().is_object() && manager.started() > 0);
}

#[test]
fn tap_device_that_is_gone_costs_nothing_and_is_opened_when_it_comes_back() {
    // The device that comes back has one queue.
    interface::comes_back(Link::Tap, &["--threads", "1"]);
}

#[test]
fn link_that_goes_down_and_comes_back_loses_nothing() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7015"]);
    let client = stage.near("client", &["echo_client", FAR, "7015", "100000000"]);
    assert!(wait_until(TIME_LIMIT, || stage.engine("bytes_sent") > 1_000_000));
    assert!(stage.network.far_ip(&["link", "set", "toe0", "down"]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(stage.network.set_mtu("1300"));
    assert!(stage.network.far_ip(&["link", "set", "toe0", "up"]));
    ok(client);
    assert_eq!(stage.engine("mtu"), 1300);
}

#[test]
fn status_reports_offloaded_connections() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7016"]);
    let holder = stage.near("holder", &["outlive", FAR, "7016"]);
    await_word(&holder, "holding");
    let connections = stage.toehold.connections();
    let [connection] = &connections[..] else {
        panic!("{connections:?}");
    };
    assert_eq!(connection.value["path"], "offload");
    assert_eq!(connection.value["remote"], format!("{FAR}:7016"));
    let local = connection.value["local"].as_str().unwrap_or_default();
    assert!(local.starts_with(NEAR), "{local}");
}

#[test]
fn without_a_tap_device_everything_stays_on_the_host_path() {
    let Some(network) = Network::new() else {
        return;
    };
    let Some(python) = host::python() else { return };
    let options = [
        "--link",
        "tap:toe0@no-such-namespace",
        "--address",
        "10.84.0.2/24",
    ];
    let toehold = Toehold::start_in(&[], &options);
    let mut command = toehold.command(Path::Offload, &python);
    command.args(script()).args(["echo_server", "0"]);
    drop(network);
    let mut server = listening(Running::start(command, "server", toehold.dir()));
    assert!(toehold.known()["engine"].is_null());
    assert!(server.ended().is_none());
}

/// On a short path only BBR's model paces.
#[test]
fn connections_behave_as_the_settings_say() {
    let options = ["--congestion", "bbr", "--ecn", "on", "--pacing", "off"];
    let Some(stage) = Stage::set(&options) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7991"]);
    ok(stage.near("client", &["echo_client", FAR, "7991", "10000000"]));
    let holder = stage.near("holder", &["all_held", FAR, "7991", "3", "ECONNRESET"]);
    await_word(&holder, "holding");
    let status = stage.toehold.status();
    let flows = status["engine"]["flows"].as_array().expect("a list");
    assert_eq!(flows.len(), 3, "{flows:?}");
    for flow in flows {
        assert_eq!(flow["congestion"], "bbr", "{flow}");
        assert_eq!(flow["pacing"], true, "{flow}");
    }
    // The two commands show the settings as text, too.
    let explained = stage.toehold.ask(&["explain", "python", ":7991"]);
    let explained = explained.expect("all of them are accelerated");
    assert!(explained.contains("\n  bbr, "), "{explained}");
    assert!(explained.contains("paced; round trip "), "{explained}");
    let status = stage.toehold.ask(&["status", "--counters"]);
    let status = status.expect("an adapter");
    assert_eq!(status.matches("\n        bbr, ").count(), 3, "{status}");
    // Each setting is shown with its current value.
    let changes = [
        "window=32",
        "congestion=reno",
        "ecn=accurate",
        "pacing=on",
        "initial-window=4",
        "keepalive=60",
        "batch=64",
        "quota=100",
        "memory=512",
        "coalesce=5",
    ];
    for change in changes {
        assert_eq!(set(&stage, change), None, "{change}");
    }
    let status = stage.toehold.ask(&["status"]).expect("an adapter");
    for change in changes {
        assert!(status.contains(change), "{change}: {status}");
    }
}

/// RFC 9768 with the kernel as the remote. Every tenth packet gets a congestion mark on its way.
#[test]
fn marks_are_counted_both_ways() {
    let options = ["--ecn", "accurate"];
    let Some(stage) = Stage::set(&options) else {
        return;
    };
    if host::require(["nft"]).is_none() {
        return;
    }
    let far = |script: &str| {
        let mut command = stage.network.far("sh");
        command.args(["-c", script]).output().expect("a shell")
    };
    // A kernel that supports only RFC 3168's feedback refuses the number 3.
    let is_accurate = far("echo 3 > /proc/sys/net/ipv4/tcp_ecn").status.success();
    if !is_accurate {
        assert!(far("echo 1 > /proc/sys/net/ipv4/tcp_ecn").status.success());
    }
    let chain = |hook: &str| {
        format!(
            "chain {hook} {{ type filter hook {hook} priority 0; \
             ip ecn ect0 numgen inc mod 10 0 ip ecn set ce; }}"
        )
    };
    let chains = ["prerouting", "postrouting"].map(chain).join("\n");
    let output = far(&format!(
        "echo 'table inet marks {{\n{chains}\n}}' | nft -f -"
    ));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let _far = stage.far_server(&["echo_server", "7992"]);
    ok(stage.near("client", &["echo_client", FAR, "7992", "10000000"]));
    let holder = stage.near("holder", &["all_held", FAR, "7992", "3", "ECONNRESET"]);
    await_word(&holder, "holding");
    let status = stage.toehold.status();
    let flows = status["engine"]["flows"].as_array().expect("a list");
    assert_eq!(flows.len(), 3, "{flows:?}");
    for flow in flows {
        assert_eq!(flow["ecn"], true, "{flow}");
        assert_eq!(flow["accurate_ecn"], is_accurate, "{flow}");
    }
    // The engine must have reported its marks to the kernel.
    let counts = far("cat /proc/net/netstat").stdout;
    let counts = String::from_utf8_lossy(&counts);
    let mut lines = counts.lines().filter(|line| line.starts_with("TcpExt:"));
    let mut words = || lines.next().expect("two lines").split(' ');
    let told = words()
        .zip(words())
        .find(|(name, _)| *name == "TCPDeliveredCE");
    let told = told.and_then(|(_, count)| count.parse::<u64>().ok());
    assert!(told > Some(100), "{told:?} marked segments were told");
}
