//! The safe interface: safe code that holds a ticket cannot free or expose memory in flight.

use std::panic::{AssertUnwindSafe, catch_unwind};

use toehold_copy::{
    Buffer, Channel, Faulty, InjectedFaults, Waiting, Worker, WorkerOptions, crc32c,
};

fn worker(entries: usize) -> Channel {
    Channel::new(Worker::start(WorkerOptions::default()).unwrap(), entries)
}

fn slow() -> Channel {
    let faults = InjectedFaults {
        seed: 5,
        delay_polls_max: 50,
        reorder: true,
        ..InjectedFaults::default()
    };
    Channel::new(Faulty::new(faults), 4)
}

#[test]
fn a_forgotten_ticket_is_waited_for() {
    for mut channel in [worker(4), slow()] {
        let source = vec![9u8; 3 << 20];
        let mut target = vec![0u8; 3 << 20];
        channel.scope(|scope| {
            Box::leak(Box::new(scope.copy(&source, &mut target)));
        });
        assert!(target == source);
    }
}

#[test]
fn a_panic_in_the_scope_waits_too() {
    for mut channel in [worker(4), slow()] {
        let source = vec![9u8; 3 << 20];
        let mut target = vec![0u8; 3 << 20];
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            channel.scope(|scope| {
                let _ticket = scope.copy(&source, &mut target);
                panic!("in the middle");
            })
        }));
        assert!(panicked.is_err());
        assert!(target == source);
    }
}

#[test]
fn the_beginning_can_be_used_before_the_end_is_there() {
    for mut channel in [worker(4), slow()] {
        let source: Vec<u8> = (0..4u32 << 20).map(|i| (i >> 5) as u8).collect();
        let mut target = vec![0u8; source.len()];
        channel.scope(|scope| {
            let ticket = scope.copy(&source, &mut target);
            let mut before = 0;
            while !ticket.is_over() {
                let ready = ticket.ready();
                assert!(ready.len() >= before);
                // The last byte that is reported as present, and some others.
                assert!(
                    ready
                        .iter()
                        .zip(&source)
                        .rev()
                        .take(100)
                        .all(|(a, b)| a == b)
                );
                before = ready.len();
            }
            assert_eq!(ticket.wait(Waiting::PARK).unwrap().len(), source.len());
        });
    }
}

#[test]
fn more_loans_than_entries_are_queued_and_every_result_is_kept() {
    for mut channel in [worker(2), slow()] {
        let sources: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; 1000 + usize::from(i)]).collect();
        let mut targets: Vec<Vec<u8>> = sources.iter().map(|s| vec![0xff; s.len()]).collect();
        channel.scope(|scope| {
            let tickets: Vec<_> = sources
                .iter()
                .zip(&mut targets)
                .map(|(source, target)| scope.copy_crc32c(source, target, 0))
                .collect();
            for (ticket, source) in tickets.into_iter().zip(&sources) {
                let (bytes, sum) = ticket.wait_crc32c(Waiting::PARK).unwrap();
                assert_eq!(bytes, source);
                assert_eq!(sum, crc32c(0, source));
            }
        });
    }
}

#[test]
fn a_returned_target_can_be_used_while_others_are_lent() {
    let mut channel = worker(8);
    let source = [1u8, 2, 3];
    let (mut first, mut second) = ([0u8; 3], Buffer::new(3 << 20).unwrap());
    channel.scope(|scope| {
        let small = scope.copy(&source, &mut first);
        let large = scope.fill(&mut second, 0x0101_0101_0101_0101);
        let bytes = small.wait(Waiting::SPIN).unwrap();
        bytes[0] = 7;
        drop(large);
    });
    assert_eq!(first, [7, 2, 3]);
    assert!(second.iter().all(|&byte| byte == 1));
}

#[test]
#[should_panic(expected = "shorter than the source")]
fn a_short_target_is_refused() {
    let mut target = [0u8; 2];
    worker(2).scope(|scope| drop(scope.copy(&[1, 2, 3], &mut target)));
}
