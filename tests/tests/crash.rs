//! SIGKILL at any moment: what the survivor observes, and what remains.

use std::time::Duration;

use toehold_e2e::load::Random;
use toehold_e2e::process::{OutputInTime, TIME_LIMIT};
use toehold_e2e::{Checked, Member, Path, Sides, Toehold, host, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
const CROWD: &str = env!("CARGO_BIN_EXE_crowd");

/// The victim of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server,
    Client,
    Adapter,
}

/// Whether a round waits until rings carry bytes before the kill. In every fourth round the kill
/// may come earlier: before the upgrade, or in the middle of it.
fn waits_for_rings(number: u64) -> bool {
    !number.is_multiple_of(4)
}

/// Kills one end of a fresh connection and examines the other. Returns whether rings carried the
/// bytes.
fn round(toehold: &mut Toehold, sides: Sides, number: u64, victim: Victim) -> bool {
    let mut random = Random::new(number);
    let one_way = random.below(2) == 0;
    let name = format!("round{number}");
    let mut pair = Checked::start(toehold, sides, PROGRAM, (&name, number, 0, one_way));
    // A client that is killed before it connects leaves a server that waits for a client, as it
    // should. A server that is killed before that refuses its client.
    let connected = wait_until(TIME_LIMIT, || pair.client_counters().sent > 0);
    assert!(connected, "round {number}: nobody connects");
    let pids = [pair.server.pid(), pair.client.pid()].map(u64::from);
    let is_on_rings = |toehold: &Toehold| {
        let ends = toehold.connections().into_iter();
        let mut ends = ends.filter(|connection| pids.contains(&connection.pid));
        ends.any(|end| end.count("bytes_ring_tx") > 0)
    };
    if sides.pair_up() && waits_for_rings(number) {
        let rose = wait_until(TIME_LIMIT, || is_on_rings(toehold));
        assert!(
            rose,
            "round {number}, one way: {one_way}: never on rings: {:?}",
            toehold.connections()
        );
    }
    std::thread::sleep(Duration::from_micros(random.below(60_000)));
    let was_direct = sides.pair_up() && is_on_rings(toehold);
    let adapter_dies = victim == Victim::Adapter;
    let victim = if adapter_dies {
        survives_the_adapter(toehold, &mut pair, number);
        Victim::Client
    } else {
        victim
    };
    let (dead, survivor) = match victim {
        Victim::Server => (&mut pair.server, &mut pair.client),
        _ => (&mut pair.client, &mut pair.server),
    };
    dead.signal(libc::SIGKILL);
    assert!(
        dead.wait(TIME_LIMIT).is_some(),
        "round {number}: SIGKILL does not kill"
    );
    let end = survivor.wait(TIME_LIMIT);
    let words = survivor.stdout();
    let context = format!(
        "round {number}, {victim:?} killed, adapter first: {adapter_dies}, one way: {one_way}"
    );
    assert!(
        end.is_some_and(|status| status.success()),
        "{context}: the survivor is in {}\n{}",
        survivor.whereabouts(),
        survivor.outputs()
    );
    let ends = ["then EOF", "then ECONNRESET"];
    assert!(
        ends.iter().any(|end| words.contains(end)),
        "{context}: {words}"
    );
    let (owed, got) = match victim {
        Victim::Server => (pair.server_counters().sent, pair.client_counters().received),
        _ => (pair.client_counters().sent, pair.server_counters().received),
    };
    // A victim without unread bytes ends with FIN, after all bytes that it had sent. A victim with
    // unread bytes ends with RST, which discards the bytes in its send buffer. Then only a prefix
    // must arrive, and the survivor has checked that prefix itself.
    if one_way && victim == Victim::Client {
        assert!(
            got >= owed,
            "{context}: {owed} bytes sent, {got} received\n{words}{:?}",
            toehold.connections()
        );
    }
    was_direct
}

/// Kills the adapter of the connection, checks that the bytes go on, and starts another adapter.
fn survives_the_adapter(toehold: &mut Toehold, pair: &mut Checked, number: u64) {
    toehold.adapter().signal(libc::SIGKILL);
    assert!(
        toehold.adapter().wait(TIME_LIMIT).is_some(),
        "SIGKILL does not kill"
    );
    let before = pair.server_counters().received;
    let goes_on = wait_until(TIME_LIMIT, || {
        pair.server_counters().received > before + 5_000_000
    });
    assert!(
        goes_on,
        "round {number}: the adapter's death stopped the connection at {before}\n{}{}",
        pair.server.outputs(),
        pair.client.outputs()
    );
    toehold.start_adapter();
}

/// Shared-memory files that a process holds open or mapped.
fn regions(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = maps.lines().filter(|line| line.contains("/memfd:")).count();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let open = open.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().contains("memfd:"))
    });
    mapped + open.count()
}

fn victims(sides: Sides, rounds: u64) -> impl Iterator<Item = (u64, Victim)> {
    let mut random = Random::new(0x6b69_6c6c);
    (0..rounds).map(move |number| {
        let victim = match random.below(if sides.pair_up() { 5 } else { 4 }) {
            0 | 1 => Victim::Server,
            2 | 3 => Victim::Client,
            _ => Victim::Adapter,
        };
        (number, victim)
    })
}

#[test]
fn survivor_on_the_kernel_sees_a_prefix_and_an_end() {
    let mut toehold = Toehold::absent();
    for (number, victim) in victims(Sides::HOST, host::rounds(20)) {
        round(&mut toehold, Sides::HOST, number, victim);
    }
}

#[test]
fn survivor_on_rings_sees_a_prefix_and_an_end_and_nothing_leaks() {
    let mut toehold = Toehold::start();
    let (mut direct, mut total) = (0, 0);
    for (number, victim) in victims(Sides::DIRECT, host::rounds(100)) {
        total += 1;
        let was_direct = round(&mut toehold, Sides::DIRECT, number, victim);
        assert!(
            was_direct || !waits_for_rings(number),
            "round {number} was not on rings when the kill came"
        );
        direct += u64::from(was_direct);
    }
    eprintln!("{direct} of {total} connections had been on rings when the kill came");
    // Every program is gone; the adapter must have released all that they shared.
    let adapter = toehold.adapter().pid();
    let forgotten = wait_until(TIME_LIMIT, || regions(adapter) == 0);
    assert!(
        forgotten,
        "the adapter still holds {} regions",
        regions(adapter)
    );
    assert!(
        toehold.connections().is_empty(),
        "{:?}",
        toehold.connections()
    );
}

/// Two programs; one opens connections to the other.
struct Two {
    asking: Member,
    _asked: Member,
    join: String,
}

impl Two {
    fn start(toehold: &Toehold) -> Two {
        let start = |number| Member::start(toehold, Path::Direct, CROWD, number, TIME_LIMIT);
        let [mut asking, mut asked] = [0, 1].map(start);
        let [_, port] = [&mut asking, &mut asked].map(Member::answer);
        Two {
            asking,
            _asked: asked,
            join: format!("join {port} 1"),
        }
    }

    fn does(&mut self, order: &str) {
        self.asking.order(order);
        assert_eq!(self.asking.answer(), "done");
    }

    fn open_connection(&mut self) {
        let join = self.join.clone();
        self.does(&join);
    }

    fn talk_until(&mut self, ready: impl Fn() -> bool) -> bool {
        wait_until(TIME_LIMIT, || {
            self.does("talk 100");
            ready()
        })
    }

    fn assert_in_memory(&mut self, toehold: &Toehold, connections: usize) {
        let ends = || {
            let all = toehold.connections();
            all.iter().filter(|one| one.is_direct()).count()
        };
        let are = self.talk_until(|| ends() == 2 * connections);
        assert!(are, "{}", toehold.status());
    }
}

/// `toehold run` of any program starts the next adapter of this user, and running programs connect
/// to it.
#[test]
fn a_killed_adapter_comes_back_with_the_next_run() {
    let mut toehold = Toehold::start();
    let mut two = Two::start(&toehold);
    two.open_connection();
    two.assert_in_memory(&toehold, 1);
    toehold.adapter().signal(libc::SIGKILL);
    let is_dead = toehold.adapter().wait(TIME_LIMIT).is_some();
    assert!(is_dead, "SIGKILL does not kill");
    two.open_connection();
    two.does("talk 100");
    let run = toehold.command(Path::Direct, "/bin/true").output_in_time();
    let run = run.expect("it starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.is_empty(), "{said}");
    two.assert_in_memory(&toehold, 2);
    let pid = std::fs::read_to_string(toehold.runtime().join("adapter.lock"));
    let pid: i32 = pid.expect("it runs").trim().parse().expect("a number");
    // SAFETY: takes numbers. It is the adapter that the test has had started.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// A service manager has the adapter's socket. A running program with a new connection starts the
/// next adapter: no command is given meanwhile.
#[test]
fn a_killed_adapter_comes_back_for_a_program_that_runs() {
    let (toehold, manager) = Toehold::start_activated();
    let mut two = Two::start(&toehold);
    two.open_connection();
    two.assert_in_memory(&toehold, 1);
    assert_eq!(manager.started(), 1);
    manager.kill_adapter();
    two.open_connection();
    let is_back = two.talk_until(|| manager.started() == 2);
    assert!(is_back, "nobody has asked for an adapter");
    two.assert_in_memory(&toehold, 2);
}

/// A service manager begins to listen in place of a running adapter. That adapter leaves, and its
/// programs connect to the manager's adapter.
#[test]
fn an_adapter_gives_way_to_that_of_a_service_manager() {
    let mut toehold = Toehold::start();
    let mut two = Two::start(&toehold);
    two.open_connection();
    two.assert_in_memory(&toehold, 1);
    let manager = toehold.activate();
    two.open_connection();
    let is_here = two.talk_until(|| manager.started() > 0);
    assert!(is_here, "nobody has asked for an adapter");
    two.assert_in_memory(&toehold, 2);
    let left = toehold.adapter().wait(TIME_LIMIT);
    let outputs = toehold.adapter().outputs();
    assert!(left.is_some_and(|status| status.success()), "{outputs}");
    assert_eq!(manager.started(), 1);
}
