//! The silence that a connection tolerates: keepalive and the user timeout.

use crate::script::{Stage, plain};
use toehold_tcp::{CloseReason, ConnectionId, Duration, Keepalive, Options, State};

const MILLISECOND: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(10);

/// A connection that gives up after ten seconds.
fn impatient(keepalive: Option<Keepalive>, window: u32) -> (Stage, ConnectionId) {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.nodelay = true;
        options.user_timeout = Some(LIMIT);
        options.keepalive = keepalive;
    });
    let id = stage.accepted(",sackOK", window);
    (stage, id)
}

fn state(stage: &Stage, id: ConnectionId) -> State {
    stage.engine.info(id).expect("it was not released").state
}

/// A connection with data. A remote without room has answered every second, nine times.
fn closed_for_nine_seconds() -> (Stage, ConnectionId) {
    let (mut stage, id) = impatient(None, 0);
    stage.engine.publish(id, 1_000).unwrap();
    for _ in 0..9 {
        stage.wait(Duration::from_secs(1));
        stage.forget_sent();
        stage.remote(". 1:1(0) ack 1 win 0");
    }
    (stage, id)
}

//= RFC 9293#3.8.3
//= type=test
//# The following procedure MUST be used to handle excessive retransmissions of data segments
//# (MUST-20):
//= RFC 9293#3.8.3
//= type=test
//# (d) An application MUST (MUST-21) be able to set the value for R2 for a particular
//# connection.
/// RFC 9293 section 3.9.1: the timeout counts from the time when the data was sent, and is not
/// rounded up to the next retransmission.
#[test]
fn data_without_an_answer_ends_the_connection_in_time() {
    let (mut stage, id) = impatient(None, 60_000);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(LIMIT - MILLISECOND);
    assert_eq!(state(&stage, id), State::Established);
    stage.wait(MILLISECOND);
    stage.expect_closed(CloseReason::TimedOut);
}

#[test]
fn progress_renews_the_user_timeout() {
    let (mut stage, id) = impatient(None, 60_000);
    stage.engine.publish(id, 3_000).unwrap();
    for ack in [1_001, 2_001] {
        stage.wait(LIMIT - MILLISECOND);
        stage.forget_sent();
        stage.remote(&format!(". 1:1(0) ack {ack} win 60000"));
    }
    stage.wait(LIMIT - MILLISECOND);
    assert_eq!(state(&stage, id), State::Established);
    stage.wait(LIMIT);
    stage.expect_closed(CloseReason::TimedOut);
}

/// tcp(7): the timeout also covers data that "may remain untransmitted (due to zero window size)",
/// even when the remote announces its closed window again and again.
#[test]
fn window_that_stays_closed_ends_the_user_timeout() {
    let (mut stage, id) = closed_for_nine_seconds();
    assert_eq!(state(&stage, id), State::Established);
    stage.wait(Duration::from_secs(4));
    stage.expect_closed(CloseReason::TimedOut);
}

#[test]
fn window_that_opens_renews_the_user_timeout() {
    let (mut stage, id) = closed_for_nine_seconds();
    stage.remote(". 1:1(0) ack 1 win 60000");
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(LIMIT - MILLISECOND);
    assert_eq!(state(&stage, id), State::Established);
    stage.wait(MILLISECOND);
    stage.expect_closed(CloseReason::TimedOut);
}

/// tcp(7): with keepalive, the user timeout "will override keepalive to determine when to close a
/// connection".
#[test]
fn user_timeout_overrides_the_number_of_keepalive_probes() {
    let keepalive = Keepalive {
        idle: Duration::from_secs(2),
        interval: Duration::from_secs(1),
        probes_max: 3.try_into().expect("not zero"),
    };
    let (mut stage, id) = impatient(Some(keepalive), 60_000);
    stage.wait(LIMIT - MILLISECOND);
    assert_eq!(state(&stage, id), State::Established);
    stage.wait(Duration::from_secs(1));
    stage.expect_closed(CloseReason::TimedOut);
}

/// An interval of zero costs a timer's granularity for each probe, so time passes.
#[test]
fn probes_without_a_pause_end() {
    let keepalive = Keepalive {
        idle: Duration::ZERO,
        interval: Duration::ZERO,
        probes_max: 3.try_into().expect("not zero"),
    };
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.keepalive = Some(keepalive);
    });
    let id = stage.accepted("", 60_000);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(Duration::from_millis(50));
    stage.remote(". 1:1(0) ack 1001 win 60000");
    stage.wait(Duration::from_secs(1));
    stage.expect_closed(CloseReason::TimedOut);
}

/// Like Linux (tcp_keepalive_timer): idle time counts from the remote's last segment, independent
/// of the pauses between probes.
#[test]
fn a_probe_goes_as_soon_as_the_remote_is_silent_for_long_enough() {
    let keepalive = Keepalive {
        idle: Duration::from_secs(10),
        interval: Duration::from_secs(60),
        probes_max: 3.try_into().expect("not zero"),
    };
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.keepalive = Some(keepalive);
    });
    stage.accepted("", 60_000);
    stage.wait(Duration::from_secs(1));
    stage.remote("P. 1:11(10) ack 1 win 60000");
    stage.wait(keepalive.idle - MILLISECOND);
    assert_eq!(stage.engine.counters().probes, 0);
    stage.wait(MILLISECOND + MILLISECOND);
    assert_eq!(stage.engine.counters().probes, 1);
}

/// RFC 9293 section 3.9.1: the user timeout of an OPEN applies from its SYN on.
#[test]
fn a_syn_without_an_answer_ends_the_connection_in_time() {
    let mut stage = plain();
    let id = stage.connect(Options {
        user_timeout: Some(LIMIT),
        ..Options::default()
    });
    stage.expect("S 0:0(0)");
    stage.wait(LIMIT - MILLISECOND);
    assert_eq!(state(&stage, id), State::SynSent);
    stage.wait(MILLISECOND + MILLISECOND);
    stage.expect_closed(CloseReason::TimedOut);
}

/// TCP_SYNCNT: this many retransmissions, and then the interval of one more.
#[test]
fn a_syn_is_sent_again_as_often_as_the_program_wants() {
    let mut stage = plain();
    let id = stage.connect(Options {
        syn_retries_max: 1.try_into().ok(),
        ..Options::default()
    });
    stage.expect("S 0:0(0)");
    stage.wait(Duration::from_secs(3) - MILLISECOND);
    assert_eq!(state(&stage, id), State::SynSent);
    stage.wait(MILLISECOND + MILLISECOND);
    stage.expect_closed(CloseReason::TimedOut);
}
