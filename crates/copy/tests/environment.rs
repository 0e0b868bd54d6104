//! Limits and wrong settings: each gives one sentence, and copying goes on.
//!
//! Limits and variables belong to a process, so each test runs itself again in a process of its
//! own.

use std::process::Command;

use toehold_copy::{
    Buffer, Calibration, Waiting, Worker, WorkerOptions, names, open, reason_missing,
};

/// Runs the named test again with these variables, and `role` set, and expects it to pass.
fn again(test: &str, variables: &[(&str, &str)]) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads", "1"])
        .env("TOEHOLD_COPY_CALIBRATION", "off")
        .envs(variables.iter().copied())
        .env("ROLE", "child")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&status.stdout);
    // With a wrong test name no test would run, and that would be a success, too.
    let passed = status.status.success() && said.contains(" 1 passed");
    assert!(passed, "{said}");
}

fn is_child() -> bool {
    std::env::var_os("ROLE").is_some()
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: the limit is on our stack.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

#[test]
fn no_address_space_is_an_error_and_the_processor_copies() {
    if !is_child() {
        return again("no_address_space_is_an_error_and_the_processor_copies", &[]);
    }
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let (mut source, mut target) = (vec![3u8; 1000], vec![0u8; 1000]);
    limit(libc::RLIMIT_AS, pages * 4096 + 64 * 1024);
    assert_eq!(
        Buffer::new(64 << 20).err().unwrap().raw_os_error(),
        Some(libc::ENOMEM)
    );
    assert!(Worker::start(WorkerOptions::default()).is_err());
    let mut opened = open(Some("worker"), 4);
    assert_eq!(opened.channel.backend_name(), "cpu");
    assert!(opened.notes[0].starts_with("the copy worker could not be started"));
    source[0] = 4;
    opened
        .channel
        .scope(|scope| drop(scope.copy(&source, &mut target)));
    assert_eq!(target, source);
}

#[test]
fn a_limit_of_locked_memory_leaves_the_buffer_usable() {
    if !is_child() {
        return again("a_limit_of_locked_memory_leaves_the_buffer_usable", &[]);
    }
    limit(libc::RLIMIT_MEMLOCK, 0);
    // The limit does not bind root, which may lock any amount of memory.
    let nobody = 65534;
    // SAFETY: system calls without pointers.
    let dropped = unsafe { libc::setresuid(nobody, nobody, nobody) } == 0;
    let mut buffer = Buffer::new(10_000).unwrap();
    if dropped {
        assert!(buffer.lock().is_err());
    }
    buffer[9_999] = 1;
    assert_eq!(buffer[9_999], 1);
}

#[test]
fn a_wrong_engine_in_the_environment_is_reported_and_replaced() {
    if !is_child() {
        let wrong = [("TOEHOLD_COPY_ENGINE", "perpetuum-mobile")];
        return again(
            "a_wrong_engine_in_the_environment_is_reported_and_replaced",
            &wrong,
        );
    }
    let opened = open(None, 4);
    assert_eq!(opened.channel.backend_name(), "cpu");
    assert_eq!(opened.notes.len(), 1);
    let known = names().join(", ");
    assert_eq!(
        opened.notes[0],
        format!(
            "there is no copy engine `perpetuum-mobile` (there are {known}); the processor copies \
            instead"
        )
    );
    // An argument overrides the environment.
    assert_eq!(open(Some("cpu-nt"), 4).channel.backend_name(), "cpu-nt");
}

#[test]
fn every_name_opens_its_engine_or_says_why_not() {
    for name in names() {
        let mut opened = open(Some(name), 4);
        let is_it = opened.channel.backend_name() == name;
        assert_eq!(is_it, reason_missing(name).is_none(), "{name}");
        if !is_it {
            assert!(opened.notes[0].ends_with("; the processor copies instead"));
            assert!(!opened.notes[0].contains("there is no copy engine"));
        }
        let mut target = toehold_copy::Buffer::new(8).unwrap();
        opened
            .channel
            .scope(|scope| drop(scope.fill(&mut target, 0x0303_0303_0303_0303)));
        assert_eq!(target[..], [3; 8]);
    }
    assert!(reason_missing("perpetuum-mobile").is_some());
}

#[test]
fn a_wrong_copybreak_is_reported_and_the_measured_one_used() {
    if !is_child() {
        let wrong = [("TOEHOLD_COPYBREAK", "lots")];
        return again(
            "a_wrong_copybreak_is_reported_and_the_measured_one_used",
            &wrong,
        );
    }
    let (calibration, notes) = Calibration::of_this_machine();
    assert_eq!(
        notes,
        ["a copybreak is `off`, a size like `64K`, or `in=16K,out=off`, and not `lots`"]
    );
    assert_eq!(calibration.overridden, None);
}

#[test]
fn a_chosen_copybreak_is_used() {
    if !is_child() {
        return again(
            "a_chosen_copybreak_is_used",
            &[("TOEHOLD_COPYBREAK", "in=off,out=1")],
        );
    }
    let (calibration, notes) = Calibration::of_this_machine();
    assert_eq!(notes, [""; 0]);
    assert_eq!(calibration.copybreak_in.awake, usize::MAX);
    assert_eq!(calibration.copybreak_out.asleep, 1);
}

#[test]
fn a_calibration_is_remembered_and_a_spoilt_one_measured_again() {
    if !is_child() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("calibration");
        let path = [("TOEHOLD_COPY_CALIBRATION", file.to_str().unwrap())];
        return again(
            "a_calibration_is_remembered_and_a_spoilt_one_measured_again",
            &path,
        );
    }
    let file = std::env::var("TOEHOLD_COPY_CALIBRATION").unwrap();
    let (first, _) = Calibration::of_this_machine();
    assert!(!first.took.is_zero());
    // On a busy machine a measurement may be too coarse to keep.
    if std::path::Path::new(&file).exists() {
        let (second, _) = Calibration::of_this_machine();
        assert!(second.took.is_zero());
        assert_eq!(first.points, second.points);
    }
    std::fs::write(&file, "junk").unwrap();
    let (third, notes) = Calibration::of_this_machine();
    assert!(!third.took.is_zero());
    assert_eq!(notes, [""; 0]);
}

#[test]
fn a_parked_worker_uses_no_processor() {
    let mut channel = open(Some("worker"), 4).channel;
    let mut target = [0u8; 3];
    channel.scope(|scope| drop(scope.copy(&[1, 2, 3], &mut target)));
    // The worker spins for a while, and then its CPU clock stands still.
    let stands_still = (0..1000).any(|_| {
        let before = channel.helper_cpu_ns();
        std::thread::sleep(std::time::Duration::from_millis(10));
        before > Some(0) && channel.helper_cpu_ns() == before
    });
    assert!(stands_still);
    channel.scope(|scope| assert!(scope.fill(&mut target, 0).wait(Waiting::PARK).is_ok()));
}
