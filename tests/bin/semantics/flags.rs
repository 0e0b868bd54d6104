//! The flags of send and recv.

use crate::Case;
use crate::role::{
    Pair, Role, await_events, drain, is_upgraded_where_expected, receive_all, sample, send_all,
    shown,
};
use crate::sys;

pub(crate) const CASES: &[Case] = &[
    Case::pair("peek_leaves_the_bytes", peek),
    Case::pair("peek_sees_no_further_than_what_has_come", peek_grows),
    Case::pair("peek_with_waitall_waits_and_leaves_all", peek_waitall),
    Case::pair("peek_goes_on_where_the_last_one_ended", peek_from_offset),
    Case::pair("peek_offset_of_another_process_counts_too", |pair| {
        peek_offset_shared(pair);
    }),
    Case::pair("dontwait_never_waits", dontwait),
    Case::pair("waitall_waits_for_the_last_byte", waitall),
    Case::pair("waitall_ends_short_at_end_of_stream", waitall_short),
    Case::pair("waitall_takes_more_than_any_buffer_holds", waitall_large),
    Case::pair("flags_without_a_meaning_change_nothing", without_meaning),
    Case::pair("nosignal_turns_sigpipe_into_epipe", nosignal),
    Case::pair("more_delays_nothing_for_ever", more),
    Case::pair("trunc_discards_what_it_counts", trunc),
    Case::pair("peek_with_trunc_counts_and_discards_nothing", peek_trunc),
    Case::pair("recvmsg_passes_flags_through", recvmsg_flags),
    Case::roles(
        "recvmsg_fills_its_header_in_while_the_connection_moves",
        header_while_moving,
    ),
    Case::pair("recvmmsg_and_sendmmsg_keep_their_books", many_messages),
    Case::pair("sendmmsg_sends_a_thousand_at_a_time", too_many_messages),
    Case::pair(
        "recvmmsg_heeds_its_time_after_each_message",
        messages_in_time,
    ),
    Case::pair("urgent_byte_travels_out_of_band", urgent),
    Case::pair("urgent_byte_inline_keeps_its_place", urgent_inline),
    Case::pair("receive_that_finds_nothing_passes_the_mark", past_the_mark),
    Case::pair(
        "look_for_all_on_the_kernel_ends_with_its_time",
        look_in_vain,
    ),
    Case::pair("error_queue_is_empty", error_queue),
    Case::pair("notices_of_sends_without_a_copy_come", notices),
    Case::pair("time_of_arrival_comes_with_what_is_received", |pair| {
        stamped(pair, libc::SO_TIMESTAMP);
    }),
    Case::pair("time_in_ns_comes_with_what_is_received", |pair| {
        stamped(pair, libc::SO_TIMESTAMPNS);
    }),
    Case::pair("signals_are_sent_for_what_arrives", |pair| {
        signalled(pair, |fd| {
            let flags = sys::fcntl(fd, libc::F_GETFL, 0).value() as i32;
            sys::fcntl(fd, libc::F_SETFL, flags | libc::O_ASYNC).value();
        });
    }),
    Case::pair("signals_are_sent_for_what_arrives_by_ioctl", |pair| {
        signalled(pair, |fd| {
            sys::ioctl(fd, libc::FIOASYNC, &mut 1).value();
        });
    }),
    Case::pair("poll_of_a_negative_number_is_refused", poll_of_too_many),
];

/// The result of recv with flags, and the bytes that it returned, as text.
fn got(pair: &Pair, room: usize, flags: i32) -> String {
    let mut bytes = vec![0; room];
    let result = sys::recv(pair.fd, &mut bytes, flags);
    format!("{result} {}", shown(&bytes[..result.len()]))
}

fn peek(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"abcdefgh");
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.say("peek 4", got(pair, 4, libc::MSG_PEEK));
        pair.say("peek 100", got(pair, 100, libc::MSG_PEEK));
        pair.say("recv 3", got(pair, 3, 0));
        pair.say(
            "peek 100",
            got(pair, 100, libc::MSG_PEEK | libc::MSG_DONTWAIT),
        );
        pair.say("FIONREAD", sys::readable_bytes(pair.fd));
        let mut bytes = [0; 2];
        let (result, flags) = sys::recvmsg(pair.fd, &mut bytes, libc::MSG_PEEK);
        pair.say(
            "recvmsg peek",
            format!("{result} {} {flags:x}", shown(&bytes)),
        );
        pair.say("recv", got(pair, 100, 0));
        pair.say("peek", got(pair, 100, libc::MSG_PEEK | libc::MSG_DONTWAIT));
        pair.step();
    }
}

fn peek_grows(pair: &Pair) {
    let mut unread = 0;
    for text in ["one", "two", "three"] {
        if pair.server() {
            send_all(pair.fd, text.as_bytes());
            pair.step();
        } else {
            pair.step();
            unread += text.len();
            pair.arrived(pair.fd, unread);
            pair.say("peek", got(pair, 100, libc::MSG_PEEK));
        }
        pair.step();
    }
    if !pair.server() {
        pair.say("recv", got(pair, 100, 0));
    }
    pair.step();
}

fn peek_offset(pair: &Pair) -> sys::Ret {
    sys::option(pair.fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF)
}

fn set_peek_offset(pair: &Pair, offset: i32) {
    let set = sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset);
    pair.say("SO_PEEK_OFF", set);
}

/// The peek offset is set while bytes are unread. More bytes arrive after that.
fn peek_from_offset(pair: &Pair) {
    const AT_ONCE: i32 = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    if pair.server() {
        for text in ["0123456789abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "!?"] {
            send_all(pair.fd, text.as_bytes());
            pair.step();
            pair.step();
        }
        sys::shutdown(pair.fd, libc::SHUT_WR).value();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 36);
    pair.say("off", peek_offset(pair));
    set_peek_offset(pair, 4);
    pair.say("peek 6", got(pair, 6, libc::MSG_PEEK));
    pair.say("offset", peek_offset(pair));
    pair.say("peek 6", got(pair, 6, libc::MSG_PEEK));
    pair.say("recv 3", got(pair, 3, 0));
    pair.say("offset", peek_offset(pair));
    pair.say("count 2", got(pair, 2, libc::MSG_PEEK | libc::MSG_TRUNC));
    pair.say("peek 100", got(pair, 100, AT_ONCE));
    pair.say("offset", peek_offset(pair));
    pair.say("peek 100", got(pair, 100, AT_ONCE));
    pair.say("FIONREAD", sys::readable_bytes(pair.fd));
    pair.step();
    pair.step();
    // The second text takes another path (kernel or ring) than the first.
    pair.arrived(pair.fd, 43);
    pair.say("peek 4", got(pair, 4, libc::MSG_PEEK));
    set_peek_offset(pair, 0);
    pair.say("peek 100", got(pair, 100, libc::MSG_PEEK));
    set_peek_offset(pair, 30);
    pair.say("peek 8", got(pair, 8, libc::MSG_PEEK));
    pair.say("recv 35", got(pair, 35, 0));
    pair.say("offset", peek_offset(pair));
    pair.say("peek 2", got(pair, 2, libc::MSG_PEEK));
    pair.say("recv 6", got(pair, 6, libc::MSG_WAITALL));
    pair.say("offset", peek_offset(pair));
    pair.say("peek 9", got(pair, 9, libc::MSG_PEEK));
    pair.say("recv 2", got(pair, 2, 0));
    pair.say("offset", peek_offset(pair));
    pair.step();
    pair.step();
    pair.arrived(pair.fd, 2);
    pair.say("peek 9", got(pair, 9, libc::MSG_PEEK));
    set_peek_offset(pair, -1);
    pair.say("offset", peek_offset(pair));
    pair.say("peek 9", got(pair, 9, libc::MSG_PEEK));
    set_peek_offset(pair, 1);
    pair.say("recv 1", got(pair, 1, 0));
    set_peek_offset(pair, 1);
    pair.step();
    pair.step();
    pair.say("peek at the end", got(pair, 9, libc::MSG_PEEK));
    pair.say("recv", got(pair, 9, 0));
    pair.say("recv", got(pair, 9, 0));
}

/// The peek offset belongs to the socket, not to a process. A peek waits for bytes behind the
/// offset.
fn peek_offset_shared(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"abcdefgh");
        pair.step();
        pair.step_to_sleeper();
        send_all(pair.fd, b"ijkl");
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 8);
    let child = sys::fork();
    if child == 0 {
        set_peek_offset(pair, 2);
        pair.say("peek 3", got(pair, 3, libc::MSG_PEEK));
        sys::exit_now(0);
    }
    pair.say("child", sys::wait_for(child));
    pair.say("offset", peek_offset(pair));
    pair.say("peek 3", got(pair, 3, libc::MSG_PEEK));
    pair.step_to_sleep();
    pair.say("peek 4", got(pair, 4, libc::MSG_PEEK));
    pair.say("offset", peek_offset(pair));
    pair.step();
}

fn peek_waitall(pair: &Pair) {
    if pair.server() {
        pair.step();
        for part in ["first ", "second ", "third"] {
            send_all(pair.fd, part.as_bytes());
            pause();
        }
        pair.step();
    } else {
        pair.step();
        pair.say(
            "peek all",
            got(pair, 18, libc::MSG_PEEK | libc::MSG_WAITALL),
        );
        pair.say("recv", got(pair, 18, 0));
        pair.step();
    }
}

fn dontwait(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"now");
        pair.step();
        pair.step();
        // The other role does not read. A sender that must not wait is refused at some point, and
        // the refusal ends when the other role reads.
        let chunk = vec![7; 1 << 16];
        let mut sent = 0;
        let refusal = loop {
            let result = sys::send(pair.fd, &chunk, libc::MSG_DONTWAIT);
            if result.0.is_err() {
                break result;
            }
            sent += result.len();
        };
        pair.say("send refused", refusal);
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.step();
        await_events(pair.fd, libc::POLLOUT);
        pair.say("room again", sys::send(pair.fd, b"x", libc::MSG_DONTWAIT));
    } else {
        pair.say("recv before", got(pair, 8, libc::MSG_DONTWAIT));
        let mut bytes = [0; 8];
        pair.say(
            "recvmsg before",
            sys::recvmsg(pair.fd, &mut bytes, libc::MSG_DONTWAIT).0,
        );
        pair.say(
            "recvmmsg before",
            sys::recvmmsg(pair.fd, &mut bytes, 2, libc::MSG_DONTWAIT).0,
        );
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 3);
        pair.say("recv after", got(pair, 8, libc::MSG_DONTWAIT));
        pair.step();
        let sent = pair.hear() as usize;
        let mut bytes = vec![0; sent];
        receive_all(pair.fd, &mut bytes);
        pair.say("all sevens", bytes.iter().all(|byte| *byte == 7));
        pair.step();
        pair.say("then", drain(pair.fd));
    }
}

fn waitall(pair: &Pair) {
    if pair.server() {
        pair.step();
        for part in ["aa", "bb", "cc", "dd", "rest"] {
            send_all(pair.fd, part.as_bytes());
            pause();
        }
        pair.step();
    } else {
        pair.step();
        pair.say("recv", got(pair, 8, libc::MSG_WAITALL));
        let mut bytes = [0; 4];
        let (result, flags) = sys::recvmsg(pair.fd, &mut bytes, libc::MSG_WAITALL);
        pair.say("recvmsg", format!("{result} {} {flags:x}", shown(&bytes)));
        pair.step();
    }
}

fn waitall_short(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"all there is");
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.say("recv", got(pair, 100, libc::MSG_WAITALL));
        pair.say("recv", got(pair, 100, libc::MSG_WAITALL));
    }
}

/// Flags that have no effect on a send or a receive on a stream.
fn without_meaning(pair: &Pair) {
    const FLAGS: i32 = libc::MSG_CONFIRM | libc::MSG_DONTROUTE | libc::MSG_SYN | libc::MSG_RST;
    const LEAST: usize = 10;
    if pair.server() {
        pair.say("send", sys::send(pair.fd, b"few", FLAGS));
        pair.step_to_sleeper();
        // A receive that has already taken some bytes is woken only when `SO_RCVLOWAT` bytes are
        // there (tcp_data_ready).
        pair.say("send", sys::send(pair.fd, &[b'.'; LEAST], FLAGS));
        pair.step();
    } else {
        pair.arrived(pair.fd, 3);
        let set = sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, LEAST as i32);
        pair.say("SO_RCVLOWAT", set);
        pair.step_to_sleep();
        pair.say("recv", got(pair, LEAST, FLAGS));
        pair.step();
    }
}

fn waitall_large(pair: &Pair) {
    const LEN: usize = 12_000_000;
    if pair.server() {
        send_all(pair.fd, &sample(LEN));
        pair.step();
    } else {
        let mut bytes = vec![0; LEN];
        pair.say("recv", sys::recv(pair.fd, &mut bytes, libc::MSG_WAITALL));
        pair.say("right", bytes == sample(LEN));
        pair.step();
    }
}

fn nosignal(pair: &Pair) {
    if pair.server() {
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        await_events(pair.fd, libc::POLLHUP);
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.say("sendmsg", sys::sendmsg(pair.fd, b"xy", libc::MSG_NOSIGNAL));
        let (result, _) = sys::sendmmsg(pair.fd, b"xy", 2, libc::MSG_NOSIGNAL);
        pair.say("sendmmsg", result);
        pair.say("sendto", sys::sendto(pair.fd, b"x", libc::MSG_NOSIGNAL));
    }
}

fn more(pair: &Pair) {
    if pair.server() {
        for part in ["corked ", "corked too ", "still "] {
            pair.say(
                "send more",
                sys::send(pair.fd, part.as_bytes(), libc::MSG_MORE),
            );
        }
        pair.say("send", sys::send(pair.fd, b"let go", 0));
        pair.step();
        pair.step();
        // If no more bytes follow, the kernel sends the last part after at most 200 ms.
        pair.say("send more", sys::send(pair.fd, b"alone", libc::MSG_MORE));
        pair.step();
    } else {
        pair.step();
        let mut bytes = [0; 29];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        pair.step();
        let mut bytes = [0; 5];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        pair.step();
    }
}

fn trunc(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"discard me, keep me");
        pair.step();
        pair.step();
    } else {
        pair.step();
        let mut bytes = [b'.'; 12];
        pair.say("recv", sys::recv(pair.fd, &mut bytes, libc::MSG_TRUNC));
        pair.say("buffer untouched", bytes == [b'.'; 12]);
        pair.say("recv", got(pair, 100, 0));
        pair.say("recv", got(pair, 100, libc::MSG_TRUNC | libc::MSG_DONTWAIT));
        pair.step();
    }
}

fn peek_trunc(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"0123456789");
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.say(
            "recv",
            sys::recv(pair.fd, &mut [0; 4], libc::MSG_TRUNC | libc::MSG_PEEK),
        );
        pair.say("recv", got(pair, 100, 0));
        pair.step();
    }
}

fn recvmsg_flags(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"message");
        pair.step();
        pair.step();
        pair.say(
            "sendmsg",
            sys::sendmsg(pair.fd, b"next", libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
        );
        pair.step();
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 7);
        let mut bytes = [0; 4];
        for _ in 0..2 {
            let (result, flags) = sys::recvmsg(pair.fd, &mut bytes, libc::MSG_DONTWAIT);
            pair.say(
                "recvmsg",
                format!(
                    "{result} {} {flags:x}",
                    shown(&bytes[..result.len().min(3)])
                ),
            );
            if result.len() < 4 {
                break;
            }
        }
        pair.step();
        pair.step();
        pair.step();
        let end = drain(pair.fd);
        pair.say("ended", end.ends_with("EOF"));
        let (result, flags) = sys::recvmsg(pair.fd, &mut bytes, 0);
        pair.say("recvmsg at the end", format!("{result} {flags:x}"));
    }
}

fn too_many_messages(pair: &Pair) {
    if pair.server() {
        let (result, _) = sys::sendmmsg(pair.fd, &[b'x'; 1100], 1100, 0);
        pair.say("sendmmsg", result);
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.say("received", drain(pair.fd));
    }
}

fn many_messages(pair: &Pair) {
    if pair.server() {
        let (result, lengths) = sys::sendmmsg(pair.fd, b"aaaabbbbccccdddd", 4, 0);
        pair.say("sendmmsg", format!("{result} {lengths:?}"));
        pair.step();
        pair.step();
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 16);
        let mut bytes = [0; 15];
        let (result, lengths) = sys::recvmmsg(pair.fd, &mut bytes, 3, 0);
        pair.say(
            "recvmmsg",
            format!("{result} {lengths:?} {}", shown(&bytes)),
        );
        let mut bytes = [0; 15];
        let (result, lengths) = sys::recvmmsg(pair.fd, &mut bytes, 3, libc::MSG_WAITFORONE);
        pair.say(
            "for one",
            format!("{result} {lengths:?} {}", shown(&bytes[..1])),
        );
        pair.step();
        pair.step();
        let (result, lengths) = sys::recvmmsg(pair.fd, &mut bytes, 3, 0);
        pair.say("at the end", format!("{result} {lengths:?}"));
    }
}

fn urgent(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"before");
        pair.say("send urgent", sys::send(pair.fd, b"!", libc::MSG_OOB));
        send_all(pair.fd, b"after");
        pair.step();
        pair.step();
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLPRI);
        pair.say("urgent", got(pair, 1, libc::MSG_OOB));
        pair.say("urgent again", got(pair, 1, libc::MSG_OOB));
        pair.say("recv stops at the mark", got(pair, 100, 0));
        pair.say("recv goes on", got(pair, 100, 0));
        pair.step();
        pair.say("then", drain(pair.fd));
    }
}

/// The second part goes through the kernel, because rings do not accept a call with these flags.
fn look_in_vain(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"ring, ");
        pair.say("kernel", sys::send(pair.fd, b"kernel", libc::MSG_ZEROCOPY));
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 12);
        let time = libc::timeval {
            tv_sec: 0,
            tv_usec: 50_000,
        };
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time).value();
        let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
        pair.say("look for more", got(pair, 100, flags));
        pair.say("recv", got(pair, 100, 0));
        pair.step();
    }
}

fn past_the_mark(pair: &Pair) {
    if pair.server() {
        pair.say("send urgent", sys::send(pair.fd, b"!", libc::MSG_OOB));
        pair.step();
        pair.step();
        send_all(pair.fd, b"after");
        pair.step();
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLPRI);
        pair.say("urgent", got(pair, 1, libc::MSG_OOB));
        pair.say("nothing else", got(pair, 100, libc::MSG_DONTWAIT));
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 5);
        pair.say("recv", got(pair, 100, 0));
        pair.step();
    }
}

fn urgent_inline(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        pair.step();
        send_all(fd, b"before");
        pair.say("send urgent", sys::send(fd, b"!", libc::MSG_OOB));
        send_all(fd, b"after");
        pair.step();
        pair.step();
    } else {
        pair.say(
            "SO_OOBINLINE",
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
        );
        pair.step();
        pair.step();
        pair.say("recv", got(pair, 100, 0));
        let mut at_mark = 0;
        pair.say("SIOCATMARK", sys::ioctl(fd, SIOCATMARK, &mut at_mark));
        pair.say("at mark", at_mark);
        pair.say("recv", got(pair, 100, 0));
        pair.step();
    }
}

/// Asks whether the next byte is the urgent one (asm-generic/sockios.h). The libc crate lacks this
/// number.
const SIOCATMARK: libc::Ioctl = 0x8905;

fn error_queue(pair: &Pair) {
    pair.say("recv", got(pair, 8, libc::MSG_ERRQUEUE));
    pair.say(
        "recvmsg",
        sys::recvmsg(
            pair.fd,
            &mut [0; 8],
            libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
        )
        .0,
    );
    pair.step();
}

/// The program asks for sends without a copy in mid-connection: each of them has one notice.
fn notices(pair: &Pair) {
    const LENGTHS: [usize; 4] = [20_000, 3 << 20, 1, 20_000];
    for len in LENGTHS {
        let bytes = sample(len);
        if pair.server() {
            let asked = sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
            pair.say("asked", asked);
            pair.say("sent", sys::send(pair.fd, &bytes, libc::MSG_ZEROCOPY));
            pair.step();
            await_events(pair.fd, libc::POLLERR);
            pair.say("notices", format!("{:?}", told(pair.fd)));
            let events = sys::poll(&[(pair.fd, libc::POLLOUT)], 0);
            pair.say("events", format!("{events:?}"));
        } else {
            let mut got = vec![0; len];
            receive_all(pair.fd, &mut got);
            pair.say("right", got == bytes);
            pair.step();
        }
        pair.step();
    }
}

/// Takes a message of the error queue: its result, and the first and the last number of the sends
/// that its notices are about (MSG_ZEROCOPY in Documentation/networking/msg_zerocopy.rst).
fn told(fd: sys::Fd) -> (sys::Ret, Vec<(u32, u32)>) {
    let mut control = [0_u64; 32];
    // SAFETY: a msghdr of zeroes is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the control buffer outlives the call.
    let result = sys::ret(unsafe { libc::recvmsg(fd, &mut header, libc::MSG_ERRQUEUE) } as i64);
    let mut notices = Vec::new();
    if result.0.is_ok() {
        // SAFETY: the kernel filled the control buffer in.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(&header);
            while !at.is_null() {
                let notice = libc::CMSG_DATA(at).cast::<libc::sock_extended_err>();
                let notice = notice.read_unaligned();
                notices.push((notice.ee_info, notice.ee_data));
                at = libc::CMSG_NXTHDR(&header, at);
            }
        }
    }
    (result, notices)
}

/// Sleeps long enough that the other role is most likely asleep in its call again. No result
/// depends on this.
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(10));
}

/// The result of `recvmsg` into `room` bytes, and the types of the received control messages.
fn received_with(pair: &Pair, room: usize) -> (sys::Ret, Vec<(i32, i32)>) {
    let (mut bytes, mut control) = (vec![0_u8; room], [0_u64; 32]);
    let mut list = [libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }];
    // SAFETY: a msghdr of zeroes is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: every buffer the header names outlives the call.
    let result = sys::ret(unsafe { libc::recvmsg(pair.fd, &mut header, 0) } as i64);
    // SAFETY: the kernel filled the control buffer in.
    let kinds = unsafe {
        let mut kinds = Vec::new();
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while !at.is_null() {
            kinds.push(((*at).cmsg_level, (*at).cmsg_type));
            at = libc::CMSG_NXTHDR(&header, at);
        }
        kinds
    };
    (result, kinds)
}

/// The connection gets its channel inside one of the calls. The call must still fill in the header:
/// an old header would name control messages that have not come.
fn header_while_moving(role: &Role) {
    const MESSAGES_MAX: usize = 400;
    const ENOUGH: u32 = 0;
    const MESSAGE: u32 = 1;
    const REPLY: u32 = 2;
    let fd = role.meet();
    if role.server() {
        loop {
            match role.hear() {
                ENOUGH => break,
                MESSAGE => send_all(fd, b"a message"),
                _ => receive_all(fd, &mut [0]),
            }
        }
        role.step();
        return;
    }
    let mut seen = Vec::new();
    for n in 0..MESSAGES_MAX {
        role.tell(MESSAGE);
        let header = header_of_message(fd);
        if !seen.contains(&header) {
            seen.push(header);
        }
        if n % 8 == 7 {
            send_all(fd, b"m");
            role.tell(REPLY);
        }
        if is_upgraded_where_expected(fd) {
            break;
        }
    }
    role.tell(ENOUGH);
    role.say("headers", format!("{seen:?}"));
    role.step();
}

/// The fields of a header that `recvmsg` has filled in. Each field holds a value before the call
/// that is never a correct result.
fn header_of_message(fd: sys::Fd) -> String {
    let (mut bytes, mut control) = ([0_u8; 16], [0x5a5a_u64; 8]);
    // SAFETY: a msghdr of zeroes and an address of zeroes are valid.
    let (mut header, mut name): (libc::msghdr, libc::sockaddr_storage) =
        unsafe { std::mem::zeroed() };
    let mut list = [libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }];
    (header.msg_iov, header.msg_iovlen) = (list.as_mut_ptr(), 1);
    header.msg_name = std::ptr::from_mut(&mut name).cast();
    header.msg_namelen = size_of_val(&name) as u32;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    header.msg_flags = 0x7777;
    // SAFETY: every buffer the header names outlives the call.
    let result = sys::ret(unsafe { libc::recvmsg(fd, &mut header, 0) } as i64);
    let (name, control) = (header.msg_namelen, header.msg_controllen);
    format!(
        "{result} name {name} control {control} flags {:x}",
        header.msg_flags
    )
}

/// The kernel starts to timestamp packets a moment after the first socket of the machine has asked
/// for timestamps (net/core/dev.c, `net_enable_timestamp`): a kernel thread does it, which a busy
/// host lets wait. So the client asks for one byte after another until one has a timestamp.
fn stamped(pair: &Pair, name: i32) {
    const MORE: u32 = 1;
    const TIME_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
    if pair.server() {
        while pair.hear() == MORE {
            send_all(pair.fd, b"s");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        return;
    }
    let result = sys::set_option(pair.fd, libc::SOL_SOCKET, name, 1);
    pair.say("option", result);
    let start = std::time::Instant::now();
    let mut is_stamped = false;
    while !is_stamped && start.elapsed() < TIME_LIMIT {
        pair.tell(MORE);
        let (result, kinds) = received_with(pair, 1);
        assert_eq!(result.len(), 1);
        is_stamped = kinds.contains(&(libc::SOL_SOCKET, name));
    }
    pair.say("stamped", is_stamped);
    pair.tell(0);
}

fn signalled(pair: &Pair, ask: fn(sys::Fd)) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: i32) {
        SIGNALS.fetch_add(1, Ordering::SeqCst);
    }
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"news");
        pair.step();
        pair.step();
        return;
    }
    let handler = count as extern "C" fn(i32);
    // SAFETY: the handler only adds to an atomic; the owner is this process.
    unsafe { libc::signal(libc::SIGIO, handler as usize) };
    sys::fcntl(pair.fd, libc::F_SETOWN, std::process::id() as i32).value();
    ask(pair.fd);
    pair.step();
    pair.step();
    pair.arrived(pair.fd, 4);
    let start = std::time::Instant::now();
    while SIGNALS.load(Ordering::SeqCst) == 0 && start.elapsed().as_secs() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    pair.say("signalled", SIGNALS.load(Ordering::SeqCst) > 0);
    pair.step();
}

fn poll_of_too_many(pair: &Pair) {
    let mut one = libc::pollfd {
        fd: pair.fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the kernel refuses the number before it looks at the array.
    let result = sys::ret(unsafe { libc::poll(&mut one, -1_i64 as libc::nfds_t, 0) });
    pair.say("poll", result);
    pair.step();
}

/// `recvmmsg` checks its time-out after each message.
fn messages_in_time(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"abcdefghi");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 9);
    let receive = |seconds: i64, nanoseconds: i64, flags| {
        let mut time = libc::timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds,
        };
        let mut bytes = [0; 3];
        let (result, lengths) = sys::recvmmsg_in(pair.fd, &mut bytes, 3, flags, &mut time);
        let is_less = (time.tv_sec, time.tv_nsec) < (seconds, nanoseconds);
        format!(
            "{result} {lengths:?} {}, less time: {is_less}",
            shown(&bytes)
        )
    };
    pair.say("no time", receive(0, 0, 0));
    pair.say("much time", receive(100, 0, 0));
    pair.say("a time that is none", receive(1, 1_000_000_000, 0));
    pair.say("a negative time", receive(-1, 0, 0));
    pair.say("the rest", receive(100, 0, 0));
    pair.say("nothing", receive(100, 0, libc::MSG_DONTWAIT));
    pair.step();
}
