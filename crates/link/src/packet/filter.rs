//! The filters that select a packet socket's frames (bpf(4)).

const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
pub(super) const EQUALS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const GREATER: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
pub(super) const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
pub(super) const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

pub(super) const fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// The distance of a jump, counted from the next instruction.
const fn to(target: u8, here: u8) -> u8 {
    target - here - 1
}

/// The upper four bytes of an address, and the lower two.
const fn halves([a, b, c, d, e, f]: [u8; 6]) -> (u32, u32) {
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([0, 0, e, f]),
    )
}

/// Accepts frames for `mac`, and broadcasts of ARP and multicasts of IPv6, all without a virtual
/// LAN's tag (`linux/filter.h`).
pub(super) fn filter(mac: [u8; 6]) -> Vec<libc::sock_filter> {
    let (mac_high, mac_low) = halves(mac);
    const GROUP: u8 = 9;
    const ACCEPT: u8 = 14;
    const REJECT: u8 = 15;
    let others = [
        step(WORD, 0, 0, 0),
        step(EQUALS, mac_high, 0, to(GROUP, 5)),
        step(HALF, 4, 0, 0),
        step(EQUALS, mac_low, to(ACCEPT, 7), to(REJECT, 7)),
        step(RETURN, 0, 0, 0),
        step(BYTE, 0, 0, 0),
        step(HAS, 1, 0, to(REJECT, 10)),
        step(HALF, 12, 0, 0),
        step(EQUALS, libc::ETH_P_ARP as u32, to(ACCEPT, 12), 0),
        step(
            EQUALS,
            libc::ETH_P_IPV6 as u32,
            to(ACCEPT, 13),
            to(REJECT, 13),
        ),
        step(RETURN, u32::MAX, 0, 0),
        step(RETURN, 0, 0, 0),
    ];
    [&of_no_virtual_lan(REJECT)[..], &others].concat()
}

/// The first steps of each filter. A frame of a virtual LAN belongs to another interface; the
/// kernel has already removed the tag from its bytes. Number 0 means no virtual LAN (IEEE 802.1Q).
const fn of_no_virtual_lan(reject: u8) -> [libc::sock_filter; 4] {
    const UNTAGGED: u8 = 4;
    [
        step(WORD, TAG_IS_THERE, 0, 0),
        step(EQUALS, 0, to(UNTAGGED, 1), 0),
        step(WORD, TAG, 0, 0),
        step(HAS, VIRTUAL_LAN, to(reject, 3), 0),
    ]
}

/// The filter for addresses that are shared with the kernel; `mac` is the interface's own address.
/// It accepts frames that the program on the interface has taken for the engine: these have our
/// address and the packet type PACKET_OTHERHOST. It also accepts frames that the kernel gets, too:
/// later fragments, which have no ports, and ICMP errors. The engine ignores errors about the
/// kernel's connections.
pub(super) fn shared_filter_v4(mac: [u8; 6]) -> Vec<libc::sock_filter> {
    const ICMP: u8 = 14;
    const ACCEPT: u8 = 19;
    const REJECT: u8 = 20;
    let others = [
        step(BYTE, 23, 0, 0),
        step(EQUALS, libc::IPPROTO_TCP as u32, 0, to(ICMP, 11)),
        step(HALF, 20, 0, 0),
        step(HAS, 0x1fff, to(ACCEPT, 13), to(REJECT, 13)),
        step(EQUALS, libc::IPPROTO_ICMP as u32, 0, to(REJECT, 14)),
        step(BYTE, 34, 0, 0),
        // RFC 792: unreachable, time exceeded, parameter problem.
        step(EQUALS, 3, to(ACCEPT, 16), 0),
        step(EQUALS, 11, to(ACCEPT, 17), 0),
        step(EQUALS, 12, to(ACCEPT, 18), to(REJECT, 18)),
        step(RETURN, u32::MAX, 0, 0),
        step(RETURN, 0, 0, 0),
    ];
    [taken_by_program(mac, ACCEPT, REJECT), others.to_vec()].concat()
}

/// As [`shared_filter_v4`], for IPv6. All fragments are the kernel's: the program on the interface
/// takes no segments with extension headers.
pub(super) fn shared_filter_v6(mac: [u8; 6]) -> Vec<libc::sock_filter> {
    const ACCEPT: u8 = 15;
    const REJECT: u8 = 16;
    let others = [
        step(BYTE, 20, 0, 0),
        step(EQUALS, libc::IPPROTO_ICMPV6 as u32, 0, to(REJECT, 11)),
        step(BYTE, 54, 0, 0),
        // RFC 4443: the errors are the types 1 to 4. Higher types are not errors.
        step(EQUALS, 0, to(REJECT, 13), 0),
        step(GREATER, 4, to(REJECT, 14), to(ACCEPT, 14)),
        step(RETURN, u32::MAX, 0, 0),
        step(RETURN, 0, 0, 0),
    ];
    [taken_by_program(mac, ACCEPT, REJECT), others.to_vec()].concat()
}

/// Accepts frames that the program on the interface has taken. Rejects frames that are not for
/// `mac`, and frames of a virtual LAN. The next steps judge all other frames.
fn taken_by_program(mac: [u8; 6], accept: u8, reject: u8) -> Vec<libc::sock_filter> {
    let (mac_high, mac_low) = halves(mac);
    let others = [
        step(WORD, 0, 0, 0),
        step(EQUALS, mac_high, 0, to(reject, 5)),
        step(HALF, 4, 0, 0),
        step(EQUALS, mac_low, 0, to(reject, 7)),
        step(WORD, PACKET_TYPE, 0, 0),
        step(EQUALS, PACKET_OTHERHOST, to(accept, 9), 0),
    ];
    [&of_no_virtual_lan(reject)[..], &others].concat()
}

/// The kernel's ancillary data of a frame (`SKF_AD_OFF`): whether the frame had a tag, and the
/// tag's number.
const TAG_IS_THERE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT).cast_unsigned();
const TAG: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG).cast_unsigned();
/// The packet type: the kind of receiver (`linux/if_packet.h`).
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
const PACKET_OTHERHOST: u32 = libc::PACKET_OTHERHOST as u32;
const VIRTUAL_LAN: u32 = 0x0fff;

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter's verdict, by the rules of bpf(4).
    fn verdict(program: &[libc::sock_filter], frame: &[u8], tag: Option<u32>, kind: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program[at];
            let (code, k) = (u32::from(step.code), step.k as usize);
            at += 1;
            match code & 0x07 {
                libc::BPF_LD if step.k == TAG_IS_THERE => accumulator = u32::from(tag.is_some()),
                libc::BPF_LD if step.k == TAG => accumulator = tag.unwrap_or(5),
                libc::BPF_LD if step.k == PACKET_TYPE => accumulator = kind,
                libc::BPF_LD => {
                    let bytes = match code & 0x18 {
                        libc::BPF_W => &frame[k..k + 4],
                        libc::BPF_H => &frame[k..k + 2],
                        _ => &frame[k..=k],
                    };
                    accumulator = bytes
                        .iter()
                        .fold(0, |sum, &byte| sum << 8 | u32::from(byte));
                }
                libc::BPF_JMP => {
                    let holds = match code & 0xf0 {
                        libc::BPF_JEQ => accumulator == step.k,
                        libc::BPF_JGT => accumulator > step.k,
                        _ => accumulator & step.k != 0,
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
                _ => return step.k,
            }
        }
    }

    #[test]
    fn filter_lets_through_what_is_for_us_and_what_asks_everybody() {
        let program = filter([2, 0x54, 0x0a, 0x54, 0, 2]);
        let frame = |mac: [u8; 6], kind: u16| {
            let mut frame = [0u8; 64];
            frame[..6].copy_from_slice(&mac);
            frame[12..14].copy_from_slice(&kind.to_be_bytes());
            frame
        };
        let is_taken = |mac, kind| verdict(&program, &frame(mac, kind), None, 0) != 0;
        let ours = [2, 0x54, 0x0a, 0x54, 0, 2];
        assert!(is_taken(ours, 0x0800) && is_taken(ours, 0x86dd) && is_taken(ours, 0x0806));
        assert!(is_taken([0xff; 6], 0x0806) && is_taken([0x33, 0x33, 0, 0, 0, 1], 0x86dd));
        assert!(!is_taken([0xff; 6], 0x0800), "a broadcast is no segment");
        assert!(!is_taken([2, 0x54, 0x0a, 0x54, 0, 3], 0x0800));
        assert!(!is_taken([4, 0x54, 0x0a, 0x54, 0, 2], 0x0806));
        let is_taken_of = |tag| verdict(&program, &frame(ours, 0x0800), Some(tag), 0) != 0;
        assert!(!is_taken_of(5) && !is_taken_of(0xe005) && is_taken_of(0xe000));
    }

    const OURS: [u8; 6] = [2, 0x54, 0x0a, 0x54, 0, 2];

    /// Whether a filter takes a frame to this address, of that packet type, with these bytes.
    fn is_taken(
        program: &[libc::sock_filter],
        mac: [u8; 6],
        kind: u32,
        bytes: &[(usize, u8)],
    ) -> bool {
        let mut frame = [0u8; 64];
        frame[..6].copy_from_slice(&mac);
        for &(at, byte) in bytes {
            frame[at] = byte;
        }
        verdict(program, &frame, None, kind) != 0
    }

    #[test]
    fn shared_filters_let_through_what_was_taken() {
        let others = [2, 0x54, 0x0a, 0x54, 0, 3];
        for (program, protocol_at) in [(shared_filter_v4(OURS), 23), (shared_filter_v6(OURS), 20)] {
            let segment = [(protocol_at, 6)];
            assert!(is_taken(&program, OURS, PACKET_OTHERHOST, &segment));
            assert!(!is_taken(&program, OURS, 0, &segment), "the kernel's");
            assert!(!is_taken(&program, others, PACKET_OTHERHOST, &segment));
            let frame = [&OURS[..], &[0; 58]].concat();
            let of_lan = |tag| verdict(&program, &frame, Some(tag), PACKET_OTHERHOST) != 0;
            assert!(!of_lan(5) && of_lan(0xe000));
        }
    }

    #[test]
    fn shared_filters_let_through_what_has_no_ports_of_its_own() {
        let program = shared_filter_v4(OURS);
        assert!(is_taken(&program, OURS, 0, &[(23, 6), (21, 1)]));
        assert!(
            !is_taken(&program, OURS, 0, &[(23, 6), (20, 0x40)]),
            "never cut"
        );
        for (kind, is_error) in [(3, true), (8, false), (0, false), (11, true), (12, true)] {
            let message = [(23, 1), (34, kind)];
            assert_eq!(is_taken(&program, OURS, 0, &message), is_error, "{kind}");
        }
        assert!(!is_taken(&program, OURS, 0, &[(23, 17), (34, 3)]));
        let program = shared_filter_v6(OURS);
        for kind in [0, 1, 2, 3, 4, 5, 128, 135] {
            let message = [(20, 58), (54, kind)];
            let is_error = (1..=4).contains(&kind);
            assert_eq!(is_taken(&program, OURS, 0, &message), is_error, "{kind}");
        }
        assert!(!is_taken(&program, OURS, 0, &[(20, 17), (54, 3)]));
        // A later fragment of a TCP segment.
        assert!(!is_taken(&program, OURS, 0, &[(20, 44), (54, 6)]));
    }
}
