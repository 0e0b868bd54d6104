//! The adapter's place in the runtime directory: its lock and its listening socket.
//!
//! The holder of the lock is the adapter; the socket file only tells its address. So the socket of
//! a dead adapter is taken over safely, and the socket of a living adapter never is.
//!
//! A service manager may have bound the socket, which it keeps: clients wait in its queue while no
//! adapter runs, and the manager starts one for them (systemd.socket(5)). Then the adapter neither
//! hides nor removes the socket file. A manager replaces an existing socket file by its own. The
//! adapter of the old socket ends, and the manager's adapter waits for the lock meanwhile.

use crate::runtime_dir::RuntimeDir;
use rustix::fs::{FlockOperation, flock, inotify};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The listening socket, bound at the path that clients use, and the lock.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Inode of our socket file. The path leads to it unless another file has replaced it.
    inode: u64,
    /// A service manager has the socket, too.
    is_passed: bool,
    /// The lock, held as long as the listener exists. The kernel releases it when the process ends
    /// in any way.
    _lock: File,
}

/// The reason why there is no listener.
#[derive(Debug)]
pub(crate) enum ListenError {
    /// Another adapter serves this directory. Its process id, if it has written it yet.
    AlreadyRunning(Option<u32>),
    /// The kernel refused.
    Os(&'static str, io::Error),
}

impl Listener {
    /// Takes the directory and listens in it: on a socket of its own, or on the one that a service
    /// manager has passed.
    pub(crate) fn bind(dir: &RuntimeDir, passed: Option<OwnedFd>) -> Result<Listener, ListenError> {
        let deadline = Instant::now()
            + if passed.is_some() {
                LEAVE_TIME
            } else {
                Duration::ZERO
            };
        let lock = loop {
            match take_lock(&dir.path().join(LOCK_NAME)) {
                Err(ListenError::AlreadyRunning(_)) if Instant::now() < deadline => {
                    thread::sleep(LOCK_RETRY);
                }
                taken => break taken?,
            }
        };
        let path = dir.socket_path();
        let mode = if dir.is_system() { 0o666 } else { 0o600 };
        let is_passed = passed.is_some();
        let socket = match passed {
            Some(socket) => listen_on(socket, &path)
                .map_err(|error| ListenError::Os("use the service manager's socket in", error)),
            None => listen(&path, mode).map_err(|error| ListenError::Os("listen on", error)),
        };
        let socket = socket?;
        let inode = inode_at(&path).map_err(|error| ListenError::Os("look into", error))?;
        Ok(Listener {
            socket,
            path,
            inode,
            is_passed,
            _lock: lock,
        })
    }

    /// The next client, if one waits.
    pub(crate) fn accept(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let client = rustix::net::accept_with(&self.socket, flags)?;
        if self.is_passed {
            // The client may have connected before we set this option on the listening socket. (The
            // kernel adds the sender to messages for a socket that was not accepted yet
            // (`unix_maybe_add_creds`).)
            crate::wire::ask_for_senders(client.as_fd())?;
        }
        Ok(client)
    }
}

/// The result of [`Listener::hide`].
#[derive(Debug)]
pub(crate) enum Hidden {
    /// No client can find us any more, and none is waiting.
    Alone,
    /// A client had already connected; the socket is in place again.
    Caller(OwnedFd),
}

impl Listener {
    /// Removes the socket from its path, so that the adapter can end without losing a client that
    /// has just connected. With a service manager's socket such clients wait for the next adapter.
    pub(crate) fn hide(&self) -> io::Result<Hidden> {
        if !self.is_to_be_removed() {
            return Ok(Hidden::Alone);
        }
        let aside = self.path.with_extension("old");
        fs::rename(&self.path, &aside)?;
        match self.accept() {
            Ok(caller) => {
                fs::rename(&aside, &self.path)?;
                Ok(Hidden::Caller(caller))
            }
            Err(_) => {
                fs::remove_file(&aside)?;
                Ok(Hidden::Alone)
            }
        }
    }

    /// Watches the directory for new files, which may replace our socket: see
    /// [`Listener::is_displaced`]. Not needed with a service manager's socket.
    pub(crate) fn watch(&self) -> Option<Watch> {
        let directory = self.path.parent().filter(|_| !self.is_passed)?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags).ok()?;
        let kinds = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, directory, kinds).ok()?;
        Some(Watch(watch))
    }

    /// Whether another socket has taken the place of ours, so that no new client finds us.
    pub(crate) fn is_displaced(&self) -> bool {
        inode_at(&self.path).is_ok_and(|inode| inode != self.inode)
    }

    /// True unless the socket file belongs to a service manager, which may also have replaced our
    /// file.
    fn is_to_be_removed(&self) -> bool {
        !self.is_passed && inode_at(&self.path).is_ok_and(|inode| inode == self.inode)
    }
}

/// Readable when something has come to the directory.
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

impl Watch {
    /// Drops the events that have come. The directory's contents tell more than they do.
    pub(crate) fn clear(&self) {
        let mut events = [0u8; 4096];
        // The descriptor does not block.
        while rustix::io::read(&self.0, &mut events).is_ok_and(|count| count > 0) {}
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // We still hold the lock, so the file is not another adapter's. It does not matter if the
        // file is already gone.
        if self.is_to_be_removed() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode_at(path: &Path) -> io::Result<u64> {
    Ok(fs::symlink_metadata(path)?.ino())
}

fn take_lock(path: &Path) -> Result<File, ListenError> {
    let os = |error| ListenError::Os("open the lock in", error);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(os)?;
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK {
            return Err(os(error.into()));
        }
        let mut text = String::new();
        let pid = file.read_to_string(&mut text).ok();
        let pid = pid.and_then(|_| text.trim().parse().ok());
        return Err(ListenError::AlreadyRunning(pid));
    }
    let write_pid = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write_pid(&mut file).map_err(os)?;
    Ok(file)
}

/// A listening socket at `path`, which appears there only when it is ready and has its final mode.
fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = unix_socket(flags)?;
    let unready = path.with_extension("new");
    remove_if_there(&unready)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&unready)?)?;
    fs::set_permissions(&unready, fs::Permissions::from_mode(mode))?;
    // Accepted sockets inherit this option (unix_sock_inherit_flags).
    crate::wire::ask_for_senders(socket.as_fd())?;
    rustix::net::listen(&socket, BACKLOG)?;
    fs::rename(&unready, path)?;
    Ok(socket)
}

/// Listens on a socket that a service manager has bound; it must be the one that clients look for.
fn listen_on(socket: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let wrong = || {
        let expected = format!("expected ListenSequentialPacket={}", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, expected)
    };
    let is_packets = rustix::net::sockopt::socket_type(&socket)? == SocketType::SEQPACKET;
    let name = SocketAddrUnix::try_from(rustix::net::getsockname(&socket)?).ok();
    let name = name.as_ref().and_then(SocketAddrUnix::path_bytes);
    let name = name.map(|bytes| Path::new(OsStr::from_bytes(bytes)));
    let place = |path: &Path| {
        Some((
            path.parent()?.canonicalize().ok()?,
            path.file_name()?.into(),
        ))
    };
    let is_there = |name| place(name) == place(path) as Option<(PathBuf, OsString)>;
    if !is_packets || !name.is_some_and(is_there) {
        return Err(wrong());
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    crate::wire::ask_for_senders(socket.as_fd())?;
    // Called again to set our backlog, and to make this the process that clients see (SO_PEERCRED).
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket of the kind that clients and the adapter use.
pub(crate) fn unix_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The process at the other end of a connected socket, as it was when it connected (or began to
/// listen).
pub(crate) fn peer_of(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    // SAFETY: a `ucred` is plain numbers, for which all bytes are values.
    unsafe { get_option(socket, libc::SO_PEERCRED, &mut peer) }?;
    Ok(peer)
}

/// A number among the options of a socket.
pub(crate) fn number_of(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut number = 0;
    // SAFETY: all bytes are values of a number.
    unsafe { get_option(socket, option, &mut number) }?;
    Ok(number)
}

/// A cookie among the options of a socket.
pub(crate) fn cookie_of(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u64> {
    let mut cookie = 0;
    // SAFETY: all bytes are values of a number.
    unsafe { get_option(socket, option, &mut cookie) }?;
    Ok(cookie)
}

/// # Safety
/// All bytes are values of a `T`.
unsafe fn get_option<T>(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `length` bytes, and any bytes will do.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (value as *mut T).cast(),
            &mut length,
        )
    })
}

/// The descriptor that a system call returned.
pub(crate) fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The error of a system call that failed.
pub(crate) fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// File that the adapter of a runtime directory keeps locked; holds its process id.
const LOCK_NAME: &str = "adapter.lock";
/// The time that an adapter with a service manager's socket waits for the adapter without one to
/// end.
const LEAVE_TIME: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(5);
/// Connections the kernel keeps for us while we are busy.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_at_the_last_moment_is_not_cut_off() {
        let scratch = tempfile::tempdir().expect("scratch directory");
        let dir = RuntimeDir::open_or_create(&scratch.path().join("toehold")).expect("directory");
        let listener = Listener::bind(&dir, None).expect("listener");
        let caller = unix_socket(SocketFlags::empty()).expect("socket");
        let address = SocketAddrUnix::new(dir.socket_path()).expect("address");
        rustix::net::connect(&caller, &address).expect("connected");
        assert!(matches!(listener.hide(), Ok(Hidden::Caller(_))));
        assert!(dir.socket_path().exists());
        assert!(matches!(listener.hide(), Ok(Hidden::Alone)));
        assert!(!dir.socket_path().exists());
    }

    fn passed(dir: &RuntimeDir, name: &str) -> Result<Listener, ListenError> {
        let socket = unix_socket(SocketFlags::empty()).expect("socket");
        let address = SocketAddrUnix::new(dir.path().join(name)).expect("address");
        rustix::net::bind(&socket, &address).expect("bound");
        rustix::net::listen(&socket, 1).expect("it listens");
        Listener::bind(dir, Some(socket))
    }

    #[test]
    fn a_service_managers_socket_displaces_another_and_waits_for_its_lock() {
        let scratch = tempfile::tempdir().expect("scratch directory");
        let dir = RuntimeDir::open_or_create(&scratch.path().join("toehold")).expect("directory");
        let own = Listener::bind(&dir, None).expect("listener");
        let watch = own.watch().expect("a watch");
        let is_told = |watch: &Watch| {
            let is_told = rustix::io::ioctl_fionread(watch).expect("a number") > 0;
            watch.clear();
            is_told
        };
        assert!(!is_told(&watch) && !own.is_displaced());
        fs::remove_file(dir.socket_path()).expect("it is there");
        assert!(!own.is_displaced());
        let name = dir.socket_path();
        let name = name.file_name().expect("a name").to_string_lossy();
        let refused = passed(&dir, &name).expect_err("the lock is held");
        let pid = Some(std::process::id());
        assert!(matches!(refused, ListenError::AlreadyRunning(it) if it == pid));
        assert!(is_told(&watch) && own.is_displaced());
        // The first adapter ends while the other waits.
        fs::remove_file(dir.socket_path()).expect("it is there");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(LOCK_RETRY);
                drop(own);
            });
            let listener = passed(&dir, &name).expect("listener");
            assert!(listener.watch().is_none() && !listener.is_displaced());
        });
    }

    #[test]
    fn the_socket_of_a_service_manager_stays_where_it_is() {
        let scratch = tempfile::tempdir().expect("scratch directory");
        let dir = RuntimeDir::open_or_create(&scratch.path().join("toehold")).expect("directory");
        let refused = passed(&dir, "another.sock").expect_err("clients look elsewhere");
        let says = format!("{refused:?}");
        assert!(says.contains("expected ListenSequentialPacket="), "{says}");
        let name = dir.socket_path();
        let name = name.file_name().expect("a name").to_string_lossy();
        let listener = passed(&dir, &name).expect("listener");
        assert!(matches!(listener.hide(), Ok(Hidden::Alone)));
        drop(listener);
        assert!(dir.socket_path().exists());
        // systemd replaces an existing socket.
        fs::remove_file(dir.socket_path()).expect("it is there");
        let own = Listener::bind(&dir, None).expect("listener");
        fs::remove_file(dir.socket_path()).expect("it is there");
        fs::write(dir.socket_path(), "").expect("scratch");
        assert!(matches!(own.hide(), Ok(Hidden::Alone)));
        drop(own);
        assert!(dir.socket_path().exists());
    }
}
