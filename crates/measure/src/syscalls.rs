//! Counts the system calls of a process and its descendants, in the kernel, without stopping it.
//!
//! The counter is the tracepoint `raw_syscalls:sys_enter`, opened on a process that is about to
//! execute a program, and inherited by its descendants. Each counted call takes a little longer,
//! which would disadvantage the path with more calls. So calls are counted in a separate round
//! whose times are not used.
//!
//! If tracing is not allowed, calls are reported as "not counted": a tool that stops the program at
//! each call would change the measured behaviour.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::thread;

/// The tracepoint, found once and used for any number of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracepoint(u64);

impl Tracepoint {
    /// Finds the tracepoint.
    ///
    /// # Errors
    ///
    /// A sentence that says what is missing.
    pub fn find() -> Result<Tracepoint, String> {
        let id = read_id()
            .or_else(|_| read_id_in_private_namespace())
            .map_err(|error| {
                format!("the tracepoint raw_syscalls:sys_enter cannot be read ({error}); root can")
            })?;
        let tracepoint = Tracepoint(id);
        // The file may be readable although events may not be opened: try one on this process.
        Counter::open(tracepoint, 0).map_err(|error| {
            format!(
                "the kernel refuses performance events ({error}); \
             lower kernel.perf_event_paranoid or be root"
            )
        })?;
        Ok(tracepoint)
    }
}

/// A running count.
#[derive(Debug)]
pub struct Counter(OwnedFd);

impl Counter {
    /// Counts the calls of `pid` from its next `execve` on, and those of its future descendants.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn open(tracepoint: Tracepoint, pid: libc::pid_t) -> io::Result<Counter> {
        let attributes = PerfEventAttr {
            kind: PERF_TYPE_TRACEPOINT,
            size: mem::size_of::<PerfEventAttr>() as u32,
            config: tracepoint.0,
            flags: FLAG_DISABLED | FLAG_INHERIT | FLAG_ENABLE_ON_EXEC,
            ..PerfEventAttr::default()
        };
        let any_core: libc::c_int = -1;
        let no_group: libc::c_int = -1;
        // SAFETY: `attributes` is a complete perf_event_attr of the first published size, which is
        // given in it; the kernel only reads it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                ptr::from_ref(&attributes),
                pid,
                any_core,
                no_group,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor that nothing else owns.
        Ok(Counter(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// The number of calls so far, of living and finished processes.
    pub fn read(&self) -> io::Result<u64> {
        let mut count = 0u64;
        // SAFETY: the buffer is the eight bytes of `count`, which any bits fill validly.
        let read = unsafe {
            libc::read(
                self.0.as_raw_fd(),
                ptr::from_mut(&mut count).cast(),
                mem::size_of::<u64>(),
            )
        };
        match read {
            8 => Ok(count),
            -1 => Err(io::Error::last_os_error()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn read_id() -> io::Result<u64> {
    let text = fs::read_to_string(ID_FILE)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Reads the id if the trace file system is not mounted: a thread mounts it for itself, in a mount
/// namespace that ends with the thread. The host's mounts do not change.
fn read_id_in_private_namespace() -> io::Result<u64> {
    let reader = thread::spawn(|| {
        // SAFETY: CLONE_NEWNS gives this thread its own mount namespace and, as it implies
        // CLONE_FS, its own working directory; no memory is involved.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        let none = c"none".as_ptr();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: all strings are literals that end in NUL; a null type and null data are allowed
        // when only the propagation changes.
        check(unsafe { libc::mount(none, c"/".as_ptr(), ptr::null(), private, ptr::null()) })?;
        let (target, kind) = (c"/sys/kernel/tracing".as_ptr(), c"tracefs".as_ptr());
        // SAFETY: as above.
        check(unsafe { libc::mount(none, target, kind, 0, ptr::null()) })?;
        read_id()
    });
    reader
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the reading thread failed")))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

const ID_FILE: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id";

/// `struct perf_event_attr` as first published (PERF_ATTR_SIZE_VER0), sufficient for a counter.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const _: () = assert!(mem::size_of::<PerfEventAttr>() == 64);

// <linux/perf_event.h>; the flags are bit positions of its bit field.
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const FLAG_DISABLED: u64 = 1 << 0;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_ENABLE_ON_EXEC: u64 = 1 << 12;
