//! A program that is stopped right after its exec: its registers, its memory, and system calls made
//! in its name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use libc::{c_int, c_void, pid_t, user_regs_struct};

/// A stopped child of ours, or this process's own parent.
pub(crate) struct Tracee {
    process: pid_t,
    memory: File,
    at_exec: user_regs_struct,
    /// The bytes that the program executes first; the calls are made from there.
    first_bytes: [u8; CALL.len()],
    /// Signals that arrived while it was stopped.
    signals: Vec<c_int>,
}

/// `int3; syscall; int3`: the kernel still writes the result of exec into rax after the first stop,
/// so the program goes on to the first `int3` before any call is made.
const CALL: [u8; 4] = [0xcc, 0x0f, 0x05, 0xcc];
/// Where `syscall` is in it.
const SYSCALL: u64 = 1;

impl Tracee {
    /// `process`, which has just executed another program: the event has stopped it.
    pub(crate) fn at_exec(process: pid_t) -> io::Result<Tracee> {
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{process}/mem"))?;
        let mut tracee = Tracee {
            process,
            memory,
            at_exec: registers(process)?,
            first_bytes: [0; CALL.len()],
            signals: Vec::new(),
        };
        let at = tracee.at_exec.rip;
        tracee.memory.read_exact_at(&mut tracee.first_bytes, at)?;
        tracee.memory.write_all_at(&CALL, at)?;
        tracee.run_to_breakpoint()?;
        Ok(tracee)
    }

    /// Its number.
    pub(crate) fn process(&self) -> pid_t {
        self.process
    }

    /// Its stack pointer.
    pub(crate) fn stack(&self) -> u64 {
        self.at_exec.rsp
    }

    /// Writes its memory, whatever its protection.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, address)
    }

    /// Makes a system call in its name.
    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        let mut registers = self.at_exec;
        registers.orig_rax = u64::MAX;
        registers.rip += SYSCALL;
        registers.rax = number as u64;
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = arguments;
        set_registers(self.process, &registers)?;
        self.run_to_breakpoint()?;
        let answer = self::registers(self.process)?.rax as i64;
        if (-4095..0).contains(&answer) {
            return Err(io::Error::from_raw_os_error(-answer as i32));
        }
        Ok(answer as u64)
    }

    /// Calls a C function of its own, far below its stack pointer.
    pub(crate) fn call_function(&mut self, function: u64, argument: u64) -> io::Result<i64> {
        const BELOW: u64 = 4096;
        let mut registers = self.at_exec;
        registers.orig_rax = u64::MAX;
        registers.rip = function;
        registers.rdi = argument;
        // As after a `call`: the return address lies on the stack, and leads to the last `int3`.
        registers.rsp = ((self.at_exec.rsp - BELOW) & !15) - 8;
        let back = self.at_exec.rip + CALL.len() as u64 - 1;
        self.memory
            .write_all_at(&back.to_le_bytes(), registers.rsp)?;
        set_registers(self.process, &registers)?;
        self.run_to_breakpoint()?;
        let after = self::registers(self.process)?;
        if after.rip != back + 1 {
            return Err(io::Error::other(
                "the library has ended the call in an unknown way",
            ));
        }
        Ok(after.rax as i32 as i64)
    }

    /// From now on, calls and the program have this GS base.
    pub(crate) fn set_gs_base(&mut self, base: u64) {
        self.at_exec.gs_base = base;
    }

    /// Its environment: an array of pointers that ends with a null pointer.
    pub(crate) fn environment(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        self.memory.read_exact_at(&mut count, self.at_exec.rsp)?;
        // After the number of arguments come these, and a null pointer.
        Ok(self.at_exec.rsp + 8 * (u64::from_le_bytes(count) + 2))
    }

    /// Lets it run to the next `int3`.
    fn run_to_breakpoint(&mut self) -> io::Result<()> {
        loop {
            request(libc::PTRACE_CONT, self.process, 0, 0)?;
            match wait(self.process)? {
                None => return Err(io::Error::other("the program has ended")),
                Some(Stop::Signal(libc::SIGTRAP)) => return Ok(()),
                Some(Stop::Signal(signal)) => self.signals.push(signal),
                Some(_) => {}
            }
        }
    }

    /// The program goes on as if nobody had stopped it.
    pub(crate) fn release(self) -> io::Result<()> {
        self.memory
            .write_all_at(&self.first_bytes, self.at_exec.rip)?;
        let mut registers = self.at_exec;
        // No system call is to be restarted.
        registers.orig_rax = u64::MAX;
        set_registers(self.process, &registers)?;
        for signal in &self.signals {
            // SAFETY: no memory is involved.
            unsafe { libc::kill(self.process, *signal) };
        }
        request(libc::PTRACE_DETACH, self.process, 0, 0).map(drop)
    }
}

/// Begins to trace a thread, whose next exec will stop it. `with_children`: a process that it makes
/// stops it, too, and is traced from its beginning.
pub(crate) fn seize(thread: pid_t, with_children: bool) -> io::Result<()> {
    let births = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
    let options = libc::PTRACE_O_TRACEEXEC | if with_children { births } else { 0 };
    request(libc::PTRACE_SEIZE, thread, 0, options as usize).map(drop)
}

/// A stopped process goes on, traced.
pub(crate) fn go_on(process: pid_t, stop: Stop) -> io::Result<()> {
    match stop {
        Stop::Group => request(libc::PTRACE_LISTEN, process, 0, 0),
        stop => request(libc::PTRACE_CONT, process, 0, stop.signal() as usize),
    }
    .map(drop)
}

/// A stopped process goes on, and is traced no more.
pub(crate) fn let_go(process: pid_t, stop: Stop) -> io::Result<()> {
    request(libc::PTRACE_DETACH, process, 0, stop.signal() as usize).map(drop)
}

/// A traced process that runs will stop soon.
pub(crate) fn interrupt(process: pid_t) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, process, 0, 0).map(drop)
}

/// Why a tracee has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has executed another program.
    Exec,
    /// It has made a process.
    Birth,
    /// With its whole process, by a signal.
    Group,
    /// It was interrupted, or has begun.
    Trap,
    /// A signal is to be delivered.
    Signal(c_int),
}

impl Stop {
    /// The signal to go on with.
    fn signal(self) -> c_int {
        match self {
            Stop::Signal(signal) => signal,
            _ => 0,
        }
    }
}

/// Waits until `process` stops; `None` when it has ended.
fn wait(process: pid_t) -> io::Result<Option<Stop>> {
    Ok(next(process, 0)?.and_then(|(_, stop)| stop))
}

/// The process that has stopped or ended, of the traced ones or of one: its number, and its stop
/// unless it has ended. `None` when `flags` says not to wait, and there is none.
pub(crate) fn next(process: pid_t, flags: c_int) -> io::Result<Option<(pid_t, Option<Stop>)>> {
    let mut status = 0;
    let waited = loop {
        // SAFETY: writes the status only.
        let waited = unsafe { libc::waitpid(process, &raw mut status, libc::__WALL | flags) };
        if waited >= 0 {
            break waited;
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    };
    if waited == 0 {
        return Ok(None);
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Some((waited, None)));
    }
    let signal = libc::WSTOPSIG(status);
    let stop = match status >> 16 {
        libc::PTRACE_EVENT_EXEC => Stop::Exec,
        libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
            Stop::Birth
        }
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Trap,
        libc::PTRACE_EVENT_STOP => Stop::Group,
        _ => Stop::Signal(signal),
    };
    Ok(Some((waited, Some(stop))))
}

fn registers(process: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: all-zero is a valid value of this structure of integers.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    let into = (&raw mut registers) as usize;
    request(libc::PTRACE_GETREGS, process, 0, into)?;
    Ok(registers)
}

fn set_registers(process: pid_t, registers: &user_regs_struct) -> io::Result<()> {
    let from = (&raw const *registers) as usize;
    request(libc::PTRACE_SETREGS, process, 0, from).map(drop)
}

fn request(what: libc::c_uint, process: pid_t, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: `data` is a number, or points to registers where the request wants them.
    let answer =
        unsafe { libc::ptrace(what, process, address as *mut c_void, data as *mut c_void) };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}
