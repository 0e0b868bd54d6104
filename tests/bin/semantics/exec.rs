//! A process executes another program, and its connections continue.

use std::ffi::{CString, c_char, c_int};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::many::mapped_pages;
use crate::role::{
    Pair, ask_harness, await_events, drain, is_upgraded_where_expected, receive_all, sample,
    send_all, send_until_refused, shown,
};
use crate::sys::{self, Fd};
use crate::{Case, interrupts};

pub(crate) const CASES: &[Case] = &[
    Case::pair("connection_survives_an_exec", exec_keeps),
    Case::pair("cloexec_connection_ends_at_exec", exec_closes),
    Case::pair("every_call_that_executes_keeps_the_stream", every_call),
    Case::pair("forked_child_executes_with_the_connection", forked_child),
    Case::pair(
        "spawned_child_inherits_a_connection_that_was_sent_to_the_kernel",
        spawned_child_after_a_detach,
    ),
    Case::pair("duplicates_survive_an_exec", duplicates),
    Case::pair("exec_that_fails_changes_nothing", failing),
    Case::pair(
        "signal_behind_an_exec_that_fails_is_handled",
        signal_after_failing,
    ),
    Case::pair("executed_program_goes_on_for_long", for_long),
    Case::pair(
        "program_without_the_library_sees_no_gap",
        without_the_library,
    ),
    Case::pair("spawned_reader_finds_the_end_and_no_doorbell", |pair| {
        spawned_reader(pair, false);
    }),
    Case::pair(
        "spawned_reader_finds_no_doorbell_of_before_a_switch",
        |pair| spawned_reader(pair, true),
    ),
    Case::pair("system_writes_to_an_inherited_connection", |pair| {
        inherited(pair, by_system);
    }),
    Case::pair("wordexp_writes_to_an_inherited_connection", |pair| {
        inherited(pair, by_wordexp);
    }),
    Case::pair("popen_writes_to_an_inherited_connection", |pair| {
        inherited(pair, by_popen);
    }),
    Case::pair("posix_spawn_writes_to_an_inherited_connection", |pair| {
        inherited(pair, by_posix_spawn);
    }),
    Case::pair(
        "vfork_child_that_closes_the_rest_writes_to_an_inherited_connection",
        |pair| inherited(pair, by_vfork_that_closes),
    ),
    Case::pair(
        "vfork_child_writes_to_its_own_number_of_a_connection",
        |pair| inherited(pair, by_vfork_that_duplicates),
    ),
    Case::pair("vfork_children_that_execute_leave_no_memory", |pair| {
        leaves_no_memory(pair, true);
    }),
    Case::pair(
        "vfork_children_that_inherit_and_execute_leave_no_memory",
        |pair| leaves_no_memory(pair, false),
    ),
];

/// Executes this program again, in another role.
pub(crate) fn execute(arguments: &[&str]) -> ! {
    let program = std::env::current_exe().expect("a running program has a path");
    let error = Command::new(program).arg("executed").args(arguments).exec();
    panic!("exec failed: {error}");
}

fn keep_open(fd: Fd) {
    sys::fcntl(fd, libc::F_SETFD, 0).value();
}

/// The program that `execute` starts.
pub(crate) fn executed(arguments: &[&str]) {
    let number = |text: &str| text.parse::<Fd>().expect("a number");
    match *arguments {
        ["alone"] => crate::confined::alone(),
        ["nothing"] => {}
        ["begins", text] => crate::kept::begins(text),
        ["after-exec", fd] => after_exec(number(fd)),
        ["chain", fd, call] => chain(number(fd), number(call) as usize),
        ["child", fd] => child(number(fd)),
        ["answered", fd] => answered(number(fd)),
        ["copies", fd, copy] => copies(number(fd), number(copy)),
        ["long", fd] => long(number(fd)),
        ["drain", fd] => drain_it(number(fd)),
        ["reader", fd] => println!("reader -> {}", drain(number(fd))),
        ["given", how, fd, wanted] => {
            let wanted = wanted.parse().expect("a number");
            crate::improvised::together::give::given(how, number(fd), wanted);
        }
        _ => panic!("nothing is executed as {arguments:?}"),
    }
}

fn exec_keeps(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"before the exec; ");
        pair.step();
        send_all(pair.fd, b"after the exec");
        let mut reply = [0; 14];
        receive_all(pair.fd, &mut reply);
        pair.say("reply", shown(&reply));
        send_all(pair.fd, &sample(500_000));
        pair.say("close", sys::close(pair.fd));
    } else {
        let mut bytes = [0; 7];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        keep_open(pair.fd);
        pair.step();
        execute(&["after-exec", &pair.fd.to_string()]);
    }
}

fn after_exec(fd: Fd) {
    let mut bytes = [0; 24];
    receive_all(fd, &mut bytes);
    println!("received after exec -> {}", shown(&bytes));
    println!(
        "left behind -> {:?}",
        std::env::vars().find(|(name, _)| name.contains("HANDOVER"))
    );
    send_all(fd, b"from the other");
    println!("then -> {}", drain(fd));
}

fn exec_closes(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"last words");
        pair.step();
        let error = Command::new("/bin/true").exec();
        panic!("exec failed: {error}");
    } else {
        pair.step();
        pair.say("received", drain(pair.fd));
    }
}

/// The number of bytes that each program of the chain reads. All bytes were sent before the first
/// program started.
const LINK_BYTES: usize = 1000;
const LINKS: usize = 8;

fn every_call(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, &sample((LINKS + 1) * LINK_BYTES));
        pair.step();
        for _ in 0..LINKS {
            let mut reply = [0; 2];
            receive_all(pair.fd, &mut reply);
            pair.say("reply", shown(&reply));
        }
        pair.say("then", drain(pair.fd));
    } else {
        keep_open(pair.fd);
        pair.step();
        chain(pair.fd, 0);
    }
}

/// Reads one link's share of the bytes, then executes the next program by the next exec call.
fn chain(fd: Fd, call: usize) {
    let mut bytes = vec![0; LINK_BYTES];
    receive_all(fd, &mut bytes);
    let expected = &sample((LINKS + 1) * LINK_BYTES)[call * LINK_BYTES..][..LINK_BYTES];
    println!("link {call} right -> {}", bytes == expected);
    if call == LINKS {
        println!("close -> {}", sys::close(fd));
        return;
    }
    send_all(fd, format!("{call};").as_bytes());
    let text = |text: String| CString::new(text).expect("no NUL inside");
    let path = std::env::current_exe().expect("a running program has a path");
    let path = text(path.to_str().expect("readable").into());
    let arguments = [
        "semantics",
        "executed",
        "chain",
        &fd.to_string(),
        &(call + 1).to_string(),
    ]
    .map(|argument| text(argument.into()));
    let [zero, one, two, three, four] = arguments.each_ref().map(|argument| argument.as_ptr());
    let argv = [zero, one, two, three, four, std::ptr::null()];
    let end = std::ptr::null::<c_char>();
    let file = std::fs::File::open(path.to_str().expect("readable")).expect("it runs");
    let file = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: every string lives and ends in NUL, every list ends with a null pointer; `environ` is
    // libc's.
    let failed = unsafe {
        match call {
            0 => libc::execv(path.as_ptr(), argv.as_ptr()),
            1 => libc::execve(path.as_ptr(), argv.as_ptr(), environ),
            2 => libc::execvp(path.as_ptr(), argv.as_ptr()),
            3 => libc::execl(path.as_ptr(), zero, one, two, three, four, end),
            4 => libc::execlp(path.as_ptr(), zero, one, two, three, four, end),
            5 => libc::execle(path.as_ptr(), zero, one, two, three, four, end, environ),
            6 => libc::fexecve(file, argv.as_ptr(), environ),
            _ => libc::syscall(libc::SYS_execve, path.as_ptr(), argv.as_ptr(), environ) as c_int,
        }
    };
    panic!("call {call} returned {failed}");
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

fn forked_child(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, &sample(20_000));
        pair.step();
        let mut reply = [0; 9];
        receive_all(pair.fd, &mut reply);
        pair.say("reply", shown(&reply));
        send_all(pair.fd, b"bye");
        pair.say("then", drain(pair.fd));
    } else {
        pair.step();
        let mut bytes = [0; 1000];
        receive_all(pair.fd, &mut bytes);
        let child = sys::fork();
        if child == 0 {
            keep_open(pair.fd);
            execute(&["child", &pair.fd.to_string()]);
        }
        // Print this after the child's lines, whichever process is faster.
        let closed = sys::close(pair.fd);
        let ended = sys::wait_for(child);
        pair.say("close", closed);
        pair.say("child", ended);
    }
}

fn child(fd: Fd) {
    let mut bytes = vec![0; 19_000];
    receive_all(fd, &mut bytes);
    println!("child's part right -> {}", bytes == sample(20_000)[1000..]);
    send_all(fd, b"all there");
    let mut bye = [0; 3];
    receive_all(fd, &mut bye);
    println!("child heard -> {}", shown(&bye));
}

/// An operator sends an idle connection back to the kernel. A child is spawned before either role
/// has noticed.
fn spawned_child_after_a_detach(pair: &Pair) {
    if pair.server() {
        pair.step();
        keep_open(pair.fd);
        let program = std::env::current_exe().expect("a running program has a path");
        let mut command = Command::new(program);
        command.args(["executed", "answered", &pair.fd.to_string()]);
        let mut child = command.spawn().expect("it runs");
        pair.say("child", child.wait().expect("a child"));
        pair.step();
    } else {
        let looked = sys::recv(pair.fd, &mut [0; 8], libc::MSG_DONTWAIT);
        pair.say("looked", looked);
        ask_harness("detach");
        pair.step();
        pair.arrived(pair.fd, 1000);
        send_all(pair.fd, b"ok");
        let mut bytes = vec![0; 1000];
        receive_all(pair.fd, &mut bytes);
        pair.say("right", bytes == sample(1000));
        pair.step();
        ask_harness("attach");
    }
}

fn answered(fd: Fd) {
    send_all(fd, &sample(1000));
    let mut answer = [0; 2];
    receive_all(fd, &mut answer);
    println!("answer -> {answer:?}");
}

/// A sender has asked for buffer space. The other role has freed space and then ended its
/// direction. If `goes_on` is set, the sender has noticed.
fn spawned_reader(pair: &Pair, goes_on: bool) {
    // A full ring is made larger. Only a large ring stays in use when it is full.
    const LEN: usize = 24 << 20;
    if pair.server() {
        send_all(pair.fd, &sample(LEN));
        pair.step();
        sys::set_nonblocking(pair.fd, true);
        let (sent, result) = send_until_refused(pair, &sample(1 << 20));
        pair.say("refused", result);
        pair.role.tell(u32::try_from(sent).expect("few"));
        pair.step();
        if goes_on {
            // The last acknowledgement may still be on its way.
            await_events(pair.fd, libc::POLLOUT);
            pair.say("send", sys::send(pair.fd, b"more", 0));
        }
        sys::set_nonblocking(pair.fd, false);
        keep_open(pair.fd);
        let program = std::env::current_exe().expect("a running program has a path");
        let mut command = Command::new(program);
        command.args(["executed", "reader", &pair.fd.to_string()]);
        command.env_remove("LD_PRELOAD");
        let mut child = command.spawn().expect("it runs");
        pair.say("child", child.wait().expect("a child"));
        pair.step();
    } else {
        receive_all(pair.fd, &mut vec![0; LEN]);
        pair.step();
        let mut bytes = vec![0; pair.role.hear() as usize];
        receive_all(pair.fd, &mut bytes);
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.step();
        pair.step();
    }
}

fn duplicates(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"through the first, through the copy");
        pair.step();
        pair.say("then", drain(pair.fd));
    } else {
        pair.step();
        let copy = sys::dup(pair.fd).fd();
        keep_open(pair.fd);
        execute(&["copies", &pair.fd.to_string(), &copy.to_string()]);
    }
}

fn copies(fd: Fd, copy: Fd) {
    let mut bytes = [0; 19];
    receive_all(fd, &mut bytes);
    println!("first -> {}", shown(&bytes));
    println!("close -> {}", sys::close(fd));
    let mut bytes = [0; 16];
    receive_all(copy, &mut bytes);
    println!("copy -> {}", shown(&bytes));
    send_all(copy, b"and out by the copy");
    println!("close -> {}", sys::close(copy));
}

fn failing(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"one two ");
        pair.step();
        send_all(pair.fd, b"three");
        pair.say("then", drain(pair.fd));
    } else {
        keep_open(pair.fd);
        let mut bytes = [0; 4];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        let arguments = [c"nothing".as_ptr(), std::ptr::null()];
        for path in [c"/there/is/no/such/program", c"/etc/passwd"] {
            // SAFETY: the strings end in NUL, the list with a null pointer.
            let failed = unsafe { libc::execv(path.as_ptr(), arguments.as_ptr()) };
            pair.say("exec", sys::ret(failed));
        }
        pair.step();
        let mut bytes = [0; 9];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        send_all(pair.fd, b"still here");
        pair.say("close", sys::close(pair.fd));
    }
}

/// The connection was handed over, and comes back.
fn signal_after_failing(pair: &Pair) {
    /// The kernel takes no argument of more bytes (execve(2)).
    const ARGUMENT_BYTES_MAX: usize = 32 * 4096;
    if !pair.server() {
        keep_open(pair.fd);
        interrupts::handle_signal(libc::SIGUSR1, interrupts::count, 0);
        let program = std::env::current_exe().expect("a running program has a path");
        let error = Command::new(program)
            .args(["executed", &"x".repeat(ARGUMENT_BYTES_MAX)])
            .exec();
        let number = error.raw_os_error().unwrap_or(0);
        pair.say("exec", sys::errno_name(number));
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGUSR1) };
        pair.say("caught", interrupts::caught());
        send_all(pair.fd, b"still here");
    } else {
        let mut bytes = [0; 10];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
    }
    pair.step();
}

const LONG_BYTES: usize = 4_000_000;

fn for_long(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"x");
        pair.step();
        let bytes = sample(LONG_BYTES);
        for part in bytes.chunks(40_000) {
            send_all(pair.fd, part);
            let mut echo = vec![0; part.len()];
            receive_all(pair.fd, &mut echo);
            assert!(echo == part, "the echo differs");
        }
        pair.say("close", sys::close(pair.fd));
    } else {
        keep_open(pair.fd);
        pair.step();
        execute(&["long", &pair.fd.to_string()]);
    }
}

/// Runs an event loop in the executed program.
fn long(fd: Fd) {
    receive_all(fd, &mut [0; 1]);
    sys::set_nonblocking(fd, true);
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).value();
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 7).value();
    let mut bytes = vec![0; 30_000];
    let mut total = 0;
    loop {
        let (result, events) = sys::epoll_wait(epoll, 4, 20_000);
        if result.is(libc::EINTR) {
            continue;
        }
        assert!(result.len() == 1 && events[0].0 == 7, "{result}");
        let result = sys::recv(fd, &mut bytes, 0);
        if result.is(libc::EAGAIN) {
            continue;
        }
        if result.len() == 0 {
            break;
        }
        total += result.len();
        // The server has sent everything by then, and waits for the rest of the echo.
        if total == LONG_BYTES {
            println!("still upgraded -> {}", is_upgraded_where_expected(fd));
        }
        send_all(fd, &bytes[..result.len()]);
    }
    println!("echoed -> {total}");
}

fn without_the_library(pair: &Pair) {
    const LEN: usize = 9000;
    if pair.server() {
        send_all(pair.fd, &sample(LEN));
        pair.step();
        let end = drain(pair.fd);
        pair.say("ended", end.ends_with("EOF") || end.ends_with("ECONNRESET"));
    } else {
        pair.step();
        receive_all(pair.fd, &mut [0; 100]);
        keep_open(pair.fd);
        let program = std::env::current_exe().expect("a running program has a path");
        let error = Command::new(program)
            .args(["executed", "drain", &pair.fd.to_string()])
            .env_remove("LD_PRELOAD")
            .exec();
        panic!("exec failed: {error}");
    }
}

/// Unread bytes in a ring cannot follow a descriptor to a program without the library. Such a
/// program gets the stream from the position where the former program stopped, or an error at once.
/// It never gets a later byte in the place of an earlier byte.
fn drain_it(fd: Fd) {
    let expected = sample(9000);
    let mut bytes = vec![0; 9000];
    let mut received = 0;
    let end = loop {
        sys::shutdown(fd, libc::SHUT_WR);
        let result = sys::recv(fd, &mut bytes[received..], 0);
        match result.0 {
            Ok(0) => break "EOF".to_owned(),
            Ok(_) => received += result.len(),
            Err(libc::EINTR) => {}
            Err(errno) => {
                break if errno == libc::ECONNRESET {
                    "ECONNRESET".to_owned()
                } else {
                    format!("error {errno}")
                };
            }
        }
    };
    let right = bytes[..received] == expected[100..][..received];
    let complete = received == 8900 && end == "EOF";
    if right && (complete || end == "ECONNRESET" || end == "EOF" && received == 0) {
        println!("no gap -> true");
    } else {
        println!("no gap -> false: {received} bytes, right: {right}, then {end}");
    }
}

/// Runs a shell that writes to a connection by its descriptor number.
type Child = fn(Fd);

/// The parent goes on with the connection. The parent sends before and after the child does, and
/// the child's bytes arrive between the parent's bytes.
fn inherited(pair: &Pair, child: Child) {
    if !pair.server() {
        pair.say("received", drain(pair.fd));
        return;
    }
    keep_open(pair.fd);
    send_all(pair.fd, b"before; ");
    child(pair.fd);
    send_all(pair.fd, b"; after");
    pair.say("close", sys::close(pair.fd));
}

fn command(fd: Fd) -> CString {
    assert!(fd < 10, "shells redirect to one digit");
    CString::new(format!("printf child >&{fd}")).expect("no NUL")
}

fn by_system(fd: Fd) {
    let command = command(fd);
    // SAFETY: a live, NUL-terminated text.
    sys::ret(unsafe { libc::system(sys::text(&command)) }).value();
}

/// `wordexp_t` (wordexp.h), and calls that the libc crate lacks.
#[repr(C)]
struct Words(usize, *mut *mut libc::c_char, usize);

unsafe extern "C" {
    fn wordexp(words: *const libc::c_char, result: *mut Words, flags: i32) -> i32;
    fn wordfree(result: *mut Words);
}

fn by_wordexp(fd: Fd) {
    let command = CString::new(format!("$(printf child >&{fd})")).expect("no NUL");
    let mut words = Words(0, std::ptr::null_mut(), 0);
    // SAFETY: a live, NUL-terminated text; the result is freed once.
    let failed = unsafe { wordexp(sys::text(&command), &mut words, 0) };
    assert_eq!(failed, 0);
    // SAFETY: filled in above.
    unsafe { wordfree(&mut words) };
}

fn by_popen(fd: Fd) {
    let command = command(fd);
    // SAFETY: live, NUL-terminated texts; the stream is closed once.
    let end = unsafe {
        let stream = libc::popen(sys::text(&command), sys::text(c"r"));
        assert!(!stream.is_null());
        libc::pclose(stream)
    };
    assert_eq!(end, 0);
}

fn by_posix_spawn(fd: Fd) {
    let command = command(fd);
    let arguments = [c"sh", c"-c", command.as_c_str()].map(|text| sys::text(text).cast_mut());
    let arguments = [
        arguments[0],
        arguments[1],
        arguments[2],
        std::ptr::null_mut(),
    ];
    let (path, mut child) = (sys::text(c"/bin/sh"), 0);
    let (no_actions, no_attributes) = (std::ptr::null(), std::ptr::null());
    // SAFETY: all texts are live and NUL-terminated, and the lists end with null.
    let failed = unsafe {
        libc::posix_spawn(
            &mut child,
            path,
            no_actions,
            no_attributes,
            arguments.as_ptr(),
            environ.cast(),
        )
    };
    assert_eq!(failed, 0);
    assert_eq!(sys::wait_for(child), "exit 0");
}

fn by_vfork_that_closes(fd: Fd) {
    by_vfork(fd, |fd| {
        for other in (3..1024).filter(|&other| other != fd) {
            // SAFETY: numbers of the child's own table.
            unsafe { libc::close(other) };
        }
    });
}

/// The shell writes to descriptor 9, which exists only in the child.
fn by_vfork_that_duplicates(fd: Fd) {
    assert_ne!(fd, 9);
    by_vfork(9, move |_| {
        // SAFETY: takes no pointers.
        unsafe {
            libc::dup2(fd, 9);
            libc::close(fd);
        }
    });
}

fn by_vfork(target: Fd, prepare: impl Fn(Fd)) {
    let command = command(target);
    let arguments = [
        sys::text(c"sh"),
        sys::text(c"-c"),
        sys::text(&command),
        std::ptr::null(),
    ];
    let path = sys::text(c"/bin/sh");
    // SAFETY: the child shares this stack and leaves by exec or _exit; it allocates nothing.
    #[expect(deprecated, reason = "what is tested is vfork itself")]
    let child = unsafe {
        let child = libc::vfork();
        if child == 0 {
            prepare(target);
            libc::execv(path, arguments.as_ptr());
            libc::_exit(1);
        }
        child
    };
    assert_eq!(sys::wait_for(child), "exit 0");
}

/// Many children that share the program's memory execute programs. With `closes`, an exec closes
/// the connection.
fn leaves_no_memory(pair: &Pair, closes: bool) {
    const FIRST: usize = 8;
    const CHILDREN: usize = 200;
    /// Fewer than each child could leave.
    const PAGES_MAX: usize = CHILDREN / 2;
    if !pair.server() {
        let flags = if closes { libc::FD_CLOEXEC } else { 0 };
        sys::fcntl(pair.fd, libc::F_SETFD, flags).value();
        (0..FIRST).for_each(|_| by_vfork_to_nothing());
        let before = mapped_pages();
        (0..CHILDREN).for_each(|_| by_vfork_to_nothing());
        let more = mapped_pages().saturating_sub(before);
        pair.say("no memory is left behind", more < PAGES_MAX);
    }
    pair.step();
}

fn by_vfork_to_nothing() {
    let path = sys::text(c"/bin/true");
    let arguments = [path, std::ptr::null()];
    // SAFETY: as in `by_vfork`.
    #[expect(deprecated, reason = "what is tested is vfork itself")]
    let child = unsafe {
        let child = libc::vfork();
        if child == 0 {
            libc::execv(path, arguments.as_ptr());
            libc::_exit(1);
        }
        child
    };
    assert_eq!(sys::wait_for(child), "exit 0");
}
