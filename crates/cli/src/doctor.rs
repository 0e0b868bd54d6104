//! `toehold doctor`: reports the abilities of this host, missing ones, and advice.

mod checks;
mod preload_check;
mod system;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
use crate::output::print;

/// Options of `toehold doctor`.
#[derive(Args, Debug)]
#[command(after_help = STATES)]
pub(crate) struct DoctorArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,

    /// Show how fast this host copies memory too, and what the copy engine chooses
    #[arg(long)]
    copying: bool,

    /// Check the system adapter too, and each service that toehold enable has enabled
    #[arg(long, conflicts_with_all = ["preload_check", "adapter", "runtime_dir"])]
    system: bool,

    /// Only test whether the library can be preloaded into every program of a system: the system in
    /// a root directory (a container image), or the system of a process
    #[arg(long, value_name = "ROOT|PID", conflicts_with_all = ["json", "copying"])]
    preload_check: Option<String>,

    /// Which adapter is asked
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// The adapter's runtime directory
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const STATES: &str = "\
Examples:
  toehold doctor
  toehold doctor --system                     before services depend on it, and after an update
  toehold doctor --preload-check /srv/image   may every program of this image have the library?

The first lines say what works here. Then each line is ok, warn (it works, but not as well as it
could) or missing (something does not work; the line says what).

Exit status: 0 when the direct path can work on this host, 1 when it cannot.";

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// The subject of the check.
    name: &'static str,
    /// The state of the subject.
    state: State,
    /// The path or feature that needs the subject.
    needed_for: NeededFor,
    /// The finding, in words.
    finding: String,
    /// Advice, if there is any.
    advice: Option<String>,
}

/// The three states in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Works as it should.
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// Does not work.
    Missing,
}

/// The features that depend on a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NeededFor {
    /// Shared memory between programs of this host.
    Direct,
    /// The adapter's own TCP engine.
    Offload,
    /// Services of different users, by the system adapter.
    Services,
    /// Measuring.
    Compare,
}

impl Check {
    fn ok(name: &'static str, needed_for: NeededFor, finding: impl Into<String>) -> Check {
        Check {
            name,
            state: State::Ok,
            needed_for,
            finding: finding.into(),
            advice: None,
        }
    }

    fn warn(self, advice: impl Into<String>) -> Check {
        Check {
            state: State::Warn,
            advice: Some(advice.into()),
            ..self
        }
    }

    fn missing(self, advice: impl Into<String>) -> Check {
        Check {
            state: State::Missing,
            advice: Some(advice.into()),
            ..self
        }
    }
}

/// The whole report.
#[derive(Debug, Serialize)]
struct Report {
    toehold: &'static str,
    /// Which paths work.
    verdict: Conclusion,
    checks: Vec<Check>,
    /// The copy engine's curves and choices on this host.
    copy_calibration: String,
}

/// Runs the checks and prints the report.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    if let Some(place) = &args.preload_check {
        return preload_check::run(place);
    }
    let adapter = if args.system {
        AdapterChoice::System
    } else {
        args.adapter
    };
    let meeting = Meeting::to_look_at(args.runtime_dir.as_deref(), adapter);
    let dir = meeting.dir();
    let mut checks = checks::all(dir);
    if args.system {
        checks.extend(system::all(dir));
    }
    // Measuring takes a while and stores its result in the user's cache.
    let copy_calibration = (args.copying || args.json).then(toehold_copy::calibration_report);
    let report = Report {
        toehold: env!("CARGO_PKG_VERSION"),
        verdict: Conclusion::of(&checks),
        checks,
        copy_calibration: copy_calibration.unwrap_or_default(),
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::new(format!("cannot write the report as JSON: {error}")))?
            + "\n"
    } else {
        let mut text = report.verdict.words() + "\n" + &render(&report.checks);
        if args.copying {
            text += "Copying on this host\n";
            text += &indented(&report.copy_calibration);
        }
        text
    };
    print(text)?;
    match first_failed(&report.checks) {
        None => Ok(()),
        Some(check) => Err(Failure::new(format!(
            "the direct path cannot work here ({}); programs run on kernel TCP",
            check.name
        ))),
    }
}

/// The first failed check on which the direct path depends.
fn first_failed(checks: &[Check]) -> Option<&Check> {
    checks
        .iter()
        .find(|check| check.state == State::Missing && check.needed_for == NeededFor::Direct)
}

/// The verdict of all checks.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Conclusion {
    /// Connections between programs of this host can be accelerated.
    direct: bool,
    /// Kinds of link that an adapter of this user can open.
    links: Vec<&'static str>,
    /// The number of checks with advice.
    advice: usize,
}

impl Conclusion {
    fn of(checks: &[Check]) -> Conclusion {
        let works = |name: &str| {
            let check = checks.iter().find(|check| check.name == name);
            check.is_some_and(|check| check.state != State::Missing)
        };
        let link = |(name, kind)| works(name).then_some(kind);
        Conclusion {
            direct: first_failed(checks).is_none(),
            links: LINKS.into_iter().filter_map(link).collect(),
            advice: checks.iter().filter(|check| check.advice.is_some()).count(),
        }
    }

    /// The verdict in three sentences.
    fn words(&self) -> String {
        let direct = if self.direct {
            "Programs on this host can be accelerated: toehold run -- PROGRAM"
        } else {
            "Programs on this host cannot be accelerated: see `missing` below"
        };
        let links = match self.links.as_slice() {
            [] => "This user cannot open a link for connections across a network".to_owned(),
            links => format!(
                "Connections across a network can have a link of kind {}: toehold adapter --link",
                links.join(", ")
            ),
        };
        let advice = match self.advice {
            0 => "Nothing needs to be improved".to_owned(),
            1 => "One line has advice (->)".to_owned(),
            more => format!("{more} lines have advice (->)"),
        };
        format!("{direct}\n{links}\n{advice}\n")
    }
}

/// The checks on which each kind of link depends.
const LINKS: [(&str, &str); 3] = [
    (checks::TUN, "tap"),
    (checks::PACKET, "packet"),
    (checks::AF_XDP, "xdp"),
];

fn render(checks: &[Check]) -> String {
    let mut out = String::new();
    let width = checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    for (part, title) in [
        (NeededFor::Direct, "Programs on this host (direct path)"),
        (NeededFor::Services, "Services (system adapter)"),
        (NeededFor::Offload, "Programs on other hosts (offload path)"),
        (NeededFor::Compare, "Measuring (toehold compare)"),
    ] {
        let of_part = || checks.iter().filter(|check| check.needed_for == part);
        if of_part().next().is_some() {
            let _ = writeln!(out, "{title}");
        }
        for check in of_part() {
            let state = match check.state {
                State::Ok => "ok",
                State::Warn => "warn",
                State::Missing => "missing",
            };
            let _ = writeln!(
                out,
                "  {state:<8} {:<width$}  {}",
                check.name, check.finding
            );
            if let Some(advice) = &check.advice {
                let _ = writeln!(out, "  {:<8} {:<width$}  -> {advice}", "", "");
            }
        }
    }
    out
}

fn indented(text: &str) -> String {
    text.lines().fold(String::new(), |mut out, line| {
        let _ = writeln!(out, "  {line}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_its_finding() {
        let check = Check::ok("cores", NeededFor::Direct, "1").warn("add one");
        let text = render(&[check]);
        assert!(text.contains("warn     cores  1\n"), "{text}");
        assert!(text.contains("-> add one"), "{text}");
    }

    #[test]
    fn only_the_direct_path_s_needs_decide() {
        let offload = Check::ok("tun", NeededFor::Offload, "").missing("");
        let warned = Check::ok("cores", NeededFor::Direct, "").warn("");
        assert_eq!(first_failed(&[offload.clone(), warned]), None);
        let direct = Check::ok("library", NeededFor::Direct, "").missing("");
        assert_eq!(
            first_failed(&[offload, direct]).map(|check| check.name),
            Some("library")
        );
    }

    #[test]
    fn the_verdict_stands_first_and_says_what_works() {
        let library = Check::ok("library", NeededFor::Direct, "");
        let tun = Check::ok(checks::TUN, NeededFor::Offload, "").missing("");
        let packet = Check::ok(checks::PACKET, NeededFor::Offload, "");
        let verdict = Conclusion::of(&[library, tun.clone(), packet]);
        assert_eq!((verdict.direct, verdict.advice), (true, 1));
        assert_eq!(verdict.links, ["packet"]);
        let words = verdict.words();
        assert!(
            words.starts_with("Programs on this host can be accelerated"),
            "{words}"
        );
        let none = Check::ok("library", NeededFor::Direct, "").missing("");
        let words = Conclusion::of(&[none, tun]).words();
        assert!(
            words.contains("cannot be accelerated") && words.contains("cannot open a link"),
            "{words}"
        );
    }

    #[test]
    fn this_host_can_be_looked_at() {
        let checks = checks::all(&std::env::temp_dir().join("toehold-doctor-none"));
        assert!(checks.len() > 10);
        for check in &checks {
            assert!(!check.finding.is_empty(), "{}", check.name);
            assert_eq!(
                check.advice.is_some(),
                check.state != State::Ok,
                "{}",
                check.name
            );
        }
    }
}
