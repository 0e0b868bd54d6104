//! Network namespaces and interfaces, by `ip`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;

/// Runs something in a namespace that `ip netns` made, in a thread of its own; what it makes stays
/// there.
pub(crate) fn within<T: Send>(namespace: &str, run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            let file = File::open(format!("/run/netns/{namespace}")).expect("it was made");
            // SAFETY: a plain system call, for a thread that ends afterwards.
            let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "{}", io::Error::last_os_error());
            run()
        });
        there
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether `ip` succeeded; what it says about that is left out.
pub(crate) fn ip(arguments: &str) -> bool {
    let arguments = arguments.split_ascii_whitespace();
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
