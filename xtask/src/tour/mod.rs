//! The operator's tour of `docs/operations.md`, in a Debian 12 that is booted for it.
//!
//! The page is the script: its commands are run in order, and each must print what the page shows.
//! Meanwhile clients ask nginx, which asks gunicorn, which asks PostgreSQL; every answer is
//! checked. After some commands the tour checks more than the page shows.
//!
//! - [`machine`]: the system, with systemd as the first process of new namespaces.
//! - [`page`]: the commands and outputs of the page, and whether an output is the page's.
//! - [`load`]: continuous requests through the three services; each answer is checked.

mod load;
mod machine;
mod page;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::load::Load;
use self::machine::{Machine, Terminal};
use crate::skips::{self, Skip};
use crate::{root, target};

const PAGE: &str = "docs/operations.md";
const HEADING: &str = "## A tour: three services, from installation to purge";
/// Debian packages of the system, beside the minimal ones.
const PACKAGES: [&str; 8] = [
    "systemd",
    "systemd-sysv",
    "dbus",
    "nginx-light",
    "gunicorn",
    "python3-psycopg2",
    "postgresql",
    "tcpdump",
];
/// Programs of this host that the tour needs.
const TOOLS: [&str; 7] = [
    "unshare",
    "nsenter",
    "setpriv",
    "mmdebstrap",
    "curl",
    "tcpdump",
    "dpkg-buildpackage",
];
/// The exit status of `scripts/root.sh` when it cannot download.
const NO_MIRROR: i32 = 3;
/// The time that an expected event may take on a busy host.
const SOON: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The number of captures whose delays are measured.
const CAPTURES: usize = 5;
/// The units of the tour.
const UNITS: [&str; 3] = ["nginx", "app", "postgresql@15-main"];
/// Two programs of the tour, and the port by which the first reaches the second.
const HOPS: [(&str, &str, u16); 2] = [("nginx", "gunicorn", 8000), ("gunicorn", "postgres", 5432)];

/// The reason why a tour ended early.
enum Trouble {
    /// This host cannot run the tour: the name in the list of skips, and the reason.
    Skipped(&'static str, String),
    /// The reason.
    Failed(String),
}

impl From<String> for Trouble {
    fn from(reason: String) -> Trouble {
        Trouble::Failed(reason)
    }
}

/// `cargo xtask tour [PACKAGE]`: with this Debian package of Toehold, or one that is made.
/// `cargo xtask tour --prepare` only makes the system, if this host can; a tour says why not.
pub(crate) fn run(rest: &[String]) -> bool {
    if rest == ["--prepare"] {
        let made = can().and_then(|()| make_system(&system()));
        return !matches!(made, Err(Trouble::Failed(_)));
    }
    match prepared(rest) {
        Ok(took) => {
            println!("the tour is as the page has it ({took:.0?})");
            true
        }
        Err(Trouble::Skipped(what, reason)) => {
            println!("SKIPPED: {what}: {reason}");
            let what = what.to_owned();
            !skips::are_failures() || Skip { what, reason }.expected().is_some()
        }
        Err(Trouble::Failed(reason)) => {
            println!("tour: {reason}");
            false
        }
    }
}

/// Prepares the tour and runs it; returns how long the tour itself took.
fn prepared(rest: &[String]) -> Result<Duration, Trouble> {
    can()?;
    let package = match rest {
        [] => made_package()?,
        [package] => PathBuf::from(package),
        _ => return Err("usage: cargo xtask tour [PACKAGE]".to_owned().into()),
    };
    let system = system();
    make_system(&system)?;
    let begun = Instant::now();
    tour(&system, &package)?;
    Ok(begun.elapsed())
}

/// Whether this host can run the tour.
fn can() -> Result<(), Trouble> {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        let reason = "only root may make namespaces and a Debian; run it as root";
        return Err(Trouble::Skipped("tour", reason.to_owned()));
    }
    for tool in TOOLS {
        let mut found = Command::new("sh");
        found.args(["-c", "command -v \"$0\"", tool]);
        if !found.output().is_ok_and(|found| found.status.success()) {
            let reason = format!("{tool} is not installed (make tour installs it)");
            return Err(Trouble::Skipped("tour", reason));
        }
    }
    Machine::can_boot().map_err(|reason| {
        let needs = "systemd needs namespaces, cgroup2 and overlayfs";
        Trouble::Skipped("tour, booting", format!("{needs}: {reason}"))
    })
}

/// The system's root directory.
fn system() -> PathBuf {
    target().join("tour/bookworm")
}

/// Makes the system's root directory, once.
fn make_system(system: &Path) -> Result<(), Trouble> {
    println!("{}: a Debian 12; made once, in minutes", system.display());
    let mut make = Command::new("bash");
    make.arg("scripts/root.sh").arg(system).args(PACKAGES);
    let status = make.current_dir(root()).status();
    let status = status.map_err(|error| format!("cannot start bash: {error}"))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(NO_MIRROR) => {
            let reason = "mmdebstrap gets nothing from Debian's mirror".to_owned();
            Err(Trouble::Skipped("tour, its Debian", reason))
        }
        _ => Err(format!("scripts/root.sh: {status}").into()),
    }
}

/// The package that `scripts/deb.sh` has made, if there is one.
pub(crate) fn package() -> Option<PathBuf> {
    let entries = std::fs::read_dir(target().join("release/deb")).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| path.extension().is_some_and(|end| end == "deb"))
}

/// Builds the product and its Debian package.
fn made_package() -> Result<PathBuf, String> {
    let release = target().join("release");
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "-p", "toehold", "-p"]);
    succeed(build.arg("toehold-preload"))?;
    succeed(Command::new("bash").arg("scripts/deb.sh").arg(&release))?;
    package().ok_or_else(|| "scripts/deb.sh has made no package".to_owned())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn tour(system: &Path, package: &Path) -> Result<(), String> {
    let page = std::fs::read_to_string(root().join(PAGE)).map_err(|error| error.to_string())?;
    let commands = page::commands(&page, HEADING)?;
    let machine = Machine::boot(system)?;
    let result = prepare(&machine, package).and_then(|()| walk(&machine, &commands));
    result.map_err(|error| {
        let journal = machine.says(&["journalctl", "--no-pager", "-n", "60", "-o", "short"]);
        let journal = journal.unwrap_or_else(|error| error);
        format!("{error}\n--- the end of the system's journal\n{journal}")
    })
}

/// Installs the package, and sets up the three services without Toehold.
fn prepare(machine: &Machine, package: &Path) -> Result<(), String> {
    let name = package.file_name().ok_or("the package is no file")?;
    let content = std::fs::read(package);
    let content = content.map_err(|error| format!("{}: {error}", package.display()))?;
    machine.write(&format!("/root/{}", name.display()), content)?;
    machine.write("/srv/app/app.py", include_str!("app.py"))?;
    machine.write("/srv/app/app.sql", include_str!("app.sql"))?;
    machine.write(
        "/etc/systemd/system/app.service",
        include_str!("app.service"),
    )?;
    machine.write(
        "/etc/nginx/sites-available/default",
        include_str!("nginx.conf"),
    )?;
    // The application's role has no password.
    let access = "host app app 127.0.0.1/32 trust\n";
    machine.write("/etc/postgresql/15/main/pg_hba.conf", access_list(access))?;
    let script = "useradd --system app
        systemctl reload postgresql@15-main
        runuser -u postgres -- psql --quiet -v ON_ERROR_STOP=1 -f /srv/app/app.sql
        systemctl daemon-reload
        systemctl enable --quiet --now app
        systemctl restart nginx";
    machine.says(&["sh", "-ec", script])?;
    answers(machine)
}

/// PostgreSQL's list of users who may connect: its own user, and `more`.
fn access_list(more: &str) -> String {
    format!("local all postgres peer\n{more}")
}

/// Waits until the services answer.
fn answers(machine: &Machine) -> Result<(), String> {
    let mut said = String::new();
    soon(|| {
        let mut curl = machine.network().command("curl");
        curl.args(["-sSf", "--max-time", "5", "http://127.0.0.1/items/1"]);
        let output = curl.output().map_err(|error| error.to_string());
        said = match output {
            Ok(output) if output.status.success() => return true,
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error,
        };
        false
    })
    .ok_or_else(|| format!("the services do not answer: {said}"))?;
    Ok(())
}

/// Calls `ready` until it returns true; returns how long that took, or `None` after a while.
fn soon(mut ready: impl FnMut() -> bool) -> Option<Duration> {
    let begun = Instant::now();
    while begun.elapsed() < SOON {
        if ready() {
            return Some(begun.elapsed());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    None
}

/// Runs the commands of the page.
fn walk(machine: &Machine, commands: &[page::Command]) -> Result<(), String> {
    let network = machine.network();
    let load = Load::start(move || network.command("curl"));
    let mut walk = Walk {
        machine,
        load,
        terminal: machine.terminal()?,
        before: None,
        differences: Vec::new(),
    };
    for command in commands {
        let failed = |error| format!("{PAGE}, line {}: {error}", command.line);
        walk.step(command).map_err(failed)?;
    }
    walk.conclude()
}

struct Walk<'a> {
    machine: &'a Machine,
    load: Load,
    terminal: Terminal,
    /// Before the adapter was killed: the process numbers of the adapter and of the services.
    before: Option<[String; 2]>,
    /// Commands whose output differs from the page. The tour continues, so that one run finds all
    /// differences.
    differences: Vec<String>,
}

impl Walk<'_> {
    /// Runs one command of the page, and checks its effects.
    fn step(&mut self, command: &page::Command) -> Result<(), String> {
        println!("    # {}", command.text.replace('\n', "\n    "));
        let text = &*command.text;
        if text.starts_with("systemctl kill") {
            self.before = Some([self.adapter()?, self.services()?]);
        }
        let output = if text.starts_with("systemctl restart") {
            // Requests fail while the services are stopped, with Toehold and without it.
            let (load, terminal, machine) = (&self.load, &mut self.terminal, self.machine);
            let restarted = load.paused(|| {
                let output = terminal.run(text)?;
                answers(machine)?;
                Ok::<_, String>(output)
            })?;
            succeeded(restarted)?
        } else {
            self.run(command)?
        };
        if command.output == ["..."] {
            println!("    ...");
        } else {
            output.lines().for_each(|line| println!("    {line}"));
        }
        if !command.said(&output) {
            println!("    ^ the page has something else");
            let (line, text, page) = (command.line, &command.text, command.output.join("\n"));
            let difference = format!("{PAGE}, line {line}: {text}\n--- the page has\n{page}");
            self.differences
                .push(difference + "\n--- it says\n" + &output);
        }
        self.look(text)?;
        let answers = self.load.answers()?;
        // Every command is run while clients get answers.
        soon(|| !matches!(self.load.answers(), Ok(now) if now == answers))
            .ok_or("no request is answered any more")?;
        self.load.answers()?;
        Ok(())
    }

    /// Runs a command until its output is the page's: services and connections reach the expected
    /// state soon, but not at once.
    fn run(&mut self, command: &page::Command) -> Result<String, String> {
        let text = &*command.text;
        const LOOKS: [&str; 5] = [
            "toehold status",
            "toehold list",
            "toehold doctor",
            "systemctl is-active",
            "journalctl",
        ];
        let is_look = LOOKS.iter().any(|look| text.starts_with(look));
        let begun = Instant::now();
        loop {
            let result = succeeded(self.terminal.run(text)?);
            let is_expected = result.as_ref().is_ok_and(|output| command.said(output));
            if is_expected || !is_look || begun.elapsed() > SOON {
                return result;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Checks more than the page shows, after some of its commands.
    fn look(&mut self, text: &str) -> Result<(), String> {
        match text {
            "toehold status" if self.machine.has_library_mapped()? => {
                self.every_hop_is_accelerated("with the library")?;
            }
            "toehold status" => {}
            "kill %1" => {
                let took = self.every_hop_is_accelerated("after the capture")?;
                println!("every connection is back after {took:.1?}");
                self.measure_captures()?;
            }
            _ if text.starts_with("systemctl kill") => {
                let [adapter, services] = self.before.take().expect("asked before");
                soon(|| self.adapter().is_ok_and(|now| now != adapter && now != "0"))
                    .ok_or("systemd starts no other adapter")?;
                if self.services()? != services {
                    return Err("the adapter's death has ended a service".to_owned());
                }
                self.every_hop_is_accelerated("with another adapter")?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that each two neighbours have a connection that moves bytes through shared memory
    /// now, and none that moves bytes through the kernel.
    fn every_hop_is_accelerated(&self, when: &str) -> Result<Duration, String> {
        let mut earlier: Option<Vec<Moved>> = None;
        let mut last = Value::Null;
        let took = soon(|| {
            last = self.status();
            let now = moved(&last);
            let is_so = earlier.as_ref().is_some_and(|earlier| {
                (0..HOPS.len()).all(|hop| now[hop].rings > earlier[hop].rings)
                    && (0..HOPS.len()).all(|hop| now[hop].on_kernel == 0)
            });
            earlier = Some(now);
            is_so
        });
        took.ok_or_else(|| format!("{when} not every connection is in shared memory: {last}"))
    }

    fn status(&self) -> Value {
        let text = self.machine.says(&["toehold", "status", "--json"]);
        serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default()
    }

    /// Measures several times how soon a capture sees messages. It is a failure if a capture sees
    /// none; the reader judges the delay.
    fn measure_captures(&self) -> Result<(), String> {
        let mut delays = Vec::new();
        for _ in 0..CAPTURES {
            let capture = Capture::start(self.machine)?;
            delays.push(capture.first_message()?);
            drop(capture);
            self.every_hop_is_accelerated("after a capture")?;
        }
        delays.sort_unstable();
        // The adapter checks every 30 ms, and each client sends a request every 20 ms.
        println!("captures have seen a first message after {delays:.0?}");
        Ok(())
    }

    fn adapter(&self) -> Result<String, String> {
        let pid = ["systemctl", "show", "-P", "MainPID", "toehold-adapter"];
        Ok(self.machine.says(&pid)?.trim().to_owned())
    }

    /// The main processes of the services.
    fn services(&self) -> Result<String, String> {
        let show = [&["systemctl", "show", "-P", "MainPID"][..], &UNITS].concat();
        self.machine.says(&show)
    }

    /// After the last command: the services answer without the library, and nothing of the library
    /// is left.
    fn conclude(self) -> Result<(), String> {
        let answers = self.load.answers()?;
        println!("{answers} right answers, none wrong");
        if self.machine.has_library_mapped()? {
            return Err("a program has the library after it was purged".to_owned());
        }
        let active = [&["systemctl", "is-active"][..], &UNITS].concat();
        self.machine.says(&active)?;
        // The page's command does not search other file systems; this check does.
        let script = "find /run /tmp /dev /var/tmp -name '*toehold*'; ls /etc/systemd/system";
        let left = self.machine.says(&["sh", "-c", script])?;
        if left.contains("toehold") || left.contains(".service.d") {
            return Err(format!("the package leaves: {left}"));
        }
        if self.differences.is_empty() {
            Ok(())
        } else {
            Err(self.differences.join("\n\n"))
        }
    }
}

/// The bytes of the connections between two neighbours.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    /// Bytes by shared memory, sent by the first of the two.
    rings: u64,
    /// The number of connections in use that are not in shared memory.
    on_kernel: u64,
}

/// For each of [`HOPS`], by the adapter's answer.
fn moved(status: &Value) -> Vec<Moved> {
    let processes = status["processes"].as_array().cloned().unwrap_or_default();
    let of = |(from, _, port): (&str, &str, u16)| {
        let mut moved = Moved::default();
        let its = processes.iter().filter(|one| one["program"] == *from);
        let connections = its
            .filter_map(|one| one["connections"].as_array())
            .flatten();
        let end = format!(":{port}");
        for one in connections {
            if !one["remote"]
                .as_str()
                .is_some_and(|remote| remote.ends_with(&end))
            {
                continue;
            }
            moved.rings += one["bytes_ring_tx"].as_u64().unwrap_or(0);
            moved.on_kernel += u64::from(one["tx_path"] != "direct");
        }
        moved
    };
    HOPS.into_iter().map(of).collect()
}

/// The output of a command, if it succeeded.
fn succeeded((output, status): (String, String)) -> Result<String, String> {
    let output = output.trim_matches('\n');
    match &*status {
        "0" => Ok(output.to_owned()),
        _ => Err(format!("exit status {status}\n{output}")),
    }
}

/// A tcpdump of this host in the system's network; it ends when this value is dropped.
struct Capture {
    tcpdump: Child,
    begun: Instant,
    first: Receiver<Instant>,
}

impl Capture {
    /// Starts one; it has begun when this returns.
    fn start(machine: &Machine) -> Result<Capture, String> {
        let mut command = machine.network().command("tcpdump");
        command.args(["-i", "lo", "-n", "-l", "--immediate-mode", "-q"]);
        command.arg("tcp port 5432 and greater 80");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tcpdump = command.spawn().map_err(|error| error.to_string())?;
        let mut lines = BufReader::new(tcpdump.stdout.take().expect("piped")).lines();
        let mut errors = BufReader::new(tcpdump.stderr.take().expect("piped")).lines();
        let has_begun = errors.any(|line| line.is_ok_and(|line| line.starts_with("listening on")));
        let (sender, first) = channel();
        let capture = Capture {
            tcpdump,
            begun: Instant::now(),
            first,
        };
        if !has_begun {
            return Err("tcpdump does not begin".to_owned());
        }
        std::thread::spawn(move || {
            if lines.next().is_some() {
                let _ = sender.send(Instant::now());
            }
            lines.for_each(drop);
        });
        Ok(capture)
    }

    /// The time from its beginning until it has seen a message.
    fn first_message(&self) -> Result<Duration, String> {
        let first = self.first.recv_timeout(SOON);
        let first = first.map_err(|_| "a capture sees no message")?;
        Ok(first.saturating_duration_since(self.begun))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
    }
}
