//! The C header, the library behind it, and the example, built as a C programmer would build them.

use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Builds the static library in a folder of its own and returns the library's path.
fn library(scratch: &Path) -> PathBuf {
    run(Command::new(env!("CARGO"))
        .args([
            "rustc",
            "--quiet",
            "--offline",
            "-p",
            "toehold-copy",
            "--features",
            "capi",
        ])
        .args(["--crate-type", "staticlib", "--target-dir"])
        .arg(scratch)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // A few copies do not pay for optimization.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .env_remove("RUSTFLAGS"));
    scratch.join("debug")
}

#[test]
fn the_example_compiles_in_c_and_runs_on_every_engine() {
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("capi");
    let folder = library(&scratch);
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = scratch.join("copy-example");
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(crate_folder.join("include"))
        .arg(crate_folder.join("examples/copy.c"))
        .arg("-L")
        .arg(&folder)
        .args(["-l:libtoehold_copy.a", "-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program));
    for engine in ["auto", "cpu", "cpu-nt", "worker"] {
        let text = run(Command::new(&program)
            .arg(engine)
            .env("TOEHOLD_COPY_CALIBRATION", "off"));
        assert!(text.starts_with(&format!("{engine}: copied")), "{text}");
        assert!(text.ends_with("crc32c e3069283\n"), "{text}");
    }
    let text = run(Command::new(&program).arg("perpetuum-mobile"));
    assert!(
        text.starts_with("note: there is no copy engine `perpetuum-mobile`"),
        "{text}"
    );
    assert!(text.contains("cpu: copied"), "{text}");
}
