//! `toehold enable`, `disable` and `list`, on a tree that stands for a system.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const UNITS: &str = "etc/systemd/system";

/// A tree with services, and a library.
struct System {
    root: TempDir,
    library: PathBuf,
}

impl System {
    fn new() -> System {
        let root = TempDir::new().expect("the temporary directory is writable");
        let library = root.path().join("libtoehold.so");
        // Any ELF file: none of its code is run.
        fs::copy(env!("CARGO_BIN_EXE_toehold"), &library).expect("scratch");
        fs::create_dir_all(root.path().join(UNITS)).expect("scratch");
        let system = System { root, library };
        system.unit("web.service", "/bin/true");
        system
    }

    fn unit(&self, name: &str, program: &str) {
        let text = format!("[Unit]\nDescription=A test\n[Service]\nExecStart=-{program} --now\n");
        fs::write(self.root.path().join(UNITS).join(name), text).expect("scratch");
    }

    fn toehold(&self, words: &[&str]) -> Output {
        self.prepare(words).output().expect("toehold runs")
    }

    fn prepare(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
        command.arg(words[0]).arg("--root").arg(self.root.path());
        command.args(&words[1..]);
        command.env("TOEHOLD_LIB", &self.library);
        command.env("TOEHOLD_SYSTEM_DIR", "/run/toehold");
        command
    }

    /// All files of the tree with their contents, and all directories.
    fn files(&self) -> BTreeMap<PathBuf, Option<String>> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.root.path().to_path_buf()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory).expect("ours").flatten() {
                let path = entry.path();
                let text = fs::read_to_string(&path).ok();
                if path.is_dir() {
                    left.push(path.clone());
                }
                found.insert(path, text);
            }
        }
        found
    }

    fn drop_in(&self, unit: &str) -> PathBuf {
        let directory = self.root.path().join(UNITS).join(format!("{unit}.d"));
        directory.join("50-toehold.conf")
    }
}

fn words(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    out + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn all_services_are_enabled_where_that_cannot_be_said() {
    let system = System::new();
    system.unit("mail.service", "/bin/true");
    let full = || File::options().write(true).open("/dev/full");
    let mut command = system.prepare(&["enable", "web", "mail"]);
    command.stdout(full().expect("a device"));
    command.stderr(full().expect("a device"));
    let status = command.status().expect("toehold runs");
    assert_eq!(status.code(), Some(1));
    for unit in ["web.service", "mail.service"] {
        assert!(system.drop_in(unit).exists(), "{unit}");
    }
    let mut list = system.prepare(&["list"]);
    list.stdout(full().expect("a device"));
    let listed = list.status().expect("toehold runs");
    assert_eq!(listed.code(), Some(1));
}

#[test]
fn a_service_is_enabled_listed_and_disabled_without_a_trace() {
    let system = System::new();
    let before = system.files();
    let enabled = system.toehold(&["enable", "web"]);
    assert!(enabled.status.success(), "{}", words(&enabled));
    let text = fs::read_to_string(system.drop_in("web.service")).expect("written");
    let preload = format!("Environment=\"LD_PRELOAD={}\"\n", system.library.display());
    assert!(text.contains(&preload), "{text}");
    assert!(
        text.contains("Environment=\"TOEHOLD_RUNTIME_DIR=/run/toehold\"\n"),
        "{text}"
    );
    let mut with = before.clone();
    with.insert(system.drop_in("web.service"), Some(text));
    with.insert(
        system
            .drop_in("web.service")
            .parent()
            .expect("in one")
            .into(),
        None,
    );
    assert_eq!(system.files(), with, "nothing else was touched");
    verify(system.root.path(), "web.service");

    let again = system.toehold(&["enable", "web.service"]);
    assert!(again.status.success(), "{}", words(&again));
    assert_eq!(system.files(), with);
    let listed = words(&system.toehold(&["list"]));
    assert_eq!(listed, "web.service  enabled\n");

    let disabled = system.toehold(&["disable", "web"]);
    assert!(disabled.status.success(), "{}", words(&disabled));
    assert_eq!(system.files(), before);
    let listed = words(&system.toehold(&["list"]));
    assert!(listed.starts_with("no service is enabled"), "{listed}");
    let twice = system.toehold(&["disable", "web"]);
    assert!(words(&twice).contains("web.service is not enabled"));
    assert!(!twice.status.success());
}

#[test]
fn the_operators_own_drop_ins_stay() {
    let system = System::new();
    let directory = system.drop_in("web.service");
    let directory = directory.parent().expect("in one");
    fs::create_dir(directory).expect("scratch");
    let own = "[Service]\nEnvironment=LD_PRELOAD=/usr/lib/other.so\n";
    fs::write(directory.join("own.conf"), own).expect("scratch");
    let before = system.files();
    assert!(system.toehold(&["enable", "web"]).status.success());
    let text = fs::read_to_string(system.drop_in("web.service")).expect("written");
    assert!(text.contains(":/usr/lib/other.so\"\n"), "{text}");
    assert!(system.toehold(&["disable", "web"]).status.success());
    assert_eq!(system.files(), before);
}

#[test]
fn nothing_is_written_when_one_of_the_services_is_not_there() {
    let system = System::new();
    let before = system.files();
    let refused = system.toehold(&["enable", "web", "nosuch"]);
    let said = words(&refused);
    assert!(!refused.status.success());
    assert!(
        said.contains("there is no service nosuch.service"),
        "{said}"
    );
    assert_eq!(system.files(), before);
    let refused = words(&system.toehold(&["enable", "web.socket"]));
    assert!(refused.contains("expected NAME.service"), "{refused}");
}

#[test]
fn a_program_that_another_loader_runs_gets_no_file() {
    let system = System::new();
    let program = system.root.path().join("opt/static");
    fs::create_dir(program.parent().expect("in one")).expect("scratch");
    // An ELF header of a 64-bit executable without any segment: nothing loads it.
    let mut header = [0u8; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16] = 2;
    header[18..20].copy_from_slice(&62u16.to_le_bytes());
    header[52..54].copy_from_slice(&64u16.to_le_bytes());
    header[54..56].copy_from_slice(&56u16.to_le_bytes());
    fs::write(&program, header).expect("scratch");
    system.unit("static.service", "/opt/static");
    let before = system.files();
    let enabled = system.toehold(&["enable", "static"]);
    let said = words(&enabled);
    assert!(said.contains("stays on kernel TCP"), "{said}");
    assert_eq!(system.files(), before);
}

/// Asks systemd about the unit and its drop-in, where systemd is installed.
fn verify(root: &Path, unit: &str) {
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", unit]);
    command.env(
        "SYSTEMD_UNIT_PATH",
        format!("{}:", root.join(UNITS).display()),
    );
    match command.output() {
        Err(_) => eprintln!("skipped: systemd-analyze is not installed"),
        Ok(output) => {
            let said = words(&output);
            assert!(
                output.status.success() && !said.contains("toehold"),
                "{said}"
            );
        }
    }
}
