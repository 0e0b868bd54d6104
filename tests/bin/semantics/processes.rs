//! fork, vfork and spawn with live connections.

pub(crate) mod asleep;
mod other_user;

use std::process::{Command, Stdio};

use crate::Case;
use crate::role::{
    Checksum, Pair, Role, await_events, drain, receive_all, sample, send_all, shown,
};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("child_reads_on_where_the_parent_stopped", child_reads_on),
    Case::pair("child_and_parent_both_write", both_write),
    Case::pair("child_and_parent_take_turns_reading", take_turns),
    Case::pair(
        "child_that_exits_leaves_the_parents_connection",
        child_exits,
    ),
    Case::pair("connection_ends_with_its_last_holder", last_holder),
    Case::pair("killed_child_leaves_the_parents_connection", killed_child),
    Case::pair("last_holder_closes_after_another_was_killed", |pair| {
        killed_holder(pair, Killed::AtWork);
    }),
    Case::pair("last_holder_closes_after_a_program_was_killed", |pair| {
        killed_holder(pair, Killed::AsAnotherProgram);
    }),
    Case::pair("last_holder_closes_after_a_child_was_never_run", |pair| {
        killed_holder(pair, Killed::BeforeItRan);
    }),
    Case::pair("last_holder_closes_after_a_fork_that_failed", |pair| {
        killed_holder(pair, Killed::NeverMade);
    }),
    Case::roles("child_that_was_never_run_shares_nothing", |role| {
        unshared(role, || sys::wait_for(never_run()));
    }),
    Case::roles("child_that_was_never_made_shares_nothing", |role| {
        unshared(role, never_made);
    }),
    Case::pair("grandchild_reads_on", grandchild),
    Case::pair("spawned_programs_do_not_disturb_the_connection", spawned),
    Case::pair("fork_under_traffic_loses_nothing", fork_under_traffic),
    Case::pair("epoll_is_shared_with_a_child", shared_epoll),
    Case::pair(
        "child_that_closes_what_it_inherited_disturbs_nobody",
        closing_child,
    ),
    Case::pair(
        "table_that_another_user_writes_over_stops_nobody",
        other_user::scribbled_over,
    ),
    Case::pair(
        "child_in_another_pid_namespace_shares_the_stream",
        pid_namespace,
    ),
    Case::roles("prefork_workers_share_a_listener", prefork),
    Case::roles("accept_then_fork_serves_in_children", accept_then_fork),
    Case::roles(
        "child_keeps_the_connection_of_an_acceptor_that_exits",
        |role| {
            child_of_an_acceptor(role, || true);
        },
    ),
    Case::roles(
        "child_keeps_the_connection_of_an_acceptor_that_is_killed",
        |role| {
            child_of_an_acceptor(role, || {
                // SAFETY: takes no pointers.
                unsafe { libc::raise(libc::SIGKILL) == 0 }
            });
        },
    ),
    Case::roles("child_connects_for_itself", child_connects),
];

/// Runs `body` in a child, which exits with 0 when it returns true.
fn in_child(body: impl FnOnce() -> bool) -> libc::pid_t {
    let pid = sys::fork();
    if pid == 0 {
        let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        sys::exit_now(i32::from(!fine));
    }
    pid
}

fn receives(fd: Fd, expected: &[u8]) -> bool {
    let mut bytes = vec![0; expected.len()];
    receive_all(fd, &mut bytes);
    bytes == expected
}

fn child_reads_on(pair: &Pair) {
    let bytes = sample(3_000_000);
    if pair.server() {
        send_all(pair.fd, &bytes);
        pair.say("reply", drain(pair.fd));
    } else {
        pair.say("parent", receives(pair.fd, &bytes[..1_000_000]));
        let child = in_child(|| {
            let right = receives(pair.fd, &bytes[1_000_000..]);
            send_all(pair.fd, b"from the child");
            right
        });
        pair.say("close", sys::close(pair.fd));
        pair.say("child", sys::wait_for(child));
    }
}

fn both_write(pair: &Pair) {
    const MESSAGES: usize = 2000;
    if pair.server() {
        let child = in_child(|| {
            (0..MESSAGES).for_each(|_| send_all(pair.fd, b"child..."));
            true
        });
        (0..MESSAGES).for_each(|_| send_all(pair.fd, b"parent.."));
        pair.say("child", sys::wait_for(child));
        pair.say("close", sys::close(pair.fd));
    } else {
        let (mut parents, mut children) = (0, 0);
        let mut message = [0; 8];
        for _ in 0..2 * MESSAGES {
            receive_all(pair.fd, &mut message);
            match &message {
                b"parent.." => parents += 1,
                b"child..." => children += 1,
                other => panic!("torn message {:?}", shown(other)),
            }
        }
        pair.say("messages", format!("{parents} {children}"));
        pair.say("then", drain(pair.fd));
    }
}

fn take_turns(pair: &Pair) {
    const TURNS: usize = 40;
    let bytes = sample(TURNS * 1000);
    if pair.server() {
        send_all(pair.fd, &bytes);
        pair.step();
    } else {
        let (ours, childs) = (sys::pipe(), sys::pipe());
        let child = in_child(|| {
            (0..TURNS).step_by(2).all(|turn| {
                sys::read(childs.0, &mut [0; 1]).value();
                let right = receives(pair.fd, &bytes[turn * 1000..][..1000]);
                sys::write(ours.1, b".").value();
                right
            })
        });
        let right = (1..TURNS).step_by(2).all(|turn| {
            sys::write(childs.1, b".").value();
            sys::read(ours.0, &mut [0; 1]).value();
            receives(pair.fd, &bytes[turn * 1000..][..1000])
        });
        pair.say("parent", right);
        pair.say("child", sys::wait_for(child));
        pair.step();
    }
}

fn child_exits(pair: &Pair) {
    if pair.server() {
        pair.say("child", sys::wait_for(in_child(|| true)));
        send_all(pair.fd, b"still here");
        let child = in_child(|| {
            sys::close(pair.fd).value();
            true
        });
        pair.say("child", sys::wait_for(child));
        send_all(pair.fd, b", and here");
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.say("received", drain(pair.fd));
    }
}

fn last_holder(pair: &Pair) {
    if pair.server() {
        let (wait, go) = sys::pipe();
        let child = in_child(|| {
            sys::read(wait, &mut [0; 1]).value();
            send_all(pair.fd, b"the child's last words");
            true
        });
        send_all(pair.fd, b"the parent's; ");
        pair.say("close", sys::close(pair.fd));
        pair.step();
        pair.step();
        sys::write(go, b".").value();
        pair.say("child", sys::wait_for(child));
    } else {
        pair.step();
        receive_all(pair.fd, &mut [0; 14]);
        pair.say(
            "not over yet",
            sys::recv(pair.fd, &mut [0; 1], libc::MSG_DONTWAIT),
        );
        pair.step();
        pair.say("received", drain(pair.fd));
    }
}

fn killed_child(pair: &Pair) {
    if pair.server() {
        for _ in 0..5 {
            let child = in_child(|| {
                loop {
                    // This call removes no bytes, so the child may die at any moment.
                    sys::recv(pair.fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(3));
            // SAFETY: our child, not reaped yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
            pair.say("child", sys::wait_for(child));
            send_all(pair.fd, b"alive;");
            let mut reply = [0; 2];
            receive_all(pair.fd, &mut reply);
            pair.say("reply", shown(&reply));
        }
        pair.say("close", sys::close(pair.fd));
    } else {
        for _ in 0..5 {
            receive_all(pair.fd, &mut [0; 6]);
            send_all(pair.fd, b"ok");
        }
        pair.say("then", drain(pair.fd));
    }
}

/// The way in which a child that holds the connection is killed.
#[derive(Clone, Copy, PartialEq)]
enum Killed {
    AtWork,
    AsAnotherProgram,
    BeforeItRan,
    NeverMade,
}

/// A child that is killed before its first instruction, by a process that traces this process.
fn never_run() -> libc::pid_t {
    let (reader, writer) = sys::pipe();
    // SAFETY: takes no pointers.
    let us = unsafe { libc::getpid() };
    let options = libc::PTRACE_O_TRACEFORK as usize;
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    let tracer = in_child(|| {
        let (mut status, mut child) = (0, 0 as libc::c_long);
        // SAFETY: `status` and `child` are writable; the other arguments are numbers.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, us, 0usize, options), 0);
            sys::write(writer, b".").value();
            assert_eq!(libc::waitpid(us, &mut status, libc::__WALL), us);
            libc::ptrace(libc::PTRACE_GETEVENTMSG, us, 0usize, &raw mut child);
            let child = child as libc::pid_t;
            assert_eq!(libc::kill(child, libc::SIGKILL), 0);
            libc::ptrace(libc::PTRACE_DETACH, us, 0usize, 0usize);
            libc::waitpid(child, &mut status, libc::__WALL) == child
        }
    });
    sys::read(reader, &mut [0; 1]).value();
    let child = in_child(|| true);
    assert_eq!(sys::wait_for(tracer), "exit 0");
    child
}

/// A fork that the kernel refuses: signal handlers can be shared only together with memory
/// (clone(2)).
fn never_made() -> String {
    // SAFETY: the kernel refuses the call, so nothing is shared.
    sys::ret(unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_SIGHAND, 0, 0, 0, 0) }).to_string()
}

/// A child that already holds the connection when this function returns.
fn holds(pair: &Pair, wait: Fd, executes: bool) -> libc::pid_t {
    let (reader, writer) = sys::pipe();
    let child = in_child(|| {
        sys::write(writer, b".").value();
        if executes {
            sys::fcntl(pair.fd, libc::F_SETFD, 0).value();
            let error = std::os::unix::process::CommandExt::exec(Command::new("sleep").arg("60"));
            panic!("exec failed: {error}");
        }
        sys::read(wait, &mut [0; 1]).value() == 2
    });
    sys::read(reader, &mut [0; 1]).value();
    std::thread::sleep(std::time::Duration::from_millis(30));
    child
}

/// Three processes hold the connection. One process is killed, and one closes the connection and
/// lives on. The last process closes it: that close is an orderly end, although no process has
/// taken the last wake-up off the carrier.
fn killed_holder(pair: &Pair, how: Killed) {
    if !pair.server() {
        pair.step();
        send_all(pair.fd, b"wake up");
        pair.step();
        pair.say("received", drain(pair.fd));
        pair.step();
        return;
    }
    let (wait, go) = sys::pipe();
    let lives_on = in_child(|| {
        sys::close(pair.fd).value();
        sys::read(wait, &mut [0; 1]).value() == 1
    });
    match how {
        Killed::AtWork | Killed::AsAnotherProgram => {
            let child = holds(pair, wait, how == Killed::AsAnotherProgram);
            // SAFETY: our child, not reaped yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
            pair.say("killed", sys::wait_for(child));
        }
        Killed::BeforeItRan => pair.say("killed", sys::wait_for(never_run())),
        Killed::NeverMade => pair.say("clone", never_made()),
    }
    pair.step();
    pair.say("right", receives(pair.fd, b"wake up"));
    send_all(pair.fd, b"the last words");
    pair.step();
    pair.say("close", sys::close(pair.fd));
    pair.step();
    sys::write(go, b".").value();
    pair.say("the other", sys::wait_for(lives_on));
}

/// A connection that only one process holds is accelerated, whatever `event` came before.
fn unshared(role: &Role, event: impl Fn() -> String) {
    let (wait, go) = sys::pipe();
    // Other children live.
    let lives_on = in_child(|| sys::read(wait, &mut [0; 1]).value() == 1);
    let fd = role.meet();
    if role.server() {
        role.say("event", event());
    }
    role.warm(fd);
    role.step();
    sys::write(go, b".").value();
    role.say("the other", sys::wait_for(lives_on));
}

fn grandchild(pair: &Pair) {
    let bytes = sample(300_000);
    if pair.server() {
        send_all(pair.fd, &bytes);
        pair.say("reply", drain(pair.fd));
    } else {
        let child = in_child(|| {
            let child = in_child(|| {
                let right = receives(pair.fd, &bytes);
                send_all(pair.fd, b"from the grandchild");
                right
            });
            sys::wait_for(child) == "exit 0"
        });
        sys::close(pair.fd).value();
        pair.say("child", sys::wait_for(child));
    }
}

fn spawned(pair: &Pair) {
    for round in 0..5 {
        if pair.server() == (round % 2 == 0) {
            // The standard library spawns by posix_spawn, which uses vfork.
            let status = Command::new("/bin/true").stdin(Stdio::null()).status();
            pair.say("true", status.expect("true is everywhere"));
            // SAFETY: the command is a constant without input.
            pair.say(
                "system",
                sys::ret(unsafe { libc::system(sys::text(c"exit 3")) } >> 8),
            );
            send_all(pair.fd, b"done");
        } else {
            let mut bytes = [0; 4];
            receive_all(pair.fd, &mut bytes);
            pair.say("received", shown(&bytes));
        }
    }
    pair.step();
}

fn fork_under_traffic(pair: &Pair) {
    const LEN: usize = 20_000_000;
    let bytes = sample(LEN);
    if pair.server() {
        send_all(pair.fd, &bytes);
        pair.step();
    } else {
        let (mut sum, mut received) = (Checksum::default(), 0);
        let mut part = vec![0; 50_000];
        let mut forked = 0;
        while received < LEN {
            let result = sys::recv(pair.fd, &mut part, 0);
            assert!(result.value() > 0);
            sum.add(&part[..result.len()]);
            received += result.len();
            if received / 1_000_000 > forked {
                forked += 1;
                // A database writes its snapshots this way: the child never touches the connection.
                let child = in_child(|| true);
                assert_eq!(sys::wait_for(child), "exit 0");
            }
        }
        pair.say("right", sum.to_string() == Checksum::of(&bytes).to_string());
        pair.say("forks", forked);
        pair.step();
    }
}

fn shared_epoll(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"data");
        pair.say("reply", drain(pair.fd));
    } else {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 4).value();
        let child = in_child(|| {
            let (result, events) = sys::epoll_wait(epoll, 4, -1);
            let right = result.len() == 1 && events[0] == (4, 1) && receives(pair.fd, b"data");
            send_all(pair.fd, b"seen");
            right
        });
        pair.step();
        pair.say("child", sys::wait_for(child));
        pair.say("parent", sys::epoll_wait(epoll, 4, 0).0);
    }
}

/// Children close the descriptors in both orders. Programs do so before they execute another
/// program or become a daemon.
fn closing_child(pair: &Pair) {
    const TIME_LIMIT_MS: i32 = 5000;
    const ROUNDS: usize = 4;
    if pair.server() {
        for _ in 0..ROUNDS {
            pair.step();
            send_all(pair.fd, b"data");
        }
        pair.step();
        return;
    }
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 4).value();
    let (wait, go) = sys::pipe();
    let mut children = Vec::new();
    for round in 0..ROUNDS {
        children.push(in_child(|| {
            let mut closed = [epoll, pair.fd];
            if round % 2 == 1 {
                closed.reverse();
            }
            for fd in closed {
                sys::close(fd).value();
            }
            // Two of the children live on.
            round < 2 || sys::read(wait, &mut [0; 1]).value() == 1
        }));
        std::thread::sleep(std::time::Duration::from_millis(10));
        pair.step();
        pair.say(
            "event",
            format!("{:?}", sys::epoll_wait(epoll, 4, TIME_LIMIT_MS)),
        );
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("quiet", format!("{:?}", sys::epoll_wait(epoll, 4, 0)));
    }
    sys::write(go, b"..").value();
    for child in children {
        pair.say("child", sys::wait_for(child));
    }
    pair.step();
}

/// Serves one connection: warms it up, then echoes until its end.
fn echo(role: &Role, fd: Fd) -> bool {
    role.warm(fd);
    send_back(fd)
}

/// Echoes until the end of a connection.
fn send_back(fd: Fd) -> bool {
    let mut bytes = vec![0; 10_000];
    loop {
        let result = sys::recv(fd, &mut bytes, 0);
        match result.0 {
            Ok(0) => {
                sys::close(fd).value();
                return true;
            }
            Ok(_) => send_all(fd, &bytes[..result.len()]),
            Err(libc::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// Exchanges bytes with an echoing server: true when all bytes came back.
fn talk(role: &Role, port: u16) -> bool {
    let fd = role.connect(port);
    role.warm(fd);
    let right = says_back(fd);
    sys::shutdown(fd, libc::SHUT_WR).value();
    let end = drain(fd);
    sys::close(fd).value();
    right && end.starts_with("0 bytes") && end.ends_with("EOF")
}

/// True when the server echoes all bytes.
fn says_back(fd: Fd) -> bool {
    sample(30_000).chunks(3000).all(|part| {
        send_all(fd, part);
        receives(fd, part)
    })
}

fn prefork(role: &Role) {
    const WORKERS: usize = 3;
    const CONNECTIONS: usize = 9;
    if role.server() {
        let listener = role.listen(libc::SOCK_NONBLOCK);
        let workers: Vec<libc::pid_t> = (0..WORKERS)
            .map(|_| {
                in_child(|| {
                    loop {
                        await_events(listener, libc::POLLIN);
                        let result = sys::accept(listener);
                        if !result.is(libc::EAGAIN) && !echo(role, result.fd()) {
                            return false;
                        }
                    }
                })
            })
            .collect();
        role.step();
        for worker in workers {
            // SAFETY: our child, not reaped yet.
            unsafe { libc::kill(worker, libc::SIGTERM) };
            role.say("worker", sys::wait_for(worker));
        }
    } else {
        let port = role.hear_port();
        for _ in 0..CONNECTIONS {
            role.say("served", talk(role, port));
        }
        role.step();
    }
}

fn accept_then_fork(role: &Role) {
    const CONNECTIONS: usize = 6;
    if role.server() {
        let listener = role.listen(0);
        let children: Vec<libc::pid_t> = (0..CONNECTIONS)
            .map(|_| {
                let fd = sys::accept(listener).fd();
                let child = in_child(|| {
                    sys::close(listener).value();
                    echo(role, fd)
                });
                sys::close(fd).value();
                child
            })
            .collect();
        for child in children {
            role.say("child", sys::wait_for(child));
        }
    } else {
        let port = role.hear_port();
        for _ in 0..CONNECTIONS {
            role.say("served", talk(role, port));
        }
    }
}

/// A process accepts a connection, leaves it to a child, closes its own descriptor and ends. Then
/// another process of the family accepts a connection, whose number is the first one's number.
fn child_of_an_acceptor(role: &Role, end: impl FnOnce() -> bool) {
    if role.server() {
        let listener = role.listen(0);
        let (is_over, over) = sys::pipe();
        let acceptor = in_child(|| {
            let fd = sys::accept(listener).fd();
            role.warm(fd);
            in_child(|| {
                sys::close(listener).value();
                send_back(fd)
            });
            sys::close(fd).value();
            end()
        });
        role.say("acceptor", sys::wait_for(acceptor));
        let fd = sys::accept(listener).fd();
        role.say("echoed", echo(role, fd));
        sys::close(over).value();
        role.say("child has ended", sys::read(is_over, &mut [0; 1]));
    } else {
        let port = role.hear_port();
        let first = role.connect(port);
        role.warm(first);
        role.say("second", talk(role, port));
        role.say("first", says_back(first));
        sys::close(first).value();
    }
}

fn child_connects(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        for _ in 0..2 {
            let fd = sys::accept(listener).fd();
            role.say("echoed", echo(role, fd));
        }
    } else {
        let port = role.hear_port();
        let child = in_child(|| talk(role, port));
        role.say("child", sys::wait_for(child));
        role.say("parent", talk(role, port));
    }
}

/// A process and its child write at the same time. The two processes do not see each other's
/// process IDs.
fn pid_namespace(pair: &Pair) {
    const PIECES: usize = 100;
    const PIECE_BYTES: usize = 256 << 10;
    if pair.server() {
        let mut counts = [0usize; 256];
        let mut bytes = vec![0; 1 << 16];
        loop {
            let got = sys::recv(pair.fd, &mut bytes, 0).len();
            if got == 0 {
                break;
            }
            bytes[..got]
                .iter()
                .for_each(|&byte| counts[usize::from(byte)] += 1);
        }
        let seen = counts.iter().enumerate().filter(|(_, count)| **count != 0);
        pair.say("bytes", format!("{:?}", seen.collect::<Vec<_>>()));
        return;
    }
    let write = |byte: u8| (0..PIECES).for_each(|_| send_all(pair.fd, &[byte; PIECE_BYTES]));
    // SAFETY: no memory is involved.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWPID) };
    pair.say("unshare", sys::ret(unshared));
    let child = sys::fork();
    if child == 0 {
        write(b'c');
        sys::exit_now(0);
    }
    write(b'p');
    pair.say("child", sys::wait_for(child));
    let by_kernel = bytes_acknowledged(pair.fd) > (PIECES * PIECE_BYTES) as u64;
    pair.say("most went by the kernel", by_kernel);
    sys::close(pair.fd).value();
}

/// `tcpi_bytes_acked`: the number of bytes that the kernel has sent and the other end has
/// acknowledged.
fn bytes_acknowledged(fd: sys::Fd) -> u64 {
    const BYTES_ACKED: usize = 120;
    let mut info = [0u8; 136];
    let mut len = 136;
    // SAFETY: `info` is writable for `len` bytes.
    let result = unsafe {
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        libc::getsockopt(fd, level, name, info.as_mut_ptr().cast(), &raw mut len)
    };
    sys::ret(result).value();
    let bytes = info[BYTES_ACKED..].first_chunk().expect("eight bytes");
    u64::from_ne_bytes(*bytes)
}
