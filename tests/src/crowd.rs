//! Two programs with many connections (`bin/crowd`), and a line to one of them; or a member of a
//! larger crowd, and a line to it.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process::{Running, wait_until};
use crate::toehold::{Path, Toehold};

/// Crowds that this process has started.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The two programs, on the direct path.
#[derive(Debug)]
pub struct Crowd {
    /// The server.
    pub server: Running,
    /// The client, which follows orders.
    pub client: Running,
    orders: UnixStream,
    given: usize,
    time_limit: Duration,
}

impl Crowd {
    /// Starts both, and waits until every connection of the client has talked. `program` is
    /// `bin/crowd`, `arguments` are the client's after the port.
    ///
    /// # Panics
    /// When one of them ends, or nothing happens for so long as `time_limit`.
    pub fn start(
        toehold: &Toehold,
        program: &str,
        arguments: &[&str],
        time_limit: Duration,
    ) -> Crowd {
        Crowd::start_limited(toehold, program, arguments, None, time_limit)
    }

    /// As [`Crowd::start`], with a limit for the client's descriptors (`ulimit -n`).
    ///
    /// # Panics
    /// As [`Crowd::start`].
    pub fn start_limited(
        toehold: &Toehold,
        program: &str,
        arguments: &[&str],
        descriptors: Option<usize>,
        time_limit: Duration,
    ) -> Crowd {
        // The output of each program is a file of its own, also where a test has two crowds.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let mut command = toehold.command(Path::Direct, program);
        command.arg("server");
        let server = Running::start(command, &format!("server-{number}"), toehold.dir());
        let listens = wait_until(time_limit, || server.stdout().ends_with('\n'));
        assert!(listens, "{}", server.outputs());
        let (orders, theirs) = UnixStream::pair().expect("a socket pair");
        let mut command = match descriptors {
            None => toehold.command(Path::Direct, program),
            Some(limit) => {
                // The shell becomes the program (exec): its number stays.
                let mut command = toehold.command(Path::Direct, "/bin/sh");
                command.args(["-c", "ulimit -n $0; exec \"$@\""]);
                command.args([&limit.to_string(), program]);
                command
            }
        };
        command.args(["client", server.stdout().trim()]);
        command.args(arguments).stdin(OwnedFd::from(theirs));
        let client = Running::start_fed(command, &format!("client-{number}"), toehold.dir());
        let mut crowd = Crowd {
            server,
            client,
            orders,
            given: 0,
            time_limit,
        };
        crowd.obeyed();
        crowd
    }

    /// The server's port.
    ///
    /// # Panics
    /// Never: it has printed one.
    pub fn port(&self) -> u16 {
        self.server.stdout().trim().parse().expect("a port")
    }

    /// Has the client do something, and waits until it has.
    ///
    /// # Panics
    /// When one of the two ends, or the client takes too long.
    pub fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("the client reads");
        self.given += 1;
        self.obeyed();
    }

    /// Has the client exchange messages on its first connection for as long as `act` runs.
    ///
    /// # Panics
    /// As for [`Crowd::order`].
    pub fn while_alone<T>(&mut self, act: impl FnOnce() -> T) -> T {
        writeln!(self.orders, "alone").expect("the client reads");
        self.given += 1;
        let result = act();
        self.client.signal(libc::SIGUSR1);
        self.obeyed();
        result
    }

    fn obeyed(&mut self) {
        let lines = self.given + 1;
        let done = wait_until(self.time_limit, || {
            self.client.ended().is_some() || self.client.stdout().lines().count() >= lines
        });
        let alive = self.client.ended().is_none() && self.server.ended().is_none();
        assert!(
            done && alive,
            "{}\n{}",
            self.client.outputs(),
            self.server.outputs()
        );
    }

    /// Has the client end, which has checked all that it got.
    ///
    /// # Panics
    /// When it fails.
    pub fn end(self) {
        drop(self.orders);
        self.client.success(self.time_limit);
    }
}

/// A process that has connections with others, and a line to it.
#[derive(Debug)]
pub struct Member {
    /// The process.
    pub running: Running,
    line: BufReader<UnixStream>,
}

impl Member {
    /// Starts member `number`; `program` is `bin/crowd`. Its first answer is its port.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(
        toehold: &Toehold,
        path: Path,
        program: &str,
        number: usize,
        time_limit: Duration,
    ) -> Member {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_read_timeout(Some(time_limit)).expect("a timeout");
        let mut command = toehold.command(path, program);
        command.arg("member").stdin(OwnedFd::from(theirs));
        let running = Running::start_fed(command, &format!("member-{number}"), toehold.dir());
        Member {
            running,
            line: BufReader::new(ours),
        }
    }

    /// Has it do something, for which it has an answer.
    ///
    /// # Panics
    /// When it has ended.
    pub fn order(&mut self, line: &str) {
        writeln!(self.line.get_mut(), "{line}").expect("it reads");
    }

    /// Gives no more orders: it ends.
    pub fn hang_up(&self) {
        // One that has ended already needs nothing.
        let _ = self.line.get_ref().shutdown(Shutdown::Both);
    }

    /// Waits for its next answer.
    ///
    /// # Panics
    /// When there is none in time.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = self.line.read_line(&mut line);
        assert!(line.ends_with('\n'), "{read:?}: {}", self.running.outputs());
        line.trim().to_owned()
    }
}
