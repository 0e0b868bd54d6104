//! Every state that a user can see. An engine that misbehaves on request drives the channel through
//! the states.

use std::time::Duration;

use toehold_copy::{
    Channel, Cookie, Cpu, Fault, Faulty, Flags, InjectedFaults, Operation, Recovery, Status,
    SubmitError, TimedOut, Waiting,
};

const LEN: usize = 10_000;

/// A channel whose engine has this mischief, and memory for one copy.
fn faulty(faults: InjectedFaults) -> (Channel, Vec<u8>, Vec<u8>) {
    let source = (0..LEN as u32).map(|i| ((i * 17) >> 2) as u8).collect();
    (Channel::new(Faulty::new(faults), 8), source, vec![0; LEN])
}

fn submit(channel: &mut Channel, source: &[u8], target: &mut [u8]) -> Result<Cookie, SubmitError> {
    let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), source.len());
    // SAFETY: every test keeps both alive until the channel has ended the copy, and looks only at
    // bytes that are in place.
    unsafe { channel.submit(operation) }
}

#[test]
fn progress_grows_and_what_it_covers_is_in_place() {
    let (mut channel, source, mut target) = faulty(InjectedFaults {
        seed: 3,
        delay_polls_max: 40,
        ..InjectedFaults::default()
    });
    let mut seen_partly = false;
    for _ in 0..8 {
        target.fill(0);
        let cookie = submit(&mut channel, &source, &mut target).unwrap();
        let mut before = 0;
        while channel.poll() < cookie {
            let Status::Pending { bytes } = channel.status(cookie) else {
                panic!("not over yet")
            };
            assert!(bytes >= before && bytes < LEN);
            assert_eq!(target[..bytes], source[..bytes]);
            seen_partly |= bytes > 0;
            before = bytes;
        }
        assert_eq!(channel.progress(cookie), LEN);
        assert_eq!(target, source);
    }
    assert!(seen_partly);
}

#[test]
fn a_partial_copy_is_finished_by_the_processor_and_counted() {
    let (mut channel, source, mut target) = faulty(InjectedFaults {
        seed: 1,
        partial_in_256: 256,
        ..InjectedFaults::default()
    });
    let cookie = submit(&mut channel, &source, &mut target).unwrap();
    assert_eq!(
        channel.wait(cookie, Waiting::SPIN),
        Ok(Status::Done { crc32c: 0 })
    );
    assert_eq!(target, source);
    assert_eq!(channel.counters().finished_by_processor, 1);
    assert_eq!(channel.counters().failed, 0);
}

#[test]
fn a_partial_copy_can_be_reported_instead() {
    let (mut channel, source, mut target) = faulty(InjectedFaults {
        seed: 1,
        partial_in_256: 256,
        ..InjectedFaults::default()
    });
    channel.set_recovery(Recovery::Report);
    let cookie = submit(&mut channel, &source, &mut target).unwrap();
    let status = channel.wait(cookie, Waiting::SPIN).unwrap();
    let Status::Failed(Fault::Address { address, bytes }) = status else {
        panic!("{status:?}")
    };
    assert_eq!(address, target.as_ptr() as usize + bytes);
    assert_eq!(target[..bytes], source[..bytes]);
    assert!(target[bytes..].iter().all(|&byte| byte == 0));
    assert_eq!(channel.progress(cookie), 0);
    assert_eq!(channel.counters().failed, 1);
    assert_eq!(channel.watermark(), cookie);
}

#[test]
fn an_engine_that_goes_away_takes_nothing_with_it() {
    for recovery in [Recovery::Processor, Recovery::Report] {
        let (mut channel, source, mut target) = faulty(InjectedFaults {
            delay_polls_max: 0,
            gone_after: 1,
            ..InjectedFaults::default()
        });
        channel.set_recovery(recovery);
        let first = submit(&mut channel, &source, &mut target).unwrap();
        let status = channel.wait(first, Waiting::SPIN).unwrap();
        match recovery {
            Recovery::Processor => assert_eq!(status, Status::Done { crc32c: 0 }),
            Recovery::Report => assert_eq!(status, Status::Failed(Fault::Gone)),
        }
        // From now on the processor copies, and its copies always succeed.
        target.fill(0);
        let second = submit(&mut channel, &source, &mut target).unwrap();
        assert_eq!(
            channel.wait(second, Waiting::SPIN),
            Ok(Status::Done { crc32c: 0 })
        );
        assert_eq!(target, source);
        assert_eq!(channel.counters().refused, 1);
    }
}

#[test]
fn a_full_queue_holds_and_a_full_channel_refuses() {
    let (mut channel, source, _) = faulty(InjectedFaults {
        seed: 9,
        delay_polls_max: 1000,
        queue_entries: 2,
        ..InjectedFaults::default()
    });
    let mut targets = vec![vec![0u8; LEN]; 9];
    for target in &mut targets[..8] {
        submit(&mut channel, &source, target).unwrap();
    }
    assert!(channel.counters().queue_full > 0);
    assert_eq!(
        submit(&mut channel, &source, &mut targets[8]),
        Err(SubmitError::Full)
    );
    assert_eq!(channel.issued().get(), 8);
    channel.drain();
    assert_eq!(channel.vacant(), 8);
    submit(&mut channel, &source, &mut targets[8]).unwrap();
    channel.drain();
    assert!(targets.iter().all(|target| *target == source));
}

#[test]
fn completions_out_of_order_leave_the_watermark_behind() {
    let mut overtaken = 0;
    for seed in 0..20 {
        let (mut channel, source, _) = faulty(InjectedFaults {
            seed,
            delay_polls_max: 10,
            reorder: true,
            ..InjectedFaults::default()
        });
        let mut targets = vec![vec![0u8; LEN]; 6];
        for target in &mut targets {
            submit(&mut channel, &source, target).unwrap();
        }
        while channel.watermark() < channel.issued() {
            let mark = channel.poll();
            for number in 1..=6 {
                let cookie = Cookie::new(number);
                let is_over = channel.status(cookie).is_over();
                assert!(is_over || cookie > mark);
                overtaken += u32::from(is_over && cookie > mark);
            }
        }
    }
    assert!(overtaken > 0);
}

#[test]
fn a_fence_waits_for_everything_before_it() {
    for seed in 0..50 {
        let (mut channel, source, mut middle) = faulty(InjectedFaults {
            seed,
            delay_polls_max: 9,
            reorder: true,
            ..InjectedFaults::default()
        });
        let mut end = vec![0u8; LEN];
        submit(&mut channel, &source, &mut middle).unwrap();
        // The second operation reads the memory that the first one writes.
        let second = Operation::copy(middle.as_ptr(), end.as_mut_ptr(), LEN).with(Flags::FENCE);
        // SAFETY: all three live until the drain, and the fence orders the two uses of `middle`.
        unsafe { channel.submit(second) }.unwrap();
        channel.drain();
        assert_eq!(end, source);
    }
}

#[test]
fn a_deadline_ends_the_waiting_and_not_the_copy() {
    let (mut channel, source, mut target) = faulty(InjectedFaults {
        seed: 2,
        delay_polls_max: u32::MAX - 1,
        ..InjectedFaults::default()
    });
    let cookie = submit(&mut channel, &source, &mut target).unwrap();
    for waiting in [Waiting::SPIN, Waiting::YIELD, Waiting::PARK] {
        let brief = waiting.with_spins(1).at_most(Duration::from_micros(1));
        assert_eq!(channel.wait(cookie, brief), Err(TimedOut));
        assert_eq!(channel.wait_through(cookie, brief), Err(TimedOut));
    }
    assert!(!channel.status(cookie).is_over());
    // This copy would take all day, and dropping the channel would wait for it: leak both.
    std::mem::forget((channel, source, target));
}

#[test]
fn an_old_cookie_is_retired() {
    let mut channel = Channel::new(Cpu::new(), 2);
    let (source, mut target) = ([1u8; 4], [0u8; 4]);
    let first = submit(&mut channel, &source, &mut target).unwrap();
    for _ in 0..2 {
        submit(&mut channel, &source, &mut target).unwrap();
    }
    assert_eq!(channel.status(first), Status::Retired);
    assert_eq!(channel.wait(first, Waiting::SPIN), Ok(Status::Retired));
}

#[test]
#[should_panic(expected = "is not of this channel")]
fn a_cookie_from_elsewhere_is_refused() {
    Channel::new(Cpu::new(), 2).status(Cookie::new(1));
}

#[test]
fn lists_that_cannot_be_are_refused_whole() {
    let mut channel = Channel::new(Cpu::new(), 2);
    let (source, mut target) = ([1u8; 8], [0u8; 8]);
    let (from, to) = (source.as_ptr(), target.as_mut_ptr());
    let mut copy = |sources: &[(*const u8, usize)], targets: &[(*mut u8, usize)]| {
        // SAFETY: refused, or within the two arrays.
        unsafe { channel.copy_vectored(sources, targets, Flags::NONE) }
    };
    assert_eq!(copy(&[(from, 8)], &[(to, 7)]), Err(SubmitError::Uneven));
    assert_eq!(
        copy(&[(from, usize::MAX), (from, 2)], &[(to, 1)]),
        Err(SubmitError::TooLong)
    );
    let eight: Vec<(*const u8, usize)> = (0..8).map(|i| (from.wrapping_add(i), 1)).collect();
    assert_eq!(copy(&eight, &[(to, 8)]), Err(SubmitError::TooManyParts));
    assert_eq!(
        copy(&[(to.cast_const(), 4)], &[(to, 4)]),
        Err(SubmitError::Overlap)
    );
    assert_eq!(
        copy(&[(std::ptr::null(), 4)], &[(to, 4)]),
        Err(SubmitError::Null)
    );
    assert_eq!(copy(&[(from, 0), (std::ptr::null(), 0)], &[]), Ok(None));
    assert_eq!(target, [0; 8]);
    assert_eq!(channel.issued(), Cookie::NONE);
}
