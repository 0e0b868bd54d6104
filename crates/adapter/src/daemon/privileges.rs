//! The privileges of the system adapter: three capabilities, and the system calls that it makes.
//!
//! It stays user 0, because the library trusts an adapter of root. Without capabilities, user 0
//! still owns root's files, but has no other rights of root.
//!
//! The filter for system calls (seccomp(2)) is set when everything is open. It refuses unlisted
//! calls with `EPERM`. So the adapter cannot start a process, change its user, trace a process or
//! make a network connection. It can open files only to read them, and cannot rename or remove
//! files. It cannot load a program into the kernel, but runs the one that it has loaded before
//! ([`crate::facts`]).

use std::io;
use toehold_link::bpf::BPF_PROG_TEST_RUN;

/// The capabilities that it keeps, by their numbers in include/uapi/linux/capability.h:
/// - `CAP_DAC_READ_SEARCH` and `CAP_SYS_PTRACE` (reading only, see the filter) for `/proc/PID/fd`
///   and `/proc/PID/maps`: which process of a family still holds a connection, and its addresses
///   for `toehold status`;
/// - `CAP_SYS_RESOURCE`: descriptors that one client leaves unread in its socket count against our
///   user, and would prevent us from sending any to other clients (`too_many_unix_fds` in the
///   kernel).
const KEPT: [u32; 3] = [2, 19, 24];
/// `CAP_LAST_CAP` is lower, and will be for a while: the masks have 64 bits.
const CAPABILITIES_MAX: u32 = 64;

/// Gives up all capabilities except [`KEPT`], for good. Missing ones are no error: root in a
/// container may have fewer.
///
/// # Errors
/// The errors of capget(2) and capset(2).
pub(super) fn keep_needed() -> io::Result<()> {
    for capability in (0..CAPABILITIES_MAX).filter(|number| !KEPT.contains(number)) {
        // SAFETY: plain system call. It fails for numbers that the kernel does not know; without
        // `CAP_SETPCAP` it fails for all, and the bounding set matters only at an `execve`.
        unsafe {
            libc::prctl(
                libc::PR_CAPBSET_DROP,
                libc::c_ulong::from(capability),
                0,
                0,
                0,
            )
        };
    }
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut sets = [Sets::default(), Sets::default()];
    // SAFETY: both structures are as capset(2) describes them; the sets are writable.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let kept = KEPT.iter().fold(0u64, |set, number| set | 1 << number);
    for (half, kept) in sets.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        half.permitted &= kept;
        half.effective = half.permitted;
        half.inheritable = 0;
    }
    // SAFETY: both structures are as capset(2) describes them, and only read.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION_3: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`, of which there are two: for the lower and the higher numbers.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Makes the kernel refuse all system calls except [`CALLS`], and all opening of files except for
/// reading, in all threads of this process.
///
/// # Errors
/// When the kernel was built without seccomp filters.
pub(super) fn filter_calls() -> io::Result<()> {
    let filter = program();
    let program = libc::sock_fprog {
        len: filter.len() as libc::c_ushort,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the program is valid for its length and is copied. `PR_SET_NO_NEW_PRIVS` was set.
    let done = unsafe {
        let (mode, flags) = (
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
        );
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// ```text
///   0  load architecture
///   1  ours? else 5
///   2  load number
///   3  below that of the x32 interface? else 5
///   4  over 5
///   5  refuse
///   6  openat? then load its flags: to write? refuse, else allow
///  11  socket? then load its family: AF_UNIX? allow, else refuse
///  16  bpf? then load its command: to run a program? allow, else refuse
///  21  each call of the list: is it that? allow
///   …  refuse
/// ```
fn program() -> Vec<libc::sock_filter> {
    let mut program = vec![
        load(ARCHITECTURE_AT),
        jump(libc::BPF_JEQ, ARCHITECTURE, 0, 3),
        load(NUMBER_AT),
        jump(libc::BPF_JGE, X32_BIT, 1, 0),
        jump(libc::BPF_JA, 1, 0, 0),
        answer(REFUSED),
        jump(libc::BPF_JEQ, libc::SYS_openat as u32, 0, 4),
        load(argument_at(2)),
        jump(libc::BPF_JSET, FLAGS_THAT_WRITE, 0, 1),
        answer(REFUSED),
        answer(libc::SECCOMP_RET_ALLOW),
        jump(libc::BPF_JEQ, libc::SYS_socket as u32, 0, 4),
        load(argument_at(0)),
        jump(libc::BPF_JEQ, libc::AF_UNIX as u32, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(REFUSED),
    ];
    program.extend([
        jump(libc::BPF_JEQ, libc::SYS_bpf as u32, 0, 4),
        load(argument_at(0)),
        jump(libc::BPF_JEQ, BPF_PROG_TEST_RUN as u32, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(REFUSED),
    ]);
    for call in CALLS {
        program.push(jump(libc::BPF_JEQ, *call as u32, 0, 1));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
    }
    program.push(answer(REFUSED));
    program
}

fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

fn jump(condition: u32, value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(
        libc::BPF_JMP | condition | libc::BPF_K,
        value,
        then,
        otherwise,
    )
}

fn answer(action: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// `struct seccomp_data`: number, architecture, instruction pointer, six arguments of 64 bits.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
/// The lower half of an argument, on a little-endian machine.
const fn argument_at(index: u32) -> u32 {
    16 + index * 8
}
const FLAGS_THAT_WRITE: u32 = (libc::O_WRONLY
    | libc::O_RDWR
    | libc::O_CREAT
    | libc::O_TRUNC
    | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
/// `AUDIT_ARCH_…` of include/uapi/linux/audit.h: the machine of an ELF file, 64 bits,
/// little-endian.
const ARCHITECTURE: u32 = 0xc000_0000 | MACHINE;
#[cfg(target_arch = "x86_64")]
const MACHINE: u32 = libc::EM_X86_64 as u32;
#[cfg(target_arch = "aarch64")]
const MACHINE: u32 = libc::EM_AARCH64 as u32;
/// Calls of the x32 interface have this bit in their numbers; on other machines no call has.
const X32_BIT: u32 = 0x4000_0000;

/// The system calls of the adapter once it serves: its own calls, those of the C library's memory
/// and signals, and those with which a panic is reported.
const CALLS: &[libc::c_long] = &[
    // Clients.
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_accept4,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_pidfd_open,
    libc::SYS_ppoll,
    libc::SYS_fcntl,
    libc::SYS_close,
    // To tell the service manager that we end (`socket` is above).
    libc::SYS_connect,
    // Memory of clients, and the answer to status.
    libc::SYS_memfd_create,
    libc::SYS_eventfd2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    // To read /proc. (Our socket file stays when we end: a call that removes it could remove any
    // other file of root.)
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readlinkat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_getdents64,
    // Messages on standard error.
    libc::SYS_write,
    libc::SYS_writev,
    // The C library and the language.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // For the timer whose signal ends waits that a client causes.
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_geteuid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the filter program: the kernel's answer to a call whose arguments are all
    /// `argument`.
    fn answer_to(architecture: u32, number: u32, argument: u32) -> u32 {
        let program = program();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let next = program[at];
            at += 1;
            let (code, is_set) = (u32::from(next.code), accumulator & next.k != 0);
            let holds = match code {
                _ if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match next.k {
                        NUMBER_AT => number,
                        ARCHITECTURE_AT => architecture,
                        _ => argument,
                    };
                    continue;
                }
                _ if code == libc::BPF_RET | libc::BPF_K => return next.k,
                _ if code == libc::BPF_JMP | libc::BPF_JA => {
                    at += next.k as usize;
                    continue;
                }
                _ if code == libc::BPF_JMP | libc::BPF_JEQ => accumulator == next.k,
                _ if code == libc::BPF_JMP | libc::BPF_JGE => accumulator >= next.k,
                _ if code == libc::BPF_JMP | libc::BPF_JSET => is_set,
                _ => panic!("code {code:#x}"),
            };
            at += usize::from(if holds { next.jt } else { next.jf });
        }
    }

    #[test]
    fn what_is_listed_is_allowed_and_nothing_else() {
        let decided_by_arguments = [libc::SYS_openat, libc::SYS_socket, libc::SYS_bpf];
        let all = (0..1024u32).filter(|&number| !decided_by_arguments.contains(&number.into()));
        for number in all {
            let is_listed = CALLS.contains(&libc::c_long::from(number));
            let expected = if is_listed {
                libc::SECCOMP_RET_ALLOW
            } else {
                REFUSED
            };
            assert_eq!(answer_to(ARCHITECTURE, number, 0), expected, "{number}");
            // The 32-bit and x32 interfaces have different numbers.
            assert_eq!(answer_to(0x4000_0003, number, 0), REFUSED, "{number}");
            let x32 = number | X32_BIT;
            assert_eq!(answer_to(ARCHITECTURE, x32, 0), REFUSED, "{number}");
        }
        for dangerous in [
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
        ] {
            assert_eq!(answer_to(ARCHITECTURE, dangerous as u32, 0), REFUSED);
        }
    }

    #[test]
    fn a_program_in_the_kernel_is_run_and_none_is_loaded() {
        let bpf = |command: u32| answer_to(ARCHITECTURE, libc::SYS_bpf as u32, command);
        for command in (0..64).filter(|&command| command != BPF_PROG_TEST_RUN as u32) {
            assert_eq!(bpf(command), REFUSED, "{command}");
        }
        assert_eq!(bpf(BPF_PROG_TEST_RUN as u32), libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn only_local_sockets_are_made() {
        let socket =
            |family: libc::c_int| answer_to(ARCHITECTURE, libc::SYS_socket as u32, family as u32);
        assert_eq!(socket(libc::AF_UNIX), libc::SECCOMP_RET_ALLOW);
        for family in [
            libc::AF_INET,
            libc::AF_INET6,
            libc::AF_NETLINK,
            libc::AF_PACKET,
        ] {
            assert_eq!(socket(family), REFUSED);
        }
    }

    #[test]
    fn files_are_opened_for_reading_only() {
        let open =
            |flags: libc::c_int| answer_to(ARCHITECTURE, libc::SYS_openat as u32, flags as u32);
        let (read, cloexec) = (libc::O_RDONLY, libc::O_CLOEXEC);
        for flags in [read, read | cloexec, read | cloexec | libc::O_DIRECTORY] {
            assert_eq!(open(flags), libc::SECCOMP_RET_ALLOW, "{flags:#x}");
        }
        let writing = [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC];
        for flags in writing.into_iter().chain([libc::O_TMPFILE]) {
            assert_eq!(open(flags | cloexec), REFUSED, "{flags:#x}");
        }
    }
}
