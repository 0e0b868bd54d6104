//! Arms of the lab on the offload path: the engine over each kind of link.

use std::fs;
use std::process::Command;

use serde_json::Value;
use toehold_e2e::host;
use toehold_e2e::toehold::{Toehold, library};

const PLAN: &str = "name = \"offload\"\nabout = \"A test.\"\nrounds = 1\nseconds = 0.05\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\nlink = \"veth\"\n\
    [[arm]]\nname = \"tap\"\npath = \"offload\"\nlink = \"tap\"\n\
    [[arm]]\nname = \"tap, small\"\npath = \"offload\"\nlink = \"tap\"\nmtu = 2044\nlso = false\n\
    lro = false\nagainst = \"tap\"\n\
    [[arm]]\nname = \"packet\"\npath = \"offload\"\nlink = \"packet\"\n\
    [[arm]]\nname = \"xdp\"\npath = \"offload\"\nlink = \"xdp\"\n\
    [[block]]\ntitle = \"both\"\nmetric = \"throughput\"\npattern = \"both\"\nmessage = 16384\n";

#[test]
fn arms_of_the_lab_run_over_each_kind_of_link() {
    // SAFETY: the call takes nothing and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        return host::skipped("network namespaces need root");
    }
    let toehold = Toehold::start();
    let folder = tempfile::tempdir().expect("room");
    let plan = folder.path().join("offload.toml");
    fs::write(&plan, PLAN).expect("room");
    let run = folder.path().join("run");
    let mut command = Command::new(toehold.asking(&[]).get_program());
    command.args(["lab", "run", "--json", "--out"]);
    command.arg(&run).arg(&plan).env("TOEHOLD_LIB", library());
    let output = command.output().expect("toehold runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let samples = record["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 6);
    for sample in samples {
        assert!(sample["failure"].is_null(), "{sample}");
        assert!(sample["outcome"]["bytes"].as_u64() > Some(0), "{sample}");
    }
    // Each was seen on the path that it is about.
    assert_eq!(record["stayed"], serde_json::json!([]));
}
