//! The setup of every test in this suite.

use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::network::FAR;
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Link, Network, Path as Way, Toehold, host, wait_until};

/// The arguments with which Python plays a role.
pub(crate) fn script() -> [&'static str; 2] {
    host::script("offload.py")
}

/// A network, its adapter, and the Python interpreter for both sides.
pub(crate) struct Stage {
    pub(crate) network: Network,
    pub(crate) toehold: Toehold,
    pub(crate) python: String,
}

impl Stage {
    pub(crate) fn set(options: &[&str]) -> Option<Stage> {
        Stage::set_over(Link::of_this_run(), options)
    }

    /// Like [`Stage::set`], over a link of this type.
    pub(crate) fn set_over(link: Link, options: &[&str]) -> Option<Stage> {
        let python = host::python()?;
        Stage::with(python, Network::with(link)?, |network| {
            network.start(options)
        })
    }

    /// Like [`Stage::set`], with the engine's settings in a file.
    pub(crate) fn set_by(file: &Path) -> Option<Stage> {
        let python = host::python()?;
        let file = file.to_string_lossy();
        Stage::with(python, Network::new()?, |network| {
            network.start_with(&["--config", &file])
        })
    }

    /// Like [`Stage::set_over`]. The near kernel has the engine's addresses, and the options say
    /// which are shared.
    pub(crate) fn set_sharing(link: Link, options: &[&str]) -> Option<Stage> {
        let python = host::python()?;
        Stage::with(python, Network::with(link)?, |network| {
            let v4 = ["addr", "add", "10.84.0.2/24", "dev", "v0"];
            let v6 = ["addr", "add", "fd84::2/64", "dev", "v0", "nodad"];
            assert!(network.near_ip(&v4) && network.near_ip(&v6));
            network.start_with(options)
        })
    }

    /// Like [`Stage::set_over`]. The link has this MTU from the beginning.
    pub(crate) fn set_with_mtu(link: Link, mtu: &str, options: &[&str]) -> Option<Stage> {
        let python = host::python()?;
        Stage::with(python, Network::with(link)?, |network| {
            assert!(network.set_mtu(mtu));
            network.start(options)
        })
    }

    fn with(
        python: PathBuf,
        network: Network,
        start: impl FnOnce(&Network) -> Option<Toehold>,
    ) -> Option<Stage> {
        let toehold = start(&network)?;
        Some(Stage {
            network,
            toehold,
            python: python.to_string_lossy().into_owned(),
        })
    }

    /// Plays a role in the far namespace, on the kernel.
    pub(crate) fn far(&self, name: &str, arguments: &[&str]) -> Running {
        let mut command = self.network.far(&self.python);
        command.args(script()).args(arguments);
        Running::start(command, name, self.toehold.dir())
    }

    /// Plays a role in the near namespace, on the offload path.
    pub(crate) fn near(&self, name: &str, arguments: &[&str]) -> Running {
        self.near_on(Way::Offload, name, arguments)
    }

    /// Plays a role in the near namespace, on the given path.
    pub(crate) fn near_on(&self, path: Way, name: &str, arguments: &[&str]) -> Running {
        let mut command = self.toehold.command(path, &self.python);
        command.args(script()).args(arguments);
        Running::start(command, name, self.toehold.dir())
    }

    /// A command for a program in the near namespace, on the offload path.
    pub(crate) fn offloaded(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.toehold.command(Way::Offload, program);
        command.args(arguments);
        command
    }

    /// Makes the far kernel compute checksums and segment its data itself. Returns false, with a
    /// message, if that is not possible.
    pub(crate) fn far_computes_checksums(&self) -> bool {
        if host::program("ethtool").is_none() {
            host::skipped("ethtool is not installed");
            return false;
        }
        let mut ethtool = self.network.far("ethtool");
        let done = ethtool.args(["-K", "toe0", "tx", "off"]).output();
        assert!(done.is_ok_and(|done| done.status.success()));
        true
    }

    /// Starts a far server and waits until it says that it listens.
    pub(crate) fn far_server(&self, arguments: &[&str]) -> Running {
        listening(self.far("far-server", arguments))
    }

    /// Starts a near server and waits until it listens and the engine knows its listener.
    pub(crate) fn near_server(&self, arguments: &[&str]) -> Running {
        let before = self.listeners();
        let server = listening(self.near("near-server", arguments));
        self.await_listeners(before + 1);
        server
    }

    /// The number of the engine's listeners, as soon as none is left of a program that has ended.
    /// The engine hears of each end a moment later.
    fn listeners(&self) -> u64 {
        let mut count = 0;
        let is_settled = wait_until(TIME_LIMIT, || {
            count = self.engine("listeners");
            count <= self.listening_near()
        });
        assert!(is_settled, "{:?}", self.toehold.known()["engine"]);
        count
    }

    /// The number of sockets of the near kernel that listen for other hosts: at least one for each
    /// listener of the engine.
    fn listening_near(&self) -> u64 {
        let mut look = self.network.near("/bin/cat");
        let output = look
            .args(["/proc/self/net/tcp", "/proc/self/net/tcp6"])
            .output();
        let text = output.expect("cat(1)").stdout;
        let text = String::from_utf8_lossy(&text);
        let is_listener = |line: &&str| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            fields.nth(1) == Some("0A") && !local.starts_with("0100007F:")
        };
        text.lines().filter(is_listener).count() as u64
    }

    /// Waits until a program listens at this port in the far namespace.
    pub(crate) fn await_far_port(&self, server: &mut Running, port: u16) {
        let connect = format!("import socket; socket.create_connection(('{FAR}', {port}))");
        let up = wait_until(TIME_LIMIT, || {
            let mut look = self.network.far(&self.python);
            look.args([host::PYTHON_ALONE, "-c", &connect]);
            server.ended().is_some() || look.output().is_ok_and(|output| output.status.success())
        });
        assert!(up && server.ended().is_none(), "{}", server.outputs());
    }

    pub(crate) fn await_listeners(&self, count: u64) {
        let heard = wait_until(TIME_LIMIT, || self.engine("listeners") == count);
        assert!(heard, "{:?}", self.toehold.known()["engine"]);
    }

    /// One of the engine's counters. Waits until the engine answers.
    pub(crate) fn engine(&self, key: &str) -> u64 {
        let mut number = None;
        wait_until(TIME_LIMIT, || {
            number = self.toehold.known()["engine"][key].as_u64();
            number.is_some()
        });
        number.expect("the engine answers")
    }
}

/// Waits until a server says that it listens.
pub(crate) fn listening(mut server: Running) -> Running {
    let up = wait_until(TIME_LIMIT, || {
        server.ended().is_some() || server.stdout().contains("listening")
    });
    assert!(up && server.ended().is_none(), "{}", server.outputs());
    server
}

/// Returns when a program has printed `word`.
pub(crate) fn await_word(program: &Running, word: &str) {
    let said = wait_until(TIME_LIMIT, || program.stdout().contains(word));
    assert!(said, "{}", program.outputs());
}

/// Waits for a role to end, asserts that it succeeded, and returns its output.
pub(crate) fn ok(running: Running) -> String {
    let said = running.success(TIME_LIMIT);
    assert!(said.ends_with("ok\n"), "{said}");
    said
}
