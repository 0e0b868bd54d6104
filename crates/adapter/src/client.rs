//! The command line's requests to the adapter. They block, for two seconds at most.

use crate::engine::settings::to_sixteen_bytes;
use crate::listener::{peer_of, unix_socket};
use crate::memfd;
use crate::runtime_dir::{self, RuntimeDir, RuntimeDirError, user_id};
use crate::wire::{self, Received};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, connect};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toehold_channel::rendezvous::{Kind, Message, MessageError, NoCapture};
use toehold_channel::table::LAYOUT_VERSION;

/// An adapter that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Its process id.
    pub pid: u32,
    /// The version of messages and shared layouts it speaks.
    pub layout_version: u32,
}

/// The reason why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The runtime directory was refused.
    RuntimeDir(RuntimeDirError),
    /// There is no adapter's socket.
    NoAdapter(PathBuf),
    /// There is a socket, but its adapter is gone.
    StaleSocket(PathBuf),
    /// The adapter belongs to another user.
    OtherOwner {
        /// Its user.
        uid: u32,
    },
    /// The adapter is of another version.
    OtherVersion {
        /// The adapter's version of the protocol.
        theirs: u32,
    },
    /// No answer within [`ANSWER_TIMEOUT`], or no status within [`STATUS_TIMEOUT`].
    TimedOut,
    /// The listening program does not answer like an adapter, or rejects us.
    NotAnAdapter(PathBuf),
    /// The adapter could not collect its answer, or it answers only its own user and root.
    NoAnswer,
    /// The adapter has no engine, and so no link to capture.
    NoEngine,
    /// The adapter shows its link to its own user and to root only.
    NotAllowed,
    /// The adapter did not change the setting, for this reason.
    Unchanged(String),
    /// The operating system refused.
    Os {
        /// The attempted action.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The command that starts the adapter of a path.
fn start_of(path: &Path) -> &'static str {
    match path.starts_with(runtime_dir::system_path()) {
        true => "systemctl start toehold-adapter, or as root: toehold adapter --system",
        false => "toehold adapter",
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::RuntimeDir(error) => error.fmt(out),
            ClientError::NoAdapter(path) => write!(
                out,
                "no adapter is running ({} does not exist); start one with: {}",
                path.display(),
                start_of(path)
            ),
            ClientError::StaleSocket(path) => write!(
                out,
                "the adapter that made {} has ended; start another with: {}",
                path.display(),
                start_of(path)
            ),
            ClientError::OtherOwner { uid } => {
                write!(out, "the adapter belongs to user {uid}, not to you")
            }
            ClientError::OtherVersion { theirs } => write!(
                out,
                "the adapter is of another version (layout {theirs}, this is {LAYOUT_VERSION}); \
                stop it and start this one"
            ),
            ClientError::TimedOut => {
                let [seconds, status] = [ANSWER_TIMEOUT, STATUS_TIMEOUT].map(|it| it.as_secs());
                write!(
                    out,
                    "the adapter did not answer within {seconds} seconds, or did not send its \
                    status within {status}"
                )
            }
            ClientError::NotAnAdapter(path) => {
                write!(
                    out,
                    "the program that listens at {} is not an adapter",
                    path.display()
                )
            }
            ClientError::NoAnswer => write!(
                out,
                "the adapter tells only its own user and root (as root: toehold status), or it has \
                 no memory for an answer"
            ),
            ClientError::NoEngine => write!(
                out,
                "the adapter has no TCP engine, and so no link to capture; give it one with: \
                toehold adapter --link"
            ),
            ClientError::NotAllowed => {
                write!(out, "the adapter shows its link to its own user only")
            }
            ClientError::Unchanged(cause) => out.write_str(cause),
            ClientError::Os { action, source } => write!(out, "cannot {action}: {source}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// The time to wait for an adapter.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time to wait for the status of an adapter that has answered: that of 100,000 connections on
/// a busy host takes seconds.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest status that is accepted from an adapter: every entry of many tables.
const STATUS_BYTES_MAX: u64 = 1 << 30;

/// Asks the adapter of a runtime directory whether it is there.
///
/// # Errors
/// See [`ClientError`].
pub fn ping(runtime_dir: &Path) -> Result<AdapterInfo, ClientError> {
    let (_, adapter) = Asker::connect(runtime_dir)?.ask(&Message::new(Kind::Ping))?;
    Ok(adapter)
}

/// Whether the adapter has a TCP engine.
///
/// # Errors
/// See [`ClientError`].
pub fn has_engine(runtime_dir: &Path) -> Result<bool, ClientError> {
    let (answer, _) = Asker::connect(runtime_dir)?.ask(&Message::new(Kind::Engine))?;
    Ok(!answer.descriptors.is_empty())
}

/// Everything that the adapter knows about its clients and their connections, as JSON.
///
/// # Errors
/// See [`ClientError`].
pub fn status(runtime_dir: &Path) -> Result<String, ClientError> {
    let asker = Asker::connect(runtime_dir)?;
    asker.ask(&Message::new(Kind::Ping))?;
    set_socket_timeout(&asker.socket, Timeout::Recv, Some(STATUS_TIMEOUT))
        .map_err(|error| os("wait for the adapter")(error.into()))?;
    let (mut answer, _) = asker.ask(&Message::new(Kind::Status))?;
    let file = answer.descriptors.pop().ok_or(ClientError::NoAnswer)?;
    let mut text = String::new();
    // The adapter wrote by position, so the file's position is still at the start.
    let read = File::from(file)
        .take(STATUS_BYTES_MAX)
        .read_to_string(&mut text);
    read.map_err(os("read the adapter's answer"))?;
    Ok(text)
}

/// Moves connections back to the kernel and keeps them there: those of one process, or of all
/// processes when `pid` is 0; one descriptor, or all. Returns how many connections got the command.
/// A sleeping program follows it at its next call.
///
/// # Errors
/// See [`ClientError`].
pub fn detach(runtime_dir: &Path, pid: u32, fd: Option<u32>) -> Result<u32, ClientError> {
    command(runtime_dir, Kind::Detach, pid, fd)
}

/// Withdraws [`detach`].
///
/// # Errors
/// See [`ClientError`].
pub fn attach(runtime_dir: &Path, pid: u32, fd: Option<u32>) -> Result<u32, ClientError> {
    command(runtime_dir, Kind::Attach, pid, fd)
}

/// Changes one setting of the adapter's engine while it runs; `setting` is `NAME=VALUE`.
///
/// # Errors
/// See [`ClientError`].
pub fn set(runtime_dir: &Path, setting: &str) -> Result<(), ClientError> {
    let said = File::from(
        memfd::create(c"toehold-setting", setting.len()).map_err(os("make a memory file"))?,
    );
    said.write_all_at(setting.as_bytes(), 0)
        .map_err(os("write a memory file"))?;
    let asker = Asker::connect(runtime_dir)?;
    let (mut answer, _) = asker.ask_with(&Message::new(Kind::Set), &[said.as_fd()])?;
    if answer.message.side == 1 {
        return Ok(());
    }
    let file = answer.descriptors.pop().ok_or(ClientError::NoAnswer)?;
    let mut cause = String::new();
    let read = File::from(file)
        .take(STATUS_BYTES_MAX)
        .read_to_string(&mut cause);
    read.map_err(os("read the adapter's answer"))?;
    Err(ClientError::Unchanged(cause))
}

fn command(dir: &Path, kind: Kind, pid: u32, fd: Option<u32>) -> Result<u32, ClientError> {
    let message = Message {
        pid,
        side: fd.unwrap_or(u32::MAX),
        ..Message::new(kind)
    };
    let (answer, _) = Asker::connect(dir)?.ask(&message)?;
    Ok(answer.message.side)
}

/// Which frames to capture, and how much of each.
#[derive(Clone, Copy, Debug, Default)]
pub struct CaptureOptions {
    /// Most bytes of a frame; all of them when `None`.
    pub kept_max: Option<u32>,
    /// Only TCP from or to this port.
    pub port: Option<u16>,
    /// Only IP from or to this address.
    pub host: Option<IpAddr>,
}

/// A capture under way. The adapter stays while it is held.
#[derive(Debug)]
pub struct Capturing {
    /// The captured frames, in pcapng. The stream ends when the adapter ends, or at once when too
    /// many captures are under way.
    pub stream: UnixStream,
    _asker: Asker,
}

/// Begins to capture the link of the adapter's engine.
///
/// # Errors
/// See [`ClientError`].
pub fn capture(runtime_dir: &Path, options: CaptureOptions) -> Result<Capturing, ClientError> {
    let question = Message {
        side: options.kept_max.unwrap_or(0),
        remote_port: options.port.unwrap_or(0),
        remote: options.host.map_or([0; 16], to_sixteen_bytes),
        ..Message::new(Kind::Capture)
    };
    let asker = Asker::connect(runtime_dir)?;
    let (mut answer, _) = asker.ask(&question)?;
    match answer.descriptors.pop() {
        Some(stream) => Ok(Capturing {
            stream: stream.into(),
            _asker: asker,
        }),
        None if answer.message.side == NoCapture::NoEngine as u32 => Err(ClientError::NoEngine),
        None if answer.message.side == NoCapture::OtherUser as u32 => Err(ClientError::NotAllowed),
        None => Err(ClientError::NoAnswer),
    }
}

#[derive(Debug)]
struct Asker {
    socket: OwnedFd,
    path: PathBuf,
    peer: libc::ucred,
}

struct Answer {
    message: Message,
    descriptors: Vec<OwnedFd>,
}

impl Asker {
    fn connect(runtime_dir: &Path) -> Result<Asker, ClientError> {
        let (path, is_system) = match RuntimeDir::open_either(runtime_dir) {
            Ok(dir) => (dir.socket_path(), dir.is_system()),
            Err(error) if error.is_missing() => {
                return Err(ClientError::NoAdapter(runtime_dir.into()));
            }
            Err(error) => return Err(ClientError::RuntimeDir(error)),
        };
        let socket = open_socket().map_err(os("open a socket"))?;
        let address = SocketAddrUnix::new(&path);
        let address = address.map_err(|error| os("name the adapter's socket")(error.into()))?;
        connect(&socket, &address).map_err(|error| match error {
            Errno::NOENT => ClientError::NoAdapter(path.clone()),
            Errno::CONNREFUSED => ClientError::StaleSocket(path.clone()),
            Errno::PROTOTYPE | Errno::NOTSOCK => ClientError::NotAnAdapter(path.clone()),
            Errno::AGAIN | Errno::INPROGRESS => ClientError::TimedOut,
            _ => os("connect to the adapter")(error.into()),
        })?;
        let peer = peer_of(socket.as_fd()).map_err(os("see whose adapter it is"))?;
        let expected = match is_system {
            true => 0,
            false => user_id(),
        };
        if peer.uid != expected {
            return Err(ClientError::OtherOwner { uid: peer.uid });
        }
        Ok(Asker { socket, path, peer })
    }

    fn ask(&self, question: &Message) -> Result<(Answer, AdapterInfo), ClientError> {
        self.ask_with(question, &[])
    }

    fn ask_with(
        &self,
        question: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Answer, AdapterInfo), ClientError> {
        let not_an_adapter = || ClientError::NotAnAdapter(self.path.clone());
        wire::send(self.socket.as_fd(), question, descriptors)
            .map_err(|error| self.no_answer(error))?;
        let received = loop {
            match wire::receive(self.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(|error| self.no_answer(error))?,
            }
        };
        match received {
            Received::Message(message, Kind::Answer | Kind::Engine, descriptors) => {
                let info = AdapterInfo {
                    pid: self.peer.pid as u32,
                    layout_version: message.version,
                };
                let answer = Answer {
                    message,
                    descriptors,
                };
                Ok((answer, info))
            }
            Received::Nonsense(MessageError::Version(theirs)) => {
                Err(ClientError::OtherVersion { theirs })
            }
            _ => Err(not_an_adapter()),
        }
    }

    fn no_answer(&self, error: io::Error) -> ClientError {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => ClientError::TimedOut,
            Some(libc::EPIPE | libc::ECONNRESET) => ClientError::NotAnAdapter(self.path.clone()),
            _ => os("ask the adapter")(error),
        }
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    let socket = unix_socket(SocketFlags::CLOEXEC)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(ANSWER_TIMEOUT))?;
    }
    Ok(socket)
}

fn os(action: &'static str) -> impl Fn(io::Error) -> ClientError {
    move |source| ClientError::Os { action, source }
}
