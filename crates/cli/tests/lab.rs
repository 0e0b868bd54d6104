//! `toehold lab` from the outside, on kernel sockets and bare threads: neither needs the library.
//! Tests of network namespaces need root.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

const PLAN: &str = "name = \"tiny\"\nabout = \"A test.\"\nrounds = 2\nseconds = 0.1\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\n\
    [[arm]]\nname = \"unix\"\npath = \"host\"\nfamily = \"unix\"\n\
    [[arm]]\nname = \"limit\"\npath = \"limit\"\n\
    [[block]]\ntitle = \"small\"\nmetric = \"latency-p50\"\npattern = \"ping-pong\"\n\
    sweep = { factor = \"message\", values = [1, 64] }\n\
    [[block]]\ntitle = \"short\"\nmetric = \"rate\"\npattern = \"connect\"\n";

/// A folder of the test's own, removed at its end.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("room"))
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("room");
        path.to_string_lossy().into_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }
}

/// A folder with a plan in it. Returns the folder, the plan's path, and the path of a run to come.
fn with_plan(text: &str) -> (Folder, String, String) {
    let folder = Folder::new();
    let (plan, run) = (folder.file("plan.toml", text), folder.path("run"));
    (folder, plan, run)
}

fn json_of(words: &[&str]) -> Value {
    serde_json::from_str(&text_of(&lab(words))).expect("JSON")
}

/// Waits for the first round of a run.
fn await_a_round(first: &mut Child, run: &str) {
    while rounds_done(run) == 0 {
        let ended = first.try_wait().expect("a status");
        assert_eq!(ended, None, "ended by itself");
        thread::yield_now();
    }
}

fn lab(words: &[&str]) -> Output {
    command(words).output().expect("toehold runs")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
    command.arg("lab").args(words);
    command
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_plan_of_one_s_own_is_run_kept_and_reported() {
    let (folder, plan, run) = with_plan(PLAN);
    let output = lab(&["run", &plan, "--out", &run, "--json"]);
    assert!(output.status.success(), "{}", error_of(&output));
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(record["schema"], "toehold-lab-run/1");
    assert_eq!(record["rounds_done"], 2);
    // Two points of three arms and the base again, and connections without a limit.
    let samples = record["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 2 * (2 * 4 + 3));
    assert!(
        samples.iter().all(|sample| sample["failure"].is_null()),
        "{samples:?}"
    );

    let page = fs::read_to_string(folder.0.path().join("run/report.html")).expect("a page");
    assert!(page.contains("class=conclusion") && page.ends_with("</html>\n"));
    let text = text_of(&lab(&["report", &run]));
    assert!(
        text.contains("\nsmall: ") && text.contains("of limit"),
        "{text}"
    );
    assert!(text.contains("negative control \"kernel again\""), "{text}");
    let csv = text_of(&lab(&["report", &run, "--csv"]));
    assert!(csv.lines().count() > samples.len(), "{csv}");
    let both = text_of(&lab(&["compare", &run, &run]));
    assert!(both.contains("not interleaved"), "{both}");
    let both: Value = json_of(&["compare", &run, &run, "--json"]);
    let row = &both["blocks"][0]["rows"][0];
    assert_eq!(row["arm"], "kernel", "{both}");
    assert!(row["a"].is_number() && row["a"] == row["b"], "{both}");

    let again = lab(&["run", &plan, "--out", &run]);
    assert_eq!(again.status.code(), Some(2));
    assert!(error_of(&again).contains("resume"), "{}", error_of(&again));
}

#[test]
fn experiments_are_listed_and_shown_as_json_too() {
    let all = json_of(&["list", "--json"]);
    let names = |of: &str, key: &str| -> Vec<String> {
        let listed = all[of].as_array().expect("a list").iter();
        listed
            .map(|one| one[key].as_str().expect("a name").to_owned())
            .collect()
    };
    let text = text_of(&lab(&["list"]));
    for name in names("plans", "name")
        .iter()
        .chain(&names("series", "name"))
    {
        let begins = |line: &str| line.split(' ').next() == Some(name);
        assert!(text.lines().any(begins), "{name}");
    }
    let experiments = names("experiments", "id");
    assert!(!experiments.is_empty());
    assert!(
        experiments
            .iter()
            .all(|id| text.contains(&format!("\n  {id} ")))
    );
    let quick = json_of(&["show", "quick", "--json"]);
    assert_eq!(quick["name"], "quick");
    assert!(
        quick["arm"].is_array() && quick["block"].is_array(),
        "{quick}"
    );
}

#[test]
fn sockmap_and_one_copy_are_measured_or_the_report_says_why_not() {
    let folder = Folder::new();
    let arms = "[[arm]]\nname = \"kernel\"\npath = \"host\"\n\
        [[arm]]\nname = \"map\"\npath = \"sockmap\"\n\
        [[arm]]\nname = \"pull\"\npath = \"one-copy\"\n";
    let block = |pattern: &str| {
        format!("[[block]]\ntitle = \"{pattern}\"\nmetric = \"rate\"\npattern = \"{pattern}\"\n")
    };
    let plan = format!(
        "name = \"arms\"\nabout = \"A test.\"\nrounds = 2\nseconds = 0.2\n{arms}{}{}{}",
        block("ping-pong"),
        // The sums of both ends have to agree: no byte is lost or changes places.
        block("both") + "message = 65536\nstreams = 4\ntouch = true\n",
        block("requests") + "streams = 20\n",
    );
    let plan = folder.file("arms.toml", &plan);
    let run = folder.path("run");
    let mut command = command(&["run", &plan, "--out", &run, "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("toehold runs");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", error_of(&output));
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = text_of(&lab(&["report", &run]));
    let missing = record["missing"].as_array().expect("a list");
    let samples = record["samples"].as_array().expect("samples");
    for arm in ["map", "pull"] {
        let own = samples.iter().filter(|sample| sample["arm"] == arm);
        let why = missing.iter().find(|missing| missing["arm"] == arm);
        match why {
            None => {
                let all = if arm == "map" { 3 } else { 1 };
                assert_eq!(own.clone().count(), 2 * all, "{arm}");
                for sample in own {
                    assert!(sample["failure"].is_null(), "{sample}");
                }
            }
            Some(missing) => {
                assert_eq!(own.count(), 0);
                let why = missing["why"].as_str().expect("a sentence");
                eprintln!("SKIPPED: {arm}: {why}");
                assert!(text.contains(why), "{text}");
            }
        }
    }
    // Every call of the arm was redirected.
    assert_eq!(record["stayed"], serde_json::json!([]));
    // The arm's control group is gone.
    let own = format!("toehold-lab-{pid}-");
    for place in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        let groups = fs::read_dir(place).into_iter().flatten().flatten();
        let mut names = groups.map(|group| group.file_name());
        assert!(!names.any(|name| name.to_string_lossy().starts_with(&own)));
    }
}

#[test]
fn a_dry_run_says_how_long_it_takes_and_measures_nothing() {
    let folder = Folder::new();
    let plan = folder.file("tiny.toml", PLAN);
    let run = folder.path("run");
    let output = lab(&["run", &plan, "--dry-run", "--out", &run, "--rounds", "9"]);
    assert!(output.status.success(), "{}", error_of(&output));
    let text = text_of(&output);
    assert!(
        text.contains("9 rounds") && text.contains("about"),
        "{text}"
    );
    assert!(!folder.0.path().join("run").exists());
    let text = text_of(&lab(&["run", "paper", "--dry-run"]));
    assert!(
        text.contains("toe-latency") && text.contains("all together"),
        "{text}"
    );
    assert!(text_of(&lab(&["list"])).contains(" min  "));
}

#[test]
fn an_interrupted_run_is_resumed_and_leaves_nothing_behind() {
    let text = PLAN.replace("rounds = 2", "rounds = 4\nwarmup-rounds = 0");
    let (_folder, plan, run) = with_plan(&text);
    let scratch = Folder::new();
    let mut first = command(&["run", &plan, "--out", &run])
        .env("TMPDIR", scratch.0.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("toehold runs");
    await_a_round(&mut first, &run);
    // SAFETY: `kill` touches no memory; the target is our child, which was not reaped yet.
    unsafe { libc::kill(first.id() as libc::pid_t, libc::SIGINT) };
    let status = first.wait().expect("it ends");
    let done = rounds_done(&run);
    // The run may just have finished.
    assert!(status.code() == Some(1) || done == 4, "{status:?}");
    assert_eq!(fs::read_dir(scratch.0.path()).expect("there").count(), 0);
    let output = lab(&["resume", &run]);
    assert!(output.status.success(), "{}", error_of(&output));
    assert_eq!(rounds_done(&run), 4);
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let folder = Folder::new();
    let plan = folder.file("tiny.toml", PLAN);
    let scratch = Folder::new();
    let mut first = command(&["run", &plan, "--out", &folder.path("a")])
        .env("TMPDIR", scratch.0.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("toehold runs");
    let left = || fs::read_dir(scratch.0.path()).expect("there").count();
    while left() == 0 {
        thread::yield_now();
    }
    first.kill().expect("alive");
    first.wait().expect("reaped");
    assert_eq!(left(), 1);
    let output = command(&["run", &plan, "--out", &folder.path("b"), "--rounds", "1"])
        .env("TMPDIR", scratch.0.path())
        .output()
        .expect("toehold runs");
    assert!(output.status.success(), "{}", error_of(&output));
    assert_eq!(left(), 0);
}

/// Whether namespaces can be made here; says so loudly otherwise.
fn is_root() -> bool {
    // SAFETY: the call takes nothing and always succeeds.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("SKIPPED: network namespaces need root");
    }
    is_root
}

/// Namespaces of the run with this process number.
fn namespaces_of(run: u32) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let prefix = format!("toehold-lab-{run}-");
    names.filter(|name| name.starts_with(&prefix)).collect()
}

const LINKED: &str = "name = \"linked\"\nabout = \"A test.\"\nrounds = 2\nseconds = 0.1\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\nlink = \"veth\"\n\
    [[arm]]\nname = \"no offloads\"\npath = \"host\"\nlink = \"veth\"\nmtu = 9000\n\
    lso = false\nlro = false\n\
    [[block]]\ntitle = \"bulk\"\nmetric = \"throughput\"\npattern = \"to-server\"\n\
    message = 65536\nsweep = { factor = \"ports\", values = [1, 2] }\n";

#[test]
fn arms_with_links_run_between_namespaces_of_their_own() {
    if !is_root() {
        return;
    }
    let (_folder, plan, run) = with_plan(LINKED);
    let child = command(&["run", &plan, "--out", &run, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("toehold runs");
    let owner = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", error_of(&output));
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let samples = record["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 2 * 2 * 3);
    for sample in samples {
        // A stream for each port.
        let outcome = &sample["outcome"];
        assert_eq!(outcome["load"]["streams"].as_f64(), sample["x"].as_f64());
        assert!(outcome["bytes"].as_u64() > Some(0), "{sample}");
    }
    assert_eq!(namespaces_of(owner), Vec::<String>::new());
}

#[test]
fn namespaces_of_a_killed_run_are_removed_by_the_next() {
    if !is_root() {
        return;
    }
    let (folder, plan, run) = with_plan(LINKED);
    let mut first = command(&["run", &plan, "--out", &run, "--rounds", "1000"])
        .stderr(Stdio::null())
        .spawn()
        .expect("toehold runs");
    await_a_round(&mut first, &run);
    first.kill().expect("alive");
    first.wait().expect("reaped");
    assert_eq!(namespaces_of(first.id()).len(), 2);
    let output = lab(&["run", &plan, "--out", &folder.path("b"), "--rounds", "1"]);
    assert!(output.status.success(), "{}", error_of(&output));
    assert_eq!(namespaces_of(first.id()), Vec::<String>::new());
    // The killed run goes on from its last finished round.
    let done = rounds_done(&run);
    let resumed = text_of(&lab(&["report", &run]));
    assert!(resumed.contains(&format!("{done} of 1000")), "{resumed}");
}

#[test]
fn a_vanished_namespace_ends_the_run_and_keeps_its_rounds() {
    if !is_root() {
        return;
    }
    let (_folder, plan, run) = with_plan(LINKED);
    let mut first = command(&["run", &plan, "--out", &run, "--rounds", "1000"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("toehold runs");
    await_a_round(&mut first, &run);
    let gone = namespaces_of(first.id());
    let status = Command::new("ip").args(["netns", "del", &gone[0]]).status();
    assert!(status.expect("ip runs").success());
    let owner = first.id();
    let output = first.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(&output);
    let last = error.lines().last().unwrap_or("");
    for part in [&*gone[0], "vanished", "are kept", "toehold lab resume"] {
        assert!(last.contains(part), "{error}");
    }
    assert!(rounds_done(&run) > 0);
    assert_eq!(namespaces_of(owner), Vec::<String>::new());
}

#[test]
fn a_killed_generator_leaves_a_gap_and_the_run_goes_on() {
    let folder = Folder::new();
    let text = PLAN
        .replace("0.1", "0.3")
        .replace("values = [1, 64]", "values = [1]")
        .replace("rounds = 2", "rounds = 3\nwarmup-rounds = 0");
    let plan = folder.file("tiny.toml", &text);
    let run = folder.path("run");
    let mut first = command(&["run", &plan, "--out", &run, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("toehold runs");
    await_a_round(&mut first, &run);
    let client = loop {
        if let Some(client) = client_of(first.id()) {
            break client;
        }
    };
    // SAFETY: `kill` touches no memory; the target was a child of our child a moment ago.
    unsafe { libc::kill(client, libc::SIGKILL) };
    let output = first.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(rounds_done(&run), 3);
    let text = text_of(&lab(&["report", &run]));
    assert!(text.contains("was killed by signal 9"), "{text}");
}

/// A client of the generator that the run with this number has started.
fn client_of(run: u32) -> Option<libc::pid_t> {
    let children = fs::read_to_string(format!("/proc/{run}/task/{run}/children")).ok()?;
    let mut children = children.split_whitespace();
    let is_client = |pid: &&str| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("lab\0client\0")
    };
    children.find(is_client)?.parse().ok()
}

#[test]
fn a_full_disk_is_one_sentence_and_finished_rounds_are_kept() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    // Longer measurements than of the other tests: each of many rounds must have an operation.
    let plan = PLAN.replace("rounds = 2", "rounds = 50");
    let plan = plan.replace("seconds = 0.1", "seconds = 0.3");
    let plan = folder.file("tiny.toml", &plan);
    let disk = folder.path("disk");
    fs::create_dir(&disk).expect("room");
    // Room for a few rounds and for the files that replace them.
    let script = "mount -t tmpfs -o size=256k none \"$1\" || exit 3; \
        \"$0\" lab run \"$2\" --out \"$1/run\" >/dev/null; echo status $?; \
        \"$0\" lab report \"$1/run\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .args([env!("CARGO_BIN_EXE_toehold"), &disk, &plan])
        .output()
        .expect("unshare runs");
    let (text, error) = (text_of(&output), error_of(&output));
    assert!(text.starts_with("status 1\n"), "{text}{error}");
    let last = error.lines().last().unwrap_or("");
    assert!(
        last.contains("No space left") && last.contains("resume"),
        "{error}"
    );
    assert!(text.contains("rounds are done"), "{text}");
}

#[test]
fn what_a_link_needs_and_does_not_find_is_one_sentence() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let plan = folder.file("linked.toml", LINKED);
    let out = folder.path("run");
    let mut without = command(&["run", &plan, "--out", &out]);
    let output = without.env("PATH", folder.0.path()).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error_of(&output).contains("Debian package iproute2"),
        "{}",
        error_of(&output)
    );
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    other.args([env!("CARGO_BIN_EXE_toehold"), "lab", "run", &plan]);
    let output = other.args(["--out", &out]).output().expect("setpriv runs");
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(&output);
    assert!(
        error.contains("needs root") && error.lines().count() == 1,
        "{error}"
    );
}

fn rounds_done(run: &str) -> u64 {
    let text = fs::read_to_string(Path::new(run).join("run.json")).unwrap_or_default();
    let record: Value = serde_json::from_str(&text).unwrap_or_default();
    record["rounds_done"].as_u64().unwrap_or(0)
}

#[test]
fn bad_input_is_one_sentence() {
    let folder = Folder::new();
    let typo = folder.file("typo.toml", &PLAN.replace("seconds", "secnods"));
    let missing = folder.path("none.toml");
    let cases: [(&[&str], &str); 9] = [
        (&["run", &typo], "secnods"),
        (&["run", &missing], "cannot read"),
        (&["run", "perpetuum-mobile"], "there is no plan"),
        (&["run", "paper", "--json"], "many runs"),
        (&["client", "1.2.3.4:5,unix:/x"], "one of several"),
        (&["resume", &missing], "cannot read"),
        (&["client", "nowhere"], "HOST:PORT"),
        (&["client", "--rate", "5"], "requests"),
        (&["limit", "--message", "0"], "message size"),
    ];
    for (words, why) in cases {
        let output = lab(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(
            error_of(&output).contains(why),
            "{words:?}: {}",
            error_of(&output)
        );
    }
    let refused = lab(&["client", "127.0.0.1:1"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        error_of(&refused).lines().count(),
        1,
        "{}",
        error_of(&refused)
    );
}

#[test]
fn every_command_of_the_lab_has_its_manual_page() {
    let folder = Folder::new();
    let mut man = Command::new(env!("CARGO_BIN_EXE_toehold"));
    let status = man.args(["man", "--out"]).arg(folder.0.path()).status();
    assert!(status.expect("toehold runs").success());
    for name in ["run", "client", "limit"] {
        let page = folder.0.path().join(format!("toehold-lab-{name}.1"));
        let text = fs::read_to_string(&page).expect(name);
        assert!(text.contains("SYNOPSIS") && text.contains(name), "{text}");
    }
}

#[test]
fn the_known_plans_are_listed_and_shown() {
    let list = text_of(&lab(&["list"]));
    for name in ["quick", "ioat-multistream", "toe-latency", "ioat-copy"] {
        assert!(list.contains(name), "{list}");
    }
    // Every experiment of the papers, with or without a plan.
    for line in [
        "IOAT-OPT-BI",
        "Bridging the Ethernet-Ethernot Performance Gap (Balaji, Feng, Panda; IEEE Micro",
        "published only; there is no switch here",
        "ipoib-offloads",
    ] {
        assert!(list.contains(line), "{list}");
    }
    let shown = text_of(&lab(&["show", "quick"]));
    assert!(
        shown.contains("direct, poll") && shown.contains("minutes"),
        "{shown}"
    );
}
