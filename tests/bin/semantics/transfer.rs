//! Transfer of bytes: every call that sends, with every call that receives.

use std::time::{Duration, Instant};

use crate::Case;
use crate::role::{Checksum, Pair, await_events, drain, receive_all, sample, send_all, shown};
use crate::sys::{self, Fd, Ret};

pub(crate) const CASES: &[Case] = &[
    Case::pair("every_send_call_meets_every_receive_call", every_call),
    Case::pair6("every_send_call_meets_every_receive_call_ipv6", every_call),
    Case::pair("large_sends_arrive_whole_by_every_call", large),
    Case::pair("both_directions_at_once_arrive_whole", both_directions),
    Case::pair("both_write_before_either_reads", write_first),
    Case::pair(
        "both_write_before_either_polls_for_input",
        write_first_nonblocking,
    ),
    Case::pair("many_small_sends_are_one_stream", small_sends),
    Case::pair("rate_that_the_program_sets_is_not_exceeded", paced),
    Case::pair("filter_of_the_program_sees_what_arrives", filtered),
    Case::pair("empty_sends_and_receives_do_nothing", empty),
    Case::pair("bad_pointers_fault_and_lose_nothing", bad_pointers),
    Case::pair(
        "destination_of_a_connected_socket_is_ignored_or_refused",
        destination,
    ),
    Case::pair(
        "ancillary_free_messages_report_no_ancillary_data",
        recvmsg_fields,
    ),
];

pub(crate) type Sender = (&'static str, fn(Fd, &[u8]) -> Ret);
pub(crate) type Receiver = (&'static str, fn(Fd, &mut [u8]) -> Ret);

pub(crate) const SENDERS: &[Sender] = &[
    ("write", sys::write),
    ("send", |fd, bytes| sys::send(fd, bytes, 0)),
    ("writev", sys::writev),
    ("sendto", |fd, bytes| sys::sendto(fd, bytes, 0)),
    ("sendmsg", |fd, bytes| sys::sendmsg(fd, bytes, 0)),
    ("sendmmsg", |fd, bytes| {
        let (result, lengths) = sys::sendmmsg(fd, bytes, 2, 0);
        Ret(result
            .0
            .map(|_| lengths.iter().map(|length| i64::from(*length)).sum()))
    }),
    ("syscall(write)", |fd, bytes| {
        sys::raw(libc::SYS_write, fd, bytes.as_ptr().cast_mut(), bytes.len())
    }),
    ("syscall(sendto)", |fd, bytes| {
        sys::raw(libc::SYS_sendto, fd, bytes.as_ptr().cast_mut(), bytes.len())
    }),
];

pub(crate) const RECEIVERS: &[Receiver] = &[
    ("read", sys::read),
    ("recv", |fd, bytes| sys::recv(fd, bytes, 0)),
    ("readv", sys::readv),
    ("recvfrom", |fd, bytes| sys::recvfrom(fd, bytes, 0)),
    ("recvmsg", |fd, bytes| sys::recvmsg(fd, bytes, 0).0),
    ("recvmmsg", |fd, bytes| {
        let (result, lengths) = sys::recvmmsg(fd, bytes, 1, 0);
        Ret(result
            .0
            .map(|_| lengths.iter().map(|length| i64::from(*length)).sum()))
    }),
    ("__read_chk", sys::read_chk),
    ("__recv_chk", sys::recv_chk),
    ("__recvfrom_chk", sys::recvfrom_chk),
    ("syscall(read)", |fd, bytes| {
        sys::raw(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len())
    }),
    ("syscall(recvfrom)", |fd, bytes| {
        sys::raw(libc::SYS_recvfrom, fd, bytes.as_mut_ptr(), bytes.len())
    }),
];

fn every_call(pair: &Pair) {
    for (sender_name, sender) in SENDERS {
        for (receiver_name, receiver) in RECEIVERS {
            // Each role sends once and receives once, the server first.
            for server_sends in [true, false] {
                if pair.server() == server_sends {
                    let text = format!("{sender_name} to {receiver_name}!!");
                    let text = &text.as_bytes()[..text.len() & !1];
                    pair.say(sender_name, sender(pair.fd, text));
                    pair.tell(u32::try_from(text.len()).expect("short"));
                } else {
                    pair.arrived(pair.fd, pair.hear() as usize);
                    let mut bytes = [0; 64];
                    let result = receiver(pair.fd, &mut bytes);
                    pair.say(
                        receiver_name,
                        format!("{result} {}", shown(&bytes[..result.len()])),
                    );
                }
            }
        }
    }
}

fn large(pair: &Pair) {
    const LEN: usize = 3_000_000;
    let bytes = sample(LEN);
    let rounds = SENDERS.len().max(RECEIVERS.len());
    for round in 0..rounds {
        let (sender_name, sender) = SENDERS[round % SENDERS.len()];
        let (receiver_name, receiver) = RECEIVERS[round % RECEIVERS.len()];
        if pair.server() == (round % 2 == 0) {
            let mut sent = 0;
            while sent < LEN {
                // The call that sends two messages needs an even length.
                let result = sender(pair.fd, &bytes[sent..]);
                sent += usize::try_from(result.value()).expect("not negative");
            }
            pair.say(sender_name, sent);
        } else {
            let (mut received, mut sum) = (0, Checksum::default());
            let mut part = vec![0; 100_000];
            while received < LEN {
                let want = part.len().min(LEN - received);
                let result = receiver(pair.fd, &mut part[..want]);
                assert!(
                    result.value() > 0,
                    "{receiver_name} found the end at {received}"
                );
                sum.add(&part[..result.len()]);
                received += result.len();
            }
            pair.say(
                receiver_name,
                format!(
                    "{received} right {}",
                    sum.to_string() == Checksum::of(&bytes).to_string()
                ),
            );
        }
    }
}

fn both_directions(pair: &Pair) {
    const LEN: usize = 20_000_000;
    let fd = pair.fd;
    let bytes = sample(LEN);
    let received = std::thread::scope(|scope| {
        let reader = scope.spawn(|| drain(fd));
        send_all(fd, &bytes);
        sys::shutdown(fd, libc::SHUT_WR).value();
        reader.join().expect("the reader does not panic")
    });
    pair.say("received", received);
}

/// A rate limit for sending. The kernel sends some segments of up to 64 KB before it starts to
/// pace.
fn paced(pair: &Pair) {
    /// Bytes per second.
    const BYTES: u32 = 4_000_000;
    const LEN: usize = 2_000_000;
    // The client answers each piece, so the connection may move to its rings.
    const PIECE: usize = 10_000;
    const LEAST: Duration = Duration::from_millis(200);
    let bytes = sample(LEN);
    if pair.server() {
        let (fd, level, name) = (pair.fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
        pair.say("set", sys::set_option(fd, level, name, BYTES));
        pair.say("rate", sys::option(fd, level, name));
        pair.step();
        for piece in bytes.chunks(PIECE) {
            send_all(fd, piece);
            receive_all(fd, &mut [0]);
        }
    } else {
        pair.step();
        let begun = Instant::now();
        let mut received = vec![0; LEN];
        for piece in received.chunks_mut(PIECE) {
            receive_all(pair.fd, piece);
            send_all(pair.fd, b"!");
        }
        pair.say("is held back", begun.elapsed() >= LEAST);
        pair.say("right", received == bytes);
    }
    pair.step();
}

/// A socket filter drops packets in the kernel, and the sender sends them again.
fn filtered(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        pair.step();
        send_all(fd, b"once more");
        pair.step();
        pair.step();
        return;
    }
    let mut nothing = libc::sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    let attach = libc::SO_ATTACH_FILTER;
    let set = sys::set_option(fd, libc::SOL_SOCKET, attach, filter);
    pair.say("attach", set);
    pair.step();
    pair.step();
    let mut bytes = [0; 9];
    let received = sys::recv(fd, &mut bytes, libc::MSG_DONTWAIT);
    pair.say("before", format!("{received} {}", shown(&bytes)));
    let detach = libc::SO_DETACH_FILTER;
    let set = sys::set_option(fd, libc::SOL_SOCKET, detach, 0);
    pair.say("detach", set);
    if received.0.is_err() {
        receive_all(fd, &mut bytes);
    }
    pair.say("after", shown(&bytes));
    pair.step();
}

/// `BPF_RET | BPF_K` (include/uapi/linux/bpf_common.h): keep this many bytes of the packet.
const RETURN: u16 = 0x06;

/// More than the largest ring holds, and less than the kernel holds on loopback.
const UNREAD_BYTES: usize = 600_000;

fn write_first(pair: &Pair) {
    for round in 0..3 {
        let bytes = sample(UNREAD_BYTES + round);
        send_all(pair.fd, &bytes);
        pair.step();
        let mut received = vec![0; bytes.len()];
        receive_all(pair.fd, &mut received);
        pair.say("right", received == bytes);
    }
}

/// Sends in pieces and waits for buffer space by poll, as an event loop does.
fn write_first_nonblocking(pair: &Pair) {
    sys::set_nonblocking(pair.fd, true);
    let bytes = sample(UNREAD_BYTES);
    for part in bytes.chunks(10_000) {
        await_events(pair.fd, libc::POLLOUT);
        send_all(pair.fd, part);
    }
    pair.step();
    let mut received = vec![0; bytes.len()];
    receive_all(pair.fd, &mut received);
    pair.say("right", received == bytes);
}

fn small_sends(pair: &Pair) {
    if pair.server() {
        for number in 0..5000_u32 {
            send_all(
                pair.fd,
                &number.to_be_bytes()[4 - (number % 4) as usize - 1..],
            );
        }
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.say("received", drain(pair.fd));
    }
}

fn empty(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        for (name, sender) in &SENDERS[..5] {
            pair.say(name, sender(fd, &[]));
        }
        pair.step();
        pair.step();
        pair.say("send", sys::send(fd, b"data", 0));
        pair.step();
    } else {
        pair.step();
        pair.say(
            "recv finds nothing",
            sys::recv(fd, &mut [0; 8], libc::MSG_DONTWAIT),
        );
        pair.say(
            "poll finds nothing",
            format!("{:?}", sys::poll(&[(fd, libc::POLLIN)], 0)),
        );
        asked_for_nothing(pair, "nothing there");
        pair.step();
        pair.step();
        pair.arrived(fd, 4);
        pair.say("read of nothing", sys::read(fd, &mut []));
        pair.say(
            "recv of nothing",
            sys::recv(fd, &mut [], libc::MSG_DONTWAIT),
        );
        let mut bytes = [0; 8];
        let result = sys::recv(fd, &mut bytes, 0);
        pair.say("recv", shown(&bytes[..result.len()]));
    }
    pair.step();
    if pair.server() {
        pair.say("shutdown", sys::shutdown(fd, libc::SHUT_WR));
        pair.say("send of nothing", sys::send(fd, &[], libc::MSG_NOSIGNAL));
        pair.step();
    } else {
        // A receive of no bytes waits until the stream ends. Its result does not show the end.
        pair.say("recv waits", sys::recv(fd, &mut [], 0));
        asked_for_nothing(pair, "at the end");
        pair.say("recv", sys::recv(fd, &mut [0; 8], 0));
        pair.step();
    }
}

/// Every call that receives, with no room for bytes and without waiting.
fn asked_for_nothing(pair: &Pair, when: &str) {
    let fd = pair.fd;
    for (name, flags) in [
        ("recv", 0),
        ("peek", libc::MSG_PEEK),
        ("recv all", libc::MSG_WAITALL),
    ] {
        let result = sys::recv(fd, &mut [], flags | libc::MSG_DONTWAIT);
        pair.say(&format!("{name} of nothing, {when}"), result);
    }
    let (result, flags) = sys::recvmsg(fd, &mut [], libc::MSG_DONTWAIT);
    pair.say(
        &format!("recvmsg of nothing, {when}"),
        format!("{result} {flags:x}"),
    );
    pair.say(&format!("read of nothing, {when}"), sys::read(fd, &mut []));
    pair.say(
        &format!("readv of nothing, {when}"),
        sys::readv(fd, &mut []),
    );
}

fn bad_pointers(pair: &Pair) {
    let fd = pair.fd;
    // An address that is not mapped in any process.
    let nowhere = std::ptr::without_provenance_mut::<u8>(8);
    if pair.server() {
        pair.say(
            "write from nowhere",
            sys::raw(libc::SYS_write, fd, nowhere, 100),
        );
        pair.say("send", sys::send(fd, b"good", 0));
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.say(
            "read to nowhere",
            sys::raw(libc::SYS_read, fd, nowhere, 100),
        );
        let mut bytes = [0; 8];
        let result = sys::recv(fd, &mut bytes, 0);
        pair.say("recv", shown(&bytes[..result.len()]));
        pair.step();
    }
}

fn destination(pair: &Pair) {
    let (address, len) = sys::spelled(sys::loopback(pair.family, 9));
    if pair.server() {
        // SAFETY: the text and the address are live and as long as the call says.
        let result = sys::ret(unsafe {
            libc::sendto(
                pair.fd,
                b"text".as_ptr().cast(),
                4,
                0,
                std::ptr::from_ref(&address).cast(),
                len,
            )
        } as i64);
        pair.say("sendto with an address", result);
        send_all(pair.fd, b".");
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.say("received", drain(pair.fd));
    }
}

fn recvmsg_fields(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"ten bytes.");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    let mut bytes = [0_u8; 16];
    let mut control = [0_u8; 64];
    // SAFETY: a msghdr of zeroes and an address of zeroes are valid.
    let (mut header, mut name): (libc::msghdr, libc::sockaddr_storage) =
        unsafe { std::mem::zeroed() };
    let mut list = [libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }];
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len();
    header.msg_name = std::ptr::from_mut(&mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
    // SAFETY: every buffer the header names outlives the call.
    let result = sys::ret(unsafe { libc::recvmsg(pair.fd, &mut header, 0) } as i64);
    pair.say("recvmsg", result);
    pair.say("name length", header.msg_namelen);
    pair.say("control length", header.msg_controllen);
    pair.say("flags", header.msg_flags);
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    // SAFETY: the buffer and the address outlive the call.
    let result = sys::ret(unsafe {
        libc::recvfrom(
            pair.fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            std::ptr::from_mut(&mut name).cast(),
            &mut len,
        )
    } as i64);
    pair.say("recvfrom", result);
    pair.step();
}
