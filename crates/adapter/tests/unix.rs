//! Tests of claims about Unix sockets: two sockets are paired when they name each other, and not
//! otherwise.

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use support::{Adapter, FakeLibrary, Scratch};
use toehold_channel::table::Reason;

/// A listener at a path of its own.
struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    fn at(dir: &Path, name: &str) -> Listener {
        let path = dir.join(name);
        let listener = UnixListener::bind(&path).expect("bound");
        Listener { listener, path }
    }

    /// Client and server.
    fn connection(&self) -> (UnixStream, UnixStream) {
        let client = UnixStream::connect(&self.path).expect("connected");
        (client, self.listener.accept().expect("accepted").0)
    }
}

fn refused(library: &FakeLibrary, accepted: bool, shown: &impl AsFd) -> u32 {
    let end = library.pair_showing(accepted, shown.as_fd());
    assert!(library.settle().is_empty());
    library.refusal(end)
}

#[test]
fn two_ends_of_a_connection_are_paired() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let [client_s, server_s] = [0; 2].map(|_| FakeLibrary::new(&scratch.path()));
    let listener = Listener::at(&scratch.path(), "service");
    let (client, server) = listener.connection();
    client_s.pair_showing(false, client.as_fd());
    assert!(client_s.settle().is_empty());
    server_s.pair_showing(true, server.as_fd());
    server_s.offer();
    client_s.offer();
}

#[test]
fn ends_of_different_connections_to_one_path_are_not_paired() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let [honest, other] = [0; 2].map(|_| FakeLibrary::new(&scratch.path()));
    let listener = Listener::at(&scratch.path(), "service");
    let (first_client, first_server) = listener.connection();
    let (second_client, second_server) = listener.connection();
    let no_partner = Reason::NoPartner as u32;
    assert_eq!(refused(&honest, false, &first_client), no_partner);
    assert_eq!(refused(&other, true, &second_server), no_partner);
    // A socket that two processes have claims one connection.
    let shared = Reason::Shared as u32;
    assert_eq!(refused(&other, false, &first_client), shared);
    assert!(honest.settle().is_empty());
    other.pair_showing(true, first_server.as_fd());
    other.offer();
    honest.offer();
    honest.pair_showing(false, second_client.as_fd());
    honest.offer();
    other.offer();
}

/// A path is removed, and another process binds it again.
#[test]
fn a_path_says_nothing_about_who_listened_there() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let [honest, attacker] = [0; 2].map(|_| FakeLibrary::new(&scratch.path()));
    let listener = Listener::at(&scratch.path(), "service");
    let (client, _server) = listener.connection();
    let no_partner = Reason::NoPartner as u32;
    assert_eq!(refused(&honest, false, &client), no_partner);
    std::fs::remove_file(&listener.path).expect("there");
    let twin = Listener::at(&scratch.path(), "service");
    let (twin_client, twin_server) = twin.connection();
    assert_eq!(refused(&attacker, true, &twin_server), no_partner);
    assert!(honest.settle().is_empty());
    attacker.pair_showing(false, twin_client.as_fd());
    attacker.offer();
    attacker.offer();
    assert!(honest.settle().is_empty());
}

#[test]
fn what_is_no_connected_stream_claims_nothing() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let listener = Listener::at(&scratch.path(), "service");
    let closing = Reason::Closing as u32;
    assert_eq!(refused(&library, true, &listener.listener), closing);
    let (datagrams, _other) = UnixDatagram::pair().expect("a pair");
    assert_eq!(refused(&library, false, &datagrams), Reason::NotTcp as u32);
    let (sequenced, _other) = support::socket_pair(libc::SOCK_SEQPACKET);
    assert_eq!(refused(&library, false, &sequenced), Reason::NotTcp as u32);
    let (client, server) = listener.connection();
    drop(server);
    assert_eq!(refused(&library, false, &client), closing);
    // The connection is not accepted yet: no process has its other end.
    let early = UnixStream::connect(&listener.path).expect("connected");
    assert_eq!(refused(&library, false, &early), closing);
    let unbound = UnixStream::pair().expect("a pair");
    let claimed = refused(&library, false, &unbound.0);
    assert_eq!(claimed, Reason::NoPartner as u32);
}

/// The first socket is closed between the first claim and the second.
#[test]
fn a_claim_ends_with_its_socket() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let [first, second] = [0; 2].map(|_| FakeLibrary::new(&scratch.path()));
    let listener = Listener::at(&scratch.path(), "service");
    let (client, server) = listener.connection();
    assert_eq!(refused(&first, false, &client), Reason::NoPartner as u32);
    drop(client);
    assert_eq!(refused(&second, true, &server), Reason::Closing as u32);
    assert!(first.settle().is_empty());
}

/// Two families show the two sockets that a third family made: a process that holds a socket may
/// claim its connection.
#[test]
fn a_socket_pair_is_a_connection_as_well() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let [one, other] = [0; 2].map(|_| FakeLibrary::new(&scratch.path()));
    let (left, right): (OwnedFd, OwnedFd) = support::socket_pair(libc::SOCK_STREAM);
    one.pair_showing(false, left.as_fd());
    assert!(one.settle().is_empty());
    other.pair_showing(false, right.as_fd());
    other.offer();
    one.offer();
}
