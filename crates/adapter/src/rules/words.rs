//! The words of a rule, with what they mean: for error messages and the manual.

/// The thing that a word of a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A program: a family of processes.
    Program,
    /// A connection.
    Connection,
}

/// One word of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The word.
    pub word: &'static str,
    /// Its value, as a manual spells it.
    pub value: &'static str,
    /// Whether it is a setting. Otherwise it is a condition.
    pub is_setting: bool,
    /// The thing it is about. A rule with a setting about programs has conditions about programs
    /// only.
    pub subject: Subject,
    /// The meaning, and the default of a setting.
    pub meaning: &'static str,
}

/// All words, in the order of the manual.
pub const WORDS: [Word; 12] = [
    Word {
        word: "program",
        value: "NAME",
        is_setting: false,
        subject: Subject::Program,
        meaning: "The program at one end has this name, as toehold status shows it: the first 15 \
            bytes of the name of its file. With * as its last letter NAME is the beginning of a \
            name.",
    },
    Word {
        word: "user",
        value: "NAME|NUMBER",
        is_setting: false,
        subject: Subject::Program,
        meaning: "The program at one end runs as this user. A name has to be in /etc/passwd.",
    },
    Word {
        word: "unit",
        value: "NAME",
        is_setting: false,
        subject: Subject::Program,
        meaning: "The program at one end belongs to this unit of systemd: a service, whose ending \
            .service may be left out, or a scope. With * as its last letter NAME is the beginning \
            of a name.",
    },
    Word {
        word: "address",
        value: "ADDRESS[/BITS]",
        is_setting: false,
        subject: Subject::Connection,
        meaning: "The connection was made to this address, or to an address of this network.",
    },
    Word {
        word: "port",
        value: "PORT|FIRST-LAST",
        is_setting: false,
        subject: Subject::Connection,
        meaning: "The connection was made to this port, or to one of these ports. The server's \
            port counts at both ends.",
    },
    Word {
        word: "socket",
        value: "/PATH|@NAME",
        is_setting: false,
        subject: Subject::Connection,
        meaning: "The connection was made to a Unix socket that its program has bound to this path \
            or, with @ before it, to this abstract name. With * as its last letter the value is \
            the beginning of a name, and * alone is every Unix socket.",
    },
    Word {
        word: "role",
        value: "connects|accepts",
        is_setting: false,
        subject: Subject::Connection,
        meaning: "The end for which the other conditions hold has made the connection, or has \
            accepted it.",
    },
    Word {
        word: "path",
        value: "auto|host",
        is_setting: true,
        subject: Subject::Connection,
        meaning: "auto: shared memory, when both programs have the library. host: the kernel, \
            always. Default auto. This setting does not apply to connections through the TCP \
            engine: they have the rules of toehold-engine(5).",
    },
    Word {
        word: "observability",
        value: "yield|ignore",
        is_setting: true,
        subject: Subject::Connection,
        meaning: "yield: the connection goes by the kernel while a packet capture would see it. \
            ignore: it stays in shared memory, and captures miss it. Default: the adapter's option \
            --observability.",
    },
    Word {
        word: "max-connections",
        value: "NUMBER",
        is_setting: true,
        subject: Subject::Connection,
        meaning: "The greatest number of connections of this rule that are in shared memory at a \
            time, 0 to 1048576. Further connections stay on the kernel until one of them ends. \
            Default: only the adapter's option --max-connections limits them.",
    },
    Word {
        word: "wait",
        value: "adaptive|poll|event",
        is_setting: true,
        subject: Subject::Program,
        meaning: "How the program waits for bytes, in place of the option --wait that it was \
            started with. adaptive: it spins while spinning has recently paid, and sleeps \
            otherwise. poll: it never sleeps. event: it never spins. Processes that have forked \
            from each other, for example a server and its workers, have one wait mode: the rule \
            matches when its conditions hold for one of them.",
    },
    Word {
        word: "express",
        value: "on|off",
        is_setting: true,
        subject: Subject::Program,
        meaning: "Whether short connections of the program use TCP connections again, in place of \
            the option --express that it was started with. Both ends need on. For a program that \
            listens, on takes effect at its next listen(2). Processes that have forked from each \
            other have one setting, as with wait.",
    },
];

pub(super) fn find(word: &str) -> Option<&'static Word> {
    WORDS.iter().find(|known| known.word == word)
}

/// All words, for a sentence.
pub(super) fn list() -> String {
    WORDS.map(|known| known.word).join(", ")
}

/// Those that are conditions about programs, for a sentence.
pub(super) fn conditions_of_programs() -> String {
    let is_one = |known: &&Word| !known.is_setting && known.subject == Subject::Program;
    let words = WORDS.iter().filter(is_one).map(|known| known.word);
    words.collect::<Vec<_>>().join(", ")
}

/// Those that are settings, for a sentence.
pub(super) fn settings() -> String {
    let settings = WORDS.iter().filter(|known| known.is_setting);
    settings
        .map(|known| known.word)
        .collect::<Vec<_>>()
        .join(", ")
}
