//! A call sleeps on a descriptor. The descriptor is closed, and its number becomes another
//! connection's. No byte of one client reaches the other client.

use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use crate::Case;
use crate::role::{Pair, drain, fill, receive_all, send_all, shown};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("number_of_a_blocked_recv_becomes_anothers", |pair| {
        receives(pair, b"", |fd, bytes| {
            sys::recv(fd, bytes, 0);
        });
    }),
    Case::pair("number_of_a_blocked_peek_becomes_anothers", |pair| {
        receives(pair, b"looked at", |fd, bytes| {
            sys::recv(fd, bytes, libc::MSG_PEEK | libc::MSG_WAITALL);
        });
    }),
    Case::pair("number_of_a_blocked_recvmmsg_becomes_anothers", |pair| {
        receives(pair, b"8 bytes.", |fd, bytes| {
            sys::recvmmsg(fd, bytes, 8, 0);
        });
    }),
    Case::pair("number_of_a_blocked_splice_becomes_anothers", |pair| {
        receives(pair, b"", |fd, bytes| {
            let (_, writer) = sys::pipe();
            splice(fd, writer, bytes.len());
        });
    }),
    Case::pair("number_of_a_blocked_send_becomes_anothers", |pair| {
        sends(pair, |fd| {
            sys::send(fd, &vec![0; LEN], libc::MSG_NOSIGNAL);
        });
    }),
    Case::pair("number_of_a_blocked_sendmmsg_becomes_anothers", |pair| {
        sends(pair, |fd| {
            sys::sendmmsg(fd, &vec![0; LEN], 1000, libc::MSG_NOSIGNAL);
        });
    }),
    Case::pair("number_of_a_blocked_sendfile_becomes_anothers", |pair| {
        sends(pair, |fd| {
            let file = tempfile::tempfile().expect("the temporary directory is writable");
            file.set_len(LEN as u64).expect("holes need no room");
            // SAFETY: no offset is given.
            unsafe { libc::sendfile(fd, file.as_raw_fd(), ptr::null_mut(), LEN) };
        });
    }),
    Case::pair(
        "number_of_a_splice_that_waits_for_room_becomes_anothers",
        |pair| {
            sends(pair, |fd| {
                const PIPE_BYTES: i32 = 1 << 20;
                let (reader, writer) = sys::pipe();
                sys::fcntl(writer, libc::F_SETPIPE_SZ, PIPE_BYTES).value();
                sys::write(writer, &vec![0; PIPE_BYTES as usize]).value();
                splice(reader, fd, PIPE_BYTES as usize);
            });
        },
    ),
];

/// More than the kernel and a ring hold together.
const LEN: usize = 32 << 20;

fn splice(from: Fd, to: Fd, len: usize) {
    let none = ptr::null_mut();
    // SAFETY: no offsets are given.
    unsafe { libc::splice(from, none, to, none, len, 0) };
}

/// Closes the first connection's descriptor while `call` sleeps on it. From then on its number is
/// the second connection's.
fn give_on(pair: &Pair, call: impl FnOnce(Fd) + Send + 'static) -> (Sleeper<()>, Fd) {
    let fd = pair.fd;
    let listener = pair.listen(0);
    let sleeper = Sleeper::start(move || call(fd));
    sys::close(fd).value();
    let second = sys::accept(listener).fd();
    if second != fd {
        // A lower number was free.
        sys::dup2(second, fd).value();
        sys::close(second).value();
    }
    (sleeper, fd)
}

/// `call` receives; the bytes `first` arrive before it sleeps.
fn receives(pair: &Pair, first: &[u8], call: fn(Fd, &mut [u8])) {
    const SECRET: &[u8] = b"for the second";
    if pair.server() {
        let (sleeper, second) = give_on(pair, move |fd| call(fd, &mut [0; 64]));
        pair.step();
        sleeper.result();
        let mut bytes = [0; SECRET.len()];
        receive_all(second, &mut bytes);
        pair.say("second", shown(&bytes));
        pair.say("close", sys::close(second));
    } else {
        send_all(pair.fd, first);
        let second = pair.connect(pair.hear_port());
        pair.step();
        send_all(second, SECRET);
        // Time for a wrong wake-up: the sleeper would wake if it looked at the connection that has
        // the number now.
        std::thread::sleep(Duration::from_millis(20));
        pair.say("close", sys::close(pair.fd));
        pair.say("then", drain(second));
    }
}

/// `call` sends more bytes than the buffers hold.
fn sends(pair: &Pair, call: fn(Fd)) {
    if pair.server() {
        fill(pair.fd);
        let (sleeper, second) = give_on(pair, call);
        pair.step();
        sleeper.result();
        send_all(second, b"for the second");
        pair.say("close", sys::close(second));
    } else {
        let second = pair.connect(pair.hear_port());
        pair.step();
        drain(pair.fd);
        pair.say("close", sys::close(pair.fd));
        let mut bytes = vec![0; 64];
        let result = sys::recv(second, &mut bytes, libc::MSG_WAITALL);
        pair.say("second", shown(&bytes[..result.len()]));
    }
}
