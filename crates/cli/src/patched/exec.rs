//! Executes a program that the helper patches.
//!
//! The helper shares this process's memory, and owns it alone once the program runs. To make a
//! copy, as fork(2) does, would take longer than the helper's work: the copy must be made, each
//! page that either process writes must be copied, and the kernel must end this process's memory
//! before the program begins. So these rules hold from the helper's start to the exec:
//!
//! - This process makes only system calls. It allocates and frees nothing and does not change
//!   `errno`. Everything it needs was prepared before.
//! - If there is no exec, it waits until the helper has ended, and continues then.
//!
//! The program does not see the helper as a child: no signal reports the helper's end, and only
//! `__WALL` waits for it. Helpers that the library makes are hidden in this way, too. The program
//! waits for the helper before its first instruction (`toehold-patcher`).

use std::arch::asm;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, c_void, pid_t};
use rustix::io::{read, write};
use rustix::process::{
    DumpableBehavior, PTracer, Pid, dumpable_behavior, geteuid, getpid, set_dumpable_behavior,
    set_ptracer,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use toehold_adapter::unserved::tracer;
use toehold_patcher::{Error, File, Refusal, Task, Watch};

use super::Sentence;
use crate::inherited;
use crate::output::warn;

/// Replaces this process by a program that is patched. This process must have one thread. Of
/// `command`, only the changes of the environment are used. `None` when the kernel does not execute
/// the program.
pub(crate) fn exec(
    library: &Path,
    program: &Path,
    arguments: &[OsString],
    command: &Command,
) -> Option<Sentence> {
    let image = match Image::new(program, arguments, command) {
        Ok(image) => image,
        Err(_) => return failed("an argument has a null byte"),
    };
    let Ok(library) = CString::new(library.as_os_str().as_bytes()) else {
        return failed("the library's path has a null byte");
    };
    let runtime_directory = env::var_os("XDG_RUNTIME_DIR");
    let runtime_directory = runtime_directory.and_then(|path| CString::new(path.into_vec()).ok());
    let task = Task {
        library: &library,
        program: Some(&image.path),
        runtime_directory: runtime_directory.as_deref(),
    };
    allow_tracing();
    let refusal = with_helper(task, || image.exec()).err()?;
    Some(Sentence(match refusal {
        Refusal::NotTraced(_) if tracer(std::process::id()).is_some() => Refusal::Traced,
        refusal => refusal,
    }))
}

fn failed(why: &'static str) -> Option<Sentence> {
    Some(Sentence(Refusal::Failed(Error::Failed(why))))
}

/// A program with its arguments and its environment, in the kernel's format.
#[derive(Debug)]
struct Image {
    path: CString,
    arguments: Strings,
    environment: Strings,
}

impl Image {
    fn new(program: &Path, arguments: &[OsString], command: &Command) -> io::Result<Image> {
        let changes = || command.get_envs();
        let is_changed = |name: &OsStr| changes().any(|(changed, _)| changed == name);
        let kept = env::vars_os().filter(|(name, _)| !is_changed(name));
        let set = changes().filter_map(|(name, value)| Some((name.into(), value?.into())));
        let variables = kept
            .chain(set)
            .map(|(mut variable, value): (OsString, OsString)| {
                variable.push("=");
                variable.push(value);
                variable
            });
        Ok(Image {
            path: CString::new(program.as_os_str().as_bytes())?,
            arguments: Strings::new(arguments.iter().cloned())?,
            environment: Strings::new(variables)?,
        })
    }

    /// Returns only if the kernel does not execute it.
    fn exec(&self) {
        let _ = inherited::restore();
        // SAFETY: strings that end with a null byte, in arrays that end with a null pointer. libc's
        // function would write `errno`.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") libc::SYS_execve => _,
                in("rdi") self.path.as_ptr(),
                in("rsi") self.arguments.pointers.as_ptr(),
                in("rdx") self.environment.pointers.as_ptr(),
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        inherited::restore_rusts();
    }
}

/// Strings, and an array of pointers to them that ends with a null pointer.
#[derive(Debug)]
struct Strings {
    #[cfg_attr(not(test), expect(dead_code, reason = "the pointers lead there"))]
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    fn new(all: impl Iterator<Item = OsString>) -> io::Result<Strings> {
        let strings = all.map(|one| CString::new(one.into_vec()));
        let strings = strings.collect::<Result<Vec<_>, _>>()?;
        let pointers = strings.iter().map(|one| one.as_ptr());
        let pointers = pointers.chain([std::ptr::null()]).collect();
        Ok(Strings { strings, pointers })
    }
}

/// The helper's parameters.
struct Start<'a> {
    /// The process to be traced.
    target: pid_t,
    task: Task<'a>,
    /// The helper's end of the socket pair, and the starter's.
    theirs: RawFd,
    ours: RawFd,
    /// The helper's process number, once it exists.
    helper: AtomicI32,
}

/// Makes the helper, and calls `execute` when the helper traces this process. Returns when the
/// helper has ended.
fn with_helper(task: Task<'_>, execute: impl FnOnce()) -> Result<(), Refusal> {
    let failed = |error: io::Error| refusal(error.raw_os_error().unwrap_or(libc::EAGAIN));
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let start = Start {
        target: getpid().as_raw_nonzero().get(),
        task,
        theirs: theirs.as_raw_fd(),
        ours: ours.as_raw_fd(),
        helper: AtomicI32::new(0),
    };
    make_helper(&start, stack().map_err(failed)?).map_err(failed)?;
    // From here on this process makes only system calls.
    drop(theirs);
    let mut outcome = answer(&ours);
    if matches!(outcome, Err(Refusal::NotTraced(Error::Kernel(libc::EPERM))))
        && let Some(helper) = Pid::from_raw(start.helper.load(Ordering::Relaxed))
        && set_ptracer(PTracer::ProcessID(helper)).is_ok()
    {
        // Yama allows tracing only by ancestors, and by a process that the traced process names.
        // Without Yama the naming fails.
        outcome = match write(&ours, &[AGAIN]) {
            Ok(_) => answer(&ours),
            Err(error) => Err(refusal(error.raw_os_error())),
        };
    }
    if outcome.is_ok() {
        execute();
    }
    let _ = write(&ours, &[END]);
    while let Ok(1..) = read(&ours, &mut [0; 8]) {}
    let helper = start.helper.load(Ordering::Relaxed);
    // SAFETY: nothing is written.
    unsafe { libc::waitpid(helper, std::ptr::null_mut(), libc::__WALL) };
    outcome
}

/// Message: the starter has named the helper to the kernel, so the helper may try again.
const AGAIN: u8 = 1;
/// Message: there is no exec.
const END: u8 = 0;

/// Waits for the helper's answer: it traces this process, or cannot.
fn answer(socket: &UnixStream) -> Result<(), Refusal> {
    let mut answer = [0];
    match (read(socket, &mut answer), answer) {
        (Ok(1), [0]) => Ok(()),
        (Ok(1), [error]) => Err(refusal(error.into())),
        (Ok(_), _) => Err(Refusal::Failed(Error::Failed("the helper has ended"))),
        (Err(error), _) => Err(refusal(error.raw_os_error())),
    }
}

/// Too few processes, descriptors or memory do not mean that tracing is forbidden.
fn refusal(number: c_int) -> Refusal {
    match number {
        libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOMEM => {
            Refusal::Failed(Error::Kernel(number))
        }
        _ => Refusal::NotTraced(Error::Kernel(number)),
    }
}

/// If this file has capabilities (setcap(8)), which the adapter started by `run` uses, the kernel
/// does not let an ordinary user trace this process. The program would inherit none of the
/// capabilities.
fn allow_tracing() {
    if dumpable_behavior() == Ok(DumpableBehavior::Dumpable) || geteuid().is_root() {
        return;
    }
    let given_up = capabilities(None).and_then(|sets| {
        let sets = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            ..sets
        };
        set_capabilities(None, sets)
    });
    if given_up.is_ok() {
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
}

/// The end of a stack that stays mapped as long as this process's memory.
fn stack() -> io::Result<*mut c_void> {
    const BYTES: usize = 1 << 20;
    let (protection, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    let flags = private | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a fresh mapping.
    let stack = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    match stack {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        // SAFETY: the end of the mapping.
        _ => unsafe { Ok(stack.byte_add(BYTES)) },
    }
}

/// Makes the helper, which uses the stack that ends at `stack`.
fn make_helper(start: &Start<'_>, stack: *mut c_void) -> io::Result<()> {
    let number = start.helper.as_ptr();
    let flags = libc::CLONE_VM | libc::CLONE_PARENT_SETTID;
    let start: *const Start<'_> = start;
    // SAFETY: the stack is the child's alone, and its end is a multiple of 16. The kernel writes
    // the number before the helper runs.
    match unsafe { libc::clone(helper, stack, flags, start.cast_mut().cast(), number) } {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

extern "C" fn helper(start: *mut c_void) -> c_int {
    // SAFETY: the starter's, which leaves it alone until the helper has ended. Descriptors are the
    // helper's own, and nobody else there uses these.
    let (start, starter) = unsafe {
        let start = &*start.cast::<Start<'_>>();
        libc::close(start.ours);
        (start, File::from_raw_fd(start.theirs))
    };
    // When a process ends, the kernel drops its memory before it closes its descriptors. So when
    // this descriptor is closed, the starter owns the memory again.
    // SAFETY: no memory is involved. It is closed by the process's end.
    unsafe { libc::dup(start.theirs) };
    let status = help(start, starter);
    // SAFETY: ends this process; nothing of the starter's is to be flushed or run here.
    unsafe { libc::_exit(status) }
}

/// Traces the starter until it has become another program, and patches that program.
fn help(start: &Start<'_>, starter: File) -> c_int {
    let watch = loop {
        let begun = Watch::begin(start.target, false);
        let error = begun.as_ref().err().map_or(0, Error::number);
        if starter.send(&[error as u8]).is_err() {
            return 1;
        }
        if let Ok(watch) = begun {
            break watch;
        }
        let mut word = [END];
        if starter.receive(&mut word).is_err() || word != [AGAIN] {
            return 1;
        }
    };
    match watch.patch(&start.task, starter) {
        // A dynamic linker that is started by hand preloads the library itself.
        Ok(()) | Err(Refusal::NotAlone | Refusal::Ended) => 0,
        Err(refusal @ Refusal::Lost(_)) => {
            warn(Sentence(refusal));
            1
        }
        Err(refusal) => {
            let refusal = Sentence(refusal);
            warn(format!("{refusal}; the program runs on kernel TCP"));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_this_one_with_the_changes_of_the_command() {
        let mut command = Command::new("true");
        command.env("TOEHOLD_TEST", "a=b").env_remove("PATH");
        let image = Image::new(Path::new("/x"), &["y".into()], &command).expect("no null bytes");
        let variables = image.environment.strings;
        let named = |name: &str| {
            let mut all = variables.iter().map(|one| one.to_str().expect("text"));
            all.find(|one| one.starts_with(name))
        };
        assert_eq!(named("TOEHOLD_TEST="), Some("TOEHOLD_TEST=a=b"));
        assert_eq!(named("PATH="), None);
        // Cargo sets it for its tests.
        let manifest = env!("CARGO_MANIFEST_DIR");
        let kept = format!("CARGO_MANIFEST_DIR={manifest}");
        assert_eq!(named("CARGO_MANIFEST_DIR="), Some(&*kept));
        assert_eq!(image.environment.pointers.len(), variables.len() + 1);
    }
}
