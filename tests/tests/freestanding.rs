//! The library is self-contained: it needs no other library, and works beside any C library or
//! none.

use std::path::{Path as FilePath, PathBuf};
use std::process::Command;

use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::toehold::library;
use toehold_e2e::{Path, Toehold, host};

/// The library must not refer to an object that could keep a program from starting.
#[test]
fn the_library_needs_no_other_library_no_symbol_and_no_thread_local_storage() {
    const PT_DYNAMIC: u64 = 2;
    const PT_INTERP: u64 = 3;
    const PT_TLS: u64 = 7;
    const DT_NEEDED: u64 = 1;
    const DT_SYMTAB: u64 = 6;
    const DT_STRTAB: u64 = 5;
    const DT_HASH: u64 = 4;
    const DT_VERNEED: u64 = 0x6fff_fffe;
    let bytes = std::fs::read(library()).expect("built");
    let number = |at: u64, len: usize| {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&bytes[at as usize..at as usize + len]);
        u64::from_le_bytes(word)
    };
    let headers: Vec<u64> = (0..number(56, 2)).map(|n| number(32, 8) + n * 56).collect();
    let of_kind = |kind| headers.iter().find(move |&&at| number(at, 4) == kind);
    assert!(of_kind(PT_TLS).is_none(), "thread-local storage");
    assert!(of_kind(PT_INTERP).is_none(), "an interpreter");
    let dynamic = number(of_kind(PT_DYNAMIC).expect("a dynamic section") + 8, 8);
    let tags = (0..).map(|n| (number(dynamic + n * 16, 8), number(dynamic + n * 16 + 8, 8)));
    let tags: Vec<(u64, u64)> = tags.take_while(|(tag, _)| *tag != 0).collect();
    let value = |wanted| {
        tags.iter()
            .find(|(tag, _)| *tag == wanted)
            .map(|(_, at)| *at)
    };
    assert_eq!(value(DT_NEEDED), None, "a library that must be loaded");
    assert_eq!(value(DT_VERNEED), None, "a version of another library");
    // The first segment's addresses are offsets in the file.
    let [symbols, strings, hash] =
        [DT_SYMTAB, DT_STRTAB, DT_HASH].map(|tag| value(tag).expect("there"));
    for index in 1..number(hash + 4, 4) {
        let symbol = symbols + index * 24;
        let name = &bytes[(strings + number(symbol, 4)) as usize..];
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        assert_ne!(number(symbol + 6, 2), 0, "{name} is another library's");
        let is_hidden = ["mem", "bcmp", "strlen", "rust_", "_Unwind"];
        assert!(
            !is_hidden.iter().any(|start| name.starts_with(start)),
            "{name} is exported"
        );
    }
}

/// A thread may have 16 KiB of stack, and a handler of signals less. A function that needs more
/// than a page takes a piece of memory (`sockets::memory::pieces`).
#[test]
fn no_call_takes_more_than_a_page_of_stack() {
    /// Functions that run when a program starts or loads a library of Go, or on the stack of a
    /// helper.
    const AT_START: [&str; 4] = [
        "toehold::constructor::run",
        "toehold::patched::within::patch_code",
        "toehold_patcher::patching::Stubs::write",
        "toehold_sites::rewrite::Rewrite::of",
    ];
    const FRAME_BYTES_MAX: u64 = 4096;
    let Some([objdump]) = host::require(["objdump"]) else {
        return;
    };
    let mut command = Command::new(objdump);
    let options = ["--disassemble", "--demangle", "--no-show-raw-insn"];
    let output = command.args(options).arg(library()).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |text: &str, before: &str, behind: &str| {
        let (_, text) = text.split_once(before)?;
        u64::from_str_radix(text.split_once(behind)?.0, 16).ok()
    };
    let (mut name, mut bytes) = ("", 0);
    let (mut functions, mut large) = (0, Vec::new());
    for line in text.lines() {
        if let Some((_, begin)) = line.split_once(" <")
            && line.ends_with(">:")
        {
            (name, bytes) = (begin, 0);
            functions += 1;
        }
        // The code touches a large frame page by page: in a loop, up to the address in r11.
        let taken =
            number(line, "sub    $0x", ",%rsp").or(number(line, "lea    -0x", "(%rsp),%r11"));
        bytes += taken.unwrap_or(0);
        let may_be_large = AT_START.iter().any(|start| name.starts_with(start));
        if taken.is_some() && bytes > FRAME_BYTES_MAX && !may_be_large {
            large.push(format!("{bytes} bytes: {name}"));
        }
    }
    assert!(functions > 100, "{functions}: objdump has understood it");
    assert!(large.is_empty(), "{large:#?}");
}

const MATRIX: &str = include_str!("freestanding/matrix.c");
const DOOR: &str = include_str!("freestanding/door.c");

fn compile(toehold: &Toehold, compiler: &PathBuf, text: &str, options: &[&str]) -> PathBuf {
    let (source, program) = (toehold.dir().join("p.c"), toehold.dir().join("p"));
    std::fs::write(&source, text).expect("scratch");
    let mut command = Command::new(compiler);
    command.args(options).arg("-o").arg(&program).arg(&source);
    assert!(
        command.status().is_ok_and(|status| status.success()),
        "{command:?}"
    );
    program
}

const ALL: &str = "start\nsockets shared\nthreads\nfork\ndlopen\nsignals\nexec\n";

/// The output of a program that uses everything, under Toehold.
fn matrix_of(compiler: &str, options: &[&str]) -> Option<String> {
    let [compiler] = host::require([compiler])?;
    let toehold = Toehold::start();
    let program = compile(&toehold, &compiler, MATRIX, options);
    let command = toehold.command(Path::Direct, &program);
    Some(Running::start(command, "matrix", toehold.dir()).success(TIME_LIMIT))
}

#[test]
fn a_program_of_glibc_is_accelerated() {
    if let Some(said) = matrix_of("cc", &["-pthread"]) {
        assert_eq!(said, ALL);
    }
}

#[test]
fn a_program_of_musl_is_accelerated() {
    if let Some(said) = matrix_of("musl-gcc", &["-pthread"]) {
        assert_eq!(said, ALL);
    }
}

/// The kernel then takes the loader for the program, and musl does not correct that.
#[test]
fn a_program_that_its_loader_starts_is_accelerated() {
    for (compiler, loader) in [
        ("cc", "/lib64/ld-linux-x86-64.so.2"),
        ("musl-gcc", "/lib/ld-musl-x86_64.so.1"),
    ] {
        let Some([compiler]) = host::require([compiler]) else {
            continue;
        };
        let toehold = Toehold::start();
        let program = compile(&toehold, &compiler, MATRIX, &["-pthread"]);
        let mut command = toehold.patched(loader);
        command.arg(program);
        let said = Running::start(command, "matrix", toehold.dir()).success(TIME_LIMIT);
        assert_eq!(said, ALL, "{loader}");
    }
}

/// The door by number, in a process without a dynamic linker and without glibc.
#[test]
fn a_static_program_that_enters_by_number_is_accelerated() {
    let Some([compiler]) = host::require(["musl-gcc"]) else {
        return;
    };
    let toehold = Toehold::start();
    let program = compile(&toehold, &compiler, DOOR, &["-static"]);
    let mut command = Command::new(program);
    command.arg(library()).env("TOEHOLD_PATH", "direct");
    command.env("TOEHOLD_RUNTIME_DIR", toehold.runtime());
    let said = Running::start(command, "door", toehold.dir()).success(TIME_LIMIT);
    let expected = "entered: 1\nsockets shared\nfork\nanswered some: 1, passed some: 1\n";
    assert_eq!(said, expected);
}

/// The words of `toehold doctor --preload-check` about a system, and whether the library does no
/// harm.
fn preload_check(toehold: &Toehold, place: &str) -> (String, bool) {
    let mut command = toehold.asking(&["doctor", "--preload-check", place]);
    let output = command
        .env("TOEHOLD_LIB", library())
        .output()
        .expect("the command runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (said, output.status.success())
}

#[test]
fn systems_are_tried_before_the_library_is_preloaded_there() {
    let Some([compiler]) = host::require(["musl-gcc"]) else {
        return;
    };
    let toehold = Toehold::start();
    let (said, is_harmless) = preload_check(&toehold, "/");
    assert!(
        is_harmless && said.contains("runs with the library as"),
        "{said}"
    );
    let (said, is_harmless) = preload_check(&toehold, &std::process::id().to_string());
    assert!(
        is_harmless && said.contains("loads with the library as"),
        "{said}"
    );
    // A system with musl that contains only its libc and one program.
    let image = toehold.dir().join("image");
    for directory in ["bin", "lib"] {
        std::fs::create_dir_all(image.join(directory)).expect("scratch");
    }
    let nothing = "int main(void) { return 0; }\n";
    let program = compile(&toehold, &compiler, nothing, &[]);
    std::fs::copy(program, image.join("bin/true")).expect("scratch");
    let libc = "lib/ld-musl-x86_64.so.1";
    std::fs::copy(FilePath::new("/").join(libc), image.join(libc)).expect("musl is installed");
    let (said, is_harmless) = preload_check(&toehold, &image.to_string_lossy());
    assert!(
        is_harmless && said.contains("runs with the library as"),
        "{said}"
    );
    assert!(said.contains(libc), "{said}");
}
