//! PostgreSQL: a process forked for each connection, and account balances that add up.

use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Sides, Toehold, host};

use crate::{accelerated, await_port, client};

/// PostgreSQL refuses to run as root; Debian creates this user for it.
const USER: &str = "postgres";

mod postgres_books_balance {
    use toehold_e2e::{Sides, Toehold};

    use super::{By, USER, run};

    #[test]
    fn on_the_kernel() {
        run(|| Toehold::absent_as(USER), Sides::HOST, By::Tcp);
    }

    #[test]
    fn on_rings() {
        run(|| Toehold::start_as(USER), Sides::DIRECT, By::Tcp);
    }

    #[test]
    fn on_rings_by_its_unix_socket() {
        run(|| Toehold::start_as(USER), Sides::DIRECT, By::Unix);
    }

    #[test]
    fn with_only_the_server_accelerated() {
        run(|| Toehold::start_as(USER), Sides::SERVER_ONLY, By::Tcp);
    }

    #[test]
    fn with_only_the_client_accelerated() {
        run(|| Toehold::start_as(USER), Sides::CLIENT_ONLY, By::Tcp);
    }
}

/// The way in which clients reach the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Tcp,
    Unix,
}

fn run(start: impl FnOnce() -> Toehold, sides: Sides, by: By) {
    if host::require(["initdb", "postgres", "psql", "pgbench", "setpriv"]).is_none() {
        return;
    }
    // SAFETY: takes nothing, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        host::skipped("only root can become the user that PostgreSQL wants");
        return;
    }
    postgres_books_balance(&start(), sides, by);
}

fn path(name: &str) -> String {
    host::program(name)
        .expect("required")
        .to_string_lossy()
        .into_owned()
}

fn postgres_books_balance(toehold: &Toehold, sides: Sides, by: By) {
    let data = toehold.dir().join("data");
    let data = data.to_string_lossy();
    let mut command = toehold.command(toehold_e2e::Path::Host, path("initdb"));
    command.args(["-D", &data, "--auth=trust", "--no-sync", "-U", USER]);
    Running::start(command, "initdb", toehold.dir()).success(TIME_LIMIT);
    let port = host::free_port();
    let number = port.to_string();
    let directory = toehold.dir().to_string_lossy();
    let (address, sockets, host) = match by {
        By::Tcp => ("127.0.0.1", "", "127.0.0.1"),
        By::Unix => ("", &*directory, &*directory),
    };
    let mut command = toehold.command(sides.server, path("postgres"));
    command.args([
        "-D", &data, "-p", &number, "-h", address, "-k", sockets, "-F",
    ]);
    let mut server = Running::start(command, "postgres", toehold.dir());
    if by == By::Tcp {
        await_port(&mut server, port);
    }
    let to = ["-h", host, "-p", &number, "-U", USER];
    let run = |name: &str, program: &str, rest: &[&str]| {
        client(toehold, sides, name, &path(program), &[&to, rest].concat())
    };
    // The server listens before it is ready for clients.
    let ready = toehold_e2e::wait_until(TIME_LIMIT, || {
        std::process::Command::new(path("pg_isready"))
            .args(to)
            .output()
            .is_ok_and(|output| output.status.success())
    });
    assert!(ready, "{}", server.outputs());
    run("init", "pgbench", &["-i", "-s", "1", "-q", "postgres"]);
    // Thousands of transactions: each kind of load takes both processors for as long as it lasts.
    let seconds = host::rounds(1).to_string();
    let load = ["-c", "4", "-T", &seconds, "-n"];
    accelerated(toehold, sides, || {
        run("tpcb", "pgbench", &[&load[..], &["postgres"]].concat());
        let prepared = ["-S", "-M", "prepared", "postgres"];
        let report = run("select", "pgbench", &[&load[..], &prepared].concat());
        assert!(
            report.contains("number of failed transactions: 0"),
            "{report}"
        );
    });
    let query = |text: &str| run("psql", "psql", &["-At", "-c", text, "postgres"]);
    let sums = query(
        "select (select sum(abalance) from pgbench_accounts)
                = (select sum(delta) from pgbench_history)
            and (select sum(tbalance) from pgbench_tellers)
                = (select sum(bbalance) from pgbench_branches)
            and (select sum(delta) from pgbench_history)
                = (select sum(bbalance) from pgbench_branches)",
    );
    assert_eq!(sums.trim(), "t", "the books do not balance");
    // A large result, checked against its own sum.
    let rows = query("select md5(i::text) from generate_series(1, 200000) i");
    let sum = query(
        "select md5(string_agg(md5(i::text), '' order by i)) from generate_series(1, 200000) i",
    );
    assert_eq!(rows.lines().count(), 200_000);
    let local = toehold.dir().join("rows");
    std::fs::write(&local, rows.lines().collect::<String>()).expect("there is room");
    let output = std::process::Command::new("md5sum")
        .arg(&local)
        .output()
        .expect("md5sum is everywhere");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        output.split(' ').next(),
        Some(sum.trim()),
        "the large result is not exact"
    );
}
