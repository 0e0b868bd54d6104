//! `toehold enable`, `disable` and `list`, on a tree that stands for a system.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
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

/// A file that cannot be written: a directory has its name.
#[test]
fn what_was_enabled_before_a_failure_is_named_and_nothing_is_left_behind() {
    let system = System::new();
    system.unit("mail.service", "/bin/true");
    fs::create_dir_all(system.drop_in("mail.service").join("x")).expect("scratch");
    let before = system.files();
    let refused = system.toehold(&["enable", "web", "mail"]);
    let said = words(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("web.service: enabled") && said.contains("50-toehold.conf: "),
        "{said}"
    );
    let refused = system.toehold(&["disable", "web", "mail"]);
    let said = words(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.starts_with("web.service: disabled"), "{said}");
    assert_eq!(system.files(), before);
}

/// Links of an image lead to files of the image.
#[test]
fn an_alias_stands_for_the_service_of_its_link() {
    let system = System::new();
    system.unit("tty@.service", "/bin/true");
    let units = system.root.path().join(UNITS);
    symlink("/etc/systemd/system/web.service", units.join("www.service")).expect("scratch");
    symlink("tty@.service", units.join("console@.service")).expect("scratch");
    let before = system.files();
    let cases = [("www", "web.service"), ("console@1", "tty@1.service")];
    for (alias, name) in cases {
        let enabled = system.toehold(&["enable", alias]);
        let said = words(&enabled);
        let expected = format!("{name}: enabled, from its next start\n");
        assert!(said.starts_with(&expected), "{said}");
        assert!(system.drop_in(name).is_file(), "{name}");
        let listed = words(&system.toehold(&["list"]));
        assert_eq!(listed, format!("{name}  enabled\n"));
        assert!(system.toehold(&["disable", alias]).status.success());
        assert_eq!(system.files(), before);
    }
}

#[test]
fn a_link_to_a_file_elsewhere_is_a_service_of_its_own() {
    let system = System::new();
    let file = system.root.path().join("opt/shop.service");
    fs::create_dir(file.parent().expect("in one")).expect("scratch");
    fs::write(&file, "[Service]\nExecStart=/bin/true --now\n").expect("scratch");
    let link = system.root.path().join(UNITS).join("store.service");
    symlink("/opt/shop.service", link).expect("scratch");
    let enabled = system.toehold(&["enable", "store"]);
    assert!(enabled.status.success(), "{}", words(&enabled));
    assert!(system.drop_in("store.service").is_file());
}

#[test]
fn a_tree_that_is_not_there_is_an_error() {
    let system = System::new();
    for command in ["enable", "disable", "list"] {
        let mut words = vec![command, "--root", "/nonexistent"];
        words.extend((command != "list").then_some("web"));
        let mut toehold = Command::new(env!("CARGO_BIN_EXE_toehold"));
        toehold.args(words).env("TOEHOLD_LIB", &system.library);
        let output = toehold.output().expect("toehold runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.starts_with("toehold: --root /nonexistent: "), "{said}");
    }
}

#[test]
fn a_path_is_not_the_name_of_a_service() {
    let system = System::new();
    for name in ["../web", "web.socket"] {
        let refused = system.toehold(&["disable", name]);
        let said = words(&refused);
        assert!(said.contains("expected NAME.service"), "{name}: {said}");
        assert_eq!(refused.status.code(), Some(1));
    }
}

#[test]
fn a_program_that_another_loader_runs_gets_no_file() {
    let system = System::new();
    let program = system.root.path().join("opt/static");
    fs::create_dir(program.parent().expect("in one")).expect("scratch");
    symlink("/opt/static", system.root.path().join("opt/link")).expect("scratch");
    // An ELF header of a 64-bit executable without any segment: nothing loads it.
    let mut header = [0u8; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16] = 2;
    header[18..20].copy_from_slice(&62u16.to_le_bytes());
    header[52..54].copy_from_slice(&64u16.to_le_bytes());
    header[54..56].copy_from_slice(&56u16.to_le_bytes());
    fs::write(&program, header).expect("scratch");
    system.unit("static.service", "/opt/static");
    system.unit("link.service", "/opt/link");
    let before = system.files();
    for name in ["static", "link"] {
        let enabled = system.toehold(&["enable", name]);
        let said = words(&enabled);
        assert!(said.contains("stays on kernel TCP"), "{name}: {said}");
        assert_eq!(system.files(), before);
    }
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
