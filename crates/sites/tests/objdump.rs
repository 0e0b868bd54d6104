//! Compares the decoder and the plans with objdump, for compiled programs.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_sites::elf::{Image, Segment};
use toehold_sites::plan::{Kind, Obstacle, Patch};
use toehold_sites::stub::{Addresses, STUB_BYTES_MAX, overwrites, stub};

/// The addresses of all instructions according to objdump, and whether each is a system call.
fn objdump(program: &Path) -> BTreeMap<u64, bool> {
    let mut command = Command::new("objdump");
    command.args(["--disassemble", "--wide", "--no-show-raw-insn"]);
    let output = command.arg(program).output().expect("objdump runs");
    assert!(output.status.success(), "{}", program.display());
    let text = String::from_utf8_lossy(&output.stdout);
    let instruction = |line: &str| {
        let (address, rest) = line.strip_prefix(' ')?.split_once(":\t")?;
        let address = u64::from_str_radix(address.trim(), 16).ok()?;
        Some((address, rest.trim() == "syscall"))
    };
    text.lines().filter_map(instruction).collect()
}

struct Found {
    instructions: usize,
    /// Instructions that only objdump or only the sweep has.
    differences: Vec<u64>,
    sites: Vec<Result<Patch, Obstacle>>,
    /// Sites that only objdump or only the sweep has.
    site_differences: Vec<u64>,
}

/// The plans of a segment's sites, without a full sweep.
fn searched(image: &Image<'_>, segment: Segment, code: &[u8]) -> Vec<Result<Patch, Obstacle>> {
    support::with_code(code, |swept| {
        let mut sites = Vec::new();
        for part in image.parts(segment) {
            swept.search(part, |site| sites.push(site));
        }
        swept.search_branches(&sites);
        support::plans(swept, &sites)
    })
}

fn compare(program: &Path) -> Found {
    let bytes = fs::read(program).expect("readable");
    let image = Image::parse(&bytes).expect("an ELF file");
    let expected = objdump(program);
    let mut found = Found {
        instructions: expected.len(),
        differences: Vec::new(),
        sites: Vec::new(),
        site_differences: Vec::new(),
    };
    for segment in image.segments().filter(Segment::is_code) {
        let code = image
            .range(segment.offset, segment.file_bytes)
            .expect("whole");
        let results = support::with_code(code, |swept| {
            let mut sites = Vec::new();
            for part in image.parts(segment) {
                swept.sweep(part, |site| sites.push(site));
            }
            for at in 0..code.len() {
                let address = segment.address + at as u64;
                if swept.at(at).is_some() != expected.contains_key(&address) {
                    found.differences.push(address);
                }
                let is_site = sites.binary_search(&at).is_ok();
                if is_site != (expected.get(&address) == Some(&true)) {
                    found.site_differences.push(address);
                }
            }
            support::plans(swept, &sites)
        });
        assert_eq!(results, searched(&image, segment, code));
        let planned: Vec<Patch> = results.iter().flatten().copied().collect();
        check_bytes(code, segment.address, &planned);
        found.sites.extend(results);
    }
    found
}

/// Checks that every patch can be written, changes only its ranges, and leaves whole instructions.
fn check_bytes(code: &[u8], address: u64, planned: &[Patch]) {
    for (n, patch) in planned.iter().enumerate() {
        let addresses = Addresses {
            code: address,
            stub: address + (64 << 20) + n as u64 * 128,
            table: address + (65 << 20),
            entry: 0x7fff_0000_0000,
        };
        let mut bytes = [0; STUB_BYTES_MAX];
        stub(patch, code, &addresses, &mut bytes).expect("within reach");
        for overwrite in overwrites(patch, &addresses)
            .expect("within reach")
            .iter()
            .flatten()
        {
            let range = overwrite.at..overwrite.at + overwrite.bytes().len();
            assert!(patch.places().contains(&range), "{patch:?}");
        }
    }
}

/// Reports and checks: the instructions of compiled code and the sites must not differ.
fn check(name: &str, program: &Path) -> Found {
    let found = compare(program);
    let count = |of: fn(&Kind) -> bool| {
        let patches = found.sites.iter().flatten();
        patches.filter(|patch| of(&patch.kind)).count()
    };
    println!(
        "{name}: {} instructions, {} differences; {} sites: {} before, {} after, {} hops, {} not",
        found.instructions,
        found.differences.len(),
        found.sites.len(),
        count(|kind| matches!(kind, Kind::Before { .. })),
        count(|kind| matches!(kind, Kind::After { .. })),
        count(|kind| matches!(kind, Kind::Hop { .. })),
        found.sites.iter().filter(|site| site.is_err()).count(),
    );
    assert!(found.instructions > 1000, "{name}: objdump shows code");
    assert_eq!(found.site_differences, [], "{name}: sites");
    found
}

fn unpatched(found: &Found) -> Vec<Obstacle> {
    let errors = found.sites.iter().filter_map(|site| site.err());
    errors
        .filter(|obstacle| *obstacle != Obstacle::SignalReturn)
        .collect()
}

fn compile(compiler: &str, directory: &Path) -> PathBuf {
    let source = directory.join("program.c");
    let program = directory.join(compiler);
    let text = "#include <netdb.h>\n#include <stdio.h>\n\
                int main(void) { return printf(\"%p\", gethostbyname(\"localhost\")) < 0; }\n";
    fs::write(&source, text).expect("written");
    let mut command = Command::new(compiler);
    command.args(["-static", "-O2", "-w", "-Wl,--no-warnings", "-o"]);
    let status = command.arg(&program).arg(&source).status();
    assert!(status.expect("the compiler runs").success(), "{compiler}");
    program
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        eprintln!("SKIPPED: {program} is not installed: scripts/deps.sh test");
    }
    found
}

#[test]
fn in_a_static_program_of_glibc_the_sweep_agrees_with_objdump() {
    let directory = tempfile::tempdir().expect("scratch");
    if !has("objdump") || !has("cc") {
        return;
    }
    let found = check("glibc", &compile("cc", directory.path()));
    assert_eq!(found.differences, []);
    assert!(found.sites.len() > 100);
    assert!(unpatched(&found).len() <= 2, "{:?}", unpatched(&found));
}

#[test]
fn in_a_static_program_of_musl_the_sweep_agrees_with_objdump() {
    let directory = tempfile::tempdir().expect("scratch");
    if !has("objdump") || !has("musl-gcc") {
        return;
    }
    let found = check("musl", &compile("musl-gcc", directory.path()));
    assert_eq!(found.differences, []);
    assert!(found.sites.len() > 20);
    assert!(unpatched(&found).len() <= 2, "{:?}", unpatched(&found));
}

#[test]
fn in_a_program_of_go_every_site_but_the_return_from_a_signal_is_patched() {
    if !has("objdump") || !has("go") {
        return;
    }
    let output = Command::new("go")
        .args(["env", "GOROOT"])
        .output()
        .expect("go runs");
    let root = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    // An existing program, because compiling one takes long.
    let program = Path::new(&root).join("bin/gofmt");
    let found = check("Go", &program);
    assert_eq!(found.differences, []);
    assert!(found.sites.len() > 20);
    assert_eq!(unpatched(&found), []);
}
