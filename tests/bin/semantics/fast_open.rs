//! Messages that open their connection: `MSG_FASTOPEN` and `TCP_FASTOPEN_CONNECT`. No remote has
//! given a cookie in these cases.

use crate::Case;
use crate::role::{Checksum, Role, await_events, drain, receive_all, sample, send_all, shown};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::roles("message_opens_its_connection", blocking),
    Case::roles("message_opens_its_connection_ipv6", blocking6),
    Case::roles("nonblocking_message_begins_a_connection", nonblocking),
    Case::roles("message_that_is_refused_leaves_its_socket_new", refused),
    Case::roles("empty_message_opens_a_connection", empty),
    Case::roles("large_message_in_parts_opens_its_connection", large),
    Case::roles("message_that_cannot_open_says_why", misuse),
    Case::roles("bad_message_opens_a_connection_all_the_same", bad),
    Case::roles(
        "registered_socket_tells_that_a_message_opened_it",
        registered,
    ),
    Case::roles("closed_before_its_message_opens_it", closed_early),
    Case::roles("option_connects_as_usual_without_a_cookie", option),
];

const OPENS: i32 = libc::MSG_FASTOPEN;

fn open_with(fd: Fd, bytes: &[u8], flags: i32, role: &Role, port: u16) -> sys::Ret {
    sys::sendto_place(
        fd,
        bytes,
        OPENS | flags,
        sys::meeting_place(role.family, port),
    )
}

/// Returns the port that the client connects to. Meanwhile the server serves `connections`
/// connections at this port, and returns `None`.
fn served(role: &Role, connections: usize) -> Option<u16> {
    if role.server() {
        let listener = role.listen(0);
        for _ in 0..connections {
            serve(role, listener);
        }
        return None;
    }
    Some(role.hear_port())
}

/// Accepts one connection, and prints what arrived until its end.
fn serve(role: &Role, listener: Fd) {
    let fd = sys::accept(listener).fd();
    role.say("server got", drain(fd));
    role.say("close", sys::close(fd));
}

/// Ends the sending direction, and waits until the server has closed.
fn end(role: &Role, fd: Fd) {
    role.say("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    role.say("then", drain(fd));
    role.say("close", sys::close(fd));
}

fn blocking(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        let fd = sys::accept(listener).fd();
        let mut request = [0; 7];
        receive_all(fd, &mut request);
        role.say("request", shown(&request));
        send_all(fd, b"answer");
        role.say("then", drain(fd));
        return;
    }
    let port = role.hear_port();
    let fd = sys::socket(role.family, 0);
    role.say("sendto", open_with(fd, b"request", 0, role, port));
    let mut answer = [0; 6];
    receive_all(fd, &mut answer);
    role.say("answer", shown(&answer));
    role.say("sendto again", open_with(fd, b"x", 0, role, port));
    role.say("sendto nowhere", sys::sendto(fd, b"x", OPENS));
    role.say("connect", sys::connect(fd, role.family, port));
    let (_, _, other) = sys::name(fd, true).expect("connected");
    role.say("connected to the port", other == port);
    role.say("send", sys::send(fd, b"more", 0));
    end(role, fd);
}

fn blocking6(role: &Role) {
    blocking(&Role {
        family: libc::AF_INET6,
        ..*role
    });
}

fn nonblocking(role: &Role) {
    let Some(port) = served(role, 1) else { return };
    let fd = sys::socket(role.family, libc::SOCK_NONBLOCK);
    role.say("sendto", open_with(fd, b"lost", 0, role, port));
    await_events(fd, libc::POLLOUT);
    role.say("SO_ERROR", sys::socket_error(fd));
    role.say(
        "sendto, once it is there",
        open_with(fd, b"request", 0, role, port),
    );
    role.say("sendto again", open_with(fd, b"x", 0, role, port));
    role.say("connect", sys::connect(fd, role.family, port));
    end(role, fd);
}

fn refused(role: &Role) {
    let Some(port) = served(role, 1) else { return };
    let nobody = {
        let fd = sys::socket(role.family, 0);
        sys::bind(fd, sys::loopback(role.family, 0)).value();
        sys::name(fd, false).expect("bound").2
    };
    let fd = sys::socket(role.family, 0);
    role.say("sendto", open_with(fd, b"lost", 0, role, nobody));
    role.say("SO_ERROR", sys::socket_error(fd));
    role.say("send", sys::send(fd, b"x", libc::MSG_NOSIGNAL));
    role.say("sendto elsewhere", open_with(fd, b"request", 0, role, port));
    end(role, fd);
}

fn empty(role: &Role) {
    let Some(port) = served(role, 2) else { return };
    let fd = sys::socket(role.family, 0);
    role.say("sendto", open_with(fd, b"", 0, role, port));
    role.say("connect", sys::connect(fd, role.family, port));
    end(role, fd);
    let fd = sys::socket(role.family, 0);
    role.say("sendto", open_with(fd, b"", libc::MSG_DONTWAIT, role, port));
    await_events(fd, libc::POLLOUT);
    role.say("connect", sys::connect(fd, role.family, port));
    role.say("connect again", sys::connect(fd, role.family, port));
    end(role, fd);
}

fn large(role: &Role) {
    const BYTES: usize = 3 << 20;
    if role.server() {
        let listener = role.listen(0);
        let fd = sys::accept(listener).fd();
        let mut bytes = vec![0; BYTES];
        receive_all(fd, &mut bytes);
        role.say("sum", Checksum::of(&bytes));
        role.say("then", drain(fd));
        return;
    }
    let port = role.hear_port();
    let fd = sys::socket(role.family, 0);
    let to = sys::meeting_place(role.family, port);
    role.say("sendmsg", sys::sendmsg_place(fd, &sample(BYTES), OPENS, to));
    end(role, fd);
}

fn misuse(role: &Role) {
    let Some(port) = served(role, 1) else { return };
    let to = sys::meeting_place(role.family, port);
    let fd = sys::socket(role.family, 0);
    role.say("nowhere", sys::sendto(fd, b"x", OPENS | libc::MSG_NOSIGNAL));
    for (what, family, len) in [
        ("too short", libc::AF_INET, 1),
        ("short", libc::AF_INET, 8),
        ("of no family", libc::AF_UNSPEC, 16),
        ("of another family", libc::AF_NETLINK, 16),
    ] {
        let (mut address, _) = sys::spelled(to);
        address.ss_family = family as libc::sa_family_t;
        let sent = sys::sendto_address(fd, b"x", OPENS | libc::MSG_NOSIGNAL, &address, len);
        role.say(what, sent);
    }
    let listener = sys::socket(role.family, 0);
    sys::bind(listener, sys::loopback(role.family, 0)).value();
    sys::listen(listener, 1).value();
    let sent = sys::sendto_place(listener, b"x", OPENS | libc::MSG_NOSIGNAL, to);
    role.say("from a listener", sent);
    let (read_end, write_end) = sys::pipe();
    role.say("from a pipe", sys::sendto_place(write_end, b"x", OPENS, to));
    role.say("from nothing", sys::sendto_place(-1, b"x", OPENS, to));
    sys::close(read_end).value();
    role.say(
        "with the address alone",
        sys::sendto_place(fd, b"x", libc::MSG_NOSIGNAL, to),
    );
    role.say("at last", open_with(fd, b"request", 0, role, port));
    role.say(
        "with an address",
        sys::sendto_place(fd, b" and more", 0, to),
    );
    end(role, fd);
}

fn bad(role: &Role) {
    let Some(port) = served(role, 1) else { return };
    let fd = sys::socket(role.family, 0);
    let to = sys::meeting_place(role.family, port);
    role.say("sendto", sys::sendto_place_from_nowhere(fd, 8, OPENS, to));
    role.say("connect", sys::connect(fd, role.family, port));
    end(role, fd);
}

fn registered(role: &Role) {
    let Some(port) = served(role, 1) else { return };
    let fd = sys::socket(role.family, libc::SOCK_NONBLOCK);
    let epoll = sys::epoll_create();
    let wanted = libc::EPOLLOUT | libc::EPOLLIN | libc::EPOLLET;
    role.say(
        "add",
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, wanted, 7),
    );
    role.say("as new", format!("{:?}", sys::epoll_wait(epoll, 4, 0)));
    role.say("sendto", open_with(fd, b"", 0, role, port));
    role.say("there", format!("{:?}", sys::epoll_wait(epoll, 4, 20_000)));
    role.say(
        "sendto, once it is there",
        open_with(fd, b"request", 0, role, port),
    );
    role.say("quiet", format!("{:?}", sys::epoll_wait(epoll, 4, 0)));
    end(role, fd);
}

/// A program may close the socket as soon as it has the result that it needs.
fn closed_early(role: &Role) {
    let Some(port) = served(role, 1) else { return };
    let fd = sys::socket(role.family, 0);
    role.say("sendto", open_with(fd, b"request", 0, role, port));
    role.say("close", sys::close(fd));
}

fn option(role: &Role) {
    let Some(port) = served(role, 2) else { return };
    for flags in [0, libc::SOCK_NONBLOCK] {
        let fd = sys::socket(role.family, flags);
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);
        role.say("set", sys::set_option(fd, level, name, 1));
        role.say("option", sys::option(fd, level, name));
        let first = sys::connect(fd, role.family, port);
        let is_begun = first.0.is_ok() || flags != 0 && first.is(libc::EINPROGRESS);
        role.say("connect", is_begun);
        await_events(fd, libc::POLLOUT);
        role.say("SO_ERROR", sys::socket_error(fd));
        role.say("send", sys::send(fd, b"request", 0));
        role.say("set on a connection", sys::set_option(fd, level, name, 1));
        end(role, fd);
    }
}
