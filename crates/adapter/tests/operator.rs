//! Tests of the command line's requests, and of how an adapter starts and ends.

mod support;

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{Adapter, FakeLibrary, Scratch, sockets, try_connect};
use toehold_adapter::client::{self, ClientError};
use toehold_adapter::daemon::{Daemon, Error, Options};
use toehold_adapter::engine::settings::Draft;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_NONE, EntryState, FLAG_ASKED, LAYOUT_VERSION, Mode, Reason,
};

fn quiet(dir: &Path) -> Options {
    Options {
        foreground: false,
        ..Options::foreground(dir.into())
    }
}

fn status(scratch: &Scratch) -> serde_json::Value {
    let text = client::status(&scratch.path()).expect("status");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn an_adapter_says_who_it_is() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let info = client::ping(&scratch.path()).expect("answer");
    assert_eq!(info.pid, std::process::id());
    assert_eq!(info.layout_version, LAYOUT_VERSION);
    let socket = scratch.path().join("adapter.sock");
    let mode = socket.metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn status_reports_why_there_is_no_engine() {
    let scratch = Scratch::new();
    let mut draft = Draft::default();
    for (word, value) in [("link", "packet:nosuch0"), ("address", "10.84.0.2/24")] {
        draft.set(word, value).expect("a setting");
    }
    let options = Options {
        engine: draft.finish().expect("settings"),
        ..quiet(&scratch.path())
    };
    let _adapter = Adapter::start_with(options);
    let report = status(&scratch);
    assert!(report["engine"].is_null());
    // With the privilege, the missing interface is the reason.
    let why = report["no_engine"].as_str().expect("a reason");
    assert!(
        why.contains("nosuch0") || why.contains("CAP_NET_RAW"),
        "{why}"
    );
}

#[test]
fn status_reports_paths_reasons_and_counts() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let alone = library.pair(true, 80, 5000);
    let talking = library.pair(true, 80, 5001);
    library.settle();
    let entry = library.table.entry(talking.entry);
    entry.tx_mode.store(Mode::Ring as u32, Ordering::Relaxed);
    entry.tx_ring.store(1000, Ordering::Relaxed);
    entry.tx_calls.store(10, Ordering::Relaxed);
    entry.doorbells.store(3, Ordering::Relaxed);
    entry.tx_carrier.store(53, Ordering::Relaxed);
    let partner = library.pair(false, 5001, 80);
    library.settle();
    let heard = library.table.entry(partner.entry);
    heard.rx_carrier.store(53, Ordering::Relaxed);

    let report = status(&scratch);
    let process = &report["processes"][0];
    assert_eq!(process["pid"], std::process::id());
    assert_eq!(process["program"], "fake-program");
    assert_eq!(process["wait"], "adaptive");
    let connections = process["connections"].as_array().expect("list");
    let of = |end: support::FakeEnd| {
        let (local, remote) = sockets::addresses(end.local_port, end.remote_port);
        let (local, remote) = (local.to_string(), remote.to_string());
        connections
            .iter()
            .find(|c| c["local"] == *local && c["remote"] == *remote)
            .expect("listed")
    };
    assert_eq!(of(alone)["path"], "host");
    // This process holds the other end, too, and does not run under Toehold.
    assert_eq!(of(alone)["reason"], "the other end is not under Toehold");
    let talking = of(talking);
    assert_eq!(talking["path"], "direct");
    assert_eq!(talking["tx_path"], "direct");
    assert_eq!(talking["rx_path"], "host");
    assert_eq!(talking["bytes_ring_tx"], 1000);
    assert_eq!(talking["bytes_host_tx"], 50, "doorbells are nobody's bytes");
    assert_eq!(of(partner)["bytes_host_rx"], 50);
    assert_eq!(talking["copies"], 10);
    assert_eq!(talking["syscalls_avoided"], 7);
    for field in [
        "fd",
        "bytes_host_rx",
        "bytes_ring_rx",
        "upgrades",
        "downgrades",
        "doorbells_suppressed",
        "wakeups",
        "spins_paid",
        "spins_failed",
    ] {
        assert!(talking[field].is_u64(), "{field}");
    }
}

#[test]
fn status_finds_the_addresses_of_connections_that_never_asked() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (entry, _) = library.table.open(stream.as_raw_fd() as u32, false);
    let flags = &library.table.entry(entry).flags;
    flags.fetch_and(!FLAG_ASKED, Ordering::Relaxed);

    let report = status(&scratch);
    let connection = &report["processes"][0]["connections"][0];
    let local = stream.local_addr().expect("address").to_string();
    let remote = stream.peer_addr().expect("address").to_string();
    assert_eq!(connection["local"], local);
    assert_eq!(connection["remote"], remote);
    assert_eq!(connection["reason"], Reason::FewBytes.words());
}

#[test]
fn status_reports_a_partner_that_exists_and_has_not_asked() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let _accepted = listener.accept().expect("accept");
    let (pinned, _) = library.table.open(stream.as_raw_fd() as u32, false);
    let pinned = library.table.entry(pinned);
    pinned.flags.fetch_and(!FLAG_ASKED, Ordering::Relaxed);
    let stdio = Reason::Stdio;
    pinned.reason.store(stdio as u32, Ordering::Relaxed);
    let here = stream.local_addr().expect("address").port();
    let there = stream.peer_addr().expect("address").port();
    library.pair(true, there, here);
    library.settle();

    let report = status(&scratch);
    let connections = &report["processes"][0]["connections"];
    let reasons: Vec<_> = connections.as_array().expect("list").iter().collect();
    let reason_of = |port: u16| {
        let local = format!("127.0.0.1:{port}");
        let one = reasons.iter().find(|one| one["local"] == *local);
        one.expect("listed")["reason"].clone()
    };
    assert_eq!(reason_of(here), stdio.words());
    let of_other = format!("the other end: {}", stdio.words());
    assert_eq!(reason_of(there), of_other);
}

#[test]
fn status_does_not_list_the_dead() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let own_pid = std::process::id();
    library.table.words().header().family[0].store(own_pid, Ordering::Relaxed);
    let mut child = std::process::Command::new("true").spawn().expect("true");
    child.wait().expect("our child");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("address").port();
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    let (_accepted, remote) = listener.accept().expect("accept");
    let held = library.pair(true, port, remote.port());
    let closed = sockets::connection();
    let lost = library.pair_showing(true, closed.0.as_fd());
    library.settle();
    drop(closed);
    for end in [held, lost] {
        let entry = library.table.entry(end.entry);
        entry.pid.store(child.id(), Ordering::Relaxed);
    }

    let report = status(&scratch);
    let processes = report["processes"].as_array().expect("list");
    assert_eq!(processes.len(), 1, "{report}");
    assert_eq!(processes[0]["pid"], own_pid);
    let connections = processes[0]["connections"].as_array().expect("list");
    assert_eq!(connections.len(), 1, "{report}");
    let client = stream.local_addr().expect("address").to_string();
    assert_eq!(connections[0]["remote"], client);
    let state =
        |end: support::FakeEnd| library.table.entry(end.entry).state.load(Ordering::Relaxed);
    assert_eq!(state(held), EntryState::Live as u32);
    assert_eq!(state(lost), EntryState::Free as u32);
}

#[test]
fn detach_reaches_what_it_names_and_attach_withdraws_it() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let ends: Vec<_> = (0..4).map(|n| library.pair(true, 80 + n, 5000)).collect();
    library.settle();
    let dir = scratch.path();
    let own_pid = std::process::id();
    let detached = || {
        ends.iter()
            .filter(|&&end| library.command(end) == COMMAND_DETACH)
            .count()
    };

    assert_eq!(client::detach(&dir, own_pid, Some(81)).expect("answer"), 1);
    assert_eq!(library.command(ends[1]), COMMAND_DETACH);
    assert_eq!(detached(), 1);
    assert_eq!(client::detach(&dir, own_pid + 1, None).expect("answer"), 0);
    assert_eq!(client::detach(&dir, own_pid, None).expect("answer"), 3);
    assert_eq!(detached(), 4);
    assert_eq!(client::attach(&dir, 0, Some(82)).expect("answer"), 1);
    assert_eq!(client::attach(&dir, 0, None).expect("answer"), 3);
    assert_eq!(detached(), 0);
}

#[test]
fn a_detached_connection_is_not_paired_until_it_may_be() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let library = FakeLibrary::new(&scratch.path());
    let accepted = library.pair(true, 80, 5000);
    library.settle();
    client::detach(&scratch.path(), 0, None).expect("answer");
    library.ask(accepted);
    library.settle();
    assert_eq!(library.refusal(accepted), Reason::Detached as u32);
    client::attach(&scratch.path(), 0, None).expect("answer");
    assert_eq!(library.command(accepted), COMMAND_NONE);
    library.ask(accepted);
    library.settle();
    assert_eq!(library.refusal(accepted), Reason::NoPartner as u32);
}

#[test]
fn without_an_adapter_the_command_line_says_so() {
    let scratch = Scratch::new();
    let missing = client::ping(&scratch.path()).expect_err("no directory");
    assert!(matches!(missing, ClientError::NoAdapter(_)), "{missing}");
    Adapter::start(&scratch.path()).stop();
    let stopped = client::ping(&scratch.path()).expect_err("no socket");
    assert!(matches!(stopped, ClientError::NoAdapter(_)), "{stopped}");
    leave_stale_socket(&scratch.path());
    let stale = client::ping(&scratch.path()).expect_err("nobody listens");
    assert!(matches!(stale, ClientError::StaleSocket(_)), "{stale}");
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o777)).expect("mode");
    let open = client::ping(&scratch.path()).expect_err("others could be the adapter");
    assert!(matches!(open, ClientError::RuntimeDir(_)), "{open}");
}

/// Leaves a socket behind, as an adapter does that was killed.
fn leave_stale_socket(dir: &Path) {
    let options = quiet(dir);
    let daemon = Daemon::bind(options).expect("bound");
    let socket = dir.join("adapter.sock");
    let aside = dir.join("aside");
    std::fs::rename(&socket, &aside).expect("renamed");
    drop(daemon);
    std::fs::rename(&aside, &socket).expect("renamed");
}

#[test]
fn a_second_adapter_names_the_first_and_leaves_it_alone() {
    let scratch = Scratch::new();
    let _adapter = Adapter::start(&scratch.path());
    let error = Daemon::bind(quiet(&scratch.path())).expect_err("there is one");
    let Error::AlreadyRunning { pid, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*pid, Some(std::process::id()));
    assert!(error.to_string().contains("already running"));
    client::ping(&scratch.path()).expect("still there");
}

#[test]
fn a_dead_adapters_socket_is_taken_over() {
    let scratch = Scratch::new();
    Adapter::start(&scratch.path()).stop();
    leave_stale_socket(&scratch.path());
    assert!(try_connect(&scratch.path()).is_err());
    let _adapter = Adapter::start(&scratch.path());
    client::ping(&scratch.path()).expect("answer");
}

#[test]
fn libraries_meet_again_after_a_restart() {
    let scratch = Scratch::new();
    let adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::new(&scratch.path());
    let client = FakeLibrary::new(&scratch.path());
    server.pair(true, 80, 5000);
    server.settle();
    client.pair(false, 5000, 80);
    let established = client.offer();
    adapter.stop();
    assert!(server.is_dropped() && client.is_dropped());
    assert_eq!(
        established.control().sides[0]
            .publish
            .tail
            .load(Ordering::Relaxed),
        0
    );

    let _adapter = Adapter::start(&scratch.path());
    let server = FakeLibrary::with_table(&scratch.path(), server.table);
    let client = FakeLibrary::with_table(&scratch.path(), client.table);
    server.pair(true, 80, 5001);
    server.settle();
    client.pair(false, 5001, 80);
    assert!(client.offer().pair.is_some());
    assert!(server.offer().pair.is_some());
}

#[test]
fn an_idle_adapter_leaves_and_takes_its_socket_along() {
    let scratch = Scratch::new();
    let mut adapter = Adapter::start_with(Options {
        idle_exit: Some(Duration::from_millis(50)),
        ..quiet(&scratch.path())
    });
    let library = FakeLibrary::new(&scratch.path());
    library.settle();
    drop(library);
    adapter.join();
    assert!(!scratch.path().join("adapter.sock").exists());
}
