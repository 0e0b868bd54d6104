//! The beginning of a connection: connect, listen, accept, names and refusals.

use crate::Case;
use crate::role::{Pair, Role, await_events, drain, receive_all, send_all, shown};
use crate::sys;

pub(crate) const CASES: &[Case] = &[
    Case::roles(
        "nonblocking_connect_completes_with_pollout",
        nonblocking_connect,
    ),
    Case::roles("refused_connect_says_so", refused),
    Case::roles(
        "refused_nonblocking_connect_leaves_the_error",
        refused_nonblocking,
    ),
    Case::roles("accept4_sets_the_flags_it_was_given", accept4_flags),
    Case::roles(
        "nonblocking_accept_finds_nothing_then_something",
        nonblocking_accept,
    ),
    Case::roles("connection_waits_in_the_backlog_with_its_data", backlog),
    Case::roles(
        "one_listener_serves_one_connection_after_another",
        one_after_another,
    ),
    Case::pair("names_are_the_addresses_of_both_ends", names),
    Case::pair6("names_are_the_addresses_of_both_ends_ipv6", names),
    Case::pair("connected_socket_refuses_a_second_connect", second_connect),
    Case::roles("socket_that_disconnects_is_as_new", disconnecting),
    Case::roles("refused_socket_leaves_its_port_to_others", port_is_left),
    Case::roles(
        "refused_socket_leaves_its_port_to_others_ipv6",
        port_is_left6,
    ),
    Case::pair("options_keep_what_was_set", options),
];

fn nonblocking_connect(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        let fd = sys::accept(listener).fd();
        role.warm(fd);
        role.step();
        return;
    }
    let port = role.hear_port();
    let fd = sys::socket(role.family, libc::SOCK_NONBLOCK);
    let first = sys::connect(fd, role.family, port);
    // On loopback the handshake may be complete before the call returns.
    role.say(
        "connect in progress or done",
        first.is(libc::EINPROGRESS) || first.0.is_ok(),
    );
    await_events(fd, libc::POLLOUT);
    role.say("SO_ERROR", sys::socket_error(fd));
    role.say(
        "events",
        format!("{:?}", sys::poll(&[(fd, libc::POLLIN | libc::POLLOUT)], 0)),
    );
    let done = match first {
        first if first.is(libc::EINPROGRESS) => sys::connect(fd, role.family, port),
        first => first,
    };
    role.say("connect", done);
    role.say("connect again", sys::connect(fd, role.family, port));
    role.warm(fd);
    role.say(
        "recv",
        sys::recv(fd, &mut [0; 8], libc::MSG_PEEK | libc::MSG_DONTWAIT).is(libc::EAGAIN),
    );
    role.step();
}

fn refused(role: &Role) {
    if role.server() {
        return;
    }
    let fd = sys::socket(role.family, 0);
    role.say("connect", sys::connect(fd, role.family, unused_port(role)));
    role.say("SO_ERROR", sys::socket_error(fd));
    role.say(
        "getpeername",
        sys::name(fd, true).is_err_and(|result| result.is(libc::ENOTCONN)),
    );
    role.say("send", sys::send(fd, b"x", libc::MSG_NOSIGNAL));
    role.say("recv", sys::recv(fd, &mut [0; 8], 0));
}

fn refused_nonblocking(role: &Role) {
    if role.server() {
        return;
    }
    let fd = sys::socket(role.family, libc::SOCK_NONBLOCK);
    let result = sys::connect(fd, role.family, unused_port(role));
    if result.is(libc::EINPROGRESS) {
        await_events(fd, libc::POLLOUT);
        role.say(
            "events",
            format!("{:?}", sys::poll(&[(fd, libc::POLLIN | libc::POLLOUT)], 0)),
        );
        role.say("SO_ERROR", sys::socket_error(fd));
        role.say("SO_ERROR again", sys::socket_error(fd));
    } else {
        role.say("connect", result);
    }
}

/// A port without a listener: a socket is bound to the port, but does not listen.
fn unused_port(role: &Role) -> u16 {
    let fd = sys::socket(role.family, 0);
    match role.family {
        libc::AF_UNIX => sys::bind_anywhere(fd, role.family).value(),
        // This is not the address where the roles meet, because that may be an address of another
        // host.
        family => sys::bind(fd, sys::loopback(family, 0)).value(),
    };
    sys::name(fd, false).expect("bound").2
}

fn accept4_flags(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        for flags in [
            0,
            libc::SOCK_NONBLOCK,
            libc::SOCK_CLOEXEC,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        ] {
            let fd = sys::accept4(listener, flags).fd();
            let status = sys::fcntl(fd, libc::F_GETFL, 0).value() as i32;
            let descriptor = sys::fcntl(fd, libc::F_GETFD, 0).value() as i32;
            let cloexec = descriptor & libc::FD_CLOEXEC != 0;
            role.say(
                "O_NONBLOCK, FD_CLOEXEC",
                format!("{} {cloexec}", status & libc::O_NONBLOCK != 0),
            );
            role.warm(fd);
            let status = sys::fcntl(fd, libc::F_GETFL, 0).value() as i32;
            role.say("still O_NONBLOCK", status & libc::O_NONBLOCK != 0);
            sys::close(fd).value();
        }
        role.say("accept4 with a bad flag", sys::accept4(listener, 0x1234));
    } else {
        let port = role.hear_port();
        for _ in 0..4 {
            let fd = role.connect(port);
            role.warm(fd);
            role.say("EOF", sys::recv(fd, &mut [0; 1], 0));
        }
    }
}

fn nonblocking_accept(role: &Role) {
    if role.server() {
        let listener = role.listen(libc::SOCK_NONBLOCK);
        role.say("accept before", sys::accept(listener));
        role.say(
            "poll before",
            format!("{:?}", sys::poll(&[(listener, libc::POLLIN)], 0)),
        );
        role.step();
        await_events(listener, libc::POLLIN);
        let fd = sys::accept(listener).fd();
        role.say("accept after", sys::accept(listener));
        role.warm(fd);
    } else {
        let port = role.hear_port();
        role.step();
        let fd = role.connect(port);
        role.warm(fd);
    }
}

fn backlog(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        role.step();
        let fd = sys::accept(listener).fd();
        let mut bytes = [0; 5];
        receive_all(fd, &mut bytes);
        role.say("received", shown(&bytes));
        send_all(fd, b"world");
        role.warm(fd);
    } else {
        let fd = role.connect(role.hear_port());
        role.say("send before accept", sys::send(fd, b"hello", 0));
        role.step();
        let mut bytes = [0; 5];
        receive_all(fd, &mut bytes);
        role.say("received", shown(&bytes));
        role.warm(fd);
    }
}

fn one_after_another(role: &Role) {
    const CONNECTIONS: u8 = 20;
    let listener = role.server().then(|| role.listen(0));
    let port = if role.server() { 0 } else { role.hear_port() };
    for number in 0..CONNECTIONS {
        let fd = match listener {
            Some(listener) => sys::accept(listener).fd(),
            None => role.connect(port),
        };
        if number % 4 == 3 {
            role.warm(fd);
        }
        send_all(fd, &[number]);
        let mut byte = [0];
        receive_all(fd, &mut byte);
        role.say("number", byte[0]);
        role.step();
        role.say("close", sys::close(fd));
    }
}

fn names(pair: &Pair) {
    let (own, other) = (
        sys::name(pair.fd, false).expect("own"),
        sys::name(pair.fd, true).expect("other"),
    );
    pair.say("own address", format!("{} {}", own.0, own.1));
    pair.say("other address", format!("{} {}", other.0, other.1));
    pair.tell(u32::from(own.2));
    pair.say(
        "the other's port is the one it has",
        pair.hear() == u32::from(other.2),
    );
}

fn second_connect(pair: &Pair) {
    pair.say("connect", sys::connect(pair.fd, pair.family, 9));
    pair.say("listen", sys::listen(pair.fd, 1));
    pair.say("accept", sys::accept(pair.fd));
    pair.step();
    send_all(pair.fd, b"fine");
    let mut bytes = [0; 4];
    receive_all(pair.fd, &mut bytes);
    pair.say("still connected", shown(&bytes));
}

fn disconnecting(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        for _ in 0..2 {
            let fd = sys::accept(listener).fd();
            role.warm(fd);
            role.step();
            role.say("then", drain(fd));
            role.step();
        }
        return;
    }
    let port = role.hear_port();
    let fd = role.connect(port);
    role.warm(fd);
    role.step();
    role.say("disconnect", sys::disconnect(fd));
    role.say(
        "getpeername",
        sys::name(fd, true).is_err_and(|result| result.is(libc::ENOTCONN)),
    );
    role.say("send", sys::send(fd, b"x", libc::MSG_NOSIGNAL));
    role.step();
    role.say("connect", sys::connect(fd, role.family, port));
    role.warm(fd);
    send_all(fd, b"fine");
    role.step();
    role.say("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    role.step();
}

/// A socket whose connection was refused keeps its address, but it frees its port: another socket
/// may take the port. A port that the program has bound stays bound.
fn port_is_left(role: &Role) {
    const CONNECTIONS: usize = 3;
    if role.server() {
        let listener = role.listen(0);
        (0..CONNECTIONS).for_each(|_| role.warm(sys::accept(listener).fd()));
        return role.step();
    }
    let port = role.hear_port();
    let own = |fd| sys::name(fd, false).expect("a name").2;
    let is_refused = |fd| {
        let result = sys::connect(fd, role.family, unused_port(role));
        assert!(result.is(libc::ECONNREFUSED), "{result:?}");
    };
    let (first, left, second) = loop {
        let (first, second) = (sys::socket(role.family, 0), sys::socket(role.family, 0));
        is_refused(first);
        let left = own(first);
        if bind_any(second, role.family, left).0.is_ok() {
            break (first, left, second);
        }
        // Another program has taken the port first.
    };
    let third = sys::socket(role.family, 0);
    role.say("bind", bind_any(third, role.family, 0));
    let bound = own(third);
    is_refused(third);
    for (name, fd) in [("second", second), ("first", first), ("third", third)] {
        role.say(name, sys::connect(fd, role.family, port));
        role.warm(fd);
    }
    role.say("the second has it", own(second) == left);
    role.say("the first has it", own(first) == left);
    role.say("the third has its own", own(third) == bound);
    role.step();
}

fn port_is_left6(role: &Role) {
    let family = libc::AF_INET6;
    port_is_left(&Role { family, ..*role });
}

/// bind(2) to a port at all addresses. The port may have been used already; 0 means any port.
fn bind_any(fd: sys::Fd, family: i32, port: u16) -> sys::Ret {
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    let any: std::net::IpAddr = match family {
        libc::AF_INET6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => std::net::Ipv4Addr::UNSPECIFIED.into(),
    };
    sys::bind(fd, (any, port).into())
}

fn options(pair: &Pair) {
    let fd = pair.fd;
    let tcp = libc::IPPROTO_TCP;
    let socket = libc::SOL_SOCKET;
    pair.say(
        "TCP_NODELAY",
        sys::set_option(fd, tcp, libc::TCP_NODELAY, 1),
    );
    pair.say("TCP_NODELAY is", sys::option(fd, tcp, libc::TCP_NODELAY));
    pair.say(
        "TCP_NODELAY off",
        sys::set_option(fd, tcp, libc::TCP_NODELAY, 0),
    );
    pair.say("TCP_NODELAY is", sys::option(fd, tcp, libc::TCP_NODELAY));
    pair.say(
        "SO_KEEPALIVE",
        sys::set_option(fd, socket, libc::SO_KEEPALIVE, 1),
    );
    pair.say(
        "SO_KEEPALIVE is",
        sys::option(fd, socket, libc::SO_KEEPALIVE),
    );
    pair.say(
        "TCP_KEEPIDLE",
        sys::set_option(fd, tcp, libc::TCP_KEEPIDLE, 77),
    );
    pair.say("TCP_KEEPIDLE is", sys::option(fd, tcp, libc::TCP_KEEPIDLE));
    pair.say("SO_TYPE", sys::option(fd, socket, libc::SO_TYPE));
    pair.say(
        "SO_ACCEPTCONN",
        sys::option(fd, socket, libc::SO_ACCEPTCONN),
    );
    pair.say("SO_ERROR", sys::socket_error(fd));
    pair.say("SO_RCVLOWAT is", sys::option(fd, socket, libc::SO_RCVLOWAT));
    pair.say(
        "an unknown option",
        sys::set_option(fd, tcp, 4711, 1).0.is_err(),
    );
}
