//! The `dsa` engine on an emulated device, and its layouts against the kernel's header.

use std::io::Write;
use std::process::{Command, Stdio};

use toehold_copy::dsa::descriptor::{Descriptor, Record, flag, opcode, status};
use toehold_copy::dsa::{DeviceFaults, Dsa, Emulated};
use toehold_copy::{Channel, Fault, Operation, Recovery, Status, Waiting, crc32c};

fn channel(faults: DeviceFaults, entries: usize, piece_max: usize) -> Channel {
    Channel::new(
        Dsa::new(Emulated::new(faults), entries, piece_max).unwrap(),
        entries,
    )
}

fn source(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(40503) >> 8) as u8)
        .collect()
}

#[test]
fn whatever_the_device_does_the_bytes_are_right() {
    let fault_sets = [
        DeviceFaults::default(),
        DeviceFaults {
            queue: 1,
            ..DeviceFaults::default()
        },
        DeviceFaults {
            fault_every: 3,
            ..DeviceFaults::default()
        },
        DeviceFaults {
            fault_every: 2,
            exaggerates: true,
            error_every: 5,
            ..DeviceFaults::default()
        },
        DeviceFaults {
            dies_after: 7,
            ..DeviceFaults::default()
        },
        DeviceFaults {
            queue: 2,
            dies_after: 1,
            fault_every: 1,
            ..DeviceFaults::default()
        },
    ];
    for faults in fault_sets {
        let mut channel = channel(faults, 8, 5000);
        for round in 0..4 {
            let lens = [0, 1, 63, 4999, 5000, 5001, 40_000, 123_457];
            let sources: Vec<Vec<u8>> = lens.iter().map(|&len| source(len)).collect();
            let mut targets: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
            let mut filled = vec![0u8; 12_345];
            let mut summed = vec![0u8; 5555];
            channel.scope(|scope| {
                for (source, target) in sources.iter().zip(&mut targets) {
                    let _in_flight = scope.copy(source, target);
                }
                let _in_flight = scope.fill(&mut filled, 0x0807_0605_0403_0201);
                let (_, sum) = scope
                    .copy_crc32c(&sources[7][..5555], &mut summed, 0)
                    .wait_crc32c(Waiting::YIELD)
                    .unwrap();
                assert_eq!(sum, crc32c(0, &sources[7][..5555]));
            });
            // The engine believes a device that exaggerates, up to the length of the request: such
            // a device claims bytes that it has not written.
            if !faults.exaggerates {
                assert!(targets == sources, "{faults:?} in round {round}");
                assert!(
                    filled
                        .iter()
                        .enumerate()
                        .all(|(i, &b)| usize::from(b) == i % 8 + 1)
                );
            }
        }
        let counters = channel.counters();
        assert_eq!(counters.failed, 0);
        let troubled = faults.fault_every + faults.error_every + faults.dies_after > 0;
        assert_eq!(counters.finished_by_processor > 0, troubled, "{faults:?}");
    }
}

#[test]
fn a_missing_page_is_reported_where_it_was() {
    let mut channel = channel(
        DeviceFaults {
            fault_every: 2,
            ..DeviceFaults::default()
        },
        4,
        1000,
    );
    channel.set_recovery(Recovery::Report);
    let (source, mut target) = (source(2500), vec![0; 2500]);
    let operation = Operation::copy(source.as_ptr(), target.as_mut_ptr(), 2500);
    // SAFETY: both live until the wait is over.
    let cookie = unsafe { channel.submit(operation) }.unwrap();
    let address = target.as_ptr() as usize + 1500;
    let fault = Fault::Address {
        address,
        bytes: 1500,
    };
    assert_eq!(
        channel.wait(cookie, Waiting::YIELD),
        Ok(Status::Failed(fault))
    );
    assert_eq!(target[..1500], source[..1500]);
}

#[test]
fn pieces_tell_progress() {
    let mut channel = channel(DeviceFaults::default(), 4, 4096);
    let source = source(4 << 20);
    let mut target = vec![0u8; 4 << 20];
    channel.scope(|scope| {
        let ticket = scope.copy(&source, &mut target);
        while !ticket.is_over() {
            let ready = ticket.ready();
            assert!(ready.len() % 4096 == 0);
            assert_eq!(
                ready.last().copied(),
                ready.len().checked_sub(1).map(|i| source[i])
            );
        }
    });
    assert!(target == source);
}

#[test]
fn a_vanished_device_leaves_its_work_to_the_processor() {
    let mut channel = channel(
        DeviceFaults {
            dies_after: 2,
            ..DeviceFaults::default()
        },
        8,
        1 << 20,
    );
    let sources: Vec<Vec<u8>> = (0..6).map(|_| source(9000)).collect();
    let mut targets = vec![vec![0u8; 9000]; 6];
    channel.scope(|scope| {
        for (source, target) in sources.iter().zip(&mut targets) {
            let _in_flight = scope.copy(source, target);
        }
    });
    assert!(targets == sources);
    assert!(channel.counters().finished_by_processor > 0);
    let mut target = vec![0u8; 9000];
    channel.scope(|scope| drop(scope.copy(&sources[0], &mut target)));
    assert!(channel.counters().refused > 0);
    assert_eq!(target, sources[0]);
}

/// Offsets and values that the C compiler finds in the kernel's header.
#[test]
fn layouts_and_constants_are_the_kernels() {
    const PROGRAM: &str = r#"
        #include <linux/idxd.h>
        #include <stddef.h>
        #include <stdio.h>
        #define D(f) (int)offsetof(struct dsa_hw_desc, f)
        #define R(f) (int)offsetof(struct dsa_completion_record, f)
        int main(void) {
            struct dsa_hw_desc d = { .flags = 0xabcdef, .opcode = 0x12 };
            printf("%d %d %d %d %d %d %d %d %x\n",
            (int)sizeof(struct dsa_hw_desc), D(completion_addr),
                D(src_addr), D(pattern), D(dst_addr), D(xfer_size), D(int_handle), D(op_specific),
                ((unsigned *)&d)[1]);
            printf("%d %d %d %d %d\n",
            (int)sizeof(struct dsa_completion_record), R(status), R(bytes_completed),
                R(fault_addr), R(op_specific));
            printf("%d %d\n", DSA_OPCODE_MEMMOVE, DSA_OPCODE_MEMFILL);
            printf("%d %d %d\n",
            IDXD_OP_FLAG_CRAV, IDXD_OP_FLAG_RCR, IDXD_OP_FLAG_CC);
            printf("%d %d %d %d %d\n", DSA_COMP_NONE, DSA_COMP_SUCCESS, DSA_COMP_PAGE_FAULT_NOBOF,
                DSA_COMP_BAD_OPCODE, DSA_COMP_STATUS_MASK);
            return 0;
        }"#;
    if !std::path::Path::new("/usr/include/linux/idxd.h").exists() {
        // Not by `eprintln`: the test runner hides its output.
        let skipped = b"SKIPPED: layouts_and_constants_are_the_kernels: there is no linux/idxd.h\n";
        let _ = std::io::stderr().write_all(skipped);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("idxd");
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-", "-o"])
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    compiler
        .stdin
        .take()
        .unwrap()
        .write_all(PROGRAM.as_bytes())
        .unwrap();
    assert!(compiler.wait().unwrap().success());
    let output = Command::new(&program).output().unwrap().stdout;

    use std::mem::{offset_of, size_of};
    let packed = 0x00ab_cdef | 0x12 << 24;
    let ours = format!(
        "{} {} {} {} {} {} {} {} {packed:x}\n{} {} {} {} {}\n{} {}\n{} {} {}\n{} {} {} {} \
        {}\n",
        size_of::<Descriptor>(),
        offset_of!(Descriptor, completion_addr),
        offset_of!(Descriptor, source_or_pattern),
        offset_of!(Descriptor, source_or_pattern),
        offset_of!(Descriptor, target),
        offset_of!(Descriptor, len),
        offset_of!(Descriptor, interrupt_handle),
        offset_of!(Descriptor, specific),
        size_of::<Record>(),
        offset_of!(Record, status),
        offset_of!(Record, bytes_completed),
        offset_of!(Record, fault_addr),
        offset_of!(Record, specific),
        opcode::MEMMOVE,
        opcode::MEMFILL,
        flag::COMPLETION_ADDRESS_VALID,
        flag::REQUEST_COMPLETION,
        flag::CACHE_CONTROL,
        status::NONE,
        status::SUCCESS,
        status::PAGE_FAULT_NOBOF,
        status::BAD_OPCODE,
        status::MASK,
    );
    assert_eq!(String::from_utf8(output).unwrap(), ours);
}
