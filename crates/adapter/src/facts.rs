//! Facts about a socket that only the kernel knows. They show whether two sockets are the ends of
//! one connection, whatever their addresses are.
//!
//! Addresses name a connection within one network namespace. Between two namespaces addresses may
//! be translated, and two namespaces may use equal addresses. But two properties of a segment stay
//! unchanged: its sequence numbers and, within one host, the flow hash of its socket.
//!
//! ```text
//!     socket A                                                            socket B
//!     first sequence number sent      ──── SYN, SYN and ACK ───►   first number received
//!     hash of what it sends           ──── with each segment ──►   hash of what it received
//!          and in the other direction
//! ```
//!
//! - The *numbers* are 32 random bits in each direction (RFC 6528), and never change. TCP adds up
//!   what was acknowledged and received, so they follow at any time:
//!   `sent = snd_una - bytes_acked`, `received = rcv_nxt - bytes_received`. The end that opened
//!   counts its SYN as one byte. See [`Numbers::fit`].
//! - The *hashes* are 32 random bits in each direction. A socket chooses a new hash when segments
//!   are lost. The hashes distinguish connections that were opened in one tick of the clock behind
//!   the sequence numbers, and detect a socket to which another socket's numbers were given
//!   (`TCP_REPAIR`).
//!
//! No interface of the kernel shows the hash. So a small BPF program reads it inside the kernel
//! ([`program`]), if the kernel describes its own structures (BTF). The program is not attached to
//! any event. Loading it needs `CAP_BPF` and `CAP_PERFMON`; the adapter gives both up afterwards.
//!
//! The program reads while the socket is in use, without its lock. A pair of counters that has
//! changed meanwhile is read again ([`READS_MAX`] times).

mod program;

use crate::registry::{Address, Numbers};
use program::{Context, Operation, Status};
use std::os::fd::{AsRawFd, BorrowedFd};
use toehold_link::bpf::{Btf, Map, Program, ProgramKind};

/// The facts that identify one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) numbers: Numbers,
    /// The hash of the segments that it sends.
    tx_hash: u32,
    /// The hash of the last segment that it has received.
    rx_hash: u32,
}

/// A socket that was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its own address and its remote's; `None` if it is not an established TCP socket.
    pub(crate) ends: Option<[Address; 2]>,
    /// Its facts. With facts it is remembered.
    pub(crate) facts: Option<Facts>,
}

/// The verdict of the facts of two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They are the two ends of one connection.
    Proved,
    /// Their numbers fit but their hashes do not: segments were lost, or one is another
    /// connection's socket.
    Doubtful,
    /// They are not the ends of one connection.
    Refuted,
}

impl Facts {
    /// Compares these facts with the other socket's.
    pub(crate) fn verdict(&self, other: &Facts) -> Verdict {
        if !self.numbers.fit(&other.numbers) {
            return Verdict::Refuted;
        }
        let is_carried = |sent: u32, received: u32| sent != 0 && sent == received;
        let both =
            is_carried(self.tx_hash, other.rx_hash) && is_carried(other.tx_hash, self.rx_hash);
        match both {
            true => Verdict::Proved,
            false => Verdict::Doubtful,
        }
    }
}

/// The BPF program, and the sockets that it remembers by cookie. The sockets are not kept open.
#[derive(Debug)]
pub(crate) struct Witness {
    program: Program,
    /// The stored count of references of a file that has one.
    one_reference: i64,
}

impl Witness {
    /// Loads the program.
    ///
    /// # Errors
    /// A sentence about why the program cannot be used here.
    pub(crate) fn load() -> Result<Witness, String> {
        let btf = Btf::of_kernel().map_err(|error| error.to_string())?;
        let places = program::Places::find(&btf)?;
        let refused = |error: &std::io::Error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                format!("loading a program needs CAP_BPF and CAP_PERFMON: {error}")
            }
            _ => format!("this kernel takes no such program (Linux 6.1 does): {error}"),
        };
        let sockets = Map::growing(8, 8, SOCKETS_MAX).map_err(|error| refused(&error))?;
        let instructions = program::assemble(&places, sockets.as_raw_fd());
        let loaded = Program::load(ProgramKind::Syscall, "toehold_proof", &instructions);
        let program = loaded.map_err(|(error, said)| {
            let last = said.lines().last().unwrap_or_default();
            format!("{} {last}", refused(&error)).trim_end().to_owned()
        })?;
        // The program keeps the map. No other code may reach the map, because it contains kernel
        // addresses.
        drop(sockets);
        Ok(Witness {
            program,
            one_reference: places.references.1,
        })
    }

    /// Whether the program still runs, now that capabilities are gone.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut context = Context::new(Operation::Forget, 0, 0);
        let ran = self.program.run(context.bytes_mut());
        ran.map(drop).map_err(|error| {
            format!("this kernel wants CAP_BPF for running a program, too (Linux 5.19): {error}")
        })
    }

    /// Reads a descriptor's socket, and remembers it by its cookie if it has facts. `None` when the
    /// descriptor is not a socket with this cookie.
    ///
    /// The program does not wait for the lock of the socket, as getsockname(2) does. A `send` of
    /// the socket's owner may hold that lock for ever.
    pub(crate) fn remember(&self, socket: BorrowedFd<'_>, cookie: u64) -> Option<Seen> {
        let first = self.run(Operation::Remember, socket.as_raw_fd() as u32, cookie)?;
        let ends = first.ends();
        if first.status() == Status::Full {
            return Some(Seen { ends, facts: None });
        }
        let facts = self.settle(cookie, first);
        if facts.is_none() {
            // Without facts nobody asks for it again, and the place is another socket's.
            self.forget(cookie);
        }
        Some(Seen { ends, facts })
    }

    /// The current facts of a remembered socket. They are valid only if the caller knows in another
    /// way that the socket still exists, because the memory of a closed socket may be reused.
    pub(crate) fn facts(&self, cookie: u64) -> Option<Facts> {
        let first = self.run(Operation::Read, 0, cookie)?;
        self.settle(cookie, first)
    }

    /// Whether nobody but this process has the file of a descriptor: no other descriptor, in no
    /// process and in no message. Once this is so, it stays so.
    pub(crate) fn is_ours_alone(&self, file: BorrowedFd<'_>) -> bool {
        let counted = self.run(Operation::Count, file.as_raw_fd() as u32, 0);
        counted.is_some_and(|context| context.references() == self.one_reference)
    }

    /// Forgets a socket.
    pub(crate) fn forget(&self, cookie: u64) {
        let mut context = Context::new(Operation::Forget, 0, cookie);
        // An error means that the socket is already forgotten.
        let _ = self.program.run(context.bytes_mut());
    }

    /// Reads until two looks in a row agree, from the first one. `None` when the socket is not in a
    /// state that has facts, or changes too often.
    fn settle(&self, cookie: u64, first: Context) -> Option<Facts> {
        let (mut context, mut before) = (first, None);
        for _ in 1..READS_MAX {
            if !context.is_plain() {
                return None;
            }
            let now = context.counters().map(|(sent, received)| Facts {
                numbers: Numbers { sent, received },
                tx_hash: context.tx_hash(),
                rx_hash: context.rx_hash(),
            });
            if now.is_some() && now == before {
                return now;
            }
            before = now;
            context = self.run(Operation::Read, 0, cookie)?;
        }
        None
    }

    /// Runs the program. `None` when it has failed.
    fn run(&self, operation: Operation, fd: u32, cookie: u64) -> Option<Context> {
        let mut context = Context::new(operation, fd, cookie);
        self.program.run(context.bytes_mut()).ok()?;
        (context.status() != Status::Failed).then_some(context)
    }
}

/// The number of times that a socket is read while its values change.
const READS_MAX: usize = 8;
/// The most sockets, of all users, that are remembered at a time.
const SOCKETS_MAX: u32 = 1 << 18;

#[cfg(test)]
mod tests;
