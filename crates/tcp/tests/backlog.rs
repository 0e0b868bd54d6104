//! More remotes than a listener has room for.

#[allow(dead_code, reason = "each of the tests uses some of it")]
mod script;
#[allow(dead_code, reason = "each of the tests uses some of it")]
mod support;

use script::Stage;
use toehold_tcp::Duration;

/// Room of the stage's listener.
const BACKLOG: u8 = 16;

/// Like Linux (tcp_abort_on_overflow is off): a handshake that ends where there is no room is not
/// over yet. Nobody is reset, and who waits gets on when there is room.
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
    // Their answers come again, and so does what the remotes sent.
    stage.wait(Duration::from_secs(1));
    stage.forget_sent();
    for packet in &acknowledgements[usize::from(BACKLOG)..] {
        stage.raw(packet);
    }
    assert_eq!(accepted(&mut stage), 4);
    assert_eq!(stage.engine.counters().resets_sent, 0);
}

/// A reset ends a connection that waits.
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

/// A cookie is good for two minutes at most, also while others are sent.
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
