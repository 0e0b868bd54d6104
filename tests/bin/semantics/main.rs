//! A program with many small test cases. Each case is a server and a client that print all results
//! they see.
//!
//! `semantics list` prints the names of the cases. The harness starts `semantics server CASE` and
//! `semantics client CASE` together; the two programs play one case. They print the results that a
//! program can observe and that the kernel decides. The harness runs a case again on another data
//! path, and both runs must print equal lines. Cases called `improvised:SEED` and `several:SEED`
//! are random conversations.

mod aliases;
mod blocking;
mod bpf;
mod confined;
mod connecting;
mod descriptors;
mod ending;
mod epoll;
mod exec;
mod fast_open;
mod faults;
mod files;
mod flags;
mod improvised;
mod inq;
mod interrupts;
mod kept;
mod listeners;
mod many;
mod processes;
mod readiness;
mod reused;
mod role;
mod sleeper;
mod stdio;
mod sys;
mod threads;
mod transfer;
mod unix;
mod uring;
mod zerocopy_receive;

use role::{Pair, Role, Side};
use toehold_e2e::duet::UNIX;

/// A named case and the connection that the case begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    name: &'static str,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    /// Begins with one warmed-up IPv4 connection.
    Pair(fn(&Pair)),
    /// Begins with one warmed-up IPv6 connection.
    Pair6(fn(&Pair)),
    /// Begins with one warmed-up connection of Unix sockets.
    Unix(fn(&Pair)),
    /// Begins without a connection.
    Roles(fn(&Role)),
}

impl Case {
    const fn pair(name: &'static str, body: fn(&Pair)) -> Case {
        Case {
            name,
            body: Body::Pair(body),
        }
    }

    const fn pair6(name: &'static str, body: fn(&Pair)) -> Case {
        Case {
            name,
            body: Body::Pair6(body),
        }
    }

    const fn unix(name: &'static str, body: fn(&Pair)) -> Case {
        Case {
            name,
            body: Body::Unix(body),
        }
    }

    const fn roles(name: &'static str, body: fn(&Role)) -> Case {
        Case {
            name,
            body: Body::Roles(body),
        }
    }

    fn play(self, side: Side) {
        let role = |family| Role { side, family };
        match self.body {
            Body::Pair(body) => body(&role(family()).pair()),
            Body::Pair6(body) => body(&role(libc::AF_INET6).pair()),
            Body::Unix(body) => body(&role(libc::AF_UNIX).pair()),
            Body::Roles(body) => body(&role(family())),
        }
    }
}

/// The groups of cases. Each group is one test of the harness.
const GROUPS: &[(&str, &[Case])] = &[
    ("connecting", connecting::CASES),
    ("connecting", fast_open::CASES),
    ("connecting", listeners::CASES),
    ("transfer", transfer::CASES),
    ("flags", flags::CASES),
    ("flags", inq::CASES),
    ("flags", zerocopy_receive::CASES),
    ("faults", faults::CASES),
    ("blocking", blocking::CASES),
    ("interrupts", interrupts::CASES),
    ("ending", ending::CASES),
    ("readiness", readiness::CASES),
    ("epoll", epoll::CASES),
    ("descriptors", descriptors::CASES),
    ("processes", processes::CASES),
    ("processes", processes::asleep::CASES),
    ("processes", confined::CASES),
    ("processes", kept::CASES),
    ("exec", exec::CASES),
    ("threads", threads::CASES),
    ("threads", reused::CASES),
    ("files", files::CASES),
    ("stdio", stdio::CASES),
    ("aliases", aliases::CASES),
    ("aliases", uring::CASES),
    ("aliases", bpf::CASES),
    ("many", many::CASES),
    ("unix", unix::CASES),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["list"] => {
            for (group, cases) in GROUPS {
                cases
                    .iter()
                    .for_each(|case| println!("{group} {}", case.name));
            }
        }
        ["server", name] => play(name, Side::Server),
        ["client", name] => play(name, Side::Client),
        // `exec` starts this program again, with the connection on an inherited descriptor.
        ["executed", ref rest @ ..] => exec::executed(rest),
        _ => {
            eprintln!("usage: semantics list | server CASE | client CASE");
            std::process::exit(2);
        }
    }
}

fn play(name: &str, side: Side) {
    let role = Role {
        side,
        family: family(),
    };
    let seed = |seed: &str| seed.parse().expect("a seed is a number");
    match name.split_once(':') {
        Some(("improvised", number)) => improvised::play(&role.pair(), seed(number)),
        Some(("several", number)) => improvised::several::play(role, seed(number)),
        Some(_) => panic!("no case: {name}"),
        None => case(name).play(side),
    }
}

/// The address family of the connections, unless a case tests one family.
fn family() -> i32 {
    match std::env::var_os(UNIX) {
        None => libc::AF_INET,
        Some(_) => libc::AF_UNIX,
    }
}

fn case(name: &str) -> Case {
    let mut cases = GROUPS.iter().flat_map(|(_, cases)| *cases);
    let found = cases.find(|case| case.name == name);
    *found.unwrap_or_else(|| panic!("no case is called {name}; `semantics list` names them"))
}
