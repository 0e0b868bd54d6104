//! Many connections, of which few are active.

use crate::Case;
use crate::role::{Role, receive_all, send_all};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::roles("hundred_active_connections_are_all_served", hundred),
    Case::roles("ten_active_among_ten_thousand_connections", ten_thousand),
    Case::roles("thousand_short_connections_one_after_another", short),
    Case::roles(
        "listeners_outside_an_instance_accept_hundreds",
        outside_an_instance,
    ),
    Case::roles(
        "sleeper_is_woken_by_any_of_many_members_of_two_instances",
        members_of_two,
    ),
];

/// Serves `count` connections with one epoll instance: echoes the bytes of each connection.
fn serve(role: &Role, count: usize) {
    let listener = role.listen(libc::SOCK_NONBLOCK);
    let epoll = sys::epoll_create();
    let watch = |fd: Fd| {
        sys::epoll_ctl(
            epoll,
            libc::EPOLL_CTL_ADD,
            fd,
            libc::EPOLLIN,
            u64::from(fd.cast_unsigned()),
        )
        .value()
    };
    watch(listener);
    let (mut accepted, mut ended) = (0, 0);
    let mut bytes = vec![0; 70_000];
    while ended < count {
        let (_, events) = sys::epoll_wait(epoll, 256, -1);
        for (data, _) in events {
            let fd = Fd::try_from(data).expect("we put a descriptor there");
            if fd == listener {
                loop {
                    let result = sys::accept4(listener, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
                    if result.is(libc::EAGAIN) {
                        break;
                    }
                    watch(result.fd());
                    accepted += 1;
                }
                continue;
            }
            let result = sys::recv(fd, &mut bytes, 0);
            match result.0 {
                Ok(0) => {
                    ended += 1;
                    sys::close(fd).value();
                }
                Ok(_) => send_all(fd, &bytes[..result.len()]),
                Err(errno) => assert_eq!(errno, libc::EAGAIN),
            }
        }
    }
    role.say("accepted", accepted);
    role.say("ended", ended);
}

/// Each of the server's many connections is a member of two instances. The server sleeps on one of
/// the instances.
fn members_of_two(role: &Role) {
    /// More than a sleep has room for, and more than it maps room for at first.
    const CONNECTIONS: usize = 1_300;
    /// Enough for a connection to move to shared memory.
    const MESSAGES: usize = 30;
    const ASLEEP: [usize; 4] = [0, CONNECTIONS / 2, CONNECTIONS - 1, 1];
    let arrivals = role.server().then(|| {
        let (listener, epoll) = (role.listen(libc::SOCK_NONBLOCK), sys::epoll_create());
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN, 1).value();
        (listener, epoll)
    });
    let port = if role.server() { 0 } else { role.hear_port() };
    let connections: Vec<Fd> = (0..CONNECTIONS)
        .map(|_| {
            let fd = match arrivals {
                Some((listener, epoll)) => {
                    sys::epoll_wait(epoll, 1, -1).0.value();
                    sys::accept(listener).fd()
                }
                None => role.connect(port),
            };
            role.step();
            fd
        })
        .collect();
    if !role.server() {
        for round in 0..MESSAGES {
            let message = [round as u8; 60];
            connections.iter().for_each(|fd| send_all(*fd, &message));
            for fd in &connections {
                let mut reply = [0; 60];
                receive_all(*fd, &mut reply);
                assert_eq!(reply, message);
            }
        }
        role.step();
        for number in ASLEEP {
            role.step_to_sleeper();
            send_all(connections[number], b"!");
            role.step();
        }
        // The connections stay open until the server has slept for the last time.
        role.step();
        return;
    }
    let epolls = [(); 2].map(|()| sys::epoll_create());
    for (number, fd) in connections.iter().enumerate() {
        for epoll in epolls {
            let (add, readable) = (libc::EPOLL_CTL_ADD, libc::EPOLLIN);
            sys::epoll_ctl(epoll, add, *fd, readable, number as u64).value();
        }
    }
    let wait = |ms| sys::epoll_wait(epolls[0], 256, ms);
    let mut served = 0;
    while served < MESSAGES * CONNECTIONS {
        let (_, events) = wait(-1);
        served += events.len();
        for (number, _) in events {
            let (fd, mut bytes) = (connections[number as usize], [0; 60]);
            receive_all(fd, &mut bytes);
            send_all(fd, &bytes);
        }
    }
    role.step();
    for number in ASLEEP {
        role.step_to_sleep();
        let (result, events) = wait(5_000);
        role.say("woken", format!("{result} {events:?}"));
        receive_all(connections[number], &mut [0; 1]);
        role.step();
    }
    let sleep_many_times = || (0..20).for_each(|_| assert!(wait(5).1.is_empty()));
    sleep_many_times();
    let before = mapped_pages();
    sleep_many_times();
    role.say("pages that sleeps keep", mapped_pages() - before);
    role.step();
}

/// A way to wait for a connection without an epoll instance, and to accept it.
type Accept = fn(Fd) -> sys::Ret;
const ACCEPTORS: [(&str, Accept); 3] = [
    ("accept", sys::accept),
    ("accept with a time limit", |listener| {
        let limit = libc::timeval {
            tv_sec: 60,
            tv_usec: 0,
        };
        sys::set_option(listener, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit).value();
        sys::accept4(listener, libc::SOCK_CLOEXEC)
    }),
    ("poll", |listener| {
        sys::poll(&[(listener, libc::POLLIN)], -1).0.value();
        sys::accept(listener)
    }),
];

/// Two threads and a child accept the connections of one listener. Half of the connections stay
/// open until all have been made.
fn outside_an_instance(role: &Role) {
    const CONNECTIONS: usize = 300;
    for (name, accept) in ACCEPTORS {
        if role.server() {
            let listener = role.listen(0);
            let serve = || {
                let mut kept = Vec::new();
                while let Ok(fd) = accept(listener).0 {
                    let (fd, mut bytes) = (fd as Fd, [0; 60]);
                    receive_all(fd, &mut bytes);
                    send_all(fd, &bytes);
                    keep_or_close(fd, bytes[0].into(), &mut kept);
                }
                close_all(&kept);
            };
            let child = sys::fork();
            if child == 0 {
                serve();
                sys::exit_now(0);
            }
            std::thread::scope(|scope| {
                (0..2).for_each(|_| drop(scope.spawn(serve)));
                role.step();
                // All acceptors end.
                sys::shutdown(listener, libc::SHUT_RDWR).value();
            });
            role.say(name, sys::wait_for(child));
            sys::close(listener).value();
        } else {
            let port = role.hear_port();
            let mut kept = Vec::new();
            for number in 0..CONNECTIONS {
                let fd = role.connect(port);
                echo(fd, number);
                keep_or_close(fd, number, &mut kept);
            }
            role.say(name, kept.len());
            role.step();
            close_all(&kept);
        }
    }
}

fn keep_or_close(fd: Fd, number: usize, kept: &mut Vec<Fd>) {
    match number % 2 {
        0 => kept.push(fd),
        _ => assert_eq!(sys::close(fd).value(), 0),
    }
}

fn close_all(connections: &[Fd]) {
    connections
        .iter()
        .for_each(|fd| assert_eq!(sys::close(*fd).value(), 0));
}

/// Pages that are mapped into this process.
pub(crate) fn mapped_pages() -> usize {
    let counts = std::fs::read_to_string("/proc/self/statm").expect("proc(5)");
    let mut counts = counts.split(' ');
    counts
        .next()
        .and_then(|count| count.parse().ok())
        .expect("a number")
}

/// Sends a message and expects the echo.
fn echo(fd: Fd, number: usize) {
    let message = [number as u8; 60];
    send_all(fd, &message);
    let mut reply = [0; 60];
    receive_all(fd, &mut reply);
    assert_eq!(reply, message);
}

fn hundred(role: &Role) {
    if role.server() {
        serve(role, 100);
        return;
    }
    let port = role.hear_port();
    let connections: Vec<Fd> = (0..100).map(|_| role.connect(port)).collect();
    for round in 0..300 {
        connections.iter().for_each(|fd| echo(*fd, round));
    }
    // Then messages on all connections together.
    for fd in &connections {
        send_all(*fd, &[1; 5000]);
    }
    for fd in &connections {
        receive_all(*fd, &mut [0; 5000]);
    }
    close_all(&connections);
    role.say("all served", true);
}

fn ten_thousand(role: &Role) {
    const CONNECTIONS: usize = 10_000;
    const ACTIVE: usize = 10;
    // Each connection moves from its carrier in the first few dozen rounds.
    const ROUNDS: usize = 1_000;
    let limit = libc::rlimit {
        rlim_cur: 20_000,
        rlim_max: 20_000,
    };
    // SAFETY: the limit is live.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0;
    // A host with a lower limit gets fewer connections. The limit must be equal in both runs.
    let connections = if raised { CONNECTIONS } else { 500 };
    if role.server() {
        serve(role, connections);
        return;
    }
    let port = role.hear_port();
    // A busy host takes long for each of these steps. The lines show that the case makes progress.
    let connect = |number| {
        if number % (CONNECTIONS / 10) == 0 {
            role.say("connections", number);
        }
        role.connect(port)
    };
    let connections: Vec<Fd> = (0..connections).map(connect).collect();
    role.say("connections", connections.len());
    connections.iter().for_each(|fd| echo(*fd, 0));
    role.say("served once", connections.len());
    let active: Vec<Fd> = connections
        .iter()
        .step_by(CONNECTIONS / ACTIVE)
        .copied()
        .collect();
    for round in 0..ROUNDS {
        active.iter().for_each(|fd| echo(*fd, round));
    }
    role.say("active", active.len());
    // The quiet connections have lost nothing.
    connections.iter().for_each(|fd| echo(*fd, 1));
    role.say("served twice", connections.len());
    close_all(&connections);
}

fn short(role: &Role) {
    const CONNECTIONS: usize = 1000;
    if role.server() {
        serve(role, CONNECTIONS);
        return;
    }
    let port = role.hear_port();
    for number in 0..CONNECTIONS {
        let fd = role.connect(port);
        echo(fd, number);
        sys::close(fd).value();
    }
    role.say("served", CONNECTIONS);
}
