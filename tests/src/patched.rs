//! Programs that make their system calls themselves: compiled for a test, and started.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use toehold_sites::elf::Image;

use crate::host;
use crate::process::{self, TIME_LIMIT};

/// Compiles `source` of `tests/patched` by a command that gets the output and the source.
///
/// # Panics
/// When it is not compiled.
pub fn compile(directory: &Path, compiler: &str, options: &[&str], source: &str) -> PathBuf {
    compile_as("program", directory, compiler, options, source)
}

/// [`compile`], with another name than `program`.
///
/// # Panics
/// When it is not compiled.
pub fn compile_as(
    name: &str,
    directory: &Path,
    compiler: &str,
    options: &[&str],
    source: &str,
) -> PathBuf {
    let program = directory.join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("patched");
    let mut command = Command::new(compiler);
    command.args(options).arg("-o").arg(&program);
    command.arg(sources.join(source));
    if ["library.go", "many.go", "shared.go", "storm.go"].contains(&source) {
        command.arg(sources.join("common.go"));
    }
    let status = command.status().expect("the compiler runs");
    assert!(status.success(), "{compiler}");
    program
}

/// A program that has said its line and waits for the end of its input.
///
/// It is killed when this is dropped.
#[derive(Debug)]
pub struct Waiting {
    child: Child,
    /// Its line, and later everything else that it writes there.
    output: Receiver<String>,
    line: String,
    /// Everything that it writes to its standard error.
    errors: Receiver<String>,
}

/// A program that says nothing for longer hangs, and so does one that does not end. The longest
/// takes a tenth of it on an idle host.
fn silence_max() -> Duration {
    const ROUNDS: u64 = 200;
    let times = host::rounds(ROUNDS).div_ceil(ROUNDS);
    (TIME_LIMIT * 4).saturating_mul(u32::try_from(times).unwrap_or(u32::MAX))
}

impl Waiting {
    /// Starts `command`, and waits for its line.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Waiting {
        Waiting::of(Waiting::begin(command))
    }

    /// Starts `command`, and waits for nothing.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn begin(command: &mut Command) -> Child {
        command.env("GOGC", "5").env_remove("GODEBUG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().expect("starts")
    }

    /// Waits for the line of a program that [`Waiting::begin`] has started.
    ///
    /// # Panics
    /// When it says no text, or nothing.
    pub fn of(mut child: Child) -> Waiting {
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stderr = child.stderr.take().expect("piped");
        // Threads read both: a program that fails may write more than fits into a pipe, and one
        // that hangs may write nothing.
        let (said, output) = channel();
        thread::spawn(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("text");
            let mut rest = String::new();
            // An error means that the test is over.
            if said.send(line).is_ok() {
                stdout.read_to_string(&mut rest).expect("text");
                let _ = said.send(rest);
            }
        });
        let (said, errors) = channel();
        thread::spawn(move || {
            let mut errors = String::new();
            stderr.read_to_string(&mut errors).expect("text");
            let _ = said.send(errors);
        });
        let mut waiting = Waiting {
            child,
            output,
            line: String::new(),
            errors,
        };
        waiting.line = waiting.heard(&waiting.output);
        waiting
    }

    /// The next text of a thread that reads.
    fn heard(&self, from: &Receiver<String>) -> String {
        let text = from.recv_timeout(silence_max());
        text.unwrap_or_else(|error| panic!("{error}\n{}", process::whereabouts(self.pid())))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its line.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The number of times that each system call went through the library; `None` when the library
    /// is not there.
    ///
    /// # Panics
    /// When it has ended.
    pub fn counts(&self) -> Option<Vec<u64>> {
        let process = self.child.id();
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs");
        let line = maps.lines().find(|line| line.ends_with("libtoehold.so"))?;
        let library = fs::read(&line[line.find('/')?..]).expect("readable");
        let doors = Image::parse(&library)?.symbol(b"TOEHOLD_DOORS")?;
        let base = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
        let memory = File::open(format!("/proc/{process}/mem")).expect("a child's memory");
        let words = |at: u64, count: usize| {
            let mut bytes = vec![0; count * 8];
            memory.read_exact_at(&mut bytes, at).expect("mapped");
            let words = bytes.chunks_exact(8);
            words
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight")))
                .collect::<Vec<_>>()
        };
        const COUNTS: u64 = 6;
        Some(words(words(base + doors + COUNTS * 8, 1)[0], 512))
    }

    /// Lets it end; its line and everything it said besides.
    ///
    /// # Panics
    /// When it fails, or does not end.
    pub fn end(mut self) -> (String, String) {
        drop(self.child.stdin.take());
        let rest = self.heard(&self.output);
        let errors = self.heard(&self.errors);
        let status = process::end_of(&mut self.child, silence_max());
        assert!(status.success(), "{status}: {}{rest}{errors}", self.line);
        (std::mem::take(&mut self.line), rest + &errors)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // An error means that it was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A static program of glibc with threads, compiled.
///
/// # Panics
/// When it is not compiled.
pub fn compile_static_threads(directory: &Path) -> PathBuf {
    let options = ["-O2", "-w", "-static", "-pthread"];
    compile(directory, "cc", &options, "threads.c")
}
