//! Clients that send nonsense, send too much, or send nothing at all. The adapter drops them and
//! serves the others.

mod support;

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use support::program::Program;
use support::{Adapter, FakeLibrary, FakeTable, Scratch, connect, send_many};
use toehold_adapter::client;
use toehold_adapter::memfd;
use toehold_adapter::wire::{self, Received};
use toehold_channel::rendezvous::{Kind, MESSAGE_BYTES, Message, MessageError};
use toehold_channel::table::{ENTRIES, ENTRIES_OFFSET, EntryState, Reason, TABLE_BYTES};

/// The adapter still introduces two honest programs.
fn assert_serves(scratch: &Scratch) {
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    server.pair(true, 443, 7000);
    server.settle();
    client.pair(false, 7000, 443);
    client.offer();
    server.offer();
}

fn send_raw(socket: BorrowedFd<'_>, bytes: &[u8]) {
    // SAFETY: `bytes` is valid for its length.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    assert_eq!(sent, bytes.len() as isize);
}

fn is_dropped(socket: OwnedFd) -> bool {
    let library = FakeLibrary::at(socket, FakeTable::new());
    library.is_dropped()
}

#[test]
fn what_is_no_request_is_answered_by_the_door() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let mut unknown = Message::new(Kind::Ping);
    unknown.kind = 77;
    let mut foreign = Message::new(Kind::Ping);
    foreign.magic = 1;
    let mut long = Message::new(Kind::Ping).as_bytes().to_vec();
    long.push(0);
    let nonsense: Vec<Vec<u8>> = vec![
        vec![0],
        vec![0xff; MESSAGE_BYTES],
        vec![7; 60_000],
        long,
        unknown.as_bytes().to_vec(),
        foreign.as_bytes().to_vec(),
        Message::new(Kind::Offer).as_bytes().to_vec(),
        Message::new(Kind::Answer).as_bytes().to_vec(),
        Message::new(Kind::Hello).as_bytes().to_vec(),
        Message::new(Kind::Pair).as_bytes().to_vec(),
        Message::new(Kind::Withdraw).as_bytes().to_vec(),
        Message::new(Kind::Adopt).as_bytes().to_vec(),
        Message::new(Kind::Resume).as_bytes().to_vec(),
    ];
    for bytes in nonsense {
        let socket = connect(&scratch.path());
        send_raw(socket.as_fd(), &bytes);
        assert!(is_dropped(socket), "{} bytes", bytes.len());
    }
    assert_serves(&scratch);
}

#[test]
fn another_version_learns_ours_and_is_dropped() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let socket = connect(&scratch.path());
    let mut ping = Message::new(Kind::Ping);
    ping.version += 1;
    wire::send(socket.as_fd(), &ping, &[]).expect("sent");
    let answer = wire::receive(socket.as_fd()).expect("received");
    assert!(
        matches!(answer, Received::Message(_, Kind::Answer, _)),
        "{answer:?}"
    );
    assert!(is_dropped(socket));
    assert_serves(&scratch);
}

#[test]
fn an_adapter_of_another_version_is_recognized() {
    let mut answer = Message::new(Kind::Answer);
    answer.version = 99;
    let parsed = Message::parse(answer.as_bytes());
    assert_eq!(
        parsed.expect_err("another version"),
        MessageError::Version(99)
    );
    let error = client::ClientError::OtherVersion { theirs: 99 };
    assert!(error.to_string().contains("another version"));
}

#[test]
fn tables_that_could_vanish_or_are_none_are_refused() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let plain = tempfile::tempfile().expect("file");
    plain.set_len(TABLE_BYTES as u64).expect("length");
    // SAFETY: the name is a C string; the descriptor is nobody else's.
    let unsealed =
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"table".as_ptr(), libc::MFD_CLOEXEC)) };
    File::from(unsealed.try_clone().expect("dup"))
        .set_len(TABLE_BYTES as u64)
        .expect("length");
    let short = memfd::create(c"table", 4096).expect("memfd");
    let no_header = memfd::create(c"table", TABLE_BYTES).expect("memfd");
    let (pipe, _writer) = std::io::pipe().expect("pipe");
    let other_version = FakeTable::new();
    other_version
        .words()
        .header()
        .version
        .store(77, Ordering::Relaxed);
    let refused: [OwnedFd; 6] = [
        plain.into(),
        unsealed,
        short,
        no_header,
        pipe.into(),
        other_version.file,
    ];
    for table in refused {
        let socket = connect(&scratch.path());
        wire::send(socket.as_fd(), &Message::new(Kind::Hello), &[table.as_fd()]).expect("sent");
        assert!(is_dropped(socket));
    }
    assert_serves(&scratch);
}

#[test]
fn hello_is_said_once_with_one_table() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let twice = FakeLibrary::new(&scratch.path());
    twice.hello(twice.table.file.as_fd());
    assert!(twice.is_dropped());

    let two_tables = connect(&scratch.path());
    let (one, other) = (FakeTable::new(), FakeTable::new());
    let tables = [one.file.as_fd(), other.file.as_fd()];
    wire::send(two_tables.as_fd(), &Message::new(Kind::Hello), &tables).expect("sent");
    assert!(is_dropped(two_tables));

    let ping_with_table = connect(&scratch.path());
    let sent = wire::send(
        ping_with_table.as_fd(),
        &Message::new(Kind::Ping),
        &tables[..1],
    );
    sent.expect("sent");
    assert!(is_dropped(ping_with_table));
    assert_serves(&scratch);
}

#[test]
fn a_flood_of_descriptors_leaves_none_behind() {
    const DESCRIPTORS: usize = 100;
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let file = tempfile::tempfile().expect("file");
    for _ in 0..20 {
        let socket = connect(&scratch.path());
        send_many(
            &socket,
            &Message::new(Kind::Ping),
            &[file.as_fd(); DESCRIPTORS],
        );
        assert!(is_dropped(socket));
    }
    // The adapter runs in this process: a file that it kept would be among our descriptors.
    let own = std::fs::read_dir("/proc/self/fd").expect("own descriptors");
    let target = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let target = target.expect("own file");
    let links = own.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    assert_eq!(links.filter(|link| *link == target).count(), 1);
    assert_serves(&scratch);
}

#[test]
fn a_flood_of_connections_turns_only_itself_away() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let first = FakeLibrary::new(&scratch.path());
    first.settle();
    let mut flood: Vec<OwnedFd> = (0..200).map(|_| connect(&scratch.path())).collect();
    let last = flood.pop().expect("many");
    assert!(is_dropped(last), "one process has no use for so many");
    assert!(
        first.settle().is_empty(),
        "who was there before is still served"
    );
    drop(flood);
    first.settle();
    assert_serves(&scratch);
}

/// An adapter with a limit on descriptors; the test passes the limit as a port.
#[test]
#[ignore = "run by the tests of this file, in another process"]
fn role() {
    let (_, dir) = support::program::role();
    // Descriptors that this process has inherited would count. SAFETY: nothing in this process uses
    // a descriptor but the first three.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
    let descriptors = u64::from(support::program::port());
    let limit = libc::rlimit {
        rlim_cur: descriptors,
        rlim_max: descriptors,
    };
    // SAFETY: `limit` is valid; nothing else runs in this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let _adapter = Adapter::start(&dir);
    support::program::stay();
}

const DESCRIPTORS_FEW: u16 = 30;

#[test]
fn an_adapter_out_of_descriptors_turns_away_whom_it_cannot_serve_and_goes_on() {
    // A client takes two descriptors: with the one limit none is left at the end, with the next one
    // is.
    for descriptors in [DESCRIPTORS_FEW, DESCRIPTORS_FEW + 1] {
        fill_and_go_on(descriptors);
    }
}

fn fill_and_go_on(descriptors: u16) {
    let scratch = Scratch::new();
    let mut program = Program::start("few-descriptors", &scratch.path(), descriptors);
    program.wait_until_ready();
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let accepted = server.pair(true, 80, 5000);
    server.settle();
    let mut flood: Vec<OwnedFd> = (0..descriptors).map(|_| connect(&scratch.path())).collect();
    let last = flood.pop().expect("many");
    assert!(
        is_dropped(last),
        "a socket and a process each, and there are not so many"
    );
    client.pair(false, 5000, 80);
    client.settle();
    assert_eq!(server.offers(accepted), 0, "no descriptor for a region");
    assert_eq!(
        server.refusal(accepted),
        Reason::NoResources as u32,
        "with {descriptors} descriptors"
    );
    drop(flood);
    server.settle_until(|| server.offers(accepted) == 1);
}

#[test]
fn channels_that_have_ended_leave_no_descriptor_behind() {
    let scratch = Scratch::new();
    let mut program = Program::start("few-descriptors", &scratch.path(), DESCRIPTORS_FEW);
    program.wait_until_ready();
    let server = FakeLibrary::new(&scratch.path());
    for port in 0..3 * DESCRIPTORS_FEW {
        // A new client each time makes a new pair each time.
        let client = FakeLibrary::new(&scratch.path());
        let accepted = server.pair(true, 80, 5000 + port);
        server.settle();
        let connected = client.pair(false, 5000 + port, 80);
        client.settle();
        assert_eq!(client.offers(connected), 1, "channel {port}");
        client.withdraw(connected);
        client.settle();
        drop(client);
        // The client's offer comes while there is memory for it.
        server.settle();
        server.withdraw(accepted);
        server.settle();
    }
}

#[test]
fn a_client_that_does_not_listen_is_dropped() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let deaf = connect(&scratch.path());
    let ping = Message::new(Kind::Ping);
    // The client never receives: the adapter's answers fill the client's socket, then the adapter's
    // limit.
    while wire::send(deaf.as_fd(), &ping, &[]).is_ok() {}
    assert_serves(&scratch);
}

#[test]
fn requests_about_entries_that_do_not_exist_cost_nothing() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    for entry in [0, 5, ENTRIES as u32 - 1, ENTRIES as u32, u32::MAX] {
        let end = support::FakeEnd {
            entry,
            generation: 1,
            local_port: 1,
            remote_port: 2,
        };
        library.ask(end);
        library.withdraw(end);
    }
    assert!(library.settle().is_empty());
    assert_serves(&scratch);
}

#[test]
fn a_table_that_changes_under_the_adapters_eyes_harms_nobody_else() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let hostile = FakeLibrary::new(&scratch.path());
    let table_file = hostile.table.file.try_clone().expect("dup");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| scribble(table_file, &done));
        let _done = support::Done(&done);
        for round in 0..100u32 {
            for entry in 0..64 {
                let generation = hostile
                    .table
                    .entry(entry)
                    .channel_generation
                    .load(Ordering::Relaxed);
                let (local_port, remote_port) = if entry % 2 == 0 { (1, 2) } else { (2, 1) };
                let end = support::FakeEnd {
                    entry,
                    generation,
                    local_port,
                    remote_port,
                };
                hostile.ask(end);
                if round % 3 == 0 {
                    hostile.withdraw(end);
                }
            }
            hostile.settle();
            client::status(&scratch.path()).expect("status");
            client::detach(&scratch.path(), 0, None).expect("detach");
        }
    });
    assert_serves(&scratch);
}

/// Rewrites the first entries and the header again and again, from one seed.
fn scribble(table: OwnedFd, done: &std::sync::atomic::AtomicBool) {
    let mut file = File::from(table);
    let mut random = fastrand::Rng::with_seed(1);
    while !done.load(Ordering::Relaxed) {
        let mut words = Vec::with_capacity(64 * 256);
        for index in 0..64 * 256 / 8 {
            let word = random.u64(..);
            let is_state = index % 32 == 0;
            // Some entries must be live: the adapter does not read the rest of an entry that is
            // not.
            let word = if is_state {
                EntryState::Live as u64 | (word & 3) << 32
            } else {
                word
            };
            words.extend(word.to_ne_bytes());
        }
        file.seek(std::io::SeekFrom::Start(ENTRIES_OFFSET as u64))
            .expect("seek");
        file.write_all(&words).expect("write");
        file.seek(std::io::SeekFrom::Start(16)).expect("seek");
        file.write_all(&words[8..96]).expect("write");
    }
}
