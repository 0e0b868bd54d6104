//! Bytes that were unread when the library left a program. Every call that takes bytes must take
//! these first, in their place before the bytes that come later.

use crate::Case;
use crate::aliases::{aio_read, completion, preadv2, request};
use crate::confined::confine_nothing;
use crate::files::{call_sendfile, splice};
use crate::role::{Pair, receive_all, sample, send_all, shown};
use crate::stdio::Stream;
use crate::sys::{self, Fd, Ret};
use crate::transfer::{RECEIVERS, Receiver};

pub(crate) const CASES: &[Case] = &[
    Case::pair(
        "vfork_child_leaves_unread_bytes_to_its_parent",
        guest_closes,
    ),
    Case::pair(
        "program_that_is_executed_skips_no_unread_bytes",
        given_to_a_program,
    ),
    Case::pair(
        "unread_bytes_of_a_confined_program_meet_every_call",
        every_call,
    ),
    Case::pair(
        "unread_bytes_of_a_confined_program_precede_the_rest",
        followed,
    ),
    Case::pair(
        "urgent_byte_behind_unread_bytes_of_a_confined_program",
        urgent,
    ),
    Case::pair(
        "unread_bytes_of_a_confined_program_and_headers_that_cannot_be_written",
        headers_without_a_place,
    ),
    Case::pair(
        "number_of_unread_bytes_is_as_new_after_fclose",
        number_is_as_new,
    ),
];

/// The client leaves to a namespace of its own, which makes no call forbidden.
fn leaves(pair: &Pair) {
    // SAFETY: takes no pointers.
    let unshared = sys::ret(unsafe { libc::unshare(libc::CLONE_NEWPID) });
    pair.say("unshare", unshared);
}

/// A `vfork` child closes and replaces its own numbers, while bytes are unread.
fn guest_closes(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"never lost");
        pair.step();
    } else {
        pair.arrived(pair.fd, 10);
        let copy = sys::dup(pair.fd).fd();
        let (read, _write) = sys::pipe();
        leaves(pair);
        // SAFETY: the child makes plain system calls, and ends by _exit.
        #[expect(deprecated, reason = "what is tested is vfork itself")]
        let child = unsafe {
            let child = libc::vfork();
            if child == 0 {
                libc::close(pair.fd);
                libc::dup2(read, copy);
                libc::close_range(3, 500, 0);
                libc::_exit(0);
            }
            child
        };
        pair.say("child", sys::wait_for(child));
        let mut bytes = [0; 10];
        receive_all(copy, &mut bytes[..5]);
        receive_all(pair.fd, &mut bytes[5..]);
        pair.say("bytes", shown(&bytes));
        pair.step();
    }
    goes_on(pair);
}

/// A child of such a program executes another one, which reads its standard input. It cannot get
/// unread bytes, and must get no others in their place.
fn given_to_a_program(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"unread, ");
        pair.step();
        // The connection may have been reset.
        let _ = sys::send(pair.fd, b"later", libc::MSG_NOSIGNAL);
        pair.step();
    } else {
        pair.arrived(pair.fd, 8);
        leaves(pair);
        pair.step();
        let child = sys::fork();
        if child == 0 {
            sys::dup2(pair.fd, 0).value();
            crate::exec::execute(&["begins", "unread, "]);
        }
        pair.say("child", sys::wait_for(child));
        pair.step();
    }
    sys::exit_now(0);
}

/// The executed program: true when its standard input begins with `text`, or has ended.
pub(crate) fn begins(text: &str) {
    let mut bytes = vec![0; text.len()];
    let result = sys::recv(0, &mut bytes, 0);
    let is_right = result.0.is_err() || result.len() == 0 || bytes == text.as_bytes();
    println!("begins as it must -> {is_right}");
}

/// Calls that take bytes and are not in [`RECEIVERS`].
const OTHERS: &[Receiver] = &[
    ("preadv2", |fd, bytes| preadv2(fd, bytes, -1, 0)),
    ("recvmmsg of two", |fd, bytes| {
        let (result, lengths) = sys::recvmmsg(fd, bytes, 2, 0);
        Ret(result
            .0
            .map(|_| lengths.iter().map(|length| i64::from(*length)).sum()))
    }),
    ("splice", |fd, bytes| {
        through_a_pipe(bytes, |pipe, len| splice(fd, pipe, len, 0))
    }),
    ("sendfile", |fd, bytes| {
        through_a_pipe(bytes, |pipe, len| call_sendfile(pipe, fd, None, len))
    }),
    ("aio_read", |fd, bytes| {
        let mut read = request(fd, bytes, libc::LIO_READ);
        // SAFETY: request and buffer live until the request is complete.
        sys::ret(unsafe { aio_read(&mut read) }).value();
        let text = completion(&mut read);
        let count = text.split(' ').next().expect("a number");
        Ret(Ok(count.parse().expect("a number")))
    }),
    ("a duplicate", |fd, bytes| {
        let copy = sys::dup(fd).fd();
        let result = sys::read(copy, bytes);
        sys::close(copy).value();
        result
    }),
    ("a number above all others", |fd, bytes| {
        let copy = sys::fcntl(fd, libc::F_DUPFD, 900).fd();
        let result = sys::read(copy, bytes);
        sys::close(copy).value();
        result
    }),
    ("fread", |fd, bytes| {
        let stream = Stream::open(sys::dup(fd).fd(), c"r");
        stream.without_buffer();
        let result = stream.read(bytes);
        stream.close();
        Ret(Ok(result as i64))
    }),
];

/// Moves bytes into a pipe by `call`, and reads them from there.
fn through_a_pipe(bytes: &mut [u8], call: impl Fn(Fd, usize) -> Ret) -> Ret {
    let (read, write) = sys::pipe();
    let result = call(write, bytes.len());
    if result.0.is_ok() {
        sys::read(read, bytes).value();
    }
    sys::close(read).value();
    sys::close(write).value();
    result
}

/// Bytes that each call asks for.
const PART: usize = 500;

fn every_call(pair: &Pair) {
    let calls: Vec<&Receiver> = RECEIVERS.iter().chain(OTHERS).collect();
    let all = sample(PART * (calls.len() + 1));
    if pair.server() {
        send_all(pair.fd, &all);
        pair.step();
    } else {
        pair.arrived(pair.fd, all.len());
        confine_nothing();
        let mut parts = all.chunks(PART);
        for (name, call) in calls {
            pair.say("there", sys::readable_bytes(pair.fd));
            let mut bytes = [0; PART];
            let result = call(pair.fd, &mut bytes);
            let right = bytes == parts.next().expect("a part for each");
            pair.say(name, format!("{result} {right}"));
        }
        let child = sys::fork();
        if child == 0 {
            let mut bytes = [0; PART];
            receive_all(pair.fd, &mut bytes);
            let right = bytes == parts.next().expect("a part for the child");
            sys::exit_now(i32::from(!right));
        }
        pair.say("child", sys::wait_for(child));
        pair.say("rest", sys::recv(pair.fd, &mut [0; 1], libc::MSG_DONTWAIT));
        pair.step();
    }
    goes_on(pair);
}

fn goes_on(pair: &Pair) {
    let mut bytes = [0; 6];
    if pair.server() {
        send_all(pair.fd, b"onward");
        receive_all(pair.fd, &mut bytes);
    } else {
        receive_all(pair.fd, &mut bytes);
        send_all(pair.fd, b"onward");
    }
    pair.say("goes on", shown(&bytes));
}

/// Calls that look or wait for more bytes than were unread.
fn followed(pair: &Pair) {
    type Call = fn(Fd, &mut [u8], i32) -> Ret;
    const CALLS: &[(&str, Call)] = &[
        ("recv", sys::recv),
        ("recvfrom", sys::recvfrom),
        ("recvmsg", |fd, bytes, flags| {
            sys::recvmsg(fd, bytes, flags).0
        }),
        ("recvmmsg", |fd, bytes, flags| {
            let (result, lengths) = sys::recvmmsg(fd, bytes, 1, flags);
            Ret(result
                .0
                .map(|_| lengths.iter().map(|length| i64::from(*length)).sum()))
        }),
    ];
    let all = sample(20 * CALLS.len());
    if pair.server() {
        send_all(pair.fd, &all[..30]);
        pair.step();
        send_all(pair.fd, &all[30..]);
        pair.step();
    } else {
        pair.arrived(pair.fd, 30);
        let copy = sys::dup(pair.fd).fd();
        confine_nothing();
        pair.step();
        pair.arrived(copy, all.len());
        let mut rest = &all[..];
        for (name, call) in CALLS {
            for flags in [libc::MSG_PEEK, libc::MSG_PEEK | libc::MSG_WAITALL] {
                let mut bytes = vec![0; rest.len()];
                let result = call(pair.fd, &mut bytes, flags);
                pair.say(name, format!("{flags} {result} {}", bytes == rest));
            }
            let mut bytes = [0; 20];
            let result = call(pair.fd, &mut bytes, libc::MSG_WAITALL);
            pair.say(name, format!("all {result} {}", bytes == rest[..20]));
            rest = &rest[20..];
        }
        pair.step();
    }
    goes_on(pair);
}

fn urgent(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"before");
        pair.step();
        pair.say("urgent", sys::send(pair.fd, b"!", libc::MSG_OOB));
        pair.step();
        pair.step();
    } else {
        pair.arrived(pair.fd, 6);
        confine_nothing();
        pair.step();
        pair.step();
        let mut bytes = [0; 6];
        pair.say("urgent", sys::recv(pair.fd, &mut bytes[..1], libc::MSG_OOB));
        pair.say("which", shown(&bytes[..1]));
        receive_all(pair.fd, &mut bytes);
        pair.say("before", shown(&bytes));
        pair.step();
    }
    goes_on(pair);
}

/// The bytes of a message whose header cannot be filled in are gone.
fn headers_without_a_place(pair: &Pair) {
    let all = sample(40);
    if pair.server() {
        send_all(pair.fd, &all);
        pair.step();
    } else {
        pair.arrived(pair.fd, all.len());
        confine_nothing();
        let mut bytes = [0; 40];
        pair.say(
            "recvmsg",
            sys::recvmsg_without_a_place(pair.fd, &mut bytes[..10]),
        );
        pair.say(
            "recvmmsg",
            sys::recvmmsg_without_a_place(pair.fd, &mut bytes[10..20]),
        );
        pair.say("rest", sys::recv(pair.fd, &mut bytes[20..], 0));
        pair.say("right", bytes == all[..]);
        pair.step();
    }
    goes_on(pair);
}

/// A stream is closed while bytes are unread. The number then stands for another file.
fn number_is_as_new(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"never read");
        pair.step();
    } else {
        pair.arrived(pair.fd, 10);
        confine_nothing();
        pair.say("fclose", Stream::open(pair.fd, c"r").close());
        let (read, write) = sys::pipe();
        pair.say("reused", [read, write].contains(&pair.fd));
        sys::write(write, b"piped").value();
        let mut bytes = [0; 5];
        pair.say("read", sys::read(read, &mut bytes));
        pair.say("bytes", shown(&bytes));
        pair.step();
    }
    sys::exit_now(0);
}
