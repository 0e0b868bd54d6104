//! Programs that do not read: the bytes that a remote can send to them.

use toehold_e2e::network::NEAR;
use toehold_e2e::process::Running;

use crate::stage::{Stage, ok};

/// The most unread bytes of a program that has read little or nothing: in the engine, in the
/// carrier and in the rings together.
const UNREAD_BYTES_MAX: u64 = 256 << 10;
/// A program that has read much has a window of 1 MiB, where the path is short.
const UNREAD_BYTES_MAX_OF_READER: u64 = (1 << 20) + UNREAD_BYTES_MAX;

/// The number of bytes that a remote on the kernel can send to the program.
fn unread(stage: &Stage, port: &str, before: [&str; 2]) -> u64 {
    let [rounds, count] = before;
    let said = ok(stage.far("pusher", &["pusher", NEAR, port, rounds, count]));
    let number = said.split_whitespace().nth(1);
    let number = number.and_then(|number| number.parse().ok());
    number.expect("the number of unread bytes")
}

/// Plays an idle reader after these messages and bytes.
fn idle_reader(stage: &Stage, port: &str, [rounds, count]: [&str; 2]) -> Running {
    stage.near_server(&["idle_reader", port, rounds, count])
}

#[test]
fn remotes_can_send_little_to_programs_that_do_not_read() {
    let Some(stage) = Stage::set(&[]) else { return };
    let _deaf = stage.near_server(&["deaf_server", "7801"]);
    let _silent = stage.near_server(&["silent_server", "7802"]);
    let mut counts = vec![
        ("not accepted", unread(&stage, "7801", ["0", "0"])),
        ("never read", unread(&stage, "7802", ["0", "0"])),
    ];
    for (name, port, before) in [
        ("read a little", "7803", ["0", "1000"]),
        ("in a channel", "7804", ["40", "0"]),
    ] {
        let _reader = idle_reader(&stage, port, before);
        counts.push((name, unread(&stage, port, before)));
    }
    // The path is short if one of several round trips was. On a busy host a single one, that of the
    // handshake, may take the engine many milliseconds.
    let before = ["10", "20000000"];
    let _reader = idle_reader(&stage, "7805", before);
    let of_reader = unread(&stage, "7805", before);
    println!("{counts:?}, after much: {of_reader}");
    for (name, count) in counts {
        assert!(
            (1..=UNREAD_BYTES_MAX).contains(&count),
            "{name}: {count} bytes"
        );
    }
    assert!((1..=UNREAD_BYTES_MAX_OF_READER).contains(&of_reader));
}
