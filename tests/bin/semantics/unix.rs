//! Unix stream sockets: their features that TCP sockets do not have.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use crate::Case;
use crate::role::{Pair, await_events, receive_all, send_all, shown};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::unix("descriptors_keep_their_place_between_the_bytes", in_place),
    Case::unix("descriptors_end_a_receive_that_waits_for_all", ends_waitall),
    Case::unix("descriptors_that_nobody_has_room_for_are_closed", no_room),
    Case::unix("descriptors_are_closed_on_exec_where_asked", on_exec),
    Case::unix("descriptors_are_seen_by_a_look_and_stay", looked_at),
    Case::unix("source_at_the_end_is_nobody", source_at_end),
    Case::unix("descriptors_go_both_ways_and_bytes_go_on", both_ways),
    Case::unix("credentials_are_told_from_the_option_on", credentials),
    Case::unix("credentials_that_are_sent_arrive_in_their_place", sent_ones),
    Case::unix("user_of_the_peer_stays_the_same", peer_user),
    Case::unix("source_is_the_name_of_the_peer", source),
    Case::unix("destination_is_refused", destination),
    Case::unix("look_for_all_does_not_wait", look_for_all),
    Case::unix("nothing_is_cut_off", cut_off),
    Case::unix("queue_is_what_the_peer_has_not_read", queue),
    Case::unix("close_with_unread_bytes_is_a_reset_behind_the_data", unread),
    Case::unix(
        "close_with_unread_bytes_is_polled_as_an_error",
        unread_polled,
    ),
    Case::unix(
        "close_with_unread_bytes_is_an_error_of_the_socket",
        unread_option,
    ),
    Case::unix(
        "receive_that_waits_for_all_takes_the_reset_along",
        unread_and_all,
    ),
    Case::unix(
        "close_with_unread_bytes_is_no_error_of_a_send",
        unread_and_sent,
    ),
    Case::unix("kill_with_unread_bytes_is_a_reset", unread_killed),
    Case::unix("kill_with_all_read_is_an_end", read_killed),
    Case::unix("close_is_seen_by_the_very_next_write", next_write),
    Case::unix("shutdown_for_reading_is_seen_by_the_writer", reader_shut),
    Case::unix("read_by_the_peer_is_an_edge_of_room", read_makes_room),
    Case::unix(
        "read_by_the_peer_wakes_another_thread_for_room",
        read_wakes_for_room,
    ),
    Case::unix("linger_resets_nothing", linger),
    Case::unix("urgent_byte_is_sent_and_received", urgent),
    Case::unix("connected_socket_is_not_given_up", given_up),
    Case::unix(
        "splice_to_a_nonblocking_pipe_does_not_wait_for_bytes",
        splice_to_pipe,
    ),
];

/// Sends `bytes` with a control message of level `SOL_SOCKET`.
fn send_with(fd: Fd, bytes: &[u8], kind: c_int, data: &[u8]) -> sys::Ret {
    let mut control = [0u64; 16];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: zeroes are a valid message; `control` has room for the header and `data`.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(data.len() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(data.len() as u32) as usize;
        let to = libc::CMSG_DATA(header);
        std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
        sys::ret(libc::sendmsg(fd, &message, 0) as i64)
    }
}

/// Sends `bytes` with the reading end of a pipe that contains `word`.
pub(crate) fn send_pipe(fd: Fd, bytes: &[u8], word: &[u8]) -> sys::Ret {
    let (reading, writing) = std::io::pipe().expect("a pipe");
    assert_eq!(sys::write(writing.as_raw_fd(), word).len(), word.len());
    let data = reading.as_raw_fd().to_ne_bytes();
    send_with(fd, bytes, libc::SCM_RIGHTS, &data)
}

/// A receive with room for control messages: its result, its bytes, and the control messages.
pub(crate) fn receive_with(fd: Fd, len: usize, flags: c_int) -> String {
    let mut bytes = vec![0u8; len];
    let mut control = [0u64; 16];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: len,
    };
    // SAFETY: zeroes are a valid message; all buffers that the message names outlive the calls.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let result = sys::ret(libc::recvmsg(fd, &mut message, flags) as i64);
        let mut told = Vec::new();
        let mut at = libc::CMSG_FIRSTHDR(&message);
        while result.0.is_ok() && !at.is_null() {
            told.push(in_words(&*at, libc::CMSG_DATA(at).cast()));
            at = libc::CMSG_NXTHDR(&message, at);
        }
        let text = shown(&bytes[..result.len()]);
        format!("{result} `{text}` {told:?} flags {}", message.msg_flags)
    }
}

/// A control message as text. If the message brings a descriptor, reads from the descriptor and
/// closes it.
unsafe fn in_words(header: &libc::cmsghdr, data: *const c_void) -> String {
    match header.cmsg_type {
        libc::SCM_RIGHTS => {
            // SAFETY: the kernel has put a descriptor here.
            let fd = unsafe { data.cast::<c_int>().read_unaligned() };
            let mut word = [0; 16];
            let read = sys::read(fd, &mut word);
            let closes = match sys::fcntl(fd, libc::F_GETFD, 0).value() as c_int {
                libc::FD_CLOEXEC => "closed on exec",
                _ => "kept on exec",
            };
            sys::close(fd).value();
            format!("pipe with `{}`, {closes}", shown(&word[..read.len()]))
        }
        libc::SCM_CREDENTIALS => {
            // SAFETY: the kernel has put credentials here.
            let from = unsafe { data.cast::<libc::ucred>().read_unaligned() };
            let is_other = from.pid != std::process::id() as i32 && from.pid > 0;
            format!("credentials of the other: {is_other}, user {}", from.uid)
        }
        other => format!("type {other}"),
    }
}

fn in_place(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"before ");
        pair.say("sendmsg", send_pipe(pair.fd, b"with", b"one"));
        send_all(pair.fd, b" between ");
        pair.say("sendmsg", send_pipe(pair.fd, b"again", b"two"));
        send_all(pair.fd, b" after");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    for _ in 0..3 {
        pair.say("recvmsg", receive_with(pair.fd, 64, 0));
    }
    pair.step();
}

fn ends_waitall(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"abc");
        send_pipe(pair.fd, b"d", b"one").value();
        send_all(pair.fd, b"efghij");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.say("recvmsg", receive_with(pair.fd, 8, libc::MSG_WAITALL));
    pair.say("recvmsg", receive_with(pair.fd, 6, libc::MSG_WAITALL));
    pair.step();
}

fn no_room(pair: &Pair) {
    if pair.server() {
        let (reading, writing) = std::io::pipe().expect("a pipe");
        let data = writing.as_raw_fd().to_ne_bytes();
        send_with(pair.fd, b"a", libc::SCM_RIGHTS, &data).value();
        drop(writing);
        pair.step();
        pair.step();
        let mut byte = [0];
        pair.say("pipe", sys::read(reading.as_raw_fd(), &mut byte));
        return;
    }
    pair.step();
    let mut byte = [0; 4];
    pair.say("recv", sys::recv(pair.fd, &mut byte, 0));
    pair.step();
}

fn on_exec(pair: &Pair) {
    for (flags, name) in [(libc::MSG_CMSG_CLOEXEC, "asked"), (0, "not asked")] {
        if pair.server() {
            send_all(pair.fd, b"plain");
            pair.step();
            send_pipe(pair.fd, b"take", b"it").value();
        } else {
            pair.say(name, receive_with(pair.fd, 5, flags));
            pair.step();
            pair.say(name, receive_with(pair.fd, 4, flags));
        }
        pair.step();
    }
}

/// A peek ends behind the bytes that brought descriptors, like a receive.
fn looked_at(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"before ");
        send_pipe(pair.fd, b"with", b"one").value();
        send_all(pair.fd, b" after");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    let mut bytes = [0; 7];
    receive_all(pair.fd, &mut bytes);
    pair.say("look", receive_with(pair.fd, 64, libc::MSG_PEEK));
    let cloexec = libc::MSG_PEEK | libc::MSG_CMSG_CLOEXEC;
    pair.say("look", receive_with(pair.fd, 64, cloexec));
    pair.say("recvmsg", receive_with(pair.fd, 64, 0));
    pair.say("recvmsg", receive_with(pair.fd, 64, 0));
    pair.step();
}

fn source_at_end(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"last");
        sys::close(pair.fd).value();
        pair.step();
        return;
    }
    pair.step();
    pair.say("recvmsg", source_of(pair.fd, true));
    pair.say("recvmsg at the end", source_of(pair.fd, true));
    pair.say("recvfrom at the end", source_of(pair.fd, false));
}

fn both_ways(pair: &Pair) {
    for turn in 0..4 {
        if pair.server() == (turn % 2 == 0) {
            send_pipe(pair.fd, b"take", b"it").value();
            send_all(pair.fd, &[7; 10_000]);
        } else {
            pair.say("recvmsg", receive_with(pair.fd, 4, 0));
            let mut bytes = [0; 10_000];
            receive_all(pair.fd, &mut bytes);
            pair.say("all", bytes == [7; 10_000]);
        }
    }
    pair.step();
}

fn credentials(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"news");
        pair.step();
        pair.step();
        send_all(pair.fd, b"more");
        pair.step();
        return;
    }
    let set = |on| sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_PASSCRED, on);
    pair.say("option", set(1));
    pair.step();
    pair.step();
    pair.say("recvmsg", receive_with(pair.fd, 8, 0));
    pair.say("option", set(0));
    pair.step();
    pair.say("recvmsg", receive_with(pair.fd, 8, 0));
    pair.step();
}

fn sent_ones(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"a");
        // SAFETY: takes no arguments.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let own = [std::process::id(), uid, gid].map(u32::to_ne_bytes);
        let sent = send_with(pair.fd, b"b", libc::SCM_CREDENTIALS, own.as_flattened());
        pair.say("sendmsg", sent);
        pair.step();
        pair.step();
        return;
    }
    sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).value();
    pair.step();
    pair.step();
    let mut have = 0;
    while have < 2 {
        let told = receive_with(pair.fd, 1, 0);
        pair.say("recvmsg", &told);
        have += 1;
    }
    pair.step();
}

fn peer_user(pair: &Pair) {
    let mut peer = [0u32; 3];
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: `peer` is writable for its length.
    let result = sys::ret(unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(pair.fd, level, name, peer.as_mut_ptr().cast(), &mut len)
    });
    pair.tell(std::process::id());
    let other = pair.hear();
    pair.say("getsockopt", result);
    pair.say("it is the other", peer[0] == other);
    pair.say("user", peer[1]);
}

/// The source that a receive reports: the length of its name, and the port in the name.
fn source_of(fd: Fd, by_message: bool) -> String {
    let mut bytes = [0u8; 4];
    // SAFETY: zeroes are valid; all buffers that are named outlive the calls.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        let mut len = size_of_val(&address) as libc::socklen_t;
        let result = if by_message {
            let mut part = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
            message.msg_name = (&raw mut address).cast();
            message.msg_namelen = len;
            let result = libc::recvmsg(fd, &mut message, 0);
            len = message.msg_namelen;
            result
        } else {
            let to = (&raw mut address).cast();
            libc::recvfrom(fd, bytes.as_mut_ptr().cast(), 4, 0, to, &mut len)
        };
        let named = address.sun_path[1] != 0;
        format!("{} {}, named {named}", sys::ret(result as i64), len > 2)
    }
}

fn source(pair: &Pair) {
    send_all(pair.fd, b"12345678");
    pair.say("recvfrom", source_of(pair.fd, false));
    pair.say("recvmsg", source_of(pair.fd, true));
    pair.step();
}

fn destination(pair: &Pair) {
    let (address, len) = sys::unix_name(9);
    let bytes = b"abc";
    // SAFETY: the address and the bytes are live.
    let result = sys::ret(unsafe {
        let to = std::ptr::from_ref(&address).cast();
        libc::sendto(pair.fd, bytes.as_ptr().cast(), 3, 0, to, len) as i64
    });
    pair.say("sendto", result);
    pair.step();
}

fn look_for_all(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"abc");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    let mut bytes = [0; 8];
    let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
    pair.say("recv", sys::recv(pair.fd, &mut bytes, flags));
    pair.say("bytes", shown(&bytes[..3]));
    pair.step();
}

fn cut_off(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"abcdef");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    let mut bytes = [b'-'; 4];
    pair.say("recv", sys::recv(pair.fd, &mut bytes, libc::MSG_TRUNC));
    pair.say("bytes", shown(&bytes));
    pair.say("recv", sys::recv(pair.fd, &mut bytes, 0));
    pair.step();
}

fn queue(pair: &Pair) {
    let queued = || {
        let mut count: c_int = 0;
        // SAFETY: `count` is writable for an int.
        let result = sys::ret(unsafe { libc::ioctl(pair.fd, libc::TIOCOUTQ, &mut count) });
        format!("{result}, some: {}", count > 0)
    };
    // After this step the client has read the last answer of the warm-up.
    pair.step();
    if pair.server() {
        pair.say("nothing sent", queued());
        send_all(pair.fd, b"abc");
        pair.say("not read", queued());
        pair.step();
        pair.step();
        pair.say("read", queued());
        return;
    }
    pair.step();
    receive_all(pair.fd, &mut [0; 3]);
    pair.step();
}

/// The server sends bytes, does not read the client's bytes, and closes.
fn leaves_unread(pair: &Pair) -> bool {
    if pair.server() {
        send_all(pair.fd, b"tail");
        pair.step();
        sys::close(pair.fd).value();
        pair.step();
        pair.step();
        return true;
    }
    send_all(pair.fd, b"never read");
    pair.step();
    pair.step();
    false
}

fn say_the_end(pair: &Pair) {
    for _ in 0..4 {
        let mut bytes = [0; 16];
        pair.say("recv", sys::recv(pair.fd, &mut bytes, 0));
    }
    pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
    pair.say("SO_ERROR", sys::socket_error(pair.fd));
}

fn unread(pair: &Pair) {
    if !leaves_unread(pair) {
        say_the_end(pair);
        pair.step();
    }
}

fn events(fd: Fd) -> String {
    let wanted = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    format!("{:?}", sys::poll(&[(fd, wanted)], 0))
}

fn unread_polled(pair: &Pair) {
    if leaves_unread(pair) {
        return;
    }
    pair.say("events", events(pair.fd));
    receive_all(pair.fd, &mut [0; 4]);
    pair.say("events", events(pair.fd));
    pair.say("recv", sys::recv(pair.fd, &mut [0; 4], 0));
    pair.say("events", events(pair.fd));
    pair.step();
}

/// An option has moved the connection back to the kernel. The server's bytes were sent before that.
fn unread_and_sent(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"tail");
        pair.step();
        pair.step();
        let look = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        sys::recv(pair.fd, &mut [0; 1], look).value();
        sys::send(pair.fd, b"", 0).value();
        sys::close(pair.fd).value();
        pair.step();
        return pair.step();
    }
    pair.step();
    sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).value();
    send_all(pair.fd, b"never read");
    pair.step();
    pair.step();
    let mut bytes = [0; 16];
    for _ in 0..3 {
        pair.say("recv", sys::recv(pair.fd, &mut bytes, 0));
        for some in [b"".as_slice(), b"x"] {
            pair.say("send", sys::send(pair.fd, some, libc::MSG_NOSIGNAL));
            pair.say("events", events(pair.fd));
        }
    }
    pair.step();
}

fn unread_option(pair: &Pair) {
    if leaves_unread(pair) {
        return;
    }
    pair.say("SO_ERROR", sys::socket_error(pair.fd));
    pair.say("SO_ERROR", sys::socket_error(pair.fd));
    say_the_end(pair);
    pair.step();
}

fn killed(pair: &Pair, reads: bool) {
    if pair.server() {
        send_all(pair.fd, b"tail");
        if reads {
            receive_all(pair.fd, &mut [0; 10]);
        }
        pair.step();
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    send_all(pair.fd, b"never read");
    pair.step();
    pair.until_the_other_is_gone();
    await_events(pair.fd, libc::POLLRDHUP);
    say_the_end(pair);
}

fn unread_and_all(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"abc");
        pair.say("close", sys::close(pair.fd));
        pair.step();
        pair.step();
    } else {
        send_all(pair.fd, b"unread");
        pair.step();
        pair.step();
        let mut bytes = [0; 10];
        pair.say("recv", sys::recv(pair.fd, &mut bytes, libc::MSG_WAITALL));
        pair.say("recv", sys::recv(pair.fd, &mut bytes, 0));
        pair.step();
    }
}

fn unread_killed(pair: &Pair) {
    killed(pair, false);
}

fn read_killed(pair: &Pair) {
    killed(pair, true);
}

fn next_write(pair: &Pair) {
    if pair.server() {
        sys::close(pair.fd).value();
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
    pair.step();
}

fn reader_shut(pair: &Pair) {
    if pair.server() {
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_RD));
        pair.step();
        send_all(pair.fd, b"still");
        pair.step();
        return;
    }
    pair.step();
    pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
    let mut bytes = [0; 5];
    receive_all(pair.fd, &mut bytes);
    pair.say("received", shown(&bytes));
    pair.step();
}

/// An instance with an edge-triggered registration for bytes and room, whose first edge was told.
fn edges_of_room(fd: Fd) -> Fd {
    let epoll = sys::epoll_create();
    let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, interest, 7).value();
    assert_eq!(sys::epoll_wait(epoll, 4, 0).1.len(), 1);
    epoll
}

/// The buffer is never full. A program may send a few messages and wait for this edge.
fn read_makes_room(pair: &Pair) {
    let instance = (!pair.server()).then(|| edges_of_room(pair.fd));
    for turn in 0..4 {
        match instance {
            None => {
                pair.step();
                receive_all(pair.fd, &mut [0; 100]);
            }
            Some(epoll) => {
                send_all(pair.fd, &[b'x'; 100]);
                pair.step();
                let timeout_ms = if turn % 2 == 0 { -1 } else { 20_000 };
                pair.say(
                    "room",
                    format!("{:?}", sys::epoll_wait(epoll, 4, timeout_ms)),
                );
            }
        }
        pair.step();
        if let Some(epoll) = instance {
            pair.say("once", format!("{:?}", sys::epoll_wait(epoll, 4, 0)));
        }
        pair.step();
    }
}

fn read_wakes_for_room(pair: &Pair) {
    if pair.server() {
        pair.step();
        receive_all(pair.fd, &mut [0; 100]);
        return pair.step();
    }
    let epoll = edges_of_room(pair.fd);
    let sleeper = Sleeper::start(move || sys::epoll_wait(epoll, 4, 20_000));
    send_all(pair.fd, &[b'x'; 100]);
    pair.step();
    pair.say("room", format!("{:?}", sleeper.result()));
    pair.step();
}

fn linger(pair: &Pair) {
    if pair.server() {
        let on = [1i32, 0];
        // SAFETY: `on` is a `linger`.
        let result = sys::ret(unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
            libc::setsockopt(pair.fd, level, name, on.as_ptr().cast(), 8)
        });
        pair.say("option", result);
        send_all(pair.fd, b"tail");
        sys::close(pair.fd).value();
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    say_the_end(pair);
    pair.step();
}

fn urgent(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"abc");
        pair.say("send", sys::send(pair.fd, b"!", libc::MSG_OOB));
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    let mut byte = [0; 8];
    let result = sys::recv(pair.fd, &mut byte, libc::MSG_OOB);
    pair.say(
        "urgent",
        format!("{result} {}", shown(&byte[..result.len()])),
    );
    let result = sys::recv(pair.fd, &mut byte, 0);
    pair.say(
        "others",
        format!("{result} {}", shown(&byte[..result.len()])),
    );
    pair.step();
}

fn given_up(pair: &Pair) {
    pair.say("connect", sys::disconnect(pair.fd));
    send_all(pair.fd, b"goes on");
    let mut bytes = [0; 7];
    receive_all(pair.fd, &mut bytes);
    pair.say("received", shown(&bytes));
    pair.step();
}

/// For a TCP socket the pipe's `O_NONBLOCK` flag has no effect.
fn splice_to_pipe(pair: &Pair) {
    if pair.server() {
        let (_, writer) = sys::pipe();
        sys::set_nonblocking(writer, true);
        let none = std::ptr::null_mut();
        // SAFETY: no offsets are given.
        let result = unsafe { libc::splice(pair.fd, none, writer, none, 100, 0) };
        pair.say("splice", sys::ret(result as i64));
    }
    pair.step();
}
