//! Compiles the DPDK shim, and nothing at all unless the `dmadev` feature asks for it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SHIM}");
    if env::var_os("CARGO_FEATURE_DMADEV").is_some() {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        build_shim(&out);
    }
}

fn build_shim(out: &Path) {
    let flags = pkg_config("--cflags");
    let object = out.join("shim.o");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    run(Command::new(compiler)
        .args(["-O2", "-fPIC", "-Wall", "-c", SHIM, "-o"])
        .arg(&object)
        .args(flags.split_whitespace()));
    let archive = out.join("libtoehold_dmadev.a");
    let archiver = env::var("AR").unwrap_or_else(|_| "ar".to_owned());
    run(Command::new(archiver).arg("crs").arg(&archive).arg(&object));
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=toehold_dmadev");
    for word in pkg_config("--libs-only-L").split_whitespace() {
        println!(
            "cargo::rustc-link-search=native={}",
            word.trim_start_matches("-L")
        );
    }
    // The drivers are plug-ins, which DPDK loads itself.
    println!("cargo::rustc-link-lib=dylib=rte_dmadev");
    println!("cargo::rustc-link-lib=dylib=rte_eal");
}

fn pkg_config(question: &str) -> String {
    let answer = Command::new("pkg-config")
        .args([question, "libdpdk"])
        .output();
    match answer {
        Ok(answer) if answer.status.success() => {
            String::from_utf8_lossy(&answer.stdout).into_owned()
        }
        _ => panic!("the feature `dmadev` needs DPDK: install libdpdk-dev and pkg-config"),
    }
}

fn run(command: &mut Command) {
    let status = command.status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{command:?} failed"
    );
}

const SHIM: &str = "src/dmadev/shim.c";
