//! Streams: one side sends for a time, the other reads to the end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::socket::{Stream, check};
use super::wire::{self, ACKNOWLEDGEMENT_BYTES, Acknowledgement, Header};

/// Sends messages while `goes_on`, called with the bytes sent so far, returns true. Returns the
/// bytes.
pub(super) fn source(
    stream: &Stream,
    header: &Header,
    mut goes_on: impl FnMut(u64) -> bool,
) -> io::Result<u64> {
    let mut message = vec![0; header.message];
    wire::fill(&mut message);
    let file = if header.sendfile {
        let file = memory_file()?;
        write_file(&file, &message)?;
        Some(file)
    } else {
        None
    };
    let mut sent = 0;
    while goes_on(sent) {
        match &file {
            Some(file) => stream.send_file(file.as_raw_fd(), message.len())?,
            None => {
                if header.touch {
                    wire::fill(&mut message);
                }
                stream.write_all(&message)?;
            }
        }
        sent += message.len() as u64;
    }
    Ok(sent)
}

/// Reads to the end; calls `counts` with the bytes so far after each read. Returns bytes and sum.
pub(super) fn drain(
    stream: &Stream,
    header: &Header,
    mut counts: impl FnMut(u64),
) -> io::Result<Acknowledgement> {
    let mut buffer = vec![0; header.message.max(READ_BYTES_MIN)];
    let mut seen = Acknowledgement { bytes: 0, sum: 0 };
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(seen),
            Ok(count) => {
                seen.bytes += count as u64;
                if header.touch {
                    seen.sum = seen.sum.wrapping_add(wire::sum(&buffer[..count]));
                }
                counts(seen.bytes);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads to the end and returns the number of bytes.
pub(super) fn sink(stream: &Stream, header: &Header) -> io::Result<()> {
    let seen = drain(stream, header, |_| ())?;
    stream.write_all(&seen.encode())
}

/// Ends a stream and waits for its acknowledgement.
///
/// # Errors
///
/// Returns the error of the socket, or an error when bytes were lost or changed.
pub(super) fn end(stream: &Stream, header: &Header, sent: u64) -> io::Result<()> {
    stream.finish()?;
    let mut bytes = [0; ACKNOWLEDGEMENT_BYTES];
    if !stream.read_all(&mut bytes)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    verify(header, sent, Acknowledgement::decode(&bytes))
}

/// Compares the received bytes with the sent ones: whole messages with known content.
pub(super) fn verify(header: &Header, sent: u64, seen: Acknowledgement) -> io::Result<()> {
    if seen.bytes != sent {
        return Err(io::Error::other(format!(
            "{} bytes were sent and {} arrived",
            sent, seen.bytes
        )));
    }
    if header.touch {
        let mut message = vec![0; header.message];
        wire::fill(&mut message);
        let expected = (sent / header.message as u64).wrapping_mul(wire::sum(&message));
        if seen.sum != expected {
            return Err(io::Error::other(
                "the bytes that arrived are not those that were sent",
            ));
        }
    }
    Ok(())
}

fn memory_file() -> io::Result<OwnedFd> {
    // SAFETY: the name is a literal that ends in NUL.
    let fd = unsafe { libc::memfd_create(c"toehold-lab".as_ptr(), libc::MFD_CLOEXEC) };
    check(fd)?;
    // SAFETY: the call returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn write_file(file: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    std::fs::File::from(file.try_clone()?).write_all(bytes)
}

/// Readers ask for this much at least, as programs do.
const READ_BYTES_MIN: usize = 64 << 10;
