//! Libraries that make their system calls themselves, in C programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::patched::{Waiting, compile_as};
use toehold_e2e::process::OutputInTime;
use toehold_e2e::{Toehold, host};

use crate::unpatched::{said_by_status, without};

/// Each way to load the library so that it is patched, with the number of ends of connections from
/// C to C.
const WAYS: [(&str, usize); 3] = [("LINKED", 0), ("OPENED", 0), ("LATE", 2)];
/// The copies that the program opens before the library, if it opens any.
const COPIES: usize = 20;

/// The library.
fn library(directory: &Path) -> PathBuf {
    let options = ["CGO_ENABLED=1", "go", "build", "-buildmode=c-shared"];
    compile_as("library.so", directory, "env", &options, "library.go")
}

/// A program that loads the library in one of the [`WAYS`].
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
        // The library must come before the source that needs it.
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

/// More than the number of places that the preload library once had.
#[test]
fn a_library_of_go_goes_through_shared_memory_beside_many_others() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let library = library(directory.path());
    for n in 0..COPIES {
        let copy = format!("{}.{n}", library.display());
        fs::copy(&library, copy).expect("room");
    }
    let program = program(&format!("COPIES={COPIES}"), &library);
    let toehold = Toehold::start();
    let patched = Waiting::start(&mut toehold.patched(&program));
    let connections = toehold.connections();
    let direct = connections.iter().filter(|one| one.is_direct()).count();
    assert_eq!(patched.end(), ("0 wrong\n".into(), String::new()));
    assert!(direct > 0, "{connections:?}");
}

/// Its threads do not start in the preload library's function.
#[test]
fn a_library_of_go_that_is_bound_past_the_preload_library_stays_on_the_kernel_and_status_says_why()
{
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let library = library(directory.path());
    for way in ["DEEP", "APART"] {
        let program = program(way, &library);
        let plain = Waiting::start(&mut Command::new(&program)).end();
        let toehold = Toehold::start();
        let patched = Waiting::start(&mut toehold.patched(&program));
        assert_eq!(
            said_by_status(&toehold, &patched),
            "library library.so makes system calls past libc, which are not patched: the program \
             has opened it with RTLD_DEEPBIND or by dlmopen; the connections that it makes by them \
             run on kernel TCP",
            "{way}"
        );
        // C's end of each connection with Go has this reason, too.
        let connections = toehold.connections();
        assert!(!connections.is_empty(), "{way}");
        for one in &connections {
            assert_eq!(
                one.value["reason"],
                "the other end's program is under Toehold, and its library does not see that \
                 connection",
                "{way}: {one:?}"
            );
        }
        assert_eq!(patched.end(), plain, "{way}");
    }
}

#[test]
fn status_says_that_calls_of_go_are_not_to_be_patched() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let library = library(directory.path());
    let opens = program("OPENED", &library);
    let options = ["CGO_ENABLED=0", "go", "build", "-buildmode=pie"];
    let whole = compile_as("pie", directory.path(), "env", &options, "storm.go");
    for (program, named) in [(opens, "library library.so"), (whole, "program pie")] {
        let toehold = Toehold::start();
        let unpatched = Waiting::start(&mut toehold.unpatched(&program));
        let told = said_by_status(&toehold, &unpatched);
        let expected = "makes system calls past libc, which are not patched: --patch-calls is off;";
        assert!(told.starts_with(&format!("{named} {expected}")), "{told}");
        unpatched.end();
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
        // The library does not see Go's side, so no connection with Go is in shared memory.
        let connections = toehold.connections();
        let direct = connections.iter().filter(|one| one.is_direct()).count();
        assert!(direct <= 2, "{connections:?}");
        let (line, said) = patched.end();
        assert_eq!(line, plain.0);
        // The user is told before the program begins, and not while it runs.
        match way {
            "LINKED" => assert!(said.starts_with(&format!("toehold: {told}; ")), "{said}"),
            _ => assert_eq!(said, ""),
        }
    }
}

/// Stands for a library of Rust that uses rustix, or a library with a static libc.
#[test]
fn another_library_whose_calls_go_past_libc_stays_on_the_kernel_and_status_says_why() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["-O2", "-w", "-shared", "-fPIC", "-DLIBRARY"];
    let library = compile_as("libpast.so", directory.path(), "cc", &options, "past.c");
    let (path, place) = (library.display(), directory.path().display());
    // The kernel has no byte counts for a Unix socket.
    for (family, reason) in [
        ("AF_INET", "bytes moved that the library did not see"),
        ("AF_UNIX", "too little traffic that the library sees"),
    ] {
        let options = [
            "-O2".to_owned(),
            "-w".to_owned(),
            format!("-DFAMILY={family}"),
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
        assert_eq!(connections.len(), 2, "{connections:?}");
        for one in &connections {
            assert_eq!(one.value["reason"], reason, "{one:?}");
        }
        // The reason is given for a connection that the library has not seen.
        let explained = toehold
            .asking(&["explain", "program", ":1"])
            .output_in_time();
        let explained = String::from_utf8(explained.expect("it runs").stderr).expect("text");
        assert!(explained.contains(&told), "{explained}");
        assert_eq!(patched.end(), plain);
    }
}
