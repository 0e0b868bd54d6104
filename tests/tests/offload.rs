//! Programs over the adapter's own TCP engine, against programs on kernel TCP in another network namespace.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use toehold_e2e::network::{FAR, FAR_V6, NEAR};
use toehold_e2e::process::{PATIENCE, Running};
use toehold_e2e::{Network, Path, Toehold, host, wait_until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/offload.py");

/// A network, its adapter, and the interpreter for both sides.
struct Stage {
    network: Network,
    toehold: Toehold,
    python: String,
}

impl Stage {
    fn set(options: &[&str]) -> Option<Stage> {
        let Some(python) = host::python() else {
            host::skipped("python3 is not installed");
            return None;
        };
        let network = Network::new()?;
        let toehold = network.start(options)?;
        Some(Stage {
            network,
            toehold,
            python: python.to_string_lossy().into_owned(),
        })
    }

    /// A role in the far namespace, on the kernel.
    fn far(&self, name: &str, arguments: &[&str]) -> Running {
        let mut command = self.network.far(&self.python);
        command.arg(SCRIPT).args(arguments);
        Running::start(command, name, self.toehold.dir())
    }

    /// A role in the near namespace, on the offload path.
    fn near(&self, name: &str, arguments: &[&str]) -> Running {
        let mut command = self.toehold.command(Path::Offload, &self.python);
        command.arg(SCRIPT).args(arguments);
        Running::start(command, name, self.toehold.dir())
    }

    /// A program in the near namespace, on the offload path.
    fn offloaded(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.toehold.command(Path::Offload, program);
        command.args(arguments);
        command
    }

    /// A far server that says when it listens.
    fn far_server(&self, arguments: &[&str]) -> Running {
        listening(self.far("far-server", arguments))
    }

    /// A near server that says when it listens, and that the engine has heard of.
    fn near_server(&self, arguments: &[&str]) -> Running {
        let server = listening(self.near("near-server", arguments));
        self.await_listeners(1);
        server
    }

    fn await_listeners(&self, count: u64) {
        let heard = wait_until(PATIENCE, || self.engine("listeners") == count);
        assert!(heard, "{:?}", self.toehold.status()["engine"]);
    }

    /// One of the engine's numbers.
    fn engine(&self, key: &str) -> u64 {
        self.toehold.status()["engine"][key].as_u64().unwrap_or(0)
    }
}

fn listening(mut server: Running) -> Running {
    let up = wait_until(PATIENCE, || {
        server.ended().is_some() || server.stdout().contains("listening")
    });
    assert!(up && server.ended().is_none(), "{}", server.outputs());
    server
}

fn ok(running: Running) -> String {
    let said = running.success(PATIENCE);
    assert!(said.ends_with("ok\n"), "{said}");
    said
}

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
fn both_sides_are_told_the_true_addresses() {
    let Some(stage) = Stage::set(&[]) else { return };
    let server = stage.near_server(&["names_server", "7003"]);
    let client = ok(stage.far("client", &["names_client", NEAR, "7003"]));
    let client = client.split_whitespace().collect::<Vec<_>>();
    let server = ok(server);
    let server = server.split_whitespace().collect::<Vec<_>>();
    // listening, peer A P local A P, ok; and peer A P local A P, ok.
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
    // Not the engine's: the near kernel has no way there either.
    ok(stage.near(
        "elsewhere",
        &["expect_error", "10.99.0.1", "9", "ENETUNREACH"],
    ));
}

#[test]
fn connection_is_not_there_before_the_remote_has_answered() {
    let Some(stage) = Stage::set(&[]) else { return };
    ok(stage.near("slow", &["slow_connect", "10.84.0.78", "9"]));
    let _far = stage.far_server(&["echo_server", "7005"]);
    ok(stage.near("nonblocking", &["nonblocking", FAR, "7005"]));
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
    let seen = wait_until(PATIENCE, || {
        by_rings() >= 1 && stage.engine("channels") >= 1
    });
    assert!(seen, "{:?}", stage.toehold.connections());
    // Back to the carrier and up again, in the middle of it all.
    for _ in 0..3 {
        stage.toehold.detach_all();
        std::thread::sleep(Duration::from_millis(50));
        stage.toehold.attach_all();
        std::thread::sleep(Duration::from_millis(50));
    }
    for client in clients {
        ok(client);
    }
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
fn a_thousand_short_connections_each_way() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7011"]);
    let _near = stage.near_server(&["echo_server", "7012"]);
    ok(stage.near("client", &["many", FAR, "7011", "1000"]));
    ok(stage.far("client", &["many", NEAR, "7012", "1000"]));
    assert!(stage.engine("connections_opened") >= 1000);
    assert!(stage.engine("connections_accepted") >= 1000);
    let over = wait_until(PATIENCE, || stage.engine("connections") == 0);
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
    // The listener is gone with its last process.
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
    let holding = wait_until(PATIENCE, || holder.stdout().contains("holding"));
    assert!(holding, "{}", holder.outputs());
    stage.toehold.adapter().signal(libc::SIGKILL);
    let killed = SystemTime::now().duration_since(UNIX_EPOCH).expect("later");
    let said = ok(holder);
    let reset = said.lines().find_map(|line| line.strip_prefix("reset "));
    let reset: f64 = reset.and_then(|time| time.parse().ok()).expect("a time");
    assert!(
        reset - killed.as_secs_f64() < 1.0,
        "the reset took its time"
    );
    // Another adapter serves new programs.
    stage.toehold.start_adapter();
    assert!(stage.network.bring_up(), "the new link");
    ok(stage.near("client", &["echo_client", FAR, "7014", "100000"]));
}

#[test]
fn link_that_goes_down_and_comes_back_loses_nothing() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7015"]);
    let client = stage.near("client", &["echo_client", FAR, "7015", "400000000"]);
    assert!(wait_until(PATIENCE, || stage.engine("bytes_sent") > 1_000_000));
    assert!(stage.network.far_ip(&["link", "set", "toe0", "down"]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        stage
            .network
            .far_ip(&["link", "set", "toe0", "mtu", "1300", "up"])
    );
    ok(client);
    assert_eq!(stage.engine("mtu"), 1300);
}

#[test]
fn curl_fetches_files_byte_for_byte() {
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([curl, _]) = host::require(["curl", "sha256sum"]) else {
        return;
    };
    let www = stage.toehold.dir().join("www");
    fs::create_dir(&www).expect("scratch");
    let content: Vec<u8> = (0..5_000_000u32)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes())
        .collect();
    fs::write(www.join("file"), &content).expect("scratch");
    let mut command = stage.network.far(&stage.python);
    command
        .args(["-m", "http.server", "8080", "--bind", "::", "--directory"])
        .arg(&www);
    let mut server = Running::start(command, "http", stage.toehold.dir());
    let up = wait_until(PATIENCE, || {
        let mut look = stage.network.far(&stage.python);
        look.args([
            "-c",
            "import socket; socket.create_connection(('10.84.0.1', 8080))",
        ]);
        server.ended().is_some() || look.output().is_ok_and(|output| output.status.success())
    });
    assert!(up && server.ended().is_none(), "{}", server.outputs());
    for (name, url) in [
        ("v4", format!("http://{FAR}:8080/file")),
        ("v6", format!("http://[{FAR_V6}]:8080/file")),
    ] {
        let got = stage.toehold.dir().join(name);
        let got_path = got.to_string_lossy();
        let curl = curl.to_string_lossy();
        let command = stage.offloaded(&curl, &["-sS", "-o", &got_path, &url]);
        Running::start(command, name, stage.toehold.dir()).success(PATIENCE);
        assert!(
            fs::read(&got).expect("fetched") == content,
            "{name}: other bytes"
        );
    }
    assert!(stage.engine("bytes_received") > 40_000_000);
}

#[test]
fn redis_serves_a_remote_benchmark() {
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([server, benchmark]) = host::require(["redis-server", "redis-benchmark"]) else {
        return;
    };
    let server = server.to_string_lossy();
    let arguments = [
        "--port",
        "6379",
        "--save",
        "",
        "--protected-mode",
        "no",
        "--bind",
        "0.0.0.0",
    ];
    let command = stage.offloaded(&server, &arguments);
    let mut server = Running::start(command, "redis", stage.toehold.dir());
    stage.await_listeners(1);
    let mut command = stage.network.far(benchmark);
    command.args([
        "-h",
        NEAR,
        "-t",
        "set,get,lrange_100",
        "-n",
        "20000",
        "-c",
        "50",
        "-d",
        "100",
        "-q",
    ]);
    let said = Running::start(command, "benchmark", stage.toehold.dir()).success(PATIENCE);
    assert!(said.contains("GET:"), "{said}");
    assert!(server.ended().is_none(), "{}", server.outputs());
}

#[test]
fn iperf3_runs_every_way() {
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([iperf3]) = host::require(["iperf3"]) else {
        return;
    };
    let iperf3 = iperf3.to_string_lossy();
    let near = stage.offloaded(&iperf3, &["-s", "-p", "5201"]);
    let _near = Running::start(near, "iperf3-near", stage.toehold.dir());
    let mut far = stage.network.far(&*iperf3);
    far.args(["-s", "-p", "5202"]);
    let _far = Running::start(far, "iperf3-far", stage.toehold.dir());
    stage.await_listeners(1);
    for extra in [["-P", "1"], ["-P", "3"], ["-R", "-Z"]] {
        let common = ["-t", "1", "-J"];
        let mut from_far = stage.network.far(&*iperf3);
        from_far
            .args(["-c", NEAR, "-p", "5201"])
            .args(common)
            .args(extra);
        let mut from_near = stage.offloaded(&iperf3, &["-c", FAR, "-p", "5202"]);
        from_near.args(common).args(extra);
        for command in [from_far, from_near] {
            let report = Running::start(command, "iperf3", stage.toehold.dir()).success(PATIENCE);
            let is_whole = report.contains("\"sum_received\"") && !report.contains("\"error\"");
            assert!(is_whole, "{extra:?}: {report}");
        }
    }
}

#[test]
fn status_tells_of_offloaded_connections() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _far = stage.far_server(&["echo_server", "7016"]);
    let holder = stage.near("holder", &["outlive", FAR, "7016"]);
    let holding = wait_until(PATIENCE, || holder.stdout().contains("holding"));
    assert!(holding, "{}", holder.outputs());
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
    command.arg(SCRIPT).args(["echo_server", "0"]);
    drop(network);
    let mut server = listening(Running::start(command, "server", toehold.dir()));
    assert!(toehold.status()["engine"].is_null());
    assert!(server.ended().is_none());
}
