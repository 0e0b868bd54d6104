//! Programs that make their system calls themselves: compiled for a test, and started.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};

use toehold_sites::elf::Image;

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
#[derive(Debug)]
pub struct Waiting {
    child: Child,
    output: BufReader<ChildStdout>,
    line: String,
    /// Reads its standard error: one that fails may write more than fits into a pipe.
    errors: JoinHandle<String>,
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
    /// When it says no text.
    pub fn of(mut child: Child) -> Waiting {
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut stderr = child.stderr.take().expect("piped");
        let errors = thread::spawn(move || {
            let mut errors = String::new();
            stderr.read_to_string(&mut errors).expect("text");
            errors
        });
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        Waiting {
            child,
            output,
            line,
            errors,
        }
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
    /// When it fails.
    pub fn end(mut self) -> (String, String) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        let errors = self.errors.join().expect("read");
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {}{rest}{errors}", self.line);
        (self.line, rest + &errors)
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
