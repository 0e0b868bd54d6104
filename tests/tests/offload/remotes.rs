//! Hostile remotes: the adapter stays within its memory budget, and other connections continue.
//!
//! The command for the whole attack is `TOEHOLD_SOAK=32000 cargo xtask e2e remotes`, with an
//! adapter's default budget. Each connection uses a descriptor of the adapter, and one program's
//! connections may use half of the descriptors. If `ulimit -Hn` is below 65,000, the remotes above
//! the limit are reset.

use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, host, wait_until};

use crate::stage::{Stage, ok};

const SCRIPT: &str = "hostile_remote.py";
/// The number of connections of the attack in every run: more than fit into the smallest budget.
const CONNECTIONS: u64 = 2_000;
/// From this number of connections on, the default budget is used.
const CONNECTIONS_MANY: u64 = 16_000;
const BUDGET_MB_MIN: u64 = 64;
const BUDGET_MB_DEFAULT: u64 = 1_024;

/// The anonymous resident memory of a process, in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    1024 * kilobytes
        .and_then(|text| text.parse::<u64>().ok())
        .expect("proc(5)")
}

#[test]
fn thousands_of_hostile_remotes_stay_within_the_budget() {
    let count = host::rounds(CONNECTIONS);
    let budget_mb = if count < CONNECTIONS_MANY {
        BUDGET_MB_MIN
    } else {
        BUDGET_MB_DEFAULT
    };
    let options = ["--memory", &budget_mb.to_string(), "--quota", "100000"];
    let Some(mut stage) = Stage::set_over(Link::Tap, &options) else {
        return;
    };
    let _silent = stage.near_server(&["silent_server", "7701"]);
    let _far = stage.far_server(&["echo_server", "7702"]);
    let pid = stage.toehold.adapter().pid();
    let before = resident_bytes(pid);
    let mut attack = {
        let mut command = stage.network.far(&stage.python);
        let (count, seconds) = (count.to_string(), "20");
        command
            .args(host::script(SCRIPT))
            .args(["attack", "toe0", NEAR, "7701", &count, seconds]);
        Running::start(command, "attack", stage.toehold.dir())
    };
    let mut most = 0;
    let begun = wait_until(TIME_LIMIT * 10, || {
        most = most.max(resident_bytes(pid));
        attack.ended().is_some() || attack.stdout().contains("spread")
    });
    assert!(begun && attack.ended().is_none(), "{}", attack.outputs());
    for _ in 0..5 {
        ok(stage.near("stream", &["echo_client", FAR, "7702", "10000000"]));
        most = most.max(resident_bytes(pid));
    }
    let left = attack.success(TIME_LIMIT * 4);
    most = most.max(resident_bytes(pid));
    let grown_mb = (most - before) >> 20;
    println!("{count} connections, {budget_mb} MB allowed, {grown_mb} MB taken; {left}");
    assert!(grown_mb <= budget_mb, "{grown_mb} MB of {budget_mb}");
    let status = stage.toehold.status();
    assert!(stage.engine("memory_refused") > 0, "{:?}", status["engine"]);
    assert!(stage.engine("memory_pruned") > 0, "{:?}", status["engine"]);
    ok(stage.near("after", &["echo_client", FAR, "7702", "10000000"]));
}
