//! Processes that end, and sockets that end without them.

mod support;

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::Ordering;
use support::program::Program;
use support::{Adapter, FakeLibrary, Scratch, connect};
use toehold_channel::table::{COMMAND_NONE, COMMAND_PEER_GONE};

/// What the other process does; nothing when this runs as a test.
#[test]
fn role() {
    let Some((role, dir)) = support::program::role() else {
        return;
    };
    let mut library = FakeLibrary::new(&dir);
    library.pair(false, 5000, 80);
    library.offer();
    match role.as_str() {
        "waits" => {}
        "closes" => library.socket = connect(&dir),
        "leaves-a-child" => leave_a_child(&library),
        other => panic!("no such role: {other}"),
    }
    support::program::stay();
}

/// A child that inherits the adapter's socket, as one made by fork does, and ends with our standard input.
#[expect(clippy::zombie_processes, reason = "the child is to outlive us")]
fn leave_a_child(library: &FakeLibrary) {
    // SAFETY: plain system call on a descriptor of ours.
    unsafe { libc::fcntl(library.socket.as_fd().as_raw_fd(), libc::F_SETFD, 0) };
    Command::new("/bin/sh")
        .args(["-c", "echo child; read line"])
        .spawn()
        .expect("spawned");
}

struct Scene {
    _scratch: Scratch,
    _adapter: Adapter,
    server: FakeLibrary,
    accepted: support::FakeEnd,
    program: Program,
}

/// A server here that has a channel with a program of the given role.
fn scene(role: &str) -> Scene {
    let scratch = Scratch::new();
    let adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let accepted = server.pair(true, 80, 5000);
    server.settle();
    let program = Program::start(role, &scratch.path());
    server.settle();
    assert_eq!(server.offers(accepted), 1);
    Scene {
        _scratch: scratch,
        _adapter: adapter,
        server,
        accepted,
        program,
    }
}

#[test]
fn the_partner_of_a_killed_process_is_told() {
    let mut scene = scene("waits");
    assert_eq!(scene.server.command(scene.accepted), COMMAND_NONE);
    scene.program.kill();
    let (server, accepted) = (&scene.server, scene.accepted);
    server.settle_until(|| server.command(accepted) == COMMAND_PEER_GONE);
}

#[test]
fn a_successor_in_the_same_entry_is_not_told() {
    let mut scene = scene("waits");
    let entry = scene.server.table.entry(scene.accepted.entry);
    entry.generation.fetch_add(1, Ordering::Relaxed);
    scene.program.kill();
    for _ in 0..100 {
        scene.server.settle();
    }
    assert_eq!(scene.server.command(scene.accepted), COMMAND_NONE);
}

#[test]
fn a_program_that_closes_our_socket_keeps_its_channels_until_it_ends() {
    let mut scene = scene("closes");
    let (server, accepted) = (&scene.server, scene.accepted);
    for _ in 0..100 {
        server.settle();
    }
    assert_eq!(server.command(accepted), COMMAND_NONE, "it lives");
    scene.program.kill();
    server.settle_until(|| server.command(accepted) == COMMAND_PEER_GONE);
}

#[test]
fn channels_outlive_a_process_whose_child_may_hold_them() {
    let mut scene = scene("leaves-a-child");
    let stdin = scene.program.child.stdin.take();
    scene.program.kill();
    let (server, accepted) = (&scene.server, scene.accepted);
    for _ in 0..100 {
        server.settle();
    }
    assert_eq!(
        server.command(accepted),
        COMMAND_NONE,
        "the child has the socket still"
    );
    drop(stdin);
    server.settle_until(|| server.command(accepted) == COMMAND_PEER_GONE);
}
