use std::path::Path;

use super::*;
use crate::registry::Address;
use toehold_channel::rendezvous::mapped;

fn rules(text: &str) -> Rules {
    let rules = parse::rules(text, Path::new("toehold.conf")).expect("valid");
    Rules { rules }
}

fn error(text: &str) -> String {
    let error = parse::rules(text, Path::new("toehold.conf"));
    error.expect_err("it is wrong").to_string()
}

/// The two ends of a connection of `client` with `server`, which listens on `port`.
fn ends(client: &str, server: &str, port: u16) -> [Side; 2] {
    let address = |port| Address::Internet {
        ip: mapped([127, 0, 0, 1]),
        port,
    };
    let tuple = Tuple {
        netns: 1,
        local: address(40_000),
        remote: address(port),
    };
    let side = |name: &str, accepts, tuple| Side {
        program: Program {
            name: name.to_owned(),
            uid: Some(if accepts { 0 } else { 1000 }),
            unit: accepts.then(|| format!("{name}.service")),
        },
        accepts,
        tuple,
        socket: None,
    };
    [
        side(client, false, tuple),
        side(server, true, tuple.mirrored()),
    ]
}

fn host_line(rules: &Rules, ends: &[Side]) -> Option<usize> {
    rules.against(ends).map(|rule| rule.origin.line)
}

#[test]
fn the_first_rule_that_matches_one_end_decides() {
    let rules = rules(
        "# comment\n\
         program redis-cli path auto   # may use memory\n\
         \n\
         port 6379 path host\n\
         program nginx path host\n",
    );
    assert_eq!(rules.len(), 3);
    let line = |client, server, port| host_line(&rules, &ends(client, server, port));
    assert_eq!(line("redis-cli", "redis-server", 6379), None);
    assert_eq!(line("php", "redis-server", 6379), Some(4));
    assert_eq!(line("php", "nginx", 80), Some(5));
    assert_eq!(line("nginx", "gunicorn", 8000), Some(5));
    assert_eq!(line("php", "mysqld", 3306), None);
}

#[test]
fn a_unix_socket_has_a_path_and_neither_address_nor_port() {
    let rules = rules(
        "port 1-65535 path host\n\
         address ::/0 path host\n\
         socket /run/php/* path host\n\
         socket @bus path host\n\
         socket * path auto\n\
         program nginx path host\n",
    );
    let tcp = ends("nginx", "server", 80);
    let ends = |socket: &str| {
        tcp.clone().map(|side| Side {
            tuple: Tuple {
                netns: 1,
                local: Address::Unix { inode: 1 },
                remote: Address::Unix { inode: 2 },
            },
            socket: Some(socket.to_owned()),
            ..side
        })
    };
    assert_eq!(host_line(&rules, &ends("/run/php/fpm.sock")), Some(3));
    assert_eq!(host_line(&rules, &ends("@bus")), Some(4));
    assert_eq!(host_line(&rules, &ends("/run/phpx")), None);
    assert_eq!(host_line(&rules, &tcp), Some(1));
}

/// A connection gets the same answer if either end asks first.
#[test]
fn the_order_of_the_ends_means_nothing() {
    let rules = rules("program a path host\nprogram b path auto\n");
    let [one, other] = ends("a", "b", 1);
    assert_eq!(host_line(&rules, &[one.clone(), other.clone()]), Some(1));
    assert_eq!(host_line(&rules, &[other, one]), Some(1));
}

#[test]
fn each_setting_has_a_first_rule_of_its_own() {
    let rules = rules(
        "port 80 observability ignore\n\
         program wrk path host observability yield\n",
    );
    let ends = ends("wrk", "nginx", 80);
    assert_eq!(host_line(&rules, &ends), Some(2));
    assert_eq!(rules.observability(&ends), Some(Observability::Ignore));
}

#[test]
fn a_budget_is_that_of_the_first_rule_that_has_one() {
    let rules = rules(
        "port 80 path auto\n\
         user 7 max-connections 1\n\
         port 80 max-connections 2\n\
         max-connections 3\n",
    );
    assert_eq!(rules.budget(&ends("wrk", "nginx", 80)), Some((2, 2)));
    assert_eq!(rules.budget(&ends("wrk", "nginx", 81)), Some((3, 3)));
    let line = rules.at(2).expect("the third").origin.line;
    assert_eq!(line, 3);
}

#[test]
fn conditions_hold_together_for_one_end() {
    let matches = |text: &str| host_line(&rules(text), &ends("psql", "postgres", 5432)).is_some();
    for text in [
        "path host",
        "program psql role connects path host",
        "program postgres role accepts path host",
        "user root program postgres path host",
        "user 1000 port 5432 path host",
        "unit postgres path host",
        "unit postgres.service path host",
        "unit post* path host",
        "program post* path host",
        "address 127.0.0.0/8 port 5000-6000 path host",
        "address 127.0.0.1 role accepts path host",
        "path host role connects",
    ] {
        assert!(matches(text), "{text}");
    }
    for text in [
        "program psql role accepts path host",
        "program psql user root path host",
        "program post path host",
        "unit psql path host",
        "port 40000 path host",
        "address 127.0.0.2 path host",
        "address ::1 path host",
        "user 1001 path host",
    ] {
        assert!(!matches(text), "{text}");
    }
}

#[test]
fn a_program_is_known_by_the_bytes_that_the_kernel_keeps() {
    let rules = rules("program a-very-long-program-name path host");
    assert!(host_line(&rules, &ends("a-very-long-pro", "b", 1)).is_some());
    assert!(host_line(&rules, &ends("a-very-long", "b", 1)).is_none());
}

#[test]
fn an_error_names_the_line_the_cause_and_what_was_expected() {
    for (text, expected) in [
        (
            "\nprot 80 path host",
            "line 2: `prot` is not a word of a rule: expected program, user",
        ),
        ("port 80", "no setting: expected one of path, observability"),
        ("path", "`path` has no value: expected path auto|host"),
        (
            "port 0 path host",
            "`0` is not a port: expected a number from 1",
        ),
        ("port 90-80 path host", "`90-80` is not a port"),
        (
            "port 80 port 81 path host",
            "`port` is given twice in the rule",
        ),
        (
            "path direct",
            "`direct` is not a path of a rule: expected auto or host",
        ),
        (
            "role server path host",
            "`server` is not a role: expected connects or accepts",
        ),
        (
            "address localhost path host",
            "`localhost` is not an address: expected an address",
        ),
        (
            "address 10.0.0.0/ path host",
            "no prefix length from 0 to 32",
        ),
        (
            "address 10.0.0.0/33 path host",
            "no prefix length from 0 to 32",
        ),
        (
            "user no-such-user path host",
            "`no-such-user` is not a user in /etc/passwd",
        ),
        (
            "unit nginx.socket path host",
            "expected NAME.service or NAME.scope",
        ),
        ("observability off", "expected yield or ignore"),
        ("wait long", "expected adaptive, poll or event"),
        (
            "program nginx express maybe",
            "`maybe` is not a setting of express: expected on or off",
        ),
        (
            "role accepts express on",
            "`express` is about programs and `role` about connections: expected no condition but \
             program, user, unit",
        ),
        ("max-connections -1", "expected 0 to 1048576"),
        (
            "program a port 80 wait event",
            "`wait` is about programs and `port` about connections: expected no condition but \
             program, user, unit",
        ),
        ("socket run/a path host", "expected /PATH or @NAME"),
    ] {
        let error = error(text);
        assert!(error.starts_with("toehold.conf, line "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn every_word_is_taken_and_every_kind_of_word_is_needed() {
    for known in words::WORDS {
        let value = match known.word {
            "user" => "0",
            "address" => "::1",
            "socket" => "/run/a",
            "port" => "1",
            "role" => "accepts",
            "path" => "auto",
            "wait" => "event",
            "express" => "on",
            "max-connections" => "5",
            "observability" => "yield",
            _ => "name",
        };
        let text = match known.is_setting {
            true => format!("{} {value}", known.word),
            false => format!("{} {value} path host", known.word),
        };
        assert_eq!(rules(&text).iter().next().expect("one").to_string(), text);
        // A setting about programs goes with a condition about programs, and no other.
        if !known.is_setting {
            let text = format!("{} {value} wait event", known.word);
            let read = parse::rules(&text, Path::new("toehold.conf"));
            let is_about_programs = known.subject == words::Subject::Program;
            assert_eq!(read.is_ok(), is_about_programs, "{text}");
        }
    }
}

#[test]
fn a_family_waits_as_the_first_rule_says_that_matches_one_of_it() {
    let rules = rules(
        "program other wait poll\n\
         user 33 wait event\n\
         unit nginx wait poll\n",
    );
    let program = |name: &str, uid| Program {
        name: name.to_owned(),
        uid: Some(uid),
        unit: Some(format!("{name}.service")),
    };
    let wait = |family: &[Program]| {
        let found = rules.wait(family);
        found.map(|(rule, mode)| (rule.origin.line, mode))
    };
    let family = [program("nginx", 0), program("nginx", 33)];
    assert_eq!(wait(&family), Some((2, WaitMode::Event)));
    assert_eq!(wait(&family[..1]), Some((3, WaitMode::Poll)));
    assert_eq!(wait(&[program("redis", 1)]), None);
    assert_eq!(wait(&[]), None);
}

#[test]
fn a_family_uses_express_as_the_first_rule_says_that_matches_one_of_it() {
    let rules = rules(
        "program nginx wait event\n\
         user 33 express off\n\
         program nginx express on\n",
    );
    let program = |uid| Program {
        name: "nginx".to_owned(),
        uid: Some(uid),
        unit: None,
    };
    let express = |family: &[Program]| {
        let found = rules.express(family);
        found.map(|(rule, is_on)| (rule.origin.line, is_on))
    };
    assert!(rules.has_program_option_rule());
    assert_eq!(express(&[program(0)]), Some((3, true)));
    assert_eq!(express(&[program(0), program(33)]), Some((2, false)));
    assert_eq!(express(&[]), None);
}

#[test]
fn a_missing_file_is_an_error_only_when_it_was_named() {
    let missing = |is_required| {
        let path = "/nonexistent/toehold.conf".into();
        Rules::read(&[RulesFile { path, is_required }])
    };
    assert!(missing(false).expect("nothing to read").is_empty());
    let error = missing(true).expect_err("it was named").to_string();
    assert!(error.starts_with("cannot read /nonexistent/toehold.conf: "));
}

#[test]
fn a_mark_at_the_beginning_of_a_file_is_no_word() {
    let file = tempfile::NamedTempFile::new().expect("room");
    std::fs::write(file.path(), "\u{feff}port 80 path host\r\n").expect("room");
    let path = file.path().into();
    let read = Rules::read(&[RulesFile {
        path,
        is_required: true,
    }]);
    assert_eq!(read.expect("valid").len(), 1);
}

#[test]
fn a_file_without_end_is_an_error() {
    let path = "/dev/zero".into();
    let read = Rules::read(&[RulesFile {
        path,
        is_required: true,
    }]);
    let error = read.expect_err("it has no end").to_string();
    assert_eq!(
        error,
        "cannot read /dev/zero: the file is larger than 4 MiB"
    );
}
