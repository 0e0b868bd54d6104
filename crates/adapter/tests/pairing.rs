//! Two libraries meet through a real adapter on a real socket.

mod support;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{Adapter, FakeLibrary, FakeOffer, Scratch, connect, sockets};
use toehold_adapter::daemon::Options;
use toehold_channel::rendezvous::GOES_ON;
use toehold_channel::table::{COMMAND_NONE, COMMAND_SPARE, Reason};

#[test]
fn both_ends_of_a_connection_get_the_same_region() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());

    let accepted = server.pair(true, 80, 5000);
    assert!(server.settle().is_empty());
    assert_eq!(server.refusal(accepted), Reason::NoPartner as u32);
    assert_eq!(server.offers(accepted), 0);

    let connected = client.pair(false, 5000, 80);
    let to_client = client.offer();
    let to_server = server.offer();
    client.settle();
    assert_eq!(client.offers(connected), 1);
    assert_eq!(server.offers(accepted), 1);
    assert_eq!(server.refusal(accepted), Reason::None as u32);
    assert_eq!(to_client.message.entry, connected.entry);
    assert_eq!(to_client.message.generation, connected.generation);
    assert_eq!(to_client.message.side, 0, "the connecting end is side 0");
    assert_eq!(to_server.message.side, 1);
    assert_eq!(to_client.message.slot, to_server.message.slot);
    assert_eq!(to_client.message.pair, to_server.message.pair);
    assert!(to_client.pair.is_some() && to_server.pair.is_some());
    rings(&to_client, &to_server);
    rings(&to_server, &to_client);

    let tail = &to_client.control().sides[0].publish.tail;
    tail.store(4711, Ordering::Release);
    let seen = &to_server.control().sides[0].publish.tail;
    assert_eq!(seen.load(Ordering::Acquire), 4711);
}

#[test]
fn further_connections_of_two_processes_share_their_pair() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let mut pairs = Vec::new();
    for slot in 0..100 {
        let port = 5000 + slot;
        client.pair(false, port, 80);
        client.settle();
        server.pair(true, 80, port);
        let (to_client, to_server) = (client.offer(), server.offer());
        for offer in [&to_client, &to_server] {
            assert_eq!(offer.message.slot, u32::from(slot));
            assert_eq!(offer.pair.is_some(), slot == 0, "the pair comes once");
            assert_eq!(offer.doorbells.is_some(), slot == 0, "and its doorbells");
            pairs.push(offer.message.pair);
        }
    }
    pairs.dedup();
    assert_eq!(pairs.len(), 1);
}

#[test]
fn a_program_that_talks_to_itself_is_introduced_to_itself() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let program = FakeLibrary::new(&scratch.path());
    let accepted = program.pair(true, 80, 5000);
    let connected = program.pair(false, 5000, 80);
    let offers = program.settle();
    let entries: Vec<_> = offers.iter().map(|offer| offer.message.entry).collect();
    assert_eq!(entries, [connected.entry, accepted.entry]);
    assert!(offers[0].pair.is_some() && offers[1].pair.is_none());
    assert!(offers.iter().all(|offer| offer.doorbells.is_none()));
}

/// One process rings its peer's doorbell twice, and each time the peer's own is ready.
fn rings(from: &FakeOffer, to: &FakeOffer) {
    let [_, peers] = from.doorbells.as_ref().expect("a new pair");
    let [own, _] = to.doorbells.as_ref().expect("a new pair");
    for _ in 0..2 {
        assert!(!has_rung(own));
        (&mut &*peers).write_all(&1u64.to_ne_bytes()).expect("room");
        assert!(has_rung(own));
    }
}

/// Takes the event of an epoll instance, if there is one.
fn has_rung(own: &File) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for one event.
    unsafe { libc::epoll_wait(own.as_raw_fd(), &mut event, 1, 0) == 1 }
}

#[test]
fn a_withdrawn_connection_gives_its_slot_to_the_next() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    for round in 0..50 {
        let port = 5000 + round;
        let accepted = server.pair(true, 80, port);
        server.settle();
        let connected = client.pair(false, port, 80);
        assert_eq!(client.offer().message.slot, 0);
        assert_eq!(server.offer().message.slot, 0);
        for (library, end) in [(&server, accepted), (&client, connected)] {
            library.table.close(end.entry);
            library.withdraw(end);
            library.settle();
        }
    }
}

#[test]
fn an_entry_that_has_moved_on_is_not_met() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let accepted = server.pair(true, 80, 5000);
    server.settle();
    server.table.close(accepted.entry);
    let connected = client.pair(false, 5000, 80);
    assert!(client.settle().is_empty());
    assert_eq!(client.refusal(connected), Reason::NoPartner as u32);
    assert!(server.settle().is_empty());
}

#[test]
fn processes_of_one_family_share_their_table() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let parent = FakeLibrary::new(&scratch.path());
    let child = FakeLibrary::at(connect(&scratch.path()), parent.table.again());
    use std::os::fd::AsFd;
    child.hello(child.table.file.as_fd());
    let client = FakeLibrary::new(&scratch.path());

    let of_parent = parent.pair(true, 80, 5000);
    parent.settle();
    let of_child = child.pair(true, 80, 5001);
    child.settle();
    client.pair(false, 5000, 80);
    client.pair(false, 5001, 80);
    let (to_parent, to_child) = (parent.offer(), child.offer());
    assert_eq!(to_parent.message.entry, of_parent.entry);
    assert_eq!(to_child.message.entry, of_child.entry);
    assert_ne!(to_parent.message.pair, to_child.message.pair);
    // The process that closes last may say so, whichever it is.
    child.withdraw(of_parent);
    assert!(child.settle().is_empty());
}

#[test]
fn ten_thousand_connections_are_paired() {
    const CONNECTIONS: u16 = 10_000;
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let mut slots = Vec::new();
    for first in (0..CONNECTIONS).step_by(100) {
        let ports = (first..first + 100).map(|n| 20_000 + n);
        for port in ports.clone() {
            server.pair(true, 81, port);
        }
        server.settle();
        for port in ports.clone() {
            client.pair(false, port, 81);
        }
        slots.extend(client.settle().iter().map(|offer| offer.message.slot));
        server.settle();
        // Two descriptors for each connection are more than a process may have on some hosts.
        for port in ports {
            sockets::close(81, port);
        }
    }
    slots.sort_unstable();
    let expected: Vec<u32> = (0..u32::from(CONNECTIONS)).collect();
    assert_eq!(slots, expected);
}

#[test]
fn offers_wait_for_a_program_that_is_busy() {
    const CONNECTIONS: u16 = 1000;
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    // The messages are far more than a socket holds, and neither side reads its own.
    let ends: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let accepted = server.pair(true, 80, 20_000 + n);
            (accepted, client.pair(false, 20_000 + n, 80))
        })
        .collect();
    let to_client = client.settle_until(|| ends.iter().all(|end| client.offers(end.1) == 1));
    let to_server = server.settle_until(|| ends.iter().all(|end| server.offers(end.0) == 1));
    for offers in [to_client, to_server] {
        assert_eq!(offers.len(), usize::from(CONNECTIONS));
        assert_eq!(
            offers.iter().filter(|offer| offer.pair.is_some()).count(),
            1
        );
    }
}

#[test]
fn when_regions_run_out_the_least_active_go_first() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start_with(Options {
        foreground: false,
        regions_max: 4,
        sample_interval: Duration::from_millis(1),
        ..Options::foreground(scratch.path())
    });
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let mut ends = Vec::new();
    for port in 5000..5005 {
        let accepted = server.pair(true, 80, port);
        server.settle();
        ends.push((accepted, client.pair(false, port, 80)));
        client.settle();
    }
    let (waiting, _) = ends.pop().expect("five");
    assert_eq!(server.offers(waiting), 0, "four regions are all there are");
    assert_eq!(server.refusal(waiting), Reason::NoResources as u32);

    // All connections but one are busy, until the adapter tells that one to give way.
    let (idle, idle_connected) = ends.remove(2);
    server.settle_until(|| {
        for (accepted, connected) in &ends {
            server
                .table
                .entry(accepted.entry)
                .tx_ring
                .fetch_add(1, Ordering::Relaxed);
            // A connection that seemed idle only because this thread could not run.
            server.keep_region(*accepted);
            client.keep_region(*connected);
        }
        server.command(idle) == COMMAND_SPARE
    });
    for (accepted, connected) in &ends {
        assert_eq!(server.command(*accepted), COMMAND_NONE);
        assert_eq!(client.command(*connected), COMMAND_NONE);
    }
    assert_eq!(client.command(idle_connected), COMMAND_SPARE);
    client.withdraw(idle_connected);
    client.settle();
    server.withdraw(idle);
    server.settle_until(|| server.offers(waiting) == 1);
    assert_eq!(server.command(idle), COMMAND_NONE, "it may ask again");
    assert_eq!(client.command(idle_connected), COMMAND_NONE);
}

/// The number of times that the adapter called the attention of a server. The server shared as many
/// channels with a client as fit into one turn of the adapter. The client has given up all of them
/// in that turn, with `goes_on` in its messages.
fn calls_of_one_turn(goes_on: u32) -> u32 {
    const CHANNELS: u16 = 20;
    let scratch = Scratch::new();
    let options = Options {
        foreground: false,
        ..Options::foreground(scratch.path())
    };
    let mut libraries = None;
    let _adapter = Adapter::start_after(options, || {
        let server = FakeLibrary::new(&scratch.path());
        let client = FakeLibrary::new(&scratch.path());
        let ports = 5000..5000 + CHANNELS;
        for port in ports.clone() {
            server.pair(true, 80, port);
        }
        for port in ports {
            let connected = client.pair(false, port, 80);
            client.give_up(connected, goes_on);
        }
        libraries = Some((server, client));
    });
    let (server, client) = libraries.expect("both have come");
    client.settle();
    // A turn ends with the calls: the calls of the turn before have been made.
    let offers = server.settle().len() + server.settle().len();
    assert_eq!(offers, usize::from(CHANNELS), "the server came first");
    server.attention()
}

#[test]
fn channels_given_back_in_one_turn_call_their_peers_attention_once() {
    let none = calls_of_one_turn(0);
    assert_eq!(calls_of_one_turn(GOES_ON), none + 1);
}

#[test]
fn connections_that_end_call_nobodys_attention() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    let accepted = server.pair(true, 80, 5000);
    server.settle();
    let connected = client.pair(false, 5000, 80);
    client.offer();
    server.offer();
    let before = server.attention();
    client.withdraw(connected);
    client.settle();
    server.settle();
    assert_eq!(server.attention(), before);
    server.withdraw(accepted);
    server.settle();
}
