//! The commands and outputs of a section of a page, and whether an output is the page's.
//!
//! The blocks that are indented by four columns hold commands, which begin with `# `, and below
//! each its output. A line `...` stands for any number of lines. Numbers differ from one run to the
//! next: any number but 0 stands for any other.

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// The line of the page, from 1.
    pub(super) line: usize,
    /// The command as a shell reads it; a command with a here-document has several lines.
    pub(super) text: String,
    /// The lines of its output.
    pub(super) output: Vec<String>,
}

/// The commands of the section of `page` with this heading, in their order.
///
/// # Errors
/// When there is no such section, or no command in it.
pub(super) fn commands(page: &str, heading: &str) -> Result<Vec<Command>, String> {
    let mut lines = page.lines().enumerate();
    lines
        .find(|(_, line)| *line == heading)
        .ok_or_else(|| format!("the page has no section {heading}"))?;
    let mut found: Vec<Command> = Vec::new();
    let mut until = None;
    for (number, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
        let Some(line) = line.strip_prefix("    ") else {
            continue;
        };
        let begun = found.last_mut();
        if let (Some(end), Some(command)) = (&until, begun) {
            command.text.push('\n');
            command.text.push_str(line);
            if line == end {
                until = None;
            }
        } else if let Some(text) = line.strip_prefix("# ") {
            until = text.split_once("<<").map(|(_, end)| end.to_owned());
            found.push(Command {
                line: number + 1,
                text: text.to_owned(),
                output: Vec::new(),
            });
        } else if let Some(command) = found.last_mut() {
            command.output.push(line.to_owned());
        }
    }
    if found.is_empty() {
        return Err(format!("the section {heading} has no commands"));
    }
    Ok(found)
}

impl Command {
    /// Whether a command has said what the page has.
    ///
    /// Long lines are broken on the page, and columns are as wide as their content, so words are
    /// compared, and not lines.
    pub(super) fn said(&self, output: &str) -> bool {
        let expected: Vec<Word> = self
            .output
            .iter()
            .flat_map(|line| line.split_whitespace())
            .map(Word::of)
            .collect();
        let said: Vec<String> = output.split_whitespace().map(plain).collect();
        fits(&expected, &said)
    }
}

/// A word of the page.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// This word, with its numbers as [`plain`] writes them.
    Same(String),
    /// Any number of words.
    Any,
}

impl Word {
    fn of(word: &str) -> Word {
        match word {
            "..." => Word::Any,
            word => Word::Same(plain(word)),
        }
    }
}

/// A word with `N` for each number in it, with its unit; 0 alone stays.
fn plain(word: &str) -> String {
    if word == "0" {
        return word.to_owned();
    }
    let mut plain = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if digits.len() == rest.len() {
            plain.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let fraction = digits.strip_prefix('.').unwrap_or(digits);
        let after = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
        rest = if after.len() < fraction.len() {
            after
        } else {
            digits
        };
        plain.push('N');
        // A unit is the end of the word.
        if matches!(rest, "k" | "M" | "G" | "B" | "kB" | "MB" | "GB") {
            break;
        }
    }
    plain
}

/// Whether words are the expected ones.
fn fits(expected: &[Word], said: &[String]) -> bool {
    // The position from which to continue when a word does not match: after the last `Any`, one
    // word later.
    let (mut at, mut word) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while word < said.len() {
        match expected.get(at) {
            Some(Word::Any) => {
                again = Some((at + 1, word));
                at += 1;
            }
            Some(Word::Same(same)) if *same == said[word] => {
                at += 1;
                word += 1;
            }
            _ => match &mut again {
                Some((behind, from)) => {
                    *from += 1;
                    (at, word) = (*behind, *from);
                }
                None => return false,
            },
        }
    }
    expected[at..].iter().all(|rest| *rest == Word::Any)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(
        "## One\n\n    # not this\n\n",
        "## Two\n\ntext\n\n    # first --all\n    a 1.5k b\n    ...\n    c\n",
        "    # cat >>file <<END\n    # inside\n    END\n    # last\n\n",
        "## Three\n    # no\n",
    );

    fn two() -> Vec<Command> {
        commands(PAGE, "## Two").expect("a section with commands")
    }

    #[test]
    fn commands_of_one_section_are_read_with_their_outputs() {
        let texts: Vec<String> = two().into_iter().map(|command| command.text).collect();
        assert_eq!(
            texts,
            ["first --all", "cat >>file <<END\n# inside\nEND", "last"]
        );
        assert_eq!(two()[0].output, ["a 1.5k b", "...", "c"]);
        assert_eq!(two()[0].line, 9);
        assert!(commands(PAGE, "## Four").is_err());
        assert!(commands("## Four\ntext\n", "## Four").is_err());
    }

    #[test]
    fn numbers_may_differ_and_dots_stand_for_any_lines() {
        let first = &two()[0];
        assert!(first.said("a 20M b\n\nx c\ny\nc\n"));
        assert!(first.said("a   3\nb c"));
        assert!(!first.said("a 0 b c"));
        assert!(!first.said("a 20M b\nx\n"));
        assert!(!first.said("a 20M c\nc\n"));
        // The page has no output here, so the command must have none.
        assert!(two()[2].said("\n"));
        assert!(!two()[2].said("more\n"));
    }

    #[test]
    fn names_with_numbers_stay_names() {
        assert_eq!(plain("127.0.0.1:5432"), "N.N:N");
        assert_eq!(plain("postgresql@15-main"), "postgresql@N-main");
        assert_eq!(plain("10.5MB"), "N");
        assert_eq!(plain("3kill"), "Nkill");
        assert_eq!(plain("1.x"), "N.x");
    }
}
