//! Connections of one request each, which programs open over carriers that have served others.

use std::process::Command;

use toehold_e2e::load::Random;
use toehold_e2e::network::FAR;
use toehold_e2e::process::Running;
use toehold_e2e::{Path as Way, host};

use crate::short::{EACH_BEHIND_ONE_IN_ORDER, KILLS_MIN, REUSED};
use crate::stage::{Stage, await_word, ok, script};

impl Stage {
    /// Makes `count` short connections to the far kernel.
    fn opens(&self, port: &str, count: &str, kinds: &str, banner: &str, seed: &str) -> Running {
        let arguments = ["short_client", FAR, port, count, kinds, banner, seed];
        self.near("short-client", &arguments)
    }

    /// Plays a role that makes short connections until at least `least` more used a used carrier.
    fn until_reused(&self, arguments: &[&str], least: u64) {
        self.play_until_reused(least, |_| self.near("short-client", arguments));
    }
}

/// All types of connections. Both ends check every byte, the peer's address, and the end of the
/// connection.
#[test]
fn short_connections_of_all_kinds_that_programs_make_take_turns_on_carriers() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7980"]);
    let clients = ["1", "2", "3"].map(|seed| stage.opens("7980", "1000", "all", "", seed));
    clients.into_iter().for_each(|client| drop(ok(client)));
    let client = ["short_client", FAR, "7980", "300", EACH_BEHIND_ONE_IN_ORDER];
    stage.until_reused(&client, 20);
}

/// Either end closes first, and the program blocks or polls.
#[test]
fn carriers_serve_many_connections_of_a_client() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7981"]);
    for kind in ["client_first", "server_first"] {
        for blocks in ["", "blocks"] {
            let client = ["short_client", FAR, "7981", "500", kind, "", "1", blocks];
            stage.until_reused(&client, 300);
        }
    }
}

/// Many connections in parallel, with one epoll instance. Sockets are registered before or after
/// they connect.
#[test]
fn carriers_serve_a_client_with_many_connections_at_once() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7982"]);
    let edges = ["edge", "early,edge", "early,edge,lively"];
    for options in ["", "early", "kept", "lively,kept"]
        .into_iter()
        .chain(edges)
    {
        let client = ["short_crowd", FAR, "7982", "2000", "20", options];
        stage.until_reused(&client, 300);
    }
}

/// A program that runs as another user than the adapter.
#[test]
fn carriers_serve_clients_of_other_users() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7987"]);
    let client = ["short_crowd", FAR, "7987", "2000", "20", "", "65534"];
    stage.until_reused(&client, 300);
}

/// A connection that is being established belongs to parent and child.
#[test]
fn connections_on_used_carriers_survive_a_fork_before_their_answer() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7988"]);
    stage.until_reused(&["short_forks", FAR, "7988", "300"], 50);
}

/// The server sends first.
#[test]
fn first_bytes_of_a_server_reach_a_program_on_used_carriers() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7983", "hello"]);
    let kinds = "client_first,server_first,silent";
    let client = ["short_client", FAR, "7983", "500", kinds, "hello"];
    stage.until_reused(&client, 100);
}

/// A connection that is being established continues in the program that this process executes.
#[test]
fn connections_on_used_carriers_survive_an_exec_before_their_answer() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7989"]);
    stage.until_reused(&["short_execs", FAR, "7989", "300"], 50);
    stage.until_reused(&["short_becomes", FAR, "7989", "20"], 50);
}

/// The engine's answer comes only after the exec.
#[test]
fn connections_on_used_carriers_survive_an_exec_while_the_adapter_is_stopped() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let _server = stage.far_server(&["short_server", "7981"]);
    for forks in ["", "forks"] {
        let was_used = (0..10).any(|_| {
            let client = stage.near("client", &["short_late", FAR, "7981", forks]);
            await_word(&client, "ready");
            stage.toehold.adapter().signal(libc::SIGSTOP);
            client.signal(libc::SIGUSR1);
            await_word(&client, "inherited");
            stage.toehold.adapter().signal(libc::SIGCONT);
            ok(client).contains("used")
        });
        assert!(was_used, "{}", stage.toehold.status());
    }
}

/// Refusals look as on the kernel. A carrier that reports a refusal ends with it.
#[test]
fn refusals_are_reported_beside_used_carriers() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7984"]);
    stage.until_reused(&["short_refused", FAR, "7984", "7999", "200"], 50);
}

/// A server has ended: a carrier to it reports a refusal.
#[test]
fn carriers_are_told_when_their_destination_refuses() {
    let Some(stage) = Stage::set(&[]) else { return };
    let reused = || stage.engine(REUSED);
    let before = reused();
    let is_enough = (0..10).any(|_| {
        let server = stage.far_server(&["short_server", "7985"]);
        let client = stage.near("client", &["short_until_refused", FAR, "7985"]);
        await_word(&client, "going");
        drop(server);
        assert!(ok(client).contains("refused"));
        reused() - before > 100
    });
    assert!(is_enough, "{}", stage.toehold.status());
}

/// The adapter is killed at a random moment, with carriers parked, claimed and in use. The
/// connections of the adapter are lost, and no byte of any connection is wrong.
#[test]
fn client_lives_on_when_the_adapter_is_killed_with_its_carriers() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let kinds = "client_first,server_first,half_close,large";
    let mut random = Random::new(host::seed());
    for round in 0..host::rounds(KILLS_MIN) {
        let port = (7990 + round % 9).to_string();
        let server = stage.far_server(&["short_server", &port, "", "1", "", "lossy"]);
        let load = ["short_until_lost", FAR, &port, kinds];
        let clients = ["one", "other"].map(|name| stage.near(name, &load));
        stage.kill_under_load(&mut random, clients);
        drop(server);
        stage.toehold.start_adapter();
        assert!(stage.network.bring_up(), "round {round}");
    }
}

/// `toehold run --express off` must have an effect.
#[test]
fn no_carrier_of_a_client_is_used_again_where_the_option_says_off() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.far_server(&["short_server", "7986"]);
    let mut command: Command =
        stage
            .toehold
            .command_with(Way::Offload, &["--express", "off"], &stage.python);
    command
        .args(script())
        .args(["short_client", FAR, "7986", "300", "client_first"]);
    ok(Running::start(command, "off", stage.toehold.dir()));
    assert_eq!(stage.engine(REUSED), 0);
}
