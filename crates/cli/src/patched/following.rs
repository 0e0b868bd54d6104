//! The helper of a program that executes another one: `toehold follow-exec LIBRARY PROGRAM`,
//! started by the library (`toehold_preload::following` has the conversation).
//!
//! It traces one thread, until that thread has executed a program or has made a process that does.
//! The new program is patched while the exec event stops it. Then the helper ends.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use libc::pid_t;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{getpid, setsid};

use super::Refusal;
use super::patching::{self, Ahead};
use super::tracee::{self, Stop, Tracee};

/// The word by which the library asks for a helper, and not a user.
const WORD: &str = "follow-exec";

/// Does the helper's work, when this process was started for it.
pub(crate) fn asked() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next()? != OsStr::new(WORD) {
        return None;
    }
    let library = arguments.next()?;
    // Nothing where it is an open file.
    let program = arguments.next().filter(|path| !path.is_empty());
    // SAFETY: the library has put its socket there; nobody else in this process uses it.
    let caller = unsafe { UnixStream::from_raw_fd(0) };
    Some(
        match follow(caller, Path::new(&library), program.as_ref().map(Path::new)) {
            Ok(()) => ExitCode::SUCCESS,
            // There is nobody to tell: `toehold status` finds the reason by itself.
            Err(_) => ExitCode::FAILURE,
        },
    )
}

fn follow(mut caller: UnixStream, library: &Path, program: Option<&Path>) -> io::Result<()> {
    caller.write_all(&getpid().as_raw_nonzero().get().to_ne_bytes())?;
    let watch = loop {
        let mut request = [0; 8];
        caller.read_exact(&mut request)?;
        let number = |at: usize| i32::from_ne_bytes(std::array::from_fn(|n| request[at + n]));
        let result = Watch::begin(number(0), number(4) != 0);
        let error = result.as_ref().err();
        let error = error.map_or(0, |error| error.raw_os_error().unwrap_or(libc::EPERM));
        caller.write_all(&error.to_ne_bytes())?;
        if let Ok(watch) = result {
            break watch;
        }
    };
    let _ = watch.patch(library, program, caller);
    Ok(())
}

/// Traced processes, of which one will execute a program that is to be patched.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The thread that was named.
    thread: pid_t,
    /// Tells when a traced process has stopped or ended.
    signals: OwnedFd,
}

impl Watch {
    /// Begins to trace a thread, which will execute a program or, `with_children`, make a process
    /// that does.
    pub(crate) fn begin(thread: pid_t, with_children: bool) -> io::Result<Watch> {
        // A signal of the terminal must not end the helper while the program is stopped.
        let _ = setsid();
        // SAFETY: all-zero is a valid mask; the calls write it only.
        let signals = unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            libc::sigaddset(&raw mut mask, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
            libc::signalfd(-1, &raw const mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if signals < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fresh from the kernel.
        let signals = unsafe { OwnedFd::from_raw_fd(signals) };
        tracee::seize(thread, with_children)?;
        Ok(Watch { thread, signals })
    }

    /// Waits for the exec and patches the new program, which is `program` most likely. The caller
    /// may end that before.
    pub(crate) fn patch(
        self,
        library: &Path,
        program: Option<&Path>,
        caller: UnixStream,
    ) -> Result<(), Refusal> {
        let ahead = Ahead::of(library, program);
        match self.at_exec(Some(caller)).map_err(Refusal::Failed)? {
            None => Ok(()),
            Some(process) => {
                let tracee = Tracee::at_exec(process).map_err(Refusal::Failed)?;
                patching::enter(tracee, library, ahead)
            }
        }
    }

    /// The process that has executed a program; `None` when nobody will.
    fn at_exec(&self, mut caller: Option<UnixStream>) -> io::Result<Option<pid_t>> {
        // The thread, until it has made its child.
        let mut is_thread_traced = true;
        loop {
            let next = match tracee::next(-1, libc::WNOHANG) {
                // Nobody is traced any more.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
                next => next?,
            };
            match next {
                Some((process, Some(Stop::Exec))) => return Ok(Some(process)),
                Some((process, Some(Stop::Birth))) if process == self.thread => {
                    is_thread_traced = false;
                    tracee::let_go(process, Stop::Birth)?;
                }
                Some((process, Some(stop))) => tracee::go_on(process, stop)?,
                Some((_, None)) => {}
                None => {
                    if self.is_dismissed(&mut caller)? {
                        return self.leave(is_thread_traced, caller).map(|()| None);
                    }
                }
            }
        }
    }

    /// Waits until something happens. True when the caller does not want us any more.
    fn is_dismissed(&self, caller: &mut Option<UnixStream>) -> io::Result<bool> {
        let mut all = vec![PollFd::new(&self.signals, PollFlags::IN)];
        all.extend(
            caller
                .iter()
                .map(|caller| PollFd::new(caller, PollFlags::IN)),
        );
        poll(&mut all, None)?;
        let has_spoken = all.get(1).is_some_and(|one| !one.revents().is_empty());
        drop(all);
        // Stops are asked for one by one: the signal says only that there are some.
        let mut record = [0u8; 128];
        // SAFETY: 128 bytes, as large as one `signalfd_siginfo`.
        unsafe {
            libc::read(
                self.signals.as_raw_fd(),
                record.as_mut_ptr().cast(),
                record.len(),
            )
        };
        let Some(socket) = caller.as_mut().filter(|_| has_spoken) else {
            return Ok(false);
        };
        let is_dismissed = socket.read(&mut [0])? > 0;
        if !is_dismissed {
            // The exec has closed it, or the end of the process.
            *caller = None;
        }
        Ok(is_dismissed)
    }

    /// Traces nobody any more, and says so.
    fn leave(&self, is_thread_traced: bool, caller: Option<UnixStream>) -> io::Result<()> {
        if is_thread_traced {
            tracee::interrupt(self.thread)?;
            if let Some((process, Some(stop))) = tracee::next(self.thread, 0)? {
                tracee::let_go(process, stop)?;
            }
        }
        match caller {
            Some(mut caller) => caller.write_all(&[0]),
            None => Ok(()),
        }
    }
}
