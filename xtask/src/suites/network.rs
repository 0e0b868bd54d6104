//! A network namespace without a name.
//!
//! It has loopback and nothing else. The kernel removes it when the last descriptor and the last
//! process of it are gone, however they went, so that it never has to be removed.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The namespace, held by a descriptor.
#[derive(Debug)]
pub(crate) struct Network(File);

impl Network {
    /// Makes one; `None` without the privilege.
    pub(crate) fn new() -> Option<Network> {
        let made = std::thread::spawn(|| {
            // SAFETY: takes no pointers. It changes which network this thread sees, and the thread
            // ends below.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return None;
            }
            // A child sees the network of the thread that started it.
            let up = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .output();
            let is_up = up.is_ok_and(|output| output.status.success());
            let file = File::open("/proc/thread-self/ns/net").ok()?;
            is_up.then_some(Network(file))
        });
        made.join().ok()?
    }

    /// A number that no other network has until the host is started again.
    pub(crate) fn cookie(&self) -> Option<u64> {
        cookie(self.0.try_clone().ok()?)
    }

    /// Has a command run in this network.
    pub(crate) fn hold(&self, command: &mut Command) {
        let namespace = self.0.as_raw_fd();
        // SAFETY: the call between fork and exec takes numbers and makes one system call. The
        // descriptor is open in the child until exec; a command that is spawned after this network
        // was dropped fails to start.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
    }
}

/// The cookie of the network that a process is in.
pub(crate) fn cookie_of(process: &Path) -> Option<u64> {
    cookie(File::open(process.join("ns/net")).ok()?)
}

fn cookie(namespace: File) -> Option<u64> {
    let asked = std::thread::spawn(move || {
        // SAFETY: takes no pointers. It changes which network this thread sees, and the thread ends
        // below.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return None;
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").ok()?;
        let (mut cookie, mut length) = (0_u64, 8);
        // SAFETY: both pointers are to locals, and the length is that of the first.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut length,
            )
        };
        (answer == 0).then_some(cookie)
    });
    asked.join().ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_sees_loopback_and_nothing_else() {
        let Some(network) = Network::new() else {
            println!("SKIPPED: a_command_sees_loopback_and_nothing_else: needs root");
            return;
        };
        let mut command = Command::new("ip");
        command.args(["-brief", "link"]);
        network.hold(&mut command);
        let output = command.output().expect("ip starts");
        let text = String::from_utf8(output.stdout).expect("ip writes ASCII");
        let names = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        assert_eq!(names.collect::<Vec<_>>(), ["lo"]);
        assert_ne!(network.cookie(), cookie_of(Path::new("/proc/self")));
    }
}
