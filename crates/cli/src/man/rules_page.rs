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
    roff.text([roman(format!("An adapter has at most {RULES_MAX} rules."))]);
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
    the connection and has this setting decides. The adapter applies rules when it knows both \
    ends: a connection whose other end is not under Toehold is on the kernel in any case.",
    "A rule with wait or express is about programs, not about connections. Its conditions are \
    program, user and unit. It also applies to running programs: wait from their next wait, \
    express from the next call on an ordinary connection, or the next sleep. For a program that \
    listens, express on takes effect at its next listen(2).",
    "A program can change its own name. So rules direct traffic, but they are no protection.",
];

const FILES: [&str; 2] = [
    "The system adapter reads the system's file. An adapter of a user reads the user's file and \
    then the system's file, so the user's rules come first. A missing file is like a file without \
    rules. toehold adapter --rules names another file, in place of both.",
    "Only the adapter reads these files. The library in the programs reads none.",
];

const ERRORS: [&str; 1] = [
    "The error for an invalid rule names file, line, cause and the expected values. An adapter \
    with an invalid rule does not start: programs run, and all their connections stay on the \
    kernel. So no connection is accelerated that a rule should have kept there. toehold rules \
    checks the files.",
];

const SIGNALS: [&str; 1] = [
    "After SIGHUP the adapter reads the files again. The rules then apply to open connections, \
    too, from their next calls, and no byte is lost. If a rule is invalid, the adapter keeps its \
    former rules and reports the error.",
];

const EXAMPLE: &str = "\
# psql may use shared memory; captures and filters see all other traffic with the database
program psql         path auto
port 5432            path host
# a monitoring program captures all the time
unit redis-server    observability ignore
# backups never spin
user backup          wait event
# a firewall counts the proxy's connections: each gets a TCP connection of its own
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
