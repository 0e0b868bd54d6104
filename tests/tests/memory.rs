//! Many connections within a budget of regions: the memory that channels use, and the return of
//! idle regions. Requests wait while the adapter is busy, and offers wait until a program has free
//! descriptors.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use toehold_e2e::toehold::Connection;
use toehold_e2e::{Crowd, Toehold, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_crowd");
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The number of connections, and of regions that the adapter may have.
const COUNT: usize = 40;
/// The number of regions at which the adapter stops taking regions back: three quarters.
const LOW_WATER: u64 = 30;
const SLAB: &str = "/memfd:toehold-slab";
/// The address space of one region: two rings of 4 MiB, and a page.
const REGION_BYTES: u64 = (8 << 20) + 4096;

/// Starts [`COUNT`] connections.
fn start(toehold: &Toehold) -> Crowd {
    Crowd::start(toehold, PROGRAM, &[&COUNT.to_string()], TIME_LIMIT)
}

/// The address space of the slabs that each of the two programs has mapped, in regions. Other
/// memory replaces regions that a program has left.
fn mapped(crowd: &Crowd) -> [u64; 2] {
    [&crowd.server, &crowd.client].map(|program| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid()));
        let maps = maps.unwrap_or_default();
        let slabs = maps.lines().filter(|line| line.contains(SLAB));
        let lengths = slabs.filter_map(|line| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            let at = |text| u64::from_str_radix(text, 16).ok();
            Some(at(to)? - at(from)?)
        });
        lengths.sum::<u64>() / REGION_BYTES
    })
}

/// The memory of the slabs that the adapter holds, in KiB.
fn held(toehold: &mut Toehold) -> u64 {
    let directory = format!("/proc/{}/fd", toehold.adapter().pid());
    let open = std::fs::read_dir(directory).expect("it runs").flatten();
    let slabs = open.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().contains(SLAB))
    });
    let files = slabs.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    files.map(|file| file.blocks() / 2).sum()
}

fn direct(toehold: &Toehold) -> usize {
    let connections = toehold.connections();
    connections.iter().filter(|one| one.is_direct()).count()
}

#[test]
fn regions_of_idle_connections_are_given_back_and_can_be_had_again() {
    let mut toehold = Toehold::start();
    toehold.start_adapter_with(&["--max-connections", &COUNT.to_string()]);
    let mut crowd = start(&toehold);
    // The adapter may have begun to take regions back before the last connection got one.
    let before = (mapped(&crowd), held(&mut toehold));
    assert!(
        before.0.iter().all(|&mapped| mapped > LOW_WATER),
        "{before:?}"
    );
    let relieved = wait_until(TIME_LIMIT, || {
        crowd.order("idle");
        mapped(&crowd).iter().all(|&mapped| mapped <= LOW_WATER)
    });
    let after = held(&mut toehold);
    eprintln!("before: {before:?} KiB; after: {after} KiB");
    assert!(
        relieved,
        "{after}, mapped {:?}\n{:?}",
        mapped(&crowd),
        toehold.connections()
    );
    assert!(after < before.1, "no memory was freed");

    // Connections that become active again use rings again, and lose nothing in between.
    for round in 0..3 {
        for which in 1..COUNT {
            crowd.order(&format!("talk {which}"));
        }
        let up = wait_until(TIME_LIMIT, || {
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
fn connections_that_are_used_before_they_give_their_regions_back_keep_those() {
    let mut toehold = Toehold::start();
    toehold.start_adapter_with(&["--max-connections", &COUNT.to_string()]);
    let arguments = [&COUNT.to_string(), "light"];
    let mut crowd = Crowd::start(&toehold, PROGRAM, &arguments, TIME_LIMIT);
    // Both programs sleep, so no region is given back in the meantime.
    let wanted = wait_until(TIME_LIMIT, || {
        toehold.adapter().stderr().contains("evicting the ")
    });
    assert!(wanted, "{}", toehold.adapter().stderr());
    let downgrades = |toehold: &Toehold| -> u64 {
        let connections = toehold.connections();
        connections.iter().map(|one| one.count("downgrades")).sum()
    };
    let before = downgrades(&toehold);
    crowd.server.signal(libc::SIGSTOP);
    crowd.order("say");
    crowd.server.signal(libc::SIGCONT);
    crowd.order("hear");
    assert_eq!(downgrades(&toehold), before, "{:?}", toehold.connections());
    crowd.end();
}

#[test]
fn detached_connections_give_their_regions_back_and_attach_again() {
    let mut toehold = Toehold::start();
    let mut crowd = start(&toehold);
    let all_direct = |toehold: &Toehold, crowd: &mut Crowd| {
        wait_until(TIME_LIMIT, || {
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
    let given_back = wait_until(TIME_LIMIT, || {
        crowd.order("idle");
        mapped(&crowd) == [0, 0] && held(&mut toehold) == 0
    });
    assert!(
        given_back,
        "mapped {:?}, held {:?}\n{:?}",
        mapped(&crowd),
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

#[test]
fn requests_of_many_connections_wait_for_an_adapter_that_is_stopped() {
    /// More requests than a socket's buffer holds.
    const MANY: usize = 900;
    let mut toehold = Toehold::start();
    toehold.adapter().signal(libc::SIGSTOP);
    let arguments = [&*MANY.to_string(), "light"];
    let mut crowd = Crowd::start(&toehold, PROGRAM, &arguments, TIME_LIMIT);
    toehold.adapter().signal(libc::SIGCONT);
    let connections = toehold.connections();
    let mut reasons = connections
        .iter()
        .filter_map(|one| one.value["reason"].as_str());
    let is_told = reasons.any(|reason| reason.starts_with("the adapter was busy"));
    assert!(is_told, "{connections:?}");
    let all_direct = wait_until(TIME_LIMIT, || {
        crowd.order("around 100");
        direct(&toehold) == 2 * MANY
    });
    let log = toehold.adapter().stderr();
    let others: Vec<_> = toehold.connections();
    let others: Vec<_> = others.iter().filter(|one| !one.is_direct()).collect();
    assert!(all_direct, "{others:?}\n{log}");
    // A program that had given up its adapter would have to ask for all of them again.
    assert!(!log.contains("ended; it had"), "{log}");
    crowd.end();
}

#[test]
fn offers_wait_while_a_program_has_no_room_for_descriptors() {
    const COUNT: usize = 40;
    let toehold = Toehold::start();
    let arguments = [&*COUNT.to_string(), "light"];
    let crowd = Crowd::start(&toehold, PROGRAM, &arguments, TIME_LIMIT);
    let open = std::fs::read_dir(format!("/proc/{}/fd", crowd.client.pid()));
    let open = open.expect("it runs").count();
    crowd.end();
    // An offer for a new pair of programs brings two descriptors.
    for spare in 0..3 {
        let limit = Some(open + spare);
        let mut crowd = Crowd::start_limited(&toehold, PROGRAM, &arguments, limit, TIME_LIMIT);
        // Each connection retries its offer after 4,096 calls, and has a reason of its own.
        let told = wait_until(TIME_LIMIT, || {
            crowd.order("around 20");
            let connections = toehold.connections();
            let is_settled = |one: &&Connection| {
                let reason = one.value["reason"].as_str().unwrap_or_default();
                one.is_direct() || reason.contains("no memory or descriptors")
            };
            let of_client = |one: &&Connection| one.pid == u64::from(crowd.client.pid());
            let settled = connections.iter().filter(of_client).filter(is_settled);
            settled.count() == COUNT
        });
        assert!(told, "spare {spare}: {:?}", toehold.connections());
        crowd.end();
    }
}
