//! The functions that the library's hooks replace: the next definition after the hook, found once
//! with `dlsym(RTLD_NEXT)`. The hooks call these functions, and not the system calls, so that
//! cancellation points and other preloaded libraries go on working.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

fn resolve(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = slot.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: `name` is NUL-terminated.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // Relaxed: every resolver finds the same address.
    slot.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C function.
        #[inline]
        #[allow(clippy::missing_safety_doc)]
        pub unsafe fn $name($($arg: $type),*) -> $ret {
            static SLOT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name with a NUL"),
            };
            let found = resolve(&SLOT, NAME);
            if found.is_null() {
                // SAFETY: errno is this thread's own.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                return crate::real::Failure::FAILURE;
            }
            // SAFETY: the symbol of this name has this signature; the caller answers for the
            // arguments.
            unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $ret>(found)($($arg),*) }
        }
    )*};
}

/// The result of a call that cannot be made at all.
pub trait Failure {
    /// That value.
    const FAILURE: Self;
}
impl Failure for c_int {
    const FAILURE: c_int = -1;
}
impl Failure for c_long {
    const FAILURE: c_long = -1;
}
impl Failure for ssize_t {
    const FAILURE: ssize_t = -1;
}
impl<T> Failure for *mut T {
    const FAILURE: *mut T = core::ptr::null_mut();
}
impl Failure for usize {
    /// `SIG_ERR`.
    const FAILURE: usize = usize::MAX;
}
impl Failure for () {
    const FAILURE: () = ();
}

real! {
    /// `read(2)`.
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    /// `write(2)`.
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    /// `readv(2)`.
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    /// `writev(2)`.
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    /// `preadv2(2)`.
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    /// `pwritev2(2)`.
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    /// `recv(2)`.
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    /// `send(2)`.
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    /// `recvfrom(2)`.
    recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t;
    /// `sendto(2)`.
    sendto(
        fd: c_int,
        buffer: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t;
    /// `recvmsg(2)`.
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    /// `sendmsg(2)`.
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    /// `recvmmsg(2)`.
    recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec
    ) -> c_int;
    /// `sendmmsg(2)`.
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    /// `connect(2)`.
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    /// `accept(2)`.
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    /// `accept4(2)`.
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    /// `bind(2)`.
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    /// `listen(2)`.
    listen(fd: c_int, backlog: c_int) -> c_int;
    /// `shutdown(2)`.
    shutdown(fd: c_int, how: c_int) -> c_int;
    /// `close(2)`.
    close(fd: c_int) -> c_int;
    /// `close_range(2)`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    /// `dup(2)`.
    dup(fd: c_int) -> c_int;
    /// `dup2(2)`.
    dup2(from: c_int, to: c_int) -> c_int;
    /// `dup3(2)`.
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    /// `fcntl(2)`.
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    /// `ioctl(2)`.
    ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    /// `getsockname(2)`.
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    /// `getpeername(2)`.
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    /// `getsockopt(2)`.
    getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t
    ) -> c_int;
    /// `setsockopt(2)`.
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    /// `poll(2)`.
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    /// `ppoll(2)`.
    ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    /// `select(2)`.
    select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    /// `pselect(2)`.
    pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    /// `epoll_create(2)`.
    epoll_create(size: c_int) -> c_int;
    /// `epoll_create1(2)`.
    epoll_create1(flags: c_int) -> c_int;
    /// `epoll_ctl(2)`.
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    /// `epoll_wait(2)`.
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
    /// `epoll_pwait(2)`.
    epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout_ms: c_int,
        mask: *const sigset_t
    ) -> c_int;
    /// `epoll_pwait2(2)`.
    epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    /// `sendfile(2)`.
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    /// `splice(2)`.
    splice(
        input: c_int,
        input_offset: *mut off_t,
        out: c_int,
        out_offset: *mut off_t,
        len: size_t,
        flags: c_uint
    ) -> ssize_t;
    /// `syscall(2)`.
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    /// `mlockall(2)`.
    mlockall(flags: c_int) -> c_int;
    /// `munlockall(2)`.
    munlockall() -> c_int;
    /// `prctl(2)`.
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    /// `aio_read(3)`.
    aio_read(request: *mut c_void) -> c_int;
    /// `aio_write(3)`.
    aio_write(request: *mut c_void) -> c_int;
    /// `lio_listio(3)`.
    lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int;
    /// `sigaction(2)`.
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    /// `signal(2)`.
    signal(signal: c_int, handler: usize) -> usize;
    /// `bsd_signal(3)`.
    bsd_signal(signal: c_int, handler: usize) -> usize;
    /// `ssignal(3)`.
    ssignal(signal: c_int, handler: usize) -> usize;
    /// `sysv_signal(3)`.
    sysv_signal(signal: c_int, handler: usize) -> usize;
    /// `sysv_signal` by libc's own name.
    __sysv_signal(signal: c_int, handler: usize) -> usize;
    /// `sigset(3)`.
    sigset(signal: c_int, handler: usize) -> usize;
    /// `siginterrupt(3)`.
    siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
    /// `_Fork(3)`.
    #[allow(non_snake_case)]
    _Fork() -> c_int;
    /// `clone(2)`.
    clone(
        function: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent: usize,
        tls: usize,
        child: usize
    ) -> c_int;
    /// `daemon(3)`.
    daemon(keeps_directory: c_int, keeps_descriptors: c_int) -> c_int;
    /// `login_tty(3)`.
    login_tty(fd: c_int) -> c_int;
    /// `fclose(3)`.
    fclose(stream: *mut libc::FILE) -> c_int;
    /// `freopen(3)`.
    freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    /// `freopen64(3)`.
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    /// `fdopen(3)`.
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    /// `posix_spawn_file_actions_adddup2(3)`.
    posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int;
    /// `system(3)`.
    system(command: *const c_char) -> c_int;
    /// `popen(3)`.
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    /// The second half of libc's `popen`.
    #[allow(non_snake_case)]
    _IO_proc_open(
        stream: *mut libc::FILE,
        command: *const c_char,
        mode: *const c_char
    ) -> *mut libc::FILE;
    /// `wordexp(3)`.
    wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int;
    /// `fork(2)`.
    fork() -> c_int;
    /// `forkpty(3)`.
    forkpty(
        terminal: *mut c_int,
        name: *mut c_char,
        settings: *const c_void,
        size: *const c_void
    ) -> c_int;
    /// `posix_spawn(3)`.
    posix_spawn(
        pid: *mut c_int,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int;
    /// `posix_spawnp(3)`.
    posix_spawnp(
        pid: *mut c_int,
        file: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int;
    /// `execvpe(3)`.
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    /// `fexecve(3)`.
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    /// `execve(2)`.
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
}
