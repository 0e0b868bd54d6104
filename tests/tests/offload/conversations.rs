//! Random conversations over the engine. The oracle is the kernel's TCP in a network of equal form:
//! two namespaces, a link between them, and a program in each.
//!
//! ```text
//!                near                                   far
//!   under test   program ── engine ═════════ toe0 ── kernel ── program
//!   the oracle   program ── kernel ── v0 ═══ toe0 ── kernel ── program
//! ```
//!
//! The program under test is the server once, and the client once. Over a network a conversation
//! waits for each end and each reset before it goes on, and has no urgent bytes (`improvised` in
//! the semantics suite). `TOEHOLD_SOAK` plays more conversations, with seeds from `TOEHOLD_SEED`
//! on.

use toehold_e2e::duet::MEET_V4;
use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::{Duet, Link, Network, Oracle, Toehold, host};

use crate::semantics::{Carriers, PROGRAM, play};
use crate::stage::Stage;

/// The seeds of each kind in a run without `TOEHOLD_SOAK`.
const SEEDS: u64 = 2;

/// The kernel at both ends.
struct Kernels {
    network: Network,
    toehold: Toehold,
}

impl Kernels {
    /// `None` in runs over other links than TAP, because the results do not depend on the link.
    fn set() -> Option<Kernels> {
        if Link::of_this_run() != Link::Tap {
            eprintln!("played over a TAP link");
            return None;
        }
        let network = Network::with(Link::Packet)?;
        let address = ["addr", "add", &format!("{NEAR}/24"), "dev", "v0"];
        assert!(network.near_ip(&address) && network.bring_up());
        let toehold = Toehold::absent();
        Some(Kernels { network, toehold })
    }

    fn play(&self, case: &str, is_server: bool) -> Vec<String> {
        let [near, far] = [self.network.near(PROGRAM), self.network.far(PROGRAM)];
        let (mut roles, address) = match is_server {
            true => ([near, far], NEAR),
            false => ([far, near], FAR),
        };
        for role in &mut roles {
            role.env(MEET_V4, address);
        }
        Duet::play_roles(&self.toehold, roles, case, None).transcript
    }
}

/// Plays conversations of a kind, with the program under test as the server and as the client.
fn compare(kind: &str, carriers: Carriers) {
    let Some(kernels) = Kernels::set() else {
        return;
    };
    let Some(stage) = Stage::set(&["--threads", "1"]) else {
        return;
    };
    let mut complaints = Vec::new();
    let (mut asked, mut upgraded) = (0, 0);
    for seed in host::seed()..host::seed() + host::rounds(SEEDS) {
        let case = format!("{kind}:{seed}");
        // The two networks are alike, and so are the kernel's two roles.
        let on_kernel = || kernels.play(&case, true);
        let mut oracle = Oracle::of(&format!("{case}.network"), &on_kernel);
        let transcript = oracle.transcript();
        let well = transcript.iter().filter(|line| line.ends_with(": exit 0"));
        if well.count() != 2 {
            complaints.push(format!("{case} on the kernel: {transcript:#?}"));
        }
        for is_server in [true, false] {
            let duet = play(&stage, &case, is_server, carriers);
            let first =
                oracle.differences(|kernel| duet.first_difference(kernel).into_iter().collect());
            let role = if is_server { "server" } else { "client" };
            let of_case = first.iter().map(|it| format!("{case} (as {role}): {it}"));
            complaints.extend(of_case);
            asked += duet.asked;
            upgraded += duet.upgraded;
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert_eq!(upgraded, asked, "connections that should use rings");
}

#[test]
fn random_conversations_go_as_between_two_kernels() {
    compare("improvised", Carriers::New);
}

#[test]
fn random_conversations_on_several_connections_go_as_between_two_kernels() {
    compare("several", Carriers::New);
}

#[test]
fn random_conversations_on_used_carriers_go_as_between_two_kernels() {
    compare("improvised", Carriers::Used);
    compare("several", Carriers::Used);
}

/// The kernel's transcript of a conversation depends on the seed only.
#[test]
fn kernels_repeat_themselves_over_a_network() {
    let Some(kernels) = Kernels::set() else {
        return;
    };
    for seed in host::seed()..host::seed() + host::rounds(SEEDS) {
        for kind in ["improvised", "several"] {
            let case = format!("{kind}:{seed}");
            let on_kernel = || kernels.play(&case, true);
            let mut oracle = Oracle::of(&format!("{case}.network"), &on_kernel);
            let duet = Duet {
                transcript: kernels.play(&case, false),
                asked: 0,
                upgraded: 0,
                evidence: None,
            };
            let first =
                oracle.differences(|kernel| duet.first_difference(kernel).into_iter().collect());
            assert!(first.is_empty(), "{case}: {}", first.concat());
        }
    }
}
