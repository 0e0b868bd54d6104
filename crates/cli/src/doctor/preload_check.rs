//! `toehold doctor --preload-check`: tries whether the library can be preloaded into every program
//! of a system. Writes nothing there, and runs only `true`.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use crate::failure::Failure;
use crate::library;
use crate::output::print;
use crate::program::{self, Obstacle};

/// Tries the library in the system with the root directory `place`, or in the system of process
/// `place`.
pub(super) fn run(place: &str) -> Result<(), Failure> {
    let library = library::find().map_err(|error| Failure::new(error.to_string()))?;
    let process = place.parse::<u32>().ok();
    let root = match process {
        Some(process) => PathBuf::from(format!("/proc/{process}/root")),
        None => PathBuf::from(place),
    };
    if !root.is_dir() {
        return Err(Failure::usage(format!(
            "{} is neither a directory nor the root directory of a process that you may look at",
            root.display()
        )));
    }
    let system = System { root, library };
    let mut findings = Vec::new();
    if let Some(process) = process {
        let path = PathBuf::from(format!("/proc/{process}/exe"));
        findings.push(system.judge(&path, Trial::Load)?);
    }
    let harmless = HARMLESS.iter().filter_map(|name| system.resolve(name));
    let mut harmless: Vec<PathBuf> = harmless.collect();
    harmless.sort();
    harmless.dedup();
    for path in &harmless {
        findings.push(system.judge(path, Trial::Run)?);
    }
    if findings.is_empty() {
        return Err(Failure::new(format!(
            "there is no program to try in {}: looked for {}",
            system.root.display(),
            HARMLESS.join(", ")
        )));
    }
    let mut text = String::new();
    for finding in &findings {
        text += if finding.is_harmful {
            "harm  "
        } else {
            "ok    "
        };
        text += &finding.sentence;
        text.push('\n');
    }
    print(text)?;
    match findings.iter().any(|finding| finding.is_harmful) {
        false => Ok(()),
        true => Err(Failure::new(
            "do not preload the library there for every program",
        )),
    }
}

/// Harmless programs that systems usually have.
const HARMLESS: [&str; 4] = ["bin/true", "usr/bin/true", "bin/busybox", "usr/bin/busybox"];

/// Directories in which dynamic linkers look for libraries.
const LIBRARY_DIRECTORIES: [&str; 9] = [
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "usr/local/lib",
];

/// The kind of a test of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// Its dynamic linker loads it with all its libraries and does not run it.
    Load,
    /// The program is run.
    Run,
}

struct System {
    root: PathBuf,
    library: PathBuf,
}

struct Finding {
    is_harmful: bool,
    sentence: String,
}

impl System {
    /// The location of a path within this system; symbolic links are resolved within the system.
    fn resolve(&self, path: &str) -> Option<PathBuf> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = open(&self.root, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(
            &root,
            path.trim_start_matches('/'),
            flags,
            Mode::empty(),
            inside,
        )
        .ok()?;
        std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
    }

    fn judge(&self, path: &Path, trial: Trial) -> Result<Finding, Failure> {
        let name = path.display();
        match program::obstacle(path) {
            Some(obstacle @ Obstacle::Sanitized(..)) => {
                return Ok(Finding {
                    is_harmful: true,
                    sentence: obstacle.to_string(),
                });
            }
            Some(obstacle) => {
                return Ok(Finding {
                    is_harmful: false,
                    sentence: format!("{name} runs without the library: {obstacle}"),
                });
            }
            None => {}
        }
        let Some(loader) = program::loader(path).and_then(|loader| self.resolve(&loader)) else {
            return Ok(Finding {
                is_harmful: false,
                sentence: format!("{name} names no dynamic linker of this system: nothing to try"),
            });
        };
        let plain = self.outcome(&loader, path, trial, &[])?;
        for (how, variables) in [
            ("loaded", [("TOEHOLD_PATH", "none")]),
            ("started", [("TOEHOLD_PATH", "direct")]),
        ] {
            let with = self.outcome(&loader, path, trial, &variables)?;
            if with != plain {
                let said = String::from_utf8_lossy(&with.1).trim().replace('\n', "; ");
                return Ok(Finding {
                    is_harmful: true,
                    sentence: format!("{name} with the library {how} {}: {said}", with.0),
                });
            }
        }
        let done = match trial {
            Trial::Load => "loads with the library as it does without",
            Trial::Run => "runs with the library as it does without",
        };
        Ok(Finding {
            is_harmful: false,
            sentence: format!("{name} {done} ({})", loader.display()),
        })
    }

    /// The outcome of a trial, and the message if it fails. With `variables` the library is
    /// preloaded.
    fn outcome(
        &self,
        loader: &Path,
        path: &Path,
        trial: Trial,
        variables: &[(&str, &str)],
    ) -> Result<(String, Vec<u8>), Failure> {
        let mut directories = OsString::new();
        for directory in LIBRARY_DIRECTORIES {
            if let Some(found) = self.resolve(directory) {
                if !directories.is_empty() {
                    directories.push(":");
                }
                directories.push(found);
            }
        }
        let mut command = Command::new(loader);
        command.env_clear().stdin(Stdio::null());
        if trial == Trial::Load {
            command.arg("--list");
        }
        command.arg("--library-path").arg(directories).arg(path);
        if trial == Trial::Run {
            command.arg("true");
        }
        if !variables.is_empty() {
            command.env("LD_PRELOAD", &self.library);
            command.env("TOEHOLD_RUNTIME_DIR", "/nonexistent");
            command.envs(variables.iter().copied());
        }
        let output = command
            .output()
            .map_err(|error| Failure::new(format!("cannot run {}: {error}", loader.display())))?;
        let Output { status, stderr, .. } = output;
        Ok((status.to_string(), stderr))
    }
}
