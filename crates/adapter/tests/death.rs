//! Processes that end, and sockets that end while their process lives.

mod support;

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::process::ChildStdin;
use std::sync::atomic::Ordering;
use support::program::Program;
use support::scene::Scene;
use support::{FakeLibrary, connect};

/// The role of the other process.
#[test]
#[ignore = "run by the tests of this file, in another process"]
fn role() {
    let (role, dir) = support::program::role();
    let stream = TcpStream::connect(("127.0.0.1", support::program::port())).expect("connected");
    let port = |address: std::io::Result<SocketAddr>| address.expect("connected").port();
    let mut library = FakeLibrary::new(&dir);
    let end = library.pair(false, port(stream.local_addr()), port(stream.peer_addr()));
    library.offer();
    match role.as_str() {
        "waits" => {}
        "closes-our-socket" => library.socket = connect(&dir),
        "leaves-a-child-our-socket" => leave_a_child(&library, &[stream.as_raw_fd()]),
        "has-a-child" => {
            leave_a_child(&library, &[stream.as_raw_fd(), library.socket.as_raw_fd()]);
        }
        "has-a-child-that-is-counted" => {
            let entry = library.table.entry(end.entry);
            entry.holders.store(2, Ordering::Relaxed);
            leave_a_child(&library, &[stream.as_raw_fd(), library.socket.as_raw_fd()]);
        }
        "has-a-child-with-the-connection" => {
            leave_a_child(&library, &[library.socket.as_raw_fd()]);
        }
        other => panic!("no such role: {other}"),
    }
    support::program::stay();
}

/// Forks a child that closes some descriptors and ends when our standard input ends.
fn leave_a_child(library: &FakeLibrary, closes: &[RawFd]) {
    // SAFETY: the child only makes system calls until it ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let mut byte = 0u8;
        // SAFETY: plain system calls; `byte` is valid for one.
        unsafe {
            for &fd in closes {
                libc::close(fd);
            }
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    library.table.words().header().family[1].store(pid as u32, Ordering::Relaxed);
}

/// Ends the program; its child lives until the returned input is dropped.
fn kill(program: &mut Program) -> Option<ChildStdin> {
    let stdin = program.child.stdin.take();
    program.kill();
    stdin
}

#[test]
fn the_partner_of_a_killed_process_is_notified() {
    let mut scene = Scene::with("waits");
    scene.assert_untold();
    kill(&mut scene.program);
    scene.assert_told();
}

#[test]
fn a_successor_in_the_same_entry_is_not_notified() {
    let mut scene = Scene::with("waits");
    let entry = scene.server.table.entry(scene.accepted.entry);
    entry.channel_generation.fetch_add(1, Ordering::Relaxed);
    kill(&mut scene.program);
    scene.assert_untold();
}

#[test]
fn a_program_that_closes_our_socket_keeps_its_channels_until_it_ends() {
    let mut scene = Scene::with("closes-our-socket");
    scene.assert_untold();
    kill(&mut scene.program);
    scene.assert_told();
}

#[test]
fn channels_outlive_a_process_whose_family_holds_them() {
    let roles = [
        "leaves-a-child-our-socket",
        "has-a-child-that-is-counted",
        "has-a-child-with-the-connection",
    ];
    for role in roles {
        let mut scene = Scene::with(role);
        let stdin = kill(&mut scene.program);
        scene.assert_untold();
        drop(stdin);
        scene.assert_told();
    }
}

#[test]
fn a_family_does_not_keep_what_only_the_dead_process_held() {
    let mut scene = Scene::with("has-a-child");
    let stdin = kill(&mut scene.program);
    scene.assert_told();
    drop(stdin);
}
