//! Real programs on both paths: `make demo` and `make bench`.
//!
//! Each case is one `toehold compare`, which does the measuring: fresh servers, interleaved rounds,
//! intervals. This module has only the cases, run one after the other, and the final table. All
//! ports are free ones of the loopback interface; all files that programs write are in a private
//! directory that is removed.

mod cases;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::cases::Case;
use self::table::Row;
use crate::target;

/// The thoroughness of the measurement.
struct Plan {
    /// The name of the directory of the reports.
    name: &'static str,
    rounds: u32,
    /// If a case begins later than this, on a slow or busy machine, it gets [`ROUNDS_LATE`].
    time_max: Duration,
    warmup: u32,
    /// The measured seconds of programs that run for a time.
    seconds: u32,
    /// The factor on the requests of programs that run for a number of requests.
    requests: u32,
    /// Whether the kernel is compared with itself, too, to know the noise.
    control: bool,
}

/// Enough rounds for a number, too few for a verdict; the table says that.
const ROUNDS_LATE: u32 = 3;

/// All cases in under three minutes.
pub(crate) fn demo() -> bool {
    run(&Plan {
        name: "demo",
        rounds: 4,
        time_max: Duration::from_secs(170),
        warmup: 0,
        seconds: 1,
        requests: 1,
        control: false,
    })
}

/// The numbers of `docs/benchmarks.md`.
pub(crate) fn bench() -> bool {
    run(&Plan {
        name: "bench",
        rounds: 10,
        time_max: Duration::MAX,
        warmup: 1,
        seconds: 3,
        requests: 3,
        control: true,
    })
}

fn run(plan: &Plan) -> bool {
    let started = Instant::now();
    let toehold = target().join("release/toehold");
    if !toehold.is_file() {
        eprintln!("{} is not there; run make build", toehold.display());
        return false;
    }
    let reports = target().join(plan.name);
    let scratch = tempfile::Builder::new().prefix("toehold-").tempdir();
    let (Ok(scratch), Ok(())) = (scratch, fs::create_dir_all(&reports)) else {
        eprintln!("no room for reports in {}", reports.display());
        return false;
    };
    let pin = pin();
    println!("{}\n", doctor(&toehold));
    println!(
        "Congestion control is {}; server and client are placed by --pin {pin} (PIN=none or \
        PIN=same changes it);",
        cases::congestion_control()
    );
    println!("both paths run in turns, {} rounds each.", plan.rounds);
    let cases = match cases::all(scratch.path(), plan.seconds, plan.requests) {
        Ok(cases) => cases,
        Err(error) => {
            eprintln!("cannot prepare the programs: {error}");
            return false;
        }
    };
    let all = cases.len() as u32;
    let mut rows = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        println!("\n[{}/{}] {}", number + 1, cases.len(), case.title);
        let measured = match case.missing() {
            Some((program, package)) => Err(format!(
                "{program} is not installed (Debian package {package}; make deps)"
            )),
            None => {
                let late = started.elapsed() > plan.time_max / all * number as u32;
                let rounds = if number > 0 && late {
                    ROUNDS_LATE
                } else {
                    plan.rounds
                };
                measure(&toehold, case, plan, rounds, &pin, &reports)
            }
        };
        rows.push(Row::new(case, measured));
    }
    println!("\n{}", table::render(&rows));
    println!(
        "Reports, with every sample and the commands: {}/*.html, *.json",
        reports.display()
    );
    println!("Took {} s.", started.elapsed().as_secs());
    rows.iter().all(Row::is_measured)
}

/// Runs one comparison and reads its report.
fn measure(
    toehold: &Path,
    case: &Case,
    plan: &Plan,
    rounds: u32,
    pin: &str,
    reports: &Path,
) -> Result<Value, String> {
    let file = |extension: &str| -> PathBuf { reports.join(case.name).with_extension(extension) };
    let mut command = Command::new(toehold);
    command.args(["compare", "--json", "--paths", "host,direct"]);
    command.args(["--pin", pin, "--ready", &case.ready]);
    command.args(["--rounds", &rounds.to_string()]);
    command.args(["--warmup", &plan.warmup.to_string()]);
    if plan.control {
        command.arg("--aa");
    }
    command.args(["--server", &case.server, "--client", &case.client]);
    command.arg("--html").arg(file("html"));
    // These variables are Cargo's, and must not reach the programs under test.
    command.env_remove("LD_LIBRARY_PATH");
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run toehold: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    fs::write(file("json"), text.as_bytes())
        .map_err(|error| format!("cannot keep the report: {error}"))?;
    serde_json::from_str(&text).map_err(|_| "the comparison failed; its reason stands above".into())
}

/// The results of `toehold doctor` about this host, in a few lines.
fn doctor(toehold: &Path) -> String {
    let output = Command::new(toehold).args(["doctor", "--json"]).output();
    let report: Option<Value> = output
        .ok()
        .and_then(|output| serde_json::from_slice(&output.stdout).ok());
    let Some(checks) = report
        .as_ref()
        .and_then(|report| report["checks"].as_array())
    else {
        return "toehold doctor gave no answer".to_owned();
    };
    let mut lines = Vec::new();
    let relevant = checks
        .iter()
        .filter(|check| check["needed_for"] != "offload");
    let (mut ok, mut all) = (0, 0);
    for check in relevant {
        all += 1;
        let word = |field: &str| check[field].as_str().unwrap_or("").to_owned();
        if check["state"] == "ok" {
            ok += 1;
        } else {
            lines.push(format!(
                "  {:<8} {}: {}",
                word("state"),
                word("name"),
                word("finding")
            ));
        }
    }
    lines.insert(
        0,
        format!(
            "toehold doctor: {ok} of {all} checks for the direct path and for measuring are ok"
        ),
    );
    lines.join("\n")
}

/// Server and client on different cores, unless there is only one core or `PIN` is set.
fn pin() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match std::env::var("PIN") {
        Ok(pin) if !pin.is_empty() => pin,
        _ if cores > 1 => "split".to_owned(),
        _ => "none".to_owned(),
    }
}
