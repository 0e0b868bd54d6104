//! The words of the engine's file, with what they mean: for error messages and the manual.

/// One word that begins a line.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The word.
    pub word: &'static str,
    /// The value after the word, as a manual spells it.
    pub value: &'static str,
    /// Whether it may stand on several lines.
    pub repeats: bool,
    /// Whether `toehold adapter --set` changes it while the adapter runs.
    pub changes: bool,
    /// Whether it is a setting of connections, which a line that begins with `to` may have.
    pub is_of_connections: bool,
    /// The setting's meaning, its default, and its bounds.
    pub meaning: &'static str,
}

/// All words, in the order of the manual.
pub const WORDS: [Word; 29] = [
    Word {
        word: "link",
        value: "KIND:NAME[@NETNS]",
        repeats: false,
        changes: false,
        is_of_connections: false,
        meaning: "The device that carries the frames. tap:NAME is a TAP device, which is created \
            if there is none. packet:INTERFACE and xdp:INTERFACE are a packet socket and AF_XDP on \
            an interface that exists. @NETNS is its network namespace: a name that ip-netns(8) \
            lists, or a path like /proc/PID/ns/net.",
    },
    Word {
        word: "address",
        value: "ADDRESS/BITS",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "An address of the engine's own, with the length of the link's prefix. It must be \
            free on the network.",
    },
    Word {
        word: "share",
        value: "ADDRESS[:PORTS]",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "An address of the host on the link's interface, instead of addresses of the \
            engine's own. The engine owns the ports on which programs listen through it; the \
            kernel owns the others. PORTS limits them: 80,8000-8099. An IPv6 address with ports \
            stands in brackets, and needs an xdp link.",
    },
    Word {
        word: "outgoing",
        value: "FIRST-LAST",
        repeats: false,
        changes: false,
        is_of_connections: false,
        meaning: "Source ports, at the shared addresses, for connections that programs make \
            through the engine, under --path offload or by an offload line. The kernel must not \
            assign these ports itself: ports in its own range (net.ipv4.ip_local_port_range) are \
            reserved at the start, in net.ipv4.ip_local_reserved_ports. Default: such connections \
            use the kernel.",
    },
    Word {
        word: "gateway",
        value: "ADDRESS",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "The router for destinations that are not on the link: one for IPv4, one for \
            IPv6.",
    },
    Word {
        word: "mtu",
        value: "BYTES",
        repeats: false,
        changes: false,
        is_of_connections: false,
        meaning: "The largest IP packet: 576 to 65535, with an IPv6 address from 1280. Default: \
            the device's own, followed when it changes.",
    },
    Word {
        word: "without",
        value: "lso|lro|checksum",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "Work that the kernel at the other side of the link does not do for the engine: \
            to cut large segments, to join small ones, to complete checksums. Without checksum \
            there is neither of the other two.",
    },
    Word {
        word: "lso",
        value: "on|off",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "The link cuts large segments for the engine. Default on, where the link can.",
    },
    Word {
        word: "lro",
        value: "on|off",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "The link joins small segments for the engine. Default on, where the link can. A \
            packet link does as its interface does (ethtool -K).",
    },
    Word {
        word: "checksum",
        value: "on|verify|trust|off",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "The party that computes checksums, and the party that verifies arriving ones. \
            on: the link computes them, and the engine trusts the link where it reports a valid \
            checksum; the engine verifies the others. verify: the link computes, and the engine \
            verifies every checksum that was ever computed. trust: no checksum is verified, and \
            damage on the way is not noticed. off: the engine computes and verifies, and there is \
            neither lso nor lro. Default on; an xdp link has only off, its default, and trust.",
    },
    Word {
        word: "split-headers",
        value: "on|off",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "Whether payload of large frames is received directly into the program's ring, \
            separate from the headers: always on a packet link; on a TAP device while one stream \
            of one program runs. Otherwise payload is received into a buffer and copied. Default \
            on.",
    },
    Word {
        word: "copy-engine",
        value: "off|worker|dsa|dmadev",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "The copier of payload that was received into a buffer. off: the engine's thread, \
            at once. worker: a separate thread; dsa: Intel's Data Streaming Accelerator; dmadev: a \
            DMA device through DPDK: meanwhile the engine takes the next frames. Default off.",
    },
    Word {
        word: "copybreak",
        value: "BYTES|auto",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "Shorter payload is copied at once by the engine. 1 to 65536; auto is the \
            calibrated value, which `toehold doctor --copying` shows; where the copy engine is \
            never faster, it gets no payload. Default auto.",
    },
    Word {
        word: "coalesce",
        value: "MICROSECONDS",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "The time that the engine waits after a wake-up for more work: fewer wake-ups, \
            later answers. 0 to 10000; default 0.",
    },
    Word {
        word: "batch",
        value: "FRAMES",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "Most frames received in a row before the programs are served. 1 to 65536; \
            default 256.",
    },
    Word {
        word: "quota",
        value: "CONNECTIONS",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "Most connections of one program through the engine at a time, including those to \
            its listeners. 1 to 1048576; default 32768.",
    },
    Word {
        word: "memory",
        value: "MEGABYTES",
        repeats: false,
        changes: true,
        is_of_connections: false,
        meaning: "Most memory of the engine's own for bytes in flight, of all connections \
            together. 64 to 1048576; default 1024.",
    },
    Word {
        word: "window",
        value: "MEGABYTES",
        repeats: false,
        changes: true,
        is_of_connections: true,
        meaning: "Most bytes of one connection in flight, each way. Windows begin with 64 KiB and \
            grow up to this limit where the round trip is long, as far as the memory allows. 1 to \
            64; default 16.",
    },
    Word {
        word: "congestion",
        value: "cubic|reno|dctcp|bbr",
        repeats: false,
        changes: true,
        is_of_connections: true,
        meaning: "The congestion control of new connections. dctcp is for networks whose switches \
            set ECN marks for DCTCP. bbr models the path and is always paced. Default cubic.",
    },
    Word {
        word: "ecn",
        value: "on|accurate|off",
        repeats: false,
        changes: true,
        is_of_connections: true,
        meaning: "Whether new connections ask for explicit congestion notification: on for RFC \
            3168, accurate for receivers that count the marks (RFC 9768; with a remote that does \
            not support it, as on). Default off.",
    },
    Word {
        word: "pacing",
        value: "on|off",
        repeats: false,
        changes: true,
        is_of_connections: true,
        meaning: "Whether new connections spread their data over the round trip, where it takes 4 \
            ms or more. Default on.",
    },
    Word {
        word: "initial-window",
        value: "SEGMENTS",
        repeats: false,
        changes: true,
        is_of_connections: true,
        meaning: "Segments that a new connection sends before the first answer. 1 to 64; default \
            10.",
    },
    Word {
        word: "keepalive",
        value: "SECONDS|off",
        repeats: false,
        changes: true,
        is_of_connections: true,
        meaning: "How long a remote may be silent before it is probed, where the program does not \
            set SO_KEEPALIVE itself: 9 probes, 75 seconds apart. 1 to 32767; default off.",
    },
    Word {
        word: "fast-open",
        value: "off|client|server|on",
        repeats: false,
        changes: true,
        is_of_connections: true,
        meaning: "Payload of SYNs (TCP Fast Open, RFC 7413). client: the engine sends it, for \
            programs that use MSG_FASTOPEN or TCP_FASTOPEN_CONNECT, once the remote has given a \
            cookie. server: the engine accepts it, for listeners that set TCP_FASTOPEN. on: both. \
            The first bytes of a connection may then arrive twice, in two connections. Default \
            off.",
    },
    Word {
        word: "to",
        value: "CIDR[:PORT] SETTING VALUE...",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "Settings of new connections to these destinations, in place of the general \
            settings: window, congestion, ecn, pacing, initial-window, keepalive, fast-open. The \
            destination of a connection that a remote makes is the engine's own address and port. \
            Each setting is taken from the first matching line that names it.",
    },
    Word {
        word: "threads",
        value: "N",
        repeats: false,
        changes: false,
        is_of_connections: false,
        meaning: "Engine threads, each with its share of the connections. 1 to 16; default 1.",
    },
    Word {
        word: "offload",
        value: "CIDR[:PORT]",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "Connections to these destinations use the engine, under --path auto too. An IPv6 \
            prefix with a port stands in brackets.",
    },
    Word {
        word: "direct",
        value: "CIDR[:PORT]",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "Connections to these destinations do not use the engine: shared memory on this \
            host, otherwise the kernel.",
    },
    Word {
        word: "host",
        value: "CIDR[:PORT]",
        repeats: true,
        changes: false,
        is_of_connections: false,
        meaning: "Connections to these destinations always use the kernel.",
    },
];

/// All words, for a sentence.
pub(super) fn list() -> String {
    WORDS.map(|one| one.word).join(", ")
}

/// Those that can be changed while the adapter runs, for a sentence.
pub(super) fn changeable() -> String {
    listed_words(|one| one.changes)
}

/// Settings of connections, for a sentence.
pub(super) fn of_connections() -> String {
    listed_words(|one| one.is_of_connections)
}

fn listed_words(are_meant: impl Fn(&&Word) -> bool) -> String {
    let words = WORDS.iter().filter(are_meant);
    words.map(|one| one.word).collect::<Vec<_>>().join(", ")
}

/// Whether a word is a setting of connections.
pub(super) fn is_of_connections(word: &str) -> bool {
    WORDS
        .iter()
        .any(|one| one.word == word && one.is_of_connections)
}

/// Whether a word is a setting.
pub(super) fn is_known(word: &str) -> bool {
    WORDS.iter().any(|one| one.word == word)
}

/// Whether more than one value follows a word.
pub(super) fn takes_many(word: &str) -> bool {
    word == "to"
}

/// Whether a word may stand on one line only.
pub(super) fn is_single(word: &str) -> bool {
    WORDS.iter().any(|one| one.word == word && !one.repeats)
}
