//! A load of the lab's generator between two programs.

use crate::process::TIME_LIMIT;
use crate::toehold::Path;
use crate::{Running, Toehold, host, wait_until};

/// `toehold lab server` and its client.
pub struct Generator {
    server: Running,
    client: Running,
    port: u16,
}

impl Generator {
    /// Starts both on that path, for ten minutes at most. `load` are options of `toehold lab
    /// client`.
    ///
    /// # Panics
    /// When the server does not listen.
    pub fn start(toehold: &Toehold, path: Path, load: &[&str]) -> Generator {
        let port = host::free_port();
        let address = format!("127.0.0.1:{port}");
        let start = |name: &str, arguments: &[&str]| {
            let mut command = toehold.command(path, toehold.program());
            command.args(["lab", name]).args(arguments);
            Running::start(command, name, toehold.dir())
        };
        let server = start("server", &["--listen", &address]);
        let listens = wait_until(TIME_LIMIT, || server.stderr().contains("listening"));
        assert!(listens, "{}", server.outputs());
        let client = start("client", &[&[&address, "--seconds", "600"], load].concat());
        Generator {
            server,
            client,
            port,
        }
    }

    /// Where the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// All that both have written so far.
    pub fn outputs(&self) -> String {
        self.server.outputs() + &self.client.outputs()
    }
}
