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
    [[arm]]\nname = \"packet, copied\"\npath = \"offload\"\nlink = \"packet\"\n\
    engine = { split-headers = \"off\", copy-engine = \"worker\" }\nagainst = \"packet\"\n\
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
    let run = |name: &str, text: &str| {
        let plan = folder.path().join(name).with_extension("toml");
        fs::write(&plan, text).expect("room");
        let mut command = Command::new(toehold.asking(&[]).get_program());
        command.args(["lab", "run", "--json", "--out"]);
        command.arg(folder.path().join(name)).arg(&plan);
        command.env("TOEHOLD_LIB", library());
        command.output().expect("toehold runs")
    };
    let output = run("offload", PLAN);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let samples = record["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 7);
    for sample in samples {
        assert!(sample["failure"].is_null(), "{sample}");
        assert!(sample["outcome"]["bytes"].as_u64() > Some(0), "{sample}");
    }
    // Each was seen on the path that it is about.
    assert_eq!(record["stayed"], serde_json::json!([]));
    // A wrong setting is the adapter's to refuse, in its own words.
    let output = run("wrong", &PLAN.replace("\"worker\"", "\"fax\""));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("`fax`"), "{error}");
}
