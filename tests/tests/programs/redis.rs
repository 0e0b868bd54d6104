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
    let (mut sets, mut gets, mut expected) = (String::new(), String::new(), String::new());
    for key in 0..keys {
        let value = value(key);
        writeln!(sets, "SET key:{key} \"{value}\"").expect("strings grow");
        writeln!(gets, "GET key:{key}").expect("strings grow");
        writeln!(expected, "{value}").expect("strings grow");
    }
    let report = accelerated(toehold, sides, || {
        let report = answers(toehold, sides, redis, &sets, &["--pipe"]);
        let got = answers(toehold, sides, redis, &gets, &[]);
        assert!(got == expected, "not every value came back as it was set");
        report
    });
    assert!(
        report.contains(&format!("errors: 0, replies: {keys}")),
        "{report}"
    );
}

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
                "50000",
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
    // Each run pushes 50000 values, and as many again to prepare LRANGE.
    assert_eq!(
        pushed.trim().parse::<u64>().unwrap_or(0) % 50_000,
        0,
        "lost or doubled pushes"
    );
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
    let load = [
        "-s",
        &by,
        "-c",
        "50",
        "-n",
        "50000",
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
    assert_eq!(pushed.trim().parse::<u64>().unwrap_or(1) % 50_000, 0);
}

fn redis_snapshots_under_load(toehold: &Toehold, sides: Sides) {
    if host::require(["redis-server", "redis-cli", "redis-benchmark"]).is_none() {
        return;
    }
    let redis = start(toehold, sides);
    set_and_get(toehold, sides, &redis, 5000);
    let mut command = toehold.command(sides.client, "redis-benchmark");
    command.args([
        &redis.to[0],
        &redis.to[1],
        "-c",
        "20",
        "-n",
        "200000",
        "-r",
        "1000",
        "-t",
        "set,get",
        "-q",
    ]);
    let load = Running::start(command, "load", toehold.dir());
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
    load.success(TIME_LIMIT);
    let check = host::program("redis-check-rdb").expect("comes with redis-server");
    let check = std::process::Command::new(check)
        .arg(toehold.dir().join("dump.rdb"))
        .output();
    assert!(
        check.is_ok_and(|output| output.status.success()),
        "the snapshot is damaged"
    );
}
