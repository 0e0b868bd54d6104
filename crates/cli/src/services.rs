//! `toehold enable`, `disable` and `list`: systemd services that start with the library.
//!
//! One file for each service, [`DROP_IN`] in the service's drop-in directory, sets the variables
//! that `toehold run` would set. Nothing else is changed. The service manager reads the file when
//! it reloads, and the service has the library from its next start on. A service always starts: the
//! loader ignores a library that it cannot load, and the library does nothing in a service with
//! unknown filters.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use toehold_adapter::runtime_dir;
use toehold_adapter::services::{self, Process};

use crate::failure::Failure;
use crate::library;
use crate::options::WaitChoice;
use crate::output::{print, print_json, warn};
use crate::preload::{self, FILTERS, PRELOAD};
use crate::program;

/// Options of `toehold enable`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EnableArgs {
    /// How the services wait for bytes
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitChoice,

    #[command(flatten)]
    units: Units,
}

/// Options of `toehold list`.
#[derive(Args, Debug)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    tree: Tree,
}

/// Services of a tree: the options of `toehold disable`.
#[derive(Args, Debug)]
#[command(after_help = DISABLE_EXAMPLES)]
pub(crate) struct Units {
    #[command(flatten)]
    tree: Tree,

    /// The services; `.service` may be left out
    #[arg(required = true, value_name = "UNIT")]
    units: Vec<String>,
}

/// Where systemd's files are.
#[derive(Args, Debug)]
pub(crate) struct Tree {
    /// The root directory of the system, for images
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = clap::ValueHint::DirPath)]
    root: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  toehold enable nginx redis-server
  systemctl restart nginx redis-server
  toehold list
  toehold disable nginx redis-server

The system adapter pairs their connections: `systemctl enable --now toehold-adapter`. Without it all
connections stay on kernel TCP.";

const DISABLE_EXAMPLES: &str = "\
Examples:
  toehold disable nginx redis-server
  systemctl restart nginx redis-server

A service that runs keeps its accelerated connections until it is restarted: `toehold detach PID`
moves them back to the kernel at once.

Exit status: 0, or 1 when one of the services was not enabled.";

const LIST_EXAMPLES: &str = "\
Examples:
  toehold list
  toehold list --json
  toehold list --root /srv/image       those of an image; whether they run is not shown

With --json each service has `unit`, `state` (the sentence of the table) and `needs_action`: whether
the service needs an action of the operator.";

/// Enables the library for services.
pub(crate) fn enable(args: &EnableArgs) -> Result<(), Failure> {
    let library = library::find().map_err(|error| Failure::new(error.to_string()))?;
    if !preload::can_stand_in_list(&library) {
        let path = library.display();
        return Err(Failure::new(format!(
            "the path {path} cannot stand in LD_PRELOAD"
        )));
    }
    let tree = &args.units.tree;
    tree.check()?;
    let units = args.units.units.iter();
    let units = units.map(|name| Unit::find(tree, name));
    // All services are examined before anything is written.
    let units = units.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
    let (mut done, mut failure) = (String::new(), None);
    for unit in &units {
        let obstacle = unit.obstacle(tree);
        if let Some(obstacle) = &obstacle {
            warn(format!("{}: {obstacle}; it stays on kernel TCP", unit.name));
        }
        // Most loaders ignore a library that they cannot load, but not all.
        if obstacle.is_none_or(|obstacle| obstacle.is_passed_over) {
            let text = unit.drop_in(&library, args.wait);
            if let Err(error) = write(&unit.file, &text) {
                let file = unit.file.display();
                failure = Some(Failure::new(format!("cannot write {file}: {error}")));
                break;
            }
            done.push_str(&format!("{}: enabled, from its next start\n", unit.name));
        }
    }
    if let Some(place) = hidden_place(&library) {
        warn(format!(
            "the library is in {place}, which a service may not see; install it: make install"
        ));
    }
    reload(tree);
    print(&done)?;
    failure.map_or(Ok(()), Err)
}

/// Disables the library for services.
pub(crate) fn disable(args: &Units) -> Result<(), Failure> {
    args.tree.check()?;
    let tree = &args.tree;
    let names = args.units.iter().map(|name| -> Result<String, String> {
        let real = service(tree, name)?;
        // A file under the name of an alias is the operator's wish, too.
        let name = full(name);
        let is_own = drop_in_file(tree, &name).is_file();
        Ok(if is_own { name } else { real })
    });
    let names: Vec<String> = names.collect::<Result<_, _>>().map_err(Failure::new)?;
    let (mut is_missing, mut done, mut failure) = (false, String::new(), None);
    for name in names {
        let file = drop_in_file(tree, &name);
        match fs::remove_file(&file) {
            Ok(()) => {
                // The directory may contain other files of the operator.
                let _ = fs::remove_dir(file.parent().expect("in a directory"));
                done.push_str(&format!("{name}: disabled, from its next start\n"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                is_missing = true;
                warn(format!("{name} is not enabled"));
            }
            Err(error) => {
                let file = file.display();
                failure = Some(Failure::new(format!("cannot remove {file}: {error}")));
                break;
            }
        }
    }
    reload(tree);
    print(&done)?;
    match (failure, is_missing) {
        (Some(failure), _) => Err(failure),
        (None, true) => Err(Failure::new("not all of them were enabled")),
        (None, false) => Ok(()),
    }
}

/// Shows the services that are enabled, and whether they run with the library.
pub(crate) fn list(args: &ListArgs) -> Result<(), Failure> {
    args.tree.check()?;
    let states = states(&args.tree);
    if args.json {
        return print_json(&states);
    }
    let width = states.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let lines = states
        .iter()
        .map(|one| format!("{:width$}  {}\n", one.name, one.sentence));
    let mut text: String = lines.collect();
    if states.is_empty() {
        text.push_str("no service is enabled: toehold enable UNIT\n");
    }
    print(text).map(drop)
}

/// An enabled service.
#[derive(Debug, Serialize)]
pub(crate) struct State {
    #[serde(rename = "unit")]
    pub(crate) name: String,
    /// A sentence: whether the service is accelerated, or will be.
    #[serde(rename = "state")]
    pub(crate) sentence: String,
    /// Whether the operator has to do something.
    #[serde(rename = "needs_action")]
    pub(crate) is_wanting: bool,
}

/// The services of the system that runs.
pub(crate) fn of_this_system() -> Vec<State> {
    states(&Tree { root: "/".into() })
}

/// The services that are enabled in a tree.
fn states(args: &Tree) -> Vec<State> {
    let base = args.root.join(WRITTEN);
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(&base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(unit) = name.strip_suffix(".d")
            && entry.path().join(DROP_IN).is_file()
        {
            names.insert(unit.to_owned());
        }
    }
    let running = match args.is_elsewhere() {
        true => BTreeMap::new(),
        false => services::processes_by_unit(),
    };
    let state = |name: String| {
        let (sentence, is_wanting) = match Unit::find(args, &name) {
            Err(_) => ("there is no such service any more".to_owned(), true),
            Ok(unit) => match unit.obstacle(args) {
                Some(obstacle) => (format!("on kernel TCP: {obstacle}"), true),
                None if args.is_elsewhere() => ("enabled".to_owned(), false),
                None => {
                    let processes = running.get(&unit.name).map_or(&[][..], Vec::as_slice);
                    let (sentence, is_wanting) = of_processes(processes, unit.written());
                    (sentence.to_owned(), is_wanting)
                }
            },
        };
        State {
            name,
            sentence,
            is_wanting,
        }
    };
    names.into_iter().map(state).collect()
}

/// Whether a service's processes have the library, and whether the operator has to do something.
/// `written` is the time of our file.
fn of_processes(processes: &[Process], written: Option<SystemTime>) -> (&'static str, bool) {
    let is_older = |one: &Process| one.started.zip(written).is_none_or(|(a, b)| a < b);
    if processes.is_empty() {
        ("enabled; does not run", false)
    } else if processes.iter().any(|one| one.has_library) {
        ("enabled; runs with the library", false)
    } else if processes.iter().all(is_older) {
        (
            "enabled; runs without the library until it is restarted",
            true,
        )
    } else if processes.iter().any(|one| one.has_preload) {
        ("enabled; its loader did not load the library", true)
    } else {
        (
            "enabled; runs without the library: its programs get another environment",
            true,
        )
    }
}

impl Tree {
    /// Whether this is an image, and not the running system.
    fn is_elsewhere(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Fails if there is no tree.
    fn check(&self) -> Result<(), Failure> {
        let entry = fs::metadata(&self.root);
        let sentence = match entry {
            Ok(entry) if entry.is_dir() => return Ok(()),
            Ok(_) => "it is not a directory".to_owned(),
            Err(error) => error.to_string(),
        };
        let root = self.root.display();
        Err(Failure::new(format!("--root {root}: {sentence}")))
    }

    /// A path of the tree as this process can open it.
    fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The file to which symbolic links lead within the tree: their absolute targets are paths of
    /// the tree.
    fn followed(&self, mut path: PathBuf) -> PathBuf {
        for _ in 0..LINKS_MAX {
            let Ok(target) = fs::read_link(&path) else {
                break;
            };
            path = match target.is_absolute() {
                true => self.path(&target),
                false => path.with_file_name(target),
            };
        }
        path
    }
}

/// A service as its files describe it.
#[derive(Debug)]
struct Unit {
    name: String,
    /// The settings in the `Service` sections of its files, in order, without our file.
    settings: Vec<(String, String)>,
    /// Our file.
    file: PathBuf,
}

/// The reason why a service will not be accelerated.
#[derive(Debug)]
struct Obstacle {
    sentence: String,
    /// Whether the service starts with our file in spite of the obstacle.
    is_passed_over: bool,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.sentence)
    }
}

impl Unit {
    fn find(tree: &Tree, name: &str) -> Result<Unit, String> {
        let name = service(tree, name)?;
        let fragment = fragment(tree, &name).ok_or_else(|| {
            let places = PLACES.map(|place| tree.root.join(place).display().to_string());
            let places = places.join(", ");
            format!("there is no service {name} (looked in {places})")
        })?;
        if fs::read_link(&fragment).is_ok_and(|target| target == Path::new("/dev/null")) {
            return Err(format!("{name} is masked: systemctl unmask {name}"));
        }
        let fragment = tree.followed(fragment);
        let text = fs::read_to_string(&fragment);
        let text = text.map_err(|error| format!("cannot read {}: {error}", fragment.display()))?;
        let mut settings = parse(&text);
        for drop_in in drop_ins(tree, &name) {
            settings.extend(parse(&fs::read_to_string(drop_in).unwrap_or_default()));
        }
        Ok(Unit {
            file: drop_in_file(tree, &name),
            name,
            settings,
        })
    }

    /// The values of a setting after it was last reset.
    fn values<'a>(&'a self, key: &str) -> Vec<&'a str> {
        let mut values = Vec::new();
        for (_, value) in self.settings.iter().filter(|(its, _)| its == key) {
            match value.as_str() {
                "" => values.clear(),
                value => values.push(value),
            }
        }
        values
    }

    /// When our file was written.
    fn written(&self) -> Option<SystemTime> {
        fs::metadata(&self.file).ok()?.modified().ok()
    }

    /// The reason why the service will not be accelerated.
    fn obstacle(&self, tree: &Tree) -> Option<Obstacle> {
        for command in self.values("ExecStart") {
            let mut arguments = command.split_ascii_whitespace();
            let first = arguments.next().unwrap_or_default();
            let path = Path::new(first.trim_start_matches(['@', '-', ':', '+', '!', '|']));
            let is_oneshot = self.values("Type").last() == Some(&"oneshot");
            if is_oneshot && path.file_name().is_some_and(|name| name == "true") {
                let (stem, _) = self.name.split_once('.').unwrap_or((&self.name, ""));
                return Some(Obstacle {
                    sentence: format!(
                        "it runs {} and no server; systemctl list-units '{stem}@*' shows whether \
                        it starts other units",
                        path.display()
                    ),
                    is_passed_over: false,
                });
            }
            if path.file_name().is_some_and(|name| name == PG_CTLCLUSTER)
                && let Some(sentence) = self.of_cluster(tree)
            {
                return Some(Obstacle {
                    sentence,
                    is_passed_over: true,
                });
            }
            if let Some(obstacle) = program::obstacle(&tree.followed(tree.path(path))) {
                return Some(Obstacle {
                    sentence: obstacle.to_string(),
                    is_passed_over: false,
                });
            }
        }
        let passed_over = |sentence: &str| {
            Some(Obstacle {
                sentence: sentence.to_owned(),
                is_passed_over: true,
            })
        };
        if !self.values("SystemCallFilter").is_empty() {
            return passed_over(
                "it has SystemCallFilter=, which may end a program for a call of the library",
            );
        }
        let families = self.values("RestrictAddressFamilies").join(" ");
        let (is_refused, list) = match families.strip_prefix('~') {
            Some(list) => (true, list),
            None => (false, families.as_str()),
        };
        let has_unix = list.split_ascii_whitespace().any(|it| it == "AF_UNIX");
        if !families.is_empty() && has_unix == is_refused {
            return passed_over("RestrictAddressFamilies= keeps it from reaching the adapter");
        }
        None
    }

    /// Debian's `pg_ctlcluster` starts PostgreSQL with the environment from a file only. Returns
    /// why the server is not accelerated, and the remedy.
    fn of_cluster(&self, tree: &Tree) -> Option<String> {
        let (_, instance) = self.name.strip_suffix(".service")?.split_once('@')?;
        let (version, cluster) = instance.split_once('-')?;
        let file = format!("/etc/postgresql/{version}/{cluster}/environment");
        let text = fs::read_to_string(tree.path(Path::new(&file))).unwrap_or_default();
        let mut lines = text.lines().map(str::trim_start);
        if lines.any(|line| line.starts_with(PRELOAD) && line.contains(library::NAME)) {
            return None;
        }
        Some(format!(
            "{PG_CTLCLUSTER} starts its server with the environment in {file}; add the variables \
             of {} there, as NAME = 'VALUE'",
            self.file.display()
        ))
    }

    /// The content of our file.
    fn drop_in(&self, library: &Path, wait: WaitChoice) -> String {
        let mut list = library.display().to_string();
        let variables = self.values("Environment");
        let words = variables.iter().flat_map(|line| words(line));
        let mut others =
            words.filter_map(|word| word.strip_prefix("LD_PRELOAD=").map(str::to_owned));
        if let Some(others) = others.next_back() {
            list = format!("{list}:{others}");
        }
        let runtime_dir = runtime_dir::system_path().display().to_string();
        let mut variables = vec![
            (PRELOAD, list),
            ("TOEHOLD_RUNTIME_DIR", runtime_dir),
            ("TOEHOLD_PATH", "auto".to_owned()),
            ("TOEHOLD_WAIT", wait.word().to_owned()),
        ];
        variables.extend(preload::patches().map(|(name, on)| (name, on.to_owned())));
        if self.values("SystemCallFilter").is_empty() {
            // Filters from other settings of the unit make calls fail and do not kill the process.
            variables.push((FILTERS, KNOWN_FILTERS.to_owned()));
        }
        let mut text = format!(
            "# Written by `toehold enable`. `toehold disable {}` removes it.\n[Service]\n",
            self.name
        );
        for (name, value) in variables {
            // systemd.unit(5): a percent sign begins a specifier; systemd.syntax(7): quotes.
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            let value = value.replace('%', "%%");
            text.push_str(&format!("Environment=\"{name}={value}\"\n"));
        }
        text
    }
}

fn full(name: &str) -> String {
    match name.contains('.') {
        true => name.to_owned(),
        false => format!("{name}.service"),
    }
}

/// The full name of a service that the operator named. An alias, for example `redis.service` of
/// `redis-server.service`, stands for the service to whose file its link leads: the service manager
/// runs the programs under this name.
fn service(tree: &Tree, name: &str) -> Result<String, String> {
    let name = full(name);
    if name.contains('/') || !name.ends_with(".service") {
        return Err(format!("`{name}` is not a service: expected NAME.service"));
    }
    let real = || {
        let file = tree.followed(fragment(tree, &name)?);
        let directory = file.parent()?.canonicalize().ok()?;
        // A link to a file elsewhere is no alias: it adds that file under the link's own name.
        let mut places = PLACES.iter().map(|place| tree.root.join(place));
        places.find(|place| place.canonicalize().is_ok_and(|it| it == directory))?;
        let real = file.file_name()?.to_str()?;
        match (real.strip_suffix("@.service"), name.split_once('@')) {
            (Some(template), Some((_, instance))) => Some(format!("{template}@{instance}")),
            (Some(_), None) => None,
            (None, _) => real.ends_with(".service").then(|| real.to_owned()),
        }
    };
    Ok(real().unwrap_or(name))
}

fn drop_in_file(tree: &Tree, name: &str) -> PathBuf {
    let directory = tree.root.join(WRITTEN).join(format!("{name}.d"));
    directory.join(DROP_IN)
}

/// The names under which systemd looks for a unit's files: its own name and its template's.
fn names(name: &str) -> Vec<String> {
    let template = name
        .split_once('@')
        .map(|(template, _)| format!("{template}@.service"));
    std::iter::once(name.to_owned()).chain(template).collect()
}

fn fragment(tree: &Tree, name: &str) -> Option<PathBuf> {
    let names = names(name);
    let places = names
        .iter()
        .flat_map(|name| PLACES.map(|place| (place, name)));
    let mut files = places.map(|(place, name)| tree.root.join(place).join(name));
    files.find(|file| file.symlink_metadata().is_ok())
}

/// The drop-ins of a unit except ours, sorted by name.
fn drop_ins(tree: &Tree, name: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for name in names(name) {
        for place in PLACES {
            let directory = tree.root.join(place).join(format!("{name}.d"));
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            files.extend(entries.map(|entry| entry.path()).filter(|path| {
                path.extension().is_some_and(|it| it == "conf") && !path.ends_with(DROP_IN)
            }));
        }
    }
    files.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    files
}

/// The settings of the section `Service`.
fn parse(text: &str) -> Vec<(String, String)> {
    let text = text.replace("\\\n", " ");
    let mut is_service = false;
    let mut settings = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            is_service = line == "[Service]";
        } else if is_service
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    settings
}

/// The words of a line, without quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for letter in line.chars() {
        let word = words.last_mut().expect("one at least");
        match (letter, quote) {
            ('"' | '\'', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            (letter, None) if letter.is_whitespace() => words.push(String::new()),
            (letter, _) => word.push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Writes a file completely or not at all.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let directory = file.parent().expect("in a directory");
    fs::create_dir_all(directory)?;
    let new = directory.join(".toehold.new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
        // The directory may contain files of the operator.
        let _ = fs::remove_dir(directory);
    }
    written
}

/// Whether the library is in a place that services often cannot see (`ProtectHome=`,
/// `PrivateTmp=`).
fn hidden_place(library: &Path) -> Option<&'static str> {
    let bytes = library.as_os_str().as_bytes();
    ["/home/", "/root/", "/tmp/", "/var/tmp/", "/run/user/"]
        .into_iter()
        .find(|place| bytes.starts_with(place.as_bytes()))
}

/// Makes the service manager read its files again, if one runs.
fn reload(tree: &Tree) {
    if tree.is_elsewhere() || !Path::new("/run/systemd/system").is_dir() {
        return;
    }
    let mut systemctl = Command::new("systemctl");
    systemctl.arg("daemon-reload").stdin(Stdio::null());
    if !systemctl.status().is_ok_and(|status| status.success()) {
        warn("systemd did not reload; run: systemctl daemon-reload");
    }
}

/// More links than the kernel follows in a path.
const LINKS_MAX: usize = 40;
/// Debian's program that starts a cluster of PostgreSQL.
const PG_CTLCLUSTER: &str = "pg_ctlcluster";
/// Our file's name in a drop-in directory.
const DROP_IN: &str = "50-toehold.conf";
/// The directory of the operator's files.
const WRITTEN: &str = "etc/systemd/system";
/// Directories of units; earlier ones take precedence (systemd.unit(5)).
const PLACES: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// More filters than a unit can have without `SystemCallFilter=`.
const KNOWN_FILTERS: &str = "64";

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(text: &str) -> Unit {
        Unit {
            name: "x.service".into(),
            settings: parse(text),
            file: PathBuf::new(),
        }
    }

    fn obstacle(text: &str) -> Option<String> {
        let root = "/".into();
        unit(text).obstacle(&Tree { root }).map(|it| it.sentence)
    }

    #[test]
    fn libraries_that_a_unit_preloads_stay_behind_ours() {
        let unit = unit("[Service]\nEnvironment='A=1 2' \"LD_PRELOAD=/x/other.so\" \\\n  B=3\n");
        let text = unit.drop_in(Path::new("/l/100%/libtoehold.so"), WaitChoice::Event);
        let expected = "Environment=\"LD_PRELOAD=/l/100%%/libtoehold.so:/x/other.so\"\n";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("Environment=\"TOEHOLD_WAIT=event\"\n"),
            "{text}"
        );
        assert!(
            text.contains("Environment=\"TOEHOLD_FILTERS=64\"\n"),
            "{text}"
        );
        let patches = "Environment=\"TOEHOLD_PATCH_CALLS=on\"\n";
        assert_eq!(
            text.contains(patches),
            cfg!(target_arch = "x86_64"),
            "{text}"
        );
    }

    #[test]
    fn a_unit_with_a_filter_of_its_own_keeps_the_library_out() {
        let text = "[Service]\nSystemCallFilter=@system-service\n";
        assert!(obstacle(text).is_some_and(|it| it.contains("SystemCallFilter")));
        let written = unit(text).drop_in(Path::new("/l.so"), WaitChoice::Adaptive);
        assert!(!written.contains(FILTERS), "{written}");
        assert_eq!(obstacle(&format!("{text}SystemCallFilter=\n")), None);
        assert_eq!(obstacle("[Unit]\nSystemCallFilter=@clock\n"), None);
    }

    #[test]
    fn a_unit_that_only_starts_others_is_reported() {
        let text = "[Service]\nType=oneshot\nExecStart=/bin/true\n";
        assert!(obstacle(text).is_some_and(|it| it.contains("'x@*'")));
    }

    #[test]
    fn a_cluster_of_postgresql_needs_the_variables_in_its_own_file() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("etc/postgresql/15/main");
        fs::create_dir_all(&directory).expect("made");
        let tree = Tree {
            root: root.path().into(),
        };
        let unit = Unit {
            name: "postgresql@15-main.service".into(),
            ..unit(
                "[Service]\nExecStart=-/usr/bin/pg_ctlcluster --skip-systemctl-redirect %i start\n",
            )
        };
        let sentence = unit.of_cluster(&tree).expect("an obstacle");
        assert!(
            sentence.contains("/etc/postgresql/15/main/environment"),
            "{sentence}"
        );
        let line = "LD_PRELOAD = '/usr/lib/toehold/libtoehold.so'\n";
        fs::write(directory.join("environment"), line).expect("written");
        assert_eq!(unit.of_cluster(&tree), None);
    }

    #[test]
    fn a_service_that_was_started_since_and_has_no_library_has_lost_its_environment() {
        let now = SystemTime::now();
        let process = |has_library, has_preload, seconds| Process {
            pid: 1,
            has_library,
            has_preload,
            started: Some(now + std::time::Duration::from_secs(seconds)),
        };
        let written = Some(now + std::time::Duration::from_secs(5));
        let said = |processes: &[Process]| of_processes(processes, written).0;
        assert!(said(&[]).contains("does not run"));
        assert!(said(&[process(false, false, 9), process(true, true, 9)]).contains("with the"));
        assert!(said(&[process(false, false, 1)]).contains("until it is restarted"));
        assert!(said(&[process(false, false, 9)]).contains("another environment"));
        assert!(said(&[process(false, true, 9)]).contains("loader"));
    }

    #[test]
    fn a_unit_that_cannot_reach_the_adapter_is_reported() {
        let family = |value| obstacle(&format!("[Service]\nRestrictAddressFamilies={value}\n"));
        assert_eq!(family("AF_INET AF_UNIX"), None);
        assert_eq!(family("~AF_PACKET"), None);
        assert!(family("AF_INET AF_INET6").is_some());
        assert!(family("~AF_UNIX").is_some_and(|it| it.contains("adapter")));
    }
}
