//! C's standard input and output over a connection.

use crate::Case;
use crate::role::{Pair, Role, drain, receive_all, send_all, shown};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("fgets_and_fprintf_converse", converse),
    Case::pair("fread_and_fwrite_move_blocks", blocks),
    Case::roles("stream_opened_before_the_traffic_goes_on", opened_early),
    Case::pair("fclose_ends_the_connection", fclose_ends),
    Case::roles("number_that_fclose_freed_is_as_new", freed_number),
    Case::pair("end_of_stream_is_feof", feof),
    Case::pair("dprintf_prints_to_the_connection", dprintf),
    Case::pair("fileno_is_the_descriptor", fileno),
    Case::roles("plain_reads_and_stdio_reads_share_one_stream", shared),
    Case::pair(
        "standard_output_moved_to_the_connection_reaches_it",
        moved_output,
    ),
    Case::pair(
        "standard_input_moved_to_the_connection_reads_it",
        moved_input,
    ),
];

unsafe extern "C" {
    #[link_name = "dprintf"]
    fn dprintf_(fd: Fd, format: *const libc::c_char, ...) -> libc::c_int;
}

/// A FILE for a descriptor, or for a duplicate of it.
#[derive(Clone, Copy)]
pub(crate) struct Stream(*mut libc::FILE);

impl Stream {
    pub(crate) fn open(fd: Fd, mode: &std::ffi::CStr) -> Stream {
        // SAFETY: the mode is a C string.
        let file = unsafe { libc::fdopen(fd, mode.as_ptr()) };
        assert!(!file.is_null(), "fdopen failed");
        Stream(file)
    }

    /// fprintf of one number between two words.
    fn print(self, number: i32) -> i32 {
        // SAFETY: the stream is open; the format takes one int.
        unsafe { libc::fprintf(self.0, c"number %d is next\n".as_ptr(), number) }
    }

    fn flush(self) -> i32 {
        // SAFETY: the stream is open.
        unsafe { libc::fflush(self.0) }
    }

    /// fgets, without the line end; `None` at the end of the stream.
    fn line(self) -> Option<String> {
        let mut bytes = [0_u8; 100];
        // SAFETY: the buffer has room for 100 bytes and the stream is open.
        let line = unsafe { libc::fgets(bytes.as_mut_ptr().cast(), 100, self.0) };
        let text = std::ffi::CStr::from_bytes_until_nul(&bytes).expect("fgets ends its lines");
        (!line.is_null()).then(|| text.to_string_lossy().trim_end().to_owned())
    }

    pub(crate) fn read(self, bytes: &mut [u8]) -> usize {
        // SAFETY: the pointer and length are those of one live, exclusive slice; the stream is
        // open.
        unsafe { libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), self.0) }
    }

    /// freopen: the stream's descriptor is closed, and the stream gets another file.
    pub(crate) fn reopen(self, path: &std::ffi::CStr) {
        // SAFETY: the stream is open, and no code uses it afterwards; both strings end in NUL.
        let stream = unsafe { libc::freopen(path.as_ptr(), c"r".as_ptr(), self.0) };
        assert!(!stream.is_null());
    }

    /// From now on each read asks for no more bytes than the program wants.
    pub(crate) fn without_buffer(self) {
        // SAFETY: the stream is open, and was not used before.
        let set = unsafe { libc::setvbuf(self.0, std::ptr::null_mut(), libc::_IONBF, 0) };
        assert_eq!(set, 0);
    }

    fn write(self, bytes: &[u8]) -> usize {
        // SAFETY: the pointer and length are those of one live slice; the stream is open.
        unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) }
    }

    fn at_end(self) -> bool {
        // SAFETY: the stream is open.
        unsafe { libc::feof(self.0) != 0 }
    }

    fn failed(self) -> bool {
        // SAFETY: the stream is open.
        unsafe { libc::ferror(self.0) != 0 }
    }

    fn fileno(self) -> Fd {
        // SAFETY: the stream is open.
        unsafe { libc::fileno(self.0) }
    }

    pub(crate) fn close(self) -> i32 {
        // SAFETY: the stream is open, and no code uses it afterwards.
        unsafe { libc::fclose(self.0) }
    }
}

fn converse(pair: &Pair) {
    let (input, output) = streams(pair.fd);
    talk(pair, input, output);
}

/// One stream for each direction. Programs that do not want to seek between directions do so.
fn streams(fd: Fd) -> (Stream, Stream) {
    (
        Stream::open(fd, c"r"),
        Stream::open(sys::dup(fd).fd(), c"w"),
    )
}

fn talk(pair: &Role, input: Stream, output: Stream) {
    for number in 0..20 {
        if pair.server() {
            pair.say("fprintf", output.print(number));
            pair.say("fflush", output.flush());
            pair.say("line", input.line().unwrap_or_default());
        } else {
            pair.say("line", input.line().unwrap_or_default());
            pair.say("fprintf", output.print(-number));
            pair.say("fflush", output.flush());
        }
    }
    pair.step();
}

fn blocks(pair: &Pair) {
    let bytes = crate::role::sample(1_500_000);
    let (input, output) = streams(pair.fd);
    if pair.server() {
        pair.say("fwrite", output.write(&bytes));
        pair.say("fflush", output.flush());
        pair.step();
    } else {
        let mut received = vec![0; bytes.len()];
        pair.say("fread", input.read(&mut received));
        pair.say("right", received == bytes);
        pair.step();
    }
}

fn opened_early(role: &Role) {
    let fd = role.meet();
    let (input, output) = streams(fd);
    role.say("buffered before", output.print(1));
    role.step();
    output.flush();
    role.say("line", input.line().unwrap_or_default());
    // Both roles must have read before the warm-up: otherwise the stream would take the warm-up's
    // first bytes into its buffer.
    role.step();
    role.warm(fd);
    talk(role, input, output);
}

fn fclose_ends(pair: &Pair) {
    if pair.server() {
        let output = Stream::open(pair.fd, c"w");
        pair.say("fprintf", output.print(5));
        pair.say("fclose", output.close());
        pair.say("the descriptor is closed", sys::write(pair.fd, b"x"));
        pair.step();
    } else {
        pair.say("received", drain(pair.fd));
        pair.step();
    }
}

/// fclose closes a socket that is registered with epoll. The next socket gets its number.
fn freed_number(role: &Role) {
    let listener = role.server().then(|| role.listen(0));
    let port = if role.server() { 0 } else { role.hear_port() };
    let epoll = sys::epoll_create();
    let add = |fd, data| sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, data);
    let mut former = None;
    for (turn, is_connected) in (0..).zip([true, false, true, true]) {
        let fd = match listener {
            Some(listener) if is_connected => sys::accept(listener).fd(),
            _ => sys::socket(role.family, 0),
        };
        let is_former = former.is_none_or(|former| former == fd);
        role.say("the former's number", is_former);
        role.say("ADD", add(fd, turn));
        role.say("ADD twice", add(fd, turn));
        if is_connected {
            if !role.server() {
                sys::connect(fd, role.family, port).value();
            }
            send_all(fd, b"data");
            let (result, events) = sys::epoll_wait(epoll, 4, 5_000);
            role.say("news", format!("{result} {events:?}"));
            receive_all(fd, &mut [0; 4]);
        }
        let stream = Stream::open(fd, c"r");
        role.step();
        role.say("fclose", stream.close());
        former = Some(fd);
        role.step();
    }
    // This socket is closed by its number while it is not connected.
    let fd = sys::socket(role.family, 0);
    role.say("ADD", add(fd, 8));
    sys::close(fd).value();
    let fd = role.meet_by(listener, port);
    send_all(fd, b"data");
    role.arrived(fd, 4);
    let (result, events) = sys::epoll_wait(epoll, 4, 0);
    role.say("never registered", format!("{result} {events:?}"));
    role.step();
}

fn feof(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"no line end");
        pair.say("close", sys::close(pair.fd));
    } else {
        let input = Stream::open(pair.fd, c"r");
        pair.say("line", input.line().unwrap_or_default());
        pair.say("line", input.line().is_none());
        pair.say(
            "feof, ferror",
            format!("{} {}", input.at_end(), input.failed()),
        );
    }
}

fn dprintf(pair: &Pair) {
    if pair.server() {
        for number in 0..10 {
            // SAFETY: the format takes one int and one string.
            let result = unsafe {
                dprintf_(
                    pair.fd,
                    c"%d bottles of %s\n".as_ptr(),
                    number,
                    c"milk".as_ptr(),
                )
            };
            pair.say("dprintf", result);
        }
        pair.say("close", sys::close(pair.fd));
    } else {
        let mut line = [0; 18];
        receive_all(pair.fd, &mut line);
        pair.say("received", shown(&line));
        pair.say("then", drain(pair.fd));
    }
}

fn fileno(pair: &Pair) {
    let stream = Stream::open(pair.fd, c"r+");
    pair.say("fileno", stream.fileno() == pair.fd);
    send_all(stream.fileno(), b"by number");
    let mut bytes = [0; 9];
    pair.say("fread", stream.read(&mut bytes));
    pair.say("received", shown(&bytes));
    pair.step();
}

fn shared(role: &Role) {
    let fd = role.meet();
    role.warm(fd);
    if role.server() {
        role.step();
        send_all(fd, b"first line\n");
        role.step();
        role.step();
        send_all(fd, b"raw bytes");
        role.step();
        role.step();
        send_all(fd, b"second line\n");
        role.step();
    } else {
        let input = Stream::open(fd, c"r");
        role.step();
        role.say("line", input.line().unwrap_or_default());
        role.step();
        role.step();
        let mut bytes = [0; 9];
        receive_all(fd, &mut bytes);
        role.say("raw", shown(&bytes));
        role.step();
        role.step();
        role.say("line", input.line().unwrap_or_default());
        role.step();
    }
}

/// Shells do this to run `echo word >&3`.
fn moved_output(pair: &Pair) {
    for number in 0..5 {
        if pair.server() {
            let mut line = [0; 5];
            receive_all(pair.fd, &mut line);
            pair.say("line", shown(&line));
            send_all(pair.fd, b"heard");
        } else {
            let saved = sys::dup(1).fd();
            sys::dup2(pair.fd, 1).value();
            // SAFETY: the format takes one int; no stream but the standard ones is touched.
            unsafe {
                libc::printf(c"no. %d".as_ptr(), number);
                libc::fflush(std::ptr::null_mut());
            }
            sys::dup2(saved, 1).value();
            sys::close(saved).value();
            let mut answer = [0; 5];
            receive_all(pair.fd, &mut answer);
            pair.say("answer", shown(&answer));
        }
    }
    pair.step();
}

/// Shells do this to run `read word <&3`, with C's standard input.
fn moved_input(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"one\ntwo\n");
        pair.step();
        pair.say("rest", drain(pair.fd));
    } else {
        let saved = sys::dup(0).fd();
        sys::dup2(pair.fd, 0).value();
        pair.step();
        for _ in 0..2 {
            let mut line = [0_u8; 4];
            for byte in &mut line {
                // SAFETY: `getchar` has no preconditions.
                *byte = unsafe { libc::getchar() } as u8;
            }
            pair.say("line", shown(&line).trim_end());
        }
        sys::dup2(saved, 0).value();
        sys::close(saved).value();
        send_all(pair.fd, b"and more");
        pair.step();
        sys::close(pair.fd).value();
    }
}
