//! nginx with two workers: bodies byte-exact, reloads without a failed request.

use std::path::PathBuf;
use std::time::Duration;

use toehold_e2e::load::Pattern;
use toehold_e2e::process::{PATIENCE, Running};
use toehold_e2e::{Sides, Toehold, host};

use crate::{accelerated, await_port, claims, client};

claims!(
    nginx_bodies_are_exact,
    nginx_reloads_without_a_failed_request
);

/// The sizes of the files served, named after themselves.
const SIZES: [usize; 6] = [0, 1, 1000, 65_536, 1_000_000, 12_345_678];

struct Nginx {
    port: u16,
    root: PathBuf,
    server: Running,
}

impl Nginx {
    fn start(toehold: &Toehold, sides: Sides) -> Nginx {
        let port = host::free_port();
        let root = toehold.dir().join("www");
        std::fs::create_dir(&root).expect("the scratch directory is writable");
        for size in SIZES {
            let mut bytes = vec![0; size];
            Pattern::new(size as u64).fill(0, &mut bytes);
            std::fs::write(root.join(size.to_string()), bytes).expect("there is room");
        }
        let dir = toehold.dir().display();
        let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {dir}/{kind};"));
        let config = format!(
            "user root; worker_processes 2; daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 100000; {}\n\
             server {{ listen 127.0.0.1:{port}; root {}; }} }}\n",
            places.join(" "),
            root.display()
        );
        let path = toehold.dir().join("nginx.conf");
        std::fs::write(&path, config).expect("there is room");
        let mut command = toehold.command(sides.server, host::program("nginx").expect("required"));
        command.arg("-c").arg(path).arg("-p").arg(toehold.dir());
        let mut server = Running::start(command, "nginx", toehold.dir());
        await_port(&mut server, port);
        Nginx { port, root, server }
    }

    fn url(&self, size: usize) -> String {
        format!("http://127.0.0.1:{}/{size}", self.port)
    }
}

fn nginx_bodies_are_exact(toehold: &Toehold, sides: Sides) {
    if host::require(["nginx", "curl"]).is_none() {
        return;
    }
    let nginx = Nginx::start(toehold, sides);
    let target = toehold.dir().join("body");
    let target = target.to_string_lossy();
    for size in SIZES {
        // Several requests over one connection: the later ones find it warmed up.
        let urls: Vec<String> = (0..30).map(|_| nginx.url(size)).collect();
        let mut arguments = vec!["-sS", "--fail", "--max-time", "30"];
        for url in &urls {
            arguments.extend(["-o", &target, url.as_str()]);
        }
        client(toehold, sides, "curl", "curl", &arguments);
        let got = std::fs::read(&*target).expect("curl wrote it");
        let expected = std::fs::read(nginx.root.join(size.to_string())).expect("we wrote it");
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
                &["-t1", "-c30", "-d2s", &nginx.url(1000)],
            )
        });
        no_failures(&report);
    }
}

fn nginx_reloads_without_a_failed_request(toehold: &Toehold, sides: Sides) {
    if host::require(["nginx", "wrk"]).is_none() {
        return;
    }
    let nginx = Nginx::start(toehold, sides);
    // A connection for each request: on a kept one, nginx may close just as the next request comes,
    // which is no failure of the transport.
    let mut command = toehold.command(sides.client, "wrk");
    command.args([
        "-t1",
        "-c20",
        "-d4s",
        "-H",
        "Connection: close",
        &nginx.url(65_536),
    ]);
    let load = Running::start(command, "wrk", toehold.dir());
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(700));
        nginx.server.signal(libc::SIGHUP);
    }
    no_failures(&load.success(PATIENCE));
    // And kept connections, which must at least never hang.
    let mut command = toehold.command(sides.client, "wrk");
    command.args(["-t1", "-c20", "-d2s", "--timeout", "1s", &nginx.url(1000)]);
    let load = Running::start(command, "wrk", toehold.dir());
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(700));
        nginx.server.signal(libc::SIGHUP);
    }
    let report = load.success(PATIENCE);
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
