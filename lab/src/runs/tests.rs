//! Tests of the summaries of runs, with samples that are known.

use super::record::{SCHEMA, Sample};
use super::*;
use toehold_measure::procfs::ProcessMemory;

use crate::generator::{Latency, Load, Outcome, Standing, TierCost};

const PLAN: &str = "name = \"a\"\nabout = \"About <it>.\"\nrounds = 6\n\
    published = [\"TOE-HOTSPOT\"]\n\
    [[arm]]\nname = \"kernel\"\npath = \"host\"\n\
    [[arm]]\nname = \"direct\"\npath = \"direct\"\n\
    [[arm]]\nname = \"alone\"\npath = \"direct\"\nserver-path = \"host\"\ncontrol = true\n\
    [[arm]]\nname = \"limit\"\npath = \"limit\"\n\
    [[block]]\ntitle = \"small\"\nmetric = \"latency-p50\"\npattern = \"ping-pong\"\n\
    sweep = { factor = \"message\", values = [1, 64] }\n\
    [[block.published]]\nid = \"P099\"\nx = 1\narm = \"direct\"\nnote = \"other days\"\n";

fn record(latency: impl Fn(&str) -> f64) -> Record {
    made_up(PlanFile::parse(PLAN, "p").expect("valid"), latency)
}

/// A finished run of six rounds with known latencies in nanoseconds, by arm.
pub(super) fn made_up(mut plan: PlanFile, latency: impl Fn(&str) -> f64) -> Record {
    plan.rounds = 6;
    let mut record = Record {
        schema: SCHEMA.to_owned(),
        plan: plan.clone(),
        command: "toehold lab run a".to_owned(),
        environment: Environment::capture(),
        seed: 1,
        rounds_done: 6,
        samples: Vec::new(),
        stayed: Vec::new(),
        steal: Vec::new(),
        missing: Vec::new(),
        crossings: Vec::new(),
    };
    for round in 0..6 {
        for (at, block) in plan.blocks.iter().enumerate() {
            for x in block.points() {
                for arm in record.arms() {
                    // The values differ slightly from round to round, equally for all arms.
                    let nanos = (latency(&arm) * (100.0 + round as f64) / 100.0) as u64;
                    record.samples.push(Sample {
                        round,
                        block: at,
                        x,
                        arm: arm.clone(),
                        outcome: Some(outcome(block.load(x, &plan.arms[0], 1.0), nanos)),
                        failure: None,
                    });
                }
            }
        }
    }
    record
}

fn outcome(load: Load, nanos: u64) -> Outcome {
    let operations = 1_000_000_000 / nanos.max(1);
    Outcome {
        schema: "s".to_owned(),
        kind: "closed loop".to_owned(),
        seconds: 1.0,
        operations,
        bytes: operations * load.message as u64,
        unanswered: 0,
        latency: Some(Latency {
            p50: nanos,
            p99: nanos,
            p99_9: nanos,
            max: nanos,
            mean: nanos as f64,
            histogram: vec![(nanos, operations)],
        }),
        cpu_all: Some(1.0),
        cpu_softirq: Some(0.1),
        memory: None,
        digest: None,
        tiers: Vec::new(),
        standing: None,
        load,
    }
}

fn usual(arm: &str) -> f64 {
    match arm {
        "direct" => 1000.0,
        "limit" => 500.0,
        _ => 20_000.0,
    }
}

#[test]
fn every_plan_of_the_lab_can_be_read() {
    let mut names: Vec<String> = known().into_iter().map(|plan| plan.name).collect();
    assert!(names.contains(&"quick".to_owned()));
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
    let quick = known()
        .into_iter()
        .find(|plan| plan.name == "quick")
        .expect("there");
    let seconds = quick.duration();
    assert!(seconds < 300.0, "{seconds}");
    // A connection of `connections` makes 80 requests before the warm-up: at 50,000 these are 40 s
    // of each sample, and its measured part is 2 s.
    let connections = known()
        .into_iter()
        .find(|plan| plan.name == "connections")
        .expect("there");
    let seconds = connections.duration();
    assert!((1500.0..3600.0).contains(&seconds), "{seconds}");
    for series in Series::ALL {
        let seconds: f64 = series.plans().iter().map(PlanFile::duration).sum();
        // The rest of two hours is for experiments within one process (ioat-copy), and for work
        // that the estimate does not include.
        let rest = match series {
            Series::Paper => 1200.0,
            Series::Applications => 600.0,
        };
        assert!(
            (60.0..7200.0 - rest).contains(&seconds),
            "{series:?}: {seconds}"
        );
    }
}

#[test]
fn published_experiments_that_plans_name_exist() {
    for plan in known() {
        for id in &plan.published {
            assert!(!crate::published_of(id).is_empty(), "{}: {id}", plan.name);
        }
    }
}

#[test]
fn a_conclusion_says_what_helped_by_how_much_and_against_what() {
    let text = summary::text(&record(usual));
    let sentence = "small: \"direct\" helped most: latency p50 at 64 is 20.0x lower than \
                    \"kernel\" (95 % interval 20.0x to 20.0x), better at 2 of 2 points.";
    assert!(text.contains(sentence), "{text}");
    // Twice the limit's time is half of it.
    assert!(text.contains(" 0.500\n"), "{text}");
    assert!(
        text.contains("negative control \"alone\": no difference at any of 2 points"),
        "{text}"
    );
    assert!(
        text.contains("negative control \"kernel again\": no difference"),
        "{text}"
    );
}

#[test]
fn a_conclusion_stays_one_sentence_however_many_arms_there_are() {
    let mut plan = PlanFile::parse(PLAN, "p").expect("valid");
    for at in 0..6 {
        let mut arm = plan.arms[1].clone();
        arm.name = format!("more {at}");
        plan.arms.push(arm);
    }
    let text = summary::text(&made_up(plan.clone(), |arm| match arm {
        "direct" => 10_000.0,
        "more 0" | "more 1" => 15_000.0,
        arm if arm.starts_with("more") => 30_000.0,
        _ => 20_000.0,
    }));
    let sentence = "small: \"direct\" helped most: latency p50 at 64 is 2.00x lower than \
                    \"kernel\" (95 % interval 2.00x to 2.00x), better at 2 of 2 points; also \
                    better: \"more 0\", \"more 1\"; worse: 4 arms.";
    assert!(text.contains(sentence), "{text}");
    let text = summary::text(&made_up(plan, |_| 20_000.0));
    let sentence = "nothing helped; closest is \"direct\": latency p50 at 64 is 0.0 % higher than \
                    \"kernel\" (95 % interval +0.0 % to +0.0 %), no detectable difference.";
    assert!(text.contains(sentence), "{text}");
}

#[test]
fn crossings_are_counted_for_each_operation() {
    let mut record = record(usual);
    record.crossings.push(record::Crossing {
        block: 0,
        arm: "direct".to_owned(),
        operations: 1000,
        calls_client: Some(4007),
        doorbells: Some(0.5),
        ..record::Crossing::default()
    });
    let text = summary::text(&record);
    let line = "small, direct: system calls, client 4.01, system calls, server -, doorbells 0.5,";
    assert!(text.contains(line), "{text}");
    assert!(page::html(&record).contains("Crossings, for each operation"));
}

#[test]
fn costs_of_processes_stand_beside_connections_in_shared_memory() {
    let text = "name = \"a\"\nabout = \"b\"\nprocesses = true\n\
        [[arm]]\nname = \"kernel\"\npath = \"host\"\n\
        [[arm]]\nname = \"direct\"\npath = \"direct\"\n\
        [[block]]\ntitle = \"t\"\nmetric = \"rate\"\npattern = \"requests\"\nactive = 2\n\
        sweep = { factor = \"streams\", values = [1, 50000] }\n";
    let plan = PlanFile::parse(text, "p").expect("valid");
    let active = |x| plan.blocks[0].load(x, &plan.arms[0], 1.0).active;
    assert_eq!([1.0, 50_000.0].map(active), [Some(1), Some(2)]);
    let mut record = made_up(plan, usual);
    for sample in &mut record.samples {
        let outcome = sample.outcome.as_mut().expect("made up");
        let names = match sample.arm.as_str() {
            "direct" => &["client", "server", "adapter"][..],
            _ => &["client", "server"],
        };
        let tiers = names.iter().map(|name| TierCost {
            name: (*name).to_owned(),
            cores: 0.5,
            memory: Some(ProcessMemory {
                resident: 4 << 20,
                proportional: 3 << 20,
                page_tables: 1 << 20,
            }),
        });
        outcome.tiers = tiers.collect();
        outcome.standing = Some(Standing {
            clients: if sample.x > 1.0 { 3 } else { 1 },
            direct: 28_672,
            socket_buffers: Some(2 << 20),
        });
    }
    let text = summary::text(&record);
    let each = "0.50 cores, 0.512 us, 3.000 + 1.000 MB";
    let line = format!(
        "  at 50000, direct: client {each}; server {each}; adapter {each}; in shared memory 28672; \
         socket buffers 2.000 MB\n"
    );
    assert!(text.contains(&line), "{text}");
    assert!(
        text.contains("note: t at 50000: 3 clients with a server each"),
        "{text}"
    );
    let page = page::html(&record);
    assert!(page.contains("CPU and memory of each process"));
    let memory = record.samples(0, 1.0, "direct", headline::Headline::MemoryOfProcesses);
    assert_eq!(memory.median(), 12.0);
}

#[test]
fn costs_of_processes_are_those_of_requests_on_loopback() {
    let refused = |settings: [&str; 2]| {
        let [arm, pattern] = settings;
        let text = format!(
            "name = \"a\"\nabout = \"b\"\nprocesses = true\n[[arm]]\nname = \"kernel\"\n{arm}\n\
             [[block]]\ntitle = \"t\"\nmetric = \"rate\"\npattern = \"{pattern}\"\n"
        );
        PlanFile::parse(&text, "p")
            .map(|_| ())
            .map_err(|error| error.sentence)
    };
    assert_eq!(refused(["path = \"host\"", "requests"]), Ok(()));
    for settings in [
        ["path = \"host\"", "ping-pong"],
        ["path = \"sockmap\"", "requests"],
        ["path = \"host\"\nlink = \"veth\"", "requests"],
        ["path = \"host\"\nfamily = \"unix\"", "requests"],
    ] {
        let why = refused(settings).expect_err("refused");
        assert!(why.contains("costs of processes are those"), "{why}");
    }
}

#[test]
fn an_arm_that_cannot_be_here_is_a_note() {
    let mut record = record(usual);
    record.missing.push(record::Missing {
        arm: "direct".to_owned(),
        why: "no reason".to_owned(),
    });
    assert!(summary::text(&record).contains("note: \"direct\" was left out: no reason\n"));
}

#[test]
fn a_percentile_with_few_operations_beyond_it_is_a_note() {
    let text = |metric: &str, nanos: f64| {
        let plan = PLAN.replace("latency-p50", metric);
        let plan = PlanFile::parse(&plan, "p").expect("valid");
        summary::text(&made_up(plan, |_| nanos))
    };
    // The slowest round of each arm has a twentieth less.
    let few = text("latency-p99", 1_000_000.0);
    let said = "note: small at 64: in a sample of 952 operations no more than 10 are slower than \
                its latency p99, us, so one stall of the host decides it: sample longer\n";
    assert!(few.contains(said), "{few}");
    assert!(!text("latency-p99", 400_000.0).contains("sample longer"));
    assert!(text("latency-p999", 400_000.0).contains("sample longer"));
    assert!(!text("latency-p50", 1_000_000.0).contains("sample longer"));
}

#[test]
fn a_small_part_of_the_limit_keeps_its_digits() {
    let text = summary::text(&record(|arm| match arm {
        "kernel" => 123_400.0,
        arm => usual(arm),
    }));
    assert!(text.contains(" 0.00405\n"), "{text}");
}

#[test]
fn a_control_that_differs_is_reported_prominently() {
    let text = summary::text(&record(
        |arm| if arm == "alone" { 30_000.0 } else { usual(arm) },
    ));
    assert!(
        text.contains("negative control \"alone\" DIFFERS at 2 of 2 points"),
        "{text}"
    );
}

#[test]
fn the_page_has_everything_and_needs_nothing() {
    let mut record = record(usual);
    record.stayed.push("direct (small)".to_owned());
    record.samples[3].failure = Some("gone".to_owned());
    record.samples[3].outcome = None;
    let page = page::html(&record);
    for wanted in [
        "class=banner",
        "class=conclusion",
        "<p class=said>Every connection stayed on the kernel, so there is nothing to compare.</p>",
        "stayed on the kernel",
        "<svg",
        "published: 10GigE TOE",
        "Published, on the machines of the time, and measured here",
        "TOE-HOTSPOT",
        "a.csv",
        "gone",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(page.contains("About &lt;it&gt;") && !page.contains("NaN"));
    for forbidden in ["http:", "https:", "<script", "src=", "url("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn a_run_comes_back_from_disk_and_a_failed_write_keeps_the_old_one() {
    let folder = tempfile::tempdir().expect("room");
    let folder = folder.path();
    let mut record = record(usual);
    record.save(folder).expect("room");
    // The next file cannot be created: its place is taken by a folder.
    fs::create_dir(folder.join("run.json.next")).expect("room");
    record.rounds_done = 1;
    assert!(
        record
            .save(folder)
            .expect_err("no file")
            .sentence
            .contains("checkpoint")
    );
    let back = Record::load(folder).expect("the old one");
    assert_eq!(
        (back.rounds_done, back.samples.len()),
        (6, record.samples.len())
    );
    assert_eq!(
        back.csv().lines().next(),
        Some("block,x,arm,round,metric,value")
    );
    fs::write(folder.join("run.json"), "{}").expect("room");
    assert!(Record::load(folder).expect_err("no run").is_usage);
}

#[test]
fn runs_of_different_machines_are_not_compared_unasked() {
    let folder = tempfile::tempdir().expect("room");
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let mut record = record(usual);
    record.save(&a).expect("room");
    record.environment.kernel = "9.9".to_owned();
    record.save(&b).expect("room");
    assert!(compare(&a, &a, false, false).is_ok());
    assert!(
        compare(&a, &b, false, false)
            .expect_err("refused")
            .sentence
            .contains("--any-machine")
    );
    assert!(compare(&a, &b, true, true).is_ok());
}
