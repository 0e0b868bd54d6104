//! `toehold container`: the additions that a container needs for accelerated programs.
//!
//! The container needs three things: the library, the adapter's directory, and the variables by
//! which the loader and the library find both. The directory is mounted and not the socket in it,
//! because a restarted adapter makes a new socket.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::library;
use crate::meeting::Meeting;
use crate::options::{AdapterChoice, PathChoice, WaitChoice};
use crate::output::print;
use crate::preload::{self, FILTERS, PRELOAD};

/// Options of `toehold container`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ContainerArgs {
    /// The container engine or the file for which the options are printed
    #[arg(value_enum, value_name = "FORM")]
    form: Form,

    /// Which adapter pairs the connections
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// The adapter's runtime directory on this host
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    runtime_dir: Option<PathBuf>,

    /// How the programs wait for bytes
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitChoice,

    /// The container has a user namespace in which the adapter's user has no number, for example
    /// one with --userns. Implied for podman of an ordinary user (rootless) and the system adapter
    #[arg(long)]
    user_namespace: bool,
}

/// The container engine or the file for which the options are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Options of `podman run` and `podman create`
    Podman,
    /// Options of `docker run` and `docker create`, also of nerdctl
    Docker,
    /// The config.json of an OCI bundle, read from standard input, with these additions
    Oci,
    /// Lines for a Kubernetes pod: environment, mounts and volumes
    Kubernetes,
}

const EXAMPLES: &str = "\
Examples:
  podman run $(toehold container podman) IMAGE
  docker run $(toehold container docker) IMAGE
  toehold container oci <bundle/config.json >new.json && mv new.json bundle/config.json

The host needs the system adapter (toehold adapter --system), or for rootless containers of one user
that user's own. Programs of the image that are linked dynamically to glibc or musl are accelerated,
and static ones that the container's first program executes. All others run as before.
docs/containers.md has more, also about Kubernetes.";

/// Where the library is in a container.
const LIBRARY: &str = "/run/toehold-lib/libtoehold.so";
/// The adapter's directory inside a container.
const DIRECTORY: &str = "/run/toehold";
/// A container engine installs one or two system call filters. They make calls fail and do not kill
/// the process.
const KNOWN_FILTERS: &str = "64";
/// The variable that tells the library which user it trusts as an adapter.
const ADAPTER_USER: &str = "TOEHOLD_ADAPTER_UID";
/// The number of users without a mapping, if `/proc` does not tell it.
const OVERFLOW_USER: &str = "65534";

/// The additions to a container: mounts and variables.
#[derive(Debug)]
struct Content {
    /// Pairs of a host path and a container path.
    mounts: [(PathBuf, &'static str); 2],
    variables: Vec<(&'static str, String)>,
}

/// Prints the requested form.
pub(crate) fn run(args: &ContainerArgs) -> Result<(), Failure> {
    let library = library::find().map_err(|error| Failure::new(error.to_string()))?;
    let meeting = Meeting::of(args.runtime_dir.as_deref(), args.adapter);
    let directory = std::path::absolute(meeting.dir());
    let directory = directory.map_err(|error| Failure::new(error.to_string()))?;
    // Podman of an ordinary user is rootless: root has no mapping in its containers.
    let is_rootless = args.form == Form::Podman
        && matches!(meeting, Meeting::System(_))
        && !rustix::process::geteuid().is_root();
    let is_unmapped = args.user_namespace || is_rootless;
    let content = Content::new(library, directory, args.wait, is_unmapped);
    let text = match args.form {
        Form::Podman => content.options(|host, there| {
            format!("--mount=type=bind,source={host},target={there},ro=true")
        })?,
        Form::Docker => content.options(|host, there| {
            format!("--mount=type=bind,source={host},target={there},readonly")
        })?,
        Form::Oci => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|error| Failure::new(format!("standard input: {error}")))?;
            content.in_bundle(&text)?
        }
        Form::Kubernetes => content.in_pod()?,
    };
    print(text).map(drop)
}

impl Content {
    fn new(library: PathBuf, directory: PathBuf, wait: WaitChoice, is_unmapped: bool) -> Content {
        let mut variables = vec![
            (PRELOAD, LIBRARY.to_owned()),
            ("TOEHOLD_RUNTIME_DIR", DIRECTORY.to_owned()),
            ("TOEHOLD_PATH", PathChoice::Auto.word().to_owned()),
            ("TOEHOLD_WAIT", wait.word().to_owned()),
            (FILTERS, KNOWN_FILTERS.to_owned()),
        ];
        variables.extend(preload::patches().map(|(name, on)| (name, on.to_owned())));
        if is_unmapped {
            let read = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
            let number = read.map_or(OVERFLOW_USER.to_owned(), |text| text.trim().to_owned());
            variables.push((ADAPTER_USER, number));
        }
        Content {
            mounts: [(library, LIBRARY), (directory, DIRECTORY)],
            variables,
        }
    }

    /// One line of options, which a shell splits at the spaces.
    fn options(&self, mount: impl Fn(&str, &str) -> String) -> Result<String, Failure> {
        let mut words = Vec::new();
        for (host, there) in &self.mounts {
            words.push(mount(plain(host)?, there));
        }
        let variables = self.variables.iter();
        words.extend(variables.map(|(name, value)| format!("--env={name}={value}")));
        Ok(words.join(" ") + "\n")
    }

    /// A bundle's configuration with these additions. Earlier additions of ours are replaced.
    fn in_bundle(&self, text: &str) -> Result<String, Failure> {
        let wrong = |what: &str| Failure::new(format!("standard input is no config.json: {what}"));
        let mut config: Value =
            serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        let process = config.get_mut("process").and_then(Value::as_object_mut);
        let process = process.ok_or_else(|| wrong("it has no process"))?;
        let list = process.entry("env").or_insert_with(|| json!([]));
        let list = list.as_array_mut().ok_or_else(|| wrong("env is no list"))?;
        let mut ours: Vec<(&str, String)> = self.variables.clone();
        for (name, value) in ours.iter_mut().filter(|(name, _)| *name == PRELOAD) {
            // Other preloaded libraries stay, after ours.
            let before = list.iter().filter_map(Value::as_str);
            let before = before.filter_map(|line| line.strip_prefix(*name)?.strip_prefix('='));
            for other in before.flat_map(|list| list.split([':', ' '])) {
                if !other.is_empty() && other != LIBRARY {
                    value.push(':');
                    value.push_str(other);
                }
            }
        }
        let names: BTreeSet<&str> = ours.iter().map(|(name, _)| *name).collect();
        let is_ours = |line: &Value| {
            let name = line.as_str().and_then(|line| line.split('=').next());
            name.is_some_and(|name| names.contains(name))
        };
        list.retain(|line| !is_ours(line));
        list.extend(
            ours.iter()
                .map(|(name, value)| json!(format!("{name}={value}"))),
        );
        let mounts = config
            .as_object_mut()
            .expect("it has a process")
            .entry("mounts")
            .or_insert_with(|| json!([]));
        let mounts = mounts
            .as_array_mut()
            .ok_or_else(|| wrong("mounts is no list"))?;
        for (host, there) in &self.mounts {
            mounts.retain(|mount| mount["destination"].as_str() != Some(there));
            mounts.push(json!({
                "destination": there,
                "type": "bind",
                "source": as_text(host)?,
                "options": ["bind", "ro", "nosuid", "nodev"],
            }));
        }
        Ok(format!("{config:#}\n"))
    }

    /// Lines for a container and for its pod. JSON is valid YAML, so values are quoted as in JSON.
    fn in_pod(&self) -> Result<String, Failure> {
        let mut text = String::from("# In the container:\nenv:\n");
        for (name, value) in &self.variables {
            text.push_str(&format!("- {{name: {name}, value: {}}}\n", json!(value)));
        }
        text.push_str("volumeMounts:\n");
        for (name, (_, there)) in VOLUMES.iter().zip(&self.mounts) {
            text.push_str(&format!(
                "- {{name: {name}, mountPath: {there}, readOnly: true}}\n"
            ));
        }
        text.push_str("# In the pod:\nvolumes:\n");
        for ((name, kind), (host, _)) in VOLUMES.iter().zip(KINDS).zip(&self.mounts) {
            let host = json!(as_text(host)?);
            text.push_str(&format!(
                "- {{name: {name}, hostPath: {{path: {host}, type: {kind}}}}}\n"
            ));
        }
        Ok(text)
    }
}

const VOLUMES: [&str; 2] = ["toehold-lib", "toehold"];
const KINDS: [&str; 2] = ["File", "Directory"];

/// A path in JSON or YAML, which have only text.
fn as_text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        let path = path.display();
        Failure::new(format!(
            "the path {path} cannot stand in a text: it is not UTF-8"
        ))
    })
}

/// A path that is safe in a list of options, whose separators are spaces and commas.
fn plain(path: &Path) -> Result<&str, Failure> {
    let text = path.to_str();
    let is_plain = |text: &&str| !text.contains([' ', ',', '\t', '\n', '*', '?', '[', '"', '\'']);
    text.filter(is_plain).ok_or_else(|| {
        Failure::new(format!(
            "the path {} cannot stand among options that a shell separates",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// The number of extra variables on this machine: x86-64 has one.
    const PATCHES: usize = cfg!(target_arch = "x86_64") as usize;

    fn content() -> Content {
        let (library, directory) = ("/usr/lib/toehold/libtoehold.so", "/run/toehold");
        Content::new(library.into(), directory.into(), WaitChoice::Event, true)
    }

    #[test]
    fn options_are_words_of_one_line() {
        let mount = |host: &str, there: &str| format!("-v={host}:{there}");
        let line = content().options(mount).expect("plain paths");
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        assert_eq!(
            words[0],
            "-v=/usr/lib/toehold/libtoehold.so:/run/toehold-lib/libtoehold.so"
        );
        assert!(words.contains(&"--env=LD_PRELOAD=/run/toehold-lib/libtoehold.so"));
        assert!(words.contains(&"--env=TOEHOLD_WAIT=event"));
        assert_eq!(words.len(), 8 + PATCHES);
        let mut spaced = content();
        spaced.mounts[0].0 = "/a b".into();
        assert!(spaced.options(mount).is_err());
    }

    #[test]
    fn a_bundle_keeps_what_is_its_own_and_may_be_given_twice() {
        let text = r#"{"ociVersion":"1.0.0","process":{"args":["sh"],
            "env":["A=1","LD_PRELOAD=/x.so"]},"mounts":[{"destination":"/proc","type":"proc"}]}"#;
        let once = content().in_bundle(text).expect("a bundle");
        let twice = content().in_bundle(&once).expect("a bundle");
        assert_eq!(once, twice);
        let value: Value = serde_json::from_str(&once).expect("JSON");
        let env = value["process"]["env"].as_array().expect("a list");
        assert!(env.contains(&json!("A=1")));
        let preload = "LD_PRELOAD=/run/toehold-lib/libtoehold.so:/x.so";
        assert!(env.contains(&json!(preload)), "{env:?}");
        let mounts = value["mounts"].as_array().expect("a list");
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[2]["source"], "/run/toehold");
        for wrong in ["", "[]", "{}", r#"{"process":{"env":3}}"#] {
            assert!(content().in_bundle(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_example_of_kubernetes_has_the_lines_that_are_printed() {
        let library = "/usr/local/lib/toehold/libtoehold.so";
        let wait = WaitChoice::Adaptive;
        let content = Content::new(library.into(), DIRECTORY.into(), wait, false);
        let example = include_str!("../../../contrib/kubernetes/injection.yaml");
        let printed = content.in_pod().expect("text");
        let lines: Vec<&str> = printed.lines().filter(|it| it.starts_with("- ")).collect();
        assert_eq!(lines.len(), 9 + PATCHES);
        for line in lines {
            assert!(example.contains(line), "{line}");
        }
    }

    #[test]
    fn a_path_that_is_no_text_is_refused() {
        let mut content = content();
        content.mounts[1].0 = OsStr::from_bytes(b"/run/\xff").into();
        assert!(content.in_pod().is_err());
        assert!(content.in_bundle(r#"{"process":{}}"#).is_err());
        assert!(content.options(|host, _| host.to_owned()).is_err());
    }

    #[test]
    fn a_pod_names_each_volume_that_it_mounts() {
        let text = content().in_pod().expect("text");
        for name in VOLUMES {
            assert_eq!(text.matches(&format!("{{name: {name},")).count(), 2);
        }
        assert!(text.contains(r#"{name: TOEHOLD_ADAPTER_UID, value: "65534"}"#));
    }
}
