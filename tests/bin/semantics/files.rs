//! sendfile and splice between files, pipes and the connection.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::Case;
use crate::interrupts;
use crate::role::{
    Checksum, Pair, await_events, drain, fill, receive_all, sample, send_all, shown,
};
use crate::sys::{self, Fd, Ret};
use crate::transfer::{RECEIVERS, SENDERS};

pub(crate) const CASES: &[Case] = &[
    Case::pair("sendfile_sends_the_file_and_moves_the_offset", sendfile),
    Case::pair("sendfile_of_a_large_file_arrives_whole", sendfile_large),
    Case::pair("nonblocking_sendfile_takes_what_fits", sendfile_nonblocking),
    Case::pair("splice_from_a_pipe_sends", splice_out),
    Case::pair("splice_to_a_pipe_receives", splice_in),
    Case::pair("splice_through_a_pipe_forwards_everything", splice_relay),
    Case::pair("sendfile_between_writes_keeps_the_order", interleaved),
    Case::pair("files_and_pipes_of_the_program_are_untouched", untouched),
    Case::pair(
        "nonblocking_calls_on_a_full_connection_return_at_once",
        full_connection,
    ),
    Case::pair(
        "nonblocking_calls_on_an_empty_connection_return_at_once",
        empty_connection,
    ),
    Case::pair("nonblocking_splice_to_a_full_pipe_returns", full_pipe),
    Case::pair("splice_waits_for_the_connection_by_its_flags", splice_waits),
    Case::pair("what_splice_and_sendfile_refuse_moves_nothing", refused),
    Case::pair("sendfile_from_the_connection_to_a_pipe_receives", to_pipe),
    Case::pair(
        "splice_to_a_full_connection_ends_by_time_out_or_signal",
        splice_ends,
    ),
];

/// A file with known contents, already unlinked.
fn file(len: usize) -> std::fs::File {
    let mut file = tempfile::tempfile().expect("the temporary directory is writable");
    file.write_all(&sample(len)).expect("there is room");
    file
}

pub(crate) fn call_sendfile(to: Fd, from: Fd, offset: Option<&mut i64>, count: usize) -> Ret {
    let offset = offset.map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: the offset, if given, outlives the call.
    sys::ret(unsafe { libc::sendfile(to, from, offset, count) } as i64)
}

pub(crate) fn splice(from: Fd, to: Fd, count: usize, flags: u32) -> Ret {
    // SAFETY: no offsets are given.
    sys::ret(
        unsafe { libc::splice(from, ptr::null_mut(), to, ptr::null_mut(), count, flags) } as i64,
    )
}

/// Receives bytes and prints whether they are the expected bytes.
fn verdict(pair: &Pair, what: &str, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    receive_all(pair.fd, &mut bytes);
    pair.say(what, if bytes == expected { "right" } else { "wrong" });
}

fn sendfile(pair: &Pair) {
    let bytes = sample(10_000);
    if pair.server() {
        let file = file(bytes.len());
        let fd = file.as_raw_fd();
        let mut offset = 100;
        pair.say(
            "sendfile",
            call_sendfile(pair.fd, fd, Some(&mut offset), 400),
        );
        pair.say("offset", offset);
        // SAFETY: takes no pointers.
        let seek = |to, whence| sys::ret(unsafe { libc::lseek(fd, to, whence) });
        seek(0, libc::SEEK_SET).value();
        pair.say("sendfile", call_sendfile(pair.fd, fd, None, 1000));
        pair.say("position", seek(0, libc::SEEK_CUR));
        offset = 9_900;
        pair.say(
            "sendfile past the end",
            call_sendfile(pair.fd, fd, Some(&mut offset), 1000),
        );
        pair.say(
            "sendfile at the end",
            call_sendfile(pair.fd, fd, Some(&mut offset), 1000),
        );
        pair.say("sendfile of nothing", call_sendfile(pair.fd, fd, None, 0));
        pair.step();
    } else {
        verdict(pair, "part", &bytes[100..500]);
        verdict(pair, "start", &bytes[..1000]);
        verdict(pair, "end", &bytes[9_900..]);
        pair.step();
        pair.say("then", drain(pair.fd));
    }
}

fn sendfile_large(pair: &Pair) {
    const LEN: usize = 12_000_000;
    if pair.server() {
        let file = file(LEN);
        let mut offset = 0;
        while offset < LEN as i64 {
            let result = call_sendfile(pair.fd, file.as_raw_fd(), Some(&mut offset), LEN);
            assert!(result.value() > 0);
        }
        pair.say("sent", offset);
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.say("received", drain(pair.fd));
    }
}

fn sendfile_nonblocking(pair: &Pair) {
    const LEN: usize = 64 << 20;
    if pair.server() {
        let file = tempfile::tempfile().expect("the temporary directory is writable");
        file.set_len(LEN as u64).expect("holes need no room");
        sys::set_nonblocking(pair.fd, true);
        let mut offset = 0;
        let refusal = loop {
            let result = call_sendfile(pair.fd, file.as_raw_fd(), Some(&mut offset), LEN);
            if result.0.is_err() {
                break result;
            }
        };
        pair.say("sent a part", offset > 0 && offset < LEN as i64);
        pair.say("then", refusal);
        pair.tell(u32::try_from(offset).expect("below 4 GB"));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        let mut bytes = vec![1; sent];
        receive_all(pair.fd, &mut bytes);
        pair.say("all zeroes", bytes.iter().all(|byte| *byte == 0));
        pair.say(
            "nothing else",
            sys::recv(pair.fd, &mut [0; 1], libc::MSG_DONTWAIT),
        );
        pair.step();
    }
}

fn splice_out(pair: &Pair) {
    if pair.server() {
        let (reader, writer) = sys::pipe();
        sys::write(writer, b"through a pipe").value();
        pair.say("splice", splice(reader, pair.fd, 7, 0));
        pair.say("splice", splice(reader, pair.fd, 100, 0));
        pair.say(
            "splice of nothing",
            splice(reader, pair.fd, 100, libc::SPLICE_F_NONBLOCK),
        );
        sys::close(writer).value();
        pair.say("splice at the end", splice(reader, pair.fd, 100, 0));
        pair.step();
    } else {
        let mut bytes = [0; 14];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        pair.step();
    }
}

fn splice_in(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"into a pipe");
        pair.step();
        pair.step();
        pair.say("close", sys::close(pair.fd));
    } else {
        let (reader, writer) = sys::pipe();
        sys::set_nonblocking(pair.fd, true);
        pair.say(
            "splice of nothing",
            splice(pair.fd, writer, 100, libc::SPLICE_F_NONBLOCK),
        );
        sys::set_nonblocking(pair.fd, false);
        pair.step();
        pair.step();
        pair.say("splice", splice(pair.fd, writer, 4, 0));
        // A receive would wait for this many bytes; a splice does not.
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 50).value();
        pair.say("splice", splice(pair.fd, writer, 100, 0));
        let mut bytes = [0; 20];
        let result = sys::read(reader, &mut bytes);
        pair.say("read", shown(&bytes[..result.len()]));
        pair.step();
        pair.say("splice at the end", splice(pair.fd, writer, 100, 0));
    }
}

fn splice_relay(pair: &Pair) {
    const LEN: usize = 5_000_000;
    if pair.server() {
        // The server sends everything back by splice(2), like a proxy that never reads the bytes.
        let (reader, writer) = sys::pipe();
        let mut total = 0;
        loop {
            let taken = splice(pair.fd, writer, 65_536, libc::SPLICE_F_MOVE).value();
            if taken == 0 {
                break;
            }
            let mut given = 0;
            while given < taken {
                let rest = usize::try_from(taken - given).expect("positive");
                given += splice(
                    reader,
                    pair.fd,
                    rest,
                    libc::SPLICE_F_MOVE | libc::SPLICE_F_MORE,
                )
                .value();
            }
            total += taken;
        }
        pair.say("relayed", total);
        pair.say("close", sys::close(pair.fd));
    } else {
        let fd = pair.fd;
        let bytes = sample(LEN);
        let reader = std::thread::spawn(move || drain(fd));
        send_all(fd, &bytes);
        sys::shutdown(fd, libc::SHUT_WR).value();
        pair.say("back", reader.join().expect("no panic"));
        pair.say("checksum sent", Checksum::of(&bytes));
    }
}

fn interleaved(pair: &Pair) {
    const ROUNDS: usize = 30;
    if pair.server() {
        let file = file(5000);
        for _ in 0..ROUNDS {
            pair.say("header", sys::send(pair.fd, b"header", libc::MSG_MORE));
            pair.say(
                "body",
                call_sendfile(pair.fd, file.as_raw_fd(), Some(&mut 0), 5000),
            );
            pair.say("trailer", sys::writev(pair.fd, b"trailer"));
        }
        pair.step();
    } else {
        let expected = [b"header".as_slice(), &sample(5000), b"trailer"].concat();
        for _ in 0..ROUNDS {
            verdict(pair, "round", &expected);
        }
        pair.step();
    }
}

fn untouched(pair: &Pair) {
    let file = file(100);
    let (reader, writer) = sys::pipe();
    // SAFETY: takes no pointers.
    unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET) };
    let mut bytes = [0; 100];
    pair.say("read of a file", sys::read(file.as_raw_fd(), &mut bytes));
    pair.say("right", bytes[..] == sample(100)[..]);
    pair.say("readv at its end", sys::readv(file.as_raw_fd(), &mut bytes));
    pair.say("writev to a pipe", sys::writev(writer, b"pipe"));
    pair.say("readv of a pipe", sys::readv(reader, &mut bytes));
    pair.say("recv of a pipe", sys::recv(reader, &mut bytes, 0));
    pair.say("send to a file", sys::send(file.as_raw_fd(), b"x", 0));
    pair.say("shutdown of a pipe", sys::shutdown(reader, libc::SHUT_RD));
    pair.say("splice pipe to file", {
        sys::write(writer, b"more").value();
        splice(reader, file.as_raw_fd(), 4, 0)
    });
    pair.step();
}

/// Tests every call that sends without waiting. Bytes in a pipe or a file stay there.
fn full_connection(pair: &Pair) {
    if !pair.server() {
        return take_what_filled_it(pair);
    }
    let (reader, writer) = sys::pipe();
    sys::write(writer, &sample(1000)).value();
    let file = file(1000);
    let sent = fill(pair.fd);
    for (name, sender) in SENDERS {
        // These calls take no flags, or their flags say nothing about waiting. The descriptor's own
        // flag decides.
        sys::set_nonblocking(pair.fd, true);
        pair.say(name, sender(pair.fd, &[0; 1000]));
        sys::set_nonblocking(pair.fd, false);
    }
    pair.say("send", sys::send(pair.fd, &[0; 1000], libc::MSG_DONTWAIT));
    let result = sys::sendmsg(pair.fd, &[0; 1000], libc::MSG_DONTWAIT);
    pair.say("sendmsg", result);
    sys::set_nonblocking(pair.fd, true);
    for flags in [0, libc::SPLICE_F_NONBLOCK] {
        pair.say("splice", splice(reader, pair.fd, 1000, flags));
    }
    let mut offset = 0;
    let result = call_sendfile(pair.fd, file.as_raw_fd(), Some(&mut offset), 1000);
    pair.say("sendfile", format!("{result}, offset {offset}"));
    pair.say("in the pipe", sys::readable_bytes(reader));
    pair.tell(u32::try_from(sent).expect("below 4 GB"));
    await_events(pair.fd, libc::POLLOUT);
    pair.say("splice", splice(reader, pair.fd, 1000, 0));
    pair.step();
}

/// Tests every call that receives without waiting.
fn empty_connection(pair: &Pair) {
    if pair.server() {
        let (_, writer) = sys::pipe();
        sys::set_nonblocking(pair.fd, true);
        for (name, receiver) in RECEIVERS {
            pair.say(name, receiver(pair.fd, &mut [0; 8]));
        }
        for flags in [0, libc::SPLICE_F_NONBLOCK] {
            pair.say("splice", splice(pair.fd, writer, 8, flags));
        }
        sys::set_nonblocking(pair.fd, false);
        let flags = libc::MSG_DONTWAIT;
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], flags));
        let all = flags | libc::MSG_WAITALL;
        pair.say("recv all", sys::recv(pair.fd, &mut [0; 8], all));
        let peek = flags | libc::MSG_PEEK;
        pair.say("peek", sys::recv(pair.fd, &mut [0; 8], peek));
        pair.say("recvmsg", sys::recvmsg(pair.fd, &mut [0; 8], flags).0);
        pair.say("recvmmsg", sys::recvmmsg(pair.fd, &mut [0; 8], 1, flags).0);
    }
    pair.step();
}

/// A pipe with sixteen pages. Each page has some free space, but no page is free.
fn full_pipe(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"for the pipe");
        pair.step();
        return;
    }
    pair.arrived(pair.fd, 12);
    sys::set_nonblocking(pair.fd, true);
    let (reader, writer) = sys::pipe();
    for _ in 0..16 {
        sys::write(writer, &[1; 2049]).value();
    }
    let flags = libc::SPLICE_F_NONBLOCK;
    pair.say("splice", splice(pair.fd, writer, 100, flags));
    sys::read(reader, &mut [0; 2049]).value();
    pair.say("splice", splice(pair.fd, writer, 100, flags));
    let mut bytes = vec![0; 15 * 2049 + 12];
    receive_all_of_pipe(reader, &mut bytes);
    pair.say("last", shown(&bytes[15 * 2049..]));
    pair.step();
}

fn receive_all_of_pipe(reader: Fd, bytes: &mut [u8]) {
    let mut received = 0;
    while received < bytes.len() {
        received += sys::read(reader, &mut bytes[received..]).len();
    }
}

/// `SPLICE_F_NONBLOCK` applies to the pipe only. The connection's own flag decides whether splice
/// waits for the connection.
fn splice_waits(pair: &Pair) {
    const MOMENT: std::time::Duration = std::time::Duration::from_millis(50);
    pair.step();
    if pair.server() {
        std::thread::sleep(MOMENT);
        send_all(pair.fd, b"late");
        pair.step();
        pair.say("close", sys::close(pair.fd));
        return;
    }
    let (reader, writer) = sys::pipe();
    let flags = libc::SPLICE_F_NONBLOCK;
    pair.say("splice", splice(pair.fd, writer, 100, flags));
    let result = splice(reader, pair.fd, 4, flags);
    pair.say("splice", result);
    let result = splice(reader, pair.fd, 4, flags);
    pair.say("splice of an empty pipe", result);
    sys::set_nonblocking(reader, true);
    let result = splice(reader, pair.fd, 4, 0);
    pair.say("splice of an empty, non-blocking pipe", result);
    sys::close(writer).value();
    let result = splice(reader, pair.fd, 4, flags);
    pair.say("splice of an ended pipe", result);
    pair.step();
}

fn refused(pair: &Pair) {
    if !pair.server() {
        pair.say("received", drain(pair.fd));
        return;
    }
    let (fd, file) = (pair.fd, file(100));
    let (reader, writer) = sys::pipe();
    sys::write(writer, b"stays").value();
    let none = ptr::null_mut();
    let mut offset = 0;
    pair.say("sendfile of a pipe", call_sendfile(fd, reader, None, 5));
    let result = call_sendfile(fd, reader, Some(&mut offset), 5);
    pair.say("sendfile of a pipe, with an offset", result);
    pair.say("sendfile of a connection", call_sendfile(fd, fd, None, 5));
    let directory = std::fs::File::open("/").expect("the root can be read");
    let result = call_sendfile(fd, directory.as_raw_fd(), None, 5);
    pair.say("sendfile of a directory", result);
    let result = call_sendfile(fd, file.as_raw_fd(), None, usize::MAX);
    pair.say("sendfile of too many", result);
    pair.say("splice of a file", splice(file.as_raw_fd(), fd, 5, 0));
    pair.say("splice of a connection", splice(fd, fd, 5, 0));
    pair.say("splice of nothing", splice(reader, fd, 0, 0));
    pair.say("splice with other flags", splice(reader, fd, 5, 1 << 6));
    // SAFETY: the offset outlives both calls.
    let (from, to) = unsafe {
        (
            libc::splice(reader, &mut offset, fd, none, 5, 0),
            libc::splice(reader, none, fd, &mut offset, 5, 0),
        )
    };
    pair.say("splice with offsets", format!("{from} {to}"));
    pair.say("in the pipe", sys::readable_bytes(reader));
    pair.say("close", sys::close(fd));
}

fn to_pipe(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"hello pipe");
        pair.step();
        pair.say("close", sys::close(pair.fd));
        return;
    }
    let (reader, writer) = sys::pipe();
    pair.arrived(pair.fd, 10);
    let mut bytes = [0; 16];
    let result = call_sendfile(writer, pair.fd, None, 6);
    pair.say("sendfile", result);
    let arguments = [writer, pair.fd].map(|fd| fd.cast_unsigned() as usize);
    // SAFETY: no offset is given.
    let result = unsafe { libc::syscall(libc::SYS_sendfile, arguments[0], arguments[1], 0, 99) };
    pair.say("syscall(sendfile)", sys::ret(result));
    let result = sys::read(reader, &mut bytes);
    pair.say("read", shown(&bytes[..result.len()]));
    let result = call_sendfile(writer, pair.fd, Some(&mut 0), 6);
    pair.say("sendfile with an offset", result);
    pair.step();
    let result = call_sendfile(writer, pair.fd, None, 6);
    pair.say("sendfile at the end", result);
}

/// The client's part of a case in which the server fills the connection and then sends a sample.
fn take_what_filled_it(pair: &Pair) {
    let sent = pair.hear() as usize;
    receive_all(pair.fd, &mut vec![0; sent]);
    verdict(pair, "after it", &sample(1000));
    pair.step();
}

/// Bytes that are not sent stay in the pipe.
fn splice_ends(pair: &Pair) {
    if !pair.server() {
        return take_what_filled_it(pair);
    }
    let (reader, writer) = sys::pipe();
    sys::write(writer, &sample(1000)).value();
    let mut sent = fill(pair.fd);
    // On a busy host a segment can be lost. The connection looks full, the segment is sent again
    // later, and then there is space again.
    let mut splice_until = |error| {
        loop {
            let outcome = splice(reader, pair.fd, 1000, 0);
            if outcome.is(error) {
                return outcome;
            }
            let moved = usize::try_from(outcome.value()).expect("not negative");
            if moved < 1000 {
                sys::read(reader, &mut vec![0; 1000 - moved]).value();
            }
            sys::write(writer, &sample(1000)).value();
            sent += moved + fill(pair.fd);
        }
    };
    let limit = |usec| {
        let time = [0_i64, usec];
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time).value();
    };
    limit(50_000);
    pair.say("splice within a time", splice_until(libc::EAGAIN));
    limit(0);
    interrupts::handle(interrupts::count, 0);
    interrupts::alarm(30, 30);
    pair.say("splice interrupted", splice_until(libc::EINTR));
    interrupts::alarm(0, 0);
    pair.say("in the pipe", sys::readable_bytes(reader));
    pair.tell(u32::try_from(sent).expect("below 4 GB"));
    pair.say("splice", splice(reader, pair.fd, 1000, 0));
    pair.step();
}
