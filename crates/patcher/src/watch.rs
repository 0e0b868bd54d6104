//! Traces until a process executes a program, which is then patched.

use core::ffi::CStr;

use libc::pid_t;
use toehold_freestanding::call;

use super::Refusal;
use super::patching::{self, Ahead};
use super::system::{Error, File, Result, checked};
use super::tracee::{self, Stop, Tracee};

/// The program to be patched, and the library.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The library's path.
    pub library: &'a CStr,
    /// The program that is most likely to be executed.
    pub program: Option<&'a CStr>,
    /// The user's runtime directory, if it is not the usual one.
    pub runtime_directory: Option<&'a CStr>,
}

/// Traced processes. One of them will execute a program that is to be patched.
#[derive(Debug)]
pub struct Watch {
    /// The thread that the caller named.
    thread: pid_t,
    /// Readable when a traced process has stopped or ended.
    signals: File,
}

impl Watch {
    /// Begins to trace a thread that will execute a program or, `with_children`, will make a
    /// process that does.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn begin(thread: pid_t, with_children: bool) -> Result<Watch> {
        // A signal from the terminal must not end the helper while the program is stopped.
        // SAFETY: no memory is involved.
        unsafe { call!(SYS_setsid) };
        let mask = 1_u64 << (libc::SIGCHLD - 1);
        let (at, flags) = (&raw const mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        // SAFETY: a mask of eight bytes; the descriptor is ours.
        let signals = unsafe {
            call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, at, 0, 8);
            File::from_raw_fd(checked(call!(SYS_signalfd4, -1_i32, at, 8, flags))? as i32)
        };
        tracee::seize(thread, with_children)?;
        Ok(Watch { thread, signals })
    }

    /// Waits for the exec and patches the new program. The caller may cancel that before.
    ///
    /// # Errors
    ///
    /// When the program runs without the library, or was killed.
    pub fn patch(self, task: &Task<'_>, caller: File) -> Result<(), Refusal> {
        let ahead = Ahead::of(task);
        match self.at_exec(Some(caller)).map_err(Refusal::Failed)? {
            None => Ok(()),
            Some(process) => {
                let tracee = Tracee::at_exec(process).map_err(Refusal::Failed)?;
                patching::enter(tracee, task, ahead)
            }
        }
    }

    /// The process that has executed a program; `None` when no process will.
    fn at_exec(&self, mut caller: Option<File>) -> Result<Option<pid_t>> {
        // True until the thread has made its child.
        let mut is_thread_traced = true;
        loop {
            let next = match tracee::next(-1, libc::WNOHANG) {
                // No process is traced any more.
                Err(Error::Kernel(libc::ECHILD)) => return Ok(None),
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

    /// Waits until something happens. True when the caller cancels the work.
    fn is_dismissed(&self, caller: &mut Option<File>) -> Result<bool> {
        let wanted = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // Without a caller this is a negative number, which the kernel ignores.
        let socket = caller.as_ref().map_or(-1, File::as_raw_fd);
        let mut all = [wanted(self.signals.as_raw_fd()), wanted(socket)];
        // SAFETY: two of them.
        let answer = unsafe { call!(SYS_poll, all.as_mut_ptr(), all.len(), -1_i32) };
        match checked(answer) {
            Ok(_) | Err(Error::Kernel(libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
        // Stops are fetched one by one: the signal says only that there are some.
        let _ = self
            .signals
            .read(&mut [0; size_of::<libc::signalfd_siginfo>()]);
        let has_spoken = all[1].revents != 0;
        let Some(socket) = caller.as_ref().filter(|_| has_spoken) else {
            return Ok(false);
        };
        let is_dismissed = socket.read(&mut [0])? > 0;
        if !is_dismissed {
            // The exec or the end of the process has closed the socket.
            *caller = None;
        }
        Ok(is_dismissed)
    }

    /// Stops all tracing, and tells the caller.
    fn leave(&self, is_thread_traced: bool, caller: Option<File>) -> Result<()> {
        if is_thread_traced {
            tracee::interrupt(self.thread)?;
            if let Some((process, Some(stop))) = tracee::next(self.thread, 0)? {
                tracee::let_go(process, stop)?;
            }
        }
        match caller {
            Some(caller) => caller.send(&[0]),
            None => Ok(()),
        }
    }
}
