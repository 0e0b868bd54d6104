//! Applications of real programs in a plan: tiers of servers, and the client that measures them. A
//! new application needs no code.
//!
//! ```toml
//! [[tier]]
//! name = "web"
//! needs = ["lighttpd:lighttpd"]                        # program:Debian package
//! command = "lighttpd -D -f {folder}/web.conf"
//! [tier.files]
//! "web.conf" = "server.port = {port}\nserver.document-root = \"{data}\"\n"
//!
//! [[application]]
//! name = "static-files"
//! tiers = ["web"]
//! prepare = ["{toehold} lab files {data} --sizes 4K"]  # once in a run
//! [application.client]
//! command = "{toehold} lab http 127.0.0.1:{front} --path /4096 --seconds {seconds} --json"
//! ```
//!
//! Words in braces are replaced: settings of the load (`message`, `response`, `streams`, `seconds`,
//! `whole-seconds`, `warmup`, `rate`), the level of the block's factor (`x`), places (`folder`,
//! `data`, `toehold`), ports and sockets of tiers (`port:web`, `socket:web`, `ports:web`; a tier's
//! own are `port` and `socket`), and the port of the last tier (`front`). Doubled braces are
//! replaced by single ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::arm::Family;

/// Servers of one or more tiers and a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Application {
    /// The name by which blocks ask for it.
    pub name: String,
    /// Programs that its client needs, each with its Debian package.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Files that are written into `{data}` before anything else.
    #[serde(default)]
    pub data: BTreeMap<String, String>,
    /// Commands that make its data, once in a run.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// Whether the scheduler places its programs; else tiers and client have cores of their own.
    #[serde(default)]
    pub unpinned: bool,
    /// The names of its tiers, in the order in which they start; the last one is the client's.
    #[serde(default)]
    pub tiers: Vec<String>,
    /// The program that makes the load and measures it.
    pub client: Client,
}

/// A server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tier {
    /// Its name in the report, and in `{port:NAME}`.
    pub name: String,
    /// Programs that it needs, each with its Debian package: `nginx:nginx-light`.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Its command; it must stay in the foreground.
    pub command: String,
    /// The number of servers that run: a number, or `{x}`.
    pub count: Option<String>,
    /// When it can be used, as `toehold compare --ready` takes it; when it listens on its port
    /// unless told.
    pub ready: Option<String>,
    /// Its settings: files that are written before it starts.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Whether the server always runs on the kernel: then it is not compared.
    #[serde(default)]
    pub plain: bool,
}

/// The client of an application.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Client {
    /// Its command.
    pub command: String,
    /// Its command on arms of AF_UNIX; without it, such arms have no samples.
    pub unix: Option<String>,
    /// The tool whose output format the command prints; by default that of our own generator. A
    /// line that begins with `digest ` has a digest of the bytes that the client received.
    pub output: Option<String>,
}

/// An application with its tiers.
#[derive(Clone)]
pub(super) struct Staged<'a> {
    pub(super) application: &'a Application,
    pub(super) tiers: Vec<&'a Tier>,
}

impl<'a> Staged<'a> {
    /// Finds the tiers.
    pub(super) fn new(application: &'a Application, all: &'a [Tier]) -> Result<Staged<'a>, String> {
        let tiers = application.tiers.iter().map(|name| {
            let found = all.iter().find(|tier| tier.name == *name);
            found.ok_or_else(|| format!("there is no tier \"{name}\""))
        });
        Ok(Staged {
            application,
            tiers: tiers.collect::<Result<_, _>>()?,
        })
    }

    /// Refuses an application that cannot be run.
    pub(super) fn check(&self) -> Result<(), String> {
        let tiers = self.tiers.iter();
        let needs = tiers.flat_map(|tier| &tier.needs);
        let mut needs = needs.chain(&self.application.needs);
        if let Some(entry) = needs.find(|entry| !entry.contains(':')) {
            return Err(format!("\"{entry}\" is not PROGRAM:PACKAGE"));
        }
        // Every word in braces must have a value; ports that are not assigned yet get one here,
        // too.
        let mut words = Words::default();
        for name in LOAD_WORDS {
            words.put(name, "1");
        }
        for tier in &self.tiers {
            for kind in ["port", "ports", "socket"] {
                words.put(&format!("{kind}:{}", tier.name), "1");
            }
        }
        let client = &self.application.client;
        let prepare = self.application.prepare.iter();
        for text in prepare.chain([&client.command]).chain(&client.unix) {
            words.replaced(text)?;
        }
        for name in ["port", "socket", "index"] {
            words.put(name, "1");
        }
        for tier in &self.tiers {
            let files = tier.files.iter().flat_map(|(name, text)| [name, text]);
            let others = std::iter::once(&tier.command).chain(&tier.count);
            for text in files.chain(others).chain(&tier.ready) {
                words
                    .replaced(text)
                    .map_err(|why| format!("tier \"{}\": {why}", tier.name))?;
            }
        }
        Ok(())
    }

    /// The client's command on arms of a family.
    pub(super) fn client_of(&self, family: Family) -> Option<&'a str> {
        let client = &self.application.client;
        match family {
            Family::Tcp => Some(&client.command),
            Family::Unix => client.unix.as_deref(),
        }
    }

    /// Its programs with their packages.
    pub(super) fn programs(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let tiers = self.tiers.iter().flat_map(|tier| &tier.needs);
        let all = tiers.chain(&self.application.needs);
        all.filter_map(|entry| entry.split_once(':'))
    }
}

/// Values of the words in braces.
#[derive(Clone, Default)]
pub(super) struct Words(BTreeMap<String, String>);

impl Words {
    pub(super) fn put(&mut self, name: &str, value: impl ToString) {
        self.0.insert(name.to_owned(), value.to_string());
    }

    /// A text with values in place of its words.
    pub(super) fn replaced(&self, text: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
                continue;
            }
            let end = rest.find('}').filter(|_| brace == "{");
            let end = end.ok_or("a brace that stands for itself is doubled")?;
            let name = &rest[..end];
            let value = self.0.get(name);
            out.push_str(value.ok_or_else(|| format!("nothing is called {{{name}}}"))?);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// Words that every text may have.
const LOAD_WORDS: [&str; 12] = [
    "front",
    "message",
    "response",
    "streams",
    "seconds",
    "whole-seconds",
    "warmup",
    "rate",
    "x",
    "folder",
    "data",
    "toehold",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_braces_have_values_and_doubled_braces_are_braces() {
        let mut words = Words::default();
        words.put("port", 80);
        assert_eq!(words.replaced("a {port} {{b}}").expect("known"), "a 80 {b}");
        for wrong in ["{none}", "a } b", "{port"] {
            assert!(words.replaced(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mistakes_in_an_application_are_reported() {
        let application = "name = \"a\"\ntiers = [\"web\"]\nneeds = [\"wrk:wrk\"]\n\
            client = { command = \"wrk {port:web}\" }\n";
        let tier = "name = \"web\"\nneeds = [\"nginx:nginx-light\"]\n\
            command = \"nginx {port} {folder}\"\n";
        let check = |application: &str, tier: &str| -> Result<(), String> {
            let application: Application = toml::from_str(application).expect("its form is right");
            let tier: Tier = toml::from_str(tier).expect("its form is right");
            let tiers = [tier];
            let staged = Staged::new(&application, &tiers)?;
            staged.check()?;
            let programs: Vec<_> = staged.programs().collect();
            assert_eq!(programs, [("nginx", "nginx-light"), ("wrk", "wrk")]);
            Ok(())
        };
        assert_eq!(check(application, tier), Ok(()));
        for (from, to, why) in [
            ("port:web", "port:wbe", "port:wbe"),
            ("[\"web\"]", "[\"wbe\"]", "no tier \"wbe\""),
            ("nginx:nginx-light", "nginx", "PROGRAM:PACKAGE"),
            ("nginx {port}", "nginx {x", "tier \"web\""),
        ] {
            let error = check(&application.replace(from, to), &tier.replace(from, to));
            let error = error.expect_err("refused");
            assert!(error.contains(why), "{error}");
        }
    }
}
