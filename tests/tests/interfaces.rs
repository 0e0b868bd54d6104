//! Compares the list of all calls that can touch a descriptor with this machine's libc and kernel.
//!
//! `crates/preload/interfaces.txt` lists every function that libc exports and every system call, in
//! groups. This test fails for a name that is in no group or in the wrong one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The effect that a function can have on a connection that is not wholly in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// The library replaces the function.
    Hooked,
    /// The library replaces the function, and moves the connection to the kernel.
    Pins,
    /// The function has no effect.
    Harmless,
    /// The function can touch a descriptor, but the library does not see the call.
    Limit,
}

impl Class {
    fn is_in_front(self) -> bool {
        matches!(self, Class::Hooked | Class::Pins)
    }
}

type Table = BTreeMap<String, Class>;

const LIST: &str = include_str!("../../crates/preload/interfaces.txt");
const BY_NUMBER: &str = include_str!("../../crates/preload/src/by_number.rs");

/// The groups of one kind, `functions` or `calls`.
fn table(kind: &str) -> Table {
    let mut table = Table::new();
    let mut class = None;
    for line in LIST.lines().filter(|line| !line.starts_with('#')) {
        if let Some(heading) = line.strip_prefix('[') {
            let heading = heading.trim_end_matches(']');
            let (of, rest) = heading.split_once(' ').expect("a kind and a class");
            let word = rest.split(':').next().expect("a class");
            let named = match word {
                "hooked" => Class::Hooked,
                "pins" => Class::Pins,
                "harmless" => Class::Harmless,
                "limit" => Class::Limit,
                other => panic!("{other} is no class"),
            };
            class = (of == kind).then_some(named);
            continue;
        }
        let Some(class) = class else { continue };
        for name in line.split_whitespace() {
            let before = table.insert(name.to_owned(), class);
            assert_eq!(before, None, "{name} stands in two groups");
        }
    }
    table
}

/// Names that `path` defines for others: its dynamic symbols, less libc's private ones.
fn exports(path: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let number = |at: usize, len: usize| -> usize {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&bytes[at..at + len]);
        usize::try_from(u64::from_le_bytes(word)).expect("64 bits")
    };
    // The section headers of an ELF file (elf(5)): offset, link, size.
    const SHT_DYNSYM: usize = 11;
    const SHT_GNU_VERDEF: usize = 0x6fff_fffd;
    const SHT_GNU_VERSYM: usize = 0x6fff_ffff;
    let (table, step, count) = (number(40, 8), number(58, 2), number(60, 2));
    let section = |index: usize| {
        let at = table + index * step;
        (number(at + 24, 8), number(at + 32, 8), number(at + 40, 4))
    };
    let find = |kind| (0..count).find(|index| number(table + index * step + 4, 4) == kind);
    let text = |at: usize| {
        let end = bytes[at..].iter().position(|&byte| byte == 0);
        String::from_utf8_lossy(&bytes[at..at + end.expect("a string")]).into_owned()
    };
    let mut private = None;
    if let Some(versions) = find(SHT_GNU_VERDEF) {
        let (mut at, _, strings) = section(versions);
        let strings = section(strings).0;
        loop {
            let name = text(strings + number(at + number(at + 12, 4), 4));
            if name == "GLIBC_PRIVATE" {
                private = Some(number(at + 4, 2));
            }
            match number(at + 16, 4) {
                0 => break,
                next => at += next,
            }
        }
    }
    let versions = find(SHT_GNU_VERSYM).map(|index| section(index).0);
    let (symbols, len, strings) = section(find(SHT_DYNSYM).expect("dynamic symbols"));
    let strings = section(strings).0;
    let mut names = BTreeSet::new();
    for index in 0..len / 24 {
        let at = symbols + index * 24;
        let (is_defined, is_absolute) = (number(at + 6, 2) != 0, number(at + 6, 2) == 0xfff1);
        let version = versions.map(|versions| number(versions + index * 2, 2) & 0x7fff);
        if is_defined && !is_absolute && (private.is_none() || version != private) {
            names.insert(text(strings + number(at, 4)));
        }
    }
    names
}

fn libc_file() -> std::path::PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    let path = maps.lines().find_map(|line| {
        let path = line.split_whitespace().nth(5)?;
        path.ends_with("/libc.so.6").then(|| path.into())
    });
    path.expect("this test is linked with glibc")
}

/// System calls of this machine, as `asm/unistd_64.h` numbers them.
fn calls() -> BTreeSet<String> {
    const HEADERS: [&str; 2] = [
        "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "/usr/include/asm/unistd_64.h",
    ];
    let text = HEADERS
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let text = text.expect("the kernel's headers are installed (linux-libc-dev)");
    let names = text.lines().filter_map(|line| {
        let name = line.strip_prefix("#define __NR_")?;
        Some(name.split_whitespace().next()?.to_owned())
    });
    names.collect()
}

/// Reports every name that is expected and missing.
fn all_in(names: impl Iterator<Item = String>, what: &str) {
    let names: Vec<String> = names.collect();
    assert!(names.is_empty(), "{what}: {}", names.join(" "));
}

#[test]
fn every_function_of_libc_is_classified() {
    let table = table("functions");
    let unknown = exports(&libc_file()).into_iter();
    all_in(
        unknown.filter(|name| !table.contains_key(name)),
        "functions of libc that crates/preload/interfaces.txt does not name",
    );
}

#[test]
fn what_the_library_defines_and_what_the_list_says_agree() {
    let table = table("functions");
    let ours = exports(&toehold_e2e::toehold::library());
    let hooked = table.iter().filter(|(_, class)| class.is_in_front());
    all_in(
        hooked
            .map(|(name, _)| name.clone())
            .filter(|name| !ours.contains(name)),
        "the library should define these",
    );
    let theirs = exports(&libc_file());
    let others = ours.into_iter().filter(|name| theirs.contains(name));
    all_in(
        others.filter(|name| !table.get(name).is_some_and(|class| class.is_in_front())),
        "the library defines these, and the list does not say so",
    );
}

#[test]
fn every_system_call_is_classified() {
    let table = table("calls");
    all_in(
        calls().into_iter().filter(|name| !table.contains_key(name)),
        "system calls that crates/preload/interfaces.txt does not name",
    );
}

#[test]
fn calls_by_number_and_what_the_list_says_agree() {
    let handled = |name: &str| {
        let arm = format!("libc::SYS_{name}");
        BY_NUMBER.lines().any(|line| {
            let rest = line.trim_start().strip_prefix(&arm);
            // The whole name; its condition may be on this line or on the next.
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        })
    };
    for (name, class) in table("calls") {
        assert_eq!(
            handled(&name),
            class.is_in_front(),
            "{name} is {class:?} in crates/preload/interfaces.txt"
        );
    }
}
