//! A server and a client of Rust's standard library: echo server PORT | echo client PORT.
//! The client compares every byte that comes back, over kept connections and new ones, and prints
//! sums.

use std::env;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const SIZES: [usize; 6] = [0, 1, 1000, 65_536, 1_000_000, 12_345_678];

/// Bytes that depend only on the size.
fn body(size: usize) -> Vec<u8> {
    (0..size)
        .map(|at| (at * 31 + at / 251 + size) as u8)
        .collect()
}

/// FNV-1a.
fn sum(bytes: &[u8], start: u64) -> u64 {
    let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(start, step)
}

/// Each line has a number; that many bytes follow. The server sends the line back, then the bytes.
fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let size = line.trim().parse().map_err(io::Error::other)?;
        let mut bytes = vec![0; size];
        reader.read_exact(&mut bytes)?;
        let mut parts = [IoSlice::new(line.as_bytes()), IoSlice::new(&bytes)];
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            let written = writer.write_vectored(parts)?;
            IoSlice::advance_slices(&mut parts, written);
        }
        line.clear();
    }
    writer.shutdown(Shutdown::Write)
}

/// Sends this many requests on one connection; returns the sum of the answers.
fn ask(port: u16, size: usize, times: usize) -> io::Result<u64> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(40)))?;
    let sent = body(size);
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut all = 0xcbf2_9ce4_8422_2325;
    for _ in 0..times {
        // Large bodies fill all buffers in both directions: one thread writes while the other
        // reads.
        thread::scope(|scope| -> io::Result<()> {
            let write = scope.spawn(|| {
                writeln!(writer, "{size}")?;
                writer.write_all(&sent)
            });
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let mut bytes = vec![0; size];
            reader.read_exact(&mut bytes)?;
            assert_eq!(line, format!("{size}\n"));
            assert!(bytes == sent, "other bytes than those that were sent");
            all = sum(&bytes, all);
            write.join().expect("no panic")
        })?;
    }
    writer.shutdown(Shutdown::Write)?;
    let rest = reader.read(&mut [0])?;
    assert_eq!(rest, 0, "the server closes when it has answered all");
    Ok(all)
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let port = arguments[2].parse().expect("a port");
    if arguments[1] == "server" {
        for stream in TcpListener::bind(("127.0.0.1", port))?.incoming() {
            let stream = stream?;
            thread::spawn(move || serve(stream));
        }
    }
    for size in SIZES {
        let times = if size > 100_000 { 3 } else { 300 };
        let askers: Vec<_> = (0..4)
            .map(|_| thread::spawn(move || ask(port, size, times)))
            .collect();
        for asker in askers {
            println!("{size}: {:016x}", asker.join().expect("no panic")?);
        }
    }
    for size in 0..200 {
        println!("new: {:016x}", ask(port, size, 1)?);
    }
    Ok(())
}
