//! Clients that connect with the help of their family: forked children through their parent's
//! connection, and new programs of old processes.

mod support;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use support::scene::Scene;
use support::stuck::StuckProcess;
use support::{
    Adapter, FakeEnd, FakeLibrary, FakeTable, LONG, Scratch, connect, socket_pair, wait_until,
};
use toehold_adapter::client;
use toehold_adapter::unserved::{self, Search};
use toehold_adapter::wire::{self, Received};
use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::COMMAND_NONE;

/// A program that has a connection, for which it is offered a channel.
#[test]
#[ignore = "run by the tests of this file, in another process"]
fn role() {
    let (role, dir) = support::program::role();
    let stream = TcpStream::connect(("127.0.0.1", support::program::port())).expect("connected");
    let port = |address: std::io::Result<SocketAddr>| address.expect("connected").port();
    let (local, remote) = (port(stream.local_addr()), port(stream.peer_addr()));
    let library = FakeLibrary::new(&dir);
    library.settle();
    match (&*role, role.strip_prefix("names-process-")) {
        ("has-a-worker", _) => has_a_worker(library, stream, local, remote),
        (_, Some(number)) => {
            let number = number.parse().expect("a number");
            let table = library.table.words();
            let mut places = table.header().family.iter();
            let free = places.find(|place| place.load(Ordering::Relaxed) == 0);
            free.expect("a place").store(number, Ordering::Relaxed);
            let end = library.pair(false, local, remote);
            // Pretend that this process holds the connection, too.
            library
                .table
                .entry(end.entry)
                .holders
                .store(2, Ordering::Relaxed);
            library.offer();
            support::program::stay();
        }
        _ => panic!("no such role: {role}"),
    }
}

/// A program with a worker, which becomes another user if it may. The connection is the worker's.
/// The worker ends with the standard input; the program ends when it is killed.
fn has_a_worker(parent: FakeLibrary, stream: TcpStream, local: u16, remote: u16) {
    // SAFETY: nothing else runs in this process; the child ends without returning.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // SAFETY: plain system calls. A process that is not root stays who it is.
        unsafe {
            libc::setgid(NOBODY);
            libc::setuid(NOBODY);
        }
        let worker = parent.adopted();
        drop(parent);
        worker.pair(false, local, remote);
        worker.offer();
        support::program::stay();
        // SAFETY: ends this process, and with it what it holds.
        unsafe { libc::_exit(0) };
    }
    drop(stream);
    // SAFETY: waits for a signal.
    unsafe { libc::pause() };
}

const NOBODY: u32 = 65534;

#[test]
fn a_worker_of_another_user_is_introduced_as_its_parent_would_be() {
    let scene = Scene::with("has-a-worker");
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root can have a worker of another user");
        return;
    }
    let status = client::status(&scene.scratch.path()).expect("status");
    assert!(status.contains(&format!("\"uid\":{NOBODY}")), "{status}");
}

#[test]
fn the_partner_of_a_worker_that_ends_is_notified_while_its_parent_lives() {
    let mut scene = Scene::with("has-a-worker");
    scene.assert_untold();
    drop(scene.program.child.stdin.take());
    scene.assert_told();
    let ended = scene.program.child.try_wait().expect("its state");
    assert!(ended.is_none(), "the parent lives");
}

#[test]
fn a_worker_outlives_the_parent_that_brought_it() {
    let mut scene = Scene::with("has-a-worker");
    let stdin = scene.program.child.stdin.take();
    scene.program.kill();
    scene.assert_untold();
    drop(stdin);
    scene.assert_told();
}

/// A program enters process 1 into its table as a member of its family, and dies. The adapter
/// examines that process and finds that it has not mapped the table: no member of the family is
/// left.
#[test]
fn a_process_that_only_the_table_names_is_no_member_of_the_family() {
    let mut scene = Scene::with("names-process-1");
    scene.assert_untold();
    scene.program.kill();
    scene.assert_told();
}

/// As above, but the kernel does not show the mappings of that process. The dead program's ends go
/// on until it does, and nobody waits.
#[test]
fn a_process_that_does_not_show_its_mappings_keeps_nobody_waiting() {
    // Dropped after the process, so that an adapter that waits for it ends.
    let mut scene = None;
    let Some(stuck) = StuckProcess::new(NOBODY) else {
        return;
    };
    let role = format!("names-process-{}", stuck.pid);
    let scene = scene.insert(Scene::under_system(&role));
    scene.program.kill();
    for _ in 0..100 {
        client::ping(&scene.scratch.path()).expect("it answers");
    }
    scene.assert_untold();
    drop(stuck);
    scene.assert_told();
}

/// The result of `call`, which must not wait for a process.
fn at_once<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    is_done
        .recv_timeout(LONG)
        .expect("it does not wait for that process")
}

/// A new adapter looks at the mappings of all processes.
#[test]
fn a_process_that_does_not_show_its_mappings_does_not_keep_an_adapter_from_starting() {
    let Some(_stuck) = StuckProcess::new(NOBODY) else {
        return;
    };
    at_once(|| unserved::hail(Path::new("/nowhere/toehold"), true));
}

/// `toehold status` looks at all processes, too.
#[test]
fn a_process_that_does_not_show_its_mappings_does_not_keep_a_search_waiting() {
    let Some(stuck) = StuckProcess::new(NOBODY) else {
        return;
    };
    let found = at_once(|| Search::begin().find(Path::new("/nowhere/toehold"), &BTreeSet::new()));
    let stuck_pid = stuck.pid.cast_unsigned();
    assert!(found.not_shown.contains(&stuck_pid), "{found:?}");
}

#[test]
fn a_child_speaks_for_itself_and_so_does_its_own() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let child = parent.adopted();
    let grandchild = child.adopted();
    let client = FakeLibrary::new(&scratch.path());
    for (port, member) in (5000..).zip([&parent, &child, &grandchild]) {
        let accepted = member.pair(true, 80, port);
        member.settle();
        client.pair(false, port, 80);
        client.offer();
        assert_eq!(member.offer().message.entry, accepted.entry);
    }
}

#[test]
fn a_child_is_served_although_its_parent_left_before_it_spoke() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
    parent.adopt(&[theirs.as_fd()]);
    let FakeLibrary {
        socket: of_parent,
        table,
        ..
    } = parent;
    drop(of_parent);
    // Once a client that came later is served, the adapter has handled the parent's departure.
    FakeLibrary::new(&scratch.path()).settle();
    let child = FakeLibrary::at(socket, table);
    child.hello(child.table.file.as_fd());
    child.settle();
}

#[test]
fn a_child_has_the_table_of_its_family_and_no_other() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let stranger = FakeLibrary::new(&scratch.path());
    stranger.settle();
    for table in [FakeTable::new(), stranger.table.again()] {
        let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
        parent.adopt(&[theirs.as_fd()]);
        drop(theirs);
        let child = FakeLibrary::at(socket, table);
        child.hello(child.table.file.as_fd());
        assert!(child.is_dropped());
        parent.settle();
    }
}

#[test]
fn what_is_no_connected_socket_of_our_kind_is_not_adopted() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let (pipe, _writer) = std::io::pipe().expect("pipe");
    let (stream, _other) = socket_pair(libc::SOCK_STREAM);
    let (packets, _other) = socket_pair(libc::SOCK_SEQPACKET);
    let tcp = TcpListener::bind("127.0.0.1:0").expect("bound");
    // SAFETY: no memory is involved; the descriptor is nobody else's.
    let unconnected: OwnedFd = unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    };
    let table = FakeTable::new().file;
    let refused: [&[_]; 7] = [
        &[pipe.as_fd()],
        &[stream.as_fd()],
        &[tcp.as_fd()],
        &[unconnected.as_fd()],
        &[table.as_fd()],
        &[packets.as_fd(), packets.as_fd()],
        &[],
    ];
    for descriptors in refused {
        let parent = FakeLibrary::new(&scratch.path());
        parent.settle();
        parent.adopt(descriptors);
        assert!(parent.is_dropped(), "{descriptors:?}");
    }
    let nobody = FakeLibrary::at(connect(&scratch.path()), FakeTable::new());
    nobody.adopt(&[packets.as_fd()]);
    assert!(nobody.is_dropped(), "who has not said hello has no family");
}

#[test]
fn a_flood_of_children_turns_only_itself_away() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let mut flood = Vec::new();
    for _ in 0..200 {
        let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
        parent.adopt(&[theirs.as_fd()]);
        flood.push(socket);
    }
    parent.settle();
    let last = flood.pop().expect("many");
    let received = wire::try_receive(last.as_fd());
    assert!(
        matches!(received, Ok(Received::Closed)),
        "one process has no use for so many: {received:?}"
    );
    drop(flood);
    // A process that another test starts at this moment has copies of the sockets until its exec.
    let is_served = || client::ping(&scratch.path()).is_ok();
    assert!(wait_until(is_served), "there is no room again");
    parent.adopted().settle();
}

#[test]
fn a_child_that_makes_its_socket_block_holds_nobody_up() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let (socket, theirs) = socket_pair(libc::SOCK_SEQPACKET);
    parent.adopt(&[theirs.as_fd()]);
    parent.settle();
    // SAFETY: plain system call; the description is the one that the adapter has.
    let blocking = unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFL, 0) };
    assert_eq!(blocking, 0);
    let table = parent.table.again();
    let child = FakeLibrary::at(socket, table);
    child.hello(child.table.file.as_fd());
    // The socket fills up. Neither a read from it nor a write to it may stop the adapter.
    let ping = Message::new(Kind::Ping);
    for _ in 0..5000 {
        let _ = wire::try_send(child.socket.as_fd(), &ping, &[]);
    }
    parent.settle();
}

#[test]
fn a_new_program_has_the_channel_of_the_old_one() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let _other = client.pair(false, 5000, 80);
    server.pair(true, 80, 5000);
    let connected = client.pair(false, 5001, 80);
    client.settle();
    let accepted = server.pair(true, 80, 5001);
    let at_server = server.settle().pop().expect("the second offer");
    let before = client.settle().pop().expect("the second offer");
    let tail = &before.control().sides[0].publish.tail;
    tail.store(4711, Ordering::Release);

    // More programs, one after the other, than one process may have connections.
    let mut program = client;
    for _ in 0..100 {
        program = program.replaced(&scratch.path());
        let again = program.resume(connected).expect("its channel");
        assert_eq!(again.message.pair, at_server.message.pair);
        assert_eq!(again.message.slot, at_server.message.slot);
        assert_eq!(again.message.side, 0);
        assert_eq!(again.message.entry, connected.entry);
        assert_eq!(again.message.generation, connected.generation);
        assert!(again.pair.is_some(), "it has lost that mapping, too");
        let tail = &again.control().sides[0].publish.tail;
        assert_eq!(tail.load(Ordering::Acquire), 4711);
        assert_eq!(program.offers(connected), 1, "it was no news");
    }
    assert_eq!(server.command(accepted), COMMAND_NONE);
    // The last program is a client like any other.
    server.pair(true, 80, 5002);
    server.settle();
    program.pair(false, 5002, 80);
    assert!(program.offer().pair.is_some());
}

#[test]
fn what_has_ended_is_not_resumed() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let accepted = server.pair(true, 80, 5000);
    server.settle();
    let connected = client.pair(false, 5000, 80);
    client.settle();
    let waiting = client.pair(false, 5001, 80);
    client.settle();

    server.withdraw(accepted);
    server.settle();
    let program = client.replaced(&scratch.path());
    let again = program.resume(connected);
    assert!(again.is_ok(), "there may be bytes that it has not read");
    let later = FakeEnd {
        generation: connected.generation + 1,
        ..connected
    };
    let nowhere = FakeEnd {
        entry: u32::MAX,
        ..connected
    };
    program.withdraw(connected);
    for end in [waiting, later, nowhere, connected] {
        let answer = program.resume(end).err().expect("nothing to resume");
        assert_eq!(answer.side, 0);
        assert_eq!(answer.entry, end.entry);
        assert_eq!(answer.generation, end.generation);
    }
}
