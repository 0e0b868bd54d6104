//! `toehold compare` with programs whose connections are over before anybody sees them.

use std::process::Command;

use toehold_e2e::toehold::{Toehold, library};
use toehold_e2e::{Running, host, process::TIME_LIMIT};

/// The table of a comparison whose only path is shared memory. The server is the lab's.
fn compare(toehold: &Toehold, client: impl Fn(&str, u16) -> String) -> String {
    let port = host::free_port();
    let mut command = Command::new(toehold.asking(&[]).get_program());
    let program = command.get_program().to_string_lossy().into_owned();
    command.args([
        "compare", "--paths", "direct", "--rounds", "1", "--warmup", "0",
    ]);
    let server = format!("{program} lab server --listen 127.0.0.1:{port}");
    command.args(["--server", &server, "--client", &client(&program, port)]);
    command.env("TOEHOLD_LIB", library());
    Running::start(command, "compare", toehold.dir()).success(TIME_LIMIT)
}

#[test]
fn short_connections_on_used_carriers_are_not_taken_for_the_kernel_s() {
    let toehold = Toehold::start();
    let table = compare(&toehold, |toehold, port| {
        let load = "lab client --pattern connect --warmup 0 --seconds 0.2";
        let is_one_accepted = "status --json | grep -q accepted.:[1-9]";
        format!(
            "sh -c 'until {toehold} {is_one_accepted}; do \
             {toehold} {load} 127.0.0.1:{port} || exit 1; done'"
        )
    });
    assert!(!table.contains("kernel with itself"), "{table}");
    assert!(table.contains("used a carrier again"), "{table}");
}

#[test]
fn a_client_without_connections_compares_the_kernel_with_itself() {
    let toehold = Toehold::start();
    let table = compare(&toehold, |_, _| "true".to_owned());
    assert!(table.contains("kernel with itself"), "{table}");
}
