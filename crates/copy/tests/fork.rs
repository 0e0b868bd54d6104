//! A fork while copies are in flight: the parent loses no byte, and the child waits for no other
//! process.

use toehold_copy::{
    Auto, Buffer, Calibration, Channel, Cpu, CpuNt, Fault, Faulty, InjectedFaults, Operation,
    Override, Status, Waiting, Worker, WorkerOptions,
};

const LEN: usize = 4 << 20;

fn channels() -> Vec<Channel> {
    let mut calibration = Calibration::measure();
    let always = Override {
        inward: Some(1),
        outward: Some(1),
    };
    calibration.apply(always, "the test".to_owned());
    let worker = || Worker::start(WorkerOptions::default()).unwrap();
    let late = InjectedFaults {
        seed: 1,
        delay_polls_max: 20,
        ..InjectedFaults::default()
    };
    vec![
        Channel::new(worker(), 16),
        Channel::new(Auto::new(&calibration, Some(worker())), 16),
        Channel::new(Faulty::new(late), 16),
        Channel::new(Cpu::new(), 16),
        Channel::new(CpuNt::new(), 16),
    ]
}

/// The child uses a channel that was its parent's. True when everything is in order.
fn child_is_well(channel: &mut Channel, source: &[u8]) -> bool {
    let issued = channel.issued();
    channel.drain();
    let mut written_off = 0;
    for number in 1..=issued.get() {
        let cookie = toehold_copy::Cookie::new(number);
        match channel.wait(cookie, Waiting::PARK) {
            Ok(Status::Failed(Fault::Forked)) => written_off += 1,
            Ok(Status::Done { .. } | Status::Retired) => {}
            _ => return false,
        }
    }
    // The child's operations are done, in the last resort by the processor.
    let mut target = vec![0u8; 100_000];
    channel.scope(|scope| {
        scope
            .copy(&source[..100_000], &mut target)
            .wait(Waiting::PARK)
            .is_ok()
    }) && target == source[..100_000]
        && channel.counters().failed == written_off
}

#[test]
fn the_parent_gets_every_byte_and_the_child_does_not_hang() {
    for mut channel in channels() {
        for _ in 0..5 {
            let source: Vec<u8> = (0..LEN as u32)
                .map(|i| (i.wrapping_mul(77) >> 7) as u8)
                .collect();
            let mut targets: Vec<Buffer> = (0..4).map(|_| Buffer::new(LEN).unwrap()).collect();
            for target in &mut targets {
                let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), LEN);
                // SAFETY: source and targets live until the drain below.
                unsafe { channel.submit(operation) }.unwrap();
            }
            channel.flush();
            // SAFETY: the child uses this channel, fresh memory, and `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let well = child_is_well(&mut channel, &source);
                // A registered buffer belongs to the parent alone.
                let wiped = targets
                    .iter()
                    .all(|target| target[..4096].iter().all(|&b| b == 0));
                // SAFETY: ends the child without running the test harness's destructors.
                unsafe { libc::_exit(if well && wiped { 0 } else { 1 }) };
            }
            // After a fork the parent's writes would move ordinary pages away from under a device.
            channel.drain();
            for target in &targets {
                assert!(target[..] == source[..]);
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0, "the child of {}", channel.backend_name());
            assert_eq!(channel.counters().failed, 0);
        }
    }
}

#[test]
fn a_child_may_drop_its_parents_channel_and_open_its_own() {
    let channel = Channel::new(Worker::start(WorkerOptions::default()).unwrap(), 4);
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(channel);
        let mut own = toehold_copy::open(Some("worker"), 4).channel;
        let mut target = [0u8; 3];
        let copied = own.scope(|scope| {
            scope
                .copy(&[1, 2, 3], &mut target)
                .wait(Waiting::PARK)
                .is_ok()
        });
        let well = copied && target == [1, 2, 3] && own.backend_name() == "worker";
        drop(own);
        // SAFETY: as above.
        unsafe { libc::_exit(if well { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
}
