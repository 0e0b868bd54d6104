//! A program that is stopped right after its exec: its registers, its memory, and system calls made
//! in its name.
//!
//! The program makes these calls with code that is written into its memory. It reports the end of
//! the calls by a signal to itself that every program ignores by default: the tracer sees the
//! signal. If the tracer was killed, the program continues after the signal, at its own first
//! instruction, with its original registers:
//!
//! ```text
//!   exec ─▶ stopped ─▶ calls ─▶ signal ─▶ stopped ─▶ function ─▶ signal ─▶ stopped ─▶ program
//!                                 │                                │                     ▲
//!                                 └──────── no tracer ─────────────┴─────────────────────┘
//! ```
//!
//! So the code is put where the program has no code of its own ([`room`]).

use alloc::vec;
use alloc::vec::Vec;

use libc::{c_int, pid_t, user_regs_struct};
use toehold_freestanding::call;

use super::room::Room;
use super::system::{Error, File, Result, checked};

/// The process that a helper traces.
pub(crate) struct Tracee {
    process: pid_t,
    memory: File,
    at_exec: user_regs_struct,
    /// The signals that it blocks otherwise and during calls: during calls, [`TELLS`] is not
    /// blocked.
    blocked: u64,
    /// The place of the code of calls.
    room: Room,
    /// The original bytes at that place, until the calls were made.
    bytes: Option<Vec<u8>>,
    /// Signals that arrived while the process was stopped.
    signals: Vec<c_int>,
    /// The process has ended; its number may belong to another process.
    has_ended: bool,
}

/// A system call to be made in the program's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its number.
    pub(crate) number: i64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
    /// The relation of the arguments and the answer to other calls of the list: a combination of
    /// [`Call::WITHIN`] and the other flags.
    pub(crate) relations: u64,
}

impl Call {
    /// The first argument is relative to the answer of the call with [`Call::ADDRESS`].
    pub(crate) const WITHIN: u64 = 1;
    /// The fifth argument is the answer of the call with [`Call::FILE`].
    pub(crate) const OF_FILE: u64 = 2;
    /// The first argument is the answer of the call with [`Call::FILE`].
    pub(crate) const ON_FILE: u64 = 4;
    /// The answer is an address that later calls use.
    pub(crate) const ADDRESS: u64 = 8;
    /// The answer is a descriptor that later calls use.
    pub(crate) const FILE: u64 = 16;
    /// The answer is the address of the area.
    pub(crate) const AREA: u64 = 32;

    /// A call whose arguments are plain values.
    pub(crate) fn new(number: i64, arguments: [u64; 6]) -> Call {
        Call {
            number,
            arguments,
            relations: 0,
        }
    }

    /// Adds relations to other calls.
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
    /// The answer of the call with [`Call::ADDRESS`], or [`Answers::NONE`].
    pub(crate) address: u64,
    /// The answer of the call with [`Call::FILE`], or [`Answers::NONE`].
    pub(crate) file: u64,
    /// The answer of the call with [`Call::AREA`], or [`Answers::NONE`].
    pub(crate) area: u64,
    /// The number of calls that succeeded: all, or those before the one that failed.
    pub(crate) made: usize,
    /// The result of the last call.
    pub(crate) outcome: Result<()>,
}

impl Answers {
    /// There was no such call, or it failed.
    pub(crate) const NONE: u64 = u64::MAX;
}

/// The signal by which the program tells its tracer that its calls are done. Without a tracer the
/// signal has no effect, because an exec resets all handlers.
const TELLS: c_int = libc::SIGURG;

/// The words that a program needs to continue by itself. They are right below the stack pointer of
/// the program's first instruction, and r15 is their address.
#[repr(C)]
struct Return {
    process: u64,
    /// Signal masks: during calls, and otherwise.
    blocked_in_calls: u64,
    blocked: u64,
    /// The address of the program's first instruction.
    first: u64,
}

/// The size of the word before which the stack ends.
const RETURN_BYTES: u64 = size_of::<Return>() as u64;
const _: () = assert!(core::mem::offset_of!(Return, first) as u64 == RETURN_BYTES - 8);

// Makes the system calls of the list at rbx one after the other, until one fails or the list ends
// with a negative number. So the program stops only once for all of them: a stop takes as long as
// many system calls. After `tell` the program stops, and its tracer changes its registers. Without
// a tracer it continues with registers of 0, as the kernel starts a program.
core::arch::global_asm!(
    ".pushsection .rodata.toehold_calls, \"a\", @progbits",
    ".irp name, calls, calls_tell, calls_told, calls_end",
    ".hidden toehold_\\name",
    ".globl toehold_\\name",
    ".endr",
    "toehold_calls:",
    "lea rsi, [r15 + {blocked_in_calls}]",
    "call 5f",
    "2:",
    "mov rax, [rbx]",
    "test rax, rax",
    "js toehold_calls_tell",
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
    "jae toehold_calls_tell",
    "test ebp, {address}",
    "cmovnz r12, rax",
    "test ebp, {file}",
    "cmovnz r13, rax",
    "test ebp, {area}",
    "cmovnz r14, rax",
    "add rbx, {call_bytes}",
    "jmp 2b",
    "toehold_calls_tell:",
    "mov rbp, rax",
    "mov eax, {tgkill}",
    "mov edi, [r15]",
    "mov esi, edi",
    "mov edx, {tells}",
    "syscall",
    "toehold_calls_told:",
    "lea rsi, [r15 + {blocked}]",
    "call 5f",
    "lea rsp, [r15 + {return_bytes}]",
    "xor eax, eax",
    "xor ebx, ebx",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor ebp, ebp",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "jmp [rsp - 8]",
    // The mask at rsi.
    "5:",
    "mov eax, {rt_sigprocmask}",
    "mov edi, {set_mask}",
    "xor edx, edx",
    "mov r10d, {mask_bytes}",
    "syscall",
    "ret",
    "toehold_calls_end:",
    ".popsection",
    call_bytes = const CALL_BYTES,
    within = const Call::WITHIN,
    of_file = const Call::OF_FILE,
    on_file = const Call::ON_FILE,
    address = const Call::ADDRESS,
    file = const Call::FILE,
    area = const Call::AREA,
    blocked_in_calls = const core::mem::offset_of!(Return, blocked_in_calls),
    blocked = const core::mem::offset_of!(Return, blocked),
    return_bytes = const RETURN_BYTES,
    tells = const TELLS,
    mask_bytes = const MASK_BYTES,
    set_mask = const libc::SIG_SETMASK,
    tgkill = const libc::SYS_tgkill,
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
);

unsafe extern "C" {
    static toehold_calls: u8;
    static toehold_calls_tell: u8;
    static toehold_calls_told: u8;
    static toehold_calls_end: u8;
}

/// The code above.
struct CallsCode {
    bytes: &'static [u8],
    /// Where the program reports that the calls are done, and where it stops then.
    tell: u64,
    told: u64,
}

fn calls_code() -> CallsCode {
    let from = &raw const toehold_calls;
    // SAFETY: read-only bytes of this program, in this order.
    let distance = |to: *const u8| unsafe { to.offset_from_unsigned(from) };
    let bytes = distance(&raw const toehold_calls_end);
    CallsCode {
        // SAFETY: as above.
        bytes: unsafe { core::slice::from_raw_parts(from, bytes) },
        tell: distance(&raw const toehold_calls_tell) as u64,
        told: distance(&raw const toehold_calls_told) as u64,
    }
}

/// The size of the code of calls.
pub(crate) fn calls_code_bytes() -> u64 {
    calls_code().bytes.len() as u64
}

/// The size of a call in a list.
pub(crate) const CALL_BYTES: usize = size_of::<[u64; 8]>();

impl Tracee {
    /// Takes `process`, which has just executed another program and is stopped by that event.
    pub(crate) fn at_exec(process: pid_t) -> Result<Tracee> {
        let memory = File::of_process(process, c"mem", libc::O_RDWR)?;
        // The kernel writes the result of the exec into rax when the program continues.
        let at_exec = user_regs_struct {
            rax: 0,
            ..registers(process)?
        };
        Ok(Tracee {
            process,
            memory,
            room: Room::first_page(at_exec.rip),
            at_exec,
            blocked: blocked(process)?,
            bytes: None,
            signals: Vec::new(),
            has_ended: false,
        })
    }

    /// Sets the place of the code of calls. No calls have been made before.
    pub(crate) fn set_room(&mut self, room: Room) {
        self.room = room;
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

    /// Reads its memory.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.memory.read_exact_at(bytes, address)
    }

    /// Writes the code of calls, and the words that the program needs to continue by itself.
    /// Returns the address of these words.
    fn begin_calls(&mut self, code: &CallsCode) -> Result<u64> {
        let back = self.at_exec.rsp - RETURN_BYTES;
        if self.bytes.is_none() {
            let mut bytes = vec![0; code.bytes.len()];
            self.memory.read_exact_at(&mut bytes, self.room.address())?;
            self.bytes = Some(bytes);
            let blocked_in_calls = self.blocked & !bit(TELLS);
            let (process, first) = (self.process as u64, self.at_exec.rip);
            let words = [process, blocked_in_calls, self.blocked, first];
            let words: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            self.memory.write_all_at(&words, back)?;
            self.memory.write_all_at(code.bytes, self.room.address())?;
        }
        Ok(back)
    }

    /// Makes system calls in the program's name until one fails. The list is written to `at`.
    pub(crate) fn call_all(&mut self, calls: &[Call], at: u64) -> Result<Answers> {
        let code = calls_code();
        let back = self.begin_calls(&code)?;
        let words = calls.iter().flat_map(Call::words).chain([u64::MAX]);
        let list: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.memory.write_all_at(&list, at)?;
        let mut registers = self.at_exec;
        registers.orig_rax = u64::MAX;
        registers.rip = self.room.address();
        // The code calls a subroutine of its own.
        registers.rsp = back;
        registers.rbx = at;
        (registers.r12, registers.r13, registers.r14) =
            (Answers::NONE, Answers::NONE, Answers::NONE);
        registers.r15 = back;
        set_registers(self.process, &registers)?;
        self.go_on()?;
        let after = self.told(&code)?;
        let made = (after.rbx - at) as usize / CALL_BYTES;
        let outcome = match after.rbp as i64 {
            _ if made == calls.len() => Ok(()),
            error => Err(Error::Kernel(-error as i32)),
        };
        Ok(Answers {
            address: after.r12,
            file: after.r13,
            area: after.r14,
            made,
            outcome,
        })
    }

    /// Calls a C function in the program, with a stack far below the program's stack pointer. Runs
    /// `meanwhile` while the program runs.
    pub(crate) fn call_function<T>(
        &mut self,
        function: u64,
        argument: u64,
        meanwhile: impl FnOnce(&Tracee) -> T,
    ) -> Result<(i64, T)> {
        const BELOW: u64 = 8192;
        let code = calls_code();
        let mut registers = self.at_exec;
        // A C function preserves this register.
        registers.r15 = self.begin_calls(&code)?;
        registers.orig_rax = u64::MAX;
        registers.rip = function;
        registers.rdi = argument;
        // As after a `call`: the return address is on the stack.
        registers.rsp = ((self.at_exec.rsp - BELOW) & !15) - 8;
        let back = self.room.address() + code.tell;
        self.memory
            .write_all_at(&back.to_le_bytes(), registers.rsp)?;
        set_registers(self.process, &registers)?;
        self.go_on()?;
        let other = meanwhile(self);
        let after = self.told(&code)?;
        Ok((after.rbp as i32 as i64, other))
    }

    /// From now on, calls and the program use this GS base.
    pub(crate) fn set_gs_base(&mut self, base: u64) {
        self.at_exec.gs_base = base;
    }

    /// The program will begin with the code of [`super::parting`] at address `parting`.
    pub(crate) fn begin_with(&mut self, parting: u64, helper: pid_t) {
        self.at_exec.r12 = helper as u64;
        self.at_exec.r13 = self.at_exec.rip;
        self.at_exec.rip = parting;
    }

    /// The program's environment: an array of pointers that ends with a null pointer.
    pub(crate) fn environment(&self) -> Result<u64> {
        let mut count = [0; 8];
        self.memory.read_exact_at(&mut count, self.at_exec.rsp)?;
        // The number of arguments is followed by the arguments and a null pointer.
        Ok(self.at_exec.rsp + 8 * (u64::from_le_bytes(count) + 2))
    }

    /// Lets the process run.
    fn go_on(&self) -> Result<()> {
        request(libc::PTRACE_CONT, self.process, 0, 0)
    }

    /// Waits until the process reports that the calls are done. Returns its registers.
    fn told(&mut self, code: &CallsCode) -> Result<user_regs_struct> {
        loop {
            match wait(self.process)? {
                None => {
                    self.has_ended = true;
                    return Err(Error::Failed("it has ended"));
                }
                Some(Stop::Signal(TELLS)) => {
                    let registers = registers(self.process)?;
                    if registers.rip == self.room.address() + code.told {
                        return Ok(registers);
                    }
                    self.signals.push(TELLS);
                }
                // The instruction would fail again.
                Some(Stop::Signal(signal)) if self.is_fault()? => {
                    return Err(Error::Signal(signal));
                }
                Some(Stop::Signal(signal)) => self.signals.push(signal),
                Some(_) => {}
            }
            self.go_on()?;
        }
    }

    /// True when the signal that stopped the process was caused by an instruction, not by a
    /// process.
    fn is_fault(&self) -> Result<bool> {
        // SAFETY: all-zero is a valid value of this structure of integers.
        let mut information: libc::siginfo_t = unsafe { core::mem::zeroed() };
        let into = (&raw mut information) as usize;
        request(libc::PTRACE_GETSIGINFO, self.process, 0, into)?;
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        Ok(information.si_code > 0 && faults.contains(&information.si_signo))
    }

    /// Ends calls: restores the program's own code.
    pub(crate) fn end_calls(&mut self) -> Result<()> {
        // In spare room the program may still need the code of calls, to continue by itself.
        match self.room.is_spare() {
            true => Ok(()),
            false => self.clear_room(),
        }
    }

    /// Restores the program's bytes at the code's place.
    fn clear_room(&mut self) -> Result<()> {
        match self.bytes.take() {
            Some(bytes) => self.memory.write_all_at(&bytes, self.room.address()),
            None => Ok(()),
        }
    }

    /// Lets the program continue as if it had not been stopped. A program that cannot be restored
    /// is killed: it would execute wrong instructions.
    ///
    /// # Errors
    ///
    /// When the program was killed, or stays traced until this process ends.
    pub(crate) fn release(mut self) -> Result<()> {
        if self.has_ended {
            return Ok(());
        }
        if let Err(error) = self.make_whole() {
            // SAFETY: no memory is involved. The process number is valid until this process has
            // waited for it.
            unsafe { call!(SYS_kill, self.process, libc::SIGKILL) };
            return Err(error);
        }
        for signal in &self.signals {
            // SAFETY: no memory is involved.
            unsafe { call!(SYS_kill, self.process, *signal) };
        }
        request(libc::PTRACE_DETACH, self.process, 0, 0)
    }

    /// Restores the code and the registers of the first instruction. This process may be killed
    /// after each of these steps.
    fn make_whole(&mut self) -> Result<()> {
        self.end_calls()?;
        if self.blocked & bit(TELLS) != 0 {
            let from = (&raw const self.blocked) as usize;
            request(libc::PTRACE_SETSIGMASK, self.process, MASK_BYTES, from)?;
        }
        let mut registers = self.at_exec;
        // The kernel must not restart a system call.
        registers.orig_rax = u64::MAX;
        set_registers(self.process, &registers)?;
        self.clear_room()
    }
}

/// Begins to trace a thread, whose next exec will stop it. `with_children`: the creation of a
/// process stops it, too, and the new process is traced from its beginning.
pub(crate) fn seize(thread: pid_t, with_children: bool) -> Result<()> {
    let births = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
    let options = libc::PTRACE_O_TRACEEXEC | if with_children { births } else { 0 };
    request(libc::PTRACE_SEIZE, thread, 0, options as usize)
}

/// Continues a stopped process, which stays traced.
pub(crate) fn go_on(process: pid_t, stop: Stop) -> Result<()> {
    match stop {
        Stop::Group => request(libc::PTRACE_LISTEN, process, 0, 0),
        stop => request(libc::PTRACE_CONT, process, 0, stop.signal() as usize),
    }
}

/// Continues a stopped process and stops tracing it.
pub(crate) fn let_go(process: pid_t, stop: Stop) -> Result<()> {
    request(libc::PTRACE_DETACH, process, 0, stop.signal() as usize)
}

/// Makes a traced process stop soon.
pub(crate) fn interrupt(process: pid_t) -> Result<()> {
    request(libc::PTRACE_INTERRUPT, process, 0, 0)
}

/// The reason why a tracee has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has executed another program.
    Exec,
    /// It has made a process.
    Birth,
    /// The whole process stopped, by a signal.
    Group,
    /// It was interrupted, or tracing has begun.
    Trap,
    /// A signal is to be delivered.
    Signal(c_int),
}

impl Stop {
    /// The signal with which to continue.
    fn signal(self) -> c_int {
        match self {
            Stop::Signal(signal) => signal,
            _ => 0,
        }
    }
}

/// The kernel's masks of signals.
const MASK_BYTES: usize = size_of::<u64>();

/// The bit of a signal in such a mask.
fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The number of bytes below the stack pointer that the calls use.
pub(crate) const RESERVED_BYTES: u64 = RETURN_BYTES + 8;

/// Waits until `process` stops; `None` when it has ended.
fn wait(process: pid_t) -> Result<Option<Stop>> {
    Ok(next(process, 0)?.and_then(|(_, stop)| stop))
}

/// The next process that has stopped or ended, among all traced processes or only `process`: its
/// number, and the stop unless it has ended. `None` when `flags` says not to wait, and there is
/// none.
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

    /// Lets the process run to its end; returns its status as in waitpid(2).
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
        let wanted = [TELLS, libc::SIGUSR1].map(bit);
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
