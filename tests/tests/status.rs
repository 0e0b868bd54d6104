//! `toehold status` names a process and a descriptor that hold each connection.

use std::process::Stdio;

use toehold_e2e::process::TIME_LIMIT;
use toehold_e2e::{Running, Toehold, host, toehold, wait_until};

/// A server accepts a connection and moves its descriptor: in itself, or in a child that has it
/// alone from then on. Prints the process and the numbers that hold the connection at the end.
const MOVES: &str = "
import os, socket, sys
listener = socket.create_server(('127.0.0.1', 0))
near = socket.create_connection(listener.getsockname())
far = listener.accept()[0].detach()
listener.close()
if sys.argv[1] == 'duplicates':
    number = os.dup(far)
    os.close(far)
else:
    ready, said = os.pipe()
    child = os.fork()
    if child == 0:
        near.close()
        if sys.argv[1] == 'child duplicates':
            os.dup2(far, 30)
            os.close(far)
            far = 30
        os.write(said, b'%d' % far)
        sys.stdin.read()
        os._exit(0)
    os.close(far)
    number = int(os.read(ready, 9))
holder = os.getpid() if sys.argv[1] == 'duplicates' else child
print(holder, number, near.getsockname()[1], flush=True)
sys.stdin.read()
";

#[test]
fn status_names_a_descriptor_that_is_open() {
    if host::require(["python3"]).is_none() {
        return;
    }
    for how in ["duplicates", "child", "child duplicates"] {
        let toehold = Toehold::start();
        let mut command = toehold.command(toehold::Path::Direct, "python3");
        command.args(["-c", MOVES, how]).stdin(Stdio::piped());
        let program = Running::start_fed(command, "moves", toehold.dir());
        let said = || program.stdout().lines().next().map(str::to_owned);
        assert!(
            wait_until(TIME_LIMIT, || said().is_some()),
            "{}",
            program.outputs()
        );
        let line = said().expect("it was said");
        let numbers: Vec<u64> = (line.split(' '))
            .map(|number| number.parse().expect("a number"))
            .collect();
        let &[holder, number, client] = &numbers[..] else {
            panic!("{line}");
        };
        let connections = toehold.connections();
        let accepted = connections.iter().find(|one| {
            let remote = one.value["remote"].as_str();
            remote == Some(&format!("127.0.0.1:{client}"))
        });
        let shown = accepted.map(|one| (one.pid, one.value["fd"].as_u64()));
        assert_eq!(
            shown,
            Some((holder, Some(number))),
            "{how}: {connections:?}"
        );
    }
}

/// A server that becomes a daemon before it has a socket, and reads what a client sends with few
/// calls. A client that waits for pairing.
const DAEMON: &str = "
import os, socket, sys
ready, said = os.pipe()
child = os.fork()
if child == 0:
    listener = socket.create_server(('127.0.0.1', 0))
    os.write(said, b'%d' % listener.getsockname()[1])
    far = listener.accept()[0]
    far.recv(1)
    far.send(b'!')
    sys.stdin.read()
    os._exit(0)
near = socket.create_connection(('127.0.0.1', int(os.read(ready, 9))))
near.send(b'!')
near.recv(1)
for _ in range(100):
    near.send(b'!')
print(near.getsockname()[1], flush=True)
sys.stdin.read()
";

#[test]
fn daemon_with_little_traffic_is_known_to_the_adapter() {
    if host::require(["python3"]).is_none() {
        return;
    }
    let toehold = Toehold::start();
    let mut command = toehold.command(toehold::Path::Direct, "python3");
    command.args(["-c", DAEMON]).stdin(Stdio::piped());
    let program = Running::start_fed(command, "daemon", toehold.dir());
    let said = || program.stdout().lines().next().map(str::to_owned);
    assert!(
        wait_until(TIME_LIMIT, || said().is_some()),
        "{}",
        program.outputs()
    );
    let reasons = || -> Vec<String> {
        let connections = toehold.connections();
        let reasons = connections
            .iter()
            .map(|one| one.value["reason"].to_string());
        reasons.collect()
    };
    let little = "too little traffic";
    let are_told = || {
        let reasons = reasons();
        reasons.len() == 2 && reasons.iter().all(|reason| reason.contains(little))
    };
    assert!(wait_until(TIME_LIMIT, are_told), "{:?}", reasons());
}
