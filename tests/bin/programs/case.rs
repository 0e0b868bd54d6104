//! One case: a shell script that names its requirements and the way to run its stages.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::host;

/// The settings in the head of a script.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// One line for the table.
    pub(crate) what: String,
    /// The user who runs the case: root, or a user that a package creates. `None`: the current
    /// user.
    pub(crate) user: Option<String>,
    /// The case's programs become other users, so the adapter is one for all users.
    pub(crate) becomes_others: bool,
    needs: Vec<Need>,
    builds: Vec<Build>,
}

/// A program that a script builds, and its source.
#[derive(Debug)]
struct Build {
    name: String,
    source: String,
    script: &'static str,
}

/// The key in a case's head, and the script that builds or downloads the program.
const BUILDERS: [(&str, &str); 5] = [
    ("dotnet", "scripts/dotnet-programs.sh"),
    ("go", "scripts/go-programs.sh"),
    ("npm", "scripts/released-programs.sh"),
    ("pypi", "scripts/released-programs.sh"),
    ("rust", "scripts/rust-programs.sh"),
];

/// A program or a file, and the Debian package that contains it.
#[derive(Debug)]
struct Need {
    program: String,
    package: String,
}

impl Case {
    /// All cases of a folder, in the order of their names.
    ///
    /// # Errors
    /// When a script cannot be read or lacks its head.
    pub(crate) fn all(folder: &Path) -> io::Result<Vec<Case>> {
        let mut files: Vec<PathBuf> = fs::read_dir(folder)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "sh"));
        files.sort();
        files.into_iter().map(Case::read).collect()
    }

    fn read(file: PathBuf) -> io::Result<Case> {
        let text = fs::read_to_string(&file)?;
        let word = |key: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| Some(line.strip_prefix(&format!("# {key}: "))?.to_owned()))
        };
        let lacks = |key: &str| io::Error::other(format!("{} lacks # {key}:", file.display()));
        let needs = word("needs").ok_or_else(|| lacks("needs"))?;
        Ok(Case {
            name: stem(&file),
            what: word("what").ok_or_else(|| lacks("what"))?,
            user: word("user"),
            becomes_others: word("adapter").as_deref() == Some("system"),
            needs: needs.split_whitespace().map(Need::parse).collect(),
            builds: BUILDERS
                .into_iter()
                .filter_map(|(key, script)| Some(Build::all(&word(key)?, script)))
                .flatten()
                .collect(),
            file,
        })
    }

    /// The reason why the case cannot be run here.
    pub(crate) fn obstacle(&self) -> Option<String> {
        if let Some(need) = self.needs.iter().find(|need| !need.is_there()) {
            let Need { program, package } = need;
            return Some(format!(
                "{program} is not installed (Debian package {package})"
            ));
        }
        let is_built = |build: &&Build| built().join(&build.name).exists();
        if let Some(Build { name, script, .. }) = self.builds.iter().find(|build| !is_built(build))
        {
            return Some(format!("{name} is not built ({script} target/programs)"));
        }
        // SAFETY: takes nothing, cannot fail.
        let is_root = unsafe { libc::geteuid() == 0 };
        (self.user.is_some() && !is_root).then(|| "has to be begun by root".to_owned())
    }

    /// The programs that were built, the packages, and their versions.
    pub(crate) fn versions(&self) -> Vec<String> {
        let mut packages: Vec<&str> = self
            .needs
            .iter()
            .map(|need| need.package.as_str())
            .collect();
        packages.dedup();
        let of_package = |package: &str| match version(package) {
            Some(version) => format!("{package} {version}"),
            None => format!("{package} (not Debian's)"),
        };
        let built = self.builds.iter().map(Build::version);
        built.chain(packages.into_iter().map(of_package)).collect()
    }
}

impl Build {
    /// `NAME=SOURCE` for each.
    fn all(words: &str, script: &'static str) -> Vec<Build> {
        let parts = words
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        let build = |(name, source): (&str, &str)| Build {
            name: name.to_owned(),
            source: source.to_owned(),
            script,
        };
        parts.map(build).collect()
    }

    fn version(&self) -> String {
        match self.source.split_once("@v") {
            Some((_, version)) => format!("{} {version}", self.name),
            None => format!("{} of this project", self.name),
        }
    }
}

/// The folder of the programs that were built.
pub(crate) fn built() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    target.join("programs/bin")
}

impl Need {
    /// `PROGRAM:PACKAGE`
    fn parse(word: &str) -> Need {
        let (program, package) = word.split_once(':').unwrap_or((word, word));
        Need {
            program: program.to_owned(),
            package: package.to_owned(),
        }
    }

    fn is_there(&self) -> bool {
        if self.program.starts_with('/') {
            Path::new(&self.program).exists()
        } else {
            host::program(&self.program).is_some()
        }
    }
}

fn stem(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// The version without the suffix that Debian appended to the upstream version.
fn version(package: &str) -> Option<String> {
    let mut command = Command::new("dpkg-query");
    let output = command
        .args(["-W", "-f", "${Version}", package])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let upstream = text
        .rsplit_once('-')
        .map_or(text.as_str(), |(upstream, _)| upstream);
    let upstream = upstream.split_once(':').map_or(upstream, |(_, rest)| rest);
    let short = upstream.split(['+', '~']).next().unwrap_or(upstream);
    (!short.is_empty()).then(|| short.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_its_head() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let cases = Case::all(&folder).expect("all can be read");
        assert!(!cases.is_empty());
        for case in &cases {
            assert!(!case.needs.is_empty(), "{} needs nothing", case.name);
        }
    }

    #[test]
    fn a_program_that_is_built_is_reported_with_the_version_of_its_module() {
        let words = "one=example.org/one/cmd/one@v1.2.3 two=two.go";
        let builds = Build::all(words, "scripts/go-programs.sh");
        let versions: Vec<String> = builds.iter().map(Build::version).collect();
        assert_eq!(versions, ["one 1.2.3", "two of this project"]);
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let case = Case {
            name: "none".to_owned(),
            file: PathBuf::new(),
            what: String::new(),
            user: None,
            becomes_others: false,
            builds: Vec::new(),
            needs: vec![Need::parse("sh:dash"), Need::parse("toehold-no-such:none")],
        };
        let obstacle = case.obstacle().expect("it cannot run");
        assert!(
            obstacle.contains("toehold-no-such") && obstacle.contains("none"),
            "{obstacle}"
        );
    }
}
