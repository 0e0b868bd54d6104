//! The servers and clients that come with Python and Node.

use toehold_e2e::process::Running;
use toehold_e2e::{Sides, Toehold, host};

use crate::{accelerated, await_port, claims, client};

claims!(
    python_asyncio_echoes_exactly,
    python_socketserver_threads_echo_exactly,
    python_socketserver_forks_echo_exactly,
    python_http_server_serves_exactly,
    python_selectors_echo_exactly,
    node_http_serves_exactly,
);

/// Runs a script's server and its client; the client checks everything and reports the result.
/// The interpreter runs the script with the arguments `file`.
fn script(toehold: &Toehold, sides: Sides, interpreter: &str, file: &[&str], kind: &str) {
    let port = host::free_port();
    let number = port.to_string();
    let mut command = toehold.command(sides.server, interpreter);
    command.args(file).args(["server", kind, &number]);
    let mut server = Running::start(command, &format!("{kind}-server"), toehold.dir());
    await_port(&mut server, port);
    let said = accelerated(toehold, sides, || {
        client(
            toehold,
            sides,
            kind,
            interpreter,
            &[file, &["client", kind, &number]].concat(),
        )
    });
    assert!(said.contains("all exact"), "{said}\n{}", server.outputs());
}

fn python(toehold: &Toehold, sides: Sides, kind: &str) {
    if let Some(python) = host::python() {
        let python = python.to_string_lossy();
        script(toehold, sides, &python, &host::script("servers.py"), kind);
    }
}

fn python_asyncio_echoes_exactly(toehold: &Toehold, sides: Sides) {
    python(toehold, sides, "asyncio");
}

fn python_socketserver_threads_echo_exactly(toehold: &Toehold, sides: Sides) {
    python(toehold, sides, "threads");
}

fn python_socketserver_forks_echo_exactly(toehold: &Toehold, sides: Sides) {
    python(toehold, sides, "forks");
}

fn python_http_server_serves_exactly(toehold: &Toehold, sides: Sides) {
    python(toehold, sides, "http");
}

fn python_selectors_echo_exactly(toehold: &Toehold, sides: Sides) {
    python(toehold, sides, "selectors");
}

fn node_http_serves_exactly(toehold: &Toehold, sides: Sides) {
    match host::program("node") {
        Some(node) => {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/servers.js");
            script(toehold, sides, &node.to_string_lossy(), &[file], "http");
        }
        None => host::skipped("node is not installed"),
    }
}
