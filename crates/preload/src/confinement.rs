//! The calls with which a program restricts itself (seccomp(2)), or moves its children to another
//! pid namespace: the library leaves the process before such a call. When a thread changes its
//! network namespace or gives up rights (landlock(7)), short connections stay on the kernel from
//! then on. When a thread gets its own table of descriptors, the library leaves the process, too,
//! and when the process limits itself to the descriptors that it has (getrlimit(2)).
//!
//! Not every such call sets a filter. When libseccomp is loaded or first used, it probes the
//! kernel's abilities with calls that must fail; container engines and systemd's programs do this.
//! A program may also try to set a filter without having the right. For these calls the library
//! stays.

use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;

use libc::{pid_t, rlimit};
use toehold_freestanding::call;
use toehold_sockets::system::faults;
use toehold_sockets::system::real;
use toehold_sockets::{
    confine, has_filters, is_started, leave_connecting_to_kernel, leave_to_namespaces,
    leave_to_own_descriptors, leave_without_descriptors, may_confine,
};

use crate::tracer;

/// `prctl(2)`. Variadic in C; the optional arguments are passed like fixed ones.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_prctl(option, a, b);
    // SAFETY: passed on with the caller's promises.
    unsafe { real::prctl(option, a, b, c, d) }
}

/// `prctl(2)` is about to be called.
pub(crate) fn before_prctl(option: c_int, value: usize, filter: usize) {
    match option {
        libc::PR_SET_SECCOMP if is_started() && prctl_confines(value, filter) => confine(),
        libc::PR_SET_PTRACER => tracer::is_named(value),
        _ => {}
    }
}

/// `seccomp(2)`, which has no function in libc, is about to be called.
pub(crate) fn before_seccomp(operation: usize, flags: usize, filter: usize) {
    // After the library has left, a filter may forbid the library's own system calls.
    if is_started() && seccomp_confines(operation, flags, filter) {
        confine();
    }
}

/// False when the kernel will refuse the call: it has two modes, and a process with filters may
/// only add a filter.
fn prctl_confines(mode: usize, filter: usize) -> bool {
    match mode as c_uint {
        libc::SECCOMP_MODE_STRICT => !has_filters(),
        libc::SECCOMP_MODE_FILTER => filter_confines(filter),
        _ => false,
    }
}

/// As [`prctl_confines`], but the strict mode takes no argument (`EINVAL`).
fn seccomp_confines(operation: usize, flags: usize, filter: usize) -> bool {
    // The kernel takes 32 bits of both.
    match (operation as c_uint, flags as c_uint) {
        (libc::SECCOMP_SET_MODE_STRICT, 0) => filter == 0 && !has_filters(),
        (libc::SECCOMP_SET_MODE_FILTER, _) => filter_confines(filter),
        _ => false,
    }
}

/// False for a filter that the kernel refuses in any case (`seccomp_prepare_filter` in
/// kernel/seccomp.c, `bpf_check_classic` in net/core/filter.c): the caller lacks the right to set
/// one, or its list cannot be read, is empty or too long, or does not end with a return.
fn filter_confines(filter: usize) -> bool {
    /// `BPF_MAXINSNS`.
    const INSTRUCTIONS_MAX: u16 = 4096;
    const LAST: [u32; 2] = [libc::BPF_RET | libc::BPF_K, libc::BPF_RET | libc::BPF_A];
    // SAFETY: any bytes are a program, and an instruction.
    let last = unsafe {
        faults::seen::<libc::sock_fprog>(filter)
            .filter(|program| (1..=INSTRUCTIONS_MAX).contains(&program.len))
            .and_then(|program| {
                let last = program.filter.wrapping_add(usize::from(program.len) - 1);
                faults::seen::<libc::sock_filter>(last as usize)
            })
    };
    last.is_some_and(|last| LAST.contains(&last.code.into())) && may_confine()
}

/// `unshare(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    before_unsharing(flags);
    // SAFETY: no memory is involved.
    unsafe { real::syscall(libc::SYS_unshare, flags as usize, 0, 0, 0, 0, 0) as c_int }
}

/// `setns(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    before_joining(kind);
    // SAFETY: no memory is involved.
    unsafe { real::syscall(libc::SYS_setns, fd as usize, kind as usize, 0, 0, 0, 0) as c_int }
}

/// `setrlimit(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(kind: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: passed on with the caller's promises.
    unsafe { prlimit(0, kind, new, null_mut()) }
}

/// `setrlimit(2)`. On 64-bit machines both structures are the same.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(kind: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: as above.
    unsafe { prlimit(0, kind, new, null_mut()) }
}

/// `prlimit(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit(
    process: pid_t,
    kind: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    before_limit(process, kind, new);
    let (process, kind) = (process as usize, kind as usize);
    let (new, old) = (new as usize, old as usize);
    // SAFETY: as above.
    unsafe { real::syscall(libc::SYS_prlimit64, process, kind, new, old, 0, 0) as c_int }
}

/// As [`prlimit`] and [`setrlimit64`].
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit64(
    process: pid_t,
    kind: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: as above.
    unsafe { prlimit(process, kind, new, old) }
}

/// A limit of a process (0: of this one) is about to be set to `new`, unless that is null.
pub(crate) fn before_limit(process: pid_t, kind: c_uint, new: *const rlimit) {
    if kind != libc::RLIMIT_NOFILE || !is_started() {
        return;
    }
    // SAFETY: no memory is involved.
    let is_ours = process == 0 || unsafe { call!(SYS_getpid) } == process as isize;
    // SAFETY: any bytes are a limit.
    if let Some(new) = unsafe { faults::seen::<rlimit>(new as usize) }
        && is_ours
    {
        leave_without_descriptors(new.rlim_cur);
    }
}

/// A child in new namespaces (`flags`: `CLONE_NEW*`) is about to be made. The child gets no parked
/// carriers, and this process stays in its network namespace.
pub(crate) fn before_namespaces(flags: c_int) {
    if flags & libc::CLONE_NEWPID != 0 {
        leave_to_namespaces();
    }
}

/// `unshare(2)` is about to be called.
pub(crate) fn before_unsharing(flags: c_int) {
    before_namespaces(flags);
    if flags & libc::CLONE_FILES != 0 {
        leave_to_own_descriptors();
    }
    if flags & libc::CLONE_NEWNET != 0 {
        leave_connecting_to_kernel();
    }
}

/// `setns(2)` is about to be called. With `kind` 0 only the descriptor tells the kind of namespace.
pub(crate) fn before_joining(kind: c_int) {
    if kind == 0 || kind & libc::CLONE_NEWPID != 0 {
        leave_to_namespaces();
    } else if kind & libc::CLONE_NEWNET != 0 {
        leave_connecting_to_kernel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_the_kernel_refuses_sets_no_filter() {
        const FILTER: usize = libc::SECCOMP_SET_MODE_FILTER as usize;
        const STRICT: usize = libc::SECCOMP_SET_MODE_STRICT as usize;
        const AVAILABLE: usize = libc::SECCOMP_GET_ACTION_AVAIL as usize;
        const UNKNOWN: usize = 7;
        // In a separate thread, because the setting cannot be undone.
        std::thread::spawn(|| {
            // SAFETY: arithmetic on numbers.
            let statement = |code: u32| unsafe { libc::BPF_STMT(code as u16, 0) };
            let mut list = [
                statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS),
                statement(libc::BPF_RET | libc::BPF_K),
            ];
            let filter = list.as_mut_ptr();
            let program = |len| libc::sock_fprog { len, filter };
            let address = |program: &libc::sock_fprog| (&raw const *program) as usize;
            let (good, no_end, empty, long) = (program(2), program(1), program(0), program(4097));
            // SAFETY: plain system calls.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            }
            assert_eq!(seccomp_confines(STRICT, 0, 0), !has_filters());
            assert!(!seccomp_confines(STRICT, 1, 0));
            assert!(!seccomp_confines(STRICT, 0, 0x1000));
            assert!(!seccomp_confines(AVAILABLE, 0, address(&good)));
            for flags in [0, 1] {
                assert!(seccomp_confines(FILTER, flags, address(&good)));
                for bad in [0, 8, address(&no_end), address(&empty), address(&long)] {
                    assert!(!seccomp_confines(FILTER, flags, bad));
                    assert!(!prctl_confines(libc::SECCOMP_MODE_FILTER as usize, bad));
                }
            }
            assert!(prctl_confines(
                libc::SECCOMP_MODE_FILTER as usize,
                address(&good)
            ));
            assert!(!prctl_confines(UNKNOWN, address(&good)));
        })
        .join()
        .expect("no panic");
    }
}
