//! `toehold capture` while programs use the link.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use toehold_adapter::client::{self, CaptureOptions};
use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Toehold, host, wait_until};
use toehold_link::{CaptureReader, Direction, PacketSummary};

use crate::stage::{Stage, ok};

/// Starts a capture and waits until it has begun. A capture that cannot write may already have
/// ended, because the kernel now and then sends frames of its own on a new link.
fn capturing(stage: &Stage, arguments: &[&str]) -> Running {
    let before = stage.engine("captures");
    let mut command = stage.toehold.asking(&["capture"]);
    command.args(arguments);
    let mut running = Running::start(command, "capture", stage.toehold.dir());
    let begun = wait_until(TIME_LIMIT, || {
        running.ended().is_some() || stage.engine("captures") > before
    });
    assert!(begun, "{}", running.outputs());
    running
}

/// All frames of a capture: direction, summary and comment. Asserts that no frame was lost.
fn frames(file: &Path) -> Vec<(Direction, PacketSummary, String)> {
    let mut reader = CaptureReader::new(File::open(file).expect("a capture"));
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block().expect("whole") {
        if let Some(packet) = block.packet() {
            assert_eq!(packet.lost, 0, "a frame is missing");
            let direction = packet.direction.expect("said");
            let summary = PacketSummary::of(packet.bytes);
            frames.push((direction, summary, packet.comment.to_owned()));
        }
    }
    frames
}

#[test]
fn a_full_disk_is_named() {
    let Some(stage) = Stage::set(&[]) else { return };
    let mut capture = capturing(&stage, &["-w", "/dev/full"]);
    ok(stage.far("refused", &["expect_error", NEAR, "7199", "ECONNREFUSED"]));
    let ended = capture.wait(TIME_LIMIT).and_then(|status| status.code());
    assert_eq!(ended, Some(1), "{}", capture.outputs());
    let said = capture.stderr();
    assert!(
        said.contains("cannot write /dev/full: No space left"),
        "{said}"
    );
}

/// A capture waits for the reader of a pipe. The first signal asks it to conclude, the second one
/// ends it.
#[test]
fn a_capture_without_a_reader_is_ended_by_a_second_signal() {
    let Some(stage) = Stage::set(&[]) else { return };
    let pipe = stage.toehold.dir().join("pipe");
    let path = CString::new(pipe.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: `path` is a string that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "mkfifo");
    let mut capture = capturing(&stage, &["-w", &pipe.to_string_lossy()]);
    capture.signal(libc::SIGINT);
    // The handler is gone once it was called.
    let status = format!("/proc/{}/status", capture.pid());
    let is_caught = || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & (1 << (libc::SIGINT - 1)) != 0)
    };
    assert!(wait_until(TIME_LIMIT, || !is_caught()), "the first signal");
    capture.signal(libc::SIGINT);
    let ended = capture.wait(TIME_LIMIT).and_then(|status| status.signal());
    assert_eq!(ended, Some(libc::SIGINT), "{}", capture.outputs());
}

#[test]
fn every_frame_is_there_with_what_the_engine_did() {
    let Some(stage) = Stage::set(&[]) else { return };
    let (received, sent) = (stage.engine("frames_received"), stage.engine("frames_sent"));
    let file = stage.toehold.dir().join("link.pcapng");
    let capture = capturing(&stage, &["-w", &file.to_string_lossy()]);
    let _far = stage.far_server(&["echo_server", "7101"]);
    ok(stage.near("client", &["echo_client", FAR, "7101", "300000"]));
    let over = wait_until(TIME_LIMIT, || stage.engine("connections") == 0);
    assert!(over, "the connection is over");
    ok(stage.near("refused", &["expect_error", FAR, "9", "ECONNREFUSED"]));
    // The port has no listener, so the engine sends a reset.
    ok(stage.far("refused", &["expect_error", NEAR, "7199", "ECONNREFUSED"]));
    // The file must be written while the capture runs.
    let has = |words: &str| {
        let seen = frames(&file);
        seen.iter().any(|(_, _, comment)| comment.contains(words))
    };
    assert!(wait_until(TIME_LIMIT, || has(
        "dropped: no such connection"
    )));
    capture.signal(libc::SIGINT);
    let said = capture.success(TIME_LIMIT);
    assert!(said.is_empty(), "{said}");
    let seen = frames(&file);
    let both = [Direction::In, Direction::Out].map(|way| {
        let frames = seen.iter().filter(|(direction, ..)| *direction == way);
        frames.count() as u64
    });
    // The kernel now and then sends frames of its own on a new link, perhaps before the capture
    // began or after it ended.
    assert!(both[0] <= stage.engine("frames_received") - received);
    assert!(both[1] <= stage.engine("frames_sent") - sent);
    for (way, words) in [
        (Direction::Out, "opens a connection"),
        (Direction::In, "SYN-SENT to ESTABLISHED"),
        (Direction::Out, "bytes 0 to "),
        (Direction::In, "delivered "),
        (Direction::In, "acknowledges "),
        (Direction::Out, "pure ACK"),
        (Direction::Out, "we have finished"),
        (Direction::In, "the remote has finished"),
        (Direction::In, "resets the connection"),
        (
            Direction::In,
            "dropped: no such connection; answered with a reset",
        ),
        (Direction::Out, "reset"),
        (Direction::In, "neighbour resolution"),
    ] {
        let found = seen
            .iter()
            .any(|(direction, _, comment)| *direction == way && comment.contains(words));
        assert!(found, "{way:?} {words}: {seen:#?}");
    }
    let delivered: usize = seen
        .iter()
        .filter_map(|(_, _, comment)| comment.strip_prefix("delivered "))
        .filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok())
        .sum();
    assert_eq!(delivered, 300_000, "every byte of the echo is told of");
    wireshark_agrees(&file, seen.len());
}

/// If Wireshark is installed, it must read all frames of the capture and their comments.
fn wireshark_agrees(file: &Path, count: usize) {
    let Some([tshark]) = host::require(["tshark"]) else {
        return;
    };
    let output = Command::new(tshark)
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-e", "tcp.flags.syn", "-e", "frame.comment"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(text.lines().count(), count, "{said}");
    let opening = text
        .lines()
        .any(|line| line.starts_with("1\t") && line.contains("opens a connection"));
    assert!(opening, "{text}");
}

#[test]
fn lines_are_for_reading_and_filters_choose() {
    let Some(stage) = Stage::set(&[]) else { return };
    let capture = capturing(&stage, &["--port", "7103", "--host", NEAR, "-c", "8"]);
    let _other = stage.far_server(&["echo_server", "7104"]);
    ok(stage.near("other", &["echo_client", FAR, "7104", "10000"]));
    let _far = stage.far_server(&["echo_server", "7103"]);
    ok(stage.near("client", &["echo_client", FAR, "7103", "100000"]));
    let said = capture.success(TIME_LIMIT);
    assert_eq!(said.lines().count(), 8, "{said}");
    assert!(
        said.lines()
            .all(|line| line.contains(".7103") || line.contains(":7103"))
    );
    assert!(said.contains(" | opens a connection"), "{said}");
}

#[test]
fn reader_that_stops_reading_stops_nothing_else() {
    let Some(stage) = Stage::set(&[]) else { return };
    let options = CaptureOptions::default();
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let capture = client::capture(&stage.toehold.runtime(), options);
        stalled.push(capture.expect("a capture"));
    }
    let begun = wait_until(TIME_LIMIT, || stage.engine("captures") == 8);
    assert!(begun, "eight captures run");
    // The ninth capture is one too many and ends at once.
    let mut command = stage.toehold.asking(&["capture"]);
    command.stdin(Stdio::null());
    let mut ninth = Running::start(command, "ninth", stage.toehold.dir());
    let status = ninth.wait(TIME_LIMIT).expect("it ends");
    assert!(!status.success(), "{}", ninth.outputs());
    assert!(
        ninth.stderr().contains("no more captures"),
        "{}",
        ninth.stderr()
    );
    // Far more bytes than the captures' queues hold.
    let _far = stage.far_server(&["echo_server", "7105"]);
    ok(stage.near("client", &["echo_client", FAR, "7105", "100000000"]));
    assert_eq!(stage.engine("captures"), 8, "slow is not gone");
    let first = stalled.swap_remove(0);
    drop(stalled);
    ok(stage.near("client", &["echo_client", FAR, "7105", "1000"]));
    assert!(wait_until(TIME_LIMIT, || stage.engine("captures") == 1));
    // The remaining reader reads the queued frames and learns how many frames it missed.
    let mut reader = CaptureReader::new(&first.stream);
    let mut lost = 0;
    let client = stage.near("client", &["outlive", FAR, "7105"]);
    while lost == 0 {
        let block = reader.next_block().expect("a capture").expect("it goes on");
        lost += block.packet().map_or(0, |packet| packet.lost);
    }
    drop(client);
}

#[test]
fn only_an_adapter_with_a_link_can_be_captured() {
    let toehold = Toehold::start();
    let error = client::capture(&toehold.runtime(), CaptureOptions::default());
    assert!(error.is_err_and(|error| error.to_string().contains("--link")));
}

#[test]
fn capture_ends_with_the_adapter_and_says_so() {
    let Some(mut stage) = Stage::set(&[]) else {
        return;
    };
    let file = stage.toehold.dir().join("end.pcapng");
    let capture = capturing(&stage, &["-w", &file.to_string_lossy()]);
    stage.toehold.adapter().signal(libc::SIGTERM);
    capture.success(TIME_LIMIT);
    let mut reader = CaptureReader::new(File::open(&file).expect("a capture"));
    let mut lost = None;
    while let Some(block) = reader.next_block().expect("whole") {
        lost = lost.or(block.lost_in_all());
    }
    assert_eq!(lost, Some(0), "the last block tells");
}
