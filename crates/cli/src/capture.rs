//! `toehold capture`: shows live frames of the adapter's link, and what the engine did with each.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use clap::Args;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use toehold_adapter::client::{self, CaptureOptions};
use toehold_link::{Block, CaptureReader, Direction, Packet, PacketSummary};
use toehold_measure::output::tell_line;

use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;

/// Options of `toehold capture`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CaptureArgs {
    /// Write a pcapng capture there (-: standard output) instead of a line for each frame
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Stop after this many frames
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Keep only this many bytes of the beginning of each frame; 128 hold all headers
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    snap: Option<u32>,

    /// Only TCP from or to this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Only packets from or to this address
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,

    /// The adapter's runtime directory
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  toehold capture                              a line for each frame, with the engine's action
  toehold capture --port 6379 -c 20
  toehold capture -w link.pcapng               for Wireshark, with a comment for each packet
  toehold capture -s 128 -w - | wireshark -k -i -
  toehold capture -w - | tshark -r - -T fields -e frame.number -e frame.comment

The adapter needs a link (toehold adapter --link), and shows frames only to its own user and to
root. Stop the capture with ^C; a second ^C ends it at once. Large frames (LSO, LRO) are shown
whole, and outgoing checksums are incomplete if the link completes them. If the reader is too slow,
the capture omits frames and reports their number; the engine loses nothing. Connections through
shared memory (--path direct) have no frames.";

/// Captures until the adapter ends or enough frames were seen.
pub(crate) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let meeting = Meeting::of(args.runtime_dir.as_deref(), AdapterChoice::User);
    let dir = meeting.dir();
    let options = CaptureOptions {
        kept_max: match args.write {
            Some(_) => args.snap,
            // A line needs no more.
            None => Some(LINE_BYTES),
        },
        port: args.port,
        host: args.host,
    };
    let signals =
        signals().map_err(|error| Failure::new(format!("cannot wait for ^C: {error}")))?;
    let capturing = client::capture(dir, options);
    let capturing = capturing.map_err(|error| Failure::new(error.to_string()))?;
    let mut output = match &args.write {
        Some(path) => Output::Blocks(open(path)?),
        None => Output::Lines(BufWriter::new(standard_output()?)),
    };
    let live = Live {
        stream: &capturing.stream,
        signals,
        was_told: false,
    };
    let done = pump(live, &mut output, args.count);
    match done {
        Ok(totals) => totals.conclude(),
        // The reader of our output has seen enough.
        Err(Ended::Writing(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Ended::Reading(error)) => Err(Failure::new(format!("the capture ended: {error}"))),
        Err(Ended::Writing(error)) => {
            let to = args.write.as_deref().filter(|path| path.as_os_str() != "-");
            let to = to.map_or("standard output".into(), |path| path.display().to_string());
            Err(Failure::new(format!("cannot write {to}: {error}")))
        }
    }
}

/// The side of a capture that failed.
enum Ended {
    Reading(io::Error),
    Writing(io::Error),
}

/// The result of a capture.
#[derive(Debug, Default)]
struct Totals {
    frames: u64,
    lost: u64,
    blocks: u64,
}

impl Totals {
    fn conclude(&self) -> Result<(), Failure> {
        if self.blocks == 0 {
            return Err(Failure::new(
                "the adapter takes no more captures (8 at a time)",
            ));
        }
        let frames = if self.frames == 1 { "frame" } else { "frames" };
        tell_line(format!(
            "{} {frames}, {} lost to the capture",
            self.frames, self.lost
        ));
        Ok(())
    }
}

/// Passes blocks on until the input ends or `count` frames were seen.
fn pump(live: Live<'_>, output: &mut Output, count: Option<u64>) -> Result<Totals, Ended> {
    let mut reader = CaptureReader::new(BufReader::with_capacity(READ_BYTES, live));
    let mut totals = Totals::default();
    while count.is_none_or(|count| totals.frames < count) {
        let Some(block) = reader.next_block().map_err(Ended::Reading)? else {
            break;
        };
        totals.blocks += 1;
        totals.lost = block.lost_in_all().unwrap_or(totals.lost);
        let packet = block.packet();
        if let Some(packet) = &packet {
            totals.frames += 1;
            totals.lost += packet.lost;
        }
        let put = output.put(&block, packet.as_ref());
        put.map_err(Ended::Writing)?;
        if reader.get_ref().buffer().is_empty() {
            output.flush().map_err(Ended::Writing)?;
        }
    }
    output.flush().map_err(Ended::Writing)?;
    Ok(totals)
}

enum Output {
    Blocks(BufWriter<File>),
    Lines(BufWriter<File>),
}

impl Output {
    fn put(&mut self, block: &Block, packet: Option<&Packet<'_>>) -> io::Result<()> {
        match self {
            Output::Blocks(out) => out.write_all(block.as_bytes()),
            Output::Lines(out) => match packet {
                Some(packet) => writeln!(out, "{}", line(packet)),
                None => Ok(()),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let (Output::Blocks(out) | Output::Lines(out)) = self;
        out.flush()
    }
}

/// A frame in one line: time of day (UTC), direction, endpoints, numbers, and the engine's action.
fn line(packet: &Packet<'_>) -> String {
    let seconds = packet.micros / 1_000_000 % 86_400;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = packet.micros % 1_000_000;
    let way = match packet.direction {
        Some(Direction::In) => "in ",
        Some(Direction::Out) => "out",
        None => "   ",
    };
    let lost = match packet.lost {
        0 => String::new(),
        lost => format!("({lost} frames lost here) "),
    };
    let summary = PacketSummary::of(packet.bytes);
    let comment = packet.comment;
    format!("{hours:02}:{minutes:02}:{seconds:02}.{micros:06} {lost}{way} {summary} | {comment}")
}

/// The connection to the adapter, until a signal asks us to stop.
struct Live<'a> {
    stream: &'a UnixStream,
    signals: OwnedFd,
    was_told: bool,
}

impl Read for Live<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.was_told {
            let mut polls = [
                PollFd::new(self.stream, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            match poll(&mut polls, None) {
                Err(Errno::INTR) => continue,
                outcome => outcome?,
            };
            self.was_told = !polls[1].revents().is_empty();
            if !self.was_told {
                return self.stream.read(buffer);
            }
        }
        Ok(0)
    }
}

/// Termination signals like ^C as a descriptor, which is readable after the first signal. A second
/// signal of its kind ends the process, which may be waiting for the reader of its output. A SIGHUP
/// that nohup(1) has ignored stays ignored.
fn signals() -> io::Result<OwnedFd> {
    let told = eventfd(0, EventfdFlags::CLOEXEC)?;
    TOLD.store(told.as_raw_fd(), Relaxed);
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: zeros are a valid action, and the calls read and write complete ones. The handler
        // makes one system call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(number, std::ptr::null(), &raw mut action);
            if number == libc::SIGHUP && action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = tell as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(number, &raw const action, std::ptr::null_mut());
        }
    }
    Ok(told)
}

/// The descriptor of [`signals`], for the handler.
// Relaxed: it is stored before the handler is installed, by the only thread.
static TOLD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn tell(_signal: libc::c_int) {
    // SAFETY: `errno` belongs to this thread; the call reads eight bytes of a local word.
    unsafe {
        let errno = *libc::__errno_location();
        let one = 1u64;
        libc::write(
            TOLD.load(Relaxed),
            (&raw const one).cast(),
            size_of_val(&one),
        );
        *libc::__errno_location() = errno;
    }
}

fn open(path: &Path) -> Result<BufWriter<File>, Failure> {
    if path == Path::new("-") {
        return Ok(BufWriter::new(standard_output()?));
    }
    let file = File::create(path);
    let file =
        file.map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
    Ok(BufWriter::new(file))
}

/// Standard output without Rust's line buffer.
fn standard_output() -> Result<File, Failure> {
    let output = io::stdout().as_fd().try_clone_to_owned();
    let output = output.map_err(|error| Failure::new(format!("no standard output: {error}")))?;
    Ok(output.into())
}

/// Bytes of a frame that a line needs: all headers.
const LINE_BYTES: u32 = 128;
/// Read at a time.
const READ_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_time_direction_and_comment() {
        let packet = Packet {
            micros: (3_600 + 62) * 1_000_000 + 7,
            direction: Some(Direction::Out),
            bytes: &[],
            length: 60,
            lost: 2,
            comment: "retransmission",
        };
        assert_eq!(
            line(&packet),
            "01:01:02.000007 (2 frames lost here) out not IP | retransmission"
        );
    }
}
