//! Libraries that make their system calls themselves, in programs of C.

use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::patched::{Waiting, compile_as};
use toehold_e2e::{Toehold, host};

use super::{said_by_status, without};

/// Each way to load the library, with how many ends of connections lead from C to C.
const WAYS: [(&str, usize); 3] = [("LINKED", 0), ("OPENED", 0), ("LATE", 2)];

/// The library.
fn library(directory: &Path) -> PathBuf {
    let options = ["CGO_ENABLED=1", "go", "build", "-buildmode=c-shared"];
    compile_as("library.so", directory, "env", &options, "library.go")
}

/// A program that loads it in one of the [`WAYS`].
fn program(way: &str, library: &Path) -> PathBuf {
    let directory = library.parent().expect("a directory");
    let (path, place) = (library.display(), directory.display());
    let mut options = vec![
        "-O2".to_owned(),
        "-w".to_owned(),
        "-pthread".to_owned(),
        format!("-D{way}"),
        format!("-DLIBRARY=\"{path}\""),
    ];
    if way == "LINKED" {
        // The library comes before the source that needs it.
        options.extend([
            format!("-Wl,--no-as-needed,-rpath,{place}"),
            path.to_string(),
        ]);
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    compile_as(way, directory, "cc", &options, "host.c")
}

#[test]
fn a_library_of_go_goes_through_shared_memory() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let library = library(directory.path());
    for (way, by_c) in WAYS {
        let program = program(way, &library);
        let plain = Waiting::start(&mut Command::new(&program)).end();
        assert_eq!(plain.0, "0 wrong\n", "{way}");
        let toehold = Toehold::start();
        let patched = Waiting::start(&mut toehold.patched(&program));
        let connections = toehold.connections();
        let direct = connections.iter().filter(|one| one.is_direct()).count();
        assert_eq!(patched.end(), plain, "{way}");
        assert!(direct > by_c, "{way}: {connections:?}");
    }
}

#[test]
fn a_library_of_go_that_cannot_be_patched_stays_on_the_kernel_and_status_says_why() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let library = library(directory.path());
    for (way, _) in WAYS {
        let program = program(way, &library);
        let plain = Waiting::start(&mut Command::new(&program)).end();
        let toehold = Toehold::start();
        let mut command = toehold.patched(&program);
        let patched = Waiting::start(without(libc::SYS_pwrite64, &mut command));
        let told = said_by_status(&toehold, &patched);
        assert!(
            told.starts_with("library library.so: its system calls cannot be patched: its code"),
            "{told}"
        );
        // Go's side of a connection is not seen, so no connection with it is in shared memory.
        let connections = toehold.connections();
        let direct = connections.iter().filter(|one| one.is_direct()).count();
        assert!(direct <= 2, "{connections:?}");
        let (line, said) = patched.end();
        assert_eq!(line, plain.0);
        // The user is told before the program begins, and not in the midst of it.
        match way {
            "LINKED" => assert!(said.starts_with(&format!("toehold: {told}; ")), "{said}"),
            _ => assert_eq!(said, ""),
        }
    }
}

/// As a library of Rust that makes its calls by rustix, or one that a static libc is linked into.
#[test]
fn another_library_whose_calls_go_past_libc_stays_on_the_kernel_and_status_says_why() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["-O2", "-w", "-shared", "-fPIC", "-DLIBRARY"];
    let library = compile_as("libpast.so", directory.path(), "cc", &options, "past.c");
    let (path, place) = (library.display(), directory.path().display());
    let options = [
        "-O2".to_owned(),
        "-w".to_owned(),
        format!("-Wl,--no-as-needed,-rpath,{place}"),
        path.to_string(),
    ];
    let options = options.each_ref().map(String::as_str);
    let program = compile_as("program", directory.path(), "cc", &options, "past.c");
    let plain = Waiting::start(&mut Command::new(&program)).end();
    let toehold = Toehold::start();
    let patched = Waiting::start(&mut toehold.patched(&program));
    let told = said_by_status(&toehold, &patched);
    assert!(
        told.starts_with("library libpast.so makes socket calls past libc"),
        "{told}"
    );
    let connections = toehold.connections();
    let direct = connections.iter().filter(|one| one.is_direct()).count();
    assert_eq!(direct, 0, "{connections:?}");
    // The reason is told for a connection that the library has not seen.
    let explained = toehold.asking(&["explain", "program", ":1"]).output();
    let explained = String::from_utf8(explained.expect("it runs").stderr).expect("text");
    assert!(explained.contains(&told), "{explained}");
    assert_eq!(patched.end(), plain);
}
