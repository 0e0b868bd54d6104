//! Exit and exec: a process that ends, or replaces its program, gives up its connections.

use core::ffi::{c_char, c_int, c_void};

use toehold_sockets::system::real;
use toehold_sockets::{
    after_fork_in_child, after_fork_in_parent, api, before_exec, before_exec_with_kept_bytes,
    before_spawn, begin_vfork, end_vfork, ending, exec_failed, holds_connections, is_confined,
    send_liveness_settings, share_sockets,
};

use crate::confinement::before_namespaces;
use crate::environment::{Environment, take_back_left};
use crate::following::{Event, Followed, follow};
use crate::fork::forked;
use crate::program::{Forecast, Scratch, Target, breaks_on_library, forecast};
use crate::readable::can_be_read;

/// Registers a handler for the ordinary end of the program.
pub(crate) fn follow_exit() {
    #[unsafe(link_section = ".text.startup")]
    extern "C" fn at_exit() {
        ending();
    }
    let none = core::ptr::null_mut();
    // SAFETY: the handler lives as long as the library, which is never unloaded: it names no object
    // with whose end it would have to run.
    unsafe {
        real::__cxa_atexit(at_exit, none, none);
        if real::__cxa_at_quick_exit(at_exit, none) < 0 {
            real::at_quick_exit(at_exit);
        }
    }
}

/// `_exit(2)`: no `atexit` handlers run.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    ending();
    loop {
        // SAFETY: ends the process.
        unsafe { real::syscall(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    }
}

/// `_Exit(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: as `_exit`.
    unsafe { _exit(status) }
}

/// `_Fork(3)`: no `pthread_atfork` handlers run.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    // SAFETY: passed on with the caller's promises.
    forked(|| unsafe { real::_Fork() }.into()) as libc::pid_t
}

/// The function with which a process made by `clone` begins, and its argument.
#[repr(C)]
struct Beginning(extern "C" fn(*mut c_void) -> c_int, *mut c_void);

/// `clone(2)` in libc's form. A process with its own memory counts as a fork. Variadic in C; the
/// optional arguments are passed like fixed ones, the seventh on the stack.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clone(
    function: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: usize,
    tls: usize,
    child: usize,
) -> c_int {
    extern "C" fn begin(beginning: *mut c_void) -> c_int {
        after_fork_in_child();
        // SAFETY: the child has a copy of its parent's memory, and this in it.
        let Beginning(function, argument) = unsafe { beginning.cast::<Beginning>().read() };
        function(argument)
    }
    if flags & libc::CLONE_VM != 0 {
        let is_noted = flags & libc::CLONE_VFORK != 0 && begin_vfork();
        // SAFETY: passed on with the caller's promises, here and below.
        let result = unsafe { real::clone(function, stack, flags, argument, parent, tls, child) };
        if is_noted {
            end_vfork();
        }
        return result;
    }
    before_namespaces(flags);
    let mut beginning = Beginning(function, argument);
    let at = (&raw mut beginning).cast();
    // SAFETY: as above; the parent's stack, with `beginning`, is copied with its memory.
    let fork = || unsafe { real::clone(begin, stack, flags, at, parent, tls, child) };
    forked(|| fork().into()) as c_int
}

/// `daemon(3)`: libc puts `/dev/null` at the standard descriptors without calling us.
#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(keeps_directory: c_int, keeps_descriptors: c_int) -> c_int {
    // SAFETY: passed on with the caller's promises.
    let result = unsafe { real::daemon(keeps_directory, keeps_descriptors) };
    if result == 0 && keeps_descriptors == 0 {
        api::standard_descriptors_replaced();
    }
    result
}

/// `login_tty(3)`: libc puts a terminal at the standard descriptors without calling us.
#[unsafe(no_mangle)]
unsafe extern "C" fn login_tty(fd: c_int) -> c_int {
    // SAFETY: passed on with the caller's promises.
    let result = unsafe { real::login_tty(fd) };
    if result == 0 {
        api::standard_descriptors_replaced();
    }
    result
}

/// `posix_spawn_file_actions_adddup2(3)`: the child will have the descriptor, and libc makes it
/// without calling us.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    from: c_int,
    to: c_int,
) -> c_int {
    api::passing_on(from);
    // SAFETY: passed on with the caller's promises.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, from, to) }
}

/// Executes another program by calling `call` with the environment for it. Returns only on failure.
///
/// # Safety
/// `target` and `environment` are valid as for `execve(2)`. The pointers may be bad if
/// `call` passes them to the kernel.
pub(crate) unsafe fn execute(
    target: Target,
    environment: *const *const c_char,
    call: impl Fn(*const *const c_char) -> c_int,
) -> c_int {
    if !can_be_read(target, environment) {
        // The kernel refuses it.
        return call(environment);
    }
    if !is_confined() {
        take_back_left();
    }
    let mut scratch = scratch();
    // SAFETY: the caller's promise.
    let shorter = unsafe { environment_it_bears(target, environment, scratch.as_mut()) };
    let environment = shorter.as_ref().map_or(environment, Environment::as_ptr);
    // SAFETY: the caller's promise, here and below.
    let followed = scratch
        .as_mut()
        .map_or(Followed::NotWanted, |scratch| unsafe {
            follow(target, environment, Event::Exec, scratch)
        });
    drop(scratch);
    match followed {
        // SAFETY: as above.
        Followed::NotWanted => unsafe { depart(target, environment, call) },
        Followed::By(helper) => {
            // SAFETY: as above.
            unsafe { depart(target, environment, &call) };
            helper.dismiss();
            // Some security modules refuse programs that are traced: this answer is the true one.
            // SAFETY: as above.
            unsafe { depart(target, environment, call) }
        }
        Followed::Refused(reason) => {
            // SAFETY: as above.
            let mut longer = unsafe { Environment::copy(environment) };
            let told = longer.as_mut().map(|longer| longer.with_refusal(reason));
            // SAFETY: as above.
            unsafe { depart(target, told.unwrap_or(environment), call) }
        }
    }
}

/// Gives up or hands over the program's connections, and executes another program by calling
/// `call`.
///
/// # Safety
/// As [`execute`].
unsafe fn depart(
    target: Target,
    environment: *const *const c_char,
    call: impl Fn(*const *const c_char) -> c_int,
) -> c_int {
    share_sockets();
    before_exec_with_kept_bytes();
    if !holds_connections() {
        return call(environment);
    }
    // SAFETY: the caller's promise.
    let forecast = unsafe { forecast(target, environment) };
    if forecast == Forecast::Fails {
        return call(environment);
    }
    let mut longer = match forecast {
        // SAFETY: the caller's promise.
        Forecast::WithLibrary => unsafe { Environment::copy(environment) },
        _ => None,
    };
    send_liveness_settings();
    let departure = before_exec(longer.is_some());
    let environment = match (&mut longer, departure.descriptor()) {
        (Some(longer), Some(handover)) => longer.with_handover(handover),
        _ => environment,
    };
    let result = call(environment);
    exec_failed(departure);
    result
}

/// An environment without this library, if the program would not start with it.
///
/// # Safety
/// As [`execute`].
unsafe fn environment_it_bears(
    target: Target,
    environment: *const *const c_char,
    scratch: Option<&mut Scratch>,
) -> Option<Environment> {
    let scratch = scratch?;
    // SAFETY: the caller's promise.
    unsafe {
        if breaks_on_library(target, environment, scratch) {
            Environment::without_library(environment, &mut scratch.path)
        } else {
            None
        }
    }
}

/// Memory for the inspection of the program; `None` when the program cannot be inspected: in a
/// confined process the needed system calls may be forbidden.
fn scratch() -> Option<Scratch> {
    match is_confined() {
        true => None,
        false => Scratch::new(),
    }
}

/// The `posix_spawn`s: libc executes the program without calling us.
macro_rules! spawns {
    ($($(#[$doc:meta])* $name:ident by $target:path;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            pid: *mut c_int,
            program: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: *const *const c_char,
            envp: *const *const c_char,
        ) -> c_int {
            // SAFETY: passed on with the caller's promises.
            unsafe {
                if !can_be_read($target(program), envp) {
                    before_spawn();
                    return real::$name(pid, program, actions, attributes, argv, envp);
                }
                let mut scratch = scratch();
                let shorter = environment_it_bears($target(program), envp, scratch.as_mut());
                let envp = shorter.as_ref().map_or(envp, Environment::as_ptr);
                before_spawn();
                let spawn = || real::$name(pid, program, actions, attributes, argv, envp);
                // After a change of directory by the file actions, the name may mean another
                // program.
                let is_sure = actions.is_null() || is_absolute(program);
                let followed = match scratch.as_mut() {
                    Some(scratch) if is_sure => {
                        follow($target(program), envp, Event::Spawn, scratch)
                    }
                    _ => Followed::NotWanted,
                };
                drop(scratch);
                match (spawn(), followed) {
                    (libc::EPERM | libc::EACCES, Followed::By(helper)) => {
                        helper.dismiss();
                        // As for `execute`.
                        spawn()
                    }
                    (0, _) => 0,
                    (error, Followed::By(helper)) => {
                        helper.dismiss();
                        error
                    }
                    (error, _) => error,
                }
            }
        }
    )*};
}

spawns! {
    /// `posix_spawn(3)`.
    posix_spawn by Target::Path;
    /// `posix_spawnp(3)`.
    posix_spawnp by Target::Name;
}

/// True for a path that begins at the root, and for a name that is searched for in `PATH`.
///
/// # Safety
/// It ends with NUL, if it is not null.
unsafe fn is_absolute(program: *const c_char) -> bool {
    if program.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let program = unsafe { core::ffi::CStr::from_ptr(program) }.to_bytes();
    program.starts_with(b"/") || !program.contains(&b'/')
}

/// `forkpty(3)`: libc puts a terminal at the child's standard descriptors without calling us.
#[unsafe(no_mangle)]
unsafe extern "C" fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const c_void,
    size: *const c_void,
) -> libc::pid_t {
    // SAFETY: passed on with the caller's promises.
    let result = unsafe { real::forkpty(terminal, name, settings, size) };
    if result != 0 {
        after_fork_in_parent(result.into());
    }
    if result == 0 {
        api::standard_descriptors_replaced();
    }
    result
}

/// `system(3)`: libc executes the shell without calling us.
#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    before_spawn();
    // SAFETY: passed on with the caller's promises.
    unsafe { real::system(command) }
}

/// `popen(3)`: as [`system`].
#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    before_spawn();
    // SAFETY: passed on with the caller's promises.
    unsafe { real::popen(command, mode) }
}

/// libc's own name for `popen`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: passed on with the caller's promises.
    unsafe { popen(command, mode) }
}

/// `popen` runs this on a stream that it has made: hooked as [`system`] is.
#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_proc_open(
    stream: *mut libc::FILE,
    command: *const c_char,
    mode: *const c_char,
) -> *mut libc::FILE {
    before_spawn();
    // SAFETY: passed on with the caller's promises.
    unsafe { real::_IO_proc_open(stream, command, mode) }
}

/// `wordexp(3)`: as [`system`], when the words hold a command.
#[unsafe(no_mangle)]
unsafe extern "C" fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
    /// wordexp.h: commands are refused.
    const WRDE_NOCMD: c_int = 1 << 2;
    if flags & WRDE_NOCMD == 0 && !words.is_null() {
        // SAFETY: a string, by the caller's promise.
        let words = unsafe { core::ffi::CStr::from_ptr(words) }.to_bytes();
        if words.contains(&b'`') || words.windows(2).any(|two| two == b"$(") {
            before_spawn();
        }
    }
    // SAFETY: passed on with the caller's promises.
    unsafe { real::wordexp(words, result, flags) }
}

/// The environment for calls that do not take one.
pub(crate) fn current_environment() -> *const *const c_char {
    toehold_freestanding::environment::variables()
}

/// `execve(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: passed on with the caller's promises, here and in the calls below.
    unsafe {
        execute(Target::Path(path), envp, |envp| {
            real::execve(path, argv, envp)
        })
    }
}

/// `execv(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: as above.
    unsafe { execve(path, argv, current_environment()) }
}

/// `execvpe(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(
    file: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        execute(Target::Name(file), envp, |envp| {
            real::execvpe(file, argv, envp)
        })
    }
}

/// `execvp(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: as above.
    unsafe { execvpe(file, argv, current_environment()) }
}

/// `fexecve(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(
    fd: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        execute(Target::Descriptor(fd), envp, |envp| {
            real::fexecve(fd, argv, envp)
        })
    }
}

/// `execveat(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    let target = Target::At(directory, path, flags);
    // SAFETY: as above.
    unsafe {
        execute(target, envp, |envp| {
            let arguments = (
                directory as usize,
                path as usize,
                argv as usize,
                envp as usize,
            );
            let (a, b, c, d) = arguments;
            real::syscall(libc::SYS_execveat, a, b, c, d, flags as usize, 0) as c_int
        })
    }
}

/// The calls that take the arguments one by one. The first arguments, which are in registers, are
/// stored on the stack directly below the others. The result is the array for the calls above.
#[cfg(target_arch = "x86_64")]
mod listed {
    use super::{c_char, c_int, current_environment, execve, execvp};

    /// System V AMD64 ABI, 3.2.3: six arguments in registers, the rest above the return address.
    macro_rules! listed {
        ($call:ident) => {
            core::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {call}",
                "pop rdx",
                "add rsp, 40",
                "push rdx",
                "ret",
                call = sym $call,
            )
        };
    }

    /// `execl(3)`.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn execl() -> c_int {
        listed!(by_path)
    }

    /// `execlp(3)`.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn execlp() -> c_int {
        listed!(execvp)
    }

    /// `execle(3)`.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn execle() -> c_int {
        listed!(with_environment)
    }

    unsafe extern "C" fn by_path(path: *const c_char, argv: *const *const c_char) -> c_int {
        // SAFETY: the caller of `execl` ended its arguments with a null pointer.
        unsafe { execve(path, argv, current_environment()) }
    }

    /// The environment follows the null pointer that ends the arguments.
    unsafe extern "C" fn with_environment(
        path: *const c_char,
        argv: *const *const c_char,
    ) -> c_int {
        let mut end = argv;
        // SAFETY: the caller of `execle` ended its arguments with a null pointer, and gave an
        // environment after it.
        unsafe {
            while !(*end).is_null() {
                end = end.add(1);
            }
            execve(path, argv, *end.add(1).cast())
        }
    }
}
