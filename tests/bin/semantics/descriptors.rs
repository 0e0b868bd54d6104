//! One connection under several descriptor numbers, in several programs.

use std::process::Command;

use crate::Case;
use crate::role::{Pair, Role, await_events, drain, receive_all, sample, send_all, shown};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("dup_shares_the_stream", dup_shares),
    Case::pair("dup3_and_fcntl_duplicates_share_the_stream", dup_variants),
    Case::pair("last_close_of_a_duplicate_ends_the_connection", last_close),
    Case::pair("dup2_onto_a_socket_closes_it", dup2_onto),
    Case::pair(
        "number_becomes_another_connections_under_a_receiver",
        |pair| becomes_anothers(pair, true),
    ),
    Case::pair(
        "number_becomes_another_connections_under_a_sender",
        |pair| becomes_anothers(pair, false),
    ),
    Case::pair("reused_number_is_a_new_descriptor", reuse),
    Case::pair("nonblocking_is_shared_by_duplicates", shared_flags),
    Case::pair(
        "shutdown_through_a_duplicate_is_for_all",
        shutdown_duplicate,
    ),
    Case::pair("close_range_closes_the_connection", close_range),
    Case::pair("refused_calls_leave_descriptors_as_they_are", refused),
    Case::pair(
        "descriptor_passed_to_another_process_keeps_the_stream",
        passing,
    ),
    Case::pair(
        "descriptor_passed_to_another_process_keeps_unread_bytes",
        passing_unread,
    ),
    Case::roles(
        "descriptor_passed_while_a_thread_reads_keeps_all_bytes",
        passing_under_a_reader,
    ),
    Case::pair(
        "connection_as_standard_input_and_output_of_a_program",
        |pair| as_stdio(pair, false),
    ),
    Case::pair("unread_bytes_are_standard_input_of_a_program", |pair| {
        as_stdio(pair, true)
    }),
    Case::pair("unread_bytes_of_a_file_of_libc", as_file),
    Case::pair("connection_under_a_high_number", high_number),
    Case::roles("numbers_are_the_programs_where_there_are_few", few_numbers),
    Case::roles("limit_lowered_below_open_descriptors", limit_lowered),
    Case::roles(
        "socket_that_had_two_numbers_before_it_was_connected",
        two_numbers,
    ),
];

/// The server sends `text`; the client receives it on `fd`.
fn pass(pair: &Pair, fd: Fd, text: &str) {
    if pair.server() {
        send_all(fd, text.as_bytes());
    } else {
        let mut bytes = vec![0; text.len()];
        receive_all(fd, &mut bytes);
        pair.say("received", shown(&bytes));
    }
}

/// Enough requests and replies for any connection that can be accelerated.
const QUESTIONS: usize = 3000;

fn two_numbers(role: &Role) {
    let mut bytes = [0; 8];
    if role.server() {
        let listener = role.listen(0);
        let fd = sys::accept(listener).fd();
        for _ in 0..QUESTIONS + 2 {
            receive_all(fd, &mut bytes);
            send_all(fd, &bytes);
        }
        role.step();
        return;
    }
    let port = role.hear_port();
    let fd = sys::socket(role.family, 0);
    let copy = sys::dup(fd).fd();
    role.say("connect", sys::connect(fd, role.family, port));
    let mut ask = |number| {
        send_all(number, b"question");
        receive_all(number, &mut bytes);
        shown(&bytes)
    };
    for _ in 0..QUESTIONS {
        ask(fd);
    }
    role.say("by the copy", ask(copy));
    role.say("by the first", ask(fd));
    role.step();
}

fn dup_shares(pair: &Pair) {
    let copy = sys::dup(pair.fd).fd();
    pass(pair, pair.fd, "by the first");
    pass(pair, copy, "by the copy");
    pair.step();
    if pair.server() {
        send_all(pair.fd, b"interleaved");
        pair.step();
    } else {
        pair.step();
        let mut bytes = [0; 11];
        receive_all(pair.fd, &mut bytes[..5]);
        receive_all(copy, &mut bytes[5..8]);
        receive_all(pair.fd, &mut bytes[8..]);
        pair.say("received", shown(&bytes));
    }
    pair.say("close", sys::close(pair.fd));
    pass(pair, copy, "the copy lives on");
    pair.say("the first does not", sys::read(pair.fd, &mut [0; 1]));
    pair.step();
}

fn dup_variants(pair: &Pair) {
    let cloexec = |fd| sys::fcntl(fd, libc::F_GETFD, 0);
    let target = sys::eventfd();
    let copies = [
        sys::dup2(pair.fd, target),
        sys::dup3(pair.fd, 150, libc::O_CLOEXEC),
        sys::dup3(pair.fd, 151, 0),
        sys::fcntl(pair.fd, libc::F_DUPFD, 160),
        sys::fcntl(pair.fd, libc::F_DUPFD_CLOEXEC, 160),
    ];
    for copy in copies {
        let fd = copy.fd();
        pair.say("copy, close on exec", format!("{copy} {}", cloexec(fd)));
        pass(pair, fd, "over the copy");
        pair.say("close", sys::close(fd));
        pass(pair, pair.fd, "over the first");
    }
    pair.say(
        "dup2 onto itself",
        sys::dup2(pair.fd, pair.fd).fd() == pair.fd,
    );
    pair.say("dup3 onto itself", sys::dup3(pair.fd, pair.fd, 0));
    pass(pair, pair.fd, "over the first");
    pair.step();
}

fn last_close(pair: &Pair) {
    if pair.server() {
        let copies = [sys::dup(pair.fd).fd(), sys::dup(pair.fd).fd()];
        pair.say("close", sys::close(pair.fd));
        send_all(copies[0], b"one ");
        sys::close(copies[0]).value();
        pair.step();
        pair.step();
        send_all(copies[1], b"two");
        sys::close(copies[1]).value();
    } else {
        pair.step();
        let mut bytes = [0; 4];
        receive_all(pair.fd, &mut bytes);
        pair.say(
            "not over yet",
            sys::recv(pair.fd, &mut bytes, libc::MSG_DONTWAIT),
        );
        pair.step();
        pair.say("then", drain(pair.fd));
    }
}

fn dup2_onto(pair: &Pair) {
    if pair.server() {
        let (reader, writer) = sys::pipe();
        send_all(pair.fd, b"before");
        pair.say("dup2", sys::dup2(writer, pair.fd).fd() == pair.fd);
        // The number stands for the pipe now.
        pair.say("write", sys::write(pair.fd, b"pipe"));
        let mut bytes = [0; 4];
        pair.say("read", sys::read(reader, &mut bytes));
        pair.say("is", shown(&bytes));
        pair.say("send", sys::send(pair.fd, b"x", 0));
        pair.step();
    } else {
        pair.say("received", drain(pair.fd));
        pair.step();
    }
}

fn reuse(pair: &Pair) {
    sys::close(pair.fd).value();
    let event = sys::eventfd();
    pair.say("the number is taken again", event == pair.fd);
    pair.say("read", sys::read(event, &mut [0; 8]));
    pair.say("write", sys::write(event, &3_u64.to_ne_bytes()));
    let mut bytes = [0; 8];
    pair.say("read", sys::read(event, &mut bytes));
    pair.say("value", u64::from_ne_bytes(bytes));
    pair.say("recv", sys::recv(event, &mut bytes, 0));
    sys::close(event).value();
    // The number stands for a connection again.
    pair.step();
    let again = pair.meet();
    pair.warm(again);
    pass(pair, again, "a new connection");
    pair.step();
}

fn shared_flags(pair: &Pair) {
    let copy = sys::dup(pair.fd).fd();
    sys::set_nonblocking(copy, true);
    pair.say("recv on the first", sys::recv(pair.fd, &mut [0; 1], 0));
    pair.step();
    sys::ioctl(pair.fd, libc::FIONBIO, &mut 0).value();
    let flags = sys::fcntl(copy, libc::F_GETFL, 0).value() as i32;
    pair.say("O_NONBLOCK of the copy", flags & libc::O_NONBLOCK != 0);
    pass(pair, copy, "blocking again");
    pair.step();
}

fn shutdown_duplicate(pair: &Pair) {
    if pair.server() {
        let copy = sys::dup(pair.fd).fd();
        send_all(pair.fd, b"all");
        pair.say("shutdown", sys::shutdown(copy, libc::SHUT_WR));
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.step();
    } else {
        pair.say("received", drain(pair.fd));
        pair.step();
    }
}

fn close_range(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"before");
        let high = sys::dup2(pair.fd, 170).fd();
        sys::close(pair.fd).value();
        let fd = high.cast_unsigned();
        // SAFETY: closes one descriptor that this case owns.
        pair.say(
            "close_range",
            sys::ret(unsafe { libc::close_range(fd, fd + 5, 0) }),
        );
        pair.say("send", sys::send(high, b"x", libc::MSG_NOSIGNAL));
        pair.step();
    } else {
        pair.say("received", drain(pair.fd));
        pair.step();
    }
}

/// The kernel refuses calls that would close the connection, or replace it.
fn refused(pair: &Pair) {
    let high = sys::fcntl(pair.fd, libc::F_DUPFD, 600).fd();
    sys::close(pair.fd).value();
    let other = sys::eventfd();
    pair.say("dup3 with flags", sys::dup3(other, high, 1));
    pair.say("dup2 of nothing", sys::dup2(-1, high));
    let range = |first: Fd, last: Fd, flags: libc::c_int| {
        let [first, last] = [first, last].map(i32::cast_unsigned);
        // SAFETY: names only descriptors of this case.
        sys::ret(unsafe { libc::close_range(first, last, flags) })
    };
    pair.say("close_range with flags", range(high, high, 1 << 7));
    pair.say("close_range backwards", range(high, high - 1, 0));
    pass(pair, high, "first");
    limit_numbers(600);
    pair.say("dup2 beyond the limit", sys::dup2(other, high));
    pair.say("dup3 beyond the limit", sys::dup3(other, high, 0));
    pass(pair, high, "second");
    pair.step();
}

/// The server's part of a case in which the client gives its end to another process between two
/// messages.
pub(crate) fn send_to_both(pair: &Pair) {
    send_all(pair.fd, b"to the first ");
    pair.step();
    send_all(pair.fd, b"to the second");
    let mut reply = [0; 5];
    receive_all(pair.fd, &mut reply);
    pair.say("reply", shown(&reply));
}

fn passing(pair: &Pair) {
    if pair.server() {
        send_to_both(pair);
        pair.say("then", drain(pair.fd));
        return;
    }
    let mut bytes = [0; 13];
    receive_all(pair.fd, &mut bytes);
    pair.say("the first received", shown(&bytes));
    pass_on(pair);
}

/// Like [`passing`], but the second message has arrived before the client gives its end away.
fn passing_unread(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"to the first to the second");
        pair.step();
        pair.step();
        let mut reply = [0; 5];
        receive_all(pair.fd, &mut reply);
        pair.say("reply", shown(&reply));
        pair.say("then", drain(pair.fd));
        return;
    }
    pair.step();
    let mut bytes = [0; 13];
    receive_all(pair.fd, &mut bytes);
    pair.say("the first received", shown(&bytes));
    pair.arrived(pair.fd, 13);
    pass_on(pair);
}

/// More bytes are unread than a ring holds, so the last bytes are on the carrier. A thread reads
/// them all while another thread sends the descriptor.
fn passing_under_a_reader(role: &Role) {
    let fd = role.meet();
    let chunk = sample(1 << 16);
    let mut question = [0; 8];
    for _ in 0..QUESTIONS {
        match role.server() {
            true => {
                receive_all(fd, &mut question);
                send_all(fd, &question);
            }
            false => {
                send_all(fd, &question);
                receive_all(fd, &mut question);
            }
        }
    }
    if role.server() {
        let mut sent = 0;
        loop {
            let bytes = &chunk[sent % chunk.len()..];
            let result = sys::send(fd, bytes, libc::MSG_DONTWAIT);
            if result.is(libc::EAGAIN) {
                break;
            }
            sent += result.len();
        }
        role.tell(u32::try_from(sent).expect("below 4 GB"));
        let mut reply = [0; 5];
        receive_all(fd, &mut reply);
        role.say("reply", shown(&reply));
        role.say("then", drain(fd));
        return;
    }
    let count = role.hear() as usize;
    let (ours, theirs) = socket_pair();
    let reader = std::thread::spawn(move || {
        // The other thread is sending the descriptor by now.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut bytes = vec![0; count];
        receive_all(fd, &mut bytes);
        let mut chunks = bytes.chunks(chunk.len());
        chunks.all(|bytes| bytes == &chunk[..bytes.len()])
    });
    role.say("sent", send_descriptor(ours, fd));
    role.say("all bytes", reader.join().expect("it ends"));
    let passed = receive_descriptor(theirs);
    send_all(passed, b"reply");
    sys::close(passed).value();
}

/// Gives the connection to another process, which receives the second message and replies.
fn pass_on(pair: &Pair) {
    let (ours, child) = second_process(pair);
    pair.say("sent", send_descriptor(ours, pair.fd));
    sys::close(pair.fd).value();
    pair.step();
    pair.say("the child ended with", sys::wait_for(child));
}

/// Starts a process that receives the connection by the returned Unix socket, and then the second
/// message of [`send_to_both`], and replies. It ends with 0 if the message was right.
pub(crate) fn second_process(pair: &Pair) -> (Fd, libc::pid_t) {
    let (ours, theirs) = socket_pair();
    let child = sys::fork();
    if child == 0 {
        // This child never held the connection under its own number.
        sys::close(pair.fd).value();
        let fd = receive_descriptor(theirs);
        let mut bytes = [0; 13];
        receive_all(fd, &mut bytes);
        send_all(fd, b"reply");
        sys::exit_now(i32::from(&bytes != b"to the second"));
    }
    (ours, child)
}

/// Two Unix sockets, connected.
pub(crate) fn socket_pair() -> (Fd, Fd) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
    (raw(&ours), raw(&theirs))
}

fn raw(stream: &std::os::unix::net::UnixStream) -> Fd {
    use std::os::fd::AsRawFd;
    sys::dup(stream.as_raw_fd()).fd()
}

/// Sends a descriptor over a Unix socket.
pub(crate) fn send_descriptor(over: Fd, fd: Fd) -> sys::Ret {
    send_descriptor_by(over, fd, |over, header| {
        // SAFETY: the header names live buffers.
        sys::ret(unsafe { libc::sendmsg(over, header, 0) } as i64)
    })
}

/// Sends a descriptor over a Unix socket, with a send call that the caller provides.
pub(crate) fn send_descriptor_by(
    over: Fd,
    fd: Fd,
    send: impl FnOnce(Fd, &libc::msghdr) -> sys::Ret,
) -> sys::Ret {
    let mut control = [0_u64; 4];
    let mut byte = [b'.'];
    let mut list = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: the header names only live buffers; CMSG_FIRSTHDR finds room for one descriptor in
    // them.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut list;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let message = libc::CMSG_FIRSTHDR(&header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(message).cast::<Fd>().write_unaligned(fd);
        send(over, &header)
    }
}

/// Receives a descriptor over a Unix socket.
pub(crate) fn receive_descriptor(over: Fd) -> Fd {
    let mut control = [0_u64; 4];
    let mut byte = [0];
    let mut list = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: the header names only live buffers; the kernel fills in one descriptor message.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut list;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        assert_eq!(
            sys::ret(libc::recvmsg(over, &mut header, 0) as i64).value(),
            1
        );
        let message = libc::CMSG_FIRSTHDR(&header);
        assert!(!message.is_null(), "no descriptor came");
        libc::CMSG_DATA(message).cast::<Fd>().read_unaligned()
    }
}

/// The client's first bytes are unread before the program begins, or are still in transit.
fn as_stdio(pair: &Pair, arrives_before: bool) {
    use std::os::fd::{FromRawFd, OwnedFd};
    if pair.server() {
        if arrives_before {
            pair.step();
            pair.arrived(pair.fd, 10);
        }
        // SAFETY: the copies are fresh, and no other code owns them.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(sys::dup(fd).fd()) };
        let mut command = Command::new("/bin/cat");
        command.stdin(own(pair.fd)).stdout(own(pair.fd));
        let mut child = command.spawn().expect("cat is everywhere");
        drop(command);
        sys::close(pair.fd).value();
        pair.say("cat ended with", child.wait().expect("our child"));
    } else {
        let bytes = sample(100_000);
        send_all(pair.fd, &bytes[..10]);
        if arrives_before {
            pair.step();
        }
        let mut echo = [0; 10];
        receive_all(pair.fd, &mut echo);
        pair.say("first echo right", echo == bytes[..10]);
        send_all(pair.fd, &bytes[10..]);
        sys::shutdown(pair.fd, libc::SHUT_WR).value();
        pair.say("echo", drain(pair.fd));
    }
}

/// libc reads standard input with its internal calls, which the library does not intercept.
fn as_file(pair: &Pair) {
    if !pair.server() {
        send_all(pair.fd, b"a line\n");
        pair.step();
        pair.step();
        send_all(pair.fd, b"another\n");
        pair.say("reply", drain(pair.fd));
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 7);
    pair.say("dup2", sys::dup2(pair.fd, 0).fd());
    pair.step();
    for _ in 0..2 {
        let mut line = [0_u8; 32];
        // SAFETY: `line` has room for what `fgets` may store; the stream is closed by the end of
        // the program.
        let got = unsafe {
            let input = libc::fdopen(0, c"r".as_ptr());
            libc::setvbuf(input, std::ptr::null_mut(), libc::_IONBF, 0);
            libc::fgets(line.as_mut_ptr().cast(), line.len() as i32, input)
        };
        assert!(!got.is_null());
        let len = line.iter().position(|byte| *byte == 0).unwrap_or(0);
        pair.say("line", shown(&line[..len]));
    }
    for fd in [0, pair.fd] {
        sys::close(fd).value();
    }
}

fn high_number(pair: &Pair) {
    let limit = libc::rlimit {
        rlim_cur: 20_000,
        rlim_max: 20_000,
    };
    // SAFETY: the limit is live.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    let high = if raised == 0 { 19_000 } else { 1000 };
    let copy = sys::dup2(pair.fd, high).fd();
    sys::close(pair.fd).value();
    pass(pair, copy, "far up");
    if !pair.server() {
        pair.say(
            "poll",
            format!("{:?}", sys::poll(&[(copy, libc::POLLIN)], 0)),
        );
    }
    pair.step();
    if pair.server() {
        send_all(copy, b"!");
        pair.step();
    } else {
        pair.step();
        await_events(copy, libc::POLLIN);
        receive_all(copy, &mut [0; 1]);
    }
    pair.step();
}

pub(crate) fn limit_numbers(to: libc::rlim_t) {
    let limit = libc::rlimit {
        rlim_cur: to,
        rlim_max: to,
    };
    // SAFETY: the limit is live.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(set, 0);
}

/// A program may use any descriptor number below the limit, also one under which the library keeps
/// a file.
fn few_numbers(role: &Role) {
    limit_numbers(64);
    let (listener, port) = match role.server() {
        true => (Some(role.listen(0)), 0),
        false => (None, role.hear_port()),
    };
    let first = role.meet_by(listener, port);
    let (reader, writer) = sys::pipe();
    sys::set_nonblocking(reader, true);
    for number in 20..60 {
        sys::dup2(writer, number).value();
    }
    role.step();
    let second = role.meet_by(listener, port);
    send_to_each(role, [first, second]);
    role.say("nobody wrote", sys::read(reader, &mut [0; 8]));
    for number in 20..60 {
        sys::write(number, b".").value();
    }
    role.say("written", sys::read(reader, &mut [0; 64]));
    for number in 20..60 {
        sys::close(number).value();
    }
    role.step();
}

/// The server sends to its end of each connection; the client prints the bytes that arrive.
fn send_to_each(role: &Role, connections: [Fd; 2]) {
    for fd in connections {
        if role.server() {
            send_all(fd, b"to each");
        } else {
            let mut bytes = [0; 7];
            receive_all(fd, &mut bytes);
            role.say("received", shown(&bytes));
        }
    }
}

/// `close_range` without an upper bound closes all open descriptors, also those above a limit that
/// was lowered later.
fn limit_lowered(role: &Role) {
    let (listener, port) = match role.server() {
        true => (Some(role.listen(0)), 0),
        false => (None, role.hear_port()),
    };
    let first = role.meet_by(listener, port);
    let high = sys::fcntl(first, libc::F_DUPFD, 600).fd();
    role.step();
    limit_numbers(256);
    // SAFETY: no memory is involved.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 300, u32::MAX, 0) };
    role.say("close_range", closed);
    role.say("the high one", sys::read(high, &mut [0; 1]));
    let second = role.meet_by(listener, port);
    send_to_each(role, [first, second]);
    role.step();
}

/// A thread sleeps in a call on a connection. Meanwhile the connection's descriptor number becomes
/// that of another connection, which stays on the kernel. The call continues with its own
/// connection. The other connection neither loses a byte nor gets a wrong one.
fn becomes_anothers(pair: &Pair, receives: bool) {
    const MUCH: usize = 32 << 20;
    let other = pair.meet();
    if pair.server() {
        pair.step();
        send_all(other, b"of the other");
        pair.step();
        if receives {
            send_all(pair.fd, b"!");
        } else {
            let mut bytes = vec![0; MUCH];
            receive_all(pair.fd, &mut bytes);
            pair.say("right", bytes == sample(MUCH));
        }
        pair.step();
        let mut bytes = [0; 6];
        receive_all(other, &mut bytes);
        pair.say("from the other", shown(&bytes));
        sys::close(other).value();
        return;
    }
    let fd = pair.fd;
    let much = sample(if receives { 0 } else { MUCH });
    let call = Sleeper::start(move || match receives {
        true => format!("{}", sys::recv(fd, &mut [0; 8], 0)),
        false => format!("{}", sys::send(fd, &much, 0)),
    });
    let kept = sys::dup(fd).fd();
    sys::dup2(other, fd).value();
    pair.step();
    pair.arrived(other, 12);
    pair.step();
    pair.say("call", call.result());
    pair.step();
    let mut bytes = [0; 12];
    receive_all(fd, &mut bytes);
    pair.say("other", shown(&bytes));
    send_all(other, b"answer");
    for fd in [kept, other] {
        sys::close(fd).value();
    }
}
