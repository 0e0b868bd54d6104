//! Two libraries meet through a real adapter on a real socket.

mod support;

use std::sync::atomic::Ordering;
use support::{Adapter, FakeLibrary, Scratch};
use toehold_channel::table::Reason;

#[test]
fn both_ends_of_a_connection_get_the_same_region() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());

    let accepted = server.pair(true, 80, 5000);
    assert!(server.settle().is_empty());
    assert_eq!(server.verdict(accepted), Reason::NoPartner as u32);
    assert_eq!(server.offers(accepted), 0);

    let connected = client.pair(false, 5000, 80);
    let to_client = client.offer();
    let to_server = server.offer();
    client.settle();
    assert_eq!(client.offers(connected), 1);
    assert_eq!(server.offers(accepted), 1);
    assert_eq!(server.verdict(accepted), Reason::None as u32);
    assert_eq!(to_client.message.entry, connected.entry);
    assert_eq!(to_client.message.generation, connected.generation);
    assert_eq!(to_client.message.side, 0, "the connecting end is side 0");
    assert_eq!(to_server.message.side, 1);
    assert_eq!(to_client.message.slot, to_server.message.slot);
    assert_eq!(to_client.message.pair, to_server.message.pair);
    assert!(to_client.pair.is_some() && to_server.pair.is_some());

    let tail = &to_client.control().sides[0].publish.tail;
    tail.store(4711, Ordering::Release);
    let seen = &to_server.control().sides[0].publish.tail;
    assert_eq!(seen.load(Ordering::Acquire), 4711);
}
