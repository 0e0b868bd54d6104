//! One-copy transfer between two processes of ours: the receiver copies directly from the sender's
//! memory (process_vm_readv), while a ring needs a copy in and a copy out.
//!
//! ```text
//!   sender (child)                      receiver (this process)
//!   fill, announce turn ───────────────► pull: sender's memory ─► own memory
//!   wait: the message must not change ◄─ taken
//! ```
//!
//! A sender must not change a message until it is taken, as with a blocking send over SDP with zero
//! copy. So there is one message at a time, and a system call for each. The message size from which
//! one-copy is faster is the threshold for such a path.
//!
//! The child is the sender, and the parent reads its memory: some systems let a process access only
//! its descendants (`kernel.yama.ptrace_scope`). The child uses only existing memory, atomics and
//! `_exit`, so that it may be forked from a program with threads.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use toehold_measure::cpus::{self, Kept};

use super::latency::Latencies;
use super::session::Totals;
use super::{Load, Outcome, Pattern, session, wire};

/// Runs a load between this process and a child of it.
///
/// # Errors
///
/// A sentence: the pattern has no one-copy transfer, the system does not allow it, or nothing was
/// measured.
pub fn run(load: &Load) -> Result<Outcome, String> {
    load.check()?;
    if !matches!(load.pattern, Pattern::PingPong | Pattern::ToServer) || load.streams != 1 {
        return Err(
            "one-copy hand-over is for the patterns ping-pong and to-server with one stream"
                .to_owned(),
        );
    }
    let cores = cpus::allowed();
    let (last, _) = cores.split_last().ok_or("this process may use no core")?;
    let _kept = Kept::on(&[*last]);
    let totals = match load.pattern {
        Pattern::PingPong => ping_pong(load, cores[0]),
        _ => stream(load, cores[0]),
    };
    let totals = totals.map_err(|error| {
        format!("one-copy hand-over (process_vm_readv) is not possible here: {error}")
    })?;
    totals.outcome(load)
}

/// Words that both processes see.
#[repr(C)]
struct Control {
    /// Messages that the sender has made ready.
    announced: Position,
    /// Messages that the receiver has taken.
    taken: Position,
    is_over: AtomicBool,
}

/// A position on its own pair of cache lines.
#[repr(align(128))]
struct Position(AtomicU64);

impl Control {
    /// Waits until the position has reached `turn`; false when the run is over.
    fn reach(&self, position: &Position, turn: u64, mut is_alive: impl FnMut() -> bool) -> bool {
        let mut turns = 0u32;
        // Acquire pairs with the Release that published the position.
        while position.0.load(Ordering::Acquire) < turn {
            if self.is_over.load(Ordering::Relaxed) {
                return false;
            }
            turns += 1;
            if turns.is_multiple_of(TURNS_BEFORE_YIELD) {
                // On one core the other side would never run.
                thread::yield_now();
                if !is_alive() {
                    return false;
                }
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// A page of [`Control`] that a fork shares; unmapped when dropped.
struct Shared(*mut Control);

impl Shared {
    fn new() -> io::Result<Shared> {
        // SAFETY: a new mapping, at no address in particular.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Control>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared(base.cast()))
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping is page-aligned, large enough and zeroed, and zeros are a valid
        // Control; both processes reach it through atomics only.
        unsafe { &*self.0 }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this length; no reference outlives `self`.
        unsafe { libc::munmap(self.0.cast(), size_of::<Control>()) };
    }
}

/// The sending process; ended and waited for when dropped.
struct Child {
    pid: libc::pid_t,
}

impl Child {
    /// Forks a process that runs `work` on core `core` and ends.
    fn start(core: usize, work: impl FnOnce()) -> io::Result<Child> {
        let set = cpus::set_of(&[core]);
        // SAFETY: the child calls async-signal-safe functions only, and ends with _exit: `work`
        // uses memory that is there, atomics and sched_yield.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: `set` is a complete cpu_set_t and its size is given.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::sched_setaffinity(0, size_of_val(&set), &set);
                }
                work();
                // SAFETY: it takes an integer and does not return.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Child { pid }),
        }
    }

    /// Whether the child still runs. The child is not reaped here.
    fn is_alive(&self) -> bool {
        // SAFETY: zeros are a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is complete; the child is ours and not waited for yet.
        let result =
            unsafe { libc::waitid(libc::P_PID, self.pid as libc::id_t, &mut info, options) };
        // SAFETY: waitid has filled in the field, or left it zero.
        result == 0 && unsafe { info.si_pid() } == 0
    }

    /// Moves the bytes of a message between its place in the child and memory of this process.
    fn copy(&self, way: Way, there: usize, here: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < here.len() {
            let left = here.len() - done;
            let (base, far) = (here[done..].as_mut_ptr().cast(), there + done);
            let one = |iov_base| libc::iovec {
                iov_base,
                iov_len: left,
            };
            let (near, far) = (one(base), one(far as *mut libc::c_void));
            // SAFETY: `near` is within `here`, which is writable and not touched meanwhile; `far`
            // is checked by the kernel.
            let count = unsafe {
                match way {
                    Way::Pull => libc::process_vm_readv(self.pid, &near, 1, &far, 1, 0),
                    Way::Push => libc::process_vm_writev(self.pid, &near, 1, &far, 1, 0),
                }
            };
            done += usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        }
        Ok(())
    }
}

/// The direction of bytes between the processes.
#[derive(Clone, Copy)]
enum Way {
    Pull,
    Push,
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not waited for yet, so its number is its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), 0);
        }
    }
}

/// A stream of messages from the child to this process.
fn stream(load: &Load, core: usize) -> io::Result<Totals> {
    let len = load.message;
    let shared = Shared::new()?;
    let control = shared.control();
    let mut message = vec![0; len];
    wire::fill(&mut message);
    let expected = wire::sum(&message);
    let (place, touch) = (message.as_ptr() as usize, load.touch);
    let child = Child::start(core, || {
        let mut turn = 0;
        loop {
            if touch || turn == 0 {
                // The first time the pages become the child's own.
                wire::fill(&mut message);
            }
            turn += 1;
            // Release pairs with the Acquire of the receiver.
            control.announced.0.store(turn, Ordering::Release);
            if !control.reach(&control.taken, turn, || true) {
                return;
            }
        }
    })?;
    let mut own = vec![0; len];
    let start = Instant::now();
    let (warm, end) = session::measured(load, start);
    let (mut turn, mut counted_from, mut begin) = (0u64, None, start);
    loop {
        if turn.is_multiple_of(CLOCK_EVERY) || len >= 4096 {
            let now = Instant::now();
            if counted_from.is_none() && now >= warm {
                (counted_from, begin) = (Some(turn), now);
            }
            if now >= end {
                break;
            }
        }
        if !control.reach(&control.announced, turn + 1, || child.is_alive()) {
            return Err(io::Error::other("the sender has ended"));
        }
        child.copy(Way::Pull, place, &mut own)?;
        turn += 1;
        // Release pairs with the Acquire of the sender.
        control.taken.0.store(turn, Ordering::Release);
        if touch && wire::sum(&own) != expected {
            return Err(io::Error::other("the bytes are not those that were sent"));
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    control.is_over.store(true, Ordering::Relaxed);
    let operations = turn - counted_from.unwrap_or(turn);
    Ok(Totals {
        seconds,
        operations,
        bytes: operations * len as u64,
        ..Totals::default()
    })
}

/// A message into the child's memory, and a message out of it; the latency is half of both.
fn ping_pong(load: &Load, core: usize) -> io::Result<Totals> {
    let (there, back) = (load.message, load.response_bytes());
    let shared = Shared::new()?;
    let control = shared.control();
    // The child's own after the fork: its pages are written by the child once, below.
    let (mut inbox, mut outbox) = (vec![0; there], vec![0; back]);
    let places = (inbox.as_ptr() as usize, outbox.as_ptr() as usize);
    let touch = load.touch;
    let child = Child::start(core, || {
        wire::fill(&mut inbox);
        wire::fill(&mut outbox);
        let mut turn = 0;
        while control.reach(&control.announced, turn + 1, || true) {
            turn += 1;
            if touch {
                std::hint::black_box(wire::sum(&inbox));
                wire::fill(&mut outbox);
            }
            control.taken.0.store(turn, Ordering::Release);
        }
    })?;
    let (mut message, mut response) = (vec![0; there], vec![0; back]);
    wire::fill(&mut message);
    let mut latencies = Latencies::new();
    let start = Instant::now();
    let (begin, end) = session::measured(load, start);
    let (mut before, mut turn) = (start, 0);
    while before < end {
        child.copy(Way::Push, places.0, &mut message)?;
        turn += 1;
        control.announced.0.store(turn, Ordering::Release);
        if !control.reach(&control.taken, turn, || child.is_alive()) {
            return Err(io::Error::other("the other process has ended"));
        }
        child.copy(Way::Pull, places.1, &mut response)?;
        let now = Instant::now();
        if before >= begin {
            latencies.add((now - before) / 2);
        }
        before = now;
    }
    control.is_over.store(true, Ordering::Relaxed);
    let operations = latencies.count();
    Ok(Totals {
        seconds: load.seconds,
        operations,
        bytes: operations * (there + back) as u64,
        latencies: Some(latencies),
        ..Totals::default()
    })
}

const TURNS_BEFORE_YIELD: u32 = 4096;
const CLOCK_EVERY: u64 = 64;
