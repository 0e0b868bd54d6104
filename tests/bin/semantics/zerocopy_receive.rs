//! `TCP_ZEROCOPY_RECEIVE`: `getsockopt` receives bytes, into a mapping of the socket or by a copy.

use crate::Case;
use crate::role::{Pair, await_events, receive_all, sample, send_all};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("receive_into_a_mapping_copies_few_bytes", few),
    Case::pair("receive_into_a_mapping_leaves_many_bytes", many),
    Case::pair("receive_into_a_mapping_is_refused", refused),
];

/// `struct tcp_zerocopy_receive` of include/uapi/linux/tcp.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
    msg_control: u64,
    msg_controllen: u64,
    msg_flags: u32,
    reserved: u32,
}

/// Makes a request of `len` bytes.
fn request(fd: Fd, request: &mut Request, len: usize) -> sys::Ret {
    let mut len = len as libc::socklen_t;
    let value = std::ptr::from_mut(request).cast();
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE);
    // SAFETY: the request has room for `len` bytes, and names memory that outlives the call.
    sys::ret(unsafe { libc::getsockopt(fd, level, name, value, &mut len) })
}

/// Receives into a copy of at most `bytes.len()` bytes; the answer as text, and how many came.
fn receive(fd: Fd, bytes: &mut [u8]) -> (String, usize) {
    let mut wanted = Request {
        copybuf_address: bytes.as_mut_ptr() as u64,
        copybuf_len: bytes.len() as i32,
        ..Request::default()
    };
    let result = request(fd, &mut wanted, size_of::<Request>());
    let Request {
        length,
        recv_skip_hint,
        inq,
        err,
        copybuf_len,
        ..
    } = wanted;
    if result.0.is_err() {
        return (result.to_string(), 0);
    }
    (
        format!("{length} {recv_skip_hint} {inq} {err} {copybuf_len}"),
        copybuf_len as usize,
    )
}

/// The whole stream comes by such receives, and its end. The other direction goes on.
fn few(pair: &Pair) {
    const LENGTHS: [usize; 5] = [700, 1, 3000, 2, 4000];
    for len in LENGTHS {
        if pair.server() {
            send_all(pair.fd, &sample(len));
            let mut answer = [0; 6];
            receive_all(pair.fd, &mut answer);
            pair.say("answer", answer == *b"answer");
        } else {
            pair.arrived(pair.fd, len);
            let mut bytes = [0; 8192];
            let (answer, got) = receive(pair.fd, &mut bytes);
            pair.say("received", answer);
            pair.say("right", bytes[..got] == sample(len));
            pair.say("nothing", receive(pair.fd, &mut bytes).0);
            send_all(pair.fd, b"answer");
        }
    }
    if pair.server() {
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
    } else {
        await_events(pair.fd, libc::POLLRDHUP);
        pair.say("end", receive(pair.fd, &mut [0; 8]).0);
    }
    pair.step();
}

/// More bytes than the program has room for, and fewer than a page: the kernel tells their number,
/// and the program receives them.
fn many(pair: &Pair) {
    for len in [3000, 101, 4095] {
        if pair.server() {
            send_all(pair.fd, &sample(len));
        } else {
            pair.arrived(pair.fd, len);
            pair.say("received", receive(pair.fd, &mut [0; 100]).0);
            let mut bytes = vec![0; len];
            receive_all(pair.fd, &mut bytes);
            pair.say("right", bytes == sample(len));
        }
        pair.step();
    }
}

fn refused(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"bytes");
        pair.step();
        return;
    }
    pair.arrived(pair.fd, 5);
    let whole = size_of::<Request>();
    let mut unaligned = Request {
        address: 1,
        ..Request::default()
    };
    pair.say("unaligned", request(pair.fd, &mut unaligned, whole));
    let mut reserved = Request {
        reserved: 1,
        ..Request::default()
    };
    pair.say("reserved", request(pair.fd, &mut reserved, whole));
    pair.say("short", request(pair.fd, &mut Request::default(), 11));
    let mut first = Request::default();
    pair.say("shortest", request(pair.fd, &mut first, 12));
    pair.say("inq", first.inq);
    let mut bytes = [0; 5];
    receive_all(pair.fd, &mut bytes);
    pair.say("right", bytes == *b"bytes");
    pair.step();
}
