//! Two `stream` programs on one connection, and the checks of their byte counts.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::duet::Sides;
use crate::process::{Running, TIME_LIMIT, wait_until};
use crate::toehold::Toehold;

/// A checked connection between two programs.
#[derive(Debug)]
pub struct Checked {
    /// The listening end.
    pub server: Running,
    /// The connecting end.
    pub client: Running,
    server_ledger: PathBuf,
    client_ledger: PathBuf,
}

/// The counts of an end's bytes sent, and received and checked, when last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Bytes for which a send call had returned.
    pub sent: u64,
    /// Bytes received and found right.
    pub received: u64,
}

impl Checked {
    /// Starts both ends of connection `name`; each sends `bytes` (0: without end). With `one_way`
    /// only the client sends.
    ///
    /// # Panics
    /// When the server does not come up.
    pub fn start(
        toehold: &Toehold,
        sides: Sides,
        program: &str,
        (name, seed, bytes, one_way): (&str, u64, u64, bool),
    ) -> Checked {
        let ledger = |role: &str| toehold.dir().join(format!("{name}.{role}.ledger"));
        let (server_ledger, client_ledger) = (ledger("server"), ledger("client"));
        let arguments = |ledger: &PathBuf| {
            let mut list = vec![
                seed.to_string(),
                bytes.to_string(),
                ledger.to_string_lossy().into_owned(),
            ];
            list.extend(one_way.then(|| "one-way".to_owned()));
            list
        };
        let mut command = toehold.command(sides.server, program);
        command.arg("listen").args(arguments(&server_ledger));
        let mut server = Running::start(command, &format!("{name}.server"), toehold.dir());
        let mut port = None;
        wait_until(TIME_LIMIT, || {
            let words = server.stdout();
            port = words
                .strip_prefix("port ")
                .and_then(|rest| rest.lines().next())
                .map(String::from);
            port.is_some() || server.ended().is_some()
        });
        let port = port.unwrap_or_else(|| panic!("no server came up\n{}", server.outputs()));
        let mut command = toehold.command(sides.client, program);
        command
            .args(["connect", &port])
            .args(arguments(&client_ledger));
        let client = Running::start(command, &format!("{name}.client"), toehold.dir());
        Checked {
            server,
            client,
            server_ledger,
            client_ledger,
        }
    }

    /// The server's counters.
    pub fn server_counters(&self) -> Counters {
        counters(&self.server_ledger)
    }

    /// The client's counters.
    pub fn client_counters(&self) -> Counters {
        counters(&self.client_ledger)
    }

    /// Whether both ends have ended by themselves.
    pub fn over(&mut self) -> bool {
        self.server.ended().is_some() && self.client.ended().is_some()
    }
}

fn counters(path: &PathBuf) -> Counters {
    let mut bytes = [0; 16];
    if let Ok(file) = std::fs::File::open(path) {
        let _ = file.read_at(&mut bytes, 0);
    }
    let (sent, received) = bytes.split_at(8);
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    Counters {
        sent: number(sent),
        received: number(received),
    }
}
