//! End-to-end tests: ordinary programs, run twice, the kernel as the oracle.
//!
//! The programs under test do not know of Toehold. The tests build the command line and the preload
//! library, start programs under them, and examine only results that a user can see: output, exit
//! codes, `toehold status`. There is one exception: the test in which an operator detaches and
//! attaches thousands of times calls the adapter's client library instead of starting commands.
//!
//! - [`toehold`]: finds the product, starts an adapter, runs programs on a chosen path;
//! - [`process`]: child processes that cannot outlive their test, and waits with a limit;
//! - [`duet`]: one case of the semantics suite: two roles, one transcript;
//! - [`oracle`]: the kernel's transcripts, which many tests compare with;
//! - [`activation`]: a service manager that has the adapter's socket;
//! - [`checked`]: two ends of a checked connection, and the bytes they owe each other;
//! - [`crowd`]: two programs with many connections, and a line to one of them;
//! - [`ends`]: the ends of a program's connections, in its table;
//! - [`evidence`]: the kernel's information about processes that hang;
//! - [`generator`]: the lab's load between two programs;
//! - [`iperf3`]: runs its clients one after another;
//! - [`load`]: the byte streams that the soak and the crash tests check;
//! - [`nginx`]: a web server with files of known contents;
//! - [`patched`]: programs that make their system calls themselves, compiled and started;
//! - [`podman`]: containers by podman, root's or rootless;
//! - [`system`]: a system adapter, and programs of different users under it;
//! - [`network`]: two network namespaces with an adapter's link between them;
//! - [`host`]: free ports, installed programs, and clearly visible skips.

pub mod activation;
pub mod checked;
pub mod crowd;
pub mod duet;
pub mod ends;
pub mod evidence;
pub mod generator;
pub mod host;
pub mod iperf3;
pub mod load;
pub mod network;
pub mod nginx;
pub mod oracle;
pub mod patched;
pub mod podman;
pub mod process;
pub mod system;
pub mod toehold;

pub use activation::Activation;
pub use checked::Checked;
pub use crowd::{Crowd, Member};
pub use duet::{Duet, Sides};
pub use generator::Generator;
pub use network::{Link, Network};
pub use nginx::Nginx;
pub use oracle::Oracle;
pub use podman::Podman;
pub use process::{Running, wait_until};
pub use system::System;
pub use toehold::{Path, Toehold};
