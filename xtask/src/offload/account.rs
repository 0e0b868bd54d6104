//! The near end's CPU time, with the work of receiving attributed to the end that receives.
//!
//! On a veth the kernel processes a received frame in the time of the sending process. So the near
//! end's own time includes the far end's receiving, and the far end's time includes ours. A
//! separate link of the engine shifts some of that. Samples of every processor's stack show whose
//! work it was:
//!
//! ```text
//!   a process of the far end, and the stack is in the kernel's receive path   the near end's
//!   a near one, in the receive path of a frame that it sent by the link       the far end's
//!   a near one, in that of a frame on loopback (carriers)                     the near end's
//!   neither (ksoftirqd, an idle processor), in the receive path               not known: nobody's
//! ```

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::output;

/// Samples of every processor per second. The number is no multiple of other timers' rates.
const SAMPLES_PER_SECOND: &str = "997";

/// The programs at both ends.
#[derive(Clone)]
pub(super) struct Ends<'a> {
    /// Processes by their numbers: servers, the adapter.
    pub(super) near: BTreeSet<u32>,
    pub(super) far: BTreeSet<u32>,
    /// The client, by its name: it starts together with the samples.
    pub(super) client: &'a str,
    pub(super) client_is_near: bool,
    /// Near programs send on loopback, too: the engine's do, the kernel's do not.
    pub(super) has_carriers: bool,
}

impl Ends<'_> {
    /// Whether a process belongs to the near end (true) or the far end (false); `None` if to
    /// neither.
    fn is_near(&self, pid: u32, name: &str) -> Option<bool> {
        match () {
            () if self.near.contains(&pid) => Some(true),
            () if self.far.contains(&pid) => Some(false),
            () => (name == self.client).then_some(self.client_is_near),
        }
    }
}

/// Seconds of one core, for each unit of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Account {
    /// The near end's work, in the processes of either end.
    pub(super) near: f64,
    /// Receiving for an end that is not known.
    pub(super) unknown: f64,
}

/// Runs a command while the processors are sampled; returns its output, and the samples' file.
pub(super) fn sampled(mut perf: Command, client: &Command, file: &Path) -> Result<String, String> {
    perf.args(["record", "--all-cpus", "--event", "cpu-clock", "-g", "-q"]);
    perf.args(["--freq", SAMPLES_PER_SECOND, "--output"])
        .arg(file);
    perf.arg("--")
        .arg(client.get_program())
        .args(client.get_args());
    for (name, value) in client.get_envs() {
        perf.env(name, value.unwrap_or_default());
    }
    output(&mut perf)
}

/// Reads the account from the samples.
pub(super) fn read(file: &Path, ends: &Ends<'_>) -> Result<Account, String> {
    let mut script = Command::new("perf");
    script.args(["script", "--fields", "comm,pid,ip,sym", "--input"]);
    let said = output(script.arg(file))?;
    let rate: f64 = SAMPLES_PER_SECOND.parse().expect("a number");
    Ok(account(&said, ends, 1.0 / rate))
}

/// The seconds that each sample stands for.
fn account(said: &str, ends: &Ends<'_>, seconds: f64) -> Account {
    let mut account = Account::default();
    for sample in said.split("\n\n") {
        let mut lines = sample.trim_start_matches('\n').lines();
        let Some((name, pid)) = lines.next().and_then(|line| line.trim().rsplit_once(' ')) else {
            continue;
        };
        let Ok(pid) = pid.parse::<u32>() else {
            continue;
        };
        let symbols = lines.filter_map(|line| line.split_whitespace().nth(1));
        let symbols: Vec<&str> = symbols.collect();
        let has = |wanted: &[&str]| symbols.iter().any(|symbol| wanted.contains(symbol));
        let receives = has(&RECEIVING);
        let by_link = !ends.has_carriers || has(&SENDING);
        match (ends.is_near(pid, name.trim()), receives) {
            (Some(true), false) | (Some(false), true) => account.near += seconds,
            (Some(true), true) if !by_link => account.near += seconds,
            (None, true) if has(&OF_THE_ENGINE) => account.near += seconds,
            (None, true) => account.unknown += seconds,
            _ => {}
        }
    }
    account
}

/// The kernel's functions that contain all receiving: the software interrupt; and for a TAP device,
/// which bypasses it, both directions.
const RECEIVING: [&str; 4] = [
    "net_rx_action",
    "netif_receive_skb",
    "__netif_receive_skb_one_core",
    "tun_net_xmit",
];
/// The functions through which the engine sends a frame on its link: packet(7), AF_XDP, TAP.
const SENDING: [&str; 4] = [
    "packet_sendmsg",
    "xsk_sendmsg",
    "tun_get_user",
    "tun_chr_write_iter",
];
/// The functions that receive frames for the engine.
const OF_THE_ENGINE: [&str; 3] = ["tpacket_rcv", "xsk_generic_rcv", "__xsk_map_redirect"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_where_it_belongs() {
        let engine = Ends {
            near: [10, 11].into(),
            far: [20].into(),
            client: "redis-benchmark",
            client_is_near: false,
            has_carriers: true,
        };
        let kernel = Ends {
            has_carriers: false,
            ..engine.clone()
        };
        let sample = |who: &str, stack: &[&str]| {
            let stack = stack
                .iter()
                .map(|symbol| format!("\tffffffff81 {symbol}\n"));
            format!("{who} \n{}\n", stack.collect::<String>())
        };
        let backlog = "net_rx_action";
        for (who, stack, of_engine, of_kernel) in [
            ("redis-server 10", &["epoll_wait"][..], 1.0, 1.0),
            ("engine 11", &[backlog, "packet_sendmsg"], 0.0, 0.0),
            ("engine 11", &[backlog, "tcp_sendmsg"], 1.0, 0.0),
            ("redis-benchmark 30", &[backlog, "tcp_sendmsg"], 1.0, 1.0),
            ("redis-benchmark 30", &["tcp_sendmsg"], 0.0, 0.0),
            ("redis-server 20", &[backlog], 1.0, 1.0),
            ("swapper 0", &["do_idle"], 0.0, 0.0),
            ("ksoftirqd/0 13", &["tpacket_rcv", backlog], 1.0, 1.0),
        ] {
            let said = sample(who, stack);
            for (ends, expected) in [(&engine, of_engine), (&kernel, of_kernel)] {
                let account = account(&said, ends, 1.0);
                assert!((account.near - expected).abs() < 1e-9, "{said}");
            }
        }
        let unknown = sample("ksoftirqd/0 13", &[backlog]);
        let account = account(&[unknown.clone(), unknown].concat(), &kernel, 1.0);
        assert!((account.unknown - 2.0).abs() < 1e-9 && account.near < 1e-9);
    }
}
