//! Kills of the adapter while the near kernel and the engine share one address.
//!
//! A thousand kills take half an hour for each link and test:
//! `TOEHOLD_SOAK=1000 cargo xtask e2e every_kill`.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use toehold_e2e::load::Random;
use toehold_e2e::network::{FAR, NEAR, NEAR_V6};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, Nginx, Path as Way, host, wait_until};

use crate::shared::kernel_server;
use crate::stage::{Stage, await_word, ok};

/// Each kill takes about two seconds.
const KILLS_MIN: u64 = 4;
/// A kill comes at a random moment within this many milliseconds of load.
const LOAD_MS_MAX: u64 = 300;

/// Kills the adapter under load. The kernel's connections continue, and the kernel resets the
/// engine's connections. A new connection to the engine's port belongs to the kernel, and stays
/// with the kernel after the adapter is back. The rounds alternate between IPv4 and IPv6.
fn only_the_engines_connections_end_with_it(link: Link) {
    let shares = [
        format!("{NEAR}:7921-7999"),
        format!("[{NEAR_V6}]:7921-7999"),
    ];
    let options = shares.each_ref().map(|share| ["--share", share]).concat();
    let Some(mut stage) = Stage::set_sharing(link, &options) else {
        return;
    };
    let _kernel = kernel_server(&stage, "echo_server", "7920");
    let load = stage.far("load", &["steady", NEAR, "7920"]);
    await_word(&load, "holding");
    for round in 0..KILLS_MIN {
        let port = (7921 + round % 70).to_string();
        let at = [NEAR, NEAR_V6][(round % 2) as usize];
        let server = stage.near_server(&["echo_server", &port, at]);
        let over_engine = stage.far("load", &["many_until_reset", at, &port]);
        await_word(&over_engine, "holding");
        assert_eq!(stage.engine("connections_accepted"), 10);
        stage.toehold.adapter().signal(libc::SIGKILL);
        ok(over_engine);
        // The program still listens, on the kernel.
        let mut kept = stage.far("kept", &["steady", at, &port]);
        await_word(&kept, "holding");
        stage.toehold.start_adapter();
        sleep(Duration::from_millis(50));
        assert!(kept.ended().is_none(), "{}", kept.outputs());
        kept.signal(libc::SIGUSR1);
        ok(kept);
        drop(server);
    }
    load.signal(libc::SIGUSR1);
    ok(load);
    assert_eq!(stage.engine("connections_accepted"), 0);
}

#[test]
fn only_the_engines_connections_end_with_it_over_a_packet_link() {
    only_the_engines_connections_end_with_it(Link::Packet);
}

#[test]
fn only_the_engines_connections_end_with_it_over_an_xdp_link() {
    only_the_engines_connections_end_with_it(Link::Xdp);
}

/// A stopped adapter answers no segments, and a killed adapter may take long to end. A client that
/// connects meanwhile must not hang, because the program also listens on the kernel.
fn kernel_takes_new_connections_of_a_stopped_engine(link: Link) {
    let Some(mut stage) = Stage::set_sharing(link, &["--share", &format!("{NEAR}:7921")]) else {
        return;
    };
    let _server = stage.near_server(&["echo_server", "7921"]);
    let over_engine = stage.far("load", &["steady", NEAR, "7921"]);
    await_word(&over_engine, "holding");
    stage.toehold.adapter().signal(libc::SIGSTOP);
    let client = |stage: &Stage, name| stage.far(name, &["echo_client", NEAR, "7921", "1000000"]);
    ok(client(&stage, "meanwhile"));
    stage.toehold.adapter().signal(libc::SIGCONT);
    // The engine's connection continues.
    over_engine.signal(libc::SIGUSR1);
    ok(over_engine);
    assert_eq!(stage.engine("connections_accepted"), 1);
    ok(client(&stage, "afterwards"));
    assert_eq!(stage.engine("connections_accepted"), 2);
}

#[test]
fn kernel_takes_new_connections_of_a_stopped_engine_over_a_packet_link() {
    kernel_takes_new_connections_of_a_stopped_engine(Link::Packet);
}

#[test]
fn kernel_takes_new_connections_of_a_stopped_engine_over_an_xdp_link() {
    kernel_takes_new_connections_of_a_stopped_engine(Link::Xdp);
}

/// `listen` returns when the engine listens, too, also when the adapter gets no processor for a
/// while. A remote that connects at once would be refused otherwise.
#[test]
fn listen_waits_for_an_engine_that_is_late() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let mark = stage.toehold.dir().join("resumed");
    let path = mark.to_str().expect("text");
    let server = stage.near_server(&["second_listener", "7931", "7932", path]);
    stage.toehold.adapter().signal(libc::SIGSTOP);
    server.signal(libc::SIGUSR1);
    sleep(Duration::from_millis(400));
    std::fs::write(&mark, "").expect("scratch");
    stage.toehold.adapter().signal(libc::SIGCONT);
    let said = ok(server);
    assert!(said.contains("marked True"), "{said}");
}

/// Starts one second of load on a server on the kernel.
fn start_wrk(mut wrk: Command, server: &str, dir: &Path) -> Running {
    wrk.args(["-t1", "-c10", "-d1s", &format!("http://{server}/1000")]);
    Running::start(wrk, "wrk", dir)
}

/// Asserts that the load has ended and that none of its connections failed.
fn assert_served(load: Running, round: u64) {
    let report = load.success(TIME_LIMIT);
    let is_clean = report.contains("Requests/sec") && !report.contains("Socket errors");
    assert!(is_clean, "round {round}: {report}");
}

/// nginx on the kernel and Redis on the engine, at one address, both under load.
fn kernels_connections_outlive_every_kill(link: Link) {
    let programs = ["redis-server", "redis-benchmark", "nginx", "wrk"];
    let Some([redis, benchmark, nginx, wrk]) = host::require(programs) else {
        return;
    };
    let Some(mut stage) = Stage::set_sharing(link, &["--share", &format!("{NEAR}:8200-8999")])
    else {
        return;
    };
    let dir = stage.toehold.dir().to_owned();
    let _nginx = Nginx::start(stage.network.near(&nginx), &dir, NEAR, 8100, &[1_000]);
    let _echo = kernel_server(&stage, "echo_server", "8101");
    let stream = stage.far("stream", &["steady", NEAR, "8101"]);
    await_word(&stream, "holding");
    let redis = redis.to_string_lossy();
    let mut random = Random::new(host::seed());
    for round in 0..host::rounds(KILLS_MIN) {
        let port = (8200 + round % 800).to_string();
        let mut server = stage.offloaded(&redis, &["--save", "", "--protected-mode", "no"]);
        server.args(["--bind", "0.0.0.0", "--port", &port]);
        let server = Running::start(server, "redis", &dir);
        stage.await_listeners(1);
        let ask = |requests: &str| {
            let mut command = stage.network.far(&benchmark);
            command.args(["-h", NEAR, "-p", &port, "-t", "get", "-c", "10", "-q"]);
            command.args(["-n", requests]);
            Running::start(command, "benchmark", &dir)
        };
        let mut over_engine = ask("1000000000");
        let load = stage.network.far(&wrk);
        let load = start_wrk(load, &format!("{NEAR}:8100"), &dir);
        let is_loaded = wait_until(TIME_LIMIT, || stage.engine("connections_accepted") >= 10);
        assert!(is_loaded, "round {round}: {}", over_engine.outputs());
        sleep(Duration::from_millis(random.below(LOAD_MS_MAX)));
        let ended = over_engine.ended();
        assert!(ended.is_none(), "round {round}: {}", over_engine.outputs());
        stage.toehold.adapter().signal(libc::SIGKILL);
        // If a client's request was acknowledged before the kill, the client gets no reset and may
        // wait for its answer.
        let ended = over_engine.wait(Duration::from_secs(1));
        let is_reset = over_engine.stderr().contains("Connection reset by peer");
        assert!(ended.is_none() || is_reset, "{}", over_engine.outputs());
        drop(over_engine);
        // Redis still listens, on the kernel.
        ask("1000").success(TIME_LIMIT);
        assert_served(load, round);
        drop(server);
        stage.toehold.start_adapter();
    }
    stream.signal(libc::SIGUSR1);
    ok(stream);
}

#[test]
fn kernels_connections_outlive_every_kill_over_a_packet_link() {
    kernels_connections_outlive_every_kill(Link::Packet);
}

#[test]
fn kernels_connections_outlive_every_kill_over_an_xdp_link() {
    kernels_connections_outlive_every_kill(Link::Xdp);
}

/// A client on the kernel and a client on the engine. Their connections use few local ports, so a
/// port is reused soon. The remote may still hold the connection that a kill ended.
fn connections_go_out_after_every_kill(link: Link) {
    let Some([nginx, wrk]) = host::require(["nginx", "wrk"]) else {
        return;
    };
    let options = ["--share", NEAR, "--outgoing", "40500-40524"];
    let Some(mut stage) = Stage::set_sharing(link, &options) else {
        return;
    };
    let dir = stage.toehold.dir().to_owned();
    let _nginx = Nginx::start(stage.network.far(&nginx), &dir, FAR, 8102, &[1_000]);
    let _far = stage.far_server(&["echo_server", "8103"]);
    let mut random = Random::new(host::seed());
    for round in 0..host::rounds(KILLS_MIN) {
        let opened = stage.engine("connections_opened");
        let over_engine = stage.near("load", &["many_until_reset", FAR, "8103"]);
        await_word(&over_engine, "holding");
        assert_eq!(
            stage.engine("connections_opened"),
            opened + 10,
            "round {round}"
        );
        let load = stage.network.near(&wrk);
        let load = start_wrk(load, &format!("{FAR}:8102"), &dir);
        sleep(Duration::from_millis(random.below(LOAD_MS_MAX)));
        stage.toehold.adapter().signal(libc::SIGKILL);
        ok(over_engine);
        let talk = ["echo_client", FAR, "8103", "1000000"];
        ok(stage.near_on(Way::Host, "meanwhile", &talk));
        stage.toehold.start_adapter();
        ok(stage.near("afterwards", &talk));
        assert_eq!(stage.engine("connections_opened"), 1, "round {round}");
        assert_served(load, round);
    }
}

#[test]
fn connections_go_out_after_every_kill_over_a_packet_link() {
    connections_go_out_after_every_kill(Link::Packet);
}

#[test]
fn connections_go_out_after_every_kill_over_an_xdp_link() {
    connections_go_out_after_every_kill(Link::Xdp);
}
