//! The steps of each command, their order and their options.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::steps::{Steps, Urgency};
use crate::{
    circles, links, modules, notices, orderings, packetdrill, rfc, root, target, text, tools, tour,
};

/// Seeds of the simulator in a full test; less than half a minute on one core.
const SIM_SEEDS: &str = "1000";
/// Crates with loom models, and the tests that hold them.
const MODELS: [(&str, &str, &[&str]); 2] = [
    ("toehold-stream", "loom: stream", &["--test", "loom"]),
    ("toehold-copy", "loom: copy", &["--lib", "model"]),
];

/// Formatting, lints, scripts, links, the form of the text.
pub(crate) fn check() -> bool {
    let mut steps = Steps::default();
    add_checks(&mut steps);
    steps.conclude()
}

/// All steps.
pub(crate) fn test() -> bool {
    let mut steps = Steps::default();
    add_computations(&mut steps);
    add_quick_checks(&mut steps);
    // Both lanes take about the same time. Most of their tests wait for programs and timers, and
    // each is in network namespaces and folders of its own. Compilers wait, too: for the one crate
    // that all others need.
    steps.run_lanes(vec![
        Box::new(|lane| {
            add_tests(lane);
            add_sim(lane);
            add_e2e(lane, "end to end", &all_but_offload());
        }),
        Box::new(|lane| {
            add_suites(lane);
            add_e2e(lane, "offload", &["--test", OFFLOAD]);
            add_offload(lane);
            // Under drawn settings the tests of the workspace run every pair of circumstances.
            add_interoperability(lane, &["--exact", "every_cell"], None);
            packetdrill::add(lane);
            add_everything_express(lane);
            add_package(lane);
            // Last: its Debian is made beside the lanes, and needs to be there by then.
            add_tour(lane);
        }),
    ]);
    steps.conclude()
}

/// All tests but the end-to-end tests.
fn add_tests(steps: &mut Steps) {
    steps.run_tests(
        "tests",
        || {
            let mut command = cargo();
            command.args(["test", "--workspace", "--exclude=toehold-e2e"]);
            command.arg("--no-fail-fast");
            command
        },
        // A skip that the runner captured would be as silent as a pass.
        &["--show-output"],
    );
    add_devices(steps);
}

/// The loom models alone.
pub(crate) fn loom() -> bool {
    let mut steps = Steps::default();
    for (name, mut command) in models() {
        steps.run(name, &mut command);
    }
    steps.conclude()
}

/// Tests of code that works on shared memory, with the compiler's sanitizers: they check real
/// threads for the faults for which Miri checks.
pub(crate) fn sanitize() -> bool {
    let mut steps = Steps::default();
    if !works(cargo().args(["+nightly", "--version"])) {
        steps.skip("sanitizers", "there is no nightly toolchain");
        return steps.conclude();
    }
    let address = Sanitizer {
        flag: "-Zsanitizer=address",
        // Tests forget some memory on purpose: it is not worth a report.
        options: ("ASAN_OPTIONS", "detect_leaks=0"),
        builds_std: false,
    };
    let thread = Sanitizer {
        flag: "-Zsanitizer=thread",
        options: ("TSAN_OPTIONS", "halt_on_error=0"),
        // Locks, channels and scopes of threads are in the standard library: unless it is built
        // with the sanitizer, their synchronization is invisible and looks like a race.
        builds_std: true,
    };
    // Under the thread sanitizer a child of a fork may not start threads, and limits of address
    // space leave no room for it.
    let copy = [
        "--lib",
        "--test=scope",
        "--test=states",
        "--test=flags",
        "--test=waiting",
        "--test=differential",
        "--test=corpus",
        "--test=dsa",
    ];
    let with_fork: Vec<&str> = copy.into_iter().chain(["--test=fork"]).collect();
    let shared = ["toehold-channel", "toehold-stream", "toehold-sockets"];
    let copies = ["toehold-copy"];
    let mut watch = |name, sanitizer, packages, tests, without| {
        watch(&mut steps, name, sanitizer, packages, tests, without);
    };
    watch(
        "copy: address sanitizer",
        &address,
        &copies[..],
        &with_fork[..],
        None,
    );
    // Sanitizers make `mlock` a no-op, so that no memory is locked in that test.
    let locked = Some("pairs_with_many_peers_are_locked_as_they_are_touched");
    // Programs of the documentation are built without the flag.
    let all = ["--lib", "--tests"];
    watch("address sanitizer", &address, &shared, &all, locked);
    if has_standard_library_source() {
        watch("copy: thread sanitizer", &thread, &copies, &copy, None);
        watch("thread sanitizer", &thread, &shared, &all, locked);
    } else {
        let reason = "rustup component add rust-src --toolchain nightly";
        steps.skip("thread sanitizer", reason);
    }
    steps.conclude()
}

/// A sanitizer of the compiler's.
struct Sanitizer {
    /// The compiler's flag.
    flag: &'static str,
    /// The variable that the sanitizer's library reads, and its value.
    options: (&'static str, &'static str),
    /// Whether the standard library is built with it.
    builds_std: bool,
}

/// Whether the nightly toolchain comes with the source of the standard library.
fn has_standard_library_source() -> bool {
    let output = Command::new("rustc")
        .args(["+nightly", "--print", "sysroot"])
        .output();
    let root = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    root.is_ok_and(|root| {
        Path::new(root.trim())
            .join("lib/rustlib/src/rust/library")
            .is_dir()
    })
}

/// Runs the `tests` of `packages`, except those with `without` in their names.
fn watch(
    steps: &mut Steps,
    name: &'static str,
    sanitizer: &Sanitizer,
    packages: &[&str],
    tests: &[&str],
    without: Option<&str>,
) {
    let mut command = cargo();
    let (variable, options) = sanitizer.options;
    command
        .env("RUSTFLAGS", sanitizer.flag)
        .env(variable, options)
        .env("CARGO_TARGET_DIR", target().join("sanitize"))
        .args(["+nightly", "test", "--no-fail-fast", "--target", HOST]);
    command.args(sanitizer.builds_std.then_some("-Zbuild-std"));
    for package in packages {
        command.args(["-p", package]);
    }
    command.args(tests).args(["--", "--test-threads", "1"]);
    if let Some(name) = without {
        command.args(["--skip", name]);
    }
    steps.run(name, &mut command);
}

/// Sanitizers need an explicit target, so that build scripts run without them.
const HOST: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// The seeds of one night. Each day has different seeds.
const NIGHTLY_SEEDS: u64 = 1_000_000;

/// The simulator: its fixed set of seeds, those of a night, or one seed in detail.
pub(crate) fn sim(seed: Option<&str>) -> bool {
    let mut steps = Steps::default();
    match seed {
        None => add_sim(&mut steps),
        Some("nightly") => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let day = now.map_or(0, |now| now.as_secs() / 86_400);
            let mut command = simulator("simulator");
            // It takes a sixth less time, which is worth the compilation for a million seeds.
            command.env("RUSTFLAGS", "-C target-cpu=native");
            command.args(["--first", &(day * NIGHTLY_SEEDS).to_string()]);
            command.args(["--seeds", &NIGHTLY_SEEDS.to_string()]);
            command.args(["--jobs", &cores().to_string()]);
            steps.run("simulator, nightly", &mut command);
            let mut command = cargo();
            command.env("TOEHOLD_ALL_NUMBERS", "1");
            command.args(["test", "-p", "toehold-tcp", "--lib", "position"]);
            steps.run("every sequence number", &mut command);
            let mut command = cargo();
            command.env("TOEHOLD_ALL_SEEDS", "1");
            command.args(["test", "-p", "toehold-tcp", "--lib", "shares_a_bottleneck"]);
            steps.run("shares of a bottleneck", &mut command);
        }
        Some(seed) => steps.run(
            "simulator",
            simulator("release").args(["--seed", seed, "--trace"]),
        ),
    }
    steps.conclude()
}

/// Every cell of the matrix against the kernel's TCP, or those with `filter` in their names.
pub(crate) fn interoperability(filter: Option<&str>) -> bool {
    let mut steps = Steps::default();
    add_interoperability(&mut steps, &[], filter);
    steps.conclude()
}

/// The end-to-end tests.
pub(crate) fn e2e(filter: Option<&str>) -> bool {
    let mut steps = Steps::default();
    let filter: Vec<&str> = filter.into_iter().collect();
    add_e2e(&mut steps, "end to end", &filter);
    steps.conclude()
}

/// Every fuzz target for a while.
pub(crate) fn fuzz(seconds: Option<&str>) -> bool {
    let mut steps = Steps::default();
    let manifest = root().join("fuzz/Cargo.toml");
    let manifest = fs::read_to_string(manifest).unwrap_or_default();
    let limit = format!("-max_total_time={}", seconds.unwrap_or("60"));
    if !works(cargo().args(["fuzz", "--version"])) {
        steps.skip("fuzz", "cargo-fuzz is not installed");
        return steps.conclude();
    }
    for target in fuzz_targets(&manifest) {
        let mut command = cargo();
        steps.run(
            "fuzz",
            command.args(["+nightly", "fuzz", "run", target, "--", &limit]),
        );
    }
    steps.conclude()
}

/// Measurements without real programs: copies, and the engine alone.
pub(crate) fn bench() -> bool {
    let mut steps = Steps::default();
    let toehold = target().join("release/toehold");
    steps.run(
        "copy engine",
        Command::new(toehold).args(["lab", "run", "ioat-copy"]),
    );
    for what in ["receive", "send", "request"] {
        let mut command = cargo();
        command.args(["run", "--release", "-p", "toehold-tcp"]);
        command.args(["--example", "segments", "--", what]);
        steps.run("engine", command.args(["--flows", "1000"]));
    }
    steps.conclude()
}

/// Begins the steps without a limit of time: they run beside the others, of which many mostly wait.
fn add_computations(steps: &mut Steps) {
    let this = std::env::current_exe().expect("a running program has a path");
    let mut system = Command::new(this);
    system.args(["tour", "--prepare"]);
    steps.run_beside(Urgency::Awaited, vec![("tour: its Debian", system)]);
    let mut lints = clippy();
    // A separate directory: two commands of cargo's never compile in one directory at a time.
    lints.env("CARGO_TARGET_DIR", target().join("clippy"));
    // Side by side, so that both processors have work when the lanes have ended.
    steps.run_beside(Urgency::Idle, vec![("clippy", lints)]);
    steps.run_beside(Urgency::Idle, models().collect());
}

fn add_checks(steps: &mut Steps) {
    steps.run("clippy", &mut clippy());
    add_quick_checks(steps);
}

fn clippy() -> Command {
    let mut command = cargo();
    command.args(["clippy", "--workspace", "--all-targets", "--quiet"]);
    command.args(["--", "-D", "warnings"]);
    command
}

fn add_quick_checks(steps: &mut Steps) {
    steps.run("format", cargo().args(["fmt", "--all", "--check"]));
    // Alone, so that no other package adds features: both must do without the standard library.
    steps.run(
        "stream: no std",
        cargo().args(["check", "--quiet", "--package", "toehold-stream"]),
    );
    if works(Command::new("shellcheck").arg("--version")) {
        let mut command = Command::new("shellcheck");
        steps.run(
            "scripts",
            command
                .args([".ci/run", "tests/programs/stage"])
                .args(scripts(&root().join("scripts"))),
        );
        // `stage` reads these scripts: they have no first line, and use its variables.
        let mut command = Command::new("shellcheck");
        command.args(["--shell", "bash", "--severity", "warning"]);
        steps.run(
            "cases of programs",
            command.args(scripts(&root().join("tests/programs"))),
        );
    } else {
        steps.skip("scripts", "shellcheck is not installed (make deps)");
    }
    steps.check("links", || links::check(root()));
    steps.check("modules", || modules::check(root()));
    steps.check("notices", || notices::check(root()));
    steps.check("text", || text::check(root()));
    steps.check("circles", || circles::check(root()));
    steps.check("orderings", || orderings::check(root()));
    steps.check("rfc", || rfc::check(root(), false));
    steps.check("tools", || tools::check(root()));
}

/// DPDK's DMA devices: the skeleton device needs no hardware.
fn add_devices(steps: &mut Steps) {
    let name = "copy: dmadev";
    if works(Command::new("pkg-config").args(["--exists", "libdpdk"])) {
        let mut command = cargo();
        command.args(["test", "-p", "toehold-copy", "--features", "dmadev"]);
        steps.run(name, command.args(["--test", "dmadev"]));
    } else {
        steps.skip(name, "libdpdk-dev is not installed");
    }
}

fn models() -> impl Iterator<Item = (&'static str, Command)> {
    MODELS.into_iter().map(|(package, name, which)| {
        let mut command = cargo();
        // A separate directory: the flag would otherwise rebuild everything, twice.
        command
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", target().join("loom"))
            .args(["test", "--profile", "loom", "-p", package])
            .args(which);
        (name, command)
    })
}

fn add_sim(steps: &mut Steps) {
    let seeds = std::env::var("TOEHOLD_SIM_SEEDS").unwrap_or_else(|_| SIM_SEEDS.to_owned());
    // As the tests have compiled it, with its debug assertions. To optimize it takes more time than
    // these seeds save then.
    let mut command = simulator("dev");
    command.args(["--seeds", &seeds, "--jobs", &cores().to_string()]);
    steps.run("simulator", &mut command);
}

/// Runs the cells with `filter` in their names, in the tests that `which` chooses.
fn add_interoperability(steps: &mut Steps, which: &[&str], filter: Option<&str>) {
    let mut command = cargo();
    // Of the whole workspace, so that the features of shared code are those of the other tests, and
    // nothing is compiled again.
    command.args(["test", "--workspace", "--exclude=toehold-e2e"]);
    command.args(["--test", "interoperability"]);
    command.args(["--", "--ignored", "--nocapture"]).args(which);
    if let Some(filter) = filter {
        command.env("TOEHOLD_MATRIX_CELLS", filter);
    }
    steps.run("interoperability", &mut command);
}

/// The test program of the offload path. It takes longest, and has a step of its own.
const OFFLOAD: &str = "offload";

/// Runs the end-to-end tests that `arguments` of `cargo test` choose.
fn add_e2e(steps: &mut Steps, name: &'static str, arguments: &[impl AsRef<OsStr>]) {
    let command = || {
        let mut command = end_to_end();
        command.args(arguments);
        command
    };
    steps.run_tests(name, command, &[]);
}

/// Arguments of `cargo test` for all end-to-end tests but those of [`OFFLOAD`].
fn all_but_offload() -> Vec<String> {
    // The library has tests, too, and so have some of the programs under test. The others are not
    // compiled a second time, as test programs without a test.
    let mut arguments = vec!["--lib".to_owned()];
    let programs = test_programs(&root().join("tests/tests"));
    let programs = programs.into_iter().filter(|program| program != OFFLOAD);
    arguments.extend(programs.flat_map(|program| ["--test".to_owned(), program]));
    let programs = programs_with_tests(&root().join("tests/bin")).into_iter();
    arguments.extend(programs.flat_map(|program| ["--bin".to_owned(), program]));
    arguments
}

/// The names of the folders in `folder` that have a source with a test.
fn programs_with_tests(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let programs = entries.filter(|entry| has_test(&entry.path()));
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    programs.map(name).collect()
}

/// Whether a file, or one of a folder, has a test.
fn has_test(path: &Path) -> bool {
    if path.is_dir() {
        let mut entries = fs::read_dir(path).into_iter().flatten().flatten();
        return entries.any(|entry| has_test(&entry.path()));
    }
    fs::read_to_string(path).is_ok_and(|source| source.contains("#[test]"))
}

/// The names of the test programs whose sources are in a folder.
fn test_programs(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_program = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "rs")
            || path.join("main.rs").is_file()
    };
    let paths = entries.map(|entry| entry.path()).filter(is_program);
    let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> = paths.filter_map(name).collect();
    names.sort();
    names
}

/// Runs the groups of the semantics suite again, with every connection on a used carrier.
fn add_everything_express(steps: &mut Steps) {
    let command = || {
        let mut command = end_to_end();
        command.args(["--test", "semantics"]);
        command.env("E2E_EVERYTHING_EXPRESS", "1");
        command
    };
    // These groups have no such connections, or have been run.
    let others = [
        "one_accelerated_side",
        "over_unix",
        "cases_are_reproducible",
        "every_group_has_cases",
        "connections_end_while",
        "signals_interrupt_programs_that_poll",
        "programs_in_another_namespace",
    ];
    let skips: Vec<&str> = others.iter().flat_map(|name| ["--skip", name]).collect();
    steps.run_tests("everything express", command, &skips);
}

/// Builds the Debian package from the programs that the end-to-end tests have built, and runs
/// lintian.
fn add_package(steps: &mut Steps) {
    if works(Command::new("lintian").arg("--version")) {
        let mut command = Command::new("bash");
        command.arg("scripts/deb.sh").arg(target().join("release"));
        // Nobody keeps this package, and a small one takes seven times as long.
        command.env("DPKG_DEB_COMPRESSOR_LEVEL", "0");
        steps.run("package", &mut command);
    } else {
        steps.skip(
            "package",
            "lintian is not installed (make test installs it)",
        );
    }
}

/// The operator's tour, with the package made just before.
fn add_tour(steps: &mut Steps) {
    let this = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(this);
    command.arg("tour").args(tour::package());
    steps.run("tour", &mut command);
}

/// Tests that mostly wait for programs, so more of them run at a time than there are cores.
///
/// They build the product in the release profile themselves, because they run the installed
/// product. The tests use the profile of all other tests, so that shared code is compiled once.
fn end_to_end() -> Command {
    let mut command = cargo();
    command.args(["test", "-p", "toehold-e2e", "--no-fail-fast"]);
    command.env("RUST_TEST_THREADS", (2 * cores()).to_string());
    command.env("E2E_TRANSCRIPTS", transcripts());
    command
}

/// The folder of the kernel's transcripts of semantics cases, which all end-to-end tests of this
/// run share. It is empty at first.
fn transcripts() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = target().join("transcripts");
        let _ = fs::remove_dir_all(&folder);
        // Without it each process plays every case on the kernel itself.
        let _ = fs::create_dir_all(&folder);
        folder
    })
}

/// The quick part of the suites of other projects.
fn add_suites(steps: &mut Steps) {
    let this = std::env::current_exe().expect("a running program has a path");
    steps.run(
        "suites of others",
        Command::new(this).args(["suites", "--quick"]),
    );
}

/// Tests of the offload path that fix their link and their number of threads, so another run with
/// other values would not differ. A test that is in none of these lists runs in every way.
const NAMES_LINK_AND_THREADS: &[&str] = &[
    "capture::only_an_adapter_with_a_link_can_be_captured",
    "packet::payload_of_several_programs_is_read_to_where_it_belongs",
    "payload_is_copied_by_a_copy_engine_and_every_byte_arrives",
    "payload_over_ipv6_is_read_to_where_it_belongs",
    "quota::program_with_many_connections_leaves_descriptors_to_others",
    "switches_are_thrown_under_a_stream",
    "threads::devices_made_for_one_queue_are_refused_with_what_helps",
    "without_a_tap_device_everything_stays_on_the_host_path",
];

/// Tests that fix their link, but not the number of threads.
const NAMES_LINK: &[&str] = &[
    "changes::device_of_the_adapter_s_own_has_room_for_a_frame_of_each_of_many_connections",
    "checksums_are_verified_here_or_by_nobody",
    "kills::",
    "packet::",
    "payload_of_a_lone_stream_is_read_to_where_it_belongs",
    "remotes::thousands_of_hostile_remotes_stay_within_the_budget",
    "shared::",
    "xdp::",
];

/// Tests of the part between programs and the engine: quotas, rules, requests, used carriers. The
/// engine treats these equally on every link. The tests of short connections of all kinds cover the
/// link's frames of such connections.
const ABOUT_PROGRAMS: &[&str] = &[
    "hostile::carriers_without_their_program_s_token_are_refused",
    "hostile::flooded_relay_serves_those_who_say_what_they_want",
    "hostile::invalid_requests_harm_no_connection",
    "hostile::shared_words_that_are_rewritten_end_their_own_connections",
    "policy::a_rule_can_forbid_shared_memory_and_the_engine",
    "policy::rules_choose_by_destination_for_programs_that_did_not_ask",
    "quota::program_at_its_quota_is_refused_until_it_has_closed_some",
    "quota::remotes_of_a_program_at_its_quota_are_reset_until_there_is_room",
    "short::carriers_end_with_their_listener",
    "short::carriers_of_several_workers_are_used_and_end_with_them",
    "short::carriers_serve_programs_of_other_users_while_their_listener_is_there",
    "short::no_carrier_of_the_engine_is_used_again_where_the_option_says_off",
    "short::program_lives_on_when_the_adapter_is_killed_with_its_carriers",
    "short::program_that_speaks_first_is_told_of_connections_on_used_carriers",
    "short_opens::carriers_serve_clients_of_other_users",
    "short_opens::client_lives_on_when_the_adapter_is_killed_with_its_carriers",
    "short_opens::connections_on_used_carriers_survive_a_fork_before_their_answer",
    "short_opens::connections_on_used_carriers_survive_an_exec_before_their_answer",
    "short_opens::connections_on_used_carriers_survive_an_exec_while_the_adapter_is_stopped",
    "short_opens::first_bytes_of_a_server_reach_a_program_on_used_carriers",
    "short_opens::no_carrier_of_a_client_is_used_again_where_the_option_says_off",
];

/// Tests of the calls of programs, of the addresses where they listen, and of commands. Neither
/// the link nor the engine's threads take part in what they examine: the first way has shown it.
const ABOUT_CALLS_AND_COMMANDS: &[&str] = &[
    "addresses::listener_",
    "addresses::programs_of_the_host",
    "capture::lines_are_for_reading_and_filters_choose",
    "capture::reader_that_stops_reading_stops_nothing_else",
    "changes::connections_behave_as_the_lines_for_their_destinations_say",
    "fast_open::an_adapter_that_dies_behind_a_request_is_an_error",
    "fast_open::programs_hear_that_a_message_with_payload_was_refused",
    "hostile::carriers_without_their_program_s_token_are_refused",
    "hostile::invalid_requests_harm_no_connection",
    "policy::",
    "programs::curl_fetches_files_byte_for_byte",
    "programs::redis_serves_a_remote_benchmark",
    "servers::ssh_reaches_a_remote_sshd",
    "servers::sshd_serves_a_remote_ssh",
    "servers::wrk_and_curl_load_a_remote_nginx",
    "short::no_carrier_of_the_engine_is_used_again_where_the_option_says_off",
    "short_opens::connections_on_used_carriers_survive_an_exec_before_their_answer",
    "short_opens::connections_on_used_carriers_survive_an_exec_while_the_adapter_is_stopped",
    "short_opens::no_carrier_of_a_client_is_used_again_where_the_option_says_off",
];

/// Tests that fix their link, and that look at the host's rules, at its ports and addresses, or at
/// the interface. The threads share these, or one thread has them. The budget of memory is divided
/// among the threads.
const NAMES_LINK_AND_LOOKS_AT_THE_HOST: &[&str] = &[
    "kills::connections_go_out_after_every_kill",
    "kills::kernels_connections_outlive_every_kill",
    // `link_that_goes_down_and_comes_back_loses_nothing` plays it over this link.
    "packet::interface_that_goes_down_and_comes_back_loses_nothing",
    "remotes::thousands_of_hostile_remotes_stay_within_the_budget",
    "shared::engine_and_kernel_serve_at_one_ipv6_address",
    "shared::nginx_serves_at_the_hosts_own_address",
    "shared::remotes_are_served_by_all_kinds_of_routes",
    "shared::what_cannot_be_shared_is_said",
];

/// Tests of channels between programs and the engine, and of payload in a SYN. Frames of both are
/// like others. They run with one thread and with two.
const ABOUT_CHANNELS_AND_SYNS: &[&str] = &[
    "busy_connections_get_channels_and_give_them_back",
    "channel_that_was_taken_back_is_asked_for_again",
    "fast_open::",
    "hostile::program_that_never_reads_and_one_that_stops_hold_up_nobody",
];

/// Runs the offload path in other ways. Each way takes a minute or two, so two threads are combined
/// with the packet link only. Tests that would find nothing new are not repeated.
fn add_offload(steps: &mut Steps) {
    let two_threads = ("TOEHOLD_ENGINE_THREADS", "2");
    let over = |link| ("TOEHOLD_ENGINE_LINK", link);
    let but = |lists: &[&[&'static str]]| -> Vec<&'static str> {
        let all = lists.iter().flat_map(|list| list.iter());
        all.flat_map(|&part| ["--skip", part]).collect()
    };
    let ways: [(&str, &[(&str, &str)], _); 2] = [
        (
            "offload, packet link, two threads",
            &[over("packet"), two_threads],
            but(&[
                NAMES_LINK_AND_THREADS,
                NAMES_LINK_AND_LOOKS_AT_THE_HOST,
                ABOUT_CALLS_AND_COMMANDS,
                &["xdp::", "_over_an_xdp_link"],
            ]),
        ),
        (
            "offload, xdp link",
            &[over("xdp")],
            but(&[
                NAMES_LINK_AND_THREADS,
                NAMES_LINK,
                ABOUT_PROGRAMS,
                ABOUT_CALLS_AND_COMMANDS,
                ABOUT_CHANNELS_AND_SYNS,
            ]),
        ),
    ];
    for (name, settings, options) in ways {
        let command = || {
            let mut command = end_to_end();
            command.args(["--test", "offload"]);
            command.envs(settings.iter().copied());
            command
        };
        steps.run_tests(name, command, &options);
    }
}

fn simulator(profile: &str) -> Command {
    let mut command = cargo();
    command.args(["run", "--profile", profile, "-p", "toehold-tcp"]);
    command.args(["--bin", "toehold-sim", "--"]);
    command
}

fn cargo() -> Command {
    Command::new("cargo")
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn scripts(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut scripts: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sh"))
        .collect();
    scripts.sort();
    scripts
}

/// The names of `[[bin]]` sections.
fn fuzz_targets(manifest: &str) -> Vec<&str> {
    manifest
        .split("[[bin]]")
        .skip(1)
        .filter_map(|section| {
            let line = section.lines().find(|line| line.starts_with("name"))?;
            line.split('"').nth(1)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_files_and_folders_with_a_main_file() {
        let programs = test_programs(&root().join("tests/tests"));
        let has = |name: &str| programs.iter().any(|program| program == name);
        assert!(has("semantics") && has(OFFLOAD) && has("freestanding"));
        // A folder of that name has C sources, and the program is a file beside it.
        assert_eq!(
            programs
                .iter()
                .filter(|name| *name == "freestanding")
                .count(),
            1
        );
    }

    #[test]
    fn programs_under_test_are_test_programs_only_where_they_have_tests() {
        let programs = programs_with_tests(&root().join("tests/bin"));
        assert_eq!(programs, ["programs"]);
        assert!(all_but_offload().ends_with(&["--bin".to_owned(), "programs".to_owned()]));
    }

    #[test]
    fn fuzz_targets_are_those_of_the_manifest() {
        let manifest = "[package]\nname = \"fuzz\"\n\n\
            [[bin]]\nname = \"frames\"\npath = \"a\"\n\n[[bin]]\nname = \"messages\"\n";
        assert_eq!(fuzz_targets(manifest), ["frames", "messages"]);
    }
}
