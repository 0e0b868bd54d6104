//! The BPF program that decides for each frame whether it is the engine's or the kernel's.
//!
//! ```text
//!   IPv4 ── destination ─────────────┐
//!   ARP  ── the requested address ───┤
//!   IPv6 ── destination ─────────────┼─► the engine's? ──► the socket of the frame's queue
//!        └─ a solicitation's target ─┘        │ no                │ no socket
//!   all else ─────────────────────────────────┴──► the kernel     └──► dropped, and counted
//! ```
//!
//! The addresses are at the same offset in all packets, so options do not matter, and all fragments
//! go to the same side. A solicitation goes to a group that several addresses share (RFC 4291,
//! section 2.7.1), and some of them may be the kernel's. So its target address decides.

use crate::bpf::{Assembler, If, Instruction, Label, Register, Size};

/// The verdicts (`enum xdp_action`).
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: u32 = 4;

/// `enum bpf_func_id`.
const BPF_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_REDIRECT_MAP: i32 = 51;

/// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE_INDEX: i16 = 16;

/// From the beginning of an Ethernet frame: RFC 791, 826, 8200, 4861.
const ETHERNET_BYTES: i16 = 14;
const ETHERNET_TYPE: i16 = 12;
const ARP_HARDWARE_AND_PROTOCOL: i16 = 14;
const ARP_LENGTHS: i16 = 18;
const ARP_TARGET: i16 = 38;
const ARP_END: i16 = 42;
const IPV4_DESTINATION: i16 = 30;
const IPV4_END: i16 = 34;
const IPV6_NEXT_HEADER: i16 = 20;
const IPV6_DESTINATION: i16 = 38;
const IPV6_END: i16 = 54;
const SOLICITATION_TARGET: i16 = 62;
const SOLICITATION_END: i16 = 78;

const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const TYPE_IPV6: u16 = 0x86dd;
const NEXT_HEADER_ICMP_V6: u32 = 58;
const NEIGHBOUR_SOLICITATION: u32 = 135;
/// The map's key: an address, IPv4 in the form of RFC 4291, section 2.5.5.2.
pub(super) const ADDRESS_BYTES: usize = 16;
/// Places on the stack: the key, and the index of a counter.
const KEY: i16 = -(ADDRESS_BYTES as i16);
const COUNTER: i16 = KEY - 4;

/// Descriptors of the program's maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    /// The engine's addresses.
    pub(super) addresses: i32,
    /// A socket for each receive queue.
    pub(super) sockets: i32,
    /// One counter: frames whose queue has no socket.
    pub(super) drops: i32,
}

/// The steering program.
pub(super) fn steering(maps: Maps) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let (pass, look_up) = (a.label(), a.label());
    let (ipv4, ipv6, arp) = (a.label(), a.label(), a.label());
    // R6: the frame's description. R2, R3: its beginning and its end.
    a.copy(Register::R6, Register::R1);
    a.load(Size::Word, Register::R2, Register::R6, MD_DATA);
    a.load(Size::Word, Register::R3, Register::R6, MD_DATA_END);
    leave_shorter(&mut a, ETHERNET_BYTES, pass);
    a.load(Size::Half, Register::R4, Register::R2, ETHERNET_TYPE);
    a.jump_if_word(Register::R4, If::Equal, half(TYPE_IPV4), ipv4);
    a.jump_if_word(Register::R4, If::Equal, half(TYPE_IPV6), ipv6);
    a.jump_if_word(Register::R4, If::Equal, half(TYPE_ARP), arp);
    a.jump(pass);

    a.place(arp);
    leave_shorter(&mut a, ARP_END, pass);
    // The headers of Ethernet and IPv4, up to the end of the addresses.
    a.load(
        Size::Word,
        Register::R4,
        Register::R2,
        ARP_HARDWARE_AND_PROTOCOL,
    );
    a.jump_if_word(Register::R4, If::NotEqual, word([0, 1, 8, 0]), pass);
    a.load(Size::Half, Register::R4, Register::R2, ARP_LENGTHS);
    a.jump_if_word(Register::R4, If::NotEqual, half(0x0604), pass);
    a.load(Size::Word, Register::R4, Register::R2, ARP_TARGET);
    let mapped = a.label();
    a.jump(mapped);

    a.place(ipv4);
    leave_shorter(&mut a, IPV4_END, pass);
    a.load(Size::Word, Register::R4, Register::R2, IPV4_DESTINATION);
    a.place(mapped);
    a.store_number(Size::Double, Register::R10, KEY, 0);
    let prefix = word([0, 0, 0xff, 0xff]).cast_signed();
    a.store_number(Size::Word, Register::R10, KEY + 8, prefix);
    a.store(Size::Word, Register::R10, KEY + 12, Register::R4);
    a.jump(look_up);

    a.place(ipv6);
    leave_shorter(&mut a, IPV6_END, pass);
    steer_by_ipv6(&mut a, pass);

    a.place(look_up);
    key_of_lookup(&mut a, maps.addresses, KEY);
    a.call(BPF_MAP_LOOKUP_ELEM);
    a.jump_if_null(Register::R0, pass);
    redirect(&mut a, maps.sockets, maps.drops);

    a.place(pass);
    a.set(Register::R0, XDP_PASS);
    a.exit();
    a.finish()
}

/// Leaves a frame to the kernel if it is shorter than `bytes`: the verifier wants a proof for each
/// access.
pub(crate) fn leave_shorter(a: &mut Assembler, bytes: i16, pass: Label) {
    a.copy(Register::R1, Register::R2);
    a.add(Register::R1, i32::from(bytes));
    a.jump_if(Register::R1, If::Greater, Register::R3, pass);
}

/// Makes the key from the destination, or from the target of a solicitation to ff02::1:ff00:0/104.
/// Then falls through to the lookup.
fn steer_by_ipv6(a: &mut Assembler, pass: Label) {
    let (by_destination, copied) = (a.label(), a.label());
    for (offset, expected) in [(0, [0xff, 2, 0, 0]), (4, [0; 4]), (8, [0, 0, 0, 1])] {
        a.load(
            Size::Word,
            Register::R4,
            Register::R2,
            IPV6_DESTINATION + offset,
        );
        a.jump_if_word(Register::R4, If::NotEqual, word(expected), by_destination);
    }
    a.load(
        Size::Byte,
        Register::R4,
        Register::R2,
        IPV6_DESTINATION + 12,
    );
    a.jump_if_word(Register::R4, If::NotEqual, 0xff, by_destination);
    leave_shorter(a, SOLICITATION_END, pass);
    a.load(Size::Byte, Register::R4, Register::R2, IPV6_NEXT_HEADER);
    a.jump_if_word(Register::R4, If::NotEqual, NEXT_HEADER_ICMP_V6, pass);
    a.load(Size::Byte, Register::R4, Register::R2, IPV6_END);
    a.jump_if_word(Register::R4, If::NotEqual, NEIGHBOUR_SOLICITATION, pass);
    copy_address(a, SOLICITATION_TARGET);
    a.jump(copied);
    a.place(by_destination);
    copy_address(a, IPV6_DESTINATION);
    a.place(copied);
}

/// Makes the key from an address in the frame. Copies whole words: they are aligned if the platform
/// leaves two bytes in front of a frame.
fn copy_address(a: &mut Assembler, from: i16) {
    for offset in (0..ADDRESS_BYTES as i16).step_by(4) {
        a.load(Size::Word, Register::R4, Register::R2, from + offset);
        a.store(Size::Word, Register::R10, KEY + offset, Register::R4);
    }
}

/// Sets R1 and R2 for a lookup in a map; the key is on the stack.
fn key_of_lookup(a: &mut Assembler, map: i32, key: i16) {
    a.load_map(Register::R1, map);
    a.copy(Register::R2, Register::R10);
    a.add(Register::R2, i32::from(key));
}

/// Gives the frame to the socket of its queue, or drops it if there is no socket. The frame must
/// not go to the kernel, which would answer for an address that is not its own, or forward the
/// frame.
pub(crate) fn redirect(a: &mut Assembler, sockets: i32, drops: i32) {
    let (taken, uncounted) = (a.label(), a.label());
    a.load_map(Register::R1, sockets);
    a.load(Size::Word, Register::R2, Register::R6, MD_RX_QUEUE_INDEX);
    a.set(Register::R3, XDP_DROP);
    a.call(BPF_REDIRECT_MAP);
    a.jump_if_word(Register::R0, If::Equal, XDP_REDIRECT, taken);
    a.store_number(Size::Word, Register::R10, COUNTER, 0);
    key_of_lookup(a, drops, COUNTER);
    a.call(BPF_MAP_LOOKUP_ELEM);
    a.jump_if_null(Register::R0, uncounted);
    a.load(Size::Double, Register::R1, Register::R0, 0);
    a.add(Register::R1, 1);
    a.store(Size::Double, Register::R0, 0, Register::R1);
    a.place(uncounted);
    a.set(Register::R0, XDP_DROP);
    a.place(taken);
    a.exit();
}

/// The value that a load of this number in network byte order gives.
pub(crate) fn half(number: u16) -> u32 {
    u32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

fn word(bytes: [u8; 4]) -> u32 {
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{Map, MapKind, Program, ProgramKind};
    use std::os::fd::AsRawFd;

    const OURS_V4: [u8; 4] = [10, 84, 0, 2];
    const OURS_V6: [u8; 16] = [0xfd, 0x84, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 2];
    /// The kernel's address of the same solicitation group.
    const KERNELS_V6: [u8; 16] = [0xfd, 0x85, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 2];

    struct Bench {
        program: Program,
        drops: Map,
        _maps: [Map; 2],
    }

    /// The program with the engine's two addresses, and no sockets. `None`, with a printed message,
    /// if the privilege is missing.
    fn bench() -> Option<Bench> {
        let addresses = Map::new(MapKind::Hash, ADDRESS_BYTES, 4, 8);
        let addresses = match addresses {
            Ok(addresses) => addresses,
            Err(error) => {
                println!(
                    "SKIPPED: steering by the kernel's own run of the program: {error} (CAP_BPF \
                    and CAP_NET_ADMIN are needed)"
                );
                return None;
            }
        };
        let mut mapped = [0; 16];
        mapped[10..12].copy_from_slice(&[0xff; 2]);
        mapped[12..].copy_from_slice(&OURS_V4);
        for ours in [mapped, OURS_V6] {
            addresses.insert(&ours, &[0; 4]).expect("an entry");
        }
        let sockets = Map::new(MapKind::Xsk, 4, 4, 4).expect("a map of sockets");
        let drops = Map::new(MapKind::PerCpuArray, 4, 8, 1).expect("a map of counters");
        let instructions = steering(Maps {
            addresses: addresses.as_raw_fd(),
            sockets: sockets.as_raw_fd(),
            drops: drops.as_raw_fd(),
        });
        let program = Program::load(ProgramKind::Xdp, "toehold_steer", &instructions);
        Some(Bench {
            program: program.expect("the verifier takes the program"),
            drops,
            _maps: [addresses, sockets],
        })
    }

    impl Bench {
        fn is_ours(&self, frame: &[u8]) -> bool {
            match self.program.try_out(frame).expect("a run") as i32 {
                // The queue has no socket.
                XDP_DROP => true,
                XDP_PASS => false,
                other => panic!("verdict {other}"),
            }
        }

        fn dropped(&self) -> u64 {
            self.drops.sum(&[0; 4]).expect("a counter")
        }
    }

    fn ethernet(kind: u16, rest: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(kind.to_be_bytes());
        frame.extend(rest);
        frame
    }

    fn ipv4(to: [u8; 4], options: usize, fragment: u16) -> Vec<u8> {
        let mut packet = vec![0; 20 + options + 8];
        packet[0] = 0x45 + (options / 4) as u8;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[16..20].copy_from_slice(&to);
        ethernet(TYPE_IPV4, &packet)
    }

    fn arp(target: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
        packet.extend([0; 16]);
        packet.extend(target);
        ethernet(TYPE_ARP, &packet)
    }

    fn ipv6(to: [u8; 16], next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        (packet[0], packet[6]) = (0x60, next_header);
        packet[24..].copy_from_slice(&to);
        packet.extend(payload);
        ethernet(TYPE_IPV6, &packet)
    }

    fn solicitation(target: [u8; 16], kind: u8) -> Vec<u8> {
        let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0x12, 0x34, 2];
        let mut payload = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        payload.extend(target);
        ipv6(group, 58, &payload)
    }

    #[test]
    fn frames_for_the_engines_addresses_are_taken() {
        let Some(bench) = bench() else { return };
        let ours = [
            ipv4(OURS_V4, 0, 0),
            ipv4(OURS_V4, 40, 0),
            ipv4(OURS_V4, 0, 0x2000),
            ipv4(OURS_V4, 0, 185),
            arp(OURS_V4),
            ipv6(OURS_V6, 6, &[0; 20]),
            ipv6(OURS_V6, 44, &[0; 8]),
            ipv6(OURS_V6, 58, &[136, 0, 0, 0]),
            solicitation(OURS_V6, 135),
        ];
        for (at, frame) in ours.iter().enumerate() {
            assert!(bench.is_ours(frame), "frame {at}");
        }
        assert_eq!(bench.dropped(), ours.len() as u64);
    }

    #[test]
    fn all_else_is_left_to_the_kernel() {
        let Some(bench) = bench() else { return };
        let mut other_hardware = arp(OURS_V4);
        other_hardware[15] = 6;
        let mut short_addresses = arp(OURS_V4);
        short_addresses[18] = 8;
        let others = [
            ipv4([10, 84, 0, 3], 0, 0),
            arp([10, 84, 0, 1]),
            other_hardware,
            short_addresses,
            ipv6(KERNELS_V6, 6, &[0; 20]),
            solicitation(KERNELS_V6, 135),
            solicitation(OURS_V6, 136),
            ethernet(0x8100, &[0; 60]),
            ethernet(0x88b5, &OURS_V4),
        ];
        for (at, frame) in others.iter().enumerate() {
            assert!(!bench.is_ours(frame), "frame {at}");
        }
        assert_eq!(bench.dropped(), 0);
    }

    #[test]
    fn frames_cut_short_anywhere_are_left_to_the_kernel() {
        let Some(bench) = bench() else { return };
        for (whole, needed) in [
            (ipv4(OURS_V4, 0, 0), IPV4_END),
            (arp(OURS_V4), ARP_END),
            (ipv6(OURS_V6, 6, &[0; 20]), IPV6_END),
            (solicitation(OURS_V6, 135), SOLICITATION_END),
        ] {
            // The kernel's test run takes no frame that is shorter than the Ethernet header.
            for length in ETHERNET_BYTES as usize..whole.len() {
                let is_enough = length >= needed as usize;
                assert_eq!(bench.is_ours(&whole[..length]), is_enough, "{length}");
            }
        }
    }
}
