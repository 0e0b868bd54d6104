//! `syscall(2)`: socket calls by number run the same code as those by name.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong};

use toehold_freestanding::errno;
use toehold_sockets::system::faults;
use toehold_sockets::system::real::{self, Door};
use toehold_sockets::{api, ending, leave_connecting_to_kernel};

use crate::bpf::before_bpf;
use crate::confinement::{
    before_joining, before_limit, before_namespaces, before_prctl, before_seccomp, before_unsharing,
};
use crate::fork::forked;
use crate::process::execute;
use crate::program::Target;

/// `syscall(number, ...)`. Variadic in C. On every supported ABI the six arguments are passed like
/// fixed ones; reading more arguments than were passed gives arbitrary values and does no harm.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: passed on with the caller's promises.
    unsafe { call(number, a, b, c, d, e, f) }
}

/// A system call as [`syscall`] makes it: -1 with `errno` on an error.
///
/// The body is one table, with an arm for each call that the library handles.
///
/// # Safety
/// As for the system call.
#[allow(clippy::too_many_arguments)]
#[unsafe(link_section = ".text.startup")]
pub(crate) unsafe fn call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let fd = a as c_int;
    // SAFETY: every arm passes the arguments on, in the system call's order, with the caller's
    // promises.
    unsafe {
        match number {
            libc::SYS_read => api::read(fd, b as _, c) as c_long,
            libc::SYS_write => api::write(fd, b as _, c) as c_long,
            libc::SYS_readv => api::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_writev => api::writev(fd, b as _, c as c_int) as c_long,
            // On 64-bit machines the first half holds the whole offset (`pos_from_hilo`,
            // fs/read_write.c).
            libc::SYS_preadv2 => api::preadv2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
            libc::SYS_pwritev2 => {
                api::pwritev2(fd, b as _, c as c_int, d as _, f as c_int) as c_long
            }
            libc::SYS_recvfrom => {
                api::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long
            }
            libc::SYS_sendto => {
                api::sendto(fd, b as _, c, d as c_int, e as _, f as libc::socklen_t) as c_long
            }
            // (A function of libc may read a message before the kernel does, and write it
            // afterwards.)
            libc::SYS_recvmsg | libc::SYS_recvmmsg | libc::SYS_sendmmsg
                if api::is_kernels(fd) || !faults::may_read(b as *const libc::msghdr) =>
            {
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_sendmsg if !api::may_read_message(fd, b as _, c as c_int) => {
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_recvmsg => api::recvmsg_by(Door::Number, fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmsg => api::sendmsg_by(Door::Number, fd, b as _, c as c_int) as c_long,
            libc::SYS_recvmmsg => {
                api::recvmmsg_by(Door::Number, fd, b as _, c as c_uint, d as c_int, e as _).into()
            }
            libc::SYS_sendmmsg => {
                api::sendmmsg_by(Door::Number, fd, b as _, c as c_uint, d as c_int).into()
            }
            libc::SYS_socket => api::socket(fd, b as c_int, c as c_int).into(),
            libc::SYS_connect => api::connect(fd, b as _, c as libc::socklen_t).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_accept => api::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 if is_flags(d, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) => {
                api::accept4(fd, b as _, c as _, d as c_int).into()
            }
            libc::SYS_getsockname => api::getsockname(fd, b as _, c as _).into(),
            libc::SYS_getpeername => api::getpeername(fd, b as _, c as _).into(),
            libc::SYS_shutdown => api::shutdown(fd, b as c_int).into(),
            libc::SYS_close => api::close(fd).into(),
            libc::SYS_close_range => api::close_range(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_dup => api::dup(fd).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => api::dup2(fd, b as c_int).into(),
            libc::SYS_dup3 if is_flags(c, libc::O_CLOEXEC) => {
                api::dup3(fd, b as c_int, c as c_int).into()
            }
            libc::SYS_fcntl => api::fcntl(fd, b as c_int, c).into(),
            libc::SYS_ioctl => api::ioctl(fd, b as c_ulong, c).into(),
            libc::SYS_getsockopt => {
                api::getsockopt(fd, b as c_int, c as c_int, d as _, e as _).into()
            }
            libc::SYS_setsockopt => {
                api::setsockopt(fd, b as c_int, c as c_int, d as _, e as libc::socklen_t).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => api::poll(a as _, b as libc::nfds_t, c as c_int).into(),
            libc::SYS_ppoll if faults::may_read(c as *const libc::timespec) && is_mask(d, e) => {
                api::ppoll(a as _, b as libc::nfds_t, c as _, d as _).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select
                if faults::may_read(e as *const libc::timeval) && !api::is_refused(e as _) =>
            {
                api::select(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_pselect6
                if faults::may_read(e as *const libc::timespec)
                    && faults::may_read(f as *const [usize; 2]) =>
            {
                // The pointer leads to the mask's address and size (pselect6(2)).
                let mask = (f as *const [usize; 2]).as_ref();
                let [mask, size] = mask.map_or([0; 2], |mask| *mask);
                match is_mask(mask, size) {
                    true => api::pselect(fd, b as _, c as _, d as _, e as _, mask as _).into(),
                    false => real::syscall(number, a, b, c, d, e, f),
                }
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create if fd > 0 => api::epoll_create(fd).into(),
            libc::SYS_epoll_create1 => api::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => api::epoll_ctl(fd, b as c_int, c as c_int, d as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => api::epoll_wait(fd, b as _, c as c_int, d as c_int).into(),
            libc::SYS_epoll_pwait if is_mask(e, f) => {
                api::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _).into()
            }
            libc::SYS_epoll_pwait2 if is_mask(e, f) => {
                api::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _).into()
            }
            libc::SYS_sendfile => api::sendfile(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_splice => {
                api::splice(fd, b as _, c as c_int, d as _, e, f as c_uint) as c_long
            }
            libc::SYS_mlockall => api::mlockall(fd).into(),
            libc::SYS_munlockall => api::munlockall().into(),
            libc::SYS_prctl => {
                before_prctl(fd, b, c);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_seccomp => {
                before_seccomp(a, b, c);
                real::syscall(number, a, b, c, d, e, f)
            }
            // libc has no function for it.
            libc::SYS_landlock_restrict_self => {
                leave_connecting_to_kernel();
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_bpf => {
                before_bpf(a, b, c);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_bind => api::bind(fd, b as _, c as libc::socklen_t).into(),
            libc::SYS_listen => api::listen(fd, b as c_int).into(),
            libc::SYS_setrlimit => {
                before_limit(0, a as c_uint, b as _);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_prlimit64 => {
                before_limit(fd, b as c_uint, c as _);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_unshare => {
                before_unsharing(a as c_int);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_setns => {
                before_joining(b as c_int);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_clone if a & libc::CLONE_VM as usize == 0 => {
                before_namespaces(a as c_int);
                forked(|| real::syscall(number, a, b, c, d, e, f))
            }
            libc::SYS_clone3 => match Clone3::of(a, b) {
                Some(Clone3 { flags, .. }) if flags & libc::CLONE_VM as u64 == 0 => {
                    before_namespaces(flags as c_int);
                    forked(|| real::syscall(number, a, b, c, d, e, f))
                }
                _ => real::syscall(number, a, b, c, d, e, f),
            },
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => forked(|| real::syscall(number, a, b, c, d, e, f)),
            libc::SYS_execve => {
                let by_number = |envp: *const *const c_char| {
                    real::syscall(number, a, b, envp as usize, d, e, f) as c_int
                };
                execute(Target::Path(a as _), c as _, by_number).into()
            }
            libc::SYS_execveat => {
                let target = Target::At(fd, b as _, e as c_int);
                let by_number = |envp: *const *const c_char| {
                    real::syscall(number, a, b, c, envp as usize, e, f) as c_int
                };
                execute(target, d as _, by_number).into()
            }
            libc::SYS_io_submit => {
                leave_to_kernel(b, c as *const *const KernelRequest);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_io_uring_setup => api::io_uring_setup(a as c_uint, b as _),
            libc::SYS_io_uring_enter => {
                api::io_uring_enter(fd, b as c_uint, c as c_uint, d as c_uint, e, f)
            }
            libc::SYS_io_uring_register => {
                api::io_uring_register(fd, b as c_uint, c as _, d as c_uint)
            }
            libc::SYS_rt_sigaction => {
                if !faults::is_concerned(fd) {
                    return real::syscall(number, a, b, c, d, e, f);
                }
                let answer = faults::sigaction_by_number(fd, b as _, c as _, d);
                if answer < 0 {
                    errno::set(-answer as i32);
                    return -1;
                }
                answer as c_long
            }
            libc::SYS_exit_group => {
                ending();
                real::syscall(number, a, b, c, d, e, f)
            }
            _ => real::syscall(number, a, b, c, d, e, f),
        }
    }
}

/// False for a flag that the kernel refuses. musl's functions assume that such flags are for a
/// newer kernel, and go on without them.
fn is_flags(flags: usize, known: c_int) -> bool {
    flags as c_int & !known == 0
}

/// False for a signal mask without the kernel's size: the kernel refuses the call.
fn is_mask(mask: usize, size: usize) -> bool {
    const MASK_BYTES: usize = 8;
    mask == 0 || size == MASK_BYTES
}

/// True for the calls that [`call`] does not simply pass on.
pub(crate) const fn is_of_interest(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(
        number,
        libc::SYS_accept
            | libc::SYS_dup2
            | libc::SYS_poll
            | libc::SYS_select
            | libc::SYS_epoll_create
            | libc::SYS_epoll_wait
    ) {
        return true;
    }
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_recvmsg
            | libc::SYS_sendmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendmmsg
            | libc::SYS_socket
            | libc::SYS_connect
            | libc::SYS_accept4
            | libc::SYS_getsockname
            | libc::SYS_getpeername
            | libc::SYS_shutdown
            | libc::SYS_close
            | libc::SYS_close_range
            | libc::SYS_dup
            | libc::SYS_dup3
            | libc::SYS_fcntl
            | libc::SYS_ioctl
            | libc::SYS_getsockopt
            | libc::SYS_setsockopt
            | libc::SYS_ppoll
            | libc::SYS_pselect6
            | libc::SYS_epoll_create1
            | libc::SYS_epoll_ctl
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_mlockall
            | libc::SYS_munlockall
            | libc::SYS_prctl
            | libc::SYS_seccomp
            | libc::SYS_landlock_restrict_self
            | libc::SYS_bpf
            | libc::SYS_bind
            | libc::SYS_listen
            | libc::SYS_setrlimit
            | libc::SYS_prlimit64
            | libc::SYS_unshare
            | libc::SYS_setns
            | libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_io_submit
            | libc::SYS_io_uring_setup
            | libc::SYS_io_uring_enter
            | libc::SYS_io_uring_register
            | libc::SYS_rt_sigaction
    )
}

/// The start of `struct iocb` (include/uapi/linux/aio_abi.h).
#[repr(C)]
struct KernelRequest {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    fildes: c_int,
}

/// The kernel is going to read and write these descriptors by itself.
unsafe fn leave_to_kernel(count: usize, requests: *const *const KernelRequest) {
    // The kernel takes the requests before the first bad pointer. Without connections nothing is to
    // be done.
    for n in 0..count {
        let at = requests.wrapping_add(n);
        if at.is_null() || !faults::may_read(at) {
            return;
        }
        // SAFETY: it was looked at, and it is the caller's.
        let request = unsafe { at.read_unaligned() };
        if request.is_null() || !faults::may_read(request) {
            return;
        }
        // SAFETY: as above.
        api::passing_on(unsafe { request.read_unaligned() }.fildes);
    }
}

/// The part of `clone3(2)`'s arguments that matters here.
pub(crate) struct Clone3 {
    pub(crate) flags: u64,
    pub(crate) stack: u64,
}

impl Clone3 {
    /// `None` when the kernel refuses the arguments. The kernel is asked whether they can be read,
    /// because the process may have no fault handlers.
    pub(crate) fn of(arguments: usize, bytes: usize) -> Option<Clone3> {
        /// Number of words in the first version (`CLONE_ARGS_SIZE_VER0`), and the index of the
        /// stack's word.
        const WORDS: usize = 8;
        const STACK: usize = 5;
        const BYTES_MIN: usize = WORDS * size_of::<u64>();
        let can_read = |at: usize| faults::kernel_can_read(arguments.wrapping_add(at));
        if bytes < BYTES_MIN || !can_read(0) || !can_read(BYTES_MIN - 1) {
            return None;
        }
        // SAFETY: they are there, and the caller's.
        let word = |n| unsafe { (arguments as *const u64).add(n).read_unaligned() };
        Some(Clone3 {
            flags: word(0),
            stack: word(STACK),
        })
    }
}
