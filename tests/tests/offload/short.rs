//! Connections of one request each, over carriers that have served other connections.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use toehold_e2e::load::Random;
use toehold_e2e::network::NEAR;
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Path as Way, host, wait_until};

use crate::stage::{Stage, await_word, listening, ok, script};

/// Each kill takes about two seconds.
pub(crate) const KILLS_MIN: u64 = 4;
/// A kill comes at a random moment within this many milliseconds of load.
const LOAD_MS_MAX: u64 = 300;
pub(crate) const REUSED: &str = "connections_on_used_carriers";
/// All types of connections. Each follows a connection that leaves its carrier to the next one.
/// Most types do not leave their carrier, and a busy host makes few carriers. Without this order
/// most types would hardly ever use a used carrier.
pub(crate) const EACH_BEHIND_ONE_IN_ORDER: &str = "client_first,server_first,client_first,\
    half_close,server_first,banner,client_first,large,server_first,large_request,client_first,\
    client_resets,server_first,unread,client_first,gone,server_first,silent";

impl Stage {
    /// Makes `count` short connections from the far kernel.
    fn short(&self, port: &str, count: &str, kinds: &str, banner: &str, seed: &str) -> Running {
        let arguments = ["short_client", NEAR, port, count, kinds, banner, seed];
        self.far("short-client", &arguments)
    }

    /// Makes short connections until at least `least` more of them used a used carrier.
    fn short_until_reused(&self, port: &str, kinds: &str, banner: &str, least: u64) {
        self.play_until_reused(least, |seed| {
            self.short(port, "300", kinds, banner, &seed.to_string())
        });
    }

    /// Plays a role repeatedly until at least `least` more connections used a used carrier. A busy
    /// host makes fewer of them in a given time.
    pub(crate) fn play_until_reused(&self, least: u64, play: impl Fn(u32) -> Running) {
        let before = self.engine(REUSED);
        let enough = (1..=20).any(|seed| {
            ok(play(seed));
            self.engine(REUSED) - before >= least
        });
        assert!(enough, "{}", self.toehold.status());
    }

    /// Kills the adapter at a random moment while roles make short connections. The roles must
    /// succeed.
    pub(crate) fn kill_under_load(&mut self, random: &mut Random, clients: [Running; 2]) {
        clients
            .iter()
            .for_each(|client| await_word(client, "going"));
        sleep(Duration::from_millis(random.below(LOAD_MS_MAX)));
        self.toehold.adapter().signal(libc::SIGKILL);
        clients.into_iter().for_each(|client| drop(ok(client)));
    }
}

/// All types of connections on one set of carriers. Both ends check every byte, the peer's address,
/// and the end of the connection.
#[test]
fn short_connections_of_all_kinds_take_turns_on_carriers() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.near_server(&["short_server", "7960"]);
    let clients = ["1", "2", "3"].map(|seed| stage.short("7960", "1000", "all", "", seed));
    clients.into_iter().for_each(|client| drop(ok(client)));
    stage.short_until_reused("7960", EACH_BEHIND_ONE_IN_ORDER, "", 20);
}

/// Either end closes first.
#[test]
fn carriers_serve_many_connections_of_a_server() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.near_server(&["short_server", "7961"]);
    for kind in ["client_first", "server_first"] {
        stage.short_until_reused("7961", kind, "", 500);
    }
}

/// The program sends first, so it must be told of a connection before any bytes arrive.
#[test]
fn program_that_speaks_first_is_told_of_connections_on_used_carriers() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _server = stage.near_server(&["short_server", "7962", "hello"]);
    ok(stage.short(
        "7962",
        "500",
        "client_first,server_first,silent",
        "hello",
        "1",
    ));
    assert!(stage.engine(REUSED) > 100);
}

/// Workers share a listener, and one worker is killed under load. The other workers get the
/// connections that the killed worker had not accepted.
#[test]
fn carriers_of_several_workers_are_used_and_end_with_them() {
    let Some(stage) = Stage::set(&[]) else { return };
    let server = stage.near_server(&["short_server", "7963", "", "3"]);
    let kinds = "client_first,server_first";
    stage.short_until_reused("7963", kinds, "", 100);
    let workers = children_of(server.pid());
    assert_eq!(workers.len(), 2);
    for worker in workers {
        // SAFETY: plain system call; a child of a program that we started.
        unsafe { libc::kill(worker, libc::SIGKILL) };
        ok(stage.short("7963", "200", kinds, "", "2"));
    }
}

/// A listener's carriers end with the listener. The next listener gets its own carriers.
#[test]
fn carriers_end_with_their_listener() {
    let Some(stage) = Stage::set(&[]) else { return };
    for _ in 0..3 {
        let server = stage.near_server(&["short_server", "7964"]);
        stage.short_until_reused("7964", "client_first,server_first", "", 50);
        drop(server);
        let is_forgotten =
            || stage.engine("listeners") == 0 && stage.engine("carriers_parked") == 0;
        assert!(wait_until(TIME_LIMIT, is_forgotten));
    }
}

/// Workers run as another user than the adapter, like nginx's workers. The next listener belongs to
/// a third user, and gets its own connections.
#[test]
fn carriers_serve_programs_of_other_users_while_their_listener_is_there() {
    let Some(stage) = Stage::set(&[]) else { return };
    for user in ["65534", "1234"] {
        let server = stage.near_server(&["short_server", "7966", "", "2", user]);
        stage.short_until_reused("7966", "client_first,server_first", "", 100);
        let status = stage.toehold.status();
        let processes = status["processes"].as_array().expect("a list");
        let is_its = |process: &Value| process["uid"].as_u64() == user.parse().ok();
        assert!(processes.iter().any(is_its), "{status}");
        drop(server);
        assert!(wait_until(TIME_LIMIT, || stage.engine("listeners") == 0));
    }
}

/// The adapter is killed at a random moment, with carriers parked, claimed and in use. The
/// connections of the adapter are lost. The program continues to serve the kernel's connections.
#[test]
fn program_lives_on_when_the_adapter_is_killed_with_its_carriers() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let kinds = "client_first,server_first,half_close,large";
    let mut random = Random::new(host::seed());
    for round in 0..host::rounds(KILLS_MIN) {
        let port = (7970 + round % 20).to_string();
        let mut server = stage.near_server(&["short_server", &port, "", "1", "", "lossy"]);
        let load = ["short_until_lost", NEAR, &port, kinds];
        let clients = ["one", "other"].map(|name| stage.far(name, &load));
        stage.kill_under_load(&mut random, clients);
        assert!(server.ended().is_none(), "{}", server.outputs());
        let talk = ["short_client", "127.0.0.1", &port, "40", kinds];
        ok(stage.near_on(Way::Host, "kernel", &talk));
        drop(server);
        stage.toehold.start_adapter();
        assert!(stage.network.bring_up(), "round {round}");
    }
}

/// `toehold run --express off` must have an effect.
#[test]
fn no_carrier_of_the_engine_is_used_again_where_the_option_says_off() {
    let Some(stage) = Stage::set(&[]) else { return };
    let mut command: Command =
        stage
            .toehold
            .command_with(Way::Offload, &["--express", "off"], &stage.python);
    command.args(script()).args(["short_server", "7965"]);
    let _server = listening(Running::start(command, "off", stage.toehold.dir()));
    stage.await_listeners(1);
    ok(stage.short("7965", "300", "client_first,server_first", "", "1"));
    assert_eq!(stage.engine(REUSED), 0);
}

/// The child processes of a program.
fn children_of(pid: u32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace();
    children.filter_map(|child| child.parse().ok()).collect()
}
