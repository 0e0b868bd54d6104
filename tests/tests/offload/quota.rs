//! A program at its quota is refused more connections; other programs are not. A connection that
//! ends makes room for another.

use toehold_e2e::network::{FAR, NEAR};
use toehold_e2e::process::TIME_LIMIT;
use toehold_e2e::{Link, wait_until};

use crate::stage::{Stage, ok};

#[test]
fn program_at_its_quota_is_refused_until_it_has_closed_some() {
    let Some(stage) = Stage::set(&["--quota", "5"]) else {
        return;
    };
    let _far = stage.far_server(&["echo_server", "7601"]);
    let mut full = stage.near("full", &["at_quota", FAR, "7601", "5"]);
    let is_full = wait_until(TIME_LIMIT, || {
        full.ended().is_some() || full.stdout().contains("full")
    });
    assert!(is_full && full.ended().is_none(), "{}", full.outputs());
    assert_eq!(stage.engine("connections"), 5);
    assert_eq!(stage.engine("over_quota"), 4);
    // Another program has its own quota.
    ok(stage.near("other", &["echo_client", FAR, "7601", "300000"]));
    assert_eq!(stage.engine("over_quota"), 4);
    full.signal(libc::SIGUSR1);
    ok(full);
    assert!(stage.engine("over_quota") > 4);
    let over = wait_until(TIME_LIMIT, || stage.engine("connections") == 0);
    assert!(over, "{} connections are left", stage.engine("connections"));
}

#[test]
fn remotes_of_a_program_at_its_quota_are_reset_until_there_is_room() {
    let Some(stage) = Stage::set(&["--quota", "5"]) else {
        return;
    };
    let _full = stage.near_server(&["echo_server", "7602"]);
    let _other = stage.near_server(&["echo_server", "7603"]);
    let filling = stage.far("fill", &["fill", NEAR, "7602", "5"]);
    let is_full = wait_until(TIME_LIMIT, || stage.engine("over_quota") >= 1);
    assert!(is_full, "{}", filling.outputs());
    ok(stage.far("other", &["echo_client", NEAR, "7603", "300000"]));
    ok(filling);
    assert!(stage.engine("over_quota") >= 3);
}

/// Each connection uses a descriptor of the adapter. Seven tenths of the descriptors are for
/// connections. Each program may have three quarters of those that other programs leave. With the
/// rest the adapter answers its programs.
#[test]
fn program_with_many_connections_leaves_descriptors_to_others() {
    let Some(mut stage) = Stage::set_over(Link::Packet, &["--threads", "1"]) else {
        return;
    };
    stage.toehold.start_adapter_with_descriptors(400);
    let _far = stage.far_server(&["echo_server", "7604"]);
    let mut full = stage.near("full", &["at_quota", FAR, "7604", "210"]);
    let is_full = wait_until(TIME_LIMIT, || {
        full.ended().is_some() || full.stdout().contains("full")
    });
    assert!(is_full && full.ended().is_none(), "{}", full.outputs());
    let other = stage.near("other", &["at_quota", FAR, "7604", "53"]);
    let is_full = wait_until(TIME_LIMIT, || stage.engine("connections") == 263);
    assert!(is_full, "{}", other.outputs());
    ok(stage.near("third", &["echo_client", FAR, "7604", "300000"]));
}
