//! Regions are a budget: what channels cost, and that those which nobody uses are given back.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use toehold_e2e::{Path, Running, Toehold, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_crowd");
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections, and regions that the adapter may have.
const COUNT: usize = 40;
/// Where the adapter stops taking regions back: three quarters.
const LOW_WATER: usize = 30;
const REGION: &str = "/memfd:toehold-region";

/// Two programs with many connections, and a line to one of them.
struct Crowd {
    server: Running,
    client: Running,
    orders: UnixStream,
    given: usize,
}

impl Crowd {
    fn start(toehold: &Toehold) -> Crowd {
        let mut command = toehold.command(Path::Direct, PROGRAM);
        command.arg("server");
        let server = Running::start(command, "server", toehold.dir());
        let listens = wait_until(PATIENCE, || server.stdout().ends_with('\n'));
        assert!(listens, "{}", server.outputs());
        let (orders, theirs) = UnixStream::pair().expect("a socket pair");
        let mut command = toehold.command(Path::Direct, PROGRAM);
        command.args(["client", server.stdout().trim(), &COUNT.to_string()]);
        command.stdin(OwnedFd::from(theirs));
        let client = Running::start_fed(command, "client", toehold.dir());
        let mut crowd = Crowd {
            server,
            client,
            orders,
            given: 0,
        };
        crowd.obeyed();
        crowd
    }

    /// Has the client do something, and waits until it has.
    fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("the client reads");
        self.given += 1;
        self.obeyed();
    }

    fn obeyed(&mut self) {
        let lines = self.given + 1;
        let done = wait_until(PATIENCE, || {
            self.client.ended().is_some() || self.client.stdout().lines().count() >= lines
        });
        let alive = self.client.ended().is_none() && self.server.ended().is_none();
        assert!(
            done && alive,
            "{}\n{}",
            self.client.outputs(),
            self.server.outputs()
        );
    }

    /// Has the client end, which has checked all that it got.
    fn end(self) {
        drop(self.orders);
        self.client.success(PATIENCE);
    }

    /// Regions that each of the two has mapped.
    fn mapped(&self) -> [usize; 2] {
        [&self.server, &self.client].map(|program| {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid()));
            let maps = maps.unwrap_or_default();
            maps.lines().filter(|line| line.contains(REGION)).count()
        })
    }
}

/// Regions that the adapter holds, and the memory in them.
fn held(toehold: &mut Toehold) -> (usize, u64) {
    let directory = format!("/proc/{}/fd", toehold.adapter().pid());
    let open = std::fs::read_dir(directory).expect("it runs").flatten();
    let regions = open.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().contains(REGION))
    });
    let blocks = regions.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    blocks.fold((0, 0), |(count, bytes), file| {
        (count + 1, bytes + file.blocks() * 512)
    })
}

fn direct(toehold: &Toehold) -> usize {
    let connections = toehold.connections();
    connections.iter().filter(|one| one.is_direct()).count()
}

#[test]
fn regions_of_idle_connections_are_given_back_and_can_be_had_again() {
    let mut toehold = Toehold::start();
    toehold.start_adapter_with(&["--max-connections", &COUNT.to_string()]);
    let mut crowd = Crowd::start(&toehold);
    // The adapter may have begun to take regions back before the last connection had one.
    let before = held(&mut toehold);
    assert!(before.0 > LOW_WATER, "{before:?}");
    let relieved = wait_until(PATIENCE, || {
        crowd.order("idle");
        let mapped = crowd.mapped();
        held(&mut toehold).0 <= LOW_WATER && mapped.iter().all(|&regions| regions <= LOW_WATER)
    });
    let after = held(&mut toehold);
    eprintln!(
        "before: {} regions, {} KiB; after: {} regions, {} KiB; mapped {:?}",
        before.0,
        before.1 >> 10,
        after.0,
        after.1 >> 10,
        crowd.mapped()
    );
    assert!(
        relieved,
        "{after:?}, mapped {:?}\n{:?}",
        crowd.mapped(),
        toehold.connections()
    );
    assert!(after.1 < before.1, "no memory was freed");

    // Whoever comes back to life is served on rings again, and loses nothing meanwhile.
    for round in 0..3 {
        for which in 1..COUNT {
            crowd.order(&format!("talk {which}"));
        }
        let up = wait_until(PATIENCE, || {
            crowd.order(&format!("talk {}", COUNT - 1));
            let connections = toehold.connections();
            let upgrades: u64 = connections.iter().map(|one| one.count("upgrades")).sum();
            upgrades > 2 * COUNT as u64 && direct(&toehold) > 0
        });
        assert!(
            up,
            "round {round}: nobody went up again\n{:?}",
            toehold.connections()
        );
    }
    crowd.end();
}

#[test]
fn detached_connections_give_their_regions_back_and_attach_again() {
    let mut toehold = Toehold::start();
    let mut crowd = Crowd::start(&toehold);
    let all_direct = |toehold: &Toehold, crowd: &mut Crowd| {
        wait_until(PATIENCE, || {
            (0..COUNT).for_each(|which| crowd.order(&format!("talk {which}")));
            direct(toehold) == 2 * COUNT
        })
    };
    assert!(
        all_direct(&toehold, &mut crowd),
        "{:?}",
        toehold.connections()
    );
    assert_eq!(toehold.detach_all(), 2 * COUNT as u32);
    let given_back = wait_until(PATIENCE, || {
        crowd.order("idle");
        crowd.mapped() == [0, 0] && held(&mut toehold) == (0, 0)
    });
    assert!(
        given_back,
        "mapped {:?}, held {:?}\n{:?}",
        crowd.mapped(),
        held(&mut toehold),
        toehold.connections()
    );
    let reasons = toehold.connections();
    assert!(
        reasons
            .iter()
            .all(|one| one.value["reason"] == "detached by the operator"),
        "{reasons:?}"
    );
    toehold.attach_all();
    assert!(
        all_direct(&toehold, &mut crowd),
        "{:?}",
        toehold.connections()
    );
    crowd.end();
}
