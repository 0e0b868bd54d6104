//! The silence that a connection tolerates: keepalive and the user timeout.

use core::num::NonZeroU8;

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

/// A connection without tail loss probes that probes its remote after a minute of silence.
fn probing(user_timeout: Option<Duration>) -> (Stage, ConnectionId) {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.nodelay = true;
        options.user_timeout = user_timeout;
        options.keepalive = Some(MINUTELY);
    });
    let id = stage.accepted("", 60_000);
    (stage, id)
}

const MINUTELY: Keepalive = Keepalive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(1),
    probes_max: NonZeroU8::new(9).expect("not zero"),
};

/// The user timeout counts from the time when the data was sent, also if a keepalive probe before
/// it was not answered.
#[test]
fn data_after_a_keepalive_probe_has_its_whole_user_timeout() {
    let (mut stage, id) = probing(Some(LIMIT * 9));
    for from in (1..91).step_by(10) {
        stage.wait(Duration::from_secs(59));
        stage.remote(&format!("P. {from}:{}(10) ack 1 win 60000", from + 10));
        stage.forget_sent();
    }
    stage.wait(Duration::from_secs(60));
    stage.expect(". 0:0(0) ack 91");
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 91");
    stage.wait(LIMIT * 9 - MILLISECOND);
    assert_eq!(state(&stage, id), State::Established);
    stage.wait(MILLISECOND);
    stage.expect_closed(CloseReason::TimedOut);
}

/// RFC 9293 section 3.8.3: R2 counts retransmissions. Keepalive probes that were not answered are
/// none of them.
#[test]
fn keepalive_probes_are_no_retransmissions() {
    let (mut stage, id) = probing(None);
    stage.wait(Duration::from_secs(67));
    assert_eq!(stage.engine.info(id).unwrap().retries, 8);
    stage.engine.publish(id, 1_000).unwrap();
    stage.wait(LIMIT * 11);
    assert_eq!(state(&stage, id), State::Established);
}

/// As on Linux (tcp_set_keepalive): a program may ask for keepalive after it has finished, while it
/// waits for the remote.
#[test]
fn keepalive_may_begin_after_the_end_of_our_stream() {
    let mut stage = plain();
    let id = stage.accepted("", 60_000);
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    stage.remote(". 1:1(0) ack 2 win 60000");
    let set = stage
        .engine
        .set_liveness(stage.now, id, Some(MINUTELY), None);
    set.expect("it exists");
    stage.wait(Duration::from_secs(60));
    stage.expect(". 1:1(0) ack 1");
    stage.wait(LIMIT);
    stage.expect_closed(CloseReason::TimedOut);
}

/// The probes of a closed window have a backoff of their own: data that then fits in part is sent
/// again after an ordinary timeout.
#[test]
fn timeout_after_a_closed_window_is_not_backed_off() {
    let mut stage = plain();
    let id = stage.accepted("", 0);
    stage.engine.publish(id, 3_000).unwrap();
    for _ in 0..40 {
        stage.wait(Duration::from_secs(5));
        stage.forget_sent();
        stage.remote(". 1:1(0) ack 1 win 0");
    }
    stage.remote(". 1:1(0) ack 1 win 300");
    while stage.engine.info(id).unwrap().in_flight == 0 {
        stage.wait(MILLISECOND);
    }
    stage.expect(". 1:301(300) ack 1");
    assert_eq!(stage.engine.counters().timeouts, 0);
    stage.wait(Duration::from_secs(1));
    stage.expect(". 1:301(300) ack 1");
}
