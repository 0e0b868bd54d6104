//! Fast Open (RFC 7413): payload in a SYN, from the far kernel to a program on the engine, and from
//! a program on the engine to the far kernel.

use toehold_e2e::network::{FAR, FAR_V6, NEAR, NEAR_V6};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, host, wait_until};

use crate::stage::{Stage, listening, ok};

const SCRIPT: &str = "fast_open.py";

/// A program in the far namespace, where the kernel may use Fast Open as client and as server.
fn far(stage: &Stage, name: &str, arguments: &[&str]) -> Running {
    let mut command = stage.network.far(&stage.python);
    command.args(host::script(SCRIPT)).args(arguments);
    Running::start(command, name, stage.toehold.dir())
}

fn near(stage: &Stage, name: &str, arguments: &[&str]) -> Running {
    let command = stage.offloaded(
        &stage.python,
        &[&host::script(SCRIPT)[..], arguments].concat(),
    );
    Running::start(command, name, stage.toehold.dir())
}

/// The kernel gets its cookie with the first connection. After that the request travels with the
/// SYN. A server that sets the option after listen(2) also receives such requests.
#[test]
fn the_kernels_syns_bring_their_payload_to_a_listener_that_asks_for_it() {
    // All threads must accept a cookie that one thread has made.
    let Some(stage) = Stage::set(&["--fast-open", "server", "--threads", "2"]) else {
        return;
    };
    // The kernel keeps one cookie for each address.
    let cases = [("7411", "before", "0 1 1 1"), ("7412", "after", "1 1")];
    for (port, when, syn_data) in cases {
        let server = listening(near(&stage, "server", &["server", port, when]));
        ok(far(&stage, "client", &["client", NEAR, port, syn_data]));
        ok(far(&stage, "client", &["client", NEAR_V6, port, syn_data]));
        drop(server);
    }
    assert_eq!(stage.engine("fast_opens_accepted"), 10);
    // A listener without the option takes no part in Fast Open. With the setting off, no listener
    // does.
    let server = listening(near(&stage, "server", &["server", "7413", "never"]));
    ok(far(&stage, "client", &["client", NEAR, "7413", "0 0"]));
    drop(server);
    let mut set = stage.toehold.asking(&["adapter", "--set", "fast-open=off"]);
    assert!(set.status().is_ok_and(|status| status.success()));
    let server = listening(near(&stage, "server", &["server", "7414", "before"]));
    ok(far(&stage, "client", &["client", NEAR, "7414", "0 0"]));
    drop(server);
}

/// Makes the far kernel drop frames, by an nftables chain at this hook.
fn far_loses(stage: &Stage, hook: &str, rule: &str) {
    let chain = format!("chain {hook} {{ type filter hook {hook} priority 0; {rule} drop; }}");
    let rules = format!("table inet loss {{\n{chain}\n}}");
    let mut command = stage.network.far("sh");
    let script = format!("nft flush ruleset; echo '{rules}' | nft -f -");
    let output = command.args(["-c", &script]).output().expect("a shell");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

/// Makes the far kernel drop every other frame with these flags.
fn far_loses_every_other(stage: &Stage, hook: &str, flags: &str) {
    let rule = format!("tcp flags & (syn | ack) == {flags} numgen inc mod 2 0");
    far_loses(stage, hook, &rule);
}

/// Every other SYN, or every other SYN-ACK, is lost. If a SYN-ACK is lost, the server already has
/// the request and has answered before the kernel knows that the connection exists.
#[test]
fn requests_arrive_once_where_syns_and_syn_acks_are_lost() {
    let Some(stage) = Stage::set(&["--fast-open", "server"]) else {
        return;
    };
    if host::require(["nft"]).is_none() {
        return;
    }
    let server = listening(near(&stage, "server", &["server", "7415", "before"]));
    ok(far(&stage, "client", &["client", NEAR, "7415", "0 1"]));
    for (hook, lost) in [("output", "syn"), ("input", "syn | ack")] {
        far_loses_every_other(&stage, hook, lost);
        ok(far(&stage, "client", &["client", NEAR, "7415", "- -"]));
    }
    drop(server);
}

/// Makes the far kernel accept payload in SYNs.
fn far_takes_payload(stage: &Stage) {
    let mut command = stage.network.far("sh");
    let script = "echo 3 > /proc/sys/net/ipv4/tcp_fastopen";
    let done = command.args(["-c", script]).status();
    assert!(done.is_ok_and(|status| status.success()));
}

/// The first connection brings a cookie. After that each request travels with its SYN, whichever
/// call the program uses. The far kernel reports this.
#[test]
fn requests_of_programs_go_with_their_syns() {
    // Each remote's cookies belong to one thread.
    let Some(stage) = Stage::set(&["--fast-open", "client", "--threads", "2"]) else {
        return;
    };
    far_takes_payload(&stage);
    let server = listening(far(&stage, "server", &["telling", "7421"]));
    let asking = |address, length, way, told| {
        let arguments = ["asking", address, "7421", length, way, told];
        ok(near(&stage, "client", &arguments));
    };
    asking(FAR, "420", "sendto-blocks", "0 1 1");
    for way in [
        "sendto-polls",
        "sendto-epoll",
        "sendmsg-blocks",
        "sendmsg-polls",
        "rights-blocks",
        "sendmmsg-blocks",
        "sendmmsg-polls",
        "option-blocks",
        "option-polls",
        "option-epoll",
    ] {
        asking(FAR, "420", way, "1 1");
    }
    // Requests that are larger than the payload of a SYN, and smaller ones.
    for way in [
        "sendto-blocks",
        "sendmsg-blocks",
        "sendto-polls",
        "sendmsg-epoll",
        "sendmmsg-blocks",
        "option-blocks",
        "option-epoll",
    ] {
        asking(FAR, "300000", way, "1");
        asking(FAR, "1", way, "1");
    }
    asking(FAR_V6, "1400", "sendmsg-polls", "0 1");
    // The number of connections with `1` in the lists above.
    assert_eq!(stage.engine("fast_opens_acknowledged"), 37);
    drop(server);
}

/// Every other SYN of the engine, or every other SYN-ACK, is lost. If a SYN-ACK is lost, the server
/// already has the request. After a lost SYN, the engine sends that remote no payload in SYNs for a
/// while.
#[test]
fn requests_of_programs_arrive_once_where_syns_and_syn_acks_are_lost() {
    let Some(stage) = Stage::set(&["--fast-open", "on"]) else {
        return;
    };
    if host::require(["nft"]).is_none() {
        return;
    }
    far_takes_payload(&stage);
    let ways = ["sendto-blocks", "sendto-polls"];
    let losses = [("input", "syn"), ("output", "syn | ack")];
    let mut ports = 7431..;
    for (way, (hook, flags)) in ways
        .into_iter()
        .flat_map(|way| losses.map(|loss| (way, loss)))
    {
        let port = ports.next().unwrap_or_default().to_string();
        let server = listening(far(&stage, "server", &["telling", &port]));
        let asking = |told| {
            let arguments = ["asking", FAR, &port, "3000", way, told];
            ok(near(&stage, "client", &arguments));
        };
        asking("0");
        far_loses_every_other(&stage, hook, flags);
        asking("- -");
        far_loses(&stage, "input", "tcp dport 1");
        assert_eq!(server.stdout().matches("request: 3000").count(), 3);
    }
}

/// A blocking call returns the error. After a non-blocking call the next call returns it.
#[test]
fn programs_hear_that_a_message_with_payload_was_refused() {
    let Some(stage) = Stage::set(&["--fast-open", "client"]) else {
        return;
    };
    far_takes_payload(&stage);
    for (port, way) in [
        ("7441", "sendto-blocks"),
        ("7442", "sendmsg-polls"),
        ("7443", "option-blocks"),
        ("7444", "option-polls"),
    ] {
        let server = listening(far(&stage, "server", &["telling", port]));
        ok(near(
            &stage,
            "client",
            &["asking", FAR, port, "420", way, "0 1"],
        ));
        drop(server);
        let said = ok(near(
            &stage,
            "client",
            &["failing", FAR, port, way, "ECONNREFUSED"],
        ));
        assert_eq!(said.contains("taken: 4"), way.ends_with("polls"), "{said}");
    }
}

/// The server has the request, and the engine dies before it knows that. The kernel must not send
/// the request a second time, although the kernel's own connections work here.
#[test]
fn an_adapter_that_dies_behind_a_request_is_an_error() {
    let shared = format!("{NEAR}:7900");
    let options = [
        "--share",
        &shared,
        "--outgoing",
        "61000-61100",
        "--fast-open",
        "client",
    ];
    let Some(mut stage) = Stage::set_sharing(Link::Packet, &options) else {
        return;
    };
    if host::require(["nft"]).is_none() {
        return;
    }
    far_takes_payload(&stage);
    let mut ports = 7451..;
    for way in [
        "sendto-blocks",
        "sendto-polls",
        "sendmsg-epoll",
        "option-polls",
    ] {
        let port = ports.next().unwrap_or_default().to_string();
        let server = listening(far(&stage, "server", &["telling", &port]));
        ok(near(
            &stage,
            "client",
            &["asking", FAR, &port, "420", way, "0 1"],
        ));
        far_loses(&stage, "output", "tcp dport 61000-61100");
        let client = near(
            &stage,
            "client",
            &["failing", FAR, &port, way, "ECONNRESET"],
        );
        let begun = || stage.engine("connections_opened") == 3;
        assert!(wait_until(TIME_LIMIT, begun), "{}", client.outputs());
        stage.toehold.adapter().signal(libc::SIGKILL);
        ok(client);
        far_loses(&stage, "input", "tcp dport 1");
        assert_eq!(
            server.stdout().matches("request: 4 ").count(),
            0,
            "no second connection"
        );
        stage.toehold.start_adapter();
    }
}

/// The results must match the kernel's, which opens connections from the far side to the engine. A
/// connection that is closed before its first bytes must not reach the remote.
#[test]
fn connections_wait_for_their_first_bytes_as_on_the_kernel() {
    let Some(stage) = Stage::set(&["--fast-open", "on"]) else {
        return;
    };
    far_takes_payload(&stage);
    let near_server = listening(near(&stage, "near-server", &["telling", "7481"]));
    let by_kernel = ok(far(&stage, "far-client", &["deferring", NEAR, "7481"]));
    let far_server = listening(far(&stage, "far-server", &["telling", "7481"]));
    let by_engine = ok(near(&stage, "near-client", &["deferring", FAR, "7481"]));
    // In a near server TCP_INFO describes its carrier, so these lines are left out.
    let seen = |said: &str| -> Vec<String> {
        let lines = said.lines().filter(|line| !line.starts_with("syn data"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(seen(&by_engine), seen(&by_kernel));
    assert_eq!(
        by_engine.matches("syn data: b'1'").count(),
        2,
        "{by_engine}"
    );
    assert!(by_kernel.contains("connect: done"), "{by_kernel}");
    for server in [near_server, far_server] {
        assert_eq!(
            server.stdout().matches("request:").count(),
            3,
            "{}",
            server.outputs()
        );
    }
}

/// A program that makes no more calls after the remote has answered has not lost its request.
#[test]
fn requests_of_programs_that_leave_arrive() {
    let Some(stage) = Stage::set(&["--fast-open", "client"]) else {
        return;
    };
    far_takes_payload(&stage);
    let server = listening(far(&stage, "server", &["telling", "7461"]));
    ok(near(
        &stage,
        "client",
        &["asking", FAR, "7461", "420", "sendto-polls", "0 1"],
    ));
    for (n, how) in ["closes", "ends", "closes"].into_iter().enumerate() {
        let arguments = ["leaving", FAR, "7461", "sendto-polls", "1000", how];
        ok(near(&stage, "client", &arguments));
        let has_come = || server.stdout().matches("request: 1000").count() == n + 1;
        assert!(
            wait_until(TIME_LIMIT, has_come),
            "{how}: {}",
            server.outputs()
        );
    }
}

/// Messages open connections through the engine, and are sent after the handshake.
#[test]
fn no_request_goes_with_a_syn_where_the_setting_is_off() {
    let settings = [
        "--fast-open",
        "client",
        "--to",
        "10.84.0.1:7472 fast-open off",
    ];
    let Some(stage) = Stage::set(&settings) else {
        return;
    };
    far_takes_payload(&stage);
    let opened = || stage.engine("connections_opened");
    for (port, told) in [("7471", "0 1"), ("7472", "0 0 0")] {
        let server = listening(far(&stage, "server", &["telling", port]));
        let before = opened();
        ok(near(
            &stage,
            "client",
            &["asking", FAR, port, "420", "sendto-blocks", told],
        ));
        assert_eq!(opened() - before, told.split(' ').count() as u64);
        drop(server);
    }
}
