//! How connections end, and what is left of them: scripts of segments.

#[allow(dead_code, reason = "each of the tests uses some of it")]
mod script;

use script::Stage;

/// A server that closes first, more often than TIME-WAIT lasts: there is room for three connections.
#[test]
fn time_wait_makes_room_for_who_comes_next() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.connections_max = 3;
    });
    for host in 10..30 {
        let remote = [10, 0, 0, host];
        stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", remote));
        stage.expect("S. 0:0(0) ack 1");
        stage.raw(&stage.packet(". 1:1(0) ack 1", remote));
        let id = stage.engine.accept(stage.listener).expect("there is room");
        stage.engine.release(stage.now, id).unwrap();
        stage.expect("F. 1:1(0) ack 1");
        stage.raw(&stage.packet("F. 1:1(0) ack 2", remote));
        stage.expect(". 2:2(0) ack 2");
        while stage.engine.poll_event().is_some() {}
    }
    assert_eq!(stage.engine.counters().cookies_sent, 0);
    assert_eq!(stage.engine.counters().time_wait_cut, 17);
    stage.engine.assert_invariants();
}

/// The same with connections that are in use: they stay, and whoever comes next meets silence.
#[test]
fn established_connections_make_no_room() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.connections_max = 3;
    });
    for host in 10..14 {
        let remote = [10, 0, 0, host];
        stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", remote));
        stage.expect("S. 0:0(0) ack 1");
        stage.raw(&stage.packet(". 1:1(0) ack 1", remote));
        assert_eq!(stage.engine.accept(stage.listener).is_some(), host < 13);
    }
    assert_eq!(stage.engine.connection_count(), 3);
}
