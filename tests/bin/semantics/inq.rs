//! `TCP_INQ`: each received message tells how many bytes are left to be read.

use crate::Case;
use crate::role::{Pair, Role, await_events, send_all};
use crate::sys;

pub(crate) const CASES: &[Case] = &[
    Case::pair("what_is_left_comes_with_what_is_received", what_is_left),
    Case::roles("what_is_left_is_told_from_the_first_byte_on", left_early),
    Case::pair("end_of_a_killed_program_is_left", left_by_killed),
];

/// include/uapi/linux/tcp.h.
const TCP_INQ: i32 = 36;

/// With `TCP_INQ` each message tells what is left to be read.
fn what_is_left(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"1234567");
        pair.step();
        pair.step();
        send_all(pair.fd, b"89");
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.step();
        pair.step();
        return;
    }
    let set = |value| sys::set_option(pair.fd, libc::IPPROTO_TCP, TCP_INQ, value);
    let get = || sys::option(pair.fd, libc::IPPROTO_TCP, TCP_INQ);
    pair.say("before", get());
    pair.say("two", set(2));
    pair.say("option", set(1));
    pair.say("now", get());
    pair.step();
    pair.step();
    pair.arrived(pair.fd, 7);
    let look = |what: &str, room, flags, control| {
        pair.say(what, received_and_left(pair.fd, room, flags, control));
    };
    look("three", 3, 0, 64);
    look("look at two", 2, libc::MSG_PEEK, 64);
    look("without room", 1, 0, 0);
    look("with room for a header", 1, 0, 16);
    look("with room for half a number", 1, 0, 18);
    look("without padding", 1, 0, 20);
    look("nothing", 1, libc::MSG_DONTWAIT, 64);
    pair.step();
    pair.step();
    pair.arrived(pair.fd, 2);
    await_events(pair.fd, libc::POLLRDHUP);
    look("one", 1, 0, 64);
    look("the last", 1, 0, 64);
    look("end", 1, 0, 64);
    look("end again", 1, 0, 64);
    pair.say("off", set(0));
    look("end without the option", 1, 0, 64);
    pair.step();
}

/// The program sets the option before the connection has a channel.
fn left_early(role: &Role) {
    let fd = role.meet();
    if !role.server() {
        let result = sys::set_option(fd, libc::IPPROTO_TCP, TCP_INQ, 1);
        role.say("option", result);
    }
    role.warm(fd);
    if role.server() {
        send_all(fd, b"12345");
        role.step();
        role.step();
        return;
    }
    role.step();
    role.arrived(fd, 5);
    role.say("two", received_and_left(fd, 2, 0, 64));
    role.say("the others", received_and_left(fd, 9, 0, 64));
    let value = sys::option(fd, libc::IPPROTO_TCP, TCP_INQ);
    role.say("option", value);
    role.step();
}

/// A program that reads until nothing is left, and then waits for an edge, gets none after that of
/// the end.
fn left_by_killed(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"last");
        pair.step();
        // SAFETY: takes no pointers.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let result = sys::set_option(pair.fd, libc::IPPROTO_TCP, TCP_INQ, 1);
    pair.say("option", result);
    let epoll = sys::epoll_create();
    let events = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, events, 1).value();
    pair.step();
    pair.step();
    pair.until_the_other_is_gone();
    let is_end = |&(_, events): &(u64, u32)| events & libc::EPOLLRDHUP as u32 != 0;
    while !sys::epoll_wait(epoll, 1, 20_000).1.iter().any(is_end) {}
    pair.say("last", received_and_left(pair.fd, 16, 0, 64));
    pair.say("end", received_and_left(pair.fd, 16, 0, 64));
}

/// The result of `recvmsg` into `room` bytes, with room for `control` bytes of control messages;
/// and these messages' bytes.
fn received_and_left(fd: sys::Fd, room: usize, flags: i32, control: usize) -> String {
    let (mut bytes, mut messages) = (vec![0_u8; room], [0_u64; 8]);
    let mut list = [libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }];
    // SAFETY: a msghdr of zeroes is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (list.as_mut_ptr(), 1);
    header.msg_control = messages.as_mut_ptr().cast();
    header.msg_controllen = control.min(size_of_val(&messages));
    // SAFETY: every buffer that the header names outlives the call.
    let result = sys::ret(unsafe { libc::recvmsg(fd, &mut header, flags) } as i64);
    if result.0.is_err() {
        return result.to_string();
    }
    let told: Vec<u8> = messages
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    format!(
        "{result} flags {:x} control {} {:?}",
        header.msg_flags,
        header.msg_controllen,
        &told[..header.msg_controllen]
    )
}
