//! The functions that the library's hooks replace: the next definition after the hook, found in the
//! objects that the dynamic linker has loaded ([`objects::next`]). The hooks call these functions,
//! and not the system calls, so that cancellation points and other preloaded libraries go on
//! working. Without libc the corresponding system call is made instead.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use toehold_freestanding::elf::Name;
use toehold_freestanding::{errno, objects, syscall, waits};

/// A function of libc, which is looked up once.
struct Slot {
    found: AtomicPtr<c_void>,
    name: Name,
}

impl Slot {
    const fn new(name: &'static str) -> Slot {
        Slot {
            found: AtomicPtr::new(core::ptr::null_mut()),
            name: Name::of(name),
        }
    }

    #[inline]
    fn get(&self) -> Option<*mut c_void> {
        // Relaxed, here and below: every search finds the same address.
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            return self.find();
        }
        Some(found)
    }

    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        let found = objects::next(&self.name);
        self.found.store(found, Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }
}

/// Finds all functions while the process has one thread: a later look-up might run while the
/// dynamic linker changes its lists.
#[unsafe(link_section = ".text.startup")]
pub fn find_all() {
    for slot in slots::ALL {
        slot.find();
    }
    VFORK.find();
    errno::find();
    // Relaxed: there is one thread.
    PADS_LENGTHS.store(has_libc() && !is_glibc(), Ordering::Relaxed);
    CANCELLING.store(find_cancelling() as u8, Ordering::Relaxed);
}

/// Set where libc is musl. There the lengths in `msghdr` are 32 bits wide, with padding up to the
/// kernel's 64 that programs leave as it is (sendmsg.c).
static PADS_LENGTHS: AtomicBool = AtomicBool::new(false);

/// A length in a program's `msghdr`.
#[inline]
pub(crate) fn length(length: usize) -> usize {
    // Relaxed: set once, by the constructor.
    if PADS_LENGTHS.load(Ordering::Relaxed) {
        length as u32 as usize
    } else {
        length
    }
}

/// The form in which the program passes a message. That decides the message's form, and whether
/// libc may access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// By a function of libc, which may read and write the message as well as the kernel.
    Name,
    /// By system call number, in the kernel's form.
    Number,
}

impl Door {
    /// A length in the message.
    #[inline]
    pub(crate) fn length(self, length: usize) -> usize {
        match self {
            Door::Name => self::length(length),
            Door::Number => length,
        }
    }

    /// Relaxed: set once, by the constructor.
    fn is_past_libc(self) -> bool {
        self == Door::Number && PADS_LENGTHS.load(Ordering::Relaxed)
    }

    /// `recvmsg(2)`.
    ///
    /// # Safety
    /// As for the C function.
    #[inline]
    pub(crate) unsafe fn recvmsg(self, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the caller's promise.
        unsafe {
            match self.is_past_libc() {
                true => by_number(
                    libc::SYS_recvmsg,
                    &[fd as usize, message as usize, flags as usize],
                ) as _,
                false => recvmsg(fd, message, flags),
            }
        }
    }

    /// `recvmmsg(2)`.
    ///
    /// # Safety
    /// As for the C function.
    pub(crate) unsafe fn recvmmsg(
        self,
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int {
        let arguments = [
            fd as usize,
            messages as usize,
            count as usize,
            flags as usize,
        ];
        let [a, b, c, d] = arguments;
        // SAFETY: the caller's promise.
        unsafe {
            match self.is_past_libc() {
                true => by_number(libc::SYS_recvmmsg, &[a, b, c, d, timeout as usize]) as c_int,
                false => recvmmsg(fd, messages, count, flags, timeout),
            }
        }
    }

    /// `sendmmsg(2)`.
    ///
    /// # Safety
    /// As for the C function.
    pub(crate) unsafe fn sendmmsg(
        self,
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> c_int {
        let arguments = [
            fd as usize,
            messages as usize,
            count as usize,
            flags as usize,
        ];
        // SAFETY: the caller's promise.
        unsafe {
            match self.is_past_libc() {
                true => by_number(libc::SYS_sendmmsg, &arguments) as c_int,
                false => sendmmsg(fd, messages, count, flags),
            }
        }
    }

    /// `sendmsg(2)`.
    ///
    /// # Safety
    /// As for the C function.
    #[inline]
    pub(crate) unsafe fn sendmsg(self, fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the caller's promise.
        unsafe {
            match self.is_past_libc() {
                true => by_number(
                    libc::SYS_sendmsg,
                    &[fd as usize, message as usize, flags as usize],
                ) as _,
                false => sendmsg(fd, message, flags),
            }
        }
    }
}

/// True when that libc is glibc.
pub fn is_glibc() -> bool {
    slots::gnu_get_libc_version.get().is_some()
}

/// The way in which a thread is cancelled that sleeps in a function of libc's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cancelling {
    /// There is no libc, or none that is known.
    Unknown,
    /// glibc calls the functions of `_pthread_cleanup_push`.
    Calls,
    /// musl ends the sleep in a state of the thread.
    Ends,
}

/// A [`Cancelling`].
static CANCELLING: AtomicU8 = AtomicU8::new(Cancelling::Unknown as u8);

/// The way in which threads of this process are cancelled.
#[inline]
pub(crate) fn cancelling() -> Cancelling {
    // Relaxed: set once, by the constructor.
    match CANCELLING.load(Ordering::Relaxed) {
        value if value == Cancelling::Calls as u8 => Cancelling::Calls,
        value if value == Cancelling::Ends as u8 => Cancelling::Ends,
        _ => Cancelling::Unknown,
    }
}

fn find_cancelling() -> Cancelling {
    let has = |slots: [&Slot; 2]| slots.iter().all(|slot| slot.get().is_some());
    let calls = [&slots::_pthread_cleanup_push, &slots::_pthread_cleanup_pop];
    let states = [&slots::pthread_setcancelstate, &slots::pthread_testcancel];
    match has_libc() {
        true if is_glibc() && has(calls) => Cancelling::Calls,
        true if !is_glibc() && has(states) => Cancelling::Ends,
        _ => Cancelling::Unknown,
    }
}

/// True when the process has a libc, whose stdio makes its system calls past the library.
pub fn has_stdio() -> bool {
    slots::read.get().is_some()
}

/// True when the process has a libc, and the address of its `errno` is known.
pub fn has_libc() -> bool {
    slots::read.get().is_some() && errno::is_of_libc()
}

macro_rules! real {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $ret:ty
        $(= ($number:expr)($($value:expr),*))?;)*) => {
        #[allow(non_upper_case_globals)]
        mod slots {
            use super::Slot;
            $(pub(super) static $name: Slot = Slot::new(concat!(stringify!($name), "\0"));)*
            pub(super) static ALL: &[&Slot] = &[$(&$name),*];
        }
        $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C function.
        #[inline]
        #[allow(clippy::missing_safety_doc)]
        pub unsafe fn $name($($arg: $type),*) -> $ret {
            let Some(found) = slots::$name.get() else {
                $(
                // SAFETY: the system call takes these arguments; the caller answers for them.
                return unsafe { by_number($number, &[$($value as usize),*]) } as $ret;
                )?
                #[allow(unreachable_code, reason = "where there is a system call")]
                {
                    errno::set(libc::ENOSYS);
                    return Failure::FAILURE;
                }
            };
            // SAFETY: the symbol of this name has this signature; the caller answers for the
            // arguments.
            unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $ret>(found)($($arg),*) }
        }
        )*
    };
}

/// `vfork(2)`. It returns twice, so no function of Rust may call it.
static VFORK: Slot = Slot::new("vfork\0");

/// The address of libc's `vfork`, for a jump there; null without libc.
pub fn address_of_vfork() -> *mut c_void {
    VFORK.get().unwrap_or(core::ptr::null_mut())
}

/// The processor that this thread runs on, if libc can tell.
#[inline]
pub(crate) fn processor() -> Option<u32> {
    let found = slots::sched_getcpu.get()?;
    // SAFETY: libc's function of that name.
    let function = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(found) };
    u32::try_from(function()).ok()
}

/// A system call, with its error in `errno`.
///
/// # Safety
/// As for the system call.
#[cold]
unsafe fn by_number(number: c_long, arguments: &[usize]) -> isize {
    let arguments: [usize; 6] = core::array::from_fn(|n| arguments.get(n).copied().unwrap_or(0));
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    let result = unsafe {
        match may_wait(number, &arguments) {
            true => waits::call(number, &arguments),
            false => syscall::raw(number, a, b, c, d, e, f),
        }
    };
    match result {
        -4095..=-1 => {
            errno::set(-result as i32);
            -1
        }
        _ => result,
    }
}

/// True for the calls that end when their thread is cancelled: where a C library has cancellation
/// points, but for calls that are known not to wait.
fn may_wait(number: c_long, arguments: &[usize; 6]) -> bool {
    let waits = |flags: usize| flags as c_int & libc::MSG_DONTWAIT == 0;
    match number {
        libc::SYS_recvfrom | libc::SYS_sendto => waits(arguments[3]),
        libc::SYS_recvmsg | libc::SYS_sendmsg => waits(arguments[2]),
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2 => true,
        _ => [
            numbers::SYS_accept,
            numbers::SYS_poll,
            numbers::SYS_select,
            numbers::SYS_epoll_wait,
        ]
        .contains(&number),
    }
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

/// `cookie_io_functions_t` (fopencookie(3)).
#[repr(C)]
pub struct CookieFunctions {
    /// Reads.
    pub read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    /// Writes.
    pub write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    /// Moves the position.
    pub seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    /// Closes.
    pub close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// Calls that only some machines have.
mod numbers {
    #[cfg(target_arch = "x86_64")]
    pub(super) use libc::{
        SYS_accept, SYS_dup2, SYS_epoll_create, SYS_epoll_wait, SYS_poll, SYS_select,
    };

    /// On other machines: numbers that no call has.
    #[cfg(not(target_arch = "x86_64"))]
    mod none {
        use core::ffi::c_long;

        pub(in super::super) const SYS_accept: c_long = -1;
        pub(in super::super) const SYS_dup2: c_long = -1;
        pub(in super::super) const SYS_epoll_create: c_long = -1;
        pub(in super::super) const SYS_epoll_wait: c_long = -1;
        pub(in super::super) const SYS_poll: c_long = -1;
        pub(in super::super) const SYS_select: c_long = -1;
    }
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) use none::*;
}

/// Bytes of a signal mask as the kernel takes it.
const MASK_BYTES: usize = 8;

real! {
    /// `read(2)`.
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t
        = (libc::SYS_read)(fd, buffer, len);
    /// `write(2)`.
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t
        = (libc::SYS_write)(fd, buffer, len);
    /// `readv(2)`.
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        = (libc::SYS_readv)(fd, iov, count);
    /// `writev(2)`.
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        = (libc::SYS_writev)(fd, iov, count);
    /// `preadv2(2)`.
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        = (libc::SYS_preadv2)(fd, iov, count, offset, 0, flags);
    /// `pwritev2(2)`.
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        = (libc::SYS_pwritev2)(fd, iov, count, offset, 0, flags);
    /// `recv(2)`.
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t
        = (libc::SYS_recvfrom)(fd, buffer, len, flags, 0, 0);
    /// `send(2)`.
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t
        = (libc::SYS_sendto)(fd, buffer, len, flags, 0, 0);
    /// `recvfrom(2)`.
    recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t
        = (libc::SYS_recvfrom)(fd, buffer, len, flags, address, address_len);
    /// `sendto(2)`.
    sendto(
        fd: c_int,
        buffer: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t
        = (libc::SYS_sendto)(fd, buffer, len, flags, address, address_len);
    /// `recvmsg(2)`.
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t
        = (libc::SYS_recvmsg)(fd, message, flags);
    /// `sendmsg(2)`.
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t
        = (libc::SYS_sendmsg)(fd, message, flags);
    /// `recvmmsg(2)`.
    recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec
    ) -> c_int
        = (libc::SYS_recvmmsg)(fd, messages, count, flags, timeout);
    /// `sendmmsg(2)`.
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        = (libc::SYS_sendmmsg)(fd, messages, count, flags);
    /// `connect(2)`.
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int
        = (libc::SYS_connect)(fd, address, len);
    /// `accept(2)`.
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int
        = (numbers::SYS_accept)(fd, address, len);
    /// `socket(2)`.
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int
        = (libc::SYS_socket)(domain, kind, protocol);
    /// `accept4(2)`.
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        = (libc::SYS_accept4)(fd, address, len, flags);
    /// `bind(2)`.
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int
        = (libc::SYS_bind)(fd, address, len);
    /// `listen(2)`.
    listen(fd: c_int, backlog: c_int) -> c_int
        = (libc::SYS_listen)(fd, backlog);
    /// `shutdown(2)`.
    shutdown(fd: c_int, how: c_int) -> c_int
        = (libc::SYS_shutdown)(fd, how);
    /// `close(2)`.
    close(fd: c_int) -> c_int
        = (libc::SYS_close)(fd);
    /// `close_range(2)`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int
        = (libc::SYS_close_range)(first, last, flags);
    /// `dup(2)`.
    dup(fd: c_int) -> c_int
        = (libc::SYS_dup)(fd);
    /// `dup2(2)`.
    dup2(from: c_int, to: c_int) -> c_int
        = (numbers::SYS_dup2)(from, to);
    /// `dup3(2)`.
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int
        = (libc::SYS_dup3)(from, to, flags);
    /// `fcntl(2)`.
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int
        = (libc::SYS_fcntl)(fd, command, argument);
    /// `ioctl(2)`.
    ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int
        = (libc::SYS_ioctl)(fd, request, argument);
    /// `getsockname(2)`.
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int
        = (libc::SYS_getsockname)(fd, address, len);
    /// `getpeername(2)`.
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int
        = (libc::SYS_getpeername)(fd, address, len);
    /// `getsockopt(2)`.
    getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t
    ) -> c_int
        = (libc::SYS_getsockopt)(fd, level, name, value, len);
    /// `setsockopt(2)`.
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int
        = (libc::SYS_setsockopt)(fd, level, name, value, len);
    /// `poll(2)`.
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int
        = (numbers::SYS_poll)(fds, count, timeout_ms);
    /// `ppoll(2)`.
    ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int
        = (libc::SYS_ppoll)(fds, count, timeout, mask, MASK_BYTES);
    /// `select(2)`.
    select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int
        = (numbers::SYS_select)(count, read, write, except, timeout);
    /// `pselect(2)`.
    pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int
        = (libc::SYS_pselect6)(count, read, write, except, timeout, &[mask as usize, MASK_BYTES] as *const usize);
    /// `epoll_create(2)`.
    epoll_create(size: c_int) -> c_int
        = (numbers::SYS_epoll_create)(size);
    /// `epoll_create1(2)`.
    epoll_create1(flags: c_int) -> c_int
        = (libc::SYS_epoll_create1)(flags);
    /// `epoll_ctl(2)`.
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int
        = (libc::SYS_epoll_ctl)(epoll, operation, fd, event);
    /// `epoll_wait(2)`.
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int
        = (numbers::SYS_epoll_wait)(epoll, events, count, timeout_ms);
    /// `epoll_pwait(2)`.
    epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout_ms: c_int,
        mask: *const sigset_t
    ) -> c_int
        = (libc::SYS_epoll_pwait)(epoll, events, count, timeout_ms, mask, MASK_BYTES);
    /// `epoll_pwait2(2)`.
    epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int
        = (libc::SYS_epoll_pwait2)(epoll, events, count, timeout, mask, MASK_BYTES);
    /// `sendfile(2)`.
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        = (libc::SYS_sendfile)(out, input, offset, count);
    /// `splice(2)`.
    splice(
        input: c_int,
        input_offset: *mut off_t,
        out: c_int,
        out_offset: *mut off_t,
        len: size_t,
        flags: c_uint
    ) -> ssize_t
        = (libc::SYS_splice)(input, input_offset, out, out_offset, len, flags);
    /// `sched_getcpu(3)`.
    sched_getcpu() -> c_int;
    /// `fileno(3)`.
    fileno(stream: *mut libc::FILE) -> c_int;
    /// `fopencookie(3)`.
    fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions
    ) -> *mut libc::FILE;
    /// A function that only glibc has.
    gnu_get_libc_version() -> *mut c_char;
    /// `vsnprintf(3)`.
    vsnprintf(buffer: *mut c_char, len: size_t, format: *const c_char, list: *mut c_void) -> c_int;
    /// `malloc(3)`.
    malloc(len: size_t) -> *mut c_void;
    /// `calloc(3)`.
    calloc(count: size_t, len: size_t) -> *mut c_void;
    /// `free(3)`.
    free(memory: *mut c_void) -> ();
    /// `pthread_create(3)`.
    pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: extern "C" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void
    ) -> c_int;
    /// `pthread_detach(3)`.
    pthread_detach(thread: libc::pthread_t) -> c_int;
    /// `pthread_cancel(3)`.
    pthread_cancel(thread: libc::pthread_t) -> c_int;
    /// `pthread_testcancel(3)`.
    pthread_testcancel() -> ();
    /// `pthread_setcancelstate(3)`.
    pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    /// `pthread_setcanceltype(3)`.
    pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    /// The first half of `pthread_cleanup_push(3)`, as glibc and musl have it.
    _pthread_cleanup_push(
        buffer: *mut c_void,
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void
    ) -> ();
    /// `pthread_cleanup_pop(3)`.
    _pthread_cleanup_pop(buffer: *mut c_void, executes: c_int) -> ();
    /// The end of glibc's `_chk` functions when a buffer is too small.
    __chk_fail() -> ();
    /// `atexit(3)`, as an object with a handle of its own calls it.
    __cxa_atexit(
        handler: extern "C" fn(),
        argument: *mut c_void,
        object: *mut c_void
    ) -> c_int;
    /// `at_quick_exit(3)`, by glibc's name.
    __cxa_at_quick_exit(handler: extern "C" fn(), object: *mut c_void) -> c_int;
    /// `at_quick_exit(3)`, by musl's name.
    at_quick_exit(handler: extern "C" fn()) -> c_int;
    /// `pthread_atfork(3)`, by glibc's name.
    __register_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
        object: *mut c_void
    ) -> c_int;
    /// `pthread_atfork(3)`, by musl's name.
    pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>
    ) -> c_int;
    /// `dl_iterate_phdr(3)`.
    dl_iterate_phdr(
        look: unsafe extern "C" fn(*mut libc::dl_phdr_info, size_t, *mut c_void) -> c_int,
        data: *mut c_void
    ) -> c_int;
    /// `dlopen(3)`.
    dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    /// `syscall(2)`.
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long
        = (number)(a, b, c, d, e, f);
    /// `mlockall(2)`.
    mlockall(flags: c_int) -> c_int
        = (libc::SYS_mlockall)(flags);
    /// `munlockall(2)`.
    munlockall() -> c_int
        = (libc::SYS_munlockall)();
    /// `prctl(2)`.
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int
        = (libc::SYS_prctl)(option, a, b, c, d);
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
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int
        = (libc::SYS_execve)(path, argv, envp);
}
