//! nginx with two workers: bodies byte-exact, reloads without a failed request.

use std::time::Duration;

use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Nginx, Sides, Toehold, host};

use crate::{accelerated, await_port, claims, client};

claims!(
    nginx_bodies_are_exact,
    nginx_reloads_without_a_failed_request
);

/// The sizes of the files served, named after themselves.
const SIZES: [usize; 6] = [0, 1, 1000, 65_536, 1_000_000, 12_345_678];

/// nginx on one side, and its address.
fn serve(toehold: &Toehold, sides: Sides) -> (Nginx, impl Fn(usize) -> String) {
    let port = host::free_port();
    let command = toehold.command(sides.server, host::program("nginx").expect("required"));
    let mut nginx = Nginx::start(command, toehold.dir(), "127.0.0.1", port, &SIZES);
    await_port(&mut nginx.server, port);
    (nginx, move |size| format!("http://127.0.0.1:{port}/{size}"))
}

fn nginx_bodies_are_exact(toehold: &Toehold, sides: Sides) {
    if host::require(["nginx", "curl"]).is_none() {
        return;
    }
    let (nginx, url) = serve(toehold, sides);
    let target = toehold.dir().join("body");
    let target = target.to_string_lossy();
    for size in SIZES {
        // Several requests over one connection: the later requests find the connection warmed up.
        let urls: Vec<String> = (0..30).map(|_| url(size)).collect();
        let mut arguments = vec!["-sS", "--fail", "--max-time", "30"];
        for url in &urls {
            arguments.extend(["-o", &target, url.as_str()]);
        }
        client(toehold, sides, "curl", "curl", &arguments);
        let got = std::fs::read(&*target).expect("curl wrote it");
        let expected = nginx.body(size);
        assert!(
            got == expected,
            "the body of {size} bytes is not exact: {} bytes",
            got.len()
        );
    }
    if host::require(["wrk"]).is_some() {
        let report = accelerated(toehold, sides, || {
            client(
                toehold,
                sides,
                "wrk",
                "wrk",
                &["-t1", "-c30", "-d2s", &url(1000)],
            )
        });
        no_failures(&report);
    }
}

fn nginx_reloads_without_a_failed_request(toehold: &Toehold, sides: Sides) {
    if host::require(["nginx", "wrk"]).is_none() {
        return;
    }
    let (nginx, url) = serve(toehold, sides);
    // A connection for each request: on a kept connection, nginx may close just as the next request
    // comes, which is no failure of the transport.
    let mut command = toehold.command(sides.client, "wrk");
    command.args([
        "-t1",
        "-c20",
        "-d4s",
        "-H",
        "Connection: close",
        &url(65_536),
    ]);
    let load = Running::start(command, "wrk", toehold.dir());
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(700));
        nginx.server.signal(libc::SIGHUP);
    }
    no_failures(&load.success(TIME_LIMIT));
    // Kept connections, too, which must at least never hang.
    let mut command = toehold.command(sides.client, "wrk");
    command.args(["-t1", "-c20", "-d2s", "--timeout", "1s", &url(1000)]);
    let load = Running::start(command, "wrk", toehold.dir());
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(700));
        nginx.server.signal(libc::SIGHUP);
    }
    let report = load.success(TIME_LIMIT);
    assert!(
        !report.contains("timeout") || report.contains("timeout 0"),
        "{report}"
    );
}

fn no_failures(report: &str) {
    assert!(report.contains("Requests/sec"), "{report}");
    assert!(
        !report.contains("Socket errors") && !report.contains("Non-2xx"),
        "{report}"
    );
}
