//! The mappings of other processes, by `/proc/PID/maps` and `smaps`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

use super::TABLE_NAME;
use crate::tables::FileKey;

/// The mappings of a process.
#[derive(Clone, Debug)]
pub(crate) struct Mappings(String);

impl Mappings {
    /// `None` when we may not look, or the process has no memory any more.
    pub(crate) fn of(pid: u32) -> Option<Mappings> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        (!maps.is_empty()).then_some(Mappings(maps))
    }

    /// Whether the process has mapped a family's table of any adapter.
    pub(crate) fn have_table(&self) -> bool {
        self.0.contains(TABLE_NAME)
    }

    /// Whether the process has mapped a file.
    pub(crate) fn have(&self, file: FileKey) -> bool {
        self.0.lines().any(|line| parse_mapping(line) == Some(file))
    }

    /// Whether the process has the library.
    pub(crate) fn have_library(&self) -> bool {
        self.0.contains("/libtoehold.so") || self.have_table()
    }

    /// Whether the process executes the library. An adapter has tables but does not execute the
    /// library.
    pub(crate) fn execute_library(&self) -> bool {
        let mut executed = self.executed();
        executed.any(|(_, path)| path.contains("/libtoehold.so"))
    }

    /// The files that the process has mapped to execute them, with their paths as it sees them.
    pub(crate) fn executed(&self) -> impl Iterator<Item = (FileKey, &str)> {
        self.0.lines().filter_map(|line| {
            let access = line.split_ascii_whitespace().nth(1)?;
            let path = &line[line.find('/')?..];
            let file = parse_mapping(line)?;
            access.contains('x').then_some((file, path))
        })
    }

    /// The begin and the end of each executable mapping without a file's name.
    pub(crate) fn unnamed_code(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let is_code = fields.next()?.contains('x');
            let name = fields.nth(3);
            // Code may be unpacked into a memory file (`memfd`).
            let is_unnamed = name.is_none_or(|name| name.starts_with("/memfd:"));
            let Range { start, end } = parse_addresses(line)?;
            (is_code && is_unnamed).then_some((start, end))
        })
    }

    /// Whether an address is in the library's code.
    pub(crate) fn is_in_library(&self, address: u64) -> bool {
        let mut lines = self.0.lines();
        lines.any(|line| {
            line.contains("/libtoehold.so")
                && parse_addresses(line).is_some_and(|range| range.contains(&address))
        })
    }

    /// The reason why the library has not patched the process's system calls. The library publishes
    /// the reason as the name of a mapping.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let mut lines = self.0.lines();
        let name = lines.find_map(|line| Some(line.split_once(REFUSAL_NAME)?.1))?;
        Some(name.strip_suffix(" (deleted)").unwrap_or(name))
    }
}

/// The beginning of the name of the mapping that tells why a program is not patched
/// (`toehold_preload::patched::refusal`).
const REFUSAL_NAME: &str = "/memfd:toehold-unpatched:";

/// Whether a process has a file mapped, by the first [`MAPPINGS_BYTES_MAX`] bytes of its list of
/// mappings.
pub(crate) fn has_mapped(pid: u32, file: FileKey) -> bool {
    has_mapped_within(pid, file, &mut { MAPPINGS_BYTES_MAX })
}

/// Whether a process has a file mapped, by the first `bytes_left` bytes of its list of mappings.
/// The bytes read are subtracted. The bound is needed because a process may have 65,530 mappings
/// with names of 4,096 bytes.
pub(crate) fn has_mapped_within(pid: u32, file: FileKey, bytes_left: &mut u64) -> bool {
    let Ok(maps) = fs::File::open(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let mut maps = BufReader::new(maps.take(*bytes_left));
    let mut line = Vec::new();
    while let Ok(1..) = maps.read_until(b'\n', &mut line) {
        *bytes_left -= line.len() as u64;
        if std::str::from_utf8(&line).is_ok_and(|line| parse_mapping(line) == Some(file)) {
            return true;
        }
        line.clear();
    }
    false
}

/// Whether a process has written into the code of a file that it executes, as patches do: such
/// pages no longer belong to the file. True if unknown.
pub(crate) fn has_written(pid: u32, file: FileKey) -> bool {
    let Ok(maps) = fs::File::open(format!("/proc/{pid}/smaps")) else {
        return true;
    };
    let maps = BufReader::new(maps.take(DETAILS_BYTES_MAX));
    is_written(maps.lines().map_while(Result::ok), file)
}

/// [`has_written`], by the lines of `/proc/PID/smaps`: each mapping as in `/proc/PID/maps`, and
/// then its properties.
fn is_written(lines: impl Iterator<Item = String>, file: FileKey) -> bool {
    let (mut is_its_code, mut is_listed) = (false, false);
    for line in lines {
        let mut fields = line.split_ascii_whitespace();
        match (fields.next(), fields.next()) {
            (Some("Anonymous:" | "Swap:"), Some(kilobytes)) if is_its_code && kilobytes != "0" => {
                return true;
            }
            (Some(name), Some(access)) if !name.ends_with(':') => {
                is_its_code = access.contains('x') && parse_mapping(&line) == Some(file);
                is_listed |= is_its_code;
            }
            _ => {}
        }
    }
    !is_listed
}

/// The most bytes read of the mappings of one process with their properties: some 10,000 mappings.
const DETAILS_BYTES_MAX: u64 = 8 << 20;
/// The most bytes read of the mappings of one process: some 80,000 mappings.
const MAPPINGS_BYTES_MAX: u64 = 8 << 20;

/// The begin and the end of the mapping in one line of `/proc/PID/maps`.
fn parse_addresses(line: &str) -> Option<Range<u64>> {
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some(address(from)?..address(to)?)
}

/// The file of one line of `/proc/PID/maps`: `from-to access offset major:minor inode path`.
fn parse_mapping(line: &str) -> Option<FileKey> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let major = u32::from_str_radix(major, 16).ok()?;
    let minor = u32::from_str_radix(minor, 16).ok()?;
    Some(FileKey {
        device: libc::makedev(major, minor),
        inode: fields.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_reason_why_a_program_is_not_patched_is_read_from_its_mappings() {
        let of = |name: &str| Mappings(format!("1-2 r-xp 00000000 fd:01 7 /bin/true\n{name}\n"));
        let named = of("3-4 ---p 00000000 00:01 9 /memfd:toehold-unpatched:it: is so (deleted)");
        assert_eq!(named.refusal(), Some("it: is so"));
        assert_eq!(of("5-6 rw-p 00000000 00:00 0").refusal(), None);
    }

    #[test]
    fn code_without_a_name_is_found() {
        let maps = Mappings(
            "1000-2000 r-xp 00000000 00:00 0 \n2000-3000 r-xp 00000000 fd:01 7 /bin/true\n\
             3000-4000 rw-p 00000000 00:00 0 \n4000-5000 r-xp 00000000 00:00 0    [vdso]\n\
             5000-6000 r-xp 00000000 00:01 9 /memfd:upx (deleted)\n"
                .into(),
        );
        let found: Vec<_> = maps.unnamed_code().collect();
        assert_eq!(found, [(0x1000, 0x2000), (0x5000, 0x6000)]);
    }

    #[test]
    fn code_is_written_where_pages_are_no_longer_the_files() {
        let file = FileKey {
            device: libc::makedev(0xfd, 1),
            inode: 7,
        };
        let of = |anonymous: u32, swapped: u32| {
            let text = format!(
                "1-2 rw-p 00000000 fd:01 7 /a/b c.so\nAnonymous:        8 kB\nSwap: 4 kB\n\
                 2-3 r-xp 00000000 fd:01 7 /a/b c.so\nSize: 4 kB\nAnonymous: {anonymous} kB\n\
                 Swap: {swapped} kB\nVmFlags: rd ex mr mw me\n\
                 4-5 r-xp 00000000 fd:01 8 /a/other.so\nAnonymous: 8 kB\nSwap: 0 kB\n"
            );
            is_written(text.lines().map(str::to_owned), file)
        };
        assert!(!of(0, 0));
        assert!(of(4, 0) && of(0, 4));
        let nothing = is_written(std::iter::empty(), file);
        assert!(nothing, "nothing is known");
        let own = fs::metadata("/proc/self/exe").expect("ours");
        let own = FileKey {
            device: own.dev(),
            inode: own.ino(),
        };
        assert!(!has_written(std::process::id(), own));
        assert!(has_written(u32::MAX, own), "nothing is known");
    }

    #[test]
    fn a_process_with_a_table_does_not_execute_the_library() {
        let of = |line: &str| Mappings(format!("1-2 r-xp 00000000 fd:01 7 /bin/true\n{line}\n"));
        let adapter = of("3-4 rw-s 00000000 00:01 9 /memfd:toehold-table (deleted)");
        assert!(adapter.have_library() && !adapter.execute_library());
        assert!(!of("3-4 r--p 00000000 fd:01 8 /opt/a b/libtoehold.so").execute_library());
        let program = of("3-4 r-xp 00000000 fd:01 8 /opt/a b/libtoehold.so (deleted)");
        assert!(program.execute_library());
    }

    #[test]
    fn a_mapped_file_is_found_by_device_and_inode() {
        let own_pid = std::process::id();
        let program = fs::metadata("/proc/self/exe").expect("own program");
        let file = FileKey {
            device: program.dev(),
            inode: program.ino(),
        };
        assert!(has_mapped(own_pid, file));
        let other = FileKey {
            inode: u64::MAX,
            ..file
        };
        assert!(!has_mapped(own_pid, other));
        assert!(!has_mapped(0, file));
        // No more than the bound is read.
        let mut bytes_left = 1000;
        assert!(!has_mapped_within(own_pid, other, &mut bytes_left));
        assert_eq!(bytes_left, 0);
        assert!(!has_mapped_within(own_pid, file, &mut bytes_left));
    }
}
