//! The generator against itself: every pattern moves and counts its bytes.

use std::thread;

use super::*;

fn server(address: &str) -> Address {
    let server = Server::bind(&address.parse().expect("an address")).expect("a free address");
    let address = server.address().expect("a name");
    thread::spawn(move || server.serve());
    address
}

fn load(pattern: Pattern) -> Load {
    Load {
        pattern,
        seconds: 0.05,
        warmup: 0.01,
        ..Load::default()
    }
}

/// The outcome of a load. The load lasts longer each time until an operation falls into it: a busy
/// host may give the first loads no time at all.
fn with_operations(
    mut load: Load,
    run: impl Fn(&Load) -> Result<Outcome, String>,
) -> Result<Outcome, String> {
    loop {
        match run(&load) {
            Err(why) if why.contains(NOTHING) && load.seconds < 10.0 => load.seconds *= 4.0,
            outcome => return outcome,
        }
    }
}

const NOTHING: &str = "nothing was measured";

/// A server that answers a connection's first message when the load is over.
#[test]
fn a_load_without_a_completed_operation_is_no_result() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let address: Address = address.parse().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut first = [0; 32 + 64];
                stream.read_exact(&mut first[..32])?;
                // Connections of the pattern `connect` send no other byte.
                if first[4] == 0 {
                    stream.read_exact(&mut first[32..])?;
                }
                thread::sleep(session::seconds(0.01 + 0.05));
                stream.write_all(&first[32..])?;
                std::io::copy(&mut stream, &mut std::io::sink())
            });
        }
    });
    for (name, pattern) in [
        ("ping-pong", Pattern::PingPong),
        ("requests", Pattern::Requests),
        ("connect", Pattern::Connect),
    ] {
        let why = run(&address, &load(pattern)).expect_err(name);
        assert!(why.contains(NOTHING), "{name}: {why}");
    }
    // Requests that were due and not answered still count as a measurement.
    let open = Load {
        rate: Some(1000.0),
        seconds: 0.05,
        ..load(Pattern::Requests)
    };
    let outcome = run(&address, &open).expect("an open loop");
    assert!(outcome.operations + outcome.unanswered > 0);
}

#[test]
fn every_pattern_completes_on_both_families() {
    let folder = tempfile::tempdir().expect("room");
    let path = folder.path().join("socket");
    let addresses = [
        server("127.0.0.1:0"),
        server(&format!("unix:{}", path.display())),
    ];
    for address in &addresses {
        for (name, pattern) in Pattern::ALL {
            for streams in [1, 3] {
                let load = Load {
                    streams,
                    touch: true,
                    ..load(pattern)
                };
                let outcome = with_operations(load, |load| run(address, load))
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(outcome.operations > 0, "{name}");
                assert!(outcome.cpu_all.is_some(), "{name}");
                let has_latency = matches!(outcome.kind.as_str(), "closed loop" | "connections");
                assert_eq!(outcome.latency.is_some(), has_latency, "{name}");
            }
        }
    }
}

#[test]
fn polling_and_sendfile_move_the_same_bytes() {
    let address = server("127.0.0.1:0");
    for (polling, sendfile) in [(true, false), (false, true), (true, true)] {
        let load = Load {
            polling,
            sendfile,
            touch: true,
            message: 10_000,
            socket_buffer: Some(65536),
            ..load(Pattern::ToServer)
        };
        let outcome = with_operations(load, |load| run(&address, load));
        let outcome = outcome.expect("acknowledged, with the right sum");
        assert!(outcome.bytes > 0);
    }
}

#[test]
fn an_open_loop_counts_what_was_due() {
    let address = server("127.0.0.1:0");
    for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
        let load = Load {
            rate: Some(2000.0),
            arrivals,
            streams: 4,
            seconds: 0.2,
            // They are not among the counted requests.
            prior: 5,
            ..load(Pattern::Requests)
        };
        let outcome = run(&address, &load).expect("completes");
        assert_eq!(outcome.kind, "open loop");
        assert!(outcome.memory.is_some());
        let due = outcome.operations + outcome.unanswered;
        let expected = match arrivals {
            Arrivals::Constant => 399..=401,
            // The sequence is seeded: equal in every run, within statistical bounds.
            Arrivals::Poisson => 320..=480,
        };
        assert!(expected.contains(&due), "{arrivals:?}: {due}");
    }
}

#[test]
fn connections_that_are_not_active_make_no_request() {
    let address = server("127.0.0.1:0");
    let load = Load {
        active: Some(2),
        streams: 8,
        rate: Some(1000.0),
        ..load(Pattern::Requests)
    };
    assert!(run(&address, &load).expect("completes").operations > 0);
    let refused = |load: &Load| load.check().expect_err("refused");
    let many = Load {
        active: Some(9),
        ..load.clone()
    };
    assert!(refused(&many).contains("active connections is a number from 1 to 8"));
    let other = Load {
        pattern: Pattern::PingPong,
        rate: None,
        ..load
    };
    assert!(refused(&other).contains("requests"));
}

#[test]
fn a_server_with_several_addresses_serves_on_all() {
    let held: Vec<std::net::TcpListener> = (0..2)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"))
        .collect();
    let ports = held.iter().map(|one| one.local_addr().expect("bound"));
    let all: Vec<String> = ports.map(|one| one.to_string()).collect();
    drop(held);
    let address: Address = all.join(",").parse().expect("two addresses");
    let server = Server::bind(&address).expect("listens");
    std::thread::spawn(move || server.serve());
    for one in all {
        let one = one.parse().expect("an address");
        let outcome = with_operations(load(Pattern::PingPong), |load| run(&one, load));
        assert!(outcome.is_ok(), "{one}: {outcome:?}");
    }
    let load = Load {
        streams: 4,
        ..load(Pattern::Requests)
    };
    assert!(with_operations(load, |load| run(&address, load)).is_ok());
}

#[test]
fn a_client_at_the_gate_goes_on_when_it_is_let_through() {
    let folder = tempfile::tempdir().expect("room");
    let path = folder.path().join("gate");
    let gate = std::os::unix::net::UnixListener::bind(&path).expect("listens");
    let address = server("127.0.0.1:0");
    let load = Load {
        gate: Some(Gate(path)),
        // Requests that are due count, even on a busy host.
        rate: Some(1000.0),
        ..load(Pattern::Requests)
    };
    let client = std::thread::spawn(move || run(&address, &load));
    for _ in 0..2 {
        let (waiting, _) = gate.accept().expect("a client");
        assert!(!client.is_finished());
        drop(waiting);
    }
    assert!(client.join().expect("no panic").is_ok());
}

#[test]
fn clients_that_were_measured_together_have_one_outcome() {
    let address = server("127.0.0.1:0");
    let load = load(Pattern::PingPong);
    let one = with_operations(load.clone(), |load| run(&address, load)).expect("completes");
    let all = Load { streams: 2, ..load };
    let both = Outcome::of_all(&[one.clone(), one.clone()], &all).expect("one");
    assert_eq!(
        (both.operations, both.bytes),
        (2 * one.operations, 2 * one.bytes)
    );
    assert_eq!((both.cpu_all, both.load), (one.cpu_all, all.clone()));
    let (both, one) = (both.latency.expect("some"), one.latency.expect("some"));
    assert_eq!((both.p50, both.p99, both.max), (one.p50, one.p99, one.max));
    assert_eq!(Outcome::of_all(&[], &all), None);
}

/// Ports in TIME_WAIT would make each `connect` slow.
#[test]
fn new_clients_do_not_use_up_the_ports() {
    let address = server("127.0.0.1:0");
    let load = Load {
        streams: 50,
        seconds: 0.2,
        ..load(Pattern::Newcomers)
    };
    let outcome = run(&address, &load).expect("completes");
    let most = outcome.seconds * 10_000.0 + load.streams as f64;
    assert!(outcome.operations as f64 <= most, "{outcome:?}");
}

#[test]
fn a_histogram_is_kept_whole() {
    let address = server("127.0.0.1:0");
    let outcome = with_operations(load(Pattern::PingPong), |load| run(&address, load));
    let outcome = outcome.expect("completes");
    let latency = outcome.latency.clone().expect("one for each message");
    let counted: u64 = latency.histogram.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, outcome.operations);
    assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.p99_9);
    let json = serde_json::to_string(&outcome).expect("JSON");
    let back: Outcome = serde_json::from_str(&json).expect("the same");
    assert_eq!(back, outcome);
}

#[test]
fn bare_threads_hand_over_every_pattern_but_connections() {
    for (name, pattern) in Pattern::ALL {
        let outcome = with_operations(load(pattern), bare::run);
        match pattern {
            _ if pattern.is_short() => assert!(outcome.is_err()),
            _ => assert!(outcome.expect(name).operations > 0, "{name}"),
        }
    }
}

#[test]
fn one_copy_hands_over_what_was_sent() {
    for (name, pattern) in Pattern::ALL {
        let load = Load {
            touch: true,
            message: 5000,
            streams: 1,
            ..load(pattern)
        };
        let outcome = with_operations(load, one_copy::run);
        match pattern {
            Pattern::PingPong | Pattern::ToServer => {
                assert!(outcome.expect(name).operations > 0, "{name}");
            }
            _ => assert!(outcome.expect_err(name).contains("one-copy"), "{name}"),
        }
    }
}

#[test]
fn loads_that_cannot_be_are_refused_in_one_sentence() {
    let refused = |load: Load| load.check().expect_err("refused");
    let base = load(Pattern::PingPong);
    assert!(
        refused(Load {
            message: 0,
            ..base.clone()
        })
        .contains("message size")
    );
    assert!(
        refused(Load {
            streams: 0,
            ..base.clone()
        })
        .contains("streams")
    );
    assert!(
        refused(Load {
            seconds: 0.0,
            ..base.clone()
        })
        .contains("seconds")
    );
    assert!(
        refused(Load {
            seconds: f64::NAN,
            ..base.clone()
        })
        .contains("seconds")
    );
    assert!(
        refused(Load {
            rate: Some(5.0),
            ..base.clone()
        })
        .contains("requests")
    );
    for rate in [0.0, -1.0, 1e-300, 1e300, f64::NAN] {
        let load = Load {
            rate: Some(rate),
            ..load(Pattern::Requests)
        };
        assert!(refused(load).contains("rate"), "{rate}");
    }
    for address in ["", "host", "host:", "host:99999", "unix:"] {
        assert!(address.parse::<Address>().is_err(), "{address}");
    }
}

#[test]
fn a_stranger_on_the_port_is_left_alone() {
    use std::io::{Read, Write};
    let address = server("127.0.0.1:0");
    let mut stranger = std::net::TcpStream::connect(address.to_string()).expect("a connection");
    stranger
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    // A reset counts as an end, too.
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.is_empty());
    let outcome = with_operations(load(Pattern::PingPong), |load| run(&address, load));
    assert!(outcome.is_ok(), "{outcome:?}");
}
