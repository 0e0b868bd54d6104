//! The kernel's information about processes that hang: a hang that occurs once in a thousand runs
//! must be explained by its report.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::mem::size_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The processes of one group: their threads, descriptors and sockets.
pub fn of_group(group: u32) -> String {
    let mut report = String::new();
    for process in numbers_in(Path::new("/proc")) {
        let dir = PathBuf::from(format!("/proc/{process}"));
        if group_of(&dir) == Some(group) {
            report += &of_process(&dir);
        }
    }
    match report.is_empty() {
        true => "nobody of it is left\n".to_owned(),
        false => report,
    }
}

fn of_process(dir: &Path) -> String {
    let name = text(&dir.join("comm"));
    let mut report = format!("  process {} ({})\n", number_of(dir), name.trim());
    let tasks = dir.join("task");
    for task in numbers_in(&tasks) {
        report += &of_thread(dir, &tasks.join(task.to_string()));
    }
    report + &descriptors(dir)
}

fn of_thread(process: &Path, task: &Path) -> String {
    let status = text(&task.join("status"));
    let line_of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or("?").trim().to_owned()
    };
    let call = text(&task.join("syscall"));
    let mut report = format!(
        "    thread {}: {}, in {}, signals {} blocked {}\n      system call {}\n",
        number_of(task),
        line_of("State:"),
        text(&task.join("wchan")),
        line_of("SigPnd:"),
        line_of("SigBlk:"),
        call.trim()
    );
    for event in polled(process, &call) {
        let _ = writeln!(report, "        {event}");
    }
    for frame in text(&task.join("stack")).lines() {
        let _ = writeln!(report, "      {frame}");
    }
    report
}

/// The descriptors that a thread in poll(2) or ppoll(2) waits for.
fn polled(process: &Path, call: &str) -> Vec<String> {
    const FEW: usize = 64;
    let mut words = call.split_whitespace();
    let number: Option<libc::c_long> = words.next().and_then(|number| number.parse().ok());
    let mut argument = || {
        let digits = words.next()?.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    };
    let (Some(libc::SYS_ppoll), Some(at), Some(count)) =
        (poll_number(number), argument(), argument())
    else {
        return Vec::new();
    };
    let Ok(memory) = fs::File::open(process.join("mem")) else {
        return Vec::new();
    };
    let mut bytes = vec![0; size_of::<libc::pollfd>() * FEW.min(count as usize)];
    if memory.read_exact_at(&mut bytes, at).is_err() {
        return Vec::new();
    }
    let half = |bytes: &[u8]| i16::from_ne_bytes([bytes[0], bytes[1]]);
    let entries = bytes.chunks_exact(size_of::<libc::pollfd>());
    entries
        .map(|entry| {
            let fd = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
            format!("descriptor {fd} for {:#x}", half(&entry[4..]))
        })
        .collect()
}

/// `ppoll` for both of its names.
fn poll_number(number: Option<libc::c_long>) -> Option<libc::c_long> {
    #[cfg(target_arch = "x86_64")]
    if number == Some(libc::SYS_poll) {
        return Some(libc::SYS_ppoll);
    }
    number
}

/// A line for each descriptor: its kind, the members of an epoll instance, and the bytes that wait
/// on both sides of a TCP socket.
fn descriptors(dir: &Path) -> String {
    let mut sockets = tcp_sockets(&dir.join("net/tcp"));
    sockets.extend(tcp_sockets(&dir.join("net/tcp6")));
    let mut report = String::new();
    let files = dir.join("fd");
    for number in numbers_in(&files) {
        let Ok(file) = fs::read_link(files.join(number.to_string())) else {
            continue;
        };
        let file = file.to_string_lossy().into_owned();
        let inode = file
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        let state = inode.and_then(|inode| sockets.get(inode));
        let state = state.map_or("", String::as_str);
        let _ = writeln!(report, "    descriptor {number}: {file} {state}");
        let info = text(&dir.join(format!("fdinfo/{number}")));
        for member in info.lines().filter(|line| line.starts_with("tfd:")) {
            let _ = writeln!(report, "      {member}");
        }
    }
    report
}

/// Sockets of proc(5)'s table by inode: addresses, state, and bytes not sent and not read.
fn tcp_sockets(table: &Path) -> BTreeMap<String, String> {
    let table = text(table);
    let lines = table.lines().skip(1);
    let one = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, queues, ..] = words[..] else {
            return None;
        };
        let inode = (*words.get(9)?).to_owned();
        let told = format!("{local} to {remote}, state {state}, to send and to read {queues}");
        Some((inode, told))
    };
    lines.filter_map(one).collect()
}

fn group_of(process: &Path) -> Option<u32> {
    let stat = text(&process.join("stat"));
    let (_, rest) = stat.rsplit_once(") ")?;
    // State, parent, group.
    rest.split(' ').nth(2)?.parse().ok()
}

fn numbers_in(dir: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = names.collect();
    numbers.sort_unstable();
    numbers.into_iter()
}

fn number_of(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn text(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn sleeper_is_shown_with_its_call_and_its_descriptors() {
        let mut command = Command::new("sleep");
        let mut child = command
            .arg("60")
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let seen = crate::wait_until(crate::process::TIME_LIMIT, || {
            let report = of_group(child.id());
            report.contains("(sleep)") && report.contains("sleeping") && report.contains("pipe:")
        });
        let report = of_group(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen, "{report}");
    }

    #[test]
    fn sockets_and_what_is_polled_are_shown() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        let waits = std::thread::spawn(move || {
            let mut one = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one live entry.
            unsafe { libc::poll(&mut one, 1, 60_000) };
        });
        // SAFETY: takes no pointers.
        let group = unsafe { libc::getpgrp() }.cast_unsigned();
        let line = format!("descriptor {fd} for {:#x}", libc::POLLIN);
        let seen = crate::wait_until(crate::process::TIME_LIMIT, || {
            let report = of_group(group);
            report.contains(&line) && report.contains("state 0A")
        });
        let _connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        waits.join().unwrap();
        assert!(seen, "no `{line}`");
    }
}
