//! The output of a command, line by line.
//!
//! The output is over when the command has ended, even if another process still has the pipe: a
//! process that a test has left behind.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

/// Both outputs of a command that runs.
pub(super) struct Output {
    reader: PipeReader,
    /// Readable when the command has ended. `None` where the kernel has no such descriptors.
    end: Option<OwnedFd>,
    /// Bytes of lines that have not been taken.
    bytes: Vec<u8>,
}

/// The next event of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A line with its end; the last one may have none.
    Line(Vec<u8>),
    /// The command has said nothing for the time.
    Silence,
    /// There are no more lines.
    End,
}

impl Output {
    /// The output of `child`, which comes by `reader`.
    pub(super) fn of(child: &Child, reader: PipeReader) -> Output {
        // SAFETY: takes no pointers. The child has not been waited for, so the number is its own.
        let end = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
        // SAFETY: a new descriptor, which is nobody else's.
        let end = (end >= 0).then(|| unsafe { OwnedFd::from_raw_fd(end as libc::c_int) });
        Output {
            reader,
            end,
            bytes: Vec::new(),
        }
    }

    /// Waits for the next line, at most as long as `limit` says.
    pub(super) fn next(&mut self, limit: Option<Duration>) -> Next {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let rest = self.bytes.split_off(end + 1);
                return Next::Line(std::mem::replace(&mut self.bytes, rest));
            }
            match self.wait(limit) {
                Ready::Bytes if self.read() => {}
                Ready::Nothing => return Next::Silence,
                Ready::Bytes | Ready::End if self.bytes.is_empty() => return Next::End,
                Ready::Bytes | Ready::End => return Next::Line(std::mem::take(&mut self.bytes)),
            }
        }
    }

    /// False at the end.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.reader.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => return false,
                Ok(read) => {
                    self.bytes.extend_from_slice(&bytes[..read]);
                    return true;
                }
            }
        }
    }

    fn wait(&self, limit: Option<Duration>) -> Ready {
        let limit = limit.map_or(-1, |limit| limit.as_millis().try_into().unwrap_or(i32::MAX));
        let watched = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // A negative number is passed over.
        let end = self.end.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut watched = [watched(self.reader.as_raw_fd()), watched(end)];
        loop {
            // SAFETY: both entries are live.
            let ready = unsafe { libc::poll(watched.as_mut_ptr(), 2, limit) };
            if ready >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
        match watched.map(|one| one.revents != 0) {
            [true, _] => Ready::Bytes,
            [false, true] => Ready::End,
            [false, false] => Ready::Nothing,
        }
    }
}

enum Ready {
    /// Bytes, or the end of the pipe.
    Bytes,
    /// The command has ended, and the pipe is empty.
    End,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn run(script: &str) -> (Child, Output) {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        let child = command.stdout(writer).spawn().expect("a shell");
        let output = Output::of(&child, reader);
        (child, output)
    }

    #[test]
    fn lines_come_whole_and_the_last_one_needs_no_end() {
        let (mut child, mut output) = run("printf 'a\\nb'");
        assert_eq!(output.next(None), Next::Line(b"a\n".to_vec()));
        assert_eq!(output.next(None), Next::Line(b"b".to_vec()));
        assert_eq!(output.next(None), Next::End);
        child.wait().expect("it has ended");
    }

    #[test]
    fn output_is_over_with_its_command_although_another_process_has_the_pipe() {
        let (mut child, mut output) = run("sleep 1000 & echo $!");
        let Next::Line(line) = output.next(None) else {
            panic!("it says a number");
        };
        assert_eq!(output.next(None), Next::End);
        child.wait().expect("it has ended");
        let sleeper = String::from_utf8(line).expect("text");
        let sleeper = sleeper.trim().parse().expect("a number");
        // SAFETY: takes no pointers. The sleeper is ours, and has not ended.
        unsafe { libc::kill(sleeper, libc::SIGKILL) };
    }

    #[test]
    fn silence_ends_a_wait_and_lines_come_after_it() {
        let (mut child, mut output) = run("read -r line; echo $line");
        assert_eq!(output.next(Some(Duration::from_millis(1))), Next::Silence);
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"said\n").expect("it reads");
        assert_eq!(output.next(None), Next::Line(b"said\n".to_vec()));
        child.wait().expect("it has ended");
    }
}
