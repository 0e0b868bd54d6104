//! The grammar of `toehold.conf`.

use std::path::Path;
use std::sync::Arc;

use toehold_channel::offload::RuleAction;
use toehold_channel::table::WaitMode;

use super::words::{Subject, Word};
use super::{Name, Observability, Origin, PathWish, Rule, RulesError, words};
use crate::engine::settings::{prefix, rule_of};
use crate::printable::printable;

/// The rules of a file's text.
pub(super) fn rules(text: &str, file: &Path) -> Result<Vec<Rule>, RulesError> {
    let shared: Arc<Path> = file.into();
    let mut rules = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        let mut rule = rule(line).map_err(|cause| RulesError::Line {
            file: file.into(),
            line: index + 1,
            cause: printable(&cause),
        })?;
        rule.origin = Origin {
            file: shared.clone(),
            line: index + 1,
        };
        rules.push(rule);
    }
    Ok(rules)
}

fn rule(line: &str) -> Result<Rule, String> {
    let mut rule = Rule::default();
    let mut seen = Vec::new();
    let mut line = line.split_ascii_whitespace();
    while let Some(word) = line.next() {
        let Some(known) = words::find(word) else {
            return Err(format!(
                "`{word}` is not a word of a rule: expected {}",
                words::list()
            ));
        };
        if seen.iter().any(|one: &&Word| one.word == word) {
            return Err(format!(
                "`{word}` is given twice in the rule: write one rule for each"
            ));
        }
        seen.push(known);
        let value = line
            .next()
            .ok_or_else(|| format!("`{word}` has no value: expected {word} {}", known.value))?;
        rule.set(word, value)?;
        if !rule.text.is_empty() {
            rule.text.push(' ');
        }
        rule.text.push_str(&printable(&format!("{word} {value}")));
    }
    check(&seen)?;
    Ok(rule)
}

/// Checks that the words of a rule may be combined.
fn check(words: &[&Word]) -> Result<(), String> {
    if words.iter().all(|word| !word.is_setting) {
        return Err(format!(
            "the rule has conditions and no setting: expected one of {}",
            words::settings()
        ));
    }
    let find = |is_setting, subject| {
        let mut words = words.iter();
        words.find(|word| word.is_setting == is_setting && word.subject == subject)
    };
    let of_program = find(true, Subject::Program);
    match of_program.zip(find(false, Subject::Connection)) {
        None => Ok(()),
        Some((setting, condition)) => Err(format!(
            "`{}` is about programs and `{}` about connections: expected no condition but {}",
            setting.word,
            condition.word,
            words::conditions_of_programs()
        )),
    }
}

impl Rule {
    fn set(&mut self, word: &str, value: &str) -> Result<(), String> {
        match word {
            "program" => self.program = Some(name(value, COMM_BYTES)),
            "user" => self.user = Some(user(value)?),
            "unit" => self.unit = Some(unit(value)?),
            "address" => {
                let (ip, bits) = prefix(value).map_err(|cause| {
                    format!("{cause}: expected an address, or ADDRESS/BITS for many")
                })?;
                self.address = Some(rule_of(ip, bits, 0, RuleAction::Host));
            }
            "port" => self.port = Some(ports(value)?),
            "socket" => self.socket = Some(socket(value)?),
            "role" => {
                self.accepts = Some(match value {
                    "accepts" => true,
                    "connects" => false,
                    _ => {
                        return Err(format!(
                            "`{value}` is not a role: expected connects or accepts"
                        ));
                    }
                });
            }
            "path" => {
                self.path = Some(match value {
                    "auto" => PathWish::Auto,
                    "host" => PathWish::Host,
                    _ => {
                        return Err(format!(
                            "`{value}` is not a path of a rule: expected auto or host"
                        ));
                    }
                });
            }
            "observability" => {
                self.observability = Some(match value {
                    "yield" => Observability::Yield,
                    "ignore" => Observability::Ignore,
                    _ => {
                        return Err(format!(
                            "`{value}` is not a value of observability: expected yield or ignore"
                        ));
                    }
                });
            }
            "max-connections" => {
                let number = value.parse().ok().filter(|most| *most <= CONNECTIONS_MAX);
                let wrong =
                    || format!("`{value}` is not a number of connections: expected 0 to 1048576");
                self.connections_max = Some(number.ok_or_else(wrong)?);
            }
            "wait" => {
                let mode = WaitMode::ALL.into_iter().find(|mode| mode.name() == value);
                let wrong =
                    || format!("`{value}` is not a wait mode: expected adaptive, poll or event");
                self.wait = Some(mode.ok_or_else(wrong)?);
            }
            "express" => {
                self.express = Some(match value {
                    "on" => true,
                    "off" => false,
                    _ => {
                        return Err(format!(
                            "`{value}` is not a setting of express: expected on or off"
                        ));
                    }
                });
            }
            _ => unreachable!("`{word}` is a word without a meaning"),
        }
        Ok(())
    }
}

/// A name, which is compared by its first `bytes_max` bytes. With `*` at its end it stands for all
/// names with this beginning.
fn name(value: &str, bytes_max: usize) -> Name {
    let (text, is_prefix) = match value.strip_suffix('*') {
        Some(text) => (text, true),
        None => (value, false),
    };
    let known = text
        .char_indices()
        .map(|(at, letter)| at + letter.len_utf8());
    let end = known.take_while(|end| *end <= bytes_max).last();
    Name {
        text: text[..end.unwrap_or(0)].to_owned(),
        is_prefix,
    }
}

/// A unit has the name that `toehold enable` has for it, too.
fn unit(value: &str) -> Result<Name, String> {
    let kind = value.rsplit_once('.').map(|(_, kind)| kind);
    match kind {
        _ if value.ends_with('*') => Ok(name(value, usize::MAX)),
        None => Ok(name(&format!("{value}.service"), usize::MAX)),
        Some("service" | "scope") => Ok(name(value, usize::MAX)),
        Some(_) => Err(format!(
            "`{value}` has no programs: expected NAME.service or NAME.scope"
        )),
    }
}

/// A path, or an abstract name with `@` before it.
fn socket(value: &str) -> Result<Name, String> {
    match value.starts_with(['/', '@', '*']) {
        true => Ok(name(value, usize::MAX)),
        false => Err(format!(
            "`{value}` is not a name of a Unix socket: expected /PATH or @NAME"
        )),
    }
}

fn user(value: &str) -> Result<u32, String> {
    if let Ok(number) = value.parse() {
        return Ok(number);
    }
    // Only the file is read: the adapter's system call filter would stop a request to another name
    // service.
    let known = std::fs::read_to_string(PASSWD).unwrap_or_default();
    let mut users = known.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((name, fields.nth(1)?.parse().ok()?))
    });
    let found = users.find(|(name, _)| *name == value);
    found.map(|(_, uid)| uid).ok_or_else(|| {
        format!("`{value}` is not a user in {PASSWD}: expected a name that is there, or a number")
    })
}

/// `PORT` or `FIRST-LAST`.
fn ports(value: &str) -> Result<(u16, u16), String> {
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err(format!(
            "`{value}` is not a port: expected a number from 1 to 65535, or FIRST-LAST"
        )),
    }
}

/// More connections than any adapter has.
const CONNECTIONS_MAX: usize = 1 << 20;
/// The kernel knows the first bytes of a program's name (`TASK_COMM_LEN`, less the NUL).
const COMM_BYTES: usize = 15;
const PASSWD: &str = "/etc/passwd";
