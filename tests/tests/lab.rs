//! The lab with the programs that it starts: the engine over each kind of link, and generators of
//! other projects.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use toehold_e2e::host;
use toehold_e2e::toehold::{Toehold, library};

const PLAN: &str = "name = \"offload\"\nabout = \"A test.\"\nrounds = 1\nseconds = 0.05\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\nlink = \"veth\"\n\
    [[arm]]\nname = \"tap\"\npath = \"offload\"\nlink = \"tap\"\n\
    [[arm]]\nname = \"tap, small\"\npath = \"offload\"\nlink = \"tap\"\nmtu = 2044\nlso = false\n\
    lro = false\nagainst = \"tap\"\n\
    [[arm]]\nname = \"packet\"\npath = \"offload\"\nlink = \"packet\"\n\
    [[arm]]\nname = \"packet, copied\"\npath = \"offload\"\nlink = \"packet\"\n\
    engine = { split-headers = \"off\", copy-engine = \"worker\" }\nagainst = \"packet\"\n\
    [[arm]]\nname = \"xdp\"\npath = \"offload\"\nlink = \"xdp\"\n\
    [[block]]\ntitle = \"both\"\nmetric = \"throughput\"\npattern = \"both\"\nmessage = 16384\n";

/// Each generator beside our own, in the pattern that it supports.
const GENERATORS: &str = "name = \"generators\"\nabout = \"A test.\"\nrounds = 1\n\
    warmup-rounds = 0\nseconds = 1.0\n\
    [[arm]]\nname = \"toehold lab\"\npath = \"host\"\n\
    [[arm]]\nname = \"nuttcp\"\npath = \"host\"\nprogram = \"nuttcp\"\n\
    [[arm]]\nname = \"iperf3\"\npath = \"host\"\nprogram = \"iperf3\"\n\
    [[arm]]\nname = \"sockperf\"\npath = \"host\"\nprogram = \"sockperf\"\n\
    [[arm]]\nname = \"wrk\"\npath = \"host\"\nprogram = \"wrk\"\n\
    [[block]]\ntitle = \"one way\"\nmetric = \"throughput\"\npattern = \"to-server\"\n\
    message = 131072\n\
    [[block]]\ntitle = \"there and back\"\nmetric = \"latency-p50\"\npattern = \"ping-pong\"\n\
    message = 64\n\
    [[block]]\ntitle = \"requests\"\nmetric = \"rate\"\npattern = \"requests\"\n\
    message = 64\nstreams = 4\n";

/// A program that makes the load of every arm.
const TBENCH: &str = "name = \"tbench\"\nabout = \"A test.\"\nrounds = 1\n\
    warmup-rounds = 0\nseconds = 2.0\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\n\
    [[arm]]\nname = \"direct\"\npath = \"direct\"\n\
    [[block]]\ntitle = \"2 clients\"\nmetric = \"throughput\"\npattern = \"requests\"\n\
    program = \"tbench\"\nstreams = 2\n";

/// Connections beyond the descriptors of one process, some of them idle.
const CONNECTIONS: &str = "name = \"connections\"\nabout = \"A test.\"\nrounds = 1\nseconds = 0.2\n\
    processes = true\nmax-connections = 1000\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\n\
    [[arm]]\nname = \"direct\"\npath = \"direct\"\n\
    [[block]]\ntitle = \"active\"\nmetric = \"rate\"\npattern = \"requests\"\nprior = 60\n\
    sweep = { factor = \"streams\", values = [1, 300, 5000] }\n\
    [[block]]\ntitle = \"idle\"\nmetric = \"rate\"\npattern = \"requests\"\nprior = 60\n\
    active = 4\nsweep = { factor = \"streams\", values = [1, 300] }\n";

struct Lab {
    toehold: Toehold,
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self {
            toehold: Toehold::start(),
            folder: tempfile::tempdir().expect("room"),
        }
    }

    /// Runs a plan.
    fn run(&self, name: &str, text: &str) -> Output {
        let command = Command::new(self.toehold.asking(&[]).get_program());
        self.run_by(command, name, text)
    }

    /// Runs a plan by a command that ends with the program.
    fn run_by(&self, mut command: Command, name: &str, text: &str) -> Output {
        let plan = self.folder.path().join(name).with_extension("toml");
        fs::write(&plan, text).expect("room");
        command.args(["lab", "run", "--json", "--out"]);
        command.arg(self.folder.path().join(name)).arg(&plan);
        command.env("TOEHOLD_LIB", library());
        command.output().expect("toehold runs")
    }

    /// The record of a run in which every sample moved bytes.
    fn record(&self, name: &str, text: &str) -> Value {
        let output = self.run(name, text);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        for sample in record["samples"].as_array().expect("samples") {
            assert!(sample["failure"].is_null(), "{sample}");
            assert!(sample["outcome"]["bytes"].as_u64() > Some(0), "{sample}");
        }
        record
    }
}

#[test]
fn arms_of_the_lab_run_over_each_kind_of_link() {
    // SAFETY: the call takes nothing and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        return host::skipped("network namespaces need root");
    }
    let lab = Lab::new();
    let record = lab.record("offload", PLAN);
    assert_eq!(record["samples"].as_array().map(Vec::len), Some(7));
    // Each arm was seen on the path that it measures.
    assert_eq!(record["stayed"], serde_json::json!([]));
    // The adapter refuses a wrong setting, in its own words.
    let output = lab.run("wrong", &PLAN.replace("\"worker\"", "\"fax\""));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("`fax`"), "{error}");
}

#[test]
fn every_generator_that_a_plan_can_name_measures() {
    let lab = Lab::new();
    for (plan, text, arms) in [("generators", GENERATORS, 5), ("tbench", TBENCH, 2)] {
        let record = lab.record(plan, text);
        let samples = record["samples"].as_array().expect("samples");
        let arms_of = samples.iter().filter_map(|sample| sample["arm"].as_str());
        let measured = arms_of.collect::<BTreeSet<_>>();
        assert!(measured.len() >= arms, "{measured:?}");
    }
}

#[test]
fn connections_are_counted_and_those_beyond_the_descriptors_are_reported() {
    const DESCRIPTORS: usize = 264;
    let lab = Lab::new();
    let mut command = Command::new("sh");
    let limit = format!("ulimit -n {DESCRIPTORS} && exec \"$0\" \"$@\"");
    command.args(["-c", &limit]);
    command.arg(lab.toehold.asking(&[]).get_program());
    let output = lab.run_by(command, "connections", CONNECTIONS);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let missing = &record["missing"][0];
    assert_eq!(missing["arm"], "active, 5000", "{missing}");
    let why = missing["why"].as_str().expect("a sentence");
    assert!(
        why.contains("1314 descriptors") && why.contains("264"),
        "{why}"
    );
    let samples = record["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 4 * 3);
    for sample in samples {
        assert!(sample["failure"].is_null(), "{sample}");
        let outcome = &sample["outcome"];
        assert!(outcome["operations"].as_u64() > Some(0), "{sample}");
        let streams = sample["x"].as_f64().expect("a number");
        let standing = &outcome["standing"];
        let clients = if streams > 200.0 { 2 } else { 1 };
        assert_eq!(standing["clients"], clients, "{sample}");
        let is_direct = sample["arm"] == "direct";
        let direct = standing["direct"].as_f64().expect("a number");
        assert_eq!(direct, if is_direct { streams } else { 0.0 }, "{sample}");
        let tiers = outcome["tiers"].as_array().expect("processes");
        assert_eq!(tiers.len(), if is_direct { 3 } else { 2 }, "{sample}");
        for tier in tiers {
            assert!(tier["memory"]["resident"].as_u64() > Some(0), "{sample}");
        }
    }
}
