//! Turns a quoted command (`--server 'redis-server --port 7000'`) into words to execute.
//!
//! A plain command is executed directly, so that there is no shell between `toehold run` and the
//! program. A command that needs a shell (pipes, variables, globs, assignments) is passed to
//! `/bin/sh -c`.

/// The command line of this process, quoted for a shell. Bytes that are not UTF-8 are replaced by
/// U+FFFD.
pub fn own_command() -> String {
    let words = std::env::args_os().map(|word| quoted(&word.to_string_lossy()));
    words.collect::<Vec<_>>().join(" ")
}

/// The words of `command`, or a shell that runs it.
pub fn words(command: &str) -> Vec<String> {
    match split(command) {
        Some(words) if !words.is_empty() => words,
        _ => vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()],
    }
}

/// A word quoted for a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The words of a command that needs no shell; `None` when it needs one, or when a quote is open.
fn split(command: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '$' | '`' | '\\' => return None,
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            '=' if words.is_empty() => return None,
            c if SHELL_CHARACTERS.contains(c) => return None,
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Characters with a special meaning for the shell outside quotes.
const SHELL_CHARACTERS: &str = "|&;<>()$`*?[]#~{}!\n\r";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_commands_are_split() {
        assert_eq!(words("a -b  c=d"), ["a", "-b", "c=d"]);
        assert_eq!(
            words(r#"a 'b c' "d  e" f\ g ''"#),
            ["a", "b c", "d  e", "f g", ""]
        );
        assert_eq!(
            words("redis-server --save ''"),
            ["redis-server", "--save", ""]
        );
    }

    #[test]
    fn what_needs_a_shell_goes_to_the_shell() {
        for command in [
            "a | b", "a $X", "X=1 a", "a *.c", "a; b", "a \"$X\"", "a 'b",
        ] {
            assert_eq!(words(command), ["/bin/sh", "-c", command]);
        }
    }

    #[test]
    fn quoted_words_come_back() {
        for word in ["a", "", "a b", "$x", "-c=1"] {
            let command = format!("prog {}", quoted(word));
            assert_eq!(words(&command), ["prog", word]);
        }
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }

    #[test]
    fn quotes_protect_shell_characters() {
        assert_eq!(words("a 'b|c;d'"), ["a", "b|c;d"]);
    }
}
