//! Requirements (MUST) of RFCs that no other test covers, as scripts of segments.

use std::net::IpAddr;

use crate::script::{Stage, plain};
use crate::support::on_link;
use toehold_tcp::{
    CloseReason, Config, ConnectError, Duration, Engine, Event, HEADER_BUFFER_BYTES, Instant,
    InterfaceAddress, Medium, Options, Random, ReceiveOffload, State,
};

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn timestamps_that_were_not_agreed_upon_are_ignored() {
    //= RFC 7323#3.2
    //= type=test
    //# If a TSopt is received on a connection where TSopt was not
    //# negotiated in the initial three-way handshake, the TSopt MUST be
    //# ignored and the packet processed normally.
    // One of the two echoes is older than the retransmission, at any value of our clock.
    for echo in [0u32, 1 << 31] {
        let mut stage = plain();
        let id = stage.accepted(",sackOK", 60_000);
        stage.engine.publish(id, 3_000).unwrap();
        stage.forget_sent();
        stage.wait(Duration::from_secs(2));
        assert!(stage.engine.counters().timeouts > 0);
        stage.forget_sent();
        stage.remote(&format!(". 1:1(0) ack 1001 win 60000 <TS 7:{echo}>"));
        assert_eq!(stage.engine.counters().recoveries_undone, 0, "echo {echo}");
        assert_eq!(stage.engine.info(id).unwrap().acknowledged, 1_000);
        // Data with an old timestamp is accepted.
        stage.remote("P. 1:11(10) ack 1001 <TS 7:0>");
        stage.remote("P. 11:21(10) ack 1001 <TS 6:0>");
        assert_eq!(stage.engine.info(id).unwrap().received, 20);
    }
}

#[test]
fn the_number_of_a_reset_decides_whatever_it_carries() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101");
    //= RFC 5961#3.2
    //= type=test
    //# In all other cases, where the SEQ-field does not match and is
    //# outside the window, the receiver MUST silently discard the
    //# segment.
    stage.remote("R 51:151(100)");
    stage.expect_nothing();
    assert_eq!(stage.engine.info(id).unwrap().state, State::Established);
    //= RFC 9293#3.5.3
    //= type=test
    //# TCP implementations SHOULD allow a received RST segment to include data (SHLD-2).
    stage.remote("R 101:111(10)");
    stage.expect_closed(CloseReason::Reset);
}

#[test]
fn a_closed_window_keeps_no_reset_out() {
    //= RFC 9293#3.4
    //= type=test
    //# A TCP receiver MUST process the RST and URG
    //# fields of all incoming segments, even when the receive window is zero
    //# (MUST-66).
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.receive_bytes = 1_000;
        options.receive_bytes_max = 1_000;
    });
    stage.accepted("", 10_000);
    stage.remote("P. 1:1001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1001 win 0");
    stage.remote("R 1001:1001(0)");
    stage.expect_closed(CloseReason::Reset);
}

#[test]
fn a_second_probe_waits_for_a_round_trip() {
    //= RFC 8985#7.3
    //= type=test
    //# If either one of these two conditions is not met, then the sender
    //# MUST skip sending a loss probe and MUST proceed to re-arm the RTO
    //# timer, as specified at the end of this section.
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1001 win 60000");
    stage.engine.publish(id, 2_000).unwrap();
    stage.expect("P. 1001:2001(1000) ack 1");
    stage.wait(stage.engine.info(id).unwrap().timeout);
    stage.expect("P. 1001:2001(1000) ack 1");
    assert_eq!(stage.engine.counters().tail_probes, 1);
    // The original was late. Data that was sent twice gives no measurement.
    stage.remote(". 1:1(0) ack 2001 win 60000");
    stage.remote(". 1:1(0) ack 2001 win 60000 <sack 1001:2001>");
    stage.engine.publish(id, 3_000).unwrap();
    stage.expect("P. 2001:3001(1000) ack 1");
    stage.wait(stage.engine.info(id).unwrap().timeout);
    stage.expect("P. 2001:3001(1000) ack 1");
    let counters = stage.engine.counters();
    assert_eq!((counters.tail_probes, counters.timeouts), (1, 1));
    // A measurement permits the next one.
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 3001 win 60000");
    stage.engine.publish(id, 4_000).unwrap();
    stage.expect("P. 3001:4001(1000) ack 1");
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 4001 win 60000");
    stage.engine.publish(id, 5_000).unwrap();
    stage.expect("P. 4001:5001(1000) ack 1");
    stage.wait(stage.engine.info(id).unwrap().timeout);
    assert_eq!(stage.engine.counters().tail_probes, 2);
}

fn engine_at(address: InterfaceAddress) -> Engine {
    let config = Config::new(Medium::Ip, 1_500, address);
    Engine::new(config, Random::new(1))
}

#[test]
fn no_connection_goes_to_a_broadcast_address() {
    //= RFC 9293#3.9.1.1
    //= type=test
    //# A TCP implementation MUST reject as an error a local OPEN call for an
    //# invalid remote IP address (e.g., a broadcast or multicast address)
    //# (MUST-46).
    let mut engine = engine_at(on_link("10.0.0.1"));
    let mut connect = |remote: &str| {
        let remote = (remote.parse::<IpAddr>().unwrap(), 80).into();
        engine.connect(Instant::ZERO, None, remote, Options::default())
    };
    for remote in ["10.0.0.255", "255.255.255.255", "224.0.0.1", "0.0.0.0"] {
        assert_eq!(connect(remote), Err(ConnectError::Unreachable), "{remote}");
    }
    assert!(connect("10.0.0.254").is_ok());
    // RFC 3021: both addresses of a network of two are hosts.
    let mut engine = engine_at(InterfaceAddress {
        address: "10.0.0.2".parse().unwrap(),
        prefix_bits: 31,
    });
    let remote = "10.0.0.3:80".parse().unwrap();
    let connected = engine.connect(Instant::ZERO, None, remote, Options::default());
    assert!(connected.is_ok());
}

#[test]
fn a_syn_from_a_broadcast_address_is_ignored() {
    //= RFC 9293#3.9.2.3
    //= type=test
    //# An incoming SYN with an invalid source address MUST be ignored
    //# either by TCP or by the IP layer [(MUST-63)]
    let mut stage = plain();
    let packet = stage.packet("S 0:0(0) win 1000 <mss 1000>", [10, 0, 0, 255]);
    stage.raw(&packet);
    stage.expect_nothing();
    assert_eq!(stage.engine.connection_count(), 0);
}

#[test]
fn an_acknowledgement_waits_less_than_half_a_second() {
    //= RFC 9293#3.8.6.3
    //= type=test
    //# in particular, the delay MUST be
    //# less than 0.5 seconds (MUST-40).
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.delayed_ack = Duration::from_secs(2);
    });
    stage.accepted("", 10_000);
    for segment in 0..16 {
        let (from, to) = (segment * 100 + 1, segment * 100 + 101);
        stage.remote(&format!("P. {from}:{to}(100) ack 1"));
    }
    stage.forget_sent();
    stage.remote("P. 1601:1701(100) ack 1");
    stage.expect_nothing();
    stage.wait(Duration::from_millis(500) - MILLISECOND);
    stage.expect(". 1:1(0) ack 1701");
}

/// The first packet that an engine sends to `remote`.
fn first_packet(change: impl FnOnce(&mut Config), seed: u64, at: Instant) -> Vec<u8> {
    let mut config = Config::new(Medium::Ip, 1_500, on_link("10.0.0.1"));
    config.ephemeral_ports = (40_000, 40_000);
    change(&mut config);
    let mut engine = Engine::new(config, Random::new(seed));
    let remote = "10.0.0.2:80".parse().unwrap();
    engine
        .connect(at, None, remote, Options::default())
        .unwrap();
    let mut header = [0; HEADER_BUFFER_BYTES];
    let sent = engine.poll_transmit(at, &mut header).expect("a SYN");
    header[..sent.header_bytes].to_vec()
}

#[test]
fn the_time_to_live_is_configurable() {
    //= RFC 9293#3.9.2
    //= type=test
    //# Time to Live (TTL): The TTL value used to send TCP segments MUST be
    //# configurable (MUST-49).
    assert_eq!(first_packet(|_| {}, 1, Instant::ZERO)[8], 64);
    let packet = first_packet(|config| config.hop_limit = 7, 1, Instant::ZERO);
    assert_eq!(packet[8], 7);
}

#[test]
fn initial_sequence_numbers_follow_a_clock_and_a_secret() {
    let isn = |seed, at| {
        let packet = first_packet(|_| {}, seed, at);
        u32::from_be_bytes(packet[24..28].try_into().unwrap())
    };
    //= RFC 9293#3.4.1
    //= type=test
    //# A TCP implementation MUST use the above type of "clock" for clock-driven
    //# selection of initial sequence numbers (MUST-8)
    let (now, later) = (Instant::from_micros(4_000), Instant::from_micros(8_000));
    assert_eq!(isn(1, later).wrapping_sub(isn(1, now)), 1_000);
    //= RFC 9293#3.4.1
    //= type=test
    //# F() MUST NOT be computable from the outside (MUST-9)
    assert_ne!(isn(1, now), isn(2, now));
}

#[test]
fn a_refused_handshake_ends_where_it_began() {
    //= RFC 9293#3.5
    //= type=test
    //# Note that a TCP implementation MUST keep track of whether a
    //# connection has reached SYN-RECEIVED state as the result of a passive
    //# OPEN or an active OPEN (MUST-11).
    let mut stage = plain();
    stage.remote("S 0:0(0) win 65535 <mss 1000>");
    stage.expect("S. 0:0(0) ack 1");
    stage.remote("R 1:1(0)");
    assert_eq!(stage.engine.poll_event(), None);
    assert_eq!(stage.engine.connection_count(), 0);
    stage.remote("S 0:0(0) win 65535 <mss 1000>");
    stage.expect("S. 0:0(0) ack 1");
    // An attempt of ours is reported.
    let mut stage = plain();
    stage.connect(Options::default());
    stage.expect("S 0:0(0)");
    stage.remote("S 0:0(0) win 10000 <mss 1000>");
    stage.expect("S. 0:0(0) ack 1");
    stage.remote("R 1:1(0)");
    stage.expect_closed(CloseReason::Refused);
}

#[test]
fn options_of_a_handshake_stay_in_it() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let id = stage.accepted(",ws 2", 10_000);
    assert_eq!(stage.engine.info(id).unwrap().remote_window, 40_000);
    //= RFC 7323#2.2
    //= type=test
    //# A Window Scale option in a segment without a SYN bit MUST be ignored.
    stage.remote("P. 1:101(100) ack 1 win 10001 <ws 7,mss 600>");
    stage.expect(". 1:1(0) ack 101");
    assert_eq!(stage.engine.info(id).unwrap().remote_window, 40_004);
    //= RFC 9293#3.2
    //= type=test
    //# This field may be sent in the initial connection request (i.e., in segments with
    //# the SYN control bit set) and MUST NOT be sent in other segments (MUST-65).
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 101 <mss,ws>");
}

#[test]
fn windows_are_scaled_when_both_sides_say_so() {
    //= RFC 7323#2.2
    //= type=test
    //# This option is an offer, not a promise; both sides MUST send Window
    //# Scale options in their <SYN> segments to enable window scaling in
    //# either direction.
    let window = |options: &str, from_syn: bool| {
        let mut stage = Stage::new(|config, options| {
            config.timestamps = false;
            options.receive_bytes_max = 4 << 20;
        });
        stage.remote(&format!("S 0:0(0) win 5000 <mss 1000{options}>"));
        stage.expect("S. 0:0(0) ack 1 win 65535");
        //= RFC 7323#2.3
        //= type=test
        //# Upon receiving a <SYN> segment with a Window Scale option containing shift.cnt = S, a
        //# TCP MUST set Snd.Wind.Shift to S and MUST set Rcv.Wind.Shift to R; otherwise, it MUST
        //# set both Snd.Wind.Shift and Rcv.Wind.Shift to zero.
        //= RFC 7323#2.3
        //= type=test
        //# The window field (SEG.WND) in the header of every incoming segment, with the exception
        //# of <SYN> segments, MUST be left-shifted by Snd.Wind.Shift bits before updating SND.WND:
        if from_syn {
            stage.remote("P. 1:2(1) ack 1 win 5000");
        } else {
            stage.remote(". 1:1(0) ack 1 win 5000");
        }
        let id = stage.engine.accept(stage.listener).unwrap();
        stage.engine.info(id).unwrap().remote_window
    };
    for from_syn in [true, false] {
        assert_eq!(window("", from_syn), 5_000);
        assert_eq!(window(",ws 3", from_syn), 40_000);
        //= RFC 7323#2.3
        //= type=test
        //# If a Window Scale option is
        //# received with a shift.cnt value larger than 14, the TCP SHOULD log
        //# the error but MUST use 14 instead of the specified value.
        assert_eq!(window(",ws 200", from_syn), 5_000 << 14);
    }
}

#[test]
fn an_unsigned_window_is_as_large_as_it_says() {
    //= RFC 9293#3.1
    //= type=test
    //# The window size MUST be treated as an unsigned number, or else
    //# large window sizes will appear like negative windows and TCP will
    //# not work (MUST-1).
    let mut stage = plain();
    let id = stage.accepted("", 65_535);
    assert_eq!(stage.engine.info(id).unwrap().remote_window, 65_535);
}

#[test]
fn listening_disturbs_no_connection() {
    let mut stage = plain();
    let id = stage.connect(Options::default());
    let local = stage.engine.info(id).unwrap().local;
    //= RFC 9293#3.9.1.1
    //= type=test
    //# A TCP implementation that supports multiple concurrent connections
    //# MUST provide an OPEN call that will functionally allow an application
    //# to LISTEN on a port while a connection block with the same local port
    //# is in SYN-SENT or SYN-RECEIVED state (MUST-42).
    stage.engine.listen(local, 1, Options::default()).unwrap();
    //= RFC 9293#3.9.1.1
    //= type=test
    //# it MUST NOT affect any
    //# previously created connection record (MUST-41).
    stage.expect("S 0:0(0)");
    stage.remote("S. 0:0(0) ack 1 win 10000 <mss 1000>");
    stage.expect(". 1:1(0) ack 1");
    assert_eq!(stage.engine.poll_event(), Some(Event::Connected(id)));
    assert!(stage.engine.listen(local, 1, Options::default()).is_err());
    assert_eq!(stage.engine.info(id).unwrap().state, State::Established);
}

#[test]
fn our_window_is_announced_in_units_of_its_scale() {
    //= RFC 7323#2.3
    //= type=test
    //# The Window Scale option MUST be sent with shift.cnt = R, where R is the value that the TCP
    //# would like to use for its receive window.
    //= RFC 7323#2.3
    //= type=test
    //# The window field (SEG.WND) of every outgoing segment, with the exception of <SYN> segments,
    //# MUST be right-shifted by Rcv.Wind.Shift bits:
    //= RFC 7323#2.3
    //= type=test
    //# Thus, the shift count MUST be limited to 14 (which allows windows of 2^30 = 1 GiB).
    for (most, scale) in [(4 << 20, 7), (1 << 30, 14), (u32::MAX, 14)] {
        let mut stage = Stage::new(|config, options| {
            config.timestamps = false;
            options.receive_bytes_max = most;
        });
        stage.remote("S 0:0(0) win 5000 <mss 1000,ws 0>");
        stage.expect(&format!("S. 0:0(0) ack 1 win 65535 <mss 1460,ws {scale}>"));
        stage.remote("P. 1:2(1) ack 1 win 5000");
        stage.expect(&format!(". 1:1(0) ack 2 win {}", 65_534 >> scale));
    }
}

#[test]
fn an_old_timestamp_keeps_no_reset_out() {
    //= RFC 7323#5.2
    //= type=test
    //# When an <RST> segment is received, it MUST NOT be subjected to the PAWS check by verifying
    //# an acceptable value in SEG.TSval
    let mut stage = Stage::new(|_, _| {});
    stage.remote("S 0:0(0) win 65535 <mss 1000,TS>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    stage.remote(". 1:1(0) ack 1 <TS>");
    stage.engine.accept(stage.listener).unwrap();
    stage.remote("R 1:1(0) <TS 1>");
    stage.expect_closed(CloseReason::Reset);
}

#[test]
fn sack_blocks_are_sent_only_to_remotes_that_negotiated_them() {
    //= RFC 2018#4
    //= type=test
    //# If the data receiver has not received a SACK-Permitted option for a given connection, it
    //# MUST NOT send SACK options on that connection.
    let mut stage = plain();
    stage.accepted("", 10_000);
    stage.remote("P. 101:201(100) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack>");
}

#[test]
fn a_window_for_less_than_a_segment_is_not_filled_at_once() {
    //= RFC 9293#3.8.6.2.1
    //= type=test
    //# A TCP implementation MUST include a SWS avoidance algorithm in the sender (MUST-38).
    let mut stage = plain();
    let id = stage.accepted("", 100);
    stage.engine.publish(id, 5_000).unwrap();
    stage.expect_nothing();
    // The override timer sends the data.
    stage.wait(stage.engine.info(id).unwrap().timeout);
    stage.expect(". 1:101(100) ack 1");
    stage.remote(". 1:1(0) ack 101 win 1000");
    stage.expect(". 101:1101(1000) ack 1");
}

#[test]
fn keepalive_probes_are_sent_only_where_they_are_set() {
    //= RFC 9293#3.8.4
    //= type=test
    //# and they MUST default to off (MUST-25).
    let mut stage = plain();
    stage.accepted("", 10_000);
    stage.wait(Duration::from_secs(24 * 3_600));
    stage.expect_nothing();
}

#[test]
fn a_local_address_is_named_or_chosen() {
    let mut engine = engine_at(on_link("10.0.0.1"));
    engine.add_address(on_link("10.0.9.1"));
    let mut connect = |local: Option<&str>| {
        let local = local.map(|local| (local.parse::<IpAddr>().unwrap(), 0).into());
        let remote = "10.0.9.2:80".parse().unwrap();
        let id = engine.connect(Instant::ZERO, local, remote, Options::default());
        id.map(|id| engine.info(id).unwrap().local.ip().to_string())
    };
    //= RFC 9293#3.9.1.1
    //= type=test
    //# The optional "local IP address" parameter MUST be supported to allow the specification of
    //# the local IP address (MUST-43).
    assert_eq!(connect(Some("10.0.0.1")), Ok("10.0.0.1".to_owned()));
    assert_eq!(connect(Some("10.0.0.7")), Err(ConnectError::AddressNotOurs));
    //= RFC 9293#3.9.1.1
    //= type=test
    //# If an application on a multihomed host does not specify the local IP address when actively
    //# opening a TCP connection, then the TCP implementation MUST ask the IP layer to select a
    //# local IP address before sending the (first) SYN (MUST-44).
    assert_eq!(connect(None), Ok("10.0.9.1".to_owned()));
}

/// Hands the packet to the engine with verified checksums, even if they are wrong.
fn take(stage: &mut Stage, packet: &[u8]) {
    let offload = ReceiveOffload {
        checksum_verified: true,
    };
    stage
        .engine
        .handle_frame(stage.now, packet, offload, &mut stage.rings);
}

#[test]
fn options_of_packets_are_ignored() {
    //= RFC 9293#3.9.2
    //= type=test
    //# When received options are passed up to TCP from the IP layer, a TCP implementation MUST
    //# ignore options that it does not understand (MUST-50).
    let mut stage = plain();
    let mut packet = stage.packet("S 0:0(0) win 65535 <mss 1000>", [10, 0, 0, 2]);
    packet[0] = 0x46;
    let length = (packet.len() + 4) as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    // An unknown option of four bytes.
    packet.splice(20..20, [0x9e, 4, 1, 2]);
    take(&mut stage, &packet);
    stage.expect("S. 0:0(0) ack 1");
}

#[test]
fn no_listener_has_a_broadcast_address() {
    //= RFC 9293#3.9.2.3
    //= type=test
    //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a
    //# broadcast or multicast address [(MUST-57)].
    let mut stage = plain();
    for destination in [[10, 0, 0, 255], [255; 4], [224, 0, 0, 1]] {
        let mut packet = stage.packet("S 0:0(0) win 65535 <mss 1000>", [10, 0, 0, 2]);
        packet[16..20].copy_from_slice(&destination);
        take(&mut stage, &packet);
        stage.expect_nothing();
    }
    assert_eq!(stage.engine.connection_count(), 0);
}

#[test]
fn source_quenches_are_ignored() {
    //= RFC 9293#3.9.2.2
    //= type=test
    //# TCP implementations MUST silently discard any received ICMP Source Quench messages
    //# (MUST-55).
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.publish(id, 3_000).unwrap();
    stage.forget_sent();
    let before = stage.engine.info(id).unwrap();
    let mut packet = stage.unreachable(1, 0);
    // Another type, with the matching checksum (RFC 1624).
    packet[20] = 4;
    let checksum = u16::from_be_bytes([packet[22], packet[23]]);
    let (sum, carry) = checksum.overflowing_sub(0x100);
    packet[22..24].copy_from_slice(&(sum - u16::from(carry)).to_be_bytes());
    let malformed = stage.engine.counters().malformed_total();
    stage.raw(&packet);
    stage.expect_nothing();
    let after = stage.engine.info(id).unwrap();
    assert_eq!(after.congestion_window, before.congestion_window);
    assert_eq!(after.state, State::Established);
    assert_eq!(stage.engine.counters().malformed_total(), malformed);
}

#[test]
fn a_window_that_was_once_announced_is_honored() {
    // Windows in units of 128 bytes.
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.receive_bytes = 12_800;
        options.receive_bytes_max = 4 << 20;
    });
    let id = stage.accepted(",sackOK,ws 0", 10_000);
    stage.engine.bound_window(stage.now, id, 0, 12_800).unwrap();
    stage.remote("P. 1:2(1) ack 1");
    stage.expect(". 1:1(0) ack 2 win 99");
    // This acknowledgement ends the window at 2 + 99 * 128 = 12674; the SYN-ACK ended it at 12801.
    //= RFC 7323#2.4
    //= type=test
    //# 1) The receiver MUST honor, as in window, any segment that would have been in window for
    //# any <ACK> sent by the receiver.
    stage.remote("P. 12701:12801(100) ack 1");
    stage.expect(". 1:1(0) ack 2 <sack 12701:12801>");
}

/// The kinds of the options in a segment of IPv4.
fn option_kinds(packet: &[u8]) -> Vec<u8> {
    let header_end = 20 + usize::from(packet[32] >> 4) * 4;
    let mut rest = &packet[40..header_end];
    let mut kinds = Vec::new();
    while let Some(&kind) = rest.first().filter(|&&kind| kind != 0) {
        let length = if kind == 1 { 1 } else { rest[1].into() };
        kinds.push(kind);
        rest = &rest[length..];
    }
    kinds
}

#[test]
fn selective_acknowledgements_are_agreed_upon_by_syns_alone() {
    //= RFC 2018#2
    //= type=test
    //# It MUST NOT be sent on non-SYN segments.
    const SACK_PERMITTED: u8 = 4;
    let mut stage = Stage::new(|_, _| {});
    stage.remote("S 0:0(0) win 65535 <mss 1012,sackOK,TS>");
    let permits = |stage: &mut Stage| option_kinds(&stage.next_sent()).contains(&SACK_PERMITTED);
    assert!(permits(&mut stage));
    // `expect` learns the engine's ISN from the repeated SYN-ACK.
    stage.wait(Duration::from_secs(1));
    stage.expect("S. 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1 win 60000 <TS>");
    let id = stage.engine.accept(stage.listener).unwrap();
    // An acknowledgement, an acknowledgement with blocks, data, a retransmission, and the end.
    stage.remote("P. 1:11(10) ack 1 <TS>");
    assert!(!permits(&mut stage));
    stage.remote("P. 21:31(10) ack 1 <TS>");
    assert!(!permits(&mut stage));
    stage.engine.publish(id, 100).unwrap();
    assert!(!permits(&mut stage));
    stage.wait(Duration::from_secs(4));
    assert!(!permits(&mut stage));
    stage.forget_sent();
    stage.engine.finish(stage.now, id).unwrap();
    assert!(!permits(&mut stage));
    stage.forget_sent();
    stage.engine.abort(stage.now, id).unwrap();
    assert!(!permits(&mut stage));
}

#[test]
fn blocks_tell_of_nothing_that_was_discarded() {
    //= RFC 2018#8
    //= type=test
    //# Except for the newest segment, all SACK blocks MUST NOT report any old data which is no
    //# longer actually held by the receiver.
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 10_000);
    stage.remote("P. 101:201(100) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack 101:201>");
    stage.remote("P. 301:401(100) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack 301:401:101:201>");
    stage.engine.discard_early(id).unwrap();
    stage.remote("P. 501:601(100) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack 501:601>");
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101 <sack 501:601>");
    // Once more, with no bytes beyond a gap.
    stage.engine.discard_early(id).unwrap();
    stage.remote("P. 101:201(100) ack 1");
    stage.expect(". 1:1(0) ack 201 <sack>");
}

#[test]
fn a_connection_keeps_its_local_address() {
    let other = on_link("10.0.0.7");
    let mut stage = plain();
    stage.engine.add_address(other);
    let listener = stage
        .engine
        .listen((other.address, 80).into(), 16, Options::default());
    let listener = listener.unwrap();
    // For a connection of its own the engine chooses the first address.
    let id = stage.connect(Options::default());
    let chosen = stage.engine.info(id).unwrap().local.ip();
    assert_eq!(chosen, IpAddr::from([10, 0, 0, 1]));
    stage.forget_sent();
    stage.engine.abort(stage.now, id).unwrap();
    stage.forget_sent();
    stage.aim(80);
    let remote = |stage: &mut Stage, script| {
        let mut packet = stage.packet(script, [10, 0, 0, 2]);
        packet[16..20].copy_from_slice(&[10, 0, 0, 7]);
        take(stage, &packet);
    };
    //= RFC 9293#3.9.1.1
    //= type=test
    //# At all other times, a previous segment has either been sent or received on this
    //# connection, and TCP implementations MUST use the same local address that was used in those
    //# previous segments (MUST-45).
    let source = |stage: &mut Stage| stage.next_sent()[12..16].to_vec();
    remote(&mut stage, "S 0:0(0) win 65535 <mss 1000>");
    assert_eq!(source(&mut stage), [10, 0, 0, 7]);
    // `expect` learns the engine's ISN from the repeated SYN-ACK.
    stage.wait(Duration::from_secs(1));
    stage.expect("S. 0:0(0) ack 1");
    remote(&mut stage, ". 1:1(0) ack 1 win 10000");
    let id = stage.engine.accept(listener).unwrap();
    stage.engine.publish(id, 500).unwrap();
    assert_eq!(source(&mut stage), [10, 0, 0, 7]);
    stage.wait(Duration::from_secs(4));
    assert_eq!(source(&mut stage), [10, 0, 0, 7]);
    stage.forget_sent();
    remote(&mut stage, "P. 1:11(10) ack 501 win 10000");
    assert_eq!(source(&mut stage), [10, 0, 0, 7]);
    stage.engine.abort(stage.now, id).unwrap();
    assert_eq!(source(&mut stage), [10, 0, 0, 7]);
}
