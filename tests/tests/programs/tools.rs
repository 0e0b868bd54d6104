//! Measuring tools and caches, with their own integrity checks on.

use toehold_e2e::iperf3::expect_whole_report;
use toehold_e2e::process::Running;
use toehold_e2e::{Sides, Toehold, host};

use crate::{accelerated, await_port, claims, client};

claims!(
    iperf3_runs_every_way,
    sockperf_finds_its_messages_intact,
    memcached_keeps_every_value
);

fn iperf3_runs_every_way(toehold: &Toehold, sides: Sides) {
    if host::require(["iperf3"]).is_none() {
        return;
    }
    // Its file transfer (-F) would let us compare bytes, but it loses some even on the kernel.
    // Other tests check the bytes.
    let port = host::free_port().to_string();
    let mut command = toehold.command(sides.server, "iperf3");
    command.args(["-s", "-p", &port]);
    let mut server = Running::start(command, "iperf3-server", toehold.dir());
    listening(&mut server);
    accelerated(toehold, sides, || {
        for extra in [
            ["-P", "1"],
            ["-P", "3"],
            ["-R", "-Z"],
            ["-l", "1M"],
            ["-w", "64K"],
        ] {
            let mut arguments = vec!["-c", "127.0.0.1", "-p", &port, "-t", "1", "-J"];
            arguments.extend(extra);
            expect_whole_report(|| client(toehold, sides, "iperf3", "iperf3", &arguments));
        }
    });
}

/// Waits until iperf3 reports that it listens: iperf3 counts every connection, even a mere probe of
/// its port.
fn listening(server: &mut Running) {
    let pid = server.pid();
    let up = toehold_e2e::wait_until(toehold_e2e::process::TIME_LIMIT, || {
        server.ended().is_some() || has_listener(pid)
    });
    assert!(
        up && server.ended().is_none(),
        "the server is not up\n{}",
        server.outputs()
    );
}

/// Whether a process holds a listening TCP socket.
fn has_listener(pid: u32) -> bool {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let tables = read("tcp") + &read("tcp6");
    let listening: Vec<String> = tables
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(3) == Some(&"0A"))
        .filter_map(|words| words.get(9).map(|inode| format!("socket:[{inode}]")))
        .collect();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let mut links = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.any(|link| {
        listening
            .iter()
            .any(|socket| *socket == link.to_string_lossy())
    })
}

fn sockperf_finds_its_messages_intact(toehold: &Toehold, sides: Sides) {
    if host::require(["sockperf"]).is_none() {
        return;
    }
    let port = host::free_port();
    let number = port.to_string();
    let mut command = toehold.command(sides.server, "sockperf");
    command.args(["server", "--tcp", "-i", "127.0.0.1", "-p", &number]);
    let mut server = Running::start(command, "sockperf-server", toehold.dir());
    await_port(&mut server, port);
    accelerated(toehold, sides, || {
        for size in ["64", "14", "1400", "60000"] {
            let report = client(
                toehold,
                sides,
                "sockperf",
                "sockperf",
                &[
                    "ping-pong",
                    "--tcp",
                    "-i",
                    "127.0.0.1",
                    "-p",
                    &number,
                    "-t",
                    "1",
                    "--mps",
                    "20000",
                    "--msg-size",
                    size,
                    "--data-integrity",
                ],
            );
            assert!(
                report.contains("Data Integrity Test succeeded")
                    || report.contains("# dropped messages = 0"),
                "{report}"
            );
            assert!(
                !report.to_lowercase().contains("integrity test failed"),
                "{report}"
            );
        }
    });
}

fn memcached_keeps_every_value(toehold: &Toehold, sides: Sides) {
    if host::require(["memcached"]).is_none() {
        return;
    }
    let Some(python) = host::python() else {
        return;
    };
    let port = host::free_port();
    let number = port.to_string();
    let mut command = toehold.command(sides.server, "memcached");
    command.args([
        "-u",
        "root",
        "-l",
        "127.0.0.1",
        "-U",
        "0",
        "-t",
        "2",
        "-p",
        &number,
    ]);
    let mut server = Running::start(command, "memcached", toehold.dir());
    await_port(&mut server, port);
    let [option, script] = host::script("memcached_client.py");
    let python = python.to_string_lossy();
    let said = accelerated(toehold, sides, || {
        client(
            toehold,
            sides,
            "memcached-client",
            &python,
            &[option, script, &number],
        )
    });
    assert!(said.contains("every value came back"), "{said}");
}
