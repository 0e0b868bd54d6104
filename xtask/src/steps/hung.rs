//! Commands that hang: their processes, described for the report, and then killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The descendants of a process that have not ended, each after its parent.
pub(super) fn descendants(ancestor: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for process in numbers_in(Path::new("/proc")) {
        let place = format!("/proc/{process}");
        let has_ended = |state: String| state.starts_with('Z');
        if field(&place, "State:").is_none_or(has_ended) {
            continue;
        }
        if let Some(parent) = field(&place, "PPid:") {
            let parent = parent.parse().unwrap_or(0);
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![ancestor];
    while let Some(process) = next.pop() {
        let of_it = children.remove(&process).unwrap_or_default();
        found.extend(&of_it);
        next.extend(of_it);
    }
    found
}

/// Lines about a process: its command, and a line for each of its threads with its name, its
/// state, the number of its system call, and the place in the kernel. The test runner names threads
/// after their tests.
pub(super) fn report(process: u32) -> Vec<String> {
    let place = format!("/proc/{process}");
    let command = text(&format!("{place}/cmdline")).replace('\0', " ");
    let mut lines = vec![format!("process {process}: {}", command.trim())];
    for thread in numbers_in(Path::new(&format!("{place}/task"))) {
        let place = format!("{place}/task/{thread}");
        let call = text(&format!("{place}/syscall"));
        lines.push(format!(
            "  {}: {}, system call {}, in {}",
            text(&format!("{place}/comm")).trim(),
            field(&place, "State:").unwrap_or_default(),
            call.split_whitespace().next().unwrap_or("?"),
            functions(&text(&format!("{place}/stack")))
                .unwrap_or_else(|| text(&format!("{place}/wchan")))
        ));
    }
    lines
}

/// Kills processes.
pub(super) fn end(processes: &[u32]) {
    for &process in processes {
        // SAFETY: takes no pointers.
        unsafe { libc::kill(process.cast_signed(), libc::SIGKILL) };
    }
}

/// The functions in a stack of the kernel's, from the innermost one on (proc(5)).
fn functions(stack: &str) -> Option<String> {
    let names = stack.lines().filter_map(|line| {
        let (function, _) = line.split_whitespace().nth(1)?.split_once('+')?;
        Some(function)
    });
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| names.join(" < "))
}

/// The value of a line in the `status` of a process or a thread.
fn field(place: &str, name: &str) -> Option<String> {
    let status = text(&format!("{place}/status"));
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

fn numbers_in(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_stack_are_read_without_their_offsets() {
        let stack = "[<0>] futex_wait+0x5f/0x90\n[<0>] do_futex+0x1/0x2\n";
        assert_eq!(functions(stack).as_deref(), Some("futex_wait < do_futex"));
        assert_eq!(functions(""), None);
    }

    #[test]
    fn report_shows_each_thread() {
        let lines = report(std::process::id());
        // The kernel keeps the first 15 bytes of a name.
        let is_ours = |line: &String| line.starts_with("  steps::hung::te: R");
        assert!(lines.iter().any(is_ours), "{lines:#?}");
    }
}
