//! The manual page of one command, made from its definition.

use std::io;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// The page's name, for example `toehold-run`: the file name without its section.
pub(super) fn name(command: &Command) -> String {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
        .to_owned()
}

/// The page of `command`; `others` are the names of the subcommands' pages.
pub(super) fn of_command<'a>(
    command: &Command,
    others: impl Iterator<Item = &'a str>,
) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).manual("Toehold");
    let man = man
        .date(DATE)
        .source(concat!("toehold ", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    synopsis(command).to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        commands(command).to_writer(&mut out)?;
    }
    let after = command.get_after_long_help().or(command.get_after_help());
    if let Some(text) = after {
        for section in sections(&text.to_string()) {
            section.roff().to_writer(&mut out)?;
        }
    }
    see_also(&name(command), others).to_writer(&mut out)?;
    Ok(without_double_breaks(&out))
}

/// Removes the line breaks around an empty line, because an empty line is a break itself.
fn without_double_breaks(page: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(page)
        .replace("\n.br\n\n.br\n", "\n\n")
        .into_bytes()
}

/// The date of each page: the version's date, so that two builds have identical pages.
pub(super) const DATE: &str = "2026-11-28";

/// The command with all its options and their values.
fn synopsis(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    let words = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(words)];
    let visible = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    for option in visible().filter(|arg| !arg.is_positional()) {
        line.extend(option_words(option));
    }
    for positional in visible().filter(|arg| arg.is_positional()) {
        line.extend(positional_words(positional));
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND"), roman(" ...")]);
    }
    roff.text(line);
    roff
}

/// ` [--path PATH]`
fn option_words(option: &Arg) -> Vec<Inline> {
    let dashed = match (option.get_short(), option.get_long()) {
        (Some(short), _) => format!("-{short}"),
        (None, Some(long)) => format!("--{long}"),
        (None, None) => return Vec::new(),
    };
    let required = option.is_required_set();
    let mut out = vec![roman(if required { " " } else { " [" }), bold(dashed)];
    if option.get_action().takes_values() {
        let optional = option
            .get_num_args()
            .is_some_and(|range| range.min_values() == 0);
        out.push(roman(if optional { " [" } else { " " }));
        out.push(italic(value_name(option)));
        if optional {
            out.push(roman("]"));
        }
    }
    if !required {
        out.push(roman("]"));
    }
    if matches!(option.get_action(), ArgAction::Append) {
        out.push(roman("..."));
    }
    out
}

/// ` PROGRAM [ARGUMENT...]`
fn positional_words(positional: &Arg) -> Vec<Inline> {
    let name = italic(value_name(positional));
    let takes_more = positional
        .get_num_args()
        .is_some_and(|range| range.max_values() > 1);
    let mut out = if positional.is_required_set() {
        vec![roman(" "), name]
    } else {
        vec![roman(" ["), name, roman("]")]
    };
    if positional.is_trailing_var_arg_set() {
        out.extend([roman(" ["), italic("ARGUMENT"), roman("...]")]);
    } else if takes_more {
        out.push(roman("..."));
    }
    out
}

fn value_name(arg: &Arg) -> String {
    match arg.get_value_names() {
        Some(names) => names.join(" "),
        None => arg.get_id().as_str().to_uppercase(),
    }
}

/// The subcommands with what they do.
fn commands(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        roff.control("TP", []);
        roff.text([bold(name(one)), roman("(1)")]);
        let about = one.get_about().map(ToString::to_string);
        roff.text([roman(about.unwrap_or_default())]);
    }
    roff
}

/// The other pages.
fn see_also<'a>(own: &str, others: impl Iterator<Item = &'a str>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    let all = std::iter::once("toehold").chain(others);
    for other in all.filter(|other| *other != own) {
        line.extend([bold(other), roman("(1), ")]);
    }
    line.extend([
        bold("toehold.conf"),
        roman("(5), "),
        bold("toehold-engine"),
        roman("(5)"),
    ]);
    roff.text(line);
    roff
}

/// A part of the text that `--help` shows after the options.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    title: String,
    lines: Vec<String>,
}

impl Section {
    /// Indented lines are kept, because they are commands and tables. All others are prose.
    fn roff(&self) -> Roff {
        let mut roff = Roff::new();
        roff.control("SH", [self.title.as_str()]);
        let mut as_it_is = false;
        for line in &self.lines {
            let indented = line.starts_with(' ');
            if indented != as_it_is {
                roff.control(if indented { "nf" } else { "fi" }, []);
                as_it_is = indented;
            }
            if line.is_empty() {
                roff.control("PP", []);
            } else {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
        }
        if as_it_is {
            roff.control("fi", []);
        }
        roff
    }
}

/// Divides that text: a line that ends in a colon begins a section of that name. `Exit status:`
/// begins its own section. A paragraph after a blank line begins the notes.
fn sections(text: &str) -> Vec<Section> {
    let mut out: Vec<Section> = Vec::new();
    let mut after_blank = true;
    for line in text.lines() {
        let (title, rest) = match line.strip_prefix(EXIT_STATUS) {
            Some(rest) => (Some("EXIT STATUS".to_owned()), Some(rest.trim().to_owned())),
            None if line.is_empty() || line.starts_with(' ') => (None, Some(line.to_owned())),
            None => match line.strip_suffix(':') {
                Some(title) => (Some(title.to_uppercase()), None),
                None if after_blank => (Some("NOTES".to_owned()), Some(line.to_owned())),
                None => (None, Some(line.to_owned())),
            },
        };
        after_blank = line.is_empty();
        let last = out.last().map(|section| section.title.clone());
        if let Some(title) = title.filter(|title| Some(title) != last.as_ref()) {
            let lines = Vec::new();
            out.push(Section { title, lines });
        }
        if let (Some(section), Some(rest)) = (out.last_mut(), rest) {
            section.lines.push(rest);
        }
    }
    for section in &mut out {
        while section.lines.last().is_some_and(String::is_empty) {
            section.lines.pop();
        }
    }
    out
}

/// The beginning of a help text's last paragraph.
const EXIT_STATUS: &str = "Exit status:";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn page(name: &str) -> String {
        let mut program = Cli::command();
        program.build();
        let command = program.find_subcommand(name).expect("a subcommand");
        let page = of_command(command, ["toehold-run", "toehold-status"].into_iter());
        String::from_utf8(page.expect("a page")).expect("text")
    }

    #[test]
    fn a_synopsis_has_values() {
        let text = page("run");
        let expected = r"\fBtoehold run\fR [\fB\-\-path\fR \fIPATH\fR]";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains(r"\fIPROGRAM\fR [\fIARGUMENT\fR...]"),
            "{text}"
        );
        assert!(
            !text.contains("pair\\-after"),
            "hidden options stay hidden: {text}"
        );
        let watch = r"[\fB\-\-watch\fR [\fISECONDS\fR]]";
        assert!(page("status").contains(watch));
    }

    #[test]
    fn examples_are_not_refilled() {
        let text = page("run");
        let examples = text.split(".SH EXAMPLES\n").nth(1).expect("examples");
        assert!(
            examples.starts_with(".nf\ntoehold run \\-\\- redis"),
            "{examples}"
        );
    }

    #[test]
    fn help_texts_become_sections() {
        let text = "Examples:\n  one\n\nProse of\ntwo lines.\n\nMore.\n\nExit status: 0, or 1.";
        let found: Vec<(String, usize)> = sections(text)
            .into_iter()
            .map(|section| (section.title, section.lines.len()))
            .collect();
        let expected = [("EXAMPLES", 1), ("NOTES", 4), ("EXIT STATUS", 1)];
        assert_eq!(
            found,
            expected.map(|(title, lines)| (title.to_owned(), lines))
        );
    }

    #[test]
    fn a_page_names_its_date_and_the_version() {
        let text = page("status");
        let title = text.lines().find(|line| line.starts_with(".TH"));
        let expected = concat!(
            ".TH toehold-status 1 2026-11-28 \"toehold ",
            env!("CARGO_PKG_VERSION"),
            "\" Toehold"
        );
        assert_eq!(title, Some(expected));
        assert!(!text.contains(".br\n\n"), "{text}");
    }

    #[test]
    fn no_page_has_an_extra_section() {
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands() {
            let text = of_command(command, std::iter::empty()).expect("a page");
            let text = String::from_utf8(text).expect("text");
            assert!(!text.contains(".SH EXTRA"), "{}", command.get_name());
            assert!(text.contains(".SH SYNOPSIS"), "{}", command.get_name());
        }
    }
}
