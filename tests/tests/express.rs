//! Carriers that serve one connection after another: a program sees the kernel's results on them.

use std::time::Duration;

use toehold_e2e::toehold::{Path, express_count};
use toehold_e2e::{Generator, Running, Toehold, host, wait_until};

const SCRIPT: &str = "express.py";
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The lines that a scenario prints, and the number of its connections on used carriers.
fn play(toehold: &Toehold, path: Path, python: &std::path::Path, scenario: &str) -> (String, u32) {
    let mut command = toehold.command(path, python);
    command.args(host::script(SCRIPT)).args([scenario]);
    let mut running = Running::start(command, scenario, toehold.dir());
    let status = running.wait(TIME_LIMIT);
    let (said, complaints) = (running.stdout(), running.stderr());
    assert!(
        status.is_some_and(|status| status.success()),
        "{scenario} on {path:?} ended with {status:?}:\n{said}{complaints}"
    );
    let reused = said.lines().find_map(|line| line.strip_prefix("reused "));
    let lines = said.lines().filter(|line| !line.starts_with("reused "));
    let said: Vec<&str> = lines.collect();
    let reused = reused.expect("the last line").parse().expect("a number");
    (said.join("\n"), reused)
}

/// Plays a scenario on the kernel and on used carriers. At least one carrier must be used again.
fn compare(scenario: &str) {
    let Some(python) = host::python() else {
        return;
    };
    let toehold = Toehold::start();
    let (kernel, _) = play(&toehold, Path::Host, &python, scenario);
    let (express, reused) = play(&toehold, Path::Express, &python, scenario);
    assert_eq!(express, kernel, "{scenario}");
    assert!(reused > 0, "{scenario}: no carrier was used again");
}

macro_rules! scenarios {
    ($($scenario:ident: $claim:ident),* $(,)?) => {$(
        #[test]
        fn $claim() {
            compare(stringify!($scenario));
        }
    )*};
}

scenarios! {
    many: bytes_are_right_whoever_closes_first,
    crowd: two_thousand_connections_thirty_two_at_a_time_are_right,
    endings: every_way_to_end_is_the_kernels,
    sleepers: a_sleeper_hears_of_the_end,
    hang_ups: two_halves_that_are_shut_are_a_hang_up,
    refused: a_listener_that_closes_refuses_and_resets_what_waits,
    shut: a_listener_that_is_shut_down_refuses,
    worker_closes: what_a_worker_has_not_accepted_is_another_workers,
    worker_dies: what_a_dead_worker_had_not_accepted_is_another_workers,
    worker_dies_late: a_connection_that_goes_back_keeps_the_options_that_were_set,
    worker_leaves: a_worker_that_waits_for_no_connections_gets_none,
    elsewhere: a_listener_that_is_waited_for_in_two_ways_is_the_kernels,
    group: a_listener_of_a_group_has_what_another_had,
    backlog: more_than_were_accepted_wait,
    numbers: a_process_without_numbers_gives_up_parked_carriers,
    passing: a_used_carrier_goes_to_another_program,
    rights: a_used_carrier_is_passed_by_a_control_message,
    client_dies: what_a_dead_client_has_sent_is_accepted,
    killed: a_killed_server_leaves_nothing_at_its_port,
    forks: a_fork_retires_parked_carriers,
    late_options: options_of_the_listener_are_those_of_later_connections,
    told_once: a_connect_that_succeeded_is_told_once,
    networks: a_carrier_stays_in_its_network_namespace,
    restricted: a_program_that_may_connect_nowhere_does_not,
    users: a_carrier_stays_its_users,
    inherited: a_socket_of_two_programs_is_the_kernels,
    returns: a_listener_that_returns_to_its_instance_is_served,
    late_sends: a_send_after_the_end_is_answered_by_a_reset,
    pauses: a_listener_that_is_away_for_a_moment_gets_its_connections_by_carriers,
    spares: a_socket_that_is_given_out_again_is_as_new,
    keepalive: options_of_keepalive_are_set_back,
    kept: options_of_keepalive_that_were_set_before_are_the_connections,
    kept_at_times: connections_without_keepalive_follow_those_with_it,
    sizes: small_connections_follow_large_ones,
    flags: a_descriptor_keeps_its_flags,
    nobody: a_listener_where_nobody_waits_says_so_or_waits,
    unread: a_carrier_keeps_few_doorbells_that_nobody_reads,
}

/// The operator sees the number of connections on used carriers, and the reasons why other
/// connections did not use them.
#[test]
fn status_counts_connections_on_used_carriers() {
    let Some(python) = host::python() else {
        return;
    };
    let toehold = Toehold::start();
    let mut command = toehold.command(Path::Express, &python);
    command.args(host::script(SCRIPT)).args(["counted"]);
    let running = Running::start(command, "counted", toehold.dir());
    let up = wait_until(TIME_LIMIT, || running.stdout().contains("played"));
    assert!(up, "{}", running.outputs());
    let status = toehold.status();
    let of = |name: &str| express_count(&status, name);
    assert!(of("connected") > 0, "{status}");
    assert_eq!(of("accepted"), of("connected"), "{status}");
    assert!(of("seeds_made") > 0, "{status}");
    assert!(
        of("connected") + of("none_parked") + of("peer_busy") >= 20,
        "{status}"
    );
}

/// Plays connections until the condition `until` holds for the counts of both programs.
fn play_until(options: &[&str], until: impl Fn(&dyn Fn(&str) -> u64) -> bool) {
    let Some(python) = host::python() else {
        return;
    };
    let toehold = Toehold::start();
    let mut command = toehold.command_with(Path::Direct, options, &python);
    command.args(host::script(SCRIPT)).args(["ruled"]);
    let running = Running::start(command, "ruled", toehold.dir());
    let held = wait_until(TIME_LIMIT, || {
        let status = toehold.status();
        until(&|name| express_count(&status, name)) && running.stdout().lines().count() > 3
    });
    assert!(held, "{}\n{}", running.outputs(), toehold.status());
}

/// Makes the lab's generator play `load` between two programs until the condition `until` holds for
/// the counts of both programs.
fn load_until(load: &[&str], mut until: impl FnMut(&dyn Fn(&str) -> u64) -> bool) {
    let toehold = Toehold::start();
    let load = Generator::start(&toehold, Path::Direct, load);
    let held = wait_until(TIME_LIMIT, || {
        let status = toehold.status();
        until(&|name| express_count(&status, name))
    });
    assert!(held, "{}\n{}", load.outputs(), toehold.status());
}

#[test]
fn carriers_are_used_again_without_any_option() {
    play_until(&[], |of| of("connected") > 20 && of("accepted") > 20);
}

#[test]
fn no_carrier_is_used_again_where_the_option_says_off() {
    play_until(&["--express", "off"], |of| {
        of("connected") == 0 && of("seeds_tried") == 0 && of("not_paired") == 0
    });
}

/// In a crowd few connections would find a carrier, and each seed would delay the connections
/// behind it.
#[test]
fn a_thousand_clients_at_once_wait_for_no_seed() {
    let (mut ordinary, mut seeds) = (0, 0);
    load_until(&["--pattern", "newcomers", "--streams", "1000"], |of| {
        (ordinary, seeds) = (of("not_paired"), of("seeds_tried"));
        ordinary >= 6000
    });
    // A host that stops for seconds between two crowds may make a few seeds.
    assert!(seeds * 100 < ordinary, "{seeds} seeds, {ordinary} ends");
}

/// The client closes each connection before the server accepts it. The kernel's queue has other
/// connections at the same time.
#[test]
fn empty_connections_take_turns_with_the_kernels() {
    load_until(&["--pattern", "empty"], |of| {
        let by_kernel = of("none_parked") + of("peer_busy") + of("queue_full");
        of("connected") >= 5000 && of("accepted") >= 5000 && by_kernel > 0
    });
}
