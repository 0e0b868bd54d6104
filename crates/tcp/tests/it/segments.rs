//! Scripts of segments, sent and expected. Each script tests one behaviour of the RFCs.

use crate::script::{Stage, plain};
use toehold_tcp::{CloseReason, Duration, EcnMode, Event, Keepalive, Options, State};

const MILLISECOND: Duration = Duration::from_millis(1);

//= RFC 9293#3.6
//= type=test
//# If the local TCP connection is closed by the remote side due to a FIN or RST received from
//# the remote side, then the local application MUST be informed whether it closed normally or
//# was aborted (MUST-12).
//= RFC 9293#3.6.1
//= type=test
//# When a connection is closed actively, it MUST linger in the TIME-WAIT state for a time
//# 2xMSL (Maximum Segment Lifetime) (MUST-13).
//= RFC 9293#3.9.1.2
//= type=test
//# If PUSH flags are not implemented, then the sending TCP peer: (1) MUST NOT buffer data
//# indefinitely (MUST-60)
//= RFC 9293#3.9.1.2
//= type=test
//# and (2) MUST set the PSH bit in the last buffered segment (i.e., when there is no more
//# queued data to be sent) (MUST-61).
/// RFC 9293 section 3.5, figure 6.
#[test]
fn active_open_and_orderly_close() {
    let mut stage = plain();
    let id = stage.connect(Options::default());
    stage.expect("S 0:0(0) win 65535 <mss 1460>");
    stage.remote("S. 0:0(0) ack 1 win 10000 <mss 1000>");
    stage.expect(". 1:1(0) ack 1");
    assert_eq!(stage.engine.poll_event(), Some(Event::Connected(id)));
    stage.engine.publish(id, 500).unwrap();
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("FP. 1:501(500) ack 1");
    assert_eq!(stage.engine.info(id).unwrap().state, State::FinWait1);
    stage.remote(". 1:1(0) ack 502");
    assert_eq!(stage.engine.info(id).unwrap().state, State::FinWait2);
    stage.remote("F. 1:1(0) ack 502");
    stage.expect(". 502:502(0) ack 2");
    assert_eq!(stage.engine.info(id).unwrap().state, State::TimeWait);
    stage.expect_closed(CloseReason::Finished);
    // RFC 9293 section 3.10.7.4: a repeated FIN is acknowledged again.
    stage.remote("F. 1:1(0) ack 502");
    stage.expect(". 502:502(0) ack 2");
    stage.engine.release(stage.now, id).unwrap();
    stage.wait(Duration::from_secs(61));
    assert_eq!(stage.engine.connection_count(), 0);
}

//= RFC 9293#3.5
//= type=test
//# A TCP implementation MUST support simultaneous open attempts (MUST-10).
/// RFC 9293 section 3.5, figure 8: both sides connect at once.
#[test]
fn simultaneous_open() {
    let mut stage = plain();
    let id = stage.connect(Options::default());
    stage.expect("S 0:0(0)");
    stage.remote("S 0:0(0) win 10000 <mss 1000>");
    stage.expect("S. 0:0(0) ack 1");
    assert_eq!(stage.engine.info(id).unwrap().state, State::SynReceived);
    stage.remote("S. 0:0(0) ack 1 win 10000");
    assert_eq!(stage.engine.info(id).unwrap().state, State::Established);
    // The remote may not have received our SYN-ACK: this segment acknowledges its SYN as well.
    stage.expect(". 1:1(0) ack 1");
    stage.expect_nothing();
}

//= RFC 7323#2.4
//= type=test
//# 3) The initial transmission MUST be within the window announced by the most recent <ACK>.
//= RFC 7323#2.2
//= type=test
//# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST
//# NOT be scaled.
/// RFC 7323 section 2.2: "the window field in a segment where the SYN bit is set MUST NOT be
/// scaled", also in the SYN-ACK that answers a SYN which has crossed ours.
#[test]
fn windows_of_crossing_syns_are_not_scaled() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let id = stage.connect(Options::default());
    stage.expect("S 0:0(0)");
    stage.remote("S 0:0(0) win 2000 <mss 1000,ws 7>");
    stage.expect("S. 0:0(0) ack 1");
    stage.engine.publish(id, 5_000).unwrap();
    stage.remote("S. 0:0(0) ack 1 win 2000 <mss 1000,ws 7>");
    assert_eq!(stage.engine.info(id).unwrap().remote_window, 2_000);
    stage.expect(". 1:1001(1000) ack 1");
    stage.expect(". 1001:2001(1000) ack 1");
    stage.expect_nothing();
    stage.remote(". 1:1(0) ack 2001 win 2000");
    assert_eq!(stage.engine.info(id).unwrap().remote_window, 2_000 << 7);
}

/// RFC 9293 section 3.6, figure 13: both sides close at once.
#[test]
fn simultaneous_close() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    stage.remote("F. 1:1(0) ack 1");
    stage.expect(". 2:2(0) ack 2");
    assert_eq!(stage.engine.info(id).unwrap().state, State::Closing);
    stage.remote(". 2:2(0) ack 2");
    assert_eq!(stage.engine.info(id).unwrap().state, State::TimeWait);
}

/// RFC 9293 section 3.10.7.1: a segment without a connection is refused with its own numbers.
#[test]
fn a_segment_without_a_connection_is_refused() {
    let mut stage = plain();
    stage.remote(". 1:1(0) ack 77");
    stage.expect("R 77:77(0)");
    stage.remote("R 1:1(0)");
    stage.expect_nothing();
}

//= RFC 5961#3.2
//= type=test
//# In all other cases the receiver MUST silently discard the segment.
/// RFC 9293 section 3.10.7.3 and RFC 5961 section 3.2: only an acceptable reset ends an attempt.
#[test]
fn an_attempt_is_ended_by_a_reset_that_acknowledges_the_syn() {
    let mut stage = plain();
    stage.connect(Options::default());
    stage.expect("S 0:0(0)");
    stage.remote("R 0:0(0)");
    stage.remote("R. 0:0(0) ack 7");
    stage.expect_nothing();
    assert_eq!(stage.engine.poll_event(), None);
    stage.remote("R. 0:0(0) ack 1");
    stage.expect_closed(CloseReason::Refused);
}

//= RFC 9293#3.8.3
//= type=test
//# SYN retransmissions MUST be handled in the general way just described for data
//# retransmissions, including notification of the application layer.
/// RFC 6298 section 5: the timeout doubles; RFC 9293 section 3.8.3: in the end the SYN is given up.
#[test]
fn a_syn_is_repeated_with_exponential_backoff() {
    let mut stage = plain();
    stage.connect(Options::default());
    stage.expect("S 0:0(0)");
    for seconds in [1, 2, 4, 8, 16, 32] {
        stage.wait(Duration::from_secs(seconds) - MILLISECOND);
        stage.expect_nothing();
        stage.wait(MILLISECOND);
        stage.expect("S 0:0(0)");
    }
    stage.wait(Duration::from_secs(64));
    stage.expect_closed(CloseReason::TimedOut);
}

//= RFC 9293#3.10.7.4
//= type=test
//# Segments with higher beginning sequence numbers SHOULD be held for later processing
//# (SHLD-31).
//= RFC 2018#4
//= type=test
//# The first SACK block (i.e., the one immediately following the kind and length fields in
//# the option) MUST specify the contiguous block of data containing the segment which
//# triggered this ACK, unless that segment advanced the Acknowledgment Number field in the
//# header.
//= RFC 2018#8
//= type=test
//# The first SACK block MUST reflect the newest segment.
/// RFC 5681 section 4.2 and RFC 2018 section 4.
#[test]
fn gaps_are_acknowledged_at_once_and_selectively() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 10_000);
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101");
    stage.remote("P. 201:301(100) ack 1");
    stage.expect(". 1:1(0) ack 101 <sack 201:301>");
    stage.remote("P. 401:501(100) ack 1");
    stage.expect(". 1:1(0) ack 101 <sack 401:501:201:301>");
    stage.remote("P. 301:401(100) ack 1");
    stage.expect(". 1:1(0) ack 101 <sack 201:501>");
    stage.remote("P. 101:201(100) ack 1");
    stage.expect(". 1:1(0) ack 501");
    assert_eq!(stage.engine.info(id).unwrap().received, 500);
    let expected: Vec<u8> = (0..500u32).map(|offset| offset as u8).collect();
    assert_eq!(stage.rings.received, expected);
}

/// RFC 2883 section 4.
#[test]
fn duplicates_are_reported() {
    let mut stage = plain();
    stage.accepted(",sackOK", 10_000);
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101");
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101 <sack 1:101>");
    stage.remote("P. 201:301(100) ack 1");
    stage.expect(". 1:1(0) ack 101 <sack 201:301>");
    stage.remote("P. 201:301(100) ack 1");
    stage.expect(". 1:1(0) ack 101 <sack 201:301:201:301>");
}

//= RFC 9293#3.8.6.3
//= type=test
//# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18)
//= RFC 9293#3.8.6.3
//= type=test
//# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of
//# new data (where RMSS is the MSS specified by the TCP endpoint receiving the segments to be
//# acknowledged, or the default value if not specified) (SHLD-19).
/// RFC 9293 section 3.8.6.3: at least every second segment is acknowledged, and within the delay.
#[test]
fn acknowledgements_are_delayed_after_the_start() {
    let mut stage = plain();
    stage.accepted("", 10_000);
    for segment in 0..16 {
        let (from, to) = (segment * 100 + 1, segment * 100 + 101);
        stage.remote(&format!("P. {from}:{to}(100) ack 1"));
        stage.expect(&format!(". 1:1(0) ack {to}"));
    }
    stage.remote("P. 1601:1701(100) ack 1");
    stage.expect_nothing();
    stage.remote("P. 1701:1801(100) ack 1");
    stage.expect(". 1:1(0) ack 1801");
    stage.remote("P. 1801:1901(100) ack 1");
    stage.expect_nothing();
    stage.wait(Duration::from_millis(40));
    stage.expect(". 1:1(0) ack 1901");
}

//= RFC 9293#3.7.4
//= type=test
//# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments
//# (SHLD-7).
//= RFC 9293#3.7.4
//= type=test
//# However, there MUST be a way for an application to disable the Nagle algorithm on an
//# individual connection (MUST-17).
/// RFC 9293 section 3.7.4 in Minshall's variant: one small segment in flight.
#[test]
fn small_segments_wait_for_each_other() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let id = stage.accepted("", 10_000);
    stage.engine.publish(id, 10).unwrap();
    stage.expect("P. 1:11(10) ack 1");
    stage.engine.publish(id, 20).unwrap();
    stage.expect_nothing();
    stage.remote(". 1:1(0) ack 11");
    stage.expect("P. 11:21(10) ack 1");
    stage.engine.publish(id, 1_025).unwrap();
    stage.expect(". 21:1021(1000) ack 1");
    stage.expect_nothing();
    stage
        .engine
        .set_coalescing(stage.now, id, true, false)
        .unwrap();
    stage.expect("P. 1021:1026(5) ack 1");
}

//= RFC 9293#3.8.6.1
//= type=test
//# Probing of zero (offered) windows MUST be supported (MUST-36).
//= RFC 9293#3.8.6.1
//= type=test
//# As long as the receiving TCP peer continues to send acknowledgments in response to the
//# probe segments, the sending TCP peer MUST allow the connection to stay open (MUST-37).
//= RFC 9293#3.8.6.1
//= type=test
//# The transmitting host SHOULD send the first zero-window probe when a zero window has
//# existed for the retransmission timeout period (SHLD-29)
/// RFC 9293 section 3.8.6.1: a closed window is probed, at growing intervals, for ever.
#[test]
fn a_zero_window_is_probed() {
    let mut stage = plain();
    let id = stage.accepted("", 0);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect_nothing();
    for seconds in [10, 20, 40] {
        stage.wait(Duration::from_secs(seconds));
        stage.expect(". 0:0(0) ack 1");
        stage.forget_sent();
        stage.remote(". 1:1(0) ack 1 win 0");
    }
    stage.remote(". 1:1(0) ack 1 win 1000");
    stage.expect("P. 1:1001(1000) ack 1");
}

//= RFC 9293#3.8.6.2.2
//= type=test
//# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
/// RFC 9293 section 3.8.6.2.2: the window opens in useful steps, and the engine announces each
/// step.
#[test]
fn the_window_opens_when_the_host_takes() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.receive_bytes = 2_000;
        options.receive_bytes_max = 2_000;
    });
    let id = stage.accepted("", 10_000);
    stage.remote(". 1:1001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1001 win 1000");
    stage.remote("P. 1001:2001(1000) ack 1");
    stage.expect(". 1:1(0) ack 2001 win 0");
    stage.engine.take(id, 100).unwrap();
    stage.expect_nothing();
    stage.engine.take(id, 2_000).unwrap();
    stage.expect(". 1:1(0) ack 2001 win 2000");
}

/// A link may combine many segments. If the host has room for some of them, the engine accepts
/// those and acknowledges them at once: the remote need not wait for its retransmission timeout.
#[test]
fn of_a_large_segment_as_much_is_taken_as_there_is_room_for() {
    let mut stage = plain();
    stage.accepted("", 60_000);
    stage.rings.bytes_max = Some(2_500);
    stage.remote("P. 1:5001(5000) ack 1");
    stage.expect(". 1:1(0) ack 2001");
    stage.remote("P. 2001:5001(3000) ack 1");
    stage.expect(". 1:1(0) ack 2001");
    stage.remote("P. 2001:3001(1000) ack 1");
    stage.expect(". 1:1(0) ack 2001");
    stage.rings.bytes_max = None;
    stage.remote("P. 2001:5001(3000) ack 1");
    stage.expect(". 1:1(0) ack 5001");
    assert_eq!(stage.rings.received.len(), 5_000);
}

//= RFC 9293#3.10.7.4
//= type=test
//# 3) If the RST bit is set and the sequence number does not exactly match the next expected
//# sequence value, yet is within the current receive window, TCP endpoints MUST send an
//# acknowledgment (challenge ACK):
//= RFC 9293#3.10.7.4
//= type=test
//# 2) If the RST bit is set and the sequence number exactly matches the next expected
//# sequence number (RCV.NXT), then TCP endpoints MUST reset the connection in the manner
//# prescribed below according to the connection state.
//= RFC 9293#3.10.7.4
//= type=test
//# After sending the challenge ACK, TCP endpoints MUST drop the unacceptable segment and stop
//# processing the incoming packet further.
//= RFC 9293#3.10.7.4
//= type=test
//# RFC 5961 recommends that in these synchronized states, if the SYN bit is set, irrespective
//# of the sequence number, TCP endpoints MUST send a "challenge ACK" to the remote peer:
//= RFC 9293#3.10.7.4
//= type=test
//# After sending the acknowledgment, TCP implementations MUST drop the unacceptable segment
//# and stop processing further.
//= RFC 9293#3.10.7.4
//= type=test
//# TCP stacks that implement RFC 5961 MUST add an input check that the ACK value is
//# acceptable only if it is in the range of ((SND.UNA - MAX.SND.WND) =< SEG.ACK =< SND.NXT).
//= RFC 9293#3.10.7.4
//= type=test
//# All incoming segments whose ACK value doesn't satisfy the above condition MUST be
//# discarded and an ACK sent back.
//= RFC 5961#3.2
//= type=test
//# 2) If the RST bit is set and the sequence number exactly matches the next expected
//# sequence number (RCV.NXT), then TCP MUST reset the connection.
//= RFC 5961#3.2
//= type=test
//# 3) If the RST bit is set and the sequence number does not exactly match the next expected
//# sequence value, yet is within the current receive window (RCV.NXT < SEG.SEQ <
//# RCV.NXT+RCV.WND), TCP MUST send an acknowledgment (challenge ACK):
//= RFC 5961#3.2
//= type=test
//# After sending the challenge ACK, TCP MUST drop the unacceptable segment and stop
//# processing the incoming packet further.
//= RFC 5961#4.2
//= type=test
//# 1) If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also
//# referred to as challenge ACK) to the remote peer:
//= RFC 5961#4.2
//= type=test
//# After sending the acknowledgment, TCP MUST drop the unacceptable segment and stop
//# processing further.
//= RFC 5961#4.2
//= type=test
//# Upon receipt of a valid RST, the local TCP endpoint MUST terminate its connection.
//= RFC 5961#5.2
//= type=test
//# TCP stacks that implement this mitigation MUST add an additional input check to any
//# incoming segment.
//= RFC 5961#5.2
//= type=test
//# All incoming segments whose ACK value doesn't satisfy the above condition MUST be
//# discarded and an ACK sent back.
/// RFC 5961 section 3.2, 4.2 and 5.2: blind attackers get challenges.
#[test]
fn attackers_are_challenged() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.remote("R 500:500(0)");
    stage.expect(". 1:1(0) ack 1");
    stage.remote("R 70000:70000(0)");
    stage.expect_nothing();
    // A challenge is sent once in half a second, as on Linux.
    stage.wait(Duration::from_millis(550));
    stage.remote("S 500:500(0)");
    stage.expect(". 1:1(0) ack 1");
    stage.wait(Duration::from_millis(550));
    stage.remote("P. 1:11(10) ack 900000");
    stage.expect(". 1:1(0) ack 1");
    assert_eq!(stage.engine.info(id).unwrap().received, 0);
    stage.remote("R 1:1(0)");
    stage.expect_closed(CloseReason::Reset);
}

//= RFC 7323#3.2
//= type=test
//# When the ACK bit is set in an outgoing segment, the sender MUST echo a recently received
//# TSval sent by the remote TCP in the TSval field of a Timestamps option.
//= RFC 7323#3.2
//= type=test
//# Once TSopt has been successfully negotiated, that is both <SYN> and <SYN,ACK> contain
//# TSopt, the TSopt MUST be sent in every non-<RST> segment for the duration of the
//# connection, and SHOULD be sent in an <RST> segment (see Section 5.2 for details).
//= RFC 7323#5.3
//= type=test
//# If the PAWS algorithm is used, the following processing MUST be performed on all incoming
//# segments for a synchronized connection.
//= RFC 7323#5.3
//= type=test
//# Also, PAWS processing MUST take precedence over the regular TCP acceptability check
//# (Section 3.3 in [RFC0793]), which is performed after verification of the received
//# Timestamps option:
//= RFC 7323#5.2
//= type=test
//# The choice of incoming timestamps to be saved for this comparison MUST guarantee a value
//# that is monotonically non-decreasing.
/// RFC 7323 section 5.3: an old timestamp makes a segment a duplicate, whatever its number.
#[test]
fn paws_refuses_the_past() {
    let mut stage = Stage::new(|_, _| {});
    stage.remote("S 0:0(0) win 65535 <mss 1000,TS>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    stage.remote(". 1:1(0) ack 1 <TS>");
    stage.remote("P. 1:11(10) ack 1 <TS>");
    stage.expect(". 1:1(0) ack 11 <TS>");
    stage.remote("P. 11:21(10) ack 1 <TS 999>");
    stage.expect(". 1:1(0) ack 11 <TS>");
    stage.remote("P. 11:21(10) ack 1 <TS>");
    stage.expect(". 1:1(0) ack 21 <TS>");
}

//= RFC 7323#3.2
//= type=test
//# A TCP MUST NOT abort a TCP connection because any segment lacks an expected TSopt.
/// RFC 7323 section 3.2 would drop data without the expected option; like Linux we accept such
/// data. "A TCP MUST NOT abort a TCP connection because any segment lacks an expected TSopt."
#[test]
fn data_without_the_timestamps_agreed_upon_are_taken() {
    let mut stage = Stage::new(|_, _| {});
    let id = stage.accepted(",TS", 10_000);
    stage.remote("P. 1:11(10) ack 1");
    stage.expect(". 1:1(0) ack 11 <TS>");
    stage.remote("P. 31:41(10) ack 1");
    stage.expect(". 1:1(0) ack 11 <TS>");
    stage.remote("P. 11:31(20) ack 1 <TS>");
    stage.expect(". 1:1(0) ack 41 <TS>");
    assert_eq!(stage.engine.info(id).unwrap().received, 40);
    // Our own data are acknowledged without the option, too, and the round trip is measured.
    stage.engine.publish(id, 500).unwrap();
    stage.expect("P. 1:501(500) ack 41 <TS>");
    stage.wait(Duration::from_millis(30));
    stage.remote(". 41:41(0) ack 501");
    assert_eq!(stage.engine.info(id).unwrap().acknowledged, 500);
    assert_eq!(stage.engine.info(id).unwrap().retries, 0);
    stage.remote("F. 41:41(0) ack 501");
    stage.expect(". 501:501(0) ack 42 <TS>");
}

/// RFC 9293 section 3.10.7.4 and RFC 5961 section 4.2: a remote that has forgotten the connection
/// sends a SYN. The SYN is challenged "irrespective of the sequence number", and of its options.
/// The remote's reset then ends the half-open connection.
#[test]
fn a_syn_without_timestamps_finds_out_that_the_connection_is_half_open() {
    for syn in ["S 700000:700000(0)", "S 5:5(0)", "S 0:0(0)"] {
        let mut stage = Stage::new(|_, _| {});
        stage.remote("S 0:0(0) win 65535 <mss 1000,TS>");
        stage.expect("S. 0:0(0) ack 1 <TS>");
        stage.remote(". 1:1(0) ack 1 <TS>");
        stage.remote(syn);
        stage.expect(". 1:1(0) ack 1 <TS>");
        stage.remote("R 1:1(0)");
        assert_eq!(stage.engine.connection_count(), 0);
    }
}

//= RFC 9293#3.8.2
//= type=test
//# A TCP endpoint SHOULD implement ECN as described in RFC 3168 (SHLD-8).
/// RFC 3168 section 6.1: ECN is negotiated; a mark is echoed until CWR, and reduces the window once
/// a round trip.
#[test]
fn congestion_marks_are_echoed() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.ecn = EcnMode::Classic;
    });
    stage.remote("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.E 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1");
    stage.remote("P. 1:101(100) ack 1 ce");
    stage.expect(".E 1:1(0) ack 101");
    stage.remote("P. 101:201(100) ack 1");
    stage.expect(".E 1:1(0) ack 201");
    stage.remote("P.W 201:301(100) ack 1");
    stage.expect(". 1:1(0) ack 301");
}

//= RFC 9293#3.8.4
//= type=test
//# If keep-alives are included, the application MUST be able to turn them on or off for each
//# TCP connection (MUST-24)
//= RFC 9293#3.8.4
//= type=test
//# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or
//# acknowledgment packets have been received for the connection within an interval (MUST-26).
//= RFC 9293#3.8.4
//= type=test
//# This interval MUST be configurable (MUST-27)
//= RFC 9293#3.8.4
//= type=test
//# Consequently, if a keep-alive mechanism is implemented it MUST NOT interpret failure to
//# respond to any specific probe as a dead connection (MUST-29).
//= RFC 9293#3.8.4
//= type=test
//# An implementation SHOULD send a keep-alive segment with no data (SHLD-12); however, it MAY
//# be configurable to send a keep-alive segment containing one garbage octet (MAY-6), for
//# compatibility with erroneous TCP implementations.
/// RFC 9293 section 3.8.4.
#[test]
fn a_silent_remote_is_probed_and_given_up() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.keepalive = Some(Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(5),
            probes_max: 2.try_into().expect("not zero"),
        });
    });
    stage.accepted("", 10_000);
    stage.wait(Duration::from_secs(59));
    stage.expect_nothing();
    stage.wait(Duration::from_secs(1));
    stage.expect(". 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1 win 10000");
    stage.wait(Duration::from_secs(60));
    stage.expect(". 0:0(0) ack 1");
    stage.wait(Duration::from_secs(5));
    stage.expect(". 0:0(0) ack 1");
    stage.wait(Duration::from_secs(5));
    stage.expect_closed(CloseReason::TimedOut);
}

//= RFC 9293#3.6.1
//= type=test
//# If such a host issues a CLOSE call while received data is still pending in the TCP
//# connection, or if new data is received after CLOSE is called, its TCP implementation
//# SHOULD send a RST to show that data was lost (SHLD-3).
/// RFC 2525 section 2.17: closing with unread data resets.
#[test]
fn unread_data_resets_on_release() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101");
    stage.engine.release(stage.now, id).unwrap();
    stage.expect("R. 1:1(0) ack 101");
    stage.expect_nothing();
    assert_eq!(stage.engine.connection_count(), 0);
}

//= RFC 9293#3.6.1
//= type=test
//# This algorithm for reducing TIME-WAIT is a Best Current Practice that SHOULD be
//# implemented since Timestamp Options are commonly used, and using them to reduce TIME-WAIT
//# provides benefits for busy Internet servers (SHLD-4).
/// RFC 6191 section 2: a later SYN replaces a connection in TIME-WAIT.
#[test]
fn time_wait_gives_way_to_a_newer_syn() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    stage.remote("F. 1:1(0) ack 2");
    stage.expect(". 2:2(0) ack 2");
    stage.remote("S 100:100(0) win 65535 <mss 1000>");
    stage.expect("S. 0:0(0) ack 101");
    assert_eq!(stage.engine.counters().time_wait_reused, 1);
}

/// A server that is gone refuses a remote that comes back from the same port.
#[test]
fn newer_syn_in_time_wait_is_refused_where_nobody_listens() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    stage.remote("F. 1:1(0) ack 2");
    stage.expect(". 2:2(0) ack 2");
    stage.engine.unlisten(stage.listener);
    stage.remote("S 100:100(0) win 65535 <mss 1000>");
    stage.expect_refusal(101);
    stage.expect_nothing();
    assert_eq!(stage.engine.info(id).unwrap().state, State::TimeWait);
}

/// RFC 1337 section 3: a reset does not end TIME-WAIT.
#[test]
fn time_wait_survives_a_reset() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    stage.remote("F. 1:1(0) ack 2");
    stage.expect(". 2:2(0) ack 2");
    stage.remote("R 2:2(0)");
    assert_eq!(stage.engine.info(id).unwrap().state, State::TimeWait);
}

/// RFC 4987 section 3.6: with no room for half-open connections, service goes on.
#[test]
fn cookies_carry_a_flood() {
    let mut stage = Stage::new(|config, _| config.half_open_max = 0);
    stage.remote("S 0:0(0) win 65535 <mss 1000,sackOK,TS,ws 7>");
    stage.expect("S. 0:0(0) ack 1 <TS,ws 7>");
    assert_eq!(stage.engine.connection_count(), 0);
    stage.remote("P. 1:11(10) ack 1 win 100 <TS>");
    stage.expect(". 1:1(0) ack 11 <TS>");
    let id = stage.engine.accept(stage.listener).unwrap();
    let info = stage.engine.info(id).unwrap();
    assert_eq!((info.received, info.mss), (10, 536 - 12));
    assert_eq!(stage.engine.counters().cookies_accepted, 1);
}

/// RFC 6298 section 3: data that was sent once may arrive and wait for a retransmission before it.
/// Its acknowledgement measures the round trip no better than the retransmission does.
#[test]
fn what_waited_for_a_retransmission_measures_no_round_trip() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    let publish = |stage: &mut Stage, end: u64| {
        stage.engine.publish(id, end).unwrap();
        stage.expect(&format!("P. {}:{}(1000) ack 1", end - 999, end + 1));
        stage.wait(Duration::from_millis(10));
    };
    publish(&mut stage, 1_000);
    stage.remote(". 1:1(0) ack 1001 win 10000");
    let before = stage.engine.info(id).unwrap();
    publish(&mut stage, 2_000);
    publish(&mut stage, 3_000);
    stage.wait(Duration::from_secs(3));
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 3001 win 10000");
    let after = stage.engine.info(id).unwrap();
    assert_eq!(after.acknowledged, 3_000);
    assert_eq!(after.round_trip, before.round_trip);
}

/// A SYN that was answered with a cookie comes again when there is room for a half-open connection.
/// A remote that received the first answer completes that handshake, and not the second.
#[test]
fn a_cookie_is_good_although_its_syn_came_again() {
    let mut stage = Stage::new(|config, _| config.half_open_max = 1);
    stage.come_from(4_000);
    stage.remote("S 0:0(0) win 65535 <mss 1000>");
    stage.expect("S. 0:0(0) ack 1");
    stage.come_from(4_321);
    stage.remote("S 0:0(0) win 65535 <mss 1000>");
    stage.expect("S. 0:0(0) ack 1");
    assert_eq!(stage.engine.counters().cookies_sent, 1);
    stage.come_from(4_000);
    stage.remote("R 1:1(0)");
    stage.come_from(4_321);
    stage.remote("S 0:0(0) win 65535 <mss 1000>");
    assert_eq!(stage.engine.connection_count(), 1);
    // The second answer has its own numbers, so the remote ignores it.
    stage.forget_sent();
    stage.remote("P. 1:11(10) ack 1 win 100");
    stage.expect(". 1:1(0) ack 11");
    stage.expect_nothing();
    let id = stage.engine.accept(stage.listener).expect("established");
    assert_eq!(stage.engine.info(id).unwrap().received, 10);
    assert_eq!(stage.engine.counters().cookies_accepted, 1);
    assert_eq!(stage.engine.connection_count(), 1);
    // There is room for the next half-open connection.
    stage.come_from(4_000);
    stage.remote("S 0:0(0) win 65535 <mss 1000>");
    assert_eq!(stage.engine.counters().cookies_sent, 1);
    assert_eq!(stage.engine.connection_count(), 2);
}

/// RFC 3168 section 6.1.1: a SYN-ACK with ECE agrees to ECN. The SYN-ACK with a cookie does so like
/// any other. The connection uses ECN only if its SYN-ACK had ECE.
#[test]
fn a_cookie_remembers_what_its_syn_ack_has_said_of_ecn() {
    use EcnMode::{Classic, Off};
    for (ecn, options, answer, echo) in [
        (Classic, ",TS", "S.E", ".E"),
        (Classic, "", "S.", "."),
        (Off, ",TS", "S.", "."),
    ] {
        let mut stage = Stage::new(|config, listener| {
            config.half_open_max = 0;
            listener.ecn = ecn;
        });
        stage.remote(&format!("SEW 0:0(0) win 65535 <mss 1000{options}>"));
        stage.expect(&format!("{answer} 0:0(0) ack 1"));
        let timestamps = if options.is_empty() { "" } else { " <TS>" };
        stage.remote(&format!("P. 1:11(10) ack 1 win 100{timestamps} ce"));
        stage.expect(&format!("{echo} 1:1(0) ack 11"));
        let id = stage.engine.accept(stage.listener).unwrap();
        let agreed = if echo == ".E" { Classic } else { Off };
        assert_eq!(stage.engine.info(id).unwrap().ecn, agreed);
    }
}

/// RFC 9293 section 3.6.1: data that no program will read is refused with a reset that the remote
/// accepts. The remote has not seen our FIN; the retransmission shows that the FIN was lost.
#[test]
fn data_for_a_host_that_has_gone_is_refused_with_its_own_numbers() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.release(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    stage.remote("P. 1:2(1) ack 1");
    stage.expect("R 1:1(0)");
    assert_eq!(stage.engine.connection_count(), 0);
    assert_eq!(stage.engine.counters().resets_sent, 1);
}

/// RFC 7323 section 5.3 against RFC 9293's fifth check: a segment that acknowledges unsent data has
/// no effect.
#[test]
fn a_forged_acknowledgement_does_not_age_the_connection() {
    let mut stage = Stage::new(|config, _| config.window_scaling = false);
    stage.remote("S 0:0(0) win 65535 <mss 1000,sackOK,TS 100 0>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    stage.remote(". 1:1(0) ack 1 <TS 200>");
    stage.remote("F. 1:1(0) ack 9999 <TS 200000>");
    stage.expect(". 1:1(0) ack 1");
    stage.remote("P. 1:101(100) ack 1 <TS 201>");
    stage.expect(". 1:1(0) ack 101");
}
