//! Network namespaces for tests and measurements.
//!
//! A [`Namespace`] has no name: a descriptor holds it. The kernel removes the namespace and all its
//! interfaces when its last descriptor is closed and its last process has ended. So nothing remains
//! when the test's process is killed, and tests cannot interfere with each other.
//!
//! ```text
//!   Namespace ── lo        Namespace ── lo
//!       v0 ═════ veth(7) ═════ v1            add_veth(v0, other, v1)
//! ```

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace, which ends with this value and the processes in it.
#[derive(Debug)]
pub struct Namespace(File);

/// The reason why there is no namespace, or no interface in it: a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<Error> for String {
    fn from(error: Error) -> String {
        error.0
    }
}

impl Namespace {
    /// Makes a namespace, which has a loopback interface and nothing else.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or without `ip` (iproute2).
    pub fn new() -> Result<Namespace, Error> {
        let made = thread::spawn(|| {
            let refused = |error| {
                Error(format!(
                    "cannot make a network namespace ({error}); needs root"
                ))
            };
            // SAFETY: a new network leaves files and memory alone. The thread ends below, so no
            // other code runs in the new network.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|errno| refused(errno.into()))?;
            // `thread-self` and not `self`: other threads stay in their namespaces.
            File::open("/proc/thread-self/ns/net").map_err(refused)
        });
        let namespace = Namespace(made.join().expect("the thread does not panic")?);
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// A pair of virtual Ethernet interfaces: `name` here and `other_name` in `other`. `options`
    /// are what ip-link(8) says of either end, `numrxqueues 4` for one.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn add_veth(
        &self,
        name: &str,
        other: &Namespace,
        other_name: &str,
        options: &str,
    ) -> Result<(), Error> {
        // `ip` accepts a path in place of a namespace's name, if the path has a slash.
        let there = other.path();
        self.ip(&format!(
            "link add {name} {options} type veth peer name {other_name} netns {there} {options}"
        ))
        .map(drop)
    }

    /// Runs `ip` with these words in the namespace, and returns its output.
    ///
    /// # Errors
    /// When `ip` is missing, or refuses: with its complaint.
    pub fn ip(&self, words: &str) -> Result<String, Error> {
        run_ip(self.command("ip"), words)
    }

    /// A command that runs `program` in the namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.hold(&mut command);
        command
    }

    /// Makes a command run in the namespace. The command must be started while this value lives.
    pub fn hold(&self, command: &mut Command) {
        let namespace = self.0.as_raw_fd();
        // SAFETY: the call between fork and exec takes numbers and makes one system call. The
        // descriptor is open in the child until exec; a command that is spawned after the
        // namespace was dropped fails to start.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
    }

    /// Words before a command line that run it in the namespace, for callers that keep command
    /// lines as text: nsenter(1), which every Debian has.
    #[must_use]
    pub fn starter(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net={}", self.path())]
    }

    /// Calls `run` in the namespace, on a thread of its own. The sockets that `run` makes stay in
    /// the namespace.
    ///
    /// # Panics
    /// When `run` panics, with its panic.
    pub fn within<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                enter(&self.0).expect("the namespace lives, and we made it");
                run()
            });
            let done = there.join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A path of the namespace, for other programs: valid as long as this value lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A number that no other namespace has until the host is started again.
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        cookie(&self.0)
    }
}

/// Runs `ip` with these words in this thread's network namespace, and returns its output.
///
/// # Errors
/// As for [`Namespace::ip`].
pub fn ip(words: &str) -> Result<String, Error> {
    run_ip(Command::new("ip"), words)
}

fn run_ip(mut ip: Command, words: &str) -> Result<String, Error> {
    let failed = |why: &str| Error(format!("ip {words}: {}", why.trim()));
    let output = ip.args(words.split_ascii_whitespace()).output();
    let output = output.map_err(|error| failed(&error.to_string()))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The cookie of the network namespace that a process is in; `process` is its folder in /proc.
#[must_use]
pub fn cookie_of(process: &Path) -> Option<u64> {
    cookie(&File::open(process.join("ns/net")).ok()?)
}

fn cookie(namespace: &File) -> Option<u64> {
    let asked = || {
        enter(namespace).ok()?;
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        let (mut cookie, mut length) = (0_u64, 8);
        let option = libc::SO_NETNS_COOKIE;
        let at = (&raw mut cookie).cast();
        // SAFETY: both pointers are to locals, and the length is that of the first.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                at,
                &mut length,
            )
        };
        (answer == 0).then_some(cookie)
    };
    thread::scope(|scope| scope.spawn(asked).join().ok()?)
}

/// Moves this thread into the namespace.
fn enter(namespace: &File) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

/// Drops all capabilities but CAP_NET_RAW from the calling thread.
///
/// # Panics
/// When the kernel refuses that.
pub fn keep_net_raw_alone() {
    // `struct __user_cap_header_struct`: version 3, and the calling thread. Two of `struct
    // __user_cap_data_struct`: effective, permitted, inheritable.
    let header: [u32; 2] = [0x2008_0522, 0];
    let sets: [[u32; 3]; 2] = [[1 << CAP_NET_RAW, 1 << CAP_NET_RAW, 0], [0; 3]];
    // SAFETY: header and both sets are readable.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(set, 0, "everybody may give up capabilities");
}

/// `linux/capability.h`.
const CAP_NET_RAW: u32 = 13;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn namespace(test: &str) -> Option<Namespace> {
        Namespace::new()
            .map_err(|error| println!("SKIPPED: {test}: {error}"))
            .ok()
    }

    #[test]
    fn a_command_sees_loopback_and_nothing_else() {
        let Some(namespace) = namespace("a_command_sees_loopback_and_nothing_else") else {
            return;
        };
        let text = namespace.ip("-brief link").expect("ip lists interfaces");
        let names = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        assert_eq!(names.collect::<Vec<_>>(), ["lo"]);
        let [nsenter, option] = namespace.starter();
        let output = Command::new(nsenter)
            .args([&option, "ip", "-brief", "link"])
            .output();
        assert_eq!(output.expect("nsenter starts").stdout, text.as_bytes());
        assert!(namespace.cookie().is_some());
        assert_ne!(namespace.cookie(), cookie_of(Path::new("/proc/self")));
    }

    #[test]
    fn two_namespaces_speak_over_a_veth_and_share_no_ports() {
        let Some(near) = namespace("two_namespaces_speak_over_a_veth_and_share_no_ports") else {
            return;
        };
        let far = Namespace::new().expect("one could be made");
        near.add_veth("v0", &far, "v1", "").expect("a veth");
        for (namespace, name, address) in [(&near, "v0", "10.9.0.1"), (&far, "v1", "10.9.0.2")] {
            let add = format!("addr add {address}/24 dev {name}");
            namespace.ip(&add).expect("an address");
            namespace
                .ip(&format!("link set {name} up"))
                .expect("it can go up");
        }
        let listen = || TcpListener::bind("0.0.0.0:7007").expect("the port is free");
        let (_here, there) = (near.within(listen), far.within(listen));
        let client = near.within(|| TcpStream::connect("10.9.0.2:7007").expect("it listens"));
        let (_, from) = there.accept().expect("it has connected");
        assert_eq!(client.local_addr().ok(), Some(from));
    }

    #[test]
    fn a_namespace_ends_with_its_value() {
        let Some(namespace) = namespace("a_namespace_ends_with_its_value") else {
            return;
        };
        let (path, cookie) = (namespace.path(), namespace.cookie());
        assert_eq!(cookie, super::cookie(&File::open(&path).expect("a path")));
        drop(namespace);
        let now = File::open(&path).ok().and_then(|file| super::cookie(&file));
        assert_ne!(now, cookie, "nothing leads there any more");
    }

    #[test]
    fn an_impossible_interface_is_refused_with_the_complaint_of_ip() {
        let Some(namespace) = namespace("an_impossible_interface_is_refused") else {
            return;
        };
        let error = namespace.ip("link set nowhere up").expect_err("no such");
        assert!(error.to_string().contains("nowhere"), "{error}");
    }
}
