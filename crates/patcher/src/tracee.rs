//! A program that is stopped right after its exec: its registers, its memory, and system calls made
//! in its name.

use alloc::vec;
use alloc::vec::Vec;

use libc::{c_int, pid_t, user_regs_struct};
use toehold_freestanding::call;

use super::system::{Error, File, Result, checked};

/// The process that a helper traces.
pub(crate) struct Tracee {
    process: pid_t,
    memory: File,
    at_exec: user_regs_struct,
    /// The signals that it blocks. An `int3` takes SIGTRAP out of them.
    blocked: u64,
    /// The page of the program's first instruction: the calls are made from its beginning.
    page: u64,
    /// The bytes that are there until it has made the calls.
    bytes: Option<Vec<u8>>,
    /// Signals that arrived while it was stopped.
    signals: Vec<c_int>,
    /// It has ended, and its number may be another process's.
    has_ended: bool,
}

/// A system call to be made in the program's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its number.
    pub(crate) number: i64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
    /// How its arguments and its answer relate to those of other calls of the list: some of
    /// [`Call::WITHIN`] and the others.
    pub(crate) relations: u64,
}

impl Call {
    /// The first argument counts from the address that is the answer of [`Call::ADDRESS`].
    pub(crate) const WITHIN: u64 = 1;
    /// The fifth argument is the answer of [`Call::FILE`].
    pub(crate) const OF_FILE: u64 = 2;
    /// The first argument is the answer of [`Call::FILE`].
    pub(crate) const ON_FILE: u64 = 4;
    /// The answer is an address that later calls use.
    pub(crate) const ADDRESS: u64 = 8;
    /// The answer is a descriptor that later calls use.
    pub(crate) const FILE: u64 = 16;
    /// The answer is another address.
    pub(crate) const AREA: u64 = 32;

    /// A call whose arguments are values.
    pub(crate) fn new(number: i64, arguments: [u64; 6]) -> Call {
        Call {
            number,
            arguments,
            relations: 0,
        }
    }

    /// With these relations to other calls.
    pub(crate) fn with(self, relations: u64) -> Call {
        Call { relations, ..self }
    }

    fn words(&self) -> [u64; 8] {
        let [a, b, c, d, e, f] = self.arguments;
        [self.number as u64, a, b, c, d, e, f, self.relations]
    }
}

/// The answers to a list of calls.
#[derive(Debug)]
pub(crate) struct Answers {
    /// The answer of [`Call::ADDRESS`], or [`Answers::NONE`].
    pub(crate) address: u64,
    /// The answer of [`Call::FILE`], or [`Answers::NONE`].
    pub(crate) file: u64,
    /// The answer of [`Call::AREA`], or [`Answers::NONE`].
    pub(crate) area: u64,
    /// How many calls have succeeded: all, or those before the one that failed.
    pub(crate) made: usize,
    /// How the last one ended.
    pub(crate) outcome: Result<()>,
}

impl Answers {
    /// There was no such call, or it has not succeeded.
    pub(crate) const NONE: u64 = u64::MAX;
}

// Makes the system calls of the list at rbx, one after the other, until one fails or the list ends
// with a negative number. So the program stops once for all of them: a stop takes as long as many
// system calls. rax may be anything at the beginning: the kernel writes the answer of the exec into
// it after the first stop.
core::arch::global_asm!(
    ".pushsection .rodata.toehold_calls, \"a\", @progbits",
    ".hidden toehold_calls",
    ".globl toehold_calls",
    ".hidden toehold_calls_done",
    ".globl toehold_calls_done",
    ".hidden toehold_calls_end",
    ".globl toehold_calls_end",
    "toehold_calls:",
    "2:",
    "mov rax, [rbx]",
    "test rax, rax",
    "js toehold_calls_done",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "mov ebp, [rbx + 56]",
    "test ebp, {within}",
    "jz 3f",
    "add rdi, r12",
    "3:",
    "test ebp, {of_file}",
    "jz 3f",
    "mov r8, r13",
    "3:",
    "test ebp, {on_file}",
    "jz 3f",
    "mov rdi, r13",
    "3:",
    "syscall",
    "cmp rax, -4095",
    "jae 4f",
    "test ebp, {address}",
    "cmovnz r12, rax",
    "test ebp, {file}",
    "cmovnz r13, rax",
    "test ebp, {area}",
    "cmovnz r14, rax",
    "add rbx, {call_bytes}",
    "jmp 2b",
    "4:",
    "int3",
    "toehold_calls_done:",
    "int3",
    "toehold_calls_end:",
    ".popsection",
    call_bytes = const CALL_BYTES,
    within = const Call::WITHIN,
    of_file = const Call::OF_FILE,
    on_file = const Call::ON_FILE,
    address = const Call::ADDRESS,
    file = const Call::FILE,
    area = const Call::AREA,
);

unsafe extern "C" {
    static toehold_calls: u8;
    static toehold_calls_done: u8;
    static toehold_calls_end: u8;
}

/// The code above, and where it stops when all is done.
fn calls_code() -> (&'static [u8], u64) {
    let (from, done, end) = (
        &raw const toehold_calls,
        &raw const toehold_calls_done,
        &raw const toehold_calls_end,
    );
    // SAFETY: read-only bytes of this program, in this order.
    unsafe {
        let bytes = core::slice::from_raw_parts(from, end.offset_from_unsigned(from));
        (bytes, done.offset_from_unsigned(from) as u64)
    }
}

const PAGE: u64 = 4096;
/// The size of a call in a list.
pub(crate) const CALL_BYTES: usize = size_of::<[u64; 8]>();

impl Tracee {
    /// `process`, which has just executed another program: the event has stopped it.
    pub(crate) fn at_exec(process: pid_t) -> Result<Tracee> {
        let memory = File::of_process(process, c"mem", libc::O_RDWR)?;
        // The kernel writes the answer of the exec into rax when the program goes on.
        let at_exec = user_regs_struct {
            rax: 0,
            ..registers(process)?
        };
        Ok(Tracee {
            process,
            memory,
            page: at_exec.rip & !(PAGE - 1),
            at_exec,
            blocked: blocked(process)?,
            bytes: None,
            signals: Vec::new(),
            has_ended: false,
        })
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
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write_all_at(bytes, address)
    }

    /// True when it has ended while it was traced.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Makes system calls in its name, until one fails. The list is written to `at`.
    pub(crate) fn call_all(&mut self, calls: &[Call], at: u64) -> Result<Answers> {
        let (code, done) = calls_code();
        if self.bytes.is_none() {
            let mut bytes = vec![0; code.len()];
            self.memory.read_exact_at(&mut bytes, self.page)?;
            self.bytes = Some(bytes);
            self.memory.write_all_at(code, self.page)?;
        }
        let words = calls.iter().flat_map(Call::words).chain([u64::MAX]);
        let list: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.memory.write_all_at(&list, at)?;
        let mut registers = self.at_exec;
        registers.orig_rax = u64::MAX;
        registers.rip = self.page;
        registers.rbx = at;
        (registers.r12, registers.r13, registers.r14) =
            (Answers::NONE, Answers::NONE, Answers::NONE);
        set_registers(self.process, &registers)?;
        self.go_on()?;
        self.stop()?;
        let after = self::registers(self.process)?;
        // After an `int3`.
        let is_done = after.rip == self.page + done + 1;
        let outcome = match after.rax as i64 {
            _ if is_done => Ok(()),
            error @ -4095..0 => Err(Error::Kernel(-error as i32)),
            _ => return Err(Error::Failed("the program has stopped somewhere else")),
        };
        Ok(Answers {
            address: after.r12,
            file: after.r13,
            area: after.r14,
            made: (after.rbx - at) as usize / CALL_BYTES,
            outcome,
        })
    }

    /// Calls a C function of its own, far below its stack pointer. [`Tracee::call_all`] has been
    /// called. It does `meanwhile` while the program runs.
    pub(crate) fn call_function<T>(
        &mut self,
        function: u64,
        argument: u64,
        meanwhile: impl FnOnce(&Tracee) -> T,
    ) -> Result<(i64, T)> {
        const BELOW: u64 = 8192;
        let mut registers = self.at_exec;
        registers.orig_rax = u64::MAX;
        registers.rip = function;
        registers.rdi = argument;
        // As after a `call`: the return address lies on the stack, and leads to the last `int3`.
        registers.rsp = ((self.at_exec.rsp - BELOW) & !15) - 8;
        let back = self.page + calls_code().1;
        self.memory
            .write_all_at(&back.to_le_bytes(), registers.rsp)?;
        set_registers(self.process, &registers)?;
        self.go_on()?;
        let other = meanwhile(self);
        self.stop()?;
        let after = self::registers(self.process)?;
        if after.rip != back + 1 {
            return Err(Error::Failed(
                "the library has ended the call in an unknown way",
            ));
        }
        Ok((after.rax as i32 as i64, other))
    }

    /// From now on, calls and the program have this GS base.
    pub(crate) fn set_gs_base(&mut self, base: u64) {
        self.at_exec.gs_base = base;
    }

    /// The program begins with the code of [`super::parting`] at an address.
    pub(crate) fn begin_with(&mut self, parting: u64, helper: pid_t) {
        self.at_exec.r12 = helper as u64;
        self.at_exec.r13 = self.at_exec.rip;
        self.at_exec.rip = parting;
    }

    /// Its environment: an array of pointers that ends with a null pointer.
    pub(crate) fn environment(&self) -> Result<u64> {
        let mut count = [0; 8];
        self.memory.read_exact_at(&mut count, self.at_exec.rsp)?;
        // After the number of arguments come these, and a null pointer.
        Ok(self.at_exec.rsp + 8 * (u64::from_le_bytes(count) + 2))
    }

    /// Lets it run.
    fn go_on(&self) -> Result<()> {
        request(libc::PTRACE_CONT, self.process, 0, 0)
    }

    /// Waits until it has come to an `int3`.
    fn stop(&mut self) -> Result<()> {
        loop {
            match wait(self.process)? {
                None => {
                    self.has_ended = true;
                    return Err(Error::Failed("it has ended"));
                }
                Some(Stop::Signal(libc::SIGTRAP)) => return Ok(()),
                // It would fail at the same instruction again.
                Some(Stop::Signal(signal)) if self.is_fault()? => {
                    return Err(Error::Signal(signal));
                }
                Some(Stop::Signal(signal)) => self.signals.push(signal),
                Some(_) => {}
            }
            self.go_on()?;
        }
    }

    /// True when an instruction is the reason of the signal that has stopped it, and no process.
    fn is_fault(&self) -> Result<bool> {
        // SAFETY: all-zero is a valid value of this structure of integers.
        let mut information: libc::siginfo_t = unsafe { core::mem::zeroed() };
        let into = (&raw mut information) as usize;
        request(libc::PTRACE_GETSIGINFO, self.process, 0, into)?;
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        Ok(information.si_code > 0 && faults.contains(&information.si_signo))
    }

    /// No calls are made from here on: the program's code is whole again.
    pub(crate) fn end_calls(&mut self) -> Result<()> {
        match self.bytes.take() {
            Some(bytes) => self.memory.write_all_at(&bytes, self.page),
            None => Ok(()),
        }
    }

    /// The program goes on as if nobody had stopped it. One that cannot be made whole is ended: it
    /// would execute instructions that are not its own.
    ///
    /// # Errors
    ///
    /// When it was ended, or is traced until this process ends.
    pub(crate) fn release(mut self) -> Result<()> {
        if self.has_ended {
            return Ok(());
        }
        if let Err(error) = self.make_whole() {
            // SAFETY: no memory is involved. Its number is its own until this process has waited.
            unsafe { call!(SYS_kill, self.process, libc::SIGKILL) };
            return Err(error);
        }
        for signal in &self.signals {
            // SAFETY: no memory is involved.
            unsafe { call!(SYS_kill, self.process, *signal) };
        }
        request(libc::PTRACE_DETACH, self.process, 0, 0)
    }

    /// Its code and registers are those of its first instruction.
    fn make_whole(&mut self) -> Result<()> {
        self.end_calls()?;
        let mut registers = self.at_exec;
        // No system call is to be restarted.
        registers.orig_rax = u64::MAX;
        set_registers(self.process, &registers)?;
        if self.blocked & 1 << (libc::SIGTRAP - 1) == 0 {
            return Ok(());
        }
        let from = (&raw const self.blocked) as usize;
        request(libc::PTRACE_SETSIGMASK, self.process, MASK_BYTES, from)
    }
}

/// Begins to trace a thread, whose next exec will stop it. `with_children`: a process that it makes
/// stops it, too, and is traced from its beginning.
pub(crate) fn seize(thread: pid_t, with_children: bool) -> Result<()> {
    let births = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
    let options = libc::PTRACE_O_TRACEEXEC | if with_children { births } else { 0 };
    request(libc::PTRACE_SEIZE, thread, 0, options as usize)
}

/// A stopped process goes on, traced.
pub(crate) fn go_on(process: pid_t, stop: Stop) -> Result<()> {
    match stop {
        Stop::Group => request(libc::PTRACE_LISTEN, process, 0, 0),
        stop => request(libc::PTRACE_CONT, process, 0, stop.signal() as usize),
    }
}

/// A stopped process goes on, and is traced no more.
pub(crate) fn let_go(process: pid_t, stop: Stop) -> Result<()> {
    request(libc::PTRACE_DETACH, process, 0, stop.signal() as usize)
}

/// A traced process that runs will stop soon.
pub(crate) fn interrupt(process: pid_t) -> Result<()> {
    request(libc::PTRACE_INTERRUPT, process, 0, 0)
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

/// The kernel's masks of signals.
const MASK_BYTES: usize = size_of::<u64>();

/// Waits until `process` stops; `None` when it has ended.
fn wait(process: pid_t) -> Result<Option<Stop>> {
    Ok(next(process, 0)?.and_then(|(_, stop)| stop))
}

/// The process that has stopped or ended, of the traced ones or of one: its number, and its stop
/// unless it has ended. `None` when `flags` says not to wait, and there is none.
pub(crate) fn next(process: pid_t, flags: c_int) -> Result<Option<(pid_t, Option<Stop>)>> {
    let mut status: c_int = 0;
    let waited = loop {
        let (into, flags) = (&raw mut status, libc::__WALL | flags);
        // SAFETY: writes the status only.
        match checked(unsafe { call!(SYS_wait4, process, into, flags, 0) }) {
            Err(Error::Kernel(libc::EINTR)) => {}
            waited => break waited? as pid_t,
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

fn blocked(process: pid_t) -> Result<u64> {
    let mut blocked = 0u64;
    let into = (&raw mut blocked) as usize;
    request(libc::PTRACE_GETSIGMASK, process, MASK_BYTES, into)?;
    Ok(blocked)
}

fn registers(process: pid_t) -> Result<user_regs_struct> {
    // SAFETY: all-zero is a valid value of this structure of integers.
    let mut registers: user_regs_struct = unsafe { core::mem::zeroed() };
    let into = (&raw mut registers) as usize;
    request(libc::PTRACE_GETREGS, process, 0, into)?;
    Ok(registers)
}

fn set_registers(process: pid_t, registers: &user_regs_struct) -> Result<()> {
    let from = (&raw const *registers) as usize;
    request(libc::PTRACE_SETREGS, process, 0, from)
}

fn request(what: libc::c_uint, process: pid_t, address: usize, data: usize) -> Result<()> {
    // SAFETY: `data` is a number, or points to registers or to a mask where the request wants them.
    checked(unsafe { call!(SYS_ptrace, what, process, address, data) }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::*;

    /// A child that has just executed `true`.
    fn stopped() -> Tracee {
        stopped_with(0)
    }

    /// A child that blocks these signals, and has just executed `true`.
    fn stopped_with(blocked: u64) -> Tracee {
        let (reader, mut writer) = io::pipe().expect("descriptors");
        let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0u8;
            // SAFETY: one byte is written; the arguments end with a null pointer.
            unsafe {
                libc::read(
                    std::os::fd::AsRawFd::as_raw_fd(&reader),
                    (&raw mut byte).cast(),
                    1,
                );
                call!(
                    SYS_rt_sigprocmask,
                    libc::SIG_BLOCK,
                    &raw const blocked,
                    0,
                    8
                );
                libc::execv(arguments[0], arguments.as_ptr());
                libc::_exit(9);
            }
        }
        seize(child, false).expect("a child can be traced");
        writer.write_all(&[0]).expect("a pipe");
        assert_eq!(wait(child).expect("a child"), Some(Stop::Exec));
        Tracee::at_exec(child).expect("stopped")
    }

    /// Lets it go; its status, as waitpid(2) has it.
    fn ended(tracee: Tracee) -> c_int {
        let process = tracee.process();
        tracee.release().expect("it runs");
        let mut status = 0;
        // SAFETY: writes the status only.
        let waited = unsafe { libc::waitpid(process, &raw mut status, 0) };
        assert_eq!(waited, process);
        status
    }

    fn list_at(tracee: &Tracee) -> u64 {
        (tracee.stack() - 2048) & !15
    }

    fn anonymous() -> Call {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        Call::new(libc::SYS_mmap, [0, 4096, protection, flags, u64::MAX, 0])
    }

    #[test]
    fn a_call_that_fails_tells_which_were_made_before() {
        let mut tracee = stopped();
        let calls = [
            anonymous().with(Call::AREA),
            Call::new(libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0]),
            anonymous().with(Call::ADDRESS),
        ];
        let at = list_at(&tracee);
        let answers = tracee.call_all(&calls, at).expect("they are made");
        assert_eq!(answers.made, 1);
        let error = answers.outcome.expect_err("no such descriptor");
        assert_eq!(error, Error::Kernel(libc::EBADF));
        assert_ne!(answers.area, Answers::NONE);
        assert_eq!(
            (answers.address, answers.file),
            (Answers::NONE, Answers::NONE)
        );
        let answers = tracee.call_all(&calls[..1], at).expect("they are made");
        assert!(answers.outcome.is_ok() && answers.made == 1);
        assert_eq!(ended(tracee), 0);
    }

    #[test]
    fn a_function_that_fails_ends_its_call_and_the_program_goes_on() {
        let mut tracee = stopped();
        let at = list_at(&tracee);
        tracee.call_all(&[], at).expect("none");
        let called = tracee.call_function(16, 0, |_| ());
        let error = called.expect_err("no function is there");
        assert_eq!(error, Error::Signal(libc::SIGSEGV));
        assert_eq!(ended(tracee), 0);
    }

    #[test]
    fn a_signal_of_another_process_is_delivered_when_the_program_goes_on() {
        let mut tracee = stopped();
        // SAFETY: no memory is involved.
        unsafe { libc::kill(tracee.process(), libc::SIGSEGV) };
        let at = list_at(&tracee);
        let answers = tracee.call_all(&[anonymous()], at).expect("it is made");
        assert!(answers.outcome.is_ok());
        assert_eq!(ended(tracee) & 0x7f, libc::SIGSEGV);
    }

    #[test]
    fn signals_that_a_program_blocks_stay_blocked() {
        let wanted = [libc::SIGTRAP, libc::SIGUSR1].map(|signal| 1u64 << (signal - 1));
        let wanted = wanted[0] | wanted[1];
        let mut tracee = stopped_with(wanted);
        assert_eq!(blocked(tracee.process()), Ok(wanted));
        let at = list_at(&tracee);
        tracee.call_all(&[anonymous()], at).expect("it is made");
        tracee.make_whole().expect("it is stopped");
        assert_eq!(blocked(tracee.process()), Ok(wanted));
        assert_eq!(ended(tracee), 0);
    }

    #[test]
    fn a_program_that_is_killed_while_it_is_stopped_is_let_go() {
        let mut tracee = stopped();
        // SAFETY: no memory is involved.
        unsafe { libc::kill(tracee.process(), libc::SIGKILL) };
        let at = list_at(&tracee);
        tracee
            .call_all(&[anonymous()], at)
            .expect_err("it has ended");
        let _ = tracee.release();
    }
}
