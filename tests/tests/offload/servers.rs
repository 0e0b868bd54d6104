//! nginx with wrk and curl, and ssh with sshd; the engine serves either end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::load::Pattern;
use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::{Running, TIME_LIMIT};
use toehold_e2e::{Nginx, host, wait_until};

use crate::stage::Stage;

/// The side on which a server runs.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// On the engine.
    Near,
    /// On the far kernel.
    Far,
}

impl Side {
    fn address(self) -> &'static str {
        match self {
            Side::Near => NEAR,
            Side::Far => FAR,
        }
    }

    fn command(self, stage: &Stage, program: &Path) -> Command {
        match self {
            Side::Near => stage.offloaded(&program.to_string_lossy(), &[]),
            Side::Far => stage.network.far(program),
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Near => Side::Far,
            Side::Far => Side::Near,
        }
    }

    /// Waits until the other side can reach this side's server.
    fn await_server(self, stage: &Stage, server: &mut Running, port: u16) {
        match self {
            Side::Near => stage.await_listeners(1),
            Side::Far => stage.await_far_port(server, port),
        }
    }
}

/// The sizes of the served files. Each file's name is its size.
const SIZES: [usize; 4] = [0, 1000, 65_536, 5_000_000];

/// Checks bodies byte for byte with curl. Then makes load with wrk, with keep-alive and without.
fn nginx_serves(side: Side, port: u16) {
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([curl, wrk]) = host::require(["curl", "wrk"]) else {
        return;
    };
    let Some([program]) = host::require(["nginx"]) else {
        return;
    };
    let command = side.command(&stage, &program);
    let mut nginx = Nginx::start(command, stage.toehold.dir(), "0.0.0.0", port, &SIZES);
    side.await_server(&stage, &mut nginx.server, port);
    let url = |size: usize| format!("http://{}:{port}/{size}", side.address());
    let target = stage.toehold.dir().join("body");
    for size in SIZES {
        let mut command = side.other().command(&stage, &curl);
        command.args(["-sS", "--fail", "--max-time", "60"]);
        // Several requests use one connection; the connection is warm for the later ones.
        for _ in 0..20 {
            command.arg("-o").arg(&target).arg(url(size));
        }
        Running::start(command, "curl", stage.toehold.dir()).success(TIME_LIMIT);
        let got = fs::read(&target).unwrap_or_default();
        let expected = nginx.body(size);
        assert!(got == expected, "{size} bytes: {} others came", got.len());
    }
    for header in ["Accept: */*", "Connection: close"] {
        let mut command = side.other().command(&stage, &wrk);
        command.args(["-t1", "-c30", "-d2s", "-H", header, &url(1000)]);
        let load = Running::start(command, "wrk", stage.toehold.dir());
        if side == Side::Near && header.ends_with("close") {
            // New workers take over the listener, and the old workers' connections continue.
            nginx.server.signal(libc::SIGHUP);
        }
        let report = load.success(TIME_LIMIT);
        let is_clean = report.contains("Requests/sec")
            && !report.contains("Socket errors")
            && !report.contains("Non-2xx");
        assert!(is_clean, "{header}: {report}");
    }
    assert!(stage.engine("connections_opened") + stage.engine("connections_accepted") > 60);
}

#[test]
fn nginx_serves_remote_clients() {
    nginx_serves(Side::Near, 8081);
}

#[test]
fn wrk_and_curl_load_a_remote_nginx() {
    nginx_serves(Side::Far, 8082);
}

/// An sshd with its own keys, and the key that a client needs.
struct Sshd {
    server: Running,
    key: PathBuf,
}

impl Sshd {
    fn start(stage: &Stage, side: Side, port: u16) -> Option<Sshd> {
        let [sshd, keygen] = host::require(["sshd", "ssh-keygen"])?;
        let dir = stage.toehold.dir();
        let make_key = |name: &str| {
            let path = dir.join(name);
            let mut command = Command::new(&keygen);
            command
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(&path);
            assert!(command.status().is_ok_and(|status| status.success()));
            path
        };
        let (host_key, key) = (make_key("host_key"), make_key("key"));
        // sshd's directory for the time before a user is authenticated.
        let _ = fs::create_dir_all("/run/sshd");
        let config = dir.join("sshd_config");
        let text = format!(
            "Port {port}\nListenAddress 0.0.0.0\nHostKey {}\nAuthorizedKeysFile {}.pub\nPidFile \
            none\n\
             UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n",
            host_key.display(),
            key.display()
        );
        fs::write(&config, text).expect("scratch");
        let mut command = side.command(stage, &sshd);
        command.arg("-D").arg("-e").arg("-f").arg(config);
        let mut server = Running::start(command, "sshd", dir);
        side.await_server(stage, &mut server, port);
        Some(Sshd { server, key })
    }
}

/// The output of a command, a stream in each direction with its checksum, and several sessions in
/// parallel.
fn ssh_works(side: Side, port: u16) {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return host::skipped("sshd lets nobody but root in here");
    }
    let Some(stage) = Stage::set(&[]) else { return };
    let Some([ssh]) = host::require(["ssh"]) else {
        return;
    };
    let Some(sshd) = Sshd::start(&stage, side, port) else {
        return;
    };
    let dir = stage.toehold.dir();
    let mut bytes = vec![0; 20_000_000];
    Pattern::new(22).fill(0, &mut bytes);
    let file = dir.join("sent");
    fs::write(&file, &bytes).expect("scratch");
    let session = |name: &str, remote_command: &str, input: &Path| {
        let mut command = side.other().command(&stage, &ssh);
        command
            .arg("-i")
            .arg(&sshd.key)
            .arg("-p")
            .arg(port.to_string());
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "IdentitiesOnly=yes",
        ] {
            command.args(["-F", "none", "-o", option]);
        }
        command.arg(format!("root@{}", side.address()));
        command.arg(remote_command);
        command.stdin(fs::File::open(input).expect("it is there"));
        Running::start_fed(command, name, dir)
    };
    let nothing = Path::new("/dev/null");
    let said = session("ssh-echo", "echo $((6 * 7)); exit 7", nothing).wait_for(7);
    assert_eq!(said.trim(), "42", "{}", sshd.server.outputs());
    let sessions: Vec<Running> = (0..3)
        .map(|n| session(&format!("ssh-{n}"), "cat", &file))
        .collect();
    for (n, running) in sessions.into_iter().enumerate() {
        assert!(running.ends_well(), "{}", sshd.server.outputs());
        let back = fs::read(dir.join(format!("ssh-{n}.out"))).expect("its output");
        assert!(back == bytes, "session {n}: {} other bytes", back.len());
    }
    let used = ["connections_accepted", "connections_opened"].map(|key| stage.engine(key));
    assert!(used[usize::from(side == Side::Far)] >= 4, "{used:?}");
}

/// The end of a session.
trait Ends {
    fn wait_for(self, code: i32) -> String;
    fn ends_well(self) -> bool;
}

impl Ends for Running {
    fn wait_for(mut self, code: i32) -> String {
        let ended = wait_until(TIME_LIMIT, || self.ended().is_some());
        let status = self.ended();
        let got = status.and_then(|status| status.code());
        assert!(ended && got == Some(code), "{status:?}: {}", self.outputs());
        self.stdout()
    }

    fn ends_well(mut self) -> bool {
        let status = self.wait(TIME_LIMIT);
        if !status.is_some_and(|status| status.success()) {
            eprintln!("{status:?}: {}", self.stderr());
        }
        status.is_some_and(|status| status.success())
    }
}

#[test]
fn ssh_reaches_a_remote_sshd() {
    ssh_works(Side::Far, 2201);
}

#[test]
fn sshd_serves_a_remote_ssh() {
    ssh_works(Side::Near, 2202);
}
