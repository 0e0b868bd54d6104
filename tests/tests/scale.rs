//! Many processes, each with connections to several others: connections are accelerated as far as
//! the adapter's descriptors and regions suffice, no byte is lost, and the cost is measured.
//!
//! Environment variables give the numbers, and the results go to standard error:
//!
//! ```text
//! E2E_PROCESSES=1000 E2E_CONNECTIONS=100 E2E_PEERS=10 \
//!     cargo test --release -p toehold-e2e --test scale -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use toehold_e2e::process::Cost;
use toehold_e2e::{Member, Path, Toehold, host};
use toehold_measure::procfs::{self, Snapshot};

const PROGRAM: &str = env!("CARGO_BIN_EXE_crowd");
/// A talk on thousands of connections takes a while.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Messages on each connection in a talk: enough for the connection to be paired.
const MESSAGES: usize = 40;
/// The most talks until every connection has received its offer.
const ROUNDS: usize = 6;

/// All processes.
struct Population {
    toehold: Toehold,
    members: Vec<Member>,
    /// Each process opens this many connections to each of its peers.
    per_peer: usize,
    peers: usize,
}

impl Population {
    /// Starts `processes` processes. Each has `connections` connections with `peers` others, and
    /// opens half of them.
    fn start(toehold: Toehold, path: Path, [processes, connections, peers]: [usize; 3]) -> Self {
        let per_peer = connections / 2 / peers;
        assert!(per_peer > 0 && processes > peers, "other numbers");
        let start = |number| Member::start(&toehold, path, PROGRAM, number, TIME_LIMIT);
        let mut members: Vec<Member> = (0..processes).map(start).collect();
        let port = |member: &mut Member| member.answer().parse().expect("a port");
        let ports: Vec<u16> = members.iter_mut().map(port).collect();
        let mut population = Population {
            toehold,
            members,
            per_peer,
            peers,
        };
        for step in 1..=peers {
            population.order(|number| {
                let port = ports[(number + step) % processes];
                format!("join {port} {per_peer}")
            });
        }
        population
    }

    fn order(&mut self, line: impl Fn(usize) -> String) {
        for (number, member) in self.members.iter_mut().enumerate() {
            member.order(&line(number));
        }
        for member in &mut self.members {
            assert_eq!(member.answer(), "done");
        }
    }

    /// Talks on all connections; returns the time taken.
    fn talk(&mut self) -> Duration {
        let begun = Instant::now();
        self.order(|_| format!("talk {MESSAGES}"));
        begun.elapsed()
    }

    /// Connections that the processes have opened.
    fn opened(&self) -> usize {
        self.members.len() * self.peers * self.per_peer
    }

    /// Ends of connections in shared memory.
    fn direct(&self) -> usize {
        let connections = self.toehold.connections();
        connections.iter().filter(|one| one.is_direct()).count()
    }

    /// The number of ends for each reason to be on the kernel.
    fn reasons(&self) -> Vec<(String, usize)> {
        let mut reasons = BTreeMap::new();
        for one in self.toehold.connections() {
            let reason = one.value["reason"].as_str().unwrap_or("?").to_owned();
            let path = one.value["path"].as_str().unwrap_or("?").to_owned();
            let reason = format!("{path}: {reason}");
            *reasons.entry(reason).or_default() += 1;
        }
        reasons.into_iter().collect()
    }

    /// Prints the current costs of all processes.
    fn report(&mut self, when: &str) {
        let pids: Vec<u32> = self.members.iter().map(|it| it.running.pid()).collect();
        let all: Vec<Cost> = pids.iter().map(|pid| Cost::of(*pid)).collect();
        let adapter = Cost::of(self.toehold.adapter().pid());
        let sum = |of: fn(&Cost) -> u64| all.iter().map(of).sum::<u64>();
        let most = |of: fn(&Cost) -> u64| all.iter().map(of).max().unwrap_or(0);
        eprintln!("{when}:");
        eprintln!(
            "  processes: {} MiB resident in proportion, {} MiB page tables; one at most: {} \
             mappings, {} descriptors",
            sum(|it| it.proportional) >> 10,
            sum(|it| it.page_tables) >> 10,
            most(|it| it.mappings),
            most(|it| it.descriptors)
        );
        eprintln!(
            "  adapter: {} MiB resident, {} KiB page tables, {} mappings, {} descriptors",
            adapter.proportional >> 10,
            adapter.page_tables,
            adapter.mappings,
            adapter.descriptors
        );
        eprintln!("  host: {} MiB available", available_mib());
    }

    /// The share of one core that all processes and the adapter use while no process talks.
    fn idle(&mut self, time: Duration) -> [f64; 2] {
        let adapter = self.toehold.adapter().pid();
        let pids: Vec<u32> = self.members.iter().map(|it| it.running.pid()).collect();
        let spent = || {
            let all = procfs::processes();
            let of = |these: &[u32]| {
                let is_one = |one: &procfs::Process| these.contains(&(one.pid as u32));
                let found: Vec<_> = all.iter().copied().filter(is_one).collect();
                Snapshot::of(&found)
            };
            [of(&pids), of(&[adapter])]
        };
        let (before, begun) = (spent(), Instant::now());
        std::thread::sleep(time);
        let (after, took) = (spent(), begun.elapsed());
        [0, 1].map(|which| after[which].since(&before[which]).cpu() / took.as_secs_f64())
    }

    fn end(self) {
        let Population {
            members, toehold, ..
        } = self;
        for member in members {
            member.hang_up();
            member.running.success(TIME_LIMIT);
        }
        drop(toehold);
    }
}

fn available_mib() -> u64 {
    procfs::memory_available().unwrap_or(0) >> 20
}

fn wanted(name: &str, otherwise: usize) -> usize {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Talks until all connections are direct, or until some cannot be; returns the outcome.
fn settle(all: &mut Population) -> usize {
    let mut direct = 0;
    for round in 1..=ROUNDS {
        let took = all.talk();
        let asked = Instant::now();
        direct = all.direct();
        eprintln!(
            "round {round}: {took:.1?}; {direct} of {} ends direct; status took {:.2?}",
            2 * all.opened(),
            asked.elapsed()
        );
        if direct == 2 * all.opened() {
            break;
        }
    }
    direct
}

#[test]
fn many_processes_with_many_connections_are_accelerated() {
    host::raise_descriptor_limit();
    let numbers = [
        wanted("E2E_PROCESSES", 24),
        wanted("E2E_CONNECTIONS", 24),
        wanted("E2E_PEERS", 3),
    ];
    let budget = wanted("E2E_BUDGET", 1_000_000);
    let before = available_mib();
    let mut toehold = Toehold::start();
    toehold.start_adapter_with(&["--max-connections", &budget.to_string()]);
    let begun = Instant::now();
    let mut all = Population::start(toehold, Path::Direct, numbers);
    eprintln!(
        "{} connections between {} processes, opened in {:.1?}; {} MiB available before",
        all.opened(),
        numbers[0],
        begun.elapsed(),
        before
    );
    let direct = settle(&mut all);
    let [programs, adapter] = all.idle(Duration::from_secs(3));
    eprintln!("idle: processes {programs:.3} cores, adapter {adapter:.3} cores");
    let reasons = all.reasons();
    all.report("after the talks");
    let log = all.toehold.adapter().stderr();
    let is_bounded = log.contains("no descriptors left") || budget < all.opened();
    assert!(
        direct == 2 * all.opened() || is_bounded,
        "{reasons:#?}\n{log}"
    );
    eprintln!("{reasons:#?}");
    all.end();
}

#[test]
fn programs_beyond_the_adapters_descriptors_stay_on_the_kernel_and_say_why() {
    const DESCRIPTORS: u32 = 160;
    /// Each pair of programs with fewer than eight connections takes two descriptors: one for the
    /// ready bitmaps, one for a slab. Three quarters of the adapter's descriptors do not suffice
    /// for all pairs.
    const NEEDED: usize = 2 * PROCESSES * PEERS;
    const PROCESSES: usize = 10;
    const PEERS: usize = 8;
    const _: () = assert!(NEEDED > DESCRIPTORS as usize * 3 / 4);
    let mut toehold = Toehold::start();
    toehold.start_adapter_with_descriptors(DESCRIPTORS);
    let mut all = Population::start(toehold, Path::Direct, [PROCESSES, 4 * PEERS, PEERS]);
    all.talk();
    all.talk();
    let reasons = all.reasons();
    let has = |words: &str| reasons.iter().any(|(reason, _)| reason.contains(words));
    assert!(
        has("direct: ") && has("no memory or descriptors"),
        "{reasons:?}"
    );
    let held = Cost::of(all.toehold.adapter().pid()).descriptors;
    assert!(held < DESCRIPTORS.into(), "{held}");
    all.end();
}
