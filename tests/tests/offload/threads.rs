//! An engine with several threads, each with a queue of the device. Connections are spread over the
//! threads, and their data must not suffer.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, Network, Path, host, wait_until};

use crate::stage::{Stage, await_word, listening, ok};

/// The value of one counter for each thread.
fn of_each(stage: &Stage, key: &str) -> Vec<u64> {
    let mut engine = Value::Null;
    let answered = wait_until(TIME_LIMIT, || {
        engine = stage.toehold.known()["engine"].clone();
        engine["threads"].is_array()
    });
    assert!(answered, "{engine}");
    let threads = engine["threads"].as_array().expect("an array").iter();
    threads.filter_map(|thread| thread[key].as_u64()).collect()
}

/// A thread without a processor takes no frames. The other threads wait for it, so no frames are
/// lost.
pub(crate) fn assert_none_is_lost_between_threads(stage: &Stage) {
    let lost = stage.engine("frames_not_passed_on");
    assert_eq!(lost, 0, "{}", stage.toehold.known()["engine"]);
}

fn spread(threads: &str) {
    let Some(stage) = Stage::set(&["--threads", threads]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7601"]);
    let _near = stage.near_server(&["echo_server", "7602"]);
    let streams = [
        stage.near("near-1", &["echo_client", FAR, "7601", "30000000"]),
        stage.near("near-2", &["echo_client", FAR, "7601", "30000001"]),
        stage.far("far-1", &["echo_client", NEAR, "7602", "30000000"]),
        stage.far("far-2", &["echo_client", NEAR, "7602", "30000001"]),
    ];
    ok(stage.near("many", &["many", FAR, "7601", "300"]));
    ok(stage.far("many", &["many", NEAR, "7602", "300"]));
    for stream in streams {
        ok(stream);
    }
    let over = wait_until(TIME_LIMIT, || stage.engine("connections") == 0);
    assert!(over, "{} connections are left", stage.engine("connections"));
    for key in ["connections_opened", "connections_accepted"] {
        let counts = of_each(&stage, key);
        assert_eq!(counts.len().to_string(), threads);
        // The distribution is even, except for chance. The probability that a thread gets less than
        // a third of its share is below one in a billion.
        let few = 302 / counts.len() as u64 / 3;
        assert!(
            counts.iter().all(|count| *count >= few),
            "{key}: {counts:?}"
        );
        assert_eq!(counts.iter().sum::<u64>(), stage.engine(key));
    }
    let passed_on = stage.engine("frames_passed_on");
    match Link::of_this_run() {
        // Each thread's socket gets its own connections; every thread gets ARP.
        Link::Packet => assert!(passed_on < 100, "{passed_on}"),
        // The kernel does not know the thread of a connection before the first answer.
        Link::Tap | Link::Xdp => assert!(passed_on > 0),
    }
    assert_eq!(stage.engine("frames_malformed"), 0);
    assert_none_is_lost_between_threads(&stage);
}

#[test]
fn two_threads_share_connections_both_ways() {
    spread("2");
}

#[test]
fn four_threads_share_connections_both_ways() {
    spread("4");
}

#[test]
fn connections_that_were_silent_go_on_wherever_the_kernel_sends_their_frames() {
    let Some(stage) = Stage::set(&["--threads", "2"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7611"]);
    let _near = stage.near_server(&["echo_server", "7612"]);
    // After three seconds the kernel forgets the queue into which a connection's frames were last
    // written (TUN_FLOW_EXPIRATION).
    let near = stage.near("near", &["pausing", FAR, "7611", "24", "6"]);
    let far = stage.far("far", &["pausing", NEAR, "7612", "24", "6"]);
    let silent = wait_until(TIME_LIMIT, || {
        near.stdout().contains("silent") && far.stdout().contains("silent")
    });
    assert!(silent, "{}{}", near.outputs(), far.outputs());
    let before = stage.engine("frames_passed_on");
    ok(near);
    ok(far);
    let after = stage.engine("frames_passed_on");
    if Link::of_this_run() != Link::Packet {
        assert!(after > before, "{before} frames, and then {after}");
    }
    assert_none_is_lost_between_threads(&stage);
}

#[test]
fn fragments_reach_the_thread_of_their_connection() {
    let Some(stage) = Stage::set(&["--threads", "4"]) else {
        return;
    };
    let _near = stage.near_server(&["echo_server", "7621"]);
    ok(stage.far("client", &["echo_client", NEAR, "7621", "1000"]));
    ok(stage.far("syns", &["fragmented_syns", FAR, NEAR, "7621", "40"]));
    assert_eq!(stage.engine("frames_malformed"), 0);
}

#[test]
fn killed_adapter_resets_what_all_threads_have() {
    let Some(mut stage) = Stage::set(&["--threads", "2"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7631"]);
    let holder = stage.near("holder", &["all_held", FAR, "7631", "10", "ECONNRESET"]);
    await_word(&holder, "holding");
    assert_eq!(of_each(&stage, "connections"), [5, 5], "in turns");
    stage.toehold.adapter().signal(libc::SIGKILL);
    ok(holder);
    stage.toehold.start_adapter();
    assert!(stage.network.bring_up(), "the new link");
    ok(stage.near("client", &["echo_client", FAR, "7631", "100000"]));
}

#[test]
fn all_threads_follow_other_settings() {
    let scratch = TempDir::new().expect("scratch");
    let file = scratch.path().join("engine.conf");
    fs::write(&file, "address 10.84.0.2/24\nthreads 3\n").expect("scratch");
    let Some(mut stage) = Stage::set_by(&file) else {
        return;
    };
    let _near = stage.near_server(&["echo_server", "7641"]);
    let _seen = stage.far_server(&["echo_server", "7642"]);
    let held = stage.near("held", &["all_held", FAR, "7642", "9", "ECONNRESET"]);
    await_word(&held, "holding");
    fs::write(&file, "address 10.84.0.3/24\nthreads 3\nmtu 1400\n").expect("scratch");
    stage.toehold.adapter().signal(libc::SIGHUP);
    let followed = wait_until(TIME_LIMIT, || stage.engine("reconfigured") == 1);
    assert!(followed, "{}", stage.toehold.adapter().outputs());
    ok(held);
    assert_eq!(of_each(&stage, "mtu"), [1400; 3]);
    ok(stage.far("client", &["many", "10.84.0.3", "7641", "60"]));
    let said = ok(stage.near("client", &["echo_client", FAR, "7642", "1000000"]));
    assert!(said.contains("local 10.84.0.3"), "{said}");
    fs::write(&file, "address 10.84.0.3/24\nthreads 2\n").expect("scratch");
    stage.toehold.adapter().signal(libc::SIGHUP);
    let is_logged = wait_until(TIME_LIMIT, || {
        let said = stage.toehold.adapter().stderr();
        said.contains("another number of engine threads")
    });
    assert!(is_logged, "{}", stage.toehold.adapter().outputs());
}

#[test]
fn ports_that_programs_choose_lead_to_the_thread_they_belong_to() {
    let Some(stage) = Stage::set(&["--threads", "4"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7651"]);
    for port in 41_000..41_012 {
        let port = port.to_string();
        ok(stage.near("client", &["from_address", NEAR, &port, FAR, "7651"]));
    }
    assert_eq!(
        of_each(&stage, "connections_opened").iter().sum::<u64>(),
        12
    );
}

#[test]
fn devices_made_for_one_queue_are_refused_with_what_helps() {
    let Some(python) = host::python() else {
        return;
    };
    let settings = ["--address", "10.84.0.2/24"];
    let make = ["tuntap", "add", "dev", "toe0", "mode", "tap", "vnet_hdr"];
    for (kind, threads, said) in [
        (&[][..], "2", "vnet_hdr multi_queue"),
        (&["multi_queue"], "1", "--threads 2"),
        (&["multi_queue"], "2", ""),
    ] {
        let Some(network) = Network::with(Link::Tap) else {
            return;
        };
        if !network.far_ip(&[&make[..], kind].concat()) {
            return host::skipped(
                "cannot make a TAP device (CAP_NET_ADMIN and the tun module are needed)",
            );
        }
        let options = [&settings[..], &["--threads", threads]].concat();
        let mut toehold = network.start_with(&options).expect("the device is there");
        if said.is_empty() {
            let mut command = network.far(&python);
            command
                .args(crate::stage::script())
                .args(["echo_server", "7661"]);
            let _far = listening(Running::start(command, "far-server", toehold.dir()));
            let mut command = toehold.command(Path::Offload, &python);
            command
                .args(crate::stage::script())
                .args(["echo_client", FAR, "7661", "3000000"]);
            let client = Running::start(command, "client", toehold.dir());
            ok(client);
        } else {
            assert!(toehold.known()["engine"].is_null());
            let log = toehold.adapter().stderr();
            assert!(log.contains(said), "{log}");
        }
    }
}

#[test]
fn threads_without_work_sleep() {
    let Some(mut stage) = Stage::set(&["--threads", "4"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7671"]);
    ok(stage.near("many", &["many", FAR, "7671", "100"]));
    let adapter = stage.toehold.adapter().pid();
    let spent = || -> u64 {
        let stat = fs::read_to_string(format!("/proc/{adapter}/stat")).expect("it lives");
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        let words: Vec<&str> = rest.split_whitespace().collect();
        words[11..13]
            .iter()
            .map(|word| word.parse::<u64>().expect("ticks"))
            .sum()
    };
    // When the engine is idle, it must use less than a hundredth of a second in a whole second.
    let rests = wait_until(TIME_LIMIT, || {
        let before = spent();
        std::thread::sleep(Duration::from_secs(1));
        spent() == before
    });
    assert!(rests, "an idle engine uses the processor");
}
