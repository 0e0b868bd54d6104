//! The `dmadev` engine on DPDK's skeleton device:
//! `cargo test -p toehold-copy --features dmadev --test dmadev`.
//!
//! One test, because a process has one DPDK and the skeleton is one device.
#![cfg(feature = "dmadev")]

use toehold_copy::{
    Buffer, Channel, Dmadev, Flags, Operation, Status, SubmitError, Waiting, crc32c, open,
};

#[test]
fn the_skeleton_device_copies_registered_memory() {
    let device = Dmadev::open(64).unwrap();
    // The only device is taken: a second open returns a sentence and a working channel.
    let other = open(Some("dmadev"), 8);
    assert_eq!(other.channel.backend_name(), "cpu");
    assert_eq!(
        other.notes,
        ["dma_skeleton is in use; the processor copies instead"]
    );

    let mut channel = Channel::new(device, 128);
    let mut source = Buffer::new(1 << 20).unwrap();
    for (i, byte) in source.iter_mut().enumerate() {
        *byte = (i.wrapping_mul(31) >> 4) as u8;
    }
    let mut target = Buffer::new(1 << 20).unwrap();

    // All entries are in use at once, and there are more than the device's queue holds.
    for round in 0..20usize {
        target.fill(0);
        for at in 0..128 {
            let len = 8192 - round * 37;
            let (from, to) = (
                source[at * 8192..].as_ptr(),
                target[at * 8192..].as_mut_ptr(),
            );
            // SAFETY: within both buffers, which outlive the drain.
            unsafe { channel.submit(Operation::copy(from, to, len)) }.unwrap();
        }
        channel.drain();
        for at in (0..1 << 20).step_by(8192) {
            let len = 8192 - round * 37;
            assert!(target[at..at + len] == source[at..at + len]);
        }
    }
    assert_eq!(channel.counters().failed, 0);

    // The processor does the operations that the device cannot do.
    channel.scope(|scope| {
        let (bytes, sum) = scope
            .copy_crc32c(&source, &mut target, 0)
            .wait_crc32c(Waiting::YIELD)
            .unwrap();
        assert_eq!(sum, crc32c(0, bytes));
    });
    channel.scope(|scope| drop(scope.fill(&mut target, 0x0101_0101_0101_0101)));
    assert!(target.iter().all(|&byte| byte == 1));

    // Memory that a fork may copy on write is refused.
    let mut private = vec![0u8; 100];
    let operation = Operation::copy(source.as_ptr(), private.as_mut_ptr(), 100);
    // SAFETY: refused.
    let refused = unsafe { channel.submit(operation) };
    assert_eq!(refused, Err(SubmitError::NotRegistered));
    let parts = ([(source.as_ptr(), 100)], [(private.as_mut_ptr(), 100)]);
    // SAFETY: refused.
    let refused = unsafe { channel.copy_vectored(&parts.0, &parts.1, Flags::NONE) };
    assert_eq!(refused, Err(SubmitError::NotRegistered));

    // A fork while a copy is in flight: every byte arrives here, and the child copies with the
    // processor.
    let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), 1 << 20);
    // SAFETY: both outlive the drain.
    unsafe { channel.submit(operation) }.unwrap();
    channel.flush();
    // SAFETY: the child uses the channel and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        channel.drain();
        let well = channel.scope(|scope| scope.fill(&mut target, 7).wait(Waiting::YIELD).is_ok());
        // SAFETY: leaves without running destructors.
        unsafe { libc::_exit(if well && target[8] == 7 { 0 } else { 1 }) };
    }
    let last = channel.issued();
    assert_eq!(
        channel.wait(last, Waiting::YIELD),
        Ok(Status::Done { crc32c: 0 })
    );
    assert!(target[..] == source[..]);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);

    // A device that was given back can be taken again.
    drop(channel);
    assert_eq!(open(Some("dmadev"), 8).channel.backend_name(), "dmadev");
}
