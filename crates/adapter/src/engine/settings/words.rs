//! The words of the engine's file, with what they mean: for error messages and the manual.

/// One word that begins a line.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The word.
    pub word: &'static str,
    /// What follows it, as a manual spells it.
    pub value: &'static str,
    /// Whether it may stand on several lines.
    pub repeats: bool,
    /// What it sets, its default, and its bounds.
    pub meaning: &'static str,
}

/// All words, in the order of the manual.
pub const WORDS: [Word; 19] = [
    Word {
        word: "link",
        value: "KIND:NAME[@NETNS]",
        repeats: false,
        meaning: "The device on which frames travel. tap:NAME is a TAP device, which is created if \
            there is none. packet:INTERFACE and xdp:INTERFACE are a packet socket and AF_XDP on an \
            interface that exists. @NETNS is its network namespace: a name that ip-netns(8) lists, \
            or a path like /proc/PID/ns/net.",
    },
    Word {
        word: "address",
        value: "ADDRESS/BITS",
        repeats: true,
        meaning: "An address of the engine's own, with the length of the link's prefix. It must be \
            free on the network.",
    },
    Word {
        word: "gateway",
        value: "ADDRESS",
        repeats: true,
        meaning: "The router for destinations that are not on the link: one for IPv4, one for \
            IPv6.",
    },
    Word {
        word: "mtu",
        value: "BYTES",
        repeats: false,
        meaning: "The largest IP packet. Default: the device's own, followed when it changes.",
    },
    Word {
        word: "without",
        value: "lso|lro|checksum",
        repeats: true,
        meaning: "Work that the kernel at the other side of the link does not do for the engine: \
            to cut large segments, to join small ones, to complete checksums. Without checksum \
            there is neither of the other two.",
    },
    Word {
        word: "coalesce",
        value: "MICROSECONDS",
        repeats: false,
        meaning: "How long the engine waits after a wake-up for more work: fewer wake-ups, later \
            answers. 0 to 10000; default 0.",
    },
    Word {
        word: "batch",
        value: "FRAMES",
        repeats: false,
        meaning: "Most frames that are received in a row before programs have their turn. 1 to \
            65536; default 256.",
    },
    Word {
        word: "quota",
        value: "CONNECTIONS",
        repeats: false,
        meaning: "Most connections of one program through the engine at a time, including those to \
            its listeners. 1 to 1048576; default 32768.",
    },
    Word {
        word: "memory",
        value: "MEGABYTES",
        repeats: false,
        meaning: "Most memory of the engine's own for bytes in flight, of all connections \
            together. 64 to 1048576; default 1024.",
    },
    Word {
        word: "window",
        value: "MEGABYTES",
        repeats: false,
        meaning: "Most bytes of one connection in flight, each way. Windows begin with 64 KiB and \
            grow up to this where the round trip is long, as far as the memory allows. 1 to 64; \
            default 16.",
    },
    Word {
        word: "congestion",
        value: "cubic|reno|dctcp|bbr",
        repeats: false,
        meaning: "The congestion control of new connections. dctcp is for networks whose switches \
            mark as it expects. bbr models the path and is always paced. Default cubic.",
    },
    Word {
        word: "ecn",
        value: "on|off",
        repeats: false,
        meaning: "Whether new connections ask for explicit congestion notification. Default off.",
    },
    Word {
        word: "pacing",
        value: "on|off",
        repeats: false,
        meaning: "Whether new connections spread their data over the round trip, where it takes 4 \
            ms or more. Default on.",
    },
    Word {
        word: "initial-window",
        value: "SEGMENTS",
        repeats: false,
        meaning: "Segments that a new connection sends before the first answer. 1 to 64; default \
            10.",
    },
    Word {
        word: "keepalive",
        value: "SECONDS|off",
        repeats: false,
        meaning: "How long a remote may be silent before it is probed, where the program does not \
            set SO_KEEPALIVE itself: 9 probes, 75 seconds apart. 1 to 32767; default off.",
    },
    Word {
        word: "threads",
        value: "N",
        repeats: false,
        meaning: "Engine threads, each with a queue of the device. 1 to 16; default 1.",
    },
    Word {
        word: "offload",
        value: "CIDR[:PORT]",
        repeats: true,
        meaning: "Connections to these destinations are the engine's, whoever makes them. An IPv6 \
            prefix with a port stands in brackets.",
    },
    Word {
        word: "direct",
        value: "CIDR[:PORT]",
        repeats: true,
        meaning: "Connections to these destinations do not use the engine: shared memory on this \
            host, otherwise the kernel.",
    },
    Word {
        word: "host",
        value: "CIDR[:PORT]",
        repeats: true,
        meaning: "Connections to these destinations always use the kernel.",
    },
];

/// All words, for a sentence.
pub(super) fn list() -> String {
    WORDS.map(|one| one.word).join(", ")
}

/// Whether a word may stand on one line only.
pub(super) fn is_single(word: &str) -> bool {
    WORDS.iter().any(|one| one.word == word && !one.repeats)
}
