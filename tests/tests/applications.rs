//! The lab's applications: tiers of real programs on the kernel and on the direct path, with equal
//! bytes; an application that is not installed; and a run that is killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use toehold_e2e::host;
use toehold_e2e::toehold::{Toehold, library};

const ARMS: &str = "name = \"applications\"\nabout = \"A test.\"\nrounds = 1\nwarmup-rounds = 1\n\
    seconds = 0.2\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\n\
    [[arm]]\nname = \"direct\"\npath = \"direct\"\n";

const FILTERS: &str = "[[tier]]\nname = \"read\"\n\
    command = \"{toehold} lab filter read --listen 127.0.0.1:{port}\"\n\
    [[tier]]\nname = \"clip\"\ncommand = \"{toehold} lab filter clip --listen 127.0.0.1:{port} \
    --before 127.0.0.1:{port:read}\"\n\
    [[tier]]\nname = \"zoom\"\ncommand = \"{toehold} lab filter zoom --listen 127.0.0.1:{port} \
    --before 127.0.0.1:{port:clip}\"\n\
    [[application]]\nname = \"microscope\"\ntiers = [\"read\", \"clip\", \"zoom\"]\n\
    unpinned = true\n\
    client = { command = \"{toehold} lab view 127.0.0.1:{front} --partial 1 --seconds {seconds} \
    --json\" }\n\
    [[block]]\ntitle = \"microscope\"\nmetric = \"rate\"\npattern = \"requests\"\n\
    application = \"microscope\"\n";

const WEB: &str = r#"
[[tier]]
name = "web"
needs = ["nginx:nginx-light"]
command = "nginx -c {folder}/web.conf"
[tier.files]
"web.conf" = '''
daemon off;
pid {folder}/web.pid;
error_log {folder}/web.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/b1; proxy_temp_path {folder}/p1; fastcgi_temp_path {folder}/f1;
    uwsgi_temp_path {folder}/u1; scgi_temp_path {folder}/s1;
    server {{ listen 127.0.0.1:{port}; root {data}; }}
}}
'''
[[tier]]
name = "proxy"
command = "nginx -c {folder}/proxy.conf"
[tier.files]
"proxy.conf" = '''
daemon off;
pid {folder}/proxy.pid;
error_log {folder}/proxy.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/b2; proxy_temp_path {folder}/p2; fastcgi_temp_path {folder}/f2;
    uwsgi_temp_path {folder}/u2; scgi_temp_path {folder}/s2;
    upstream web {{ server 127.0.0.1:{port:web}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://web;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
'''
[[application]]
name = "site"
tiers = ["web", "proxy"]
unpinned = true
prepare = ["{toehold} lab files {data} --count 20 --most 16K"]
client = { command = """{toehold} lab http 127.0.0.1:{front} --files 20 --zipf 0.9 --streams 4 \
    --seconds {seconds} --json""" }
[[application]]
name = "browsers"
tiers = ["web"]
unpinned = true
client = { command = """{toehold} lab http 127.0.0.1:{front} --mix {data}/mix --think 0.005 \
    --streams 4 --seconds {seconds} --json""" }
data = { mix = "3 20 /\n1 1 /1\n" }
[[application]]
name = "nowhere"
needs = ["toehold-no-such-program:no-package"]
client = { command = "toehold-no-such-program" }
[[block]]
title = "site"
metric = "rate"
pattern = "requests"
application = "site"
[[block]]
title = "browsers"
metric = "rate"
pattern = "requests"
application = "browsers"
[[block]]
title = "nowhere"
metric = "rate"
pattern = "requests"
application = "nowhere"
"#;

/// A run of a plan, in a temporary directory of its own.
struct Run {
    toehold: Toehold,
    folder: TempDir,
}

impl Run {
    fn new(plan: &str) -> Run {
        let folder = tempfile::tempdir().expect("room");
        fs::create_dir(folder.path().join("tmp")).expect("room");
        fs::write(folder.path().join("plan.toml"), plan).expect("room");
        Run {
            toehold: Toehold::start(),
            folder,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.toehold.asking(&[]).get_program());
        command.args(["lab", "run", "--json", "--out"]);
        command.arg(self.path("run")).arg(self.path("plan.toml"));
        command.env("TOEHOLD_LIB", library());
        command.env("TMPDIR", self.path("tmp"));
        command
    }
}

fn record_of(run: &Run) -> Value {
    let output = run.command().output().expect("toehold runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn tiers_give_the_same_bytes_on_both_paths_and_what_cannot_be_had_is_left_out() {
    let record = record_of(&Run::new(&format!("{ARMS}{FILTERS}{WEB}")));
    let samples = record["samples"].as_array().expect("samples");
    // Three blocks, two arms and the base again.
    assert_eq!(samples.len(), 3 * 3);
    for sample in samples {
        assert!(sample["failure"].is_null(), "{sample}");
        let outcome = &sample["outcome"];
        assert!(outcome["operations"].as_u64() > Some(0), "{sample}");
        let same = samples
            .iter()
            .filter(|other| other["block"] == sample["block"]);
        let mut digests = same.map(|other| &other["outcome"]["digest"]);
        assert!(digests.all(|digest| digest.is_string() && *digest == outcome["digest"]));
        let tiers = outcome["tiers"].as_array().expect("tiers");
        let names: Vec<&str> = tiers
            .iter()
            .filter_map(|tier| tier["name"].as_str())
            .collect();
        let wanted: &[&str] = match sample["block"].as_u64() {
            Some(0) => &["client", "read", "clip", "zoom"],
            Some(1) => &["client", "web", "proxy"],
            _ => &["client", "web"],
        };
        assert_eq!(names, wanted);
    }
    // Connections of both applications were seen on the direct path.
    assert_eq!(record["stayed"], serde_json::json!([]));
    let missing = &record["missing"][0];
    assert_eq!(missing["arm"], "nowhere");
    let why = missing["why"].as_str().expect("a sentence");
    assert!(why.contains("Debian package no-package"), "{why}");
}

/// Only root's run becomes PostgreSQL's own user. Another user's database has that name, too.
#[test]
fn a_user_of_any_name_measures_pgbench() {
    // SAFETY: takes nothing, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return host::skipped("only root can become another user");
    }
    if host::require(["initdb", "postgres", "pgbench", "setpriv"]).is_none() {
        return;
    }
    let is_wanted = |table: &&str| match table.split("]]").next() {
        Some("arm") => table.contains("name = \"kernel\"") || table.contains("name = \"direct\""),
        Some("block") => table.contains("application = \"pgbench\""),
        _ => true,
    };
    let plan = include_str!("../../lab/plans/headline.toml");
    let plan = plan.replace("rounds = 10", "rounds = 1\nwarmup-rounds = 0");
    let tables: Vec<&str> = plan.split("\n[[").filter(is_wanted).collect();
    let user = Toehold::start_as("daemon");
    fs::write(user.dir().join("plan.toml"), tables.join("\n[[")).expect("room");
    let mut command = user.command(toehold_e2e::Path::Host, user.program());
    command.args(["lab", "run", "--json", "--out", "run", "plan.toml"]);
    command.env("TOEHOLD_LIB", user.files().1);
    let output = command.output().expect("toehold runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for sample in record["samples"].as_array().expect("samples") {
        assert!(sample["failure"].is_null(), "{sample}");
    }
    assert_eq!(record["stayed"], serde_json::json!([]));
}

#[test]
fn nothing_is_left_of_a_run_that_was_killed() {
    // The first process of this tier leaves others behind when it is killed, one of them in another
    // session.
    let tier = "read\"\ncommand = \"sh -c 'sleep 1234 & setsid sleep 1234 & exec {toehold} ";
    let plan = FILTERS.replacen("read\"\ncommand = \"{toehold} ", tier, 1);
    let plan = plan.replacen(
        "read --listen 127.0.0.1:{port}",
        "read --listen 127.0.0.1:{port}'",
        1,
    );
    let run = Run::new(&format!("{ARMS}{plan}").replace("seconds = 0.2", "seconds = 20"));
    let mut lab = run.command();
    let lab = lab.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut lab = lab.expect("toehold runs");
    let place = run.path("tmp").display().to_string();
    let mark = format!("TOEHOLD_LAB_RUN={}-", lab.id());
    let is_viewing = |words: &str| words.contains("lab\0view");
    wait_for("the client", || {
        assert_eq!(
            lab.try_wait().expect("a status"),
            None,
            "it ended by itself"
        );
        processes(&place, &mark)
            .iter()
            .any(|words| is_viewing(words))
    });
    let before = processes(&place, &mark);
    let sleepers = before.iter().filter(|words| words.contains("1234")).count();
    assert!(sleepers >= 2, "{before:?}");
    lab.kill().expect("alive");
    lab.wait().expect("reaped");
    wait_for("the end of all", || processes(&place, &mark).is_empty());
    wait_for("an empty directory", || {
        fs::read_dir(run.path("tmp")).expect("there").count() == 0
    });
}

/// The command lines of processes that have `mark` in their environment, or `place` among their
/// words.
fn processes(place: &str, mark: &str) -> Vec<String> {
    let read = |path: &Path| {
        let bytes = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let all = fs::read_dir("/proc").expect("there").flatten();
    let ours = all.filter_map(|entry| {
        let words = read(&entry.path().join("cmdline"));
        let is_ours = words.contains(place) || read(&entry.path().join("environ")).contains(mark);
        (is_ours && !words.contains("lab\0run\0")).then_some(words)
    });
    ours.collect()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        thread::sleep(Duration::from_millis(20));
    }
}
