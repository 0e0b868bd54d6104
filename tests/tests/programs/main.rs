//! Real programs, unmodified: their data byte-exact, their own checks passed.

mod foreign;
mod nginx;
mod postgres;
mod redis;
mod scripts;
mod tools;

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Sides, Toehold, wait_until};

/// Makes a test of each claim on every combination of paths.
macro_rules! claims {
    ($($claim:ident),* $(,)?) => {$(
        mod $claim {
            #[test]
            fn on_the_kernel() {
                super::$claim(&toehold_e2e::Toehold::absent(), toehold_e2e::Sides::HOST);
            }

            #[test]
            fn on_rings() {
                super::$claim(&toehold_e2e::Toehold::start(), toehold_e2e::Sides::DIRECT);
            }

            #[test]
            fn with_only_the_server_accelerated() {
                super::$claim(&toehold_e2e::Toehold::start(), toehold_e2e::Sides::SERVER_ONLY);
            }

            #[test]
            fn with_only_the_client_accelerated() {
                super::$claim(&toehold_e2e::Toehold::start(), toehold_e2e::Sides::CLIENT_ONLY);
            }
        }
    )*};
}
pub(crate) use claims;

/// Waits until something accepts connections on a port; the server must be alive meanwhile.
pub(crate) fn await_port(server: &mut Running, port: u16) {
    let open = wait_until(TIME_LIMIT, || {
        server.ended().is_some() || TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    assert!(
        open && server.ended().is_none(),
        "the server is not up\n{}",
        server.outputs()
    );
}

/// Runs a client to its successful end.
pub(crate) fn client(
    toehold: &Toehold,
    sides: Sides,
    name: &str,
    program: &str,
    arguments: &[&str],
) -> String {
    let mut command = toehold.command(sides.client, program);
    command.args(arguments);
    Running::start(command, name, toehold.dir()).success(TIME_LIMIT)
}

/// Runs `load`. When both sides are accelerated, checks that some of its connections left the
/// kernel.
pub(crate) fn accelerated<T>(toehold: &Toehold, sides: Sides, mut load: impl FnMut() -> T) -> T {
    /// Attempts: on a busy host a load may be over before its connections are examined.
    const LOADS_MAX: usize = 4;
    if !sides.pair_up() {
        return load();
    }
    for _ in 0..LOADS_MAX {
        let (result, direct) = watched(toehold, &mut load);
        if direct > 0 {
            return result;
        }
    }
    panic!("no connection of the load ever left the kernel");
}

/// Runs a load; returns the largest number of connections that were in rings at one time.
fn watched<T>(toehold: &Toehold, load: &mut impl FnMut() -> T) -> (T, usize) {
    let (done, direct) = (AtomicBool::new(false), AtomicUsize::new(0));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let connections = toehold.known_connections();
                let now = connections
                    .iter()
                    .filter(|connection| connection.is_direct())
                    .count();
                direct.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // Stops the watcher, even if the load panics.
        let _done = Done(&done);
        load()
    });
    (result, direct.load(Ordering::Relaxed))
}

/// Raises a flag when dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
