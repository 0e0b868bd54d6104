//! Programs that the library does not fit, started by a program under Toehold.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Path, Toehold, host};

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// The loader of an unknown C library may heed `LD_PRELOAD`, and refuse to start a program with it.
/// Here glibc's own loader stands in for such a loader, under another name. So the program starts
/// in any case, and shows the environment that it was given.
#[test]
fn are_started_without_the_library() {
    let Some([env, sh, python]) = host::require(["env", "sh", "python3"]) else {
        return;
    };
    let toehold = Toehold::start();
    let Some(foreign) = foreign_env(&toehold, &env) else {
        return;
    };
    let foreign = foreign.to_string_lossy();
    let run = |program: &PathBuf, script: &str| {
        let mut command = toehold.command(Path::Direct, program);
        command.args(["-c", script]).env("MARK", "is here");
        Running::start(command, "started", toehold.dir()).success(TIME_LIMIT)
    };
    let spawn =
        format!("import os; os.waitpid(os.posix_spawn('{foreign}', ['env'], os.environ), 0)");
    for said in [
        run(&sh, &foreign),
        run(&sh, &format!("exec {foreign}")),
        run(&python, &spawn),
    ] {
        assert!(said.contains("MARK=is here"), "{said}");
        assert!(!said.contains("LD_PRELOAD"), "{said}");
    }
    let native = run(&sh, &env.to_string_lossy());
    assert!(native.contains("libtoehold.so"), "{native}");
}

/// A program that is linked with AddressSanitizer's shared library ends at once when another
/// library is loaded first.
#[test]
fn sanitized_programs_are_started_without_the_library() {
    let Some([cc, sh]) = host::require(["cc", "sh"]) else {
        return;
    };
    let toehold = Toehold::start();
    let (source, program) = (toehold.dir().join("p.c"), toehold.dir().join("p"));
    let text = "#include <stdio.h>\nint main(void) { puts(\"sanitized\"); return 0; }\n";
    std::fs::write(&source, text).expect("scratch");
    let mut command = std::process::Command::new(cc);
    command.args(["-fsanitize=address", "-shared-libasan", "-o"]);
    if !command
        .arg(&program)
        .arg(&source)
        .status()
        .is_ok_and(|status| status.success())
    {
        // GCC's sanitizer library is shared by default, and GCC knows no such option.
        let mut command = std::process::Command::new("cc");
        command
            .args(["-fsanitize=address", "-o"])
            .arg(&program)
            .arg(&source);
        if !command.status().is_ok_and(|status| status.success()) {
            host::skipped("the C compiler has no AddressSanitizer");
            return;
        }
    }
    let run = |mut command: std::process::Command| {
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        Running::start(command, "sanitized", toehold.dir()).success(TIME_LIMIT)
    };
    let direct = toehold.command(Path::Direct, &program);
    assert!(run(direct).contains("sanitized"));
    let mut by_shell = toehold.command(Path::Direct, &sh);
    by_shell.args(["-c", &program.to_string_lossy()]);
    assert!(run(by_shell).contains("sanitized"));
}

/// A copy of env(1) that asks for another loader.
fn foreign_env(toehold: &Toehold, env: &PathBuf) -> Option<PathBuf> {
    let loader = toehold.dir().join("ld");
    let name = loader.to_string_lossy();
    let mut file = std::fs::read(env).expect("env can be read");
    let at = file
        .windows(LOADER.len())
        .position(|bytes| bytes == LOADER.as_bytes());
    let Some(at) = at.filter(|_| name.len() <= LOADER.len()) else {
        host::skipped(
            "env(1) asks for another loader, or the scratch directory's name is too long",
        );
        return None;
    };
    file[at..at + LOADER.len()].fill(0);
    file[at..at + name.len()].copy_from_slice(name.as_bytes());
    symlink(LOADER, &loader).expect("scratch");
    let foreign = toehold.dir().join("env");
    std::fs::write(&foreign, file).expect("scratch");
    std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).expect("it is ours");
    Some(foreign)
}
