//! `toehold-engine(5)`: the file that `toehold adapter --config` reads.

use clap_mangen::roff::{Roff, bold, italic, roman};
use toehold_adapter::engine::settings::words::WORDS;

/// The page.
pub(super) fn text() -> String {
    let version = concat!("toehold ", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control(
        "TH",
        ["toehold-engine", "5", super::page::DATE, version, "Toehold"],
    );
    roff.control("SH", ["NAME"]);
    roff.text([roman(
        "toehold-engine - settings of the adapter's TCP engine",
    )]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("toehold adapter --config"), roman(" "), italic("FILE")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(DESCRIPTION)]);
    roff.control("SH", ["SETTINGS"]);
    for one in WORDS {
        roff.control("TP", []);
        roff.text([bold(one.word), roman(" "), italic(one.value)]);
        let often = if one.repeats { " May be repeated." } else { "" };
        roff.text([roman(one.meaning.to_owned() + often)]);
    }
    roff.control("SH", ["RULES"]);
    roff.text([roman(RULES)]);
    roff.control("SH", ["SIGNALS"]);
    roff.text([roman(SIGNALS)]);
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("toehold-adapter"),
        roman("(1), "),
        bold("toehold-run"),
        roman("(1)"),
    ]);
    roff.render()
}

const DESCRIPTION: &str = "Each line is a word and its value; to has a destination, settings and \
    their values. The rest of a line after # is a comment. The error for an invalid line names the \
    line and the cause, and no line of the file takes effect. Options of the command line are \
    added to the settings of the file. If a word may be given only once, the option has priority \
    over the line.";

const RULES: &str = "The first rule that matches a destination decides: those of the command line, \
    then those of the file, in their order. After them, for programs under --path offload, the \
    engine takes every destination that its addresses and gateways reach. All other connections \
    use shared memory on this host, or the kernel.";

const SIGNALS: &str = "After SIGHUP the adapter reads the file again. These settings can change \
    while it runs: address, share, gateway, the rules, mtu, lso, lro, checksum, split-headers, \
    copy-engine, copybreak, coalesce, batch, quota and memory; and for new connections window, \
    congestion, ecn, pacing, initial-window, keepalive, fast-open and to. Connections of a removed \
    address are reset. To change the link, the number of threads or the outgoing ports, start \
    another adapter. toehold adapter --set changes one setting of a running adapter, until the \
    file is read again.";

const EXAMPLE: &str = "\
link     packet:eth0
address  10.84.0.2/24
gateway  10.84.0.1
host     10.84.0.9             # always by the kernel
offload  10.84.0.0/24:6379     # Redis, for all programs
to       10.85.0.0/16 congestion bbr window 64   # far away";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_described() {
        let text = text();
        for one in WORDS {
            // A hyphen that may be copied is written so (groff_char(7)).
            let bold = format!("\\fB{}\\fR", one.word.replace('-', "\\-"));
            assert!(text.contains(&bold), "{}", one.word);
        }
    }
}
