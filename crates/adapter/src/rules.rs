//! The operator's rules about connections between programs of this host: `toehold.conf`.
//!
//! One line is one rule. It consists of keywords with one value each. Some keywords are conditions,
//! the others are settings:
//!
//! ```text
//!   # who and where                              what then
//!   program redis-cli                            path auto
//!   port 6379                                    path host
//!   socket /run/php/*                            path host
//!   user postgres  role accepts                  observability ignore
//!   unit redis-server                            wait event
//!   program nginx                                express on
//! ```
//!
//! A rule matches a connection when all its conditions hold for one of the two ends. A rule without
//! a condition matches every connection. For each setting, the first rule that matches and has this
//! setting decides. Without such a rule the adapter's own setting applies, or the program's.
//!
//! Some settings are about programs and not about connections. A rule that has one has no condition
//! about connections. It matches a family of processes when all its conditions hold for one of
//! them.
//!
//! The adapter reads the rules and applies them, because it has a proof of both ends of a
//! connection. The library reads no file. A program chooses its own name, so rules direct traffic
//! but do not confine programs.

mod parse;
#[cfg(test)]
mod tests;
pub mod words;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toehold_channel::offload;
use toehold_channel::table::WaitMode;

pub use crate::engine::settings::SettingsError as RulesError;
use crate::operator_file::text_of;
use crate::registry::{Address, Tuple};

/// The rules of one or more files, in their order.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    origin: Origin,
    text: String,
    program: Option<Name>,
    user: Option<u32>,
    unit: Option<Name>,
    address: Option<offload::Rule>,
    port: Option<(u16, u16)>,
    socket: Option<Name>,
    accepts: Option<bool>,
    path: Option<PathWish>,
    observability: Option<Observability>,
    connections_max: Option<usize>,
    wait: Option<WaitMode>,
    express: Option<bool>,
}

/// The place of a rule: file and line.
#[derive(Clone, Debug)]
struct Origin {
    file: Arc<Path>,
    line: usize,
}

/// The path that matching connections may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathWish {
    /// As without rules.
    Auto,
    /// Through the kernel.
    Host,
}

/// Whether packet captures see the bytes of accelerated connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observability {
    /// A connection uses its carrier as long as a packet socket would see its packets.
    Yield,
    /// Packet sockets have no effect: captures do not see the bytes in rings.
    Ignore,
}

/// A name to compare with, or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    text: String,
    is_prefix: bool,
}

/// A program, as rules see it.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its name.
    pub(crate) name: String,
    /// Its user, where the adapter knows it.
    pub(crate) uid: Option<u32>,
    /// The unit of the service manager that it belongs to.
    pub(crate) unit: Option<String>,
}

/// One end of a connection, as rules see it.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// The program there.
    pub(crate) program: Program,
    /// Whether it accepted the connection.
    pub(crate) accepts: bool,
    /// The connection, seen from this end.
    pub(crate) tuple: Tuple,
    /// The name of the Unix socket that was connected to.
    pub(crate) socket: Option<String>,
}

/// Most rules of an adapter: each is compared with each new connection.
pub const RULES_MAX: usize = 1024;

impl Rules {
    /// Reads files in the order of their precedence. One that is not there is passed over, unless
    /// it is `required`.
    ///
    /// # Errors
    /// With the file, the line, and what is wrong with it.
    pub fn read(files: &[RulesFile]) -> Result<Rules, RulesError> {
        let mut rules = Rules::default();
        for RulesFile { path, is_required } in files {
            let text = match text_of(path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_required => {
                    continue;
                }
                Err(error) => return Err(RulesError::File(path.clone(), error)),
            };
            rules.rules.extend(parse::rules(&text, path)?);
        }
        if rules.rules.len() > RULES_MAX {
            return Err(RulesError::Whole("more rules than an adapter takes (1024)"));
        }
        Ok(rules)
    }

    /// The number of them.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in the order of their precedence.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The rule that keeps a connection with these ends on the kernel.
    pub(crate) fn against(&self, ends: &[Side]) -> Option<&Rule> {
        let (rule, path) = self.first(ends, |rule| rule.path)?;
        (path == PathWish::Host).then_some(rule)
    }

    /// Whether captures see a connection with these ends, where a rule says so.
    pub(crate) fn observability(&self, ends: &[Side]) -> Option<Observability> {
        self.first(ends, |rule| rule.observability)
            .map(|(_, observability)| observability)
    }

    /// The rule that limits how many connections have channels, for a connection with these ends:
    /// its index among the rules, and the limit.
    pub(crate) fn budget(&self, ends: &[Side]) -> Option<(usize, usize)> {
        let (rule, most) = self.first(ends, |rule| rule.connections_max)?;
        let place = self.rules.iter().position(|one| std::ptr::eq(one, rule))?;
        Some((place, most))
    }

    /// The rule at a place.
    pub(crate) fn at(&self, place: usize) -> Option<&Rule> {
        self.rules.get(place)
    }

    /// Whether a rule limits how many connections have channels.
    pub(crate) fn has_budget_rule(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.connections_max.is_some())
    }

    /// Whether a rule has a condition about names of Unix sockets.
    pub(crate) fn has_socket_name_rule(&self) -> bool {
        self.rules.iter().any(|rule| rule.socket.is_some())
    }

    /// Whether a rule has a setting of programs.
    pub(crate) fn has_program_option_rule(&self) -> bool {
        let speaks = |rule: &Rule| rule.wait.is_some() || rule.express.is_some();
        self.rules.iter().any(speaks)
    }

    /// Whether a rule has a setting about captures.
    pub(crate) fn has_capture_rule(&self) -> bool {
        self.rules.iter().any(|rule| rule.observability.is_some())
    }

    /// The wait mode of a family of processes, if a rule sets it.
    pub(crate) fn wait(&self, family: &[Program]) -> Option<(&Rule, WaitMode)> {
        self.of_family(family, |rule| rule.wait)
    }

    /// Whether short connections of a family of processes may reuse carriers, if a rule sets that.
    pub(crate) fn express(&self, family: &[Program]) -> Option<(&Rule, bool)> {
        self.of_family(family, |rule| rule.express)
    }

    fn of_family<T>(
        &self,
        family: &[Program],
        setting: fn(&Rule) -> Option<T>,
    ) -> Option<(&Rule, T)> {
        self.rules.iter().find_map(|rule| {
            let value = setting(rule)?;
            let matches = family.iter().any(|one| rule.matches_program(one));
            matches.then_some((rule, value))
        })
    }

    fn first<T>(&self, ends: &[Side], setting: fn(&Rule) -> Option<T>) -> Option<(&Rule, T)> {
        self.rules.iter().find_map(|rule| {
            let value = setting(rule)?;
            ends.iter()
                .any(|end| rule.matches(end))
                .then_some((rule, value))
        })
    }
}

impl Rule {
    fn matches(&self, end: &Side) -> bool {
        // For both ends, the address and the port of the accepting end.
        let server = match end.accepts {
            true => end.tuple.local,
            false => end.tuple.remote,
        };
        let (ip, port) = match server {
            Address::Internet { ip, port } => (Some(ip), Some(port)),
            Address::Unix { .. } => (None, None),
        };
        self.matches_program(&end.program)
            && self.accepts.is_none_or(|accepts| end.accepts == accepts)
            && self
                .address
                .as_ref()
                .is_none_or(|network| ip.is_some_and(|ip| network.matches(ip, 0)))
            && self
                .port
                .is_none_or(|(first, last)| port.is_some_and(|port| (first..=last).contains(&port)))
            && Name::fits(&self.socket, end.socket.as_deref())
    }

    fn matches_program(&self, program: &Program) -> bool {
        Name::fits(&self.program, Some(&program.name))
            && Name::fits(&self.unit, program.unit.as_deref())
            && self.user.is_none_or(|user| program.uid == Some(user))
    }

    /// The place of the rule, for display.
    pub fn origin(&self) -> String {
        format!("{}, line {}", self.origin.file.display(), self.origin.line)
    }
}

/// The rule as it was written, without comments.
impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Name {
    /// Whether a condition about a name holds. An absent condition holds.
    fn fits(condition: &Option<Name>, text: Option<&str>) -> bool {
        let Some(name) = condition else { return true };
        text.is_some_and(|text| name.is(text))
    }

    fn is(&self, text: &str) -> bool {
        match self.is_prefix {
            true => text.starts_with(&self.text),
            false => text == self.text,
        }
    }
}

impl Default for Origin {
    fn default() -> Origin {
        Origin {
            file: Path::new("").into(),
            line: 0,
        }
    }
}

/// A file of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesFile {
    /// Where it is.
    pub path: PathBuf,
    /// Whether a missing file is an error.
    pub is_required: bool,
}

/// A file that was named explicitly, instead of those of [`default_files`].
pub fn named(file: &Path) -> Vec<RulesFile> {
    vec![RulesFile {
        path: std::path::absolute(file).unwrap_or_else(|_| file.into()),
        is_required: true,
    }]
}

/// The files that an adapter reads by default: the user's and the system's; for the system adapter,
/// only the system's.
pub fn default_files(is_system: bool) -> Vec<RulesFile> {
    let of_user = || {
        let set = |name| std::env::var_os(name).map(PathBuf::from);
        let directory = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        directory.or_else(|| Some(set("HOME")?.join(".config")))
    };
    let of_user = match is_system {
        true => None,
        false => of_user().map(|directory| directory.join("toehold").join(FILE_NAME)),
    };
    let of_user = of_user.filter(|path| !is_beyond_reach(path));
    let files = of_user.into_iter().chain([PathBuf::from(SYSTEM_FILE)]);
    let files = files.map(|path| RulesFile {
        path,
        is_required: false,
    });
    files.collect()
}

/// Whether this user may not enter a directory of the path. Then the environment variables are
/// another user's, as under setpriv(1), and the file does not concern this user.
fn is_beyond_reach(path: &Path) -> bool {
    let looked = std::fs::metadata(path);
    looked.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

const FILE_NAME: &str = "toehold.conf";
/// The file of the host.
pub const SYSTEM_FILE: &str = "/etc/toehold/toehold.conf";
