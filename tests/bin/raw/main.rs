//! A program of Rust that has a C library but makes its system calls past it, by rustix: an echo
//! server by epoll, a client, and some calls that are not about sockets.
//!
//! Prints a line with the bytes received, then waits for the end of its input.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;

use rustix::event::epoll;
use rustix::io::{Errno, FdFlags};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const MESSAGES: usize = 20_000;
const BYTES_MAX: usize = 3_000;

fn main() -> io::Result<()> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = socket(SocketFlags::CLOEXEC)?;
    net::bind(&listener, &any)?;
    net::listen(&listener, 16)?;
    let address = net::getsockname(&listener)?;
    let address = SocketAddr::try_from(address)?;
    let server = thread::spawn(move || serve(&listener));
    let first = socket(SocketFlags::CLOEXEC)?;
    net::connect(&first, &address)?;
    // Under another number, as programs do when they pass connections on.
    let client = rustix::io::fcntl_dupfd_cloexec(&first, 20)?;
    drop(first);
    let flags = rustix::io::fcntl_getfd(&client)?;
    assert!(flags.contains(FdFlags::CLOEXEC) && client.as_raw_fd() >= 20);
    let mut sum = 0u64;
    for n in 0..MESSAGES {
        let message = vec![n as u8; 1 + n * 7 % BYTES_MAX];
        send_all(&client, &message)?;
        let mut answer = vec![0; message.len()];
        receive_all(&client, &mut answer)?;
        assert_eq!(answer, message, "message {n}");
        sum = answer.iter().fold(sum, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        });
    }
    println!("{MESSAGES} messages, {sum:016x}");
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(client);
    server.join().expect("the server ends")
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

/// Echoes everything that one client sends, until the client has finished.
fn serve(listener: &OwnedFd) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let client = net::accept_with(listener, flags)?;
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (data, events) = (epoll::EventData::new_u64(1), epoll::EventFlags::IN);
    epoll::add(&instance, &client, data, events | epoll::EventFlags::ET)?;
    let mut ready = Vec::with_capacity(8);
    let mut buffer = vec![0; BYTES_MAX];
    loop {
        ready.clear();
        epoll::wait(&instance, rustix::buffer::spare_capacity(&mut ready), None)?;
        loop {
            match net::recv(&client, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(()),
                Ok((count, _)) => send_all(&client, &buffer[..count])?,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::AGAIN) => thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn receive_all(socket: &OwnedFd, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (count, _) = net::recv(socket, &mut *bytes, RecvFlags::empty())?;
        assert!(count > 0, "the server has closed");
        bytes = &mut bytes[count..];
    }
    Ok(())
}
