//! `toehold.conf(5)`: the operator's rules about connections.

use clap_mangen::roff::{Roff, bold, italic, roman};
use toehold_adapter::rules::words::{WORDS, Word};
use toehold_adapter::rules::{RULES_MAX, SYSTEM_FILE};

/// The page.
pub(super) fn text() -> String {
    let version = concat!("toehold ", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control(
        "TH",
        ["toehold.conf", "5", super::page::DATE, version, "Toehold"],
    );
    roff.control("SH", ["NAME"]);
    roff.text([roman("toehold.conf - rules about accelerated connections")]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(SYSTEM_FILE)]);
    roff.control("br", []);
    roff.text([italic("$XDG_CONFIG_HOME"), roman("/toehold/toehold.conf")]);
    roff.control("br", []);
    roff.text([roman("~/.config/toehold/toehold.conf")]);
    roff.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut roff, &DESCRIPTION);
    for (title, is_setting) in [("CONDITIONS", false), ("SETTINGS", true)] {
        roff.control("SH", [title]);
        for one in WORDS.iter().filter(|one| one.is_setting == is_setting) {
            word(&mut roff, one);
        }
    }
    roff.control("SH", ["FILES"]);
    paragraphs(&mut roff, &FILES);
    roff.control("SH", ["ERRORS"]);
    paragraphs(&mut roff, &ERRORS);
    roff.text([roman(format!(
        "An adapter takes {RULES_MAX} rules at most."
    ))]);
    roff.control("SH", ["SIGNALS"]);
    paragraphs(&mut roff, &SIGNALS);
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("toehold-rules"),
        roman("(1), "),
        bold("toehold-adapter"),
        roman("(1), "),
        bold("toehold-status"),
        roman("(1), "),
        bold("toehold-engine"),
        roman("(5)"),
    ]);
    roff.render()
}

fn word(roff: &mut Roff, one: &Word) {
    roff.control("TP", []);
    roff.text([bold(one.word), roman(" "), italic(one.value)]);
    roff.text([roman(one.meaning)]);
}

fn paragraphs(roff: &mut Roff, paragraphs: &[&str]) {
    for (n, paragraph) in paragraphs.iter().enumerate() {
        if n > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(*paragraph)]);
    }
}

const DESCRIPTION: [&str; 4] = [
    "Each line is a rule: words with one value each, conditions and settings in any order. The \
    rest of a line after # is a comment.",
    "A rule matches a connection when all its conditions hold for one of the two ends. A rule \
    without a condition matches every connection. For each setting, the first rule that matches \
    the connection and has this setting decides. Rules are asked when both ends are known: a \
    connection whose other end is not under Toehold is on the kernel in any case.",
    "A rule with wait or express is about programs, not about connections. Its conditions are \
    program, user and unit. It holds for programs that run already: wait from their next wait on, \
    express from the next call on an ordinary connection, or the next sleep. A program that \
    listens takes express on from its next listen(2).",
    "The adapter applies the rules. Programs have to trust it, but it need not trust them: a \
    program can give itself another name. Rules direct traffic; they are no security boundary.",
];

const FILES: [&str; 2] = [
    "The system adapter reads the system's file. An adapter of a user reads the user's file and \
    then the system's, so that the user's rules are asked first. A file that is not there has no \
    rules. toehold adapter --rules names another file, in place of both.",
    "The library in the programs reads no file.",
];

const ERRORS: [&str; 1] = [
    "A wrong rule is named with its file and line, its cause, and what was expected. An adapter \
    with a wrong rule does not start: programs run, and all their connections stay on the kernel. \
    So no connection is accelerated that a rule should have kept there. toehold rules checks the \
    files.",
];

const SIGNALS: [&str; 1] = [
    "On SIGHUP the adapter reads the files again. Live connections follow at their next calls, \
    without losing a byte. With a wrong rule the adapter keeps those that it has, and says so.",
];

const EXAMPLE: &str = "\
# psql may use memory; all other traffic with the database is to be seen
program psql         path auto
port 5432            path host
# a monitoring program captures all the time
unit redis-server    observability ignore
# backups run beside everything else, and never spin
user backup          wait event
# a firewall counts the proxy's connections: each has a TCP connection of its own
program haproxy      express off";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_described() {
        let text = text();
        for one in WORDS {
            assert!(
                text.contains(&format!("\\fB{}\\fR", one.word.replace('-', "\\-"))),
                "{}",
                one.word
            );
        }
    }
}
