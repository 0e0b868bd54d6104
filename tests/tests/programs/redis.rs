//! Redis: values survive pipelines, snapshots and load.

use std::fmt::Write;
use std::fs::File;

use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Sides, Toehold, host, wait_until};

use crate::{accelerated, await_port, claims, client};

claims!(redis_keeps_every_value, redis_snapshots_under_load);

struct Redis {
    /// The way in which clients reach the server: an option and its value.
    to: [String; 2],
    _server: Running,
}

fn start(toehold: &Toehold, sides: Sides) -> Redis {
    let port = host::free_port();
    let mut command = toehold.command(sides.server, "redis-server");
    command.args([
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--port",
        &port.to_string(),
        "--dir",
    ]);
    command.arg(toehold.dir());
    let mut server = Running::start(command, "redis-server", toehold.dir());
    await_port(&mut server, port);
    Redis {
        to: ["-p".into(), port.to_string()],
        _server: server,
    }
}

/// Runs redis-cli over a file of commands and returns its answers.
fn answers(
    toehold: &Toehold,
    sides: Sides,
    redis: &Redis,
    commands: &str,
    extra: &[&str],
) -> String {
    let path = toehold.dir().join("commands");
    std::fs::write(&path, commands).expect("the scratch directory is writable");
    let mut command = toehold.command(sides.client, "redis-cli");
    command.args(&redis.to).args(extra);
    command.stdin(File::open(path).expect("just written"));
    Running::start_fed(command, "redis-cli", toehold.dir()).success(TIME_LIMIT)
}

/// A value of a length that differs from key to key, from empty to a few kilobytes.
fn value(key: usize) -> String {
    let word = format!("{:016x}.", (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word.repeat(key * 7919 % 200)
}

fn set_and_get(toehold: &Toehold, sides: Sides, redis: &Redis, keys: usize) {
    let mut sets = String::new();
    for key in 0..keys {
        writeln!(sets, "SET key:{key} \"{}\"", value(key)).expect("strings grow");
    }
    let report = accelerated(toehold, sides, || {
        let report = answers(toehold, sides, redis, &sets, &["--pipe"]);
        get(toehold, sides, redis, keys);
        report
    });
    assert!(
        report.contains(&format!("errors: 0, replies: {keys}")),
        "{report}"
    );
}

/// Every value must be there.
fn get(toehold: &Toehold, sides: Sides, redis: &Redis, keys: usize) {
    let (mut gets, mut expected) = (String::new(), String::new());
    for key in 0..keys {
        writeln!(gets, "GET key:{key}").expect("strings grow");
        writeln!(expected, "{}", value(key)).expect("strings grow");
    }
    let got = answers(toehold, sides, redis, &gets, &[]);
    assert!(got == expected, "not every value came back as it was set");
}

/// The number of requests of each kind in a benchmark. Each of its 50 connections makes 200.
const REQUESTS: u64 = 10_000;

fn redis_keeps_every_value(toehold: &Toehold, sides: Sides) {
    if host::require(["redis-server", "redis-cli", "redis-benchmark"]).is_none() {
        return;
    }
    let redis = start(toehold, sides);
    set_and_get(toehold, sides, &redis, 20_000);
    for pipeline in ["1", "16"] {
        let report = client(
            toehold,
            sides,
            "redis-benchmark",
            "redis-benchmark",
            &[
                &redis.to[0],
                &redis.to[1],
                "-c",
                "50",
                "-n",
                &REQUESTS.to_string(),
                "-P",
                pipeline,
                "-t",
                "get,set,lpush,lrange_100",
                "-q",
            ],
        );
        assert!(!report.to_lowercase().contains("error"), "{report}");
    }
    let pushed = client(
        toehold,
        sides,
        "llen",
        "redis-cli",
        &[&redis.to[0], &redis.to[1], "llen", "mylist"],
    );
    // Each run pushes so many values, and as many again to prepare LRANGE.
    let pushed = pushed.trim().parse::<u64>().expect("a number");
    assert_eq!(pushed % REQUESTS, 0, "lost or doubled pushes");
}

/// Clients connect to the server's Unix socket.
#[test]
fn redis_keeps_every_value_that_comes_by_its_unix_socket() {
    if host::require(["redis-server", "redis-cli", "redis-benchmark"]).is_none() {
        return;
    }
    let (toehold, sides) = (Toehold::start(), Sides::DIRECT);
    let socket = toehold.dir().join("redis.sock");
    let by = socket.to_string_lossy();
    let mut command = toehold.command(sides.server, "redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket", &by, "--dir"]);
    command.arg(toehold.dir());
    let server = Running::start(command, "redis-server", toehold.dir());
    assert!(wait_until(TIME_LIMIT, || socket.exists()));
    let redis = Redis {
        to: ["-s".into(), by.clone().into_owned()],
        _server: server,
    };
    set_and_get(&toehold, sides, &redis, 5000);
    let requests = REQUESTS.to_string();
    let load = [
        "-s",
        &by,
        "-c",
        "50",
        "-n",
        &requests,
        "-t",
        "get,set,lpush",
        "-q",
    ];
    let report = accelerated(&toehold, sides, || {
        client(&toehold, sides, "benchmark", "redis-benchmark", &load)
    });
    assert!(!report.to_lowercase().contains("error"), "{report}");
    let pushed = ["-s", &by, "llen", "mylist"];
    let pushed = client(&toehold, sides, "llen", "redis-cli", &pushed);
    assert_eq!(pushed.trim().parse::<u64>().unwrap_or(1) % REQUESTS, 0);
}

/// The number of values in each snapshot, beside those of the load.
const VALUES: usize = 5000;

fn redis_snapshots_under_load(toehold: &Toehold, sides: Sides) {
    if host::require(["redis-server", "redis-cli", "redis-benchmark"]).is_none() {
        return;
    }
    let redis = start(toehold, sides);
    set_and_get(toehold, sides, &redis, VALUES);
    let mut command = toehold.command(sides.client, "redis-benchmark");
    // The load goes on, by new connections from time to time, until it is stopped. So it lasts as
    // long as the snapshots, on any host.
    command.args([
        &redis.to[0],
        &redis.to[1],
        "-c",
        "20",
        "-n",
        "2000",
        "-l",
        "-r",
        "1000",
        "-t",
        "set,get",
        "-q",
    ]);
    let mut load = Running::start(command, "load", toehold.dir());
    // The rate of a first round: the load has begun.
    let begun = wait_until(TIME_LIMIT, || {
        load.ended().is_some() || load.stdout().contains("per second")
    });
    assert!(begun, "{}", load.outputs());
    for _ in 0..3 {
        let started = client(
            toehold,
            sides,
            "bgsave",
            "redis-cli",
            &[&redis.to[0], &redis.to[1], "bgsave"],
        );
        assert!(started.contains("started"), "{started}");
        let mut info = String::new();
        wait_until(TIME_LIMIT, || {
            info = client(
                toehold,
                sides,
                "info",
                "redis-cli",
                &[&redis.to[0], &redis.to[1], "info", "persistence"],
            );
            info.contains("rdb_bgsave_in_progress:0")
        });
        assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
    }
    assert_eq!(load.ended(), None, "{}", load.outputs());
    load.stop();
    let said = load.outputs().to_lowercase();
    assert!(!said.contains("error"), "{said}");
    get(toehold, sides, &redis, VALUES);
    let check = host::program("redis-check-rdb").expect("comes with redis-server");
    let check = std::process::Command::new(check)
        .arg(toehold.dir().join("dump.rdb"))
        .output();
    assert!(
        check.is_ok_and(|output| output.status.success()),
        "the snapshot is damaged"
    );
}
