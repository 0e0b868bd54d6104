//! Many connections between two programs; most of the connections are idle.
//!
//! `crowd server` prints its port and echoes on every connection, in one event loop.
//! `crowd client PORT COUNT` opens the connections, talks once on each, and then follows
//! its input, line by line: `talk N` on connection N, `idle` for a while on all but the first,
//! which it keeps using, `around N` for N milliseconds with a message on each in turn, `alone N`
//! for N milliseconds with messages on the first, `alone` until SIGUSR1 ends that, `say` sends a
//! message on each connection, and `hear` receives their echoes. After `wait WAY` the client waits
//! for each echo in this way: `receive` by a blocking receive, which it also does at first, `poll`
//! or `select` before it receives, `try` by a receive that does not block and then by `poll`, and
//! at last `timer` by an epoll instance that also has a timer, which fires before each echo.
//! `beside N` sends N messages on the first connection after a receive in vain, while the second
//! one is ready. It ends when there are no more lines. Every byte is checked; each line is answered
//! with one.
//! `crowd client PORT COUNT light` only talks in short messages.
//!
//! `crowd member` is one of many processes that have connections with each other. It echoes as the
//! server does, and follows its input at the same time: `join PORT COUNT` opens connections, `talk
//! COUNT` sends so many messages on each in turn. Its input is a socket, on which it says its port
//! and answers each line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Short messages in one talk: enough for a connection to be paired.
const MESSAGES: usize = 100;
/// The size of one further message, so that rings grow.
const BULK_BYTES: usize = 300_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server"] => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            println!("{}", listener.local_addr().expect("bound").port());
            server(&listener);
        }
        ["member"] => member(),
        ["client", port, count, ref manner @ ..] => client(
            port.parse().expect("a port"),
            count.parse().expect("a number"),
            match manner {
                [] => BULK_BYTES,
                ["light"] => 0,
                _ => panic!("{manner:?}?"),
            },
        ),
        _ => panic!("usage: crowd server | client PORT COUNT [light] | member"),
    }
}

fn member() {
    let orders = std::io::stdin();
    let input = orders.as_fd().try_clone_to_owned();
    let mut answers = File::from(input.expect("room for a descriptor"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    writeln!(answers, "{port}").expect("somebody listens");
    std::thread::spawn(move || server(&listener));
    let mut streams = Vec::new();
    for line in orders.lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["join", port, count] => {
                let port: u16 = port.parse().expect("a port");
                for _ in 0..count.parse().expect("a number") {
                    streams.push(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
                }
            }
            ["talk", messages] => {
                let messages = messages.parse().expect("a number");
                streams
                    .iter_mut()
                    .for_each(|stream| talk(stream, messages, 0));
            }
            _ => panic!("{line}?"),
        }
        writeln!(answers, "done").expect("somebody listens");
    }
}

/// Echoes on every incoming connection.
fn server(listener: &TcpListener) {
    // SAFETY: no memory is involved.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let watch = |fd: i32| {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: fd as u64,
        };
        // SAFETY: `event` is live.
        let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) };
        assert_eq!(added, 0, "epoll_ctl");
    };
    watch(listener.as_raw_fd());
    let mut streams = HashMap::new();
    let mut bytes = vec![0; 65_536];
    loop {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: `events` is writable for 64 elements.
        let found = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), 64, -1) };
        for event in &events[..found.max(0) as usize] {
            let fd = event.u64 as i32;
            if fd == listener.as_raw_fd() {
                let (stream, _) = listener.accept().expect("a connection");
                watch(stream.as_raw_fd());
                streams.insert(stream.as_raw_fd(), stream);
                continue;
            }
            let stream: &mut TcpStream = streams.get_mut(&fd).expect("watched");
            match stream.read(&mut bytes).expect("no error") {
                0 => drop(streams.remove(&fd)),
                len => stream.write_all(&bytes[..len]).expect("no error"),
            }
        }
    }
}

fn client(port: u16, count: usize, bulk_bytes: usize) {
    let mut streams: Vec<TcpStream> = (0..count)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).expect("the server listens"))
        .collect();
    let talk = |stream: &mut TcpStream| talk(stream, MESSAGES, bulk_bytes);
    streams.iter_mut().for_each(talk);
    let handler: extern "C" fn(libc::c_int) = end_order;
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGUSR1, handler as usize) };
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("talk", which)) => talk(&mut streams[which.parse::<usize>().expect("a number")]),
            Some(("around", time)) => {
                let time = Duration::from_millis(time.parse().expect("a number"));
                let begun = Instant::now();
                while begun.elapsed() < time {
                    for (which, stream) in streams.iter_mut().enumerate() {
                        exchange(stream, format!("{which} speaks").as_bytes());
                    }
                }
            }
            Some(("alone", time)) => {
                let time = Duration::from_millis(time.parse().expect("a number"));
                let begun = Instant::now();
                while begun.elapsed() < time {
                    exchange(&mut streams[0], b"still here");
                }
            }
            None if line == "alone" => {
                // Relaxed: it orders nothing.
                while !IS_OVER.swap(false, Ordering::Relaxed) {
                    exchange(&mut streams[0], b"still here");
                }
            }
            None if line == "say" => {
                for stream in &mut streams {
                    stream.write_all(b"all at once").expect("no error");
                }
            }
            None if line == "hear" => {
                for stream in &mut streams {
                    let mut echo = [0; 11];
                    stream.read_exact(&mut echo).expect("no error");
                    assert_eq!(&echo, b"all at once");
                }
            }
            Some(("beside", rounds)) => {
                for _ in 0..rounds.parse().expect("a number") {
                    exchange_beside(&mut streams);
                }
            }
            Some(("wait", way)) => {
                let known = WAYS.iter().position(|known| *known == way);
                WAY.store(known.expect("a way to wait"), Ordering::Relaxed);
            }
            None if line == "idle" => {
                for _ in 0..20 {
                    std::thread::sleep(Duration::from_millis(5));
                    exchange(&mut streams[0], b"still here");
                }
            }
            _ => panic!("{line}?"),
        }
        println!("done");
    }
}

/// True when the order that lasts until a signal has ended.
static IS_OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn end_order(_: libc::c_int) {
    IS_OVER.store(true, Ordering::Relaxed);
}

fn talk(stream: &mut TcpStream, messages: usize, bulk_bytes: usize) {
    for n in 0..messages {
        exchange(stream, format!("message {n}").as_bytes());
    }
    let bytes: Vec<u8> = (0..bulk_bytes).map(|n| (n % 251) as u8).collect();
    exchange(stream, &bytes);
}

fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    for part in bytes.chunks(60_000) {
        stream.write_all(part).expect("no error");
        let mut echo = vec![0; part.len()];
        await_echo(stream);
        stream.read_exact(&mut echo).expect("no error");
        assert!(echo == part, "the echo differs");
    }
}

/// Receives in vain on the first stream, then finds the second one ready by `poll`. Does not sleep
/// while the first one's echo is awaited.
fn exchange_beside(streams: &mut [TcpStream]) {
    let [first, second, ..] = streams else {
        panic!("one stream");
    };
    let (message, mut echo) = (*b"by the way", [0; 10]);
    second.write_all(&message).expect("no error");
    assert_eq!(poll(second.as_raw_fd()), 1);
    assert_eq!(peek(first.as_raw_fd()), -1);
    let mut both = [&*first, &*second].map(|stream| libc::pollfd {
        fd: stream.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: two elements.
    assert_eq!(unsafe { libc::poll(both.as_mut_ptr(), 2, -1) }, 1);
    second.read_exact(&mut echo).expect("no error");
    first.write_all(&message).expect("no error");
    // SAFETY: one element.
    while unsafe { libc::poll(both.as_mut_ptr(), 1, 0) } == 0 {}
    first.read_exact(&mut echo).expect("no error");
    assert_eq!(echo, message);
}

/// Looks at the next byte without waiting: 1, or -1 when there is none.
fn peek(fd: i32) -> isize {
    let mut first = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: one byte is writable.
    unsafe { libc::recv(fd, (&raw mut first).cast(), 1, flags) }
}

/// The ways in which the client can wait for an echo.
const WAYS: [&str; 5] = ["receive", "poll", "select", "try", "timer"];
/// The number of its current way.
static WAY: AtomicUsize = AtomicUsize::new(0);

/// Waits until the echo begins to come, unless the receive waits.
fn await_echo(stream: &TcpStream) {
    let fd = stream.as_raw_fd();
    // Relaxed: it orders nothing.
    let found = match WAYS[WAY.load(Ordering::Relaxed)] {
        "poll" => poll(fd),
        "select" => select(fd),
        "try" => match peek(fd) {
            1 => 1,
            _ => poll(fd),
        },
        "timer" => epoll_with_timer(fd),
        _ => 1,
    };
    assert_eq!(found, 1, "{}", std::io::Error::last_os_error());
}

fn poll(fd: i32) -> i32 {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one element.
    unsafe { libc::poll(&raw mut one, 1, -1) }
}

/// The connection stays a member of the instance.
fn epoll_with_timer(fd: i32) -> i32 {
    static BOTH: OnceLock<(i32, i32)> = OnceLock::new();
    let event = |fd: i32| libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: fd as u64,
    };
    let add = |epoll, fd| {
        // SAFETY: one event.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event(fd)) };
    };
    let &(epoll, timer) = BOTH.get_or_init(|| {
        // SAFETY: takes no pointers.
        let (epoll, timer) = unsafe {
            let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK);
            (libc::epoll_create1(0), timer)
        };
        add(epoll, timer);
        (epoll, timer)
    });
    add(epoll, fd);
    // SAFETY: zeroes are a time that was never set.
    let mut soon: libc::itimerspec = unsafe { std::mem::zeroed() };
    soon.it_value.tv_nsec = 1;
    // SAFETY: the time is live; the former one is left out.
    unsafe { libc::timerfd_settime(timer, 0, &raw const soon, std::ptr::null_mut()) };
    let mut awaited = vec![timer, fd];
    while !awaited.is_empty() {
        let mut one = event(0);
        // SAFETY: room for one event.
        let count = unsafe { libc::epoll_wait(epoll, &raw mut one, 1, -1) };
        if count != 1 {
            return count;
        }
        let ready = one.u64 as i32;
        awaited.retain(|&fd| fd != ready);
        if ready == timer {
            let mut expirations = 0u64;
            // SAFETY: eight bytes.
            unsafe { libc::read(timer, (&raw mut expirations).cast(), 8) };
        }
    }
    1
}

fn select(fd: i32) -> i32 {
    // SAFETY: zeroes are an empty set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live, and has room for a low number.
    unsafe { libc::FD_SET(fd, &raw mut set) };
    let none = std::ptr::null_mut();
    let endless = std::ptr::null_mut();
    // SAFETY: the set is live; the others are left out.
    unsafe { libc::select(fd + 1, &raw mut set, none, none, endless) }
}
