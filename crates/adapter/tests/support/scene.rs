//! A server in the test's own process, connected to a program in another one.

use std::net::{TcpListener, TcpStream};

use toehold_adapter::daemon::Options;
use toehold_channel::table::{COMMAND_NONE, COMMAND_PEER_GONE};

use super::program::Program;
use super::{Adapter, FakeEnd, FakeLibrary, Scratch, sockets};

/// A server here that has a connection and a channel with a program.
pub(crate) struct Scene {
    pub(crate) scratch: Scratch,
    _adapter: Adapter,
    pub(crate) server: FakeLibrary,
    pub(crate) accepted: FakeEnd,
    pub(crate) program: Program,
    _stream: TcpStream,
}

impl Scene {
    /// Starts a program of the given role, which connects.
    pub(crate) fn with(role: &str) -> Scene {
        let scratch = Scratch::new();
        let options = Options::foreground(scratch.path());
        Scene::of(role, scratch, options)
    }

    /// As [`Scene::with`], under a system adapter.
    pub(crate) fn under_system(role: &str) -> Scene {
        let scratch = Scratch::new();
        let options = Options::system(scratch.path());
        Scene::of(role, scratch, options)
    }

    fn of(role: &str, scratch: Scratch, options: Options) -> Scene {
        let adapter = Adapter::start_with(Options {
            foreground: false,
            ..options
        });
        let server = FakeLibrary::new(&scratch.path());
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("bound").port();
        let mut program = Program::start(role, &scratch.path(), port);
        let (stream, client) = sockets::accept(&listener);
        let accepted = server.pair(true, port, client.port());
        program.wait_until_ready();
        server.settle();
        assert_eq!(server.offers(accepted), 1);
        Scene {
            scratch,
            _adapter: adapter,
            server,
            accepted,
            program,
            _stream: stream,
        }
    }

    /// The adapter tells the server that its peer is gone.
    pub(crate) fn assert_told(&self) {
        let is_ordered = || self.server.command(self.accepted) == COMMAND_PEER_GONE;
        self.server.settle_until(is_ordered);
    }

    /// The adapter tells the server nothing.
    pub(crate) fn assert_untold(&self) {
        for _ in 0..100 {
            self.server.settle();
        }
        assert_eq!(self.server.command(self.accepted), COMMAND_NONE);
    }
}
