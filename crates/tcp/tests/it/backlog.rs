//! More remotes than a listener has room for.

use crate::script::Stage;
use toehold_tcp::{Duration, Event};

/// Room of the stage's listener.
const BACKLOG: u8 = 16;

/// Like Linux (tcp_abort_on_overflow is off): a handshake that ends without room in the backlog
/// stays open. The engine resets no remote, and a waiting remote is accepted when there is room.
#[test]
fn handshakes_wait_while_the_backlog_is_full() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let more = BACKLOG + 4;
    let remotes: Vec<[u8; 4]> = (0..more).map(|host| [10, 0, 0, 10 + host]).collect();
    let mut acknowledgements = Vec::new();
    for &remote in &remotes {
        stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", remote));
        stage.expect("S. 0:0(0) ack 1");
        acknowledgements.push(stage.packet("P. 1:11(10) ack 1", remote));
    }
    for (packet, index) in acknowledgements.iter().zip(0..) {
        stage.raw(packet);
        if index < BACKLOG {
            stage.forget_sent();
        }
        stage.expect_nothing();
    }
    let accepted = |stage: &mut Stage| {
        let listener = stage.listener;
        core::iter::from_fn(|| stage.engine.accept(listener)).count()
    };
    assert_eq!(accepted(&mut stage), usize::from(BACKLOG));
    assert_eq!(stage.engine.counters().backlog_overflows, 4);
    assert_eq!(stage.engine.counters().resets_sent, 0);
    // The engine's answers are sent again, and so are the remotes' segments.
    stage.wait(Duration::from_secs(1));
    stage.forget_sent();
    for packet in &acknowledgements[usize::from(BACKLOG)..] {
        stage.raw(packet);
    }
    assert_eq!(accepted(&mut stage), 4);
    assert_eq!(stage.engine.counters().resets_sent, 0);
}

/// A listener that was asked again keeps those that wait, and takes as many as were asked for last.
#[test]
fn another_backlog_counts_from_now_on() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let mut hosts = 10..;
    let mut syn = |stage: &mut Stage| {
        let remote = [10, 0, 0, hosts.next().expect("a few")];
        stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", remote));
        remote
    };
    for (backlog, more) in [(3, 3), (5, 2), (4, 0), (0, 0), (6, 1)] {
        stage.engine.set_backlog(stage.listener, backlog);
        for _ in 0..more {
            let remote = syn(&mut stage);
            stage.expect("S. 0:0(0) ack 1");
            stage.raw(&stage.packet(". 1:1(0) ack 1", remote));
        }
        syn(&mut stage);
        stage.expect_nothing();
    }
}

/// A reset ends a connection that waits for room.
#[test]
fn who_waits_may_leave() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let mut packets = Vec::new();
    for host in 0..=BACKLOG {
        let remote = [10, 0, 0, 10 + host];
        stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", remote));
        stage.expect("S. 0:0(0) ack 1");
        packets.push(stage.packet(". 1:1(0) ack 1", remote));
    }
    packets.push(stage.packet("R. 1:1(0) ack 1", [10, 0, 0, 10 + BACKLOG]));
    packets.iter().for_each(|packet| stage.raw(packet));
    assert_eq!(stage.engine.connection_count(), usize::from(BACKLOG));
    stage.engine.assert_invariants();
}

/// A cookie is valid for two minutes at most, also while other cookies are sent.
#[test]
fn cookies_go_stale() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.half_open_max = 0;
    });
    let (early, late) = ([10, 0, 0, 10], [10, 0, 0, 11]);
    stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", early));
    stage.expect("S. 0:0(0) ack 1");
    let acknowledgement = stage.packet(". 1:1(0) ack 1", early);
    stage.wait(Duration::from_secs(190));
    stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", late));
    stage.expect("S. 0:0(0) ack 1");
    stage.raw(&acknowledgement);
    assert!(stage.engine.accept(stage.listener).is_none());
    stage.raw(&stage.packet(". 1:1(0) ack 1", late));
    assert!(stage.engine.accept(stage.listener).is_some());
}

/// The host is told, because it has stored the bytes. It is not told about connections without
/// bytes.
#[test]
fn connections_with_bytes_that_nobody_will_accept_are_named_when_they_end() {
    type Act = fn(&mut Stage);
    let unlisten: Act = |stage| stage.engine.unlisten(stage.listener);
    let nothing: Act = |_| ();
    let resets: Act = |stage| stage.remote("R 11:11(0) win 0");
    let loses_address: Act = |stage| stage.engine.remove_address([10, 0, 0, 1].into());
    for (before, data, after) in [
        // The handshake ends when its listener is gone.
        (unlisten, "P. 1:11(10) ack 1", nothing),
        // The connection waits to be accepted.
        (nothing, "P. 1:11(10) ack 1", unlisten),
        (nothing, "P. 1:11(10) ack 1", loses_address),
        (nothing, "P. 1:11(10) ack 1", resets),
        // The bytes lie beyond a gap.
        (nothing, "P. 11:21(10) ack 1", unlisten),
    ] {
        let mut stage = Stage::new(|config, _| config.timestamps = false);
        for port in [4_000, 4_001] {
            stage.come_from(port);
            stage.remote("S 0:0(0) win 65535 <mss 1000>");
            stage.expect("S. 0:0(0) ack 1");
        }
        before(&mut stage);
        stage.come_from(4_000);
        stage.remote(". 1:1(0) ack 1");
        stage.come_from(4_001);
        stage.remote(data);
        after(&mut stage);
        stage.forget_sent();
        let events: Vec<Event> = core::iter::from_fn(|| stage.engine.poll_event()).collect();
        let is_named = |event: &&Event| matches!(event, Event::Abandoned(_));
        assert_eq!(
            events.iter().filter(is_named).count(),
            1,
            "{data} {events:?}"
        );
    }
}
