//! Real programs over the engine, as clients and as servers.

use std::fs;
use std::process::Command;

use toehold_e2e::host;
use toehold_e2e::iperf3::expect_whole_report;
use toehold_e2e::network::{FAR, FAR_V6, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};

use crate::stage::Stage;

#[test]
fn curl_fetches_files_byte_for_byte() {
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([curl, _]) = host::require(["curl", "sha256sum"]) else {
        return;
    };
    let www = stage.toehold.dir().join("www");
    fs::create_dir(&www).expect("scratch");
    let content: Vec<u8> = (0..5_000_000u32)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes())
        .collect();
    fs::write(www.join("file"), &content).expect("scratch");
    let mut command = stage.network.far(&stage.python);
    command
        .args(["-m", "http.server", "8080", "--bind", "::", "--directory"])
        .arg(&www);
    let mut server = Running::start(command, "http", stage.toehold.dir());
    stage.await_far_port(&mut server, 8080);
    for (name, url) in [
        ("v4", format!("http://{FAR}:8080/file")),
        ("v6", format!("http://[{FAR_V6}]:8080/file")),
    ] {
        let got = stage.toehold.dir().join(name);
        let got_path = got.to_string_lossy();
        let curl = curl.to_string_lossy();
        let command = stage.offloaded(&curl, &["-sS", "-o", &got_path, &url]);
        Running::start(command, name, stage.toehold.dir()).success(TIME_LIMIT);
        assert!(
            fs::read(&got).expect("fetched") == content,
            "{name}: other bytes"
        );
    }
    assert!(stage.engine("bytes_received") > 40_000_000);
}

#[test]
fn redis_serves_a_remote_benchmark() {
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([server, benchmark]) = host::require(["redis-server", "redis-benchmark"]) else {
        return;
    };
    let server = server.to_string_lossy();
    let arguments = [
        "--port",
        "6379",
        "--save",
        "",
        "--protected-mode",
        "no",
        "--bind",
        "0.0.0.0",
    ];
    let command = stage.offloaded(&server, &arguments);
    let mut server = Running::start(command, "redis", stage.toehold.dir());
    stage.await_listeners(1);
    let mut command = stage.network.far(benchmark);
    command.args([
        "-h",
        NEAR,
        "-t",
        "set,get,lrange_100",
        "-n",
        "20000",
        "-c",
        "50",
        "-d",
        "100",
        "-q",
    ]);
    let said = Running::start(command, "benchmark", stage.toehold.dir()).success(TIME_LIMIT);
    assert!(said.contains("GET:"), "{said}");
    assert!(server.ended().is_none(), "{}", server.outputs());
}

#[test]
fn iperf3_runs_every_way() {
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([iperf3]) = host::require(["iperf3"]) else {
        return;
    };
    let iperf3 = iperf3.to_string_lossy();
    let near = stage.offloaded(&iperf3, &["-s", "-p", "5201"]);
    let _near = Running::start(near, "iperf3-near", stage.toehold.dir());
    let mut far = stage.network.far(&*iperf3);
    far.args(["-s", "-p", "5202"]);
    let _far = Running::start(far, "iperf3-far", stage.toehold.dir());
    stage.await_listeners(1);
    for extra in [["-P", "1"], ["-P", "3"], ["-R", "-Z"]] {
        let common = ["-t", "1", "-J"];
        let from_far = || {
            let mut command = stage.network.far(&*iperf3);
            command.args(["-c", NEAR, "-p", "5201"]);
            command.args(common).args(extra);
            command
        };
        let from_near = || {
            let mut command = stage.offloaded(&iperf3, &["-c", FAR, "-p", "5202"]);
            command.args(common).args(extra);
            command
        };
        for client in [&from_far as &dyn Fn() -> Command, &from_near] {
            expect_whole_report(|| {
                Running::start(client(), "iperf3", stage.toehold.dir()).success(TIME_LIMIT)
            });
        }
    }
}
