//! Signals that arrive while a call waits.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Case;
use crate::role::{Pair, Role, await_events, receive_all, send_all, send_until_refused, shown};
use crate::sys;

pub(crate) const CASES: &[Case] = &[
    Case::pair("recv_is_interrupted_without_sa_restart", |pair| {
        recv_interrupted(pair, count, 0);
    }),
    Case::pair("recv_is_interrupted_by_a_handler_for_one_signal", |pair| {
        recv_interrupted(pair, count_once, libc::SA_RESETHAND);
    }),
    Case::pair("recv_goes_on_with_sa_restart", recv_restart),
    Case::pair("timed_recv_is_interrupted_even_with_sa_restart", recv_timed),
    Case::pair("send_is_interrupted_with_what_it_has_sent", send_plain),
    Case::pair("send_that_waits_goes_on_with_sa_restart", |pair| {
        send_restart(pair, None);
    }),
    Case::pair("send_beside_timed_recv_goes_on_with_sa_restart", |pair| {
        send_restart(pair, Some(libc::SO_RCVTIMEO));
    }),
    Case::pair("timed_send_is_interrupted_even_with_sa_restart", |pair| {
        send_restart(pair, Some(libc::SO_SNDTIMEO));
    }),
    Case::pair(
        "send_is_interrupted_with_what_it_has_sent_even_with_sa_restart",
        send_part,
    ),
    Case::pair("waitall_is_interrupted_with_what_it_has", |pair| {
        waitall(pair, 0, 0);
    }),
    Case::pair(
        "waitall_is_interrupted_with_what_it_has_even_with_sa_restart",
        |pair| waitall(pair, 0, libc::SA_RESTART),
    ),
    Case::pair(
        "peek_for_all_is_interrupted_with_what_it_has_even_with_sa_restart",
        |pair| waitall(pair, libc::MSG_PEEK, libc::SA_RESTART),
    ),
    Case::pair(
        "waitall_that_had_nothing_goes_on_with_sa_restart",
        waitall_restart,
    ),
    Case::pair("poll_is_interrupted_even_with_sa_restart", poll),
    Case::pair(
        "poll_is_interrupted_behind_an_urgent_byte",
        poll_after_urgent,
    ),
    Case::pair("select_is_interrupted_even_with_sa_restart", select),
    Case::pair("epoll_wait_is_interrupted_even_with_sa_restart", epoll),
    Case::pair(
        "epoll_pwait_lets_the_signal_in_only_while_it_waits",
        epoll_pwait,
    ),
    Case::pair(
        "handler_that_uses_the_socket_does_not_deadlock",
        handler_sends,
    ),
    Case::pair("handler_that_closes_does_not_deadlock", handler_closes),
    Case::pair(
        "handler_that_jumps_out_of_calls_leaves_them_usable",
        |pair| handler_jumps(pair, libc::SA_RESTART),
    ),
    Case::pair(
        "handler_for_one_signal_that_jumps_out_of_calls_leaves_them_usable",
        |pair| handler_jumps(pair, libc::SA_RESETHAND),
    ),
    Case::roles(
        "handler_that_jumps_out_of_a_receive_leaves_a_new_connection_to_move",
        handler_jumps_at_first,
    ),
    Case::roles("handlers_are_told_as_they_were_installed", installed),
    Case::pair("timer_storm_loses_no_byte", storm),
    Case::roles("accept_is_interrupted_without_sa_restart", accept),
];

static CAUGHT: AtomicU32 = AtomicU32::new(0);
/// The socket that `answer` writes to; -1 for none.
static ANSWERS_ON: AtomicU32 = AtomicU32::new(u32::MAX);

pub(crate) extern "C" fn count(_: i32) {
    // Relaxed: a counter that the interrupted thread itself reads.
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

/// A handler of System V (`SA_RESETHAND`): it installs itself again.
extern "C" fn count_once(_: i32) {
    handle(count_once, libc::SA_RESETHAND);
    count(0);
}

extern "C" fn answer(_: i32) {
    count(0);
    // Relaxed: stored before the handler was installed.
    let fd = ANSWERS_ON.load(Ordering::Relaxed).cast_signed();
    let _ = sys::send(fd, b"signal!!", libc::MSG_NOSIGNAL);
}

pub(crate) fn caught() -> u32 {
    CAUGHT.load(Ordering::Relaxed)
}

/// Installs `handler` for SIGALRM.
pub(crate) fn handle(handler: extern "C" fn(i32), flags: i32) {
    handle_signal(libc::SIGALRM, handler, flags);
}

/// Installs `handler` for `signal`.
pub(crate) fn handle_signal(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: a sigaction of zeroes is valid; the handler only does what signal handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

/// Starts a timer that raises SIGALRM after `first_ms` and then every `every_ms` (0: only once).
///
/// The signal repeats where it must interrupt a call, because a single signal could arrive before
/// the call sleeps.
pub(crate) fn alarm(first_ms: i64, every_ms: i64) {
    let time = |ms: i64| libc::timeval {
        tv_sec: ms / 1000,
        tv_usec: ms % 1000 * 1000,
    };
    let timer = libc::itimerval {
        it_interval: time(every_ms),
        it_value: time(first_ms),
    };
    // SAFETY: the timer is live; the old timer is not asked for.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// An urgent byte has no lasting effect: later calls sleep until a signal or bytes arrive, as
/// before.
fn poll_after_urgent(pair: &Pair) {
    const ROUNDS: usize = 300;
    if pair.server() {
        sys::send(pair.fd, b"!", libc::MSG_OOB).value();
        pair.step();
        for _ in 0..ROUNDS {
            let mut byte = [0];
            receive_all(pair.fd, &mut byte);
            send_all(pair.fd, &byte);
        }
        pair.step();
        pair.step_to_sleeper();
        send_all(pair.fd, b"late");
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLPRI);
        pair.say("urgent", sys::recv(pair.fd, &mut [0], libc::MSG_OOB));
        // The connection uses its rings again.
        for _ in 0..ROUNDS {
            send_all(pair.fd, b".");
            await_events(pair.fd, libc::POLLIN);
            receive_all(pair.fd, &mut [0]);
        }
        pair.step();
        handle(count, 0);
        alarm(30, 30);
        let (result, events) = sys::poll(&[(pair.fd, libc::POLLIN)], 5000);
        pair.say("interrupted", format!("{result} {events:?}"));
        alarm(0, 0);
        pair.step_to_sleep();
        let (result, events) = sys::poll(&[(pair.fd, libc::POLLIN)], 5000);
        pair.say("woken", format!("{result} {events:?}"));
        pair.step();
    }
}

fn recv_interrupted(pair: &Pair, handler: extern "C" fn(i32), flags: i32) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"after");
        pair.step();
    } else {
        handle(handler, flags);
        alarm(30, 30);
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        alarm(30, 30);
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
        alarm(30, 30);
        pair.say("recvmsg", sys::recvmsg(pair.fd, &mut [0; 8], 0).0);
        alarm(0, 0);
        pair.step();
        let mut bytes = [0; 5];
        receive_all(pair.fd, &mut bytes);
        pair.say("recv", shown(&bytes));
        pair.step();
    }
}

fn recv_restart(pair: &Pair) {
    if pair.server() {
        pair.step();
        std::thread::sleep(std::time::Duration::from_millis(80));
        send_all(pair.fd, b"late");
        pair.step();
    } else {
        handle(count, libc::SA_RESTART);
        alarm(10, 0);
        pair.step();
        let mut bytes = [0; 4];
        let result = sys::recv(pair.fd, &mut bytes, 0);
        pair.say("recv", format!("{result} {}", shown(&bytes)));
        pair.say("caught", caught());
        pair.step();
    }
}

/// Calls on the socket give up after a time that does not pass here.
fn limit_time(pair: &Pair, option: i32) {
    let time = libc::timeval {
        tv_sec: 60,
        tv_usec: 0,
    };
    sys::set_option(pair.fd, libc::SOL_SOCKET, option, time).value();
}

/// signal(7): a handler ends each call on a socket with a time-out.
fn recv_timed(pair: &Pair) {
    if !pair.server() {
        limit_time(pair, libc::SO_RCVTIMEO);
        handle(count, libc::SA_RESTART);
        alarm(30, 30);
        for _ in 0..2 {
            pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        }
        alarm(0, 0);
    }
    pair.step();
}

/// The socket is full, so a send waits and has sent nothing when the signals come.
fn send_restart(pair: &Pair, option: Option<i32>) {
    if pair.server() {
        if let Some(option) = option {
            limit_time(pair, option);
        }
        pair.tell(u32::try_from(fill(pair)).expect("below 4 GB"));
        handle(count, libc::SA_RESTART);
        alarm(20, 20);
        pair.step_to_sleep();
        let (mut late, mut result) = (0, sys::send(pair.fd, b"late", 0));
        // The kernel may have got room again.
        while option == Some(libc::SO_SNDTIMEO) && result.len() > 0 {
            late += result.len() + fill(pair);
            result = sys::send(pair.fd, b"late", 0);
        }
        late += result.len();
        alarm(0, 0);
        pair.say("send", result);
        pair.tell(u32::try_from(late).expect("below 4 GB"));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        pair.step_to_sleeper();
        // For some signals.
        std::thread::sleep(std::time::Duration::from_millis(80));
        receive_all(pair.fd, &mut vec![0; sent]);
        let mut late = vec![0; pair.hear() as usize];
        receive_all(pair.fd, &mut late);
        pair.say("late", late.iter().all(|byte| b"late\x05".contains(byte)));
        pair.step();
    }
}

/// Sends until the socket has taken nothing for a while. Returns the number of bytes.
fn fill(pair: &Pair) -> usize {
    let bytes = [5; 1 << 16];
    let (mut sent, mut refused) = (0, 0);
    while refused < 3 {
        let result = sys::send(pair.fd, &bytes, libc::MSG_DONTWAIT);
        sent += result.len();
        refused = match result.is(libc::EAGAIN) {
            true => refused + 1,
            false => 0,
        };
        if refused > 0 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    sent
}

fn send_plain(pair: &Pair) {
    if pair.server() {
        let bytes = vec![5; 64 << 20];
        handle(count, 0);
        alarm(60, 60);
        let (sent, refusal) = send_until_refused(pair, &bytes);
        alarm(0, 0);
        pair.say("send into a full socket", refusal);
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        let mut bytes = vec![0; sent];
        receive_all(pair.fd, &mut bytes);
        pair.say("all fives", bytes.iter().all(|byte| *byte == 5));
        pair.say(
            "nothing else",
            sys::recv(pair.fd, &mut [0; 8], libc::MSG_DONTWAIT),
        );
        pair.step();
    }
}

/// The socket takes a part of the bytes, and the call waits until a signal comes.
fn send_part(pair: &Pair) {
    if pair.server() {
        let bytes = vec![5; 64 << 20];
        handle(count, libc::SA_RESTART);
        alarm(60, 60);
        let sent = sys::send(pair.fd, &bytes, 0).len();
        alarm(0, 0);
        pair.say("a part", sent > 0 && sent < bytes.len());
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        receive_all(pair.fd, &mut vec![0; sent]);
        pair.step();
    }
}

fn waitall(pair: &Pair, flags: i32, action: i32) {
    if pair.server() {
        send_all(pair.fd, b"half");
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 4);
        handle(count, action);
        alarm(30, 30);
        let mut bytes = [0; 8];
        let result = sys::recv(pair.fd, &mut bytes, libc::MSG_WAITALL | flags);
        alarm(0, 0);
        pair.say(
            "recv",
            format!("{result} {}", shown(&bytes[..result.len()])),
        );
        pair.step();
    }
}

/// The signal comes before the first byte.
fn waitall_restart(pair: &Pair) {
    let nap = |ms| std::thread::sleep(std::time::Duration::from_millis(ms));
    if pair.server() {
        pair.step_to_sleeper();
        nap(60);
        send_all(pair.fd, b"half");
        nap(20);
        send_all(pair.fd, b"half");
        pair.step();
    } else {
        handle(count, libc::SA_RESTART);
        alarm(20, 0);
        pair.step_to_sleep();
        let mut bytes = [0; 8];
        pair.say("recv", sys::recv(pair.fd, &mut bytes, libc::MSG_WAITALL));
        pair.step();
    }
}

fn poll(pair: &Pair) {
    handle(count, libc::SA_RESTART);
    alarm(30, 30);
    pair.say("poll", sys::poll(&[(pair.fd, libc::POLLIN)], -1).0);
    alarm(30, 30);
    pair.say("ppoll", sys::ppoll(&[(pair.fd, libc::POLLIN)], 20_000).0);
    alarm(30, 30);
    pair.say(
        "__poll_chk",
        sys::poll_chk(&[(pair.fd, libc::POLLIN)], -1).0,
    );
    pair.step();
}

fn select(pair: &Pair) {
    handle(count, libc::SA_RESTART);
    alarm(30, 30);
    pair.say("select", sys::select(&[pair.fd], &[], None, false).result);
    alarm(30, 30);
    pair.say("pselect", sys::select(&[pair.fd], &[], None, true).result);
    pair.step();
}

fn epoll(pair: &Pair) {
    handle(count, libc::SA_RESTART);
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 1).value();
    alarm(30, 30);
    pair.say("epoll_wait", sys::epoll_wait(epoll, 4, -1).0);
    alarm(30, 30);
    pair.say(
        "epoll_pwait2",
        sys::epoll_pwait(epoll, 0, None, Some(20_000_000_000)).0,
    );
    pair.step();
}

fn epoll_pwait(pair: &Pair) {
    handle(count, 0);
    // SAFETY: the sets are initialised before they are used.
    let (blocked, empty) = unsafe {
        let (mut blocked, mut empty): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigemptyset(&mut empty);
        libc::sigemptyset(&mut blocked);
        libc::sigaddset(&mut blocked, libc::SIGALRM);
        libc::sigprocmask(libc::SIG_BLOCK, &blocked, ptr::null_mut());
        (blocked, empty)
    };
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 1).value();
    alarm(10, 0);
    pair.say(
        "epoll_wait with the signal blocked",
        sys::epoll_wait(epoll, 4, 60).0,
    );
    pair.say("caught", caught());
    pair.say(
        "epoll_pwait still blocking",
        sys::epoll_pwait(epoll, 20, Some(&blocked), None).0,
    );
    pair.say("caught", caught());
    pair.say(
        "epoll_pwait letting it in",
        sys::epoll_pwait(epoll, -1, Some(&empty), None).0,
    );
    pair.say("caught", caught());
    alarm(10, 10);
    pair.say(
        "epoll_pwait2",
        sys::epoll_pwait(epoll, 0, Some(&empty), Some(20_000_000_000)).0,
    );
    pair.step();
}

fn handler_sends(pair: &Pair) {
    const SIGNALS: usize = 50;
    const REQUESTS: u32 = 300;
    if pair.server() {
        // Relaxed: the handler runs on this thread.
        ANSWERS_ON.store(pair.fd.cast_unsigned(), Ordering::Relaxed);
        handle(answer, libc::SA_RESTART);
        alarm(1, 1);
        let mut message = [0; 8];
        for _ in 0..REQUESTS {
            receive_all(pair.fd, &mut message);
            send_all(pair.fd, &message);
        }
        while (caught() as usize) < SIGNALS {
            std::hint::spin_loop();
        }
        alarm(0, 0);
        pair.tell(caught());
        pair.step();
    } else {
        // Messages and the handler's replies are all eight bytes long. Neither splits the other.
        let mut message = [0; 8];
        let (mut replies, mut signals) = (0_u32, 0_u32);
        while replies < REQUESTS {
            send_all(pair.fd, b"request.");
            loop {
                receive_all(pair.fd, &mut message);
                if &message == b"request." {
                    replies += 1;
                    break;
                }
                assert_eq!(&message, b"signal!!");
                signals += 1;
            }
        }
        let total = pair.hear();
        while signals < total {
            receive_all(pair.fd, &mut message);
            assert_eq!(&message, b"signal!!");
            signals += 1;
        }
        pair.say("replies", replies);
        pair.say("every signal's message came", signals == total);
        pair.step();
    }
}

/// The descriptor that `close_some` closes: a duplicate of the connection on `ANSWERS_ON`. Then
/// `close_some` makes another duplicate.
static DUPLICATE: AtomicU32 = AtomicU32::new(u32::MAX);

extern "C" fn close_some(_: i32) {
    count(0);
    // Relaxed: this thread's own.
    let fd = DUPLICATE.load(Ordering::Relaxed).cast_signed();
    sys::close(fd).value();
    let connection = ANSWERS_ON.load(Ordering::Relaxed).cast_signed();
    DUPLICATE.store(sys::dup(connection).fd().cast_unsigned(), Ordering::Relaxed);
}

/// The thread makes and closes duplicates of a connection and registers them, while a handler does
/// the like.
fn handler_closes(pair: &Pair) {
    const SIGNALS: u32 = 2000;
    const STILL: u32 = 20_000;
    DUPLICATE.store(sys::dup(pair.fd).fd().cast_unsigned(), Ordering::Relaxed);
    ANSWERS_ON.store(pair.fd.cast_unsigned(), Ordering::Relaxed);
    let epoll = sys::epoll_create();
    if pair.server() {
        handle(close_some, libc::SA_RESTART);
        storm_every_us(100);
        let mut message = [0; 8];
        let mut rounds = 0;
        loop {
            receive_all(pair.fd, &mut message);
            send_all(pair.fd, &message);
            for fd in [pair.fd, sys::dup(pair.fd).fd()] {
                sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 1).value();
                sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0).value();
                if fd != pair.fd {
                    sys::close(fd).value();
                }
            }
            rounds += 1;
            if caught() >= SIGNALS || rounds >= STILL {
                break;
            }
        }
        alarm(0, 0);
        let duplicate = DUPLICATE.load(Ordering::Relaxed).cast_signed();
        sys::close(duplicate).value();
        sys::close(pair.fd).value();
    } else {
        while sys::send(pair.fd, b"request.", libc::MSG_NOSIGNAL)
            .0
            .is_ok()
        {
            if sys::recv(pair.fd, &mut [0; 8], libc::MSG_WAITALL).len() < 8 {
                break;
            }
        }
    }
    pair.say("is over", true);
}

/// Starts a timer that raises SIGALRM every `us` microseconds.
fn storm_every_us(us: i64) {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: us,
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: the timer is live; the old timer is not asked for.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// `sigjmp_buf` (200 bytes on x86-64, 312 on aarch64), and calls that the libc crate lacks.
#[repr(C, align(16))]
struct JumpBuffer([u64; 48]);

unsafe extern "C" {
    fn siglongjmp(buffer: *mut JumpBuffer, value: i32) -> !;
}

static mut JUMP_BUFFER: JumpBuffer = JumpBuffer([0; 48]);

extern "C" fn jump(_: i32) {
    count(0);
    // SAFETY: armed by `until_jump`, whose frame is alive while the timer runs.
    unsafe { siglongjmp(&raw mut JUMP_BUFFER, 1) }
}

/// Calls `__sigsetjmp(JUMP_BUFFER, 1)`, which is a macro in C. Then calls `work` with `argument`
/// until the handler jumps. This is assembly because Rust has no function that returns twice.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn until_jump(work: extern "C" fn(i32), argument: i32) {
    core::arch::naked_asm!(
        "push rbx",
        "push r12",
        "sub rsp, 8",
        "mov rbx, rdi",
        "mov r12d, esi",
        "lea rdi, [rip + {place}]",
        "mov esi, 1",
        "call {set}@PLT",
        "test eax, eax",
        "jne 2f",
        "mov edi, r12d",
        "call rbx",
        "2:",
        "add rsp, 8",
        "pop r12",
        "pop rbx",
        "ret",
        place = sym JUMP_BUFFER,
        set = sym sigsetjmp,
    )
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    #[link_name = "__sigsetjmp"]
    fn sigsetjmp(buffer: *mut JumpBuffer, saves_mask: i32) -> i32;
}

extern "C" fn send_for_ever(fd: i32) {
    let time = |us: i64| libc::timeval {
        tv_sec: 0,
        tv_usec: us,
    };
    let once = libc::itimerval {
        it_interval: time(0),
        it_value: time(50),
    };
    // SAFETY: the timer is live. `JUMP_BUFFER` is set from here on.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &once, ptr::null_mut()) };
    loop {
        // These calls do not wait, so the signal interrupts a running call and never a sleeping
        // one.
        let _ = sys::send(fd, &[7; 64], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

/// Old programs without threads end a call that takes too long by a jump out of the signal handler.
fn handler_jumps(pair: &Pair, flags: i32) {
    const JUMPS: u32 = 3000;
    if pair.server() {
        for _ in 0..JUMPS {
            handle(jump, flags);
            // SAFETY: the jump leaves frames that own nothing.
            unsafe { until_jump(send_for_ever, pair.fd) };
        }
        pair.say("jumps", caught());
        pair.say("a send at last", sys::send(pair.fd, &[7; 64], 0));
        sys::shutdown(pair.fd, libc::SHUT_WR).value();
        pair.say("then", crate::role::drain(pair.fd));
    } else {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let got = sys::recv(pair.fd, &mut bytes, 0);
            if got.len() == 0 {
                pair.say("ends with", got);
                break;
            }
            assert!(
                bytes[..got.len()].iter().all(|byte| *byte == 7),
                "another byte"
            );
        }
        sys::close(pair.fd).value();
    }
}

extern "C" fn receive_for_ever(fd: i32) {
    alarm(20, 0);
    loop {
        // The jump leaves the sleep in this call.
        let _ = sys::recv(fd, &mut [0; 8], 0);
    }
}

/// As [`handler_jumps`], out of a sleep, and before the connection has any traffic.
fn handler_jumps_at_first(role: &Role) {
    const JUMPS: u32 = 10;
    let fd = role.meet_by_kernel();
    if role.server() {
        handle(jump, libc::SA_RESTART);
        for _ in 0..JUMPS {
            // SAFETY: the jump leaves frames that own nothing.
            unsafe { until_jump(receive_for_ever, fd) };
        }
        role.say("jumps", caught());
    }
    role.step();
    role.warm(fd);
    role.say("close", sys::close(fd));
}

/// A program that asks for its signal handlers gets the handlers that it installed.
fn installed(role: &Role) {
    extern "C" fn plain(_: i32) {}
    extern "C" fn detailed(_: i32, _: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {}
    // SAFETY: actions of zeroes are valid, and all are live.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut ask = |what: &str, handler: usize, flags: i32| {
            action.sa_sigaction = handler;
            action.sa_flags = flags;
            libc::sigaction(libc::SIGUSR2, &action, &mut before);
            let is = |function: usize| before.sa_sigaction == function;
            let name = match () {
                () if is(plain as *const () as usize) => "plain",
                () if is(detailed as *const () as usize) => "detailed",
                () if is(libc::SIG_DFL) => "default",
                () if is(libc::SIG_IGN) => "ignored",
                () => "unknown",
            };
            let flags = before.sa_flags & !0x0400_0000;
            role.say(what, format!("{name} {flags:#x}"));
        };
        ask("at first", plain as *const () as usize, libc::SA_RESTART);
        ask(
            "a plain one",
            detailed as *const () as usize,
            libc::SA_SIGINFO,
        );
        ask("a detailed one", libc::SIG_IGN, 0);
        ask("none", plain as *const () as usize, libc::SA_RESETHAND);
        ask("one for once", libc::SIG_DFL, 0);
        ask("the default", libc::SIG_DFL, 0);
        let signal = |handler: usize| {
            let before = libc::signal(libc::SIGUSR2, handler);
            before == plain as *const () as usize
        };
        role.say("signal", signal(plain as *const () as usize));
        role.say("signal again", signal(libc::SIG_DFL));
        role.say("and again", signal(libc::SIG_DFL));
    }
}

fn storm(pair: &Pair) {
    const LEN: usize = 30 << 20;
    handle(count, 0);
    alarm(1, 1);
    if pair.server() {
        send_all(pair.fd, &crate::role::sample(LEN));
        pair.step();
    } else {
        let mut bytes = vec![0; LEN];
        receive_all(pair.fd, &mut bytes);
        pair.say("right", bytes == crate::role::sample(LEN));
        while !pair.server() && caught() == 0 {
            std::hint::spin_loop();
        }
        pair.step();
    }
    alarm(0, 0);
}

fn accept(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        handle(count, 0);
        alarm(30, 30);
        role.say("accept", sys::accept(listener));
        alarm(30, 30);
        role.say("poll", sys::poll(&[(listener, libc::POLLIN)], -1).0);
        // The client comes later than the next signal would come.
        alarm(0, 0);
        role.step();
        let fd = sys::accept(listener).fd();
        role.warm(fd);
    } else {
        let port = role.hear_port();
        role.step();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let fd = role.connect(port);
        role.warm(fd);
    }
}
