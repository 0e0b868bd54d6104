//! A small service manager: it owns the adapter's listening socket, and starts an adapter when a
//! program connects and none is running (systemd.socket(5)).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

/// The manager. The adapter that it has started ends with it.
#[derive(Debug)]
pub struct Activation {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Adapters that were started.
    started: AtomicU32,
    /// The last adapter's process number; 0 for none.
    pid: AtomicU32,
    is_over: AtomicBool,
}

impl Activation {
    /// Listens in this runtime directory for adapters that `toehold` will run. An existing socket
    /// is removed, as systemd does.
    ///
    /// # Panics
    /// When there is no socket to be had.
    pub fn start(toehold: &Path, runtime: &Path) -> Activation {
        let path = runtime.join("adapter.sock");
        let _ = std::fs::remove_file(&path);
        let socket = listen(&path).expect("a socket");
        let shared = Arc::new(Shared::default());
        let (toehold, runtime): (PathBuf, PathBuf) = (toehold.into(), runtime.into());
        let manage = {
            let shared = Arc::clone(&shared);
            move || {
                let mut adapter: Option<Child> = None;
                while !shared.is_over.load(Ordering::Relaxed) {
                    let is_alive = |child: &mut Child| matches!(child.try_wait(), Ok(None));
                    let is_there = adapter.as_mut().is_some_and(is_alive);
                    // A look takes a moment also where somebody waits.
                    if !somebody_waits(&socket) || is_there {
                        continue;
                    }
                    let child = adapter_on(&socket, &toehold, &runtime).spawn();
                    let child = child.expect("the adapter starts");
                    shared.pid.store(child.id(), Ordering::Relaxed);
                    shared.started.fetch_add(1, Ordering::Relaxed);
                    adapter = Some(child);
                }
                if let Some(mut adapter) = adapter {
                    let _ = adapter.kill();
                    let _ = adapter.wait();
                }
            }
        };
        Activation {
            shared,
            thread: Some(thread::spawn(manage)),
        }
    }

    /// The number of adapters that it has started.
    pub fn started(&self) -> u32 {
        self.shared.started.load(Ordering::Relaxed)
    }

    /// Kills the adapter that runs.
    ///
    /// # Panics
    /// When none was started.
    pub fn kill_adapter(&self) {
        let pid = self.shared.pid.load(Ordering::Relaxed);
        assert_ne!(pid, 0, "no adapter was started");
        // SAFETY: takes numbers. The manager starts no other one before this one has ended.
        unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    }
}

impl Drop for Activation {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `toehold adapter`, with the socket as its first descriptor behind the standard ones.
fn adapter_on(socket: &OwnedFd, toehold: &Path, runtime: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    // The shell becomes the adapter (exec): its number stays.
    command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""]);
    command.arg(toehold).args(["adapter", "--idle-exit", "60"]);
    // The rules of the user who runs the tests must not apply.
    command.args(["--rules", "/dev/null", "--runtime-dir"]);
    command.arg(runtime).env("LISTEN_FDS", "1");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let fd = socket.as_raw_fd();
    let pass = move || {
        // SAFETY: takes numbers. A descriptor that is the third already keeps its flag, so that is
        // cleared by itself.
        let passed = unsafe {
            match fd {
                3 => libc::fcntl(fd, libc::F_SETFD, 0),
                _ => libc::dup2(fd, 3),
            }
        };
        match passed < 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    };
    // SAFETY: one system call, without memory.
    unsafe { command.pre_exec(pass) };
    command
}

fn somebody_waits(socket: &OwnedFd) -> bool {
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    thread::sleep(std::time::Duration::from_millis(5));
    // SAFETY: `poll` is one element.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    let checked = |result: i32| match result < 0 {
        true => Err(io::Error::last_os_error()),
        false => Ok(result),
    };
    // SAFETY: zeroes are a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    assert!(bytes.len() < address.sun_path.len(), "a shorter path");
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the address lives and has this size; the descriptor is new.
    unsafe {
        let socket = checked(libc::socket(libc::AF_UNIX, kind, 0))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let size = size_of_val(&address) as libc::socklen_t;
        checked(libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size,
        ))?;
        checked(libc::listen(socket.as_raw_fd(), 16))?;
        Ok(socket)
    }
}
