//! Listeners that end by other calls than `close`.

use std::thread;
use std::time::Duration;

use crate::Case;
use crate::role::{Role, receive_all, send_all, shown};
use crate::stdio::Stream;
use crate::sys::{self, Fd, Ret};

pub(crate) const CASES: &[Case] = &[
    Case::roles("listener_that_dup2_replaces_refuses", |role| {
        ends(role, |listener| {
            let (read, _write) = sys::pipe();
            sys::dup2(read, listener).value();
        });
    }),
    Case::roles("listener_that_dup3_replaces_refuses", |role| {
        ends(role, |listener| {
            let (read, _write) = sys::pipe();
            sys::dup3(read, listener, libc::O_CLOEXEC).value();
        });
    }),
    Case::roles("listener_that_is_closed_in_a_range_refuses", |role| {
        ends(role, |listener| {
            let fd = listener as u32;
            // SAFETY: takes no pointers.
            sys::ret(unsafe { libc::close_range(fd, fd, 0) }).value();
        });
    }),
    Case::roles("listener_that_is_shut_for_reading_refuses", |role| {
        ends(role, |listener| {
            sys::shutdown(listener, libc::SHUT_RD).value();
        });
    }),
    Case::roles("listener_that_is_shut_refuses", |role| {
        ends(role, |listener| {
            sys::shutdown(listener, libc::SHUT_RDWR).value();
        });
    }),
    Case::roles("listener_that_fclose_closes_refuses", |role| {
        ends(role, |listener| {
            assert_eq!(Stream::open(listener, c"r").close(), 0);
        });
    }),
    Case::roles("listener_that_freopen_closes_refuses", |role| {
        ends(role, |listener| {
            Stream::open(listener, c"r").reopen(c"/dev/null");
        });
    }),
    Case::roles("listener_that_disconnects_refuses", |role| {
        ends(role, |listener| {
            sys::disconnect(listener);
        });
    }),
    Case::roles("listener_of_a_program_that_ends_by_exec_refuses", |role| {
        of_child(role, || crate::exec::execute(&["nothing"]));
    }),
    Case::roles(
        "listener_that_listens_again_has_its_new_backlog",
        fewer_may_wait,
    ),
    Case::roles("port_of_a_closed_listener_is_free", |role| {
        frees_its_port(role, |role, listener| {
            serve(role, listener);
            sys::close(listener).value();
        });
    }),
    Case::roles("port_of_a_server_that_ended_is_free", |role| {
        frees_its_port(role, |role, listener| {
            let child = sys::fork();
            if child == 0 {
                serve(role, listener);
                sys::exit_now(0);
            }
            sys::close(listener).value();
            role.say("child", sys::wait_for(child));
        });
    }),
    Case::roles("listener_of_a_killed_child_refuses", |role| {
        of_child(role, || {
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            unreachable!("killed");
        });
    }),
];

/// A listener whose port another one may have as soon as it has ended. (The client's library may
/// keep a carrier open for a while.)
fn listen(role: &Role) -> (Fd, u16) {
    let listener = sys::socket(role.family, libc::SOCK_NONBLOCK);
    sys::set_option(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).value();
    sys::bind_anywhere(listener, role.family).value();
    sys::listen(listener, 8).value();
    (listener, sys::name(listener, false).expect("bound").2)
}

/// Fewer connections than before may wait for `accept`. (Carriers, the kernel and an engine each
/// let some wait.) Before, there were many at a time, with a carrier each.
fn fewer_may_wait(role: &Role) {
    const BACKLOG: i32 = 1;
    const MANY: usize = 8;
    const ROUNDS: usize = 3;
    let mut bytes = *b"turn";
    if role.server() {
        let (listener, port) = listen(role);
        role.tell(u32::from(port));
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN, 1).value();
        for _ in 0..ROUNDS {
            let accept = |_| {
                sys::epoll_wait(epoll, 1, 20_000).0.value();
                let fd = sys::accept(listener).fd();
                receive_all(fd, &mut bytes);
                send_all(fd, &bytes);
                role.step();
                fd
            };
            let many: Vec<Fd> = (0..MANY).map(accept).collect();
            role.step();
            for fd in many {
                sys::read(fd, &mut [0; 4]);
                sys::close(fd).value();
            }
            role.step();
        }
        role.say("listen", sys::listen(listener, BACKLOG));
        role.step();
        role.step();
    } else {
        let port = role.hear_port();
        for _ in 0..ROUNDS {
            let connect = |_| {
                let fd = role.connect(port);
                send_all(fd, &bytes);
                receive_all(fd, &mut bytes);
                role.step();
                fd
            };
            let many: Vec<Fd> = (0..MANY).map(connect).collect();
            many.into_iter().for_each(|fd| {
                sys::close(fd).value();
            });
            role.step();
            role.step();
        }
        role.step();
        let is_connected = |fd: &Fd| {
            let result = sys::connect(*fd, role.family, port);
            // Over a network the answer comes later.
            result.0.is_ok() || sys::poll(&[(*fd, libc::POLLOUT)], 500).0.len() == 1
        };
        let all = (0..MANY).map(|_| sys::socket(role.family, libc::SOCK_NONBLOCK));
        let waiting = all.take_while(is_connected).count();
        role.say("few", (1..MANY).contains(&waiting));
        role.step();
    }
}

/// Another listener may have the port of a server without `SO_REUSEADDR` as soon as the server has
/// ended, if its clients have closed their connections first.
fn frees_its_port(role: &Role, server: impl Fn(&Role, Fd)) {
    if role.server() {
        let listener = sys::socket(role.family, libc::SOCK_NONBLOCK);
        sys::bind_anywhere(listener, role.family).value();
        sys::listen(listener, 8).value();
        let port = sys::name(listener, false).expect("bound").2;
        role.tell(u32::from(port));
        server(role, listener);
        let next = sys::socket(role.family, 0);
        role.say("bind", bind_soon(next, role.family, port));
        role.say("listen", sys::listen(next, 8));
    } else {
        let port = role.hear_port();
        ask(role, port);
    }
    role.step();
}

/// Binds to a port whose last connections have ended in order. The kernel keeps such a connection
/// until its last acknowledgement has come, and over a link that takes a moment. A port in
/// TIME_WAIT would stay in use for a minute.
fn bind_soon(socket: Fd, family: i32, port: u16) -> Ret {
    const TRIES: usize = 500;
    for _ in 1..TRIES {
        let bound = sys::bind_port(socket, family, port);
        if !bound.is(libc::EADDRINUSE) {
            return bound;
        }
        thread::sleep(Duration::from_millis(10));
    }
    sys::bind_port(socket, family, port)
}

/// Makes short connections through `listener`, by an epoll instance, as a server does. The last of
/// them remain open.
fn serve(role: &Role, listener: Fd) {
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN, 1).value();
    for _ in 0..SHORT {
        sys::epoll_wait(epoll, 1, 20_000).0.value();
        let fd = sys::accept(listener).fd();
        let mut bytes = [0; 4];
        receive_all(fd, &mut bytes);
        send_all(fd, &bytes);
        sys::read(fd, &mut bytes);
        sys::close(fd).value();
        role.step();
    }
}

/// The client's part of [`serve`].
fn ask(role: &Role, port: u16) {
    for _ in 0..SHORT {
        let fd = role.connect(port);
        let mut bytes = *b"turn";
        send_all(fd, &bytes);
        receive_all(fd, &mut bytes);
        sys::close(fd).value();
        role.step();
    }
}

const SHORT: usize = 6;

/// `end` ends a listener that has a waiting connection. Then the port has a new listener.
fn ends(role: &Role, end: impl Fn(Fd)) {
    if role.server() {
        let (listener, port) = listen(role);
        role.tell(u32::from(port));
        serve(role, listener);
        role.step();
        role.step();
        end(listener);
        role.step();
        role.step();
        let _ = sys::close(listener);
        again(role, port);
    } else {
        let port = role.hear_port();
        ask(role, port);
        role.step();
        let waiting = role.connect(port);
        role.say("sent", sys::send(waiting, b"hello", 0));
        role.step();
        role.step();
        role.say("refused", connected(role, port));
        role.say("waiting", sys::recv(waiting, &mut [0; 5], 0));
        role.say("waiting", sys::recv(waiting, &mut [0; 5], 0));
        role.step();
        again(role, port);
    }
}

/// The result of a connect to `port`, once it is refused: the engine hears a moment later that a
/// listener has ended.
fn connected(role: &Role, port: u16) -> sys::Ret {
    let start = std::time::Instant::now();
    loop {
        let fd = sys::socket(role.family, 0);
        let result = sys::connect(fd, role.family, port);
        sys::close(fd).value();
        if result.is(libc::ECONNREFUSED) || start.elapsed() > REFUSED_WITHIN {
            return result;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

const REFUSED_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);

/// A new listener at the port serves a connection.
fn again(role: &Role, port: u16) {
    if role.server() {
        let listener = sys::socket(role.family, 0);
        sys::set_option(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).value();
        role.say("bind", sys::bind_port(listener, role.family, port));
        role.say("listen", sys::listen(listener, 8));
        role.step();
        let fd = sys::accept(listener).fd();
        role.warm(fd);
        send_all(fd, b"afresh");
    } else {
        role.step();
        let fd = role.connect(port);
        role.warm(fd);
        let mut bytes = [0; 6];
        receive_all(fd, &mut bytes);
        role.say("received", shown(&bytes));
    }
    role.step();
}

/// Parent and child have the listener. The parent's descriptor is closed first, and then the child
/// ends.
fn of_child(role: &Role, end: impl Fn()) {
    if role.server() {
        let (listener, port) = listen(role);
        let child = sys::fork();
        if child == 0 {
            role.tell(u32::from(port));
            serve(role, listener);
            role.step();
            role.step();
            end();
        }
        sys::close(listener).value();
        role.say("child", sys::wait_for(child));
        role.step();
        role.step();
        again(role, port);
    } else {
        let port = role.hear_port();
        ask(role, port);
        role.step();
        let waiting = role.connect(port);
        role.say("sent", sys::send(waiting, b"hello", 0));
        role.step();
        role.step();
        role.say("refused", connected(role, port));
        role.say("waiting", sys::recv(waiting, &mut [0; 5], 0));
        role.step();
        again(role, port);
    }
}
